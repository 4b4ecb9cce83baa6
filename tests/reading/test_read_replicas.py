# SPDX-License-Identifier: Apache-2.0
"""Bounded reads from the replica that a leader prefers for `client_rack` (KIP-392)."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_topic import ServedLog, TopicWorld
from topic_reader import Reader, fill, world_of

import kcodec
from kcodec.client import Producer
from kcodec.errors import DeliveryTimeoutError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.pytest_plugin import KafkaFactory


def racked(records: int = 30) -> tuple[TopicWorld, ServedLog]:
    """Return a world whose leader, broker 1, prefers broker 2 for the rack "b"."""
    world, (log,) = world_of(nodes=2)
    world.racks = {"b": 2}
    fill(log, records // 3)
    return world, log


def reader_of(world: TopicWorld, **settings: Any) -> Reader:
    given: dict[str, Any] = {"client_rack": "b", "max_partition_fetch_bytes": 100, "fetch_ahead_max_bytes": 100}
    return Reader(world, **given | settings)


def nodes_of(world: TopicWorld) -> list[int]:
    return [node for node, *_ in world.asked]


def test_a_preferred_replica_is_read_to_the_end() -> None:
    world, log = racked()
    assert reader_of(world).open().all().rows[0] == log.committed
    assert nodes_of(world) == [1] + [2] * 10
    assert world.asked[0][2].rack_id == "b"
    assert len(world.listed) == 2  # of the bounds, before the read


def test_a_leader_in_the_rack_is_read_without_other_requests() -> None:
    world, log = racked()
    assert reader_of(world, client_rack="a").open().all().rows[0] == log.committed
    assert nodes_of(world) == [1] * 10


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
)
def test_the_leader_is_read_after_an_error_of_a_replica(code: int) -> None:
    world, log = racked()
    world.on_fetch = lambda node, *given: code if node == 2 and given[-1] >= 12 else None
    assert reader_of(world).open().all().rows[0] == log.committed
    assert nodes_of(world) == [1] + [2] * 5 + [1] * 6
    assert world.asked[-1][2].rack_id == ""


def test_the_leader_is_read_if_a_replica_cannot_be_reached() -> None:
    world, log = racked()
    world.unreachable.add(2)
    assert reader_of(world).open().all().rows[0] == log.committed
    assert set(nodes_of(world)) == {1}


def test_a_replica_that_is_not_in_the_metadata_is_not_read() -> None:
    world, log = racked()
    world.racks = {"b": 7}
    assert reader_of(world).open().all().rows[0] == log.committed
    assert set(nodes_of(world)) == {1}


def test_a_replica_that_goes_offline_is_not_read_any_more() -> None:
    world, log = racked()
    reader = reader_of(world).open()
    while len(reader.rows.get(0, [])) < 15:
        assert reader.take()
    world.cluster.topics["t"].partitions[0].offline_replicas = (2,)
    requested = len(world.asked)
    assert reader.all().rows[0] == log.committed
    assert set(nodes_of(world)[requested:]) == {1}


def test_the_leader_is_read_where_a_replica_is_behind() -> None:
    world, log = racked()
    world.follower_end = 15
    assert reader_of(world).open().all().rows[0] == log.committed
    assert nodes_of(world) == [1] + [2] * 6 + [1] * 5


def test_an_empty_response_of_a_replica_does_not_end_a_read() -> None:
    """The replica's local log may begin elsewhere than that of the leader."""
    world, log = racked()
    log.local_start, log.slow_reads = 12, 1
    assert reader_of(world).open().all().rows[0] == log.committed
    assert nodes_of(world)[:3] == [1, 2, 1]


def test_a_gap_before_the_end_is_the_end_on_the_leader_only() -> None:
    world, log = racked()
    del log.batches[7:]
    begun = world.now
    assert reader_of(world).open().all().rows[0] == log.expected(0, 21)
    assert nodes_of(world) == [1] + [2] * 8 + [1] * 2
    assert world.now - begun < 0.5


def test_the_leader_chooses_the_replica_again_after_a_time() -> None:
    world, log = racked()
    reader = reader_of(world, metadata_max_age=1.0).open(end=36)
    while len(reader.rows.get(0, [])) < 30:
        assert reader.take()
    world.on_fetch = lambda node, *_: ErrorCode.KAFKA_STORAGE_ERROR if node == 2 else None
    world.run(1.5)
    world.on_fetch = lambda *_: None
    before = len(world.asked)
    world.run(1.5)
    assert set(nodes_of(world)[before:]) == {1, 2}
    fill(log, 2)
    assert reader.all().rows[0] == log.committed


def test_a_selector_that_ignores_racks_is_passed_by() -> None:
    """A custom replica selector names its replica without a rack, too; the leader reads for old versions of Fetch."""
    world, log = racked()
    world.racks, world.follower_end = {"*": 2}, 15
    assert reader_of(world, client_rack="").open().all().rows[0] == log.committed
    assert nodes_of(world) == [1] + [2] * 6 + [1] * 6
    assert {version for *_, version, _ in world.asked[-5:]} == {10}


def test_a_leader_that_only_redirects_is_an_error_by_the_deadline() -> None:
    world, _ = racked()
    world.on_fetch = lambda node, topic, number, offset: (
        None if node == 1 and len(world.asked) < 3 else ErrorCode.KAFKA_STORAGE_ERROR
    )
    with pytest.raises(DeliveryTimeoutError, match="KAFKA_STORAGE_ERROR"):
        reader_of(world).open().all()
    assert len(world.asked) < 150


def test_real_brokers_with_racks_lose_no_records(apache_kafka_factory: KafkaFactory) -> None:
    """With RackAwareReplicaSelector, the leader sends no records to a client in the rack of the follower."""
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    kafka = apache_kafka_factory(nodes=2, replica_selector_class=selector)
    kafka.kill()
    for node in kafka.nodes:
        node.properties["broker.rack"] = f"rack-{node.id}"
    kafka.start()
    topic = kafka.create_topic(partitions=1, replication_factor=2)
    connecting: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers}
    values = [b"%d" % number for number in range(1000)]
    with Producer(**connecting) as producer:
        for value in values:
            producer.send(topic, value)
    for node in kafka.nodes:
        reading: dict[str, Any] = {**connecting, "client_rack": f"rack-{node.id}", "max_partition_fetch_bytes": 4096}
        with kcodec.read_topic(topic, **reading) as records:
            assert [record.value for batch in records for record in batch.records()] == values
        with kcodec.read_ranges([kcodec.OffsetRange(topic, 0, 100, 1000)], **reading) as ranges:
            assert [record.value for batch in ranges for record in batch.records()] == values[100:]
