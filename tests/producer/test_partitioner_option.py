# SPDX-License-Identifier: Apache-2.0
"""The option `partitioner`: every name agrees with librdkafka, and a function chooses what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from kcodec import partition_for
from kcodec.client import Producer
from kcodec.client.aio import Producer as AioProducer
from kcodec.errors import BrokerError, EncodeError
from kcodec.producer.options import PARTITIONERS, ProducerConfig
from kcodec.testing.kafka import ApacheKafka

COUNT = 12
KEYS: list[bytes | None] = [*(b"key-%d" % number for number in range(200)), "é€😀".encode(), bytes(range(256)), b"\xff"]
#: Keys that a partitioner need not hash: of these the partition may change.
WITHOUT = (b"", None)
Chosen = dict[bytes | None, set[int]]


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    name: str = apache_kafka.create_topic(partitions=COUNT)
    return name


def of_librdkafka(kafka: ApacheKafka, topic: str, partitioner: str) -> Chosen:
    found: Chosen = {}

    def note(error: Any, message: Any) -> None:
        assert error is None
        found.setdefault(message.key(), set()).add(message.partition())

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": partitioner, "linger.ms": 0}
    )
    for key in (*KEYS, *WITHOUT):
        producer.produce(topic, value=b"", key=key, on_delivery=note)
    assert producer.flush(20) == 0
    return found


def of_kcodec(producer: Producer, topic: str, keys: list[bytes | None]) -> Chosen:
    found: Chosen = {}
    for key, delivery in [(key, producer.send(topic, b"", key=key)) for key in keys]:
        found.setdefault(key, set()).add(delivery.result(20).partition)
    return found


@pytest.mark.parametrize("partitioner", [name for name in PARTITIONERS if name != "random"])
def test_every_name_chooses_as_librdkafka(apache_kafka: ApacheKafka, topic: str, partitioner: str) -> None:
    """Before the topic's metadata is known and after it, and in a table."""
    theirs = of_librdkafka(apache_kafka, topic, partitioner)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, partitioner=partitioner) as producer:
        hashed = [key for key in theirs if key is not None and key != b""]
        ours = of_kcodec(producer, topic, [*KEYS[:100]])
        ours |= of_kcodec(producer, topic, [*KEYS[100:], *WITHOUT])
        assert {key: ours[key] for key in hashed} == {key: theirs[key] for key in hashed}
        for key in WITHOUT:  # librdkafka draws a partition where the key is not hashed
            is_hashed = partitioner in ("murmur2", "consistent", "fnv1a") or (
                key == b"" and partitioner in ("murmur2_random", "fnv1a_random")
            )
            assert not is_hashed or ours[key] == theirs[key]
        batches = producer.send_arrow(topic, {"key": [*KEYS, b""]}).result(20)
        assert {batch.partition for batch in batches} >= set().union(*(theirs[key] for key in hashed))


def test_keys_that_are_not_bytes_objects_are_hashed_alike(apache_kafka: ApacheKafka, topic: str) -> None:
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, partitioner="consistent_random") as producer:
        found = [producer.send(topic, b"", key=key).result(20) for key in (b"a", bytearray(b"a"), memoryview(b"a"))]
        assert len({one.partition for one in found}) == 1
        with pytest.raises(EncodeError, match="key"):
            producer.send(topic, b"", key="a")


def test_random_ignores_the_key(apache_kafka: ApacheKafka, topic: str) -> None:
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, partitioner="random", batch_size=0) as producer:
        found = {producer.send(topic, b"x", key=b"the same").result(20).partition for _ in range(60)}
    assert len(found) > 3


def test_records_above_batch_size_go_to_changing_partitions(apache_kafka: ApacheKafka, topic: str) -> None:
    """A record that fills a batch alone counts for the choice of the next partition, as in Java's producer."""
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        found = {producer.send(topic, b"x" * 20_000).result(20).partition for _ in range(60)}
    assert len(found) > 3


def last_or_even(key: bytes | None, partitions: list[int], available: list[int]) -> int:
    assert available == partitions == list(range(COUNT))
    return partitions[-1] if key is None else 2 * (key[-1] % 3)


def test_a_function_chooses_the_partition(apache_kafka: ApacheKafka, topic: str) -> None:
    """It gets the serialized key. A requested partition is not passed to it."""
    options: Any = {"partitioner": last_or_even, "key_serializer": lambda key: key and str(key).encode()}
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, **options) as producer:
        found = [producer.send(topic, b"", key=key).result(20).partition for key in (None, 1, 2, 3)]
        assert found == [COUNT - 1, 2, 4, 0]
        assert producer.send(topic, b"", key=1, partition=5).result(20).partition == 5
        batches = producer.send_arrow(topic, {"key": [b"1", b"2", None]}).result(20)
        assert sorted(batch.partition for batch in batches) == [2, 4, COUNT - 1]

    async def run() -> int:
        async with AioProducer(bootstrap_servers=apache_kafka.bootstrap_servers, partitioner=last_or_even) as producer:
            return (await producer.send_and_wait(topic, b"", key=b"2")).partition

    assert asyncio.run(run()) == 4


@pytest.mark.parametrize("chosen", [COUNT, -1, None, True, "1"])
def test_a_function_that_names_no_partition_is_an_error(apache_kafka: ApacheKafka, topic: str, chosen: Any) -> None:
    def choose(key: bytes | None, partitions: list[int], available: list[int]) -> int:
        return chosen  # type: ignore[no-any-return]

    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, partitioner=choose) as producer:
        with pytest.raises(EncodeError, match=f"partitioner must return a number between 0 and {COUNT - 1}, not "):
            producer.send(topic, b"")
        with pytest.raises(BrokerError, match="INVALID_TOPIC"):
            producer.send("no such topic", b"")


@pytest.fixture
def nowhere() -> Iterator[dict[str, Any]]:
    yield {"bootstrap_servers": "localhost:1"}


def test_a_wrong_name_is_explained(nowhere: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="; did you mean 'murmur2_random'"):
        Producer(**nowhere, partitioner="murmur2random")
    with pytest.raises(ValueError, match="partitioner_ignore_keys has no effect together with partitioner"):
        Producer(**nowhere, partitioner="consistent", partitioner_ignore_keys=True)


def test_the_default_is_that_of_java() -> None:
    assert ProducerConfig().partitioner == "murmur2_random"
    # BuiltInPartitionerTest and UtilsTest of Kafka have these hashes of murmur2.
    assert [partition_for((key,), 1 << 30)[0] for key in (b"21", b"foobar", b"a-little-bit-long-string")] == [
        (number & 0x7FFFFFFF) % (1 << 30) for number in (-973932308, -790332482, -985981536)
    ]
