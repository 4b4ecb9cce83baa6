# SPDX-License-Identifier: Apache-2.0
"""Callers that wait for buffer space get it in the order in which they began to wait, in tasks and in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer, aio, waiting
from kcodec.errors import BufferFullError
from kcodec.producer.options import ProducerConfig, buffer_full

#: A few batches fill the buffer, and a delayed response keeps it full.
OPTIONS: dict[str, Any] = {"buffer_memory": 200_000, "max_block_ms": 20_000}
DELAY_MS = 20


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    kcodec_broker.faults.add("Produce", delay_ms=DELAY_MS)
    return kcodec_broker.create_topic(partitions=1)


def test_tasks_that_send_in_a_loop_share_the_buffer(kcodec_broker: Broker, topic: str) -> None:
    async def run() -> list[int]:
        counts = [0] * 5
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **OPTIONS) as producer:
            end = time.monotonic() + 1.5

            async def send(number: int) -> None:
                while time.monotonic() < end:
                    await producer.send(topic, bytes(1000), partition=0)
                    counts[number] += 1

            await asyncio.gather(*map(send, range(5)))
        return counts

    counts = asyncio.run(run())
    assert min(counts) > max(counts) / 4


def test_small_records_do_not_delay_a_large_one(kcodec_broker: Broker, topic: str) -> None:
    async def run() -> float:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **OPTIONS) as producer:

            async def send_small() -> None:
                while True:
                    await producer.send(topic, bytes(500), partition=0)

            tasks = [asyncio.create_task(send_small()) for _ in range(20)]
            await asyncio.sleep(0.3)
            begin = time.monotonic()
            await producer.send(topic, bytes(150_000), partition=0)
            seconds = time.monotonic() - begin
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return seconds

    assert asyncio.run(run()) < 5


def test_small_records_of_threads_do_not_delay_a_large_one(kcodec_broker: Broker, topic: str) -> None:
    stop = threading.Event()
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **OPTIONS) as producer:

        def send_small() -> None:
            while not stop.is_set():
                producer.send(topic, bytes(500), partition=0)

        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(send_small) for _ in range(8)]
            time.sleep(0.3)
            begin = time.monotonic()
            producer.send(topic, bytes(150_000), partition=0)
            seconds = time.monotonic() - begin
            stop.set()
        for future in futures:
            future.result()
        assert producer._core.accumulator.memory.waiters == 0
        assert not producer._core.accumulator.memory.must_queue
    assert seconds < 5


def test_released_space_wakes_one_task(kcodec_broker: Broker, topic: str) -> None:
    """With a thousand waiting tasks, each response would otherwise wake all of them."""
    puts = 0

    async def run() -> None:
        nonlocal puts
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **OPTIONS) as producer:
            append = producer._core.append

            def counted(*arguments: Any) -> Any:
                nonlocal puts
                puts += 1
                return append(*arguments)

            producer._core.append = counted  # type: ignore[assignment]
            await asyncio.gather(*[producer.send(topic, bytes(1000), partition=0) for _ in range(1000)])

    asyncio.run(run())
    assert 500 < puts < 3000


def test_many_threads_that_wait_all_get_space(kcodec_broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **OPTIONS) as producer:
        with ThreadPoolExecutor(200) as pool:
            deliveries = list(pool.map(lambda _: producer.send(topic, bytes(5000), partition=0), range(400)))
        assert sorted(delivery.result(30).offset for delivery in deliveries) == list(range(400))
        assert producer._core.accumulator.memory.waiters == 0


def test_a_task_that_stops_waiting_does_not_stop_the_others(kcodec_broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **OPTIONS) as producer:
            for _ in range(10):
                tasks = [asyncio.create_task(producer.send(topic, bytes(50_000), partition=0)) for _ in range(10)]
                await asyncio.sleep(DELAY_MS / 1500)
                for task in tasks[::2]:
                    task.cancel()
                await asyncio.wait(tasks)
                assert not any(task.exception() for task in tasks[1::2])
            assert producer._core.accumulator.memory.waiters == 0

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_thread_that_could_not_leave_the_queue_loses_its_place(
    kcodec_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler has interrupted its call there."""
    monkeypatch.setattr(waiting, "LOST_SECONDS", 0.2)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **OPTIONS) as producer:
        lost = waiting._SpaceWaiter()
        lost.lock.acquire()
        with producer._lock:
            producer._space.enter(lost)
        begin = time.monotonic()
        producer.send(topic, b"x", partition=0).result(10)
        assert 0.1 < time.monotonic() - begin < 5
        assert not producer._space.waiting


def test_a_slow_thread_keeps_its_place() -> None:
    space = waiting._SpaceQueue()
    space.accumulator = aio.Producer(bootstrap_servers="127.0.0.1:1")._core.accumulator
    slow, other = waiting._SpaceWaiter(), waiting._SpaceWaiter()
    assert space.enter(slow) and not space.enter(other)
    slow.woken_at = 0.0
    other.lock.acquire()
    space.wake_first()
    assert list(space.waiting) == [other]
    assert space.enter(slow)
    assert list(space.waiting) == [slow, other]


