# SPDX-License-Identifier: Apache-2.0
"""The broker's clock. Every time in the broker comes from it, so that a test can move the time.

The clock follows the clock of the machine, or does not move by itself (`is_manual`). `advance` moves it forward in both
cases. Timers run in the order of their times, and during each of them, the clock shows the time of the timer. If a test
moves the clock by an hour, everything that would happen in this hour happens, in the right order.

If the clock of the machine is set, the timers do not move with it: they follow `time.monotonic`, as Kafka's timers do.

Some requests contain the maximum time that the client waits, such as the long poll of Fetch. The client's time passes
even if the broker's clock does not move, so these waits also end by the clock of the machine (`in_real_time`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from kcodec.integers import shown

_log = logging.getLogger(__name__)
#: The longest time that one call of `advance` moves: 366 days. Every timer on the way runs.
MAX_ADVANCE_MS = 366 * 86_400_000


class Timer:
    """A callback that runs at a time. `cancel` may be called at any time, even after the callback has run.

    due_ms: Time of the callback, by the timers' clock.
    """

    __slots__ = ("callback", "due_ms")

    def __init__(self, due_ms: float, callback: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not run the callback."""
        self.callback = None

    @property
    def is_pending(self) -> bool:
        """Whether the callback has neither run nor been cancelled."""
        return self.callback is not None


class Clock:
    """Milliseconds since 1970, and timers.

    is_manual: Whether time passes only by `advance`.
    start_ms:  Time at which a manual clock starts; by default the time of the machine.
    on_timer:  Called after a timer has been added, so that the event loop computes its next wake-up again.
    """

    def __init__(self, *, is_manual: bool = False, start_ms: int | None = None) -> None:
        self.is_manual = is_manual
        self._fixed_ms: float = time.time() * 1000 if start_ms is None else start_ms
        self._ahead_ms: float = 0
        self._timers: list[tuple[float, int, Timer]] = []
        #: Timers of a manual clock that also run by the clock of the machine.
        self._real_timers: list[tuple[float, int, Timer]] = []
        self._number = count()
        self.on_timer: Callable[[], None] = lambda: None

    def _now(self) -> float:
        return (self._fixed_ms if self.is_manual else time.time() * 1000) + self._ahead_ms

    def _timer_now(self) -> float:
        """Return the time by which timers run. It also moves with `advance`."""
        return (self._fixed_ms if self.is_manual else time.monotonic() * 1000) + self._ahead_ms

    def timer_ms(self) -> int:
        """Return the time by which timers run in ms, for durations that do not change if the clock is set."""
        return int(self._timer_now())

    def now_ms(self) -> int:
        """Return the time in ms."""
        return int(self._now())

    def restarted(self) -> Clock:
        """Return a clock that shows the same time and has no timers, for the next start of the broker."""
        found = Clock(is_manual=self.is_manual)
        found._fixed_ms, found._ahead_ms = self._fixed_ms, self._ahead_ms
        return found

    def not_before(self, ms: int) -> bool:
        """Move the time forward to `ms` if it is earlier, and return whether it was. There must be no timers yet."""
        behind = ms - self._now()
        self._ahead_ms += max(behind, 0)
        return behind > 0

    def call_later(self, delay_ms: float, callback: Callable[[], None], *, in_real_time: bool = False) -> Timer:
        """Run `callback` after `delay_ms`, or after the present request if that is 0. Return the Timer, which can
        cancel it.

        in_real_time: Whether the callback runs at the latest after `delay_ms` by the clock of the machine.
        """
        timer = Timer(self._timer_now() + max(delay_ms, 0), callback)
        heappush(self._timers, (timer.due_ms, next(self._number), timer))
        if in_real_time and self.is_manual:
            heappush(self._real_timers, (time.monotonic() * 1000 + delay_ms, next(self._number), timer))
        self.on_timer()
        return timer

    def run_due(self) -> None:
        """Run the timers whose time has come."""
        while self._timers and self._timers[0][0] <= self._timer_now():
            _run(heappop(self._timers)[2])

    def run_in_real_time(self) -> None:
        """Run the timers of a manual clock that are due by the clock of the machine."""
        while self._real_timers and self._real_timers[0][0] <= time.monotonic() * 1000:
            _run(heappop(self._real_timers)[2])

    def next_delay_ms(self) -> float | None:
        """Return the time until the next timer: 0 if it is due, None if no timer exists. For a manual clock, return the
        time until the next timer that also runs by the clock of the machine."""
        for timers in (self._timers, self._real_timers):
            while timers and not timers[0][2].is_pending:
                heappop(timers)
        delays = []
        if self._timers:
            delay = self._timers[0][0] - self._timer_now()
            if delay <= 0 or not self.is_manual:
                delays.append(delay)
        if self._real_timers:
            delays.append(self._real_timers[0][0] - time.monotonic() * 1000)
        return max(min(delays), 0) if delays else None

    def advance(self, ms: float) -> None:
        """Move the time forward by `ms`. Each timer that becomes due runs at its own time. Raise ValueError if `ms` is
        negative or greater than MAX_ADVANCE_MS."""
        if not ms >= 0:
            raise ValueError(f"a clock cannot go back: advance({ms})")
        if ms > MAX_ADVANCE_MS:
            raise ValueError(
                f"ms must be at most {MAX_ADVANCE_MS} (366 days), got {shown(ms)}; call advance() again to move further"
            )
        target = self._ahead_ms + ms
        while self._timers:
            step = self._timers[0][0] - self._timer_now()
            if self._ahead_ms + step > target:
                break
            self._ahead_ms = max(self._ahead_ms, self._ahead_ms + step)
            _run(heappop(self._timers)[2])
        self._ahead_ms = max(self._ahead_ms, target)
        self.on_timer()


def _run(timer: Timer) -> None:
    callback, timer.callback = timer.callback, None
    if callback is not None:
        try:
            callback()
        except Exception:  # noqa: BLE001  a defect of one timer, or a full disk: the others still run
            _log.exception("a timer of the broker failed")
