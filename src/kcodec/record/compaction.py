# SPDX-License-Identifier: Apache-2.0
"""Removal of records from batches, as the log cleaner does it (Kafka: MemoryRecords.filterTo).

    newest = {record.key: record.offset for record in kcodec.decode(data).records()}
    cleaned = kcodec.filter_to(data, lambda batch, record: newest[record.key] == record.offset)

A batch that keeps all its records is copied byte for byte. A batch that loses some is rewritten with its own codec.
Base and last offset, sequence numbers, producer, leader epoch and flags stay, so that offsets and the producer's state
remain valid; base_timestamp and max_timestamp follow from the remaining records. A batch that loses all records is
deleted, or kept as an empty header for its sequence numbers. When a tombstone (a null value), or the marker of an empty
transaction, is processed for the first time, the batch gets a delete horizon (KIP-534), the time from which it can be
removed, too. It is set once and kept. Batches of magic 0 and 1 are always rewritten, as magic 2.

Two rules are stricter than in Kafka's classes: a wrong CRC raises an error instead of being replaced by a valid one,
and a header name that is not UTF-8 keeps its bytes.
"""

from __future__ import annotations

import struct

from kcodec._fast import Record, batches, crc32c, encode_batch
from kcodec.constants import NO_TIMESTAMP, BatchRetention, TimestampType
from kcodec.errors import EncodeError
from kcodec.integers import checked_integer
from kcodec.limits import DEFAULT_LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, TypeAlias

    from typing_extensions import Buffer

    from kcodec._fast import RecordBatch
    from kcodec.limits import DecodeLimits

    Retention: TypeAlias = BatchRetention | Literal["DELETE", "RETAIN_EMPTY", "DELETE_EMPTY"]
    RetentionOf: TypeAlias = Callable[[RecordBatch], Retention | tuple[Retention, bool]]

DEFAULT_DELETE_RETENTION_MS = 86_400_000  # Kafka's default of delete.retention.ms

# The header, as in _fast/codec/header.h, for DefaultRecordBatch.writeEmptyHeader.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LOG_OVERHEAD, _CRC_POSITION, _ATTRIBUTES_POSITION = 12, 17, 21
_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x08, 0x10, 0x20
_LARGEST_BATCH_BYTES = (1 << 31) - 1


def filter_to(
    data: Buffer,
    retain: Callable[[RecordBatch, Record], bool],
    *,
    batch_retention: Retention | RetentionOf = BatchRetention.DELETE_EMPTY,
    now: int | None = None,
    delete_retention_ms: int = DEFAULT_DELETE_RETENTION_MS,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> bytes:
    """Return the batches of `data` with the records for which ``retain(batch, record)`` is true.

    retain:          Also called for the control records of control batches.
    batch_retention: What to do with a batch as a whole, or a function of the batch that returns it. DELETE removes the
                     batch without reading it. DELETE_EMPTY removes it if no record is left. RETAIN_EMPTY then keeps it
                     as a header without records, for its producer's last sequence number. The function may also return
                     a pair of that and whether the batch is the marker of a transaction without records, which gets a
                     delete horizon.
    now, delete_retention_ms: A new delete horizon is their sum, in ms; `now` is this machine's clock by default.

    limits: DecodeLimits for reading.

    An incomplete batch at the end of `data` is left out. Raise DecodeError for invalid batches, EncodeError if a batch
    that must be rewritten cannot be (offsets that do not increase, timestamps below -1), ValueError or TypeError if an
    argument is invalid, and exceptions of the functions.
    """
    if not callable(retain):
        raise TypeError(f"retain must be a function of batch and record, not {type(retain).__name__}")
    if now is None:
        import time

        now = time.time_ns() // 1_000_000
    now = checked_integer("now", now, 0)
    delete_retention_ms = checked_integer("delete_retention_ms", delete_retention_ms, 0)
    of_batch = batch_retention if callable(batch_retention) else _always(_retention(batch_retention))
    kept = bytearray()
    for batch in batches(data, limits=limits):
        result = of_batch(batch)
        retention, has_empty_marker = result if isinstance(result, tuple) else (result, False)
        kept += _filtered(batch, retain, _retention(retention), has_empty_marker, now + delete_retention_ms)
    return bytes(kept)


def _retention(value: Retention) -> BatchRetention:
    for member in BatchRetention:
        if member == value:
            return member
    possible = ", ".join(member.label for member in BatchRetention)
    raise ValueError(f"unknown batch_retention {value!r}; possible: {possible}")


def _always(retention: BatchRetention) -> RetentionOf:
    return lambda batch: retention


def _filtered(
    batch: RecordBatch,
    retain: Callable[[RecordBatch, Record], bool],
    retention: BatchRetention,
    has_empty_marker: bool,
    new_horizon: int,
) -> Buffer:
    """Return the batch with the retained records; empty if the batch is deleted."""
    if retention == BatchRetention.DELETE:
        return b""
    records = list(batch.records())
    left = [record for record in records if retain(batch, record)]
    if not left:
        return _emptied(batch) if retention == BatchRetention.RETAIN_EMPTY else b""
    wants_horizon = has_empty_marker or any(record.value is None for record in left)
    if wants_horizon and batch.delete_horizon_ms is None:
        return _rewritten(batch, left, new_horizon)
    if len(left) == len(records) and batch.magic == 2:
        return batch.data
    return _rewritten(batch, left, batch.delete_horizon_ms)


def _rewritten(batch: RecordBatch, records: Sequence[Record], delete_horizon_ms: int | None) -> bytes:
    """Rewrite a batch (MemoryRecords.buildRetainedRecordsInto). If the broker has set the timestamp, all records get
    it.

    Batches of magic 0 and 1 become magic 2, from the first retained record to the last.
    """
    is_current = batch.magic == 2
    is_stamped = batch.timestamp_type == TimestampType.LOG_APPEND_TIME
    return encode_batch(
        records,
        compression=batch.compression,
        base_offset=batch.base_offset if is_current else records[0].offset,
        last_offset=batch.last_offset if is_current else None,
        timestamp_type=TimestampType.LOG_APPEND_TIME if is_stamped else TimestampType.CREATE_TIME,
        timestamp=batch.max_timestamp if is_stamped else None,
        delete_horizon_ms=None if delete_horizon_ms is None or delete_horizon_ms < 0 else delete_horizon_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        is_control_batch=batch.is_control_batch,
        partition_leader_epoch=batch.partition_leader_epoch,
        max_batch_bytes=_LARGEST_BATCH_BYTES,
    )


def _emptied(batch: RecordBatch) -> bytes:
    """Return the header without records (DefaultRecordBatch.writeEmptyHeader). All fields except base_timestamp
    stay."""
    if batch.magic != 2:
        reason = f"batch_retention RETAIN_EMPTY needs a batch of magic 2, not {batch.magic}"
        raise EncodeError(reason, field="batch_retention", value=BatchRetention.RETAIN_EMPTY)
    attributes = _LOG_APPEND_TIME if batch.timestamp_type == TimestampType.LOG_APPEND_TIME else 0
    attributes |= (_TRANSACTIONAL if batch.is_transactional else 0) | (_CONTROL if batch.is_control_batch else 0)
    header = bytearray(
        _HEADER.pack(
            batch.base_offset,
            _HEADER.size - _LOG_OVERHEAD,
            batch.partition_leader_epoch,
            2,
            0,
            attributes,
            batch.last_offset_delta,
            NO_TIMESTAMP,
            batch.max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            0,
        )
    )
    struct.pack_into(">I", header, _CRC_POSITION, crc32c(header[_ATTRIBUTES_POSITION:]))
    return bytes(header)
