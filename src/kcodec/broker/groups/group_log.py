# SPDX-License-Identifier: Apache-2.0
"""The records of ``__consumer_offsets``, in the versions that Kafka writes (GroupCoordinatorRecordHelpers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from kcodec.broker.internal_topics import coordinator_record
from kcodec.protocol.messages import OffsetCommitRequest, TxnOffsetCommitRequest
from kcodec.protocol.messages import group_records as consumer
from kcodec.protocol.messages.records import OffsetCommitKey, OffsetCommitValue
from kcodec.protocol.schema import CoordinatorKey, CoordinatorValue

NO_EXPIRY = -1
#: Topic id -> partition -> the member epoch since which the member owns it.
Owned = Mapping[UUID, Mapping[int, int]]
#: Topic id -> partitions that a member is to own.
Target = Mapping[UUID, frozenset[int]]
#: What a member sends to commit offsets.
CommitRequest = OffsetCommitRequest | TxnOffsetCommitRequest


class GroupRecord(NamedTuple):
    """A record before it is encoded. If the value is None, it is a tombstone. `version` is the version of the value."""

    key: CoordinatorKey
    value: CoordinatorValue | None = None
    version: int = 0

    def encode(self) -> tuple[bytes, bytes | None]:
        """Return key and value as bytes: the key begins with the record type, the value with the version."""
        return coordinator_record(self.key, self.value, self.version)


def offset_record(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> GroupRecord:
    """Return the record of a committed offset. Only version 1 can contain an expiry time."""
    version = 4 if value.expire_timestamp == NO_EXPIRY else 1
    return GroupRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), value, version)


def offset_tombstone(group_id: str, topic: str, partition: int) -> GroupRecord:
    """Return the record that removes a committed offset."""
    return GroupRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition))


def group_epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    """Return the record of a group's epoch."""
    value = consumer.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return GroupRecord(consumer.ConsumerGroupMetadataKey(group_id=group_id), value)


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> GroupRecord:
    """Return the record of the target assignment's epoch."""
    value = consumer.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return GroupRecord(consumer.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_record(group_id: str, member_id: str, target: Target) -> GroupRecord:
    """Return the record of a member's target assignment."""
    topics = [consumer.AssignedTopic(topic_id=topic, partitions=sorted(numbers)) for topic, numbers in target.items()]
    key = consumer.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return GroupRecord(key, consumer.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics))


def pattern_record(group_id: str, pattern: str, topics: Sequence[str], now_ms: int) -> GroupRecord:
    """Return the record of the topics that match a regular expression."""
    key = consumer.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    value = consumer.ConsumerGroupRegularExpressionValue(topics=list(topics), timestamp=now_ms)
    return GroupRecord(key, value)


def pattern_tombstone(group_id: str, pattern: str) -> GroupRecord:
    """Return the record that removes a regular expression."""
    return GroupRecord(consumer.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern))


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """Return the records that remove a member."""
    names = {"group_id": group_id, "member_id": member_id}
    return [
        GroupRecord(consumer.ConsumerGroupCurrentMemberAssignmentKey(**names)),
        GroupRecord(consumer.ConsumerGroupTargetAssignmentMemberKey(**names)),
        GroupRecord(consumer.ConsumerGroupMemberMetadataKey(**names)),
    ]
