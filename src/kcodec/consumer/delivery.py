# SPDX-License-Identifier: Apache-2.0
"""Records that were decoded together and are delivered one by one, by `for record in consumer` and `async for`.

The number of delivered records is the index of one list iterator, which all iterators of the application over a `Chunk`
share. These iterators therefore have no state, and can be closed or dropped at any time. The position is computed from
the index when it is needed, so delivering a record only advances the iterator. They are
`RecordIterator` and `AsyncRecordIterator` of the compiled core; each response to a request of theirs is a `Delivery`.

A record is *delivered* when the iterator has passed it. It is *completed* when the application has requested the next
record, because the application processes one record at a time. The last delivered record of a chunk is therefore not
completed yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kcodec._fast import Record


class LogPosition(NamedTuple):
    """The next offset to read. `leader_epoch` is that of the record before it (KIP-320), or -1 if it is unknown."""

    offset: int
    leader_epoch: int


class Chunk:
    """Decoded records of one partition.

    start, end: Positions before the first record, and after the last record and the markers, aborted records and empty
                batches that follow it.
    stopped_at: Number of records that were delivered before the position was moved; None if it was not moved.
    """

    __slots__ = ("_completed", "_records", "end", "iterator", "start", "stopped_at")

    def __init__(self, records: list[Record], start: LogPosition, end: LogPosition) -> None:
        self._records = records
        self._completed = 0
        self.stopped_at: int | None = None
        self.iterator: Iterator[Record] = iter(records)
        self.start = start
        self.end = end

    @property
    def delivered(self) -> int:
        """The number of delivered records."""
        return len(self._records) - length_hint(self.iterator) if self.stopped_at is None else self.stopped_at

    @property
    def is_used_up(self) -> bool:
        """Whether all records were delivered."""
        return self.delivered == len(self._records)

    @property
    def position(self) -> LogPosition:
        """The position after the last delivered record."""
        return self._position_after(self.delivered)

    @property
    def completed_position(self) -> LogPosition:
        """The position after the last completed record."""
        return self._position_after(max(self._completed, self.delivered - 1))

    def _position_after(self, count: int) -> LogPosition:
        if count == 0:
            return self.start
        if count == len(self._records):
            return self.end
        return LogPosition((self._records[count - 1].offset or 0) + 1, self._epoch_of(count - 1))

    def _epoch_of(self, index: int) -> int:
        epoch = self._records[index].leader_epoch
        return self.start.leader_epoch if epoch is None or epoch < 0 else epoch

    def complete(self) -> None:
        """Count all delivered records as completed."""
        self._completed = self.delivered

    def complete_to(self, offset: int) -> None:
        """Count the delivered records below `offset` as completed."""
        delivered = self.delivered
        while self._completed < delivered and (self._records[self._completed].offset or 0) < offset:
            self._completed += 1
