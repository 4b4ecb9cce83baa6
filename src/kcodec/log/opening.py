# SPDX-License-Identifier: Apache-2.0
"""Opening a log by the path of a segment or a partition directory.

If a broker died while the log cleaner was running, not every file is a segment. The cleaner writes new segments as
``.cleaned``, renames them all to ``.swap``, from the highest base offset down, renames the segments they replace to
``.deleted``, and removes the suffix ``.swap``, from the lowest up. This module reads the segments that a broker has
after it starts with such a directory (LogLoader); it renames and deletes nothing:

- ``.cleaned`` and ``.deleted`` are ignored;
- a ``.swap`` at or above the lowest ``.cleaned`` is ignored, as not all files of its group had been renamed;
- any other ``.swap`` is a segment, and segments from the lowest of these to the end of the highest are ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from kcodec._fast import CHECK_CRCS, checks_crcs
from kcodec.constants import CLUSTER_METADATA_TOPIC
from kcodec.errors import DecodeError
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.partition import Log
from kcodec.log.segment import SEGMENT_NAME, Segment, is_last_segment, overlap, walk_headers
from kcodec.log.storage import Entry, FileObject, Storage, storage_at
from kcodec.quantities import count_text

# What `path` may be: a path or address, or an object with seek and read, or with read_at(position, size).
Source = str | os.PathLike[str] | Any

# Topic names are limited to these letters (Topic.validate); what follows the last hyphen is the partition.
PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,9})")
# Snapshots of the metadata log: next to its segments, and bootstrap.checkpoint in the log directory.
CHECKPOINT_SUFFIX = ".checkpoint"
CLUSTER_METADATA = (CLUSTER_METADATA_TOPIC, 0)
CLEANED_NAME = re.compile(r"(\d{20})\..+\.cleaned")
SWAP_NAME = re.compile(r"(\d{20})\.log\.swap")


def open_segment(
    path: Source,
    *,
    filesystem: Any = None,
    topic: str | None = None,
    partition: int | None = None,
    high_watermark: int | None = None,
    check_crcs: bool = CHECK_CRCS,
    limits: DecodeLimits = DEFAULT_LIMITS,
    verify_crc: bool | None = None,
) -> Log:
    """Open one ``.log`` file alone, with the arguments of open(). A transaction whose marker is in another segment has
    no known outcome.

    The segment counts as active, so that a torn tail ends it, unless the directory has a later segment. A
    ``.checkpoint`` snapshot of the cluster's metadata is read in the same way; it is written as a whole, so that a torn
    tail is corruption.
    """
    check_crcs = checks_crcs(check_crcs, verify_crc)
    storage, file = storage_at(path, filesystem)
    is_object = isinstance(storage, FileObject)
    if not storage.is_file(file):
        raise FileNotFoundError(f"{file}: no such file")
    name, directory = storage.name(file), storage.parent(file)
    is_checkpoint = not is_object and name.endswith(CHECKPOINT_SUFFIX)
    if not is_object and not is_checkpoint and not name.endswith(".log"):
        raise ValueError(f"{file}: the file is not a segment (.log); indexes and snapshots contain no records")
    named = SEGMENT_NAME.fullmatch(name)
    is_active = is_object or (not is_checkpoint and is_last_segment(file, storage))
    segment = Segment(file, int(named[1]) if named else None, is_active, storage)
    from_name = _partition_of(storage, directory)
    if from_name is not None and (named or (topic is None and partition is None)):
        topic, partition = from_name
    if is_checkpoint and topic is None:
        topic, partition = CLUSTER_METADATA
    place: Any = {"topic": topic, "partition": partition}
    return Log(file, [segment], **place, high_watermark=high_watermark, check_crcs=check_crcs, limits=limits)


def open_partition(
    path: Source,
    *,
    filesystem: Any = None,
    topic: str | None = None,
    partition: int | None = None,
    high_watermark: int | None = None,
    check_crcs: bool = CHECK_CRCS,
    limits: DecodeLimits = DEFAULT_LIMITS,
    verify_crc: bool | None = None,
) -> Log:
    """Open a partition directory: its segments in order of offsets, of which the last is active.

    The arguments are those of open().

    If the log cleaner was interrupted, the segments are those that a broker has after it starts: a ``.swap`` replaces
    other segments, ``.cleaned`` and ``.deleted`` are ignored. Raise DecodeError if the offsets of segments overlap.
    """
    storage, directory = storage_at(path, filesystem)
    if not storage.is_directory(directory):
        raise FileNotFoundError(f"{directory}: no such directory")
    check_crcs = checks_crcs(check_crcs, verify_crc)
    options: Any = {"high_watermark": high_watermark, "check_crcs": check_crcs, "limits": limits}
    log = partition_at(storage, directory, topic, partition, **options)
    if log is None:
        raise _nothing_in(storage, directory)
    return log


def partition_at(
    storage: Storage, directory: str, topic: str | None, partition: int | None, *, limits: DecodeLimits, **options: Any
) -> Log | None:
    """Return the log of a partition directory; None if it has no segment. options: those of Log."""
    found = segments_at_start(storage, directory, limits)
    if not found:
        return None
    last = found[-1][0]
    segments = [Segment(storage.join(directory, name), base, base == last, storage) for base, name in found]
    topic, partition = _partition_of(storage, directory) or (topic, partition)
    return Log(directory, segments, topic=topic, partition=partition, limits=limits, **options)


def _partition_of(storage: Storage, directory: str) -> tuple[str, int] | None:
    """Return topic and partition according to the name of a directory."""
    match = PARTITION_DIRECTORY.fullmatch(storage.name(directory))
    return (match[1], int(match[2])) if match else None


def _nothing_in(storage: Storage, directory: str) -> Exception:
    inside = (storage.join(directory, entry.name) for entry in storage.list(directory) if entry.is_directory)
    partitions = sorted(path for path in inside if has_segments(storage.list(path)))
    if partitions:
        return ValueError(
            f"{directory} is a log directory of {count_text(len(partitions), 'partition')}: kcodec.open opens it, "
            f"open_partition one of them, {partitions[0]} for example"
        )
    return FileNotFoundError(f"{directory}: the directory has no segment (20 digits and .log)")


class SegmentName(NamedTuple):
    """A segment by its base offset, and the name of its file."""

    base_offset: int
    name: str


def has_segments(entries: Iterable[Entry]) -> bool:
    """Return whether any file of a directory is a segment, or will become one."""
    files = (entry.name for entry in entries if not entry.is_directory)
    return any(SEGMENT_NAME.fullmatch(name) or SWAP_NAME.fullmatch(name) for name in files)


def _files(storage: Storage, directory: str) -> list[str]:
    return [entry.name for entry in storage.list(directory) if not entry.is_directory]


def segments_at_start(storage: Storage, directory: str, limits: DecodeLimits) -> list[SegmentName]:
    """Return the segments that a broker has after its start, in order.

    Headers are read only if a ``.swap`` exists. Raise DecodeError if a header cannot be read, or if the offsets of the
    segments overlap.
    """
    files = _files(storage, directory)
    segments, swaps = _named(SEGMENT_NAME, files), _named(SWAP_NAME, files)
    least_cleaned = min((base for base, _ in _named(CLEANED_NAME, files)), default=None)
    if least_cleaned is not None:
        swaps = [swap for swap in swaps if swap.base_offset < least_cleaned]
    if not swaps:
        return segments
    start = swaps[0].base_offset
    ends = {swap: _next_offset(storage, directory, swap, limits) for swap in swaps}
    end = max(ends.values())
    replacing = {swap.base_offset for swap in swaps}
    kept = (one for one in segments if one.base_offset not in replacing and not start <= one.base_offset < end)
    found = sorted([*kept, *swaps])
    for before, behind in pairwise(found):
        if before in ends or behind in ends:
            reach = ends[before] if before in ends else _next_offset(storage, directory, before, limits)
            if reach > behind.base_offset:
                reason = overlap(before.name, reach - 1, behind.base_offset)
                raise DecodeError(reason, path=storage.join(directory, behind.name))
    return found


def _named(pattern: re.Pattern[str], files: list[str]) -> list[SegmentName]:
    matches = (pattern.fullmatch(name) for name in files)
    return sorted(SegmentName(int(match[1]), match[0]) for match in matches if match)


def _next_offset(storage: Storage, directory: str, named: SegmentName, limits: DecodeLimits) -> int:
    """Return the offset after the last complete batch of a segment (LogSegment.readNextOffset), or its base offset if
    it has none."""
    segment = Segment(storage.join(directory, named.name), named.base_offset, False, storage)
    behind = named.base_offset
    with segment.open() as file:
        for batch in walk_headers(file, 0, file.size(), limits):
            behind = batch.next_offset
    return behind
