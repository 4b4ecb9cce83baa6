# SPDX-License-Identifier: Apache-2.0
"""The requests of a classic group member to its coordinator (Kafka: AbstractCoordinator).

The coordinator delays the responses to JoinGroup and SyncGroup until all members have sent theirs, and later requests
on that connection wait, too. Heartbeat and LeaveGroup therefore use another connection while one of them is in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignors import Assignor, GroupMember
from kcodec.consumer.group.classic.consumer_protocol import PROTOCOL_TYPE, write_assignment, write_subscription
from kcodec.consumer.group.classic.member_state import Generation
from kcodec.consumer.group.dispositions import CLASSIC, GroupDisposition, disposition
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import BrokerError
from kcodec.flow import ByVersion, Flow, Reply, Signal, Task, call, join, spawn, wait
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.protocol.messages.auth import ApiVersionsRequest
from kcodec.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

#: The coordinator responds to JoinGroup within the rebalance timeout; the network gets this number of seconds more.
JOIN_GRACE_SECONDS = 5.0
# Kafka cuts reasons there (JoinGroupRequest.maybeTruncateReason).
MAX_REASON = 255
# From these versions on, a request can contain group_instance_id.
STATIC_JOIN, STATIC_SYNC, STATIC_HEARTBEAT = 5, 3, 3


class GroupRequests:
    """The requests of one member. The caller selects node and connection."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        if not settings.group_id:
            raise ValueError("a subscription needs a consumer with group_id=, as a group assigns the partitions")
        self.cluster = cluster
        self.settings = settings
        self.group_id = settings.group_id
        self._static = settings.group_instance_id

    def coordinator(self, timeout: float) -> Flow[int]:
        """Return the node of the coordinator. Raise the errors of Coordinators.find."""
        return self.cluster.coordinators.find("group", self.group_id, timeout)

    def forget_coordinator(self) -> None:
        """Forget the coordinator, so that it is looked up again."""
        self.cluster.coordinators.forget("group", self.group_id)

    def join(
        self, node: int, generation: Generation, member: GroupMember, assignors: Sequence[Assignor], reason: str
    ) -> Flow[JoinGroupResponse]:
        """Send JoinGroup, with one subscription for each assignor."""
        protocols = [
            JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=write_subscription(replace(member, user_data=assignor.user_data(member.topics))),
            )
            for assignor in assignors
        ]
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=_milliseconds(self.settings.session_timeout),
            rebalance_timeout_ms=_milliseconds(self.settings.max_poll_interval),
            member_id=generation.member_id,
            group_instance_id=self._static,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=reason[:MAX_REASON],
        )
        response: JoinGroupResponse = yield from self._held_back(node, request, STATIC_JOIN)
        return response

    def sync(
        self, node: int, generation: Generation, shares: Mapping[str, Sequence[TopicPartition]]
    ) -> Flow[SyncGroupResponse]:
        """Send SyncGroup; `shares` is the leader's assignment, empty for other members."""
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=generation.id,
            member_id=generation.member_id,
            group_instance_id=self._static,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=generation.protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=write_assignment(share))
                for member_id, share in shares.items()
            ],
        )
        response: SyncGroupResponse = yield from self._held_back(node, request, STATIC_SYNC)
        return response

    def _held_back(self, node: int, request: Any, static_version: int) -> Flow[Any]:
        """Send a request whose response the coordinator delays until all members, or their leader, have sent theirs.
        Meanwhile, check at the interval of heartbeats whether the coordinator still responds."""
        timeout = max(self.settings.request_timeout, self.settings.max_poll_interval + JOIN_GRACE_SECONDS)
        lowest = static_version if self._static is not None else 0
        held_back = call(node, request, timeout=timeout, lowest=lowest, channel="group")
        ended = Signal()
        task: Task[Reply] = yield from spawn(held_back, f"{type(request).__name__} of group {self.group_id}")
        task.when_done(lambda _: ended.set())
        check: Task[Reply] | None = None
        try:
            while True:
                yield from wait(ended, self.settings.heartbeat_interval)
                if task.done:
                    return (yield from join(task)).message
                if check is None:
                    # It must not delay the response, which may arrive first.
                    probe = ApiVersionsRequest(client_software_name="kcodec", client_software_version="0")
                    check_flow = call(node, probe, timeout=self.settings.request_timeout)
                    check = yield from spawn(check_flow, f"check of the coordinator of group {self.group_id}")
                    check.when_done(lambda _: ended.set())
                elif check.done:
                    if check.error is not None:
                        raise check.error
                    check = None
        finally:
            task.cancel()
            if check is not None:
                check.cancel()

    def heartbeat(self, node: int, generation_id: int, member_id: str, timeout: float, channel: str) -> Flow[int]:
        """Send Heartbeat; return the error code of the response."""
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=self._static,
        )
        lowest = STATIC_HEARTBEAT if self._static is not None else 0
        reply: Reply = yield from call(node, request, timeout=timeout, lowest=lowest, channel=channel)
        code: int = reply.message.error_code
        return code

    def leave(self, node: int, member_id: str, reason: str, timeout: float, channel: str) -> Flow[int]:
        """Send LeaveGroup; return the error code of the response."""

        def build(version: int) -> LeaveGroupRequest:
            if version < 3:
                return LeaveGroupRequest(group_id=self.group_id, member_id=member_id)
            leaving = LeavingMember(member_id=member_id, reason=reason[:MAX_REASON])
            return LeaveGroupRequest(group_id=self.group_id, members=[leaving])

        reply: Reply = yield from call(node, ByVersion(LeaveGroupRequest, build), timeout=timeout, channel=channel)
        codes: list[int] = [one.error_code for one in reply.message.members] + [reply.message.error_code]
        return next((code for code in codes if code), 0)

    def error(self, api: str, code: int) -> BrokerError:
        """Return the exception for an error of JoinGroup, SyncGroup or Heartbeat.

        Each poll until the next subscribe raises only errors that a retry does not resolve. Their remedy is "stop",
        whatever the general table has for the code, because an abort does not change the group.
        """
        doing = f"{api} of group {self.group_id!r}"
        if code == ErrorCode.FENCED_INSTANCE_ID:
            doing += (
                f": another consumer has joined as the static member {self._static!r}, and it replaces the earlier "
                "one with this group_instance_id; give each consumer a different one"
            )
        text = None
        if code == ErrorCode.INVALID_SESSION_TIMEOUT:
            text = (
                f"session_timeout_ms={_milliseconds(self.settings.session_timeout)} is outside the range that the "
                "broker allows: its settings group.min.session.timeout.ms and group.max.session.timeout.ms"
            )
        is_fatal = disposition(CLASSIC, code) is GroupDisposition.FATAL
        return broker_error(code, doing, resource=self.group_id, remedy="stop" if is_fatal else None, text=text)

    def check_protocol_type(self, api: str, found: Any) -> None:
        """Raise BrokerError if the group is not a consumer group (for versions that report it)."""
        if found is not None and found != PROTOCOL_TYPE:
            raise broker_error(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"{api} of group {self.group_id!r} found protocol type {found!r} where {PROTOCOL_TYPE!r} was expected",
                resource=self.group_id,
            )


def _milliseconds(seconds: float) -> int:
    return min(round(seconds * 1000), 0x7FFFFFFF)
