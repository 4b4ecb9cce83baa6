# SPDX-License-Identifier: Apache-2.0
"""An asyncio client belongs to the event loop of its first call: any call from another one says so."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Callable
from threading import Thread
from typing import Any

import pytest

from kcodec import TopicPartition, read_topic
from kcodec.broker import Broker
from kcodec.client import Admin, aio
from kcodec.errors import TransportError

NOWHERE = "127.0.0.1:1"


async def _send(made: Any, delivery: Any) -> None:
    await made.send("orders", b"x")


async def _flush(made: Any, delivery: Any) -> None:
    await made.flush()


async def _ask(made: Any, delivery: Any) -> None:
    await made.partitions_for("orders")


@pytest.mark.parametrize("call", [_send, _flush, _ask])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_producer_refuses_calls_from_another_loop(call: Callable[[Any, Any], Awaitable[None]]) -> None:
    async def begin() -> tuple[Any, Any]:
        made = aio.Producer(bootstrap_servers=NOWHERE)
        return made, await made.send("orders", b"x")

    made, delivery = asyncio.run(begin())
    with pytest.raises(RuntimeError, match="belongs to the event loop of its first call, which is closed"):
        asyncio.run(asyncio.wait_for(call(made, delivery), 5.0))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_records_fail_with_the_event_loop_if_no_broker_responds() -> None:
    """Their errors can be retrieved later."""

    async def begin() -> tuple[Any, Any]:
        made = aio.Producer(bootstrap_servers=NOWHERE)
        return made, await made.send("orders", b"x")

    async def wait() -> None:
        await delivery

    made, delivery = asyncio.run(begin())
    with pytest.raises(TransportError, match="before the record was acknowledged"):
        asyncio.run(wait())
    asyncio.run(made.close())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_loop_that_is_open_but_not_the_first_is_refused() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    made = aio.Producer.__new__(aio.Producer)

    async def begin() -> None:
        made.__init__(bootstrap_servers=NOWHERE)  # type: ignore[misc]
        await made.send("orders", b"x")

    first.run_until_complete(begin())
    with pytest.raises(RuntimeError, match="which is not the current one"):
        second.run_until_complete(made.send("orders", b"y"))
    with pytest.raises(Exception, match="1 record not delivered"):
        first.run_until_complete(made.close(0.05))
    for loop in (first, second):
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_send_refuses_another_loop_although_a_batch_is_open(kcodec_broker: Broker) -> None:
    """The record would wait in the batch until the first event loop runs again."""
    topic = kcodec_broker.create_topic(partitions=1)

    with asyncio.Runner() as first:
        made = first.run(_with_open_batch(kcodec_broker, topic))
        with pytest.raises(RuntimeError, match="belongs to the event loop of its first call, which is not the current"):
            asyncio.run(_send_to(made, topic))
        first.run(made.close())


def test_send_refuses_the_event_loop_of_another_thread(kcodec_broker: Broker) -> None:
    """Both event loops run, and a batch is open."""
    topic = kcodec_broker.create_topic(partitions=1)

    async def check() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=60_000) as made:
            await made.partitions_for(topic)
            first = await made.send(topic, b"first")
            with pytest.raises(RuntimeError, match="event loop of its first call, which is not the current one"):
                await asyncio.to_thread(asyncio.run, _send_to(made, topic))
            third = await made.send(topic, b"third")
            assert [(await delivery).offset for delivery in (first, third)] == [0, 1]

    asyncio.run(check())


def test_send_follows_its_event_loop_to_another_thread(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)

    loop = asyncio.new_event_loop()
    made = loop.run_until_complete(_with_open_batch(kcodec_broker, topic))
    thread = Thread(target=loop.run_until_complete, args=(_send_to(made, topic),))
    thread.start()
    thread.join()
    loop.run_until_complete(_send_to(made, topic))
    loop.run_until_complete(made.close())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    with read_topic(topic, bootstrap_servers=kcodec_broker.bootstrap_servers) as reading:
        values = [record.value for record in reading.rows()]
    assert values == [b"first", b"second", b"second"]


async def _with_open_batch(broker: Broker, topic: str) -> aio.Producer:
    """Return a producer whose record `first` waits in an open batch."""
    made = aio.Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=60_000)
    await made.partitions_for(topic)
    await made.send(topic, b"first")
    return made


async def _send_to(made: aio.Producer, topic: str) -> None:
    await made.send(topic, b"second")


@pytest.mark.parametrize("kind", [aio.Consumer, aio.Admin])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_other_clients_refuse_calls_from_another_loop(kind: Any) -> None:
    made = kind(bootstrap_servers=NOWHERE, default_api_timeout_ms=100)

    async def ask() -> None:
        await (made.list_topics() if kind is aio.Admin else made.partitions_for("orders"))

    with pytest.raises(TransportError):
        asyncio.run(ask())
    with pytest.raises(RuntimeError, match="belongs to the event loop of its first call"):
        asyncio.run(ask())


# Clients that were not closed


def test_an_unclosed_asyncio_producer_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()
    caplog.set_level(logging.WARNING, "kcodec.producer")

    async def forget() -> None:
        made = aio.Producer(bootstrap_servers=NOWHERE, client_id="forgotten")
        for _ in range(3):
            await made.send("orders", b"x")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(forget())
        gc.collect()
    assert any("<Producer 'forgotten' open> was not closed" in str(one.message) for one in caught)
    lost = (
        "<Producer 'forgotten' open> was not closed, and its unacknowledged records may be lost: "
        "3 records of topic 'orders'"
    )
    assert [record.getMessage() for record in caplog.records].count(lost) == 1


def test_at_exit_it_is_said_of_clients_still_there() -> None:
    program = f"""
