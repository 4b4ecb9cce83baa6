# SPDX-License-Identifier: Apache-2.0
"""``kcodec consume`` and ``kcodec cat -b`` on a real Apache Kafka, compared with what librdkafka gets of the same
topic."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from typing import Any

import pytest
from cli_runner import Ran, program, run

from kcodec.cli import ExitStatus
from kcodec.client import Admin, Producer
from kcodec.offsets import TopicPartition
from kcodec.testing.kafka import ApacheKafka

# Ahead of the markers: these have the broker's time, and a look-up by time finds them, too. So far ahead that no tests
# in between make up for it, and within the hour that a broker allows (message.timestamp.after.max.ms).
START = time.time_ns() // 1_000_000 + 3_000_000
Row = tuple[int, int, int, bytes | None, bytes | None]


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    """Two partitions of ten records each, a null key, a null value, headers, bytes that are no text; four aborted."""
    name = apache_kafka.create_topic(partitions=2)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, transactional_id=f"write-{name}") as producer:
        for begin in (0, 10, 14):
            with producer.transaction() as transaction:
                for number in range(begin, {0: 10, 10: 14, 14: 24}[begin]):
                    transaction.send(
                        name,
                        None if number == 5 else b"value-%d\xff" % number,
                        key=None if number == 4 else b"k%d" % number,
                        headers={"a": b"1", "b": None} if number == 6 else (),
                        partition=number % 2,
                        timestamp=START + number,
                    )
                if begin == 10:
                    producer.flush()  # what was not sent would be forgotten
                    transaction.abort()
    return name


def command(kafka: ApacheKafka, name: str, *arguments: str) -> Ran:
    return run(name, "-b", kafka.bootstrap_servers, *arguments)


def by_librdkafka(kafka: ApacheKafka, topic: str) -> set[Row]:
    """All committed records, as another client's read_committed consumer gets them."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(2)])
    rows: set[Row] = set()
    ended = 0
    while ended < 2:
        message = consumer.poll(10)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
            ended += 1
        else:
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            rows.add((partition, offset, message.timestamp()[1], message.key(), message.value()))
    consumer.close()
    return rows


def rows_of(ran: Ran) -> set[Row]:
    """Of the format below, in which nothing stands for itself: sizes tell null from empty."""
    rows: set[Row] = set()
    data = ran.data
    while data:
        head, _, data = data.partition(b"|")
        partition, offset, time, key_size, value_size = map(int, head.split())
        key, data = data[: max(key_size, 0)], data[max(key_size, 0) :]
        value, data = data[: max(value_size, 0)], data[max(value_size, 0) :]
        row = partition, offset, time, None if key_size < 0 else key, None if value_size < 0 else value
        assert row not in rows
        rows.add(row)
    return rows


FORMAT = "%p %o %T %K %S|%k%s"


def test_all_of_it_is_what_librdkafka_gets(apache_kafka: ApacheKafka, topic: str) -> None:
    expected = by_librdkafka(apache_kafka, topic)
    assert len(expected) == 20
    for arguments in (("cat",), ("consume", "-e", "-q"), ("consume", "-c", "20")):
        ran = command(apache_kafka, arguments[0], "-t", topic, "-f", FORMAT, *arguments[1:])
        assert (ran.status, ran.err) == (ExitStatus.OK, "")
        assert rows_of(ran) == expected


def place(given: str) -> str:
    """A place with the time of a record, where it is given as "s@+17": the ids of tests do not change."""
    kind, at_time, number = given.partition("@+")
    return f"{kind}@{START + int(number)}" if at_time else given


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        (("-o", "beginning"), [0, 2, 4, 6, 8, 14, 16, 18, 20, 22]),
        (("-o", "3"), [6, 8, 14, 16, 18, 20, 22]),
        (("-o", "-4"), [18, 20, 22]),  # the end is behind a marker
        (("-o", "s@+17"), [18, 20, 22]),
        (("-o", "s@+4", "-o", "e@+8"), [4, 6]),
        (("-o", "2", "-c", "2"), [4, 6]),
        (("-o", "end"), []),
    ],
)
def test_places(apache_kafka: ApacheKafka, topic: str, where: tuple[str, ...], numbers: list[int]) -> None:
    ran = command(apache_kafka, "consume", "-t", topic, "-p", "0", "-e", "-q", "-f", r"%T\n", *map(place, where))
    assert [int(line) - START for line in ran.out.splitlines()] == numbers


