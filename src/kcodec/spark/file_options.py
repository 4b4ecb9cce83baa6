# SPDX-License-Identifier: Apache-2.0
"""The options of ``spark.read.format("kcodec")``, parsed and checked before anything is read.

If Spark's own Kafka source (``KafkaSourceProvider``) has an option, the name and the meaning are the same. Names are
case-insensitive, as everywhere in Spark. An unknown option raises an error, and so does an option of Spark's source
that has no meaning for files. Ignoring such an option could give a wrong result.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kcodec.arguments import take_renamed
from kcodec.constants import IsolationLevel
from kcodec.limits import DEFAULT_LIMITS, DEFAULT_MAX_BATCH_BYTES, DEFAULT_MAX_DECOMPRESSED_BYTES, DecodeLimits
from kcodec.spark.columns import suggestion
from kcodec.spark.offset_options import OffsetLimit, parse_flag, parse_offset_limit
from kcodec.spark.trigger_limits import LIMIT_OPTIONS

logger = logging.getLogger("kcodec.spark")
DEFAULT_SPLIT_BYTES = 128 << 20

OUR_OPTIONS = (
    *("path", "paths", "includeHeaders", "includeBatchMeta", "startingOffsets", "endingOffsets", "startingTimestamp"),
    *("endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "kafka.isolation.level", "minPartitions", "mode", "pushdown", "topic"),
    *("partition", "splitBytes", "checkCrcs", "maxBatchBytes", "maxDecompressedBytes"),
)
# Deprecated name -> option.
RENAMED = {"verifyCrc": "checkCrcs"}
BY_FOLDED_NAME = {name.lower(): name for name in (*OUR_OPTIONS, *RENAMED)}
NO_BROKER = "the query reads files and uses no Kafka client"
# Options of Spark's own source that have no meaning for files, with the reason. Those that name a cluster or topics are
# not among them: with one of these, a broker is read (source.py).
FOREIGN_OPTIONS = {
    "kafka.group.id": NO_BROKER,
    "groupIdPrefix": NO_BROKER,
    "failOnDataLoss": "offsets that are not in the files always fail the read, and corruption fails the task unless "
    "mode=permissive",
    "kafkaConsumer.pollTimeoutMs": NO_BROKER,
    "fetchOffset.numRetries": NO_BROKER,
    "fetchOffset.retryIntervalMs": NO_BROKER,
    "maxRecordsPerPartition": "files are split at batch boundaries: use minPartitions or splitBytes",
}
# Options of a streaming read: a batch read of Spark's own source accepts them with a warning.
STREAM_BY_FOLDED_NAME = {name.lower(): name for name in LIMIT_OPTIONS}
FOREIGN_BY_FOLDED_NAME = {name.lower(): name for name in FOREIGN_OPTIONS}


@dataclass(frozen=True)
class SourceOptions:
    """All options of one read, as plain values. Pickles."""

    paths: tuple[str, ...]
    starting: OffsetLimit
    ending: OffsetLimit
    include_headers: bool = False
    include_batch_meta: bool = False
    isolation_level: str = "read_uncommitted"
    min_partitions: int = 1
    on_error: str = "raise"
    topic: str | None = None
    partition: int | None = None
    split_bytes: int = DEFAULT_SPLIT_BYTES
    check_crcs: bool = True
    limits: DecodeLimits = DEFAULT_LIMITS


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options of a read. Raise ValueError if an option is unknown, invalid, or has no meaning for files."""
    options = dict(_known(given))
    for old, new in RENAMED.items():
        take_renamed(options, old, new)
    return SourceOptions(
        paths=_paths(options),
        starting=_limit(options, "starting"),
        ending=_limit(options, "ending"),
        include_headers=parse_flag(options, "includeHeaders", False),
        include_batch_meta=parse_flag(options, "includeBatchMeta", False),
        isolation_level=_choice(options, "kafka.isolation.level", [level.label for level in IsolationLevel]),
        min_partitions=_integer(options, "minPartitions", 1, least=1),
        on_error="skip" if _choice(options, "mode", ["failfast", "permissive"]) == "permissive" else "raise",
        topic=options.get("topic"),
        partition=_integer(options, "partition", -1, least=0) if "partition" in options else None,
        split_bytes=_integer(options, "splitBytes", DEFAULT_SPLIT_BYTES, least=1),
        check_crcs=parse_flag(options, "checkCrcs", True),
        limits=DecodeLimits(
            max_batch_bytes=_integer(options, "maxBatchBytes", DEFAULT_MAX_BATCH_BYTES, least=61),
            max_decompressed_bytes=_integer(options, "maxDecompressedBytes", DEFAULT_MAX_DECOMPRESSED_BYTES, least=61),
        ),
    )


