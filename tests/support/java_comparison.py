# SPDX-License-Identifier: Apache-2.0
"""How a decoder's answer is held to that of Kafka's classes, and the tables of where the two may differ.

Where Kafka reads a batch, the decoder reads the same or refuses it for a reason of STRICTER (a fault that would lose
or change data unseen, or one of the compressed stream that Kafka's libraries overlook). Where Kafka refuses one, the
decoder refuses it too, but for the reasons of LENIENT (what other clients may write). Each entry tells from the bytes
and the judge's answer alone whether a batch is a case of it, so a fault of the decoder finds no excuse there.
"""

from __future__ import annotations

import bisect
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence

import lz4.frame
import zstandard
from edits import is_message
from java_answers import JudgedBatch, JudgedRecord, JudgedRecordSet
from java_edits import HEADER, field
from java_logs import ABORT, COMMIT
from java_subjects import Outcome
from reference_codecs import StreamError, StreamLimit, decompress
from reference_legacy import with_right_checksum

Decode = Callable[..., Outcome]
Table = dict[str, Callable[[JudgedBatch, bytes], bool]]

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = 16
ODD_END_MARK = 0x8000_0000


def accepted_prefix(judged: JudgedRecordSet) -> int | None:
    """Index of the first batch that Kafka's consumer refuses, len(batches) if walking them stopped, else None."""
    for index, batch in enumerate(judged.batches):
        if not batch.accepted:
            return index
    return len(judged.batches) if judged.error else None


# Where kcodec is stricter than Kafka: whether this batch, which Kafka reads, is a case of it.


def codec(raw: bytes) -> int:
    """The codec bits, -1 in a batch too short to have them."""
    if is_message(raw, 0):
        return raw[17] & 7
    return field(raw, "attributes") & 7 if len(raw) >= HEADER else -1


def stream_of(raw: bytes) -> bytes:
    """What is compressed in a batch: what follows its header, or the value of a message of magic 0 or 1."""
    if not is_message(raw, 0):
        return raw[HEADER:]
    at = 26 if raw[16] else 18
    at += 4 + max(0, struct.unpack_from(">i", raw, at)[0])
    if len(raw) - at < 4:
        return b""
    (size,) = struct.unpack_from(">i", raw, at)
    stream = raw[at + 4 : at + 4 + max(0, size)]
    return with_right_checksum(stream) if raw[16] == 0 and raw[17] & 7 == LZ4 else stream


def offset_deltas(batch: JudgedBatch) -> list[int]:
    return [record.offset - batch.header["baseOffset"] for record in batch.records]


def lz4_checksum_is_wrong(batch: JudgedBatch, raw: bytes) -> bool:
    """Kafka's reader skips the content checksum; liblz4, the judge of this, does not."""
    if codec(raw) != LZ4:
        return False
    try:
        lz4.frame.decompress(stream_of(raw))
    except MemoryError:  # it believes what the frame says of its size
        return False
    except RuntimeError as error:
        return "hecksum" in str(error)
    return False


def lz4_size_is_wrong(batch: JudgedBatch, raw: bytes) -> bool:
    """Kafka's reader skips the content size. Of magic 2 records_count tells what is missing, here nothing does."""
    frame = stream_of(raw)
    if batch.magic > 1 or codec(raw) != LZ4 or len(frame) < 15 or not frame[4] & 8:
        return False
    unsized = with_right_checksum(frame[:4] + bytes([frame[4] & ~8]) + frame[5:6] + frame[14:])
    try:
        return bool(len(decompress(LZ4, unsized, 128 << 20)) != struct.unpack_from("<Q", frame, 6)[0])
    except (StreamError, StreamLimit):
        return False


def lz4_blocks(raw: bytes) -> list[tuple[int, bytes]]:
    """The length word and the bytes of each block of an lz4 frame, as far as there are any."""
    stream = stream_of(raw)
    if codec(raw) != LZ4 or len(stream) < 7:
        return []
    position, blocks = 15 if stream[4] & 0x08 else 7, []
    while len(stream) - position >= 4:
        (claimed,) = struct.unpack_from("<I", stream, position)
        length = claimed & ~ODD_END_MARK
        blocks.append((claimed, stream[position + 4 : position + 4 + length]))
        position += 4 + length + (4 if stream[4] & 0x10 else 0)
    return blocks


def has_lz4_match_of_offset_0(raw: bytes) -> bool:
    """A match that refers to no place at all: liblz4 copies zeros there."""

    def length(block: Iterator[int], nibble: int) -> int:
        added = 255 if nibble == 15 else 0
        while added == 255:
            added = next(block)
            nibble += added
        return nibble

    for block in (iter(block) for claimed, block in lz4_blocks(raw) if claimed & ODD_END_MARK == 0):
        try:
            while True:
                token = next(block)
                for _ in range(length(block, token >> 4)):
                    next(block)
                if next(block) + next(block) == 0:
                    return True
                length(block, token & 15)
        except StopIteration:
            continue
    return False


