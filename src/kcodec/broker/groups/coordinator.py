# SPDX-License-Identifier: Apache-2.0
"""The group coordinator: its APIs, the replay of its log, and the requests of tools about groups."""

from __future__ import annotations

from typing import Any

from kcodec.broker.api import Api, RequestContext
from kcodec.broker.groups.classic_group import ClassicGroup, ClassicState
from kcodec.broker.groups.classic_members import ClassicMembers
from kcodec.broker.groups.classic_protocol import ClassicProtocol
from kcodec.broker.groups.consumer_group import ConsumerGroup, ConsumerMember, GroupRecordKey
from kcodec.broker.groups.consumer_protocol import ConsumerProtocol
from kcodec.broker.groups.consumer_rebalance import ConsumerRebalance, preferred_assignor
from kcodec.broker.groups.group_log import GroupRecord, Target
from kcodec.broker.groups.offset_requests import OffsetRequests
from kcodec.broker.groups.offset_store import OffsetStore
from kcodec.broker.groups.table import Group, GroupTable
from kcodec.broker.internal_topics import GroupHost, InternalRecord, TransactionMarker
from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.log.internal.records import COORDINATOR_RECORDS, decode_coordinator_record
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages import group_records as records
from kcodec.protocol.messages.records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from kcodec.protocol.schema import CoordinatorKey, CoordinatorValue

#: All operations that a group has, as bits: there is no authorizer.
GROUP_OPERATIONS = 3400
# The protocol of a member in a ConsumerGroupDescribe response.
MEMBER_OF_CLASSIC_PROTOCOL, MEMBER_OF_CONSUMER_PROTOCOL = 0, 1


