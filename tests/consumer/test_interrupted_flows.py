# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in asyncio that interrupts a background flow of a client: calls do not wait for what the flow would have done,
and the client can still be closed."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from interrupted_calls import interrupted as interrupted_at
from left_groups import is_left_soon
from second_ctrl_c import interrupt_flow, interrupt_task

from kcodec.broker import Broker
from kcodec.client import Admin, aio
from kcodec.errors import BrokerError, KcodecError, TransportError
from kcodec.flow import Call, Done, InterruptedFlow
from kcodec.offsets import TopicPartition
from kcodec.protocol.messages.groups import ConsumerGroupHeartbeatRequest, LeaveGroupRequest
from kcodec.protocol.messages.transactions import EndTxnRequest
from kcodec.protocol.schema import Request

ANOTHER_CLIENT, ANOTHER_PRODUCER = "if calls keep failing, create another client", "create another producer"


def interrupted(step: str, remedy: str = ANOTHER_CLIENT) -> str:
    """Return the pattern of the error of an interrupted step."""
    return "^" + re.escape(f"a step of this client ({step}) was interrupted by KeyboardInterrupt(); {remedy}")


@pytest.mark.parametrize(
    "name", ["consumer", "fetcher", "fetcher: listener", "positions: listener", "commits", "watch"]
)
def test_poll_raises_the_error_of_an_interrupted_flow(kcodec_broker: Broker, name: str) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        async with aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            await consumer.poll(0.1)
            interrupt_flow(consumer, name)
            with pytest.raises(TransportError, match=interrupted(name)):
                await consumer.poll(5.0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        ("classic", "membership"),
        ("classic", "group heartbeats"),
        ("classic", "group topics"),
        ("consumer", "membership"),
        ("consumer", "reconciliation of group 'readers'"),
    ],
)
def test_a_member_whose_flow_was_interrupted_raises_and_leaves(kcodec_broker: Broker, protocol: str, name: str) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        consumer = aio.Consumer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, group_id="readers", group_protocol=cast(Any, protocol)
        )
        async with consumer:
            await consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.poll(0.1)
            interrupt_flow(consumer, name)
            with pytest.raises(TransportError, match=interrupted(name)):
                await consumer.poll(5.0)

    asyncio.run(main())
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        assert is_left_soon(admin, "readers")


async def interrupt_close(
    client: aio.Consumer | aio.GroupTransactSession | aio.Producer, name: str, request: type[Request]
) -> None:
    """Interrupt the flow of this name while `close` waits for the response to this request, which is not sent."""
    network, held = client._client.network, asyncio.Event()
    start_call = network.start_call

    def hold(call: Call, done: Done) -> Callable[[], None]:
        if call.kind is not request or getattr(call.request, "member_epoch", -1) >= 0:
            return start_call(call, done)
        held.set()
        return lambda: None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "start_call", hold)
        closing = asyncio.ensure_future(client.close(10.0))
        await held.wait()
    interrupt_flow(client, name)
    with pytest.raises(InterruptedFlow, match=interrupted(name)):
        await closing


@pytest.mark.parametrize(
    ("protocol", "request_class"),
    [("classic", LeaveGroupRequest), ("consumer", ConsumerGroupHeartbeatRequest)],
)
@pytest.mark.parametrize("kind", [aio.Consumer, aio.GroupTransactSession])
def test_a_close_whose_flow_was_interrupted_leaves(
    kcodec_broker: Broker, kind: Any, protocol: str, request_class: type[Request]
) -> None:
    topic = kcodec_broker.create_topic()
    options: dict[str, Any] = {"topics": topic, "transactional_id": topic} if kind is aio.GroupTransactSession else {}

    async def main() -> None:
        servers = kcodec_broker.bootstrap_servers
        client = kind(bootstrap_servers=servers, group_id=topic, group_protocol=protocol, **options)
        if kind is aio.GroupTransactSession:
            async with client.transaction() as txn:
                while not client.assignment():
                    await txn.poll(0.1)
        else:
            await client.subscribe([topic])
            while not client.assignment():
                await client.poll(0.1)
        await interrupt_close(client, "leave the group", request_class)

    asyncio.run(main())
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        assert is_left_soon(admin, topic)


