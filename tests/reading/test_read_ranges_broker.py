# SPDX-License-Identifier: Apache-2.0
"""read_ranges on a real Apache Kafka, for threads and asyncio."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import kcodec
from kcodec import OffsetRange, TopicPartition
from kcodec.client import Admin, Producer, aio
from kcodec.errors import BrokerError, OffsetOutOfRangeError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka

Rows = dict[tuple[str, int, int], bytes | None]
Read = Callable[..., tuple[Rows, list[int]]]


def rows_of(batches: list[kcodec.DecodedRecords]) -> Rows:
    found: Rows = {}
    for batch in batches:
        for record in batch.records():
            assert record.topic is not None
            assert record.partition is not None
            assert (record.topic, record.partition, record.offset) not in found
            found[record.topic, record.partition, record.offset] = record.value
    return found


def blocking(ranges: list[OffsetRange], **options: Any) -> tuple[Rows, list[int]]:
    with kcodec.read_ranges(ranges, **options) as records:
        rows = rows_of(list(records))
    return rows, [one.lost for one in records.ranges]


def awaited(ranges: list[OffsetRange], **options: Any) -> tuple[Rows, list[int]]:
    async def read() -> tuple[Rows, list[int]]:
        async with aio.read_ranges(ranges, **options) as records:
            return rows_of([batch async for batch in records]), [one.lost for one in records.ranges]

    return asyncio.run(read())


def topic_id(kafka: ApacheKafka, topic: str) -> Any:
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        return admin.describe_topics([topic])[topic].topic_id


@pytest.fixture(scope="module")
def written(apache_kafka: ApacheKafka) -> tuple[list[str], Rows, Rows]:
    """(two topics of two partitions, what is committed, everything that is written); every third transaction is
    aborted."""
    topics = [apache_kafka.create_topic(partitions=2) for _ in range(2)]
    committed: Rows = {}
    everything: Rows = {}
    servers = apache_kafka.bootstrap_servers
    with Producer(bootstrap_servers=servers, transactional_id=f"write-{topics[0]}") as producer:
        for number in range(9):
            with producer.transaction() as transaction:
                sent = [
                    (topics[index % 2], index // 2 % 2, b"%d-%d" % (number, index), {"n": b"x"} if index % 4 else None)
                    for index in range(20)
                ]
                deliveries = [
                    transaction.send(topic, value, partition=partition, headers=headers)
                    for topic, partition, value, headers in sent
                ]
                offsets = [delivery.result().offset for delivery in deliveries]
                if number % 3 == 2:
                    transaction.abort()
            for (topic, partition, value, _), offset in zip(sent, offsets, strict=True):
                place = topic, partition, offset
                everything[place] = value
                if number % 3 != 2:
                    committed[place] = value
    return topics, committed, everything


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("read", [blocking, awaited])
def test_ranges_of_two_topics_give_their_records(
    apache_kafka: ApacheKafka, written: tuple[list[str], Rows, Rows], read: Read, isolation_level: str
) -> None:
    (one, other), committed, everything = written
    ids = {topic: topic_id(apache_kafka, topic) for topic in (one, other)}
    ranges = [
        OffsetRange(one, 0, 3, 31, topic_id=ids[one]),
        OffsetRange(other, 1, 0, 50, topic_id=ids[other]),
        OffsetRange(one, 0, 31, 44),
        OffsetRange(other, 0, 10, 10),
    ]
    ranges = pickle.loads(pickle.dumps(ranges))
    for _ in range(2):
        rows, lost = read(ranges, bootstrap_servers=apache_kafka.bootstrap_servers, isolation_level=isolation_level)
        expected = committed if isolation_level == "read_committed" else everything
        assert rows == {
            (topic, partition, offset): value
            for (topic, partition, offset), value in expected.items()
            if any((topic, partition) == each.topic_partition and each.start <= offset < each.end for each in ranges)
        }
        assert lost == [0, 0, 0, 0]


def test_spark_layout_is_what_spark_takes(apache_kafka: ApacheKafka, written: tuple[list[str], Rows, Rows]) -> None:
    import pyarrow as pa

    from kcodec.spark.columns import arrow_schema, default_columns

    (topic, _), committed, _ = written
    columns = default_columns(True, False)
    with kcodec.read_ranges(
        [OffsetRange(topic, 0, 0, 40)],
        bootstrap_servers=apache_kafka.bootstrap_servers,
        spark_layout=True,
        columns=[column.column for column in columns],
    ) as records:
        batches = [pa.record_batch(batch) for batch in records]
    theirs = [pa.RecordBatch.from_arrays(batch.columns, schema=arrow_schema(columns)) for batch in batches]
    table = pa.Table.from_batches(theirs)
    wanted = {offset: value for (name, number, offset), value in committed.items() if (name, number) == (topic, 0)}
    assert dict(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)) == {
        offset: value for offset, value in wanted.items() if offset < 40
    }
    headers = table["headers"].to_pylist()
    assert None in headers
    assert [] not in headers
    assert table["timestampType"].unique().to_pylist() == [0]


@pytest.mark.parametrize("read", [blocking, awaited])
def test_deleted_records_are_an_error_or_skipped(apache_kafka: ApacheKafka, read: Read) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    servers = apache_kafka.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        for _ in range(10):
            producer.send(topic, b"x")
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    with pytest.raises(
        OffsetOutOfRangeError, match=r"\[2, 8\): offset 2 is not in the log, which has offsets 4 to 10 \(exclusive\)"
    ):
        read([OffsetRange(topic, 0, 2, 8)], bootstrap_servers=servers)
    with pytest.raises(
        OffsetOutOfRangeError, match=r"\[5, 12\): offsets up to 12 are not in the log, which has offsets 4 to 10"
    ):
        read([OffsetRange(topic, 0, 5, 12)], bootstrap_servers=servers)
    rows, lost = read([OffsetRange(topic, 0, 2, 12)], bootstrap_servers=servers, on_missing="skip")
    assert [offset for *_, offset in rows] == [*range(4, 10)]
    assert lost == [4]


def test_a_topic_that_is_created_again_between_two_calls(apache_kafka: ApacheKafka) -> None:
    """The client that is kept knows the old topic."""
    topic = apache_kafka.create_topic(partitions=1)
    servers = apache_kafka.bootstrap_servers

    def fill(value: bytes) -> None:
        with Producer(bootstrap_servers=servers) as producer:
            for _ in range(5):
                producer.send(topic, value)

    fill(b"old")
    old = OffsetRange(topic, 0, 0, 5, topic_id=topic_id(apache_kafka, topic))
    assert set(blocking([old], bootstrap_servers=servers)[0].values()) == {b"old"}
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_topics([topic])
        admin.create_topics([kcodec.client.NewTopic(topic, 1)])
    fill(b"new")
    with pytest.raises(BrokerError, match=r"was deleted and .* again") as caught:
        blocking([old], bootstrap_servers=servers)
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert blocking([old], bootstrap_servers=servers, on_missing="skip") == ({}, [5])
    assert set(blocking([OffsetRange(topic, 0, 0, 5)], bootstrap_servers=servers)[0].values()) == {b"new"}


def test_epochs_of_the_log_are_no_truncation(apache_kafka: ApacheKafka) -> None:
    """Also the one that ListOffsets gives for the end."""
    topic = apache_kafka.create_topic(partitions=1)
    servers = apache_kafka.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        for _ in range(5):
            producer.send(topic, b"x")
    with Admin(bootstrap_servers=servers) as admin:
        end = admin.list_offsets({TopicPartition(topic, 0): "latest"})[TopicPartition(topic, 0)]
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"y")
    assert end.leader_epoch is not None
    for epoch in (-1, end.leader_epoch):
        wanted = OffsetRange(topic, 0, end.offset, end.offset + 1, leader_epoch=epoch)
        assert list(blocking([wanted], bootstrap_servers=servers)[0].values()) == [b"y"]
