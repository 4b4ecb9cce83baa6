# SPDX-License-Identifier: Apache-2.0
"""What transactions do not do (docs/transactions-limits.md), shown on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from recipes import committed, producer, wait_for

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import Consumer, GroupTransactSession
from kcodec.errors import DeliveryTimeoutError
from kcodec.testing.kafka import ApacheKafka


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.create_topic(partitions=1)


@pytest.fixture
def session(apache_kafka: ApacheKafka, topic: str) -> Iterator[GroupTransactSession]:
    name = f"limits-{topic}"
    with GroupTransactSession(
        bootstrap_servers=apache_kafka.bootstrap_servers, group_id=name, transactional_id=name, topics=[topic]
    ) as session:
        yield session


def test_a_side_effect_happens_again_when_the_records_come_again(
    apache_kafka: ApacheKafka, session: GroupTransactSession, topic: str
) -> None:
    with producer(apache_kafka) as sender:
        sender.send(topic, b"order 17").result(20)
    target = apache_kafka.create_topic(partitions=1)
    mails: list[Any] = []
    for is_first in (True, False):
        with session.transaction() as txn:
            for record in wait_for(lambda: txn.poll(1.0)):
                mails.append(record.value)
                txn.send(target, record.value)
            if is_first:
                txn.abort()
    assert mails == [b"order 17", b"order 17"]
    assert committed(apache_kafka, target) == {b"": [b"order 17"]}


def test_a_session_does_not_poll_its_open_transaction(session: GroupTransactSession, topic: str) -> None:
    with session.transaction() as txn:
        txn.send(topic, b"to myself").result(20)
        assert txn.poll(0.3) == []
    with session.transaction() as txn:
        assert [record.value for record in wait_for(lambda: txn.poll(1.0))] == [b"to myself"]


def test_two_transactions_that_write_the_same_key_both_commit(apache_kafka: ApacheKafka, topic: str) -> None:
    first, second = (producer(apache_kafka, transactional_id=uuid.uuid4().hex) for _ in range(2))
    with first, second, first.transaction() as one, second.transaction() as other:
        for txn in (one, other):
            txn.send(topic, b"balance 10, as it was 9", key=b"account").result(20)
    assert one.committed and other.committed
    assert len(committed(apache_kafka, topic)[b"account"]) == 2


def test_a_poll_may_give_a_part_of_a_transaction(apache_kafka: ApacheKafka, topic: str) -> None:
    with producer(apache_kafka, transactional_id=uuid.uuid4().hex) as sender, sender.transaction() as txn:
        for value in (b"from A -10", b"to B +10"):
            txn.send(topic, value)
    with Consumer(bootstrap_servers=apache_kafka.bootstrap_servers, max_poll_records=1) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        polled = [wait_for(lambda: consumer.poll(1.0)) for _ in range(2)]
    assert [[record.value for record in records] for records in polled] == [[b"from A -10"], [b"to B +10"]]


def test_offsets_of_an_unknown_topic_are_refused(apache_kafka: ApacheKafka, topic: str) -> None:
    """As those of another cluster are: a transaction is of one."""
    elsewhere = TopicPartition(f"elsewhere-{uuid.uuid4().hex}", 0)
    with (
        producer(apache_kafka, transactional_id=uuid.uuid4().hex, max_block_ms=1000) as sender,
        pytest.raises(DeliveryTimeoutError, match="does not know the topic or the partition"),
        sender.transaction() as txn,
    ):
        txn.send(topic, b"copied")
        txn.send_offsets({elsewhere: 1}, ConsumerGroupMetadata(f"limits-{topic}"))
    assert txn.committed is False
