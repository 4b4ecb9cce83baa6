# SPDX-License-Identifier: Apache-2.0
"""What kcodec writes, before Kafka's own classes: byte for byte their own writer's, read by their readers record by
record, and taken by a leader."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cramjam
import lz4.block
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from java_answers import JudgedRecord, ProduceSettings, WriterRefused
from java_judge import JavaJudge

import kcodec

LONG = os.environ.get("KCODEC_PROFILE") == "long"
NOW = 1_767_225_600_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LEVELS = {"gzip": (-1, *range(1, 10)), "lz4": tuple(range(1, 18)), "zstd": (-131072, -5, -1, 1, 3, 9, 19, 22)}
FEWER = settings(max_examples=500 if LONG else 50)  # each asks the Java program several times
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
HEADER = 61
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


class Row(NamedTuple):
    """A record before it has an offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


# ------------------------------------------------------------------------------------------------------------- inputs

BYTES = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=70).map(lambda piece: piece * 4)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TIMES = st.integers(NOW - 100, NOW + 100) | st.sampled_from([-1, 0, 1, INT64_MAX, NOW - (1 << 40)])
HEADERS = st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=80)), max_size=3).map(tuple)
ROWS = st.lists(st.builds(Row, BYTES, BYTES, HEADERS, TIMES), min_size=1, max_size=12)


@st.composite
def header_fields(draw: st.DrawFn) -> dict[str, Any]:
    """What a batch says besides its records; such that Kafka's writer takes it."""
    fields: dict[str, Any] = {"base_offset": draw(st.sampled_from([0, 1, 127, 1 << 40, INT64_MAX - (1 << 32)]))}
    fields["partition_leader_epoch"] = draw(st.sampled_from([-1, 0, 7, INT32_MAX]))
    if draw(st.booleans()):
        fields["producer_id"] = draw(st.sampled_from([0, 9001, INT64_MAX]))
        fields["producer_epoch"] = draw(st.sampled_from([0, 3, (1 << 15) - 1]))
        fields["base_sequence"] = draw(st.sampled_from([0, 40, INT32_MAX - 3, INT32_MAX]))
        fields["is_transactional"] = draw(st.booleans())
    return fields


def table_of(rows: Sequence[Row], offsets: Sequence[int] | None = None, kind: pa.DataType | None = None) -> pa.Table:
    """The rows as Arrow columns."""
    kind = kind or pa.binary()
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.array([row.key for row in rows], kind),
        "value": pa.array([row.value for row in rows], kind),
        "headers": pa.array([[{"key": n, "value": v} for n, v in row.headers] for row in rows], header),
        "timestamp": pa.array([row.timestamp for row in rows], pa.int64()).cast(pa.timestamp("ms", "UTC")),
    }
    if offsets is not None:
        columns["offset"] = pa.array(offsets, pa.int64())
    return pa.table(columns)


def judged_of(rows: Sequence[Row], offsets: Sequence[int]) -> list[JudgedRecord]:
    return [
        JudgedRecord(offset, row.timestamp, row.key, row.value, row.headers)
        for row, offset in zip(rows, offsets, strict=True)
    ]


def dicts_of(rows: Sequence[Row], offsets: Sequence[int]) -> list[dict[str, Any]]:
    return [{**row._asdict(), "offset": offset} for row, offset in zip(rows, offsets, strict=True)]


