# SPDX-License-Identifier: Apache-2.0
"""Seeded corruption of record batches with a corrected CRC, so that the checks after that of the CRC are tested."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import lz4.frame
import zstandard
from java_logs import set_crc

# Offsets in the batch header (record-batch format of magic 2), and the width of each field.
FIELDS = {
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "records_count": (57, ">i"),
}
HEADER = 61
INTERESTING = (
    -1,
    0,
    1,
    2,
    3,
    48,
    49,
    60,
    61,
    127,
    -128,
    2**15 - 1,
    -(2**15),
    2**27,
    2**31 - 1,
    -(2**31),
    2**63 - 1,
    -(2**63),
)
BYTES = (0x00, 0x01, 0x02, 0x03, 0x05, 0x3F, 0x40, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
OVERLONG = (b"\x80\x00", b"\x81\x80\x00", b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\xff\x01", b"\x80" * 9 + b"\x01")


def field(batch: bytes | bytearray, name: str) -> int:
    """A header field of a batch."""
    position, form = FIELDS[name]
    value: int = struct.unpack_from(form, batch, position)[0]
    return value


def set_field(batch: bytearray, name: str, value: int) -> None:
    """Write a header field, the value cut to the field's width."""
    position, form = FIELDS[name]
    width = struct.calcsize(form)
    batch[position : position + width] = (value % (1 << 8 * width)).to_bytes(width, "big")


def payload_replaced(batch: bytes | bytearray, payload: bytes, codec: int | None = None) -> bytearray:
    """Return the batch with other bytes after its header, and with the codec bits set if `codec` is given."""
    changed = bytearray(batch[:HEADER]) + payload
    if codec is not None:
        set_field(changed, "attributes", field(changed, "attributes") & ~7 | codec)
    set_field(changed, "batch_length", len(changed) - 12)
    return changed


def flip_bit(rng: random.Random, batch: bytearray) -> bytearray:
    position = rng.randrange(len(batch))
    batch[position] ^= 1 << rng.randrange(8)
    return batch


def flip_payload_bit(rng: random.Random, batch: bytearray) -> bytearray:
    if len(batch) > HEADER:
        batch[rng.randrange(HEADER, len(batch))] ^= 1 << rng.randrange(8)
    return batch


def replace_payload_byte(rng: random.Random, batch: bytearray) -> bytearray:
    if len(batch) > HEADER:
        batch[rng.randrange(HEADER, len(batch))] = rng.choice(BYTES)
    return batch


def replace_field(rng: random.Random, batch: bytearray) -> bytearray:
    name = rng.choice(list(FIELDS))
    value = rng.choice(INTERESTING)
    if rng.random() < 0.5:
        value = field(batch, name) + rng.choice((-2, -1, 1, 2))
    set_field(batch, name, value)
    return batch


def change_count(rng: random.Random, batch: bytearray) -> bytearray:
    set_field(batch, "records_count", rng.choice((0, 1, field(batch, "records_count") + rng.choice((-1, 1)))))
    return batch


def cut_payload(rng: random.Random, batch: bytearray) -> bytearray:
    return payload_replaced(batch, bytes(batch[HEADER : rng.randint(HEADER, len(batch))]))


def cut_batch(rng: random.Random, batch: bytearray) -> bytearray:
    """Remove bytes at the end without changing the length, so that the following bytes are read as the rest."""
    return batch[: rng.randrange(len(batch))]


def cut_length(rng: random.Random, batch: bytearray) -> bytearray:
    """Shorten the batch, and correct its length and CRC."""
    shorter = batch[: rng.randint(21, len(batch))]
    set_field(shorter, "batch_length", len(shorter) - 12)
    return shorter


def lengthen_payload(rng: random.Random, batch: bytearray) -> bytearray:
    return payload_replaced(batch, bytes(batch[HEADER:]) + rng.randbytes(rng.randint(1, 20)))


def repeat_payload(rng: random.Random, batch: bytearray) -> bytearray:
    """Two compressed streams in a row, or the records twice."""
    return payload_replaced(batch, bytes(batch[HEADER:]) * 2)


def insert_bytes(rng: random.Random, batch: bytearray) -> bytearray:
    at = rng.randint(HEADER, len(batch))
    extra = rng.choice((*OVERLONG, rng.randbytes(rng.randint(1, 6))))
    return payload_replaced(batch, bytes(batch[HEADER:at]) + extra + bytes(batch[at:]))


def delete_bytes(rng: random.Random, batch: bytearray) -> bytearray:
    at = rng.randint(HEADER, len(batch))
    return payload_replaced(batch, bytes(batch[HEADER:at]) + bytes(batch[at + rng.randint(1, 4) :]))


def no_edit(rng: random.Random, batch: bytearray) -> bytearray:
    return batch


EDITS: tuple[tuple[Callable[[random.Random, bytearray], bytearray], int], ...] = (
    (flip_bit, 4),
    (flip_payload_bit, 8),
    (replace_payload_byte, 10),
    (replace_field, 4),
    (change_count, 2),
    (cut_payload, 3),
    (cut_batch, 1),
    (cut_length, 2),
    (lengthen_payload, 2),
    (repeat_payload, 1),
    (insert_bytes, 3),
    (delete_bytes, 3),
    (no_edit, 1),
)

LZ4_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"content_checksum": True},
    {"block_checksum": True, "store_size": False},
    {"block_linked": True},
    {"block_linked": False, "block_size": lz4.frame.BLOCKSIZE_MAX4MB},
)


def compress(rng: random.Random, payload: bytes) -> tuple[int, bytes]:
    """(codec id, stream), by one of the ways clients write gzip, raw snappy, lz4 and zstd."""
    codec = rng.choice((1, 2, 3, 4))
    if codec == 1:
        return codec, gzip.compress(payload, mtime=0)
    if codec == 2:
        return codec, bytes(cramjam.snappy.compress_raw(payload))
    if codec == 3:
        return codec, lz4.frame.compress(payload, **rng.choice(LZ4_OPTIONS))
    compressor = zstandard.ZstdCompressor(write_content_size=rng.random() < 0.5, write_checksum=rng.random() < 0.5)
    return codec, compressor.compress(payload)


def damaged(rng: random.Random, batch: bytes) -> bytes:
    """Make one or two edits of a batch. Its CRC is correct in most cases; it may be compressed after the edit."""
    changed = bytearray(batch)
    edits, weights = zip(*EDITS, strict=True)
    for edit in rng.choices(edits, weights=weights, k=rng.choice((1, 1, 1, 2))):
        if len(changed) > HEADER:
            changed = edit(rng, changed)
    if len(changed) > HEADER and field(changed, "attributes") & 7 == 0 and rng.random() < 0.4:
        codec, stream = compress(rng, bytes(changed[HEADER:]))
        changed = payload_replaced(changed, stream, codec)
    if len(changed) > 21 and rng.random() < 0.97:
        set_crc_of_claimed(changed)
    return bytes(changed)


def set_crc_of_claimed(batch: bytearray) -> None:
    """Set the correct CRC of the bytes that the length field covers, if they are available."""
    end = field(batch, "batch_length") + 12
    if 21 <= end <= len(batch):
        head = batch[:end]
        set_crc(head)
        batch[:end] = head
