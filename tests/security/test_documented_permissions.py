# SPDX-License-Identifier: Apache-2.0
"""The tables of permissions in docs/security.md and docs/spark-operations.md: with these a client works on a real
broker, and without one of them the broker refuses it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kcodec import TopicPartition, read_topic
from kcodec.client import (
    Admin,
    ConfigResource,
    Consumer,
    GroupTransactSession,
    NewTopic,
    Producer,
    TransactionHandle,
    TransactionWriter,
    WriterReceipt,
    begin_transaction,
    commit_transaction,
)
from kcodec.errors import AuthorizationError, BrokerError, KcodecError
from kcodec.spark.sink_protocol import VERSIONS, Batch
from kcodec.spark.sink_transactions import SinkSettings, SinkTransactions
from kcodec.testing.kafka import ApacheKafka

IN, OUT, GROUP, ID = "the-input", "the-output", "the-group", "the-id"
FIRST, TARGET = TopicPartition(IN, 0), TopicPartition(OUT, 0)
READ_IN, WRITE_OUT = {"operation": "Read", "topic": IN}, {"operation": "Write", "topic": OUT}
READ_GROUP, WRITE_ID = {"operation": "Read", "group": GROUP}, {"operation": "Write", "transactional_id": ID}
VERSION = itertools.count()
Permission = dict[str, str]


@pytest.fixture(scope="module")
def guarded() -> Iterator[ApacheKafka]:
    """A broker with an authorizer, an input topic with records, and an output topic. Alice has no permissions."""
    with ApacheKafka(authorizer=True, sasl="PLAIN") as kafka:
        for name in (IN, OUT):
            kafka.create_topic(name, partitions=1)
        with Producer(**options(kafka, "admin")) as producer:
            for number in range(50):
                producer.send(IN, b"%d" % number)
        yield kafka


def options(kafka: ApacheKafka, user: str = "alice") -> dict[str, Any]:
    return {"bootstrap_servers": kafka.bootstrap_servers, **kafka.client_options(user)}


def produce(kafka: ApacheKafka) -> None:
    with Producer(**options(kafka), max_block_ms=5_000) as producer:
        producer.send(OUT, b"x").result(20)


def produce_in_a_transaction(kafka: ApacheKafka) -> None:
    with (
        Producer(**options(kafka), transactional_id=ID, max_block_ms=5_000) as producer,
        producer.transaction() as txn,
    ):
        txn.send(OUT, b"x")
        txn.send_offsets({FIRST: 1}, GROUP)


def write_to_a_shared_transaction(kafka: ApacheKafka) -> None:
    """The transaction is begun by another user."""
    handle = begin_transaction(ID, partitions=[TARGET], **options(kafka, "admin"))
    with TransactionWriter(handle, [TARGET], must_be_first=True, max_block_ms=5_000, **options(kafka)) as writer:
        writer.send(OUT, b"x")
    commit_transaction(handle, receipts=[writer.receipt], timeout=10, **options(kafka))


def consume(kafka: ApacheKafka) -> None:
    """The group begins at the start each time."""
    with Consumer(**options(kafka), group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.subscribe(IN)
        while not consumer.poll(5.0):
            pass
        consumer.commit({FIRST: 0})


def consume_without_a_group(kafka: ApacheKafka) -> None:
    with Consumer(**options(kafka), auto_offset_reset="earliest") as consumer:
        consumer.assign([FIRST])
        while not consumer.poll(5.0):
            pass


def read(kafka: ApacheKafka) -> None:
    with read_topic(IN, **options(kafka)) as records:
        assert sum(len(batch) for batch in records) == 50


def write_exactly_once(kafka: ApacheKafka, progress: str) -> None:
    """The sink of `exactly_once` without Spark."""
    settings = SinkSettings(application=ID, topic=OUT, client=options(kafka), progress=progress)  # type: ignore[arg-type]
    sink = SinkTransactions(settings)

    def tasks(handle: TransactionHandle, partitions: int) -> list[WriterReceipt]:
        with TransactionWriter(handle, [TARGET], must_be_first=True, max_block_ms=5_000, **options(kafka)) as writer:
            writer.send(OUT, b"x")
        return [writer.receipt]

    try:
        sink.write(Batch(VERSIONS, next(VERSION)), tasks)
    finally:
        sink.close()


def run_session(kafka: ApacheKafka) -> None:
    """The transaction reads one record, so that there is always another one to read."""
    names = {"group_id": GROUP, "transactional_id": ID, "topics": [IN], "max_poll_records": 1, "max_block_ms": 5_000}
    with GroupTransactSession(**options(kafka) | names) as session:
        is_done = False
        while not is_done:
            with session.transaction() as txn:
                for record in txn.poll(5.0):
                    txn.send(OUT, record.value)
                    is_done = True
        assert txn.committed is True


CLIENTS: dict[str, tuple[Callable[[ApacheKafka], None], list[Permission]]] = {
    "Producer": (produce, [WRITE_OUT]),
    "transaction": (produce_in_a_transaction, [WRITE_ID, WRITE_OUT, READ_GROUP, READ_IN]),
    "TransactionWriter": (write_to_a_shared_transaction, [WRITE_ID, WRITE_OUT, {"operation": "Read", "topic": OUT}]),
    "Consumer": (consume, [READ_IN, READ_GROUP]),
    "Consumer without a group": (consume_without_a_group, [READ_IN]),
    "read_topic": (read, [READ_IN]),
    "GroupTransactSession": (run_session, [READ_IN, READ_GROUP, WRITE_OUT, WRITE_ID]),
}


def topic(operation: str, name: str = IN) -> Permission:
    return {"operation": operation, "topic": name}


def group(operation: str) -> Permission:
    return {"operation": operation, "group": GROUP}


CALLS: dict[str, tuple[Callable[[Admin], Any], list[Permission]]] = {
    "describe_topics": (lambda admin: admin.describe_topics([IN]), [topic("Describe")]),
    "list_offsets": (lambda admin: admin.list_offsets({FIRST: "latest"}), [topic("Describe")]),
    "create_topics": (lambda admin: admin.create_topics([NewTopic("new", 1, 1)]), [topic("Create", "new")]),
    "create_partitions": (lambda admin: admin.create_partitions({"new": 2}), [topic("Alter", "new")]),
    "delete_records": (lambda admin: admin.delete_records({FIRST: 0}), [topic("Delete")]),
    "delete_topics": (lambda admin: admin.delete_topics(["new"]), [topic("Delete", "new")]),
    "describe_configs": (
        lambda admin: admin.describe_configs([ConfigResource.topic(IN)]),
        [topic("DescribeConfigs")],
    ),
    "alter_configs": (
        lambda admin: admin.alter_configs({ConfigResource.topic(IN): {"retention.ms": "-1"}}),
        [topic("AlterConfigs")],
    ),
    "alter_group_offsets": (lambda admin: admin.alter_group_offsets(GROUP, {FIRST: 1}), [READ_GROUP, READ_IN]),
    "describe_groups": (lambda admin: admin.describe_groups([GROUP]), [group("Describe")]),
    "list_group_offsets": (
        lambda admin: admin.list_group_offsets(GROUP)[FIRST],
        [group("Describe"), topic("Describe")],
    ),
    "delete_group_offsets": (lambda admin: admin.delete_group_offsets(GROUP, [FIRST]), [group("Delete"), READ_IN]),
    "delete_groups": (lambda admin: admin.delete_groups([GROUP]), [group("Delete")]),
    "describe_transactions": (
        lambda admin: admin.describe_transactions([ID]),
        [{"operation": "Describe", "transactional_id": ID}],
    ),
    "describe_producers": (lambda admin: admin.describe_producers([FIRST]), [READ_IN]),
    "fence_producers": (lambda admin: admin.fence_producers([ID]), [WRITE_ID]),
    "describe_acls": (lambda admin: admin.describe_acls(), [{"operation": "Describe"}]),
    "describe_user_scram_credentials": (
        lambda admin: admin.describe_user_scram_credentials(["bob"]),
        [{"operation": "Describe"}],
    ),
    "describe_client_quotas": (lambda admin: admin.describe_client_quotas(), [{"operation": "DescribeConfigs"}]),
}


class Granted:
    """Permissions of alice for one block."""

    def __init__(self, kafka: ApacheKafka, permissions: list[Permission]) -> None:
        self.kafka, self.permissions = kafka, permissions

    def __enter__(self) -> None:
        for one in self.permissions:
            self.kafka.allow("alice", **one)  # type: ignore[arg-type]

    def __exit__(self, *_: object) -> None:
        for one in self.permissions:
            self.kafka.revoke("alice", **one)  # type: ignore[arg-type]


def test_exactly_once_needs_create_only_for_a_new_topic(guarded: ApacheKafka) -> None:
    progress = f"{ID}-progress"
    names = ("Read", "Write")
    needed = [WRITE_ID, {"operation": "Read", "group": ID}, *(topic(each, OUT) for each in names)]
    with Granted(guarded, needed):
        write_exactly_once(guarded, "group")
        with Granted(guarded, [topic(each, progress) for each in names]):
            with pytest.raises(AuthorizationError):
                write_exactly_once(guarded, "topic")
            with Granted(guarded, [topic("Create", progress)]):
                write_exactly_once(guarded, "topic")
            write_exactly_once(guarded, "topic")
        with pytest.raises(AuthorizationError):
            write_exactly_once(guarded, "topic")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_needs_its_permissions(guarded: ApacheKafka, client: str) -> None:
    run, needed = CLIENTS[client]
    for missing in needed:
        with Granted(guarded, [one for one in needed if one is not missing]):
            with pytest.raises(KcodecError) as raised:
                run(guarded)
            errors = raised.value.exceptions if isinstance(raised.value, BaseExceptionGroup) else [raised.value]
            causes = [error.__cause__ or error for error in errors]
            assert all(isinstance(error, AuthorizationError) for error in causes), (missing, causes)
    with Granted(guarded, needed):
        run(guarded)


def test_a_call_of_admin_needs_its_permissions(guarded: ApacheKafka) -> None:
    """The calls run in the order of the table, as some need what others have made."""
    for name, (call, needed) in CALLS.items():
        with Admin(**options(guarded), default_api_timeout_ms=10_000) as admin:
            for missing in needed:
                with Granted(guarded, [one for one in needed if one is not missing]):
                    with pytest.raises((BrokerError, KeyError)) as raised:
                        call(admin)
                    assert "AUTHORIZATION" in str(raised.value) or isinstance(raised.value, KeyError), (name, missing)
            with Granted(guarded, needed):
                call(admin)
