# SPDX-License-Identifier: Apache-2.0
"""read_ranges: what is read of ranges, and what happens where the log does not hold them; without sockets."""

from __future__ import annotations

import logging
import pickle
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from range_reader import RangeReader, worlds
from scripted_topic import ServedLog, TopicWorld
from topic_reader import fill, transactions

from kcodec import IsolationLevel, OffsetRange
from kcodec.errors import BrokerError, DeliveryTimeoutError, LogTruncationError, OffsetOutOfRangeError, TransportError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartitionData,
    FetchResponse,
    ListOffsetsRequest,
)
from kcodec.reading.partition_read import RangeProgress


def one_log(**options: Any) -> tuple[TopicWorld, ServedLog]:
    world, logs = worlds("t", **options)
    fill(logs["t"][0])
    return world, logs["t"][0]


# Values


def test_a_range_is_a_value_that_pickles() -> None:
    given = OffsetRange("orders", 3, 5, 10, topic_id=UUID(int=7), leader_epoch=2)
    assert pickle.loads(pickle.dumps(given)) == given
    assert len({given, pickle.loads(pickle.dumps(given))}) == 1
    assert str(given) == "orders-3 [5, 10)"
    assert given.topic_partition == ("orders", 3)
    with pytest.raises(AttributeError):
        given.start = 6  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"topic": ""}, TypeError, "topic must be a name"),
        ({"partition": "0"}, TypeError, "partition must be an int, not '0'"),
        ({"partition": True}, TypeError, "partition must be an int"),
        ({"partition": -1}, ValueError, "partition must be at least 0, not -1"),
        ({"start": -2}, ValueError, "start must be at least 0"),
        ({"end": 4}, ValueError, r"end must be at least start \(5\), not 4"),
        ({"leader_epoch": -2}, ValueError, "leader_epoch must be at least -1"),
        ({"topic_id": "x"}, TypeError, "topic_id must be a uuid.UUID"),
    ],
)
def test_a_range_that_is_invalid(fields: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        OffsetRange(**{"topic": "t", "partition": 0, "start": 5, "end": 10, **fields})


# What is read


def test_ranges_of_several_topics_are_read_together() -> None:
    world, logs = worlds("a", "b", partitions=3, nodes=3)
    for log in (log for each in logs.values() for log in each):
        fill(log)
    ranges = [OffsetRange("a", 0, 4, 17), OffsetRange("b", 2, 0, 30), OffsetRange("a", 0, 17, 20)]
    reader = RangeReader(world).open(*ranges).all()
    assert {where: sorted(rows) for where, rows in reader.rows.items()} == {
        ("a", 0): logs["a"][0].expected(4, 20),
        ("b", 2): logs["b"][2].committed,
    }
    assert [one.range for one in reader.progress] == ranges
    assert reader.lost == [0, 0, 0]


def test_nothing_but_fetch_requests_are_sent_once_topics_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    world, log = one_log()
    RangeReader(world).open(OffsetRange("t", 0, 0, 3)).all()
    sent: list[str] = []
    start_call = world.start_call

    def noted(call: Any, done: Any) -> Any:
        sent.append(getattr(call.request, "kind", call.request).__name__)
        return start_call(call, done)

    monkeypatch.setattr(world, "start_call", noted)
    assert RangeReader(world).open(OffsetRange("t", 0, 3, 6)).all().rows["t", 0] == log.expected(3, 6)
    assert sent == ["FetchRequest"]


@pytest.mark.parametrize("committed", [True, False])
def test_a_range_inside_transactions(committed: bool) -> None:
    world, logs = worlds("t")
    (log,) = logs["t"]
    transactions(log)
    fill(log, 2)
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    for start in range(log.end + 1):
        for end in range(start, log.end + 1):
            reader = RangeReader(world, isolation_level=level, max_partition_fetch_bytes=150)
            reader.open(OffsetRange("t", 0, start, end)).all()
            assert reader.rows.get(("t", 0), []) == log.expected(start, end, committed), (start, end)


def test_a_range_without_offsets_requests_nothing() -> None:
    world, _ = one_log()
    reader = RangeReader(world).open(OffsetRange("t", 0, 5, 5), OffsetRange("nowhere", 0, 0, 0)).all()
    assert not reader.rows
    assert not world.fetches


def test_a_range_of_markers_and_aborted_records_ends() -> None:
    world, logs = worlds("t")
    (log,) = logs["t"]
    log.append(b"gone", producer_id=7)
    log.finish(7, commit=False)
    assert RangeReader(world).open(OffsetRange("t", 0, 0, 2)).all().rows == {}


def test_a_leader_that_moves_is_followed() -> None:
    world, log = one_log(nodes=2)
    RangeReader(world).open(OffsetRange("t", 0, 0, 3)).all()
    world.move_leader(world.topics["t"][1][0], 2)
    assert RangeReader(world).open(OffsetRange("t", 0, 0, 30)).all().rows["t", 0] == log.committed
    assert {node for _, node, *_ in world.fetches} == {1, 2}


def test_an_open_transaction_that_holds_back_the_end_is_a_timeout() -> None:
    world, log = one_log()
    log.append(b"open", producer_id=9)
    with pytest.raises(DeliveryTimeoutError, match="an open transaction blocks"):
        RangeReader(world, "skip").open(OffsetRange("t", 0, 27, 31)).all()


def test_a_read_that_is_stopped_says_so() -> None:
    world, _ = one_log()
    reader = RangeReader(world, max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100)
    reader.open(OffsetRange("t", 0, 0, 30))
    assert reader.take()
    reader.read.stop()
    with pytest.raises(TransportError, match="closed before it was complete"):
        reader.all()
    assert [task.name for task in world.scheduler.tasks] == ["metadata"]


# Offsets that the log does not hold


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (5, 20, r"range t-0 \[5, 20\): offset 5 is not in the log, which has offsets 12 to 30 \(exclusive\)"),
        (0, 4, r"offset 0 is not in the log"),
        (40, 50, r"offset 40 is not in the log"),
        (20, 35, r"offsets up to 35 are not in the log"),
        (30, 31, r"offsets up to 31 are not in the log"),
    ],
)
def test_missing_offsets_raise_an_error_with_the_bounds(start: int, end: int, text: str) -> None:
    world, log = one_log()
    log.log_start = 12
    with pytest.raises(OffsetOutOfRangeError, match=text) as caught:
        RangeReader(world).open(OffsetRange("t", 0, start, end)).all()
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (12, 30)
    assert (caught.value.partition, caught.value.position) == (("t", 0), start)
    assert 'on_missing="skip"' in str(caught.value)


