# SPDX-License-Identifier: Apache-2.0
"""The options of a consumer, checked as Java's consumer checks them (ConsumerConfig)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, ClassVar

from kcodec._fast import COLUMNS, schema_of
from kcodec.arguments import names_of
from kcodec.cluster.list_offsets import isolation_of
from kcodec.constants import IsolationLevel
from kcodec.consumer.assignors import make_assignors
from kcodec.consumer.settings import DEFAULT_COLUMNS, HIGHEST_VERSION, ConsumerSettings
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.network.options import ClientOptions, OptionSet, refuse_unknown
from kcodec.security import SECURITY_OPTIONS

RESETS = ("earliest", "latest", "none")
# ISO 8601, as java.time.Duration reads it, days to seconds.
_DURATION = re.compile(r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)

#: What the broker decides in the consumer protocol, and the setting of the group that says how.
BROKERS_IN_CONSUMER_PROTOCOL = {
    "session_timeout_ms": "consumer.session.timeout.ms",
    "heartbeat_interval_ms": "consumer.heartbeat.interval.ms",
    "partition_assignment_strategy": "consumer.assignors (group_remote_assignor chooses)",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerOptions(OptionSet):
    """Times are milliseconds, sizes bytes; names and defaults are those of Java's consumer (Kafka 4), except for
    isolation_level.

    group_id:              Group that assigns partitions and keeps committed offsets; None: no group.
    group_instance_id:     Name of a static member, which may return within the session timeout without a rebalance.
    group_protocol:        "classic", or "consumer" (KIP-848, Kafka 4.0: the broker assigns partitions).
    partition_assignment_strategy: Assignors of the classic protocol, in order of preference: "range", "roundrobin",
                           "sticky", "cooperative-sticky", or a custom `kcodec.consumer.assignors.Assignor`.
    group_remote_assignor: Assignor of the consumer protocol: "uniform" or "range"; None: the broker's default.
    isolation_level:       "read_committed", or "read_uncommitted" (Java's default).
    auto_offset_reset:     Where to begin without a committed offset: "earliest", "latest", "none" (an error), or
                           "by_duration:PT1H", an hour ago (KIP-1106).
    enable_auto_commit, auto_commit_interval_ms: Commit completed records, at this interval and before partitions are
                           revoked. Records are completed once the next ones are requested.
    fetch_min_bytes, fetch_max_wait_ms: The broker delays its response until fetch_min_bytes are available or
                           fetch_max_wait_ms have passed.
    fetch_max_bytes, max_partition_fetch_bytes: Maximum bytes of a fetch response, and of one partition in it. A larger
                           first batch is returned whole.
    fetch_ahead_max_bytes: Maximum bytes of responses that are requested, or received and not polled yet, over all
                           brokers together. A larger response, of one large batch, is received alone. Responses of
                           paused partitions have a limit of the same size in addition.
    max_poll_records:      Maximum number of records returned by `poll()`. `poll_arrow()` returns all rows of one fetch
                           response for one partition.
    max_poll_interval_ms:  Maximum time between two requests for records; after it the consumer leaves the group.
    session_timeout_ms, heartbeat_interval_ms: Of the classic protocol; in the consumer protocol the broker sets them.
    client_rack:           Rack of the consumer; it reads from a replica there if brokers allow it (KIP-392).
    check_crcs:            Verify the CRC of each batch.
    on_error:            "raise": `poll` raises an error for a batch that cannot be read, with the offset behind it in
                           `next_offset`; "skip": the batch is left out and counted. An offset that the broker refuses
                           with CORRUPT_MESSAGE is requested again first, and has no `next_offset`.
    columns, binary_type, framing: Layout of `poll_arrow`, as in `kcodec.decode`, with topic and partition.
    limits:                Limits of decoding, a `kcodec.DecodeLimits`.
    allow_auto_create_topics: Let brokers create a topic that is requested, if they are configured to.
    exclude_internal_topics: Do not match internal topics, such as __consumer_offsets, with a pattern.
    offset_fetch_highest_version, txn_offset_commit_highest_version: Highest versions of these requests, to speak as
                           with brokers before 2.5, which cannot hold back offsets of open transactions.
    """

    MINIMUM: ClassVar[dict[str, float]] = {
        "fetch_min_bytes": 0,
        "fetch_max_bytes": 1,
        "fetch_max_wait_ms": 0,
        "max_partition_fetch_bytes": 1,
        "fetch_ahead_max_bytes": 1,
        "max_poll_records": 1,
        "max_poll_interval_ms": 1,
        "session_timeout_ms": 1,
        "heartbeat_interval_ms": 1,
        "auto_commit_interval_ms": 0,
    }
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "group_protocol": ("classic", "consumer"),
        "on_error": ("raise", "skip"),
    }
    RENAMED: ClassVar[dict[str, str]] = {"on_corrupt": "on_error"}

    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = "classic"
    partition_assignment_strategy: str | Iterable[Any] = ("range", "cooperative-sticky")
    group_remote_assignor: str | None = None
    isolation_level: IsolationLevel | str = IsolationLevel.READ_COMMITTED
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: float = 5_000
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: float = 500
    max_partition_fetch_bytes: int = 1_048_576
    fetch_ahead_max_bytes: int = 67_108_864
    max_poll_records: int = 500
    max_poll_interval_ms: float = 300_000
    session_timeout_ms: float = 45_000
    heartbeat_interval_ms: float = 3_000
    client_rack: str = ""
    check_crcs: bool = True
    allow_auto_create_topics: bool = True
    exclude_internal_topics: bool = True
    on_error: str = "raise"
    columns: Iterable[str] = DEFAULT_COLUMNS
    binary_type: str = "binary"
    framing: str | None = None
    limits: DecodeLimits = DEFAULT_LIMITS
    offset_fetch_highest_version: int = HIGHEST_VERSION
    txn_offset_commit_highest_version: int = HIGHEST_VERSION

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("group_id", "group_instance_id"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ValueError(f"{name} must be a string that is not empty, got {value!r}")
        if self.group_instance_id is not None and self.group_id is None:
            raise ValueError("group_instance_id needs a group_id")
        if self.group_protocol == "classic" and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms:g}) must be less than session_timeout_ms"
                f" ({self.session_timeout_ms:g}); a third of it is recommended"
            )
        self._check_protocol()
        isolation_of(self.isolation_level)
        self._strategies()
        self._reset()
        schema_of(self._columns(), self.binary_type, False, self.framing)  # the core's own check

    def _check_protocol(self) -> None:
        """What only the other protocol heeds is a mistake, as in Java (ConsumerConfig): one would rely on it."""
        others = BROKERS_IN_CONSUMER_PROTOCOL if self.group_protocol == "consumer" else {"group_remote_assignor": ""}
        for name, setting in others.items():
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                instead = f": it is the group's setting {setting} on the broker" if setting else ""
                raise ValueError(f'{name} has no effect with group_protocol="{self.group_protocol}"{instead}')

    def _strategies(self) -> tuple[Any, ...]:
        given = self.partition_assignment_strategy
        chosen = tuple(name.strip() for name in given.split(",")) if isinstance(given, str) else tuple(given)
        make_assignors(chosen)  # its own check
        return chosen

    def _reset(self) -> tuple[str, float]:
        if self.auto_offset_reset in RESETS:
            return self.auto_offset_reset, 0.0
        found = _DURATION.fullmatch(self.auto_offset_reset)
        if found is None or not any(found.groups()):
            raise ValueError(
                f'auto_offset_reset must be one of {", ".join(RESETS)} or "by_duration:PT1H" (ISO 8601), not'
                f" {self.auto_offset_reset!r}"
            )
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return "by_duration", ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    def _columns(self) -> tuple[str, ...]:
        columns = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
        for name in columns:
            if name not in COLUMNS:
                raise ValueError(f"unknown column {name!r}; possible: {', '.join(COLUMNS)}")
        return columns

    def settings(self, client: ClientOptions) -> ConsumerSettings:
        """Return the settings of the flows."""
        reset, duration = self._reset()
        return ConsumerSettings(
            bootstrap_servers=",".join(map(str, client.addresses)),
            group_id=self.group_id,
            group_instance_id=self.group_instance_id,
            group_protocol=self.group_protocol,
            group_remote_assignor=self.group_remote_assignor,
            partition_assignment_strategy=self._strategies(),
            client_id=client.client_id,
            client_rack=self.client_rack,
            isolation_level=isolation_of(self.isolation_level),
            auto_offset_reset=reset,
            auto_offset_reset_duration=duration,
            allow_auto_create_topics=self.allow_auto_create_topics,
            exclude_internal_topics=self.exclude_internal_topics,
            fetch_min_bytes=self.fetch_min_bytes,
            fetch_max_bytes=self.fetch_max_bytes,
            fetch_max_wait=self.fetch_max_wait_ms / 1000,
            max_partition_fetch_bytes=self.max_partition_fetch_bytes,
            fetch_ahead_max_bytes=self.fetch_ahead_max_bytes,
            max_poll_records=self.max_poll_records,
            max_poll_interval=self.max_poll_interval_ms / 1000,
            session_timeout=self.session_timeout_ms / 1000,
            heartbeat_interval=self.heartbeat_interval_ms / 1000,
            enable_auto_commit=self.enable_auto_commit and self.group_id is not None,
            auto_commit_interval=self.auto_commit_interval_ms / 1000,
            check_crcs=self.check_crcs,
            on_error=self.on_error,
            columns=self._columns(),
            binary_type=self.binary_type,
            framing=self.framing,
            limits=self.limits,
            request_timeout=client.request_timeout_ms / 1000,
            default_api_timeout=client.default_api_timeout_ms / 1000,
            metadata_max_age=client.metadata_max_age_ms / 1000,
            retry_backoff=client.retry_backoff,
            offset_fetch_highest_version=self.offset_fetch_highest_version,
            txn_offset_commit_highest_version=self.txn_offset_commit_highest_version,
        )


def take_options(given: dict[str, Any]) -> tuple[ConsumerOptions, ClientOptions]:
    """A consumer's options and its client's from the given options. Raise TypeError for an unknown one."""
    left = dict(given)
    own = ConsumerOptions.take(left)
    client_names = ClientOptions.names() | SECURITY_OPTIONS
    refuse_unknown(
        {name: value for name, value in left.items() if name not in client_names},
        ConsumerOptions.names() | client_names,
        "a consumer",
    )
    client = ClientOptions.take(left)
    if client.default_api_timeout_ms < client.request_timeout_ms and "default_api_timeout_ms" not in given:
        client = dataclasses.replace(client, default_api_timeout_ms=client.request_timeout_ms)
    own.settings(client)
    return own, client


def checked_subscription(
    topics: str | Iterable[str] | None, pattern: str | re.Pattern[str] | None
) -> tuple[list[str], str | None]:
    """Names, or a pattern. Raises TypeError, ValueError."""
    if (topics is None) == (pattern is None):
        raise ValueError("pass either topics= or pattern=")
    if pattern is not None:
        text = pattern if isinstance(pattern, str) else pattern.pattern
        if not text:
            raise ValueError("pattern is empty")
        return [], text
    names = names_of(() if topics is None else topics, "topics")
    for name in names:
        if not name:
            raise TypeError("topics: '' is not the name of a topic")
    if not names:
        raise ValueError("topics is empty; call unsubscribe() to end a subscription")
    return names, None
