# SPDX-License-Identifier: Apache-2.0
"""Comparison of a decoder's results with those of Kafka's classes, and the tables of differences that are allowed.

If Kafka reads a batch, the decoder must read the same records, or reject the batch for a reason of STRICTER (a fault
that would lose or change data unnoticed, or one of the compressed stream that Kafka's libraries do not check). If Kafka
rejects a batch, the decoder must reject it, too, except for the reasons of LENIENT (formats that other clients write).
Each entry decides only by the bytes and Kafka's results whether it applies to a batch, so a defect of the decoder is
not excused.
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
    """Return the index of the first batch that Kafka's consumer rejects, len(batches) if reading them stopped, else
    None."""
    for index, batch in enumerate(judged.batches):
        if not batch.accepted:
            return index
    return len(judged.batches) if judged.error else None


# Cases in which kcodec is stricter than Kafka: whether this batch, which Kafka reads, is one.


def codec(raw: bytes) -> int:
    """Return the codec bits; -1 if the batch is too short."""
    if is_message(raw, 0):
        return raw[17] & 7
    return field(raw, "attributes") & 7 if len(raw) >= HEADER else -1


def stream_of(raw: bytes) -> bytes:
    """Return the compressed part of a batch: the bytes after its header, or the value of a message of magic 0 or 1."""
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
    """Return whether the content checksum is wrong, which Kafka's reader does not check, but liblz4 does."""
    if codec(raw) != LZ4:
        return False
    try:
        lz4.frame.decompress(stream_of(raw))
    except MemoryError:  # it trusts the size in the frame
        return False
    except RuntimeError as error:
        return "hecksum" in str(error)
    return False


def lz4_size_is_wrong(batch: JudgedBatch, raw: bytes) -> bool:
    """Return whether the content size is wrong, which Kafka's reader does not check. In magic 2 missing records are
    found by records_count, but not in magic 0 and 1."""
    frame = stream_of(raw)
    if batch.magic > 1 or codec(raw) != LZ4 or len(frame) < 15 or not frame[4] & 8:
        return False
    unsized = with_right_checksum(frame[:4] + bytes([frame[4] & ~8]) + frame[5:6] + frame[14:])
    try:
        return bool(len(decompress(LZ4, unsized, 128 << 20)) != struct.unpack_from("<Q", frame, 6)[0])
    except (StreamError, StreamLimit):
        return False


def lz4_blocks(raw: bytes) -> list[tuple[int, bytes]]:
    """Yield the length word and the bytes of each block of an lz4 frame, as far as they are complete."""
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
    """A match with an offset of 0, for which liblz4 copies zeros."""

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
    """Return the number of bytes after the last whole block of a xerial stream; snappy-java ignores up to three."""
    stream, position = stream_of(raw), XERIAL_HEADER
    if codec(raw) != SNAPPY or not stream.startswith(XERIAL_MAGIC):
        return 0
    while len(stream) - position >= 4:
        is_header = stream.startswith(XERIAL_MAGIC[:4], position)
        position += XERIAL_HEADER if is_header else 4 + max(0, struct.unpack_from(">i", stream, position)[0])
    return max(0, len(stream) - position)


def has_odd_xerial_block(raw: bytes) -> bool:
    """Return whether there is a block length of 0 or below, which snappy-java treats as the end, or a later header that
    is only partly one."""
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
    """Return the version in the header of a xerial stream, which snappy-java does not check; 1 if there is no
    header."""
    if codec(raw) != SNAPPY or not stream_of(raw).startswith(XERIAL_MAGIC):
        return 1
    version: int = struct.unpack_from(">i", stream_of(raw), len(XERIAL_MAGIC))[0]
    return version


def holds_another_magic(raw: bytes) -> bool:
    """Return whether a compressed message of magic 0 or 1 contains a message of another magic, which Java reads as
    1."""
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
    """Return whether a frame after the first one is incomplete, which zstd-jni does not report if it has returned no
    data of that frame."""
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
    """Return whether a later header is valid only in its first word: snappy-java does not check the rest."""
    stream = raw[HEADER:]
    if codec(raw) != SNAPPY or not stream.startswith(XERIAL_MAGIC):
        return False
    at = stream.find(XERIAL_MAGIC[:4], 1)
    while at >= 0 and stream[at:].startswith(XERIAL_MAGIC):
        at = stream.find(XERIAL_MAGIC[:4], at + 1)
    return at >= 0


def has_short_gzip_member_behind(raw: bytes) -> bool:
    """Return whether there are at most 18 bytes after a member, the size of its header and trailer, which Java
    ignores."""
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

# Cases in which kcodec reads a batch that Kafka rejects.

LENIENT: Table = {
    "linked lz4 blocks": lambda batch, raw: (
        codec(raw) == LZ4 and len(stream_of(raw)) > 4 and not stream_of(raw)[4] & 0x20
    ),
    # Java allocates memory for the declared size of a message before it checks whether its bytes are available.
    "a cut message inside that says it is larger than Java's memory": lambda batch, raw: (
        batch.magic < 2
        and "OutOfMemoryError" in [error.name for error in (batch.header_error, batch.records_error) if error]
    ),
}


def reasons(table: Table, batch: JudgedBatch, data: bytes) -> list[str]:
    """Return the names of the cases in `table` that apply to this batch."""
    raw = data[batch.position : batch.position + batch.size]
    return [name for name, applies in table.items() if applies(batch, raw)]


def judged_records(batches: Sequence[JudgedBatch]) -> list[JudgedRecord]:
    return [record for batch in batches for record in batch.records]


def compare(data: bytes, judged: JudgedRecordSet, decode: Decode) -> str:
    """Compare a decoder with Kafka's results. Return which case applied, for counting them."""
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
        # A length that is invalid for this magic is reported before it is known that the batch is incomplete.
        length, magic = struct.unpack_from(">i", data, judged.valid_bytes + 8)[0], data[judged.valid_bytes + 16]
        assert outcome.is_over_limit or length < {1: 22, 2: 49}[magic], outcome.error
    else:
        batch = judged.batches[stopped]
        assert reasons(STRICTER, batch, data), f"refused: {outcome.error}; Kafka reads {batch}"
    return "refused by us alone"


def assert_same_records(outcome: Outcome, batches: Sequence[JudgedBatch]) -> None:
    """Compare all fields of each record."""
    assert outcome.records == judged_records(batches)
    types = [batch.header["timestampType"] for batch in batches for _ in batch.records]
    assert outcome.timestamp_types == types
    assert outcome.sequences == [sequence for batch in batches for sequence in batch.sequences]
    reported = [pair for pair in outcome.controls if pair[0] is not None]
    controls = [(control.type_id, control.coordinator_epoch) for batch in batches for control in batch.controls]
    assert [type_id for type_id, _ in reported] == [type_id for type_id, _ in controls]
    ends = [(type_id, epoch) for type_id, epoch in controls if type_id in (ABORT, COMMIT)]
    assert [pair for pair in reported if pair[0] in (ABORT, COMMIT)] == ends
