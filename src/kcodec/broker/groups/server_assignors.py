# SPDX-License-Identifier: Apache-2.0
"""The assignors of the broker for groups of the consumer protocol: uniform and range (KIP-848).

Range assigns the partitions of each topic in ranges to its subscribers, static members first. Uniform gives each member
the same number of partitions if possible, and moves no partition unnecessarily. If all members subscribe to the same
topics, Uniform chooses among equally good results as Kafka does (UniformHomogeneousAssignmentBuilder): the order of
members is that of Java's HashMap, and the partitions of each topic are in order. Otherwise the order of member ids
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, islice
from uuid import UUID

from kcodec.broker.groups.group_log import Target
from kcodec.broker.internal_topics import hash_map_order

TopicPartitionId = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """What an assignor knows of a member. `target` is its present assignment."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    target: Target = field(default_factory=dict)


Members = list[AssignedMember]
#: Topic id -> number of partitions, of all topics that a member subscribes to.
PartitionCounts = Mapping[UUID, int]
ServerAssignor = Callable[[Members, PartitionCounts], dict[str, Target]]


def assign_range(members: Members, counts: PartitionCounts) -> dict[str, Target]:
    """Return a range of each topic for each of its members. The first members get one partition more."""
    shares: dict[str, dict[UUID, frozenset[int]]] = {member.member_id: {} for member in members}
    in_order = sorted(
        members,
        key=lambda one: (one.instance_id is None, one.member_id if one.instance_id is None else one.instance_id),
    )
    for topic_id, partitions in counts.items():
        readers = [member for member in in_order if topic_id in member.topics]
        begin = 0
        for number, member in enumerate(readers):
            end = begin + partitions // len(readers) + (number < partitions % len(readers))
            if end > begin:
                shares[member.member_id][topic_id] = frozenset(range(begin, end))
            begin = end
    return dict(shares)


def assign_uniform(members: Members, counts: PartitionCounts) -> dict[str, Target]:
    """Return an assignment whose sizes differ by at most one if subscriptions allow it, and that changes as little as
    possible."""
    if members and all(member.topics == members[0].topics for member in members):
        return _assign_equally(members, counts)
    free: dict[TopicPartitionId, None] = {
        (topic_id, number): None for topic_id in sorted(counts) for number in range(counts[topic_id])
    }
    shares = _Shares(members, counts)
    for member in sorted(members, key=lambda one: one.member_id):
        for topic_id in sorted(member.topics & member.target.keys()):
            for number in sorted(member.target[topic_id]):
                if (topic_id, number) in free:
                    del free[topic_id, number]
                    shares.give(member.member_id, topic_id, number)
    for topic_id, number in sorted(free, key=lambda one: (shares.number_of_readers(one[0]), one)):
        if shares.number_of_readers(topic_id):
            shares.give(shares.smallest_reader(topic_id), topic_id, number)
    while shares.balance():
        pass
    return {member_id: _by_topic(partitions) for member_id, partitions in shares.partitions()}


def _assign_equally(members: Members, counts: PartitionCounts) -> dict[str, Target]:
    """Return an assignment for members with the same topics. Each member keeps its share, and the rest is assigned in
    order.

    If the members cannot have the same number of partitions, some get an additional partition. Members that already own
    an additional partition come first. Another member gets one only if too few members follow it in the order.
    """
    by_id = {member.member_id: member for member in members}
    topics = sorted(members[0].topics)
    owned = {(topic_id, number) for one in members for topic_id, numbers in one.target.items() for number in numbers}
    free = [(topic_id, number) for topic_id in topics for number in range(counts[topic_id])]
    free = [partition for partition in free if partition not in owned]
    least, extra = divmod(sum(counts[topic_id] for topic_id in topics), len(members))
    kept: dict[str, list[TopicPartitionId]] = {}
    missing: dict[str, int] = {}
    for place, member_id in enumerate(hash_map_order(by_id)):
        target = by_id[member_id].target
        before = [(topic_id, number) for topic_id in topics for number in sorted(target.get(topic_id, ()))]
        quota = least + (extra > 0)
        kept[member_id] = before[:quota]
        free += before[quota:]
        if extra and len(before) < quota and len(members) - place > extra:
            quota -= 1
        elif extra:
            extra -= 1
        missing[member_id] = max(quota - len(before), 0)
    rest = iter(free)
    for member_id, partitions in kept.items():
        partitions += islice(rest, missing[member_id])
    return {member_id: _by_topic(partitions) for member_id, partitions in kept.items()}


