# SPDX-License-Identifier: Apache-2.0
"""commit_transaction_async on real brokers, with faults on the wire: nothing lost, nothing twice, the order kept."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import nullcontext

import pytest
from pipelined_commits import aio_pipeline, expected, pipeline
from transaction_cluster import TransactionCluster

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import Producer
from kcodec.client.aio import GroupTransactSession
from kcodec.errors import ProducerFencedError, TransactionStateError, UnknownOutcomeError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.commit_result import CommitResult


def test_faults_between_two_transactions_pass(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    proxy = cluster.quiet_proxy()
    rules = [
        proxy.on_response("EndTxn", nth=2).cut(),
        proxy.on_request("EndTxn", nth=5).hold(0.2),
        proxy.on_request("EndTxn", nth=6, count=2).answer(error=ErrorCode.NOT_COORDINATOR),
        proxy.on_response("EndTxn", nth=9).replace(error=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        proxy.on_response("Produce", nth=4).cut(),
        proxy.on_request("Produce", nth=9).cut(),
        proxy.on_request("Produce", nth=12).hold(0.1),
    ]
    with cluster.producer() as producer:
        pipeline(producer, topic, 12, 20)
    assert cluster.committed(topic) == expected(12, 20)
    assert all(rule.hits for rule in rules)


def test_asyncio_commits_in_the_background(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    rule = cluster.quiet_proxy().on_response("EndTxn", nth=2).cut()

    async def work() -> None:
        async with cluster.aio_producer() as producer:
            await aio_pipeline(producer, topic, 4, 10)

    asyncio.run(work())
    assert cluster.committed(topic) == expected(4, 10) and rule.hits


def test_records_wait_in_the_buffer_for_the_commit(transaction_cluster: TransactionCluster) -> None:
    """Also those of a topic without metadata, and offsets; the buffer of both transactions has one limit."""
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    other, group = cluster.kafka.create_topic(partitions=1), ConsumerGroupMetadata("background")
    proxy = cluster.quiet_proxy()
    held = proxy.on_request("EndTxn").hold()
    with cluster.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, b"first").result(20)
        commit = producer.commit_transaction_async()
        count = cluster.count("Produce")
        with producer.transaction() as txn:
            deliveries = [txn.send(name, b"second") for name in (topic, other, topic)]
            time.sleep(0.1)
            assert cluster.count("Produce") == count
            with pytest.raises(TransactionStateError, match="wait for its result first"):
                producer.commit_transaction_async()
            assert not commit.done() and not any(delivery.done() for delivery in deliveries)
            held.release()
            txn.send_offsets({TopicPartition(topic, 0): 1}, group)
            assert commit.done()
        assert [delivery.result(20).topic for delivery in deliveries] == [topic, other, topic]
    assert cluster.committed(topic) == [[b"first", b"second", b"second"]]
    assert cluster.committed(other) == [[b"second"]]


def test_an_unknown_outcome_fails_what_was_buffered(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    rule = cluster.quiet_proxy().on_response("EndTxn", count=None).drop()
    with cluster.producer(request_timeout_ms=500) as producer:
        producer.begin_transaction()
        producer.send(topic, b"first")
        commit = producer.commit_transaction_async(timeout=1.0)
        with pytest.raises(UnknownOutcomeError), producer.transaction() as txn:
            delivery = txn.send(topic, b"second")
            assert isinstance(commit.exception(20), UnknownOutcomeError)
            assert isinstance(delivery.exception(20), UnknownOutcomeError)
        assert txn.committed is False
        rule.remove()
        producer.commit_transaction()  # of the first one, again
        with producer.transaction() as txn:
            txn.send(topic, b"third")
    assert cluster.committed(topic) == [[b"first", b"third"]]


def test_the_end_of_a_block_raises_an_unknown_outcome(transaction_cluster: TransactionCluster) -> None:
    """It does not repeat EndTxn. The next commit_transaction does."""
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    rule = cluster.quiet_proxy().on_response("EndTxn", count=None).drop()
    with cluster.producer(request_timeout_ms=300) as producer:
        with pytest.raises(UnknownOutcomeError), producer.transaction() as txn:
            txn.send(topic, b"first")
            commit = producer.commit_transaction_async(timeout=0.5)
            while not commit.done():
                time.sleep(0.01)
            count = cluster.count("EndTxn")
        assert cluster.count("EndTxn") == count and txn.committed is None
        rule.remove()
        producer.commit_transaction()
        with producer.transaction() as txn:
            txn.send(topic, b"second")
    assert cluster.committed(topic) == [[b"first", b"second"]]


def test_a_fenced_commit_fails_what_was_buffered(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    name, held = cluster.new_id(), cluster.quiet_proxy().on_request("EndTxn").hold()
    with Producer(bootstrap_servers=cluster.kafka.bootstrap_servers, transactional_id=name) as second:
        with pytest.raises(ProducerFencedError), cluster.producer(name) as producer:
            producer.begin_transaction()
            producer.send(topic, b"lost").result(20)
            commit = producer.commit_transaction_async()
            producer.begin_transaction()
            delivery = producer.send(topic, b"lost, too")
            second.init_transactions()
            held.release()
            assert isinstance(delivery.exception(20), ProducerFencedError)
            with pytest.raises(ProducerFencedError):
                commit.result(20)
            producer.send(topic, b"refused")
        with second.transaction() as txn:
            txn.send(topic, b"of the second")
    assert cluster.committed(topic) == [[b"of the second"]]


def test_close_ends_a_commit_and_raises_its_error(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    cluster.quiet_proxy().on_request("EndTxn").hold(0.5)  # the next transaction sends nothing before it
    with cluster.producer() as producer:
        with producer.transaction() as txn:
            txn.send(topic, b"committed")
            commit = producer.commit_transaction_async()
        producer.begin_transaction()
        dropped = producer.send(topic, b"dropped")
    assert commit.done() and commit.exception() is None and txn.committed and dropped.error is not None
    rule = cluster.quiet_proxy().on_response("EndTxn", count=None).drop()
    with pytest.raises(UnknownOutcomeError), cluster.producer(request_timeout_ms=500) as producer:
        producer.begin_transaction()
        producer.send(topic, b"unknown")
        producer.commit_transaction_async(timeout=1.0)
    rule.remove()
    assert cluster.committed(topic)[0][0] == b"committed"


def test_a_session_does_not_commit_in_the_background() -> None:
    async def work() -> None:
        session = GroupTransactSession(
            bootstrap_servers="127.0.0.1:1", group_id="group", transactional_id="copier", topics=["in"]
        )
        manager = session._flows.manager
        with pytest.raises(TransactionStateError, match="a session commits records together with the offsets"):
            next(manager.commit_async(CommitResult("copier", nullcontext(), lambda: None)))
        await session.close()

    asyncio.run(work())


def test_records_without_metadata_stay_in_their_transaction(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    proxy = cluster.quiet_proxy()
    with cluster.producer() as producer:
        producer.init_transactions()
        rule = proxy.on_response("Metadata", count=None, where=lambda seen: bool(seen.request_message().topics)).hold()
        producer.begin_transaction()
        first = [producer.send(topic, b"committed") for _ in range(3)]
        commit = producer.commit_transaction_async()
        producer.begin_transaction()
        second = [producer.send(topic, b"aborted") for _ in range(3)]
        assert not any(delivery.done() for delivery in first)
        rule.release()
        rule.remove()
        assert commit.exception(20) is None
        producer.abort_transaction()
        assert [delivery.error for delivery in first] == [None] * 3
        assert all(delivery.done() for delivery in second)
    assert cluster.committed(topic) == [[b"committed"] * 3]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_commit(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    held = cluster.quiet_proxy().on_request("EndTxn").hold()
    with cluster.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, b"value").result(20)
        commit = producer.commit_transaction_async()
        child = os.fork()
        if child == 0:
            error = commit.exception(20)
            os._exit(0 if "belongs to another process" in str(error) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        held.release()
        commit.result(20)
    assert cluster.committed(topic) == [[b"value"]]
