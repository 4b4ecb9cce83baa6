# SPDX-License-Identifier: Apache-2.0
"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the rebalances of classic groups.

The rules are those of Kafka's GroupMetadataManager. A rebalance waits for all members, at most for the longest
rebalance timeout of a member. The first rebalance of an empty group waits for the initial rebalance delay, and waits
again if more members join during this time. The leader's SyncGroup contains the assignments. The members get them when
the record of the group is in the log.
"""

from __future__ import annotations

from collections.abc import Callable

from kcodec.broker.api import ApiError, Later, RequestContext
from kcodec.broker.groups.classic_group import (
    MEMBER_ID_VERSION,
    ClassicGroup,
    ClassicGroupMember,
    ClassicState,
    protocols_of,
    rebalance_timeout_of,
)
from kcodec.broker.groups.classic_members import ClassicMembers
from kcodec.broker.groups.consumer_group import ConsumerGroup
from kcodec.broker.groups.table import Group, GroupTable
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

# Versions from which JoinGroup can skip the assignment (KIP-814), and SyncGroup names the protocol (KIP-559).
SKIP_ASSIGNMENT_VERSION = 9
NAMED_SYNC_VERSION = 5
NULL_PROTOCOL_VERSION = 7
#: How long a member that has never completed a join may wait for one (ClassicGroup).
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000


class _Join(Later):
    """A JoinGroup request, and its response. The response to a refused join has no protocol name: "", or None from
    version 7 on."""

    __slots__ = ("context", "request")

    def __init__(self, context: RequestContext, request: messages.JoinGroupRequest) -> None:
        super().__init__()
        self.context = context
        self.request = request

    def respond(self, response: messages.JoinGroupResponse) -> None:
        if response.error_code and self.context.api_version >= NULL_PROTOCOL_VERSION:
            response.protocol_name = None
        super().respond(response)


class ClassicProtocol:
    """The requests of members of the classic protocol.

    members: Handles the requests of members that are in groups of the consumer protocol.
    """

    def __init__(self, table: GroupTable, members: ClassicMembers) -> None:
        self._table = table
        self._settings = table.settings
        self._members = members

    # JoinGroup

    def join(self, context: RequestContext, request: messages.JoinGroupRequest) -> Later:
        """Respond to JoinGroup when the next generation begins."""
        join = _Join(context, request)
        try:
            self._join(join)
        except ApiError as error:
            join.respond(messages.JoinGroupResponse(error_code=error.code, member_id=request.member_id))
        return join

    def _join(self, join: _Join) -> None:
        request = join.request
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        settings = self._settings
        longest = settings.group_max_session_timeout_ms
        if not settings.group_min_session_timeout_ms <= request.session_timeout_ms <= longest:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        known = self._table.groups.get(request.group_id)
        tombstones = []
        if isinstance(known, ConsumerGroup):
            if not known.is_empty:
                self._join_consumer_group(join, known)
                return
            tombstones = known.tombstones()
            del self._table.groups[request.group_id]
            known = None
        if known is None and request.member_id:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = known or self._table.create_classic(request.group_id)
        written = self._table.records_written
        if not self._accepts(group, request.member_id):
            group.remove(request.member_id)
            join.respond(messages.JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif request.member_id:
            self._join_known(join, group)
        else:
            self._join_new(join, group)
        if known is None and written == self._table.records_written:
            # Kafka writes the new group before its first generation, without members. It writes the tombstones of an
            # empty group of the consumer protocol only together with this record.
            empty = ClassicGroup(group.group_id, state_timestamp=group.state_timestamp or self._table.now_ms())
            self._table.write(group.group_id, [*tombstones, empty.record()])

    def _join_consumer_group(self, join: _Join, group: ConsumerGroup) -> None:
        try:
            join.respond(self._members.join(join.context, join.request, group))
        except ApiError as error:  # without the member id, as in Kafka
            join.respond(messages.JoinGroupResponse(error_code=error.code))

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        largest = self._settings.group_max_size
        if group.state is ClassicState.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            waiting = sum(one.joining is not None for one in group.members.values())
            return (member is not None and member.joining is not None) or waiting < largest
        if group.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            return member_id in group.members or len(group.members) < largest
        return True

    def _join_new(self, join: _Join, group: ClassicGroup) -> None:
        context, request = join.context, join.request
        if not group.supports(request.protocol_type, protocols_of(request)):
            join.respond(messages.JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        instance_id = request.group_instance_id
        prefix = (context.client_id or "") if instance_id is None else instance_id
        member_id = f"{prefix}-{self._table.host.topics.new_uuid()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static(join, group, member_id)
        elif instance_id is None and context.api_version >= MEMBER_ID_VERSION:
            group.pending_joins.add(member_id)
            self._table.start_timer(
                ("session", group.group_id, member_id),
                request.session_timeout_ms,
                lambda: self._session_expired(group.group_id, member_id),
            )
            join.respond(messages.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add_member(join, group, member_id)

    def _join_known(self, join: _Join, group: ClassicGroup) -> None:
        request = join.request
        if not group.supports(request.protocol_type, protocols_of(request)):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.member_id in group.pending_joins:
            if request.group_instance_id is not None:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._add_member(join, group, request.member_id)
            return
        member = group.validate_member(request.member_id, request.group_instance_id)
        if group.state is ClassicState.PREPARING_REBALANCE:
            is_repeat = False
        elif group.state is ClassicState.COMPLETING_REBALANCE:
            is_repeat = member.matches(request)
        elif group.state is ClassicState.STABLE:
            is_repeat = group.leader != member.member_id and member.matches(request)
        else:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if is_repeat:
            join.respond(group.join_response(member.member_id))
        else:
            member.update(request, join)  # instead of an earlier join that it gave up
            self._rebalance_or_complete(group)

    def _add_member(self, join: _Join, group: ClassicGroup, member_id: str) -> None:
        context, request = join.context, join.request
        if group.state is ClassicState.PREPARING_REBALANCE and group.previous_state is ClassicState.EMPTY:
            group.new_member_added = True
        member = ClassicGroupMember(
            member_id,
            request.group_instance_id,
            context.client_id or "",
            context.connection.host,
            rebalance_timeout_of(request),
            request.session_timeout_ms,
            request.protocol_type,
            protocols_of(request),
            joining=join,
            is_new=True,
        )
        group.add(member)
        self._restart_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group)

    def _replace_static(self, join: _Join, group: ClassicGroup, member_id: str) -> None:
        """Continue a static member that was restarted under a new member id, without a rebalance if possible."""
        context, request = join.context, join.request
        old = group.members[group.static_members[request.group_instance_id or ""]]
        old_leader = group.leader
        self._table.cancel_timer(("session", group.group_id, old.member_id))
        member = group.replace_static(old, member_id)
        self._restart_session(group, member)
        member.update(request, join)
        if group.state is ClassicState.STABLE:
            if group.select_protocol() != group.protocol:
                self._rebalance_or_complete(group)
                return
            self._table.write(group.group_id, [group.record()])
            response = group.join_response(member_id)
            if context.api_version >= SKIP_ASSIGNMENT_VERSION:
                response.skip_assignment = member_id == group.leader
            else:
                response.members, response.leader = [], old_leader or ""
            member.respond_join(response)
        elif group.state is ClassicState.COMPLETING_REBALANCE:
            self._prepare_rebalance(group)
        else:
            self._complete_if_all_joined(group)

    # Rebalances

    def _rebalance_or_complete(self, group: ClassicGroup) -> None:
        if group.can_rebalance:
            self._prepare_rebalance(group)
        else:
            self._complete_if_all_joined(group)

    def _complete_if_all_joined(self, group: ClassicGroup) -> None:
        is_preparing = group.state is ClassicState.PREPARING_REBALANCE
        if is_preparing and group.previous_state is not ClassicState.EMPTY and group.has_all_joined:
            self._complete_join(group)

    def _prepare_rebalance(self, group: ClassicGroup) -> None:
        if group.state is ClassicState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self._give_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._table.cancel_timer(("sync", group.group_id))
        is_first = group.state is ClassicState.EMPTY
        group.transition_to(ClassicState.PREPARING_REBALANCE, self._table.now_ms())
        if is_first:
            delay = self._settings.group_initial_rebalance_delay_ms
            self._wait_for_more_members(group, delay, max(group.rebalance_timeout_ms - delay, 0))
        elif group.has_all_joined:
            self._complete_join(group)
        else:
            self._start_timer("join", group, group.rebalance_timeout_ms, lambda: self._complete_join(group))

    def _wait_for_more_members(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        """Delay the first generation of a group. Delay it again while members join, up to the rebalance timeout."""

        def look_again() -> None:
            if group.new_member_added and remaining_ms:
                group.new_member_added = False
                longest = min(self._settings.group_initial_rebalance_delay_ms, remaining_ms)
                self._wait_for_more_members(group, longest, max(remaining_ms - delay_ms, 0))
            else:
                self._complete_join(group)

        self._start_timer("join", group, delay_ms, look_again)

    def _start_timer(self, kind: str, group: ClassicGroup, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` after a delay, if the group still exists."""

        def run() -> None:
            if self._table.groups.get(group.group_id) is group:
                action()

        self._table.start_timer((kind, group.group_id), delay_ms, run)

    def _complete_join(self, group: ClassicGroup) -> None:
        """Begin the next generation with the members that have joined, and with static members that have not."""
        self._table.cancel_timer(("join", group.group_id))
        for member in [one for one in group.members.values() if one.joining is None and one.instance_id is None]:
            self._remove_member(group, member)
        if group.members and not group.elect_joined_leader():
            self._start_timer("join", group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
            return
        group.start_generation(self._table.now_ms())
        if group.is_empty:
            self._table.write(group.group_id, [group.record()])
            return
        for member in list(group.members.values()):
            member.respond_join(group.join_response(member.member_id))
            self._restart_session(group, member)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        generation = group.generation
        self._start_timer("sync", group, group.rebalance_timeout_ms, lambda: self._sync_expired(group, generation))

    def _sync_expired(self, group: ClassicGroup, generation: int) -> None:
        """Remove the members that have not sent SyncGroup within the rebalance timeout."""
        is_waiting = group.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE)
        if group.generation == generation and group.pending_syncs and is_waiting:
            for member_id in list(group.pending_syncs):
                self._remove_member(group, group.members[member_id])
            self._prepare_rebalance(group)

    def _remove_member(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        self._table.cancel_timer(("session", group.group_id, member.member_id))
        member.respond_join(messages.JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        member.respond_sync(messages.SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)

    # Sessions

    def _restart_session(self, group: ClassicGroup, member: ClassicGroupMember, timeout_ms: int | None = None) -> None:
        self._table.start_timer(
            ("session", group.group_id, member.member_id),
            member.session_timeout_ms if timeout_ms is None else timeout_ms,
            lambda: self._session_expired(group.group_id, member.member_id),
        )

    def start_sessions(self, group: ClassicGroup) -> None:
        """Start the sessions of the members of a group that was read from the log."""
        for member in group.members.values():
            self._restart_session(group, member)
        if len(group.members) > self._settings.group_max_size:
            self._prepare_rebalance(group)

    def adopt(self, group: ClassicGroup, rebalances: bool) -> None:
        """Start the sessions of a group that was one of the consumer protocol, and a rebalance if necessary."""
        for member in group.members.values():
            self._restart_session(group, member)
        if rebalances:
            self._prepare_rebalance(group)

    def member_is_alive(self, group: ClassicGroup, member_id: str) -> None:
        """Restart the session of a member that has committed offsets."""
        member = group.members.get(member_id)
        if member is not None and group.state in (ClassicState.STABLE, ClassicState.PREPARING_REBALANCE):
            self._restart_session(group, member)

    def _session_expired(self, group_id: str, member_id: str) -> None:
        group = self._table.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            return
        if member_id in group.pending_joins:
            group.remove(member_id)
            if group.state is ClassicState.PREPARING_REBALANCE and group.has_all_joined:
                self._complete_join(group)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.joining is not None or member.syncing is not None):
            return
        self._remove_member(group, member)
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            self._prepare_rebalance(group)
        elif group.state is ClassicState.PREPARING_REBALANCE and group.has_all_joined:
            self._complete_join(group)

    def _group_of(self, request: messages.SyncGroupRequest | messages.HeartbeatRequest) -> Group:
        """Return the group with members that a request names. Raise ApiError."""
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._table.groups.get(request.group_id)
        if group is None or group.is_empty:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    @staticmethod
    def _member_of(
        group: ClassicGroup, request: messages.SyncGroupRequest | messages.HeartbeatRequest
    ) -> ClassicGroupMember:
        """Return the member of the current generation that sends a request. Raise ApiError."""
        member = group.validate_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # SyncGroup

    def sync(self, context: RequestContext, request: messages.SyncGroupRequest) -> Later:
        """Respond to SyncGroup with the assignment of the member. The request of the leader contains all
        assignments."""
        later = Later()
        try:
            if context.api_version >= NAMED_SYNC_VERSION and None in (request.protocol_type, request.protocol_name):
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            group = self._group_of(request)
            if isinstance(group, ConsumerGroup):
                later.respond(self._members.sync(request, group))
            else:
                self._sync(request, group, later)
        except ApiError as error:
            later.respond(messages.SyncGroupResponse(error_code=error.code))
        return later

    def _sync(self, request: messages.SyncGroupRequest, group: ClassicGroup, later: Later) -> None:
        member = self._member_of(group, request)
        pairs = ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol))
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is ClassicState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._table.cancel_timer(("sync", group.group_id))
        if group.state is ClassicState.STABLE:
            later.respond(self._sync_response(group, member))
            return
        is_leader = group.leader == member.member_id
        assignments = {one.member_id: bytes(one.assignment) for one in request.assignments}
        if is_leader:  # written first: a member that waits for the response needs no heartbeats
            self._table.write(group.group_id, [group.record(assignments)])
        member.syncing = later
        if is_leader:
            for one in group.members.values():
                one.assignment = assignments.get(one.member_id, b"")
            group.transition_to(ClassicState.STABLE, self._table.now_ms())
            self._give_assignments(group, ErrorCode.NONE)

    def _give_assignments(self, group: ClassicGroup, error: ErrorCode) -> None:
        for member in list(group.members.values()):
            if error is ErrorCode.NONE:
                had_waited = member.respond_sync(self._sync_response(group, member))
            else:
                had_waited = member.respond_sync(messages.SyncGroupResponse(error_code=error))
            if had_waited:
                self._restart_session(group, member)

    def _sync_response(self, group: ClassicGroup, member: ClassicGroupMember) -> messages.SyncGroupResponse:
        return messages.SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
        )

    # Heartbeat and LeaveGroup

    def heartbeat(self, request: messages.HeartbeatRequest) -> messages.HeartbeatResponse:
        """Respond to Heartbeat, which extends the session of a member."""
        group = self._group_of(request)
        if isinstance(group, ConsumerGroup):
            return self._members.heartbeat(request, group)
        member = self._member_of(group, request)
        self._restart_session(group, member)
        is_preparing = group.state is ClassicState.PREPARING_REBALANCE
        return messages.HeartbeatResponse(
            error_code=ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE
        )

    def leave(self, context: RequestContext, request: messages.LeaveGroupRequest) -> messages.LeaveGroupResponse:
        """Respond to LeaveGroup, which removes members from a group."""
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        is_single = context.api_version < 3
        leaving = [messages.LeavingMember(member_id=request.member_id)] if is_single else request.members
        group = self._table.groups.get(request.group_id)
        if group is None:
            codes = [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
        elif isinstance(group, ConsumerGroup):
            codes = self._members.leave(group, leaving)
        else:
            codes = [self._leave_one(group, one) for one in leaving]
        if isinstance(group, ClassicGroup) and ErrorCode.NONE in codes:
            if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
                self._prepare_rebalance(group)
            else:
                self._complete_if_all_joined(group)
        if is_single:
            return messages.LeaveGroupResponse(error_code=codes[0])
        return messages.LeaveGroupResponse(
            members=[
                messages.LeavingMemberResponse(
                    member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=code
                )
                for one, code in zip(leaving, codes, strict=True)
            ]
        )

    def _leave_one(self, group: ClassicGroup, leaving: messages.LeavingMember) -> ErrorCode:
        if leaving.member_id in group.pending_joins:
            group.remove(leaving.member_id)
            self._table.cancel_timer(("session", group.group_id, leaving.member_id))
            return ErrorCode.NONE
        member_id = leaving.member_id or group.static_members.get(leaving.group_instance_id or "", "")
        try:
            self._remove_member(group, group.validate_member(member_id, leaving.group_instance_id))
        except ApiError as error:
            return error.code
        return ErrorCode.NONE
