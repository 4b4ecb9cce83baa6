# SPDX-License-Identifier: Apache-2.0
"""The core of `kcodec.client.Consumer` and its async counterpart: it combines assignment, fetcher, positions, committed
offsets and membership. Its calls that choose what is read are in selection_calls.py, those on offsets in
offset_calls.py.

It uses no socket and no thread. A public class provides a lock and access to the loop, runs the flows, and calls the
application's callbacks (`CallbackQueue`) where it polls. Many flows are methods of the public classes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager
from operator import length_hint
from typing import TYPE_CHECKING, Any

from kcodec._fast import Record
from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import Assignment
from kcodec.consumer.callbacks import Callback, CallbackQueue
from kcodec.consumer.commits import Commits
from kcodec.consumer.committed_offsets import CommittedOffsets
from kcodec.consumer.fetcher import Fetcher
from kcodec.consumer.gauges import ConsumerGauges
from kcodec.consumer.group.rebalance import RebalanceHandler
from kcodec.consumer.health import ConsumerHealth, HealthWatch
from kcodec.consumer.held_back import HeldBack
from kcodec.consumer.known_partitions import KnownPartitions
from kcodec.consumer.offset_calls import OffsetCalls
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.positions import Positions
from kcodec.consumer.rebalance_handler import ConsumerRebalanceHandler, Polls, lost_text
from kcodec.consumer.selection_calls import SelectionCalls
from kcodec.consumer.waiting_report import WaitingReport
from kcodec.end_limits import LEAVE_AT_ONCE_SECONDS
from kcodec.errors import AuthenticationError, KcodecError, TransportError
from kcodec.flow import CancelledFlow, Flow, InterruptedFlow, Signal, Task, join, sleep, spawn, wait
from kcodec.network.metrics import Metrics, report_gauges
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition

if TYPE_CHECKING:
    from kcodec._fast import DecodedRecords, Delivery

Partitions = Iterable[TopicPartition]
log = logging.getLogger("kcodec.consumer")
#: Interval at which metadata of the topics in use is requested, well below the time after which metadata forgets them.
TOPICS_REFRESH_SECONDS = 60.0
#: Bounds of the interval at which a consumer looks for the progress of an iteration. The lower bound also applies to
#: automatic commits while a poll waits, as auto_commit_interval_ms may be 0.
SHORTEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS = 0.02, 1.0
#: Interval at which a consumer that was late looks whether the application requests records again.
LATE_STEP_SECONDS = 0.1


class ConsumerCore:
    """One consumer. Methods run on the loop's thread, except `begin_poll`, `take_back`, `has_business`, `take`,
    `take_arrow` and `take_delivery`, which run where poll is called.

    handler: Handler of rebalances; None for a plain consumer.
    post:    Runs a function on the loop. It may be called from any thread.
    now:     Returns the time in milliseconds since 1970.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        cluster: Cluster,
        *,
        metrics: Metrics,
        lock: AbstractContextManager[Any],
        post: Callable[[Callable[[], None]], None],
        now: Callable[[], int],
        handler: RebalanceHandler | None = None,
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.clock = cluster.clock
        self.assignment = assignment = Assignment(lock, post)
        self.fetcher = Fetcher(cluster, assignment, settings, metrics)
        #: Set on the loop when a poll that waits should look again.
        self.wake: Signal = self.fetcher.arrived
        self.callbacks = CallbackQueue(self.wake, assignment.interrupt)
        self.polls = Polls(self.clock, assignment.interrupt)
        self.wake.add_waiter(self._wake_poll)
        self.committed_offsets = CommittedOffsets(cluster, settings.group_id, settings) if settings.group_id else None
        # The epoch of a member is checked by the coordinator of a KIP-848 group, and of no other.
        member = self._member if settings.group_protocol == "consumer" else None
        self.known_partitions = KnownPartitions(cluster, assignment)
        self._positions = Positions(
            *(cluster, assignment, self.committed_offsets, settings),
            member=member,
            now=now,
            known=self.known_partitions,
            on_new_topic=lambda partitions: self.selection.forget_old_topic(partitions),
        )
        self.commits = Commits(
            *(self.committed_offsets, assignment, self.callbacks, settings, self.clock, self._member),
            self.known_partitions.is_obsolete,
            self.known_partitions.note_commit,
        )
        self.selection = SelectionCalls(
            *(cluster, assignment, self.fetcher, self.commits, self.known_partitions, settings),
            ended=self._flow_ended,
            watch=self._watch,
            check_open=self.check_open,
            note_poll=self.note_poll,
        )
        self.selection.handler = handler or ConsumerRebalanceHandler(
            *(assignment, self.polls, self.callbacks, self.commits),
            add=self.selection.add,
            remove=self.selection.remove,
            lost_text=lambda gone: lost_text(gone, settings, cluster),
        )
        self._report = WaitingReport(
            *(cluster, assignment, self.fetcher, self._positions, settings),
            subscription=lambda: self.selection.subscription,
            membership=lambda: self.selection.membership,
        )
        self.error: BaseException | None = None
        #: The refused login of the member that the last call has raised.
        self._refused_login: AuthenticationError | None = None
        self._metrics = metrics
        self._health = HealthWatch(
            *(cluster, assignment, self.fetcher, self._positions, settings),
            committed=self.committed_offsets,
            polls=self.polls,
            callbacks=self.callbacks,
            report=self._report,
            membership=lambda: self.selection.membership,
            error=lambda: self.error,
        )
        self.offsets = OffsetCalls(
            *(cluster, assignment, self.fetcher, self.commits, self.committed_offsets, settings),
            callbacks=self.callbacks,
            report=self._report,
            check_open=self.check_open,
            raise_errors=self.raise_errors,
        )
        self.is_closed = False
        #: Whether the flow of `run` runs.
        self._is_running = False
        self._noted_at = self.clock()
        self._tasks: list[Task[None]] = []
        self._ended = Signal()
        #: The flow of `close` that leaves the group.
        self._closing: Task[None] | None = None
        #: Whether `leave_at_once` leaves the group, as `close` was interrupted or its timeout has passed.
        self._leaves_at_once = False

    # Background flows

    def run(self) -> Flow[None]:
        """Run all background work until `close`; the public class spawns it once."""
        gauges = ConsumerGauges(self._metrics, self._health, self.fetcher.buffer)
        flows = {
            "fetcher": self.fetcher.run(),
            "positions": self._positions.run(),
            "commits": self.commits.run(),
            "topics": self._keep_topics(),
            "held back": HeldBack(
                self.cluster, self.assignment, self.committed_offsets, self.settings, self.polls
            ).run(),
            "report": self._report.run(),
            "health": self._health.run(),
            "gauges": report_gauges(self._metrics, gauges.report),
            "watch": self._watch(lambda: self.assignment.changed),
        }
        if self.settings.group_id is not None:
            flows["iteration"] = self._watch_iteration()
        for name, flow in flows.items():
            self._tasks.append((yield from spawn(flow, name)))
            self._tasks[-1].when_done(self._flow_ended)
        self._is_running = True
        try:
            while not self.is_closed:
                yield from wait(self._ended)
        finally:
            self._is_running = False
            self.polls.wake()
            for task in [*self._tasks, *self.selection.membership_tasks]:
                task.cancel()

    def _flow_ended(self, task: Task[None]) -> None:
        """Make poll raise the error of background work that failed or was interrupted."""
        if task.error is None or isinstance(task.error, CancelledFlow):
            return
        if not isinstance(task.error, InterruptedFlow):
            log.error(
                "background work of this consumer (%s) has failed: %s", task.name, task.error, exc_info=task.error
            )
        self.crash(task.error)

    def _watch(self, signal: Callable[[], Signal]) -> Flow[None]:
        """Wake a waiting poll whenever this signal is set."""
        while True:
            yield from wait(signal())
            self.assignment.interrupt()
            self.wake.set()

    def _watch_iteration(self) -> Flow[None]:
        """Note that the application requests records, because iterations deliver records of a chunk without reading the
        clock. Interrupt the iteration when a commit is due."""
        settings = self.settings
        longest = settings.max_poll_interval / 10
        if self.commits.is_automatic:
            longest = min(longest, settings.auto_commit_interval / 4)
        seconds = min(max(longest, SHORTEST_WATCH_SECONDS), LONGEST_WATCH_SECONDS)
        seen = (self.assignment.delivery, 0)
        while True:
            yield from sleep(seconds)
            delivery = self.assignment.delivery
            now = (delivery, length_hint(delivery.records))
            if now != seen:
                seen = now
                self.note_poll()
            if self.commits.is_due(self.clock()):
                self.assignment.interrupt()

    def _keep_topics(self) -> Flow[None]:
        while True:
            self.cluster.add_topics(
                {each.topic for each in self.assignment.partitions} | self.selection.subscription.topics
            )
            yield from sleep(TOPICS_REFRESH_SECONDS)

    def crash(self, error: BaseException) -> None:
        """Make every call raise from now on, because the loop or a part of it failed."""
        if self.error is None and not isinstance(error, CancelledFlow):
            reason = error
            if not isinstance(error, KcodecError):
                reason = TransportError(f"the I/O loop of this consumer failed: {error!r}; create another consumer")
                reason.__cause__ = error
            self.error = reason
        self.assignment.interrupt()
        self.wake.set()

    # Polling

    def begin_poll(self) -> None:
        """Any thread: begin a request for records, which completes the records that were delivered before.

        Raise RuntimeError without a subscription or an assignment.
        """
        self.check_open()
        if self.selection.membership is None and not self.assignment.partitions and self.error is None:
            raise RuntimeError(
                "poll() has nothing to read: this consumer has neither a subscription nor assigned partitions; call "
                "subscribe() or assign() first"
            )
        self.assignment.begin_request()
        self.note_request()
        self.polls.note()

    def take_back(self) -> None:
        """Any thread: undo an interrupted poll, because the application did not get its records."""
        self.assignment.take_back_request()

    def take_back_uncompleted(self) -> None:
        """Any thread: move positions back to the completed positions, because an exception ends the block of the
        consumer. Neither the automatic commit of `close` nor a commit in on_revoked then includes records that were not
        processed."""
        self.assignment.take_back()

    @property
    def has_business(self) -> bool:
        """Any thread: return whether this poll has other work than records, such as a callback or an error."""
        return (
            self.polls.is_awaited
            or bool(self.callbacks.waiting)
            or self.error is not None
            or (self.selection.membership is not None and self.selection.membership.error is not None)
        )

    @property
    def is_unsubscribed(self) -> bool:
        """Any thread: whether a poll has nothing to wait for, because there is neither a subscription nor an
        assignment, a callback or an error."""
        return not (
            self.is_closed
            or self.has_business
            or self.selection.membership is not None
            or not self.selection.subscription.is_empty
            or bool(self.assignment.partitions)
        )

    @property
    def waits_in_flow(self) -> bool:
        """Any thread: whether a poll must wait in a flow, because the core is closed or not running, or because there
        is other work than waiting for records."""
        return self.is_closed or not self._is_running or self.has_business

    @property
    def longest_wait(self) -> float:
        """The maximum number of seconds until the next call of `note_request` while a poll waits for records. The wait
        then does not count as a missed poll, and automatic commits continue."""
        until_commit = max(self.commits.seconds_until_due(self.clock()), SHORTEST_WATCH_SECONDS)
        return min(self.settings.max_poll_interval / 2, until_commit)

    def note_request(self) -> None:
        """Any thread: report that a poll begins, or still waits for records. Make an automatic commit if one is due. It
        includes the records that were delivered before this poll, because the poll has completed them."""
        self.note_poll()
        self.commits.note_poll(self.clock())

    def _wake_poll(self) -> None:
        self.wake.add_waiter(self._wake_poll)
        self.polls.wake()

    def take(self, max_records: int) -> list[Record]:
        """Any thread: return fetched records, [] if there are none. Raise the errors of partitions."""
        return self.fetcher.buffer.take(max_records)

    def take_arrow(self) -> DecodedRecords:
        """Any thread: return fetched records of one partition as columns, without rows if there are none."""
        return self.fetcher.buffer.take_arrow()

    def no_rows(self) -> DecodedRecords:
        """Any thread: return the result of `take_arrow` if there are no records."""
        return self.fetcher.buffer.no_rows()

    def take_delivery(self, max_records: int) -> Delivery | None:
        """Any thread: return fetched records to be delivered one by one; None if there are none. Raise the errors of
        `take`."""
        return self.fetcher.buffer.take_delivery(max_records)

    def next_record(self, delivery: Delivery) -> Record | None:
        """Any thread: deliver one record; None if there are no more. If an interruption, such as Ctrl-C, keeps the
        record from the caller, the next call returns the record again."""
        left = length_hint(delivery.records)
        try:
            return next(delivery.records, None)
        except BaseException:
            if length_hint(delivery.records) < left:
                self.take_back()
            raise

    def wait_for_work(self, timeout: float, is_over: Callable[[], bool] = lambda: False) -> Flow[Callback | None]:
        """Wait as part of a poll. Return a callback to call, or None when records may be available or the time has
        passed. Raise errors of the group or the loop.

        is_over: Called before each wait. If it returns True, return None although no records are available.
        """
        deadline = self.clock() + timeout
        self.polls.begin()
        try:
            if self.polls.is_awaited:
                yield from sleep(0)  # a rebalance that waited for this poll continues first
            while True:
                self.raise_errors()
                if self.callbacks.waiting:
                    return self.callbacks.waiting[0]
                left = deadline - self.clock()
                if self.fetcher.buffer.has_ready or left <= 0 or is_over():
                    return None
                yield from wait(self.wake, min(left, self.longest_wait))
                self.note_request()
        finally:
            self.note_poll()
            self.polls.end()

    def wait_for_records(self, timeout: float, only: Set[TopicPartition] | None = None) -> Flow[None]:
        """Wait until `take` can return or raise something, the time has passed, or the consumer is closed. Raise errors
        of the group or the loop. This is for a consumer whose callbacks are called by `wait_for_callback`."""
        deadline = self.clock() + timeout
        while not self.is_closed:
            self.raise_errors()
            left = deadline - self.clock()
            if left <= 0 or self.fetcher.buffer.has_ready_of(only):
                return
            yield from wait(self.wake, min(left, self.longest_wait))
            self.note_request()

    def wait_for_metadata(self) -> Flow[None]:
        """Wait for the next metadata."""
        yield from wait(self.cluster.changed)

    def wait_for_callback(self) -> Flow[Callback | None]:
        """Wait for the next callback and return it; None when the consumer is closed. Meanwhile, rebalances do not wait
        for a poll, provided that the application requests records within max_poll_interval."""
        is_polling = False
        try:
            while not self.callbacks.waiting:
                if self.is_closed:
                    return None
                left = self._noted_at + self.settings.max_poll_interval - self.clock()
                if is_polling is not (left > 0):
                    is_polling = left > 0
                    (self.polls.begin if is_polling else self.polls.end)()
                yield from wait(self.wake, left if left > 0 else LATE_STEP_SECONDS)
            return self.callbacks.waiting[0]
        finally:
            if is_polling:
                self.polls.end()

    def next_callback(self, task: Task[Any]) -> Flow[Callback | None]:
        """Return the next callback during a call that may make callbacks. Return None when the call has ended and no
        callback is left."""
        task.when_done(lambda ended: self.wake.set())
        self.polls.begin()
        try:
            while not task.done or self.callbacks.waiting:
                if self.callbacks.waiting:
                    return self.callbacks.waiting[0]
                yield from wait(self.wake)
            return None
        finally:
            self.polls.end()

    def note_poll(self) -> None:
        """Any thread: report to the group that the application polls."""
        self._noted_at = self.clock()
        if self.selection.membership is not None:
            self.selection.membership.note_poll(self._noted_at)

    @property
    def is_late(self) -> bool:
        """Any thread: whether the application has not polled for max_poll_interval, after which a member leaves."""
        return self.selection.membership is not None and self.clock() - self._noted_at > self.settings.max_poll_interval

    def check_open(self) -> None:
        """Raise TransportError once it is closed."""
        if self.is_closed:
            raise TransportError("the consumer is closed")

    def raise_errors(self) -> None:
        """Raise errors of the loop or the group. A refused login is raised once. The next call lets the member begin
        again, because the credentials may have been changed or created meanwhile."""
        membership = self.selection.membership
        if self._refused_login is not None and membership is not None and membership.error is self._refused_login:
            membership.retry_login()
        self._refused_login = None
        error = self.error or (membership.error if membership is not None else None)
        if error is not None:
            if isinstance(error, AuthenticationError) and error is not self.error:
                self._refused_login = error
            raise error.with_traceback(None)

    # State

    def health(self) -> Flow[ConsumerHealth]:
        """Return the present state of this consumer: its group member, and the position, the lag and the blocking
        reason of each partition. The call sends no request, so it returns immediately even if no broker is
        available."""
        yield from ()
        return self._health.take()

    def _member(self) -> ConsumerGroupMetadata:
        return self.selection.member()

    # The end

    def close(self, timeout: float, callers: tuple[Callback, ...] = ()) -> Flow[None]:
        """Commit if commits are automatic, revoke all partitions, leave the group, and end. Further calls do
        nothing. For `callers`, see `SelectionCalls.unsubscribe`.

        If the timeout passes before the request to leave is sent, the request is sent nevertheless, unless the
        coordinator is unknown. This is also so for a timeout of 0, such as after a second Ctrl-C."""
        if self.is_closed or self._leaves_at_once:
            return
        self._report.end()
        self.assignment.complete()
        task = self._closing = yield from spawn(self._leave(timeout, callers), "leave")
        try:
            yield from join(task, timeout)
        except TimeoutError:
            if self.selection.may_have_members:
                yield from self.leave_at_once()
            task.cancel()
        except (CancelledFlow, InterruptedFlow):  # by `leave_at_once`, after an interruption of the call that waited
            if not self._leaves_at_once:
                raise
        finally:
            self.is_closed = True
            self.commits.end()
            self.assignment.interrupt()
            self._ended.set()
            self.wake.set()

    def _leave(self, timeout: float, callers: tuple[Callback, ...]) -> Flow[None]:
        if not self._leaves_at_once:  # otherwise, Ctrl-C in asyncio has interrupted `close` before this flow began
            yield from self.selection.unsubscribe(timeout, "the consumer is closed", is_final=True, callers=callers)

    def leave_at_once(self) -> Flow[None]:
        """Leave the group after an interruption or the timeout of `close`, without a commit and without callbacks.
        Wait for the response only for LEAVE_AT_ONCE_SECONDS."""
        self._leaves_at_once = True
        return self._end_membership()

    def _end_membership(self) -> Flow[None]:
        task = yield from spawn(self.selection.leave_unclosed("the consumer is closed"), "leave at once")
        yield from sleep(0)  # from here on, the interrupted close does not end the membership
        if self._closing is not None and not self._closing.done:
            self._closing.cancel()  # it may hold the lock of the group
        try:
            yield from join(task, LEAVE_AT_ONCE_SECONDS)
        except TimeoutError:
            task.cancel()
