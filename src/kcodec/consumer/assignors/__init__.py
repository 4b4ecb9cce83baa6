# SPDX-License-Identifier: Apache-2.0
"""Assignors, which distribute partitions among the members of a classic group: Kafka's by name, and custom ones."""

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
    """Return the assignors for partition_assignment_strategy: names of Kafka's, or custom `Assignor`s.

    Raise ValueError for an unknown name, a repeated one, or an empty list; TypeError for anything else.
    """
    made: list[Assignor] = []
    for strategy in [strategies] if isinstance(strategies, str) else strategies:
        if isinstance(strategy, str):
            if strategy not in ASSIGNORS:
                known = ", ".join(ASSIGNORS)
                raise ValueError(
                    f"partition_assignment_strategy: unknown assignor {strategy!r}; expected one of {known}"
                )
            made.append(ASSIGNORS[strategy]())
        elif all(hasattr(strategy, part) for part in PARTS):
            made.append(strategy)
        else:
            raise TypeError(f"partition_assignment_strategy: expected a name or an Assignor, got {strategy!r}")
    names = [assignor.name for assignor in made]
    if not names or len(set(names)) < len(names):
        found = ", ".join(names) or "nothing"
        raise ValueError(f"partition_assignment_strategy needs at least one assignor, each only once; got {found}")
    return made
