# SPDX-License-Identifier: Apache-2.0
"""The checks of a leader before it appends a produced batch, with the error of its response.

    kcodec.validate(encoded, cleanup_policy="compact")     # None, or RecordValidationError with Kafka's code and name

The order of the checks is Kafka's, as the first that fails determines the error code: those of the request (KafkaApis,
ProduceRequest.validateRecords), of the bytes (UnifiedLog.analyzeAndValidateRecords), of the batch and its records
(LogValidator), and of the rewriting that a leader may have to do (MemoryRecordsBuilder). The tests compare them with
Kafka's classes. Some are more lenient than expected, and so is this module: a topic of CreateTime accepts a batch
with LogAppendTime, and offsets in an uncompressed batch are not checked.

Checks that depend on the log are left out: sequence numbers and epochs compared with earlier ones, and open
transactions. The size of a batch that the leader compresses again is not checked either.
"""

from __future__ import annotations

from kcodec._fast import MAX_RECORD_INDEXES, RecordBatch, batches, validate_batch_records
from kcodec.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Compression, TimestampType
from kcodec.errors import (
    CorruptBatchError,
    DecodeError,
    LimitExceededError,
    RecordValidationError,
    TruncatedError,
)
from kcodec.integers import as_integer, shown
from kcodec.limits import DEFAULT_LIMITS
from kcodec.protocol.error_codes import ErrorCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from typing_extensions import Buffer

    from kcodec.limits import DecodeLimits

    Origin = Literal["client", "coordinator"]

__all__ = ["MAX_RECORD_INDEXES", "validate"]

# Kafka's defaults of topic settings.
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
DEFAULT_SEGMENT_BYTES = 1 << 30
DEFAULT_BEFORE_MAX_MS = (1 << 63) - 1
DEFAULT_AFTER_MAX_MS = 3_600_000

LATEST_API_VERSION = 13  # the latest version of Produce in Kafka
_LEAST_API_VERSION = 3  # the first one with magic 2; Kafka 4 does not support lower versions
_LEAST_ZSTD_API_VERSION = 7
_HEADER_BYTES = 61
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_INDEPENDENT_BLOCKS = 0x20


class _Rules:
    """The settings of a topic and the fields of a request, already checked."""

    def __init__(
        self,
        *,
        cleanup_policy: str,
        message_timestamp_type: TimestampType | str,
        compression_type: Compression | str,
        origin: str,
        api_version: int,
        has_transactional_id: bool,
        numbers: dict[str, int],
    ) -> None:
        policies = [policy.strip() for policy in cleanup_policy.split(",")]
        for policy in policies:
            _choose("cleanup_policy", policy, ("delete", "compact"))
        self.is_compacted = "compact" in policies
        _choose(
            "message_timestamp_type", message_timestamp_type, (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)
        )
        self.is_create_time = message_timestamp_type == TimestampType.CREATE_TIME
        _choose("compression_type", compression_type, ("producer", "uncompressed", *Compression))
        self.target = None if compression_type == "producer" else compression_type
        self.is_client = _choose("origin", origin, ("client", "coordinator")) == "client"
        for name, value in {**numbers, "api_version": api_version}.items():
            number = as_integer(value)
            if number is None:
                raise TypeError(f"{name} must be an int, not {type(value).__name__}")
            if not -(1 << 63) <= number < 1 << 63:
                raise ValueError(f"{name} must be a 64-bit number, not {shown(number)}")
            numbers[name] = number
        api_version = numbers["api_version"]
        if api_version < _LEAST_API_VERSION:
            raise ValueError(f"api_version must be at least {_LEAST_API_VERSION} (magic 2), not {api_version}")
        self.api_version = api_version
        self.has_transactional_id = has_transactional_id
        self.max_message_bytes = numbers["max_message_bytes"]
        self.segment_bytes = numbers["segment_bytes"]
        self.before_max_ms = numbers["message_timestamp_before_max_ms"]
        self.after_max_ms = numbers["message_timestamp_after_max_ms"]
        self.now = numbers["now"]


