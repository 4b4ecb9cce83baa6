# SPDX-License-Identifier: Apache-2.0
"""The messages between members of a classic group: subscriptions and assignments (ConsumerProtocol).

A version of two bytes precedes the message. A newer version is read as the newest known one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kcodec.cluster.retry_driver import by_topic
from kcodec.consumer.assignors import GroupMember
from kcodec.consumer.assignors.assignor import java_order
from kcodec.errors import DecodeError
from kcodec.offsets import TopicPartition
from kcodec.protocol.messages.consumer_protocol import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedPartitions,
)
from kcodec.protocol.schema import Message
from kcodec.quantities import count_text

PROTOCOL_TYPE = "consumer"
# Kafka's clients write version 3 of both; older members read the fields that they know, and leave the rest.
NEWEST_VERSION = 3

M = TypeVar("M", bound=Message)


def write_subscription(member: GroupMember) -> bytes:
    """Return the data of JoinGroup for an assignor: topics, owned partitions with their generation, and the rack."""
    numbers = by_topic(sorted(member.owned, key=lambda one: (java_order(one.topic), one.partition)))
    message = ConsumerProtocolSubscription(
        topics=sorted(member.topics, key=java_order),
        user_data=member.user_data,
        owned_partitions=[OwnedPartitions(topic=topic, partitions=parts) for topic, parts in numbers.items()],
        generation_id=member.generation,
        rack_id=member.rack_id,
    )
    return _write(message)


def read_subscription(data: bytes, member_id: str, group_instance_id: str | None) -> GroupMember:
    """Return a member from the data that it sent. Raise DecodeError."""
    found = _read(ConsumerProtocolSubscription, data, f"the subscription of member {member_id!r}")
    return GroupMember(
        member_id=member_id,
        topics=frozenset(found.topics),
        group_instance_id=group_instance_id,
        owned=tuple(TopicPartition(one.topic, number) for one in found.owned_partitions for number in one.partitions),
        generation=found.generation_id,
        user_data=None if found.user_data is None else bytes(found.user_data),
        rack_id=found.rack_id or None,
    )


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return the data of SyncGroup for a member."""
    numbers = by_topic(partitions)
    assigned = [AssignedPartitions(topic=topic, partitions=parts) for topic, parts in numbers.items()]
    return _write(ConsumerProtocolAssignment(assigned_partitions=assigned))


def read_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions of this member, each once. Raise DecodeError."""
    found = _read(ConsumerProtocolAssignment, data, "the assignment from the leader")
    read = (TopicPartition(one.topic, number) for one in found.assigned_partitions for number in one.partitions)
    return list(dict.fromkeys(read))


def _write(message: Message) -> bytes:
    return NEWEST_VERSION.to_bytes(2, "big") + message.encode(NEWEST_VERSION)


def _read(kind: type[M], data: bytes, what: str) -> M:
    if len(data) < 2:
        raise DecodeError(
            f"{what} has {count_text(len(data), 'byte')}, expected a version of 2 bytes first; the leader may "
            "have assigned nothing"
        )
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise DecodeError(f"{what} has version {version}, expected 0 or more")
    try:
        return kind.decode_prefix(data, min(version, NEWEST_VERSION), 2)[0]
    except DecodeError as error:
        raise DecodeError(f"{what} cannot be read: {error}") from error
