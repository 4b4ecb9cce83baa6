# SPDX-License-Identifier: Apache-2.0
"""A consumer that ends at a bad moment leaves its group all the same, so that the next consumer gets the partitions
without waiting for a session timeout. Delays of the embedded broker and of a proxy choose the moments."""

from __future__ import annotations

import _thread
import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from interrupted_calls import interrupted
from left_groups import SOON, is_left_soon

from kcodec.broker import Broker
from kcodec.broker.faults import FaultRule
from kcodec.client import Admin, Consumer, GroupTransactSession, aio
from kcodec.consumer.selection_calls import REJOIN_SECONDS
from kcodec.testing.proxy import KafkaProxy

DELAY_MS = 400
#: More than the 0.2 seconds for which an interrupted client waits for a response, even on a busy machine, and less than
#: the time for which other clients wait for it.
BRIEFLY = SOON / 4
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


def leave_requests(broker: Broker, protocol: str) -> list[Any]:
    """The requests with which members have left. In the consumer protocol, their epoch is negative."""
    if protocol == "classic":
        return broker.wire_log.requests("LeaveGroup")
    return [one for one in broker.wire_log.requests("ConsumerGroupHeartbeat") if one.request.member_epoch < 0]


def is_steady(broker: Broker, protocol: str) -> bool:
    """Whether the broker has responded to the request with which a member acknowledges its partitions. In a classic
    group, the member has no such request."""
    if protocol == "classic":
        return True
    heartbeats = broker.wire_log.requests("ConsumerGroupHeartbeat")
    return any(one.request.topic_partitions and one.response is not None for one in heartbeats)


async def steady(consumer: aio.Consumer, broker: Broker, protocol: str) -> None:
    """Poll until the consumer has its partitions, and has acknowledged them."""
    while not await consumer.poll(timeout=1.0):
        pass
    limit = time.monotonic() + SOON
    while not is_steady(broker, protocol):
        assert time.monotonic() < limit
        await asyncio.sleep(0.001)


async def leaving(broker: Broker, protocol: str) -> None:
    """Wait until the broker has received a request to leave."""
    limit = time.monotonic() + SOON
    while not leave_requests(broker, protocol):
        assert time.monotonic() < limit
        await asyncio.sleep(0.001)


@PROTOCOLS
def test_close_waits_for_an_unsubscribe_that_was_interrupted(broker: Broker, protocol: str) -> None:
    """The interrupted call has begun to leave. Its request needs the connections of the client."""
    api = "LeaveGroup" if protocol == "classic" else "ConsumerGroupHeartbeat"

    async def program() -> None:
        consumer = aio.Consumer(**options(broker, protocol))
        await consumer.subscribe("orders")
        await steady(consumer, broker, protocol)
        broker.faults.add("FindCoordinator", delay_ms=DELAY_MS, count=1)
        rule = broker.faults.add(api, delay_ms=DELAY_MS, error="NOT_COORDINATOR")
        unsubscribing = asyncio.ensure_future(consumer.unsubscribe())
        await leaving(broker, protocol)
        broker.faults.remove(rule)
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


def session(broker: Broker, protocol: str) -> Any:
    given = options(broker, protocol)
    del given["enable_auto_commit"]
    return aio.GroupTransactSession(**given, transactional_id="id", topics=["orders"])


async def cancel(closing: asyncio.Future[None], rule: FaultRule) -> None:
    """Cancel a close after the broker has received the request of this rule, and before it responds."""
    while not rule.hits:
        await asyncio.sleep(0.001)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


@PROTOCOLS
def test_a_cancelled_close_of_a_consumer_leaves(broker: Broker, protocol: str) -> None:
    """The last automatic commit is in flight. It holds the lock of the group."""

    async def program() -> None:
        consumer = aio.Consumer(**{**options(broker, protocol), "enable_auto_commit": True})
        await consumer.subscribe("orders")
        while not await consumer.poll(timeout=1.0):
            pass
        rule = broker.faults.add("OffsetCommit", drop="before", count=1)
        await cancel(asyncio.ensure_future(consumer.close()), rule)

    asyncio.run(program())
    assert_group_is_free(broker, protocol)


@PROTOCOLS
def test_a_cancelled_close_of_a_session_leaves(broker: Broker, protocol: str) -> None:
    """The abort of the open transaction is in flight."""

    async def program() -> None:
        closed = session(broker, protocol)
        async with closed.transaction() as txn:
            while not (records := await txn.poll(timeout=1.0)):
                pass
            await (await txn.send("invoices", records[0].value))
            rule = broker.faults.add("EndTxn", delay_ms=DELAY_MS, count=1)
            await cancel(asyncio.ensure_future(closed.close()), rule)

    asyncio.run(program())
    assert_group_is_free(broker, protocol)


@PROTOCOLS
def test_ctrl_c_during_the_close_of_a_consumer_leaves(broker: Broker, protocol: str) -> None:
    """The last automatic commit is in flight."""
    consumer = Consumer(**{**options(broker, protocol), "enable_auto_commit": True})
    consumer.subscribe("orders")
    assert read(consumer)
    rule = broker.faults.add("OffsetCommit", drop="before", count=1)

    def press() -> None:
        while not rule.hits:
            time.sleep(0.001)
        _thread.interrupt_main()

    pressing = threading.Thread(target=press)
    pressing.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    pressing.join()
    assert time.monotonic() - began < BRIEFLY
    assert_group_is_free(broker, protocol)


