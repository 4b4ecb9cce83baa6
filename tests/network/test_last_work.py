# SPDX-License-Identifier: Apache-2.0
"""Programs that do not close their clients: a producer still sends its records, and a consumer leaves its group."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from usual_responses import free_port

from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, Producer

COUNT = 300
BEGIN = f"""
import asyncio, atexit, multiprocessing, signal, sys, threading, time
from kcodec.client import Consumer, Producer, aio
servers, topic = sys.argv[1:]
def produce():
    global producer
    producer = Producer(bootstrap_servers=servers)
    for number in range({COUNT}):
        producer.send(topic, b"%d" % number)
async def aproduce():
    global producer
    producer = aio.Producer(bootstrap_servers=servers)
    for number in range({COUNT}):
        await producer.send(topic, b"%d" % number)
def no_more_threads(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
"""
#: Ends of a program, and the exit status.
ENDS = {
    "the end": ("produce()", 0),
    "the end of a function": ("produce()\ndel producer", 0),
    "an exception": ("produce()\n1 / 0", 1),
    "sys.exit": ("produce()\nsys.exit(3)", 3),
    "Ctrl-C": ("produce()\nsignal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "a thread": ("threading.Thread(target=produce).start()", 0),
    # As Python 3.12 does while exit handlers run.
    "no more threads": (
        "import atexit; atexit.register(lambda: setattr(threading.Thread, 'start', no_more_threads)); produce()",
        0,
    ),
    "a forked process": (
        "multiprocessing.set_start_method('fork')\nchild = multiprocessing.Process(target=produce)\n"
        "child.start()\nchild.join()",
        0,
    ),
    "a thread of a forked process": (
        "multiprocessing.set_start_method('fork')\n"
        "def begin():\n    threading.Thread(target=produce).start()\n"
        "child = multiprocessing.Process(target=begin)\nchild.start()\nchild.join()",
        0,
    ),
    "a daemon thread of a forked process": (
        "multiprocessing.set_start_method('fork')\n"
        "def begin():\n    thread = threading.Thread(target=produce, daemon=True)\n    thread.start()\n"
        "    thread.join()\n"
        "child = multiprocessing.Process(target=begin)\nchild.start()\nchild.join()",
        0,
    ),
    # The pool starts its second process in a daemon thread.
    "the second process of a pool": (
        "pool = multiprocessing.get_context('fork').Pool(1, maxtasksperchild=1)\n"
        "pool.apply(int)\npool.apply(produce)\npool.close()\npool.join()",
        0,
    ),
    "an executor of a forked process": (
        "import concurrent.futures\nmultiprocessing.set_start_method('fork')\n"
        "def begin():\n    concurrent.futures.ThreadPoolExecutor(1).submit(produce)\n"
        "child = multiprocessing.Process(target=begin)\nchild.start()\nchild.join()",
        0,
    ),
    "the end of the event loop": ("asyncio.run(aproduce())", 0),
    "the end of a coroutine": (
        "async def main():\n    await aproduce()\n    global producer\n    del producer\nasyncio.run(main())",
        0,
    ),
    "an exception in a coroutine": ("async def main():\n    await aproduce()\n    1 / 0\nasyncio.run(main())", 1),
}


def run(program: str, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.parametrize("end", ENDS)
def test_a_producer_that_is_not_closed_sends_its_records(kcodec_broker: Broker, end: str) -> None:
    """The program ends before the producer has a connection."""
    topic = kcodec_broker.create_topic(partitions=1)
    program, status = ENDS[end]
    done = run(program, kcodec_broker.bootstrap_servers, topic)
    assert done.returncode == status, done.stderr
    assert [record.value for record in kcodec_broker.committed(topic)] == [b"%d" % number for number in range(COUNT)]
    assert "may be lost" not in done.stderr


@pytest.mark.parametrize("end", ["the end", "the end of a function", "the end of the event loop"])
def test_warnings_as_errors_lose_no_record(kcodec_broker: Broker, end: str) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    program = "import warnings\nwarnings.simplefilter('error', ResourceWarning)\n" + ENDS[end][0]
    run(program, kcodec_broker.bootstrap_servers, topic)
    assert len(kcodec_broker.committed(topic)) == COUNT


def test_what_an_event_loop_that_does_not_run_loses_is_logged(kcodec_broker: Broker) -> None:
    program = """
    loop = asyncio.new_event_loop()
    loop.run_until_complete(aproduce())
    del producer
    loop.close()
    """
    done = run(program, kcodec_broker.bootstrap_servers, kcodec_broker.create_topic())
    assert f"may be lost: {COUNT} records" in done.stderr and "still sends" not in done.stderr


def test_what_a_session_loses_is_logged(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(topic, [b"1"])
    program = """
    from kcodec.client import GroupTransactSession
    session = GroupTransactSession(
        bootstrap_servers=servers, group_id=topic, transactional_id=topic, topics=topic, auto_offset_reset="earliest"
    )
    while True:
        transaction = session.transaction()
        block = transaction.__enter__()
        if block.poll(1.0):
            break
        transaction.__exit__(None, None, None)
    block.send(topic, b"lost")
    """
    done = run(program, kcodec_broker.bootstrap_servers, topic)
    assert "was not closed, and its open transaction was aborted" in done.stderr, done.stderr


def test_a_session_leaves_its_group_if_its_abort_fails(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(topic, [b"1"])
    program = """
    from kcodec.client import GroupTransactSession
    from kcodec.errors import KcodecError
    session = GroupTransactSession(
        bootstrap_servers=servers, group_id=topic, transactional_id=topic, topics=topic, auto_offset_reset="earliest"
    )
    while not session.assignment():
        with session.transaction() as block:
            block.poll(1.0)
    def fail(*_):
        yield from ()
        raise KcodecError("an error of the abort")
    session._producer._core.last_flow = fail
    """
    done = run(program, kcodec_broker.bootstrap_servers, topic)
    assert "was not closed, and the end of its transaction failed: an error of the abort" in done.stderr, done.stderr
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        assert admin.describe_groups([topic])[topic].members == ()


@pytest.mark.parametrize("call", ["produce()", "asyncio.run(aproduce())"])
def test_without_a_broker_the_end_waits_three_seconds(call: str) -> None:
    with free_port() as port:
        began = time.monotonic()
        done = run(call, f"127.0.0.1:{port}", "orders")
    assert 3.0 <= time.monotonic() - began < 20.0
    assert "The end of the program waits up to 3 s for 300 records of topic 'orders'" in done.stderr
    assert done.stderr.count("may be lost: 300 records of topic 'orders'") == 1, done.stderr


def test_several_clients_wait_at_the_same_time() -> None:
    with free_port() as port:
        began = time.monotonic()
        done = run("producers = []\nfor _ in range(8):\n    produce()\n    producers.append(producer)",
                   f"127.0.0.1:{port}", "orders")  # fmt: skip
    assert time.monotonic() - began < 12.0
    assert done.stderr.count("may be lost: 300 records of topic 'orders'") == 8, done.stderr


@pytest.mark.parametrize("call", ["produce()", "asyncio.run(aproduce())"])
def test_ctrl_c_ends_the_wait(call: str) -> None:
    """A broker that accepts connections and does not respond would make the end wait for longer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", BEGIN + call, address, "orders"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "press Ctrl-C to end at once" in line
            began = time.monotonic()
            os.kill(process.pid, signal.SIGINT)
            rest = process.communicate(timeout=30)[1]
    assert time.monotonic() - began < 2.5
    assert "may be lost: 300 records" in rest and "Exception ignored" not in rest, rest


def test_a_rejected_record_is_logged_at_exit(kcodec_broker: Broker) -> None:
    done = run("producer = Producer(bootstrap_servers=servers)\nproducer.send('no topic', b'')",
               kcodec_broker.bootstrap_servers, "unused")  # fmt: skip
    assert "was not closed: 1 record not delivered" in done.stderr and "INVALID_TOPIC_EXCEPTION" in done.stderr


def thread_of(producer: Producer) -> threading.Thread:
    thread: threading.Thread | None = producer._io_loop._thread
    assert thread is not None
    return thread


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_producer_sends_in_the_background(kcodec_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Its thread ends afterwards, and its deliveries still have an outcome."""
    topic = kcodec_broker.create_topic(partitions=1)
    producer = Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=300)
    thread = thread_of(producer)
    delivery = producer.send(topic, b"value")
    del producer
    assert delivery.result(20).offset == 0
    thread.join(20)
    assert not thread.is_alive()
    assert f"only logs their errors: 1 record of topic '{topic}'" in caplog.text


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_producer_without_records_ends(kcodec_broker: Broker) -> None:
    producer = Producer(bootstrap_servers=kcodec_broker.bootstrap_servers)
    thread = thread_of(producer)
    del producer
    thread.join(20)
    assert not thread.is_alive()


CONSUME = """
consumer = Consumer(bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest")
consumer.subscribe(topic)
while not consumer.poll(1.0):
    pass
"""


FORKED = f"""
def consume():
    {CONSUME.strip().replace(chr(10), chr(10) + "    ")}
    globals()["consumer"] = consumer
multiprocessing.set_start_method("fork")
child = multiprocessing.Process(target=consume)
child.start()
child.join()
"""


@pytest.mark.parametrize("program", [CONSUME, CONSUME + "del consumer", CONSUME + "1 / 0", FORKED])
def test_a_consumer_that_is_not_closed_leaves_its_group(kcodec_broker: Broker, program: str) -> None:
    """The next consumer does not wait for the session timeout. It reads the same records, as nothing was committed."""
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(topic, [b"1", b"2"])
    run(program, kcodec_broker.bootstrap_servers, topic)
    began = time.monotonic()
    with Consumer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=topic, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(topic)
        values: list[bytes | None] = []
        while len(values) < 2 and time.monotonic() < began + 30:
            values += [record.value for record in consumer.poll(1.0)]
    assert values == [b"1", b"2"]
    assert time.monotonic() - began < 10


def test_cancelled_tasks_do_not_prevent_a_connection(kcodec_broker: Broker) -> None:
    """A program that cancels all tasks also cancels the task that opens a connection."""
    topic = kcodec_broker.create_topic(partitions=1)
    program = """
    async def main():
        async with aio.Producer(bootstrap_servers=servers) as producer:
            delivery = await producer.send(topic, b"value")
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait_for(delivery, 8.0)
    asyncio.run(main())
    """
    done = run(program, kcodec_broker.bootstrap_servers, topic)
    assert (done.returncode, done.stderr) == (0, "")
