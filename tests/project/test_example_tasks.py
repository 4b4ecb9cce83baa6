# SPDX-License-Identifier: Apache-2.0
"""examples/tasks/: each program does the task of an example of another client, with no more statements.

tests/prove/prove_schema_registry.py runs those with Avro and JSON, which need more packages.
"""

from __future__ import annotations

import asyncio
import io
from base64 import b64decode
from contextlib import suppress
from typing import Any

import pytest
from example_tasks import ORIGINALS, TASKS, Enough, Printed, load, statements
from guarded_kafka import guarded_kafka as guarded_kafka
from guarded_kafka import token_server as token_server

import kcodec
from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.testing.kafka import ApacheKafka


def test_every_program_is_not_longer_than_its_original() -> None:
    assert {path.stem for path in TASKS.glob("*.py")} == ORIGINALS.keys()
    longer = {
        name: (found, sizes)
        for name, sizes in ORIGINALS.items()
        if (found := statements((TASKS / f"{name}.py").read_text(encoding="utf-8"))) > min(sizes.values())
    }
    assert longer == {}
    assert statements('"""Text."""\nif 1:\n    a = 2; b = 3\n') == 3


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    name: str = kcodec_broker.create_topic(partitions=1)
    return name


def values(kafka: ApacheKafka | Broker, topic: str, **options: Any) -> list[bytes | None]:
    with kcodec.read_topic(topic, **{**kafka.client_options(), **options}) as records:
        return [record.value for record in records.rows()]


def run(name: str, *arguments: Any, most: int | None = None) -> list[str]:
    """Run a program, until it ends or has printed that number of lines."""
    printed = Printed(most)
    with suppress(Enough):
        result = load(name, printed).main(*arguments)
        if asyncio.iscoroutine(result):
            asyncio.run(result)
    return printed.lines


def test_asyncio_produces_and_consumes(kcodec_broker: Broker, topic: str) -> None:
    servers = kcodec_broker.bootstrap_servers
    (line,) = run("aio_produce", servers, topic)
    assert f"topic='{topic}', partition=0, offset=0" in line
    assert run("aio_consume", servers, topic, most=1) == ["b'Hello'"]
    assert sum(int(line.split()[0]) for line in run("aio_batches", servers, topic)) == 1000
    with pytest.raises(ValueError, match="the program failed"):
        run("aio_transaction", servers, topic)
    assert len(values(kcodec_broker, topic)) == 1001
    assert values(kcodec_broker, topic, isolation_level="read_uncommitted")[-1] == b"Never seen"


def test_lines_are_sent_and_read_by_a_group(kcodec_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = kcodec_broker.bootstrap_servers
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\nthree\n"))
    assert run("produce_lines", servers, topic) == [f"{topic}-0: {offset}" for offset in range(3)]
    lines = run("consume_group", servers, topic, topic, most=1 + 2 * 3)
    assert lines[0].startswith("Assignment: [TopicPartition(")
    assert lines[2::2] == ["b'one'", "b'two'", "b'three'"]
    assert lines[5] == f"{topic} [0] at offset 2 with key None:"
    # The third record was printed, and not stored.
    head, row = run("committed_offsets", servers, topic, topic)
    assert head.split() == ["Topic", "[Partition]", "Committed", "Lag"]
    assert row.split() == [f"{topic}-0", "2", "1"]


def test_a_topic_is_copied_exactly_once(kcodec_broker: Broker, topic: str) -> None:
    target = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for number in range(700):
            producer.send(topic, b"%d" % number, key=b"k")
    lines = run("transaction_copy", kcodec_broker.bootstrap_servers, f"copy-{topic}", topic, target)
    assert all(line.endswith("committed: True") for line in lines)
    assert [b64decode(value or b"") for value in values(kcodec_broker, target)] == [b"%d" % one for one in range(700)]


def test_every_client_is_used_as_a_block(kcodec_broker: Broker) -> None:
    lines = run("clients_as_blocks", kcodec_broker.bootstrap_servers, "clients-as-blocks")
    assert lines[0] == "created clients-as-blocks"
    assert sum("RecordMetadata(" in line for line in lines) == 5
    assert [line.partition("value=")[2][:11] for line in lines[-5:]] == [f"'message {one}'" for one in range(5)]


def test_tls_sasl_and_tokens(guarded_kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = guarded_kafka.create_topic(partitions=1)
    (line,) = run("aio_tls", topic, guarded_kafka.client_options("alice", "SCRAM-SHA-512"))
    assert "value=b'Secret'" in line
    for program, mechanism in (("sasl_produce", "PLAIN"), ("oauth_produce", "OAUTHBEARER")):
        monkeypatch.setattr("sys.stdin", io.StringIO("key|one\ntwo\n"))
        assert len(run(program, topic, guarded_kafka.client_options("alice", mechanism))) == 2
    assert values(guarded_kafka, topic) == [b"Secret", b"one", b"two", b"key|one", b"two"]
