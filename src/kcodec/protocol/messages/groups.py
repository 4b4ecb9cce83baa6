# SPDX-License-Identifier: Apache-2.0
"""Group membership: the classic protocol, the consumer protocol (KIP-848), and the requests of tools about groups."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    data,
    int8,
    int16,
    int32,
    string,
    struct,
    uuid,
)


class JoinGroupRequestProtocol(Struct):
    """An assignor that the member supports, and the member's data for it (see `consumer_protocol`)."""

    name: str = string("0+")
    metadata: bytes = data("0+")


class JoinGroupRequest(Request, key=11, versions="0-9", flexible="6+"):
    """Join a group. An empty member_id requests one. A group_instance_id makes the member static (KIP-345)."""

    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol, "0+")
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    """A member of the group, sent to the leader only."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = data("0+")


class JoinGroupResponse(Response, key=11, versions="0-9", flexible="6+"):
    """The joined generation. The member whose id is `leader` assigns the partitions, unless skip_assignment is set."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+")
    member_id: str = string("0+")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, "0+")


class SyncGroupRequestAssignment(Struct):
    """The assignment of one member (see `consumer_protocol`)."""

    member_id: str = string("0+")
    assignment: bytes = data("0+")


class SyncGroupRequest(Request, key=14, versions="0-5", flexible="4+"):
    """Request the member's assignment. The leader sends the assignments of all members, the others send none."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, "0+")


class SyncGroupResponse(Response, key=14, versions="0-5", flexible="4+"):
    """The assignment of this member."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = data("0+")


class HeartbeatRequest(Request, key=12, versions="0-4", flexible="4+"):
    """Keep the member's session of this generation alive."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Response, key=12, versions="0-4", flexible="4+"):
    """Whether the generation is still valid; REBALANCE_IN_PROGRESS: the member must join again."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")


class LeavingMember(Struct):
    """A member that leaves, by its id or its group_instance_id."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(Request, key=13, versions="0-5", flexible="4+"):
    """Remove members from a group: one up to version 2, several from version 3 on."""

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[LeavingMember] = array(LeavingMember, "3+")


class LeavingMemberResponse(Struct):
    """Whether one member has been removed."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")
    error_code: int = int16("3+")


class LeaveGroupResponse(Response, key=13, versions="0-5", flexible="4+"):
    """The results for all members."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    members: list[LeavingMemberResponse] = array(LeavingMemberResponse, "3+")


class DescribeGroupsRequest(Request, key=15, versions="0-6", flexible="5+"):
    """Describe groups of the classic protocol."""

    groups: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("3+")


class DescribedGroupMember(Struct):
    """A member with its subscription and its assignment (see `consumer_protocol`)."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes = data("0+")
    member_assignment: bytes = data("0+")


class DescribedGroup(Struct):
    """A group of the classic protocol. A missing group has the state Dead, from version 6 on an error."""

    error_code: int = int16("0+")
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    authorized_operations: int = int32("3+", default=-2147483648)


class DescribeGroupsResponse(Response, key=15, versions="0-6", flexible="5+"):
    """The descriptions of the requested groups."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")


class ListGroupsRequest(Request, key=16, versions="0-5", flexible="3+"):
    """List the groups that this broker coordinates. Without a filter: all of them."""

    states_filter: list[str] = array(string, "4+")
    types_filter: list[str] = array(string, "5+")


class ListedGroup(Struct):
    """A group, its protocol, and from version 4 on its state."""

    group_id: str = string("0+")
    protocol_type: str = string("0+")
    group_state: str = string("4+", ignorable=True)
    group_type: str = string("5+", ignorable=True)


class ListGroupsResponse(Response, key=16, versions="0-5", flexible="3+"):
    """The groups that this broker coordinates."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array(ListedGroup, "0+")


class DeleteGroupsRequest(Request, key=42, versions="0-3", flexible="2+"):
    """Delete groups without members."""

    groups_names: list[str] = array(string, "0+")


class DeletableGroupResult(Struct):
    """Whether one group was deleted."""

    group_id: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class DeleteGroupsResponse(Response, key=42, versions="0-3", flexible="2+"):
    """The results for all groups."""

    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")


class ConsumerGroupTopicPartitions(Struct):
    """Partitions of a topic, by its id."""

    topic_id: UUID = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerGroupHeartbeatRequest(Request, key=68, versions="0-1", flexible="0+"):
    """Join, send changes (None: no change), or leave with member_epoch -1, a static member with -2 (KIP-848)."""

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array(string, "0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[ConsumerGroupTopicPartitions] | None = array(
        ConsumerGroupTopicPartitions, "0+", nullable="0+", default=None
    )


class ConsumerGroupAssignment(Struct):
    """The assignment of a member."""

    topic_partitions: list[ConsumerGroupTopicPartitions] = array(ConsumerGroupTopicPartitions, "0+")


class ConsumerGroupHeartbeatResponse(Response, key=68, versions="0-1", flexible="0+"):
    """The member's epoch, the heartbeat interval (ms), and the assignment if it changed."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: ConsumerGroupAssignment | None = struct(ConsumerGroupAssignment, "0+", nullable="0+", default=None)


class ConsumerGroupDescribeRequest(Request, key=69, versions="0-1", flexible="0+"):
    """Describe groups of the consumer protocol (KIP-848)."""

    group_ids: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("0+")


class DescribedTopicPartitions(Struct):
    """Partitions of a topic, by id and name."""

    topic_id: UUID = uuid("0+")
    topic_name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class DescribedAssignment(Struct):
    """The assignment of a member."""

    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions, "0+")


class DescribedConsumerGroupMember(Struct):
    """A member, its current and its target assignment. member_type 0: classic, 1: consumer (KIP-848), -1: unknown."""

    member_id: str = string("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+", default=None)
    assignment: DescribedAssignment = struct(DescribedAssignment, "0+")
    target_assignment: DescribedAssignment = struct(DescribedAssignment, "0+")
    member_type: int = int8("1+", default=-1, ignorable=True)


class DescribedConsumerGroup(Struct):
    """A group of the consumer protocol (KIP-848)."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[DescribedConsumerGroupMember] = array(DescribedConsumerGroupMember, "0+")
    authorized_operations: int = int32("0+", default=-2147483648)


class ConsumerGroupDescribeResponse(Response, key=69, versions="0-1", flexible="0+"):
    """The descriptions of the requested groups."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup, "0+")
