# SPDX-License-Identifier: Apache-2.0
"""Polls of the application as the loop sees them: who waits in one, and who waits for the next.

A rebalance takes partitions away while the application polls, never while it works on what it polled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kcodec.consumer.callbacks import Notice
from kcodec.flow import Flow, Signal, Task, sleep, wait

if TYPE_CHECKING:
    from kcodec.consumer.core import ConsumerCore

T = TypeVar("T")


class Polls:
    """Of one consumer. is_wanted: somebody waits for the next one."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self.is_wanted = False
        self._began = Signal()
        self._count = 0
        self._polled_at = core.clock()

    def note(self) -> None:
        """Any thread: the application polls."""
        self._polled_at = self._core.clock()

    def polled_within(self, seconds: float) -> bool:
        """Return whether the application polls now, or did so within the last `seconds`."""
        return self._count > 0 or self._core.clock() - self._polled_at < seconds

    def wait_for_work(self, timeout: float) -> Flow[Notice | None]:
        """Part of a poll: ends with a notice that is to be told, or None when there may be something to take, or time
        is over. Raises what the group or the loop met."""
        core = self._core
        deadline = core.clock() + timeout
        self._count += 1
        self._began.set()
        try:
            if self.is_wanted:
                yield from sleep(0)  # who waited for this poll goes on first
            while True:
                core.raise_errors()
                if core.notices.waiting:
                    return core.notices.waiting[0]
                left = deadline - core.clock()
                if core.fetcher.has_ready or left <= 0:
                    return None
                # A poll that waits for longer than max_poll_interval is a poll all the time.
                yield from wait(core.wake, min(left, core.settings.max_poll_interval / 2))
                core.note_poll()
        finally:
            core.note_poll()
            self._count -= 1

    def until_polled(self) -> Flow[None]:
        """Ends while the application polls: it is not at work on records then."""
        if self._count:
            return
        self.is_wanted = True
        self._core.assignment.interrupt()
        try:
            while not self._count:
                yield from wait(self._began)
        finally:
            self.is_wanted = False

    def with_notices(self, task: Task[T]) -> Flow[Notice | None]:
        """While a call runs that may have something to tell: the next notice, None once the call has ended."""
        core = self._core
        task.when_done(lambda ended: core.wake.set())
        self._count += 1
        self._began.set()
        try:
            while not task.done:
                if core.notices.waiting:
                    return core.notices.waiting[0]
                yield from wait(core.wake)
            return None
        finally:
            self._count -= 1
