# SPDX-License-Identifier: Apache-2.0
"""A signal handler runs in the middle of a call of its thread. If that call holds a lock of the client, another call in
the handler would wait forever: it raises RuntimeError instead."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Consumer, GroupTransactSession, Producer

MESSAGE = "inside another call of the same client, which a signal handler or a finalizer has interrupted"


@pytest.mark.parametrize("call", ["send", "flush", "close", "partitions_for", "send_and_wait"])
def test_a_producer_refuses_calls_within_its_lock(call: str) -> None:
    with Broker() as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        broker.create_topic("orders")
        producer.send_and_wait("orders", b"first")
        arguments = {"send": ("orders", b"x"), "send_and_wait": ("orders", b"x"), "partitions_for": ("orders",)}
        with producer._lock, pytest.raises(RuntimeError, match=MESSAGE):
            getattr(producer, call)(*arguments.get(call, ()))
        producer.send_and_wait("orders", b"last")  # it stays open
        assert [record.value for record in broker.committed("orders")] == [b"first", b"last"]


@pytest.mark.parametrize("call", ["poll", "commit", "close", "unsubscribe", "assignment"])
def test_a_consumer_refuses_calls_within_its_lock(call: str) -> None:
    with Broker() as broker, Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="billing") as consumer:
        broker.create_topic("orders", partitions=1)
        first = TopicPartition("orders", 0)
        consumer.assign([first])
        consumer.seek(first, 0)
        with consumer._core.assignment.lock, pytest.raises(RuntimeError, match=MESSAGE):
            getattr(consumer, call)()
        broker.seed("orders", [b"x"])
        assert [record.value for record in consumer.poll(10.0)] == [b"x"]


def test_a_session_refuses_to_close_within_its_lock() -> None:
    with Broker() as broker:
        broker.seed("orders", [b"x"])
        options: Any = {"bootstrap_servers": broker.bootstrap_servers, "group_id": "billing", "topics": ["orders"]}
        with GroupTransactSession(transactional_id="billing-0", **options) as session:
            for lock in (session._core.assignment.lock, session._producer._lock):
                with lock, pytest.raises(RuntimeError, match=MESSAGE):
                    session.close()
            with session.transaction() as transaction:
                assert [record.value for record in transaction.poll(10.0)] == [b"x"]


@pytest.mark.parametrize("call", [lambda producer: producer.send("orders", b"x"), lambda producer: producer.flush()])
def test_a_signal_handler_that_uses_the_producer_does_not_hang(call: Callable[[Producer], object]) -> None:
    """The handler runs while records are sent. Each of its calls either succeeds or is refused."""
    refused: list[RuntimeError] = []

    def handle(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            call(producer)
        except RuntimeError as error:
            refused.append(error)
        signal.setitimer(signal.ITIMER_REAL, 0.002)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with Broker() as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            broker.create_topic("orders")
            ends = time.monotonic() + 1.0
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            try:
                while time.monotonic() < ends:
                    producer.send("orders", b"x" * 100)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert all(MESSAGE in str(error) for error in refused)


@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
def test_a_session_that_is_closed_in_its_commit_ends_with_it(kcodec_broker: Broker, api: str) -> None:
    """The handler runs while the commit waits for a response. `close` waits for the commit, and not for its timeout."""
    kcodec_broker.seed("orders", [b"first", b"second"])
    kcodec_broker.faults.add(api, delay_ms=600, count=1)
    options: Any = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "group_id": "billing", "topics": ["orders"]}
    session = GroupTransactSession(transactional_id="billing-0", **options)
    seconds = []

    def handle(*_: object) -> None:
        began = time.monotonic()
        session.close()
        seconds.append(time.monotonic() - began)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with session.transaction() as transaction:
            for record in transaction.poll(10.0):
                transaction.send("invoices", record.value)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        session.close()
    assert transaction.committed
    assert len(seconds) == 1 and seconds[0] < 10
    assert [record.value for record in kcodec_broker.committed("invoices")] == [b"first", b"second"]
