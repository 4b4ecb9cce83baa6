# SPDX-License-Identifier: Apache-2.0
"""read_topic: what happens meanwhile: leaders, deletions, damage, ends that do not come; without sockets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_topic import START, Batch, ServedLog, TopicWorld
from topic_reader import Reader, fill, world_of

import kcodec
from kcodec import encode_batch
from kcodec._fast import crc32c
from kcodec.constants import IsolationLevel
from kcodec.errors import BrokerError, DecodeError, DeliveryTimeoutError, LogTruncationError, OffsetOutOfRangeError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.fetch import FetchResponse

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
    with pytest.raises(DeliveryTimeoutError, match=r"t-0: offset 6 \(reading up to 9\).*end at 6 of 7: an open trans"):
        reader.all()
    assert reader.rows[0] == log.expected(0, 6)
    assert 5.0 <= world.now - begun < 7.0
    assert len(world.fetches) < 150


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
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
    assert (caught.value.code, caught.value.remedy) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "stop")


def test_a_topic_that_is_deleted_and_made_again_meanwhile() -> None:
    world, (log,) = world_of()
    fill(log, 100)
    reader = Reader(world, max_partition_fetch_bytes=100, fetch_ahead_max_bytes=100).open()
    assert reader.take()
    fill(world.create_logs("t")[0], 200)
    with pytest.raises(BrokerError, match="deleted and created again"):
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
def test_corrupt_batches_are_skipped_and_counted(size: int, caplog: pytest.LogCaptureFixture) -> None:
    world, (log,) = world_of()
    fill(log)
    for number in (0, 4, 9):
        damaged(log, number, -1)
    reader = Reader(world, max_partition_fetch_bytes=size, on_error="skip").open().all()
    gone = {*range(3), *range(12, 15), *range(27, 30)}
    assert reader.rows[0] == [row for row in log.committed if row[0] not in gone]
    assert reader.decoder.counts.skipped_batches == 3
    texts = [one.getMessage() for one in caplog.records if one.name == "kcodec.reading"]
    assert len(texts) == 3 and all("skipped a batch of t-0: " in text and "CRC" in text for text in texts)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_length_that_leads_nowhere_is_an_error_and_no_hang(on_error: str) -> None:
    world, (log,) = world_of()
    fill(log)
    damaged(log, 4, 8)  # the highest byte of batch_length
    reader = Reader(world, on_error=on_error).open()
    with pytest.raises(DecodeError, match="batch_length"):
        reader.all()
    assert reader.rows[0] == log.expected(0, 12)


@pytest.mark.parametrize(("at", "value"), [(16, 3), (22, 7)], ids=["magic 1", "unknown codec"])
def test_an_unreadable_response_is_reported(at: int, value: int) -> None:
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
    with pytest.raises(DecodeError, match=r"larger than fetch_max_bytes \(4000\)"):
        Reader(world, max_partition_fetch_bytes=1000, fetch_max_bytes=4000).open().all()


# Memory


def test_what_is_fetched_ahead_is_bounded() -> None:
    world, logs = world_of(20, nodes=3)
    for log in logs:
        fill(log, 50, 1)
    reader = Reader(world, max_partition_fetch_bytes=200, fetch_ahead_max_bytes=1000).open()
    world.run(30.0)
    assert world.fetched_bytes <= 5 * 400
    assert len(reader.read._responses) == 5
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
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            world.move_leader(world.topics["t"][1][partition], 3 - node)
        return code or None

    lost = {(number, offset) for number, log in enumerate(logs) for offset in damage_some(log, data)}
    world.on_fetch = on_fetch
    reader = Reader(world, isolation_level=level, max_partition_fetch_bytes=size, on_error="skip").open(
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


def with_right_crc(data: bytearray) -> bytes:
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def unreadable(kind: str, base: int) -> Batch:
    """A batch of three records whose checksum is right and which cannot be read all the same."""
    codec: Any = "zstd" if kind in ("cut zstd", "bomb") else "none"
    value = bytes(40 << 20) if kind == "bomb" else b"value"
    data = bytearray(
        encode_batch(
            [{"value": value}, {"value": b"b"}, {"value": b"c"}], base_offset=base, compression=codec, timestamp=START
        )
    )
    if kind == "unknown codec":
        data[22] |= 7
    elif kind == "cut zstd":
        del data[-6:]
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
    elif kind == "magic 1":
        data[16] = 1
    return Batch(base, base + 2, with_right_crc(data) if kind != "magic 1" else bytes(data))


@pytest.mark.parametrize("kind", ["unknown codec", "cut zstd", "bomb"])
@pytest.mark.parametrize("size", [100, 10_000_000])
def test_batches_that_cannot_be_read_are_raised_or_skipped(kind: str, size: int) -> None:
    world, (log,) = world_of()
    fill(log, 2)
    log.add(unreadable(kind, 6))
    fill(log, 2)
    limits = kcodec.DecodeLimits(max_decompressed_bytes=1 << 20)
    options: dict[str, Any] = {"max_partition_fetch_bytes": size, "limits": limits}
    reader = Reader(world, **options).open()
    with pytest.raises(DecodeError) as caught:
        reader.all()
    assert reader.rows[0] == log.expected(0, 6)
    assert caught.value.next_offset == 9
    assert Reader(world, **options).open(start=9).all().rows[0] == log.expected(9, log.end)
    skipping = Reader(world, on_error="skip", **options).open().all()
    assert skipping.rows[0] == log.committed
    assert skipping.decoder.counts.skipped_batches == 1


def test_a_batch_that_says_it_is_of_magic_1() -> None:
    """Nothing of it holds but its length: that leads behind it."""
    world, (log,) = world_of()
    fill(log, 2)
    log.add(unreadable("magic 1", 6))
    fill(log, 2)
    reader = Reader(world).open()
    with pytest.raises(DecodeError) as caught:
        reader.all()
    assert reader.rows[0] == log.expected(0, 6)
    assert caught.value.next_offset is not None
    assert 6 < caught.value.next_offset <= 9
    skipping = Reader(world, on_error="skip").open().all()
    assert skipping.rows[0] == log.committed
    assert skipping.decoder.counts.skipped_batches == 1
