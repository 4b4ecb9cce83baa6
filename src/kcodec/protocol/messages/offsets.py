# SPDX-License-Identifier: Apache-2.0
"""Offsets of consumer groups: committed, fetched, deleted."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string, uuid


class OffsetCommitRequestPartition(Struct):
    """An offset, the leader epoch of the record before it (-1: unknown), and optional text."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
    commit_timestamp: int = int64("1", default=-1)
    committed_metadata: str | None = string("0+", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    """Offsets of a topic, given by name, from version 10 on by id."""

    name: str = string("0-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition, "0+")


class OffsetCommitRequest(Request, key=8, versions="0-10", flexible="8+"):
    """Commit offsets. Generation -1 and no member id: a group without members. retention_time_ms -1: the broker's."""

    group_id: str = string("0+")
    generation_id_or_member_epoch: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("1+", ignorable=True)
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, "0+")


class OffsetCommitResponsePartition(Struct):
    """Whether an offset was committed."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetCommitResponseTopic(Struct):
    """The results for a topic."""

    name: str = string("0-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition, "0+")


class OffsetCommitResponse(Response, key=8, versions="0-10", flexible="8+"):
    """The results for all topics."""

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, "0+")


class OffsetFetchRequestTopic(Struct):
    """Partitions of a topic, up to version 7."""

    name: str = string("0-7")
    partition_indexes: list[int] = array(int32, "0-7")


class OffsetFetchRequestTopics(Struct):
    """Partitions of a topic, given by name, from version 10 on by id."""

    name: str = string("8-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partition_indexes: list[int] = array(int32, "8+")


class OffsetFetchRequestGroup(Struct):
    """One group; topics None: all its offsets. A member sends its id and epoch (KIP-848), other clients send -1."""

    group_id: str = string("8+")
    member_id: str | None = string("9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = int32("9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, "8+", nullable="8+")


class OffsetFetchRequest(Request, key=9, versions="0-10", flexible="6+"):
    """Request committed offsets. require_stable: fail instead of returning one that an open transaction may replace."""

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


class OffsetFetchResponsePartition(Struct):
    """A committed offset, up to version 7; -1: none."""

    partition_index: int = int32("0-7")
    committed_offset: int = int64("0-7")
    committed_leader_epoch: int = int32("5-7", default=-1, ignorable=True)
    metadata: str | None = string("0-7", nullable="0-7")
    error_code: int = int16("0-7")


class OffsetFetchResponseTopic(Struct):
    """Committed offsets of a topic, up to version 7."""

    name: str = string("0-7")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


class OffsetFetchResponsePartitions(Struct):
    """A committed offset; -1: none."""

    partition_index: int = int32("8+")
    committed_offset: int = int64("8+")
    committed_leader_epoch: int = int32("8+", default=-1, ignorable=True)
    metadata: str | None = string("8+", nullable="8+")
    error_code: int = int16("8+")


class OffsetFetchResponseTopics(Struct):
    """Committed offsets of a topic."""

    name: str = string("8-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "8+")


class OffsetFetchResponseGroup(Struct):
    """Committed offsets of a group."""

    group_id: str = string("8+")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = int16("8+")


class OffsetFetchResponse(Response, key=9, versions="0-10", flexible="6+"):
    """The offsets: `topics` up to version 7, `groups` from 8 on."""

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = int16("2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")


class OffsetDeleteRequestPartition(Struct):
    """A partition whose offset is to be deleted."""

    partition_index: int = int32("0+")


class OffsetDeleteRequestTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, "0+")


class OffsetDeleteRequest(Request, key=47, versions="0", flexible="none"):
    """Delete offsets of a group for topics that it no longer subscribes to."""

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, "0+")


class OffsetDeleteResponsePartition(Struct):
    """Whether an offset was deleted."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetDeleteResponseTopic(Struct):
    """The results for a topic."""

    name: str = string("0+")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition, "0+")


class OffsetDeleteResponse(Response, key=47, versions="0", flexible="none"):
    """The results for all topics."""

    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, "0+")
