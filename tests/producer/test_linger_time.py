# SPDX-License-Identifier: Apache-2.0
"""How long records wait for others: while the processor is the limit (`kcodec.producer.linger`), and while a caller
waits for them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer, aio
from kcodec.producer.linger import LONGEST_SECONDS, TIMES_THE_WORK, LingerTime


@dataclass
class Clocks:
    """The time, and the processor time of the I/O thread and of the process, in seconds."""

    now: float = 0.0
    work: float = 0.0
    process: float = 0.0

    def linger(self, usual: float, longest: float = LONGEST_SECONDS) -> LingerTime:
        return LingerTime(usual, longest, lambda: self.now, lambda: self.work, lambda: self.process)

    def prepare_requests(self, linger: LingerTime, *, work: float, others: float, idle: float) -> float:
        """Let other threads work and the process wait; then prepare requests."""
        self.now += others + idle
        self.process += others
        linger.begin()
        self.now += work
        self.work += work
        self.process += work
        return linger.after_requests()


def test_records_linger_longer_while_requests_take_the_whole_processor() -> None:
    clocks = Clocks()
    linger = clocks.linger(0.005)
    assert clocks.prepare_requests(linger, work=0.01, others=0.01, idle=0.0) == pytest.approx(TIMES_THE_WORK * 0.01)
    assert clocks.prepare_requests(linger, work=0.5, others=0.01, idle=0.0) == LONGEST_SECONDS


def test_records_do_not_linger_until_their_delivery_timeout() -> None:
    clocks = Clocks()
    linger = clocks.linger(0.005, 0.03)
    assert clocks.prepare_requests(linger, work=0.5, others=0.01, idle=0.0) == 0.03
    with Producer(bootstrap_servers="127.0.0.1:9", delivery_timeout_ms=1030, request_timeout_ms=1000) as producer:
        built = producer._core.sender.linger
        assert built is not None and built._longest == pytest.approx(0.03)


def test_records_linger_as_usual_again_once_there_is_time_or_little_to_prepare() -> None:
    clocks = Clocks()
    linger = clocks.linger(0.005)
    clocks.prepare_requests(linger, work=0.01, others=0.01, idle=0.0)
    assert clocks.prepare_requests(linger, work=0.01, others=0.01, idle=0.01) == 0.005
    clocks.prepare_requests(linger, work=0.01, others=0.01, idle=0.0)
    assert clocks.prepare_requests(linger, work=0.0002, others=0.01, idle=0.0) == 0.005


@pytest.fixture
def producer(kcodec_broker: Broker) -> Iterator[Producer]:
    kcodec_broker.create_topic("orders", partitions=3)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=30_000) as producer:
        producer.partitions_for("orders")
        yield producer


def test_a_caller_that_waits_for_its_record_does_not_wait_for_linger_ms(producer: Producer) -> None:
    began = time.monotonic()
    for number in range(20):
        assert producer.send("orders", b"v", partition=0).result(20).offset == number
    assert producer.send_and_wait("orders", b"v", partition=0).offset == 20
    several = [producer.send("orders", b"v", partition=number % 3) for number in range(30)]
    assert [delivery.result(20).partition for delivery in several] == [number % 3 for number in range(30)]
    assert time.monotonic() - began < 20


def test_a_record_in_the_second_batch_of_its_partition_does_not_linger_either(kcodec_broker: Broker) -> None:
    """The first request does not contain it."""
    kcodec_broker.create_topic("orders", partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=30_000) as producer:
        began = time.monotonic()
        producer.send("orders", b"v" * 20_000)
        producer.send("orders", b"v").result(20)
        assert time.monotonic() - began < 20


def test_a_caller_may_begin_to_wait_while_its_record_ends(producer: Producer) -> None:
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(2_000):
            producer.send("orders", b"v", partition=number % 3)
            producer.send("orders", b"v", partition=number % 3).result(20)
    finally:
        sys.setswitchinterval(switch_interval)


def test_a_record_without_a_caller_that_waits_lingers(producer: Producer) -> None:
    producer.send("orders", b"v", partition=0).result(20)
    delivery = producer.send("orders", b"v", partition=0)
    time.sleep(0.2)
    assert not delivery.done()


def test_a_caller_that_begins_to_wait_during_a_request_waits_for_its_response_only(
    kcodec_broker: Broker, producer: Producer
) -> None:
    """The records of other threads are sent together after the response."""
    producer.send("orders", b"v", partition=0).result(20)
    kcodec_broker.faults.add("Produce", count=1, delay_ms=300)
    with ThreadPoolExecutor(10) as threads:
        first = threads.submit(producer.send_and_wait, "orders", b"first", partition=0)
        time.sleep(0.1)
        others = [threads.submit(producer.send_and_wait, "orders", b"v", partition=0) for _ in range(9)]
        began = time.monotonic()
        offsets = sorted(one.result(20).offset for one in [first, *others])
    assert time.monotonic() - began < 20
    assert offsets == list(range(1, 11))


def test_tasks_that_await_their_records_do_not_wait_for_linger_ms(kcodec_broker: Broker) -> None:
    kcodec_broker.create_topic("orders", partitions=1)

    async def program() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=30_000) as producer:
            for number in range(10):
                assert (await producer.send_and_wait("orders", b"v")).offset == number
            stored = await asyncio.gather(*(producer.send_and_wait("orders", b"v") for _ in range(20)))
            assert [one.offset for one in stored] == list(range(10, 30))

    asyncio.run(asyncio.wait_for(program(), 20))
