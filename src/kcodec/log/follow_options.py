# SPDX-License-Identifier: Apache-2.0
"""Polling interval and stop condition for `follow=True`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Event
from typing import Any

POLL_INTERVAL = 0.2
# A callable, or an object with is_set(), as the Event of threading and of multiprocessing.
Stop = Callable[[], object] | Event | Any


@dataclass(frozen=True)
class FollowOptions:
    """When to look for new records, and when to end. Raise ValueError or TypeError if an argument is invalid.

    poll_interval: Seconds between two looks at a log that has not grown.
    timeout:       Seconds without a record after which the iteration ends; 0: at the first end of the log; None: never.
    stop:          Callable that returns True, or Event that is set, to end; checked between chunks and looks.
    """

    poll_interval: float = POLL_INTERVAL
    timeout: float | None = None
    stop: Stop | None = None

    def __post_init__(self) -> None:
        if not 0 < self.poll_interval <= TIMEOUT_MAX:
            raise ValueError(f"poll_interval must be a number of seconds above 0, not {self.poll_interval}")
        if self.timeout is not None and not self.timeout >= 0:
            raise ValueError(f"timeout must be a number of seconds, 0 or more, not {self.timeout}")
        if self.stop is not None and not callable(self.stop) and not callable(getattr(self.stop, "is_set", None)):
            raise TypeError(f"stop must be callable or an Event, not {type(self.stop).__name__}")

    def is_stopped(self) -> bool:
        """Whether the caller wants it to end."""
        if self.stop is None:
            return False
        return bool(self.stop() if callable(self.stop) else self.stop.is_set())

    def rest(self, seconds: float) -> None:
        """Sleep; an Event of threading wakes it."""
        if isinstance(self.stop, Event):
            self.stop.wait(seconds)
        else:
            time.sleep(seconds)
