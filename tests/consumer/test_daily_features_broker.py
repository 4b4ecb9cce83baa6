# SPDX-License-Identifier: Apache-2.0
"""`poll_one`, `store_offsets`, `incremental_assign` and `incremental_unassign` on a broker, sync and async."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from typing import Any

import pytest

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, Producer
from kcodec.client.aio import Consumer as AioConsumer

RECORDS = 700
Options = dict[str, Any]


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    """Two partitions, each with RECORDS records whose values are their offsets."""
    name: str = kcodec_broker.create_topic(partitions=2)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for partition, offset in itertools.product(range(2), range(RECORDS)):
            producer.send(name, b"%d" % offset, partition=partition)
    return name


@pytest.fixture
def options(kcodec_broker: Broker) -> Options:
    return {
        "bootstrap_servers": kcodec_broker.bootstrap_servers,
        "group_id": f"daily-{uuid.uuid4().hex}",
        "auto_offset_reset": "earliest",
    }


def committed(options: Options, topic: str, partition: int = 0) -> int | None:
    with Admin(bootstrap_servers=options["bootstrap_servers"]) as admin:
        found = admin.list_group_offsets(options["group_id"]).get(TopicPartition(topic, partition))
        return None if found is None else found.offset


def test_poll_one_returns_every_record_in_order(options: Options, topic: str) -> None:
    """The position moves record by record, and `poll` continues after it."""
    name = TopicPartition(topic, 0)
    with Consumer(**options) as consumer:
        consumer.assign([name])
        for offset in range(600):
            record = consumer.poll_one(10.0)
            assert record is not None and record.offset == offset
            assert consumer.position(name) == offset + 1
        assert [record.offset for record in consumer.poll(10.0)] == list(range(600, RECORDS))
        assert consumer.poll_one(0) is None
        begin = time.monotonic()
        assert consumer.poll_one(0.2) is None
        assert 0.15 < time.monotonic() - begin < 5


def test_a_seek_takes_effect_before_the_next_poll_one(options: Options, topic: str) -> None:
    name = TopicPartition(topic, 0)
    with Consumer(**options) as consumer:
        consumer.assign([name])
        assert consumer.poll_one(10.0) is not None
        consumer.seek(name, 500)
        record = consumer.poll_one(10.0)
        assert record is not None and record.offset == 500
        consumer.pause(name)
        assert consumer.poll_one(0.1) is None


def test_an_exception_after_poll_one_leaves_its_record_uncommitted(options: Options, topic: str) -> None:
    with pytest.raises(LookupError), Consumer(**options) as consumer:
        consumer.subscribe([topic])
        seen = [record for record in (consumer.poll_one(10.0) for _ in range(5)) if record is not None]
        raise LookupError
    assert committed(options, topic, seen[-1].partition or 0) == 4


def test_asyncio_polls_one_record(options: Options, topic: str) -> None:
    async def run() -> list[int]:
        async with AioConsumer(**options) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            found = [await consumer.poll_one(10.0) for _ in range(550)]
            await consumer.seek_to_end(TopicPartition(topic, 0))
            assert await consumer.poll_one(0.1) is None
            return [record.offset for record in found if record is not None]

    assert asyncio.run(run()) == list(range(550))


def test_only_stored_offsets_are_committed(options: Options, topic: str) -> None:
    name = TopicPartition(topic, 0)
    with Consumer(**options, enable_auto_offset_store=False, enable_auto_commit=False) as consumer:
        consumer.assign([name, TopicPartition(topic, 1)])
        records = [record for record in (consumer.poll_one(10.0) for _ in range(20)) if record is not None]
        consumer.commit()
        assert committed(options, topic) is None
        consumer.store_offsets(records[9])
        consumer.commit()
        stored = TopicPartition(records[9].topic or "", records[9].partition or 0)
        assert committed(options, topic, stored.partition) == records[9].offset + 1
        consumer.store_offsets({name: 3, TopicPartition(topic, 1): OffsetAndMetadata(5, "mine")})
        consumer.commit_async()
    assert (committed(options, topic), committed(options, topic, 1)) == (3, 5)


def test_automatic_commits_include_stored_offsets_only(options: Options, topic: str) -> None:
    """In intervals, and when the consumer closes."""
    automatic: Options = {"enable_auto_offset_store": False, "auto_commit_interval_ms": 50}
    with Consumer(**options, **automatic) as consumer:
        consumer.subscribe([topic])
        records = [record for record in (consumer.poll_one(10.0) for _ in range(40)) if record is not None]
        consumer.store_offsets(records[4])
        deadline = time.monotonic() + 20
        while committed(options, topic, records[4].partition or 0) != 5 and time.monotonic() < deadline:
            consumer.poll_one(0.05)
        assert committed(options, topic, records[4].partition or 0) == 5
        consumer.store_offsets(records[6])
    assert committed(options, topic, records[6].partition or 0) == 7


def test_stored_offsets_end_with_the_assignment(options: Options, topic: str) -> None:
    """What is stored is committed when the partition is given away, and is not valid in a later assignment."""
    name = TopicPartition(topic, 0)
    with Consumer(**options, enable_auto_offset_store=False) as consumer:
        consumer.assign([name])
        consumer.store_offsets({name: 11})
        consumer.assign([TopicPartition(topic, 1)])
        assert committed(options, topic) == 11
        with pytest.raises(ValueError, match=f"{topic}-0 is not assigned to this consumer"):
            consumer.store_offsets({TopicPartition(topic, 1): 1, name: 12})
        consumer.assign([name])
        consumer.commit()
    assert (committed(options, topic), committed(options, topic, 1)) == (11, None)


def test_store_offsets_needs_the_option_and_a_group(options: Options, topic: str) -> None:
    with Consumer(**options) as consumer, pytest.raises(ValueError, match="enable_auto_offset_store=False"):
        consumer.store_offsets({TopicPartition(topic, 0): 1})
    alone = {"bootstrap_servers": options["bootstrap_servers"], "enable_auto_offset_store": False}
    with (
        Consumer(**alone) as consumer,
        pytest.raises(ValueError, match="store_offsets needs a consumer with group_id="),
    ):
        consumer.store_offsets({TopicPartition(topic, 0): 1})


def test_asyncio_stores_offsets(options: Options, topic: str) -> None:
    async def run() -> None:
        async with AioConsumer(**options, enable_auto_offset_store=False) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            records = await consumer.poll(10.0)
            consumer.store_offsets(records[7])
            await consumer.commit()

    asyncio.run(run())
    assert committed(options, topic) == 8


def test_partitions_are_added_and_removed_one_by_one(options: Options, topic: str) -> None:
    """The position of the others stays, and offsets are committed before a partition is removed."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(**options) as consumer:
        consumer.incremental_assign([first])
        assert len(consumer.poll(10.0)) == 500
        consumer.incremental_assign([first, second])
        assert consumer.assignment() == {first, second}
        assert consumer.position(first) == 500
        consumer.seek(second, 600)
        consumer.pause(first, second)
        assert consumer.poll(0) == []  # which completes the records of the poll before
        consumer.resume(second)
        consumer.incremental_unassign([first])
        assert committed(options, topic) == 500
        assert {record.partition for record in consumer.poll(10.0)} == {1}
        with pytest.raises(ValueError, match=f"{topic}-0 is not assigned"):
            consumer.incremental_unassign([second, first])
        assert consumer.assignment() == {second}


def test_a_subscription_refuses_incremental_calls(options: Options, topic: str) -> None:
    async def run() -> None:
        async with AioConsumer(**options) as consumer:
            await consumer.subscribe([topic])
            for call in (consumer.incremental_assign, consumer.incremental_unassign):
                with pytest.raises(ValueError, match="is not possible after subscribe"):
                    await call([TopicPartition(topic, 0)])

    asyncio.run(run())
