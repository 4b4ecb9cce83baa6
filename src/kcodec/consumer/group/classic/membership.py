# SPDX-License-Identifier: Apache-2.0
"""A member of a group of the classic protocol: JoinGroup, SyncGroup, then heartbeats until the next rebalance.

One flow, `run`, does one thing after another: wait until the application polls, give up what must be given up, join,
share out as the leader, sync, take what is new. A second one sends heartbeats (`classic_heartbeats`), also while the
application is at work. What they share is the `Generation`: whoever finds out that it is over sets it back
(`reset`), and the first flow then gives up all partitions as lost before anything else.

Rules: Kafka's AbstractCoordinator and ConsumerCoordinator; KIP-394 (member id), KIP-345 (static members), KIP-429
(cooperative), KIP-447 (generation of commits), KIP-800 (reasons), KIP-814 (skip_assignment).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from random import Random

from kcodec.cluster.flow_lock import Gate
from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignors import Assignor, GroupMember, make_assignors
from kcodec.consumer.group.classic.heartbeats import Heartbeats
from kcodec.consumer.group.classic.join import JoinRounds
from kcodec.consumer.group.classic.requests import Generation, GroupRequests, State
from kcodec.consumer.group.classic.topics import REFUSED_SECONDS, REMIND_SECONDS, GroupTopics
from kcodec.consumer.group.rebalance import Heartbeat, RebalanceHandler
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import AuthenticationError, TransportError
from kcodec.flow import CancelledFlow, Clock, Flow, Signal, Task, join, sleep, spawn, wait
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.protocol.error_codes import note_final

log = logging.getLogger("kcodec.consumer")
CHANGED_PARTITIONS = "the partitions of the group's topics have changed"
NOTHING: frozenset[TopicPartition] = frozenset()


class ClassicMembership:
    """One member; see `kcodec.consumer.group.rebalance.Membership`. Methods run on the loop, `note_poll` on any thread.

    random: for the pauses between repeats.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        handler: RebalanceHandler,
        *,
        clock: Clock,
        random: Random,
    ) -> None:
        self.settings = settings
        self.handler = handler
        self.changed = Signal()
        self.gate = Gate(clock)
        self.error: BaseException | None = None
        self._refusal: BaseException | None = None
        self.requests = GroupRequests(cluster, settings)
        self.topics = GroupTopics(cluster, settings)
        self.assignors: list[Assignor] = make_assignors(settings.partition_assignment_strategy)
        self.is_cooperative = all(assignor.is_cooperative for assignor in self.assignors)
        self.state = State.UNJOINED
        self.generation = Generation()
        self.is_late = False
        self.wake = Signal()
        self._heartbeats = Heartbeats(self, clock, random)
        self._rounds = JoinRounds(self)
        self._cluster = cluster
        self._clock, self._random = clock, random
        self._metadata = ConsumerGroupMetadata(self.requests.group_id, group_instance_id=settings.group_instance_id)
        self._rejoin_reason: str | None = ""
        self._joined_topics: frozenset[str] | None = None
        self._given = NOTHING
        self._is_prepared = self._is_settled = self._is_over = False
        self._failing_since: float | None = None

    # The public API

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who we are, for commits: as of the last SyncGroup that succeeded, until the next one does.

        Also when we are out or have left: a commit of nobody would be taken where one of the past is refused.
        """
        return self._metadata

    @property
    def is_stable(self) -> bool:
        """Whether the last rebalance is over and we own what it gave."""
        return self.state is State.STABLE and self._is_settled and not self._needs_join()

    @property
    def last_error(self) -> BaseException | None:
        """Why the last attempt to join failed; None while none is under way, or after one that succeeded."""
        return None if self.state is State.STABLE else self._rounds.last_error

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """What to read; neither: leave the group. Raises ValueError for a pattern that is no regular expression."""
        self.topics.subscribe(topics, pattern)
        self.error = self._refusal = None
        self._heartbeats.note_poll(self._clock())
        self._notify()

    def request_rejoin(self, reason: str) -> None:
        """Have the partitions given out again; of several reasons before a rebalance the first is told."""
        if self._rejoin_reason is None:
            log.info("group %s: rejoining: %s", self.requests.group_id, reason)
            self._rejoin_reason = reason
            self._notify()

    def note_poll(self, now: float) -> None:
        """The application polled; any thread."""
        self._heartbeats.note_poll(now)

    def force_heartbeat(self, timeout: float) -> Flow[Heartbeat]:
        """Ask the coordinator now whether we still are in the generation of `group_metadata`."""
        return self._heartbeats.force(timeout)

    def leave(self, timeout: float, reason: str) -> Flow[None]:
        """Leave the group (a static member stays), and end. The partitions were revoked before."""
        self._is_over = True
        yield from self._depart(timeout, reason)

    def run(self) -> Flow[None]:
        """Be a member, until `leave`."""
        helpers: list[Task[None]] = []
        try:
            for flow, name in ((self._heartbeats.run(), "group heartbeats"), (self._watch_metadata(), "group topics")):
                helpers.append((yield from spawn(flow, name)))
                helpers[-1].when_done(self._helper_ended)
            while not self._is_over:
                try:
                    yield from self._turn()
                except Exception as error:  # noqa: BLE001  assignors and callbacks raise anything
                    self.fail(error)
        finally:
            for helper in helpers:
                helper.cancel()

    def _helper_ended(self, task: Task[None]) -> None:
        """Neither of them ends by itself: poll is to say what became of it."""
        if task.error is not None and not isinstance(task.error, CancelledFlow):
            self.fail(task.error)

    # What the flows share

    @property
    def is_joining(self) -> bool:
        """Whether JoinGroup or SyncGroup is under way."""
        return self.state in (State.PREPARING, State.COMPLETING)

    def fail(self, error: BaseException) -> None:
        """Nothing that a repeat cures: poll is to raise it, until the next subscribe."""
        log.error("group %s: %s", self.requests.group_id, error)
        note_final(error)
        self.reset(str(error), keeps_member_id=True)
        self.error = error
        self._notify()

    def reset(self, reason: str, *, keeps_member_id: bool) -> None:
        """We are in no generation any more: what we have is lost, and we must join anew."""
        log.info("group %s: out of generation %d: %s", self.requests.group_id, self.generation.id, reason)
        self.generation = Generation(member_id=self.generation.member_id if keeps_member_id else "")
        self.state = State.UNJOINED
        self._is_prepared = self._is_settled = False
        self._rejoin_reason = reason
        self._notify()

    def _notify(self) -> None:
        self.wake.set()
        self.changed.set()

    @property
    def _owned(self) -> frozenset[TopicPartition]:
        """What we have from this group."""
        return self._given & self.handler.owned

    def _needs_join(self) -> bool:
        return self._rejoin_reason is not None or self._joined_topics != self.topics.topics

    def _watch_metadata(self) -> Flow[None]:
        """Follow the pattern, and as the leader the partitions of all topics of the group."""
        while True:
            is_refused = self._refusal is not None
            has_come = yield from wait(self._cluster.changed, REFUSED_SECONDS if is_refused else REMIND_SECONDS)
            if is_refused and not has_come:
                self._cluster.request_update("a topic was refused")
            before = self.topics.topics
            self.topics.take_up_metadata()
            self._note_refusal()
            if self.topics.topics != before:
                self._notify()
            if self.topics.has_changed():
                self.request_rejoin(CHANGED_PARTITIONS)

    def _note_refusal(self) -> None:
        """poll raises that a topic is refused for as long as it is; meanwhile we stay what we are."""
        refusal = self.topics.refusal()
        if refusal is not None and self.error is None:
            self.error = self._refusal = refusal
            self._notify()
        elif refusal is None and self.error is not None and self.error is self._refusal:
            self.error = self._refusal = None
            self._notify()

    def _turn(self) -> Flow[None]:
        """Do the next thing, or wait for one."""
        if not self.generation.is_member and self._owned:
            lost, self._given = self._owned, NOTHING
            yield from self.handler.lose(lost)
        elif not self.topics.is_subscribed and (self._given or self.generation.member_id):
            yield from self._unsubscribe()
        elif self.error is not None or not self.topics.is_subscribed:
            yield from wait(self.wake)
        elif self.is_late:
            self.is_late = not (yield from self._until_polled(needs_generation=False))
        elif not self._needs_join():
            yield from wait(self.wake)
        elif self._is_prepared or (yield from self._prepare()):
            yield from self._rejoin()

    def _unsubscribe(self) -> Flow[None]:
        if owned := self._owned:
            yield from self.handler.revoke(owned)
        self._given = NOTHING
        yield from self._depart(self.settings.request_timeout, "the consumer unsubscribed from all topics")

    def _depart(self, timeout: float, reason: str) -> Flow[None]:
        """Tell the coordinator that we go, unless we are to be expected back."""
        member_id, self.generation = self.generation.member_id, Generation()
        channel = "heartbeat" if self.is_joining else "group"
        self.state, self._is_prepared, self._is_settled = State.UNJOINED, False, False
        self._joined_topics, self._rejoin_reason = None, ""
        self.topics.forget_group()
        self._notify()
        if member_id:
            yield from self._heartbeats.leave(member_id, timeout, reason, channel)

    # A rebalance

    def _prepare(self) -> Flow[bool]:
        """Give up what must be given up before we join. False if things have changed meanwhile."""
        before = self.generation
        if self._owned:
            if not (yield from self._until_polled()):
                return False
            wanted = self.topics
            given_up = {one for one in self._owned if not self.is_cooperative or not wanted.accepts(one.topic)}
            if given_up:
                yield from self.handler.revoke(given_up)
                self._given -= given_up
        if self.generation != before or not self._is_wanted:
            return False
        self._is_prepared = True
        self.topics.forget_group()
        return True

    def _until_polled(self, *, needs_generation: bool = True) -> Flow[bool]:
        """Until the application polls. False if before that we fall out of the generation, unsubscribe or end."""
        task = yield from spawn(self.handler.until_polled(), "until polled")
        task.when_done(lambda _: self.wake.set())
        try:
            while not task.done and self._is_wanted and (self.generation.is_member or not needs_generation):
                yield from wait(self.wake)
            if task.done:
                yield from join(task)
            return task.done
        finally:
            task.cancel()

    @property
    def _is_wanted(self) -> bool:
        """Whether we still are to be a member."""
        return self.topics.is_subscribed and not self._is_over

    def _rejoin(self) -> Flow[None]:
        """One round of JoinGroup and SyncGroup, and what comes of it; or a pause, and the next turn tries again."""
        if not (yield from self.topics.wait_for_all(self.settings.request_timeout)):
            return
        failures = self._rounds.failures
        assigned = None
        yield from self.gate.acquire()
        try:
            if self._is_prepared and self._is_wanted:
                assigned = yield from self._round()
        except AuthenticationError:
            raise
        except TransportError as error:
            self._is_unreachable(error)
        finally:
            self.gate.release()
        if assigned is not None:
            yield from self._complete(assigned)
        elif self._rounds.failures > failures:
            yield from sleep(self.settings.retry_backoff(failures, self._random.random()))

    def _round(self) -> Flow[list[TopicPartition] | None]:
        """A round, given up if we leave or unsubscribe: the coordinator may hold it for as long as others work."""
        task = yield from spawn(self._rounds.run(), "joining")
        task.when_done(lambda _: self.wake.set())
        try:
            while not task.done and self._is_wanted:
                yield from wait(self.wake)
            if not task.done:
                return None
            assigned = yield from join(task)
            if assigned is not None and self.state is State.COMPLETING:
                self._became_stable()
                return assigned
            return None
        finally:
            task.cancel()

    def _is_unreachable(self, error: TransportError) -> None:
        """No coordinator, or no answer; for longer than the session, and our partitions belong to others by now."""
        log.info("group %s: %s", self.requests.group_id, error)
        self.requests.forget_coordinator()
        self._rounds.failures += 1
        self._rounds.last_error = error
        now = self._clock()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if self.generation.is_member and now - self._failing_since >= self.settings.session_timeout:
            self.reset("the coordinator was not to be reached for a session time-out", keeps_member_id=True)

    # What a round asks and tells

    def begin_join(self) -> tuple[GroupMember, str]:
        """JoinGroup goes out: what we tell the leader, and why we join."""
        self.state = State.PREPARING
        if self._rejoin_reason is None:
            self._rejoin_reason = "the subscription has changed"
        self._joined_topics = self.topics.topics
        member = GroupMember(
            member_id=self.generation.member_id,
            topics=self._joined_topics,
            owned=tuple(self._owned),
            generation=self.generation.id,
            rack_id=self.settings.client_rack or None,
        )
        return member, self._rejoin_reason

    def joined(self, generation: Generation) -> None:
        """JoinGroup was answered; the heartbeats begin."""
        self.generation, self.state = generation, State.COMPLETING
        self._heartbeats.begin()

    def note_answer(self) -> None:
        """The coordinator is there."""
        self._failing_since = None

    def _became_stable(self) -> None:
        generation = self.generation
        self.state = State.STABLE
        self._rounds.failures, self._rejoin_reason, self._is_prepared = 0, None, False
        self._rounds.restarts, self._rounds.last_error = 0, None
        self._metadata = ConsumerGroupMetadata(
            self.requests.group_id, generation.id, generation.member_id, self.settings.group_instance_id
        )
        if self.topics.has_changed():
            self._rejoin_reason = CHANGED_PARTITIONS
        self._notify()

    def _complete(self, assigned: list[TopicPartition]) -> Flow[None]:
        """Take the share: first give up what is not in it, then add what is new."""
        generation = self.generation
        if not all(self.topics.accepts(one.topic) for one in assigned):
            self.request_rejoin("the subscription has changed since we joined")
            return
        self._joined_topics = self.topics.add_told({one.topic for one in assigned}, self._joined_topics)
        owned = self._owned
        if given_up := owned - set(assigned):
            self.request_rejoin("partitions were revoked, and are free now")
            yield from self.handler.revoke(given_up)
            self._given -= given_up
        if self.generation != generation:
            return
        self._rounds.assignor(generation.protocol).on_assignment(assigned, generation.id)
        self._given = frozenset(assigned)
        yield from self.handler.assign([one for one in assigned if one not in owned], assigned)
        if self.generation == generation:
            self._is_settled = True
        self._notify()
