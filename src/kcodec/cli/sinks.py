# SPDX-License-Identifier: Apache-2.0
"""Files that ``kcodec convert`` and ``kcodec txn timeline --svg`` write: each appears complete, by a rename, or not at
all. Only the file to which stdout is redirected is written without a rename."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import select
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from kcodec import DecodedRecords
from kcodec.cli.parser import CommandError, nearest
from kcodec.log import Log
from kcodec.text import TextTemplate, csv_lines, json_lines

if TYPE_CHECKING:
    import pyarrow
    from typing_extensions import Buffer

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
STDOUT = 1  # its descriptor
# A row group of Parquet is closed once its columns take this number of bytes: what is held is that, and its pages
# compressed.
ROW_GROUP_BYTES = 32 << 20
# Fails on any file or link that is there already. What a system does not have is nothing there.
SCRATCH_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
SCRATCH_FLAGS |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class SinkOptions:
    """What is to be written: the columns in their order, and how it is compressed (None: as the format likes it)."""

    columns: tuple[str, ...]
    compression: str | None
    schema: ColumnsSchema


class Sink(Protocol):
    """Takes chunks of records; `columns` are those that it needs to see."""

    columns: tuple[str, ...]

    def write(self, decoded: DecodedRecords, log: Log) -> None:
        """Write the records of a chunk of this log."""


def format_of(path: Path) -> str:
    """Return the format that a file's name says; CommandError if it says none."""
    if path.suffix not in FORMATS:
        raise CommandError(
            f"{path}: unknown kind of file {path.suffix!r}{nearest(path.suffix, FORMATS)}; pass --format to name one"
        )
    return FORMATS[path.suffix]


class UnbufferedFile(io.FileIO):
    """A file for binary output without a buffer. A `write` writes all bytes, or raises an OSError that names the output
    file: with little space on the disk, the operating system writes only the first bytes, and reports no error.

    file:        Path or descriptor to open.
    output_path: Name of the output file in errors.
    """

    def __init__(self, file: Path | int, output_path: Path) -> None:
        super().__init__(file, "wb")
        self._output_path = output_path

    def write(self, data: Buffer, /) -> int:
        """Write all bytes, and return their number."""
        with memoryview(data).cast("B") as view, named_errors(self._output_path):
            position = 0
            while position < view.nbytes:
                written = super().write(view[position:])
                if written is None:  # the descriptor is in non-blocking mode, and its pipe is full
                    select.select([], [self.fileno()], [])
                else:
                    position += written
            return position

    def sync(self) -> None:
        """Wait until the operating system has stored the bytes. Some file systems report a full disk only now."""
        with named_errors(self._output_path):
            os.fsync(self.fileno())


