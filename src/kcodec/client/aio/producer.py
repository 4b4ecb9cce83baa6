# SPDX-License-Identifier: Apache-2.0
"""The producer for asyncio: `kcodec.txn.producer_core` carried by the running loop."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Never

from kcodec.client.aio.carrier import Carrier
from kcodec.client.aio.transaction import TransactionalCalls
from kcodec.client.arrow_sending import TableBatch, table_batches
from kcodec.client.client import Client
from kcodec.client.option_names import NotPickled, refuse_positional
from kcodec.client.producer_options import ProducerOptions, buffer_full, make_source, take_options
from kcodec.errors import TransportError
from kcodec.txn import delivery as txn_delivery
from kcodec.txn.accumulator import header_pairs
from kcodec.txn.delivery import BatchMetadata, RecordMetadata
from kcodec.txn.producer_core import ProducerCore
from kcodec.txn.producer_id import ProducerIdSource


def _wait(delivery: Delivery | TableDelivery) -> Generator[Any, None, None]:
    ended = asyncio.get_running_loop().create_future()
    delivery.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
    yield from ended


class Delivery(txn_delivery.Delivery):
    """A record on its way; see `kcodec.txn.delivery.Delivery` for its attributes. Await it for where the record lies,
    or for the error it failed with, which names the partition; it ends by `delivery_timeout_ms`."""

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


class TableDelivery(txn_delivery.TableDelivery):
    """A table on its way; see `kcodec.txn.delivery.TableDelivery` for its attributes. Await it as a Delivery."""

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


class Producer(NotPickled, TransactionalCalls):
    """Writes records; for one asyncio loop, and to be made and used in it.

        async with Producer(bootstrap_servers="localhost:9092") as producer:
            delivery = await producer.send("orders", b"value", key=b"key")     # in the buffer
            await delivery                                                     # in the log

    Options, and what `enable_idempotence` does and does not do: `kcodec.client.Producer`.
    """

    def __init__(self, *positional: Never, **options: Any) -> None:
        refuse_positional(positional, "Producer")
        own, client_options = take_options(options)
        client = Client(client_options)
        self._build(own, client, Carrier(client))

    def _build(self, own: ProducerOptions, client: Client, carrier: Carrier) -> None:
        """Of options that are checked. client, carrier: those of a group transact session serve its consumer, too."""
        client_options = client.options
        self._options: ProducerOptions = own
        self._key_serializer = own.key_serializer
        self._value_serializer = own.value_serializer
        self._client = client
        self._carrier = carrier
        self._room: asyncio.Event | None = None
        self._is_started = False
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
        )
        self._client.on_crash.append(self._core.crash)

    # The loop

    def _post(self, action: Callable[[], None]) -> None:
        self._carrier.post(action)

    def _on_room(self) -> None:
        if self._room is not None:
            self._room.set()

    def _start(self) -> None:
        """Have the sender run; if it ends otherwise than by `close`, all that waits for it fails."""
        if not self._is_started:
            self._is_started = True
            self._carrier.post(self._spawn)

    def _spawn(self) -> None:
        task = self._client.scheduler.spawn(self._core.run(), "producer")
        task.when_done(lambda ended: None if ended.error is None else self._core.crash(ended.error))

    def _make_source(self, own: ProducerOptions) -> ProducerIdSource:
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
        headers: Any = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Put a record into the buffer; awaited is only room in it. Arguments and errors: `kcodec.client.Producer`."""
        if not self._is_started:
            self._start()
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        if type(headers) is not tuple:
            headers = header_pairs(headers)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        delivery = self._core.append(topic, key, value, headers, partition, timestamp)
        if delivery is None:
            delivery = await self._when_room(
                lambda: self._core.append(topic, key, value, headers, partition, timestamp)
            )
            if delivery is None:
                raise buffer_full(self._options)
        return delivery  # type: ignore[return-value]

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """Send the rows of a table; see `kcodec.client.Producer.send_arrow`."""
        self._start()
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
            error = buffer_full(self._options)
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
        """Await the end of all that was sent, in a result or an error; DeliveryTimeoutError after `timeout` seconds."""
        self._start()
        await self._carrier.run(self._core.flush(timeout), timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Send what is in the buffer, await its end, and end; see `kcodec.client.Producer.close`."""
        if self._carrier.is_closed:
            return
        try:
            if self._is_started:
                await self._carrier.run(self._core.close(timeout), timeout)
        finally:
            await self._carrier.close()
            self._core.crash(TransportError("the producer is closed"))

    async def __aenter__(self) -> Producer:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and self._is_started and not carrier.is_closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        state = "closed" if self._carrier.is_closed else "open"
        return f"<{type(self).__name__} {self._client.options.client_id!r} {state}>"


__all__ = ["BatchMetadata", "Delivery", "Producer", "RecordMetadata", "TableDelivery"]
