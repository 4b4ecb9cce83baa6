# SPDX-License-Identifier: Apache-2.0
"""Commits of confluent_kafka's Consumer and of the one of kcodec.compat.confluent: those that fail, and automatic ones
that are switched off by their interval."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as Place

import kcodec.compat.confluent as facade
from kcodec.broker import Broker
from kcodec.client import Producer

SECONDS = 15.0
COUNT = 5


@pytest.fixture(params=[confluent_kafka, facade], ids=["confluent", "kcodec"])
def clients(request: pytest.FixtureRequest) -> Any:
    """The module with the class Consumer."""
    return request.param


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    name: str = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number)
    return name


def reading(clients: Any, broker: Broker, topic: str, **settings: Any) -> Any:
    """Return a consumer that has read all records. Callbacks have the names of parameters, such as on_commit."""
    named = {name if callable(value) else name.replace("_", "."): value for name, value in settings.items()}
    given = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = clients.Consumer({**given, **named})
    consumer.subscribe([topic])
    deadline, count = time.monotonic() + SECONDS, 0
    while count < COUNT:
        assert time.monotonic() < deadline
        message = consumer.poll(0.2)
        count += message is not None and message.error() is None
    return consumer


def test_offsets_of_a_commit_that_failed_can_be_committed(clients: Any, kcodec_broker: Broker, topic: str) -> None:
    ended: list[KafkaError | None] = []
    consumer = reading(
        clients, kcodec_broker, topic, enable_auto_commit=False, on_commit=lambda error, _: ended.append(error)
    )
    kcodec_broker.faults.add("OffsetCommit", error="GROUP_AUTHORIZATION_FAILED", count=1)
    consumer.commit(asynchronous=True)
    deadline = time.monotonic() + SECONDS
    while not ended:
        assert time.monotonic() < deadline
        consumer.poll(0.05)
    assert ended[0] is not None and ended[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert consumer.commit(asynchronous=False)[0].offset == COUNT
    assert consumer.committed([Place(topic, 0)], timeout=SECONDS)[0].offset == COUNT
    consumer.close()


def test_an_interval_of_0_switches_automatic_commits_off_until_the_end(
    clients: Any, kcodec_broker: Broker, topic: str
) -> None:
    consumer = reading(clients, kcodec_broker, topic, auto_commit_interval_ms=0)
    for _ in range(10):
        consumer.poll(0.05)
    assert consumer.committed([Place(topic, 0)], timeout=SECONDS)[0].offset < 0
    consumer.close()
    after = clients.Consumer({"bootstrap.servers": kcodec_broker.bootstrap_servers, "group.id": topic})
    assert after.committed([Place(topic, 0)], timeout=SECONDS)[0].offset == COUNT
    after.close()