@contextlib.contextmanager
def named_errors(output_path: Path) -> Iterator[None]:
    """Raise an OSError of the block as the same error with the name of the output file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(output_path)) from error


def copy_of_stdout(path: Path) -> int | None:
    """Return a copy of the descriptor of stdout if `path` names the file to which stdout is redirected, as /dev/stdout
    does. Otherwise return None. Writes through the copy continue at the position of stdout, so they do not overwrite
    what other programs have written."""
    try:
        return os.dup(STDOUT) if os.path.samestat(path.stat(), os.fstat(STDOUT)) else None
    except OSError:  # the file does not exist, or stdout is closed
        return None


@contextlib.contextmanager
def atomic_file(path: Path, for_stdout: str = "") -> Iterator[UnbufferedFile]:
    """Return a file next to `path` to write to; in the end it is synced and renamed, or removed after an error. If
    `path` is the file to which stdout is redirected, write to stdout instead, because a rename would replace what was
    written there before.

    for_stdout: End of the error about the name "-".

    Other users that can write to the directory can neither foresee its name nor put anything in its place before it is
    opened: it is written through this one descriptor.
    """
    if path == Path("-"):
        raise CommandError(f"-: expected the name of a file{for_stdout}")
    if path.is_dir():
        raise CommandError(f"{path} is a directory: expected the name of a file")
    if path.exists() and not path.is_file():
        raise CommandError(
            f"{path} is not a regular file, and would be replaced by one: name a file that is not there or that may be "
            "replaced; to write records to a pipe, use `kcodec cat`"
        )
    stdout = copy_of_stdout(path)
    if stdout is not None:
        with UnbufferedFile(stdout, path) as file:
            yield file
            file.sync()
        return
    path = _resolved(path)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    folder = path.parent
    if not folder.is_dir():
        raise CommandError(f"{path}: the directory {folder} does not exist")
    scratch = folder / f".{path.name[:100]}.{secrets.token_hex(16)}.unfinished"
    try:  # from here on: an interrupt can come between the call that makes the file and the next line
        # As open() makes files, with the permissions that the umask leaves.
        with named_errors(path):
            descriptor = os.open(scratch, SCRATCH_FLAGS, 0o666)
        with UnbufferedFile(descriptor, path) as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)  # the new file is not more accessible than the old one
            yield file
            file.sync()  # after the rename the bytes cannot be lost any more, nor the name
        with named_errors(path):
            scratch.replace(path)  # after the file was closed: Windows renames no open file
        if hasattr(os, "O_DIRECTORY"):  # not on Windows, where a directory cannot be opened
            _sync_directory(folder)
    finally:
        scratch.unlink(missing_ok=True)


def _resolved(path: Path) -> Path:
    """Return the file that a symbolic link names: that one is replaced, and not the link."""
    try:
        found = path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        raise CommandError(f"{path}: the file that this symbolic link names is not found: {error}") from error
    if found.is_symlink():  # links in a circle, from Python 3.13 on
        raise CommandError(f"{path}: the file that this symbolic link names is not found: the links are a circle")
    return found


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def sink_of(kind: str, path: Path, wanted: SinkOptions) -> Iterator[Sink]:
    """Return a sink of this format for `path`."""
    with (
        atomic_file(path, "; to write records to stdout, use `kcodec cat`") as file,
        _OPENERS[kind](file, wanted) as sink,
    ):
        yield sink


# Text


class _TextSink:
    """Lines, by a template for each log."""

    def __init__(self, file: IO[bytes], lines: Callable[..., TextTemplate], columns: tuple[str, ...]) -> None:
        self._file = file
        self._lines = lines
        self._columns = columns
        self.columns = lines(columns).columns
        self._templates: dict[tuple[str | None, int | None], TextTemplate] = {}

    def write(self, decoded: DecodedRecords, log: Log) -> None:
        """Write the records of a chunk of this log."""
        place = (log.topic, log.partition)
        if place not in self._templates:
            self._templates[place] = self._lines(self._columns, topic=log.topic, partition=log.partition)
        self._file.write(self._templates[place].format(decoded))


@contextlib.contextmanager
def _text_sink(lines: Callable[..., TextTemplate], file: IO[bytes], wanted: SinkOptions) -> Iterator[Sink]:
    if wanted.compression not in (None, "none"):
        raise CommandError("--compression is for Parquet and Arrow files: compress text files with another tool")
    if lines is csv_lines:
        file.write((",".join(wanted.columns) + "\n").encode())
    yield _TextSink(file, lines, wanted.columns)


# Arrow


class _ArrowSink:
    """Columns, gathered until they are worth a row group or a batch."""

    def __init__(self, write: Callable[[pyarrow.Table], None], columns: tuple[str, ...]) -> None:
        self._write = write
        self.columns = columns
        self._waiting: list[Any] = []
        self._bytes = 0

    def write(self, decoded: DecodedRecords, log: Log) -> None:
        """Write the records of a chunk of this log."""
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


def needed_pyarrow(purpose: str) -> Any:
    """Import pyarrow. Raise CommandError with the remedy if it is missing. purpose: "restore needs"."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise CommandError(f"{purpose} pyarrow: install the package pyarrow") from error
    return pyarrow


@contextlib.contextmanager
def _parquet_sink(file: IO[bytes], wanted: SinkOptions) -> Iterator[Sink]:
    pyarrow = needed_pyarrow("Parquet and Arrow files need")
    options = {"compression": wanted.compression or "zstd", "write_batch_size": 4096}
    with pyarrow.parquet.ParquetWriter(file, pyarrow.schema(wanted.schema), **options) as writer:
        sink = _ArrowSink(
            lambda table: writer.write_table(table, row_group_size=max(1, table.num_rows)), wanted.columns
        )
        yield sink
        sink.flush()


@contextlib.contextmanager
def _arrow_sink(file: IO[bytes], wanted: SinkOptions) -> Iterator[Sink]:
    pyarrow = needed_pyarrow("Parquet and Arrow files need")
    if wanted.compression not in (None, "none", "lz4", "zstd"):
        raise CommandError(f"--compression of Arrow files must be none, lz4 or zstd, not {wanted.compression}")
    compression = None if wanted.compression in (None, "none") else wanted.compression
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_file(file, pyarrow.schema(wanted.schema), options=options) as writer:
        sink = _ArrowSink(writer.write_table, wanted.columns)
        yield sink
        sink.flush()


_OPENERS: dict[str, Callable[[IO[bytes], SinkOptions], contextlib.AbstractContextManager[Sink]]] = {
    "parquet": _parquet_sink,
    "arrow": _arrow_sink,
    "csv": partial(_text_sink, csv_lines),
    "jsonl": partial(_text_sink, json_lines),
}
