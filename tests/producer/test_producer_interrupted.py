# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, SIGTERM and the cancellation of a task end a producer within 5 s, and it says what was not delivered."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer, aio
from kcodec.errors import DeliveryTimeoutError
from kcodec.testing.proxy import KafkaProxy

HEAD = """
import asyncio, logging, signal, sys
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
from kcodec.client import Producer, aio
options = {"bootstrap_servers": "127.0.0.1:1"}
def ready():
    print("ready", flush=True)
"""
CASES = {
    "in the block": """
import time
with Producer(**options) as producer:
    for _ in range(3):
        producer.send("orders", b"x")
    ready()
    time.sleep(60)
""",
    "at the end of the block": """
with Producer(**options) as producer:
    for _ in range(3):
        producer.send("orders", b"x")
    ready()
""",
    "in flush": """
with Producer(**options) as producer:
    for _ in range(3):
        producer.send("orders", b"x")
    ready()
    producer.flush()
""",
    "in result": """
with Producer(**options) as producer:
    deliveries = [producer.send("orders", b"x") for _ in range(3)]
    ready()
    deliveries[0].result()
""",
    "in send": """
with Producer(**options, buffer_memory=2500) as producer:
    for _ in range(3):
        producer.send("orders", b"x")
    ready()
    while True:
        producer.send("orders", b"x" * 100)
""",
    "in partitions_for": """
with Producer(**options) as producer:
    for _ in range(3):
        producer.send("orders", b"x")
    ready()
    producer.partitions_for("orders")
""",
    "in a transaction": """
with Producer(**options, transactional_id="interrupted") as producer:
    ready()
    with producer.transaction() as txn:
        pass
""",
    "asyncio, in the block": """
async def main():
    async with aio.Producer(**options) as producer:
        for _ in range(3):
            await producer.send("orders", b"x")
        ready()
        await asyncio.sleep(60)
asyncio.run(main())
""",
    "asyncio, at the end of the block": """
async def main():
    async with aio.Producer(**options) as producer:
        for _ in range(3):
            await producer.send("orders", b"x")
        ready()
asyncio.run(main())
""",
    "asyncio, in flush": """
async def main():
    async with aio.Producer(**options) as producer:
        for _ in range(3):
            await producer.send("orders", b"x")
        ready()
        await producer.flush()
asyncio.run(main())
""",
}


#: Exit status, standard error, and the seconds from the signal to the end.
Ending = tuple[int, str, float]
#: Programs that run at the same time: they wait for most of theirs.
PROGRAMS = 4


