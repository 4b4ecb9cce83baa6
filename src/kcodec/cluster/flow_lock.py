# SPDX-License-Identifier: Apache-2.0
"""A lock for flows of one scheduler: what must not interleave although it waits in between."""

from __future__ import annotations

from kcodec.flow import Clock, Flow, Signal, wait


class FlowLock:
    """Held by one flow at a time. Release it in a `finally`: a cancelled flow runs that too.

    if not (yield from lock.acquire(timeout)):
        ...  # too late
    try:
        ...
    finally:
        lock.release()
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._released = Signal()
        self.is_held = False

    def acquire(self, timeout: float | None = None) -> Flow[bool]:
        """Wait until nobody holds it, and hold it. False if that took longer than `timeout` seconds."""
        deadline = None if timeout is None else self._clock() + timeout
        while self.is_held:
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return False
            yield from wait(self._released, left)
        self.is_held = True
        return True

    def release(self) -> None:
        """Let the next one through."""
        self.is_held = False
        self._released.set()
