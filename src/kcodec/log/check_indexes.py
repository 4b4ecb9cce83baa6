# SPDX-License-Identifier: Apache-2.0
"""The indexes of one segment beside its batches, as they pass; each entry is looked at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kcodec._fast import RecordBatch
from kcodec.errors import DecodeError
from kcodec.log.findings import Finding, finding
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


@dataclass(frozen=True)
class AbortedHere:
    """An ABORT marker in the segment that ended data: what an entry of the .txnindex is to say.

    first_offset: of the data that is still there; last_stable_offset: behind the marker, by what is known.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


class SegmentIndexes:
    """The indexes beside a segment. ``opening`` first, ``batch`` for each batch in order, ``end`` at last.

    is_alone: nothing of what Kafka keeps beside a segment is there, as in a copy of ``.log`` files: none is missed.
    """

    def __init__(self, segment: Segment, *, is_alone: bool) -> None:
        self._segment = segment
        self._is_alone = is_alone
        self.offsets: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.transactions: TransactionIndex | None = None
        self._max_timestamp = LOWEST_OFFSET
        self._next_offset: OffsetIndexEntry | None = None
        self._next_time: TimeIndexEntry | None = None

    def opening(self) -> Iterator[Finding]:
        """Read the files; what they are without the log."""
        segment = self._segment
        base, storage = segment.base_offset, segment.storage
        offsets, times, transactions = (segment.beside(suffix) for suffix in (".index", ".timeindex", ".txnindex"))
        try:
            self.offsets = read_offset_index(offsets, base, storage)
            yield from shape_of(self.offsets, is_active=segment.is_active)
        except FileNotFoundError:
            yield from self._missing(offsets)
        except (DecodeError, OSError) as error:
            yield _unreadable(offsets, error)
        try:
            self.times = read_time_index(times, base, storage)
            yield from shape_of(self.times, is_active=segment.is_active)
        except FileNotFoundError:
            yield from self._missing(times)
        except (DecodeError, OSError) as error:
            yield _unreadable(times, error)
        try:
            self.transactions = read_transaction_index(transactions, storage)
            yield from shape_of(self.transactions, is_active=segment.is_active)
        except FileNotFoundError:
            self.transactions = None  # as where nothing was aborted
        except (DecodeError, OSError) as error:
            yield _unreadable(transactions, error)
        self._offset_entries, self._time_entries = iter(self.offsets or ()), iter(self.times or ())
        self._next_offset, self._next_time = next(self._offset_entries, None), next(self._time_entries, None)

    def _missing(self, path: str) -> Iterator[Finding]:
        if not self._is_alone and self._segment.base_offset is not None:
            yield finding("index-missing", path, "there is no such file")

    def batch(self, batch: RecordBatch, position: int) -> Iterable[Finding]:
        """The next batch, which begins at this byte of the file."""
        latest = batch.max_timestamp
        if latest > self._max_timestamp:
            self._max_timestamp = latest
        is_offset = self._next_offset is not None and self._next_offset.position <= position
        is_time = self._next_time is not None and self._next_time.offset <= batch.last_offset
        return self._entries(batch, position) if is_offset or is_time else ()

    def _entries(self, batch: RecordBatch, position: int) -> Iterator[Finding]:
        while self._next_offset is not None and self._next_offset.position <= position:
            yield from self._offset_entry(self._next_offset, batch, position)
            self._next_offset = next(self._offset_entries, None)
        while self._next_time is not None and self._next_time.offset <= batch.last_offset:
            yield from self._time_entry(self._next_time, batch)
            self._next_time = next(self._time_entries, None)

    def _offset_entry(self, entry: OffsetIndexEntry, batch: RecordBatch, position: int) -> Iterator[Finding]:
        assert self.offsets is not None
        path = self.offsets.path or ""
        if entry.position < position:
            text = f"offset {entry.offset} is said to begin at byte {entry.position}, where no batch begins"
            yield finding("index-entry", path, text, offset=entry.offset)
        elif entry.offset < batch.base_offset:
            text = f"byte {position} is said to hold offset {entry.offset}, but it begins with {batch.base_offset}"
            yield finding("index-entry", path, text, offset=entry.offset)

    def _time_entry(self, entry: TimeIndexEntry, batch: RecordBatch) -> Iterator[Finding]:
        assert self.times is not None
        path = self.times.path or ""
        if entry.offset < batch.base_offset:
            text = f"timestamp {entry.timestamp} is said to be that of offset {entry.offset}, which no batch holds"
            yield finding("index-entry", path, text, offset=entry.offset)
        elif not entry.timestamp == batch.max_timestamp == self._max_timestamp:
            text = f"timestamp {entry.timestamp} is said to be the largest up to offset {entry.offset}, but that is "
            text += f"{self._max_timestamp}, and the batch's own {batch.max_timestamp}"
            yield finding("index-entry", path, text, offset=entry.offset)

    def end(
        self, aborted: list[AbortedHere], known_from: int, *, is_cleaned: bool, is_whole: bool
    ) -> Iterator[Finding]:
        """No batch is left. known_from: aborted data below it may be gone; is_whole: it was read to its end."""
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
        if is_whole:
            yield from self._transactions(aborted, known_from, is_cleaned=is_cleaned)

    def _transactions(self, aborted: list[AbortedHere], known_from: int, *, is_cleaned: bool) -> Iterator[Finding]:
        path = self._segment.beside(".txnindex")
        entries = {(one.producer_id, one.last_offset): one for one in self.transactions or ()}
        if not is_cleaned and not self._is_alone:
            for one in aborted:
                if (one.producer_id, one.marker_offset) not in entries:
                    text = (
                        f"producer {one.producer_id} aborted {one.first_offset}..{one.marker_offset}: no entry says so"
                    )
                    yield finding("transaction-index-incomplete", path, text, offset=one.marker_offset)
        told = {(one.producer_id, one.marker_offset): one for one in aborted}
        for number, entry in enumerate(self.transactions or ()):
            yield from self._transaction_entry(number, entry, told, path, known_from, is_cleaned=is_cleaned)

    def _transaction_entry(
        self,
        number: int,
        entry: TransactionIndexEntry,
        told: dict[tuple[int, int], AbortedHere],
        path: str,
        known_from: int,
        *,
        is_cleaned: bool,
    ) -> Iterator[Finding]:
        one = told.get((entry.producer_id, entry.last_offset))
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
    """What is wrong with an index by itself: its size, its order, zeros that should be gone."""
    path = index.path or ""
    size = index.LAYOUT.size
    if index.remaining_bytes:
        text = f"{index.remaining_bytes} bytes are left behind the last entry of {size}"
        yield finding("index-size", path, text, position=(len(index) + index.preallocated_entries) * size)
    if index.preallocated_entries and not is_active:
        text = f"{index.preallocated_entries} places of zeros are left, expected none once the segment is full"
        yield finding("index-not-trimmed", path, text, position=len(index) * size)
    before: tuple[int, ...] | None = None
    for number, entry in enumerate(index):
        keys = (entry.last_offset,) if isinstance(entry, TransactionIndexEntry) else (entry[0], entry[1])
        least = (index.base_offset,) if isinstance(entry, TransactionIndexEntry) else None
        if before is not None and any(now <= then for now, then in zip(keys, before, strict=True)):
            text = f"entry {number}, {tuple(entry)}, does not rise above the one before"
            yield finding("index-order", path, text, position=number * size)
        elif least is not None and keys < least:
            text = f"entry {number}, {tuple(entry)}, lies below the segment's first offset {index.base_offset}"
            yield finding("index-order", path, text, position=number * size)
        before = keys


def _unreadable(path: str | os.PathLike[str], error: Exception) -> Finding:
    text = error.reason if isinstance(error, DecodeError) else str(error)
    return finding("index-unreadable", path, text)
