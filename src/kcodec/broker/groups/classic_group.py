# SPDX-License-Identifier: Apache-2.0
"""The state of a group of the classic protocol, without requests and timers (Kafka: ClassicGroup)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from kcodec.broker.api import ApiError, Later
from kcodec.broker.groups.group_log import CommitRequest, GroupRecord
from kcodec.errors import DecodeError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"
#: Version from which JoinGroup needs a known member id (KIP-394).
MEMBER_ID_VERSION = 4
NO_GENERATION = -1
_VERSION_BYTES = 2


class ClassicState(Enum):
    """The states, as Kafka's tools print them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, eq=False)
class ClassicGroupMember:
    """A member of a classic group.

    protocols: The assignors that the member supports, in its order, with its subscription for each.
    joining, syncing: The requests of the member that wait for their responses.
    is_new:    Whether no join of the member has completed yet.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: dict[str, bytes]
    assignment: bytes = b""
    joining: Later | None = None
    syncing: Later | None = None
    is_new: bool = False

    def matches(self, request: messages.JoinGroupRequest) -> bool:
        """Return whether the request repeats the member's protocols."""
        return list(self.protocols.items()) == list(protocols_of(request).items())

    def update(self, request: messages.JoinGroupRequest, joining: Later) -> None:
        """Set subscription and timeouts from a JoinGroup request."""
        self.protocols = protocols_of(request)
        self.rebalance_timeout_ms = rebalance_timeout_of(request)
        self.session_timeout_ms = request.session_timeout_ms
        self.joining = joining

    def respond_join(self, response: messages.JoinGroupResponse) -> None:
        """Respond to the waiting JoinGroup, if there is one."""
        if self.joining is not None:
            waiting, self.joining = self.joining, None
            waiting.respond(response)

    def respond_sync(self, response: messages.SyncGroupResponse) -> bool:
        """Respond to the waiting SyncGroup. Return whether there was one."""
        if self.syncing is None:
            return False
        waiting, self.syncing = self.syncing, None
        waiting.respond(response)
        return True


def protocols_of(request: messages.JoinGroupRequest) -> dict[str, bytes]:
    """Return the assignors of a JoinGroup request with their subscriptions, in the member's order."""
    return {protocol.name: bytes(protocol.metadata) for protocol in request.protocols}


