# SPDX-License-Identifier: Apache-2.0
"""A producer that leaves its transaction open, on real brokers of four kinds: others write to it and end it."""

from __future__ import annotations

import asyncio

import pytest
from transaction_cluster import TransactionCluster
from transaction_kinds import ALL_KINDS

from kcodec import TopicPartition
from kcodec.client import Producer, TransactionWriter, abort_transaction, aio, commit_transaction
from kcodec.errors import AbortableTransactionError, TransactionStateError, TransportError


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


@ALL_KINDS
def test_a_released_transaction_is_committed_elsewhere(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers = cluster.quiet_proxy().bootstrap_servers
    with cluster.producer(linger_ms=1000) as producer, producer.transaction(partitions=partitions_of(topic)) as txn:
        for row in range(100):
            txn.send(topic, b"%d" % row, partition=0)
        handle = producer.release()
        with pytest.raises(TransportError, match="closed"):
            txn.send(topic, b"late", partition=0)
    assert txn.committed is None
    assert dict(producer.receipt) == {TopicPartition(topic, 0): (100, 99)}
    assert cluster.count("EndTxn") == 0
    with TransactionWriter(handle, [TopicPartition(topic, 1)], bootstrap_servers=servers) as writer:
        writer.send(topic, b"of the writer")
    commit_transaction(handle, receipts=[producer.receipt, writer.receipt], bootstrap_servers=servers)
    assert cluster.committed(topic) == [[b"%d" % row for row in range(100)], [b"of the writer"]]


def test_a_released_transaction_is_aborted_elsewhere(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    name = cluster.new_id()
    with cluster.producer(name) as producer:
        with producer.transaction(partitions=partitions_of(topic)) as txn:
            txn.send(topic, b"x", partition=0)
            handle = producer.release()
        abort_transaction(handle, bootstrap_servers=cluster.proxy.bootstrap_servers)
    with cluster.producer(name) as successor, successor.transaction() as txn:
        txn.send(topic, b"y", partition=0)
    assert cluster.committed(topic) == [[b"y"], []]


def test_a_release_without_a_transaction_is_refused(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    with cluster.producer() as producer:
        with pytest.raises(TransactionStateError, match="begin a transaction first"):
            producer.release()
        with pytest.raises(TransactionStateError, match=r"call release\(\) first"):
            _ = producer.receipt
        with producer.transaction() as txn:  # it is not closed
            txn.send(topic, b"x", partition=0)
    assert cluster.committed(topic) == [[b"x"], []]
    servers = cluster.proxy.bootstrap_servers
    with (
        Producer(bootstrap_servers=servers) as plain,
        pytest.raises(TransactionStateError, match="no transactional_id"),
    ):
        plain.release()


def test_a_release_with_a_lost_record_is_refused(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2, max_message_bytes=500)
    with cluster.producer() as producer:
        with (
            pytest.raises(AbortableTransactionError, match=f"{topic}-1"),
            producer.transaction(partitions=partitions_of(topic)) as txn,
        ):
            txn.send(topic, b"x", partition=0)
            txn.send(topic, bytes(1000), partition=1)
            producer.release()
        assert txn.committed is False
    assert cluster.committed(topic) == [[], []]


def test_asyncio_releases_alike(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)

    async def work() -> None:
        async with cluster.aio_producer() as producer, producer.transaction(partitions=partitions_of(topic)) as txn:
            await txn.send(topic, b"x", partition=0)
            handle = await producer.release()
        servers = cluster.proxy.bootstrap_servers
        async with aio.TransactionWriter(handle, [TopicPartition(topic, 1)], bootstrap_servers=servers) as writer:
            pass  # it says that it has written nothing
        receipts = [producer.receipt, writer.receipt]
        await aio.commit_transaction(handle, receipts=receipts, bootstrap_servers=servers)

    asyncio.run(work())
    assert cluster.committed(topic) == [[b"x"], []]
