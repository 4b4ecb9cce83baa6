# SPDX-License-Identifier: Apache-2.0
"""A member of a group of the classic protocol: JoinGroup, SyncGroup, then heartbeats until the next rebalance.

One flow, `run`, executes the steps of a rebalance (`join.py`): it waits until the application polls, revokes
partitions, joins, assigns as the leader, syncs, and adds new partitions. Another flow sends heartbeats
(`heartbeats.py`), even while the application processes records. They share a `ClassicMember`. The flow that detects the
end of the generation resets it, and the first flow then treats all partitions as lost before its next step.

Source: Kafka's AbstractCoordinator and ConsumerCoordinator; KIP-394 (member id), KIP-345 (static members), KIP-429
(cooperative), KIP-447 (generation of commits), KIP-800 (reasons), KIP-814 (skip_assignment).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kcodec.cluster.flow_lock import FlowLock
from kcodec.cluster.metadata import Cluster
from kcodec.consumer.group.classic.heartbeats import Heartbeats
from kcodec.consumer.group.classic.join import CHANGED_PARTITIONS, JoinRounds
from kcodec.consumer.group.classic.member_state import ClassicMember, ClassicMemberState
from kcodec.consumer.group.classic.requests import GroupRequests
from kcodec.consumer.group.classic.topics import REFUSED_SECONDS, REMIND_SECONDS, GroupTopics
from kcodec.consumer.group.rebalance import Heartbeat, RebalanceHandler
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import AuthenticationError, TransportError
from kcodec.flow import CancelledFlow, Flow, Task, join, sleep, spawn, wait
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition

log = logging.getLogger("kcodec.consumer")
NOTHING: frozenset[TopicPartition] = frozenset()
#: Time to wait for the response to the first JoinGroup, which has the id of the member that leaves.
FIRST_JOIN_SECONDS = 1.0


class ClassicMembership:
    """One member; see `kcodec.consumer.group.rebalance.Membership`. Methods run on the loop, except `note_poll`."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, handler: RebalanceHandler) -> None:
        self.settings = settings
        self.handler = handler
        self.group_lock = FlowLock(cluster.clock)
        self.requests = GroupRequests(cluster, settings)
        self.topics = GroupTopics(cluster, settings)
        self.member = ClassicMember(self.requests.group_id, settings.group_instance_id)
        self.changed, self._wake = self.member.changed, self.member.wake
        self._heartbeats = Heartbeats(self.member, self.requests)
        self._rounds = JoinRounds(self.member, self.requests, self.topics, self._heartbeats, self._owned)
        self._cluster = cluster
        self._refusal: BaseException | None = None
        self._given = NOTHING
        self._is_over = False
        #: The id with which the member is leaving its group; a call that is interrupted is repeated.
        self._departing_id = ""

    # The public API

    @property
    def error(self) -> BaseException | None:
        """The error that poll raises; None if none exists."""
        return self.member.error

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """The identity for commits, from the last successful SyncGroup until the next one.

        It is kept after the member has left the group, because the coordinator rejects a commit of a former member, but
        would accept a commit without a member.
        """
        return self.member.metadata

    @property
    def is_stable(self) -> bool:
        """Whether the last rebalance is complete and its partitions are assigned."""
        return self.member.is_stable and self.member.is_reconciled and not self._needs_join()

    @property
    def last_error(self) -> BaseException | None:
        """The error of the last attempt to join; None after a successful attempt."""
        return None if self.member.is_stable else self._rounds.last_error

    @property
    def waits_for_others(self) -> bool:
        """Whether JoinGroup or SyncGroup is under way: the coordinator responds when all members have joined."""
        return self.member.is_joining

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Set the subscription. Leave the group if it is empty. Raise ValueError for an invalid pattern."""
        self.topics.subscribe(topics, pattern)
        self.member.error = self._refusal = None
        self._heartbeats.note_poll(self._cluster.clock())
        self.member.notify()

    def request_rejoin(self, reason: str) -> None:
        """Start a rebalance. If there are several reasons, the first one is sent."""
        self.member.request_rejoin(reason)

    def retry_login(self) -> None:
        """See Membership."""
        if isinstance(self.member.error, AuthenticationError):
            self.member.error = None
            self.member.notify()

    def note_poll(self, now: float) -> None:
        """Note that the application polled; any thread."""
        self._heartbeats.note_poll(now)

    def force_heartbeat(self, timeout: float) -> Flow[Heartbeat]:
        """Check with the coordinator whether this member is still in the generation of `group_metadata`."""
        return self._heartbeats.force(timeout)

    def leave(self, timeout: float, reason: str) -> Flow[None]:
        """Leave the group (a static member stays), and end. The partitions were revoked before."""
        self._is_over = True
        self.topics.end()
        yield from self._depart(timeout, reason)

    def run(self) -> Flow[None]:
        """Run the member until `leave`."""
        helpers: list[Task[None]] = []
        try:
            for flow, name in ((self._heartbeats.run(), "group heartbeats"), (self._watch_metadata(), "group topics")):
                helpers.append((yield from spawn(flow, name)))
                helpers[-1].when_done(self._helper_ended)
            while not self._is_over:
                try:
                    yield from self._turn()
                except Exception as error:  # noqa: BLE001  assignors and callbacks raise anything
                    self.member.fail(error)
        finally:
            for helper in helpers:
                helper.cancel()

    def _helper_ended(self, task: Task[None]) -> None:
        """Make poll raise the error of a helper flow, which never ends without an error."""
        if task.error is not None and not isinstance(task.error, CancelledFlow):
            self.member.fail(task.error)

    def _owned(self) -> frozenset[TopicPartition]:
        """Return the partitions from this group."""
        return self._given & self.handler.owned

    def _needs_join(self) -> bool:
        return self.member.rejoin_reason is not None or self.member.joined_topics != self.topics.topics

    def _watch_metadata(self) -> Flow[None]:
        """Track the pattern, and on the leader the partitions of all topics of the group."""
        while True:
            is_refused = self._refusal is not None
            has_come = yield from wait(self._cluster.changed, REFUSED_SECONDS if is_refused else REMIND_SECONDS)
            if is_refused and not has_come:
                self._cluster.request_update("a topic was refused")
            before = self.topics.topics
            self.topics.take_up_metadata()
            self._note_refusal()
            if self.topics.topics != before:
                self.member.notify()
            if self.topics.has_changed():
                self.member.request_rejoin(CHANGED_PARTITIONS)

    def _note_refusal(self) -> None:
        """Make poll raise the error of a rejected topic while the error persists. The membership does not change."""
        refusal, is_reported = self.topics.refusal(), self._refusal is not None and self.error is self._refusal
        if (refusal is not None and self.error is None) or (refusal is None and is_reported):
            self.member.error = self._refusal = refusal
            self.member.notify()

    def _turn(self) -> Flow[None]:
        """Take the next step, or wait for one."""
        member, owned = self.member, self._owned()
        if not member.generation.is_member and owned:
            self._given = NOTHING
            yield from self.handler.lose(owned)
        elif not self.topics.is_subscribed and (self._given or member.generation.member_id):
            yield from self._unsubscribe()
        elif member.error is not None or not self.topics.is_subscribed:
            yield from wait(self._wake)
        elif member.is_late:
            member.is_late = not (yield from self._until_polled(needs_generation=False))
        elif not self._needs_join():
            yield from wait(self._wake)
        elif member.is_prepared or (yield from self._prepare()):
            yield from self._rejoin()

    def _unsubscribe(self) -> Flow[None]:
        if owned := self._owned():
            yield from self.handler.revoke(owned)
        self._given = NOTHING
        yield from self._depart(self.settings.request_timeout, "the consumer unsubscribed from all topics")

    def _depart(self, timeout: float, reason: str) -> Flow[None]:
        """Send LeaveGroup, unless the member is expected to return."""
        member_id, channel = self.member.generation.member_id or self._departing_id, self.member.channel
        self._departing_id = member_id
        self.topics.forget_group()
        self.member.depart()
        deadline = self._cluster.clock() + timeout
        if not member_id:
            is_static = self.settings.group_instance_id is not None  # it stays, so its id is not needed
            longest = 0.0 if is_static else min(timeout, FIRST_JOIN_SECONDS)
            member_id = self._departing_id = yield from self._rounds.new_member_id(longest)
        if member_id:
            yield from self._heartbeats.leave(member_id, deadline - self._cluster.clock(), reason, channel)
        self._departing_id = ""

    # A rebalance

    def _prepare(self) -> Flow[bool]:
        """Revoke the partitions that must be revoked before JoinGroup. Return False if the state has changed
        meanwhile."""
        before = self.member.generation
        if self._owned():
            if not (yield from self._until_polled()):
                return False
            given_up = {
                one for one in self._owned() if not (self._rounds.is_cooperative and self.topics.accepts(one.topic))
            }
            if given_up:
                yield from self.handler.revoke(given_up)
                self._given -= given_up
        if self.member.generation != before or not self._is_subscribed:
            return False
        self.member.is_prepared = True
        self.topics.forget_group()
        return True

    def _until_polled(self, *, needs_generation: bool = True) -> Flow[bool]:
        """Wait until the application polls. Return False if the generation, the subscription or the membership ends
        first."""
        task = yield from spawn(self.handler.until_polled(), "until polled")
        task.when_done(lambda _: self._wake.set())
        try:
            while not task.done and self._is_subscribed and (self.member.generation.is_member or not needs_generation):
                yield from wait(self._wake)
            if task.done:
                yield from join(task)
            return task.done
        finally:
            task.cancel()

    @property
    def _is_subscribed(self) -> bool:
        """Whether the consumer is to be a member."""
        return self.topics.is_subscribed and not self._is_over

    def _rejoin(self) -> Flow[None]:
        """Run one round of JoinGroup and SyncGroup, and apply its result. If it fails, pause; the next step tries
        again."""
        if not (yield from self.topics.wait_for_all(self.settings.request_timeout)):
            return
        failures = self._rounds.failures
        assigned = None
        yield from self.group_lock.acquire()
        try:
            if self.member.is_prepared and self._is_subscribed:
                assigned = yield from self._round()
        except AuthenticationError:
            raise
        except TransportError as error:
            self._rounds.unreachable(error)
        finally:
            self.group_lock.release()
        if assigned is not None:
            yield from self._complete(assigned)
        elif self._rounds.failures > failures:
            yield from sleep(self.settings.retry_backoff(failures, self._cluster.random.random()))

    def _round(self) -> Flow[list[TopicPartition] | None]:
        """Run a round. Cancel it on leave or unsubscribe, as the coordinator may delay it until other members
        respond."""
        task = yield from spawn(self._rounds.run(), "joining")
        task.when_done(lambda _: self._wake.set())
        try:
            while not task.done and self._is_subscribed:
                yield from wait(self._wake)
            if not task.done:
                return None
            assigned = yield from join(task)
            if assigned is not None and self.member.state is ClassicMemberState.COMPLETING:
                self._rounds.succeeded()
                return assigned
            return None
        finally:
            task.cancel()

    def _complete(self, assigned: list[TopicPartition]) -> Flow[None]:
        """Apply the assignment: revoke partitions that are not in it, then add new partitions."""
        member, generation = self.member, self.member.generation
        if not all(self.topics.accepts(one.topic) for one in assigned):
            member.request_rejoin("the subscription has changed since the last join")
            return
        member.joined_topics = self.topics.add_from_leader({one.topic for one in assigned}, member.joined_topics)
        owned = self._owned()
        if given_up := owned - set(assigned):
            member.request_rejoin("revoked partitions are free now")
            yield from self.handler.revoke(given_up)
            self._given -= given_up
        if member.generation != generation:
            return
        self._rounds.assignor(generation.protocol).on_assignment(assigned, generation.id)
        self._given = frozenset(assigned)
        yield from self.handler.assign([one for one in assigned if one not in owned], assigned)
        if member.generation == generation:
            member.is_reconciled = True
        member.notify()
