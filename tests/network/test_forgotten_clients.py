# SPDX-License-Identifier: Apache-2.0
"""Asyncio clients that a program drops without closing them, and what the event loop does when it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import aio
from kcodec.compat.aiokafka import AIOKafkaConsumer
from kcodec.errors import TransportError
from kcodec.flow import Address
from kcodec.network.asyncio_loop import AsyncioLoop
from kcodec.network.options import ClientConfig

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
SESSION: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
#: Well below the session timeout: a member that has not left would keep its partitions for longer.
SOON_SECONDS = 4.0


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def drop_consumer(broker: Broker, topic: str) -> None:
    consumer = aio.Consumer(
        bootstrap_servers=broker.bootstrap_servers, group_id=topic, auto_offset_reset="earliest", **SESSION
    )
    await consumer.subscribe([topic])
    while not await consumer.poll(1.0):
        pass


async def drop_session(broker: Broker, topic: str) -> None:
    session = aio.GroupTransactSession(
        bootstrap_servers=broker.bootstrap_servers, group_id=topic, transactional_id=topic, topics=[topic], **SESSION
    )
    while not session.assignment():
        async with session.transaction() as txn:
            await txn.poll(1.0)


async def drop_facade(broker: Broker, topic: str) -> None:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap_servers, group_id=topic, auto_offset_reset="earliest", **SESSION
    )
    await consumer.start()
    await consumer.getone()


@pytest.mark.parametrize("drop", [drop_consumer, drop_session, drop_facade])
def test_a_dropped_member_leaves_its_group(kcodec_broker: Broker, drop: Any) -> None:
    topic = kcodec_broker.create_topic()
    kcodec_broker.seed(topic, [b"1"])

    async def main() -> None:
        await drop(kcodec_broker, topic)
        left = len(kcodec_broker.wire_log.requests("LeaveGroup"))
        gc.collect()
        await until(lambda: len(kcodec_broker.wire_log.requests("LeaveGroup")) > left, SOON_SECONDS)
        async with aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=topic) as other:
            await other.subscribe([topic])
            async with asyncio.timeout(SOON_SECONDS):
                while not other.assignment():
                    await other.poll(0.1)
        await until(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(main())


def test_a_consumer_that_another_thread_drops_leaves_its_group(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        consumer = aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=topic, **SESSION)
        await consumer.subscribe([topic])
        while not consumer.assignment():
            await consumer.poll(0.1)
        kept, io_loop = [consumer], consumer._io_loop
        del consumer
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
        await until(lambda: io_loop.is_closed)

    before = len(kcodec_broker.wire_log.requests("LeaveGroup"))
    asyncio.run(main())
    assert len(kcodec_broker.wire_log.requests("LeaveGroup")) == before + 1


def test_the_records_of_a_dropped_producer_are_sent(kcodec_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        producer = aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=500)
        await producer.partitions_for(topic)
        delivery, io_loop = await producer.send(topic, b"sent"), producer._io_loop
        del producer
        gc.collect()
        assert (await asyncio.wait_for(delivery, 10)).offset == 0
        await until(lambda: io_loop.is_closed)

    asyncio.run(main())
    assert f"still sends its records in the background, and only logs their errors: 1 record of topic '{topic}'" in (
        caplog.text
    )
    assert "may be lost" not in caplog.text


def test_a_dropped_read_closes_its_connections(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()
    kcodec_broker.seed(topic, [b"1"])

    async def main() -> None:
        records = aio.read_topic(topic, bootstrap_servers=kcodec_broker.bootstrap_servers)
        io_loop = records._io_loop
        async for _ in records:
            break
        del records
        gc.collect()
        await until(lambda: io_loop.is_closed)

    asyncio.run(main())


# The end of the event loop


def test_ctrl_c_in_the_io_loop_is_not_logged_as_a_failure(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        admin = aio.Admin(bootstrap_servers=kcodec_broker.bootstrap_servers)
        await admin.list_topics()
        kcodec_broker.faults.add("Metadata", delay_ms=2000)
        waiting = asyncio.create_task(admin.list_topics())
        await asyncio.sleep(0.05)

        interruptions = [KeyboardInterrupt()]

        def interrupt() -> None:
            while interruptions:  # this is called again after the interruption
                raise interruptions.pop()

        admin._io_loop.post(interrupt)
        await waiting

    caplog.set_level(logging.ERROR)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    gc.collect()
    assert not caplog.records
    kcodec_broker.faults.clear()


def test_a_second_ctrl_c_while_a_consumer_closes_logs_no_failure(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()
    program = f"""
import asyncio, sys
from kcodec.client import aio
async def main():
    async with aio.Consumer(bootstrap_servers={kcodec_broker.bootstrap_servers!r}, group_id=sys.argv[1]) as consumer:
        await consumer.subscribe([{topic!r}])
        while not consumer.assignment():
            await consumer.poll(0.1)
        print("ready", flush=True)
        await consumer.poll(None)
asyncio.run(main())
"""
    for pause in (0.002, 0.005, 0.01):
        command = [sys.executable, "-c", program, "ctrl-c"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        threading.Event().wait(pause)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        assert child.returncode in (-signal.SIGINT, 1)
        assert "failed" not in errors
        assert "never retrieved" not in errors


def test_a_connection_fails_at_once_when_the_executor_has_ended() -> None:
    found: list[BaseException] = []

    class Opened:
        is_closed = False
        network = SimpleNamespace(options=ClientConfig(bootstrap_servers="localhost:1"))

        def closed(self, error: BaseException) -> None:
            found.append(error)

    async def main() -> None:
        admin = aio.Admin(bootstrap_servers="127.0.0.1:1")
        io_loop = admin._io_loop
        assert isinstance(io_loop, AsyncioLoop)
        await io_loop.run(iter_nothing())
        await asyncio.get_running_loop().shutdown_default_executor()
        opened: Any = Opened()
        io_loop.open(Address("localhost", 1), opened)
        refused: list[BaseException | None] = []
        io_loop.run_blocking(lambda: None, lambda _, error: refused.append(error))
        await until(lambda: found)
        io_loop.turn()
        assert isinstance(found[0], RuntimeError)
        assert "shutdown" in str(found[0])
        assert isinstance(refused[0], TransportError)
        await admin.close()

    asyncio.run(main())


def iter_nothing() -> Any:
    yield from ()
