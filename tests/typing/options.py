# SPDX-License-Identifier: Apache-2.0
"""The options of every class and function: right ones pass, misspelled and wrongly typed ones are errors.

Read by mypy and basedpyright, never run. A line that is expected to be an error has a comment for each of them, and
each reports a comment of its own that is not needed.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import kcodec
from kcodec import DecodeLimits, IsolationLevel, TopicPartition
from kcodec.client import (
    Admin,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    GroupTransactSession,
    Metrics,
    Producer,
    ProducerOptions,
    ReadTopicOptions,
    Secret,
    SecurityOptions,
    SessionOptions,
    SharedTransactions,
    TransactionHandle,
    TransactionWriter,
    WriterOptions,
    abort_transaction,
    aio,
    begin_transaction,
    commit_transaction,
)
from kcodec.consumer.assignors import RangeAssignor


def serialized(value: dict[str, str]) -> bytes:
    return str(value).encode()


def revoked(partitions: frozenset[TopicPartition]) -> None:
    print(partitions)


async def assigned(partitions: frozenset[TopicPartition]) -> None:
    print(partitions)


def right_options_pass(handle: TransactionHandle, metrics: Metrics, context: ssl.SSLContext) -> None:
    Producer(bootstrap_servers="b:9092", acks="all", linger_ms=2.5, compression_type="zstd", compression_level=3)
    Producer(bootstrap_servers=["b:9092"], acks=1, enable_idempotence=False, value_serializer=serialized)
    Producer(bootstrap_servers="b:9092", transactional_id="t", metrics=metrics, delivery_timeout_ms=None)
    Consumer(bootstrap_servers="b:9092", group_id="g", isolation_level="read_uncommitted", columns=("key", "value"))
    Consumer(partition_assignment_strategy=["sticky", RangeAssignor()], limits=DecodeLimits(), framing="confluent")
    Admin(bootstrap_servers="b:9092", security_protocol="SSL", ssl_cafile=Path("ca.pem"), ssl_password=Secret("x"))
    Admin(bootstrap_servers="b:9092", security_protocol="SSL", ssl_context=context, metrics=None)
    GroupTransactSession(
        bootstrap_servers="b:9092", group_id="g", transactional_id="t", topics="orders", on_revoked=revoked, linger_ms=1
    )
    TransactionWriter(handle, [TopicPartition("orders", 0)], bootstrap_servers="b:9092", batch_size=1)
    TransactionWriter(handle, [TopicPartition("orders", 0)], must_be_first=True, bootstrap_servers="b:9092")
    commit_transaction(handle, timeout=1.0, bootstrap_servers="b:9092", client_id="c")
    abort_transaction(handle, timeout=1.0, bootstrap_servers="b:9092", sasl_mechanism="PLAIN")
    begin_transaction("t", transaction_timeout_ms=900_000, bootstrap_servers="b:9092", client_id="c")
    SharedTransactions("t", "g", progress_partition=TopicPartition("p", 1), bootstrap_servers="b:9092", client_id="c")
    kcodec.read_topic("orders", start=5, bootstrap_servers="b:9092", isolation_level=IsolationLevel.READ_COMMITTED)
    kcodec.scan_topic("orders", bootstrap_servers="b:9092", binary_type="large_binary", fetch_max_wait_ms=0)
    ranges = [kcodec.OffsetRange("orders", 0, 5, 10, topic_id=None, leader_epoch=3)]
    kcodec.read_ranges(ranges, bootstrap_servers="b:9092", spark_layout=True, on_missing="skip", columns=("key",))
    kcodec.read_ranges(iter(ranges), bootstrap_servers="b:9092").ranges[0].lost.bit_length()


async def right_options_pass_with_asyncio(handle: TransactionHandle) -> None:
    aio.Producer(bootstrap_servers="b:9092", linger_ms=2.5, compression_type="zstd")
    aio.Consumer(bootstrap_servers="b:9092", group_id="g", check_crcs=False)
    aio.Admin(bootstrap_servers="b:9092", request_timeout_ms=1000)
    aio.GroupTransactSession(bootstrap_servers="b:9092", group_id="g", transactional_id="t", on_assigned=assigned)
    aio.TransactionWriter(handle, [TopicPartition("orders", 0)], bootstrap_servers="b:9092", batch_size=1)
    await aio.commit_transaction(handle, bootstrap_servers="b:9092", client_id="c")
    await aio.abort_transaction(handle, bootstrap_servers="b:9092", client_id="c")
    await aio.begin_transaction("t", transaction_timeout_ms=900_000, bootstrap_servers="b:9092", client_id="c")
    aio.SharedTransactions("t", "g", transaction_timeout_ms=5.0, bootstrap_servers="b:9092", client_id="c")
    aio.read_topic("orders", bootstrap_servers="b:9092", client_rack="r")
    aio.read_ranges([kcodec.OffsetRange("orders", 0, 5, 10)], bootstrap_servers="b:9092", client_rack="r")


def options_are_collected(untyped: dict[str, Any]) -> None:
    common: ClientOptions = {"bootstrap_servers": ["a:9092", "b:9092"], "request_timeout_ms": 10_000.0}
    secured: SecurityOptions = {"security_protocol": "SASL_SSL", "sasl_plain_password": Secret("x")}
    produced: ProducerOptions = {"acks": "all", "compression_type": "zstd", "linger_ms": 5}
    consumed: ConsumerOptions = {"group_id": "g", "isolation_level": "read_committed"}
    session: SessionOptions = {"group_id": "g", "transactional_id": "t", "max_poll_records": 10}
    written: WriterOptions = {"batch_size": 1}
    read: ReadTopicOptions = {"columns": ("key", "value")}
    Producer(**produced)
    Producer(**common, linger_ms=1)
    Producer(**written)
    Consumer(**consumed)
    Consumer(**untyped)
    GroupTransactSession(topics="orders", **session)
    Admin(**common)
    Admin(**secured)
    kcodec.read_topic("orders", **read)
    kcodec.read_ranges([kcodec.OffsetRange("orders", 0, 5, 10)], **read)


def collected_mistakes_are_found() -> None:
    misspelled: ProducerOptions = {"liger_ms": 5}  # type: ignore[typeddict-unknown-key]  # pyright: ignore[reportAssignmentType]
    wrong: ConsumerOptions = {"check_crcs": "false"}  # type: ignore[typeddict-item]  # pyright: ignore[reportAssignmentType]
    print(misspelled, wrong)


def mistakes_are_found(handle: TransactionHandle) -> None:
    Producer(liger_ms=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Producer(linger_ms="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Producer(compression_type="other")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(max_pol_records=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Consumer(max_poll_records="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(group_protocol="other")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Admin(request_time_ms=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Admin(request_timeout_ms="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Admin(security_protocol="other")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    GroupTransactSession(transaction_time_ms=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    GroupTransactSession(transaction_timeout_ms="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    GroupTransactSession(compression_type="other")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    TransactionWriter(handle, [], batchsize=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    TransactionWriter(handle, [], batch_size="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    TransactionWriter(handle, [], transactional_id="t")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    TransactionWriter(handle, [], must_be_first="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    commit_transaction(handle, client="c")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    commit_transaction(handle, client_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    abort_transaction(handle, client="c")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    abort_transaction(handle, client_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    begin_transaction("t", client="c")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    begin_transaction("t", client_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SharedTransactions("t", "g", acks="all")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SharedTransactions("t", "g", client_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.read_topic("orders", colums=("key",))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kcodec.read_topic("orders", columns=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.read_topic("orders", binary_type="string")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.read_topic("orders", group_id="g")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kcodec.read_ranges([], group_id="g")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kcodec.read_ranges([], on_missing="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.read_ranges(["orders"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    kcodec.scan_topic("orders", colums=("key",))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kcodec.scan_topic("orders", columns=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.scan_topic("orders", binary_type="string")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.scan_topic("orders", group_id="g")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def mistakes_are_found_with_asyncio(handle: TransactionHandle) -> None:
    aio.Producer(liger_ms=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aio.Producer(linger_ms="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.Producer(compression_type="other")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.Consumer(max_pol_records=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aio.Consumer(max_poll_records="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.Consumer(group_protocol="other")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.Admin(request_time_ms=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aio.Admin(request_timeout_ms="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.Admin(security_protocol="other")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.GroupTransactSession(transaction_time_ms=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aio.GroupTransactSession(transaction_timeout_ms="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.GroupTransactSession(compression_type="other")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.TransactionWriter(handle, [], batchsize=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aio.TransactionWriter(handle, [], batch_size="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.TransactionWriter(handle, [], transactional_id="t")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await aio.commit_transaction(handle, client="c")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await aio.commit_transaction(handle, client_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await aio.begin_transaction("t", client="c")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aio.SharedTransactions("t", "g", acks="all")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await aio.abort_transaction(handle, client="c")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await aio.abort_transaction(handle, client_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.read_topic("orders", colums=("key",))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aio.read_topic("orders", columns=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.read_topic("orders", binary_type="string")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.read_topic("orders", group_id="g")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aio.read_ranges([], group_id="g")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aio.read_ranges([], on_missing="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    aio.read_ranges(["orders"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
