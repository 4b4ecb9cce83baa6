# SPDX-License-Identifier: Apache-2.0
"""An independent writer of valid and deliberately invalid record batches of magic 2, which uses nothing of kcodec.

    RecordSpec(key, value, headers=(), timestamp_delta=0, offset_delta=None, attributes=0, null_length=-1, padding=0)
        headers: (name bytes, value bytes or None); offset_delta None: one above the record before;
        null_length: the negative number for null; padding: number of bytes by which each varint is longer than needed
    build_record(spec, offset_delta) -> bytes
    build_batch(records, *, compression="none", flavour="", <header fields by Kafka's names>, payload=None,
                edit_payload=None, crc=None, batch_length=None, records_count=None) -> bytes
        last_offset_delta, max_timestamp, records_count, batch_length and crc follow from the rest unless given;
        payload: the bytes after the header, unchanged; edit_payload: called with the records before compression
    end_transaction_marker(control_type, *, producer_id, base_offset, ...) -> bytes        0 ABORT, 1 COMMIT
    control_batch(control_type, value, **header) -> bytes       any control record: LEADER_CHANGE 2 ... unknown ones
    empty_batch(**header) -> bytes                              as the cleaner leaves one behind
    compress(compression, data, flavour) -> bytes               FLAVOURS[compression] names the ways, the first is usual
    fix_crc(data, position=0) -> bytes                          the data with the CRC of that batch corrected
    varint(value, padding=0, bits=32) -> bytes

Layouts: DefaultRecordBatch, DefaultRecord, EndTransactionMarker; RFC 1952, RFC 8878, lz4 frame format, xerial snappy.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cramjam
import lz4.block
import zstandard
from reference_codecs import XERIAL_MAGIC, crc32c, xxh32

HEADER = struct.Struct(">qiibIhiqqqhii")
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP = 1_767_225_600_000
LZ4_FLAGS = {"": 0x60, "blocks": 0x70, "content": 0x64, "sized": 0x68, "all": 0x7C, "linked": 0x40, "linked-all": 0x5C}
FLAVOURS: dict[str, tuple[str, ...]] = {
    "none": ("",),
    "gzip": ("", "members", "behind", "fields", "stored"),
    "snappy": ("", "raw", "literal", "streams", "small"),
    "lz4": ("", *list(LZ4_FLAGS)[1:], "stored", "behind"),
    "zstd": ("", "unsized", "checksum", "frames", "skippable"),
}


@dataclass(frozen=True)
class RecordSpec:
    """The contents of a record, and unusual properties of its encoding."""

    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp_delta: int = 0
    offset_delta: int | None = None
    attributes: int = 0
    null_length: int = -1
    padding: int = 0


def varint(value: int, padding: int = 0, bits: int = 32) -> bytes:
    """Zig-zag LEB128; with padding as many bytes longer as the width allows (5 for 32 bits, 10 for 64).

    >>> varint(-1).hex(), varint(300).hex(), varint(0, padding=2).hex(), varint(-(1 << 63), bits=64).hex()
    ('01', 'd804', '808000', 'ffffffffffffffffff01')
    """
    rest = (value << 1 ^ value >> bits - 1) & (1 << bits) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    padding = min(padding, (5 if bits == 32 else 10) - len(out))
    if padding > 0:
        out[-1] |= 0x80
        out += b"\x80" * (padding - 1) + b"\x00"
    return bytes(out)


def _field(value: bytes | None, spec: RecordSpec) -> bytes:
    if value is None:
        return varint(spec.null_length, spec.padding)
    return varint(len(value), spec.padding) + value


def build_record(spec: RecordSpec, offset_delta: int) -> bytes:
    """One record with its length."""
    body = struct.pack(">B", spec.attributes & 0xFF)
    body += varint(spec.timestamp_delta, spec.padding, 64) + varint(offset_delta, spec.padding)
    body += _field(spec.key, spec) + _field(spec.value, spec) + varint(len(spec.headers), spec.padding)
    for name, value in spec.headers:
        body += varint(len(name), spec.padding) + name + _field(value, spec)
    return varint(len(body), spec.padding) + body


def _offset_deltas(records: Sequence[RecordSpec]) -> list[int]:
    deltas: list[int] = []
    for spec in records:
        following = deltas[-1] + 1 if deltas else 0
        deltas.append(following if spec.offset_delta is None else spec.offset_delta)
    return deltas


def build_batch(
    records: Sequence[RecordSpec],
    *,
    compression: str = "none",
    flavour: str = "",
    base_offset: int = 0,
    partition_leader_epoch: int = 0,
    magic: int = 2,
    timestamp_type: int = 0,
    is_transactional: bool = False,
    is_control_batch: bool = False,
    delete_horizon: bool = False,
    unused_attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = BASE_TIMESTAMP,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    records_count: int | None = None,
    batch_length: int | None = None,
    crc: int | None = None,
    payload: bytes | None = None,
    edit_payload: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Build one batch. Every header field may be given, also a wrong value. `unused_attributes` is or-ed to the
    attributes, including codec bits."""
    deltas = _offset_deltas(records)
    if payload is None:
        payload = b"".join(build_record(spec, delta) for spec, delta in zip(records, deltas, strict=True))
        if edit_payload is not None:
            payload = edit_payload(payload)
        payload = compress(compression, payload, flavour)
    attributes = COMPRESSIONS.index(compression) | timestamp_type << 3 | is_transactional << 4
    attributes |= is_control_batch << 5 | delete_horizon << 6 | unused_attributes
    if last_offset_delta is None:
        last_offset_delta = max(deltas, default=0)
    if max_timestamp is None:
        largest = max((base_timestamp + spec.timestamp_delta for spec in records), default=base_timestamp)
        max_timestamp = min(max(largest, -(1 << 63)), (1 << 63) - 1)
    head = HEADER.pack(
        base_offset,
        len(payload) + 49 if batch_length is None else batch_length,
        partition_leader_epoch,
        magic,
        0,
        (attributes & 0xFFFF) - (attributes << 1 & 0x10000),
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records) if records_count is None else records_count,
    )
    covered = head[21:] + payload
    return head[:17] + struct.pack(">I", crc32c(covered) if crc is None else crc) + covered


