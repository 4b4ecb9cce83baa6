# SPDX-License-Identifier: Apache-2.0
"""In-place changes of header fields of a batch, without its records (Kafka: DefaultRecordBatch).

    buffer = bytearray(batch)
    set_base_offset(buffer, 512)                 # what a leader assigns; outside the CRC
    set_partition_leader_epoch(buffer, 3)        # likewise
    set_log_append_time(buffer, now_ms)          # computes the CRC again
    set_producer_state(buffer, 9001, 3, 0)       # likewise

`buffer` is a writable bytes-like object with one or more whole batches of magic 2; `position` is the byte where the
batch begins. Each function makes all its changes or none. Errors are TypeError (not bytes-like, or read-only),
EncodeError (a value does not fit into its field), TruncatedError (the buffer ends before the batch),
UnsupportedError (another magic, an unknown codec) and DecodeError (an invalid length). Computing the CRC again hides a
CRC that was wrong before: call ensure_valid() of the batch first if that matters.
"""

from __future__ import annotations

import struct

from kcodec._fast import crc32c
from kcodec.constants import NO_PRODUCER_ID, TimestampType
from kcodec.errors import DecodeError, EncodeError, TruncatedError, UnsupportedError
from kcodec.integers import as_integer, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from typing_extensions import Buffer

# Positions of the fields: see the table in _fast/codec/header.h.
_BASE_OFFSET = 0
_BATCH_LENGTH = 8
_PARTITION_LEADER_EPOCH = 12
_MAGIC = 16
_CRC = 17
_ATTRIBUTES = 21
_LAST_OFFSET_DELTA = 23
_MAX_TIMESTAMP = 35
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43
_LOG_OVERHEAD = 12
_HEADER_BYTES = 61
_LEAST_LENGTH = _HEADER_BYTES - _LOG_OVERHEAD

_COMPRESSION, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40
_HIGHEST_COMPRESSION = 4

