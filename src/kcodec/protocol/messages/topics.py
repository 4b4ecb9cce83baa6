# SPDX-License-Identifier: Apache-2.0
"""Topics: create, delete and describe topics, add partitions, delete records."""

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
    string,
    struct,
    uuid,
)


class CreatableReplicaAssignment(Struct):
    """The brokers of a partition's replicas, the preferred leader first."""

    partition_index: int = int32("0+")
    broker_ids: list[int] = array(int32, "0+")


class CreatableTopicConfig(Struct):
    """A configuration of the new topic."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class CreatableTopic(Struct):
    """A topic to create. Partitions, replication -1: the broker's default, or given by assignments (version 4 on)."""

    name: str = string("0+")
    num_partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


class CreateTopicsRequest(Request, key=19, versions="0-7", flexible="5+"):
    """Create topics. validate_only: check the request without creating them."""

    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+")


class CreatableTopicConfigs(Struct):
    """A configuration of the created topic."""

    name: str = string("5+")
    value: str | None = string("5+", nullable="5+")
    read_only: bool = boolean("5+")
    config_source: int = int8("5+", default=-1, ignorable=True)
    is_sensitive: bool = boolean("5+")


class CreatableTopicResult(Struct):
    """A topic that was created, or the error. -1: not reported by the broker."""

    name: str = string("0+")
    topic_id: UUID = uuid("7+", ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("1+", nullable="1+", ignorable=True)
    topic_config_error_code: int = int16("5+", tag=0, ignorable=True)
    num_partitions: int = int32("5+", default=-1, ignorable=True)
    replication_factor: int = int16("5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, "5+", nullable="5+", ignorable=True)


class CreateTopicsResponse(Response, key=19, versions="0-7", flexible="5+"):
    """The results for all topics."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "0+")


class DeleteTopicState(Struct):
    """A topic by name, or by id if the name is None."""

    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: UUID = uuid("6+")


class DeleteTopicsRequest(Request, key=20, versions="0-6", flexible="4+"):
    """Delete topics: `topic_names` up to version 5, `topics` from version 6 on."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(string, "0-5", ignorable=True)
    timeout_ms: int = int32("0+")


class DeletableTopicResult(Struct):
    """Whether one topic was deleted."""

    name: str | None = string("0+", nullable="6+")
    topic_id: UUID = uuid("6+", ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(Response, key=20, versions="0-6", flexible="4+"):
    """The results for all topics."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, "0+")


class CreatePartitionsAssignment(Struct):
    """The brokers of a new partition's replicas, the preferred leader first."""

    broker_ids: list[int] = array(int32, "0+")


class CreatePartitionsTopic(Struct):
    """The new total number of partitions of a topic. assignments None: the broker chooses."""

    name: str = string("0+")
    count: int = int32("0+")
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, "0+", nullable="0+")


class CreatePartitionsRequest(Request, key=37, versions="0-3", flexible="2+"):
    """Add partitions to topics."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")


class CreatePartitionsTopicResult(Struct):
    """Whether partitions were added to one topic."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class CreatePartitionsResponse(Response, key=37, versions="0-3", flexible="2+"):
    """The results for all topics."""

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, "0+")


class DescribeTopicPartitionsTopic(Struct):
    """A topic."""

    name: str = string("0+")


class Cursor(Struct):
    """The position at which a description stopped, or continues."""

    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsRequest(Request, key=75, versions="0", flexible="0+"):
    """Describe topics, up to response_partition_limit partitions in one response (KIP-966)."""

    topics: list[DescribeTopicPartitionsTopic] = array(DescribeTopicPartitionsTopic, "0+")
    response_partition_limit: int = int32("0+", default=2000)
    cursor: Cursor | None = struct(Cursor, "0+", nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    """A partition: leader, replicas, and eligible leader replicas (ELR) that are not in sync."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1, ignorable=True)
    replica_nodes: list[int] = array(int32, "0+")
    isr_nodes: list[int] = array(int32, "0+")
    eligible_leader_replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None)
    last_known_elr: list[int] | None = array(int32, "0+", nullable="0+", default=None)
    offline_replicas: list[int] = array(int32, "0+", ignorable=True)


class DescribeTopicPartitionsResponseTopic(Struct):
    """A topic and some of its partitions."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="0+")
    topic_id: UUID = uuid("0+", ignorable=True)
    is_internal: bool = boolean("0+", ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition, "0+")
    topic_authorized_operations: int = int32("0+", default=-2147483648)


class DescribeTopicPartitionsResponse(Response, key=75, versions="0", flexible="0+"):
    """Topics and partitions; next_cursor None: there are no more."""

    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic, "0+")
    next_cursor: Cursor | None = struct(Cursor, "0+", nullable="0+", default=None)


class DeleteRecordsPartition(Struct):
    """Delete the records before this offset; -1: before the high watermark."""

    partition_index: int = int32("0+")
    offset: int = int64("0+")


class DeleteRecordsTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, "0+")


class DeleteRecordsRequest(Request, key=21, versions="0-2", flexible="2+"):
    """Delete records from the beginning of logs."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "0+")
    timeout_ms: int = int32("0+")


class DeleteRecordsPartitionResult(Struct):
    """The new log start offset of a partition; -1 if there is an error."""

    partition_index: int = int32("0+")
    low_watermark: int = int64("0+")
    error_code: int = int16("0+")


class DeleteRecordsTopicResult(Struct):
    """The new log start offsets of a topic's partitions."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult, "0+")


class DeleteRecordsResponse(Response, key=21, versions="0-2", flexible="2+"):
    """The new log start offsets."""

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, "0+")
