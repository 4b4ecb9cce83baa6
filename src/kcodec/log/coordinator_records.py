# SPDX-License-Identifier: Apache-2.0
"""Records of the coordinators' topics: ``__transaction_state``, ``__consumer_offsets``, ``__share_group_state``.

Key and value begin with two bytes each: the key's are the record's type, the value's its version, as
CoordinatorRecordSerde reads them. Types and versions that are not known exist in newer logs: they are told as such and
end no reading, and bytes behind a message are ignored, as Kafka ignores them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kcodec.errors import DecodeError
from kcodec.log import group_records as groups
from kcodec.log import share_records as shares
from kcodec.log.message_schema import Message, array, decode_message, int8, int16, int32, int64, string
from kcodec.log.record_kinds import InternalRecord, RecordKind

TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
SHARE_STATE_TOPIC = "__share_group_state"


class TransactionLogKey(Message, versions="0"):
    """What a transaction's state belongs to."""

    transactional_id: str = string("0")


class TransactionLogPartitions(Message):
    """Partitions of one topic that a transaction writes to."""

    topic: str = string("0+")
    partition_ids: tuple[int, ...] = array("int32", "0+")


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """The state of a transactional id; version 1 with transaction.version 1 and above. Timestamps: ms, -1 for none."""

    producer_id: int = int64("0+")
    previous_producer_id: int = int64("1+", default=-1, tag=0)
    next_producer_id: int = int64("1+", default=-1, tag=1)
    producer_epoch: int = int16("0+")
    next_producer_epoch: int = int16("1+", default=-1, tag=3)
    transaction_timeout_ms: int = int32("0+")
    transaction_status: int = int8("0+")
    transaction_partitions: tuple[TransactionLogPartitions, ...] | None = array(
        TransactionLogPartitions, "0+", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = int64("0+")
    transaction_start_timestamp_ms: int = int64("0+")
    client_transaction_version: int = int16("1+", default=0, tag=2)


# The byte transaction_status, as Kafka's tools print it (TransactionState).
TRANSACTION_STATES = {
    0: "Empty",
    1: "Ongoing",
    2: "PrepareCommit",
    3: "PrepareAbort",
    4: "CompleteCommit",
    5: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}

_GROUP, _MEMBER = groups.GroupKey, groups.GroupMemberKey

# By topic and record type.
COORDINATOR_RECORDS: dict[str, dict[int, RecordKind]] = {
    TRANSACTION_STATE_TOPIC: {0: RecordKind("TransactionLog", TransactionLogKey, TransactionLogValue)},
    CONSUMER_OFFSETS_TOPIC: {
        0: RecordKind("LegacyOffsetCommit", groups.OffsetCommitKey, groups.OffsetCommitValue),
        1: RecordKind("OffsetCommit", groups.OffsetCommitKey, groups.OffsetCommitValue),
        2: RecordKind("GroupMetadata", groups.GroupMetadataKey, groups.GroupMetadataValue),
        **{
            number: RecordKind(name, key, value)
            for number, name, key, value in (
                (3, "ConsumerGroupMetadata", _GROUP, groups.ConsumerGroupMetadataValue),
                (4, "ConsumerGroupPartitionMetadata", _GROUP, groups.ConsumerGroupPartitionMetadataValue),
                (5, "ConsumerGroupMemberMetadata", _MEMBER, groups.ConsumerGroupMemberMetadataValue),
                (6, "ConsumerGroupTargetAssignmentMetadata", _GROUP, groups.ConsumerGroupTargetAssignmentMetadataValue),
                (7, "ConsumerGroupTargetAssignmentMember", _MEMBER, groups.ConsumerGroupTargetAssignmentMemberValue),
                (8, "ConsumerGroupCurrentMemberAssignment", _MEMBER, groups.ConsumerGroupCurrentMemberAssignmentValue),
                (10, "ShareGroupMemberMetadata", _MEMBER, shares.ShareGroupMemberMetadataValue),
                (11, "ShareGroupMetadata", _GROUP, shares.ShareGroupMetadataValue),
                (12, "ShareGroupTargetAssignmentMetadata", _GROUP, shares.ShareGroupTargetAssignmentMetadataValue),
                (13, "ShareGroupTargetAssignmentMember", _MEMBER, shares.ShareGroupTargetAssignmentMemberValue),
                (14, "ShareGroupCurrentMemberAssignment", _MEMBER, shares.ShareGroupCurrentMemberAssignmentValue),
                (15, "ShareGroupStatePartitionMetadata", _GROUP, shares.ShareGroupStatePartitionMetadataValue),
                (
                    16,
                    "ConsumerGroupRegularExpression",
                    groups.ConsumerGroupRegularExpressionKey,
                    groups.ConsumerGroupRegularExpressionValue,
                ),
                (17, "StreamsGroupMetadata", _GROUP, shares.StreamsGroupMetadataValue),
                (19, "StreamsGroupMemberMetadata", _MEMBER, shares.StreamsGroupMemberMetadataValue),
                (20, "StreamsGroupTargetAssignmentMetadata", _GROUP, shares.StreamsGroupTargetAssignmentMetadataValue),
                (21, "StreamsGroupTargetAssignmentMember", _MEMBER, shares.StreamsGroupTargetAssignmentMemberValue),
                (22, "StreamsGroupCurrentMemberAssignment", _MEMBER, shares.StreamsGroupCurrentMemberAssignmentValue),
                (23, "StreamsGroupTopology", _GROUP, shares.StreamsGroupTopologyValue),
            )
        },
    },
    SHARE_STATE_TOPIC: {
        0: RecordKind("ShareSnapshot", shares.ShareSnapshotKey, shares.ShareSnapshotValue),
        1: RecordKind("ShareUpdate", shares.ShareSnapshotKey, shares.ShareUpdateValue),
    },
}

_PREFIX = struct.Struct(">h")


def decode_coordinator_record(
    kinds: Mapping[int, RecordKind], key: bytes | None, value: bytes | None
) -> InternalRecord:
    """What a record says; never an error: what cannot be read is told in it. kinds: of COORDINATOR_RECORDS."""
    if key is None or len(key) < _PREFIX.size:
        return InternalRecord("unknown", error="no key" if key is None else f"a key of {len(key)} bytes")
    (number,) = _PREFIX.unpack_from(key)
    found = kinds.get(number)
    if found is None or found.key is None:
        return InternalRecord(f"unknown ({number})", error=f"record type {number} is not known")
    version, told_key = None, None
    try:
        told_key = decode_message(found.key, 0, key, _PREFIX.size)
        if value is None:
            return InternalRecord(found.name, key=told_key)
        if len(value) < _PREFIX.size:
            raise DecodeError(f"a value of {len(value)} bytes, too short for its version")
        (version,) = _PREFIX.unpack_from(value)
        return InternalRecord(found.name, version, told_key, decode_message(found.value, version, value, _PREFIX.size))
    except DecodeError as error:
        return InternalRecord(found.name, version, told_key, error=error.reason)