def test_the_error_says_that_other_calls_took_the_space(kcodec_broker: Broker, topic: str) -> None:
    """It does not say that brokers acknowledge no records."""
    options = {**OPTIONS, "max_block_ms": 100}

    async def run() -> list[Any]:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **options) as producer:
            await producer.send_and_wait(topic, b"first")
            sends = [producer.send(topic, bytes(60_000), partition=0) for _ in range(100)]
            return await asyncio.gather(*sends, return_exceptions=True)

    errors = [result for result in asyncio.run(run()) if isinstance(result, BufferFullError)]
    assert errors
    assert all("meanwhile, and other calls that waited took the space" in str(error) for error in errors)


def test_the_error_has_the_cause_if_nothing_was_acknowledged() -> None:
    options = ProducerConfig()
    assert "brokers acknowledged 1 batch meanwhile" in str(buffer_full(options, "why", 1))
    assert "are not acknowledged: why" in str(buffer_full(options, "why", 0))


def test_a_loop_that_sends_lets_the_event_loop_run(kcodec_broker: Broker) -> None:
    """The event loop also does the I/O. The buffer does not become full here."""
    topic = kcodec_broker.create_topic(partitions=1)

    async def run() -> bool:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            first = await producer.send(topic, bytes(10), partition=0)
            end = time.monotonic() + 10
            while not first.done() and time.monotonic() < end:
                await producer.send(topic, bytes(10), partition=0)
            return first.done()

    assert asyncio.run(run())


@pytest.mark.parametrize("is_full", [False, True], ids=["buffer free", "buffer full"])
def test_tasks_that_begin_together_send_in_steps(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """The event loop starts all tasks before it runs anything else, such as the I/O. Each record takes 1 ms here and
    begins a batch. The records keep the order of the tasks."""
    topic, count = kcodec_broker.create_topic(partitions=1), 2000
    options: dict[str, Any] = {"batch_size": 1, "buffer_memory": 100_000 if is_full else 33_554_432}
    clock = 0.0
    turn = 0
    turns: list[int] = []

    async def run() -> list[int]:
        nonlocal clock
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **options) as producer:
            await producer.send_and_wait(topic, b"first", partition=0)
            append, clock = producer._core.append, time.monotonic() + 1

            def counted(*arguments: Any) -> Any:
                nonlocal clock
                clock += 0.001
                found = append(*arguments)
                if found is not None:
                    turns.append(turn)
                return found

            def next_turn() -> None:
                nonlocal turn
                turn += 1
                loop.call_soon(next_turn)

            loop = asyncio.get_running_loop()
            loop.call_soon(next_turn)
            monkeypatch.setattr(producer, "_append", counted)
            monkeypatch.setattr(producer._core, "append", counted)
            monkeypatch.setattr(aio.waiting, "time", SimpleNamespace(monotonic=lambda: clock))
            sent = await asyncio.gather(*[producer.send_and_wait(topic, bytes(100), partition=0) for _ in range(count)])
            monkeypatch.undo()
            return [one.offset for one in sent]

    assert asyncio.run(run()) == list(range(1, count + 1))
    assert len(turns) == count
    assert max(Counter(turns).values()) <= 60


def test_a_table_lets_the_event_loop_run(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)

    async def run() -> bool:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            first = await producer.send_arrow(topic, {"value": [b"v"]})
            end = time.monotonic() + 10
            while not first.done() and time.monotonic() < end:
                await producer.send_arrow(topic, {"value": [b"v"]})
            return first.done()

    assert asyncio.run(run())


def test_a_callback_that_sends_does_not_queue(kcodec_broker: Broker, topic: str) -> None:
    """It runs on the I/O thread and cannot wait. A record for which there is space is sent before a large one that
    waits."""
    errors: list[BaseException] = []
    is_waiting = threading.Event()
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=0, **OPTIONS) as producer:
        other = kcodec_broker.create_topic(partitions=1)
        producer.send_and_wait(topic, b"first", partition=0)
        producer.send_and_wait(other, b"first", partition=0)

        def send(*_: object) -> None:
            is_waiting.wait(5.0)
            try:
                producer.send(other, b"failed", partition=0)
            except RuntimeError as error:
                errors.append(error)

        def wait_for_space() -> None:
            producer.send(topic, bytes(120_000), partition=0)
            producer.send(topic, bytes(120_000), partition=0)

        producer.send(topic, b"x", partition=0, on_delivery=send)
        thread = threading.Thread(target=wait_for_space)
        thread.start()
        while not producer._core.accumulator.memory.must_queue:
            time.sleep(0.01)
        is_waiting.set()
        thread.join()
    assert not errors
    assert [record.value for record in kcodec_broker.committed(other)] == [b"first", b"failed"]