@pytest.mark.parametrize(
    ("start", "end", "lost"), [(5, 20, 7), (0, 4, 4), (40, 50, 10), (20, 35, 5), (30, 31, 1), (5, 35, 12), (12, 30, 0)]
)
def test_missing_offsets_are_skipped_counted_and_logged(
    start: int, end: int, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    world, log = one_log()
    log.log_start = 12
    with caplog.at_level(logging.WARNING, "kcodec.reading"):
        reader = RangeReader(world, "skip").open(OffsetRange("t", 0, start, end)).all()
    assert reader.rows.get(("t", 0), []) == log.expected(max(start, 12), end)
    assert reader.lost == [lost]
    # Clients that earlier tests have left in the pool of read_ranges may also log a warning.
    reported = [record.getMessage() for record in caplog.records if record.name == "kcodec.reading"]
    assert reported == [text for text in reported if text.startswith(f"range t-0 [{start}, {end}): ")]
    assert sum(int(text.split("): ")[1].split()[0]) for text in reported) == lost


def test_deleted_records_of_a_batch_that_is_partly_kept_are_not_read() -> None:
    """DeleteRecords moves the log start into a batch, which brokers still send whole."""
    world, log = one_log()
    log.log_start = 13
    reader = RangeReader(world, "skip").open(OffsetRange("t", 0, 5, 20)).all()
    assert reader.rows["t", 0] == log.expected(13, 20)
    assert reader.lost == [8]


def test_records_deleted_while_they_are_read_are_skipped() -> None:
    world, log = one_log()
    reader = RangeReader(world, "skip", max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100)
    reader.open(OffsetRange("t", 0, 0, 30))
    assert reader.take()
    log.log_start = 24
    rows = reader.all().rows["t", 0]
    assert rows[-6:] == log.expected(24, 30)
    assert reader.lost == [30 - len(rows)]


def test_a_leader_with_an_old_high_watermark_loses_nothing() -> None:
    """A leader that was elected just now learns the high watermark late; ListOffsets waits for that."""
    world, log = one_log()
    low = FetchPartitionData(partition_index=0, high_watermark=3, last_stable_offset=3, log_start_offset=0, records=b"")
    topic_id, _ = world.topics["t"]
    early = [FetchResponse(responses=[FetchableTopicResponse(topic="t", topic_id=topic_id, partitions=[low])])]
    world.on_fetch = lambda *_: early.pop() if early else None
    reader = RangeReader(world).open(OffsetRange("t", 0, 3, 30)).all()
    assert reader.rows["t", 0] == log.expected(3, 30)


def test_an_offset_that_one_broker_calls_out_of_range_is_retried() -> None:
    world, log = one_log()
    refusals = [ErrorCode.OFFSET_OUT_OF_RANGE]
    world.on_fetch = lambda *_: refusals.pop() if refusals else None
    assert RangeReader(world).open(OffsetRange("t", 0, 3, 30)).all().rows["t", 0] == log.expected(3, 30)
    world.on_fetch = lambda *_: ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(DeliveryTimeoutError, match="outside the range of offsets"):
        RangeReader(world).open(OffsetRange("t", 0, 3, 30)).all()


# Truncation


def test_a_log_truncated_below_the_start_is_an_error() -> None:
    world, log = one_log()
    log.diverging = (0, 9)
    with pytest.raises(LogTruncationError) as caught:
        RangeReader(world).open(OffsetRange("t", 0, 15, 30, leader_epoch=3)).all()
    assert (caught.value.position, caught.value.position_epoch, caught.value.divergent_offset) == (15, 3, 9)


def test_a_log_truncated_below_the_start_is_read_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    world, log = one_log()
    log.diverging = (0, 9)
    with caplog.at_level(logging.WARNING, "kcodec.reading"):
        reader = RangeReader(world, "skip").open(OffsetRange("t", 0, 15, 30, leader_epoch=3)).all()
    assert reader.rows["t", 0] == log.expected(15, 30)
    assert "a new leader truncated the log at 9" in caplog.text


def test_an_epoch_without_records_is_no_truncation() -> None:
    """The epoch of a leader that wrote nothing is in no log: the records before the start are those of an earlier one.
    ListOffsets gives the epoch of the leader for "latest"."""
    world, log = one_log()
    log.diverging = (0, 15)
    world.on_fetch = lambda *_: setattr(log, "diverging", None) if len(world.fetches) > 1 else None
    reader = RangeReader(world).open(OffsetRange("t", 0, 15, 30, leader_epoch=3)).all()
    assert reader.rows["t", 0] == log.expected(15, 30)


# Topics that are gone


def test_a_topic_that_does_not_exist() -> None:
    world, log = one_log()
    ranges = OffsetRange("gone", 0, 5, 10), OffsetRange("t", 0, 0, 30)
    with pytest.raises(BrokerError, match=r"range gone-0 \[5, 10\): topic 'gone' does not exist") as caught:
        RangeReader(world).open(*ranges)
    assert (caught.value.code, caught.value.remedy) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "stop")
    reader = RangeReader(world, "skip").open(*ranges).all()
    assert reader.rows == {("t", 0): log.committed}
    assert reader.lost == [5, 0]


