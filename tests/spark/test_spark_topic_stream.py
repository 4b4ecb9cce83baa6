# SPDX-License-Identifier: Apache-2.0
"""TopicStream: positions and ranges of a streaming query, over a real Apache Kafka and without Spark."""

from __future__ import annotations

import json
import logging
import pickle
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from log_messages import messages

import kcodec
from kcodec import OffsetRange, TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, Producer
from kcodec.client.range_sample import PARALLEL_FETCHES
from kcodec.errors import AdminError, OffsetOutOfRangeError
from kcodec.reading import bounded_read
from kcodec.reading.bounded_read import BoundedRead
from kcodec.reading.partition_read import FetchedResponse, PartitionRead
from kcodec.spark import offset_options, topic_stream
from kcodec.spark.planner import DataLossError, StreamOffsets
from kcodec.spark.stream_readers import TopicQuery, stream_reader
from kcodec.spark.stream_state import MISSING_GRACE_SECONDS
from kcodec.spark.topic_source import TopicSource
from kcodec.spark.topic_stream import METADATA_SECONDS, SAMPLE_BYTES, SAMPLE_SECONDS, TopicStream
from kcodec.spark.trigger_limits import TriggerLimits
from kcodec.testing.kafka import ApacheKafka


class Clock:
    """Time that tests move."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Streams:
    """Makes streams over the topics of one broker, and closes them."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.kafka = kafka
        self.servers = kafka.bootstrap_servers
        self.admin = Admin(bootstrap_servers=self.servers)
        self.producer = Producer(bootstrap_servers=self.servers)
        self.clock, self.wall_clock = Clock(), Clock()
        self._open: list[TopicStream] = []

    def source(self, topics: str, **options: Any) -> TopicSource:
        given = {"kafka.bootstrap.servers": self.servers, "startingOffsets": "earliest", **options}
        return TopicSource.of({"subscribe": topics, **given} if topics else given, is_stream=True)

    def stream(self, topics: str, **options: Any) -> TopicStream:
        self._open.append(TopicStream(self.source(topics, **options), self.clock, self.wall_clock))
        return self._open[-1]

    def topic(self, partitions: int = 1, records: int = 0) -> str:
        name = self.kafka.create_topic(partitions=partitions)
        self.send(name, partitions, records)
        return name

    def send(self, topic: str, partitions: int, records: int) -> None:
        for partition in range(partitions):
            for number in range(records):
                self.producer.send(topic, b"%03d" % number * 33, partition=partition)
        self.producer.flush()

    def delete(self, topic: str, patch: pytest.MonkeyPatch) -> None:
        """Delete a topic. From then on, calls retry for a tenth of the usual two seconds if a topic does not exist."""
        self.admin.delete_topics([topic])
        for module in ("admin.topics", "cluster.retry_driver"):
            patch.setattr(f"kcodec.{module}.UNKNOWN_TOPIC_PATIENCE_SECONDS", 0.2)

    def later(self) -> None:
        """Let what is known of topics expire."""
        self.clock.now += 60

    def end_grace(self) -> None:
        """Let topics that are missing be missing for too long."""
        self.wall_clock.now += MISSING_GRACE_SECONDS + 1

    def close(self) -> None:
        for stream in self._open:
            stream.close()
        self.producer.close()
        self.admin.close()


@pytest.fixture(scope="module")
def streams(apache_kafka: ApacheKafka) -> Iterator[Streams]:
    made = Streams(apache_kafka)
    yield made
    made.close()


def offsets(position: Any) -> dict[str, int]:
    return {str(partition): offset for partition, offset in StreamOffsets.from_dict(position).offsets.items()}


def spans(ranges: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in ranges]


def test_positions_and_ranges_of_one_query(streams: Streams) -> None:
    topic = streams.topic(partitions=2, records=10)
    stream = streams.stream(topic)
    start = stream.initial_offset()
    end = stream.latest_offset(start)
    topic_id = streams.admin.describe_topics([topic])[topic].topic_id
    assert start.pop("v") == 1
    assert list(start) == [topic]
    assert kcodec.log.PartitionMetadata(0, start[topic].pop("id")).uuid == topic_id
    assert start == {topic: {"0": 0, "1": 0}}
    start = stream.initial_offset()
    assert offsets(end) == {f"{topic}-0": 10, f"{topic}-1": 10}
    ranges = stream.ranges(start, end)
    assert spans(ranges) == [(0, 0, 10), (1, 0, 10)]
    assert {each.topic_id for each in ranges} == {topic_id}
    assert stream.latest_offset(end) == end
    assert stream.ranges(end, end) == []
    streams.send(topic, 1, 5)
    assert spans(stream.ranges(end, stream.latest_offset(json.loads(json.dumps(end))))) == [(0, 10, 15)]


