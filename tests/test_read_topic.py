# SPDX-License-Identifier: Apache-2.0
"""read_topic: from one offset to another, whatever lies there and whatever happens meanwhile; without sockets."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_topic import START, Batch, ServedLog, TopicWorld

import kcodec
from kcodec import Timestamp
from kcodec.client.topic_range import TopicRange
from kcodec.constants import IsolationLevel
from kcodec.consumer.bounded_decode import RangeDecoder
from kcodec.consumer.bounded_read import BoundedRead, Range
from kcodec.consumer.settings import ConsumerSettings
from kcodec.errors import BrokerError, DecodeError, DeliveryTimeoutError, LogTruncationError, OffsetOutOfRangeError
from kcodec.protocol.flow import Flow
from kcodec.protocol.messages.fetch import FetchResponse
from kcodec.txn.settle import Asking

SETTINGS = ConsumerSettings(
    default_api_timeout=5.0, request_timeout=1.0, retry_backoff=lambda attempt, random: 0.05, fetch_ahead_max_bytes=4096
)


class Reader:
    """Reads in a world as the faces do, and keeps what it was given; `damage` as it would be raised."""

    def __init__(self, world: TopicWorld, topic: str = "t", *, max_rows: int | None = None, **settings: Any) -> None:
        self.world = world
        self.topic = topic
        self.settings = replace(SETTINGS, **settings)
        self.decoder = RangeDecoder(self.settings, max_rows)
        self.rows: dict[int, list[tuple[int, bytes]]] = {}
        self.damage: DecodeError | None = None
        self.read: BoundedRead

    def open(self, **where: Any) -> Reader:
        where = {"partitions": None, "start": "earliest", "end": "latest"} | where
        narrow = where.pop("narrow", None)
        wanted = TopicRange(self.topic, **where)
        wanted.narrow = narrow or wanted.narrow

        def flow() -> Flow[None]:
            cluster = self.world.cluster
            asking = Asking(cluster, 5.0, lambda: 0)
            ranges = yield from wanted.resolve(asking, self.settings.isolation_level)
            yield from cluster.ensure_topic(self.topic, 5.0)
            self.read = BoundedRead(cluster, self.topic, ranges, self.settings, self.world.random)
            yield from self.read.start()

        self.world.run_flow(flow())
        return self

    def take(self) -> bool:
        """One answer; whether there was one."""
        answer = self.world.run_flow(self.read.next_answer())
        if answer is None:
            return False
        chunks, self.damage = self.decoder.decode(answer)
        for record in (record for chunk in chunks for record in chunk.records()):
            assert record.topic == self.topic
            assert record.partition is not None
            self.rows.setdefault(record.partition, []).append((record.offset, record.value or b""))
        return True

    def all(self) -> Reader:
        while not self.decoder.is_full and self.take():
            if self.damage is not None:
                raise self.damage
        return self

    @property
    def ranges(self) -> list[Range]:
        return [partition.range for partition in self.read.partitions]


def world_of(partitions: int = 1, **options: Any) -> tuple[TopicWorld, list[ServedLog]]:
    world = TopicWorld(**options)
    return world, world.create_logs("t", partitions)


def fill(log: ServedLog, batches: int = 10, records: int = 3) -> None:
    for number in range(batches):
        log.append(*[b"%d-%d" % (number, index) for index in range(records)])


def transactions(log: ServedLog) -> None:
    """Committed, aborted and plain records between each other."""
    log.append(b"a", b"b", producer_id=1)
    log.append(b"c", producer_id=2)
    log.append(b"plain")
    log.append(b"d", b"e", producer_id=1)
    log.finish(2, commit=False)
    log.append(b"f", producer_id=3)
    log.finish(1, commit=True)
    log.finish(3, commit=False)


# What is read


def test_partitions_are_read_whole_and_in_order() -> None:
    world, logs = world_of(5, nodes=3)
    for log in logs:
        fill(log)
    reader = Reader(world).open().all()
    assert reader.rows == {number: log.committed for number, log in enumerate(logs)}
    assert reader.ranges == [Range(0, 30, 30)] * 5
    assert reader.decoder.counts.records == 150


def test_partitions_are_fetched_side_by_side() -> None:
    """A partition whose leader does not answer holds up no other."""
    world, logs = world_of(2, nodes=2)
    for log in logs:
        fill(log)
    reader = Reader(world).open()
    world.unreachable.add(1)
    while not reader.rows.get(0):
        assert reader.take()
    assert reader.rows[0] == logs[0].committed
    world.unreachable.clear()
    assert reader.all().rows[1] == logs[1].committed


@pytest.mark.parametrize("committed", [True, False])
def test_a_range_inside_batches_and_transactions(committed: bool) -> None:
    world, (log,) = world_of()
    transactions(log)
    fill(log, 2)
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    for start in range(log.end + 1):
        for end in range(start, log.end + 1):
            reader = Reader(world, isolation_level=level, max_partition_fetch_bytes=150).open(start=start, end=end)
            assert reader.all().rows.get(0, []) == log.expected(start, end, committed), (start, end)


def test_the_end_is_reached_where_only_markers_and_aborted_records_lie_before_it() -> None:
    world, (log,) = world_of()
    log.append(b"kept")
    for _ in range(5):
        log.append(b"gone", b"gone", producer_id=7)
        log.finish(7, commit=False)
    reader = Reader(world, max_partition_fetch_bytes=100).open().all()
    assert reader.rows == {0: [(0, b"kept")]}
    assert (reader.decoder.counts.aborted, reader.decoder.counts.control) == (10, 5)
    assert reader.ranges == [Range(0, 16, 16)]


def test_aborted_records_far_behind_their_first_one_stay_out() -> None:
    """Each answer brings its own list of aborted transactions, and the marker may lie answers away."""
    world, (log,) = world_of()
    for number in range(20):
        log.append(b"aborted-%d" % number, producer_id=7)
        log.append(b"plain-%d" % number)
    log.finish(7, commit=False)
    reader = Reader(world, max_partition_fetch_bytes=200).open().all()
    assert reader.rows[0] == log.committed
    assert len(world.fetches) > 10


def test_an_open_transaction_ends_what_is_read_of_committed_records() -> None:
    world, (log,) = world_of()
    fill(log, 2)
    log.append(b"open", producer_id=9)
    log.append(b"behind it")
    reader = Reader(world).open().all()
    assert reader.rows[0] == log.expected(0, 6)
    assert reader.ranges == [Range(0, 6, 6)]
    everything = Reader(world, isolation_level=IsolationLevel.READ_UNCOMMITTED).open().all()
    assert everything.rows[0] == log.written


def test_gaps_of_compaction_are_passed_over() -> None:
    world, (log,) = world_of()
    fill(log)
    del log.batches[2:5]
    reader = Reader(world, max_partition_fetch_bytes=100).open(start=7, end=16).all()
    assert reader.rows[0] == [(15, b"5-0")]


@pytest.mark.parametrize("end", [25, 30])
def test_a_gap_before_the_end_of_the_log_is_the_end(end: int) -> None:
    """The last records before an end were deleted: nothing comes, and nothing is waited for."""
    world, (log,) = world_of()
    fill(log)
    del log.batches[7:]
    begun = world.now
    reader = Reader(world).open(end=end).all()
    assert reader.rows[0] == log.expected(0, 21)
    assert world.now - begun < 0.5
    assert len(world.fetches) == 3  # the records, then nothing, and nothing again


def test_an_empty_range_asks_for_nothing() -> None:
    world, (log,) = world_of()
    fill(log)
    for where in ({"start": "latest"}, {"start": 5, "end": 5}, {"start": 9, "end": 3}, {"partitions": []}):
        assert Reader(world).open(**where).all().rows == {}
    assert not world.fetches


def test_max_rows_is_exact_and_says_where_it_stopped() -> None:
    world, (log,) = world_of()
    transactions(log)
    for most in range(len(log.committed) + 1):
        reader = Reader(world, max_rows=most).open().all()
        assert reader.rows.get(0, []) == log.committed[:most]
        if 0 < most < len(log.committed):
            assert reader.ranges[0].next_offset == log.committed[most][0]


# Where it begins and ends


def test_places() -> None:
    world, logs = world_of(2)
    for log in logs:
        fill(log)
    at = datetime.datetime.fromtimestamp((START + 10) / 1000, datetime.UTC)
    almost = at - datetime.timedelta(microseconds=1)
    for where, expected in (
        ({}, (0, 30)),
        ({"start": 4}, (4, 30)),
        ({"start": -4}, (26, 30)),
        ({"end": -4}, (0, 26)),
        ({"start": -100}, (0, 30)),
        ({"start": Timestamp(START + 10)}, (10, 30)),
        ({"start": at, "end": Timestamp(START + 12)}, (10, 12)),
        ({"start": almost}, (10, 30)),
        ({"start": Timestamp(START + 1000)}, (30, 30)),
        ({"end": Timestamp(START + 1000)}, (0, 30)),
        ({"start": {1: 7}, "end": {0: 5, 1: at}}, (0, 5)),
    ):
        reader = Reader(world).open(**where)
        assert (reader.ranges[0].start, reader.ranges[0].end) == expected, where
    assert (reader.ranges[1].start, reader.ranges[1].end) == (7, 10)


@pytest.mark.parametrize(
    ("where", "kind", "told"),
    [
        ({"start": "begin"}, ValueError, "earliest, latest"),
        ({"end": None}, TypeError, "Timestamp"),
        ({"start": True}, TypeError, "bool"),
        ({"start": datetime.datetime(2026, 1, 1)}, ValueError, "time zone"),
        ({"start": Timestamp(-1)}, ValueError, "1970"),
        ({"start": {"0": 1}}, TypeError, "partition"),
        ({"start": {3: 1}, "partitions": [0]}, ValueError, "not among"),
    ],
)
def test_places_that_are_none(where: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        TopicRange("t", **({"partitions": None, "start": "earliest", "end": "latest"} | where))


def test_a_start_outside_the_log_is_an_error_that_says_what_there_is() -> None:
    world, (log,) = world_of()
    fill(log)
    log.log_start = 12
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: start offset 5 .* holds \[12, 30\)") as caught:
        Reader(world).open(start=5)
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (12, 30)
    with pytest.raises(OffsetOutOfRangeError, match=r"31 .* holds \[12, 30\)"):
        Reader(world).open(start=31)
    log.append(b"open", producer_id=4)
    assert Reader(world).open(start=31).all().rows == {}  # in the log, behind the last stable offset


def test_unknown_topics_and_partitions_are_said_so() -> None:
    world, _ = world_of(2)
    with pytest.raises(BrokerError, match="'nowhere'") as caught:
        Reader(world, "nowhere").open()
    assert caught.value.code == 3
    with pytest.raises(BrokerError, match="2 partitions, numbered from 0, and no 5"):
        Reader(world).open(partitions=[1, 5])
    with pytest.raises(BrokerError, match="no 9"):
        Reader(world).open(start={9: 0})


# What happens meanwhile


def test_an_end_that_is_not_written_yet_is_waited_for() -> None:
    world, (log,) = world_of()
    fill(log, 2)
    reader = Reader(world).open(end=9)
    assert reader.take()
    world.scheduler.call_at(world.now + 3.0, lambda: fill(log, 2))
    assert reader.all().rows[0] == log.expected(0, 9)


def test_an_end_that_never_comes_is_an_error_by_the_deadline() -> None:
    world, (log,) = world_of()
    fill(log, 2)
    log.append(b"open", producer_id=9)
    begun = world.now
    reader = Reader(world).open(end=9)
    with pytest.raises(DeliveryTimeoutError, match=r"t-0: offset 6, on the way to 9.*ends at 6 of 7: an open trans"):
        reader.all()
    assert reader.rows[0] == log.expected(0, 6)
    assert 5.0 <= world.now - begun < 7.0
    assert len(world.fetches) < 150


@pytest.mark.parametrize("code", [5, 6, 74, 75, 9, 13, 56])
def test_a_leader_that_moves_is_followed(code: int) -> None:
    world, (log,) = world_of(nodes=2)
    fill(log)
    reader = Reader(world, max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100).open()
    assert reader.take()
    world.move_leader(world.topics["t"][1][0], 2)
    world.on_fetch = lambda node, *_: code if node == 1 else None
    assert reader.all().rows[0] == log.committed
    assert {node for _, node, *_ in world.fetches} == {1, 2}


def test_a_broker_that_loads_is_asked_again() -> None:
    world, (log,) = world_of()
    fill(log)
    left = [78, 78, -1]
    world.on_fetch = lambda *_: left.pop() if left else None
    left[-1] = 78
    assert Reader(world).open().all().rows[0] == log.committed


def test_a_broker_that_throttles_names_no_partitions_and_is_asked_again() -> None:
    """That is no empty partition (KIP-219): taken for one, the reading would end too early."""
    world, (log,) = world_of()
    fill(log)
    left = [FetchResponse(throttle_time_ms=100) for _ in range(3)]
    world.on_fetch = lambda *_: left.pop() if left else None
    assert Reader(world).open().all().rows[0] == log.committed


def test_a_refusal_ends_it_with_the_partition() -> None:
    world, (log,) = world_of()
    fill(log)
    world.on_fetch = lambda *_: 29
    with pytest.raises(kcodec.AuthorizationError, match="t-0"):
        Reader(world).open().all()


def test_a_broker_that_is_gone_is_an_error_by_the_deadline() -> None:
    world, (log,) = world_of(nodes=2)
    fill(log)
    reader = Reader(world, max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100).open()
    world.unreachable.add(1)
    with pytest.raises(DeliveryTimeoutError, match="broker 1 cannot be reached"):
        reader.all()


def test_a_topic_that_is_deleted_meanwhile() -> None:
    world, (log,) = world_of()
    fill(log, 100)
    reader = Reader(world, max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100).open()
    assert reader.take()
    del world.topics["t"]
    with pytest.raises(BrokerError, match="topic 't' was deleted while it was read") as caught:
        reader.all()
    assert (caught.value.code, caught.value.remedy) == (3, "stop")


def test_a_topic_that_is_deleted_and_made_again_meanwhile() -> None:
    world, (log,) = world_of()
    fill(log, 100)
    reader = Reader(world, max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100).open()
    assert reader.take()
    fill(world.create_logs("t")[0], 200)
    with pytest.raises(BrokerError, match="deleted and made again"):
        reader.all()


def test_records_that_are_deleted_meanwhile() -> None:
    world, (log,) = world_of()
    fill(log, 100)
    reader = Reader(world, max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100).open()
    assert reader.take()
    log.log_start = 250
    with pytest.raises(OffsetOutOfRangeError, match="no longer in the log"):
        reader.all()
    assert reader.rows[0] == log.expected(0, len(reader.rows[0]))


def test_a_log_that_a_new_leader_cut_meanwhile() -> None:
    """KIP-595: the epoch of what was read goes with the question, and the leader says where the logs part."""
    world, (log,) = world_of()
    fill(log, 100)
    reader = Reader(world, max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100).open()
    assert reader.take()
    log.diverging = (0, 2)
    with pytest.raises(LogTruncationError) as caught:
        reader.all()
    assert (caught.value.divergent_offset, caught.value.divergent_epoch) == (2, 0)


def test_names_of_topics_where_brokers_have_no_ids() -> None:
    world, (log,) = world_of(has_topic_ids=False)
    fill(log)
    assert Reader(world).open().all().rows[0] == log.committed


# Damage


def damaged(log: ServedLog, number: int, at: int, value: int = 0xFF) -> Batch:
    batch = log.batches[number]
    data = bytearray(batch.data)
    data[at] ^= value
    batch.data = bytes(data)
    return batch


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_corrupt_batch_is_raised_behind_what_lies_before_it(size: int) -> None:
    world, (log,) = world_of()
    fill(log)
    damaged(log, 4, -1)
    reader = Reader(world, max_partition_fetch_bytes=size).open()
    with pytest.raises(kcodec.CorruptBatchError) as caught:
        reader.all()
    assert reader.rows[0] == log.expected(0, 12)
    assert caught.value.next_offset == 15
    assert caught.value.topic_partition == ("t", 0)
    again = Reader(world).open(start=caught.value.next_offset).all()
    assert again.rows[0] == log.expected(15, 30)


@pytest.mark.parametrize("size", [100, 100_000])
def test_corrupt_batches_are_skipped_and_counted(size: int) -> None:
    world, (log,) = world_of()
    fill(log)
    for number in (0, 4, 9):
        damaged(log, number, -1)
    reader = Reader(world, max_partition_fetch_bytes=size, on_corrupt="skip").open().all()
    gone = {*range(3), *range(12, 15), *range(27, 30)}
    assert reader.rows[0] == [row for row in log.committed if row[0] not in gone]
    assert reader.decoder.counts.skipped_batches == 3


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_a_length_that_leads_nowhere_is_an_error_and_no_hang(on_corrupt: str) -> None:
    world, (log,) = world_of()
    fill(log)
    damaged(log, 4, 8)  # the highest byte of batch_length
    reader = Reader(world, on_corrupt=on_corrupt).open()
    with pytest.raises(DecodeError, match="batch_length"):
        reader.all()
    assert reader.rows[0] == log.expected(0, 12)


@pytest.mark.parametrize(("at", "value"), [(16, 3), (22, 7)], ids=["magic 1", "unknown codec"])
def test_what_cannot_be_read_is_told(at: int, value: int) -> None:
    world, (log,) = world_of()
    fill(log)
    damaged(log, 4, at, value)
    reader = Reader(world).open()
    with pytest.raises(DecodeError):
        reader.all()
    assert reader.rows[0] == log.expected(0, 12)


def test_a_batch_larger_than_an_answer_comes_whole() -> None:
    world, (log,) = world_of()
    log.append(b"x" * 50_000)
    fill(log)
    assert Reader(world, max_partition_fetch_bytes=1000).open().all().rows[0] == log.committed


def test_a_broker_that_cuts_its_first_batch_is_asked_for_more() -> None:
    """As those before KIP-74 did; what is asked for is bounded."""
    world, (log,) = world_of()
    log.append(b"x" * 5_000)
    fill(log)
    world.serves_whole_batches = False
    assert Reader(world, max_partition_fetch_bytes=1000).open().all().rows[0] == log.committed
    with pytest.raises(DecodeError, match=r"longer than fetch_max_bytes \(4000\)"):
        Reader(world, max_partition_fetch_bytes=1000, fetch_max_bytes=4000).open().all()


# Memory


def test_what_is_fetched_ahead_is_bounded() -> None:
    world, logs = world_of(20, nodes=3)
    for log in logs:
        fill(log, 50, 1)
    reader = Reader(world, max_partition_fetch_bytes=200, fetch_ahead_max_bytes=1000).open()
    world.run(30.0)
    assert world.fetched_bytes <= 5 * 400
    assert len(reader.read._answers) == 5
    assert reader.all().rows == {number: log.committed for number, log in enumerate(logs)}


# At random


@st.composite
def written(draw: st.DrawFn) -> tuple[TopicWorld, list[ServedLog]]:
    world = TopicWorld(nodes=2, seed=draw(st.integers(0, 1000)))
    logs = world.create_logs("t", draw(st.integers(1, 3)))
    for log in logs:
        for _ in range(draw(st.integers(0, 12))):
            what = draw(st.sampled_from(["plain", "begin", "begin", "commit", "abort", "gap", "delete"]))
            producer = draw(st.integers(1, 3))
            values = [b"v%d" % draw(st.integers(0, 9))] * draw(st.integers(1, 4))
            if what == "plain":
                log.append(*values)
            elif what == "begin":
                log.append(*values, producer_id=producer)
            elif what in ("commit", "abort") and producer in log.open:
                log.finish(producer, what == "commit")
            elif what == "gap":
                log.end += draw(st.integers(1, 5))
            elif what == "delete" and log.batches and not log.open:
                gone = log.batches.pop()
                for records in (log.committed, log.written):
                    records[:] = [row for row in records if not gone.base <= row[0] <= gone.last]
    return world, logs


@given(written(), st.data())
def test_whatever_the_log_holds_and_the_brokers_answer(made: tuple[TopicWorld, list[ServedLog]], data: Any) -> None:
    """Random batches, transactions, gaps, damage, errors, leaders: the records of the range, each once, in order."""
    world, logs = made
    committed = data.draw(st.booleans())
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    errors = data.draw(st.lists(st.sampled_from([0, 3, 6, 75, 78]), max_size=20))
    limits = [log.last_stable if committed else log.end for log in logs]
    starts = [data.draw(st.integers(0, limit)) for limit in limits]
    ends = [data.draw(st.integers(start, limit)) for start, limit in zip(starts, limits, strict=True)]
    size = data.draw(st.integers(1, 400))

    def on_fetch(node: int, topic: str, partition: int, offset: int) -> int | None:
        code = errors.pop() if errors else 0
        if code == 6:
            world.move_leader(world.topics["t"][1][partition], 3 - node)
        return code or None

    lost = {(number, offset) for number, log in enumerate(logs) for offset in damage_some(log, data)}
    world.on_fetch = on_fetch
    reader = Reader(world, isolation_level=level, max_partition_fetch_bytes=size, on_corrupt="skip").open(
        start=dict(enumerate(starts)), end=dict(enumerate(ends))
    )
    assert reader.all().rows == {
        number: rows
        for number, log in enumerate(logs)
        if (
            rows := [
                row for row in log.expected(starts[number], ends[number], committed) if (number, row[0]) not in lost
            ]
        )
    }


def damage_some(log: ServedLog, data: Any) -> list[int]:
    """Corrupt batches of records here and there; the offsets of what is lost."""
    lost: list[int] = []
    for number, batch in enumerate(log.batches):
        if batch.timestamps and data.draw(st.integers(0, 5)) == 0:
            damaged(log, number, -1)
            lost += range(batch.base, batch.last + 1)
    return lost
