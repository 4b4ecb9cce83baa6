# SPDX-License-Identifier: Apache-2.0
"""Frames cut out of a stream however it arrives, and their headers; hostile lengths and tags."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest

from kcodec.errors import DecodeError, EncodeError, LimitExceededError, TruncatedError, UnsupportedError
from kcodec.protocol import messages
from kcodec.protocol.frame import (
    FrameReader,
    correlation_id_of,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_request_parts,
    encode_response,
    response_body,
)
from kcodec.protocol.schema import Message, int16, int32, string
from kcodec.protocol.versions import BrokerVersions, fallback_version


class Flexible:
    """Enough of a request class for a header: flexible from version 2."""

    api_key = 3
    flexible_from = 2

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        return version >= cls.flexible_from


class Versions(Flexible):
    api_key = 18


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_whole_however_the_stream_is_cut(seed: int) -> None:
    choose = random.Random(seed)
    bodies = [choose.randbytes(choose.choice((0, 1, 3, 4, 5, 100, 5000))) for _ in range(30)]
    stream = framed(*bodies) + b"\x00\x00"
    reader = FrameReader(10_000)
    frames = []
    position = 0
    while position < len(stream):
        size = choose.choice((1, 2, 3, 4, 7, 1000, 20_000))
        frames += reader.feed(stream[position : position + size])
        position += size
    assert frames == bodies
    assert reader.unfinished_bytes == 2


def test_a_length_above_the_limit_is_refused_before_its_bytes_come() -> None:
    reader = FrameReader(1000)
    assert reader.feed((1000).to_bytes(4, "big")) == []
    with pytest.raises(LimitExceededError) as caught:
        FrameReader(1000).feed((1001).to_bytes(4, "big"))
    assert (caught.value.limit, caught.value.value, caught.value.claimed) == ("max_response_bytes", 1000, 1001)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"HTTP/1.1 400", "the peer uses HTTP instead of the Kafka protocol"),
        (b"GET / HTTP/1.1", "the peer uses HTTP instead of the Kafka protocol"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "the peer uses TLS, and this connection does not"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "the peer uses TLS, and this connection does not"),
        (b"\x7f\xff\xff\xff", "exceeds max_response_bytes=104857600; the peer may also use TLS or HTTP"),
        (b"\xff\xff\xff\xff", "the peer may use TLS or HTTP instead of the Kafka protocol"),
    ],
)
def test_what_is_no_kafka_is_said_to_be_something_else(start: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        FrameReader(100 * 1024 * 1024).feed(start)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"GET / HTTP/1.1", "the peer uses HTTP instead of the Kafka protocol; check the host and the port"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "this listener does not use TLS; set .* to PLAINTEXT or SASL_PLAINTEXT"),
        (b"\x7f\xff\xff\xff", "exceeds max_response_bytes=104857600; the peer may also use TLS or HTTP"),
    ],
)
def test_a_broker_names_the_remedy_of_its_listener(start: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        FrameReader(100 * 1024 * 1024, is_broker=True).feed(start)


@pytest.mark.parametrize("length", [11, -1])
@pytest.mark.parametrize("count", [1, 2, 20_000])
def test_frames_before_an_invalid_length_are_returned_first(length: int, count: int) -> None:
    """The next call raises the error."""
    reader, kind = FrameReader(10), DecodeError if length < 0 else LimitExceededError
    assert reader.feed(framed(*[b"abc"] * count) + length.to_bytes(4, "big", signed=True) + b"more") == [b"abc"] * count
    assert isinstance(reader.error, kind)
    for data in (b"", framed(b"abc"), b"more"):
        with pytest.raises(kind):
            reader.feed(data)
        reader.get_buffer()[:1] = b"x"
        with pytest.raises(kind):
            reader.arrived(1)


def test_the_body_lies_behind_the_header_of_its_version() -> None:
    assert bytes(response_body(b"\x00\x00\x00\x07body", Flexible, 1)) == b"body"
    assert bytes(response_body(b"\x00\x00\x00\x07\x00body", Flexible, 2)) == b"body"
    assert bytes(response_body(b"\x00\x00\x00\x07\x02\x00\x01x\x01\x02yzbody", Flexible, 2)) == b"body"
    assert bytes(response_body(b"\x00\x00\x00\x07body", Versions, 3)) == b"body"
    assert correlation_id_of(b"\xff\xff\xff\xfe") == -2


@pytest.mark.parametrize(
    "header", [b"", b"\x01", b"\x01\x00", b"\x01\x00\x05ab", b"\x80", b"\x01\x00\xff\xff\xff\xff\x0f"]
)
def test_a_cut_header_is_reported(header: bytes) -> None:
    with pytest.raises(TruncatedError):
        response_body(b"\x00\x00\x00\x07" + header, Flexible, 2)


@pytest.mark.parametrize(
    "header", [b"\x41" + b"\x00\x00" * 65, b"\x80\x80\x80\x80\x80\x00", b"\x01\xff\xff\xff\xff\xff\xff"]
)
def test_hostile_tags_of_a_header_are_refused(header: bytes) -> None:
    with pytest.raises(DecodeError):
        response_body(b"\x00\x00\x00\x07" + header, Flexible, 2)


def test_a_frame_too_short_for_a_correlation_id() -> None:
    with pytest.raises(TruncatedError) as caught:
        correlation_id_of(b"\x00\x00")
    assert (caught.value.needed, caught.value.available) == (4, 2)


def test_bytes_that_come_one_by_one_cost_no_more_than_they_are() -> None:
    """A hostile peer may send a large frame in the smallest of pieces."""
    reader = FrameReader(1 << 20)
    reader.feed((1 << 20).to_bytes(4, "big"))
    tracemalloc.start()
    for number in range(100_000):
        reader.feed(number.to_bytes(2, "big", signed=False) if number < 65536 else b"ab")
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert reader.unfinished_bytes == 200_004
    assert held < 400_000


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("client_id", [None, "", "käse"])
def test_the_header_of_a_request(version: int, client_id: str | None) -> None:
    """As Kafka's RequestHeader is declared: v2 for flexible versions, its client id is no compact string."""

    class RequestHeader(Message, versions="1-2", flexible="2+"):
        request_api_key: int = int16("0+")
        request_api_version: int = int16("0+")
        correlation_id: int = int32("0+")
        client_id: str | None = string("1+", nullable="1+", flexible="none")

    request = messages.EndTxnRequest(transactional_id="a", producer_id=5)
    api_version = {1: 2, 2: 3}[version]
    frame = encode_request(request, api_version, 77, client_id)
    assert frame == b"".join(encode_request_parts(request, api_version, 77, client_id))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, end = RequestHeader.decode_prefix(frame, version, 4)
    assert header == RequestHeader(
        request_api_key=26, request_api_version=api_version, correlation_id=77, client_id=client_id
    )
    assert messages.EndTxnRequest.decode(frame, api_version, end) == request


