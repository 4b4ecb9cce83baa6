# SPDX-License-Identifier: Apache-2.0
"""The input of a task: ranges of files. The driver plans them from batch headers, with the outcomes of transactions.

A transaction can begin in one range and end in another, so a task cannot find out its outcome. The driver determines
the outcomes once for each partition, and each range contains those that concern its offsets. Executors open only the
files that they read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kcodec import log as logs
from kcodec.errors import DecodeError
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.chunks import ByteRange, Chunks, StreamOptions
from kcodec.log.segment import base_offset_of, data_end
from kcodec.log.splits import cut_by_index
from kcodec.offsets import TopicPartition
from kcodec.spark import convert
from kcodec.spark.columns import SparkColumn
from kcodec.spark.file_options import DEFAULT_SPLIT_BYTES, SourceOptions
from kcodec.spark.offset_options import EARLIEST, HIGHEST_LONG, LATEST, OffsetLimit
from kcodec.spark.paths import SEGMENT, FoundPartition, find_partitions, local_path
from kcodec.spark.workers import prepare_worker
from kcodec.timestamps import unit_hint

if TYPE_CHECKING:
    import pyarrow as pa


#: Number of segments before a file that a range knows. If the log cleaner merges more segments, a task that finds its
#: file missing raises an error.
PREVIOUS_SEGMENTS = 32


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
    """One range of one file, with the bounds and the outcomes of the transactions of its partition. Pickles.

    next_offset: First offset after the range; None if the range ends with the log.
    previous:    Segments before the file when the range was planned, in order, at most PREVIOUS_SEGMENTS. If the file
                 is missing, they show whether the log cleaner has merged it into one of them.
    """

    byte_range: ByteRange
    size_in_bytes: int
    outcomes: logs.Verdict
    topic: str | None
    partition: int | None
    start_offset: int | None
    end_offset: int | None
    next_offset: int | None
    previous: tuple[logs.Segment, ...]

    @property
    def name(self) -> str:
        """The topic and the partition."""
        return f"{self.topic}-{self.partition}"

    @property
    def end(self) -> int | None:
        """The offset at which reading ends; None if the range ends with the log."""
        return min((offset for offset in (self.next_offset, self.end_offset) if offset is not None), default=None)


class DeletedSegmentError(FileNotFoundError):
    """The file of a range was deleted after the range was planned. first_offset, next_offset: The offsets that were not
    read; next_offset is None if the range ends with the log."""

    def __init__(self, path: str, partition: str, first_offset: int, next_offset: int | None) -> None:
        self.first_offset, self.next_offset = first_offset, next_offset
        self._arguments = path, partition, first_offset, next_offset
        super().__init__(
            f"{path}: the segment of {partition} was deleted after the read was planned, and its data "
            f"from offset {first_offset} on was not read; call load() or decode_in_arrow() again to read the "
            "remaining data"
        )

    @classmethod
    def of(cls, each: FileRange, position: int) -> DeletedSegmentError:
        """Return the error for the rest of a range, from the offset `position` on."""
        path = each.byte_range.path
        first_offset = max(each.byte_range.first_offset, base_offset_of(path), each.start_offset or 0, position)
        return cls(path, each.name, first_offset, each.end)

    def __reduce__(self) -> tuple[type[DeletedSegmentError], tuple[str, str, int, int | None]]:
        return type(self), self._arguments


Task = tuple[FileRange, ...]
Versioned = TypeVar("Versioned", ByteRange, logs.Segment)


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
    segments_in = lru_cache(maxsize=1)(_segments_in)  # the files of one directory come one after the other
    for each, log in zip(found, opened, strict=True):
        start, end = _start(options, log), _end(options.ending, log, options.on_error)
        if start is not None and end is not None and start > end:
            raise ValueError(f"the start offset {start} is greater than the end offset {end} for {_name(log)}")
        previous, below = _neighbors(log, segments_in)
        ranges += _in_segments(_cut(log, reading, start, end, split_bytes, previous, below), each)
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
        chunks = Chunks([_as_here(each.byte_range)], each.outcomes, options, again=partial(_read_again, each, options))
        try:
            yield from renamed.batches(chunks)
        except FileNotFoundError as error:
            # Kafka renames the directory of a deleted partition, but does not remove the one that contains it.
            parent = Path(each.byte_range.path).parent.parent
            if not parent.is_dir():
                raise FileNotFoundError(
                    f"{each.byte_range.path}: the directory {parent} does not exist on this executor; the path must be "
                    "the same on the driver and on all executors"
                ) from error
            raise DeletedSegmentError.of(each, chunks.position) from error
        source_name = f"{each.byte_range.path} from byte {each.byte_range.start} on"
        convert.log_counts(source_name, chunks.counts, each.size_in_bytes, chunks.error, chunks.losses)


def _as_here(planned: Versioned) -> Versioned:
    """Return a range or a segment with the planned version of its file in the form in which this machine reports it.

    Machines that share a file system report different device numbers for it, and on some file systems also different
    numbers of files.
    """
    version, entry = planned.version, planned.storage.entry(planned.path)
    if version is None or entry is None or entry.version is None:
        return planned
    here = entry.version
    is_same = (here.size, here.modified_ns) == (version.size, version.modified_ns)
    return replace(planned, version=here if is_same else version._replace(device=here.device))


def _read_again(each: FileRange, options: StreamOptions, path: str, position: int, attempts: int) -> Chunks:
    """Return the rest of a range, from an offset on, whose file was replaced or removed after the range was planned.

    The positions of the range are not valid in another file. The log cleaner may also have merged the file into the
    segment before it, or other segments into the file, so that the offsets of the range are looked up in the segments
    that exist now.
    """
    file, directory = Path(each.byte_range.path), str(Path(each.byte_range.path).parent)
    is_segment = SEGMENT.match(file.name) is not None  # also of a .swap file
    base, byte_range = base_offset_of(str(file)) if is_segment else None, _as_here(each.byte_range)
    segment = logs.Segment(str(file), base, False, byte_range.storage, byte_range.version)
    previous = [_as_here(one) for one in each.previous]
    log = logs.Log(
        directory if is_segment else str(file),
        [*previous, segment],
        topic=each.topic,
        partition=each.partition,
        high_watermark=None,
        check_crcs=options.check_crcs,
        limits=options.limits,
    )
    options = replace(options, start_offset=position, end_offset=each.end)
    ranges = log.ranges_again(path, options, attempts)
    return Chunks(ranges, each.outcomes, options, again=partial(_read_again, each, options))


def read_alone(path: str, reading: RangeOptions, topic: str | None, partition: int | None) -> Iterator[pa.RecordBatch]:
    """Read a ``.log`` file or a partition directory by itself, without the files next to it."""
    log = _open(str(local_path(path)), reading, topic, partition)
    previous, below = _neighbors(log, _segments_in)
    bounds = reading.start_offset, reading.end_offset
    yield from read_ranges(_cut(log, reading, *bounds, DEFAULT_SPLIT_BYTES, previous, below), reading)


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


def _segments_in(directory: str) -> list[logs.Segment]:
    """Return the segments in a directory, in order, with their versions."""
    storage = logs.Segment(directory, None, is_active=False).storage  # the local one
    return [
        logs.Segment(storage.join(directory, entry.name), base_offset_of(entry.name), False, storage, entry.version)
        for entry in sorted(storage.list(directory))
        if SEGMENT.fullmatch(entry.name)
    ]


def _neighbors(
    log: logs.Log, segments_in: Callable[[str], list[logs.Segment]]
) -> tuple[Sequence[logs.Segment], int | None]:
    """Return the segments before a file that is read alone, and the base offset of the segment after it."""
    file = Path(log.path)
    if log.path != log.segments[0].path or not SEGMENT.fullmatch(file.name):
        return [], None
    segments = segments_in(str(file.parent))
    at = bisect_left(segments, int(file.stem), key=_base)
    following = at + (at < len(segments) and _base(segments[at]) == int(file.stem))
    return segments[max(at - PREVIOUS_SEGMENTS, 0) : at], (
        _base(segments[following]) if following < len(segments) else None
    )


def _base(segment: logs.Segment) -> int:
    return segment.base_offset or 0


def previous_segments(segments: Sequence[logs.Segment]) -> dict[str, tuple[logs.Segment, ...]]:
    """Return, by the path of each segment, the segments before it, at most PREVIOUS_SEGMENTS."""
    return {segment.path: tuple(segments[max(at - PREVIOUS_SEGMENTS, 0) : at]) for at, segment in enumerate(segments)}


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
    log: logs.Log,
    reading: RangeOptions,
    start: int | None,
    end: int | None,
    split_bytes: int,
    previous: Sequence[logs.Segment] = (),
    below: int | None = None,
) -> Iterator[FileRange]:
    """Yield the ranges that hold offsets in [start, end), each with the outcomes of its own transactions.

    previous, below: The segments before the log, and the first offset after it, if the log is one file of a directory.
    """
    outcomes = log.verdict(reading.isolation_level, on_error=reading.on_error)
    earlier = previous_segments([*previous, *log.segments])
    versions = {segment.path: segment.version for segment in log.segments}

    def planned(byte_range: ByteRange, size: int, next_offset: int | None) -> FileRange:
        path, first = byte_range.path, byte_range.first_offset
        part = outcomes.between(first, HIGHEST_LONG if next_offset is None else next_offset)
        byte_range = replace(byte_range, version=versions.get(path))
        return FileRange(
            *(byte_range, size, part, log.topic, log.partition, start, end, next_offset), earlier.get(path, ())
        )

    if reading.on_error == "skip":
        for byte_range, size in _cut_by_index(log, reading, start, end, split_bytes):
            yield planned(byte_range, size, below if byte_range.below_offset is None else byte_range.below_offset)
    elif _needs_no_walk(log, reading, split_bytes):
        (segment,), size = log.segments, log.size_in_bytes
        is_active = segment.is_active
        known_end = data_end(segment) if is_active else 0
        byte_range = ByteRange(segment.path, 0, None if is_active else size, 0, not is_active, known_end=known_end)
        yield planned(byte_range, size, below)
    else:
        splits = log.splits(max_bytes=split_bytes, start_offset=start, end_offset=end, on_error=reading.on_error)
        for split in splits:
            yield planned(split.byte_range, split.size_in_bytes, split.next_offset)


def _cut_by_index(
    log: logs.Log, reading: RangeOptions, start: int | None, end: int | None, split_bytes: int
) -> Iterator[tuple[ByteRange, int]]:
    """Yield byte ranges and their sizes for a log that may be corrupt: nothing but names and indexes of segments
    decides what is read."""
    first = max(log.log_start_offset, start or 0)
    for segment, following in zip(log.segments, [*log.segments[1:], None], strict=True):
        below = None if following is None else following.base_offset
        is_before = below is not None and below <= first
        if is_before or (end is not None and (segment.base_offset or 0) >= end):
            continue
        for byte_range, size in cut_by_index(segment, below, split_bytes, reading.limits):
            is_before = byte_range.below_offset is not None and byte_range.below_offset <= first
            if not is_before and (end is None or byte_range.first_offset < end):
                yield byte_range, size


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
