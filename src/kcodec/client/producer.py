# SPDX-License-Identifier: Apache-2.0
"""The blocking producer: `kcodec.producer.core` carried by a thread."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Never, Unpack

from kcodec.client.interruption import interrupted_timeout, note_failures
from kcodec.client.producer_base import make_source
from kcodec.client.transaction import TransactionalCalls
from kcodec.errors import DeliveryErrors, DeliveryTimeoutError, KcodecError, TopicDeliveryError, TransportError
from kcodec.network.client import Client
from kcodec.network.option_names import NotPickled, refuse_positional
from kcodec.network.thread_loop import Carrier
from kcodec.producer import delivery as txn_delivery
from kcodec.producer.accumulator import NO_HEADERS, header_pairs
from kcodec.producer.core import ProducerCore
from kcodec.producer.delivery import BatchMetadata, RecordMetadata
from kcodec.producer.identity import ProducerIdSource
from kcodec.producer.options import ProducerConfig, buffer_full, take_options
from kcodec.producer.reports import log_lost
from kcodec.producer.tables import TableBatch, table_batches

if TYPE_CHECKING:
    from kcodec.client.options import ProducerOptions

#: A Delivery ends by its deadline. If the I/O thread does not end it, `result` returns this much later.
GRACE_SECONDS = 1.0
_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _wait(delivery: txn_delivery.Delivery | txn_delivery.TableDelivery, timeout: float | None) -> None:
    """Wait until it is done, `timeout` seconds at most. Past its own deadline nothing is left that could end it."""
    if delivery.done():
        return
    delivery.check_wait()
    ended = threading.Event()

    def end(_: object) -> None:
        ended.set()

    given_up = None if timeout is None else time.monotonic() + timeout
    delivery.add_done_callback(end)
    try:
        while not ended.is_set():
            limit = delivery.deadline + GRACE_SECONDS  # read again, as it moves when a record gets its partition
            left = (limit if given_up is None else min(limit, given_up)) - time.monotonic()
            if left <= 0:
                break
            ended.wait(left)
    except BaseException:
        delivery.drop_done_callback(end)
        raise
    if ended.is_set() or not delivery.drop_done_callback(end):
        return
    if given_up is not None and given_up <= delivery.deadline + GRACE_SECONDS:
        raise DeliveryTimeoutError(f"{delivery!r}: not done within {timeout:g} s{delivery.why_waiting()}")
    raise DeliveryTimeoutError(f"{delivery!r}: past its deadline, and the producer's thread does not end it")


class Delivery(txn_delivery.Delivery):
    """A record on its way; see `kcodec.producer.delivery.Delivery` for its attributes."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until it is done, and return where the record is stored. Raise the error that it failed with, which
        names the partition.

        timeout: seconds, after which DeliveryTimeoutError is raised and the record is still under way. Without one, it
        ends by `delivery_timeout_ms` all the same. Raises RuntimeError on the I/O thread (in a callback) if the record
        is not done, as all records would wait there.
        """
        _wait(self, timeout)
        return self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is done, as `result` does, and return the error that it failed with; None if it did not."""
        _wait(self, timeout)
        return self.error


class TableDelivery(txn_delivery.TableDelivery):
    """A table on its way; see `kcodec.producer.delivery.TableDelivery` for its attributes."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """As `Delivery.result`, for all of the table: where each batch is stored; the first error is raised."""
        _wait(self, timeout)
        return self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `Delivery.exception`: the error of the first batch that failed."""
        _wait(self, timeout)
        return self.error


