# SPDX-License-Identifier: Apache-2.0
"""Both ends of a connection for tests of the proxy: a server that responds to each frame, and a client of raw
frames."""

from __future__ import annotations

import socket
import struct
import threading
import time
from types import TracebackType

from kcodec.testing.proxy.frames import api_key, read_frame, send_frame

HEADER = struct.Struct(">hhih")


def request_frame(api: str, correlation: int, body: bytes = b"", version: int = 1, client_id: str = "test") -> bytes:
    name = client_id.encode()
    return HEADER.pack(api_key(api), version, correlation, len(name)) + name + body


class EchoBroker:
    """Responds to every request with its correlation id and its own bytes, and stores the requests with their times."""

    def __init__(self) -> None:
        self.requests: list[tuple[float, bytes]] = []
        self.cut_short = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                while (frame := read_frame(client)) is not None:
                    self.requests.append((time.monotonic(), bytes(frame)))
                    send_frame(client, bytes(frame[4:8]) + bytes(frame))
            except OSError:
                self.cut_short += 1

    def correlations(self) -> list[int]:
        return [HEADER.unpack_from(frame)[2] for _, frame in self.requests]

    def wait_requests(self, count: int, timeout: float = 5.0) -> list[int]:
        end = time.monotonic() + timeout
        while len(self.requests) < count and time.monotonic() < end:
            time.sleep(0.002)
        return self.correlations()

    def __enter__(self) -> EchoBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()


class RawClient:
    """Sends frames and reads the responses; None if the connection was closed."""

    def __init__(self, address: str, timeout: float = 5.0) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout)

    def send(self, frame: bytes) -> None:
        send_frame(self.socket, frame)

    def read(self) -> bytes | None:
        try:
            frame = read_frame(self.socket)
        except ConnectionResetError:
            return None
        return None if frame is None else bytes(frame)

    def ask(self, frame: bytes) -> bytes | None:
        self.send(frame)
        return self.read()

    def is_silent(self, seconds: float) -> bool:
        before = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) is None
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(before)

    def close(self) -> None:
        self.socket.close()
