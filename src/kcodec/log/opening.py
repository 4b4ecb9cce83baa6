# SPDX-License-Identifier: Apache-2.0
"""From a path to the log that lies there."""

from __future__ import annotations

import os
import re
from typing import Any

from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.partition import Log
from kcodec.log.segment import SEGMENT_NAME, Segment
from kcodec.log.storage import FileObject, Storage, storage_at

# What `path` may be: a path or address, or an object with seek and read, or with read_at(position, size).
Source = str | os.PathLike[str] | Any

# Topic names are limited to these letters (Topic.validate); what follows the last hyphen is the partition.
PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,9})")


def open(  # noqa: A001  the public name is kcodec.open
    path: Source,
    *,
    filesystem: Any = None,
    topic: str | None = None,
    partition: int | None = None,
    high_watermark: int | None = None,
    verify_crc: bool = True,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> Log:
    """The log at `path`: a ``.log`` file, settled by itself, or a partition directory with all its segments.

    path: of this machine, or in `filesystem`, an object of pyarrow.fs or fsspec; or an address like
    ``s3://bucket/orders-0``, which pyarrow resolves; or one segment as an object with ``seek`` and ``read``, or with
    ``read_at(position, size)`` and ``size``. All are read by ranges, never whole.
    topic, partition: where the directory's name (``orders-0``) does not tell. high_watermark: records from it on do not
    count; without it all do. FileNotFoundError if nothing is there; ValueError for a file or directory that is no log;
    TypeError for an object that is no file or filesystem; OSError, naming path and bytes, for a read that fails.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp(), "orders-0")
    >>> folder.mkdir()
    >>> (folder / "00000000000000000042.log").write_bytes(b"")
    0
    >>> log = open(folder)
    >>> log.topic, log.partition, log.log_start_offset, log.log_end_offset, log.tail, list(log.records())
    ('orders', 0, 42, 42, None, [])
    """
    storage, place = storage_at(path, filesystem)
    opener = open_partition if storage.is_directory(place) else open_segment
    return opener(
        place,
        filesystem=storage,
        topic=topic,
        partition=partition,
        high_watermark=high_watermark,
        verify_crc=verify_crc,
        limits=limits,
    )


def open_segment(
    path: Source,
    *,
    filesystem: Any = None,
    topic: str | None = None,
    partition: int | None = None,
    high_watermark: int | None = None,
    verify_crc: bool = True,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> Log:
    """One ``.log`` file by itself: a transaction whose marker lies in another segment is undecided.

    It counts as active, so that a torn tail ends it, unless a later segment lies beside it.
    """
    storage, file = storage_at(path, filesystem)
    is_object = isinstance(storage, FileObject)
    if not storage.is_file(file):
        raise FileNotFoundError(f"{file}: no such file")
    name, directory = storage.name(file), storage.parent(file)
    if not is_object and not name.endswith(".log"):
        raise ValueError(f"{file}: not a segment: segments are named .log; its indexes and snapshots hold no records")
    named = SEGMENT_NAME.fullmatch(name)
    is_active = is_object or not named or _is_last(storage, directory, int(named[1]))
    segment = Segment(file, int(named[1]) if named else None, is_active, storage)
    told = _partition_of(storage, directory)
    if told is not None and (named or (topic is None and partition is None)):
        topic, partition = told
    return Log(
        file,
        [segment],
        topic=topic,
        partition=partition,
        high_watermark=high_watermark,
        verify_crc=verify_crc,
        limits=limits,
    )


def open_partition(
    path: Source,
    *,
    filesystem: Any = None,
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
    storage, directory = storage_at(path, filesystem)
    if not storage.is_directory(directory):
        raise FileNotFoundError(f"{directory}: no such directory")
    found = _segments_of(storage, directory)
    if not found:
        raise _nothing_in(storage, directory)
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
        verify_crc=verify_crc,
        limits=limits,
    )


def _segments_of(storage: Storage, directory: str) -> list[tuple[int, str]]:
    """(base offset, name) of every segment in a directory, in order."""
    named = ((SEGMENT_NAME.fullmatch(entry.name), entry) for entry in storage.list(directory))
    return sorted((int(match[1]), entry.name) for match, entry in named if match and not entry.is_directory)


def _is_last(storage: Storage, directory: str, base_offset: int) -> bool:
    """Whether no later segment lies in the directory; a place that lists nothing tells of none."""
    try:
        return all(base <= base_offset for base, _ in _segments_of(storage, directory))
    except FileNotFoundError:
        return True


def _partition_of(storage: Storage, directory: str) -> tuple[str, int] | None:
    """Topic and partition as a directory's name tells them."""
    match = PARTITION_DIRECTORY.fullmatch(storage.name(directory))
    return (match[1], int(match[2])) if match else None


def _nothing_in(storage: Storage, directory: str) -> Exception:
    inside = (storage.join(directory, entry.name) for entry in storage.list(directory) if entry.is_directory)
    partitions = sorted(path for path in inside if _segments_of(storage, path))
    if partitions:
        return ValueError(
            f"{directory} is a log directory of {len(partitions)} partitions, and one partition is opened at a time: "
            f"open {partitions[0]}, for example"
        )
    return FileNotFoundError(f"{directory}: no segment is there (20 digits and .log, as Kafka names them)")
