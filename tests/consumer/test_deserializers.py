# SPDX-License-Identifier: Apache-2.0
"""`key_deserializer` and `value_deserializer`: what they are called with, and what happens when one fails."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import kcodec
from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Consumer, GroupTransactSession, Producer
from kcodec.client.aio import Consumer as AioConsumer
from kcodec.client.aio import read_topic as aio_read_topic
from kcodec.errors import DecodeError, DeserializationError, TransportError

GOOD, BAD = 40, (7, 23, 24)
Options = dict[str, Any]


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    """Records {"n": offset}, of which those at BAD are no JSON, and the last one is a tombstone."""
    name: str = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, value_serializer=None) as producer:
        for offset in range(GOOD):
            value = b"\xff{" if offset in BAD else json.dumps({"n": offset}).encode()
            producer.send(name, value, key=b"key-%d" % offset)
        producer.send(name, None, key=b"key-0")
    return name


@pytest.fixture
def options(kcodec_broker: Broker) -> Options:
    return {
        "bootstrap_servers": kcodec_broker.bootstrap_servers,
        "group_id": f"deserializers-{uuid.uuid4().hex}",
        "auto_offset_reset": "earliest",
        "value_deserializer": json.loads,
        "key_deserializer": bytes.decode,
    }


def expected(offset: int) -> Any:
    return None if offset == GOOD else {"n": offset}


def read_by_poll(consumer: Consumer) -> list[Any]:
    return consumer.poll(10.0)


def read_one(consumer: Consumer) -> list[Any]:
    record = consumer.poll_one(10.0)
    return [] if record is None else [record]


def read_a_loop(consumer: Consumer) -> list[Any]:
    for record in consumer:
        return [record]
    return []


@pytest.mark.parametrize("read", [read_by_poll, read_one, read_a_loop])
def test_a_consumer_goes_on_after_a_record_that_fails(
    options: Options, topic: str, read: Callable[[Consumer], list[Any]]
) -> None:
    """All records before it are returned, the error is raised until a seek, and the tombstone is not passed on."""
    name = TopicPartition(topic, 0)
    found: dict[int, Any] = {}
    failed = []
    with Consumer(**options) as consumer:
        consumer.assign([name])
        while GOOD not in found:
            try:
                records = read(consumer)
            except DeserializationError as error:
                assert error.next_offset == error.offset + 1
                with pytest.raises(DeserializationError):
                    consumer.poll(10.0)
                failed.append(error)
                consumer.seek(error.topic_partition, error.next_offset)  # type: ignore[arg-type]
                continue
            found |= {record.offset: (record.key, record.value) for record in records}
    assert sorted(found) == [offset for offset in range(GOOD + 1) if offset not in BAD]
    assert all(value == expected(offset) for offset, (_, value) in found.items())
    assert found[3][0] == "key-3"
    assert tuple(error.offset for error in failed) == BAD
    first = failed[0]
    assert (first.topic_partition, first.field) == (name, "value")
    assert (first.raw_record.key, first.raw_record.value, first.raw_record.offset) == (b"key-7", b"\xff{", 7)
    assert isinstance(first, DecodeError) and isinstance(first.__cause__, UnicodeDecodeError)
    assert str(first).startswith(
        f"{topic}-0: value_deserializer loads failed for the record at offset 7 with UnicodeDecodeError: "
    )
    assert "seek to next_offset 8" in str(first)


@pytest.mark.parametrize("read", [read_by_poll, read_one])
def test_the_skip_policy_leaves_such_records_out(
    options: Options, topic: str, read: Callable[[Consumer], list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    found: dict[int, Any] = {}
    with caplog.at_level(logging.WARNING, "kcodec.consumer"), Consumer(**options, on_error="skip") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while GOOD not in found:
            found |= {record.offset: record.value for record in read(consumer)}
        assert (consumer.skipped_records, consumer.skipped_batches) == (3, 0)
        assert consumer.position(TopicPartition(topic, 0)) == GOOD + 1
    assert sorted(found) == [offset for offset in range(GOOD + 1) if offset not in BAD]
    assert sum("skipped a record" in record.message for record in caplog.records) == 3


def test_poll_arrow_returns_the_bytes(options: Options, topic: str) -> None:
    with Consumer(**options) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        records = list(consumer.poll_arrow(10.0).records())
    assert records[0].value == b'{"n": 0}' and records[7].value == b"\xff{"


def test_what_an_interrupted_deserializer_leaves_is_read_again(options: Options, topic: str) -> None:
    calls = []

    def interrupted(data: bytes) -> bytes:
        calls.append(data)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return data

    with Consumer(**{**options, "value_deserializer": interrupted}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(10.0)
        assert [record.offset for record in consumer.poll(10.0)] == list(range(GOOD + 1))


def test_asyncio_deserializes(options: Options, topic: str) -> None:
    async def run() -> list[int]:
        found = []
        async with AioConsumer(**options) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            found += [record.value["n"] for record in await consumer.poll(10.0)]  # type: ignore[call-overload,index]
            with pytest.raises(DeserializationError) as caught:
                await consumer.poll_one(10.0)
            await consumer.seek(caught.value.topic_partition, 8)  # type: ignore[arg-type]
            async for record in consumer:
                found.append(record.value["n"])  # type: ignore[call-overload,index]
                if record.offset == 20:
                    return found
        return found

    assert asyncio.run(run()) == [offset for offset in range(21) if offset != 7]


def test_a_session_deserializes_and_seeks_past_a_failure(kcodec_broker: Broker, options: Options, topic: str) -> None:
    out = kcodec_broker.create_topic(partitions=1)
    transactional = {**options, "transactional_id": options["group_id"], "topics": [topic]}
    transactional["value_serializer"] = lambda value: json.dumps(value).encode()
    sent: list[Any] = []
    with GroupTransactSession(**transactional) as session:
        while len(sent) < GOOD + 1 - len(BAD):
            with session.transaction() as txn:
                try:
                    records: list[Any] = txn.poll(10.0)
                except DeserializationError as error:
                    txn.seek(error.topic_partition, error.next_offset)  # type: ignore[arg-type]
                    continue
                for record in records:
                    txn.send(out, record.value)
            sent += records
    with kcodec.read_topic(out, bootstrap_servers=options["bootstrap_servers"], value_deserializer=json.loads) as read:
        rows: list[Any] = [record.value for record in read.rows()]
    assert rows == [expected(offset) for offset in range(GOOD + 1) if offset not in BAD]


def test_rows_of_a_bounded_read_are_deserialized(options: Options, topic: str) -> None:
    reading: Options = {"bootstrap_servers": options["bootstrap_servers"], "value_deserializer": json.loads}
    with kcodec.read_topic(topic, **reading, on_error="skip") as read:
        rows: list[Any] = list(read.rows())
        assert read.skipped_records == 3
    assert [row.offset for row in rows] == [offset for offset in range(GOOD + 1) if offset not in BAD]
    assert [row.value for row in rows][-2:] == [{"n": GOOD - 1}, None]
    found = []
    with kcodec.read_topic(topic, **reading) as read, pytest.raises(DeserializationError) as caught:
        for row in read.rows():
            found.append(row.offset)
    assert (found, caught.value.next_offset, caught.value.topic_partition) == (list(range(7)), 8, (topic, 0))
    with pytest.raises(ValueError, match="a deserializer needs the column 'offset'"):
        kcodec.read_topic(topic, **reading, columns=["value"])

    async def run() -> list[int]:
        async with aio_read_topic(topic, **reading, start=30) as rows:
            return [row.value["n"] async for row in rows.rows() if row.value is not None]  # type: ignore[call-overload]

    assert asyncio.run(run()) == list(range(30, GOOD))


def test_rows_continue_after_a_break(options: Options, topic: str) -> None:
    """A batch has many rows: those that the first loop has not returned are not lost, and not counted as delivered."""
    with kcodec.read_topic(topic, bootstrap_servers=options["bootstrap_servers"]) as read:
        for row in read.rows():
            if row.offset == 10:
                break
        assert read.offsets[TopicPartition(topic, 0)].next_offset == 11
        with pytest.raises(RuntimeError, match=r"rows\(\) has not returned all records of a batch of .*call rows\(\)"):
            next(read)
        assert [row.offset for row in read.rows()] == list(range(11, GOOD + 1))
        assert read.offsets[TopicPartition(topic, 0)].next_offset == GOOD + 1
        assert list(read.rows()) == []


def test_offsets_do_not_pass_a_record_that_failed(options: Options, topic: str) -> None:
    """A program that stores `offsets` after an error must not skip the record, nor those after it."""
    reading: Options = {"bootstrap_servers": options["bootstrap_servers"], "value_deserializer": json.loads}
    with kcodec.read_topic(topic, **reading) as read:
        for _ in range(2):  # the second loop does not look like a read that has reached its end
            with pytest.raises(DeserializationError):
                list(read.rows())
    assert read.offsets[TopicPartition(topic, 0)].next_offset == 7
    ranges = [kcodec.OffsetRange(topic, 0, 0, 5), kcodec.OffsetRange(topic, 0, 5, 20)]
    with kcodec.read_ranges(ranges, **reading) as one, pytest.raises(DeserializationError):
        list(one.rows())
    assert one.ranges[1].next_offset == 7


def test_rows_survive_ctrl_c_in_a_deserializer(options: Options, topic: str) -> None:
    interrupts = iter([True])

    def deserialize(value: bytes) -> bytes:
        if value == b'{"n": 3}' and next(interrupts, False):
            raise KeyboardInterrupt
        return value

    reading: Options = {"bootstrap_servers": options["bootstrap_servers"], "value_deserializer": deserialize}
    with kcodec.read_topic(topic, **reading) as read:
        with pytest.raises(KeyboardInterrupt):
            list(read.rows())
        assert read.offsets[TopicPartition(topic, 0)].next_offset == 0
        assert [row.offset for row in read.rows()] == list(range(GOOD + 1))


def test_a_read_closed_early_does_not_look_complete(options: Options, topic: str) -> None:
    servers = options["bootstrap_servers"]
    with kcodec.read_topic(topic, bootstrap_servers=servers) as read:
        pass
    with pytest.raises(TransportError, match="the client is closed"):
        list(read)

    async def run() -> None:
        async with aio_read_topic(topic, bootstrap_servers=servers) as read:
            pass
        with pytest.raises(TransportError, match=f"the read of '{topic}', .* was closed before it was complete"):
            async for _ in read:
                pass

    asyncio.run(run())


def test_a_deserializer_must_be_a_function(options: Options) -> None:
    with pytest.raises(TypeError, match="value_deserializer must be a function that takes bytes, or None, not 'json'"):
        Consumer(**{**options, "value_deserializer": "json"})
