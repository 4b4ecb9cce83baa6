# SPDX-License-Identifier: Apache-2.0
"""Checksums and decompression for the reference decoder in reference.py: slow and simple, using nothing of kcodec.

Rules of each codec (Kafka: org.apache.kafka.common.compress; RFC 1952, RFC 8878, the lz4 frame format 1.6.x, the snappy
format description, the xerial snappy stream):

* gzip: consecutive members. Bytes after a member that are not a whole gzip header are ignored, and so are unused header
  flags (java.util.zip.GZIPInputStream). Header checksum, CRC-32 and size of each member are verified.
* snappy: with or without xerial framing, which is detected by its 8 magic bytes. Xerial streams may be concatenated. A
  block must have exactly the length that it declares.
* lz4: one frame. Header, block and content checksums and the content size are verified. Linked blocks are accepted.
Bytes
  after the frame are ignored, as by Java's reader.
* zstd: consecutive frames, also skippable ones. No other bytes may be between or after them.
* A size above `limit`, declared or real, is a StreamLimit as soon as it is known. Any other fault is a StreamError.

Functions:
    crc32c(data, crc=0) -> int                   xxh32(data, seed=0) -> int
    decompress(codec, data, limit) -> bytes      raises StreamError, StreamLimit
        codec: 0 none 1 gzip 2 snappy 3 lz4 4 zstd
"""

from __future__ import annotations

import struct
import zlib

import zstandard

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
XERIAL_MAGIC = b"\x82SNAPPY\x00"
LZ4_MAGIC = b"\x04\x22\x4d\x18"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
CUT = "compressed stream is cut"


class StreamError(Exception):
    """A compressed stream is corrupt or incomplete. The message describes the fault."""


class StreamLimit(Exception):
    """A stream decompresses, or declares to decompress, to more than `limit` bytes: args are (claimed, limit)."""


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32C = _crc32c_table()


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """CRC-32C (Castagnoli, reflected), byte by byte.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    table = _CRC32C
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_M = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _M


def xxh32(data: bytes, seed: int = 0) -> int:
    """The 32-bit xxHash, which lz4 frames are checked with.

    >>> hex(xxh32(b"")), hex(xxh32(b"Nobody inspects the spammish repetition"))
    ('0x2cc5d05', '0xe2293b2f')
    """
    at = 0
    if len(data) >= 16:
        lanes = [(seed + _P1 + _P2) & _M, (seed + _P2) & _M, seed, (seed - _P1) & _M]
        while at + 16 <= len(data):
            words = struct.unpack_from("<4I", data, at)
            lanes = [_rotate((lane + word * _P2) & _M, 13) * _P1 & _M for lane, word in zip(lanes, words, strict=True)]
            at += 16
        value = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        value = seed + _P5
    value = (value + len(data)) & _M
    while at + 4 <= len(data):
        value = _rotate((value + struct.unpack_from("<I", data, at)[0] * _P3) & _M, 17) * _P4 & _M
        at += 4
    for byte in data[at:]:
        value = _rotate((value + byte * _P5) & _M, 11) * _P1 & _M
    value = (value ^ value >> 15) * _P2 & _M
    value = (value ^ value >> 13) * _P3 & _M
    return value ^ value >> 16


def decompress(codec: int, data: bytes, limit: int) -> bytes:
    """The bytes of the stream `data`; `limit` does not concern codec 0, whose size the batch's length bounds."""
    if codec == NONE:
        return data
    return {GZIP: _gunzip, SNAPPY: _unsnappy, LZ4: _unlz4, ZSTD: _unzstd}[codec](data, limit)


# Gzip.


def _gzip_body(data: bytes, at: int) -> int | None:
    """Return where the deflate stream of the member at `at` begins; None if there is no whole, valid gzip header."""
    begin = at
    if len(data) - at < 10 or data[at : at + 3] != b"\x1f\x8b\x08":
        return None
    flags = data[at + 3]
    at += 10
    if flags & 4:
        if len(data) - at < 2:
            return None
        at += 2 + struct.unpack_from("<H", data, at)[0]
    for flag in (8, 16):
        if flags & flag:
            at = data.find(b"\x00", at) + 1
            if at == 0:
                return None
    if flags & 2:
        if len(data) - at < 2 or struct.unpack_from("<H", data, at)[0] != zlib.crc32(data[begin:at]) & 0xFFFF:
            return None
        at += 2
    return at if at <= len(data) else None


