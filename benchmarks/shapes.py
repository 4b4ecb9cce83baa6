# SPDX-License-Identifier: Apache-2.0
"""The bytes that all benchmarks use: record shapes a to e, each as one fetch of Kafka record batches (magic 2).

| shape | records x batches | value, key, headers |
| --- | --- | --- |
| a | 1000 x 8 | 100 B, 10 B key |
| b | 500 x 4 | 1 KiB, no key |
| c | 1000 x 8 | 20 B, 8 B key, 3 headers |
| d | 10 x 1000 | 30 B, 6 B key |
| e | 1000 x 8 | 2 B to 4 KB mixed, some nulls, 0 to 2 headers |

Values are text that looks like JSON and compresses to about a third. They come from seeded generators, so all runs on
all machines use the same bytes; `check_digests` checks this for codec none. Batches are built by aiokafka's builder
(gzip 9, lz4 HC 9 with block checksums, zstd 3, snappy in xerial blocks of 32 KB) or, by `java_blob`, by Kafka's own
MemoryRecordsBuilder (gzip 6, lz4 fast in independent blocks, zstd without content size). As on a broker, the base
offset is written into the finished batch, because no checksum covers it.
"""

from __future__ import annotations

import functools
import hashlib
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
FIRST_TIMESTAMP = 1_750_000_000_000
SEED = 7
# First 16 hex digits of the SHA-256 of blob(shape, "none").
DIGESTS = {
    "a": "3fcd2dc7bfd51640",
    "b": "bd28c6a9f2a89eaf",
    "c": "4b03aa6822350e5c",
    "d": "c900f1590f0e28f5",
    "e": "e763560657930f0e",
}
BASE_OFFSET, BATCH_LENGTH, ATTRIBUTES, LAST_OFFSET_DELTA, RECORDS_COUNT = 0, 8, 21, 23, 57
LOG_OVERHEAD, HEADER_SIZE = 12, 61

Headers = list[tuple[str, bytes | None]]
Row = tuple[int, bytes | None, bytes | None, Headers]

WORDS = (
    *("order", "payment", "customer", "shipped", "pending", "status", "region", "eu-west", "us-east", "amount"),
    *("currency", "USD", "EUR", "product", "sku", "quantity", "warehouse", "created", "updated", "session", "click"),
    *("view", "cart", "checkout", "device", "ios", "android", "web", "campaign", "referrer", "true", "false", "null"),
)


@dataclass(frozen=True)
class Blob:
    """The bytes of one fetch, the number of its records, and its size before compression."""

    data: bytes
    records: int
    plain_bytes: int
    batches: int


def payload(draw: random.Random, size: int) -> bytes:
    """Return text of exactly `size` bytes that looks like the beginning of a JSON object."""
    text = f'{{"id":{draw.getrandbits(40)},"ts":{FIRST_TIMESTAMP + draw.getrandbits(24)}'
    pieces, length = [text], len(text)
    while length < size:
        name, word = draw.choice(WORDS), draw.choice(WORDS)
        piece = f',"{name}":"{word}-{draw.getrandbits(20)}"'
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces)[: size - 1].encode() + b"}"


def row_a(draw: random.Random, timestamp: int) -> Row:
    key = b"k%09d" % draw.randrange(10**9)
    return timestamp, key, payload(draw, 100), []


def row_b(draw: random.Random, timestamp: int) -> Row:
    return timestamp, None, payload(draw, 1024), []


def row_c(draw: random.Random, timestamp: int) -> Row:
    key = b"k%07d" % draw.randrange(10**7)
    value = payload(draw, 20)
    trace, span = draw.getrandbits(128), draw.getrandbits(64)
    headers: Headers = [("traceparent", b"00-%032x-%016x-01" % (trace, span))]
    headers.append(("source", draw.choice(WORDS).encode()))
    headers.append(("schema-id", draw.randrange(1, 50).to_bytes(4, "big")))
    return timestamp, key, value, headers