def _by_topic(partitions: Iterable[TopicPartitionId]) -> Target:
    share: dict[UUID, set[int]] = {}
    for topic_id, number in partitions:
        share.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in share.items()}


class _Shares:
    """The partitions of members with different subscriptions.

    For each set of readers, a heap contains the sizes of their shares. Sizes in the heap may be out of date, but at
    least one size of each reader is not greater than its actual size. If the size at the top is up to date, it is
    therefore the smallest one.
    """

    def __init__(self, members: Members, counts: PartitionCounts) -> None:
        self._sizes = {member.member_id: 0 for member in sorted(members, key=lambda one: one.member_id)}
        #: Member id -> topic id -> (number of the gift, partition): the newest partition is the first to be moved.
        self._owned: dict[str, dict[UUID, list[tuple[int, int]]]] = {member_id: {} for member_id in self._sizes}
        self._gifts = count()
        #: Topic id -> its readers. Equal sets are one object, as comparing them takes time.
        self._readers: dict[UUID, frozenset[str]] = {}
        self._heaps: dict[frozenset[str], list[tuple[int, str]]] = {}
        same: dict[frozenset[str], frozenset[str]] = {}
        for topic_id in counts:
            readers = frozenset(member.member_id for member in members if topic_id in member.topics)
            self._readers[topic_id] = readers = same.setdefault(readers, readers)
            self._heaps[readers] = [(0, one) for one in sorted(readers)]

    def number_of_readers(self, topic_id: UUID) -> int:
        """Return the number of members that subscribe to a topic."""
        return len(self._readers[topic_id])

    def smallest_reader(self, topic_id: UUID) -> str:
        """Return the reader of a topic with the fewest partitions."""
        return self._smallest(self._readers[topic_id])

    def _smallest(self, readers: frozenset[str]) -> str:
        heap = self._heaps[readers]
        while heap[0][0] != self._sizes[heap[0][1]]:
            heapreplace(heap, (self._sizes[heap[0][1]], heap[0][1]))
        return heap[0][1]

    def give(self, member_id: str, topic_id: UUID, number: int) -> None:
        """Give a partition to a member."""
        self._owned[member_id].setdefault(topic_id, []).append((next(self._gifts), number))
        self._sizes[member_id] += 1

    def _take(self, member_id: str, topic_id: UUID) -> int:
        """Take the newest partition of a topic from a member."""
        number = self._owned[member_id][topic_id].pop()[1]
        self._sizes[member_id] -= 1
        for readers, heap in self._heaps.items():
            if member_id in readers:
                heappush(heap, (self._sizes[member_id], member_id))
        return number

    def balance(self) -> bool:
        """Move partitions from the largest shares to readers with at least two less. Return whether one was moved.

        Each move brings two sizes closer together, so the sum of their squares falls, and a loop of calls ends.
        """
        has_moved = False
        largest = [(-size, member_id) for member_id, size in self._sizes.items()]
        heapify(largest)
        while largest:
            size, giver = heappop(largest)
            if -size == self._sizes[giver] and self._move_one(giver):
                heappush(largest, (-self._sizes[giver], giver))
                has_moved = True
        return has_moved

    def _move_one(self, giver: str) -> bool:
        owned, most = self._owned[giver], self._sizes[giver] - 1
        has_smaller = {readers: self._sizes[self._smallest(readers)] < most for readers in self._heaps if readers}
        movable = [one for one, partitions in owned.items() if partitions and has_smaller[self._readers[one]]]
        if not movable:
            return False
        topic_id = max(movable, key=lambda one: owned[one][-1])
        taker = self.smallest_reader(topic_id)
        self.give(taker, topic_id, self._take(giver, topic_id))
        return True

    def partitions(self) -> Iterator[tuple[str, list[TopicPartitionId]]]:
        """Yield the partitions of each member."""
        for member_id, owned in self._owned.items():
            yield member_id, [(topic_id, number) for topic_id, found in owned.items() for _, number in found]


#: By the name that a member requests; the first one is the default (group.consumer.assignors).
SERVER_ASSIGNORS: Mapping[str, ServerAssignor] = {"uniform": assign_uniform, "range": assign_range}
