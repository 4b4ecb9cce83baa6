# SPDX-License-Identifier: Apache-2.0
"""The group transact session on a real broker, point by point where the broker can make the situation; the rest of the
checklist is in test_session_checklist.py. What is written is read off the broker's disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from producer_faces import stored
from session_faces import BOTH_FACES, Looped, Threaded

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import Admin, Producer
from kcodec.errors import (
    AbortableTransactionError,
    ProducerFencedError,
    TransactionStateError,
    UnknownOutcomeError,
)
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy

Make = Callable[..., Any]
# Each face with one of the protocols: what the two have to do with each other is the same flow.
PAIRS = pytest.mark.parametrize(("face", "protocol"), [(Threaded, "classic"), (Looped, "consumer")])
SECONDS = 20.0
PARTITIONS = 2


class Job:
    """A topic with numbered records, another for their copies, a group."""

    def __init__(self, kafka: ApacheKafka, count: int = 20, servers: str = "") -> None:
        self.kafka = kafka
        self.servers = servers or kafka.bootstrap_servers
        self.source = kafka.create_topic(partitions=PARTITIONS)
        self.target = kafka.create_topic(partitions=PARTITIONS)
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.count = 0
        self.seed(count)

    def seed(self, count: int) -> None:
        """That many records more."""
        with Producer(bootstrap_servers=self.kafka.bootstrap_servers) as producer:
            for number in range(self.count, self.count + count):
                producer.send(self.source, b"%d" % number, partition=number % PARTITIONS)
        self.count += count

    def options(self, name: str = "", **options: Any) -> dict[str, Any]:
        """Of a session."""
        if options.get("group_protocol", "classic") == "classic":
            options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200, **options}
        return {
            "bootstrap_servers": self.servers,
            "group_id": self.group,
            "transactional_id": f"{self.group}-{name}",
            "topics": [self.source],
            "linger_ms": 0,
            "max_block_ms": 15_000,
            "request_timeout_ms": 5_000,
            **options,
        }

    def copy(self, txn: Any, timeout: float = 1.0) -> int:
        """One poll and what it makes; how many there were."""
        records = txn.poll(timeout)
        for record in records:
            txn.send(self.target, record.value, partition=record.partition)
        return len(records)

    def copy_all(self, *sessions: Any) -> None:
        """Until all is copied."""
        deadline = time.monotonic() + SECONDS
        while (found := sum(map(len, self.copies()))) < self.count:
            assert time.monotonic() < deadline, f"{found} of {self.count}"
            for session in sessions:
                with session.transaction() as txn:
                    self.copy(txn, 0.3)

    def copies(self) -> list[list[int]]:
        """What a read_committed reader gets, by partition."""
        return [
            [
                int(record.value or b"")
                for record in stored(self.kafka, self.target, partition).records("read_committed")
            ]
            for partition in range(PARTITIONS)
        ]

    def check(self) -> None:
        """Every record once, in order."""
        assert self.copies() == [list(range(start, self.count, PARTITIONS)) for start in range(PARTITIONS)]

    def committed(self) -> dict[TopicPartition, int]:
        """The group's offsets."""
        with Admin(bootstrap_servers=self.kafka.bootstrap_servers) as admin:
            found = admin.list_group_offsets(self.group)
        return {partition: value.offset for partition, value in found.items() if value is not None}


def first_poll(session: Any, job: Job) -> None:
    """Have it join, and copy what there is."""
    deadline = time.monotonic() + SECONDS
    while not session.assignment():
        assert time.monotonic() < deadline
        with session.transaction() as txn:
            job.copy(txn, 0.2)


@contextmanager
def watched(face: Any) -> Iterator[list[str]]:
    """The requests of a session, in the order they were sent, heartbeats of the background left out."""
    found: list[str] = []

    def see(trace: Any) -> None:
        if trace.kind == "request":
            found.append(type(trace.message).__name__.removesuffix("Request"))

    watchers = face.session._client.network.watchers
    watchers.append(see)
    yield found
    watchers.remove(see)


# --------------------------------------------------------------------------------------------------------- one session


