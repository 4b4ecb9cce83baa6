# SPDX-License-Identifier: Apache-2.0
"""A batch on its way to one partition: filled by user threads, closed and numbered by the sender, kept until it ends.

The bytes are made once. A retry sends the same bytes: encoding again could split or compress differently, and a broker
that remembers a sequence number does not compare the records. Only a new identity rewrites the header, in a copy,
because a request with the old bytes may still be in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kcodec._fast import Record, RecordBatchBuilder, batches
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.producer.failures import WHOLE, FailedRecords, Failures
from kcodec.producer.identity import NO_PRODUCER
from kcodec.record.rewrite import set_producer_state

#: A record may be this much larger than its key, value and headers: lengths, deltas, attributes (and 10 a header).
RECORD_OVERHEAD = 36
HEADER_OVERHEAD = 10
#: The partition of rows that go wherever records without a key go.
ANY_PARTITION = -1
BATCH_OVERHEAD = 61
#: Behind it sequence numbers begin at 0 again.
LAST_SEQUENCE = 0x7FFFFFFF
#: Functions, and the deliveries that they are called with once these are done. Two lists, as a tuple for each callback
#: is one more object for the garbage collector.
Callbacks = tuple[Sequence[Callable[[Any], object]], Sequence[Any]]


class BatchOutcome(NamedTuple):
    """The outcome of a batch. `base_offset` and `log_append_time` are -1 if they are unknown or do not exist."""

    base_offset: int = -1
    log_append_time: int = -1
    error: BaseException | None = None


class BatchOwner(Protocol):
    """What a batch and its deliveries use of the producer. `kcodec.producer.accumulator.Accumulator` implements it.

    failures:    Counts failed records; None in transactions, whose commit raises the error.
    check_wait:  Raises RuntimeError if the caller must not wait for a record.
    why_waiting: Returns why a batch is not acknowledged yet, if the cause is known.
    """

    failures: Failures | None
    check_wait: Callable[[], None]
    why_waiting: Callable[[ProducerBatch], str | None]

    def hurry(self, batch: ProducerBatch) -> None:
        """Note that a caller begins to wait for a record of the batch."""


class BatchTable(Protocol):
    """What a batch uses of its table, under the lock. `kcodec.producer.delivery.TableDelivery` implements it."""

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for the table, or a callback is registered."""
        ...

    def replace(self, batch: ProducerBatch, pieces: Sequence[ProducerBatch]) -> None:
        """Replace a split batch by its pieces."""
        ...

    def ended(self, callbacks: list[Callbacks]) -> None:
        """Note that one batch ended. If it was the last one, add the callbacks to call."""
        ...