def _gunzip(data: bytes, limit: int) -> bytes:
    out = b""
    at = _gzip_body(data, 0)
    if at is None:
        raise StreamError("no gzip header begins here")
    while at is not None:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            member = inflate.decompress(data[at:], limit - len(out) + 1)
        except zlib.error as error:
            raise StreamError(str(error)) from None
        if len(out) + len(member) > limit:
            raise StreamLimit(len(out) + len(member), limit)
        end = len(data) - len(inflate.unused_data)
        if not inflate.eof or len(data) - end < 8:
            raise StreamError(CUT)
        if struct.unpack_from("<II", data, end) != (zlib.crc32(member), len(member) & 0xFFFFFFFF):
            raise StreamError("gzip member's checksum or size is wrong")
        out += member
        at = _gzip_body(data, end + 8)
    return out


# Snappy.


def _copy_match(out: bytearray, offset: int, length: int) -> None:
    """Append `length` bytes from `offset` bytes back, which may overlap the output."""
    if offset == 0 or offset > len(out):
        raise StreamError("match from before the block")
    while length > 0:
        piece = out[-offset:][:length]
        out += piece
        length -= len(piece)


def _snappy_claim(data: bytes) -> tuple[int, int]:
    """(uncompressed length, bytes it takes) of a raw block."""
    claimed = 0
    for at in range(5):
        if at >= len(data):
            raise StreamError(CUT)
        claimed |= (data[at] & 0x7F) << 7 * at
        if data[at] < 0x80:
            if claimed > 0xFFFFFFFF:
                raise StreamError("block length above 32 bits")
            return claimed, at + 1
    raise StreamError("block length is too long a varint")


def _snappy_element(data: bytes, at: int, out: bytearray) -> int:
    """Reads one literal or copy at `at`; the place behind it."""
    tag = data[at]
    extra = {0: max(0, (tag >> 2) - 59), 1: 1, 2: 2, 3: 4}[tag & 3]
    at += 1
    if at + extra > len(data):
        raise StreamError(CUT)
    number = int.from_bytes(data[at : at + extra], "little")
    at += extra
    if tag & 3 == 0:
        length = (number if extra else tag >> 2) + 1
        if at + length > len(data):
            raise StreamError(CUT)
        out += data[at : at + length]
        return at + length
    if tag & 3 == 1:
        _copy_match(out, (tag >> 5) << 8 | number, 4 + (tag >> 2 & 7))
    else:
        _copy_match(out, number, (tag >> 2) + 1)
    return at


def _unsnappy_block(data: bytes, limit: int, before: int) -> bytes:
    claimed, at = _snappy_claim(data)
    if before + claimed > limit:
        raise StreamLimit(before + claimed, limit)
    out = bytearray()
    while at < len(data):
        at = _snappy_element(data, at, out)
        if len(out) > claimed:
            raise StreamError("more bytes than the block's length")
    if len(out) != claimed:
        raise StreamError("fewer bytes than the block's length")
    return bytes(out)


def _unsnappy(data: bytes, limit: int) -> bytes:
    if data[:8] != XERIAL_MAGIC:
        return _unsnappy_block(data, limit, 0)
    out, at = b"", 0
    while at < len(data):
        if data[at : at + 8] == XERIAL_MAGIC:
            if len(data) - at < 16:
                raise StreamError(CUT)
            if struct.unpack_from(">i", data, at + 8)[0] < 1:
                raise StreamError("xerial version below 1")
            at += 16
            continue
        if len(data) - at < 4:
            raise StreamError(CUT)
        length = struct.unpack_from(">i", data, at)[0]
        at += 4
        if length <= 0:
            raise StreamError("xerial block length is not positive")
        if length > len(data) - at:
            raise StreamError(CUT)
        out += _unsnappy_block(data[at : at + length], limit, len(out))
        at += length
    return out


# Lz4.


def _lz4_length(data: bytes, at: int, nibble: int) -> tuple[int, int]:
    """Return (length, position after it). A length of 15 continues in bytes up to the first that is not 255."""
    if nibble < 15:
        return nibble, at
    length = 15
    while True:
        if at >= len(data):
            raise StreamError(CUT)
        length += data[at]
        at += 1
        if data[at - 1] != 255:
            return length, at


def _unlz4_block(data: bytes, dictionary: bytes, most: int) -> bytes:
    """One block; `dictionary` is what matches may reach back to. More than `most` bytes: OverflowError."""
    out, at = bytearray(dictionary), 0
    most += len(dictionary)
    while True:
        if at >= len(data):
            raise StreamError(CUT)
        token = data[at]
        length, at = _lz4_length(data, at + 1, token >> 4)
        if at + length > len(data):
            raise StreamError(CUT)
        if len(out) + length > most:
            raise OverflowError
        out += data[at : at + length]
        at += length
        if at == len(data):
            return bytes(out[len(dictionary) :])
        if len(data) - at < 2:
            raise StreamError(CUT)
        offset = int.from_bytes(data[at : at + 2], "little")
        length, at = _lz4_length(data, at + 2, token & 15)
        if 0 < offset <= len(out) and len(out) + length + 4 > most:
            raise OverflowError
        _copy_match(out, offset, length + 4)


