# SPDX-License-Identifier: Apache-2.0
"""Metadata and coordinators of a real Apache Kafka; connections through kills and pauses of an embedded broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess
from client_runners import Make

from kcodec.errors import DeliveryTimeoutError, RequestTimedOutError, TransportError
from kcodec.flow import Flow, call, sleep
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.transactions import InitProducerIdRequest
from kcodec.testing.kafka import ApacheKafka


def initialised(client: Any, transactional_id: str, deadline: float) -> Flow[tuple[int, int]]:
    """InitProducerId until it is answered well, whatever happens on the way."""
    while True:
        try:
            node = yield from client.cluster.coordinators.find("transaction", transactional_id, 20.0)
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=10_000)
            request.producer_id = request.producer_epoch = -1
            reply = yield from call(node, request, timeout=3.0)
            if reply.message.error_code == ErrorCode.NONE:
                return reply.message.producer_id, reply.message.producer_epoch
            if reply.message.error_code == ErrorCode.NOT_COORDINATOR:
                client.cluster.coordinators.forget("transaction", transactional_id)
        except TransportError:
            client.cluster.request_update("the coordinator does not answer")
        if client.clock() > deadline:
            raise DeliveryTimeoutError("not initialised by the deadline")
        yield from sleep(0.05)


def test_what_the_broker_says_of_itself(make: Make, apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=4)
    runner = make(apache_kafka.bootstrap_servers)
    found = runner.run(runner.client.cluster.ensure_topic(topic, 10.0))
    cluster = runner.client.cluster
    assert sorted(found.partitions) == [0, 1, 2, 3] and found.topic_id.int != 0
    assert cluster.cluster_id and cluster.transaction_version == 2
    assert {cluster.leader(topic, number) for number in range(4)} == set(cluster.brokers)
    assert runner.run(cluster.coordinators.find("transaction", "some-id", 20.0)) in cluster.brokers
    assert runner.run(cluster.coordinators.find("group", "some-group", 20.0)) in cluster.brokers


def test_a_topic_that_is_made_later_is_found(make: Make, apache_kafka: ApacheKafka) -> None:
    runner = make(apache_kafka.bootstrap_servers)
    with pytest.raises(DeliveryTimeoutError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        runner.run(runner.client.cluster.ensure_topic("made-later", 3.0))
    apache_kafka.create_topic("made-later-" + str(id(runner)), 1)
    assert runner.run(runner.client.cluster.ensure_topic("made-later-" + str(id(runner)), 10.0)).partitions


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as started:
        yield started


def test_a_client_outlives_its_broker_and_a_pause(make: Make, kafka: BrokerProcess) -> None:
    """Killed, started again, paused past the time-out of a request, and on: the epochs go up, nothing hangs."""
    runner = make(kafka.bootstrap_servers, request_timeout_ms=3000)
    client = runner.client
    first = runner.run(initialised(client, "steady", client.clock() + 30), 40)
    kafka.kill()
    with pytest.raises(TransportError):
        runner.run(call(1, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), timeout=1.0))
    kafka.start()
    second = runner.run(initialised(client, "steady", client.clock() + 30), 40)
    assert second[0] == first[0] and second[1] > first[1]
    kafka.pause()
    began = time.monotonic()
    with pytest.raises(RequestTimedOutError) as caught:
        runner.run(call(1, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), timeout=0.5))
    assert caught.value.possibly_sent and time.monotonic() - began < 2.0
    kafka.resume()
    third = runner.run(initialised(client, "steady", client.clock() + 30), 40)
    assert third[1] > second[1]
