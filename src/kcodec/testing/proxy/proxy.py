# SPDX-License-Identifier: Apache-2.0
"""The proxy's ports and connections: two threads for each connection, one in each direction, which apply the rules."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType

from kcodec.errors import DecodeError
from kcodec.testing.properties import Listener
from kcodec.testing.proxy import answers
from kcodec.testing.proxy.frames import (
    Exchange,
    Frame,
    api_key,
    correlation_id,
    has_no_response,
    open_exchange,
    read_frame,
    send_frame,
)
from kcodec.testing.proxy.rules import Rule, Rules, Selection

#: Lines of the wire log that are kept; the oldest go first.
MAX_LOG_LINES = 200_000
#: Seconds `close` waits for a thread to end.
CLOSE_SECONDS = 5.0

#: Seconds for which a broker may respond after the client has closed; a request that is processed late needs them.
LINGER_SECONDS = 10.0
#: Seconds in which a broker must take a connection.
CONNECT_SECONDS = 10.0
#: Bytes taken at a time where frames are not looked at.
CHUNK_BYTES = 1 << 18

HostPort = tuple[str, int]


class Port:
    """A loopback port of the proxy and the broker behind it.

    upstream: Address of the broker, ``"host:port"``; None if it is set later.
    node: Id of the broker; None if it is unknown.
    accept: Function that is called with the port and the socket of each new connection.
    """

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
        """Its address, ``"127.0.0.1:port"``."""
        return f"127.0.0.1:{self.port}"

    def upstream_address(self) -> HostPort:
        """Return the broker's host and port. Raise ConnectionError if they are not set yet."""
        if self.upstream is None:
            raise ConnectionError(f"port {self.port} of the proxy has no broker to connect to yet")
        return split_address(self.upstream)

    def close(self) -> None:
        """Stop listening."""
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


class _ForwardedRequest:
    """A request whose response has not been sent to the client yet."""

    __slots__ = ("answer", "exchange", "is_copy")

    def __init__(self, exchange: Exchange, answer: Frame | None = None, *, is_copy: bool = False) -> None:
        self.exchange = exchange
        self.answer = answer  # given by the proxy, waiting for those before it: brokers answer in order
        self.is_copy = is_copy  # its response is dropped


