# SPDX-License-Identifier: Apache-2.0
"""The check of the indexes of one segment against its batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kcodec._fast import RecordBatch
from kcodec.errors import DecodeError
from kcodec.log.check.findings import Finding, Flood, finding, unreadable
from kcodec.log.indexes import (
    OffsetIndex,
    OffsetIndexEntry,
    TimeIndex,
    TimeIndexEntry,
    TransactionIndex,
    TransactionIndexEntry,
    read_offset_index,
    read_time_index,
    read_transaction_index,
)
from kcodec.log.segment import LOWEST_OFFSET, Segment

AnyIndex = TypeVar("AnyIndex", OffsetIndex, TimeIndex, TransactionIndex)


@dataclass(frozen=True)
class AbortedHere:
    """An ABORT marker in the segment that has ended a transaction with data: the expected entry of the .txnindex.

    first_offset:       First offset of the remaining data.
    last_stable_offset: Last stable offset after the marker, as far as it is known.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


class SegmentIndexes:
    """The indexes of a segment. Call ``opening``, then ``batch`` for each batch in order, then ``end``.

    is_alone: Whether no index exists, as in a copy of ``.log`` files. No index is then reported as missing.
    """

    def __init__(self, segment: Segment, *, is_alone: bool) -> None:
        self._segment = segment
        self._is_alone = is_alone
        self.offsets: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.transactions: TransactionIndex | None = None
        self._max_timestamp = LOWEST_OFFSET
        self._wrong_offsets, self._wrong_times = (
            Flood("index-entry", segment.beside(suffix)) for suffix in (".index", ".timeindex")
        )
        self._next_offset: OffsetIndexEntry | None = None
        self._next_time: TimeIndexEntry | None = None

    def opening(self) -> Iterator[Finding]:
        """Read the files, and check them without the log."""
        segment = self._segment
        base, storage = segment.base_offset, segment.storage
        offsets, times, transactions = (segment.beside(suffix) for suffix in (".index", ".timeindex", ".txnindex"))
        self.offsets = yield from self._read(offsets, lambda: read_offset_index(offsets, base, storage))
        self.times = yield from self._read(times, lambda: read_time_index(times, base, storage))
        # This file does not exist if no transaction was aborted.
        self.transactions = yield from self._read(transactions, lambda: read_transaction_index(transactions, storage))
        self._offset_entries, self._time_entries = iter(self.offsets or ()), iter(self.times or ())
        self._next_offset, self._next_time = next(self._offset_entries, None), next(self._time_entries, None)

    def _read(self, path: str, read: Callable[[], AnyIndex]) -> Generator[Finding, None, AnyIndex | None]:
        try:
            index = read()
            yield from shape_of(index, is_active=self._segment.is_active)
            return index
        except FileNotFoundError:
            is_needed = not self._is_alone and self._segment.base_offset is not None
            if is_needed and not path.endswith((".txnindex", ".txnindex.swap")):
                yield finding("index-missing", path, "there is no such file")
        except (DecodeError, OSError) as error:
            yield unreadable("index-unreadable", path, error)
        return None

    def batch(self, batch: RecordBatch, position: int) -> Iterable[Finding]:
        """Compare the next batch, which begins at this position of the file."""
        latest = batch.max_timestamp
        if latest > self._max_timestamp:
            self._max_timestamp = latest
        is_offset = self._next_offset is not None and self._next_offset.position <= position
        is_time = self._next_time is not None and self._next_time.offset <= batch.last_offset
        return self._entries(batch, position) if is_offset or is_time else ()

    def _entries(self, batch: RecordBatch, position: int) -> Iterator[Finding]:
        base, last, latest = batch.base_offset, batch.last_offset, batch.max_timestamp
        entry, flood = self._next_offset, self._wrong_offsets
        while entry is not None and entry.position <= position:
            if (entry.position < position or entry.offset < base) and not flood.is_full():
                yield self._wrong_offset(entry, batch, position)
            entry = next(self._offset_entries, None)
        self._next_offset = entry
        is_latest, flood = latest == self._max_timestamp, self._wrong_times
        now = self._next_time
        while now is not None and now.offset <= last:
            if (now.offset < base or now.timestamp != latest or not is_latest) and not flood.is_full():
                yield self._wrong_time(now, batch)
            now = next(self._time_entries, None)
        self._next_time = now

    def _wrong_offset(self, entry: OffsetIndexEntry, batch: RecordBatch, position: int) -> Finding:
        assert self.offsets is not None
        if entry.position < position:
            text = f"the entry of offset {entry.offset} names byte {entry.position}, where no batch begins"
        else:
            text = f"the entry of byte {position} names offset {entry.offset}, but its batch has {batch.base_offset}"
        return finding("index-entry", self.offsets.path or "", text, offset=entry.offset)

    def _wrong_time(self, entry: TimeIndexEntry, batch: RecordBatch) -> Finding:
        assert self.times is not None
        if entry.offset < batch.base_offset:
            text = f"the entry of timestamp {entry.timestamp} names offset {entry.offset}, which no batch has"
        else:
            text = f"timestamp {entry.timestamp} is said to be the largest up to offset {entry.offset}, but that is "
            text += f"{self._max_timestamp}, and the batch's own {batch.max_timestamp}"
        return finding("index-entry", self.times.path or "", text, offset=entry.offset)

    def end(
        self, aborted: list[AbortedHere], known_from: int, *, is_cleaned: bool, is_whole: bool
    ) -> Iterator[Finding]:
        """Complete the check after the last batch.

        known_from: Offset below which aborted data may have been removed.
        is_whole:   Whether the segment was read to its end.
        """
        if is_whole and self._next_offset is not None and self.offsets is not None:
            text = f"offset {self._next_offset.offset} is said to begin at byte {self._next_offset.position}, "
            yield finding("index-entry", self.offsets.path or "", text + "behind the last batch")
        if is_whole and self._next_time is not None and self.times is not None:
            text = f"timestamp {self._next_time.timestamp} is said to be that of offset {self._next_time.offset}, "
            yield finding("index-entry", self.times.path or "", text + "behind the last batch")
        if is_whole and self.times is not None and not self._segment.is_active and self._max_timestamp >= 0:
            latest = self.times[-1].timestamp if len(self.times) else None
            if latest is None or latest < self._max_timestamp:
                text = f"the last entry is of timestamp {latest}, but a batch has {self._max_timestamp}"
                yield finding("index-incomplete", self.times.path or "", text)
        yield from self._wrong_offsets.rest()
        yield from self._wrong_times.rest()
        if is_whole:
            yield from self._transactions(aborted, known_from, is_cleaned=is_cleaned)

    def _transactions(self, aborted: list[AbortedHere], known_from: int, *, is_cleaned: bool) -> Iterator[Finding]:
        path = self._segment.beside(".txnindex")
        listed = {(one.producer_id, one.marker_offset): one for one in aborted}
        index = self.transactions or TransactionIndex(path, 0, b"")
        # Only those that the log has, too: the file may be much larger than the log.
        entries = {key for key in ((one[1], one[3]) for one in index.LAYOUT.iter_unpack(index.data)) if key in listed}
        if not is_cleaned and not self._is_alone:
            for one in aborted:
                if (one.producer_id, one.marker_offset) not in entries:
                    text = f"producer {one.producer_id} aborted {one.first_offset}..{one.marker_offset}: no entry"
                    yield finding("transaction-index-incomplete", path, text, offset=one.marker_offset)
        flood = Flood("transaction-index-entry", path)
        for number, values in enumerate(index.LAYOUT.iter_unpack(index.data)):
            here = listed.get((values[1], values[3]))
            is_gone = values[2] < known_from or is_cleaned
            if here is None and (is_gone or flood.is_full()):
                continue
            yield from self._transaction_entry(number, index[number], here, path, known_from, is_cleaned=is_cleaned)
        yield from flood.rest()

    def _transaction_entry(
        self,
        number: int,
        entry: TransactionIndexEntry,
        one: AbortedHere | None,
        path: str,
        known_from: int,
        *,
        is_cleaned: bool,
    ) -> Iterator[Finding]:
        is_gone = entry.first_offset < known_from or is_cleaned
        said = f"entry {number}: producer {entry.producer_id} aborted {entry.first_offset}..{entry.last_offset}"
        if one is None:
            if not is_gone:
                text = f"{said}, but there is no such marker with data"
                yield finding("transaction-index-entry", path, text, offset=entry.last_offset)
        elif not is_gone and one.first_offset != entry.first_offset:
            text = f"{said}, but its data begins at {one.first_offset}"
            yield finding("transaction-index-entry", path, text, offset=entry.last_offset)
        elif known_from <= 0 and not is_cleaned and one.last_stable_offset != entry.last_stable_offset:
            text = f"{said} with last stable offset {entry.last_stable_offset}, expected {one.last_stable_offset}"
            yield finding("transaction-index-entry", path, text, offset=entry.last_offset)


