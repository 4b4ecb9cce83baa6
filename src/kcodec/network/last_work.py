# SPDX-License-Identifier: Apache-2.0
"""The work that a client still does if the program does not close it: a producer sends its records or aborts its open
transaction, and a consumer leaves its group."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kcodec.flow import CancelledFlow, InterruptedFlow
from kcodec.quantities import seconds_text

if TYPE_CHECKING:
    from kcodec.cluster.metadata import Cluster
    from kcodec.flow import Flow, Task

log = logging.getLogger("kcodec.client")
#: Maximum time that the end of the program, or of its event loop, waits for this work.
LAST_WORK_SECONDS = 30.0
#: The same if the last metadata request has failed, or after a Ctrl-C that the program does not catch (sync API).
SHORT_LAST_WORK_SECONDS = 3.0
#: Time after which the wait is logged.
ANNOUNCED_SECONDS = 0.5
#: Longest single wait. It is short because, on some systems, Ctrl-C takes effect only when a wait ends.
LONGEST_STEP_SECONDS = 0.1


class LastWork:
    """What a client does if the program drops its object, or ends, without closing it. None of the functions refers to
    the object, so that the garbage collector can delete it.

    name:   The object in log lines.
    flow:   Returns the flow that does the work; None if there is nothing to do.
    text:   Returns a text that describes what the flow waits for, or None.
    report: Logs what the flow has not done.
    """

    __slots__ = ("flow", "name", "report", "text")

    def __init__(
        self,
        name: str,
        flow: Callable[[], Flow[None] | None],
        text: Callable[[], str | None],
        report: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.flow = flow
        self.text = text
        self.report = report


class LastWait:
    """The wait for the last work of a client.

    began: Time at which it began (time.monotonic).
    """

    def __init__(self, work: LastWork, cluster: Cluster, began: float) -> None:
        self._work = work
        self._cluster = cluster
        self._began = began
        self._is_logged = False

    def step_seconds(self) -> float:
        """Return how many seconds to wait now; 0 at the time limit. Log a wait that is long."""
        # sys.last_type: the type of the exception that ended the program, if one did.
        is_short = self._cluster.last_error is not None or getattr(sys, "last_type", None) is KeyboardInterrupt
        limit = SHORT_LAST_WORK_SECONDS if is_short else LAST_WORK_SECONDS
        waited = time.monotonic() - self._began
        if waited > ANNOUNCED_SECONDS and not self._is_logged:
            self._is_logged = True
            text = self._work.text()
            if text is not None:
                log.warning(
                    "%s was not closed. The end of the program waits up to %s for %s; press Ctrl-C to end at once",
                    self._work.name,
                    seconds_text(limit),
                    text,
                )
        return max(min(LONGEST_STEP_SECONDS, limit - waited), 0.0)


def log_failure(work: LastWork, task: Task[None]) -> None:
    """Log the error with which the flow has ended, if it has one."""
    # A time limit cancels it, and Ctrl-C interrupts it.
    if task.error is not None and not isinstance(task.error, CancelledFlow | InterruptedFlow):
        log.warning("%s was not closed, and its last work failed: %s", work.name, task.error)
