# SPDX-License-Identifier: Apache-2.0
"""Arrow batches into Parquet files of limited size; used in the tasks of `land`.

The defaults suit records of Kafka that are read often and written once: values are neither collected in a dictionary
nor compared for statistics, as they are large and rarely repeat, and offsets and timestamps are stored as differences
(DELTA_BINARY_PACKED). `options` overrides each of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcodec.integers import as_integer, shown
from kcodec.spark.landing_folder import sync

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

#: Of Arrow data in one row group, which a task keeps in memory. Row groups of 128 MiB, Spark's default, would keep more
#: in each of its tasks than its memory for Python is for.
ROW_GROUP_BYTES = 64 << 20
#: Of a file. Larger ones are not read quicker; Spark cuts them at row groups.
MAX_FILE_BYTES = 1 << 30
#: Stored as differences if they are numbers or times.
RISING_COLUMNS = ("offset", "timestamp")
#: Neither in a dictionary nor in statistics.
OPAQUE_COLUMNS = ("value",)
HEADER_KEYS = "headers.list.element.key"


@dataclass(frozen=True)
class ParquetSettings:
    """How files are written.

    max_file_bytes:  of a file: it ends before the row group that would presumably exceed it.
    row_group_bytes: of Arrow data in a row group.
    options:         of ``pyarrow.parquet.ParquetWriter``.
    """

    compression: str = "zstd"
    compression_level: int | None = None
    max_file_bytes: int = MAX_FILE_BYTES
    row_group_bytes: int = ROW_GROUP_BYTES
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_file_bytes", "row_group_bytes"):
            value = getattr(self, name)
            number = as_integer(value)
            if number is None or number < 1:
                raise ValueError(f"{name} is {shown(value)}: expected a whole number of bytes above 0")
            object.__setattr__(self, name, number)
        if self.compression.lower() not in ("none", "snappy", "gzip", "brotli", "lz4", "zstd"):
            raise ValueError(f"compression is {self.compression!r}: expected zstd, snappy, gzip, brotli, lz4 or none")

    def writer_options(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the arguments of ``pyarrow.parquet.ParquetWriter`` for files of a schema."""
        import pyarrow as pa

        rising = [
            column.name
            for column in schema
            if column.name in RISING_COLUMNS and (pa.types.is_int64(column.type) or pa.types.is_timestamp(column.type))
        ]
        flat = [column.name for column in schema if not pa.types.is_nested(column.type)]
        compared = [name for name in flat if name not in OPAQUE_COLUMNS]
        return {
            "compression": self.compression,
            "compression_level": self.compression_level,
            "use_dictionary": [*(name for name in compared if name not in rising), HEADER_KEYS],
            "column_encoding": dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
            "write_statistics": compared,
            **self.options,
        }


@dataclass(frozen=True)
class WrittenFile:
    """A file: its name in the folder that it was written to, its rows and bytes."""

    name: str
    rows: int
    bytes: int


class ParquetFiles:
    """Writes files of one schema into a folder, with names that no other writer takes.

        with ParquetFiles(filesystem, folder, settings) as files:
            files.write(batches)
        files.written, files.schema

    What it has written is removed if `with` ends by an error. without: columns that are left out of the files.
    """

    def __init__(
        self, filesystem: fs.FileSystem, folder: str, settings: ParquetSettings, *, without: Sequence[str] = ()
    ) -> None:
        self.written: list[WrittenFile] = []
        self.schema: pa.Schema | None = None
        self._filesystem, self._folder, self._settings = filesystem, folder, settings
        self._without = set(without)
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._name = ""
        self._rows = 0
        self._sink: Any = None
        self._writer: Any = None

    def __enter__(self) -> ParquetFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._end_file()
            return
        self._abandon()

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write batches. Raise ValueError for one of another schema than the first."""
        for given in batches:
            without = self._without.intersection(given.schema.names)
            batch = given.drop_columns(list(without)) if without else given
            if self.schema is None:
                self.schema = batch.schema
            elif not batch.schema.equals(self.schema):
                raise ValueError(
                    f"the function yielded a batch with the columns {describe(batch.schema)}, after one with "
                    f"{describe(self.schema)}: all batches must have the same schema"
                )
            if not batch.num_rows:
                continue
            self._kept.append(batch)
            self._kept_bytes += batch.nbytes
            if self._kept_bytes >= self._settings.row_group_bytes:
                self._write_row_group()

    def _write_row_group(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        assert self.schema is not None
        table = pa.Table.from_batches(self._kept, self.schema)
        self._kept, self._kept_bytes = [], 0
        if self._writer is None:
            self._name, self._rows = f"{uuid.uuid4().hex}.staged", 0
            self._sink = self._filesystem.open_output_stream(f"{self._folder}/{self._name}")
            options = self._settings.writer_options(self.schema)
            self._writer = parquet.ParquetWriter(self._sink, self.schema, **options)
        before = self._sink.tell()
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._rows += table.num_rows
        size = self._sink.tell()
        if size + (size - before) > self._settings.max_file_bytes:
            self._end_file()

    def _end_file(self) -> None:
        from pyarrow import fs

        if self._kept:
            self._write_row_group()
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        writer.close()
        size = self._sink.tell()
        self._sink.close()
        self.written.append(WrittenFile(self._name, self._rows, size))
        if isinstance(self._filesystem, fs.LocalFileSystem):
            sync(f"{self._folder}/{self._name}")

    def _abandon(self) -> None:
        names = [file.name for file in self.written]
        if self._writer is not None:
            self._writer.close()
            self._sink.close()
            names.append(self._name)
        for name in names:
            self._filesystem.delete_file(f"{self._folder}/{name}")


def describe(schema: pa.Schema) -> str:
    """Return the columns and types of a schema in one line."""
    return ", ".join(f"{column.name} {column.type}" for column in schema)
