# SPDX-License-Identifier: Apache-2.0
"""The facade of aiokafka: a start that fails or is cancelled in a block, and a stop that is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.errors import UnknownTopicOrPartitionError

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
