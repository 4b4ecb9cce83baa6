# SPDX-License-Identifier: Apache-2.0
"""`on_delivery` and `send_and_wait`, sync and async: what they report, where, and what happens if a function raises."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer, RecordMetadata
from kcodec.client.aio import Producer as AioProducer
from kcodec.errors import DeliveryErrors, DeliveryTimeoutError, EncodeError, TopicDeliveryError

Reports = list[tuple[RecordMetadata | None, BaseException | None, str]]
UNREACHABLE: dict[str, Any] = {
    "bootstrap_servers": "localhost:1",
    "linger_ms": 0,
    "request_timeout_ms": 100,
    "max_block_ms": 200,
}


def reporter(reports: Reports) -> Any:
    def report(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        reports.append((metadata, error, threading.current_thread().name))

    return report


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    name: str = kcodec_broker.create_topic(partitions=1)
    return name


@pytest.fixture
def producer(kcodec_broker: Broker) -> Iterator[Producer]:
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as one:
        yield one


def test_on_delivery_gets_the_metadata_on_the_io_thread(producer: Producer, topic: str) -> None:
    reports: Reports = []
    deliveries = [producer.send(topic, b"%d" % number, on_delivery=reporter(reports)) for number in range(100)]
    producer.flush()
    assert [metadata for metadata, _, _ in reports] == [delivery.result() for delivery in deliveries]
    assert {error for _, error, _ in reports} == {None}
    assert threading.current_thread().name not in {thread for _, _, thread in reports}


def test_on_delivery_gets_the_error_of_a_failed_record() -> None:
    """The error then counts as retrieved: flush does not raise it again."""
    reports: Reports = []
    with Producer(**UNREACHABLE, delivery_timeout_ms=200) as producer:
        producer.send("orders", b"1", on_delivery=reporter(reports))
        producer.flush()
    ((metadata, error, _),) = reports
    assert metadata is None and isinstance(error, DeliveryTimeoutError)


class OfConfluent:
    """Callbacks with the order of confluent-kafka."""

    def __call__(self, err: Any, msg: Any) -> None:
        raise AssertionError

    def report(self, err: Any, msg: Any) -> None:
        raise AssertionError

    def swapped(self, metadata: Any, err: Any) -> None:
        self.got = metadata, err


@pytest.mark.parametrize(
    "function",
    [
        lambda err, msg: None,
        lambda error, _: None,
        OfConfluent(),
        OfConfluent().report,
        partial(OfConfluent().report),
        partial(lambda number, err, msg: None, 17),
    ],
)
def test_on_delivery_that_expects_the_error_first_is_refused(producer: Producer, topic: str, function: Any) -> None:
    """confluent-kafka passes the error first. Such a callback would take a failed record for a delivered one, and its
    error would count as handled."""
    for _ in range(2):
        with pytest.raises(TypeError, match=r"on_delivery: the first parameter .* exchange the two parameters"):
            producer.send(topic, b"1", on_delivery=function)
    right = OfConfluent()
    for report in (right.swapped, partial(lambda err, metadata, error: None, 17), print):
        producer.send(topic, b"2", on_delivery=report)
    producer.flush()
    assert right.got[0].offset == 0
    assert right.got[1] is None


def test_on_delivery_is_not_called_if_send_raises(producer: Producer, topic: str) -> None:
    reports: Reports = []
    assert producer.partitions_for(topic) == 1
    with pytest.raises(EncodeError):
        producer.send(topic, b"1", partition=7, on_delivery=reporter(reports))
    with pytest.raises(TypeError, match="not 'print' of type str"):
        producer.send(topic, b"1", on_delivery="print")  # type: ignore[arg-type]
    producer.flush()
    assert not reports


def test_what_on_delivery_raises_is_logged(producer: Producer, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """And the function of the next record is called all the same."""
    reports: Reports = []

    async def never(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        raise AssertionError("never awaited")

    def wrong(metadata: RecordMetadata | None, error: BaseException | None) -> object:
        return never(metadata, error)

    def fail(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        raise LookupError("no such order")

    with caplog.at_level(logging.ERROR, "kcodec.producer"):
        producer.send(topic, b"1", on_delivery=fail)
        producer.send(topic, b"2", on_delivery=wrong)
        producer.send(topic, b"3", on_delivery=reporter(reports))
        producer.flush()
    assert len(reports) == 1
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [LookupError, TypeError]
    assert "plain function, not the coroutine function" in caplog.text


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_failing_on_delivery_does_not_hide_the_error(is_coroutine: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A function that reads the metadata of a failed record gets None: the record must not be lost without a trace."""

    def report(metadata: Any, error: BaseException | None) -> None:
        print(metadata.offset)

    async def never(metadata: Any, error: BaseException | None) -> None:
        raise AssertionError("never awaited")

    def coroutine(metadata: Any, error: BaseException | None) -> Any:
        return never(metadata, error)

    with Producer(**UNREACHABLE, delivery_timeout_ms=200) as producer:
        producer.send("orders", b"1", on_delivery=coroutine if is_coroutine else report)
        producer.send("orders", b"2", on_delivery=lambda metadata, error: None)
        with pytest.raises(DeliveryErrors) as caught:
            producer.flush()
            producer.close()  # if the function is called after the flush has ended
    (one,) = caught.value.exceptions
    assert isinstance(one, TopicDeliveryError)
    assert (one.topic, one.kind, one.count) == ("orders", "DeliveryTimeoutError", 1)
    assert "a callback of a delivery to orders failed" in caplog.text


def test_a_record_that_has_ended_is_reported_on_the_io_thread(producer: Producer, topic: str) -> None:
    from kcodec.producer.on_delivery import call_on_delivery

    delivery = producer.send(topic, b"1")
    delivery.result(20)
    reports: Reports = []
    called = threading.Event()

    def report(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        reporter(reports)(metadata, error)
        called.set()

    call_on_delivery(delivery, report, producer._io_loop.post)
    assert called.wait(10)
    assert reports[0][0] == delivery.result()
    assert reports[0][2] != threading.current_thread().name


def test_send_and_wait_returns_where_the_record_is(producer: Producer, topic: str) -> None:
    first, second = producer.send_and_wait(topic, b"1", key=b"k"), producer.send_and_wait(topic, b"2")
    assert second.offset == first.offset + 1
    assert (first.topic, first.partition) == (topic, 0)
    with pytest.raises(EncodeError):
        producer.send_and_wait(topic, b"1", partition=3)


def test_a_transaction_reports_its_records(kcodec_broker: Broker, topic: str) -> None:
    reports: Reports = []
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "transactional_id": "reports"}
    with Producer(**options) as producer, producer.transaction() as txn:
        txn.send(topic, b"1", on_delivery=reporter(reports))
    assert reports[0][0] is not None


def test_asyncio_reports_in_the_event_loop(kcodec_broker: Broker, topic: str) -> None:
    async def run() -> Reports:
        reports: Reports = []
        async with AioProducer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            delivery = await producer.send(topic, b"1", on_delivery=reporter(reports))
            metadata = await delivery
            assert (await producer.send_and_wait(topic, b"2")).offset == metadata.offset + 1
        return reports

    reports = asyncio.run(run())
    assert len(reports) == 1
    assert reports[0][2] == threading.current_thread().name
