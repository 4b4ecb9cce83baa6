# SPDX-License-Identifier: Apache-2.0
"""A client without its I/O loop: options, scheduler, network and cluster; and what both I/O loops share.

`kcodec.network.thread_loop` runs a client on a thread, `kcodec.network.asyncio_loop` in an event loop.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ClusterTimes
from kcodec.errors import TransportError
from kcodec.flow import CancelledFlow, Clock, Done, InterruptedFlow, Task
from kcodec.network.connections import Network
from kcodec.network.interruptible import step_seconds
from kcodec.network.logs import escape_logs
from kcodec.network.metrics import Gauge, report_gauges, report_tallies
from kcodec.network.options import ClientConfig
from kcodec.network.preload import load_for_flows
from kcodec.network.scheduler import Scheduler

if TYPE_CHECKING:
    import asyncio

    from kcodec.network.connections import Opener
    from kcodec.network.last_work import LastWork

T = TypeVar("T")
log = logging.getLogger("kcodec.client")
#: A flow has a deadline and ends by it. The call returns this much later at the latest, if the I/O loop is too busy.
GRACE_SECONDS = 0.5


class Client:
    """The components of a client.

    clock:  Returns monotonic seconds.
    random: Random numbers for jitter and random choices.
    """

    def __init__(self, options: ClientConfig, clock: Clock = time.monotonic, random: Random | None = None) -> None:
        load_for_flows(uses_tls=options.security.tls_context() is not None)
        escape_logs()
        self.options = options
        self.clock = clock
        self.random = random or Random()
        trigger = options.metadata_recovery_rebootstrap_trigger_ms / 1000
        times = ClusterTimes(
            request=options.request_timeout_ms / 1000,
            metadata_max_age=options.metadata_max_age_ms / 1000,
            rebootstrap_trigger=trigger if options.metadata_recovery_strategy == "rebootstrap" else None,
            backoff=options.retry_backoff,
            unknown_topic=options.unknown_topic_timeout_ms / 1000,
        )
        self.cluster = Cluster(clock, self.random, times)
        self.cluster.bootstrap_servers = ",".join(map(str, options.addresses))
        self.network = Network(options, clock, self.random)
        self.scheduler = Scheduler(clock, self.network)
        #: Called with the reason when the I/O loop ends otherwise than by `close`, for calls that still wait.
        self.on_crash: list[Callable[[BaseException], None]] = []

    def start(self, opener: Opener, run_blocking: Callable[[Callable[[], Any], Done], None]) -> None:
        """Start to keep metadata up to date; called by the I/O loop. A call that follows because Ctrl-C in asyncio has
        interrupted this one starts only what is missing."""
        self.scheduler.run_blocking = run_blocking
        self.network.wire(self.scheduler, self.cluster, opener)
        running = {task.name: task for task in self.scheduler.tasks}
        self._keep_metadata(running.get("metadata"))
        if "metrics" not in running:
            self.scheduler.spawn(report_gauges(self.options.metrics, self._report), "metrics")

    def _keep_metadata(self, running: Task[None] | None = None) -> None:
        task = running or self.scheduler.spawn(self.cluster.keep_fresh(), "metadata")
        if not task.is_observed:
            task.when_done(self._metadata_ended)
        self.cluster.request_update("start")

    def _metadata_ended(self, task: Task[None]) -> None:
        """Start the flow again if Ctrl-C in asyncio has interrupted it, so that a consumer can still leave its group.
        Raise another error in the I/O loop, so that the client crashes. Without this flow, calls would wait forever."""
        if isinstance(task.error, InterruptedFlow):
            self._keep_metadata()
        elif task.error is not None and not isinstance(task.error, CancelledFlow):
            raise task.error

    def stop(self) -> None:
        """Close flows, then connections."""
        self.network.is_closed = True
        self.scheduler.cancel_all()
        self.network.close()
        report_tallies(self.options.metrics)

    def _report(self, gauge: Gauge) -> None:
        report_tallies(self.options.metrics)
        self.network.report(gauge)

    def crash(self, error: BaseException) -> None:
        """Stop the client after a failure of its I/O loop."""
        if not isinstance(error, KeyboardInterrupt | SystemExit):  # these end the program, and are raised there
            log.critical("the I/O loop of this client failed: %s", str(error) or repr(error), exc_info=error)
        for callback in self.on_crash:
            callback(error)


class IoLoop:
    """The common part of I/O thread and event loop: which process may use them, and whether they are running.

    last_work: What to do if the program does not close the client. None: nothing, the client just ends.
    """

    last_work: LastWork | None = None

    def __init__(self, client: Client) -> None:
        self.client = client
        self._process = os.getpid()
        self._error: BaseException | None = None
        self._is_closing = self._is_abandoned = False

    @property
    def is_abandoned(self) -> bool:
        """Whether the program has dropped the client, or ends, without closing it."""
        return self._is_abandoned

    @property
    def is_closed(self) -> bool:
        """Whether the client was closed, its loop failed, or this is a forked process."""
        return self._is_closing or self._error is not None or self._process != os.getpid()

    def _check(self) -> None:
        """Raise TransportError if the loop cannot run flows."""
        if self._process != os.getpid():
            raise TransportError(
                f"this client belongs to process {self._process}; the forked process {os.getpid()} must create its own"
            )
        if self._error is not None:
            why = str(self._error) or repr(self._error)
            raise TransportError(f"the I/O loop of this client failed: {why}; create another client") from self._error
        if self._is_closing:
            raise TransportError("the client is closed")


class Waiter(Generic[T]):
    """A call of another thread that waits for its flow. A `Future` of the standard library does the same with a
    condition and its locks, which takes several times as long."""

    __slots__ = ("_error", "_is_done", "_running", "_value")

    def __init__(self) -> None:
        self._is_done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._running = threading.Lock()
        self._running.acquire()

    def set_result(self, value: T) -> None:
        """End the wait. Only the first end counts."""
        self._end(value, None)

    def set_exception(self, error: BaseException) -> None:
        """End the wait with an error."""
        self._end(None, error)

    def _end(self, value: T | None, error: BaseException | None) -> None:
        if not self._is_done:
            self._value, self._error, self._is_done = value, error, True
            self._running.release()

    def wait(self, timeout: float | None, check: Callable[[], object] | None) -> bool:
        """Wait for the end of the flow, for at most `timeout` seconds. Return whether it has ended.

        check: Called every STEP_SECONDS; see `ThreadLoop.run`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            step = step_seconds(left, check is not None)
            if self._running.acquire(timeout=-1 if step is None else step):
                return True
            if step == left:
                return self._is_done
            if check is not None:
                check()

    def result(self) -> T:
        """Return the result, or raise the error, after the end."""
        error, self._error = self._error, None
        if error is None:
            return self._value  # type: ignore[return-value]
        try:
            raise error
        finally:
            del error  # it refers to this frame


def pass_on(task: Task[T], waiter: Waiter[T] | asyncio.Future[T], failure: BaseException | None) -> None:
    """Pass the result of a flow to the call that waits for it. `failure` is the error of the I/O loop, if it has
    failed."""
    if isinstance(task.error, CancelledFlow):
        if failure is None:
            waiter.set_exception(TransportError("the client was closed before the call finished"))
        else:
            waiter.set_exception(
                TransportError(f"the I/O loop of this client failed before the call finished: {failure!r}")
            )
    elif task.error is not None:
        waiter.set_exception(task.error)
    else:
        waiter.set_result(task.result)  # type: ignore[arg-type]
