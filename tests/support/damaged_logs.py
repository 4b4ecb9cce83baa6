# SPDX-License-Identifier: Apache-2.0
"""A partition of two segments with their indexes, and random corruption of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import crc32c

import kcodec

INDEX_INTERVAL_BYTES = 4096


@dataclass(frozen=True)
class StoredBatch:
    """One batch as it was written: its segment (by base offset), its position there, its bytes and its offsets."""

    segment: int
    position: int
    data: bytes
    first_offset: int
    last_offset: int


def forged(offset: int) -> bytes:
    """Return a valid batch, to be the value of a record."""
    return bytes(kcodec.encode([(b"forged", b"forged")], base_offset=offset, timestamp=7))


def write_two_segments(folder: Path, random: Random, batches: int = 40, gap: int = 7) -> list[StoredBatch]:
    """Write a partition directory; return its batches. Every third record holds a batch that was never appended.

    gap: offsets that are missing in the middle of the first segment, as compaction leaves it.
    """
    folder.mkdir(parents=True)
    offset, stored = 100, []
    for number in range(2):
        base, data, index, indexed_at = offset, b"", b"", 0
        for at in range(batches):
            count = random.randint(1, 12)
            records = []
            for i in range(count):
                value = random.randbytes(random.choice((20, 100, 700)))
                records.append((b"k", forged(offset + random.randint(0, 40)) if i % 3 == 2 else value))
            compression: Any = random.choice(("none", "none", "none", "lz4", "zstd"))
            batch = bytes(kcodec.encode(records, base_offset=offset, timestamp=7, compression=compression))
            if len(data) - indexed_at > INDEX_INTERVAL_BYTES:
                index += struct.pack(">ii", offset + count - 1 - base, len(data))
                indexed_at = len(data)
            stored.append(StoredBatch(base, len(data), batch, offset, offset + count - 1))
            data += batch
            offset += count
            if number == 0 and at == batches // 2:
                offset += gap
        (folder / f"{base:020}.log").write_bytes(data)
        (folder / f"{base:020}.index").write_bytes(index)
    return stored


def segment_file(folder: Path, batch: StoredBatch) -> Path:
    """The file that the batch is in."""
    return folder / f"{batch.segment:020}.log"


def damage(folder: Path, stored: list[StoredBatch], random: Random) -> str:
    """Corrupt one segment in a random way, and return a description."""
    batch = random.choice(stored)
    path = segment_file(folder, batch)
    data = bytearray(path.read_bytes())
    kind = random.choice(("bit", "bit", "header bit", "length", "offset", "zeros", "noise", "cut", "several bits"))
    position = batch.position
    if kind == "bit":
        position = random.randrange(len(data))
        data[position] ^= 1 << random.randrange(8)
    elif kind == "header bit":
        position += random.randrange(61)
        data[position] ^= 1 << random.randrange(8)
    elif kind == "length":
        data[position + 8 : position + 12] = random.randbytes(4)
    elif kind == "offset":
        data[position : position + 8] = struct.pack(">q", random.randrange(1 << random.randint(1, 40)))
    elif kind in ("zeros", "noise"):
        position = random.randrange(len(data))
        size = min(random.choice((1, 16, 512, 4096)), len(data) - position)
        data[position : position + size] = bytes(size) if kind == "zeros" else random.randbytes(size)
    elif kind == "cut":
        size = random.choice((1, 37, 61, 500, 5000))
        position = max(0, len(data) - size)
        del data[position:]
    else:
        for _ in range(random.randint(2, 6)):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    return f"{kind} at {path.name}:{position}"


def verifying(folder: Path, stored: list[StoredBatch]) -> Iterator[StoredBatch]:
    """Return the batches that are still at their position with a correct CRC and unchanged offsets and length."""
    contents = {path.name: path.read_bytes() for path in folder.glob("*.log")}
    for batch in stored:
        data = contents[segment_file(folder, batch).name][batch.position : batch.position + len(batch.data)]
        is_whole = len(data) == len(batch.data) and data[:12] == batch.data[:12] and data[16] == batch.data[16]
        if is_whole and crc32c.crc32c(data[21:]) == int.from_bytes(data[17:21], "big"):
            yield batch
