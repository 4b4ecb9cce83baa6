# SPDX-License-Identifier: Apache-2.0
"""The asyncio producer with a caller that waits for each record: no work of the event loop that one record does not
need, and requests for several records as soon as several callers wait.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client.aio import Delivery, Producer, waiting
from kcodec.errors import DeliveryErrors
from kcodec.network.connection import Trace

RECORDS = 50


def count_calls(loop: asyncio.AbstractEventLoop, *names: str) -> dict[str, int]:
    """Count the calls of methods of the event loop from now on."""
    counts = dict.fromkeys(names, 0)

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return method(*args, **options)

        return call

    for name in names:
        setattr(loop, name, counted(name, getattr(loop, name)))
    return counts


class Counter:
    """Counts the batches that a producer has sent."""

    def __init__(self) -> None:
        self.batches = 0

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        self.batches += value if name == "producer.batches" else 0

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        pass


@pytest.fixture
def make(kcodec_broker: Broker) -> Callable[..., Producer]:
    kcodec_broker.create_topic("orders", partitions=1)
    kcodec_broker.create_topic("invoices", partitions=1)

    def made(**options: Any) -> Producer:
        return Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=0, **options)

    return made


def test_a_record_needs_no_timer_and_no_wakeup(make: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer of the event loop for each request, no byte through the socket that wakes the loop from another thread,
    and no callback but those that end the wait of the caller."""

    async def program() -> dict[str, int]:
        async with make() as producer:
            await producer.send_and_wait("orders", b"first")
            # With a fixed clock, the event loop is not watched (UNWATCHED_SECONDS), however slow the machine is.
            monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: 0.0))
            counts = count_calls(asyncio.get_running_loop(), "call_soon", "call_soon_threadsafe", "call_at")
            for number in range(RECORDS):
                stored = await producer.send_and_wait("orders", b"value")
                assert stored.offset == number + 1
            return dict(counts)

    found = asyncio.run(program())
    assert found["call_soon_threadsafe"] == 0
    assert found["call_at"] <= 5
    assert found["call_soon"] <= 2 * RECORDS


def test_a_record_leaves_no_reference_cycle(make: Callable[..., Producer]) -> None:
    async def program() -> list[str]:
        async with make() as producer:
            await producer.send_and_wait("orders", b"first")
            gc.collect()
            gc.freeze()  # what other tests have left is not looked at
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                for _ in range(RECORDS):
                    await producer.send_and_wait("orders", b"value")
                gc.collect()
                return [type(one).__name__ for one in gc.garbage]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()  # gc.unfreeze() would undo the one of conftest.py, too

    assert len(asyncio.run(program())) < RECORDS


def test_records_of_several_tasks_share_batches(make: Callable[..., Producer]) -> None:
    """Also after a time in which one task waited for each record, where each record is sent at once."""
    counter = Counter()

    async def program() -> None:
        async with make(metrics=counter) as producer:
            for _ in range(5):
                await producer.send_and_wait("orders", b"alone")
            assert counter.batches == 5
            found = await asyncio.gather(*(producer.send_and_wait("orders", b"together") for _ in range(RECORDS)))
            assert [one.offset for one in found] == list(range(5, 5 + RECORDS))
            assert counter.batches <= 8

    asyncio.run(program())


def test_a_callback_may_send_the_next_record(make: Callable[..., Producer]) -> None:
    """It runs in the middle of a step of the producer, which the next record must not begin again."""

    async def program() -> list[int]:
        offsets: list[int] = []
        is_done = asyncio.Event()
        tasks: list[asyncio.Task[Any]] = []
        async with make() as producer:

            async def send_next() -> None:
                delivery = await producer.send("orders", b"value")
                delivery.add_done_callback(ended)

            def ended(delivery: Delivery) -> None:
                assert delivery.offset is not None
                offsets.append(delivery.offset)
                if len(offsets) == RECORDS:
                    is_done.set()
                else:
                    step = send_next()
                    with pytest.raises(StopIteration):
                        step.send(None)  # at once, not in a task of its own

            await producer.send_and_wait("orders", b"first")
            tasks.append(asyncio.create_task(send_next()))
            await asyncio.wait_for(is_done.wait(), 20)
        return offsets

    assert asyncio.run(program()) == list(range(1, RECORDS + 1))


def test_a_single_record_is_sent_within_send(make: Callable[..., Producer]) -> None:
    """After a request with one record: the caller waits for it, and no other record is on its way."""

    async def program() -> None:
        async with make() as producer:
            for _ in range(2):
                await producer.send_and_wait("orders", b"value")
            loads = producer._core.accumulator.loads
            assert set(loads.values()) == {0}
            delivery = await producer.send("orders", b"value")
            assert set(loads.values()) == {1}
            other = await producer.send("orders", b"value")  # while one is on its way: with what follows it
            assert set(loads.values()) == {1}
            assert (await delivery).offset == 2
            assert (await other).offset == 3

    asyncio.run(program())


def test_a_record_of_a_topic_that_only_the_cluster_knows_is_sent(make: Callable[..., Producer]) -> None:
    """A session's consumer, or an earlier record whose wait for metadata ended too early, makes the cluster know it:
    the step of the producer within `send` then needs no response before it looks for the record."""

    async def program() -> None:
        async with make() as producer:
            for _ in range(2):
                await producer.send_and_wait("orders", b"value")
            cluster = producer._client.cluster
            cluster.add_topics(["invoices"])
            cluster.request_update("test")
            while cluster.partitions("invoices") is None:
                await asyncio.sleep(0.01)
            stored = await asyncio.wait_for(producer.send_and_wait("invoices", b"value"), 20)
            assert stored.offset == 0

    asyncio.run(program())


def test_without_acknowledgements_records_still_share_batches(make: Callable[..., Producer]) -> None:
    """With acks=0 a record ends as soon as it is written to the connection, so each one finds nothing under way."""
    counter = Counter()

    async def program() -> None:
        async with make(acks=0, enable_idempotence=False, metrics=counter) as producer:
            for _ in range(2):
                await producer.send_and_wait("orders", b"value")
            for _ in range(RECORDS):
                await producer.send("orders", b"value")
            await producer.flush()
            assert counter.batches <= 4

    asyncio.run(program())


@pytest.mark.parametrize("moment", ["request", "producer.records"])
def test_ctrl_c_within_a_step_of_the_producer_is_raised(make: Callable[..., Producer], moment: str) -> None:
    """A signal handler that raises KeyboardInterrupt may run in `send`, which sends the bytes, or in a callback of the
    event loop, which handles the response. The record on its way fails, and counts as possibly written."""

    class Interrupting(Counter):
        is_armed = False

        def count(self, name: str, value: int = 1, **labels: object) -> None:
            if self.is_armed and name == moment:
                self.is_armed = False
                raise KeyboardInterrupt

        def watch(self, trace: Trace) -> None:
            self.count(trace.kind)

    interrupting = Interrupting()
    producers: list[Producer] = []

    async def program() -> None:
        producers.append(make(metrics=interrupting))
        producers[0]._client.network.watchers.append(interrupting.watch)
        for _ in range(2):
            await producers[0].send_and_wait("orders", b"value")
        interrupting.is_armed = True
        await producers[0].send("orders", b"value")
        await asyncio.sleep(20)

    loop = asyncio.new_event_loop()
    task = loop.create_task(program())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(DeliveryErrors, match=r"1 record not acknowledged \(brokers may have stored it\)"):
        loop.run_until_complete(producers[0].close())
    loop.close()