@PAIRS
def test_all_is_copied_once_and_the_lag_is_0(apache_kafka: ApacheKafka, face: Make, protocol: str) -> None:
    job = Job(apache_kafka, 40)
    with face(**job.options(group_protocol=protocol)) as session:
        job.copy_all(session)
        job.seed(20)
        job.copy_all(session)
    job.check()
    ends = {TopicPartition(job.source, number): stored(apache_kafka, job.source, number) for number in (0, 1)}
    assert job.committed() == {partition: log.log_end_offset for partition, log in ends.items()}


@BOTH_FACES
def test_c02_the_order_on_the_wire(apache_kafka: ApacheKafka, face: Make) -> None:
    job = Job(apache_kafka)
    with face(**job.options(heartbeat_interval_ms=5_000, session_timeout_ms=20_000)) as session:
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


@BOTH_FACES
def test_c11_what_was_aborted_comes_again(apache_kafka: ApacheKafka, face: Make) -> None:
    job = Job(apache_kafka)
    with face(**job.options()) as session:
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


# -------------------------------------------------------------------------------------------------------- the group


@PAIRS
def test_c07_a_rebalance_that_has_begun_lets_the_block_commit(
    apache_kafka: ApacheKafka, face: Make, protocol: str
) -> None:
    job = Job(apache_kafka)
    with face(**job.options("a", group_protocol=protocol)) as first:
        first_poll(first, job)
        job.seed(10)
        with first.transaction() as txn:
            copied = job.copy(txn, 10.0)
            assert copied
            second = face(**job.options("b", group_protocol=protocol))
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


@BOTH_FACES
def test_c01_a_rebalance_in_a_poll_aborts_what_the_block_has_read(apache_kafka: ApacheKafka, face: Make) -> None:
    job = Job(apache_kafka)
    told: list[str] = []

    async def note(what: str) -> None:  # the asyncio session takes coroutine functions, too
        told.append(what)

    tell: Callable[[str], Any] = note if face is Looped else told.append
    options = {
        "on_revoked": lambda partitions: tell("revoked"),
        "on_assigned": lambda partitions: tell("assigned"),
        "partition_assignment_strategy": "range",
    }
    with face(**job.options("a", **options)) as first:
        first_poll(first, job)
        assert told == ["assigned"]
        job.seed(10)
        before = job.committed()
        with first.transaction() as txn:
            assert job.copy(txn, 10.0)
            second = face(**job.options("b", partition_assignment_strategy="range"))
            deadline = time.monotonic() + SECONDS
            while not txn.is_doomed:
                assert time.monotonic() < deadline
                txn.poll(0.1)
            txn.send(job.target, b"-1", partition=0)
        assert txn.committed is False
        assert "revoked" in told
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


@PAIRS
def test_c10_pending_offsets_are_waited_for_and_raise_nothing(
    apache_kafka: ApacheKafka, face: Make, protocol: str
) -> None:
    job = Job(apache_kafka)
    offsets = {TopicPartition(job.source, number): 4 for number in range(PARTITIONS)}
    with Producer(bootstrap_servers=job.servers, transactional_id=f"{job.group}-other") as other:
        with other.transaction() as txn:
            txn.send_offsets(offsets, ConsumerGroupMetadata(job.group))
            with face(**job.options(group_protocol=protocol)) as session:
                begin = time.monotonic()
                while time.monotonic() - begin < 0.8:
                    with session.transaction() as own:
                        assert own.poll(0.2) == []
                    assert own.committed
                assert session.assignment()
        assert txn.committed
        with face(**job.options(group_protocol=protocol)) as session, session.transaction() as own:
            assert own.poll(10.0)[0].offset == 4


# ------------------------------------------------------------------------------------------------------- the producer


@pytest.mark.parametrize(("face", "fault"), [(Threaded, "before the broker"), (Looped, "after the broker")])
def test_c13_an_unknown_outcome_and_the_committed_offsets_tell_the_truth(
    apache_kafka: ApacheKafka, face: Make, fault: str
) -> None:
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        job = Job(apache_kafka, servers=proxy.bootstrap_servers)
        with face(**job.options(request_timeout_ms=500, max_block_ms=1_200)) as session:
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


