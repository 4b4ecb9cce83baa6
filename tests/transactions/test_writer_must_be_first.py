# SPDX-License-Identifier: Apache-2.0
"""TransactionWriter(must_be_first=True): a second writer of a partition under one handle is refused. First against a
scripted broker in virtual time, then on real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from transaction_cluster import TransactionCluster
from transaction_kinds import ALL_KINDS
from transaction_script import CUT, HANG, LOST, ORDERS, REFUSED, Action, World

from kcodec.client import Producer, TransactionWriter, commit_transaction
from kcodec.errors import AbortableTransactionError, AuthorizationError, DeliveryTimeoutError
from kcodec.flow import Flow, sleep
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka
from kcodec.transactions.handle import TransactionHandle
from kcodec.transactions.requests import PASSING
from kcodec.transactions.shared import HandleProducerId

FIRST, SECOND = ORDERS, TopicPartition("orders", 1)
RETRIED = [*sorted(PASSING), CUT, LOST, REFUSED]
SECONDS = 30.0
HANDLE = TransactionHandle("orders", 7, 3, 2)


def keep_leaders(world: World) -> Flow[None]:
    """In place of metadata: after an error that says that the leader moved it is found again."""
    while True:
        world.lead(FIRST, SECOND)
        world.cluster.changed.set()
        yield from sleep(0.05)


@pytest.fixture
def world() -> Iterator[World]:
    made = World(2)
    made.spawn(keep_leaders(made))
    yield made


def writer(world: World) -> HandleProducerId:
    source = HandleProducerId(world.cluster, HANDLE, [FIRST, SECOND], lambda: world.now, SECONDS)
    world.spawn(source.run())
    return source


def test_a_writer_asks_each_leader_before_its_first_batch(world: World) -> None:
    """Other producers, other epochs, and the end marker of the transaction before, are no reason to refuse."""
    world.producers = [(7, 2, 41, -1), (8, 3, 41, 100), (7, 3, -1, -1)]
    source = writer(world)
    assert world.apis() == []
    assert not source.may_send(FIRST)
    assert not source.may_send(SECOND)
    world.pass_time(0.1)
    assert source.may_send(FIRST)
    assert source.may_send(SECOND)
    assert source.refuses() is None
    assert set(world.apis()) == {"DescribeProducers"}
    source.on_success(FIRST, 5, 4)
    world.producers = [(7, 3, 4, 100)]
    assert source.may_send(FIRST), "its own records"


@pytest.mark.parametrize("state", [(7, 3, 41, 100), (7, 3, -1, 100), (7, 3, 41, -1)])
def test_a_second_writer_of_a_partition_is_refused(world: World, state: tuple[int, int, int, int]) -> None:
    world.producers = [state]
    source = writer(world)
    source.may_send(FIRST)
    world.pass_time(0.1)
    error = source.refuses()
    assert isinstance(error, AbortableTransactionError)
    assert "another writer has written to orders-0" in str(error)
    assert (error.remedy, error.resource) == ("abort", FIRST)
    assert not source.may_send(FIRST)


@pytest.mark.parametrize("action", RETRIED)
def test_the_question_is_repeated_where_it_passes(world: World, action: Action) -> None:
    world.plan("DescribeProducers", action, action)
    source = writer(world)
    source.may_send(FIRST)
    world.pass_time(SECONDS)
    assert source.refuses() is None
    assert source.may_send(FIRST)


def test_a_leader_that_does_not_say_stops_the_writer(world: World) -> None:
    world.plan("DescribeProducers", *[HANG] * 100)
    source = writer(world)
    source.may_send(FIRST)
    world.pass_time(SECONDS + 1)
    assert isinstance(source.refuses(), DeliveryTimeoutError)


def test_the_question_needs_read_on_the_topic(world: World) -> None:
    world.plan("DescribeProducers", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    source = writer(world)
    source.may_send(FIRST)
    world.pass_time(0.1)
    error = source.refuses()
    assert isinstance(error, AuthorizationError)
    assert "READ" in "".join(error.__notes__)


def test_without_must_be_first_no_leader_is_asked() -> None:
    world = World(2)
    source = HandleProducerId(world.cluster, HANDLE, [FIRST], lambda: world.now)
    world.spawn(source.run())
    assert source.may_send(FIRST)
    assert world.apis() == []


# -------------------------------------------------------------------------------------------------------- real brokers


@ALL_KINDS
def test_the_second_attempt_of_a_writer_is_refused(transaction_cluster: TransactionCluster) -> None:
    """Attempt 0 wrote some rows and died; attempt 1 would write all of them, with the same first sequence numbers, and
    the broker would take its first batches for repeats."""
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    servers = cluster.quiet_proxy().bootstrap_servers
    with cluster.producer() as producer, producer.transaction(partitions=partitions) as txn:
        handle = txn.handle
        first = TransactionWriter(handle, partitions[:1], must_be_first=True, bootstrap_servers=servers, linger_ms=0)
        for row in range(500):
            first.send(topic, b"attempt 0: %d" % row)
        first.flush()
        assert cluster.count("DescribeProducers") == 1, "once, before its first batch"
        first._producer._io_loop.close()

        with (
            pytest.raises(
                AbortableTransactionError, match=f"another writer has already written to {topic}-0"
            ) as raised,
            TransactionWriter(handle, partitions[:1], must_be_first=True, bootstrap_servers=servers) as second,
        ):
            for row in range(1000):
                second.send(topic, b"attempt 1: %d" % row)
        assert raised.value.remedy == "abort"
        txn.abort()
        # The next transaction of the same producer writes there; its epoch may be the end marker's.
        with producer.transaction(partitions=partitions) as txn:
            with TransactionWriter(txn.handle, partitions, must_be_first=True, bootstrap_servers=servers) as third:
                for partition in (0, 1):
                    third.send(topic, b"%d" % partition, partition=partition)
            commit_transaction(txn.handle, receipts=[third.receipt], bootstrap_servers=servers)
    assert cluster.committed(topic) == [[b"0"], [b"1"]]


def test_must_be_first_needs_read_on_the_topic() -> None:
    with ApacheKafka(authorizer=True, sasl="PLAIN") as kafka:
        kafka.create_topic("the-topic", partitions=1)
        kafka.allow("alice", operation="Write", transactional_id="the-id")
        kafka.allow("alice", operation="Write", topic="the-topic")
        options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, **kafka.client_options("alice")}
        with Producer(**options, transactional_id="the-id") as producer, producer.transaction() as txn:
            partitions = [TopicPartition("the-topic", 0)]
            with (
                pytest.raises(AuthorizationError, match="describe producers") as raised,
                TransactionWriter(txn.handle, partitions, must_be_first=True, **options) as writer,
            ):
                writer.send("the-topic", b"x")
            assert raised.value.resource == "the-topic"
            assert "READ" in "".join(raised.value.__notes__)
            kafka.allow("alice", operation="Read", topic="the-topic")
            with TransactionWriter(txn.handle, partitions, must_be_first=True, **options) as writer:
                writer.send("the-topic", b"x")
            assert writer.receipt.records_count == 1
