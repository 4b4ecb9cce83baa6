# SPDX-License-Identifier: Apache-2.0
"""Messages as they are declared: kinds, defaults, what a version has, errors, objects. What Kafka's classes say of the
real ones is in test_messages_java.py."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from declared_messages import TEXT_AT, Branch, Leaf, TreeRequest, TreeResponse, tree

from kcodec.errors import DecodeError, EncodeError, LimitExceededError, TruncatedError, UnsupportedError
from kcodec.protocol import schema
from kcodec.protocol.schema import (
    Message,
    Struct,
    Versions,
    array,
    int8,
    int16,
    int32,
    string,
)


@pytest.mark.parametrize("version", range(4))
def test_what_is_written_is_read(version: int) -> None:
    message = tree()
    content = message.encode(version)
    assert TreeRequest.decode(content, version) == message
    assert TreeRequest.decode(content, version).encode(version) == content
    assert TreeRequest.decode_prefix(b"ab" + content + b"c", version, 2) == (message, 2 + len(content))


def test_the_bytes_are_those_of_the_protocol() -> None:
    class Small(Message, versions="0-1", flexible="1+"):
        name: str | None = string("0+", nullable="0+")
        numbers: list[int] = array(int16, "0+")
        late: int = int8("1+", tag=3)

    message = Small(name="ab", numbers=[1, -1], late=4)
    assert Small(name="ab", numbers=[1, -1]).encode(0).hex() == "00026162000000020001ffff"
    assert message.encode(1).hex() == "036162030001ffff01030104"
    assert Small(name=None).encode(0).hex() == "ffff00000000"
    assert Small(name=None).encode(1).hex() == "000100"


@pytest.mark.parametrize("version", range(4))
def test_every_cut_is_a_truncated_error(version: int) -> None:
    content = tree().encode(version)
    for size in range(len(content)):
        with pytest.raises(TruncatedError) as caught:
            TreeRequest.decode(content[:size], version)
        assert caught.value.needed > caught.value.available >= 0
    with pytest.raises(DecodeError, match="1 bytes follow"):
        TreeRequest.decode(content + b"\x00", version)


def test_a_fault_names_the_field_and_the_byte() -> None:
    content = TreeRequest(words=["", "a" * 9]).encode(0)
    with pytest.raises(
        TruncatedError, match=r"TreeRequest version 0, words\[1\] at byte \d+: a string takes 9 bytes, but 8"
    ):
        TreeRequest.decode(content[:-5], 0)
    content = TreeRequest(branches=[Branch(), Branch(topic="a", leaves=[Leaf()] * 3)]).encode(0)
    with pytest.raises(
        DecodeError, match=r"branches\[1\].topic at byte \d+: the value is null, which this version does not allow"
    ):
        TreeRequest.decode(content[:-19] + b"\xff\xff" + content[-17:], 0)


def test_a_version_that_is_not_known() -> None:
    with pytest.raises(UnsupportedError, match="TreeRequest version 4 is not supported; kcodec supports 0-3"):
        TreeRequest.decode(b"", 4)
    with pytest.raises(EncodeError, match="TreeRequest version 4 is not supported") as caught:
        TreeRequest().encode(4)
    assert (caught.value.field, caught.value.value) == ("version", 4)


@pytest.mark.parametrize("version", [True, 1.0, "1", None])
def test_a_version_that_is_not_an_integer_is_refused(version: Any) -> None:
    """True and 1.0 are equal to 1, but the error names them, whatever was encoded before."""
    numbers: list[Any] = [1, np.int64(1)]
    for number in numbers:
        for call in (tree().encode, lambda given: TreeRequest.decode(b"", given)):
            with pytest.raises(TypeError, match=f"version must be an int, not {version!r} of type"):
                call(version)
        assert tree().encode(number) == tree().encode(1)
    with pytest.raises(TruncatedError, match="TreeRequest version 1, "):
        TreeRequest.decode(b"", 1)


def test_a_value_that_a_version_lacks() -> None:
    assert TreeRequest(hint="ignorable").encode(0) == TreeRequest().encode(0)
    assert TreeRequest(added=5).encode(0) == TreeRequest().encode(0)
    with pytest.raises(EncodeError, match="TreeRequest version 0: added = 6 is not part of this version") as caught:
        TreeRequest(added=6).encode(0)
    assert (caught.value.field, caught.value.value) == ("added", 6)
    with pytest.raises(EncodeError, match=r"extra = .* is not part of this version"):
        TreeRequest(extra=Leaf(index=1)).encode(1)
    assert TreeRequest.decode(TreeRequest().encode(0), 0).added == 5


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"is_it": 1}, "is_it", "is not a bool"),
    ({"small": 128}, "small", r"is outside -128\.\.127"),
    ({"short": -32769}, "short", r"is outside -32768\.\.32767"),
    ({"port": -1}, "port", r"is outside 0\.\.65535"),
    ({"count": 1 << 31}, "count", r"is outside -2147483648\.\.2147483647"),
    ({"wide": 1 << 32}, "wide", r"is outside 0\.\.4294967295"),
    ({"long": 1 << 63}, "long", r"is outside -9223372036854775808\.\.9223372036854775807"),
    ({"count": 1.0}, "count", "is not an integer"),
    ({"count": None}, "count", "must not be null"),
    ({"ratio": "1"}, "ratio", "is not a float"),
    ({"id": b"0" * 16}, "id", r"is not a uuid\.UUID"),
    ({"text": None}, "text", "must not be null in this version"),
    ({"text": b"a"}, "text", "is not a str"),
    ({"text": "\ud800"}, "text", "surrogate"),
    ({"text": "a" * 32768}, "text", "takes 32768 bytes, more than 32767"),
    ({"content": "a"}, "content", "is not bytes-like"),
    ({"content": memoryview(b"abcd")[::2]}, "content", "contiguous"),
    ({"numbers": None}, "numbers", "must not be null in this version"),
    ({"numbers": {1: 2}}, "numbers", "is not a list"),
    ({"numbers": [1, "2"]}, "numbers[1]", "is not an integer"),
    ({"words": ["a", None]}, "words[1]", "must not be null"),
    ({"branches": [Branch(leaves=[Leaf(), Leaf(index=1 << 31)])]}, "branches[0].leaves[1].index", "is outside"),
    ({"branches": [Leaf()]}, "branches[0]", "is not a Branch"),
]


@pytest.mark.parametrize(("given", "field", "reason"), REFUSED)
def test_what_cannot_be_encoded(given: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(EncodeError, match=f"TreeRequest version 0: .*{reason}") as caught:
        TreeRequest(**given).encode(0)
    assert caught.value.field == field
    assert pickle.loads(pickle.dumps(caught.value)).field == field


def test_nulls_where_there_are() -> None:
    message = TreeRequest(text=None, content=None, batches=None, numbers=None, cursor=None)
    content = message.encode(2)
    assert TreeRequest.decode(content, 2) == message
    with_cursor = TreeRequest(cursor=Leaf(index=3))
    assert TreeRequest.decode(with_cursor.encode(2), 2).cursor == Leaf(index=3)
    with pytest.raises(
        DecodeError, match=f"text at byte {TEXT_AT + 2}: the value is null, which this version does not allow"
    ):
        TreeRequest.decode(TreeRequest().encode(0)[:TEXT_AT] + b"\xff\xff" + bytes(99), 0)


def test_arrays_are_counted_before_there_is_memory_for_them() -> None:
    before = TreeRequest().encode(0)[: TEXT_AT + 10]
    with pytest.raises(
        TruncatedError, match=r"numbers at .* an array of 2147483647 elements takes 8589934588 bytes, but 8"
    ):
        TreeRequest.decode(before + b"\x7f\xff\xff\xff" + bytes(8), 0)


class Hollow(Struct):
    late: int = int32("1+")


class HollowMessage(Message, versions="0-1"):
    hollows: list[Hollow] = array(Hollow, "0+")


def test_elements_without_bytes_are_limited() -> None:
    assert len(HollowMessage.decode(b"\x00\x00\x04\x00", 0).hollows) == 1024
    with pytest.raises(LimitExceededError) as caught:
        HollowMessage.decode(b"\x7f\xff\xff\xff", 0)
    assert (caught.value.limit, caught.value.value) == ("MOST_EMPTY_ELEMENTS", 1024)


def test_elements_of_a_message_are_limited() -> None:
    class Thin(Struct):
        one: int = int8("0+")

    class ThinMessage(Message, versions="0"):
        thin: list[Thin] = array(Thin, "0+")

    claimed = (1 << 22) + 1
    with pytest.raises(LimitExceededError) as caught:
        ThinMessage.decode(claimed.to_bytes(4, "big") + bytes(claimed), 0)
    assert (caught.value.limit, caught.value.claimed) == ("MOST_ELEMENTS", claimed)


def test_records_are_a_view_of_the_frame() -> None:
    frame = bytearray(tree().encode(1))
    read = TreeRequest.decode(frame, 1)
    assert isinstance(read.batches, memoryview)
    assert read.batches.obj is frame
    frame[frame.index(b"records")] = ord("R")
    assert bytes(read.batches) == b"Records"
    assert pickle.loads(pickle.dumps(read)).batches == b"Records"


def test_a_frame_in_parts_does_not_copy_records() -> None:
    kept = bytes(5000)
    message = tree(batches=kept)
    for version in range(4):
        whole = message.encode_frame(version, b"header")
        assert whole == (len(whole) - 4).to_bytes(4, "big") + b"header" + message.encode(version)
        parts = message.encode_frame_parts(version, b"header")
        assert [type(part) for part in parts] == [memoryview] * 3
        assert parts[1].obj is kept  # type: ignore[union-attr]
        assert b"".join(parts) == whole
        assert b"".join(message.encode_frame_parts(version, b"header", least_bytes=5001)) == whole
        assert b"".join(message.encode_parts(version)) == message.encode(version)


def test_unknown_tagged_fields_are_kept_and_written_again() -> None:
    leaf = Leaf(index=1, unknown_tagged_fields=((5, b"five"),))  # type: ignore[call-arg]
    message = tree(
        epoch=3,
        extra=Leaf(index=9),
        branches=[Branch(leaves=[leaf])],
        unknown_tagged_fields=((2, b""), (3, b"x" * 300), (1 << 30, b"y")),
    )
    content = message.encode(2)
    assert TreeRequest.decode(content, 2) == message
    assert TreeRequest.decode(content, 2).encode(2) == content
    with pytest.raises(EncodeError, match=r"unknown_tagged_fields cannot be sent"):
        tree(unknown_tagged_fields=((2, b""),)).encode(1)
    with pytest.raises(EncodeError, match=r"branches\[0\].leaves\[0\].unknown_tagged_fields cannot be sent"):
        tree(branches=[Branch(leaves=[leaf])]).encode(0)


@pytest.mark.parametrize(
    "unknown", [((3, b""), (3, b"")), ((4, b""), (2, b"")), ((1, b""),), ((-1, b""),), ((2, "a"),), [(2, b"")], ((2,),)]
)
def test_unknown_tagged_fields_must_be_unknown_and_ascending(unknown: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        TreeRequest(unknown_tagged_fields=unknown).encode(2)  # type: ignore[call-arg]
    assert caught.value.field == "unknown_tagged_fields"


def test_a_tagged_field_must_fill_its_size() -> None:
    content = TreeRequest(epoch=3).encode(2)
    assert content.endswith(bytes.fromhex("01 01 04 00000003"))
    head = content[:-7]
    for tail, text in [
        ("01 01 05 00000003 00", "epoch at byte .*: 1 of the 5 bytes of the tagged field are left over"),
        ("01 01 03 000003 0000", "epoch at byte .*: a value takes 4 bytes, but 3 remain in the tagged field"),
        ("01 01 04 000003", "the field of tag 1 takes 4 bytes, but 3 remain"),
        ("01 ffffffff7f 00", "the length 34359738367 exceeds"),
        ("01 ffffffffff01 00", "the varint has more than 5 bytes"),
    ]:
        with pytest.raises(DecodeError, match=text):
            TreeRequest.decode(head + bytes.fromhex(tail), 2)


def test_requests_and_responses_know_each_other() -> None:
    assert TreeRequest.response is TreeResponse
    assert TreeResponse.request is TreeRequest
    assert (TreeRequest.api_key, str(TreeRequest.versions), str(TreeRequest.flexible_versions)) == (7, "0-3", "2+")
    assert [TreeRequest.is_flexible(version) for version in range(4)] == [False, False, True, True]


def test_versions() -> None:
    assert [str(Versions.of(text)) for text in ("0+", "1-3", "2", "2-2", "none")] == ["0+", "1-3", "2", "2", "none"]
    assert not Versions.of("none").hold(0)


def test_fields_must_not_hide_methods() -> None:
    with pytest.raises(TypeError, match=r"Wrong.encode: every message has an attribute of this name"):

        class Wrong(Message, versions="0"):
            encode: int = int32("0+")  # type: ignore[assignment]


def test_java_text() -> None:
    class Text(Message, versions="0"):
        text: str = string("0+")

    from reference_batch import java_string

    for content in (b"\xff\xfe", b"\xed\xa0\x80", b"a\xc3", b"\xe2\x82a", b"\xf0\x80\x80\x80", "é€😀".encode()):
        assert Text.decode(len(content).to_bytes(2, "big") + content, 0).text == java_string(content)


def test_the_package_does_not_import_the_protocol() -> None:
    import subprocess

    code = "import sys, kcodec; sys.exit('kcodec.protocol.schema' in sys.modules or 'uuid' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
    assert schema.HIGHEST_VERSION == 32767