def fix_crc(data: bytes, position: int = 0) -> bytes:
    """Return the same bytes with the CRC of the batch at `position` corrected, as far as its length and the data reach.

    The batch must be of magic 2; legacy_writer.py has the function for magic 0 and 1.
    """
    if len(data) - position < 21:
        return data
    length = struct.unpack_from(">i", data, position + 8)[0]
    covered = data[position + 21 : max(position + 21, position + 12 + length)]
    return data[: position + 17] + struct.pack(">I", crc32c(covered)) + data[position + 21 :]


# Special batches.


def control_batch(control_type: int, value: bytes | None, **header: Any) -> bytes:
    """A control batch of one record; key version 0."""
    record = RecordSpec(key=struct.pack(">hh", 0, control_type), value=value)
    return build_batch([record], is_control_batch=True, **header)


def end_transaction_marker(
    control_type: int,
    *,
    producer_id: int,
    base_offset: int,
    producer_epoch: int = 0,
    coordinator_epoch: int = 0,
    **header: Any,
) -> bytes:
    """ABORT (0) or COMMIT (1), 78 bytes as a coordinator writes them."""
    header |= {"is_transactional": True, "producer_id": producer_id, "producer_epoch": producer_epoch}
    return control_batch(control_type, struct.pack(">hi", 0, coordinator_epoch), base_offset=base_offset, **header)


def empty_batch(**header: Any) -> bytes:
    """Header alone, count 0, base timestamp -1 (DefaultRecordBatch.writeEmptyHeader)."""
    return build_batch([], **{"base_timestamp": -1, **header})


# Compression.


def compress(compression: str, data: bytes, flavour: str = "") -> bytes:
    """Return a stream that every reader must accept, in one of the variants of FLAVOURS."""
    if flavour not in FLAVOURS[compression]:
        raise ValueError(f"{compression} has no flavour {flavour!r}")
    if compression == "none":
        return data
    return {"gzip": _gzip, "snappy": _snappy, "lz4": _lz4, "zstd": _zstd}[compression](data, flavour)


