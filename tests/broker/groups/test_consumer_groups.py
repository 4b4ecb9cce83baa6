# SPDX-License-Identifier: Apache-2.0
"""Groups of the consumer protocol (KIP-848): epochs, assignments, fencing, regular expressions, restarts."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import combinations, islice
from typing import Any
from uuid import UUID

import pytest
from memory_groups import MemoryGroups, refuse_write

from kcodec.broker.api import ApiError
from kcodec.broker.groups.server_assignors import AssignedMember, assign_range, assign_uniform
from kcodec.broker.groups.topic_patterns import compile_pattern, matching_topics
from kcodec.broker.internal_topics import GroupHost
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages import group_records


def partitions(response: Any) -> list[int]:
    """Return the partitions of an assignment."""
    assert response.assignment is not None
    return sorted(number for one in response.assignment.topic_partitions for number in one.partitions)


def owned(groups: MemoryGroups, topic: str, numbers: list[int]) -> list[messages.ConsumerGroupTopicPartitions]:
    """Return what a member reports."""
    found = groups.topics.get(topic)
    assert found is not None
    return [messages.ConsumerGroupTopicPartitions(topic_id=found.id, partitions=numbers)]


def test_a_second_member_waits_until_partitions_are_revoked() -> None:
    """The first member keeps its epoch until it has revoked; the second one then gets what is free."""
    groups = MemoryGroups()
    first = groups.report("g", "a", 0)
    assert (first.member_epoch, partitions(first)) == (2, [0, 1, 2])
    second = groups.report("g", "b", 0)
    assert (second.member_epoch, partitions(second)) == (3, [])
    kept = groups.report("g", "a", 2, topic_partitions=owned(groups, "t", [0, 1, 2]))
    assert (kept.member_epoch, partitions(kept)) == (2, [0, 1])
    assert groups.report("g", "b", 3).assignment is None
    assert groups.report("g", "a", 2, topic_partitions=owned(groups, "t", [0, 1])).member_epoch == 3
    assert partitions(groups.report("g", "b", 3)) == [2]
    assert groups.state("g") == "Stable"


def test_a_member_that_does_not_revoke_is_fenced() -> None:
    """After its rebalance timeout of 5 s."""
    groups = MemoryGroups()
    groups.report("g", "a", 0)
    groups.report("g", "b", 0)
    groups.report("g", "a", 2)
    groups.clock.advance(4_999)
    assert groups.report("g", "a", 2).error_code == ErrorCode.NONE
    groups.clock.advance(2)
    assert groups.report("g", "a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert partitions(groups.report("g", "b", 3)) == [0, 1, 2]


def test_a_session_ends_after_its_timeout() -> None:
    """45 s, which each heartbeat extends."""
    groups = MemoryGroups()
    groups.report("g", "a", 0)
    groups.clock.advance(44_999)
    groups.report("g", "a", 2)
    groups.clock.advance(44_999)
    assert groups.state("g") == "Stable"
    groups.clock.advance(2)
    assert groups.state("g") == "Empty"


def test_wrong_epochs_are_fenced() -> None:
    """The epoch before a lost response is accepted with a subset of the assigned partitions."""
    groups = MemoryGroups()
    fenced = ErrorCode.FENCED_MEMBER_EPOCH
    groups.report("g", "a", 0)
    assert groups.report("g", "a", 3).error_code == fenced
    assert groups.report("g", "a", 1).error_code == fenced
    groups.report("g", "a", 2, subscribed_topic_names=["t", "u"])
    lost = groups.report("g", "a", 2, topic_partitions=owned(groups, "t", [0]))
    assert (lost.error_code, lost.member_epoch) == (ErrorCode.NONE, 3)
    assert groups.report("g", "a", 2, topic_partitions=owned(groups, "t", [9])).error_code == fenced
    assert groups.report("g", "nobody", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_is_released_before_another_takes_it() -> None:
    """UNRELEASED_INSTANCE_ID until the first has left with epoch -2; the assignment goes to the next one."""
    groups = MemoryGroups()
    groups.report("g", "a", 0, instance_id="i")
    assert groups.report("g", "b", 0, instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert groups.report("g", "b", 2, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert groups.report("g", "a", -2, instance_id="i").member_epoch == -2
    groups.restart()
    back = groups.report("g", "b", 0, instance_id="i")
    assert (back.member_epoch, partitions(back)) == (2, [0, 1, 2])


def test_new_partitions_start_an_epoch() -> None:
    """The next heartbeat gives them out."""
    groups = MemoryGroups()
    groups.report("g", "a", 0)
    topic = groups.topics.get("t")
    assert topic is not None
    groups.topics.add_partitions(topic, 5)
    response = groups.report("g", "a", 2)
    assert (response.member_epoch, partitions(response)) == (3, [0, 1, 2, 3, 4])


def test_an_assignment_interval_delays_the_next_target() -> None:
    """KIP-1263: members join at the last target's epoch until it has passed."""
    groups = MemoryGroups(group_consumer_assignment_interval_ms=1_000)
    groups.report("g", "a", 0)
    assert groups.report("g", "b", 0).member_epoch == 2
    assert groups.state("g") == "Assigning"
    groups.clock.advance(1_000)
    assert groups.report("g", "b", 2).member_epoch == 3


