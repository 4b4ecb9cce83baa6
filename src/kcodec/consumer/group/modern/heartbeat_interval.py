# SPDX-License-Identifier: Apache-2.0
"""When a member of a KIP-848 group sends its next heartbeat: at the interval that the broker names, sooner at first.

One that has joined gets its partitions when others have given them up, and a broker from 4.3 on assigns a little after
it has answered: so the answer to a join is mostly empty, and what there is to get is given out with a later heartbeat.
Until all others have sent one of theirs, it asks more often.
"""

from __future__ import annotations

#: What a broker says of the interval is believed within these bounds, in seconds.
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 3600.0
#: In parts of the interval: the first pause after a join, the growth of the next ones, the longest of them, and for how
#: long: until the others' heartbeats have come, and what they set off is over.
FIRST_PAUSE, PAUSE_GROWTH, LONGEST_PAUSE, EAGER_INTERVALS = 0.04, 1.5, 0.1, 1.2


class HeartbeatPace:
    """interval: as the broker named it; next_at: when the next heartbeat is due, by the clock of the calls."""

    def __init__(self) -> None:
        self.interval = SHORTEST_INTERVAL
        self.next_at = 0.0
        self._pause = SHORTEST_INTERVAL
        self._eager_until = 0.0

    def sent(self, now: float) -> None:
        """A heartbeat goes out."""
        self.next_at = now + self._pause

    def answered(self, now: float, interval_ms: int, *, is_join: bool) -> None:
        """The broker answered."""
        self.interval = min(max(interval_ms / 1000, SHORTEST_INTERVAL), LONGEST_INTERVAL)
        if is_join:
            self._pause = self.interval * FIRST_PAUSE / PAUSE_GROWTH
            self._eager_until = now + self.interval * EAGER_INTERVALS
        pause = self.interval
        if now < self._eager_until:
            pause = min(self._pause * PAUSE_GROWTH, self.interval * LONGEST_PAUSE)
        self._pause = max(pause, SHORTEST_INTERVAL)
        self.next_at = now + self._pause
