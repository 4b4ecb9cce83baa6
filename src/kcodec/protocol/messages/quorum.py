# SPDX-License-Identifier: Apache-2.0
"""The quorum of the controllers (KIP-595, KIP-836, KIP-853), and nodes that leave the cluster for good (KIP-631)."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string, uint16, uuid


class DescribeQuorumRequestPartition(Struct):
    """A partition to describe."""

    partition_index: int = int32("0+")


class DescribeQuorumRequestTopic(Struct):
    """Partitions of a topic: of `__cluster_metadata`, partition 0."""

    topic_name: str = string("0+")
    partitions: list[DescribeQuorumRequestPartition] = array(DescribeQuorumRequestPartition, "0+")


class DescribeQuorumRequest(Request, key=55, versions="0-2", flexible="0+"):
    """Request the voters and observers of the metadata log."""

    topics: list[DescribeQuorumRequestTopic] = array(DescribeQuorumRequestTopic, "0+")


class DescribedQuorumReplica(Struct):
    """How far a voter or observer has read the log, and when it did so last, in ms; -1: unknown."""

    replica_id: int = int32("0+")
    replica_directory_id: UUID = uuid("2+")
    log_end_offset: int = int64("0+")
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


class DescribedQuorumPartition(Struct):
    """The leader and the replicas of the log."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    high_watermark: int = int64("0+")
    current_voters: list[DescribedQuorumReplica] = array(DescribedQuorumReplica, "0+")
    observers: list[DescribedQuorumReplica] = array(DescribedQuorumReplica, "0+")


class DescribedQuorumTopic(Struct):
    """The partitions of a topic."""

    topic_name: str = string("0+")
    partitions: list[DescribedQuorumPartition] = array(DescribedQuorumPartition, "0+")


class DescribedQuorumListener(Struct):
    """An address of a controller."""

    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class DescribedQuorumNode(Struct):
    """A controller and its addresses."""

    node_id: int = int32("2+")
    listeners: list[DescribedQuorumListener] = array(DescribedQuorumListener, "2+")


class DescribeQuorumResponse(Response, key=55, versions="0-2", flexible="0+"):
    """The quorum."""

    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    topics: list[DescribedQuorumTopic] = array(DescribedQuorumTopic, "0+")
    nodes: list[DescribedQuorumNode] = array(DescribedQuorumNode, "2+")


class UnregisterBrokerRequest(Request, key=64, versions="0", flexible="0+"):
    """Remove the registration of a broker that will not come back."""

    broker_id: int = int32("0+")


class UnregisterBrokerResponse(Response, key=64, versions="0", flexible="0+"):
    """Whether it was removed."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class UnregisterControllerRequest(Request, key=94, versions="0", flexible="0+"):
    """Remove the registration of a controller that will not come back."""

    controller_id: int = int32("0+")


class UnregisterControllerResponse(Response, key=94, versions="0", flexible="0+"):
    """Whether it was removed."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class AddRaftVoterListener(Struct):
    """An address of a controller."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")


class AddRaftVoterRequest(Request, key=80, versions="0-1", flexible="0+"):
    """Add a controller to the voters (KIP-853). ack_when_committed False: respond before the change is committed."""

    cluster_id: str | None = string("0+", nullable="0+")
    timeout_ms: int = int32("0+")
    voter_id: int = int32("0+")
    voter_directory_id: UUID = uuid("0+")
    listeners: list[AddRaftVoterListener] = array(AddRaftVoterListener, "0+")
    ack_when_committed: bool = boolean("1+", default=True)


class AddRaftVoterResponse(Response, key=80, versions="0-1", flexible="0+"):
    """Whether it was added."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", ignorable=True)


class RemoveRaftVoterRequest(Request, key=81, versions="0", flexible="0+"):
    """Remove a controller from the voters."""

    cluster_id: str | None = string("0+", nullable="0+")
    voter_id: int = int32("0+")
    voter_directory_id: UUID = uuid("0+")


class RemoveRaftVoterResponse(Response, key=81, versions="0", flexible="0+"):
    """Whether it was removed."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", ignorable=True)