class Producer(NotPickled, TransactionalCalls):
    """Writes records. Thread-safe; one producer serves all threads of a process.

        with Producer(bootstrap_servers="localhost:9092", compression_type="lz4") as producer:
            delivery = producer.send("orders", b"value", key=b"key")
            delivery.result()                      # RecordMetadata(topic, partition, offset, timestamp)

    Options: `kcodec.client.ProducerOptions`, those of every client
    (`kcodec.client.ClientOptions`), TLS and SASL (docs/security.md). Unknown ones are a TypeError with a
    suggestion, impossible ones a ValueError.

    `enable_idempotence` (the default) removes duplicates that the producer's own retries would make, and keeps the
    order of each partition. It does not remove those of an application that sends a record again: after a restart, or
    because it did not see the first one's Delivery. That takes a `transactional_id`.
    """

    def __init__(self, *positional: Never, **options: Unpack[ProducerOptions]) -> None:
        refuse_positional(positional, "Producer")
        own, client_options = take_options(options)
        client = Client(client_options)
        self._build(own, client, Carrier(client))

    def _build(self, own: ProducerConfig, client: Client, carrier: Carrier) -> None:
        """Of options that are checked. client, carrier: those of a group transact session serve its consumer, too."""
        client_options = client.options
        self._options: ProducerConfig = own
        self._serializes = own.key_serializer is not None or own.value_serializer is not None
        self._client = client
        self._carrier = carrier
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        settings = own.settings(client_options)
        self._core = ProducerCore(
            settings,
            self._client.cluster,
            self._make_source(own),
            clock=self._client.clock,
            random=self._client.random.random,
            metrics=client_options.metrics,
            lock=self._lock,
            new_delivery=Delivery,
            post=self._carrier.post,
            on_room=self._room.notify_all,
            check_wait=self._carrier.check_wait,
        )
        self._append = self._core.append
        self._client.on_crash.append(self._core.crash)
        _start(self._carrier, self._core)
        _producers.add(self)

    def _make_source(self, own: ProducerConfig) -> ProducerIdSource:
        """Whom it writes as; a TransactionWriter as its handle says."""
        return make_source(own, self._client)

    def _table_batches(self, topic: str, table: Any, count: int, framing: str | None) -> Iterable[TableBatch]:
        """The batches of a table; a TransactionWriter has partitions of its own."""
        return table_batches(table, count, self._core.settings, time.time_ns() // 1_000_000, framing)

    # Sending

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = NO_HEADERS,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Put a record into the buffer; it is sent in the background.

        value, key: bytes-like or None, or what the serializers take. headers: pairs of name and value, or a mapping.
        partition: None lets the key decide (murmur2, as Java), or without a key whichever is being filled.
        timestamp: ms since 1970; None: now.

        Waits up to `max_block_ms` where `buffer_memory` is used up; then it raises BufferFullError, and at once a
        RuntimeError on the I/O thread (in a callback). Raises EncodeError for values that make no record, a record
        above `max_request_size`, or a partition that the topic does not have, and TransportError if the producer is
        closed. What happens later is in the Delivery. In a transaction, a record for which EncodeError or
        BufferFullError was raised blocks the commit, as any record does that was not written.
        """
        if self._serializes:
            key, value = self._options.serialize(key, value)
        if headers is not NO_HEADERS and type(headers) is not tuple:
            headers = header_pairs(headers)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        try:
            with self._lock:
                delivery = self._append(topic, key, value, headers, partition, timestamp)
            if delivery is None:
                delivery = self._when_room(lambda: self._append(topic, key, value, headers, partition, timestamp))
                if delivery is None:
                    raise buffer_full(self._options, self._core.why_full())
        except (KcodecError, RuntimeError) as error:
            self._rejected(topic, partition, error)
            raise
        return delivery  # type: ignore[return-value]

    def _rejected(self, topic: str, partition: int | None, error: Exception) -> None:
        note = self._core.rejection(topic, partition, error)
        if note is not None and not self._carrier.is_closed:
            self._carrier.post(note)

    def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """Send the rows of a table: anything with Arrow's C interface, of the columns key, value (binary or string),
        headers, timestamp (ms), partition, all but one of key and value optional.

        Rows of a partition keep their order. `partition`, where not null, decides; else the key; rows without a key go
        by batches to changing partitions. framing="confluent" writes key_schema_id and value_schema_id before the
        payloads. A row that makes no record is an EncodeError that names it, and nothing is sent. Waits for room as
        `send` does; where none comes the rest of the table fails with BufferFullError, in the Delivery.
        """
        try:
            return self._send_table(topic, table, framing)
        except KcodecError as error:
            self._rejected(topic, None, error)
            raise

    def _send_table(self, topic: str, table: Any, framing: str | None) -> TableDelivery:
        settings = self._core.settings
        count = self._core.known_partitions(topic)
        if not count:
            count = self._carrier.run(self._core.learn_topic(topic, settings.max_block), settings.max_block)
        batches = self._table_batches(topic, table, count, framing)
        delivery = TableDelivery(topic, self._lock)
        try:
            has_room = True
            for batch in batches:
                has_room = self._send_batch(topic, batch, delivery, has_room)
        finally:
            delivery.seal()
        return delivery

    def _send_batch(self, topic: str, batch: TableBatch, delivery: TableDelivery, has_room: bool) -> bool:
        """Whether it found room; after one that did not, the others are not waited for."""

        def put() -> bool | None:
            return self._core.append_batch(topic, batch.partition, batch.data, batch.records_count, delivery) or None

        done = None
        if has_room:
            with self._lock:
                done = put()
            if done is None:
                done = self._when_room(put)
        if done is None:
            error = buffer_full(self._options, self._core.why_full())
            self._core.fail_batch(topic, batch.partition, batch.records_count, delivery, error)
        return done is not None

    def _when_room(self, put: Callable[[], Any]) -> Any:
        """What `put` gives once it finds buffer space; None if it does not within max_block_ms."""
        self._carrier.check_wait()
        deadline = time.monotonic() + self._core.settings.max_block
        accumulator = self._core.accumulator
        with self._room:
            accumulator.room_wanted += 1
            try:
                while (done := put()) is None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return None
                    self._room.wait(left)
            finally:
                accumulator.room_wanted -= 1
        return done

    def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic. Waits for its metadata, `max_block_ms` at most
        (DeliveryTimeoutError); for a topic that brokers call unknown, `unknown_topic_timeout_ms` (BrokerError)."""
        timeout = self._core.settings.max_block
        return self._carrier.run(self._core.learn_topic(topic, timeout), timeout)

    # Ending

    def flush(self, timeout: float | None = None) -> None:
        """Send what is in the buffer at once, and wait until all of it has ended in a result or an error.

        Raise DeliveryErrors for records that failed since the last `flush` and whose error nothing has retrieved
        (`result`, `exception`, `error` or a callback of the Delivery); in a transaction its commit raises the error
        instead. Raise DeliveryTimeoutError after `timeout` seconds.
        """
        self._carrier.run(self._core.flush(timeout), timeout)
        self._raise_failures()

    def close(self, timeout: float | None = None) -> None:
        """Send what is in the buffer, wait for it, and end. Idempotent. After it `send` raises TransportError.

        What is not acknowledged after `timeout` seconds fails with DeliveryTimeoutError. Raise DeliveryErrors as
        `flush` does. The end of the `with` block is `close`: where an exception leaves the block, the failures are a
        note on it, and after Ctrl-C, SystemExit or the like the wait is limited to a few seconds.
        """
        self._carrier.check_wait()
        try:
            if not self._carrier.is_closed:
                self._end(timeout)
        except BaseException as error:
            note_failures(error, self._core.take_failures())
            raise
        self._raise_failures()

    def _end(self, timeout: float | None) -> None:
        try:
            self._carrier.run(self._core.close(timeout), timeout)
        finally:
            self._carrier.close()
            self._core.crash(TransportError("the producer is closed"))

    def _raise_failures(self) -> None:
        failures = self._core.take_failures()
        if failures is not None:
            raise failures

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            try:
                if not self._carrier.is_closed:
                    self._end(interrupted_timeout(error, self._core))
            except Exception as failed:  # noqa: BLE001  the other one matters more
                error.add_note(f"the close of the producer failed, too: {failed}")
            except BaseException as interruption:
                note_failures(interruption, self._core.take_failures())
                raise
            note_failures(error, self._core.take_failures())

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and not carrier.is_closed:
            if hasattr(self, "_core"):
                log_lost(self._core.accumulator, repr(self))
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            carrier.close(0.0)

    def __repr__(self) -> str:
        state = "closed" if self._carrier.is_closed else "open"
        return f"<{type(self).__name__} {self._client.options.client_id!r} {state}>"


def _start(carrier: Carrier, core: ProducerCore) -> None:
    """Have the sender run; if it ends otherwise than by `close`, all that waits for it fails."""

    def begin() -> None:
        task = carrier.client.scheduler.spawn(core.run(), "producer")
        task.when_done(lambda ended: None if ended.error is None else core.crash(ended.error))

    carrier.post(begin)


def _at_exit() -> None:
    for producer in list(_producers):
        if not producer._carrier.is_closed:
            log_lost(producer._core.accumulator, repr(producer))


class _Fork:
    """A fork happens while no producer is in the middle of something: its lock is held, in the child released too."""

    held: ClassVar[list[Producer]] = []

    @classmethod
    def before(cls) -> None:
        cls.held = list(_producers)
        for producer in cls.held:
            producer._lock.acquire()

    @classmethod
    def in_parent(cls) -> None:
        while cls.held:
            cls.held.pop()._lock.release()

    @classmethod
    def in_child(cls) -> None:
        reason = f"this producer belongs to another process: a forked process ({os.getpid()}) must make its own"
        for producer in cls.held:
            producer._core.forget(TransportError(reason))
        cls.in_parent()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_Fork.before, after_in_parent=_Fork.in_parent, after_in_child=_Fork.in_child)

__all__ = [
    "BatchMetadata",
    "Delivery",
    "DeliveryErrors",
    "Producer",
    "RecordMetadata",
    "TableDelivery",
    "TopicDeliveryError",
]