_INT16_MAX, _INT32_MAX, _INT64_MAX = (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1


def _batch_at(buffer: Buffer, position: int) -> memoryview:
    """Return the bytes of the batch at `position`, writable."""
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError(f"the buffer must be writable, which {type(buffer).__name__} is not: pass bytearray(data)")
    if not view.contiguous:
        raise TypeError("the buffer must be contiguous")
    view = view.cast("B")
    at = as_integer(position)
    if at is None:
        raise TypeError(f"position must be an int, not {type(position).__name__}")
    if not 0 <= at < max(len(view), 1):
        raise ValueError(f"position {shown(at)} is outside the buffer of {len(view)} bytes")
    position = at
    available = len(view) - position
    length = 0
    if available >= _HEADER_BYTES:
        length = struct.unpack_from(">i", view, position + _BATCH_LENGTH)[0]
        if view[position + _MAGIC] != 2:
            raise UnsupportedError(
                f"magic {view[position + _MAGIC]} cannot be rewritten; expected 2", position=position
            )
        if length < _LEAST_LENGTH:
            reason = f"batch_length {length} is below {_LEAST_LENGTH}, the minimum of a batch"
            raise DecodeError(reason, position=position)
    needed = _LOG_OVERHEAD + max(length, _LEAST_LENGTH)
    if available < needed:
        reason = f"the batch has {needed} bytes, but the buffer has {available} from position {position} on"
        raise TruncatedError(reason, needed=needed, available=available, position=position)
    return view[position : position + needed]


def _number(field: str, value: int, least: int, most: int) -> int:
    """Return `value` if it is a number between the bounds, both included. Raise EncodeError or TypeError otherwise."""
    number = as_integer(value)
    if number is None:
        raise TypeError(f"{field} must be an int, not {type(value).__name__}")
    if not least <= number <= most:
        raise EncodeError(f"{field} {shown(number)} is outside {least} to {most}", field=field, value=value)
    return number


def _attributes(batch: memoryview) -> int:
    """Return the attribute bits that have a meaning. Kafka's writer sets all other bits to 0 when it writes the
    field."""
    attributes: int = struct.unpack_from(">h", batch, _ATTRIBUTES)[0]
    compression = attributes & _COMPRESSION
    if compression > _HIGHEST_COMPRESSION:
        raise UnsupportedError(f"compression id {compression} is unknown; expected 0 to {_HIGHEST_COMPRESSION}")
    return attributes & (_COMPRESSION | _LOG_APPEND_TIME | _TRANSACTIONAL | _CONTROL | _DELETE_HORIZON)


def _put_attributes(batch: memoryview, attributes: int) -> None:
    struct.pack_into(">h", batch, _ATTRIBUTES, attributes)
    struct.pack_into(">I", batch, _CRC, crc32c(batch[_ATTRIBUTES:]))


def set_base_offset(buffer: Buffer, base_offset: int, *, position: int = 0) -> None:
    """Set the base offset; the last offset moves along. The CRC does not cover this field.

    buffer, position: The writable buffer, and the byte where the batch begins.

    `base_offset` is at least 0, and the last offset must fit into 64 bits. A leader does this to every batch it appends
    (MutableRecordBatch.setLastOffset).
    """
    batch = _batch_at(buffer, position)
    last_offset_delta: int = struct.unpack_from(">i", batch, _LAST_OFFSET_DELTA)[0]
    _number("base_offset", base_offset, 0, _INT64_MAX - max(last_offset_delta, 0))
    struct.pack_into(">q", batch, _BASE_OFFSET, base_offset)


def set_partition_leader_epoch(buffer: Buffer, partition_leader_epoch: int, *, position: int = 0) -> None:
    """Set the partition_leader_epoch of the batch, -1 for none. The CRC does not cover this field.

    buffer, position: The writable buffer, and the byte where the batch begins.
    """
    batch = _batch_at(buffer, position)
    _number("partition_leader_epoch", partition_leader_epoch, -1, _INT32_MAX)
    struct.pack_into(">i", batch, _PARTITION_LEADER_EPOCH, partition_leader_epoch)


def set_max_timestamp(
    buffer: Buffer,
    max_timestamp: int,
    timestamp_type: TimestampType | Literal["CreateTime", "LogAppendTime"] = TimestampType.CREATE_TIME,
    *,
    position: int = 0,
) -> None:
    """Set max_timestamp (ms, -1 for none) and timestamp_type, and compute the CRC again.

    buffer, position: The writable buffer, and the byte where the batch begins.

    With LogAppendTime it is the timestamp of every record. A leader corrects a producer's fields this way. Nothing is
    written if both already have these values; otherwise attribute bits without a meaning become 0
    (DefaultRecordBatch.setMaxTimestamp).
    """
    batch = _batch_at(buffer, position)
    _number("max_timestamp", max_timestamp, -1, _INT64_MAX)
    if timestamp_type not in (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME):
        raise ValueError(f"unknown timestamp_type {timestamp_type!r}; possible: CreateTime, LogAppendTime")
    raw: int = struct.unpack_from(">h", batch, _ATTRIBUTES)[0]
    found: int = struct.unpack_from(">q", batch, _MAX_TIMESTAMP)[0]
    appended = timestamp_type == TimestampType.LOG_APPEND_TIME
    if bool(raw & _LOG_APPEND_TIME) == appended and found == max_timestamp:
        return
    attributes = _attributes(batch) & ~_LOG_APPEND_TIME | (_LOG_APPEND_TIME if appended else 0)
    struct.pack_into(">q", batch, _MAX_TIMESTAMP, max_timestamp)
    _put_attributes(batch, attributes)


def set_log_append_time(buffer: Buffer, timestamp: int, *, position: int = 0) -> None:
    """Set the timestamp (ms) of every record, as a leader does with message.timestamp.type=LogAppendTime.

    buffer, position: The writable buffer, and the byte where the batch begins.

    Set the type in the attributes and max_timestamp, and compute the CRC again; the records stay unchanged.
    """
    _number("timestamp", timestamp, 0, _INT64_MAX)
    set_max_timestamp(buffer, timestamp, TimestampType.LOG_APPEND_TIME, position=position)


def set_producer_state(
    buffer: Buffer,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool = False,
    *,
    position: int = 0,
) -> None:
    """Set producer id, epoch, base sequence and the transactional bit, and compute the CRC again.

    buffer, position: The writable buffer, and the byte where the batch begins.
    producer_id, producer_epoch, base_sequence, is_transactional: The new values.

    The rules are those of Kafka's writer (MemoryRecordsBuilder.setProducerState): a transactional batch needs a
    producer id, a producer id needs an epoch and, unless it is a control batch, a base sequence. Without a producer all
    three are -1. A batch that was sent must keep its numbers: changing them risks duplicates.
    """
    batch = _batch_at(buffer, position)
    _number("producer_id", producer_id, NO_PRODUCER_ID, _INT64_MAX)
    _number("producer_epoch", producer_epoch, -1 if producer_id == NO_PRODUCER_ID else 0, _INT16_MAX)
    attributes = _attributes(batch)
    has_sequence = producer_id != NO_PRODUCER_ID and not attributes & _CONTROL
    _number("base_sequence", base_sequence, 0 if has_sequence else -1, _INT32_MAX)
    if is_transactional and producer_id == NO_PRODUCER_ID:
        raise EncodeError("a transactional batch needs a producer_id", field="is_transactional", value=is_transactional)
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _put_attributes(batch, attributes & ~_TRANSACTIONAL | (_TRANSACTIONAL if is_transactional else 0))