def xerial_leftover(raw: bytes) -> int:
    """How many bytes stand behind the last whole block of a xerial stream; snappy-java overlooks up to three."""
    stream, position = stream_of(raw), XERIAL_HEADER
    if codec(raw) != SNAPPY or not stream.startswith(XERIAL_MAGIC):
        return 0
    while len(stream) - position >= 4:
        is_header = stream.startswith(XERIAL_MAGIC[:4], position)
        position += XERIAL_HEADER if is_header else 4 + max(0, struct.unpack_from(">i", stream, position)[0])
    return max(0, len(stream) - position)


def has_odd_xerial_block(raw: bytes) -> bool:
    """A block length of 0 or below, which snappy-java takes for the end; a later header that only begins as one."""
    stream, position = stream_of(raw), XERIAL_HEADER
    if codec(raw) != SNAPPY or not stream.startswith(XERIAL_MAGIC):
        return False
    while len(stream) - position >= 4:
        length = struct.unpack_from(">i", stream, position)[0]
        if stream.startswith(XERIAL_MAGIC, position):
            position += XERIAL_HEADER
        elif length <= 0:
            return True
        else:
            position += 4 + length
    return False


def xerial_version(raw: bytes) -> int:
    """The version in a xerial stream's header, 1 if it has none: snappy-java does not look at it."""
    if codec(raw) != SNAPPY or not stream_of(raw).startswith(XERIAL_MAGIC):
        return 1
    version: int = struct.unpack_from(">i", stream_of(raw), len(XERIAL_MAGIC))[0]
    return version


def holds_another_magic(raw: bytes) -> bool:
    """Whether a compressed message of magic 0 or 1 holds one of neither: Java reads whatever is not 0 as 1."""
    if not is_message(raw, 0) or not raw[17] & 7:
        return False
    try:
        messages, at = decompress(codec(raw), stream_of(raw), 128 << 20), 0
    except (StreamError, StreamLimit):
        return False
    while len(messages) - at > 16:
        if messages[at + 16] > 1:
            return True
        at += 12 + struct.unpack_from(">i", messages, at + 8)[0]
    return False


def has_cut_zstd_frame_behind(raw: bytes) -> bool:
    """A frame behind the first one that ends early: zstd-jni does not miss what it has not begun to give out."""
    frames = 0
    left = stream_of(raw) if codec(raw) == ZSTD else b""
    while left:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            decompressor.decompress(left)
        except zstandard.ZstdError:
            return False
        if not decompressor.eof:
            return frames > 0
        frames, left = frames + 1, decompressor.unused_data
    return False


def has_other_xerial_header_behind(raw: bytes) -> bool:
    """One further in that is right in its first word only: snappy-java does not look at the rest of it."""
    stream = raw[HEADER:]
    if codec(raw) != SNAPPY or not stream.startswith(XERIAL_MAGIC):
        return False
    at = stream.find(XERIAL_MAGIC[:4], 1)
    while at >= 0 and stream[at:].startswith(XERIAL_MAGIC):
        at = stream.find(XERIAL_MAGIC[:4], at + 1)
    return at >= 0


def has_short_gzip_member_behind(raw: bytes) -> bool:
    """At most 18 bytes behind a member, the size of an empty one's header and end: Java does not look at them."""
    left = raw[HEADER:] if codec(raw) == GZIP else b""
    while left:
        member = zlib.decompressobj(31)
        try:
            member.decompress(left)
        except zlib.error:
            return False
        if not member.eof:
            return False
        left = member.unused_data
        if 0 < len(left) <= 18:
            return True
    return False