def _choose(name: str, value: object, choices: tuple[object, ...]) -> object:
    if isinstance(value, bool) or value not in choices:  # True is equal to the number of a member
        raise ValueError(f"unknown {name} {str(value)!r}; possible: {', '.join(map(str, choices))}")
    return value


def _refused(
    code: ErrorCode, reason: str, batch: RecordBatch | None, indexes: tuple[int, ...] = ()
) -> RecordValidationError:
    return RecordValidationError(
        reason,
        code=code,
        name=code.name,
        position=None if batch is None else batch.position,
        base_offset=None if batch is None else batch.base_offset,
        record_indexes=indexes,
    )


def validate(
    batch: RecordBatch | Buffer,
    *,
    cleanup_policy: str = "delete",
    message_timestamp_type: TimestampType | Literal["CreateTime", "LogAppendTime"] = TimestampType.CREATE_TIME,
    message_timestamp_before_max_ms: int = DEFAULT_BEFORE_MAX_MS,
    message_timestamp_after_max_ms: int = DEFAULT_AFTER_MAX_MS,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    compression_type: Compression | str = "producer",
    now: int | None = None,
    origin: Origin = "client",
    api_version: int = LATEST_API_VERSION,
    has_transactional_id: bool = True,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> None:
    """Raise the error that a leader would respond to a produce request for one partition; return None if it accepts.

    batch:        A RecordBatch, or the record set of the partition as bytes, which must contain exactly one.
    now:          The leader's clock in ms, by default this machine's.
    origin:       "client", or "coordinator" for what brokers write themselves (markers, offset commits), which has
                  fewer checks.
    api_version, has_transactional_id: Of the produce request.

    limits:       DecodeLimits for reading.

    cleanup_policy, compression_type, max_message_bytes, segment_bytes, message_timestamp_type,
    message_timestamp_before_max_ms and message_timestamp_after_max_ms are settings of the topic, with Kafka's spelling
    and defaults. Raise RecordValidationError;
    LimitExceededError above `limits`; ValueError or TypeError for invalid settings.
    """
    if now is None:
        import time

        now = time.time_ns() // 1_000_000
    numbers = {
        "message_timestamp_before_max_ms": message_timestamp_before_max_ms,
        "message_timestamp_after_max_ms": message_timestamp_after_max_ms,
        "max_message_bytes": max_message_bytes,
        "segment_bytes": segment_bytes,
        "now": now,
    }
    rules = _Rules(
        cleanup_policy=cleanup_policy,
        message_timestamp_type=message_timestamp_type,
        compression_type=compression_type,
        origin=origin,
        api_version=api_version,
        has_transactional_id=has_transactional_id,
        numbers=numbers,
    )
    found = _only_batch(batch, rules, limits)
    if found is None:
        return
    _check_bytes(found, rules)
    if rules.is_client:
        _check_batch(found)
    is_rewritten = _check_records(found, rules)
    _check_append(found, rules, is_rewritten)


# The request


def _only_batch(data: RecordBatch | Buffer, rules: _Rules, limits: DecodeLimits) -> RecordBatch | None:
    """Return the only batch of the partition in the request; None if a coordinator writes none."""
    if isinstance(data, RecordBatch):
        walk = iter([data])
    else:
        walk = _walk(data, limits)
    first = next(walk, None)
    if first is None and not rules.is_client:
        return None
    if first is None:
        raise _refused(ErrorCode.INVALID_RECORD, "the record set has no complete batch", None)
    if rules.is_client:
        if first.is_transactional and not rules.has_transactional_id:
            reason = "the batch is transactional, but the request has no transactional id"
            raise _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason, first)
        _check_magic(first)
        _check_zstd(first, rules)
    second = next(walk, None)
    if second is not None:
        reason = f"a second batch follows at byte {second.position}: a request has one batch per partition"
        raise _refused(ErrorCode.INVALID_RECORD, reason, first)
    _check_magic(first)
    return first