@pytest.mark.parametrize("where", ["3", "-4", "s@+17"])
def test_places_of_one_that_follows(apache_kafka: ApacheKafka, topic: str, where: str) -> None:
    """The same places by a consumer, which would wait for more but for -c."""
    options = ("-t", topic, "-p", "0", "-o", place(where), "-f", r"%T\n")
    ended = command(apache_kafka, "consume", "-e", "-q", *options)
    count = len(ended.out.splitlines())
    assert count
    assert command(apache_kafka, "consume", "-c", str(count), *options).out == ended.out


def test_shapes(apache_kafka: ApacheKafka, topic: str) -> None:
    ran = command(apache_kafka, "cat", "-t", topic, "-p", "0", "-o", "2", "-c", "2", "-K", "=", "-Z", "-D", ";")
    assert ran.data == b"NULL=value-4\xff;k6=value-6\xff;"
    line = json.loads(command(apache_kafka, "cat", "-t", topic, "-p", "1", "-o", "2", "-c", "1", "-J").out)
    assert line == {
        "topic": topic,
        "partition": 1,
        "offset": 2,
        "timestamp": START + 5,
        "timestamp_type": "CreateTime",
        "key": "k5",
        "value": None,
        "headers": [],
    }
    ran = command(apache_kafka, "cat", "-t", topic, "-p", "0", "-o", "3", "-c", "1", "-f", r"%t[%p]@%o %h %%\n")
    assert ran.out == f"{topic}[0]@3 a=1,b=NULL %\n"


def test_aborted_records_where_they_are_asked_for(apache_kafka: ApacheKafka, topic: str) -> None:
    ran = command(apache_kafka, "consume", "-t", topic, "-e", "-f", r"%k\n", "-X", "isolation.level=read_uncommitted")
    assert len(ran.out.splitlines()) == 24
    assert f"{topic}-0 at 15, {topic}-1 at 15" in ran.err


def test_internal_topics_say_what_they_hold(apache_kafka: ApacheKafka, topic: str) -> None:
    ran = command(apache_kafka, "cat", "-t", "__transaction_state")
    reported = [json.loads(line) for line in ran.out.splitlines()]
    ours = [one for one in reported if one["key"] == {"transactional_id": f"write-{topic}"}]
    states = [one["value"]["transaction_state"] for one in ours]
    assert states[0] == "Empty"
    assert "CompleteAbort" in states
    raw = command(apache_kafka, "cat", "-t", "__transaction_state", "-c", "1", "--raw")
    assert raw.status is ExitStatus.OK
    assert not raw.data.startswith(b"{")


def test_a_group_goes_on_where_it_stopped(apache_kafka: ApacheKafka, topic: str) -> None:
    """What was printed is committed, and nothing else: also where -c ends in the middle of a batch."""
    group = f"group-{topic}"
    found: list[str] = []
    for count in (3, 9):
        ran = command(apache_kafka, "consume", "-G", group, topic, "-c", str(count), "-f", r"%p-%o\n")
        assert (ran.status, ran.err) == (ExitStatus.OK, "")
        found += ran.out.splitlines()
        assert len(found) == {3: 3, 9: 12}[count]
    ran = command(apache_kafka, "consume", "-G", group, topic, "-e", "-f", r"%p-%o\n")
    found += ran.out.splitlines()
    everything = command(apache_kafka, "cat", "-t", topic, "-f", r"%p-%o\n").out.splitlines()
    assert sorted(found) == sorted(everything)
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        lag = admin.describe_group_lag(group)
        stored = admin.list_group_offsets(group)
    assert {place.partition for place in lag} == {0, 1}
    assert {place: one.offset for place, one in stored.items() if one is not None} == {
        TopicPartition(topic, number): 15 for number in range(2)
    }


