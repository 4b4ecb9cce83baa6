# SPDX-License-Identifier: Apache-2.0
"""Messages of magic 0 and 1, for the reference decoder in reference.py (LegacyRecord, AbstractLegacyRecordBatch).

    parse_message(data, at) -> Header       of a whole message: each is a batch; base_offset is the offset it stores
    message_crc_is_right(data, header) -> bool
    is_wrapper(header) -> bool              a compressed message, which must be decompressed to find its other offsets
    message_records(data, header, max_decompressed_bytes, check_crcs) -> list of Record

A wrapper contains messages; an incomplete message ends them without an error. These are errors: no value, no whole
message, a message of another magic, below its minimum size, that is itself compressed, or with a wrong CRC, and a
wrapper of magic 1 whose offset is below the last one inside, unless it is 0. Offsets inside are absolute in magic 0. In
magic 1 they are relative: the wrapper has the offset of its last message, or 0 if it is unknown, and the messages then
count from 0. Sums wrap at 64 bits. The timestamp type is that of the wrapper, as in the consumer. With LogAppendTime
the messages have the timestamp of the wrapper, except for those of magic 0, which have none.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from reference_codecs import xxh32

if TYPE_CHECKING:
    from reference_batch import Header, Record

LEAST_SIZES = {0: 14, 1: 22}
LZ4 = 3
HIGHEST_CODEC = 3


class Message(NamedTuple):
    """The stored fields of a message; timestamp is None in magic 0."""

    offset: int
    magic: int
    attributes: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


def parse_message(data: bytes, at: int) -> Header:
    """Return the fields of a message as those of a batch."""
    from reference_batch import Header

    offset, size, crc, magic, attributes = struct.unpack_from(">qiIbB", data, at)
    timestamp = struct.unpack_from(">q", data, at + 18)[0] if magic else -1
    meaning = attributes & (0x0F if magic else 0x07)
    return Header(offset, size, -1, magic, crc, meaning, 0, timestamp, timestamp, -1, -1, -1, 1, at)


def message_crc_is_right(data: bytes, header: Header) -> bool:
    """CRC-32 from the magic to the end."""
    return zlib.crc32(data[header.position + 16 : header.end]) == header.crc


def is_wrapper(header: Header) -> bool:
    """Return whether it contains other messages."""
    return header.magic < 2 and header.compression > 0


def _sized(data: bytes, at: int, name: str) -> tuple[bytes | None, int]:
    from reference_batch import DecodeError

    if len(data) - at < 4:
        raise DecodeError("length_beyond", f"{name} is cut")
    size = struct.unpack_from(">i", data, at)[0]
    at += 4
    if size > len(data) - at:
        raise DecodeError("length_beyond", f"{name} {size} but {len(data) - at} bytes remain")
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _read(data: bytes) -> Message:
    """The fields of one message, whatever follows its value."""
    offset, _size, _crc, magic, attributes = struct.unpack_from(">qiIbB", data)
    timestamp = struct.unpack_from(">q", data, 18)[0] if magic else None
    key, at = _sized(data, 26 if magic else 18, "key_size")
    return Message(offset, magic, attributes, timestamp, key, _sized(data, at, "value_size")[0])


def _cut(messages_set: bytes) -> list[bytes]:
    """The whole messages of a set, each with its offset and size."""
    from reference_batch import DecodeError, UnsupportedError

    found: list[bytes] = []
    at = 0
    while len(messages_set) - at >= 12:
        size = struct.unpack_from(">i", messages_set, at + 8)[0]
        if size < 14:
            raise DecodeError("message_size", f"message_size {size}", record=len(found))
        if size > len(messages_set) - at - 12:
            break
        magic = messages_set[at + 16]
        if magic not in LEAST_SIZES:
            raise UnsupportedError("message_magic", f"magic {magic}", record=len(found))
        if size < LEAST_SIZES[magic]:
            raise DecodeError("message_size", f"message_size {size}", record=len(found))
        found.append(messages_set[at : at + 12 + size])
        at += 12 + size
    return found


def _int64(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def with_right_checksum(frame: bytes) -> bytes:
    """Return an lz4 frame of magic 0 with a corrected header checksum, so that any reader accepts it."""
    end = 14 if len(frame) > 4 and frame[4] & 8 else 6
    if len(frame) <= end:
        return frame
    return frame[:end] + bytes([xxh32(frame[4:end]) >> 8 & 0xFF]) + frame[end + 1 :]


def _inside(data: bytes, header: Header, max_decompressed_bytes: int) -> tuple[list[bytes], int]:
    """Return the messages in a wrapper, and the offset to which their offsets are relative."""
    from reference_batch import DecodeError, decompressed

    stream = _read(data[header.position : header.end]).value
    if stream is None:
        raise DecodeError("wrapper_null", "a compressed message without a value")
    if header.magic == 0 and header.compression == LZ4:
        stream = with_right_checksum(stream)
    messages = _cut(decompressed(header.compression, stream, max_decompressed_bytes))
    if not messages:
        raise DecodeError("wrapper_empty", "a compressed message without a whole message")
    last = struct.unpack_from(">q", messages[-1])[0]
    if header.magic == 0 or header.base_offset == 0:
        return messages, 0
    if header.base_offset < last:
        raise DecodeError("wrapper_offset", f"offset {header.base_offset} is below {last}")
    return messages, header.base_offset - last


def _record(message: Message, header: Header, offset: int, base_offset: int) -> Record:
    from reference_batch import Record

    timestamp = message.timestamp
    if timestamp is not None and header.timestamp_type == 1:
        timestamp = header.max_timestamp
    return Record(
        offset=offset,
        timestamp=-1 if timestamp is None else timestamp,
        timestamp_type=header.timestamp_type,
        key=message.key,
        value=message.value,
        headers=(),
        sequence=-1,
        base_offset=base_offset,
        partition_leader_epoch=-1,
        producer_id=-1,
        producer_epoch=-1,
        is_transactional=False,
        is_control=False,
        control_type=None,
        coordinator_epoch=None,
    )


def message_records(data: bytes, header: Header, max_decompressed_bytes: int, check_crcs: bool) -> list[Record]:
    """Return the record of a message, or those inside it. An error has the index of the message inside."""
    from reference_batch import CorruptBatchError, DecodeError

    messages, relative_to = [data[header.position : header.end]], 0
    if is_wrapper(header):
        messages, relative_to = _inside(data, header, max_decompressed_bytes)
    records: list[Record] = []
    base_offset = _int64(struct.unpack_from(">q", messages[0])[0] + relative_to)
    for index, raw in enumerate(messages):
        try:
            message = _read(raw)
            if is_wrapper(header) and message.attributes & 7:
                raise DecodeError("message_compressed", "compressed inside a compressed message")
            if is_wrapper(header) and check_crcs and zlib.crc32(raw[16:]) != struct.unpack_from(">I", raw, 12)[0]:
                raise CorruptBatchError("message_crc", "the crc of a message inside is wrong")
        except DecodeError as error:
            error.record = index
            raise
        records.append(_record(message, header, _int64(message.offset + relative_to), base_offset))
    return records
