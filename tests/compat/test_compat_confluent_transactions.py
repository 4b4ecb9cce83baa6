# SPDX-License-Identifier: Apache-2.0
"""Exactly-once programs with the clients of confluent_kafka and of kcodec.compat.confluent, on the embedded broker: the
errors of transaction calls, callbacks that fail, refused records, and rebalances during `consume`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException
from confluent_kafka import TopicPartition as Place

import kcodec.compat.confluent as facade
from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Consumer
from kcodec.compat._confluent_producer import ReportingProducer

SECONDS = 15.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(transaction_timeout_scan_ms=50, group_min_session_timeout_ms=100) as found:
        yield found


@pytest.fixture(params=[confluent_kafka, facade], ids=["confluent", "kcodec"])
def clients(request: pytest.FixtureRequest) -> Any:
    """The module with the classes Producer and Consumer."""
    return request.param


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(partitions=2)


@pytest.fixture
def producer(clients: Any, broker: Broker, topic: str) -> Iterator[Any]:
    """A transactional producer with an open transaction."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "linger.ms": 0}
    found = clients.Producer({**settings, "socket.timeout.ms": 1000})
    found.init_transactions(SECONDS)
    found.begin_transaction()
    found.produce(topic, b"first", partition=0)
    assert found.flush(SECONDS) == 0
    yield found
    with contextlib.suppress(KafkaException):  # librdkafka raises a fatal error again
        found.close()


def write(broker: Broker, topic: str, numbers: range, count: int = 2) -> None:
    """Write one message for each number, to `count` partitions in turn."""
    with facade.Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in numbers:
            producer.produce(topic, b"%d" % number, partition=number % count)


def committed(broker: Broker, topic: str) -> list[bytes]:
    """Return the values that a read_committed consumer gets."""
    found: list[bytes] = []
    partitions = [TopicPartition(topic, number) for number in range(2)]
    with Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + SECONDS
        while any(consumer.position(one) < ends[one] for one in partitions):
            assert time.monotonic() < deadline
            found += [bytes(record.value or b"") for record in consumer.poll(0.2)]
    return sorted(found)


def flags_of(call: Callable[[], Any]) -> tuple[str, bool, bool, bool]:
    """Return the name of the error of a call, and whether it is fatal, retriable, or requires an abort."""
    with pytest.raises(KafkaException) as raised:
        call()
    error = raised.value.args[0]
    return error.name(), error.fatal(), error.retriable(), error.txn_requires_abort()


RETRIABLE = ("_TIMED_OUT", False, True, False)


def test_a_commit_without_a_response_is_repeated(broker: Broker, topic: str, producer: Any) -> None:
    """The error is retriable, because programs repeat a call only then."""
    broker.faults.add("EndTxn", drop="before")
    assert flags_of(lambda: producer.commit_transaction(2)) == RETRIABLE
    broker.faults.clear()
    producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == [b"first"]


def test_an_abort_without_a_response_is_repeated(broker: Broker, topic: str, producer: Any) -> None:
    """The second call continues the abort, instead of raising _STATE."""
    for api in ("EndTxn", "InitProducerId"):
        broker.faults.add(api, drop="before")
    for _ in range(2):
        assert flags_of(lambda: producer.abort_transaction(2)) == RETRIABLE
    broker.faults.clear()
    producer.abort_transaction(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"second", partition=0)
    producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == [b"second"]


@pytest.mark.parametrize("kind", [TypeError, ValueError, KeyError])
@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_an_exception_of_a_callback_is_raised_unchanged(
    broker: Broker, topic: str, producer: Any, end: str, kind: type[Exception]
) -> None:
    """It is not converted to a KafkaException, and the transaction ends nevertheless."""
    error = kind("of the program")

    def fail(*_: Any) -> None:
        raise error

    producer.produce(topic, b"second", partition=0, callback=fail)
    with pytest.raises(kind) as raised:
        getattr(producer, end)(SECONDS)
    assert raised.value is error
    producer.begin_transaction()
    producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == ([b"first", b"second"] if end == "commit_transaction" else [])