def test_a_replayed_batch_has_the_same_ranges(streams: Streams) -> None:
    topic = streams.topic(partitions=2, records=30)
    first = streams.stream(topic, minPartitions="5", maxOffsetsPerTrigger="40")
    start = first.initial_offset()
    end = first.latest_offset(start)
    ranges = first.ranges(start, end)
    assert sum(each.size for each in ranges) == 40
    streams.send(topic, 2, 30)
    assert streams.stream(topic, minPartitions="5").ranges(start, end) == ranges
    assert len(ranges) >= 5


def test_limits_of_a_batch(streams: Streams) -> None:
    topic = streams.topic(partitions=2, records=50)
    stream = streams.stream(topic, maxOffsetsPerTrigger="30")
    start = stream.initial_offset()
    assert sum(offsets(stream.latest_offset(start)).values()) == 30
    assert sum(offsets(stream.latest_offset(start, is_limited=False)).values()) == 100
    assert sum(offsets(stream.report()).values()) == 100
    by_bytes = streams.stream(topic, maxBytesPerTrigger="2000")
    assert 14 <= sum(offsets(by_bytes.latest_offset(start)).values()) <= 22


@pytest.mark.parametrize("ending", ["marker", "aborted", "compacted"])
def test_sizes_are_estimated_from_one_response_for_each_partition(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A partition whose unread offsets have no record does not make the driver read the others to their ends."""
    servers = kcodec_broker.bootstrap_servers
    fetched: list[int] = []
    received = BoundedRead._received

    def spy(read: BoundedRead, partition: PartitionRead, found: Any) -> FetchedResponse | None:
        fetched.append(len(found.records or b""))
        return received(read, partition, found)

    def compacted(message: Any, number: int) -> Any:
        found = of_partition(message, number)
        if ending == "compacted" and number != 0 and found is not None:
            found.records = b""  # compaction has removed the last offsets of the log
        return found

    of_partition = bounded_read._of_partition
    monkeypatch.setattr(bounded_read, "_of_partition", compacted)
    monkeypatch.setattr(BoundedRead, "_received", spy)
    kcodec_broker.create_topic("orders", 3)
    with Producer(
        bootstrap_servers=servers, transactional_id="writer", batch_size=16384, max_request_size=50_000
    ) as producer:
        producer.begin_transaction()
        for _ in range(2000):
            producer.send("orders", bytes(1000), partition=1)
        producer.send("orders", bytes(1000), partition=2)
        producer.abort_transaction() if ending == "aborted" else producer.commit_transaction()
    with Producer(bootstrap_servers=servers, batch_size=16384, max_request_size=50_000) as producer:
        for _ in range(4000):
            producer.send("orders", bytes(1000), partition=0)
    given = {"subscribe": "orders", "kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}
    options = {**given, "maxBytesPerTrigger": "1000000", "kafka.isolation.level": "read_committed"}
    stream = TopicStream(TopicSource.of(options, is_stream=True))
    try:
        start = stream.initial_offset()
        if ending != "aborted":
            start["orders"] |= {"1": 2000, "2": 1}
        end = stream.latest_offset(start)
    finally:
        stream.close()
    assert len(fetched) <= 3
    assert sum(fetched) <= 3 * SAMPLE_BYTES
    assert 200 < offsets(end)["orders-0"] < 1000


def test_sizes_are_estimated_again_after_some_time(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = streams.topic(partitions=3, records=20)
    stream = streams.stream(
        topic, maxBytesPerTrigger="100", startingOffsets=json.dumps({topic: dict.fromkeys("012", 0)})
    )
    sampled: list[list[int]] = []
    sample = stream._sample

    def spy(backlog: Sequence[OffsetRange]) -> None:
        sampled.append([each.partition for each in backlog])
        sample(backlog)

    monkeypatch.setattr(stream, "_sample", spy)
    start = stream.initial_offset()
    end = stream.latest_offset(stream.latest_offset(start))
    assert sampled == [[0, 1, 2]]
    streams.clock.now += SAMPLE_SECONDS
    stream.latest_offset(end)
    assert sampled == [[0, 1, 2]] * 2


def test_several_partitions_are_sampled_at_the_same_time(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flight: list[int] = []
    fetch = BoundedRead._fetch
    now = [0, 0]

    def spy(read: BoundedRead, partition: PartitionRead, size: int) -> Any:
        now[0] += 1
        in_flight.append(now[0])
        try:
            return (yield from fetch(read, partition, size))
        finally:
            now[0] -= 1

    monkeypatch.setattr(BoundedRead, "_fetch", spy)
    kcodec_broker.create_topic("orders", 40)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for partition in range(40):
            producer.send("orders", b"x", partition=partition)
    given = {"subscribe": "orders", "kafka.bootstrap.servers": kcodec_broker.bootstrap_servers}
    source = TopicSource.of({**given, "startingOffsets": "earliest", "maxBytesPerTrigger": "10"}, is_stream=True)
    stream = TopicStream(source)
    stream.latest_offset(stream.initial_offset())
    stream.close()
    assert (len(in_flight), max(in_flight)) == (40, PARALLEL_FETCHES)


def test_a_leader_that_does_not_respond_delays_a_batch_only_shortly(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The estimate of sizes uses the partitions whose leaders respond, and does not end the query."""
    fetch = BoundedRead._fetch

    def hanging(read: BoundedRead, partition: PartitionRead, size: int) -> Any:
        return None if partition.range.partition == 1 else (yield from fetch(read, partition, size))

    monkeypatch.setattr(BoundedRead, "_fetch", hanging)
    monkeypatch.setattr(topic_stream, "SAMPLE_TIMEOUT_MS", 300)
    kcodec_broker.create_topic("orders", 3)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for number in range(300):
            producer.send("orders", bytes(100), partition=number % 3)
    given = {"subscribe": "orders", "kafka.bootstrap.servers": kcodec_broker.bootstrap_servers}
    source = TopicSource.of({**given, "startingOffsets": "earliest", "maxBytesPerTrigger": "6600"}, is_stream=True)
    stream = TopicStream(source)
    start, began = stream.initial_offset(), time.monotonic()
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        end = stream.latest_offset(start)
        assert stream.latest_offset(start) == end  # without a second sample
    stream.close()
    assert time.monotonic() - began < 10
    assert 45 <= sum(offsets(end).values()) <= 75
    assert messages(caplog).count("option maxBytesPerTrigger") == 1
    assert "orders-1: offset 0 (reading up to 100) could not be read within 0.3 s" in messages(caplog)


def test_a_batch_waits_for_enough_offsets(streams: Streams) -> None:
    topic = streams.topic(records=10)
    stream = streams.stream(topic, minOffsetsPerTrigger="20", maxTriggerDelay="30s")
    start = stream.initial_offset()
    end = stream.latest_offset(start)
    assert offsets(end) == {f"{topic}-0": 10}
    streams.send(topic, 1, 10)
    streams.clock.now += 29
    assert stream.latest_offset(end) == end
    streams.clock.now += 2
    assert offsets(stream.latest_offset(end)) == {f"{topic}-0": 20}
    streams.send(topic, 1, 20)
    assert offsets(stream.latest_offset(end)) == {f"{topic}-0": 40}


def test_available_now_reads_up_to_the_ends_of_its_start(streams: Streams) -> None:
    topic = streams.topic(records=10)
    stream = streams.stream(topic, maxOffsetsPerTrigger="6", minOffsetsPerTrigger="6")
    stream.prepare_for_available_now()
    streams.send(topic, 1, 10)
    position, seen = stream.initial_offset(), []
    while (following := stream.latest_offset(position)) != position:
        position = following
        seen.append(offsets(position)[f"{topic}-0"])
    assert seen == [6, 10]
    latest = streams.stream(topic, startingOffsets="latest")
    latest.prepare_for_available_now()
    streams.send(topic, 1, 10)
    position = latest.initial_offset()
    assert latest.latest_offset(position) == position


def test_new_partitions_begin_at_the_earliest_offset(streams: Streams) -> None:
    topic = streams.topic(records=3)
    stream = streams.stream(topic, startingOffsets="latest")
    start = stream.initial_offset()
    streams.admin.create_partitions({topic: 3})
    with Producer(bootstrap_servers=streams.servers) as producer:
        for number in range(12):
            producer.send(topic, b"x", partition=number % 3)
    streams.later()
    end = stream.latest_offset(start)
    assert spans(stream.ranges(start, end)) == [(0, 3, 7), (1, 0, 4), (2, 0, 4)]
    streams.admin.delete_records({TopicPartition(topic, 1): 2})
    with pytest.raises(DataLossError, match=rf"{topic}-1: offsets 0 to 1 cannot be read: the partition is new"):
        stream.ranges(start, end)
    assert (1, 2, 4) in spans(streams.stream(topic, failOnDataLoss="false").ranges(start, end))


def test_options_are_parsed_once_for_a_query(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With `assign`, the JSON can name thousands of partitions. A warning about an option is logged once."""
    parsed: list[Any] = []
    parse = offset_options.parse_source_topics

    def counted(options: Any) -> Any:
        parsed.append(options)
        return parse(options)

    monkeypatch.setattr(offset_options, "parse_source_topics", counted)
    topic = streams.topic(partitions=3, records=2)
    assigned = {"assign": json.dumps({topic: [0, 2]}), "startingTimestamp": "1700000000"}
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        stream = streams.stream("", **assigned)
        end = stream.latest_offset(stream.initial_offset())
    assert offsets(stream.latest_offset(end)) == {f"{topic}-0": 2, f"{topic}-2": 2}
    assert len(parsed) == 1
    assert messages(caplog).count("is used unchanged") == 1


def test_topics_that_a_pattern_matches_later(streams: Streams) -> None:
    first, second = streams.topic(records=2), streams.topic(records=3)
    stream = streams.stream("", subscribePattern=f"{first}|{second}-not-yet")
    start = stream.initial_offset()
    assert offsets(start) == {f"{first}-0": 0}
    streams.admin.create_topics([f"{second}-not-yet"])
    streams.send(f"{second}-not-yet", 1, 1)
    streams.later()
    found = offsets(stream.latest_offset(start))
    assert {name: offset for name, offset in found.items() if offset} == {f"{first}-0": 2, f"{second}-not-yet-0": 1}


def test_a_topic_that_was_created_again(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    topic = streams.topic(partitions=2, records=5)
    start = streams.stream(topic, startingOffsets="latest").initial_offset()
    streams.admin.delete_topics([topic])
    streams.kafka.create_topic(topic, partitions=1)
    streams.send(topic, 1, 3)
    with pytest.raises(DataLossError, match=rf"{topic}-0: .*was deleted and created again"):
        streams.stream(topic).latest_offset(start)
    lenient = streams.stream(topic, failOnDataLoss="false")
    end = lenient.latest_offset(start)
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        assert spans(lenient.ranges(start, end)) == [(0, 0, 3)]
    assert f"{topic}-0: offsets from 5 on cannot be read: the topic was deleted and created again" in messages(caplog)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        streams.stream(topic).ranges(start, end)


@pytest.mark.parametrize("is_created", [True, False])
def test_a_topic_with_several_partitions_that_is_deleted_in_a_stream(
    streams: Streams, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_created: bool
) -> None:
    """The stream has looked up the partitions shortly before, so that the requests for their ends fail."""
    topic = streams.topic(partitions=3, records=5)
    strict, lenient = streams.stream(topic), streams.stream(topic, failOnDataLoss="false")
    start = lenient.latest_offset(lenient.initial_offset())
    assert strict.latest_offset(strict.initial_offset())[topic] == start[topic]
    if is_created:
        streams.admin.delete_topics([topic])
        streams.kafka.create_topic(topic, partitions=2)
        streams.send(topic, 2, 3)
    else:  # the controller has responded, and the broker removes the partitions a moment later
        streams.delete(topic, monkeypatch)
        while topic in streams.admin.list_topics():
            time.sleep(0.05)
        time.sleep(0.5)
    with pytest.raises(DataLossError, match="created again" if is_created else "does not exist any more"):
        strict.latest_offset(start)
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        end = lenient.latest_offset(start)
        assert spans(lenient.ranges(start, end)) == ([(0, 0, 3), (1, 0, 3)] if is_created else [])
    assert f"{topic}-2: offsets from 5 on cannot be read" in messages(caplog) or not is_created
    assert (StreamOffsets.MISSING in end) is not is_created


def test_new_partitions_that_are_deleted_while_a_batch_is_planned(
    streams: Streams, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = streams.topic(partitions=2, records=3), streams.topic(partitions=2, records=3)
    start = streams.stream(kept).initial_offset()
    both = streams.stream(f"{kept},{gone}")
    end = both.latest_offset(both.initial_offset())
    del end[StreamOffsets.FIRST]
    streams.delete(gone, monkeypatch)
    lenient = streams.stream(f"{kept},{gone}", failOnDataLoss="false")
    found = {(each.topic, each.partition, each.start, each.end) for each in lenient.ranges(start, end)}
    assert found == {(topic, partition, 0, 3) for topic in (kept, gone) for partition in (0, 1)}
    with pytest.raises(DataLossError, match=rf"{gone}-0: .* was deleted before the query began to read it") as caught:
        both.ranges(start, end)
    assert [loss.partition for loss in caught.value.losses] == [TopicPartition(gone, 0), TopicPartition(gone, 1)]


def test_a_deleted_topic(streams: Streams, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = streams.topic(records=2), streams.topic(records=2)
    start = streams.stream(f"{kept},{gone}").initial_offset()
    streams.delete(gone, monkeypatch)
    with pytest.raises(DataLossError, match=rf"{gone}-0: .*does not exist any more"):
        streams.stream(f"{kept},{gone}").latest_offset(start)
    lenient = streams.stream(f"{kept},{gone}", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        end = lenient.latest_offset(start)
    assert offsets(end) == {f"{kept}-0": 2, f"{gone}-0": 0}
    assert f"{gone}-0: offset" in messages(caplog)
    assert spans(lenient.ranges(start, end)) == [(0, 0, 2)]
    with pytest.raises(AdminError) as caught:
        streams.stream(f"{kept},{gone}").initial_offset()
    assert list(caught.value.errors) == [gone]


def test_available_now_keeps_the_position_of_a_missing_topic(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a topic that is missing for a moment is read again from its start."""
    kept, gone = streams.topic(records=2), streams.topic(records=2)
    start = streams.stream(f"{kept},{gone}", startingOffsets="latest").initial_offset()
    streams.delete(gone, monkeypatch)
    streams.send(kept, 1, 1)
    stream = streams.stream(f"{kept},{gone}", failOnDataLoss="false")
    stream.prepare_for_available_now()
    assert offsets(stream.latest_offset(start)) == {f"{kept}-0": 3, f"{gone}-0": 2}


@pytest.mark.parametrize("is_pattern", [True, False])
def test_a_topic_that_stays_missing_is_dropped(
    streams: Streams, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_pattern: bool
) -> None:
    """After a short time with failOnDataLoss=false, also over restarts. The loss is then accepted: true works again."""
    kept, gone = streams.topic(records=2), streams.topic(records=2)
    topics = {"subscribePattern": f"{kept}|{gone}"} if is_pattern else {"subscribe": f"{kept},{gone}"}
    first = streams.stream("", **topics)
    start = json.loads(json.dumps(first.latest_offset(first.initial_offset())))
    streams.delete(gone, monkeypatch)
    with pytest.raises(DataLossError, match=rf"{gone}-0: .*does not exist any more"):
        streams.stream("", **topics).latest_offset(start)
    noted = json.loads(json.dumps(streams.stream("", failOnDataLoss="false", **topics).latest_offset(start)))
    assert offsets(noted) == {f"{kept}-0": 2, f"{gone}-0": 2}
    again = streams.stream("", failOnDataLoss="false", **topics)
    assert again.latest_offset(noted) == noted
    assert lag_of_docs(noted, again.report()) == {f"{kept}-0": 0, f"{gone}-0": 0}
    streams.end_grace()
    restarted = streams.stream("", failOnDataLoss="false", **topics)
    restarted.prepare_for_available_now()
    dropped = json.loads(json.dumps(restarted.latest_offset(noted)))
    assert offsets(dropped) == {f"{kept}-0": 2}
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        assert restarted.ranges(noted, dropped) == []
    assert f"{gone}-0: offsets from 2 on cannot be read: the topic does not exist any more" in messages(caplog)
    assert restarted.latest_offset(dropped) == dropped
    streams.send(kept, 1, 1)
    left = {"subscribePattern": f"{kept}|{gone}"} if is_pattern else {"subscribe": kept}
    strict = streams.stream("", **left)
    assert strict.ranges(noted, dropped) == []  # Spark 4.0 and 4.1 plan the last batch of the checkpoint again
    assert offsets(strict.latest_offset(dropped)) == {f"{kept}-0": 3}


def lag_of_docs(position: Any, ends: Any) -> dict[str, int]:
    """The result of the function `lag` of the documentation."""
    page = (Path(__file__).parents[2] / "docs" / "spark-operations.md").read_text(encoding="utf-8")
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def lag(" in text)
    names: dict[str, Any] = {}
    exec(block, names)
    source = {"endOffset": json.dumps(position), "latestOffset": json.dumps(ends)}
    found: dict[str, int] = names["lag"]({"sources": [source]})
    return found


def test_a_topic_that_is_missing_for_a_moment_continues(streams: Streams) -> None:
    topic = streams.topic(records=2)
    stream = streams.stream(topic, failOnDataLoss="false")
    start = stream.latest_offset(stream.initial_offset())
    noted = {**start, StreamOffsets.MISSING: {topic: 1}}
    streams.send(topic, 1, 1)
    end = stream.latest_offset(noted)
    assert (offsets(end), StreamOffsets.MISSING in end) == ({f"{topic}-0": 3}, False)
    assert spans(stream.ranges(noted, end)) == [(0, 2, 3)]


def test_a_pattern_finds_new_topics_while_one_is_missing(streams: Streams) -> None:
    gone, new = streams.topic(records=1), streams.topic(records=1)
    stream = streams.stream("", subscribePattern=f"{gone}|{new}-later", failOnDataLoss="false")
    start = stream.initial_offset()
    streams.admin.delete_topics([gone])
    streams.later()
    stream.latest_offset(start)
    streams.kafka.create_topic(f"{new}-later", partitions=1)
    streams.clock.now += 2 * METADATA_SECONDS
    assert f"{new}-later-0" in offsets(stream.latest_offset(start))


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "10"}, {"maxBytesPerTrigger": "1200"}])
def test_limits_do_not_count_lost_offsets(streams: Streams, limit: dict[str, str]) -> None:
    """A gap would otherwise take most of each micro-batch, or become many micro-batches without records."""
    topic = streams.topic(partitions=2, records=100)
    starting = json.dumps({topic: {"0": 0, "1": 90}})
    stream = streams.stream(topic, startingOffsets=starting, failOnDataLoss="false", **limit)
    start = stream.initial_offset()
    streams.admin.delete_records({TopicPartition(topic, 0): 90})
    streams.later()
    end = stream.latest_offset(start)
    assert offsets(end) == {f"{topic}-0": 95, f"{topic}-1": 95}
    assert spans(stream.ranges(start, end)) == [(0, 0, 95), (1, 90, 95)]
    streams.admin.delete_records({TopicPartition(topic, 0): 100})
    streams.later()
    assert offsets(stream.latest_offset(end))[f"{topic}-0"] == 100


