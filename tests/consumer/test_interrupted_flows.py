# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in asyncio that interrupts a background flow of a client: calls do not wait for what the flow would have done,
and the client can still be closed."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import pytest
from left_groups import is_left_soon
from second_ctrl_c import interrupt_flow

from kcodec.broker import Broker
from kcodec.client import Admin, aio
from kcodec.errors import TransportError
from kcodec.offsets import TopicPartition

ANOTHER_CLIENT, ANOTHER_PRODUCER = "if calls keep failing, create another client", "create another producer"


def interrupted(step: str, remedy: str = ANOTHER_CLIENT) -> str:
    """Return the pattern of the error of an interrupted step."""
    return "^" + re.escape(f"a step of this client ({step}) was interrupted by KeyboardInterrupt(); {remedy}")


@pytest.mark.parametrize(
    "name", ["consumer", "fetcher", "fetcher: listener", "positions: listener", "commits", "watch"]
)
def test_poll_raises_the_error_of_an_interrupted_flow(kcodec_broker: Broker, name: str) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        async with aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            await consumer.poll(0.1)
            interrupt_flow(consumer, name)
            with pytest.raises(TransportError, match=interrupted(name)):
                await consumer.poll(5.0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        ("classic", "membership"),
        ("classic", "group heartbeats"),
        ("classic", "group topics"),
        ("consumer", "membership"),
        ("consumer", "reconciliation of group 'readers'"),
    ],
)
def test_a_member_whose_flow_was_interrupted_raises_and_leaves(kcodec_broker: Broker, protocol: str, name: str) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        consumer = aio.Consumer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, group_id="readers", group_protocol=cast(Any, protocol)
        )
        async with consumer:
            await consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.poll(0.1)
            interrupt_flow(consumer, name)
            with pytest.raises(TransportError, match=interrupted(name)):
                await consumer.poll(5.0)

    asyncio.run(main())
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        assert is_left_soon(admin, "readers")


def test_metadata_is_still_requested_after_an_interruption(kcodec_broker: Broker) -> None:
    topics = [kcodec_broker.create_topic() for _ in range(2)]

    async def main() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            assert await producer.partitions_for(topics[0]) > 0
            interrupt_flow(producer, "metadata")
            assert await producer.partitions_for(topics[1]) > 0

    asyncio.run(main())


@pytest.mark.parametrize("name", ["producer", "producer id"])
def test_records_fail_after_the_interruption_of_the_producers_flow(kcodec_broker: Broker, name: str) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=60_000) as producer:
            await producer.partitions_for(topic)
            buffered = await producer.send(topic, b"buffered")
            interrupt_flow(producer, name)
            with pytest.raises(TransportError, match=interrupted(name, ANOTHER_PRODUCER)) as failure:
                await asyncio.wait_for(buffered, 5.0)
            assert not failure.value.possibly_sent
            with pytest.raises(TransportError, match=interrupted(name, ANOTHER_PRODUCER)):
                await producer.send(topic, b"refused")

    asyncio.run(main())


def test_a_call_says_that_it_was_interrupted() -> None:
    async def main() -> None:
        producer = aio.Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=5000)
        waiting = asyncio.ensure_future(producer.partitions_for("orders"))
        await asyncio.sleep(0.1)
        interrupt_flow(producer, "partitions_for('orders')")
        with pytest.raises(
            TransportError,
            match=interrupted("partitions_for('orders')"),
        ) as failure:
            await waiting
        assert failure.value.possibly_sent
        await producer.close(0.0)

    asyncio.run(main())
