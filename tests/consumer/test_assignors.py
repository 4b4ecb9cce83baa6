# SPDX-License-Identifier: Apache-2.0
"""Assignors: their shares compared with those of Kafka's classes in one JVM, and what must hold of any share."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from group_cases import Group, imbalance, kept, next_group, random_group
from java_judge import JavaJudge

from kcodec.consumer.assignors import ASSIGNORS, GroupMember, Shares, make_assignors
from kcodec.consumer.assignors.balance import Balance
from kcodec.consumer.group.classic import consumer_protocol as member_protocol
from kcodec.errors import DecodeError
from kcodec.offsets import TopicPartition

STICKY = ["sticky", "cooperative-sticky"]


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as judge:
        yield judge


def partitions(rows: Sequence[Sequence[Any]]) -> list[TopicPartition]:
    return sorted(TopicPartition(*row) for row in rows)


def java_shares(answer: dict[str, Any]) -> dict[str, list[TopicPartition]]:
    return {member: partitions(rows) for member, rows in answer["shares"].items()}


def sorted_shares(shares: Shares) -> dict[str, list[TopicPartition]]:
    return {member: sorted(share) for member, share in shares.items()}


def check_whole(group: Group, shares: Shares) -> None:
    """Everything that somebody wants is given, once, to somebody who wants it."""
    assert shares.keys() == {one.member_id for one in group.members}
    given = list(itertools.chain(*shares.values()))
    wanted = {topic for one in group.members for topic in one.topics}
    there = [TopicPartition(name, number) for name, parts in group.known.items() for number in parts if name in wanted]
    assert sorted(given) == sorted(there)
    for one in group.members:
        assert {partition.topic for partition in shares[one.member_id]} <= one.topics


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_range_and_roundrobin_give_what_kafkas_classes_give(judge: JavaJudge, assignor: str) -> None:
    random = Random(assignor)
    groups = [random_group(random, assignor) for _ in range(400)]
    for group, answer in zip(groups, judge.shares([group.question() for group in groups]), strict=True):
        shares = group.shares()
        assert sorted_shares(shares) == java_shares(answer), group
        check_whole(group, shares)


@pytest.mark.parametrize("assignor", STICKY)
def test_sticky_shares_are_as_balanced_and_as_sticky_as_kafkas(judge: JavaJudge, assignor: str) -> None:
    """From the same past, without racks: never less balanced, and as balanced never less sticky."""
    random = Random(assignor)
    groups = [random_group(random, assignor, has_racks=False) for _ in range(150)]
    better = 0
    for generation in range(1, 4):
        asked = judge.shares([group.question() for group in groups])
        following = []
        for group, answer in zip(groups, asked, strict=True):
            theirs, ours = java_shares(answer), group.shares()
            had = believed(group)
            if assignor == "sticky" or generation == 1:
                check_whole(group, ours)
                assert imbalance(ours) <= imbalance(theirs), group
                if imbalance(ours) == imbalance(theirs):
                    assert kept(group, ours, had) >= kept(group, theirs, had), group
                better += imbalance(ours) < imbalance(theirs)
            following.append(next_group(random, group, theirs, generation))
        groups = following
    print(f"{assignor}: better balanced than Kafka's in {better} of {len(groups) * 3}")


def believed(group: Group) -> dict[str, set[TopicPartition]]:
    """Who had what, as far as nobody of a later generation, nor another of the same one, says otherwise."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for one in group.members:
        owned, generation = claim(group, one)
        for partition in owned:
            claims.setdefault(partition, []).append((generation, one.member_id))
    found: dict[str, set[TopicPartition]] = {one.member_id: set() for one in group.members}
    for partition, said in claims.items():
        latest = max(generation for generation, _ in said)
        first = [member for generation, member in said if generation == latest]
        if len(first) == 1:
            found[first[0]].add(partition)
    return found


def claim(group: Group, one: GroupMember) -> tuple[Sequence[TopicPartition], int]:
    if group.assignor != "sticky" or one.user_data is None:
        return one.owned, one.generation
    from kcodec.consumer.assignors.sticky import StickyUserData

    data = StickyUserData.decode(one.user_data, 1)
    return [
        TopicPartition(t.topic, number) for t in data.previous_assignment for number in t.partitions
    ], data.generation


