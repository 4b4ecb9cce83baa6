# SPDX-License-Identifier: Apache-2.0
"""A lock for flows of one scheduler, for steps that must not interleave although they wait for I/O."""

from __future__ import annotations

from kcodec.flow import Clock, Flow, Signal, wait


class FlowLock:
    """A lock that one flow at a time holds. Release it in a `finally`, which also runs in a cancelled flow.

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
        """Wait until the lock is free, and take it. Return False if that takes longer than `timeout` seconds."""
        deadline = None if timeout is None else self._clock() + timeout
        while self.is_held:
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return False
            yield from wait(self._released, left)
        self.is_held = True
        return True

    def release(self) -> None:
        """Release the lock and wake the flows that wait for it."""
        self.is_held = False
        self._released.set()
