# SPDX-License-Identifier: Apache-2.0
"""The heart that `kcodec.client.Consumer` and its asyncio twin share: assignment, fetcher, positions, committed offsets
and membership, put together.

It knows no socket and no thread. A public class gives a lock and a way to reach the loop, runs the flows, and
calls the application's rebalance callbacks (`Notices`) where it polls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypeVar

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.callbacks import Notice, Notices, PollingHandler
from kcodec.consumer.commits import Commits
from kcodec.consumer.committed_offsets import CommittedOffsets
from kcodec.consumer.delivery import LogPosition
from kcodec.consumer.fetcher import Fetcher
from kcodec.consumer.group.classic import membership as classic_membership
from kcodec.consumer.group.modern import membership as consumer_membership
from kcodec.consumer.group.rebalance import Membership, RebalanceHandler
from kcodec.consumer.held_back import HeldBack
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.polls import Polls
from kcodec.consumer.positions import Positions
from kcodec.consumer.waiting_report import WaitingReport
from kcodec.errors import DeliveryTimeoutError, KcodecError, TransportError
from kcodec.flow import CancelledFlow, Clock, Flow, Signal, Task, join, sleep, spawn, wait
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kcodec._fast import DecodedRecords, Delivery, Record

log = logging.getLogger("kcodec.consumer")
T = TypeVar("T")
Offsets = Mapping[TopicPartition, OffsetAndMetadata]
#: Topics in use are asked for so often, well below the time after which metadata forgets them.
TOPICS_WANTED_SECONDS = 60.0
#: Bounds of the interval at which a consumer looks for the progress of an iteration.
SHORTEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS = 0.02, 1.0
#: One that leaves waits so long at most for its own rejoin, which others may hold back.
REJOIN_SECONDS = 3.0
#: Time kept for leaving the group, of the timeout of a call that also commits or aborts: seconds, and share at most.
LEAVING_SECONDS, LEAVING_SHARE = 1.0, 0.25


def leaving_seconds(timeout: float) -> float:
    """Return the part of a timeout that is kept for leaving the group: a member that does not leave keeps its
    partitions until its session ends, also where only its commit or its abort got no response."""
    return min(LEAVING_SECONDS, timeout * LEAVING_SHARE)


class ConsumerCore:
    """One consumer. Methods run on the loop's thread, but for `begin_poll`, `take_back`, `has_business`, `take`,
    `take_arrow` and `take_delivery`, which the caller of poll runs where it is.

    handler: what a rebalance does; None for a plain consumer. post: runs a function on the loop; from any thread.
    now: milliseconds since 1970.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        cluster: Cluster,
        *,
        clock: Clock,
        metrics: Any,
        lock: AbstractContextManager[Any],
        post: Callable[[Callable[[], None]], None],
        now: Callable[[], int],
        handler: RebalanceHandler | None = None,
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.clock = clock
        self.assignment = Assignment(lock, post)
        random = cluster.random
        self.fetcher = Fetcher(cluster, self.assignment, settings, clock=clock, random=random, metrics=metrics)
        #: Set on the loop when a poll that waits should look again.
        self.wake: Signal = self.fetcher.arrived
        self.notices = Notices(self.wake, self.assignment.interrupt)
        self.polls = Polls(self)
        self.committed = CommittedOffsets(cluster, settings.group_id, settings) if settings.group_id else None
        self.positions = Positions(
            cluster,
            self.assignment,
            self.committed,
            settings,
            clock=clock,
            random=random,
            # Its epoch is checked by the coordinator of a KIP-848 group, and of no other.
            member=self._member if settings.group_protocol == "consumer" else None,
            now=now,
        )
        self.handler: RebalanceHandler = handler or PollingHandler(self)
        self.membership: Membership | None = None
        self._left: ConsumerGroupMetadata | None = None
        self.report = WaitingReport(self)
        self.commits = Commits(self)
        self.error: BaseException | None = None
        self.is_closed = False
        self.subscription: frozenset[str] = frozenset()
        self.pattern: str | None = None
        self.post = post
        self._tasks: list[Task[None]] = []
        self._ended = Signal()

    # The flows that run beside

    def run(self) -> Flow[None]:
        """All that goes on in the background, until `close`; the public class spawns it once."""
        flows = {
            "fetcher": self.fetcher.run(),
            "positions": self.positions.run(),
            "commits": self.commits.run(),
            "topics": self._keep_topics_wanted(),
            "held back": HeldBack(self).run(),
            "report": self.report.run(),
            "watch": self._watch(lambda: self.assignment.changed),
        }
        if self.settings.group_id is not None:
            flows["iteration"] = self._watch_iteration()
        for name, flow in flows.items():
            self._tasks.append((yield from spawn(self._guarded(flow), name)))
        try:
            while not self.is_closed:
                yield from wait(self._ended)
        finally:
            for task in self._tasks:
                task.cancel()

    def _guarded(self, flow: Flow[None]) -> Flow[None]:
        """Background work that fails must not fail in silence: poll raises what it met."""
        try:
            yield from flow
        except Exception as error:
            self.crash(error)
            raise

    def _watch(self, signal: Callable[[], Signal]) -> Flow[None]:
        """A poll that waits looks again when this is set."""
        while True:
            yield from wait(signal())
            self.assignment.interrupt()
            self.wake.set()

    def _watch_iteration(self) -> Flow[None]:
        """Records of a chunk are delivered without a look at the clock: note here that the application requests them,
        and interrupt it when a commit is due."""
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

    def _keep_topics_wanted(self) -> Flow[None]:
        while True:
            self.cluster.topics_wanted({each.topic for each in self.assignment.partitions} | self.subscription)
            yield from sleep(TOPICS_WANTED_SECONDS)

    def crash(self, error: BaseException) -> None:
        """The loop cannot go on, or a part of it failed: every call raises from now on."""
        if self.error is None and not isinstance(error, CancelledFlow):
            reason = error
            if not isinstance(error, KcodecError):
                reason = TransportError(f"the loop of this consumer failed: {error!r}")
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
        """Have the group give out the partitions of these topics. Raises ValueError after `assign`, or without a
        group."""
        self.check_open()
        if self.settings.group_id is None:
            raise ValueError("subscribe needs group_id=: a group gives out the partitions")
        if self.assignment.partitions and self.membership is None:
            raise ValueError("partitions were assigned by hand, which excludes a subscription: unsubscribe() first")
        if isinstance(self.handler, PollingHandler):
            self.handler.on_revoked, self.handler.on_assigned = on_revoked, on_assigned
            self.handler.on_lost = on_lost
        self.subscription, self.pattern = frozenset(topics), pattern
        self.cluster.topics_wanted(self.subscription)
        if self.membership is None:
            self.membership = self._new_membership()
            self._tasks.append((yield from spawn(self._guarded(self.membership.run()), "membership")))
            changed = self.membership.changed
            self._tasks.append((yield from spawn(self._watch(lambda: changed), "watch membership")))
        self.membership.note_poll(self.clock())
        self.membership.subscribe(self.subscription, pattern)

    def _new_membership(self) -> Membership:
        random = self.cluster.random
        if self.settings.group_protocol == "consumer":
            return consumer_membership.ConsumerMembership(
                self.cluster, self.settings, self.handler, clock=self.clock, random=random
            )
        return classic_membership.ClassicMembership(
            self.cluster, self.settings, self.handler, clock=self.clock, random=random
        )

    def assign(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        """Read exactly these, chosen by hand. Raises ValueError after `subscribe`."""
        self.check_open()
        if self.membership is not None:
            raise ValueError("the group gives out the partitions, which excludes assigning them: unsubscribe() first")
        wanted = frozenset(TopicPartition(*each) for each in partitions)
        self._left = None  # partitions chosen by hand are nobody's
        going = frozenset(self.assignment.partitions) - wanted
        if going:
            yield from self.commit_before_revocation(going)
        self.remove(going)
        self.add(wanted)

    def unsubscribe(self, timeout: float, reason: str = "the consumer unsubscribed") -> Flow[None]:
        """Give everything away, and leave the group, within `timeout` seconds in all."""
        self.subscription, self.pattern = frozenset(), None
        membership, deadline = self.membership, self.clock() + timeout
        if membership is None:
            yield from self.commit_before_revocation(self.assignment.partitions, deadline)
            self.remove(list(self.assignment.partitions))
            return
        # A rejoin under way would give the commit before the revocation a generation that is over when it arrives.
        is_held = yield from membership.gate.acquire(min(timeout - leaving_seconds(timeout), REJOIN_SECONDS))
        is_given_up = False
        try:
            yield from self._revoke_all(deadline - leaving_seconds(timeout))
        except GeneratorExit:
            is_given_up = True  # nothing may be waited for any more
            raise
        finally:
            if is_held:
                membership.gate.release()
            # Until here it was a member, so that what was revoked could be committed. Who it was stays its name: a
            # coordinator takes offsets of nobody also in a group that has members, so one that left would be let in.
            self._left = membership.group_metadata
            self.membership = None
            try:
                if not is_given_up:
                    yield from membership.leave(max(deadline - self.clock(), 0.0), reason)
            finally:
                self.remove(list(self.assignment.partitions))  # what a rebalance may have given meanwhile

    def _revoke_all(self, deadline: float) -> Flow[None]:
        """Have the handler give everything away. What is not committed at the deadline stays uncommitted, and a
        rebalance that is under way is not waited for any longer."""
        task = yield from spawn(self.handler.revoke(self.handler.owned, deadline), "revoke")
        try:
            yield from join(task, max(deadline - self.clock(), 0.0))
        except TimeoutError:
            log.warning("the partitions were given away without waiting any longer: the timeout of the call is over")
        finally:
            task.cancel()

    def add(self, partitions: Iterable[TopicPartition], *, held_back: bool = False) -> None:
        """Read these, from their committed offsets on; held_back: nothing is delivered yet."""
        new = frozenset(partitions)
        self.commits.forget()
        self.cluster.topics_wanted({each.topic for each in new})
        self.assignment.add(new)
        if held_back:
            self.assignment.hold_back(new, True)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more."""
        gone = list(partitions)
        self.assignment.remove(gone)
        self.fetcher.drop(gone)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what was fetched of these."""
        self.fetcher.drop(list(partitions))

    # Polling

    def begin_poll(self) -> None:
        """Any thread: the application requests records, so it has completed those that it was given before.

        Raises RuntimeError where there is neither a subscription nor an assignment.
        """
        self.check_open()
        if not self.is_reading and self.error is None:
            raise RuntimeError(
                "poll() has nothing to read: this consumer has neither a subscription nor assigned partitions; call "
                "subscribe() or assign() first"
            )
        self.assignment.begin_request()
        self.note_poll()
        self.commits.note_poll(self.clock())
        self.polls.note()

    def take_back(self) -> None:
        """Any thread: the poll that has begun was interrupted, and the application is not given what was taken."""
        self.assignment.take_back_request()

    def take_back_uncompleted(self) -> None:
        """Any thread: an exception ends the block of the consumer. Positions go back to what was completed, so that
        neither the automatic commit of `close` nor a commit in on_revoked includes records that were not processed."""
        self.assignment.take_back()

    @property
    def has_business(self) -> bool:
        """Any thread: whether the loop has something for this poll beside records."""
        return (
            self.polls.is_wanted
            or bool(self.notices.waiting)
            or self.error is not None
            or (self.membership is not None and self.membership.error is not None)
        )

    def take(self, max_records: int) -> list[Record]:
        """Any thread: records that are here, [] if none are. Raises the errors of partitions."""
        return self.fetcher.take(max_records)

    def take_arrow(self) -> DecodedRecords:
        """Any thread: what is here of one partition, as columns; of no rows if nothing is."""
        return self.fetcher.take_arrow()

    def take_delivery(self, max_records: int) -> Delivery | None:
        """Any thread: records that are here, to be delivered one by one; None if none are. Raises as `take`."""
        return self.fetcher.take_delivery(max_records)

    def wait_for_work(self, timeout: float) -> Flow[Notice | None]:
        """Part of a poll; see `Polls.wait_for_work`."""
        return self.polls.wait_for_work(timeout)

    def note_poll(self) -> None:
        """Any thread: tell the group that the application polls."""
        if self.membership is not None:
            self.membership.note_poll(self.clock())

    @property
    def is_reading(self) -> bool:
        """Whether there is a subscription, whatever the group assigned, or an assignment."""
        return self.membership is not None or bool(self.assignment.partitions)

    def check_open(self) -> None:
        """Raises TransportError once it is closed."""
        if self.is_closed:
            raise TransportError("the consumer is closed")

    def raise_errors(self) -> None:
        """Raises what the loop or the group met."""
        error = self.error or (self.membership.error if self.membership is not None else None)
        if error is not None:
            raise error.with_traceback(None)

    # Offsets

    def position(self, partition: TopicPartition, timeout: float) -> Flow[int]:
        """The offset read next, waited for. Raises ValueError where it is not assigned, DeliveryTimeoutError, and what
        keeps the partition from being read."""
        deadline = self.clock() + timeout
        while True:
            self.raise_errors()
            state: PartitionState = self.assignment.state(partition)
            if state.error is not None and not state.is_error_passing:
                raise state.error.with_traceback(None)
            if state.position is not None and state.awaiting is None:
                return state.position
            left = deadline - self.clock()
            if left <= 0:
                late = f"{partition} has no position after {timeout:g} s: it awaits {state.awaiting}"
                cause = self.report.cause_of(partition)
                raise DeliveryTimeoutError(f"{late}; {cause}" if cause else late)
            yield from wait(self.wake, left)

    def consumed(
        self, partitions: Iterable[TopicPartition] | None = None, *, is_kept: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Any thread: the positions, as they are committed: where to go on, not what was read last. is_kept: without
        those that are being given away, or lost."""
        return self._offsets(lambda state: state.log_position, partitions, is_kept)

    def completed(
        self, partitions: Iterable[TopicPartition] | None = None, *, is_kept: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Any thread: as `consumed`, without the records that the application is still processing. Automatic commits
        carry these."""
        return self._offsets(lambda state: state.completed_position, partitions, is_kept)

    def _offsets(
        self,
        position_of: Callable[[PartitionState], LogPosition | None],
        partitions: Iterable[TopicPartition] | None,
        is_kept: bool,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        with self.assignment.lock:
            chosen = self.assignment.partitions if partitions is None else frozenset(partitions)
            return {
                name: OffsetAndMetadata(found.offset, "", found.leader_epoch)
                for name, state in self.assignment.partitions.items()
                if name in chosen and state.awaiting != "reset" and (found := position_of(state)) is not None
                if not (is_kept and state.is_revoking)
            }

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata) -> Flow[None]:
        """Go on there; what was fetched is dropped."""
        yield from ()
        self.assignment.seek(partition, offset.offset, offset.leader_epoch)
        self.fetcher.drop([partition])

    def seek_to(self, partitions: Iterable[TopicPartition], to: str) -> Flow[None]:
        """Go on at the "earliest" or "latest" offset, looked up before the next record is delivered. Raises ValueError
        where nothing is assigned, but for a call within on_assigned, which may have got nothing."""
        yield from ()
        chosen = list(partitions) or list(self.assignment.partitions)
        if not chosen and not self.notices.is_telling:
            name = "seek_to_beginning" if to == "earliest" else "seek_to_end"
            raise ValueError(
                f"{name}() has no partition to move: nothing is assigned to this consumer yet; a subscription gets its "
                "partitions within poll(), so call it in on_assigned"
            )
        for partition in chosen:
            self.assignment.reset(partition, to)
        self.fetcher.drop(chosen)

    def _member(self) -> ConsumerGroupMetadata:
        """Who commits, as of now."""
        if self.membership is not None:
            return self.membership.group_metadata
        if self._left is not None:
            return self._left
        assert self.settings.group_id is not None
        return ConsumerGroupMetadata(self.settings.group_id, group_instance_id=self.settings.group_instance_id)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """For offsets inside a transaction. Raises ValueError without a group."""
        self.need_group("group_metadata")
        return self._member()

    def need_group(self, what: str) -> CommittedOffsets:
        """Raises ValueError without a group."""
        if self.committed is None:
            raise ValueError(f"{what} needs group_id=: offsets are committed for a group")
        return self.committed

    def commit_before_revocation(
        self, partitions: Iterable[TopicPartition], deadline: float | None = None
    ) -> Flow[None]:
        """Where commits are automatic: those of partitions that are about to be given away."""
        yield from self.commits.commit_before_revocation(partitions, deadline)

    # The end

    def close(self, timeout: float) -> Flow[None]:
        """Commit where that is automatic, give everything away, leave the group, end. Idempotent."""
        if self.is_closed:
            return
        self.assignment.complete()
        deadline = self.clock() + timeout
        task = yield from spawn(self.unsubscribe(timeout, "the consumer is closed"), "leave")
        try:
            yield from join(task, timeout)
            yield from self.commits.drain(max(deadline - self.clock(), 0.0))
        except TimeoutError:
            task.cancel()
        finally:
            self.is_closed = True
            self.assignment.interrupt()
            self._ended.set()
            self.wake.set()
