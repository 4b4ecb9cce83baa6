# SPDX-License-Identifier: Apache-2.0
"""Finding the position of an offset or a timestamp in a segment, with O(log n) reads if its indexes are valid.

An index only saves time. The entry of ``.index`` where a search begins is verified with the log: a batch with a valid
CRC begins at its position and has its offset, and the headers after the previous entry lead to it. Otherwise earlier
entries are tried, then the beginning of the segment; from there headers are read up to the requested batch.

No single position of the log can verify an entry of ``.timeindex``: it says that no earlier timestamp is larger. It is
used, as by the broker itself, if the batches of this entry and of the previous one have exactly their timestamps, in
order. In all other cases, and if the search takes too long, all headers are read (IndexDisagreesError).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kcodec._fast import RecordBatch, batches
from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from kcodec.log.segment import (
    BATCH_OVERHEAD,
    LEAST_BATCH,
    LOWEST_OFFSET,
    Segment,
    batch_at,
    computed_crc,
    has_plausible_fields,
    least_offset,
    stored_offset,
    walk_headers,
)
from kcodec.log.storage import LOCAL
from kcodec.log.timeline import Timeline
from kcodec.log.windows import HeaderWindows, SegmentFile

# After the last entry of a time index below a timestamp, at most this number of batches is searched. If there are more,
# a walk over all headers is faster. There is an entry about every 4 KiB, so only an incomplete index leaves more.
MOST_BATCHES = 4096


class SegmentPosition(NamedTuple):
    """A batch boundary. All batches before it are below the target. `first_offset` is a lower bound of the offsets
    after it."""

    position: int
    first_offset: int


START = SegmentPosition(0, 0)


class IndexDisagreesError(Exception):
    """A time index leads to no offset that the log confirms. Internal."""


# Offsets


def position_of_offset(segment: Segment, offset: int, limits: DecodeLimits) -> SegmentPosition:
    """Return the position of the batch that contains `offset`, or of the first one above it, or the end if all batches
    are below.

    Never raise: if a batch cannot be read, return its position, so that the reader reports the error.
    """
    with segment.open() as file:
        return position_in(file, segment, offset, limits)


def position_in(file: SegmentFile, segment: Segment, offset: int, limits: DecodeLimits) -> SegmentPosition:
    """Return the same for the open file of a segment."""
    return walk_to(file, _indexed_start(segment, file, offset, limits), offset, limits)


def walk_to(file: SegmentFile, start: SegmentPosition, offset: int, limits: DecodeLimits) -> SegmentPosition:
    """Walk header by header from `start` to the first batch that reaches `offset`; take small ones by windows."""
    end, place = file.size(), start
    windows = HeaderWindows(file, end)
    while place.position + LEAST_BATCH <= end:
        window = windows.at(place.position, BATCH_OVERHEAD)
        try:
            found, place = _walk_window(file, window, place, end, offset, limits)
        except DecodeError:
            return _walk_to_corruption(file, place, end, offset, limits)
        if found:
            return place
    return place


def _walk_window(
    file: SegmentFile, window: memoryview, place: SegmentPosition, end: int, offset: int, limits: DecodeLimits
) -> tuple[bool, SegmentPosition]:
    """Return whether the batch is in this window, and its position, or else the position after the last batch of the
    window."""
    table = batches(window, limits=limits)
    count = len(table)
    if not count:
        batch = batch_at(file, place.position, end, limits)
        if batch is None or batch.last_offset >= offset:
            return True, place if batch is None else SegmentPosition(place.position, least_offset(batch))
        return False, SegmentPosition(place.position + batch.size_in_bytes, batch.next_offset)
    last = table[count - 1]
    if last.last_offset < offset:
        return False, SegmentPosition(place.position + last.position + last.size_in_bytes, last.next_offset)
    for batch in table:
        if batch.last_offset >= offset:
            return True, SegmentPosition(place.position + batch.position, least_offset(batch))
    raise AssertionError("the last batch reaches the offset")


def _walk_to_corruption(
    file: SegmentFile, place: SegmentPosition, end: int, offset: int, limits: DecodeLimits
) -> SegmentPosition:
    """Return the same, walking batch by batch. A batch that cannot be read is a valid result, too."""
    try:
        for batch in walk_headers(file, place.position, end, limits):
            if batch.last_offset >= offset:
                return SegmentPosition(batch.position, least_offset(batch))
            place = SegmentPosition(batch.position + batch.size_in_bytes, batch.next_offset)
    except DecodeError:
        return place
    return place


class _Entries:
    """An index file whose entries are read one by one. If each read is a request to a store, the whole file is read at
    once."""

    def __init__(self, file: SegmentFile, layout: struct.Struct) -> None:
        self._file = file
        self._layout = layout
        self.count = file.size() // layout.size
        self._data = None if file.storage is LOCAL else bytes(file.read(0, self.count * layout.size))

    def __getitem__(self, number: int) -> tuple[int, int]:
        size = self._layout.size
        if self._data is None:
            first, second = self._layout.unpack(self._file.read(number * size, size))
        else:
            first, second = self._layout.unpack_from(self._data, number * size)
        return first, second

    def last_below(self, key: int) -> int:
        """Return the number of the last entry whose first field is below `key`, or -1. Zeros follow the last entry."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            entry = self[middle]
            if entry == (0, 0) or entry[0] >= key:
                high = middle
            else:
                low = middle + 1
        return low - 1


