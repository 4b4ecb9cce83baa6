# SPDX-License-Identifier: Apache-2.0
"""Finds and validates the positions of assigned partitions (Kafka: SubscriptionState, OffsetFetcher).

    awaiting COMMITTED    the group's committed offset; if none exists: RESET
             RESET        the target of a seek, otherwise auto_offset_reset; with "none" the error that poll raises
             VALIDATION   the leader epoch changed: was the log truncated? (`kcodec.consumer.truncation`)
             None         the partition can be read

The leader of each partition is requested in parallel, so that a broker that does not respond delays only its own
partitions. Each request has the version of the partition's state: a seek changes it, and a response for the old version
is dropped. After a retriable error the request is repeated for as long as the partition is assigned. Another error
becomes `PartitionState.error`; after a missing permission the request is repeated, too. Any other exception ends the
consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kcodec.cluster.list_offsets import ListedOffset, list_offsets_handler, timestamp_of
from kcodec.cluster.metadata import Cluster
from kcodec.cluster.retry_driver import ApiHandler, CallContext, Outcome, request_items
from kcodec.constants import IsolationLevel
from kcodec.consumer.assignment import COMMITTED, RESET, VALIDATION, Assignment, PartitionState
from kcodec.consumer.committed_offsets import GROUP_CODES, CommittedOffsets, Member
from kcodec.consumer.known_partitions import KnownPartitions
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.topic_ids import TopicIds
from kcodec.consumer.truncation import EpochEnd, Position, epoch_end_handler, is_truncated, truncation_error
from kcodec.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    DeliveryTimeoutError,
    EncodeError,
    KcodecError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnsupportedError,
)
from kcodec.flow import CancelledFlow, Flow, Signal, Task, sleep, spawn, wait
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode, note_final

log = logging.getLogger("kcodec.consumer")
# Maximum number of obsolete requests to a broker that does not respond; further requests wait.
MAX_UNDER_WAY = 4
# The number of the repeat whose pause is used between two rounds that both reached their time limit.
_PATIENT_ATTEMPT = 3

#: What is under way for a partition: version, awaiting and reset_to of its state at the request.
_Key = tuple[int, str | None, str | int | None]
#: The kind of a request, and its target: a broker, a topic whose leaders are not known, -1 for the coordinator.
_Group = tuple[str, int | str]
_OnResult = Callable[[TopicPartition, Any], None]


def _key(state: PartitionState) -> _Key:
    return state.version, state.awaiting, state.reset_to


class Positions:
    """See the module.

    committed: The committed offsets; None for a consumer without a group.
    member:    Returns the identity for committed offsets (a KIP-848 member is checked by its epoch).
    now:       Returns the time in ms since 1970; only for auto_offset_reset "by_duration".
    known:     What the consumer knows of partitions that were created after it subscribed.
    on_new_topic: Called with the partitions whose topic was deleted and created again.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        committed: CommittedOffsets | None,
        settings: ConsumerSettings,
        *,
        member: Member | None = None,
        now: Callable[[], int] | None = None,
        known: KnownPartitions | None = None,
        on_new_topic: Callable[[list[TopicPartition]], None] = lambda partitions: None,
    ) -> None:
        if settings.auto_offset_reset == "by_duration" and now is None:
            raise ValueError('auto_offset_reset "by_duration" needs a clock: now=')
        self.cluster = cluster
        self.assignment = assignment
        self.committed = committed
        self.settings = settings
        self.member = member
        self.now = now or int
        self.known = known or KnownPartitions(cluster, assignment)
        can_fail = settings.auto_offset_reset == "none"
        self._topic_ids = TopicIds(cluster, assignment, self.known, can_fail=can_fail, on_new_topic=on_new_topic)
        #: Seconds until the ids of topics are to be compared again; None if no id has to be confirmed.
        self._pause: float | None = None
        #: Why partitions that wait for a position do not have it yet.
        self.causes: dict[TopicPartition, KcodecError] = {}
        self._context = CallContext(cluster, settings.default_api_timeout, self.now, DeliveryTimeoutError)
        self._wake = Signal()
        self._is_awake = False
        self._under_way: dict[TopicPartition, _Key] = {}
        self._running: dict[_Group, int] = {}
        #: What ended a request otherwise than by an error of Kafka.
        self._failure: BaseException | None = None
        #: Version of the state, and leader epoch with which the position was found to be valid.
        self._validated: dict[TopicPartition, tuple[int, int]] = {}

    def run(self) -> Flow[None]:
        """Run until the consumer is closed."""
        listeners: list[Task[None]] = []
        try:
            for signal in (self.assignment.changed, self.cluster.changed):
                listeners.append((yield from spawn(self._listen(signal), "positions: listener")))
                listeners[-1].when_done(self._note_failure)
            while True:
                self._is_awake = False
                if self._failure is not None:
                    raise self._failure
                yield from self._look()
                if not self._is_awake:
                    yield from wait(self._wake, self._pause)
        finally:
            for task in listeners:
                task.cancel()

    def _listen(self, signal: Signal) -> Flow[None]:
        while True:
            yield from wait(signal)
            self._rouse()

    def _rouse(self) -> None:
        self._is_awake = True
        self._wake.set()

    # Requests that are due

    def _look(self) -> Flow[None]:
        """Send a request for each partition that needs one and has none in flight."""
        partitions = self.assignment.partitions
        self.cluster.add_topics({partition.topic for partition in partitions})
        for gone in self._validated.keys() - partitions.keys():
            del self._validated[gone]
        for gone in self.causes.keys() - partitions.keys():
            del self.causes[gone]
        self._pause = self._topic_ids.look()
        groups: dict[_Group, list[PartitionState]] = {}
        for state in list(partitions.values()):
            if state.error is not None or state.is_revoking or state.is_suspended:
                continue
            self._note_leader_epoch(state)
            if state.awaiting is None or self._under_way.get(state.topic_partition) == _key(state):
                continue
            kind = self._kind(state)
            if kind is not None:
                groups.setdefault((kind, self._where(kind, state.topic_partition)), []).append(state)
        for group, states in groups.items():
            if self._running.get(group, 0) < MAX_UNDER_WAY:
                keys = {state.topic_partition: _key(state) for state in states}
                self._under_way.update(keys)
                self._running[group] = self._running.get(group, 0) + 1
                task = yield from spawn(self._request(group, keys), f"positions: {group[0]}")
                task.when_done(self._note_failure)

    def _note_failure(self, task: Task[None]) -> None:
        """Let `run` raise the error of a listener or a request. The request would fail again and again."""
        if task.error is not None and not isinstance(task.error, CancelledFlow):
            self._failure = task.error
            self._rouse()

    def _note_leader_epoch(self, state: PartitionState) -> None:
        """Start the validation of a position if the leader has changed since the last one."""
        epoch = self.cluster.leader_epoch(*state.topic_partition)
        if state.awaiting is not None or state.position is None or epoch < 0:
            return
        version, seen = self._validated.get(state.topic_partition, (0, -1))
        if version == state.version and epoch <= seen:
            return
        if state.position_epoch < 0:
            self._validated[state.topic_partition] = state.version, epoch
            return
        with self.assignment.lock:
            state.awaiting = VALIDATION
        self.assignment.interrupt()

    def _kind(self, state: PartitionState) -> str | None:
        """Return the kind of the request; None if no request is needed."""
        if state.awaiting == COMMITTED:
            if self.committed is not None:
                return COMMITTED
            with self.assignment.lock:
                state.awaiting = RESET
        if state.awaiting == RESET:
            if state.reset_to is None and self.settings.auto_offset_reset == "none":
                if state.position is not None:
                    return "range"
                self.assignment.fail(state, self._no_offset(state.topic_partition))
                return None
            return RESET
        if state.position_epoch < 0 or self._has_no_epochs(state.topic_partition):
            self._accept(state, self.cluster.leader_epoch(*state.topic_partition))
            return None
        return VALIDATION if state.topic_partition.topic in self.cluster.topics else None  # new metadata will follow

    def _where(self, kind: str, partition: TopicPartition) -> int | str:
        """Return a key for partitions to request together: those of one leader. Partitions without a leader are
        separate."""
        leader = self.cluster.leader(*partition)
        return -1 if kind == COMMITTED else partition.topic if leader is None else leader

    def _has_no_epochs(self, partition: TopicPartition) -> bool:
        return self.cluster.leader(*partition) is not None and self.cluster.leader_epoch(*partition) < 0

    # Rounds of requests

    def _request(self, group: _Group, keys: dict[TopicPartition, _Key]) -> Flow[None]:
        """Run one round for some partitions; `_look` requests the unfinished ones again."""
        requests: dict[str, Callable[[dict[TopicPartition, _Key]], Flow[Outcome[TopicPartition, Any]]]] = {
            COMMITTED: self._request_committed,
            RESET: self._request_reset,
            VALIDATION: self._request_epoch_ends,
            "range": self._request_range,
        }
        began = self.cluster.clock()
        try:
            try:
                outcome = yield from requests[group[0]](keys)
            except KcodecError as failed:  # of the request as a whole, for example a value that it cannot hold
                outcome = Outcome("", {}, dict.fromkeys(keys, failed))
            left = [error for item, error in outcome.errors.items() if not self._ended(item, keys[item], error)]
            if left:
                log.info("positions are requested again after %.3g s: %s", self.cluster.clock() - began, left[0])
            if outcome.errors:
                yield from sleep(self.cluster.times.backoff(_PATIENT_ATTEMPT, self.cluster.random.random()))
                self._forgive(outcome.errors)
        finally:
            for item, key in keys.items():
                if self._under_way.get(item) == key:
                    del self._under_way[item]
            self._running[group] -= 1
            self._rouse()

    def _current(self, item: TopicPartition, key: _Key) -> PartitionState | None:
        """Return the state to which the response applies; None after a seek or another assignment. While the topic may
        have been deleted and created again, no response applies: it can be that of the new topic."""
        state = self.assignment.partitions.get(item)
        if state is None or state.error is not None or state.is_suspended:
            return None
        return state if _key(state) == key else None

    def _ended(self, item: TopicPartition, key: _Key, error: KcodecError) -> bool:
        """Return whether an error is final for this partition."""
        state = self._current(item, key)
        if state is None:
            return True
        if state.awaiting == VALIDATION and _is_unavailable(error):
            self._accept(state, self.cluster.leader_epoch(*item))
            return True
        if not _is_final(error):
            self.causes[item] = error
            return False
        note_final(error)
        # A login may succeed later, with other credentials: poll raises the error once for each attempt.
        self.assignment.fail(state, error, is_passing=isinstance(error, AuthenticationError))
        return True

    def _forgive(self, errors: Mapping[TopicPartition, KcodecError]) -> None:
        """Remove the error of a missing permission, which may be granted now. If it is not, the next response sets it
        again."""
        for item, error in errors.items():
            state = self.assignment.partitions.get(item)
            if state is not None and state.error is error and isinstance(error, AuthorizationError):
                with self.assignment.lock:
                    state.error = None

    def _request_items(
        self, handler: ApiHandler[TopicPartition, Any], keys: Mapping[TopicPartition, _Key], on_result: _OnResult
    ) -> Flow[Outcome[TopicPartition, Any]]:
        return request_items(
            self._context,
            keys,
            handler,
            self._context.deadline(None),
            on_result=on_result,
            is_needed=lambda item: self._current(item, keys[item]) is not None,
            causes=self.causes,
        )

    def _request_committed(self, keys: dict[TopicPartition, _Key]) -> Flow[Outcome[TopicPartition, Any]]:
        assert self.committed is not None

        def take(item: TopicPartition, found: OffsetAndMetadata | None) -> None:
            if (state := self._current(item, keys[item])) is None:
                return
            with self.assignment.lock:
                reset = self.settings.auto_offset_reset
                if found is not None and self.known.is_of_old_topic(state, found.offset):
                    text = "%s: the committed offset %d is that of a topic that was deleted and created again"
                    log.warning(text, item, found.offset)
                    state.awaiting, state.reset_to = RESET, None if reset == "none" else "earliest"
                elif found is None:
                    state.awaiting = RESET
                    if reset == "latest" and self.known.is_new(item):
                        state.reset_to = "earliest"
                else:
                    state.position, state.position_epoch = found.offset, found.leader_epoch
                    state.awaiting = VALIDATION
            self.assignment.changed.set()

        return self.committed.outcome(
            list(keys),
            self._context.deadline(None),
            self.member,
            on_result=take,
            is_needed=lambda item: self._current(item, keys[item]) is not None,
            causes=self.causes,
        )

    def _request_reset(self, keys: dict[TopicPartition, _Key]) -> Flow[Outcome[TopicPartition, Any]]:
        timestamps = {item: self._timestamp(key[2]) for item, key in keys.items()}

        def take(item: TopicPartition, found: ListedOffset) -> None:
            if (state := self._current(item, keys[item])) is None:
                return
            with self.assignment.lock:
                if found.offset < 0:  # no record is so late
                    state.reset_to = "latest"
                else:
                    state.position, state.position_epoch = found.offset, -1
                    state.awaiting = state.reset_to = None
                    before, state.reset_from = state.reset_from, None
                    if before is not None:
                        self.assignment.on_reset(state, before, found.offset)
            log.info("%s: reading continues at offset %d", item, found.offset)
            self.assignment.changed.set()

        return self._request_items(
            list_offsets_handler(self.cluster, timestamps, self.settings.isolation_level), keys, take
        )

    def _timestamp(self, reset_to: str | int | None) -> int:
        if reset_to is None and self.settings.auto_offset_reset == "by_duration":
            return self.now() - int(self.settings.auto_offset_reset_duration * 1000)
        return timestamp_of(self.settings.auto_offset_reset if reset_to is None else reset_to)

    def _request_range(self, keys: dict[TopicPartition, _Key]) -> Flow[Outcome[TopicPartition, Any]]:
        """Request the beginning and the end of the log, for the error text."""
        ends = []
        for spec in ("earliest", "latest"):
            timestamps = dict.fromkeys(keys, timestamp_of(spec))
            handler = list_offsets_handler(self.cluster, timestamps, IsolationLevel.READ_UNCOMMITTED)
            ends.append((yield from self._request_items(handler, keys, lambda item, found: None)))
        starts, stops = ends
        for item in starts.results.keys() & stops.results.keys():
            if (state := self._current(item, keys[item])) is not None:
                start, stop = starts.results[item].offset, stops.results[item].offset
                self.assignment.fail(state, out_of_range_error(item, state.position or 0, start, stop))
        found: Outcome[TopicPartition, Any] = Outcome("", {}, {**starts.errors, **stops.errors})
        return found

    def _request_epoch_ends(self, keys: dict[TopicPartition, _Key]) -> Flow[Outcome[TopicPartition, Any]]:
        requested: dict[TopicPartition, Position] = {}
        for item in keys:
            if (state := self.assignment.partitions.get(item)) is not None:
                requested[item] = Position(state.position or 0, state.position_epoch, -1)

        def take(item: TopicPartition, end: EpochEnd) -> None:
            state, position = self._current(item, keys[item]), requested[item]
            if state is None or (state.position, state.position_epoch) != position[:2]:
                return  # it moved meanwhile by records fetched before, and is requested again
            if is_truncated(position, end):
                self._truncated(state, position, end)
            else:
                self._accept(state, position.leader_epoch)

        return self._request_items(
            epoch_end_handler(self.cluster, requested), {item: keys[item] for item in requested}, take
        )

    # What comes of it

    def _accept(self, state: PartitionState, leader_epoch: int) -> None:
        """Note that the position is valid with this leader."""
        with self.assignment.lock:
            state.awaiting = None
        self._validated[state.topic_partition] = state.version, leader_epoch
        self.assignment.changed.set()

    def _truncated(self, state: PartitionState, position: Position, end: EpochEnd) -> None:
        partition = state.topic_partition
        if self.settings.auto_offset_reset == "none":
            self.assignment.fail(state, truncation_error(partition, position, end))
            return
        was = f"position {position.offset} (leader epoch {position.position_epoch})"
        log.warning("%s: the log was truncated below the %s", partition, was)
        if end.is_known:
            self.assignment.seek(partition, end.end_offset, end.leader_epoch)
            with self.assignment.lock:
                self.assignment.on_reset(state, position.offset, end.end_offset)
            self._accept(state, position.leader_epoch)
        else:
            self.assignment.reset(partition)
            with self.assignment.lock:
                state.reset_from = position.offset

    def _no_offset(self, partition: TopicPartition) -> NoOffsetForPartitionError:
        group_id = self.settings.group_id if self.committed is not None else None
        reason = f"group {group_id!r} has no committed offset" if group_id is not None else "no position was given"
        return NoOffsetForPartitionError(
            f'{partition}: {reason}, and auto_offset_reset is "none": seek to the first offset to read, or set '
            'auto_offset_reset to "earliest", "latest" or "by_duration:..."',
            partition=partition,
            group_id=group_id,
        )


