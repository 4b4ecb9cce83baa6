# SPDX-License-Identifier: Apache-2.0
"""kcodec's core behind the record classes of other Python clients.

    import kcodec.compat.aiokafka
    kcodec.compat.aiokafka.install()         from now on aiokafka reads and writes batches by kcodec
    kcodec.compat.aiokafka.uninstall()       and from now on it does not

    kcodec.compat.kafka_python.install()     the same for kafka-python

Call install() before consumers and producers are made. The client itself has to be there: `pip install aiokafka` or
`pip install kafka-python`. docs/compat.md says what changes and what stays.
"""

_CLIENTS = ("aiokafka", "kafka_python")


def __dir__() -> list[str]:
    """The clients, too, whose modules are imported when first asked for."""
    return sorted({*globals(), *_CLIENTS})


def __getattr__(name: str) -> object:
    """The module of a client."""
    if name in _CLIENTS:
        import importlib

        return importlib.import_module(f"kcodec.compat.{name}")
    raise AttributeError(f"module 'kcodec.compat' has no attribute {name!r}")
