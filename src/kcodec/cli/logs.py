# SPDX-License-Identifier: Apache-2.0
"""The logs that a path on the command line selects, and the range of offsets to read from each."""

from __future__ import annotations

import argparse

import kcodec
from kcodec.cli.formats import Offsets
from kcodec.cli.parser import CommandError, nearest
from kcodec.errors import DecodeError
from kcodec.log import Chunks, Log, LogDirectory
from kcodec.log.salvage import Loss

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that reads records: which log, and which records."""
    parser.add_argument("-t", "--topic", help="topic of a log directory")
    parser.add_argument("-p", "--partition", type=int, metavar="N", help="the partition (default: all)")
    parser.add_argument("--read-committed", action="store_true", help="leave out aborted and open transactions")
    parser.add_argument("--control", action="store_true", help="include control records")
    text = "fail (raise), end after the records before it (stop, for files), or continue after it (skip); exit status 1"
    add_on_error(parser, ("raise", "stop", "skip"), text)


def add_on_error(parser: argparse.ArgumentParser, choices: tuple[str, ...], text: str) -> None:
    """Add the option --on-error."""
    parser.add_argument("--on-error", choices=choices, default="raise", help=f"at a corrupt batch: {text}")


def isolation_of(options: argparse.Namespace) -> str:
    """Return the isolation level of the options."""
    return READ_COMMITTED if options.read_committed else READ_UNCOMMITTED


def logs_at(path: str, topic: str | None, partition: int | None) -> list[Log]:
    """Return the logs at a path: the log of a partition directory or segment, or the logs of a topic in a log
    directory."""
    found = kcodec.open(path)
    if not isinstance(found, LogDirectory):
        return [found if topic is None and partition is None else _named(path, topic, partition)]
    if topic is None:
        raise CommandError(
            f"{path} is a log directory: name a topic with -t, for example -t {next(iter(found.topics))}"
        )
    if topic not in found.topics:
        raise CommandError(f"{path}: unknown topic {topic!r}{nearest(topic, found.topics)}")
    numbers = found.topics[topic]
    if partition is not None and partition not in numbers:
        possible = ", ".join(map(str, numbers))
        raise CommandError(f"{path}: topic {topic} has no partition {partition} here; possible: {possible}")
    return [found[topic, number] for number in numbers if partition in (None, number)]


def lost_batch(log: Log) -> DecodeError | None:
    """Return the error of a complete last batch with a wrong CRC, None if there is no such batch.

    Readers leave the batch out without an error, because a broker that starts after a crash truncates it. If it was
    corrupted later, however, it has records that consumers could read before.
    """
    try:
        tail = log.tail
    except DecodeError:
        return None  # of another batch, which the reader has reported
    if tail is None or not tail.has_wrong_crc:
        return None
    return DecodeError(f"{tail.reason}; its records are left out", position=tail.position, path=log.segments[-1].path)


def skipped_data(chunks: Chunks) -> list[DecodeError | Loss]:
    """Return what to report about corruption that was skipped or that ended reading: the first error, and all other
    losses."""
    error = chunks.error
    if error is None:
        return []
    place = error.path, error.position
    return [error, *(loss for loss in chunks.losses if (loss.path, loss.position) != place)]


def _named(path: str, topic: str | None, partition: int | None) -> Log:
    """Return a log with the given topic and partition. Raise CommandError if its path names others."""
    opened = kcodec.open(path, topic=topic, partition=partition)
    if isinstance(opened, LogDirectory):
        raise CommandError(f"{path} became a log directory while it was opened; run the command again")
    if topic in (None, opened.topic) and partition in (None, opened.partition):
        return opened
    wanted = [] if partition is None else [f"partition {partition}"]
    wanted += [] if topic is None else [f"topic {topic}" if partition is None else f"of {topic}"]
    raise CommandError(
        f"{path}: this is partition {opened.partition} of {opened.topic}, not {' '.join(wanted)}; omit -t and -p, or "
        "name another directory"
    )


def range_of(
    log: Log, offsets: Offsets, isolation_level: str, on_error: str = "raise"
) -> tuple[int | None, int | None]:
    """Return the range [start, end) that the -o options select in this log. None stands for the bounds of the log."""
    start, end = offsets.start, None
    if offsets.from_end or offsets.last is not None:
        start = max(log.log_start_offset, log.end_offset(isolation_level, on_error) - (offsets.last or 0))
    if offsets.start_timestamp is not None:
        found = log.offset_for_timestamp(offsets.start_timestamp, on_error=on_error)
        start = log.end_offset(on_error=on_error) if found is None else found
    if offsets.end_timestamp is not None:
        end = log.offset_for_timestamp(offsets.end_timestamp, on_error=on_error)
    return start, end
