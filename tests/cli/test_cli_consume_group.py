# SPDX-License-Identifier: Apache-2.0
"""``kcodec consume`` in a consumer group, on the embedded broker: what it commits, how it ends, what it reports."""

from __future__ import annotations

import io
import signal
import time
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
