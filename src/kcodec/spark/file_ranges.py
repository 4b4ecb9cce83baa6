# SPDX-License-Identifier: Apache-2.0
"""The input of a task: ranges of files. The driver plans them from batch headers, with the outcomes of transactions.

A transaction can begin in one range and end in another, so a task cannot find out its outcome. The driver determines
the outcomes once for each partition, and each range contains those that concern its offsets. Executors open only the
files that they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kcodec import log as logs
from kcodec.errors import DecodeError
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.chunks import ByteRange, StreamOptions
from kcodec.log.splits import cut_by_index
from kcodec.offsets import TopicPartition
from kcodec.spark import convert
from kcodec.spark.columns import SparkColumn
from kcodec.spark.file_options import DEFAULT_SPLIT_BYTES, SourceOptions
from kcodec.spark.offset_options import EARLIEST, HIGHEST_LONG, LATEST, OffsetLimit
from kcodec.spark.paths import FoundPartition, find_partitions, local_path
from kcodec.spark.workers import prepare_worker
from kcodec.timestamps import unit_hint

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RangeOptions:
    """How ranges are read; the same for all ranges of one read. Pickles."""

    columns: tuple[SparkColumn, ...]
    isolation_level: str = "read_uncommitted"
    start_offset: int | None = None
    end_offset: int | None = None
    on_error: str = "raise"
    check_crcs: bool = True
    limits: DecodeLimits = DEFAULT_LIMITS


@dataclass(frozen=True)
class FileRange:
    """One range of one file, with the bounds and the outcomes of the transactions of its partition. Pickles."""

    byte_range: ByteRange
    size_in_bytes: int
    outcomes: logs.Verdict
    topic: str | None
    partition: int | None
    start_offset: int | None
    end_offset: int | None


Task = tuple[FileRange, ...]


def plan_tasks(options: SourceOptions, reading: RangeOptions) -> list[Task]:
    """Return the tasks of a read: ranges of files, adjacent ones together, of at most splitBytes in all.

    Raise ValueError for a bound that names partitions which do not exist, leaves one out, ends before it starts, or
    names offsets that are not in the log. Spark's own source fails there, too (failOnDataLoss, which is true by
    default): fewer rows than requested must not look like all of them.
    """
    found = find_partitions(options.paths)
    if _reads_segments_alone(options):
        found = [segment for each in found for segment in each.alone()]
    opened = [_open(each.path, reading, options.topic, options.partition) for each in found]
    for limit in (options.starting, options.ending):
        _check_names(limit, opened)
    _check_offsets(options, found, opened, reading)
    split_bytes = packed_bytes = options.split_bytes
    if options.min_partitions > 1:
        total = sum(_size(each) for each in found)
        split_bytes, packed_bytes = max(1, min(split_bytes, -(-total // options.min_partitions))), 0
    ranges: list[FileRange] = []
    for each, log in zip(found, opened, strict=True):
        start, end = _start(options, log), _end(options.ending, log, options.on_error)
        if start is not None and end is not None and start > end:
            raise ValueError(f"the start offset {start} is greater than the end offset {end} for {_name(log)}")
        ranges += _in_segments(_cut(log, reading, start, end, split_bytes), each)
    return list(packed(ranges, packed_bytes))


def plan_paths(
    paths: Iterable[str], reading: RangeOptions, topic: str | None, partition: int | None
) -> dict[str, tuple[FileRange, ...]]:
    """Return the ranges of each path, a segment or a partition directory; the transactions of each partition are read
    once."""
    opened: dict[str, list[FileRange]] = {}
    planned: dict[str, tuple[FileRange, ...]] = {}
    for path in paths:
        requested: list[FileRange] = []
        for found in find_partitions([path]):
            if found.path not in opened:
                log, bounds = _open(found.path, reading, topic, partition), (reading.start_offset, reading.end_offset)
                opened[found.path] = list(_cut(log, reading, *bounds, DEFAULT_SPLIT_BYTES))
            requested += _in_segments(opened[found.path], found)
        planned[path] = tuple(requested)
    return planned


def read_ranges(ranges: Iterable[FileRange], reading: RangeOptions) -> Iterator[pa.RecordBatch]:
    """Return the rows of the ranges, in order, as Arrow batches of at most MAX_ROWS rows; what was left out is
    logged."""
    prepare_worker()
    renamed = convert.Renamed(reading.columns)
    for each in ranges:
        options = StreamOptions(
            columns=tuple(column.column for column in reading.columns),
            isolation_level=reading.isolation_level,
            start_offset=each.start_offset,
            end_offset=each.end_offset,
            on_error=reading.on_error,
            check_crcs=reading.check_crcs,
            limits=reading.limits,
            max_rows=convert.MAX_ROWS,
            topic=each.topic,
            partition=each.partition,
            spark_layout=True,
        )
        chunks = logs.Chunks([each.byte_range], each.outcomes, options)
        yield from renamed.batches(chunks)
        source_name = f"{each.byte_range.path} from byte {each.byte_range.start} on"
        convert.log_counts(source_name, chunks.counts, each.size_in_bytes, chunks.error, chunks.losses)


def read_alone(path: str, reading: RangeOptions, topic: str | None, partition: int | None) -> Iterator[pa.RecordBatch]:
    """Read a ``.log`` file or a partition directory by itself, without the files next to it."""
    log = _open(str(local_path(path)), reading, topic, partition)
    yield from read_ranges(_cut(log, reading, reading.start_offset, reading.end_offset, DEFAULT_SPLIT_BYTES), reading)


def _reads_segments_alone(options: SourceOptions) -> bool:
    """Return whether only the named segments are needed, and not those next to them: no transaction, no timestamp."""
    kinds = {options.starting.kind, options.ending.kind}
    return options.isolation_level == "read_uncommitted" and "timestamps" not in kinds


def _open(path: str, reading: RangeOptions, topic: str | None, partition: int | None) -> logs.Log:
    opener = logs.open_partition if Path(path).is_dir() else logs.open_segment
    return opener(path, topic=topic, partition=partition, check_crcs=reading.check_crcs, limits=reading.limits)


def _size(found: FoundPartition) -> int:
    path = Path(found.path)
    files = [path] if path.is_file() else [file for file in path.glob("*.log") if found.wants(file.name)]
    return sum(file.stat().st_size for file in files)


def _name(log: logs.Log) -> str:
    return f"{log.topic}-{log.partition}"


def _check_names(limit: OffsetLimit, opened: list[logs.Log]) -> None:
    """Check Spark's rule: offsets by partition name exactly the partitions that are read."""
    if limit.each is None:
        return
    named = set(map(str, limit.each))
    there = {_name(log) for log in opened}
    for name in sorted(named - there):
        raise ValueError(f"option {limit.option!r} names {name}, which is not among the partitions of the path")
    for name in sorted(there - named):
        raise ValueError(f"option {limit.option!r} does not name {name}: it must name every partition of the path")


