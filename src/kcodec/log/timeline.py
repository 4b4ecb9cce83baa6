# SPDX-License-Identifier: Apache-2.0
"""The transactions of a partition and their outcome, found by one walk over the headers of all its segments.

A file has no list of aborted transactions, but its end-transaction markers give both ends of each transaction. A reader
therefore filters by intervals (producer_id, first_offset..marker_offset), and no state is passed from one range of a
file to the next. The limit is Kafka's last stable offset: the least of the high watermark, the first offset of any open
transaction, and of any whose marker is at or after the high watermark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from kcodec._fast import AbortedTransaction, AbortedTransactions, TransactionScanner
from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.log.salvage import ResumePositions, batches_in_order, read_batches
from kcodec.log.segment import (
    BATCH_OVERHEAD,
    LOWEST_OFFSET,
    WRONG_CRC,
    ZEROS,
    Segment,
    Tail,
    batch_at,
    computed_crc,
    overlap,
    tail_at_end,
    tail_of_cut,
    tail_of_refused,
)
from kcodec.log.windows import WINDOW_BYTES, HeaderWindows, SegmentFile

HIGHEST_OFFSET = (1 << 63) - 1
ABORT, COMMIT = 0, 1
# The approximate interval at which the walk stores a batch boundary, for ranges and for searches of timestamps.
RANGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Transaction:
    """A transaction of a producer in one partition.

    producer_id:    Producer of the transaction.
    first_offset, last_offset: Of its data; None if only its marker exists (an empty transaction, or one whose data was
                               deleted or compacted).
    marker_offset, marker_timestamp, coordinator_epoch: Of its end marker; None while it is open.
    producer_epoch: Of the marker; of the last batch while the transaction is open.
    state:          "committed", "aborted" or "open".
    first_timestamp: Timestamp of its first batch.

    Timestamps are in ms.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int | None
    last_offset: int | None
    marker_offset: int | None
    state: str
    first_timestamp: int
    marker_timestamp: int | None
    coordinator_epoch: int | None

    def age_ms(self, now: int) -> int:
        """Return its age at `now` (ms) by the timestamp of its first batch; its duration once it has ended."""
        return (now if self.marker_timestamp is None else self.marker_timestamp) - self.first_timestamp

    def __repr__(self) -> str:
        data = "no data" if self.first_offset is None else f"{self.first_offset}..{self.last_offset}"
        marker = "" if self.marker_offset is None else f", marker {self.marker_offset}"
        return f"<Transaction producer_id={self.producer_id}/{self.producer_epoch} {self.state} {data}{marker}>"


@dataclass(frozen=True)
class Verdict:
    """The information about the rest of a partition that the reader of one range needs. It can be pickled.

    aborted_transactions: As intervals.
    limit:                Records from this offset on are not returned; None: no limit.
    log_start_offset:     Records below it are not returned.
    unsettled:            Intervals (producer_id, first_offset, last_offset) of transactions that were open at skipped
                          corruption. They are among aborted_transactions, but their outcome is unknown.
    """

    aborted_transactions: AbortedTransactions
    limit: int | None
    log_start_offset: int
    unsettled: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of_aborted(cls, aborted: Iterable[AbortedTransaction], log_start_offset: int) -> Verdict:
        """Return the Verdict for a reader that stops before the first offset of an open transaction.

        aborted: The aborted transactions of the partition.
        """
        return cls(AbortedTransactions(list(aborted)), None, log_start_offset)

    def between(self, first_offset: int, next_offset: int) -> Verdict:
        """Return the part that concerns [first_offset, next_offset). This is fast even if there are many
        transactions."""
        entries, firsts, reaches = self._by_first_offset
        candidates = entries[bisect_left(reaches, first_offset) : bisect_left(firsts, next_offset)]
        kept = [entry for entry in candidates if entry.last_offset is None or entry.last_offset >= first_offset]
        unsettled = tuple(entry for entry in self.unsettled if entry[1] < next_offset and entry[2] >= first_offset)
        return Verdict(AbortedTransactions(kept), self.limit, self.log_start_offset, unsettled)

    @cached_property
    def _by_first_offset(self) -> tuple[list[AbortedTransaction], list[int], list[int]]:
        """The intervals in order of their first offsets, these offsets, and the maximum end of the intervals up to
        each."""
        entries = sorted(self.aborted_transactions, key=lambda entry: entry.first_offset)
        ends = (HIGHEST_OFFSET if entry.last_offset is None else entry.last_offset for entry in entries)
        return entries, [entry.first_offset for entry in entries], list(accumulate(ends, max))

    def __reduce__(self) -> tuple[type[Verdict], tuple[object, ...]]:
        return Verdict, (self.aborted_transactions, self.limit, self.log_start_offset, self.unsettled)


