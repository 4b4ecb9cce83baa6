# SPDX-License-Identifier: Apache-2.0
"""Metadata: brokers, topics, partition leaders, coordinators and the cluster."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string, uuid


class MetadataRequestTopic(Struct):
    """A topic by name, or by id if the name is None."""

    topic_id: UUID = uuid("10+", ignorable=True)
    name: str | None = string("0+", nullable="10+")


class MetadataRequest(Request, key=3, versions="0-13", flexible="9+"):
    """Request metadata of topics. None: of all topics ([] in version 0); []: only brokers and controller."""

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, "0+", nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class MetadataResponseBroker(Struct):
    """A broker and its address."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    """The leader of a partition; leader_id -1: none. With an error code the known fields may still be filled in."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("7+", default=-1, ignorable=True)
    replica_nodes: list[int] = array(int32, "0+")
    isr_nodes: list[int] = array(int32, "0+")
    offline_replicas: list[int] = array(int32, "5+", ignorable=True)


class MetadataResponseTopic(Struct):
    """A topic and its partitions. Authorized operations: a bit set, -2147483648 if they were not requested."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="12+")
    topic_id: UUID = uuid("10+", ignorable=True)
    is_internal: bool = boolean("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, "0+")
    topic_authorized_operations: int = int32("8+", default=-2147483648)


class MetadataResponse(Response, key=3, versions="0-13", flexible="9+"):
    """Brokers, controller (-1: unknown) and topics."""

    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, "0+")
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "0+")
    cluster_authorized_operations: int = int32("8-10", default=-2147483648)
    error_code: int = int16("13+", ignorable=True)


class FindCoordinatorRequest(Request, key=10, versions="0-6", flexible="3+"):
    """Find the coordinators of keys (one `key` up to version 3). key_type 0: group, 1: transactional id, 2: share."""

    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array(string, "4+")


class Coordinator(Struct):
    """The coordinator of one key."""

    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = string("4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Response, key=10, versions="0-6", flexible="3+"):
    """The requested coordinators: fields of the response itself up to version 3, `coordinators` from version 4 on."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")


class DescribeClusterRequest(Request, key=60, versions="0-2", flexible="0+"):
    """Request the brokers of the cluster. endpoint_type 1: brokers, 2: controllers."""

    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")


class DescribeClusterBroker(Struct):
    """A broker or controller and its address."""

    broker_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)
    is_fenced: bool = boolean("2+")


class DescribeClusterResponse(Response, key=60, versions="0-2", flexible="0+"):
    """The cluster's id, controller and brokers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, "0+")
    cluster_authorized_operations: int = int32("0+", default=-2147483648)
