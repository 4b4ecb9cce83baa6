# SPDX-License-Identifier: Apache-2.0
"""The stateless assignors: range (with racks, KIP-881) and roundrobin. Their results equal those of Kafka's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kcodec.consumer.assignors.assignor import (
    GroupMember,
    Shares,
    Topics,
    all_partitions,
    by_name,
    can_match_racks,
    java_order,
)
from kcodec.offsets import TopicPartition


class _Forgetful:
    is_cooperative = False

    def user_data(self, topics: Collection[str]) -> bytes | None:
        """Return None."""
        return None

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """Keep no state."""


class RoundRobinAssignor(_Forgetful):
    """Assigns all partitions in turn, skipping members that do not subscribe to the topic."""

    name = "roundrobin"

    def assign(self, topics: Topics, members: Sequence[GroupMember]) -> Shares:
        """See `Assignor`."""
        shares: Shares = {member.member_id: [] for member in members}
        circle = sorted(members, key=by_name)
        turn = 0
        for partition in all_partitions(topics, {topic for member in members for topic in member.topics}):
            while partition.topic not in circle[turn % len(circle)].topics:
                turn += 1
            shares[circle[turn % len(circle)].member_id].append(partition)
            turn += 1
        return shares


class RangeAssignor(_Forgetful):
    """Assigns each topic in ranges. The first members get one partition more. Partitions of equal number in different
    topics stay together.

    If racks matter, a member first gets partitions with a replica in its rack, up to its number of partitions. Topics
    with the same members and the same number of partitions are assigned together, so that equal numbers stay together.
    """

    name = "range"

    def assign(self, topics: Topics, members: Sequence[GroupMember]) -> Shares:
        """See `Assignor`."""
        shares: Shares = {member.member_id: [] for member in members}
        parts = [
            _TopicRange(topic, topics[topic], sorted((one for one in members if topic in one.topics), key=by_name))
            for topic in sorted(topics, key=java_order)
            if topics[topic]
        ]
        if any(part.uses_racks for part in parts):
            for together in _co_partitioned(parts):
                if len(together) > 1 and any(together[0].members.values()):
                    _match_together(together, shares)
                elif together[0].uses_racks:
                    together[0].share_out(shares, by_rack=True)
        for part in parts:
            part.share_out(shares, by_rack=False)
        return {member: sorted(share, key=lambda one: (java_order(one[0]), one[1])) for member, share in shares.items()}


class _TopicRange:
    """One topic while it is being assigned."""

    def __init__(self, topic: str, racks: Mapping[int, frozenset[str]], members: list[GroupMember]) -> None:
        self.topic = topic
        self.members = {member.member_id: member.rack_id or None for member in members}
        self.racks = racks
        self.left = sorted(racks)
        self.counts = dict.fromkeys(self.members, 0)
        self.quota, self.with_extra = divmod(len(racks), len(members)) if members else (0, 0)
        member_racks = {rack for rack in self.members.values() if rack is not None}
        self.uses_racks = can_match_racks(member_racks, list(racks.values()))

    def free_capacity(self, member: str) -> int:
        """Return the number of partitions that the member may still get."""
        return max(0, self.quota + (self.with_extra > 0) - self.counts[member])

    def suits(self, member: str, number: int) -> bool:
        """Return whether the partition has a replica in the member's rack, if it has one."""
        rack = self.members[member]
        return rack is None or rack in self.racks[number]

    def give(self, member: str, numbers: Sequence[int], shares: Shares) -> None:
        """Assign these partitions to the member."""
        shares[member] += [TopicPartition(self.topic, number) for number in numbers]
        given = set(numbers)
        self.left = [number for number in self.left if number not in given]
        self.counts[member] += len(numbers)
        if self.counts[member] > self.quota:
            self.with_extra -= 1

    def share_out(self, shares: Shares, *, by_rack: bool) -> None:
        """Assign a range to each member in turn, up to its quota. With `by_rack`, assign only partitions in its
        rack."""
        for member in self.members:
            numbers = [number for number in self.left if not by_rack or self.suits(member, number)]
            if numbers := numbers[: self.free_capacity(member)]:
                self.give(member, numbers, shares)


def _co_partitioned(parts: Sequence[_TopicRange]) -> list[list[_TopicRange]]:
    """Return groups of topics with the same members and the same number of partitions."""
    groups: dict[tuple[frozenset[str], int], list[_TopicRange]] = {}
    for part in parts:
        groups.setdefault((frozenset(part.members), len(part.racks)), []).append(part)
    return list(groups.values())


def _match_together(parts: list[_TopicRange], shares: Shares) -> None:
    """Assign partitions of equal number in all of these topics at once to the first member in whose rack they are."""
    members = list(parts[0].members)
    for number in sorted(parts[0].racks):
        suited = (
            member
            for member in members
            if all(
                part.free_capacity(member) > 0 and number in part.racks and part.suits(member, number) for part in parts
            )
        )
        if (found := next(suited, None)) is not None:
            for part in parts:
                part.give(found, [number], shares)
            if not any(part.free_capacity(found) for part in parts):
                members.remove(found)
