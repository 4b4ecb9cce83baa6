# SPDX-License-Identifier: Apache-2.0
"""Records of ``__transaction_state``, and of ``__consumer_offsets`` for classic groups and committed offsets."""

from __future__ import annotations

from uuid import UUID

from kcodec.constants import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from kcodec.protocol.schema import (
    CoordinatorKey,
    CoordinatorValue,
    Struct,
    array,
    data,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class TransactionLogKey(CoordinatorKey, key=0, topic=TRANSACTION_STATE_TOPIC, versions="0", flexible="none"):
    """The key of a transaction's state."""

    transactional_id: str = string("0+")


class TransactionLogPartitions(Struct):
    """Partitions of a topic that the transaction writes to."""

    topic: str = string("0+")
    partition_ids: list[int] = array(int32, "0+")


class TransactionLogValue(CoordinatorValue, key=0, versions="0-1", flexible="1+"):
    """The state of a transactional id; version 1 from transaction version 1 on. Times: ms; ids: -1 for none."""

    producer_id: int = int64("0+")
    previous_producer_id: int = int64("1+", default=-1, tag=0)
    next_producer_id: int = int64("1+", default=-1, tag=1)
    producer_epoch: int = int16("0+")
    next_producer_epoch: int = int16("1+", default=-1, tag=3)
    transaction_timeout_ms: int = int32("0+")
    transaction_status: int = int8("0+")
    transaction_partitions: list[TransactionLogPartitions] | None = array(TransactionLogPartitions, "0+", nullable="0+")
    transaction_last_update_timestamp_ms: int = int64("0+")
    transaction_start_timestamp_ms: int = int64("0+")
    client_transaction_version: int = int16("1+", tag=2)


class OffsetCommitKey(CoordinatorKey, key=1, topic=CONSUMER_OFFSETS_TOPIC, versions="0", flexible="none"):
    """The key of a committed offset. Record type 0, which old logs have, has the same fields."""

    group: str = string("0+")
    topic: str = string("0+")
    partition: int = int32("0+")


class OffsetCommitValue(CoordinatorValue, key=1, versions="0-4", flexible="4+"):
    """A committed offset. Times: ms, -1 for none."""

    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: UUID = uuid("4+", tag=0, ignorable=True)


class GroupMetadataKey(CoordinatorKey, key=2, topic=CONSUMER_OFFSETS_TOPIC, versions="0", flexible="none"):
    """The key of a group of the classic protocol."""

    group: str = string("0+")


class GroupMemberMetadata(Struct):
    """A member of a group of the classic protocol. Time-outs: ms."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32("0+")
    subscription: bytes = data("0+")
    assignment: bytes = data("0+")


class GroupMetadataValue(CoordinatorValue, key=2, versions="0-4", flexible="4+"):
    """A group of the classic protocol. Times: ms, -1 for not known."""

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[GroupMemberMetadata] = array(GroupMemberMetadata, "0+")