@pytest.mark.parametrize("has_id", [True, False])
def test_a_topic_that_was_deleted_since_the_last_call(has_id: bool) -> None:
    world, _ = one_log()
    topic_id = world.topics["t"][0] if has_id else None
    wanted = OffsetRange("t", 0, 0, 3, topic_id=topic_id)
    RangeReader(world).open(wanted).all()
    del world.topics["t"]
    with pytest.raises(BrokerError, match=r"range t-0 \[0, 3\): topic 't' was deleted") as caught:
        RangeReader(world).open(wanted).all()
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert RangeReader(world, "skip").open(wanted).all().lost == [3]


@pytest.mark.parametrize("knows", ["old", "new", "nothing"])
def test_a_topic_that_was_created_again(knows: str) -> None:
    """Whether metadata is outdated or not, no record of another topic is delivered."""
    world, _ = one_log()
    wanted = OffsetRange("t", 0, 0, 3, topic_id=world.topics["t"][0])
    if knows == "old":
        RangeReader(world).open(wanted).all()
    (log,) = world.create_logs("t")
    fill(log)
    if knows == "new":
        RangeReader(world).open(OffsetRange("t", 0, 0, 3)).all()
    with pytest.raises(BrokerError, match=r"range t-0 \[0, 3\): topic 't' was deleted and .* again") as caught:
        RangeReader(world).open(wanted).all()
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    reader = RangeReader(world, "skip").open(wanted).all()
    assert (reader.rows, reader.lost) == ({}, [3])


@pytest.mark.parametrize("has_id", [True, False])
def test_a_client_that_knew_the_topic_before_it_was_created_again(has_id: bool) -> None:
    """The range is of the new topic, and only the metadata of the client is outdated."""
    world, _ = one_log()
    RangeReader(world).open(OffsetRange("t", 0, 0, 3)).all()
    (log,) = world.create_logs("t")
    fill(log, 5)
    wanted = OffsetRange("t", 0, 0, 15, topic_id=world.topics["t"][0] if has_id else None)
    assert RangeReader(world).open(wanted).all().rows["t", 0] == log.committed


