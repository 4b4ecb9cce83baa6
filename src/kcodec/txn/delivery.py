# SPDX-License-Identifier: Apache-2.0
"""What a send gives back: a `Delivery` ends in the record's place in the log, or in an error that names the partition.

A Delivery knows its batch and its index in it; the outcome belongs to the batch, so acknowledging a batch of a thousand
records is one assignment, and a Delivery that nobody keeps costs nothing more. Where a record moved to another batch,
the one it left says where (`ProducerBatch.pieces`). How to wait for one is the face's business:
`kcodec.client.producer` waits on a thread's event, `kcodec.client.aio` on a future.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kcodec.txn.batch import ProducerBatch

log = logging.getLogger("kcodec.producer")


class RecordMetadata(NamedTuple):
    """Where a record lies (Kafka: RecordMetadata).

    offset:    in the partition; -1 where the broker did not say: acks=0, or a repeat it has no details of any more.
    timestamp: ms: the record's own, or the broker's where the topic has message.timestamp.type=LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchMetadata(NamedTuple):
    """Where a batch of a table lies: its first record's offset, and how many records follow from there on."""

    topic: str
    partition: int
    base_offset: int
    records_count: int


Callback = Callable[[Any], object]


def call_all(callbacks: Sequence[tuple[Callback, Delivery | TableDelivery]]) -> None:
    """Tell those who wait. What a callback raises goes to the log."""
    for callback, delivery in callbacks:
        try:
            callback(delivery)
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
    def current_batch(self) -> ProducerBatch:
        """For the accumulator, under its lock: the batch it is in."""
        return self._where()[0]

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
        """The record's offset once it is acknowledged; -1: not told, None: not acknowledged."""
        batch, index = self._where()
        if not batch.is_done or batch.error is not None:
            return None
        return batch.base_offset + index if batch.base_offset >= 0 else -1

    @property
    def timestamp(self) -> int:
        """The record's timestamp in ms; once it is acknowledged, the one that was stored."""
        batch = self._where()[0]
        return batch.log_append_time if batch.is_done and batch.log_append_time >= 0 else self._timestamp

    @property
    def error(self) -> BaseException | None:
        """Why it failed; None if it did not, or is not done."""
        return self._where()[0].error

    @property
    def deadline(self) -> float:
        """When it ends at the latest, by the producer's monotonic clock."""
        return self._where()[0].deadline

    def done(self) -> bool:
        """Whether it ended, either way."""
        return self._where()[0].is_done

    def add_done_callback(self, callback: Callback) -> None:
        """Call `callback` with this Delivery when it is done, at once if it is.

        It runs on the producer's own thread (asyncio: in its loop) and must be quick; what it raises goes to the log.
        """
        with self._batch.lock:
            batch = self._where()[0]
            if not batch.is_done:
                batch.callbacks.append((callback, self))
                return
        callback(self)

    def outcome(self) -> RecordMetadata:
        """What it ended in; its error is raised. Only once it is done."""
        batch, index = self._where()
        if batch.error is not None:
            raise batch.error
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        return RecordMetadata(batch.topic, batch.partition, offset, self.timestamp)

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
        self._callbacks: list[tuple[Callback, TableDelivery]] = []

    @property
    def error(self) -> BaseException | None:
        """The error of the first batch that failed."""
        return next((batch.error for batch in self._batches if batch.error is not None), None)

    @property
    def deadline(self) -> float:
        """When it ends at the latest, by the producer's monotonic clock."""
        return max((batch.deadline for batch in self._batches), default=0.0)

    def done(self) -> bool:
        """Whether all of it ended, either way."""
        return self._missing == 0

    def add_done_callback(self, callback: Callback) -> None:
        """As `Delivery.add_done_callback`, once for the table."""
        with self._lock:
            if self._missing:
                self._callbacks.append((callback, self))
                return
        callback(self)

    def outcome(self) -> list[BatchMetadata]:
        """Where its batches lie, in the order they were sent; the first one's error is raised. Only once it is done."""
        if self.error is not None:
            raise self.error
        return [
            BatchMetadata(batch.topic, batch.partition, batch.base_offset, batch.records_count)
            for batch in self._batches
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

    def ended(self) -> Sequence[tuple[Callback, TableDelivery]]:
        """For the accumulator, under its lock: one batch ended. Whom to tell, if it was the last."""
        self._missing -= 1
        return () if self._missing else self._callbacks

    def seal(self) -> None:
        """For the producer: all of it is in the buffer, or will never be."""
        with self._lock:
            told = self.ended()
        call_all(told)

    def __repr__(self) -> str:
        state = "under way" if not self.done() else "delivered" if self.error is None else f"failed: {self.error}"
        return f"<{type(self).__name__} of {len(self._batches)} batches to {self.topic}, {state}>"