class WalkedRange(NamedTuple):
    """Complete batches of a segment: bytes [start, end), offsets [first_offset, next_offset), and their max_timestamp
    in ms.

    first_offset is the position of a consumer that has read all before; the first batch may begin above it.
    """

    start: int
    end: int
    first_offset: int
    next_offset: int
    max_timestamp: int

    @property
    def is_corrupt(self) -> bool:
        """Whether the range contains no batch that a reader can return."""
        return self.next_offset == self.first_offset


@dataclass
class WalkedSegment:
    """The result of the walk for one segment. `end` is the position at which its data ends."""

    segment: Segment
    parts: list[WalkedRange] = field(default_factory=list)
    end: int = 0
    tail: Tail | None = None

    def reaching(self, offset: int) -> tuple[int, int]:
        """Return the beginning of the range with `offset`, and its first offset. If corruption may contain the offset,
        return it instead.

        If all ranges are below the offset, return the end of the last one.
        """
        part = next(parts_reaching(self.parts, offset), None)
        return (self.end, 0) if part is None else (part.start, part.first_offset)


def parts_reaching(parts: Iterable[WalkedRange], offset: int) -> Iterator[WalkedRange]:
    """Yield the ranges of a segment that may contain `offset` or later offsets.

    The offsets of a corrupt range are unknown. It is left out if the next range with batches ends before `offset`.
    """
    corrupt: list[WalkedRange] = []
    for part in parts:
        if part.is_corrupt:
            corrupt.append(part)
            continue
        if part.next_offset > offset:
            yield from corrupt
            yield part
        corrupt.clear()
    yield from corrupt


@dataclass
class Timeline:
    """The result of one walk over all headers. `error` is the error that ended it ("stop"), or that was skipped first
    ("skip")."""

    segments: list[WalkedSegment]
    transactions: list[Transaction]
    unsettled: tuple[tuple[int, int, int], ...]
    next_offset: int | None
    error: DecodeError | None

    def verdict(self, high_watermark: int, log_start_offset: int) -> Verdict:
        """Return the Verdict for a read_committed reader with this high watermark."""
        limit = high_watermark
        unsettled_starts = {entry[:2] for entry in self.unsettled}
        aborted = [AbortedTransaction(*entry) for entry in self.unsettled]
        for transaction in self.transactions:
            first, marker = transaction.first_offset, transaction.marker_offset
            if first is None or (transaction.producer_id, first) in unsettled_starts:
                continue
            if marker is None or marker >= high_watermark:
                limit = min(limit, first)
            elif transaction.state == "aborted":
                aborted.append(AbortedTransaction(transaction.producer_id, first, marker))
        return Verdict(AbortedTransactions(aborted), limit, log_start_offset, self.unsettled)


