# SPDX-License-Identifier: Apache-2.0
"""TransactionWriter.send_encoded: record batches that were encoded elsewhere, on real brokers. Brokers store what was
encoded, numbered as the transaction requires, and another client reads it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer
from transaction_cluster import TransactionCluster

import kcodec
from kcodec import TopicPartition
from kcodec.client import TransactionHandle, TransactionWriter, aio, begin_transaction, commit_transaction
from kcodec.errors import BrokerError, CorruptBatchError, EncodeError, TransactionStateError
from kcodec.record.rewrite import set_log_append_time, set_producer_state

NOW = 1_700_000_000_000


def encoded(count: int, first: int = 0, **options: Any) -> list[bytes]:
    """Batches of records with keys, headers, a tombstone and timestamps."""
    numbers = range(first, first + count)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table({
        "key": pa.array([b"%d" % number for number in numbers]),
        "value": pa.array([None if number % 7 == 0 else b"%d paid" % number * 10 for number in numbers], pa.binary()),
        "headers": pa.array([[{"key": "h", "value": b"%d" % number}] for number in numbers], header),
        "timestamp": pa.array([NOW + number for number in numbers], pa.int64()),
    })  # fmt: skip
    return [bytes(batch.data) for batch in kcodec.encode(table, **options).batches]


@pytest.fixture
def topic(transaction_cluster: TransactionCluster) -> str:
    return transaction_cluster.kafka.create_topic(partitions=1)


@pytest.fixture
def handle(transaction_cluster: TransactionCluster, topic: str) -> Iterator[TransactionHandle]:
    servers = transaction_cluster.kafka.bootstrap_servers
    partitions = [TopicPartition(topic, 0)]
    yield begin_transaction(transaction_cluster.new_id(), partitions=partitions, bootstrap_servers=servers)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_an_encoded_batch_is_stored_as_it_is(
    transaction_cluster: TransactionCluster, topic: str, handle: TransactionHandle, codec: str
) -> None:
    servers = transaction_cluster.kafka.bootstrap_servers
    batches = [encoded(100, first, compression=codec)[0] for first in range(0, 700, 100)]
    with TransactionWriter(handle, [(topic, 0)], must_be_first=True, bootstrap_servers=servers) as writer:  # type: ignore[list-item]
        for number, batch in enumerate(batches):
            # What was in these fields does not matter.
            stamped = bytearray(batch)
            set_producer_state(stamped, 99, 4, 1234, False)
            writer.send_encoded(topic, stamped, None if number % 2 else 0)
        writer.send(topic, b"last")
    commit_transaction(handle, receipts=[writer.receipt], bootstrap_servers=servers)
    assert writer.receipt.records_count == 701
    stored = [batch for batch in transaction_cluster.logs(topic)[0].batches if not batch.is_control_batch]
    assert [batch.base_sequence for batch in stored] == [*range(0, 701, 100)]
    for ours, theirs in zip(batches, stored, strict=False):
        theirs.ensure_valid()
        assert bytes(theirs.data)[61:] == ours[61:]
        assert (theirs.producer_id, theirs.producer_epoch) == (handle.producer_id, handle.producer_epoch)
        assert theirs.is_transactional
        assert theirs.compression.name.lower() == codec
        assert (theirs.records_count, theirs.max_timestamp) == (100, theirs.base_timestamp + 99)
    if codec == "snappy":
        return  # the other client needs one more package for it
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=20_000,
    )
    with closing(consumer):
        read = [(one.offset, one.key, one.value, one.headers, one.timestamp) for one in islice(consumer, 701)]
    values = [None if number % 7 == 0 else b"%d paid" % number * 10 for number in range(700)]
    assert read[:-1] == [(n, b"%d" % n, values[n], [("h", b"%d" % n)], NOW + n) for n in range(700)]


def test_a_batch_too_large_for_the_topic_is_split(transaction_cluster: TransactionCluster) -> None:
    """Sequence numbers continue, so that the batches behind it are accepted, too."""
    servers = transaction_cluster.kafka.bootstrap_servers
    topic = transaction_cluster.kafka.create_topic(partitions=1, max_message_bytes=4000)
    partition = TopicPartition(topic, 0)
    handle = begin_transaction(transaction_cluster.new_id(), partitions=[partition], bootstrap_servers=servers)
    with TransactionWriter(handle, [partition], bootstrap_servers=servers) as writer:
        for first in (0, 200, 400):
            writer.send_encoded(topic, encoded(200, first)[0])
    commit_transaction(handle, receipts=[writer.receipt], bootstrap_servers=servers)
    records = list(transaction_cluster.logs(topic)[0].records("read_committed"))
    assert [int(record.key) for record in records] == list(range(600))
    assert [record.timestamp for record in records] == [NOW + number for number in range(600)]
    batches = [batch for batch in transaction_cluster.logs(topic)[0].batches if not batch.is_control_batch]
    assert len(batches) > 6
    assert all(batch.size_in_bytes <= 4000 for batch in batches)
    handle = begin_transaction(transaction_cluster.new_id(), partitions=[partition], bootstrap_servers=servers)
    writer = TransactionWriter(handle, [partition], bootstrap_servers=servers)
    writer.send_encoded(topic, kcodec.encode([(None, b"1" * 5000)], timestamp=NOW).batches[0].data)
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        writer.close()


def test_what_no_producer_may_send_is_refused(
    transaction_cluster: TransactionCluster, topic: str, handle: TransactionHandle
) -> None:
    """It blocks the commit, as any record does that was not written."""
    (good,) = encoded(10)
    control, gap, logged, corrupt = (bytearray(good) for _ in range(4))
    struct.pack_into(">h", control, 21, 0x20)
    struct.pack_into(">i", gap, 23, 20)
    set_log_append_time(logged, NOW)
    corrupt[-1] ^= 1
    servers = transaction_cluster.kafka.bootstrap_servers
    for wrong, kind, text in (
        (b"", EncodeError, "one record batch, got 0 of them in 0 bytes"),
        (good + good, EncodeError, "one record batch, got 2"),
        (good[:-1], EncodeError, "one record batch, got 0"),
        (control, EncodeError, "it is a control batch"),
        (gap, EncodeError, "10 records and a last offset delta of 20"),
        (logged, EncodeError, "LogAppendTime"),
        (corrupt, CorruptBatchError, "does not match the CRC"),
    ):
        writer = TransactionWriter(handle, [(topic, 0)], bootstrap_servers=servers)  # type: ignore[list-item]
        with pytest.raises(kind, match=text):
            writer.send_encoded(topic, wrong)
        with pytest.raises(kind, match=text):
            writer.close()
        with pytest.raises(TransactionStateError, match="this writer has no receipt"):
            _ = writer.receipt
    writer = TransactionWriter(handle, [(topic, 0)], bootstrap_servers=servers)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="partition= must be one of this writer's partitions"):
        writer.send_encoded(topic, good, 1)
    writer.close()


def test_the_asyncio_writer_sends_encoded_batches(
    transaction_cluster: TransactionCluster, topic: str, handle: TransactionHandle
) -> None:
    servers = transaction_cluster.kafka.bootstrap_servers

    async def write() -> Any:
        async with aio.TransactionWriter(handle, [TopicPartition(topic, 0)], bootstrap_servers=servers) as writer:
            sent = await writer.send_encoded(topic, encoded(50)[0])
            found = await sent
            assert [(each.partition, each.base_offset, each.records_count) for each in found] == [(0, 0, 50)]
        return writer.receipt

    receipt = asyncio.run(write())
    commit_transaction(handle, receipts=[receipt], bootstrap_servers=servers)
    assert len(transaction_cluster.committed(topic)[0]) == 50
