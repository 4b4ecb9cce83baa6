# SPDX-License-Identifier: Apache-2.0
"""The ``.swap`` files of the log cleaner in a directory that is followed.

A running broker renames a ``.swap`` file after a moment. A broker that dies leaves it behind until it starts again.
Both look the same in a listing. A reader therefore begins with the segments that a broker has after its start. It waits
for the end of a later replacement, but only for SWAP_LOOKS looks, and then begins with such segments again.
"""

from __future__ import annotations

from collections.abc import Collection

from kcodec.limits import DecodeLimits
from kcodec.log.opening import CLEANED_NAME, SWAP_NAME, SegmentName, segments_at_start
from kcodec.log.segment import SEGMENT_NAME
from kcodec.log.storage import Storage

# Number of looks at the directory after which a .swap file counts as left behind.
SWAP_LOOKS = 10


class Swaps:
    """Determines which files of a directory are its segments while the cleaner replaces some of them.

    is_alone:    Whether only one file is followed, so that no ``.swap`` file is read.
    is_swapping: Whether segments may be missing in the last listing because they are being replaced.
    """

    # _adopted: the .swap files that are segments; _replaced: the segments that they replace; _leftovers: the files of
    # the cleaner when this was determined; _looks: the number of looks in a row that found another replacement.

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
            # A broker removes all segments that are replaced before it renames the first .swap file.
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
