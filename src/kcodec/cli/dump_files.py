# SPDX-License-Identifier: Apache-2.0
"""Indexes, snapshots, checkpoints and the other small files for ``kcodec dump``: a table, or JSON of the same names."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kcodec.cli.output import Output
from kcodec.cli.places import Place
from kcodec.cli.render import cell_text, json_line, time_text, write_table
from kcodec.cli.status import ExitStatus
from kcodec.errors import DecodeError
from kcodec.log import checkpoints, indexes, snapshots

# Where a field is a time in ms, a table shows it as one; JSON has the number.
TIMES = ("timestamp",)
# Fields by which --offsets chooses rows.
OFFSETS = ("offset", "last_offset", "start_offset")


@dataclasses.dataclass(frozen=True)
class _Rows:
    """What a file holds: rows with the same fields, and what is to be said beside them."""

    fields: tuple[str, ...]
    rows: Iterable[Sequence[Any]]
    notes: tuple[str, ...] = ()


def dump(place: Place, options: argparse.Namespace, output: Output) -> ExitStatus:
    """One file; FINDINGS where it is damaged."""
    try:
        found = _READERS[place.kind](place.path)
    except DecodeError as error:
        output.flush()
        output.say(f"kcodec: {error}")
        return ExitStatus.FINDINGS
    rows = _chosen(found, *options.offsets)
    if options.json:
        for row in rows:
            output.write(json_line(dict(zip(found.fields, row, strict=True))))
    else:
        is_time = [field in TIMES for field in found.fields]
        shown = ([time_text(v) if t else v for v, t in zip(row, is_time, strict=True)] for row in rows)
        write_table(output, found.fields, shown)
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
    fields = _fields_of(entry)

    def read_rows(path: Path) -> _Rows:
        index = read(path)
        notes = []
        if index.preallocated_entries:
            notes.append(
                f"{index.preallocated_entries} entries of zeros follow: the file of a live segment, not trimmed yet"
            )
        if index.remaining_bytes:
            notes.append(f"{index.remaining_bytes} bytes of a cut entry follow")
        return _Rows(fields, (_values_of(one, fields) for one in index), tuple(notes))

    return read_rows


def _fields_of(entry: type) -> tuple[str, ...]:
    named: tuple[str, ...] | None = getattr(entry, "_fields", None)
    return named or tuple(field.name for field in dataclasses.fields(entry))


def _values_of(value: Any, fields: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in fields)


def _snapshot(path: Path) -> _Rows:
    snapshot = snapshots.read_snapshot(path)
    fields = _fields_of(snapshots.ProducerState)
    offset = "" if snapshot.offset is None else f" up to offset {snapshot.offset}"
    note = f"the producers{offset}; version {snapshot.version}, crc {snapshot.crc:08x} valid"
    return _Rows(fields, [_values_of(state, fields) for state in snapshot.producers], (note,))


def _leader_epochs(path: Path) -> _Rows:
    fields = _fields_of(checkpoints.LeaderEpoch)
    return _Rows(fields, [_values_of(entry, fields) for entry in checkpoints.read_leader_epochs(path)])


def _offsets(path: Path) -> _Rows:
    rows = [(topic, partition, offset) for (topic, partition), offset in checkpoints.read_offsets(path).items()]
    return _Rows(("topic", "partition", "offset"), rows)


def _properties(path: Path) -> _Rows:
    found = checkpoints.read_meta_properties(path)
    fields = tuple(name for name in _fields_of(checkpoints.MetaProperties) if name != "other")
    rows = [*zip(fields, map(cell_text, _values_of(found, fields)), strict=True), *found.other]
    return _Rows(("name", "value"), rows)


def _metadata(path: Path) -> _Rows:
    fields = _fields_of(checkpoints.PartitionMetadata)
    return _Rows(fields, [_values_of(checkpoints.read_partition_metadata(path), fields)])


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
