# SPDX-License-Identifier: Apache-2.0
"""Edits of batches: accidental corruption of bytes, and malicious changes.

    every_cut(data)                     the data ended at each byte
    every_bit(data, repair=False)       one bit flipped at a time; repair: CRC made right again
    every_header_value(data, repair=True)       each header field set to each odd value
    every_length(batch)                 each varint of an uncompressed batch's records replaced
    every_payload_cut(batch)            the bytes behind the header ended at each byte
    every_payload_bit(batch)            each bit of the bytes behind the header flipped
    random_edit(random, data, repair=None)      one to three edits at random; repair None: either

random_edit returns (name, bytes), the others iterate over such pairs. In every_length, every_payload_cut and
every_payload_bit the batch's length follows and its CRC is right.
`data` is a sequence of whole batches, `batch` exactly one. Names say what was done, for the message of a failing test.
"""

from __future__ import annotations

import random as random_module
import struct
from collections.abc import Iterator

from batch_writer import fix_crc, varint
from legacy_writer import fix_message_crc

# name -> (place in the header, struct code)
HEADER_FIELDS = {
    "base_offset": (0, "q"),
    "batch_length": (8, "i"),
    "partition_leader_epoch": (12, "i"),
    "magic": (16, "b"),
    "crc": (17, "i"),
    "attributes": (21, "h"),
    "last_offset_delta": (23, "i"),
    "base_timestamp": (27, "q"),
    "max_timestamp": (35, "q"),
    "producer_id": (43, "q"),
    "producer_epoch": (51, "h"),
    "base_sequence": (53, "i"),
    "records_count": (57, "i"),
}
# of messages of magic 0 and 1
MESSAGE_FIELDS = {
    "offset": (0, "q"),
    "message_size": (8, "i"),
    "crc": (12, "i"),
    "magic": (16, "b"),
    "attributes": (17, "b"),
    "timestamp, or sizes": (18, "q"),
    "key_size of magic 0": (18, "i"),
    "key_size of magic 1": (26, "i"),
    "value_size of magic 1": (30, "i"),
}
ODD_NUMBERS = (0, 1, 2, -1, -2, 5, 13, 14, 48, 49, 61, 127, 128, 1 << 15, (1 << 31) - 2, (1 << 31) - 1, -(1 << 31))
ODD_WIDE = (1 << 62, (1 << 63) - 1, -(1 << 63))


def batch_positions(data: bytes) -> list[int]:
    """Return where batches begin, according to their lengths, as far as these are plausible."""
    positions, at = [], 0
    while len(data) - at >= 17:
        length = struct.unpack_from(">i", data, at + 8)[0]
        if length < 14:
            break
        positions.append(at)
        at += 12 + length
    return positions


def is_message(data: bytes, position: int) -> bool:
    """Return whether a message of magic 0 or 1 begins there."""
    return len(data) > position + 16 and data[position + 16] < 2


def repaired_at(data: bytes, position: int) -> bytes:
    """Return the data with the CRC of the batch at `position` corrected, for any magic."""
    return fix_message_crc(data, position) if is_message(data, position) else fix_crc(data, position)


def _repaired(data: bytes, place: int, repair: bool) -> bytes:
    if not repair:
        return data
    before = [position for position in batch_positions(data) if position <= place]
    return repaired_at(data, before[-1]) if before else data


