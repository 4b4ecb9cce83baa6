# SPDX-License-Identifier: Apache-2.0
"""Frames: a four-byte length, a header, a message. Requests are told from responses by nothing but the direction.

Header versions (Kafka: RequestHeader.json, ResponseHeader.json): a request of a flexible version has header v2 (tagged
fields behind the client id), else v1; its response v1 or v0. ApiVersions is answered with header v0 always, as a client
must be able to read the answer of a broker that does not know its version (KIP-511).
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from kcodec.errors import DecodeError, EncodeError, LimitExceededError, TruncatedError

LENGTH_BYTES = 4
#: A string of Kafka's protocol.
LONGEST_CLIENT_ID = 32767
# api key, version, correlation id, length of the client id
_HEADER = Struct(">hhih")
API_VERSIONS_KEY = 18
#: Tagged fields of a response header; Kafka defines none.
MAX_HEADER_TAGS = 64


def encode_request_parts(
    request: Any, version: int, correlation_id: int, client_id: str | None
) -> list[bytes | memoryview]:
    """A request as a frame in pieces: large record sets are not copied, but must not change until they are sent.

    Raises EncodeError for a value that the version cannot hold.
    """
    parts: list[bytes | memoryview] = request.encode_frame_parts(
        version, _header(request, version, correlation_id, client_id)
    )
    return parts


def encode_request(request: Any, version: int, correlation_id: int = 0, client_id: str | None = None) -> bytes:
    """A request as one frame, length included. Raises EncodeError for a value that the version cannot hold."""
    frame: bytes = request.encode_frame(version, _header(request, version, correlation_id, client_id))
    return frame


def _header(request: Any, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Of a request: v2 is v1 and a count of tagged fields, which are none; the client id is never compact."""
    try:
        name = b"" if client_id is None else client_id.encode()
    except UnicodeEncodeError:
        name = None
    if name is None or len(name) > LONGEST_CLIENT_ID:
        reason = f"at most {LONGEST_CLIENT_ID} bytes of UTF-8" if name else "text that UTF-8 can hold"
        raise EncodeError(f"client_id must be {reason}", field="client_id", value=client_id)
    length = -1 if client_id is None else len(name)
    tags = b"\x00" if request.is_flexible(version) else b""
    return _HEADER.pack(request.api_key, version, correlation_id, length) + name + tags


def correlation_id_of(frame: bytes | memoryview) -> int:
    """The correlation id of a response frame without its length. Raises TruncatedError."""
    if len(frame) < 4:
        raise TruncatedError(
            f"a response of {len(frame)} bytes has no room for a correlation id", needed=4, available=len(frame)
        )
    return int.from_bytes(frame[:4], "big", signed=True)


def response_body(frame: bytes | memoryview, request_class: Any, version: int) -> memoryview:
    """The message inside a response frame (without length): what lies behind the header. Raises DecodeError."""
    view = memoryview(frame)
    correlation_id_of(view)
    if request_class.api_key == API_VERSIONS_KEY or not request_class.is_flexible(version):
        return view[4:]
    return view[_skip_tags(view, 4) :]


def _skip_tags(view: memoryview, position: int) -> int:
    count, position = _unsigned_varint(view, position)
    if count > MAX_HEADER_TAGS:
        raise DecodeError(f"response header: {count} tagged fields, at most {MAX_HEADER_TAGS} are taken")
    for _ in range(count):
        _, position = _unsigned_varint(view, position)
        size, position = _unsigned_varint(view, position)
        if size > len(view) - position:
            raise TruncatedError(
                f"response header: a tagged field of {size} bytes but {len(view) - position} remain",
                needed=size,
                available=len(view) - position,
            )
        position += size
    return position


def _unsigned_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        if position >= len(view):
            raise TruncatedError("response header: its tagged fields are cut", needed=1, available=0)
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise DecodeError("response header: a varint of more than 5 bytes")


class FrameReader:
    """Cuts what arrives into frames (without their lengths). max_frame_bytes: a longer one is LimitExceededError.

    Memory is bounded by what has arrived, not by what a length claims.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        # of a frame that is not whole; small pieces do not stay objects of their own
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes as they came; give the frames that are whole now, in order."""
        if not self._begun:
            frames, position = self._cut(data)
            self._begun += memoryview(data)[position:]
            return frames
        self._begun += data
        if len(self._begun) < LENGTH_BYTES:
            return []
        if len(self._begun) < LENGTH_BYTES + self._checked(self._begun[:LENGTH_BYTES]):
            return []
        frames, position = self._cut(self._begun)
        del self._begun[:position]
        return frames

    def _cut(self, content: bytes | bytearray) -> tuple[list[bytes], int]:
        """The whole frames that it begins with, and where they end."""
        frames = []
        position = 0
        with memoryview(content) as view:
            while len(view) - position >= LENGTH_BYTES:
                size = self._checked(view[position : position + LENGTH_BYTES])
                if len(view) - position - LENGTH_BYTES < size:
                    break
                position += LENGTH_BYTES
                frames.append(bytes(view[position : position + size]))
                position += size
        return frames, position

    def _checked(self, length: bytes | bytearray | memoryview) -> int:
        size = int.from_bytes(length, "big", signed=True)
        if size < 0:
            raise DecodeError(f"a frame of {size} bytes: the other side speaks something else (TLS, HTTP?)")
        if size > self.max_frame_bytes:
            raise LimitExceededError(
                f"a frame of {size} bytes, more than max_response_bytes={self.max_frame_bytes}"
                " (or the other side speaks something else: TLS, HTTP?)",
                limit="max_response_bytes",
                value=self.max_frame_bytes,
                claimed=size,
            )
        return size

    @property
    def unfinished_bytes(self) -> int:
        """What has arrived of a frame that is not whole."""
        return len(self._begun)
