# SPDX-License-Identifier: Apache-2.0
"""A full batch accepts more records until it is sent, and waits for a busy broker."""

from __future__ import annotations

import time
from typing import Any

import pytest
from scripted_broker import Fault, Rig, ScriptedCluster, faults_for, started, values

from kcodec import TopicPartition, batches
from kcodec.client import Consumer, Producer
from kcodec.producer.delivery import Delivery
from kcodec.testing.kafka import ApacheKafka


def sent_batches(world: ScriptedCluster) -> list[Any]:
    """The batches of all Produce requests."""
    found = []
    for _, _, request in world.requests:
        for topic in request.topic_data:
            for partition in topic.partition_data:
                assert partition.records is not None
                (batch,) = batches(partition.records)
                found.append(batch)
    return found


def loaded(**settings: Any) -> tuple[ScriptedCluster, Rig]:
    """A producer whose next batch is in flight for a second."""
    world = ScriptedCluster(latency=0.5)
    world.create_topic("orders")
    rig = started(world, linger=0.0, batch_size=1000, **settings)
    rig.send("orders", b"in flight")
    world.run(0.01)
    return world, rig


def test_a_batch_grows_behind_one_in_flight() -> None:
    world, rig = loaded()
    sent = [rig.send("orders", value) for value in values(500)]
    rig.flush()
    assert [delivery.offset for delivery in sent] == list(range(2, 502))
    assert [batch.records_count for batch in sent_batches(world)] == [1, 1, 500]
    assert rig.core.accumulator.memory.free == rig.settings.buffer_memory


def test_a_batch_grows_until_the_sender_takes_it() -> None:
    """Here the sender does not run between two records, as while a thread that sends keeps the interpreter."""
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=10.0, batch_size=1000)
    for value in values(500):
        rig.send("orders", value)
    began = world.now
    world.run(0.01)
    assert [batch.records_count for batch in sent_batches(world)] == [1, 500]
    assert world.requests[-1][0] == began, "a full batch lingered"


def test_a_batch_does_not_take_the_memory_of_other_partitions() -> None:
    """With nothing in flight it grows only while half of buffer_memory is free."""
    world = ScriptedCluster()
    world.create_topic("orders", 8)
    rig = started(world, linger=10.0, batch_size=1000, buffer_memory=8000)
    for number in range(7):
        rig.send("orders", b"x", partition=number)
    for _ in range(9):
        rig.send("orders", b"x" * 100, partition=0)
    assert rig.core.append("orders", None, b"x" * 800, (), 7, 0) is None
    rig.flush()
    assert max(batch.size_in_bytes for batch in sent_batches(world)) <= 1000


def busy(requests: int, latency: float = 0.5, **settings: Any) -> tuple[ScriptedCluster, Rig]:
    """A producer with requests in flight, each of one full batch."""
    world = ScriptedCluster(latency=latency)
    world.create_topic("orders")
    rig = started(world, batch_size=1000, **settings)
    for _ in range(requests):
        fill(rig)
        world.run(0.001)
    assert len(world.requests) == 1 + requests
    return world, rig


def fill(rig: Rig, partition: int | None = None) -> list[Delivery]:
    """Send as many records as make a batch full, and one more."""
    return [rig.send("orders", b"x" * 100, partition=partition) for _ in range(11)]


def test_a_full_batch_lingers_at_a_busy_broker() -> None:
    """It grows meanwhile, and goes when linger_ms has passed since its first record."""
    world, rig = busy(2, linger=0.2)
    fill(rig)
    began = world.now
    world.run(0.1)
    assert len(world.requests) == 3
    fill(rig)
    world.run(0.2)
    assert len(world.requests) == 4
    assert world.requests[-1][0] == pytest.approx(began + 0.2)
    assert sent_batches(world)[-1].records_count == 22


def test_a_full_batch_goes_with_the_next_response() -> None:
    world, rig = busy(2, linger=30.0)
    fill(rig)
    world.run(0.9)
    assert len(world.requests) == 3
    world.run(0.2)
    assert len(world.requests) == 4


def test_a_full_batch_does_not_wait_for_a_former_leader() -> None:
    """The broker that was busy does not respond any more, and the new leader has nothing to do."""
    world = ScriptedCluster(nodes=2)
    (moved, _, _) = world.create_topic("orders", 3)
    rig = started(world, batch_size=1000, linger=60.0)
    for partition in range(3):
        rig.send("orders", b"x", partition=partition)
    rig.flush()
    world.faults = lambda node, request: Fault(answer_delay=25.0) if node == 1 else Fault()
    for _ in range(2):
        fill(rig, 2)
        world.run(0.01)
    sent = fill(rig, 0)
    world.move_leader(moved, 2)
    world.cluster.request_update("the leader moved")
    world.run(1.0)
    assert sent[0].offset == 2


def test_a_full_batch_that_cannot_grow_goes_to_a_busy_broker() -> None:
    world, rig = busy(2, linger=30.0, max_request_size=2500)
    for _ in range(3):
        fill(rig)
    world.run(0.001)
    assert len(world.requests) == 4