def test_a_close_whose_flow_was_interrupted_aborts(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        producer = aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=topic)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted")
        await interrupt_close(producer, "close()", EndTxnRequest)

    asyncio.run(main())
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        assert admin.describe_transactions([topic])[topic].state == "CompleteAbort"


def test_metadata_is_still_requested_after_an_interruption(kcodec_broker: Broker) -> None:
    topics = [kcodec_broker.create_topic() for _ in range(2)]

    async def main() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            assert await producer.partitions_for(topics[0]) > 0
            interrupt_flow(producer, "metadata")
            assert await producer.partitions_for(topics[1]) > 0

    asyncio.run(main())


def test_records_do_not_wait_for_an_interrupted_metadata_request(kcodec_broker: Broker) -> None:
    """The response contains the error of the topic, for which nothing else waits."""
    topic = "an invalid name"

    async def main() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            delivery = await producer.send(topic, b"value")
            await asyncio.sleep(0)
            interrupt_flow(producer, f"metadata of {topic}")
            with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
                await asyncio.wait_for(delivery, 5.0)

    asyncio.run(main())


def test_records_of_a_refused_topic_fail_despite_an_interruption() -> None:
    """Ctrl-C comes at each point of the code that fails the records. Those that are left wait for another request."""
    refusal = KcodecError("refused")

    async def main(at: int) -> bool:
        producer = aio.Producer(bootstrap_servers="127.0.0.1:1")
        deliveries = [await producer.send("orders", b"value") for _ in range(2)]
        core = producer._core
        buffer = core.accumulator.topics["orders"]
        is_interrupted = interrupted_at(lambda: core.sender._end_lookup(buffer, refusal), at)
        waiting = {record.placeholder for record in buffer.waiting}
        assert waiting.issuperset(core.accumulator.unfinished), f"at {at}"
        core.sender._end_lookup(buffer, refusal)
        assert [delivery.exception() for delivery in deliveries] == [refusal, refusal]
        await producer.close()
        return is_interrupted

    at = next(at for at in itertools.count() if not asyncio.run(main(at)))
    assert at > 10


class Gauges:
    """Metrics of which only the number of gauges is used."""

    def __init__(self) -> None:
        self.values = 0

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        pass

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        pass

    def gauge(self, name: str, value: float, **labels: object) -> None:
        self.values += name == "consumer.assigned_partitions"


def test_gauges_are_still_reported_after_an_interruption(kcodec_broker: Broker) -> None:
    topic, metrics = kcodec_broker.create_topic(), Gauges()

    async def main() -> None:
        async with aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, metrics=metrics) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            await consumer.poll(0.1)
            tasks = [task for task in consumer._client.scheduler.tasks if task.name == "report of gauges"]
            assert len(tasks) == 2  # those of the client and of the consumer
            for task in tasks:
                interrupt_task(consumer, task)
            seen = metrics.values
            await consumer.poll(2.5)  # does not raise the interruption
            assert metrics.values >= seen + 2

    asyncio.run(main())


@pytest.mark.parametrize("name", ["producer", "producer id"])
def test_records_fail_after_the_interruption_of_the_producers_flow(kcodec_broker: Broker, name: str) -> None:
    topic = kcodec_broker.create_topic()

    async def main() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=60_000) as producer:
            await producer.partitions_for(topic)
            buffered = await producer.send(topic, b"buffered")
            interrupt_flow(producer, name)
            with pytest.raises(TransportError, match=interrupted(name, ANOTHER_PRODUCER)) as failure:
                await asyncio.wait_for(buffered, 5.0)
            assert not failure.value.possibly_sent
            with pytest.raises(TransportError, match=interrupted(name, ANOTHER_PRODUCER)):
                await producer.send(topic, b"refused")

    asyncio.run(main())


def test_a_call_says_that_it_was_interrupted() -> None:
    async def main() -> None:
        producer = aio.Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=5000)
        waiting = asyncio.ensure_future(producer.partitions_for("orders"))
        await asyncio.sleep(0.1)
        interrupt_flow(producer, "partitions_for('orders')")
        with pytest.raises(
            TransportError,
            match=interrupted("partitions_for('orders')"),
        ) as failure:
            await waiting
        assert failure.value.possibly_sent
        await producer.close(0.0)

    asyncio.run(main())
