# SPDX-License-Identifier: Apache-2.0
"""The abort with which a producer ends is sent although a record has no response, because the open transaction would
block read_committed consumers until its timeout (KIP-890: the broker refuses what arrives later)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import kcodec
from kcodec.client import Admin, Producer
from kcodec.testing.kafka import ApacheKafka


@pytest.fixture(scope="module")
def own_kafka(apache_kafka_factory: Any) -> Iterator[ApacheKafka]:
    """One that these tests may pause; each leaves it running."""
    kafka = apache_kafka_factory(heap="256m")
    yield kafka
    kafka.close()


@pytest.mark.parametrize("way", ["close", "drop"])
def test_a_record_without_a_response_does_not_prevent_the_abort(own_kafka: ApacheKafka, way: str) -> None:
    servers, topic = own_kafka.bootstrap_servers, own_kafka.create_topic()
    producer = Producer(bootstrap_servers=servers, transactional_id=topic)
    producer.begin_transaction()
    producer.send(topic, b"acknowledged").result()
    own_kafka.pause()
    try:
        producer.send(topic, b"no response")
        time.sleep(0.5)
        if way == "close":
            producer.close(timeout=2.0)
        else:
            with pytest.warns(ResourceWarning):
                del producer
            time.sleep(3.0)
    finally:
        own_kafka.resume()
    deadline = time.monotonic() + 20.0  # transaction_timeout_ms is 60 s
    with Admin(bootstrap_servers=servers) as admin:
        while (state := str(admin.describe_transactions([topic])[topic].state)) != "CompleteAbort":
            assert time.monotonic() < deadline, state
            time.sleep(0.1)
    with kcodec.read_topic(topic, bootstrap_servers=servers) as records:
        assert list(records.rows()) == []
