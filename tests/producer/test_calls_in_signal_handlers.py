# SPDX-License-Identifier: Apache-2.0
"""A signal handler that calls the producer in the middle of another call: it works or raises, and never hangs."""

from __future__ import annotations

import signal
import time
from types import FrameType

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer

#: The longest time until a handler has interrupted `send` while it holds the lock, which takes some 10 ms.
MOST_SECONDS = 20.0


def test_a_handler_that_sends_does_not_hang_and_loses_nothing(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    refused: list[str] = []
    sent = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal sent
        try:
            producer.send(topic, b"of the handler")
            sent += 1
        except RuntimeError as error:
            refused.append(str(error))

    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        producer.partitions_for(topic)
        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        ends, own = time.monotonic() + MOST_SECONDS, 0
        try:
            while not refused and time.monotonic() < ends:
                producer.send(topic, b"of the program")
                own += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert "inside another call of the same client" in refused[0]
    assert len(kcodec_broker.committed(topic)) == own + sent


@pytest.mark.parametrize("name", ["flush", "close"])
def test_a_call_that_waits_is_refused_inside_another_call(kcodec_broker: Broker, name: str) -> None:
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        delivery = producer.send(kcodec_broker.create_topic(partitions=1), b"v")
        with producer._lock, pytest.raises(RuntimeError, match="which a signal handler or a finalizer has interrupted"):
            getattr(producer, name)()
        assert delivery.result(30).offset == 0
