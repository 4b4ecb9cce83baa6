# SPDX-License-Identifier: Apache-2.0
"""A record that `send` itself rejects blocks the commit of its transaction, also where the program goes on."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import GroupTransactSession, Producer, TransactionWriter, aio
from kcodec.errors import AbortableTransactionError, EncodeError, TransactionStateError
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.testing.kafka import ApacheKafka
from kcodec.transactions.errors import not_written

TOO_LARGE = bytes(3000)


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.create_topic(partitions=2)


@pytest.fixture
def options(apache_kafka: ApacheKafka) -> dict[str, Any]:
    return {
        "bootstrap_servers": apache_kafka.bootstrap_servers,
        "transactional_id": f"rejects-{uuid.uuid4().hex[:8]}",
        "max_request_size": 2000,
    }


def send_too_large(transaction: Any, topic: str) -> None:
    transaction.send(topic, TOO_LARGE, partition=1)


def send_to_no_partition(transaction: Any, topic: str) -> None:
    transaction.send(topic, b"x", partition=7)


def send_a_wrong_row(transaction: Any, topic: str) -> None:
    transaction.send_arrow(topic, {"value": [b"x", TOO_LARGE], "key": [b"k", b"k"]})


@pytest.mark.parametrize("send", [send_too_large, send_to_no_partition, send_a_wrong_row])
def test_a_rejected_record_blocks_the_commit(options: dict[str, Any], topic: str, send: Any) -> None:
    with Producer(**options) as producer:
        txn = producer.transaction()
        with pytest.raises(AbortableTransactionError, match=f"a record for .*{topic}.* was not written") as caught, txn:
            txn.send(topic, b"first").result()
            with pytest.raises(EncodeError):
                send(txn, topic)
        assert txn.committed is False
        assert isinstance(caught.value.__cause__, EncodeError) and caught.value.remedy == "abort"
        with producer.transaction() as txn:
            txn.send(topic, b"second")
        assert txn.committed


def test_a_blocked_commit_names_one_remedy() -> None:
    """Its own. The error of the broker, which has another one, is the cause."""
    cause = broker_error(ErrorCode.MESSAGE_TOO_LARGE, "Produce to orders-0 at node 1")
    blocked = not_written("tx", TopicPartition("orders", 0), cause)
    assert blocked.__cause__ is cause and "remedy: stop" in str(cause)
    assert str(blocked).count("remedy") == str(blocked).count("MESSAGE_TOO_LARGE") == 1
    assert str(blocked).endswith("[MESSAGE_TOO_LARGE, 10; remedy: abort]")


def test_java_s_names_report_it_too(options: dict[str, Any], topic: str) -> None:
    with Producer(**options) as producer:
        producer.begin_transaction()
        producer.send(topic, b"first").result()
        with suppress(EncodeError):
            producer.send(topic, TOO_LARGE)
        with pytest.raises(AbortableTransactionError, match="above max_request_size 2000"):
            producer.commit_transaction()
        producer.abort_transaction()


def test_a_record_refused_in_a_callback_blocks_the_commit(options: dict[str, Any], topic: str) -> None:
    """There was no buffer space, and a callback must not wait for it."""
    raised: list[BaseException] = []

    def fill(_: object) -> None:
        try:
            for _ in range(200):
                txn.send(topic, bytes(1900), partition=0)
        except RuntimeError as error:
            raised.append(error)

    with Producer(**options, buffer_memory=100_000, linger_ms=0) as producer:
        txn = producer.transaction()
        with pytest.raises(AbortableTransactionError, match="I/O thread"), txn:
            txn.send(topic, b"first", partition=0).add_done_callback(fill)
            producer.flush()
        assert raised and txn.committed is False


def test_asyncio_reports_it_too(options: dict[str, Any], topic: str) -> None:
    async def transact() -> None:
        async with aio.Producer(**options) as producer:
            with pytest.raises(AbortableTransactionError, match="above max_request_size 2000"):
                async with producer.transaction() as txn:
                    await txn.send(topic, b"first")
                    with suppress(EncodeError):
                        await txn.send(topic, TOO_LARGE)
            assert txn.committed is False

    asyncio.run(transact())


def test_a_session_reports_it_too(options: dict[str, Any], topic: str) -> None:
    with GroupTransactSession(**options, group_id=options["transactional_id"], topics=[topic]) as session:
        txn = session.transaction()
        with pytest.raises(AbortableTransactionError, match="above max_request_size 2000"), txn, suppress(EncodeError):
            txn.send(topic, TOO_LARGE)
        assert txn.committed is False


def test_a_writer_that_rejected_a_record_gives_no_receipt(options: dict[str, Any], topic: str) -> None:
    with Producer(**options) as producer, producer.transaction(partitions=[(topic, 0)]) as txn:  # type: ignore[list-item]
        own = {name: value for name, value in options.items() if name != "transactional_id"}
        writer = TransactionWriter(txn.handle, partitions=[(topic, 0)], **own)  # type: ignore[list-item]
        writer.send(topic, b"first")
        with suppress(EncodeError):
            writer.send(topic, TOO_LARGE)
        with pytest.raises(EncodeError):
            writer.flush()
        with pytest.raises(EncodeError):
            writer.close()
        with pytest.raises(TransactionStateError):
            _ = writer.receipt
        txn.abort()


def test_a_mistake_in_arguments_does_not_block_the_commit(options: dict[str, Any], topic: str) -> None:
    """TypeError: what was given made no record at all. So does what a serializer raises."""
    with Producer(**options) as producer:
        with producer.transaction() as txn:
            txn.send(topic, b"first")
            with pytest.raises(TypeError):
                txn.send(17, b"x")  # type: ignore[arg-type]
        assert txn.committed


def test_a_rejected_record_outside_a_transaction_changes_nothing(options: dict[str, Any], topic: str) -> None:
    with Producer(**options) as producer:
        with suppress(TransactionStateError):
            producer.send(topic, TOO_LARGE)
        with producer.transaction() as txn:
            txn.send(topic, b"x")
        assert txn.committed


def test_a_record_that_was_refused_before_the_transaction_does_not_block_it(kcodec_broker: Broker) -> None:
    """One thread sends too late and gets an error. Before it reports the error, another begins a transaction."""
    kcodec_broker.create_topic("orders")
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="t") as producer:
        with producer.transaction() as txn:
            txn.send("orders", b"first")
        with pytest.raises(TransactionStateError) as caught:
            producer.send("orders", b"too late")
        with producer.transaction() as txn:
            txn.send("orders", b"second")
            assert producer._core.rejection("orders", None, caught.value, None) is None
        assert txn.committed
    assert [record.value for record in kcodec_broker.committed("orders")] == [b"first", b"second"]
