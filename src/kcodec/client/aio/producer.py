# SPDX-License-Identifier: Apache-2.0
"""The producer for asyncio: `kcodec.producer.core` carried by the running loop."""

from __future__ import annotations

import asyncio
import atexit
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Unpack

from kcodec.client.aio.transaction import TransactionalCalls
from kcodec.client.interruption import interrupted_timeout, note_failures
from kcodec.client.producer_base import make_source
from kcodec.errors import DeliveryErrors, KcodecError, TopicDeliveryError, TransportError
from kcodec.network.asyncio_loop import Carrier
from kcodec.network.client import Client
from kcodec.network.option_names import NotPickled, refuse_positional
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

_time_ns = time.time_ns
_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _true() -> bool:
    return True


def _wait(delivery: Delivery | TableDelivery) -> Generator[Any, None, None]:
    delivery.check_wait()
    ended = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    delivery.add_done_callback(end)
    try:
        yield from ended
    except BaseException:
        delivery.drop_done_callback(end)
        raise


class Delivery(txn_delivery.Delivery):
    """A record on its way; see `kcodec.producer.delivery.Delivery` for its attributes. Await it for where the record
    lies, or for the error it failed with, which names the partition; it ends by `delivery_timeout_ms`."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            yield from _wait(self)
        return self.outcome()

    def result(self) -> RecordMetadata:
        """What it ended in; InvalidStateError while it is under way."""
        if not self.done():
            raise asyncio.InvalidStateError(f"{self!r} is not done")
        return self.outcome()

    def exception(self) -> BaseException | None:
        """Return the error that it failed with, None if it did not; raise InvalidStateError while it is under way."""
        if not self.done():
            raise asyncio.InvalidStateError(f"{self!r} is not done")
        return self.error


class TableDelivery(txn_delivery.TableDelivery):
    """A table on its way; see `kcodec.producer.delivery.TableDelivery` for its attributes. Await it as a Delivery."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        if not self.done():
            yield from _wait(self)
        return self.outcome()

    def result(self) -> list[BatchMetadata]:
        """What it ended in; InvalidStateError while it is under way."""
        if not self.done():
            raise asyncio.InvalidStateError(f"{self!r} is not done")
        return self.outcome()

    def exception(self) -> BaseException | None:
        """As `Delivery.exception`: the error of the first batch that failed."""
        if not self.done():
            raise asyncio.InvalidStateError(f"{self!r} is not done")
        return self.error


