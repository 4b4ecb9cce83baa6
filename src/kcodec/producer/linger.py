# SPDX-License-Identifier: Apache-2.0
"""The time that records wait for others of their batch, if it is longer than `linger_ms`.

Each batch costs the client processor time, however few records it has. If a topic has very many partitions, each of
them gets only one or two keyed records within `linger_ms`. Sending their batches takes longer than `linger_ms`.
Meanwhile the application appends few records, so the next batches are as small. Therefore, if the processor is the
limit, records wait for a multiple of the time that the preparation of the last requests took (docs/design/producer.md).
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
    """The linger time of one producer.

    usual:   `linger_ms` in seconds, greater than 0.
    longest: Maximum linger time in seconds.
    work_clock, process_clock: Processor time of the calling thread, and of all threads of the process.

    Compiled code of other threads, for example numpy, can make a process look busy although a processor is idle.
    Records then wait for a multiple of a short time, so the delay is small.
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
