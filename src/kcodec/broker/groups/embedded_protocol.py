# SPDX-License-Identifier: Apache-2.0
"""The subscriptions and assignments in requests and responses of the classic protocol (Kafka: ConsumerProtocol).

A subscription or assignment begins with its version. If the version is newer than NEWEST_VERSION, the coordinator
decodes it as NEWEST_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kcodec.broker.groups.group_log import Target
from kcodec.broker.topics import Topics
from kcodec.errors import DecodeError
from kcodec.protocol import messages
from kcodec.protocol.messages.consumer_protocol import AssignedPartitions
from kcodec.protocol.messages.groups import ConsumerGroupTopicPartitions

NEWEST_VERSION = 3
_VERSION_BYTES = 2
T = TypeVar("T", messages.ConsumerProtocolSubscription, messages.ConsumerProtocolAssignment)


def _version(content: bytes) -> int:
    version = int.from_bytes(content[:_VERSION_BYTES], "big", signed=True)
    if len(content) < _VERSION_BYTES or version < 0:
        raise DecodeError(f"expected a version of the embedded consumer protocol, got {content[:_VERSION_BYTES]!r}")
    return min(version, NEWEST_VERSION)


def _read(kind: type[T], content: bytes) -> T:
    return kind.decode_prefix(content, _version(content), _VERSION_BYTES)[0]


def read_subscription(content: bytes) -> messages.ConsumerProtocolSubscription:
    """Return the subscription of a member. Raise DecodeError if it is malformed."""
    return _read(messages.ConsumerProtocolSubscription, content)


def read_assignment(content: bytes) -> messages.ConsumerProtocolAssignment:
    """Return the assignment of a member. It is empty if the leader has assigned nothing. Raise DecodeError if it is
    malformed."""
    return _read(messages.ConsumerProtocolAssignment, content) if content else messages.ConsumerProtocolAssignment()


def write_assignment(target: Iterable[tuple[str, Iterable[int]]], subscription: bytes) -> bytes:
    """Return the bytes of an assignment, in the version of the member's subscription. Raise DecodeError if the
    subscription is malformed."""
    version = _version(subscription)
    assigned = [AssignedPartitions(topic=name, partitions=sorted(numbers)) for name, numbers in target]
    content = messages.ConsumerProtocolAssignment(assigned_partitions=assigned).encode(version)
    return version.to_bytes(_VERSION_BYTES, "big") + content


def target_of(assignment: messages.ConsumerProtocolAssignment, topics: Topics) -> Target:
    """Return the assigned partitions by topic id. Leave out topics that do not exist."""
    found = ((topics.get(one.topic), one.partitions) for one in assignment.assigned_partitions)
    return {topic.id: frozenset(numbers) for topic, numbers in found if topic is not None}


def names_of(target: Target, topics: Topics) -> list[tuple[str, Iterable[int]]]:
    """Return partitions with the names of their topics. Leave out topics that do not exist."""
    found = ((topics.by_id(topic_id), numbers) for topic_id, numbers in target.items())
    return [(topic.name, numbers) for topic, numbers in found if topic is not None]


def owned_of(subscription: messages.ConsumerProtocolSubscription, topics: Topics) -> list[ConsumerGroupTopicPartitions]:
    """Return the partitions that a member reports as owned, in the form of the consumer protocol."""
    found = ((topics.get(one.topic), one.partitions) for one in subscription.owned_partitions)
    return [
        ConsumerGroupTopicPartitions(topic_id=topic.id, partitions=numbers)
        for topic, numbers in found
        if topic is not None
    ]
