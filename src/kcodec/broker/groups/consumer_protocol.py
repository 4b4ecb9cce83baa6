# SPDX-License-Identifier: Apache-2.0
"""ConsumerGroupHeartbeat: members of the consumer protocol join, report and leave (KIP-848).

A heartbeat can produce records for a changed subscription, for the next epoch of the group, for the target assignment,
and for the next step of the member towards it. They are appended as one batch, and applied as a replay would apply
them, so memory and log agree. As in Kafka, regular expressions are resolved after the heartbeat that contains them. The
members get the topics with a later heartbeat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kcodec.broker.api import ApiError, RequestContext
from kcodec.broker.authorizer.acls import Operation, ResourceType
from kcodec.broker.groups.classic_group import ClassicGroup
from kcodec.broker.groups.consumer_group import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from kcodec.broker.groups.group_log import (
    GroupRecord,
    Target,
    group_epoch_record,
    member_tombstones,
    pattern_record,
    pattern_tombstone,
    target_epoch_record,
    target_record,
)
from kcodec.broker.groups.reconciliation import Reported, reconcile
from kcodec.broker.groups.server_assignors import SERVER_ASSIGNORS, AssignedMember
from kcodec.broker.groups.table import GroupTable
from kcodec.broker.groups.topic_patterns import compile_pattern, matching_topics
from kcodec.broker.internal_topics import hash_map_order
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

DEFAULT_SERVER_ASSIGNOR = "uniform"


def preferred_assignor(members: Iterable[ConsumerMember]) -> str:
    """Return the assignor that most members name. If it changes, an epoch begins, as after a changed subscription."""
    votes = [one.server_assignor for one in members if one.server_assignor is not None]
    return max(votes, key=votes.count) if votes else DEFAULT_SERVER_ASSIGNOR


def metadata_hash(topics: Mapping[str, int]) -> int:
    """Return a hash of 64 bits of the subscribed topics and their numbers of partitions; 0 if there are no topics.

    Kafka's hash has another value. A Kafka broker that reads this log therefore begins one additional epoch.
    """
    if not topics:
        return 0
    text = "\0".join(f"{name}\0{count}" for name, count in sorted(topics.items()))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


def _described(context: RequestContext, names: list[str]) -> list[str]:
    """Return the names of the topics that the client may describe."""
    client, authorizer = context.connection, context.connection.authorizer
    if authorizer is None:
        return names
    return [one for one in names if authorizer.allows(client, Operation.DESCRIBE, ResourceType.TOPIC, one)]


class ConsumerProtocol:
    """The requests of members of groups of the consumer protocol."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table
        self._settings = table.settings

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
        largest = self._settings.group_consumer_max_size
        if len(group.members) >= largest and request.member_id not in group.members:
            text = f"The consumer group has reached its maximum capacity of {largest} members."
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        member_id = request.member_id or str(self._table.host.topics.new_uuid())
        member = self._member(group, member_id, request, records)
        updated = self._updated(context, request, member)
        members = {
            key: one
            for key, one in group.members.items()
            if one.instance_id is None or one.instance_id != updated.instance_id
        }
        members[member_id] = updated
        if updated != member or member_id not in group.members:
            records.append(updated.subscription_record(group.group_id))
        epoch = self._next_epoch(context, group, member, updated, members, records)
        target = group.target.get(member.member_id, {})
        if updated.instance_id is not None and updated.instance_id not in group.static_members:
            # Kafka looks up the target of a static member by its instance id. A known member that names one for the
            # first time therefore gets no partitions until the next assignment (ModernGroup.targetAssignment).
            target = {}
        target_epoch = group.assignment_epoch
        interval = self._table.group_setting(group.group_id, "consumer.assignment.interval.ms")
        is_due = self._table.now_ms() >= group.assigned_ms + interval
        if epoch > target_epoch and is_due:
            target_epoch = epoch
            target = self._assign(group, epoch, members, records)[member_id]
        reconciled = updated
        if not updated.is_reconciled_to(target_epoch):
            taken = group.taken_partitions(member_id)
            reconciled = reconcile(updated, target_epoch, target, taken, request.topic_partitions)
        if reconciled != updated:
            records.append(reconciled.current_record(group.group_id))
        self._table.commit(group.group_id, records)
        self._start_timers(group.group_id, reconciled, has_moved=reconciled != updated)
        return self._response(request, group, member, reconciled)

    def _response(
        self,
        request: messages.ConsumerGroupHeartbeatRequest,
        group: ConsumerGroup,
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

    def _group(self, group_id: str, *, is_joining: bool, records: list[GroupRecord]) -> ConsumerGroup:
        """Return the group, or a new one, which its first record creates. A new group replaces an empty classic
        group."""
        group = self._table.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is not None and not (is_joining and group.is_empty):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if group is None and not is_joining:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if isinstance(group, ClassicGroup):
            records += group.tombstones()
        return ConsumerGroup(group_id)

    def _member(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: messages.ConsumerGroupHeartbeatRequest,
        records: list[GroupRecord],
    ) -> ConsumerMember:
        """Return the member that sends the heartbeat, without its changes, or a new member."""
        is_joining = request.member_epoch == 0
        if request.instance_id is None:
            if is_joining:
                return group.members.get(member_id) or ConsumerMember(member_id)
            known = group.member(member_id)
            _check_epoch(known, request.member_epoch, request.topic_partitions)
            return known
        static = group.static_member(request.instance_id)
        if not is_joining:
            static = _fenced(group, static, member_id, request.instance_id)
            _check_epoch(static, request.member_epoch, request.topic_partitions)
            return static
        if static is None:
            return group.members.get(member_id) or ConsumerMember(member_id)
        if static.epoch != STATIC_LEAVE_EPOCH:
            text = (
                f"Static member {member_id} with instance id {request.instance_id} cannot join the group because the "
                f"instance id is owned by {static.member_id} member."
            )
            raise ApiError(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        replaced = replace(static, member_id=member_id, epoch=0, previous_epoch=0)
        records += member_tombstones(group.group_id, static.member_id)
        records.append(replaced.subscription_record(group.group_id))
        target = group.target.get(static.member_id, {})
        records.append(target_record(group.group_id, member_id, target))
        records.append(replaced.current_record(group.group_id))
        self._cancel_timers(group.group_id, static.member_id)
        # The rest of the heartbeat reads the group in the state after these records.
        self._table.commit(group.group_id, records)
        records.clear()
        return replaced

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
        )

    # Epochs and targets

    def _next_epoch(
        self,
        context: RequestContext,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        members: Mapping[str, ConsumerMember],
        records: list[GroupRecord],
    ) -> int:
        """Return the epoch of the group. If subscriptions, topics or the assignor have changed, it is the next epoch,
        whose record is appended to `records`."""
        assignors = [preferred_assignor(found.values()) for found in (group.members, members)]
        needs_epoch = updated.topics != member.topics or assignors[0] != assignors[1]
        if updated.pattern != member.pattern:
            records += self._drop_patterns(group, members)
            needs_epoch = needs_epoch or updated.pattern in group.patterns or member.pattern in group.patterns
        if any(one.pattern for one in members.values()):
            names = {topic.name for topic in self._table.host.topics}
            if updated.pattern not in {"", *group.patterns} or names != group.matched_names:
                self._table.host.clock.call_later(0, lambda: self.resolve_patterns(group.group_id, context))
        known_hash = self._metadata_hash(group, members.values())
        if not needs_epoch and known_hash == group.metadata_hash:
            return group.epoch
        records.append(group_epoch_record(group.group_id, group.epoch + 1, known_hash))
        return group.epoch + 1

    def _metadata_hash(self, group: ConsumerGroup, members: Iterable[ConsumerMember]) -> int:
        names = frozenset().union(*(group.topics_of(one) for one in members))
        found = ((name, self._table.host.topics.get(name)) for name in names)
        return metadata_hash({name: len(topic.partitions) for name, topic in found if topic is not None})

    def _assign(
        self, group: ConsumerGroup, epoch: int, members: Mapping[str, ConsumerMember], records: list[GroupRecord]
    ) -> dict[str, Target]:
        """Return the new target assignment, and append the records of its changes to `records`."""
        topics = {name: self._table.host.topics.get(name) for one in members.values() for name in group.topics_of(one)}
        ids = {name: topic.id for name, topic in topics.items() if topic is not None}
        counts = {topic.id: len(topic.partitions) for topic in topics.values() if topic is not None}
        assigned = [
            AssignedMember(
                one.member_id,
                one.instance_id,
                frozenset(ids[topic] for topic in group.topics_of(one) if topic in ids),
                group.target.get(one.member_id, {}),
            )
            for one in members.values()
        ]
        targets = SERVER_ASSIGNORS[preferred_assignor(members.values())](assigned, counts)
        for member_id in hash_map_order(targets):
            target = targets[member_id]
            if group.target.get(member_id) != target:
                records.append(target_record(group.group_id, member_id, target))
        records.append(target_epoch_record(group.group_id, epoch, self._table.now_ms()))
        return targets

    # Expressions

    def resolve_patterns(self, group_id: str, context: RequestContext) -> None:
        """Match the regular expressions of a group with the topics, and begin an epoch if the result has changed.

        As in Kafka, only topics match that the client of the latest heartbeat may describe.
        """
        group = self._table.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return
        names = frozenset(topic.name for topic in self._table.host.topics)
        now_ms = self._table.now_ms()
        records = [
            pattern_record(group_id, pattern, found, now_ms)
            for pattern in sorted({member.pattern for member in group.members.values()} - {""})
            for found in [_described(context, matching_topics(pattern, names))]
            if group.patterns.get(pattern) != frozenset(found)
        ]
        before = {member_id: group.topics_of(member) for member_id, member in group.members.items()}
        self._table.commit(group_id, records)
        group.matched_names = names  # not before: after a failed write, the next heartbeat tries again
        if before != {member_id: group.topics_of(member) for member_id, member in group.members.items()}:
            known_hash = self._metadata_hash(group, group.members.values())
            self._table.commit(group_id, [group_epoch_record(group_id, group.epoch + 1, known_hash)])

    def _drop_patterns(self, group: ConsumerGroup, members: Mapping[str, ConsumerMember]) -> list[GroupRecord]:
        used = {member.pattern for member in members.values()}
        return [pattern_tombstone(group.group_id, pattern) for pattern in sorted(set(group.patterns) - used)]

    # Leaving

    def _leave(self, request: messages.ConsumerGroupHeartbeatRequest) -> messages.ConsumerGroupHeartbeatResponse:
        group = self._table.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            static = group.static_member(request.instance_id)
            member = _fenced(group, static, request.member_id, request.instance_id)
        if request.instance_id is not None and request.member_epoch == STATIC_LEAVE_EPOCH:
            away = replace(member, epoch=STATIC_LEAVE_EPOCH, revoking={})
            self._table.commit(group.group_id, [away.current_record(group.group_id)])
        else:
            self._remove(group, member)
        return messages.ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

    def _remove(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Remove a member, and begin an epoch without it."""
        left = {key: one for key, one in group.members.items() if key != member.member_id}
        records = member_tombstones(group.group_id, member.member_id)
        records += self._drop_patterns(group, left)
        known_hash = self._metadata_hash(group, left.values())
        records.append(group_epoch_record(group.group_id, group.epoch + 1, known_hash))
        if not left:  # nothing is left to assign (Kafka 4.4)
            records.append(target_epoch_record(group.group_id, group.epoch + 1, 0))
        self._cancel_timers(group.group_id, member.member_id)
        self._table.commit(group.group_id, records)

    # Timers

    def start_sessions(self, group: ConsumerGroup) -> None:
        """Start the sessions of the members of a group that was read from the log."""
        for member in group.members.values():
            self._start_timers(group.group_id, member, has_moved=True)

    def _start_timers(self, group_id: str, member: ConsumerMember, *, has_moved: bool) -> None:
        member_id, epoch = member.member_id, member.epoch

        def fence(expected_epoch: int | None = None) -> None:
            group = self._table.groups.get(group_id)
            known = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
            if isinstance(group, ConsumerGroup) and known is not None and expected_epoch in (None, known.epoch):
                self._remove(group, known)

        timeout = self._table.group_setting(group_id, "consumer.session.timeout.ms")
        self._table.start_timer(("session", group_id, member_id), timeout, fence)
        if not has_moved:
            return
        key = ("rebalance", group_id, member_id)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            self._table.start_timer(key, member.rebalance_timeout_ms, lambda: fence(epoch))
        else:
            self._table.cancel_timer(key)

    def _cancel_timers(self, group_id: str, member_id: str) -> None:
        self._table.cancel_timer(("session", group_id, member_id))
        self._table.cancel_timer(("rebalance", group_id, member_id))


def _partitions(member: ConsumerMember) -> dict[object, frozenset[int]]:
    return {topic_id: frozenset(epochs) for topic_id, epochs in member.assigned.items()}


def _fenced(group: ConsumerGroup, static: ConsumerMember | None, member_id: str, instance_id: str) -> ConsumerMember:
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
