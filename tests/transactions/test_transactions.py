# SPDX-License-Identifier: Apache-2.0
"""Transactions on real brokers: the newest Kafka at transaction version 0, 1 and 2, and 3.9.1. What was spoken is
read off the wire, what became visible off the broker's disk and by Kafka's own consumer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

import pytest
from java_clients import consume
from transaction_cluster import SECONDS, TransactionCluster
from transaction_kinds import ALL_KINDS, offset_of

from kcodec import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.client import Producer
from kcodec.errors import (
    AbortableTransactionError,
    BrokerError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionStateError,
    TransactionTimedOutError,
    TransportError,
    UnknownOutcomeError,
)
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka

# ----------------------------------------------------------------------------------------------------------- the wire


@ALL_KINDS
def test_the_finalized_feature_decides_the_flow_not_versions(
    transaction_cluster: TransactionCluster,
) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=3)
    proxy = cluster.quiet_proxy()
    with cluster.producer() as producer:
        for _ in range(2):
            with producer.transaction() as txn:
                for partition in range(3):
                    txn.send(topic, b"value", partition=partition)
                txn.send_offsets({TopicPartition(topic, 0): 1}, ConsumerGroupMetadata("flows"))
    assert all(exchange.version <= 3 for exchange in proxy.exchanges("AddPartitionsToTxn"))
    if cluster.is_new_flow:
        assert proxy.versions("EndTxn") == {5}
        # By id from Kafka 4.4 on (KIP-1319), once the metadata has the topic.
        assert max(proxy.versions("TxnOffsetCommit")) == (6 if cluster.kafka.version == KAFKA_VERSION else 5)
        assert min(proxy.versions("TxnOffsetCommit")) >= 5
        assert min(proxy.versions("Produce")) >= 12
        assert cluster.count("AddPartitionsToTxn") == cluster.count("AddOffsetsToTxn") == 0
    else:
        assert max(proxy.versions("EndTxn")) <= 4
        assert max(proxy.versions("TxnOffsetCommit")) <= 4
        assert max(proxy.versions("Produce")) <= 11
        assert cluster.count("AddOffsetsToTxn") >= 2
        assert cluster.count("AddPartitionsToTxn") >= 2
    assert cluster.spoken()[0] == "InitProducerId"
    coordinator = min(one.time for one in proxy.exchanges("FindCoordinator"))
    assert coordinator < proxy.exchanges("InitProducerId")[0].time
    assert cluster.spoken().count("InitProducerId") == 1


def test_the_coordinators_log_does_not_grow_with_the_records(
    transaction_cluster: TransactionCluster,
) -> None:
    """A record costs the coordinator nothing: bytes in __transaction_state are by partitions, not by records."""
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)

    def size() -> int:
        """Once the last state of the coordinator, the complete commit, is written."""
        cluster.logs(topic)
        before = -1
        while True:
            logs = cluster.kafka.log_directory.glob("__transaction_state-*/*.log")
            now = sum(log.stat().st_size for log in logs)
            if now == before:
                return now
            before = now
            time.sleep(0.2)

    with cluster.producer(cluster.new_id(), linger_ms=5, batch_size=65_536) as producer:
        grown = []
        for count in (10, 10, 100_000):
            before = size()
            with producer.transaction() as txn:
                for number in range(count):
                    txn.send(topic, b"%d" % number)
            grown.append(size() - before)
    assert grown[1] == grown[2] > 0, "the first one also takes the id over"
    assert sum(len(values) for values in cluster.committed(topic)) == 100_020


def test_an_empty_transaction_is_not_on_the_wire(transaction_cluster: TransactionCluster) -> None:
    cluster = transaction_cluster
    cluster.quiet_proxy()
    with cluster.producer() as producer:
        with producer.transaction() as empty:
            pass
        with producer.transaction() as aborted:
            aborted.abort()
    assert (empty.committed, aborted.committed) == (True, False)
    assert cluster.spoken() == ["InitProducerId"]


# ------------------------------------------------------------------------------------------------------ what is visible


def test_committed_records_are_delivered_aborted_ones_are_not(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    with cluster.producer() as producer:
        with producer.transaction() as txn:
            for number in range(50):
                txn.send(topic, b"committed-%d" % number, partition=number % 2)
        assert txn.committed is True
        with producer.transaction() as aborted:
            aborted.send(topic, b"aborted", partition=0).result(20)
            aborted.abort()
        assert aborted.committed is False
        with pytest.raises(KeyError), producer.transaction() as failed:
            failed.send(topic, b"failed", partition=1).result(20)
            raise KeyError("of the application")
        assert failed.committed is False
        with producer.transaction() as last:
            last.send(topic, b"last", partition=0)
    expected = [[b"committed-%d" % number for number in range(partition, 50, 2)] for partition in range(2)]
    expected[0].append(b"last")
    assert cluster.committed(topic) == expected
    assert sum(len(values) for values in cluster.written(topic)) == 53
    read = consume(cluster.kafka.bootstrap_servers, topic)
    assert [[record.value for record in read if record.partition == number] for number in range(2)] == expected


def test_the_same_under_javas_names(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    with cluster.producer() as producer:
        producer.init_transactions()
        with pytest.raises(TransactionStateError, match="begin a transaction first"):
            producer.send(topic, b"outside")
        producer.begin_transaction()
        producer.send(topic, b"committed")
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, ConsumerGroupMetadata("java-names"))
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"aborted").result(20)
        producer.abort_transaction()
        with pytest.raises(TransactionStateError):
            producer.abort_transaction()
    assert cluster.committed(topic) == [[b"committed"]]
    assert offset_of(cluster, "java-names", topic) == 7


def test_offsets_are_committed_with_the_transaction_or_not(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    group = ConsumerGroupMetadata(cluster.new_id())
    partition = TopicPartition(topic, 0)
    with cluster.producer() as producer:
        with producer.transaction() as txn:
            txn.send_offsets({partition: OffsetAndMetadata(5, "note")}, group)
        assert offset_of(cluster, group.group_id, topic) == 5
        with producer.transaction() as txn:
            txn.send_offsets({partition: 9}, group)
            txn.abort()
        assert offset_of(cluster, group.group_id, topic) == 5
        with pytest.warns(RuntimeWarning, match="no generation fences them"), producer.transaction() as txn:
            txn.send_offsets({partition: 11}, group.group_id)
        assert offset_of(cluster, group.group_id, topic) == 11


def test_close_with_an_open_transaction_aborts_it(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    with cluster.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, b"left open").result(20)
    assert cluster.committed(topic) == [[]]
    assert cluster.written(topic) == [[b"left open"]]


def test_a_closed_producer_begins_nothing(transaction_cluster: TransactionCluster) -> None:
    topic = transaction_cluster.kafka.create_topic(partitions=1)
    producer = transaction_cluster.producer()
    with producer.transaction() as txn:
        txn.send(topic, b"value")
    producer.close()
    with pytest.raises(TransportError, match="closed"):
        producer.begin_transaction()
    with pytest.raises(TransportError, match="closed"), producer.transaction():
        pass


def test_asyncio_does_the_same(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)

    async def work() -> None:
        async with cluster.aio_producer() as producer:
            async with producer.transaction() as txn:
                await txn.send(topic, b"committed")
                await txn.send_offsets({TopicPartition(topic, 0): 3}, ConsumerGroupMetadata("aio"))
            assert txn.committed is True
            with pytest.raises(KeyError):
                async with producer.transaction() as failed:
                    await (await failed.send(topic, b"failed"))
                    raise KeyError("of the application")
            assert failed.committed is False

            async def never_ends() -> None:
                async with producer.transaction() as cancelled:
                    await (await cancelled.send(topic, b"cancelled"))
                    await asyncio.sleep(60)

            task = asyncio.create_task(never_ends())
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await producer.begin_transaction()
            await producer.send(topic, b"last")
            await producer.commit_transaction()

    asyncio.run(work())
    assert cluster.committed(topic) == [[b"committed", b"last"]]
    assert sorted(cluster.written(topic)[0], key=bytes) == [b"cancelled", b"committed", b"failed", b"last"]  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- errors


def test_a_failed_record_blocks_the_commit_and_names_its_partition(transaction_cluster: TransactionCluster) -> None:
    cluster = transaction_cluster
    topic = cluster.kafka.create_topic(partitions=2, max_message_bytes=1000)
    with cluster.producer() as producer:
        with pytest.raises(AbortableTransactionError, match=f"{topic}-1") as raised, producer.transaction() as txn:
            txn.send(topic, b"fits", partition=0)
            txn.send(topic, bytes(range(256)) * 20, partition=1)
        assert raised.value.resource == TopicPartition(topic, 1)
        assert txn.committed is False
        with producer.transaction() as txn:
            txn.send(topic, b"next", partition=1)
    assert cluster.committed(topic) == [[], [b"next"]]


@pytest.mark.parametrize("is_written", [False, True])
def test_a_transaction_whose_every_produce_failed_is_aborted(
    transaction_cluster: TransactionCluster, is_written: bool
) -> None:
    """The leader refuses all of it, or never gets it, so that the coordinator may not know of a transaction. Commit and
    abort end at once, and the next transaction commits."""
    cluster = transaction_cluster
    topic = cluster.kafka.create_topic(partitions=3, max_message_bytes=1000)
    proxy = cluster.quiet_proxy()
    value = bytes(range(256)) * (20 if is_written else 1)
    with cluster.producer() as producer:
        for is_commit in (True, False):
            rule = None if is_written else proxy.on_request("Produce", count=None).answer(error=10)
            producer.begin_transaction(SECONDS)
            sent = [producer.send(topic, value, partition=0)]
            with suppress(AbortableTransactionError):  # if the leader has already refused the first one
                sent += [producer.send(topic, value, partition=partition) for partition in (1, 2)]
            began = time.monotonic()
            assert all(isinstance(one.exception(SECONDS), BrokerError) for one in sent)
            if is_commit:
                with pytest.raises(AbortableTransactionError, match="MESSAGE_TOO_LARGE"):
                    producer.commit_transaction(SECONDS)
            producer.abort_transaction(SECONDS)
            assert time.monotonic() - began < SECONDS / 2
            if rule is not None:
                rule.remove()
        with producer.transaction(timeout=SECONDS) as txn:
            txn.send(topic, b"next", partition=0)
        assert txn.committed is True
    assert cluster.committed(topic) == [[b"next"], [], []]


def test_a_second_instance_fences_the_first(
    transaction_cluster: TransactionCluster,
) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    name = cluster.new_id()
    with cluster.producer(name) as first, cluster.producer(name) as second:
        first.begin_transaction()
        first.send(topic, b"of the first").result(20)
        with second.transaction() as txn:
            txn.send(topic, b"of the second")
        cluster.quiet_proxy()
        with pytest.raises(ProducerFencedError, match=f"{name}.*another producer|another producer.*{name}"):
            first.send(topic, b"too late").result(20)
        for call in (first.commit_transaction, first.abort_transaction, first.begin_transaction):
            with pytest.raises(ProducerFencedError) as raised:
                call()
            assert (raised.value.remedy, raised.value.resource) == ("stop", name)
        assert cluster.count("InitProducerId") == 0, "it must not fence the second in turn"
        with second.transaction() as txn:
            txn.send(topic, b"again")
    assert cluster.committed(topic) == [[b"of the second", b"again"]]


@pytest.mark.parametrize("finds_out", ["send", "commit", "abort", "send_offsets"])
def test_a_timed_out_transaction_is_not_reported_as_fenced(
    transaction_cluster: TransactionCluster, finds_out: str
) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    with cluster.producer(transaction_timeout_ms=500) as producer:
        producer.begin_transaction()
        producer.send(topic, b"too slow").result(20)
        time.sleep(0.9)
        if finds_out == "abort":
            producer.abort_transaction()
        else:
            with pytest.raises(TransactionTimedOutError, match="transaction_timeout_ms=500"):
                if finds_out == "send":
                    producer.send(topic, b"late").result(20)
                elif finds_out == "commit":
                    producer.commit_transaction()
                else:
                    group = ConsumerGroupMetadata("late")
                    producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, group)
            with pytest.raises(TransactionTimedOutError):
                producer.commit_transaction()
            producer.abort_transaction()
        with producer.transaction() as txn:
            txn.send(topic, b"in time")
    assert cluster.committed(topic) == [[b"in time"]]


def test_a_refused_transaction_timeout_is_explained(transaction_cluster: TransactionCluster) -> None:
    with (
        transaction_cluster.producer(transaction_timeout_ms=900_001) as producer,
        pytest.raises(FatalTransactionError, match=r"900001.*transaction\.max\.timeout\.ms"),
    ):
        producer.init_transactions()


def test_a_producer_without_an_id_has_no_transactions(transaction_cluster: TransactionCluster) -> None:
    with Producer(bootstrap_servers=transaction_cluster.kafka.bootstrap_servers) as producer:
        for call in (producer.transaction, producer.init_transactions, producer.commit_transaction):
            with pytest.raises(TransactionStateError, match="no transactional_id"):
                call()


# ---------------------------------------------------------------------------------------------------------- unanswered


@pytest.mark.parametrize("api", ["EndTxn", "Produce", "AddPartitionsToTxn", "TxnOffsetCommit", "AddOffsetsToTxn"])
def test_a_lost_response_is_requested_again_and_spends_old_epoch(
    transaction_cluster: TransactionCluster, api: str
) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    partition, group = TopicPartition(topic, 0), ConsumerGroupMetadata(cluster.new_id())
    with cluster.producer() as producer:
        producer.init_transactions()
        proxy = cluster.quiet_proxy()
        rule = proxy.on_request(api).deliver_and_cut()
        for number in range(2):
            with producer.transaction() as txn:
                txn.send(topic, b"%d" % number)
                txn.send_offsets({partition: number}, group)
            assert txn.committed is True
        is_of_this_flow = api not in {"AddPartitionsToTxn", "AddOffsetsToTxn"} or not cluster.is_new_flow
        assert len(rule.hits) == is_of_this_flow
        assert cluster.spoken().count("InitProducerId") == (0 if cluster.is_new_flow else 1)
    assert cluster.committed(topic) == [[b"0", b"1"]]
    assert offset_of(cluster, group.group_id, topic) == 1


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_commit_without_response_is_an_unknown_outcome(
    transaction_cluster: TransactionCluster, is_carried_out: bool
) -> None:
    """Whether the broker has carried it out shows only in the log; the next begin settles what is open."""
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    with cluster.producer(max_block_ms=1500, request_timeout_ms=1000) as producer:
        producer.begin_transaction()
        producer.send(topic, b"perhaps").result(20)
        selected = cluster.quiet_proxy().on_request("EndTxn", count=None)
        rule = selected.deliver_and_cut() if is_carried_out else selected.drop()
        start = time.monotonic()
        with pytest.raises(UnknownOutcomeError):
            producer.commit_transaction()
        assert time.monotonic() - start < 15.0  # without the two options it would be a minute
        with pytest.raises(TransactionStateError):
            producer.abort_transaction()
        rule.remove()
        if not is_carried_out:
            with producer.transaction() as txn:
                txn.send(topic, b"next")
        else:
            producer.commit_transaction()
            with producer.transaction() as txn:
                txn.send(topic, b"next")
        assert txn.committed is True
    assert cluster.committed(topic) == [[b"perhaps", b"next"] if is_carried_out else [b"next"]]


def test_a_late_end_txn_does_not_end_the_next_transaction(transaction_cluster: TransactionCluster) -> None:
    """The fault of librdkafka and of Java's producer in the old flow: the repeat of an unanswered EndTxn succeeds, the
    next transaction begins, and the first copy ends that one."""
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    with cluster.producer() as producer:
        producer.begin_transaction()
        producer.send(topic, b"first").result(20)
        late = cluster.quiet_proxy().on_request("EndTxn").hold(cut_client=True)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"second").result(20)
        late.release()
        time.sleep(0.3)
        producer.send(topic, b"second, too").result(20)
        producer.abort_transaction()
    assert cluster.committed(topic) == [[b"first"]]


def test_a_forgotten_commit_is_a_warning(apache_kafka: ApacheKafka, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else says so: the record was acknowledged, and the producer closes without an exception."""
    topic = apache_kafka.create_topic()
    options = {"bootstrap_servers": apache_kafka.bootstrap_servers, "transactional_id": f"forgotten-{topic}"}
    with Producer(**options) as producer:  # type: ignore[arg-type]
        producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]  # an empty transaction loses nothing
    with Producer(**options) as producer:  # type: ignore[arg-type]
        producer.begin_transaction()
        producer.send(topic, b"forgotten").result(30)
    (record,) = (one for one in caplog.records if one.levelno >= logging.WARNING)
    assert "Call commit_transaction before the close" in record.getMessage()