def test_equal_groups_get_the_same_counts_and_keep_as_much_as_with_kafkas_class(judge: JavaJudge) -> None:
    random = Random(7)
    groups = [random_group(random, "cooperative-sticky", is_equal=True, has_racks=False) for _ in range(150)]
    for generation in range(1, 4):
        asked = judge.shares([group.question() for group in groups])
        following = []
        for group, answer in zip(groups, asked, strict=True):
            theirs, ours = java_shares(answer), group.shares()
            had = believed(group)
            assert kept(group, ours, had) == kept(group, theirs, had), group
            following.append(next_group(random, group, theirs, generation))
        groups = following


def test_racks_count_less_than_balance_and_more_than_the_past(judge: JavaJudge) -> None:
    random = Random(3)
    groups, compared = [random_group(random, "sticky", has_racks=True) for _ in range(200)], 0
    for group, answer in zip(groups, judge.shares([group.question() for group in groups]), strict=True):
        theirs, ours = java_shares(answer), group.shares()
        assert imbalance(ours) <= imbalance(theirs), group
        wanted = {topic for one in group.members for topic in one.topics}
        near = {rack for name in wanted & group.known.keys() for racks in group.known[name].values() for rack in racks}
        if imbalance(ours) == imbalance(theirs) and near & {one.rack_id for one in group.members}:
            assert misplaced(group, ours) <= misplaced(group, theirs), group
            compared += 1
    assert compared > 50


def misplaced(group: Group, shares: dict[str, list[TopicPartition]]) -> int:
    """Partitions without a replica in their member's rack."""
    racks = {one.member_id: one.rack_id for one in group.members}
    return sum(
        bool(racks[member]) and racks[member] not in group.known[topic][number]
        for member, share in shares.items()
        for topic, number in share
    )


def test_what_changes_hands_is_given_to_nothing_until_it_is_given_up() -> None:
    """Two rebalances: after the first nothing is in two hands, after the second all is given out and in balance."""
    random = Random(11)
    for _ in range(150):
        group = random_group(random, "cooperative-sticky")
        group = next_group(random, group, group.shares(), 1)
        had = believed(group)
        for _ in range(3):
            shares = group.shares()
            claimed = {member.member_id: set(member.owned) for member in group.members}
            for member, share in shares.items():
                for other, owned in claimed.items():
                    assert other == member or not (set(share) & owned - had[member]), group
            members = [replace(m, owned=tuple(shares[m.member_id]), generation=9) for m in group.members]
            group, had = replace(group, members=members), {name: set(share) for name, share in shares.items()}
        check_whole(group, shares)
        assert imbalance(shares) == imbalance(replace(group, assignor="sticky").shares())


def test_a_balanced_group_is_left_as_it_is() -> None:
    random = Random(5)
    for _ in range(200):
        group = random_group(random, "cooperative-sticky")
        shares = group.shares()
        members = [replace(m, owned=tuple(shares[m.member_id]), generation=4) for m in group.members]
        assert replace(group, members=members).shares() == shares


def test_of_two_that_say_they_own_a_partition_the_later_generation_keeps_it() -> None:
    both = tuple(TopicPartition("t", number) for number in range(2))
    older = GroupMember(member_id="a", topics=frozenset("t"), owned=both, generation=3)
    later = GroupMember(member_id="b", topics=frozenset("t"), owned=both[:1], generation=4)
    assert Group("cooperative-sticky", {"t": [[], []]}, [older, later]).shares() == {"a": [both[1]], "b": [both[0]]}
    tied = replace(older, generation=4, owned=both[:1])
    shares = Group("cooperative-sticky", {"t": [[], []]}, [tied, later]).shares()
    assert both[0] not in shares["a"] + shares["b"]


def test_a_chain_of_members_is_found_where_no_single_move_helps() -> None:
    """c may have only what b has, and b what a has: one moves on at each."""
    topics = {"x": {n: frozenset[str]() for n in range(3)}, "y": {0: frozenset[str](), 1: frozenset[str]()}}
    members = [
        GroupMember(member_id="a", topics=frozenset("x")),
        GroupMember(member_id="b", topics=frozenset("xy")),
        GroupMember(member_id="c", topics=frozenset("y")),
    ]
    had = {
        TopicPartition("x", 0): "a",
        TopicPartition("x", 1): "a",
        TopicPartition("x", 2): "a",
        TopicPartition("y", 0): "b",
        TopicPartition("y", 1): "b",
    }
    shares = Balance(topics, members, list(had), dict(had)).shares()
    assert sorted(map(len, shares.values())) == [1, 2, 2]


