# SPDX-License-Identifier: Apache-2.0
"""``kcodec topics`` and ``kcodec txn`` on a real Apache Kafka: what they print, properties of a client, permissions."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Ran, run, same_as_golden

from kcodec import TopicPartition
from kcodec.cli import ExitStatus
from kcodec.cli.brokers import broker_options
from kcodec.cli.parser import UsageError
from kcodec.client import TransactionWriter, commit_transaction
from kcodec.client.properties import options_of_property
from kcodec.errors import BrokerError
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory
from kcodec.transactions.handle import TransactionHandle

PASSWORD = "alice-secret"


@pytest.fixture(scope="module")
def guarded(apache_kafka_factory: KafkaFactory) -> Iterator[ApacheKafka]:
    """SASL, TLS and permissions; alice has none."""
    kafka = apache_kafka_factory(sasl=["PLAIN", "SCRAM-SHA-512"], tls=True, authorizer=True)
    yield kafka
    kafka.close()


def command(kafka: ApacheKafka, words: str, *more: str) -> Ran:
    first, action, *rest = words.split()
    return run(first, action, "-b", kafka.bootstrap_servers, *rest, *more)


# ------------------------------------------------------------------------------------------------------------- topics


def test_the_story_of_a_topic(apache_kafka: ApacheKafka) -> None:
    shown = []
    calls = (
        ("create cli-story --partitions 2 -c retention.ms=5000000 --validate-only", ExitStatus.OK),
        ("create cli-story --partitions 2 -c retention.ms=5000000", ExitStatus.OK),
        ("create cli-story cli-other --partitions 1", ExitStatus.ERROR),
        ("describe cli-story", ExitStatus.OK),
        ("describe cli-story cli-other -J", ExitStatus.OK),
        ("config cli-story --set retention.ms=6000000 --set cleanup.policy=compact", ExitStatus.OK),
        ("config cli-story --set retention.ms=soon --validate-only", ExitStatus.ERROR),
        ("delete cli-other nowhere", ExitStatus.ERROR),
    )
    for call, status in calls:
        ran = command(apache_kafka, f"topics {call}")
        shown.append(f"$ kcodec topics {call}\n{ran.out}{ran.err}")
        assert ran.status is status, ran
    assert same_as_golden("".join(shown), "topics.txt")
    deadline = time.monotonic() + 20
    while "6000000" not in (config := command(apache_kafka, "topics config cli-story").out):
        assert time.monotonic() < deadline
    assert config.splitlines()[1].split() == ["cli-story", "cleanup.policy", "compact", "DYNAMIC_TOPIC_CONFIG"]
    rows = [json.loads(line) for line in command(apache_kafka, "topics config cli-story --all -J").out.splitlines()]
    assert {"topic": "cli-story", "name": "retention.ms", "value": "6000000", "source": "DYNAMIC_TOPIC_CONFIG"} in rows
    assert len(rows) > 20
    assert "cli-story" in [line.split()[0] for line in command(apache_kafka, "topics list").out.splitlines()]
    listed = [json.loads(line) for line in command(apache_kafka, "topics list -J").out.splitlines()]
    assert {
        name: row[name] for row in listed if row["topic"] == "cli-story" for name in ("partitions", "is_internal")
    } == {
        "partitions": 2,
        "is_internal": False,
    }
    command(apache_kafka, "topics config cli-story --unset retention.ms")
    while "retention.ms" in command(apache_kafka, "topics config cli-story").out:
        assert time.monotonic() < deadline
    assert command(apache_kafka, "topics delete cli-story").err == "cli-story: deleted\n"


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ("topics lst", "unknown action 'lst'; did you mean 'list'?"),
        ("topics create", "create needs a TOPIC"),
        ("topics create x -c retention", "'retention' is not NAME=VALUE"),
        ("txn find-hangin", "unknown action 'find-hangin'; did you mean 'find-hanging'?"),
        ("txn timeline", "timeline is for files: omit -b"),
        ("txn describe", "describe needs a transactional ID"),
        ("txn list --state Going", "unknown state 'Going'; did you mean 'Ongoing'?"),
        ("txn find-hanging -p 0", "--partition needs --topic"),
        ("txn abort", "abort needs a transactional ID, or --topic"),
        ("txn abort -t x", "--topic and --partition must be passed together"),
        ("txn abort x -t x -p 0", "transactional IDs exclude --topic and --partition"),
        ("txn abort -t x -p 0 --producer-id 5", "--start-offset is missing"),
        ("txn abort -t x -p 0 --start-offset 5 --force-it", "did you mean '--force'?"),
    ],
)
def test_a_wrong_call_says_what_was_meant(words: str, reported: str) -> None:
    first, action, *rest = words.split()
    ran = run(first, action, "-b", "127.0.0.1:1", *rest)
    assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
    assert reported in ran.err
    assert ran.err.count("\n") == 1


def test_broker_or_files_are_needed() -> None:
    assert "FILE, or -b HOST:PORT" in run("txn", "list").err
    assert "strays needs a broker: pass -b HOST:PORT" in run("txn", "strays").err
    assert "required: -b/--bootstrap-server" in run("topics", "list").err


def test_a_broker_that_is_not_there() -> None:
    ran = run("topics", "list", "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=400")
    assert ran.status is ExitStatus.ERROR
    assert "list topics of the cluster: not finished within 0.4 s; last error: " in ran.err
    assert "127.0.0.1:1" in ran.err


# --------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("security.protocol", "SASL_SSL", {"security_protocol": "SASL_SSL"}),
        ("sasl.mechanisms", "PLAIN", {"sasl_mechanism": "PLAIN"}),
        ("sasl_username", "me", {"sasl_plain_username": "me"}),
        ("sasl.password", "12", {"sasl_plain_password": "12"}),
        ("ssl.ca.location", "/ca.pem", {"ssl_cafile": "/ca.pem"}),
        ("ssl.truststore.location", "/ca.pem", {"ssl_cafile": "/ca.pem"}),
        ("ssl.truststore.type", "PEM", {}),
        ("ssl.endpoint.identification.algorithm", "", {"ssl_check_hostname": False}),
        ("ssl.endpoint.identification.algorithm", "https", {"ssl_check_hostname": True}),
        ("linger.ms", "2.5", {"linger_ms": 2.5}),
        ("message.timeout.ms", "900", {"delivery_timeout_ms": 900}),
        ("request.required.acks", "-1", {"acks": -1}),
        ("acks", "all", {"acks": "all"}),
        ("enable.idempotence", "False", {"enable_idempotence": False}),
        ("client.id", "77", {"client_id": "77"}),
        ("check.crcs", "false", {"check_crcs": False}),
        ("compression.level", "3", {"compression_level": 3}),
        ("group.instance.id", "1", {"group_instance_id": "1"}),
        ("no.such.option", "1", {"no_such_option": "1"}),
        ("queue.buffering.max.kbytes", "2", {"buffer_memory": 2048}),
        (
            "sasl.jaas.config",
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="a\\"b";',
            {"sasl_plain_username": "me", "sasl_plain_password": 'a"b'},
        ),
    ],
)
def test_properties_by_everybodys_names(name: str, value: str, taken: dict[str, Any]) -> None:
    assert options_of_property(name, value) == taken


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("ssl.keystore.type", "JKS", "reads only PEM files"),
        ("linger.ms", "soon", "linger.ms must be a number"),
        ("enable.idempotence", "maybe", "must be true or false"),
        ("sasl.jaas.config", 'required username="me" pass="hidden"', "expected ... required username"),
    ],
)
def test_properties_that_make_no_sense(name: str, value: str, reported: str) -> None:
    given = argparse.Namespace(bootstrap_server="b:1", properties=[f"{name}={value}"], properties_file=None)
    with pytest.raises(UsageError) as caught:
        broker_options(given)
    assert reported in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_properties_of_a_file_log_in(guarded: ApacheKafka, tmp_path: Path, mechanism: str) -> None:
    options = guarded.client_options("admin", mechanism)
    file = tmp_path / "client.properties"
    lines = [
        "# as for Kafka's own tools",
        "security.protocol=SASL_SSL",
        f"sasl.mechanism = {mechanism}",
        f"ssl.truststore.location={options['ssl_cafile']}",
        "ssl.truststore.type=PEM",
        'sasl.jaas.config=some.LoginModule required username="admin" password="admin-secret";',
    ]
    file.write_text("\n".join(lines))
    ran = command(guarded, "topics list", "-F", str(file))
    assert (ran.status, ran.err) == (ExitStatus.OK, "")
    file.write_text("\n".join(lines).replace("admin-secret", "not-the-secret"))
    ran = command(guarded, "topics list", "-F", str(file))
    assert ran.status is ExitStatus.ERROR
    assert ran.err.count("\n") == 1
    assert "admin" in ran.err and "not-the-secret" not in ran.err


def test_a_missing_permission_is_named(guarded: ApacheKafka, tmp_path: Path) -> None:
    topic = guarded.create_topic(partitions=1)
    options = guarded.client_options("alice", "PLAIN")
    names = {"sasl_plain_username": "sasl.username", "sasl_plain_password": "sasl.password"}
    file = tmp_path / "alice"
    file.write_text("\n".join(f"{names.get(name, name)}={value}" for name, value in options.items()))
    as_alice = ["-F", str(file)]
    (tmp_path / "lines").write_text("x\n")
    for words, reported in (
        (f"topics describe {topic}", f"describe topic '{topic}': a permission on the topic is missing"),
        ("topics create other", "create topic 'other': a permission on"),
        (f"topics delete {topic}", f"delete topic '{topic}': a permission on the topic is missing"),
        ("txn describe someid", "a permission on the transactional id is missing"),
        (f"txn abort -t {topic} -p 0 --producer-id 1 --producer-epoch 0 --coordinator-epoch 0", "permission"),
    ):
        ran = command(guarded, words, *as_alice)
        assert ran.status is ExitStatus.ERROR, words
        assert reported in ran.err, words
        assert PASSWORD not in ran.err
    call = ["produce", "-b", guarded.bootstrap_servers, "-t", topic, "-l", str(tmp_path / "lines"), *as_alice]
    ran = run(*call, "-X", "message.timeout.ms=10000", "-X", "request.timeout.ms=5000")
    assert ran.status is ExitStatus.ERROR
    assert "a permission on" in ran.err
    # of what alice may not see nothing is found, and nothing is claimed
    ran = command(guarded, "txn find-hanging", *as_alice)
    assert (ran.status, ran.err) == (ExitStatus.OK, "no hanging transaction older than 15 min in 0 partitions\n")


# ------------------------------------------------------------------------------------- a shared transaction left behind


OWNER = """
import sys
from kcodec import TopicPartition
from kcodec.client import Producer
producer = Producer(bootstrap_servers=sys.argv[1], transactional_id=sys.argv[2])
producer.init_transactions()
with producer.transaction(partitions=[TopicPartition(sys.argv[3], 0)]) as transaction:
    transaction.send(sys.argv[3], b"of the owner", partition=0)
    producer.flush()
    print(transaction.handle.to_json(), flush=True)
    sys.stdin.read()
