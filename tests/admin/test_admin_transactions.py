# SPDX-License-Identifier: Apache-2.0
"""KIP-664 on real brokers: hanging transactions made for real, found, compared with Kafka's own tool, and healed.

A late Produce after EndTxn leaves the last stable offset stuck where the leader does not ask the coordinator: before
Kafka 3.6, or with transaction.partition.verification.enable=false as here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli_runner import Ran, run, same_as_golden
from raw_transactions import RawTransactions

import kcodec
from kcodec import TopicPartition
from kcodec.cli import ExitStatus
from kcodec.client import Admin
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.errors import BrokerError, RequestTimedOutError
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory
from kcodec.transactions.handle import TransactionHandle

TOOLS = Path(__file__).resolve().parent.parent.parent / ".cache" / "kafka-tools"
HOUR_MS = 3_600_000
NOW = 1_767_229_200_000  # 2026-01-01T01:00Z


class Cluster(NamedTuple):
    kafka: ApacheKafka
    raw: RawTransactions
    admin: Admin

    def partition(self) -> TopicPartition:
        return TopicPartition(self.kafka.create_topic(f"hang-{uuid.uuid4().hex[:8]}", partitions=1), 0)

    def stable_offset(self, partition: TopicPartition) -> int:
        return self.admin.list_offsets({partition: "latest"}, isolation_level="read_committed")[partition].offset

    def run(self, *arguments: object) -> Ran:
        command, action, *rest = map(str, arguments)
        return run(command, action, "-b", self.kafka.bootstrap_servers, *rest)


@pytest.fixture(scope="module", params=[KAFKA_VERSION, "3.9.1"])
def cluster(request: pytest.FixtureRequest, apache_kafka_factory: KafkaFactory) -> Iterator[Cluster]:
    options: dict[str, Any] = {"transaction_version": 0} if request.param == KAFKA_VERSION else {}
    kafka = apache_kafka_factory(request.param, transaction_partition_verification_enable="false", **options)
    servers = kafka.bootstrap_servers
    with RawTransactions(servers) as raw, Admin(bootstrap_servers=servers) as admin:
        yield Cluster(kafka, raw, admin)
    kafka.close()


def wait_for(answer: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := answer()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_hanging_transaction_is_found_and_healed(cluster: Cluster) -> None:
    partition = cluster.partition()
    hung = cluster.raw.hang(partition, timestamp=NOW - HOUR_MS)
    assert cluster.raw.produce(None, cluster.raw.init("other"), partition, [b"after"]) is not None
    assert cluster.stable_offset(partition) == hung.start_offset
    (found,) = cluster.admin.find_hanging_transactions(topics=[partition.topic], now=NOW).transactions
    assert (found.partition, found.producer_id, found.producer_epoch) == (partition, *hung.producer)
    assert (found.start_offset, found.transactional_id, found.age_ms) == (
        hung.start_offset,
        hung.transactional_id,
        HOUR_MS,
    )
    assert found.why == f"{hung.transactional_id!r} is CompleteCommit without this partition"
    cluster.admin.abort_transaction(partition, found.producer_id, found.producer_epoch, found.coordinator_epoch)
    end = cluster.admin.list_offsets({partition: "latest"})[partition].offset
    assert wait_for(lambda: cluster.stable_offset(partition) == end)
    assert not cluster.admin.find_hanging_transactions(topics=[partition.topic], now=NOW).transactions
    log = kcodec.open(cluster.kafka.log_directory / str(partition))
    assert isinstance(log, kcodec.log.Log)
    values = [record.value for record in log.records(isolation_level="read_committed")]
    assert b"committed" in values and b"late" not in values
    # Kafka writes a second marker, too, so a request without a response is not repeated.
    cluster.admin.abort_transaction(partition, found.producer_id, found.producer_epoch, found.coordinator_epoch)
    assert cluster.admin.list_offsets({partition: "latest"})[partition].offset == end + 1


def test_what_may_yet_end_is_not_called_hanging(cluster: Cluster) -> None:
    partition = cluster.partition()
    name, producer = cluster.raw.open([partition])
    search = cluster.admin.find_hanging_transactions(partitions=[partition], max_transaction_timeout_ms=0)
    assert (search.transactions, search.partitions_searched, search.errors) == ((), 1, {})
    assert cluster.raw.end(name, producer, commit=False) == 0


def test_only_what_is_older_than_any_transaction_may_be(cluster: Cluster) -> None:
    partition = cluster.partition()
    hung = cluster.raw.hang(partition, timestamp=NOW)
    find = cluster.admin.find_hanging_transactions
    found = {
        minutes: len(find(partitions=[partition], now=NOW + minutes * 60_000).transactions) for minutes in (0, 14, 16)
    }
    assert found == {0: 0, 14: 0, 16: 1}
    assert find(partitions=[partition], now=NOW).max_transaction_timeout_ms == 900_000
    # records with times in the future: their age cannot be told, so they count as old
    assert len(find(partitions=[partition], now=NOW - HOUR_MS).transactions) == 1
    cluster.admin.abort_transaction(partition, *hung.producer, 0)


def test_internal_topics_are_searched(cluster: Cluster) -> None:
    """An open transaction in __consumer_offsets, made as a transactional offset commit that comes too late."""
    group = f"group-{uuid.uuid4().hex[:8]}"
    place = cluster.partition()
    cluster.admin.alter_group_offsets(group, {place: 0})
    hung = cluster.raw.hang_offsets(group, place)
    find = cluster.admin.find_hanging_transactions
    found = [
        one for one in find(max_transaction_timeout_ms=0).transactions if one.producer_id == hung.producer.producer_id
    ]
    assert [one.partition.topic for one in found] == ["__consumer_offsets"]
    with pytest.raises(RequestTimedOutError) as caught:
        cluster.admin.list_group_offsets(group, [place], require_stable=True, timeout=0.5)
    assert isinstance(caught.value.__cause__, BrokerError)
    assert caught.value.__cause__.name == "UNSTABLE_OFFSET_COMMIT"
    one = found[0]
    cluster.admin.abort_transaction(one.partition, one.producer_id, one.producer_epoch, one.coordinator_epoch)
    assert cluster.admin.list_group_offsets(group, [place], require_stable=True)[place].offset == 0  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------------- the command line


def test_the_story_on_the_command_line(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcodec.cluster.retry_driver.UNKNOWN_TOPIC_PATIENCE_SECONDS", 0.2)
    orders, payments = (TopicPartition(cluster.kafka.create_topic(name, partitions=1), 0) for name in ("orders", "pay"))
    hung = cluster.raw.hang(orders, NOW - HOUR_MS, "nightly")
    _, producer = cluster.raw.open([orders, payments], "importer")
    shown = []
    for call, status in (
        ("find-hanging -t orders", ExitStatus.FINDINGS),
        ("find-hanging -t orders -p 0 -J", ExitStatus.FINDINGS),
        ("abort -t orders -p 0 --start-offset 77", ExitStatus.ERROR),
        ("abort -t orders -p 0 --start-offset 3", ExitStatus.ERROR),
        ("abort -t orders -p 0 --start-offset 2", ExitStatus.OK),
        ("find-hanging -t orders", ExitStatus.OK),
        ("find-hanging -t nowhere", ExitStatus.ERROR),
        ("abort nightly nobody", ExitStatus.ERROR),
    ):
        at = [] if call.startswith("abort") else ["--now", str(NOW)]
        ran = cluster.run("txn", *call.split(), *at)
        shown.append(f"$ kcodec txn {call}\n{ran.out}{ran.err}")
        assert ran.status is status, ran
    text = "".join(shown).replace(cluster.kafka.bootstrap_servers, "localhost:9092")
    for found, reported in ((hung.producer.producer_id, 9001), (producer.producer_id, 9002)):
        text = re.sub(rf"\b{found}(?=/0)|(?<=producer_id\":){found}|(?<=of producer ){found}\b", str(reported), text)
    assert same_as_golden(text, "txn-broker.txt")
    assert cluster.raw.end("importer", producer, commit=True) == 0


def test_strays_and_their_end(cluster: Cluster, tmp_path: Path) -> None:
    partition = cluster.partition()
    name, producer = cluster.raw.open([partition])
    busy, busy_producer = cluster.raw.open([partition])
    assert cluster.run("txn", "strays").err == "no open transaction has been silent for 60 s\n"
    later = str(time.time_ns() // 1_000_000 + 120_000)
    ran = cluster.run("txn", "strays", "--now", later, "-J")
    assert ran.status is ExitStatus.FINDINGS
    rows = {row["transactional_id"]: row for row in map(json.loads, ran.out.splitlines())}
    assert set(rows) == {name, busy}
    assert rows[name]["partitions"] == [{"topic": partition.topic, "partition": 0}]
    assert 119_000 < rows[name]["idle_ms"] <= rows[name]["age_ms"] < 140_000
    handles = tmp_path / "handles"
    gone = TransactionHandle(busy, busy_producer.producer_id, busy_producer.producer_epoch + 1, 0)
    handles.write_text(f"{TransactionHandle(name, *producer, 0).to_json()}\n\n{gone.to_json()}\n")
    ran = cluster.run("txn", "strays", "--now", later, "--handles", handles)
    (line,) = ran.out.splitlines()[1:]
    assert line.split()[:2] == [name, f"{producer.producer_id}/{producer.producer_epoch}"]
    assert line.endswith(f"any moment    {partition}")
    command = f"kcodec txn abort -b {cluster.kafka.bootstrap_servers} {name}"
    assert ran.err == f"{name}: if its owner is gone: {command}\n"
    ended = run(*command.split()[1:])
    fenced = f"producers below {producer.producer_id}/{producer.producer_epoch + 2} are fenced"
    assert (ended.status, ended.err) == (ExitStatus.OK, f"{name}: aborted; {fenced}\n")
    assert cluster.raw.produce(name, producer, partition, [b"zombie"], 1)[0] == 47
    again = cluster.run("txn", "abort", name)
    assert again.err == f"{name}: nothing is open (Empty); --force fences its producers all the same\n"
    assert cluster.raw.end(busy, busy_producer, commit=True) == 0
    handles.write_text("no handle\n")
    ran = cluster.run("txn", "strays", "--handles", handles)
    assert (ran.status, ran.err.startswith(f"kcodec: {handles}, line 1: not a transaction handle")) == (2, True)


def test_list_and_describe(cluster: Cluster) -> None:
    partition = cluster.partition()
    name, producer = cluster.raw.open([partition], timeout_ms=45_000)
    rows = [json.loads(line) for line in cluster.run("txn", "list", "--state", "Ongoing", "-J").out.splitlines()]
    expected = {"state": "Ongoing", "producer_id": producer.producer_id, "coordinator": 1, "sink": None}
    assert {"transactional_id": name, **expected} in rows
    assert name in cluster.run("txn", "list").out
    assert name not in cluster.run("txn", "list", "--state", "Empty").out
    ran = cluster.run("txn", "describe", name, "nobody")
    assert ran.status is ExitStatus.ERROR
    assert "describe transaction 'nobody': the transactional id does not exist" in ran.err
    assert ran.out.splitlines()[1].split("  ")[:1] == [name]
    assert ran.out.rstrip().endswith(str(partition))
    fields = json.loads(cluster.run("txn", "describe", name, "-J").out)
    assert (fields["state"], fields["transaction_timeout_ms"]) == ("Ongoing", 45_000)
    assert cluster.raw.end(name, producer, commit=False) == 0


# -------------------------------------------------------------------------------------------------- Kafka's own tool


def kafka_transactions(cluster: Cluster, *arguments: str) -> list[list[str]]:
    """Rows of kafka-transactions.sh."""
    java = Path(os.environ.get("JAVA_HOME", "/usr")) / "bin" / "java"
    command = [str(java), "-Xmx96m", "-cp", f"{TOOLS}/*", "org.apache.kafka.tools.TransactionsCommand"]
    call = [*command, "--bootstrap-server", cluster.kafka.bootstrap_servers, *arguments]
    ran = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return [line.split() for line in ran.stdout.splitlines()[1:]]


def test_the_same_is_found_as_by_kafkas_tool(cluster: Cluster) -> None:
    partition = cluster.partition()
    hung = cluster.raw.hang(partition, timestamp=int(time.time() * 1000) - HOUR_MS)
    name, producer = cluster.raw.open([partition])
    ours = {
        (
            one.partition.topic,
            str(one.partition.partition),
            str(one.producer_id),
            str(one.producer_epoch),
            str(one.coordinator_epoch),
            str(one.start_offset),
        )
        for one in cluster.admin.find_hanging_transactions().transactions
    }
    theirs = {tuple(row[:6]) for row in kafka_transactions(cluster, "find-hanging", "--broker-id", "1")}
    assert ours == theirs
    assert (partition.topic, str(hung.start_offset)) in {(row[0], row[5]) for row in theirs}
    if cluster.kafka.version == KAFKA_VERSION:  # each call starts a Java: the rest once is enough
        same_answers(cluster, name, producer)
    assert cluster.raw.end(name, producer, commit=True) == 0
    cluster.admin.abort_transaction(partition, *hung.producer, 0)


def same_answers(cluster: Cluster, name: str, producer: ProducerIdAndEpoch) -> None:
    described = cluster.admin.describe_transactions([name])[name]
    (row,) = kafka_transactions(cluster, "describe", "--transactional-id", name)
    assert row[:6] == ["1", name, str(producer.producer_id), "0", "Ongoing", "60000"]
    assert (row[6], row[8]) == (str(described.start_timestamp), *map(str, described.partitions))
    listed = cluster.admin.list_transactions().values()
    assert {(one.transactional_id, str(one.coordinator), str(one.producer_id), one.state) for one in listed} == {
        tuple(row) for row in kafka_transactions(cluster, "list")
    }
