# SPDX-License-Identifier: Apache-2.0
"""aiokafka backed by kcodec: install() replaces its record classes, and how its consumer uses them."""

from __future__ import annotations

from kcodec.compat._patches import Patches, check_signatures, client_module, every_codec

__all__ = ["install", "installed", "uninstall"]

KNOWN = "0.14.0"
RECORD = ("offset", "timestamp", "key", "value", "headers")
SIZES = ("serialized_key_size", "serialized_value_size")
CONSUMER_RECORD = ("topic", "partition", *RECORD[:2], "timestamp_type", *RECORD[2:4], "checksum", *SIZES, "headers")
BUILDER = ("compression_type", "is_transactional", "producer_id", "producer_epoch", "base_sequence", "batch_size")
_patches = Patches("aiokafka", compiled=("aiokafka.record._crecords",))


def install() -> None:
    """Let aiokafka's consumers and producers read and write record batches with kcodec.

    Call it before they are created. A second call has no effect. Raise ImportError if aiokafka is not installed, or if
    its version is not supported.
    """
    _patches.install(_prepare)


def uninstall() -> None:
    """Restore aiokafka's own classes. Consumers and producers created in between keep the objects they have."""
    _patches.uninstall()


def installed() -> bool:
    """Return whether install() is in effect."""
    return _patches.installed


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
