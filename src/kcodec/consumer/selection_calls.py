# SPDX-License-Identifier: Apache-2.0
"""The calls of a consumer that choose what it reads: subscriptions, assignments by hand, and the member of the group
that gets partitions assigned.

Many of these flows are methods of the public classes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

from kcodec.arguments import partitions_in, partitions_of
from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import Assignment
from kcodec.consumer.callbacks import Callback, RebalanceListener
from kcodec.consumer.commits import Commits
from kcodec.consumer.fetcher import Fetcher
from kcodec.consumer.group.classic import membership as classic_membership
from kcodec.consumer.group.modern import membership as consumer_membership
from kcodec.consumer.group.modern.heartbeat import make_member_id
from kcodec.consumer.group.rebalance import Membership, RebalanceHandler, Subscription
from kcodec.consumer.known_partitions import KnownPartitions
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.rebalance_handler import ConsumerRebalanceHandler
from kcodec.end_limits import LEAVE_AT_ONCE_SECONDS
from kcodec.flow import CancelledFlow, Flow, InterruptedFlow, Signal, Task, join, spawn
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition

Partitions = Iterable[TopicPartition]
log = logging.getLogger("kcodec.consumer")
#: Longest time that a consumer that leaves waits for its own rejoin, which other members may delay.
REJOIN_SECONDS = 3.0
#: Time that a call that also commits or aborts reserves for leaving: seconds, and maximum share of its timeout.
LEAVING_SECONDS, LEAVING_SHARE = 1.0, 0.25


def leaving_seconds(timeout: float) -> float:
    """Return the part of a timeout that is reserved for leaving the group. A member that does not leave keeps its
    partitions until its session ends, so it must leave even if its commit or its abort gets no response."""
    return min(LEAVING_SECONDS, timeout * LEAVING_SHARE)


class SelectionCalls:
    """See the module. `handler` must be set before the first call.

    ended:      Called with each background task that has ended. If the task has failed, every call of the consumer
                raises its error.
    watch:      Returns a background flow that wakes a waiting poll whenever a signal is set.
    check_open: Raises an error once the consumer is closed.
    note_poll:  Reports to the group that the application polls.
    """

    handler: RebalanceHandler

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        fetcher: Fetcher,
        commits: Commits,
        known_partitions: KnownPartitions,
        settings: ConsumerSettings,
        *,
        ended: Callable[[Task[None]], None],
        watch: Callable[[Callable[[], Signal]], Flow[None]],
        check_open: Callable[[], None],
        note_poll: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._assignment = assignment
        self._fetcher = fetcher
        self._commits = commits
        self._known_partitions = known_partitions
        self._settings = settings
        self._flow_ended = ended
        self._watch = watch
        self._check_open = check_open
        self._note_poll = note_poll
        self.subscription = Subscription()
        self.membership: Membership | None = None
        #: The background flows of the member.
        self.membership_tasks: list[Task[None]] = []
        self._left: ConsumerGroupMetadata | None = None
        #: Id of the next member in the consumer protocol, if `member_id` has chosen it.
        self._next_member_id: str | None = None
        #: Number of subscriptions and assignments that the application has begun.
        self._selections = 0
        #: The partitions, assigned by hand, that an `unsubscribe` under way will remove.
        self._going: frozenset[TopicPartition] = frozenset()
        #: Identifies the `unsubscribe` that holds the lock of the membership; None if none does.
        self._lock_holder: object | None = None
        #: The flows in which members leave. An interrupted call does not end its flow, and `close` waits for it.
        self._leaving: dict[Membership, Task[None]] = {}
        #: The members that may still be in their group.
        self._members: set[Membership] = set()

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
        self._check_open()
        if self._settings.group_id is None:
            raise ValueError("subscribe needs a consumer with group_id=, as a group assigns the partitions")
        if self._assignment.partitions and self.membership is None:
            raise ValueError("subscribe is not possible after assign(); call unsubscribe() first")
        if isinstance(self.handler, ConsumerRebalanceHandler):
            self.handler.listener = RebalanceListener(on_revoked, on_assigned, on_lost)
        subscription = Subscription(frozenset(topics), pattern)
        if subscription != self.subscription and (pattern is not None or self.subscription.pattern is not None):
            self._known_partitions.forget()  # otherwise, what is known of the topics stays valid
        self.subscription = subscription
        self._cluster.add_topics(self.subscription.topics)
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
            if self._settings.group_protocol == "consumer":
                return  # the broker matches the pattern
            accepts = re.compile(subscription.pattern).fullmatch
        if gone := self._assignment.note_subscription(accepts):
            self._fetcher.drop(gone)

    def _join_group(self) -> Flow[None]:
        """Pass the subscription to the group member. Create the member if it does not exist."""
        membership = self.membership
        if membership is None:
            self._selections += 1
            membership = self.membership = self._new_membership()
            self._members.add(membership)
            flows = {"membership": membership.run(), "watch membership": self._watch(lambda: membership.changed)}
            for name, flow in flows.items():
                self.membership_tasks.append((yield from spawn(flow, name)))
                self.membership_tasks[-1].when_done(self._flow_ended)
        self._note_poll()
        membership.subscribe(self.subscription.topics, self.subscription.pattern)

    def _new_membership(self) -> Membership:
        if self._settings.group_protocol == "consumer":
            member_id, self._next_member_id = self._next_member_id, None
            return consumer_membership.ConsumerMembership(self._cluster, self._settings, self.handler, member_id)
        return classic_membership.ClassicMembership(self._cluster, self._settings, self.handler)

    def assign(self, partitions: Partitions) -> Flow[None]:
        """Read exactly these partitions, without a group. Partitions that were assigned before keep their position.

        Raise ValueError after `subscribe`.
        """
        assigned = frozenset(partitions_of(partitions))
        self._check_open()
        if self.membership is not None:
            raise ValueError("assign is not possible after subscribe(); call unsubscribe() first")
        self._selections += 1
        self._left = None  # partitions chosen by hand do not belong to a member
        self._going = frozenset()
        going = frozenset(self._assignment.partitions) - assigned
        if going:
            yield from self._commits.commit_before_revocation(going)
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
                yield from self._commits.commit_before_revocation(going)
            finally:
                self.remove(going)

    def incremental_unassign(self, partitions: Partitions) -> Flow[None]:
        """Stop reading these partitions, and keep the others. If commits are automatic, commit their offsets first.

        Raise ValueError if a partition is not assigned, and after `subscribe`.
        """
        going = frozenset(partitions_of(partitions))
        self._check_manual("incremental_unassign")
        for partition in going:
            self._assignment.state(partition)
        yield from self._commits.commit_before_revocation(going)
        self.remove(going)

    def replace_assignment(self, partitions: Partitions, kept: Partitions = ()) -> Flow[None]:
        """Read exactly these partitions, as a member of a group, which may have assigned others.

        The group does not know of partitions that it has not assigned, and no rebalance revokes them. Partitions that
        the group has assigned and that are missing here are skipped until a later call names them. If commits are
        automatic, the offsets of partitions that are no longer read are committed first.

        kept: partitions that stay as they are; the others begin at their committed offsets.
        """
        wanted, unchanged = frozenset(partitions_of(partitions)), frozenset(partitions_of(kept))
        self._check_open()
        yield from self._commits.commit_before_revocation(frozenset(self._assignment.partitions) - unchanged)
        owned = self.handler.owned
        self.remove(frozenset(self._assignment.partitions) - unchanged)
        self.add((wanted & owned) - unchanged)
        self.add(wanted - owned - unchanged, is_added=True)
        self.add(owned - wanted - unchanged)
        self._assignment.skip(owned - wanted - unchanged)

    @property
    def added(self) -> frozenset[TopicPartition]:
        """Any thread: the partitions that `replace_assignment` has added to those of the group."""
        return self._assignment.chosen(lambda state: state.is_added)

    @property
    def skipped(self) -> frozenset[TopicPartition]:
        """Any thread: the partitions of the group that `replace_assignment` has left out."""
        return self._assignment.chosen(lambda state: state.is_skipped)

    def _check_manual(self, what: str) -> None:
        """Raise ValueError if a group assigns the partitions, TransportError once the consumer is closed."""
        self._check_open()
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
        """Revoke all partitions and leave the group, within `timeout` seconds in total. If the timeout passes before
        the request to leave is sent, wait LEAVE_AT_ONCE_SECONDS more for its response.

        This flow continues if its caller is interrupted. The application may therefore subscribe or assign partitions
        meanwhile, unless `is_final`: the consumer is then closed.

        callers: The callbacks in which the application makes this call. A revocation that waits for one of them is not
                 waited for.
        """
        self.subscription = Subscription()
        self._known_partitions.forget()
        membership, deadline, selections = self.membership, self._clock() + timeout, self._selections
        if membership is None:
            self._going = frozenset(self._assignment.partitions)
            yield from self._commits.drain(deadline)
            yield from self._commits.commit_before_revocation(self._assignment.partitions, deadline)
            if self._selections == selections:
                self._going = frozenset()
                self.remove(list(self._assignment.partitions))
            if is_final:
                yield from self._leave_with_all(deadline, reason)
            return
        # A rejoin under way would give the commit before the revocation a generation that is over when it arrives.
        # During on_revoked, no rejoin is under way, but a call that waits for on_revoked may hold the lock. This call
        # then releases it.
        is_within, holder = bool(self._revoked_in(callers)), object()
        if not is_within:
            # Without partitions, there is no such commit, and a rejoin waits for other members.
            has_partitions = bool(self.handler.owned or self.added)
            longest = min(timeout - leaving_seconds(timeout), REJOIN_SECONDS) if has_partitions else 0.0
            if (yield from membership.group_lock.acquire(longest)):
                self._lock_holder = holder
        is_given_up = False
        try:
            until = deadline - leaving_seconds(timeout)
            yield from self._commits.drain(until - leaving_seconds(timeout))  # on_revoked is called even after that
            # An earlier call that was interrupted may have ended the membership, and a later one begun another.
            if self.membership is membership and self.added:
                yield from self._commits.commit_before_revocation(self.added, until)
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
                tasks, self.membership_tasks = self.membership_tasks, []
                self.remove(
                    list(self._assignment.partitions)
                )  # partitions that a rebalance may have assigned meanwhile
            selections = self._selections
            try:
                if is_current and not self.subscription.is_empty and not is_given_up and not is_final:
                    yield from self._join_group()
                if not is_given_up:
                    yield from self._leave(membership, deadline, reason)
                    if is_final:
                        yield from self._leave_with_all(deadline, reason)
            finally:
                for task in tasks:
                    task.cancel()
                # Otherwise the partitions belong to the next subscription or assignment.
                if is_current and self._selections == selections:
                    self.remove(list(self._assignment.partitions))

    def leave_unclosed(self, reason: str) -> Flow[None]:
        """Leave the group without a commit and without callbacks, because the application has dropped the consumer
        without closing it, or its close was interrupted or took too long. Nothing is known about the records that it
        has processed.

        reason: Why the consumer leaves, for the coordinator and for log lines.
        """
        self.membership = None
        deadline = self._clock() + LEAVING_SECONDS
        yield from self._leave_with_all(deadline, reason)

    @property
    def may_have_members(self) -> bool:
        """Whether a member has not left its group, or its request to leave is under way."""
        return bool(self._members)

    def _leave_with_all(self, deadline: float, reason: str) -> Flow[None]:
        """Let all members leave that have not, and wait for those whose request is under way. There are several if
        calls were interrupted."""
        for membership in list(self._members):
            try:
                yield from self._leave(membership, deadline, reason)
            except (CancelledFlow, InterruptedFlow) as error:
                log.info("a request to leave the group was interrupted: %s", error)
        yield from self._end_leaving(deadline)

    def _leave(self, membership: Membership, deadline: float, reason: str) -> Flow[None]:
        """Let a member leave its group. If another call has begun this, do nothing."""
        if membership in self._leaving or membership not in self._members:
            return
        left = deadline - self._clock()
        # After the deadline, the request is still sent, and the call waits briefly for its response. Otherwise the
        # member would stay until its session times out.
        flow = membership.leave(left if left > 0 else LEAVE_AT_ONCE_SECONDS, reason)
        task = self._leaving[membership] = yield from spawn(flow, "leave the group")
        task.when_done(lambda task: self._note_left(membership, task))
        yield from join(task)

    def _note_left(self, membership: Membership, task: Task[None]) -> None:
        self._leaving.pop(membership, None)
        if not isinstance(task.error, CancelledFlow | InterruptedFlow):  # otherwise, it can leave again
            self._members.discard(membership)

    def _end_leaving(self, deadline: float) -> Flow[None]:
        """Wait until no member is leaving any more, because their requests need the connections of this client."""
        for task in list(self._leaving.values()):
            try:
                yield from join(task, max(deadline - self._clock(), 0.0))
            except TimeoutError:
                return
            except (CancelledFlow, InterruptedFlow) as error:
                log.info("a request to leave the group was interrupted: %s", error)

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
            yield from join(task, max(deadline - self._clock(), 0.0))
        except TimeoutError:
            log.warning("the partitions were revoked without waiting any longer, as the timeout of the call has passed")
        finally:
            task.cancel()

    def add(self, partitions: Iterable[TopicPartition], *, held_back: bool = False, is_added: bool = False) -> None:
        """Read these partitions from their committed offsets. With `held_back`, deliver nothing yet. For `is_added`,
        see `PartitionState`."""
        new = frozenset(partitions)
        self._commits.forget()
        if self.membership is not None:
            self._known_partitions.note(new)
        self._cluster.add_topics({each.topic for each in new})
        self._assignment.add(new, is_added=is_added)
        self._leave_out_unsubscribed()
        if held_back:
            self._assignment.hold_back(new, True)

    def forget_old_topic(self, partitions: list[TopicPartition]) -> None:
        """Drop what is known of partitions whose topic was deleted and created again."""
        self._commits.forget()
        self._fetcher.drop(partitions)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        gone = list(partitions)
        self._assignment.remove(gone)
        self._fetcher.drop(gone)

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
        self._assignment.pause(partitions_in(partitions), True)

    def resume(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Flow[None]:
        """Deliver records of these partitions again."""
        yield from ()
        self._assignment.pause(partitions_in(partitions), False)

    def group_metadata(self) -> Flow[ConsumerGroupMetadata]:
        """Return the identity of this member, for `send_offsets` of a transaction. If the member has lost its
        partitions, the broker rejects its generation. Raise ValueError without a group."""
        yield from ()
        self._settings.need_group("group_metadata")
        return self.member()

    def member_id(self) -> Flow[str]:
        """The id of the current, the last or the next member of the group.

        In the consumer protocol, the client chooses the id (KIP-1082), so it is known before the first heartbeat. In
        the classic protocol, it is empty until the coordinator has sent it. Raise ValueError without a group.
        """
        known = (yield from self.group_metadata()).member_id
        if known or self._settings.group_protocol != "consumer":
            return known
        if isinstance(self.membership, consumer_membership.ConsumerMembership):
            return self.membership.member_id
        if self._next_member_id is None:
            self._next_member_id = make_member_id(self._cluster.random)
        return self._next_member_id

    def member(self) -> ConsumerGroupMetadata:
        """Return the current identity to commit with."""
        if self.membership is not None:
            return self.membership.group_metadata
        if self._left is not None:
            return self._left
        assert self._settings.group_id is not None
        return ConsumerGroupMetadata(self._settings.group_id, group_instance_id=self._settings.group_instance_id)