def row_d(draw: random.Random, timestamp: int) -> Row:
    key = b"k%05d" % draw.randrange(10**5)
    return timestamp, key, payload(draw, 30), []


def row_e(draw: random.Random, timestamp: int) -> Row:
    size = max(2, min(4000, int(draw.lognormvariate(4.4, 0.9))))
    key = value = None
    if draw.random() >= 0.2:
        width = draw.randrange(2, 40)
        key = b"k" + str(draw.randrange(10)).zfill(width).encode()
    if draw.random() >= 0.05:
        value = payload(draw, size)
    headers: Headers = [(f"h{i}", b"x" * draw.randrange(0, 90)) for i in range(draw.randrange(0, 3))]
    return timestamp + draw.randrange(-200, 200), key, value, headers


@dataclass(frozen=True)
class Shape:
    """The number of records of a batch, the number of batches of a blob, and a function that generates a record."""

    per_batch: int
    batches: int
    row: Callable[[random.Random, int], Row]


SHAPES = {
    "a": Shape(1000, 8, row_a),
    "b": Shape(500, 4, row_b),
    "c": Shape(1000, 8, row_c),
    "d": Shape(10, 1000, row_d),
    "e": Shape(1000, 8, row_e),
}


def rows(shape: str, count: int) -> Iterator[Row]:
    """Yield the first `count` records of a shape. Timestamps advance by 0 to 3 ms with each record."""
    draw = random.Random(f"{shape}/{SEED}")
    timestamp = FIRST_TIMESTAMP
    for _ in range(count):
        timestamp += draw.randrange(0, 4)
        yield SHAPES[shape].row(draw, timestamp)


@functools.cache
def batches_of_rows(shape: str) -> tuple[tuple[Row, ...], ...]:
    """Return the records of a blob, one tuple for each batch."""
    per_batch, count = SHAPES[shape].per_batch, SHAPES[shape].batches
    drawn = tuple(rows(shape, per_batch * count))
    return tuple(drawn[i * per_batch : (i + 1) * per_batch] for i in range(count))


def build_batch(
    batch: tuple[Row, ...],
    codec: str,
    base_offset: int,
    *,
    producer: tuple[int, int, int] | None = None,
) -> bytearray:
    """Build one batch at `base_offset` with aiokafka. With `producer`, (id, epoch, base sequence), it is
    transactional."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    producer_id, epoch, sequence = producer or (-1, -1, -1)
    builder = DefaultRecordBatchBuilder(
        2, CODECS[codec], int(producer is not None), producer_id, epoch, sequence, 1 << 30
    )
    for i, (timestamp, key, value, headers) in enumerate(batch):
        builder.append(i, timestamp, key, value, headers)
    built = bytearray(builder.build())
    struct.pack_into(">q", built, BASE_OFFSET, base_offset)
    return built


@functools.cache
def blob(shape: str, codec: str) -> Blob:
    """Return the blob of a shape in a codec, with batches built by aiokafka."""
    groups = batches_of_rows(shape)
    per_batch = SHAPES[shape].per_batch
    data = b"".join(build_batch(group, codec, i * per_batch) for i, group in enumerate(groups))
    plain = len(data) if codec == "none" else len(blob(shape, "none").data)
    return Blob(data, per_batch * len(groups), plain, len(groups))


@functools.cache
def java_blob(shape: str, codec: str) -> Blob:
    """Return the same records in batches of Kafka's MemoryRecordsBuilder, which are cached in .cache/bench-blobs."""
    from peers import java_peer

    plain = blob(shape, "none")
    path = Path(__file__).resolve().parent.parent / ".cache" / "bench-blobs" / f"{shape}-{codec}.java"
    if not path.is_file():
        java_peer.make_batches(plain.data, codec, path)
    return Blob(path.read_bytes(), plain.records, plain.plain_bytes, plain.batches)


