# SPDX-License-Identifier: Apache-2.0
"""The result of a send: a `Delivery` gets the offset of the record, or an error that names the partition.

A Delivery has its batch and its index in the batch, and the outcome belongs to the batch. The acknowledgment of a batch
is therefore one assignment for all of its records, and a Delivery that the program drops costs nothing more. If a
record moved to another batch, the first one knows its position there (`ProducerBatch.pieces`). The public classes
implement waiting: `kcodec.client.producer` waits on a thread's event, `kcodec.client.aio` on a future.

The error of a failed record counts as retrieved once it was read (`result`, `exception`, `error`, `await`), or if a
caller waits for the record or a callback is registered when it fails. Its batch counts errors that are not retrieved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain, starmap
from typing import Any, NamedTuple

from kcodec._fast import RecordDelivery
from kcodec.network.callbacks import CALLBACK_ERRORS
from kcodec.producer.batch import BatchOutcome, Callbacks, ProducerBatch
from kcodec.producer.failures import WHOLE

log = logging.getLogger("kcodec.producer")


class RecordMetadata(NamedTuple):
    """Where a record is stored (Kafka: RecordMetadata).

    topic, partition: Name of the topic, number of the partition.
    offset:    Offset in the partition; -1 if the broker did not report it (acks=0, or a repeated batch without
               details).
    timestamp: Timestamp in ms: that of the record, or that of the broker if message.timestamp.type is LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchMetadata(NamedTuple):
    """Where a batch of a table is stored.

    topic, partition: Name of the topic, number of the partition.
    base_offset: Offset of the first record; -1 if the broker did not report it.
    records_count: Number of records in the batch.
    """

    topic: str
    partition: int
    base_offset: int
    records_count: int


#: The function `on_delivery` of a send: called with the metadata and None, or with None and the error.
OnDelivery = Callable[[RecordMetadata | None, BaseException | None], object]


def calls_of(callbacks: Iterable[Callbacks]) -> Iterator[tuple[Callable[[Any], object], Any]]:
    """Return the callbacks with their arguments, one by one. Ctrl-C does not interrupt this iterator, which runs no
    Python code."""
    return chain.from_iterable(starmap(zip, callbacks))


def call_all(calls: Iterator[tuple[Callable[[Any], object], Any]]) -> None:
    """Call the callbacks, without the lock. Log the exceptions that they raise. If Ctrl-C in asyncio interrupts a
    callback, a second call continues with the next one."""
    for function, delivery in calls:
        try:
            function(delivery)
        except CALLBACK_ERRORS:
            log.exception("a callback of a delivery to %s failed", delivery.topic)