class _Walk:
    """The walk over the segments, with one scanner for all."""

    def __init__(self, limits: DecodeLimits, on_error: str) -> None:
        self.limits = limits
        self.on_error = on_error
        self.is_strict = False  # whether offsets must rise in the active segment, too; the index is not read then
        self.scanner = TransactionScanner(limits=limits)
        self.next_offset: int | None = None
        self.lost: dict[int, int] = {}
        self.error: DecodeError | None = None
        self.is_ended = False
        self.is_end_checked = False  # whether it is known that the last batch is not torn, or that it is
        self.before: Segment | None = None

    @property
    def above(self) -> int:
        """The last offset so far."""
        return LOWEST_OFFSET if self.next_offset is None else self.next_offset - 1

    def segment(self, segment: Segment, known_end: int | None) -> WalkedSegment:
        """Walk one segment, up to `known_end` if an earlier walk has found that its data ends there."""
        walked = WalkedSegment(segment)
        self._check_order(segment)
        self.is_end_checked = False
        self.scanner.path = segment.path
        self.scanner.above_offset = None if segment.is_active and not self.is_strict else self.above
        with segment.open() as file:
            end = file.size() if known_end is None else known_end
            windows = HeaderWindows(file, end)
            position, needed = 0, BATCH_OVERHEAD
            while not self.is_ended:
                try:
                    ahead, needed = self.scanner.feed(windows.at(position, needed), position, end)
                    self._note(walked, position, ahead)
                    position = ahead
                    if position + needed > end:
                        walked.tail = tail_at_end(
                            file, position, end, self.above, self.limits, is_active=segment.is_active
                        )
                        if not segment.is_active and not self.is_strict and self.on_error != "skip":
                            ResumePositions(file, self.limits).ensure_complete(end, self.above)
                        break
                except DecodeError as error:
                    if error.position is not None:
                        self._note(walked, position, error.position)
                    behind = self._corruption(file, walked, error, end)
                    if behind is None:
                        break
                    position, needed = behind, BATCH_OVERHEAD
        return walked

    def _check_order(self, segment: Segment) -> None:
        """Raise DecodeError if the name of the active segment is below the end of the previous one. In other segments,
        the batches show this."""
        before, self.before = self.before, segment
        is_checked = segment.is_active and self.on_error == "raise"
        if not is_checked or before is None or segment.base_offset is None or self.next_offset is None:
            return
        if segment.base_offset < self.next_offset:
            name = segment.storage.name(before.path)
            raise DecodeError(overlap(name, self.next_offset - 1, segment.base_offset), path=segment.path)

    def salvage(self, segment: Segment, below: int | None) -> WalkedSegment:
        """Walk the intact batches of a corrupt segment. Every byte is read, because no header is used without a valid
        CRC.

        below: where the next segment begins.
        """
        walked = WalkedSegment(segment)
        self.before, self.is_end_checked = segment, True
        self.scanner.path, self.scanner.above_offset = segment.path, None
        with segment.open() as file:
            positions, position, end = ResumePositions(file, self.limits), 0, file.size()
            while position < end:
                window = read_batches(file, position, end, WINDOW_BYTES, self.limits)
                headers = window.batches if window.following is None else [*window.batches, window.following]
                count = batches_in_order(headers, self.above, below, positions, end)
                behind = position
                for batch in window.batches[:count]:
                    if positions.intact(batch.position, end) is None:
                        break
                    behind += batch.size_in_bytes
                if behind > position:
                    position = self._feed(walked, window.data[: behind - position], position, behind)
                    if position == behind:
                        continue
                if segment.is_active and positions.behind(position, end, self.above) is None:
                    walked.tail = self._torn_tail(file, positions, position, end)
                    if walked.tail is not None:
                        break
                position = self._lose(walked, positions, position, end, window.failure)
        return walked

    def _feed(self, walked: WalkedSegment, data: memoryview, position: int, behind: int) -> int:
        """Scan intact batches. Return the position at which the scanner stopped: `behind`, unless it refused a
        batch."""
        start = position
        while position < behind:
            try:
                ahead, _needed = self.scanner.feed(data[position - start :], position, behind)
            except DecodeError as error:
                self.error = self.error or error
                ahead = position if error.position is None else error.position
                self._note(walked, position, ahead)
                return ahead
            self._note(walked, position, ahead)
            position = ahead
        return position

    def _lose(
        self, walked: WalkedSegment, positions: ResumePositions, position: int, end: int, error: DecodeError | None
    ) -> int:
        """Note that the data at `position` cannot be read. Return the position at which to continue."""
        if self.error is None:
            self.error = error or DecodeError(
                "the bytes are not a valid batch", position=position, path=walked.segment.path
            )
        found = positions.behind(position, end, self.above)
        walked.end = end if found is None else found.position
        first = 0 if self.next_offset is None else self.next_offset
        walked.parts.append(WalkedRange(position, walked.end, first, first, -1))
        for producer_id, _epoch, first_offset, *_rest in self.scanner.open:
            self.lost.setdefault(producer_id, first_offset)
        return walked.end

    def _torn_tail(self, file: SegmentFile, positions: ResumePositions, position: int, end: int) -> Tail | None:
        """Return the torn tail that begins at a position of the active segment; None if the data there is corrupt."""
        error = DecodeError("the bytes are not a valid batch", position=position, path=file.path)
        try:
            batch = batch_at(file, position, end, self.limits)
        except DecodeError as failure:
            error, is_cut = failure, False
        else:
            is_cut = batch is None
        try:
            if is_cut:
                tail = tail_of_cut(file, position, end, self.above, self.limits)
            else:
                tail = tail_of_refused(file, error, end, self.above, self.limits, is_active=True)
        except DecodeError:
            return None
        return None if tail is not None and tail.reason == ZEROS and positions.are_after(position) else tail

    def note_cut(self, walked: WalkedSegment) -> None:
        """If a closed segment was cut between two batches, add an empty range, so that a reader finds the loss."""
        with walked.segment.open() as file:
            end = file.size()
            if ResumePositions(file, self.limits).are_after(end):
                first = 0 if self.next_offset is None else self.next_offset
                walked.parts.append(WalkedRange(end, end, first, first, -1))

    def lose_corrupt_starts(self, segments: Sequence[Segment]) -> None:
        """Remove open transactions that begin at a corrupt batch. They may not exist, so they must not block later
        records."""
        for producer_id, _epoch, first_offset, _last, _begun, _latest, position in self.scanner.open:
            begun = [one for one in segments if one.base_offset is None or one.base_offset <= first_offset]
            for segment in begun[-1:]:
                with segment.open() as file:
                    if ResumePositions(file, self.limits).intact(position, file.size()) is None:
                        self.lost.setdefault(producer_id, first_offset)

    def _note(self, walked: WalkedSegment, start: int, end: int) -> None:
        """Note that complete batches from `start` to `end` were walked."""
        if end <= start or self.scanner.last_offset is None:
            return
        first = self.next_offset if self.next_offset is not None else self.scanner.first_offset or 0
        self.next_offset = max(first, self.scanner.last_offset + 1)
        latest = -1 if self.scanner.max_timestamp is None else self.scanner.max_timestamp
        self.scanner.max_timestamp = None
        part = WalkedRange(start, end, first, self.next_offset, latest)
        before = walked.parts[-1] if walked.parts else None
        is_data = before is not None and not before.is_corrupt
        if before is not None and is_data and before.end == start and end - before.start <= RANGE_BYTES:
            walked.parts.pop()
            part = WalkedRange(
                before.start, end, before.first_offset, part.next_offset, max(before.max_timestamp, latest)
            )
        walked.parts.append(part)
        walked.end = end

    def _corruption(self, file: SegmentFile, walked: WalkedSegment, error: DecodeError, end: int) -> int | None:
        """Return where to continue after a refused batch; None if the segment's data ends (torn tail, on_error)."""
        active = walked.segment.is_active
        try:
            walked.tail = tail_of_refused(file, error, end, self.above, self.limits, is_active=active)
            self.is_end_checked = True
            return None
        except DecodeError as corruption:
            if self.on_error == "raise":
                raise
            self.error = self.error or corruption
        if error.position is None:
            raise error
        self.is_ended = True
        walked.end = end  # a reader of this range must find the corruption
        first = 0 if self.next_offset is None else self.next_offset
        walked.parts.append(WalkedRange(error.position, end, first, first, -1))
        return None


