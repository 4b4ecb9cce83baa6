# SPDX-License-Identifier: Apache-2.0
"""Conversion of the configuration of a confluent_kafka client, with librdkafka's names and defaults, to options of
kcodec's clients.

A name without a counterpart in kcodec raises an error, except for the names in ACCEPTED. These adjust how librdkafka
works internally, and do not change the records that a program sends or receives.
"""

from __future__ import annotations

import difflib
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError

from kcodec.client.properties import WORDS, librdkafka_names, options_from_properties
from kcodec.compat._confluent_errors import local_error
from kcodec.compat._confluent_security import VERIFICATION, is_empty, usable_options
from kcodec.producer.options import PARTITIONERS

log = logging.getLogger("kcodec.compat")

#: Names that have no effect. docs/compat-confluent.md lists them.
ACCEPTED = frozenset(
    {
        *("api.version.fallback.ms", "api.version.request", "api.version.request.timeout.ms", "batch.num.messages"),
        *("broker.address.ttl", "broker.version.fallback", "client.software.name", "client.software.version"),
        *("coordinator.query.interval.ms", "debug", "enable.metrics.push", "enable.random.seed"),
        *("enable.sparse.connections", "fetch.error.backoff.ms", "fetch.queue.backoff.ms", "log.connection.close"),
        *("log.queue", "log.thread.name", "log_level", "logger", "message.copy.max.bytes", "produce.offset.report"),
        *("queue.buffering.backpressure.threshold", "queued.min.messages", "reconnect.backoff.jitter.ms"),
        *("socket.blocking.max.ms", "socket.keepalive.enable", "socket.max.fails", "socket.nagle.disable"),
        *("socket.receive.buffer.bytes", "socket.send.buffer.bytes", "sticky.partitioning.linger.ms"),
        *("topic.metadata.refresh.fast.cnt", "topic.metadata.refresh.fast.interval.ms"),
        "topic.metadata.refresh.sparse",
    }
)
#: Names that are accepted only with this value, which corresponds to the behavior of kcodec.
ONLY = {
    "offset.store.method": "broker",
    "queuing.strategy": "fifo",
    "topic.blacklist": "",
}
#: What to do instead of another value.
INSTEAD = {
    "offset.store.method": "kcodec commits offsets to the brokers; remove this setting",
    "queuing.strategy": "kcodec delivers the records of a partition in their order; remove this setting",
    "topic.blacklist": "kcodec has no such list; subscribe with a pattern that does not match these topics",
}
#: Names with a different name in kcodec.
SAME = {
    "topic.metadata.refresh.interval.ms": "metadata_max_age_ms",
    "topic.metadata.propagation.max.ms": "unknown_topic_timeout_ms",
    "receive.message.max.bytes": "max_response_bytes",
}
#: Settings without effect next to another setting, because kcodec has only one option for both.
MERGED = {
    "request.timeout.ms": "socket.timeout.ms",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
}
#: Codecs for which librdkafka uses its default if the level is 0.
WITHOUT_LEVEL_0 = {"snappy", "lz4"}
#: A text in quotation marks, such as a value of the user, or (the group) the form of a name of kcodec's options. Names
#: of one word, such as acks, are those of librdkafka. An apostrophe inside or after a word begins no quotation.
OPTION_NAME = re.compile(
    r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)|\b([a-z0-9]+(?:_[a-z0-9]+)+)\b""",
    re.DOTALL,
)
#: Minimum similarity, as difflib computes it, of a mistyped name to a name that is suggested.
CLOSE = 0.8
#: Names that only the facade reads. All except the first are for producers.
OWN = frozenset({"statistics.interval.ms", "queue.buffering.max.messages", "queue.buffering.max.kbytes"})
CALLBACKS = ("error_cb", "stats_cb", "throttle_cb", "on_delivery", "on_commit")
#: The message timeout of librdkafka that means no timeout, and the timeout that kcodec uses instead, in ms.
NO_TIMEOUT, LONGEST_MS = 0, 2**31 - 1
#: Defaults of kcodec, in milliseconds.
DEFAULT_FETCH_WAIT_MS, DEFAULT_REQUEST_TIMEOUT_MS = 500, 30_000
DEFAULT_SESSION_MS, DEFAULT_HEARTBEAT_MS = 45_000, 3_000
#: The address for a client without bootstrap.servers. It is the broadcast address, to which TCP cannot connect.
NO_BROKERS = "255.255.255.255:9092"
#: Default limits of a producer: the number of messages, and the size of keys and values in kilobytes.
MAX_MESSAGES, MAX_KILOBYTES = 100_000, 1_048_576


@dataclass
class Settings:
    """The configuration of one client.

    options: Options of the client of kcodec.
    error_cb, stats_cb, throttle_cb, on_delivery, on_commit: Callbacks that `poll` and similar methods call.
    statistics_seconds: Interval of stats_cb. 0: stats_cb is not called.
    reports_eof: Whether the end of a partition is reported (enable.partition.eof).
    has_brokers: Whether bootstrap.servers is set. Without it, a client never connects, and its calls time out.
    only_errors: Whether only failures are reported to delivery callbacks (delivery.report.only.error).
    max_messages, max_bytes: Limits of the records of a producer whose delivery is not reported yet.
    names: Name of the given setting of each option.
    """

    options: dict[str, Any] = field(default_factory=dict)
    error_cb: Callable[[Any], Any] | None = None
    stats_cb: Callable[[str], Any] | None = None
    throttle_cb: Callable[[Any], Any] | None = None
    on_delivery: Callable[..., Any] | None = None
    on_commit: Callable[..., Any] | None = None
    statistics_seconds: float = 0.0
    reports_eof: bool = False
    has_brokers: bool = True
    only_errors: bool = False
    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_KILOBYTES * 1024
    names: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Create a client in the block. If an option is invalid, the error has the name of its setting."""
        try:
            yield
        except (TypeError, ValueError) as error:
            if type(error) not in {TypeError, ValueError}:  # an error of kcodec, which is not about an option
                raise
            raise type(error)(self.with_names(str(error))) from error

    def with_names(self, text: str) -> str:
        """Return a text in which the names of options of kcodec are those of the given settings, or of librdkafka. A
        text in quotation marks remains as it is, because it may be a value of the user."""
        names = {**librdkafka_names(), **self.names}
        return OPTION_NAME.sub(lambda found: names.get(found[1], found[0]), text)


