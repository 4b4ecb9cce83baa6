# SPDX-License-Identifier: Apache-2.0
"""The state of a group of the consumer protocol (KIP-848), as its records describe it (Kafka: ConsumerGroup).

Every change is a record. `apply_*` applies it, both after a request and when the log is read again. The state in memory
therefore never differs from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any
from uuid import UUID

from kcodec.broker.api import ApiError
from kcodec.broker.groups.classic_group import CONSUMER_PROTOCOL_TYPE
from kcodec.broker.groups.group_log import (
    CommitRequest,
    GroupRecord,
    Owned,
    Target,
    group_epoch_record,
    pattern_tombstone,
    target_epoch_record,
    target_record,
)
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages import group_records as records
from kcodec.protocol.schema import CoordinatorKey

LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
#: The epoch of a new group and of its empty target assignment; the first assignment has the next one (KIP-1263).
INITIAL_GROUP_EPOCH = 1
#: The keys of the records that describe a group.
GroupRecordKey = records.GroupKey | records.GroupMemberKey | records.ConsumerGroupRegularExpressionKey


class MemberState(IntEnum):
    """The state of a member on the way to its target assignment, numbered as in the log."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """The data that only members of the classic protocol have.

    protocols: The assignors that the member supports, in its order, with its subscription for each.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]

    @property
    def protocol(self) -> str:
        """The assignor that responses name. It has no effect, because the coordinator assigns the partitions."""
        return self.protocols[0][0]

    @property
    def subscription(self) -> bytes:
        """The subscription that the coordinator reads."""
        return self.protocols[0][1]

    @classmethod
    def from_record(cls, value: records.ClassicMemberMetadata) -> ClassicSide:
        """Return what a record of the log contains."""
        protocols = tuple((one.name, bytes(one.metadata)) for one in value.supported_protocols)
        return cls(value.session_timeout_ms, protocols)

    def record(self) -> records.ClassicMemberMetadata:
        """Return what the record of the member contains."""
        protocols = [records.ClassicMemberProtocol(name=name, metadata=content) for name, content in self.protocols]
        return records.ClassicMemberMetadata(session_timeout_ms=self.session_timeout_ms, supported_protocols=protocols)


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member: its subscription, and the partitions that it owns.

    assigned, revoking: Partitions by topic id, each with the member epoch since which the member owns it.
    classic:            None unless the member uses the classic protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)
    classic: ClassicSide | None = None

    @property
    def stale_code(self) -> ErrorCode:
        """The error code for another epoch than that of the member."""
        return ErrorCode.STALE_MEMBER_EPOCH if self.classic is None else ErrorCode.ILLEGAL_GENERATION

    def away(self) -> ConsumerMember:
        """Return the static member after it has left for a short time."""
        assigned = {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in self.assigned.items()}
        return replace(self, epoch=STATIC_LEAVE_EPOCH, assigned=assigned, revoking={})

    def subscription_record(self, group_id: str) -> GroupRecord:
        """Return the record of the member's subscription."""
        key = records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id)
        value = records.ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topics),
            subscribed_topic_regex=self.pattern,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=None if self.classic is None else self.classic.record(),
        )
        return GroupRecord(key, value)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has reached the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """Return the member epoch since which the member owns a partition; None if it does not own the partition."""
        for owned in (self.assigned, self.revoking):
            if partition in owned.get(topic_id, {}):
                return owned[topic_id][partition]
        return None

    def current_record(self, group_id: str) -> GroupRecord:
        """Return the record of the partitions that the member owns."""
        key = records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id)
        value = records.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_owned_topics(self.assigned),
            partitions_pending_revocation=_owned_topics(self.revoking),
        )
        return GroupRecord(key, value)


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """A group of the consumer protocol.

    target:   The target assignment of each member.
    patterns: The regular expressions of subscriptions, with the topics that match.
    """

    group_id: str
    epoch: int = INITIAL_GROUP_EPOCH
    metadata_hash: int = 0
    assignment_epoch: int = INITIAL_GROUP_EPOCH
    #: When the target assignment was computed, in ms.
    assigned_ms: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    target: dict[str, Target] = field(default_factory=dict)
    patterns: dict[str, frozenset[str]] = field(default_factory=dict)
    #: The names of all topics when the patterns were last matched.
    matched_names: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    def state_name(self) -> str:
        """The state, as Kafka's tools print it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        is_reconciled = all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values())
        return "Stable" if is_reconciled else "Reconciling"

    def member(self, member_id: str) -> ConsumerMember:
        """Return a member. Raise ApiError (UNKNOWN_MEMBER_ID)."""
        found = self.members.get(member_id)
        if found is None:
            text = f"Member {member_id} is not a member of group {self.group_id}."
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        return found

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the member with a group instance id."""
        return None if instance_id is None else self.members.get(self.static_members.get(instance_id, ""))

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics that a member subscribes to, by name and by its regular expression."""
        return member.topics | self.patterns.get(member.pattern, frozenset())

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic."""
        return any(topic in self.topics_of(member) for member in self.members.values())

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a classic member that supports these assignors can join. At least one of them must be common
        to all classic members."""
        sides = [dict(one.classic.protocols) for one in self.members.values() if one.classic is not None]
        is_common = any(all(name in side for side in sides) for name in names)
        return protocol_type == CONSUMER_PROTOCOL_TYPE and is_common

    def awaits_release(self, member: ConsumerMember) -> bool:
        """Return whether another member still owns a partition of the target assignment of this member."""
        taken = self.taken_partitions(member.member_id)
        return any(
            (topic_id, number) in taken
            for topic_id, numbers in self.target.get(member.member_id, {}).items()
            for number in numbers - member.assigned.get(topic_id, {}).keys()
        )

    def taken_partitions(self, member_id: str) -> set[tuple[UUID, int]]:
        """Return the partitions that other members than this one own or have not revoked yet."""
        return {
            (topic_id, partition)
            for member in self.members.values()
            if member.member_id != member_id
            for owned in (member.assigned, member.revoking)
            for topic_id, epochs in owned.items()
            for partition in epochs
        }

    def converted_records(self) -> list[GroupRecord]:
        """Return the records of a group that was converted from a classic one."""
        members = self.members.values()
        return [
            *(member.subscription_record(self.group_id) for member in members),
            group_epoch_record(self.group_id, self.epoch, self.metadata_hash),
            *(target_record(self.group_id, member.member_id, self.target[member.member_id]) for member in members),
            target_epoch_record(self.group_id, self.assignment_epoch, self.assigned_ms),
            *(member.current_record(self.group_id) for member in members),
        ]

    def tombstones(self) -> list[GroupRecord]:
        """Return the records that remove the group."""
        keys = [{"group_id": self.group_id, "member_id": member_id} for member_id in self.members]
        return [
            *(GroupRecord(records.ConsumerGroupCurrentMemberAssignmentKey(**key)) for key in keys),
            *(GroupRecord(records.ConsumerGroupTargetAssignmentMemberKey(**key)) for key in keys),
            GroupRecord(records.ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id)),
            *(GroupRecord(records.ConsumerGroupMemberMetadataKey(**key)) for key in keys),
            *(pattern_tombstone(self.group_id, pattern) for pattern in sorted(self.patterns)),
            # Kafka 4.1 and later write no value with this key, but still write the tombstone
            GroupRecord(records.ConsumerGroupPartitionMetadataKey(group_id=self.group_id)),
            GroupRecord(records.ConsumerGroupMetadataKey(group_id=self.group_id)),
        ]

    def validate_commit(
        self, request: CommitRequest, *, is_transactional: bool, api_version: int
    ) -> ConsumerMember | None:
        """Raise ApiError unless a member may commit offsets. If its epoch is old, return the member, whose partitions
        the caller must check one by one. Otherwise return None."""
        member_id, epoch = request.member_id, request.generation_id_or_member_epoch
        is_anonymous = not member_id and request.group_instance_id is None
        if epoch < 0 and (not self.members or (is_transactional and is_anonymous)):
            return None
        member = self.member(member_id)
        if not is_transactional and member.classic is None and api_version < 9:
            text = "OffsetCommit version 9 or above must be used by members using the modern group protocol"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
        if epoch == member.epoch:
            return None
        if epoch > member.epoch:
            raise ApiError(member.stale_code, stale_epoch_text(epoch, member.epoch))
        return member

    def validate_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise ApiError unless this member may read the offsets. Requests of tools name no member."""
        if member_id is None and epoch < 0:
            return
        member = self.member(member_id or "")
        if member.epoch != epoch:
            raise ApiError(member.stale_code, stale_epoch_text(epoch, member.epoch))

    # Records

    def copy(self) -> ConsumerGroup:
        """Return a copy, to which records can be applied before they are in the log."""
        return replace(
            self,
            members=dict(self.members),
            static_members=dict(self.static_members),
            target=dict(self.target),
            patterns=dict(self.patterns),
        )

    def apply(self, key: CoordinatorKey, value: Any) -> None:
        """Apply a record, unless it is the tombstone of the group. The class of `value` depends on the key; None is a
        tombstone."""
        match key:
            case records.ConsumerGroupMetadataKey():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case records.ConsumerGroupMemberMetadataKey():
                self.apply_subscription(key.member_id, value)
            case records.ConsumerGroupTargetAssignmentMetadataKey() if value is None:
                self.assignment_epoch = 0
            case records.ConsumerGroupTargetAssignmentMetadataKey():
                self.assignment_epoch, self.assigned_ms = value.assignment_epoch, value.assignment_timestamp
            case records.ConsumerGroupTargetAssignmentMemberKey():
                self.apply_target(key.member_id, value)
            case records.ConsumerGroupCurrentMemberAssignmentKey():
                self.apply_current(key.member_id, value)
            case records.ConsumerGroupRegularExpressionKey():
                self.apply_pattern(key.regular_expression, value)

    def apply_subscription(self, member_id: str, value: records.ConsumerGroupMemberMetadataValue | None) -> None:
        """Apply the record of a member's subscription, or its tombstone."""
        known = self.members.get(member_id)
        if value is None:
            self.members.pop(member_id, None)
            if known is not None and self.static_members.get(known.instance_id or "") == member_id:
                del self.static_members[known.instance_id or ""]
            return
        self.members[member_id] = replace(
            known or ConsumerMember(member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            pattern=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=None
            if value.classic_member_metadata is None
            else ClassicSide.from_record(value.classic_member_metadata),
        )
        if value.instance_id is not None:
            self.static_members[value.instance_id] = member_id

    def apply_target(self, member_id: str, value: records.ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        """Apply the record of a member's target assignment, or its tombstone."""
        if value is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = {one.topic_id: frozenset(one.partitions) for one in value.topic_partitions}

    def apply_current(self, member_id: str, value: records.ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        """Apply the record of the partitions that a member owns. After a tombstone, the member owns none."""
        known = self.members.get(member_id)
        if value is None:
            if known is not None:
                empty: dict[str, Any] = {"assigned": {}, "revoking": {}, "state": MemberState.STABLE}
                self.members[member_id] = replace(known, epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, **empty)
            return
        self.members[member_id] = replace(
            known or ConsumerMember(member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if value.state in set(MemberState) else MemberState.UNKNOWN,
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            revoking=_owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def apply_pattern(self, pattern: str, value: records.ConsumerGroupRegularExpressionValue | None) -> None:
        """Apply the record of the topics that match a regular expression, or its tombstone."""
        if value is None:
            self.patterns.pop(pattern, None)
        else:
            self.patterns[pattern] = frozenset(value.topics)


def stale_epoch_text(epoch: int, known: int) -> str:
    """Return the message of STALE_MEMBER_EPOCH."""
    return f"The received member epoch {epoch} does not match the expected member epoch {known}."


def _owned_topics(owned: Owned) -> list[records.OwnedTopic]:
    return [
        records.OwnedTopic(
            topic_id=topic, partitions=sorted(epochs), assignment_epochs=[epochs[number] for number in sorted(epochs)]
        )
        for topic, epochs in owned.items()
    ]


def _owned(topics: list[records.OwnedTopic], default_epoch: int) -> dict[UUID, Mapping[int, int]]:
    """Return partitions with their epochs. Records of Kafka 4.0 to 4.2 contain no epochs."""
    owned: dict[UUID, Mapping[int, int]] = {}
    for one in topics:
        epochs = one.assignment_epochs
        known = epochs if epochs and len(epochs) == len(one.partitions) else [default_epoch] * len(one.partitions)
        owned[one.topic_id] = dict(zip(one.partitions, known, strict=True))
    return owned
