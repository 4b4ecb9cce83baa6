# SPDX-License-Identifier: Apache-2.0
"""The parameters of aiokafka's clients as options of kcodec's."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Iterable
from typing import Any

from aiokafka.util import get_running_loop

DEFAULT_PORT = 9092
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: The interval for None, with which aiokafka does not close idle connections.
NEVER_MS = 10 * 365 * 24 * 3600 * 1000
#: The packages of the assignors whose partitions kcodec assigns in the same way.
_ASSIGNORS = ("aiokafka.coordinator.assignors.", "kafka.coordinator.assignors.")
log = logging.getLogger("kcodec.compat")


def event_loop(loop: asyncio.AbstractEventLoop | None, api_version: Any) -> asyncio.AbstractEventLoop:
    """Return the event loop of a client. Raise RuntimeError if no event loop is running, as aiokafka does."""
    for name, given in (("loop", loop), ("api_version", api_version)):
        if given is not None:
            warnings.warn(f"The `{name}` parameter is deprecated in aiokafka", DeprecationWarning, stacklevel=3)
    return get_running_loop() if loop is None else loop


def client_options(
    *,
    bootstrap_servers: str | Iterable[str],
    client_id: str,
    metadata_max_age_ms: float,
    request_timeout_ms: float,
    retry_backoff_ms: float,
    connections_max_idle_ms: float | None,
    security_protocol: str,
    ssl_context: Any,
    sasl_mechanism: str,
    sasl_plain_username: str | None,
    sasl_plain_password: str | None,
    sasl_kerberos_service_name: str,
    sasl_kerberos_domain_name: str | None,
    sasl_oauth_token_provider: Any,
    loop: asyncio.AbstractEventLoop,
) -> dict[str, Any]:
    """Return the options that every client has. Raise ValueError if a parameter is invalid or missing."""
    options: dict[str, Any] = {
        "bootstrap_servers": addresses(bootstrap_servers),
        "client_id": client_id,
        "metadata_max_age_ms": metadata_max_age_ms,
        "request_timeout_ms": request_timeout_ms,
        "default_api_timeout_ms": request_timeout_ms,
        "retry_backoff_ms": retry_backoff_ms,
        "retry_backoff_max_ms": max(retry_backoff_ms, 1000),
        "connections_max_idle_ms": NEVER_MS if connections_max_idle_ms is None else connections_max_idle_ms,
        "security_protocol": security_protocol,
    }
    protocol = str(security_protocol)
    if security_protocol not in PROTOCOLS:
        raise ValueError(f"`security_protocol` should be SSL or PLAINTEXT, or one of {PROTOCOLS}, not {protocol!r}")
    if protocol.endswith("SSL") and ssl_context is None:
        raise ValueError(f"`ssl_context` is mandatory if security_protocol=='{protocol}'")
    if protocol.endswith("SSL"):
        options["ssl_context"] = ssl_context
    elif ssl_context is not None:
        log.warning("ssl_context has no effect with security_protocol=%r: the connections do not use TLS", protocol)
    if protocol.startswith("SASL"):
        options["sasl_mechanism"] = sasl_mechanism
        if sasl_mechanism == "OAUTHBEARER":
            options |= _token_options(sasl_oauth_token_provider, loop)
        elif sasl_mechanism == "GSSAPI":
            options["sasl_kerberos_service_name"] = sasl_kerberos_service_name
            options["sasl_kerberos_domain_name"] = sasl_kerberos_domain_name
        else:
            if sasl_mechanism == "PLAIN" and (sasl_plain_username is None or sasl_plain_password is None):
                raise ValueError("sasl_plain_username and sasl_plain_password required for PLAIN sasl")
            options["sasl_plain_username"] = sasl_plain_username
            options["sasl_plain_password"] = sasl_plain_password
    return options


def addresses(given: str | Iterable[str]) -> list[str]:
    """Return addresses with a port. The default port is 9092, as in aiokafka."""
    entries = given.split(",") if isinstance(given, str) else list(given)
    return [_with_port(entry.strip()) for entry in entries]


def _with_port(entry: str) -> str:
    is_ipv6 = entry.count(":") > 1 and not entry.startswith("[")
    if is_ipv6:
        return f"[{entry}]:{DEFAULT_PORT}"
    has_port = ":" in entry.rpartition("]")[2]
    return entry if has_port else f"{entry}:{DEFAULT_PORT}"


def _token_options(provider: Any, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """Return the option for a token provider of aiokafka. Its method `token` is a coroutine function, which runs in the
    event loop of the program."""

    def token() -> Any:
        return asyncio.run_coroutine_threadsafe(provider.token(), loop).result()

    if not hasattr(provider, "token"):
        return {"sasl_oauth_token_provider": provider}  # the error of kcodec describes what is expected
    extensions = provider.extensions() if hasattr(provider, "extensions") else None
    return {"sasl_oauth_token_provider": token, "sasl_oauthbearer_extensions": extensions or None}


def assignor_names(strategies: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of aiokafka's assignors. Raise ValueError for a custom assignor.

    aiokafka also runs those of kafka-python, which some frameworks pass to it.
    """
    names = {"RangePartitionAssignor": "range", "RoundRobinPartitionAssignor": "roundrobin"}
    names["StickyPartitionAssignor"] = "sticky"
    found = []
    for one in strategies:
        name = names.get(getattr(one, "__name__", ""))
        if name is None or not str(one.__module__).startswith(_ASSIGNORS):
            raise ValueError(
                f"partition_assignment_strategy: kcodec.compat.aiokafka supports RangePartitionAssignor, "
                f"RoundRobinPartitionAssignor and StickyPartitionAssignor, not {one!r:.100}; for an assignor of your "
                "own use kcodec.client.aio.Consumer and kcodec.consumer.assignors.Assignor"
            )
        found.append(name)
    return tuple(found)