@BOTH_FACES
def test_c19_a_record_that_fails_blocks_the_commit(apache_kafka: ApacheKafka, face: Make) -> None:
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        job = Job(apache_kafka, servers=proxy.bootstrap_servers)
        with face(**job.options()) as session:
            first_poll(session, job)
            job.seed(6)
            proxy.on_request("Produce").answer(error=87)
            with pytest.raises(AbortableTransactionError, match=job.target), session.transaction() as txn:
                assert job.copy(txn, 10.0)
            assert txn.committed is False
            job.copy_all(session)
    job.check()


@BOTH_FACES
def test_c21_c22_who_takes_the_id_over_fences_who_had_it(apache_kafka: ApacheKafka, face: Make) -> None:
    job = Job(apache_kafka)
    with face(**job.options("a")) as zombie:
        first_poll(zombie, job)
        job.seed(6)
        with pytest.raises(ProducerFencedError), zombie.transaction() as txn:
            assert job.copy(txn, 10.0)
            with Producer(bootstrap_servers=job.servers, transactional_id=f"{job.group}-a") as other:
                other.init_transactions()
        assert txn.committed is False
        with pytest.raises(ProducerFencedError, match="took over"), zombie.transaction():
            raise AssertionError("not to be reached")
    with face(**job.options("b")) as other:
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


OLD = {"offset_fetch_highest_version": 6, "txn_offset_commit_highest_version": 2}


def test_c09_as_with_brokers_before_kip447(apache_kafka: ApacheKafka, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(apache_kafka)
    times = {"session_timeout_ms": 20_000, "transaction_timeout_ms": 5_000, "request_timeout_ms": 4_000}
    with Threaded(**job.options(**OLD, **times)) as session:
        first_poll(session, job)
        job.seed(6)
        with watched(session) as sent, session.transaction() as txn:
            assert job.copy(txn, 10.0)
        committed = time.monotonic()
        assert txn.committed
        assert "AddOffsetsToTxn" in sent, "the old flow"
        with session.transaction() as txn:
            txn.send(job.target, b"0", partition=0)
            begun = time.monotonic() - committed
            txn.abort()
        assert begun < 0.3, "begin and send do not wait"
        assert session.session._flows.end_gate.is_held
        session.session.close()
        assert 0.4 < time.monotonic() - committed < 3.0, "what gives the partitions away does"
    job.check()
    assert sum("matter of timing" in record.message for record in caplog.records) == 1


def test_c23_times_that_are_not_safe_are_refused_there(apache_kafka: ApacheKafka) -> None:
    job = Job(apache_kafka, 1)
    with (
        Threaded(**job.options(**OLD, session_timeout_ms=20_000)) as session,
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
        ({"transacton_timeout_ms": 5}, TypeError, "did you mean 'transaction_timeout_ms'"),
        ({"transaction_scan_interval_ms": -1}, ValueError, "transaction_scan_interval_ms"),
        ({"topics": []}, ValueError, "topics is empty"),
        ({"pattern": "x.*"}, ValueError, "one of the two"),
        ({"pattern": "x(", "topics": None}, ValueError, "no regular expression"),
    ],
)
@BOTH_FACES
def test_c27_what_is_not_safe_is_refused(
    options: dict[str, Any], error: type[Exception], text: str, face: Make
) -> None:
    given = {"bootstrap_servers": "127.0.0.1:1", "group_id": "a", "transactional_id": "b", "topics": ["in"]}
    with pytest.raises(error, match=text):
        face(**(given | options))


def test_c27_the_defaults_are_safe() -> None:
    with Threaded(bootstrap_servers="127.0.0.1:1", group_id="a", transactional_id="b", topics=["in"]) as face:
        options = face.session._options
        settings = face.session._core.settings
        assert settings.is_committed_only
        assert not settings.enable_auto_commit
        assert settings.auto_offset_reset == "earliest"
        assert options.producer.transaction_timeout_ms == 40_000
        assert options.times.session == 45.0
