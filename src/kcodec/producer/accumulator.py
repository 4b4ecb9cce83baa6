# SPDX-License-Identifier: Apache-2.0
"""Where records wait until they are sent: one queue of batches a partition (Kafka: RecordAccumulator).

This is the one part of a producer that user threads touch, each call under the lock that the carrier gave (asyncio
gives one that does nothing). `append` is the fast path: one look-up for the topic, one for the partition, and the
record goes straight into the compiled builder of the partition's open batch. Compression waits for the loop's thread.

Records of a topic whose metadata is not known wait beside, and are placed by `update_topic`. Memory is counted by
batch, `batch_size` at least, and given back when the batch is settled; where none is left, `append` answers None and
the public class waits for `on_room`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kcodec._fast import RecordBatchBuilder, partition_for
from kcodec.errors import EncodeError
from kcodec.flow import Clock
from kcodec.offsets import TopicPartition
from kcodec.producer.batch import BATCH_OVERHEAD, HEADER_OVERHEAD, RECORD_OVERHEAD, ProducerBatch
from kcodec.producer.delivery import Callback, Delivery, TableDelivery
from kcodec.producer.failures import Failures
from kcodec.producer.options import ProducerSettings
from kcodec.producer.partitioner import StickyPartition
from kcodec.producer.queues import PartitionQueue, TopicBuffer, WaitingRecord
from kcodec.producer.sequence_probe import take_proved

if TYPE_CHECKING:
    from typing_extensions import Buffer

Outcome = tuple[ProducerBatch, int, int, BaseException | None]
#: The default of `send`, which is recognized without a look at its type.
NO_HEADERS: tuple[()] = ()
NewDelivery = Callable[[ProducerBatch, int, int], Delivery]


class Accumulator:
    """The buffer of one producer. Every method wants the lock to be held, unless it says otherwise.

    wake:    asks the sender to look; from any thread, cheap, called once until `take_wake`.
    on_room: called, with the lock held, when memory was given back while somebody waits for it (`room_wanted`).
    refusal: `send` raises it while it is set (closed, no transaction open).
    failures, check_wait, why_waiting: as its batches need them (BatchOwner); the producer's core sets them.
    check_caller: called before a new batch; raises RuntimeError in an event loop that is not the producer's.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        clock: Clock,
        random: Callable[[], float],
        lock: AbstractContextManager[Any],
        new_delivery: NewDelivery,
        wake: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.lock = lock
        self.topics: dict[str, TopicBuffer] = {}
        self.active: dict[PartitionQueue, None] = {}
        self.unfinished: dict[ProducerBatch, None] = {}
        self.free_memory = settings.buffer_memory
        self.room_wanted = 0
        self.refusal: BaseException | None = None
        self.failures: Failures | None = Failures()
        self.check_wait: Callable[[], None] = _no_check
        self.check_caller: Callable[[], None] = _no_check
        self.why_waiting: Callable[[ProducerBatch], str | None] = _nothing_known
        self._clock = clock
        self._random = random
        self._new_delivery = new_delivery
        self._wake = wake
        self._on_room = on_room
        self._is_awake = False
        self._ignore_keys = settings.ignore_keys
        self._scratch = self.new_builder(settings.max_request_size)

    # Records come in

    def append(
        self,
        topic: str,
        key: Buffer | None,
        value: Buffer | None,
        headers: Any,
        partition: int | None,
        timestamp: int,
    ) -> Delivery | None:
        """Put a record into its partition's open batch; None where `buffer_memory` has no room for it now.
        headers: as `header_pairs` gives them.

        Raises EncodeError for values that make no record or one above `max_request_size`, or a partition that the topic
        has not, and `refusal`.
        """
        if self.refusal is not None:
            raise self.refusal
        buffer = self.topics.get(topic)
        if buffer is None or not buffer.queues:
            return self._append_waiting(topic, key, value, headers, partition, timestamp)
        if partition is None and (key is None or self._ignore_keys):
            queue = buffer.sticky_queue
        else:
            queue = self._queue_for(buffer, key, partition)
        batch = queue.open
        if batch is not None:
            try:
                index = batch.append(key, value, headers, timestamp)  # type: ignore[misc]
            except EncodeError as error:
                if error.field != "batch":
                    raise
            else:
                return self._new_delivery(batch, index, timestamp)
            was_sticky = queue is buffer.sticky_queue
            self._close_full(buffer, queue)
            if was_sticky and queue is not buffer.sticky_queue and partition is None:
                return self.append(topic, key, value, headers, partition, timestamp)
        batch = self._append_to_new(queue, key, value, headers, timestamp)
        return None if batch is None else self._new_delivery(batch, 0, timestamp)

    def append_batch(
        self, topic: str, partition: int, data: bytes | bytearray, records_count: int, table: TableDelivery
    ) -> bool:
        """Put a batch that is made already behind what its partition has; False where there is no room for it now.

        partition: below 0: wherever records without a key go. data: one batch; a bytearray may be numbered in place.
        The topic's metadata must be known.
        """
        if self.refusal is not None:
            raise self.refusal
        size = len(data)
        if not self._reserve(size):
            return False
        buffer = self.topics[topic]
        queue = self._queue_for(buffer, None, partition if partition >= 0 else None)
        queue.open = None
        batch = self._new_batch(queue, size)
        batch.data = data
        batch.records_count, batch.table = records_count, table
        table.add(batch)
        self.batch_closed(queue, size, buffer)
        return True

    def refuse_batch(self, topic: str, partition: int, records_count: int, table: TableDelivery) -> ProducerBatch:
        """A batch that will never be sent, to be failed: the table hears of it as of the others."""
        batch = ProducerBatch(topic, partition, self.lock, owner=self)
        batch.deadline = self._clock()
        batch.records_count, batch.table = records_count, table
        table.add(batch)
        return batch

    def _queue_for(self, buffer: TopicBuffer, key: Buffer | None, partition: int | None) -> PartitionQueue:
        if partition is None:
            if key is not None and not self._ignore_keys:
                return buffer.queues[partition_for((key,), len(buffer.queues))[0]]  # type: ignore[index]
            return buffer.sticky_queue
        if 0 <= partition < len(buffer.queues):
            return buffer.queues[partition]
        raise _no_such_partition(buffer.topic, partition, len(buffer.queues))

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
        """A new open batch with this record in it; None if there is no room and it is not forced."""
        settings = self.settings
        builder = self.new_builder(min(settings.batch_size, settings.max_request_size))
        if not builder.has_room_for(key, value, headers):
            self._check_size(queue.partition.topic, key, value, headers)
            builder = self.new_builder(settings.max_request_size)
        builder.append(key, value, headers, timestamp)
        size = max(builder.size_in_bytes, settings.batch_size)
        if not self._reserve(size, forced):
            return None
        batch = self._new_batch(queue, size)
        batch.builder = builder
        if builder.size_in_bytes < settings.batch_size:
            batch.append = builder.append
            queue.open = batch
        return batch

    def _new_batch(self, queue: PartitionQueue, reserved: int) -> ProducerBatch:
        batch = ProducerBatch(*queue.partition, self.lock, order=(queue.next_order,), owner=self)
        queue.next_order += 1
        batch.created = self._clock()
        batch.deadline = batch.created + self.settings.delivery_timeout
        batch.reserved = reserved
        queue.batches.append(batch)
        self.active[queue] = None
        self.unfinished[batch] = None
        self.wake()
        return batch

    def new_builder(self, most_bytes: int) -> RecordBatchBuilder:
        """A builder for a batch of at most so many bytes before compression."""
        settings = self.settings
        return RecordBatchBuilder(
            compression=settings.compression_type,  # type: ignore[arg-type]
            compression_level=settings.compression_level,
            max_batch_bytes=max(most_bytes, 2 * BATCH_OVERHEAD),
        )

    def _close_full(self, buffer: TopicBuffer, queue: PartitionQueue) -> None:
        """No more records into the open batch: it is full."""
        queue.open = None
        self.batch_closed(queue, self.settings.batch_size, buffer)

    def batch_closed(self, queue: PartitionQueue, produced: int, buffer: TopicBuffer | None = None) -> None:
        """A batch of so many bytes takes no more records; perhaps it is time for another sticky partition."""
        buffer = buffer or self.topics[queue.partition.topic]
        if buffer.sticky.batch_closed(queue.partition.partition, produced):
            buffer.change_sticky()

    def _check_size(self, topic: str, key: Buffer | None, value: Buffer | None, headers: Any) -> None:
        """EncodeError for a record that is above max_request_size, or no record at all."""
        if not self._scratch.has_room_for(key, value, headers):
            size, most = _record_size(key, value, headers), self.settings.max_request_size
            reason = (
                f"topic {topic!r}: the record takes {size} bytes, above max_request_size {most}; send smaller records,"
                " or raise max_request_size and the max.message.bytes of the topic"
            )
            raise EncodeError(reason, field="max_request_size", value=size)

    def _reserve(self, size: int, forced: bool = False) -> bool:
        self.check_caller()
        if size <= self.free_memory or forced:
            self.free_memory -= size
            return True
        if size > self.settings.buffer_memory:
            reason = f"{size} bytes are needed at once, above buffer_memory {self.settings.buffer_memory}"
            raise EncodeError(reason, field="buffer_memory", value=size)
        self.wake()
        return False

    # Records of unknown topics

    def _append_waiting(
        self, topic: str, key: Buffer | None, value: Buffer | None, headers: Any, partition: int | None, timestamp: int
    ) -> Delivery | None:
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a str, not {type(topic).__name__}")
        self._check_size(topic, key, value, headers)
        size = _record_size(key, value, headers)
        if not self._reserve(size):
            return None
        holder = ProducerBatch(topic, -1, self.lock, owner=self)
        holder.created = self._clock()
        holder.deadline = holder.created + min(self.settings.max_block, self.settings.delivery_timeout)
        holder.reserved = size
        self.unfinished[holder] = None
        buffer = self.want_topic(topic)
        buffer.waiting.append(WaitingRecord(holder, _kept(key), _kept(value), headers, partition, timestamp))
        return self._new_delivery(holder, 0, timestamp)

    def want_topic(self, topic: str) -> TopicBuffer:
        """The topic's buffer; the sender will ask for its metadata."""
        buffer = self.topics.get(topic)
        if buffer is None:
            sticky = StickyPartition(self.settings.batch_size, self.settings.adaptive_partitioning, self._random)
            buffer = self.topics[topic] = TopicBuffer(topic, sticky)
        self.wake()
        return buffer

    def update_topic(
        self, buffer: TopicBuffer, has_leader: Sequence[bool]
    ) -> list[tuple[ProducerBatch, BaseException]]:
        """The topic has so many partitions. Waiting records are placed; returned are those that cannot be, and why.

        Fewer than before are those of another topic of this name; batches for a partition that is gone end by their
        deadline.
        """
        buffer.has_leader = has_leader
        del buffer.queues[len(has_leader) :]
        for number in range(len(buffer.queues), len(has_leader)):
            buffer.queues.append(PartitionQueue(TopicPartition(buffer.topic, number)))
        if buffer.queues and not 0 <= buffer.sticky.partition < len(buffer.queues):
            buffer.change_sticky()
        failed: list[tuple[ProducerBatch, BaseException]] = []
        while buffer.waiting and buffer.queues:
            record = buffer.waiting.popleft()
            if record.holder.is_done:
                continue
            try:
                self._place(buffer, record)
            except EncodeError as error:
                failed.append((record.holder, error))
        return failed

    def _place(self, buffer: TopicBuffer, record: WaitingRecord) -> None:
        """Out of the waiting room into a batch; the memory it holds goes along, more is taken even beyond the limit:
        the record is in already."""
        holder = record.holder
        queue = self._queue_for(buffer, record.key, record.partition)
        batch = queue.open
        if batch is not None and batch.builder is not None and batch.builder.has_room_for(*record[1:4]):
            index = batch.builder.append(record.key, record.value, record.headers, record.timestamp)
        else:
            if batch is not None:
                self._close_full(buffer, queue)
            batch = self._append_to_new(queue, record.key, record.value, record.headers, record.timestamp, forced=True)
            if batch is None:
                raise RuntimeError("no buffer space for a record whose space is already reserved")
            batch.deadline = holder.created + self.settings.delivery_timeout
            index = 0
        holder.move_to(batch, index)
        self.free_memory += holder.reserved
        del self.unfinished[holder]

    # Batches go out

    def wake(self) -> None:
        """Have the sender look, unless it is about to."""
        if not self._is_awake:
            self._is_awake = True
            self._wake()

    def take_wake(self) -> None:
        """The sender is looking now: later events wake it again."""
        self._is_awake = False

    def take(self, queue: PartitionQueue, batch: ProducerBatch) -> ProducerBatch:
        """A batch of the queue, closed for senders; its bytes are not made yet."""
        queue.batches.remove(batch)
        if queue.open is batch:
            queue.open = None
            size = batch.size_in_bytes
            self.batch_closed(queue, size)
            if size < batch.reserved:  # it was not full: the rest of its room is free
                self.free_memory += batch.reserved - size
                batch.reserved = size
        batch.append = None
        if not queue.batches:
            del self.active[queue]
        return batch

    def take_proved(self, queue: PartitionQueue, written: ProducerBatch) -> list[ProducerBatch]:
        """What a batch that was acknowledged proves to be written."""
        proved = take_proved(queue, written)
        if not queue.batches:
            self.active.pop(queue, None)
        return proved

    def put_back(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """A batch to be sent again takes its old place."""
        queue.put_back(batch)
        self.active[queue] = None

    def replace(self, queue: PartitionQueue, batch: ProducerBatch, pieces: Sequence[ProducerBatch]) -> None:
        """A split batch's pieces stand where it would."""
        batch.hand_over(pieces)
        self.unfinished.pop(batch, None)
        self.free_memory += batch.reserved
        for piece in pieces:
            self.free_memory -= piece.reserved
            self.unfinished[piece] = None
            self.put_back(queue, piece)

    def finish(self, outcomes: Sequence[Outcome]) -> list[tuple[Callback, Delivery | TableDelivery]]:
        """Batches end; returned is whom to tell (`call_all`), without the lock."""
        told: list[tuple[Callback, Delivery | TableDelivery]] = []
        for batch, base_offset, log_append_time, error in outcomes:
            if batch.is_done:
                continue
            told.extend(batch.finish(base_offset, log_append_time, error))
            self.unfinished.pop(batch, None)
            self.free_memory += batch.reserved
        if self.room_wanted and outcomes:
            self._on_room()
        return told


def _no_check() -> None:
    """Any caller may wait."""


def _nothing_known(batch: ProducerBatch) -> None:
    """Nothing is known of why the batch is not acknowledged."""


def header_pairs(headers: Any) -> Any:
    """Headers as a tuple, so that what runs to make them runs before the lock is taken; what is none stays as it is,
    for the encoder to say what is wrong with it."""
    if headers is None:
        return ()
    if isinstance(headers, Mapping):
        return tuple(headers.items())
    return tuple(headers) if isinstance(headers, Iterable) and not isinstance(headers, str | bytes) else headers


def _no_such_partition(topic: str, partition: object, count: int) -> EncodeError:
    reason = (
        f"topic {topic!r} has {count} partitions: partition must be an int from 0 to {count - 1}, not {partition!r}"
    )
    return EncodeError(reason, field="partition", value=partition)


def _record_size(key: Buffer | None, value: Buffer | None, headers: Any) -> int:
    """The most bytes a record can take in a batch of its own."""
    size = BATCH_OVERHEAD + RECORD_OVERHEAD + _length(key) + _length(value)
    return size + sum(HEADER_OVERHEAD + len(name) + _length(content) for name, content in headers)


def _kept(field: Buffer | None) -> bytes | None:
    return field if field is None or type(field) is bytes else bytes(field)


def _length(field: Buffer | None) -> int:
    return 0 if field is None else memoryview(field).nbytes
