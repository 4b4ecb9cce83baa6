# SPDX-License-Identifier: Apache-2.0
"""The connections of a client: one for each broker and channel, opened when there is something to send.

A call waits for its connection and fails with it: after a failed attempt to connect, all waiting calls fail, and the
next attempt begins when the backoff of that broker is over. Flows decide whether to retry a call.

A refused login ends a call with an AuthenticationError, which flows do not retry, so that a program with a wrong
password fails at once. After the first accepted login, the cause of a refusal is more often temporary: a broker that
does not have new credentials yet, or an unavailable server for tokens or passwords. The refusal then counts as a failed
connection, until a broker has refused every login for `login_patience` seconds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Protocol

from kcodec.errors import AuthenticationError, TransportError
from kcodec.flow import ANY_NODE, Address, Call, Clock, Done
from kcodec.network.connection import Connection, ConnectionOwner, Trace, Transport, failed_because
from kcodec.network.metrics import Gauge
from kcodec.network.options import ClientConfig
from kcodec.quantities import seconds_text

if TYPE_CHECKING:
    from kcodec.cluster.values import Broker
    from kcodec.network.scheduler import Scheduler
    from kcodec.protocol.versions import BrokerVersions

log = logging.getLogger("kcodec.client")
FIRST_BOOTSTRAP_NODE = -2
#: Minimum time in seconds without an attempt after which a refused login counts as the first one of an outage.
IDLE_SECONDS = 10.0


class Directory(Protocol):
    """The known brokers: `kcodec.cluster.metadata.Cluster`."""

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """Brokers by id; empty before the first metadata response."""
        ...

    @property
    def cluster_id(self) -> str | None:
        """Id of the cluster; None before the first metadata response, or if brokers do not report it."""
        ...

    def rebootstrap(self, reason: str) -> None:
        """Forget the brokers, and start again from the bootstrap servers."""

    def why_missing(self, topic: str | None) -> str | None:
        """Return why the metadata, of a topic or in general, is missing, if that is known."""

    def note_versions(self, node_id: int, versions: BrokerVersions) -> None:
        """Take the versions and finalized features of a broker."""


class Opener(Protocol):
    """An I/O loop, which opens transports."""

    def open(self, address: Address, connection: Connection) -> None:
        """Resolve, try the addresses in turn; then `connection.connected(transport)` or `connection.closed(error)`."""


class _Backoff:
    """The number of consecutive failed attempts to connect to a broker, the last error, the time of the next attempt,
    and the time since which logins are refused."""

    __slots__ = ("attempts", "cause", "not_before", "refused_since")

    def __init__(self) -> None:
        self.attempts = 0
        self.cause: BaseException | None = None
        self.not_before = 0.0
        self.refused_since: float | None = None


class Network(ConnectionOwner):
    """The connections; see the module.

    clock:  Returns monotonic seconds.
    random: Random numbers for jitter and random choices.

    login_patience: Time in seconds for which refused logins at a broker count as failed connections.
    was_accepted:   Whether a connection has become ready, so that the credentials were right at that time.
    """

    def __init__(self, options: ClientConfig, clock: Clock, random: Random) -> None:
        super().__init__(options, clock, random)
        self.directory: Directory
        self.opener: Opener
        self.bootstrap_addresses: tuple[Address, ...] = options.addresses
        self.is_closed = False
        self._connections: dict[tuple[int, str], Connection] = {}
        self._retired: list[Connection] = []
        self._backoffs: dict[int, _Backoff] = {}
        self.login_patience = options.default_api_timeout_ms / 1000
        self.was_accepted = False

    def retry_all_logins(self) -> None:
        """Let all refused logins count as failed connections, including the first ones."""
        self.was_accepted, self.login_patience = True, math.inf

    def wire(self, scheduler: Scheduler, directory: Directory, opener: Opener) -> None:
        """Connect the components with each other, before the first call."""
        self.scheduler = scheduler
        self.directory = directory
        self.opener = opener

    # Calls

    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        """Begin a call; see `Call` for the arguments of `done`."""
        if self.is_closed:
            self.scheduler.call_soon(lambda: done(None, TransportError("the client is closed")))
            return lambda: None
        node_id = self._any_node() if call.node == ANY_NODE else call.node
        broker = self.directory.brokers.get(node_id)
        connection = self._connections.get((node_id, call.channel))
        if connection is None or broker is None or connection.broker is not broker:  # None: a bootstrap address
            address = self._address(node_id)
            if address is None:
                reason = self._unknown_broker(node_id)
                self.scheduler.call_soon(lambda: done(None, TransportError(reason)))
                return lambda: None
            connection = self._connection(node_id, address, call.channel)
            connection.broker = broker
        return connection.submit(call, done)

    def _unknown_broker(self, node_id: int) -> str:
        brokers = ", ".join(map(str, sorted(self.directory.brokers)))
        if brokers:
            return f"broker {node_id} is not in the metadata, which has the brokers {brokers}"
        cause = self.directory.why_missing(None) or "no broker has responded"
        return f"broker {node_id} is unknown, as no broker of the cluster has been reached: {cause}"

    def _address(self, node_id: int) -> Address | None:
        if node_id <= FIRST_BOOTSTRAP_NODE:
            index = FIRST_BOOTSTRAP_NODE - node_id
            return self.bootstrap_addresses[index] if index < len(self.bootstrap_addresses) else None
        broker = self.directory.brokers.get(node_id)
        return None if broker is None else broker.address

    def _any_node(self) -> int:
        """Return the broker whose ready connection has the lowest load, or to which a connection may be opened first.

        The last connection to a suspect broker has failed. A broker whose packets are dropped may still have a ready
        connection, so suspect brokers are used only if there are no others.
        """
        candidates = list(self.directory.brokers) or [
            FIRST_BOOTSTRAP_NODE - index for index in range(len(self.bootstrap_addresses))
        ]
        ready = [
            connection
            for node_id in candidates
            if (connection := self._connections.get((node_id, ""))) is not None and connection.is_ready
        ]
        trusted = [connection for connection in ready if connection.node_id not in self._backoffs]
        if trusted or (ready and self._backoffs.keys() >= set(candidates)):
            return min(trusted or ready, key=lambda connection: connection.load).node_id
        self.random.shuffle(candidates)
        return min(candidates, key=lambda node_id: (node_id in self._backoffs, self._not_before(node_id)))

    def _not_before(self, node_id: int) -> float:
        backoff = self._backoffs.get(node_id)
        return max(backoff.not_before - self.clock(), 0.0) if backoff else 0.0

    def report(self, gauge: Gauge) -> None:
        """Report the number of requests in flight for each broker."""
        counts: dict[int, int] = {}
        for (node, _), connection in self._connections.items():
            if node > FIRST_BOOTSTRAP_NODE:
                counts[node] = counts.get(node, 0) + connection.in_flight
        for node, count in counts.items():
            gauge("requests.in_flight", count, node=node)

    # Connections

    def _connection(self, node_id: int, address: Address, channel: str) -> Connection:
        connection = self._connections.get((node_id, channel))
        if connection is not None and connection.address != address:
            self._retire(connection)
            connection = None
        if connection is None:
            connection = opening = Connection(self, node_id, address, channel)
            try:
                self._connections[node_id, channel] = connection
                delay = self._not_before(node_id)
                if delay > 0:
                    self.scheduler.call_at(self.clock() + delay, lambda: self._open(opening))
                else:
                    self._open(opening)
            except BaseException as error:  # such as that of Ctrl-C in asyncio
                connection.opening_failed(error)
                raise
        return connection

    def _open(self, connection: Connection) -> None:
        if connection.is_closed or connection.setup_deadline is not None:  # an interrupted timer calls this again
            return
        seconds = self.options.socket_connection_setup_timeout_ms / 1000

        def late() -> None:
            if not connection.is_ready:
                reason = f"{connection.name}: not connected within {seconds_text(seconds)}{connection.pending_step}"
                connection.close(TransportError(reason))

        deadline = self.clock() + seconds
        connection.call_at(deadline, late)  # first, as it also ends a connection whose opening Ctrl-C interrupts
        connection.setup_deadline = deadline
        self.opener.open(connection.address, connection)

    def _retire(self, connection: Connection) -> None:
        """Stop using the old address of a broker. Responses to earlier requests may still arrive there."""
        del self._connections[connection.node_id, connection.channel]
        if connection.load:
            self._retired.append(connection)
        else:
            connection.close(
                TransportError(f"{connection.name}: the connection was closed, as the broker has another address now"),
                is_failure=False,
            )

    def connection_ready(self, connection: Connection) -> None:
        """Handle the end of the negotiation."""
        self._backoffs.pop(connection.node_id, None)
        self.was_accepted = True
        self.metrics.count("connection.opened", node=connection.node_id)
        if connection.versions is not None:
            self.directory.note_versions(connection.node_id, connection.versions)

    def connection_closed(
        self, connection: Connection, error: BaseException, *, was_ready: bool, is_failure: bool
    ) -> None:
        """Handle the end of a connection. After a failure, the next connection to this broker waits for the backoff."""
        key = (connection.node_id, connection.channel)
        if self._connections.get(key) is connection:
            del self._connections[key]
        if connection in self._retired:
            self._retired.remove(connection)
        if self.is_closed:
            return
        if is_failure:
            self._note_failure(connection, error)
        level = logging.WARNING if isinstance(error, AuthenticationError) else logging.INFO
        log.log(level, "%s (was %s)", error, "ready" if was_ready else "not ready")

    def _note_failure(self, connection: Connection, error: BaseException) -> None:
        backoff = self._backoffs.setdefault(connection.node_id, _Backoff())
        idle_since = backoff.not_before
        seconds = self.options.reconnect_backoff(backoff.attempts, self.random.random())
        backoff.not_before = self.clock() + seconds
        backoff.attempts += 1
        backoff.cause = error
        if isinstance(error, AuthenticationError):
            now = self.clock()
            if backoff.refused_since is None or now - idle_since > max(self.login_patience, IDLE_SECONDS):
                backoff.refused_since = now  # for the first time, or after a long time without an attempt
            self.metrics.count("connection.refused", node=connection.node_id)
        else:
            backoff.refused_since = None
        self.metrics.count("connection.failed", node=connection.node_id)

    def call_error(self, connection: Connection, error: BaseException) -> BaseException:
        """As in ConnectionOwner. See the module."""
        backoff = self._backoffs.get(connection.node_id)
        since = None if backoff is None else backoff.refused_since
        if not isinstance(error, AuthenticationError) or not self.was_accepted or since is None:
            return error
        is_lasting = self.clock() - since >= self.login_patience
        return error if is_lasting else failed_because(error, error.reason)

    @property
    def cluster_id(self) -> str | None:
        """As in ConnectionOwner."""
        return self.directory.cluster_id

    def misrouted(self, error: BaseException) -> None:
        """As in ConnectionOwner."""
        self.directory.rebootstrap(str(error))

    def last_failure(self, node_id: int) -> BaseException | None:
        """Return why the last connection to a broker failed. Return None if it did not fail, or if a later one has
        become ready."""
        backoff = self._backoffs.get(node_id)
        return backoff.cause if backoff is not None else None

    def close(self) -> None:
        """Close all connections. Calls without a response fail."""
        self.is_closed = True
        for connection in [*self._connections.values(), *self._retired]:
            connection.close(TransportError("the client is closed"))


__all__ = ["Connection", "Network", "Trace", "Transport"]
