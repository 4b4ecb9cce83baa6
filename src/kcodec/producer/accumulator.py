# SPDX-License-Identifier: Apache-2.0
"""The buffer of records until they are sent: one queue of batches for each partition (Kafka: RecordAccumulator).

This is the only part of a producer that user threads access. They always hold the producer's lock (in asyncio, a lock
without effect). A record whose partition has an open batch with free capacity is appended by compiled code
(`kcodec._fast.RecordAppender`): one lookup for the topic, one for the partition, and the record is written into the
batch. `append_slowly` handles all other records. The I/O thread compresses the batches.

Records of a topic without metadata wait in its buffer until `update_topic` assigns them to partitions. Memory is
counted by batch, at least `batch_size` for each, and released when the batch ends. If no memory is free, or if other
callers wait for memory, `append` returns None, and the public class waits for `on_space`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kcodec._fast import RecordAppender, RecordBatchBuilder
from kcodec.errors import EncodeError, TransportError
from kcodec.flow import Clock
from kcodec.integers import INT64_MAX, as_integer
from kcodec.offsets import check_topic
from kcodec.producer.batch import (
    BATCH_OVERHEAD,
    HEADER_OVERHEAD,
    RECORD_OVERHEAD,
    BatchOutcome,
    Callbacks,
    ProducerBatch,
)
from kcodec.producer.delivery import Delivery, TableDelivery
from kcodec.producer.failures import Failures
from kcodec.producer.partition_queue import PartitionQueue
from kcodec.producer.partitioner import TopicBuffer, WaitingRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kcodec.producer.options import ProducerSettings

#: A batch of this age no longer grows, because its records share the deadline of the first one.
GROWTH_SECONDS = 1.0
#: With this many requests in flight to its broker, a full batch waits for a response, for linger_ms at most.
BUSY_REQUESTS = 2
#: Memory that a record takes in addition while it waits for the metadata of its topic, as an object of its own.
WAITING_RECORD_BYTES = 700
#: The default of `send`, which is recognized without a look at its type.
NO_HEADERS: tuple[()] = ()


class BufferMemory:
    """The memory of one producer for batches (`buffer_memory`), and the callers that wait for it.

    free:       Number of free bytes. It is negative while batches that had to be split take more.
    waiters:    Number of callers that wait for memory; 0 while the first of them has not tried to get it.
    must_queue: Whether callers wait, so that another caller does not get memory before them.
    must_pause: Returns whether a caller must let its event loop run before it gets memory.
    on_space:   Called, with the producer's lock held, when memory was released while a caller waits for it.
    """

    def __init__(self, size: int, on_space: Callable[[], None]) -> None:
        self.free = size
        self.waiters = 0
        self.must_queue = False
        self.must_pause: Callable[[], bool] = lambda: False
        self.on_space = on_space

    def can_take(self, size: int) -> bool:
        """Return whether a caller that does not wait yet gets this number of bytes now."""
        return size <= self.free and not self.must_queue and not self.must_pause()

    def release(self, size: int) -> None:
        """Release memory, and tell a caller that waits for it."""
        self.free += size
        if self.waiters:
            self.on_space()


class Accumulator(RecordAppender):
    """The buffer of one producer. The caller of a method must hold the lock, except for `send`, which takes it (a
    SendLock).

    wake:     Wakes the sender, from any thread. It is called only once until `take_wake`.
    linger:   Time from the settings, or a longer time while the processor is the limit. The sender changes it.
    next_look: Time at which the sender runs next without being woken; infinity if only an event wakes it.
    loads:    Number of requests in flight for each broker. Only the sender changes it.
    awaited:  Batches that were not sent yet and contain a record that a caller waits for. If there are any, no record
              lingers while no request is in flight.
    held_until: Latest time of `release_held` while records are held back; otherwise None.
    refusal:  Error that `send` raises while it is set: the producer is closed, or no transaction is open.
    failures, check_wait, why_waiting: See BatchOwner.
    check_caller: Called before a new batch, and if `owner_thread` is set. Return the identifier of the caller's thread.
              Raise RuntimeError in an event loop that is not the producer's.
    acknowledged: Number of batches that brokers have acknowledged.
    """

    topics: dict[str, TopicBuffer]

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        clock: Clock,
        random: Callable[[], float],
        lock: AbstractContextManager[Any],
        new_delivery: type[Delivery],
        wake: Callable[[], None],
        on_space: Callable[[], None],
        failures: Failures | None,
        check_wait: Callable[[], None],
        why_waiting: Callable[[ProducerBatch], str | None],
    ) -> None:
        super().__init__(lock, new_delivery, settings.ignore_keys)
        self.settings = settings
        #: Those that the sender has not seen yet.
        self.new_topics: list[TopicBuffer] = []
        self.active: dict[PartitionQueue, None] = {}
        self.unfinished: dict[ProducerBatch, None] = {}
        self.memory = BufferMemory(settings.buffer_memory, on_space)
        self.acknowledged = 0
        self.linger = settings.linger
        self.next_look = float("inf")
        self.awaited: set[ProducerBatch] = set()
        self.held_until: float | None = None
        self.loads: dict[int | None, int] = {}
        self.failures = failures
        self.check_wait = check_wait
        self.check_caller: Callable[[], int] = lambda: 0
        self.why_waiting = why_waiting
        self._clock = clock
        self._random = random
        self._new_delivery = new_delivery
        self._wake = wake
        self._is_awake = False
        self._template = RecordBatchBuilder(
            compression=settings.compression_type,  # type: ignore[arg-type]
            compression_level=settings.compression_level,
        )
        self._scratch = self.new_builder(settings.max_request_size)

    # Records come in

    def append_slowly(
        self,
        topic: str,
        key: Buffer | None,
        value: Buffer | None,
        headers: Any,
        partition: int | None,
        timestamp: int,
    ) -> Delivery | None:
        """Append a record to the open batch of its partition. Return None if `buffer_memory` has no free capacity now.

        headers: Headers as `header_pairs` returns them.

        Raise EncodeError if a value is invalid, if the record is larger than `max_request_size`, or if the topic does
        not have the partition. Raise `refusal` if it is set.
        """
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)  # which would grow with each raise
        if self.owner_thread != 0:
            self.owner_thread = self.check_caller()  # the producer's event loop may run on another thread now
        if partition is not None and type(partition) is not int:
            number = as_integer(partition)
            if number is None:
                raise EncodeError(
                    f"partition must be an int or None, got {partition!r:.100} of type {type(partition).__name__}",
                    field="partition",
                    value=partition,
                )
            partition = number
        buffer = self.topics.get(topic)
        if buffer is None or not buffer.queues:
            return self._append_waiting(topic, key, value, headers, partition, timestamp)
        while True:
            queue = buffer.queue_for(key, partition)
            batch = queue.open
            if batch is None:
                batch = self._append_to_new(queue, key, value, headers, timestamp)
                return None if batch is None else self._new_delivery(batch, 0, timestamp)
            index = batch.open_builder.append_if_room(key, value, headers, timestamp)
            if index is not None:
                return self._new_delivery(batch, index, timestamp)
            # The partition for records without a key may change now.
            if not self._grow(buffer, queue, batch, batch.open_builder.most_bytes(key, value, headers)):
                self._close_full(buffer, queue, batch)

    def append_batch(
        self, topic: str, partition: int, data: bytes | bytearray, records_count: int, table: TableDelivery
    ) -> bool:
        """Append an encoded batch to its partition. Return False if there is no buffer space for it now.

        partition: Number of the partition; a negative number stands for the partition of records without a key.
        data:      One batch. The sender numbers a bytearray in place.

        The topic's metadata must be known.
        """
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)  # which would grow with each raise
        size = len(data)
        buffer = self.topics[topic]
        queue = buffer.queue_for(None, partition if partition >= 0 else None)
        if not self._has_space(size):
            return False
        batch = self._new_batch(queue, size)
        batch.data = data
        batch.records_count, batch.table = records_count, table
        try:
            table.add(batch)
            self._enqueue(queue, batch, is_open=False)
            self.wake()
        except BaseException:
            if batch not in self.unfinished:
                table.discard(batch)
            self._wake_nevertheless()
            raise
        buffer.batch_filled(queue, size)
        return True

    def refuse_batch(self, topic: str, partition: int, records_count: int, table: TableDelivery) -> ProducerBatch:
        """Return a batch for rows of a table that will never be sent, so that it can fail."""
        batch = ProducerBatch(topic, partition, self.lock, owner=self)
        batch.deadline = self._clock()
        batch.records_count, batch.table = records_count, table
        table.add(batch)
        return batch

    def _append_to_new(
        self,
        queue: PartitionQueue,
        key: Buffer | None,
        value: Buffer | None,
        headers: Any,
        timestamp: int,
        *,
        forced: bool = False,
    ) -> ProducerBatch | None:
        """Begin an open batch that contains this record. Return None if there is no space and `forced` is false."""
        settings = self.settings
        builder = self.new_builder(min(settings.batch_size, settings.max_request_size))
        is_large = not builder.has_room_for(key, value, headers)
        if is_large:
            self._check_size(queue.partition.topic, key, value, headers)
            builder = self.new_builder(settings.max_request_size)
        builder.append(key, value, headers, timestamp)
        size = max(builder.size_in_bytes, settings.batch_size)
        if not (forced or self._has_space(size)):
            return None
        batch = self._new_batch(queue, size)
        batch.builder = builder
        is_open = builder.size_in_bytes < settings.batch_size and not is_large
        try:
            self._enqueue(queue, batch, is_open=is_open)
            if not is_open:
                self._count(self.topics[batch.topic], queue, batch, size)
            elif batch.is_held:
                return batch
            elif batch.created + self.linger >= self.next_look and not self.memory.waiters:
                return batch  # the sender will check it in time
            self.wake()
        except BaseException:
            self._wake_nevertheless()
            raise
        return batch

    def _new_batch(self, queue: PartitionQueue, reserved: int) -> ProducerBatch:
        """Return a batch for `_enqueue`."""
        batch = ProducerBatch(*queue.partition, self.lock, order=(queue.next_order,), owner=self)
        batch.created = self._clock()
        batch.is_held = self.held_until is not None
        batch.deadline = self._first_sent(batch) + self.settings.delivery_timeout
        batch.reserved = reserved
        return batch

    def _enqueue(self, queue: PartitionQueue, batch: ProducerBatch, *, is_open: bool) -> None:
        """Add a complete batch to its queue, and reserve its memory.

        Python runs signal handlers when it calls a function, and after a call. The only call here is the last step. An
        interruption such as Ctrl-C therefore finds all of these changes or none of them.
        """
        self.memory.free -= batch.reserved
        queue.next_order += 1
        self.active[queue] = None
        self.unfinished[batch] = None
        queue.open = batch if is_open else None
        queue.batches.append(batch)

    def _first_sent(self, batch: ProducerBatch) -> float:
        """Return the time from which the deadline of a batch counts: its creation, or the latest time of its
        release."""
        return batch.created if self.held_until is None or not batch.is_held else max(batch.created, self.held_until)

    def new_builder(self, most_bytes: int) -> RecordBatchBuilder:
        """Return a builder for a batch of at most `most_bytes` bytes before compression."""
        return self._template.successor(max(most_bytes, 2 * BATCH_OVERHEAD))

    def _close_full(self, buffer: TopicBuffer, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Accept no more records into the open batch, because it is full."""
        queue.open = None
        self._count(buffer, queue, batch, max(batch.open_builder.max_batch_bytes, self.settings.batch_size))
        self.wake()

    def _grow(self, buffer: TopicBuffer, queue: PartitionQueue, batch: ProducerBatch, needed: int) -> bool:
        """Let a full batch accept more records, at least `needed` bytes, until the sender takes it. Return False if
        this is not allowed.

        The sender takes the batch when it runs and the broker is not busy, but after `linger` at the latest. One larger
        batch costs the client and the broker less than several small ones.
        """
        builder = batch.open_builder
        size = builder.max_batch_bytes
        # The partition of records without a key must not change later than without this.
        step = self.settings.batch_size if queue is buffer.sticky_queue else size
        added = min(size + step, buffer.most_bytes) - size
        if not (self.settings.batch_size and needed <= added <= self.memory.free):
            return False
        # The memory that remains for the first batches of other partitions. More than half of the buffer would stop all
        # growth.
        kept = min(len(buffer.queues) * self.settings.batch_size, self.settings.buffer_memory // 2)
        if not (queue.in_flight or batch.is_held) and self.memory.free < kept:
            return False
        if self.memory.waiters or self._clock() > batch.created + GROWTH_SECONDS or self.memory.must_pause():
            return False
        self.check_caller()
        self.memory.free -= added
        batch.reserved += added
        batch.grown += added
        queue.grown_bytes += added
        builder.max_batch_bytes = size + added
        self._count(buffer, queue, batch, size)
        if not batch.is_full:
            batch.is_full = True
            if not batch.is_held and self.loads.get(queue.node, 0) < BUSY_REQUESTS:
                self.wake()  # otherwise a response does, or `linger` is over
        return True

    def limit_growth(self, topic: str, most_bytes: int) -> None:
        """Limit the size to which batches of the topic grow, because the broker has refused a larger batch."""
        buffer = self.topics.get(topic)
        if buffer is not None:
            buffer.most_bytes = min(buffer.most_bytes, most_bytes)

    def _count(self, buffer: TopicBuffer, queue: PartitionQueue, batch: ProducerBatch, size: int) -> None:
        """Report the uncounted bytes of a batch to the choice of the partition for records without a key."""
        if size > batch.counted:
            produced, batch.counted = size - batch.counted, size
            buffer.batch_filled(queue, produced)

    def _check_size(self, topic: str, key: Buffer | None, value: Buffer | None, headers: Any) -> None:
        """Raise EncodeError if a record is larger than max_request_size or invalid."""
        if not self._scratch.has_room_for(key, value, headers):
            size, most = _record_size(key, value, headers), self.settings.max_request_size
            reason = (
                f"topic {topic!r}: the record takes {size} bytes, above max_request_size {most}; send smaller records,"
                " or raise max_request_size and the max.message.bytes of the topic"
            )
            raise EncodeError(reason, field="max_request_size", value=size)

    def _has_space(self, size: int) -> bool:
        """Return whether the caller gets this amount of memory now. If not, wake the sender. Raise EncodeError if it
        can never be free."""
        self.check_caller()
        if self.memory.can_take(size):
            return True
        if size > self.settings.buffer_memory:
            reason = (
                f"{size} bytes are needed at once, above buffer_memory {self.settings.buffer_memory};"
                " increase buffer_memory, or decrease batch_size or the size of the record"
            )
            raise EncodeError(reason, field="buffer_memory", value=size)
        self.wake()
        return False

    # Records of unknown topics

    def _append_waiting(
        self, topic: str, key: Buffer | None, value: Buffer | None, headers: Any, partition: int | None, timestamp: int
    ) -> Delivery | None:
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a str, not {type(topic).__name__}")
        check_topic(topic, "topic")
        self._check_size(topic, key, value, headers)
        if not (type(timestamp) is int and -1 <= timestamp <= INT64_MAX):
            self.new_builder(0).append(None, None, (), timestamp)  # raises the error, or accepts an integer of numpy
            timestamp = int(timestamp)
        size = _record_size(key, value, headers)
        # A record that just fits into the buffer is accepted all the same.
        size = max(size, min(size + WAITING_RECORD_BYTES, self.settings.buffer_memory))
        if not self._has_space(size):
            return None
        placeholder = ProducerBatch(topic, -1, self.lock, owner=self)
        placeholder.created = self._clock()
        placeholder.is_held = self.held_until is not None
        placeholder.deadline = self._first_sent(placeholder) + min(
            self.settings.max_block, self.settings.delivery_timeout
        )
        placeholder.reserved = size
        kept = tuple((name, _kept(content)) for name, content in headers)
        record = WaitingRecord(placeholder, _kept(key), _kept(value), kept, partition, timestamp)
        delivery = self._new_delivery(placeholder, 0, timestamp)
        buffer = self._buffer_of(topic)
        try:
            # An interruption finds all of these changes or none of them; see `_enqueue`.
            self.memory.free -= size
            self.unfinished[placeholder] = None
            buffer.waiting.append(record)
            self.wake()  # last, as the sender may run within it
        except BaseException:
            self._wake_nevertheless()
            raise
        if self.turn is not None:
            self.turn.is_urgent = True  # until the sender decides
        return delivery

    def request_topic(self, topic: str) -> TopicBuffer:
        """Return the topic's buffer; the sender will request its metadata."""
        buffer = self._buffer_of(topic)
        self.wake()
        return buffer

    def _buffer_of(self, topic: str) -> TopicBuffer:
        buffer = self.topics.get(topic)
        if buffer is None:
            buffer = self.topics[topic] = TopicBuffer(topic, self.settings, self._random)
            self.new_topics.append(buffer)
        return buffer

    def update_topic(
        self, buffer: TopicBuffer, has_leader: Sequence[bool]
    ) -> list[tuple[ProducerBatch, BaseException]]:
        """Apply a topic's metadata, one entry for each partition. Assign the waiting records to partitions. Return the
        records that cannot be assigned, with the errors."""
        buffer.update(has_leader)
        failed: list[tuple[ProducerBatch, BaseException]] = []
        while buffer.waiting and buffer.queues:
            record = buffer.waiting.popleft()
            if record.placeholder.is_done:
                continue
            try:
                self._place(buffer, record)
            except EncodeError as error:
                error.row = None  # of a batch that the caller has not seen
                failed.append((record.placeholder, error))
        if self.held_until is not None:
            for queue in buffer.queues:
                if queue.open is not None and not queue.open.is_held:
                    self._close_early(queue, queue.open)
        return failed

    def _place(self, buffer: TopicBuffer, record: WaitingRecord) -> None:
        """Move a waiting record and its memory into a batch. If more memory is needed, reserve it even above the limit,
        because the record has already been accepted."""
        placeholder = record.placeholder
        queue = buffer.queue_for(record.key, record.partition)
        batch = queue.open
        if batch is not None and batch.is_held is not placeholder.is_held:  # of two transactions
            self._close_early(queue, batch)
            batch = None
        if batch is not None and batch.builder is not None and batch.builder.has_room_for(*record[1:4]):
            index = batch.builder.append(record.key, record.value, record.headers, record.timestamp)
        else:
            if batch is not None:
                self._close_full(buffer, queue, batch)
            batch = self._append_to_new(queue, record.key, record.value, record.headers, record.timestamp, forced=True)
            if batch is None:
                raise RuntimeError("no buffer space for a record whose space is already reserved")
            batch.is_held = placeholder.is_held
            batch.deadline = self._first_sent(placeholder) + self.settings.delivery_timeout
            index = 0
        placeholder.move_to(batch, index)
        if placeholder in self.awaited:
            self.awaited.discard(placeholder)
            self.awaited.add(batch)
        self.memory.release(placeholder.reserved)
        del self.unfinished[placeholder]

    def _close_early(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Accept no more records into the open batch. If it is not full, release the rest of its space."""
        queue.open = None
        size = batch.size_in_bytes
        if size > batch.counted:
            self._count(self.topics[batch.topic], queue, batch, size)
        if size < batch.reserved:
            self.memory.free += batch.reserved - size
            batch.reserved = size
            self.memory.release(0)

    # Two transactions at a time

    def hold_back(self, until: float) -> None:
        """Begin the records of another transaction, which are not sent before `release_held`. They are in separate
        batches and count for `buffer_memory`. Their deadline counts from `until` at the latest."""
        self.held_until = until
        for queue in self.active:
            if queue.open is not None:
                self._close_early(queue, queue.open)

    def release_held(self) -> None:
        """Let the sender send the records that were held back. Their deadline counts from now."""
        self.held_until = None
        deadline = self._clock() + self.settings.delivery_timeout
        for batch in self.unfinished:
            if batch.is_held:
                batch.is_held = False
                batch.deadline = min(batch.deadline, deadline)

    # Batches go out

    def wake(self) -> None:
        """Wake the sender, unless it is about to run."""
        if not self._is_awake:
            self._is_awake = True
            try:
                self._wake()
            except BaseException:
                self._is_awake = False
                raise

    def hurry(self, batch: ProducerBatch) -> None:
        """Note that a caller waits for a record of this batch and sends nothing meanwhile. Until the batch is sent,
        records linger only while a request is in flight. This method takes the lock."""
        with self.lock:
            if not (batch.attempts or batch.is_done):
                self.awaited.add(batch)
                if not any(self.loads.values()):
                    self._wake_nevertheless()  # otherwise a response does

    def _wake_nevertheless(self) -> None:
        """Wake the sender for a record in the buffer, and ignore a TransportError. The call may already be ending with
        another error, such as KeyboardInterrupt, and later records of the batch would not wake the sender."""
        with contextlib.suppress(TransportError):  # the client is closed or has failed, and ends the record
            self.wake()

    def take_wake(self) -> None:
        """Note that the sender runs now, so that later events wake it again."""
        self._is_awake = False

    def take(self, queue: PartitionQueue, batch: ProducerBatch) -> ProducerBatch:
        """Remove a batch from the queue. User threads can no longer append to it; it is not encoded yet."""
        queue.grown_bytes -= batch.grown
        batch.grown = 0
        if queue.open is batch:
            self._close_early(queue, batch)
        queue.batches.remove(batch)  # last, so that a second call after Ctrl-C in asyncio finds it
        if not queue.batches:
            del self.active[queue]
        return batch

    def take_proved(self, queue: PartitionQueue, written: ProducerBatch) -> list[ProducerBatch]:
        """Remove the batches that an acknowledged batch proves to be written."""
        proved = queue.take_proved(written)
        if not queue.batches:
            self.active.pop(queue, None)
        return proved

    def put_back(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Return a batch to its position in the queue, to be sent again."""
        queue.put_back(batch)
        self.active[queue] = None

    def replace(self, queue: PartitionQueue, batch: ProducerBatch, pieces: Sequence[ProducerBatch]) -> None:
        """Replace a split batch by its pieces."""
        batch.hand_over(pieces)
        self.unfinished.pop(batch, None)
        for piece in pieces:
            self.memory.free -= piece.reserved
            self.unfinished[piece] = None
            self.put_back(queue, piece)
        self.memory.release(batch.reserved)

    def finish(self, ended: Sequence[tuple[ProducerBatch, BatchOutcome]], callbacks: list[Callbacks]) -> None:
        """End batches. Add the callbacks, which the caller passes to `call_all` without the lock. If Ctrl-C in asyncio
        interrupts this, a second call does the rest."""
        for batch, outcome in ended:
            batch.finish(outcome, callbacks)
            if batch in self.unfinished:  # Python handles no signal between these lines, as none of them is a call
                del self.unfinished[batch]
                self.memory.free += batch.reserved
                self.acknowledged += outcome.error is None
        if ended:
            self.memory.release(0)


def header_pairs(headers: Any) -> Any:
    """Return headers as a tuple, so that a generator of headers runs before the lock is taken. Return invalid headers
    unchanged, because the encoder raises the error."""
    if headers is None:
        return ()
    if type(headers) is list:
        return tuple(headers)
    if isinstance(headers, Mapping):
        return tuple(headers.items())
    return tuple(headers) if isinstance(headers, Iterable) and not isinstance(headers, str | bytes) else headers


def _record_size(key: Buffer | None, value: Buffer | None, headers: Any) -> int:
    """Return the maximum size of a batch that contains only this record."""
    size = BATCH_OVERHEAD + RECORD_OVERHEAD + _length(key) + _length(value)
    return size + sum(HEADER_OVERHEAD + len(name) + _length(content) for name, content in headers)


def _kept(field: Buffer | None) -> bytes | None:
    return field if field is None or type(field) is bytes else bytes(field)


def _length(field: Buffer | None) -> int:
    return 0 if field is None else memoryview(field).nbytes
