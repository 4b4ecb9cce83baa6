# SPDX-License-Identifier: Apache-2.0
"""One connection to one broker, without its socket: received bytes go in, bytes to send come out.

    opening -> (TLS) -> negotiating: ApiVersions, SASL -> ready -> closed
                                        ^ again before the SASL session ends (KIP-368): new requests wait

The I/O loop opens the transport and calls `connected`, `received` and `closed`; the connection calls its `write` and
`close`.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kcodec.errors import AuthenticationError, KcodecError, RequestTimedOutError, TransportError, UnsupportedError
from kcodec.flow import Address, ByVersion, Call, Clock, Done, Flow, Reply, Task
from kcodec.network.metrics import ConnectionMetrics, are_ignored
from kcodec.network.negotiation import MisroutedError, over, renewal_delay, request_versions
from kcodec.network.options import ClientConfig
from kcodec.protocol.frame import FrameReader, correlation_id_of, decode_response, encode_request_parts
from kcodec.protocol.versions import BrokerVersions
from kcodec.quantities import seconds_text

if TYPE_CHECKING:
    from kcodec.network.scheduler import Scheduler, Timer
    from kcodec.network.tls_layer import TlsLayer

T = TypeVar("T")
#: Maximum number of seconds for one address of a host that has several.
ADDRESS_SECONDS = 5.0
#: Share of the setup time that a login may take.
LOGIN_SHARE = 0.9
MAX_CORRELATION_ID = 2**31 - 1
#: Maximum number of consecutive connections without a response that are attributed to a broker that stops. After more,
#: an error mentions the security protocol.
SILENT_ENDS = 2
#: Text of an I/O loop's error about a name lookup that has found no address.
NO_ADDRESS = "the host has no address"
#: Responses to ApiVersions and SASL have a few KiB. A larger frame is refused until the connection is ready, because
#: the other side is not authenticated. (Kafka: sasl.server.max.receive.size, which brokers apply to clients.)
MAX_UNAUTHENTICATED_RESPONSE_BYTES = 512 * 1024
#: A frame that no request is outstanding for ends the connection; a longer one is not even received.
UNREQUESTED_BYTES = 64 * 1024


class Transport(Protocol):
    """A connection's transport in the I/O loop."""

    def has_unsent(self) -> bool:
        """Return whether it keeps bytes that the operating system has not taken yet. If so, it calls
        `Connection.all_sent` when none are left."""
        ...

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send these bytes, in order, as soon as possible; never block."""

    def close(self) -> None:
        """Close at once; the transport makes no more calls."""


@dataclass(frozen=True)
class Trace:
    """One request or response, for `watchers`. `message` is the message as it was sent or received."""

    kind: str
    time: float
    node_id: int
    channel: str
    message: Any
    version: int
    correlation_id: int


class ConnectionOwner(ABC):
    """What a connection uses of its client. `clock` returns monotonic seconds; `random` is for jitter."""

    scheduler: Scheduler

    def __init__(self, options: ClientConfig, clock: Clock, random: Random) -> None:
        self.options = options
        self.security = options.security.for_client()
        self.clock = clock
        self.random = random
        #: In seconds. A broker gets at least this time for a response, whatever the timeout of the call is.
        self.request_timeout = options.request_timeout_ms / 1000
        self.metrics = options.metrics
        self.watchers: list[Callable[[Trace], None]] = []
        #: For each address that has sent a response: the number of consecutive later connections that were opened and
        #: ended without a response. Responses of the setup (ApiVersions, SASL) do not count. A refused login is not
        #: counted.
        self.silent_ends: dict[Address, int] = {}

    @abstractmethod
    def connection_ready(self, connection: Connection) -> None:
        """Handle the end of the negotiation."""

    @abstractmethod
    def connection_closed(
        self, connection: Connection, error: BaseException, *, was_ready: bool, is_failure: bool
    ) -> None:
        """Handle the end of a connection. Without `is_failure`, it was closed because it was no longer needed."""

    @abstractmethod
    def call_error(self, connection: Connection, error: BaseException) -> BaseException:
        """Return the error of the calls that a connection has not sent when it ends with `error`."""

    @property
    @abstractmethod
    def cluster_id(self) -> str | None:
        """The id of the cluster; None before the first metadata response."""

    @abstractmethod
    def misrouted(self, error: BaseException) -> None:
        """Handle a connection to the address of a known broker at which another broker responds."""

    @abstractmethod
    def last_failure(self, node_id: int) -> BaseException | None:
        """Return why the last connection to a broker failed. Return None if it did not fail, or if a later one has
        become ready."""

    def observe(self, kind: str, connection: Connection, message: Any, version: int, correlation_id: int) -> None:
        """Show a request or a response to the watchers."""
        trace = Trace(kind, self.clock(), connection.node_id, connection.channel, message, version, correlation_id)
        for watcher in self.watchers:
            watcher(trace)


class _PendingCall:
    """A call that waits to be sent, or for its response."""

    __slots__ = (
        "call",
        "correlation_id",
        "deadline",
        "done",
        "is_over",
        "is_sent",
        "kind",
        "limit",
        "started",
        "version",
    )

    def __init__(self, call: Call, done: Done, started: float) -> None:
        self.call = call
        request = call.request
        self.kind = request.kind if type(request) is ByVersion else type(request)
        self.done = done
        self.started = started
        self.deadline = started + call.timeout
        #: When the connection is closed if the request was sent and has no response. This may be after the deadline.
        self.limit = self.deadline
        self.is_sent = False
        self.is_over = False
        self.correlation_id = self.version = -1

    def finish(self, reply: Reply | None, error: BaseException | None) -> None:
        if not self.is_over:
            self.is_over = True
            try:
                self.done(reply, error)
            except (KeyboardInterrupt, SystemExit):  # in asyncio, before its first line; only the first call counts
                self.done(reply, error)
                raise


class Connection:
    """A connection; see the module. `node_id` is that of the broker, or negative for a bootstrap address."""

    def __init__(self, network: ConnectionOwner, node_id: int, address: Address, channel: str) -> None:
        self.network = network
        self.node_id = node_id
        self.address = address
        self.channel = channel
        self.versions: BrokerVersions | None = None
        #: The address was taken from this value of the metadata.
        self.broker: object = None
        self.is_ready = False
        self.is_closed = False
        #: Whether it has received a response since it was ready for the first time.
        self._has_response = False
        #: By when the connection must be ready, by the client's clock.
        self.setup_deadline: float | None = None
        #: Whether the I/O loop waits for the addresses of the host.
        self.is_resolving = False
        #: Whether it has authenticated again after the first time, or does so now.
        self._is_renewing = False
        self.last_used = network.clock()
        self._transport: Transport | None = None
        self._tls: TlsLayer | None = None
        self._reader = FrameReader(network.options.max_response_bytes, self._response_limit)
        if network.options.max_response_bytes > MAX_UNAUTHENTICATED_RESPONSE_BYTES:
            self._reader.set_limit(MAX_UNAUTHENTICATED_RESPONSE_BYTES, "MAX_UNAUTHENTICATED_RESPONSE_BYTES")
        self._waiting: deque[_PendingCall] = deque()
        self._in_flight: deque[_PendingCall] = deque()
        # Calls without a response, which end when the transport has passed their bytes on.
        self._unsent: deque[_PendingCall] = deque()
        self._correlation_id = 0
        #: Until when a throttled connection sends nothing; 0: it is not throttled.
        self._muted_until = 0.0
        self._negotiation: Task[None] | None = None
        self._timers: set[Timer] = set()
        self._unmute: Timer | None = None
        #: One timer for the deadlines of all calls: it is due at the earliest one, or before.
        self._deadlines: Timer | None = None
        #: The versions that were chosen, by class and bounds.
        self._chosen: dict[tuple[Any, int, int], int] = {}
        #: None if the application does not observe the client.
        self._metrics = None if are_ignored(network.metrics) else ConnectionMetrics(network.metrics, node_id)

    @property
    def name(self) -> str:
        """The name of the peer in errors and logs."""
        return f"broker {self.node_id} ({self.address})" if self.node_id >= 0 else f"bootstrap server {self.address}"

    def seconds_for_address(self, addresses: int) -> float:
        """Return the maximum number of seconds for the next address of the host. `addresses` is the number of those
        that were not tried yet, which share the rest of the setup time. The last one gets all of it."""
        if self.setup_deadline is None:
            return ADDRESS_SECONDS
        left = max(self.setup_deadline - self.network.clock(), 0.0)
        return left if addresses == 1 else min(ADDRESS_SECONDS, left / addresses)

    @property
    def pending_step(self) -> str:
        """The step of the setup that has not ended, as the end of a sentence. Empty if the connection is ready."""
        if self.is_resolving:
            return f"; the name lookup of {self.address.host!r} has not ended"
        if self._transport is None or self.is_ready:
            return ""
        if self.versions is None and not self._is_in_tls_handshake:
            return (
                "; the peer has not responded to ApiVersions, the first request: check that this is the address of a"
                " broker"
            )
        return f"; {self._setup_step} has not ended"

    @property
    def _setup_step(self) -> str:
        is_tls = self._is_in_tls_handshake
        return "the TLS handshake" if is_tls else "the negotiation of versions and authentication"

    @property
    def _is_in_tls_handshake(self) -> bool:
        return self._tls is not None and not self._tls.is_established

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "ready" if self.is_ready else "opening"
        return f"<connection to {self.name}, {state}, {len(self._in_flight)} in flight>"

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their response."""
        return len(self._in_flight)

    @property
    def load(self) -> int:
        """The number of requests that wait, have no response yet, or are not sent completely."""
        return len(self._in_flight) + len(self._waiting) + len(self._unsent)

    # Calls

    def submit(self, call: Call, done: Done) -> Callable[[], None]:
        """Send a call as soon as the connection is ready. Return a function that cancels it."""
        pending = self._start(call, done)
        most = self.network.options.max_pipelined_requests
        if self.is_ready and not (self._waiting or self._muted_until) and len(self._in_flight) < most:
            self._send(pending)
        else:
            self._waiting.append(pending)
            self._send_waiting()

        def give_up() -> None:
            if pending.is_sent and not (pending.is_over or self.is_closed):
                # Such as JoinGroup, whose timeout is long. Without its response, no later call gets one.
                pending.limit = min(pending.limit, self.network.clock() + self.network.request_timeout)
                if self._deadlines is None or pending.limit < self._deadlines.when:
                    self._watch_deadlines(pending.limit)
            pending.is_over = True
            if not pending.is_sent and pending in self._waiting:
                self._waiting.remove(pending)
                pending.finish(None, None)

        return give_up

    def _start(self, call: Call, done: Done) -> _PendingCall:
        now = self.network.clock()
        pending = _PendingCall(call, done, now)
        pending.limit = max(pending.deadline, now + self.network.request_timeout)
        self.last_used = now
        if self._deadlines is None or pending.deadline < self._deadlines.when:
            self._watch_deadlines(pending.deadline)
        return pending

    def _watch_deadlines(self, when: float) -> None:
        """Check the deadlines of the calls at this time. Nearly all calls have the same timeout and end long before it.
        One timer, which usually finds nothing to do, therefore costs less than a timer for each call."""
        if self._deadlines is not None:
            self._timers.discard(self._deadlines)
            self._deadlines.cancel()
        self._deadlines = self.network.scheduler.call_at(when, self._look_at_deadlines)
        self._timers.add(self._deadlines)

    def _look_at_deadlines(self) -> None:
        now = self.network.clock()
        if self._deadlines is not None:
            self._timers.discard(self._deadlines)
            now, self._deadlines = max(now, self._deadlines.when), None
        late = [pending for pending in self._unfinished() if _due(pending) <= now]
        for pending in sorted(late, key=_due):
            if not self.is_closed:
                self._timed_out(pending, now)
        nearest = min(map(_due, self._unfinished()), default=None)
        if nearest is not None:
            self._watch_deadlines(nearest)

    def _unfinished(self) -> tuple[_PendingCall, ...]:
        return *self._in_flight, *self._unsent, *self._waiting

    def _send_waiting(self) -> None:
        while self._waiting and self.is_ready and len(self._in_flight) < self.network.options.max_pipelined_requests:
            if self._muted_until:
                if self._muted_until > self.network.clock():
                    if self._unmute is None:
                        self._unmute = self.call_at(self._muted_until, self._unmuted)
                    return
                self._muted_until = 0.0
            pending = self._waiting.popleft()
            pending.limit = max(pending.deadline, self.network.clock() + self.network.request_timeout)
            self._send(pending)

    def _unmuted(self) -> None:
        """End the throttling, unless a response has prolonged it meanwhile."""
        self._unmute = None
        self._send_waiting()

    def _send(self, pending: _PendingCall) -> None:
        call = pending.call
        self._correlation_id = self._correlation_id % MAX_CORRELATION_ID + 1
        pending.correlation_id = self._correlation_id
        try:
            if pending.version < 0:
                key = pending.kind, call.lowest, call.highest
                version = self._chosen.get(key)
                pending.version = self._choose(key) if version is None else version
            request = call.request
            if type(request) is ByVersion:
                request = request.build(pending.version)
            parts = encode_request_parts(
                request, pending.version, pending.correlation_id, self.network.options.client_id
            )
        except Exception as error:  # noqa: BLE001  only this call fails, whatever is wrong with its request
            pending.finish(None, error)
            return
        pending.is_sent = True
        if self.network.watchers:
            self.network.observe("request", self, request, pending.version, pending.correlation_id)
        if self._metrics is not None:
            self._metrics.sent(pending.kind)
        if call.expects_reply:
            self._in_flight.append(pending)
        else:
            self._unsent.append(pending)
        self._write(parts)
        if self._unsent and self._transport is not None and not self._transport.has_unsent():
            self.all_sent()

    def _choose(self, key: tuple[Any, int, int]) -> int:
        """Choose the version for a request of this class within these bounds. The connection always chooses the same
        version."""
        if self.versions is None:
            raise TransportError(f"{self.name}: its API versions are not known yet")
        version = self._chosen[key] = self.versions.choose(*key, self.name)
        return version

    def _timed_out(self, pending: _PendingCall, now: float) -> None:
        """End a call at its deadline. Close the connection if the broker has had request_timeout_ms for the response.

        Responses arrive in order, so without one of them none of the later ones arrives. Until that time, however, the
        connection may have other calls, which would otherwise be sent again because one call had a short timeout.
        """
        if not pending.is_sent:
            if not pending.is_over:
                self._not_sent(pending)
            return
        seconds = seconds_text(self.network.clock() - pending.started)
        what = pending.kind.__name__
        if pending in self._in_flight:
            reason = f"{self.name}: no response to {what} within {seconds}"
        elif pending in self._unsent:
            reason = f"{self.name}: {what} was not sent completely within {seconds}"
        else:
            return
        self._fail_sent(pending, RequestTimedOutError(reason, possibly_sent=True))
        if pending.limit <= now:
            self.close(TransportError(f"{reason}; the connection was closed"))

    def _fail_sent(self, pending: _PendingCall, error: BaseException) -> None:
        """End a call that was sent, unless it has ended."""
        if not pending.is_over and self._metrics is not None:
            self._metrics.failed(pending.kind)
        pending.finish(None, error)

    def _not_sent(self, pending: _PendingCall) -> None:
        """End a call that was not sent by its deadline."""
        seconds = self.network.clock() - pending.started
        if pending in self._waiting:
            self._waiting.remove(pending)
        reason = f"{self.name}: {pending.kind.__name__} was not sent"
        cause = self.network.last_failure(self.node_id)
        if cause is not None:  # the time that the call had left is then irrelevant
            reason += f", because the last connection failed: {str(cause).removeprefix(f'{self.name}: ')}"
        else:
            reason += f" within {seconds_text(seconds)}{self.pending_step}"
        pending.finish(None, RequestTimedOutError(reason))

    # What the I/O loop calls

    def connected(self, transport: Transport) -> None:
        """Handle an open transport."""
        if self.is_closed:
            transport.close()
            return
        self._transport = transport
        context = self.network.security.tls_context()
        if context is None:
            self._negotiate()
            return
        from kcodec.network.tls_layer import TlsLayer  # which the client has imported, as it uses TLS

        try:
            self._tls = TlsLayer(context, self.network.security.server_hostname(self.address.host))
        except (ValueError, TypeError) as error:  # an invalid name for TLS, for example an empty one
            self.close(AuthenticationError(f"TLS with {self.name}: {error}"))
            return
        self._run_tls(b"")

    def get_buffer(self) -> memoryview:
        """Return the memory for the next received bytes; `received` gets their number."""
        return self._reader.get_buffer() if self._tls is None else self._tls.buffer

    def received(self, count: int) -> None:
        """Handle bytes that were received into `get_buffer`."""
        if self.is_closed:
            return
        if self._metrics is not None:
            self._metrics.received(count)
        if self._tls is not None:
            self._run_tls(bytes(self._tls.buffer[:count]))
        else:
            self._take(self._reader.arrived, count)

    def all_sent(self) -> None:
        """End the calls without a response, as the operating system has taken all bytes."""
        while self._unsent and not self.is_closed:
            self._unsent.popleft().finish(None, None)

    def closed(self, error: BaseException | None) -> None:
        """Handle the end of the connection, or the failure to open it."""
        if self._negotiation is not None and not self._negotiation.done:
            # A broker that refuses a login responds with the reason and closes at once: the response is handled first.
            self.network.scheduler.call_soon(lambda: self._ended(error))
        else:
            self._ended(error)

    def _ended(self, error: BaseException | None) -> None:
        if self.is_closed:
            return
        if isinstance(error, KcodecError):
            self.close(error)
            return
        doing = "the connection was closed" if self.is_ready else self._stage()
        hint = self._hint(error)
        self.close(TransportError(f"{self.name}: {doing}{f': {_error_text(error)}' if error else ''}{hint}"))

    def _stage(self) -> str:
        if self._transport is None:
            return "no connection"
        hint = " (check that this listener uses TLS)" if self._is_in_tls_handshake else ""
        return f"the connection ended during {self._setup_step}{hint}"

    def _hint(self, error: BaseException | None) -> str:
        if self._transport is None or error is not None or not self._may_be_misconfigured():
            return ""
        if not self.is_ready and self._tls is None:
            return " (if this listener requires TLS, set security_protocol to SSL or SASL_SSL)"
        if self.is_ready and not self.network.security.mechanism_name:
            return " (if this listener requires SASL, set security_protocol to SASL_PLAINTEXT or SASL_SSL)"
        return ""

    def _may_be_misconfigured(self) -> bool:
        """Return whether the security protocol can be the reason that the connection has ended. If the address has sent
        a response before, this is so after several connections without one, because the listener may have changed."""
        earlier = self.network.silent_ends.get(self.address)
        return earlier is None or (not self._has_response and earlier >= SILENT_ENDS)

    def _count_silent_end(self, error: BaseException) -> None:
        """Count the end of an open connection without a response, for `_may_be_misconfigured` of later connections."""
        ends = self.network.silent_ends
        is_silent = self._transport is not None and not self._has_response
        if is_silent and self.address in ends and not isinstance(error, AuthenticationError):
            ends[self.address] += 1

    def opening_failed(self, error: BaseException) -> None:
        """Close the connection after an error that is not a failure of the broker, such as Ctrl-C in asyncio. Otherwise
        later calls would use a connection that nothing opens."""
        reason = TransportError(f"{self.name}: {error!r} ended the opening of the connection; repeat the call")
        reason.__cause__ = error
        self.close(reason, is_failure=False)

    def close(self, error: BaseException, *, is_failure: bool = True) -> None:
        """Close the connection. Every call without a response fails with this reason."""
        if self.is_closed:
            return
        self.is_closed, was_ready, self.is_ready = True, self.is_ready, False
        if is_failure:
            self._count_silent_end(error)
        if self._transport is not None:
            self._transport.close()
        if self._negotiation is not None and not self._negotiation.done:
            negotiation = self._negotiation
            negotiation.when_done(lambda _: None)
            self.network.scheduler.call_soon(negotiation.cancel)
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.network.connection_closed(self, error, was_ready=was_ready, is_failure=is_failure)
        in_flight, self._in_flight = [*self._in_flight, *self._unsent], deque()
        self._unsent.clear()
        waiting, self._waiting = self._waiting, deque()
        for pending in in_flight:
            self._fail_sent(pending, _as_sent(error))
        unsent = self.network.call_error(self, error)
        for pending in waiting:
            pending.finish(None, unsent)

    # Bytes

    def _run_tls(self, data: bytes) -> None:
        tls = self._tls
        assert tls is not None and self._transport is not None
        was_established = tls.is_established
        try:
            plain = tls.receive(data)
        except tls.error_type as error:
            self._flush_tls()
            self.close(self.network.security.tls_error(error, self.name))
            return
        self._flush_tls()
        if tls.is_established and not was_established:
            self._negotiate()
        if plain:
            self._take(self._reader.feed, plain)
        if tls.is_ended:
            self.closed(None)

    def _flush_tls(self) -> None:
        if self._tls is not None and self._transport is not None and (out := self._tls.outgoing()):
            self._transport.write([out])

    def _write(self, parts: list[bytes | memoryview]) -> None:
        assert self._transport is not None
        if self._metrics is not None:
            self._metrics.wrote(sum(map(len, parts)))
        tls = self._tls
        if tls is None:
            self._transport.write(parts)
            return
        try:
            for part in parts:
                tls.send(part)
        except tls.error_type as error:
            self.close(TransportError(f"{self.name}: TLS cannot send: {error}"))
            return
        self._flush_tls()

    def _take(self, frames: Callable[[T], list[bytes | memoryview]], received: T) -> None:
        try:
            for frame in frames(received):
                self._on_response(frame)
                if self.is_closed:
                    return
            if self._reader.error is not None:
                raise self._reader.error
        except KcodecError as error:
            # For example a limit: the caller can request less.
            self.close(failed_because(error, f"{self.name}: {error}"))

    def _response_limit(self, behind: int) -> int | None:
        """Return the maximum size of the response to the request at this position; responses arrive in order."""
        if behind < len(self._in_flight):
            return self._in_flight[behind].call.max_response_bytes
        return UNREQUESTED_BYTES

    def _on_response(self, frame: bytes | memoryview) -> None:
        correlation_id = correlation_id_of(frame)
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            expected = self._in_flight[0].correlation_id if self._in_flight else "none"
            self.close(TransportError(f"{self.name}: got correlation id {correlation_id}, expected {expected}"))
            return
        pending = self._in_flight[0]  # removed at the end: if Ctrl-C interrupts this, `close` ends the call
        self.last_used = self.network.clock()
        if self.is_ready:
            self._has_response = True
            self.network.silent_ends[self.address] = 0
        request_class = pending.kind
        try:
            message = decode_response(frame, request_class, pending.version)
        except KcodecError as error:
            reason = f"{self.name}: its response to {request_class.__name__} v{pending.version} cannot be read: {error}"
            failure = TransportError(reason, possibly_sent=True)
            pending.finish(None, failure)
            self.close(failure)
            return
        if self.network.watchers:
            self.network.observe("response", self, message, pending.version, correlation_id)
        throttle = getattr(message, "throttle_time_ms", 0) / 1000
        if throttle > 0:
            self._muted_until = self.last_used + throttle
        if self._metrics is not None:
            self._metrics.responded(request_class, self.last_used - pending.started, throttle)
        pending.finish(Reply(message, pending.version, self.node_id), None)
        if self._in_flight:  # none after a close meanwhile
            self._in_flight.popleft()
        if self._waiting:
            self._send_waiting()

    # Negotiation

    def _negotiate(self) -> None:
        self._run_negotiation(self._negotiation_flow(), f"negotiation with {self.name}")

    def _negotiation_flow(self) -> Flow[None]:
        """Negotiate versions, then authenticate. Raise BrokerError, AuthenticationError, TransportError."""
        timeout = self.network.request_timeout
        options = self.network.options
        # As Java's client: one that cannot start again from bootstrap_servers would gain nothing from the check.
        is_checked = options.metadata_cluster_check_enable and options.metadata_recovery_strategy == "rebootstrap"
        cluster_id = self.network.cluster_id if is_checked else None
        flow = request_versions(self.name, timeout, cluster_id, self.node_id)
        try:
            self.versions = yield from over(self._start_at_once, flow)
            self._chosen.clear()
        except MisroutedError as error:
            self.network.misrouted(error)
            raise
        yield from self._authenticate()

    def _authenticate(self) -> Flow[None]:
        """Authenticate by SASL if the options require it. Schedule the renewal of the session before it ends
        (KIP-368)."""
        network = self.network
        timeout = network.request_timeout
        if self.setup_deadline is not None and not self._is_renewing:
            # Ending before the setup does, a login reports its own cause, such as a Kerberos server that is silent.
            timeout = min(timeout, LOGIN_SHARE * max(self.setup_deadline - network.clock(), 0.0))
        flow = network.security.authenticate(self.address.host, network.clock, timeout)
        if flow is None:
            return
        started = network.clock()
        lifetime = yield from over(self._start_at_once, flow)
        if self._metrics is not None:
            self._metrics.authenticated()
        if lifetime:
            self.call_at(started + renewal_delay(lifetime, network.random), self._renew_session)

    def _renew_session(self) -> None:
        """Authenticate again on this connection. Meanwhile, no new request is sent, but responses may arrive
        (KIP-368)."""
        if self._negotiation is not None and not self._negotiation.done:  # an interrupted timer calls this again
            return
        self.is_ready, self._is_renewing = False, True
        self._run_negotiation(self._authenticate(), f"re-authentication with {self.name}")

    def _run_negotiation(self, flow: Flow[None], name: str) -> None:
        task = self.network.scheduler.spawn(flow, name)
        task.when_done(self._negotiated)
        self._negotiation = task

    def _negotiated(self, task: Task[None]) -> None:
        if self.is_closed:
            return
        if task.error is not None:
            # A call expects a TransportError or an UnsupportedError, so an error code in the response to ApiVersions is
            # raised as one of them.
            error = task.error
            is_named = isinstance(error, KcodecError)
            if not isinstance(error, TransportError | UnsupportedError):
                error = failed_because(error, str(error) if is_named else f"{self.name}: {error}")
            self.close(error)
            return
        self.is_ready = True
        if not self._is_renewing:
            self._reader.set_limit(self.network.options.max_response_bytes)
            self.network.connection_ready(self)
            self._watch_idleness()
        self._send_waiting()

    def _start_at_once(self, call: Call, done: Done) -> Callable[[], None]:
        """Send a call of the negotiation before the connection is ready for others."""
        pending = self._start(call, done)
        if call.lowest == call.highest:
            pending.version = call.lowest
        self._send(pending)
        return lambda: setattr(pending, "is_over", True)

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Call `action` at a time of the clock, unless the connection is closed before."""

        def due() -> None:
            self._timers.discard(timer)
            action()

        timer = self.network.scheduler.call_at(when, due)
        self._timers.add(timer)
        return timer

    def _watch_idleness(self) -> None:
        limit = self.network.options.connections_max_idle_ms / 1000
        now = self.network.clock()
        if self.is_closed:
            return
        if not self.load and now - self.last_used >= limit:
            self.close(
                TransportError(
                    f"{self.name}: the connection was idle for connections_max_idle_ms ({seconds_text(limit)}), "
                    "and was closed"
                ),
                is_failure=False,
            )
            return
        again = max(self.last_used, now if self.load else 0.0) + limit
        self.call_at(again, self._watch_idleness)


def _due(pending: _PendingCall) -> float:
    """Return the time at which to look at a call: its deadline, or the limit of its connection after that."""
    return pending.limit if pending.is_over and pending.is_sent else pending.deadline


def _error_text(error: BaseException) -> str:
    """Return the system's text for the error, whatever text the I/O loop has set. NO_ADDRESS is kept, because the
    system's text for its code is about the address of this machine."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return NO_ADDRESS if error.strerror == NO_ADDRESS else os.strerror(error.errno)
    return str(error)


def _as_sent(error: BaseException) -> BaseException:
    """Return the failure for a request whose bytes may have arrived. If the renewal of a login was rejected, this is a
    TransportError, because an AuthenticationError would mean that nothing was sent. A retry of the request then gets
    the AuthenticationError."""
    return failed_because(error.__cause__, getattr(error, "reason", str(error)), possibly_sent=True)


def failed_because(cause: BaseException | None, reason: str, *, possibly_sent: bool = False) -> TransportError:
    """Return the error of a failed connection."""
    error = TransportError(reason, possibly_sent=possibly_sent)
    error.__cause__ = cause
    return error
