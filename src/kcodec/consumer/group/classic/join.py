# SPDX-License-Identifier: Apache-2.0
"""One round of a rebalance: JoinGroup, the assignment if this member leads, SyncGroup. The membership repeats it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kcodec.consumer.assignors import Assignor, GroupMember, Shares, make_assignors
from kcodec.consumer.group.classic.consumer_protocol import read_assignment, read_subscription
from kcodec.consumer.group.classic.heartbeats import Heartbeats
from kcodec.consumer.group.classic.member_state import ClassicMember, ClassicMemberState, Generation
from kcodec.consumer.group.classic.requests import GroupRequests
from kcodec.consumer.group.classic.topics import GroupTopics
from kcodec.consumer.group.dispositions import CLASSIC, JOIN_GROUP, GroupDisposition, disposition
from kcodec.errors import KcodecError, TransportError
from kcodec.flow import CancelledFlow, Flow, Task, join, spawn
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.protocol.messages.groups import JoinGroupResponse

log = logging.getLogger("kcodec.consumer")
CHANGED_PARTITIONS = "the partitions of the group's topics have changed"
RETRIED = frozenset({GroupDisposition.RETRY, GroupDisposition.FIND_COORDINATOR})


class JoinRounds:
    """The rounds of one member.

    owned:      The partitions that the member has from the group.
    failures:   Number of consecutive rounds that only led to a pause.
    restarts:   Number of consecutive rounds after which the member had to join again immediately.
    last_error: Error of the last round; None after a successful round.
    """

    def __init__(
        self,
        member: ClassicMember,
        requests: GroupRequests,
        topics: GroupTopics,
        heartbeats: Heartbeats,
        owned: Callable[[], frozenset[TopicPartition]],
    ) -> None:
        self.member = member
        self.requests = requests
        self.settings = requests.settings
        self.assignors: list[Assignor] = make_assignors(self.settings.partition_assignment_strategy)
        self.is_cooperative = all(assignor.is_cooperative for assignor in self.assignors)
        self.failures = self.restarts = 0
        self.last_error: BaseException | None = None
        self._topics = topics
        self._heartbeats = heartbeats
        self._owned = owned
        self._failing_since: float | None = None
        #: A JoinGroup without a member id that is under way.
        self._first_join: Task[JoinGroupResponse] | None = None

    def run(self) -> Flow[list[TopicPartition] | None]:
        """Return the assignment of SyncGroup, or None if another round is needed. Raise BrokerError or DecodeError for
        fatal errors, TransportError if there is no response."""
        member = self.member
        node = yield from self.requests.coordinator(self.settings.request_timeout)
        response = yield from self._join(node)
        if response is None:
            return None
        generation, shares = member.generation, {}
        if response.leader == response.member_id:
            shares = yield from self._lead(response)
        if not self._is_current(generation):
            return None
        reply = yield from self.requests.sync(node, generation, shares)
        self._failing_since = None
        if not self._is_current(generation):
            return None
        if reply.error_code:
            self._refused("SyncGroup", disposition(CLASSIC, reply.error_code), reply.error_code)
            return None
        self.requests.check_protocol_type("SyncGroup", reply.protocol_type)
        if reply.protocol_name is not None and reply.protocol_name != generation.protocol:
            doing = f"SyncGroup found assignor {reply.protocol_name!r} where JoinGroup chose {generation.protocol!r}"
            raise broker_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, doing, resource=self.requests.group_id)
        return read_assignment(bytes(reply.assignment))

    def _is_current(self, generation: Generation) -> bool:
        """Return whether this generation is still current, as a heartbeat may have ended it."""
        return self.member.generation == generation and self.member.state is ClassicMemberState.COMPLETING

    def _join(self, node: int) -> Flow[JoinGroupResponse | None]:
        """Send JoinGroup until a response has a generation; return None if another round is needed."""
        member = self.member
        for _ in range(2):
            subscription, reason = self._subscription()
            request = self.requests.join(node, member.generation, subscription, self.assignors, reason)
            if member.generation.member_id:
                response = yield from request
            else:
                response = yield from self._join_without_id(request)
            self._failing_since = None
            if member.state is not ClassicMemberState.PREPARING:
                return None
            if not response.error_code:
                self.requests.check_protocol_type("JoinGroup", response.protocol_type)
                member.generation = Generation(response.generation_id, response.member_id, response.protocol_name or "")
                member.state = ClassicMemberState.COMPLETING
                self._heartbeats.begin()
                return response
            action = disposition(JOIN_GROUP, response.error_code)
            if action is not GroupDisposition.JOIN_WITH_ID:
                self._refused("JoinGroup", action, response.error_code)
                return None
            member.generation = Generation(member_id=response.member_id)
        self.failures += 1  # twice another id: not without a pause
        return None

    def _join_without_id(self, request: Flow[JoinGroupResponse]) -> Flow[JoinGroupResponse]:
        """Send a JoinGroup without a member id. It continues after a cancelled round, for `new_member_id`."""
        task = self._first_join = yield from spawn(request, "joining without a member id")
        try:
            response = yield from join(task)
        except Exception:
            self._first_join = None
            raise
        self._first_join = None
        return response

    def new_member_id(self, timeout: float) -> Flow[str]:
        """Return the id that a coordinator gives to a member that leaves during its first JoinGroup. Return an empty
        string if no such request is under way. The coordinator waits for this member until it leaves, or for a session
        timeout (KIP-394). After an interruption, another call waits for the same response."""
        task, member_id = self._first_join, ""
        if task is not None:
            try:
                member_id = (yield from join(task, timeout)).member_id
            except (KcodecError, CancelledFlow, TimeoutError):
                task.cancel()
            self._first_join = None
        return member_id

    def _subscription(self) -> tuple[GroupMember, str]:
        """Return the member's data for the leader, and store the reason why it joins."""
        member = self.member
        member.state = ClassicMemberState.PREPARING
        if member.rejoin_reason is None:
            member.rejoin_reason = "the subscription has changed"
        member.joined_topics = self._topics.topics
        subscription = GroupMember(
            member_id=member.generation.member_id,
            topics=member.joined_topics,
            owned=tuple(self._owned()),
            generation=member.generation.id,
            rack_id=self.settings.client_rack or None,
        )
        return subscription, member.rejoin_reason

    def succeeded(self) -> None:
        """Note that the member is in the generation of the last round."""
        member = self.member
        member.state = ClassicMemberState.STABLE
        member.rejoin_reason = CHANGED_PARTITIONS if self._topics.has_changed() else None
        member.is_prepared = False
        self.failures = self.restarts = 0
        self.last_error = None
        generation = member.generation
        member.metadata = ConsumerGroupMetadata(
            self.requests.group_id, generation.id, generation.member_id, self.settings.group_instance_id
        )
        member.notify()

    def unreachable(self, error: TransportError) -> None:
        """Handle a missing coordinator or response: after the session timeout the partitions belong to other
        members."""
        log.info("group %s: %s", self.requests.group_id, error)
        self.requests.forget_coordinator()
        self.failures += 1
        self.last_error = error
        now = self.requests.cluster.clock()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if self.member.generation.is_member and now - self._failing_since >= self.settings.session_timeout:
            self.member.reset("the coordinator was not reachable for a session timeout", keeps_member_id=True)

    def _refused(self, api: str, action: GroupDisposition, code: int) -> None:
        """Handle an error code. Raise fatal errors."""
        error = self.requests.error(api, code)
        if action is GroupDisposition.FATAL:
            raise error
        log.info("%s (%s)", error, action.value)
        if action in RETRIED or self.restarts:
            self.last_error = error  # an order to join again, once, is part of a rebalance
        if action is GroupDisposition.FIND_COORDINATOR:
            self.requests.forget_coordinator()
        if action in RETRIED:
            self.failures += 1
        else:
            # The first time without a pause. If a coordinator always returns this error, the next requests follow after
            # a pause.
            self.failures += self.restarts > 0
            self.restarts += 1
        if action in (GroupDisposition.RESET_GENERATION, GroupDisposition.RESET_MEMBER):
            keeps_member_id = action is GroupDisposition.RESET_GENERATION
            self.member.reset(f"the response to {api} was {error.name}", keeps_member_id=keeps_member_id)

    def _lead(self, response: JoinGroupResponse) -> Flow[Shares]:
        """As the leader, assign the partitions. With skip_assignment, return nothing, because all members keep their
        partitions."""
        settings = self.settings
        members = [
            read_subscription(bytes(one.metadata), one.member_id, one.group_instance_id) for one in response.members
        ]
        topics = {topic for member in members for topic in member.topics}
        timeout = min(settings.request_timeout, settings.session_timeout / 2)
        there = yield from self._topics.watch_group(topics, timeout)
        if response.skip_assignment:
            return {}
        shares = self.assignor(response.protocol_name).assign(there, members)
        if self.is_cooperative:
            _check_cooperative(members, shares)
        log.info("group %s, generation %d: %s", self.requests.group_id, response.generation_id, shares)
        return shares

    def assignor(self, name: str | None) -> Assignor:
        """Return the assignor that the group has selected. Raise BrokerError if this member did not offer it."""
        for assignor in self.assignors:
            if assignor.name == name:
                return assignor
        doing = f"JoinGroup of group {self.requests.group_id!r} selected assignor {name!r}, which was not offered"
        raise broker_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, doing, resource=self.requests.group_id)


def _check_cooperative(members: Iterable[GroupMember], shares: Shares) -> None:
    """Raise BrokerError if a cooperative assignor has assigned a partition that another member still owns."""
    owners = {partition: member.member_id for member in members for partition in member.owned}
    for member_id, share in shares.items():
        for one in share:
            owner = owners.get(one, member_id)
            if owner != member_id and one not in shares.get(owner, ()):
                text = f"the assignor assigned {one} to {member_id!r} before {owner!r}, which owns it, has revoked it"
                raise broker_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
