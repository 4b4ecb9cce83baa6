# SPDX-License-Identifier: Apache-2.0
"""A program that forgets to commit ends without an error, and no reader ever gets its records: the log says so."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer, aio
from kcodec.errors import AbortableTransactionError, EncodeError
from kcodec.testing.proxy import KafkaProxy

LOST = "was not closed, and its transaction was neither committed nor aborted: no read_committed reader will get its"
PROGRAM = """
import sys
from kcodec.client import Producer
producer = Producer(bootstrap_servers=sys.argv[1], transactional_id=sys.argv[2])
producer.begin_transaction()
producer.send(sys.argv[2], b"value").result()
"""
pytestmark = pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")


def test_a_forgotten_commit_is_logged_at_exit(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    command = [sys.executable, "-c", PROGRAM, kcodec_broker.bootstrap_servers, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert LOST in done.stderr and done.returncode == 0


def test_records_of_a_forgotten_commit_are_logged_at_exit(kcodec_broker: Broker) -> None:
    """They are not acknowledged yet when the program ends."""
    topic = kcodec_broker.create_topic(partitions=1)
    command = [sys.executable, "-c", PROGRAM.replace(".result()", ""), kcodec_broker.bootstrap_servers, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "records may be lost: 1 record of topic" in done.stderr or LOST in done.stderr


def test_a_forgotten_commit_is_logged_by_the_async_producer(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)

    async def forget() -> None:
        producer = aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic)
        await producer.begin_transaction()
        await (await producer.send(topic, b"value"))

    asyncio.run(forget())
    gc.collect()
    assert LOST in caplog.text


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_that_has_ended_is_not_reported(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture, is_committed: bool
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    producer = Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic)
    producer.begin_transaction()
    producer.send(topic, b"value").result()
    (producer.commit_transaction if is_committed else producer.abort_transaction)()
    del producer
    gc.collect()
    assert "transaction" not in caplog.text


def test_a_transaction_whose_end_is_under_way_is_not_reported(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator may commit it."""
    topic = kcodec_broker.create_topic(partitions=1)
    with (
        KafkaProxy(kcodec_broker.bootstrap_servers) as proxy,
        Producer(bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic) as producer,
    ):
        producer.begin_transaction()
        producer.send(topic, b"value").result()
        proxy.on_request("EndTxn").hold(1.0)
        commit = producer.commit_transaction_async()
        producer._log_lost()
        assert LOST not in caplog.text
        commit.result()


def test_a_shared_transaction_is_not_reported(kcodec_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Another process may commit it."""
    topic = kcodec_broker.create_topic(partitions=1)
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "transactional_id": topic}
    with Producer(**options) as producer, producer.transaction() as txn:
        txn.send(topic, b"value").result()
        assert txn.handle
        producer._log_lost()
        assert LOST not in caplog.text


def test_a_transaction_that_can_only_be_aborted_is_reported(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds up readers as an open one does."""
    topic = kcodec_broker.create_topic(partitions=1)
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "transactional_id": topic}
    with Producer(**options) as producer:
        producer.begin_transaction()
        producer.send(topic, b"value").result()
        with pytest.raises(EncodeError):
            producer.send(topic, b"value", partition=1)
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        producer._log_lost()
        assert LOST in caplog.text
        producer.abort_transaction()
