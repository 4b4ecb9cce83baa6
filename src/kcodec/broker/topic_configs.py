# SPDX-License-Identifier: Apache-2.0
"""The settings of topics: Kafka's names, defaults and ranges (LogConfig, TopicConfig)."""

from __future__ import annotations

from kcodec.broker.api import ApiError
from kcodec.constants import Compression
from kcodec.protocol.error_codes import ErrorCode

_LONG_MAX = str((1 << 63) - 1)

#: Kafka's defaults. The empty internal.segment.bytes stands for "not set": it is for tests, below the minimum of
#: segment.bytes.
DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": _LONG_MAX,
    "flush.ms": _LONG_MAX,
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "internal.segment.bytes": "",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": _LONG_MAX,
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": _LONG_MAX,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}

#: The least and the greatest value of the settings that are numbers.
RANGES: dict[str, tuple[int, int]] = {
    "compression.gzip.level": (-1, 9),
    "compression.lz4.level": (1, 17),
    "compression.zstd.level": (-131_072, 22),
    "delete.retention.ms": (0, (1 << 63) - 1),
    "file.delete.delay.ms": (0, (1 << 63) - 1),
    "flush.messages": (1, (1 << 63) - 1),
    "flush.ms": (0, (1 << 63) - 1),
    "index.interval.bytes": (0, (1 << 31) - 1),
    "internal.segment.bytes": (1, (1 << 31) - 1),
    "local.retention.bytes": (-2, (1 << 63) - 1),
    "local.retention.ms": (-2, (1 << 63) - 1),
    "max.compaction.lag.ms": (1, (1 << 63) - 1),
    "max.message.bytes": (0, (1 << 31) - 1),
    "message.timestamp.after.max.ms": (0, (1 << 63) - 1),
    "message.timestamp.before.max.ms": (0, (1 << 63) - 1),
    "min.compaction.lag.ms": (0, (1 << 63) - 1),
    "min.insync.replicas": (1, (1 << 31) - 1),
    "retention.bytes": (-(1 << 63), (1 << 63) - 1),
    "retention.ms": (-1, (1 << 63) - 1),
    "segment.bytes": (1 << 20, (1 << 31) - 1),
    "segment.index.bytes": (4, (1 << 31) - 1),
    "segment.jitter.ms": (0, (1 << 63) - 1),
    "segment.ms": (1, (1 << 63) - 1),
}

_COMPRESSIONS = ("producer", "uncompressed", *(str(codec) for codec in Compression if codec != Compression.NONE))
CHOICES: dict[str, tuple[str, ...]] = {
    "compression.type": _COMPRESSIONS,
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "preallocate": ("true", "false"),
    "remote.log.copy.disable": ("true", "false"),
    "remote.log.delete.on.disable": ("true", "false"),
    "remote.storage.enable": ("true", "false"),
    "unclean.leader.election.enable": ("true", "false"),
}


def check(name: str, value: str) -> None:
    """Raise ApiError with INVALID_CONFIG for a setting that does not exist, or a value that it cannot have."""
    if name not in DEFAULTS:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if name in RANGES:
        least, most = RANGES[name]
        if not value.strip().removeprefix("-").isdecimal():
            expected = f"Not a number of type {'LONG' if most >> 31 else 'INT'}"
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {expected}")
        if not least <= int(value) <= most or (name == "compression.gzip.level" and int(value) == 0):
            expected = f"Value must be between {least} and {most}"
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {expected}")
    elif name == "min.cleanable.dirty.ratio":
        try:
            is_ratio = 0 <= float(value) <= 1
        except ValueError:
            is_ratio = False
        if not is_ratio:
            expected = "Value must be between 0 and 1"
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {expected}")
    elif name == "cleanup.policy":
        found = [policy.strip() for policy in value.split(",") if policy.strip()]
        wrong = next((policy for policy in found if policy not in ("delete", "compact")), None)
        if wrong is not None:
            expected = "String must be one of: compact, delete"
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {wrong} for configuration {name}: {expected}")
    elif name in CHOICES and value not in CHOICES[name]:
        expected = f"String must be one of: {', '.join(CHOICES[name])}"
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {expected}")
