# SPDX-License-Identifier: Apache-2.0
"""The header table: RecordBatches.to_numpy() and to_arrow(), one row per batch.

The fields are Kafka's (DefaultRecordBatch), in this order: position and size_in_bytes of the batch; the header as it is
on disk; and values that follow from it. Enumerations are numbers: compression 0-4 (Compression; 5-7 are unknown),
timestamp_type 0 or 1 (TimestampType). base_timestamp is the stored field. delete_horizon_ms is that field if attribute
bit 6 is set (KIP-534), else null in Arrow and -1 in numpy, which has no null; bit 6 of `attributes` distinguishes such
a -1 from a stored one. In magic 0 and 1 records_count is -1, as only reading a batch counts its records; in magic 0
timestamp_type is -1, too. An offset beyond 64 bits (a corrupt header) raises DecodeError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kcodec.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy
    import pyarrow
    from numpy.typing import NDArray

    from kcodec._fast import RecordBatch

# Type in numpy by name; the types in Arrow follow from it. Times are integers in ms since 1970; -1 means no time.
FIELDS = {
    "position": "<i8",
    "size_in_bytes": "<i8",
    "base_offset": "<i8",
    "batch_length": "<i4",
    "partition_leader_epoch": "<i4",
    "magic": "i1",
    "crc": "<u4",
    "attributes": "<i2",
    "last_offset_delta": "<i4",
    "base_timestamp": "<i8",
    "max_timestamp": "<i8",
    "producer_id": "<i8",
    "producer_epoch": "<i2",
    "base_sequence": "<i4",
    "records_count": "<i4",
    "last_offset": "<i8",
    "next_offset": "<i8",
    "last_sequence": "<i4",
    "compression": "i1",
    "timestamp_type": "i1",
    "is_transactional": "?",
    "is_control_batch": "?",
    "delete_horizon_ms": "<i8",
}
NULLABLE = "delete_horizon_ms"
_ARROW_TYPES = {"<i8": "int64", "<i4": "int32", "<u4": "uint32", "<i2": "int16", "i1": "int8", "?": "bool"}


INT64_MAX = (1 << 63) - 1


def _row(batch: RecordBatch) -> tuple[Any, ...]:
    if batch.next_offset > INT64_MAX:
        raise DecodeError(
            f"next_offset {batch.next_offset} exceeds {INT64_MAX}, the highest of 64 bits",
            position=batch.position,
            base_offset=batch.base_offset,
        )
    values = {name: getattr(batch, name) for name in FIELDS}
    if batch.records_count is None:
        values["records_count"] = -1
    return tuple(values.values())


def to_numpy(batches: Iterable[RecordBatch]) -> NDArray[numpy.void]:
    """Return a structured array with one element per batch; a missing delete_horizon_ms is -1.

    Raise DecodeError if a header is invalid.
    """
    import numpy

    last = len(FIELDS) - 1
    rows = [(*row[:last], -1 if row[last] is None else row[last]) for row in map(_row, batches)]
    return numpy.array(rows, dtype=list(FIELDS.items()))


def to_arrow(batches: Iterable[RecordBatch]) -> pyarrow.Table:
    """Return a pyarrow Table with one row per batch; a missing delete_horizon_ms is null, other columns have no nulls.

    Raise ImportError without pyarrow, and DecodeError if a header is invalid.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("to_arrow() needs pyarrow: install the package pyarrow") from error
    schema = pyarrow.schema(
        pyarrow.field(name, pyarrow.type_for_alias(_ARROW_TYPES[kind]), nullable=name == NULLABLE)
        for name, kind in FIELDS.items()
    )
    columns = list(zip(*map(_row, batches), strict=True)) or [()] * len(FIELDS)
    return pyarrow.table(
        [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
