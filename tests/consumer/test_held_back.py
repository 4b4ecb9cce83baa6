# SPDX-License-Identifier: Apache-2.0
"""A poll that gets nothing because a transaction is open says so at WARNING, and names the transaction."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, GroupTransactSession, Producer

SECONDS = 20.0


class OpenTransaction:
    """A transaction with one record in a topic and an offset of a group, left open."""

    def __init__(self, kafka: Broker, stack: ExitStack) -> None:
        self.servers = kafka.bootstrap_servers
        self.topic = kafka.create_topic(partitions=1)
        self.partition = TopicPartition(self.topic, 0)
        self.group = f"group-{self.topic}"
        self.transactional_id = f"id-{self.topic}"
        self.producer = stack.enter_context(
            Producer(bootstrap_servers=self.servers, transactional_id=self.transactional_id)
        )
        self.transaction = stack.enter_context(self.producer.transaction())
        self.transaction.send(self.topic, b"value", partition=0).result(SECONDS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a group id alone: nothing else is in the group
            self.transaction.send_offsets({self.partition: 0}, self.group)

    def consumer(self, stack: ExitStack, **options: Any) -> Consumer:
        found = Consumer(bootstrap_servers=self.servers, auto_offset_reset="earliest", **options)
        stack.enter_context(found)
        found.assign([self.partition])
        return found


@pytest.fixture
def opened(kcodec_broker: Broker) -> Iterator[tuple[OpenTransaction, ExitStack]]:
    with ExitStack() as stack:
        yield OpenTransaction(kcodec_broker, stack), stack


def test_a_poll_that_an_open_transaction_stops_names_it(
    opened: tuple[OpenTransaction, ExitStack], caplog: pytest.LogCaptureFixture
) -> None:
    """At the last stable offset, and before the first fetch, where the group's offset is pending; consumer and session.
    The warning names partition, transactional id, producer id and epoch, and is not repeated at once."""
    case, stack = opened
    at_records = case.consumer(stack)
    at_offsets = case.consumer(stack, group_id=case.group)
    uncommitted = case.consumer(stack, isolation_level="read_uncommitted")
    session = GroupTransactSession(
        bootstrap_servers=case.servers,
        group_id=f"session-{case.topic}",
        transactional_id=f"session-{case.topic}",
        topics=[case.topic],
    )
    stack.enter_context(session)
    assert uncommitted.poll(SECONDS)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "kcodec.consumer"), session.transaction() as own:
        while time.monotonic() - began < 8.0:
            assert not at_records.poll(0.05) and not at_offsets.poll(0.05) and not own.poll(0.05)
            uncommitted.poll(0.05)
    found = [one.getMessage() for one in caplog.records if "poll has returned no records" in one.getMessage()]
    assert len(found) == 3
    assert all(case.transactional_id in one and f"{case.partition}: poll" in one for one in found)
    with Admin(bootstrap_servers=case.servers) as admin:
        producer_id = admin.list_transactions()[case.transactional_id].producer_id
    assert all(f"producer {producer_id}/" in one for one in found)
    pending = [one for one in found if "UNSTABLE_OFFSET_COMMIT" in one]
    assert len(pending) == 1 and case.group in pending[0] and "__consumer_offsets-" in pending[0]
    assert sum("at offset 0" in one for one in found) == 2


def test_the_partition_of_a_group_is_that_of_java() -> None:
    """String.hashCode of Java, of which the broker takes the partition of __consumer_offsets."""
    from kcodec.consumer.held_back import java_hash

    assert java_hash("") == 0
    assert java_hash("billing") == -109829509
    assert java_hash("polygenelubricants") == -(1 << 31)
