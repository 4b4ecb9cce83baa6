# SPDX-License-Identifier: Apache-2.0
"""``kcodec restore`` on a real Apache Kafka: what was committed in a log directory is there again, each record once."""

from __future__ import annotations

import shutil
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Ran, long_partition, program, run
from log_files import ABORT, COMMIT, data, marker, partition, plain

import kcodec
from kcodec.broker import Broker
from kcodec.cli import ExitStatus
from kcodec.client import Admin, NewTopic, Producer
from kcodec.log import Log
from kcodec.testing.kafka import ApacheKafka

Records = dict[int, list[tuple[Any, ...]]]
LEFT_OUT = "kcodec: internal topics of Kafka left out: __consumer_offsets\n"


@pytest.fixture
def name() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def backup(tmp_path: Path, name: str) -> Path:
    """A log directory: two partitions with committed, aborted and open transactions, and an internal topic."""
    folder = tmp_path / "backup"
    batches = [
        plain(0),
        data(1, 3),
        data(2, 5),
        marker(ABORT, 2, 7),
        plain(8),
        marker(COMMIT, 1, 11),
        data(3, 12),
        plain(14),
    ]
    partition(folder, batches, name=f"{name}-0")
    partition(folder, [plain(100), plain(103)], [plain(110, compression="zstd")], name=f"{name}-1")
    partition(folder, [plain(0)], name="__consumer_offsets-3")
    return folder


def committed(folder: Path, name: str) -> Records:
    found: Records = {}
    for path in sorted(folder.glob(f"{name}-*")):
        log = kcodec.open(path)
        assert isinstance(log, Log)
        assert log.partition is not None
        found[log.partition] = [
            (one.timestamp, one.key, one.value, one.headers) for one in log.records("read_committed")
        ]
    return found


def there(kafka: ApacheKafka, topic: str) -> Records:
    found: Records = {}
    with kcodec.read_topic(topic, bootstrap_servers=kafka.bootstrap_servers) as records:
        for batch in records:
            for one in batch.records():
                assert one.partition is not None
                found.setdefault(one.partition, []).append((one.timestamp, one.key, one.value, one.headers))
    return found


def restore(kafka: ApacheKafka, *arguments: str | Path) -> Ran:
    return run("restore", "-b", kafka.bootstrap_servers, *arguments)


def test_a_directory_is_restored_once(apache_kafka: ApacheKafka, backup: Path, name: str) -> None:
    ran = restore(apache_kafka, backup, "--create", "--dry-run")
    assert ran.status is ExitStatus.OK
    assert f"{name}-0 8 11 {name}-0 topic is made" in [" ".join(line.split()) for line in ran.out.splitlines()]
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        assert name not in admin.list_topics()
    ran = restore(apache_kafka, backup, "--create", "-c", "retention.ms=-1")
    assert (ran.status, ran.err) == (ExitStatus.OK, LEFT_OUT)
    expected = committed(backup, name)
    assert {number: len(rows) for number, rows in expected.items()} == {0: 8, 1: 9}
    assert there(apache_kafka, name) == expected
    again = restore(apache_kafka, backup, "--create")
    assert again.status is ExitStatus.OK, again.err
    assert [line.split()[2] for line in again.out.splitlines()[1:]] == ["0", "0"]
    assert there(apache_kafka, name) == expected


def test_into_another_topic(apache_kafka: ApacheKafka, backup: Path, name: str) -> None:
    copy = f"copy-{name}"
    ran = restore(apache_kafka, backup / f"{name}-1", "--map", f"{name}={copy}", "--create", "--partitions", "4")
    assert ran.status is ExitStatus.OK, ran.err
    assert there(apache_kafka, copy) == {1: committed(backup, name)[1]}
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        assert admin.list_topics()[copy].num_partitions == 4


def test_old_records_for_a_topic_with_retention_are_reported(
    apache_kafka: ApacheKafka, backup: Path, name: str
) -> None:
    ran = restore(apache_kafka, backup, "--create", "--dry-run")
    assert ran.err == LEFT_OUT
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, 2, configs={"retention.ms": "3600000", "segment.ms": "604800000"})])
    ran = restore(apache_kafka, backup, "--dry-run")
    assert "retention.ms=3600000 has the broker delete them again" in ran.err


