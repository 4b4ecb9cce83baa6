# SPDX-License-Identifier: Apache-2.0
"""The handling of partitions in a Fetch response (Kafka: FetchCollector, AbstractFetch.handleFetchSuccess).

OFFSET_OUT_OF_RANGE: if it came from another replica than the leader, the leader is requested next. If the request had a
    last fetched epoch, it is repeated without it, as a leader without that high an epoch responds with the same error.
    Otherwise the position is reset.
CORRUPT_MESSAGE: requested again after a pause. When the broker has rejected the offset for long enough (see
    `_corrupt`), poll raises it each time, or the offset is skipped.
STALE_METADATA: the metadata is updated, at once if NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH names the leader
    (KIP-951), and the offset is requested again.
UNKNOWN_SERVER_ERROR and all other retriable errors: requested again after a pause. poll also raises
    UNKNOWN_SERVER_ERROR when it has lasted for `request_timeout`.
TOPIC_AUTHORIZATION_FAILED and all others: poll raises them, once for each response. Their remedy is "stop", as the
    same request gets the same response until something is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import STALE_LEADER_CODES
from kcodec.consumer.assignment import RESET, VALIDATION, Assignment, PartitionState
from kcodec.consumer.fetch_buffer import FetchBuffer, FetchedPartition
from kcodec.consumer.fetch_session import PartitionRequest
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import DecodeError
from kcodec.flow import Clock, Signal
from kcodec.network.metrics import Metrics, Tally, tally_of
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code

log = logging.getLogger("kcodec.consumer")
#: The leader has changed or is unavailable, or the topic does not exist or was created again. UNKNOWN_LEADER_EPOCH is
#: handled separately: the metadata of this client is newer than that of the broker.
STALE_METADATA: Final = STALE_LEADER_CODES | {ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.NETWORK_EXCEPTION}
#: An offset that the broker rejects with CORRUPT_MESSAGE counts as corrupt after this number of consecutive rejections
#: ...
CORRUPT_REFUSALS: Final = 5
#: ... and this number of seconds since the first of them.
CORRUPT_SECONDS: Final = 10.0
#: With on_error="skip": number of rejections of an offset that follows a skipped corrupt offset.
NEXT_CORRUPT_REFUSALS: Final = 2
_MAX_ATTEMPT = 10
# A failure this long after the end of the last backoff begins a new one.
_QUIET_SECONDS = 5.0


@dataclass(slots=True)
class FetchBackoff:
    """The backoff of a partition or broker: the number of consecutive failures, their begin, and the time of the next
    request.

    cause: Text of the last failure, for messages.
    code:  Error code of the last failure; None if no broker responded.
    """

    since: float
    until: float
    attempts: int = 0
    cause: str = ""
    code: int | None = None


class FetchBackoffs:
    """The partitions and brokers (by id) that are in backoff."""

    def __init__(self, clock: Clock, random: Random, backoff: Callable[[int, float], float]) -> None:
        self._clock = clock
        self._random = random
        self._backoff = backoff
        self._known: dict[TopicPartition | int, FetchBackoff] = {}

    def put_off(self, key: TopicPartition | int, cause: str = "") -> FetchBackoff:
        """Request nothing from a partition or broker for a while, which grows with each failure."""
        now = self._clock()
        found = self._known.setdefault(key, FetchBackoff(now, now))
        if now > found.until + _QUIET_SECONDS:
            found = self._known[key] = FetchBackoff(now, now)
        found.until = now + self._backoff(min(found.attempts, _MAX_ATTEMPT), self._random.random())
        found.attempts += 1
        found.cause = cause or found.cause
        return found

    def cause(self, key: TopicPartition | int | None) -> str | None:
        """Return the last failure of a partition or a broker; None if its last response was successful."""
        found = None if key is None else self._known.get(key)
        return None if found is None else found.cause

    def code(self, key: TopicPartition | int) -> int | None:
        """Return the error code of the last failure; None if there was no response."""
        found = self._known.get(key)
        return None if found is None else found.code

    def until(self, key: TopicPartition | int) -> float:
        """Return the time until which nothing is requested from a partition or broker."""
        found = self._known.get(key)
        return found.until if found is not None else 0.0

    def over(self, key: TopicPartition | int) -> None:
        """End the backoff after a successful response."""
        self._known.pop(key, None)

    def keep(self, partitions: Container[object], brokers: Container[object]) -> None:
        """Forget all other partitions and brokers."""
        for gone in [key for key in self._known if key not in partitions and key not in brokers]:
            del self._known[gone]

    def __bool__(self) -> bool:
        return bool(self._known)


class RequestedPartition(NamedTuple):
    """A partition in a request: its state, the version of the state then, and the requested values."""

    state: PartitionState
    version: int
    request: PartitionRequest


@dataclass(slots=True)
class Refusals:
    """An offset that brokers reject with CORRUPT_MESSAGE.

    version: Version of the state at the time of the request.
    begin:   First of consecutive offsets that were rejected as corrupt; None if none exists.
    """

    version: int
    offset: int
    since: float
    begin: int | None = None
    count: int = 0

    def is_corrupt(self, now: float) -> bool:
        """Return whether the offset counts as corrupt."""
        if self.begin is not None:
            return self.count >= NEXT_CORRUPT_REFUSALS
        return self.count >= CORRUPT_REFUSALS and now - self.since >= CORRUPT_SECONDS


class FetchResponses:
    """See the module.

    larger:           Requested size for partitions whose next batch is larger than max_partition_fetch_bytes.
    without_epoch_at: Partitions for which requests to the leader of this epoch omit the epoch of the last record read.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        settings: ConsumerSettings,
        buffer: FetchBuffer,
        backoffs: FetchBackoffs,
        arrived: Signal,
        metrics: Metrics,
    ) -> None:
        self.cluster = cluster
        self.assignment = assignment
        self.settings = settings
        self.larger: dict[TopicPartition, int] = {}
        self.without_epoch_at: dict[TopicPartition, int] = {}
        self._refusals: dict[TopicPartition, Refusals] = {}
        self._buffer = buffer
        self._backoffs = backoffs
        self._arrived = arrived
        self._clock = cluster.clock
        self._metrics = metrics
        self._fetched_bytes: dict[int, Tally] = {}

    def take(self, node: int, partition: TopicPartition, requested: RequestedPartition, data: Any) -> None:
        """Handle one partition of a response of broker `node`."""
        if not data.error_code:  # faster than a comparison with an enum member, which calls a Python function
            self._received(node, partition, requested, data)
        elif requested.state.version == requested.version and requested.state.awaiting is None:
            self._refused(node, partition, requested, data)

    def _received(self, node: int, partition: TopicPartition, requested: RequestedPartition, data: Any) -> None:
        """Handle a response without an error: keep its records and its offsets."""
        self._backoffs.over(partition)
        self._read_again(partition, requested)
        state, version, request = requested
        entry = FetchedPartition(state, version, request.offset, data, self.settings) if data.records else None
        if entry is not None and self._requests_more(partition, entry, request.max_bytes):
            return
        with self.assignment.lock:
            if state.version != version:
                return
            state.high_watermark, state.last_stable_offset = data.high_watermark, data.last_stable_offset
            if data.log_start_offset >= 0:
                state.log_start_offset = data.log_start_offset
            if data.preferred_read_replica >= 0 and data.preferred_read_replica != node:
                state.preferred_replica = data.preferred_read_replica
                state.preferred_replica_until = self._clock() + self.settings.metadata_max_age
            self._look_for_divergence(node, state, data.diverging_epoch)
            is_kept = entry is not None and self._buffer.add(entry)
        if is_kept:
            self._tally_of(node).value += len(data.records)
            self._arrived.set()
        if state.awaiting is not None:
            self.assignment.changed.set()

    def _tally_of(self, node: int) -> Tally:
        """Return the tally of the fetched bytes of a broker."""
        found = self._fetched_bytes.get(node)
        if found is None:
            found = self._fetched_bytes[node] = tally_of(self._metrics, "consumer.fetched_bytes", node=node)
        return found

    def _requests_more(self, partition: TopicPartition, entry: FetchedPartition, requested: int) -> bool:
        """Request more bytes if a broker cuts off even the first batch, because it is larger than
        max_partition_fetch_bytes. Return to the usual size after a batch that needs no more than that."""
        if entry.is_cut and requested < entry.bytes_needed <= self.settings.limits.max_batch_bytes:
            self.larger[partition] = entry.bytes_needed
            return True
        if not entry.is_cut and entry.bytes_needed <= self.settings.max_partition_fetch_bytes:
            self.larger.pop(partition, None)
        return False

    def _look_for_divergence(self, node: int, state: PartitionState, diverging: Any) -> None:
        """Handle a leader log that differs in the leader epoch or end offset of the last record read (KIP-320,
        KIP-595)."""
        if diverging.epoch < 0 and diverging.end_offset < 0:
            return
        log.info("%s: the log of broker %d differs from the records read, %r", state.topic_partition, node, diverging)
        self._backoffs.put_off(state.topic_partition)
        if state.awaiting is None and not self._buffer.ahead(state):  # else: once that is taken
            state.awaiting = VALIDATION

    def _refused(self, node: int, partition: TopicPartition, requested: RequestedPartition, data: Any) -> None:
        """Handle an error for one partition: see the table at the top."""
        state, _, request = requested
        code = error_code(data.error_code)
        cause = f"broker {node} responded to Fetch at offset {request.offset} with {code.name}"
        backoff = self._backoffs.put_off(partition, cause)
        backoff.code = code
        log.info("%s: %s", partition, cause)
        self._metrics.count("consumer.fetch_errors", code=code.name)
        was_preferred, state.preferred_replica = state.preferred_replica == node, None
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if request.last_epoch >= 0 and not was_preferred:
                self.without_epoch_at[partition] = request.leader_epoch
                self._backoffs.over(partition)
            elif not was_preferred:
                self._out_of_range(state, request)
        elif code in STALE_METADATA:
            hint = data.current_leader
            if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH) and hint.leader_id >= 0:
                self.cluster.learn_leader(*partition, hint.leader_id, hint.leader_epoch)
                self._backoffs.over(partition)
            self.cluster.request_update(f"{partition}: {code.name}")
        elif code == ErrorCode.CORRUPT_MESSAGE:
            self._corrupt(node, partition, requested)
        elif not code.retriable and code != ErrorCode.UNKNOWN_SERVER_ERROR:
            resource = partition.topic if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else partition
            self.pass_on(broker_error(code, f"Fetch from broker {node}", resource=resource, remedy="stop"))
        elif code == ErrorCode.UNKNOWN_SERVER_ERROR and self._clock() - backoff.since > self.settings.request_timeout:
            backoff.since = self._clock()
            self.pass_on(broker_error(code, f"Fetch at offset {request.offset} from broker {node}", resource=partition))

    def pass_on(self, error: BaseException) -> None:
        """Make poll raise the error once, and continue, as its cause may be removed meanwhile."""
        with self.assignment.lock:
            if str(error) not in map(str, self._buffer.passing):
                self._buffer.passing.append(error)
        self._arrived.set()

    def _out_of_range(self, state: PartitionState, request: PartitionRequest) -> None:
        with self.assignment.lock:
            if state.position != request.offset:
                return  # the records before it are still to be taken
            state.awaiting, state.reset_to, state.reset_from = RESET, None, request.offset
        if self.settings.auto_offset_reset != "none":  # otherwise poll raises an error with the cause
            log.warning(
                "%s: offset %d is not in the log; continuing according to auto_offset_reset=%s",
                state.topic_partition,
                request.offset,
                self.settings.auto_offset_reset,
            )
        self.assignment.changed.set()

    def _corrupt(self, node: int, partition: TopicPartition, requested: RequestedPartition) -> None:
        """Handle CORRUPT_MESSAGE: the broker's own log is corrupt at the offset, or one read of it failed.

        The code is retriable, and no byte of the batch was sent, so nothing may be skipped for one such response. The
        offset is requested again after a pause, from the leader that the metadata then names. An offset counts as
        corrupt after CORRUPT_REFUSALS rejections and at least CORRUPT_SECONDS. Poll then raises an error, and the
        request is still repeated. With on_error="skip", this one offset is skipped. If the next offset is rejected,
        too, it is skipped after NEXT_CORRUPT_REFUSALS rejections, until the broker sends records again.
        """
        state, version, request = requested
        if state.position != request.offset:
            return  # the records before it are still to be taken
        now, refused = self._clock(), self._refusals.get(partition)
        if refused is None or (refused.version, refused.offset) != (version, request.offset):
            refused = self._refusals[partition] = self._refused_next(refused, requested, now)
        refused.count += 1
        self.cluster.request_update(f"{partition}: CORRUPT_MESSAGE")
        if not refused.is_corrupt(now):
            return
        if self.settings.on_error == "skip":
            self._leave_out(node, state, refused)
            return
        refused.begin = request.offset if refused.begin is None else refused.begin
        self.assignment.fail(state, _refused_error(node, partition, request.offset), is_passing=True)
        self._arrived.set()

    def keep(self, partitions: Container[object]) -> None:
        """Forget all other partitions."""
        for known in (self._refusals, self.larger, self.without_epoch_at):
            for gone in [one for one in known if one not in partitions]:
                del known[gone]

    def _refused_next(self, before: Refusals | None, requested: RequestedPartition, now: float) -> Refusals:
        """Begin to count the rejections of an offset. An offset after a corrupt offset counts as corrupt sooner. With
        on_error="skip", this applies only to the next offset, because it may be skipped; otherwise, to any later
        offset."""
        _, version, request = requested
        is_skip = self.settings.on_error == "skip"
        is_behind = before is not None and (before.version == version if is_skip else before.offset < request.offset)
        return Refusals(version, request.offset, now, before.begin if before is not None and is_behind else None)

    def _leave_out(self, node: int, state: PartitionState, refused: Refusals) -> None:
        """With on_error="skip", continue after an offset that counts as corrupt."""
        with self.assignment.lock:
            if state.version != refused.version or state.position != refused.offset:
                return
            state.position, state.position_epoch = refused.offset + 1, -1
            if refused.begin is None:
                refused.begin = refused.offset
                self._buffer.skipped_batches += 1
        if refused.begin == refused.offset:
            log.warning(
                "%s: skipped offset %d, whose bytes were never received: broker %d rejected it with CORRUPT_MESSAGE "
                'for at least %g s (on_error="skip")',
                state.topic_partition,
                refused.offset,
                node,
                CORRUPT_SECONDS,
            )
        self._backoffs.over(state.topic_partition)
        self.assignment.changed.set()

    def _read_again(self, partition: TopicPartition, requested: RequestedPartition) -> None:
        """End the count of rejections, as the broker sends records, or reports that there are none yet."""
        refused = self._refusals.pop(partition, None)
        if self.settings.on_error != "skip" or refused is None or refused.begin is None:
            return
        if refused.version == requested.version and refused.begin < requested.request.offset:
            log.warning(
                "%s: offsets %d to %d were skipped, as the broker rejected them with CORRUPT_MESSAGE; reading "
                "continues at offset %d",
                partition,
                refused.begin,
                requested.request.offset - 1,
                requested.request.offset,
            )


def _refused_error(node: int, partition: TopicPartition, offset: int) -> DecodeError:
    """Return the error for on_error="raise"; it is not raised here."""
    return DecodeError(
        f"broker {node} rejects offset {offset} with CORRUPT_MESSAGE (at least {CORRUPT_REFUSALS} requests in "
        f"{CORRUPT_SECONDS:g} s), so its log is probably corrupt there. The offset of the next intact record is "
        f"unknown. Seek to {offset + 1} or further to skip records, or repair the broker's disk; poll() tries again",
        topic_partition=partition,
    )
