# SPDX-License-Identifier: Apache-2.0
"""What a task reads: ranges of files, planned on the driver by headers only, each with the verdict on its transactions.

A transaction may begin in one range and end in another, so no task can settle it: the driver does, once a partition, and
every range carries the part of the answer that concerns its offsets. Executors open nothing but the files they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kcodec
from kcodec import log as logs
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.spark import convert
from kcodec.spark.columns import SparkColumn
from kcodec.spark.filters import Pruning
from kcodec.spark.options import EARLIEST, LATEST, Bound, ReadOptions
from kcodec.spark.paths import FoundPartition, find_partitions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Reading:
    """How ranges are read; the same for all ranges of one read. Pickles."""

    columns: tuple[SparkColumn, ...]
    isolation_level: str = "read_uncommitted"
    start_offset: int | None = None
    end_offset: int | None = None
    on_error: str = "raise"
    verify_crc: bool = True
    limits: DecodeLimits = DEFAULT_LIMITS


@dataclass(frozen=True)
class Range:
    """One range of one file, with the bounds and the verdict of its partition. Pickles."""

    split: logs.Split
    verdict: logs.Verdict
    topic: str | None
    partition: int | None
    start_offset: int | None
    end_offset: int | None


Task = tuple[Range, ...]


def plan_tasks(options: ReadOptions, reading: Reading, pruning: Pruning) -> list[Task]:
    """The tasks of a read: ranges of at most splitBytes; neighbours that are smaller share a task up to half of that.

    ValueError for a bound that names partitions which are not there, leaves one out, or ends before it starts.
    """
    found = find_partitions(options.paths)
    opened = [_open(each, reading, options.topic, options.partition) for each in found]
    for bound in (options.starting, options.ending):
        _check_names(bound, opened)
    total = sum(_size(each) for each in found)
    split_bytes = max(1, min(options.split_bytes, -(-total // options.min_partitions)))
    ranges: list[Range] = []
    for each, log in zip(found, opened, strict=True):
        start, end = _start(options, log), _end(options.ending, log)
        if start is not None and end is not None and start > end:
            raise ValueError(f"the start offset {start} of {_name(log)} is greater than the end offset {end}")
        if pruning.admits(log.topic, log.partition):
            start, end = _narrowed(log, pruning, start, end)
            ranges += _ranges(log, each, reading, start, end, split_bytes)
    return list(_packed(ranges, split_bytes // 2 if options.min_partitions == 1 else 0))


def plan_paths(
    paths: Iterable[str], reading: Reading, topic: str | None, partition: int | None
) -> dict[str, tuple[Range, ...]]:
    """The ranges of each path, a segment or a partition directory; each partition is settled once."""
    settled: dict[str, tuple[Any, logs.Verdict]] = {}
    planned: dict[str, tuple[Range, ...]] = {}
    for path in paths:
        ranges: list[Range] = []
        for found in find_partitions([path]):
            if found.path not in settled:
                log = _open(found, reading, topic, partition)
                settled[found.path] = (log, log.verdict(reading.isolation_level))
            log, verdict = settled[found.path]
            ranges += _cut(log, found, verdict, reading.start_offset, reading.end_offset, None)
        planned[path] = tuple(ranges)
    return planned


def read_alone(path: str, reading: Reading, topic: str | None, partition: int | None) -> Iterator[pa.RecordBatch]:
    """A ``.log`` file settled by itself, whatever lies beside it."""
    raise NotImplementedError


def read_ranges(ranges: Iterable[Range], reading: Reading) -> Iterator[pa.RecordBatch]:
    """The rows of the ranges, in order, as Arrow batches of at most MAX_ROWS rows; what was left out is logged."""
    renamed = convert.Renamed(reading.columns)
    for each in ranges:
        stream = logs.read_split(
            each.split,
            each.verdict,
            columns=[column.column for column in reading.columns],
            isolation_level=reading.isolation_level,
            start_offset=each.start_offset,
            end_offset=each.end_offset,
            on_error=reading.on_error,
            verify_crc=reading.verify_crc,
            limits=reading.limits,
            max_rows=convert.MAX_ROWS,
            topic=each.topic,
            partition=each.partition,
            spark_layout=True,
        )
        yield from renamed.batches(stream)
        convert.log_counts(f"{each.split.path} from byte {each.split.start_position} on", stream.counts, stream.error)


def _open(found: FoundPartition, reading: Reading, topic: str | None, partition: int | None) -> Any:
    return kcodec.open(found.path, topic=topic, partition=partition, verify_crc=reading.verify_crc, limits=reading.limits)


def _size(found: FoundPartition) -> int:
    path = Path(found.path)
    files = [path] if path.is_file() else [file for file in path.glob("*.log") if found.wants(file.name)]
    return sum(file.stat().st_size for file in files)


def _name(log: Any) -> str:
    return f"{log.topic}-{log.partition}"


def _check_names(bound: Bound, opened: list[Any]) -> None:
    """Spark's rule: offsets by partition name exactly the partitions that are read."""
    if bound.each is None:
        return
    named = {f"{topic}-{partition}" for (topic, partition), _ in bound.each}
    there = {_name(log) for log in opened}
    for name in sorted(named - there):
        raise ValueError(f"option {bound.option!r} names {name}, which is not among the partitions of the path")
    for name in sorted(there - named):
        raise ValueError(f"option {bound.option!r} does not name {name}: it must name every partition of the path")


