# SPDX-License-Identifier: Apache-2.0
"""`map_batches`: topics through a Python function in Spark, with no row of theirs in the JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kcodec.spark.columns import columns_named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def map_batches(
    spark: SparkSession,
    source: str | Mapping[str, Any],
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
    *,
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

    source:   The topics, separated by commas, or the options of Spark's own Kafka source for batch queries:
              ``{"kafka.bootstrap.servers": ..., "subscribePattern": "orders.*", "startingOffsets": ...}``.
    function: As for ``mapInArrow``: takes an iterator of ``pyarrow.RecordBatch`` and yields such. It is called once for
              each task.
    schema:   Of what the function yields.
    columns:  The columns that the function takes, for instance ("key", "value"); others are not decoded. None is the
              seven of Spark's source, and what includeHeaders and includeBatchMeta add.
    options:  More of Spark's options (startingOffsets="earliest", includeHeaders=True, failOnDataLoss=False ...), or
              options of `kcodec.read_ranges` (bootstrap_servers, isolation_level, max_partition_fetch_bytes ...).

    Offsets are resolved now, on the driver; running the DataFrame again reads the same ranges. With failOnDataLoss=True
    (the default), offsets that are not in the log are an error here and in tasks; else they are passed over and logged.
    The isolation level is read_uncommitted by default, as in Spark's source. Works on Spark 3.5 and later.

    Raises ValueError for an option that is unknown or invalid, and what brokers respond.
    """
    from kcodec.spark.topics import TopicSource  # which imports the clients
    from kcodec.spark.workers import for_workers

    given = {"subscribe": source} if isinstance(source, str) else dict(source)
    topics = TopicSource.of({**given, **options})
    if columns is not None:
        topics = replace(topics, columns=columns_named([columns] if isinstance(columns, str) else columns))
    ranges = topics.plan()

    def run(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [ranges[number] for batch in tasks for number in batch.column(0).to_pylist()]
        yield from function(topics.read(mine))

    return spark.range(0, len(ranges), 1, max(len(ranges), 1)).mapInArrow(for_workers(run), schema)
