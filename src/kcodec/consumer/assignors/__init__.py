# SPDX-License-Identifier: Apache-2.0
"""How the members of a classic group share its partitions out: Kafka's assignors, by name, and room for others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kcodec.consumer.assignors.assignor import Assignor, GroupMember, Shares, Topics
from kcodec.consumer.assignors.simple import RangeAssignor, RoundRobinAssignor
from kcodec.consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

__all__ = [
    "ASSIGNORS",
    "Assignor",
    "CooperativeStickyAssignor",
    "GroupMember",
    "RangeAssignor",
    "RoundRobinAssignor",
    "Shares",
    "StickyAssignor",
    "Topics",
    "make_assignors",
]

ASSIGNORS: dict[str, type[Any]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
PARTS = ("name", "is_cooperative", "user_data", "on_assignment", "assign")


def make_assignors(strategies: Iterable[Any]) -> list[Assignor]:
    """Assignors of a consumer, for partition_assignment_strategy: names of Kafka's, or `Assignor`s of one's own.

    Raises ValueError for a name that is not known, two of one name, or none at all; TypeError for what is neither.
    """
    made: list[Assignor] = []
    for strategy in [strategies] if isinstance(strategies, str) else strategies:
        if isinstance(strategy, str):
            if strategy not in ASSIGNORS:
                known = ", ".join(ASSIGNORS)
                raise ValueError(f"partition_assignment_strategy: no assignor is named {strategy!r}; there are {known}")
            made.append(ASSIGNORS[strategy]())
        elif all(hasattr(strategy, part) for part in PARTS):
            made.append(strategy)
        else:
            raise TypeError(f"partition_assignment_strategy: a name or an Assignor is wanted, not {strategy!r}")
    names = [assignor.name for assignor in made]
    if not names or len(set(names)) < len(names):
        found = ", ".join(names) or "nothing"
        raise ValueError(f"partition_assignment_strategy needs one assignor or more, each once; found: {found}")
    return made
