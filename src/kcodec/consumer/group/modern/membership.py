# SPDX-License-Identifier: Apache-2.0
"""A member of a group of the consumer protocol (KIP-848): the broker assigns partitions by heartbeats.

One flow sends heartbeats. Another flow reconciles (`reconciliation.py`), independently of the application. The states
are those of Kafka's MemberState. States that differ only in the reconciliation are combined:

    IDLE ──subscribe──> JOINING ──response─> MEMBER ──subscribe to nothing──> RETIRING ──revoked──> LEAVING ──> IDLE
                           ^                  │ fenced, unknown; not polled for max_poll_interval (leave)
                           └──released──  RELEASING ──released, after a fatal error──> FATAL ──subscribe──> JOINING

**Epochs.** Every response may change the member epoch. Commits contain the epoch, so `group_metadata` changes at the
same time. A heartbeat holds `group_lock` from its request to its response. While a TxnOffsetCommit is built and sent
under the lock, the epoch can therefore not change. If the lock stays held by another flow, heartbeats are sent
nevertheless.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum
from typing import Any

from kcodec.cluster.flow_lock import FlowLock
from kcodec.cluster.metadata import Cluster
from kcodec.consumer.group.dispositions import CONSUMER, CONSUMER_JOIN, GroupDisposition, disposition
from kcodec.consumer.group.modern.heartbeat import (
    CHANNEL,
    JOIN_EPOCH,
    REGEX_VERSION,
    HeartbeatFields,
    HeartbeatPace,
    assigned,
    heartbeat_error,
    make_member_id,
    without_protocol,
)
from kcodec.consumer.group.modern.reconciliation import Reconciliation, Release
from kcodec.consumer.group.rebalance import Heartbeat, RebalanceHandler, Subscription
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import AuthenticationError, BrokerError, DecodeError, TransportError, UnsupportedError
from kcodec.flow import CancelledFlow, Flow, Reply, Signal, Task, call, sleep, spawn, wait
from kcodec.offsets import ConsumerGroupMetadata
from kcodec.protocol.error_codes import error_code, note_final

log = logging.getLogger("kcodec.consumer")
#: Seconds for a leave heartbeat that nothing waits for.
LEAVE_SECONDS = 5.0
REPEATED = frozenset({GroupDisposition.RETRY, GroupDisposition.FIND_COORDINATOR})


class ConsumerMemberState(Enum):
    """The state of a member; see the module. LEFT is final."""

    IDLE = "idle"
    JOINING = "joining"
    MEMBER = "member"
    RETIRING = "retiring"
    LEAVING = "leaving"
    RELEASING = "releasing"
    FATAL = "fatal"
    LEFT = "left"


class ConsumerMembership:
    """A `kcodec.consumer.group.rebalance.Membership`. If `member_id` is None, a random one is chosen."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, handler: RebalanceHandler, member_id: str | None = None
    ) -> None:
        if settings.group_id is None:
            raise ValueError("a subscription needs a consumer with group_id=, as a group assigns the partitions")
        self.changed = Signal()
        self.group_lock = FlowLock(cluster.clock)
        self.error: BaseException | None = None
        self.state = ConsumerMemberState.IDLE
        self.member_id = member_id or make_member_id(cluster.random)
        self.member_epoch = JOIN_EPOCH
        self._cluster = cluster
        self._settings = settings
        #: What is wanted, and what is reported to the group: the same, but for one that is about to leave.
        self._next_subscription = self._subscription = Subscription()
        self._metadata = ConsumerGroupMetadata(settings.group_id, group_instance_id=settings.group_instance_id)
        self._fields = HeartbeatFields(settings)
        self._reconciliation = Reconciliation(
            cluster,
            handler,
            settings.retry_backoff,
            on_ack=self._on_ack,
            on_released=self._on_released,
            on_error=self._on_handler_error,
        )
        self._polled_at = cluster.clock()
        self._wake = Signal()
        self._responded = Signal()
        #: Another one after each loss: what was sent before says nothing of now.
        self._incarnation = 0
        #: Why the last heartbeat failed, None after one that succeeded.
        self.last_error: BaseException | None = None
        self._is_due = self._has_joined = self._is_fatal = False
        self._reported: BaseException | None = None
        self._pace = HeartbeatPace(self._backoff)
        self._worker: Task[None] | None = None

    # Calls of the consumer

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """The current or last identity. After a loss of the partitions, the coordinator rejects commits with it, but
        would accept commits without a member. The generation is the member epoch, or -1 before the first one."""
        return self._metadata

    @property
    def waits_for_others(self) -> bool:
        """Always False: in this protocol, the coordinator responds immediately, perhaps with fewer partitions."""
        return False

    @property
    def is_stable(self) -> bool:
        """Whether the assigned partitions are owned, and the group has been notified."""
        return self.state is ConsumerMemberState.MEMBER and self._reconciliation.is_done and not self._is_due

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Set the subscription: names, and a regular expression (RE2 on the broker). If it is empty, revoke all
        partitions and leave. After a fatal error, try again."""
        self._next_subscription = Subscription(frozenset(topics), pattern)
        self.error, self._is_fatal = None, False
        if self._next_subscription.is_empty:
            if self.state in (ConsumerMemberState.MEMBER, ConsumerMemberState.JOINING):
                self.state = ConsumerMemberState.RETIRING
                self._reconciliation.release(Release.REVOKED)
            elif self.state is ConsumerMemberState.FATAL:
                self.state = ConsumerMemberState.IDLE
        elif self.state in (ConsumerMemberState.IDLE, ConsumerMemberState.FATAL):
            self._rejoin()
        elif self.state in (ConsumerMemberState.JOINING, ConsumerMemberState.MEMBER):
            self._subscription = self._next_subscription
        self._changed()

    def retry_login(self) -> None:
        """See Membership."""
        if isinstance(self.error, AuthenticationError):
            self.error, self._is_fatal = None, False
            if self.state is ConsumerMemberState.FATAL:
                self._rejoin()

    def request_rejoin(self, reason: str) -> None:
        """Log a warning: in this protocol, the broker decides when to assign partitions."""
        log.warning("group %r: %s: no rejoin, as the broker assigns partitions itself", self._metadata.group_id, reason)

    def note_poll(self, now: float) -> None:
        """Note that the application polled; any thread."""
        self._polled_at = max(self._polled_at, now)

    def run(self) -> Flow[None]:
        """Run the member until `leave`."""
        worker = yield from spawn(self._reconciliation.run(), f"reconciliation of group {self._metadata.group_id!r}")
        self._worker = worker
        worker.when_done(self._worker_ended)
        try:
            yield from self._beat()
        finally:
            worker.cancel()

    def force_heartbeat(self, timeout: float) -> Flow[Heartbeat]:
        """Check with the coordinator now. Return REASSIGNED if the response has another target assignment, or if an
        owned partition is about to be revoked. If only the epoch is higher, return OK."""
        if self.state is not ConsumerMemberState.MEMBER:
            return (
                Heartbeat.UNKNOWN
                if self.state in (ConsumerMemberState.IDLE, ConsumerMemberState.JOINING)
                else Heartbeat.LOST
            )
        deadline = self._cluster.clock() + timeout
        incarnation, version = self._incarnation, self._reconciliation.version
        awaited = self._pace.sent_number + 1
        self._on_ack()
        while (
            self._pace.responded_number < awaited
            and self.state is ConsumerMemberState.MEMBER
            and self._incarnation == incarnation
        ):
            left = deadline - self._cluster.clock()
            if left <= 0:
                return Heartbeat.UNKNOWN
            yield from wait(self._responded, left)
        if self.state is not ConsumerMemberState.MEMBER or self._incarnation != incarnation:
            return Heartbeat.LOST
        if self._reconciliation.version != version or self._reconciliation.is_taking_away:
            return Heartbeat.REASSIGNED
        return Heartbeat.OK

    def leave(self, timeout: float, reason: str) -> Flow[None]:
        """Send the leave heartbeat, which for a static member says that it will return, and end. Never raise: if the
        heartbeat is lost, the broker waits for the end of the session."""
        log.info("group %r: member %s leaves: %s", self._metadata.group_id, self.member_id, reason)
        self.state = ConsumerMemberState.LEFT
        self._incarnation += 1
        if self._worker is not None:  # it could change the partitions of the next member
            self._worker.cancel()
        self._changed()
        yield from self._send_leave(timeout)

    # Heartbeats

    def _beat(self) -> Flow[None]:
        while self.state is not ConsumerMemberState.LEFT:
            if self.state in (ConsumerMemberState.IDLE, ConsumerMemberState.RELEASING, ConsumerMemberState.FATAL):
                yield from wait(self._wake)
            elif self.state is ConsumerMemberState.LEAVING:
                yield from self._send_leave(LEAVE_SECONDS)
                if self.state is ConsumerMemberState.LEAVING:
                    self._incarnation += 1
                    self._rejoin()
            elif self._cluster.clock() - self._polled_at > self._settings.max_poll_interval:
                yield from self._leave_unpolled()
            elif (pause := self._seconds_to_next()) > 0:
                yield from wait(self._wake, pause)
            else:
                yield from self._heartbeat()

    def _seconds_to_next(self) -> float:
        now = self._cluster.clock()
        is_now = self._is_due or self.state is ConsumerMemberState.JOINING or self._fields.is_news(self._subscription)
        due = max(now if is_now else self._pace.next_at, self._pace.not_before)
        # A little after the limit, so that it has certainly passed.
        return min(due, self._polled_at + self._settings.max_poll_interval + 0.001) - now

    def _heartbeat(self) -> Flow[None]:
        incarnation = self._incarnation
        try:
            node = yield from self._cluster.coordinators.find(
                "group", self._metadata.group_id, self._cluster.times.request
            )
            is_held = yield from self.group_lock.acquire(self._pace.interval)
            try:
                if self._incarnation == incarnation and self.state is not ConsumerMemberState.LEFT:
                    reply = yield from self._send(node)
                    self._received(reply.message, incarnation)
            finally:
                if is_held:
                    self.group_lock.release()
        except UnsupportedError:
            self._fail(without_protocol(self._metadata.group_id, self._subscription.pattern), incarnation)
        except AuthenticationError as error:
            self._fail(error, incarnation)
        except BrokerError as error:
            self._refused(error, incarnation)
        except (TransportError, DecodeError) as error:
            log.info("group %r: a heartbeat got no response: %s", self._metadata.group_id, error)
            self.last_error = error
            self._cluster.coordinators.forget("group", self._metadata.group_id)
            self._again(incarnation)

    def _send(self, node: int) -> Flow[Reply]:
        owned = self._reconciliation.owned
        request = self._fields.build(self.member_id, self.member_epoch, self._subscription, owned, is_ack=self._is_due)
        self._is_due = False
        self._has_joined = True
        self._pace.sent(self._cluster.clock())
        lowest = 0 if self._subscription.pattern is None else REGEX_VERSION
        timeout = self._cluster.times.request
        reply: Reply = yield from call(node, request, timeout=timeout, lowest=lowest, channel=CHANNEL)
        return reply

    def _received(self, response: Any, incarnation: int) -> None:
        """Handle a response to a heartbeat of this incarnation."""
        if self._incarnation != incarnation or self.state is ConsumerMemberState.LEFT:
            return
        if response.error_code:
            raise heartbeat_error(response.error_code, self._metadata.group_id, response.error_message)
        if response.member_epoch <= 0:
            raise DecodeError(
                f"ConsumerGroupHeartbeat: the response has member epoch {response.member_epoch}, expected 1 or more"
            )
        self.last_error = None
        if self.error is self._reported:
            self.error = self._reported = None
        self.member_id = response.member_id or self.member_id
        is_changed = self.state is ConsumerMemberState.JOINING or response.member_epoch != self.member_epoch
        self.member_epoch = response.member_epoch
        self._metadata = ConsumerGroupMetadata(
            self._metadata.group_id, self.member_epoch, self.member_id, self._settings.group_instance_id
        )
        self._pace.responded(
            self._cluster.clock(), response.heartbeat_interval_ms, is_join=self.state is ConsumerMemberState.JOINING
        )
        if self.state is ConsumerMemberState.JOINING:
            self.state = ConsumerMemberState.MEMBER
        partitions = assigned(response)
        if partitions is not None and self.state is ConsumerMemberState.MEMBER:
            self._reconciliation.aim(partitions)
        self._responded.set()
        if is_changed or partitions is not None:
            self.changed.set()

    # Errors

    def _refused(self, error: BrokerError, incarnation: int) -> None:
        """Handle an error code of the heartbeat or of FindCoordinator."""
        what = disposition(CONSUMER if self.member_epoch > 0 else CONSUMER_JOIN, error.code)
        if what is GroupDisposition.FATAL:
            self._fail(error, incarnation)
            return
        log.info("%s", error)
        self.last_error = error
        if what is GroupDisposition.RESET_GENERATION:
            if self._incarnation == incarnation:
                self._drop(Release.LOST)
                self._pace.dropped(self._cluster.clock())
            return
        if what is GroupDisposition.FIND_COORDINATOR:
            self._cluster.coordinators.forget("group", self._metadata.group_id)
        if what is GroupDisposition.REPORT and self._incarnation == incarnation:
            self.error = self._reported = error
            self.changed.set()
        self._again(incarnation)

    def _again(self, incarnation: int) -> None:
        """Include all fields in the next heartbeat, after a pause."""
        self._fields.forget()
        if self._incarnation == incarnation:
            self._is_due = True
            self._pace.failed(self._cluster.clock())

    def _backoff(self, attempt: int) -> float:
        return self._settings.retry_backoff(attempt, self._cluster.random.random())

    def _fail(self, error: BaseException, incarnation: int) -> None:
        """Handle a fatal error: the owned partitions are lost, and nothing more is sent."""
        if self._incarnation != incarnation or self.state is ConsumerMemberState.LEFT:
            return
        log.error("group %r: %s", self._metadata.group_id, error)
        note_final(error)
        self.error, self._is_fatal = error, True
        self._drop(Release.LOST)

    def _worker_ended(self, worker: Task[None]) -> None:
        if worker.error is not None and not isinstance(worker.error, CancelledFlow):
            self._fail(worker.error, self._incarnation)

    def _on_handler_error(self, error: Exception) -> None:
        self.error = error
        self.changed.set()

    # Losing and leaving

    def _drop(self, release: Release) -> None:
        """Lose all partitions and start again, because this is no longer a member."""
        self._incarnation += 1
        self.member_epoch = JOIN_EPOCH
        self._fields.forget()
        self._is_due = False
        self._pace.not_before = 0.0
        self.state = ConsumerMemberState.RELEASING
        self._reconciliation.release(release)
        self._changed()

    def _leave_unpolled(self) -> Flow[None]:
        """Leave without a poll (Kafka: the consumer is STALE). The consumer joins again when it polls."""
        log.warning(
            "group %r: leaving, as the application did not poll for %g s (max_poll_interval_ms); other members get the "
            "partitions. Reduce max_poll_records or increase max_poll_interval_ms",
            self._metadata.group_id,
            self._settings.max_poll_interval,
        )
        self._drop(Release.STALE)
        yield from self._send_leave(LEAVE_SECONDS)

    def _send_leave(self, timeout: float) -> Flow[None]:
        """Send the leave heartbeat, if the group knows this member, until there is a response or the deadline has
        passed. Never raise: without it, the broker waits for the end of the session."""
        if not self._has_joined:
            return
        self._has_joined = False
        try:
            yield from self._repeat_leave(timeout)
        except BaseException:  # such as Ctrl-C in asyncio: another call can still leave
            self._has_joined = True
            raise

    def _repeat_leave(self, timeout: float) -> Flow[None]:
        request, attempt = self._fields.leave(self.member_id), 0
        deadline = self._cluster.clock() + timeout
        while (left := deadline - self._cluster.clock()) > 0:
            is_held = yield from self.group_lock.acquire(left)
            try:
                node = yield from self._cluster.coordinators.find(
                    "group", self._metadata.group_id, max(deadline - self._cluster.clock(), 0.0)
                )
                seconds = min(max(deadline - self._cluster.clock(), 0.0), self._cluster.times.request)
                reply = yield from call(node, request, timeout=seconds, channel=CHANNEL)
                code = reply.message.error_code
                if not code or disposition(CONSUMER_JOIN, code) not in REPEATED:
                    return
                log.info("group %r: the leave heartbeat failed with %s", self._metadata.group_id, error_code(code).name)
            except (AuthenticationError, BrokerError, DecodeError) as error:
                log.info("group %r: the leave heartbeat failed: %s", self._metadata.group_id, error)
                return
            except TransportError as error:
                log.info("group %r: the leave heartbeat failed: %s", self._metadata.group_id, error)
            finally:
                if is_held:
                    self.group_lock.release()
            self._cluster.coordinators.forget("group", self._metadata.group_id)
            yield from sleep(min(self._backoff(attempt), max(deadline - self._cluster.clock(), 0.0)))
            attempt += 1

    # Called by the reconciliation

    def _on_ack(self) -> None:
        """Send a heartbeat now."""
        if self.state in (ConsumerMemberState.MEMBER, ConsumerMemberState.RETIRING):
            self._is_due = True
            self._changed()

    def _on_released(self) -> None:
        """Handle the end of a release: no partition is owned any more."""
        if self.state is ConsumerMemberState.RETIRING:
            self.state = ConsumerMemberState.LEAVING
        elif self.state is ConsumerMemberState.RELEASING:
            if self._is_fatal:
                self.state = ConsumerMemberState.FATAL
            else:
                self._rejoin()
        self._changed()

    def _rejoin(self) -> None:
        """Join again, if there is a subscription."""
        if self.state is ConsumerMemberState.LEFT:
            return
        self.member_epoch = JOIN_EPOCH
        self._fields.forget()
        self._subscription = self._next_subscription
        self.state = ConsumerMemberState.IDLE if self._next_subscription.is_empty else ConsumerMemberState.JOINING
        self._polled_at = max(self._polled_at, self._cluster.clock())
        self._changed()

    def _changed(self) -> None:
        self._wake.set()
        self._responded.set()
        self.changed.set()
