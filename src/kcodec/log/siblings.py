# SPDX-License-Identifier: Apache-2.0
"""Which files of a partition directory are its segments, where a cleaner was at work when its broker died.

The cleaner writes new segments as ``.cleaned``, renames them all to ``.swap``, from the highest base offset down,
renames the segments they replace to ``.deleted``, and takes the ``.swap`` off, from the lowest up. What a broker makes
of such a directory when it starts (LogLoader) is what is read here; nothing is renamed or deleted:

- ``.cleaned`` and ``.deleted`` are not there;
- a ``.swap`` at or above the lowest ``.cleaned`` is not there: not all of its siblings had got so far;
- any other ``.swap`` is a segment, and what lies from the lowest of them to the end of the highest is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.log.segment import SEGMENT_NAME, Segment, walk_headers
from kcodec.log.storage import Entry, Storage

CLEANED_NAME = re.compile(r"(\d{20})\..+\.cleaned")
SWAP_NAME = re.compile(r"(\d{20})\.log\.swap")


class SegmentName(NamedTuple):
    """A segment by its base offset, and the name of its file."""

    base_offset: int
    name: str


def has_segments(entries: Iterable[Entry]) -> bool:
    """Whether any file of a directory is a segment, or about to become one."""
    files = (entry.name for entry in entries if not entry.is_directory)
    return any(SEGMENT_NAME.fullmatch(name) or SWAP_NAME.fullmatch(name) for name in files)


def segment_names(storage: Storage, directory: str) -> list[SegmentName]:
    """Every ``.log`` file of a directory, in order, whatever lies beside it."""
    files = [entry.name for entry in storage.list(directory) if not entry.is_directory]
    return sorted(_named(SEGMENT_NAME, files))


def segments_at_start(storage: Storage, directory: str, limits: DecodeLimits) -> list[SegmentName]:
    """The segments that a broker has once it has started, in order.

    Only where a ``.swap`` lies there are headers read. DecodeError where one cannot be read, and where the offsets of
    what is left overlap.
    """
    files = [entry.name for entry in storage.list(directory) if not entry.is_directory]
    segments, swaps = sorted(_named(SEGMENT_NAME, files)), sorted(_named(SWAP_NAME, files))
    least_cleaned = min((base for base, _ in _named(CLEANED_NAME, files)), default=None)
    if least_cleaned is not None:
        swaps = [swap for swap in swaps if swap.base_offset < least_cleaned]
    if not swaps:
        return segments
    start = swaps[0].base_offset
    ends = {swap: _next_offset(storage, directory, swap, limits) for swap in swaps}
    end = max(ends.values())
    replacing = {swap.base_offset for swap in swaps}
    kept = [
        segment
        for segment in segments
        if segment.base_offset not in replacing and not start <= segment.base_offset < end
    ]
    found = sorted([*kept, *swaps])
    for before, behind in pairwise(found):
        if before in ends or behind in ends:
            reach = ends[before] if before in ends else _next_offset(storage, directory, before, limits)
            if reach > behind.base_offset:
                reason = overlap(before.name, reach - 1, behind.base_offset)
                raise DecodeError(reason, path=_path(storage, directory, behind))
    return found


def overlap(name: str, last_offset: int, base_offset: int) -> str:
    """What is wrong with a segment that begins before another ends."""
    return (
        f"the segment begins at offset {base_offset}, but {name} before it reaches offset {last_offset}: their offsets "
        "overlap, so one of them is no part of this log; open the other files one by one to see which"
    )


def _base_of(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None


def _named(pattern: re.Pattern[str], files: list[str]) -> list[SegmentName]:
    found = ((_base_of(pattern, name), name) for name in files)
    return [SegmentName(base, name) for base, name in found if base is not None]


def _path(storage: Storage, directory: str, segment: SegmentName) -> str:
    return storage.join(directory, segment.name)


def _next_offset(storage: Storage, directory: str, named: SegmentName, limits: DecodeLimits) -> int:
    """Behind the last whole batch of a segment (LogSegment.readNextOffset); its base offset if it has none."""
    segment = Segment(_path(storage, directory, named), named.base_offset, False, storage)
    behind = named.base_offset
    with segment.open() as file:
        for batch in walk_headers(file, 0, file.size(), limits):
            behind = batch.next_offset
    return behind
