# SPDX-License-Identifier: Apache-2.0
"""Frames: a length of four bytes, a header and a message. Only the direction distinguishes requests from responses.

Header versions (Kafka: RequestHeader.json, ResponseHeader.json): a request of a flexible version has header v2 (tagged
fields after the client id), otherwise v1; its response has v1 or v0. The response to ApiVersions always has header v0,
so that a client can read the response of a broker that does not know the requested version (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from kcodec._fast import FrameBuffer
from kcodec.errors import DecodeError, EncodeError, LimitExceededError, TruncatedError, UnsupportedError
from kcodec.integers import as_integer, shown
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import Request, Response
from kcodec.protocol.versions import API_VERSIONS_KEY

__all__ = [
    "FrameHeader",
    "FrameReader",
    "correlation_id_of",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode_request",
    "encode_request_parts",
    "encode_response",
    "skip_tagged_fields",
]

LENGTH_BYTES = 4
#: Where a connection receives what is not a large frame.
SCRATCH_BYTES = 64 * 1024
#: `LimitExceededError.limit` of a response that is longer than its own request allows.
RESPONSE_LIMIT = "max_response_bytes of the request"
#: The first bytes of a response, and of a request, of HTTP.
HTTP_HEADS = frozenset({b"HTTP", b"GET ", b"POST"})
#: The first byte of an alert and of a handshake record, and the second byte of each record of TLS.
TLS_RECORD_TYPES = frozenset({21, 22})
TLS_MAJOR_VERSION = 3
#: A string of Kafka's protocol.
LONGEST_CLIENT_ID = 32767
_INT32 = struct.Struct(">i")
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
# api key, version; the correlation id and the client id follow
_HEADER_BEGINNING = struct.Struct(">hh")
# the same with the correlation id, and the length of the client id
_FIXED_HEADER = struct.Struct(">hhih")
#: Tagged fields of a header; Kafka defines none.
MAX_HEADER_TAGS = 64


def encode_request_parts(
    request: Any, version: int, correlation_id: int, client_id: str | None
) -> list[bytes | memoryview]:
    """Return a request frame in pieces. Large record sets are not copied and must not change until they are sent.

    request: The message.
    version, correlation_id, client_id: As in encode_request.

    Raise the errors of encode_request.
    """
    header = _header(request, version, correlation_id, client_id)
    parts: list[bytes | memoryview] = request.encode_frame_parts(version, header)
    return parts


def encode_request(request: Any, version: int, correlation_id: int = 0, client_id: str | None = None) -> bytes:
    """Return a request as one frame, length included.

    request: The message.
    version, correlation_id, client_id: Of the header. The response has the same correlation_id.

    Raise EncodeError for a value that the version cannot hold, and TypeError for another kind of message.
    """
    header = _header(request, version, correlation_id, client_id)
    frame: bytes = request.encode_frame(version, header)
    return frame


def _header(request: Any, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return a request header. v2 is v1 and a count of tagged fields, here 0; the client id is never compact."""
    kind: Any = type(request)
    try:
        before, after = _header_pieces(kind, version, client_id)
        return before + _INT32.pack(correlation_id) + after
    except (TypeError, struct.error):  # a value that cannot be hashed, or is not an int32
        raise _header_error(kind, version, correlation_id, client_id) from None


def _header_error(kind: Any, version: Any, correlation_id: Any, client_id: Any) -> Exception:
    """Return the error for the first invalid argument of a request header."""
    if not issubclass(kind, Request):
        return TypeError(f"request must be a request of kcodec.protocol.messages, not {kind.__name__}")
    if as_integer(version) is None:
        return TypeError(f"version must be an int, not {shown(version)} of type {type(version).__name__}")
    if client_id is not None and not isinstance(client_id, str):
        return EncodeError(
            f"client_id must be str or None, not {type(client_id).__name__}", field="client_id", value=client_id
        )
    return _correlation_id_error(correlation_id)


def _correlation_id_error(correlation_id: Any) -> EncodeError:
    return EncodeError(
        f"correlation_id must be an int between {_INT32_MIN} and {_INT32_MAX}, not {shown(correlation_id)}",
        field="correlation_id",
        value=correlation_id,
    )


