# SPDX-License-Identifier: Apache-2.0
"""Mistakes of a first program: a timeout that is no number of seconds, sys.exit() in a callback, a header of a wrong
type."""

from __future__ import annotations

import asyncio
import datetime
import logging
import sys
from typing import Any, cast

import numpy
import polars
import pytest

from kcodec.broker import Broker
from kcodec.client import Consumer, Producer, RecordMetadata, aio
from kcodec.client import poll_timeouts as timeouts
from kcodec.errors import AbortableTransactionError, EncodeError, TransactionStateError
from kcodec.offsets import TopicPartition

EXPECTED = "timeout must be a number of seconds or None, got "


@pytest.mark.parametrize("timeout", ["3", datetime.timedelta(seconds=3)])
def test_a_timeout_of_another_type_says_what_is_expected(kcodec_broker: Broker, timeout: Any) -> None:
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        for poll in (consumer.poll, consumer.poll_one, consumer.poll_arrow):
            with pytest.raises(TypeError, match=f"^poll: {EXPECTED}.* of type {type(timeout).__name__}; pass a number"):
                poll(timeout)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        delivery = producer.send("orders", b"v")
        with pytest.raises(TypeError, match=f"^result: {EXPECTED}"):
            delivery.result(timeout)
        with pytest.raises(TypeError, match=rf"^flush\(\): {EXPECTED}"):
            producer.flush(timeout)
        assert delivery.result(30).offset == 0


@pytest.mark.parametrize("timeout", ["3", float("nan")])
def test_a_transaction_call_names_its_wrong_timeout(kcodec_broker: Broker, timeout: Any) -> None:
    """The call changes no state, so the next call works."""
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="wrong-timeout") as producer:

        def refused(name: str, *arguments: Any) -> None:
            with pytest.raises((TypeError, ValueError), match=f"^{name}: {EXPECTED}"):
                getattr(producer, name)(*arguments, timeout=timeout)

        for name in ("init_transactions", "begin_transaction", "transaction"):
            refused(name)
        producer.begin_transaction()
        refused("send_offsets_to_transaction", {}, "group")
        for name in ("commit_transaction", "commit_transaction_async", "abort_transaction", "release"):
            refused(name)
        producer.commit_transaction()


def test_a_timeout_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match=f"^poll: {EXPECTED}nan"):
        timeouts.check_poll(float("nan"))


def test_a_poll_that_looks_like_milliseconds_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timeouts, "_hinted", set())
    for seconds in (None, 0.5, 600, 3000, 3000):
        timeouts.check_poll(seconds)
    assert [record.message for record in caplog.records] == [
        "poll(timeout=3000) waits for up to 50 minutes, as timeouts are in seconds: pass 3 if milliseconds were meant,"
        " or None to wait without a limit"
    ]