def test_without_a_budget_the_shares_are_whole_all_the_same() -> None:
    random = Random(8)
    for _ in range(50):
        group = random_group(random, "sticky", is_equal=False)
        wanted = {topic for one in group.members for topic in one.topics}
        parts = [TopicPartition(name, n) for name, found in group.known.items() for n in found if name in wanted]
        check_whole(group, Balance(group.known, group.members, parts, {}, budget=0).shares())


def test_the_bytes_between_members_are_those_of_kafkas_classes(judge: JavaJudge) -> None:
    random = Random(2)
    groups = []
    for number in range(80):
        first = random_group(random, ["range", *STICKY][number % 3])
        groups += [first, next_group(random, first, first.shares(), 5)]
    for group, answer in zip(groups, judge.shares([group.question() for group in groups]), strict=True):
        for one in group.members:
            data = base64.b64decode(answer["subscriptions"][one.member_id])
            plain = replace(one, group_instance_id=None)
            assert member_protocol.write_subscription(plain) == data
            read = member_protocol.read_subscription(data, one.member_id, None)
            assert replace(read, owned=tuple(sorted(read.owned))) == replace(
                plain, rack_id=one.rack_id or None, owned=tuple(sorted(one.owned))
            )
            rows = [TopicPartition(*row) for row in answer["shares"][one.member_id]]
            share = base64.b64decode(answer["assignments"][one.member_id])
            assert sorted(member_protocol.read_assignment(share)) == sorted(rows)
            assert sorted(member_protocol.read_assignment(member_protocol.write_assignment(rows))) == sorted(rows)
            reported = ASSIGNORS[group.assignor]()
            reported.on_assignment(rows, one.generation + 1)
            theirs = answer["user_data"][one.member_id]
            theirs = None if theirs is None else base64.b64decode(theirs)
            if group.assignor == "sticky":  # the topics come in the order of a hash map there
                assert sorted_claim(reported.user_data(one.topics)) == sorted_claim(theirs)
            else:
                assert reported.user_data(one.topics) == theirs


def sorted_claim(data: bytes | None) -> tuple[int, list[TopicPartition]]:
    group = Group("sticky", {}, [])
    owned, generation = claim(group, GroupMember(member_id="", topics=frozenset(), user_data=data))
    return generation, sorted(owned)


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_of_all_versions_are_read(version: int) -> None:
    from kcodec.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, OwnedPartitions

    message = ConsumerProtocolSubscription(
        topics=["t"],
        user_data=b"x",
        owned_partitions=[OwnedPartitions(topic="t", partitions=[2])],
        generation_id=6,
        rack_id="r",
    )
    read = member_protocol.read_subscription(version.to_bytes(2, "big") + message.encode(version), "m", "i")
    assert (read.topics, read.user_data, read.group_instance_id) == (frozenset("t"), b"x", "i")
    assert read.owned == ((TopicPartition("t", 2),) if version >= 1 else ())
    assert read.generation == (6 if version >= 2 else -1)
    assert read.rack_id == ("r" if version >= 3 else None)


def test_a_newer_version_is_read_as_the_newest_known() -> None:
    data = member_protocol.write_assignment([TopicPartition("t", 1)])
    assert member_protocol.read_assignment(b"\x00\x63" + data[2:] + b"more") == [TopicPartition("t", 1)]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff", b"\x00\x01\x00\x00\x00\x09", b"\x00\x00\x7f\xff\xff\xff"])
def test_what_cannot_be_read_is_an_error_that_says_whose_it_is(data: bytes) -> None:
    with pytest.raises(DecodeError):
        member_protocol.read_assignment(data)
    with pytest.raises(DecodeError):
        member_protocol.read_subscription(data, "m-1", None)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00\x00\x01", b"\x7f\xff\xff\xff\x00\x00", b"\xff" * 40])
def test_a_member_with_corrupt_user_data_counts_as_new(data: bytes) -> None:
    member = GroupMember(member_id="m", topics=frozenset("t"), user_data=data)
    for assignor in STICKY:
        assert Group(assignor, {"t": [[], []]}, [member]).shares() == {
            "m": [TopicPartition("t", 0), TopicPartition("t", 1)]
        }


@pytest.mark.parametrize(
    ("strategies", "error"), [(["rang"], "'rang'"), ([], "nothing"), (["range", "range"], "range, range"), ([3], "3")]
)
def test_strategies_that_make_no_assignors_are_refused(strategies: list[Any], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        make_assignors(strategies)
