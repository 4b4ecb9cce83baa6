# SPDX-License-Identifier: Apache-2.0
"""A consumer that receives nothing says why: a wrong address, a topic or partition that is not there, no group."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from virtual_broker import OUT, RECORDS, TOPIC, VirtualBroker, virtual_time

from kcodec import TopicPartition
from kcodec.client import Consumer
from kcodec.client.aio import Consumer as AioConsumer
from kcodec.consumer.waiting_report import LONGEST_REPEAT_SECONDS, REPEAT_SECONDS
from kcodec.errors import DeliveryTimeoutError
from kcodec.protocol.error_codes import ErrorCode

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])
SERVERS = "broker:9092"


def is_of_polls(record: logging.LogRecord) -> bool:
    """Whether it is a warning, and not the one of a close that waits."""
    return record.levelno >= logging.WARNING and not record.getMessage().startswith("close: ")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged at WARNING or above by a consumer, before its close."""
    return [one.getMessage() for one in caplog.records if is_of_polls(one)]


def watch(broker: VirtualBroker, seconds: float, *, subscribed: Any = None, **options: Any) -> list[float]:
    """Poll for some virtual time; when each warning came, from the subscription on."""
    times: list[float] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if is_of_polls(record):
                times.append(broker.now - began)

    async def program() -> None:
        async with AioConsumer(bootstrap_servers=SERVERS, **{"group_id": "billing", **options}) as consumer:
            if isinstance(subscribed, list) and isinstance(subscribed[0], TopicPartition):
                await consumer.assign(subscribed)
            else:
                await consumer.subscribe(subscribed)
            while broker.now < began + seconds:
                await consumer.poll(1.0)

    began = broker.now
    handler = Noting()
    logging.getLogger("kcodec").addHandler(handler)
    try:
        broker.run(program())
    finally:
        logging.getLogger("kcodec").removeHandler(handler)
    return times


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_wrong_port_is_a_warning_within_5_s(caplog: pytest.LogCaptureFixture) -> None:
    """In real time, without a group: the thread of the sync consumer warns, whatever poll does."""
    port = closed_port()
    began = time.monotonic()
    with Consumer(bootstrap_servers=f"127.0.0.1:{port}") as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        while not warnings(caplog) and time.monotonic() < began + 10:
            assert consumer.poll(0.2) == []
        took = time.monotonic() - began
    (text,) = warnings(caplog)
    assert took < 5.5  # 5 s, and what a loaded machine adds
    assert f"bootstrap_servers='127.0.0.1:{port}'" in text
    assert "Connection refused" in text


def test_a_wrong_port_is_a_warning_for_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    port = closed_port()

    async def program() -> float:
        began = time.monotonic()
        async with AioConsumer(bootstrap_servers=f"127.0.0.1:{port}", group_id="billing") as consumer:
            await consumer.subscribe([TOPIC])
            while not warnings(caplog) and time.monotonic() < began + 10:
                assert await consumer.poll(0.2) == []
            return time.monotonic() - began

    assert asyncio.run(program()) < 5.5
    assert f"127.0.0.1:{port}" in warnings(caplog)[0] and "Connection refused" in warnings(caplog)[0]


@PROTOCOLS
def test_no_broker_is_repeated_rarely(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time() as broker:
        broker.is_down = True
        times = watch(broker, 1200.0, subscribed=[TOPIC], group_protocol=protocol)
    assert times[0] < 5.0
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:3] == pytest.approx([REPEAT_SECONDS, 2 * REPEAT_SECONDS, 4 * REPEAT_SECONDS], abs=2.0)
    assert gaps[-1] == pytest.approx(LONGEST_REPEAT_SECONDS, abs=2.0)
    assert all("'broker:9092'" in text and "Connection refused" in text for text in warnings(caplog))


async def closed_after(event: Callable[[], None]) -> None:
    """Close a consumer that has read records, after an event."""
    consumer = AioConsumer(bootstrap_servers=SERVERS, group_id="billing", auto_offset_reset="earliest")
    await consumer.subscribe([TOPIC])
    while not await consumer.poll(1.0):
        pass
    event()
    await consumer.close()


def test_a_close_without_a_broker_names_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time() as broker:
        broker.run(closed_after(lambda: setattr(broker, "is_down", True)))
    (text,) = [text for text in caplog.messages if text.startswith("close:")]
    assert text.startswith("close: waiting up to 30 s for the consumer to leave group 'billing'")


