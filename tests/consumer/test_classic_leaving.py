# SPDX-License-Identifier: Apache-2.0
"""How a member of a classic group goes, is thrown out, comes back, and asks whether it still is one: in virtual time,
with a coordinator that keeps Kafka's rules (tests/support/scripted_group.py)."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_group import Fault, GroupClient, GroupWorld
from unnarrowed import unnarrowed

from kcodec.consumer.group.rebalance import Heartbeat
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.auth import ApiVersionsRequest
from kcodec.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

COOPERATIVE = ("cooperative-sticky",)
ALL = [TopicPartition("t", number) for number in range(4)]


def cooperative(world: GroupWorld, name: str, **settings: Any) -> GroupClient:
    return world.client(name, partition_assignment_strategy=COOPERATIVE, **settings)


def test_the_old_generation_stays_for_commits_until_the_rebalance_is_completed() -> None:
    world = GroupWorld()
    one = cooperative(world, "a")
    world.run_until_stable()
    old = one.membership.group_metadata
    seen = []

    def look(client: str, request: Any) -> Fault:
        if client == "a" and type(request) in (JoinGroupRequest, SyncGroupRequest):
            seen.append((type(request), one.membership.group_metadata))
        return Fault()

    world.faults = look
    one.membership.request_rejoin("a test")
    world.run_until_stable()
    assert seen == [(JoinGroupRequest, old), (SyncGroupRequest, old)]
    assert one.membership.group_metadata.generation_id == old.generation_id + 1


def test_a_poll_that_does_not_come_makes_us_leave_and_lose() -> None:
    world = GroupWorld()
    one = world.client("a", max_poll_interval=3.0)
    world.run_until_stable()
    one.is_polling = False
    two = world.client("b")
    world.run_until(lambda: two.has == set(ALL), 10)
    assert one.events[1:] == [("lose", ALL)]
    (left,) = world.sent(LeaveGroupRequest)
    assert left.members[0].reason == "consumer poll timeout has expired."
    joins = len(world.sent(JoinGroupRequest, "a"))
    world.run(5)
    assert len(world.sent(JoinGroupRequest, "a")) == joins
    one.is_polling = True
    world.run_until_stable()
    assert world.sent(JoinGroupRequest, "a")[joins].member_id == ""


def test_polls_while_the_application_is_at_work_are_not_needed_before_max_poll_interval() -> None:
    world = GroupWorld()
    one = world.client("a", max_poll_interval=30.0, session_timeout=3.0)
    world.run_until_stable()
    one.is_polling = False
    world.run(25)
    assert one.events == [("assign", ALL)]
    assert len(world.sent(HeartbeatRequest)) >= 24


def test_a_session_without_answers_ends_on_our_side_too() -> None:
    """Partitions are lost when the coordinator has given them away, not when it can be reached again."""
    world = GroupWorld()
    one = world.client("a", session_timeout=6.0, max_poll_interval=8.0)
    world.run_until_stable()
    cut_off_at = world.now
    world.faults = lambda client, request: Fault(is_lost=client == "a")
    two = world.client("b")
    world.run_until(lambda: bool(one.reported("lose")), 20)
    assert world.now - cut_off_at <= 6.0 + 1.1
    world.run_until(lambda: two.has == set(ALL), 20)
    world.faults = lambda client, request: Fault()
    world.run_until_stable()


def test_who_unsubscribes_leaves() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.run_until_stable()
    one.membership.subscribe([])
    world.run(1)
    assert one.reported("revoke") == [ALL]
    assert world.sent(LeaveGroupRequest)[0].members[0].reason == "the consumer unsubscribed from all topics"
    assert world.group.members == {}
    assert one.membership.group_metadata == ConsumerGroupMetadata("g", 1, "member-1")
    one.membership.subscribe(["t"])
    world.run_until_stable()
    assert one.membership.group_metadata.member_id == "member-2"


@pytest.mark.parametrize("way", ["unsubscribe", "leave", "cancel"])
def test_who_goes_while_the_coordinator_holds_its_join_goes_at_once(way: str) -> None:
    """The other member does not come for a while; the farewell does not wait behind JoinGroup."""
    world = GroupWorld()
    slow = world.client("slow")
    world.run_until_stable()
    slow.is_polling = False
    one = world.client("a")
    world.run_until(lambda: len(world.sent(JoinGroupRequest, "a")) == 2)
    world.run(0.5)
    assert unnarrowed(one.membership.group_lock.is_held)
    if way == "leave":
        one.flow(one.membership.leave(5.0, "closing"), 1.0)
        world.run(0.1)
        assert one.task.done
        one.is_alive = False
    elif way == "unsubscribe":
        one.membership.subscribe([])
        world.run(0.1)
    else:
        one.task.cancel()
        one.is_alive = False
    assert not one.membership.group_lock.is_held
    if way != "cancel":
        assert world.requests[-1][3] == "heartbeat"
        assert len(world.group.members) == 1
    slow.is_polling = True
    world.run_until(lambda: slow.has == set(ALL), 30)


def test_a_dynamic_member_leaves_with_its_reason_and_a_static_one_stays() -> None:
    world = GroupWorld()
    one = world.client("a")
    two = world.client("b", group_instance_id="i")
    world.run_until_stable()
    one.flow(one.membership.leave(5.0, "the consumer is being closed"))
    two.flow(two.membership.leave(5.0, "the consumer is being closed"))
    world.run(0.1)
    assert one.task.done
    assert two.task.done
    (left,) = world.sent(LeaveGroupRequest)
    assert (left.members[0].member_id, left.members[0].reason) == ("member-1", "the consumer is being closed")
    assert [member.instance for member in world.group.members.values()] == ["i"]


@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_leave_requests_to_old_brokers_have_a_member_id(version: int) -> None:
    world = GroupWorld()
    world.highest[LeaveGroupRequest] = version
    one = world.client("a")
    world.run_until_stable()
    one.flow(one.membership.leave(5.0, "closing"))
    assert world.group.members == {}


def test_a_leaving_finds_the_coordinator_and_ends_by_its_timeout() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.run_until_stable()
    codes = [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.faults = lambda client, request: Fault(
        code=codes.pop(0) if codes and type(request) is LeaveGroupRequest else None
    )
    one.flow(one.membership.leave(5.0, "closing"))
    assert world.group.members == {}
    two = world.client("b")
    world.clients.remove(one)
    world.run_until_stable()
    world.faults = lambda client, request: Fault(is_lost=True)
    start = world.now
    two.flow(two.membership.leave(2.0, "closing"))
    assert world.now - start <= 2.1


@pytest.mark.parametrize("lost_connections", [1, 2])
def test_a_lost_connection_does_not_keep_a_member_in_the_group(lost_connections: int) -> None:
    """The coordinator would otherwise keep the partitions from other members until the session timeout."""
    world = GroupWorld()
    one = world.client("a")
    world.run_until_stable()
    left = [lost_connections]

    def cut(client: Any, request: Any) -> Fault:
        is_cut = type(request) is LeaveGroupRequest and left[0] > 0
        left[0] -= is_cut
        return Fault(cuts=is_cut, is_lost=is_cut)

    world.faults = cut
    one.flow(one.membership.leave(5.0, "closing"))
    assert left == [0]
    assert world.group.members == {}


def test_a_coordinator_that_cannot_be_reached_does_not_delay_the_end_of_a_member() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.run_until_stable()
    world.faults = lambda client, request: Fault(cuts=True, is_lost=True)
    start = world.now
    one.flow(one.membership.leave(5.0, "closing"))
    assert world.now - start < 1


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    world = GroupWorld()
    one = world.client("a", group_instance_id="x")
    two = world.client("b", group_instance_id="y")
    world.run_until_stable()
    generation, had = world.group.generation, one.owned
    one.flow(one.membership.leave(5.0, "closing"))
    one.kill()
    again = world.client("c", group_instance_id="x")
    world.run_until_stable()
    assert world.group.generation == generation
    assert again.owned == had
    assert two.reported("revoke") in ([], [ALL])


def test_of_two_static_members_of_one_name_the_older_is_fenced() -> None:
    world = GroupWorld()
    one = world.client("a", group_instance_id="x")
    world.run_until_stable()
    world.client("b", group_instance_id="x")
    world.run(5)
    assert one.reported("lose") == [ALL]
    assert "'x'" in str(one.membership.error)
    assert "FENCED_INSTANCE_ID" in str(one.membership.error)
    joins = len(world.sent(JoinGroupRequest, "a"))
    world.run(60)
    assert len(world.sent(JoinGroupRequest, "a")) == joins


def test_forced_heartbeats_say_where_we_stand() -> None:
    world = GroupWorld()
    one = world.client("a", [])
    start = world.now
    assert one.flow(one.membership.force_heartbeat(5.0)) is Heartbeat.UNKNOWN
    assert world.now - start < 0.1
    one.membership.subscribe(["t"])
    world.run_until_stable()
    assert one.flow(one.membership.force_heartbeat(5.0)) is Heartbeat.OK
    one.is_polling = False
    two = world.client("b")
    world.run(0.2)
    assert one.flow(one.membership.force_heartbeat(5.0)) is Heartbeat.REBALANCE_IN_PROGRESS
    two.kill()
    one.is_polling = True


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.ILLEGAL_GENERATION, Heartbeat.LOST),
        (ErrorCode.UNKNOWN_MEMBER_ID, Heartbeat.LOST),
        (ErrorCode.FENCED_INSTANCE_ID, Heartbeat.LOST),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, Heartbeat.UNKNOWN),
    ],
)
def test_forced_heartbeats_of_those_who_are_out(code: int, expected: Heartbeat) -> None:
    world = GroupWorld()
    one = world.client("a", heartbeat_interval=1000.0)
    world.run_until_stable()
    world.faults = lambda client, request: Fault(code=code)
    assert one.flow(one.membership.force_heartbeat(5.0)) in (expected, Heartbeat.LOST)
    world.faults = lambda client, request: Fault()
    world.run(1)
    assert one.reported("lose") == [ALL]
    if code == ErrorCode.ILLEGAL_GENERATION:
        world.run_until_stable()


def test_a_forced_heartbeat_is_repeated_until_it_is_answered_or_late() -> None:
    world = GroupWorld()
    one = world.client("a", heartbeat_interval=1000.0, session_timeout=1000.0)
    world.run_until_stable()
    codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.faults = lambda client, request: Fault(code=codes.pop(0) if codes else None)
    assert one.flow(one.membership.force_heartbeat(5.0)) is Heartbeat.OK
    world.faults = lambda client, request: Fault(is_lost=True)
    start = world.now
    assert one.flow(one.membership.force_heartbeat(2.0)) is Heartbeat.UNKNOWN
    assert world.now - start <= 2.1


def test_a_forced_heartbeat_does_not_wait_behind_a_join_that_is_held() -> None:
    world = GroupWorld()
    slow = cooperative(world, "slow")
    one = cooperative(world, "a")
    world.run_until_stable()
    slow.is_polling = False
    one.membership.request_rejoin("a test")
    if world.group.leader != one.membership.member.generation.member_id:
        cooperative(world, "third")
    world.run(2)
    assert one.membership.group_lock.is_held
    start = world.now
    assert one.flow(one.membership.force_heartbeat(5.0)) is Heartbeat.REBALANCE_IN_PROGRESS
    assert world.now - start < 0.1
    slow.is_polling = True
    world.run_until_stable()


def test_a_forced_heartbeat_ends_when_we_lose_our_partitions() -> None:
    world = GroupWorld()
    one = world.client("a", max_poll_interval=3.0)
    world.run_until_stable()
    one.is_polling = False
    world.faults = lambda client, request: Fault(is_lost=type(request) is HeartbeatRequest)
    start = world.now
    assert one.flow(one.membership.force_heartbeat(30.0), 40) is Heartbeat.LOST
    assert world.now - start < 10


def test_a_returning_leader_that_may_skip_the_assignment_sends_none() -> None:
    """KIP-814: the static leader keeps what it had; it watches the topics all the same."""
    world = GroupWorld()
    one = world.client("a", group_instance_id="x")
    world.run_until_stable()
    joined = world.group.joined

    def skipping(member: Any) -> Any:
        answer = joined(member)
        answer.skip_assignment = True
        return answer

    one.flow(one.membership.leave(5.0, "closing"))
    one.kill()
    world.group.joined = skipping  # type: ignore[assignment,method-assign]
    again = world.client("b", group_instance_id="x")
    world.run_until_stable()
    assert world.sent(SyncGroupRequest, "b")[-1].assignments == []
    world.group.joined = joined  # type: ignore[method-assign]
    world.topics["t"] = 6
    world.run_until_stable(90)
    assert len(again.has) == 6


def test_requests_below_static_members_are_refused_for_a_static_member() -> None:
    world = GroupWorld()
    world.highest[JoinGroupRequest] = 4
    one = world.client("a", group_instance_id="x")
    world.run(1)
    assert one.membership.error is not None
    assert not one.membership.group_lock.is_held


@pytest.mark.parametrize("kind", [JoinGroupRequest, SyncGroupRequest])
def test_a_silent_coordinator_is_left_during_a_rebalance(kind: type) -> None:
    """Its host drops all packets. The coordinator may delay these responses for max_poll_interval_ms, so only another
    request shows that it does not respond at all."""
    world = GroupWorld()
    one = world.client("a", request_timeout=5.0, max_poll_interval=300.0)
    silent: list[bool] = []

    def fault(client: str, request: Any) -> Fault:
        if type(request) is kind:
            silent.append(True)
        return Fault(is_lost=bool(silent))

    world.faults = fault
    world.run_until(lambda: bool(silent))
    begin, finds = world.now, one.finds
    world.run_until(lambda: one.finds > finds, seconds=100.0)
    assert world.now - begin < 5.0 + one.membership.settings.heartbeat_interval + 2.0


def test_a_rebalance_does_not_wait_for_the_check_of_its_coordinator() -> None:
    """The coordinator delays the response to JoinGroup until the first member has noticed the rebalance. Meanwhile, a
    busy connection delays the response to the check for longer."""
    world = GroupWorld()
    world.client("a")
    world.run_until_stable()
    checks: list[float] = []

    def fault(client: str, request: Any) -> Fault:
        if type(request) is ApiVersionsRequest:
            checks.append(world.now)
        return Fault(is_lost=type(request) is ApiVersionsRequest)

    world.faults = fault
    begin = world.now
    world.client("b", heartbeat_interval=0.2, request_timeout=30.0)
    world.run_until_stable()
    assert checks and world.now - begin < 10.0


def test_an_interrupted_leave_during_the_first_join_leaves_with_its_id() -> None:
    """The response to JoinGroup has arrived, and Ctrl-C in asyncio interrupts the request to leave."""
    world = GroupWorld()
    world.faults = lambda client, request: Fault(
        delay=0.5 if isinstance(request, JoinGroupRequest) else 0.0, is_lost=isinstance(request, LeaveGroupRequest)
    )
    one = world.client("a")
    world.run_until(lambda: len(world.sent(JoinGroupRequest)) == 1)
    leaving = one.scheduler.spawn(one.membership.leave(5.0, "a test"), "leave")
    leaving.when_done(lambda _: None)
    world.run_until(lambda: len(world.sent(LeaveGroupRequest)) == 1)
    one.scheduler._suspensions[leaving].resume(None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        world.run(0.0)
    world.faults = lambda client, request: Fault()
    one.flow(one.membership.leave(5.0, "a test"))
    first, second = world.sent(LeaveGroupRequest)
    assert [first.members[0].member_id, second.members[0].member_id] == ["member-1", "member-1"]


def test_an_interrupted_wait_for_the_first_join_is_repeated() -> None:
    world = GroupWorld()
    world.faults = lambda client, request: Fault(delay=0.5 if isinstance(request, JoinGroupRequest) else 0.0)
    one = world.client("a")
    world.run_until(lambda: len(world.sent(JoinGroupRequest)) == 1)
    leaving = one.scheduler.spawn(one.membership.leave(5.0, "a test"), "leave")
    leaving.when_done(lambda _: None)
    world.run(0.1)
    one.scheduler._suspensions[leaving].resume(None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        world.run(0.0)
    one.flow(one.membership.leave(5.0, "a test"))
    (request,) = world.sent(LeaveGroupRequest)
    assert request.members[0].member_id == "member-1"
