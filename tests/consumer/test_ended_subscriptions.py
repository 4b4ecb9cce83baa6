# SPDX-License-Identifier: Apache-2.0
"""What a consumer keeps of a subscription that has ended: no member, no flows, and no requests for all topics."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any, Literal

import pytest

from kcodec.broker import Broker
from kcodec.client import Consumer, aio
from kcodec.compat.aiokafka import AIOKafkaConsumer
from kcodec.consumer.group.classic.membership import ClassicMembership
from kcodec.consumer.group.modern.membership import ConsumerMembership
from kcodec.offsets import TopicPartition


def requests_for_all(broker: Broker) -> list[bool]:
    """For each Metadata request of the broker, whether it was for all topics."""
    return [entry.request.topics is None for entry in broker.wire_log.requests("Metadata")]


def refresh(consumer: Any) -> None:
    """Wait for new metadata, whichever topics it is for."""
    consumer._io_loop.run(consumer._core.cluster.refresh(20.0))


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_subscriptions_that_have_ended_leave_no_flows_and_no_members(
    kcodec_broker: Broker, group_protocol: Literal["classic", "consumer"]
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    members: list[weakref.ref[Any]] = []
    with Consumer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=f"group-{topic}", group_protocol=group_protocol
    ) as consumer:
        counts = []
        for _ in range(3):
            consumer.subscribe(topic)
            members.append(weakref.ref(consumer._core.selection.membership))
            while not consumer.assignment():
                consumer.poll(0.1)
            consumer.unsubscribe()
            gc.collect()
            counts.append(sum(isinstance(one, ClassicMembership | ConsumerMembership) for one in gc.get_objects()))
        assert not any(member() for member in members)
        assert counts[0] == counts[-1]
        assert consumer._core.selection.membership_tasks == []


@pytest.mark.parametrize("after", ["unsubscribe", "subscribe", "assign"])
def test_the_metadata_of_all_topics_is_not_requested_after_a_pattern(kcodec_broker: Broker, after: str) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    other = kcodec_broker.create_topic(partitions=1)
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=f"group-{topic}") as consumer:
        consumer.subscribe(pattern=topic + ".*")
        while not consumer.assignment():
            consumer.poll(0.1)
        assert requests_for_all(kcodec_broker)[-1]
        if after != "subscribe":
            consumer.unsubscribe()
        if after == "assign":
            consumer.assign([TopicPartition(other, 0)])
        if after == "subscribe":
            consumer.subscribe(other)
        refresh(consumer)
        refresh(consumer)
        assert not requests_for_all(kcodec_broker)[-1]
        consumer.unsubscribe()
        consumer.subscribe(pattern=topic + ".*")
        while TopicPartition(topic, 0) not in consumer.assignment():
            consumer.poll(0.1)
        refresh(consumer)
        assert requests_for_all(kcodec_broker)[-1]


def test_a_second_pattern_is_matched_before_the_member_joins(kcodec_broker: Broker) -> None:
    """The topics of the first pattern are forgotten by then, and the member would join without any topic."""
    topic = kcodec_broker.create_topic(partitions=1)
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=f"group-{topic}") as consumer:
        for _ in range(2):
            consumer.subscribe(pattern=topic + ".*")
            while not consumer.assignment():
                consumer.poll(0.1)
            consumer.unsubscribe()
            refresh(consumer)
            consumer._core.cluster._topics_used_at.clear()  # as after TOPIC_IDLE_SECONDS
            refresh(consumer)
            assert topic not in consumer._core.cluster.topics
    joins = [entry.request.protocols[0].metadata for entry in kcodec_broker.wire_log.requests("JoinGroup")]
    assert all(topic.encode() in bytes(one) for one in joins), joins


def test_the_facade_of_aiokafka_does_not_request_all_topics_after_a_pattern(kcodec_broker: Broker) -> None:
    """A consumer without a group, whose partitions the facade assigns."""
    topic = kcodec_broker.create_topic(partitions=1)

    async def run() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=kcodec_broker.bootstrap_servers, metadata_max_age_ms=200)
        consumer.subscribe(pattern=topic + ".*")
        await consumer.start()
        try:
            assert consumer.assignment()
            for needs_all in (True, False):
                end = time.monotonic() + 10
                while requests_for_all(kcodec_broker)[-2:] != [needs_all] * 2:
                    assert time.monotonic() < end
                    await asyncio.sleep(0.05)
                consumer.unsubscribe()
        finally:
            await consumer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a_subscription_during_an_abandoned_unsubscribe_gets_partitions(
    kcodec_broker: Broker, group_protocol: Literal["classic", "consumer"]
) -> None:
    """The caller stops waiting for `unsubscribe`, whose flow goes on and then leaves the group."""
    topic = kcodec_broker.create_topic(partitions=1)
    other = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(other, [b"first"])
    options: Any = {"group_id": f"group-{topic}", "group_protocol": group_protocol, "auto_offset_reset": "earliest"}

    async def run() -> None:
        async with aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, **options) as consumer:
            await consumer.subscribe(topic)
            while not consumer.assignment():
                await consumer.poll(0.1)
            kcodec_broker.faults.add("LeaveGroup", delay_ms=1500)
            kcodec_broker.faults.add("ConsumerGroupHeartbeat", delay_ms=1500, count=1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.unsubscribe(), 0.3)
            await consumer.subscribe(other)
            read: list[Any] = []
            async with asyncio.timeout(20):
                while not read:
                    read = await consumer.poll(0.1)
            until = time.monotonic() + 2.0
            while time.monotonic() < until:  # the leave ends meanwhile
                await consumer.poll(0.1)
            assert consumer.assignment() == {TopicPartition(other, 0)}
            kcodec_broker.seed(other, [b"second"])
            async with asyncio.timeout(20):
                while not (read := await consumer.poll(0.1)):
                    pass
            assert [record.value for record in read] == [b"second"]

    asyncio.run(run())