class ProxiedConnection:
    """Forwards frames between a client and a broker until either closes.

    The broker's side stays open until the client's requests have been delivered and have got their responses. As in a
    network, a request can therefore outlive the connection of its client.
    """

    def __init__(self, proxy: KafkaProxy, port: Port, client: socket.socket, number: int) -> None:
        self.number = number
        self.port = port
        self.client_id: str | None = None
        self._proxy = proxy
        self._client = client
        self._upstream: socket.socket | None = None
        self._upstream_ended = False
        #: Whether a request, or a response, was dropped. No later one is then forwarded.
        self._loses_requests = self._loses_responses = False
        self._pending: deque[_ForwardedRequest] = deque()
        self._changed = threading.Condition()
        self._client_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"kafka-proxy-{number}", daemon=True)

    def start(self) -> None:
        """Connect to the broker and forward frames, in separate threads."""
        self._thread.start()

    def cut(self) -> None:
        """Close both sides now."""
        self.cut_client()
        if self._upstream is not None:
            _shut(self._upstream)

    def cut_client(self) -> None:
        """Close the client's side. Requests that it has sent still reach the broker."""
        _shut(self._client)

    def join(self, timeout: float) -> None:
        """Wait until its threads have ended."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            with self._client, socket.create_connection(self.port.upstream_address(), CONNECT_SECONDS) as upstream:
                self._upstream = upstream
                for one in (upstream, self._client):
                    one.settimeout(None)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._run_connected(upstream)
        except (OSError, DecodeError) as error:
            self._proxy.note_end(self.number, error)
        except Exception as error:  # noqa: BLE001 - of a rule's own function: the proxy's owner hears of it
            self._proxy.note_failure(error)
        finally:
            self._proxy.forget(self)

    def _run_connected(self, upstream: socket.socket) -> None:
        back = threading.Thread(target=self._run_back, args=(upstream,), name=f"{self._thread.name}-back", daemon=True)
        back.start()
        try:
            if self._proxy.transparent:
                self._pipe(self._client, upstream)
            else:
                self._forward_requests(upstream)
                with self._changed:
                    self._changed.wait_for(lambda: self._upstream_ended or not self._pending, LINGER_SECONDS)
        finally:
            self.cut()
            back.join()

    def _run_back(self, upstream: socket.socket) -> None:
        try:
            if self._proxy.transparent:
                self._pipe(upstream, self._client)
            else:
                self._forward_responses(upstream)
        except (OSError, DecodeError) as error:
            self._proxy.note_end(self.number, error)
        except Exception as error:  # noqa: BLE001 - as above
            self._proxy.note_failure(error)
        finally:
            with self._changed:
                self._upstream_ended = True
                self._changed.notify_all()
            self.cut()

    def _pipe(self, source: socket.socket, target: socket.socket) -> None:
        while chunk := source.recv(CHUNK_BYTES):
            if self._proxy.latency:
                time.sleep(self._proxy.latency)
            target.sendall(chunk)

    # Requests

    def _forward_requests(self, upstream: socket.socket) -> None:
        going = True
        while going and (frame := read_frame(self._client)) is not None:
            exchange = open_exchange(frame, self.number, self.port.node)
            self.client_id = exchange.client_id
            self._proxy.record(exchange)
            rule = self._proxy.rules.match("request", exchange)
            if self._loses_requests:
                going = self._lose(rule, exchange)
            elif rule is None:
                self._forward(upstream, exchange, frame)
            else:
                going = self._act_on_request(rule, upstream, exchange, frame)

    def _act_on_request(self, rule: Rule, upstream: socket.socket, exchange: Exchange, frame: Frame) -> bool:
        """Apply the rule. Return False if the connection has ended with this request."""
        action = rule.action
        if action.kind in ("cut", "deliver_and_cut") or action.cut_client:
            self.cut_client()
        if action.kind == "answer":
            with self._changed:
                answer = answers.response_frame(exchange, action.content)
                self._pending.append(_ForwardedRequest(exchange, answer))
            self._flush_own_responses()
            return True
        if action.kind == "replace":
            frame = answers.request_frame(exchange, action.content)
        if action.kind == "hold":
            rule.wait_release()
        if action.kind == "drop":
            self._loses_requests = True
        elif action.kind != "cut":
            self._forward(upstream, exchange, frame)
        if action.kind == "duplicate":
            self._forward(upstream, exchange, frame, is_copy=True)
        return action.kind not in ("cut", "deliver_and_cut")

    def _lose(self, rule: Rule | None, exchange: Exchange) -> bool:
        """Drop a frame that follows a dropped one. Return False if the rule closes the connection."""
        exchange.actions += ("lost",)
        is_cut = rule is not None and rule.action.kind in ("cut", "deliver_and_cut")
        if is_cut:
            self.cut_client()
        return not is_cut

    def _forward(self, upstream: socket.socket, exchange: Exchange, frame: Frame, *, is_copy: bool = False) -> None:
        if not has_no_response(exchange, frame):
            with self._changed:
                self._pending.append(_ForwardedRequest(exchange, is_copy=is_copy))
        try:
            send_frame(upstream, frame)
        except OSError:
            exchange.actions += ("lost",)
            raise

    # Responses

    def _forward_responses(self, upstream: socket.socket) -> None:
        while (frame := read_frame(upstream)) is not None:
            with self._changed:
                pending = self._pending[0] if self._pending else None
            if pending is None or pending.exchange.correlation_id != correlation_id(frame):
                raise DecodeError(
                    f"the response with correlation id {correlation_id(frame)} is not that of the next request"
                )
            if not pending.is_copy:
                self._take_response(pending.exchange, frame)
            with self._changed:
                self._pending.popleft()
            self._flush_own_responses()

    def _take_response(self, exchange: Exchange, frame: Frame) -> None:
        """Note a response, and forward it as the rules allow."""
        exchange.response_time, exchange.response_size = time.monotonic(), len(frame)
        exchange.response = frame = self._proxy.readdressed(exchange, frame)
        rule = self._proxy.rules.match("response", exchange)
        if self._loses_responses:
            self._lose(rule, exchange)
        elif rule is None:
            self._to_client(exchange, frame)
        else:
            self._act_on_response(rule, exchange, frame)
        if not self._proxy.keep_bytes:
            exchange.request = exchange.response = None

    def _act_on_response(self, rule: Rule, exchange: Exchange, frame: Frame) -> None:
        action = rule.action
        if action.kind == "cut" or action.cut_client:
            self.cut_client()
        if action.kind == "hold":
            rule.wait_release()
        if action.kind == "replace":
            frame = answers.response_frame(exchange, action.content)
        if action.kind == "drop":
            self._loses_responses = True
        elif action.kind != "cut":
            self._to_client(exchange, frame)
        if action.kind == "duplicate":
            self._to_client(exchange, frame)
        if action.kind == "deliver_and_cut":
            self.cut_client()

    def _flush_own_responses(self) -> None:
        """Send the proxy's own responses that do not have to wait for a response of the broker."""
        while True:
            with self._client_lock:
                with self._changed:
                    head = self._pending[0] if self._pending else None
                    if head is None or head.answer is None:
                        self._changed.notify_all()
                        return
                    self._pending.popleft()
                exchange, answer = head.exchange, head.answer
                exchange.response_time, exchange.response_size = time.monotonic(), len(answer)
                exchange.response = answer if self._proxy.keep_bytes else None
                self._send_client(exchange, answer)

    def _to_client(self, exchange: Exchange, frame: Frame) -> None:
        with self._client_lock:
            self._send_client(exchange, frame)

    def _send_client(self, exchange: Exchange, frame: Frame) -> None:
        if self._loses_responses:  # a response of the proxy itself
            exchange.actions += ("lost",)
            return
        try:
            send_frame(self._client, frame)
        except OSError:
            exchange.actions += ("unheard",)


