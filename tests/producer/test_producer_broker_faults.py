# SPDX-License-Identifier: Apache-2.0
"""The producer when a real Apache Kafka is killed or paused, when it is forked, and when its loop fails."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from producer_apis import MakeClient, stored_values

from kcodec.client import Producer
from kcodec.errors import BufferFullError, DeliveryErrors, DeliveryTimeoutError, TransportError
from kcodec.testing.kafka import ApacheKafka


@pytest.fixture(scope="module")
def own_kafka(apache_kafka_factory: Any) -> Iterator[ApacheKafka]:
    """One that these tests may pause and kill; each leaves it running."""
    kafka = apache_kafka_factory(heap="256m")  # recovery after a kill, with all clients back at once, takes more
    yield kafka
    kafka.close()


@contextmanager
def paused(kafka: ApacheKafka) -> Iterator[None]:
    kafka.pause()
    try:
        yield
    finally:
        kafka.resume()


def test_a_broker_killed_under_load_loses_and_doubles_nothing(make_client: MakeClient, own_kafka: ApacheKafka) -> None:
    kafka = own_kafka
    topic = kafka.create_topic(partitions=2)
    client = make_client(kafka.bootstrap_servers, linger_ms=1, batch_size=500, compression_type="lz4")
    deliveries: list[Any] = []
    number = 0
    for turn in range(2):
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            records = [{"value": b"%d" % n, "partition": n % 2} for n in range(number, number + 200)]
            deliveries += client.send_all(topic, records)
            number += 200
            if turn == 0:
                time.sleep(0.005)
        if turn == 0:
            kafka.kill()
            deliveries += client.send_all(
                topic, [{"value": b"%d" % n, "partition": n % 2} for n in (number, number + 1)]
            )
            number += 2
            kafka.start()
    client.flush(60.0)
    assert [delivery.error for delivery in deliveries] == [None] * number
    for partition in range(2):
        wanted = [b"%d" % n for n in range(number) if n % 2 == partition]
        assert stored_values(kafka, topic, partition) == wanted
    for n, delivery in enumerate(deliveries):
        assert delivery.offset == n // 2


def test_a_paused_broker_fills_the_buffer_and_deadlines_hold(make_client: MakeClient, own_kafka: ApacheKafka) -> None:
    kafka = own_kafka
    topic = kafka.create_topic(partitions=1)
    client = make_client(
        kafka.bootstrap_servers,
        buffer_memory=100_000,
        max_block_ms=500,
        linger_ms=0,
        request_timeout_ms=1000,
        delivery_timeout_ms=2500,
    )
    client.send_all(topic, [{"value": b"first"}])
    client.flush()
    with paused(kafka):
        deliveries: list[Any] = []
        began = time.monotonic()
        with pytest.raises(BufferFullError, match=r"buffer_memory \(100000 bytes\) was full for max_block_ms \(500\)"):
            while True:
                deliveries += client.send_all(topic, [{"value": b"x" * 1000}])
        assert 0.4 < time.monotonic() - began < 3 and len(deliveries) > 50
        with pytest.raises(DeliveryTimeoutError, match="flush"):
            client.flush(0.3)
        with pytest.raises(DeliveryTimeoutError, match=rf"{topic}-0: not acknowledged within delivery_timeout_ms"):
            client.outcome(deliveries[0])
        assert time.monotonic() - began < 6
    with pytest.raises(DeliveryErrors, match="DeliveryTimeoutError"):
        client.flush(20.0)
    (last,) = client.send_all(topic, [{"value": b"last"}])
    client.outcome(last)
    values = stored_values(kafka, topic)
    assert values[0] == b"first" and values[-1] == b"last"


def test_a_table_that_finds_no_room_fails_with_the_rest_of_it(make_client: MakeClient, own_kafka: ApacheKafka) -> None:
    import pyarrow

    kafka = own_kafka
    topic = kafka.create_topic(partitions=1)
    client = make_client(
        kafka.bootstrap_servers,
        buffer_memory=1_000_000,
        max_block_ms=500,
        request_timeout_ms=1000,
        delivery_timeout_ms=3000,
    )
    table = pyarrow.table({"value": [b"x" * 1000] * 3000})
    assert sum(batch.records_count for batch in client.outcome(client.send_arrow(topic, table))) == 3000
    with paused(kafka):
        began = time.monotonic()
        delivery = client.send_arrow(topic, table)
        assert time.monotonic() - began < 2
        with pytest.raises(DeliveryTimeoutError, match="not acknowledged within delivery_timeout_ms"):
            client.outcome(delivery)  # the first batch's; those behind it found no room
        assert 2.5 < time.monotonic() - began < 5


def test_close_ends_what_a_paused_broker_does_not(make_client: MakeClient, own_kafka: ApacheKafka) -> None:
    kafka = own_kafka
    topic = kafka.create_topic(partitions=1)
    client = make_client(kafka.bootstrap_servers)
    client.send_all(topic, [{"value": b"first"}])
    client.flush()
    with paused(kafka):
        deliveries = client.send_all(topic, [{"value": b"x"} for _ in range(100)])
        began = time.monotonic()
        with pytest.raises(DeliveryErrors, match=r"100 records not acknowledged \(brokers may have stored them\)"):
            client.close(1.0)
        assert time.monotonic() - began < 3
        for delivery in deliveries:
            assert isinstance(delivery.error, DeliveryTimeoutError) and "was closed" in str(delivery.error)
        with pytest.raises(TransportError, match="closed"):
            client.send_all(topic, [{"value": b"x"}])


def test_a_forked_child_must_create_its_own_producer(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, linger_ms=300) as producer:
        delivery = producer.send(topic, b"x")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            reported = []
            for attempt in (lambda: producer.send(topic, b"y"), lambda: delivery.result(5), producer.flush):
                try:
                    attempt()
                    reported.append("no error")
                except TransportError as error:
                    reported.append(str(error))
            os.write(writing, "\n".join(reported).encode())
            os._exit(0)
        os.waitpid(child, 0)
        reported = os.read(reading, 10_000).decode().splitlines()
        os.close(reading)
        os.close(writing)
        assert len(reported) == 3 and all("must create its own" in line for line in reported), reported
        assert delivery.result().offset == 0
    assert stored_values(apache_kafka, topic) == [b"x"]


def test_a_loop_that_fails_ends_every_delivery(apache_kafka: ApacheKafka) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    topic = apache_kafka.create_topic(partitions=1)
    producer = Producer(bootstrap_servers=apache_kafka.bootstrap_servers, linger_ms=300)
    producer.send(topic, b"x").result()
    deliveries = [producer.send(topic, b"x"), producer.send("not known yet", b"x")]
    producer._io_loop.post(fail)
    for delivery in deliveries:
        with pytest.raises(TransportError, match="the I/O loop of this producer failed: ZeroDivisionError"):
            delivery.result(10.0)
    with pytest.raises(TransportError, match="the I/O loop of this producer failed"):
        producer.send(topic, b"y")
    producer.close()


def test_an_unclosed_producer_is_warned_of_and_its_thread_ends(apache_kafka: ApacheKafka) -> None:
    producer = Producer(bootstrap_servers=apache_kafka.bootstrap_servers)
    producer.partitions_for(apache_kafka.create_topic(partitions=1))
    thread = producer._io_loop._thread
    assert thread is not None and thread.is_alive()
    with pytest.warns(ResourceWarning, match="was not closed"):
        del producer
        gc.collect()
    thread.join(5.0)
    assert not thread.is_alive()
