# SPDX-License-Identifier: Apache-2.0
"""Reading a log while a broker appends to it: ``follow=True`` of Log.records and Log.to_arrow.

The log is polled every poll_interval seconds. File events of the operating system are not used, so that it works on any
storage. Under read_committed a record is returned when its transaction has ended: records below the last stable offset
are read, each once. The last stable offset is the end of the log or the first offset of the earliest open transaction.
The files do not contain the high watermark: a record may be returned before all replicas have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import TIMEOUT_MAX, Event
from typing import TYPE_CHECKING, Any

from kcodec._fast import AbortedTransaction, AbortedTransactions, Counts, DecodedRecords
from kcodec.errors import DecodeError
from kcodec.log.chunks import ByteRange, Chunks, SegmentReplacedError, SequentialReader, StreamOptions, sum_of_counts
from kcodec.log.seek import START, position_of_offset
from kcodec.log.segment import Segment
from kcodec.log.timeline import ABORT, Verdict
from kcodec.log.windows import WindowBuffer

if TYPE_CHECKING:
    from kcodec.log.growth import GrowingLog, Walked

POLL_INTERVAL = 0.2
# A callable, or an object with is_set(), as the Event of threading and of multiprocessing.
Stop = Callable[[], object] | Event | Any


@dataclass(frozen=True)
class FollowOptions:
    """Polling interval and stop condition. Raise ValueError or TypeError if one of them is invalid.

    poll_interval: Seconds between two polls if the first finds no new record.
    timeout:       Stop after this number of seconds without a record; 0: at the end of the log; None: never.
    stop:          A callable that returns True, or an Event that is set, to stop; checked between chunks and polls.
    """

    poll_interval: float = POLL_INTERVAL
    timeout: float | None = None
    stop: Stop | None = None

    def __post_init__(self) -> None:
        if not 0 < self.poll_interval <= TIMEOUT_MAX:
            raise ValueError(f"poll_interval must be a number of seconds above 0, not {self.poll_interval}")
        if self.timeout is not None and not self.timeout >= 0:
            raise ValueError(f"timeout must be a number of seconds, 0 or more, not {self.timeout}")
        if self.stop is not None and not callable(self.stop) and not callable(getattr(self.stop, "is_set", None)):
            raise TypeError(f"stop must be callable or an Event, not {type(self.stop).__name__}")

    def is_stopped(self) -> bool:
        """Return whether the caller has requested the end."""
        if self.stop is None:
            return False
        return bool(self.stop() if callable(self.stop) else self.stop.is_set())

    def rest(self, seconds: float) -> None:
        """Sleep until the next poll. An Event of threading ends the sleep."""
        if isinstance(self.stop, Event):
            self.stop.wait(seconds)
        else:
            time.sleep(seconds)


def follow_segments(
    path: str, segments: Sequence[Segment], options: StreamOptions, follow: FollowOptions, log_start_offset: int
) -> Chunks:
    """Follow the log at `path`, which is a directory or one segment, starting with these segments.

    With read_committed, the walk begins with the first segment, because a transaction may be open from there.
    """
    from kcodec.log.growth import GrowingLog

    start = max(log_start_offset, options.start_offset or 0)
    is_alone = path == segments[0].path
    storage, place = segments[0].storage, START
    first = segments[0]
    if options.isolation_level == "read_uncommitted":
        first = [first, *(each for each in segments[1:] if (each.base_offset or 0) <= start)][-1]
        place = position_of_offset(first, start, options.limits)
    growing = GrowingLog(storage.parent(path) if is_alone else path, first, options.limits, is_alone=is_alone)
    growing.begin_at(place.position, place.first_offset)
    return Chunks.of(FollowingReader(growing, options, follow, log_start_offset))


class FollowingReader:
    """A ChunkReader that continues with appended batches. Log creates it, and Chunks reads it."""

    error: DecodeError | None = None
    is_ended = False
    losses = ()

    def __init__(self, log: GrowingLog, options: StreamOptions, follow: FollowOptions, log_start_offset: int) -> None:
        self._log = log
        self._options = options
        self._follow = follow
        self._start = log_start_offset
        self._position = max(log_start_offset, options.start_offset or 0)
        self._is_committed = options.isolation_level == "read_committed"
        self._aborted: list[AbortedTransaction] = []
        self._buffer = WindowBuffer()
        self._counts = Counts()
        self._reading: SequentialReader | None = None
        self._is_waiting = False  # whether segments that must be read are being replaced

    @property
    def counts(self) -> Counts:
        """Counts of the records read so far, without those that are held back."""
        return self._counts if self._reading is None else sum_of_counts(self._counts, self._reading.counts)

    @property
    def position(self) -> int:
        """Offset after the records that were returned."""
        return self._position

    def chunks(self) -> Iterator[DecodedRecords]:
        """Yield each chunk when it is available. This may be called only once."""
        follow = self._follow
        last_record = time.monotonic()
        while not follow.is_stopped():
            is_more = self._log.step()
            for decoded in self._ready():
                yield decoded
                last_record = time.monotonic()
                if follow.is_stopped():
                    return
            if self._is_waiting:
                follow.rest(follow.poll_interval)
                continue
            if self._log.corruption is not None:
                raise self._log.corruption
            end_offset = self._options.end_offset
            if self._log.is_complete or (end_offset is not None and self._position >= end_offset):
                return
            if is_more:
                continue
            quiet = time.monotonic() - last_record
            rest = follow.poll_interval
            if follow.timeout is not None and not self._log.is_suspect:
                if quiet >= follow.timeout:
                    return
                rest = min(rest, follow.timeout - quiet)
            follow.rest(rest)

    def _ready(self) -> Iterator[DecodedRecords]:
        """Return the chunks of the walked batches that may be delivered.

        The log cleaner may replace the segments of these batches. They are then looked up again by their offsets.
        """
        limit, position = self._limit()
        walked, self._is_waiting = self._log.walked, False
        while walked and (walked[0].next_offset <= limit or walked[0].first_offset < limit):
            each, end, is_replaced = walked[0], walked[0].end, False
            try:
                if each.next_offset > limit:
                    end = self._end_at(each, limit, position)
                yield from self._read(each, end, limit)
            except (SegmentReplacedError, FileNotFoundError):
                is_replaced = True
            except DecodeError:
                is_replaced = not each.is_intact()
                if not is_replaced:
                    raise
            if is_replaced:
                self._is_waiting = not self._log.walk_again(self._position)
                if self._is_waiting:
                    return
            elif each.next_offset <= limit:
                walked.pop(0)
            else:
                each.start, each.first_offset = end, limit
        self._position = max(self._position, limit)
        self._aborted = [entry for entry in self._aborted if entry.last_offset is None or entry.last_offset >= limit]

    def _end_at(self, walked: Walked, limit: int, position: int) -> int:
        """Return the position of the limit in a range. In the walked segment, it is `position`."""
        return walked.position_of(limit, self._options.limits) if walked.is_again else position

    def _read(self, walked: Walked, end: int, limit: int) -> Iterator[DecodedRecords]:
        """Read a range up to `end`. Afterwards, and after an error, `_position` is the offset after the delivered
        records."""
        if walked.next_offset > self._position and end > walked.start:
            path, storage = walked.segment.path, walked.segment.storage
            byte_range = ByteRange(path, walked.start, end, walked.first_offset, False, storage, anchor=walked.anchor)
            verdict = Verdict(AbortedTransactions(self._aborted), None, self._start)
            options = replace(self._options, start_offset=self._position)
            reading = self._reading = SequentialReader([byte_range], verdict, options, self._buffer)
            try:
                yield from reading.chunks()
            except (DecodeError, OSError):
                yield from reading.pending()
                raise
            finally:
                self._position = max(self._position, reading.position)
                self._counts, self._reading = self.counts, None
        self._position = max(self._position, min(walked.next_offset, limit))

    def _limit(self) -> tuple[int, int]:
        """Return the offset below which records can be delivered, and the position of the batch there in its
        segment."""
        scanner = self._log.scanner
        if self._is_committed:
            for producer_id, _epoch, first, _last, marker, control_type, *_rest in scanner.finished:
                if control_type == ABORT and 0 <= first < marker:
                    self._aborted.append(AbortedTransaction(producer_id, first, marker))
        scanner.finished.clear()
        earliest = min(scanner.open, key=lambda entry: entry[2], default=None) if self._is_committed else None
        return (self._log.next_offset, 0) if earliest is None else (earliest[2], earliest[6])
