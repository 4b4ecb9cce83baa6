# SPDX-License-Identifier: Apache-2.0
"""The waits of clients also end while a manual clock does not move, because the time of the clients passes. They end
after the same duration if the clock of the machine is set."""

from __future__ import annotations

import time
from typing import Any

import pytest
from broker_core import NOTHING, CoreClient, Pending

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.broker.clock import Clock
from kcodec.client import Consumer
from kcodec.protocol.error_codes import ErrorCode


def wait_in_real_time(client: CoreClient, pending: Pending) -> Any:
    end = time.monotonic() + 20
    while pending.response is NOTHING and time.monotonic() < end:
        client.clock.run_in_real_time()
        client.clock.run_due()
        time.sleep(0.001)
    return pending.response


def test_a_fetch_ends_while_the_clock_stands_still() -> None:
    """Otherwise, the other requests of the connection would wait, too."""
    client = CoreClient()
    client.prepare()
    now = client.clock.now_ms()
    delay_before = client.clock.next_delay_ms()
    pending = client.send(client.fetch_request(0, max_wait_ms=100), 12)
    assert (pending.response, delay_before) == (NOTHING, None)
    delay = client.clock.next_delay_ms()
    assert delay is not None
    assert 0 < delay <= 100
    assert wait_in_real_time(client, pending).error_code == 0
    assert (client.clock.now_ms(), client.clock.next_delay_ms()) == (now, None)


def test_a_produce_during_a_marker_delay_ends_while_the_clock_stands_still() -> None:
    client = CoreClient(marker_delay_ms=60_000)
    client.prepare()
    producer = client.init("x")[1]
    client.produce(producer, transactional_id="x")
    code, following = client.end("x", producer)
    client.produce(following, transactional_id="x")
    pending = client.produced
    assert code is ErrorCode.NONE
    assert pending.response is NOTHING
    response = wait_in_real_time(client, pending)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_at_the_end_works_while_the_clock_stands_still(protocol: str) -> None:
    with Broker(manual_clock=True) as broker:
        broker.seed("t", [b"0"])
        options: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "group_protocol": protocol}
        with Consumer(bootstrap_servers=broker.bootstrap_servers, **options) as consumer:
            consumer.subscribe("t")
            assert [record.value for record in consumer.poll(20)] == [b"0"]
            assert consumer.poll(0.7) == []
            assert len(broker.wire_log.requests("Fetch")) > 2
            assert consumer.end_offsets([TopicPartition("t", 0)]) == {TopicPartition("t", 0): 1}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_consumers_work_after_the_machine_time_is_set(
    protocol: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, after the clock was set back, long polls and rebalances would end an hour later. If it was set
    forward, all members of the group would be removed."""
    real = time.time
    options: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "group_protocol": protocol}
    with Broker() as broker:
        broker.create_topic("t", partitions=2)
        broker.seed("t", [b"0"])
        with Consumer(bootstrap_servers=broker.bootstrap_servers, **options) as consumer:
            lost: list[object] = []
            consumer.subscribe("t", on_lost=lost.append)
            assert [record.value for record in consumer.poll(20)] == [b"0"]
            with Consumer(bootstrap_servers=broker.bootstrap_servers, **options) as second:
                monkeypatch.setattr(time, "time", lambda: real() + seconds)
                second.subscribe("t")
                end = time.monotonic() + 20
                while not len(consumer.assignment()) == len(second.assignment()) == 1:
                    assert time.monotonic() < end
                    consumer.poll(0.1)
                    second.poll(0.1)
                fetches = len(broker.wire_log.requests("Fetch"))
                broker.seed("t", [b"1"])
                values: list[Any] = []
                while time.monotonic() < end and b"1" not in values:
                    values += [record.value for record in [*consumer.poll(0.7), *second.poll(0.7)]]
                assert b"1" in values
                assert len(broker.wire_log.requests("Fetch")) > fetches
                assert lost == []


def test_timers_run_after_the_same_duration_if_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    clock, ran = Clock(), []
    clock.call_later(100, lambda: ran.append("earlier"))
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    clock.call_later(50, lambda: ran.append("later"))
    delay = clock.next_delay_ms()
    assert delay is not None
    assert 0 <= delay <= 50
    clock.advance(100)
    assert ran == ["later", "earlier"]
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    clock.call_later(1000, lambda: ran.append("too early"))
    clock.run_due()
    assert ran == ["later", "earlier"]
