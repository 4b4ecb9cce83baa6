# SPDX-License-Identifier: Apache-2.0
"""A consumer that ends at a bad moment leaves its group all the same, so that the next consumer gets the partitions
without waiting for a session timeout. Delays of the embedded broker and of a proxy choose the moments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Consumer, aio
from kcodec.consumer.selection_calls import REJOIN_SECONDS
from kcodec.testing.proxy import KafkaProxy

#: A fraction of the session timeout of 45 seconds, for which a member that has not left would keep its partitions.
SOON = 10.0
DELAY_MS = 400
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.seed("orders", [b"1", b"2"])
        yield broker


def options(broker: Broker | KafkaProxy, protocol: str) -> Any:
    common = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    return {"bootstrap_servers": broker.bootstrap_servers, "group_protocol": protocol, **common}


def read(consumer: Consumer) -> list[bytes | None]:
    """The values that the consumer gets soon."""
    until = time.monotonic() + SOON
    found: list[bytes | None] = []
    while not found and time.monotonic() < until:
        found = [record.value for record in consumer.poll(timeout=0.2)]
    return found


def assert_group_is_free(broker: Broker, protocol: str) -> None:
    with Consumer(**options(broker, protocol)) as consumer:
        consumer.subscribe("orders")
        assert read(consumer) == [b"1", b"2"]


@PROTOCOLS
@pytest.mark.parametrize("way", ["close", "unsubscribe", "drop"])
def test_a_consumer_that_ends_while_it_joins_leaves(broker: Broker, protocol: str, way: str) -> None:
    """The coordinator has chosen an id for the member, and the response with this id is still under way. A rebalance
    that has begun before then waits for this member."""
    api = "JoinGroup" if protocol == "classic" else "ConsumerGroupHeartbeat"
    with KafkaProxy(broker.bootstrap_servers) as proxy, Consumer(**options(broker, protocol)) as other:
        other.subscribe("orders")
        assert read(other) == [b"1", b"2"]
        before = len(broker.wire_log.requests(api))
        consumer = Consumer(**options(proxy, protocol))
        consumer.subscribe("orders")
        limit = time.monotonic() + SOON
        while len(broker.wire_log.requests(api)) < before + 2:  # the second one waits for the other member
            assert time.monotonic() < limit
            time.sleep(0.001)
        consumer.unsubscribe()
        late = proxy.on_response(api).hold(DELAY_MS / 1000)
        consumer.subscribe("orders")
        late.wait_hit(SOON)
        if way == "close":
            consumer.close()
        elif way == "unsubscribe":
            consumer.unsubscribe()
        else:
            del consumer
            time.sleep(3 * DELAY_MS / 1000)
        other.close()
        assert_group_is_free(broker, protocol)


@PROTOCOLS
def test_close_waits_for_an_unsubscribe_that_was_interrupted(broker: Broker, protocol: str) -> None:
    """The interrupted call has begun to leave. Its request needs the connections of the client."""
    api = "LeaveGroup" if protocol == "classic" else "ConsumerGroupHeartbeat"

    async def program() -> None:
        consumer = aio.Consumer(**options(broker, protocol))
        await consumer.subscribe("orders")
        while not await consumer.poll(timeout=1.0):
            pass
        broker.faults.add("FindCoordinator", delay_ms=DELAY_MS, count=1)
        rule = broker.faults.add(api, delay_ms=DELAY_MS, error="NOT_COORDINATOR", count=1)
        unsubscribing = asyncio.ensure_future(consumer.unsubscribe())
        limit = time.monotonic() + SOON
        while not rule.hits:
            assert time.monotonic() < limit
            await asyncio.sleep(0.001)
        unsubscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unsubscribing
        await consumer.close()

    asyncio.run(program())
    assert_group_is_free(broker, protocol)


@PROTOCOLS
@pytest.mark.parametrize("call", ["close", "unsubscribe"])
@pytest.mark.parametrize("instance", [None, "second"])
def test_a_consumer_without_partitions_does_not_wait_for_the_others(
    broker: Broker, protocol: str, call: str, instance: str | None
) -> None:
    """In a classic group, its JoinGroup gets a response when the other members have joined again, which need a poll. A
    consumer with partitions waits for it."""
    with Consumer(**options(broker, protocol)) as busy:
        busy.subscribe("orders")
        assert read(busy) == [b"1", b"2"]
        second = Consumer(**options(broker, protocol), group_instance_id=instance)
        second.subscribe("orders")
        second.poll(timeout=0.2)
        began = time.monotonic()
        getattr(second, call)()
        assert time.monotonic() - began < REJOIN_SECONDS
        second.close()
    if instance is None:  # a static member keeps its partitions until its session times out
        assert_group_is_free(broker, protocol)
