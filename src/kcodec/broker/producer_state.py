# SPDX-License-Identifier: Apache-2.0
"""What the leader of a partition stores about producers: epochs, the last five batches, open transactions.

The rules are Kafka's (ProducerStateManager, ProducerAppendInfo, ProducerStateEntry). `check_batch` and `check_marker`
run before the append and change nothing. `add_batch` and `add_marker` run after the append and change the state. A
replay of the log needs only these two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kcodec.broker.api import ApiError
from kcodec.broker.transactions.state import EPOCH_BUMP_VERSION, HIGHEST_EPOCH, NO_EPOCH
from kcodec.log import ProducerState
from kcodec.protocol.error_codes import ErrorCode

#: The batches of a producer in which a repeated one is recognized; why a client may have five requests in flight.
WINDOW = 5
HIGHEST_SEQUENCE = (1 << 31) - 1
NO_SEQUENCE = -1


class BatchHeader(NamedTuple):
    """The fields of a batch on which the state of its producer depends."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    is_transactional: bool


class KeptBatch(NamedTuple):
    """One of the last batches of a producer."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        """The base offset in the response to the batch."""
        return self.last_offset - self.offset_delta


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(slots=True)
class ProducerEntry:
    """The state of one producer. `first_offset` is that of the open transaction; None if no transaction is open."""

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    timestamp: int = -1
    first_offset: int | None = None
    batches: deque[KeptBatch] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def last_sequence(self) -> int:
        """The last sequence number, or -1 if no batch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def set_epoch(self, epoch: int) -> None:
        """Set a new epoch, whose first sequence number is 0."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()

    def stored(self) -> ProducerState:
        """Return the entry for a snapshot, which contains only the last batch."""
        last = self.batches[-1] if self.batches else None
        return ProducerState(
            self.producer_id,
            self.epoch,
            -1 if last is None else last.last_sequence,
            -1 if last is None else last.last_offset,
            0 if last is None else last.offset_delta,
            self.timestamp,
            self.coordinator_epoch,
            self.first_offset,
        )


@dataclass(slots=True)
class _Verification:
    """The first batch of a producer in a transaction, while the coordinator verifies it (VerificationStateEntry)."""

    epoch: int
    lowest_sequence: int
    bumps_epoch: bool
    timestamp: int


class ProducerStates:
    """The states of all producers of a partition."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        self._verifications: dict[int, _Verification] = {}

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of a producer; None if it is unknown."""
        return self._entries.get(producer_id)

    def first_unstable_offset(self) -> int | None:
        """Return the first offset of the earliest open transaction; None if no transaction is open."""
        return min(self._open.values(), default=None)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction in this epoch."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.first_offset is not None and entry.epoch == epoch

    # Client data

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, bumps_epoch: bool
    ) -> None:
        """Store the first batch of a transaction before the coordinator verifies it.

        bumps_epoch: Whether the producer ends transactions with an epoch bump. The value of the first attempt counts.

        Raise ApiError if the state of the partition shows that the epoch is fenced.
        """
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {epoch} is behind {entry.epoch}")
        found = self._verifications.get(producer_id)
        if found is None:
            self._verifications[producer_id] = _Verification(epoch, sequence, bumps_epoch, now_ms)
            return
        if epoch > found.epoch or (epoch == found.epoch and sequence < found.lowest_sequence):
            found.epoch, found.lowest_sequence = epoch, sequence

    def duplicate(self, batch: BatchHeader) -> KeptBatch | None:
        """Return the stored batch that this one repeats. Only sequence numbers are compared, not contents."""
        entry = self._entries.get(batch.producer_id)
        if entry is None or entry.epoch != batch.producer_epoch:
            return None
        wanted = (batch.base_sequence, batch.last_sequence)
        return next((kept for kept in entry.batches if kept[:2] == wanted), None)

    def check_batch(self, batch: BatchHeader, *, is_client: bool) -> None:
        """Raise ApiError if a leader refuses the batch. The transaction of the batch must have been verified before."""
        entry = self._entries.get(batch.producer_id)
        epoch = NO_EPOCH if entry is None else entry.epoch
        if batch.producer_epoch < epoch:
            text = (
                f"Epoch of producer {batch.producer_id} is {batch.producer_epoch}, which is smaller than the last seen"
            )
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, f"{text} epoch {epoch}")
        if is_client:
            self._check_sequence(batch, entry)
        if entry is not None and entry.first_offset is not None and not batch.is_transactional:
            text = f"Expected transactional write from producer {batch.producer_id} with its open transaction"
            raise ApiError(ErrorCode.INVALID_TXN_STATE, text)

    def _check_sequence(self, batch: BatchHeader, entry: ProducerEntry | None) -> None:
        verification = self._verifications.get(batch.producer_id)
        first = batch.base_sequence
        if (
            verification is not None
            and verification.bumps_epoch
            and first != 0
            and (entry is None or not entry.batches)
        ):
            raise _out_of_order(batch, "0 in a partition that does not know the producer")
        if verification is not None and first > verification.lowest_sequence:
            raise _out_of_order(batch, f"{verification.lowest_sequence}, which came first")
        if entry is None or entry.epoch == NO_EPOCH:
            return
        if batch.producer_epoch != entry.epoch:
            if first != 0:
                raise _out_of_order(batch, "0 in a new epoch")
            return
        last = entry.last_sequence
        if first != last + 1 and not (first == 0 and last == HIGHEST_SEQUENCE):
            raise _out_of_order(batch, f"the one after {last}")

    def add_batch(self, batch: BatchHeader) -> None:
        """Apply a batch of data that is in the log."""
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            entry = self._entries[batch.producer_id] = ProducerEntry(batch.producer_id)
        entry.set_epoch(batch.producer_epoch)
        sequences, delta = (batch.base_sequence, batch.last_sequence), batch.last_offset - batch.base_offset
        entry.batches.append(KeptBatch(*sequences, batch.last_offset, delta, batch.timestamp))
        entry.timestamp = batch.timestamp
        if batch.is_transactional:
            self._verifications.pop(batch.producer_id, None)
            if entry.first_offset is None:
                entry.first_offset = self._open[batch.producer_id] = batch.base_offset

    # Markers

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int) -> None:
        """Raise ApiError if the producer epoch or the coordinator epoch is fenced (KIP-1228).

        With transaction version 2, the epoch must be higher than that of the transaction. It may be the same if no
        transaction is open, because the marker has then been written before, and is written again.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        bumps_epoch = transaction_version >= EPOCH_BUMP_VERSION
        is_repeated = entry.first_offset is None or epoch == HIGHEST_EPOCH
        if epoch < entry.epoch or (bumps_epoch and epoch == entry.epoch and not is_repeated):
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, f"the marker has epoch {epoch}, the last is {entry.epoch}")
        if coordinator_epoch < entry.coordinator_epoch:
            text = f"the marker has coordinator epoch {coordinator_epoch}, the last is {entry.coordinator_epoch}"
            raise ApiError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, text)

    def add_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp: int, *, is_aborted: bool
    ) -> CompletedTransaction | None:
        """Apply a marker that is in the log. Return the transaction that it ended, if any."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id)
        entry.set_epoch(epoch)
        entry.coordinator_epoch, entry.timestamp = coordinator_epoch, timestamp
        first, entry.first_offset = entry.first_offset, None
        self._open.pop(producer_id, None)
        verification = self._verifications.get(producer_id)
        # with the epoch bump, a marker of this epoch ends the previous transaction, not the one that is being verified
        if verification is not None and not (verification.bumps_epoch and verification.epoch == epoch):
            del self._verifications[producer_id]
        return None if first is None else CompletedTransaction(producer_id, first, offset, is_aborted)

    # Expiry and snapshots

    def expire(self, before_ms: int) -> None:
        """Forget producers without an open transaction whose last batch or marker is not after `before_ms`."""
        for entry in list(self._entries.values()):
            if entry.first_offset is None and entry.timestamp <= before_ms:
                del self._entries[entry.producer_id]
        for producer_id, verification in list(self._verifications.items()):
            if verification.timestamp <= before_ms:
                del self._verifications[producer_id]

    def stored(self) -> list[ProducerState]:
        """Return the entries of a snapshot."""
        return [entry.stored() for entry in self._entries.values()]

    def load(self, states: Iterable[ProducerState]) -> None:
        """Load the entries of a snapshot."""
        for state in states:
            entry = self._entries[state.producer_id] = ProducerEntry(state.producer_id)
            entry.epoch, entry.coordinator_epoch = state.producer_epoch, state.coordinator_epoch
            entry.timestamp, entry.first_offset = state.timestamp, state.current_transaction_first_offset
            if entry.first_offset is not None:
                self._open[state.producer_id] = entry.first_offset
            if state.last_offset >= 0:
                sequences = (state.first_sequence, state.last_sequence)
                kept = KeptBatch(*sequences, state.last_offset, state.offset_delta, state.timestamp)
                entry.batches.append(kept)


def _out_of_order(batch: BatchHeader, expected: str) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Out of order sequence number for producer {batch.producer_id} at epoch {batch.producer_epoch}:"
        f" {batch.base_sequence}, expected {expected}",
    )
