# SPDX-License-Identifier: Apache-2.0
"""Records about share and streams groups: what the group coordinator writes.

Names, versions and defaults are those of Kafka's message definitions; a test compares them with Kafka 4.3.1's jars.
Those of ``__share_group_state``, which the share coordinator writes, stand first.
"""

from __future__ import annotations

from kcodec.log.message_schema import Message, array, int8, int16, int32, int64, string, struct_of, uint16, uuid


class ShareSnapshotKey(Message, versions="0"):
    """A partition as one share group consumes it. (Record types 0 and 1.)"""

    group_id: str = string("0")
    topic_id: str = uuid("0")
    partition: int = int32("0")


class StateBatch(Message):
    """Offsets of one delivery state: 0 available, 2 acknowledged, 4 archived."""

    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    delivery_state: int = int8("0+")
    delivery_count: int = int16("0+")


class ShareSnapshotValue(Message, versions="0", flexible="0+"):
    """The whole state of a share-partition."""

    snapshot_epoch: int = int32("0+")
    state_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("0+", default=-1, tag=0)
    create_timestamp: int = int64("0+")
    write_timestamp: int = int64("0+")
    state_batches: tuple[StateBatch, ...] = array(StateBatch, "0+")


class ShareUpdateValue(Message, versions="0", flexible="0+"):
    """What has changed in it since the last snapshot."""

    snapshot_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("0+", default=-1, tag=0)
    state_batches: tuple[StateBatch, ...] = array(StateBatch, "0+")


class ShareGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """A member and its subscription."""

    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: tuple[str, ...] = array("string", "0+")


class ShareGroupMetadataValue(Message, versions="0", flexible="0+"):
    """A share group: its epoch."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")


class ShareGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    """The epoch of the target assignment."""

    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", default=0, tag=0)


class ShareAssignedTopic(Message):
    """Partitions of one topic."""

    topic_id: str = uuid("0+")
    partitions: tuple[int, ...] = array("int32", "0+")


class ShareGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    """What a member is to have."""

    topic_partitions: tuple[ShareAssignedTopic, ...] = array(ShareAssignedTopic, "0+")


class ShareGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    """What a member has."""

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: tuple[ShareAssignedTopic, ...] = array(ShareAssignedTopic, "0+")


class ShareTopicPartitions(Message):
    """A topic and partitions of it."""

    topic_id: str = uuid("0+")
    topic_name: str = string("0+")
    partitions: tuple[int, ...] = array("int32", "0+")


class ShareTopic(Message):
    """A topic."""

    topic_id: str = uuid("0+")
    topic_name: str = string("0+")


class ShareGroupStatePartitionMetadataValue(Message, versions="0", flexible="0+"):
    """Which partitions of a share group have a state, get one, or lose it."""

    initializing_topics: tuple[ShareTopicPartitions, ...] = array(ShareTopicPartitions, "0+")
    initialized_topics: tuple[ShareTopicPartitions, ...] = array(ShareTopicPartitions, "0+")
    deleting_topics: tuple[ShareTopic, ...] = array(ShareTopic, "0+")


class StreamsConfig(Message):
    """A name and a value."""

    key: str = string("0+")
    value: str = string("0+")


class StreamsGroupMetadataValue(Message, versions="0", flexible="0+"):
    """A streams group: its epoch and the topology it was validated with."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")
    validated_topology_epoch: int = int32("0+", default=-1, tag=0)
    last_assignment_configs: tuple[StreamsConfig, ...] | None = array(StreamsConfig, "0+", nullable="0+", tag=1)


class StreamsEndpoint(Message):
    """Where an instance answers interactive queries."""

    host: str = string("0+")
    port: int = uint16("0+")


class StreamsGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """A member of a streams group."""

    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    topology_epoch: int = int32("0+")
    process_id: str = string("0+")
    user_endpoint: StreamsEndpoint | None = struct_of(StreamsEndpoint, "0+", nullable="0+")
    client_tags: tuple[StreamsConfig, ...] = array(StreamsConfig, "0+")


class StreamsGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    """The epoch of the target assignment."""

    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", default=0, tag=0)


class AssignedTasks(Message):
    """Tasks of one subtopology."""

    subtopology_id: str = string("0+")
    partitions: tuple[int, ...] = array("int32", "0+")


class StreamsGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    """The tasks that a member is to have."""

    active_tasks: tuple[AssignedTasks, ...] = array(AssignedTasks, "0+")
    standby_tasks: tuple[AssignedTasks, ...] = array(AssignedTasks, "0+")
    warmup_tasks: tuple[AssignedTasks, ...] = array(AssignedTasks, "0+")


class OwnedTasks(Message):
    """Tasks of one subtopology, and since which epochs the member has them."""

    subtopology_id: str = string("0+")
    partitions: tuple[int, ...] = array("int32", "0+")
    assignment_epochs: tuple[int, ...] | None = array("int32", "0+", nullable="0+", tag=0)


class StreamsGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    """The tasks that a member has, and those it must give up."""

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    active_tasks: tuple[OwnedTasks, ...] = array(OwnedTasks, "0+")
    standby_tasks: tuple[OwnedTasks, ...] = array(OwnedTasks, "0+")
    warmup_tasks: tuple[OwnedTasks, ...] = array(OwnedTasks, "0+")
    active_tasks_pending_revocation: tuple[OwnedTasks, ...] = array(OwnedTasks, "0+")
    standby_tasks_pending_revocation: tuple[OwnedTasks, ...] = array(OwnedTasks, "0+")
    warmup_tasks_pending_revocation: tuple[OwnedTasks, ...] = array(OwnedTasks, "0+")


class StreamsTopic(Message):
    """A topic that the topology needs."""

    name: str = string("0+")
    partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    topic_configs: tuple[StreamsConfig, ...] = array(StreamsConfig, "0+")


class CopartitionGroup(Message):
    """Source topics with equal partitions, as indexes into the subtopology's lists."""

    source_topics: tuple[int, ...] = array("int16", "0+")
    source_topic_regex: tuple[int, ...] = array("int16", "0+")
    repartition_source_topics: tuple[int, ...] = array("int16", "0+")


class Subtopology(Message):
    """A part of the topology that is assigned as a whole."""

    subtopology_id: str = string("0+")
    source_topics: tuple[str, ...] = array("string", "0+")
    source_topic_regex: tuple[str, ...] = array("string", "0+")
    state_changelog_topics: tuple[StreamsTopic, ...] = array(StreamsTopic, "0+")
    repartition_sink_topics: tuple[str, ...] = array("string", "0+")
    repartition_source_topics: tuple[StreamsTopic, ...] = array(StreamsTopic, "0+")
    copartition_groups: tuple[CopartitionGroup, ...] = array(CopartitionGroup, "0+")


class StreamsGroupTopologyValue(Message, versions="0", flexible="0+"):
    """The topology of a streams application."""

    epoch: int = int32("0+")
    subtopologies: tuple[Subtopology, ...] = array(Subtopology, "0+")