@pytest.mark.parametrize("client_id", ["a" * 32768, "\ud800"])
def test_a_client_id_that_no_header_holds(client_id: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode_request(messages.EndTxnRequest(), 1, 1, client_id)
    assert caught.value.field == "client_id"


@pytest.mark.parametrize(("offered", "asked"), [((0, 3), 3), ((-5, -7), 0), (None, 0)])
def test_what_apiversions_is_asked_with_after_error_35(offered: tuple[int, int] | None, asked: int) -> None:
    assert fallback_version(BrokerVersions({} if offered is None else {18: offered})) == asked


@pytest.mark.parametrize(
    ("arguments", "field", "reason"),
    [
        ((3, 1 << 31), "correlation_id", "correlation_id must be an int between -2147483648 and 2147483647"),
        ((3, "1"), "correlation_id", "correlation_id must be an int"),
        ((70_000, 1), "version", "EndTxnRequest version 70000 is not supported"),
        ((-1, 1), "version", "EndTxnRequest version -1 is not supported"),
        ((3, 1, ["x"]), "client_id", "client_id must be str or None, not list"),
        ((3, 1, b"x"), "client_id", "client_id must be str or None, not bytes"),
        ((3, 1, 5), "client_id", "client_id must be str or None, not int"),
    ],
)
def test_a_request_header_with_an_invalid_value_is_refused(arguments: tuple[Any, ...], field: str, reason: str) -> None:
    request = messages.EndTxnRequest(transactional_id="a", producer_id=1, producer_epoch=0, committed=True)
    for _ in range(2):
        with pytest.raises(EncodeError, match=reason) as caught:
            encode_request(request, *arguments)
        assert caught.value.field == field


@pytest.mark.parametrize("client_id", [None, "", "käse"])
def test_each_request_and_response_passes_through_a_frame(client_id: str | None) -> None:
    for key, kind in messages.all_requests().items():
        for version in range(kind.versions.first, kind.versions.last + 1):
            request, response = kind(), kind.response()
            frame = encode_request(request, version, 77, client_id)[4:]
            header, decoded = decode_request(frame)
            assert header[:5] == (key, version, 77, client_id, kind)
            assert decoded == request
            assert decode_request_header(frame) == header
            answer = encode_response(response, version, 77)[4:]
            assert correlation_id_of(answer) == 77
            assert decode_response(answer, kind, version) == response


def test_each_cut_request_is_refused() -> None:
    frame = encode_request(messages.EndTxnRequest(transactional_id="a"), 4, 1, "shop")[4:]
    for size in range(len(frame)):
        with pytest.raises(TruncatedError):
            decode_request(frame[:size])


def test_bytes_after_a_request_are_ignored() -> None:
    """As by Kafka: librdkafka 2.16 writes some after a MetadataRequest."""
    request = messages.MetadataRequest(topics=[messages.MetadataRequestTopic(name="orders")])
    frame = encode_request(request, 9, 1, "rdkafka")[4:]
    assert decode_request(frame + b"\0\0")[1] == request


def test_a_request_header_may_have_tagged_fields_and_invalid_utf_8() -> None:
    header = b"\0\x1a\0\4" + (7).to_bytes(4, "big") + b"\0\2\xffx" + b"\1\5\2ab"
    found, message = decode_request(header + messages.EndTxnRequest().encode(4))
    assert found.client_id == "\ufffdx"
    assert (found.position, message) == (len(header), messages.EndTxnRequest())


def test_the_header_of_an_unknown_request_can_be_read() -> None:
    """A proxy forwards such a request, and a broker responds with UNSUPPORTED_VERSION."""
    vote = decode_request_header(b"\0\x34\0\1\0\0\0\7\0\1a\0...")
    assert vote == (52, 1, 7, "a", None, None)
    with pytest.raises(UnsupportedError, match="no class for the API with the key 52"):
        decode_request(b"\0\x34\0\1\0\0\0\7\0\1a\0...")
    newer = b"\0\x12\0\x63\0\0\0\7\xff\xff\0"
    assert decode_request_header(newer) == (18, 99, 7, None, messages.ApiVersionsRequest, len(newer))
    with pytest.raises(UnsupportedError, match="version 99 is not supported"):
        decode_request(newer)


def test_unsupported_version_of_apiversions_has_version_0() -> None:
    response = messages.ApiVersionsResponse(error_code=35, api_keys=[messages.ApiVersion(api_key=18, max_version=4)])
    frame = encode_response(response, 5, 7)
    assert frame[8:] == response.encode(0)
    assert decode_response(frame[4:], messages.ApiVersionsRequest, 5) == response


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: encode_request(messages.EndTxnResponse(), 3), "request must be a request .* not EndTxnResponse"),
        (lambda: encode_request(None, 3), "request must be a request .* not NoneType"),
        (lambda: encode_response(messages.EndTxnRequest(), 3, 1), "response must be a response .* not EndTxnRequest"),  # type: ignore[arg-type]
        (lambda: encode_response(messages.EndTxnResponse(), "3", 1), "version must be an int"),  # type: ignore[arg-type]
    ],
)
def test_a_message_of_the_other_direction_is_refused(call: Any, reason: str) -> None:
    """Its bytes would be those of a valid frame of another message."""
    with pytest.raises(TypeError, match=reason):
        call()


def test_a_response_header_with_an_invalid_value_is_refused() -> None:
    with pytest.raises(EncodeError, match="correlation_id must be an int"):
        encode_response(messages.EndTxnResponse(), 3, 1 << 31)
    with pytest.raises(EncodeError, match="EndTxnResponse version 99 is not supported"):
        encode_response(messages.EndTxnResponse(), 99, 1)


def test_a_version_is_chosen_from_those_of_the_broker() -> None:
    versions = BrokerVersions({3: (0, 7), 26: (9, 12)})
    assert versions.choose(messages.MetadataRequest) == 7
    assert versions.choose(messages.MetadataRequest, highest=5) == 5
    with pytest.raises(UnsupportedError, match="the broker supports EndTxn versions 9 to 12, but kcodec needs 0 to 5"):
        versions.choose(messages.EndTxnRequest)
    with pytest.raises(UnsupportedError, match="b:9092 does not support Produce"):
        versions.choose(messages.ProduceRequest, broker="b:9092")
