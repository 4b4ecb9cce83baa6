# SPDX-License-Identifier: Apache-2.0
"""What a send returns: a `Delivery` ends in the record's offset in the log, or in an error that names the partition.

A Delivery knows its batch and its index in it; the outcome belongs to the batch, so acknowledging a batch of a thousand
records is one assignment, and a Delivery that is not kept costs nothing more. Where a record moved to another batch,
the one it left says where (`ProducerBatch.pieces`). Waiting is left to the public classes:
`kcodec.client.producer` waits on a thread's event, `kcodec.client.aio` on a future.

The error of a failed record counts as retrieved once it was read (`result`, `exception`, `error`, `await`), or where a
caller waits for the record or a callback is there when it fails; what is not retrieved is counted by its batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from kcodec.producer.batch import BatchOutcome, Callback, ProducerBatch
from kcodec.producer.failures import WHOLE

log = logging.getLogger("kcodec.producer")


class RecordMetadata(NamedTuple):
    """Where a record is stored (Kafka: RecordMetadata).

    offset:    in the partition; -1 where the broker did not say: acks=0, or a repeat it has no details of any more.
    timestamp: ms: the record's own, or the broker's where the topic has message.timestamp.type=LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchMetadata(NamedTuple):
    """Where a batch of a table is stored: its first record's offset, and how many records follow from there on."""

    topic: str
    partition: int
    base_offset: int
    records_count: int


def call_all(callbacks: Sequence[Callback]) -> None:
    """Call them, without the lock. What a callback raises goes to the log."""
    for function, delivery in callbacks:
        try:
            function(delivery)
        except Exception:
            log.exception("a callback of a delivery to %s failed", delivery.topic)


