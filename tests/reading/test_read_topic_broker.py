# SPDX-License-Identifier: Apache-2.0
"""read_topic on a real Apache Kafka, for threads and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import kcodec
from kcodec.client import Admin, Producer, aio
from kcodec.errors import BrokerError, OffsetOutOfRangeError
from kcodec.offsets import TopicPartition
from kcodec.testing.kafka import ApacheKafka

Rows = dict[tuple[int, int], bytes | None]


def rows_of(batches: list[kcodec.DecodedRecords]) -> Rows:
    found: Rows = {}
    for batch in batches:
        for record in batch.records():
            assert record.partition is not None
            assert (record.partition, record.offset) not in found
            found[record.partition, record.offset] = record.value
    return found


def blocking(topic: str, **options: Any) -> tuple[Rows, dict[TopicPartition, Any]]:
    records = kcodec.read_topic(topic, **options)
    return rows_of(list(records)), records.offsets


def awaited(topic: str, **options: Any) -> tuple[Rows, dict[TopicPartition, Any]]:
    async def read() -> tuple[Rows, dict[TopicPartition, Any]]:
        async with aio.read_topic(topic, **options) as records:
            return rows_of([batch async for batch in records]), records.offsets

    return asyncio.run(read())


@pytest.fixture(scope="module")
def written(apache_kafka: ApacheKafka) -> tuple[str, Rows]:
    """A topic of three partitions in which every third transaction is aborted, the last one too."""
    topic = apache_kafka.create_topic(partitions=3)
    committed: Rows = {}
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, transactional_id=f"write-{topic}") as producer:
        for number in range(9):
            with producer.transaction() as transaction:
                sent = [
                    transaction.send(topic, b"%d-%d" % (number, index), partition=index % 3, headers={"n": b"x"})
                    for index in range(20)
                ]
                if number % 3 == 2:
                    transaction.abort()
            if number % 3 != 2:
                for index, delivery in enumerate(sent):
                    committed[index % 3, delivery.result().offset] = b"%d-%d" % (number, index)
    return topic, committed


@pytest.mark.parametrize("read", [blocking, awaited])
def test_committed_records_are_read_up_to_the_end(
    apache_kafka: ApacheKafka, written: tuple[str, Rows], read: Callable[..., Any]
) -> None:
    """The last transaction is aborted: its records and its marker lie before the end, and the end is reached."""
    topic, committed = written
    rows, offsets = read(topic, bootstrap_servers=apache_kafka.bootstrap_servers)
    assert rows == committed
    last = {number: max(offset for partition, offset in committed if partition == number) for number in range(3)}
    assert all(one.next_offset == one.end > last[place.partition] + 1 for place, one in offsets.items())


@pytest.mark.parametrize("read", [blocking, awaited])
def test_a_part_of_it(apache_kafka: ApacheKafka, written: tuple[str, Rows], read: Callable[..., Any]) -> None:
    topic, committed = written
    servers = apache_kafka.bootstrap_servers
    rows, _ = read(topic, bootstrap_servers=servers, partitions=[1, 2], start={1: 5}, end=12)
    assert rows == {
        (partition, offset): value
        for (partition, offset), value in committed.items()
        if (partition == 1 and 5 <= offset < 12) or (partition == 2 and offset < 12)
    }
    rows, _ = read(topic, bootstrap_servers=servers, max_rows=7)
    assert len(rows) == 7


def test_it_is_an_arrow_stream(apache_kafka: ApacheKafka, written: tuple[str, Rows]) -> None:
    import pyarrow

    topic, committed = written
    with kcodec.read_topic(
        topic, bootstrap_servers=apache_kafka.bootstrap_servers, columns=("partition", "offset", "value", "headers")
    ) as records:
        table = pyarrow.RecordBatchReader.from_stream(records).read_all()
    places = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    assert dict(zip(places, table["value"].to_pylist(), strict=True)) == committed
    assert table["headers"][0].as_py() == [{"key": "n", "value": b"x"}]


@pytest.mark.parametrize("read", [blocking, awaited])
def test_deleted_offsets_are_reported(apache_kafka: ApacheKafka, read: Callable[..., Any]) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    servers = apache_kafka.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        for _ in range(10):
            producer.send(topic, b"x")
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    assert list(read(topic, bootstrap_servers=servers)[0]) == [(0, offset) for offset in range(4, 10)]
    with pytest.raises(
        OffsetOutOfRangeError, match=r"start offset 2 is not in the log, which has offsets 4 to 10 \(exclusive\)"
    ):
        read(topic, bootstrap_servers=servers, start=2)
    with pytest.raises(BrokerError, match="no partition 3"):
        read(topic, bootstrap_servers=servers, partitions=[3])


def test_a_topic_that_is_deleted_while_it_is_read(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=2)
    servers = apache_kafka.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(100):
            producer.send(topic, b"x" * 10_000, partition=number % 2)
    with kcodec.read_topic(
        topic, bootstrap_servers=servers, max_partition_fetch_bytes=20_000, fetch_ahead_max_bytes=20_000
    ) as records:
        next(records)
        with Admin(bootstrap_servers=servers) as admin:
            admin.delete_topics([topic])
        with pytest.raises(BrokerError, match="deleted while it was read"):
            list(records)