def walk_segments(segments: Sequence[Segment], limits: DecodeLimits, on_error: str = "raise") -> Timeline:
    """Walk the headers of all segments, in order. Raise DecodeError for corruption, unless on_error is "stop" or
    "skip".

    No record is decoded, and of large batches only the header is read. The CRC of small batches is checked, because a
    corrupt marker must not resolve a transaction. The CRC of the last batch of the active segment is checked, too,
    because it may be torn.
    """
    known_end: int | None = None
    tail: Tail | None = None
    while True:
        walk = _Walk(limits, on_error)
        if on_error == "skip":
            walked = _salvaged(walk, segments, known_end)
        else:
            walked = [walk.segment(segment, known_end if segment.is_active else None) for segment in segments]
        torn = (
            None
            if known_end is not None or walk.is_ended or walk.is_end_checked
            else _torn_last_batch(walk, walked[-1], limits)
        )
        if torn is None:
            break
        known_end, tail = torn.position, torn
    if tail is not None:
        walked[-1].tail = tail
    if on_error == "skip":
        walk.lose_corrupt_starts(segments)
    return Timeline(walked, _transactions(walk), _unsettled(walk), walk.next_offset, walk.error)


def _salvaged(walk: _Walk, segments: Sequence[Segment], known_end: int | None) -> list[WalkedSegment]:
    """Walk the data that is not corrupt. If the headers of a segment are in order, only these are read, as in any other
    walk."""
    walked = []
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        below = None if following is None else following.base_offset
        if _is_in_order(segment, below, walk.above, walk.limits):
            walked.append(walk.segment(segment, known_end if segment.is_active else None))
        else:
            walked.append(walk.salvage(segment, below))
        if not segment.is_active:
            walk.note_cut(walked[-1])
    return walked


