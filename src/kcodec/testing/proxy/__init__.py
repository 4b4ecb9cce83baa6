# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between Kafka clients and brokers that knows frames: to hold, drop, cut, duplicate, replace or answer a
given request or response, and to see on the wire what was spoken.

    with KafkaProxy(broker.bootstrap_servers) as proxy:
        late = proxy.on_request("EndTxn", nth=2).hold(2.0, cut_client=True)
        ...                                        # a client with bootstrap_servers=proxy.bootstrap_servers
        late.wait_hit(10.0)
    assert proxy.versions("EndTxn") == {5}

Each broker gets a loopback port of its own when an answer first names it: the addresses in answers (Metadata,
FindCoordinator, DescribeCluster, leaders named by Produce and Fetch) are replaced by those of the proxy's ports.
For what brokers say to each other, or behind TLS, `listen` gives ports to advertise. It all ends with `close()`, and
with the process.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from . import answers
from .connection import Connection
from .frames import Exchange, Frame, api_key
from .rules import Rules, Selection

if TYPE_CHECKING:
    from types import TracebackType

    from ..properties import Listener

#: Lines of the wire log that are kept; the oldest go first.
MAX_LOG_LINES = 200_000
#: Seconds `close` waits for a thread to end.
CLOSE_SECONDS = 5.0

HostPort = tuple[str, int]


