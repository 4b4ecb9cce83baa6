# SPDX-License-Identifier: Apache-2.0
"""read_topic: from one offset to another, whatever lies there and whatever happens meanwhile; without sockets."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from scripted_topic import START
from topic_reader import Reader, fill, transactions, world_of

from kcodec import Timestamp
from kcodec.constants import IsolationLevel
from kcodec.errors import BrokerError, OffsetOutOfRangeError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.reading.partition_read import ReadRange
from kcodec.reading.ranges import TopicRange

# What is read


def test_partitions_are_read_whole_and_in_order() -> None:
    world, logs = world_of(5, nodes=3)
    for log in logs:
        fill(log)
    reader = Reader(world).open().all()
    assert reader.rows == {number: log.committed for number, log in enumerate(logs)}
    assert reader.ranges == [ReadRange(0, 30, 30)] * 5
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
    assert reader.ranges == [ReadRange(0, 16, 16)]


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
    assert reader.ranges == [ReadRange(0, 6, 6)]
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
    empty: tuple[dict[str, Any], ...] = (
        {"start": "latest"},
        {"start": 5, "end": 5},
        {"start": 9, "end": 3},
        {"partitions": []},
    )
    for where in empty:
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
    ("where", "kind", "reported"),
    [
        ({"start": "begin"}, ValueError, "earliest, latest"),
        ({"end": None}, TypeError, "Timestamp"),
        ({"start": True}, TypeError, "bool"),
        ({"start": datetime.datetime(2026, 1, 1)}, ValueError, "time zone"),
        ({"start": Timestamp(-1)}, ValueError, "1970"),
        ({"start": {"0": 1}}, TypeError, "partition"),
        ({"start": {3: 1}, "partitions": [0]}, ValueError, "not in partitions="),
    ],
)
def test_places_that_are_none(where: dict[str, Any], kind: type[Exception], reported: str) -> None:
    with pytest.raises(kind, match=reported):
        TopicRange("t", **({"partitions": None, "start": "earliest", "end": "latest"} | where))


def test_a_start_outside_the_log_is_an_error_that_says_what_there_is() -> None:
    world, (log,) = world_of()
    fill(log)
    log.log_start = 12
    with pytest.raises(
        OffsetOutOfRangeError, match=r"t-0: start offset 5 is not in the log, which has offsets 12 to 30 \(exclusive\)"
    ) as caught:
        Reader(world).open(start=5)
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (12, 30)
    with pytest.raises(OffsetOutOfRangeError, match=r"31 is not in the log, which has offsets 12 to 30"):
        Reader(world).open(start=31)
    log.append(b"open", producer_id=4)
    assert Reader(world).open(start=31).all().rows == {}  # in the log, behind the last stable offset


def test_unknown_topics_and_partitions_are_said_so() -> None:
    world, _ = world_of(2)
    with pytest.raises(BrokerError, match="'nowhere'") as caught:
        Reader(world, "nowhere").open()
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(BrokerError, match="2 partitions, numbered from 0, and no partition 5"):
        Reader(world).open(partitions=[1, 5])
    with pytest.raises(BrokerError, match="no partition 9"):
        Reader(world).open(start={9: 0})
