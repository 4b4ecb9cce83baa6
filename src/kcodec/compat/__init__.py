# SPDX-License-Identifier: Apache-2.0
"""The record classes of other Python clients, backed by kcodec's core.

    import kcodec.compat.aiokafka
    kcodec.compat.aiokafka.install()         # from now on aiokafka reads and writes batches with kcodec
    kcodec.compat.aiokafka.uninstall()       # and from now on with its own classes

    kcodec.compat.kafka_python.install()     # the same for kafka-python

Call install() before consumers and producers are created. The client itself must be installed: `pip install aiokafka`
or `pip install kafka-python`. docs/compat.md describes what changes.
"""

from kcodec._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports("kcodec.compat", {}, ("aiokafka", "kafka_python"))
