# SPDX-License-Identifier: Apache-2.0
"""Deliveries in the functions of asyncio, and coroutine functions where a plain function is required."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer, aio
from kcodec.compat.aiokafka import AIOKafkaProducer

NOWHERE: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1"}
PLAIN = "must be a plain function, not the coroutine function"


async def coroutine(*_: Any) -> Any:
    raise AssertionError("never awaited")


class Method:
    async def report(self, *_: Any) -> None:
        raise AssertionError("never awaited")


@pytest.mark.parametrize("return_when", [asyncio.ALL_COMPLETED, asyncio.FIRST_COMPLETED, asyncio.FIRST_EXCEPTION])
def test_asyncio_can_wait_for_deliveries(kcodec_broker: Broker, return_when: str) -> None:
    topic = kcodec_broker.create_topic(partitions=1)

    async def run() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            deliveries: list[Any] = [await producer.send(topic, b"v") for _ in range(3)]
            deliveries.append(await producer.send_arrow(topic, {"value": [b"v"]}))
            done, _ = await asyncio.wait(deliveries, timeout=20, return_when=return_when)
            assert done
            for delivery in deliveries:
                await delivery
            done, pending = await asyncio.wait(deliveries)
            assert len(done) == 4 and not pending

    asyncio.run(run())


def test_a_wait_that_ends_early_removes_its_callbacks(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)

    async def run() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            assert await producer.partitions_for(topic) == 1
            kcodec_broker.faults.add("Produce", delay_ms=500, count=1)
            delivery: Any = await producer.send(topic, b"v")
            done, pending = await asyncio.wait([delivery], timeout=0.1)
            assert (done, pending) == (set(), {delivery})
            assert not delivery._batch.functions
            assert delivery.remove_done_callback(print) == 0
            await delivery
            assert delivery.remove_done_callback(print) == 0

    asyncio.run(run())


@pytest.mark.parametrize("function", [coroutine, Method().report])
def test_on_delivery_must_be_a_plain_function(kcodec_broker: Broker, function: Any) -> None:
    """The record is not sent."""
    topic = kcodec_broker.create_topic(partitions=1)

    async def run() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            with pytest.raises(TypeError, match=f"on_delivery {PLAIN}"):
                await producer.send(topic, b"v", on_delivery=function)

    asyncio.run(run())
    with (
        Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer,
        pytest.raises(TypeError, match=f"on_delivery {PLAIN}"),
    ):
        producer.send(topic, b"v", on_delivery=function)
    assert not kcodec_broker.committed(topic)


def test_the_partitioner_must_be_a_plain_function() -> None:
    with pytest.raises(TypeError, match=f"partitioner {PLAIN}"):
        Producer(**NOWHERE, partitioner=coroutine)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["key_serializer", "value_serializer", "partitioner"])
def test_functions_of_the_aiokafka_facade_must_be_plain(option: str) -> None:
    async def run() -> None:
        options: dict[str, Any] = {option: coroutine}
        with pytest.raises(TypeError, match=f"{option} {PLAIN}"):
            AIOKafkaProducer(**NOWHERE, **options)

    asyncio.run(run())
