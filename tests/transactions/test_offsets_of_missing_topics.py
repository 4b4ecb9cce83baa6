# SPDX-License-Identifier: Apache-2.0
"""Offsets in a transaction for a topic or a partition that does not exist."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic, Producer
from kcodec.cluster.values import NO_UUID
from kcodec.errors import AbortableTransactionError


@pytest.mark.parametrize(
    ("topic", "partition", "message", "resource"),
    [
        ("deleted", 0, "topic 'deleted' does not exist, or was deleted", "deleted"),
        ("known", 7, "partition known-7 does not exist", TopicPartition("known", 7)),
    ],
)
def test_offsets_of_a_missing_partition_are_refused_soon(
    kcodec_broker: Broker, topic: str, partition: int, message: str, resource: object
) -> None:
    """The producer does not write to the topic, so its metadata does not contain it. Java's producer sends the request
    until max.block.ms has passed. The request for the reason does not create the topic."""
    servers: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers}
    transactional_id = kcodec_broker.create_topic(partitions=1)
    with Admin(**servers) as admin, Producer(transactional_id=transactional_id, **servers) as producer:
        if "known" not in admin.list_topics():
            admin.create_topics([NewTopic("known", num_partitions=1)])
        begun = time.monotonic()
        with pytest.raises(AbortableTransactionError, match=message) as raised, producer.transaction() as txn:
            txn.send(transactional_id, b"value").result()
            txn.send_offsets({TopicPartition(topic, partition): 1}, ConsumerGroupMetadata(transactional_id))
        assert raised.value.remedy == "abort"
        assert (raised.value.name, raised.value.resource) == ("UNKNOWN_TOPIC_OR_PARTITION", resource)
        assert 2.0 <= time.monotonic() - begun < 10.0
        assert "deleted" not in admin.list_topics()
        with producer.transaction() as txn:
            txn.send_offsets({TopicPartition("known", 0): 1}, ConsumerGroupMetadata(transactional_id))


def test_a_missing_partition_is_named_if_the_request_has_the_topic_id(kcodec_broker: Broker) -> None:
    """The producer writes to the topic, so its metadata contains the id of the topic."""
    topic = kcodec_broker.create_topic(partitions=1)
    with (
        Producer(transactional_id=topic, bootstrap_servers=kcodec_broker.bootstrap_servers) as producer,
        pytest.raises(AbortableTransactionError, match=f"partition {topic}-7 does not exist") as raised,
        producer.transaction() as txn,
    ):
        txn.send(topic, b"value").result()
        txn.send_offsets({TopicPartition(topic, 7): 1}, ConsumerGroupMetadata(topic))
    sent = kcodec_broker.wire_log.requests("TxnOffsetCommit")[-1]
    assert sent.request.topics[0].topic_id != NO_UUID
    assert (raised.value.name, raised.value.resource) == ("UNKNOWN_TOPIC_OR_PARTITION", TopicPartition(topic, 7))


def test_offsets_of_a_topic_that_the_coordinator_learns_late_are_committed(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    servers: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers}
    with Producer(transactional_id=topic, **servers) as producer:
        rule = kcodec_broker.faults.add("TxnOffsetCommit", error="UNKNOWN_TOPIC_OR_PARTITION")
        timer = threading.Timer(3.0, lambda: kcodec_broker.faults.remove(rule))
        timer.start()
        with producer.transaction() as txn:
            txn.send_offsets({TopicPartition(topic, 0): 1}, ConsumerGroupMetadata(topic))
        timer.join()
        assert txn.committed