def _walk(data: Buffer, limits: DecodeLimits) -> Iterator[RecordBatch]:
    """Return the batches that the walk of a leader finds."""
    try:
        yield from batches(data, limits=limits)
    except LimitExceededError:
        raise
    except DecodeError as error:
        refused = _refused(ErrorCode.CORRUPT_MESSAGE, error.reason, None)
        refused.position, refused.base_offset = error.position, error.base_offset
        raise refused from error


def _check_magic(batch: RecordBatch) -> None:
    if batch.magic != 2:
        raise _refused(ErrorCode.INVALID_RECORD, f"magic {batch.magic} cannot be produced; expected 2", batch)


def _check_zstd(batch: RecordBatch, rules: _Rules) -> None:
    if rules.api_version >= _LEAST_ZSTD_API_VERSION:
        return
    _check_compression(batch)
    if batch.compression == Compression.ZSTD:
        reason = f"zstd needs Produce version {_LEAST_ZSTD_API_VERSION}, not {rules.api_version}"
        raise _refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, reason, batch)


def _check_compression(batch: RecordBatch) -> None:
    if not isinstance(batch.compression, Compression):
        raise _refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"compression id {batch.compression} is unknown", batch)


# The bytes


def _check_bytes(batch: RecordBatch, rules: _Rules) -> None:
    """Check the bytes (UnifiedLog.analyzeAndValidateRecords)."""
    if rules.is_client and batch.base_offset != 0:
        reason = f"base_offset {batch.base_offset} must be 0: the leader assigns offsets (set_base_offset)"
        raise _refused(ErrorCode.INVALID_RECORD, reason, batch)
    if batch.size_in_bytes > rules.max_message_bytes:
        reason = f"the batch has {batch.size_in_bytes} bytes, but max.message.bytes is {rules.max_message_bytes}"
        raise _refused(ErrorCode.MESSAGE_TOO_LARGE, reason, batch)
    try:
        batch.ensure_valid()
    except (CorruptBatchError, TruncatedError) as error:
        raise _refused(ErrorCode.CORRUPT_MESSAGE, error.reason, batch) from error
    _check_compression(batch)


# The batch, its records


def _check_batch(batch: RecordBatch) -> None:
    """Check the batch of a client (LogValidator.validateBatch)."""
    reason = None
    if batch.last_offset_delta < 0:
        reason = f"last_offset_delta {batch.last_offset_delta} is negative"
    elif batch.records_count is None or batch.records_count <= 0:
        reason = f"records_count {batch.records_count} is not positive"
    elif batch.records_count != batch.last_offset_delta + 1:
        reason = f"records_count {batch.records_count} does not match last_offset_delta {batch.last_offset_delta}"
    elif batch.is_control_batch:
        reason = "clients cannot write control batches"
    elif batch.producer_id > NO_PRODUCER_ID and batch.base_sequence < 0:
        reason = f"base_sequence {batch.base_sequence} of producer_id {batch.producer_id} is negative"
    if reason is not None:
        raise _refused(ErrorCode.INVALID_RECORD, reason, batch)


def _check_records(batch: RecordBatch, rules: _Rules) -> bool:
    """Check all records (LogValidator.validateRecord). Return whether the leader rewrites the batch."""
    if batch.compression == Compression.LZ4 and batch.records_count:
        _check_lz4(batch)
    found = validate_batch_records(
        batch,
        is_compacted=rules.is_compacted,
        is_create_time=rules.is_create_time,
        now=rules.now,
        before_max_ms=rules.before_max_ms,
        after_max_ms=rules.after_max_ms,
    )
    if len(found) == 2:
        error, is_stream_fault = found
        raise _refused(_corruption_code(batch, error, is_stream_fault), error.reason, batch) from error
    indexes, without_key, wrong_time, is_sequential, has_negative_time = found
    if wrong_time:
        raise _refused(ErrorCode.INVALID_TIMESTAMP, _wrong_time(rules, indexes, wrong_time), batch, indexes)
    if without_key:
        reason = f"{without_key} records have no key, which a compacted topic requires: {_listed(indexes)}"
        raise _refused(ErrorCode.INVALID_RECORD, reason, batch, indexes)
    is_rewritten = _is_rewritten(batch, rules, is_sequential and batch.base_offset == 0)
    if is_rewritten and has_negative_time:
        raise _refused(ErrorCode.UNKNOWN_SERVER_ERROR, "a timestamp below -1 cannot be rewritten", batch)
    return is_rewritten


