# SPDX-License-Identifier: Apache-2.0
"""The group transact session on a real broker, point by point: the producer's side, brokers before 2.5, options. See
test_session_broker.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session_apis import BOTH_APIS, Looped, Threaded
from session_job import Job, Make, first_poll, watched

from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.errors import (
    AbortableTransactionError,
    DeliveryTimeoutError,
    ProducerFencedError,
    UnknownOutcomeError,
)
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy

# ------------------------------------------------------------------------------------------------------- the producer


@pytest.mark.parametrize(("session_class", "fault"), [(Threaded, "before the broker"), (Looped, "after the broker")])
def test_c13_an_unknown_outcome_and_the_committed_offsets_tell_the_truth(
    apache_kafka: ApacheKafka, session_class: Make, fault: str
) -> None:
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        job = Job(apache_kafka, servers=proxy.bootstrap_servers)
        with session_class(**job.options(request_timeout_ms=500, fetch_max_wait_ms=100, max_block_ms=1_200)) as session:
            first_poll(session, job)
            job.seed(6)
            choose = proxy.on_request if fault.startswith("before") else proxy.on_response
            with pytest.raises(UnknownOutcomeError), session.transaction() as txn:
                assert job.copy(txn, 10.0)
                rule = choose("EndTxn", count=None).drop()
            assert txn.committed is None
            rule.remove()
            with watched(session) as sent, session.transaction(10.0) as txn:
                known = [api for api in sent if api in {"InitProducerId", "OffsetFetch"}]
                assert list(dict.fromkeys(known)) == ["InitProducerId", "OffsetFetch"]
            job.copy_all(session)
    job.check()


def test_c14_c19_c20_errors_of_requests_abort_or_pass_and_the_session_goes_on(apache_kafka: ApacheKafka) -> None:
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        job = Job(apache_kafka, servers=proxy.bootstrap_servers)
        with Threaded(**job.options(retry_backoff_ms=20)) as session:
            first_poll(session, job)
            for api, code, text in (
                ("Produce", 87, job.target),  # C19: the partition is named
                ("Produce", 120, "TRANSACTION_ABORTABLE"),
                ("TxnOffsetCommit", ErrorCode.TRANSACTION_ABORTABLE, "TRANSACTION_ABORTABLE"),
                ("EndTxn", ErrorCode.TRANSACTION_ABORTABLE, "TRANSACTION_ABORTABLE"),
            ):
                job.seed(2)
                proxy.on_request(api).answer(error=code)
                with pytest.raises(AbortableTransactionError, match=text), session.transaction() as txn:
                    assert job.copy(txn, 10.0)
                assert txn.committed is False
            # C14: -1 says nothing of what became of it; EndTxn is repeated, and the answer to that counts.
            proxy.clear_log()
            unsure = proxy.on_response("EndTxn").replace(error=-1)
            with session.transaction() as txn:
                assert job.copy(txn, 10.0)
            assert unsure.hits
            assert txn.committed is True
            assert len(proxy.exchanges("EndTxn")) == 2
            job.copy_all(session)
    job.check()


def test_c24_c25_begin_has_a_deadline_and_what_passes_does_not_surface(apache_kafka: ApacheKafka) -> None:
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        job = Job(apache_kafka, servers=proxy.bootstrap_servers)
        with Threaded(**job.options(retry_backoff_ms=20, request_timeout_ms=500, fetch_max_wait_ms=100)) as session:
            rule = proxy.on_request("InitProducerId", count=None).drop()
            begin = time.monotonic()
            with pytest.raises(DeliveryTimeoutError), session.transaction(1.0):
                raise AssertionError("not to be reached")
            assert time.monotonic() - begin < 3.0
            rule.remove()
            for code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS):
                proxy.on_request("InitProducerId", nth=1).answer(error=code)
            job.copy_all(session)
    job.check()


def test_c21_c22_who_takes_the_id_over_fences_who_had_it(apache_kafka: ApacheKafka) -> None:
    job = Job(apache_kafka)
    with Looped(**job.options("a")) as zombie:
        first_poll(zombie, job)
        job.seed(6)
        with pytest.raises(ProducerFencedError), zombie.transaction() as txn:
            assert job.copy(txn, 10.0)
            with Producer(bootstrap_servers=job.servers, transactional_id=f"{job.group}-a") as other:
                other.init_transactions()
        assert txn.committed is False
        with pytest.raises(ProducerFencedError, match="took over"), zombie.transaction():
            raise AssertionError("not to be reached")
    with Looped(**job.options("b")) as other:
        job.copy_all(other)
    job.check()


def test_a_task_that_is_cancelled_in_the_block_aborts(apache_kafka: ApacheKafka) -> None:
    job = Job(apache_kafka)
    with Looped(**job.options()) as session:
        first_poll(session, job)
        job.seed(6)

        async def work() -> bool | None:
            txn = session.session.transaction()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5), txn:
                    while True:
                        for record in await txn.poll(10.0):
                            await txn.send(job.target, record.value, partition=record.partition)
            return txn.committed  # type: ignore[no-any-return]

        assert session.run(work()) is False
        job.copy_all(session)
    job.check()


# --------------------------------------------------------------------------------------------------- before Kafka 2.5


@pytest.fixture
def old_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker before Kafka 2.5 for offsets, by the versions that it offers."""
    with Broker(data_dir=tmp_path, max_versions={"OffsetFetch": 6, "TxnOffsetCommit": 2}) as broker:
        yield broker


