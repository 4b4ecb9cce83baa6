# SPDX-License-Identifier: Apache-2.0
"""Partitions and the offsets committed in them, as Kafka's clients name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic; as text ``orders-0``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Timestamp(NamedTuple):
    """A time where an offset is expected, too: milliseconds since 1970, as records carry it."""

    ms: int


@dataclass(frozen=True)
class OffsetAndMetadata:
    """A committed offset: where a consumer goes on. leader_epoch: of the last record consumed, -1 if not known."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True)
class ConsumerGroupMetadata:
    """The member that commits offsets inside a transaction; the coordinator refuses an old generation (KIP-447).

    generation_id:     of the member's last rebalance (its member epoch in KIP-848); -1 with an empty member_id: nothing
                       is checked, for partitions assigned by hand.
    group_instance_id: of a static member, else None.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def check_offsets(offsets: Mapping[Any, Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    """What a caller gave: {(topic, partition): offset or OffsetAndMetadata}. Raises TypeError, ValueError."""
    if not isinstance(offsets, Mapping):
        raise TypeError(
            f"offsets: expected {{TopicPartition(topic, partition): offset}}, got {offsets!r}; the offset is where to"
            " go on, so one more than that of the last record"
        )
    checked = {}
    for key, value in offsets.items():
        try:
            topic, partition = key
        except (TypeError, ValueError):
            raise TypeError(f"offsets: {key!r} is no TopicPartition") from None
        if not isinstance(topic, str) or isinstance(partition, bool) or not isinstance(partition, int):
            raise TypeError(f"offsets: {key!r} is no TopicPartition")
        found = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        if isinstance(found.offset, bool) or not isinstance(found.offset, int):
            raise TypeError(f"offsets[{topic}-{partition}]: {value!r} is neither an int nor an OffsetAndMetadata")
        if found.offset < 0:
            raise ValueError(f"offsets[{topic}-{partition}]: {found.offset} is no offset that a consumer can go on at")
        checked[TopicPartition(topic, partition)] = found
    return checked