import asyncio
from kcodec.client import aio
async def main():
    global made
    made = aio.Producer(bootstrap_servers={NOWHERE!r})
    await made.send("orders", b"x")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert "was not closed, and its unacknowledged records may be lost: 1 record of topic 'orders'" in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("kind", [Admin, aio.Admin])
def test_an_admin_that_was_not_closed_warns(kind: Any) -> None:
    async def ask() -> None:
        made = kind(bootstrap_servers=NOWHERE, default_api_timeout_ms=50)
        if kind is aio.Admin:
            with pytest.raises(Exception, match="Connect"):
                await made.list_topics()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(ask())
        gc.collect()
    assert any("<Admin 127.0.0.1:1> was not closed" in str(one.message) for one in caught)


class _ForeignTransport:
    """A transport that is not a subclass of asyncio.Transport, as those of uvloop."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _ForeignLoop(asyncio.SelectorEventLoop):
    """An event loop that has its own class of transports."""

    def _make_socket_transport(
        self, sock: Any, protocol: asyncio.BaseProtocol, waiter: Any = None, **options: Any
    ) -> Any:
        connect = protocol.connection_made
        protocol.connection_made = lambda transport: connect(  # type: ignore[method-assign]
            _ForeignTransport(transport)  # type: ignore[arg-type]
        )
        return super()._make_socket_transport(sock, protocol, waiter, **options)  # type: ignore[misc]


def test_clients_accept_transports_of_other_event_loops() -> None:
    """The transports of uvloop are not subclasses of asyncio.Transport. Clients connect with them all the same."""

    async def carry(servers: str) -> bytes | None:
        async with aio.Producer(bootstrap_servers=servers) as producer:
            await producer.send_and_wait("orders", b"x")
        async with aio.Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition("orders", 0)])
            (record,) = await consumer.poll(10.0)
            return record.value

    with Broker() as broker, asyncio.Runner(loop_factory=_ForeignLoop) as runner:
        broker.create_topic("orders", partitions=1)
        assert runner.run(asyncio.wait_for(carry(broker.bootstrap_servers), 20.0)) == b"x"
