# SPDX-License-Identifier: Apache-2.0
"""One connection of a client through the proxy: two threads, one a direction, and what rules do between them."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from ...errors import DecodeError
from . import answers
from .frames import Exchange, Frame, correlation_id, has_no_answer, open_exchange, read_frame, send_frame
from .rules import Rule

if TYPE_CHECKING:
    from . import KafkaProxy, Port

#: Seconds for which a broker may still answer after the client has gone; a request that is carried out late needs them.
LINGER_SECONDS = 10.0
#: Seconds in which a broker must take a connection.
CONNECT_SECONDS = 10.0
#: Bytes taken at a time where frames are not looked at.
CHUNK_BYTES = 1 << 18


class _Pending:
    """A request whose answer has not gone to the client yet."""

    __slots__ = ("answer", "exchange", "is_copy")

    def __init__(self, exchange: Exchange, answer: Frame | None = None, *, is_copy: bool = False) -> None:
        self.exchange = exchange
        self.answer = answer  # given by the proxy, waiting for those before it: brokers answer in order
        self.is_copy = is_copy  # its answer is for nobody


class Connection:
    """Carries frames between a client and a broker until either closes.

    The broker's side stays open until what the client sent has been delivered and answered, so that a request outlives
    its client's connection as it does in a network.
    """

    def __init__(self, proxy: KafkaProxy, port: Port, client: socket.socket, number: int) -> None:
        self.number = number
        self.port = port
        self.client_id: str | None = None
        self._proxy = proxy
        self._client = client
        self._upstream: socket.socket | None = None
        self._upstream_ended = False
        self._pending: deque[_Pending] = deque()
        self._changed = threading.Condition()
        self._client_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"kafka-proxy-{number}", daemon=True)

    def start(self) -> None:
        """Connect to the broker and carry, in threads of its own."""
        self._thread.start()

    def cut(self) -> None:
        """Close both sides now."""
        self.cut_client()
        if self._upstream is not None:
            _shut(self._upstream)

    def cut_client(self) -> None:
        """Close the client's side; what it has sent still reaches the broker."""
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
                self._carry_requests(upstream)
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
                self._carry_responses(upstream)
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

    # ------------------------------------------------------------------------------------------------------ requests

    def _carry_requests(self, upstream: socket.socket) -> None:
        going = True
        while going and (frame := read_frame(self._client)) is not None:
            exchange = open_exchange(frame, self.number, self.port.node)
            self.client_id = exchange.client_id
            self._proxy.record(exchange)
            rule = self._proxy.rules.match("request", exchange)
            if rule is None:
                self._forward(upstream, exchange, frame)
            else:
                going = self._act_on_request(rule, upstream, exchange, frame)

    def _act_on_request(self, rule: Rule, upstream: socket.socket, exchange: Exchange, frame: Frame) -> bool:
        """Do what the rule says; False: the connection has ended with this request."""
        action = rule.action
        if action.kind in ("cut", "deliver_and_cut") or action.cut_client:
            self.cut_client()
        if action.kind == "answer":
            with self._changed:
                answer = answers.response_frame(exchange, action.content)
                self._pending.append(_Pending(exchange, answer))
            self._flush_answers()
            return True
        if action.kind == "replace":
            frame = answers.request_frame(exchange, action.content)
        if action.kind == "hold":
            rule.wait_release()
        if action.kind not in ("drop", "cut"):
            self._forward(upstream, exchange, frame)
        if action.kind == "duplicate":
            self._forward(upstream, exchange, frame, is_copy=True)
        return action.kind not in ("cut", "deliver_and_cut")

    def _forward(self, upstream: socket.socket, exchange: Exchange, frame: Frame, *, is_copy: bool = False) -> None:
        if not has_no_answer(exchange, frame):
            with self._changed:
                self._pending.append(_Pending(exchange, is_copy=is_copy))
        try:
            send_frame(upstream, frame)
        except OSError:
            exchange.actions += ("lost",)
            raise

    # ----------------------------------------------------------------------------------------------------- responses

    def _carry_responses(self, upstream: socket.socket) -> None:
        while (frame := read_frame(upstream)) is not None:
            with self._changed:
                pending = self._pending[0] if self._pending else None
            if pending is None or pending.exchange.correlation_id != correlation_id(frame):
                raise DecodeError(f"response with correlation id {correlation_id(frame)}: not that of the next request")
            if not pending.is_copy:
                self._settle(pending.exchange, frame)
            with self._changed:
                self._pending.popleft()
            self._flush_answers()

    def _settle(self, exchange: Exchange, frame: Frame) -> None:
        """Note a response, and let through what rules leave of it."""
        exchange.response_time, exchange.response_size = time.monotonic(), len(frame)
        exchange.response = frame = self._proxy.readdressed(exchange, frame)
        rule = self._proxy.rules.match("response", exchange)
        if rule is None:
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
        if action.kind not in ("drop", "cut"):
            self._to_client(exchange, frame)
        if action.kind == "duplicate":
            self._to_client(exchange, frame)
        if action.kind == "deliver_and_cut":
            self.cut_client()

    def _flush_answers(self) -> None:
        """Send the proxy's own answers that no response of the broker's has to go before."""
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
        try:
            send_frame(self._client, frame)
        except OSError:
            exchange.actions += ("unheard",)


def _shut(one: socket.socket) -> None:
    """Close a connection for the peer, and wake the thread that reads it; it may be closed already."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
