# SPDX-License-Identifier: Apache-2.0
"""Conversion of decoded records into the Arrow batches and tuples that Spark accepts.

Arrow streams of files already have Spark's layout, so only the names of their columns change. The result of
``kcodec.decode`` has another layout, and is converted column by column.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kcodec.errors import DecodeError
from kcodec.spark.columns import HEADERS, SparkColumn, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from kcodec import Counts, DecodedRecords
    from kcodec.log.salvage import Loss

MAX_ROWS = 16_384
logger = logging.getLogger("kcodec.spark")


class Renamed:
    """Converts Arrow batches to Spark's names and types. A task creates one object, so that the schema is made once."""

    def __init__(self, columns: Sequence[SparkColumn]) -> None:
        self.schema = arrow_schema(columns)

    def batches(self, stream: Iterable[DecodedRecords]) -> Iterator[pa.RecordBatch]:
        """Yield each chunk of a stream in Spark's layout, without copying a buffer."""
        import pyarrow as pa

        for decoded in stream:
            if len(decoded) and not len(self.schema):
                rows = pa.StructArray.from_buffers(pa.struct([]), len(decoded), [None])
                yield pa.RecordBatch.from_struct_array(rows)  # from_arrays would have no rows
            elif len(decoded):
                yield pa.RecordBatch.from_arrays(pa.record_batch(decoded).columns, schema=self.schema)


def core_columns(columns: Iterable[SparkColumn]) -> tuple[str, ...]:
    """Return the columns that ``kcodec.decode`` must return. Topic and partition are added here, and offset is always
    needed."""
    names = [column.column for column in columns if column.column not in ("topic", "partition")]
    return (*names, *(["offset"] if "offset" not in names else []))


def batches_of_record_set(
    decoded: DecodedRecords, columns: Sequence[SparkColumn], topic: str | None, partition: int | None
) -> Iterator[pa.RecordBatch]:
    """Convert the result of ``kcodec.decode(..., columns=core_columns(columns))`` to Spark's batches of at most
    MAX_ROWS rows.

    If several records have the same offset, only the first one is delivered, because Java's consumer skips records
    below its position (``CompletedFetch.nextFetchedRecord``). Raise DecodeError for a timestamp that microseconds
    cannot represent.
    """
    import pyarrow as pa

    schema = arrow_schema(columns)
    position: int | None = None
    for chunk in decoded.chunks:
        if not len(chunk):
            continue
        rows, position = _above(position, pa.record_batch(chunk))
        arrays = [_column(rows, column.column, topic, partition) for column in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for first in range(0, batch.num_rows, MAX_ROWS):
            yield batch.slice(first, MAX_ROWS)


def _above(position: int | None, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Return the rows at or above the position, and the position after them. Each row advances the position."""
    import numpy as np
    import pyarrow as pa

    offsets = rows.column("offset").to_numpy()
    if position is None:
        position = int(offsets[0])
    if offsets[0] < position or (np.diff(offsets) < 1).any():
        reached = np.maximum.accumulate(np.concatenate(([position - 1], offsets)))
        rows = rows.filter(pa.array(offsets > reached[:-1]))
        position = int(reached[-1]) + 1
    else:
        position = int(offsets[-1]) + 1
    return rows, position


def _column(rows: pa.RecordBatch, name: str, topic: str | None, partition: int | None) -> pa.Array:
    """Return one column in Spark's layout."""
    import pyarrow as pa

    if name == "topic":
        return pa.repeat(pa.scalar(topic, pa.string()), rows.num_rows)
    if name == "partition":
        return pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
    array = rows.column(name)
    if name == "timestamp":
        return _microseconds(array, rows.column("offset"))
    return _null_where_empty(array) if name == "headers" else array


def _microseconds(timestamps: pa.Array, offsets: pa.Array) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    target = pa.timestamp("us", "UTC")
    try:
        return timestamps.cast(target)
    except pa.ArrowInvalid:
        milliseconds = timestamps.cast(pa.int64()).to_numpy()
        largest = np.iinfo(np.int64).max // 1000
        at = int(np.flatnonzero((milliseconds > largest) | (milliseconds < -largest))[0])
        reason = (
            f"timestamp {milliseconds[at]} ms of the record at offset {offsets[at]} does not fit into Spark's "
            "microseconds; "
            "leave out the column timestamp"
        )
        raise DecodeError(reason) from None


def _null_where_empty(headers: pa.Array) -> pa.Array:
    """Return a list column in Spark's type, with NULL for empty lists. The values are not copied."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    target = arrow_schema([HEADERS]).field("headers").type
    keys, values = headers.values.flatten()
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(target.value_type))
    empty = np.asarray(pc.call_function("equal", [pc.call_function("list_value_length", [headers]), 0]))
    return pa.ListArray.from_arrays(headers.offsets, pairs, type=target, mask=pa.array(empty))


def tuples(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a batch as tuples in the order of the columns. Headers are a list of (name, value), or
    None."""
    columns = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        values = array.to_pylist()
        if name == "headers":
            values = [row and [(header["key"], header["value"]) for header in row] for row in values]
        columns.append(values)
    return zip(*columns, strict=True)


def log_counts(
    source_name: str, counts: Counts, size: int, error: DecodeError | None = None, losses: Iterable[Loss] = ()
) -> None:
    """Log a warning for each loss, for a read that ended at corruption, and for open transactions. Then call
    `log_task`."""
    for loss in losses:
        logger.warning("%s", loss)
    if counts.skipped_batches:
        logger.warning("%s: %d corrupt batches were skipped; the first: %s", source_name, counts.skipped_batches, error)
    elif error:
        logger.warning("%s: nothing behind the corruption was read: %s", source_name, error)
    if counts.undecided:
        logger.warning("%s: %d records of open transactions were left out", source_name, counts.undecided)
    log_task(source_name, counts, size)


def log_task(source_name: str, counts: Counts, size: int, lost: int = 0) -> None:
    """Log the counts of a task in one line of ``name=value``. docs/spark-operations.md lists the names."""
    fields = {
        "ranges": source_name,
        "records": counts.records,
        "bytes": size,
        "aborted": counts.aborted,
        "control": counts.control,
        "skipped_batches": counts.skipped_batches,
        "lost_offsets": lost,
    }
    lost += counts.skipped_batches
    level = logging.WARNING if lost else logging.INFO
    text = " ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
    logger.log(level, "task %s", text, extra={"kcodec": fields})
