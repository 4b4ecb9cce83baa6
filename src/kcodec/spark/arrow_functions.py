# SPDX-License-Identifier: Apache-2.0
"""Decoding inside a Spark task, without the data source: ``mapInArrow`` and ``rdd.mapPartitions``.

Both functions decode in the task that has the bytes, and also work on Spark 3.5. The default isolation level is
read_uncommitted, as in Spark's own Kafka source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import kcodec
from kcodec.arguments import take_renamed
from kcodec.errors import DecodeError
from kcodec.spark import convert, file_ranges
from kcodec.spark.columns import SparkColumn, columns_named, ddl, default_columns, suggestion
from kcodec.spark.workers import for_workers, prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

BOTH_OPTIONS = ("isolation_level", "start_offset", "end_offset", "on_error", "check_crcs", "limits")
BYTES_OPTIONS = (*BOTH_OPTIONS, "aborted_transactions", "last_stable_offset", "control_records", "threads")
SHAPE_OPTIONS = ("columns", "include_headers", "include_batch_meta")


def decode_in_arrow(
    df: DataFrame,
    *,
    column: str | None = None,
    paths: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    **decode_options: Any,
) -> DataFrame:
    """Return a DataFrame with the records that a column of `df` contains, as bytes or in files. It is evaluated lazily.

    df:     DataFrame with the bytes, or with the paths of the files.
    column: Name of a binary column. Each cell is one record set, for example the records of a Fetch response or a small
            segment, and is decoded with its own transactions. A NULL cell has no rows. If neither `column` nor `paths`
            is given, the column is "value".
    paths:  Name of a string column with ``.log`` files and partition directories, which every executor must be able to
            read. With read_committed, the driver collects the paths now. It reads the headers of the batches in each
            directory to find the outcomes of the transactions. With read_uncommitted, the driver reads no file. In both
            cases, tasks decode the files.
    topic, partition: Values of the columns of these names. For files, they are used if the name of the directory does
            not contain them.
    decode_options: Options of ``kcodec.decode``: isolation_level, start_offset, end_offset, on_error, check_crcs and
            limits. For cells also aborted_transactions, last_stable_offset, control_records and threads.
            `columns` names the columns of the result in their order, as Spark or kcodec spells them. Without it, the
            result has the columns of Spark's own Kafka source. include_headers=True and include_batch_meta=True add
            more columns.

    A corrupt batch fails the task with its error, which names the row of the task or the file. With
    ``on_error="skip"``, the task continues after the batch and logs the number of skipped batches to the logger
    ``kcodec.spark``.

    Raise ValueError if an option or a column is unknown, and TypeError if the column has another type.
    """
    if column is not None and paths is not None:
        raise ValueError("column and paths exclude each other: bytes come from cells or from files")
    columns = _columns(decode_options)
    if paths is not None:
        _check(decode_options, BOTH_OPTIONS, "decoding files")
        reading = file_ranges.RangeOptions(columns, **decode_options)
        selected = _selected(df, paths, "string", "the paths of files")
        read = _reader_of_files(selected, reading, topic, partition)
        return selected.mapInArrow(for_workers(read), ddl(columns))
    _check(decode_options, BYTES_OPTIONS, "decoding record sets")
    selected = _selected(df, "value" if column is None else column, "binary", "the bytes of record batches")

    def decode_cells(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cells = chain.from_iterable(batch.column(0) for batch in batches)
        for row, cell in enumerate(cells):
            if cell.is_valid:
                yield from _of_bytes(cell.as_buffer(), row, columns, topic, partition, decode_options)

    return selected.mapInArrow(for_workers(decode_cells), ddl(columns))


def decode_partition(
    iterator: Iterable[bytes | str | os.PathLike[str] | None],
    *,
    topic: str | None = None,
    partition: int | None = None,
    **decode_options: Any,
) -> Iterator[tuple[Any, ...]]:
    """For ``rdd.mapPartitions``: record sets or paths in, one tuple a record out, in Spark's column order.

    iterator: bytes or paths of ``.log`` files. Each item is read by itself: a transaction whose end marker is in
    another file counts as open. An item that is None is skipped. Options are those of
    ``decode_in_arrow``; a timestamp is an aware datetime, headers a list of (name, value) or None.

    This function makes a Python object for each field, so it is 5 to 10 times slower than ``decode_in_arrow`` (5 times
    with ``verifySchema=False``). Use it if you need an RDD.

    An error names the row of the task, counted from 0, or the file. Raise TypeError for a row that is neither bytes nor
    a path.
    """
    prepare_worker()
    columns = _columns(decode_options)
    _check(decode_options, BYTES_OPTIONS, "decoding record sets")
    for row, item in enumerate(iterator):
        if item is None:
            continue
        if isinstance(item, (str, os.PathLike)):
            _check(decode_options, BOTH_OPTIONS, "decoding files")
            reading = file_ranges.RangeOptions(columns, **decode_options)
            batches = file_ranges.read_alone(os.fspath(item), reading, topic, partition)
        else:
            batches = _of_bytes(item, row, columns, topic, partition, decode_options)
        for batch in batches:
            yield from convert.tuples(batch)


def _columns(decode_options: dict[str, Any]) -> tuple[SparkColumn, ...]:
    """Return the columns that columns=, include_headers= and include_batch_meta= request. Remove these three from the
    options, and rename options with deprecated names."""
    take_renamed(decode_options, "verify_crc", "check_crcs")
    names: Sequence[str] | None = decode_options.pop("columns", None)
    headers = decode_options.pop("include_headers", False)
    batch_meta = decode_options.pop("include_batch_meta", False)
    if names is None:
        return default_columns(headers, batch_meta)
    if headers or batch_meta:
        raise ValueError("columns excludes include_headers and include_batch_meta: add their columns to columns")
    if isinstance(names, str):
        raise TypeError(f"columns must be a sequence of names, not the string {names!r}")
    return columns_named(names)


def _check(decode_options: dict[str, Any], known: Sequence[str], what: str) -> None:
    """Raise ValueError for an option that is not in `known`."""
    for name in decode_options:
        if name == "binary_type":
            raise ValueError(
                f"binary_type must be 'binary', the only one that Spark reads, not {decode_options[name]!r}"
            )
        if name not in known:
            raise ValueError(f"{what} has no option {name!r}{suggestion(name, [*known, *SHAPE_OPTIONS])}")


def _selected(df: DataFrame, name: str, expected: str, content: str) -> DataFrame:
    """Return a DataFrame with one column. Raise TypeError if its type is not `expected`, which `content` has."""
    selected = df.select(name)
    found = selected.schema.fields[0].dataType
    if found.typeName() != expected:
        remedy = ""
        if expected == "binary" and found.typeName() == "string":
            remedy = f"; if it contains the paths of files, pass paths={name!r}"
        raise TypeError(
            f"column {name!r} is of type {found.simpleString()}: expected {expected}, for {content}{remedy}"
        )
    return selected


def _of_bytes(
    data: Any,
    row: int,
    columns: Sequence[SparkColumn],
    topic: str | None,
    partition: int | None,
    options: dict[str, Any],
) -> Iterator[pa.RecordBatch]:
    """Yield one record set in Spark's layout. `row` is its row number in the task, for errors and logs."""
    try:
        size = memoryview(data).nbytes
    except TypeError:
        raise TypeError(
            f"row {row} of the task is of type {type(data).__name__}: expected the bytes of record batches, the path "
            "of a file, or None"
        ) from None
    try:
        decoded = kcodec.decode(data, columns=convert.core_columns(columns), **options)
        convert.log_counts(f"the record set in row {row}", decoded.counts, size, decoded.error)
        yield from convert.batches_of_record_set(decoded, columns, topic, partition)
    except DecodeError as error:
        error.reason += f"; the record set is in row {row} of the task"
        raise


def _reader_of_files(
    paths: DataFrame, reading: file_ranges.RangeOptions, topic: str | None, partition: int | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that mapInArrow applies to the rows with paths."""
    planned: dict[str, tuple[file_ranges.FileRange, ...]] = {}
    if reading.isolation_level == "read_committed":
        named = [row[0] for row in paths.distinct().collect() if row[0] is not None]
        planned = file_ranges.plan_paths(named, reading, topic, partition)

    def read_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column(0).to_pylist():
                if path in planned:
                    yield from file_ranges.read_ranges(planned[path], reading)
                elif path is not None:
                    yield from file_ranges.read_alone(path, reading, topic, partition)

    return read_files
