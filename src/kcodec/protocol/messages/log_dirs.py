# SPDX-License-Identifier: Apache-2.0
"""Moving replicas to another log directory of their broker (KIP-113). What is where: DescribeLogDirs."""

from __future__ import annotations

from kcodec.protocol.schema import Request, Response, Struct, array, int16, int32, string


class AlterReplicaLogDirTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class AlterReplicaLogDir(Struct):
    """A log directory, and the partitions to move to it."""

    path: str = string("0+")
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic, "0+")


class AlterReplicaLogDirsRequest(Request, key=34, versions="0-2", flexible="2+"):
    """Move replicas of this broker to other log directories."""

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir, "0+")


class AlterReplicaLogDirPartitionResult(Struct):
    """Whether the move of one replica has begun."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class AlterReplicaLogDirTopicResult(Struct):
    """The results for the partitions of a topic."""

    topic_name: str = string("0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = array(AlterReplicaLogDirPartitionResult, "0+")


class AlterReplicaLogDirsResponse(Response, key=34, versions="0-2", flexible="2+"):
    """The results for all replicas."""

    throttle_time_ms: int = int32("0+")
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult, "0+")
