# SPDX-License-Identifier: Apache-2.0
"""The four codecs: what other people's compressors write in all their ways is read back, and both ways of zstd agree.

The matrix is that of Kafka's own tests (Lz4CompressionTest and its like): payloads of nothing, one byte, 1000 bytes,
64 and 96 KiB, random and repeated, under every option of the writer.
"""

from __future__ import annotations

import gzip
import itertools
import random
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import zstandard
from batch_writer import FLAVOURS, RecordSpec, build_record, compress
from bombs import batch_of

import kcodec
from kcodec import _fast

NOISE = random.Random(7)


def values() -> dict[str, bytes]:
    """What a record holds: incompressible, repeated, near and far matches, literals longer than any length byte."""
    text = b"".join(b"%d:%s;" % (at, NOISE.choice((b"alpha", b"beta", b"gamma"))) for at in range(30_000))
    far = NOISE.randbytes(70_000)
    found = {"empty": b"", "one": b"x", "text": text, "far": far + b"-" * 40_000 + far, "overlap": b"abcabcd" * 20_000}
    for size in (1000, 64 << 10, 96 << 10, 300_000):
        found[f"random-{size}"] = NOISE.randbytes(size)
        found[f"ones-{size}"] = b"\x01" * size
    return found


VALUES = values()


def records_of(value: bytes) -> bytes:
    return build_record(RecordSpec(key=b"key", value=value, headers=((b"h", value[:10]),)), 0)


def assert_read(codec: str, stream: bytes, value: bytes) -> None:
    for binary_type in ("binary", "binary_view"):
        decoded = kcodec.decode(batch_of(stream, 1, codec), binary_type=binary_type)
        assert list(decoded.column("value")) == [value]
        assert list(decoded.column("headers")) == [(("h", value[:10]),)]


