# SPDX-License-Identifier: Apache-2.0
"""Records of ``__consumer_offsets`` about consumer groups: what the group coordinator writes.

Names, versions and defaults are those of Kafka's message definitions; a test compares them with Kafka 4.3.1's jars.
"""

from __future__ import annotations

from kcodec.log.message_schema import Message, array, data, int8, int32, int64, string, struct_of, uuid


class OffsetCommitKey(Message, versions="0"):
    """What a committed offset belongs to. (Record types 0 and 1.)"""

    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")


class GroupMetadataKey(Message, versions="0"):
    """A group of the classic protocol."""

    group: str = string("0")


class GroupKey(Message, versions="0"):
    """A group, in keys of the newer protocols."""

    group_id: str = string("0")


class GroupMemberKey(Message, versions="0"):
    """A member of a group, in keys of the newer protocols."""

    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupRegularExpressionKey(Message, versions="0"):
    """A regular expression that members subscribe to."""

    group_id: str = string("0")
    regular_expression: str = string("0")


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    """A committed offset. Timestamps: ms."""

    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1)
    topic_id: str = uuid("4+", tag=0)


class MemberMetadata(Message):
    """A member of a classic group; subscription and assignment as its clients encode them."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", default=None, nullable="3+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout: int = int32("1+", default=-1)
    session_timeout: int = int32("0+")
    subscription: bytes = data("0+")
    assignment: bytes = data("0+")


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    """A group of the classic protocol: generation, leader and members."""

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1)
    members: tuple[MemberMetadata, ...] = array(MemberMetadata, "0+")


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+"):
    """A group of KIP-848: its epoch."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", default=0, tag=0)


class PartitionMetadata(Message):
    """The racks of one partition."""

    partition: int = int32("0+")
    racks: tuple[str, ...] = array("string", "0+")


class TopicMetadata(Message):
    """A topic as a group's subscription saw it."""

    topic_id: str = uuid("0+")
    topic_name: str = string("0+")
    num_partitions: int = int32("0+")
    partition_metadata: tuple[PartitionMetadata, ...] = array(PartitionMetadata, "0+")


class ConsumerGroupPartitionMetadataValue(Message, versions="0", flexible="0+"):
    """The topics of a group's subscription; written up to 4.0."""

    topics: tuple[TopicMetadata, ...] = array(TopicMetadata, "0+")


class ClassicProtocol(Message):
    """A protocol that a classic member supports."""

    name: str = string("0+")
    metadata: bytes = data("0+")


class ClassicMemberMetadata(Message):
    """What a member says that speaks the classic protocol in a KIP-848 group."""

    session_timeout_ms: int = int32("0+")
    supported_protocols: tuple[ClassicProtocol, ...] = array(ClassicProtocol, "0+")


# What the bytes mean without the tag: a null is written out.
NO_CLASSIC_METADATA = ClassicMemberMetadata(session_timeout_ms=0, supported_protocols=())


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """A member and its subscription."""

    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: tuple[str, ...] = array("string", "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    server_assignor: str | None = string("0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = struct_of(
        ClassicMemberMetadata, "0+", default=NO_CLASSIC_METADATA, nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    """The epoch of the target assignment."""

    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", default=0, tag=0)


class AssignedTopic(Message):
    """Partitions of one topic."""

    topic_id: str = uuid("0+")
    partitions: tuple[int, ...] = array("int32", "0+")


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    """What a member is to have."""

    topic_partitions: tuple[AssignedTopic, ...] = array(AssignedTopic, "0+")


class OwnedTopic(Message):
    """Partitions of one topic, and since which epochs the member has them."""

    topic_id: str = uuid("0+")
    partitions: tuple[int, ...] = array("int32", "0+")
    assignment_epochs: tuple[int, ...] | None = array("int32", "0+", nullable="0+", tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    """What a member has, and what it must give up."""

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: tuple[OwnedTopic, ...] = array(OwnedTopic, "0+")
    partitions_pending_revocation: tuple[OwnedTopic, ...] = array(OwnedTopic, "0+")


class ConsumerGroupRegularExpressionValue(Message, versions="0", flexible="0+"):
    """The topics it was resolved to."""

    topics: tuple[str, ...] = array("string", "0+")
    version: int = int64("0+")
    timestamp: int = int64("0+")


class ConsumerTopicPartitions(Message):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: tuple[int, ...] = array("int32", "0+")


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """What a member of a classic group subscribes to, where the group's protocol type is "consumer"."""

    topics: tuple[str, ...] = array("string", "0+")
    user_data: bytes | None = data("0+", default=None, nullable="0+")
    owned_partitions: tuple[ConsumerTopicPartitions, ...] = array(ConsumerTopicPartitions, "1+")
    generation_id: int = int32("2+", default=-1)
    rack_id: str | None = string("3+", default=None, nullable="3+")


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """What such a member was assigned."""

    assigned_partitions: tuple[ConsumerTopicPartitions, ...] = array(ConsumerTopicPartitions, "0+")
    user_data: bytes | None = data("0+", default=None, nullable="0+")