def test_a_commit_of_a_removed_member_has_no_remedy(caplog: pytest.LogCaptureFixture) -> None:
    """The remedy of UNKNOWN_MEMBER_ID is that of a transaction, which a consumer does not have."""
    with virtual_time() as broker:

        def remove() -> None:
            broker.faults = lambda api: ErrorCode.UNKNOWN_MEMBER_ID if api == "OffsetCommit" else 0

        broker.run(closed_after(remove))
    (text,) = [text for text in warnings(caplog) if "UNKNOWN_MEMBER_ID" in text]
    assert "the group has removed this consumer" in text and "remedy" not in text


@PROTOCOLS
def test_a_topic_that_does_not_exist_is_named(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the other topics of the subscription are there, and read."""
    with virtual_time() as broker:
        times = watch(broker, 30.0, subscribed=[TOPIC, "ordres"], group_protocol=protocol)
    assert times[0] < 5.0 and len(times) <= 3
    for text in warnings(caplog):
        assert "'ordres'" in text and "UNKNOWN_TOPIC_OR_PARTITION" in text and "'orders'" not in text


def test_a_partition_that_does_not_exist_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time() as broker:
        parts = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 7)]
        times = watch(broker, 30.0, subscribed=parts, group_id=None)
    assert times[0] < 5.0
    for text in warnings(caplog):
        assert re.search(r"orders-7 .*UNKNOWN_TOPIC_OR_PARTITION.* 1 partition,", text) and "orders-0" not in text


def test_a_pattern_that_matches_nothing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def program() -> None:
        async with AioConsumer(bootstrap_servers=SERVERS, group_id="billing") as consumer:
            await consumer.subscribe(pattern="ordres.*")
            assert await consumer.poll(6.0) == []

    with virtual_time() as broker:
        broker.run(program())
    assert "pattern 'ordres.*' has matched no topic" in warnings(caplog)[0]


@pytest.mark.parametrize(
    ("api", "code", "named"),
    [
        ("FindCoordinator", 15, "COORDINATOR_NOT_AVAILABLE"),
        ("OffsetFetch", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "COORDINATOR_LOAD_IN_PROGRESS"),
        ("ListOffsets", 6, "NOT_LEADER_OR_FOLLOWER"),
        ("Fetch", ErrorCode.KAFKA_STORAGE_ERROR, "KAFKA_STORAGE_ERROR"),
        ("Fetch:top", 56, "KAFKA_STORAGE_ERROR"),
    ],
)
@PROTOCOLS
def test_what_a_broker_always_refuses_is_named(
    protocol: str, api: str, code: int, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    with virtual_time() as broker:
        broker.faults = lambda asked: code if asked == api else 0
        times = watch(broker, 60.0, subscribed=[TOPIC], group_protocol=protocol, auto_offset_reset="earliest")
    # Mostly three; where the jitter of retries lets the cause seem over for a moment, the intervals begin again.
    assert times[0] < 6.0 and len(times) <= 7 and all(after - before > 4.0 for before, after in pairwise(times))
    assert all(named in text for text in warnings(caplog)), warnings(caplog)


@pytest.mark.parametrize(
    ("api", "code"), [("JoinGroup", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ("SyncGroup", ErrorCode.NOT_COORDINATOR)]
)
def test_a_group_that_cannot_be_joined_is_named(api: str, code: int, caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time() as broker:
        broker.faults = lambda asked: code if asked == api else 0
        times = watch(broker, 30.0, subscribed=[TOPIC])
    assert times[0] < 5.0 and "not been a stable member" in warnings(caplog)[0]


@PROTOCOLS
def test_a_consumer_that_reads_logs_no_warning(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time() as broker:
        watch(broker, 600.0, subscribed=[TOPIC], group_protocol=protocol, auto_offset_reset="earliest")
    assert warnings(caplog) == []


def test_no_warning_follows_once_the_topic_is_there(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def program() -> int:
        async with AioConsumer(bootstrap_servers=SERVERS, group_id="billing", auto_offset_reset="earliest") as consumer:
            await consumer.subscribe([TOPIC])
            assert await consumer.poll(8.0) == []
            broker.topics[TOPIC] = 1
            found = len(await consumer.poll(10.0))
            await consumer.poll(60.0)
            return found

    with virtual_time() as broker:
        del broker.topics[TOPIC]
        assert broker.run(program()) == RECORDS
    assert len(warnings(caplog)) == 1
    assert any("recovered: topic orders" in one.getMessage() for one in caplog.records)


def test_a_position_that_does_not_come_says_why() -> None:
    async def program() -> None:
        async with AioConsumer(bootstrap_servers=SERVERS) as consumer:
            await consumer.assign([TopicPartition("ordres", 0)])
            with pytest.raises(DeliveryTimeoutError, match=r"'ordres'.*UNKNOWN_TOPIC_OR_PARTITION"):
                await consumer.position(TopicPartition("ordres", 0), 7.0)

    with virtual_time() as broker:
        broker.run(program())


# Nothing to read


class Asyncio:
    """The asyncio API, awaited."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        self.loop = loop
        self.consumer = self._made(**options)

    def _made(self, **options: Any) -> AioConsumer:
        return AioConsumer(bootstrap_servers="127.0.0.1:1", **options)

    def __call__(self, name: str, *arguments: Any) -> Any:
        return self.loop.run_until_complete(getattr(self.consumer, name)(*arguments))

    def first(self) -> Any:
        return self.loop.run_until_complete(anext(aiter(self.consumer)))


class Threads:
    """The sync API."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        self.consumer = Consumer(bootstrap_servers="127.0.0.1:1", **options)

    def __call__(self, name: str, *arguments: Any) -> Any:
        return getattr(self.consumer, name)(*arguments)

    def first(self) -> Any:
        return next(iter(self.consumer))


@pytest.mark.parametrize("kind", [Threads, Asyncio])
def test_poll_without_anything_to_read_raises(kind: Any) -> None:
    loop = asyncio.new_event_loop()
    try:
        one = kind(loop, group_id="billing")
        for read in (lambda: one("poll", 0.0), lambda: one("poll_arrow", 0.0), one.first):
            with pytest.raises(RuntimeError, match=r"subscribe\(\) or assign\(\) first"):
                read()
        one("assign", [TopicPartition(OUT, 0)])
        assert one("poll", 0.0) == []
        one("assign", [])
        with pytest.raises(RuntimeError, match=r"subscribe\(\) or assign\(\) first"):
            one("poll", 0.0)
        one("subscribe", [TOPIC])
        assert one("poll", 0.0) == []  # whatever the group has assigned so far
        one("unsubscribe", 0.1)
        with pytest.raises(RuntimeError, match=r"subscribe\(\) or assign\(\) first"):
            one("poll", 0.0)
        one("close", 0.1)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_seek_to_beginning_without_partitions_raises() -> None:
    """As `seek` does: the subscription has no partitions before the first poll. Within on_assigned it may get none."""
    called: list[Any] = []

    async def program() -> None:
        async with AioConsumer(bootstrap_servers=SERVERS, group_id="billing") as consumer:

            async def on_assigned(partitions: frozenset[TopicPartition]) -> None:
                called.append(partitions)
                await consumer.seek_to_beginning(*partitions)

            await consumer.subscribe([TOPIC, "ordres"], on_assigned=on_assigned)
            for call in (consumer.seek_to_beginning, consumer.seek_to_end):
                with pytest.raises(ValueError, match="no partition is assigned"):
                    await call()
            assert len(await consumer.poll(10.0)) == RECORDS

    with virtual_time() as broker:
        broker.run(program())
    assert called == [frozenset({TopicPartition(TOPIC, 0)})]


def test_a_join_that_waits_for_a_dead_member_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A program that was killed and started again waits until the session of its first run expires."""
    with virtual_time() as broker:
        broker.slow["JoinGroup"] = 44.0
        times = watch(broker, 50.0, subscribed=[TOPIC], group_protocol="classic")
    assert len(times) >= 2 and times[0] < 5.5
    first = warnings(caplog)[0]
    assert "has not been a stable member of the group for 4 s; the coordinator waits for another member" in first


def test_a_short_program_gets_the_warning_at_its_close(caplog: pytest.LogCaptureFixture) -> None:
    with virtual_time() as broker:
        watch(broker, 3.0, subscribed=["nowhere"])
    (text,) = warnings(caplog)
    assert "topic 'nowhere' has not existed" in text