def test_a_partition_that_does_not_exist() -> None:
    world, _ = one_log()
    wanted = OffsetRange("t", 4, 5, 10)
    with pytest.raises(BrokerError, match=r"range t-4 \[5, 10\): topic 't' has 1 partition, numbered from 0"):
        RangeReader(world).open(wanted)
    assert RangeReader(world, "skip").open(wanted).all().lost == [5]


def test_a_partition_that_was_added_since_the_last_call() -> None:
    world, log = one_log()
    RangeReader(world).open(OffsetRange("t", 0, 0, 3)).all()
    world.topics["t"][1].append(type(world.topics["t"][1][0])(1))
    added = world.served["t", 1] = ServedLog()
    fill(added, 1)
    assert RangeReader(world).open(OffsetRange("t", 1, 0, 3)).all().rows["t", 1] == added.committed
    assert log.end == 30


def test_a_topic_that_must_not_be_read_is_never_skipped() -> None:
    world, _ = one_log()
    world.metadata_error["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(BrokerError, match="a permission on the topic is missing"):
        RangeReader(world, "skip").open(OffsetRange("t", 0, 0, 3))


def test_brokers_without_topic_ids() -> None:
    world, log = one_log(has_topic_ids=False)
    wanted = OffsetRange("t", 0, 0, 30, topic_id=UUID(int=5))
    reader = RangeReader(world).open(wanted).all()
    assert reader.rows["t", 0] == log.committed
    assert reader.progress == [RangeProgress(wanted, 30, 0)]


def test_list_offsets_is_only_for_ranges_that_miss_offsets() -> None:
    world, log = one_log()
    log.log_start = 12
    listed: list[ListOffsetsRequest] = []
    answer = world._listed
    world._listed = lambda node, request: listed.append(request) or answer(node, request)  # type: ignore[method-assign,func-returns-value]
    RangeReader(world).open(OffsetRange("t", 0, 12, 30)).all()
    assert not listed
    RangeReader(world, "skip").open(OffsetRange("t", 0, 0, 30)).all()
    assert len(listed) == 2


# At random


@st.composite
def written(draw: st.DrawFn) -> tuple[TopicWorld, dict[str, list[ServedLog]]]:
    """Logs without open transactions; some begin in the middle of a batch."""
    world, logs = worlds("t", "u", partitions=2, nodes=2, seed=draw(st.integers(0, 1000)))
    for log in (log for each in logs.values() for log in each):
        for _ in range(draw(st.integers(0, 10))):
            what = draw(st.sampled_from(["plain", "transaction", "end", "gap"]))
            values = [b"v%d" % draw(st.integers(0, 9))] * draw(st.integers(1, 4))
            if what == "plain":
                log.append(*values)
            elif what == "transaction":
                log.append(*values, producer_id=draw(st.integers(1, 2)))
            elif what == "gap":
                log.end += draw(st.integers(1, 5))
        for producer_id in list(log.open):
            log.finish(producer_id, draw(st.booleans()))
        log.log_start = draw(st.integers(0, log.end))
    return world, logs


@given(written(), st.data())
def test_what_the_logs_hold_of_ranges_is_read_and_the_rest_counted(
    made: tuple[TopicWorld, dict[str, list[ServedLog]]], data: Any
) -> None:
    """Random logs, ranges, errors and leaders: each record of a range that is in the log once, and a number for what is
    not."""
    world, logs = made
    committed = data.draw(st.booleans())
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    errors = data.draw(st.lists(st.sampled_from([0, 1, 3, 6, 75, 78]), max_size=10))
    ranges, expected, lost = [], {}, []
    for topic, number in data.draw(
        st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 1)), max_size=4, unique=True)
    ):
        log = logs[topic][number]
        start = data.draw(st.integers(0, log.end + 3))
        end = data.draw(st.integers(start, log.end + 6))
        topic_id = data.draw(st.sampled_from([None, world.topics[topic][0]]))
        ranges.append(OffsetRange(topic, number, start, end, topic_id=topic_id))
        first, last = max(start, log.log_start), min(end, log.end)
        lost.append(end - start - max(last - first, 0))
        if rows := log.expected(first, last, committed):
            expected[topic, number] = rows

    def on_fetch(node: int, topic: str, partition: int, offset: int) -> int | None:
        code = errors.pop() if errors else 0
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            world.move_leader(world.topics[topic][1][partition], 3 - node)
        return code or None

    world.on_fetch = on_fetch
    size = data.draw(st.integers(1, 400))
    reader = RangeReader(world, "skip", isolation_level=level, max_partition_fetch_bytes=size).open(*ranges).all()
    assert reader.rows == expected
    assert reader.lost == lost