def joined(broker: Broker, protocol: str, kind: str) -> Any:
    """Return a client that has its partitions."""
    given = options(broker, protocol)
    if kind == "consumer":
        consumer = Consumer(**{**given, "enable_auto_commit": True})
        consumer.subscribe("orders")
        while not consumer.assignment():
            consumer.poll(timeout=0.1)
        return consumer
    client = GroupTransactSession(**given, transactional_id="id", topics=["orders"])
    while not client.assignment():
        with client.transaction() as txn:
            txn.poll(timeout=0.1)
            txn.abort()
    return client


@PROTOCOLS
@pytest.mark.parametrize("kind", ["consumer", "session"])
def test_a_close_that_is_interrupted_at_any_point_leaves(
    broker: Broker, protocol: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An interruption before the close begins leaves the client open, and the program drops it. The log has no
    traceback of a step that was cancelled."""
    is_interrupted, at = True, 0
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        while is_interrupted:
            client = joined(broker, protocol, kind)
            is_interrupted = interrupted(client.close, at)
            del client
            assert is_left_soon(admin, "g"), at
            at += 1
    assert at > 100
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


@PROTOCOLS
def test_an_interrupted_close_does_not_wait_for_a_silent_broker(broker: Broker, protocol: str) -> None:
    async def program() -> float:
        consumer = aio.Consumer(**options(broker, protocol))
        await consumer.subscribe("orders")
        await steady(consumer, broker, protocol)
        broker.faults.add("LeaveGroup" if protocol == "classic" else "ConsumerGroupHeartbeat", drop="before")
        began = time.monotonic()
        closing = asyncio.ensure_future(consumer.close())
        await leaving(broker, protocol)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        return time.monotonic() - began

    assert asyncio.run(program()) < BRIEFLY


def closed_without_time(client: Consumer | GroupTransactSession, way: str) -> None:
    """Close a client with a timeout of 0. A second Ctrl-C has this effect if it arrives while the first one leaves the
    block."""
    if way == "close":
        client.close(timeout=0)
        return
    with pytest.raises(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            with client:
                raise KeyboardInterrupt from None


@PROTOCOLS
@pytest.mark.parametrize("way", ["close", "second Ctrl-C"])
@pytest.mark.parametrize("commits", [False, True])
def test_a_consumer_leaves_although_its_close_has_no_time(
    broker: Broker, protocol: str, way: str, commits: bool
) -> None:
    consumer = Consumer(**{**options(broker, protocol), "enable_auto_commit": commits})
    consumer.subscribe("orders")
    assert read(consumer)
    closed_without_time(consumer, way)
    assert_group_is_free(broker, protocol)


@PROTOCOLS
@pytest.mark.parametrize("way", ["close", "second Ctrl-C"])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_session_leaves_although_its_close_has_no_time(
    broker: Broker, protocol: str, way: str, is_open: bool
) -> None:
    """With an open transaction, the session first sends its abort."""
    given = options(broker, protocol)
    del given["enable_auto_commit"]
    client = GroupTransactSession(**given, transactional_id="id", topics=["orders"])
    txn = client.transaction()
    txn.__enter__()
    while not (records := txn.poll(timeout=1.0)):
        pass
    txn.send("invoices", records[0].value).result()
    if not is_open:
        txn.abort()
    closed_without_time(client, way)
    assert_group_is_free(broker, protocol)


@PROTOCOLS
def test_an_asyncio_consumer_leaves_although_its_close_has_no_time(broker: Broker, protocol: str) -> None:
    async def program() -> None:
        consumer = aio.Consumer(**options(broker, protocol))
        await consumer.subscribe("orders")
        await steady(consumer, broker, protocol)
        await consumer.close(timeout=0)

    asyncio.run(program())
    assert len(leave_requests(broker, protocol)) == 1
    assert_group_is_free(broker, protocol)


@PROTOCOLS
@pytest.mark.parametrize(
    ("way", "reason"),
    [("close", "the consumer is closed"), ("drop", "the application did not close the consumer")],
)
@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
def test_the_log_says_why_a_consumer_leaves(
    broker: Broker, caplog: pytest.LogCaptureFixture, protocol: str, way: str, reason: str
) -> None:
    caplog.set_level(logging.INFO, "kcodec")
    consumer = Consumer(**options(broker, protocol))
    consumer.subscribe("orders")
    assert read(consumer)
    if way == "close":
        consumer.close(timeout=0)
    del consumer
    assert_group_is_free(broker, protocol)
    first = next(record.getMessage() for record in caplog.records if " leaves: " in record.getMessage())
    assert first.endswith(f" leaves: {reason}")


@PROTOCOLS
def test_a_close_without_time_does_not_wait_for_a_silent_broker(broker: Broker, protocol: str) -> None:
    consumer = Consumer(**options(broker, protocol))
    consumer.subscribe("orders")
    assert read(consumer)
    limit = time.monotonic() + SOON
    while not is_steady(broker, protocol):
        assert time.monotonic() < limit
        time.sleep(0.001)
    broker.faults.add("LeaveGroup" if protocol == "classic" else "ConsumerGroupHeartbeat", drop="before")
    began = time.monotonic()
    consumer.close(timeout=0)
    assert time.monotonic() - began < BRIEFLY
    assert leave_requests(broker, protocol)
