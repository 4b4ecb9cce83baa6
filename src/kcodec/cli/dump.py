# SPDX-License-Identifier: Apache-2.0
"""``kcodec dump``: print the contents of files of a log directory.

dump_segment.py prints segments. Indexes, snapshots, checkpoints and the other small files are printed as a table, or as
JSON with the same names. For a log directory, the command prints one row for each partition, and takes the values from
the names of files and from checkpoints. It does not read the logs.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcodec.cli import dump_segment
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, Example, Parser, offset_range
from kcodec.cli.render import cell_text, time_text, write_rows
from kcodec.errors import DecodeError
from kcodec.log import LogDirectory, checkpoints, indexes, open_log_directory, snapshots
from kcodec.log.segment import SEGMENT_NAME, is_last_segment

DESCRIPTION = (
    "Prints the contents of files of a Kafka log directory. For segments (.log, .checkpoint), prints the batches, and "
    "with --records also the records. For indexes (.index, .timeindex, .txnindex), producer snapshots (.snapshot) and "
    "text files (leader-epoch-checkpoint, partition.metadata, *-checkpoint, meta.properties), prints the entries. For "
    "a partition directory, prints its segments. For a log directory, lists its partitions. The command checks every "
    "CRC. A corrupt batch is printed, reported on stderr, and skipped."
)
EXAMPLES = (
    Example("the batches of a partition", "kcodec dump orders-0"),
    Example("two records, as JSON", "kcodec dump --records --json --offsets 0:2 orders-0/00000000000000000000.log"),
    Example("the producers at the time the segment was rolled", "kcodec dump orders-0/00000000000000000042.snapshot"),
)
# Suffixes of files that the broker will swap in or delete. The kind of such a file is that of its name without the
# suffix.
ON_THEIR_WAY = (".swap", ".cleaned", ".deleted")
SUFFIXES = {f".{kind}": kind for kind in ("log", "checkpoint", "index", "timeindex", "txnindex", "snapshot")}
NAMES = {
    name: name for name in (checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA, checkpoints.META_PROPERTIES)
}
NAMES |= dict.fromkeys(checkpoints.OFFSET_CHECKPOINTS, "offset-checkpoint")
PARTITION_FIELDS = (
    *("topic", "partition", "topic_id", "segments", "size_in_bytes", "first_segment_offset", "last_segment_offset"),
    *("log_start_offset", "recovery_point", "high_watermark"),
)
# Fields with a time in ms, which a table shows as a time. JSON has the number.
TIMES = ("timestamp",)
# Fields by which --offsets selects rows.
OFFSETS = ("offset", "last_offset", "start_offset")


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("dump", DESCRIPTION, EXAMPLES)
    found.add_argument("files", nargs="+", type=_path, metavar="FILE", help="a file or directory")
    found.add_argument("-r", "--records", action="store_true", help="print the records below each batch")
    found.add_json("one JSON object per line instead of a table")
    found.add_argument(
        "--offsets",
        type=offset_range,
        default=(None, None),
        metavar="A:B",
        help="offsets from A up to, but not including, B",
    )
    found.add_argument(
        "--threads", type=int, default=2, metavar="N", help="number of threads that decode (default: %(default)s)"
    )
    return found


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; name a file or a directory")
    return Path(text)


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Dump every named file. Return FINDINGS if one is corrupt, ERROR if one cannot be read."""
    if options.threads < 1:
        raise CommandError(f"--threads must be at least 1, not {options.threads}")
    status = ExitStatus.OK
    for file in options.files:
        if is_log_directory(file):
            return _dump_directories(options, output)
    found = [place for file in options.files for place in files_at(file)]
    for number, place in enumerate(found):
        if len(found) > 1 and not options.json:
            output.write(f"{'' if number == 0 else chr(10)}{place.path}\n".encode("utf-8", "surrogateescape"))
        status = max(status, _dump(place, options, output))
    return status


def _dump(place: DumpedFile, options: argparse.Namespace, output: Output) -> ExitStatus:
    if place.kind in ("log", "checkpoint"):
        return dump_segment.dump(place.path, options, output, is_active=place.is_active)
    if options.records:
        raise CommandError(f"{place.path}: files of kind {place.kind} contain no records: omit --records")
    return _dump_file(place, options, output)


# Files of a path


@dataclass(frozen=True)
class DumpedFile:
    """A file, its kind, and whether it may end with a torn append of a broker: a last segment, or a single one."""

    path: Path
    kind: str
    is_active: bool = True


def _kind_of(path: Path) -> str | None:
    """Return the kind of a file according to its name."""
    name = path.name
    for ending in ON_THEIR_WAY:
        name = name.removesuffix(ending)
    return NAMES.get(name) or SUFFIXES.get(Path(name).suffix)


def files_at(path: Path) -> list[DumpedFile]:
    """Return the file, or the segments of a directory in order of offsets. Raise CommandError for anything else."""
    if path.is_dir():
        segments = sorted(file for file in path.iterdir() if SEGMENT_NAME.fullmatch(file.name) and file.is_file())
        if not segments:
            raise CommandError(f"{path}: the directory has no segment (20 digits and .log)")
        return [DumpedFile(file, "log", file is segments[-1]) for file in segments]
    if not path.exists():
        raise CommandError(f"{path}: no such file or directory")
    kind = _kind_of(path)
    if kind is None:
        known = ", ".join([*SUFFIXES, *NAMES])
        raise CommandError(f"{path}: the name is not that of a file in a log directory; expected {known}")
    return [DumpedFile(path, kind, is_last_segment(str(path)))]


def is_log_directory(path: Path) -> bool:
    """Return whether this is a directory of partition directories."""
    return path.is_dir() and not any(path.glob("*.log")) and any(path.glob("*/*.log"))


