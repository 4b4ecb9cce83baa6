# SPDX-License-Identifier: Apache-2.0
"""The heartbeats of a member of a classic group, its two timeouts, and LeaveGroup.

If a heartbeat gets no response for session_timeout, the coordinator assigns the partitions to other members. If the
application does not poll for max_poll_interval, it is stuck, and the member leaves so that others can continue
(KIP-62).
"""

from __future__ import annotations

import logging

from kcodec.consumer.group.classic.member_state import ClassicMember, ClassicMemberState
from kcodec.consumer.group.classic.requests import GroupRequests
from kcodec.consumer.group.dispositions import CLASSIC, GroupDisposition, disposition
from kcodec.consumer.group.rebalance import Heartbeat
from kcodec.errors import AuthenticationError, BrokerError, KcodecError, TransportError, UnsupportedError
from kcodec.flow import Flow, Signal, sleep, spawn, wait
from kcodec.offsets import ConsumerGroupMetadata
from kcodec.protocol.error_codes import ErrorCode

log = logging.getLogger("kcodec.consumer")
GONE = frozenset({GroupDisposition.RESET_GENERATION, GroupDisposition.RESET_MEMBER})
#: The member is in its generation.
IN_GENERATION = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
#: Time for LeaveGroup of a member whose application is stuck.
POLL_LEAVE_SECONDS = 5.0
#: Maximum number of attempts to send LeaveGroup that end without a response. One lost connection must not keep the
#: partitions from other members for a session timeout. A broker that does not respond must not delay `close`.
LEAVE_ATTEMPTS = 3