@pytest.mark.parametrize("records", [0, 2])
def test_a_first_batch_that_is_replayed_starts_where_it_did(streams: Streams, records: int) -> None:
    """Spark stores the end of the first batch only: it fails, and "latest" is another offset at the next start."""
    topic = streams.topic(records=5)
    stream = streams.stream(topic, startingOffsets="latest")
    start = stream.initial_offset()
    streams.send(topic, 1, records)
    end = json.loads(json.dumps(stream.latest_offset(start)))
    streams.send(topic, 1, 3)
    again = streams.stream(topic, startingOffsets="latest")
    assert spans(again.ranges(again.initial_offset(), end)) == ([(0, 5, 7)] if records else [])
    following = again.latest_offset(end)
    assert spans(again.ranges(end, following)) == [(0, 5 + records, 8 + records)]
    assert again.latest_offset(following) == following


def test_a_first_batch_is_replayed_after_a_partition_was_added(streams: Streams) -> None:
    """The options do not name the new partition. They are for a query without a checkpoint, and this one has one."""
    topic = streams.topic(records=5)
    options = {"startingOffsets": json.dumps({topic: {"0": 2}})}
    first = streams.stream(topic, **options)
    end = json.loads(json.dumps(first.latest_offset(first.initial_offset())))
    streams.admin.create_partitions({topic: 2})
    again = streams.stream(topic, **options)
    start = json.loads(json.dumps(again.initial_offset()))
    assert spans(again.ranges(start, end)) == [(0, 2, 5)]
    assert again.latest_offset(end) == end
    new = streams.stream(topic, **options)
    for given in (new.initial_offset(), None):
        with pytest.raises(ValueError, match=rf"option 'startingOffsets' does not name {topic}-1"):
            new.latest_offset(given)