STRICTER: Table = {
    "a message of another magic inside a compressed one": lambda batch, raw: holds_another_magic(raw),
    "count 0 with bytes behind": lambda batch, raw: batch.header["recordsCount"] == 0 and len(raw) > HEADER,
    "lastOffsetDelta below 0": lambda batch, raw: batch.magic == 2 and field(raw, "last_offset_delta") < 0,
    "an offset delta below 0": lambda batch, raw: batch.magic == 2 and any(delta < 0 for delta in offset_deltas(batch)),
    "an offset delta above lastOffsetDelta": lambda batch, raw: (
        batch.magic == 2 and any(delta > field(raw, "last_offset_delta") for delta in offset_deltas(batch))
    ),
    "an offset not above the last one in a compressed batch": lambda batch, raw: (
        batch.magic == 2
        and codec(raw) != 0
        and any(after <= before for before, after in zip(offset_deltas(batch), offset_deltas(batch)[1:], strict=False))
    ),
    "a next offset beyond int64": lambda batch, raw: (
        batch.magic == 2 and field(raw, "base_offset") + field(raw, "last_offset_delta") >= 2**63 - 1
    ),
    "a wrong lz4 content checksum": lz4_checksum_is_wrong,
    "a wrong lz4 content size": lz4_size_is_wrong,
    "a xerial block of no length, or no whole header": lambda batch, raw: has_odd_xerial_block(raw),
    "an lz4 end mark with its top bit set": lambda batch, raw: ODD_END_MARK in dict(lz4_blocks(raw)),
    "an lz4 match of offset 0": lambda batch, raw: has_lz4_match_of_offset_0(raw),
    "one to three bytes behind the last xerial block": lambda batch, raw: 0 < xerial_leftover(raw) < 4,
    "a xerial version below 1": lambda batch, raw: xerial_version(raw) < 1,
    "a cut zstd frame behind the first": lambda batch, raw: has_cut_zstd_frame_behind(raw),
    "a later xerial header right in its first word only": lambda batch, raw: has_other_xerial_header_behind(raw),
    "a cut gzip member of at most 18 bytes behind others": lambda batch, raw: has_short_gzip_member_behind(raw),
    "a control record without a readable type": lambda batch, raw: any(control.error for control in batch.controls),
}

# Where kcodec reads what Kafka refuses.

LENIENT: Table = {
    "linked lz4 blocks": lambda batch, raw: (
        codec(raw) == LZ4 and len(stream_of(raw)) > 4 and not stream_of(raw)[4] & 0x20
    ),
    # Java allocates what a message inside says before it looks whether it is there
    "a cut message inside that says it is larger than Java's memory": lambda batch, raw: (
        batch.magic < 2
        and "OutOfMemoryError" in [error.name for error in (batch.header_error, batch.records_error) if error]
    ),
}


def reasons(table: Table, batch: JudgedBatch, data: bytes) -> list[str]:
    """The names of the cases in `table` that this batch is one of."""
    raw = data[batch.position : batch.position + batch.size]
    return [name for name, applies in table.items() if applies(batch, raw)]


def judged_records(batches: Sequence[JudgedBatch]) -> list[JudgedRecord]:
    return [record for batch in batches for record in batch.records]


def compare(data: bytes, judged: JudgedRecordSet, decode: Decode) -> str:
    """Hold a decoder to the judge's answer; returns which way it went, for the count of cases."""
    outcome = decode(data, control_records="include")
    refused = accepted_prefix(judged)
    if outcome.error is None:
        if refused is None:
            assert_same_records(outcome, judged.batches)
            return "read by both"
        assert refused < len(judged.batches), f"Kafka stops at byte {judged.valid_bytes}: {judged.error}"
        batch = judged.batches[refused]
        assert reasons(LENIENT, batch, data), f"Kafka refuses {batch}"
        before = judged_records(judged.batches[:refused])
        assert outcome.records[: len(before)] == before
        return "read by us alone"
    stopped = bisect.bisect_right([batch.position for batch in judged.batches], outcome.error_position) - 1
    stopped = len(judged.batches) if outcome.error_position >= judged.valid_bytes else stopped
    if refused is not None and stopped > refused:
        assert reasons(LENIENT, judged.batches[refused], data), f"Kafka refuses {judged.batches[refused]}"
        return "refused by both"
    assert_same_records(outcome, judged.batches[:stopped])
    if refused == stopped:
        return "refused by both"
    if stopped == len(judged.batches):
        # a length that no batch of this magic has is refused before it is known that the batch is cut
        length, magic = struct.unpack_from(">i", data, judged.valid_bytes + 8)[0], data[judged.valid_bytes + 16]
        assert outcome.is_over_limit or length < {1: 22, 2: 49}[magic], outcome.error
    else:
        batch = judged.batches[stopped]
        assert reasons(STRICTER, batch, data), f"refused: {outcome.error}; Kafka reads {batch}"
    return "refused by us alone"


def assert_same_records(outcome: Outcome, batches: Sequence[JudgedBatch]) -> None:
    """All that both read out of each record."""
    assert outcome.records == judged_records(batches)
    types = [batch.header["timestampType"] for batch in batches for _ in batch.records]
    assert outcome.timestamp_types == types
    assert outcome.sequences == [sequence for batch in batches for sequence in batch.sequences]
    reported = [pair for pair in outcome.controls if pair[0] is not None]
    controls = [(control.type_id, control.coordinator_epoch) for batch in batches for control in batch.controls]
    assert [type_id for type_id, _ in reported] == [type_id for type_id, _ in controls]
    ends = [(type_id, epoch) for type_id, epoch in controls if type_id in (ABORT, COMMIT)]
    assert [pair for pair in reported if pair[0] in (ABORT, COMMIT)] == ends