def _check_offsets(
    options: SourceOptions, found: list[FoundPartition], opened: list[logs.Log], reading: RangeOptions
) -> None:
    """Raise ValueError for a requested offset outside of the files that are read: [first offset, end] of a partition.

    Where single segments are named, these are the log. Corruption in a segment leaves the end unknown: it is
    raised, or skipped with mode=permissive.
    """
    requested = [(limit, side) for limit, side in ((options.starting, "start"), (options.ending, "end"))]
    requested = [(limit, side) for limit, side in requested if limit.kind == "offsets"]
    parts: dict[str, list[logs.Log]] = {}
    for each, log in zip(found, opened, strict=True) if requested else ():
        alone = [_open(one.path, reading, log.topic, log.partition) for one in each.alone()] if each.segments else [log]
        parts.setdefault(_name(log), []).extend(alone)
    for limit, side in requested:
        for partition, offset in (limit.each or {}).items():
            name = str(partition)
            first = min(log.log_start_offset for log in parts[name])
            instead = f"{EARLIEST} for the earliest" if side == "start" else f"{LATEST} for the latest"
            if 0 <= offset < first:
                raise ValueError(
                    f"option {limit.option!r}: the {side} offset {offset} of {name} is outside of the log, which "
                    f"begins at offset {first}; give an offset of at least {first}, or {instead}"
                )
            end = _end_of(parts[name], options.on_error) if offset > first else None
            if end is not None and offset > end:
                raise ValueError(
                    f"option {limit.option!r}: the {side} offset {offset} of {name} is outside of the log, which holds "
                    f"offsets {first} to {end - 1}; give an offset from {first} to {end}, or {instead}"
                )


def _end_of(parts: list[logs.Log], on_error: str) -> int | None:
    """Return the offset behind the last batch of a partition; None where corruption hides it and is to be skipped."""
    try:
        return max(log.log_end_offset for log in parts)
    except DecodeError:
        if on_error == "raise":
            raise
        return None


def _end_or_highest(log: logs.Log, on_error: str) -> int:
    """Return the same of one log; above all offsets where corruption hides it."""
    end = _end_of([log], on_error)
    return HIGHEST_LONG if end is None else end


