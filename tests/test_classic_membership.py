# SPDX-License-Identifier: Apache-2.0
"""A member of a classic group in virtual time, beside a coordinator that keeps Kafka's rules (tests/scripted_group.py):
how it joins, shares, gives up, is told to go, and goes."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_group import Fault, GroupClient, GroupWorld

from kcodec.consumer.assignors import GroupMember, Shares, Topics
from kcodec.consumer.member_protocol import read_subscription
from kcodec.consumer.rebalance import Heartbeat
from kcodec.errors import BrokerError
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
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


def test_a_member_alone_gets_everything() -> None:
    world = GroupWorld()
    one = world.client("a")
    assert one.membership.group_metadata == ConsumerGroupMetadata("g")
    world.settle()
    assert one.events == [("assign", ALL)]
    assert one.membership.group_metadata == ConsumerGroupMetadata("g", 1, "member-1")
    first, second = world.sent(JoinGroupRequest)
    assert (first.member_id, second.member_id) == ("", "member-1")
    assert {channel for *_, channel in world.requests} == {"group"}
    assert (second.session_timeout_ms, second.rebalance_timeout_ms) == (10_000, 60_000)


def test_an_eager_group_gives_up_everything_before_it_joins_again() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.settle()
    two = world.client("b")
    world.settle()
    assert one.events[1:] == [("revoke", ALL), ("assign", ALL[:2])]
    assert two.events == [("assign", ALL[2:])]


def test_a_cooperative_group_gives_up_only_what_changes_hands() -> None:
    world = GroupWorld()
    one = cooperative(world, "a")
    world.settle()
    two = cooperative(world, "b")
    world.settle()
    assert one.told("revoke") == [ALL[2:]]
    assert two.told("assign") == [[], ALL[2:]]
    assert world.group.generation == 3
    again = world.sent(JoinGroupRequest, "a")[-1]
    assert read_subscription(again.protocols[0].metadata, "", None).owned == tuple(ALL[:2])
    assert again.reason == "partitions were revoked, and are free now"


def test_a_protocol_that_is_not_cooperative_throughout_is_eager() -> None:
    world = GroupWorld()
    one = world.client("a", partition_assignment_strategy=("range", "cooperative-sticky"))
    world.settle()
    world.client("b", partition_assignment_strategy=COOPERATIVE)
    world.settle()
    assert one.told("revoke") == [ALL]
    assert world.group.protocol == "cooperative-sticky"


def test_the_first_assignor_that_all_members_know_is_taken() -> None:
    world = GroupWorld(a=3, b=3)
    world.client("x", ["a", "b"], partition_assignment_strategy=("range", "roundrobin"))
    world.settle()
    world.client("y", ["a", "b"], partition_assignment_strategy=("sticky", "roundrobin"))
    world.settle()
    assert world.group.protocol == "roundrobin"


def test_nothing_is_given_up_before_the_application_polls() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.settle()
    one.is_polling = False
    world.client("b")
    world.run(5)
    assert one.events == [("assign", ALL)]
    assert not one.membership.gate.is_held
    assert not one.membership.is_stable
    one.is_polling = True
    world.settle()
    assert one.told("revoke") == [ALL]


def test_no_joining_before_what_was_to_be_revoked_is_revoked() -> None:
    """Also while that takes long; heartbeats go on, and the gate is free for a commit."""
    world = GroupWorld()
    one = world.client("a")
    world.settle()
    one.revoke_seconds = 4.0
    world.client("b")
    world.run(2)
    before = len(world.sent(JoinGroupRequest, "a"))
    beats = len(world.sent(HeartbeatRequest, "a"))
    assert not one.membership.gate.is_held
    world.run(2)
    assert len(world.sent(JoinGroupRequest, "a")) == before
    assert len(world.sent(HeartbeatRequest, "a")) > beats
    world.settle()


def test_the_gate_is_held_from_join_to_sync_and_waited_for() -> None:
    held: list[tuple[type, bool]] = []
    world = GroupWorld()
    one = world.client("a")

    def look(client: str, request: Any) -> Fault:
        held.append((type(request), one.membership.gate.is_held))
        return Fault()

    world.faults = look
    world.settle()
    world.run(3)
    assert set(held) == {(JoinGroupRequest, True), (SyncGroupRequest, True), (HeartbeatRequest, False)}
    one.flow(one.membership.gate.acquire())
    sent = len(world.sent(JoinGroupRequest))
    one.membership.request_rejoin("a test")
    world.run(2)
    assert len(world.sent(JoinGroupRequest)) == sent
    one.membership.gate.release()
    world.settle()
    assert world.sent(JoinGroupRequest)[-1].reason == "a test"


def test_the_old_generation_stays_for_commits_until_the_rebalance_is_completed() -> None:
    world = GroupWorld()
    one = cooperative(world, "a")
    world.settle()
    old = one.membership.group_metadata
    seen = []

    def look(client: str, request: Any) -> Fault:
        if client == "a" and type(request) in (JoinGroupRequest, SyncGroupRequest):
            seen.append((type(request), one.membership.group_metadata))
        return Fault()

    world.faults = look
    one.membership.request_rejoin("a test")
    world.settle()
    assert seen == [(JoinGroupRequest, old), (SyncGroupRequest, old)]
    assert one.membership.group_metadata.generation_id == old.generation_id + 1


def test_a_poll_that_does_not_come_makes_us_leave_and_lose() -> None:
    world = GroupWorld()
    one = world.client("a", max_poll_interval=3.0)
    world.settle()
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
    world.settle()
    assert world.sent(JoinGroupRequest, "a")[joins].member_id == ""


def test_polls_while_the_application_is_at_work_are_not_needed_before_max_poll_interval() -> None:
    world = GroupWorld()
    one = world.client("a", max_poll_interval=30.0, session_timeout=3.0)
    world.settle()
    one.is_polling = False
    world.run(25)
    assert one.events == [("assign", ALL)]
    assert len(world.sent(HeartbeatRequest)) >= 24


def test_a_session_without_answers_ends_on_our_side_too() -> None:
    """Partitions are lost when the coordinator has given them away, not when it can be reached again."""
    world = GroupWorld()
    one = world.client("a", session_timeout=6.0, max_poll_interval=8.0)
    world.settle()
    cut_off_at = world.now
    world.faults = lambda client, request: Fault(is_lost=client == "a")
    two = world.client("b")
    world.run_until(lambda: bool(one.told("lose")), 20)
    assert world.now - cut_off_at <= 6.0 + 1.1
    world.run_until(lambda: two.has == set(ALL), 20)
    world.faults = lambda client, request: Fault()
    world.settle()


def test_a_topic_that_grows_is_given_out_anew_by_the_leader() -> None:
    world = GroupWorld()
    world.client("a")
    world.client("b")
    world.settle()
    world.topics["t"] = 6
    world.settle(90)


def test_a_topic_that_appears_and_goes() -> None:
    world = GroupWorld(t=2)
    one = world.client("a", ["t", "later"])
    world.settle()
    world.topics["later"] = 2
    world.settle(90)
    assert TopicPartition("later", 1) in one.has
    del world.topics["later"]
    world.settle(90)


def test_a_topic_without_a_leader_for_a_moment_is_no_change() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.settle()
    world.topic_errors["t"] = 5
    one.cluster.request_update("a test")
    world.run(1)
    world.topic_errors.clear()
    world.run(70)
    assert one.events == [("assign", ALL)]


@pytest.mark.parametrize("code", [17, 29])
def test_a_topic_that_is_refused_is_an_error_of_poll_for_as_long_as_it_is(code: int) -> None:
    world = GroupWorld(t=4, u=2)
    one = world.client("a")
    world.settle()
    world.topic_errors["t"] = code
    one.cluster.request_update("a test")
    world.run(10)
    assert isinstance(one.membership.error, BrokerError)
    assert one.membership.error.code == code
    assert one.has == set(ALL)
    world.topic_errors.clear()
    world.run_until(lambda: one.membership.error is None, 5)
    world.settle()
    assert one.events == [("assign", ALL)]


def test_a_pattern_follows_the_topics() -> None:
    world = GroupWorld(orders=2, payments=1, order=1)
    one = world.client("a", [])
    one.membership.subscribe([], "ord.*s")
    world.settle()
    assert {part.topic for part in one.has} == {"orders"}
    world.topics["ordeals"] = 1
    world.settle(90)
    assert {part.topic for part in one.has} == {"orders", "ordeals"}
    del world.topics["orders"]
    world.settle(90)
    assert any(request.topics is None for request in one.metadata_requests)


def test_what_the_leader_has_heard_of_first_is_taken() -> None:
    """A topic that matches, and that metadata has not shown us yet, is no reason to rejoin."""
    world = GroupWorld(x1=1)
    one = world.client("a", [])
    one.membership.subscribe([], "x.")
    world.settle()
    two = world.client("b", [])
    world.topics["x2"] = 1
    two.membership.subscribe([], "x.")
    world.settle(90)
    assert sorted(one.has | two.has) == [TopicPartition("x1", 0), TopicPartition("x2", 0)]


def test_a_pattern_that_is_none_is_refused() -> None:
    world = GroupWorld()
    one = world.client("a", [])
    with pytest.raises(ValueError, match=r"'\(' is no regular expression"):
        one.membership.subscribe([], "(")


def test_another_subscription_is_joined_with() -> None:
    world = GroupWorld(t=2, u=2)
    one = cooperative(world, "a")
    world.settle()
    one.membership.subscribe(["u"])
    world.settle()
    assert one.events == [
        ("assign", [TopicPartition("t", 0), TopicPartition("t", 1)]),
        ("revoke", [TopicPartition("t", 0), TopicPartition("t", 1)]),
        ("assign", [TopicPartition("u", 0), TopicPartition("u", 1)]),
    ]
    assert world.sent(JoinGroupRequest)[-1].reason == "the subscription has changed"


def test_a_subscription_that_changes_while_we_join_is_joined_with_again() -> None:
    world = GroupWorld(t=2, u=2)
    one = world.client("a")
    world.run_until(lambda: one.membership.is_joining)
    one.membership.subscribe(["u"])
    world.settle()
    assert {part.topic for part in one.has} == {"u"}


def test_who_unsubscribes_leaves() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.settle()
    one.membership.subscribe([])
    world.run(1)
    assert one.told("revoke") == [ALL]
    assert world.sent(LeaveGroupRequest)[0].members[0].reason == "the consumer unsubscribed from all topics"
    assert world.group.members == {}
    assert one.membership.group_metadata == ConsumerGroupMetadata("g", 1, "member-1")
    one.membership.subscribe(["t"])
    world.settle()
    assert one.membership.group_metadata.member_id == "member-2"


@pytest.mark.parametrize("way", ["unsubscribe", "leave", "cancel"])
def test_who_goes_while_the_coordinator_holds_its_join_goes_at_once(way: str) -> None:
    """The other member does not come for a while; the farewell does not wait behind JoinGroup."""
    world = GroupWorld()
    slow = world.client("slow")
    world.settle()
    slow.is_polling = False
    one = world.client("a")
    world.run_until(lambda: len(world.sent(JoinGroupRequest, "a")) == 2)
    world.run(0.5)
    assert one.membership.gate.is_held
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
    assert not one.membership.gate.is_held
    if way != "cancel":
        assert world.requests[-1][3] == "heartbeat"
        assert len(world.group.members) == 1
    slow.is_polling = True
    world.run_until(lambda: slow.has == set(ALL), 30)


def test_a_dynamic_member_leaves_with_its_reason_and_a_static_one_stays() -> None:
    world = GroupWorld()
    one = world.client("a")
    two = world.client("b", group_instance_id="i")
    world.settle()
    one.flow(one.membership.leave(5.0, "the consumer is being closed"))
    two.flow(two.membership.leave(5.0, "the consumer is being closed"))
    world.run(0.1)
    assert one.task.done
    assert two.task.done
    (left,) = world.sent(LeaveGroupRequest)
    assert (left.members[0].member_id, left.members[0].reason) == ("member-1", "the consumer is being closed")
    assert [member.instance for member in world.group.members.values()] == ["i"]


@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_old_brokers_are_told_by_member_id(version: int) -> None:
    world = GroupWorld()
    world.highest[LeaveGroupRequest] = version
    one = world.client("a")
    world.settle()
    one.flow(one.membership.leave(5.0, "closing"))
    assert world.group.members == {}


def test_a_farewell_finds_the_coordinator_and_ends_by_its_timeout() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.settle()
    codes = [16, 14, 15]
    world.faults = lambda client, request: Fault(
        code=codes.pop(0) if codes and type(request) is LeaveGroupRequest else None
    )
    one.flow(one.membership.leave(5.0, "closing"))
    assert world.group.members == {}
    two = world.client("b")
    world.clients.remove(one)
    world.settle()
    world.faults = lambda client, request: Fault(is_lost=True)
    start = world.now
    two.flow(two.membership.leave(2.0, "closing"))
    assert world.now - start <= 2.1


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    world = GroupWorld()
    one = world.client("a", group_instance_id="x")
    two = world.client("b", group_instance_id="y")
    world.settle()
    generation, had = world.group.generation, one.owned
    one.flow(one.membership.leave(5.0, "closing"))
    one.kill()
    again = world.client("c", group_instance_id="x")
    world.settle()
    assert world.group.generation == generation
    assert again.owned == had
    assert two.told("revoke") in ([], [ALL])


def test_of_two_static_members_of_one_name_the_older_is_fenced() -> None:
    world = GroupWorld()
    one = world.client("a", group_instance_id="x")
    world.settle()
    world.client("b", group_instance_id="x")
    world.run(5)
    assert one.told("lose") == [ALL]
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
    world.settle()
    assert one.flow(one.membership.force_heartbeat(5.0)) is Heartbeat.OK
    one.is_polling = False
    two = world.client("b")
    world.run(0.2)
    assert one.flow(one.membership.force_heartbeat(5.0)) is Heartbeat.REBALANCE_IN_PROGRESS
    two.kill()
    one.is_polling = True


@pytest.mark.parametrize(
    ("code", "expected"), [(22, Heartbeat.LOST), (25, Heartbeat.LOST), (82, Heartbeat.LOST), (30, Heartbeat.UNKNOWN)]
)
def test_forced_heartbeats_of_those_who_are_out(code: int, expected: Heartbeat) -> None:
    world = GroupWorld()
    one = world.client("a", heartbeat_interval=1000.0)
    world.settle()
    world.faults = lambda client, request: Fault(code=code)
    assert one.flow(one.membership.force_heartbeat(5.0)) in (expected, Heartbeat.LOST)
    world.faults = lambda client, request: Fault()
    world.run(1)
    assert one.told("lose") == [ALL]
    if code == 22:
        world.settle()


def test_a_forced_heartbeat_is_repeated_until_it_is_answered_or_late() -> None:
    world = GroupWorld()
    one = world.client("a", heartbeat_interval=1000.0, session_timeout=1000.0)
    world.settle()
    codes = [14, 16, 15]
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
    world.settle()
    slow.is_polling = False
    one.membership.request_rejoin("a test")
    if world.group.leader != one.membership.generation.member_id:
        cooperative(world, "third")
    world.run(2)
    assert one.membership.gate.is_held
    start = world.now
    assert one.flow(one.membership.force_heartbeat(5.0)) is Heartbeat.REBALANCE_IN_PROGRESS
    assert world.now - start < 0.1
    slow.is_polling = True
    world.settle()


def test_a_forced_heartbeat_ends_when_we_lose_our_partitions() -> None:
    world = GroupWorld()
    one = world.client("a", max_poll_interval=3.0)
    world.settle()
    one.is_polling = False
    world.faults = lambda client, request: Fault(is_lost=type(request) is HeartbeatRequest)
    start = world.now
    assert one.flow(one.membership.force_heartbeat(30.0), 40) is Heartbeat.LOST
    assert world.now - start < 10


def test_a_leader_that_comes_back_and_is_told_to_skip_the_sharing_gives_out_nothing() -> None:
    """KIP-814: the static leader keeps what it had; it watches the topics all the same."""
    world = GroupWorld()
    one = world.client("a", group_instance_id="x")
    world.settle()
    joined = world.group.joined

    def skipping(member: Any) -> Any:
        answer = joined(member)
        answer.skip_assignment = True
        return answer

    one.flow(one.membership.leave(5.0, "closing"))
    one.kill()
    world.group.joined = skipping  # type: ignore[method-assign]
    again = world.client("b", group_instance_id="x")
    world.settle()
    assert world.sent(SyncGroupRequest, "b")[-1].assignments == []
    world.group.joined = joined  # type: ignore[method-assign]
    world.topics["t"] = 6
    world.settle(90)
    assert len(again.has) == 6


class Greedy:
    """A cooperative assignor that gives the last member everything at once."""

    name, is_cooperative = "greedy", True

    def user_data(self, topics: Any) -> None: ...

    def on_assignment(self, partitions: Any, generation: int) -> None: ...

    def assign(self, topics: Topics, members: list[GroupMember]) -> Shares:
        last = members[-1].member_id
        shares: Shares = {member.member_id: [] for member in members}
        shares[last] = [TopicPartition(topic, number) for topic, parts in topics.items() for number in parts]
        return shares


def test_an_assignor_that_gives_away_what_is_still_owned_is_stopped() -> None:
    world = GroupWorld()
    one = world.client("a", partition_assignment_strategy=(Greedy(),))
    world.settle()
    two = world.client("b", partition_assignment_strategy=(Greedy(),))
    world.run(3)
    assert "still owns" in str(one.membership.error)
    assert two.has == set()


def test_an_assignor_that_fails_is_an_error_of_poll_and_the_gate_is_free() -> None:
    class Broken(Greedy):
        def assign(self, topics: Topics, members: list[GroupMember]) -> Shares:
            raise RuntimeError("broken")

    world = GroupWorld()
    one = world.client("a", partition_assignment_strategy=(Broken(),))
    world.run(2)
    assert isinstance(one.membership.error, RuntimeError)
    assert not one.membership.gate.is_held
    one.membership.assignors[:] = [Greedy()]
    one.membership.subscribe(["t"])
    world.settle()


def test_a_handler_that_fails_is_an_error_of_poll_and_the_gate_is_free() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.settle()

    def failing(partitions: Any) -> Any:
        raise RuntimeError("broken")
        yield

    one.revoke = failing  # type: ignore[method-assign]
    one.membership.request_rejoin("a test")
    world.run(1)
    assert isinstance(one.membership.error, RuntimeError)
    assert not one.membership.gate.is_held
    assert one.told("lose") == [ALL]


def test_requests_below_static_members_are_refused_for_a_static_member() -> None:
    world = GroupWorld()
    world.highest[JoinGroupRequest] = 4
    one = world.client("a", group_instance_id="x")
    world.run(1)
    assert one.membership.error is not None
    assert not one.membership.gate.is_held


def test_a_membership_without_a_group_is_refused() -> None:
    world = GroupWorld()
    with pytest.raises(ValueError, match="group_id"):
        GroupClient(world, "a", group_id=None)


def test_who_joins_while_others_sync_is_waited_for() -> None:
    """The leader's SyncGroup is late; a third member joins in between: 27, and all is given out anew."""
    world = GroupWorld()
    world.client("a")
    world.settle()
    world.faults = lambda client, request: Fault(
        delay=1.0 if type(request) is SyncGroupRequest and client == "a" else 0.0
    )
    world.client("b")
    world.run(1.5)
    world.client("c")
    world.settle()