def test_expressions_are_matched_after_the_heartbeat() -> None:
    """Topics that are created later join in; expressions that RE2 refuses are refused."""
    groups = MemoryGroups()
    response = groups.report("g", "a", 0, subscribed_topic_names=None, subscribed_topic_regex="[tx]+")
    assert partitions(response) == []
    assert partitions(groups.report("g", "a", response.member_epoch)) == [0, 1, 2]
    groups.topics.create("xx", 1)
    groups.restart()
    assert groups.report("g", "a", response.member_epoch + 1).assignment is None
    assert partitions(groups.report("g", "a", response.member_epoch + 1)) == [0, 0, 1, 2]
    refused = groups.report("h", "a", 0, subscribed_topic_regex="(?=t)")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_expression_is_matched_again_after_a_failed_write(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = MemoryGroups()
    groups.report("g", "a", 0, subscribed_topic_names=None, subscribed_topic_regex="[tx]+")
    assert partitions(groups.report("g", "a", 1)) == [0, 1, 2]
    groups.topics.create("xx", 1)
    with monkeypatch.context() as patch:
        patch.setattr(GroupHost, "append", refuse_write)
        assert groups.report("g", "a", 2).error_code == ErrorCode.NONE
    assert groups.report("g", "a", 2).assignment is None
    assert partitions(groups.report("g", "a", 2)) == [0, 0, 1, 2]


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "(?<!a)b", r"(a)\1", "a++", "(?>a)", "(?P<n>a)(?P=n)", r"\p{L}"])
def test_expressions_that_re2_refuses_are_refused(pattern: str) -> None:
    """Also those of RE2 that Python does not know."""
    with pytest.raises(ApiError) as refused:
        compile_pattern(pattern)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_expressions_match_whole_names() -> None:
    """As Matcher.matches does; an escaped parenthesis is no lookahead."""
    assert matching_topics("a|b", ["a", "ab", "b"]) == ["a", "b"]
    assert matching_topics(r"\(?=x", ["=x"]) == ["=x"]
    assert matching_topics("", ["a", ""]) == []


def test_consumer_groups_survive_a_restart() -> None:
    """Epochs, targets and owned partitions come back, and so does a revocation under way."""
    groups = MemoryGroups()
    groups.report("g", "a", 0)
    groups.report("g", "b", 0, server_assignor="range")
    groups.report("g", "a", 2)
    before = groups.ask(messages.ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0]
    groups.restart()
    assert groups.ask(messages.ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0] == before
    assert (before.group_state, before.assignor_name) == ("Reconciling", "range")
    assert groups.report("g", "a", 2, topic_partitions=owned(groups, "t", [0, 1])).member_epoch == 3


