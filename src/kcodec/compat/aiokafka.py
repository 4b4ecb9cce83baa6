# SPDX-License-Identifier: Apache-2.0
"""aiokafka on kcodec: install() puts our record classes, and what its consumer does with them, into it."""

from __future__ import annotations

from kcodec.compat._patches import Patches, check_faces, client_module, every_codec

__all__ = ["install", "installed", "uninstall"]

KNOWN = "0.14.0"
RECORD = ("offset", "timestamp", "key", "value", "headers")
BUILDER = ("compression_type", "is_transactional", "producer_id", "producer_epoch", "base_sequence", "batch_size")
_patches = Patches("aiokafka", compiled=("aiokafka.record._crecords",))


def install() -> None:
    """From now on aiokafka's consumers and producers read and write record batches by kcodec.

    Call it before they are made. A second call does nothing. ImportError if aiokafka is not installed, or if its record
    classes are not those of a version known here.
    """
    _patches.install(_prepare)


def uninstall() -> None:
    """aiokafka is again as it was. Consumers and producers made in between keep what they have in hand."""
    _patches.uninstall()


def installed() -> bool:
    """Whether install() is in effect."""
    return _patches.installed


def _prepare() -> tuple[dict[str, object], dict[str, object], list[tuple[object, str, object]]]:
    package = client_module("aiokafka", "aiokafka")
    fetcher = client_module("aiokafka.consumer.fetcher", "aiokafka")
    default = client_module("aiokafka.record.default_records", "aiokafka")
    memory = client_module("aiokafka.record.memory_records", "aiokafka")
    legacy = client_module("aiokafka.record.legacy_records", "aiokafka")
    protocols = client_module("aiokafka.record._protocols", "aiokafka")
    settings = ("aborted_transactions", "fetch_offset", "key_deserializer", "value_deserializer", "check_crcs")
    check_faces(
        "aiokafka",
        package.__version__,
        KNOWN,
        [
            (fetcher, "PartitionRecords.__init__", ("tp", "records", *settings, "isolation_level")),
            (fetcher, "PartitionRecords._unpack_records", ()),
            (fetcher, "FetchResult.__init__", ("tp", "assignment", "partition_records", "backoff")),
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
    from kcodec.compat import _aiokafka_classes as faces

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
    return originals, {name: getattr(faces, name) for name in originals}, [codecs]
