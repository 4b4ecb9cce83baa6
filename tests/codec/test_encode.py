# SPDX-License-Identifier: Apache-2.0
"""encode(): options, sources, refusals, bytes laid out by hand where it matters."""

from __future__ import annotations

import gc
import gzip
import pickle
import struct
import threading
import zlib
from typing import Any

import lz4.frame
import polars
import pyarrow as pa
import pytest
import reference
import zstandard
from encode_samples import CODECS, ROWS, CodecName, decoded, fields

import kcodec
from kcodec import EncodeError, encode
from kcodec._fast import pool_state

# ------------------------------------------------------------------------------------------------------------- bytes


def test_one_record_is_laid_out_as_the_format_says() -> None:
    data = bytes(
        encode([(b"k", b"v", [("h", None)], 5)], producer_id=9, producer_epoch=2, base_sequence=7, base_offset=3)
    )
    record = bytes([0, 0, 0, 2, ord("k"), 2, ord("v"), 2, 2, ord("h"), 1])
    assert data[61:] == bytes([len(record) << 1]) + record
    head = struct.unpack(">qiibIhiqqqhii", data[:61])
    assert head == (3, len(data) - 12, -1, 2, head[4], 0, 0, 5, 5, 9, 2, 7, 1)
    assert kcodec.batches(data)[0].is_valid()


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_the_rows_back(codec: CodecName) -> None:
    encoded = encode(ROWS, compression=codec)
    assert [fields(record) for record in decoded(encoded)] == ROWS
    assert encoded.records_count == len(ROWS)
    assert str(kcodec.batches(encoded)[0].compression) == codec


@pytest.mark.parametrize("codec", CODECS)
def test_the_slow_reader_reads_the_same(codec: CodecName) -> None:
    data = bytes(encode(ROWS, compression=codec))
    mine = [(record.offset, *fields(record)) for record in decoded(data)]
    headers, _remaining, _needed = reference.walk(data)
    theirs = [record for header in headers for record in reference.read_records(data, header)]
    assert [(r.offset, r.key, r.value, r.timestamp) for r in theirs] == [(m[0], m[1], m[2], m[4]) for m in mine]


