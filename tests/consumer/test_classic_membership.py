# SPDX-License-Identifier: Apache-2.0
"""A member of a classic group in virtual time, with a coordinator that keeps Kafka's rules (scripted_group.py):
how it joins, shares, gives up and follows its topics; how it goes is in test_classic_leaving.py."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_group import Fault, GroupClient, GroupWorld

from kcodec.consumer.assignors import GroupMember, Shares, Topics
from kcodec.consumer.group.classic.consumer_protocol import read_subscription
from kcodec.errors import BrokerError
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
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
    world.run_until_stable()
    assert one.events == [("assign", ALL)]
    assert one.membership.group_metadata == ConsumerGroupMetadata("g", 1, "member-1")
    first, second = world.sent(JoinGroupRequest)
    assert (first.member_id, second.member_id) == ("", "member-1")
    assert {channel for *_, channel in world.requests} == {"group"}
    assert (second.session_timeout_ms, second.rebalance_timeout_ms) == (10_000, 60_000)


def test_an_eager_group_gives_up_everything_before_it_joins_again() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.run_until_stable()
    two = world.client("b")
    world.run_until_stable()
    assert one.events[1:] == [("revoke", ALL), ("assign", ALL[:2])]
    assert two.events == [("assign", ALL[2:])]


def test_a_cooperative_group_gives_up_only_what_changes_hands() -> None:
    world = GroupWorld()
    one = cooperative(world, "a")
    world.run_until_stable()
    two = cooperative(world, "b")
    world.run_until_stable()
    assert one.reported("revoke") == [ALL[2:]]
    assert two.reported("assign") == [[], ALL[2:]]
    assert world.group.generation == 3
    again = world.sent(JoinGroupRequest, "a")[-1]
    assert read_subscription(again.protocols[0].metadata, "", None).owned == tuple(ALL[:2])
    assert again.reason == "revoked partitions are free now"


def test_a_protocol_that_is_not_cooperative_throughout_is_eager() -> None:
    world = GroupWorld()
    one = world.client("a", partition_assignment_strategy=("range", "cooperative-sticky"))
    world.run_until_stable()
    world.client("b", partition_assignment_strategy=COOPERATIVE)
    world.run_until_stable()
    assert one.reported("revoke") == [ALL]
    assert world.group.protocol == "cooperative-sticky"


def test_the_first_assignor_that_all_members_know_is_taken() -> None:
    world = GroupWorld(a=3, b=3)
    world.client("x", ["a", "b"], partition_assignment_strategy=("range", "roundrobin"))
    world.run_until_stable()
    world.client("y", ["a", "b"], partition_assignment_strategy=("sticky", "roundrobin"))
    world.run_until_stable()
    assert world.group.protocol == "roundrobin"


def test_nothing_is_given_up_before_the_application_polls() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.run_until_stable()
    one.is_polling = False
    world.client("b")
    world.run(5)
    assert one.events == [("assign", ALL)]
    assert not one.membership.group_lock.is_held
    assert not one.membership.is_stable
    one.is_polling = True
    world.run_until_stable()
    assert one.reported("revoke") == [ALL]


def test_no_joining_before_what_was_to_be_revoked_is_revoked() -> None:
    """Also while that takes long; heartbeats go on, and the gate is free for a commit."""
    world = GroupWorld()
    one = world.client("a")
    world.run_until_stable()
    one.revoke_seconds = 4.0
    world.client("b")
    world.run(2)
    before = len(world.sent(JoinGroupRequest, "a"))
    beats = len(world.sent(HeartbeatRequest, "a"))
    assert not one.membership.group_lock.is_held
    world.run(2)
    assert len(world.sent(JoinGroupRequest, "a")) == before
    assert len(world.sent(HeartbeatRequest, "a")) > beats
    world.run_until_stable()


def test_the_gate_is_held_from_join_to_sync_and_waited_for() -> None:
    held: list[tuple[type, bool]] = []
    world = GroupWorld()
    one = world.client("a")

    def look(client: str, request: Any) -> Fault:
        held.append((type(request), one.membership.group_lock.is_held))
        return Fault()

    world.faults = look
    world.run_until_stable()
    world.run(3)
    assert set(held) == {(JoinGroupRequest, True), (SyncGroupRequest, True), (HeartbeatRequest, False)}
    one.flow(one.membership.group_lock.acquire())
    sent = len(world.sent(JoinGroupRequest))
    one.membership.request_rejoin("a test")
    world.run(2)
    assert len(world.sent(JoinGroupRequest)) == sent
    one.membership.group_lock.release()
    world.run_until_stable()
    assert world.sent(JoinGroupRequest)[-1].reason == "a test"


def test_a_topic_that_grows_is_given_out_again_by_the_leader() -> None:
    world = GroupWorld()
    world.client("a")
    world.client("b")
    world.run_until_stable()
    world.topics["t"] = 6
    world.run_until_stable(90)


def test_a_topic_that_appears_and_goes() -> None:
    world = GroupWorld(t=2)
    one = world.client("a", ["t", "later"])
    world.run_until_stable()
    world.topics["later"] = 2
    world.run_until_stable(90)
    assert TopicPartition("later", 1) in one.has
    del world.topics["later"]
    world.run_until_stable(90)


def test_a_topic_without_a_leader_for_a_moment_is_no_change() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.run_until_stable()
    world.topic_errors["t"] = 5
    one.cluster.request_update("a test")
    world.run(1)
    world.topic_errors.clear()
    world.run(70)
    assert one.events == [("assign", ALL)]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_topic_that_is_refused_is_an_error_of_poll_for_as_long_as_it_is(code: int) -> None:
    world = GroupWorld(t=4, u=2)
    one = world.client("a")
    world.run_until_stable()
    world.topic_errors["t"] = code
    one.cluster.request_update("a test")
    world.run(10)
    assert isinstance(one.membership.error, BrokerError)
    assert one.membership.error.code == code
    assert one.has == set(ALL)
    world.topic_errors.clear()
    world.run_until(lambda: one.membership.error is None, 5)
    world.run_until_stable()
    assert one.events == [("assign", ALL)]


def test_a_pattern_follows_the_topics() -> None:
    world = GroupWorld(orders=2, payments=1, order=1)
    one = world.client("a", [])
    one.membership.subscribe([], "ord.*s")
    world.run_until_stable()
    assert {part.topic for part in one.has} == {"orders"}
    world.topics["ordeals"] = 1
    world.run_until_stable(90)
    assert {part.topic for part in one.has} == {"orders", "ordeals"}
    del world.topics["orders"]
    world.run_until_stable(90)
    assert any(request.topics is None for request in one.metadata_requests)


def test_what_the_leader_has_heard_of_first_is_taken() -> None:
    """A topic that matches, and that metadata has not shown us yet, is no reason to rejoin."""
    world = GroupWorld(x1=1)
    one = world.client("a", [])
    one.membership.subscribe([], "x.")
    world.run_until_stable()
    two = world.client("b", [])
    world.topics["x2"] = 1
    two.membership.subscribe([], "x.")
    world.run_until_stable(90)
    assert sorted(one.has | two.has) == [TopicPartition("x1", 0), TopicPartition("x2", 0)]


def test_a_pattern_that_is_none_is_refused() -> None:
    world = GroupWorld()
    one = world.client("a", [])
    with pytest.raises(ValueError, match=r"'\(' is not a valid regular expression"):
        one.membership.subscribe([], "(")


def test_another_subscription_is_joined_with() -> None:
    world = GroupWorld(t=2, u=2)
    one = cooperative(world, "a")
    world.run_until_stable()
    one.membership.subscribe(["u"])
    world.run_until_stable()
    assert one.events == [
        ("assign", [TopicPartition("t", 0), TopicPartition("t", 1)]),
        ("revoke", [TopicPartition("t", 0), TopicPartition("t", 1)]),
        ("assign", [TopicPartition("u", 0), TopicPartition("u", 1)]),
    ]
    assert world.sent(JoinGroupRequest)[-1].reason == "the subscription has changed"


def test_a_subscription_that_changes_while_we_join_is_joined_with_again() -> None:
    world = GroupWorld(t=2, u=2)
    one = world.client("a")
    world.run_until(lambda: one.membership.member.is_joining)
    one.membership.subscribe(["u"])
    world.run_until_stable()
    assert {part.topic for part in one.has} == {"u"}


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
    world.run_until_stable()
    two = world.client("b", partition_assignment_strategy=(Greedy(),))
    world.run(3)
    assert "before 'member-1', which owns it, has revoked it" in str(one.membership.error)
    assert two.has == set()


def test_an_assignor_that_fails_is_an_error_of_poll_and_the_gate_is_free() -> None:
    class Broken(Greedy):
        def assign(self, topics: Topics, members: list[GroupMember]) -> Shares:
            raise RuntimeError("broken")

    world = GroupWorld()
    one = world.client("a", partition_assignment_strategy=(Broken(),))
    world.run(2)
    assert isinstance(one.membership.error, RuntimeError)
    assert not one.membership.group_lock.is_held
    one.membership._rounds.assignors[:] = [Greedy()]  # type: ignore[list-item]
    one.membership.subscribe(["t"])
    world.run_until_stable()


def test_a_handler_that_fails_is_an_error_of_poll_and_the_gate_is_free() -> None:
    world = GroupWorld()
    one = world.client("a")
    world.run_until_stable()

    def failing(partitions: Any) -> Any:
        yield from ()
        raise RuntimeError("broken")

    one.revoke = failing  # type: ignore[assignment,method-assign]
    one.membership.request_rejoin("a test")
    world.run(1)
    assert isinstance(one.membership.error, RuntimeError)
    assert not one.membership.group_lock.is_held
    assert one.reported("lose") == [ALL]


def test_a_membership_without_a_group_is_refused() -> None:
    world = GroupWorld()
    with pytest.raises(ValueError, match="group_id"):
        GroupClient(world, "a", group_id=None)


def test_who_joins_while_others_sync_is_waited_for() -> None:
    """The leader's SyncGroup is late; a third member joins in between: 27, and all is assigned again."""
    world = GroupWorld()
    world.client("a")
    world.run_until_stable()
    world.faults = lambda client, request: Fault(
        delay=1.0 if type(request) is SyncGroupRequest and client == "a" else 0.0
    )
    world.client("b")
    world.run(1.5)
    world.client("c")
    world.run_until_stable()