def shape_of(index: OffsetIndex | TimeIndex | TransactionIndex, *, is_active: bool) -> Iterator[Finding]:
    """Yield the problems of an index that show without the log: its size, its order, zeros that should have been
    removed."""
    path = index.path or ""
    size = index.LAYOUT.size
    if index.remaining_bytes:
        text = f"{index.remaining_bytes} bytes are left behind the last entry of {size}"
        yield finding("index-size", path, text, position=(len(index) + index.preallocated_entries) * size)
    if index.preallocated_entries and isinstance(index, TransactionIndex):
        text = f"{index.preallocated_entries} entries of zeros follow the last one; brokers never preallocate this file"
        yield finding("index-order", path, text, position=len(index) * size)
    elif index.preallocated_entries and not is_active:
        text = f"{index.preallocated_entries} places of zeros are left, expected none once the segment is full"
        yield finding("index-not-trimmed", path, text, position=len(index) * size)
    # The numbers are those in the file, because relative offsets increase as absolute ones do.
    is_transactions = isinstance(index, TransactionIndex)
    first, second = (3, 3) if is_transactions else (0, 1)  # 3: last_offset
    flood = Flood("index-order", path)
    before: tuple[int, ...] | None = None
    for number, entry in enumerate(index.LAYOUT.iter_unpack(index.data)):
        if before is not None and (entry[first] <= before[first] or entry[second] <= before[second]):
            if not flood.is_full():
                text = f"entry {number}, {tuple(index[number])}, does not rise above the one before"
                yield finding("index-order", path, text, position=number * size)
        elif is_transactions and entry[first] < index.base_offset and not flood.is_full():
            text = f"entry {number}, {tuple(index[number])}, is below the segment's first offset {index.base_offset}"
            yield finding("index-order", path, text, position=number * size)
        before = entry
    yield from flood.rest()