def _number(bound: Bound, log: Any) -> int | None:
    return bound.value if bound.each is None else dict(bound.each)[(log.topic, log.partition)]


def _start(options: ReadOptions, log: Any) -> int | None:
    """The first offset to read; None means from the log start on."""
    bound = options.starting
    number = _number(bound, log)
    if number is None or (bound.kind == "offset" and number == EARLIEST):
        return None
    if bound.kind == "offset":
        return number
    offset: int | None = log.offset_for_timestamp(number)
    if offset is None and options.without_match == "error":
        raise ValueError(f"option {bound.option!r}: {_name(log)} has no record of timestamp {number} or later")
    return int(log.log_end_offset) if offset is None else offset


def _end(bound: Bound, log: Any) -> int | None:
    """The offset before which the read ends; None means at the log's end. A timestamp nothing matches is the end."""
    number = _number(bound, log)
    if number is None or (bound.kind == "offset" and number == LATEST):
        return None
    if bound.kind == "offset":
        return number
    offset: int | None = log.offset_for_timestamp(number)
    return offset


def _narrowed(log: Any, pruning: Pruning, start: int | None, end: int | None) -> tuple[int | None, int | None]:
    """The bounds with those of the filters; of a timestamp nothing reaches, an empty range."""
    starts = [offset for offset in (start, pruning.start_offset) if offset is not None]
    ends = [offset for offset in (end, pruning.end_offset) if offset is not None]
    if pruning.min_timestamp is not None:
        first = log.offset_for_timestamp(max(0, pruning.min_timestamp))
        if pruning.min_timestamp > 0:
            starts.append(log.log_end_offset if first is None else first)
    return max(starts, default=None), min(ends, default=None)


def _ranges(
    log: Any, found: FoundPartition, reading: Reading, start: int | None, end: int | None, split_bytes: int
) -> Iterator[Range]:
    yield from _cut(log, found, log.verdict(reading.isolation_level), start, end, split_bytes)


def _cut(
    log: Any, found: FoundPartition, verdict: logs.Verdict, start: int | None, end: int | None, split_bytes: int | None
) -> Iterator[Range]:
    """The splits that hold offsets in [start, end), each with the verdict on its own offsets."""
    for split in log.splits(max_bytes=split_bytes, start_offset=start, end_offset=end):
        if found.wants(Path(split.path).name):
            yield Range(split, verdict.within(split), log.topic, log.partition, start, end)


def _packed(ranges: Iterable[Range], most_bytes: int) -> Iterator[Task]:
    """Neighbours together while they have at most `most_bytes`: a task costs some ten milliseconds however little it reads."""
    task: list[Range] = []
    size = 0
    for each in ranges:
        if task and size + each.split.size_in_bytes > most_bytes:
            yield tuple(task)
            task, size = [], 0
        task.append(each)
        size += each.split.size_in_bytes
    if task:
        yield tuple(task)
