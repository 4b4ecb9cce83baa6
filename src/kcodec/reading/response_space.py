# SPDX-License-Identifier: Apache-2.0
"""The memory of a bounded read: `fetch_ahead_max_bytes` for all responses that are in flight or not taken yet."""

from __future__ import annotations

from collections import deque

from kcodec.flow import Flow, Signal, wait

#: After a response that exceeded its size, requests reserve more space. Each response then reduces it by 1/SHRINK.
SHRINK = 16


class ResponseSpace:
    """Space for responses, for which requests wait in line. One response of any size fits if there is no other one.

    large: Size that a response has declared that was larger than the requested size; 0 if there was none. Later
           requests reserve this size.
    """

    def __init__(self, most_bytes: int) -> None:
        self.large = 0
        self._most_bytes = most_bytes
        self._reserved = 0
        self._line: deque[tuple[int, Signal]] = deque()

    def take(self, size: int) -> Flow[None]:
        """Reserve this number of bytes. Wait until they are free, and until earlier requests have got theirs."""
        if not self._line and self._fits(size):
            self._reserved += size
            return
        turn = Signal()
        self._line.append((size, turn))
        yield from wait(turn)  # `give` has reserved it

    def give(self, size: int) -> None:
        """End a reservation."""
        self._reserved -= size
        while self._line and self._fits(self._line[0][0]):
            requested, turn = self._line.popleft()
            self._reserved += requested
            turn.set()

    def shrink(self, size: int, usual: int) -> None:
        """After a response of `size` bytes, let later requests reserve a little less, because large batches may be
        rare. `usual` is the requested size of records."""
        if self.large:
            self.large = max(self.large - max(self.large // SHRINK, 1), size)
            self.large = 0 if self.large <= usual else self.large

    def _fits(self, size: int) -> bool:
        return not self._reserved or self._reserved + size <= self._most_bytes