def test_sys_exit_in_a_callback_does_not_end_the_client(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """It would end the I/O thread and not the program, and the other records of the batch would fail."""

    def on_delivery(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        if metadata is not None and metadata.offset == 1:
            sys.exit(2)

    with caplog.at_level(logging.ERROR), Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        sent = [producer.send("exits", b"v", partition=0, on_delivery=on_delivery) for _ in range(4)]
        producer.flush()
        assert producer.send("exits", b"v", partition=0).result(30).offset == 4
    assert [delivery.offset for delivery in sent] == [0, 1, 2, 3]
    assert [record.message for record in caplog.records] == ["a callback of a delivery to exits failed"]


def test_sys_exit_in_metrics_does_not_end_the_client(kcodec_broker: Broker) -> None:
    class Exiting:
        calls = 0

        def count(self, name: str, value: int = 1, **labels: object) -> None:
            type(self).calls += 1
            sys.exit(3)

        def latency(self, name: str, seconds: float, **labels: object) -> None:
            sys.exit(3)

    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, metrics=Exiting()) as producer:
        assert producer.send("exits-too", b"v", partition=0).result(30).offset == 0
    assert Exiting.calls > 1


def test_an_invalid_record_is_not_called_a_row(kcodec_broker: Broker) -> None:
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for _ in range(2):
            with pytest.raises(EncodeError) as raised:
                producer.send("orders", b"v", headers=[("id", 5)], partition=0)
            assert str(raised.value) == "the value of header 0 ('id') must be bytes or None, not int"
            assert producer.send("orders", b"v", partition=0).result(30)


@pytest.mark.parametrize("key", ["text", 5, 1.5, ["text"], memoryview(b"text")[::2]])
def test_an_invalid_key_is_the_same_error_before_and_after_metadata(kcodec_broker: Broker, key: Any) -> None:
    """After it had arrived, the choice of the partition raised TypeError."""
    found = []
    topic = kcodec_broker.create_topic(partitions=3)

    async def send() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            for _ in range(2):
                with pytest.raises(EncodeError) as caught:
                    await producer.send(topic, b"v", key=key)
                found.append(caught.value)
                await (await producer.send(topic, b"v"))

    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for _ in range(2):
            with pytest.raises(EncodeError) as caught:
                producer.send(topic, b"v", key=key)
            found.append(caught.value)
            producer.send(topic, b"v").result()
    asyncio.run(send())
    assert len({str(error) for error in found}) == 1
    assert {(error.field, error.row) for error in found} == {("key", None)} and found[3].value is key


@pytest.mark.parametrize("timestamp", [2**63, -5, "5"])
def test_an_invalid_timestamp_is_refused_before_and_after_metadata(kcodec_broker: Broker, timestamp: Any) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        with pytest.raises(EncodeError, match="timestamp") as before:
            producer.send(topic, b"v", timestamp=timestamp)
        producer.partitions_for(topic)
        with pytest.raises(EncodeError) as after:
            producer.send(topic, b"v", timestamp=timestamp)
    assert str(before.value) == str(after.value)


def test_an_integer_of_numpy_is_a_timestamp(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        assert type(producer.send(topic, b"v", timestamp=cast(int, numpy.int64(5))).result(30).timestamp) is int


def test_an_invalid_key_blocks_the_commit_of_its_transaction(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=3)
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "transactional_id": topic}
    with Producer(**options) as producer:
        for _ in range(2):
            producer.begin_transaction()
            with pytest.raises(EncodeError):
                producer.send(topic, b"v", key="text")
            with pytest.raises(AbortableTransactionError, match="key must be bytes or None, not str"):
                producer.commit_transaction()
            producer.abort_transaction()
            assert producer.partitions_for(topic) == 3


@pytest.mark.parametrize("table", [[b"1", b"2"], "records", None, 5, polars.Series(["a"])], ids=repr)
def test_what_is_no_table_is_refused_by_its_type(kcodec_broker: Broker, table: Any) -> None:
    with (
        Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer,
        pytest.raises(
            TypeError, match=rf"^table must be a pyarrow.Table, .*, got {type(table).__name__}; send records"
        ),
    ):
        producer.send_arrow("orders", table)


def test_a_lazy_frame_has_no_rows_to_send(kcodec_broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer,
        pytest.raises(TypeError, match=r"must not be a LazyFrame, .*: pass the result of its collect\(\)"),
    ):
        producer.send_arrow("orders", polars.LazyFrame({"value": ["a"]}))


def test_a_memoryview_with_gaps_is_refused_by_its_form(kcodec_broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer,
        pytest.raises(EncodeError, match="value must be a contiguous memoryview"),
    ):
        producer.send(kcodec_broker.create_topic(), memoryview(b"abcd")[::2])


def test_the_error_before_a_block_of_asyncio_names_async_with() -> None:
    async def main() -> None:
        async with aio.Producer(bootstrap_servers="localhost:1", transactional_id="t") as producer:
            await producer.transaction().send("orders", b"x")

    with pytest.raises(TransactionStateError, match=r"use `async with producer\.transaction"):
        asyncio.run(main())