def test_what_is_refused(apache_kafka: ApacheKafka, backup: Path, name: str) -> None:
    """Nothing is written by any of these."""
    servers = apache_kafka.bootstrap_servers
    assert f"topic {name} does not exist: create it with --create" in restore(apache_kafka, backup).err
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(name, 1)])
        assert f"topic {name} has 1 partition, expected at least 2" in restore(apache_kafka, backup).err
        stamps = f"stamps-{name}"
        admin.create_topics([NewTopic(stamps, 2, configs={"message.timestamp.type": "LogAppendTime"})])
        ran = restore(apache_kafka, backup, "--map", f"{name}={stamps}")
        assert "replaces timestamps, as its message.timestamp.type is LogAppendTime" in ran.err
        assert f"topics config {stamps} --set message.timestamp.type=CreateTime" in ran.err
        full = f"full-{name}"
        admin.create_topics([NewTopic(full, 2)])
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(full, b"mine", partition=0)
    ran = restore(apache_kafka, backup, "--map", f"{name}={full}")
    assert (ran.status, ran.out) == (ExitStatus.ERROR, "")
    assert f"{full}-0 has records that this restore" in ran.err
    assert len(there(apache_kafka, full)[0]) == 1
    ran = restore(apache_kafka, backup, "--map", f"{name}={full}", "--append")
    assert ran.status is ExitStatus.OK, ran.err
    assert there(apache_kafka, full)[0][1:] == committed(backup, name)[0]


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("-t", "odrers"), "unknown topic 'odrers'"),
        (("-t", "__consumer_offsets"), "__consumer_offsets is an internal topic of Kafka, which is not restored"),
        (("--map", "other=x"), "--map other=...: the source has no topic other"),
        (("--partitions", "3"), "are for --create"),
        (("--map", "x"), "'x' is not NAME=VALUE"),
    ],
)
def test_wrong_calls(backup: Path, arguments: tuple[str, ...], reported: str) -> None:
    ran = run("restore", "-b", "localhost:1", backup, *arguments)
    assert ran.status is ExitStatus.ERROR
    assert reported in ran.err


def test_corruption_is_found_before_anything_is_written(apache_kafka: ApacheKafka, backup: Path, name: str) -> None:
    path = backup / f"{name}-1" / f"{100:020d}.log"
    content = bytearray(path.read_bytes())
    content[80] ^= 0xFF
    path.write_bytes(content)
    ran = restore(apache_kafka, backup, "--create")
    assert (ran.status, ran.out) == (ExitStatus.FINDINGS, "")
    assert "nothing was written (--on-error skip" in ran.err
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        assert name not in admin.list_topics()
    ran = restore(apache_kafka, backup, "--create", "--on-error", "skip")
    assert ran.status is ExitStatus.FINDINGS
    assert "corrupt batches left out: 1" in ran.err
    assert {number: len(rows) for number, rows in there(apache_kafka, name).items()} == {0: 8, 1: 6}


def test_a_restore_that_is_killed_goes_on_without_duplicates(
    apache_kafka: ApacheKafka, tmp_path: Path, name: str
) -> None:
    """Killed at several moments; each run that follows goes on, the last one to the end."""
    long_partition(tmp_path / "made", 30)
    (made,) = (tmp_path / "made").iterdir()
    folder = tmp_path / "backup"
    folder.mkdir()
    shutil.copytree(made, folder / f"{name}-0")
    servers = apache_kafka.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(name, 1, configs={"retention.ms": "-1"})])
    begun = there_count(apache_kafka, name)
    for _ in range(2):
        running = program("restore", "-b", servers, folder, "--chunk", "1000")
        try:
            while running.poll() is None and (now := there_count(apache_kafka, name)) <= begun:
                time.sleep(0.05)
            begun = now
        finally:
            running.send_signal(signal.SIGKILL)
            running.communicate(timeout=10)
    ran = restore(apache_kafka, folder)
    assert ran.status is ExitStatus.OK, ran.err
    assert ran.out.splitlines()[1].split()[-1] == "ok"
    assert there(apache_kafka, name) == committed(folder, name)


def there_count(kafka: ApacheKafka, topic: str) -> int:
    with kcodec.read_topic(topic, bootstrap_servers=kafka.bootstrap_servers, columns=("offset",)) as records:
        return sum(len(batch) for batch in records)


