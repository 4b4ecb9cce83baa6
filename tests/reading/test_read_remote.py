# SPDX-License-Identifier: Apache-2.0
"""Bounded reads of topics with tiered storage (KIP-405): a slow read of remote storage is no end of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted_topic import ServedLog, TopicWorld
from topic_reader import Reader, fill, world_of

import kcodec
from kcodec.broker import Broker, fetch, offsets
from kcodec.client import Consumer, Producer
from kcodec.errors import BrokerError, DeliveryTimeoutError, UnsupportedError
from kcodec.protocol.error_codes import ErrorCode


def tiered(slow_reads: int = 0, **options: Any) -> tuple[TopicWorld, ServedLog]:
    """Return a world with 30 records, of which 18 are in remote storage only."""
    world, (log,) = world_of(**options)
    fill(log)
    log.local_start, log.slow_reads = 18, slow_reads
    return world, log


def local_lookups(world: TopicWorld) -> int:
    return sum(request.topics[0].partitions[0].timestamp == -4 for request in world.listed)


@pytest.mark.parametrize("slow_reads", [0, 1, 2, 3, 20])
def test_slow_reads_of_remote_storage_lose_no_records(slow_reads: int) -> None:
    world, log = tiered(slow_reads)
    reader = Reader(world, max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100).open()
    assert reader.all().rows[0] == log.committed
    assert local_lookups(world) == max(slow_reads - 1, 0)
    waits = [request.max_wait_ms for *_, request in world.asked]
    assert waits[: slow_reads + 1] == [0, *[500] * slow_reads]


def test_remote_storage_that_stays_slow_is_an_error_by_the_deadline() -> None:
    world, log = tiered(10**6)
    begun = world.now
    text = (
        r"t-0: offset 0 \(reading up to 30\) could not be read within 5 s; last error: broker 1 returned no records at "
        r"this offset, which is in remote storage \(the local log begins at 18\).*increase remote\.fetch\.max\.wait\.ms"
    )
    with pytest.raises(DeliveryTimeoutError, match=text):
        Reader(world).open().all()
    assert 5.0 <= world.now - begun < 7.0
    log.slow_reads = 0
    assert Reader(world).open(start=18).all().rows[0] == log.expected(18, 30)


def test_an_offset_at_the_begin_of_the_local_log_is_not_remote() -> None:
    world, log = tiered()
    del log.batches[6:]
    assert Reader(world).open().all().rows[0] == log.expected(0, 18)
    assert local_lookups(world) == 1


def test_a_read_without_empty_responses_does_not_look_for_the_local_log() -> None:
    world, log = tiered()
    assert Reader(world).open().all().rows[0] == log.committed
    assert local_lookups(world) == 0


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedError("ListOffsets version 8"),
        BrokerError("t-0", code=ErrorCode.UNSUPPORTED_VERSION, name="UNSUPPORTED_VERSION"),
    ],
    ids=["client", "broker"],
)
def test_a_gap_is_the_end_on_brokers_without_tiered_storage(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that do not know version 8 of ListOffsets have no tiered storage."""
    world, log = tiered()
    log.local_start = 0
    del log.batches[7:]
    reader = Reader(world).open()

    def list_offsets(cluster: object, specs: object, *given: object) -> Iterator[Any]:
        assert specs == {("t", 0): "earliest_local"}
        yield from ()
        raise error

    monkeypatch.setattr("kcodec.reading.bounded_read.list_offsets", list_offsets)
    assert reader.all().rows[0] == log.expected(0, 21)


def test_the_request_for_the_local_log_has_version_8(monkeypatch: pytest.MonkeyPatch) -> None:
    world, log = tiered()
    del log.batches[6:]
    lowest: list[int] = []
    start_call = world.start_call

    def noted(call: Any, done: Any) -> Any:
        lowest.extend([call.lowest] if type(call.request).__name__ == "ListOffsetsRequest" else [])
        return start_call(call, done)

    monkeypatch.setattr(world, "start_call", noted)
    Reader(world).open().all()
    assert lowest[-1] == 8


def test_a_request_for_the_local_log_that_fails_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    world, log = tiered(3)
    answer, left = world._listed, [1]

    def listed(node: int, request: Any) -> Any:
        response = answer(node, request)
        if request.topics[0].partitions[0].timestamp == -4 and left:
            response.topics[0].partitions[0].error_code = int(ErrorCode.LEADER_NOT_AVAILABLE)
            left.pop()
        return response

    monkeypatch.setattr(world, "_listed", listed)
    assert Reader(world).open().all().rows[0] == log.committed


def test_the_local_log_of_another_leader_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new leader has records in its local log that the previous leader had in remote storage only."""
    world, log = tiered(2, nodes=2)
    answer = world._listed

    def listed(node: int, request: Any) -> Any:
        if request.topics[0].partitions[0].timestamp == -4 and node == 1:
            world.move_leader(world.topics["t"][1][0], 2)
            log.local_start = 0
        return answer(node, request)

    monkeypatch.setattr(world, "_listed", listed)
    assert Reader(world).open().all().rows[0] == log.committed


def test_all_readers_of_a_broker_with_slow_remote_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """`read_topic`, `read_ranges` and a consumer return all records of an embedded broker that reads remote storage too
    slowly three times."""
    local_start, slow = 1500, [0]
    read, listed = fetch._Waiting._read, offsets.OffsetApis._listed

    def slow_read(waiting: Any, wanted: Any, left: int, *, min_one_message: bool) -> Any:
        found = read(waiting, wanted, left, min_one_message=min_one_message)
        if slow[0] and 500 <= wanted.request.fetch_offset < local_start:
            slow[0] -= 1
            found.records = b""
        return found

    def local_listed(apis: Any, context: Any, request: Any, topic: str, one: Any) -> Any:
        response = listed(apis, context, request, topic, one)
        if one.timestamp == offsets.EARLIEST_LOCAL:
            response.offset = local_start
        return response

    monkeypatch.setattr(fetch._Waiting, "_read", slow_read)
    monkeypatch.setattr(offsets.OffsetApis, "_listed", local_listed)
    values = [b"%04d" % number + bytes(300) for number in range(2000)]
    with Broker() as broker:
        topic = broker.create_topic(partitions=1)
        connecting: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers}
        with Producer(**connecting) as producer:
            for begin in range(0, len(values), 100):
                for value in values[begin : begin + 100]:
                    producer.send(topic, value)
                producer.flush()
        reading: dict[str, Any] = {**connecting, "max_partition_fetch_bytes": 50_000}
        slow[0] = 3
        with kcodec.read_topic(topic, **reading) as records:
            assert [record.value for batch in records for record in batch.records()] == values
        assert slow == [0]
        slow[0] = 3
        with kcodec.read_ranges([kcodec.OffsetRange(topic, 0, 0, 2000)], **reading) as ranges:
            assert [record.value for batch in ranges for record in batch.records()] == values
        assert slow == [0]
        slow[0] = 3
        with Consumer(auto_offset_reset="earliest", **reading) as consumer:
            consumer.assign([kcodec.TopicPartition(topic, 0)])
            polled: list[bytes | None] = []
            while len(polled) < len(values):
                polled += [record.value for record in consumer.poll(5.0)]
        assert polled == values
    assert slow == [0]