def _corruption_code(batch: RecordBatch, error: DecodeError, is_stream_fault: bool) -> ErrorCode:
    """Return the error code for a corrupt stream. It depends on whether Kafka's decompressor or its record reader fails
    first."""
    if is_stream_fault:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    is_overlong = error.reason.startswith("record_length is a varint of more")
    if is_overlong and batch.compression == Compression.NONE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.INVALID_RECORD


def _check_lz4(batch: RecordBatch) -> None:
    """Refuse linked blocks, as Java's reader supports only independent ones."""
    head = batch.data[_HEADER_BYTES : _HEADER_BYTES + 5]
    if len(head) == 5 and bytes(head[:4]) == _LZ4_MAGIC and not head[4] & _LZ4_INDEPENDENT_BLOCKS:
        reason = "the lz4 frame has linked blocks, which Kafka cannot read: compress with independent blocks"
        raise _refused(ErrorCode.UNKNOWN_SERVER_ERROR, reason, batch)


def _wrong_time(rules: _Rules, indexes: tuple[int, ...], count: int) -> str:
    if not rules.is_create_time:
        return "timestamp_type must be CreateTime: only the leader sets LogAppendTime"
    least, most = rules.now - rules.before_max_ms, rules.now + rules.after_max_ms
    return f"{count} timestamps are outside {least}..{most}, around the leader's clock: records {_listed(indexes)}"


def _listed(indexes: tuple[int, ...]) -> str:
    return ", ".join(map(str, indexes[:10])) + (" ..." if len(indexes) > 10 else "")


def _is_rewritten(batch: RecordBatch, rules: _Rules, is_sequential: bool) -> bool:
    """Return whether the leader rewrites the batch because the topic uses another codec.

    Other offsets than 0, 1, 2 ... in a compressed batch would be another reason. Kafka does not have keys and values at
    this point, and responds with an error.
    """
    source = batch.compression
    target = source if rules.target is None else Compression.NONE if rules.target == "uncompressed" else rules.target
    if source == target == Compression.NONE:
        return False
    if source == Compression.NONE and batch.is_control_batch:
        return not is_sequential
    if source == target and not is_sequential:
        raise _refused(ErrorCode.UNKNOWN_SERVER_ERROR, "offset deltas of a compressed batch must be 0, 1, 2 ...", batch)
    return source != target


# The append


def _check_append(batch: RecordBatch, rules: _Rules, is_rewritten: bool) -> None:
    """Check the last steps before the append: the leader's writer, the segment, and the requirements of the producer
    state."""
    if is_rewritten and not _is_producer_writable(batch):
        reason = "the leader would have to rewrite the batch, which its producer fields do not allow"
        raise _refused(ErrorCode.UNKNOWN_SERVER_ERROR, reason, batch)
    if not is_rewritten and batch.size_in_bytes > rules.segment_bytes:
        reason = f"the batch has {batch.size_in_bytes} bytes, but segment.bytes is {rules.segment_bytes}"
        raise _refused(ErrorCode.RECORD_LIST_TOO_LARGE, reason, batch)
    if batch.producer_id > NO_PRODUCER_ID and batch.producer_epoch < NO_PRODUCER_EPOCH:
        raise _refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer_epoch {batch.producer_epoch} is below -1", batch)


def _is_producer_writable(batch: RecordBatch) -> bool:
    """Return whether the leader can write the producer fields (MemoryRecordsBuilder.validateProducerState)."""
    if batch.producer_id == NO_PRODUCER_ID:
        return not batch.is_transactional
    has_sequence = batch.base_sequence >= 0 or batch.is_control_batch
    return batch.producer_epoch != NO_PRODUCER_EPOCH and has_sequence
