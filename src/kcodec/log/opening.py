# SPDX-License-Identifier: Apache-2.0
"""Opening a log by the path of a segment or a partition directory."""

from __future__ import annotations

import os
import re
from typing import Any

from kcodec._fast import CHECK_CRCS, checks_crcs
from kcodec.constants import CLUSTER_METADATA_TOPIC
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.partition import Log
from kcodec.log.segment import SEGMENT_NAME, Segment, is_last_segment
from kcodec.log.storage import FileObject, Storage, storage_at
from kcodec.log.swaps import has_segments, listed_segments
from kcodec.quantities import count_text

# What `path` may be: a path or address, or an object with seek and read, or with read_at(position, size).
Source = str | os.PathLike[str] | Any

# Topic names are limited to these letters (Topic.validate); what follows the last hyphen is the partition.
PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,9})")
# Snapshots of the metadata log: next to its segments, and bootstrap.checkpoint in the log directory.
CHECKPOINT_SUFFIX = ".checkpoint"
CLUSTER_METADATA = (CLUSTER_METADATA_TOPIC, 0)


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
    entry = storage.entry(file)
    if entry is None or entry.is_directory:
        raise FileNotFoundError(f"{file}: no such file")
    name, directory = storage.name(file), storage.parent(file)
    is_checkpoint = not is_object and name.endswith(CHECKPOINT_SUFFIX)
    if not is_object and not is_checkpoint and not name.endswith(".log"):
        raise ValueError(f"{file}: the file is not a segment (.log); indexes and snapshots contain no records")
    named = SEGMENT_NAME.fullmatch(name)
    is_active = is_object or (not is_checkpoint and is_last_segment(file, storage))
    segment = Segment(file, int(named[1]) if named else None, is_active, storage, entry.version)
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
    segments = listed_segments(storage, directory, limits)
    if not segments:
        return None
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
