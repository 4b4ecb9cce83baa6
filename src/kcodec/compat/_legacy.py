# SPDX-License-Identifier: Apache-2.0
"""Messages of magic 0 and 1 with the CRC-32 that both clients show of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from kcodec._fast import ClientBatch, ClientRecord

_CRC_FROM = 16  # a message's CRC covers it from its magic on


class Message(NamedTuple):
    """What a client's LegacyRecord is made of; with magic 0, timestamp and timestamp_type are None."""

    offset: int
    timestamp: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None
    crc: int
    crc_bytes: memoryview


def messages(batch: ClientBatch, records: Iterator[ClientRecord]) -> Iterator[Message]:
    """The messages of a batch of magic 0 or 1, whose records are given.

    The CRC of a plain message is the stored one. Of those inside a compressed message it is reckoned from their fields
    as a producer writes them: what is stored has been looked at, and is not kept.
    """
    is_plain = batch.compression_type == 0
    for record in records:
        kind = None if record.timestamp_type < 0 else record.timestamp_type
        timestamp = None if kind is None and record.timestamp == -1 else record.timestamp
        if is_plain:
            crc, covered = batch.crc, batch.raw[_CRC_FROM:]
        else:
            covered = _message_bytes(batch.magic, timestamp, record.key, record.value)
            crc = zlib.crc32(covered)
        yield Message(record.offset, timestamp, kind, record.key, record.value, crc, covered)


def _message_bytes(magic: int, timestamp: int | None, key: bytes | None, value: bytes | None) -> memoryview:
    """A message without compression, from its magic on (LegacyRecord)."""
    parts = [struct.pack(">bb", magic, 0)]
    if magic:
        parts.append(struct.pack(">q", -1 if timestamp is None else timestamp))
    for field in (key, value):
        parts.append(struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field)
    return memoryview(b"".join(parts))
