# SPDX-License-Identifier: Apache-2.0
"""How a handler gets a request and responds: immediately, or later (long poll, a join that waits for other members).

A handler is called with the context and the decoded request, on the one thread of the broker. It returns a response, a
Later whose response follows, or None for a request without a response (Produce with acks=0). An ApiError refuses the
whole request: the core writes its code into every field of the response in which Kafka would return it
(error_responses.py). A handler never blocks. It gets each timestamp and each random number from the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Any, NamedTuple, TypeVar

from kcodec.broker.authorizer.authorizer import Authorizer
from kcodec.broker.login import Login
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import Request, Struct

T = TypeVar("T", bound=Struct)
#: Hosts that make a listener accept connections on all addresses of the machine.
ALL_ADDRESSES = ("0.0.0.0", "::")


@dataclass(slots=True)
class Listener:
    """An address of the broker, with one of Kafka's security protocols. The port is 0 until the broker listens."""

    protocol: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 0

    @property
    def has_tls(self) -> bool:
        """Whether clients connect with TLS."""
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether clients have to log in."""
        return self.protocol.startswith("SASL")

    def seen_from(self, local: Any) -> Listener:
        """Return the listener as a client can reach it. If it listens on all addresses, replace its host by the address
        to which the client has connected, because a client on another machine cannot connect to 0.0.0.0.

        local: Address of the broker's end of the connection.
        """
        if self.host not in ALL_ADDRESSES or not local:
            return self
        return Listener(self.protocol, local[0].partition("%")[0], self.port)

    @property
    def address(self) -> str:
        """The address for clients, host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class ConnectionInfo:
    """What the core knows of a connection.

    listener: Listener to which the client has connected. As in Kafka, responses contain its address.
    login:    None on a listener without SASL.
    subject:  The subject of the client's TLS certificate. None without one, or without an authorizer.
    authorizer: Decides what the client may do. None: the client may do everything.
    """

    id: int = 0
    host: str = "/127.0.0.1"
    login: Login | None = None
    listener: Listener = field(default_factory=Listener)
    subject: str | None = None
    authorizer: Authorizer | None = None

    @property
    def principal(self) -> str:
        """The principal of the client in ACLs (DefaultKafkaPrincipalBuilder)."""
        return f"User:{(self.subject or 'ANONYMOUS') if self.login is None else self.login.user}"

    @property
    def address(self) -> str:
        """The IP address of the client in ACLs, as Java writes it: without :: in an IPv6 address."""
        address = self.host.removeprefix("/").partition("%")[0]
        if ":" not in address:
            return address
        return ":".join(f"{int(part, 16):x}" for part in IPv6Address(address).exploded.split(":"))

    @property
    def is_ending(self) -> bool:
        """Whether the connection ends after the present response: its login has failed."""
        return self.login is not None and self.login.has_failed


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The client that sent a request, and the version of the request."""

    api_version: int
    client_id: str | None = None
    connection: ConnectionInfo = field(default_factory=ConnectionInfo)


class Later:
    """A response that does not exist yet. Only the first call of `respond` has an effect.

    on_disconnect: Called if the client disconnects before the response.
    """

    __slots__ = ("_callback", "_response", "is_done", "on_disconnect")

    def __init__(self, on_disconnect: Callable[[], None] = lambda: None) -> None:
        self.is_done = False
        self.on_disconnect = on_disconnect
        self._response: Any = None
        self._callback: Callable[[Any], None] | None = None

    def respond(self, response: Any) -> None:
        """Set the response: what a handler returns, or an ApiError for the whole request."""
        if self.is_done:
            return
        self.is_done = True
        self._response = response
        if self._callback is not None:
            self._callback(response)

    def when_done(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with the response, immediately if the response has been set."""
        if self.is_done:
            callback(self._response)
        else:
            self._callback = callback


class ApiError(Exception):
    """A request, or a part of it, is refused with an error code of Kafka."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


class _Close:
    """The type of CLOSE: the broker closes the connection instead of responding."""


#: A handler returns it to close the connection, as Kafka does after an error with acks=0.
CLOSE = _Close()


class _Silence:
    """The type of SILENCE. The client gets no response, and later requests of the connection are not handled."""


#: Reply to a request whose response is dropped. Kafka responds in order, so no later response may follow.
SILENCE = _Silence()

Handler = Callable[[RequestContext, Any], Any]


class Api(NamedTuple):
    """An API of the broker: the class of its requests, the lowest and highest version offered, and the handler."""

    request: type[Request]
    versions: tuple[int, int]
    handle: Handler

    @property
    def name(self) -> str:
        """The name in Kafka's documentation, such as "Produce"."""
        return self.request.__name__.removesuffix("Request")


def by_topic(kind: type[T], topics: Iterable[Any], result_of: Callable[[str, Any], Any]) -> list[T]:
    """Return the topics of a response: those of its request, with a result for each of their partitions.

    kind:      The class of a topic in the response.
    result_of: Called with the name of the topic and an element of its list of partitions.
    """
    responses = []
    for topic in topics:
        identity = {name: getattr(topic, name) for name in ("name", "topic", "topic_id") if name in kind._fields}
        name = identity.get("name", identity.get("topic", ""))
        named = topic.partition_indexes if hasattr(topic, "partition_indexes") else topic.partitions
        responses.append(kind(**identity, partitions=[result_of(name, one) for one in named]))
    return responses
