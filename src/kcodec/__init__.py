# SPDX-License-Identifier: Apache-2.0
"""kcodec: an Apache Kafka client for Python, a codec for Kafka's record batches, and a Kafka data source for Spark.

This module has the codec, reads of topics and log files (`read_topic`, `open`), and the exceptions. `kcodec.client` has
the clients, `kcodec.client.aio` the same clients for asyncio, and `kcodec.spark` the functions for Spark.
"""

from kcodec._fast import (
    COLUMNS,
    AbortedTransaction,
    Column,
    Counts,
    DecodedRecords,
    EncodedBatches,
    Partitions,
    Record,
    RecordBatch,
    RecordBatchBuilder,
    RecordBatches,
    batches,
    decode,
    encode,
    encode_batch,
    encode_end_transaction_marker,
    partition_for,
)
from kcodec._lazy import lazy_exports as _lazy_exports
from kcodec.constants import BatchRetention, Compression, ControlType, IsolationLevel, TimestampType
from kcodec.constants import __version__ as __version__
from kcodec.errors import (
    AbortableTransactionError,
    AdminError,
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    BufferFullError,
    CorruptBatchError,
    DecodeError,
    DeliveryErrors,
    DeliveryTimeoutError,
    DeserializationError,
    EncodeError,
    FatalTransactionError,
    KcodecError,
    LimitExceededError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RecordValidationError,
    RequestTimedOutError,
    TopicDeliveryError,
    TransactionStateError,
    TransactionTimedOutError,
    TransportError,
    TruncatedError,
    UnknownOutcomeError,
    UnsupportedError,
)
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.client.polars_scan import scan_topic
    from kcodec.client.range_records import read_ranges
    from kcodec.client.topic_records import read_topic
    from kcodec.log import open  # noqa: A004  the builtin is not used here
    from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, OffsetRange, Timestamp, TopicPartition
    from kcodec.record.compaction import filter_to
    from kcodec.record.rewrite import (
        set_base_offset,
        set_log_append_time,
        set_max_timestamp,
        set_partition_leader_epoch,
        set_producer_state,
    )
    from kcodec.record.validation import validate
del TYPE_CHECKING

# Imported when first used: reading batches needs none of them.
_EXPORTS = {
    "ConsumerGroupMetadata": "kcodec.offsets",
    "OffsetAndMetadata": "kcodec.offsets",
    "OffsetRange": "kcodec.offsets",
    "Timestamp": "kcodec.offsets",
    "TopicPartition": "kcodec.offsets",
    "filter_to": "kcodec.record.compaction",
    "open": "kcodec.log",
    "read_ranges": "kcodec.client.range_records",
    "read_topic": "kcodec.client.topic_records",
    "scan_topic": "kcodec.client.polars_scan",
    "set_base_offset": "kcodec.record.rewrite",
    "set_log_append_time": "kcodec.record.rewrite",
    "set_max_timestamp": "kcodec.record.rewrite",
    "set_partition_leader_epoch": "kcodec.record.rewrite",
    "set_producer_state": "kcodec.record.rewrite",
    "validate": "kcodec.record.validation",
}
_SUBMODULES = ("client", "compat", "log", "protocol", "spark", "testing", "text")

__all__ = [
    "COLUMNS",
    "DEFAULT_LIMITS",
    "AbortableTransactionError",
    "AbortedTransaction",
    "AdminError",
    "AuthenticationError",
    "AuthorizationError",
    "BatchRetention",
    "BrokerError",
    "BufferFullError",
    "Column",
    "Compression",
    "ConsumerGroupMetadata",
    "ControlType",
    "CorruptBatchError",
    "Counts",
    "DecodeError",
    "DecodeLimits",
    "DecodedRecords",
    "DeliveryErrors",
    "DeliveryTimeoutError",
    "DeserializationError",
    "EncodeError",
    "EncodedBatches",
    "FatalTransactionError",
    "IsolationLevel",
    "KcodecError",
    "LimitExceededError",
    "LogTruncationError",
    "NoOffsetForPartitionError",
    "OffsetAndMetadata",
    "OffsetOutOfRangeError",
    "OffsetRange",
    "Partitions",
    "ProducerFencedError",
    "Record",
    "RecordBatch",
    "RecordBatchBuilder",
    "RecordBatches",
    "RecordValidationError",
    "RequestTimedOutError",
    "Timestamp",
    "TimestampType",
    "TopicDeliveryError",
    "TopicPartition",
    "TransactionStateError",
    "TransactionTimedOutError",
    "TransportError",
    "TruncatedError",
    "UnknownOutcomeError",
    "UnsupportedError",
    "batches",
    "decode",
    "encode",
    "encode_batch",
    "encode_end_transaction_marker",
    "filter_to",
    "open",
    "partition_for",
    "read_ranges",
    "read_topic",
    "scan_topic",
    "set_base_offset",
    "set_log_append_time",
    "set_max_timestamp",
    "set_partition_leader_epoch",
    "set_producer_state",
    "validate",
]

__getattr__, __dir__ = _lazy_exports("kcodec", _EXPORTS, _SUBMODULES)
