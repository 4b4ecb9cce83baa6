# SPDX-License-Identifier: Apache-2.0
"""From a path to the log that lies there."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from kcodec._fast import CHECK_CRCS, checks_crcs
from kcodec.constants import CLUSTER_METADATA_TOPIC
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.partition import Log
from kcodec.log.segment import SEGMENT_NAME, Segment
from kcodec.log.siblings import has_segments, segment_names, segments_at_start
from kcodec.log.storage import FileObject, Storage, storage_at

if TYPE_CHECKING:
    from kcodec.log.directory import LogDirectory

# What `path` may be: a path or address, or an object with seek and read, or with read_at(position, size).
Source = str | os.PathLike[str] | Any

# Topic names are limited to these letters (Topic.validate); what follows the last hyphen is the partition.
PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,9})")
# Snapshots of the metadata log: beside its segments, and bootstrap.checkpoint in the log directory.
CHECKPOINT_SUFFIX = ".checkpoint"
CLUSTER_METADATA = (CLUSTER_METADATA_TOPIC, 0)


def open(  # noqa: A001  the public name is kcodec.open
    path: Source,
    *,
    filesystem: Any = None,
    topic: str | None = None,
    partition: int | None = None,
    high_watermark: int | None = None,
    check_crcs: bool = CHECK_CRCS,
    limits: DecodeLimits = DEFAULT_LIMITS,
    verify_crc: bool | None = None,
) -> Log | LogDirectory:
    """The log at `path`: a ``.log`` file, settled by itself, or a partition directory with all its segments; or a
    LogDirectory, if it is one of partitions. open_segment, open_partition and open_log_directory open one of them only.

    path: of this machine, or in `filesystem`, an object of pyarrow.fs or fsspec; or an address like
    ``s3://bucket/orders-0``, which pyarrow resolves; or one segment as an object with ``seek`` and ``read``, or with
    ``read_at(position, size)`` and ``size``. All are read by ranges, never whole.
    topic, partition: where the directory's name (``orders-0``) does not tell. high_watermark: records from it on do not
    count; without it all do. All three are for one partition: ValueError with a log directory.
    check_crcs: verify the CRC of each batch that is read; verify_crc is its deprecated name.

    FileNotFoundError if nothing is there; ValueError for a file or directory that is no log; TypeError for an object
    that is no file or filesystem; OSError, naming path and bytes, for a read that fails.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp(), "orders-0")
    >>> folder.mkdir()
    >>> (folder / "00000000000000000042.log").write_bytes(b"")
    0
    >>> log = open(folder)
    >>> log.topic, log.partition, log.log_start_offset, log.log_end_offset, log.tail, list(log.records())
    ('orders', 0, 42, 42, None, [])
    """
    check_crcs = checks_crcs(check_crcs, verify_crc)
    storage, place = storage_at(path, filesystem)
    for_one: dict[str, Any] = {"topic": topic, "partition": partition, "high_watermark": high_watermark}
    if not storage.is_directory(place):
        return open_segment(place, filesystem=storage, check_crcs=check_crcs, limits=limits, **for_one)
    log = _partition_at(storage, place, check_crcs=check_crcs, limits=limits, **for_one)
    if log is not None:
        return log
    from kcodec.log.directory import open_log_directory

    directory = open_log_directory(place, filesystem=storage, check_crcs=check_crcs, limits=limits)
    given = [name for name, value in for_one.items() if value is not None]
    if given:
        raise ValueError(f"{place} is a log directory: {', '.join(given)} is for one partition (open_partition)")
    return directory


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
    """One ``.log`` file by itself: a transaction whose marker lies in another segment is undecided.

    It counts as active, so that a torn tail ends it, unless a later segment lies beside it. A ``.checkpoint`` snapshot
    of the cluster's metadata is read in the same way; it is written whole, so a torn tail is damage.
    """
    check_crcs = checks_crcs(check_crcs, verify_crc)
    storage, file = storage_at(path, filesystem)
    is_object = isinstance(storage, FileObject)
    if not storage.is_file(file):
        raise FileNotFoundError(f"{file}: no such file")
    name, directory = storage.name(file), storage.parent(file)
    is_checkpoint = not is_object and name.endswith(CHECKPOINT_SUFFIX)
    if not is_object and not is_checkpoint and not name.endswith(".log"):
        raise ValueError(f"{file}: not a segment: segments are named .log; its indexes and snapshots hold no records")
    named = SEGMENT_NAME.fullmatch(name)
    is_active = is_object or (not is_checkpoint and (not named or _is_last(storage, directory, int(named[1]))))
    segment = Segment(file, int(named[1]) if named else None, is_active, storage)
    told = _partition_of(storage, directory)
    if told is not None and (named or (topic is None and partition is None)):
        topic, partition = told
    if is_checkpoint and topic is None:
        topic, partition = CLUSTER_METADATA
    return Log(
        file,
        [segment],
        topic=topic,
        partition=partition,
        high_watermark=high_watermark,
        check_crcs=check_crcs,
        limits=limits,
    )


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
    """A partition directory: its segments in order of offsets, the last one active.

    Where a cleaner was at work, the segments are those that a broker has once it has started (siblings.py): a ``.swap``
    stands for what it replaces, ``.cleaned`` and ``.deleted`` are no part of it. DecodeError if offsets overlap then.
    """
    storage, directory = storage_at(path, filesystem)
    if not storage.is_directory(directory):
        raise FileNotFoundError(f"{directory}: no such directory")
    log = _partition_at(
        storage,
        directory,
        topic=topic,
        partition=partition,
        high_watermark=high_watermark,
        check_crcs=checks_crcs(check_crcs, verify_crc),
        limits=limits,
    )
    if log is None:
        raise _nothing_in(storage, directory)
    return log


def _partition_at(
    storage: Storage,
    directory: str,
    *,
    topic: str | None,
    partition: int | None,
    high_watermark: int | None,
    check_crcs: bool,
    limits: DecodeLimits,
) -> Log | None:
    """The log of a partition directory; None where there is no segment."""
    found = segments_at_start(storage, directory, limits)
    if not found:
        return None
    last = found[-1][0]
    segments = [Segment(storage.join(directory, name), base, base == last, storage) for base, name in found]
    told = _partition_of(storage, directory)
    if told is not None:
        topic, partition = told
    return Log(
        directory,
        segments,
        topic=topic,
        partition=partition,
        high_watermark=high_watermark,
        check_crcs=check_crcs,
        limits=limits,
    )


def _is_last(storage: Storage, directory: str, base_offset: int) -> bool:
    """Whether no later segment lies in the directory; a place that lists nothing tells of none."""
    try:
        return all(base <= base_offset for base, _ in segment_names(storage, directory))
    except FileNotFoundError:
        return True


def _partition_of(storage: Storage, directory: str) -> tuple[str, int] | None:
    """Topic and partition as a directory's name tells them."""
    match = PARTITION_DIRECTORY.fullmatch(storage.name(directory))
    return (match[1], int(match[2])) if match else None


def _nothing_in(storage: Storage, directory: str) -> Exception:
    inside = (storage.join(directory, entry.name) for entry in storage.list(directory) if entry.is_directory)
    partitions = sorted(path for path in inside if has_segments(storage.list(path)))
    if partitions:
        return ValueError(
            f"{directory} is a log directory of {len(partitions)} partitions: kcodec.open opens it, open_partition one "
            f"of them, {partitions[0]} for example"
        )
    return FileNotFoundError(f"{directory}: no segment is there (20 digits and .log, as Kafka names them)")