def test_a_log_that_ends_below_the_checkpoint(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    topic = streams.topic(records=5)
    start = streams.stream(topic, startingOffsets="latest").initial_offset()
    start[topic]["0"] = 9
    with pytest.raises(DataLossError, match=rf"{topic}-0: .*the log was truncated"):
        streams.stream(topic).latest_offset(start)
    lenient = streams.stream(topic, failOnDataLoss="false")
    end = lenient.latest_offset(start)
    assert offsets(end) == {f"{topic}-0": 5}
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        assert lenient.ranges(start, end) == []
    assert f"{topic}-0: offsets 5 to 8 cannot be read" in messages(caplog)


def test_deleted_records_fail_on_the_driver(streams: Streams) -> None:
    topic = streams.topic(records=10)
    stream = streams.stream(topic)
    start = stream.initial_offset()
    streams.admin.delete_records({TopicPartition(topic, 0): 4})
    streams.later()
    with pytest.raises(DataLossError, match=rf"{topic}-0: offsets 0 to 3 cannot be read"):
        stream.latest_offset(start)
    lenient = streams.stream(topic, failOnDataLoss="false")
    assert spans(lenient.ranges(start, lenient.latest_offset(start))) == [(0, 0, 10)]


def test_an_open_transaction_is_no_loss(streams: Streams) -> None:
    """A query of read_uncommitted is carried on with read_committed while a transaction is open."""
    topic = streams.topic(records=2)
    with Producer(bootstrap_servers=streams.servers, transactional_id=f"open-{topic}") as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, b"x", partition=0).result()
            start = streams.stream(topic, startingOffsets="latest").initial_offset()
            committed = streams.stream(topic, **{"kafka.isolation.level": "read_committed"})
            assert offsets(start) == {f"{topic}-0": 3}
            assert committed.latest_offset(start) == start
        deadline = time.monotonic() + 30  # EndTxn responds before the marker is written
        while committed.latest_offset(start) == start and time.monotonic() < deadline:
            time.sleep(0.05)
        assert offsets(committed.latest_offset(start)) == {f"{topic}-0": 4}


