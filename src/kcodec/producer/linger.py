# SPDX-License-Identifier: Apache-2.0
"""How long records wait for others of their batch, if that is not `linger_ms`.

Each batch costs a client some 50 us of processor time, however few records it has. With keys over 1,500 partitions, the
records of 5 ms are one or two in each partition. Their batches take longer to send than 5 ms, the application appends
little meanwhile, and the next batches are as small: a producer can stay at a fifth of its throughput. So if the
processor is the limit, records wait for a multiple of the time that the last requests took to prepare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kcodec.flow import Clock

#: Records wait for this many times the processor time of the last requests, at most for this many seconds.
TIMES_THE_WORK: Final = 4.0
LONGEST_SECONDS: Final = 0.1
#: The processor is the limit if this process has used it for this share of the time. Python code of all threads
#: together uses one processor at most.
BUSY_SHARE: Final = 0.9


class LingerTime:
    """The time of one producer. usual: `linger_ms` in seconds, above 0. longest: the limit, in seconds.

    work_clock, process_clock: processor time of the thread that calls this, and of the process with all its threads.
    Compiled code of other threads, such as numpy's, can therefore make a process look busy that has a processor free.
    Records then wait for a multiple of a time that is short.
    """

    def __init__(
        self,
        usual: float,
        longest: float,
        clock: Clock,
        work_clock: Callable[[], float],
        process_clock: Callable[[], float],
    ) -> None:
        self._usual = usual
        self._longest = longest
        self._clock = clock
        self._work_clock = work_clock
        self._process_clock = process_clock
        self._began = self._work_clock()
        self._last = self._clock(), self._process_clock()

    def begin(self) -> None:
        """Call this before requests are prepared."""
        self._began = self._work_clock()

    def after_requests(self) -> float:
        """Return the seconds that records wait from now on, after requests were prepared and sent."""
        work, now, used = self._work_clock() - self._began, self._clock(), self._process_clock()
        (then, used_before), self._last = self._last, (now, used)
        is_busy = used - used_before >= BUSY_SHARE * (now - then)
        return max(self._usual, min(TIMES_THE_WORK * work, self._longest)) if is_busy else self._usual
