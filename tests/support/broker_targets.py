# SPDX-License-Identifier: Apache-2.0
"""The brokers that random sequences of requests go to: any broker over TCP, or the embedded core without sockets.

Producer ids, member ids and topic ids differ on each broker, so a target replaces them by their order of appearance. On
the core, time is a clock that the target advances, so that a sequence takes milliseconds and nothing depends on the
machine.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from broker_core import NOTHING, Pending

from kcodec.broker.api import ConnectionInfo
from kcodec.broker.clock import Clock
from kcodec.broker.core import BrokerCore
from kcodec.broker.settings import BrokerSettings
from kcodec.protocol import messages
from kcodec.protocol.frame import decode_response, encode_request
from kcodec.testing.proxy.frames import read_frame

RESPONSE_SECONDS = 20.0
RETRY_MS = 5000
#: The time for a transactional id whose transaction the coordinator has given up: its errors do not pass.
STUCK_MS = 20
#: Transient errors: a step that fails with one of them is repeated.
PASSING = (14, 15, 16, 19, 51)
MOST_LEFT = 40
UNKNOWN_PRODUCER_ID = 987_654
#: With this client id a broker lets a client write to internal topics.
ADMIN_CLIENT = "__admin_client"


class Identity(NamedTuple):
    """A producer id that the broker allocated, and an epoch."""

    producer_id: int
    epoch: int


class Target:
    """A broker, and its names for what a sequence uses."""

    client = "client"

    def __init__(self) -> None:
        self._left: list[str] = []
        #: The identities of transactional ids that exist before their sequence, and the epoch of markers.
        self.prepared: dict[str, Identity] = {}
        self.coordinator_epoch = 0
        self.begin()

    def begin(self) -> None:
        """Forget the names of the sequence before."""
        self.symbols: dict[int, str] = {-1: "-", 0: "zero"}
        self.identities: dict[int, list[Identity]] = {}
        self.members: list[str] = []
        self.topic_ids: dict[str, Any] = {}
        self.generation = -1
        self.session = 0

    # Names.

    def symbol(self, producer_id: int) -> str:
        """Return the name of a producer id."""
        return self.symbols.setdefault(producer_id, f"p{len(self.symbols)}")

    def identity(self, slot: int, back: int, ahead: int = 0) -> Identity:
        """Return the identity that a slot got `back` changes ago."""
        known = self.identities.get(slot) or [Identity(UNKNOWN_PRODUCER_ID, 0)]
        found = known[max(len(known) - 1 - back, 0)]
        return Identity(found.producer_id, min(found.epoch + ahead, (1 << 15) - 1))

    def learn(self, slot: int, producer_id: int, epoch: int) -> None:
        """Keep the identity that a slot got."""
        known = self.identities.setdefault(slot, [])
        found = Identity(producer_id, epoch)
        if not known or known[-1] != found:
            known.append(found)

    # Requests.

    def send(self, request: Any, version: int, client: str | None = None) -> Any:
        """Send a request and return the response."""
        raise NotImplementedError

    def now_ms(self) -> int:
        """Return the broker's time."""
        raise NotImplementedError

    def wait(self, ms: int) -> None:
        """Let time pass."""
        raise NotImplementedError

    def close(self) -> None:
        """Delete what is left, and close the connection."""
        self._delete_left()

    def delete_later(self, *topics: str) -> None:
        """Delete topics, many at a time."""
        self._left += topics
        if len(self._left) >= MOST_LEFT:
            self._delete_left()

    def _delete_left(self) -> None:
        topics = [messages.DeleteTopicState(name=name) for name in self._left]
        self.send(messages.DeleteTopicsRequest(topics=topics, timeout_ms=10_000), 6)
        self._left.clear()

    def use_up_zero(self) -> None:
        """Take the producer id 0, which responses with an error contain as well."""
        request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        self.ask(request, 5, lambda response: [response.error_code])

    def ask(self, request: Any, version: int, codes: Callable[[Any], Any], patience_ms: int = RETRY_MS) -> Any:
        """Send a request until the response has no transient error. codes: its error codes."""
        deadline = self.now_ms() + patience_ms
        while True:
            response = self.send(request, version)
            if not any(code in PASSING for code in codes(response)):
                return response
            if self.now_ms() > deadline:
                return response
            self.wait(4)


class SocketTarget(Target):
    """A broker on one plaintext connection."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__()
        host, _, port = bootstrap_servers.partition(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=RESPONSE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.use_up_zero()

    def send(self, request: Any, version: int, client: str | None = None) -> Any:
        self._socket.sendall(encode_request(request, version, 1, client or self.client))
        frame = read_frame(self._socket)
        assert frame is not None, f"the broker closed the connection after {type(request).__name__} version {version}"
        return decode_response(memoryview(frame), type(request), version)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, ms: int) -> None:
        time.sleep(ms / 1000)

    def knowing(self, prepared: dict[str, Identity]) -> SocketTarget:
        """Take over what was prepared before a restart of the broker."""
        self.prepared = prepared
        return self

    def close(self) -> None:
        super().close()
        self._socket.close()


class CoreTarget(Target):
    """The embedded broker without sockets, and with time of its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.clock = Clock(is_manual=True)
        self.core = BrokerCore(BrokerSettings(**settings), self.clock)
        self._connection = ConnectionInfo(1, "/127.0.0.1")
        self.use_up_zero()

    def send(self, request: Any, version: int, client: str | None = None) -> Any:
        self.clock.advance(1)
        pending = Pending(request, version)
        frame = encode_request(request, version, 1, client or self.client)[4:]
        self.core.serve(self._connection, frame, pending.take)
        self.clock.run_due()
        deadline = self.now_ms() + RETRY_MS
        while pending.response is NOTHING and self.now_ms() < deadline:
            self.clock.advance(1)
        assert pending.response is not NOTHING, f"no response to {type(request).__name__} version {version}"
        return pending.response

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def wait(self, ms: int) -> None:
        self.clock.advance(ms)