#: Spark passes no option of a table to a writer.
TABLES_ARE_READ = (
    'a table of kcodec can only be read; to write to a topic, use df.write.format("kcodec").mode("append") with the '
    "options kafka.bootstrap.servers and topic"
)


def is_table(given: Mapping[str, str]) -> bool:
    """Return whether these are properties of a table (``CREATE TABLE ... USING kcodec``), and not options of a read."""
    return "owner" in given and "provider" in given


def options_of_table(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the OPTIONS of a table, and its LOCATION as the path.

    Spark passes each option with and without ``option.`` before its name, among properties like owner, provider,
    location, comment and TBLPROPERTIES.
    """
    prefix = "option."
    options = {name.removeprefix(prefix): value for name, value in properties.items() if name.startswith(prefix)}
    path = properties.get("path", properties.get("location"))
    given_sources = {name.lower() for name in options} & {"paths", "kafka.bootstrap.servers"}
    return options if path is None or given_sources else {**options, "path": path}


def _known(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the options in our spelling; ValueError for any that is not ours."""
    for name, value in given.items():
        folded = name.lower()
        if folded in BY_FOLDED_NAME:
            yield BY_FOLDED_NAME[folded], value
        elif folded in STREAM_BY_FOLDED_NAME:
            logger.warning("option %s is ignored in batch queries", STREAM_BY_FOLDED_NAME[folded])
        elif folded in FOREIGN_BY_FOLDED_NAME:
            foreign = FOREIGN_BY_FOLDED_NAME[folded]
            reason = FOREIGN_OPTIONS[foreign]
            raise ValueError(f"option {foreign!r} of Spark's Kafka source has no meaning here: {reason}")
        elif folded.startswith("kafka."):
            hint = suggestion(name, ["kafka.isolation.level"])
            raise ValueError(f"option {name!r} has no meaning here: {NO_BROKER}{hint}")
        else:
            raise ValueError(f"unknown option {name!r}{suggestion(name, OUR_OPTIONS)}")


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return what load() was given: one path, or several as Spark hands them over, a JSON list."""
    several = json.loads(options["paths"]) if "paths" in options else []
    paths = (*([options["path"]] if "path" in options else []), *several)
    if not paths:
        raise ValueError("no path is given: option 'paths' is an empty list")
    return paths


def _wrong(option: str, value: str, expected: str) -> ValueError:
    return ValueError(f"option {option!r} is {value!r}: expected {expected}")


def _integer(options: Mapping[str, str], option: str, default: int, *, least: int) -> int:
    value = options.get(option)
    if value is None:
        return default
    expected = f"a whole number of at least {least}"
    try:
        number = int(value)
    except ValueError:
        raise _wrong(option, value, expected) from None
    if number < least:
        raise _wrong(option, value, expected)
    return number


def _choice(options: Mapping[str, str], option: str, choices: list[str]) -> str:
    """Return one of `choices`, whatever its case; the first is the default."""
    value = options.get(option, choices[0]).lower()
    if value not in choices:
        raise _wrong(option, value, f"{' or '.join(choices)}{suggestion(value, choices)}")
    return value


def _limit(options: Mapping[str, str], side: str) -> OffsetLimit:
    """Return where a read starts or ends. For files, the timestamp of all partitions must not be negative."""
    limit = parse_offset_limit(options, side)
    if limit.timestamp is not None and limit.timestamp < 0:
        raise _wrong(limit.option, options[limit.option], "milliseconds since 1970, as a whole number of at least 0")
    return limit
