# SPDX-License-Identifier: Apache-2.0
"""Records of ``__consumer_offsets`` about streams groups (KIP-1071)."""

from __future__ import annotations

from kcodec.protocol.messages.group_records import GroupKey, GroupMemberKey
from kcodec.protocol.schema import CoordinatorValue, Struct, array, int8, int16, int32, int64, string, struct, uint16


class StreamsGroupMetadataKey(GroupKey, key=17, versions="0", flexible="none"):
    """The key of a streams group's epoch."""


class StreamsConfig(Struct):
    """A name and its value."""

    key: str = string("0+")
    value: str = string("0+")


class StreamsGroupMetadataValue(CoordinatorValue, key=17, versions="0", flexible="0+"):
    """The epoch of a streams group, and the epoch of the topology that was validated with it."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")
    validated_topology_epoch: int = int32("0+", default=-1, tag=0)
    last_assignment_configs: list[StreamsConfig] | None = array(StreamsConfig, "0+", nullable="0+", tag=1)
    stored_description_topology_epoch: int = int32("0+", default=-1, tag=2)
    failed_description_topology_epoch: int = int32("0+", default=-1, tag=3)


class StreamsGroupMemberMetadataKey(GroupMemberKey, key=19, versions="0", flexible="none"):
    """The key of a member."""


class StreamsEndpoint(Struct):
    """Where an instance serves interactive queries."""

    host: str = string("0+")
    port: int = uint16("0+")


class StreamsGroupMemberMetadataValue(CoordinatorValue, key=19, versions="0", flexible="0+"):
    """A member of a streams group."""

    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    topology_epoch: int = int32("0+")
    process_id: str = string("0+")
    user_endpoint: StreamsEndpoint | None = struct(StreamsEndpoint, "0+", nullable="0+", default=None)
    client_tags: list[StreamsConfig] = array(StreamsConfig, "0+")


class StreamsGroupTargetAssignmentMetadataKey(GroupKey, key=20, versions="0", flexible="none"):
    """The key of the target assignment's epoch."""


class StreamsGroupTargetAssignmentMetadataValue(CoordinatorValue, key=20, versions="0", flexible="0+"):
    """The epoch of the target assignment. assignment_timestamp: ms, 0 if unknown."""

    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, ignorable=True)


class StreamsGroupTargetAssignmentMemberKey(GroupMemberKey, key=21, versions="0", flexible="none"):
    """The key of one member's target assignment."""


class AssignedTasks(Struct):
    """Tasks of a subtopology."""

    subtopology_id: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class StreamsGroupTargetAssignmentMemberValue(CoordinatorValue, key=21, versions="0", flexible="0+"):
    """The tasks that a member is to own."""

    active_tasks: list[AssignedTasks] = array(AssignedTasks, "0+")
    standby_tasks: list[AssignedTasks] = array(AssignedTasks, "0+")
    warmup_tasks: list[AssignedTasks] = array(AssignedTasks, "0+")


class StreamsGroupCurrentMemberAssignmentKey(GroupMemberKey, key=22, versions="0", flexible="none"):
    """The key of one member's current assignment."""


class OwnedTasks(Struct):
    """Tasks of a subtopology. assignment_epochs: since which member epoch the member owns each of them."""

    subtopology_id: str = string("0+")
    partitions: list[int] = array(int32, "0+")
    assignment_epochs: list[int] | None = array(int32, "0+", nullable="0+", tag=0)


class StreamsGroupCurrentMemberAssignmentValue(CoordinatorValue, key=22, versions="0", flexible="0+"):
    """The tasks that a member owns, and those that it must revoke."""

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    active_tasks: list[OwnedTasks] = array(OwnedTasks, "0+")
    standby_tasks: list[OwnedTasks] = array(OwnedTasks, "0+")
    warmup_tasks: list[OwnedTasks] = array(OwnedTasks, "0+")
    active_tasks_pending_revocation: list[OwnedTasks] = array(OwnedTasks, "0+")
    standby_tasks_pending_revocation: list[OwnedTasks] = array(OwnedTasks, "0+")
    warmup_tasks_pending_revocation: list[OwnedTasks] = array(OwnedTasks, "0+")


class StreamsGroupTopologyKey(GroupKey, key=23, versions="0", flexible="none"):
    """The key of a streams group's topology."""


class StreamsTopic(Struct):
    """A topic that the topology needs."""

    name: str = string("0+")
    partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    topic_configs: list[StreamsConfig] = array(StreamsConfig, "0+")


class CopartitionGroup(Struct):
    """Source topics that must have the same number of partitions, as indexes into the subtopology's lists."""

    source_topics: list[int] = array(int16, "0+")
    source_topic_regex: list[int] = array(int16, "0+")
    repartition_source_topics: list[int] = array(int16, "0+")


class Subtopology(Struct):
    """A part of the topology that is assigned as a whole."""

    subtopology_id: str = string("0+")
    source_topics: list[str] = array(string, "0+")
    source_topic_regex: list[str] = array(string, "0+")
    state_changelog_topics: list[StreamsTopic] = array(StreamsTopic, "0+")
    repartition_sink_topics: list[str] = array(string, "0+")
    repartition_source_topics: list[StreamsTopic] = array(StreamsTopic, "0+")
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup, "0+")


class StreamsGroupTopologyValue(CoordinatorValue, key=23, versions="0", flexible="0+"):
    """The topology of a streams application."""

    epoch: int = int32("0+")
    subtopologies: list[Subtopology] = array(Subtopology, "0+")