"""


def test_a_shared_transaction_whose_owner_died(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    topic = apache_kafka.create_topic(partitions=2)
    name = f"shared-{topic}"
    words = [sys.executable, "-c", OWNER, apache_kafka.bootstrap_servers, name, topic]
    owner = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None and owner.stdin is not None
    text = owner.stdout.readline()
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    handles = tmp_path / "handles.jsonl"
    handles.write_bytes(text)
    handle = TransactionHandle.from_json(text)
    with TransactionWriter(
        handle, partitions=[TopicPartition(topic, 1)], bootstrap_servers=apache_kafka.bootstrap_servers
    ) as writer:
        writer.send(topic, b"of a writer", partition=1)
    ran = command(apache_kafka, "txn strays --idle 0 -J", "--handles", str(handles))
    assert ran.status is ExitStatus.FINDINGS
    (found,) = map(json.loads, ran.out.splitlines())
    assert (found["transactional_id"], found["producer_id"]) == (name, handle.producer_id)
    assert [place["partition"] for place in found["partitions"]] == [0, 1]
    ended = run(*found["abort_command"].split()[1:])
    assert ended.status is ExitStatus.OK, ended.err
    assert f"{name}: aborted; producers below {handle.producer_id}/" in ended.err
    with pytest.raises(BrokerError):
        commit_transaction(handle, bootstrap_servers=apache_kafka.bootstrap_servers, receipts=[writer.receipt])
    ran = command(apache_kafka, "txn strays --idle 0", "--handles", str(handles))
    assert (ran.status, ran.data) == (ExitStatus.OK, b"")
