# SPDX-License-Identifier: Apache-2.0
"""A listener on loopback whose responses to Kafka frames are defined by a test, for behavior that no real broker shows.

A `Peer` gets `answer(peer, request) -> bytes | None`: the body and header of the response, or None for no response. It
may also close the connection or send arbitrary bytes through the `Request`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from kcodec.protocol.messages.auth import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kcodec.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker

APIS = {18: (0, 4), 3: (0, 13), 10: (0, 6), 22: (0, 5), 0: (0, 13), 24: (0, 3), 25: (0, 4), 26: (0, 5), 28: (0, 5)}


@dataclass
class Request:
    """One frame of a client. body: the bytes after the header (header v1 and v2)."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: bytes
    socket: socket.socket
    number: int

    def reply(self, message: Any, version: int | None = None, *, flexible: bool | None = None) -> bytes:
        """The frame of a response message, without its length."""
        version = self.version if version is None else version
        tags = b"\x00" if (type(message).is_flexible(version) if flexible is None else flexible) else b""
        if self.api_key == ApiVersionsRequest.api_key:
            tags = b""
        body: bytes = message.encode(version)
        return self.correlation_id.to_bytes(4, "big", signed=True) + tags + body


def versions_reply(request: Request, apis: dict[int, tuple[int, int]] | None = None, **fields: Any) -> bytes:
    """Return a valid response to ApiVersions."""
    keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in (apis or APIS).items()]
    return request.reply(ApiVersionsResponse(api_keys=keys, **fields))


class Peer:
    """Listens until closed. requests: all received requests, in order.

    receive_buffer: the size in bytes of the receive buffer of each connection. If it is None, the system makes the
    buffer larger as data comes, on some machines to 32 MB.
    """

    def __init__(
        self,
        answer: Callable[[Peer, Request], bytes | None],
        node_id: int = 1,
        receive_buffer: int | None = None,
    ) -> None:
        self.answer = answer
        self.node_id = node_id
        self.requests: list[Request] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        if receive_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.host, self.port = self._listener.getsockname()
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._thread.join(5)

    def metadata_reply(self, request: Request, **fields: Any) -> bytes:
        """Return a valid response to Metadata, in which this peer is the only broker."""
        broker = MetadataResponseBroker(node_id=self.node_id, host=self.host, port=self.port)
        return request.reply(MetadataResponse(brokers=[broker], controller_id=self.node_id, **fields))

    def usual(self, request: Request) -> bytes | None:
        """Return responses to ApiVersions and Metadata; None for other requests."""
        if request.api_key == ApiVersionsRequest.api_key:
            return versions_reply(request)
        if request.api_key == MetadataRequest.api_key:
            return self.metadata_reply(request)
        return None

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        stream = sock.makefile("rb")
        with contextlib.suppress(OSError):
            while len(head := stream.read(4)) == 4:
                size = int.from_bytes(head, "big")
                frame = stream.read(size)
                if len(frame) < size:
                    return  # the client has closed the connection in the middle of a request
                request = parse(frame, sock, len(self.requests))
                self.requests.append(request)
                reply = self.answer(self, request)
                if reply is not None:
                    sock.sendall(struct.pack(">i", len(reply)) + reply)


def parse(frame: bytes, sock: socket.socket, number: int) -> Request:
    """A request frame without its length."""
    api_key, version, correlation_id, size = struct.unpack_from(">hhih", frame)
    client_id = None if size < 0 else frame[10 : 10 + size].decode()
    return Request(api_key, version, correlation_id, client_id, frame[10 + max(size, 0) :], sock, number)
