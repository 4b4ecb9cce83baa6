# SPDX-License-Identifier: Apache-2.0
"""The options of a consumer. They are checked as Java's consumer checks them (ConsumerConfig)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kcodec._fast import COLUMNS, FRAMING_COLUMNS, schema_of
from kcodec.arguments import check_conversions, names_of
from kcodec.cluster.list_offsets import isolation_of
from kcodec.constants import IsolationLevel
from kcodec.consumer.assignors import make_assignors
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.network.options import ClientConfig, take_client_options
from kcodec.offsets import check_topic
from kcodec.options import Deserializer, OptionSet, option, settings_of
from kcodec.quantities import number_text

if TYPE_CHECKING:
    from kcodec.consumer.assignors import Assignor

_OLD_BROKER = "for tests with an older broker, start a kcodec.broker.Broker with"
DEFAULT_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
DEFAULT_ASSIGNORS = ("range", "cooperative-sticky")
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
class ConsumerConfig(OptionSet):
    """The options of a consumer. Names and defaults are those of Java's consumer (Kafka 4), except for
    isolation_level."""

    group_id: str | None = option(None)
    """Name of the consumer group, which assigns partitions and stores committed offsets. None: no group."""
    group_instance_id: str | None = option(None)
    """Name of this consumer as a static member of the group. A static member can return within session_timeout_ms
    without a rebalance."""
    group_protocol: str = option("classic", choices=("classic", "consumer"))
    """Protocol of the group. "classic": a member of the group assigns the partitions. "consumer": the broker assigns
    the partitions (KIP-848, Kafka 4.0)."""
    partition_assignment_strategy: str | Iterable[str | Assignor] = option(DEFAULT_ASSIGNORS)
    """Assignors of the classic protocol; earlier ones are preferred. An assignor is "range", "roundrobin", "sticky",
    "cooperative-sticky", or a `kcodec.consumer.assignors.Assignor` of your own."""
    group_remote_assignor: str | None = option(None)
    """Assignor that the broker uses in the consumer protocol: "uniform" or "range". None: the default of the broker."""
    isolation_level: IsolationLevel | Literal["read_committed", "read_uncommitted"] = option(
        IsolationLevel.READ_COMMITTED
    )
    """Which records the consumer returns. "read_committed": without the records of aborted and open transactions.
    "read_uncommitted": all records. The default of Java is "read_uncommitted"."""
    auto_offset_reset: str = option("latest")
    """Where the consumer begins if no offset is committed. "earliest" or "latest": at the start or the end of the log.
    "none": the consumer raises an error. "by_duration:PT1H": one hour before now (KIP-1106). With "latest", a consumer
    reads partitions that are created after its subscription from their start."""
    enable_auto_commit: bool = option(True)
    """Whether the consumer commits offsets automatically, in intervals and before partitions are revoked. An automatic
    commit includes a record only after the program has requested the next records."""
    auto_commit_interval_ms: float = option(5_000, minimum=0)
    """Interval of the automatic commits."""
    enable_auto_offset_store: bool = option(True)
    """Whether the offsets to commit follow from the records that the program has requested. False: automatic commits,
    and `commit` without offsets, only include the offsets that the program has passed to `store_offsets`, as in
    librdkafka."""
    fetch_min_bytes: int = option(1, minimum=0)
    """Minimum size of a fetch response. The broker waits until it has this number of bytes, but not longer than
    fetch_max_wait_ms."""
    fetch_max_wait_ms: float = option(500, minimum=0, librdkafka="fetch.wait.max.ms")
    """Maximum time that the broker waits to collect fetch_min_bytes."""
    fetch_max_bytes: int = option(52_428_800, minimum=1)
    """Maximum size of a fetch response. If the first batch is larger, the response contains this whole batch."""
    max_partition_fetch_bytes: int = option(1_048_576, minimum=1, librdkafka="fetch.message.max.bytes")
    """Maximum size of the data of one partition in a fetch response. If the first batch is larger, the response
    contains this whole batch."""
    fetch_ahead_max_bytes: int = option(67_108_864, minimum=1, librdkafka="queued.max.messages.kbytes")
    """Maximum size of all fetch responses that are requested or not polled yet, of all brokers together. A response
    with a larger batch is received alone. For paused partitions, a second limit of the same size applies."""
    max_poll_records: int = option(500, minimum=1)
    """Maximum number of records returned by `poll()`. The limit does not apply to `poll_arrow()`, which returns all
    rows of a fetch response for one partition."""
    max_poll_interval_ms: float = option(300_000, minimum=1)
    """Maximum time between two requests of the program for records. After this time, the consumer leaves the group."""
    session_timeout_ms: float = option(45_000, minimum=1)
    """Time without a heartbeat after which the group removes a member. For the classic protocol only; in the consumer
    protocol, the broker sets this time."""
    heartbeat_interval_ms: float = option(3_000, minimum=1)
    """Interval of heartbeats. For the classic protocol only; in the consumer protocol, the broker sets this
    interval."""
    key_deserializer: Deserializer | None = option(None)
    """Function that converts the key of a record from bytes. Keys of None are not passed to it. If it fails, `poll`
    raises a DeserializationError, or skips the record with on_error="skip". `poll_arrow` returns the bytes."""
    value_deserializer: Deserializer | None = option(None)
    """Function that converts the value of a record from bytes, as key_deserializer does for the key. Values of None
    (tombstones) are not passed to it."""
    client_rack: str = option("")
    """Rack in which the consumer runs. If the brokers allow it, the consumer reads from a replica in this rack
    (KIP-392)."""
    check_crcs: bool = option(True)
    """Whether the consumer checks the CRC of each batch."""
    on_error: str = option("raise", choices=("raise", "skip"), deprecated="on_corrupt")
    """What `poll` does with a batch that it cannot read. "raise": raise an error whose `next_offset` is the offset
    after the batch. "skip": skip the batch and count it. The same applies to a record whose deserializer fails.
    If the broker rejects an offset with CORRUPT_MESSAGE, the consumer first requests this offset again. `next_offset`
    is None for such an error."""
    columns: Iterable[str] = option(DEFAULT_COLUMNS)
    """Columns that `poll_arrow` returns: names from `kcodec.COLUMNS`, and with `framing` also key_schema_id and
    value_schema_id. With `framing`, the default includes these two."""
    binary_type: Literal["binary", "large_binary", "binary_view"] = option("binary")
    """Arrow type of keys and values in `poll_arrow`: "binary", "large_binary" or "binary_view"."""
    framing: Literal["confluent"] | None = option(None)
    """"confluent": separate the schema ids of Confluent's serializers from keys and values, as in `kcodec.decode`."""
    limits: DecodeLimits = option(DEFAULT_LIMITS)
    """Limits of the size of a batch, a `kcodec.DecodeLimits`."""
    allow_auto_create_topics: bool = option(True)
    """Whether brokers can create a topic that the consumer requests. This also needs the setting
    auto.create.topics.enable of the brokers."""
    exclude_internal_topics: bool = option(True)
    """Whether a pattern ignores internal topics such as __consumer_offsets."""

    removed: ClassVar[dict[str, str]] = {
        "offset_fetch_highest_version": f"{_OLD_BROKER} max_versions={{'OffsetFetch': 6}}",
        "txn_offset_commit_highest_version": f"{_OLD_BROKER} max_versions={{'TxnOffsetCommit': 2}}",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("group_id", "group_instance_id"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ValueError(f"{name} must be a non-empty string, not {value!r}")
        if self.group_instance_id is not None and self.group_id is None:
            raise ValueError("group_instance_id requires group_id, which is not set")
        if self.group_protocol == "classic" and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({number_text(self.heartbeat_interval_ms)}) must be less than "
                "session_timeout_ms"
                f" ({number_text(self.session_timeout_ms)}); a third of it is recommended"
            )
        self._check_protocol()
        isolation_of(self.isolation_level)
        check_conversions("bytes", key_deserializer=self.key_deserializer, value_deserializer=self.value_deserializer)
        self._strategies()
        self._reset()
        checked_columns(self.columns, self.binary_type, self.framing)

    def _check_protocol(self) -> None:
        """Reject options that only the other protocol uses, as Java does (ConsumerConfig), because they would have no
        effect."""
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

    def settings(self, client: ClientConfig) -> ConsumerSettings:
        """Return the settings of the flows. Raise ValueError if the time of a fetch is not below that of a request."""
        check_fetch_wait(self.fetch_max_wait_ms, client)
        reset, duration = self._reset()
        return settings_of(
            ConsumerSettings,
            self,
            client,
            bootstrap_servers=",".join(map(str, client.addresses)),
            partition_assignment_strategy=self._strategies(),
            isolation_level=isolation_of(self.isolation_level),
            auto_offset_reset=reset,
            auto_offset_reset_duration=duration,
            enable_auto_commit=self.enable_auto_commit and self.group_id is not None,
            columns=checked_columns(self.columns, self.binary_type, self.framing),
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerSettings:
    """The settings of a consumer's flows: the options of the same names, with times in seconds.

    bootstrap_servers: The addresses that the client was given, for messages.
    auto_offset_reset: "earliest", "latest", "none", or "by_duration" with auto_offset_reset_duration in seconds.
    retry_backoff:     Function that returns the seconds before a repeat, from its number (from 0) and a random number.
    """

    bootstrap_servers: str = ""
    group_id: str | None = ConsumerConfig.group_id
    group_instance_id: str | None = ConsumerConfig.group_instance_id
    group_protocol: str = ConsumerConfig.group_protocol
    group_remote_assignor: str | None = ConsumerConfig.group_remote_assignor
    partition_assignment_strategy: tuple[Any, ...] = DEFAULT_ASSIGNORS
    client_id: str = ClientConfig.client_id
    client_rack: str = ConsumerConfig.client_rack
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    auto_offset_reset: str = ConsumerConfig.auto_offset_reset
    auto_offset_reset_duration: float = 0.0
    allow_auto_create_topics: bool = ConsumerConfig.allow_auto_create_topics
    exclude_internal_topics: bool = ConsumerConfig.exclude_internal_topics
    fetch_min_bytes: int = ConsumerConfig.fetch_min_bytes
    fetch_max_bytes: int = ConsumerConfig.fetch_max_bytes
    fetch_max_wait: float = ConsumerConfig.fetch_max_wait_ms / 1000
    max_partition_fetch_bytes: int = ConsumerConfig.max_partition_fetch_bytes
    fetch_ahead_max_bytes: int = ConsumerConfig.fetch_ahead_max_bytes
    max_poll_records: int = ConsumerConfig.max_poll_records
    max_poll_interval: float = ConsumerConfig.max_poll_interval_ms / 1000
    session_timeout: float = ConsumerConfig.session_timeout_ms / 1000
    heartbeat_interval: float = ConsumerConfig.heartbeat_interval_ms / 1000
    enable_auto_commit: bool = ConsumerConfig.enable_auto_commit
    auto_commit_interval: float = ConsumerConfig.auto_commit_interval_ms / 1000
    enable_auto_offset_store: bool = ConsumerConfig.enable_auto_offset_store
    check_crcs: bool = ConsumerConfig.check_crcs
    on_error: str = ConsumerConfig.on_error
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    binary_type: str = ConsumerConfig.binary_type
    framing: str | None = ConsumerConfig.framing
    limits: DecodeLimits = DEFAULT_LIMITS
    request_timeout: float = ClientConfig.request_timeout_ms / 1000
    default_api_timeout: float = ClientConfig.default_api_timeout_ms / 1000
    metadata_max_age: float = ClientConfig.metadata_max_age_ms / 1000
    retry_backoff: Callable[[int, float], float] = lambda attempt, random: 0.1

    def need_group(self, call: str) -> None:
        """Raise ValueError if the consumer has no group.

        call: Name of the call, for the error message.
        """
        if self.group_id is None:
            raise ValueError(f"{call} needs a consumer with group_id=, as offsets are committed for a group")

    @property
    def is_committed_only(self) -> bool:
        """Whether records of aborted and open transactions are not returned."""
        return self.isolation_level is IsolationLevel.READ_COMMITTED


def checked_columns(columns: Iterable[str], binary_type: str, framing: str | None) -> tuple[str, ...]:
    """Return the columns of Arrow batches. With `framing`, the default includes the columns of schema ids. Raise
    ValueError for an unknown column, type or framing."""
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if framing is not None and columns is DEFAULT_COLUMNS:
        names += FRAMING_COLUMNS  # the payloads no longer contain the ids
    known = COLUMNS if framing is None else COLUMNS + FRAMING_COLUMNS
    for name in names:
        if name not in COLUMNS + FRAMING_COLUMNS:  # the core knows which framing the latter need
            raise ValueError(f"unknown column {name!r}; expected one or more of {', '.join(known)}")
    schema_of(names, binary_type, False, framing)  # the core's own check
    return names


def check_fetch_wait(fetch_max_wait_ms: float, client: ClientConfig) -> None:
    """Raise ValueError if a request times out while the broker still waits for records."""
    if client.request_timeout_ms <= fetch_max_wait_ms:
        raise ValueError(
            f"request_timeout_ms ({number_text(client.request_timeout_ms)}) must be greater than fetch_max_wait_ms "
            f"({number_text(fetch_max_wait_ms)}), because a broker without new records responds only after this time"
        )


def take_consumer_client(left: dict[str, Any], own: Iterable[str], what: str) -> ClientConfig:
    """Take the options of the client, as `take_client_options` does. A call without a timeout waits at least as long as
    one request."""
    is_chosen = "default_api_timeout_ms" in left
    client = take_client_options(left, own, what)
    if client.default_api_timeout_ms < client.request_timeout_ms and not is_chosen:
        return dataclasses.replace(client, default_api_timeout_ms=client.request_timeout_ms)
    return client


def take_options(given: Mapping[str, Any]) -> tuple[ConsumerConfig, ClientConfig]:
    """Return the options of the consumer and those of its client. Raise TypeError for an unknown option."""
    left = dict(given)
    own = ConsumerConfig.take(left)
    client = take_consumer_client(left, ConsumerConfig.names(), "a consumer")
    own.settings(client)
    return own, client


def checked_subscription(
    topics: str | Iterable[str] | None, pattern: str | re.Pattern[str] | None
) -> tuple[list[str], str | None]:
    """Return the names, or the pattern. Raise TypeError, ValueError."""
    if topics is None and pattern is None:
        raise ValueError("neither topics= nor pattern= is given; pass one of them")
    if topics is not None and pattern is not None:
        raise ValueError("topics= and pattern= are both given; pass one of them")
    if pattern is not None:
        text = pattern if isinstance(pattern, str) else pattern.pattern
        if not text:
            raise ValueError("pattern is empty: expected a regular expression that matches whole topic names")
        return [], text
    names = names_of(() if topics is None else topics, "topics")
    for name in names:
        if not name:
            raise TypeError("topics: a topic name must not be empty")
        check_topic(name, "topics")
    if not names:
        raise ValueError("topics is empty; call unsubscribe() to end a subscription")
    return names, None