def test_stored_offsets_are_begun_at_and_left_alone(apache_kafka: ApacheKafka, topic: str) -> None:
    group = f"stored-{topic}"
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 11})
        options = ("-t", topic, "-p", "0", "-o", "stored", "-X", f"group.id={group}", "-f", r"%o\n")
        assert command(apache_kafka, "consume", "-c", "2", *options).out == "11\n12\n"
        assert command(apache_kafka, "consume", "-e", *options).out == "11\n12\n13\n"
        (stored,) = admin.list_group_offsets(group).values()
    assert stored is not None
    assert stored.offset == 11
    assert "-o stored needs a group" in command(apache_kafka, "consume", "-t", topic, "-o", "stored").err


def test_a_group_with_a_pattern(apache_kafka: ApacheKafka, topic: str) -> None:
    ran = command(apache_kafka, "consume", "-G", f"pattern-{topic}", f"^{topic[:-1]}.$", "-c", "20", "-f", r"%t\n")
    assert set(ran.out.splitlines()) == {topic}


def following(kafka: ApacheKafka, topic: str, **options: Any) -> subprocess.Popen[bytes]:
    started = program("consume", "-b", kafka.bootstrap_servers, "-t", topic, "-f", r"%p-%o\n", **options)
    assert started.stdout is not None
    threading.Timer(30, started.kill).start()
    for _ in range(20):
        assert started.stdout.readline()
    return started


def test_what_comes_is_printed_until_ctrl_c(apache_kafka: ApacheKafka, topic: str) -> None:
    name = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        for _ in range(20):
            producer.send(name, b"before")
        producer.flush()
        with following(apache_kafka, name) as started:
            assert started.stdout is not None
            producer.send(name, b"later").result()
            assert started.stdout.readline() == b"0-20\n"
            started.send_signal(signal.SIGINT)
            assert started.stderr is not None
            assert (started.wait(20), started.stderr.read()) == (ExitStatus.INTERRUPTED, b"kcodec: interrupted\n")


def test_a_closed_pipe_ends_it_quietly(apache_kafka: ApacheKafka, topic: str) -> None:
    name = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        for _ in range(20):
            producer.send(name, b"before")
        producer.flush()
        with following(apache_kafka, name) as started:
            assert started.stdout is not None
            started.stdout.close()
            producer.send(name, b"later").result()
            assert started.stderr is not None
            assert (started.wait(20), started.stderr.read()) == (ExitStatus.BROKEN_PIPE, b"")


def test_a_closed_pipe_ends_it_although_no_record_arrives(apache_kafka: ApacheKafka, topic: str) -> None:
    """`kcodec consume ... | head -3` waited for the next record."""
    name = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        for _ in range(20):
            producer.send(name, b"before")
    with following(apache_kafka, name) as started:
        assert started.stdout is not None and started.stderr is not None
        started.stdout.close()
        assert (started.wait(20), started.stderr.read()) == (ExitStatus.BROKEN_PIPE, b"")


@pytest.mark.parametrize(
    ("call", "reported"),
    [
        ("consume -b localhost:1", "-t TOPIC is missing"),
        ("consume -b localhost:1 orders", "write -t orders; in a group, add -G GROUP"),
        ("consume -b localhost:1 -G billing", "-G GROUP needs TOPICs"),
        ("consume -b localhost:1 -G billing -p 1 orders", "-p cannot be used with -G"),
        ("consume -b localhost:1 -G billing -o 5 orders", "with -G the stored offsets are used"),
        ("consume -b localhost:1 -t orders -o 12a", "unknown offset '12a'"),
        ("consume -b localhost:1 -t orders -c -1", "--count must be at least 0"),
        ("consume -b localhost:1 -t orders -e -X isolation.lvel=x", "did you mean 'isolation_level'?"),
        ("consume -b localhost:1 -t orders -X isolation.lvel=x", "did you mean 'isolation_level'?"),
        ("cat", "name a FILE, or a broker with -b"),
        ("cat -b localhost:1 orders-0", "orders-0: with -b name the topic with -t"),
        ("cat -b localhost:1 -t orders --follow", "--follow is for files"),
    ],
)
def test_wrong_calls(call: str, reported: str) -> None:
    ran = run(*call.split())
    assert ran.status is ExitStatus.ERROR
    assert reported in ran.err


def test_a_topic_that_is_not_there(apache_kafka: ApacheKafka) -> None:
    ran = command(apache_kafka, "consume", "-t", "nowhere", "-X", "default.api.timeout.ms=300")
    assert ran.status is ExitStatus.ERROR
    assert "'nowhere'" in ran.err