def test_framing_is_kafka_s_own() -> None:
    rows = [(None, bytes(range(256)) * 1000, (), 0)]
    plain = bytes(encode(rows))[61:]
    payload = {codec: bytes(encode(rows, compression=codec))[61:] for codec in CODECS}
    assert payload["gzip"][:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    assert gzip.decompress(payload["gzip"]) == plain
    assert payload["lz4"][:7] == bytes.fromhex("04224d18604082")
    assert lz4.frame.decompress(payload["lz4"]) == plain
    blocks, at = [], 7
    while size := int.from_bytes(payload["lz4"][at : at + 4], "little") & 0x7FFFFFFF:
        blocks.append(size)
        at += 4 + size
    assert len(blocks) == -(-len(plain) // 65536)
    assert payload["zstd"][:4] == bytes.fromhex("28b52ffd")
    assert zstandard.frame_content_size(payload["zstd"]) == -1  # not told, as by a stream
    assert payload["snappy"][:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    at, raw = 16, []
    while at < len(payload["snappy"]):
        size = struct.unpack_from(">i", payload["snappy"], at)[0]
        raw.append(payload["snappy"][at + 4 : at + 4 + size])
        at += 4 + size
    import cramjam

    pieces = [bytes(cramjam.snappy.decompress_raw(block)) for block in raw]
    assert b"".join(pieces) == plain
    assert [len(piece) for piece in pieces[:-1]] == [32768] * (len(pieces) - 1)


@pytest.mark.parametrize("seed", range(6))
def test_snappy_compresses_all_kinds_of_bytes(seed: int) -> None:
    import random

    import cramjam

    draw = random.Random(seed)
    for size in [*range(1, 90), 1000, 32767 - 70, 32768, 33000, 70000]:
        letters = draw.choice([2, 4, 30, 256])
        value = bytes(draw.randrange(letters) for _ in range(size))
        stream = bytes(encode([(None, value, (), 0)], compression="snappy"))[61:]
        at, out = 16, b""
        while at < len(stream):
            block = struct.unpack_from(">i", stream, at)[0]
            out += bytes(cramjam.snappy.decompress_raw(stream[at + 4 : at + 4 + block]))
            at += 4 + block
        assert value in out


@pytest.mark.parametrize(
    ("codec", "level"),
    [("gzip", 1), ("gzip", 9), ("gzip", -1), ("lz4", 1), ("lz4", 12), ("lz4", 17), ("zstd", -7), ("zstd", 19)],
)
def test_levels_are_kafka_s_numbers(codec: CodecName, level: int) -> None:
    encoded = encode(ROWS, compression=codec, compression_level=level)
    assert [fields(record) for record in decoded(encoded)] == ROWS


def test_level_nine_of_lz4_is_the_fast_compressor() -> None:
    rows = [(None, zlib.compress(bytes(range(256)) * 40, 0) * 20, (), 0)]
    assert bytes(encode(rows, compression="lz4", compression_level=9)) == bytes(encode(rows, compression="lz4"))


@pytest.mark.parametrize(
    ("codec", "level"), [("none", 1), ("snappy", 1), ("gzip", 0), ("gzip", 10), ("lz4", 0), ("lz4", 18), ("zstd", 23)]
)
def test_a_level_that_the_codec_lacks_is_refused(codec: CodecName, level: int) -> None:
    with pytest.raises(ValueError, match="level"):
        encode(ROWS, compression=codec, compression_level=level)


def test_compression_that_does_not_pay_can_be_left_out() -> None:
    rows = [(None, b"x", (), 0)]
    assert str(encode(rows, compression="gzip").batches[0].compression) == "gzip"
    assert bytes(encode(rows, compression="gzip", skip_useless_compression=True)) == bytes(encode(rows))
    long = [(None, b"x" * 5000, (), 0)]
    assert str(encode(long, compression="gzip", skip_useless_compression=True).batches[0].compression) == "gzip"


# --------------------------------------------------------------------------------------------------- several batches


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_cut_at_the_limit_and_sequences_go_on(codec: CodecName) -> None:
    rows = [(b"%d" % i, b"v" * (i % 50), (), i) for i in range(2000)]
    encoded = encode(
        rows, compression=codec, max_batch_bytes=1000, producer_id=1, producer_epoch=0, base_sequence=(1 << 31) - 100
    )
    assert [fields(record) for record in decoded(encoded)] == rows
    found = encoded.batches
    assert len(found) > 50
    sequence, offset = (1 << 31) - 100, 0
    for batch in found:
        assert batch.base_sequence == sequence and batch.base_offset == offset
        assert batch.records_count is not None
        sequence, offset = (sequence + batch.records_count) % (1 << 31), offset + batch.records_count
        if codec == "none":
            assert batch.size_in_bytes <= 1000
    assert encoded.next_sequence == sequence == 2000 - 100
    assert bytes(encode(pa.table(kcodec.decode(encoded)), compression=codec, max_batch_bytes=1000, producer_id=1,
                        producer_epoch=0, base_sequence=(1 << 31) - 100)) == bytes(encoded)  # fmt: skip


def test_a_record_that_fits_no_batch_is_an_error_that_names_it() -> None:
    with pytest.raises(EncodeError, match=r"row 1: a record of .* exceeds max_batch_bytes 200") as caught:
        encode([(None, b"", (), 0), (None, b"v" * 200, (), 0)], max_batch_bytes=200)
    assert caught.value.field == "record" and caught.value.row == 1
    table = pa.table({"value": [b"", b"v" * 200]})
    with pytest.raises(EncodeError, match="row 1: a record of"):
        encode(table, timestamp=0, max_batch_bytes=200)


def test_an_empty_source_gives_no_batch() -> None:
    sources: tuple[Any, ...] = ([], iter(()), pa.table({"value": pa.array([], pa.binary())}))
    for source in sources:
        encoded = encode(source, timestamp=0)
        assert (len(encoded), encoded.records_count, len(encoded.batches), bytes(encoded)) == (0, 0, 0, b"")


# --------------------------------------------------------------------------------------------------- offsets and times


def test_offsets_of_records_are_kept_with_their_gaps() -> None:
    rows = [{"value": b"%d" % o, "timestamp": 1, "offset": o} for o in (7, 8, 12)]
    encoded = encode(rows)
    assert [record.offset for record in decoded(encoded)] == [7, 8, 12]
    assert (encoded.batches[0].base_offset, encoded.batches[0].last_offset) == (7, 12)
    lower = encode(rows, base_offset=2)
    assert (lower.batches[0].base_offset, [record.offset for record in decoded(lower)]) == (2, [7, 8, 12])


@pytest.mark.parametrize("offsets", [(7, 7), (7, 6), (-1,)])
def test_offsets_that_do_not_rise_are_refused(offsets: tuple[int, ...]) -> None:
    rows = [{"value": b"", "timestamp": 0, "offset": offset} for offset in offsets]
    with pytest.raises(EncodeError) as caught:
        encode(rows)
    assert caught.value.field == "offset" and caught.value.value == offsets[-1]
    with pytest.raises(EncodeError, match="offset"):
        encode(pa.table({"value": [b""] * len(offsets), "offset": pa.array(offsets, pa.int64())}), timestamp=0)


def test_offset_below_base_offset_is_refused() -> None:
    with pytest.raises(EncodeError, match="offset 3 is below base_offset 4"):
        encode([{"value": b"", "timestamp": 0, "offset": 3}], base_offset=4)


def test_timestamps() -> None:
    with pytest.raises(EncodeError, match="row 0: timestamp is missing"):
        encode([(None, b"v")])
    with pytest.raises(EncodeError, match="no column 'timestamp'"):
        encode(pa.table({"value": [b"v"]}))
    with pytest.raises(EncodeError, match="row 0: timestamp -2 is below -1"):
        encode([(None, b"v", (), -2)])
    with pytest.raises(EncodeError, match="row 1: timestamp is null"):
        encode(pa.table({"value": [b"", b""], "timestamp": pa.array([1, None], pa.timestamp("ms"))}))
    filled = encode(pa.table({"value": [b"", b""], "timestamp": pa.array([1, None], pa.timestamp("ms"))}), timestamp=9)
    assert [record.timestamp for record in decoded(filled)] == [1, 9]
    batch = encode([(None, b"", (), 5), (None, b"", (), 90), (None, b"", (), 7)]).batches[0]
    assert (batch.base_timestamp, batch.max_timestamp) == (5, 90)


def test_log_append_time() -> None:
    rows = [(None, b"", (), 5), (None, b"", (), 90)]
    stamped = encode(rows, timestamp=1000, timestamp_type="LogAppendTime")
    assert [(r.timestamp, str(r.timestamp_type)) for r in decoded(stamped)] == [(1000, "LogAppendTime")] * 2
    assert stamped.batches[0].base_timestamp == 1000
    kept = encode(rows, timestamp_type="LogAppendTime")
    assert [record.timestamp for record in decoded(kept)] == [90, 90]


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [("s", 3, 3000), ("ms", 3, 3), ("us", 2999, 2), ("us", -1, -1), ("us", -1000, -1), ("ns", 1_999_999, 1)],
)
def test_arrow_timestamps_of_every_unit(unit: Any, value: int, expected: int) -> None:
    table = pa.table({"value": [b""], "timestamp": pa.array([value], pa.timestamp(unit, "UTC"))})
    assert decoded(encode(table))[0].timestamp == expected


def test_arrow_seconds_that_do_not_fit_are_refused() -> None:
    table = pa.table({"value": [b""], "timestamp": pa.array([1 << 60], pa.timestamp("s"))})
    with pytest.raises(EncodeError, match="timestamp"):
        encode(table)


# ------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"is_transactional": True}, "producer_id"),
        ({"producer_id": 1}, "producer_epoch"),
        ({"producer_id": 1, "producer_epoch": 0}, "base_sequence"),
        ({"producer_id": -2}, "producer_id"),
        ({"producer_epoch": 1 << 15}, "producer_epoch"),
        ({"base_sequence": 1 << 31}, "base_sequence"),
        ({"base_offset": -1}, "base_offset"),
        ({"partition_leader_epoch": -2}, "partition_leader_epoch"),
        ({"timestamp": -2}, "timestamp"),
        ({"producer_id": True}, "producer_id"),
    ],
)
def test_fields_that_no_batch_can_have(options: dict[str, Any], field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(ROWS, **options)
    assert caught.value.field == field and caught.value.row is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compression": "lz5"}, "did you mean 'lz4'"),
        ({"timestamp_type": "AppendTime"}, "did you mean 'LogAppendTime'"),
        ({"timestamp_type": -1}, "magic 0"),
        ({"max_batch_bytes": 60}, "max_batch_bytes must be between 61"),
        ({"framing": "confluence"}, "did you mean 'confluent'"),
    ],
)
def test_options_that_do_not_exist(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encode(ROWS, **options)


def test_options_take_enum_name_and_number() -> None:
    expected = bytes(encode(ROWS, compression="zstd"))
    assert bytes(encode(ROWS, compression=kcodec.Compression.ZSTD)) == expected == bytes(encode(ROWS, compression=4))


# -------------------------------------------------------------------------------------------------------------- result


def test_the_result_is_bytes_and_a_value() -> None:
    encoded = encode(ROWS)
    assert memoryview(encoded).readonly and len(encoded) == memoryview(encoded).nbytes
    assert encoded == bytes(encoded) and encoded != b"" and encoded == encode(ROWS)
    again = pickle.loads(pickle.dumps(encoded))
    assert again == encoded and again.records_count == encoded.records_count
    assert "1 batches, 4 records" in repr(encoded)
    with pytest.raises(TypeError):
        hash(encoded)
    view = memoryview(encoded)
    del encoded
    gc.collect()
    assert kcodec.decode(view).counts.records == 4


def test_memory_goes_back_to_the_pool() -> None:
    for codec in CODECS:
        encode(ROWS, compression=codec)
        with pytest.raises(EncodeError):
            encode([*ROWS, (None, None, (), -5)], compression=codec)
    gc.collect()
    before = pool_state()[2]
    for codec in CODECS:
        for source in (ROWS, pa.table({"value": [b"v" * 100] * 50, "timestamp": pa.array([0] * 50)})):
            encode(source, compression=codec)
        with pytest.raises(EncodeError):
            encode([*ROWS, (None, None, (), -5)], compression=codec)
    gc.collect()
    assert pool_state()[2] == before


def test_threads_encode_side_by_side() -> None:
    rows = [(b"%d" % i, b"value %d" % i * 20, (), i) for i in range(3000)]
    expected = {codec: bytes(encode(rows, compression=codec)) for codec in CODECS}
    wrong: list[str] = []

    def work() -> None:
        for codec in CODECS * 3:
            if bytes(encode(rows, compression=codec)) != expected[codec]:
                wrong.append(codec)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ------------------------------------------------------------------------------------------------------ large offsets

INT64_MAX = (1 << 63) - 1


@pytest.mark.parametrize("distance", [(1 << 31) - 1, 1 << 31, 3_000_000_000, 1 << 40])
def test_a_gap_that_no_batch_can_span_begins_a_new_batch(distance: int) -> None:
    offsets = [5, 5 + distance, 6 + distance]
    rows = [{"value": b"v", "offset": offset, "timestamp": 0} for offset in offsets]
    producer: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    for source in (rows, pa.Table.from_pylist(rows)):
        encoded = encode(source, **producer)
        assert [record.offset for record in decoded(encoded)] == offsets
        expected = [5, 6 + distance] if distance < 1 << 31 else [5, 5 + distance]
        assert [batch.base_offset for batch in encoded.batches] == expected
        with pytest.raises(EncodeError, match="too far from base_offset 5: a batch spans at most"):
            kcodec.encode_batch(source)
    with pytest.raises(EncodeError, match=r"row 0: offset .* is too far from base_offset 0"):
        encode([{"value": b"v", "offset": 1 << 31, "timestamp": 0}], base_offset=0)


def test_the_error_for_a_too_large_offset_names_its_row() -> None:
    """Also for many rows of Arrow data, whose offsets are not computed one by one."""
    table = pa.table({"key": [b"a"] * 600, "timestamp": [1] * 600})
    base_offset = INT64_MAX - 99
    for source in (table, table.slice(1), [(b"a", None, (), 1)] * 600):
        with pytest.raises(EncodeError, match=f"row 99: offset {INT64_MAX} is outside 0 to {INT64_MAX - 1}"):
            encode(source, base_offset=base_offset)
    assert decoded(encode(table.slice(0, 99), base_offset=base_offset))[-1].offset == INT64_MAX - 1


def test_a_last_offset_above_the_largest_one_is_refused() -> None:
    (batch,) = kcodec.batches(encode([(None, b"v", (), 0)] * 10))
    with pytest.raises(EncodeError, match=f"base_offset {INT64_MAX - 1} is too large: the last offset .* 9 above it"):
        kcodec.encode_batch([(None, b"v", (), 0)], like=batch, base_offset=INT64_MAX - 1)


def test_a_lazy_frame_is_refused() -> None:
    frame = polars.LazyFrame({"value": ["a"]})
    with pytest.raises(TypeError, match=r"source must not be a LazyFrame, .*: pass the result of its collect\(\)"):
        encode(frame, timestamp=0)  # type: ignore[arg-type]
    assert encode(frame.collect(), timestamp=0).records_count == 1