@lru_cache(maxsize=1024, typed=True)  # typed: True and 1.0 are equal to 1, but they are not valid versions
def _header_pieces(kind: Any, version: int, client_id: str | None) -> tuple[bytes, bytes]:
    """Return the bytes before and after the correlation id in the header of a request.

    Raise EncodeError for an unknown version, and TypeError for another kind of message, and for a version or a client
    id of another type.
    """
    is_valid = issubclass(kind, Request) and as_integer(version) is not None
    if not is_valid or not (client_id is None or isinstance(client_id, str)):
        raise TypeError
    if not kind.versions.hold(version):
        raise EncodeError(
            f"{kind.__name__} version {shown(version)} is not supported; kcodec supports {kind.versions}",
            field="version",
            value=version,
        )
    after = _client_id_field(client_id) + (b"\x00" if kind.is_flexible(version) else b"")
    return _HEADER_BEGINNING.pack(kind.api_key, version), after


@lru_cache(maxsize=64)
def _client_id_field(client_id: str | None) -> bytes:
    """Return the client id as a nullable string. Raise EncodeError for one that the protocol cannot hold."""
    if client_id is None:
        return b"\xff\xff"
    name: bytes | None
    try:
        name = client_id.encode()
    except UnicodeEncodeError:
        name = None
    if name is None or len(name) > LONGEST_CLIENT_ID:
        reason = f"at most {LONGEST_CLIENT_ID} bytes long in UTF-8" if name else "text that can be encoded in UTF-8"
        raise EncodeError(f"client_id must be {reason}", field="client_id", value=client_id)
    return len(name).to_bytes(2, "big") + name


class FrameHeader(NamedTuple):
    """The header of a request.

    api_key, version, correlation_id, client_id: The fields of the header. Invalid UTF-8 in client_id becomes U+FFFD.
    request_class: The class of the message; None if kcodec has no class for the API.
    position: Byte of the frame at which the message begins; None without a class, as the class defines the header.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    request_class: type[Request] | None
    position: int | None


def decode_request_header(frame: bytes | memoryview) -> FrameHeader:
    """Return the header of a request.

    frame: The frame without its length.

    The version may be one that kcodec does not know. Raise DecodeError (TruncatedError) if the header is invalid.
    """
    from kcodec.protocol.messages import all_requests

    view = memoryview(frame)
    if len(view) < _FIXED_HEADER.size:
        raise TruncatedError(
            f"a request of {len(view)} bytes is too short for its header of at least {_FIXED_HEADER.size} bytes",
            needed=_FIXED_HEADER.size,
            available=len(view),
        )
    api_key, version, correlation_id, length = _FIXED_HEADER.unpack_from(view)
    position = _FIXED_HEADER.size + max(length, 0)
    if position > len(view):
        raise TruncatedError(
            f"request header: a client_id of {length} bytes, but only {len(view) - _FIXED_HEADER.size} bytes remain",
            needed=position,
            available=len(view),
        )
    client_id = None if length < 0 else str(view[_FIXED_HEADER.size : position], "utf-8", "replace")
    request_class = all_requests().get(api_key)
    if request_class is None:
        return FrameHeader(api_key, version, correlation_id, client_id, None, None)
    if request_class.is_flexible(version):
        position = skip_tagged_fields(view, position)
    return FrameHeader(api_key, version, correlation_id, client_id, request_class, position)


def decode_request(frame: bytes | memoryview) -> tuple[FrameHeader, Request]:
    """Return the header and the message of a request.

    frame: The frame without its length. Bytes after the message are ignored, as Kafka does: librdkafka writes some
           after a MetadataRequest.

    Raise UnsupportedError for an API or a version that kcodec does not have, and DecodeError for invalid bytes.
    """
    header = decode_request_header(frame)
    if header.request_class is None or header.position is None:
        raise UnsupportedError(f"kcodec has no class for the API with the key {header.api_key}")
    return header, header.request_class.decode_prefix(frame, header.version, header.position)[0]


def encode_response(response: Response, version: int, correlation_id: int) -> bytes:
    """Return a response as one frame, length included.

    response: The message.
    version, correlation_id: Those of the request.

    An ApiVersionsResponse with UNSUPPORTED_VERSION is encoded in version 0, as clients expect (KIP-511). Raise
    EncodeError for a value that the version cannot hold, and TypeError for another kind of message.
    """
    kind: Any = type(response)
    if not isinstance(response, Response):
        raise TypeError(f"response must be a response of kcodec.protocol.messages, not {kind.__name__}")
    number = as_integer(version)
    if number is None:
        raise TypeError(f"version must be an int, not {shown(version)} of type {type(version).__name__}")
    if kind.api_key == API_VERSIONS_KEY and response.error_code == ErrorCode.UNSUPPORTED_VERSION:  # type: ignore[attr-defined]
        number = 0
    id_ = as_integer(correlation_id)
    if id_ is None or not _INT32_MIN <= id_ <= _INT32_MAX:
        raise _correlation_id_error(correlation_id)
    tags = b"\x00" if _has_tagged_fields(kind, number) else b""
    frame: bytes = response.encode_frame(number, _INT32.pack(id_) + tags)
    return frame


def correlation_id_of(frame: bytes | memoryview) -> int:
    """Return the correlation id of a response frame without its length. Raise TruncatedError."""
    if len(frame) < 4:
        raise TruncatedError(
            f"a response of {len(frame)} bytes is too short for a correlation id of 4 bytes",
            needed=4,
            available=len(frame),
        )
    correlation_id: int = _INT32.unpack_from(frame)[0]
    return correlation_id


def response_body(frame: bytes | memoryview, request_class: Any, version: int) -> memoryview:
    """Return the message of a response frame (without length), which follows the header. Raise DecodeError."""
    view = memoryview(frame)
    if len(view) < 4:
        correlation_id_of(view)  # which raises the error
    if not _has_tagged_fields(request_class, version):
        return view[4:]
    if len(view) > 4 and view[4] == 0:  # no tagged fields, as always
        return view[5:]
    return view[skip_tagged_fields(view, 4) :]


@lru_cache(maxsize=1024)
def _has_tagged_fields(kind: Any, version: int) -> bool:
    """Return whether the header of the response has tagged fields. kind: the class of the request or the response."""
    return kind.api_key != API_VERSIONS_KEY and bool(kind.is_flexible(version))


def decode_response(frame: bytes | memoryview, request_class: Any, version: int) -> Any:
    """Return the message of a response. An ApiVersions response with UNSUPPORTED_VERSION always has the form of
    version 0.

    frame: The frame without its length.
    request_class, version: Those of the request.

    Raise DecodeError.
    """
    body = response_body(frame, request_class, version)
    if request_class.api_key == API_VERSIONS_KEY and body[:2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
        version = 0
    return request_class.response.decode(body, version)


def skip_tagged_fields(view: memoryview, position: int) -> int:
    """Return the position after the tagged fields of a header, which begin at `position` of `view`.

    Raise DecodeError if they are invalid.
    """
    count, position = read_unsigned_varint(view, position)
    if count > MAX_HEADER_TAGS:
        raise DecodeError(f"frame header: {count} tagged fields, more than the limit of {MAX_HEADER_TAGS}")
    for _ in range(count):
        _, position = read_unsigned_varint(view, position)
        size, position = read_unsigned_varint(view, position)
        if size > len(view) - position:
            raise TruncatedError(
                f"frame header: a tagged field of {size} bytes, but only {len(view) - position} bytes remain",
                needed=size,
                available=len(view) - position,
            )
        position += size
    return position


def read_unsigned_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint of a header, and the position after it. Raise DecodeError."""
    value = shift = 0
    while shift < 35:
        if position >= len(view):
            raise TruncatedError("frame header: it ends inside the tagged fields", needed=1, available=0)
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise DecodeError("frame header: a varint has more than 5 bytes")