@dataclass(eq=False, slots=True)
class ProducerBatch:
    """Records of one partition that share one outcome.

    order:     Position among the batches of the partition: a tuple, so that pieces of a split batch keep its position.
    reserved:  Bytes of `buffer_memory` that are reserved for the batch.
    counted:   Bytes that are already reported to the choice of the partition for records without a key.
    grown:     Bytes by which it may exceed `batch_size` while it waits in its queue.
    is_full:   Whether it has `batch_size` bytes, and accepts more until it is sent.
    is_held:   Whether it is not sent before the previous transaction has been committed.
    raw_size:  Size in bytes before compression, once it is closed.
    created, deadline: Times of the producer's clock. After the deadline, the batch fails.
    attempts:  Number of times that it was sent.
    not_before: Earliest time of the next attempt.
    identity, base_sequence: Its numbers; NO_PRODUCER and -1 if it is not numbered.
    last_error: Error of the last attempt.
    uncertain: Whether an attempt got no response, so that the batch may be in the log.
    is_fixed:  Whether it may be in the log, and no request can find this out any more. It then fails, because with new
               numbers it may be written twice.
    functions, deliveries: Callbacks, which are called at the end. Used under the lock.
    table:     The table that it is a part of.
    pieces:    Where its records are now, if they moved: (first index, other batch, index of this record there).
    outcome:   None until the batch is complete.
    owner:     The part of its producer that a Delivery uses; None if the record was discarded.
    failed:    After a failure, the records whose errors are counted.
    """

    topic: str
    partition: int
    lock: AbstractContextManager[Any]
    order: tuple[int, ...] = ()
    owner: BatchOwner | None = None
    builder: RecordBatchBuilder | None = None
    data: bytes | bytearray | memoryview | None = None
    records_count: int = 0
    reserved: int = 0
    counted: int = 0
    grown: int = 0
    is_full: bool = False
    is_held: bool = False
    raw_size: int = 0
    created: float = 0.0
    deadline: float = 0.0
    not_before: float = 0.0
    attempts: int = 0
    identity: ProducerIdAndEpoch = NO_PRODUCER
    base_sequence: int = -1
    uncertain: bool = False
    is_fixed: bool = False
    functions: list[Callable[[Any], object]] = field(default_factory=list)
    deliveries: list[Any] = field(default_factory=list)
    table: BatchTable | None = None
    pieces: tuple[tuple[int, ProducerBatch, int], ...] = ()
    outcome: BatchOutcome | None = None
    last_error: BaseException | None = None
    failed: FailedRecords | None = None

    @property
    def is_done(self) -> bool:
        """Whether the batch is complete, which means that it was acknowledged or has failed."""
        return self.outcome is not None

    @property
    def error(self) -> BaseException | None:
        """The error that it failed with; None if it did not fail or is not complete."""
        return self.outcome.error if self.outcome is not None else None

    @property
    def is_numbered(self) -> bool:
        """Whether it has a sequence number."""
        return self.base_sequence >= 0

    @property
    def size_in_bytes(self) -> int:
        """Its size in bytes as sent; before it is closed, without compression."""
        if self.data is not None:
            return len(self.data)
        return self.builder.size_in_bytes if self.builder is not None else 0

    @property
    def open_builder(self) -> RecordBatchBuilder:
        """Its builder; only a batch that is not closed has one."""
        if self.builder is None:
            raise RuntimeError(f"the batch of {self.topic}-{self.partition} is closed")
        return self.builder

    def number(self, identity: ProducerIdAndEpoch, base_sequence: int, is_transactional: bool) -> None:
        """Set its identity and sequence number, in the builder or in the bytes. If it had numbers before, copy the
        bytes, because a request may still use them."""
        was_numbered = self.is_numbered
        self.identity, self.base_sequence = identity, base_sequence
        if self.data is None:
            if self.builder is not None:
                self.builder.set_producer_state(*identity, base_sequence, is_transactional)
            return
        data = self.data if isinstance(self.data, bytearray) and not was_numbered else bytearray(self.data)
        set_producer_state(data, *identity, base_sequence, is_transactional)
        self.data = data

    def close(self) -> None:
        """Encode the batch: compression and CRC. No record can be appended after this."""
        if self.data is None and self.builder is not None:
            self.records_count, self.raw_size = self.builder.records_count, self.builder.size_in_bytes
            self.data = memoryview(self.builder.take())
            self.builder = None

    def place_of(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch and index of a record that moved."""
        first, batch, there = next(piece for piece in reversed(self.pieces) if piece[0] <= index)
        return batch, index - first + there

    def move_to(self, batch: ProducerBatch, index: int) -> None:
        """Under the lock: note that this one record is now in another batch, at that index."""
        self.pieces = ((0, batch, index),)
        batch.functions += self.functions
        batch.deliveries += self.deliveries

    def split(self, new_builder: Callable[[], RecordBatchBuilder], most_bytes: int) -> list[ProducerBatch]:
        """Return at least two batches with the same records in the same order. Before compression, each has at most
        `most_bytes`, unless it has a single record. A numbered batch was rejected, so its sequence numbers are free,
        and the new batches use them in order. `hand_over` then replaces this batch by the new ones."""
        pieces: list[ProducerBatch] = []
        is_transactional = False
        left = self.records_count
        for whole in batches(self.data if self.data is not None else b""):
            is_transactional = whole.is_transactional
            for record in whole.records():
                left -= 1
                is_rest = len(pieces) == 1 and left == 0
                if not pieces or is_rest or not _has_room(pieces[-1].open_builder, record, most_bytes):
                    pieces.append(self._piece(new_builder(), len(pieces)))
                pieces[-1].open_builder.append(record.key, record.value, record.headers, record.timestamp)
        first = 0
        for piece in pieces:
            if self.is_numbered:
                piece.number(self.identity, (self.base_sequence + first) & LAST_SEQUENCE, is_transactional)
            piece.close()
            piece.reserved = piece.size_in_bytes
            first += piece.records_count
        return pieces

    def _piece(self, builder: RecordBatchBuilder, at: int) -> ProducerBatch:
        piece = ProducerBatch(self.topic, self.partition, self.lock, order=(*self.order, at), owner=self.owner)
        piece.builder = builder
        piece.created, piece.deadline = self.created, self.deadline
        piece.attempts, piece.uncertain, piece.is_fixed = self.attempts, self.uncertain, self.uncertain
        piece.table = self.table
        return piece

    def hand_over(self, pieces: Sequence[ProducerBatch]) -> None:
        """Under the lock: transfer deliveries, callbacks and the table to the batches that `split` returned."""
        first, placed = 0, []
        for piece in pieces:
            placed.append((first, piece, 0))
            first += piece.records_count
        self.pieces = tuple(placed)
        for function, delivery in zip(self.functions, self.deliveries, strict=True):
            piece, _ = delivery._where()
            piece.functions.append(function)
            piece.deliveries.append(delivery)
        if self.table is not None:
            self.table.replace(self, pieces)

    def finish(self, outcome: BatchOutcome, callbacks: list[Callbacks]) -> None:
        """Under the lock: set the final outcome and add the callbacks to call. The bytes are released. A second call
        only adds the callbacks that the first one has not added."""
        if self.outcome is None:
            if outcome.error is None:
                self.owner = None  # a reference to a Delivery does not keep its producer alive
            else:
                self._count_failed(outcome.error)
            self.outcome = outcome
            self.builder = self.data = None
        if self.functions:
            callbacks += [(self.functions, self.deliveries)]  # not a call, after which Python would handle a signal
            self.functions, self.deliveries = [], []
        if self.table is not None:
            self.table.ended(callbacks)
            self.table = None

    # Failures that nothing has retrieved

    @property
    def unfinished_records(self) -> int:
        """The number of its records; only meaningful before it is complete."""
        return self.builder.records_count if self.builder is not None else max(self.records_count, 1)

    def _count_failed(self, error: BaseException) -> None:
        """Count the records without a waiting caller and without a callback."""
        if self.owner is None or self.owner.failures is None:
            return
        self.records_count = self.unfinished_records
        if self.table is not None:
            retrieved = {WHOLE} if self.table.is_awaited else set()
        else:
            retrieved = {delivery._where()[1] for delivery in self.deliveries}
        self.failed = FailedRecords(self.owner.failures, self.topic, error, self.records_count, retrieved)


def _has_room(builder: RecordBatchBuilder, record: Record, most_bytes: int) -> bool:
    size = builder.most_bytes(record.key, record.value, record.headers)
    return builder.size_in_bytes + BATCH_OVERHEAD + size <= most_bytes
