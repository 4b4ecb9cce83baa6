# SPDX-License-Identifier: Apache-2.0
"""`map_batches`: topics through a Python function in Spark, with no row of theirs in the JVM; batch and streaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kcodec.spark.columns import columns_named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from kcodec.spark.topics import TopicSource

Function = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


def map_batches(
    spark: SparkSession,
    source: str | Mapping[str, Any],
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

    source:    The topics, separated by commas, or the options of Spark's own Kafka source:
               ``{"kafka.bootstrap.servers": ..., "subscribePattern": "orders.*", "startingOffsets": ...}``.
    function:  As for ``mapInArrow``: takes an iterator of ``pyarrow.RecordBatch`` and yields such. It is called once
               for each task; a task that Spark repeats calls it again.
    schema:    Of what the function yields.
    streaming: Return a streaming DataFrame, for ``writeStream`` with any sink, trigger and checkpoint, and for
               foreachBatch. The options are then those of streams: startingOffsets is "latest" by default, and
               maxOffsetsPerTrigger and its relatives limit a micro-batch. Needs Spark 4.0 or newer. The progress of the
               query counts ranges of offsets as its input rows.
    columns:   The columns that the function takes, for instance ("key", "value"); others are not decoded. None is the
               seven of Spark's source, and what includeHeaders and includeBatchMeta add.
    options:   More of Spark's options (startingOffsets="earliest", includeHeaders=True, failOnDataLoss=False ...), or
               options of `kcodec.read_ranges` (bootstrap_servers, isolation_level, max_partition_fetch_bytes ...).

    Without `streaming`, offsets are resolved now, on the driver; running the DataFrame again reads the same ranges.
    With failOnDataLoss=True (the default), offsets that are not in the log are an error here and in tasks; else they
    are passed over and logged. The isolation level is read_uncommitted by default, as in Spark's source. Works on Spark
    3.5 and later.

    Raises ValueError for an option that is unknown or invalid, NotImplementedError for a stream on Spark 3.5, and what
    brokers respond; a stream raises the latter when it runs.
    """
    from kcodec.spark.topics import TopicSource  # which imports the clients
    from kcodec.spark.workers import for_workers

    if not callable(function):
        raise TypeError(f"function is {type(function).__name__}: expected a function of an iterator of batches")
    given = {"subscribe": source} if isinstance(source, str) else dict(source)
    topics = TopicSource.of({**given, **options}, is_stream=streaming)
    if columns is not None:
        topics = replace(topics, columns=columns_named([columns] if isinstance(columns, str) else columns))
    if streaming:
        return _mapped_stream(spark, topics, function, schema)
    ranges = topics.plan()

    def run(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [ranges[number] for batch in tasks for number in batch.column(0).to_pylist()]
        yield from function(topics.read(mine))

    return spark.range(0, len(ranges), 1, max(len(ranges), 1)).mapInArrow(for_workers(run), schema)


def _mapped_stream(spark: SparkSession, topics: TopicSource, function: Function, schema: StructType | str) -> DataFrame:
    from kcodec.spark.range_stream import range_of, range_stream
    from kcodec.spark.workers import for_workers

    def run(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [range_of(text) for batch in tasks for text in batch.column(0).to_pylist()]
        if mine:
            yield from function(topics.read(mine))

    return range_stream(spark, topics).mapInArrow(for_workers(run), schema)
