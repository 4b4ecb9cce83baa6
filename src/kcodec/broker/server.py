# SPDX-License-Identifier: Apache-2.0
"""Sockets around the core: asyncio reads frames, passes them to the core one by one, and writes the responses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kcodec.broker.api import CLOSE, SILENCE, ConnectionInfo, Listener
from kcodec.broker.core import BrokerCore
from kcodec.broker.listener_tls import ListenerTls, distinguished_name, server_context
from kcodec.errors import DecodeError
from kcodec.protocol.frame import FrameReader

_log = logging.getLogger(__name__)
#: Requests of a connection that wait for the one before; more are not read from the socket.
MOST_WAITING_FRAMES = 64
MOST_WAITING_BYTES = 16 << 20
#: Size of the largest request of a client that has not logged in (sasl.server.max.receive.size).
LOGIN_REQUEST_BYTES = 512 << 10
#: Open files of the process that connections leave to the logs, or half of all if the process may have fewer.
FILES_RESERVE = 512
#: Connections that are accepted before requests are handled again.
MOST_ACCEPTED_AT_ONCE = 20
#: Connections that wait in the kernel to be accepted (socket.listen.backlog.size; Kafka: 50). When the queue is full,
#: the kernel drops the SYN of a new client, which tries again after a second.
LISTEN_BACKLOG = 1024


class _Connection(asyncio.BufferedProtocol):
    """The connection of one client."""

    def __init__(self, server: Server, listener: Listener) -> None:
        self._server = server
        self._reader = FrameReader(server.core.settings.max_request_bytes, is_broker=True)
        self._reader.set_limit(server.core.settings.max_request_bytes, "max_request_bytes")
        self._frames: deque[bytes | memoryview] = deque()
        #: The bytes of requests that are not handled yet: those that wait, and with a part of one that has arrived.
        self._waiting_bytes = self.held_bytes = 0
        #: The requests without a response that is sent, in order: a fault may let a later one overtake.
        self._replies: deque[list[Any]] = deque()
        self._is_busy = self._is_serving = False
        self._is_paused = self._is_write_paused = False
        self._transport: asyncio.Transport | None = None
        #: The transport after an orderly close, until the client has read what was sent before.
        self._closing: asyncio.Transport | None = None
        self._info = ConnectionInfo(listener=listener)

    def __str__(self) -> str:
        return f"connection {self._info.id} from {self._info.host}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        host = f"/{peer[0]}" if peer else ""
        number = next(self._server.core.connection_ids)
        certificate = transport.get_extra_info("peercert") if self._server.core.authorizer is not None else None
        subject = distinguished_name(certificate) if certificate else None
        listener = self._info.listener.seen_from(transport.get_extra_info("sockname"))
        self._info = self._server.core.new_connection(number, host, listener, subject)
        if self._info.login is not None:
            self._reader.set_limit(LOGIN_REQUEST_BYTES, "LOGIN_REQUEST_BYTES")
        self._server.connections.add(self)
        if self._server.is_closed or self._server.has_too_many():
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._server.stalled.pop(self, None)
        self._server.hold(self, -self.held_bytes, is_holding=False)
        self.held_bytes = 0
        self._server.core.disconnected(self._info)
        self._transport = self._closing = None
        self._frames.clear()

    def close(self) -> None:
        """Close without waiting for unsent responses."""
        transport = self._transport or self._closing
        if transport is not None:
            transport.abort()
            self._transport = None

    def drop(self) -> None:
        """Close, and drop the requests that are not handled yet, so that the server no longer counts them."""
        self.held_bytes = self._waiting_bytes = 0
        self._frames.clear()
        self.close()

    @property
    def transport(self) -> asyncio.BaseTransport | None:
        """The transport while it is open, otherwise None."""
        return self._transport or self._closing

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes of responses that the client has not read."""
        transport = self._transport or self._closing
        return 0 if transport is None else transport.get_write_buffer_size()

    def get_buffer(self, sizehint: int) -> Any:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._reader.arrived(nbytes)
        except DecodeError as error:
            _log.info("%s: %s", self, error)
            self.close()
            return
        self._frames.extend(frames)
        self._waiting_bytes += sum(map(len, frames))
        if self._reader.error is not None and self._transport is not None:
            _log.info("%s: %s", self, self._reader.error)
            self._transport.pause_reading()
        self._serve()
        self._count_held()
        is_full = len(self._frames) >= MOST_WAITING_FRAMES or self._waiting_bytes >= MOST_WAITING_BYTES
        if is_full and self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _count_held(self) -> None:
        """Report to the server the number of bytes of requests that have arrived and are not handled yet."""
        if self._transport is None:
            return
        held = self._reader.unfinished_bytes + self._waiting_bytes
        if held != self.held_bytes:
            self.held_bytes, before = held, self.held_bytes
            self._server.hold(self, held - before, is_holding=held > 0)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._server.stalled[self] = None

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._server.stalled.pop(self, None)
        self._serve()

    def _serve(self) -> None:
        """Handle the next requests, until a request waits for its response."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._frames and not self._is_busy and not self._is_write_paused and self._transport is not None:
                frame = self._frames.popleft()
                self._waiting_bytes -= len(frame)
                self._is_busy = True
                waiting: list[Any] = []
                self._replies.append(waiting)
                if self._server.core.serve(self._info, frame, partial(self._reply, waiting)):
                    self._is_busy = False
                self._server.core.clock.run_due()
        finally:
            self._is_serving = False
        self._count_held()
        if self._reader.error is not None:
            if not self._frames and not self._replies:  # the responses to the requests before it are sent
                self._send(CLOSE)
        elif self._is_paused and not self._frames and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _reply(self, waiting: list[Any], parts: Any) -> None:
        """Send the response to a request, after the responses to all earlier requests."""
        if parts is SILENCE:
            return  # the connection stays busy until the client closes it
        if self._replies and self._replies[-1] is waiting:
            self._is_busy = False
        waiting.append(parts)
        while self._replies and self._replies[0]:
            self._send(self._replies.popleft()[0])
        self._serve()

    def _send(self, parts: Any) -> None:
        if self._transport is None or parts is None:
            return
        if parts is CLOSE:
            self._transport.close()
            self._closing, self._transport = self._transport, None
            return
        self._transport.writelines(parts)
        if self._info.login is not None and self._info.login.user is not None:
            self._reader.set_limit(self._server.core.settings.max_request_bytes, "max_request_bytes")
        if self._info.is_ending:
            self._send(CLOSE)
        elif self._is_write_paused:
            self._server.limit_unsent()


class Server:
    """The listeners of a broker, on the running event loop."""

    def __init__(self, core: BrokerCore, listeners: list[Listener]) -> None:
        self.core = core
        core.listeners = listeners
        self.connections: set[_Connection] = set()
        #: Sockets whose TLS handshake is not over; a connection follows.
        self._handshakes: set[ListenerTls] = set()
        #: Connections with responses that their clients have not read, the one that has waited longest first.
        self.stalled: dict[_Connection, None] = {}
        #: Connections with requests that are not handled yet, the one that has had some for longest first.
        self._holding: dict[_Connection, None] = {}
        self._held_bytes = 0
        self._most_connections = _most_connections(core.settings.max_connections)
        self._is_full = False
        self.is_closed = False
        self._servers: list[asyncio.Server] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup: asyncio.TimerHandle | None = None

    def has_too_many(self) -> bool:
        """Return whether there are more connections than the limit, including connections in a TLS handshake."""
        total = len(self.connections) + len(self._handshakes)
        before, self._is_full = self._is_full, total > self._most_connections
        if self._is_full and not before:
            _log.warning(
                "new connections are closed: the limit is %d (max_connections is %d; a part of the open files of the"
                " process, ulimit -n, is reserved for logs)",
                self._most_connections,
                self.core.settings.max_connections,
            )
        return self._is_full

    def handshake_began(self, socket: ListenerTls) -> None:
        """Count an accepted socket, until it is lost or becomes a connection."""
        self._handshakes.add(socket)
        if self.is_closed or self.has_too_many():
            socket.abort()

    def hold(self, connection: _Connection, change: int, *, is_holding: bool) -> None:
        """Count bytes of requests that are not handled yet. Close connections until max_incomplete_bytes are kept."""
        self._held_bytes += change
        if is_holding:
            self._holding[connection] = None
        else:
            self._holding.pop(connection, None)
        most = self.core.settings.max_incomplete_bytes
        for other in list(self._holding)[:-1] if self._held_bytes > most else ():
            if self._held_bytes <= most:
                break
            _log.warning(
                "%s is closed: its request is not whole, and max_incomplete_bytes (%d) is reached", other, most
            )
            self._held_bytes -= other.held_bytes
            self._holding.pop(other)
            other.drop()

    def limit_unsent(self) -> None:
        """Close the connections that have waited longest, until at most max_unsent_bytes are not sent."""
        most = self.core.settings.max_unsent_bytes
        unsent = sum(connection.unsent_bytes for connection in self.stalled)
        for connection in list(self.stalled)[:-1]:
            if unsent <= most:
                break
            unsent -= connection.unsent_bytes
            _log.warning(
                "%s is closed: it has not read its responses, and max_unsent_bytes (%d) is reached", connection, most
            )
            connection.close()

    async def start(self) -> None:
        """Listen, and store the ports in the listeners. Raise OSError."""
        self._loop = asyncio.get_running_loop()
        for listener in self.core.listeners:
            await self._listen(listener)
        self.core.clock.on_timer = self._plan
        self._plan()

    async def _listen(self, listener: Listener) -> None:
        """Listen. asyncio uses one number for the backlog and for the number of connections that it accepts at once."""
        protocol, loop = self._protocol_of(listener), asyncio.get_running_loop()
        try:
            found = await loop.create_server(protocol, listener.host, listener.port, backlog=MOST_ACCEPTED_AT_ONCE)
        except OSError as error:
            reason = (error.strerror or str(error)).rpartition(": ")[2]
            text = f"cannot listen on {listener.address}: {reason}; choose another host or port (0: a free port)"
            raise OSError(error.errno, text) from error
        ports = [socket.getsockname()[1] for socket in found.sockets]
        listener.port = ports[0]
        if len(set(ports)) > 1:  # a name with an IPv4 and an IPv6 address, and a free port: both take the same one
            found.close()
            await self._listen(listener)
            return
        self._servers.append(found)
        for socket in found.sockets:
            with socket.dup() as same:
                same.listen(LISTEN_BACKLOG)

    def _protocol_of(self, listener: Listener) -> Callable[[], asyncio.BaseProtocol]:
        """Return a factory for the protocol of a new socket: a connection, behind TLS if the listener uses TLS."""
        if not listener.has_tls:
            return lambda: _Connection(self, listener)
        context = server_context(self.core.settings)
        began, ended = self.handshake_began, self._handshakes.discard
        return lambda: ListenerTls(context, _Connection(self, listener), began, ended)

    def _plan(self) -> None:
        """Schedule a wake-up for the next timer."""
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
        self.core.clock.run_in_real_time()
        self._plan()

    def close(self) -> None:
        """Accept no more connections, and close all connections. `finish` then closes the listeners."""
        if self._wakeup is not None:
            self._wakeup.cancel()
        self.core.clock.on_timer = lambda: None
        self.is_closed = True
        for socket in self._listening():
            if self._loop is not None:
                self._loop.remove_reader(socket.fileno())
        self._loop = None
        for connection in list(self.connections):
            connection.close()
        for handshake in list(self._handshakes):
            handshake.abort()

    async def finish(self) -> None:
        """Close the listeners, after `close`. First wait until each accepted socket has become a connection, which is
        then closed. Otherwise, asyncio would leave the socket open, and its client would wait for a response."""
        accepting = asyncio.all_tasks() - {asyncio.current_task()}
        if accepting:
            await asyncio.wait(accepting)
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)  # the closed connections are reported to their protocols

    def _listening(self) -> list[Any]:
        return [socket for server in self._servers for socket in server.sockets]

    def close_in_child(self) -> None:
        """Close the sockets in a forked process. Otherwise, clients would stay connected and the port would stay in use
        until this process ends.

        The descriptor of each socket then refers to the null device, so that the socket object can still close it.
        """
        transports = [connection.transport for connection in self.connections]
        transports += [handshake.transport for handshake in self._handshakes]
        sockets = [*self._listening(), *(one.get_extra_info("socket") for one in transports if one is not None)]
        empty = os.open(os.devnull, os.O_RDWR)
        for socket in sockets:
            if socket is not None and socket.fileno() >= 0:
                os.dup2(empty, socket.fileno(), inheritable=False)
        os.close(empty)


def _most_connections(allowed: int) -> int:
    """Return max_connections, or a lower number if the limit of open files (RLIMIT_NOFILE) requires it."""
    with contextlib.suppress(ImportError):  # a system without this limit
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files != resource.RLIM_INFINITY:
            return min(allowed, max(files - FILES_RESERVE, files // 2))
    return allowed
