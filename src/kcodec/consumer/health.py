# SPDX-License-Identifier: Apache-2.0
"""The present state of a consumer, and the reasons why a partition delivers nothing: `Consumer.health()`.

The values come from the memory of the client, so that the call needs no broker and returns at once, also while brokers
are away. A position is compared with the last one every LOOK_SECONDS; nothing is noted while records are delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import AWAITED, COMMITTED, Assignment, PartitionState
from kcodec.consumer.callbacks import CallbackQueue
from kcodec.consumer.committed_offsets import CommittedOffsets
from kcodec.consumer.fetch_buffer import RESPONSES_AHEAD
from kcodec.consumer.fetcher import Fetcher
from kcodec.consumer.group.rebalance import Membership
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.positions import Positions
from kcodec.consumer.rebalance_handler import Polls
from kcodec.consumer.waiting_report import WaitingReport
from kcodec.errors import AuthenticationError, AuthorizationError, DecodeError
from kcodec.flow import Flow, sleep
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, error_code

__all__ = ["ConsumerHealth", "PartitionHealth", "Stall", "StallCause"]

#: Interval at which positions are compared.
LOOK_SECONDS: Final = 0.5
#: A program that has not polled for this time is reported.
NOT_POLLED_SECONDS: Final = 3.0
#: A Fetch response that is late by this time, after fetch_max_wait_ms, is reported.
LATE_SECONDS: Final = 2.0
_NOT_AUTHORIZED: Final = frozenset(
    {
        *(ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class StallCause(Enum):
    """Why a consumer, or one of its partitions, delivers no records."""

    BROKER_UNREACHABLE = "no broker, or not the broker of the partition, can be reached"
    BROKER_NOT_RESPONDING = "the broker of the partition does not respond"
    NOT_AUTHENTICATED = "the broker has rejected the user or the certificate"
    NOT_AUTHORIZED = "the user lacks a permission"
    UNKNOWN_TOPIC = "the topic or the partition does not exist"
    NO_LEADER = "the partition has no leader"
    REBALANCE = "the group rebalances, or this is not a member yet"
    NO_POSITION = "the position is being looked up"
    OPEN_TRANSACTION = "an open transaction blocks the partition or its committed offset"
    CORRUPT = "the next batch is corrupt, or cannot be decoded"
    FETCH_FAILED = "the broker rejects the requests for records"
    PAUSED = "the program has paused the partition"
    BUFFER_FULL = "the buffer is full, as the program does not poll"
    NOT_POLLED = "the program does not poll"
    END_OF_LOG = "all records are read"
    FAILED = "the consumer has failed, and each call raises the error"


@dataclass(frozen=True, slots=True)
class Stall:
    """One reason why records do not arrive.

    cause: The kind of the reason.
    text: What is known about it: broker, topic, offset, the last error.
    """

    cause: StallCause
    text: str

    def __str__(self) -> str:
        return f"{self.cause.name}: {self.text}"


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """One assigned partition. Times are seconds before the call.

    partition: The partition.
    position: The next offset to read; None while it is looked up.
    seconds_at_position: Time since the position changed last.
    seconds_since_fetch: Time since the last Fetch response of the broker that it is read from; None before the first.
    lag: Number of offsets to the high watermark of that response; None if it is unknown.
    stable_lag: Number of offsets to the last stable offset of that response; None if it is unknown.
    buffered_bytes: Size of the records that are fetched and not polled.
    stalls: Why it delivers nothing, the most important reason first; empty while records arrive.
    """

    partition: TopicPartition
    position: int | None
    seconds_at_position: float
    seconds_since_fetch: float | None
    lag: int | None
    stable_lag: int | None
    buffered_bytes: int
    stalls: tuple[Stall, ...] = ()

    @property
    def blocked_by(self) -> StallCause | None:
        """The most important reason why it delivers nothing; None while records arrive."""
        return self.stalls[0].cause if self.stalls else None


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """A consumer at one moment. Times are seconds before the call.

    client_id, group_id: As in the options; `group_id` is None without a group.
    member_id: Id of this member of the group; None if it is not a member.
    generation: Generation of the classic protocol, or epoch of the member (KIP-848); None if it is not a member.
    seconds_since_poll: Time since the program polled last, or took a record in a loop; 0 during a poll.
    stalls: Why the consumer as a whole delivers nothing, the most important reason first.
    partitions: The assigned partitions.
    """

    client_id: str
    group_id: str | None
    member_id: str | None
    generation: int | None
    seconds_since_poll: float
    stalls: tuple[Stall, ...] = ()
    partitions: Mapping[TopicPartition, PartitionHealth] = field(default_factory=dict)

    @property
    def blocked_by(self) -> StallCause | None:
        """The most important reason why nothing arrives at all: of the consumer, or the same of all partitions."""
        if self.stalls:
            return self.stalls[0].cause
        causes = {one.blocked_by for one in self.partitions.values()}
        return causes.pop() if len(causes) == 1 else None


class HealthWatch:
    """The health of one consumer. Runs on the I/O thread or event loop.

    membership, error: Return the current group member, and the error that ended the consumer.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        fetcher: Fetcher,
        positions: Positions,
        settings: ConsumerSettings,
        *,
        committed: CommittedOffsets | None,
        polls: Polls,
        callbacks: CallbackQueue,
        report: WaitingReport,
        membership: Callable[[], Membership | None],
        error: Callable[[], BaseException | None],
    ) -> None:
        self._cluster = cluster
        self._assignment = assignment
        self._fetcher = fetcher
        self._positions = positions
        self._settings = settings
        self._committed = committed
        self._polls = polls
        self._callbacks = callbacks
        self._report = report
        self._membership = membership
        self._error = error
        #: Partition -> its position and since when that is so.
        self._seen: dict[TopicPartition, tuple[int | None, float]] = {}
        #: When an iteration took a record last, to LOOK_SECONDS: it does so without a poll.
        self._delivered_at = -1e9

    def run(self) -> Flow[None]:
        """Note positions until the consumer is closed."""
        while True:
            self.look()
            yield from sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Note which positions have changed."""
        now = self._cluster.clock()
        seen = {}
        for partition, state in list(self._assignment.partitions.items()):
            position, known = state.position, self._seen.get(partition)
            is_new = known is None or known[0] != position
            if is_new and known is not None and state.chunk is not None:
                self._delivered_at = now
            seen[partition] = (position, now) if known is None or is_new else known
        self._seen = seen

    def take(self) -> ConsumerHealth:
        """Return the health now."""
        self.look()
        now, settings, membership = self._cluster.clock(), self._settings, self._membership()
        member = None if membership is None else membership.group_metadata
        is_member = member is not None and bool(member.member_id) and member.generation_id >= 0
        idle = min(self._polls.seconds_since(), max(now - self._delivered_at, 0.0))
        partitions = {
            partition: self._partition(state, now, idle)
            for partition, state in sorted(self._assignment.partitions.items())
        }
        return ConsumerHealth(
            settings.client_id,
            settings.group_id,
            member.member_id if member is not None and is_member else None,
            member.generation_id if member is not None and is_member else None,
            idle,
            tuple(self._stalls(idle)),
            partitions,
        )

    # The consumer as a whole

    def _stalls(self, idle: float) -> Iterator[Stall]:
        membership, error = self._membership(), self._error()
        if error is None and membership is not None:
            error = membership.error
        if error is not None:
            yield Stall(_cause_of(error, StallCause.FAILED), str(error))
        for (kind, name), what in self._report.problems():
            if kind == "brokers":
                cause = _cause_of(self._cluster.last_error, StallCause.BROKER_UNREACHABLE)
                yield Stall(cause, what)
            elif kind in ("topic", "pattern"):
                yield Stall(self._topic_cause(str(name)) if kind == "topic" else StallCause.UNKNOWN_TOPIC, what)
        if membership is None or membership.error is not None:
            return
        if self._polls.is_awaited or self._callbacks.waiting:
            if idle >= NOT_POLLED_SECONDS:
                yield Stall(StallCause.NOT_POLLED, f"a rebalance has waited for a poll for {idle:.0f} s")
            yield Stall(StallCause.REBALANCE, "the rebalance goes on when the program polls")
        elif not membership.is_stable:
            group_id = self._settings.group_id or ""
            last = self._cluster.coordinators.errors.get(("group", group_id)) or membership.last_error
            text = f"not a stable member of group {group_id!r}" + (f"; last cause: {last}" if last else "")
            yield Stall(_cause_of(last, StallCause.REBALANCE), text)

    def _topic_cause(self, topic: str) -> StallCause:
        found = self._cluster.topics.get(topic)
        if found is not None and found.error in _NOT_AUTHORIZED:
            return StallCause.NOT_AUTHORIZED
        if found is None or found.error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            return StallCause.UNKNOWN_TOPIC
        return StallCause.FETCH_FAILED

    # A partition

    def _partition(self, state: PartitionState, now: float, idle: float) -> PartitionHealth:
        partition, position = state.topic_partition, state.position
        since = self._seen.get(partition, (position, now))[1]
        node = self._fetcher.node_of(state)
        fetched = None if node is None else self._fetcher.responded_at.get(node)
        with self._assignment.lock:
            ahead = list(self._fetcher.buffer.ahead(state))
        return PartitionHealth(
            partition,
            position,
            now - since,
            None if fetched is None else now - fetched,
            _distance(position, state.high_watermark),
            _distance(position, state.last_stable_offset),
            sum(entry.size for entry in ahead),
            tuple(self._partition_stalls(state, node, len(ahead), now, idle)),
        )

    def _partition_stalls(
        self, state: PartitionState, node: int | None, ahead: int, now: float, idle: float
    ) -> Iterator[Stall]:
        if state.error is not None:
            kind = StallCause.CORRUPT if isinstance(state.error, DecodeError) else StallCause.FETCH_FAILED
            yield Stall(_cause_of(state.error, kind), str(state.error))
        yield from self._without_leader(state)
        if state.is_leaving or state.is_held_back:
            yield Stall(StallCause.REBALANCE, "a rebalance is giving the partition away, or on_assigned is running")
        yield from self._fetches(state, node, now)
        if state.awaiting is not None:
            yield self._awaiting(state)
        if state.is_paused:
            yield Stall(StallCause.PAUSED, "resume() delivers its records again")
        if idle >= NOT_POLLED_SECONDS:
            is_full = ahead >= RESPONSES_AHEAD or self._fetcher.is_buffer_full
            text = f"the last poll was {idle:.0f} s ago"
            if ahead:
                yield Stall(
                    StallCause.BUFFER_FULL if is_full else StallCause.NOT_POLLED, f"{text}; records wait for it"
                )
            else:
                yield Stall(StallCause.NOT_POLLED, text)
        if not ahead and state.awaiting is None:
            yield from self._at_end(state)

    def _without_leader(self, state: PartitionState) -> Iterator[Stall]:
        topic, number = state.topic_partition
        found = self._cluster.topics.get(topic)
        if found is None or found.error or not found.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None or not found.error else found.error
            if self._cluster.updates:
                row = error_code(code)
                yield Stall(self._topic_cause(topic), f"topic {topic!r}: {row.name}, {row.text}")
        elif number not in found.partitions:
            count = len(found.partitions)
            yield Stall(StallCause.UNKNOWN_TOPIC, f"topic {topic!r} has the partitions 0 to {count - 1}")
        elif found.partitions[number].leader < 0:
            yield Stall(StallCause.NO_LEADER, "LEADER_NOT_AVAILABLE")

    def _fetches(self, state: PartitionState, node: int | None, now: float) -> Iterator[Stall]:
        """Yield the reasons of the last requests for records, or of the request in flight."""
        code, text = self._fetcher.rejection_of(state)
        if text:
            if code in _NOT_AUTHORIZED:
                yield Stall(StallCause.NOT_AUTHORIZED, text)
            elif code == ErrorCode.CORRUPT_MESSAGE:
                yield Stall(StallCause.CORRUPT, text)
            else:
                yield Stall(StallCause.BROKER_UNREACHABLE if code is None else StallCause.FETCH_FAILED, text)
            return
        sent = None if node is None else self._fetcher.sent_at.get(node)
        if sent is not None and now - sent >= self._settings.fetch_max_wait + LATE_SECONDS:
            text = f"broker {node} has not responded to a Fetch request for {now - sent:.0f} s"
            yield Stall(StallCause.BROKER_NOT_RESPONDING, text)

    def _awaiting(self, state: PartitionState) -> Stall:
        partition = state.topic_partition
        if state.awaiting == COMMITTED and self._committed is not None and partition in self._committed.unstable:
            text = f"a transaction that commits its offset for group {self._settings.group_id!r} has not ended"
            return Stall(StallCause.OPEN_TRANSACTION, text)
        cause = self._positions.causes.get(partition)
        text = f"the consumer awaits {AWAITED.get(state.awaiting, 'its first offset')}"
        text += f"; last cause: {cause}" if cause is not None else ""
        return Stall(_cause_of(cause, StallCause.NO_POSITION), text)

    def _at_end(self, state: PartitionState) -> Iterator[Stall]:
        position, end, stable = state.position, state.high_watermark, state.last_stable_offset
        if position is None or end < 0:
            return
        if position >= end:
            yield Stall(StallCause.END_OF_LOG, f"the high watermark is {end}")
        elif self._settings.is_committed_only and 0 <= stable <= position:
            text = f"a transaction is open at offset {stable}, the high watermark is {end}; lag() names the transaction"
            yield Stall(StallCause.OPEN_TRANSACTION, text)


def _distance(position: int | None, end: int) -> int | None:
    return None if position is None or end < 0 else max(end - position, 0)


def _cause_of(error: BaseException | None, otherwise: StallCause) -> StallCause:
    if isinstance(error, AuthenticationError) or isinstance(getattr(error, "__cause__", None), AuthenticationError):
        return StallCause.NOT_AUTHENTICATED
    if isinstance(error, AuthorizationError):
        return StallCause.NOT_AUTHORIZED
    return otherwise
