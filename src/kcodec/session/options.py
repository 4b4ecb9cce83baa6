# SPDX-License-Identifier: Apache-2.0
"""The options of a group transact session: a consumer's and a producer's. Unsafe combinations are rejected."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kcodec.arguments import check_rebalance_callbacks
from kcodec.cluster.list_offsets import isolation_of
from kcodec.constants import IsolationLevel
from kcodec.consumer.options import ConsumerConfig, ConsumerSettings, checked_subscription, take_consumer_client
from kcodec.network.options import ClientConfig
from kcodec.options import Callback, OptionSet, option
from kcodec.producer.options import ProducerConfig
from kcodec.security import SECURITY_OPTIONS
from kcodec.session.safety import SCAN_SECONDS, SessionTimes

#: Less than the group's session timeout of 45 s, as in franz-go.
DEFAULT_TRANSACTION_TIMEOUT_MS = 40_000
#: The defaults of a session that differ from those of a consumer or a producer.
SESSION_DEFAULTS: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "transaction_timeout_ms": DEFAULT_TRANSACTION_TIMEOUT_MS,
}
#: Options of a consumer or a producer that a session requires, and those of which it accepts only one value.
REQUIRED = ("group_id", "transactional_id")
FIXED: dict[str, Any] = {"enable_auto_commit": False, "enable_auto_offset_store": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionOwnConfig(OptionSet):
    """The options that only a session has, next to the arguments topics and pattern."""

    on_revoked: Callback | None = option(None)
    """Function that the session calls with the revoked partitions, during `poll` and `close`."""
    on_assigned: Callback | None = option(None)
    """Function that the session calls with the assigned partitions, during `poll`."""
    on_lost: Callback | None = option(None)
    """Function that the session calls with the lost partitions, during `poll` and `close`. None: the session calls
    on_revoked instead."""
    transaction_scan_interval_ms: float = option(SCAN_SECONDS * 1000, minimum=0)
    """Value of `transaction.abort.timed.out.transaction.cleanup.interval.ms` of the brokers. The session uses it only
    with brokers before 2.5."""


class SessionConfig(NamedTuple):
    """The checked options of a session. `times` has the timeouts on which its safety depends with old brokers."""

    consumer: ConsumerConfig
    producer: ProducerConfig
    client: ClientConfig
    times: SessionTimes
    callbacks: dict[str, Callback | None]


def take_session_options(given: Mapping[str, Any]) -> SessionConfig:
    """Return the options of GroupTransactSession(**options). Raise TypeError for missing or unknown options, ValueError
    for unsafe ones."""
    left = {name: value for name, value in given.items() if name not in {"topics", "pattern"}}
    for name in REQUIRED:
        if not left.get(name):
            known = ConsumerConfig.names() | ProducerConfig.names() | ClientConfig.names() | SessionOwnConfig.names()
            near = difflib.get_close_matches(name, left.keys() - known - SECURITY_OPTIONS, n=1)
            hint = f"; {near[0]!r} is not an option: did you mean {name!r}?" if near else ""
            raise TypeError(f"{name} is missing: a session is a member of a group and a transactional producer{hint}")
    _refuse_unsafe(left)
    own = SessionOwnConfig.take(left)
    left = {**SESSION_DEFAULTS, **left, **FIXED}
    consumer = ConsumerConfig.take(left)
    producer = ProducerConfig.take(left)
    names = ConsumerConfig.names() | ProducerConfig.names() | SessionOwnConfig.names() | {"topics", "pattern"}
    client = take_consumer_client(left, names, "a session")
    producer.settings(client)
    callbacks = {"on_revoked": own.on_revoked, "on_assigned": own.on_assigned, "on_lost": own.on_lost}
    check_rebalance_callbacks(**callbacks)
    scan = own.transaction_scan_interval_ms / 1000
    return SessionConfig(consumer, producer, client, _times(consumer.settings(client), scan), callbacks)


def subscription_of(
    options: SessionConfig, topics: str | Iterable[str] | None, pattern: str | re.Pattern[str] | None
) -> tuple[list[str], str | None]:
    """Return the topics or the pattern. Raise TypeError, ValueError; a broker checks patterns that only it can read
    (RE2)."""
    names, text = checked_subscription(topics, pattern)
    if text is not None and options.consumer.group_protocol == "classic":
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"pattern {text!r} is not a valid regular expression: {error}") from error
    return names, text


def _refuse_unsafe(given: dict[str, Any]) -> None:
    level = given.get("isolation_level")
    if level is not None and isolation_of(level) is not IsolationLevel.READ_COMMITTED:
        raise ValueError(
            'isolation_level="read_uncommitted" is not possible in a session: its output would keep what it read of '
            "transactions that are aborted later"
        )
    if given.get("enable_auto_commit"):
        raise ValueError(
            "enable_auto_commit is not possible in a session: offsets committed outside its transactions would mark "
            "records of aborted transactions as processed"
        )
    if given.get("enable_auto_offset_store", True) is not True:
        raise ValueError(
            "enable_auto_offset_store has no effect in a session, which commits the offsets of the records that its "
            "transactions have polled"
        )
    if "acks" in given and given["acks"] not in ("all", -1, "-1"):
        raise ValueError(f'acks must be "all" in a session, not {given["acks"]!r}')


def _times(settings: ConsumerSettings, scan: float) -> SessionTimes:
    return SessionTimes(
        session=settings.session_timeout if settings.group_protocol == "classic" else None,
        request=settings.request_timeout,
        scan=scan,
        max_poll_interval=settings.max_poll_interval,
    )
