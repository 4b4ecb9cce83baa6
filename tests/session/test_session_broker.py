# SPDX-License-Identifier: Apache-2.0
"""The group transact session on a real broker, point by point where it can make the situation: the group's side. The
rest of the checklist is in test_session_checklist.py and its kin. What is written is read off the broker's disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from producer_apis import stored
from session_apis import BOTH_APIS, Looped, Threaded
from session_job import PAIRS, PARTITIONS, SECONDS, Job, Make, first_poll, watched

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import Producer
from kcodec.errors import TransactionStateError
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy

# --------------------------------------------------------------------------------------------------------- one session


@PAIRS
def test_all_is_copied_once_and_the_lag_is_0(apache_kafka: ApacheKafka, session_class: Make, protocol: str) -> None:
    job = Job(apache_kafka, 40)
    with session_class(**job.options(group_protocol=protocol)) as session:
        job.copy_all(session)
        job.seed(20)
        job.copy_all(session)
    job.check()
    ends = {TopicPartition(job.source, number): stored(apache_kafka, job.source, number) for number in (0, 1)}
    assert job.committed() == {partition: log.log_end_offset for partition, log in ends.items()}


@BOTH_APIS
def test_c02_the_order_on_the_wire(apache_kafka: ApacheKafka, session_class: Make) -> None:
    job = Job(apache_kafka)
    with session_class(**job.options(heartbeat_interval_ms=5_000, session_timeout_ms=20_000)) as session:
        job.copy_all(session)
        job.seed(4)
        with watched(session) as sent, session.transaction() as txn:
            assert job.copy(txn, 10.0)
        assert txn.committed
        kept = [api for api in sent if api not in {"Fetch", "Metadata", "DescribeTransactions", "OffsetForLeaderEpoch"}]
        produced = kept.count("Produce")
        assert produced
        assert kept == ["Produce"] * produced + ["TxnOffsetCommit", "Heartbeat", "EndTxn"]
        with watched(session) as sent, session.transaction() as txn:
            txn.send(job.target, b"0", partition=0)
        assert txn.committed
        assert "TxnOffsetCommit" not in sent
        with watched(session) as sent, session.transaction() as txn:
            pass
        assert not {"TxnOffsetCommit", "Heartbeat", "EndTxn"} & set(sent)


@BOTH_APIS
def test_c11_what_was_aborted_comes_again(apache_kafka: ApacheKafka, session_class: Make) -> None:
    job = Job(apache_kafka)
    with session_class(**job.options()) as session:
        first_poll(session, job)
        job.seed(6)
        before = job.committed()
        with session.transaction() as txn:
            assert job.copy(txn, 10.0)
            txn.abort()
            with pytest.raises(TransactionStateError, match="was aborted: poll"):
                txn.poll(0.1)
            with pytest.raises(TransactionStateError, match="was aborted: send"):
                txn.send(job.target, b"0")
        assert txn.committed is False
        with pytest.raises(RuntimeError, match="mine"), session.transaction() as txn:
            assert job.copy(txn, 10.0)
            raise RuntimeError("mine")
        assert txn.committed is False
        assert job.committed() == before
        job.copy_all(session)
    job.check()


@BOTH_APIS
def test_a_seek_is_committed_with_the_transaction_or_taken_back(apache_kafka: ApacheKafka, session_class: Make) -> None:
    job = Job(apache_kafka, 20)
    first = TopicPartition(job.source, 0)
    with session_class(**job.options(max_poll_records=1)) as session:
        for is_commit in (False, True):
            with session.transaction() as txn:
                while not (polled := txn.poll(5.0)) or polled[0].partition:
                    pass
                assert polled[0].offset == 0
                txn.seek(first, 8)
                while polled[0].partition or polled[0].offset < 8:
                    polled = txn.poll(5.0)
                assert polled[0].offset == 8
                if not is_commit:
                    txn.abort()
            assert txn.committed is is_commit
            assert job.committed().get(first) == (9 if is_commit else None)
        with pytest.raises(ValueError, match="is not assigned"), session.transaction() as txn:
            txn.seek(TopicPartition(job.source, 9), 0)


# -------------------------------------------------------------------------------------------------------- the group


@PAIRS
def test_c07_a_rebalance_that_has_begun_lets_the_block_commit(
    apache_kafka: ApacheKafka, session_class: Make, protocol: str
) -> None:
    job = Job(apache_kafka)
    with session_class(**job.options("a", group_protocol=protocol)) as first:
        first_poll(first, job)
        job.seed(10)
        with first.transaction() as txn:
            copied = job.copy(txn, 10.0)
            assert copied
            second = session_class(**job.options("b", group_protocol=protocol))
            time.sleep(0.7)  # it joins, and a heartbeat says so
        assert txn.committed is True
        with second:
            deadline = time.monotonic() + SECONDS
            while not (first.assignment() and second.assignment()):
                assert time.monotonic() < deadline
                for session in (first, second):
                    with session.transaction() as txn:
                        job.copy(txn, 0.1)
            job.seed(10)
            job.copy_all(first, second)
    job.check()


@BOTH_APIS
def test_c01_a_rebalance_in_a_poll_aborts_what_the_block_has_read(
    apache_kafka: ApacheKafka, session_class: Make
) -> None:
    job = Job(apache_kafka)
    reported: list[str] = []

    async def note(what: str) -> None:  # the asyncio session takes coroutine functions, too
        reported.append(what)

    tell: Callable[[str], Any] = note if session_class is Looped else reported.append
    options = {
        "on_revoked": lambda partitions: tell("revoked"),
        "on_assigned": lambda partitions: tell("assigned"),
        "partition_assignment_strategy": "range",
    }
    with session_class(**job.options("a", **options)) as first:
        first_poll(first, job)
        assert reported == ["assigned"]
        job.seed(10)
        before = job.committed()
        with first.transaction() as txn:
            assert job.copy(txn, 10.0)
            second = session_class(**job.options("b", partition_assignment_strategy="range"))
            deadline = time.monotonic() + SECONDS
            while not txn.is_doomed:
                assert time.monotonic() < deadline
                txn.poll(0.1)
            txn.send(job.target, b"-1", partition=0)
        assert txn.committed is False
        assert "revoked" in reported
        assert job.committed() == before
        with second:
            job.copy_all(first, second)
    job.check()


def test_c03_who_was_thrown_out_commits_nothing_and_comes_back(apache_kafka: ApacheKafka) -> None:
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        job = Job(apache_kafka, servers=proxy.bootstrap_servers)
        with Threaded(**job.options(heartbeat_interval_ms=300, session_timeout_ms=1_000)) as session:
            first_poll(session, job)
            job.seed(6)
            with session.transaction() as txn:
                assert job.copy(txn, 10.0)
                held = proxy.on_request("Heartbeat", count=None).drop()
                time.sleep(1.5)  # the group has forgotten it, and its own heartbeats do not say so
                held.remove()
            assert txn.committed is False
            job.copy_all(session)
    job.check()


def test_c05_what_was_lost_stays_until_endtxn_is_answered(
    apache_kafka: ApacheKafka, caplog: pytest.LogCaptureFixture
) -> None:
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        job = Job(apache_kafka, servers=proxy.bootstrap_servers)
        with Threaded(**job.options(heartbeat_interval_ms=200, session_timeout_ms=1_000)) as session:
            first_poll(session, job)
            job.seed(6)
            held = proxy.on_response("EndTxn").hold()
            with ThreadPoolExecutor(1) as pool:

                def work() -> bool | None:
                    with session.transaction() as txn:
                        assert job.copy(txn, 10.0)
                    return txn.committed  # type: ignore[no-any-return]

                done = pool.submit(work)
                held.wait_hit(10.0)
                joins = len(proxy.exchanges("JoinGroup"))
                deaf = proxy.on_request("Heartbeat", count=None).drop()
                time.sleep(1.6)  # until the group has forgotten it
                assert any(" has lost its partitions " in record.message for record in caplog.records)
                assert session.assignment(), "nothing is taken away before the answer"
                assert len(proxy.exchanges("JoinGroup")) == joins
                deaf.remove()
                held.remove()
                assert done.result(10.0) is True
            job.copy_all(session)
    job.check()


@PAIRS
def test_c10_pending_offsets_are_waited_for_and_raise_nothing(
    apache_kafka: ApacheKafka, session_class: Make, protocol: str
) -> None:
    job = Job(apache_kafka)
    offsets = {TopicPartition(job.source, number): 4 for number in range(PARTITIONS)}
    with Producer(bootstrap_servers=job.servers, transactional_id=f"{job.group}-other") as other:
        with other.transaction() as txn:
            txn.send_offsets(offsets, ConsumerGroupMetadata(job.group))
            with session_class(**job.options(group_protocol=protocol)) as session:
                begin = time.monotonic()
                while time.monotonic() - begin < 0.8:
                    with session.transaction() as own:
                        assert own.poll(0.2) == []
                    assert own.committed
                assert session.assignment()
        assert txn.committed
        with session_class(**job.options(group_protocol=protocol)) as session, session.transaction() as own:
            assert own.poll(10.0)[0].offset == 4