class Delivery:
    """One record on its way. `topic` is known at once, `partition` once the topic's metadata is, `offset` at the end.

    offset, timestamp: as in `RecordMetadata`; `offset` is None until it is done, and if it failed.
    """

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def _where(self) -> tuple[ProducerBatch, int]:
        """Its batch, and its index there, now."""
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
        """The partition's number; None while the topic's metadata is awaited."""
        partition = self._where()[0].partition
        return partition if partition >= 0 else None

    @property
    def offset(self) -> int | None:
        """The record's offset once it is acknowledged; -1: not known, None: not acknowledged."""
        batch, index = self._where()
        outcome = batch.outcome
        if outcome is None or outcome.error is not None:
            return None
        return outcome.base_offset + index if outcome.base_offset >= 0 else -1

    @property
    def timestamp(self) -> int:
        """The record's timestamp in ms; once it is acknowledged, the one that was stored."""
        outcome = self._where()[0].outcome
        return self._timestamp if outcome is None or outcome.log_append_time < 0 else outcome.log_append_time

    @property
    def error(self) -> BaseException | None:
        """Why it failed; None if it did not, or is not done. Reading it counts as retrieving it."""
        batch, index = self._where()
        if batch.failed is not None:
            with batch.lock:
                batch.failed.retrieve(index)
        return batch.error

    @property
    def deadline(self) -> float:
        """When it ends at the latest, by the producer's monotonic clock."""
        return self._where()[0].deadline

    def done(self) -> bool:
        """Whether it ended, either way."""
        return self._where()[0].is_done

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` with this Delivery when it is done, at once if it is.

        It runs on the I/O thread of the producer (asyncio: in its event loop), or at once in the caller's thread if the
        record is done. It must be quick and must not block: all other records wait meanwhile, and a call that would
        wait there raises RuntimeError. What it raises goes to the log. It counts as retrieving the error.
        """
        with self._batch.lock:
            batch, index = self._where()
            if not batch.is_done:
                batch.callbacks.append((index, (callback, self)))
                return
            if batch.failed is not None:
                batch.failed.retrieve(index)
        callback(self)

    def drop_done_callback(self, callback: Callable[[Any], object]) -> bool:
        """For callers that waited and leave without the error. False: it is done, and has called `callback`."""
        with self._batch.lock:
            batch, index = self._where()
            if batch.is_done:
                if batch.failed is not None:
                    batch.failed.not_retrieved(index)
                return False
            batch.callbacks.remove((index, (callback, self)))
            return True

    def why_waiting(self) -> str:
        """What is known of why it is not done, to follow a text; empty if nothing is."""
        batch = self._where()[0]
        why = batch.owner.why_waiting(batch) if batch.owner is not None else None
        return f": {why}" if why else ""

    def check_wait(self) -> None:
        """Raise RuntimeError where a caller must not wait for it: on the I/O thread, or in another event loop."""
        owner = self._where()[0].owner
        if owner is not None:
            owner.check_wait()

    def outcome(self) -> RecordMetadata:
        """What it ended in; its error is raised. Only once it is done."""
        batch, index = self._where()
        outcome = batch.outcome or BatchOutcome()
        if outcome.error is not None:
            if batch.failed is not None:
                with batch.lock:
                    batch.failed.retrieve(index)
            raise outcome.error
        offset = outcome.base_offset + index if outcome.base_offset >= 0 else -1
        timestamp = outcome.log_append_time if outcome.log_append_time >= 0 else self._timestamp
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp)

    def __repr__(self) -> str:
        batch = self._where()[0]
        place = f"{batch.topic}-{batch.partition}" if batch.partition >= 0 else batch.topic
        if not batch.is_done:
            return f"<{type(self).__name__} to {place}, under way>"
        state = f"offset {self.offset}" if batch.error is None else f"failed: {batch.error}"
        return f"<{type(self).__name__} to {place}, {state}>"


class TableDelivery:
    """A table on its way: done when every one of its batches is."""

    __slots__ = ("_batches", "_callbacks", "_lock", "_missing", "topic")

    def __init__(self, topic: str, lock: AbstractContextManager[Any]) -> None:
        self.topic = topic
        self._lock = lock
        self._batches: list[ProducerBatch] = []
        self._missing = 1  # the table itself, until `seal`
        self._callbacks: list[Callback] = []

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
        """For the batches, under the lock: whether a caller waits for the table, or a callback is there."""
        return bool(self._callbacks)

    def _first_error(self) -> BaseException | None:
        return next((batch.error for batch in self._batches if batch.error is not None), None)

    def _retrieve(self) -> None:
        for batch in self._batches:
            if batch.failed is not None:
                batch.failed.retrieve(WHOLE)

    @property
    def deadline(self) -> float:
        """When it ends at the latest, by the producer's monotonic clock."""
        return max((batch.deadline for batch in self._batches), default=0.0)

    def done(self) -> bool:
        """Whether all of it ended, either way."""
        return self._missing == 0

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """As `Delivery.add_done_callback`, once for the table."""
        with self._lock:
            self._retrieve()
            if self._missing:
                self._callbacks.append((callback, self))
                return
        callback(self)

    def drop_done_callback(self, callback: Callable[[Any], object]) -> bool:
        """As `Delivery.drop_done_callback`."""
        with self._lock:
            is_done = not self._missing
            if not is_done:
                self._callbacks.remove((callback, self))
            if is_done or not self._callbacks:
                for batch in self._batches:
                    if batch.failed is not None:
                        batch.failed.not_retrieved(WHOLE)
            return not is_done

    def why_waiting(self) -> str:
        """As `Delivery.why_waiting`, of the first batch that is not done."""
        batch = next((batch for batch in self._batches if not batch.is_done), None)
        why = batch.owner.why_waiting(batch) if batch is not None and batch.owner is not None else None
        return f": {why}" if why else ""

    def check_wait(self) -> None:
        """As `Delivery.check_wait`."""
        for batch in self._batches:
            if batch.owner is not None:
                batch.owner.check_wait()
                return

    def outcome(self) -> list[BatchMetadata]:
        """Where its batches are stored, in the order sent; the first one's error is raised. Only once it is done."""
        error = self.error
        if error is not None:
            raise error
        return [
            BatchMetadata(batch.topic, batch.partition, batch.outcome.base_offset, batch.records_count)
            for batch in self._batches
            if batch.outcome is not None
        ]

    def add(self, batch: ProducerBatch) -> None:
        """For the accumulator, under its lock: one more batch; it calls `ended` at its end."""
        self._batches.append(batch)
        self._missing += 1

    def replace(self, batch: ProducerBatch, pieces: Sequence[ProducerBatch]) -> None:
        """For the accumulator, under its lock: a batch was split."""
        at = self._batches.index(batch)
        self._batches[at : at + 1] = pieces
        self._missing += len(pieces) - 1

    def ended(self) -> Sequence[Callback]:
        """For the accumulator, under its lock: one batch ended. Return the callbacks to call if it was the last."""
        self._missing -= 1
        return () if self._missing else self._callbacks

    def seal(self) -> None:
        """For the producer: all of it is in the buffer, or will never be."""
        with self._lock:
            callbacks = self.ended()
        call_all(callbacks)

    def __repr__(self) -> str:
        error = self._first_error()
        state = "under way" if not self.done() else "delivered" if error is None else f"failed: {error}"
        return f"<{type(self).__name__} of {len(self._batches)} batches to {self.topic}, {state}>"
