# SPDX-License-Identifier: Apache-2.0
"""Sockets around the core: asyncio reads frames, hands them over one by one per connection, and writes responses."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from kcodec.broker.api import CLOSE
from kcodec.broker.core import BrokerCore, ConnectionInfo
from kcodec.errors import DecodeError
from kcodec.protocol.frame import FrameReader

_log = logging.getLogger(__name__)
#: Requests of a connection that wait for the one before; more are not read from the socket.
MOST_WAITING_FRAMES = 64
MOST_WAITING_BYTES = 16 << 20


class _Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = FrameReader(server.core.settings.max_request_bytes)
        self._reader.set_limit(server.core.settings.max_request_bytes, "max_request_bytes")
        self._frames: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._is_busy = self._is_serving = False
        self._is_paused = self._is_write_paused = False
        self._transport: asyncio.Transport | None = None
        self._info = ConnectionInfo(0, "")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._info = ConnectionInfo(self._server.next_connection_id(), f"/{peer[0]}" if peer else "")
        self._server.connections.add(self)
        if len(self._server.connections) > self._server.core.settings.max_connections:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._transport = None
        self._frames.clear()

    def close(self) -> None:
        """Close without waiting for what is not sent yet."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def get_buffer(self, sizehint: int) -> Any:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._reader.arrived(nbytes)
        except DecodeError as error:
            _log.info("connection %d from %s: %s", self._info.id, self._info.host, error)
            self.close()
            return
        self._frames.extend(frames)
        self._waiting_bytes += sum(map(len, frames))
        self._serve()
        is_full = len(self._frames) >= MOST_WAITING_FRAMES or self._waiting_bytes >= MOST_WAITING_BYTES
        if is_full and self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._serve()

    def _serve(self) -> None:
        """Handle the next requests, until one waits for its response."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._frames and not self._is_busy and not self._is_write_paused and self._transport is not None:
                frame = self._frames.popleft()
                self._waiting_bytes -= len(frame)
                self._is_busy = True
                self._server.core.serve(self._info, frame, self._reply)
                self._server.core.clock.run_due()
        finally:
            self._is_serving = False
        if self._is_paused and not self._frames and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _reply(self, parts: Any) -> None:
        self._is_busy = False
        if self._transport is None:
            return
        if parts is CLOSE:
            self._transport.close()
            self._transport = None
            return
        if parts is not None:
            self._transport.writelines(parts)
        self._serve()


class Server:
    """The listener of a broker, on the running event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self.core = core
        self.connections: set[_Connection] = set()
        self._connection_id = 0
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup: asyncio.TimerHandle | None = None

    def next_connection_id(self) -> int:
        """Return the number of a new connection."""
        self._connection_id += 1
        return self._connection_id

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. Raise OSError."""
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(lambda: _Connection(self), host, port)
        found: int = self._server.sockets[0].getsockname()[1]
        self.core.host, self.core.port = host, found
        self.core.clock.on_timer = self._plan
        self._plan()
        return found

    def _plan(self) -> None:
        """Wake up at the next timer."""
        if self._loop is None:
            return
        delay = self.core.clock.next_delay_ms()
        if delay is None:
            return
        when = self._loop.time() + delay / 1000
        if self._wakeup is not None:
            if not self._wakeup.cancelled() and self._wakeup.when() <= when:
                return
            self._wakeup.cancel()
        self._wakeup = self._loop.call_at(when, self._run_timers)

    def _run_timers(self) -> None:
        self._wakeup = None
        self.core.clock.run_due()
        self._plan()

    def close(self) -> None:
        """Close the listener and all connections."""
        if self._wakeup is not None:
            self._wakeup.cancel()
        self.core.clock.on_timer = lambda: None
        self._loop = None
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