class KafkaProxy:
    """A proxy for the brokers in `bootstrap_servers`.

    bootstrap_servers: addresses of brokers, ``"host:port,..."``; may be empty if only `listen` is used.
    keep_bytes:        keep the bytes of every request and response in the log.
    transparent:       forward bytes without parsing them (TLS): no rules, no log, no addresses replaced.
    latency:           delay of each chunk of a transparent connection, in seconds.
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
        self._connections: set[ProxiedConnection] = set()
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
        """Close all connections and drop held frames. Raise the first error of a rule's function."""
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

    # For tests

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
        """Select requests before the broker gets them. A method of the result sets what happens to them.

        api: name or number of the API, None for any.
        nth, count: the nth match, from 1, and the number of matches from there on; None for all from there on.
        client_id: client id of the request, None for any.
        node: id of the broker, None for any.
        connection: number of the client's connection, None for any.
        where: function of the exchange that returns whether it matches; None if every exchange matches.
        """
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
        """Select responses before the client gets them. The broker has already processed their requests.

        api, nth, count, client_id, node, connection, where: as in `on_request`, for their requests.
        """
        return Selection(self.rules, "response", api, nth, count, client_id, node, connection, where)

    def clear_rules(self) -> None:
        """End all rules and release what they hold."""
        self.rules.clear()

    def cut_connections(self, *, client_id: str | None = None, node: int | None = None) -> int:
        """Close both sides of connections. Return their number.

        client_id: only connections whose last request has this client id; None for all.
        node: only connections to the broker with this id; None for all.
        """
        chosen = [
            connection
            for connection in self._open_connections()
            if client_id in (None, connection.client_id) and node in (None, connection.port.node)
        ]
        for connection in chosen:
            connection.cut()
        return len(chosen)

    def refuse_connections(self, refuse: bool = True, *, node: int | None = None) -> None:
        """Close new connections as soon as they are made.

        refuse: False accepts them again.
        node: only connections to the broker with this id; None for all ports.
        """
        for port in self._all_ports():
            if node in (None, port.node):
                port.refuses = refuse

    def exchanges(
        self, api: str | int | None = None, *, client_id: str | None = None, node: int | None = None
    ) -> list[Exchange]:
        """Return the wire log in the order of the requests.

        api: only entries of this API, by its name or number; None for all.
        client_id: only entries with this client id; None for all.
        node: only entries of the broker with this id; None for all.
        """
        key = None if api is None else api_key(api)
        with self._lock:
            return [
                one
                for one in self._log
                if key in (None, one.api_key) and client_id in (None, one.client_id) and node in (None, one.node)
            ]

    def versions(self, api: str | int, *, client_id: str | None = None) -> set[int]:
        """Return the versions of the requests of `api`, the name or number of an API.

        client_id: only requests with this client id; None for all.
        """
        return {exchange.version for exchange in self.exchanges(api, client_id=client_id)}

    def clear_log(self) -> None:
        """Clear the wire log."""
        with self._lock:
            self._log.clear()

    def ends(self) -> list[tuple[int, BaseException]]:
        """Return the last thousand connections that ended by an error, as (number, error)."""
        with self._lock:
            return list(self._ends)

    def listen(self, upstream: str | None = None, *, node: int | None = None) -> Port:
        """Open a separate port, for a listener that a broker advertises to the other brokers.

        upstream: address of the listener, ``"host:port"``; None if it is set later.
        node: id of the broker; None if it is unknown.
        """
        port = Port(upstream, node, self._take)
        with self._lock:
            self._other_ports.append(port)
        return port

    def advertise(self, listener: Listener) -> str:
        """For ``ApacheKafka(advertise=proxy.advertise)``: the broker advertises the proxy to clients and other brokers,
        so that the traffic between brokers passes through it, too."""
        return self.listen(listener.address, node=listener.node).address

    def port_of(self, upstream: HostPort, node: int | None) -> Port:
        """Return the port for a broker. Create it if none exists yet.

        upstream: host and port of the broker.
        node: id of the broker; None if it is unknown.
        """
        key = ("127.0.0.1" if upstream[0] == "localhost" else upstream[0], upstream[1])
        with self._lock:
            if key not in self._ports:
                self._ports[key] = Port(join_address(key), node, self._take)
            port = self._ports[key]
            if node is not None:
                port.node = node
            return port

    # For connections

    def record(self, exchange: Exchange) -> None:
        """Add `exchange` to the wire log."""
        with self._lock:
            self._log.append(exchange)

    def readdressed(self, exchange: Exchange, frame: Frame) -> Frame:
        """Return `frame`, the response of `exchange`, with the addresses of brokers replaced by the proxy's own."""
        if exchange.api_key not in answers.ADDRESS_FIELDS:
            return frame

        def place(node: int, host: str, port: int) -> HostPort:
            return "127.0.0.1", self.port_of((host, port), node if node >= 0 else None).port

        return answers.with_addresses(exchange, frame, place)

    def note_end(self, connection: int, error: BaseException) -> None:
        """Note a connection that ended by an error of the network or of a peer's bytes."""
        with self._lock:
            self._ends.append((connection, error))

    def note_failure(self, error: Exception) -> None:
        """Note an error of a rule's function, or of the proxy itself: `close` raises it."""
        with self._lock:
            self._failures.append(error)

    def forget(self, connection: ProxiedConnection) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._connections.discard(connection)

    def _take(self, port: Port, client: socket.socket) -> None:
        with self._lock:
            self._numbers += 1
            connection = ProxiedConnection(self, port, client, self._numbers)
            self._connections.add(connection)
        connection.start()

    def _open_connections(self) -> list[ProxiedConnection]:
        with self._lock:
            return list(self._connections)

    def _all_ports(self) -> Iterator[Port]:
        with self._lock:
            ports = [*self._ports.values(), *self._other_ports]
        return iter(ports)


def split_address(text: str) -> HostPort:
    """Return host and port of ``"host:port"`` or ``"[host]:port"``. Raise ValueError for other text."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"address {text!r}: expected host:port")
    return host.strip("[]"), int(port)


def join_address(address: HostPort) -> str:
    """Return ``"host:port"`` for `address`, a host and a port; an IPv6 host is put in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _shut(one: socket.socket) -> None:
    """Close a connection, and wake the thread that reads it. It may already be closed."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
