# SPDX-License-Identifier: Apache-2.0
"""What aiokafka's tests check with its private attributes, shown with faults of the embedded broker and public calls:
the same programs with aiokafka's own clients and with those of kcodec.compat.aiokafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import TopicPartition, errors
from aiokafka.structs import BrokerMetadata
from aiokafka_kits import SECONDS, Kit, Listener, kit_of, read, run

from kcodec import UnknownOutcomeError
from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(default_partitions=2) as found:
        yield found


@pytest.fixture(autouse=True)
def no_faults(broker: Broker) -> Iterator[None]:
    yield
    broker.faults.clear()


@pytest.fixture(params=["aiokafka", "kcodec"])
def kit(request: pytest.FixtureRequest, broker: Broker) -> Kit:
    return kit_of(request.param, broker.bootstrap_servers)


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(partitions=2)


# ---------------------------------------------------------------------------------------------------------- producer


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("REQUEST_TIMED_OUT", errors.RequestTimedOutError),
        ("NOT_LEADER_OR_FOLLOWER", errors.NotLeaderForPartitionError),
        ("NOT_ENOUGH_REPLICAS", errors.NotEnoughReplicasError),
        ("UNKNOWN_SERVER_ERROR", errors.UnknownError),
        (None, errors.RequestTimedOutError),
    ],
)
def test_a_record_has_the_error_of_its_last_attempt(
    kit: Kit, broker: Broker, topic: str, code: str | None, kind: type[Exception]
) -> None:
    """Also after the time limit. Records of another partition are delivered (test_producer_send_error)."""

    async def program() -> None:
        async with kit.producer(request_timeout_ms=600, linger_ms=5) as producer:
            await producer.partitions_for(topic)
            if code is None:
                broker.faults.add("Produce", topic=topic, partition=0, drop="before")
            else:
                broker.faults.add("Produce", topic=topic, partition=0, error=code)
            failing = await producer.send(topic, b"1", partition=0)
            if code is not None:
                assert (await producer.send_and_wait(topic, b"2", partition=1)).offset == 0
            with pytest.raises(errors.KafkaError) as caught:
                await failing
            assert type(caught.value) is kind
            broker.faults.clear()

    run(program())


def test_an_idempotent_producer_writes_a_record_once(kit: Kit, broker: Broker, topic: str) -> None:
    """The broker writes the record, and two responses are lost (test_producer_indempotence_no_duplicates)."""

    async def program() -> None:
        broker.faults.add("Produce", close="after", count=2)
        async with kit.producer(enable_idempotence=True, request_timeout_ms=10_000) as producer:
            assert (await producer.send_and_wait(topic, b"once", partition=0)).offset == 0
        async with kit.consumer(topic) as consumer:
            assert await read(consumer, 1) == [b"once"]
            assert await consumer.getmany(timeout_ms=300) == {}

    run(program())


@pytest.mark.parametrize("code", ["UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER"])
def test_a_retry_keeps_the_order_of_records(kit: Kit, broker: Broker, topic: str, code: str) -> None:
    """As after a change of the leader (test_producer_send_reenque_resets_waiters, _invalid_leader_retry_metadata and
    _leader_change_preserves_order)."""

    async def program() -> None:
        async with kit.producer(linger_ms=100) as producer:
            broker.faults.add("Produce", error=code, count=1)
            first = await producer.send(topic, b"1", partition=0)
            await asyncio.sleep(0.15)
            second = await producer.send(topic, b"2", partition=0)
            assert [(await one).offset for one in (first, second)] == [0, 1]

    run(program())


def test_the_time_of_the_broker_is_returned(kit: Kit, topic: str) -> None:
    """Of a topic with LogAppendTime (test_producer_correct_time_returned)."""
    with Admin(bootstrap_servers=kit.servers) as admin:
        stamped = NewTopic(f"{topic}-stamped", 1, configs={"message.timestamp.type": "LogAppendTime"})
        admin.create_topics([stamped])

    async def program() -> None:
        async with kit.producer() as producer:
            found = await producer.send_and_wait(stamped.name, b"v", timestamp_ms=123123123)
        assert found.timestamp_type == 1 and found.timestamp > 123123123

    run(program())


def test_a_cancelled_end_of_a_transaction_goes_on(kit: Kit, topic: str) -> None:
    """The next transaction can begin (test_producer_transactional_cancel_txn_methods)."""

    async def program() -> None:
        async with kit.producer(transactional_id=f"{topic}-{kit.name}") as producer:
            for end, value in ((producer.commit_transaction, b"kept"), (producer.abort_transaction, b"dropped")):
                await producer.begin_transaction()
                await producer.send(topic, value, partition=0)
                task = asyncio.create_task(end())
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.sleep(0.3)
            async with producer.transaction():
                await producer.send(topic, b"last", partition=0)
        async with kit.consumer(topic, isolation_level="read_committed") as consumer:
            assert await read(consumer, 2) == [b"kept", b"last"]

    run(program())


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["timeout", "cancelled"])
@pytest.mark.parametrize("reaches", ["before", "after"], ids=["request lost", "response lost"])
def test_a_commit_without_a_response_can_only_be_repeated(
    broker: Broker, topic: str, reaches: str, is_cancelled: bool
) -> None:
    """The next transaction would abort the one whose commit did not reach the coordinator. The repeated commit reports
    the outcome. aiokafka repeats the request itself, and its begin_transaction fails until it gets a response."""

    async def program() -> None:
        kit = kit_of("kcodec", broker.bootstrap_servers)
        async with kit.producer(transactional_id=topic, request_timeout_ms=1000) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"first", partition=0)
            broker.faults.add("EndTxn", drop=reaches)
            if is_cancelled:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(producer.commit_transaction(), 0.3)
                await asyncio.sleep(2)
            else:
                with pytest.raises(errors.KafkaTimeoutError) as late:
                    await producer.commit_transaction()
                assert isinstance(late.value.__cause__, UnknownOutcomeError)
            broker.faults.clear()
            place = TopicPartition(topic, 0)
            for call in (
                producer.begin_transaction,
                producer.abort_transaction,
                lambda: producer.send_offsets_to_transaction({place: 1}, "group"),
            ):
                with pytest.raises(errors.IllegalOperation, match=r"repeat commit_transaction\(\)"):
                    await call()
            await producer.commit_transaction()
            async with producer.transaction():
                await producer.send(topic, b"second", partition=0)
        async with kit.consumer(topic, isolation_level="read_committed") as consumer:
            assert await read(consumer, 2) == [b"first", b"second"]

    run(program())


def test_begin_fails_while_a_commit_gets_no_response(kit: Kit, broker: Broker, topic: str) -> None:
    """With both clients, the transaction is committed, and the next one can begin after that."""

    async def program() -> None:
        async with kit.producer(transactional_id=f"{topic}-{kit.name}", request_timeout_ms=1000) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"first", partition=0)
            broker.faults.add("EndTxn", drop="before")
            step = asyncio.create_task(producer.commit_transaction())
            await asyncio.sleep(2.5)
            refusal = AssertionError if kit.name == "aiokafka" else errors.IllegalOperation
            with pytest.raises(refusal):
                await producer.begin_transaction()
            broker.faults.clear()
            if kit.name == "aiokafka":
                await step
            else:
                with pytest.raises(errors.KafkaTimeoutError):
                    await step
                await producer.commit_transaction()
            async with producer.transaction():
                await producer.send(topic, b"second", partition=0)
        async with kit.consumer(topic, isolation_level="read_committed") as consumer:
            assert await read(consumer, 2) == [b"first", b"second"]

    run(program())


def test_a_refused_record_does_not_prevent_the_commit(kit: Kit, topic: str) -> None:
    """The program gets the error from `send`, and may send another record instead."""

    async def program() -> None:
        async with kit.producer(transactional_id=f"{topic}-{kit.name}") as producer, producer.transaction():
            await producer.send_and_wait(topic, b"first", partition=0)
            with pytest.raises(errors.MessageSizeTooLargeError):
                await producer.send(topic, bytes(2_000_000), partition=0)
            await producer.send(topic, b"other", partition=0)
        async with kit.consumer(topic, isolation_level="read_committed") as consumer:
            assert await read(consumer, 2) == [b"first", b"other"]

    run(program())


def test_calls_after_the_stop_of_a_producer(kit: Kit, topic: str) -> None:
    async def program() -> None:
        producer = kit.producer()
        await producer.stop()  # without start
        producer = kit.producer()
        await producer.flush()  # without start
        await producer.start()
        await producer.send(topic, b"v", partition=0)
        await producer.stop()
        await producer.stop()
        await producer.flush()
        assert await producer.partitions_for(topic) == {0, 1}
        with pytest.raises(errors.ProducerClosed):
            await producer.send(topic, b"v")

    run(program())


def test_an_exception_ends_the_block_of_a_client(kit: Kit, topic: str) -> None:
    """Records that were sent are delivered, and the clients are closed (test_producer_context_manager)."""

    async def program() -> None:
        producer = kit.producer(linger_ms=50)
        with pytest.raises(LookupError):
            async with producer as entered:
                assert entered is producer
                await producer.send(topic, b"v", partition=0)
                raise LookupError
        consumer = kit.consumer(topic)
        with pytest.raises(LookupError):
            async with consumer as entered:
                assert entered is consumer
                assert await read(consumer, 1) == [b"v"]
                raise LookupError
        with pytest.raises(errors.ProducerClosed):
            await producer.send(topic, b"v")
        with pytest.raises(errors.ConsumerStoppedError):
            await consumer.getone()

    run(program())


def test_the_metadata_of_a_client(kit: Kit, topic: str) -> None:
    """`producer.client`, whose calls return futures: an update is requested even without `await`."""

    async def program() -> None:
        async with kit.producer() as producer:
            client, cluster = producer.client, producer.client.cluster
            assert await client.add_topic(topic) is True
            assert await client.add_topic(topic) is True
            assert await client.set_topics([topic]) is True
            assert asyncio.isfuture(client.force_metadata_update())
            assert await client.force_metadata_update() is True
            assert [one[:2] for one in client.hosts] == [("127.0.0.1", int(kit.servers.rpartition(":")[2]))]
            assert cluster.partitions_for_topic(topic) == cluster.available_partitions_for_topic(topic) == {0, 1}
            (node,) = cluster.brokers()
            assert type(node) is BrokerMetadata and f"{node.host}:{node.port}" == kit.servers
            assert client.get_random_node() == node.nodeId
            assert cluster.broker_metadata(node.nodeId) == node == cluster.controller
            assert cluster.broker_metadata(99) is None
            places = [TopicPartition(topic, number) for number in range(2)]
            assert [cluster.leader_for_partition(one) for one in places] == [node.nodeId] * 2
            assert cluster.leader_for_partition(TopicPartition(topic, 9)) is None
            assert cluster.leader_for_partition(TopicPartition("none", 0)) is None
            assert cluster.partitions_for_broker(node.nodeId) >= set(places)
            assert not cluster.partitions_for_broker(99)
            assert topic in (await client.fetch_all_metadata()).topics()

    run(program())


def test_metadata_of_all_topics_is_requested_once(kit: Kit, broker: Broker, topic: str) -> None:
    """Also by calls at the same time. Later requests name the topics that the client uses."""

    async def program() -> None:
        async with kit.producer() as producer:
            client = producer.client
            await client.add_topic(topic)
            await asyncio.gather(client.fetch_all_metadata(), client.fetch_all_metadata())
            await client.force_metadata_update()

    run(program())
    last = broker.wire_log.requests("Metadata")[-1]
    assert [one.name for one in last.request.topics] == [topic]


# ---------------------------------------------------------------------------------------------------------- consumer


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "OffsetFetch"])
def test_an_error_of_the_coordinator_is_raised(kit: Kit, broker: Broker, topic: str, api: str) -> None:
    """By each call (test_consumer_propagates_coordinator_errors and _commit_refresh_errors)."""

    async def program() -> None:
        async with kit.consumer(group_id=f"{topic}-{kit.name}", enable_auto_commit=False) as consumer:
            broker.faults.add(api, error="UNKNOWN_SERVER_ERROR")
            consumer.subscribe([topic])
            for _ in range(2):
                with pytest.raises(errors.KafkaError, match="UnknownError"):
                    await asyncio.wait_for(consumer.getone(), SECONDS)
            broker.faults.clear()

    run(program())


def test_a_seek_into_a_batch_leaves_out_older_records(kit: Kit, topic: str) -> None:
    """The broker responds with the whole batch (test_consumer_compressed_returns_older_msgs)."""
    place = TopicPartition(topic, 0)

    async def program() -> None:
        async with kit.producer(compression_type="gzip") as producer:
            batch = producer.create_batch()
            for number in range(10):
                batch.append(key=b"k", value=b"%d" % number, timestamp=None)
            await (await producer.send_batch(batch, topic, partition=0))
        async with kit.consumer(topic) as consumer:
            consumer.seek(place, 5)
            assert await read(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]
            assert await consumer.position(place) == 10

    run(program())


def test_calls_after_the_stop_of_a_consumer(kit: Kit, topic: str) -> None:
    """A program can log where it has stopped."""
    place = TopicPartition(topic, 0)

    async def program() -> None:
        consumer = kit.consumer(topic)
        await consumer.stop()  # without start
        await kit.fill(topic)
        consumer = kit.consumer(topic, group_id=f"{topic}-{kit.name}")
        await consumer.start()
        assert await read(consumer, 2) == [b"v0", b"v1"]
        await consumer.stop()
        await consumer.stop()
        assert consumer.assignment() == {place, TopicPartition(topic, 1)}
        assert await consumer.position(place) == 2
        assert consumer.highwater(place) == consumer.last_stable_offset(place) == 3
        assert consumer.subscription() == {topic}
        with pytest.raises(errors.ConsumerStoppedError):
            await consumer.getone()

    run(program())


def test_a_position_that_is_awaited_follows_the_assignment(broker: Broker, topic: str) -> None:
    """A rebalance and the end of the subscription, while `position` waits (test_consumer_position). Only the facade,
    as the delay of OffsetFetch ends aiokafka's own consumer with an AssertionError."""
    place, kit = TopicPartition(topic, 0), kit_of("kcodec", broker.bootstrap_servers)

    async def program() -> None:
        async with kit.consumer(topic, group_id=f"{topic}-{kit.name}", enable_auto_commit=False) as consumer:
            broker.faults.add("OffsetFetch", delay_ms=300)
            other = broker.create_topic()
            consumer.subscribe([topic, other])
            while TopicPartition(other, 0) not in consumer.assignment():
                await asyncio.sleep(0.005)
            waiting = asyncio.create_task(consumer.position(place))
            await asyncio.sleep(0)
            consumer.subscribe([topic])
            assert await waiting == 0
            consumer.subscribe([topic, other])
            while TopicPartition(other, 0) not in consumer.assignment():
                await asyncio.sleep(0.005)
            waiting = asyncio.create_task(consumer.position(place))
            await asyncio.sleep(0)
            consumer.unsubscribe()
            with pytest.raises(errors.IllegalStateError):
                await waiting

    run(program())


