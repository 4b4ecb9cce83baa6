# SPDX-License-Identifier: Apache-2.0
"""``kcodec consume`` in a consumer group, on the embedded broker: what it commits, how it ends, what it reports."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_runner import program, run

from kcodec.broker import Broker
from kcodec.cli import ExitStatus, consume, main
from kcodec.cli.output import Output
from kcodec.client import Admin, Producer
from kcodec.offsets import TopicPartition

ROWS = 20_000


def filled(broker: Broker, rows: int) -> str:
    topic = broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=1 << 20, linger_ms=50) as producer:
        for number in range(rows):
            producer.send(topic, b"value-%d" % number)
    return topic


def committed(broker: Broker, group: str, topic: str) -> int:
    place = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        found = admin.list_group_offsets(group)[place]
    return 0 if found is None else found.offset


class Interrupted(io.BytesIO):
    """Raises in the first write behind `most` bytes."""

    def __init__(self, most: int, error: type[BaseException]) -> None:
        super().__init__()
        self.most, self.error = most, error

    def write(self, data: object) -> int:
        if len(self.getvalue()) > self.most:
            raise self.error
        return super().write(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [BrokenPipeError, KeyboardInterrupt])
def test_an_interrupted_write_commits_the_records_that_were_printed(
    kcodec_broker: Broker, error: type[BaseException]
) -> None:
    """If the reader closes a pipe, nothing of the batch is committed: the reader may have got none of its records."""
    topic = filled(kcodec_broker, ROWS)
    stdout = Interrupted(50_000, error)
    call = ["consume", "-b", kcodec_broker.bootstrap_servers, "-G", "billing", topic]
    try:
        assert main(call, Output(stdout, io.StringIO())) is ExitStatus.BROKEN_PIPE
    except KeyboardInterrupt:
        assert error is KeyboardInterrupt
    printed = stdout.getvalue().count(b"\n")
    assert 1000 < printed < ROWS
    expected = printed if error is KeyboardInterrupt else 0
    assert committed(kcodec_broker, "billing", topic) == expected
    ran = run(*call, "-c", "1")
    assert ran.out == f"value-{expected}\n"


def test_sigterm_during_a_write_commits_the_records_that_the_pipe_took(kcodec_broker: Broker) -> None:
    topic = filled(kcodec_broker, ROWS)
    with program("consume", "-b", kcodec_broker.bootstrap_servers, "-G", "billing", topic) as started:
        assert started.stdout is not None
        first = started.stdout.readline()
        time.sleep(0.5)  # until the pipe is full
        started.send_signal(signal.SIGTERM)
        assert started.wait(20) == ExitStatus.INTERRUPTED
        printed = (first + started.stdout.read()).count(b"\n")
    assert 1000 < printed < ROWS
    assert committed(kcodec_broker, "billing", topic) == printed


@pytest.mark.parametrize("topics", [["nosuch"], ["orders", "nosuch"]])
def test_exit_at_the_end_reports_a_topic_that_does_not_exist(topics: list[str]) -> None:
    with Broker(auto_create_topics=False) as broker:
        broker.create_topic("orders", partitions=1)
        short = ("-X", "default.api.timeout.ms=500")
        ran = run("consume", "-b", broker.bootstrap_servers, "-G", "billing", *topics, "-e", *short)
    assert ran.status is ExitStatus.ERROR
    assert "nosuch" in ran.err


def test_exit_at_the_end_reports_a_pattern_without_topics(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "UNASSIGNED_SECONDS", 1.0)
    ran = run("consume", "-b", kcodec_broker.bootstrap_servers, "-G", "billing", "^nosuch.*", "-e")
    assert ran.status is ExitStatus.ERROR
    assert "nosuch" in ran.err


def test_exit_at_the_end_ends_a_member_without_partitions(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "UNASSIGNED_SECONDS", 1.0)
    topic = filled(kcodec_broker, 3)
    servers = kcodec_broker.bootstrap_servers
    with program("consume", "-b", servers, "-G", "billing", topic, *_static_member("1")) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"value-0\n"
        try:
            ran = run("consume", "-b", servers, "-G", "billing", topic, "-e", *_static_member("2"))
        finally:
            other.kill()
    assert (ran.status, ran.out) == (ExitStatus.OK, "")
    assert ran.err == "kcodec: group 'billing' has no partition for this member\n"


def _static_member(name: str) -> tuple[str, ...]:
    """Return options with which the member of the lowest name gets the only partition, as the range assignor sorts
    static members by name."""
    return ("-X", f"group.instance.id={name}", "-X", "partition.assignment.strategy=range")


def test_stored_offsets_that_are_missing_are_reported(kcodec_broker: Broker) -> None:
    topic = filled(kcodec_broker, 3)
    group = ("-X", "group.id=billing")
    ran = run("consume", "-b", kcodec_broker.bootstrap_servers, "-t", topic, "-o", "stored", "-c", "3", *group)
    assert ran.out.splitlines() == ["value-0", "value-1", "value-2"]
    reported = f"kcodec: group 'billing' has no committed offset for {topic}-0; reading from the beginning\n"
    assert ran.err == reported


def test_the_group_of_the_call_overrides_that_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "shared.properties"
    file.write_text("group.id=other\n")
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        broker.seed("orders", [b"1"])
        ran = run("consume", "-b", broker.bootstrap_servers, "-F", file, "-G", "billing", "-c", "1", "orders")
        assert (ran.status, ran.out) == (ExitStatus.OK, "1\n")
        assert list(admin.list_groups()) == ["billing"]


def test_a_file_does_not_make_a_reader_without_a_group_commit(tmp_path: Path) -> None:
    """It may be that of an application, whose offsets would move."""
    file = tmp_path / "shared.properties"
    file.write_text("group.id=billing\nenable.auto.commit=true\n")
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        broker.seed("orders", [b"%d" % number for number in range(20)])
        admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 3})
        for start in ((), ("-o", "stored")):
            ran = run("consume", "-b", broker.bootstrap_servers, "-F", file, "-t", "orders", "-c", "10", *start)
            assert (ran.status, ran.out.count("\n")) == (ExitStatus.OK, 10)
            assert committed(broker, "billing", "orders") == 3


@contextmanager
def traffic(broker: Broker, topic: str) -> Iterator[None]:
    """Write records into both partitions of a topic, at intervals shorter than the command waits for records."""
    is_over = threading.Event()

    def write() -> None:
        with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0) as producer:
            while not is_over.wait(0.02):
                for partition in range(2):
                    producer.send(topic, b"later", partition=partition)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    "arguments",
    [
        ("-G", "billing", "orders"),
        ("-G", "billing", "^ord.*"),
        ("-t", "orders", "-o", "stored", "-X", "group.id=billing"),
    ],
)
def test_exit_at_the_end_ends_while_the_topic_has_traffic(kcodec_broker: Broker, arguments: tuple[str, ...]) -> None:
    servers = kcodec_broker.bootstrap_servers
    kcodec_broker.create_topic("orders", partitions=2)
    kcodec_broker.seed("orders", [b"%d" % number for number in range(100)], partition=0)
    producer = Producer(bootstrap_servers=servers, transactional_id="writer")
    with producer, producer.transaction() as transaction:
        transaction.send("orders", b"before a marker", partition=1)
    with traffic(kcodec_broker, "orders"):
        before = kcodec_broker.end_offset("orders", 0)
        with program("consume", "-b", servers, "-e", "-q", "-f", r"%p %o\n", *arguments) as started:
            try:
                out, err = started.communicate(timeout=30)
            finally:
                started.kill()
        time.sleep(0.2)
        after = kcodec_broker.end_offset("orders", 0)
    assert (started.returncode, err) == (ExitStatus.OK, b"")
    printed = [line.split() for line in out.decode().splitlines()]
    offsets = [int(offset) for partition, offset in printed if partition == "0"]
    assert offsets == list(range(len(offsets)))
    assert before <= len(offsets) < after
    if arguments[0] == "-G":
        assert committed(kcodec_broker, "billing", "orders") == len(offsets)


def test_exit_at_the_end_prints_nothing_that_was_written_later(kcodec_broker: Broker) -> None:
    """Records that arrive between the start of the command and its first poll are in the same batch as earlier ones."""
    kcodec_broker.seed("orders", [b"1", b"2"])
    rule = kcodec_broker.faults.add("Fetch", delay_ms=2000, count=1)
    call = ("consume", "-b", kcodec_broker.bootstrap_servers, "-e", "-G", "billing", "orders")
    with program(*call) as started:
        deadline = time.monotonic() + 20
        while not rule.hits and time.monotonic() < deadline:
            time.sleep(0.01)
        kcodec_broker.seed("orders", [b"3"])
        out, _ = started.communicate(timeout=30)
    assert out == b"1\n2\n"
    assert committed(kcodec_broker, "billing", "orders") == 2


def test_stored_offsets_with_an_end_by_time(kcodec_broker: Broker) -> None:
    kcodec_broker.create_topic("orders", partitions=2)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for number in range(8):
            producer.send("orders", b"%d" % number, partition=0, timestamp=1000 * number)
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        admin.alter_group_offsets("billing", {TopicPartition("orders", number): 0 for number in range(2)})
        admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 2})
    call = ("-b", kcodec_broker.bootstrap_servers, "-t", "orders", "-X", "group.id=billing", "-o", "stored")
    with program("consume", *call, "-o", "e@5000") as started:
        try:
            out, err = started.communicate(timeout=20)
        finally:
            started.kill()
    assert (started.returncode, out, err) == (ExitStatus.OK, b"2\n3\n4\n", b"")


def test_an_offset_beyond_the_end_of_a_partition_is_reported(kcodec_broker: Broker) -> None:
    """The command follows new records there. kcat does the same."""
    kcodec_broker.create_topic("orders", partitions=2)
    kcodec_broker.seed("orders", [b"a%d" % number for number in range(8)], partition=0)
    kcodec_broker.seed("orders", [b"b%d" % number for number in range(3)], partition=1)
    call = ("consume", "-b", kcodec_broker.bootstrap_servers, "-t", "orders", "-o", "5")
    with program(*call, "-c", "4") as started:
        assert started.stdout is not None
        lines = [started.stdout.readline() for _ in range(3)]
        kcodec_broker.seed("orders", [b"b3"], partition=1)
        out, err = started.communicate(timeout=20)
    assert ([*lines, out], started.returncode) == ([b"a5\n", b"a6\n", b"a7\n", b"b3\n"], ExitStatus.OK)
    assert err == b"kcodec: orders-1: offset 5 is beyond the end of the log, 3; reading from the end\n"
    ran = run(*call, "-e")
    assert "orders-1: start offset 5 is not in the log" in ran.err


def test_an_offset_of_an_open_transaction_is_in_the_log(kcodec_broker: Broker) -> None:
    kcodec_broker.create_topic("orders", partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="writer") as producer:
        producer.begin_transaction()
        for number in range(6):
            producer.send("orders", b"%d" % number)
        producer.flush()
        call = ("consume", "-b", kcodec_broker.bootstrap_servers, "-t", "orders", "-o", "5", "-c", "1")
        with program(*call) as started:
            time.sleep(1)
            producer.commit_transaction()
            out, err = started.communicate(timeout=20)
    assert (out, err) == (b"5\n", b"")


def corrupt_topic(broker: Broker) -> None:
    """Write three batches of five records. The broker returns the first one with a wrong CRC."""
    broker.create_topic("orders", partitions=1)
    for begin in (0, 5, 10):
        broker.seed("orders", [b"value-%d" % number for number in range(begin, begin + 5)])
    path = broker.log_directory / "orders-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[70] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-t", "orders", "-e"),
        ("-t", "orders", "-c", "10"),
        ("-G", "a", "-e", "orders"),
        ("-G", "b", "-c", "10", "orders"),
    ],
)
def test_skipped_batches_end_with_exit_status_1(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Broker(data_dir=tmp_path) as broker:
        corrupt_topic(broker)
        ran = run("consume", "-b", broker.bootstrap_servers, "--on-error", "skip", *arguments)
    assert ran.out.splitlines() == [f"value-{number}" for number in range(5, 15)]
    assert ran.status is ExitStatus.FINDINGS
    assert "kcodec: corrupt batches skipped: 1\n" in ran.err


@pytest.mark.parametrize("name", ["consume", "cat"])
def test_records_before_an_error_of_the_broker_are_printed(kcodec_broker: Broker, name: str) -> None:
    kcodec_broker.create_topic("orders", partitions=2)
    for partition in range(2):
        kcodec_broker.seed("orders", [b"%d" % number for number in range(50)], partition=partition)
    kcodec_broker.faults.add("Fetch", topic="orders", partition=1, error="CORRUPT_MESSAGE")
    short = ("-X", "default.api.timeout.ms=1500")
    ran = run(name, "-e", "-b", kcodec_broker.bootstrap_servers, "-t", "orders", *short)
    assert ran.status is ExitStatus.ERROR
    assert ran.out.count("\n") == 50
    assert "orders-1" in ran.err
