# SPDX-License-Identifier: Apache-2.0
"""Random groups for tests that compare Kafka's and kcodec's assignors."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from kcodec.consumer.assignors import ASSIGNORS, GroupMember, Shares
from kcodec.offsets import TopicPartition


@dataclass
class Group:
    """The input of an assignor. topics: name -> the racks of each partition's replicas."""

    assignor: str
    topics: dict[str, list[list[str]]]
    members: list[GroupMember]

    @property
    def known(self) -> dict[str, dict[int, frozenset[str]]]:
        return {name: dict(enumerate(map(frozenset, racks))) for name, racks in self.topics.items() if racks}

    def shares(self) -> Shares:
        """Return the assignment by kcodec's assignor."""
        shares: Shares = ASSIGNORS[self.assignor]().assign(self.known, self.members)
        return shares

    def question(self) -> dict[str, Any]:
        """Return the input for AssignJudge.java."""
        members = [
            {
                "id": one.member_id,
                "instance": one.group_instance_id,
                "topics": sorted(one.topics),
                "owned": one.owned,
                "generation": one.generation,
                "rack": one.rack_id,
                "user_data": None if one.user_data is None else base64.b64encode(one.user_data).decode(),
            }
            for one in self.members
        ]
        return {"assignor": self.assignor, "topics": self.topics, "members": members}


def random_group(
    random: Random, assignor: str, *, is_equal: bool | None = None, has_racks: bool | None = None
) -> Group:
    """Return a group without earlier assignments. is_equal: all members have equal subscriptions; None: either."""
    is_equal = random.random() < 0.4 if is_equal is None else is_equal
    has_racks = random.random() < 0.5 if has_racks is None else has_racks
    racks = ["a", "b", "c"]
    topics = {}
    for name in random.sample(["t", "t10", "t2", "Ünïcode", "z\U0001f600", "z\uff5e"], random.randrange(1, 6)):
        spread = random.choice([1, 2, 3]) if has_racks else 0
        topics[name] = [random.sample(racks, spread) for _ in range(random.choice([0, 1, 2, 3, 4, 4, 6, 12]))]
    wanted = frozenset(random.sample(sorted(topics), random.randrange(1, len(topics) + 1)))
    members = []
    for number in range(random.randrange(1, 8)):
        some = frozenset(random.sample(sorted(topics), random.randrange(1, len(topics) + 1)))
        members.append(
            GroupMember(
                member_id=f"m{random.randrange(100)}-{number}",
                topics=wanted if is_equal else some | ({"missing"} if random.random() < 0.1 else frozenset()),
                group_instance_id=f"i{number * 7 % 11}" if random.random() < 0.2 else None,
                rack_id=random.choice([*racks, "", None]) if has_racks else None,
            )
        )
    return Group(assignor, topics, members)


def next_group(random: Random, group: Group, shares: Mapping[str, Sequence[TopicPartition]], generation: int) -> Group:
    """Return the group of the next rebalance: some members leave, some join, some report an older generation."""
    topics = {name: list(racks) for name, racks in group.topics.items()}
    if random.random() < 0.2:
        name = random.choice(sorted(topics))
        topics[name] += [random.choice(topics[name])] if topics[name] else [[]]
    stayed = [one for one in group.members if random.random() < 0.8] or group.members[:1]
    members = []
    for one in stayed:
        reported = ASSIGNORS[group.assignor]()
        since = generation - (random.random() < 0.1)
        reported.on_assignment(shares[one.member_id], since)
        is_cooperative = reported.is_cooperative
        members.append(
            replace(
                one,
                owned=tuple(shares[one.member_id]) if is_cooperative else (),
                generation=since if is_cooperative else -1,
                user_data=reported.user_data(one.topics),
            )
        )
    for number in range(random.randrange(0, 3)):
        model = random.choice(group.members)
        members.append(replace(model, member_id=f"new{generation}-{number}", group_instance_id=None, owned=()))
        members[-1] = replace(members[-1], generation=-1, user_data=None)
    random.shuffle(members)
    return Group(group.assignor, topics, members)


def imbalance(shares: Mapping[str, Sequence[TopicPartition]]) -> int:
    """Return the sum of the squares of the numbers of partitions: the less, the more balanced."""
    return sum(len(share) ** 2 for share in shares.values())


def kept(group: Group, shares: Mapping[str, Sequence[TopicPartition]], had: dict[str, set[TopicPartition]]) -> int:
    """Return the number of partitions that stayed with their member."""
    return sum(
        len(set(had[one.member_id]) & set(shares[one.member_id])) for one in group.members if one.member_id in had
    )