def control_batch(control_type: int, producer_id: int, epoch: int, base_offset: int, timestamp: int) -> bytes:
    """Return an end-transaction marker (0 ABORT, 1 COMMIT) as a coordinator writes it: 78 bytes, one record."""
    import crc32c

    record = struct.pack(">bbbbhhbhib", 0, 0, 0, 4 << 1, 0, control_type, 6 << 1, 0, 0, 0)
    record = bytes([len(record) << 1]) + record
    covered = struct.pack(">hiqqqhii", 0x30, 0, timestamp, timestamp, producer_id, epoch, -1, 1) + record
    front = struct.pack(">qiib", base_offset, HEADER_SIZE + len(record) - LOG_OVERHEAD, 0, 2)
    return front + struct.pack(">I", crc32c.crc32c(covered)) + covered


@dataclass(frozen=True)
class TransactionalBlob:
    """A blob in which every batch is transactional, and the aborted transactions that a broker would return with it."""

    blob: Blob
    aborted: tuple[tuple[int, int], ...]
    delivered: int


@functools.cache
def transactional_blob(shape: str, codec: str, *, abort: bool = True) -> TransactionalBlob:
    """Return a blob with alternating batches of producers 1 and 2. At the end producer 1 commits, and producer 2 aborts
    or, if `abort` is false, commits."""
    groups = batches_of_rows(shape)
    per_batch = SHAPES[shape].per_batch
    pieces, plain = [], 0
    for i, group in enumerate(groups):
        producer = (1 + i % 2, 0, i // 2 * per_batch)
        pieces.append(bytes(build_batch(group, codec, i * per_batch, producer=producer)))
    end, timestamp = len(groups) * per_batch, groups[-1][-1][0] + 1
    pieces.append(control_batch(1, 1, 0, end, timestamp))
    pieces.append(control_batch(0 if abort else 1, 2, 0, end + 1, timestamp))
    plain = blob(shape, "none").plain_bytes + len(pieces[-1]) + len(pieces[-2])
    whole = Blob(b"".join(pieces), end, plain, len(pieces))
    return TransactionalBlob(whole, ((2, per_batch),) if abort else (), end // 2 if abort else end)


def batch_positions(data: bytes) -> list[int]:
    """Return the positions at which the batches begin, followed by the end of the data."""
    positions, position = [0], 0
    while position < len(data):
        position += LOG_OVERHEAD + int.from_bytes(data[position + BATCH_LENGTH : position + LOG_OVERHEAD], "big")
        positions.append(position)
    return positions


def shifted(source: Blob, base: int) -> bytearray:
    """Return the bytes of a blob with `base` added to every base offset."""
    data = bytearray(source.data)
    for position in batch_positions(source.data)[:-1]:
        (offset,) = struct.unpack_from(">q", data, position)
        struct.pack_into(">q", data, position, offset + base)
    return data


def repeated(source: Blob, times: int) -> Blob:
    """Return a blob with the batches of a blob repeated `times` times, with rising base offsets."""
    last = batch_positions(source.data)[-2]
    offset, delta = struct.unpack_from(">q", source.data, last)[0], struct.unpack_from(">i", source.data, last + 23)[0]
    span = offset + delta + 1
    data = b"".join(shifted(source, i * span) for i in range(times))
    return Blob(data, source.records * times, source.plain_bytes * times, source.batches * times)


def check_digests(names: str = "abcde") -> None:
    """Raise ValueError if the generators of this machine make other bytes than those of the published figures."""
    for name in names:
        digest = hashlib.sha256(blob(name, "none").data).hexdigest()[:16]
        if digest != DIGESTS[name]:
            raise ValueError(f"shape {name}: sha256 begins {digest}, expected {DIGESTS[name]}")


if __name__ == "__main__":
    check_digests()
    for name in SHAPES:
        made = blob(name, "none")
        print(
            f"{name}: {made.records} records, {made.batches} batches, {len(made.data)} bytes, sha256 {DIGESTS[name]}..."
        )