def _number(limit: OffsetLimit, log: logs.Log) -> int | None:
    """Return the offset or the timestamp of a partition. None for the earliest or the latest offset of every
    partition."""
    if limit.each is None:
        return limit.timestamp
    assert log.topic is not None and log.partition is not None  # _check_names
    return limit.each[TopicPartition(log.topic, log.partition)]


def _start(options: SourceOptions, log: logs.Log) -> int | None:
    """Return the first offset to read; None means from the log start on."""
    limit = options.starting
    number = _number(limit, log)
    if number is None or (limit.kind == "offsets" and number == EARLIEST):
        return None
    if limit.kind == "offsets":
        return number
    offset = log.offset_for_timestamp(number, use_index=False, on_error=options.on_error)  # headers are walked anyway
    if offset is None and limit.strategy == "error":
        raise ValueError(
            f"option {limit.option!r}: {_name(log)} has no record of timestamp {number} or later{unit_hint(number)}; "
            "startingOffsetsByTimestampStrategy=latest returns no rows of it"
        )
    return _end_or_highest(log, options.on_error) if offset is None else offset


def _end(limit: OffsetLimit, log: logs.Log, on_error: str) -> int | None:
    """Return the offset before which the read ends, or None for the end of the log.

    If no record has this timestamp or a later one, return None.
    """
    number = _number(limit, log)
    if number is None or (limit.kind == "offsets" and number == LATEST):
        return None
    if limit.kind == "offsets":
        return number
    return log.offset_for_timestamp(number, use_index=False, on_error=on_error)


def _cut(
    log: logs.Log, reading: RangeOptions, start: int | None, end: int | None, split_bytes: int
) -> Iterator[FileRange]:
    """Yield the ranges that hold offsets in [start, end), each with the outcomes of its own transactions."""
    if reading.on_error == "skip":
        yield from _cut_by_index(log, reading, start, end, split_bytes)
        return
    outcomes = log.verdict(reading.isolation_level, on_error=reading.on_error)
    if _needs_no_walk(log, reading, split_bytes):
        (segment,), size = log.segments, log.size_in_bytes
        byte_range = ByteRange(segment.path, 0, None if segment.is_active else size, 0, is_rising=not segment.is_active)
        yield FileRange(byte_range, size, outcomes, log.topic, log.partition, start, end)
        return
    splits = log.splits(max_bytes=split_bytes, start_offset=start, end_offset=end, on_error=reading.on_error)
    for split in splits:
        part = outcomes.between(split.first_offset, split.next_offset)
        yield FileRange(split.byte_range, split.size_in_bytes, part, log.topic, log.partition, start, end)


def _cut_by_index(
    log: logs.Log, reading: RangeOptions, start: int | None, end: int | None, split_bytes: int
) -> Iterator[FileRange]:
    """Yield the same for a log that may be corrupt: nothing but names and indexes of segments decides what is read.

    With read_committed the transactions that can be read decide which records are delivered.
    """
    outcomes = log.verdict(reading.isolation_level, on_error="skip")
    first = max(log.log_start_offset, start or 0)
    for segment, following in zip(log.segments, [*log.segments[1:], None], strict=True):
        below = None if following is None else following.base_offset
        is_before = below is not None and below <= first
        if is_before or (end is not None and (segment.base_offset or 0) >= end):
            continue
        for byte_range, size in cut_by_index(segment, below, split_bytes, reading.limits):
            is_before = byte_range.below_offset is not None and byte_range.below_offset <= first
            if not is_before and (end is None or byte_range.first_offset < end):
                part = outcomes.between(byte_range.first_offset, byte_range.below_offset or HIGHEST_LONG)
                yield FileRange(byte_range, size, part, log.topic, log.partition, start, end)


def _needs_no_walk(log: logs.Log, reading: RangeOptions, split_bytes: int) -> bool:
    """Return whether one small segment is read without regard to transactions, with CRCs that reveal a torn tail."""
    is_plain = reading.isolation_level == "read_uncommitted" and reading.check_crcs
    return is_plain and len(log.segments) == 1 and log.size_in_bytes <= split_bytes


def _in_segments(ranges: Iterable[FileRange], found: FoundPartition) -> Iterator[FileRange]:
    return (each for each in ranges if found.wants(Path(each.byte_range.path).name))


def packed(ranges: Iterable[FileRange], most_bytes: int) -> Iterator[Task]:
    """Put neighbors together up to `most_bytes`: each task costs some ten milliseconds."""
    task: list[FileRange] = []
    size = 0
    for each in ranges:
        if task and size + each.size_in_bytes > most_bytes:
            yield tuple(task)
            task, size = [], 0
        task.append(each)
        size += each.size_in_bytes
    if task:
        yield tuple(task)
