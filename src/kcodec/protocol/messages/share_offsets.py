# SPDX-License-Identifier: Apache-2.0
"""The start offsets of share groups (KIP-932; the lag: KIP-1226)."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import Request, Response, Struct, array, int16, int32, int64, string, uuid


class DescribeShareGroupOffsetsRequestTopic(Struct):
    """Partitions of a topic."""

    topic_name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class DescribeShareGroupOffsetsRequestGroup(Struct):
    """A group. topics None: all topics that it has offsets in."""

    group_id: str = string("0+")
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = array(
        DescribeShareGroupOffsetsRequestTopic, "0+", nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(Request, key=90, versions="0-1", flexible="0+"):
    """Request the start offsets of share groups."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = array(DescribeShareGroupOffsetsRequestGroup, "0+")


class DescribeShareGroupOffsetsResponsePartition(Struct):
    """The start offset of a partition; -1: none. lag -1: unknown."""

    partition_index: int = int32("0+")
    start_offset: int = int64("0+")
    leader_epoch: int = int32("0+")
    lag: int = int64("1+", default=-1, ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    """The partitions of a topic."""

    topic_name: str = string("0+")
    topic_id: UUID = uuid("0+")
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = array(
        DescribeShareGroupOffsetsResponsePartition, "0+"
    )


class DescribeShareGroupOffsetsResponseGroup(Struct):
    """The offsets of a group."""

    group_id: str = string("0+")
    topics: list[DescribeShareGroupOffsetsResponseTopic] = array(DescribeShareGroupOffsetsResponseTopic, "0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Response, key=90, versions="0-1", flexible="0+"):
    """The offsets of all groups."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array(DescribeShareGroupOffsetsResponseGroup, "0+")


class AlterShareGroupOffsetsRequestPartition(Struct):
    """The new start offset of a partition."""

    partition_index: int = int32("0+")
    start_offset: int = int64("0+")


class AlterShareGroupOffsetsRequestTopic(Struct):
    """Partitions of a topic."""

    topic_name: str = string("0+")
    partitions: list[AlterShareGroupOffsetsRequestPartition] = array(AlterShareGroupOffsetsRequestPartition, "0+")


class AlterShareGroupOffsetsRequest(Request, key=91, versions="0", flexible="0+"):
    """Set start offsets of a share group, which must have no members."""

    group_id: str = string("0+")
    topics: list[AlterShareGroupOffsetsRequestTopic] = array(AlterShareGroupOffsetsRequestTopic, "0+")


class AlterShareGroupOffsetsResponsePartition(Struct):
    """The result for a partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    """The partitions of a topic."""

    topic_name: str = string("0+")
    topic_id: UUID = uuid("0+")
    partitions: list[AlterShareGroupOffsetsResponsePartition] = array(AlterShareGroupOffsetsResponsePartition, "0+")


class AlterShareGroupOffsetsResponse(Response, key=91, versions="0", flexible="0+"):
    """The results for all partitions."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = array(AlterShareGroupOffsetsResponseTopic, "0+")


class DeleteShareGroupOffsetsRequestTopic(Struct):
    """A topic whose offsets are deleted."""

    topic_name: str = string("0+")


class DeleteShareGroupOffsetsRequest(Request, key=92, versions="0", flexible="0+"):
    """Delete the offsets of a share group, which must have no members."""

    group_id: str = string("0+")
    topics: list[DeleteShareGroupOffsetsRequestTopic] = array(DeleteShareGroupOffsetsRequestTopic, "0+")


class DeleteShareGroupOffsetsResponseTopic(Struct):
    """The result for a topic."""

    topic_name: str = string("0+")
    topic_id: UUID = uuid("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Response, key=92, versions="0", flexible="0+"):
    """The results for all topics."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = array(DeleteShareGroupOffsetsResponseTopic, "0+")
