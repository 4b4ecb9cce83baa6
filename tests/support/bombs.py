# SPDX-License-Identifier: Apache-2.0
"""Small batches that become large: streams that inflate, and records whose columns are larger than they are.

    BOMBS: codec -> function(size) -> stream that makes `size` zeros
    bomb(codec, size) -> bytes                     a batch around such a stream, its CRC right
    many_headers(size), many_records(size), many_compressed_records(size) -> bytes
                                                   batches whose records take about `size` bytes and their columns more
    batch_of(payload, count, codec) -> bytes       any payload behind a header that fits

    python tests/support/bombs.py FILE LIMIT [OPTIONS]
                                           decodes the batch in FILE with max_decompressed_bytes=LIMIT, in this fresh
                                           process, and prints as JSON: error class, peak resident bytes, seconds.
                                           OPTIONS, as JSON: arguments of decode(), or of decode_fetch() where `topic`
                                           is among them, and `export`: whether a stream of all columns is read, too

The streams are written by hand where a compressor would take seconds for a gibibyte.
"""

from __future__ import annotations

import functools
import json
import struct
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

PIECE = 1 << 24


def zstd_zeros(size: int, declared: int | None = None) -> bytes:
    """RLE blocks of 128 KiB, four bytes each (RFC 8878 3.1.1.2); a content size only if one is declared."""
    head = b"\x28\xb5\x2f\xfd" + (b"\x00\x38" if declared is None else b"\xe0" + struct.pack("<Q", declared))
    blocks, rest = divmod(size, 1 << 17)
    body = ((1 << 17) << 3 | 2).to_bytes(3, "little") + b"\x00"
    return head + body * blocks + (rest << 3 | 3).to_bytes(3, "little") + b"\x00"


def gzip_zeros(size: int) -> bytes:
    """One member: deflate pieces of 16 MiB that end in a full flush can follow one another."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = deflate.compress(bytes(min(size, PIECE))) + deflate.flush(zlib.Z_FULL_FLUSH)
    checksum = 0
    for _ in range(max(size // PIECE, 1)):
        checksum = zlib.crc32(bytes(min(size, PIECE)), checksum)
    head = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    return head + piece * max(size // PIECE, 1) + b"\x03\x00" + struct.pack("<II", checksum, size & 0xFFFFFFFF)


def lz4_zeros(size: int) -> bytes:
    """Independent blocks of 4 MiB, each a literal, one long match and five literals."""
    import lz4.block
    from reference_codecs import xxh32

    descriptor = b"\x60\x70"
    block = lz4.block.compress(bytes(1 << 22), store_size=False)
    head = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    found: bytes = head + (struct.pack("<I", len(block)) + block) * (size >> 22) + b"\x00\x00\x00\x00"
    return found


def snappy_zeros(size: int) -> bytes:
    """One raw block: its claim, a literal of 64 bytes, copies of 64."""
    claim, rest = bytearray(), size
    while rest > 0x7F:
        claim.append(rest & 0x7F | 0x80)
        rest >>= 7
    claim.append(rest)
    return bytes(claim) + b"\xf0\x3f" + bytes(64) + b"\xfe\x40\x00" * (size // 64 - 1)


def xerial_zeros(size: int) -> bytes:
    """Blocks of 1 MiB in xerial's framing."""
    block = snappy_zeros(1 << 20)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * (size >> 20)


BOMBS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "zstd": ("zstd", zstd_zeros),
    "zstd-declared": ("zstd", lambda size: zstd_zeros(size, declared=size)),
    "zstd-declared-small": ("zstd", lambda size: zstd_zeros(size, declared=1000)),
    "gzip": ("gzip", gzip_zeros),
    "lz4": ("lz4", lz4_zeros),
    "snappy": ("snappy", snappy_zeros),
    "snappy-xerial": ("snappy", xerial_zeros),
}


def batch_of(payload: bytes, count: int, codec: str = "none") -> bytes:
    """Return a batch with these bytes after its header and a correct CRC, computed by a package because it is fast."""
    import crc32c
    from batch_writer import COMPRESSIONS, build_batch

    attributes = COMPRESSIONS.index(codec)
    last = max(count - 1, 0)
    data = build_batch(
        [],
        payload=payload,
        base_offset=10,
        unused_attributes=attributes,
        records_count=count,
        last_offset_delta=last,
        crc=0,
    )
    return data[:17] + struct.pack(">I", crc32c.crc32c(memoryview(data)[21:])) + data[21:]


def bomb(name: str, size: int) -> bytes:
    """A batch that claims one record."""
    codec, make = BOMBS[name]
    return batch_of(make(size), 1, codec)


def _in(codec: str, records: bytes) -> bytes:
    from batch_writer import compress

    return compress(codec, records)


def many_headers(size: int, is_right: bool = True, codec: str = "zstd") -> bytes:
    """One record of empty header names and null values, `size` bytes once decompressed; or with one byte too many."""
    from batch_writer import varint

    count = (size - 32) // 2
    fields = b"\x00\x00\x00\x01\x01" + varint(count) + b"\x00\x01" * count
    return batch_of(_in(codec, varint(len(fields)) + fields + (b"" if is_right else b"\x00")), 1, codec)


def many_records(size: int, is_right: bool = True) -> bytes:
    """Records of seven bytes, as small as can be, all with one offset, as an uncompressed batch may have them."""
    count = size // 7
    return batch_of(b"\x0c\x00\x00\x00\x01\x01\x00" * count + (b"" if is_right else b"\x00"), count)


def many_compressed_records(size: int, is_right: bool = True, codec: str = "zstd") -> bytes:
    """Records of seven to ten bytes: nulls, no headers, offsets that rise."""
    records, count = _rising_records(size)
    return batch_of(_in(codec, records + (b"" if is_right else b"\x00")), count, codec)


@functools.cache
def _rising_records(size: int) -> tuple[bytes, int]:
    from batch_writer import varint

    out = bytearray()
    count = 0
    while len(out) < size - 64:
        body = b"\x00\x00" + varint(count) + b"\x01\x01\x00"
        out += varint(len(body)) + body
        count += 1
    return bytes(out), count


def peak_bytes() -> int:
    """Return VmHWM, the peak resident memory of this process."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def main() -> None:
    path, limit = sys.argv[1:3]
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    import kcodec

    is_exported = options.pop("export", False)
    decode: Callable[..., kcodec._fast.DecodedRecords] = (
        kcodec._fast.decode_fetch if "topic" in options else kcodec.decode
    )
    data = Path(path).read_bytes()
    limits = kcodec.DecodeLimits(max_decompressed_bytes=int(limit))
    began = time.process_time()
    error = None
    try:
        decoded = decode(data, limits=limits, **options)
        if is_exported:
            decoded.__arrow_c_stream__()
    except kcodec.DecodeError as refused:
        error = type(refused).__name__
    print(json.dumps({"error": error, "peak": peak_bytes(), "seconds": time.process_time() - began}))


if __name__ == "__main__":
    main()
