# SPDX-License-Identifier: Apache-2.0
"""The settings of topics: Kafka's names, defaults, types and ranges (LogConfig, TopicConfig)."""

from __future__ import annotations

from typing import NamedTuple

from kcodec.broker.api import ApiError
from kcodec.constants import Compression
from kcodec.protocol.error_codes import ErrorCode

# ConfigDef.Type, as numbers of the protocol.
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


class TopicConfig(NamedTuple):
    """A setting of topics.

    default:     Default value in Kafka.
    type:        Type of the value: one of the constants above.
    broker_name: Setting of the broker that determines the default; None if no such setting exists.
    least, most: Range of a number. Without `most`, the type limits the number.
    choices:     Allowed values of a string, or of each item of a list. If empty, any value is allowed.
    """

    default: str
    type: int
    broker_name: str | None = None
    least: int = 0
    most: int | None = None
    choices: tuple[str, ...] = ()


def _boolean(broker_name: str | None = None) -> TopicConfig:
    return TopicConfig("false", BOOLEAN, broker_name, choices=("true", "false"))


_COMPRESSIONS = ("producer", "uncompressed", *(str(codec) for codec in Compression if codec != Compression.NONE))
_TIMESTAMPS = ("CreateTime", "LogAppendTime")
_FOREVER = str(LONG_MAX)

#: The settings by name. The empty internal.segment.bytes stands for "not set": it is for tests, below the minimum of
#: segment.bytes.
CONFIGS = {
    "cleanup.policy": TopicConfig("delete", LIST, "log.cleanup.policy", choices=("compact", "delete")),
    "compression.gzip.level": TopicConfig("-1", INT, "compression.gzip.level", -1, 9),
    "compression.lz4.level": TopicConfig("9", INT, "compression.lz4.level", 1, 17),
    "compression.type": TopicConfig("producer", STRING, "compression.type", choices=_COMPRESSIONS),
    "compression.zstd.level": TopicConfig("3", INT, "compression.zstd.level", -131_072, 22),
    "delete.retention.ms": TopicConfig("86400000", LONG, "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": TopicConfig("60000", LONG, "log.segment.delete.delay.ms"),
    "flush.messages": TopicConfig(_FOREVER, LONG, "log.flush.interval.messages", 1),
    "flush.ms": TopicConfig(_FOREVER, LONG),
    "follower.replication.throttled.replicas": TopicConfig("", LIST),
    "index.interval.bytes": TopicConfig("4096", INT, "log.index.interval.bytes"),
    "internal.segment.bytes": TopicConfig("", INT, least=1),
    "leader.replication.throttled.replicas": TopicConfig("", LIST),
    "local.retention.bytes": TopicConfig("-2", LONG, "log.local.retention.bytes", -2),
    "local.retention.ms": TopicConfig("-2", LONG, "log.local.retention.ms", -2),
    "max.compaction.lag.ms": TopicConfig(_FOREVER, LONG, "log.cleaner.max.compaction.lag.ms", 1),
    "max.message.bytes": TopicConfig("1048588", INT, "message.max.bytes"),
    "message.timestamp.after.max.ms": TopicConfig("3600000", LONG, "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": TopicConfig(_FOREVER, LONG, "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": TopicConfig("CreateTime", STRING, "log.message.timestamp.type", choices=_TIMESTAMPS),
    "min.cleanable.dirty.ratio": TopicConfig("0.5", DOUBLE, "log.cleaner.min.cleanable.ratio", 0, 1),
    "min.compaction.lag.ms": TopicConfig("0", LONG, "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": TopicConfig("1", INT, "min.insync.replicas", 1),
    "preallocate": _boolean("log.preallocate"),
    "remote.log.copy.disable": _boolean(),
    "remote.log.delete.on.disable": _boolean(),
    "remote.storage.enable": _boolean(),
    "retention.bytes": TopicConfig("-1", LONG, "log.retention.bytes", -(1 << 63)),
    "retention.ms": TopicConfig("604800000", LONG, "log.retention.ms", -1),
    "segment.bytes": TopicConfig("1073741824", INT, "log.segment.bytes", 1 << 20),
    "segment.index.bytes": TopicConfig("10485760", INT, "log.index.size.max.bytes", 4),
    "segment.jitter.ms": TopicConfig("0", LONG),
    "segment.ms": TopicConfig("604800000", LONG, least=1),
    "unclean.leader.election.enable": _boolean("unclean.leader.election.enable"),
}


def items_of(value: str) -> list[str]:
    """Return the items of a list."""
    return [item.strip() for item in value.split(",") if item.strip()]


def check(name: str, value: str) -> None:
    """Raise ApiError (INVALID_CONFIG) if a setting does not exist, or if its value is invalid."""
    config = CONFIGS.get(name)
    if config is None:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    wrong, expected = value, ""
    if config.type in (INT, LONG, DOUBLE):
        least, most = config.least, config.most
        if most is None:
            most = INT_MAX if config.type == INT else LONG_MAX
        number = _number(value, config.type)
        if number is None and config.type != DOUBLE:
            expected = f"Not a number of type {'INT' if config.type == INT else 'LONG'}"
        elif number is None or not least <= number <= most or (name == "compression.gzip.level" and number == 0):
            expected = f"Value must be between {least} and {most}"
    elif config.choices:
        found = items_of(value) if config.type == LIST else [value.lower() if config.type == BOOLEAN else value]
        if config.type == LIST and value and len(found) < value.count(",") + 1:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Configuration '{name}' values must not be empty.")
        refused = [item for item in found if item not in config.choices]
        if refused:
            wrong, expected = refused[0], f"String must be one of: {', '.join(config.choices)}"
    if expected:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {wrong} for configuration {name}: {expected}")


def _number(value: str, kind: int) -> float | None:
    if kind == DOUBLE:
        try:
            return float(value)
        except ValueError:
            return None
    return int(value) if value.strip().removeprefix("-").isdecimal() else None
