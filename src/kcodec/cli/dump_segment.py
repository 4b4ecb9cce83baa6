# SPDX-License-Identifier: Apache-2.0
"""Segments for ``kcodec dump``: a table of the batches, or each batch with its records below it.

The line of a record has the offset, timestamp and sequence, the sizes of key and value (-1: null), and the key, value
and headers in the format "escaped" of kcodec.text. The sizes show where the key and the value end. For a control
record, its meaning replaces key and value. `dump` leaves out no records. A corrupt batch is reported, and skipped if
its length is plausible.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import kcodec
from kcodec.cli.output import ExitStatus, Output, Progress
from kcodec.cli.render import Cell, cell_text, time_text, write_items
from kcodec.errors import CorruptBatchError, DecodeError
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.parallel import in_order
from kcodec.log.segment import LOWEST_OFFSET, Tail, tail_of_cut, tail_of_refused
from kcodec.log.windows import WINDOW_BYTES, SegmentFile
from kcodec.text import TextBytes, TextTemplate, json_lines

COLUMNS = (
    *("base_offset", "last_offset", "records", "position", "size", "compression", "kind", "producer", "sequence"),
    *("leader_epoch", "max_timestamp", "crc"),
)
# The keys of a batch in JSON, in this order.
BATCH_FIELDS = (
    *("path", "position", "size_in_bytes", "base_offset", "last_offset", "records_count", "partition_leader_epoch"),
    *("magic", "crc", "is_valid", "attributes", "compression", "timestamp_type", "base_timestamp", "max_timestamp"),
    *("producer_id", "producer_epoch", "base_sequence", "last_sequence", "is_transactional", "is_control_batch"),
    "delete_horizon_ms",
)
RECORD_FIELDS = (
    *("offset", "timestamp", "timestamp_type", "key", "value", "headers", "sequence", "base_offset", "producer_id"),
    *("producer_epoch", "partition_leader_epoch", "is_transactional", "is_control", "control_type"),
    "coordinator_epoch",
)
RECORD_LINE = TextTemplate(
    [
        *(("integer", "offset", 10), b"  ", ("time",), b"  ", ("integer", "sequence", 10), b"  ", ("size", "key", 8)),
        *(b"  ", ("size", "value", 10), b"  ", ("escaped", "key"), b"  ", ("escaped", "value")),
        *(("escaped", "headers", 0, b"  "), b"\n"),
    ]
)
RECORD_HEAD = b"    offset  timestamp                   sequence  key_size  value_size  key  value  headers\n"


@dataclass
class Window:
    """Complete batches: bytes of a file from `position`, and their headers, whose positions count from there."""

    position: int
    data: memoryview
    batches: list[kcodec.RecordBatch]
    problem: DecodeError | None = None  # what is behind the last of them, if that is corruption


@dataclass
class Walk:
    """A walk over one file. `tail` and `problem` are known at its end.

    One thread reads, decodes and writes a window while another thread works on the next one.
    """

    path: str
    is_active: bool
    limits: DecodeLimits = DEFAULT_LIMITS
    tail: Tail | None = None
    problem: DecodeError | None = None
    size: int = 0
    done: int = 0
    _above: int = field(default=LOWEST_OFFSET, repr=False)

    def windows(self, start_offset: int | None = None, end_offset: int | None = None) -> Iterator[Window]:
        """Yield the windows whose batches overlap with [start_offset, end_offset), in order."""
        with SegmentFile(self.path, fresh=True) as file:
            self.size = file.size()
            wanted = WINDOW_BYTES
            while self.done < self.size:
                window = file.read(self.done, min(wanted, self.size - self.done))
                found, needed, failure = self._batches_of(window)
                if not found and failure is None and len(window) < min(needed, self.size - self.done):
                    wanted = max(needed, 2 * wanted)
                    continue
                wanted = WINDOW_BYTES
                size = found[-1].position + found[-1].size_in_bytes if found else 0
                position, self.done = self.done, self.done + size
                is_ended = bool(found) and end_offset is not None and found[0].base_offset >= end_offset
                if found and not is_ended and (start_offset is None or found[-1].last_offset >= start_offset):
                    yield Window(position, window[:size], found)
                self._above = max([self._above, *(batch.last_offset for batch in found)])
                if is_ended:
                    return
                if failure is not None or not found:
                    self._judge(file, failure)
                    return

    def _batches_of(self, window: memoryview) -> tuple[list[kcodec.RecordBatch], int, DecodeError | None]:
        """Return the complete batches at its beginning, the number of bytes of the next one, and its error."""
        batches = kcodec.batches(window, limits=self.limits)
        found: list[kcodec.RecordBatch] = []
        try:
            found.extend(batches)
            return found, batches.bytes_needed, None
        except DecodeError as error:
            return found, 0, error

    def _judge(self, file: SegmentFile, failure: DecodeError | None) -> None:
        """Determine whether the walk ended at the torn tail of an active segment, or at corruption."""
        try:
            if failure is not None:
                failure.position, failure.path = self.done, self.path
                self.tail = tail_of_refused(
                    file, failure, self.size, self._above, self.limits, is_active=self.is_active
                )
            else:
                self.tail = tail_of_cut(file, self.done, self.size, self._above, self.limits)
        except DecodeError as error:
            self.problem = error


@dataclass
class _Made:
    """The result of a thread for a window: the text, and the corrupt batches."""

    text: list[TextBytes]
    problems: list[DecodeError]
    end: int


def dump(path: Path, options: argparse.Namespace, output: Output, *, is_active: bool) -> ExitStatus:
    """Dump one segment file. Return FINDINGS if it is corrupt."""
    start, end = options.offsets
    walk = Walk(str(path), is_active)
    progress = Progress(output, path.name, has_data=True)
    problems: list[DecodeError] = []
    if options.records:
        _write_records(walk, options, output, progress, problems)
    else:
        rows = _batches(walk, start, end, progress, problems)
        write_items(output, rows, COLUMNS, _row, partial(_batch_fields, str(path)), as_json=options.json)
    progress.end()
    output.flush()
    if walk.problem is not None:
        problems.append(walk.problem)
    for problem in problems:
        output.say(f"kcodec: {problem}")
    if walk.tail is not None:
        output.say(
            f"kcodec: {path}: {walk.tail.remaining_bytes} bytes from byte {walk.tail.position} on are no batch: "
            f"{walk.tail.reason}"
        )
    return ExitStatus.FINDINGS if problems or walk.tail is not None else ExitStatus.OK


# Batches


def _batches(
    walk: Walk, start: int | None, end: int | None, progress: Progress, problems: list[DecodeError]
) -> Iterator[_CheckedBatch]:
    """Yield every batch that overlaps with the range, with the result of its CRC check."""
    for window in walk.windows(start, end):
        for batch in window.batches:
            if not _is_within(batch, start, end):
                continue
            position, fault = window.position + batch.position, None
            try:
                batch.ensure_valid()
            except CorruptBatchError as error:
                error.position, error.path = position, walk.path
                fault = error
                problems.append(error)
            yield _CheckedBatch(batch, position, fault)
        progress(walk.done, walk.size)


class _CheckedBatch(NamedTuple):
    """A batch, its position in the file, and the error of its CRC."""

    batch: kcodec.RecordBatch
    position: int
    fault: CorruptBatchError | None


def _is_within(batch: kcodec.RecordBatch, start: int | None, end: int | None) -> bool:
    return (start is None or batch.last_offset >= start) and (end is None or batch.base_offset < end)


def _batch_fields(path: str, checked: _CheckedBatch) -> dict[str, Any]:
    batch = checked.batch
    compression = str(batch.compression) if isinstance(batch.compression, kcodec.Compression) else batch.compression
    own = {"path": path, "position": checked.position, "is_valid": checked.fault is None, "compression": compression}
    own["timestamp_type"] = str(batch.timestamp_type)
    return {name: own[name] if name in own else getattr(batch, name) for name in BATCH_FIELDS}


def _kind(batch: kcodec.RecordBatch) -> str:
    """Return "data", "transactional", or the type of a control batch: COMMIT, ABORT ..."""
    if not batch.is_control_batch:
        return "transactional" if batch.is_transactional else "data"
    try:
        types = [
            str(record.control_type) for record in batch.decode(control_records="include", check_crcs=False).records()
        ]
    except DecodeError:
        return "control, unreadable"
    return ", ".join(types) or "control, empty"


def _row(checked: _CheckedBatch) -> list[Any]:
    batch, position, fault = checked
    kind = _kind(batch)
    meaning = {"ABORT": "bad", "COMMIT": "good"}.get(kind, "")
    crc = f"{batch.crc:08x}"
    return [
        batch.base_offset,
        batch.last_offset,
        batch.records_count,
        position,
        batch.size_in_bytes,
        str(batch.compression),
        Cell(kind, meaning),
        f"{batch.producer_id}/{batch.producer_epoch}" if batch.producer_id >= 0 else None,
        f"{batch.base_sequence}..{batch.last_sequence}" if batch.base_sequence >= 0 else None,
        batch.partition_leader_epoch,
        time_text(batch.max_timestamp),
        Cell(crc, "") if fault is None else Cell(f"{crc} BAD, bytes have {fault.computed_crc:08x}", "bad"),
    ]


# Records


def _write_records(
    walk: Walk, options: argparse.Namespace, output: Output, progress: Progress, problems: list[DecodeError]
) -> None:
    maker = _RecordsMaker(walk.path, options.json, *options.offsets)
    if not options.json:
        output.write(RECORD_HEAD)
    for made in in_order(maker.make, walk.windows(*options.offsets), options.threads):
        for text in made.text:
            output.write(text)
        problems += made.problems
        progress(made.end, walk.size)


class _RecordsMaker:
    """Converts windows to text. `make` runs on any thread."""

    def __init__(self, path: str, as_json: bool, start: int | None, end: int | None) -> None:
        self._path = path
        self._as_json = as_json
        self._start = start
        self._end = end
        self._template = json_lines(RECORD_FIELDS) if as_json else RECORD_LINE
        self._columns = self._template.columns

    def make(self, window: Window) -> _Made:
        """Return the text of all records of a window, without corrupt batches."""
        made = _Made([], [], window.position + window.data.nbytes)
        at, waiting = 0, window.batches
        while waiting:
            decoded = kcodec.decode(
                window.data[at:],
                columns=self._columns,
                control_records="include",
                start_offset=self._start,
                end_offset=self._end,
                on_error="stop",
            )
            error = decoded.error
            behind = window.data.nbytes if error is None or error.position is None else at + error.position
            here = [batch for batch in waiting if batch.position < behind]
            waiting = waiting[len(here) :]
            if error is not None:
                error.position, error.path = window.position + behind, self._path
                made.problems.append(error)
                here.append(waiting[0])
            made.text.append(self._template.format(decoded, lines=self._lines(here, window.position, at, error)))
            if error is not None:
                at, waiting = waiting[0].position + waiting[0].size_in_bytes, waiting[1:]
        return made

    def _lines(
        self, batches: list[kcodec.RecordBatch], position: int, at: int, error: DecodeError | None
    ) -> list[tuple[int, bytes]]:
        """Return the line above the records of each batch. If there is an error, the last line is that of the corrupt
        batch."""
        if self._as_json:
            return []
        lines = []
        for number, batch in enumerate(batches):
            if _is_within(batch, self._start, self._end):
                fault = error if number == len(batches) - 1 else None
                lines.append((batch.position - at, batch_line(batch, position + batch.position, fault)))
        return lines


def batch_line(batch: kcodec.RecordBatch, position: int, fault: DecodeError | None) -> bytes:
    """Return the line above the records of a batch, which has all fields of its header."""
    notes = [
        f"batch {batch.base_offset}..{batch.last_offset}: position {position}, {batch.size_in_bytes} bytes",
        f"records_count {cell_text(batch.records_count)}",
        f"magic {batch.magic}, {batch.compression}, {batch.timestamp_type}",
        f"max_timestamp {batch.max_timestamp}, leader_epoch {batch.partition_leader_epoch}",
    ]
    if batch.producer_id >= 0:
        notes.append(f"producer_id {batch.producer_id}/{batch.producer_epoch}")
    if batch.base_sequence >= 0:
        notes.append(f"sequence {batch.base_sequence}..{batch.last_sequence}")
    if batch.is_transactional:
        notes.append("transactional")
    if batch.is_control_batch:
        notes.append("control")
    if batch.delete_horizon_ms is not None:
        notes.append(f"delete_horizon_ms {batch.delete_horizon_ms}")
    crc = f"crc {batch.crc:08x}"
    if fault is None:
        notes.append(f"{crc} valid")
    elif isinstance(fault, CorruptBatchError):
        notes.append(f"{crc} BAD: the bytes have {fault.computed_crc:08x}")
    else:
        notes.append(f"{crc}, UNREADABLE: {fault.reason}")
    return (", ".join(notes) + "\n").encode("utf-8")
