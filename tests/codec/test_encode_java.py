# SPDX-License-Identifier: Apache-2.0
"""What kcodec writes, before Kafka's own classes: byte for byte their own writer's, read by their readers record by
record, and taken by a leader."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa
import pytest
from encode_rows import (
    ACCEPTING,
    FEWER,
    INT32_MAX,
    INT64_MAX,
    LONG,
    NOW,
    ROWS,
    Row,
    assert_taken,
    dicts_of,
    header_fields,
    judged_of,
    many_rows,
    table_of,
)
from encode_samples import CODECS, CodecName
from hypothesis import given, settings
from hypothesis import strategies as st
from java_answers import JudgedRecord, ProduceSettings, WriterRefused
from java_judge import JavaJudge

import kcodec


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


# ----------------------------------------------------------------------------------------- uncompressed: byte for byte


@FEWER
@given(rows=ROWS, fields=header_fields())
def test_uncompressed_batches_are_kafkas_own(judge: JavaJudge, rows: list[Row], fields: dict[str, Any]) -> None:
    offsets = range(fields["base_offset"], fields["base_offset"] + len(rows))
    reported = judge.batch(judged_of(rows, offsets), **fields)
    assert bytes(kcodec.encode(rows, **fields)) == reported
    assert bytes(kcodec.encode(table_of(rows), **fields)) == reported
    assert kcodec.encode_batch([row._asdict() for row in rows], **fields) == reported
    builder = kcodec.RecordBatchBuilder(**fields)
    for at, row in enumerate(rows):
        assert builder.append(row.key, row.value, row.headers, row.timestamp) == at
    assert builder.size_in_bytes == len(reported)
    assert builder.close() == reported


@FEWER
@given(rows=ROWS, fields=header_fields(), gaps=st.lists(st.integers(0, 1 << 24), min_size=12, max_size=12))
def test_gaps_between_offsets_are_kept_as_kafka_keeps_them(
    judge: JavaJudge, rows: list[Row], fields: dict[str, Any], gaps: list[int]
) -> None:
    offsets = [fields["base_offset"] + at + sum(gaps[: at + 1]) for at in range(len(rows))]
    reported = judge.batch(judged_of(rows, offsets), **fields)
    assert bytes(kcodec.encode(dicts_of(rows, offsets), **fields)) == reported
    assert bytes(kcodec.encode(table_of(rows, offsets), **fields)) == reported
    kept = judge.batch(judged_of(rows, offsets), last_offset=offsets[-1] + 5, **fields)
    assert kcodec.encode_batch(dicts_of(rows, offsets), last_offset=offsets[-1] + 5, **fields) == kept


@FEWER
@given(rows=ROWS, fields=header_fields(), time=st.sampled_from([0, NOW, INT64_MAX]))
def test_log_append_time_is_kafkas_own(judge: JavaJudge, rows: list[Row], fields: dict[str, Any], time: int) -> None:
    offsets = range(fields["base_offset"], fields["base_offset"] + len(rows))
    stamped = [row._replace(timestamp=time) for row in rows]
    reported = judge.batch(judged_of(stamped, offsets), log_append_time=time, **fields)
    options: dict[str, Any] = {"timestamp_type": "LogAppendTime", "timestamp": time, **fields}
    assert bytes(kcodec.encode(rows, **options)) == reported
    assert bytes(kcodec.encode(table_of(rows), **options)) == reported


@FEWER
@given(rows=ROWS, fields=header_fields(), horizon=st.sampled_from([0, NOW, INT64_MAX]))
def test_a_delete_horizon_is_kafkas_own(
    judge: JavaJudge, rows: list[Row], fields: dict[str, Any], horizon: int
) -> None:
    offsets = range(fields["base_offset"], fields["base_offset"] + len(rows))
    reported = judge.batch(judged_of(rows, offsets), delete_horizon_ms=horizon, **fields)
    assert kcodec.encode_batch(rows, delete_horizon_ms=horizon, **fields) == reported
    assert kcodec.encode_batch(table_of(rows), delete_horizon_ms=horizon, **fields) == reported


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int16(), pa.binary())], ids=str)
def test_other_arrow_types_make_the_same_bytes(judge: JavaJudge, kind: pa.DataType) -> None:
    rows = [
        Row(b"k%d" % (at % 3), None if at % 5 == 0 else b"v" * at * 7, (("h", b"x"),), NOW + at) for at in range(40)
    ]
    whole = table_of(rows)
    for name in ("key", "value"):
        column = whole.column(name)
        changed = column.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else column.cast(kind)
        whole = whole.set_column(whole.schema.get_field_index(name), name, changed)
    reported = judge.batch(judged_of(rows, range(40)), partition_leader_epoch=-1)
    assert bytes(kcodec.encode(whole)) == reported
    sliced = judge.batch(judged_of(rows[7:31], range(24)), partition_leader_epoch=-1)
    assert bytes(kcodec.encode(whole.slice(7, 24))) == sliced
    assert bytes(kcodec.encode(pa.concat_tables([whole.slice(7, 9), whole.slice(16, 15)]))) == sliced


# ---------------------------------------------------------------------------------- markers, empty and control batches


@pytest.mark.parametrize("control_type", [0, 1])
@pytest.mark.parametrize("epochs", [(0, 0, 0), (3, 7, 5), ((1 << 15) - 1, INT32_MAX, INT32_MAX)], ids=str)
def test_markers_are_kafkas_own(judge: JavaJudge, control_type: int, epochs: tuple[int, int, int]) -> None:
    producer_epoch, coordinator_epoch, leader_epoch = epochs
    for offset, time in ((0, 0), (512, NOW), (INT64_MAX - 1, INT64_MAX)):
        reported = judge.marker(
            offset,
            control_type,
            producer_id=9001,
            producer_epoch=producer_epoch,
            timestamp=time,
            coordinator_epoch=coordinator_epoch,
            partition_leader_epoch=leader_epoch,
        )
        assert len(reported) == 78
        member = kcodec.ControlType(control_type)
        kinds: tuple[Any, ...] = (control_type, ("ABORT", "COMMIT")[control_type], member)
        for kind in kinds:
            made = kcodec.encode_end_transaction_marker(
                kind,
                producer_id=9001,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                base_offset=offset,
                timestamp=time,
                partition_leader_epoch=leader_epoch,
            )
            assert made == reported


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("is_control_batch", [False, True])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_empty_batches_are_kafkas_own(
    judge: JavaJudge, is_transactional: bool, is_control_batch: bool, kind: Literal["CreateTime", "LogAppendTime"]
) -> None:
    fields: dict[str, Any] = {
        "producer_id": 9001,
        "producer_epoch": 3,
        "base_sequence": -1 if is_control_batch else 40,
        "is_transactional": is_transactional,
        "is_control_batch": is_control_batch,
        "partition_leader_epoch": 7,
    }
    for base_offset, last_offset in ((0, 0), (512, 700), (0, INT32_MAX)):
        for time in (-1, 0, NOW):
            appended = kind == "LogAppendTime"
            reported = judge.emptied_batch(
                base_offset, last_offset, max_timestamp=time, is_log_append_time=appended, **fields
            )
            made = kcodec.encode_batch(
                [], base_offset=base_offset, last_offset=last_offset, max_timestamp=time, timestamp_type=kind, **fields
            )
            assert made == reported


def test_what_the_cleaner_leaves_of_a_batch_is_kafkas_own(judge: JavaJudge) -> None:
    """encode_batch(like=) with the records that stay, or none of them."""
    rows = [Row(b"k%d" % at, b"v%d" % at, (), NOW - at) for at in range(6)]
    producer: dict[str, Any] = {"producer_id": 9001, "producer_epoch": 3, "base_sequence": 40, "is_transactional": True}
    whole = judge.batch(judged_of(rows, range(512, 518)), base_offset=512, **producer)
    batch = kcodec.batches(whole)[0]
    assert kcodec.encode_batch(batch.records(), like=batch) == whole
    reported = judge.emptied_batch(512, 517, max_timestamp=NOW, **producer)
    assert kcodec.encode_batch([], like=batch) == reported
    assert kcodec.encode_batch([], like=kcodec.batches(reported)[0]) == reported


@pytest.mark.parametrize("control_type", [0, 1, 2, 3, 4, 5, 6])
def test_control_batches_are_kafkas_own(judge: JavaJudge, control_type: int) -> None:
    rows = [Row(struct.pack(">hh", 0, control_type), b"\x00\x00\x00\x00\x00\x07", (), NOW)]
    for fields in ({}, {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}):
        reported = judge.batch(judged_of(rows, [9]), base_offset=9, is_control_batch=True, **fields)  # type: ignore[arg-type]
        options: dict[str, Any] = {"base_offset": 9, "partition_leader_epoch": 0, "is_control_batch": True, **fields}
        assert kcodec.encode_batch(rows, **options) == reported


# --------------------------------------------------------------------------------------- read, and taken by a leader


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=500 if LONG else 15)
@given(rows=ROWS, fields=header_fields())
def test_what_is_encoded_is_read_and_taken(
    judge: JavaJudge, codec: CodecName, rows: list[Row], fields: dict[str, Any]
) -> None:
    fields["base_offset"] = 0
    records = judged_of(rows, range(len(rows)))
    assert_taken(judge, bytes(kcodec.encode(rows, compression=codec, **fields)), records)
    assert_taken(judge, bytes(kcodec.encode(table_of(rows), compression=codec, **fields)), records)
    skipping = kcodec.encode(rows, compression=codec, skip_useless_compression=True, **fields)
    assert_taken(judge, bytes(skipping), records)


@pytest.mark.parametrize("codec", CODECS)
def test_many_batches_are_read_in_a_row(judge: JavaJudge, codec: CodecName) -> None:
    """Cut by max_batch_bytes: offsets and sequence numbers go on, the sequence wraps, every batch is taken alone."""
    rows = many_rows(100_000, 400)
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 1, "base_sequence": INT32_MAX - 200}
    encoded = kcodec.encode(table_of(rows), compression=codec, base_offset=1000, max_batch_bytes=9_000, **producer)
    judged = judge.record_set(bytes(encoded))
    assert judged.error is None
    assert judged.valid_bytes == len(encoded)
    assert len(judged.batches) > 10
    assert all(batch.accepted for batch in judged.batches)
    records = [record for batch in judged.batches for record in batch.records]
    assert records == judged_of(rows, range(1000, 1400))
    sequences = [sequence for batch in judged.batches for sequence in batch.sequences]
    assert sequences == [(INT32_MAX - 200 + at) % (1 << 31) for at in range(400)]
    assert encoded.next_sequence == (INT32_MAX - 200 + 400) % (1 << 31)
    for batch in encoded.batches:
        alone = bytearray(batch.data)
        kcodec.set_base_offset(alone, 0)
        assert judge.produced(bytes(alone), ACCEPTING).code == 0


def test_transactions_are_taken_with_their_marker(judge: JavaJudge) -> None:
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 1}
    for codec in CODECS:
        data = bytes(
            kcodec.encode(
                [(b"k", b"v")], timestamp=NOW, compression=codec, base_sequence=0, is_transactional=True, **producer
            )
        )
        assert judge.produced(data, ACCEPTING).code == 0
    marker = kcodec.encode_end_transaction_marker("COMMIT", coordinator_epoch=2, timestamp=NOW, **producer)
    result = judge.produced(marker, ProduceSettings(origin="coordinator", now=NOW))
    assert (result.code, result.error) == (0, None)


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "fields", "named"),
    [
        ({"timestamp": -2}, {}, "timestamp"),
        ({"timestamp": -(1 << 63)}, {}, "timestamp"),
        ({}, {"is_transactional": True}, "producer_id"),
        ({}, {"producer_id": 7, "base_sequence": 0}, "producer_epoch"),
        ({}, {"producer_id": 7, "producer_epoch": 0}, "base_sequence"),
        ({"offset": 4}, {"base_offset": 5}, "offset"),
    ],
)
def test_what_kafkas_writer_refuses_is_refused(
    judge: JavaJudge, change: dict[str, int], fields: dict[str, Any], named: str
) -> None:
    row: dict[str, Any] = {"key": b"k", "value": b"v", "headers": (), "timestamp": NOW, **change}
    if "offset" not in change:  # Kafka's writer does not look at the first offset
        with pytest.raises(WriterRefused, match="IllegalArgumentException"):
            judge.batch([JudgedRecord(0, row["timestamp"], b"k", b"v", ())], **fields)
    for encode in (kcodec.encode, kcodec.encode_batch):
        with pytest.raises(kcodec.EncodeError) as caught:
            encode([row], **fields)
        assert caught.value.field == named


@pytest.mark.parametrize("offsets", [(5, 5), (5, 4), (0, 1 << 31)])
def test_offsets_that_do_not_rise_or_span_too_far(judge: JavaJudge, offsets: tuple[int, int]) -> None:
    rows = [Row(b"k", b"v", (), NOW)] * 2
    if offsets[1] <= offsets[0]:
        with pytest.raises(WriterRefused, match="monotonically"):
            judge.batch(judged_of(rows, offsets))
    with pytest.raises(kcodec.EncodeError) as caught:
        kcodec.encode_batch(dicts_of(rows, offsets))
    assert caught.value.field in ("offset", "batch")