def test_a_complete_last_batch_with_a_wrong_crc_is_not_lost_silently(
    kcodec_broker: Broker, tmp_path: Path, name: str
) -> None:
    corrupt = bytearray(plain(3))
    corrupt[-1] ^= 1
    partition(tmp_path / "backup", [plain(0), bytes(corrupt)], name=f"{name}-0")
    command = ("restore", tmp_path / "backup", "-b", kcodec_broker.bootstrap_servers, "--create")
    ran = run(*command)
    assert (ran.status, "nothing was written" in ran.err) == (ExitStatus.FINDINGS, True)
    assert "the last batch has a wrong CRC" in ran.err
    ran = run(*command, "--on-error", "skip")
    assert (ran.status, "corrupt batches left out: 1" in ran.err) == (ExitStatus.FINDINGS, True)
    assert kcodec_broker.end_offset(name) >= 3


def test_a_file_does_not_make_aborted_records_count(tmp_path: Path) -> None:
    partition(tmp_path, [plain(0)])
    file = tmp_path / "shared.properties"
    file.write_text("isolation.level=read_uncommitted\n")
    with Broker() as broker:
        broker.create_topic("orders", partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="earlier") as producer:
            producer.begin_transaction()
            producer.send("orders", b"aborted").result()
            producer.abort_transaction()
        ran = run("restore", tmp_path / "orders-0", "-b", broker.bootstrap_servers, "-F", file)
        assert ran.status is ExitStatus.OK, ran.err


def test_topics_of_users_that_begin_with_underscores_are_restored(kcodec_broker: Broker, tmp_path: Path) -> None:
    for topic in ("orders", "__heartbeat", "__transaction_state", "__share_group_state", "__remote_log_metadata"):
        partition(tmp_path, [plain(0)], name=f"{topic}-0")
    ran = run("restore", tmp_path, "-b", kcodec_broker.bootstrap_servers, "--create", "-c", "retention.ms=-1")
    left_out = "__remote_log_metadata, __share_group_state, __transaction_state"
    assert (ran.status, ran.err) == (ExitStatus.OK, f"kcodec: internal topics of Kafka left out: {left_out}\n")
    assert {line.split()[0] for line in ran.out.splitlines()[1:]} == {"orders-0", "__heartbeat-0"}
    assert there_count_at(kcodec_broker, "__heartbeat") == 3


@pytest.mark.parametrize("files", [(), ("partition.metadata",), (f"{0:020d}.log.deleted",)], ids=len)
def test_a_partition_without_segments_is_named_and_the_others_are_restored(
    kcodec_broker: Broker, tmp_path: Path, files: tuple[str, ...]
) -> None:
    name = f"orders-{len(files)}-{len(''.join(files))}"
    partition(tmp_path, [plain(0)], name=f"{name}-0")
    (empty := tmp_path / f"{name}-2").mkdir()
    for file in files:
        (empty / file).write_text("version: 0\n")
    ran = run("restore", tmp_path, "-b", kcodec_broker.bootstrap_servers, "--create", "-c", "retention.ms=-1")
    text = f"kcodec: {empty}: the directory has no segment (20 digits and .log); nothing is restored from it\n"
    assert (ran.status, ran.err) == (ExitStatus.OK, text)
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == [f"{name}-0"]
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        assert admin.list_topics()[name].num_partitions == 3
    shutil.rmtree(tmp_path / f"{name}-0")
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\n")
    ran = run("restore", tmp_path, "-b", kcodec_broker.bootstrap_servers, "--create")
    assert ran.status is ExitStatus.ERROR and "no partition has a segment" in ran.err


