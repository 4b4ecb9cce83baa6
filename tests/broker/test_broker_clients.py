# SPDX-License-Identifier: Apache-2.0
"""Clients of kcodec and of others against the embedded broker: records, transactions, groups, administration."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, GroupTransactSession, NewTopic, Producer


def read(address: str, topic: str, count: int, **options: Any) -> list[bytes | None]:
    """The values of a topic, read_committed, by a member of a new group."""
    options = {"group_id": f"g-{uuid.uuid4().hex[:6]}", "auto_offset_reset": "earliest", **options}
    values: list[bytes | None] = []
    deadline = time.monotonic() + 20
    with Consumer(bootstrap_servers=address, isolation_level="read_committed", **options) as consumer:
        consumer.subscribe([topic])
        while len(values) < count and time.monotonic() < deadline:
            values += [record.value for record in consumer.poll(0.2)]
        consumer.commit()
    return values


@pytest.mark.parametrize("version", [0, 1, 2])
def test_transactions_of_kcodec(version: int) -> None:
    with Broker(transaction_version=version) as broker:
        topic = broker.create_topic(partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="a") as producer:
            with producer.transaction() as txn:
                txn.send(topic, b"one")
            with pytest.raises(RuntimeError), producer.transaction() as txn:
                txn.send(topic, b"lost").result(10)
                raise RuntimeError
            with producer.transaction() as txn:
                txn.send(topic, b"two")
        assert read(broker.bootstrap_servers, topic, 2) == [b"one", b"two"]
        assert [record.value for record in broker.committed(topic)] == [b"one", b"two"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_continue_at_their_offsets(kcodec_broker: Broker, protocol: str) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(topic, [(b"k", b"%d" % number) for number in range(10)])
    options = {"group_id": "g", "group_protocol": protocol}
    assert len(read(kcodec_broker.bootstrap_servers, topic, 10, **options)) == 10
    kcodec_broker.seed(topic, [(b"k", b"late")])
    assert read(kcodec_broker.bootstrap_servers, topic, 1, **options) == [b"late"]


def test_sessions_copy_exactly_once(kcodec_broker: Broker) -> None:
    source, target = kcodec_broker.create_topic(partitions=2), kcodec_broker.create_topic(partitions=1)
    for partition in (0, 1):
        kcodec_broker.seed(source, [(None, b"%d-%d" % (partition, n)) for n in range(20)], partition=partition)
    done = 0
    options: dict[str, Any] = {"group_id": "copy", "transactional_id": "copy", "auto_offset_reset": "earliest"}
    address = kcodec_broker.bootstrap_servers
    with GroupTransactSession(bootstrap_servers=address, topics=[source], **options) as session:
        while done < 40:
            with session.transaction() as txn:
                records = txn.poll(0.5)
                for record in records:
                    txn.send(target, record.value)
            done += len(records)
    assert len({record.value for record in kcodec_broker.committed(target)}) == 40
    assert len(kcodec_broker.committed(target)) == 40


def test_admin_sees_topics_and_transactions(kcodec_broker: Broker) -> None:
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("made", num_partitions=2)])
        assert "made" in admin.list_topics()
        with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="open") as producer:
            producer.begin_transaction()
            producer.send("made", b"x", partition=0).result(10)
            opened = admin.describe_transactions(["open"])["open"]
            assert opened.state == "Ongoing"
            assert kcodec_broker.end_offset("made") == 1
            producer.abort_transaction()
        admin.delete_topics(["made"])
        assert "made" not in admin.list_topics()


def test_transactions_of_librdkafka(kcodec_broker: Broker) -> None:
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import Producer as ConfluentProducer

    topic = kcodec_broker.create_topic(partitions=1)
    address = {"bootstrap.servers": kcodec_broker.bootstrap_servers}
    producer = ConfluentProducer({**address, "transactional.id": "c", "linger.ms": 0, "compression.type": "zstd"})
    producer.init_transactions(10)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.flush(10)
        if number % 2:
            producer.abort_transaction(10)
        else:
            producer.commit_transaction(10)
    consumer = ConfluentConsumer({**address, "group.id": "c", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[Any] = []
    deadline = time.monotonic() + 20
    while len(values) < 2 and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    assert values == [b"0", b"2"]


def test_transactions_of_aiokafka(kcodec_broker: Broker) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic = kcodec_broker.create_topic(partitions=1)
    address = kcodec_broker.bootstrap_servers

    async def run() -> list[Any]:
        async with AIOKafkaProducer(bootstrap_servers=address, transactional_id="aio") as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"one")
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"lost")
            await producer.abort_transaction()
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id="aio",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        async with consumer:
            record = await asyncio.wait_for(consumer.getone(), 20)
            await consumer.commit()
            return [record.value, await consumer.end_offsets(consumer.assignment())]

    value, ends = asyncio.run(run())
    assert value == b"one"
    assert list(ends.values()) == [4]


def test_records_of_kafka_python(kcodec_broker: Broker) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic = kcodec_broker.create_topic(partitions=1)
    producer = KafkaProducer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="kp")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"one").get(10)
    producer.commit_transaction()
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=kcodec_broker.bootstrap_servers,
        group_id="kp",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=20_000,
    )
    assert next(consumer).value == b"one"
    consumer.close()
