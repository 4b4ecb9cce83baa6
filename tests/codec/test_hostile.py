# SPDX-License-Identifier: Apache-2.0
"""Bytes of bad intent: what each case answers, at limits of 16 and 128 MiB; memory and time are in test_bombs.py."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from batch_writer import FLAVOURS, RecordSpec, build_batch, build_record, compress, control_batch, varint
from edits import every_cut, with_payload
from guarded_memory import GOOD, RECORDS, batch, every_payload

import kcodec
from kcodec import CorruptBatchError, DecodeError, DecodeLimits, LimitExceededError, UnsupportedError

MIB = 1 << 20
TESTS = Path(__file__).resolve().parent.parent
COMPRESSED = [codec for codec in FLAVOURS if codec != "none"]
BEHIND = build_batch([RecordSpec(value=b"behind")], base_offset=50)
PLAIN = b"".join(build_record(spec, at) for at, spec in enumerate(RECORDS))


@pytest.fixture(params=[16 * MIB, 128 * MIB], ids=["16MiB", "128MiB"])
def limits(request: pytest.FixtureRequest) -> DecodeLimits:
    return DecodeLimits(max_batch_bytes=request.param, max_decompressed_bytes=request.param)


def refusal(batch: bytes, limits: DecodeLimits, **options: Any) -> DecodeError:
    """The error for `batch` behind a good one; the same under every on_error, and nothing of it is delivered."""
    data = GOOD + batch
    with pytest.raises(DecodeError) as raised:
        kcodec.decode(data, limits=limits, **options)
    error = raised.value
    assert error.position == len(GOOD)
    assert error.reason in str(error)
    assert f"batch at byte {len(GOOD)}" in str(error)
    assert error.decoded is not None
    assert list(error.decoded.column("value")) == [b"first", b"second"]
    stopped = kcodec.decode(data, limits=limits, on_error="stop", **options)
    assert type(stopped.error) is type(error)
    assert list(stopped.column("value")) == [b"first", b"second"]
    assert stopped.next_offset == 2
    skipped = kcodec.decode(data + BEHIND, limits=limits, on_error="skip", **options)
    assert type(skipped.error) is type(error)
    assert list(skipped.column("value")) in ([b"first", b"second"], [b"first", b"second", b"behind"])
    return error


def assert_damaged(batch: bytes, limits: DecodeLimits, text: str, record: int | None = None, **options: Any) -> None:
    error = refusal(batch, limits, **options)
    assert type(error) is DecodeError
    assert text in error.reason
    assert error.record == record
    assert error.base_offset == 10


# ------------------------------------------------------------------------------------------------- structure and header


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 13])
def test_batch_length_below_any_batch(length: int, limits: DecodeLimits) -> None:
    assert_damaged(batch(batch_length=length), limits, f"batch_length {length} is below 14")


@pytest.mark.parametrize("length", [14, 48])
def test_batch_length_below_a_header_of_magic_2(length: int, limits: DecodeLimits) -> None:
    assert_damaged(batch(batch_length=length), limits, f"batch_length {length} is below 49")


def test_batch_length_above_the_limit_is_refused_before_anything_is_read(limits: DecodeLimits) -> None:
    for length in (limits.max_batch_bytes + 1, (1 << 31) - 1):
        error = refusal(batch(batch_length=length), limits)
        assert isinstance(error, LimitExceededError)
        assert (error.limit, error.value, error.claimed) == ("max_batch_bytes", limits.max_batch_bytes, length)


@pytest.mark.parametrize("magic", [3, 127, -1])
def test_other_magics_are_unsupported_and_the_records_before_are_handed_over(magic: int, limits: DecodeLimits) -> None:
    error = refusal(batch(magic=magic), limits)
    assert isinstance(error, UnsupportedError)
    assert f"magic {magic} is not supported" in error.reason


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_unsupported(codec: int, limits: DecodeLimits) -> None:
    error = refusal(batch(unused_attributes=codec), limits)
    assert isinstance(error, UnsupportedError)
    assert f"compression id {codec}" in error.reason


def test_a_wrong_crc_says_both(limits: DecodeLimits) -> None:
    right = struct.unpack_from(">I", batch(), 17)[0]
    error = refusal(batch(crc=1), limits)
    assert isinstance(error, CorruptBatchError)
    assert (error.stored_crc, error.computed_crc) == (1, right)
    assert len(kcodec.decode(batch(crc=1), check_crcs=False, limits=limits)) == 3


def test_the_second_of_three_is_bad(limits: DecodeLimits) -> None:
    data = GOOD + batch(crc=1) + BEHIND
    skipped = kcodec.decode(data, on_error="skip", limits=limits)
    assert list(skipped.column("value")) == [b"first", b"second", b"behind"]
    assert skipped.counts == kcodec.Counts(batches=3, skipped_batches=1, records=3)
    assert skipped.error is not None and skipped.error.next_offset == 13
    assert skipped.next_offset == 51


@pytest.mark.parametrize("name", ["last_offset_delta", "records_count"])
@pytest.mark.parametrize("value", [-1, -(1 << 31)])
def test_negative_counts(name: str, value: int, limits: DecodeLimits) -> None:
    assert_damaged(batch(**{name: value}), limits, f"{name} {value} is negative")


def test_an_offset_beyond_int64(limits: DecodeLimits) -> None:
    wrong = batch(base_offset=(1 << 63) - 2)
    error = refusal(wrong, limits)
    assert type(error) is DecodeError
    assert len(kcodec.decode(batch(base_offset=(1 << 63) - 3), limits=limits)) == 3


# ------------------------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("codec", FLAVOURS)
@pytest.mark.parametrize("count", [0, 2, 4, 1000, (1 << 31) - 1])
def test_record_count_wrong_either_way(codec: str, count: int, limits: DecodeLimits) -> None:
    error = refusal(batch(compression=codec, records_count=count), limits)
    assert type(error) is DecodeError


@pytest.mark.parametrize("codec", FLAVOURS)
def test_bytes_left_over(codec: str, limits: DecodeLimits) -> None:
    wrong = batch(compression=codec, edit_payload=lambda data: data + b"\x00")
    assert_damaged(wrong, limits, "1 bytes are left after the 3 records")


def record_with(**lies: int) -> bytes:
    """One record; `lies` replace its lengths."""
    body = b"\x00\x00\x00" + varint(lies.get("key_length", 1)) + b"k" + varint(lies.get("value_length", 1)) + b"v"
    body += varint(lies.get("headers_count", 1)) + varint(lies.get("name_length", 1)) + b"n"
    body += varint(lies.get("header_value_length", 1)) + b"x"
    return varint(len(body) + lies.get("record_length", 0)) + body


LIES = [
    *[(name, value) for name in ("key_length", "value_length", "name_length") for value in (12, 1000, (1 << 31) - 1)],
    *[("header_value_length", value) for value in (2, 100, (1 << 31) - 1)],
    *[("headers_count", value) for value in (-1, -(1 << 31), 0, 2, 100, (1 << 31) - 1)],
    *[("record_length", value) for value in (-20, -1, 1, 100)],
    *[("name_length", value) for value in (-1, -(1 << 31))],
]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize(("name", "value"), LIES)
def test_lengths_that_lie(name: str, value: int, codec: str, limits: DecodeLimits) -> None:
    wrong = batch(records=RECORDS[:1], compression=codec, edit_payload=lambda _: record_with(**{name: value}))
    error = refusal(wrong, limits)
    assert type(error) is DecodeError
    assert error.record == 0 or "cannot hold" in error.reason


def test_a_header_count_of_more_than_five_bytes(limits: DecodeLimits) -> None:
    body = b"\x00\x00\x00\x01\x01" + varint(1 << 62, bits=64)
    wrong = batch(records=RECORDS[:1], edit_payload=lambda _: varint(len(body)) + body)
    assert_damaged(wrong, limits, "headers_count is a varint of more than 5 bytes", record=0)


@pytest.mark.parametrize("delta", [-1, -(1 << 31), 3, (1 << 31) - 1])
@pytest.mark.parametrize("codec", FLAVOURS)
def test_offset_deltas_outside_the_batch(codec: str, delta: int, limits: DecodeLimits) -> None:
    records = [*RECORDS[:2], RecordSpec(value=b"x", offset_delta=delta)]
    wrong = batch(records=records, compression=codec, last_offset_delta=2)
    assert_damaged(wrong, limits, f"offset_delta {delta} is outside 0 to 2", record=2)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_an_offset_twice_is_refused_in_a_compressed_batch(codec: str, limits: DecodeLimits) -> None:
    records = [RecordSpec(value=b"x", offset_delta=0), RecordSpec(value=b"y", offset_delta=0)]
    assert_damaged(batch(records=records, compression=codec, last_offset_delta=1), limits, "not above", record=1)
    plain = kcodec.decode(batch(records=records, last_offset_delta=1), limits=limits)
    assert list(plain.column("offset")) == [10, 10]


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00"])
def test_a_control_record_without_a_readable_key(key: bytes | None, limits: DecodeLimits) -> None:
    wrong = build_batch([RecordSpec(key=key)], is_control_batch=True, producer_id=3, base_offset=10)
    assert_damaged(wrong, limits, "control record key", record=0, control_records="include")
    assert_damaged(wrong, limits, "control record key", record=0, isolation_level="read_committed")


# ------------------------------------------------------------------------------------------------- compressed streams


@pytest.mark.parametrize("codec", COMPRESSED)
def test_an_empty_or_foreign_stream(codec: str, limits: DecodeLimits) -> None:
    for stream in (b"", b"\x00", b"\xff" * 40, PLAIN, compress(codec, b"")):
        error = refusal(with_payload(batch(compression=codec), stream), limits)
        assert type(error) in (DecodeError, LimitExceededError)  # foreign bytes may claim any size


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_stream_cut_anywhere(codec: str, limits: DecodeLimits) -> None:
    for flavour in FLAVOURS[codec]:
        whole = compress(codec, PLAIN, flavour)
        for size in range(0, len(whole), 3):
            answer = kcodec.decode(with_payload(batch(compression=codec), whole[:size]), limits=limits, on_error="stop")
            if answer.error is None:  # what was cut off was behind the stream
                assert list(answer.column("value")) == [spec.value for spec in RECORDS]
            else:
                assert type(answer.error) in (DecodeError, LimitExceededError)
                assert len(answer) == 0


@pytest.mark.parametrize("claim", [1 << 32, (1 << 32) - 1, 1 << 31, 1 << 63])
def test_a_snappy_claim_of_gibibytes_in_a_few_bytes(claim: int, limits: DecodeLimits) -> None:
    raw = bytearray()
    while claim > 0x7F:
        raw.append(claim & 0x7F | 0x80)
        claim >>= 7
    error = refusal(batch_of_stream("snappy", bytes([*raw, claim, 0, 0])), limits)
    assert type(error) in (DecodeError, LimitExceededError)


def batch_of_stream(codec: str, stream: bytes) -> bytes:
    return with_payload(batch(compression=codec), stream)


@pytest.mark.parametrize("size", [-1, 0, -(1 << 31), (1 << 31) - 1])
def test_xerial_blocks_of_impossible_size(size: int, limits: DecodeLimits) -> None:
    stream = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, size) + bytes(10)
    assert type(refusal(batch_of_stream("snappy", stream), limits)) is DecodeError


def test_lz4_checksums_and_a_second_frame(limits: DecodeLimits) -> None:
    whole = bytearray(compress("lz4", PLAIN, "all"))
    header, block, content = 14, whole.rindex(b"\x00\x00\x00\x00") - 4, len(whole) - 1
    for place in (header, block, content):
        wrong = bytearray(whole)
        wrong[place] ^= 1
        assert type(refusal(batch_of_stream("lz4", bytes(wrong)), limits)) is DecodeError
    halves = [b"".join(build_record(spec, at) for at, spec in pair) for pair in ([(0, RECORDS[0])], [(1, RECORDS[1])])]
    frames = b"".join(compress("lz4", half) for half in halves)
    assert type(refusal(with_payload(batch(records=RECORDS[:2], compression="lz4"), frames), limits)) is DecodeError


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_way_a_stream_may_be_written_is_read(codec: str, limits: DecodeLimits) -> None:
    for flavour in FLAVOURS[codec]:
        decoded = kcodec.decode(batch(compression=codec, flavour=flavour), limits=limits)
        assert list(decoded.column("value")) == [spec.value for spec in RECORDS], flavour


# ------------------------------------------------------------------------------------------------- accepted, as by Java


def only(data: bytes, limits: DecodeLimits, **options: Any) -> kcodec.Record:
    (record,) = kcodec.decode(data, limits=limits, **options).records()
    return record


@pytest.mark.parametrize("negative", [-1, -2, -(1 << 31)])
def test_any_negative_length_is_null(negative: int, limits: DecodeLimits) -> None:
    spec = RecordSpec(key=None, value=None, headers=((b"h", None),), null_length=negative)
    record = only(batch(records=[spec]), limits)
    assert (record.key, record.value, record.headers) == (None, None, (("h", None),))


@pytest.mark.parametrize("padding", range(1, 10))
def test_overlong_varints(padding: int, limits: DecodeLimits) -> None:
    spec = RecordSpec(key=b"k", value=b"v", headers=((b"h", b"x"),), timestamp_delta=-3, padding=padding)
    plain = RecordSpec(key=b"k", value=b"v", headers=((b"h", b"x"),), timestamp_delta=-3)
    assert only(batch(records=[spec]), limits) == only(batch(records=[plain]), limits)


def test_unused_attribute_bits(limits: DecodeLimits) -> None:
    assert only(batch(records=[RecordSpec(value=b"v", attributes=0x80)]), limits).value == b"v"
    assert only(batch(records=[RecordSpec(value=b"v")], unused_attributes=0xFF80), limits).value == b"v"


def test_timestamps_wrap(limits: DecodeLimits) -> None:
    spec = RecordSpec(timestamp_delta=(1 << 63) - 1)
    assert only(batch(records=[spec], base_timestamp=1), limits).timestamp == -(1 << 63)


def test_header_names_that_are_not_utf_8(limits: DecodeLimits) -> None:
    record = only(batch(records=[RecordSpec(headers=((b"\xed\xa0\x80", b"x"), (b"\xff", None)))]), limits)
    names = [name.encode("utf-8", "surrogateescape") for name, _ in record.headers]
    assert names == [b"\xed\xa0\x80", b"\xff"]


def test_an_abort_marker_of_a_newer_version_and_an_unknown_control_type(limits: DecodeLimits) -> None:
    producer: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    data = build_batch([RecordSpec(value=b"aborted")], base_offset=0, **producer)
    data += control_batch(5, b"", base_offset=1, producer_id=1)
    data += build_batch([RecordSpec(value=b"aborted too")], base_offset=2, **producer)
    key = RecordSpec(key=struct.pack(">hhi", 9, 0, 7), value=b"")
    data += build_batch([key], is_control_batch=True, base_offset=3, **{**producer, "base_sequence": -1})
    data += build_batch([RecordSpec(value=b"alone")], base_offset=4)
    for aborted in (None, [kcodec.AbortedTransaction(1, 0)]):
        decoded = kcodec.decode(data, isolation_level="read_committed", aborted_transactions=aborted, limits=limits)
        assert list(decoded.column("value")) == [b"alone"]
        assert decoded.next_offset == 5


# --------------------------------------------------------------------------------------------------- cut, and page ends


def test_a_cut_last_batch_is_no_corruption(limits: DecodeLimits) -> None:
    for _, cut in every_cut(batch()):
        decoded = kcodec.decode(GOOD + cut, limits=limits)
        assert list(decoded.column("value")) == [b"first", b"second"]
        assert decoded.remaining_bytes == len(cut)
        assert decoded.bytes_needed == (0 if not cut else 61 if len(cut) < 12 else len(batch()))


GUARDED = r"""
import sys
import kcodec
from guarded_memory import at_the_end_of_memory, every_payload
asked = 0
for data in every_payload():
    memory, view = at_the_end_of_memory(data)
    for binary_type in ("binary", "binary_view"):
        for threads in (1, 2):
            decoded = kcodec.decode(view, on_error="stop", binary_type=binary_type, threads=threads, check_crcs=False)
            list(decoded.records())
            asked += 1
    del decoded
    view.release()
print(asked)
"""


def test_nothing_is_read_behind_the_last_byte() -> None:
    """A page that cannot be read stands there; in a process of its own, which a read would end."""
    done = subprocess.run(
        [sys.executable, "-c", GUARDED], cwd=TESTS / "support", capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == 4 * len(every_payload())
