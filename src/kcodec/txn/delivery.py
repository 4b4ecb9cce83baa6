# SPDX-License-Identifier: Apache-2.0
"""What a send gives back: a `Delivery` ends in the record's place in the log, or in an error that names the partition.

A Delivery knows its batch and its index in it; the outcome belongs to the batch, so acknowledging a batch of a thousand
records is one assignment. How to wait for one is the face's business: `kcodec.client.producer` waits on a thread's
event, `kcodec.client.aio` on a future.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
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


def _call_all(callbacks: list[Callable[[Any], object]], delivery: Delivery | TableDelivery) -> None:
    for callback in callbacks:
        try:
            callback(delivery)
        except Exception:
            log.exception("a callback of a delivery to %s failed", delivery.topic)


class Delivery:
    """One record on its way. `topic` is known at once, `partition` once the topic's metadata is, `offset` at the end.

    offset, timestamp: as in `RecordMetadata`; `offset` is None until it is done, and if it failed.
    """

    __slots__ = ("_batch", "_callbacks", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp
        self._callbacks: list[Callable[[Any], object]] | None = None

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._batch.topic

    @property
    def partition(self) -> int | None:
        """The partition's number; None while the topic's metadata is awaited."""
        partition = self._batch.partition
        return partition if partition >= 0 else None

    @property
    def offset(self) -> int | None:
        """The record's offset once it is acknowledged."""
        batch = self._batch
        if not batch.is_done or batch.error is not None:
            return None
        return batch.base_offset + self._index if batch.base_offset >= 0 else -1

    @property
    def timestamp(self) -> int:
        """The record's timestamp in ms; once it is acknowledged, the one that was stored."""
        batch = self._batch
        return batch.log_append_time if batch.is_done and batch.log_append_time >= 0 else self._timestamp

    @property
    def error(self) -> BaseException | None:
        """Why it failed; None if it did not, or is not done."""
        return self._batch.error

    def done(self) -> bool:
        """Whether it ended, either way."""
        return self._batch.is_done

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` with this Delivery when it is done, at once if it is.

        It runs on the producer's own thread (asyncio: in its loop) and must be quick; what it raises goes to the log.
        """
        with self._batch.lock:
            if not self._batch.is_done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def move(self, batch: ProducerBatch, index: int) -> None:
        """For the accumulator, under its lock: the record is now in another batch."""
        self._batch, self._index = batch, index

    def like(self, batch: ProducerBatch, callback: Callable[[Any], object]) -> Delivery:
        """For the accumulator: the Delivery of the first record of another batch, with a callback."""
        made = type(self)(batch, 0, self._timestamp)
        made.expect(callback)
        return made

    def expect(self, callback: Callable[[Any], object]) -> None:
        """For the accumulator, under its lock, before anybody else knows it: the first callback."""
        self._callbacks = [callback]

    def outcome(self) -> RecordMetadata:
        """What it ended in; its error is raised. Only once it is done."""
        batch = self._batch
        if batch.error is not None:
            raise batch.error
        offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        return RecordMetadata(batch.topic, batch.partition, offset, self.timestamp)

    def tell(self) -> None:
        """For the sender, once the batch is done: call the callbacks."""
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            _call_all(callbacks, self)

    def __repr__(self) -> str:
        batch = self._batch
        place = f"{batch.topic}-{batch.partition}" if batch.partition >= 0 else batch.topic
        if not batch.is_done:
            return f"<{type(self).__name__} to {place}, under way>"
        state = f"offset {self.offset}" if batch.error is None else f"failed: {batch.error}"
        return f"<{type(self).__name__} to {place}, {state}>"


class TableDelivery:
    """A table on its way: done when every one of its batches is.

    deliveries: one a batch, that of its first record; they grow while the table is sent, or if a batch is split.
    """

    __slots__ = ("_callbacks", "_lock", "_missing", "_parts", "topic")

    def __init__(self, topic: str, lock: AbstractContextManager[Any]) -> None:
        self.topic = topic
        self._lock = lock
        self._parts: list[tuple[Delivery, int]] = []
        self._missing = 1  # the table itself, until `seal`
        self._callbacks: list[Callable[[Any], object]] = []

    @property
    def deliveries(self) -> list[Delivery]:
        """One Delivery a batch."""
        return [delivery for delivery, _ in self._parts]

    @property
    def error(self) -> BaseException | None:
        """The error of the first batch that failed."""
        return next((delivery.error for delivery, _ in self._parts if delivery.error is not None), None)

    def done(self) -> bool:
        """Whether all of it ended, either way."""
        return self._missing == 0

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """As `Delivery.add_done_callback`, once for the table."""
        with self._lock:
            if self._missing:
                self._callbacks.append(callback)
                return
        callback(self)

    def outcome(self) -> list[BatchMetadata]:
        """Where its batches lie, in the order they were sent; the first one's error is raised. Only once it is done."""
        if self.error is not None:
            raise self.error
        found = [(delivery.outcome(), count) for delivery, count in self._parts]
        return [BatchMetadata(first.topic, first.partition, first.offset, count) for first, count in found]

    def add(self, delivery: Delivery, records_count: int) -> None:
        """For the accumulator, under its lock: one more batch, of so many records, whose first is `delivery`'s."""
        self._parts.append((delivery, records_count))
        self._missing += 1

    def resize(self, delivery: Delivery, records_count: int) -> None:
        """For the accumulator, under its lock: the batch of `delivery` was split and is now so long."""
        self._parts = [(part, records_count if part is delivery else count) for part, count in self._parts]

    def seal(self) -> None:
        """For the producer: all of it is in the buffer, or will never be."""
        self.ended(None)

    def ended(self, _: object) -> None:
        """One batch ended (a callback of its delivery)."""
        with self._lock:
            self._missing -= 1
            callbacks = [] if self._missing else self._callbacks
        _call_all(callbacks, self)

    def __repr__(self) -> str:
        state = "under way" if not self.done() else "delivered" if self.error is None else f"failed: {self.error}"
        return f"<{type(self).__name__} of {len(self._parts)} batches to {self.topic}, {state}>"
