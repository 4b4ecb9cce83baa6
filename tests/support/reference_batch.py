# SPDX-License-Identifier: Apache-2.0
"""One batch for the oracle in reference.py: header and checks of any magic, records of magic 2 (others:
reference_legacy.py).

    parse_header(data, at, max_batch_bytes) -> Header, or the bytes a cut tail needs      (rule 1 of reference.py)
    crc_is_right(data, header) -> bool      check_fields(header)                          (rules 2 and 3)
    payload_of(data, header, max_decompressed_bytes) -> bytes                             (rules 5 and 6)
    raw_records(header, payload) -> iterator of RawRecord, complete(header, raw) -> Record    (rule 7)
    first_key(payload) -> bytes or None, control_type_of(key) -> int                      (rule 4)
    java_string(data) -> str                what `new String(data, UTF_8)` makes of bytes that are not UTF-8

Kafka: DefaultRecordBatch, DefaultRecord, ControlRecordType, EndTransactionMarker, ByteUtils.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from reference_codecs import StreamError, StreamLimit, crc32c, decompress
from reference_legacy import HIGHEST_CODEC, LEAST_SIZES, message_crc_is_right, parse_message

if TYPE_CHECKING:
    from reference import Result

INT64_MAX = (1 << 63) - 1
MIB_128 = 128 << 20
LEAST_RECORD = 7  # of seven fields, each at least a byte
STREAM_SEARCHED = 16 << 20  # bytes of a stream that is too large which are searched for corruption
ABORT, COMMIT = 0, 1


class DecodeError(ValueError):
    """Bytes that are wrong."""

    def __init__(self, kind: str, reason: str, record: int | None = None) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.record = kind, reason, record
        self.position: int = -1
        self.base_offset: int | None = None
        self.next_offset: int | None = None
        self.decoded: Result | None = None
        self.also: type[DecodeError] | None = None


class CorruptBatchError(DecodeError):
    """The CRC is wrong."""


class UnsupportedError(DecodeError):
    """The magic or the codec is not supported."""


class LimitExceededError(DecodeError):
    """A size above a limit."""


class Record(NamedTuple):
    """A record with the fields of its batch. Header names that are not UTF-8 contain surrogates."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    sequence: int
    base_offset: int
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_control: bool
    control_type: int | None
    coordinator_epoch: int | None


