# SPDX-License-Identifier: Apache-2.0
"""Messages that read records, and that look up offsets by timestamp or leader epoch."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class ReplicaState(Struct):
    """The identity of a follower. Consumers keep the value -1."""

    replica_id: int = int32("15+", default=-1)
    replica_epoch: int = int64("15+", default=-1)


class FetchPartition(Struct):
    """The offset to read a partition from, and the maximum number of bytes. Leader epochs: -1 if unknown."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("9+", default=-1, ignorable=True)
    fetch_offset: int = int64("0+")
    last_fetched_epoch: int = int32("12+", default=-1)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    partition_max_bytes: int = int32("0+")
    replica_directory_id: UUID = uuid("17+", tag=0, ignorable=True)
    high_watermark: int = int64("18+", default=9223372036854775807, tag=1, ignorable=True)


class FetchTopic(Struct):
    """Partitions of a topic to read. The topic is given by name, from version 13 on by id."""

    topic: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition, "0+")


class ForgottenTopic(Struct):
    """Partitions to remove from the fetch session (KIP-227)."""

    topic: str = string("7-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partitions: list[int] = array(int32, "7+")


class FetchRequest(Request, key=1, versions="0-18", flexible="12+"):
    """Request records; wait max_wait_ms for min_bytes. isolation_level 0: read_uncommitted, 1: read_committed."""

    cluster_id: str | None = string("12+", nullable="12+", default=None, tag=0, ignorable=True)
    replica_id: int = int32("0-14", default=-1)
    replica_state: ReplicaState = struct(ReplicaState, "15+", tag=1)
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("3+", default=2147483647, ignorable=True)
    isolation_level: int = int8("4+", ignorable=True)
    session_id: int = int32("7+", ignorable=True)
    session_epoch: int = int32("7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic, "0+")
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+", ignorable=True)


class FetchEpochEndOffset(Struct):
    """The end offset of the largest epoch that both logs may share; -1: the logs do not diverge (KIP-595)."""

    epoch: int = int32("12+", default=-1)
    end_offset: int = int64("12+", default=-1)


class FetchLeaderIdAndEpoch(Struct):
    """The current leader that the broker knows, sent with NOT_LEADER_OR_FOLLOWER; -1: unknown (KIP-951)."""

    leader_id: int = int32("12+", default=-1)
    leader_epoch: int = int32("12+", default=-1)


class SnapshotId(Struct):
    """A snapshot to fetch instead of deleted records. Only logs of controllers have snapshots."""

    end_offset: int = int64("0+", default=-1)
    epoch: int = int32("0+", default=-1)


class AbortedTransaction(Struct):
    """An aborted transaction: the transactional records of this producer from first_offset to its next ABORT marker."""

    producer_id: int = int64("4+")
    first_offset: int = int64("4+")


class FetchPartitionData(Struct):
    """The records of one partition, its high watermark, last stable offset and log start offset; -1 if unknown."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    high_watermark: int = int64("0+")
    last_stable_offset: int = int64("4+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    diverging_epoch: FetchEpochEndOffset = struct(FetchEpochEndOffset, "12+", tag=0)
    current_leader: FetchLeaderIdAndEpoch = struct(FetchLeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = struct(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, "4+", nullable="4+", ignorable=True
    )
    preferred_read_replica: int = int32("11+", default=-1)
    records: bytes | bytearray | memoryview | None = records("0+", nullable="0+")


class FetchableTopicResponse(Struct):
    """The records of a topic."""

    topic: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partitions: list[FetchPartitionData] = array(FetchPartitionData, "0+")


class FetchNodeEndpoint(Struct):
    """The address of a leader named in the same response."""

    node_id: int = int32("16+")
    host: str = string("16+")
    port: int = int32("16+")
    rack: str | None = string("16+", nullable="16+", default=None)


class FetchResponse(Response, key=1, versions="0-18", flexible="12+"):
    """Records. session_id 0: no session."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("7+", ignorable=True)
    session_id: int = int32("7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse, "0+")
    node_endpoints: list[FetchNodeEndpoint] = array(FetchNodeEndpoint, "16+", tag=0)


class ListOffsetsPartition(Struct):
    """The requested timestamp (ms), or -1: latest, -2: earliest, -3: maximum timestamp, -4 and -5: tiered storage."""

    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
    timestamp: int = int64("0+")
    max_num_offsets: int = int32("0", default=1)


class ListOffsetsTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


class ListOffsetsRequest(Request, key=2, versions="0-11", flexible="6+"):
    """Request the offset of the first record at or after a timestamp. Clients send replica_id -1."""

    replica_id: int = int32("0+")
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+", ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    """The offset and timestamp that were found; -1 if none exists. Version 0 returned several offsets."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    old_style_offsets: list[int] = array(int64, "0")
    timestamp: int = int64("1+", default=-1)
    offset: int = int64("1+", default=-1)
    leader_epoch: int = int32("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """The offsets of a topic."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, "0+")


class ListOffsetsResponse(Response, key=2, versions="0-11", flexible="6+"):
    """The offsets that were found."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, "0+")


class OffsetForLeaderPartition(Struct):
    """The requested epoch. current_leader_epoch: the epoch that the client knows; the leader fences an old one."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("2+", default=-1, ignorable=True)
    leader_epoch: int = int32("0+")


class OffsetForLeaderTopic(Struct):
    """Partitions of a topic."""

    topic: str = string("0+")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, "0+")


class OffsetForLeaderEpochRequest(Request, key=23, versions="0-4", flexible="4+"):
    """Request the end offset of a leader epoch, to detect log truncation (KIP-320). Consumers send replica_id -1."""

    replica_id: int = int32("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, "0+")


class EpochEndOffset(Struct):
    """The end offset of the largest epoch that is not above the requested one; -1: unknown."""

    error_code: int = int16("0+")
    partition: int = int32("0+")
    leader_epoch: int = int32("1+", default=-1, ignorable=True)
    end_offset: int = int64("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    """The end offsets of a topic."""

    topic: str = string("0+")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "0+")


class OffsetForLeaderEpochResponse(Response, key=23, versions="0-4", flexible="4+"):
    """The end offsets that were requested."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, "0+")
