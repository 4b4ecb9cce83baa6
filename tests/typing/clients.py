# SPDX-License-Identifier: Apache-2.0
"""What type checkers make of the clients: read by mypy and basedpyright, never run."""

from typing import assert_type

from kcodec import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.client import (
    BatchMetadata,
    Delivery,
    Producer,
    RecordMetadata,
    SharedTransactions,
    TableDelivery,
    Transaction,
    TransactionHandle,
    TransactionWriter,
    WriterReceipt,
    aio,
    begin_transaction,
    commit_transaction,
)
from kcodec.errors import BrokerError


def producing(producer: Producer, table: object) -> None:
    delivery = producer.send("orders", b"value", key=b"key", headers={"trace": b"1"})
    assert_type(delivery, Delivery)
    assert_type(delivery.result(1.0), RecordMetadata)
    assert_type(delivery.result().offset, int)
    assert_type(delivery.offset, int | None)
    assert_type(producer.send_arrow("orders", table), TableDelivery)
    assert_type(producer.send_arrow("orders", table).result(), list[BatchMetadata])
    producer.send()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    producer.send("orders", partition="0")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def transactions(producer: Producer) -> None:
    with producer.transaction(partitions=[TopicPartition("out", 0)]) as txn:
        assert_type(txn, Transaction)
        txn.send("out", b"value")
        txn.send_offsets({TopicPartition("in", 0): 3}, ConsumerGroupMetadata("group"))
        assert_type(txn.handle, TransactionHandle)
        txn.send_offsets({TopicPartition("in", 0): "3"}, "group")  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    assert_type(txn.committed, bool | None)
    producer.begin_transaction()
    producer.commit_transaction(timeout=1.0)
    assert_type(producer.release(timeout=1.0), TransactionHandle)
    assert_type(producer.receipt, WriterReceipt)


def shared(handle: TransactionHandle) -> None:
    with TransactionWriter(handle, partitions=[TopicPartition("out", 0)], bootstrap_servers="b:9092") as writer:
        writer.send("out", b"value")
    assert_type(writer.receipt, WriterReceipt)
    commit_transaction(handle, bootstrap_servers="b:9092", receipts=[writer.receipt])
    begun = begin_transaction("copy-0", partitions=[TopicPartition("out", 0)], bootstrap_servers="b:9092")
    assert_type(begun, TransactionHandle)
    with SharedTransactions("copy-0", "progress", bootstrap_servers="b:9092") as steps:
        assert_type(steps.begin([TopicPartition("out", 0)]), tuple[TransactionHandle, OffsetAndMetadata | None])
        steps.commit(begun, [writer.receipt], 1)
        steps.commit(begun, [writer.receipt], OffsetAndMetadata(1, "text"), timeout=1.0)
        steps.commit(begun, [writer.receipt])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def with_asyncio(producer: aio.Producer) -> None:
    delivery = await producer.send("orders", b"value")
    assert_type(delivery, aio.Delivery)
    assert_type(await delivery, RecordMetadata)
    async with producer.transaction() as txn:
        await txn.send("orders", b"value")
    assert_type(txn.committed, bool | None)
    assert_type(await producer.release(), TransactionHandle)


def errors(error: BrokerError) -> None:
    assert_type(error.code, int)
    assert_type(error.remedy, str)
    assert_type(error.retriable, bool)
