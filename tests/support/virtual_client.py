# SPDX-License-Identifier: Apache-2.0
"""The public classes in virtual time, in front of a real broker.

`VirtualTime.install` replaces the clock, the I/O thread and the network of `kcodec.client`: the real broker executes a
request at once, and its response arrives after a latency on a clock that advances only while a call waits. The
responses of the APIs in `withheld` never arrive. So each call ends at an exact time, independently of the machine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kcodec._fast import IoTurn, SendLock
from kcodec.errors import KcodecError, RequestTimedOutError, TransportError
from kcodec.flow import ANY_NODE, ByVersion, Call, Done, Flow, Reply
from kcodec.network import client as client_module
from kcodec.protocol.frame import decode_response, encode_request
from kcodec.protocol.messages.auth import ApiVersionsRequest
from kcodec.protocol.versions import BrokerVersions

#: One way and back. A fetch takes longer, as it would where it waits for records.
LATENCY, FETCH_LATENCY = 0.002, 0.1
#: If a broker delays a response for longer, as a group that waits for a missing member, there is no response.
SOCKET_SECONDS = 1.0
#: Virtual seconds after which a waiting call is considered never to end.
FOREVER = 500.0


class VirtualTime:
    """Clock and clients. withheld: names of APIs; asked: (time, API) of each request."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.withheld: frozenset[str] = frozenset()
        self.asked: list[tuple[float, str]] = []
        self.io_loops: list[VirtualIoLoop] = []

    def run_until(self, is_over: Callable[[], bool], deadline: float | None = None) -> bool:
        """Let time pass until a condition is true. Return False if it is not true at the deadline."""
        limit = self.now + FOREVER
        while True:
            while self._turn():
                pass
            if is_over():
                return True
            times = [io_loop.client.scheduler.next_wakeup() for io_loop in self.io_loops]
            following = min((when for when in times if when is not None), default=limit)
            if deadline is not None and following > deadline:
                self.now = max(self.now, deadline)
                return False
            assert following < limit, f"a call still waits after {FOREVER:g} virtual seconds"
            self.now = max(self.now, following)

    def _turn(self) -> bool:
        """Run due work in every client. Return whether there was any."""
        found = [io_loop.turn() for io_loop in self.io_loops]
        return any(found)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the clock, the I/O thread and the network of the public classes."""
        from kcodec.client import admin, consumer, producer, session, shared, waiting

        world = self
        # No processor time is used while virtual time passes.
        clock = SimpleNamespace(
            monotonic=lambda: self.now,
            time_ns=time.time_ns,
            time=time.time,
            thread_time=lambda: 0.0,
            process_time=lambda: 0.0,
        )

        class Client(client_module.Client):
            def __init__(self, options: Any) -> None:
                super().__init__(options, clock=lambda: world.now)
                self.scheduler.network = VirtualNetwork(world, self)

        class Lock:
            def __init__(self) -> None:
                self._is_held = False

            def acquire(self, blocking: bool = True, timeout: float = FOREVER) -> bool:
                if blocking and self._is_held:
                    world.run_until(lambda: not self._is_held, world.now + timeout)
                is_free, self._is_held = not self._is_held, True
                return is_free

            def release(self) -> None:
                self._is_held = False

            def locked(self) -> bool:
                return self._is_held

        threads = SimpleNamespace(Lock=Lock, RLock=threading.RLock)
        for module in (producer, consumer, session, admin, shared):
            patch.setattr(module, "IoLoop", lambda client: VirtualIoLoop(world, client))
        for module in (client_module, producer, consumer, session, admin, shared):
            patch.setattr(module, "Client", Client)
        for module in (producer, consumer, session, waiting):
            patch.setattr(module, "time", clock)
        patch.setattr(waiting, "threading", threads)


class VirtualIoLoop:
    """Replaces the I/O thread: all work runs while a call waits."""

    def __init__(self, world: VirtualTime, client: Any) -> None:
        self.world, self.client = world, client
        self.is_closed = False
        self.io_turn = IoTurn()
        self.core_locks: list[SendLock] = []
        self._posted: deque[Callable[[], None]] = deque()
        world.io_loops.append(self)
        client.start(self, self._run_blocking)

    def _run_blocking(self, function: Callable[[], Any], done: Done) -> None:
        try:
            done(function(), None)
        except Exception as error:  # noqa: BLE001  raised in the flow that waits for it
            done(None, error)

    def post(self, action: Callable[[], None]) -> None:
        if self.is_closed:
            raise TransportError("the client is closed")
        self._posted.append(action)

    def turn(self) -> bool:
        """Run due work. Return whether there was any."""
        found = bool(self._posted)
        while self._posted:
            self._posted.popleft()()
        when = self.client.scheduler.next_wakeup()
        if when is not None and when <= self.world.now:
            found = True
        self.client.scheduler.run_ready()
        return found

    def check_wait(self) -> None:
        """There is no I/O thread that a call could block."""

    def run(self, flow: Flow[Any], timeout: float | None = None, call: str = "the call") -> Any:
        if self.is_closed:
            raise TransportError("the client is closed")
        task = self.client.scheduler.spawn(flow, "call")
        task.when_done(lambda _: None)
        self.world.run_until(lambda: task.done)
        if task.error is not None:
            raise task.error
        return task.result

    def close(self, timeout: float = 5.0) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.world.io_loops.remove(self)
            self.client.stop()
            self.client.scheduler.network.close()


class VirtualNetwork:
    """The scheduler's network: blocking sockets to the real broker, the time of responses by the world's clock."""

    def __init__(self, world: VirtualTime, client: client_module.Client) -> None:
        self.world, self.client = world, client
        self._sockets: dict[int, socket.socket] = {}
        self._versions: dict[int, BrokerVersions] = {}
        self._number = 0

    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        world, scheduler = self.world, self.client.scheduler
        api = call.kind.__name__.removesuffix("Request")
        world.asked.append((world.now, api))
        try:
            node, version, message = self._carry_out(call)
        except (KcodecError, OSError) as error:
            if isinstance(error, OSError):
                self.close()
            failure = error if isinstance(error, KcodecError) else TransportError(str(error), possibly_sent=True)
            return scheduler.call_at(world.now + LATENCY, lambda: done(None, failure)).cancel
        latency = FETCH_LATENCY if api == "Fetch" else LATENCY
        if api in world.withheld or latency >= call.timeout:
            late = RequestTimedOutError(f"{api}: no response within {call.timeout:g} s", possibly_sent=True)
            return scheduler.call_at(world.now + call.timeout, lambda: done(None, late)).cancel
        reply = Reply(message, version, node) if call.expects_reply else None
        return scheduler.call_at(world.now + latency, lambda: done(reply, None)).cancel

    def _carry_out(self, call: Call) -> tuple[int, int, Any]:
        brokers = self.client.cluster.brokers
        node = call.node if call.node in brokers else next(iter(brokers), ANY_NODE)
        if call.node != ANY_NODE and call.node not in brokers:
            raise TransportError(f"broker {call.node} is not in the metadata")
        if node not in self._sockets:
            host, port = brokers[node].address if node in brokers else self.client.options.addresses[0]
            self._sockets[node] = socket.create_connection((host, port), SOCKET_SECONDS)
            hello = ApiVersionsRequest(client_software_name="kcodec", client_software_version="test")
            self._versions[node] = BrokerVersions.of(self._ask(node, hello, 3))
            self.client.cluster.note_versions(node, self._versions[node])
        version = self._versions[node].choose(call.kind, call.lowest, call.highest, f"broker {node}")
        request = call.request.build(version) if isinstance(call.request, ByVersion) else call.request
        return node, version, self._ask(node, request, version, expects_reply=call.expects_reply)

    def _ask(self, node: int, request: Any, version: int, *, expects_reply: bool = True) -> Any:
        self._number += 1
        self._sockets[node].sendall(encode_request(request, version, self._number, self.client.options.client_id))
        if not expects_reply:
            return None
        frame = self._read(node, int.from_bytes(self._read(node, 4), "big"))
        return decode_response(frame, type(request), version)

    def _read(self, node: int, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._sockets[node].recv(size - len(data))
            if not part:
                raise TransportError("the broker closed the connection", possibly_sent=True)
            data += part
        return bytes(data)

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()
