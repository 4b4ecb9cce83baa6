# SPDX-License-Identifier: Apache-2.0
"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup in a group of the consumer protocol (KIP-848).

Members of the classic protocol stay in a group that a member of the consumer protocol has joined, and further members
of the classic protocol can join it. The coordinator assigns the partitions of all members. The generation of a classic
member is its member epoch. With JoinGroup, the member takes the next step towards its target assignment. SyncGroup
returns its partitions. Heartbeat responds with REBALANCE_IN_PROGRESS if the member has to join again. No request waits
for other members. If the last member of the consumer protocol is a static member that joins again with the classic
protocol, the group becomes a classic group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kcodec.broker.api import ApiError, RequestContext
from kcodec.broker.groups.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    MEMBER_ID_VERSION,
    protocols_of,
    rebalance_timeout_of,
)
from kcodec.broker.groups.consumer_group import ClassicSide, ConsumerGroup, ConsumerMember, MemberState
from kcodec.broker.groups.consumer_protocol import fenced
from kcodec.broker.groups.consumer_rebalance import ConsumerRebalance, MemberUpdate
from kcodec.broker.groups.embedded_protocol import names_of, owned_of, read_subscription, write_assignment
from kcodec.broker.groups.reconciliation import Reported
from kcodec.broker.groups.table import GroupTable
from kcodec.errors import DecodeError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode


