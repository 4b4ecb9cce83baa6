# SPDX-License-Identifier: Apache-2.0
"""Cleaned ``.log`` files for ``kcodec convert``: batches are left out, and the offsets of the others do not change.

A batch that is kept as a whole is copied byte for byte. If a range of offsets or the log start begins or ends within a
batch, a part of the batch is kept. This part is encoded again with the codec and the header fields of the batch, as the
log cleaner does.

Under read_committed, the records of aborted transactions and everything from the last stable offset on are left out.
Markers stay, because committed batches keep their transactional bit. If a marker is after the last stable offset, and
the records of its transaction are before this offset, the marker is copied, too. Without markers, committed batches
lose the transactional bit and get a new CRC. Incomplete batches at the end of a segment are left out, and with on_error
"skip" also batches with a wrong CRC.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import kcodec
from kcodec.cli.logs import READ_COMMITTED
from kcodec.cli.parser import CommandError
from kcodec.cli.sinks import atomic_file
from kcodec.errors import CorruptBatchError, DecodeError, EncodeError
from kcodec.log import Log, Verdict

# FileRecords: positions in a segment are int32.
LARGEST_SEGMENT_BYTES = (1 << 31) - 1


@dataclass(frozen=True)
class CleanOptions:
    """The offsets to keep, whether to keep only committed data, whether to keep markers, and the handling of
    corruption."""

    start_offset: int | None
    end_offset: int | None
    isolation_level: str
    has_markers: bool
    on_error: str


@dataclass
class Cleaned:
    """The numbers of copied batches, rewritten batches and records, and the corrupt batches that were left out."""

    whole_batches: int = 0
    rewritten_batches: int = 0
    records: int = 0
    size_in_bytes: int = 0
    errors: list[DecodeError] = field(default_factory=list)


def write_clean_log(log: Log, path: Path, options: CleanOptions, progress: Callable[[int, int], None]) -> Cleaned:
    """Write the cleaned segment atomically. Raise DecodeError for corruption that is not skipped."""
    cleaning = _Cleaning(log, options)
    with atomic_file(path) as raw:
        file = io.BufferedWriter(raw, 1 << 20)
        for data in cleaning.batches(progress):
            cleaning.done.size_in_bytes += len(data)
            if cleaning.done.size_in_bytes > LARGEST_SEGMENT_BYTES:
                raise CommandError(f"{path}: a segment must be smaller than 2 GiB: select a range with --offsets")
            file.write(data)
        file.flush()
    return cleaning.done


class _Cleaning:
    """Writes one log to a file."""

    def __init__(self, log: Log, options: CleanOptions) -> None:
        self.done = Cleaned()
        self._log = log
        self._options = options
        verdict = log.verdict(options.isolation_level, options.on_error)
        self._aborted = _Aborted(verdict)
        self._start = max(verdict.log_start_offset, options.start_offset or 0)
        ends = [end for end in (options.end_offset, verdict.limit) if end is not None]
        self._end = min(ends) if ends else None
        self._unended: set[int] = set()

    def batches(self, progress: Callable[[int, int], None]) -> Iterator[bytes | memoryview]:
        """Yield the bytes of each batch that is kept completely or in part."""
        size, behind, path = self._log.size_in_bytes, 0, None
        position = 0
        try:
            for batch in self._log.batches:
                if batch.path != path:
                    behind, path = behind + position, batch.path
                position = batch.position + batch.size_in_bytes
                progress(behind + position, size)
                if batch.last_offset < self._start:
                    continue
                is_checked = self._is_checked(batch)
                if is_checked:
                    _checked(batch)
                if not self._is_wanted(batch):
                    continue
                if self._end is not None and batch.base_offset >= self._end:
                    if not self._unended and not is_checked:
                        return
                    if not batch.is_control_batch or batch.producer_id not in self._unended:
                        continue
                data = self._kept(batch)
                if data is not None:
                    self._note_transaction(batch)
                    yield data
        except DecodeError as error:
            self._note(error)

    def _note_transaction(self, batch: kcodec.RecordBatch) -> None:
        """Note a producer whose committed data in the file has no marker yet. The marker may be after the last stable
        offset."""
        if self._options.isolation_level != READ_COMMITTED or not self._options.has_markers:
            return
        if batch.is_control_batch:
            self._unended.discard(batch.producer_id)
        elif batch.is_transactional:
            self._unended.add(batch.producer_id)

    def _note(self, error: DecodeError) -> None:
        if self._options.on_error == "raise":
            raise error
        self.done.errors.append(error)

    def _is_wanted(self, batch: kcodec.RecordBatch) -> bool:
        if batch.is_control_batch:
            return self._options.has_markers
        return not (batch.is_transactional and self._aborted.covers(batch))

    def _is_below(self, record: kcodec.Record) -> bool:
        """Return whether a record is below the end. A control record is always kept."""
        return self._end is None or record.offset < self._end or record.control_type is not None

    def _is_checked(self, batch: kcodec.RecordBatch) -> bool:
        """Return whether corruption of the batch must be found even if none of its records is written.

        With "stop", the outcome of a transaction is unknown if its end is after corruption. Its records and all later
        ones are then left out, and the corruption must be reported as the reason.
        """
        end = self._options.end_offset
        return self._options.on_error == "stop" and (end is None or batch.base_offset < end)

    def _kept(self, batch: kcodec.RecordBatch) -> bytes | memoryview | None:
        """Return the bytes to write: unchanged, or without the records outside the range. Return None if no record is
        left."""
        data = batch.data
        try:
            whole = _checked(batch)
        except CorruptBatchError as error:
            if self._options.on_error != "skip":
                raise
            self.done.errors.append(error)
            return None
        is_cut = batch.base_offset < self._start or (
            not batch.is_control_batch and self._end is not None and batch.last_offset >= self._end
        )
        count = batch.records_count
        if is_cut or count is None:
            every = batch.decode(control_records="include")
            records = [record for record in every.records() if self._start <= record.offset and self._is_below(record)]
            if not records:
                return None
            is_cut, count = len(records) < len(every), len(records)
            data = memoryview(self._encoded(records, whole, batch)) if is_cut else data
        self.done.records += count
        self.done.whole_batches += not is_cut
        self.done.rewritten_batches += is_cut
        if batch.is_transactional and not self._options.has_markers:
            return _without_transaction(data)
        return data

    def _encoded(self, records: list[kcodec.Record], whole: kcodec.RecordBatch, batch: kcodec.RecordBatch) -> bytes:
        """Return a batch of the remaining records. Raise CommandError, with file and offset, if that is impossible."""
        try:
            return _rewritten(records, whole)
        except EncodeError as error:
            offset = batch.base_offset if error.row is None else records[error.row].offset
            raise CommandError(
                f"{batch.path}: batch at byte {batch.position}, offset {offset}: the record cannot be written: "
                f"{error.reason}; nothing was written. Choose --offsets that do not begin or end within this batch"
            ) from error


def _checked(batch: kcodec.RecordBatch) -> kcodec.RecordBatch:
    """Return a batch of a file by itself. Raise CorruptBatchError, with the position in the file, if it is corrupt."""
    try:
        whole = kcodec.batches(batch.data)[0]
        whole.ensure_valid()
    except CorruptBatchError as error:
        error.position, error.path = batch.position, batch.path
        raise
    return whole


def _rewritten(records: list[kcodec.Record], batch: kcodec.RecordBatch) -> bytes:
    """Return a batch of the remaining records, with the same codec. Magic 0 and 1 become magic 2."""
    if batch.magic == 2:
        return kcodec.encode_batch(records, like=batch)
    is_stamped = batch.timestamp_type == kcodec.TimestampType.LOG_APPEND_TIME
    return kcodec.encode_batch(
        records,
        compression=batch.compression,
        timestamp_type=batch.timestamp_type if is_stamped else kcodec.TimestampType.CREATE_TIME,
        timestamp=batch.max_timestamp if is_stamped else None,
    )


def _without_transaction(data: memoryview) -> bytes:
    """Return a batch of committed data without the transactional bit."""
    plain = bytearray(data)
    batch = kcodec.batches(bytes(data))[0]
    has_sequence = batch.base_sequence >= 0
    producer = (batch.producer_id, batch.producer_epoch, batch.base_sequence) if has_sequence else (-1, -1, -1)
    kcodec.set_producer_state(plain, *producer, is_transactional=False)
    return bytes(plain)


class _Aborted:
    """The intervals of aborted transactions, by producer."""

    def __init__(self, verdict: Verdict) -> None:
        self._firsts: dict[int, list[int]] = defaultdict(list)
        self._lasts: dict[int, list[int]] = defaultdict(list)
        for one in sorted(verdict.aborted_transactions, key=lambda entry: entry.first_offset):
            self._firsts[one.producer_id].append(one.first_offset)
            self._lasts[one.producer_id].append(1 << 63 if one.last_offset is None else one.last_offset)

    def covers(self, batch: kcodec.RecordBatch) -> bool:
        """Return whether this batch belongs to one of them."""
        firsts = self._firsts.get(batch.producer_id, [])
        at = bisect_right(firsts, batch.last_offset) - 1
        return at >= 0 and batch.base_offset <= self._lasts[batch.producer_id][at]
