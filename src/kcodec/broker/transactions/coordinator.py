# SPDX-License-Identifier: Apache-2.0
"""The transaction coordinator (TransactionCoordinator, TransactionStateManager, TransactionMarkerChannelManager).

EndTxn is acknowledged when the decision is in the log. The markers are written `marker_delay_ms` later. Until the last
marker is written, every other request for the transactional id gets CONCURRENT_TRANSACTIONS. The state is in memory and
in the log of ``__transaction_state``. `load` reads it from this log, and writes the markers of transactions that were
already decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from kcodec.broker.api import ApiError
from kcodec.broker.clock import Clock, Timer
from kcodec.broker.internal_topics import InternalRecord, append_to_log, coordinator_record, partition_for_key, replayed
from kcodec.broker.settings import BrokerSettings
from kcodec.broker.topics import Topics
from kcodec.broker.transactions.state import (
    EPOCH_BUMP_VERSION,
    LAST_CLIENT_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    State,
    TopicPartition,
    TransactionMetadata,
)
from kcodec.constants import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

_log = logging.getLogger(__name__)
_TYPE_BYTES = 2
#: The time until markers are written again that could not be written, as the disk is full.
MARKER_RETRY_MS = 1000


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class TransactionCoordinator:
    """The coordinator of all transactional ids. Requests that fail raise ApiError.

    on_offsets_marker: Called after a marker is in a partition of ``__consumer_offsets``, with the partition, the
                       producer id and whether the transaction was committed.
    """

    def __init__(self, clock: Clock, settings: BrokerSettings, topics: Topics) -> None:
        self._clock = clock
        self._settings = settings
        self._topics = topics
        self._states: dict[str, TransactionMetadata] = {}
        self._pending: dict[str, State] = {}
        self._markers: dict[str, Timer] = {}
        self.marker_delay_ms: float = settings.marker_delay_ms
        self.on_offsets_marker: Callable[[int, int, bool], None] = lambda partition, producer_id, is_commit: None
        clock.call_later(settings.transaction_timeout_scan_ms, self._scan_timeouts)
        clock.call_later(settings.transactional_id_scan_ms, self._scan_expired)

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return iter(list(self._states.values()))

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of a transactional id; None if it is unknown."""
        return self._states.get(transactional_id)

    # InitProducerId

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Return a producer id and epoch, and fence the previous producer that used the transactional id.

        If this aborts an open transaction, raise ApiError (CONCURRENT_TRANSACTIONS). The producer then repeats the
        request.
        """
        if transactional_id is None:
            return ProducerIdentity(self._topics.next_producer_id(), 0)
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if not 0 < timeout_ms <= self._settings.max_transaction_timeout_ms:
            raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        self._check_coordinator()
        found = self._states.get(transactional_id)
        if found is None:
            found = TransactionMetadata(transactional_id, self._topics.next_producer_id(), timeout_ms=timeout_ms)
            self._states[transactional_id] = found
        if transactional_id in self._pending:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not _may_continue(found, expected):
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        if found.state is State.ONGOING:
            self._decide(self._fenced(found))
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        now = self._clock.now_ms()
        changed: TransactionMetadata | None
        if found.is_epoch_exhausted and (expected is None or expected.epoch == found.producer_epoch):
            producer_id = self._topics.next_producer_id()
            changed = found.rotated(producer_id, timeout_ms, now, keeps_last=expected is not None)
        elif found.is_epoch_exhausted:
            # Kafka throws an IllegalStateException: only the last epoch gets another producer id
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"producer id {found.producer_id} has no more epochs")
        else:
            changed = found.incremented(timeout_ms, None if expected is None else expected.epoch, now)
        if changed is None:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        self._append(changed)
        return ProducerIdentity(changed.producer_id, changed.producer_epoch)

    # The partitions

    def _existing(self, transactional_id: str | None) -> TransactionMetadata:
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        self._check_coordinator()
        found = self._states.get(transactional_id)
        if found is None:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return found

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        client_version: int,
    ) -> None:
        """Add partitions to the open transaction, or begin one. Raise ApiError."""
        found = self._existing(transactional_id)
        if transactional_id in self._pending:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        _check_producer(found, producer)
        if found.state is State.ONGOING and partitions <= found.partitions:
            return
        self._append(found.with_partitions(partitions, self._clock.now_ms(), client_version))

    def add_or_verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        """Add partitions, or only verify them if the requests of the client do not add partitions. Return their error
        codes."""
        wanted = frozenset(partitions)
        try:
            if not adds:
                return self.verify(transactional_id, producer, wanted)
            self.add_partitions(transactional_id, producer, wanted, EPOCH_BUMP_VERSION)
        except ApiError as error:
            return dict.fromkeys(wanted, error.code)
        return dict.fromkeys(wanted, ErrorCode.NONE)

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return for each partition whether it is in the producer's open transaction. Raise ApiError if all are
        refused."""
        found = self._existing(transactional_id)
        _check_producer(found, producer)
        if found.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            one: ErrorCode.NONE if one in found.partitions else ErrorCode.TRANSACTION_ABORTABLE for one in partitions
        }

    # EndTxn

    def end(
        self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, client_version: int
    ) -> ProducerIdentity:
        """Decide a transaction. Return the producer identity for the next transaction. Raise ApiError."""
        found = self._existing(transactional_id)
        if client_version >= EPOCH_BUMP_VERSION:
            return self._end_bumping(found, producer, is_commit=is_commit, client_version=client_version)
        if found.producer_id != producer.producer_id:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if found.producer_epoch != producer.epoch:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        if transactional_id in self._pending:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if found.state is State.ONGOING:
            now = self._clock.now_ms()
            self._decide(found.ended(is_commit=is_commit, client_version=client_version, now=now))
        elif found.state is not (State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT):
            raise _invalid_end(found, is_commit=is_commit)
        return producer

    def _end_bumping(
        self, found: TransactionMetadata, producer: ProducerIdentity, *, is_commit: bool, client_version: int
    ) -> ProducerIdentity:
        """End a transaction with the epoch bump of KIP-890. A repeated request has the previous epoch or producer
        id."""
        if found.transactional_id in self._pending:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_repeated = found.producer_epoch == producer.epoch + 1
        is_after_rotation = (
            found.previous_producer_id == producer.producer_id
            and producer.epoch == LAST_CLIENT_EPOCH
            and found.producer_epoch == 0
        )
        if found.producer_id != producer.producer_id and not is_after_rotation:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_same = producer.epoch == found.producer_epoch
        if found.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            is_valid = is_repeated
        elif found.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            is_valid = is_repeated or is_after_rotation or is_same
        else:
            is_valid = is_same
        if not is_valid:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        is_empty = found.state is not State.ONGOING
        if is_empty and not is_same:
            if found.state is not (State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT):
                raise _invalid_end(found, is_commit=is_commit)
            return ProducerIdentity(found.producer_id, found.producer_epoch)
        if is_empty and is_commit:
            raise _invalid_end(found, is_commit=is_commit)
        next_producer_id = self._topics.next_producer_id() if found.is_epoch_exhausted else NO_PRODUCER_ID
        decided = found.ended(
            is_commit=is_commit,
            client_version=client_version,
            next_producer_id=next_producer_id,
            now=self._clock.now_ms(),
        )
        self._decide(decided)
        if next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(next_producer_id, 0)
        return ProducerIdentity(decided.producer_id, decided.producer_epoch)

    def _fenced(self, found: TransactionMetadata) -> TransactionMetadata:
        """Return the state of a transaction that the coordinator aborts, and whose producer it fences."""
        version = self._settings.transaction_version
        rotates = version >= EPOCH_BUMP_VERSION and found.is_epoch_exhausted
        next_producer_id = self._topics.next_producer_id() if rotates else NO_PRODUCER_ID
        return found.fenced(version, next_producer_id, self._clock.now_ms())

    def _decide(self, decided: TransactionMetadata) -> None:
        """Write the decision to the log, and schedule the markers."""
        self._append(decided)
        self._resume(decided)

    def _resume(self, decided: TransactionMetadata) -> None:
        is_commit = decided.state is State.PREPARE_COMMIT
        name = decided.transactional_id
        self._pending[name] = State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT
        delay = self.marker_delay_ms if decided.partitions else 0
        self._markers[name] = self._clock.call_later(delay, lambda: self._complete(name))

    def _complete(self, transactional_id: str) -> None:
        """Write the markers of a decided transaction, then the completion. Try again after a failed write."""
        self._markers.pop(transactional_id, None)
        decided = self._states[transactional_id]
        try:
            if not self._write_markers(decided):
                return
            self._append(decided.completed(self._clock.now_ms()))
        except (OSError, ApiError) as error:
            if isinstance(error, ApiError) and error.code is not ErrorCode.NOT_COORDINATOR:
                raise
            _log.error("markers of %s: %s; trying again in %d ms", transactional_id, error, MARKER_RETRY_MS)
            timer = self._clock.call_later(MARKER_RETRY_MS, lambda: self._complete(transactional_id))
            self._markers[transactional_id] = timer
            return
        self._pending.pop(transactional_id, None)

    def _write_markers(self, decided: TransactionMetadata) -> bool:
        """Write the markers. Return False if a partition refused a marker because it has seen a higher epoch.

        As in Kafka, the transition then stays pending until the coordinator reads its log again.
        """
        is_complete, waiting = True, decided.partitions
        transactional_id = decided.transactional_id
        is_commit = decided.state is State.PREPARE_COMMIT
        for topic, number in sorted(decided.partitions):
            partition = self._topics.partition(topic, number)
            if partition is None:
                continue  # the topic was deleted meanwhile: Kafka also drops the marker
            try:
                partition.log.append_marker(
                    decided.producer_id,
                    decided.producer_epoch,
                    self._coordinator_epoch(transactional_id),
                    is_commit=is_commit,
                    transaction_version=decided.client_version,
                )
            except ApiError as error:
                _log.warning("marker of %s for %s-%s: %s", transactional_id, topic, number, error)
                is_complete = False
                continue
            waiting -= {(topic, number)}
            if topic == CONSUMER_OFFSETS_TOPIC:
                self.on_offsets_marker(number, decided.producer_id, is_commit)
        if not is_complete:
            self._states[transactional_id] = replace(decided, partitions=waiting)
        return is_complete

    # Timers and faults

    def _scan_timeouts(self) -> None:
        """Abort transactions that are open for longer than their timeout, and fence their producers."""
        self._clock.call_later(self._settings.transaction_timeout_scan_ms, self._scan_timeouts)
        now = self._clock.now_ms()
        for found in list(self._states.values()):
            is_late = found.state is State.ONGOING and found.start_ms + found.timeout_ms < now
            if is_late and found.transactional_id not in self._pending:
                self._decide(self._fenced(found))

    def _scan_expired(self) -> None:
        """Forget transactional ids that were not used for a long time."""
        self._clock.call_later(self._settings.transactional_id_scan_ms, self._scan_expired)
        before = self._clock.now_ms() - self._settings.transactional_id_expiration_ms
        idle = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
        written: dict[int, list[str]] = {}
        for found in list(self._states.values()):
            if found.state in idle and found.update_ms <= before and found.transactional_id not in self._pending:
                del self._states[found.transactional_id]
                if found.producer_epoch != NO_EPOCH:
                    number = self._partition_of(found.transactional_id)
                    written.setdefault(number, []).append(found.transactional_id)
        for number, names in written.items():
            self._append_values(number, [(name, None) for name in names])

    # The log

    def _partition_of(self, transactional_id: str) -> int:
        return partition_for_key(transactional_id, self._settings.transaction_topic_partitions)

    def _coordinator_epoch(self, transactional_id: str) -> int:
        partition = self._topics.partition(TRANSACTION_STATE_TOPIC, self._partition_of(transactional_id))
        return 0 if partition is None else partition.leader_epoch

    def _check_coordinator(self) -> None:
        """Raise ApiError if FindCoordinator has not created the topic yet, as Kafka does."""
        if self._topics.get(TRANSACTION_STATE_TOPIC) is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"{TRANSACTION_STATE_TOPIC} does not exist yet")

    def _append(self, metadata: TransactionMetadata) -> None:
        """Write a transition to the log, then apply it in memory."""
        version = min(self._settings.transaction_version, 1)
        if version == 0 and metadata.client_version:
            # The log cannot hold the version of the client. Kafka also leaves the transition pending.
            self._pending[metadata.transactional_id] = metadata.state
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "transaction.version is 0")
        name = metadata.transactional_id
        self._append_values(self._partition_of(name), [(name, metadata.value(version))])
        self._states[metadata.transactional_id] = metadata

    def _append_values(self, number: int, values: Sequence[tuple[str, messages.TransactionLogValue | None]]) -> None:
        """Write one batch to a partition of the log."""
        partition = self._topics.partition(TRANSACTION_STATE_TOPIC, number)
        assert partition is not None
        version = min(self._settings.transaction_version, 1)
        keys = (messages.TransactionLogKey(transactional_id=name) for name, _ in values)
        records = [coordinator_record(key, value, version) for key, (_, value) in zip(keys, values, strict=True)]
        append_to_log(partition, records)

    def load(self) -> None:
        """Read the state from the log, at the start or after the state in memory was dropped."""
        for timer in self._markers.values():
            timer.cancel()
        self._states.clear()
        self._pending.clear()
        self._markers.clear()
        topic = self._topics.get(TRANSACTION_STATE_TOPIC)
        for partition in () if topic is None else topic.partitions:
            for entry in replayed(partition.log):
                if isinstance(entry, InternalRecord):
                    self._replay(entry)
        for found in list(self._states.values()):
            if found.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
                self._resume(found)

    def _replay(self, entry: InternalRecord) -> None:
        transactional_id = messages.TransactionLogKey.decode(entry.key, 0, _TYPE_BYTES).transactional_id
        if entry.value is None:
            self._states.pop(transactional_id, None)
            return
        version = int.from_bytes(entry.value[:_TYPE_BYTES], "big", signed=True)
        value = messages.TransactionLogValue.decode(entry.value, version, _TYPE_BYTES)
        self._states[transactional_id] = TransactionMetadata.of(transactional_id, value)


def _may_continue(found: TransactionMetadata, expected: ProducerIdentity) -> bool:
    """Return whether a request has the present producer id, or the previous one, whose epochs are used up."""
    return (
        found.producer_epoch == NO_EPOCH
        or expected.producer_id == found.producer_id
        or (expected.producer_id == found.previous_producer_id and expected.epoch >= LAST_CLIENT_EPOCH)
    )


def _check_producer(found: TransactionMetadata, producer: ProducerIdentity) -> None:
    if found.producer_id != producer.producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if found.producer_epoch != producer.epoch:
        raise ApiError(ErrorCode.PRODUCER_FENCED)


def _invalid_end(found: TransactionMetadata, *, is_commit: bool) -> ApiError:
    wanted = "commit" if is_commit else "abort"
    return ApiError(ErrorCode.INVALID_TXN_STATE, f"cannot {wanted} a transaction in state {found.state.title}")
