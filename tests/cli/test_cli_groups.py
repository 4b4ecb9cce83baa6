# SPDX-License-Identifier: Apache-2.0
"""``kcodec groups`` and ``kcodec offsets`` on a real Apache Kafka, compared with Kafka's own
kafka-consumer-groups.sh."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Ran, rows, run
from confluent_kafka import Consumer

from kcodec import TopicPartition
from kcodec.cli import ExitStatus
from kcodec.client import Admin, AdminError, Producer
from kcodec.errors import RequestTimedOutError
from kcodec.testing.kafka import ApacheKafka

TOOLS = Path(__file__).resolve().parent.parent.parent / ".cache" / "kafka-tools"
TIME = 1_767_225_600_000  # 2026-01-01T00:00Z


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    """Two partitions; in the first, five records in a transaction and its marker, a minute apart."""
    name = apache_kafka.create_topic(f"groups-{uuid.uuid4().hex[:8]}", partitions=2)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        with producer.transaction() as transaction:
            for number in range(5):
                transaction.send(name, b"%d" % number, partition=0, timestamp=TIME + number * 60_000)
    first, deadline = TopicPartition(name, 0), time.monotonic() + 20
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        while admin.list_offsets({first: "latest"}, isolation_level="read_committed")[first].offset < 6:
            assert time.monotonic() < deadline, "the marker was not written"
            time.sleep(0.02)
    return name


@pytest.fixture
def admin(apache_kafka: ApacheKafka) -> Iterator[Admin]:
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as found:
        yield found


def call(kafka: ApacheKafka, words: str) -> Ran:
    first, action, *rest = words.split()
    return run(first, action, "-b", kafka.bootstrap_servers, *rest)


def test_the_story_of_a_groups_offsets(apache_kafka: ApacheKafka, topic: str, tmp_path: Path) -> None:
    group = f"g-{topic}"
    ran = call(apache_kafka, f"offsets reset {group} {topic} --to earliest")
    assert ran.out.splitlines()[1].split() == [topic, "0", "-", "0", "6", "6"]
    assert ran.err == (
        f"nothing was changed; --execute makes the changes, and creates the group '{group}', which does not exist\n"
    )
    assert group not in [row["group"] for row in rows(call(apache_kafka, "groups list -J"))]
    ran = call(apache_kafka, f"offsets reset {group} {topic} --to s@2026-01-01T00:02 --execute")
    assert (ran.status, ran.err) == (ExitStatus.OK, f"{group}: 2 of 2 offsets set; the group did not exist before\n")
    found = rows(call(apache_kafka, f"groups describe {group} -J"))
    assert [(row["partition"], row["committed"], row["lag"], row["holder"]) for row in found] == [
        (0, 2, 4, None),
        (1, 0, 0, None),
    ]
    wanted = {"--shift -1": 1, "--shift 2": 4, "--to 3": 3, "--to latest": 6, "--to 99": 6, "--ago 1d": 5}
    for how, offset in wanted.items():  # what came in since yesterday is the marker: it has the broker's time
        (row,) = rows(call(apache_kafka, f"offsets reset {group} {topic}:0 {how} -J"))
        assert (row["committed"], row["offset"]) == (2, offset), how
    assert "99 is not in the log" in call(apache_kafka, f"offsets reset {group} {topic}:0 --to 99").out
    kept = call(apache_kafka, f"offsets reset {group} --shift 0 --csv").out
    assert kept == f"{topic},0,2\n{topic},1,0\n"
    (tmp_path / "kept.csv").write_text(kept.replace(",2\n", ",5\n"))
    ran = call(apache_kafka, f"offsets reset {group} --from-file {tmp_path / 'kept.csv'} --execute")
    assert ran.status is ExitStatus.OK
    assert [row["committed"] for row in rows(call(apache_kafka, f"groups describe {group} -J"))] == [5, 0]
    ran = call(apache_kafka, f"offsets delete {group} {topic}:x")
    assert (ran.status, ran.err) == (
        ExitStatus.ERROR,
        f"kcodec: '{topic}:x': 'x' is not a partition number; expected for example topic:0,3\n",
    )
    ran = call(apache_kafka, f"offsets delete {group} {topic}:1,9 nosuch")
    assert (ran.status, ran.err) == (
        ExitStatus.ERROR,
        f"{group}: {topic}-1: deleted\nkcodec: group '{group}' has no committed offsets in {topic}-9, nosuch\n",
    )
    assert call(apache_kafka, f"groups describe {group}").err == f"{group}: Empty, classic, 0 members\n"
    assert call(apache_kafka, f"groups delete {group}").err == f"{group}: deleted\n"
    assert call(apache_kafka, f"groups describe {group}").status is ExitStatus.ERROR


def test_where_a_topic_begins_and_ends(apache_kafka: ApacheKafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcodec.cluster.retry_driver.UNKNOWN_TOPIC_PATIENCE_SECONDS", 0.1)
    found = rows(call(apache_kafka, f"offsets list {topic} -J"))
    fields = ("partition", "earliest_offset", "last_stable_offset", "log_end_offset")
    assert [tuple(row[name] for name in fields) for row in found] == [(0, 0, 6, 6), (1, 0, 0, 0)]
    found = rows(call(apache_kafka, f"offsets list {topic} --at 2026-01-01T00:02:30 -J"))
    assert [(row["offset"], row["timestamp"]) for row in found] == [(3, TIME + 180_000), (None, None)]
    ran = call(apache_kafka, f"offsets list {topic}:0,7")
    assert ran.status is ExitStatus.ERROR and f"{topic}-7" in ran.err and len(ran.out.splitlines()) == 2


def test_members_and_what_a_transaction_holds_back(apache_kafka: ApacheKafka, topic: str, admin: Admin) -> None:
    group, servers = f"m-{topic}", apache_kafka.bootstrap_servers
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 2})
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "client.id": "reader", "log_level": 2})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 20
    while not consumer.assignment():
        consumer.poll(0.05)
        assert time.monotonic() < deadline
    with Producer(bootstrap_servers=servers, transactional_id=group) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=1)
        producer.flush()
        ran = call(apache_kafka, f"groups describe {group}")
        found = rows(call(apache_kafka, f"groups describe {group} -J"))
        members = rows(call(apache_kafka, f"groups describe {group} --members -J"))
        refused = call(apache_kafka, f"offsets reset {group} --to earliest --execute")
        producer.abort_transaction()
    consumer.close()
    assert ran.err == f"{group}: Stable, classic, range, 1 member\n"
    assert f"held at 0 by {group!r}, producer " in ran.out and "reader /127.0.0.1" in ran.out
    assert [(row["committed"], row["lag"], row["stable_lag"], row["client_id"]) for row in found] == [
        (2, 4, 4, "reader"),
        (None, None, None, "reader"),
    ]
    assert found[1]["holder"]["transactional_id"] == group and found[1]["holder"]["first_offset"] == 0
    assert [(row["client_id"], len(row["partitions"])) for row in members] == [("reader", 2)]
    assert refused.status is ExitStatus.ERROR
    assert "has 1 member, which has to be stopped" in refused.err and "UNKNOWN_MEMBER_ID" in refused.err


def test_the_lag_is_what_kafkas_own_tool_says(apache_kafka: ApacheKafka, topic: str, admin: Admin) -> None:
    """Everything is read: the last record of the partition is a marker, and the lag is 0, here as there."""
    group = f"t-{topic}"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 6})
    java = Path(os.environ.get("JAVA_HOME", "/usr")) / "bin" / "java"
    command = [str(java), "-Xmx96m", "-cp", f"{TOOLS}/*", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
    given = ["--bootstrap-server", apache_kafka.bootstrap_servers, "--describe", "--group", group]
    ran = subprocess.run([*command, *given], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    (line,) = [line.split() for line in ran.stdout.splitlines() if line.startswith(group)]
    (ours,) = rows(call(apache_kafka, f"groups describe {group} -J"))
    assert line[1:6] == [topic, "0", "6", "6", "0"]
    assert [ours[name] for name in ("committed", "log_end_offset", "lag", "stable_lag")] == [6, 6, 0, 0]


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ("groups lst", "unknown action 'lst'; did you mean 'list'?"),
        ("groups delete", "delete needs a GROUP"),
        ("offsets lst", "unknown action 'lst'; did you mean 'list'?"),
        ("offsets list", "list needs a TOPIC"),
        ("offsets reset", "reset needs a GROUP"),
        ("offsets reset g t", "reset needs one of --to, --shift, --ago and --from-file"),
        ("offsets reset g t --to earliest --shift 3", "reset needs one of"),
        ("offsets reset g t --to yesterday", "--to yesterday: expected earliest, latest, an offset, or s@TIME"),
        ("offsets reset g t --ago 5", "'5' is not a duration such as 90s, 15m, 2h or 7d"),
        ("offsets reset g t --from-file x", "--from-file names the partitions"),
        ("offsets delete g", "delete needs a GROUP and a TOPIC"),
    ],
)
def test_a_wrong_call_says_what_was_meant(words: str, reported: str) -> None:
    first, action, *rest = words.split()
    ran = run(first, action, "-b", "127.0.0.1:1", *rest)
    assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
    assert reported in ran.err
    assert ran.err.count("\n") == 1


def test_an_empty_variable_after_b_is_named() -> None:
    """``-b $SERVERS orders`` with an empty variable: the shell leaves it out, and -b takes the name."""
    ran = run("topics", "create", "-b", "orders")
    assert "create needs a TOPIC: -b has taken 'orders' as HOST:PORT" in ran.err


def test_groups_of_the_brokers_that_respond_are_shown(
    apache_kafka: ApacheKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a broker does not respond, `list` and `describe` print the groups of the others, and the error."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    assert call(apache_kafka, f"offsets reset {group} {topic} --to earliest --execute").status is ExitStatus.OK
    listed = Admin.list_groups

    def list_groups(self: Admin, **options: Any) -> Any:
        found = [one for one in listed(self, **options).values() if one.group_id == group]
        error = RequestTimedOutError("list groups of broker 3: not finished within 15 s")
        raise AdminError("list groups of broker: 1 of 2 failed", {3: error}, {1: found})

    monkeypatch.setattr(Admin, "list_groups", list_groups)
    ran = call(apache_kafka, "groups list -J")
    assert (ran.status, [json.loads(line)["group"] for line in ran.out.splitlines()]) == (ExitStatus.ERROR, [group])
    assert ran.err == "kcodec: list groups of broker 3: not finished within 15 s\n"
    ran = call(apache_kafka, "groups describe -J")
    assert (ran.status, {json.loads(line)["group"] for line in ran.out.splitlines()}) == (ExitStatus.ERROR, {group})
    assert ran.err == "kcodec: list groups of broker 3: not finished within 15 s\n"


def test_a_reset_to_a_time_before_1970_begins_at_the_first_record(apache_kafka: ApacheKafka, topic: str) -> None:
    (row,) = rows(call(apache_kafka, f"offsets reset g-{uuid.uuid4().hex[:8]} {topic}:0 --ago 99999d -J"))
    assert row["offset"] == 0


def test_a_committed_offset_after_the_end_of_the_log_is_noted(
    apache_kafka: ApacheKafka, topic: str, admin: Admin
) -> None:
    """The lag of such a partition is 0, although a consumer would reset its position."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 6, TopicPartition(topic, 1): 5000})
    lines = call(apache_kafka, f"groups describe {group}").out.splitlines()
    assert [line.endswith("the committed offset is after the end of the log") for line in lines[1:]] == [False, True]
