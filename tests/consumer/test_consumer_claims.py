# SPDX-License-Identifier: Apache-2.0
"""What people often say of reading transactions, and of offsets in them, and is not so, asked of a real broker
(docs/myths.md). What a broker answers to plain requests is in test_transaction_claims.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from raw_broker import RawBroker, values
from raw_member import RawMember

import kcodec
from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import Admin, Consumer, Producer
from kcodec.errors import AbortableTransactionError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


@pytest.fixture
def broker(apache_kafka: ApacheKafka) -> Iterator[RawBroker]:
    with RawBroker(apache_kafka.bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.create_topic(partitions=2)


@pytest.fixture
def group() -> str:
    return f"claims-{uuid.uuid4().hex[:8]}"


def new_producer(kafka: ApacheKafka) -> Producer:
    return Producer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"claims-{uuid.uuid4().hex[:8]}", linger_ms=0
    )


def fetch_offset(broker: RawBroker, group: str, topic: str, *, require_stable: bool) -> tuple[int, int]:
    """(error code, committed offset) of partition 0."""
    broker.ask_until(messages.FindCoordinatorRequest(key=group, key_type=0), 3, lambda answer: answer.error_code)
    asked = messages.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    request = messages.OffsetFetchRequest(group_id=group, topics=[asked], require_stable=require_stable)
    found = broker.ask_until(request, 7, lambda answer: answer.error_code).topics[0].partitions[0]
    return found.error_code, found.committed_offset


# ------------------------------------------------------------------------------------------------------------ readers


def test_an_open_transaction_holds_back_its_own_partitions_only(
    apache_kafka: ApacheKafka, broker: RawBroker, topic: str
) -> None:
    with new_producer(apache_kafka) as producer, producer.transaction() as txn:
        txn.send(topic, b"open", partition=0).result(20)
        assert broker.produce(topic, None, [b"behind it"]).error_code == 0
        with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as other:
            other.send(topic, b"elsewhere", partition=1).result(20)
        assert values(broker.fetch(topic, isolation_level=READ_COMMITTED)) == []
        assert values(broker.fetch(topic, isolation_level=READ_COMMITTED, partition=1)) == [b"elsewhere"]


def test_records_are_read_in_the_order_of_offsets_and_not_of_commits(
    apache_kafka: ApacheKafka, broker: RawBroker, topic: str
) -> None:
    with new_producer(apache_kafka) as early, new_producer(apache_kafka) as late:
        with early.transaction() as first:
            first.send(topic, b"begun first", partition=0).result(20)
            with late.transaction() as second:
                second.send(topic, b"committed first", partition=0).result(20)
            assert second.committed
            assert values(broker.fetch(topic, isolation_level=READ_COMMITTED)) == []
        fetched = broker.fetched_up_to(topic, 4)
    assert values(fetched, isolation_level="read_committed", aborted_transactions=[]) == [
        b"begun first",
        b"committed first",
    ]


def test_both_isolation_levels_are_sent_the_same_bytes(
    apache_kafka: ApacheKafka, broker: RawBroker, topic: str
) -> None:
    with new_producer(apache_kafka) as producer:
        for _ in range(3):
            with producer.transaction() as txn:
                txn.send(topic, b"committed", partition=0)
    committed = broker.fetched_up_to(topic, 6)
    uncommitted = broker.fetch(topic, isolation_level=READ_UNCOMMITTED)
    assert bytes(committed.records) == bytes(uncommitted.records)
    assert committed.aborted_transactions == []
    assert len(kcodec.batches(committed.records)) == 6


# ------------------------------------------------------------------------------------------------------------ offsets


def test_a_topic_of_transactions_read_to_its_end_has_no_lag(
    apache_kafka: ApacheKafka, broker: RawBroker, topic: str, group: str
) -> None:
    """Although it ends in a marker, and in records that were aborted."""
    partition = TopicPartition(topic, 0)
    with new_producer(apache_kafka) as producer:
        for is_kept in (True, False):
            with producer.transaction() as txn:
                txn.send(topic, b"value", partition=0).result(20)
                if not is_kept:
                    txn.abort()
    end = broker.fetched_up_to(topic, 4).high_watermark
    with Consumer(bootstrap_servers=apache_kafka.bootstrap_servers, group_id=group) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        polled = []
        while consumer.position(partition) < end:
            polled += consumer.poll(0.2)
        consumer.commit()
        assert [record.offset for record in polled] == [0]
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        found = admin.list_group_offsets(group, [partition])[partition]
    assert found is not None and found.offset == end == 4


def test_a_plain_commit_is_in_no_transaction(apache_kafka: ApacheKafka, topic: str, group: str) -> None:
    partition = TopicPartition(topic, 0)
    with (
        Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin,
        new_producer(apache_kafka) as producer,
        producer.transaction() as txn,
    ):
        txn.send(topic, b"never", partition=0).result(20)
        admin.alter_group_offsets(group, {partition: 1})
        txn.abort()
        found = admin.list_group_offsets(group, [partition], require_stable=True)[partition]
    assert found is not None and found.offset == 1


def test_a_committed_offset_may_be_about_to_change(
    apache_kafka: ApacheKafka, broker: RawBroker, topic: str, group: str
) -> None:
    with new_producer(apache_kafka) as producer, producer.transaction() as txn:
        txn.send_offsets({TopicPartition(topic, 0): 5}, ConsumerGroupMetadata(group))
        assert fetch_offset(broker, group, topic, require_stable=False) == (0, -1)
        assert fetch_offset(broker, group, topic, require_stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        partition = TopicPartition(topic, 0)
        found = admin.list_group_offsets(group, [partition], require_stable=True)[partition]
    assert found is not None and found.offset == 5


def test_a_generation_fences_whatever_the_transactional_id(
    apache_kafka: ApacheKafka, broker: RawBroker, topic: str, group: str
) -> None:
    """Two producers that know nothing of each other: what the older generation brings is refused."""
    partition, member = TopicPartition(topic, 0), RawMember(broker, group)
    stale = member.join()
    current = member.join()
    with new_producer(apache_kafka) as old, new_producer(apache_kafka) as new:
        with pytest.raises(AbortableTransactionError, match="ILLEGAL_GENERATION"), old.transaction() as zombie:
            zombie.send_offsets({partition: 9}, stale)
        with new.transaction() as txn:
            txn.send_offsets({partition: 2}, current)
        assert zombie.committed is False and txn.committed is True
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        found = admin.list_group_offsets(group, [partition], require_stable=True)[partition]
    assert found is not None and found.offset == 2


def test_one_transactional_id_serves_any_number_of_partitions(
    apache_kafka: ApacheKafka, broker: RawBroker, topic: str, group: str
) -> None:
    """And any owner of a partition may commit its offset next, under an id of its own."""
    both = [TopicPartition(topic, number) for number in range(2)]
    with new_producer(apache_kafka) as first, new_producer(apache_kafka) as second:
        member = RawMember(broker, group)
        with first.transaction() as txn:
            txn.send_offsets(dict.fromkeys(both, 3), member.join())
        with second.transaction() as txn:
            txn.send_offsets({both[1]: 7}, member.join())
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        found = admin.list_group_offsets(group, both, require_stable=True)
    assert [one and one.offset for one in found.values()] == [3, 7]
