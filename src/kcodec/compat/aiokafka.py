# SPDX-License-Identifier: Apache-2.0
"""aiokafka on kcodec.

    from kcodec.compat.aiokafka import AIOKafkaConsumer, AIOKafkaProducer    # instead of: from aiokafka import ...

    import kcodec.compat.aiokafka
    kcodec.compat.aiokafka.install()                # replaces the record classes, and how aiokafka's consumer uses them
    kcodec.compat.aiokafka.install(clients=True)    # also replaces the clients, for programs that import aiokafka
    kcodec.compat.aiokafka.uninstall()              # restores aiokafka's own classes

The clients have aiokafka's methods, parameters and exceptions. Records, errors, TopicPartition, listeners and other
values are still classes of aiokafka, which must be installed: `pip install aiokafka`. Public names of `aiokafka`, such
as TopicPartition, can also be imported from this module. The clients of aiokafka itself open no connection.

docs/compat-aiokafka.md lists what is covered.
"""

from __future__ import annotations

from typing import Any

from kcodec.compat._other_client import client_module, value_of
from kcodec.compat._patches import Patches, check_signatures, every_codec, moved_wrappers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.compat._aiokafka_admin import AIOKafkaAdminClient
    from kcodec.compat._aiokafka_consumer import AIOKafkaConsumer
    from kcodec.compat._aiokafka_producer import AIOKafkaProducer

__all__ = ["AIOKafkaAdminClient", "AIOKafkaConsumer", "AIOKafkaProducer", "install", "installed", "uninstall"]

KNOWN = "0.14.0"
RECORD = ("offset", "timestamp", "key", "value", "headers")
SIZES = ("serialized_key_size", "serialized_value_size")
CONSUMER_RECORD = ("topic", "partition", *RECORD[:2], "timestamp_type", *RECORD[2:4], "checksum", *SIZES, "headers")
BUILDER = ("compression_type", "is_transactional", "producer_id", "producer_epoch", "base_sequence", "batch_size")
# For each public name, the module of the facade, and the module of aiokafka that defines it.
_CLIENTS = {
    "AIOKafkaAdminClient": ("_aiokafka_admin", "aiokafka.admin.client"),
    "AIOKafkaConsumer": ("_aiokafka_consumer", "aiokafka.consumer.consumer"),
    "AIOKafkaProducer": ("_aiokafka_producer", "aiokafka.producer.producer"),
}
_patches = Patches("aiokafka", compiled=("aiokafka.record._crecords",))
_client_patches = Patches("aiokafka")


def __getattr__(name: str) -> Any:
    """Return one of the clients, or a value of aiokafka. The first call imports aiokafka."""
    if name not in _CLIENTS:
        return value_of(name, ("aiokafka",), "aiokafka", frozenset({"AIOKafkaClient"}), __name__)
    _check_version()
    return _facade(name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__


def install(*, clients: bool = False) -> None:
    """Make aiokafka's consumers and producers read and write record batches with kcodec.

    Call this before they are created.

    clients: Whether to replace AIOKafkaConsumer, AIOKafkaProducer and AIOKafkaAdminClient, too, in all modules of
        aiokafka. In this case, call it before a program imports these names.

    A second call has no effect, except that it can add the clients. Raise ImportError if aiokafka is not installed, or
    if its version is not supported.
    """
    _patches.install(_prepare)
    if clients:
        _client_patches.install(_prepare_clients)


def uninstall() -> None:
    """Restore aiokafka's own classes. Consumers and producers that were created before keep their objects."""
    _client_patches.uninstall()
    _patches.uninstall()


def installed() -> bool:
    """Return whether install() is in effect."""
    return _patches.installed


def _check_version() -> Any:
    package = client_module("aiokafka", "aiokafka")
    if package.__version__.split(".")[:2] != KNOWN.split(".")[:2]:
        raise ImportError(
            f"aiokafka {package.__version__} is not supported by kcodec.compat, which is made for {KNOWN}; "
            f"pip install 'aiokafka=={KNOWN}'"
        )
    return package


def _facade(name: str) -> Any:
    import importlib

    return getattr(importlib.import_module(f"kcodec.compat.{_CLIENTS[name][0]}"), name)


def _prepare_clients() -> tuple[dict[str, object], dict[str, object], list[tuple[object, str, object]]]:
    _check_version()
    originals = {name: getattr(client_module(module, "aiokafka"), name) for name, (_, module) in _CLIENTS.items()}
    ours = {name: _facade(name) for name in originals}
    attributes: list[tuple[object, str, object]] = []
    for name, original in originals.items():
        methods = vars(ours[name])
        attributes += moved_wrappers(original, "aiokafka", methods.get)
        attributes += [
            (ours[name], method, value)
            for method, value in vars(original).items()
            if hasattr(value, "_self_wrapper") and method in methods
        ]
    return originals, ours, attributes


def _prepare() -> tuple[dict[str, object], dict[str, object], list[tuple[object, str, object]]]:
    package = client_module("aiokafka", "aiokafka")
    fetcher = client_module("aiokafka.consumer.fetcher", "aiokafka")
    default = client_module("aiokafka.record.default_records", "aiokafka")
    memory = client_module("aiokafka.record.memory_records", "aiokafka")
    legacy = client_module("aiokafka.record.legacy_records", "aiokafka")
    protocols = client_module("aiokafka.record._protocols", "aiokafka")
    settings = ("aborted_transactions", "fetch_offset", "key_deserializer", "value_deserializer", "check_crcs")
    check_signatures(
        "aiokafka",
        package.__version__,
        KNOWN,
        [
            (fetcher, "PartitionRecords.__init__", ("tp", "records", *settings, "isolation_level")),
            (fetcher, "PartitionRecords._unpack_records", ()),
            (fetcher, "FetchResult.__init__", ("tp", "assignment", "partition_records", "backoff")),
            (fetcher, "ConsumerRecord.__init__", CONSUMER_RECORD),
            (fetcher, "FetchError.__init__", ("error", "backoff")),
            (protocols, "MemoryRecordsProtocol.__init__", ("bytes_data",)),
            (protocols, "MemoryRecordsProtocol.next_batch", ()),
            (protocols, "LegacyRecordBatchProtocol.__init__", ("buffer", "magic")),
            (protocols, "LegacyRecordProtocol.__init__", (*RECORD[:2], "timestamp_type", *RECORD[2:4], "crc")),
            (protocols, "DefaultRecordBatchBuilderProtocol.__init__", ("magic", *BUILDER)),
            (protocols, "DefaultRecordBatchBuilderProtocol.append", RECORD),
            (protocols, "DefaultRecordBatchBuilderProtocol.size_in_bytes", RECORD),
            (protocols, "DefaultRecordBatchBuilderProtocol.set_producer_state", BUILDER[2:5]),
        ],
    )
    from kcodec.compat import _aiokafka_classes as classes

    originals = {
        "MemoryRecords": memory.MemoryRecords,
        "DefaultRecordBatch": default.DefaultRecordBatch,
        "LegacyRecordBatch": legacy.LegacyRecordBatch,
        "DefaultRecord": default.DefaultRecord,
        "DefaultRecordBatchBuilder": default.DefaultRecordBatchBuilder,
        "DefaultRecordMetadata": default.DefaultRecordMetadata,
        "PartitionRecords": fetcher.PartitionRecords,
        "FetchResult": fetcher.FetchResult,
    }
    codecs = every_codec(package.AIOKafkaProducer, "aiokafka", package.__version__)
    return originals, {name: getattr(classes, name) for name in originals}, [codecs]
