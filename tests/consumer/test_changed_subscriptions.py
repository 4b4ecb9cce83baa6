# SPDX-License-Identifier: Apache-2.0
"""Records of topics that a later `subscribe` does not contain: no call returns them once `subscribe` has returned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest

from kcodec.broker import Broker
from kcodec.client import Consumer, aio
from kcodec.offsets import TopicPartition

SECONDS = 20.0
PROTOCOLS = pytest.mark.parametrize("group_protocol", ["classic", "consumer"])


def topics_of_arrow(consumer: Consumer) -> list[str | None]:
    columns: Any = consumer.poll_arrow(0.2)
    return [columns.topic] if len(columns) else []


def topics_of_one(consumer: Consumer) -> list[str | None]:
    record = consumer.poll_one(0.2)
    return [] if record is None else [record.topic]


READS: dict[str, Callable[[Consumer], list[str | None]]] = {
    "poll": lambda consumer: [record.topic for record in consumer.poll(0.2)],
    "poll_one": topics_of_one,
    "poll_arrow": topics_of_arrow,
    "loop": lambda consumer: [next(iter(consumer)).topic],
}


def two_topics(broker: Broker) -> tuple[str, str]:
    """A topic with many records, and a topic with one."""
    first, second = broker.create_topic(partitions=1), broker.create_topic(partitions=1)
    for _ in range(20):
        broker.seed(first, [bytes(100)] * 50)
    broker.seed(second, [b"next"])
    return first, second


def read_until(consumer: Consumer, read: Callable[[Consumer], list[str | None]], topic: str) -> list[str | None]:
    """The topics of the records that are read up to the first one of this topic."""
    found: list[str | None] = []
    until = time.monotonic() + SECONDS
    while topic not in found:
        assert time.monotonic() < until, found
        found += read(consumer)
    return found


# In the consumer protocol, the broker matches the pattern, so the client does not know the topics.
@pytest.mark.parametrize(("group_protocol", "is_pattern"), [("classic", False), ("consumer", False), ("classic", True)])
@pytest.mark.parametrize("how", list(READS))
def test_no_records_of_the_former_topic_are_returned(
    kcodec_broker: Broker, group_protocol: Literal["classic", "consumer"], how: str, is_pattern: bool
) -> None:
    """Neither records that were fetched before, nor the rest of a chunk. The commit before the revocation contains what
    was read."""
    first, second = two_topics(kcodec_broker)
    place = TopicPartition(first, 0)
    with Consumer(
        bootstrap_servers=kcodec_broker.bootstrap_servers,
        group_id=first,
        group_protocol=group_protocol,
        auto_offset_reset="earliest",
        max_poll_records=10,
        max_partition_fetch_bytes=12_000,
    ) as consumer:
        consumer.subscribe(first)
        read_until(consumer, READS[how], first)
        position = consumer.position(place)
        assert 0 < position < 1000
        if is_pattern:
            consumer.subscribe(pattern=second)
        else:
            consumer.subscribe(second)
        assert set(read_until(consumer, READS[how], second)) == {second}
        committed = consumer.committed([place])[place]
        assert committed is not None
        assert committed.offset == position


@PROTOCOLS
def test_a_topic_that_is_subscribed_to_again_loses_no_records(
    kcodec_broker: Broker, group_protocol: Literal["classic", "consumer"]
) -> None:
    """Whether a rebalance comes in between or not."""
    first, second = two_topics(kcodec_broker)
    offsets: list[int] = []
    with Consumer(
        bootstrap_servers=kcodec_broker.bootstrap_servers,
        group_id=first,
        group_protocol=group_protocol,
        auto_offset_reset="earliest",
        max_poll_records=10,
        max_partition_fetch_bytes=12_000,
    ) as consumer:
        until = time.monotonic() + SECONDS
        consumer.subscribe([first, second])
        polls = 0
        while len(offsets) < 1000:
            assert time.monotonic() < until, offsets[-1:]
            offsets += [record.offset for record in consumer.poll(0.2) if record.topic == first]
            polls += 1
            if polls % 15 == 0:
                consumer.subscribe(second)
                for _ in range(polls % 4):
                    assert all(record.topic == second for record in consumer.poll(0.02))
                consumer.subscribe([first, second])
    assert offsets == list(range(1000))


def test_partitions_of_a_join_with_the_former_topic_are_not_read(kcodec_broker: Broker) -> None:
    """The subscription changes while the member joins, or within on_assigned."""
    first, second = two_topics(kcodec_broker)

    async def program() -> set[str | None]:
        topics: set[str | None] = set()
        async with aio.Consumer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=first, auto_offset_reset="earliest"
        ) as consumer:

            async def on_assigned(partitions: frozenset[TopicPartition]) -> None:
                if TopicPartition(first, 0) in partitions:
                    await consumer.subscribe(second)

            await consumer.subscribe(first, on_assigned=on_assigned)
            until = time.monotonic() + SECONDS
            while second not in topics and time.monotonic() < until:
                topics.update(record.topic for record in await consumer.poll(0.1))
        return topics

    assert asyncio.run(program()) == {second}