class Producer(NotPickled, TransactionalCalls):
    """Writes records; for one asyncio loop, and to be made and used in it.

        async with Producer(bootstrap_servers="localhost:9092") as producer:
            delivery = await producer.send("orders", b"value", key=b"key")     # in the buffer
            await delivery                                                     # in the log

    Options, and what `enable_idempotence` does and does not do: `kcodec.client.Producer`.
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
        self._room: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._must_start: Callable[[], bool] = _true
        self._core = ProducerCore(
            own.settings(client_options),
            self._client.cluster,
            self._make_source(own),
            clock=self._client.clock,
            random=self._client.random.random,
            metrics=client_options.metrics,
            lock=nullcontext(),
            new_delivery=Delivery,
            post=self._post,
            on_room=self._on_room,
            check_wait=self._carrier.check_wait,
        )
        self._core.accumulator.check_caller = self._carrier.check_wait
        self._append = self._core.append
        self._client.on_crash.append(self._core.crash)
        _producers.add(self)

    # The loop

    def _post(self, action: Callable[[], None]) -> None:
        self._carrier.post(action)

    def _on_room(self) -> None:
        if self._room is not None:
            self._room.set()

    def _start(self) -> None:
        """Have the sender run; if it ends otherwise than by `close`, all that waits for it fails. Raise RuntimeError in
        another event loop than that of the first call."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._must_start = self._loop.is_closed
            self._carrier.post(self._spawn)
        else:
            self._carrier.check_wait()

    def _spawn(self) -> None:
        task = self._client.scheduler.spawn(self._core.run(), "producer")
        task.when_done(lambda ended: None if ended.error is None else self._core.crash(ended.error))

    def _make_source(self, own: ProducerConfig) -> ProducerIdSource:
        """Whom it writes as; a TransactionWriter as its handle says."""
        return make_source(own, self._client)

    def _table_batches(self, topic: str, table: Any, count: int, framing: str | None) -> Iterable[TableBatch]:
        """The batches of a table; a TransactionWriter has partitions of its own."""
        return table_batches(table, count, self._core.settings, time.time_ns() // 1_000_000, framing)

    # Sending

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = NO_HEADERS,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Put a record into the buffer; awaited is only room in it. Arguments and errors: `kcodec.client.Producer`."""
        if self._must_start():
            self._start()
        if self._serializes:
            key, value = self._options.serialize(key, value)
        if headers is not NO_HEADERS and type(headers) is not tuple:
            headers = header_pairs(headers)
        if timestamp is None:
            timestamp = _time_ns() // 1_000_000
        try:
            delivery = self._append(topic, key, value, headers, partition, timestamp)
            if delivery is None:
                delivery = await self._when_room(lambda: self._append(topic, key, value, headers, partition, timestamp))
                if delivery is None:
                    raise buffer_full(self._options, self._core.why_full())
        except KcodecError as error:
            self._rejected(topic, partition, error)
            raise
        return delivery  # type: ignore[return-value]

    def _rejected(self, topic: str, partition: int | None, error: KcodecError) -> None:
        note = self._core.rejection(topic, partition, error)
        if note is not None:
            note()

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """Send the rows of a table; see `kcodec.client.Producer.send_arrow`."""
        self._start()
        try:
            return await self._send_table(topic, table, framing)
        except KcodecError as error:
            self._rejected(topic, None, error)
            raise

    async def _send_table(self, topic: str, table: Any, framing: str | None) -> TableDelivery:
        settings = self._core.settings
        count = self._core.known_partitions(topic)
        if not count:
            count = await self._carrier.run(self._core.learn_topic(topic, settings.max_block), settings.max_block)
        batches = self._table_batches(topic, table, count, framing)
        delivery = TableDelivery(topic, self._core.lock)
        try:
            has_room = True
            for batch in batches:
                has_room = await self._send_batch(topic, batch, delivery, has_room)
        finally:
            delivery.seal()
        return delivery

    async def _send_batch(self, topic: str, batch: TableBatch, delivery: TableDelivery, has_room: bool) -> bool:
        """Whether it found room; after one that did not, the others are not waited for."""

        def put() -> bool | None:
            return self._core.append_batch(topic, batch.partition, batch.data, batch.records_count, delivery) or None

        done = None
        if has_room:
            done = put() or await self._when_room(put)
        if done is None:
            error = buffer_full(self._options, self._core.why_full())
            self._core.fail_batch(topic, batch.partition, batch.records_count, delivery, error)
        return done is not None

    async def _when_room(self, put: Callable[[], Any]) -> Any:
        """What `put` gives once it finds room; None if it does not within max_block_ms."""
        deadline = time.monotonic() + self._core.settings.max_block
        accumulator = self._core.accumulator
        self._room = self._room or asyncio.Event()
        accumulator.room_wanted += 1
        try:
            while (done := put()) is None:
                self._room.clear()
                try:
                    await asyncio.wait_for(self._room.wait(), max(deadline - time.monotonic(), 0.0))
                except TimeoutError:
                    return put()
        finally:
            accumulator.room_wanted -= 1
        return done

    async def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has; see `kcodec.client.Producer.partitions_for`."""
        self._start()
        timeout = self._core.settings.max_block
        return await self._carrier.run(self._core.learn_topic(topic, timeout), timeout)

    # Ending

    async def flush(self, timeout: float | None = None) -> None:
        """Await the end of all that was sent, in a result or an error. Raise DeliveryErrors and DeliveryTimeoutError as
        `kcodec.client.Producer.flush` does."""
        self._start()
        await self._carrier.run(self._core.flush(timeout), timeout)
        self._raise_failures()

    async def close(self, timeout: float | None = None) -> None:
        """Send what is in the buffer, await its end, and end; see `kcodec.client.Producer.close`. If the task is
        cancelled in the block, its end waits for records for a few seconds at most."""
        try:
            if not self._carrier.is_closed:
                await self._end(timeout)
        except BaseException as error:
            note_failures(error, self._core.take_failures())
            raise
        self._raise_failures()

    async def _end(self, timeout: float | None) -> None:
        try:
            if self._loop is not None:
                await self._carrier.run(self._core.close(timeout), timeout)
        finally:
            await self._carrier.close()  # RuntimeError in another event loop: the producer stays as it is
            self._core.crash(TransportError("the producer is closed"))

    def _raise_failures(self) -> None:
        failures = self._core.take_failures()
        if failures is not None:
            raise failures

    async def __aenter__(self) -> Producer:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            try:
                if not self._carrier.is_closed:
                    await self._end(interrupted_timeout(error, self._core))
            except Exception as failed:  # noqa: BLE001  the other one matters more
                error.add_note(f"the close of the producer failed, too: {failed}")
            except BaseException as interruption:
                note_failures(interruption, self._core.take_failures())
                raise
            note_failures(error, self._core.take_failures())

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and self._loop is not None and not carrier.is_closed:
            log_lost(self._core.accumulator, repr(self))
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        state = "closed" if self._carrier.is_closed else "open"
        return f"<{type(self).__name__} {self._client.options.client_id!r} {state}>"


def _at_exit() -> None:
    for producer in list(_producers):
        if not producer._carrier.is_closed:
            log_lost(producer._core.accumulator, repr(producer))


atexit.register(_at_exit)

__all__ = [
    "BatchMetadata",
    "Delivery",
    "DeliveryErrors",
    "Producer",
    "RecordMetadata",
    "TableDelivery",
    "TopicDeliveryError",
]