def rebalance_timeout_of(request: messages.JoinGroupRequest) -> int:
    """Return the rebalance timeout of a JoinGroup request. Version 0 has only the session timeout."""
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """A group of the classic protocol.

    pending_joins:   Member ids that were assigned (MEMBER_ID_REQUIRED), and whose members have not joined yet.
    pending_syncs:   Members of this generation that have not sent SyncGroup yet.
    state_timestamp: Time of the last change of the state, in ms since 1970.
    """

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    previous_state: ClassicState = ClassicState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, ClassicGroupMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_joins: set[str] = field(default_factory=set)
    pending_syncs: set[str] = field(default_factory=set)
    subscribed_topics: frozenset[str] | None = None
    state_timestamp: int | None = None
    new_member_added: bool = False

    @classmethod
    def from_record(cls, group_id: str, value: messages.GroupMetadataValue) -> ClassicGroup:
        """Return the group that a record of the log describes."""
        group = cls(group_id, ClassicState.STABLE if value.members else ClassicState.EMPTY)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.state_timestamp = None if value.current_state_timestamp < 0 else value.current_state_timestamp
        for one in value.members:
            rebalance_timeout = one.session_timeout if one.rebalance_timeout < 0 else one.rebalance_timeout
            member = ClassicGroupMember(
                one.member_id,
                one.group_instance_id,
                one.client_id,
                one.client_host,
                rebalance_timeout,
                one.session_timeout,
                value.protocol_type,
                {value.protocol or "": bytes(one.subscription)},
                bytes(one.assignment),
            )
            group.add(member)
        group.leader = value.leader
        group.subscribed_topics = group.compute_subscribed_topics()
        return group

    @property
    def state_name(self) -> str:
        """The state, as Kafka's tools print it."""
        return self.state.value

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return self.state is ClassicState.EMPTY

    @property
    def is_consumer_group(self) -> bool:
        """Whether the members are consumers, whose subscriptions the coordinator can read."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def has_all_joined(self) -> bool:
        """Whether every known member waits for the next generation."""
        return not self.pending_joins and all(member.joining is not None for member in self.members.values())

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin now."""
        return self.state in (ClassicState.EMPTY, ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def transition_to(self, state: ClassicState, now_ms: int) -> None:
        """Enter a state."""
        self.previous_state, self.state, self.state_timestamp = self.state, state, now_ms

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a member of this type that supports these assignors can join."""
        offered = set(names)
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and bool(offered)
        is_common = bool(offered & self.common_protocols() if self.members else offered)
        return self.protocol_type == protocol_type and is_common

    def common_protocols(self) -> set[str]:
        """Return the assignors that all members support."""
        sets = [set(member.protocols) for member in self.members.values()]
        return set.intersection(*sets) if sets else set()

    def select_protocol(self) -> str:
        """Return the assignor with the most votes. Each member votes for its first assignor that all members support.
        If several assignors have the most votes, return the first one by name (Kafka: by hash)."""
        common = self.common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name in member.protocols if name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name))

    def add(self, member: ClassicGroupMember) -> None:
        """Add a member. The first member sets the protocol type and becomes the leader."""
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type or None
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending_joins.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member, or a member id whose member has not joined yet."""
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def replace_static(self, old: ClassicGroupMember, new_member_id: str) -> ClassicGroupMember:
        """Give a static member a new member id. Requests with the old member id then get FENCED_INSTANCE_ID."""
        fenced = ErrorCode.FENCED_INSTANCE_ID
        old.respond_join(messages.JoinGroupResponse(error_code=fenced, member_id=old.member_id))
        old.respond_sync(messages.SyncGroupResponse(error_code=fenced))
        del self.members[old.member_id]
        if self.leader == old.member_id:
            self.leader = new_member_id
        old.member_id = new_member_id
        self.members[new_member_id] = old
        if old.instance_id is not None:
            self.static_members[old.instance_id] = new_member_id
        return old

    def abandon(self, code: ErrorCode) -> None:
        """Respond to all waiting requests with an error."""
        for member in self.members.values():
            member.respond_join(messages.JoinGroupResponse(error_code=code, member_id=member.member_id))
            member.respond_sync(messages.SyncGroupResponse(error_code=code))

    def elect_joined_leader(self) -> bool:
        """If the leader does not join, make a member that joins the leader. Return whether the group has a leader that
        joins."""
        if self.leader is None:
            return False
        if self.members[self.leader].joining is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.joining is not None), None)
        if joined is not None:
            self.leader = joined
        return joined is not None

    def start_generation(self, now_ms: int) -> None:
        """Begin the next generation with the present members."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.transition_to(ClassicState.COMPLETING_REBALANCE if self.members else ClassicState.EMPTY, now_ms)
        self.pending_syncs.clear()

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics of all subscriptions; None if a subscription cannot be read."""
        if not self.is_consumer_group:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                content = member.protocols[self.protocol or ""]
                topics.update(messages.ConsumerProtocolSubscription.decode_prefix(content, 0, _VERSION_BYTES)[0].topics)
        except (DecodeError, KeyError, ValueError):  # ValueError: a subscription without its two bytes of version
            return None
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic. Return True if a subscription of a consumer cannot be read."""
        return self.is_consumer_group if self.subscribed_topics is None else topic in self.subscribed_topics

    def validate_member(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """Return a member. Raise ApiError (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID)."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[member_id]

    def validate_commit(self, request: CommitRequest, *, is_transactional: bool) -> None:
        """Raise ApiError unless the member of this generation may commit offsets."""
        member_id, instance_id = request.member_id, request.group_instance_id
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.state is ClassicState.EMPTY:
            return
        if generation >= 0 or member_id or instance_id is not None:
            self.validate_member(member_id, instance_id)
            if generation != self.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        elif not is_transactional and self.state is not ClassicState.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not is_transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def joined_members(self) -> list[messages.JoinGroupResponseMember]:
        """Return the members with their subscriptions, for the leader."""
        return [
            messages.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.protocols[self.protocol or ""],
            )
            for member in self.members.values()
        ]

    def join_response(self, member_id: str) -> messages.JoinGroupResponse:
        """Return the response of a member that has joined the present generation."""
        return messages.JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader or "",
            member_id=member_id,
            members=self.joined_members() if member_id == self.leader else [],
        )

    def record(self, assignments: dict[str, bytes] | None = None) -> GroupRecord:
        """Return the record of the group. If assignments are passed, the record has these instead of those of the
        members."""
        members = [
            messages.GroupMemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.protocols[self.protocol or ""],
                assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        ]
        value = messages.GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=-1 if self.state_timestamp is None else self.state_timestamp,
            members=members,
        )
        return GroupRecord(messages.GroupMetadataKey(group=self.group_id), value, 3)

    def tombstones(self) -> list[GroupRecord]:
        """Return the records that remove the group. The group must be empty."""
        return [GroupRecord(messages.GroupMetadataKey(group=self.group_id))]

    def describe(self) -> messages.DescribedGroup:
        """Return the description. Subscriptions are included once the group is stable."""
        is_stable = self.state is ClassicState.STABLE
        return messages.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol or "") if is_stable else "",
            members=[
                messages.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.protocols[self.protocol or ""] if is_stable else b"",
                    member_assignment=member.assignment,
                )
                for member in self.members.values()
            ],
        )
