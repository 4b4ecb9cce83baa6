# SPDX-License-Identifier: Apache-2.0
"""The positions of `land` without Spark, over the embedded broker: what the next call reads."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Admin, Producer
from kcodec.offsets import OffsetRange
from kcodec.spark import landing, stream_state
from kcodec.spark.planner import DataLossError, StreamOffsets
from kcodec.spark.topic_source import TopicSource


def fill(broker: Broker, topic: str, partition: int, count: int) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for _ in range(count):
            producer.send(topic, b"x", partition=partition)


def source(broker: Broker, *, resume: bool, **options: Any) -> TopicSource:
    return TopicSource.of({"bootstrap_servers": broker.bootstrap_servers, **options}, is_stream=resume)


def spans(ranges: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in ranges]


def following(broker: Broker, position: StreamOffsets) -> list[tuple[int, int, int]]:
    """Return what a call with resume=True reads after a position."""
    again = source(broker, resume=True, subscribe="orders", startingOffsets="earliest")
    return spans(landing._next(again, position)[0])


@pytest.mark.parametrize("by_timestamp", [False, True])
def test_a_partition_without_records_to_land_has_a_position(kcodec_broker: Broker, by_timestamp: bool) -> None:
    """The first call leaves out earlier records. The next call must not read them."""
    kcodec_broker.create_topic("orders", 2)
    fill(kcodec_broker, "orders", 0, 5)
    fill(kcodec_broker, "orders", 1, 4)
    time.sleep(0.05)
    now = int(time.time() * 1000)
    time.sleep(0.05)
    fill(kcodec_broker, "orders", 0, 3)
    starting: dict[str, Any] = {"startingOffsets": {"orders": {"0": 5, "1": 4}}}
    if by_timestamp:
        starting = {"startingTimestamp": now, "startingOffsetsByTimestampStrategy": "latest"}
    batch = source(kcodec_broker, resume=False, subscribe="orders", **starting)
    ranges, position = landing._again(batch, None)
    assert spans(ranges) == [(0, 5, 8)]
    assert json.loads(json.dumps(position.to_dict()))["orders"].items() >= {"0": 8, "1": 4}.items()
    assert following(kcodec_broker, position) == []
    fill(kcodec_broker, "orders", 1, 1)
    assert following(kcodec_broker, position) == [(1, 4, 5)]


def test_an_empty_batch_keeps_the_position_of_earlier_landings(kcodec_broker: Broker) -> None:
    kcodec_broker.create_topic("orders", 1)
    fill(kcodec_broker, "orders", 0, 3)
    first = source(kcodec_broker, resume=True, subscribe="orders", startingOffsets="earliest")
    _, position = landing._next(first, None)
    fill(kcodec_broker, "orders", 0, 3)
    batch = source(kcodec_broker, resume=False, subscribe="orders", startingOffsets={"orders": {"0": 6}})
    ranges, same = landing._again(batch, position)
    assert (ranges, same) == ([], position)
    assert following(kcodec_broker, same) == [(0, 3, 6)]


def test_a_deleted_topic_of_a_pattern_is_dropped(kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in the position decides, because each call of `land` begins with the contents of the folder."""

    def land(fails: bool, before: StreamOffsets | None) -> StreamOffsets:
        options = {"subscribePattern": "day-.*", "startingOffsets": "earliest", "failOnDataLoss": fails}
        position = landing._next(source(kcodec_broker, resume=True, **options), before)[1]
        return StreamOffsets.from_dict(json.loads(json.dumps(position.to_dict())))

    for topic in ("day-1", "day-2"):
        kcodec_broker.create_topic(topic, 1)
        fill(kcodec_broker, topic, 0, 2)
    position = land(True, None)
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        admin.delete_topics(["day-1"])
    with pytest.raises(DataLossError, match=r"day-1-0: .*does not exist any more"):
        land(True, position)
    noted = land(False, position)
    assert noted.offsets == position.offsets
    monkeypatch.setattr(stream_state, "MISSING_GRACE_SECONDS", 0)
    dropped = land(False, noted)
    assert {each.topic for each in dropped.offsets} == {"day-2"}
    assert land(True, dropped) == dropped
