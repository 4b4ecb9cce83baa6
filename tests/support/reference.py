# SPDX-License-Identifier: Apache-2.0
"""The reference decoder, also called oracle: a slow, simple decoder of record batches of any magic, and the rules of
decoding as code.

It imports nothing of kcodec. It is tested with bytes that a broker wrote (test_reference.py), and kcodec is compared
with it. A record that differs from the result of this module for the same bytes is wrong.

    decode(data, *, isolation_level="read_uncommitted", aborted_transactions=None, last_stable_offset=None,
           start_offset=None, end_offset=None, control_records="skip", on_error="raise", check_crcs=True,
           max_batch_bytes=128 << 20, max_decompressed_bytes=128 << 20) -> Result
        aborted_transactions: None, or (producer_id, first_offset) / (producer_id, first_offset, last_offset or None)
    Result: .records (list of Record) .counts (Counts) .next_offset .remaining_bytes .bytes_needed .limit .error
    walk(data, max_batch_bytes) -> (list of Header, bytes left, bytes needed); raises if the structure is invalid
    read_records(data, header) -> list of Record of one batch
    DecodeError, CorruptBatchError, UnsupportedError, LimitExceededError: .reason (text) .kind (short, for tables)
        .position .base_offset .record .next_offset .also .decoded (the Result for the batches before)

Checks of each batch, in this order ("a cut tail" is an incomplete batch at the end of the data):
1. fewer than 12 bytes left: a cut tail. length < 14: DecodeError. Fewer than 17 bytes left: a cut tail. Magic not 0 to
   2: UnsupportedError. length < 49 (magic 1: 22): DecodeError. length > max_batch_bytes: LimitExceededError. Fewer
   bytes left than 12 + length: a cut tail. A cut tail is never an error.
2. CRC (unless check_crcs is off): CorruptBatchError.
3. Codec 5 to 7, with magic 0 and 1 also 4: UnsupportedError. last_offset_delta < 0, records_count < 0, a last offset
   beyond int64: DecodeError.
4. Under read_committed, for a control batch with a producer id > -1 and records: the key of its first record must be
   readable, because it determines whether the batch is a marker (ControlRecordType.parse).
Only batches that are delivered are decompressed: 5. records_count 0 with bytes after the header, 6. the compressed
stream, 7. the records. In magic 0 and 1 each message is a batch (reference_legacy.py). A compressed message is always
decompressed, because the offsets inside are not known before. It never decreases the position of a reader: next_offset
is above its offset, those inside, and all earlier ones. The offset after one whose offset is 0 is unknown:
error.next_offset is None.

Isolation. With aborted_transactions=None, a transaction begins with a producer's first transactional batch that has
records (an empty batch was kept by the log cleaner, which never passes the last stable offset, and has no effect), and
ends with its marker: a control batch with a producer id > -1 and type 0 (ABORT) or 1 (COMMIT). Open transactions
determine the limit, except for those that were open at a corrupt batch that was skipped. With a list, entries without
last_offset apply as in Java (CompletedFetch), and entries with one apply to batches that overlap [first_offset,
last_offset].

Corruption. The result of "stop", and the .decoded of the error of "raise", is the result for the bytes before the
corrupt batch only: a marker after it has no effect, next_offset is above the last offset before it, whatever its
header says, and remaining_bytes begin with it. error.next_offset is None unless it is above the offsets before the
corrupt batch and above start_offset. A batch may be skipped if a valid batch begins where its length leads: with valid
structure, CRC and header fields, and a base offset above the last offset of the last valid batch before it. Every
skipped batch may have been a marker.

Two faults at once: a stream that is corrupt and also exceeds max_decompressed_bytes may be reported as either. The
error's .also then has the other class.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from reference_batch import (
    ABORT,
    COMMIT,
    MIB_128,
    CorruptBatchError,
    DecodeError,
    Header,
    LimitExceededError,
    RawRecord,
    Record,
    UnsupportedError,
    check_fields,
    complete,
    control_type_of,
    crc_is_right,
    first_key,
    java_string,
    parse_header,
    payload_of,
    raw_records,
)
from reference_codecs import crc32c
from reference_damage import agrees, skip_target
from reference_isolation import Step, aborted_by_list, transactions
from reference_legacy import is_wrapper, message_records

__all__ = [
    "ABORT",
    "COMMIT",
    "CorruptBatchError",
    "Counts",
    "DecodeError",
    "Header",
    "LimitExceededError",
    "RawRecord",
    "Record",
    "Result",
    "UnsupportedError",
    "crc32c",
    "crc_is_right",
    "decode",
    "java_string",
    "read_records",
    "walk",
]

UNBOUNDED = 1 << 63


@dataclass
class Counts:
    """Numbers of batches, and of records by outcome; the first outcome that applies counts."""

    batches: int = 0
    skipped_batches: int = 0
    records: int = 0
    aborted: int = 0
    control: int = 0
    undecided: int = 0
    out_of_range: int = 0


@dataclass
class Result:
    """The result of decode."""

    records: list[Record] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    next_offset: int | None = None
    remaining_bytes: int = 0
    bytes_needed: int = 0
    limit: int | None = None
    error: DecodeError | None = None
    reached: dict[int, int] = field(default_factory=dict)  # of messages of magic 0 and 1, by position: greatest offset


class _Options(NamedTuple):
    isolation_level: str
    aborted_transactions: tuple[tuple[int, int, int | None], ...] | None
    last_stable_offset: int | None
    start_offset: int | None
    end_offset: int | None
    include_control: bool
    on_error: str
    check_crcs: bool
    max_batch_bytes: int
    max_decompressed_bytes: int


@dataclass
class _Walk:
    steps: list[Step] = field(default_factory=list)
    errors: list[DecodeError] = field(default_factory=list)
    stopped_by: DecodeError | None = None
    remaining_bytes: int = 0
    bytes_needed: int = 0


def walk(data: bytes, max_batch_bytes: int = MIB_128) -> tuple[list[Header], int, int]:
    """Return the headers, and the size of a cut tail and of its whole batch. Raise an error for an invalid structure
    (rule 1 only)."""
    headers: list[Header] = []
    at = 0
    while True:
        header = parse_header(data, at, max_batch_bytes)
        if isinstance(header, int):
            return headers, len(data) - at, header
        headers.append(header)
        at = header.end


def read_records(data: bytes, header: Header, max_decompressed_bytes: int = MIB_128) -> list[Record]:
    """Return all records of one batch, independently of isolation (rules 5 to 7)."""
    if header.magic < 2:
        return message_records(data, header, max_decompressed_bytes, True)
    return [complete(header, raw) for raw in raw_records(header, payload_of(data, header, max_decompressed_bytes))]


# Walking, skipping.


def _marker_type(data: bytes, header: Header, options: _Options) -> int | None:
    """Apply rule 4. Return ABORT or COMMIT, or None if the batch is not a marker."""
    if options.isolation_level == "read_uncommitted" or not header.is_control or header.producer_id < 0:
        return None
    if header.records_count == 0:
        return None
    key = first_key(payload_of(data, header, options.max_decompressed_bytes))
    try:
        control_type = control_type_of(key)
    except DecodeError as error:
        error.record = 0
        raise
    return control_type if control_type in (ABORT, COMMIT) else None


def _check(data: bytes, header: Header, options: _Options) -> None:
    """Rules 2 and 3."""
    if options.check_crcs and not crc_is_right(data, header):
        raise CorruptBatchError("crc", f"crc {header.crc:08x} is wrong")
    check_fields(header)


def _next_offset_after(data: bytes, error: DecodeError, options: _Options) -> int | None:
    """Return last_offset + 1 of a corrupt batch if its CRC is right, or if the next header is consistent with it."""
    try:
        header = parse_header(data, error.position, options.max_batch_bytes)
        if isinstance(header, int):
            return None
        check_fields(header)
    except DecodeError:
        return None
    if is_wrapper(header) and header.base_offset == 0:
        return None
    is_vouched_for = options.check_crcs and error.kind != "crc"
    if is_vouched_for or agrees(data, header.end, header.last_offset, options.max_batch_bytes):
        return header.last_offset + 1
    return None


def _walk(data: bytes, options: _Options, opened: dict[int, DecodeError]) -> _Walk:
    """Walk the batches. `opened`: errors that were found when records were read, by position."""
    walked = _Walk()
    at, above = 0, None
    while True:
        try:
            header = parse_header(data, at, options.max_batch_bytes)
            if isinstance(header, int):
                walked.remaining_bytes, walked.bytes_needed = len(data) - at, header
                return walked
            if at in opened:
                raise opened[at]
            _check(data, header, options)
            walked.steps.append(Step(header, _marker_type(data, header, options)))
            at, above = header.end, header.last_offset
        except DecodeError as error:
            error.position, error.base_offset = at, struct.unpack_from(">q", data, at)[0]
            error.next_offset = _next_offset_after(data, error, options)
            walked.errors.append(error)
            target = skip_target(data, at, above, options.max_batch_bytes) if options.on_error == "skip" else None
            if target is None:
                walked.stopped_by, walked.remaining_bytes = error, len(data) - at
                return walked
            walked.steps.append(Step(None))
            at = target


# Isolation, decoding.


def _visibility(steps: list[Step], options: _Options) -> tuple[int, set[int], set[int]]:
    """Return (limit, steps of aborted transactions, steps of transactions whose outcome is lost)."""
    if options.isolation_level == "read_uncommitted":
        return UNBOUNDED, set(), set()
    limit = UNBOUNDED if options.last_stable_offset in (None, -1) else options.last_stable_offset
    if options.aborted_transactions is not None:
        return limit, aborted_by_list(steps, options.aborted_transactions), set()
    aborted: set[int] = set()
    lost: set[int] = set()
    for transaction in transactions(steps):
        if transaction.is_lost:
            lost.update(transaction.steps)
        elif transaction.marker is None:
            limit = min(limit, transaction.first_offset)
        elif transaction.marker == ABORT:
            aborted.update(transaction.steps)
    return limit, aborted, lost


def _deliver(data: bytes, header: Header, options: _Options, limit: int, result: Result) -> None:
    """Decode a batch and add its records, or none of them if anything in it is invalid."""
    start = -UNBOUNDED if options.start_offset is None else options.start_offset
    end = UNBOUNDED if options.end_offset is None else options.end_offset
    records: list[Record] = []
    undecided = out_of_range = 0
    for index, (offset, raw) in enumerate(_opened(data, header, options, result)):
        if offset >= limit:
            undecided += 1
        elif not start <= offset < end:
            out_of_range += 1
        else:
            try:
                records.append(raw if isinstance(raw, Record) else complete(header, raw))
            except DecodeError as error:  # a control record's key
                error.record = index
                raise
    result.records += records
    result.counts.records += len(records)
    result.counts.undecided += undecided
    result.counts.out_of_range += out_of_range


def _opened(data: bytes, header: Header, options: _Options, result: Result) -> Iterator[tuple[int, RawRecord | Record]]:
    if header.magic < 2:
        messages = message_records(data, header, options.max_decompressed_bytes, options.check_crcs)
        result.reached[header.position] = max(record.offset for record in messages)
        yield from ((record.offset, record) for record in messages)
        return
    payload = payload_of(data, header, options.max_decompressed_bytes)
    for raw in raw_records(header, payload):
        yield header.base_offset + raw.offset_delta, raw


def _take(data: bytes, step: Step, options: _Options, visibility: tuple[int, bool, bool], result: Result) -> None:
    """Count one batch by its header if isolation or range exclude it, or decode it. The first match applies."""
    limit, is_aborted, is_lost = visibility
    counts, header = result.counts, step.header
    if header is None:
        counts.skipped_batches += 1
    elif is_wrapper(header):
        _deliver(data, header, options, limit, result)
    elif is_lost or header.base_offset >= limit:
        counts.undecided += header.records_count
    elif (options.start_offset is not None and header.last_offset < options.start_offset) or (
        options.end_offset is not None and header.base_offset >= options.end_offset
    ):
        counts.out_of_range += header.records_count
    elif header.is_control and not options.include_control:
        counts.control += header.records_count
    elif is_aborted:
        counts.aborted += header.records_count
    else:
        _deliver(data, header, options, limit, result)
    counts.batches += 1


def _reached(headers: Iterable[Header], greatest: dict[int, int]) -> int:
    """Return the greatest offset that a reader has passed after these batches."""
    reached = -UNBOUNDED
    for header in headers:
        own = max(header.last_offset, greatest.get(header.position, -UNBOUNDED))
        reached = own if header.magic == 2 else max(reached, own)
    return reached


def _next_offset(headers: list[Header], options: _Options, limit: int, greatest: dict[int, int]) -> int | None:
    """Return the offset after the last valid batch. Nothing in a corrupt batch has an effect on it."""
    if not headers:
        return options.start_offset
    bounds = [_reached(headers, greatest) + 1, limit]
    if options.end_offset is not None:
        bounds.append(options.end_offset)
    return min(bounds) if options.start_offset is None else max(min(bounds), options.start_offset)


def _is_ahead(error: DecodeError, headers: list[Header], options: _Options, greatest: dict[int, int]) -> bool:
    """Return whether the error's next_offset is above the offsets before the corrupt batch, and above start_offset."""
    if error.next_offset is None:
        return True
    before = _reached([header for header in headers if header.position < error.position], greatest) + 1
    start = -UNBOUNDED if options.start_offset is None else options.start_offset
    return error.next_offset > max(before, start)


