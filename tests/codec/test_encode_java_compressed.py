# SPDX-License-Identifier: Apache-2.0
"""What kcodec compresses, before Kafka's own writer and readers: the same framing, block by block, at every level."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import cramjam
import lz4.block
import pytest
import zstandard
from encode_rows import (
    FEWER,
    HEADER,
    NOW,
    ROWS,
    Row,
    assert_taken,
    header_fields,
    judged_of,
    many_rows,
    table_of,
)
from encode_samples import CODECS, CodecName
from hypothesis import given
from java_judge import JavaJudge

import kcodec

LEVELS = {"gzip": (-1, *range(1, 10)), "lz4": tuple(range(1, 18)), "zstd": (-131072, -5, -1, 1, 3, 9, 19, 22)}
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


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


def assert_framed_alike(codec: CodecName, reported: bytes, made: bytes, plain: bytes) -> None:
    """Same header but for what follows from the compressed bytes; same framing, block by block; same records."""
    assert made[:8] == reported[:8]
    assert made[12:17] == reported[12:17]
    assert made[21:HEADER] == reported[21:HEADER]
    assert struct.unpack_from(">i", made, 8)[0] == len(made) - 12
    blocks = BLOCKS[codec](made[HEADER:])
    assert blocks == BLOCKS[codec](reported[HEADER:])
    assert b"".join(blocks) == plain[HEADER:]


@pytest.mark.parametrize("codec", CODECS[1:])
@FEWER
@given(rows=ROWS, fields=header_fields())
def test_compressed_batches_are_framed_as_kafka_frames_them(
    judge: JavaJudge, codec: CodecName, rows: list[Row], fields: dict[str, Any]
) -> None:
    offsets = range(fields["base_offset"], fields["base_offset"] + len(rows))
    plain = judge.batch(judged_of(rows, offsets), **fields)
    reported = judge.batch(judged_of(rows, offsets), compression=CODECS.index(codec), **fields)
    for source in (rows, table_of(rows)):
        assert_framed_alike(codec, reported, bytes(kcodec.encode(source, compression=codec, **fields)), plain)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("size", [32_700, 65_500, 200_000, 700_000])
def test_large_batches_are_cut_into_blocks_as_kafka_cuts_them(judge: JavaJudge, codec: CodecName, size: int) -> None:
    rows = many_rows(size)
    judged = judged_of(rows, range(len(rows)))
    plain = judge.batch(judged, partition_leader_epoch=-1)
    reported = judge.batch(judged, compression=CODECS.index(codec), partition_leader_epoch=-1)
    made = bytes(kcodec.encode(table_of(rows), compression=codec))
    assert_framed_alike(codec, reported, made, plain)
    assert len(made) < len(reported) * 1.1 + 100


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
@pytest.mark.parametrize("left", [-1, 0, 1])
def test_blocks_end_where_kafkas_end(judge: JavaJudge, codec: CodecName, left: int) -> None:
    """Records of exactly one and two blocks, a byte less, a byte more."""
    size = {"snappy": 32 << 10, "lz4": 64 << 10}[codec]
    for blocks in (1, 2):
        rows = [Row(None, b"x" * (blocks * size - 12 + left), (), NOW)]
        length = len(kcodec.encode(rows)) - HEADER
        rows = [Row(None, b"x" * (blocks * size - 12 + left + blocks * size + left - length), (), NOW)]
        plain = judge.batch(judged_of(rows, [0]), partition_leader_epoch=-1)
        assert len(plain) - HEADER == blocks * size + left
        reported = judge.batch(judged_of(rows, [0]), compression=CODECS.index(codec), partition_leader_epoch=-1)
        assert_framed_alike(codec, reported, bytes(kcodec.encode(rows, compression=codec)), plain)


@pytest.mark.parametrize(("codec", "level"), [(codec, level) for codec, levels in LEVELS.items() for level in levels])
def test_every_level_is_read_and_framed_as_kafkas(judge: JavaJudge, codec: CodecName, level: int) -> None:
    rows = many_rows(150_000, 100)
    judged = judged_of(rows, range(len(rows)))
    plain = judge.batch(judged, partition_leader_epoch=-1)
    reported = judge.batch(judged, compression=CODECS.index(codec), level=level, partition_leader_epoch=-1)
    made = bytes(kcodec.encode(table_of(rows), compression=codec, compression_level=level))
    assert_framed_alike(codec, reported, made, plain)
    assert len(made) < len(reported) * 1.03
    assert_taken(judge, made, judged)
