# SPDX-License-Identifier: Apache-2.0
"""Small bytes that become large: memory and time stay bounded, refused or accepted, at limits of 16 and 128 MiB.

The bound of a fresh process, interpreter included, beyond the input: 8 x max_decompressed_bytes + 64 MB, because a
record header of two bytes becomes eight of columns; 2 x + 64 MB where codec, size, compressed stream or CRC are at
fault.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bombs
import pytest
from batch_writer import FLAVOURS, RecordSpec, build_batch, build_record, compress
from bombs import BOMBS, batch_of, bomb

import kcodec
from kcodec import DecodeLimits, LimitExceededError

MIB = 1 << 20
GIB = 1 << 30
TESTS = Path(__file__).resolve().parent
COMPRESSED = [codec for codec in FLAVOURS if codec != "none"]


def decode_in_a_fresh_process(data: bytes, limit: int, folder: Path) -> dict[str, Any]:
    path = folder / "batch"
    path.write_bytes(data)
    command = [sys.executable, str(TESTS / "bombs.py"), str(path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def assert_bounded(data: bytes, limit: int, folder: Path, error: str | None, factor: int) -> None:
    """The whole process, interpreter included, beyond the input: factor x limit + 64 MB; and in seconds."""
    measured = decode_in_a_fresh_process(data, limit, folder)
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
def test_memory_of_a_stream_that_proves_damaged_at_its_end(codec: str, limit: int, tmp_path: Path) -> None:
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
    assert_bounded(data, limit, tmp_path, None if is_right else "DecodeError", factor=8)


@pytest.mark.parametrize("is_right", [True, False])
def test_memory_of_many_small_compressed_records(is_right: bool, tmp_path: Path) -> None:
    limit = 4 * MIB
    data = bombs.many_compressed_records(limit - 1, is_right)
    assert_bounded(data, limit, tmp_path, None if is_right else "DecodeError", factor=8)


def test_lies_cost_no_time() -> None:
    """What a count or length merely claims is neither allocated nor walked."""
    record = RecordSpec(value=b"v")
    lies = [build_batch([record], records_count=(1 << 31) - 1, compression=codec) for codec in FLAVOURS]
    body = b"\x00\x00\x00\x01\x01" + b"\xfe\xff\xff\xff\x0f"  # headers_count 2147483647
    lies.append(build_batch([record], edit_payload=lambda _: bytes([2 * len(body)]) + body))
    began = time.process_time()
    for data in lies * 50:
        assert kcodec.decode(data, on_error="stop").error is not None
    assert time.process_time() - began < 5


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
        began = time.process_time()
        decoded = kcodec.decode(data, on_error="skip", isolation_level="read_committed")
        took.append(time.process_time() - began)
        assert decoded.counts.skipped_batches == batches // 2
    return min(took)


def test_damage_after_damage_takes_time_by_its_size() -> None:
    assert seconds_for(8000) < 8 * 4 * max(seconds_for(1000), 0.0005)
