# SPDX-License-Identifier: Apache-2.0
"""The batches of a log as headers, read lazily."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcodec._fast import RecordBatch
from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.log.salvage import ResumePositions
from kcodec.log.seek import START, SegmentPosition
from kcodec.log.segment import LOWEST_OFFSET, Segment, computed_crc, stored_offset, tail_at_end, walk_headers


class Batches:
    """The batches of segments: an iterable that reads the headers again for each iteration.

    A batch has its path and position; its bytes are read when they are requested. A torn tail ends the iteration
    without an error. Raise DecodeError for an invalid header, for a base offset of an earlier segment that does not
    increase, and for an earlier segment that ends before a batch in its index. CRCs are checked by records() and
    ensure_valid() of a batch, and for the last batch of the active segment.

    start:  A batch boundary in the first segment.
    limits: DecodeLimits: bounds on the size of a batch.
    """

    def __init__(self, segments: Sequence[Segment], limits: DecodeLimits, *, start: SegmentPosition = START) -> None:
        self._segments = tuple(segments)
        self._limits = limits
        self._start = start

    def __iter__(self) -> Iterator[RecordBatch]:
        above = LOWEST_OFFSET
        for number, segment in enumerate(self._segments):
            for batch in _walk(segment, 0 if number else self._start.position, above, self._limits):
                base_offset = stored_offset(batch)
                if not segment.is_active and base_offset <= above:
                    raise DecodeError(
                        f"base_offset {base_offset} is not above {above}, the last offset before it",
                        position=batch.position,
                        base_offset=base_offset,
                        path=segment.path,
                    )
                above = max(above, batch.last_offset)
                yield batch

    def __repr__(self) -> str:
        return f"<Batches of {len(self._segments)} segments>"


def _walk(segment: Segment, position: int, above: int, limits: DecodeLimits) -> Iterator[RecordBatch]:
    """Yield the batches of one segment from `position`. The last batch is held back until it is known whether it is
    torn."""
    held: RecordBatch | None = None
    failure: DecodeError | None = None
    with segment.open() as file:
        end = file.size()
        headers = walk_headers(file, position, end, limits)
        while True:
            try:
                batch = next(headers, None)
            except DecodeError as error:
                failure = error
                break
            if batch is None:
                break
            if held is not None:
                yield held
            held, position, above = batch, batch.position + batch.size_in_bytes, max(above, batch.last_offset)
        corruption: DecodeError | None = None
        try:
            tail_at_end(file, position, end, above, limits, is_active=segment.is_active, refused=failure)
            if not segment.is_active:
                ResumePositions(file, limits).ensure_complete(end, above)
        except DecodeError as error:
            corruption = error
        is_certain = corruption is not None or not segment.is_active
        if held is not None and (is_certain or computed_crc(file, held) == held.crc):
            yield held
        if corruption is not None:
            raise corruption
