# SPDX-License-Identifier: Apache-2.0
"""`map_batches`: apply a Python function to the records of topics in Spark, batch or streaming, outside of the JVM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kcodec.spark.columns import columns_named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from kcodec.spark.topic_source import TopicSource

#: The Arrow types of Spark's flat types.
ARROW_TYPES = {
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float",
    "double": "double",
    "boolean": "bool",
    "string": "string",
    "binary": "binary",
    "date": "date32[day]",
    "timestamp": "timestamp[us]",
    "timestamp_ntz": "timestamp[us]",
}
Function = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


def map_batches(
    spark: SparkSession,
    source: str | Sequence[str] | Mapping[str, Any],
    function: Function,
    schema: StructType | str,
    *,
    streaming: bool = False,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Apply a function to the records of topics, as Arrow batches, and return what it yields as a DataFrame; lazy.

        def lengths(batches):
            for batch in batches:          # key, value, topic, partition, offset, timestamp, timestampType
                yield pa.record_batch([pc.binary_length(batch["value"])], names=["length"])

        map_batches(spark, "orders", lengths, "length int", bootstrap_servers="localhost:9092")

    Fetching, decoding and the function run in one Python task; only what the function yields crosses to the JVM. A task
    has one range of offsets, or a part of it (minPartitions, maxRecordsPerPartition). Reused Python workers keep their
    connections (spark.python.worker.reuse, which is the default).

    source:    The topics as a list of names or separated by commas, or the options of Spark's own Kafka source:
               ``{"kafka.bootstrap.servers": ..., "subscribePattern": "orders.*", "startingOffsets": ...}``.
    function:  As for ``mapInArrow``: takes an iterator of ``pyarrow.RecordBatch`` and yields such. It is called once
               for each task; a task that Spark repeats calls it again.
    schema:    Of what the function yields. Its batches must have these columns, in any order, with the Arrow types that
               Spark has for them.
    streaming: Return a streaming DataFrame, for ``writeStream`` with any sink and any trigger except realTime and
               continuous, and for foreachBatch. The options are then those of streams: startingOffsets is "latest" by
               default, and maxOffsetsPerTrigger and its relatives limit a micro-batch. Needs Spark 4.0 or newer. The
               progress of the query counts ranges of offsets as its input rows.
    columns:   The columns that the function takes, for instance ("key", "value"); others are not decoded. None is the
               seven of Spark's source, and what includeHeaders and includeBatchMeta add.
    options:   More of Spark's options (startingOffsets="earliest", includeHeaders=True, failOnDataLoss=False ...), or
               options of `kcodec.read_ranges` (bootstrap_servers, isolation_level, max_partition_fetch_bytes ...).

    Without `streaming`, offsets are resolved now, on the driver; running the DataFrame again reads the same ranges.
    With failOnDataLoss=True (the default), offsets that are not in the log are an error here and in tasks; else they
    are passed over and logged. The isolation level is read_uncommitted by default, as in Spark's source. Works on Spark
    3.5 and later.

    Raise ValueError for an option that is unknown or invalid, NotImplementedError for a stream on Spark 3.5, and what
    brokers respond; a stream raises the latter when it runs.
    """
    from kcodec.spark.topic_source import TopicSource  # which imports the clients
    from kcodec.spark.workers import for_workers

    if not callable(function):
        raise TypeError(f"function is {type(function).__name__}: expected a function of an iterator of batches")
    topics = TopicSource.of({**options_of_source(source), **options}, is_stream=streaming)
    if columns is not None:
        topics = replace(topics, columns=columns_named([columns] if isinstance(columns, str) else columns))
    if streaming:
        return _mapped_stream(spark, topics, function, schema)
    ranges = topics.plan()
    types = types_of(spark, schema)

    def run(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [ranges[number] for batch in tasks for number in batch.column(0).to_pylist()]
        yield from in_schema(results_of(function, topics.read(mine)), types)

    return spark.range(0, len(ranges), 1, max(len(ranges), 1)).mapInArrow(for_workers(run), schema)


def options_of_source(source: Any) -> dict[str, Any]:
    """Return the options that the argument `source` of map_batches and land sets. Raise TypeError unless it is the
    names of topics, or a dict of options."""
    if isinstance(source, Mapping):
        return dict(source)
    if not isinstance(source, str | list | tuple) or not all(isinstance(name, str) for name in source):
        raise TypeError(
            f"source is {source!r}: expected names of topics as 'orders,payments' or ['orders', 'payments'], or a dict "
            "of options like {'subscribePattern': 'orders.*'}"
        )
    return {"subscribe": source}


def _mapped_stream(spark: SparkSession, topics: TopicSource, function: Function, schema: StructType | str) -> DataFrame:
    from kcodec.spark.range_stream import range_of, range_stream
    from kcodec.spark.workers import for_workers

    types = types_of(spark, schema)

    def run(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [range_of(text) for batch in tasks for text in batch.column(0).to_pylist()]
        if mine:
            yield from in_schema(results_of(function, topics.read(mine)), types)

    return range_stream(spark, topics).mapInArrow(for_workers(run), schema)


def results_of(function: Function, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the results of a user's function. Raise TypeError if they are not Arrow batches. Used in tasks."""
    import pyarrow as pa

    name = getattr(function, "__name__", type(function).__name__)
    found = function(batches)
    if not isinstance(found, Iterable):
        raise TypeError(
            f"{name}() returned {type(found).__name__}: expected an iterator of pyarrow.RecordBatch; "
            "a function that contains `yield` returns one"
        )
    for batch in found:
        if not isinstance(batch, pa.RecordBatch):
            remedy = "; yield the batches of table.to_batches()" if isinstance(batch, pa.Table) else ""
            raise TypeError(f"{name}() yielded {type(batch).__name__}: expected pyarrow.RecordBatch{remedy}")
        yield batch


def types_of(spark: SparkSession, schema: StructType | str) -> dict[str, str]:
    """Return the type of each column of a schema, in Spark's DDL. For an invalid schema, raise the error of Spark."""
    if isinstance(schema, str):
        schema = spark.range(0).mapInArrow(lambda batches: batches, schema).schema
    return {column.name: column.dataType.simpleString() for column in schema.fields}


def in_schema(batches: Iterable[pa.RecordBatch], types: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield batches with their columns in the order of a schema. Used in tasks.

    Spark takes columns by their position and does not check types: it would exchange columns silently, or fail with an
    error of a Java class. Raise ValueError for other columns, and TypeError for a column of another type. Types that
    only some versions of Spark accept are left to Spark: large and view types, timestamps without a zone, types not in
    ARROW_TYPES.
    """
    for batch in batches:
        names = batch.schema.names
        if sorted(names) != sorted(types):
            raise ValueError(
                f"the function yielded the columns {', '.join(names) or 'none'}: the schema of map_batches has "
                f"{', '.join(types) or 'none'}"
            )
        for column in batch.schema:
            expected = ARROW_TYPES.get(types[column.name])
            if expected is not None and _plain(column.type) != expected:
                raise TypeError(
                    f"the function yielded column {column.name!r} as {column.type}: the schema of map_batches has "
                    f"{types[column.name]}, which is {expected} in Arrow; cast the column, or change the schema"
                )
        yield batch if names == list(types) else batch.select(list(types))


def _plain(data_type: pa.DataType) -> str:
    """Return the name of a type, without the details that versions of Spark treat differently."""
    return re.sub(", tz=[^]]*", "", str(data_type).removeprefix("large_").removesuffix("_view"))
