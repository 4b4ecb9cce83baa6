# SPDX-License-Identifier: Apache-2.0
"""The members of share groups (KIP-932): heartbeats, fetches and acknowledgements.

kcodec's own clients do not send these messages.
"""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class ShareGroupHeartbeatRequest(Request, key=76, versions="0-1", flexible="0+"):
    """Join a share group (member_epoch 0), stay in it, or leave it (-1). None: unchanged since the last heartbeat."""

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    rack_id: str | None = string("0+", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = array(string, "0+", nullable="0+", default=None)


class ShareGroupTopicPartitions(Struct):
    """Partitions of a topic."""

    topic_id: UUID = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ShareGroupAssignment(Struct):
    """The assignment of a member."""

    topic_partitions: list[ShareGroupTopicPartitions] = array(ShareGroupTopicPartitions, "0+")


class ShareGroupHeartbeatResponse(Response, key=76, versions="0-1", flexible="0+"):
    """The member's epoch, the heartbeat interval (ms), and the assignment if it changed."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: ShareGroupAssignment | None = struct(ShareGroupAssignment, "0+", nullable="0+", default=None)


class AcknowledgementBatch(Struct):
    """Acknowledgements of the offsets from first_offset to last_offset.

    acknowledge_types: One type for each offset, or one for all: 0 gap, 1 accept, 2 release, 3 reject, 4 renew.
    """

    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    acknowledge_types: list[int] = array(int8, "0+")


class ShareFetchPartition(Struct):
    """A partition to fetch, and acknowledgements of records that were fetched before."""

    partition_index: int = int32("0+")
    partition_max_bytes: int = int32("0")
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch, "0+")


class ShareFetchTopic(Struct):
    """Partitions of a topic."""

    topic_id: UUID = uuid("0+")
    partitions: list[ShareFetchPartition] = array(ShareFetchPartition, "0+")


class ShareForgottenTopic(Struct):
    """Partitions that the share session no longer has."""

    topic_id: UUID = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ShareFetchRequest(Request, key=78, versions="0-2", flexible="0+"):
    """Fetch records of a share group.

    share_session_epoch: 0 opens a session, and -1 closes it.
    share_acquire_mode: 0 acquires whole batches, 1 at most max_records records.
    """

    group_id: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+")
    share_session_epoch: int = int32("0+")
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("0+", default=2147483647)
    max_records: int = int32("1+")
    batch_size: int = int32("1+")
    share_acquire_mode: int = int8("2+", ignorable=True)
    is_renew_ack: bool = boolean("2+")
    topics: list[ShareFetchTopic] = array(ShareFetchTopic, "0+")
    forgotten_topics_data: list[ShareForgottenTopic] = array(ShareForgottenTopic, "0+")


class ShareLeaderIdAndEpoch(Struct):
    """The leader of a partition; -1: unknown."""

    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class AcquiredRecords(Struct):
    """Offsets that the member has acquired. delivery_count: how often they have been delivered."""

    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    delivery_count: int = int16("0+")


class ShareFetchPartitionData(Struct):
    """The records of a partition, and which of them the member has acquired. Other records belong to other members."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acknowledge_error_code: int = int16("0+")
    acknowledge_error_message: str | None = string("0+", nullable="0+", default=None)
    current_leader: ShareLeaderIdAndEpoch = struct(ShareLeaderIdAndEpoch, "0+")
    records: bytes | bytearray | memoryview | None = records("0+", nullable="0")
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords, "0+")


class ShareFetchableTopicResponse(Struct):
    """Partitions of a topic."""

    topic_id: UUID = uuid("0+")
    partitions: list[ShareFetchPartitionData] = array(ShareFetchPartitionData, "0+")


class ShareNodeEndpoint(Struct):
    """The address of a leader that the response names."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)


class ShareFetchResponse(Response, key=78, versions="0-2", flexible="0+"):
    """The records of all partitions. acquisition_lock_timeout_ms: how long they stay acquired."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("1+")
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse, "0+")
    node_endpoints: list[ShareNodeEndpoint] = array(ShareNodeEndpoint, "0+")


class AcknowledgePartition(Struct):
    """Acknowledgements of a partition."""

    partition_index: int = int32("0+")
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch, "0+")


class AcknowledgeTopic(Struct):
    """Partitions of a topic."""

    topic_id: UUID = uuid("0+")
    partitions: list[AcknowledgePartition] = array(AcknowledgePartition, "0+")


class ShareAcknowledgeRequest(Request, key=79, versions="0-2", flexible="0+"):
    """Acknowledge records without a fetch. share_session_epoch: as in ShareFetchRequest."""

    group_id: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+")
    share_session_epoch: int = int32("0+")
    is_renew_ack: bool = boolean("2+")
    topics: list[AcknowledgeTopic] = array(AcknowledgeTopic, "0+")


class ShareAcknowledgePartitionData(Struct):
    """The result for a partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    current_leader: ShareLeaderIdAndEpoch = struct(ShareLeaderIdAndEpoch, "0+")


class ShareAcknowledgeTopicResponse(Struct):
    """Partitions of a topic."""

    topic_id: UUID = uuid("0+")
    partitions: list[ShareAcknowledgePartitionData] = array(ShareAcknowledgePartitionData, "0+")


class ShareAcknowledgeResponse(Response, key=79, versions="0-2", flexible="0+"):
    """The results for all partitions."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse, "0+")
    node_endpoints: list[ShareNodeEndpoint] = array(ShareNodeEndpoint, "0+")
