# SPDX-License-Identifier: Apache-2.0
"""kcodec's core behind the record classes of other Python clients.

    import kcodec.compat.aiokafka
    kcodec.compat.aiokafka.install()         from now on aiokafka reads and writes batches by kcodec
    kcodec.compat.aiokafka.uninstall()       and from now on it does not

    kcodec.compat.kafka_python.install()     the same for kafka-python

Call install() before consumers and producers are made. The client itself has to be there: `pip install aiokafka` or
`pip install kafka-python`. docs/compat.md says what changes and what stays.
"""

from kcodec._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports("kcodec.compat", {}, ("aiokafka", "kafka_python"))
