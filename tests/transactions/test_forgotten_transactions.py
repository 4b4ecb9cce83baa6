# SPDX-License-Identifier: Apache-2.0
"""A program that ends with an open transaction, or drops its producer: the transaction is aborted, and a log line says
that no reader gets its records."""

from __future__ import annotations

import ast
import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest
from interrupted_calls import ctrl_c
from second_ctrl_c import run_producer, run_session

from kcodec.broker import Broker
from kcodec.client import Admin, Producer, TransactionHandle, WriterReceipt, aio, commit_transaction
from kcodec.errors import AbortableTransactionError, EncodeError, UnknownOutcomeError
from kcodec.offsets import TopicPartition
from kcodec.testing.proxy import KafkaProxy

LOST = "was not closed, and its transaction was neither committed nor aborted: no read_committed reader will get its"
ABORTED = "was not closed, and its open transaction was aborted: no read_committed reader will get its records"
NOT_ABORTED = "the open transaction could not be aborted. If it is still open, the coordinator aborts it after"
BEGIN = """
import asyncio, gc, os, signal, sys, threading
from kcodec.client import GroupTransactSession, Producer, aio
servers, topic = sys.argv[1:]
def begin(**options):
    global producer
    producer = Producer(bootstrap_servers=servers, transactional_id=topic, **options)
    producer.begin_transaction()
    producer.send(topic, b"value").result()
async def abegin():
    global producer
    producer = aio.Producer(bootstrap_servers=servers, transactional_id=topic)
    await producer.begin_transaction()
    await (await producer.send(topic, b"value"))
def begin_session():
    global session, block
    session = GroupTransactSession(bootstrap_servers=servers, group_id=topic, transactional_id=topic, topics=topic)
    block = session.transaction().__enter__()
    block.send(topic, b"value").result()
async def abegin_session():
    global session, block
    session = aio.GroupTransactSession(bootstrap_servers=servers, group_id=topic, transactional_id=topic, topics=topic)
    block = await session.transaction().__aenter__()
    await (await block.send(topic, b"value"))
"""
#: Ends of a program with an open transaction, and the exit status.
ENDS = {
    "the end": ("begin()", 0),
    "records in the buffer": ("begin(linger_ms=5000)\nproducer.send(topic, b'buffered')", 0),
    "an exception": ("begin()\n1 / 0", 1),
    "sys.exit": ("begin()\nsys.exit(3)", 3),
    "Ctrl-C": ("begin()\nsignal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "a thread": ("threading.Thread(target=begin).start()", 0),
    "the end of a function": ("begin()\ndel producer", 0),
    "the end of the event loop": ("asyncio.run(abegin())", 0),
    "an exception in a coroutine": ("async def main():\n    await abegin()\n    1 / 0\nasyncio.run(main())", 1),
    "the end of a coroutine": (
        "async def main():\n    await abegin()\n    global producer\n    del producer\nasyncio.run(main())",
        0,
    ),
    "a session": ("begin_session()", 0),
    "a session in the event loop": ("asyncio.run(abegin_session())", 0),
}
COMMITS = {
    "sync": "begin()\nproducer.commit_transaction_async()\nproducer.begin_transaction()\nproducer.send(topic, b'2')",
    "asyncio": """
async def main():
    await abegin()
    await producer.commit_transaction_async()
    await producer.begin_transaction()
    await producer.send(topic, b"2")
asyncio.run(main())
""",
}
#: Number of points at which a program is interrupted.
PROGRAMS = 20
pytestmark = pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def state_of(broker: Broker, transactional_id: str) -> str | None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        found = admin.list_transactions().get(transactional_id)
    return None if found is None else found.state


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_aborts_its_transaction(kcodec_broker: Broker, end: str) -> None:
    """Otherwise, the transaction would block readers until transaction_timeout_ms."""
    topic = kcodec_broker.create_topic(partitions=1)
    program, status = ENDS[end]
    done = run(program, kcodec_broker.bootstrap_servers, topic)
    assert done.returncode == status, done.stderr
    assert state_of(kcodec_broker, topic) == "CompleteAbort"
    assert kcodec_broker.committed(topic) == []
    assert done.stderr.count(ABORTED) == 1 and LOST not in done.stderr, done.stderr


@pytest.mark.parametrize("api", COMMITS)
def test_a_program_that_ends_completes_its_commit(kcodec_broker: Broker, api: str) -> None:
    """The commit in the background is complete, and the transaction that has begun after it is aborted."""
    topic = kcodec_broker.create_topic(partitions=1)
    done = run(COMMITS[api], kcodec_broker.bootstrap_servers, topic)
    assert [record.value for record in kcodec_broker.committed(topic)] == [b"value"], done.stderr
    assert state_of(kcodec_broker, topic) != "Ongoing"
    assert "did not end" not in done.stderr and ABORTED in done.stderr, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("begin", ["begin()", "asyncio.run(abegin())", "begin_session()"])
def test_a_forked_child_does_not_abort_the_transaction(kcodec_broker: Broker, begin: str) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    program = """
    async def main():
        await abegin()
        fork(os._exit)  # the end of asyncio.run would wait for a thread that the child does not have
        await producer.commit_transaction()
    def fork(end=sys.exit):
        child = os.fork()
        if child == 0:
            globals().pop("producer", None), globals().pop("session", None), globals().pop("block", None)
            gc.collect()
            end(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    ends = {
        "begin()": "begin()\nfork()\nproducer.commit_transaction()",
        "asyncio.run(abegin())": "asyncio.run(main())",
        "begin_session()": "begin_session()\nfork()\nblock.__exit__(None, None, None)",
    }
    done = run(textwrap.dedent(program) + ends[begin], kcodec_broker.bootstrap_servers, topic)
    assert [record.value for record in kcodec_broker.committed(topic)] == [b"value"], done.stderr


def test_the_end_does_not_abort_a_shared_transaction(kcodec_broker: Broker) -> None:
    """Another process that has its handle can still commit it."""
    topic = kcodec_broker.create_topic(partitions=1)
    program = """
    producer = Producer(bootstrap_servers=servers, transactional_id=topic)
    transaction = producer.transaction()
    transaction.__enter__()
    print(transaction.handle.to_json())
    transaction.send(topic, b"value").result()
    producer.flush()
    print(transaction.receipt[topic, 0])
    """
    done = run(program, kcodec_broker.bootstrap_servers, topic)
    assert done.returncode == 0, done.stderr
    handle, receipt = done.stdout.splitlines()
    commit_transaction(
        TransactionHandle.from_json(handle),
        bootstrap_servers=kcodec_broker.bootstrap_servers,
        receipts=[WriterReceipt({TopicPartition(topic, 0): ast.literal_eval(receipt)})],
    )
    assert [record.value for record in kcodec_broker.committed(topic)] == [b"value"]


def test_the_end_of_a_fenced_producer_logs_no_error(kcodec_broker: Broker) -> None:
    """It also leaves the transaction of the new producer open."""
    topic = kcodec_broker.create_topic(partitions=1)
    program = """
    begin()
    print("begun", flush=True)
    sys.stdin.readline()
    """
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(program), kcodec_broker.bootstrap_servers, topic]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as fenced:
        assert fenced.stdout is not None
        assert fenced.stdout.readline() == "begun\n"
        with (
            Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic) as producer,
            producer.transaction() as txn,
        ):
            txn.send(topic, b"new").result()
            _, errors = fenced.communicate("\n", timeout=30)
    assert [record.value for record in kcodec_broker.committed(topic)] == [b"new"]
    assert "transaction" not in errors and "failed" not in errors, errors


def test_without_a_broker_the_end_does_not_wait_long(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    program = """
    begin()
    print("begun", flush=True)
    sys.stdin.readline()
    """
    with KafkaProxy(kcodec_broker.bootstrap_servers) as proxy:
        command = [sys.executable, "-c", BEGIN + textwrap.dedent(program), proxy.bootstrap_servers, topic]
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(command, text=True, **pipes)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
    with process:
        began = time.monotonic()
        _, errors = process.communicate("\n", timeout=30)
    assert time.monotonic() - began < 6.0
    assert LOST in errors and "Traceback" not in errors, errors


def test_a_dropped_async_producer_aborts_its_transaction(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)

    async def forget() -> Any:
        producer = aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic)
        await producer.begin_transaction()
        await (await producer.send(topic, b"value"))
        return producer._io_loop

    async def main() -> None:
        io_loop = await forget()
        gc.collect()
        async with asyncio.timeout(20):
            while not io_loop.is_closed:
                await asyncio.sleep(0.02)
        assert state_of(kcodec_broker, topic) == "CompleteAbort"

    asyncio.run(main())
    assert ABORTED in caplog.text and LOST not in caplog.text


def dropped(producer: list[Producer]) -> None:
    """Drop the only producer of the list, and wait until its work has ended."""
    thread = producer[0]._io_loop._thread
    assert thread is not None
    producer.clear()
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_an_abort_without_a_response_is_not_reported_as_an_abort(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    producer = [Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic)]
    producer[0].begin_transaction()
    producer[0].send(topic, b"value").result()
    kcodec_broker.faults.add("EndTxn", drop="before")
    dropped(producer)
    kcodec_broker.faults.clear()
    assert ABORTED not in caplog.text
    assert f"{topic}: {NOT_ABORTED} transaction_timeout_ms=60000: EndTxn (abort)" in caplog.text
    assert state_of(kcodec_broker, topic) == "Ongoing"


def test_an_unknown_commit_is_not_reported_as_an_abort(kcodec_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """The program has begun the next transaction during the commit, and this transaction is empty."""
    topic = kcodec_broker.create_topic(partitions=1)
    producer = [Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic)]
    producer[0].begin_transaction()
    producer[0].send(topic, b"value").result()
    kcodec_broker.faults.add("EndTxn", drop="after")
    result = producer[0].commit_transaction_async(timeout=0.5)
    producer[0].begin_transaction()
    with pytest.raises(UnknownOutcomeError):
        result.result()
    kcodec_broker.faults.clear()
    dropped(producer)
    assert ABORTED not in caplog.text and NOT_ABORTED not in caplog.text
    assert [record.value for record in kcodec_broker.committed(topic)] == [b"value"]


# Some of the points are in __del__ of a closed client, where Python reports and ignores every exception.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. .function ClientBase.__del__:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(("run_program", "most"), [(run_producer, 800), (run_session, 2900)])
def test_a_transaction_is_aborted_after_a_second_ctrl_c(
    kcodec_broker: Broker, run_program: Callable[..., bool], most: int
) -> None:
    """most: more points than the code after the first Ctrl-C has."""
    topic = kcodec_broker.create_topic(partitions=1)
    points, interruptions = random.Random(1), 0
    for number in range(PROGRAMS):
        at, transactional_id = points.randrange(most), f"{topic}-{number}"
        interruptions += run_program(kcodec_broker.bootstrap_servers, topic, transactional_id, at)
        assert state_of(kcodec_broker, transactional_id) in {"CompleteAbort", "Empty"}, f"interrupted at {at}"
    assert interruptions > PROGRAMS / 2


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction", "close"])
def test_an_end_that_is_interrupted_before_its_request_is_repeated_as_a_whole(kcodec_broker: Broker, call: str) -> None:
    """Ctrl-C arrives after the change of the state, which is then undone. The producer has ended another transaction
    before."""
    topic = kcodec_broker.create_topic(partitions=1)
    loop = asyncio.new_event_loop()
    producer = aio.Producer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic, linger_ms=10_000, batch_size=200
    )

    async def begin() -> None:
        async with producer.transaction() as txn:
            await txn.send(topic, b"before")
        await producer.begin_transaction()
        await producer.send(topic, b"sent" * 100)
        await producer.flush()
        await producer.send(topic, b"buffered")

    async def end() -> None:
        await getattr(producer, call)()
        await producer.close()

    loop.run_until_complete(begin())
    with pytest.raises(KeyboardInterrupt), ctrl_c("call", "announce", "context.py") as hits:
        loop.run_until_complete(producer.commit_transaction())
    assert hits
    loop.run_until_complete(end())
    loop.close()
    is_committed = call == "commit_transaction"
    assert state_of(kcodec_broker, topic) == ("CompleteCommit" if is_committed else "CompleteAbort")
    values = [b"before", b"sent" * 100, b"buffered"]
    assert [record.value for record in kcodec_broker.committed(topic)] == (values if is_committed else values[:1])


@pytest.mark.parametrize("code", ["COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS"])
@pytest.mark.parametrize("cancellations", [2, 3])
def test_cancelled_aborts_leave_no_transaction_open(kcodec_broker: Broker, code: str, cancellations: int) -> None:
    """The coordinator does not accept the first requests."""
    topic = kcodec_broker.create_topic(partitions=1)

    async def main() -> None:
        async with (
            aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic) as producer,
            producer.transaction() as txn,
        ):
            await (await txn.send(topic, b"value"))
            kcodec_broker.faults.add("EndTxn", error=code, count=2)
            await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.create_task(main())
        while state_of(kcodec_broker, topic) != "Ongoing":
            await asyncio.sleep(0.05)
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    kcodec_broker.faults.clear()
    assert state_of(kcodec_broker, topic) == "CompleteAbort"


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_that_has_ended_is_not_reported(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture, is_committed: bool
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    producer = Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic)
    producer.begin_transaction()
    producer.send(topic, b"value").result()
    (producer.commit_transaction if is_committed else producer.abort_transaction)()
    del producer
    gc.collect()
    assert "transaction" not in caplog.text


def test_a_transaction_whose_end_is_under_way_is_not_reported(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator may commit it."""
    topic = kcodec_broker.create_topic(partitions=1)
    with (
        KafkaProxy(kcodec_broker.bootstrap_servers) as proxy,
        Producer(bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic) as producer,
    ):
        producer.begin_transaction()
        producer.send(topic, b"value").result()
        proxy.on_request("EndTxn").hold(1.0)
        commit = producer.commit_transaction_async()
        producer._log_lost()
        assert LOST not in caplog.text
        commit.result()


def test_a_shared_transaction_is_not_reported(kcodec_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Another process may commit it."""
    topic = kcodec_broker.create_topic(partitions=1)
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "transactional_id": topic}
    with Producer(**options) as producer, producer.transaction() as txn:
        txn.send(topic, b"value").result()
        assert txn.handle
        producer._log_lost()
        assert LOST not in caplog.text


def test_a_transaction_that_can_only_be_aborted_is_reported(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds up readers as an open one does."""
    topic = kcodec_broker.create_topic(partitions=1)
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "transactional_id": topic}
    with Producer(**options) as producer:
        producer.begin_transaction()
        producer.send(topic, b"value").result()
        with pytest.raises(EncodeError):
            producer.send(topic, b"value", partition=1)
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        producer._log_lost()
        assert LOST in caplog.text
        producer.abort_transaction()
