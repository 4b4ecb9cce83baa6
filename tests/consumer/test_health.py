# SPDX-License-Identifier: Apache-2.0
"""`Consumer.health()` names the cause of each induced stall within five seconds, and nothing while records arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from virtual_broker import RECORDS, TOPIC, VirtualBroker, virtual_time

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Consumer, Producer
from kcodec.client.aio import Consumer as AioConsumer
from kcodec.consumer.health import ConsumerHealth, StallCause
from kcodec.errors import DecodeError, KcodecError
from kcodec.protocol.error_codes import ErrorCode

WITHIN_SECONDS = 5.0
PLACE = TopicPartition(TOPIC, 0)
Act = Callable[[VirtualBroker, AioConsumer], Coroutine[Any, Any, None]]


async def nothing(broker: VirtualBroker, consumer: AioConsumer) -> None:
    """Go on polling."""


def health_after(
    stall: Act = nothing, *, is_polling: bool = True, read_first: bool = True, **options: Any
) -> tuple[ConsumerHealth, float]:
    """Read everything, induce the stall, and return the health once it names a new cause, and the seconds until then.

    is_polling: whether the program polls after it. read_first: False induces it before the consumer joins.
    """
    with virtual_time() as broker:

        async def program() -> tuple[ConsumerHealth, float]:
            given = {"group_id": "billing", "auto_offset_reset": "earliest", **options}
            async with AioConsumer(bootstrap_servers="broker:9092", **given) as consumer:
                if not read_first:
                    await stall(broker, consumer)
                if given["group_id"] is None:
                    await consumer.assign([PLACE])
                else:
                    await consumer.subscribe(TOPIC)
                while read_first and not await consumer.poll(0.5):
                    pass
                if read_first:
                    await consumer.poll(1.0)
                    assert (await consumer.health()).blocked_by is StallCause.END_OF_LOG
                    await stall(broker, consumer)
                began = broker.now
                while True:
                    if is_polling:
                        await poll(consumer)
                    else:
                        await asyncio.sleep(0.5)
                    found = await consumer.health()
                    if found.blocked_by not in (None, StallCause.END_OF_LOG, StallCause.NO_POSITION):
                        return found, broker.now - began
                    assert broker.now - began < 60, found

        result: tuple[ConsumerHealth, float] = broker.run(program())
        return result


async def poll(consumer: AioConsumer) -> None:
    try:
        await consumer.poll(0.5)
    except KcodecError:
        await asyncio.sleep(0.5)


def test_a_consumer_that_reads_has_no_stall() -> None:
    with virtual_time() as broker:

        async def program() -> None:
            async with AioConsumer(
                bootstrap_servers="broker:9092", group_id="billing", auto_offset_reset="earliest", max_poll_records=4
            ) as consumer:
                await consumer.subscribe(TOPIC)
                while len(await consumer.poll(1.0)) != 4:
                    pass
                found = await consumer.health()
                here = found.partitions[PLACE]
                assert (found.blocked_by, here.stalls) == (None, ())
                assert (here.position, here.lag, here.stable_lag) == (4, RECORDS - 4, RECORDS - 4)
                assert here.buffered_bytes > 0 and here.seconds_since_fetch is not None
                assert (found.member_id, found.generation, found.group_id) == ("m-1", 1, "billing")
                while await consumer.poll(1.0):
                    pass
                await asyncio.sleep(2.0)
                found = await consumer.health()
                here = found.partitions[PLACE]
                assert here.seconds_at_position >= 2.0 and found.seconds_since_poll == 2.0
                assert here.blocked_by is StallCause.END_OF_LOG and (here.position, here.lag) == (RECORDS, 0)
                assert "ConsumerHealth(client_id=" in repr(found) and "END_OF_LOG" in repr(found)

        broker.run(program())


def named(found: tuple[ConsumerHealth, float]) -> ConsumerHealth:
    health, seconds = found
    assert seconds <= WITHIN_SECONDS
    return health


def test_a_broker_that_is_away_is_named() -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        broker.is_down = True

    health = named(health_after(stall))
    assert health.blocked_by is StallCause.BROKER_UNREACHABLE
    assert "Connection refused" in str([*health.stalls, *health.partitions[PLACE].stalls][0])


def test_a_broker_that_was_never_reached_is_named() -> None:
    with virtual_time() as broker:
        broker.is_down = True

        async def program() -> ConsumerHealth:
            async with AioConsumer(bootstrap_servers="broker:9092", group_id="billing") as consumer:
                await consumer.subscribe(TOPIC)
                await consumer.poll(1.0)
                return await consumer.health()

        found: ConsumerHealth = broker.run(program())
    assert found.blocked_by is StallCause.BROKER_UNREACHABLE
    assert "no broker has responded at bootstrap_servers='broker:9092'" in found.stalls[0].text
    assert (found.member_id, found.generation, found.partitions) == (None, None, {})


def test_a_broker_that_does_not_respond_is_named() -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        real = broker._Fetch

        def late(request: Any, version: int) -> Any:
            response = real(request, version)
            request.max_wait_ms = 25_000
            return response

        broker._Fetch = late  # type: ignore[method-assign]
        await consumer.poll(0.6)

    health = named(health_after(stall, group_id=None))
    assert health.partitions[PLACE].blocked_by is StallCause.BROKER_NOT_RESPONDING


def test_a_paused_partition_is_named() -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        await consumer.pause(PLACE)

    assert named(health_after(stall)).blocked_by is StallCause.PAUSED


def test_a_program_that_does_not_poll_is_named() -> None:
    health = named(health_after(is_polling=False))
    assert health.blocked_by is StallCause.NOT_POLLED
    assert health.seconds_since_poll >= 3.0


def test_a_full_buffer_is_named() -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        await consumer.seek_to_beginning(PLACE)

    health = named(health_after(stall, is_polling=False, fetch_ahead_max_bytes=1))
    assert health.blocked_by is StallCause.BUFFER_FULL
    assert health.partitions[PLACE].buffered_bytes > 0


def test_a_rebalance_in_progress_is_named() -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        broker.faults = lambda api: ErrorCode.REBALANCE_IN_PROGRESS if api in ("Heartbeat", "SyncGroup") else 0

    health = named(health_after(stall, group_protocol="classic"))
    assert health.blocked_by is StallCause.REBALANCE
    assert "'billing'" in health.stalls[0].text


def test_a_rebalance_that_waits_for_a_poll_is_named() -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        broker.faults = lambda api: ErrorCode.REBALANCE_IN_PROGRESS if api == "Heartbeat" else 0

    health = named(health_after(stall, is_polling=False, group_protocol="classic"))
    assert health.blocked_by in (StallCause.REBALANCE, StallCause.NOT_POLLED)
    assert {one.cause for one in health.stalls} >= {StallCause.REBALANCE}


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("Fetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("JoinGroup", ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ("Metadata", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_a_missing_permission_is_named(api: str, code: ErrorCode) -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        broker.faults = lambda asked: code if asked == api else 0

    health = named(health_after(stall, read_first=api == "Fetch", group_protocol="classic"))
    assert health.blocked_by is StallCause.NOT_AUTHORIZED


def test_an_unknown_topic_is_named() -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        del broker.topics[TOPIC]

    health = named(health_after(stall, read_first=False))
    assert health.blocked_by is StallCause.UNKNOWN_TOPIC
    assert "topic 'orders' has not existed" in health.stalls[0].text


@pytest.mark.parametrize("code", [ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_a_rejected_fetch_is_named(code: ErrorCode) -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        broker.faults = lambda asked: code if asked == "Fetch" else 0

    expected = StallCause.CORRUPT if code == ErrorCode.CORRUPT_MESSAGE else StallCause.FETCH_FAILED
    health = named(health_after(stall))
    assert health.blocked_by is expected
    assert code.name in health.partitions[PLACE].stalls[0].text


def test_a_corrupt_batch_is_named() -> None:
    with virtual_time() as broker:
        broker.records = broker.records[:-1] + bytes([broker.records[-1] ^ 1])

        async def program() -> ConsumerHealth:
            async with AioConsumer(
                bootstrap_servers="broker:9092", group_id="billing", auto_offset_reset="earliest"
            ) as consumer:
                await consumer.subscribe(TOPIC)
                with pytest.raises(DecodeError):
                    while True:
                        await consumer.poll(1.0)
                return await consumer.health()

        found: ConsumerHealth = broker.run(program())
    assert found.blocked_by is StallCause.CORRUPT
    assert found.partitions[PLACE].position == 0


def test_an_offset_of_an_open_transaction_is_named() -> None:
    async def stall(broker: VirtualBroker, consumer: AioConsumer) -> None:
        broker.faults = lambda asked: ErrorCode.UNSTABLE_OFFSET_COMMIT if asked == "OffsetFetch" else 0

    health = named(health_after(stall, read_first=False))
    assert health.blocked_by is StallCause.OPEN_TRANSACTION


def test_an_open_transaction_is_named_on_a_broker(kcodec_broker: Broker) -> None:
    """With the sync consumer: other threads may call health() while one polls."""
    topic = kcodec_broker.create_topic(partitions=1)
    place, servers = TopicPartition(topic, 0), kcodec_broker.bootstrap_servers
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"held back").result(30)
        with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([place])
            deadline = time.monotonic() + WITHIN_SECONDS
            while (found := consumer.health()).blocked_by is not StallCause.OPEN_TRANSACTION:
                assert consumer.poll(0.2) == []
                assert time.monotonic() < deadline, found
            here = found.partitions[place]
            assert (here.position, here.lag, here.stable_lag, found.member_id) == (0, 1, 0, None)
            assert "a transaction is open at offset 0" in here.stalls[0].text
            producer.abort_transaction()
            while (found := consumer.health()).blocked_by is not StallCause.END_OF_LOG:
                assert consumer.poll(0.2) == []
                assert time.monotonic() < deadline + WITHIN_SECONDS, found
