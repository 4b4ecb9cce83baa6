# SPDX-License-Identifier: Apache-2.0
"""The offset at which a reader continues after corruption is never one that it has already read.

A CRC does not cover the base offset of a batch, and an invalid header has no CRC at all.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest

import kcodec
from kcodec import DecodeError, _fast


def encoded(base_offset: int) -> bytes:
    return bytes(kcodec.encode([(b"k", b"v")] * 10, base_offset=base_offset, timestamp=1))


def with_base(data: bytes, base_offset: int) -> bytearray:
    """Return the batch with another base offset. Its CRC stays valid, because it does not cover the base offset."""
    return bytearray(struct.pack(">q", base_offset) + data[8:])


def corrupt(data: bytes | bytearray) -> bytes:
    """Return the batch with a wrong CRC."""
    return bytes(data[:-1]) + bytes([data[-1] ^ 1])


def refused(data: bytes, **options: Any) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        kcodec.decode(data, **options)
    return caught.value


INVALID = {
    "zeros": bytes(100),
    "few zeros": bytes(16),
    "length 0, base offset 50": struct.pack(">qi", 50, 0) + bytes(80),
    "base offset -1": b"\xff" * 100,
    "magic 9, base offset 50": struct.pack(">qiib", 50, 80, 0, 9) + bytes(80),
    "wrong CRC, base offset 3": corrupt(with_base(encoded(110), 3)),
    "wrong CRC, base offset -3": corrupt(with_base(encoded(110), -3)),
}


@pytest.mark.parametrize("tail", INVALID.values(), ids=INVALID)
def test_next_offset_is_after_the_last_valid_batch(tail: bytes) -> None:
    for on_error in ("stop", "skip"):
        decoded = kcodec.decode(encoded(100) + tail, on_error=on_error)
        assert (len(decoded), decoded.next_offset) == (10, 110)
        assert decoded.error is not None
        assert decoded.error.next_offset is None
    error = refused(encoded(100) + tail)
    assert error.decoded is not None
    assert error.decoded.next_offset == 110
    with pytest.raises(DecodeError) as caught:
        _fast.decode_fetch(encoded(100) + tail, topic="t", partition=0, start_offset=100)
    assert caught.value.decoded is not None
    assert caught.value.decoded.next_offset == 110


@pytest.mark.parametrize("base_offset", [3, 90, 100])
def test_next_offset_of_an_error_is_not_before_the_position(base_offset: int) -> None:
    """The corrupt batch ends at or before the offset 109, which was read, although the next header agrees with it."""
    data = encoded(100) + corrupt(with_base(encoded(110), base_offset)) + encoded(120)
    assert refused(data).next_offset is None
    assert kcodec.decode(data, on_error="skip").error.next_offset is None  # type: ignore[union-attr]
    fetched = _fast.FetchedRecords(data, topic="t", partition=0, start_offset=100)
    assert len(fetched.take(100)) == 10
    assert fetched.position == 110
    assert isinstance(fetched.error, DecodeError) and fetched.error.next_offset is None
    decoder = _fast.Decoder()
    with pytest.raises(DecodeError) as caught:
        decoder.feed(data)
    assert (decoder.next_offset, caught.value.next_offset) == (110, None)


def test_next_offset_of_an_error_is_after_the_corrupt_batch() -> None:
    data = encoded(100) + corrupt(encoded(110)) + encoded(120)
    assert refused(data).next_offset == 120
    assert refused(data, start_offset=115).next_offset == 120
    assert refused(data, start_offset=120).next_offset is None
    fetched = _fast.FetchedRecords(data, topic="t", partition=0, start_offset=100)
    fetched.take(100)
    assert isinstance(fetched.error, DecodeError) and fetched.error.next_offset == 120


def test_a_large_base_offset_does_not_skip_later_batches() -> None:
    """One flipped bit in a base offset: at the end of the data, the last batch decides, as in Java's consumer."""
    data = encoded(0) + bytes(with_base(encoded(10), 1 << 41)) + encoded(20)
    decoded = _fast.decode_fetch(data, topic="t", partition=0, start_offset=0)
    fetched = _fast.FetchedRecords(data, topic="t", partition=0, start_offset=0)
    records: list[Any] = []
    while not fetched.is_done:
        records += fetched.take(7)
    assert len(records) == len(decoded) == 20
    assert fetched.position == decoded.next_offset == 30
    whole = _fast.FetchedRecords(data, topic="t", partition=0, start_offset=0)
    assert len(whole.take_decoded()) == 20
    assert whole.position == 30


def test_the_position_is_not_before_the_start_offset() -> None:
    fetched = _fast.FetchedRecords(encoded(0), topic="t", partition=0, start_offset=20)
    assert fetched.take(10) == []
    assert fetched.position == 20
    empty = _fast.FetchedRecords(b"", topic="t", partition=0, start_offset=20)
    assert (empty.take(10), empty.position) == ([], 20)
