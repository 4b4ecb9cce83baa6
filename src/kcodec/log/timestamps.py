# SPDX-License-Identifier: Apache-2.0
"""The first record at or above a timestamp, as ListOffsets answers (FileRecords.searchForTimestamp)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kcodec._fast import RecordBatch
from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.log.seek import batches_from_timestamp
from kcodec.log.segment import Segment, walk_headers
from kcodec.log.timeline import Timeline


def find_by_index(segments: Sequence[Segment], timestamp: int, start: int, limits: DecodeLimits) -> int | None:
    """Its offset, from `start` on, by the time indexes. IndexDisagreesError where they do not lead to a sure answer."""
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else None
        if following is None or following > start:
            found = _first_in(batches_from_timestamp(segment, timestamp, limits), timestamp, start, verify_crc=True)
            if found is not None:
                return found
    return None


def find_by_walk(
    timeline: Timeline,
    timestamp: int,
    start: int,
    limits: DecodeLimits,
    *,
    verify_crc: bool,
    skip_corrupt: bool = False,
) -> int | None:
    """The same, by what a walk over all headers noted. skip_corrupt: pass over batches that cannot be decoded."""
    for walked in timeline.segments:
        for part in walked.parts:
            if part.max_timestamp >= timestamp and part.next_offset > start:
                with walked.segment.open() as file:
                    headers = walk_headers(file, part.start, part.end, limits)
                    found = _first_in(headers, timestamp, start, verify_crc=verify_crc, skip_corrupt=skip_corrupt)
                if found is not None:
                    return found
    return None


def _first_in(
    batches: Iterable[RecordBatch], timestamp: int, start: int, *, verify_crc: bool, skip_corrupt: bool = False
) -> int | None:
    for batch in batches:
        if batch.max_timestamp < timestamp or batch.last_offset < start:
            continue
        columns = ("offset", "timestamp")
        try:
            decoded = batch.decode(
                columns=columns, control_records="include", verify_crc=verify_crc, start_offset=start
            )
        except DecodeError:
            if not skip_corrupt:
                raise
            continue
        for offset, found in zip(decoded.column("offset"), decoded.column("timestamp"), strict=True):
            if found >= timestamp:
                return int(offset)
    return None
