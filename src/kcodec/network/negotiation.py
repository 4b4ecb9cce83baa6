# SPDX-License-Identifier: Apache-2.0
"""What a fresh connection says before anybody else may use it: ApiVersions, then SASL; and SASL again in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kcodec.constants import __version__
from kcodec.flow import ANY_NODE, Call, Done, Effect, Flow, Perform, call
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.protocol.versions import BrokerVersions, fallback_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from kcodec.network.connection import Connection

T = TypeVar("T")
# A SASL session is renewed at 85 to 95 % of its life, as Kafka's client does (SaslClientAuthenticator).
RENEWAL_EARLIEST, RENEWAL_SPREAD = 0.85, 0.10
# A broker refuses to be asked again within a second (SaslServerAuthenticator.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS).
RENEWAL_LEAST_SECONDS = 1.1


def negotiate(connection: Connection) -> Flow[None]:
    """ApiVersions, then authentication. Raises BrokerError, AuthenticationError, TransportError."""
    connection.versions = yield from _through(connection, _ask_versions(connection))
    yield from authenticate(connection)


def _ask_versions(connection: Connection) -> Flow[BrokerVersions]:
    """ApiVersions with our highest version; a broker that does not know that one says so in the form of v0, names what
    it knows, and is asked again (KIP-511)."""
    from kcodec.protocol.messages.auth import ApiVersionsRequest

    request = ApiVersionsRequest(client_software_name="kcodec", client_software_version=__version__)
    version = ApiVersionsRequest.versions[1]
    timeout = connection.network.options.request_timeout_ms / 1000
    reply = yield from call(ANY_NODE, request, timeout=timeout, lowest=version, highest=version)
    if reply.message.error_code == ErrorCode.UNSUPPORTED_VERSION:
        version = min(fallback_version(BrokerVersions.of(reply.message)), version - 1)
        reply = yield from call(ANY_NODE, request, timeout=timeout, lowest=version, highest=version)
    if reply.message.error_code:
        raise broker_error(reply.message.error_code, f"ApiVersions of {connection.name}")
    return BrokerVersions.of(reply.message)


def authenticate(connection: Connection) -> Flow[None]:
    """SASL, where options ask for it; a session that ends is renewed before it does (KIP-368)."""
    network = connection.network
    timeout = network.options.request_timeout_ms / 1000
    flow = network.options.security.authenticate(connection.address.host, network.clock, timeout)
    if flow is None:
        return
    started = network.clock()
    lifetime = yield from _through(connection, flow)
    network.metrics.count("connection.authenticated", node=connection.node_id)
    if lifetime:
        share = RENEWAL_EARLIEST + RENEWAL_SPREAD * network.random.random()
        connection.call_at(started + max(lifetime * share, RENEWAL_LEAST_SECONDS), connection.renew_session)


def _through(connection: Connection, flow: Flow[T]) -> Flow[T]:
    """Run a flow whose calls all go over this connection, before it is ready for anybody else's."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect: Effect = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if isinstance(effect, Call):
            effect = Perform(_starter(connection, effect))
        value = error = None
        try:
            value = yield effect
        except Exception as failure:  # noqa: BLE001  thrown into the flow
            error = failure


def _starter(connection: Connection, effect: Call) -> Callable[[Done], Callable[[], None]]:
    return lambda done: connection.start_here(effect, done)
