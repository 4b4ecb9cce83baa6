# SPDX-License-Identifier: Apache-2.0
"""The assignors of the broker for groups of the consumer protocol: uniform and range (KIP-848).

Range assigns the partitions of each topic in ranges to its subscribers, static members first. Uniform balances the
number of partitions over members, and moves no partition without need. If all members subscribe to the same topics, the
choice among equally good results is Kafka's (UniformHomogeneousAssignmentBuilder): the order of members is that of
Java's HashMap, and the partitions of each topic are in order. Otherwise the choice follows the order of member ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from kcodec.broker.groups.group_log import Target
from kcodec.broker.internal_topics import hash_map_order

TopicPartitionId = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """What an assignor knows of a member. target: its assignment until now."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    target: Target = field(default_factory=dict)


Members = list[AssignedMember]
#: Topic id -> number of partitions, of all topics that a member subscribes to.
PartitionCounts = Mapping[UUID, int]
ServerAssignor = Callable[[Members, PartitionCounts], dict[str, Target]]


def assign_range(members: Members, counts: PartitionCounts) -> dict[str, Target]:
    """Return a range of each topic for each of its members; the first members get one more."""
    shares: dict[str, dict[UUID, frozenset[int]]] = {member.member_id: {} for member in members}
    in_order = sorted(
        members,
        key=lambda one: (one.instance_id is None, one.member_id if one.instance_id is None else one.instance_id),
    )
    for topic_id, count in counts.items():
        readers = [member for member in in_order if topic_id in member.topics]
        begin = 0
        for number, member in enumerate(readers):
            end = begin + count // len(readers) + (number < count % len(readers))
            if end > begin:
                shares[member.member_id][topic_id] = frozenset(range(begin, end))
            begin = end
    return dict(shares)


def assign_uniform(members: Members, counts: PartitionCounts) -> dict[str, Target]:
    """Return an assignment whose sizes differ by one at most where subscriptions allow it, close to the last one."""
    if members and all(member.topics == members[0].topics for member in members):
        return _assign_equally(members, counts)
    free: dict[TopicPartitionId, None] = {
        (topic_id, number): None for topic_id in sorted(counts) for number in range(counts[topic_id])
    }
    owned: dict[str, list[TopicPartitionId]] = {}
    for member in sorted(members, key=lambda one: one.member_id):
        kept = [
            (topic_id, number)
            for topic_id in sorted(member.target)
            if topic_id in member.topics
            for number in sorted(member.target[topic_id])
            if (topic_id, number) in free
        ]
        owned[member.member_id] = kept
        for partition in kept:
            del free[partition]
    readers = {
        topic_id: sorted(member.member_id for member in members if topic_id in member.topics) for topic_id in counts
    }
    for partition in sorted(free, key=lambda one: (len(readers[one[0]]), one)):
        if readers[partition[0]]:
            owned[min(readers[partition[0]], key=lambda one: len(owned[one]))].append(partition)
    _balance(owned, readers)
    return {member_id: _by_topic(partitions) for member_id, partitions in owned.items()}


def _assign_equally(members: Members, counts: PartitionCounts) -> dict[str, Target]:
    """Return an assignment for members with the same topics: each keeps its share, and the rest is given in order."""
    by_id = {member.member_id: member for member in members}
    topics = sorted(members[0].topics)
    owned = {(topic_id, number) for one in members for topic_id, numbers in one.target.items() for number in numbers}
    free = [(topic_id, number) for topic_id in topics for number in range(counts[topic_id])]
    free = [partition for partition in free if partition not in owned]
    least, extra = divmod(sum(counts[topic_id] for topic_id in topics), len(members))
    kept: dict[str, list[TopicPartitionId]] = {}
    quotas: dict[str, int] = {}
    for place, member_id in enumerate(hash_map_order(by_id)):
        quotas[member_id] = least + (place < extra)
        target = by_id[member_id].target
        before = [(topic_id, number) for topic_id in topics for number in sorted(target.get(topic_id, ()))]
        kept[member_id] = before[: quotas[member_id]]
        free += before[quotas[member_id] :]
    rest = iter(free)
    for member_id, partitions in kept.items():
        partitions += islice(rest, quotas[member_id] - len(partitions))
    return {member_id: _by_topic(partitions) for member_id, partitions in kept.items()}


def _by_topic(partitions: Iterable[TopicPartitionId]) -> Target:
    share: dict[UUID, set[int]] = {}
    for topic_id, number in partitions:
        share.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in share.items()}


def _balance(owned: dict[str, list[TopicPartitionId]], readers: Mapping[UUID, list[str]]) -> None:
    """Move partitions from a member to a reader of the topic with at least two less, while there is one.

    Each move brings two sizes closer together, so the sum of their squares falls and the loop ends.
    """
    has_moved = True
    while has_moved:
        has_moved = False
        for giver in sorted(owned, key=lambda one: (-len(owned[one]), one)):
            for partition in reversed(owned[giver]):
                taker = min(readers[partition[0]], key=lambda one: len(owned[one]))
                if len(owned[taker]) + 1 < len(owned[giver]):
                    owned[giver].remove(partition)
                    owned[taker].append(partition)
                    has_moved = True
                    break


#: By the name that a member requests; the first one is the default (group.consumer.assignors).
SERVER_ASSIGNORS: Mapping[str, ServerAssignor] = {"uniform": assign_uniform, "range": assign_range}
