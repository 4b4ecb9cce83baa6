# SPDX-License-Identifier: Apache-2.0
"""kafka-python on kcodec. install() replaces its record classes, and how its consumer uses them."""

from __future__ import annotations

from kcodec.compat._other_client import client_module
from kcodec.compat._patches import Patches, check_signatures, every_codec

__all__ = ["install", "installed", "uninstall"]

KNOWN = "3.0.12"
RECORD = ("offset", "timestamp", "key", "value", "headers")
BUILDER = ("compression_type", "is_transactional", "producer_id", "producer_epoch", "base_sequence", "batch_size")
_patches = Patches("kafka")


def install() -> None:
    """Make kafka-python's consumers and producers read and write record batches with kcodec.

    Call this before they are created. A second call has no effect. Raise ImportError if kafka-python is not installed,
    or if its version is not supported.
    """
    _patches.install(_prepare)


def uninstall() -> None:
    """Restore kafka-python's own classes. Consumers and producers that were created before keep their objects."""
    _patches.uninstall()


def installed() -> bool:
    """Return whether install() is in effect."""
    return _patches.installed


def _prepare() -> tuple[dict[str, object], dict[str, object], list[tuple[object, str, object]]]:
    package = client_module("kafka", "kafka-python")
    fetcher = client_module("kafka.consumer.fetcher", "kafka-python")
    default = client_module("kafka.record.default_records", "kafka-python")
    memory = client_module("kafka.record.memory_records", "kafka-python")
    legacy = client_module("kafka.record.legacy_records", "kafka-python")
    settings = ("key_deserializer", "value_deserializer", "check_crcs", "isolation_level", "aborted_transactions")
    check_signatures(
        "kafka-python",
        package.__version__,
        KNOWN,
        [
            (
                fetcher,
                "Fetcher.PartitionRecords.__init__",
                ("fetch_offset", "tp", "records", *settings, "metric_aggregator", "on_drain"),
            ),
            (
                fetcher,
                "Fetcher.PartitionRecords._unpack_records",
                ("tp", "records", "key_deserializer", "value_deserializer"),
            ),
            (fetcher, "Fetcher.PartitionRecords.take", ("n",)),
            (memory, "MemoryRecords.__init__", ("bytes_data",)),
            (default, "DefaultRecordBatch.__init__", ("buffer",)),
            (legacy, "LegacyRecordBatch.__init__", ("buffer", "magic")),
            (
                legacy,
                "LegacyRecord.__init__",
                ("magic", *RECORD[:2], "timestamp_type", *RECORD[2:4], "crc", "crc_bytes"),
            ),
            (default, "DefaultRecordBatchBuilder.__init__", ("magic", *BUILDER)),
            (default, "DefaultRecordBatchBuilder.size_in_bytes", ("offset_delta", "timestamp_delta", *RECORD[2:])),
            (default, "DefaultRecordBatchBuilder.set_producer_state", (*BUILDER[2:5], "is_transactional")),
            (memory, "MemoryRecordsBuilder.append", RECORD[1:]),
        ],
    )
    from kcodec.compat import _kafka_python_classes as classes

    originals = {
        "MemoryRecords": memory.MemoryRecords,
        "DefaultRecordBatch": default.DefaultRecordBatch,
        "LegacyRecordBatch": legacy.LegacyRecordBatch,
        "DefaultRecord": default.DefaultRecord,
        "ControlRecord": default.ControlRecord,
        "DefaultRecordBatchBuilder": default.DefaultRecordBatchBuilder,
        "DefaultRecordMetadata": default.DefaultRecordMetadata,
    }
    ours = {name: getattr(classes, name) for name in originals}
    codecs = every_codec(package.KafkaProducer, "kafka-python", package.__version__)
    return originals, ours, [(fetcher.Fetcher, "PartitionRecords", classes.PartitionRecords), codecs]
