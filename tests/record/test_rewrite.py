# SPDX-License-Identifier: Apache-2.0
"""The in-place setters: the bytes are those of Kafka's own, and nothing else of a buffer is touched."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from batch_writer import RecordSpec, build_batch, control_batch, empty_batch, end_transaction_marker, fix_crc
from golden_data import partitions
from java_answers import JudgedRecord, WriterRefused
from java_judge import JavaJudge
from strategies import random_batch

import kcodec
from kcodec.record.rewrite import (
    set_base_offset,
    set_log_append_time,
    set_max_timestamp,
    set_partition_leader_epoch,
    set_producer_state,
)

Setter = Callable[..., None]
INT16_MAX, INT32_MAX, INT64_MAX = (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1
NOW = 1_767_225_600_000
GOOD = build_batch([RecordSpec(key=b"k", value=b"v"), RecordSpec(timestamp_delta=9)], producer_id=7, producer_epoch=1)
CALLS: dict[str, tuple[Setter, tuple[Any, ...]]] = {
    "set_base_offset": (set_base_offset, (512,)),
    "set_partition_leader_epoch": (set_partition_leader_epoch, (3,)),
    "set_max_timestamp": (set_max_timestamp, (NOW,)),
    "set_log_append_time": (set_log_append_time, (NOW,)),
    "set_producer_state": (set_producer_state, (9001, 3, 40, True)),
}
EACH = pytest.mark.parametrize(("setter", "arguments"), CALLS.values(), ids=CALLS)


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def some_batches() -> list[bytes]:
    """Right ones of every kind, from real brokers, another writer, and Kafka's odd corners."""
    rng = random.Random(5)
    found = [random_batch(rng) for _ in range(60)]
    for partition in partitions(magic=2):
        whole = kcodec.batches(partition.log)
        found += [bytes(batch.data) for batch in whole[:: max(1, len(whole) // 3)]]
    found += [end_transaction_marker(1, producer_id=7, base_offset=5), empty_batch(base_offset=8, last_offset_delta=4)]
    found += [control_batch(2, b"x"), build_batch([RecordSpec()], unused_attributes=0x7F80)]
    return found


BATCHES = some_batches()


def changed(setter: Setter, batch: bytes, *arguments: Any, **options: Any) -> bytes:
    buffer = bytearray(batch)
    setter(buffer, *arguments, **options)
    return bytes(buffer)


# --------------------------------------------------------------------------------------------------- as Kafka does it


@pytest.mark.parametrize("offset", [0, 512, 1 << 40])
def test_base_offset_is_written_as_kafka_writes_it(judge: JavaJudge, offset: int) -> None:
    for batch in BATCHES:
        (delta,) = struct.unpack_from(">i", batch, 23)
        assert changed(set_base_offset, batch, offset) == judge.rewritten("setLastOffset", offset + delta, batch)


@pytest.mark.parametrize("epoch", [-1, 0, 3, INT32_MAX])
def test_leader_epoch_is_written_as_kafka_writes_it(judge: JavaJudge, epoch: int) -> None:
    for batch in BATCHES:
        reported = judge.rewritten("setPartitionLeaderEpoch", epoch, batch)
        assert changed(set_partition_leader_epoch, batch, epoch) == reported


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamps_are_written_as_kafka_writes_them(judge: JavaJudge, kind: str) -> None:
    for batch in BATCHES:
        (found,) = struct.unpack_from(">q", batch, 35)
        for timestamp in {NOW, INT64_MAX, -1, 0, max(found, -1)}:
            reported = judge.rewritten(f"setMaxTimestamp {kind}", timestamp, batch)
            assert changed(set_max_timestamp, batch, timestamp, kind) == reported
            if kind == "LogAppendTime" and timestamp >= 0:
                assert changed(set_log_append_time, batch, timestamp) == reported


@pytest.mark.parametrize("codec", range(5))
def test_producer_state_is_written_as_kafka_writes_it(judge: JavaJudge, codec: int) -> None:
    """Kafka writes it when a batch is closed: one closed with a state and changed is one closed with the other."""
    records = [JudgedRecord(offset, NOW + offset, b"k%d" % offset, b"v" * 40, ()) for offset in range(5)]
    states: list[tuple[int, int, int, bool]] = [
        (-1, -1, -1, False),
        (7, 0, 0, False),
        (9001, 3, 40, True),
        (INT64_MAX, INT16_MAX, INT32_MAX, True),
    ]
    names = ("producer_id", "producer_epoch", "base_sequence", "is_transactional")
    written = [judge.batch(records, compression=codec, **dict(zip(names, state, strict=True))) for state in states]  # type: ignore[arg-type]
    for before in written:
        for state, after in zip(states, written, strict=True):
            assert changed(set_producer_state, before, *state) == after


@pytest.mark.parametrize(
    ("state", "field"),
    [
        ((-1, -1, -1, True), "is_transactional"),
        ((7, -1, 0, False), "producer_epoch"),
        ((7, 0, -1, False), "base_sequence"),
        ((7, 0, -1, True), "base_sequence"),
    ],
)
def test_what_kafkas_writer_refuses_is_refused(judge: JavaJudge, state: tuple[int, int, int, bool], field: str) -> None:
    producer_id, producer_epoch, base_sequence, is_transactional = state
    with pytest.raises(WriterRefused, match="IllegalArgumentException"):
        judge.batch(
            [JudgedRecord(0, NOW, None, b"v", ())],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
    buffer = bytearray(GOOD)
    with pytest.raises(kcodec.EncodeError) as caught:
        set_producer_state(buffer, *state)
    assert caught.value.field == field
    assert buffer == GOOD


def test_a_control_batch_needs_no_sequence(judge: JavaJudge) -> None:
    marker = judge.marker(5, 1, producer_id=7, producer_epoch=0)
    reported = judge.marker(5, 1, producer_id=9001, producer_epoch=3)
    assert changed(set_producer_state, marker, 9001, 3, -1, True) == reported


# ------------------------------------------------------------------------------------------- the batch, and no other


@EACH
def test_only_the_batch_at_the_position_changes(setter: Setter, arguments: tuple[Any, ...]) -> None:
    whole = GOOD + GOOD + GOOD[:40]
    for position in (0, len(GOOD)):
        found = changed(setter, whole, *arguments, position=position)
        assert found[position : position + len(GOOD)] == changed(setter, GOOD, *arguments)
        assert found[:position] == whole[:position]
        assert found[position + len(GOOD) :] == whole[position + len(GOOD) :]
        assert found != whole


@EACH
def test_the_records_stay_and_the_checksum_is_right(setter: Setter, arguments: tuple[Any, ...]) -> None:
    for batch in BATCHES[:60]:
        found = kcodec.batches(changed(setter, batch, *arguments))[0]
        found.ensure_valid()
        before = [(record.key, record.value, record.headers) for record in kcodec.batches(batch)[0].records()]
        assert [(record.key, record.value, record.headers) for record in found.records()] == before


def test_what_is_so_already_is_left_alone() -> None:
    """Kafka computes no CRC where nothing changes: a wrong one stays wrong, a bit without meaning stays."""
    odd = build_batch([RecordSpec()], unused_attributes=0x0180, max_timestamp=NOW, timestamp_type=1, crc=1)
    assert changed(set_log_append_time, odd, NOW) == odd
    assert changed(set_log_append_time, odd, NOW + 1) != odd


def test_a_view_into_a_larger_buffer_will_do() -> None:
    buffer = bytearray(b"abc" + GOOD)
    set_base_offset(memoryview(buffer)[3:].cast("b"), 77)
    assert kcodec.batches(buffer[3:])[0].base_offset == 77
    assert buffer[:3] == b"abc"


# ----------------------------------------------------------------------------------------------------------- refusals


@EACH
@pytest.mark.parametrize("buffer", [GOOD, memoryview(GOOD), "text", None, 5], ids=lambda buffer: type(buffer).__name__)
def test_a_buffer_that_cannot_be_written_is_a_type_error(setter: Setter, arguments: Any, buffer: Any) -> None:
    with pytest.raises(TypeError, match=r"writable|bytes-like"):
        setter(buffer, *arguments)


@EACH
def test_a_buffer_that_is_not_contiguous_is_a_type_error(setter: Setter, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="contiguous"):
        setter(memoryview(bytearray(GOOD * 2))[::2], *arguments)


@EACH
def test_a_cut_batch_is_truncated_at_every_length(setter: Setter, arguments: tuple[Any, ...]) -> None:
    for size in range(len(GOOD)):
        buffer = bytearray(b"x" + GOOD[:size]) if size else bytearray(b"x")
        position = 1 if size else 0
        with pytest.raises(kcodec.TruncatedError) as caught:
            setter(buffer, *arguments, position=position)
        assert caught.value.position == position
        assert caught.value.available == len(buffer) - position < caught.value.needed <= len(GOOD)
        assert caught.value.needed == (len(GOOD) if size >= 61 else 61)


@EACH
def test_other_formats_and_corruption_are_refused(setter: Setter, arguments: tuple[Any, ...]) -> None:
    for magic in (0, 1, 3, 255):
        buffer = bytearray(GOOD)
        buffer[16] = magic
        with pytest.raises(kcodec.UnsupportedError, match=f"magic {magic}"):
            setter(buffer, *arguments)
    for length in (-(1 << 31), -1, 0, 48):
        damaged = bytearray(GOOD)
        struct.pack_into(">i", damaged, 8, length)
        before = bytes(damaged)
        with pytest.raises(kcodec.DecodeError, match=f"batch_length {length} is below 49"):
            setter(damaged, *arguments)
        assert damaged == before


def test_an_unknown_compression_is_refused_where_kafka_refuses_it(judge: JavaJudge) -> None:
    odd = fix_crc(build_batch([RecordSpec()], unused_attributes=6))
    with pytest.raises(WriterRefused, match="Unknown compression"):
        judge.rewritten("setMaxTimestamp CreateTime", NOW + 1, odd)
    for setter in (set_max_timestamp, set_log_append_time):
        with pytest.raises(kcodec.UnsupportedError, match="compression id 6"):
            setter(bytearray(odd), NOW + 1)
    assert changed(set_base_offset, odd, 9) == judge.rewritten("setLastOffset", 9, odd)


@pytest.mark.parametrize(
    ("setter", "arguments", "field"),
    [
        (set_base_offset, (-1,), "base_offset"),
        (set_base_offset, (INT64_MAX,), "base_offset"),
        (set_partition_leader_epoch, (-2,), "partition_leader_epoch"),
        (set_partition_leader_epoch, (1 << 31,), "partition_leader_epoch"),
        (set_max_timestamp, (-2,), "max_timestamp"),
        (set_max_timestamp, (1 << 63,), "max_timestamp"),
        (set_log_append_time, (-1,), "timestamp"),
        (set_producer_state, (-2, 0, 0), "producer_id"),
        (set_producer_state, (1 << 63, 0, 0), "producer_id"),
        (set_producer_state, (7, 1 << 15, 0), "producer_epoch"),
        (set_producer_state, (7, 0, 1 << 31), "base_sequence"),
    ],
)
def test_a_value_that_does_not_fit_is_named(setter: Setter, arguments: tuple[Any, ...], field: str) -> None:
    buffer = bytearray(GOOD)
    with pytest.raises(kcodec.EncodeError, match=rf"^{field} -?\d+ is outside ") as caught:
        setter(buffer, *arguments)
    assert caught.value.field == field
    assert caught.value.value in arguments
    assert buffer == GOOD


@EACH
def test_arguments_of_another_type_are_type_errors(setter: Setter, arguments: tuple[Any, ...]) -> None:
    for wrong in ("3", 3.0, None, True):
        with pytest.raises(TypeError, match="must be an int, not"):
            setter(bytearray(GOOD), wrong, *arguments[1:])
        with pytest.raises(TypeError, match="position must be an int, not"):
            setter(bytearray(GOOD), *arguments, position=wrong)
    for position in (-1, len(GOOD), 1 << 70):
        with pytest.raises(ValueError, match="outside the buffer"):
            setter(bytearray(GOOD), *arguments, position=position)
    with pytest.raises(ValueError, match="unknown timestamp_type 'createtime'; possible: CreateTime, LogAppendTime"):
        set_max_timestamp(bytearray(GOOD), 5, "createtime")  # type: ignore[arg-type]
