# SPDX-License-Identifier: Apache-2.0
"""Describing share groups (KIP-932) and streams groups (KIP-1071)."""

from __future__ import annotations

from kcodec.protocol.messages.groups import DescribedAssignment
from kcodec.protocol.messages.streams_records import StreamsEndpoint
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
)


class ShareGroupDescribeRequest(Request, key=77, versions="0-1", flexible="0+"):
    """Describe these share groups."""

    group_ids: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("0+")


class DescribedShareGroupMember(Struct):
    """A member, and the partitions that it shares with others."""

    member_id: str = string("0+")
    rack_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    assignment: DescribedAssignment = struct(DescribedAssignment, "0+")


class DescribedShareGroup(Struct):
    """A share group."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[DescribedShareGroupMember] = array(DescribedShareGroupMember, "0+")
    authorized_operations: int = int32("0+", default=-2147483648)


class ShareGroupDescribeResponse(Response, key=77, versions="0-1", flexible="0+"):
    """The share groups that were requested."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedShareGroup] = array(DescribedShareGroup, "0+")


class StreamsGroupDescribeRequest(Request, key=89, versions="0-1", flexible="0+"):
    """Describe these streams groups."""

    group_ids: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("0+")
    include_topology_description: bool = boolean("1+")


class StreamsKeyValue(Struct):
    """A name and its value."""

    key: str = string("0+")
    value: str = string("0+")


class StreamsTopicInfo(Struct):
    """An internal topic of a topology."""

    name: str = string("0+")
    partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    topic_configs: list[StreamsKeyValue] = array(StreamsKeyValue, "0+")


class StreamsSubtopology(Struct):
    """A connected subgraph of a topology. Its tasks have the numbers of the partitions of its source topics."""

    subtopology_id: str = string("0+")
    source_topics: list[str] = array(string, "0+")
    repartition_sink_topics: list[str] = array(string, "0+")
    state_changelog_topics: list[StreamsTopicInfo] = array(StreamsTopicInfo, "0+")
    repartition_source_topics: list[StreamsTopicInfo] = array(StreamsTopicInfo, "0+")


class StreamsTopology(Struct):
    """The topology of a group; None for its subtopologies while members have not sent any."""

    epoch: int = int32("0+")
    subtopologies: list[StreamsSubtopology] | None = array(StreamsSubtopology, "0+", nullable="0+", default=None)


class StreamsTaskOffset(Struct):
    """The position of a task in its changelog."""

    subtopology_id: str = string("0+")
    partition: int = int32("0+")
    offset: int = int64("0+")


class StreamsTaskIds(Struct):
    """Tasks of one subtopology."""

    subtopology_id: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class StreamsAssignment(Struct):
    """The tasks of a member."""

    active_tasks: list[StreamsTaskIds] = array(StreamsTaskIds, "0+")
    standby_tasks: list[StreamsTaskIds] = array(StreamsTaskIds, "0+")
    warmup_tasks: list[StreamsTaskIds] = array(StreamsTaskIds, "0+")


class DescribedStreamsGroupMember(Struct):
    """A member, its current tasks and its target tasks."""

    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    client_id: str = string("0+")
    client_host: str = string("0+")
    topology_epoch: int = int32("0+")
    process_id: str = string("0+")
    user_endpoint: StreamsEndpoint | None = struct(StreamsEndpoint, "0+", nullable="0+", default=None)
    client_tags: list[StreamsKeyValue] = array(StreamsKeyValue, "0+")
    task_offsets: list[StreamsTaskOffset] = array(StreamsTaskOffset, "0+")
    task_end_offsets: list[StreamsTaskOffset] = array(StreamsTaskOffset, "0+")
    assignment: StreamsAssignment = struct(StreamsAssignment, "0+")
    target_assignment: StreamsAssignment = struct(StreamsAssignment, "0+")
    is_classic: bool = boolean("0+")


class StreamsTopologyNode(Struct):
    """A node of a topology. node_type: 1 source, 2 processor, 3 sink. sink_topic None: it is chosen at run time."""

    name: str = string("1+")
    node_type: int = int8("1+")
    source_topics: list[str] = array(string, "1+")
    sink_topic: str | None = string("1+", nullable="1+", default=None)
    stores: list[str] = array(string, "1+")
    successors: list[str] = array(string, "1+")


class StreamsSubtopologyNodes(Struct):
    """The nodes of a subtopology."""

    subtopology_id: str = string("1+")
    nodes: list[StreamsTopologyNode] = array(StreamsTopologyNode, "1+")


class StreamsGlobalStore(Struct):
    """A global store: the source of its records, and the processor that writes it."""

    source: StreamsTopologyNode = struct(StreamsTopologyNode, "1+")
    processor: StreamsTopologyNode = struct(StreamsTopologyNode, "1+")


class StreamsTopologyDescription(Struct):
    """A whole topology, as the members have described it (KIP-1331)."""

    subtopologies: list[StreamsSubtopologyNodes] = array(StreamsSubtopologyNodes, "1+")
    global_stores: list[StreamsGlobalStore] = array(StreamsGlobalStore, "1+")


class DescribedStreamsGroup(Struct):
    """A streams group. topology_description_status: 0 not requested, 1 not stored, 2 error, 3 available."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    topology: StreamsTopology | None = struct(StreamsTopology, "0+", nullable="0+", default=None)
    members: list[DescribedStreamsGroupMember] = array(DescribedStreamsGroupMember, "0+")
    authorized_operations: int = int32("0+", default=-2147483648)
    topology_description: StreamsTopologyDescription | None = struct(
        StreamsTopologyDescription, "1+", nullable="1+", default=None
    )
    topology_description_status: int = int8("1+")
    assignor_name: str | None = string("1+", nullable="1+", default=None, ignorable=True)


class StreamsGroupDescribeResponse(Response, key=89, versions="0-1", flexible="0+"):
    """The streams groups that were requested."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedStreamsGroup] = array(DescribedStreamsGroup, "0+")
