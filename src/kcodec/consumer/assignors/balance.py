# SPDX-License-Identifier: Apache-2.0
"""Assignments that are as balanced as possible, then as near (racks), then as similar to the previous ones as possible.

If all members subscribe to the same topics and racks do not matter, `_equal_shares` computes the result directly.
Otherwise a first guess is improved: partitions move along a chain or a cycle of members as long as this reduces the
total cost. The Bellman-Ford search for negative cycles finds these chains and cycles. When none is left, the result is
optimal, because the costs are those of a network flow and include the squares of the loads. (Kafka's
AbstractStickyAssignor moves single partitions between two members; `tests/consumer/test_assignors.py` compares the
results.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kcodec.consumer.assignors.assignor import (
    GroupMember,
    Shares,
    Topics,
    by_name,
    java_order,
)
from kcodec.offsets import TopicPartition

#: How many moves between two members are looked at until the shares are taken as they are, in an odd group with many
#: members: about a second of work. The guess that the search begins with is balanced already wherever that takes no
#: chains.
SEARCH_BUDGET = 3_000_000

# Partitions of one kind are interchangeable: (topic, previous owner, racks of their replicas).
Kind = tuple[str, int, frozenset[str]]
UNASSIGNED = -1
ANY_RACK: frozenset[str] = frozenset()


class Balance:
    """Distributes `partitions`. `had` returns the previous owner of a partition, or None."""

    def __init__(
        self,
        topics: Topics,
        members: Sequence[GroupMember],
        partitions: Sequence[TopicPartition],
        had: Mapping[TopicPartition, str | None],
        *,
        budget: int = SEARCH_BUDGET,
    ) -> None:
        self.members = sorted(members, key=by_name)
        self.partitions = partitions
        self.topics = topics
        self.budget = budget
        numbers = {member.member_id: number for number, member in enumerate(self.members)}
        self.had = {
            one: numbers[owner]
            for one, owner in had.items()
            if owner is not None and one.topic in self.members[numbers[owner]].topics
        }
        self.eligible = {
            topic: [number for number, member in enumerate(self.members) if topic in member.topics]
            for topic in {one.topic for one in partitions}
        }
        racks = {member.rack_id for member in members if member.rack_id}
        spread = {topics[one.topic][one.partition] for one in partitions}
        self.uses_racks = not racks.isdisjoint(frozenset().union(*spread)) and any(
            not racks <= there for there in spread
        )
        # The cost of all moves of a chain is less than that of one partition in a wrong rack, which is less than that
        # of imbalance.
        self.misplaced = 2 * len(self.members) + 1
        self.weight = 2 * len(self.members) * (self.misplaced + 1) + 1
        self.load = [0] * len(self.members)
        self.held: list[dict[Kind, list[TopicPartition]]] = [{} for _ in self.members]

    def shares(self) -> Shares:
        """Return every member's partitions, sorted."""
        members_count = len(self.members)
        if not self.uses_racks and all(len(able) == members_count for able in self.eligible.values()):
            held = self._equal_shares()
        else:
            self._guess()
            self._level()
            self._search()
            held = [[one for kind in kinds.values() for one in kind] for kinds in self.held]
        return {
            member.member_id: sorted(share, key=lambda one: (java_order(one[0]), one[1]))
            for member, share in zip(self.members, held, strict=True)
        }

    def _equal_shares(self) -> list[list[TopicPartition]]:
        """Give each member the same number of partitions, or one more. Members that had more keep the additional
        one."""
        kept: list[list[TopicPartition]] = [[] for _ in self.members]
        for one in sorted(self.partitions, key=lambda one: (one[1], java_order(one[0]))):
            if (owner := self.had.get(one, UNASSIGNED)) != UNASSIGNED:
                kept[owner].append(one)
        least, extra = divmod(len(self.partitions), len(self.members))
        # Those that had more come first; the sort is stable, so the others come in order.
        quotas = [least] * len(self.members)
        for number in sorted(range(len(self.members)), key=lambda number: len(kept[number]) <= least)[:extra]:
            quotas[number] += 1
        for number, share in enumerate(kept):
            del share[quotas[number] :]
        taken = {one for share in kept for one in share}
        free = [one for one in self.partitions if one not in taken]
        waiting = [number for number, share in enumerate(kept) if len(share) < quotas[number]]
        turn = 0
        for one in free:
            number = waiting[turn % len(waiting)]
            kept[number].append(one)
            if len(kept[number]) == quotas[number]:
                waiting.remove(number)
                turn = turn % (len(waiting) + 1)  # the next has moved up to this place
            else:
                turn = turn % len(waiting) + 1
        return kept

    # The general case

    def _kind(self, one: TopicPartition) -> Kind:
        racks = self.topics[one.topic][one.partition] if self.uses_racks else ANY_RACK
        return one.topic, self.had.get(one, UNASSIGNED), racks

    def _rank(self, kind: Kind, number: int) -> int:
        """Return the cost of a partition of this kind at this member."""
        _, owner, racks = kind
        rack = self.members[number].rack_id
        is_misplaced = self.uses_racks and bool(rack) and rack not in racks
        return self.misplaced * is_misplaced + (owner not in (UNASSIGNED, number))

    def _give(self, one: TopicPartition, kind: Kind, number: int) -> None:
        self.held[number].setdefault(kind, []).append(one)
        self.load[number] += 1

    def _move(self, kind: Kind, source: int, target: int) -> None:
        """Move one partition of the kind."""
        held = self.held[source][kind]
        self._give(held.pop(), kind, target)
        self.load[source] -= 1
        if not held:
            del self.held[source][kind]

    def _guess(self) -> None:
        """Leave partitions with their owners. Give the others to the member with the fewest partitions, the most
        restricted partitions first."""
        free = []
        for one in self.partitions:
            kind = self._kind(one)
            if kind[1] != UNASSIGNED and not self._rank(kind, kind[1]):
                self._give(one, kind, kind[1])
            else:
                free.append((one, kind))
        for one, kind in sorted(free, key=lambda pair: len(self.eligible[pair[1][0]])):
            able = self.eligible[kind[0]]
            self._give(one, kind, min(able, key=lambda number: (self.load[number], self._rank(kind, number))))

    def _level(self) -> None:
        """Move partitions one at a time from the fullest members to allowed members with at least two fewer."""
        crowded = set(range(len(self.members)))
        while crowded:
            source = max(crowded, key=lambda number: (self.load[number], -number))
            best: tuple[int, int, int] | None = None
            best_kind = None
            for kind in self.held[source]:
                able = self.eligible[kind[0]]
                self.budget -= len(able)
                target = min(able, key=lambda number: (self.load[number], self._rank(kind, number)))
                cost = self.load[target], self._rank(kind, target) - self._rank(kind, source), target
                if best is None or cost < best:
                    best, best_kind = cost, kind
            if best is None or best_kind is None or best[0] + 2 > self.load[source] or self.budget < 0:
                crowded.remove(source)
            else:
                self._move(best_kind, source, best[2])

    def _search(self) -> None:
        """Move along chains and cycles of members while that improves the result."""
        arcs = [self._arcs(number) for number in range(len(self.members))]
        while self.budget > 0 and (circle := self._negative_circle(arcs)):
            pairs = list(zip(circle, circle[1:] + circle[:1], strict=True))
            outside = len(self.members)
            kinds = [arcs[source][target][1] for source, target in pairs if outside not in (source, target)]
            moves = [pair for pair in pairs if outside not in pair]
            for kind, (source, target) in zip(kinds, moves, strict=True):
                self._move(kind, source, target)
            for number in circle:
                if number != outside:
                    arcs[number] = self._arcs(number)

    def _arcs(self, source: int) -> dict[int, tuple[int, Kind]]:
        """Return the members to which this one could give a partition, with the best kind and the cost."""
        found: dict[int, tuple[int, Kind]] = {}
        for kind in self.held[source]:
            before = self._rank(kind, source)
            self.budget -= len(self.eligible[kind[0]])
            for target in self.eligible[kind[0]]:
                cost = self._rank(kind, target) - before
                if target != source and (target not in found or cost < found[target][0]):
                    found[target] = cost, kind
        return found

    def _negative_circle(self, arcs: list[dict[int, tuple[int, Kind]]]) -> list[int]:
        """Return a cycle of members, each of which gives one partition to the next, whose cost is negative.

        One extra number represents the outside: of two members connected through it, the first gets one more and the
        other one fewer, at the cost of the changed squares of their loads.
        """
        outside = len(self.members)
        costs = [[(target, cost) for target, (cost, _) in found.items()] for found in arcs]
        for number, load in enumerate(self.load):
            costs[number].append((outside, self.weight * (2 * load + 1)))
        costs.append([(number, self.weight * (1 - 2 * load)) for number, load in enumerate(self.load) if load])
        distance, before = [0] * (outside + 1), [UNASSIGNED] * (outside + 1)
        is_better = True
        while is_better and self.budget > 0:
            is_better = False
            for source, targets in enumerate(costs):
                self.budget -= len(targets)
                for target, cost in targets:
                    if distance[source] + cost < distance[target]:
                        distance[target], before[target] = distance[source] + cost, source
                        is_better = True
            if is_better and (circle := _circle(before)):
                return circle
        return []


def _circle(before: Sequence[int]) -> list[int]:
    """Return a cycle among the predecessors, in the order of its arcs, or an empty list."""
    seen = [UNASSIGNED] * len(before)
    for start in range(len(before)):
        number = start
        while number != UNASSIGNED and seen[number] == UNASSIGNED:
            seen[number] = start
            number = before[number]
        if number != UNASSIGNED and seen[number] == start:
            circle = [number]
            while (number := before[number]) != circle[0]:
                circle.append(number)
            return circle[::-1]
    return []
