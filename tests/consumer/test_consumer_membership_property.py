# SPDX-License-Identifier: Apache-2.0
"""Reconciliation compared with a model: whatever the group wants, whatever is lost, however slow the application is.

Invariants: the application is told of each partition in turn (assigned, then revoked or lost, then assigned again), one
step at a time (`Application` holds that); nothing is acknowledged as given up that is still read; heartbeats never stop
for longer than their interval; and once all is quiet what is read is what the group wants.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from consumer_group_script import HEARTBEAT, TOPICS, Application, GroupWorld, Partitions, make_member, named
from hypothesis import given
from hypothesis import strategies as st
from transaction_script import CUT, HANG, LOST, REFUSED

from kcodec.consumer.group.modern.membership import ConsumerMemberState
from kcodec.protocol.error_codes import ErrorCode

PARTITIONS = [(topic_id, number) for topic_id in TOPICS for number in range(3)]
FAULTS = [
    CUT,
    LOST,
    REFUSED,
    HANG,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]
TARGETS = st.frozensets(st.sampled_from(PARTITIONS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("target"), TARGETS),
        st.tuples(st.just("fault"), st.sampled_from(FAULTS)),
        st.tuples(st.just("expire"), st.none()),
        st.tuples(st.just("topics"), st.booleans()),
        st.tuples(st.just("force"), st.none()),
        st.tuples(st.just("subscribe"), st.sampled_from([(), ("orders",), ("orders", "audit")])),
        st.tuples(st.just("wait"), st.floats(0.0, 12.0)),
    ),
    max_size=25,
)


class WatchedWorld(GroupWorld):
    """Holds the coordinator's side of the invariants."""

    application: Application

    def _ConsumerGroupHeartbeat(self, request: Any, version: int, code: int) -> Any:
        if request.topic_partitions is not None and request.member_epoch > 0:
            said = {(one.topic_id, number) for one in request.topic_partitions for number in one.partitions}
            gone = named(self.pending - said)
            assert not gone & self.application.owned, "given up, and still read"
        return super()._ConsumerGroupHeartbeat(request, version, code)


def take(world: WatchedWorld, member: Any, step: tuple[str, Any]) -> None:
    kind, value = step
    if kind == "target":
        world.set_target(value)
    elif kind == "fault":
        world.plan(HEARTBEAT, value)
    elif kind == "expire":
        world.forget_member()
    elif kind == "topics":
        world.topics = dict(TOPICS) if value else {}
    elif kind == "force":
        world.spawn(member.force_heartbeat(3.0))
    elif kind == "subscribe":
        member.subscribe(value)
    else:
        world.pass_time(value)


def check_turns(application: Application) -> None:
    held: set[Any] = set()
    for kind, partitions in application.reported:
        if kind == "assign":
            assert not held & partitions
            held |= partitions
        else:
            assert partitions <= held
            held -= partitions


@given(STEPS, st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 4.0, 30.0]))
def test_what_is_read_is_what_the_group_wants(steps: list[tuple[str, Any]], seed: int, slowness: float) -> None:
    world = WatchedWorld()
    chance = Random(seed)
    application = world.application = Application(world, lambda: chance.random() * slowness)
    member, _ = make_member(world, application, seed=seed, max_poll_interval=1e6)
    member.subscribe(["orders"])
    for step in steps:
        take(world, member, step)
    world.plans.clear()
    world.topics = dict(TOPICS)
    wanted: Partitions = world.target
    member.subscribe(["orders", "audit"])
    world.pass_time(1000.0)
    assert member.error is None
    assert member.is_stable
    assert application.owned == named(wanted)
    assert world.given == wanted
    assert not world.pending
    assert member.group_metadata.generation_id == world.epoch
    check_turns(application)
    quiet = [one.time for one in world.asked if one.api == HEARTBEAT and one.time > world.now - 200.0]
    assert max(after - before for before, after in pairwise(quiet)) < 5.1


@given(STEPS, st.integers(0, 2**32))
def test_whatever_happened_one_that_leaves_is_gone(steps: list[tuple[str, Any]], seed: int) -> None:
    world = WatchedWorld()
    application = world.application = Application(world)
    member, _ = make_member(world, application, seed=seed, max_poll_interval=1e6)
    member.subscribe(["orders"])
    for step in steps:
        take(world, member, step)
    began = world.now
    world.run(member.leave(3.0, "close"))
    assert world.now - began < 3.1
    world.plans.clear()
    world.pass_time(100.0)
    sent = len(world.asked)
    world.pass_time(100.0)
    assert len(world.asked) == sent
    assert member.state is ConsumerMemberState.LEFT
    assert world.scheduler.tasks == []
