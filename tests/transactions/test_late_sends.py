# SPDX-License-Identifier: Apache-2.0
"""A call that still waits when its transaction has ended is refused, and its records are not part of the next
transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pyarrow
import pytest

from kcodec.broker import Broker
from kcodec.client import GroupTransactSession, Producer, aio
from kcodec.errors import AbortableTransactionError, DeliveryTimeoutError, KcodecError, TransactionStateError

#: A call begins to wait within EARLY_SECONDS, and waits for a response that is delayed by DELAY_MS.
DELAY_MS, EARLY_SECONDS = 600, 0.15
SMALL: dict[str, Any] = {"buffer_memory": 20_000, "batch_size": 5000, "max_request_size": 15_000}
#: By the reason for the wait: the options of the producer.
REASONS: dict[str, dict[str, Any]] = {
    "table": {},
    "partitioner": {"partitioner": lambda key, partitions, available: 0},
    "full buffer": SMALL,
}


class BlockFailed(Exception):
    pass


def committed(broker: Broker, topic: str) -> list[bytes]:
    return [(record.value or b"")[:3] for record in broker.committed(topic)]


def delay(broker: Broker, reason: str) -> None:
    broker.faults.add("Produce" if reason == "full buffer" else "Metadata", delay_ms=DELAY_MS)


async def send_old(txn: Any, topic: str, reason: str) -> None:
    if reason == "table":
        await txn.send_arrow(topic, pyarrow.table({"value": [b"old"]}))
    elif reason == "partitioner":
        await txn.send(topic, b"old")
    else:
        for _ in range(4):
            await txn.send(topic, b"old" + bytes(9000), partition=0)


@pytest.mark.parametrize("is_session", [False, True])
@pytest.mark.parametrize("reason", REASONS)
def test_a_send_of_an_aborted_transaction_is_refused(kcodec_broker: Broker, reason: str, is_session: bool) -> None:
    source, topic = kcodec_broker.create_topic(), kcodec_broker.create_topic(partitions=1)
    options = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "transactional_id": "t", **REASONS[reason]}

    async def run() -> None:
        client: Any = (
            aio.GroupTransactSession(group_id="g", topics=[source], **options)
            if is_session
            else aio.Producer(**options)
        )
        async with client:
            async with client.transaction():
                pass
            delay(kcodec_broker, reason)
            txn = client.transaction()
            with pytest.raises(BlockFailed):
                async with txn:
                    task = asyncio.create_task(send_old(txn, topic, reason))
                    await asyncio.sleep(EARLY_SECONDS)
                    assert not task.done()
                    raise BlockFailed
            assert txn.committed is False
            async with client.transaction() as following:
                await following.send(topic, b"new", partition=0)
                with pytest.raises(TransactionStateError):
                    await task
            assert following.committed

    asyncio.run(run())
    assert committed(kcodec_broker, topic) == [b"new"]


@pytest.mark.parametrize("reason", REASONS)
def test_a_send_of_another_thread_is_refused(kcodec_broker: Broker, reason: str) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    errors: list[BaseException] = []

    def send() -> None:
        try:
            if reason == "table":
                txn.send_arrow(topic, pyarrow.table({"value": [b"old"]}))
            for _ in range(4):
                txn.send(topic, b"old" + bytes(9000), partition=0 if reason == "full buffer" else None)
        except KcodecError as error:
            errors.append(error)

    with Producer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t", **REASONS[reason]
    ) as producer:
        with producer.transaction():
            pass
        delay(kcodec_broker, reason)
        thread = threading.Thread(target=send)
        with pytest.raises(BlockFailed), producer.transaction() as txn:
            thread.start()
            time.sleep(EARLY_SECONDS)
            assert thread.is_alive()
            raise BlockFailed
        with producer.transaction() as following:
            following.send(topic, b"new", partition=0)
            thread.join()
        assert following.committed
    assert [type(error) for error in errors] == [TransactionStateError]
    assert committed(kcodec_broker, topic) == [b"new"]


def test_a_slow_serializer_does_not_move_a_record(kcodec_broker: Broker) -> None:
    """Another thread ends the transaction meanwhile and begins the next one."""
    topic = kcodec_broker.create_topic(partitions=1)
    begun, may_continue = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def serialize(value: bytes) -> bytes:
        if value == b"old":
            begun.set()
            may_continue.wait(20)
        return value

    def send() -> None:
        try:
            producer.send(topic, b"old")
        except TransactionStateError as error:
            errors.append(error)

    with Producer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t", value_serializer=serialize
    ) as producer:
        producer.begin_transaction()
        thread = threading.Thread(target=send)
        thread.start()
        assert begun.wait(20)
        producer.abort_transaction()
        producer.begin_transaction()
        may_continue.set()
        thread.join()
        producer.send(topic, b"new")
        producer.commit_transaction()
    assert "this transaction was aborted: send is no longer possible" in str(errors[0])
    assert committed(kcodec_broker, topic) == [b"new"]


def test_a_send_is_refused_after_a_commit_in_the_background(kcodec_broker: Broker) -> None:
    """The next transaction, which also accepts records during the commit, does not get the record."""
    topic = kcodec_broker.create_topic(partitions=1)

    async def run() -> None:
        async with aio.Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t", **SMALL
        ) as producer:
            await producer.begin_transaction()
            kcodec_broker.faults.add("Produce", delay_ms=DELAY_MS, count=1)
            await producer.send(topic, b"one" + bytes(14_000), partition=0)
            waiting = asyncio.create_task(producer.send(topic, b"old" + bytes(14_000), partition=0))
            await asyncio.sleep(EARLY_SECONDS)
            assert not waiting.done()
            commit = await producer.commit_transaction_async()
            await producer.begin_transaction()
            await producer.send(topic, b"new", partition=0)
            with pytest.raises(TransactionStateError):
                await waiting
            await commit
            await producer.commit_transaction()

    asyncio.run(run())
    assert committed(kcodec_broker, topic) == [b"one", b"new"]


def test_an_old_send_that_times_out_keeps_the_next_transaction(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)

    async def run() -> None:
        async with aio.Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers,
            transactional_id="t",
            max_block_ms=400,
            partitioner=lambda key, partitions, available: 0,
        ) as producer:
            async with producer.transaction(timeout=20):
                pass
            rule = kcodec_broker.faults.add("Metadata", delay_ms=1500)
            await producer.begin_transaction(20)
            task = asyncio.create_task(producer.send(topic, b"old"))
            await asyncio.sleep(EARLY_SECONDS)
            await producer.abort_transaction(20)
            await producer.begin_transaction(20)
            (error,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(error, Exception)
            kcodec_broker.faults.remove(rule)
            for _ in range(20):
                with suppress(DeliveryTimeoutError):
                    await producer.partitions_for(topic)
                    break
            await producer.send(topic, b"new", partition=0)
            await producer.commit_transaction(20)

    asyncio.run(run())
    assert committed(kcodec_broker, topic) == [b"new"]


@pytest.mark.parametrize("reason", REASONS)
def test_a_send_that_the_program_cancels_prevents_the_commit(kcodec_broker: Broker, reason: str) -> None:
    """As BufferFullError does: the record was refused."""
    topic = kcodec_broker.create_topic(partitions=1)

    async def run() -> None:
        async with aio.Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t", **REASONS[reason]
        ) as producer:
            async with producer.transaction():
                pass
            delay(kcodec_broker, reason)
            txn = producer.transaction()
            call = "send_arrow" if reason == "table" else "send"
            with pytest.raises(AbortableTransactionError, match=f"CancelledError interrupted {call}, and "):
                async with txn:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(EARLY_SECONDS):
                            await send_old(txn, topic, reason)
            assert txn.committed is False

    asyncio.run(run())
    assert not committed(kcodec_broker, topic)


def test_sends_of_several_tasks_belong_to_the_block(kcodec_broker: Broker) -> None:
    """Only `poll` is limited to one task."""
    source, topic = kcodec_broker.create_topic(partitions=1), kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(source, [b"%d" % number for number in range(5)])

    async def run() -> None:
        async with aio.GroupTransactSession(
            bootstrap_servers=kcodec_broker.bootstrap_servers, group_id="g", topics=[source], transactional_id="t"
        ) as session:
            done = 0
            while done < 5:
                async with session.transaction() as txn:
                    records = await txn.poll(1.0)
                    await asyncio.gather(*[txn.send(topic, record.value) for record in records])
                done += len(records)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert sorted(committed(kcodec_broker, topic)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_session_of_threads_refuses_a_late_send(kcodec_broker: Broker) -> None:
    source, topic = kcodec_broker.create_topic(partitions=1), kcodec_broker.create_topic(partitions=1)
    with GroupTransactSession(
        bootstrap_servers=kcodec_broker.bootstrap_servers, group_id="g", topics=[source], transactional_id="t"
    ) as session:
        txn = session.transaction()
        with pytest.raises(BlockFailed), txn:
            raise BlockFailed
        with session.transaction() as following:
            with pytest.raises(TransactionStateError):
                txn.send(topic, b"old")
            following.send(topic, b"new")
    assert committed(kcodec_broker, topic) == [b"new"]
