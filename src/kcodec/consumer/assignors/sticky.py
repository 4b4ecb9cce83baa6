# SPDX-License-Identifier: Apache-2.0
"""The assignors with state: sticky and cooperative-sticky. Balance comes first, then racks, then the previous owners.

JoinGroup contains the previous partitions of a member. For sticky, which revokes all partitions before a rebalance,
they are in the data of the assignor; for cooperative-sticky, they are the owned partitions of the subscription. If two
members claim the same partition, the later generation counts. If the generations are equal, neither claim counts
(KIP-341, KAFKA-12984).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kcodec.cluster.retry_driver import by_topic
from kcodec.consumer.assignors.assignor import NO_GENERATION, GroupMember, Shares, Topics, all_partitions
from kcodec.consumer.assignors.balance import Balance
from kcodec.errors import DecodeError
from kcodec.offsets import TopicPartition
from kcodec.protocol.schema import Message, Struct, array, int32, string


class StickyTopic(Struct):
    """Partitions of a topic."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class StickyUserData(Message, versions="0-1", flexible="none"):
    """The data of sticky for the leader. It has no version number. Without a generation, it is version 0."""

    previous_assignment: list[StickyTopic] = array(StickyTopic, "0+")
    generation: int = int32("1+", default=NO_GENERATION, ignorable=True)


class CooperativeStickyUserData(Message, versions="0-0", flexible="none"):
    """The data of cooperative-sticky for the leader, in addition to the subscription."""

    generation: int = int32("0+", default=NO_GENERATION)


class StickyAssignor:
    """Selects, among the most balanced assignments, the one that moves the fewest partitions.

    It is an eager assignor: all partitions are revoked before a rebalance, and most of them return.
    """

    name = "sticky"
    is_cooperative = False

    def __init__(self) -> None:
        self._had: tuple[TopicPartition, ...] | None = None
        self._generation = NO_GENERATION

    def user_data(self, topics: Collection[str]) -> bytes | None:
        """Return this member's last partitions and their generation; None before its first rebalance."""
        if self._had is None:
            return None
        had = [StickyTopic(topic=topic, partitions=partitions) for topic, partitions in by_topic(self._had).items()]
        return StickyUserData(previous_assignment=had, generation=self._generation).encode(1)

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """Remember the assignment."""
        self._had, self._generation = tuple(partitions), generation

    def assign(self, topics: Topics, members: Sequence[GroupMember]) -> Shares:
        """See `Assignor`."""
        claims = {member.member_id: _read_user_data(member.user_data) for member in members}
        return _share_out(topics, members, _owners(members, claims))


class CooperativeStickyAssignor:
    """The cooperative version: members continue with the partitions that they keep.

    If a partition moves, the rebalance in which its previous owner still reports it leaves it unassigned. The owner
    then revokes it and joins again, and the next rebalance assigns it.
    """

    name = "cooperative-sticky"
    is_cooperative = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def user_data(self, topics: Collection[str]) -> bytes | None:
        """Return the generation, for leaders that do not read it from the subscription."""
        return CooperativeStickyUserData(generation=self._generation).encode(0)

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """Remember the generation."""
        self._generation = generation

    def assign(self, topics: Topics, members: Sequence[GroupMember]) -> Shares:
        """See `Assignor`."""
        claims: dict[str, Claim] = {one.member_id: (one.owned, _generation_of(one)) for one in members}
        owners = _owners(members, claims)
        return {
            member: [one for one in share if owners.get(one, member) == member]
            for member, share in _share_out(topics, members, owners).items()
        }


Claim = tuple[Sequence[TopicPartition], int]


def _read_user_data(user_data: bytes | None) -> Claim:
    """Read either version of the data. Data that cannot be read claims no partitions."""
    for version in (1, 0):
        try:
            found, _ = StickyUserData.decode_prefix(user_data or b"", version)
        except DecodeError:
            continue
        had = [TopicPartition(one.topic, number) for one in found.previous_assignment for number in one.partitions]
        return had, found.generation
    return (), NO_GENERATION


def _generation_of(member: GroupMember) -> int:
    if member.generation != NO_GENERATION or not member.user_data:
        return member.generation
    try:
        found, _ = CooperativeStickyUserData.decode_prefix(member.user_data, 0)
    except DecodeError:
        return NO_GENERATION
    return found.generation


def _owners(members: Sequence[GroupMember], claims: dict[str, Claim]) -> dict[TopicPartition, str | None]:
    """Return the previous owners of partitions; None if two members of the same generation claim one."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        partitions, generation = claims[member.member_id]
        for partition in dict.fromkeys(partitions):
            known = best.get(partition)
            if known is None or generation > known[0]:
                best[partition] = generation, member.member_id
            elif generation == known[0]:
                best[partition] = generation, None
    return {partition: owner for partition, (_, owner) in best.items()}


def _share_out(topics: Topics, members: Sequence[GroupMember], owners: dict[TopicPartition, str | None]) -> Shares:
    """Return the assignment, given the previous owners."""
    partitions = all_partitions(topics, {topic for member in members for topic in member.topics})
    return Balance(topics, members, partitions, {one: owners.get(one) for one in partitions}).shares()
