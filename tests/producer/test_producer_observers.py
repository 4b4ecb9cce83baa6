# SPDX-License-Identifier: Apache-2.0
"""What an application hangs on a client must not stop it: a metrics object that raises, a callback that would block."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from producer_apis import MakeClient, make_client

from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, Producer

__all__ = ["make_client"]
#: A record that fails soon, so that a call that blocks in spite of all ends the test soon, too.
HASTY: dict[str, Any] = {"delivery_timeout_ms": 1500, "request_timeout_ms": 500, "linger_ms": 0, "max_block_ms": 1000}


class Raising:
    """Raises whenever it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        self.calls += 1
        raise ZeroDivisionError("count")

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        self.calls += 1
        raise ZeroDivisionError("latency")


class Half:
    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Nothing."""


def test_metrics_that_raise_are_logged_once_each(
    make_client: MakeClient, kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    caplog.set_level(logging.ERROR, "kcodec")
    metrics = Raising()
    client = make_client(kcodec_broker.bootstrap_servers, metrics=metrics, **HASTY)
    for delivery in client.send_all(topic, [{"value": b"x"}] * 3):
        assert client.outcome(delivery).offset >= 0
    client.flush()
    assert metrics.calls > 2
    lines = [record.getMessage() for record in caplog.records]
    assert sorted(line.partition(" of ")[0] for line in lines) == ["Raising.count", "Raising.latency"]
    assert all(record.exc_info for record in caplog.records)


def test_metrics_none_means_no_metrics(make_client: MakeClient, kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    client = make_client(kcodec_broker.bootstrap_servers, metrics=None)
    (delivery,) = client.send_all(topic, [{"value": b"x"}])
    assert client.outcome(delivery).offset == 0


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_metrics_are_checked_when_a_client_is_made(kind: type) -> None:
    with pytest.raises(TypeError, match="metrics: Half has no method 'latency'"):
        kind(bootstrap_servers="127.0.0.1:1", metrics=Half())


def call_result(producer: Producer, topic: str) -> None:
    producer.send(topic, b"another").result()


def call_exception(producer: Producer, topic: str) -> None:
    producer.send(topic, b"another").exception()


def call_flush(producer: Producer, topic: str) -> None:
    producer.flush()


def call_close(producer: Producer, topic: str) -> None:
    producer.close()


def call_partitions_for(producer: Producer, topic: str) -> None:
    producer.partitions_for(topic)


def fill_the_buffer(producer: Producer, topic: str) -> None:
    for _ in range(10):
        producer.send(topic, bytes(30_000))


@pytest.mark.parametrize(
    "call", [call_result, call_exception, call_flush, call_close, call_partitions_for, fill_the_buffer]
)
def test_a_call_that_would_block_in_a_callback_raises(
    kcodec_broker: Broker, call: Callable[[Producer, str], None]
) -> None:
    """At once: on the I/O thread it would wait for itself, and all other records with it. The producer goes on."""
    topic = kcodec_broker.create_topic(partitions=1)
    seen: list[BaseException | None] = []
    called = threading.Event()
    threads: list[str] = []
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, buffer_memory=100_000, **HASTY) as producer:

        def callback(delivery: Any) -> None:
            threads.append(threading.current_thread().name)
            try:
                call(producer, topic)
            except BaseException as error:  # noqa: BLE001  the test looks at it
                seen.append(error)
            else:
                seen.append(None)
            finally:
                called.set()

        producer.send(topic, b"first", partition=0).add_done_callback(callback)
        assert called.wait(20.0)
        assert isinstance(seen[0], RuntimeError) and "I/O thread" in str(seen[0])
        assert threads == ["kcodec-client"]
        assert producer.send(topic, b"last").result().offset >= 1


def test_a_done_delivery_has_its_result_in_a_callback(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    seen: list[Any] = []
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        producer.send(topic, b"x").add_done_callback(lambda done: seen.append((done.result(), done.exception())))
        producer.flush()
    assert seen[0][0].offset == 0 and seen[0][1] is None
