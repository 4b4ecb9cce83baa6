# SPDX-License-Identifier: Apache-2.0
"""Determines where reading continues after corruption, with ``on_error="skip"``.

Bytes are never searched for something that looks like a batch, as the value of a record can contain a batch. A position
after corruption is used only if

- the batch at the corrupt position has a valid CRC, so that its length is valid, too (its offsets contradict those of
  its neighbors, or its records cannot be decoded);
- or ``.index`` contains the position, and the batch there has a valid CRC and agrees with the offsets of the index;
- or the lengths of the corrupt batch and of those after it lead to a batch with a valid CRC, from which further batches
  lead to the next position in ``.index``, if there is one.

Otherwise the rest of the segment is lost, and reading continues with the next segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import NamedTuple

from kcodec._fast import RecordBatch, header_at
from kcodec.errors import DecodeError, TruncatedError
from kcodec.limits import DecodeLimits
from kcodec.log.indexes import OFFSET_ENTRY, OffsetIndex, OffsetIndexEntry, named_offset, read_offset_index
from kcodec.log.segment import (
    BATCH_OVERHEAD,
    LEAST_BATCH,
    LEAST_BATCH_LENGTH,
    LOG_OVERHEAD,
    Segment,
    batch_at,
    computed_crc,
    has_plausible_fields,
    stored_offset,
)
from kcodec.log.windows import SegmentFile

# The number of index entries among which a position to divide the segment is searched.
CUT_ENTRIES = 16
#: Maximum number of positions that are kept of a walk to the next index entry.
MOST_WALKED = 1 << 20
#: Maximum number of batches in a window. The window is read again after each corrupt batch, and small batches would
#: make this expensive.
MOST_IN_WINDOW = 1024


@dataclass(frozen=True)
class Loss:
    """Bytes [position, end_position) of a segment that were skipped.

    first_offset, next_offset: Records in [first_offset, next_offset) may be lost. next_offset is None if the offset
                               after the loss is unknown (at the end of the log, or of a file whose successor is
                               unknown).
    """

    path: str
    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    reason: str

    def __str__(self) -> str:
        offsets = f"from {self.first_offset} on" if self.next_offset is None else self._offsets(self.next_offset)
        place = f"bytes {self.position} to {self.end_position - 1}"
        if self.position == self.end_position:
            place = f"bytes from {self.position} on"
        return f"{self.path}: {place} ({offsets}) were skipped: {self.reason}"

    def _offsets(self, next_offset: int) -> str:
        if next_offset - self.first_offset < 2:
            return f"offset {self.first_offset}"
        return f"offsets {self.first_offset} to {next_offset - 1}"


class ResumePosition(NamedTuple):
    """A batch boundary after corruption, and the first offset there (None if the batch there is unknown)."""

    position: int
    offset: int | None


class ResumePositions:
    """Where reading of one segment can continue. Its index is read when it is first needed.

    The searches after each corruption look at the same batches again. What they have found is kept, so that the time
    does not grow with the square of the number of corrupt batches.
    """

    def __init__(self, file: SegmentFile, limits: DecodeLimits) -> None:
        self._file = file.apart()
        self._limits = limits
        #: The last search of `indexed`: its arguments and its result.
        self._last_search: tuple[int, int, RecordBatch | None] | None = None
        #: The last walk of `_leads_to`: its end, the positions of its batches, and its result, which is the same from
        #: each of these positions on.
        self._walk_end = -1
        self._walked: array[int] = array("q")
        self._walk_result = False

    @cached_property
    def _index(self) -> OffsetIndex | None:
        path, storage = self._file.path, self._file.storage
        if named_offset(path) is None:
            return None
        try:
            return read_offset_index(Segment(path, None, False, storage).beside(".index"), None, storage)
        except (OSError, DecodeError):
            return None

    def are_after(self, position: int) -> bool:
        """Return whether the index contains batches at or after `position`, so that data that ends there has been cut
        off."""
        index = self._index
        return index is not None and len(index) > 0 and index[-1].position >= position

    def missing(self, end: int, above: int) -> OffsetIndexEntry | None:
        """Return the first entry of the index at or after `end`, the end of the file. Return None unless the index
        proves that batches were cut off.

        above: Last offset before `end`.

        The index must be intact and belong to this file: offsets and positions must increase, and the last entry before
        `end` must agree with the batch at its position. The log cleaner may replace the files while they are read, so
        the file must still have this size after the check.
        """
        if not self._may_reach(end):
            return None
        index = self._index
        if index is None:
            return None
        if not all(one.offset < other.offset and one.position < other.position for one, other in pairwise(index)):
            return None
        number = bisect_left(index, end, key=lambda entry: entry.position)
        if number == len(index) or index[number].offset <= above:
            return None
        if number and next(self._indexed(index[number - 1].position - 1, end), None) is None:
            return None
        try:
            is_same = self._file.storage.size(self._file.path) == end
        except OSError:
            return None
        return index[number] if is_same else None

    def ensure_complete(self, end: int, above: int) -> None:
        """Raise TruncatedError if the index proves that the file, which ends at `end`, was cut between two batches."""
        entry = self.missing(end, above)
        if entry is None:
            return
        raise TruncatedError(
            f"the segment was cut between two batches: it ends at byte {end}, but its index has a batch with offset "
            f"{entry.offset} at byte {entry.position}; restore the file from another replica or a backup, or read the "
            "rest of the log with on_error='skip'",
            needed=entry.position,
            available=end,
            position=end,
            path=self._file.path,
        )

    def _may_reach(self, end: int) -> bool:
        """Return whether the index may have an entry at or after `end`. Only its last entry is read."""
        path, storage = self._file.path, self._file.storage
        if named_offset(path) is None:
            return False
        try:
            with SegmentFile(Segment(path, None, False, storage).beside(".index"), storage) as file:
                count = file.size() // OFFSET_ENTRY.size
                if count == 0:
                    return False
                last = bytes(file.read((count - 1) * OFFSET_ENTRY.size, OFFSET_ENTRY.size))
        except (OSError, DecodeError):
            return False
        # Zeros follow the last entry of a preallocated index.
        return not last.strip(b"\0") or OFFSET_ENTRY.unpack(last)[1] >= end

    def behind(self, position: int, end: int, above: int) -> ResumePosition | None:
        """Return where to continue after the corrupt batch at `position`; None if the bytes up to `end` are lost.

        above: Last offset before the corruption.
        """
        batch = self.intact(position, end)
        if batch is not None:
            behind = position + batch.size_in_bytes
            return ResumePosition(behind, self.offset_at(behind, end)) if behind < end else None
        indexed = self.indexed(position, end)
        reached = self._by_lengths(position, end, above, indexed) or indexed
        return None if reached is None else ResumePosition(reached.position, stored_offset(reached))

    def indexed(self, position: int, end: int) -> RecordBatch | None:
        """Return the first batch in (position, end) that ``.index`` contains and that has a valid CRC."""
        if self._last_search is not None:
            start, last_end, found = self._last_search
            if last_end == end and start <= position and (found is None or position < found.position):
                return found
        found = next(self._indexed(position, end), None)
        self._last_search = position, end, found
        return found

    def cut(self, position: int, end: int) -> RecordBatch | None:
        """Return a batch in (position, end) at which the segment can be divided: its offsets agree with the index.

        The index has the last offset of an append, which is that of the batch if each append is one batch.
        """
        first: RecordBatch | None = None
        for batch in islice(self._indexed(position, end), CUT_ENTRIES):
            if self._has_entry(batch):
                return batch
            first = batch if first is None else first
        return first

    def _has_entry(self, batch: RecordBatch) -> bool:
        index = self._index or ()
        number = bisect_left(index, batch.position, key=lambda entry: entry.position)
        return number < len(index) and index[number] == (batch.last_offset, batch.position)

    def _indexed(self, position: int, end: int) -> Iterator[RecordBatch]:
        index = self._index
        if index is None:
            return
        for number in range(bisect_right(index, position, key=lambda entry: entry.position), len(index)):
            offset, start = index[number]
            before = index[number - 1].offset if number else index.base_offset - 1
            if position < start < end:
                batch = self.intact(start, end)
                if batch is not None and before < stored_offset(batch) <= offset:
                    yield batch

    def intact(self, position: int, end: int) -> RecordBatch | None:
        """Return the batch at `position` if it does not extend beyond `end` and has a valid CRC."""
        if end - position < LEAST_BATCH:
            return None
        try:
            batch = batch_at(self._file, position, end, self._limits)
        except DecodeError:
            return None
        if batch is None or not has_plausible_fields(batch) or computed_crc(self._file, batch) != batch.crc:
            return None
        return batch

    def _by_lengths(self, position: int, end: int, above: int, indexed: RecordBatch | None) -> RecordBatch | None:
        """Return the first intact batch to which the lengths of batches lead from `position`; None if it is after
        `indexed`."""
        last = end if indexed is None else indexed.position
        while last - position >= LOG_OVERHEAD:
            length = int.from_bytes(self._file.read(position, LOG_OVERHEAD)[8:], "big", signed=True)
            position += LOG_OVERHEAD + length
            if length < LEAST_BATCH_LENGTH or position > last:
                return None
            if indexed is not None and position == last:
                return indexed
            batch = self.intact(position, last)
            if batch is not None and above < stored_offset(batch):
                return batch if indexed is None or self._leads_to(batch, indexed) else None
        return None

    def _leads_to(self, batch: RecordBatch, indexed: RecordBatch) -> bool:
        """Return whether the batches from `batch` on lead to the indexed one, or to further corruption before it.

        This excludes an intact batch within a value, because it is followed by other bytes of the value and not by a
        batch.
        """
        if batch.last_offset >= stored_offset(indexed):
            return False
        position, end = batch.position, indexed.position
        if self._walk_end == end:
            number = bisect_left(self._walked, position)
            if number < len(self._walked) and self._walked[number] == position:
                return self._walk_result
        self._walk_end, self._walked = end, array("q")
        previous = position
        while position < end:
            try:
                found = batch_at(self._file, position, end, self._limits)
            except DecodeError:
                found = None
            if found is None:
                break
            if len(self._walked) < MOST_WALKED:
                self._walked.append(position)
            previous, position = position, position + found.size_in_bytes
        self._walk_result = position >= end or self.intact(previous, end) is None
        return self._walk_result

    def offset_at(self, position: int, end: int) -> int | None:
        """Return the first offset of the batch at `position`; None if it is not intact."""
        batch = self.intact(position, end)
        return None if batch is None else stored_offset(batch)


class BatchWindow(NamedTuple):
    """Complete batches of a file.

    data:      The bytes that were read, from the first batch on.
    following: Header after the last batch; None at the end of the data.
    failure:   Error of this header.
    """

    data: memoryview
    batches: list[RecordBatch]
    following: RecordBatch | None
    failure: DecodeError | None


def read_batches(file: SegmentFile, position: int, end: int, size: int, limits: DecodeLimits) -> BatchWindow:
    """Read the batches at `position`, at least one if one exists before `end`, and at most MOST_IN_WINDOW, and the
    header after them.

    size: Number of bytes to read. More are read if the batch and the header after it are larger.
    """
    while True:
        size = min(size, end - position)
        data = file.read(position, size)
        batches: list[RecordBatch] = []
        following: RecordBatch | None = None
        at = 0
        while at < size and len(batches) < MOST_IN_WINDOW:
            try:
                following = header_at(data[at:], position + at, file.path, limits)
            except DecodeError as error:
                return BatchWindow(data, batches, None, error)
            if following is None or at + following.size_in_bytes > size:
                break
            batches.append(following)
            at, following = at + following.size_in_bytes, None
        is_full = len(batches) == MOST_IN_WINDOW and at < size
        if is_full or position + size < end:
            if following is None and len(batches) > 1:
                following = batches.pop()
            elif following is None or not batches:
                size = at + (BATCH_OVERHEAD if following is None else following.size_in_bytes)
                continue
        return BatchWindow(data, batches, following, None)


def batches_in_order(
    batches: Sequence[RecordBatch], above: int, below: int | None, positions: ResumePositions, end: int
) -> int:
    """Return the number of batches before the first one with a wrong base offset.

    The CRC of a batch does not cover its base offset. Corruption of it is visible only if offsets do not increase. A
    batch with a wrong CRC counts as in order, because decoding it reports the CRC.

    above: Last offset before the first batch.
    below: Offset above all offsets; None if it is unknown.
    end:   End of the data.
    """
    last = above
    for batch in batches:
        if stored_offset(batch) <= last:
            break
        last = batch.last_offset
    else:
        if below is None or last < below:
            return len(batches)
    # The CRCs are checked only as far as needed, because a window may contain many corrupt batches.
    intact = (one for one in enumerate(batches) if positions.intact(one[1].position, end))
    current = next(intact, None)
    while current is not None:
        (number, batch), next_intact = current, next(intact, None)
        following = None if next_intact is None else next_intact[1]
        if stored_offset(batch) <= above or (below is not None and batch.last_offset >= below):
            return number
        if following is not None and _is_misplaced(batch, following, above):
            return number
        corrupt = batches[number + 1] if number + 1 < len(batches) else None
        if corrupt is not None and corrupt is not following and _is_misplaced(batch, corrupt, above, is_exact=True):
            return number
        above, current = batch.last_offset, next_intact
    return len(batches)


def _is_misplaced(batch: RecordBatch, following: RecordBatch, above: int, is_exact: bool = False) -> bool:
    """Return whether this batch has a wrong base offset, and not the next batch, whose offsets overlap with it.

    It is this batch if all offsets would be in order with another base offset. With `is_exact`, it must fit exactly,
    because the CRC of the next batch is wrong. `above` is the last offset before the batch.
    """
    if stored_offset(following) > batch.last_offset or stored_offset(batch) == above + 1:
        return False
    free = stored_offset(following) - above - 1 - (batch.last_offset - batch.base_offset + 1)
    return free == 0 if is_exact else free >= 0
