# SPDX-License-Identifier: Apache-2.0
"""An independent writer of valid and deliberately invalid messages of magic 0 and 1, which uses nothing of kcodec.

kcodec does not write these formats, because no current broker accepts them. Old logs contain them, so tests need them.

    MessageSpec(key, value, magic=1, timestamp=..., attributes=0, offset=None, crc=None, null_size=-1, behind=b"")
        behind: bytes after the value, which readers ignore; null_size: the negative number for null
    build_message(spec, offset) -> bytes            with offset and size
    build_wrapper(specs, *, magic=1, compression="gzip", flavour="", offset=None, ...) -> bytes
        messages in one compressed message; their offsets are relative with magic 1 and absolute with magic 0, the
        wrapper's is that of the last, unless given; edit_set: called with the messages before compression
    fix_message_crc(data, position=0) -> bytes      the data with the CRC of that message corrected

Layout: Kafka's LegacyRecord. The lz4 frames of magic 0 have the wrong header checksum that its writers gave them
(KAFKA-3160): over the frame's magic, too.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batch_writer import COMPRESSIONS, compress
from reference_codecs import xxh32

TIMESTAMP = 1_500_000_000_000


@dataclass(frozen=True)
class MessageSpec:
    """The contents of a message, and unusual properties of its encoding."""

    key: bytes | None = None
    value: bytes | None = b""
    magic: int = 1
    timestamp: int = TIMESTAMP
    attributes: int = 0
    offset: int | None = None
    crc: int | None = None
    null_size: int = -1
    behind: bytes = b""


def _sized(value: bytes | None, null_size: int) -> bytes:
    return struct.pack(">i", null_size) if value is None else struct.pack(">i", len(value)) + value


def build_message(spec: MessageSpec, offset: int = 0) -> bytes:
    """One message."""
    covered = struct.pack(">bB", spec.magic, spec.attributes & 0xFF)
    covered += struct.pack(">q", spec.timestamp) if spec.magic else b""
    covered += _sized(spec.key, spec.null_size) + _sized(spec.value, spec.null_size) + spec.behind
    crc = zlib.crc32(covered) if spec.crc is None else spec.crc
    place = offset if spec.offset is None else spec.offset
    return struct.pack(">qiI", place, len(covered) + 4, crc) + covered


def as_of_magic_0(frame: bytes) -> bytes:
    """An lz4 frame with the header checksum of magic 0."""
    end = 14 if frame[4] & 8 else 6
    return frame[:end] + bytes([xxh32(frame[:end]) >> 8 & 0xFF]) + frame[end + 1 :]


def build_wrapper(
    specs: Sequence[MessageSpec],
    *,
    magic: int = 1,
    compression: str = "gzip",
    flavour: str = "",
    base_offset: int = 0,
    offset: int | None = None,
    timestamp: int | None = None,
    attributes: int = 0,
    key: bytes | None = None,
    behind: bytes = b"",
    edit_set: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """A compressed message; `attributes` is or-ed to its codec (8: LogAppendTime)."""
    messages, following = [], 0
    for spec in specs:
        inside = following if spec.offset is None else spec.offset
        messages.append(build_message(spec, inside + (base_offset if magic == 0 and spec.offset is None else 0)))
        following = inside + 1
    messages_set = b"".join(messages)
    if edit_set is not None:
        messages_set = edit_set(messages_set)
    stream = compress(compression, messages_set, flavour)
    if compression == "lz4" and magic == 0:
        stream = as_of_magic_0(stream)
    if offset is None:
        offset = following - 1 + (0 if magic == 0 and specs and specs[-1].offset is not None else base_offset)
    latest = max((spec.timestamp for spec in specs), default=-1) if timestamp is None else timestamp
    codec = COMPRESSIONS.index(compression)
    wrapper = MessageSpec(key, stream, magic, latest, attributes | codec, offset=offset, behind=behind)
    return build_message(wrapper)


def fix_message_crc(data: bytes, position: int = 0) -> bytes:
    """Return the same bytes with the CRC of the message at `position` corrected, as far as its size and the data
    reach."""
    if len(data) - position < 17:
        return data
    size = struct.unpack_from(">i", data, position + 8)[0]
    covered = data[position + 16 : max(position + 16, position + 12 + size)]
    return data[: position + 12] + struct.pack(">I", zlib.crc32(covered)) + data[position + 16 :]
