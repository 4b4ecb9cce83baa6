# SPDX-License-Identifier: Apache-2.0
"""Records about share groups (KIP-932).

The share coordinator writes ShareSnapshot and ShareUpdate to ``__share_group_state``; the group coordinator writes the
others to ``__consumer_offsets``.
"""

from __future__ import annotations

from uuid import UUID

from kcodec.constants import SHARE_STATE_TOPIC
from kcodec.protocol.messages.group_records import AssignedTopic, GroupKey, GroupMemberKey
from kcodec.protocol.schema import (
    CoordinatorKey,
    CoordinatorValue,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class ShareSnapshotKey(CoordinatorKey, key=0, topic=SHARE_STATE_TOPIC, versions="0", flexible="none"):
    """The key of a share-partition's whole state: a partition as one share group consumes it."""

    group_id: str = string("0+")
    topic_id: UUID = uuid("0+")
    partition: int = int32("0+")


class StateBatch(Struct):
    """Offsets of one delivery state: 0 available, 2 acknowledged, 4 archived."""

    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    delivery_state: int = int8("0+")
    delivery_count: int = int16("0+")


class ShareSnapshotValue(CoordinatorValue, key=0, versions="0", flexible="0+"):
    """The whole state of a share-partition. Timestamps: ms."""

    snapshot_epoch: int = int32("0+")
    state_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("0+", default=-1, tag=0)
    create_timestamp: int = int64("0+")
    write_timestamp: int = int64("0+")
    state_batches: list[StateBatch] = array(StateBatch, "0+")


class ShareUpdateKey(ShareSnapshotKey, key=1, versions="0", flexible="none"):
    """The key of a change to a share-partition's state."""


class ShareUpdateValue(CoordinatorValue, key=1, versions="0", flexible="0+"):
    """What has changed in a share-partition since its last snapshot."""

    snapshot_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("0+", default=-1, tag=0)
    state_batches: list[StateBatch] = array(StateBatch, "0+")


class ShareGroupMemberMetadataKey(GroupMemberKey, key=10, versions="0", flexible="none"):
    """The key of a member's subscription."""


class ShareGroupMemberMetadataValue(CoordinatorValue, key=10, versions="0", flexible="0+"):
    """A member and its subscription."""

    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")


class ShareGroupMetadataKey(GroupKey, key=11, versions="0", flexible="none"):
    """The key of a share group's epoch."""


class ShareGroupMetadataValue(CoordinatorValue, key=11, versions="0", flexible="0+"):
    """The epoch of a share group."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")


class ShareGroupTargetAssignmentMetadataKey(GroupKey, key=12, versions="0", flexible="none"):
    """The key of the target assignment's epoch."""


class ShareGroupTargetAssignmentMetadataValue(CoordinatorValue, key=12, versions="0", flexible="0+"):
    """The epoch of the target assignment. assignment_timestamp: ms, 0 if unknown."""

    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, ignorable=True)


class ShareGroupTargetAssignmentMemberKey(GroupMemberKey, key=13, versions="0", flexible="none"):
    """The key of one member's target assignment."""


class ShareGroupTargetAssignmentMemberValue(CoordinatorValue, key=13, versions="0", flexible="0+"):
    """The partitions that a member is to consume."""

    topic_partitions: list[AssignedTopic] = array(AssignedTopic, "0+")


class ShareGroupCurrentMemberAssignmentKey(GroupMemberKey, key=14, versions="0", flexible="none"):
    """The key of one member's current assignment."""


class ShareGroupCurrentMemberAssignmentValue(CoordinatorValue, key=14, versions="0", flexible="0+"):
    """The partitions that a member consumes."""

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[AssignedTopic] = array(AssignedTopic, "0+")


class ShareGroupStatePartitionMetadataKey(GroupKey, key=15, versions="0", flexible="none"):
    """The key of the partitions whose state a share group keeps."""


class ShareTopicPartitions(Struct):
    """A topic and partitions of it."""

    topic_id: UUID = uuid("0+")
    topic_name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ShareTopic(Struct):
    """A topic."""

    topic_id: UUID = uuid("0+")
    topic_name: str = string("0+")


class ShareGroupStatePartitionMetadataValue(CoordinatorValue, key=15, versions="0", flexible="0+"):
    """The partitions whose state a share group keeps, creates or deletes."""

    initializing_topics: list[ShareTopicPartitions] = array(ShareTopicPartitions, "0+")
    initialized_topics: list[ShareTopicPartitions] = array(ShareTopicPartitions, "0+")
    deleting_topics: list[ShareTopic] = array(ShareTopic, "0+")