def _lz4_header(data: bytes) -> tuple[int, int, int, int | None]:
    """(bytes it takes, flags, largest block, content size or None) of a frame's header."""
    if len(data) < 7:
        raise StreamError(CUT)
    flags, block = data[4], data[5]
    size_code = block >> 4 & 7
    if data[:4] != LZ4_MAGIC or flags >> 6 != 1 or flags & 2 or block & 0x8F or size_code < 4:
        raise StreamError("no lz4 frame begins here")
    if flags & 1:
        raise StreamError("a dictionary is needed")
    end = 6 + (8 if flags & 8 else 0)
    if len(data) < end + 1:
        raise StreamError(CUT)
    if data[end] != xxh32(data[4:end]) >> 8 & 0xFF:
        raise StreamError("header checksum is wrong")
    return end + 1, flags, 1 << 8 + 2 * size_code, int.from_bytes(data[6:14], "little") if flags & 8 else None


def _unlz4(data: bytes, limit: int) -> bytes:
    at, flags, largest, content_size = _lz4_header(data)
    if content_size is not None and content_size > limit:
        raise StreamLimit(content_size, limit)
    out = b""
    while True:
        if len(data) - at < 4:
            raise StreamError(CUT)
        word = int.from_bytes(data[at : at + 4], "little")
        at += 4
        if word == 0:
            break
        size = word & 0x7FFFFFFF
        if size > largest:
            raise StreamError("block larger than its frame allows")
        block = data[at : at + size]
        at += size + (4 if flags & 0x10 else 0)
        if at > len(data):
            raise StreamError(CUT)
        if flags & 0x10 and int.from_bytes(data[at - 4 : at], "little") != xxh32(block):
            raise StreamError("block checksum is wrong")
        out += _lz4_content(block, bool(word >> 31), b"" if flags & 0x20 else out[-65536:], largest, limit, len(out))
    if content_size is not None and content_size != len(out):
        raise StreamError("content size is wrong")
    if flags & 4:
        if len(data) - at < 4:
            raise StreamError(CUT)
        if int.from_bytes(data[at : at + 4], "little") != xxh32(out):
            raise StreamError("content checksum is wrong")
    return out


def _lz4_content(block: bytes, stored: bool, dictionary: bytes, largest: int, limit: int, before: int) -> bytes:
    if stored:
        if before + len(block) > limit:
            raise StreamLimit(before + len(block), limit)
        return block
    room = min(largest, limit - before)
    try:
        return _unlz4_block(block, dictionary, room)
    except OverflowError:
        if room < largest:
            raise StreamLimit(limit + 1, limit) from None
        raise StreamError("block larger than its frame allows") from None


# Zstd.


def _unzstd_frame(data: bytes, limit: int, before: int) -> tuple[bytes, int]:
    """(content, bytes read) of the frame at the start of `data`."""
    try:
        claimed = zstandard.frame_content_size(data)
        if claimed > 0 and before + claimed > limit:
            raise StreamLimit(before + claimed, limit)
        frame = zstandard.ZstdDecompressor().decompressobj()
        out = bytearray()
        for at in range(0, len(data), 256):  # small pieces, so that none decompresses to much more than the limit
            out += frame.decompress(data[at : at + 256])
            if before + len(out) > limit:
                raise StreamLimit(before + len(out), limit)
            if frame.eof:
                return bytes(out), min(at + 256, len(data)) - len(frame.unused_data)
    except zstandard.ZstdError as error:
        raise StreamError(str(error)) from None
    raise StreamError(CUT)


def _unzstd(data: bytes, limit: int) -> bytes:
    if not data:
        raise StreamError(CUT)
    out, at = b"", 0
    while at < len(data):
        if len(data) - at < 4:
            raise StreamError(CUT)
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & ~15 == 0x184D2A50:
            if len(data) - at < 8:
                raise StreamError(CUT)
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            if at > len(data):
                raise StreamError(CUT)
        elif data[at : at + 4] == ZSTD_MAGIC:
            content, size = _unzstd_frame(data[at:], limit, len(out))
            out += content
            at += size
        else:
            raise StreamError("no zstd frame begins here")
    return out
