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
from kcodec.errors import TransactionStateError

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


def test_a_block_that_cannot_begin_leaves_the_transaction_of_another_task(kcodec_broker: Broker) -> None:
    """Two tasks wait for the first transaction. Only one of them gets it, and the error of the other has no effect."""
    topic = kcodec_broker.create_topic()

    async def run() -> None:
        async with aio.Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="two-tasks"
        ) as producer:
            refused: list[BaseException] = []
            committed_by: list[bool | None] = []

            async def block(number: int) -> None:
                try:
                    async with producer.transaction() as txn:
                        await txn.send(topic, b"%d" % number)
                        await asyncio.sleep(EARLY_SECONDS)
                        assert not txn._current.is_abandoned
                        await txn.send(topic, b"%d" % number)
                    committed_by.append(txn.committed)
                except TransactionStateError as error:
                    refused.append(error)

            await asyncio.gather(block(0), block(1))
            assert len(refused) == 1
            assert committed_by == [True]

    asyncio.run(run())
    values = committed(kcodec_broker, topic)
    assert len(values) == 2
    assert values[0] == values[1]


def test_a_cancelled_begin_leaves_the_transaction_of_another_task(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def run() -> None:
        async with aio.Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="cancelled-begin"
        ) as producer:
            rule = kcodec_broker.faults.add("InitProducerId", delay_ms=DELAY_MS, count=1)
            waiting = asyncio.create_task(producer.transaction().__aenter__())
            await asyncio.sleep(EARLY_SECONDS)
            other = producer.transaction()
            begun = asyncio.create_task(other.__aenter__())
            await asyncio.sleep(0)
            manager = producer._manager()
            while manager.state.name != "IN_TRANSACTION":
                await asyncio.sleep(0)
            waiting.cancel()
            results = await asyncio.gather(waiting, begun, return_exceptions=True)
            assert sum(isinstance(one, BaseException) for one in results) >= 1
            kcodec_broker.faults.remove(rule)
            if results[1] is other:
                assert manager.newest is not None
                assert not manager.newest.is_abandoned
                await other.send(topic, b"kept")
                await other.__aexit__(None, None, None)
                assert other.committed

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["producer", "session"])
def test_a_block_that_is_entered_again_after_an_interruption_is_not_abandoned(
    kind: str, kcodec_broker: Broker
) -> None:
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