class Header(NamedTuple):
    """The 61 bytes before the records, big-endian (Kafka: DefaultRecordBatch), and their position."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int
    position: int = 0

    @property
    def end(self) -> int:
        return self.position + 12 + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return self.sequence_of(self.last_offset_delta)

    @property
    def compression(self) -> int:
        return self.attributes & 7

    @property
    def timestamp_type(self) -> int:
        return self.attributes >> 3 & 1 if self.magic else -1

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & 0x40 else None

    def sequence_of(self, offset_delta: int) -> int:
        """After 2147483647 comes 0; a batch without a sequence has none."""
        return self.base_sequence + offset_delta & 0x7FFFFFFF if self.base_sequence >= 0 else -1


HEADER = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == 61


# One batch.


def parse_header(data: bytes, at: int, max_batch_bytes: int = MIB_128) -> Header | int:
    """The batch at `at` by rule 1; of a cut tail the bytes the whole batch needs, as far as known."""
    left = len(data) - at
    if left < 12:
        return 61 if left else 0
    base_offset, length = (int(number) for number in struct.unpack_from(">qi", data, at))
    if length < 14:
        raise _placed(DecodeError("batch_length", f"batch_length {length} is below 14"), at, base_offset)
    if left < 17:
        return length + 12
    magic = struct.unpack_from(">b", data, at + 16)[0]
    least = 49 if magic == 2 else LEAST_SIZES.get(magic)
    if least is None:
        raise _placed(UnsupportedError("magic", f"magic {magic}"), at, base_offset)
    if length < least:
        raise _placed(DecodeError("batch_length", f"batch_length {length} is below {least}"), at, base_offset)
    if length > max_batch_bytes:
        reason = f"batch_length {length} exceeds max_batch_bytes {max_batch_bytes}"
        raise _placed(LimitExceededError("max_batch_bytes", reason), at, base_offset)
    if left < length + 12:
        return length + 12
    return parse_message(data, at) if magic < 2 else Header(*HEADER.unpack_from(data, at))._replace(position=at)


def _placed(error: DecodeError, position: int, base_offset: int) -> DecodeError:
    error.position, error.base_offset = position, base_offset
    return error


def crc_is_right(data: bytes, header: Header) -> bool:
    """The CRC covers attributes to the end; base offset, length and leader epoch are outside it."""
    if header.magic < 2:
        return message_crc_is_right(data, header)
    return crc32c(data[header.position + 21 : header.end]) == header.crc


def check_fields(header: Header) -> None:
    """Apply rule 3: header fields that are invalid even if the CRC is right."""
    if header.compression > (HIGHEST_CODEC if header.magic < 2 else 4):
        raise UnsupportedError("compression", f"compression {header.compression}")
    if header.last_offset_delta < 0:
        raise DecodeError("last_offset_delta", f"last_offset_delta {header.last_offset_delta} is negative")
    if header.records_count < 0:
        raise DecodeError("records_count", f"records_count {header.records_count} is negative")
    if header.last_offset > INT64_MAX:
        raise DecodeError("offset_overflow", f"last_offset_delta {header.last_offset_delta} leaves int64")


def payload_of(data: bytes, header: Header, max_decompressed_bytes: int = MIB_128) -> bytes:
    """Rules 5 and 6: the records of a batch, decompressed."""
    stored = data[header.position + 61 : header.end]
    if header.records_count == 0:
        if stored:
            raise DecodeError("bytes_left", f"{len(stored)} bytes behind a batch of no records")
        return b""
    return decompressed(header.compression, stored, max_decompressed_bytes)


def decompressed(codec: int, stored: bytes, max_decompressed_bytes: int) -> bytes:
    """Rule 6."""
    try:
        return decompress(codec, stored, max_decompressed_bytes)
    except StreamError as error:
        raise DecodeError("stream", str(error)) from None
    except StreamLimit as error:
        refused = LimitExceededError("max_decompressed_bytes", f"{error.args[0]} bytes exceed {error.args[1]}")
    try:
        decompress(codec, stored, max(max_decompressed_bytes, STREAM_SEARCHED))
    except StreamError:
        refused.also = DecodeError
    except StreamLimit:
        pass
    raise refused


class _Cursor:
    """Reads the fields of a record; `end` is what no field may pass."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def byte(self, name: str) -> int:
        if self.at >= self.end:
            raise DecodeError("varint_cut", f"{name} is cut")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self, name: str, bits: int = 32) -> int:
        """Zig-zag, at most 5 bytes (10 for 64 bits); overlong forms and overflowing bits are accepted (ByteUtils)."""
        value = 0
        for shift in range(0, 35 if bits == 32 else 70, 7):
            byte = self.byte(name)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= (1 << bits) - 1
                return value >> 1 ^ -(value & 1)
        raise DecodeError("varint_long", f"{name} is too long a varint")

    def take(self, name: str, length: int) -> bytes:
        if length < 0:
            raise DecodeError("length_negative", f"{name} {length} is negative")
        if length > self.end - self.at:
            raise DecodeError("length_beyond", f"{name} {length} but {self.end - self.at} bytes remain")
        self.at += length
        return self.data[self.at - length : self.at]

    def nullable(self, name: str) -> bytes | None:
        """Any negative length is null."""
        length = self.varint(name)
        return self.take(name, length) if length >= 0 else None


class RawRecord(NamedTuple):
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _read_record(cursor: _Cursor) -> RawRecord:
    """The record at the cursor (Kafka: DefaultRecord.readFrom)."""
    length = cursor.varint("record_length")
    body = _Cursor(cursor.take("record_length", length), 0, max(length, 0))
    body.byte("attributes")
    timestamp_delta, offset_delta = body.varint("timestamp_delta", 64), body.varint("offset_delta")
    key, value = body.nullable("key_length"), body.nullable("value_length")
    headers_count = body.varint("headers_count")
    if not 0 <= headers_count <= body.end - body.at:
        raise DecodeError("headers_count", f"headers_count {headers_count} but {body.end - body.at} bytes remain")
    headers = []
    for _ in range(headers_count):
        name = body.take("header name_length", body.varint("header name_length"))
        headers.append((name.decode("utf-8", "surrogateescape"), body.nullable("header value_length")))
    if body.at != body.end:
        raise DecodeError("record_length", f"record_length {length} but its fields take {body.at}")
    return RawRecord(timestamp_delta, offset_delta, key, value, tuple(headers))