def _pieces(data: bytes, count: int) -> list[bytes]:
    size = max(1, -(-len(data) // count))
    return [data[at : at + size] for at in range(0, len(data), size)] or [b""]


def _gzip_member(data: bytes, flags: int = 0, level: int = 6) -> bytes:
    head = b"\x1f\x8b\x08" + bytes([flags]) + b"\x00\x00\x00\x00\x00\xff"
    if flags & 4:
        head += b"\x03\x00abc"
    if flags & 8:
        head += b"a name\x00"
    if flags & 16:
        head += b"a comment\x00"
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(data) + deflate.flush()
    return head + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def _gzip(data: bytes, flavour: str) -> bytes:
    if flavour == "members":
        return b"".join(_gzip_member(piece) for piece in [*_pieces(data, 3), b""])
    if flavour == "behind":
        return _gzip_member(data) + b"no gzip header"
    if flavour == "fields":
        return _gzip_member(data, flags=0x1F)
    return _gzip_member(data, level=0 if flavour == "stored" else 6)


def _snappy_literals(data: bytes) -> bytes:
    """A raw block of literals alone, with lengths of every width."""
    claim, rest = bytearray(), len(data)
    while rest > 0x7F:
        claim.append(rest & 0x7F | 0x80)
        rest >>= 7
    out = bytes([*claim, rest])
    for piece in (data[at : at + 70_000] for at in range(0, len(data), 70_000)):
        size = len(piece) - 1
        width = 0 if size < 60 else (size.bit_length() + 7) // 8
        out += bytes([59 + width << 2]) + size.to_bytes(width, "little") if width else bytes([size << 2])
        out += piece
    return out


def _snappy(data: bytes, flavour: str) -> bytes:
    if flavour == "raw":
        return bytes(cramjam.snappy.compress_raw(data))
    if flavour == "literal":
        return _snappy_literals(data)
    head = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    out = head
    for number, block in enumerate(_pieces(data, 5 if flavour else -(-len(data) // 32768) or 1)):
        raw = bytes(cramjam.snappy.compress_raw(block))
        out += (head if flavour == "streams" and number else b"") + struct.pack(">i", len(raw)) + raw
    return out


def _lz4(data: bytes, flavour: str) -> bytes:
    """Blocks of 64 KiB; any flavour but the usual one has blocks of a third of the data, to have several."""
    flags = LZ4_FLAGS.get(flavour, 0x60)
    descriptor = bytes([flags, 0x40]) + (struct.pack("<Q", len(data)) if flags & 8 else b"")
    out = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    size = min(65536, max(1, len(data) // 3)) if flavour else 65536
    for at in range(0, len(data), size):
        plain = data[at : at + size]
        known = data[max(0, at - 65536) : at]
        if flags & 0x20 or not known:
            block = lz4.block.compress(plain, store_size=False)
        else:
            block = lz4.block.compress(plain, store_size=False, dict=known)
        stored = flavour == "stored" or len(block) >= len(plain)
        block = plain if stored else block
        out += struct.pack("<I", len(block) | stored << 31) + block
        out += struct.pack("<I", xxh32(block)) if flags & 0x10 else b""
    out += b"\x00\x00\x00\x00" + (struct.pack("<I", xxh32(data)) if flags & 4 else b"")
    return out + (b"behind the frame" if flavour == "behind" else b"")


def _zstd(data: bytes, flavour: str) -> bytes:
    sized = zstandard.ZstdCompressor(write_checksum=flavour == "checksum")
    unsized = zstandard.ZstdCompressor(write_content_size=False)
    if flavour == "unsized":
        stream = unsized.compressobj()
        return stream.compress(data) + stream.flush()
    if flavour == "frames":
        pieces = _pieces(data, 3)
        return b"".join((unsized if at % 2 else sized).compress(piece) for at, piece in enumerate(pieces))
    if flavour == "skippable":
        return b"\x52\x2a\x4d\x18\x04\x00\x00\x00skip" + sized.compress(data) + b"\x50\x2a\x4d\x18\x00\x00\x00\x00"
    return sized.compress(data)