class ClassicMembers:
    """The requests of classic members in groups of the consumer protocol. If a request fails, the method raises
    ApiError."""

    def __init__(self, table: GroupTable, rebalance: ConsumerRebalance) -> None:
        self._table = table
        self._settings = table.settings
        self._rebalance = rebalance

    # JoinGroup

    def join(
        self, context: RequestContext, request: messages.JoinGroupRequest, group: ConsumerGroup
    ) -> messages.JoinGroupResponse:
        """Respond to JoinGroup."""
        if self._settings.group_consumer_migration_policy == "disabled":
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id = request.member_id or str(self._table.host.topics.new_uuid())
        instance_id = request.group_instance_id
        self._rebalance.check_size(group, member_id, instance_id)
        if not group.supports(request.protocol_type, protocols_of(request)):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not request.member_id and instance_id is None and context.api_version >= MEMBER_ID_VERSION:
            return messages.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        static = group.static_member(instance_id)
        update = self._member(group, static, member_id, request)
        reported = self._subscribe(context, request, update)
        member, is_classic_group = self._advance(context, update, static, reported)
        timers = group.group_id, member.member_id
        self._rebalance.cancel_timer("join", *timers)
        if not is_classic_group:
            self._rebalance.start_session(*timers, request.session_timeout_ms)
            self._rebalance.start_timer("sync", *timers, rebalance_timeout_of(request))
        return messages.JoinGroupResponse(
            member_id=member.member_id,
            generation_id=member.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=_side(member).protocol,
        )

    def _member(
        self, group: ConsumerGroup, static: ConsumerMember | None, member_id: str, request: messages.JoinGroupRequest
    ) -> MemberUpdate:
        """Return the update of the member that joins. A dynamic member may have an id that the group does not know."""
        instance_id = request.group_instance_id
        if instance_id is not None and request.member_id:
            known = fenced(static, member_id, instance_id)
        elif static is not None:
            return self._rebalance.replace_static(group, static, member_id, [])
        else:
            known = group.members.get(member_id) or ConsumerMember(member_id)
        return MemberUpdate(group, known, known)

    def _subscribe(self, context: RequestContext, request: messages.JoinGroupRequest, update: MemberUpdate) -> Reported:
        """Set the subscription of the member. Return the partitions that it reports as owned."""
        side = ClassicSide(request.session_timeout_ms, tuple(protocols_of(request).items()))
        try:
            subscription = read_subscription(side.subscription)
        except DecodeError as error:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
        member = update.before
        update.subscribe(
            replace(
                member,
                instance_id=request.group_instance_id or member.instance_id,
                rack_id=subscription.rack_id or member.rack_id,
                client_id=context.client_id or "",
                client_host=context.connection.host,
                topics=frozenset(subscription.topics),
                pattern="",
                rebalance_timeout_ms=rebalance_timeout_of(request),
                classic=side,
            )
        )
        return owned_of(subscription, self._table.host.topics)

    def _advance(
        self, context: RequestContext, update: MemberUpdate, static: ConsumerMember | None, reported: Reported
    ) -> tuple[ConsumerMember, bool]:
        """Return the member after its next step, and whether the group has become a classic group."""
        group = update.group
        epoch = self._rebalance.next_epoch(context, update, is_classic=True)
        replaces_last = static is not None and static.classic is None
        if not (replaces_last and self._rebalance.can_downgrade(update.members.values())):
            member = self._rebalance.advance(update, epoch, reported)
            self._table.commit(group.group_id, update.records)
            return member, False
        member, has_stale_target = update.after, group.assignment_epoch < epoch
        if not has_stale_target:
            member = self._rebalance.step(update, group.assignment_epoch, self._rebalance.target(update), reported)
        members = (update.members | {member.member_id: member}).values()
        self._rebalance.downgrade(group, members, update.records, rebalances=has_stale_target)
        return member, True

    # SyncGroup, Heartbeat and LeaveGroup

    def sync(self, request: messages.SyncGroupRequest, group: ConsumerGroup) -> messages.SyncGroupResponse:
        """Respond to SyncGroup with the partitions of the member."""
        member = _classic_member(group, request)
        side = _side(member)
        pairs = ((request.protocol_type, CONSUMER_PROTOCOL_TYPE), (request.protocol_name, side.protocol))
        if any(sent is not None and sent != expected for sent, expected in pairs):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group, member)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalance.cancel_timer("sync", group.group_id, member.member_id)
        self._rebalance.start_session(group.group_id, member.member_id, side.session_timeout_ms)
        return messages.SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=self._assignment(member, side),
        )

    def _assignment(self, member: ConsumerMember, side: ClassicSide) -> bytes:
        assigned = {topic_id: frozenset(epochs) for topic_id, epochs in member.assigned.items()}
        try:
            return write_assignment(names_of(assigned, self._table.host.topics), side.subscription)
        except DecodeError as error:  # the conversion has checked only the subscription for another assignor
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    def heartbeat(self, request: messages.HeartbeatRequest, group: ConsumerGroup) -> messages.HeartbeatResponse:
        """Respond to Heartbeat, and start the session timeout of the member again."""
        member = _classic_member(group, request)
        self._rebalance.start_session(group.group_id, member.member_id, _side(member).session_timeout_ms)
        can_continue = member.state is MemberState.UNRELEASED_PARTITIONS and not group.awaits_release(member)
        if member.epoch < group.assignment_epoch or member.state is MemberState.UNREVOKED_PARTITIONS or can_continue:
            self._expect_join(group, member)
            return messages.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return messages.HeartbeatResponse()

    def _expect_join(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Remove the member if it does not join again within its rebalance timeout."""
        timer = "join", group.group_id, member.member_id
        if not self._rebalance.has_timer(*timer):
            self._rebalance.start_timer(*timer, member.rebalance_timeout_ms)

    def leave(self, group: ConsumerGroup, leaving: Iterable[messages.LeavingMember]) -> list[ErrorCode]:
        """Remove members of either protocol. Return the error code of each."""
        found, codes = [], []
        for one in leaving:
            try:
                if one.group_instance_id is None:
                    member = group.member(one.member_id)
                else:
                    static = group.static_member(one.group_instance_id)
                    known_id = one.member_id or ("" if static is None else static.member_id)
                    member = fenced(static, known_id, one.group_instance_id)
                found.append(member)
                codes.append(ErrorCode.NONE)
            except ApiError as error:
                codes.append(error.code)
        self._rebalance.remove(group, found)
        return codes


def _side(member: ConsumerMember) -> ClassicSide:
    assert member.classic is not None
    return member.classic


def _classic_member(
    group: ConsumerGroup, request: messages.SyncGroupRequest | messages.HeartbeatRequest
) -> ConsumerMember:
    """Return the classic member that sends a request. Raise ApiError (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION)."""
    if request.group_instance_id is None:
        member = group.member(request.member_id)
    else:
        static = group.static_member(request.group_instance_id)
        member = fenced(static, request.member_id, request.group_instance_id)
    if member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member.member_id} does not use the classic protocol.")
    if request.generation_id != member.epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return member