def _is_in_order(segment: Segment, below: int | None, above: int, limits: DecodeLimits) -> bool:
    """Return whether the headers of a segment lead to its end, with increasing offsets below `below`."""
    trial = _Walk(limits, "raise")
    trial.is_strict = True
    trial.next_offset = None if above == LOWEST_OFFSET else above + 1
    try:
        trial.segment(segment, None)
    except DecodeError:
        return False
    return below is None or trial.next_offset is None or trial.next_offset <= below


def _torn_last_batch(walk: _Walk, last: WalkedSegment, limits: DecodeLimits) -> Tail | None:
    """Return the tail that begins with the last complete batch of the active segment, if its CRC is wrong."""
    if not last.segment.is_active or not last.parts:
        return None
    with last.segment.open() as file:
        batch = batch_at(file, walk.scanner.last_position, last.end, limits)
        if batch is None:
            return None
        computed = computed_crc(file, batch)
        if computed == batch.crc:
            return None
        remaining = last.end - batch.position if last.tail is None else sum(last.tail[:2]) - batch.position
    reason = f"{WRONG_CRC}: {batch.crc:#010x} is stored, the CRC of the bytes is {computed:#010x}"
    return Tail(batch.position, remaining, reason)


def _transactions(walk: _Walk) -> list[Transaction]:
    """Return all transactions, in order of their first offsets."""
    found = []
    for entry in walk.scanner.finished:
        producer_id, epoch, first, last, marker, control_type, begun, ended, coordinator_epoch, _position = entry
        state = "committed" if control_type == COMMIT else "aborted"
        begins, ends = (None, None) if first < 0 else (first, last)
        found.append(Transaction(producer_id, epoch, begins, ends, marker, state, begun, ended, coordinator_epoch))
    for producer_id, epoch, first, last, begun, _latest, _position in walk.scanner.open:
        found.append(Transaction(producer_id, epoch, first, last, None, "open", begun, None, None))
    return sorted(found, key=lambda one: one.first_offset if one.first_offset is not None else one.marker_offset or 0)


def _unsettled(walk: _Walk) -> tuple[tuple[int, int, int], ...]:
    """Return the ranges of transactions that were open at skipped corruption: from first offset to next marker."""
    intervals = []
    for producer_id, first_offset in walk.lost.items():
        markers = [entry[4] for entry in walk.scanner.finished if entry[0] == producer_id and entry[2] == first_offset]
        intervals.append((producer_id, first_offset, markers[0] if markers else HIGHEST_OFFSET))
    return tuple(intervals)
