# SPDX-License-Identifier: Apache-2.0
"""Small bytes that become large: memory and time stay bounded, refused or accepted, at limits of 16 and 128 MiB.

The bound of a fresh process, interpreter included, beyond the input: 10 x max_decompressed_bytes + 64 MB, because a
record of seven bytes becomes 67 of columns where all of them are views; 2 x + 64 MB where codec, size, compressed
stream or CRC are at fault.
"""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bombs
import pyarrow as pa
import pytest
from batch_writer import FLAVOURS, RecordSpec, build_batch, build_record, compress
from bombs import BOMBS, batch_of, bomb

import kcodec
import kcodec.text
from kcodec import DecodeLimits, LimitExceededError, _fast

MIB = 1 << 20
GIB = 1 << 30
TESTS = Path(__file__).resolve().parent.parent
COMPRESSED = [codec for codec in FLAVOURS if codec != "none"]


def decode_in_a_fresh_process(data: bytes, limit: int, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    path = folder / "batch"
    path.write_bytes(data)
    command = [sys.executable, str(TESTS / "support" / "bombs.py"), str(path), str(limit), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def assert_bounded(data: bytes, limit: int, folder: Path, error: str | None, factor: int, **options: Any) -> None:
    """The whole process, interpreter included, beyond the input: factor x limit + 64 MB; the time is the CPU's."""
    measured = decode_in_a_fresh_process(data, limit, folder, options)
    assert measured["error"] == error
    assert measured["peak"] - len(data) <= factor * limit + 64_000_000
    assert measured["seconds"] < 20


LIMITS = [pytest.param(16 * MIB, id="16MiB"), pytest.param(128 * MIB, id="128MiB")]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_of_a_gibibyte(name: str, limit: int, tmp_path: Path) -> None:
    error = "DecodeError" if name == "zstd-declared-small" else "LimitExceededError"
    assert_bounded(bomb(name, GIB), limit, tmp_path, error, factor=2)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", ["zstd", "zstd-declared", "gzip", "lz4", "snappy"])
def test_a_bomb_says_which_limit_and_leaves_what_came_before(name: str, limit: int) -> None:
    before = build_batch([RecordSpec(value=b"before")])
    with pytest.raises(LimitExceededError) as raised:
        kcodec.decode(before + bomb(name, GIB), limits=DecodeLimits(max_decompressed_bytes=limit))
    error = raised.value
    assert (error.limit, error.value, error.position) == ("max_decompressed_bytes", limit, len(before))
    assert error.claimed > limit
    assert error.decoded is not None
    assert list(error.decoded.column("value")) == [b"before"]


def test_what_just_fits_is_no_bomb(tmp_path: Path) -> None:
    """The limit itself is allowed, one byte more is not."""
    record = build_record(RecordSpec(value=bytes(MIB)), 0)
    for codec in COMPRESSED:
        data = batch_of(compress(codec, record), 1, codec)
        assert len(kcodec.decode(data, limits=DecodeLimits(max_decompressed_bytes=len(record)))) == 1
        with pytest.raises(LimitExceededError):
            kcodec.decode(data, limits=DecodeLimits(max_decompressed_bytes=len(record) - 1))


def damaged_at_its_end(codec: str, size: int) -> bytes:
    """A stream that makes `size` zeros and is wrong in its last bytes."""
    stream = BOMBS[codec][1](size)
    wrong = {"gzip": stream[:-8] + b"\x00\x00\x00\x01" + stream[-4:], "lz4": stream[:-4], "snappy": stream[:-1]}
    return batch_of(wrong.get(codec, stream[:-1]), 1, codec)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("codec", COMPRESSED)
def test_memory_of_a_stream_that_proves_corrupt_at_its_end(codec: str, limit: int, tmp_path: Path) -> None:
    assert_bounded(damaged_at_its_end(codec, limit), limit, tmp_path, "DecodeError", factor=2)


@pytest.mark.parametrize("limit", LIMITS)
def test_memory_of_large_batches_with_a_wrong_crc_or_codec(limit: int, tmp_path: Path) -> None:
    right = batch_of(bytes(limit - 100), 1)
    assert_bounded(right[:17] + b"none" + right[21:], limit, tmp_path, "CorruptBatchError", factor=2)
    unknown = batch_of(bytes(limit - 100), 1, "none")
    unknown = with_attributes(unknown, 7)
    assert_bounded(unknown, limit, tmp_path, "UnsupportedError", factor=2)


def with_attributes(data: bytes, attributes: int) -> bytes:
    import crc32c

    covered = struct.pack(">h", attributes) + data[23:]
    return data[:17] + struct.pack(">I", crc32c.crc32c(covered)) + covered


LARGER_THAN_THEY_ARE: dict[str, Callable[[int, bool], bytes]] = {
    "headers": bombs.many_headers,
    "headers-plain": lambda size, is_right: bombs.many_headers(size - 64, is_right, codec="none"),
    "records-plain": lambda size, is_right: bombs.many_records(size - 64, is_right),
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("name", LARGER_THAN_THEY_ARE)
def test_memory_of_records_whose_columns_are_larger(name: str, is_right: bool, limit: int, tmp_path: Path) -> None:
    data = LARGER_THAN_THEY_ARE[name](limit - 1, is_right)
    assert_bounded(data, limit, tmp_path, None if is_right else "DecodeError", factor=10)


@pytest.mark.parametrize("is_right", [True, False])
def test_memory_of_many_small_compressed_records(is_right: bool, tmp_path: Path) -> None:
    limit = 4 * MIB
    data = bombs.many_compressed_records(limit - 1, is_right)
    assert_bounded(data, limit, tmp_path, None if is_right else "DecodeError", factor=10)


ALL_COLUMNS = (*kcodec.COLUMNS, *_fast.FRAMING_COLUMNS)
LAYOUTS = ["binary", "large_binary", "binary_view"]
SMALL_LIMIT = 8 * MIB


@pytest.mark.parametrize("topic_length", [1, 64, 249])
@pytest.mark.parametrize("binary_type", LAYOUTS)
@pytest.mark.parametrize("codec", FLAVOURS)
def test_memory_of_all_columns(codec: str, binary_type: str, topic_length: int, tmp_path: Path) -> None:
    """What a consumer decodes to: the topic does not cost its length a row, nor do other columns of one value."""
    data = bombs.many_compressed_records(SMALL_LIMIT - 1, codec=codec)
    options = {"binary_type": binary_type, "topic": "t" * topic_length, "partition": 0, "start_offset": 0}
    options |= {"columns": ALL_COLUMNS, "framing": "confluent"}
    assert_bounded(data, SMALL_LIMIT, tmp_path, None, 10, **options)
    assert_bounded(data, SMALL_LIMIT, tmp_path, None, 10, **{**options, "columns": ["topic", "value"], "framing": None})


@pytest.mark.parametrize("binary_type", LAYOUTS)
def test_memory_of_the_smallest_records_in_all_columns(binary_type: str, tmp_path: Path) -> None:
    """Seven bytes each, which only a batch without compression can have throughout."""
    limit = 16 * MIB
    options = {"columns": [name for name in ALL_COLUMNS if name not in {"topic", "partition"}], "framing": "confluent"}
    assert_bounded(bombs.many_records(limit - 64), limit, tmp_path, None, 10, binary_type=binary_type, **options)
    assert_bounded(bombs.many_headers(limit - 1), limit, tmp_path, None, 10, binary_type=binary_type, **options)


def test_columns_of_one_value_hold_it_in_every_row() -> None:
    """A batch of more records than there is memory for constants: exported in parts, read as one."""
    count = 300_000
    data = build_batch([RecordSpec(value=b"v")] * count, producer_id=7, producer_epoch=3, base_sequence=0)
    decoded = _fast.decode_fetch(data, topic="t" * 200, partition=5, start_offset=0, columns=kcodec.COLUMNS)
    table = pa.table(decoded)
    table.validate(full=True)
    assert [len(part) for part in decoded.chunks] == [batch.num_rows for batch in table.to_batches()]
    assert len(decoded.chunks) > 1
    expected: dict[str, Any] = {"topic": "t" * 200, "partition": 5, "producer_id": 7, "producer_epoch": 3}
    expected |= {"base_offset": 0, "partition_leader_epoch": 0, "timestamp_type": 0, "is_control": False}
    for name, value in expected.items():
        assert table[name].unique().to_pylist() == [value], name
        assert set(decoded.column(name)) == {value}
    assert table["offset"].to_pylist() == list(range(count))
    assert decoded.to_numpy("producer_id").tolist() == [7] * count
    assert decoded.to_numpy("offset")[-1] == count - 1
    again = pickle.loads(pickle.dumps(decoded))
    assert pa.table(again).equals(table)
    assert [record.offset for record in decoded.records()][-3:] == [count - 3, count - 2, count - 1]
    lines = kcodec.text.json_lines(["producer_id", "partition", "offset"], partition=5)
    assert bytes(lines.format(decoded)).splitlines()[-1] == b'{"producer_id":7,"partition":5,"offset":299999}'


def test_a_large_batch_between_others_keeps_its_own_values() -> None:
    """It has a chunk to itself; batches before and after it have their own producers."""
    sizes = (10, 280_000, 20)
    data, offset = b"", 0
    for producer, size in enumerate(sizes):
        fields: dict[str, Any] = {
            "producer_id": producer,
            "producer_epoch": 0,
            "base_sequence": 0,
            "base_offset": offset,
        }
        data += build_batch([RecordSpec(value=b"v")] * size, **fields)
        offset += size
    for threads in (1, 2):
        decoded = kcodec.decode(data, columns=("offset", "producer_id", "base_offset"), threads=threads)
        table = pa.table(decoded)
        assert table["offset"].to_pylist() == list(range(offset))
        found = table.group_by("producer_id").aggregate([("offset", "count"), ("base_offset", "max")])
        assert sorted(row["offset_count"] for row in found.to_pylist()) == sorted(sizes)
        assert {row["producer_id"]: row["base_offset_max"] for row in found.to_pylist()} == {0: 0, 1: 10, 2: 280_010}


def test_a_topic_column_of_gigabytes_is_no_error() -> None:
    """The name and the rows together would take 3 GB."""
    data = build_batch([RecordSpec(value=b"v")] * 30_000)
    decoded = _fast.decode_fetch(data, topic="t" * 100_000, partition=0, start_offset=0)
    assert len(decoded) == 30_000
    assert decoded.column("topic")[-1] == "t" * 100_000


def test_lies_cost_no_time() -> None:
    """What a count or length merely claims is neither allocated nor walked."""
    record = RecordSpec(value=b"v")
    lies = [build_batch([record], records_count=(1 << 31) - 1, compression=codec) for codec in FLAVOURS]
    body = b"\x00\x00\x00\x01\x01" + b"\xfe\xff\xff\xff\x0f"  # headers_count 2147483647
    lies.append(build_batch([record], edit_payload=lambda _: bytes([2 * len(body)]) + body))
    began = time.thread_time()
    for data in lies * 50:
        assert kcodec.decode(data, on_error="stop").error is not None
    assert time.thread_time() - began < 5


def seconds_for(batches: int) -> float:
    """CPU time to pass over every second of so many batches, the producers' transactions all open."""
    made = [
        build_batch(
            [RecordSpec(value=b"v")],
            base_offset=at,
            crc=None if at % 2 == 0 else 1,
            producer_id=at % 7,
            is_transactional=True,
        )
        for at in range(batches)
    ]
    made.append(build_batch([RecordSpec(value=b"last")], base_offset=batches))
    data = b"".join(made)
    took = []
    for _ in range(3):
        began = time.thread_time()
        decoded = kcodec.decode(data, on_error="skip", isolation_level="read_committed")
        took.append(time.thread_time() - began)
        assert decoded.counts.skipped_batches == batches // 2
    return min(took)


def test_corruption_after_corruption_takes_time_by_its_size() -> None:
    assert seconds_for(8000) < 8 * 4 * max(seconds_for(1000), 0.0005)
