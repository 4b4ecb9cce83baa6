# SPDX-License-Identifier: Apache-2.0
"""The interface of an assignor, which distributes the partitions of a group's topics among its members, on the leader.

Source: Kafka's ConsumerPartitionAssignor (KIP-429), and subclasses of AbstractPartitionAssignor for the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kcodec.offsets import TopicPartition

#: Topic -> partition -> the racks of its replicas, as far as brokers have racks.
Topics = Mapping[str, Mapping[int, frozenset[str]]]
#: Member id -> what it is to read.
Shares = dict[str, list[TopicPartition]]
NO_GENERATION = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMember:
    """A member of a group as its leader sees it.

    owned, generation: Partitions that it owns, and the generation in which it got them (-1 if not reported).
    user_data:         Data from its assignor of the same name.
    """

    member_id: str
    topics: frozenset[str]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    rack_id: str | None = None


class Assignor(Protocol):
    """Distributes partitions. One object belongs to one consumer, and may keep state.

    name:           Name that identifies the assignor in the group.
    is_cooperative: Whether members keep partitions during a rebalance. A partition that moves is revoked first, and
                    assigned in the next rebalance. Otherwise all partitions are revoked before every rebalance.
    """

    @property
    def name(self) -> str:
        """The name in partition_assignment_strategy."""
        ...

    @property
    def is_cooperative(self) -> bool:
        """See the class."""
        ...

    def user_data(self, topics: Collection[str]) -> bytes | None:
        """Return this member's data for the leader's assignor."""

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """Receive the partitions that a rebalance has assigned to this member."""

    def assign(self, topics: Topics, members: Sequence[GroupMember]) -> Shares:
        """On the leader, return the assignment of every member. `topics` has all existing topics to which a member
        subscribes."""
        ...


def java_order(text: str) -> bytes:
    """Sort as Java's String.compareTo does: by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def by_name(member: GroupMember) -> tuple[bool, bytes]:
    """Sort as Kafka's MemberInfo does: static members first, by instance id; the others by member id."""
    instance = member.group_instance_id
    return (True, java_order(member.member_id)) if instance is None else (False, java_order(instance))


def all_partitions(topics: Topics, names: Iterable[str]) -> list[TopicPartition]:
    """Return all partitions of these topics, as far as the topics exist, by name and number."""
    return [
        TopicPartition(topic, number)
        for topic in sorted(names, key=java_order)
        if topic in topics
        for number in sorted(topics[topic])
    ]


def can_match_racks(consumer_racks: Collection[str], replica_racks: Collection[frozenset[str]]) -> bool:
    """Return whether racks matter: the rack of a consumer has replicas, and not every partition has replicas in all
    racks."""
    everywhere = frozenset().union(*replica_racks)
    if everywhere.isdisjoint(consumer_racks):
        return False
    return any(racks != everywhere for racks in replica_racks)
