# SPDX-License-Identifier: Apache-2.0
"""The facade of aiokafka: a start that fails or is cancelled in a block, a stop that is cancelled, and Ctrl-C
that interrupts background work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import UnknownTopicOrPartitionError
from second_ctrl_c import interrupt_task

from kcodec.broker import Broker
from kcodec.compat.aiokafka import AIOKafkaConsumer, AIOKafkaProducer

SESSION: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200}


def test_a_block_whose_start_is_cancelled_stops_the_consumer(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        kcodec_broker.faults.add("SyncGroup", delay_ms=1000, count=1)
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=topic, **SESSION)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4), consumer:
                pass
        assert consumer._kcodec._io_loop.is_closed
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_block_whose_start_fails_stops_the_consumer() -> None:
    async def main(broker: Broker) -> None:
        consumer = AIOKafkaConsumer("absent", bootstrap_servers=broker.bootstrap_servers, group_id="g", **SESSION)
        with pytest.raises(UnknownTopicOrPartitionError):
            async with consumer:
                pass
        assert consumer._kcodec._io_loop.is_closed
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    with Broker(auto_create_topics=False) as broker:
        asyncio.run(main(broker))


def test_a_stop_cancelled_during_a_commit_closes_the_producer(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic)
        await producer.start()
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"x")
        kcodec_broker.faults.add("EndTxn", delay_ms=3000, count=1)
        commit = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0.2)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.stop(), 0.3)
        assert producer._kcodec._io_loop.is_closed
        await producer.stop()

    asyncio.run(main())


def interrupt_calls(consumer: AIOKafkaConsumer) -> None:
    """Let Ctrl-C interrupt the flows for which the background tasks of the facade wait."""
    served = consumer._kcodec
    calls = [task for task in served._client.scheduler.tasks if task.name == "the call"]
    assert calls
    for task in calls:
        interrupt_task(served, task)


class CountingListener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.revoked = 0

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        self.revoked += len(revoked)

    async def on_partitions_assigned(self, assigned: set[Any]) -> None:
        pass


def test_rebalances_call_the_listener_after_an_interruption(kcodec_broker: Broker) -> None:
    topic, listener = kcodec_broker.create_topic(partitions=2), CountingListener()
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "group_id": topic, **SESSION}

    async def main() -> None:
        first = AIOKafkaConsumer(**options)
        first.subscribe([topic], listener=listener)
        async with first:
            interrupt_calls(first)
            async with asyncio.timeout(5.0), AIOKafkaConsumer(topic, **options):
                assert listener.revoked == 2

    asyncio.run(main())


def test_new_topics_are_assigned_after_an_interruption(kcodec_broker: Broker) -> None:
    """Without a group, a task of the facade assigns the partitions."""
    prefix = kcodec_broker.create_topic(partitions=1)

    async def main() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=kcodec_broker.bootstrap_servers, metadata_max_age_ms=200)
        consumer.subscribe(pattern=f"^{prefix}.*$")
        async with consumer:
            assert {one.topic for one in consumer.assignment()} == {prefix}
            interrupt_calls(consumer)
            kcodec_broker.create_topic(f"{prefix}-later", partitions=1)
            async with asyncio.timeout(5.0):
                while len(consumer.assignment()) < 2:
                    await asyncio.sleep(0.05)

    asyncio.run(main())
