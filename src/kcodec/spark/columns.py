# SPDX-License-Identifier: Apache-2.0
"""The columns of a query: those of Spark's own Kafka source, in the same order, and then the additional ones.

Names and types are those of Spark's ``KafkaRecordToRowConverter``; every column is nullable. ``includeHeaders`` adds
``headers`` (NULL for a record without headers), and ``includeBatchMeta`` adds six columns that Spark's source lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True)
class SparkColumn:
    """A column: its name in Spark, its name in kcodec, and its type in Spark's DDL."""

    name: str
    column: str
    ddl: str


KAFKA_COLUMNS = (
    SparkColumn("key", "key", "binary"),
    SparkColumn("value", "value", "binary"),
    SparkColumn("topic", "topic", "string"),
    SparkColumn("partition", "partition", "int"),
    SparkColumn("offset", "offset", "bigint"),
    SparkColumn("timestamp", "timestamp", "timestamp"),
    SparkColumn("timestampType", "timestamp_type", "int"),
)
HEADERS = SparkColumn("headers", "headers", "array<struct<key:string,value:binary>>")
BATCH_COLUMNS = (
    SparkColumn("producerId", "producer_id", "bigint"),
    SparkColumn("producerEpoch", "producer_epoch", "smallint"),
    SparkColumn("sequence", "sequence", "int"),
    SparkColumn("leaderEpoch", "partition_leader_epoch", "int"),
    SparkColumn("baseOffset", "base_offset", "bigint"),
    SparkColumn("isTransactional", "is_transactional", "boolean"),
)
ALL_COLUMNS = (*KAFKA_COLUMNS, HEADERS, *BATCH_COLUMNS)
BY_NAME = {column.name: column for column in ALL_COLUMNS}
BY_COLUMN = {column.column: column for column in ALL_COLUMNS}
BY_FOLDED_NAME = {column.name.lower(): column for column in ALL_COLUMNS}


#: Smallest similarity of a name that an error suggests, from 0 to 1. A wrong suggestion is worse than none.
SIMILARITY = 0.78


def default_columns(include_headers: bool, include_batch_meta: bool) -> tuple[SparkColumn, ...]:
    """Return the columns of a read that names none."""
    return (*KAFKA_COLUMNS, *((HEADERS,) if include_headers else ()), *(BATCH_COLUMNS if include_batch_meta else ()))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` with the closest known name, or "".

    The prefix kafka. is not compared, because it would make any two options alike.
    """
    import difflib  # most processes of Spark do not need it

    by_folded = {_compared(other): other for other in known}
    close = difflib.get_close_matches(_compared(name), by_folded, n=1, cutoff=SIMILARITY)
    return f" (did you mean {by_folded[close[0]]!r}?)" if close else ""


def _compared(name: str) -> str:
    return name.lower().removeprefix("kafka.").replace("_", ".")


def columns_named(names: Iterable[str]) -> tuple[SparkColumn, ...]:
    """Return the columns with these names, in the spelling of Spark or kcodec. Raise ValueError for an unknown or
    repeated name."""
    found: list[SparkColumn] = []
    for name in names:
        column = BY_NAME.get(name) or BY_COLUMN.get(name)
        if column is None:
            known = ", ".join(BY_NAME)
            raise ValueError(
                f"unknown column {name!r}{suggestion(name, [*BY_NAME, *BY_COLUMN])}; expected one of {known}"
            )
        if column in found:
            raise ValueError(f"column {column.name!r} is requested twice")
        found.append(column)
    if not found:
        raise ValueError("columns is empty: name at least one column")
    return tuple(found)


def columns_of_schema(schema: StructType) -> tuple[SparkColumn, ...]:
    """Return the columns of the schema of a user: any known columns, in any order and case. An empty schema is for
    counting rows.

    Raise ValueError if a name or a type is unknown. The columns keep the names of the schema.
    """
    columns: list[SparkColumn] = []
    for field in schema.fields:
        column = BY_FOLDED_NAME.get(field.name.lower())
        if column is None:
            raise ValueError(
                f"unknown column {field.name!r}{suggestion(field.name, BY_NAME)}; expected one of {', '.join(BY_NAME)}"
            )
        if any(column.column == other.column for other in columns):
            raise ValueError(f"column {column.name!r} is requested twice")
        columns.append(replace(column, name=field.name))
    ours = struct_type(columns)
    for field, own in zip(schema.fields, ours.fields, strict=True):
        if field.dataType != own.dataType:
            given, expected = field.dataType.simpleString(), own.dataType.simpleString()
            raise ValueError(f"column {own.name!r} is {expected}, not {given}: read it as it is and cast it afterwards")
        if not field.nullable:
            raise ValueError(f"column {own.name!r} is nullable, as in Spark's own Kafka source: leave NOT NULL out")
    return tuple(columns)


def ddl(columns: Iterable[SparkColumn]) -> str:
    """Return the columns as Spark's DDL."""
    # With spark.sql.timestampType=TIMESTAMP_NTZ, "timestamp" is the type without a time zone.
    types = {"timestamp": "timestamp_ltz"}
    return ", ".join(f"{column.name} {types.get(column.ddl, column.ddl)}" for column in columns)


def struct_type(columns: Iterable[SparkColumn]) -> StructType:
    """Return the columns as a StructType, without a running Spark."""
    from pyspark.sql import types

    by_ddl: dict[str, DataType] = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "smallint": types.ShortType(),
        "boolean": types.BooleanType(),
        "timestamp": types.TimestampType(),
    }
    header = [types.StructField("key", by_ddl["string"]), types.StructField("value", by_ddl["binary"])]
    by_ddl[HEADERS.ddl] = types.ArrayType(types.StructType(header))
    return types.StructType([types.StructField(column.name, by_ddl[column.ddl]) for column in columns])


def arrow_schema(columns: Iterable[SparkColumn]) -> pa.Schema:
    """Return the Arrow schema with which Spark 4.2 and later compare the first batch exactly (``to_arrow_schema(...,
    "UTC")``)."""
    import pyarrow as pa

    by_ddl = {
        "binary": pa.binary(),
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "smallint": pa.int16(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
        HEADERS.ddl: pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    return pa.schema([pa.field(column.name, by_ddl[column.ddl]) for column in columns])


def schema(*, include_headers: bool = False, include_batch_meta: bool = False) -> StructType:
    """Return the schema of a read, as a StructType: what ``format("kcodec")`` and ``decode_in_arrow`` give by
    default."""
    return struct_type(default_columns(include_headers, include_batch_meta))
