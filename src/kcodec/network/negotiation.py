# SPDX-License-Identifier: Apache-2.0
"""The negotiation on a new connection, before other calls may use it: ApiVersions, then SASL, renewed in time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

from kcodec.constants import __version__
from kcodec.errors import TransportError
from kcodec.flow import ANY_NODE, Call, Done, Effect, Flow, Perform, call
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.protocol.versions import BrokerVersions, fallback_version

T = TypeVar("T")
# A SASL session is renewed after 85 to 95 % of its lifetime, as Kafka's client does (SaslClientAuthenticator).
RENEWAL_EARLIEST, RENEWAL_SPREAD = 0.85, 0.10
# A broker refuses to authenticate again within a second (SaslServerAuthenticator.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS).
RENEWAL_LEAST_SECONDS = 1.1
#: The version of ApiVersions that names the expected broker, and differs in nothing else. Without a broker to name, the
#: version before it saves a round trip with brokers before Kafka 4.4.
CHECKING_VERSION = 5


class MisroutedError(TransportError):
    """The address of a broker leads to another broker, or to one of another cluster (KIP-1242)."""


def request_versions(
    name: str, timeout: float, cluster_id: str | None = None, node_id: int = -1
) -> Flow[BrokerVersions]:
    """Request the API versions of the broker `name`. `timeout` is the number of seconds for each request.

    A broker that does not support the version of the request responds in version 0 and names its versions; the request
    is then repeated in one of them (KIP-511). Raise BrokerError, TransportError.

    cluster_id, node_id: Ids of the expected cluster and broker, if both are known.

    Raise MisroutedError if another broker responds. Brokers before Kafka 4.4 do not check this.
    """
    from kcodec.protocol.messages.auth import ApiVersionsRequest

    request = ApiVersionsRequest(client_software_name="kcodec", client_software_version=__version__)
    version = CHECKING_VERSION - 1
    if cluster_id is not None and node_id >= 0:
        request.cluster_id, request.node_id, version = cluster_id, node_id, CHECKING_VERSION
    reply = yield from call(ANY_NODE, request, timeout=timeout, lowest=version, highest=version)
    if reply.message.error_code == ErrorCode.UNSUPPORTED_VERSION:
        version = min(fallback_version(BrokerVersions.of(reply.message)), version - 1)
        reply = yield from call(ANY_NODE, request, timeout=timeout, lowest=version, highest=version)
    if reply.message.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
        raise MisroutedError(
            f"{name} is not node {node_id} of the cluster {cluster_id!r}: its address now belongs to another broker; "
            "if a proxy changes cluster or broker ids, set metadata_cluster_check_enable=False"
        )
    if reply.message.error_code:
        raise broker_error(reply.message.error_code, f"ApiVersions of {name}")
    return BrokerVersions.of(reply.message)


def renewal_delay(lifetime: float, random: Random) -> float:
    """Return the seconds after which a SASL session with this lifetime in seconds is to be renewed (KIP-368)."""
    share = RENEWAL_EARLIEST + RENEWAL_SPREAD * random.random()
    return max(lifetime * share, RENEWAL_LEAST_SECONDS)


def over(start: Callable[[Call, Done], Callable[[], None]], flow: Flow[T]) -> Flow[T]:
    """Run a flow on one connection that is not ready for other calls yet; `start` sends its calls."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect: Effect = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if isinstance(effect, Call):
            effect = Perform(partial(start, effect))
        value = error = None
        try:
            value = yield effect
        except Exception as failure:  # noqa: BLE001  thrown into the flow
            error = failure
