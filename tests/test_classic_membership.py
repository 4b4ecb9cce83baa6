# SPDX-License-Identifier: Apache-2.0
"""A member of a classic group in virtual time, beside a coordinator that keeps Kafka's rules (tests/scripted_group.py):
each transition, each error code, every way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scripted_group import Fault, GroupWorld

from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.protocol.messages.groups import (
    JoinGroupRequest,
)

COOPERATIVE = ("cooperative-sticky",)
ALL = [TopicPartition("t", number) for number in range(4)]


def once(kind: type, **fault: Any) -> Callable[[str, Any], Fault]:
    """The first request of a kind meets this, whoever sends it."""
    left = [Fault(**fault)]
    return lambda client, request: left.pop() if left and type(request) is kind else Fault()


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
    one = world.client("a", partition_assignment_strategy=COOPERATIVE)
    world.settle()
    two = world.client("b", partition_assignment_strategy=COOPERATIVE)
    world.settle()
    assert one.told("revoke") == [ALL[2:]]
    assert two.told("assign") == [[], ALL[2:]]
    assert world.group.generation == 3