def raw_records(header: Header, payload: bytes) -> Iterator[RawRecord]:
    """Yield the records as stored, after checking each. An error has the index of the record.

    An offset delta must be in 0..last_offset_delta, and in a compressed batch above the previous one: a broker does not
    check the latter in an uncompressed batch.
    """
    if header.records_count * LEAST_RECORD > len(payload):
        raise DecodeError("records_count", f"{len(payload)} bytes cannot hold {header.records_count} records")
    cursor = _Cursor(payload, 0, len(payload))
    before = -1
    for index in range(header.records_count):
        try:
            raw = _read_record(cursor)
            if not 0 <= raw.offset_delta <= header.last_offset_delta:
                reason = f"offset_delta {raw.offset_delta} is outside 0 to {header.last_offset_delta}"
                raise DecodeError("offset_delta_range", reason)
            if header.compression and raw.offset_delta <= before:
                raise DecodeError("offset_delta_order", f"offset_delta {raw.offset_delta} follows {before}")
        except DecodeError as error:
            error.record = index
            raise
        before = raw.offset_delta
        yield raw
    if cursor.at != len(payload):
        raise DecodeError("bytes_left", f"{len(payload) - cursor.at} bytes after {header.records_count} records")


def first_key(payload: bytes) -> bytes | None:
    """The key of the first record, whatever its offset and whatever follows it."""
    try:
        return _read_record(_Cursor(payload, 0, len(payload))).key
    except DecodeError as error:
        error.record = 0
        raise


def control_type_of(key: bytes | None) -> int:
    """Control record key: version i16, type i16; a newer version may add to it."""
    if key is None or len(key) < 4:
        raise DecodeError("control_key", "control record key is null or below 4 bytes")
    version, control_type = struct.unpack_from(">hh", key)
    if version < 0:
        raise DecodeError("control_key", f"control record key version {version}")
    return int(control_type)


def _coordinator_epoch(control_type: int, value: bytes | None) -> int | None:
    """End-transaction marker: version i16, coordinator_epoch i32; None for other batches."""
    if control_type not in (ABORT, COMMIT) or value is None or len(value) < 6:
        return None
    version, epoch = struct.unpack_from(">hi", value)
    return int(epoch) if version >= 0 else None


def complete(header: Header, raw: RawRecord) -> Record:
    """Return a record completed by the header of its batch. Timestamps wrap at 64 bits."""
    timestamp = (header.base_timestamp + raw.timestamp_delta + (1 << 63)) % (1 << 64) - (1 << 63)
    control_type = control_type_of(raw.key) if header.is_control else None
    return Record(
        offset=header.base_offset + raw.offset_delta,
        timestamp=header.max_timestamp if header.timestamp_type else timestamp,
        timestamp_type=header.timestamp_type,
        key=raw.key,
        value=raw.value,
        headers=raw.headers,
        sequence=header.sequence_of(raw.offset_delta),
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        control_type=control_type,
        coordinator_epoch=None if control_type is None else _coordinator_epoch(control_type, raw.value),
    )


def java_string(data: bytes) -> str:
    """What Java's UTF-8 decoder makes of bytes: how many of them one U+FFFD stands for differs from Python's.

    It looks at as many bytes as the first one announces. Where they end early, all that is left is one U+FFFD; where
    one does not continue, those before it are; a surrogate written in three bytes is one, four such bytes too large
    or too small are one each.

    >>> java_string(bytes.fromhex("eda080")), java_string(bytes.fromhex("fffe")), java_string(bytes.fromhex("c3"))
    ('\\ufffd', '\\ufffd\\ufffd', '\\ufffd')
    >>> java_string(bytes.fromhex("e28261")), java_string(bytes.fromhex("f0808080")), java_string("é€😀".encode())
    ('\\ufffda', '\\ufffd\\ufffd\\ufffd\\ufffd', 'é€😀')
    """
    text, at = "", 0
    while at < len(data):
        first = data[at]
        need = 1 if first < 0x80 else 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4
        if first < 0x80:
            text, at = text + chr(first), at + 1
            continue
        if first < 0xC2 or first > 0xF4:
            text, at = text + "\ufffd", at + 1
            continue
        low = {0xE0: 0xA0, 0xF0: 0x90}.get(first, 0x80)
        high = 0x8F if first == 0xF4 else 0xBF
        taken = 1
        while taken < need and at + taken < len(data):
            least, most = (low, high) if taken == 1 else (0x80, 0xBF)
            if not least <= data[at + taken] <= most:
                break
            taken += 1
        character = data[at : at + taken].decode("utf-8", "replace") if taken == need else "\ufffd"
        text, at = text + (character if len(character) == 1 else "\ufffd"), at + taken
    return text
