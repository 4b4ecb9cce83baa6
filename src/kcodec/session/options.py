# SPDX-License-Identifier: Apache-2.0
"""The options of a group transact session: a consumer's and a producer's, and what would not be safe is refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kcodec.cluster.list_offsets import isolation_of
from kcodec.constants import IsolationLevel
from kcodec.consumer.options import ConsumerOptions, checked_subscription
from kcodec.consumer.settings import ConsumerSettings
from kcodec.network.options import ClientOptions, refuse_unknown
from kcodec.producer.options import ProducerOptions
from kcodec.security import SECURITY_OPTIONS
from kcodec.session.safety import SCAN_SECONDS, SessionTimes

#: Below the group's session time-out of 45 s, as franz-go has it.
DEFAULT_TRANSACTION_TIMEOUT_MS = 40_000
OWN = frozenset({"topics", "pattern", "on_revoked", "on_assigned", "on_lost", "transaction_scan_interval_ms"})


class SessionOptions(NamedTuple):
    """What a session is made of. times: what its safety hangs on where brokers are old."""

    consumer: ConsumerOptions
    producer: ProducerOptions
    client: ClientOptions
    times: SessionTimes
    callbacks: dict[str, Callable[..., Any] | None]


def take_session_options(given: dict[str, Any]) -> SessionOptions:
    """Of GroupTransactSession(**options). TypeError for what is missing or nobody's, ValueError for what is unsafe."""
    left = {name: value for name, value in given.items() if name not in {"topics", "pattern"}}
    for name in ("group_id", "transactional_id"):
        if not left.get(name):
            raise TypeError(f"{name} is missing: a session is a member of a group, and a transactional producer")
    _refuse_unsafe(left)
    callbacks = {name: left.pop(name, None) for name in ("on_revoked", "on_assigned", "on_lost")}
    scan = left.pop("transaction_scan_interval_ms", SCAN_SECONDS * 1000)
    if isinstance(scan, bool) or not isinstance(scan, int | float) or scan < 0:
        raise ValueError(f"transaction_scan_interval_ms must be a number of at least 0, not {scan!r}")
    left = {"auto_offset_reset": "earliest", "transaction_timeout_ms": DEFAULT_TRANSACTION_TIMEOUT_MS, **left}
    left["enable_auto_commit"] = False
    consumer = ConsumerOptions.take(left)
    producer = ProducerOptions.take(left)
    client_names = ClientOptions.names() | SECURITY_OPTIONS
    refuse_unknown(
        {name: value for name, value in left.items() if name not in client_names},
        ConsumerOptions.names() | ProducerOptions.names() | client_names | OWN,
        "a session",
    )
    client = ClientOptions.take(left)
    if client.default_api_timeout_ms < client.request_timeout_ms and "default_api_timeout_ms" not in given:
        client = dataclasses.replace(client, default_api_timeout_ms=client.request_timeout_ms)
    producer.settings(client)
    return SessionOptions(consumer, producer, client, _times(consumer.settings(client), scan / 1000), callbacks)


def subscription_of(
    options: SessionOptions, topics: str | Iterable[str] | None, pattern: str | re.Pattern[str] | None
) -> tuple[list[str], str | None]:
    """Names, or a pattern. Raises TypeError, ValueError; what only a broker can read (RE2) it judges later."""
    names, text = checked_subscription(topics, pattern)
    if text is not None and options.consumer.group_protocol == "classic":
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"pattern {text!r} is no regular expression: {error}") from error
    return names, text


def _refuse_unsafe(given: dict[str, Any]) -> None:
    level = given.get("isolation_level")
    if level is not None and isolation_of(level) is not IsolationLevel.READ_COMMITTED:
        raise ValueError(
            'isolation_level="read_uncommitted" is not possible in a session: what it read of a transaction that is '
            "aborted later would be in its output for good"
        )
    if given.get("enable_auto_commit"):
        raise ValueError(
            "enable_auto_commit is not possible in a session: offsets committed outside its transactions would count "
            "records as processed whose transaction is aborted"
        )
    if "acks" in given and given["acks"] not in ("all", -1, "-1"):
        raise ValueError(f'acks must be "all" in a session, not {given["acks"]!r}')


def _times(settings: ConsumerSettings, scan: float) -> SessionTimes:
    return SessionTimes(
        session=settings.session_timeout if settings.group_protocol == "classic" else None,
        request=settings.request_timeout,
        scan=scan,
        max_poll_interval=settings.max_poll_interval,
        txn_offset_commit_highest_version=settings.txn_offset_commit_highest_version,
        offset_fetch_highest_version=settings.offset_fetch_highest_version,
    )
