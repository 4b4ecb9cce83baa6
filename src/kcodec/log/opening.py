# SPDX-License-Identifier: Apache-2.0
"""From a path to the log that lies there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.partition import Log
from kcodec.log.segment import SEGMENT_NAME, Segment

# Topic names are limited to these letters (Topic.validate); what follows the last hyphen is the partition.
PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,9})")


def open(  # noqa: A001  the public name is kcodec.open
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    partition: int | None = None,
    high_watermark: int | None = None,
    verify_crc: bool = True,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> Log:
    """The log at `path`: a ``.log`` file, settled by itself, or a partition directory with all its segments.

    topic, partition: where the directory's name (``orders-0``) does not tell. high_watermark: records from it on do not
    count; without it all do. FileNotFoundError if nothing is there; ValueError for a file or directory that is no log.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp(), "orders-0")
    >>> folder.mkdir()
    >>> (folder / "00000000000000000042.log").write_bytes(b"")
    0
    >>> log = open(folder)
    >>> log.topic, log.partition, log.log_start_offset, log.log_end_offset, log.tail, list(log.records())
    ('orders', 0, 42, 42, None, [])
    """
    opener = open_partition if Path(path).is_dir() else open_segment
    return opener(
        path,
        topic=topic,
        partition=partition,
        high_watermark=high_watermark,
        verify_crc=verify_crc,
        limits=limits,
    )


def open_segment(
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    partition: int | None = None,
    high_watermark: int | None = None,
    verify_crc: bool = True,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> Log:
    """One ``.log`` file by itself: a transaction whose marker lies in another segment is undecided.

    It counts as active, so that a torn tail ends it, unless a later segment lies beside it.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"{file}: no such file")
    if file.suffix != ".log":
        raise ValueError(f"{file}: not a segment: segments are named .log; its indexes and snapshots hold no records")
    named = SEGMENT_NAME.fullmatch(file.name)
    is_active = not named or all(base <= int(named[1]) for base, _ in _segments_of(file.absolute().parent))
    segment = Segment(str(file), int(named[1]) if named else None, is_active)
    told = _partition_of(file.absolute().parent)
    if told is not None and (named or (topic is None and partition is None)):
        topic, partition = told
    return Log(
        str(file),
        [segment],
        topic=topic,
        partition=partition,
        high_watermark=high_watermark,
        verify_crc=verify_crc,
        limits=limits,
    )


def open_partition(
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    partition: int | None = None,
    high_watermark: int | None = None,
    verify_crc: bool = True,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> Log:
    """A partition directory: its segments in order of offsets, the last one active.

    Files that the cleaner has not finished (``.cleaned``, ``.swap``) and those on their way out (``.deleted``) are no
    part of it.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: no such directory")
    found = _segments_of(directory)
    if not found:
        raise _nothing_in(directory)
    segments = [Segment(str(file), base, file is found[-1][1]) for base, file in found]
    told = _partition_of(directory.absolute())
    if told is not None:
        topic, partition = told
    return Log(
        str(directory),
        segments,
        topic=topic,
        partition=partition,
        high_watermark=high_watermark,
        verify_crc=verify_crc,
        limits=limits,
    )


def _segments_of(directory: Path) -> list[tuple[int, Path]]:
    """(base offset, file) of every segment in a directory, in order."""
    named = ((SEGMENT_NAME.fullmatch(file.name), file) for file in directory.iterdir())
    return sorted((int(match[1]), file) for match, file in named if match and file.is_file())


def _partition_of(directory: Path) -> tuple[str, int] | None:
    """Topic and partition as a directory's name tells them."""
    match = PARTITION_DIRECTORY.fullmatch(directory.name)
    return (match[1], int(match[2])) if match else None


def _nothing_in(directory: Path) -> Exception:
    partitions = sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and _segments_of(entry))
    if partitions:
        return ValueError(
            f"{directory} is a log directory of {len(partitions)} partitions, and one partition is opened at a time: "
            f"open {directory / partitions[0]}, for example"
        )
    return FileNotFoundError(f"{directory}: no segment is there (20 digits and .log, as Kafka names them)")
