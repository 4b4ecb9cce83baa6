# SPDX-License-Identifier: Apache-2.0
"""Constants for both clients, and messages of magic 0 and 1 with their CRC-32.

The installed classes are declared separately for each client, because they derive from the classes of the client.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from kcodec._fast import ClientBatch

_CRC_FROM = 16  # the CRC of a message covers the bytes from its magic on


class Codecs:
    """The numbers of compression types in the attributes of a batch of magic 2."""

    __slots__ = ()

    CODEC_MASK = 0x07
    CODEC_NONE = 0x00
    CODEC_GZIP = 0x01
    CODEC_SNAPPY = 0x02
    CODEC_LZ4 = 0x03
    CODEC_ZSTD = 0x04


class LegacyBatch(ClientBatch):
    """A message of magic 0 or 1 that is read from bytes. A compressed message contains other messages."""

    __slots__ = ()

    RECORD_OVERHEAD_V0 = 14
    RECORD_OVERHEAD_V1 = 22
    CODEC_MASK = Codecs.CODEC_MASK
    CODEC_GZIP = Codecs.CODEC_GZIP
    CODEC_SNAPPY = Codecs.CODEC_SNAPPY
    CODEC_LZ4 = Codecs.CODEC_LZ4

    is_legacy = True

    def __init__(self, buffer: bytes, magic: int) -> None:
        super().__init__(buffer)

    def messages(self) -> Iterator[LegacyMessage]:
        """Iterate over the messages.

        The CRC of an uncompressed message is the stored one. For messages inside a compressed message, it is computed
        from their fields as a producer writes them, because the stored CRC was checked and discarded.
        """
        is_plain = self.compression_type == 0
        for record in super().__iter__():
            kind = None if record.timestamp_type < 0 else record.timestamp_type
            timestamp = None if kind is None and record.timestamp == -1 else record.timestamp
            if is_plain:
                crc, covered = self.crc, self.raw[_CRC_FROM:]
            else:
                covered = _message_bytes(self.magic, timestamp, record.key, record.value)
                crc = zlib.crc32(covered)
            yield LegacyMessage(record.offset, timestamp, kind, record.key, record.value, crc, covered)


class LegacyMessage(NamedTuple):
    """The fields of a LegacyRecord of a client. With magic 0, timestamp and timestamp_type are None."""

    offset: int
    timestamp: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None
    crc: int
    crc_bytes: memoryview


def _message_bytes(magic: int, timestamp: int | None, key: bytes | None, value: bytes | None) -> memoryview:
    """Return the bytes of an uncompressed message from its magic on (Kafka: LegacyRecord)."""
    parts = [struct.pack(">bb", magic, 0)]
    if magic:
        parts.append(struct.pack(">q", -1 if timestamp is None else timestamp))
    for field in (key, value):
        parts.append(struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field)
    return memoryview(b"".join(parts))
