# SPDX-License-Identifier: Apache-2.0
"""A real broker whose log was damaged on disk, behind its back: what it sends, and what a consumer makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kcodec
from kcodec import CorruptBatchError, DecodeError, TopicPartition
from kcodec.client import Admin, Consumer, Producer
from kcodec.testing.kafka import ApacheKafka

BATCHES, EACH = 5, 3


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> Iterator[str]:
    """Five batches of three records; deleted afterwards, as no other test should meet the damage."""
    name = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, linger_ms=1000) as producer:
        for batch in range(BATCHES):
            for number in range(EACH):
                producer.send(name, b"%d" % (batch * EACH + number))
            producer.flush()
    yield name
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        admin.delete_topics([name])


def damage(kafka: ApacheKafka, topic: str, batch: int, place: int, value: bytes) -> kcodec.RecordBatch:
    """Overwrite bytes of one batch in the segment."""
    path = Path(kafka.log_directory) / f"{topic}-0" / "00000000000000000000.log"
    found = kcodec.batches(path.read_bytes())[batch]
    with path.open("r+b") as log:
        log.seek(found.position + place)
        log.write(value)
    return found


def followed(consumer: Consumer) -> tuple[list[bytes | None], list[DecodeError]]:
    """All values, and the errors on the way, by seeking where each of them says, or one offset on where none does."""
    values: list[bytes | None] = []
    errors: list[DecodeError] = []
    (first,) = consumer.assignment()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            records = consumer.poll(0.7)
        except DecodeError as error:
            with pytest.raises(type(error)):
                consumer.poll(5.0)  # again, until a seek
            errors.append(error)
            assert error.topic_partition is not None
            offset = error.next_offset
            consumer.seek(error.topic_partition, consumer.position(first) + 1 if offset is None else offset)
            continue
        if not records and consumer.position(first) == BATCHES * EACH:
            return values, errors
        values += [record.value for record in records]
    raise AssertionError(f"no end: {values}, {errors}")


def reading(kafka: ApacheKafka, topic: str, **options: Any) -> Consumer:
    consumer = Consumer(bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest", **options)
    consumer.assign([TopicPartition(topic, 0)])
    return consumer


def test_a_corrupt_batch_is_reported_and_skipped(apache_kafka: ApacheKafka, topic: str) -> None:
    bad = damage(apache_kafka, topic, 2, 70, b"\xff")
    expected = [b"%d" % number for number in range(BATCHES * EACH) if not bad.base_offset <= number <= bad.last_offset]
    with reading(apache_kafka, topic) as consumer:
        values, errors = followed(consumer)
    assert values == expected
    (error,) = errors
    assert isinstance(error, CorruptBatchError)
    assert (error.base_offset, error.next_offset) == (bad.base_offset, bad.next_offset)
    with reading(apache_kafka, topic, on_error="skip") as consumer:
        assert followed(consumer) == (expected, [])


def test_what_the_broker_itself_cannot_walk_over_is_no_stall(apache_kafka: ApacheKafka, topic: str) -> None:
    """A length that is invalid: the broker sends the bytes with what lies before them, and answers CORRUPT_MESSAGE to
    each request for what lies behind. It is requested several times before it counts as corrupt."""
    bad = damage(apache_kafka, topic, 3, 8, b"\x00\x00\x00\x05")
    with reading(apache_kafka, topic) as consumer:
        values, errors = followed(consumer)
    assert values == [b"%d" % number for number in range(bad.base_offset)]
    assert errors[0].next_offset == bad.next_offset
    assert "with a valid checksum" in str(errors[0])
    assert errors[1:] and all("CORRUPT_MESSAGE" in str(error) and error.next_offset is None for error in errors[1:])
