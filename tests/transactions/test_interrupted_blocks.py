# SPDX-License-Identifier: Apache-2.0
"""A block of a transaction that is cancelled or interrupted while it begins or ends: the next block can begin, and
nothing of the transaction can be read."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer, aio
from kcodec.errors import DeliveryTimeoutError
from kcodec.flow import Flow, sleep
from kcodec.offsets import TopicPartition

#: A request is delayed by this, and a block is interrupted earlier.
DELAY_MS, EARLY_SECONDS = 600, 0.2


def committed(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.committed(topic)]


def test_a_block_follows_one_that_was_cancelled_at_its_end(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def run() -> None:
        async with aio.Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="cancelled"
        ) as producer:
            rule = kcodec_broker.faults.add("Produce", delay_ms=DELAY_MS)
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(EARLY_SECONDS), producer.transaction() as txn:
                        await txn.send(topic, b"never")
            kcodec_broker.faults.remove(rule)
            async with producer.transaction() as txn:
                await txn.send(topic, b"later")

    asyncio.run(run())
    assert committed(kcodec_broker, topic) == [b"later"]


def test_a_block_follows_one_that_was_cancelled_when_it_had_just_begun(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def run() -> None:
        async with aio.Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="begun"
        ) as producer:

            async def block() -> None:
                async with producer.transaction() as txn:
                    await txn.send(topic, b"never")

            task = asyncio.create_task(block())
            while producer._manager().state.name != "IN_TRANSACTION":
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction() as txn:
                await txn.send(topic, b"later")

    asyncio.run(run())
    assert committed(kcodec_broker, topic) == [b"later"]


def test_a_block_follows_one_whose_end_ctrl_c_has_interrupted(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="interrupted") as producer:
            rule = kcodec_broker.faults.add("Produce", delay_ms=DELAY_MS)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt), producer.transaction() as txn:
                    txn.send(topic, b"never")
                    signal.setitimer(signal.ITIMER_REAL, EARLY_SECONDS)
            kcodec_broker.faults.remove(rule)
            with producer.transaction() as txn:
                txn.send(topic, b"later")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert committed(kcodec_broker, topic) == [b"later"]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_failed_begin_keeps_the_transaction_of_another_task(
    is_cancelled: bool, kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one task waits for its transaction, another one begins its own. The end of the wait does not affect it."""
    topic = kcodec_broker.create_topic()

    def waiting_begin(timeout: float | None, partitions: Any) -> Flow[Any]:
        yield from sleep(EARLY_SECONDS)
        raise DeliveryTimeoutError("late")

    async def run() -> None:
        async with aio.Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=f"other-{is_cancelled}"
        ) as producer:
            await producer.init_transactions()
            with monkeypatch.context() as patch:
                patch.setattr(producer._manager(), "begin", waiting_begin)
                with_partitions = producer.transaction(partitions=[TopicPartition(topic, 0)])
                waiting = asyncio.create_task(with_partitions.__aenter__())
                await asyncio.sleep(0)
            async with producer.transaction() as txn:
                if is_cancelled:
                    waiting.cancel()
                with pytest.raises((DeliveryTimeoutError, asyncio.CancelledError)):
                    await waiting
                assert not txn._current.is_abandoned
                await txn.send(topic, b"kept")
            assert txn.committed

    asyncio.run(run())
    assert committed(kcodec_broker, topic) == [b"kept"]


@pytest.mark.parametrize("kind", ["producer", "session"])
def test_a_block_that_is_entered_again_is_not_abandoned(kind: str, kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def run() -> None:
        options: Any = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "transactional_id": f"again-{kind}"}
        client: Any
        if kind == "producer":
            client = aio.Producer(**options)
        else:
            client = aio.GroupTransactSession(group_id=topic, topics=[topic], **options)
        async with client:
            kcodec_broker.faults.add("InitProducerId", delay_ms=DELAY_MS, count=1)
            txn = client.transaction()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(EARLY_SECONDS):
                    await txn.__aenter__()
            async with txn:
                manager = client._manager() if kind == "producer" else client._flows.manager
                assert manager.newest is not None
                assert not manager.newest.is_abandoned
                if kind == "session":
                    assert not txn._current.is_gone()
                await txn.send(topic, b"second")
            assert txn.committed

    asyncio.run(run())
    assert committed(kcodec_broker, topic) == [b"second"]
