# SPDX-License-Identifier: Apache-2.0
"""Several calls of `close` of a consumer or a session: one closes, and the others wait for it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Consumer, GroupTransactSession, aio

DELAY_MS = 600
KINDS = pytest.mark.parametrize("kind", ["consumer", "session"])


def leaves(broker: Broker) -> int:
    return len(broker.wire_log.requests("LeaveGroup"))


def slow_end(broker: Broker) -> None:
    for api_key in ("OffsetCommit", "LeaveGroup"):
        broker.faults.add(api_key, delay_ms=DELAY_MS, count=1)


async def open_aio(kind: str, broker: Broker, topic: str) -> Any:
    options: Any = {"bootstrap_servers": broker.bootstrap_servers, "auto_offset_reset": "earliest", "group_id": topic}
    if kind == "consumer":
        consumer = aio.Consumer(**options)
        await consumer.subscribe([topic])
        while not await consumer.poll(1.0):
            pass
        return consumer
    session = aio.GroupTransactSession(transactional_id=topic, topics=[topic], **options)
    txn = await session.transaction().__aenter__()
    while not await txn.poll(1.0):
        pass
    await txn.send(topic, b"never")
    return session


def open_sync(kind: str, broker: Broker, topic: str) -> Any:
    options: Any = {"bootstrap_servers": broker.bootstrap_servers, "auto_offset_reset": "earliest", "group_id": topic}
    if kind == "consumer":
        consumer = Consumer(**options)
        consumer.subscribe([topic])
        while not consumer.poll(1.0):
            pass
        return consumer
    session = GroupTransactSession(transactional_id=topic, topics=[topic], **options)
    txn = session.transaction().__enter__()
    while not txn.poll(1.0):
        pass
    txn.send(topic, b"never")
    return session


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    made = kcodec_broker.create_topic()
    kcodec_broker.seed(made, [b"1"] * 3)
    return made


@KINDS
def test_concurrent_closes_of_tasks_succeed_together(kind: str, kcodec_broker: Broker, topic: str) -> None:
    async def main() -> None:
        client = await open_aio(kind, kcodec_broker, topic)
        slow_end(kcodec_broker)
        before = leaves(kcodec_broker)
        ended: list[float] = []

        async def close() -> None:
            await client.close()
            ended.append(time.monotonic())
            assert client._io_loop.is_closed

        begun = time.monotonic()
        await asyncio.gather(*(close() for _ in range(3)))
        assert min(ended) - begun > DELAY_MS / 1000 / 2
        assert leaves(kcodec_broker) == before + 1

    asyncio.run(main())


@KINDS
def test_a_later_close_waits_no_longer_than_its_timeout(kind: str, kcodec_broker: Broker, topic: str) -> None:
    async def main() -> None:
        client = await open_aio(kind, kcodec_broker, topic)
        slow_end(kcodec_broker)
        first = asyncio.create_task(client.close())
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await client.close(0.05)
        assert time.monotonic() - begun < DELAY_MS / 1000 / 2
        assert not first.done()
        await first
        assert client._io_loop.is_closed

    asyncio.run(main())


@KINDS
def test_a_close_ends_when_the_one_that_it_waits_for_is_cancelled(kind: str, kcodec_broker: Broker, topic: str) -> None:
    async def main() -> None:
        client = await open_aio(kind, kcodec_broker, topic)
        slow_end(kcodec_broker)
        first = asyncio.create_task(client.close())
        await asyncio.sleep(0.05)
        second = asyncio.create_task(client.close())
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.wait_for(second, 10)
        assert client._io_loop.is_closed
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(main())


@KINDS
def test_concurrent_closes_of_threads_succeed_together(kind: str, kcodec_broker: Broker, topic: str) -> None:
    client = open_sync(kind, kcodec_broker, topic)
    slow_end(kcodec_broker)
    before = leaves(kcodec_broker)
    results: list[Any] = []

    def close() -> None:
        try:
            client.close()
            results.append(client._io_loop.is_closed)
        except Exception as error:  # noqa: BLE001  compared below
            results.append(error)

    threads = [threading.Thread(target=close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [True] * 3
    assert leaves(kcodec_broker) == before + 1


@KINDS
def test_a_signal_handler_during_close_can_call_close(kind: str, kcodec_broker: Broker, topic: str) -> None:
    client = open_sync(kind, kcodec_broker, topic)
    slow_end(kcodec_broker)
    handled: list[bool] = []

    def handle(*_: object) -> None:
        client.close()
        handled.append(True)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, DELAY_MS / 1000 / 3)
        client.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert handled == [True]
    assert client._io_loop.is_closed