class Heartbeats:
    """The heartbeats of one member."""

    def __init__(self, member: ClassicMember, requests: GroupRequests) -> None:
        self.member = member
        self.requests = requests
        self.settings = requests.settings
        self._clock, self._random = requests.cluster.clock, requests.cluster.random
        self._begun = Signal()
        self._responded_at = self._due_at = self._polled_at = self._clock()
        self._attempt = 0

    def note_poll(self, now: float) -> None:
        """Note that the application polled; any thread."""
        self._polled_at = now

    def begin(self) -> None:
        """Start both timeouts again for a new generation."""
        now = self._clock()
        self._responded_at = self._polled_at = now
        self._due_at = now + self.settings.heartbeat_interval
        self._attempt = 0
        self._begun.set()

    def run(self) -> Flow[None]:
        """Send heartbeats while the member is in a generation; never returns."""
        while True:
            now = self._clock()
            session_ends = self._responded_at + self.settings.session_timeout
            poll_ends = self._polled_at + self.settings.max_poll_interval
            if not self._is_beating:
                yield from wait(self._begun)
            elif now >= session_ends:
                self._end_session()
            elif now >= poll_ends:
                yield from self._leave_late()
            elif now < self._due_at:
                yield from wait(self._begun, min(self._due_at, session_ends, poll_ends) - now)
            else:
                yield from self._beat(session_ends - now)

    @property
    def _is_beating(self) -> bool:
        """Return whether heartbeats are due: the coordinator expects none while it delays the JoinGroup response."""
        is_synchronized = self.member.state in (ClassicMemberState.COMPLETING, ClassicMemberState.STABLE)
        return self.member.generation.is_member and is_synchronized

    def _end_session(self) -> None:
        seconds = self.settings.session_timeout
        self.requests.forget_coordinator()
        self.member.reset(f"no heartbeat got a response for {seconds:g} s, the session is over", keeps_member_id=True)

    def _leave_late(self) -> Flow[None]:
        """Leave the group, as the application did not poll in time."""
        member, seconds = self.member, self.settings.max_poll_interval
        log.warning(
            "group %s: leaving, as the application did not poll for max_poll_interval_ms (%g s); other members get the "
            "partitions. Reduce max_poll_records or increase max_poll_interval_ms",
            self.requests.group_id,
            seconds,
        )
        member_id, channel = member.generation.member_id, member.channel
        member.is_late = True
        member.reset("the time between two polls was longer than max_poll_interval_ms", keeps_member_id=False)
        reason = "consumer poll timeout has expired."
        yield from self.leave(member_id, POLL_LEAVE_SECONDS, reason, channel)

    def _beat(self, session_left: float) -> Flow[None]:
        """Send one heartbeat that is due."""
        self._due_at = self._clock() + self.settings.heartbeat_interval
        sent = self.member.generation
        timeout = min(self.settings.request_timeout, session_left)
        try:
            code = yield from self._request(sent.id, sent.member_id, timeout)
        except (AuthenticationError, UnsupportedError, BrokerError) as error:
            self.member.fail(error)
            return
        except KcodecError as error:
            log.info("heartbeat of group %s: %s", self.requests.group_id, error)
            code = None
            if isinstance(error, TransportError):
                self.requests.forget_coordinator()
        if self.member.generation != sent:
            return
        if code is not None:
            self._received(code)
        if code not in IN_GENERATION:
            self._due_at = self._clock() + self.settings.retry_backoff(self._attempt, self._random.random())
            self._attempt += 1

    def _request(self, generation_id: int, member_id: str, timeout: float) -> Flow[int]:
        deadline = self._clock() + timeout
        node = yield from self.requests.coordinator(timeout)
        left = max(deadline - self._clock(), 0.0)
        return (yield from self.requests.heartbeat(node, generation_id, member_id, left, self.member.channel))

    def _received(self, code: int) -> None:
        """Handle the error code of a heartbeat of the current generation."""
        member = self.member
        action = disposition(CLASSIC, code)
        if code in IN_GENERATION:
            self._responded_at, self._attempt = self._clock(), 0
            if code and member.is_stable:
                member.request_rejoin("the group is rebalancing already")
        elif code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED):
            member.fail(self.requests.error("Heartbeat", code))
        elif action is GroupDisposition.FIND_COORDINATOR:
            self.requests.forget_coordinator()
        elif action in GONE and self._is_beating:
            keeps_member_id = action is GroupDisposition.RESET_GENERATION
            name = self.requests.error("Heartbeat", code).name
            member.reset(f"the response to a heartbeat was {name}", keeps_member_id=keeps_member_id)
        elif action not in GONE:
            log.info("%s", self.requests.error("Heartbeat", code))

    def force(self, timeout: float) -> Flow[Heartbeat]:
        """See Membership.force_heartbeat. It is for the generation of `group_metadata`, in any state."""
        member, sent = self.member, self.member.metadata
        if sent.generation_id < 0:
            return Heartbeat.UNKNOWN
        if not member.generation.is_member:
            return Heartbeat.LOST
        task = yield from spawn(self._request_until(sent, timeout), "forced heartbeat")
        task.when_done(lambda _: member.changed.set())
        deadline = self._clock() + timeout
        try:
            while not task.done and (left := deadline - self._clock()) > 0:
                yield from wait(member.changed, left)
                if not member.generation.is_member or member.metadata != sent:
                    return Heartbeat.LOST
            return task.result if task.done and task.result is not None else Heartbeat.UNKNOWN
        finally:
            task.cancel()

    def _request_until(self, sent: ConsumerGroupMetadata, timeout: float) -> Flow[Heartbeat]:
        """Send heartbeats until one has a response."""
        deadline, attempt = self._clock() + timeout, 0
        while (left := deadline - self._clock()) > 0:
            code = None
            try:
                code = yield from self._request(
                    sent.generation_id, sent.member_id, min(left, self.settings.request_timeout)
                )
            except TransportError as error:
                log.info("forced heartbeat of group %s: %s", self.requests.group_id, error)
                self.requests.forget_coordinator()
            except KcodecError as error:
                log.warning("forced heartbeat of group %s: %s", self.requests.group_id, error)
                return Heartbeat.UNKNOWN
            if code is not None and self.member.generation.id == sent.generation_id:
                self._received(code)
            if code in IN_GENERATION:
                return Heartbeat.REBALANCE_IN_PROGRESS if code else Heartbeat.OK
            if code is not None:
                action = disposition(CLASSIC, code)
                if code == ErrorCode.FENCED_INSTANCE_ID or action in GONE:
                    return Heartbeat.LOST
                if action is GroupDisposition.FATAL:
                    return Heartbeat.UNKNOWN
            yield from sleep(self.settings.retry_backoff(attempt, self._random.random()))
            attempt += 1
        return Heartbeat.UNKNOWN

    def leave(self, member_id: str, timeout: float, reason: str, channel: str) -> Flow[None]:
        """Send LeaveGroup for a dynamic member. If it fails, the coordinator removes the member at the end of its
        session."""
        if self.settings.group_instance_id is not None or not member_id:
            return
        deadline, attempt, without_response = self._clock() + timeout, 0, 0
        log.info("group %s: member %s leaves: %s", self.requests.group_id, member_id, reason)
        while (left := deadline - self._clock()) > 0:
            try:
                node = yield from self.requests.coordinator(left)
                left = max(deadline - self._clock(), 0.0)
                code = yield from self.requests.leave(node, member_id, reason, left, channel)
                action = disposition(CLASSIC, code) if code else None
            except KcodecError as error:
                log.info("leaving group %s: %s", self.requests.group_id, error)
                without_response += 1
                is_final = isinstance(error, AuthenticationError) or not isinstance(error, TransportError)
                if is_final or without_response == LEAVE_ATTEMPTS:
                    return
                action = GroupDisposition.FIND_COORDINATOR
            if action not in (GroupDisposition.RETRY, GroupDisposition.FIND_COORDINATOR):
                return
            if action is GroupDisposition.FIND_COORDINATOR:
                self.requests.forget_coordinator()
            pause = self.settings.retry_backoff(attempt, self._random.random())
            yield from sleep(min(pause, max(deadline - self._clock(), 0.0)))
            attempt += 1