class Port:
    """A loopback port of the proxy and the broker behind it; `upstream` (``"host:port"``) may be set later."""

    def __init__(self, upstream: str | None, node: int | None, accept: Callable[[Port, socket.socket], None]) -> None:
        self.upstream = upstream
        self.node = node
        self.refuses = False
        self._closed = False
        self._accept = accept
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=f"kafka-proxy-port-{self.port}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens, ``"127.0.0.1:port"``."""
        return f"127.0.0.1:{self.port}"

    def upstream_address(self) -> HostPort:
        """The broker's host and port. ConnectionError: none was given yet."""
        if self.upstream is None:
            raise ConnectionError(f"port {self.port} of the proxy has no upstream yet")
        return split_address(self.upstream)

    def close(self) -> None:
        """Listen no more."""
        self._closed = True
        with socket.create_connection(("127.0.0.1", self.port)):  # wakes `accept` on every system; closing does not
            self._thread.join(CLOSE_SECONDS)
        self._listener.close()

    def _run(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed:
                client.close()
                return
            if self.refuses:
                client.close()
            else:
                self._accept(self, client)


class KafkaProxy:
    """A proxy before the brokers that `bootstrap_servers` leads to.

    bootstrap_servers: addresses of brokers, ``"host:port,..."``; may be empty where only `listen` is used.
    keep_bytes:        keep the bytes of every request and response in the log.
    transparent:       carry bytes without looking at them (TLS): no rules, no log, no addresses replaced.
    latency:           seconds by which each chunk of a transparent connection is late.
    """

    def __init__(
        self, bootstrap_servers: str = "", *, keep_bytes: bool = False, transparent: bool = False, latency: float = 0.0
    ) -> None:
        self.keep_bytes = keep_bytes
        self.transparent = transparent
        self.latency = latency
        self.rules = Rules()
        self._lock = threading.Lock()
        self._log: deque[Exchange] = deque(maxlen=MAX_LOG_LINES)
        self._ends: deque[tuple[int, BaseException]] = deque(maxlen=1000)
        self._failures: list[Exception] = []
        self._connections: set[Connection] = set()
        self._numbers = 0
        self._ports: dict[HostPort, Port] = {}
        self._other_ports: list[Port] = []
        self._closed = False
        addresses = [split_address(text) for text in bootstrap_servers.split(",") if text.strip()]
        self.bootstrap_servers = ",".join(self.port_of(address, None).address for address in addresses)

    def __enter__(self) -> KafkaProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise

    def close(self) -> None:
        """End all: what is held is dropped. Raises the first error that a rule's own function raised."""
        self._closed = True
        for port in self._all_ports():
            port.close()
        for connection in self._open_connections():
            connection.cut()
        self.rules.clear()
        for connection in self._open_connections():
            connection.join(CLOSE_SECONDS)
        if self._failures:
            raise self._failures[0]

    # ----------------------------------------------------------------------------------------------------- for tests

    def on_request(
        self,
        api: str | int | None = None,
        *,
        nth: int = 1,
        count: int | None = 1,
        client_id: str | None = None,
        node: int | None = None,
        connection: int | None = None,
        where: Callable[[Exchange], bool] | None = None,
    ) -> Selection:
        """Requests of an API, before the broker gets them: the nth that fits and so many (None: all) from then on.
        A method of what comes back says what happens to them."""
        return Selection(self.rules, "request", api, nth, count, client_id, node, connection, where)

    def on_response(
        self,
        api: str | int | None = None,
        *,
        nth: int = 1,
        count: int | None = 1,
        client_id: str | None = None,
        node: int | None = None,
        connection: int | None = None,
        where: Callable[[Exchange], bool] | None = None,
    ) -> Selection:
        """Responses to an API's requests, before the client gets them; the broker has carried the request out."""
        return Selection(self.rules, "response", api, nth, count, client_id, node, connection, where)

    def clear_rules(self) -> None:
        """End all rules; what they hold goes on its way."""
        self.rules.clear()

    def cut_connections(self, *, client_id: str | None = None, node: int | None = None) -> int:
        """Close both sides of all connections, or of this client's, to this broker; how many there were."""
        chosen = [
            connection
            for connection in self._open_connections()
            if client_id in (None, connection.client_id) and node in (None, connection.port.node)
        ]
        for connection in chosen:
            connection.cut()
        return len(chosen)

    def refuse_connections(self, refuse: bool = True, *, node: int | None = None) -> None:
        """Close new connections, of all ports or of one broker's, as soon as they are made; False: take them again."""
        for port in self._all_ports():
            if node in (None, port.node):
                port.refuses = refuse

    def exchanges(
        self, api: str | int | None = None, *, client_id: str | None = None, node: int | None = None
    ) -> list[Exchange]:
        """The wire log so far, in the order the requests came, or the lines of one API, client, broker."""
        key = None if api is None else api_key(api)
        with self._lock:
            return [
                one
                for one in self._log
                if key in (None, one.api_key) and client_id in (None, one.client_id) and node in (None, one.node)
            ]

    def versions(self, api: str | int, *, client_id: str | None = None) -> set[int]:
        """The versions in which requests of an API were spoken."""
        return {exchange.version for exchange in self.exchanges(api, client_id=client_id)}

    def clear_log(self) -> None:
        """Begin the wire log anew."""
        with self._lock:
            self._log.clear()

    def ends(self) -> list[tuple[int, BaseException]]:
        """Connections that ended by an error, as (number, error), the last thousand."""
        with self._lock:
            return list(self._ends)

    def listen(self, upstream: str | None = None, *, node: int | None = None) -> Port:
        """A port of its own, as for a listener that a broker advertises to the other brokers."""
        port = Port(upstream, node, self._take)
        with self._lock:
            self._other_ports.append(port)
        return port

    def advertise(self, listener: Listener) -> str:
        """For ``ApacheKafka(advertise=proxy.advertise)``: the broker tells clients and the other brokers to come this
        way, so what brokers say to each other passes here, too."""
        return self.listen(listener.address, node=listener.node).address

    def port_of(self, upstream: HostPort, node: int | None) -> Port:
        """The port before a broker, made if there is none yet."""
        key = ("127.0.0.1" if upstream[0] == "localhost" else upstream[0], upstream[1])
        with self._lock:
            if key not in self._ports:
                self._ports[key] = Port(join_address(key), node, self._take)
            port = self._ports[key]
            if node is not None:
                port.node = node
            return port

    # ----------------------------------------------------------------------------------------------- for connections

    def record(self, exchange: Exchange) -> None:
        """Put a line into the wire log."""
        with self._lock:
            self._log.append(exchange)

    def readdressed(self, exchange: Exchange, frame: Frame) -> Frame:
        """A response with the addresses of brokers replaced by the proxy's own."""
        if exchange.api_key not in answers.ADDRESS_FIELDS:
            return frame

        def place(node: int, host: str, port: int) -> HostPort:
            return "127.0.0.1", self.port_of((host, port), node if node >= 0 else None).port

        return answers.with_addresses(exchange, frame, place)

    def note_end(self, connection: int, error: BaseException) -> None:
        """A connection ended by an error of the network or of a peer's bytes."""
        with self._lock:
            self._ends.append((connection, error))

    def note_failure(self, error: Exception) -> None:
        """A rule's own function, or the proxy itself, raised: `close` raises it again."""
        with self._lock:
            self._failures.append(error)

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        with self._lock:
            self._connections.discard(connection)

    def _take(self, port: Port, client: socket.socket) -> None:
        with self._lock:
            self._numbers += 1
            connection = Connection(self, port, client, self._numbers)
            self._connections.add(connection)
        connection.start()

    def _open_connections(self) -> list[Connection]:
        with self._lock:
            return list(self._connections)

    def _all_ports(self) -> Iterator[Port]:
        with self._lock:
            ports = [*self._ports.values(), *self._other_ports]
        return iter(ports)


def split_address(text: str) -> HostPort:
    """Host and port of ``"host:port"`` or ``"[host]:port"``. ValueError: it is neither."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"address {text!r}: host:port is wanted")
    return host.strip("[]"), int(port)


def join_address(address: HostPort) -> str:
    """``"host:port"``."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
