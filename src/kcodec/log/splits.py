# SPDX-License-Identifier: Apache-2.0
"""Ranges of segments at batch boundaries, which can be read independently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from kcodec.arguments import refuse_misspelled, take_renamed
from kcodec.limits import DecodeLimits
from kcodec.log.chunks import ByteRange, Chunks, StreamOptions
from kcodec.log.salvage import ResumePositions
from kcodec.log.segment import Segment, walk_headers
from kcodec.log.storage import LOCAL, Storage
from kcodec.log.timeline import RANGE_BYTES, Verdict, WalkedRange, WalkedSegment

DEFAULT_SPLIT_BYTES = 128 << 20
# Below this size, the ranges of the walk are too large, and the headers are walked again.
FINE_BELOW = 8 * RANGE_BYTES


@dataclass(frozen=True)
class Split:
    """Bytes [start_position, end_position) of a segment, both at batch boundaries. It can be pickled.

    first_offset:  Position of a consumer that has read all data before.
    next_offset:   Offset after its last batch.
    max_timestamp: Largest timestamp of its batches in ms; -1 without batches.
    is_active:     Whether it belongs to the active segment, whose torn tail is left out.
    storage:       The storage of its path.
    """

    path: str
    start_position: int
    end_position: int
    first_offset: int
    next_offset: int
    max_timestamp: int
    is_active: bool
    storage: Storage = field(default=LOCAL, repr=False)

    @property
    def size_in_bytes(self) -> int:
        """Number of bytes of the range."""
        return self.end_position - self.start_position

    @property
    def byte_range(self) -> ByteRange:
        """The range in the form for Chunks."""
        start, end = self.start_position, self.end_position
        return ByteRange(self.path, start, end, self.first_offset, not self.is_active, self.storage)


def cut_segment(walked: WalkedSegment, max_bytes: int, limits: DecodeLimits | None) -> Iterator[Split]:
    """Yield one segment in ranges of at most max_bytes. A larger batch is a separate range.

    limits: DecodeLimits for another walk over the headers, if max_bytes requires smaller ranges than those of the first
            walk.
    """
    parts: Iterable[WalkedRange] = walked.parts
    if limits is not None and max_bytes < FINE_BELOW:
        parts = (fine for part in walked.parts for fine in _batches_of(walked.segment, part, limits))
    joined: WalkedRange | None = None
    for part in parts:
        if joined is not None and part.end - joined.start <= max_bytes:
            latest = max(joined.max_timestamp, part.max_timestamp)
            joined = WalkedRange(joined.start, part.end, joined.first_offset, part.next_offset, latest)
            continue
        if joined is not None:
            yield _split(walked.segment, joined)
        joined = part
    if joined is not None:
        yield _split(walked.segment, joined)


def _split(segment: Segment, part: WalkedRange) -> Split:
    return Split(segment.path, *part, is_active=segment.is_active, storage=segment.storage)


def _batches_of(segment: Segment, part: WalkedRange, limits: DecodeLimits) -> Iterator[WalkedRange]:
    """Yield the batches of a range. A range without a batch (corruption that was skipped) is yielded unchanged."""
    if part.first_offset == part.next_offset:
        yield part
        return
    position = part.first_offset
    with segment.open() as file:
        for batch in walk_headers(file, part.start, part.end, limits):
            first, position = position, max(position, batch.next_offset)
            yield WalkedRange(
                batch.position, batch.position + batch.size_in_bytes, first, position, batch.max_timestamp
            )


def cut_by_index(
    segment: Segment, below_offset: int | None, max_bytes: int, limits: DecodeLimits
) -> Iterator[tuple[ByteRange, int]]:
    """Yield a segment in ranges of about max_bytes, each with its size, divided at positions that its index confirms.

    This is for a segment that may be corrupt. It needs no walk over headers, which would not be reliable. Without an
    index, the segment is one range.

    below_offset: Begin of the next segment; None after the last one.
    """
    rising = not segment.is_active
    with segment.open() as file:
        size, positions = file.size(), ResumePositions(file, limits)
        start, first = 0, segment.base_offset or 0
        while size - start > max_bytes:
            batch = positions.cut(start + max_bytes - 1, size)
            if batch is None:
                break
            end, below = batch.position, batch.base_offset
            yield ByteRange(segment.path, start, end, first, True, segment.storage, below), end - start
            start, first = end, below
        last = size if rising else None
        yield ByteRange(segment.path, start, last, first, rising, segment.storage, below_offset), size - start


def read_split(split: Split, verdict: Verdict, **options: Any) -> Chunks:
    """Yield the records of a split, for example in another process. `verdict` is the Verdict of its partition.

    options: Those of ``Log.to_arrow``, and check_crcs, limits, topic, partition, spark_layout (timestamps in
    microseconds, NULL if a record has no headers, nullable columns). Only the file of the range is opened.
    """
    take_renamed(options, "verify_crc", "check_crcs")
    known = [option.name for option in fields(StreamOptions)]
    for name in options.keys() - known:
        refuse_misspelled(name, known, "read_split()")
    return Chunks([split.byte_range], verdict, StreamOptions(**options))