def every_cut(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Every beginning of the data, itself excluded."""
    for size in range(len(data)):
        yield f"cut to {size} bytes", data[:size]


def every_bit(data: bytes, repair: bool = False) -> Iterator[tuple[str, bytes]]:
    """Flip every bit. Flipped bits of the CRC field are not repaired, because this would undo the edit."""
    crcs = set()
    for position in batch_positions(data):
        begin = 12 if is_message(data, position) else 17
        crcs |= set(range(position + begin, position + begin + 4))
    for place in range(len(data)):
        for bit in range(8):
            edited = bytearray(data)
            edited[place] ^= 1 << bit
            name = f"bit {bit} of byte {place} flipped{', crc right' if repair else ''}"
            yield name, _repaired(bytes(edited), place, repair and place not in crcs)


def _odd_values(code: str) -> list[int]:
    bits = 8 * struct.calcsize(">" + code)
    every = (*ODD_NUMBERS, *ODD_WIDE)
    return [value for value in every if -(1 << bits - 1) <= value < 1 << bits - 1]


def every_header_value(data: bytes, repair: bool = True) -> Iterator[tuple[str, bytes]]:
    """Each field of each batch's header set to each odd value."""
    for position in batch_positions(data):
        for name, (place, code) in (MESSAGE_FIELDS if is_message(data, position) else HEADER_FIELDS).items():
            if position + place + struct.calcsize(">" + code) > len(data):
                continue
            for value in _odd_values(code):
                edited = bytearray(data)
                struct.pack_into(">" + code, edited, position + place, value)
                fixed = repaired_at(bytes(edited), position) if repair and name != "crc" else bytes(edited)
                yield f"{name} of the batch at {position} set to {value}", fixed


def with_payload(batch: bytes, payload: bytes) -> bytes:
    """Return the batch with other bytes after its header, and with updated length and CRC."""
    head = bytearray(batch[:61])
    struct.pack_into(">i", head, 8, len(payload) + 49)
    return fix_crc(bytes(head) + payload)


def every_payload_cut(batch: bytes) -> Iterator[tuple[str, bytes]]:
    """The records, or the compressed stream, ended at each byte."""
    for size in range(61, len(batch)):
        yield f"payload cut to {size - 61} bytes", with_payload(batch, batch[61:size])


def every_payload_bit(batch: bytes) -> Iterator[tuple[str, bytes]]:
    """Every bit of the records, or of the compressed stream, flipped under a right CRC."""
    for name, edited in every_bit(batch[61:]):
        yield f"payload: {name}", with_payload(batch, edited)


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at


def varint_places(payload: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield (name, start, end) of every varint in well-formed uncompressed records."""
    at = 0
    while at < len(payload):
        for name in ("record_length", "timestamp_delta", "offset_delta", "key_length", "value_length", "headers_count"):
            begin = at
            value, at = _varint_at(payload, begin)
            yield name, begin, at
            if name == "record_length":
                at += 1  # attributes
            elif name in ("key_length", "value_length"):
                at += max(value, 0)
        for name in ("header name_length", "header value_length") * value:
            begin = at
            length, at = _varint_at(payload, begin)
            yield name, begin, at
            at += max(length, 0)


def every_length(batch: bytes) -> Iterator[tuple[str, bytes]]:
    """Each varint replaced by odd values, by its neighbours, by an overlong one and by one that is too long."""
    payload = batch[61:]
    for name, begin, end in varint_places(payload):
        value, _ = _varint_at(payload, begin)
        numbers = sorted({*ODD_NUMBERS, value - 1, value + 1, len(payload), len(payload) - end} - {value})
        new = [(str(number), varint(number)) for number in numbers]
        new += [("overlong", varint(value, padding=2)), ("too long", b"\x80" * 10 + b"\x00")]
        new += [("five bytes, the last above its range", b"\x80\x80\x80\x80\x7f")]
        for what, replacement in new:
            yield f"{name} at {begin}: {what}", with_payload(batch, payload[:begin] + replacement + payload[end:])


# Random.


def _flip_bit(random: random_module.Random, data: bytes, place: int) -> tuple[str, bytes]:
    bit = random.randrange(8)
    return f"bit {bit} of byte {place}", data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def _set_byte(random: random_module.Random, data: bytes, place: int) -> tuple[str, bytes]:
    value = random.choice((0x00, 0x01, 0x7F, 0x80, 0xFF, random.randrange(256)))
    return f"byte {place} set to {value}", data[:place] + bytes([value]) + data[place + 1 :]


def _cut(random: random_module.Random, data: bytes, place: int) -> tuple[str, bytes]:
    return f"cut to {place} bytes", data[:place]


def _remove(random: random_module.Random, data: bytes, place: int) -> tuple[str, bytes]:
    size = random.randint(1, 8)
    return f"{size} bytes removed at {place}", data[:place] + data[place + size :]


def _insert(random: random_module.Random, data: bytes, place: int) -> tuple[str, bytes]:
    more = bytes(random.choice((0, 1, 0x80, 0xFF, random.randrange(256))) for _ in range(random.randint(1, 8)))
    return f"{more.hex()} inserted at {place}", data[:place] + more + data[place:]


def _repeat(random: random_module.Random, data: bytes, place: int) -> tuple[str, bytes]:
    size = random.randint(1, 80)
    return f"{size} bytes at {place} repeated", data[: place + size] + data[place:]


def _header_value(random: random_module.Random, data: bytes, place: int) -> tuple[str, bytes]:
    position = max((at for at in batch_positions(data) if at <= place), default=0)
    fields = MESSAGE_FIELDS if is_message(data, position) else HEADER_FIELDS
    name = random.choice(sorted(fields))
    start, code = fields[name]
    edited = bytearray(data)
    value = random.choice(_odd_values(code))
    if position + start + struct.calcsize(">" + code) <= len(data):
        struct.pack_into(">" + code, edited, position + start, value)
    return f"{name} of the batch at {position} set to {value}", bytes(edited)


def _payload_grows(random: random_module.Random, data: bytes, place: int) -> tuple[str, bytes]:
    """Insert or remove bytes in a batch and update its length, so that the next batch is still found."""
    positions = batch_positions(data)
    position = max((at for at in positions if at <= place), default=None)
    begin, least = (18, 14) if position is not None and is_message(data, position) else (61, 49)
    if position is None or place < position + begin:
        return _flip_bit(random, data, place)
    name, edited = random.choice((_insert, _remove))(random, data, place)
    length = struct.unpack_from(">i", data, position + 8)[0] + len(edited) - len(data)
    if not least <= length < 1 << 31:
        return _flip_bit(random, data, place)
    return f"{name}, length following", edited[: position + 8] + struct.pack(">i", length) + edited[position + 12 :]


EDITS = (_flip_bit, _set_byte, _cut, _remove, _insert, _repeat, _header_value, _payload_grows, _payload_grows)


def random_edit(random: random_module.Random, data: bytes, repair: bool | None = None) -> tuple[str, bytes]:
    """Make one edit, or sometimes two or three. With repair, the CRC of each edited batch is corrected."""
    if repair is None:
        repair = random.random() < 0.7
    names = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if not data:
            break
        place = random.randrange(len(data))
        name, data = random.choice(EDITS)(random, data, place)
        data = _repaired(data, min(place, max(len(data) - 1, 0)), repair)
        names.append(name)
    return ", then ".join(names) + (", crc right" if repair else ""), data