def test_c09_as_with_brokers_before_kip447(old_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(old_broker)
    times: dict[str, Any] = {"session_timeout_ms": 20_000, "transaction_timeout_ms": 5_000, "request_timeout_ms": 4_000}
    with Threaded(**job.options(**times)) as session:
        first_poll(session, job)
        job.seed(6)
        with watched(session) as sent, session.transaction() as txn:
            copied = 0
            while copied < 6:  # a poll may return the records of one partition
                more = job.copy(txn, 10.0)
                assert more, f"{copied} of 6"
                copied += more
        committed = time.monotonic()
        assert txn.committed
        assert "AddOffsetsToTxn" in sent, "the old flow"
        with session.transaction() as txn:
            txn.send(job.target, b"0", partition=0)
            begun = time.monotonic() - committed
            txn.abort()
        assert begun < 0.3, "begin and send do not wait"
        assert session.session._flows.end_lock.is_held
        session.session.close()
        assert 0.4 < time.monotonic() - committed < 3.0, "what gives the partitions away does"
    job.check()
    assert sum("depends on timing" in record.message for record in caplog.records) == 1


def test_c23_times_that_are_not_safe_are_refused_there(old_broker: Broker) -> None:
    job = Job(old_broker, 1)
    with (
        Threaded(**job.options(session_timeout_ms=20_000)) as session,
        pytest.raises(ValueError, match=r"session_timeout_ms=20000 is not safe.*scan interval \(10000\)"),
        session.transaction(),
    ):
        raise AssertionError("not to be reached")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"isolation_level": "read_uncommitted"}, ValueError, "aborted later"),
        ({"enable_auto_commit": True}, ValueError, "outside its transactions"),
        ({"acks": 1}, ValueError, 'acks must be "all"'),
        ({"transactional_id": None}, TypeError, "transactional_id is missing"),
        ({"group_id": ""}, TypeError, "group_id is missing"),
        ({"transactional_id": None, "transactionalid": "a"}, TypeError, "did you mean 'transactional_id'"),
        ({"transacton_timeout_ms": 5}, TypeError, "did you mean 'transaction_timeout_ms'"),
        ({"transaction_scan_interval_ms": -1}, ValueError, "transaction_scan_interval_ms"),
        ({"topics": []}, ValueError, "topics is empty"),
        ({"pattern": "x.*"}, ValueError, "topics= and pattern= are both given"),
        ({"pattern": "x(", "topics": None}, ValueError, "not a valid regular expression"),
    ],
)
@BOTH_APIS
def test_c27_what_is_not_safe_is_refused(
    options: dict[str, Any], error: type[Exception], text: str, session_class: Make
) -> None:
    given = {"bootstrap_servers": "127.0.0.1:1", "group_id": "a", "transactional_id": "b", "topics": ["in"]}
    with pytest.raises(error, match=text):
        session_class(**(given | options))


def test_c27_the_defaults_are_safe() -> None:
    with Threaded(bootstrap_servers="127.0.0.1:1", group_id="a", transactional_id="b", topics=["in"]) as client:
        options = client.session._options
        settings = client.session._core.settings
        assert settings.is_committed_only
        assert not settings.enable_auto_commit
        assert settings.auto_offset_reset == "earliest"
        assert options.producer.transaction_timeout_ms == 40_000
        assert options.times.session == 45.0