@pytest.mark.parametrize("empty", ["no segment", "no records", "aborted records"])
def test_partitions_without_records_need_no_partition_in_an_existing_topic(
    kcodec_broker: Broker, tmp_path: Path, empty: str
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    partition(tmp_path, [plain(0)], name=f"{topic}-0")
    batches = [data(7, 0, count=3), marker(ABORT, 7, 3)] if empty == "aborted records" else []
    partition(tmp_path, batches, name=f"{topic}-4")
    if empty == "no segment":
        (tmp_path / f"{topic}-4" / f"{0:020d}.log").unlink()
    ran = run("restore", tmp_path, "-b", kcodec_broker.bootstrap_servers)
    text = f"topic {topic} has 1 partition, and the source has up to 5; those that are missing have no records\n"
    assert ran.status is ExitStatus.OK and text in ran.err
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == [f"{topic}-0"]
    assert there_count_at(kcodec_broker, topic) == 3
    shutil.rmtree(tmp_path / f"{topic}-0")
    if empty != "no segment":
        assert run("restore", tmp_path, "-b", kcodec_broker.bootstrap_servers).status is ExitStatus.OK
    partition(tmp_path, [plain(0)], name=f"{topic}-2")
    ran = run("restore", tmp_path, "-b", kcodec_broker.bootstrap_servers, "--append")
    assert ran.status is ExitStatus.ERROR and f"topic {topic} has 1 partition, expected at least 3" in ran.err


def there_count_at(broker: Broker, topic: str) -> int:
    with kcodec.read_topic(topic, bootstrap_servers=broker.bootstrap_servers, columns=("offset",)) as records:
        return sum(len(batch) for batch in records)


def test_records_whose_markers_are_late_are_counted(tmp_path: Path) -> None:
    partition(tmp_path, [plain(0)])
    with Broker(marker_delay_ms=1500) as broker:
        ran = run("restore", tmp_path / "orders-0", "-b", broker.bootstrap_servers, "--create")
    assert (ran.status, ran.out.splitlines()[1].split()[-1]) == (ExitStatus.OK, "ok")


def test_markers_that_do_not_arrive_are_reported(tmp_path: Path) -> None:
    partition(tmp_path, [plain(0)])
    with Broker(marker_delay_ms=20_000) as broker:
        short = ("-X", "default.api.timeout.ms=1500")
        ran = run("restore", tmp_path / "orders-0", "-b", broker.bootstrap_servers, "--create", *short)
    assert ran.status is ExitStatus.FINDINGS
    assert "3 are not visible yet: a transaction is open at offset 0; run the same command later" in ran.out


def test_a_chunk_that_exceeds_the_transaction_timeout_is_reported(tmp_path: Path) -> None:
    partition(tmp_path, [plain(0)])
    with Broker(transaction_timeout_scan_ms=200) as broker:
        broker.faults.add("EndTxn", delay_ms=1500)
        short = ("-X", "transaction.timeout.ms=500")
        ran = run("restore", tmp_path / "orders-0", "-b", broker.bootstrap_servers, "--create", *short)
    assert ran.status is ExitStatus.ERROR
    assert "The transaction with 3 records took " in ran.err
    assert "longer than its timeout of 0.5 s" in ran.err
    assert "pass a smaller --chunk than 65536, or increase -X transaction.timeout.ms" in ran.err


def test_runs_of_different_topics_do_not_fence_each_other(tmp_path: Path) -> None:
    long_partition(tmp_path / "made", 30)
    (made,) = (tmp_path / "made").iterdir()
    backup = tmp_path / "backup"
    for topic in ("first", "second"):
        shutil.copytree(made, backup / f"{topic}-0")
    with Broker() as broker:
        for topic in ("first", "second"):
            broker.create_topic(topic, partitions=1, retention_ms=-1)
        command = ("restore", backup, "-b", broker.bootstrap_servers)
        broker.faults.add("EndTxn", delay_ms=200)
        with program(*command, "-t", "first", "--chunk", "1000") as slow:
            wait_until(lambda: broker.end_offset("first") > 0)
            ran = run(*command, "-t", "second")
            assert slow.poll() is None
            _, err = slow.communicate(timeout=60)
        assert (ran.status, slow.returncode, err) == (ExitStatus.OK, ExitStatus.OK, b""), ran.err
        broker.faults.clear()
        again = run(*command)  # the progress of both runs is known to a run of all topics
        assert again.status is ExitStatus.OK, again.err
        assert [line.split()[1:3] for line in again.out.splitlines()[1:]] == [["30000", "0"], ["30000", "0"]]


def test_a_run_fences_an_earlier_one_of_the_same_topic(tmp_path: Path) -> None:
    long_partition(tmp_path / "made", 30)
    (made,) = (tmp_path / "made").iterdir()
    backup = tmp_path / "backup"
    shutil.copytree(made, backup / "orders-0")
    with Broker() as broker:
        broker.create_topic("orders", partitions=1, retention_ms=-1)
        command = ("restore", backup, "-b", broker.bootstrap_servers, "--chunk", "1000")
        rule = broker.faults.add("EndTxn", delay_ms=300)
        with program(*command) as first:
            wait_until(lambda: rule.hits > 1)
            broker.faults.clear()
            ran = run(*command, "-t", "orders")
            _, err = first.communicate(timeout=60)
        assert ran.status is ExitStatus.OK, ran.err
        assert (first.returncode, b"orders" in err) == (ExitStatus.ERROR, True)
        assert there_count_at(broker, "orders") == 30_000


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
