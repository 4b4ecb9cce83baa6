# SPDX-License-Identifier: Apache-2.0
"""The ranges of a batch query over topics, as the driver plans them. No Spark session is needed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic, Producer
from kcodec.errors import KcodecError
from kcodec.spark import topic_source
from kcodec.spark.planner import DataLossError
from kcodec.spark.topic_source import TopicSource
from kcodec.spark.topic_stream import TopicStream


@pytest.mark.parametrize("end", [5, 9])
def test_an_end_beyond_the_last_stable_offset_is_not_a_truncated_log(kcodec_broker: Broker, end: int) -> None:
    broker = kcodec_broker
    broker.create_topic("orders", 1)
    broker.seed("orders", [b"0", b"1", b"2"])
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "endingOffsets": json.dumps({"orders": {"0": end}}),
        "kafka.isolation.level": "read_committed",
    }
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer,
        producer.transaction() as txn,
    ):
        txn.send("orders", b"3").result()
        txn.send("orders", b"4").result()
        with pytest.raises(DataLossError, match="3 to 4 cannot be read: they are beyond the last stable") as caught:
            TopicSource.of(given).plan()
        assert len(caught.value.losses) == (1 if end == 5 else 2)
        planned = TopicSource.of({**given, "failOnDataLoss": "false"}).plan()
        assert [(one.start, one.end) for one in planned] == [(0, 3)]
    if end == 5:
        assert [(one.start, one.end) for one in TopicSource.of(given).plan()] == [(0, 5)]


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (9, "start offset 9 is greater than the end offset 3 for orders-0; the log has offsets 0 to 3: the topic was"),
        (4, "the log has offsets 0 to 3, and its last stable offset is 3, because a transaction is open"),
    ],
)
def test_a_start_beyond_the_end_is_explained(kcodec_broker: Broker, start: int, text: str) -> None:
    broker = kcodec_broker
    broker.create_topic("orders", 1)
    broker.seed("orders", [b"0", b"1", b"2"])
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "orders",
        "startingOffsets": json.dumps({"orders": {"0": start}}),
        "kafka.isolation.level": "read_committed",
    }
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer,
        producer.transaction() as txn,
    ):
        txn.send("orders", b"3").result()
        with pytest.raises(ValueError, match=text):
            TopicSource.of(given).plan()
    ended = {**given, "endingOffsets": json.dumps({"orders": {"0": 1}}), "startingOffsets": '{"orders":{"0":2}}'}
    with pytest.raises(ValueError, match=r"end offset 1 for orders-0; the log has offsets 0 to \d$"):
        TopicSource.of(ended).plan()


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_record_that_arrives_while_a_query_is_planned_is_after_its_end(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """A timestamp may be that of a record which was written after the ends of the logs were looked up."""
    broker = kcodec_broker
    broker.create_topic("orders", 1)
    broker.seed("orders", [b"0", b"1"])
    soon = int(time.time() * 1000) + 60_000

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("orders", b"2", timestamp=soon)
            producer.send("orders", b"3", timestamp=soon + 1)
        return topic_source.offsets_at(*arguments)

    monkeypatch.setattr(topic_source, "offsets_at", late)
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "orders", f"{side}Timestamp": soon + 1}
    planned = TopicSource.of(given).plan()
    assert [(one.start, one.end) for one in planned] == ([] if side == "starting" else [(0, 2)])


def test_a_partition_without_a_leader_is_named_with_its_replicas(apache_kafka_factory: Any) -> None:
    """In the plan of a batch query, in a stream and in a task; within kafka.default.api.timeout.ms."""
    kafka = apache_kafka_factory(nodes=3)
    servers = kafka.bootstrap_servers
    given = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}
    limited = {**given, "subscribe": "orders", "kafka.default.api.timeout.ms": "2000"}
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic("orders", assignments={0: (1,), 1: (3,)})])
        with Producer(bootstrap_servers=servers) as producer:
            for partition in (0, 1):
                producer.send("orders", b"record", partition=partition).result()
        ranges = TopicSource.of(limited).plan()
        stream = TopicStream(TopicSource.of(limited, is_stream=True))
        start = stream.initial_offset()
        kafka.node(3).kill()
        deadline = time.monotonic() + 60
        while admin.describe_topics(["orders"])["orders"].partitions[1].leader is not None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    calls: dict[str, Callable[[], object]] = {
        "plan": lambda: TopicSource.of(limited).plan(),
        "stream": lambda: stream.latest_offset(start),
        "task": lambda: list(TopicSource.of(limited).read(ranges)),
    }
    try:
        for name, call in calls.items():
            begun = time.monotonic()
            with pytest.raises(KcodecError) as caught:
                call()
            assert time.monotonic() - begun < 20, name
            text = str(caught.value)
            assert "orders-1" in text and "within 2 s" in text, name
            assert "the partition has no known leader" in text, name
            assert "its replica is on broker 3 (offline); start an offline broker" in text, name
    finally:
        stream.close()
    others = {**given, "assign": '{"orders":[0]}'}
    assert [(each.partition, each.end) for each in TopicSource.of(others).plan()] == [(0, 1)]