def interrupted(program: str, number: int) -> Ending:
    """How a program ends that gets a signal a second after it is ready."""
    child = subprocess.Popen(
        [sys.executable, "-c", HEAD + program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(1.0)
        begin = time.monotonic()
        os.kill(child.pid, number)
        _, errors = child.communicate(timeout=12.0)
        return child.returncode, errors, time.monotonic() - begin
    finally:
        child.kill()
        child.wait()


@pytest.fixture(scope="module")
def endings() -> Iterator[dict[str, Future[Ending]]]:
    """Of the programs of CASES, by Ctrl-C."""
    with ThreadPoolExecutor(PROGRAMS) as pool:
        yield {case: pool.submit(interrupted, program, signal.SIGINT) for case, program in CASES.items()}


@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_ends_a_producer_within_5_seconds(case: str, endings: dict[str, Future[Ending]]) -> None:
    status, errors, seconds = endings[case].result()
    assert seconds < 5.0
    assert status == -signal.SIGINT and "KeyboardInterrupt" in errors
    if case != "in a transaction":
        assert len(re.findall("[34] records not delivered: topic 'orders': .*Connect", errors)) == 1


def test_a_signal_that_exits_ends_a_producer_within_5_seconds() -> None:
    status, errors, seconds = interrupted(CASES["in the block"], signal.SIGTERM)
    assert seconds < 5.0 and status == 7
    assert "SystemExit: waiting up to 3 s for 3 records of topic 'orders'" in errors
    assert "3 records not delivered" in errors


def test_a_producer_without_a_broker_says_what_it_waits_for() -> None:
    """While it closes, without an interruption: records, topics, cause."""
    program = """
with Producer(**options, delivery_timeout_ms=6000, request_timeout_ms=500) as producer:
    producer.send("orders", b"x")
"""
    done = subprocess.run([sys.executable, "-c", HEAD + program], capture_output=True, text=True, timeout=30)
    assert re.search(r"WARNING 1 record of topic 'orders' not acknowledged after 3(\.\d+)? s: ", done.stderr)
    assert "Connection refused" in done.stderr and "DeliveryErrors" in done.stderr
    assert done.returncode == 1


def test_an_exception_that_waits_for_the_close_is_logged() -> None:
    """With its text, what is waited for, how long, and how to end the wait."""
    program = """
with Producer(**options, delivery_timeout_ms=2500, request_timeout_ms=500) as producer:
    producer.send("orders", b"x").result(timeout=0.1)
"""
    done = subprocess.run([sys.executable, "-c", HEAD + program], capture_output=True, text=True, timeout=30)
    found = re.search("WARNING an exception ends the `with` block.*", done.stderr)
    assert found is not None, done.stderr
    assert re.search(r"waits up to 2\.\d+ s for 1 record of topic 'orders' \(.*Connect", found[0])
    assert "press Ctrl-C, or call close(timeout=...)" in found[0]
    assert "The exception: DeliveryTimeoutError: " in found[0] and "no result within 0.1 s" in found[0]


def test_a_close_that_delivers_at_last_logs_it(kcodec_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """A caller whose `result` timed out would otherwise send the record again."""
    topic = kcodec_broker.create_topic(partitions=1)
    with KafkaProxy(kcodec_broker.bootstrap_servers) as proxy:
        proxy.on_request("Produce").hold(1.5)
        with pytest.raises(DeliveryTimeoutError), Producer(bootstrap_servers=proxy.bootstrap_servers) as producer:
            producer.send(topic, b"x").result(timeout=0.1)
    found = [(one.name, one.levelname, one.getMessage()) for one in caplog.records if one.name == "kcodec.producer"]
    assert [level for _, level, _ in found] == ["WARNING", "WARNING"]
    assert "waits up to" in found[0][2]
    assert found[1][2] == "end of the wait: 1 record delivered, 0 failed; do not send the delivered ones again"


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_a_transaction_block_ends_within_5_seconds(kcodec_broker: Broker, leaving: type[BaseException]) -> None:
    """Though no response to its abort comes; the next begin, or the coordinator, ends the transaction."""
    topic = kcodec_broker.create_topic(partitions=1)
    with KafkaProxy(kcodec_broker.bootstrap_servers) as proxy:
        producer = Producer(bootstrap_servers=proxy.bootstrap_servers, transactional_id=f"leaves-{topic}")
        with pytest.raises(leaving), producer, producer.transaction() as txn:
            txn.send(topic, b"x").result()
            proxy.on_request(count=None).hold()
            begin = time.monotonic()
            raise leaving
        assert time.monotonic() - begin < 5.0
        assert txn.committed is not True


def test_a_cancelled_transaction_block_ends_within_5_seconds(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)

    async def transact(proxy: KafkaProxy) -> None:
        options: dict[str, Any] = {
            "bootstrap_servers": proxy.bootstrap_servers,
            "transactional_id": f"is-cancelled-{topic}",
        }
        async with aio.Producer(**options) as producer, producer.transaction() as txn:
            await (await txn.send(topic, b"x"))
            proxy.on_request(count=None).hold()
            await asyncio.sleep(60)

    async def cancel() -> float:
        with KafkaProxy(kcodec_broker.bootstrap_servers) as proxy:
            task = asyncio.create_task(transact(proxy))
            await asyncio.sleep(2.0)
            begin = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return time.monotonic() - begin

    assert asyncio.run(cancel()) < 5.0


# A process of its own, as an exception that a signal raises in a callback of the garbage collector (hypothesis has one)
# is lost.
MANY_SIGNALS = """
import random, signal, sys
from kcodec.client import DeliveryErrors, Producer

class Interrupted(BaseException):
    pass

def end_call(number, frame):
    raise Interrupted

def send():
    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0003, 0.002))
    while True:
        for name in "abc":
            headers = ((name, bytearray(b"content")) for _ in range(2))
            producer.send(name, bytearray(b"value"), headers=headers)

rng = random.Random(1)
signal.signal(signal.SIGALRM, end_call)
producer = Producer(bootstrap_servers="127.0.0.1:1", buffer_memory=1 << 30)
accumulator = producer._core.accumulator
for _ in range(300):
    try:
        send()
    except Interrupted:
        pass
with producer._lock:
    owned = {record.placeholder for buffer in accumulator.topics.values() for record in buffer.waiting}
    assert owned == set(accumulator.unfinished), (len(owned), len(accumulator.unfinished))
    assert accumulator.memory.free == (1 << 30) - sum(batch.reserved for batch in owned)
    for record in owned:
        record.deadline = 0.0
producer._core.sender._next_expiry = 0.0
try:
    producer.flush(10)
except DeliveryErrors:
    assert accumulator.memory.free == 1 << 30
    print("all ended")
finally:
    producer.close(0.5)
"""


def test_signals_during_send_leave_nothing_that_never_ends() -> None:
    """With a timer as a program sets one to limit the time of its calls, and topics without metadata. `flush` and
    `close` waited for a record that neither had a deadline nor was in a queue."""
    done = subprocess.run([sys.executable, "-c", MANY_SIGNALS], capture_output=True, text=True, timeout=60)
    assert done.stdout == "all ended\n" and done.returncode == 0, done.stderr