def test_records_of_an_earlier_subscription_are_dropped(kit: Kit, broker: Broker, topic: str) -> None:
    """test_consumer_cleanup_unassigned_data_getmany and _getone."""
    other = broker.create_topic(partitions=1)

    async def program() -> None:
        await kit.fill(topic)
        async with kit.producer() as producer:
            await producer.send_and_wait(other, b"other", partition=0)
        async with kit.consumer(topic, group_id=f"{topic}-{kit.name}") as consumer:
            assert await read(consumer, 1) == [b"v0"]
            consumer.subscribe([other])
            assert await read(consumer, 1) == [b"other"]
            assert await consumer.getmany(timeout_ms=300) == {}

    run(program())


@pytest.mark.parametrize("how", ["getmany", "getone", "getmany without a timeout"])
def test_one_partition_is_read_to_its_end(kit: Kit, broker: Broker, topic: str, how: str) -> None:
    """Fetched records of another partition of the same broker are not taken, and must not delay it."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for one in (first, second):
        for _ in range(10):
            broker.seed(topic, [bytes(200)] * 50, partition=one.partition)

    async def program() -> None:
        async with kit.consumer(group_id=None, max_partition_fetch_bytes=12_000) as consumer:
            consumer.assign([first, second])
            for one in (first, second):
                count = 0
                while count < 500:
                    if how == "getone":
                        count += (await consumer.getone(one)).topic == topic
                    else:
                        timeout_ms = 500 if how == "getmany" else 0
                        found = await consumer.getmany(one, timeout_ms=timeout_ms)
                        await asyncio.sleep(0)  # with a timeout of 0, aiokafka's own consumer does not suspend the task
                        count += sum(map(len, found.values()))
                assert count == 500

    run(program())


def test_requests_for_several_partitions_wait_together(broker: Broker, topic: str) -> None:
    """Each of two tasks reads one partition, and a third partition is not read."""
    other = broker.create_topic(partitions=1)
    kit = kit_of("kcodec", broker.bootstrap_servers)
    ends = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    for name, partition in ((topic, 0), (topic, 1), (other, 0)):
        for _ in range(10):
            broker.seed(name, [bytes(200)] * 50, partition=partition)

    async def program() -> None:
        async with kit.consumer(group_id=None, max_partition_fetch_bytes=12_000) as consumer:
            consumer.assign([*ends, TopicPartition(other, 0)])

            async def read_all(one: TopicPartition) -> None:
                for _ in range(500):
                    assert (await consumer.getone(one)).partition == one.partition

            await asyncio.gather(*map(read_all, ends))

    run(program())


def test_a_new_subscription_calls_its_listener_twice(kit: Kit, topic: str) -> None:
    """Also after unsubscribe(), which calls no listener (test_kip_345_disabled and _enabled)."""
    places = {TopicPartition(topic, number) for number in range(2)}

    def check(listener: Listener) -> None:
        (first, _), last = listener.calls
        assert (first, last) == ("revoked", ("assigned", places))

    async def program() -> None:
        async with kit.consumer(group_id=f"{topic}-{kit.name}") as consumer:
            for _ in range(2):
                listener = Listener()
                consumer.subscribe([topic], listener=listener)
                while len(listener.calls) < 2:
                    await asyncio.sleep(0.02)
                check(listener)
                consumer.unsubscribe()
                await asyncio.sleep(0.3)
                check(listener)

    run(program())


def test_an_interrupted_wait_leaves_the_consumer_usable(kit: Kit, topic: str) -> None:
    async def program() -> Any:
        async with kit.consumer(topic) as consumer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.getone(), 0.3)
            await kit.fill(topic, 1)
            assert await read(consumer, 1) == [b"v0"]

    run(program())
