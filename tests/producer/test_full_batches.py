# SPDX-License-Identifier: Apache-2.0
"""Records with headers that fill many batches: a consumer receives every record as it was sent."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Consumer, Producer
from kcodec.client.aio import Producer as AioProducer

Sent = tuple[bytes, tuple[tuple[str, bytes], ...]]


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    name: str = kcodec_broker.create_topic(partitions=1)
    return name


def workload(count: int) -> list[Sent]:
    """Values whose sizes differ, so that the length of a record takes one byte or two, and three short headers."""
    rng = random.Random(5)
    headers = (("a", b"1"), ("b", b"2"), ("c", b"3"))
    return [(rng.randbytes(rng.randrange(5, 160)), headers) for _ in range(count)]


def received(broker: Broker, topic: str, count: int) -> list[Sent]:
    found: list[Sent] = []
    with Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for record in consumer:
            found.append((record.value or b"", tuple((name, value or b"") for name, value in record.headers)))
            if len(found) == count:
                break
    return found


def test_records_that_fill_batches_keep_their_headers(kcodec_broker: Broker, topic: str) -> None:
    sent = workload(10_000)
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "batch_size": 1000}
    with Producer(**options, linger_ms=50) as producer:
        deliveries = [producer.send(topic, value, headers=headers) for value, headers in sent]
        producer.flush()
        assert [delivery.result(10).offset for delivery in deliveries] == list(range(len(sent)))
    assert received(kcodec_broker, topic, len(sent)) == sent


def test_records_of_the_async_producer_keep_their_headers(kcodec_broker: Broker, topic: str) -> None:
    sent = workload(5000)
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "batch_size": 1000}

    async def send_all() -> None:
        async with AioProducer(**options, linger_ms=50) as producer:
            deliveries = [await producer.send(topic, value, headers=headers) for value, headers in sent]
            await producer.flush()
            assert [(await delivery).offset for delivery in deliveries] == list(range(len(sent)))

    asyncio.run(send_all())
    assert received(kcodec_broker, topic, len(sent)) == sent
