# SPDX-License-Identifier: Apache-2.0
"""Topics that are created while a client uses them. If a topic is created again while a session commits its offsets,
the session aborts by itself, and reads the new topic."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kcodec import BrokerError
from kcodec.broker import Broker
from kcodec.client import Admin, GroupTransactSession, NewTopic, Producer
from kcodec.offsets import OffsetAndMetadata, TopicPartition


def test_a_topic_created_again_during_a_commit_aborts_quietly() -> None:
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", 1), NewTopic("results", 1)])
        broker.seed("orders", [b"old"])
        broker.faults.add("TxnOffsetCommit", delay_ms=1500, count=1)

        def create_again() -> None:
            while not broker.wire_log.requests("TxnOffsetCommit"):
                time.sleep(0.01)
            admin.delete_topics(["orders"])
            admin.create_topics([NewTopic("orders", 1)])
            broker.seed("orders", [b"new"])

        thread = threading.Thread(target=create_again)
        thread.start()
        options: Any = {"bootstrap_servers": broker.bootstrap_servers, "metadata_max_age_ms": 500}
        read: list[Any] = []
        outcomes: list[bool | None] = []
        with GroupTransactSession(topics="orders", group_id="g", transactional_id="t", **options) as session:
            until = time.monotonic() + 30
            while b"new" not in read and time.monotonic() < until:
                with session.transaction() as block:
                    found = block.poll(2.0)
                    read += [record.value for record in found]
                    for record in found:
                        block.send("results", record.value)
                if found:
                    outcomes.append(block.committed)
            thread.join()
        assert (read, outcomes) == ([b"old", b"new"], [False, True])
        assert admin.list_group_offsets("g") == {TopicPartition("orders", 0): OffsetAndMetadata(1, leader_epoch=0)}
        end = admin.list_offsets({TopicPartition("results", 0): "latest"})[TopicPartition("results", 0)].offset
        assert end == 4  # a record and a marker of each transaction


def test_a_session_of_a_pattern_creates_its_output_topic() -> None:
    """A request for all topics does not create a topic."""
    with Broker(auto_create_topics=True) as broker:
        broker.create_topic("orders", 1)
        broker.seed("orders", [b"1"])
        servers = broker.bootstrap_servers
        with GroupTransactSession(
            pattern="orders", group_id="g", transactional_id="t", bootstrap_servers=servers, max_block_ms=5000
        ) as session:
            read = 0
            until = time.monotonic() + 30
            while not read and time.monotonic() < until:
                with session.transaction() as block:
                    for record in block.poll(2.0):
                        block.send("results", record.value, partition=0)
                        read += 1
        assert broker.committed("results", 0) and block.committed
        assert len(broker.wire_log.requests("Metadata")) < 50


def test_a_producer_of_a_smaller_topic_requests_metadata_with_pauses() -> None:
    """A batch waits until the metadata has confirmed that its partition does not exist any more."""
    with Broker(auto_create_topics=False) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("results", 2)])
        with Producer(
            bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=1000, delivery_timeout_ms=3000
        ) as producer:
            producer.send("results", b"1", partition=1).result(10)
            admin.delete_topics(["results"])
            admin.create_topics([NewTopic("results", 1)])
            with pytest.raises(BrokerError, match="does not exist any more"):
                producer.send("results", b"2", partition=1).result(10)
        assert len(broker.wire_log.requests("Metadata")) < 20


def test_a_topic_that_is_deleted_during_a_block_aborts_quietly() -> None:
    """The records of the other topics are not held back until the transaction times out."""
    with Broker(auto_create_topics=False) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", 1), NewTopic("old", 1), NewTopic("results", 1)])
        broker.seed("orders", [b"1"])
        broker.seed("old", [b"2"])
        with GroupTransactSession(
            topics=["orders", "old"], group_id="g", transactional_id="t", bootstrap_servers=broker.bootstrap_servers
        ) as session:
            outcomes: list[bool | None] = []
            until = time.monotonic() + 30
            while True not in outcomes and time.monotonic() < until:
                with session.transaction() as block:
                    read = {record.value for record in block.poll(2.0)}
                    while not outcomes and len(read) < 2 and time.monotonic() < until:
                        read |= {record.value for record in block.poll(2.0)}
                    if not outcomes:
                        admin.delete_topics(["old"])
                    for value in read:
                        block.send("results", value)
                if read:
                    outcomes.append(block.committed)
            assert time.monotonic() < until
        assert outcomes[0] is False and outcomes[-1] is True
        assert [record.value for record in broker.committed("results", 0)] == [b"1"]