class FrameReader:
    """Cut a stream of bytes into frames without their lengths. Raise LimitExceededError for one above max_frame_bytes,
    and DecodeError for a negative length.

    If complete frames precede an invalid length in the same bytes, they are returned, and each later call raises the
    error. The attribute `error` contains it immediately. None: all lengths were valid.

    The I/O code reads from the socket into `get_buffer` and reports the number of bytes to `arrived`. Small frames are
    copied out of that buffer. A large frame has its own memory, which is reused once no reference to the frame or to a
    chunk of it is left (the records of a response are views into it). The bytes that have arrived bound the resident
    memory, not the length that a frame claims.

    limit_of: returns the limit of the frame that follows this number of frames not yet taken, if that frame has a
    lower limit than the others.
    is_broker: whether the frames are requests that a broker reads. Errors then name the remedy for a listener.
    """

    def __init__(
        self,
        max_frame_bytes: int,
        limit_of: Callable[[int], int | None] = lambda behind: None,
        *,
        is_broker: bool = False,
    ) -> None:
        self.set_limit(max_frame_bytes)
        self._limit_of = limit_of
        self._is_broker = is_broker
        self._behind = 0
        # of small frames and of the beginning of a large one: its first bytes, up to _filled
        self._scratch = memoryview(b"")
        self._filled = 0
        # a large frame that is not whole
        self._frame: memoryview | None = None
        self.error: DecodeError | None = None

    def set_limit(self, max_frame_bytes: int, name: str = "max_response_bytes") -> None:
        """Refuse longer frames from now on. name: the name of the limit, for the error."""
        self.max_frame_bytes = max_frame_bytes
        self._limit_name = name

    def get_buffer(self) -> memoryview:
        """Return the memory for the next bytes; it is never empty."""
        if self._frame is not None:
            return self._frame[self._filled :]
        if not self._scratch:
            self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        return self._scratch[self._filled :] if self._filled else self._scratch

    def arrived(self, count: int) -> list[bytes | memoryview]:
        """Account for `count` bytes put into `get_buffer`. Return the complete frames, in order."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        self._filled += count
        if self._frame is None:
            if self._filled > LENGTH_BYTES and _INT32.unpack_from(self._scratch)[0] == self._filled - LENGTH_BYTES:
                # One whole frame, as most often.
                self._check(self._filled - LENGTH_BYTES, self._behind)
                if self.error is not None:
                    raise self.error
                only = bytes(self._scratch[LENGTH_BYTES : self._filled])
                self._filled = 0
                return [only]
            return self._cut()
        if self._filled < len(self._frame):
            return []
        frame, self._frame, self._filled = self._frame, None, 0
        return [frame.toreadonly()]

    def feed(self, data: bytes | memoryview) -> list[bytes | memoryview]:
        """Take received bytes (`data`). Return the complete frames, in order, without their lengths. After an invalid
        length, ignore the rest."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        frames: list[bytes | memoryview] = []
        position = 0
        while position < len(data) and self.error is None:
            buffer = self.get_buffer()
            count = min(len(buffer), len(data) - position)
            buffer[:count] = data[position : position + count]
            self._behind = len(frames)
            try:
                frames += self.arrived(count)
            except DecodeError:
                if not frames:
                    raise
            position += count
        self._behind = 0
        return frames

    def _cut(self) -> list[bytes | memoryview]:
        """Return the complete frames in the scratch memory; the rest moves to its beginning or to separate memory."""
        frames: list[bytes | memoryview] = []
        view, position, size = self._scratch[: self._filled], 0, -1
        while len(view) - position >= LENGTH_BYTES:
            size = _INT32.unpack_from(view, position)[0]
            self._check(size, self._behind + len(frames))
            if self.error is not None:
                if not frames:
                    raise self.error
                size = -1
                break
            if len(view) - position - LENGTH_BYTES < size:
                break
            position += LENGTH_BYTES
            frames.append(bytes(view[position : position + size]))
            position += size
            size = -1
        rest = len(view) - position
        if size > SCRATCH_BYTES - LENGTH_BYTES:
            self._frame = memoryview(FrameBuffer(size))
            rest -= LENGTH_BYTES
            self._frame[:rest] = view[position + LENGTH_BYTES :]
        elif rest and position:
            self._scratch[:rest] = bytes(view[position:])
        self._filled = rest
        return frames

    def _check(self, size: int, behind: int) -> None:
        """Set the error for a length that no frame has, or that is above a limit."""
        if size < 0:
            self.error = DecodeError(
                f"frame length {size} is invalid: the peer may use TLS or HTTP instead of the Kafka protocol"
            )
            return
        if size > self.max_frame_bytes:
            head = _INT32.pack(size)
            is_tls = head[0] in TLS_RECORD_TYPES and head[1] == TLS_MAJOR_VERSION
            if head in HTTP_HEADS:
                text = "the peer uses HTTP instead of the Kafka protocol; check the host and the port"
            elif is_tls and self._is_broker:
                text = (
                    "the peer uses TLS, and this listener does not use TLS; set security_protocol of the client to"
                    " PLAINTEXT or SASL_PLAINTEXT"
                )
            elif is_tls:
                text = (
                    "the peer uses TLS, and this connection does not; for a listener with TLS, security_protocol of the"
                    " client must be SSL or SASL_SSL"
                )
            else:
                text = (
                    f"a frame of {size} bytes exceeds {self._limit_name}={self.max_frame_bytes}; the peer may also use"
                    " TLS or HTTP instead of the Kafka protocol"
                )
            self.error = LimitExceededError(
                text,
                limit=self._limit_name,
                value=self.max_frame_bytes,
                claimed=size,
            )
            return
        limit = self._limit_of(behind)
        if limit is not None and size > limit:
            self.error = LimitExceededError(
                f"a response of {size} bytes exceeds the {limit} bytes that were reserved for it",
                limit=RESPONSE_LIMIT,
                value=limit,
                claimed=size,
            )

    @property
    def unfinished_bytes(self) -> int:
        """The number of bytes received of a frame that is not complete."""
        return self._filled + (LENGTH_BYTES if self._frame is not None else 0)
