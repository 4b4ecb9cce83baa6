# SPDX-License-Identifier: Apache-2.0
"""Plain non-blocking sockets under a selector: how `sync.Carrier` dials, writes and reads."""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kcodec.flow import Address
from kcodec.network.connection import Connection

if TYPE_CHECKING:
    from kcodec.network.scheduler import Scheduler

# One sendmsg takes at most so many pieces (IOV_MAX is 1024 on Linux, and at least 16 anywhere).
MAX_PIECES = 64
# One address of a host that has several gets so many seconds; the connection's own deadline is above all of them.
ADDRESS_SECONDS = 5.0

SocketAddress = tuple[socket.AddressFamily, Any]


def resolve(address: Address) -> list[SocketAddress]:
    """All addresses of a host, in the system's order (client.dns.lookup=use_all_dns_ips). Raises OSError."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


def dial(
    selector: selectors.BaseSelector,
    scheduler: Scheduler,
    addresses: list[SocketAddress],
    connection: Connection,
    transport_class: type[SocketTransport],
) -> None:
    """Try the addresses in turn; tell the connection of the first that takes us, or of the last failure."""
    (family, where), rest = addresses[0], addresses[1:]
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def failed(code: int) -> None:
        timer.cancel()
        selector.unregister(sock)
        sock.close()
        if rest and not connection.is_closed:
            dial(selector, scheduler, rest, connection, transport_class)
        else:
            connection.closed(OSError(code, os.strerror(code)))

    def writable(events: int) -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            failed(code)
            return
        timer.cancel()
        selector.unregister(sock)
        connection.connected(transport_class(selector, sock, connection))

    selector.register(sock, selectors.EVENT_WRITE, writable)
    timer = scheduler.call_at(scheduler.clock() + ADDRESS_SECONDS, lambda: failed(errno.ETIMEDOUT))
    code = sock.connect_ex(where)
    if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
        scheduler.call_soon(lambda: failed(code))


class SocketTransport:
    """A connected socket in a selector. What cannot be sent at once waits, and is sent when the socket takes it."""

    def __init__(self, selector: selectors.BaseSelector, sock: socket.socket, connection: Connection) -> None:
        self._selector = selector
        self._socket = sock
        self._connection = connection
        self._unsent: deque[memoryview] = deque()
        self._is_open = True
        self._watched = selectors.EVENT_READ
        selector.register(sock, selectors.EVENT_READ, self._happened)

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send; never blocks."""
        was_idle = not self._unsent
        self._unsent.extend(memoryview(part).cast("B") for part in parts if len(part))
        if was_idle:
            self._send()

    def close(self) -> None:
        """Close at once."""
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._socket)
            self._socket.close()

    def _send(self) -> None:
        while self._unsent and self._is_open:
            try:
                sent = self._socket.sendmsg([self._unsent[i] for i in range(min(len(self._unsent), MAX_PIECES))])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._fail(error)
                return
            while sent:
                first = self._unsent[0]
                if sent < len(first):
                    self._unsent[0] = first[sent:]
                    break
                sent -= len(first)
                self._unsent.popleft()
        if self._is_open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            if wanted != self._watched:
                self._watched = wanted
                self._selector.modify(self._socket, wanted, self._happened)

    def _happened(self, events: int) -> None:
        if events & selectors.EVENT_WRITE and self._is_open:
            self._send()
        if events & selectors.EVENT_READ and self._is_open:
            try:
                count = self._socket.recv_into(self._connection.room())
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._fail(error)
                return
            if count:
                self._connection.received(count)
            else:
                self._fail(None)

    def _fail(self, error: OSError | None) -> None:
        self.close()
        self._connection.closed(error)
