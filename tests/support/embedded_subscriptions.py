# SPDX-License-Identifier: Apache-2.0
"""Subscriptions and assignments inside the messages of the classic protocol, as consumers write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcodec.protocol import messages
from kcodec.protocol.messages.consumer_protocol import AssignedPartitions, OwnedPartitions

Partitions = Mapping[str, Iterable[int]]


def subscription(
    topics: Iterable[str], owned: Partitions | None = None, *, version: int = 1, rack: str | None = None
) -> bytes:
    """Return the subscription of a member. Version 0 has no owned partitions, and only version 3 has a rack."""
    partitions = [OwnedPartitions(topic=name, partitions=list(numbers)) for name, numbers in (owned or {}).items()]
    content = messages.ConsumerProtocolSubscription(topics=list(topics), owned_partitions=partitions, rack_id=rack)
    return version.to_bytes(2, "big") + content.encode(version)


def assignment(partitions: Partitions, *, version: int = 1, user_data: bytes | None = None) -> bytes:
    """Return the assignment of a member, as its leader writes it."""
    assigned = [AssignedPartitions(topic=name, partitions=list(numbers)) for name, numbers in partitions.items()]
    content = messages.ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=user_data)
    return version.to_bytes(2, "big") + content.encode(version)


def assigned(content: bytes) -> dict[str, list[int]]:
    """Return the partitions of an assignment."""
    version = int.from_bytes(content[:2], "big")
    found = messages.ConsumerProtocolAssignment.decode(content, version, 2)
    return {one.topic: sorted(one.partitions) for one in found.assigned_partitions}
