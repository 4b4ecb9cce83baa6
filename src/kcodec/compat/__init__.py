# SPDX-License-Identifier: Apache-2.0
"""Other Python clients on kcodec: the record classes of aiokafka and kafka-python, and the clients of aiokafka and
confluent_kafka.

    import kcodec.compat.aiokafka
    kcodec.compat.aiokafka.install()         # from now on aiokafka reads and writes batches with kcodec
    kcodec.compat.aiokafka.uninstall()       # from now on aiokafka uses its own classes again

    kcodec.compat.kafka_python.install()     # the same for kafka-python
    kcodec.compat.confluent.install()        # replaces confluent_kafka's Producer, Consumer and AdminClient

Call install() before consumers and producers are created. The client itself must be installed: `pip install aiokafka`,
`pip install kafka-python` or `pip install confluent-kafka`. docs/compat.md describes what changes.
"""

from kcodec._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports("kcodec.compat", {}, ("aiokafka", "confluent", "kafka_python"))
