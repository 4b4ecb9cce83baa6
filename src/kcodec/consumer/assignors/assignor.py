# SPDX-License-Identifier: Apache-2.0
"""What an assignor is: it shares the partitions of a group's topics out among its members, on the leader.

Rules: Kafka's ConsumerPartitionAssignor (KIP-429), its subclasses of AbstractPartitionAssignor for the results.
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

    owned, generation: what it said it owns, and since which generation (-1: it did not say).
    user_data:         what its assignor of the same name told it to send.
    """

    member_id: str
    topics: frozenset[str]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    rack_id: str | None = None


class Assignor(Protocol):
    """Shares partitions out. One object belongs to one consumer, and may remember what it was told.

    name:           both sides of a group know it by this.
    is_cooperative: partitions are kept over a rebalance; what changes hands is given up first, and given away in the
                    next rebalance. Otherwise all is given up before every rebalance.
    """

    @property
    def name(self) -> str:
        """As in partition_assignment_strategy."""
        ...

    @property
    def is_cooperative(self) -> bool:
        """See the class."""
        ...

    def user_data(self, topics: Collection[str]) -> bytes | None:
        """What the leader's assignor is to be told of this member."""

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """A rebalance gave this member these."""

    def assign(self, topics: Topics, members: Sequence[GroupMember]) -> Shares:
        """On the leader: every member's share. topics: all that a member wants and that is there."""
        ...


def java_order(text: str) -> bytes:
    """Sorts as Java's String.compareTo does: by units of UTF-16."""
    return text.encode("utf-16-be", "surrogatepass")


def by_name(member: GroupMember) -> tuple[bool, bytes]:
    """Sorts as Kafka's MemberInfo: static members first, by instance id; the others by member id."""
    instance = member.group_instance_id
    return (True, java_order(member.member_id)) if instance is None else (False, java_order(instance))


def all_partitions(topics: Topics, names: Iterable[str]) -> list[TopicPartition]:
    """All partitions of these topics as far as they are there, by name and number."""
    return [
        TopicPartition(topic, number)
        for topic in sorted(names, key=java_order)
        if topic in topics
        for number in sorted(topics[topic])
    ]


def can_match_racks(consumer_racks: Collection[str], replica_racks: Collection[frozenset[str]]) -> bool:
    """Whether racks make a difference: some consumer's rack has replicas, and not every partition is in all of them."""
    everywhere = frozenset().union(*replica_racks)
    if everywhere.isdisjoint(consumer_racks):
        return False
    return any(racks != everywhere for racks in replica_racks)
