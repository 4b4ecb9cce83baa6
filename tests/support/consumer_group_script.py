# SPDX-License-Identifier: Apache-2.0
"""A minimal group coordinator of KIP-848 for one member, in virtual time, and a slow application.

`GroupWorld.set_target` sets the target assignment of the member. The coordinator reconciles it as Kafka's does
(CurrentAssignmentBuilder): it revokes partitions, waits for the acknowledgement, and then assigns new ones. Faults are
planned as in `transaction_script`; an exception in a plan is raised in the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from transaction_script import HIGHEST, World

from kcodec.consumer.group.modern.membership import ConsumerMembership
from kcodec.consumer.options import ConsumerSettings
from kcodec.flow import Call, Done, Flow, Signal, sleep, wait
from kcodec.offsets import TopicPartition
from kcodec.protocol.messages import groups, metadata

HIGHEST |= {"ConsumerGroupHeartbeat": 1, "Metadata": 12}
HEARTBEAT = "ConsumerGroupHeartbeat"
ORDERS_ID, AUDIT_ID = UUID(int=71), UUID(int=72)
TOPICS = {ORDERS_ID: "orders", AUDIT_ID: "audit"}
SETTINGS = ConsumerSettings(
    group_id="readers",
    group_protocol="consumer",
    retry_backoff=lambda attempt, random: min(0.1 * 2**attempt, 1.0),
)
Partitions = frozenset[tuple[UUID, int]]


def orders(*numbers: int) -> Partitions:
    """Partitions of the topic orders, as the coordinator knows them."""
    return frozenset((ORDERS_ID, number) for number in numbers)


def named(partitions: Iterable[tuple[UUID, int]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(TOPICS[topic_id], number) for topic_id, number in partitions)


class GroupWorld(World):
    """The coordinator. epoch: epoch of the member; given: the assignment that the member has received."""

    def __init__(self, request_timeout: float = 5.0) -> None:
        super().__init__(request_timeout=request_timeout)
        self.cluster.brokers = {}
        self.target: Partitions = frozenset()
        self.group_epoch = 1
        self.epoch = self.previous_epoch = 0
        self.given: Partitions = frozenset()
        self.pending: Partitions = frozenset()
        self.member_id = ""
        self.interval_ms = 5000
        self.topics = dict(TOPICS)

    def set_target(self, partitions: Partitions) -> None:
        """Set the target assignment of the member, which it receives with its next heartbeats."""
        self.target = partitions
        self.group_epoch += 1

    def forget_member(self) -> None:
        """End the session of the member."""
        self.member_id, self.epoch, self.given, self.pending = "", 0, frozenset(), frozenset()
        self.group_epoch += 1

    @property
    def heartbeats(self) -> list[Any]:
        """The requests that arrived, in order."""
        return [one.request for one in self.asked if one.api == HEARTBEAT]

    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        plans = self.plans.get(call.kind.__name__.removesuffix("Request"), [])
        if plans and isinstance(plans[0], BaseException):
            error: Any = plans.pop(0)
            return self.scheduler.call_at(self.now, lambda: done(None, error)).cancel
        return super().start_call(call, done)

    def _ConsumerGroupHeartbeat(self, request: Any, version: int, code: int) -> Any:
        if code:
            return groups.ConsumerGroupHeartbeatResponse(error_code=code, error_message="as planned")
        owned = None
        if request.topic_partitions is not None:
            owned = frozenset((one.topic_id, each) for one in request.topic_partitions for each in one.partitions)
        if request.member_epoch < 0:
            known = request.member_id == self.member_id
            self.forget_member()
            return groups.ConsumerGroupHeartbeatResponse(
                error_code=0 if known else 25, member_id=request.member_id, member_epoch=request.member_epoch
            )
        if refusal := self._refusal(request, owned):
            return groups.ConsumerGroupHeartbeatResponse(error_code=refusal)
        before = self.given
        self._advance(owned)
        is_full = request.member_epoch == 0 or (request.rebalance_timeout_ms != -1 and owned is not None)
        answer = groups.ConsumerGroupHeartbeatResponse(
            member_id=self.member_id, member_epoch=self.epoch, heartbeat_interval_ms=self.interval_ms
        )
        if is_full or self.given != before:
            ids = sorted({topic_id for topic_id, _ in self.given})
            answer.assignment = groups.ConsumerGroupAssignment(
                topic_partitions=[
                    groups.ConsumerGroupTopicPartitions(
                        topic_id=one, partitions=sorted(number for topic_id, number in self.given if topic_id == one)
                    )
                    for one in ids
                ]
            )
        return answer

    def _refusal(self, request: Any, owned: Partitions | None) -> int:
        """What Kafka checks of a member (throwIfConsumerGroupMemberEpochIsInvalid)."""
        if request.member_epoch == 0:
            assert request.rebalance_timeout_ms > 0
            assert owned == frozenset()
            assert request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
            if request.member_id != self.member_id:
                self.forget_member()
                self.member_id = request.member_id
            self.given, self.pending = frozenset(), frozenset()
            return 0
        if request.member_id != self.member_id:
            return 25
        if request.member_epoch > self.epoch:
            return 110
        is_late = request.member_epoch < self.epoch
        if is_late and (request.member_epoch != self.previous_epoch or owned is None or not owned <= self.given):
            return 110
        return 0

    def _advance(self, owned: Partitions | None) -> None:
        if self.pending:
            if owned is None or owned & self.pending:
                return
            self.pending = frozenset()
            self._set_epoch(self.epoch + 1)
        if self.given - self.target:
            self.pending = self.given - self.target
            self.given &= self.target
            return
        self.given = self.target
        self._set_epoch(self.group_epoch)

    def _set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch

    def _Metadata(self, request: Any, version: int, code: int) -> Any:
        broker = metadata.MetadataResponseBroker(node_id=1, host="broker", port=9092)
        found = []
        for asked in request.topics:
            name = asked.name or self.topics.get(asked.topic_id)
            part = metadata.MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=0)
            found.append(
                metadata.MetadataResponseTopic(
                    error_code=0 if name else 100, name=name, topic_id=asked.topic_id, partitions=[part] if name else []
                )
            )
        return metadata.MetadataResponse(brokers=[broker], controller_id=1, topics=found)


class WrongStep(BaseException):
    """The membership sent an invalid request. It is not an Exception, so that the flow under test does not handle
    it."""


class Application:
    """A consumer that takes `delay()` seconds for each step, and records its callbacks."""

    def __init__(self, world: World, delay: Callable[[], float] = lambda: 0.0) -> None:
        self.world = world
        self.delay = delay
        self.owned: frozenset[TopicPartition] = frozenset()
        self.reported: list[tuple[str, frozenset[TopicPartition]]] = []
        self.polled = Signal()
        self.failure: Exception | None = None
        self.is_busy = False

    def until_polled(self) -> Flow[None]:
        yield from wait(self.polled)

    def revoke(self, partitions: Iterable[TopicPartition], deadline: float | None = None) -> Flow[None]:
        gone = frozenset(partitions)
        self._demand(bool(gone) and gone <= self.owned, f"revoke {gone} of {self.owned}")
        return self._step("revoke", gone, self.owned - gone)

    def lose(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        gone = frozenset(partitions)
        self._demand(gone == self.owned, f"lose {gone} of {self.owned}")
        self.owned = frozenset()
        return self._step("lose", gone, self.owned)

    def assign(self, added: Iterable[TopicPartition], owned: Iterable[TopicPartition]) -> Flow[None]:
        new, whole = frozenset(added), frozenset(owned)
        self._demand(not self.owned & new and whole == self.owned | new, f"assign {new} to {self.owned}: {whole}")
        return self._step("assign", new, whole)

    def _demand(self, is_met: bool, what: str) -> None:
        if self.is_busy or not is_met:
            raise WrongStep(f"busy: {self.is_busy}; {what}")

    def _step(self, kind: str, partitions: frozenset[TopicPartition], owned: frozenset[TopicPartition]) -> Flow[None]:
        self.reported.append((kind, partitions))
        self.is_busy = True
        yield from sleep(self.delay())
        self.is_busy = False
        self.owned = owned
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure


def make_member(
    world: World, application: Application | None = None, *, seed: int = 1, **changes: Any
) -> tuple[ConsumerMembership, Application]:
    """A membership that runs, nothing subscribed yet."""
    application = application or Application(world)
    settings = replace(SETTINGS, **changes)
    world.cluster.random = Random(seed)
    member = ConsumerMembership(world.cluster, settings, application)
    world.spawn(member.run())
    return member, application


def joined(world: GroupWorld, *numbers: int, **changes: Any) -> tuple[ConsumerMembership, Application]:
    """A stable member that reads these partitions of the topic orders."""
    member, application = make_member(world, **changes)
    world.set_target(orders(*numbers))
    member.subscribe(["orders"])
    world.pass_time(20.0, until=lambda: member.is_stable and application.owned == named(world.target))
    assert application.owned == named(world.target)
    return member, application
