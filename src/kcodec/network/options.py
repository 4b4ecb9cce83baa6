# SPDX-License-Identifier: Apache-2.0
"""The options of every client: addresses, timeouts and limits. Names are Kafka's own.

Each client (Producer, Admin ...) takes its own options first and leaves the rest to `take_client_options`, which
rejects unknown ones with a suggestion.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterable
from typing import Any

from kcodec.flow import Address
from kcodec.network.metrics import Metrics, NoMetrics, checked_metrics
from kcodec.network.option_names import refuse_unknown
from kcodec.options import Option, OptionSet, counterparts, option
from kcodec.security import SECURITY_OPTIONS, Security

__all__ = ["ClientConfig", "parse_bootstrap_servers", "refuse_unknown", "take_client_options"]

DEFAULT_PORT = 9092
#: Values of broker_address_family, and the family for the name service.
ADDRESS_FAMILIES = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}
#: Errors of a name lookup whose cause is not the name: the name service does not respond, or the system fails.
_OTHER_NAME_ERRORS = {socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY}


def parse_bootstrap_servers(servers: str | Iterable[str]) -> tuple[Address, ...]:
    """Return the addresses of "host:port,host:port" or of a list of such; ``[::1]:9092`` for IPv6; the default port is
    9092.

    Raise ValueError for an entry that is not an address, TypeError for anything but text.
    """
    entries: list[Any] = servers.split(",") if isinstance(servers, str) else _listed(servers)
    addresses = tuple(_address(entry.strip()) for entry in entries if entry.strip())
    if not addresses:
        raise ValueError('bootstrap_servers is empty: expected "host:port", or a list of these')
    return addresses


def _listed(servers: object) -> list[str]:
    """Return the entries of a list. A (host, port) pair is a list of text and a number, or an entry that is a pair."""
    expected = 'bootstrap_servers: expected "host:port", or a list of these'
    if isinstance(servers, bytes) or not isinstance(servers, Iterable):
        raise TypeError(f"{expected}, got {servers!r}")
    entries = list(servers)
    for pair in (entries, *entries):
        if isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], int):
            raise TypeError(f'{expected}, got {tuple(pair)!r}; write "{pair[0]}:{pair[1]}"')
    for entry in entries:
        if not isinstance(entry, str):
            raise TypeError(f"{expected}, got the entry {entry!r} of type {type(entry).__name__}")
    return entries


def _address(entry: str) -> Address:
    scheme, is_url, rest = entry.partition("://")
    if is_url:  # the text before an @ may be a password
        host = rest.rpartition("@")[2].partition("/")[0]
        raise ValueError(
            f"bootstrap_servers: {scheme}://{host} is a URL, expected host:port; write {host!r}, and select TLS and "
            "SASL with security_protocol"
        )
    host, colon, port = entry.rpartition(":")
    if not colon or entry.endswith("]"):
        host, port = entry, str(DEFAULT_PORT)
    elif ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"bootstrap_servers: {entry!r} is ambiguous: write an IPv6 address in brackets, [::1]:9092")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"bootstrap_servers: expected host:port with a port from 1 to 65535, got {entry!r}")
    return Address(host, int(port))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientConfig(OptionSet):
    """The options of every client. Names are Kafka's, and defaults those of its Java client."""

    bootstrap_servers: str | Iterable[str] = dataclasses.field(
        metadata={"option": Option(librdkafka=("metadata.broker.list",))}
    )
    """Addresses of one or more brokers, as "host:port,host:port" or as a list. The client gets the addresses of all
    other brokers from these brokers."""
    client_id: str = option("kcodec")
    """Name of the client. Brokers show it in their logs and metrics, and use it for quotas."""
    request_timeout_ms: float = option(30_000, minimum=1, librdkafka="socket.timeout.ms")
    """Maximum time that a request waits for its response."""
    default_api_timeout_ms: float = option(60_000, minimum=1)
    """Maximum time of a call if you pass no `timeout`. The time includes retries."""
    retry_backoff_ms: float = option(100, minimum=0)
    """Pause before the client sends a failed request for the second time. The pause doubles with each further retry.
    Each pause is varied randomly by up to 20 %."""
    retry_backoff_max_ms: float = option(1_000, minimum=0)
    """Maximum pause before the client sends a failed request again."""
    reconnect_backoff_ms: float = option(50, minimum=0)
    """Pause before the client connects to a broker again. The pause doubles with each further attempt. Each pause is
    varied randomly by up to 20 %."""
    reconnect_backoff_max_ms: float = option(1_000, minimum=0)
    """Maximum pause before the client connects to a broker again."""
    socket_connection_setup_timeout_ms: float = option(10_000, minimum=1)
    """Maximum time to open a connection. The time includes TCP, TLS, the request of the broker's versions, and SASL."""
    connections_max_idle_ms: float = option(540_000, minimum=1)
    """Time after which the client closes a connection that has no requests."""
    metadata_max_age_ms: float = option(300_000, minimum=1)
    """Time after which the client requests metadata (topics, partitions and leaders) again."""
    metadata_recovery_strategy: str = option("rebootstrap", choices=("rebootstrap", "none"))
    """What the client does if it can reach none of the known brokers (KIP-899, KIP-1102). "rebootstrap": connect to
    bootstrap_servers again. "none": try the known brokers again."""
    metadata_recovery_rebootstrap_trigger_ms: float = option(300_000, minimum=0)
    """If metadata requests get no response for this time, the client connects to bootstrap_servers again."""
    metadata_cluster_check_enable: bool = option(True)
    """Whether the client names the cluster and the broker that it expects when it connects to a broker (KIP-1242). If
    another broker has the address, the client connects to bootstrap_servers again. Brokers before Kafka 4.4 do not
    check this. Set it to False if a proxy changes cluster or broker ids. With metadata_recovery_strategy="none", the
    client names neither."""
    unknown_topic_timeout_ms: float = option(5_000, minimum=0)
    """Maximum time that a call such as `send` or `partitions_for` waits for a topic that the brokers do not know. The
    time begins with the first such response. A broker also sends this response while it creates a topic."""
    client_dns_lookup: str = option("use_all_dns_ips", choices=("use_all_dns_ips",))
    """Which addresses of a host name the client tries. The only value tries all addresses, one after the other. Java's
    other value is not supported. With Kerberos, bootstrap_servers must contain the brokers' own host names."""
    broker_address_family: str = option("any", choices=tuple(ADDRESS_FAMILIES))
    """Which addresses of a host name the client uses. "any": IPv4 and IPv6, in the order of the name service. "v4" or
    "v6": only addresses of this family. An address instead of a name in bootstrap_servers must be of this family. The
    option has librdkafka's name; Java's client has none."""
    max_response_bytes: int = option(100 * 1024 * 1024, minimum=1024)
    """Maximum size of a response. The client refuses a larger response. Brokers have the setting
    `socket.request.max.bytes` for the same purpose."""
    max_pipelined_requests: int = option(64, minimum=1)
    """Maximum number of requests without a response on a connection. Further requests wait in the client."""
    security: Security = dataclasses.field(default_factory=lambda: Security.from_options({}))
    """A `kcodec.client.Security` object with all settings of TLS and SASL. Use it instead of the single options."""
    metrics: Metrics = dataclasses.field(
        default_factory=NoMetrics, metadata={"option": Option(accepts="Metrics | None")}
    )
    """Object with the methods of `kcodec.client.Metrics`. The client calls the methods with counts and latencies. None:
    no metrics. If a method raises an exception, the client logs the exception, once for each method."""
    addresses: tuple[Address, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "addresses", parse_bootstrap_servers(self.bootstrap_servers))
        object.__setattr__(self, "metrics", checked_metrics(self.metrics))

    @property
    def address_family(self) -> socket.AddressFamily:
        """The address family of the addresses that are requested from the name service."""
        return ADDRESS_FAMILIES[self.broker_address_family]

    def name_error(self, error: socket.gaierror) -> socket.gaierror:
        """Return the error of a name lookup, with the option that may be its cause if the name has no address."""
        if self.broker_address_family == "any" or error.errno in _OTHER_NAME_ERRORS:
            return error
        kind = "IPv4" if self.broker_address_family == "v4" else "IPv6"
        text = f"{error.strerror}; broker_address_family={self.broker_address_family!r} allows only {kind} addresses"
        return socket.gaierror(error.errno, text)

    @classmethod
    def take(cls, options: dict[str, Any]) -> ClientConfig:
        """Take the client's options and those of TLS and SASL; bootstrap_servers is required."""
        if "bootstrap_servers" not in options:
            others = counterparts()
            meant = [name for name in options if others.get(name) == "bootstrap_servers"]
            import difflib  # only for this error

            meant += difflib.get_close_matches("bootstrap_servers", options, n=1)
            hint = f"; {meant[0]!r} is not an option, write bootstrap_servers=" if meant else ""
            raise TypeError(f'bootstrap_servers is missing: pass the "host:port" of a broker, or of several{hint}')
        secure = {name: options.pop(name) for name in SECURITY_OPTIONS & options.keys()}
        taken = {name: options.pop(name) for name in cls.names() & options.keys()}
        if secure:
            taken["security"] = Security.from_options(secure)
        return cls(**taken)

    def retry_backoff(self, attempt: int, random: float) -> float:
        """Return the seconds to wait before a repeat. `attempt` is its number from 0; `random` is between 0 and 1, for
        a jitter of 20 % (KIP-580)."""
        return _backoff(self.retry_backoff_ms, self.retry_backoff_max_ms, attempt, random)

    def reconnect_backoff(self, attempt: int, random: float) -> float:
        """Return the seconds to wait before a broker is connected again."""
        return _backoff(self.reconnect_backoff_ms, self.reconnect_backoff_max_ms, attempt, random)


def _backoff(first_ms: float, most_ms: float, attempt: int, random: float) -> float:
    return float(min(first_ms * 2.0 ** min(attempt, 30), most_ms) * (0.8 + 0.4 * random) / 1000)


def take_client_options(left: dict[str, Any], own: Iterable[str], what: str) -> ClientConfig:
    """Return the options that all clients have. The caller has already taken the options with the names `own`. Raise
    TypeError for an option that `what` ("a producer") does not have."""
    known = ClientConfig.names() | SECURITY_OPTIONS
    refuse_unknown({name: value for name, value in left.items() if name not in known}, known.union(own), what)
    return ClientConfig.take(left)
