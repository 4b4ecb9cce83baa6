# SPDX-License-Identifier: Apache-2.0
"""Partitions that were added after a producer received the metadata of their topic."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow
import pytest

from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic, Producer
from kcodec.errors import AbortableTransactionError, BrokerError, EncodeError

PATIENCE_SECONDS = 20.0


def send_until_accepted(send: Callable[[], object]) -> int:
    """Repeat a call until it accepts its record. Return the number of refusals."""
    deadline, refusals = time.monotonic() + PATIENCE_SECONDS, 0
    while True:
        try:
            send()
        except EncodeError as error:
            assert error.field == "partition" and time.monotonic() < deadline
            refusals += 1
            time.sleep(0.02)
        else:
            return refusals


@pytest.mark.parametrize("transactional_id", [None, "adds-partitions"])
def test_a_refused_record_can_be_sent_again_at_once(kcodec_broker: Broker, transactional_id: str | None) -> None:
    address = kcodec_broker.bootstrap_servers
    with (
        Admin(bootstrap_servers=address) as admin,
        Producer(bootstrap_servers=address, transactional_id=transactional_id) as producer,
    ):
        admin.create_topics(["orders"])
        assert producer.partitions_for("orders") == 1
        admin.create_partitions({"orders": 3})

        def send() -> None:
            if transactional_id is None:
                producer.send("orders", b"record", partition=1)
            else:
                with producer.transaction() as transaction:
                    transaction.send("orders", b"record", partition=1)

        refusals = send_until_accepted(send)
        assert producer.partitions_for("orders") == 3
    assert refusals >= 1
    assert len(kcodec_broker.committed("orders")) == 1


def test_a_refused_table_can_be_sent_again_at_once(kcodec_broker: Broker) -> None:
    address = kcodec_broker.bootstrap_servers
    table = pyarrow.table({"value": [b"record"], "partition": pyarrow.array([2], "int32")})
    with Admin(bootstrap_servers=address) as admin, Producer(bootstrap_servers=address) as producer:
        admin.create_topics(["orders"])
        assert producer.partitions_for("orders") == 1
        admin.create_partitions({"orders": 3})
        assert send_until_accepted(lambda: producer.send_arrow("orders", table)) >= 1
    assert len(kcodec_broker.committed("orders")) == 1


def test_the_refusal_says_that_the_record_can_be_sent_again(kcodec_broker: Broker) -> None:
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        assert producer.partitions_for("orders") == 1
        with pytest.raises(EncodeError, match=r"not 7; omit it .*, or send it again if the partition was just added"):
            producer.send("orders", b"record", partition=7)
        with pytest.raises(EncodeError, match=r"not -1; omit it to let the key decide$"):
            producer.send("orders", b"record", partition=-1)


def create_with_one_partition(admin: Admin, topic: str) -> None:
    """Delete a topic, and create it again with one partition."""
    admin.delete_topics([topic])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            admin.create_topics([NewTopic(topic, num_partitions=1)])
            return
        except BrokerError as error:
            assert error.name == "TOPIC_ALREADY_EXISTS" and time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("transactional_id", [None, "has-fewer-partitions"])
@pytest.mark.parametrize("broker", ["embedded", "kafka"])
def test_records_for_a_partition_that_is_gone_fail_soon(
    request: pytest.FixtureRequest, broker: str, transactional_id: str | None
) -> None:
    """The topic was created again with fewer partitions. The records would wait for delivery_timeout_ms."""
    name = "kcodec_broker" if broker == "embedded" else "apache_kafka"
    address, topic = request.getfixturevalue(name).bootstrap_servers, f"smaller-{time.monotonic_ns()}"
    with (
        Admin(bootstrap_servers=address) as admin,
        Producer(bootstrap_servers=address, transactional_id=transactional_id) as producer,
    ):
        admin.create_topics([NewTopic(topic, num_partitions=3)])
        pattern = f"{topic}-2: the partition does not exist any more, .* created again with 1 partition; send"
        if transactional_id is None:
            producer.send(topic, b"before", partition=2).result(PATIENCE_SECONDS)
            create_with_one_partition(admin, topic)
            delivery = producer.send(topic, b"after", partition=2)
            with pytest.raises(BrokerError, match=pattern) as caught:
                delivery.result(PATIENCE_SECONDS)
            assert (caught.value.name, caught.value.remedy) == ("UNKNOWN_TOPIC_OR_PARTITION", "stop")
            producer.send(topic, b"again").result(PATIENCE_SECONDS)
        else:
            with producer.transaction() as transaction:
                transaction.send(topic, b"before", partition=2)
            create_with_one_partition(admin, topic)
            with pytest.raises(AbortableTransactionError, match=pattern), producer.transaction() as transaction:
                transaction.send(topic, b"after", partition=2)
            with producer.transaction() as transaction:
                transaction.send(topic, b"again")


def test_a_broker_with_older_metadata_fails_no_records(kcodec_broker: Broker) -> None:
    """The partitions of a topic with the same id do not disappear, so the records wait."""
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, metadata_max_age_ms=200) as producer:
        topic = kcodec_broker.create_topic(partitions=3)
        producer.send(topic, b"before", partition=2).result(PATIENCE_SECONDS)
        sender, found = producer._core.sender, producer._core.cluster.topics[topic]
        buffer, topic_id = sender.accumulator.topics[topic], found.topic_id
        with sender.accumulator.lock:
            buffer.update([True])
            sender._smaller[topic] = topic_id, 0.0
            assert [queue.partition.partition for queue in buffer.missing_queues] == [1, 2]
            assert sender._take_gone() == [] and topic not in sender._smaller
            buffer.update([True] * 3)
        producer.send(topic, b"after", partition=2).result(PATIENCE_SECONDS)
