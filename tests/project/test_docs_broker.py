# SPDX-License-Identifier: Apache-2.0
"""The examples of the pages on clients, administration and testing, run as they stand on a real broker."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import types
import uuid
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.broker import Broker
from kcodec.client import (
    Admin,
    Consumer,
    Producer,
    TransactionHandle,
    TransactionWriter,
    WriterReceipt,
    commit_transaction,
)
from kcodec.errors import AuthorizationError
from kcodec.testing.bounded_reads.readers import READERS
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory

LONG = os.environ.get("KCODEC_PROFILE") == "long"
DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
TOPICS = ("orders", "invoices", "ledger", "in", "out")


class Examples:
    """The Python blocks of a page, with topics and an address of this broker."""

    def __init__(self, page: str, kafka: ApacheKafka | Broker, topics: tuple[str, ...] = TOPICS) -> None:
        self.kafka = kafka
        self.topics = {name: kafka.create_topic(partitions=3) for name in topics}
        text = (DOCS / page).read_text(encoding="utf-8").replace('"localhost:9092"', repr(kafka.bootstrap_servers))
        for name, real in self.topics.items():
            text = text.replace(f'"{name}"', f'"{real}"')
        self.blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)

    def run(self, text: str, /, **names: Any) -> dict[str, Any]:
        code = compile(text, "an example of the docs", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))
        else:
            exec(code, names)
        return names

    def producer(self, **options: Any) -> Producer:
        return Producer(bootstrap_servers=self.kafka.bootstrap_servers, **options)

    def consumer(self, topic: str) -> Consumer:
        """Of all that is committed there."""
        consumer = Consumer(bootstrap_servers=self.kafka.bootstrap_servers, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(topic, partition) for partition in range(3)])
        return consumer


def test_producer_examples_run(apache_kafka: ApacheKafka, capsys: pytest.CaptureFixture[str]) -> None:
    examples = Examples("producer.md", apache_kafka)
    first, table, failures, options = examples.blocks
    examples.run(options)["producer"].close()
    sent = examples.run(first)["delivery"].result()
    assert (sent.topic, sent.partition, sent.offset) == (examples.topics["orders"], 1, 0)
    with examples.producer() as producer:
        names = examples.run(table, producer=producer, pyarrow=pyarrow, keys=[b"a", b"b"], values=[b"1", b"2"])
        assert sum(batch.records_count for batch in names["tables"].result()) == 2
        small = apache_kafka.create_topic(partitions=1, max_message_bytes=200)
        producer.send(small, bytes(1000))
        examples.run(failures, producer=producer)
        assert capsys.readouterr().out == f"{small} MESSAGE_TOO_LARGE 1\n"


@pytest.mark.parametrize("transaction_version", [2, 0])
def test_transaction_examples_run(
    apache_kafka: ApacheKafka, apache_kafka_factory: KafkaFactory, transaction_version: int
) -> None:
    is_old = transaction_version < 2
    kafka = apache_kafka_factory(transaction_version=transaction_version) if is_old else apache_kafka
    examples = Examples("transactions.md", kafka)
    block, with_asyncio, offsets, errors, background, shared, writer, begun, steps, release = examples.blocks
    assert examples.run(block)["txn"].committed is True
    assert examples.run(with_asyncio)["txn"].committed is True

    examples.run(errors, chunks=[[b"1", b"2"], [b"3"]])
    done = examples.run(background, Producer=Producer, chunks=[[b"1", b"2"], [b"3"], [b"4"]])
    assert done["commit"].exception() is None

    metadata = ConsumerGroupMetadata(f"group-{examples.topics['in']}")
    names: dict[str, Any] = {
        "TopicPartition": TopicPartition,
        "transformed": b"x",
        "consumer": types.SimpleNamespace(position=lambda _: 42, group_metadata=lambda: metadata),
    }
    with examples.producer(transactional_id=f"docs-{examples.topics['out']}") as producer:
        assert examples.run(offsets, producer=producer, **names)["txn"].committed is True

        pause = re.search(r"^    \.\.\..*\n", shared, re.MULTILINE)
        assert pause
        both = shared.replace(pause[0], textwrap.indent(writer, "    "))
        names |= {"TransactionHandle": TransactionHandle, "TransactionWriter": TransactionWriter}
        done = examples.run(both, producer=producer, servers=kafka.bootstrap_servers, **names)
    assert done["txn"].committed is True
    assert dict(done["writer"].receipt) == {TopicPartition(examples.topics["out"], 1): (1, 0)}

    def run_writers(handle: TransactionHandle) -> list[WriterReceipt]:
        receipts = []
        for partition in (0, 1):
            named = [TopicPartition(examples.topics["out"], partition)]
            with TransactionWriter(handle, named, bootstrap_servers=kafka.bootstrap_servers) as each:
                each.send(examples.topics["out"], b"x")
            receipts.append(each.receipt)
        return receipts

    names |= {"servers": kafka.bootstrap_servers, "run_writers": run_writers}
    examples.run(begun, **names)
    assert examples.run(steps, **names)["progress"].offset == 2

    done = examples.run(release, Producer=Producer, **names)
    assert done["receipt"] == WriterReceipt({TopicPartition(examples.topics["out"], 0): (1, 0)})
    commit_transaction(done["handle"], receipts=[done["receipt"]], bootstrap_servers=kafka.bootstrap_servers)


@pytest.mark.parametrize(
    ("api", "error"),
    [("EndTxn", "INVALID_TXN_STATE"), ("EndTxn", "UNSUPPORTED_VERSION"), ("Produce", "TOPIC_AUTHORIZATION_FAILED")],
    ids=["abort", "recreate", "stop"],
)
@pytest.mark.parametrize("page", ["transactions.md", "session.md"])
def test_examples_of_errors_follow_the_remedy(kcodec_broker: Broker, page: str, api: str, error: str) -> None:
    """After the remedies abort and recreate each value is written once; stop ends the program."""
    examples = Examples(page, kcodec_broker)
    (text,) = (block for block in examples.blocks if "error.remedy" in block)
    kcodec_broker.seed(examples.topics["orders"], [b"1", b"2", b"3"])
    kcodec_broker.faults.add(api, error=error, count=1)
    if error == "TOPIC_AUTHORIZATION_FAILED":
        with pytest.raises(AuthorizationError):
            examples.run(text, chunks=[[b"1", b"2"], [b"3"]])
    else:
        examples.run(text, chunks=[[b"1", b"2"], [b"3"]])
        found = [record.value for record in kcodec_broker.committed(examples.topics["invoices"])]
        assert sorted(value or b"" for value in found) == [b"1", b"2", b"3"]


def test_admin_examples_run(apache_kafka: ApacheKafka) -> None:
    examples = Examples("admin.md", apache_kafka, topics=())
    made, refused, operated = (block.replace('"orders"', f'"orders-{uuid.uuid4().hex}"') for block in examples.blocks)
    examples.run(made)
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        admin.create_topics([re.findall(r'"(orders-\w+)"', refused)[0]])
        examples.run(refused, admin=admin)
        examples.run(operated, admin=admin)


def test_testing_examples_run(apache_kafka: ApacheKafka, apache_kafka_factory: KafkaFactory) -> None:
    examples = Examples("testing.md", apache_kafka)
    names = examples.run(examples.blocks[0])
    for block in examples.blocks[1:]:
        names = examples.run(block, **names)
    names["test_alice_writes_to_her_topic_only"]()
    names["test_a_commit_without_a_response_is_unknown"](apache_kafka)
    if LONG:  # three nodes take their time
        names["test_nothing_is_lost_when_a_leader_dies"](apache_kafka_factory)


def reading_on(text: str) -> str:
    """Return an example that calls `read` in place of its only `poll(10.0)`, which may return fewer records."""
    changed, count = re.subn(r"(\w+)\.poll\(10\.0\)", r"read(\1)", text)
    assert count == 1
    return changed


def read(count: int, consumer: Consumer) -> list[Any]:
    """Return the next records: at least `count`, or fewer if no more arrive."""
    found: list[Any] = []
    while len(found) < count and (records := consumer.poll(10.0)):
        found += records
    return found


def test_consumer_examples_run(apache_kafka: ApacheKafka) -> None:
    examples = Examples("consumer.md", apache_kafka)
    topic = examples.topics["orders"]
    first, arrow, by_hand, by_time, record_by_record, commits, rebalances, refused, service = (
        block.replace('"billing"', f'"billing-{topic}"') for block in examples.blocks
    )
    with examples.producer() as producer:
        for number in range(30):
            producer.send(topic, b"%d" % number, partition=0)
    names = examples.run(reading_on(first), read=functools.partial(read, 30))
    assert [record.value for record in names["records"]] == [b"%d" % number for number in range(30)]
    assert names["records"][0].topic == topic
    names = examples.run(by_hand)
    assert (names["beginning"], names["end"], names["position"]) == (0, 30, 0)
    assert names["lag"].lag == 30
    given: dict[str, Any] = {"Consumer": Consumer, "first": TopicPartition(topic, 0)}
    names = examples.run(reading_on(by_time), read=functools.partial(read, 30), **given)
    assert [record.value for record in names["recent"]] == [b"%d" % number for number in range(30)]
    examples.run(record_by_record, Consumer=Consumer, first=TopicPartition(topic, 0))
    options: dict[str, Any] = {"bootstrap_servers": apache_kafka.bootstrap_servers, "group_id": f"docs-{topic}"}
    with Consumer(**options, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert examples.run(arrow, consumer=consumer)["batch"].num_rows == 30
        committed = examples.run(commits, consumer=consumer, first=TopicPartition(topic, 0))["committed"]
        assert committed[TopicPartition(topic, 0)].offset in {30, 42}  # the one in the background may be behind it
        consumer.unsubscribe()
        examples.run(rebalances, consumer=consumer)
        assert len(consumer.assignment()) == 3
        examples.run(refused, consumer=consumer)
    run_service(examples, service)


def run_service(examples: Examples, text: str) -> None:
    """Run the service until it has skipped a value that is not JSON; SIGTERM ends it, and it has committed."""
    topic = examples.kafka.create_topic(partitions=1)
    with examples.producer() as producer:
        for value in (b'{"total": 17}', b"{", b'{"total": 18}'):
            producer.send(topic, value)
    text = text.replace(examples.topics["orders"], topic)  # in the name of the group, too
    program = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        assert [program.stdout.readline() for _ in range(2)] == ["0 17\n", "2 18\n"]
        program.send_signal(signal.SIGTERM)
        out, errors = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert (program.returncode, out) == (0, "closed\n")
    assert "skipped" in errors
    with Admin(bootstrap_servers=examples.kafka.bootstrap_servers) as admin:
        committed = admin.list_group_offsets(f"billing-{topic}")[TopicPartition(topic, 0)]
    assert committed is not None
    assert committed.offset == 3


def test_session_examples_run(apache_kafka: ApacheKafka) -> None:
    examples = Examples("session.md", apache_kafka)
    blocking, aborted, errors, with_asyncio, arrow, by_hand = examples.blocks
    source, target = examples.topics["orders"], examples.topics["invoices"]
    with examples.producer() as producer:
        for value in (b"one", b"two", b"three"):
            producer.send(source, value, key=value)
    abort = textwrap.indent(aborted, "    ")
    assert "    assert done == 3\n" in blocking
    for text in (blocking + abort, errors, with_asyncio, arrow, by_hand):
        examples.run(text)
    with examples.consumer(target) as consumer:
        found: list[bytes | None] = []
        while len(found) < 15:
            found += [record.value for record in consumer.poll(5.0)]
        assert consumer.poll(0.3) == []
    assert sorted(value or b"" for value in found) == sorted(
        [b"ONE", b"TWO", b"THREE"] + [b"one", b"two", b"three"] * 4
    )


def test_migration_examples_run(apache_kafka: ApacheKafka) -> None:
    examples = Examples("migration.md", apache_kafka)
    topic = examples.topics["orders"]
    with examples.producer() as producer:
        producer.send(topic, b"17.50", key=b"customer-1")
    for block in examples.blocks:
        examples.run(re.sub(r'"(billing|shipping|invoicing|invoicing-0)"', rf'"\1-{topic}"', block))


def test_an_example_that_is_wrong_is_found(apache_kafka: ApacheKafka) -> None:
    examples = Examples("producer.md", apache_kafka)
    with pytest.raises(TypeError, match="did you mean 'compression_type'"):
        examples.run(examples.blocks[0].replace("compression_type", "compression_typ"))


def test_reading_examples_run(apache_kafka: ApacheKafka) -> None:
    examples = Examples("reading.md", apache_kafka)
    first, stream, ranges, scan = examples.blocks
    with examples.producer() as producer:
        for number in range(9):
            producer.send(examples.topics["orders"], b"value-%d" % number, key=b"key", partition=number % 3)
    names = examples.run(first)
    assert names["rows"] == 9
    assert {one.next_offset for one in names["records"].offsets.values()} == {3}
    assert examples.run(stream, **names)["table"].num_rows == 9
    assert examples.run(ranges)["read"] == 4
    assert examples.run(scan, **names)["found"].height == 6


def test_bounded_read_examples_run(apache_kafka: ApacheKafka, capsys: pytest.CaptureFixture[str]) -> None:
    examples = Examples("bounded-reads.md", apache_kafka)
    read, consume, check = examples.blocks
    with examples.producer(transactional_id=examples.topics["orders"]) as producer, producer.transaction() as txn:
        for number in range(3):
            txn.send(examples.topics["orders"], b"value-%d" % number, partition=0)
    with examples.consumer(examples.topics["orders"]) as consumer:
        assert consumer.poll(30.0)  # a coordinator responds to EndTxn before the markers are written
    examples.run(read)
    assert "0 2 b'value-2'" in capsys.readouterr().out
    examples.run(consume)
    assert f"{examples.topics['orders']}-0 lag 0" in capsys.readouterr().out
    names = examples.run(check, my_reader=READERS["kcodec-read-topic"])
    names["test_my_reader_finds_the_end"](apache_kafka)