def many_rows(size: int, count: int = 300) -> list[Row]:
    """Some `size` bytes of values: half of them repeat themselves, half do not."""
    rng = random.Random(size)
    piece = size // count
    return [
        Row(b"key-%d" % at, rng.randbytes(piece) if at % 2 else b"%010d" % at * (piece // 10), (), NOW + at)
        for at in range(count)
    ]


# ----------------------------------------------------------------------------------------- uncompressed: byte for byte


@FEWER
@given(rows=ROWS, fields=header_fields())
def test_uncompressed_batches_are_kafkas_own(judge: JavaJudge, rows: list[Row], fields: dict[str, Any]) -> None:
    offsets = range(fields["base_offset"], fields["base_offset"] + len(rows))
    told = judge.batch(judged_of(rows, offsets), **fields)
    assert bytes(kcodec.encode(rows, **fields)) == told
    assert bytes(kcodec.encode(table_of(rows), **fields)) == told
    assert kcodec.encode_batch([row._asdict() for row in rows], **fields) == told
    builder = kcodec.RecordBatchBuilder(**fields)
    for at, row in enumerate(rows):
        assert builder.append(row.key, row.value, row.headers, row.timestamp) == at
    assert builder.size_in_bytes == len(told)
    assert builder.close() == told


@FEWER
@given(rows=ROWS, fields=header_fields(), gaps=st.lists(st.integers(0, 1 << 24), min_size=12, max_size=12))
def test_gaps_between_offsets_are_kept_as_kafka_keeps_them(
    judge: JavaJudge, rows: list[Row], fields: dict[str, Any], gaps: list[int]
) -> None:
    offsets = [fields["base_offset"] + at + sum(gaps[: at + 1]) for at in range(len(rows))]
    told = judge.batch(judged_of(rows, offsets), **fields)
    assert bytes(kcodec.encode(dicts_of(rows, offsets), **fields)) == told
    assert bytes(kcodec.encode(table_of(rows, offsets), **fields)) == told
    kept = judge.batch(judged_of(rows, offsets), last_offset=offsets[-1] + 5, **fields)
    assert kcodec.encode_batch(dicts_of(rows, offsets), last_offset=offsets[-1] + 5, **fields) == kept


@FEWER
@given(rows=ROWS, fields=header_fields(), time=st.sampled_from([0, NOW, INT64_MAX]))
def test_log_append_time_is_kafkas_own(judge: JavaJudge, rows: list[Row], fields: dict[str, Any], time: int) -> None:
    offsets = range(fields["base_offset"], fields["base_offset"] + len(rows))
    stamped = [row._replace(timestamp=time) for row in rows]
    told = judge.batch(judged_of(stamped, offsets), log_append_time=time, **fields)
    options: dict[str, Any] = {"timestamp_type": "LogAppendTime", "timestamp": time, **fields}
    assert bytes(kcodec.encode(rows, **options)) == told
    assert bytes(kcodec.encode(table_of(rows), **options)) == told


@FEWER
@given(rows=ROWS, fields=header_fields(), horizon=st.sampled_from([0, NOW, INT64_MAX]))
def test_a_delete_horizon_is_kafkas_own(
    judge: JavaJudge, rows: list[Row], fields: dict[str, Any], horizon: int
) -> None:
    offsets = range(fields["base_offset"], fields["base_offset"] + len(rows))
    told = judge.batch(judged_of(rows, offsets), delete_horizon_ms=horizon, **fields)
    assert kcodec.encode_batch(rows, delete_horizon_ms=horizon, **fields) == told
    assert kcodec.encode_batch(table_of(rows), delete_horizon_ms=horizon, **fields) == told


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
    told = judge.batch(judged_of(rows, range(40)), partition_leader_epoch=-1)
    assert bytes(kcodec.encode(whole)) == told
    sliced = judge.batch(judged_of(rows[7:31], range(24)), partition_leader_epoch=-1)
    assert bytes(kcodec.encode(whole.slice(7, 24))) == sliced
    assert bytes(kcodec.encode(pa.concat_tables([whole.slice(7, 9), whole.slice(16, 15)]))) == sliced


# ---------------------------------------------------------------------------------- markers, empty and control batches


@pytest.mark.parametrize("control_type", [0, 1])
@pytest.mark.parametrize("epochs", [(0, 0, 0), (3, 7, 5), ((1 << 15) - 1, INT32_MAX, INT32_MAX)], ids=str)
def test_markers_are_kafkas_own(judge: JavaJudge, control_type: int, epochs: tuple[int, int, int]) -> None:
    producer_epoch, coordinator_epoch, leader_epoch = epochs
    for offset, time in ((0, 0), (512, NOW), (INT64_MAX - 1, INT64_MAX)):
        told = judge.marker(
            offset,
            control_type,
            producer_id=9001,
            producer_epoch=producer_epoch,
            timestamp=time,
            coordinator_epoch=coordinator_epoch,
            partition_leader_epoch=leader_epoch,
        )
        assert len(told) == 78
        for kind in (control_type, ("ABORT", "COMMIT")[control_type], kcodec.ControlType(control_type)):
            made = kcodec.encode_end_transaction_marker(
                kind,
                producer_id=9001,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                base_offset=offset,
                timestamp=time,
                partition_leader_epoch=leader_epoch,
            )
            assert made == told


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("is_control_batch", [False, True])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_empty_batches_are_kafkas_own(
    judge: JavaJudge, is_transactional: bool, is_control_batch: bool, kind: str
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
            told = judge.emptied_batch(
                base_offset, last_offset, max_timestamp=time, is_log_append_time=appended, **fields
            )
            made = kcodec.encode_batch(
                [], base_offset=base_offset, last_offset=last_offset, max_timestamp=time, timestamp_type=kind, **fields
            )
            assert made == told


def test_what_the_cleaner_leaves_of_a_batch_is_kafkas_own(judge: JavaJudge) -> None:
    """encode_batch(like=) with the records that stay, or none of them."""
    rows = [Row(b"k%d" % at, b"v%d" % at, (), NOW - at) for at in range(6)]
    producer: dict[str, Any] = {"producer_id": 9001, "producer_epoch": 3, "base_sequence": 40, "is_transactional": True}
    whole = judge.batch(judged_of(rows, range(512, 518)), base_offset=512, **producer)
    batch = kcodec.batches(whole)[0]
    assert kcodec.encode_batch(batch.records(), like=batch) == whole
    told = judge.emptied_batch(512, 517, max_timestamp=NOW, **producer)
    assert kcodec.encode_batch([], like=batch) == told
    assert kcodec.encode_batch([], like=kcodec.batches(told)[0]) == told


@pytest.mark.parametrize("control_type", [0, 1, 2, 3, 4, 5, 6])
def test_control_batches_are_kafkas_own(judge: JavaJudge, control_type: int) -> None:
    rows = [Row(struct.pack(">hh", 0, control_type), b"\x00\x00\x00\x00\x00\x07", (), NOW)]
    for fields in ({}, {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}):
        told = judge.batch(judged_of(rows, [9]), base_offset=9, is_control_batch=True, **fields)  # type: ignore[arg-type]
        options: dict[str, Any] = {"base_offset": 9, "partition_leader_epoch": 0, "is_control_batch": True, **fields}
        assert kcodec.encode_batch(rows, **options) == told


# -------------------------------------------------------------------------------------------- compressed: the framing


def xerial_blocks(stream: bytes) -> list[bytes]:
    """The blocks of a xerial stream, decompressed."""
    assert stream.startswith(XERIAL_HEADER)
    blocks, at = [], len(XERIAL_HEADER)
    while at < len(stream):
        (size,) = struct.unpack_from(">i", stream, at)
        blocks.append(bytes(cramjam.snappy.decompress_raw(stream[at + 4 : at + 4 + size])))
        at += 4 + size
    assert at == len(stream)
    return blocks


def lz4_blocks(stream: bytes) -> list[bytes]:
    """The blocks of a frame as Kafka writes one, decompressed: independent, nothing but an end mark behind."""
    assert stream.startswith(b"\x04\x22\x4d\x18\x60\x40\x82")
    blocks, at = [], 7
    while True:
        (word,) = struct.unpack_from("<I", stream, at)
        at += 4
        if word == 0:
            break
        piece = stream[at : at + (word & 0x7FFFFFFF)]
        blocks.append(piece if word >> 31 else lz4.block.decompress(piece, uncompressed_size=65536))
        at += len(piece)
    assert at == len(stream)
    return blocks


def zstd_blocks(stream: bytes) -> list[bytes]:
    """The one frame, decompressed: it says neither its content's size nor a checksum, and nothing lies behind it."""
    parameters = zstandard.get_frame_parameters(stream)
    assert stream[4] & 0xE4 == 0
    assert (parameters.content_size, parameters.has_checksum) == (zstandard.CONTENTSIZE_UNKNOWN, False)
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    plain = decompressor.decompress(stream)
    assert decompressor.eof
    assert decompressor.unused_data == b""
    return [plain]


def gzip_blocks(stream: bytes) -> list[bytes]:
    """The one member, decompressed: no time, no flags, no system."""
    assert stream[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    decompressor = zlib.decompressobj(31)
    plain = decompressor.decompress(stream)
    assert decompressor.eof
    assert decompressor.unused_data == b""
    return [plain]


BLOCKS = {"gzip": gzip_blocks, "snappy": xerial_blocks, "lz4": lz4_blocks, "zstd": zstd_blocks}


def assert_framed_alike(codec: str, told: bytes, made: bytes, plain: bytes) -> None:
    """Same header but for what follows from the compressed bytes; same framing, block by block; same records."""
    assert made[:8] == told[:8]
    assert made[12:17] == told[12:17]
    assert made[21:HEADER] == told[21:HEADER]
    assert struct.unpack_from(">i", made, 8)[0] == len(made) - 12
    blocks = BLOCKS[codec](made[HEADER:])
    assert blocks == BLOCKS[codec](told[HEADER:])
    assert b"".join(blocks) == plain[HEADER:]


@pytest.mark.parametrize("codec", CODECS[1:])
@FEWER
@given(rows=ROWS, fields=header_fields())
def test_compressed_batches_are_framed_as_kafka_frames_them(
    judge: JavaJudge, codec: str, rows: list[Row], fields: dict[str, Any]
) -> None:
    offsets = range(fields["base_offset"], fields["base_offset"] + len(rows))
    plain = judge.batch(judged_of(rows, offsets), **fields)
    told = judge.batch(judged_of(rows, offsets), compression=CODECS.index(codec), **fields)
    for source in (rows, table_of(rows)):
        assert_framed_alike(codec, told, bytes(kcodec.encode(source, compression=codec, **fields)), plain)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("size", [32_700, 65_500, 200_000, 700_000])
def test_large_batches_are_cut_into_blocks_as_kafka_cuts_them(judge: JavaJudge, codec: str, size: int) -> None:
    rows = many_rows(size)
    judged = judged_of(rows, range(len(rows)))
    plain = judge.batch(judged, partition_leader_epoch=-1)
    told = judge.batch(judged, compression=CODECS.index(codec), partition_leader_epoch=-1)
    made = bytes(kcodec.encode(table_of(rows), compression=codec))
    assert_framed_alike(codec, told, made, plain)
    assert len(made) < len(told) * 1.1 + 100


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
@pytest.mark.parametrize("left", [-1, 0, 1])
def test_blocks_end_where_kafkas_end(judge: JavaJudge, codec: str, left: int) -> None:
    """Records of exactly one and two blocks, a byte less, a byte more."""
    size = {"snappy": 32 << 10, "lz4": 64 << 10}[codec]
    for blocks in (1, 2):
        rows = [Row(None, b"x" * (blocks * size - 12 + left), (), NOW)]
        length = len(kcodec.encode(rows)) - HEADER
        rows = [Row(None, b"x" * (blocks * size - 12 + left + blocks * size + left - length), (), NOW)]
        plain = judge.batch(judged_of(rows, [0]), partition_leader_epoch=-1)
        assert len(plain) - HEADER == blocks * size + left
        told = judge.batch(judged_of(rows, [0]), compression=CODECS.index(codec), partition_leader_epoch=-1)
        assert_framed_alike(codec, told, bytes(kcodec.encode(rows, compression=codec)), plain)


@pytest.mark.parametrize(("codec", "level"), [(codec, level) for codec, levels in LEVELS.items() for level in levels])
def test_every_level_is_read_and_framed_as_kafkas(judge: JavaJudge, codec: str, level: int) -> None:
    rows = many_rows(150_000, 100)
    judged = judged_of(rows, range(len(rows)))
    plain = judge.batch(judged, partition_leader_epoch=-1)
    told = judge.batch(judged, compression=CODECS.index(codec), level=level, partition_leader_epoch=-1)
    made = bytes(kcodec.encode(table_of(rows), compression=codec, compression_level=level))
    assert_framed_alike(codec, told, made, plain)
    assert len(made) < len(told) * 1.03
    assert_taken(judge, made, judged)


# --------------------------------------------------------------------------------------- read, and taken by a leader


def assert_taken(judge: JavaJudge, data: bytes, records: Sequence[JudgedRecord]) -> None:
    """Kafka reads these records out of the one batch, and a leader appends it."""
    (batch,) = judge.record_set(data).batches
    assert batch.accepted
    assert list(batch.records) == list(records)
    for verdict in (judge.validated(data, ACCEPTING), judge.produced(data, ACCEPTING)):
        assert (verdict.code, verdict.error) == (0, None)


ACCEPTING = ProduceSettings(now=NOW, after_max_ms=INT64_MAX, max_message_bytes=INT32_MAX)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=500 if LONG else 15)
@given(rows=ROWS, fields=header_fields())
def test_what_is_encoded_is_read_and_taken(
    judge: JavaJudge, codec: str, rows: list[Row], fields: dict[str, Any]
) -> None:
    fields["base_offset"] = 0
    records = judged_of(rows, range(len(rows)))
    assert_taken(judge, bytes(kcodec.encode(rows, compression=codec, **fields)), records)
    assert_taken(judge, bytes(kcodec.encode(table_of(rows), compression=codec, **fields)), records)
    skipping = kcodec.encode(rows, compression=codec, skip_useless_compression=True, **fields)
    assert_taken(judge, bytes(skipping), records)


@pytest.mark.parametrize("codec", CODECS)
def test_many_batches_are_read_in_a_row(judge: JavaJudge, codec: str) -> None:
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
    verdict = judge.produced(marker, ProduceSettings(origin="coordinator", now=NOW))
    assert (verdict.code, verdict.error) == (0, None)


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
