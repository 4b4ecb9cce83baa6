# SPDX-License-Identifier: Apache-2.0
"""Calls of `unsubscribe` and `close` within the callbacks of a rebalance. They do not wait for the revocation that
waits for the callback itself."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any, Literal

import pytest

from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, aio
from kcodec.errors import TransportError
from kcodec.offsets import TopicPartition

#: Timeout of the calls, and a limit far below it.
TIMEOUT, SOON = 20.0, 2.5
ENDINGS = pytest.mark.parametrize("ending", ["unsubscribe", "close"])
PROTOCOLS = pytest.mark.parametrize("group_protocol", ["classic", "consumer"])


def members(broker: Broker, group: str) -> int:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        return len(admin.describe_groups(group)[group].members)


class Program:
    """A consumer that ends in a callback, and the seconds that the end took."""

    def __init__(self, broker: Broker, group_protocol: Literal["classic", "consumer"], ending: str) -> None:
        self.topic, self.other = broker.create_topic(partitions=2), broker.create_topic(partitions=1)
        self.took: list[float] = []
        self.revoked: list[TopicPartition] = []
        self.ending = ending
        self.consumer = Consumer(
            bootstrap_servers=broker.bootstrap_servers,
            group_id=self.topic,
            group_protocol=group_protocol,
        )

    def end(self, partitions: Any) -> None:
        begin = time.monotonic()
        getattr(self.consumer, self.ending)(TIMEOUT)
        self.took.append(time.monotonic() - begin)

    def end_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.revoked += sorted(partitions)
        self.end(partitions)

    def poll_until_ended(self) -> None:
        until = time.monotonic() + 2 * TIMEOUT
        with suppress(TransportError):  # `close` was called within poll
            while not self.took and time.monotonic() < until:
                self.consumer.poll(0.2)


@PROTOCOLS
@ENDINGS
@pytest.mark.parametrize("is_partial", [False, True])
def test_the_end_in_on_revoked_does_not_wait_for_itself(
    kcodec_broker: Broker, group_protocol: Literal["classic", "consumer"], ending: str, is_partial: bool
) -> None:
    """The rebalance revokes all partitions, or some. The end then revokes the others, which calls on_revoked again."""
    program = Program(kcodec_broker, group_protocol, ending)
    consumer, topic, other = program.consumer, program.topic, program.other
    try:
        consumer.subscribe([topic, other], on_revoked=program.end_revoked)
        while len(consumer.assignment()) < 3:
            consumer.poll(0.1)
        kept = other if is_partial else kcodec_broker.create_topic(partitions=1)
        consumer.subscribe(kept, on_revoked=program.end_revoked)
        program.poll_until_ended()
        assert max(program.took) < SOON
        assert sorted(program.revoked) == sorted(
            [*(TopicPartition(topic, n) for n in (0, 1)), TopicPartition(other, 0)]
        )
        assert consumer.assignment() == frozenset()
        assert members(kcodec_broker, topic) == 0
    finally:
        consumer.close()


@PROTOCOLS
@ENDINGS
@pytest.mark.parametrize("outer", ["unsubscribe", "close"])
def test_the_end_in_the_callback_of_another_end_does_not_wait(
    kcodec_broker: Broker, group_protocol: Literal["classic", "consumer"], ending: str, outer: str
) -> None:
    program = Program(kcodec_broker, group_protocol, ending)
    consumer, topic = program.consumer, program.topic
    try:
        consumer.subscribe(topic, on_revoked=program.end_revoked)
        while not consumer.assignment():
            consumer.poll(0.1)
        begin = time.monotonic()
        with suppress(TransportError):  # `unsubscribe` is interrupted by `close`
            getattr(consumer, outer)(TIMEOUT)
        assert time.monotonic() - begin < SOON
        assert max(program.took) < SOON
        assert len(program.revoked) == 2
        assert members(kcodec_broker, topic) == 0
    finally:
        consumer.close()


@PROTOCOLS
@ENDINGS
def test_the_end_in_on_assigned_does_not_wait(
    kcodec_broker: Broker, group_protocol: Literal["classic", "consumer"], ending: str
) -> None:
    program = Program(kcodec_broker, group_protocol, ending)
    try:
        program.consumer.subscribe(program.topic, on_assigned=program.end)
        program.poll_until_ended()
        assert max(program.took) < SOON
        assert members(kcodec_broker, program.topic) == 0
    finally:
        program.consumer.close()


@PROTOCOLS
@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_poll_without_a_limit_ends_after_unsubscribe(
    kcodec_broker: Broker, group_protocol: Literal["classic", "consumer"], is_revoked: bool
) -> None:
    """The next poll raises an error, as any poll without a subscription."""
    program = Program(kcodec_broker, group_protocol, "unsubscribe")
    consumer, ended = program.consumer, threading.Event()
    polled: list[Any] = []

    def poll() -> None:
        polled.append(consumer.poll(None))
        ended.set()

    try:
        if is_revoked:
            consumer.subscribe(program.topic, on_revoked=program.end)
            while not consumer.assignment():
                consumer.poll(0.1)
            consumer.subscribe(program.other, on_revoked=program.end)
        else:
            consumer.subscribe(program.topic, on_assigned=program.end)
        threading.Thread(target=poll, daemon=True).start()
        assert ended.wait(TIMEOUT)
        assert polled == [[]]
        with pytest.raises(RuntimeError, match="nothing to read"):
            next(iter(consumer))
    finally:
        consumer.close()


def test_an_asyncio_poll_without_a_limit_ends_after_unsubscribe(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def program() -> None:
        async with aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=topic) as consumer:

            async def end(partitions: frozenset[TopicPartition]) -> None:
                await consumer.unsubscribe(TIMEOUT)

            await consumer.subscribe(topic, on_assigned=end)
            assert await asyncio.wait_for(consumer.poll_one(None), TIMEOUT) is None

    asyncio.run(program())


def test_a_poll_without_a_limit_goes_on_after_a_new_subscription(kcodec_broker: Broker) -> None:
    topic, other = kcodec_broker.create_topic(), kcodec_broker.create_topic()
    kcodec_broker.seed(other, [b"1"])
    servers = kcodec_broker.bootstrap_servers
    with Consumer(bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest") as consumer:

        def change(partitions: frozenset[TopicPartition]) -> None:
            consumer.unsubscribe(TIMEOUT)
            consumer.subscribe(other)

        consumer.subscribe(topic, on_assigned=change)
        assert [record.value for record in consumer.poll(None)] == [b"1"]


@pytest.mark.parametrize("ending", ["unsubscribe", "close", "task"])
def test_the_end_in_a_coroutine_does_not_wait_for_itself(kcodec_broker: Broker, ending: str) -> None:
    """Also in a task of its own, such as that of asyncio.wait_for."""
    topic, other = kcodec_broker.create_topic(partitions=2), kcodec_broker.create_topic(partitions=1)
    took: list[float] = []

    async def program() -> None:
        async with aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=topic) as consumer:

            async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
                begin = time.monotonic()
                if ending == "task":
                    await asyncio.create_task(consumer.unsubscribe(TIMEOUT))
                else:
                    await getattr(consumer, ending)(TIMEOUT)
                took.append(time.monotonic() - begin)

            await consumer.subscribe(topic, on_revoked=on_revoked)
            while not consumer.assignment():
                await consumer.poll(0.1)
            await consumer.subscribe(other, on_revoked=on_revoked)
            with suppress(TransportError):
                while not took:
                    await consumer.poll(0.2)

    asyncio.run(asyncio.wait_for(program(), 2 * TIMEOUT))
    assert max(took) < SOON
    assert members(kcodec_broker, topic) == 0


def test_the_end_on_another_thread_waits_for_on_revoked(kcodec_broker: Broker) -> None:
    """The callback may still commit offsets as a member of the group."""
    topic, other = kcodec_broker.create_topic(partitions=2), kcodec_broker.create_topic(partitions=1)
    steps: list[str] = []
    called = threading.Event()
    with Consumer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=topic, heartbeat_interval_ms=200
    ) as consumer:

        def on_revoked(partitions: frozenset[TopicPartition]) -> None:
            called.set()
            time.sleep(1.0)
            consumer.commit({TopicPartition(topic, 0): 1})
            steps.append("on_revoked")

        def unsubscribe() -> None:
            called.wait(TIMEOUT)
            consumer.unsubscribe(TIMEOUT)
            steps.append("unsubscribe")

        consumer.subscribe(topic, on_revoked=on_revoked)
        while not consumer.assignment():
            consumer.poll(0.1)
        thread = threading.Thread(target=unsubscribe)
        thread.start()
        consumer.subscribe(other, on_revoked=on_revoked)
        until = time.monotonic() + TIMEOUT
        while not steps and time.monotonic() < until:
            consumer.poll(0.2)
        thread.join(TIMEOUT)
    assert steps == ["on_revoked", "unsubscribe"]
