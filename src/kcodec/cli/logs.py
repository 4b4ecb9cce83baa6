# SPDX-License-Identifier: Apache-2.0
"""The logs that a path on the command line means, and the range of offsets to read of each."""

from __future__ import annotations

import argparse
from pathlib import Path

import kcodec
from kcodec.cli.formats import Offsets
from kcodec.cli.parser import CommandError, nearest
from kcodec.log import Log
from kcodec.log.opening import PARTITION_DIRECTORY

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Which log, and what of it: the options of every command that reads records."""
    parser.add_argument("-t", "--topic", help="of a log directory: this topic")
    parser.add_argument("-p", "--partition", type=int, metavar="N", help="this partition (default: all of the topic)")
    parser.add_argument("--read-committed", action="store_true", help="leave out what is aborted or not yet committed")
    parser.add_argument("--control", action="store_true", help="control records, too")
    parser.add_argument(
        "--on-error",
        choices=("raise", "stop", "skip"),
        default="raise",
        help="at damage: end with exit status 1 (raise, stop), or go on behind the damaged batch (skip)",
    )


def isolation_of(options: argparse.Namespace) -> str:
    """The isolation level that the options ask for."""
    return READ_COMMITTED if options.read_committed else READ_UNCOMMITTED


def logs_at(path: Path, topic: str | None, partition: int | None) -> list[Log]:
    """The logs at a path: of a partition directory or segment the one, of a log directory those of a topic."""
    partitions = _partitions_in(path) if path.is_dir() and not any(path.glob("*.log")) else {}
    if not partitions:
        return [kcodec.open(path, topic=topic, partition=partition)]
    topics = sorted({name for name, _ in partitions})
    if topic is None:
        raise CommandError(f"{path} is a log directory: name a topic with -t, for example -t {topics[0]}")
    if topic not in topics:
        raise CommandError(f"{path}: unknown topic {topic!r}{nearest(topic, topics)}")
    numbers = sorted(number for name, number in partitions if name == topic)
    if partition is not None and partition not in numbers:
        raise CommandError(
            f"{path}: topic {topic} has no partition {partition} here; possible: {', '.join(map(str, numbers))}"
        )
    return [kcodec.open(partitions[topic, number]) for number in numbers if partition in (None, number)]


def _partitions_in(path: Path) -> dict[tuple[str, int], Path]:
    named = ((PARTITION_DIRECTORY.fullmatch(entry.name), entry) for entry in path.iterdir() if entry.is_dir())
    return {(match[1], int(match[2])): entry for match, entry in named if match and any(entry.glob("*.log"))}


def range_of(log: Log, offsets: Offsets, isolation_level: str) -> tuple[int | None, int | None]:
    """The range [start, end) that the -o options mean in this log; None: to its own bounds."""
    start, end = offsets.start, None
    if offsets.from_end or offsets.last is not None:
        limit = log.last_stable_offset if isolation_level == READ_COMMITTED else log.high_watermark
        start = max(log.log_start_offset, limit - (offsets.last or 0))
    if offsets.start_timestamp is not None:
        found = log.offset_for_timestamp(offsets.start_timestamp)
        start = log.log_end_offset if found is None else found
    if offsets.end_timestamp is not None:
        end = log.offset_for_timestamp(offsets.end_timestamp)
    return start, end
