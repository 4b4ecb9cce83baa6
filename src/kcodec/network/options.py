# SPDX-License-Identifier: Apache-2.0
"""The options of every client: addresses, timeouts and limits. Names are Kafka's own.

Each client (Producer, Admin ...) takes its own options first and gives the rest to `ClientOptions.take`; what is left
then is nobody's, and `refuse_unknown` says so with a suggestion.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

from kcodec.arguments import take_renamed
from kcodec.flow import Address
from kcodec.network.metrics import Metrics, NoMetrics, checked_metrics
from kcodec.network.option_names import COUNTERPARTS, refuse_unknown
from kcodec.security import SECURITY_OPTIONS, Security

__all__ = ["ClientOptions", "OptionSet", "parse_bootstrap_servers", "refuse_unknown"]

DEFAULT_PORT = 9092
Options = TypeVar("Options", bound="OptionSet")


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
    """The entries of a list. A (host, port) pair is a list of text and a number, or an entry that is a pair."""
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
    if is_url:  # what comes before an @ may be a password
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
        raise ValueError(f"bootstrap_servers: expected host:port, got {entry!r}")
    return Address(host, int(port))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionSet:
    """Options that check themselves: a number below MINIMUM is a ValueError, as are a word not in CHOICES and a value
    of a boolean option that is neither True nor False: the text "false" would switch the option on.

    RENAMED: the deprecated name of an option -> its present name."""

    MINIMUM: ClassVar[dict[str, float]] = {}
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {}
    RENAMED: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type in ("bool", bool) and getattr(self, field.name) not in (True, False):
                raise ValueError(f"{field.name} must be True or False, not {getattr(self, field.name)!r}")
        for name, least in self.MINIMUM.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < least):
                raise ValueError(f"{name} must be a number of at least {least:g}, not {value!r}")
        for name, choices in self.CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                near = difflib.get_close_matches(str(value), choices, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}{hint}")

    @classmethod
    def names(cls) -> set[str]:
        """What can be set."""
        return {field.name for field in dataclasses.fields(cls) if field.init}

    @classmethod
    def take(cls: type[Options], options: dict[str, Any]) -> Options:
        """Remove the options of this class from `options` and return them; the rest stays in it."""
        for old, new in cls.RENAMED.items():
            take_renamed(options, old, new)
        return cls(**{name: options.pop(name) for name in cls.names() & options.keys()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientOptions(OptionSet):
    """What all clients share. Times are milliseconds, sizes bytes, defaults those of Kafka's Java client.

    bootstrap_servers:          "host:port,host:port" or a list: some brokers of the cluster, to find the others.
    client_id:                  Name of the client in the logs, quotas and metrics of brokers.
    request_timeout_ms:         Maximum time that one request waits for its response.
    default_api_timeout_ms:     Maximum time of a call without a timeout argument, retries included.
    retry_backoff_ms, retry_backoff_max_ms:           Pause before a request is repeated: doubled each time, jitter.
    reconnect_backoff_ms, reconnect_backoff_max_ms:   Pause before a broker is connected again: doubled each time.
    socket_connection_setup_timeout_ms:               For TCP, TLS, version negotiation and SASL together.
    connections_max_idle_ms:    Time after which a connection without requests is closed.
    metadata_max_age_ms:        Age at which metadata is requested again.
    metadata_recovery_strategy: "rebootstrap" (KIP-899, KIP-1102): if no known broker can be reached, start again from
                                bootstrap_servers; "none": keep trying the known brokers.
    metadata_recovery_rebootstrap_trigger_ms:         Start again from bootstrap_servers after this time without a
                                response to metadata requests.
    unknown_topic_timeout_ms:   Maximum time that `send`, `partitions_for` and others wait for a topic that brokers call
                                unknown, from the first such response on; a broker also responds so while it creates a
                                topic.
    client_dns_lookup:          "use_all_dns_ips", or "resolve_canonical_bootstrap_servers_only".
    max_response_bytes:         Maximum bytes of a response; a longer one is refused (Kafka: socket.request.max.bytes
                                of brokers).
    max_pipelined_requests:     Maximum number of requests to a broker without a response; others wait in the client.
    security:                   TLS and SASL, as a `kcodec.client.Security`.
    metrics:                    An object with the methods of `kcodec.client.Metrics`, called with counts and
                                latencies; None: no metrics. An exception of it is logged once for each method.
    """

    MINIMUM: ClassVar[dict[str, float]] = {
        "request_timeout_ms": 1,
        "default_api_timeout_ms": 1,
        "retry_backoff_ms": 0,
        "retry_backoff_max_ms": 0,
        "reconnect_backoff_ms": 0,
        "reconnect_backoff_max_ms": 0,
        "socket_connection_setup_timeout_ms": 1,
        "connections_max_idle_ms": 1,
        "metadata_max_age_ms": 1,
        "metadata_recovery_rebootstrap_trigger_ms": 0,
        "unknown_topic_timeout_ms": 0,
        "max_response_bytes": 1024,
        "max_pipelined_requests": 1,
    }
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "metadata_recovery_strategy": ("rebootstrap", "none"),
        "client_dns_lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    }

    bootstrap_servers: str | Iterable[str]
    client_id: str = "kcodec"
    request_timeout_ms: float = 30_000
    default_api_timeout_ms: float = 60_000
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 1_000
    reconnect_backoff_ms: float = 50
    reconnect_backoff_max_ms: float = 1_000
    socket_connection_setup_timeout_ms: float = 10_000
    connections_max_idle_ms: float = 540_000
    metadata_max_age_ms: float = 300_000
    metadata_recovery_strategy: str = "rebootstrap"
    metadata_recovery_rebootstrap_trigger_ms: float = 300_000
    unknown_topic_timeout_ms: float = 5_000
    client_dns_lookup: str = "use_all_dns_ips"
    max_response_bytes: int = 100 * 1024 * 1024
    max_pipelined_requests: int = 64
    security: Security = dataclasses.field(default_factory=lambda: Security.from_options({}))
    metrics: Metrics = dataclasses.field(default_factory=NoMetrics)
    addresses: tuple[Address, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "addresses", parse_bootstrap_servers(self.bootstrap_servers))
        object.__setattr__(self, "metrics", checked_metrics(self.metrics))

    @classmethod
    def take(cls, options: dict[str, Any]) -> ClientOptions:
        """Take the client's options and those of TLS and SASL; bootstrap_servers is the one that must be there."""
        if "bootstrap_servers" not in options:
            meant = [name for name in options if COUNTERPARTS.get(name) == "bootstrap_servers"]
            meant += difflib.get_close_matches("bootstrap_servers", options, n=1)
            hint = f"; {meant[0]!r} is not an option, write bootstrap_servers=" if meant else ""
            raise TypeError(f'bootstrap_servers is missing: "host:port" of any broker of the cluster{hint}')
        secure = {name: options.pop(name) for name in SECURITY_OPTIONS & options.keys()}
        taken = {name: options.pop(name) for name in cls.names() & options.keys()}
        if secure:
            taken["security"] = Security.from_options(secure)
        return cls(**taken)

    def retry_backoff(self, attempt: int, random: float) -> float:
        """Seconds to wait before the attempt'th repeat (0 the first); random: 0 to 1, for jitter of 20 % (KIP-580)."""
        return _backoff(self.retry_backoff_ms, self.retry_backoff_max_ms, attempt, random)

    def reconnect_backoff(self, attempt: int, random: float) -> float:
        """Return the seconds to wait before a broker is connected again."""
        return _backoff(self.reconnect_backoff_ms, self.reconnect_backoff_max_ms, attempt, random)


def _backoff(first_ms: float, most_ms: float, attempt: int, random: float) -> float:
    return float(min(first_ms * 2.0 ** min(attempt, 30), most_ms) * (0.8 + 0.4 * random) / 1000)
