# SPDX-License-Identifier: Apache-2.0
"""Readers that the test kit contains: those of kcodec, and loops over other clients, as programs contain them.

    python -m kcodec.testing.bounded_reads.readers READER BOOTSTRAP_SERVERS TOPIC ISOLATION_LEVEL

prints what a reader returns as lines of JSON. READER is one of the names below, or module:function.

The loops over the other clients look up the end offset of each partition, and read until they have reached it. A loop
"by record" compares the offset of the last record with the end offset. A loop "by position" compares the position that
the client reports.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, cast

import kcodec
from kcodec.client import Admin, Consumer
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.testing.bounded_reads.checks import Reader
from kcodec.testing.bounded_reads.rows import Reached, Row, json_line

__all__ = ["READERS", "command_of", "main", "reader_of"]

Items = Iterator[Row | Reached]


def kcodec_read_topic(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """kcodec.read_topic"""
    with kcodec.read_topic(topic, **_options(bootstrap_servers, isolation_level)) as records:
        for row in records.rows():
            yield Row(_number(row), row.offset, row.key, row.value)
        for place, read in records.offsets.items():
            yield Reached(place.partition, read.next_offset, read.end - read.next_offset)


def kcodec_read_ranges(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """kcodec.read_ranges, from the first offset to the end that ListOffsets returns for the isolation level"""
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        places = _places(admin, topic)
        starts = admin.list_offsets(dict.fromkeys(places, "earliest"))
        ends = admin.list_offsets(dict.fromkeys(places, "latest"), isolation_level=isolation_level)
    ranges = [OffsetRange(topic, place.partition, starts[place].offset, ends[place].offset) for place in places]
    with kcodec.read_ranges(ranges, **_options(bootstrap_servers, isolation_level)) as records:
        for batch in records:
            for row in batch.records():
                yield Row(_number(row), row.offset, row.key, row.value)
        for each in records.ranges:
            yield Reached(each.range.partition, each.next_offset, each.range.end - each.next_offset)


def kcodec_consumer(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """kcodec.client.Consumer, until its position is at its end offset"""
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        places = _places(admin, topic)
    with Consumer(auto_offset_reset="earliest", **_options(bootstrap_servers, isolation_level)) as consumer:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for row in consumer.poll(0.2):
                if row.offset < ends[TopicPartition(topic, _number(row))]:
                    yield Row(_number(row), row.offset, row.key, row.value)
        lags = consumer.lag()
        for place in places:
            lag = lags[place].stable_lag if isolation_level == "read_committed" else lags[place].lag
            yield Reached(place.partition, consumer.position(place), lag)


def confluent_by_record(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """confluent-kafka: until the last record is the one before the high watermark"""
    return _confluent(bootstrap_servers, topic, isolation_level, is_by_record=True)


def confluent_by_position(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """confluent-kafka: until position() is the high watermark"""
    return _confluent(bootstrap_servers, topic, isolation_level, is_by_record=False)


def confluent_eof(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """confluent-kafka: until the event PARTITION_EOF of each partition"""
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka import TopicPartition as Place

    consumer = ConfluentConsumer(
        {**_confluent_options(bootstrap_servers, isolation_level), "enable.partition.eof": True}
    )
    try:
        numbers = _confluent_assigned(consumer, topic)
        waiting = set(numbers)
        while waiting:
            message: Any = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield Row(message.partition(), message.offset(), message.key(), message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise KafkaException(error)
        for place in consumer.position([Place(topic, number) for number in numbers]):
            _, high = consumer.get_watermark_offsets(place, timeout=10)
            if place.offset >= 0:  # a partition without an event has no position
                yield Reached(place.partition, place.offset, high - place.offset)
    finally:
        consumer.close()


def _confluent_options(bootstrap_servers: str, isolation_level: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "bounded-reads",
        "isolation.level": isolation_level,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }


def _confluent_assigned(consumer: Any, topic: str) -> list[int]:
    """Assign all partitions from their start, and return them."""
    from confluent_kafka import OFFSET_BEGINNING
    from confluent_kafka import TopicPartition as Place

    numbers = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([Place(topic, number, OFFSET_BEGINNING) for number in numbers])
    return numbers


def _confluent(bootstrap_servers: str, topic: str, isolation_level: str, is_by_record: bool) -> Items:
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import KafkaException
    from confluent_kafka import TopicPartition as Place

    consumer = ConfluentConsumer(_confluent_options(bootstrap_servers, isolation_level))
    try:
        numbers = _confluent_assigned(consumer, topic)
        marks = {number: consumer.get_watermark_offsets(Place(topic, number), timeout=10) for number in numbers}
        # A partition whose low watermark is its high watermark is empty.
        reached = {number: low for number, (low, _) in marks.items()}
        while any(reached[number] < high for number, (_, high) in marks.items()):
            message: Any = consumer.poll(0.2)
            if message is not None:
                if message.error() is not None:
                    raise KafkaException(message.error())
                yield Row(message.partition(), message.offset(), message.key(), message.value())
                if is_by_record:
                    reached[message.partition()] = message.offset() + 1
            if not is_by_record:
                for place in consumer.position([Place(topic, number) for number in numbers]):
                    reached[place.partition] = max(reached[place.partition], place.offset)
    finally:
        consumer.close()


def aiokafka_by_record(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """aiokafka: until the last record is the one before the end offset"""
    return _of_async(_aiokafka(bootstrap_servers, topic, isolation_level, is_by_record=True))


def aiokafka_by_position(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """aiokafka: until position() is the end offset"""
    return _of_async(_aiokafka(bootstrap_servers, topic, isolation_level, is_by_record=False))


async def _aiokafka(
    bootstrap_servers: str, topic: str, isolation_level: str, is_by_record: bool
) -> AsyncIterator[Row | Reached]:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(  # without a group: it assigns all partitions
        topic,
        bootstrap_servers=bootstrap_servers,
        isolation_level=cast("Any", isolation_level),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        places = sorted(consumer.assignment())
        ends = await consumer.end_offsets(places)
        reached = dict(await consumer.beginning_offsets(places))
        while any(reached[place] < ends[place] for place in places):
            for place, records in (await consumer.getmany(timeout_ms=200)).items():
                for record in records:
                    yield Row(record.partition, record.offset, record.key, record.value)
                    if is_by_record:
                        reached[place] = record.offset + 1
            if not is_by_record:
                reached = {place: await consumer.position(place) for place in places}
    finally:
        await consumer.stop()


def kafka_python_by_record(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """kafka-python: until the last record is the one before the end offset"""
    return _kafka_python(bootstrap_servers, topic, isolation_level, is_by_record=True)


def kafka_python_by_position(bootstrap_servers: str, topic: str, isolation_level: str) -> Items:
    """kafka-python: until position() is the end offset"""
    return _kafka_python(bootstrap_servers, topic, isolation_level, is_by_record=False)


def _kafka_python(bootstrap_servers: str, topic: str, isolation_level: str, is_by_record: bool) -> Items:
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition as Place

    consumer: Any = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level=cast("Any", isolation_level),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        places = [Place(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        reached = dict(consumer.beginning_offsets(places))
        while any(reached[place] < ends[place] for place in places):
            for place, records in consumer.poll(timeout_ms=200).items():
                for record in records:
                    yield Row(record.partition, record.offset, record.key, record.value)
                    if is_by_record:
                        reached[place] = record.offset + 1
            if not is_by_record:
                reached = {place: consumer.position(place) for place in places}
    finally:
        consumer.close()


READERS: dict[str, Reader] = {
    "kcodec-read-topic": kcodec_read_topic,
    "kcodec-read-ranges": kcodec_read_ranges,
    "kcodec-consumer": kcodec_consumer,
    "confluent-record": confluent_by_record,
    "confluent-position": confluent_by_position,
    "confluent-eof": confluent_eof,
    "aiokafka-record": aiokafka_by_record,
    "aiokafka-position": aiokafka_by_position,
    "kafka-python-record": kafka_python_by_record,
    "kafka-python-position": kafka_python_by_position,
}


def reader_of(name: str) -> Reader:
    """Return the reader with this name, or the function module:function. Raise ValueError if neither exists."""
    if name in READERS:
        return READERS[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"unknown reader {name!r}; expected module:function, or one of {', '.join(READERS)}")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reader {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"reader {name!r} is not a function, but {type(found).__name__}")
    return cast("Reader", found)


def command_of(name: str) -> list[str]:
    """Return the command that runs a reader in a process, where it can be killed if it does not end."""
    places = ["{bootstrap_servers}", "{topic}", "{isolation_level}"]
    return [sys.executable, "-m", "kcodec.testing.bounded_reads.readers", name, *places]


def main(arguments: Sequence[str]) -> int:
    """Run a reader, and print what it returns as lines of JSON, each as soon as it is there."""
    if len(arguments) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    name, *where = arguments
    for item in reader_of(name)(*where):
        print(json_line(item if isinstance(item, Reached) else Row(*item)), flush=True)
    return 0


def _options(bootstrap_servers: str, isolation_level: str) -> Any:
    return {"bootstrap_servers": bootstrap_servers, "isolation_level": isolation_level}


def _places(admin: Admin, topic: str) -> list[TopicPartition]:
    described = admin.describe_topics([topic])[topic]
    return [TopicPartition(topic, each.partition) for each in described.partitions]


def _number(row: kcodec.Record) -> int:
    assert row.partition is not None
    return row.partition


def _of_async(items: AsyncIterator[Row | Reached]) -> Items:
    """Iterate over items of an event loop that runs while an item is requested."""
    with asyncio.Runner() as runner:

        async def following() -> Row | Reached | None:
            return await anext(items, None)

        while (item := runner.run(following())) is not None:
            yield item


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