@pytest.mark.parametrize("reason", ["linger_ms=0", "flush", "blocked caller"])
def test_a_full_batch_does_not_wait_at_a_busy_broker(reason: str) -> None:
    world, rig = busy(2, linger=0.0 if reason == "linger_ms=0" else 30.0)
    fill(rig)
    began = world.now
    if reason == "flush":
        rig.flush()
    else:
        rig.core.accumulator.memory.waiters += reason == "blocked caller"
        rig.core.accumulator.wake()
        world.run(0.001)
    assert [when for when, *_ in world.requests[3:]] == [began]


def test_a_growing_batch_is_sent_as_soon_as_it_can_be() -> None:
    """It lingers no more than a full one, though it is open."""
    world, rig = loaded()
    for value in values(500):
        rig.send("orders", value)
    world.run(0.01)
    assert [batch.records_count for batch in sent_batches(world)] == [1, 1, 500]


@pytest.mark.parametrize("settings", [{"max_request_size": 4000}, {"buffer_memory": 6000}], ids=str)
def test_growth_keeps_to_request_size_and_memory(settings: dict[str, int]) -> None:
    world, rig = loaded(**settings)
    delivered = 0
    for value in values(3000):
        if rig.core.append("orders", None, value, (), None, 0) is None:
            rig.flush()
            assert rig.core.append("orders", None, value, (), None, 0) is not None
        delivered += 1
        assert rig.core.accumulator.memory.free >= 0
    rig.flush()
    sizes = [batch.size_in_bytes for batch in sent_batches(world)]
    assert 1000 < max(sizes) <= min(settings.values())
    assert sum(batch.records_count for batch in sent_batches(world)) == 3002 == delivered + 2
    assert rig.core.accumulator.memory.free == rig.settings.buffer_memory


def test_batches_stay_below_half_of_what_a_topic_refused() -> None:
    world, rig = loaded()
    (log,) = world.topics["orders"][1]
    log.most_bytes = 5000
    largest = []
    sent: list[Any] = []
    for _ in range(8):
        before = len(sent_batches(world))
        for value in values(2000):
            sent.append(rig.send("orders", value))
        rig.flush()
        largest.append(max(batch.size_in_bytes for batch in sent_batches(world)[before:]))
        rig.send("orders", b"in flight")
        world.run(0.01)
    assert largest[0] > 5000 >= largest[-1], largest
    assert [delivery.error for delivery in sent] == [None] * 16_000
    offsets = [delivery.offset or 0 for delivery in sent]
    assert offsets == sorted(offsets)


def test_without_batching_nothing_grows() -> None:
    world = ScriptedCluster(latency=0.5)
    world.create_topic("orders")
    rig = started(world, linger=0.0, batch_size=0)
    for value in values(20):
        rig.send("orders", value)
    rig.flush()
    assert [batch.records_count for batch in sent_batches(world)] == [1] * 21


def test_a_lost_response_repeats_a_grown_batch_as_it_was() -> None:
    world, rig = loaded()
    world.faults = faults_for(Fault(is_answer_lost=True, cuts=True))
    sent = [rig.send("orders", value) for value in values(500)]
    rig.flush()
    (log,) = world.topics["orders"][1]
    assert log.values == [b"first", b"in flight", *values(500)]
    assert [delivery.offset for delivery in sent] == list(range(2, 502)) or sent[0].offset == -1


def test_a_topic_with_a_limit_of_200_kb_gets_every_record(apache_kafka: ApacheKafka) -> None:
    """Batches grow beyond the limit, are refused and split once or twice, and stay below it then."""
    topic = apache_kafka.create_topic(partitions=2, max_message_bytes=200_000)
    count, value = 6_000, b"v" * 1000
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        for partition in range(2):
            producer.send(topic, b"first", partition=partition).result()
        apache_kafka.pause()  # what is sent first stays in flight
        try:
            sent = [producer.send(topic, b"%08d" % number + value, partition=number % 2) for number in range(2)]
            queues = producer._core.accumulator.topics[topic].queues
            deadline = time.monotonic() + 30
            while not all(queue.in_flight for queue in queues):  # a batch grows behind one that is in flight
                assert time.monotonic() < deadline
                time.sleep(0.01)
            for number in range(2, count):
                sent.append(producer.send(topic, b"%08d" % number + value, partition=number % 2))
        finally:
            apache_kafka.resume()
        producer.flush()
        most_bytes = producer._core.accumulator.topics[topic].most_bytes
    assert most_bytes < 600_000, "no batch was too large"
    for partition in range(2):
        assert [delivery.offset for delivery in sent[partition::2]] == list(range(1, count // 2 + 1))
    with Consumer(bootstrap_servers=apache_kafka.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found: list[bytes | None] = []
        while len(found) <= count // 2:
            found += [record.value for record in consumer.poll(10.0)]
    assert found[1:] == [b"%08d" % number + value for number in range(0, count, 2)]
