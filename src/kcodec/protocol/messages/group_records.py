# SPDX-License-Identifier: Apache-2.0
"""Records of ``__consumer_offsets`` about groups of the consumer protocol (KIP-848).

The records of classic groups, and the committed offsets of all groups, are in `records`.
"""

from __future__ import annotations

from uuid import UUID

from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.protocol.schema import (
    CoordinatorKey,
    CoordinatorValue,
    Struct,
    array,
    data,
    int8,
    int32,
    int64,
    string,
    struct,
    uuid,
)


class GroupKey(CoordinatorKey, topic=CONSUMER_OFFSETS_TOPIC):
    """Base class of keys that name a group. A derived class is one record type."""

    group_id: str = string("0+")


class GroupMemberKey(CoordinatorKey, topic=CONSUMER_OFFSETS_TOPIC):
    """Base class of keys that name a member of a group. A derived class is one record type."""

    group_id: str = string("0+")
    member_id: str = string("0+")


class ConsumerGroupMetadataKey(GroupKey, key=3, versions="0", flexible="none"):
    """The key of a group's epoch."""


class ConsumerGroupMetadataValue(CoordinatorValue, key=3, versions="0", flexible="0+"):
    """The epoch of a group. metadata_hash: of the topics that it subscribes to."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", tag=0)


class ConsumerGroupPartitionMetadataKey(GroupKey, key=4, versions="0", flexible="none"):
    """The key of the topics that a group subscribes to."""


class GroupPartitionMetadata(Struct):
    """The racks of a partition's replicas."""

    partition: int = int32("0+")
    racks: list[str] = array(string, "0+")


class GroupTopicMetadata(Struct):
    """A topic that the group subscribes to."""

    topic_id: UUID = uuid("0+")
    topic_name: str = string("0+")
    num_partitions: int = int32("0+")
    partition_metadata: list[GroupPartitionMetadata] = array(GroupPartitionMetadata, "0+")


class ConsumerGroupPartitionMetadataValue(CoordinatorValue, key=4, versions="0", flexible="0+"):
    """The topics that a group subscribes to. Kafka 4.0 is the last release that writes it."""

    topics: list[GroupTopicMetadata] = array(GroupTopicMetadata, "0+")


class ConsumerGroupMemberMetadataKey(GroupMemberKey, key=5, versions="0", flexible="none"):
    """The key of a member's subscription."""


class ClassicMemberProtocol(Struct):
    """An assignor of the classic protocol that the member supports, with its subscription."""

    name: str = string("0+")
    metadata: bytes = data("0+")


class ClassicMemberMetadata(Struct):
    """The classic protocol's part of a member that still uses that protocol."""

    session_timeout_ms: int = int32("0+")
    supported_protocols: list[ClassicMemberProtocol] = array(ClassicMemberProtocol, "0+")


class ConsumerGroupMemberMetadataValue(CoordinatorValue, key=5, versions="0", flexible="0+"):
    """A member and its subscription. Without tag 0, classic_member_metadata is a struct of defaults, as in Kafka."""

    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    server_assignor: str | None = string("0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = struct(ClassicMemberMetadata, "0+", nullable="0+", tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(GroupKey, key=6, versions="0", flexible="none"):
    """The key of the target assignment's epoch."""


class ConsumerGroupTargetAssignmentMetadataValue(CoordinatorValue, key=6, versions="0", flexible="0+"):
    """The epoch of the target assignment. assignment_timestamp: ms, 0 if unknown."""

    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(GroupMemberKey, key=7, versions="0", flexible="none"):
    """The key of one member's target assignment."""


class AssignedTopic(Struct):
    """Partitions of a topic."""

    topic_id: UUID = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerGroupTargetAssignmentMemberValue(CoordinatorValue, key=7, versions="0", flexible="0+"):
    """The partitions that a member is to own."""

    topic_partitions: list[AssignedTopic] = array(AssignedTopic, "0+")


class ConsumerGroupCurrentMemberAssignmentKey(GroupMemberKey, key=8, versions="0", flexible="none"):
    """The key of one member's current assignment."""


class OwnedTopic(Struct):
    """Partitions of a topic. assignment_epochs: since which member epoch the member owns each of them."""

    topic_id: UUID = uuid("0+")
    partitions: list[int] = array(int32, "0+")
    assignment_epochs: list[int] | None = array(int32, "0+", nullable="0+", tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(CoordinatorValue, key=8, versions="0", flexible="0+"):
    """The partitions that a member owns, and those that it must revoke."""

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[OwnedTopic] = array(OwnedTopic, "0+")
    partitions_pending_revocation: list[OwnedTopic] = array(OwnedTopic, "0+")


class ConsumerGroupRegularExpressionKey(
    CoordinatorKey, key=16, topic=CONSUMER_OFFSETS_TOPIC, versions="0", flexible="none"
):
    """The key of a regular expression that members of a group subscribe to."""

    group_id: str = string("0+")
    regular_expression: str = string("0+")


class ConsumerGroupRegularExpressionValue(CoordinatorValue, key=16, versions="0", flexible="0+"):
    """The topics that match the regular expression. timestamp: ms."""

    topics: list[str] = array(string, "0+")
    version: int = int64("0+")
    timestamp: int = int64("0+")
