# SPDX-License-Identifier: Apache-2.0
"""The members of streams groups (KIP-1071): heartbeats, and descriptions of the topology (KIP-1331).

kcodec's own clients do not send these messages.
"""

from __future__ import annotations

from kcodec.protocol.messages.group_types import StreamsTaskIds, StreamsTaskOffset
from kcodec.protocol.messages.streams_records import StreamsConfig, StreamsEndpoint, Subtopology
from kcodec.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, int64, string, struct


class StreamsHeartbeatTopology(Struct):
    """The topology of the application, which a member sends when it joins."""

    epoch: int = int32("0+")
    subtopologies: list[Subtopology] = array(Subtopology, "0+")


class StreamsGroupHeartbeatRequest(Request, key=88, versions="0-1", flexible="0+"):
    """Join a streams group (member_epoch 0), stay in it, or leave it (-1; -2: a static member that will rejoin).

    None, and -1 of rebalance_timeout_ms: unchanged since the last heartbeat.
    """

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    endpoint_information_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    topology: StreamsHeartbeatTopology | None = struct(StreamsHeartbeatTopology, "0+", nullable="0+", default=None)
    active_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    standby_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    warmup_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    process_id: str | None = string("0+", nullable="0+", default=None)
    user_endpoint: StreamsEndpoint | None = struct(StreamsEndpoint, "0+", nullable="0+", default=None)
    client_tags: list[StreamsConfig] | None = array(StreamsConfig, "0+", nullable="0+", default=None)
    task_offsets: list[StreamsTaskOffset] | None = array(StreamsTaskOffset, "0+", nullable="0+", default=None)
    task_end_offsets: list[StreamsTaskOffset] | None = array(StreamsTaskOffset, "0+", nullable="0+", default=None)
    shutdown_application: bool = boolean("0+")


class StreamsGroupStatus(Struct):
    """A condition of the group, such as a missing source topic."""

    status_code: int = int8("0+")
    status_detail: str = string("0+")


class StreamsTopicPartition(Struct):
    """Partitions of a topic."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class EndpointToPartitions(Struct):
    """The partitions of a member, by the endpoint for interactive queries. An endpoint may occur several times."""

    user_endpoint: StreamsEndpoint = struct(StreamsEndpoint, "0+")
    active_partitions: list[StreamsTopicPartition] = array(StreamsTopicPartition, "0+")
    standby_partitions: list[StreamsTopicPartition] = array(StreamsTopicPartition, "0+")


class StreamsGroupHeartbeatResponse(Response, key=88, versions="0-1", flexible="0+"):
    """The member's epoch, the heartbeat interval (ms), and the tasks if they changed."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    acceptable_recovery_lag_legacy: int = int32("0")
    task_offset_interval_ms: int = int32("0+")
    acceptable_recovery_lag: int = int64("1+", default=-1, ignorable=True)
    status: list[StreamsGroupStatus] | None = array(StreamsGroupStatus, "0+", nullable="0+")
    active_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    standby_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    warmup_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    topology_description_required: bool = boolean("1+")
    endpoint_information_epoch: int = int32("0+")
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = array(
        EndpointToPartitions, "0+", nullable="0+", default=None
    )


class TopologyDescriptionNode(Struct):
    """A node of a topology. node_type: 1 source, 2 processor, 3 sink. sink_topic None: it is chosen at run time."""

    name: str = string("0+")
    node_type: int = int8("0+")
    source_topics: list[str] = array(string, "0+")
    sink_topic: str | None = string("0+", nullable="0+", default=None)
    stores: list[str] = array(string, "0+")
    successors: list[str] = array(string, "0+")


class TopologyDescriptionSubtopology(Struct):
    """The nodes of a subtopology."""

    subtopology_id: str = string("0+")
    nodes: list[TopologyDescriptionNode] = array(TopologyDescriptionNode, "0+")


class TopologyDescriptionGlobalStore(Struct):
    """A global store: the source of its records, and the processor that writes it."""

    source: TopologyDescriptionNode = struct(TopologyDescriptionNode, "0+")
    processor: TopologyDescriptionNode = struct(TopologyDescriptionNode, "0+")


class TopologyDescription(Struct):
    """A whole topology."""

    subtopologies: list[TopologyDescriptionSubtopology] = array(TopologyDescriptionSubtopology, "0+")
    global_stores: list[TopologyDescriptionGlobalStore] = array(TopologyDescriptionGlobalStore, "0+")


class StreamsGroupTopologyDescriptionUpdateRequest(Request, key=93, versions="0", flexible="0+"):
    """Describe the topology of a streams group, which a heartbeat response has requested."""

    group_id: str = string("0+")
    member_id: str = string("0+")
    topology_epoch: int = int32("0+")
    topology_description: TopologyDescription = struct(TopologyDescription, "0+")


class StreamsGroupTopologyDescriptionUpdateResponse(Response, key=93, versions="0", flexible="0+"):
    """Whether the description was stored."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
