# SPDX-License-Identifier: Apache-2.0
"""A producer that is closed while another task or thread ends a transaction: the close waits for that call, and a
commit that was sent is never reported as not committed."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer, aio
from kcodec.errors import KcodecError, UnknownOutcomeError

DELAY_MS, EARLY_SECONDS = 600, 0.2


def committed(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.committed(topic)]


def test_close_waits_for_the_commit_of_another_task(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def run() -> None:
        producer = aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t")
        await producer.init_transactions()
        kcodec_broker.faults.add("EndTxn", delay_ms=DELAY_MS)

        async def work() -> bool | None:
            async with producer.transaction() as txn:
                await txn.send(topic, b"value")
            return txn.committed

        task = asyncio.create_task(work())
        await asyncio.sleep(EARLY_SECONDS)
        await producer.close()
        assert await task is True

    asyncio.run(run())
    assert committed(kcodec_broker, topic) == [b"value"]


def test_close_waits_for_the_commit_of_another_thread(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()
    results: list[KcodecError] = []
    producer = Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t")
    producer.begin_transaction()
    producer.send(topic, b"value")
    kcodec_broker.faults.add("EndTxn", delay_ms=DELAY_MS)

    def commit() -> None:
        try:
            producer.commit_transaction()
        except KcodecError as error:
            results.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    time.sleep(EARLY_SECONDS)
    producer.close()
    thread.join()
    assert not results
    assert committed(kcodec_broker, topic) == [b"value"]


def test_close_waits_for_the_abort_of_another_task(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def run() -> None:
        producer = aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"value")
        kcodec_broker.faults.add("EndTxn", delay_ms=DELAY_MS)
        task = asyncio.create_task(producer.abort_transaction())
        await asyncio.sleep(EARLY_SECONDS)
        await producer.close()
        await task

    asyncio.run(run())
    assert not committed(kcodec_broker, topic)


def test_a_commit_that_close_cuts_off_has_an_unknown_outcome(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker commits the transaction, and its response is late."""
    topic = kcodec_broker.create_topic()

    async def run() -> None:
        producer = aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t")
        await producer.init_transactions()
        kcodec_broker.faults.add("EndTxn", delay_ms=DELAY_MS)
        txn = producer.transaction()

        async def work() -> None:
            async with txn:
                await txn.send(topic, b"value")

        task = asyncio.create_task(work())
        await asyncio.sleep(EARLY_SECONDS)
        begin = time.monotonic()
        await producer.close(timeout=0.05)
        assert time.monotonic() - begin < DELAY_MS / 1000
        with pytest.raises(UnknownOutcomeError, match="interrupted after it was sent") as caught:
            await task
        assert (txn.committed, caught.value.possibly_sent, caught.value.remedy) == (None, True, None)

    asyncio.run(run())
    assert "close does not wait any longer for the end of the transaction (COMMITTING)" in caplog.text


def test_a_thread_gets_the_unknown_outcome_too(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()
    results: list[KcodecError] = []
    producer = Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t")
    producer.begin_transaction()
    producer.send(topic, b"value")
    kcodec_broker.faults.add("EndTxn", delay_ms=DELAY_MS)

    def commit() -> None:
        try:
            producer.commit_transaction()
        except KcodecError as error:
            results.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    time.sleep(EARLY_SECONDS)
    producer.close(timeout=0.05)
    thread.join()
    assert [type(result) for result in results] == [UnknownOutcomeError]


def test_a_session_cut_off_by_close_reports_the_unknown_outcome(kcodec_broker: Broker) -> None:
    source, topic = kcodec_broker.create_topic(), kcodec_broker.create_topic()

    async def run() -> None:
        session = aio.GroupTransactSession(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t", group_id="g", topics=[source]
        )
        async with session.transaction():
            pass
        kcodec_broker.faults.add("EndTxn", delay_ms=DELAY_MS)
        txn = session.transaction()

        async def work() -> None:
            async with txn:
                await txn.send(topic, b"value")

        task = asyncio.create_task(work())
        await asyncio.sleep(EARLY_SECONDS)
        await session.close(timeout=0.05)
        with pytest.raises(UnknownOutcomeError):
            await task
        assert txn.committed is None

    asyncio.run(run())
