# SPDX-License-Identifier: Apache-2.0
"""Record by record on a real broker: what a loop leaves, what it commits when it fails, and how a rebalance of each
group protocol interrupts it."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
from collections import Counter
from typing import Any, Literal

import pytest

from kcodec import TopicPartition
from kcodec.client import Admin, Consumer, Producer
from kcodec.client.aio import Consumer as AioConsumer
from kcodec.testing.kafka import ApacheKafka

RECORDS = 2000
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])
Options = dict[str, Any]


class Failed(Exception):
    """A record cannot be processed."""


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    """One partition with RECORDS records, whose values are their offsets."""
    name: str = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        for offset in range(RECORDS):
            producer.send(name, b"%d" % offset, partition=0)
    return name


@pytest.fixture
def options(apache_kafka: ApacheKafka) -> Options:
    return {
        "bootstrap_servers": apache_kafka.bootstrap_servers,
        "group_id": f"iteration-{uuid.uuid4().hex}",
        "auto_offset_reset": "earliest",
    }


def committed(options: Options, topic: str) -> int:
    with Admin(bootstrap_servers=options["bootstrap_servers"]) as admin:
        found = admin.list_group_offsets(options["group_id"])
    place = found[TopicPartition(topic, 0)]
    assert place is not None
    return place.offset


@PROTOCOLS
def test_a_failed_loop_is_resumed_at_its_record(
    topic: str, options: Options, protocol: Literal["classic", "consumer"]
) -> None:
    with pytest.raises(Failed), Consumer(**options, group_protocol=protocol) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            if record.offset == 3:
                raise Failed
    assert committed(options, topic) == 3
    with Consumer(**options, group_protocol=protocol) as consumer:
        consumer.subscribe([topic])
        assert [record.offset for record in itertools.islice(consumer, 3)] == [3, 4, 5]
        assert [record.offset for record in itertools.islice(consumer, 2)] == [6, 7]
        consumer.seek(TopicPartition(topic, 0), 900)
        assert [record.offset for record in itertools.islice(consumer, 2)] == [900, 901]
        assert consumer.poll_arrow(10.0).column("offset")[0] == 902


@PROTOCOLS
def test_a_failed_asyncio_loop_is_resumed_at_its_record(
    topic: str, options: Options, protocol: Literal["classic", "consumer"]
) -> None:
    async def fail() -> None:
        async with AioConsumer(**options, group_protocol=protocol) as consumer:
            await consumer.subscribe([topic])
            async for record in consumer:
                if record.offset == 3:
                    raise Failed

    async def resume() -> list[int]:
        found: list[int] = []
        async with AioConsumer(**options, group_protocol=protocol, enable_auto_commit=False) as consumer:
            await consumer.subscribe([topic])
            for _ in range(2):
                async for record in consumer:
                    found.append(record.offset or 0)
                    await consumer.commit()
                    if len(found) % 3 == 0:
                        break
        return found

    with pytest.raises(Failed):
        asyncio.run(fail())
    assert committed(options, topic) == 3
    assert asyncio.run(resume()) == [3, 4, 5, 6, 7, 8]
    assert committed(options, topic) == 9


def test_a_failed_block_is_resumed_at_its_last_poll(topic: str, options: Options) -> None:
    with pytest.raises(Failed), Consumer(**options, max_poll_records=100) as consumer:
        consumer.subscribe([topic])
        for number in range(3):
            records = consumer.poll(20.0)
            assert records[0].offset == number * 100
        raise Failed
    assert committed(options, topic) == 200


class Loop(threading.Thread):
    """A member that reads record by record, slowly, on a thread of its own."""

    def __init__(self, topic: str, options: Options) -> None:
        super().__init__(daemon=True)
        self.consumer = Consumer(**options)
        self.consumer.subscribe([topic])
        self.read: list[tuple[int, int]] = []
        self.stop = threading.Event()
        self.start()

    def run(self) -> None:
        with self.consumer as consumer:
            for record in consumer:
                self.read.append((record.partition or 0, record.offset or 0))
                if self.stop.wait(0.001):
                    break

    def end(self) -> None:
        self.stop.set()
        self.join(60.0)


@PROTOCOLS
def test_a_rebalance_interrupts_a_loop(
    apache_kafka: ApacheKafka, options: Options, protocol: Literal["classic", "consumer"]
) -> None:
    """The second member gets its partition while the first still has records that it decoded, and begins with the
    record after the last one that the first has processed."""
    name = apache_kafka.create_topic(partitions=2)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        for offset in range(4000):
            producer.send(name, b"%d" % offset, partition=offset % 2)
    given = {**options, "group_protocol": protocol, "max_poll_records": 2000}
    if protocol == "classic":
        given["heartbeat_interval_ms"] = 300
    first = Loop(name, given)
    while not first.read:
        time.sleep(0.01)
    second = Loop(name, given)
    deadline = time.monotonic() + 60.0
    while len(first.read) + len(second.read) < 4000:
        assert time.monotonic() < deadline and first.is_alive() and second.is_alive()
        time.sleep(0.05)
    for member in (first, second):
        for partition in range(2):
            offsets = [offset for number, offset in member.read if number == partition]
            assert offsets == sorted(offsets)
    time.sleep(0.2)  # both loops wait for a record; one that had just read its last would end without another
    for member in (first, second):
        member.stop.set()
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        for partition in range(2):
            producer.send(name, b"the end", partition=partition)
    for member in (first, second):
        member.end()
    counts = Counter(first.read + second.read)
    assert second.read and set(counts.values()) == {1}
    assert len(counts) == 4002
