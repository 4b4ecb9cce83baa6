# SPDX-License-Identifier: Apache-2.0
"""The segments of a directory in which the log cleaner is replacing segments, or was replacing them when the broker
failed.

The log cleaner replaces a group of segments in four steps:

1. It writes the new segments as ``.cleaned`` files.
2. It renames them to ``.swap``, from the highest base offset to the lowest.
3. It renames the old segments to ``.deleted``.
4. It removes the suffix ``.swap``, from the lowest base offset to the highest.

If the broker fails during these steps, not every file of the directory is a segment. This module determines the
segments that a broker has after it starts with such a directory (Kafka: LogLoader). It renames and deletes nothing:

- ``.cleaned`` and ``.deleted`` files are ignored.
- A ``.swap`` file at or above the lowest ``.cleaned`` file is ignored, because step 2 was not complete.
- Every other ``.swap`` file is a segment. Old segments between the start of the lowest and the end of the highest of
  these files are ignored.

A listing does not show whether a ``.swap`` file belongs to a running broker, which renames it after a moment, or was
left by a broker that failed. A reader that follows a log therefore begins with the segments that a broker has after its
start. If a replacement begins later, the reader waits for its end. If it has not ended after SWAP_LOOKS listings, the
reader determines the segments in the same way again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import NamedTuple

from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.log.segment import SEGMENT_NAME, Segment, overlap, walk_headers
from kcodec.log.storage import Entry, FileVersion, LocalStorage, Storage

CLEANED_NAME = re.compile(r"(\d{20})\..+\.cleaned")
SWAP_NAME = re.compile(r"(\d{20})\.log\.swap")

# Number of listings in a row after which a .swap file is considered to be left by a broker that failed.
SWAP_LOOKS = 10
# Maximum number of listings, and the pause between two of them, until two listings in a row have the same segments.
STABILITY_LOOKS = 100
STABILITY_SECONDS = 0.01


class SegmentName(NamedTuple):
    """A segment by its base offset, and the name of its file."""

    base_offset: int
    name: str


def has_segments(entries: Iterable[Entry]) -> bool:
    """Return whether any file of a directory is a segment or a ``.swap`` file, which may become one."""
    files = (entry.name for entry in entries if not entry.is_directory)
    return any(SEGMENT_NAME.fullmatch(name) or SWAP_NAME.fullmatch(name) for name in files)


def _files(storage: Storage, directory: str) -> list[str]:
    return [entry.name for entry in storage.list(directory) if not entry.is_directory]


def segments_at_start(storage: Storage, directory: str, limits: DecodeLimits) -> list[SegmentName]:
    """Return the segments that a broker has after its start, in order.

    Headers are read only if a ``.swap`` exists. Raise DecodeError if a header cannot be read, or if the offsets of the
    segments overlap.
    """
    files = _files(storage, directory)
    segments, swaps = _named(SEGMENT_NAME, files), _named(SWAP_NAME, files)
    least_cleaned = min((base for base, _ in _named(CLEANED_NAME, files)), default=None)
    if least_cleaned is not None:
        swaps = [swap for swap in swaps if swap.base_offset < least_cleaned]
    if not swaps:
        return segments
    start = swaps[0].base_offset
    ends = {swap: _next_offset(storage, directory, swap, limits) for swap in swaps}
    end = max(ends.values())
    replacing = {swap.base_offset for swap in swaps}
    kept = (one for one in segments if one.base_offset not in replacing and not start <= one.base_offset < end)
    found = sorted([*kept, *swaps])
    for before, behind in pairwise(found):
        if before in ends or behind in ends:
            reach = ends[before] if before in ends else _next_offset(storage, directory, before, limits)
            if reach > behind.base_offset:
                reason = overlap(before.name, reach - 1, behind.base_offset)
                raise DecodeError(reason, path=storage.join(directory, behind.name))
    return found


def listed_segments(storage: Storage, directory: str, limits: DecodeLimits) -> list[Segment]:
    """Return the segments of `segments_at_start`, with the versions that their files have at one time. If files are
    replaced all the time, return the segments without versions, which are read as they are."""
    looks = 0
    while True:
        before = _versions(storage, directory)
        looks += 1
        try:
            found = segments_at_start(storage, directory, limits)
        except FileNotFoundError:  # a .swap file was renamed after it was listed
            if looks == STABILITY_LOOKS:
                raise
            time.sleep(STABILITY_SECONDS)
            continue
        versions = _versions(storage, directory) if before else before
        if all(_are_same(before.get(name), versions.get(name)) for _, name in found):
            break
        if looks == STABILITY_LOOKS:
            versions = {}
            break
    return [
        Segment(storage.join(directory, name), base, base == found[-1].base_offset, storage, versions.get(name))
        for base, name in found
    ]


def _versions(storage: Storage, directory: str) -> dict[str, FileVersion]:
    """Return the versions of the files in a local directory. Other storages do not report them."""
    if not isinstance(storage, LocalStorage):
        return {}
    return {entry.name: entry.version for entry in storage.list(directory) if entry.version is not None}


def _are_same(before: FileVersion | None, after: FileVersion | None) -> bool:
    """Return whether a file is the same one in two listings. The active segment may grow."""
    if before is None or after is None:
        return before is after
    return not before.is_replaced_by(after)


def stable_segments(storage: Storage, directory: str, limits: DecodeLimits) -> list[Segment]:
    """Return the segments of a directory in which the cleaner is replacing some, when it has replaced them. If it does
    not finish in time, return the segments that a broker has after its start."""
    found: list[Segment] | None = None
    for _ in range(STABILITY_LOOKS):
        before, found = found, None
        if not any(SWAP_NAME.fullmatch(name) for name in _files(storage, directory)):
            found = listed_segments(storage, directory, limits)
            if before is not None and _agree(before, found):
                return found
        time.sleep(STABILITY_SECONDS)
    return listed_segments(storage, directory, limits)


def _agree(before: list[Segment], after: list[Segment]) -> bool:
    """Return whether two listings have the same files."""
    pairs = zip(before, after, strict=False)
    return before == after and all(_are_same(one.version, other.version) for one, other in pairs)


def _named(pattern: re.Pattern[str], files: list[str]) -> list[SegmentName]:
    matches = (pattern.fullmatch(name) for name in files)
    return sorted(SegmentName(int(match[1]), match[0]) for match in matches if match)


def _next_offset(storage: Storage, directory: str, named: SegmentName, limits: DecodeLimits) -> int:
    """Return the offset after the last complete batch of a segment (LogSegment.readNextOffset), or its base offset if
    it has none."""
    segment = Segment(storage.join(directory, named.name), named.base_offset, False, storage)
    behind = named.base_offset
    with segment.open() as file:
        for batch in walk_headers(file, 0, file.size(), limits):
            behind = batch.next_offset
    return behind


class Swaps:
    """Determines which files of a directory are its segments while the cleaner replaces some of them.

    is_alone:    Whether only one file is followed, so that no ``.swap`` file is read.
    is_swapping: Whether segments may be missing in the last listing because they are being replaced.
    """

    # _adopted: the .swap files that are read as segments; _replaced: the segments that they replace; _leftovers: the
    # .swap and .cleaned files when this was determined; _looks: the number of listings in a row during a replacement.

    def __init__(self, storage: Storage, directory: str, limits: DecodeLimits, *, is_alone: bool) -> None:
        self.is_swapping = False
        self._storage = storage
        self._directory = directory
        self._limits = limits
        self._is_alone = is_alone
        self._adopted: frozenset[str] = frozenset()
        self._replaced: frozenset[str] = frozenset()
        self._leftovers: frozenset[str] | None = None
        self._looks = 0

    def segments(self, listed: Collection[str]) -> list[SegmentName]:
        """Return the segments among the names of a listing, in order. Set `is_swapping`.

        Raise DecodeError if a ``.swap`` file that was left behind is corrupt.
        """
        names = frozenset(listed)
        leftovers = frozenset(name for name in names if SWAP_NAME.fullmatch(name) or CLEANED_NAME.fullmatch(name))
        if self._leftovers is None or self._looks >= SWAP_LOOKS:
            self._begin(names, leftovers)
        if not self._adopted <= names:
            # A broker renames all replaced segments to .deleted before it renames the first .swap file.
            self._adopted, self._replaced = self._adopted & names, frozenset()
        is_pending = any(SWAP_NAME.fullmatch(name) for name in leftovers - self._adopted)
        self.is_swapping = is_pending and leftovers != self._leftovers
        found = {int(match[1]): match[0] for match in map(SEGMENT_NAME.fullmatch, names - self._replaced) if match}
        found |= {int(match[1]): match[0] for match in map(SWAP_NAME.fullmatch, self._adopted) if match}
        return [SegmentName(base, name) for base, name in sorted(found.items())]

    def wait(self) -> None:
        """Note that the reader waits for the end of a replacement."""
        self._looks = self._looks + 1 if self.is_swapping else 0

    def _begin(self, names: frozenset[str], leftovers: frozenset[str]) -> None:
        """Determine the segments that a broker has if it starts with these files."""
        adopted: frozenset[str] = frozenset()
        replaced: frozenset[str] = frozenset()
        if not self._is_alone and any(map(SWAP_NAME.fullmatch, leftovers)):
            try:
                found = {name for _, name in segments_at_start(self._storage, self._directory, self._limits)}
            except FileNotFoundError:
                return  # renamed since the listing
            adopted = frozenset(filter(SWAP_NAME.fullmatch, found))
            if adopted:
                replaced = frozenset(filter(SEGMENT_NAME.fullmatch, names)) - found
        self._adopted, self._replaced, self._leftovers, self._looks = adopted, replaced, leftovers, 0