def test_a_full_consumer_group_refuses_a_member() -> None:
    """group.consumer.max.size; a known member may come back."""
    groups = MemoryGroups(group_consumer_max_size=1)
    groups.report("g", "a", 0)
    assert groups.report("g", "b", 0).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.report("g", "a", 0).error_code == ErrorCode.NONE


def members_of(groups: MemoryGroups, *subscriptions: str) -> tuple[list[AssignedMember], dict[Any, int]]:
    """Return members that subscribe to topics by their letters, and the numbers of partitions."""
    topics = {name: groups.topics.get(name) for name in "tu"}
    ids = {name: topic.id for name, topic in topics.items() if topic is not None}
    found = [
        AssignedMember(f"m{number}", None, frozenset(ids[one] for one in names))
        for number, names in enumerate(subscriptions)
    ]
    return found, {ids["t"]: 3, ids["u"]: 12}


def test_range_gives_the_first_members_more() -> None:
    """Each topic is divided among its subscribers."""
    members, counts = members_of(MemoryGroups(), "t", "tu")
    shares = assign_range(members, counts)
    assert sorted(map(len, shares["m0"].values())) == [2]
    assert sorted(map(len, shares["m1"].values())) == [1, 12]


def test_uniform_balances_different_subscriptions() -> None:
    """Every partition has one owner that subscribes to it, and sizes are as equal as subscriptions allow."""
    members, counts = members_of(MemoryGroups(), "t", "tu", "u", "tu")
    shares = assign_uniform(members, counts)
    taken = [(topic, number) for share in shares.values() for topic, numbers in share.items() for number in numbers]
    assert len(taken) == len(set(taken)) == 15
    assert all(set(shares[one.member_id]) <= one.topics for one in members)
    assert sorted(sum(map(len, share.values())) for share in shares.values()) == [3, 4, 4, 4]


def test_uniform_chooses_the_partitions_that_kafka_chooses() -> None:
    """What one member has too much fills the others in the order of Java's HashMap, and so does what a member left.

    The rule is UniformHomogeneousAssignmentBuilder of Kafka; prove_group_coordinator.py compares random groups.
    """
    all_members, counts = members_of(MemoryGroups(), *"u" * 4)
    shares: dict[str, Any] = {}
    seen = []
    for names in ("m0 m1", "m0 m1 m2", "m0 m1 m2 m3", "m1 m2 m3"):
        members = [replace(one, target=shares.get(one.member_id, {})) for one in all_members if one.member_id in names]
        shares = assign_uniform(members, counts)
        seen.append({name: sorted(*share.values()) for name, share in sorted(shares.items())})
    assert seen == [
        {"m0": [0, 1, 2, 3, 4, 5], "m1": [6, 7, 8, 9, 10, 11]},
        {"m0": [0, 1, 2, 3], "m1": [6, 7, 8, 9], "m2": [4, 5, 10, 11]},
        {"m0": [0, 1, 2], "m1": [6, 7, 8], "m2": [4, 5, 10], "m3": [3, 9, 11]},
        {"m1": [0, 6, 7, 8], "m2": [1, 4, 5, 10], "m3": [2, 3, 9, 11]},
    ]


def test_uniform_lets_members_keep_an_extra_partition() -> None:
    """Of 12 partitions, any two of five members can have three. No partition moves, whichever members these are."""
    members, counts = members_of(MemoryGroups(), *"u" * 5)
    (topic,) = members[0].topics
    for extra in combinations(range(5), 2):
        free = iter(range(12))
        shares = [frozenset(islice(free, 3 if number in extra else 2)) for number in range(5)]
        owners = [replace(one, target={topic: share}) for one, share in zip(members, shares, strict=True)]
        assert assign_uniform(owners, counts) == {one.member_id: one.target for one in owners}


