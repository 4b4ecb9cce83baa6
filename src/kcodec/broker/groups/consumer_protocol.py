# SPDX-License-Identifier: Apache-2.0
"""ConsumerGroupHeartbeat: members of the consumer protocol join, report and leave (KIP-848).

As in Kafka, regular expressions are resolved after the heartbeat that contains them. The members get the topics with a
later heartbeat. A member that joins a classic group converts it (conversion.py).
"""

from __future__ import annotations

from dataclasses import replace

from kcodec.broker.api import ApiError, RequestContext
from kcodec.broker.groups.classic_group import ClassicGroup
from kcodec.broker.groups.consumer_group import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
)
from kcodec.broker.groups.consumer_rebalance import ConsumerRebalance, MemberUpdate
from kcodec.broker.groups.conversion import to_consumer_group
from kcodec.broker.groups.group_log import GroupRecord
from kcodec.broker.groups.reconciliation import Reported
from kcodec.broker.groups.server_assignors import SERVER_ASSIGNORS
from kcodec.broker.groups.table import GroupTable
from kcodec.broker.groups.topic_patterns import compile_pattern
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode


class ConsumerProtocol:
    """The requests of members of the consumer protocol."""

    def __init__(self, table: GroupTable, rebalance: ConsumerRebalance) -> None:
        self._table = table
        self._settings = table.settings
        self._rebalance = rebalance

    def heartbeat(
        self, context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest
    ) -> messages.ConsumerGroupHeartbeatResponse:
        """Respond to ConsumerGroupHeartbeat, by which a member joins, reports its state, or leaves."""
        try:
            self._check(context, request)
            if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                return self._leave(request)
            return self._heartbeat(context, request)
        except ApiError as error:
            return messages.ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=str(error))

    def _check(self, context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest) -> None:
        epoch = request.member_epoch
        has_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        needs_member_id = context.api_version >= 1 or epoch > 0 or epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH)
        is_joining = epoch == 0
        faults = {
            "GroupId can't be empty.": not request.group_id.strip(),
            "InstanceId can't be empty.": request.instance_id is not None and not request.instance_id.strip(),
            "RackId can't be empty.": request.rack_id is not None and not request.rack_id.strip(),
            "MemberId can't be empty.": needs_member_id and not request.member_id.strip(),
            "MemberEpoch is invalid.": epoch < STATIC_LEAVE_EPOCH,
            "InstanceId can't be null.": epoch == STATIC_LEAVE_EPOCH and request.instance_id is None,
            "RebalanceTimeoutMs must be provided in first request.": is_joining and request.rebalance_timeout_ms == -1,
            "TopicPartitions must be empty when (re-)joining.": is_joining and request.topic_partitions != [],
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.": (
                is_joining and not has_topics
            ),
        }
        for text, is_fault in faults.items():
            if is_fault:
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
        if request.server_assignor is not None and request.server_assignor not in SERVER_ASSIGNORS:
            known = ", ".join(SERVER_ASSIGNORS)
            text = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {known}."
            raise ApiError(ErrorCode.UNSUPPORTED_ASSIGNOR, text)

    # Heartbeat

    def _heartbeat(
        self, context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest
    ) -> messages.ConsumerGroupHeartbeatResponse:
        records: list[GroupRecord] = []
        group = self._group(request.group_id, is_joining=request.member_epoch == 0, records=records)
        self._rebalance.check_size(group, request.member_id, request.instance_id)
        member_id = request.member_id or str(self._table.host.topics.new_uuid())
        update = self._member(group, member_id, request, records)
        update.subscribe(self._updated(context, request, update.before))
        epoch = self._rebalance.next_epoch(context, update)
        member = self._rebalance.advance(update, epoch, request.topic_partitions)
        self._table.commit(group.group_id, update.records)
        self._start_timers(group, update, member)
        return self._response(request, update.before, member)

    def _start_timers(self, group: ConsumerGroup, update: MemberUpdate, member: ConsumerMember) -> None:
        if group is not self._table.groups[group.group_id]:
            for one in group.members.values():  # of a classic group that was converted
                if one.classic is not None:
                    self._rebalance.start_session(group.group_id, one.member_id, one.classic.session_timeout_ms)
        self._rebalance.start_session(group.group_id, member.member_id)
        if member != update.after:
            self._rebalance.watch_revocation(group.group_id, member)

    def _response(
        self,
        request: messages.ConsumerGroupHeartbeatRequest,
        before: ConsumerMember,
        member: ConsumerMember,
    ) -> messages.ConsumerGroupHeartbeatResponse:
        has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        is_full = request.rebalance_timeout_ms != -1 and has_subscription and request.topic_partitions is not None
        assignment = None
        if request.member_epoch == 0 or is_full or _partitions(before) != _partitions(member):
            topics = [
                messages.ConsumerGroupTopicPartitions(topic_id=topic_id, partitions=sorted(epochs))
                for topic_id, epochs in member.assigned.items()
            ]
            assignment = messages.ConsumerGroupAssignment(topic_partitions=topics)
        return messages.ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._table.group_setting(request.group_id, "consumer.heartbeat.interval.ms"),
            assignment=assignment,
        )

    # Group and member

    def _group(self, group_id: str, *, is_joining: bool, records: list[GroupRecord]) -> ConsumerGroup:
        """Return the group, or a new one, which its first records create. A new group replaces an empty classic group.
        A classic group with members is converted."""
        group = self._table.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is not None and not is_joining:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if group is None and not is_joining:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if group is None:
            return ConsumerGroup(group_id)
        if group.is_empty:
            records += group.tombstones()
            return ConsumerGroup(group_id)
        return self._converted(group, records)

    def _converted(self, classic: ClassicGroup, records: list[GroupRecord]) -> ConsumerGroup:
        """Return the group of the consumer protocol that takes the place of a classic group once its records are
        applied. Waiting members of the classic group must join again."""
        why = {
            "online upgrade is disabled": self._settings.group_consumer_migration_policy in ("disabled", "downgrade"),
            "the group does not use the consumer embedded protocol": not classic.is_consumer_group,
            "the group size exceeds the consumer group maximum size": (
                len(classic.members) > self._settings.group_consumer_max_size
            ),
        }
        for text, is_fault in why.items():
            if is_fault:
                text = f"Cannot upgrade classic group {classic.group_id} to consumer group because {text}."
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        classic.abandon(ErrorCode.REBALANCE_IN_PROGRESS)
        group = to_consumer_group(classic, self._table.host.topics)
        group.metadata_hash = self._rebalance.metadata_hash(group, group.members.values())
        records += [*classic.tombstones(), *group.converted_records()]
        return group

    def _member(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: messages.ConsumerGroupHeartbeatRequest,
        records: list[GroupRecord],
    ) -> MemberUpdate:
        """Return the update of the member that sends the heartbeat, or of a new member, still without its changes."""
        is_joining = request.member_epoch == 0
        if request.instance_id is None:
            known = group.members.get(member_id) or ConsumerMember(member_id) if is_joining else group.member(member_id)
        else:
            static = group.static_member(request.instance_id)
            if is_joining and static is not None:
                if static.classic is None and static.epoch != STATIC_LEAVE_EPOCH:
                    text = (
                        f"Static member {member_id} with instance id {request.instance_id} cannot join the group"
                        f" because the instance id is owned by {static.member_id} member."
                    )
                    raise ApiError(ErrorCode.UNRELEASED_INSTANCE_ID, text)
                return self._rebalance.replace_static(group, static, member_id, records)
            if is_joining:
                known = group.members.get(member_id) or ConsumerMember(member_id)
            else:
                known = fenced(static, member_id, request.instance_id)
        if not is_joining:
            _check_epoch(known, request.member_epoch, request.topic_partitions)
        return MemberUpdate(group, known, known, records)

    def _updated(
        self, context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest, member: ConsumerMember
    ) -> ConsumerMember:
        """Return the member with the changes of the heartbeat."""
        pattern = request.subscribed_topic_regex
        if pattern is not None and pattern != member.pattern and pattern:
            compile_pattern(pattern)
        topics = request.subscribed_topic_names
        timeout = request.rebalance_timeout_ms
        return replace(
            member,
            instance_id=member.instance_id if request.instance_id is None else request.instance_id,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            client_id=context.client_id or "",
            client_host=context.connection.host,
            topics=member.topics if topics is None else frozenset(topics),
            pattern=member.pattern if pattern is None else pattern,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
            server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
            classic=None,
        )

    # Leaving

    def _leave(self, request: messages.ConsumerGroupHeartbeatRequest) -> messages.ConsumerGroupHeartbeatResponse:
        group = self._table.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            static = group.static_member(request.instance_id)
            member = fenced(static, request.member_id, request.instance_id)
        if request.instance_id is not None and request.member_epoch == STATIC_LEAVE_EPOCH:
            self._table.commit(group.group_id, [member.away().current_record(group.group_id)])
        else:
            self._rebalance.remove(group, [member])
        return messages.ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)


def _partitions(member: ConsumerMember) -> dict[object, frozenset[int]]:
    return {topic_id: frozenset(epochs) for topic_id, epochs in member.assigned.items()}


def fenced(static: ConsumerMember | None, member_id: str, instance_id: str) -> ConsumerMember:
    """Return the static member. Raise ApiError if it has another member id."""
    if static is None:
        text = f"Instance id {instance_id} is unknown."
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    if static.member_id != member_id:
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member {static.member_id}."
        raise ApiError(ErrorCode.FENCED_INSTANCE_ID, text)
    return static


def _check_epoch(member: ConsumerMember, epoch: int, reported: Reported) -> None:
    """Raise ApiError (FENCED_MEMBER_EPOCH) unless the epoch is that of the member, or the one before a lost
    response."""
    if epoch == member.epoch:
        return
    is_subset = reported is not None and all(
        set(one.partitions) <= set(member.assigned.get(one.topic_id, {})) for one in reported
    )
    if epoch > member.epoch or epoch != member.previous_epoch or not is_subset:
        relation = "greater" if epoch > member.epoch else "smaller"
        text = (
            f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )
        raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, text)