class GroupCoordinator:
    """Groups of the classic and of the consumer protocol, and committed offsets, without I/O."""

    def __init__(self, host: GroupHost) -> None:
        self._host = host
        self._table = GroupTable(host)
        self._table.apply = self._apply
        self._store = OffsetStore()
        self._rebalance = ConsumerRebalance(self._table)
        self._consumer = ConsumerProtocol(self._table, self._rebalance)
        self._classic = ClassicProtocol(self._table, ClassicMembers(self._table, self._rebalance))
        self._rebalance.adopt = self._classic.adopt
        self.offsets = OffsetRequests(self._table, self._store, self._classic.member_is_alive)
        self._schedule_expiry()

    def apis(self) -> list[Api]:
        """Return the APIs with their versions and handlers."""
        classic, consumer, offsets = self._classic, self._consumer, self.offsets
        return [
            Api(messages.JoinGroupRequest, (0, 9), classic.join),
            Api(messages.SyncGroupRequest, (0, 5), classic.sync),
            Api(messages.HeartbeatRequest, (0, 4), lambda context, request: classic.heartbeat(request)),
            Api(messages.LeaveGroupRequest, (0, 5), classic.leave),
            Api(messages.OffsetCommitRequest, (2, 10), offsets.commit),
            Api(messages.OffsetFetchRequest, (1, 10), offsets.fetch),
            Api(messages.OffsetDeleteRequest, (0, 0), lambda context, request: offsets.delete(request)),
            Api(messages.DescribeGroupsRequest, (0, 6), self._describe_groups),
            Api(messages.ListGroupsRequest, (0, 5), self._list_groups),
            Api(messages.DeleteGroupsRequest, (0, 2), self._delete_groups),
            Api(messages.ConsumerGroupHeartbeatRequest, (0, 1), consumer.heartbeat),
            Api(messages.ConsumerGroupDescribeRequest, (0, 1), self._describe_consumer_groups),
        ]

    # Transactions

    def transaction_completed(self, partition: int, producer_id: int, is_commit: bool) -> None:
        """Apply or drop the pending offsets of a producer, once its marker is in this partition."""
        self._store.end_transaction(
            producer_id, is_commit=is_commit, concerns=lambda group_id: self._host.partition_of(group_id) == partition
        )

    # Log

    def replay(self, partition: int, entry: InternalRecord | TransactionMarker) -> None:
        """Apply a record or marker of a partition of the log, in the order of offsets. Skip records of unknown
        types."""
        if isinstance(entry, TransactionMarker):
            self.transaction_completed(partition, entry.producer_id, entry.is_commit)
            return
        found = decode_coordinator_record(COORDINATOR_RECORDS[CONSUMER_OFFSETS_TOPIC], entry.key, entry.value)
        if found.error is None and isinstance(found.key, CoordinatorKey):
            value = found.value if isinstance(found.value, CoordinatorValue) else None
            if isinstance(found.key, GroupMetadataKey):
                self._replay_classic(found.key.group, value)
            else:
                self._apply(GroupRecord(found.key, value), entry.offset, entry.producer_id)

    def loaded(self) -> None:
        """Start the sessions of the members that the replay of the log has found."""
        for group in list(self._table.groups.values()):
            if isinstance(group, ClassicGroup):
                self._classic.start_sessions(group)
            else:
                self._rebalance.start_sessions(group)

    def unload(self) -> None:
        """Forget all state. Waiting requests get NOT_COORDINATOR."""
        for group in list(self._table.groups.values()):
            if isinstance(group, ClassicGroup):
                group.abandon(ErrorCode.NOT_COORDINATOR)
        self._table.forget()
        self._store.forget()

    def _replay_classic(self, group_id: str, value: CoordinatorValue | None) -> None:
        if isinstance(value, GroupMetadataValue):
            self._table.groups[group_id] = ClassicGroup.from_record(group_id, value)
        elif isinstance(self._table.groups.get(group_id), ClassicGroup):
            del self._table.groups[group_id]

    def _apply(self, record: GroupRecord, offset: int, producer_id: int) -> None:
        """Apply a record to the state in memory. Ignore records of classic groups with members, whose state in memory
        is newer."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            self._store.apply(key, value if isinstance(value, OffsetCommitValue) else None, offset, producer_id)
            if value is not None and key.group not in self._table.groups:
                self._table.create_classic(key.group)
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                self._replay_classic(key.group, None)
        elif isinstance(key, GroupRecordKey):
            self._apply_consumer(key, value)

    def _apply_consumer(self, key: GroupRecordKey, value: Any) -> None:
        """Apply a record of a group of the consumer protocol. The class of `value` depends on the key; None is a
        tombstone."""
        group_id = key.group_id
        group = self._table.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None or (group is not None and not group.is_empty):
                return
            group = self._table.groups[group_id] = ConsumerGroup(group_id)
        if isinstance(key, records.ConsumerGroupMetadataKey) and value is None:
            del self._table.groups[group_id]
        else:
            group.apply(key, value)

    # Expiry

    def _schedule_expiry(self) -> None:
        def expire() -> None:
            self.offsets.expire()
            self._schedule_expiry()

        self._host.clock.call_later(self._host.settings.offsets_retention_check_interval_ms, expire)

    # Tools

    def _describe_groups(
        self, context: RequestContext, request: messages.DescribeGroupsRequest
    ) -> messages.DescribeGroupsResponse:
        found = []
        for group_id in request.groups:
            group = self._table.groups.get(group_id)
            if isinstance(group, ClassicGroup):
                described = group.describe()
                if request.include_authorized_operations:
                    described.authorized_operations = GROUP_OPERATIONS
                found.append(described)
                continue
            missing = messages.DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD.value)
            if context.api_version >= 6:
                missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                missing.error_message = (
                    f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
                )
            found.append(missing)
        return messages.DescribeGroupsResponse(groups=found)

    def _list_groups(self, context: RequestContext, request: messages.ListGroupsRequest) -> messages.ListGroupsResponse:
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        listed = []
        for group_id, group in self._table.groups.items():
            listed_group = _listed(group_id, group)
            is_wanted = not states or listed_group.group_state.lower() in states
            if is_wanted and (not types or listed_group.group_type in types):
                listed.append(listed_group)
        return messages.ListGroupsResponse(groups=listed)

    def _delete_groups(
        self, context: RequestContext, request: messages.DeleteGroupsRequest
    ) -> messages.DeleteGroupsResponse:
        results = []
        for group_id in request.groups_names:
            group = self._table.groups.get(group_id)
            code = ErrorCode.NONE
            if group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                gone = self._store.tombstones(group_id, self._store.all_partitions(group_id))
                self._table.commit(group_id, [*gone, *group.tombstones()])
            results.append(messages.DeletableGroupResult(group_id=group_id, error_code=code))
        return messages.DeleteGroupsResponse(results=results)

    def _describe_consumer_groups(
        self, context: RequestContext, request: messages.ConsumerGroupDescribeRequest
    ) -> messages.ConsumerGroupDescribeResponse:
        groups = [self._described(group_id) for group_id in request.group_ids]
        for group in groups if request.include_authorized_operations else ():
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
        return messages.ConsumerGroupDescribeResponse(groups=groups)

    def _described(self, group_id: str) -> messages.DescribedConsumerGroup:
        group = self._table.groups.get(group_id)
        if not group_id or not isinstance(group, ConsumerGroup):
            code = ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
            why = "not found" if group is None else "is not a consumer group"
            return messages.DescribedConsumerGroup(
                group_id=group_id, error_code=code, error_message=f"Group {group_id} {why}."
            )
        return messages.DescribedConsumerGroup(
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=preferred_assignor(group.members.values()),
            members=[self._described_member(group, member) for member in group.members.values()],
        )

    def _described_member(self, group: ConsumerGroup, member: ConsumerMember) -> messages.DescribedConsumerGroupMember:
        owned = {
            topic_id: frozenset((*member.assigned.get(topic_id, ()), *member.revoking.get(topic_id, ())))
            for topic_id in (*member.assigned, *member.revoking)
        }
        return messages.DescribedConsumerGroupMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            subscribed_topic_regex=member.pattern,
            assignment=self._described_assignment(owned),
            target_assignment=self._described_assignment(group.target.get(member.member_id, {})),
            member_type=MEMBER_OF_CONSUMER_PROTOCOL if member.classic is None else MEMBER_OF_CLASSIC_PROTOCOL,
        )

    def _described_assignment(self, target: Target) -> messages.DescribedAssignment:
        found = ((self._host.topics.by_id(topic_id), numbers) for topic_id, numbers in target.items())
        return messages.DescribedAssignment(
            topic_partitions=[
                messages.DescribedTopicPartitions(topic_id=topic.id, topic_name=topic.name, partitions=sorted(numbers))
                for topic, numbers in found
                if topic is not None
            ]
        )


def _listed(group_id: str, group: Group) -> messages.ListedGroup:
    kinds = {"protocol_type": "consumer", "group_type": "consumer"}
    if isinstance(group, ClassicGroup):
        kinds = {"protocol_type": group.protocol_type or "", "group_type": "classic"}
    return messages.ListedGroup(group_id=group_id, group_state=group.state_name, **kinds)
