# SPDX-License-Identifier: Apache-2.0
"""Ranges of segments at batch boundaries, which can be read independently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kcodec.arguments import refuse_misspelled, take_renamed
from kcodec.limits import DecodeLimits
from kcodec.log.chunks import ByteRange, Chunks, StreamOptions
from kcodec.log.salvage import Loss, ResumePositions
from kcodec.log.segment import Segment, walk_headers
from kcodec.log.storage import LOCAL, Storage
from kcodec.log.timeline import RANGE_BYTES, Verdict, WalkedRange, WalkedSegment, parts_reaching

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
    below_offset:  Base offset of the next segment; None in the last segment.
    tail:          Of the last split, the loss of the torn tail after it; None without one.
    """

    path: str
    start_position: int
    end_position: int
    first_offset: int
    next_offset: int
    max_timestamp: int
    is_active: bool
    storage: Storage = field(default=LOCAL, repr=False)
    below_offset: int | None = None
    tail: Loss | None = None

    @property
    def size_in_bytes(self) -> int:
        """Number of bytes of the range."""
        return self.end_position - self.start_position

    @property
    def byte_range(self) -> ByteRange:
        """The range in the form for Chunks. If the file was replaced, it is read as it is."""
        start, end = self.start_position, self.end_position
        rising = not self.is_active
        return ByteRange(self.path, start, end, self.first_offset, rising, self.storage, self.below_offset)


def cut_segments(
    segments: Sequence[WalkedSegment],
    max_bytes: int,
    limits: DecodeLimits | None,
    start_offset: int,
    end_offset: int | None,
) -> Iterator[Split]:
    """Yield the segments of a log in ranges of at most max_bytes. A larger batch is a separate range. Leave out ranges
    that are outside [start_offset, end_offset).

    limits: DecodeLimits for another walk over the headers, if max_bytes requires smaller ranges than those of the first
            walk.
    """
    for walked, following in zip(segments, [*segments[1:], None], strict=True):
        below = None if following is None else following.segment.base_offset
        if below is not None and below <= start_offset:
            continue
        if end_offset is not None and (walked.segment.base_offset or 0) >= end_offset:
            return
        for part in _joined(_parts(walked, max_bytes, limits, start_offset), max_bytes):
            if end_offset is None or part.first_offset < end_offset:
                segment = walked.segment
                yield Split(segment.path, *part, segment.is_active, segment.storage, below)


def _parts(
    walked: WalkedSegment, max_bytes: int, limits: DecodeLimits | None, start_offset: int
) -> Iterator[WalkedRange]:
    parts = parts_reaching(walked.parts, start_offset)
    if limits is None or max_bytes >= FINE_BELOW:
        return parts
    fine = (batch for part in parts for batch in _batches_of(walked.segment, part, limits))
    return parts_reaching(fine, start_offset)


def _joined(parts: Iterable[WalkedRange], max_bytes: int) -> Iterator[WalkedRange]:
    """Join adjacent ranges up to max_bytes. A corrupt range is always joined with the range after it, because the
    batches there show which base offsets are wrong."""
    joined: WalkedRange | None = None
    is_corrupt = False  # whether the last range is
    for part in parts:
        if (
            joined is not None
            and part.start == joined.end
            and (is_corrupt or part.end - joined.start <= max_bytes or part.start == part.end)
        ):
            latest = max(joined.max_timestamp, part.max_timestamp)
            joined = WalkedRange(joined.start, part.end, joined.first_offset, part.next_offset, latest)
        else:
            if joined is not None:
                yield joined
            joined = part
        is_corrupt = part.is_corrupt
    if joined is not None:
        yield joined


def _batches_of(segment: Segment, part: WalkedRange, limits: DecodeLimits) -> Iterator[WalkedRange]:
    """Yield the batches of a range. A range without a batch (corruption that was skipped) is yielded unchanged."""
    if part.is_corrupt:
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
    microseconds, NULL if a record has no headers, nullable columns). Only the file of the range is opened. With
    on_error="skip", the last split of a log lists a torn tail among its losses, as the other readers do.
    """
    take_renamed(options, "verify_crc", "check_crcs")
    known = [option.name for option in fields(StreamOptions)]
    for name in options.keys() - known:
        refuse_misspelled(name, known, "read_split()")
    checked = StreamOptions(**options)
    return Chunks([split.byte_range], verdict, checked, tail_loss=tail_between(split.tail, checked))


def tail_between(tail: Loss | None, options: StreamOptions) -> Loss | None:
    """Return the loss of a torn tail as a reader with these options lists it; None if it does not list it."""
    if tail is None or options.on_error != "skip":
        return None
    if options.end_offset is not None and options.end_offset <= tail.first_offset:
        return None
    return replace(tail, first_offset=max(tail.first_offset, options.start_offset or 0))
