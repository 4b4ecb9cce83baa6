# SPDX-License-Identifier: Apache-2.0
"""The core of `kcodec.client.Consumer` and its async counterpart: it combines assignment, fetcher, positions, committed
offsets and membership.

It uses no socket and no thread. A public class provides a lock and access to the loop, runs the flows, and calls the
application's callbacks (`CallbackQueue`) where it polls. Many flows are methods of the public classes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager
from operator import length_hint
from typing import TYPE_CHECKING, Any

from kcodec._fast import Record
from kcodec.arguments import partitions_in, partitions_of
from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import Assignment
from kcodec.consumer.callbacks import Callback, CallbackQueue, RebalanceListener
from kcodec.consumer.commits import Commits
from kcodec.consumer.committed_offsets import CommittedOffsets
from kcodec.consumer.fetcher import Fetcher
from kcodec.consumer.gauges import ConsumerGauges
from kcodec.consumer.group.classic import membership as classic_membership
from kcodec.consumer.group.modern import membership as consumer_membership
from kcodec.consumer.group.modern.heartbeat import make_member_id
from kcodec.consumer.group.rebalance import Membership, RebalanceHandler, Subscription
from kcodec.consumer.health import ConsumerHealth, HealthWatch
from kcodec.consumer.held_back import HeldBack
from kcodec.consumer.known_partitions import KnownPartitions
from kcodec.consumer.offset_calls import OffsetCalls
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.positions import Positions
from kcodec.consumer.rebalance_handler import ConsumerRebalanceHandler, Polls, lost_text
from kcodec.consumer.waiting_report import WaitingReport
from kcodec.errors import AuthenticationError, KcodecError, TransportError
from kcodec.flow import CancelledFlow, Flow, Signal, Task, join, sleep, spawn, wait
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
#: Longest time that a consumer that leaves waits for its own rejoin, which other members may delay.
REJOIN_SECONDS = 3.0
#: Time kept for leaving the group, of the timeout of a call that also commits or aborts: seconds, and share at most.
LEAVING_SECONDS, LEAVING_SHARE = 1.0, 0.25


def leaving_seconds(timeout: float) -> float:
    """Return the part of a timeout that is reserved for leaving the group. A member that does not leave keeps its
    partitions until its session ends, so it must leave even if its commit or its abort gets no response."""
    return min(LEAVING_SECONDS, timeout * LEAVING_SHARE)


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
            on_new_topic=self._forget_old_topic,
        )
        self.commits = Commits(
            *(self.committed_offsets, assignment, self.callbacks, settings, self.clock, self._member),
            self.known_partitions.is_obsolete,
            self.known_partitions.note_commit,
        )
        self.handler: RebalanceHandler = handler or ConsumerRebalanceHandler(
            *(assignment, self.polls, self.callbacks, self.commits),
            add=self.add,
            remove=self.remove,
            lost_text=lambda gone: lost_text(gone, settings, cluster),
        )
        self.subscription = Subscription()
        self.membership: Membership | None = None
        self._left: ConsumerGroupMetadata | None = None
        #: Of the next member in the consumer protocol, if `member_id` has chosen it.
        self._next_member_id: str | None = None
        self._report = WaitingReport(
            *(cluster, assignment, self.fetcher, self._positions, settings),
            subscription=lambda: self.subscription,
            membership=lambda: self.membership,
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
            membership=lambda: self.membership,
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
        self._membership_tasks: list[Task[None]] = []
        #: Number of subscriptions and assignments that the application has begun.
        self._selections = 0
        #: The partitions, assigned by hand, that an `unsubscribe` under way will remove.
        self._going: frozenset[TopicPartition] = frozenset()
        #: Identifies the `unsubscribe` that holds the lock of the membership; None if none does.
        self._lock_holder: object | None = None
        self._ended = Signal()

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
            self._tasks.append((yield from spawn(self._guarded(flow), name)))
        self._is_running = True
        try:
            while not self.is_closed:
                yield from wait(self._ended)
        finally:
            self._is_running = False
            self.polls.wake()
            for task in [*self._tasks, *self._membership_tasks]:
                task.cancel()

    def _guarded(self, flow: Flow[None]) -> Flow[None]:
        """Run background work. If it fails, poll raises the error."""
        try:
            yield from flow
        except Exception as error:
            self.crash(error)
            raise

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
            self.cluster.add_topics({each.topic for each in self.assignment.partitions} | self.subscription.topics)
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

    # What is read

    def subscribe(
        self,
        topics: Iterable[str],
        pattern: str | None = None,
        on_revoked: Callable[..., Any] | None = None,
        on_assigned: Callable[..., Any] | None = None,
        on_lost: Callable[..., Any] | None = None,
    ) -> Flow[None]:
        """Subscribe to topics, whose partitions the group then assigns. Raise ValueError after `assign`, or without a
        group."""
        self.check_open()
        if self.settings.group_id is None:
            raise ValueError("subscribe needs a consumer with group_id=, as a group assigns the partitions")
        if self.assignment.partitions and self.membership is None:
            raise ValueError("subscribe is not possible after assign(); call unsubscribe() first")
        if isinstance(self.handler, ConsumerRebalanceHandler):
            self.handler.listener = RebalanceListener(on_revoked, on_assigned, on_lost)
        subscription = Subscription(frozenset(topics), pattern)
        if subscription != self.subscription and (pattern is not None or self.subscription.pattern is not None):
            self.known_partitions.forget()  # otherwise, what is known of the topics stays valid
        self.subscription = subscription
        self.cluster.add_topics(self.subscription.topics)
        yield from self._join_group()
        self._leave_out_unsubscribed()

    def _leave_out_unsubscribed(self) -> None:
        """Deliver nothing more of topics that are not subscribed to any more, as Java's consumer does. The rebalance
        that revokes their partitions needs several polls."""
        subscription = self.subscription
        if self.membership is None or subscription.is_empty:
            return
        accepts: Callable[[str], Any] = subscription.topics.__contains__
        if subscription.pattern is not None:
            if self.settings.group_protocol == "consumer":
                return  # the broker matches the pattern
            accepts = re.compile(subscription.pattern).fullmatch
        if gone := self.assignment.note_subscription(accepts):
            self.fetcher.drop(gone)

    def _join_group(self) -> Flow[None]:
        """Pass the subscription to the group member. Create the member if it does not exist."""
        membership = self.membership
        if membership is None:
            self._selections += 1
            membership = self.membership = self._new_membership()
            flows = {"membership": membership.run(), "watch membership": self._watch(lambda: membership.changed)}
            for name, flow in flows.items():
                self._membership_tasks.append((yield from spawn(self._guarded(flow), name)))
        self.note_poll()
        membership.subscribe(self.subscription.topics, self.subscription.pattern)

    def _new_membership(self) -> Membership:
        if self.settings.group_protocol == "consumer":
            member_id, self._next_member_id = self._next_member_id, None
            return consumer_membership.ConsumerMembership(self.cluster, self.settings, self.handler, member_id)
        return classic_membership.ClassicMembership(self.cluster, self.settings, self.handler)

    def assign(self, partitions: Partitions) -> Flow[None]:
        """Read exactly these partitions, without a group. Partitions that were assigned before keep their position.

        Raise ValueError after `subscribe`.
        """
        assigned = frozenset(partitions_of(partitions))
        self.check_open()
        if self.membership is not None:
            raise ValueError("assign is not possible after subscribe(); call unsubscribe() first")
        self._selections += 1
        self._left = None  # partitions chosen by hand do not belong to a member
        self._going = frozenset()
        going = frozenset(self.assignment.partitions) - assigned
        if going:
            yield from self.commits.commit_before_revocation(going)
        self.remove(going)
        self.add(assigned)

    def incremental_assign(self, partitions: Partitions) -> Flow[None]:
        """Read these partitions in addition to the assigned ones, without a group. Those that are assigned already keep
        their position.

        Raise ValueError after `subscribe`.
        """
        added = frozenset(partitions_of(partitions))
        self._check_manual("incremental_assign")
        self._selections += 1
        self._left = None  # partitions chosen by hand do not belong to a member
        going, self._going = self._going - added, frozenset()
        self.add(added)
        if going:
            try:
                yield from self.commits.commit_before_revocation(going)
            finally:
                self.remove(going)

    def incremental_unassign(self, partitions: Partitions) -> Flow[None]:
        """Stop reading these partitions, and keep the others. If commits are automatic, commit their offsets first.

        Raise ValueError if a partition is not assigned, and after `subscribe`.
        """
        going = frozenset(partitions_of(partitions))
        self._check_manual("incremental_unassign")
        for partition in going:
            self.assignment.state(partition)
        yield from self.commits.commit_before_revocation(going)
        self.remove(going)

    def replace_assignment(self, partitions: Partitions, kept: Partitions = ()) -> Flow[None]:
        """Read exactly these partitions, as a member of a group, which may have assigned others.

        The group does not know of partitions that it has not assigned, and no rebalance revokes them. Partitions that
        the group has assigned and that are missing here are skipped until a later call names them. If commits are
        automatic, the offsets of partitions that are no longer read are committed first.

        kept: partitions that stay as they are; the others begin at their committed offsets.
        """
        wanted, unchanged = frozenset(partitions_of(partitions)), frozenset(partitions_of(kept))
        self.check_open()
        yield from self.commits.commit_before_revocation(frozenset(self.assignment.partitions) - unchanged)
        owned = self.handler.owned
        self.remove(frozenset(self.assignment.partitions) - unchanged)
        self.add((wanted & owned) - unchanged)
        self.add(wanted - owned - unchanged, is_added=True)
        self.add(owned - wanted - unchanged)
        self.assignment.skip(owned - wanted - unchanged)

    @property
    def added(self) -> frozenset[TopicPartition]:
        """Any thread: the partitions that `replace_assignment` has added to those of the group."""
        return self.assignment.chosen(lambda state: state.is_added)

    @property
    def skipped(self) -> frozenset[TopicPartition]:
        """Any thread: the partitions of the group that `replace_assignment` has left out."""
        return self.assignment.chosen(lambda state: state.is_skipped)

    def _check_manual(self, what: str) -> None:
        """Raise ValueError if a group assigns the partitions, TransportError once the consumer is closed."""
        self.check_open()
        if self.membership is not None:
            raise ValueError(
                f"{what} is not possible after subscribe(), as the group assigns the partitions; call "
                "unsubscribe() first"
            )

    def unsubscribe(
        self,
        timeout: float,
        reason: str = "the consumer unsubscribed",
        *,
        is_final: bool = False,
        callers: tuple[Callback, ...] = (),
    ) -> Flow[None]:
        """Revoke all partitions and leave the group, within `timeout` seconds in total.

        This flow continues if its caller is interrupted. The application may therefore subscribe or assign partitions
        meanwhile, unless `is_final`: the consumer is then closed.

        callers: The callbacks in which the application makes this call. A revocation that waits for one of them is not
                 waited for.
        """
        self.subscription = Subscription()
        self.known_partitions.forget()
        membership, deadline, selections = self.membership, self.clock() + timeout, self._selections
        if membership is None:
            self._going = frozenset(self.assignment.partitions)
            yield from self.commits.drain(deadline)
            yield from self.commits.commit_before_revocation(self.assignment.partitions, deadline)
            if self._selections == selections:
                self._going = frozenset()
                self.remove(list(self.assignment.partitions))
            return
        # A rejoin under way would give the commit before the revocation a generation that is over when it arrives.
        # During on_revoked, no rejoin is under way, but a call that waits for on_revoked may hold the lock. This call
        # then releases it.
        is_within, holder = bool(self._revoked_in(callers)), object()
        if not is_within:
            longest = min(timeout - leaving_seconds(timeout), REJOIN_SECONDS)
            if (yield from membership.group_lock.acquire(longest)):
                self._lock_holder = holder
        is_given_up = False
        try:
            until = deadline - leaving_seconds(timeout)
            yield from self.commits.drain(until - leaving_seconds(timeout))  # on_revoked is called even after that
            # An earlier call that was interrupted may have ended the membership, and a later one begun another.
            if self.membership is membership and self.added:
                yield from self.commits.commit_before_revocation(self.added, until)
            if self.membership is membership:
                yield from self._revoke_all(until, callers)
        except GeneratorExit:
            is_given_up = True  # nothing may be waited for any more
            raise
        finally:
            if self._lock_holder is holder or (is_within and self._lock_holder is not None):
                self._lock_holder = None
                membership.group_lock.release()
            is_current = self.membership is membership
            tasks: list[Task[None]] = []
            if is_current:
                # Until here, it was a member, so that offsets of revoked partitions could be committed. It keeps its
                # last identity, because a coordinator accepts offsets without a member even if the group has members.
                self._left = membership.group_metadata
                self.membership = None
                tasks, self._membership_tasks = self._membership_tasks, []
                self.remove(list(self.assignment.partitions))  # partitions that a rebalance may have assigned meanwhile
            selections = self._selections
            try:
                if is_current and not self.subscription.is_empty and not is_given_up and not is_final:
                    yield from self._join_group()
                if not is_given_up:
                    yield from membership.leave(max(deadline - self.clock(), 0.0), reason)
            finally:
                for task in tasks:
                    task.cancel()
                # Otherwise the partitions belong to the next subscription or assignment.
                if is_current and self._selections == selections:
                    self.remove(list(self.assignment.partitions))

    def leave_forgotten(self) -> Flow[None]:
        """Leave the group without a commit and without callbacks, because the application has dropped the consumer
        without closing it. Nothing is known about the records that it has processed."""
        membership, self.membership = self.membership, None
        if membership is not None:
            yield from membership.leave(LEAVING_SECONDS, "the application did not close the consumer")

    def _revoked_in(self, callers: tuple[Callback, ...]) -> frozenset[TopicPartition]:
        """Return the partitions for which one of these callbacks is on_revoked, and a revocation waits for it."""
        handler = self.handler
        return handler.revoked_in(callers) if isinstance(handler, ConsumerRebalanceHandler) else frozenset()

    def _revoke_all(self, deadline: float, callers: tuple[Callback, ...]) -> Flow[None]:
        """Let the handler revoke all partitions. At the deadline, stop waiting for commits and for a rebalance in
        progress."""
        going = self.handler.owned - self._revoked_in(callers)
        task = yield from spawn(self.handler.revoke(going, deadline), "revoke")
        try:
            yield from join(task, max(deadline - self.clock(), 0.0))
        except TimeoutError:
            log.warning("the partitions were revoked without waiting any longer, as the timeout of the call has passed")
        finally:
            task.cancel()

    def add(self, partitions: Iterable[TopicPartition], *, held_back: bool = False, is_added: bool = False) -> None:
        """Read these partitions from their committed offsets. With `held_back`, deliver nothing yet. For `is_added`,
        see `PartitionState`."""
        new = frozenset(partitions)
        self.commits.forget()
        if self.membership is not None:
            self.known_partitions.note(new)
        self.cluster.add_topics({each.topic for each in new})
        self.assignment.add(new, is_added=is_added)
        self._leave_out_unsubscribed()
        if held_back:
            self.assignment.hold_back(new, True)

    def _forget_old_topic(self, partitions: list[TopicPartition]) -> None:
        self.commits.forget()
        self.fetcher.drop(partitions)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        gone = list(partitions)
        self.assignment.remove(gone)
        self.fetcher.drop(gone)

    def enforce_rebalance(self, reason: str = "the application requested it") -> Flow[None]:
        """Start a rebalance of the group.

        reason: Text that JoinGroup sends to the coordinator, for its log (KIP-800).

        With group_protocol="consumer", this call only logs a warning, because the broker decides when to assign
        partitions. Raise ValueError without a subscription.
        """
        yield from ()
        if self.membership is None:
            raise ValueError("enforce_rebalance needs a subscription; call subscribe() first")
        self.membership.request_rejoin(reason)

    def pause(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Flow[None]:
        """Stop the delivery of these partitions until `resume`. Fetched data is kept. Raise ValueError for a partition
        that is not assigned."""
        yield from ()
        self.assignment.pause(partitions_in(partitions), True)

    def resume(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Flow[None]:
        """Deliver records of these partitions again."""
        yield from ()
        self.assignment.pause(partitions_in(partitions), False)

    # Polling

    def begin_poll(self) -> None:
        """Any thread: begin a request for records, which completes the records that were delivered before.

        Raise RuntimeError without a subscription or an assignment.
        """
        self.check_open()
        if self.membership is None and not self.assignment.partitions and self.error is None:
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
            or (self.membership is not None and self.membership.error is not None)
        )

    @property
    def is_unsubscribed(self) -> bool:
        """Any thread: whether a poll has nothing to wait for, because there is neither a subscription nor an
        assignment, a callback or an error."""
        return not (
            self.is_closed
            or self.has_business
            or self.membership is not None
            or not self.subscription.is_empty
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
        if self.membership is not None:
            self.membership.note_poll(self._noted_at)

    @property
    def is_late(self) -> bool:
        """Any thread: whether the application has not polled for max_poll_interval, after which a member leaves."""
        return self.membership is not None and self.clock() - self._noted_at > self.settings.max_poll_interval

    def check_open(self) -> None:
        """Raise TransportError once it is closed."""
        if self.is_closed:
            raise TransportError("the consumer is closed")

    def raise_errors(self) -> None:
        """Raise errors of the loop or the group. A refused login is raised once. The next call lets the member begin
        again, because the credentials may have been changed or created meanwhile."""
        membership = self.membership
        if self._refused_login is not None and membership is not None and membership.error is self._refused_login:
            membership.retry_login()
        self._refused_login = None
        error = self.error or (membership.error if membership is not None else None)
        if error is not None:
            if isinstance(error, AuthenticationError) and error is not self.error:
                self._refused_login = error
            raise error.with_traceback(None)

    # The member

    def health(self) -> Flow[ConsumerHealth]:
        """Return the present state of this consumer: its group member, and the position, the lag and the blocking
        reason of each partition. The call sends no request, so it returns immediately even if no broker is
        available."""
        yield from ()
        return self._health.take()

    def group_metadata(self) -> Flow[ConsumerGroupMetadata]:
        """Return the identity of this member, for `send_offsets` of a transaction. If the member has lost its
        partitions, the broker rejects its generation. Raise ValueError without a group."""
        yield from ()
        self.offsets.need_group("group_metadata")
        return self._member()

    def member_id(self) -> Flow[str]:
        """The id of the current, the last or the next member of the group.

        In the consumer protocol, the client chooses the id (KIP-1082), so it is known before the first heartbeat. In
        the classic protocol, it is empty until the coordinator has sent it. Raise ValueError without a group.
        """
        known = (yield from self.group_metadata()).member_id
        if known or self.settings.group_protocol != "consumer":
            return known
        if isinstance(self.membership, consumer_membership.ConsumerMembership):
            return self.membership.member_id
        if self._next_member_id is None:
            self._next_member_id = make_member_id(self.cluster.random)
        return self._next_member_id

    def _member(self) -> ConsumerGroupMetadata:
        """Return the current identity to commit with."""
        if self.membership is not None:
            return self.membership.group_metadata
        if self._left is not None:
            return self._left
        assert self.settings.group_id is not None
        return ConsumerGroupMetadata(self.settings.group_id, group_instance_id=self.settings.group_instance_id)

    # The end

    def close(self, timeout: float, callers: tuple[Callback, ...] = ()) -> Flow[None]:
        """Commit if commits are automatic, revoke all partitions, leave the group, and end. Further calls do
        nothing. For `callers`, see `unsubscribe`."""
        if self.is_closed:
            return
        self._report.end()
        self.assignment.complete()
        leaving = self.unsubscribe(timeout, "the consumer is closed", is_final=True, callers=callers)
        task = yield from spawn(leaving, "leave")
        try:
            yield from join(task, timeout)
        except TimeoutError:
            task.cancel()
        finally:
            self.is_closed = True
            self.commits.end()
            self.assignment.interrupt()
            self._ended.set()
            self.wake.set()
