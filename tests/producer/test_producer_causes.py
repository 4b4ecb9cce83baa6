# SPDX-License-Identifier: Apache-2.0
"""An error that says that time is up names the last cause the client knows; an unknown topic fails soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from producer_apis import Looped, MakeClient, Threaded, make_client
from scripted_broker import Fault, Rig, ScriptedCluster, send_apart, started, values

from kcodec.broker import Broker
from kcodec.client import Consumer, Producer, aio
from kcodec.errors import BrokerError, BufferFullError, DeliveryErrors, DeliveryTimeoutError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.proxy import KafkaProxy

__all__ = ["make_client"]
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def kcodec_broker() -> Iterator[Broker]:
    """A broker that creates no topic because a client names it."""
    with Broker(auto_create_topics=False) as broker:
        yield broker


@pytest.mark.parametrize("kind", [Threaded, Looped])
def test_a_full_buffer_names_the_cause(kind: type, kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    with KafkaProxy(kcodec_broker.bootstrap_servers) as proxy:
        proxy.on_request("Produce", count=None).answer(error=19)
        client = kind(proxy.bootstrap_servers, buffer_memory=20_000, max_block_ms=1000)
        found = client.producer.partitions_for(topic)
        assert (client.run(found) if isinstance(client, Looped) else found) == 1
        with pytest.raises(BufferFullError, match=r"not acknowledged: .*NOT_ENOUGH_REPLICAS") as caught:
            client.send_all(topic, [{"value": bytes(400)}] * 100)
        assert caught.value.remedy == "retry"
        with pytest.raises(DeliveryErrors, match="NOT_ENOUGH_REPLICAS"):
            client.end(0.1)


def test_a_result_that_is_late_names_the_cause() -> None:
    with pytest.raises(DeliveryErrors), Producer(bootstrap_servers=NOWHERE) as producer:
        delivery = producer.send("orders", b"x")
        with pytest.raises(DeliveryTimeoutError, match=r"no result within 0.3 s: .*Connection refused"):
            delivery.result(0.3)
        with pytest.raises(DeliveryTimeoutError, match=r"not acknowledged within 0.2 s: .*Connection refused"):
            producer.flush(0.2)
        producer.close(0.1)


def test_a_record_that_waits_for_replicas_names_the_cause() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.faults = lambda node, request: Fault(code=ErrorCode.NOT_ENOUGH_REPLICAS)
    (delivery,) = send_apart(rig, "orders", values(1))
    world.run(2.0)
    assert "NOT_ENOUGH_REPLICAS" in delivery.why_waiting()


def test_an_unknown_topic_is_named_as_the_cause() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = Rig(world)
    delivery = rig.send("ghost", b"x")
    world.run(1.0)
    assert delivery.why_waiting() == ": UNKNOWN_TOPIC_OR_PARTITION"


def test_a_producer_id_that_is_refused_is_named_as_the_cause() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    world.init_answers = [15] * 100
    rig = Rig(world)
    delivery = rig.send("orders", b"x")
    world.run(2.0)
    assert "no producer id yet: " in delivery.why_waiting() and "COORDINATOR_NOT_AVAILABLE" in delivery.why_waiting()


def test_a_missing_response_to_init_producer_id_is_named_as_the_cause() -> None:
    """The cause was only "no producer id yet"."""
    cause = "no producer id yet: no response to InitProducerId so far"
    with Broker(fault_rules=[{"api": "InitProducerId", "drop": "before"}]) as broker:
        broker.create_topic("orders")
        producer = Producer(bootstrap_servers=broker.bootstrap_servers)
        delivery = producer.send("orders", b"x")
        with pytest.raises(DeliveryTimeoutError, match=cause):
            delivery.result(1.0)
        with pytest.raises(DeliveryErrors, match=cause):
            producer.close(timeout=0.0)


def test_an_expired_record_that_was_never_sent_names_the_cause() -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0, delivery_timeout=10.0, request_timeout=3.0)
    log.leader = -1
    world.cluster.forget_leader("orders", 0)
    (delivery,) = send_apart(rig, "orders", values(1))
    world.run(11.0)
    assert "it was never sent: orders-0 has no leader" in str(delivery.error)


# Unknown topics


def test_a_record_to_an_unknown_topic_fails_after_5_seconds() -> None:
    """Of the responses that call it unknown, the first one counts; a broker also says so while it creates a topic."""
    world = ScriptedCluster()
    world.create_topic("orders")
    world.unreachable.add(1)
    rig = Rig(world)
    delivery = rig.send("ghost", b"x")
    world.run(10.0)
    world.unreachable.clear()
    world.run(4.5)
    assert not delivery.done()
    world.run(1.5)
    error = delivery.error
    assert isinstance(error, BrokerError) and error.name == "UNKNOWN_TOPIC_OR_PARTITION" and error.remedy == "stop"
    assert "topic 'ghost' does not exist" in str(error) and "unknown_topic_timeout_ms (5 s)" in str(error)
    again = rig.send("ghost", b"y")
    world.run(4.0)
    world.create_topic("ghost")
    world.run(2.0)
    assert again.offset == 0


def test_send_fails_soon_for_an_unknown_topic(make_client: MakeClient, kcodec_broker: Broker) -> None:
    client = make_client(kcodec_broker.bootstrap_servers, unknown_topic_timeout_ms=500)
    begin = time.monotonic()
    (delivery,) = client.send_all("no-such-topic/", [{"value": b"x"}])
    with pytest.raises(BrokerError):
        client.outcome(delivery)
    assert time.monotonic() - begin < 5.0


def test_unknown_topics_are_reported_within_the_option(kcodec_broker: Broker) -> None:
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "unknown_topic_timeout_ms": 500}
    with Producer(**options) as producer, Consumer(**options) as consumer:
        for call in (
            lambda: producer.send("ghost", b"x").result(),
            lambda: producer.partitions_for("ghost"),
            lambda: consumer.partitions_for("ghost"),
        ):
            begin = time.monotonic()
            with pytest.raises(BrokerError, match="topic 'ghost' does not exist") as caught:
                call()
            assert 0.4 < time.monotonic() - begin < 3.0
            assert caught.value.name == "UNKNOWN_TOPIC_OR_PARTITION"

    async def ask() -> None:
        async with aio.Producer(**options) as producer, aio.Consumer(**options) as consumer:
            for ask in (producer.partitions_for, consumer.partitions_for):
                with pytest.raises(BrokerError, match="topic 'ghost' does not exist"):
                    await ask("ghost")

    asyncio.run(ask())


def test_by_default_an_unknown_topic_takes_5_seconds(kcodec_broker: Broker) -> None:
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        begin = time.monotonic()
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            producer.partitions_for("ghost")
        assert 4.5 < time.monotonic() - begin < 8.0
