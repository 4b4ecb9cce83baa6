# SPDX-License-Identifier: Apache-2.0
"""Callbacks of a client that asyncio drops, because Ctrl-C comes at their first line: the client continues."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from interrupted_calls import ctrl_c, interrupted

from kcodec.broker import Broker
from kcodec.client import aio
from kcodec.client.flows import run_in_background
from kcodec.flow import Flow, blocking, sleep
from kcodec.network.scheduler import Scheduler
from kcodec.offsets import TopicPartition
from kcodec.producer.delivery import RecordMetadata
from kcodec.producer.on_delivery import call_on_delivery

FILE = "asyncio_loop.py"
#: A wait fails after this number of seconds.
LIMIT = 5.0
#: No timer of an idle client is due within this number of seconds.
IDLE_SECONDS = LIMIT
#: The flows of a producer that run until it is closed.
BACKGROUND = {"metadata", "producer"}


@pytest.fixture
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that continues after a KeyboardInterrupt."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


async def connected_producer(servers: str, topic: str) -> aio.Producer:
    producer = aio.Producer(bootstrap_servers=servers)
    await two_records(producer, topic)
    async with asyncio.timeout(60.0):
        while is_busy(producer):
            await asyncio.sleep(0.01)
    return producer


def is_busy(producer: aio.Producer) -> bool:
    """Return whether the client soon runs a flow without an event, for example the sender."""
    client = producer._client
    wakeup = client.scheduler.next_wakeup()
    return client.scheduler.has_ready or (wakeup is not None and wakeup < client.clock() + IDLE_SECONDS)


async def two_records(producer: aio.Producer, topic: str) -> list[RecordMetadata]:
    """Send records that wake the sender by a callback of the event loop."""
    deliveries = [await producer.send(topic, b"value") for _ in range(2)]
    return [await delivery for delivery in deliveries]


def test_records_are_sent_after_a_lost_callback(kcodec_broker: Broker, event_loop: asyncio.AbstractEventLoop) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    producer = event_loop.run_until_complete(connected_producer(kcodec_broker.bootstrap_servers, topic))
    task = event_loop.create_task(two_records(producer, topic))
    with pytest.raises(KeyboardInterrupt), ctrl_c("call", "", FILE, caller="_run"):
        event_loop.run_until_complete(task)
    metadata = event_loop.run_until_complete(asyncio.wait_for(task, LIMIT))
    assert [one.offset for one in metadata] == [2, 3]
    event_loop.run_until_complete(producer.close())


def test_timers_fire_after_a_lost_timer(kcodec_broker: Broker, event_loop: asyncio.AbstractEventLoop) -> None:
    """A flow that only sleeps continues, although nothing else happens."""
    topic = kcodec_broker.create_topic(partitions=1)
    producer = event_loop.run_until_complete(connected_producer(kcodec_broker.bootstrap_servers, topic))

    task = event_loop.create_task(producer._io_loop.run(sleep(0.05)))
    with pytest.raises(KeyboardInterrupt), ctrl_c("call", "_timer_fired", FILE):
        event_loop.run_until_complete(task)
    event_loop.run_until_complete(asyncio.wait_for(task, LIMIT))
    event_loop.run_until_complete(producer.close())


def test_the_result_of_an_executor_arrives_after_a_lost_callback(
    kcodec_broker: Broker, event_loop: asyncio.AbstractEventLoop
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    producer = event_loop.run_until_complete(connected_producer(kcodec_broker.bootstrap_servers, topic))
    task = event_loop.create_task(producer._io_loop.run(blocking(lambda: "token")))
    with pytest.raises(KeyboardInterrupt), ctrl_c("call", "ended", FILE):
        event_loop.run_until_complete(task)
    assert event_loop.run_until_complete(asyncio.wait_for(task, LIMIT)) == "token"
    event_loop.run_until_complete(producer.close())


def test_a_client_starts_after_an_interrupted_first_call(
    kcodec_broker: Broker, event_loop: asyncio.AbstractEventLoop
) -> None:
    """Ctrl-C comes at each point of the first `send`. The next one sends its record."""
    topic, servers = kcodec_broker.create_topic(partitions=1), kcodec_broker.bootstrap_servers

    async def run(at: int) -> bool:
        producer = aio.Producer(bootstrap_servers=servers)
        try:
            is_interrupted = interrupted(producer._start, at)
            async with asyncio.timeout(LIMIT):
                await (await producer.send(topic, b"value"))
            names = [task.name for task in producer._client.scheduler.tasks]
            assert set(names) >= BACKGROUND, f"at {at}"
            assert all(names.count(name) == 1 for name in BACKGROUND), f"at {at}"
        finally:
            await producer.close()
        return is_interrupted

    at = 0
    while event_loop.run_until_complete(run(at)):
        at += 1
    assert at > 20


def test_timers_are_set_again_after_both_were_lost(
    kcodec_broker: Broker, event_loop: asyncio.AbstractEventLoop
) -> None:
    """Two interruptions have dropped both timers. The next event runs the flow, and later flows have timers again."""
    topic = kcodec_broker.create_topic(partitions=1)
    producer = event_loop.run_until_complete(connected_producer(kcodec_broker.bootstrap_servers, topic))
    io_loop = producer._io_loop

    async def run() -> None:
        task = asyncio.ensure_future(io_loop.run(sleep(0.05)))
        await asyncio.sleep(0)
        for timer in io_loop._timers:
            timer.cancel()
        await asyncio.sleep(0.1)
        assert not task.done()
        io_loop.turn()
        await asyncio.wait_for(task, LIMIT)
        await asyncio.wait_for(io_loop.run(sleep(0.05)), LIMIT)

    event_loop.run_until_complete(run())
    event_loop.run_until_complete(producer.close())


@pytest.mark.parametrize(
    ("function", "file", "caller"),
    [("connection_made", FILE, "_run"), ("_open", FILE, "_run"), ("connected", "connection.py", "connection_made")],
)
def test_a_connection_opens_after_a_lost_callback(
    kcodec_broker: Broker,
    event_loop: asyncio.AbstractEventLoop,
    caplog: pytest.LogCaptureFixture,
    function: str,
    file: str,
    caller: str,
) -> None:
    """The client does not wait for `socket_connection_setup_timeout_ms`, and logs no error."""
    topic = kcodec_broker.create_topic(partitions=1)
    producer = aio.Producer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, socket_connection_setup_timeout_ms=60_000
    )
    task = event_loop.create_task(two_records(producer, topic))
    with pytest.raises(KeyboardInterrupt), ctrl_c("call", function, file, caller):
        event_loop.run_until_complete(task)
    metadata = event_loop.run_until_complete(asyncio.wait_for(task, LIMIT))
    assert [one.offset for one in metadata] == [0, 1]
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR and one.name.startswith("kcodec")]
    event_loop.run_until_complete(producer.close())


def test_a_poll_ends_after_a_lost_timer(kcodec_broker: Broker, event_loop: asyncio.AbstractEventLoop) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    consumer = aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers)
    event_loop.run_until_complete(consumer.assign([TopicPartition(topic, 0)]))
    event_loop.run_until_complete(consumer.poll(timeout=1.0))
    task = event_loop.create_task(consumer.poll(timeout=0.2))
    with pytest.raises(KeyboardInterrupt), ctrl_c("call", "end", "waiting.py", caller="_run"):
        event_loop.run_until_complete(task)
    assert event_loop.run_until_complete(asyncio.wait_for(task, LIMIT)) == []
    event_loop.run_until_complete(consumer.close())


@pytest.mark.parametrize("function", ["_loop_runs", "_wake_next"])
def test_a_task_that_sends_continues_after_a_lost_callback(
    kcodec_broker: Broker, event_loop: asyncio.AbstractEventLoop, function: str
) -> None:
    """A task that sends without a pause lets the event loop run, and then continues."""
    topic = kcodec_broker.create_topic(partitions=1)
    producer = event_loop.run_until_complete(connected_producer(kcodec_broker.bootstrap_servers, topic))

    async def send_until_resumed() -> int:
        sent = 0
        while not hits or sent < 1000:
            await producer.send(topic, b"value")
            sent += 1
        return sent

    task = event_loop.create_task(send_until_resumed())
    with pytest.raises(KeyboardInterrupt), ctrl_c("call", function, "waiting.py", caller="_run") as hits:
        event_loop.run_until_complete(task)
    assert event_loop.run_until_complete(asyncio.wait_for(task, LIMIT)) >= 1000
    event_loop.run_until_complete(producer.close())


def new_scheduler() -> Scheduler:
    return Scheduler(lambda: 0.0, cast(Any, None))


class FailedDelivery:
    """The part of a Delivery that `call_on_delivery` uses. The record has failed before the call."""

    _batch = SimpleNamespace(outcome=None)
    error = ValueError("refused")

    def _register(self, report: object) -> bool:
        return False

    def _not_retrieved(self) -> None:
        pass


def test_an_interrupted_on_delivery_is_not_called_again() -> None:
    calls, scheduler = 0, new_scheduler()

    def on_delivery(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        nonlocal calls
        calls += 1
        raise KeyboardInterrupt

    call_on_delivery(cast(Any, FailedDelivery()), on_delivery, scheduler.call_soon)
    with pytest.raises(KeyboardInterrupt):
        scheduler.run_ready()
    scheduler.run_ready()
    assert calls == 1


def test_an_interrupted_start_runs_each_background_flow_once() -> None:
    """The first action of a client spawns its flows. Ctrl-C comes at each point, and the action is repeated."""

    def flow(name: str, runs: list[str]) -> Flow[None]:
        runs.append(name)
        yield from sleep(0.0)
        raise ValueError("expected")

    for at in itertools.count():
        scheduler, runs, crashes = new_scheduler(), list[str](), list[BaseException]()
        client, core = SimpleNamespace(scheduler=scheduler), SimpleNamespace(crash=crashes.append)

        def begin(client: Any = client, core: Any = core, runs: list[str] = runs) -> None:
            run_in_background(client, core, {name: flow(name, runs) for name in ("consumer", "session")})

        if is_interrupted := interrupted(begin, at):
            begin()
        scheduler.run_ready()
        assert sorted(runs) == ["consumer", "session"] and len(crashes) == 2, f"at {at}"
        if not is_interrupted:
            break
    assert at > 5