@pytest.mark.parametrize("clients", [facade], ids=["kcodec"], indirect=True)
def test_begin_transaction_calls_no_callbacks(broker: Broker, topic: str, producer: Any) -> None:
    """If a callback raised an exception there, the program could not know that the transaction has begun."""
    calls: list[bytes] = []

    def fail(_: Any, message: Any) -> None:
        calls.append(message.value())
        raise KeyError(len(calls))

    for value in (b"second", b"third"):
        producer.produce(topic, value, partition=0, callback=fail)
    with pytest.raises(KeyError):
        producer.commit_transaction(SECONDS)
    before = len(calls)
    producer.begin_transaction()
    assert len(calls) == before
    while len(calls) < 2:
        with pytest.raises(KeyError):
            producer.poll(0)
    producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("is_automatic", [False, True], ids=["commit", "automatic"])
def test_a_rebalance_in_consume_repeats_no_message(
    clients: Any, broker: Broker, topic: str, strategy: str, is_automatic: bool
) -> None:
    """If `consume` returned messages of a revoked partition, the next owner would get them again. A transaction with
    the results and the positions of the assigned partitions would then write results twice."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic}
    settings |= {"auto.offset.reset": "earliest"}
    settings |= {"heartbeat.interval.ms": 100, "session.timeout.ms": 3000, "partition.assignment.strategy": strategy}
    settings |= {"enable.auto.commit": is_automatic, "auto.commit.interval.ms": 100}
    first, second = clients.Consumer(settings), clients.Consumer(settings)
    assigned = threading.Event()
    revoked: list[Any] = []

    def revoke(consumer: Any, places: list[Any]) -> None:
        if not thread.is_alive():
            return
        revoked.extend(one.offset for one in consumer.position(places))
        if not is_automatic:
            with pytest.raises(KafkaException, match="No offset stored"):
                consumer.commit(asynchronous=False)

    write(broker, topic, range(10))
    first.subscribe([topic], on_assign=lambda *_: assigned.set(), on_revoke=revoke)
    found: list[Any] = []
    others: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(first.consume(15, 2 * SECONDS)))
    thread.start()
    assert assigned.wait(SECONDS)
    time.sleep(1)  # the call takes the ten messages, and waits for more
    second.subscribe([topic])
    deadline = time.monotonic() + SECONDS
    while not revoked or not second.assignment():
        assert time.monotonic() < deadline
        others += [message for message in [second.poll(0.1)] if message is not None]
    assert set(revoked) == {OFFSET_INVALID}
    write(broker, topic, range(10, 30))
    thread.join()
    while len(others) < 15:
        assert time.monotonic() < deadline
        others += [message for message in [second.poll(0.1)] if message is not None]
    assert sorted(int(message.value()) for message in [*found, *others]) == list(range(30))
    second.close()
    first.close()


def test_automatic_commits_leave_out_messages_of_a_running_consume(clients: Any, broker: Broker, topic: str) -> None:
    """Otherwise, no member would get these messages if the program is killed before `consume` returns."""
    write(broker, topic, range(4), count=1)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = clients.Consumer({**settings, "auto.commit.interval.ms": 100})
    consumer.subscribe([topic])
    place = Place(topic, 0)

    def committed_offset() -> Any:
        with facade.Consumer(settings) as other:
            return other.committed([place], SECONDS)[0].offset

    assert [message.offset() for message in consumer.consume(2, SECONDS)] == [0, 1]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(consumer.consume(100, 3)))
    thread.start()
    time.sleep(1.5)
    assert committed_offset() == 2
    thread.join()
    assert [message.offset() for message in found] == [2, 3]
    consumer.close()
    assert committed_offset() == 4


def test_a_refused_record_does_not_prevent_the_commit(broker: Broker, topic: str, producer: Any) -> None:
    """The program gets the error from `produce`, and may send the record to another topic."""

    def produce(value: bytes, partition: int) -> Callable[[], Any]:
        return lambda: producer.produce(topic, value, partition=partition)

    assert flags_of(produce(bytes(2_000_000), 0)) == ("MSG_SIZE_TOO_LARGE", False, False, False)
    assert flags_of(produce(b"x", 9)) == ("_UNKNOWN_PARTITION", False, False, False)
    producer.produce(topic, b"second", partition=1)
    producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == [b"first", b"second"]


def test_a_commit_continues_after_a_timeout(broker: Broker, topic: str, producer: Any) -> None:
    """A program that repeats the call while the error is retriable commits in the end."""
    broker.faults.add("Produce", delay_ms=1500, count=1)
    producer.produce(topic, b"second", partition=0)
    for _ in range(2):
        assert flags_of(lambda: producer.commit_transaction(0.3)) == RETRIABLE
    producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == [b"first", b"second"]


@pytest.mark.parametrize("clients", [facade], ids=["kcodec"], indirect=True)
def test_an_abort_continues_after_a_timeout(broker: Broker, topic: str, producer: Any) -> None:
    """The abort waits for a record in flight. The error of the timeout is retriable and does not require an abort,
    because programs repeat a call only if its error is retriable. In librdkafka, the second call sometimes times out,
    too."""
    broker.faults.add("Produce", delay_ms=1500, count=1)
    producer.produce(topic, b"second", partition=0)
    producer.poll(0.2)  # the record is in flight
    assert flags_of(lambda: producer.abort_transaction(0.3)) == RETRIABLE
    producer.abort_transaction(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"third", partition=0)
    producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == [b"third"]


@pytest.mark.parametrize("clients", [facade], ids=["kcodec"], indirect=True)
def test_a_commit_without_a_timeout_continues_after_max_block(
    broker: Broker, topic: str, producer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReportingProducer, "max_block", 0.3)
    broker.faults.add("Produce", delay_ms=1000, count=1)
    producer.produce(topic, b"second", partition=0)
    assert flags_of(producer.commit_transaction) == RETRIABLE
    monkeypatch.undo()
    producer.commit_transaction()
    assert committed(broker, topic) == [b"first", b"second"]


def test_a_timeout_may_be_any_number(clients: Any, broker: Broker) -> None:
    with clients.Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "any"}) as producer:
        producer.init_transactions(Fraction(15))
        producer.begin_transaction()
        producer.commit_transaction(Fraction(15))


def test_other_calls_are_refused_until_a_commit_is_repeated(broker: Broker, topic: str, producer: Any) -> None:
    """The commit has not reached the coordinator, so another call would abort the transaction."""
    broker.faults.add("EndTxn", drop="before")
    assert flags_of(lambda: producer.commit_transaction(2)) == RETRIABLE
    broker.faults.clear()
    for call in (producer.begin_transaction, lambda: producer.abort_transaction(SECONDS)):
        assert flags_of(call) == ("_CONFLICT", False, True, False)
    producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == [b"first"]


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("TxnOffsetCommit", "GROUP_AUTHORIZATION_FAILED"),
        ("Produce", "TOPIC_AUTHORIZATION_FAILED"),
        ("EndTxn", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ],
)
def test_a_missing_permission_requires_an_abort_or_is_fatal(
    clients: Any, broker: Broker, topic: str, producer: Any, api: str, code: str
) -> None:
    """The flags of the error show a program whether an abort is enough or whether it must end."""
    broker.faults.add(api, error=code)
    expected = (code, api == "EndTxn", False, api != "EndTxn")
    if api == "TxnOffsetCommit":
        with clients.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic}) as consumer:
            metadata = consumer.consumer_group_metadata()
        offsets = [Place(topic, 0, 1)]
        assert flags_of(lambda: producer.send_offsets_to_transaction(offsets, metadata, SECONDS)) == expected
    elif api == "Produce":
        producer.produce(topic, b"second", partition=0)
    assert flags_of(lambda: producer.commit_transaction(SECONDS)) == expected
    broker.faults.clear()
    assert flags_of(producer.begin_transaction) == expected
    if api != "EndTxn":
        producer.abort_transaction(SECONDS)
        producer.begin_transaction()
        producer.commit_transaction(SECONDS)
        assert committed(broker, topic) == []