def test_uniform_takes_no_quadratic_time() -> None:
    """The broker serves no other client meanwhile. One member owns all partitions when others join it."""
    topics = [UUID(int=number) for number in range(20)]
    counts = dict.fromkeys(topics, 500)
    owned = dict.fromkeys(topics, frozenset(range(500)))
    for joining in (1, 999):
        members = [AssignedMember("m0", None, frozenset(topics), owned)]
        members += [AssignedMember(f"n{number}", None, frozenset(topics[1:])) for number in range(joining)]
        begin = time.thread_time()
        shares = assign_uniform(members, counts)
        assert time.thread_time() - begin < 2
        sizes = sorted(sum(map(len, share.values())) for share in shares.values())
        assert sizes in ([5000, 5000], [9] * 490 + [10] * 509 + [500])


def test_uniform_moves_no_more_than_it_must() -> None:
    """A member that joins takes from the others only what they have too much."""
    groups = MemoryGroups()
    members, counts = members_of(groups, "u", "u")
    before = assign_uniform(members, counts)
    joined, _ = members_of(groups, "u", "u", "u")
    known = [AssignedMember(one.member_id, None, one.topics, before.get(one.member_id, {})) for one in joined]
    after = assign_uniform(known, counts)
    for member_id in ("m0", "m1"):
        (numbers,) = after[member_id].values()
        assert numbers < frozenset().union(*before[member_id].values())
        assert len(numbers) == 4


def test_a_deleted_group_leaves_the_tombstones_of_kafka() -> None:
    """Apache Kafka 4.4.0 also removes the key of partition metadata, which it does not write any more."""
    groups = MemoryGroups()
    groups.report("g", "a", 0)
    groups.report("g", "a", -1)
    before = len(groups.records("g"))
    groups.ask(messages.DeleteGroupsRequest(groups_names=["g"]))
    left = groups.records("g")[before:]
    assert [(int.from_bytes(one.key[:2], "big"), one.value) for one in left] == [
        (group_records.ConsumerGroupTargetAssignmentMetadataKey.api_key, None),
        (group_records.ConsumerGroupPartitionMetadataKey.api_key, None),
        (group_records.ConsumerGroupMetadataKey.api_key, None),
    ]


def test_a_group_has_its_own_session_timeout() -> None:
    """The configurations of a group replace those of the broker."""
    groups = MemoryGroups()
    own = {"consumer.session.timeout.ms": "2000", "consumer.heartbeat.interval.ms": "500"}
    groups.topics.set_group_configs("g", own)
    assert groups.report("g", "a", 0).heartbeat_interval_ms == 500
    groups.clock.advance(2_001)
    assert groups.state("g") == "Empty"


def test_another_preferred_assignor_begins_an_epoch() -> None:
    """Also if all members have the same topics as before; the assignor that is the default already changes nothing."""
    groups = MemoryGroups()
    assert groups.report("g", "a", 0).member_epoch == 2
    assert groups.report("g", "a", 0, server_assignor="uniform").member_epoch == 2
    assert groups.report("g", "a", 0, server_assignor="range").member_epoch == 3


def test_a_member_that_becomes_static_waits_for_an_assignment() -> None:
    """As on Kafka, which looks for the target under the instance id: the next epoch gives the partitions."""
    groups = MemoryGroups()
    groups.report("g", "a", 0)
    assert groups.report("g", "b", 0).member_epoch == 3
    assert groups.report("g", "b", 0, instance_id="i").member_epoch == 3
    groups.report("g", "a", 2, topic_partitions=owned(groups, "t", [0, 1]))
    assert groups.state("g") == "Stable"
    assert groups.report("g", "b", 3).assignment is None
    assert partitions(groups.report("g", "c", 0)) == []
    assert groups.state("g") == "Reconciling"