def test_offsets_are_committed_for_lag_tools_only(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    topic = streams.topic(records=7)
    stream = streams.stream(topic, **{"kafka.group.id": f"lag-{topic}"})
    start = stream.initial_offset()
    end = stream.latest_offset(start)
    stream.commit(end)
    committed = streams.admin.list_group_offsets(f"lag-{topic}")
    assert {partition: found.offset for partition, found in committed.items() if found} == {TopicPartition(topic, 0): 7}
    assert streams.stream(topic, **{"kafka.group.id": f"lag-{topic}"}).initial_offset() == start
    with kcodec.client.Consumer(bootstrap_servers=streams.servers, group_id=f"lag-{topic}") as consumer:
        consumer.subscribe([topic])
        consumer.poll(timeout=5)
        with caplog.at_level(logging.WARNING, "kcodec.spark"):
            stream.commit(end)
    assert f"offsets were not committed for the group lag-{topic}" in messages(caplog)


def test_spark_before_4_2_passes_no_position(streams: Streams) -> None:
    topic = streams.topic(records=10)
    stream = streams.stream(topic, maxOffsetsPerTrigger="4")
    ends = [stream.latest_offset(None) for _ in range(4)]
    start = stream.initial_offset()
    assert offsets(start) == {f"{topic}-0": 0}
    assert [offsets(end)[f"{topic}-0"] for end in ends] == [4, 8, 10, 10]
    restarted = streams.stream(topic, maxOffsetsPerTrigger="4")
    restarted.ranges(start, ends[0])
    assert restarted.latest_offset(None) == ends[1]


def test_partitions_that_are_assigned(streams: Streams) -> None:
    topic = streams.topic(partitions=3, records=2)
    stream = streams.stream("", assign=json.dumps({topic: [0, 2]}))
    start = stream.initial_offset()
    assert offsets(start) == {f"{topic}-0": 0, f"{topic}-2": 0}
    assert spans(stream.ranges(start, stream.latest_offset(start))) == [(0, 0, 2), (2, 0, 2)]


def test_an_error_says_that_the_options_no_longer_name_a_partition(streams: Streams) -> None:
    topic = streams.topic(partitions=2, records=2)
    stream = streams.stream("", assign=json.dumps({topic: [0, 1]}))
    start = stream.initial_offset()
    end = stream.latest_offset(start)
    restarted = streams.stream("", assign=json.dumps({topic: [0]}))
    with pytest.raises(DataLossError, match=rf"{topic}-1: .*the options of the query do not name the partition"):
        restarted.latest_offset(end)


@pytest.mark.parametrize("start", [{"orders": {"0": 1}}, 5], ids=["kafka", "rate"])
def test_a_checkpoint_of_another_source_is_named(streams: Streams, start: Any) -> None:
    """A query whose format was changed from kafka to kcodec, without a new checkpoint."""
    stream = streams.stream(streams.topic(records=1))
    with pytest.raises(ValueError, match="the checkpoint is that of another source"):
        stream.latest_offset(start)
    with pytest.raises(ValueError, match="the checkpoint is that of another source"):
        stream.ranges(start, start)


def test_a_reader_is_pickled_without_its_client(streams: Streams) -> None:
    topic = streams.topic(records=3)
    reader = stream_reader(TopicQuery(streams.source(topic)))
    start = reader.initialOffset()
    (partition,) = reader.partitions(start, {**start, topic: {**start[topic], "0": 3}})
    copied = pickle.loads(pickle.dumps(reader))
    assert [batch.num_rows for batch in copied.read(pickle.loads(pickle.dumps(partition)))] == [3]
    reader.stop()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "option 'endingOffsets': a stream has no end"),
        ({"maxOffsetsPerTrigger": "0"}, "option 'maxOffsetsPerTrigger' is '0'"),
        ({"maxTriggerDelay": "soon"}, "option 'maxTriggerDelay' is 'soon': expected a duration like 500ms"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "'minOffsetsPerTrigger' is 9: it must not be"),
        ({"groupIdPrefix": "x"}, "option 'groupIdPrefix' has no meaning here: partitions are read without"),
        ({"kafka.max.poll.records": "5"}, "has no meaning here: kafka.max.partition.fetch.bytes"),
        ({"max.poll.records": "5"}, "has no meaning here: kafka.max.partition.fetch.bytes"),
        ({"kafka.session.timeout.ms": "5"}, "has no meaning here: partitions are read without a consumer group"),
        ({"topic": "u"}, "has no meaning here: subscribe has the topics"),
        ({"kafka.ssl.truststore.password": "p"}, "has no meaning here: certificates are in PEM files"),
        ({"kafka.fetch.max.byte": "5"}, "did you mean 'kafka.fetch.max.bytes'"),
    ],
)
def test_invalid_options_of_a_stream(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TopicSource.of({"kafka.bootstrap.servers": "b:9092", "subscribe": "t", **options}, is_stream=True)


def test_durations_and_limits() -> None:
    assert TriggerLimits.of({"maxTriggerDelay": "90s"}).max_delay_ms == 90_000
    assert TriggerLimits.of({"maxTriggerDelay": "2 min"}).max_delay_ms == 120_000
    assert TriggerLimits.of({"maxTriggerDelay": "250"}).max_delay_ms == 250
    assert TriggerLimits.of({}) == TriggerLimits(None, None, 900_000, None)


def test_no_option_of_the_client_is_in_the_repr() -> None:
    source = TopicSource.of({"kafka.bootstrap.servers": "b:9092", "subscribe": "t", "kafka.client.id": "hush-hush"})
    assert "hush-hush" not in repr(source)


def test_offsets_that_a_task_misses_are_counted(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    """Records are deleted between the plan and the task."""
    topic = streams.topic(records=10)
    strict, lenient = streams.source(topic), streams.source(topic, failOnDataLoss="false")
    stream = streams.stream(topic)
    start = stream.initial_offset()
    (task,) = stream.tasks(start, stream.latest_offset(start))
    streams.admin.delete_records({TopicPartition(topic, 0): 4})
    with pytest.raises(OffsetOutOfRangeError, match=r"is not in the log, which has offsets 4 to 10") as raised:
        list(strict.read(task))
    assert "failOnDataLoss=false" in raised.value.__notes__[0]
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        assert sum(batch.num_rows for batch in lenient.read(task)) == 6
    assert f'task ranges="{topic}-0 [0, 10)" records=6' in messages(caplog)
    assert "lost_offsets=4" in messages(caplog)