def _answer(data: bytes, options: _Options) -> Result:
    """Walk, resolve and decode the batches. Errors found by decoding are used in the next round, which starts again."""
    opened: dict[int, DecodeError] = {}
    while True:
        walked = _walk(data, options, opened)
        limit, aborted, lost = _visibility(walked.steps, options)
        result = Result(limit=None if limit == UNBOUNDED else limit)
        for index, step in enumerate(walked.steps):
            try:
                _take(data, step, options, (limit, index in aborted, index in lost), result)
            except DecodeError as error:
                assert step.header is not None
                opened[step.header.position] = error
                break
        else:
            result.error = min(walked.errors, key=lambda error: error.position, default=None)
            headers = [step.header for step in walked.steps if step.header is not None]
            result.next_offset = _next_offset(headers, options, limit, result.reached)
            if result.error is not None and not _is_ahead(result.error, headers, options, result.reached):
                result.error.next_offset = None
            result.remaining_bytes, result.bytes_needed = walked.remaining_bytes, walked.bytes_needed
            return result


def decode(
    data: bytes,
    *,
    isolation_level: str = "read_uncommitted",
    aborted_transactions: Iterable[tuple[int, ...]] | None = None,
    last_stable_offset: int | None = None,
    start_offset: int | None = None,
    end_offset: int | None = None,
    control_records: str = "skip",
    on_error: str = "raise",
    check_crcs: bool = True,
    max_batch_bytes: int = MIB_128,
    max_decompressed_bytes: int = MIB_128,
) -> Result:
    """Return the records of a sequence of batches by the rules above."""
    reported = None
    if aborted_transactions is not None:
        reported = tuple((entry[0], entry[1], entry[2] if len(entry) > 2 else None) for entry in aborted_transactions)
    options = _Options(
        isolation_level,
        reported,
        last_stable_offset,
        start_offset,
        end_offset,
        control_records == "include",
        on_error,
        check_crcs,
        max_batch_bytes,
        max_decompressed_bytes,
    )
    result = _answer(bytes(data), options)
    if result.error is not None and on_error == "raise":
        error, result.error = result.error, None
        error.decoded = result
        raise error
    return result