def settings_of(client: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Settings:
    """Return the settings for a configuration dictionary and keywords. The keywords override the dictionary.

    client: "producer", "consumer" or "Admin".

    Raise TypeError if there is no configuration. Raise KafkaException (_INVALID_ARG) if a name is unknown or a value is
    invalid.
    """
    given = _given(arguments, keywords)
    settings = Settings()
    for name in CALLBACKS:
        function = given.pop(name, None)
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")
        setattr(settings, name, function)
    try:
        settings.statistics_seconds = _number(given, "statistics.interval.ms", 0) / 1000
        settings.reports_eof = _flag(given, "enable.partition.eof")
        settings.only_errors = _flag(given, "delivery.report.only.error")
        if client == "producer":
            settings.max_messages = int(_number(given, "queue.buffering.max.messages", MAX_MESSAGES)) or LONGEST_MS
            settings.max_bytes = int(_number(given, "queue.buffering.max.kbytes", MAX_KILOBYTES)) * 1024
        partitioner = given.get("partitioner")
        if isinstance(partitioner, str) and partitioner not in PARTITIONERS:
            raise ValueError(f'Invalid value for configuration property "partitioner": {partitioner}')
        oauth_cb = given.pop("oauth_cb", None)
        oauth_config = (
            given.get("sasl.oauthbearer.config", "") if oauth_cb is None else given.pop("sasl.oauthbearer.config", "")
        )
        verifies = _flag(given, VERIFICATION, default=True)
        options = _converted(client, given, settings.names)
        if not options.get("bootstrap_servers"):
            log.warning("the %s has no bootstrap.servers, so it never connects and its calls time out", client)
            options["bootstrap_servers"], settings.has_brokers = NO_BROKERS, False
        if oauth_cb is not None:
            options["sasl_oauth_token_provider"] = _token_provider(oauth_cb, oauth_config)
        options = usable_options(client, options, verifies)
        settings.options = _with_defaults(client, options, settings)
    except (TypeError, ValueError) as error:
        raise local_error(KafkaError._INVALID_ARG, settings.with_names(str(error))) from error
    return settings


def _given(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with librdkafka's names. The settings in default.topic.config override the others."""
    if len(arguments) > 1 or (arguments and not isinstance(arguments[0], dict)) or not (arguments or keywords):
        raise TypeError("expected configuration dict")
    given: dict[str, Any] = {}
    topic_settings: dict[str, Any] = {}
    for name, value in [*(arguments[0] if arguments else {}).items(), *keywords.items()]:
        if not isinstance(name, str):
            raise TypeError("expected configuration property name as type unicode string")
        if name == "default.topic.config":
            topic_settings = dict(value)
        elif name in CALLBACKS or name in {"log_level", "oauth_cb", "logger"}:
            given[name] = value
        else:
            given[name.replace("_", ".")] = value
    return {**given, **topic_settings}


def _flag(given: dict[str, Any], name: str, *, default: bool = False) -> bool:
    value = given.pop(name, default)
    if str(value).lower() not in WORDS:
        raise ValueError(f'Invalid value for configuration property "{name}": it must be true or false')
    return WORDS[str(value).lower()]


def _number(given: dict[str, Any], name: str, default: float) -> float:
    value = given.pop(name, default)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f'Invalid value for configuration property "{name}": it must be a number') from None


def _converted(client: str, given: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return the options of kcodec for settings with librdkafka's names. Add the name of the setting of each option to
    `names`."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name in ACCEPTED or (name == "topic.metadata.refresh.interval.ms" and str(value) == "-1"):
            log.debug("%s has no effect with kcodec.compat.confluent", name)
        elif name in ONLY:
            if ("" if value is None else str(value).lower()) != ONLY[name]:  # None is an empty list
                expected = repr(ONLY[name]) if ONLY[name] else "empty"
                raise ValueError(f"{name} must be {expected}, got {str(value)!r}: {INSTEAD[name]}")
        elif _is_merged(name, given):
            log.warning("%s has no effect, as kcodec has one option for it and for %s", name, MERGED[name])
        elif value is not None and not is_empty(name, value) and not _is_ignored(client, name, value):
            ours = SAME.get(name, name)
            text = value if callable(value) or not isinstance(value, bool | int | float) else str(value).lower()
            try:
                found = options_from_properties({ours: text}, client)
            except TypeError as error:
                raise TypeError(_in_dots(str(error), name)) from error
            options.update(found)
            names.update(dict.fromkeys(found, name))
    return options


def _is_merged(name: str, given: Mapping[str, Any]) -> bool:
    """Return whether another setting, which has priority, sets the same option to another value."""
    other = given.get(MERGED.get(name, ""))
    return other is not None and str(other) not in {"-1", str(given[name])}


def _in_dots(text: str, name: str) -> str:
    """Return the text of an error about an unknown name, in which the suggested name is written as in librdkafka."""
    near = difflib.get_close_matches(name, [*ACCEPTED, *OWN], n=1, cutoff=CLOSE)
    if near and "did you mean" not in text:
        return f"{text}; did you mean {near[0]!r}?"
    return re.sub(r"(did you mean )'([a-z_]+)'", lambda found: f"{found[1]}{found[2].replace('_', '.')!r}", text)


def _is_ignored(client: str, name: str, value: Any) -> bool:
    """Return whether only another kind of client has this property. In that case log a warning, as librdkafka does."""
    others = {"producer": ("consumer",), "consumer": ("producer",)}.get(client, ("producer", "consumer"))
    if name in OWN:
        log.warning("%s is a property of a producer and is ignored by this %s", name, client)
        return True
    text = str(value).lower() if isinstance(value, bool | int | float) else value
    try:
        options_from_properties({SAME.get(name, name): text}, client)
    except TypeError:
        for other in others:
            try:
                options_from_properties({name: text}, other)
            except (TypeError, ValueError):
                continue
            log.warning("%s is a property of a %s and is ignored by this %s", name, other, client)
            return True
    return False


def _with_defaults(client: str, options: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the options, with librdkafka's defaults for options on which programs depend."""
    if client == "producer":
        return _producer_defaults(options, settings)
    if client == "consumer":
        defaults = {"allow_auto_create_topics": False}
        if options.get("group_protocol", "classic") == "classic":
            defaults["partition_assignment_strategy"] = "range,roundrobin"  # type: ignore[assignment]
            options = _with_short_heartbeats(options)
        found = {**defaults, **options}
        _check_strategies(found.get("partition_assignment_strategy", ()))
        wait = found.get("fetch_max_wait_ms", DEFAULT_FETCH_WAIT_MS)
        limit = found.get("request_timeout_ms", DEFAULT_REQUEST_TIMEOUT_MS)
        if limit <= wait:  # librdkafka adds the two for a Fetch request
            log.warning(
                "socket.timeout.ms (%s) should be greater than fetch.wait.max.ms (%s); the sum is used", limit, wait
            )
            found["request_timeout_ms"] = limit + wait
        if found.get("auto_commit_interval_ms") == 0:  # librdkafka then commits at a revocation and at the end only
            found["auto_commit_interval_ms"] = LONGEST_MS
        return found
    return options


def _with_short_heartbeats(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a member of a classic group with an interval of heartbeats below the session timeout.
    librdkafka accepts any interval, and the coordinator then removes the member again and again."""
    session = options.get("session_timeout_ms", DEFAULT_SESSION_MS)
    interval = options.get("heartbeat_interval_ms", DEFAULT_HEARTBEAT_MS)
    if interval < session:
        return options
    if "heartbeat_interval_ms" in options:
        log.warning(
            "heartbeat.interval.ms (%s) should be less than session.timeout.ms (%s); a third of the session timeout is "
            "used",
            interval,
            session,
        )
    return {**options, "heartbeat_interval_ms": session / 3}


def _check_strategies(given: Any) -> None:
    """Raise ValueError if some assignors are eager and others cooperative. The protocol of the rebalances would then
    depend on the other members, and so would the calls that are possible in callbacks."""
    names = given.split(",") if isinstance(given, str) else [*map(str, given)]
    if len({"cooperative" in one for one in names}) > 1:
        raise ValueError(
            f'Invalid value for configuration property "partition.assignment.strategy": {",".join(names)} mixes eager '
            "and cooperative assignors; name cooperative-sticky alone, or only eager assignors"
        )


def _producer_defaults(options: dict[str, Any], settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {"partitioner": "consistent_random", **options}
    # The facade itself enforces librdkafka's limits, so that `produce` does not wait for buffer space.
    found["buffer_memory"] = 2 * settings.max_bytes + 67_108_864
    if "enable_idempotence" not in found and found.get("transactional_id") is None:
        is_possible = str(found.get("acks", "all")) in {"all", "-1"} and found.get("retries", 1) != 0
        found["enable_idempotence"] = is_possible and found.get("max_in_flight_requests_per_connection", 5) <= 5
    timeout = found.get("delivery_timeout_ms", 300_000)
    timeout = LONGEST_MS if timeout == NO_TIMEOUT else timeout
    found["delivery_timeout_ms"] = timeout
    if found.get("compression_level") == 0 and found.get("compression_type") in WITHOUT_LEVEL_0:
        del found["compression_level"]
    left = timeout - found.get("linger_ms", 5)
    if found.get("request_timeout_ms", 30_000) > left:
        found["request_timeout_ms"] = max(left, 1)
        found["linger_ms"] = min(found.get("linger_ms", 5), max(timeout - 1, 0))
    return found


def _token_provider(oauth_cb: Callable[[str], Any], config: str) -> Callable[[], tuple[str, float]]:
    """Return a token provider of kcodec for oauth_cb, which returns a token and the time at which it expires, in
    seconds since 1970."""

    def provide() -> tuple[str, float]:
        token, ends, *more = oauth_cb(config)
        if len(more) > 1 and more[1]:
            raise ValueError("oauth_cb: kcodec cannot send extensions of a token; remove them")
        return token, ends - time.time()

    return provide
