# SPDX-License-Identifier: Apache-2.0
"""Files that ``kcodec convert`` writes: each appears whole, by a rename, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from kcodec import DecodedRecords
from kcodec.cli.parser import CommandError, nearest
from kcodec.log import Log
from kcodec.text import TextTemplate, csv_lines, json_lines

if TYPE_CHECKING:
    import pyarrow

    from kcodec._fast import ColumnsSchema

# suffix -> format
FORMATS = {
    ".log": "log",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
COMPRESSIONS = ("none", "snappy", "gzip", "lz4", "zstd")
# A row group of Parquet is closed once its columns take so many bytes: what is held is that, and its pages compressed.
ROW_GROUP_BYTES = 32 << 20


@dataclass(frozen=True)
class Wanted:
    """What is to be written: the columns in their order, and how it is compressed (None: as the format likes it)."""

    columns: tuple[str, ...]
    compression: str | None
    schema: ColumnsSchema


class Sink(Protocol):
    """Takes chunks of records; `columns` are those that it needs to see."""

    columns: tuple[str, ...]

    def write(self, decoded: DecodedRecords, log: Log) -> None:
        """The records of a chunk of this log."""


def format_of(path: Path) -> str:
    """The format that a file's name tells; CommandError if it tells none."""
    if path.suffix not in FORMATS:
        raise CommandError(
            f"{path}: unknown kind of file {path.suffix!r}{nearest(path.suffix, FORMATS)}; or say --format"
        )
    return FORMATS[path.suffix]


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; what lies there in the end is synced and renamed, or removed after an error."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise CommandError(f"{path}: the folder {folder} does not exist")
    if path.is_dir():
        raise CommandError(f"{path} is a directory: name a file")
    scratch = folder / f".{path.name}.{os.getpid()}.unfinished"
    try:
        yield scratch
        _sync(scratch, os.O_RDWR)
        scratch.replace(path)
        if hasattr(os, "O_DIRECTORY"):  # not on Windows, where a directory cannot be opened
            _sync(folder, os.O_RDONLY)
    finally:
        scratch.unlink(missing_ok=True)


def _sync(path: Path, flags: int) -> None:
    """fsync: after the rename neither the file's bytes nor its name can be lost any more."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def sink_of(kind: str, path: Path, wanted: Wanted) -> Iterator[Sink]:
    """A sink of this format for `path`."""
    with atomic_file(path) as scratch, _OPENERS[kind](scratch, wanted) as sink:
        yield sink


# --------------------------------------------------------------------------------------------------------------- text


class _TextSink:
    """Lines, by a template for each log."""

    def __init__(self, file: IO[bytes], lines: Callable[..., TextTemplate], columns: tuple[str, ...]) -> None:
        self._file = file
        self._lines = lines
        self._columns = columns
        self.columns = lines(columns).columns
        self._templates: dict[tuple[str | None, int | None], TextTemplate] = {}

    def write(self, decoded: DecodedRecords, log: Log) -> None:
        """The records of a chunk of this log."""
        place = (log.topic, log.partition)
        if place not in self._templates:
            self._templates[place] = self._lines(self._columns, topic=log.topic, partition=log.partition)
        self._file.write(self._templates[place].format(decoded))


@contextlib.contextmanager
def _text_sink(path: Path, wanted: Wanted, lines: Callable[..., TextTemplate], head: bytes) -> Iterator[Sink]:
    if wanted.compression not in (None, "none"):
        raise CommandError("--compression is for Parquet and Arrow files: compress text with a tool of its own")
    with path.open("xb", buffering=0) as file:
        file.write(head)
        yield _TextSink(file, lines, wanted.columns)


def _csv_sink(path: Path, wanted: Wanted) -> contextlib.AbstractContextManager[Sink]:
    return _text_sink(path, wanted, csv_lines, (",".join(wanted.columns) + "\n").encode())


def _jsonl_sink(path: Path, wanted: Wanted) -> contextlib.AbstractContextManager[Sink]:
    return _text_sink(path, wanted, json_lines, b"")


# -------------------------------------------------------------------------------------------------------------- Arrow


class _ArrowSink:
    """Columns, gathered until they are worth a row group or a batch."""

    def __init__(self, write: Callable[[pyarrow.Table], None], columns: tuple[str, ...]) -> None:
        self._write = write
        self.columns = columns
        self._waiting: list[Any] = []
        self._bytes = 0

    def write(self, decoded: DecodedRecords, log: Log) -> None:
        """The records of a chunk of this log."""
        import pyarrow

        batch = pyarrow.record_batch(decoded)
        self._waiting.append(batch)
        self._bytes += batch.get_total_buffer_size()
        if self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        import pyarrow

        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting:
            self._write(pyarrow.Table.from_batches(waiting))


def _pyarrow() -> None:
    """Late, and with the remedy."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise CommandError("Parquet and Arrow files need pyarrow: pip install kcodec[arrow]") from error


@contextlib.contextmanager
def _parquet_sink(path: Path, wanted: Wanted) -> Iterator[Sink]:
    _pyarrow()
    import pyarrow.parquet

    options = {"compression": wanted.compression or "zstd", "write_batch_size": 4096}
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema(wanted.schema), **options) as writer:
        sink = _ArrowSink(
            lambda table: writer.write_table(table, row_group_size=max(1, table.num_rows)), wanted.columns
        )
        yield sink
        sink.flush()


@contextlib.contextmanager
def _arrow_sink(path: Path, wanted: Wanted) -> Iterator[Sink]:
    _pyarrow()
    import pyarrow

    if wanted.compression not in (None, "none", "lz4", "zstd"):
        raise CommandError(f"Arrow files cannot be compressed by {wanted.compression}: possible are none, lz4, zstd")
    compression = None if wanted.compression in (None, "none") else wanted.compression
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with (
        pyarrow.OSFile(str(path), "wb") as file,
        pyarrow.ipc.new_file(file, pyarrow.schema(wanted.schema), options=options) as writer,
    ):
        sink = _ArrowSink(writer.write_table, wanted.columns)
        yield sink
        sink.flush()


_OPENERS: dict[str, Callable[[Path, Wanted], contextlib.AbstractContextManager[Sink]]] = {
    "parquet": _parquet_sink,
    "arrow": _arrow_sink,
    "csv": _csv_sink,
    "jsonl": _jsonl_sink,
}
