# SPDX-License-Identifier: Apache-2.0
"""A subscribed topic is deleted: the commits and rebalances of the other topics do not wait for it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Admin, Consumer
from kcodec.offsets import TopicPartition

KEPT, DELETED = TopicPartition("t0", 0), TopicPartition("t1", 0)


def consumer_of(broker: Broker, **options: Any) -> Consumer:
    made = Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g", auto_offset_reset="earliest", **options)
    made.subscribe(pattern="t[0-9]")
    return made


def poll_until_read(consumer: Consumer, wanted: set[tuple[str, bytes]]) -> None:
    until = time.monotonic() + 30
    while wanted and time.monotonic() < until:
        wanted -= {(record.topic, record.value) for record in consumer.poll(0.1)}
    assert not wanted


def test_offsets_of_a_deleted_topic_of_a_pattern_are_not_committed(caplog: pytest.LogCaptureFixture) -> None:
    """A list of all topics does not contain an error of the deleted topic. The commit before the revocation would be
    repeated for seconds, and fail."""
    with Broker(auto_create_topics=False) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        for partition in (KEPT, DELETED):
            broker.create_topic(partition.topic, 1)
            broker.seed(partition.topic, [b"1"])
        with consumer_of(broker, auto_commit_interval_ms=60_000) as consumer:
            poll_until_read(consumer, {("t0", b"1"), ("t1", b"1")})
            consumer.poll(0.1)  # the records are completed
            admin.delete_topics(["t1"])
            until = time.monotonic() + 30
            while DELETED in consumer.assignment() and time.monotonic() < until:
                consumer.poll(0.1)
            assert consumer.assignment() == {KEPT}
        committed = admin.list_group_offsets("g")
        assert {partition: found and found.offset for partition, found in committed.items()} == {KEPT: 1}
    assert "commit before a revocation failed" not in caplog.text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_commit_for_a_deleted_topic_ends_soon(protocol: str) -> None:
    """The coordinator does not know the id of the topic. The commits of all topics wait for the commit in flight."""
    with (
        Broker(group_consumer_heartbeat_interval_ms=300, auto_create_topics=False) as broker,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        for partition in (KEPT, DELETED):
            broker.create_topic(partition.topic, 1)
            broker.seed(partition.topic, [b"1"])
        broker.faults.add("OffsetCommit", delay_ms=1000, count=1)
        options = {"auto_commit_interval_ms": 100, "group_protocol": protocol}
        with consumer_of(broker, **options) as consumer:
            poll_until_read(consumer, {("t0", b"1"), ("t1", b"1")})
            until = time.monotonic() + 30
            while not broker.wire_log.requests("OffsetCommit") and time.monotonic() < until:
                consumer.poll(0.02)
            admin.delete_topics(["t1"])
            broker.seed("t0", [b"2"])
            started = time.monotonic()
            while time.monotonic() < started + 40:
                consumer.poll(0.1)
                found = admin.list_group_offsets("g").get(KEPT)
                if found is not None and found.offset == 2:
                    break
            assert time.monotonic() < started + 20