def out_of_range_error(partition: TopicPartition, position: int, start: int, end: int) -> OffsetOutOfRangeError:
    """Return the error for auto_offset_reset "none"; it is not raised here."""
    return OffsetOutOfRangeError(
        f"{partition}: the position {position} is not in the log, which has offsets {start} to {end} (exclusive). "
        'auto_offset_reset is "none": seek to the offset to continue at',
        partition=partition,
        position=position,
        log_start_offset=start,
        log_end_offset=end,
        name=ErrorCode.OFFSET_OUT_OF_RANGE.name,
        remedy="stop",
    )


def _is_unavailable(error: KcodecError) -> bool:
    """Return whether validation is unavailable: brokers before 2.1, or no permission for version 2 on the cluster."""
    return isinstance(error, UnsupportedError) or getattr(error, "code", 0) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _is_final(error: KcodecError) -> bool:
    """Return whether a retry cannot help."""
    if isinstance(error, AuthenticationError | AuthorizationError | UnsupportedError | EncodeError):
        return True
    if not isinstance(error, BrokerError) or error.retriable:
        return False
    # A topic may come (back); a member whose epoch is not current has its membership to set it right.
    is_passing = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return not is_passing and error.code not in GROUP_CODES - {ErrorCode.GROUP_AUTHORIZATION_FAILED}