def _indexed_start(segment: Segment, file: SegmentFile, offset: int, limits: DecodeLimits) -> SegmentPosition:
    """Return the batch of the last verified index entry at or below `offset`, or the start of the file."""
    base = segment.base_offset
    if base is None or offset <= base:
        return START
    try:
        with SegmentFile(segment.beside(".index"), segment.storage) as index:
            entries = _Entries(index, OFFSET_ENTRY)
            number = entries.last_below(offset - base + 1)
            while number >= 0:
                place = _proven(file, entries, number, base, offset, limits)
                if place is not None:
                    return place
                number = (number - 1) // 2
    except (OSError, DecodeError):
        return START  # no readable index, or it has become shorter meanwhile
    return START


def _proven(
    file: SegmentFile, entries: _Entries, number: int, base: int, offset: int, limits: DecodeLimits
) -> SegmentPosition | None:
    """Return the position of an index entry, if the log agrees with it."""
    relative, position = entries[number]
    before = entries[number - 1][1] if number else 0
    end = file.size()
    if not 0 <= before < position < end or relative < 0:
        return None
    try:
        batch = batch_at(file, position, end, limits)
        if batch is None or not base <= stored_offset(batch) <= min(base + relative, offset):
            return None
        if not has_plausible_fields(batch) or computed_crc(file, batch) != batch.crc:
            return None
        at, above = before, LOWEST_OFFSET
        for passed in walk_headers(file, before, position, limits):
            at, above = passed.position + passed.size_in_bytes, max(above, passed.last_offset)
    except DecodeError:
        return None
    return SegmentPosition(position, least_offset(batch)) if at == position and above < stored_offset(batch) else None


# Timestamps


def batches_from_timestamp(segment: Segment, timestamp: int, limits: DecodeLimits) -> Iterator[RecordBatch]:
    """Yield the batches in which to search the first record at or above a timestamp in ms. All earlier batches are
    below it.

    Raise IndexDisagreesError, possibly during the iteration, if this is not certain or takes too long.
    """
    place = _position_of_timestamp(segment, timestamp, limits)
    with segment.open() as file:
        end = file.size()
        behind = place.position
        for number, batch in enumerate(walk_headers(file, place.position, end, limits)):
            if number == MOST_BATCHES:
                raise IndexDisagreesError
            behind = batch.position + batch.size_in_bytes
            yield batch
        if behind != end:
            raise IndexDisagreesError  # a torn tail or corruption: the walk over all headers says which


def _position_of_timestamp(segment: Segment, timestamp: int, limits: DecodeLimits) -> SegmentPosition:
    if segment.base_offset is None:
        return START
    try:
        with SegmentFile(segment.beside(".timeindex"), segment.storage) as index:
            entries = _Entries(index, TIME_ENTRY)
            number = entries.last_below(timestamp)
            if number < 0:
                return START
            latest, relative = entries[number]
            before = entries[number - 1] if number else (LOWEST_OFFSET, -1)
    except (OSError, DecodeError):
        return START
    if not (before[0] < latest and before[1] < relative):
        raise IndexDisagreesError
    if number:
        _prove_time(segment, *before, limits)
    return _prove_time(segment, latest, relative, limits)


def _prove_time(segment: Segment, timestamp: int, relative: int, limits: DecodeLimits) -> SegmentPosition:
    """Return the position of the batch of a time index entry. Raise IndexDisagreesError if the batch does not agree
    with the entry."""
    offset = (segment.base_offset or 0) + relative
    place = position_of_offset(segment, offset, limits)
    with segment.open() as file:
        try:
            batch = batch_at(file, place.position, file.size(), limits)
        except DecodeError:
            raise IndexDisagreesError from None
        if batch is None or batch.max_timestamp != timestamp or not least_offset(batch) <= offset <= batch.last_offset:
            raise IndexDisagreesError
        if computed_crc(file, batch) != batch.crc:
            raise IndexDisagreesError
    return place


def find_by_index(segments: Sequence[Segment], timestamp: int, start: int, limits: DecodeLimits) -> int | None:
    """Return its offset, from `start` on, by the time indexes. Raise IndexDisagreesError if they are not conclusive."""
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else None
        if following is None or following > start:
            found = _first_in(batches_from_timestamp(segment, timestamp, limits), timestamp, start, check_crcs=True)
            if found is not None:
                return found
    return None


def find_by_walk(
    timeline: Timeline,
    timestamp: int,
    start: int,
    limits: DecodeLimits,
    *,
    check_crcs: bool,
    skip_corrupt: bool = False,
) -> int | None:
    """Return the same, from a walk over all headers. With `skip_corrupt`, skip batches that cannot be decoded."""
    for walked in timeline.segments:
        for part in walked.parts:
            if part.max_timestamp >= timestamp and part.next_offset > start:
                with walked.segment.open() as file:
                    headers = walk_headers(file, part.start, part.end, limits)
                    found = _first_in(headers, timestamp, start, check_crcs=check_crcs, skip_corrupt=skip_corrupt)
                if found is not None:
                    return found
    return None


def _first_in(
    batches: Iterable[RecordBatch], timestamp: int, start: int, *, check_crcs: bool, skip_corrupt: bool = False
) -> int | None:
    for batch in batches:
        if batch.max_timestamp < timestamp or batch.last_offset < start:
            continue
        columns = ("offset", "timestamp")
        try:
            decoded = batch.decode(
                columns=columns, control_records="include", check_crcs=check_crcs, start_offset=start
            )
        except DecodeError:
            if not skip_corrupt:
                raise
            continue
        for offset, found in zip(decoded.column("offset"), decoded.column("timestamp"), strict=True):
            if found >= timestamp:
                return int(offset)
    return None