# Log directories


def _dump_directories(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Dump the log directories."""
    if options.records or options.offsets != (None, None):
        raise CommandError("--records and --offsets need a partition: name its directory")
    for number, path in enumerate(options.files):
        directory = open_log_directory(path)
        if len(options.files) > 1 and not options.json:
            output.write(f"{chr(10) if number else ''}{path}\n".encode("utf-8", "surrogateescape"))
        write_rows(output, PARTITION_FIELDS, _partition_rows(directory), as_json=options.json)
        output.flush()
        for other in directory.others:
            if other.kind not in ("file", "directory") and not options.json:
                output.say(f"kcodec: {path}: {other.name} is no partition: {other.kind}")
    return ExitStatus.OK


def _partition_rows(directory: LogDirectory) -> Iterator[list[Any]]:
    starts, points, marks = directory.log_start_offsets, directory.recovery_points, directory.high_watermarks
    ids = directory.topic_ids
    for topic, partitions in directory.topics.items():
        for partition in partitions:
            place: Any = (topic, partition)
            try:
                log = directory[topic, partition]
                segments = [len(log.segments), log.size_in_bytes]
                offsets = [log.segments[0].base_offset, log.segments[-1].base_offset]
            except FileNotFoundError:  # it has no segment yet, or the broker has deleted it
                segments, offsets = [0, 0], [None, None]
            yield [
                *(topic, partition, ids.get(topic), *segments, *offsets),
                *(starts.get(place), points.get(place), marks.get(place)),
            ]


# Small files


@dataclass(frozen=True)
class _Rows:
    """The content of a file: rows with the same fields, and additional lines."""

    fields: tuple[str, ...]
    rows: Iterable[Sequence[Any]]
    notes: tuple[str, ...] = ()


def _dump_file(place: DumpedFile, options: argparse.Namespace, output: Output) -> ExitStatus:
    """Dump one file. Return FINDINGS if it is corrupt."""
    try:
        found = _READERS[place.kind](place.path)
    except DecodeError as error:
        output.flush()
        output.say(f"kcodec: {error}")
        return ExitStatus.FINDINGS
    rows: Iterable[Sequence[Any]] = _chosen(found, *options.offsets)
    if not options.json:
        is_time = [field in TIMES for field in found.fields]
        rows = ([time_text(v) if t else v for v, t in zip(row, is_time, strict=True)] for row in rows)
    write_rows(output, found.fields, rows, as_json=options.json)
    output.flush()
    for note in found.notes:
        output.say(f"kcodec: {place.path}: {note}")
    return ExitStatus.OK


def _chosen(found: _Rows, start: int | None, end: int | None) -> Iterator[Sequence[Any]]:
    at = next((found.fields.index(name) for name in OFFSETS if name in found.fields), None)
    for row in found.rows:
        is_below = at is not None and start is not None and row[at] < start
        is_behind = at is not None and end is not None and row[at] >= end
        if not is_below and not is_behind:
            yield row


def _index(read: Callable[[Path], Any], entry: type) -> Callable[[Path], _Rows]:
    def read_rows(path: Path) -> _Rows:
        index = read(path)
        notes = []
        if index.preallocated_entries:
            notes.append(
                f"{index.preallocated_entries} entries of zeros follow: the index of an active segment is not trimmed"
            )
        if index.remaining_bytes:
            notes.append(f"{index.remaining_bytes} bytes of an incomplete entry follow")
        return _rows_of(entry, index, *notes)

    return read_rows


def _fields_of(entry: type) -> tuple[str, ...]:
    named: tuple[str, ...] | None = getattr(entry, "_fields", None)
    return named or tuple(field.name for field in dataclasses.fields(entry))


def _rows_of(kind: type, values: Iterable[Any], *notes: str) -> _Rows:
    """Return the values of entries of one kind, a row for each."""
    fields = _fields_of(kind)
    return _Rows(fields, (_values_of(value, fields) for value in values), notes)


def _values_of(value: Any, fields: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in fields)


def _snapshot(path: Path) -> _Rows:
    snapshot = snapshots.read_snapshot(path)
    offset = "" if snapshot.offset is None else f" up to offset {snapshot.offset}"
    note = f"the producers{offset}; version {snapshot.version}, crc {snapshot.crc:08x} valid"
    return _rows_of(snapshots.ProducerState, snapshot.producers, note)


def _leader_epochs(path: Path) -> _Rows:
    return _rows_of(checkpoints.LeaderEpoch, checkpoints.read_leader_epochs(path))


def _offsets(path: Path) -> _Rows:
    rows = [(topic, partition, offset) for (topic, partition), offset in checkpoints.read_offsets(path).items()]
    return _Rows(("topic", "partition", "offset"), rows)


def _properties(path: Path) -> _Rows:
    found = checkpoints.read_meta_properties(path)
    fields = tuple(name for name in _fields_of(checkpoints.MetaProperties) if name != "other")
    rows = [*zip(fields, map(cell_text, _values_of(found, fields)), strict=True), *found.other]
    return _Rows(("name", "value"), rows)


def _metadata(path: Path) -> _Rows:
    return _rows_of(checkpoints.PartitionMetadata, [checkpoints.read_partition_metadata(path)])


_READERS: dict[str, Callable[[Path], _Rows]] = {
    "index": _index(indexes.read_offset_index, indexes.OffsetIndexEntry),
    "timeindex": _index(indexes.read_time_index, indexes.TimeIndexEntry),
    "txnindex": _index(indexes.read_transaction_index, indexes.TransactionIndexEntry),
    "snapshot": _snapshot,
    "leader-epoch-checkpoint": _leader_epochs,
    "offset-checkpoint": _offsets,
    "partition.metadata": _metadata,
    "meta.properties": _properties,
}