@pytest.fixture(params=["system", "package", "library"])
def way_of_zstd(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each way, as far as it is available here; the switch is put back."""
    before = _fast.zstd_way()
    _fast.use_zstd(request.param)
    yield request.param
    _fast.use_zstd(before)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("codec", [codec for codec in FLAVOURS if codec not in ("none", "zstd")])
def test_every_flavour_of_our_own_writer(codec: str, name: str) -> None:
    for flavour in FLAVOURS[codec]:
        assert_read(codec, compress(codec, records_of(VALUES[name]), flavour), VALUES[name])


@pytest.mark.parametrize("name", VALUES)
def test_every_flavour_of_zstd(name: str, way_of_zstd: str) -> None:
    for flavour in FLAVOURS["zstd"]:
        assert_read("zstd", compress("zstd", records_of(VALUES[name]), flavour), VALUES[name])


def test_small_gzip_streams_of_every_strategy() -> None:
    """What `inflate.c` reads: stored blocks, fixed codes and codes of their own, long codes, several blocks."""
    chooser = random.Random(17)
    alphabets = (bytes(range(256)), b"abc 01", bytes(range(32)) + b"a" * 200 + b"b" * 90)
    strategies = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED)
    for at in range(400):
        value = bytes(chooser.choices(alphabets[at % 3], k=chooser.randrange(1500))) * chooser.choice((1, 1, 3))
        writer = zlib.compressobj(at % 10, zlib.DEFLATED, 31, chooser.randrange(1, 10), strategies[at % 5])
        records = records_of(value)
        half = chooser.randrange(len(records))
        stream = writer.compress(records[:half])
        stream += writer.flush(chooser.choice((zlib.Z_NO_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_FULL_FLUSH)))
        assert_read("gzip", stream + writer.compress(records[half:]) + writer.flush(), value)


@pytest.mark.parametrize("name", VALUES)
def test_gzip_at_every_level(name: str) -> None:
    records = records_of(VALUES[name])
    for level in range(10):
        assert_read("gzip", gzip.compress(records, level), VALUES[name])
    for strategy in (zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED):
        writer = zlib.compressobj(6, zlib.DEFLATED, 31, 9, strategy)
        assert_read("gzip", writer.compress(records) + writer.flush(), VALUES[name])
    writer = zlib.compressobj(6, zlib.DEFLATED, 31)
    flushed = b"".join(
        writer.compress(records[at : at + 999]) + writer.flush(zlib.Z_SYNC_FLUSH) for at in range(0, len(records), 999)
    )
    assert_read("gzip", flushed + writer.flush(), VALUES[name])


@pytest.mark.parametrize("name", VALUES)
def test_lz4_in_every_frame(name: str) -> None:
    records = records_of(VALUES[name])
    switches = list(itertools.product((False, True), repeat=4))
    for linked, block, content, size in switches:
        for block_size, level in ((lz4.frame.BLOCKSIZE_MAX64KB, 0), (lz4.frame.BLOCKSIZE_MAX4MB, 9)):
            frame = lz4.frame.compress(
                records,
                compression_level=level,
                block_size=block_size,
                block_linked=linked,
                block_checksum=block,
                content_checksum=content,
                store_size=size,
            )
            assert_read("lz4", frame, VALUES[name])


@pytest.mark.parametrize("name", VALUES)
def test_zstd_at_many_levels_and_settings(name: str, way_of_zstd: str) -> None:
    records = records_of(VALUES[name])
    for level, size, checksum in itertools.product((-5, 1, 3, 12), (False, True), (False, True)):
        writer = zstandard.ZstdCompressor(level=level, write_content_size=size, write_checksum=checksum)
        assert_read("zstd", writer.compress(records), VALUES[name])
        stream = writer.compressobj()
        pieces = [stream.compress(records[at : at + 5000]) for at in range(0, len(records), 5000)]
        assert_read("zstd", b"".join(pieces) + stream.flush(), VALUES[name])


@pytest.mark.parametrize("name", VALUES)
def test_snappy_by_another_writer(name: str) -> None:
    records = records_of(VALUES[name])
    assert_read("snappy", bytes(cramjam.snappy.compress_raw(records)), VALUES[name])


def snappy_literal(chooser: random.Random, data: bytes) -> bytes:
    """As short a tag as may be, or a longer one."""
    least = 0 if len(data) <= 60 else (len(data).bit_length() + 7) // 8
    width = max(least, chooser.randrange(5))
    if width == 0:
        return bytes([len(data) - 1 << 2]) + data
    return bytes([59 + width << 2]) + (len(data) - 1).to_bytes(width, "little") + data


def snappy_copy(chooser: random.Random, plain: bytearray) -> bytes:
    """A copy of any of the three kinds from anywhere in what there is; `plain` grows by it."""
    kind = chooser.randint(1, 3)
    offset = chooser.randint(1, min(len(plain), 2047 if kind == 1 else 60_000))
    length = chooser.randint(4, 11) if kind == 1 else chooser.randint(1, 64)
    for _ in range(length):
        plain.append(plain[-offset])
    if kind == 1:
        return bytes([1 | length - 4 << 2 | offset >> 8 << 5, offset & 0xFF])
    return bytes([kind | length - 1 << 2]) + offset.to_bytes(2 if kind == 2 else 4, "little")


@pytest.mark.parametrize("seed", range(300))
def test_snappy_by_generated_elements(seed: int) -> None:
    """Literals and copies drawn at random, overlapping ones too; what they make is said by a plain loop."""
    chooser = random.Random(seed)
    elements, plain = bytearray(), bytearray()
    while len(plain) < 400:
        if plain and chooser.randrange(3):
            elements += snappy_copy(chooser, plain)
        else:
            data = chooser.randbytes(chooser.choice((1, 2, 16, 59, 60, 61, 64, 100, 300)))
            elements += snappy_literal(chooser, data)
            plain += data
    value = bytes(plain)
    record = records_of(value)
    begin = record.index(value)
    claim = bytes([len(record) & 0x7F | 0x80, len(record) >> 7])
    stream = claim + snappy_literal(chooser, record[:begin]) + bytes(elements)
    assert_read("snappy", stream + snappy_literal(chooser, record[begin + len(value) :]), value)


def test_the_switch_of_zstd_reports_the_way_in_use(way_of_zstd: str) -> None:
    assert _fast.zstd_way() in (way_of_zstd, "package")
    assert _fast.use_zstd("package") == "package" == _fast.zstd_way()
    with pytest.raises(ValueError, match="way"):
        _fast.use_zstd("pakcage")


def test_wheels_of_zstandard_contain_a_library() -> None:
    before = _fast.zstd_way()
    try:
        assert _fast.use_zstd("library") == ("package" if sys.platform == "win32" else "library")
    finally:
        _fast.use_zstd(before)


def test_a_global_libzstd_rules_the_packages_library_out(tmp_path: Path) -> None:
    """The package's library would call the functions of another version with its own objects, and crash."""
    (library,) = Path(zstandard.__file__).parent.glob("_cffi*")
    other = shutil.copy(library, tmp_path)
    program = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL);"
        "from kcodec import _fast; print(_fast.use_zstd('library'))"
    )
    command = [sys.executable, "-c", program, other]
    assert subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout == "package\n"