class Delivery(RecordDelivery):
    """The result of sending one record. `topic` is known immediately, `partition` when the topic's metadata is known,
    and `offset` when the record is acknowledged.

    offset, timestamp: See `RecordMetadata`. `offset` is None until the record is acknowledged.
    """

    __slots__ = ()
    _batch: ProducerBatch

    def _where(self) -> tuple[ProducerBatch, int]:
        """Return its current batch, and its index in that batch."""
        batch, index = self._batch, self._index
        while batch.pieces:
            batch, index = batch.place_of(index)
        return batch, index

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._batch.topic

    @property
    def partition(self) -> int | None:
        """The number of the partition; None until the topic's metadata is known."""
        partition = self._where()[0].partition
        return partition if partition >= 0 else None

    @property
    def offset(self) -> int | None:
        """The offset of the record once it is acknowledged; -1: unknown, None: not acknowledged."""
        batch, index = self._where()
        outcome = batch.outcome
        if outcome is None or outcome.error is not None:
            return None
        return outcome.base_offset + index if outcome.base_offset >= 0 else -1

    @property
    def timestamp(self) -> int:
        """The record's timestamp in ms. After the acknowledgment, it is the stored timestamp."""
        outcome = self._where()[0].outcome
        return self._timestamp if outcome is None or outcome.log_append_time < 0 else outcome.log_append_time

    @property
    def error(self) -> BaseException | None:
        """The error of the record; None if it did not fail or its outcome is not known yet. Reading it counts as
        retrieving the error."""
        batch, index = self._batch, self._index
        if batch.pieces:
            batch, index = self._where()
        if batch.failed is not None:
            with batch.lock:
                batch.failed.retrieve(index)
        outcome = batch.outcome
        return None if outcome is None else outcome.error

    @property
    def deadline(self) -> float:
        """The latest time at which the record is acknowledged or fails, by the producer's monotonic clock."""
        return self._where()[0].deadline

    def done(self) -> bool:
        """Return whether the record was acknowledged or has failed."""
        batch = self._batch
        return (self._where()[0] if batch.pieces else batch).outcome is not None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` with this Delivery when the outcome of the record is known.

        The callback runs on the producer's I/O thread (asyncio: in its event loop). If the outcome is already known, it
        runs immediately in the caller's thread. It must be quick and must not block, because all other records wait
        meanwhile. A call that would wait raises RuntimeError. Its exceptions are logged. A callback counts as
        retrieving the error.
        """
        if not self._register(callback):
            callback(self)

    def drop_done_callback(self, callback: Callable[[Any], object]) -> bool:
        """Remove a callback of a caller that stops waiting. Return False if the outcome of the record is known and the
        callback was called."""
        with self._batch.lock:
            batch, index = self._where()
            if batch.is_done:
                if batch.failed is not None:
                    batch.failed.not_retrieved(index)
                return False
            pairs = zip(batch.functions, batch.deliveries, strict=True)
            found = (at for at, (function, one) in enumerate(pairs) if one is self and function == callback)
            at = next(found, None)
            if at is None:
                raise ValueError(f"{callback!r} is not a callback of this Delivery")
            del batch.functions[at], batch.deliveries[at]
            return True

    def _not_retrieved(self) -> None:
        """Count the error as not retrieved again, because the callback that got it failed."""
        batch, index = self._where()
        with batch.lock:
            if batch.failed is not None:
                batch.failed.not_retrieved(index)

    def why_waiting(self) -> str:
        """Return why the record is not acknowledged yet, as the end of a sentence; empty if that is unknown."""
        batch = self._where()[0]
        owner = batch.owner  # None once the outcome is known, which may happen meanwhile
        why = None if owner is None else owner.why_waiting(batch)
        return f": {why}" if why else ""

    def check_wait(self) -> None:
        """Raise RuntimeError if the caller must not wait for it: on the I/O thread, or in another event loop."""
        owner = self._where()[0].owner
        if owner is not None:
            owner.check_wait()

    def begin_wait(self) -> None:
        """Note that a caller begins to wait for the record. Raise RuntimeError as `check_wait` does."""
        batch = self._where()[0]
        owner = batch.owner
        if owner is not None:
            owner.check_wait()
            owner.hurry(batch)

    def outcome(self) -> RecordMetadata:
        """Return where the record is stored, or raise its error. Call this only when `done` returns True."""
        batch, index = self._batch, self._index
        if batch.pieces:
            batch, index = self._where()
        base_offset, log_append_time, error = batch.outcome or BatchOutcome()
        if error is not None:
            if batch.failed is not None:
                with batch.lock:
                    batch.failed.retrieve(index)
            raise error
        offset = base_offset + index if base_offset >= 0 else -1
        timestamp = log_append_time if log_append_time >= 0 else self._timestamp
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp)

    def __repr__(self) -> str:
        batch = self._where()[0]
        place = f"{batch.topic}-{batch.partition}" if batch.partition >= 0 else batch.topic
        if not batch.is_done:
            return f"<{type(self).__name__} to {place}, under way>"
        state = f"offset {self.offset}" if batch.error is None else f"failed: {batch.error}"
        return f"<{type(self).__name__} to {place}, {state}>"


class TableDelivery:
    """The result of sending a table. It is complete when all of its batches are complete."""

    __slots__ = ("_batches", "_callbacks", "_lock", "_missing", "topic")

    def __init__(self, topic: str, lock: AbstractContextManager[Any]) -> None:
        self.topic = topic
        self._lock = lock
        self._batches: list[ProducerBatch] = []
        self._missing = 1  # the table itself, until `seal`
        self._callbacks: list[Callable[[Any], object]] = []

    @property
    def has_batches(self) -> bool:
        """Whether a part of the table was appended to the buffer, or has failed."""
        return bool(self._batches)

    @property
    def error(self) -> BaseException | None:
        """The error of the first batch that failed. Reading it counts as retrieving the errors of all batches."""
        error = self._first_error()
        if error is not None:
            with self._lock:
                self._retrieve()
        return error

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for the table, or a callback is registered. Read by the batches, under the lock."""
        return bool(self._callbacks)

    def _first_error(self) -> BaseException | None:
        return next((batch.error for batch in self._batches if batch.error is not None), None)

    def _retrieve(self) -> None:
        for batch in self._batches:
            if batch.failed is not None:
                batch.failed.retrieve(WHOLE)

    @property
    def deadline(self) -> float:
        """The latest time at which each batch is acknowledged or fails, by the producer's monotonic clock."""
        return max((batch.deadline for batch in self._batches), default=0.0)

    def done(self) -> bool:
        """Return whether each batch was acknowledged or has failed."""
        return self._missing == 0

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Do the same as `Delivery.add_done_callback`, once for the whole table."""
        with self._lock:
            self._retrieve()
            if self._missing:
                self._callbacks.append(callback)
                return
        callback(self)

    def drop_done_callback(self, callback: Callable[[Any], object]) -> bool:
        """Do the same as `Delivery.drop_done_callback`."""
        with self._lock:
            is_done = not self._missing
            if not is_done:
                self._callbacks.remove(callback)
            if is_done or not self._callbacks:
                for batch in self._batches:
                    if batch.failed is not None:
                        batch.failed.not_retrieved(WHOLE)
            return not is_done

    def why_waiting(self) -> str:
        """Do the same as `Delivery.why_waiting`, for the first batch that is not complete."""
        batch = next((batch for batch in self._batches if not batch.is_done), None)
        owner = None if batch is None else batch.owner
        why = None if batch is None or owner is None else owner.why_waiting(batch)
        return f": {why}" if why else ""

    def check_wait(self) -> None:
        """Do the same as `Delivery.check_wait`."""
        for batch in self._batches:
            owner = batch.owner
            if owner is not None:
                owner.check_wait()
                return

    def begin_wait(self) -> None:
        """Check the caller as `check_wait` does. Unlike `Delivery.begin_wait`, note nothing, as batches of a table do
        not linger."""
        self.check_wait()

    def outcome(self) -> list[BatchMetadata]:
        """Return the metadata of its batches in the order in which they were sent, or raise the first error. Call this
        only when `done` returns True."""
        error = self.error
        if error is not None:
            raise error
        return [
            BatchMetadata(batch.topic, batch.partition, batch.outcome.base_offset, batch.records_count)
            for batch in self._batches
            if batch.outcome is not None
        ]

    def add(self, batch: ProducerBatch) -> None:
        """For the accumulator, under its lock: add a batch, which calls `ended` at its end."""
        self._batches.append(batch)
        self._missing += 1

    def discard(self, batch: ProducerBatch) -> None:
        """For the accumulator, under its lock: remove a batch that is not in the buffer, as the call was interrupted.
        It may not have been added."""
        self._batches = [one for one in self._batches if one is not batch]
        self._missing = 1 + sum(not one.is_done for one in self._batches)

    def replace(self, batch: ProducerBatch, pieces: Sequence[ProducerBatch]) -> None:
        """For the accumulator, under its lock: replace a batch that was split into `pieces`."""
        at = self._batches.index(batch)
        self._batches[at : at + 1] = pieces
        self._missing += len(pieces) - 1

    def ended(self, callbacks: list[Callbacks]) -> None:
        """For the accumulator, under its lock: one batch ended. Add the callbacks to call if it was the last."""
        deliveries = [self] * len(self._callbacks)
        self._missing -= 1
        if not self._missing:
            callbacks += [(self._callbacks, deliveries)]

    def seal(self) -> None:
        """For the producer: note that all of the table is in the buffer, or will never be."""
        callbacks: list[Callbacks] = []
        with self._lock:
            self.ended(callbacks)
        call_all(calls_of(callbacks))

    def __repr__(self) -> str:
        error = self._first_error()
        state = "under way" if not self.done() else "delivered" if error is None else f"failed: {error}"
        return f"<{type(self).__name__} of {len(self._batches)} batches to {self.topic}, {state}>"
