# SPDX-License-Identifier: Apache-2.0
"""Encoding of tables for `send_arrow`: the compiled encoder reads the columns, and no row becomes a Python object."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kcodec._fast import check_arrow_columns, encode, partition_for
from kcodec.errors import EncodeError
from kcodec.producer.batch import ANY_PARTITION, BATCH_OVERHEAD, RECORD_OVERHEAD
from kcodec.producer.options import ProducerSettings
from kcodec.record.rewrite import set_base_offset

if TYPE_CHECKING:
    import numpy
    import pyarrow

#: Bytes of a batch before compression, where `batch_size` is not larger: a table is there at once, nothing lingers.
ARROW_BATCH_BYTES = 256 * 1024
#: Bytes of a table that are encoded at a time.
WINDOW_BYTES = 4 * 1024 * 1024
#: Returns the partition of each key, ANY_PARTITION for those that go where records without a key go.
ChooseOfKeys = Callable[[Sequence["bytes | None"]], list[int]]
COLUMNS = ("timestamp", "key", "value", "headers", "key_schema_id", "value_schema_id")
#: Position of the base timestamp in a batch, with 8 bytes.
BASE_TIMESTAMP_AT = 27
#: The field of an EncodeError for a record that is larger than a batch may be.
TOO_LARGE = "record"


class TableBatch(NamedTuple):
    """One batch of a table. `partition` is ANY_PARTITION for rows that are treated as records without a key."""

    partition: int
    data: bytearray
    records_count: int

    @property
    def first_timestamp(self) -> int:
        """The timestamp of the first row in milliseconds."""
        at = BASE_TIMESTAMP_AT
        return int.from_bytes(self.data[at : at + 8], "big", signed=True)


def table_batches(
    source: Any,
    partitions: int,
    settings: ProducerSettings,
    timestamp: int,
    framing: str | None,
    default_partition: int = ANY_PARTITION,
    choose: ChooseOfKeys | None = None,
) -> Iterable[TableBatch]:
    """Return the batches of a table for a topic with this number of partitions. The rows of a partition keep their
    order.

    The column `partition` determines the partition of a row. If it is missing or null, `default_partition` does, unless
    it is ANY_PARTITION. In that case, `choose` or murmur2 determines the partition from the stored key, which includes
    the prefix that `framing` adds. Without a key, or with `settings.ignore_keys`, the partition is ANY_PARTITION.
    `timestamp` applies to rows without a timestamp. Raise EncodeError with the row, TypeError or ValueError.

    If the columns alone prove that every row is a valid record, batches are encoded one by one, as they are taken.
    Otherwise all are encoded before the first is returned, so that a table with an invalid row sends nothing.
    """
    table = _table(source)
    ignore_keys = settings.ignore_keys or default_partition != ANY_PARTITION
    keys = None if ignore_keys else _stored_keys(table, framing)
    rows = _partitions_of(table, partitions, keys, ignore_keys, default_partition, choose)
    most = min(max(settings.batch_size, ARROW_BATCH_BYTES), settings.max_request_size)
    made = _encode_windows(table, rows, settings, timestamp, framing, most)
    if _makes_records(table, most):
        return made
    try:
        return list(made)
    except EncodeError as error:
        if error.field != TOO_LARGE:
            raise
    # A record may be larger than a usual batch. As with `send`, max_request_size is its limit.
    try:
        return list(_encode_windows(table, rows, settings, timestamp, framing, settings.max_request_size))
    except EncodeError as error:
        if error.field != TOO_LARGE:
            raise
        reason = (
            f"the record takes {error.value} bytes, above max_request_size {settings.max_request_size}; send smaller "
            "records, or raise max_request_size and the max.message.bytes of the topic"
        )
        raise EncodeError(reason, field="max_request_size", value=error.value, row=error.row) from None


def _makes_records(table: pyarrow.Table, most: int) -> bool:
    """Return whether each row certainly fits into a record of at most this number of bytes."""
    import pyarrow.compute as compute

    size = BATCH_OVERHEAD + RECORD_OVERHEAD
    for name in table.column_names:
        if name in {"key", "value"}:
            if table.schema.field(name).type.id not in _plain_types():
                return False
            lengths = compute.call_function("binary_length", [table[name]])
            size += compute.call_function("max", [lengths]).as_py() or 0
        elif name != "partition":
            return False
    return size <= most


def _plain_types() -> set[int]:
    """Return the types whose lengths pyarrow computes: not those of nulls and dictionaries."""
    import pyarrow

    plain = (pyarrow.binary(), pyarrow.string(), pyarrow.large_binary(), pyarrow.large_string(), pyarrow.binary(1))
    return {each.id for each in plain}


def _encode_windows(
    table: pyarrow.Table,
    rows: numpy.ndarray[Any, Any] | None,
    settings: ProducerSettings,
    timestamp: int,
    framing: str | None,
    most_bytes: int,
) -> Iterator[TableBatch]:
    """Encode WINDOW_BYTES at a time. Encoded batches are soon sent and released, so their memory is reused."""
    names = [name for name in COLUMNS if name in table.column_names]
    step = max(WINDOW_BYTES * len(table) // max(table.nbytes, 1), 1)
    for start in range(0, len(table), step):
        window = table.slice(start, step).select(names)
        for partition, part, numbers in _by_partition(window, None if rows is None else rows[start : start + step]):
            try:
                encoded = encode(
                    part,
                    compression=settings.compression_type,  # type: ignore[arg-type]
                    compression_level=settings.compression_level,
                    timestamp=timestamp,
                    framing=framing,  # type: ignore[arg-type]
                    max_batch_bytes=most_bytes,
                )
            except EncodeError as error:
                if error.row is not None:
                    error.row = start + (error.row if numbers is None else int(numbers[error.row]))
                raise
            for batch in encoded.batches:
                data = bytearray(batch.data)
                set_base_offset(data, 0)  # a leader counts the records of every batch from 0
                yield TableBatch(partition, data, batch.records_count or 0)


def _table(source: Any) -> pyarrow.Table:
    import pyarrow

    if isinstance(source, pyarrow.RecordBatch):
        table = pyarrow.Table.from_batches([source])
    elif isinstance(source, pyarrow.RecordBatchReader):
        table = source.read_all()
    elif type(source).__name__ == "LazyFrame":
        raise TypeError("table must not be a LazyFrame, which has no data yet: pass the result of its collect()")
    else:
        table = source if isinstance(source, pyarrow.Table) else _converted(source)
    known = {*COLUMNS, "partition"}
    # An index of pandas without a name, such as the one after a filter.
    indexes = [name for name in table.column_names if name.startswith("__index_level_") and name.endswith("__")]
    if indexes:
        table = table.drop_columns(indexes)
    if "key" not in table.column_names and "value" not in table.column_names:
        raise ValueError(f"the table has neither key nor value; its columns are {', '.join(table.column_names)}")
    foreign = [name for name in table.column_names if name not in known]
    if foreign:
        raise ValueError(f"send_arrow: unknown column {foreign[0]!r}; expected {', '.join(sorted(known))}")
    _check(table)
    for index, column in enumerate(table.schema):
        # pyarrow cannot gather rows of views.
        if _is_view(column.type):
            chunks = [_with_empty_nulls(chunk).cast(pyarrow.large_binary()) for chunk in table.column(index).chunks]
            table = table.set_column(index, column.name, pyarrow.chunked_array(chunks, pyarrow.large_binary()))
    return table


def _converted(source: Any) -> pyarrow.Table:
    import pyarrow

    wrong: Exception | None = None
    if not isinstance(source, list | tuple | str | bytes | None):
        try:
            return pyarrow.table(source)
        except (TypeError, pyarrow.ArrowInvalid) as error:  # ArrowInvalid: one column, such as a Series of polars
            wrong = error
    raise TypeError(
        "table must be a pyarrow.Table, an object with Arrow's C interface and named columns, or a mapping of names to "
        f"columns, got {type(source).__name__}; send records one by one with send()"
    ) from wrong


def _with_empty_nulls(views: pyarrow.Array) -> pyarrow.Array:
    """Return an array of views in which the views of null rows are empty.

    pyarrow's cast reads the lengths of null rows, which it does not validate, and crashes on a negative one.
    """
    import numpy
    import pyarrow

    if not views.null_count:
        return views
    validity, lengths, *data = views.buffers()
    # From a whole byte of the validity on: the rows before a slice are not copied.
    offset = views.offset % 8
    first = views.offset - offset
    rows = numpy.frombuffer(lengths, "<u8", 2 * (offset + len(views)), 16 * first).reshape(-1, 2).copy()
    rows[offset:][views.is_null().to_numpy(zero_copy_only=False)] = 0
    buffers = [validity.slice(first // 8), pyarrow.py_buffer(rows), *data]
    return pyarrow.Array.from_buffers(views.type, len(views), buffers, views.null_count, offset)


def _check(table: pyarrow.Table) -> None:
    """Raise EncodeError unless the columns are valid.

    pyarrow does not validate what it reads from a file, and trusts its offsets when it gathers the rows of a partition.
    """
    check_arrow_columns(table, ("key", "value", "headers"))
    for index, name in enumerate(table.column_names):
        if name in {"key", "value", "headers"}:
            continue
        try:
            table.column(index).validate(full=True)
        except ValueError as error:  # pyarrow.ArrowInvalid
            reason = f"column {name!r} is invalid: {error}; check the program that wrote it, or drop the column"
            raise EncodeError(reason, field=name) from error


def _is_view(data_type: pyarrow.DataType) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_binary_view(data_type) or pyarrow.types.is_string_view(data_type))


def _as_large_binary(keys: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    import pyarrow

    plain = pyarrow.large_binary()
    if pyarrow.types.is_dictionary(keys.type) and _is_view(keys.type.value_type):
        # pyarrow cannot gather rows of views.
        chunks = [
            pyarrow.DictionaryArray.from_arrays(chunk.indices, _with_empty_nulls(chunk.dictionary).cast(plain))
            for chunk in keys.chunks
        ]
        keys = pyarrow.chunked_array(chunks, pyarrow.dictionary(keys.type.index_type, plain))
    return keys.cast(plain)


def _stored_keys(table: pyarrow.Table, framing: str | None) -> pyarrow.ChunkedArray | None:
    """Return the keys as they are stored; None if the table has no keys.

    As in Java, the partition depends on the stored key, of which the prefix with the schema id is a part. If encode()
    will refuse the framing or the type of a column, the keys are returned without prefixes.
    """
    import numpy
    import pyarrow
    import pyarrow.compute as compute

    if "key" not in table.column_names:
        return None
    keys = table["key"]
    if framing != "confluent" or "key_schema_id" not in table.column_names:
        return keys
    ids = table["key_schema_id"]
    key_type = keys.type.value_type if pyarrow.types.is_dictionary(keys.type) else keys.type
    if not (key_type.id in _plain_types() or _is_view(key_type)) or not pyarrow.types.is_signed_integer(ids.type):
        return keys
    has_id = ids.is_valid().to_numpy()
    prefixes = numpy.zeros((int(has_id.sum()), 5), "uint8")
    # A schema id above 32 bits is truncated here; encode() refuses it.
    numbers = ids.drop_null().to_numpy().astype(">i4")
    prefixes[:, 1:] = numbers.view("uint8").reshape(-1, 4)
    ends = numpy.zeros(len(keys) + 1, "int64")
    numpy.cumsum(has_id, out=ends[1:])
    buffers = [None, pyarrow.py_buffer(5 * ends), pyarrow.py_buffer(prefixes)]
    prefix = pyarrow.Array.from_buffers(pyarrow.large_binary(), len(keys), buffers)
    empty = pyarrow.scalar(b"", pyarrow.large_binary())
    arguments = [prefix, _as_large_binary(keys), empty]
    return compute.call_function("binary_join_element_wise", arguments)


def _partitions_of(
    table: pyarrow.Table,
    count: int,
    keys: pyarrow.ChunkedArray | None,
    ignore_keys: bool,
    default: int,
    choose: ChooseOfKeys | None,
) -> numpy.ndarray[Any, Any] | None:
    """Return the partition of each row, or ANY_PARTITION if neither column nor key determines it. Return None if this
    applies to all rows.

    keys: The stored keys; None if there are none, or if they are ignored.
    """
    import numpy

    rows: numpy.ndarray[Any, Any] | None = None
    if choose is not None and not ignore_keys:
        listed = [None] * len(table) if keys is None else _as_large_binary(keys).to_pylist()
        rows = numpy.asarray(choose(listed), dtype="int32") if listed else None
    elif keys is not None:
        found = partition_for(keys, count)
        if found.null_count < len(found):
            rows = numpy.asarray(found)
    if "partition" in table.column_names:
        requested = table["partition"].cast("int32")
        given = requested.fill_null(default).to_numpy()
        wrong = ((given < 0) | (given >= count)) & requested.is_valid().to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            reason = (
                f"partition {given[row]} does not exist: the topic has partitions 0 to {count - 1}; correct the row, "
                "or send the table again if the partition was just added"
            )
            raise EncodeError(reason, field="partition", value=int(given[row]), row=row)
        rows = given if rows is None else numpy.where(given >= 0, given, rows)
    return rows


def _by_partition(
    table: pyarrow.Table, rows: numpy.ndarray[Any, Any] | None
) -> Iterator[tuple[int, pyarrow.Table, numpy.ndarray[Any, Any] | None]]:
    """Yield each partition with its rows and their numbers in the whole table; None instead of the numbers for the
    whole table."""
    import numpy

    if not len(table):
        return
    if rows is None or (rows == rows[0]).all():
        yield ANY_PARTITION if rows is None else int(rows[0]), table, None
        return
    order = numpy.argsort(rows, kind="stable")
    gathered = table.take(order)
    ordered = rows[order]
    edges = [0, *(numpy.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    for first, end in itertools.pairwise(edges):
        yield int(ordered[first]), gathered.slice(first, end - first), order[first:end]
