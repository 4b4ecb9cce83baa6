# SPDX-License-Identifier: Apache-2.0
"""The stream with which a streaming `map_batches` begins: each row is a range of offsets, in its own Spark partition.

The driver's part (positions, limits, Trigger.AvailableNow, checkpoints) is that of format("kcodec"). A task gets its
range as a row of a few bytes. This row passes through the JVM, but the records do not. The stream needs Spark 4.0 or
newer, because older versions have no Python data sources.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kcodec.offsets import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

    from kcodec.spark.topic_source import TopicSource

COLUMN = "range"
NEEDS_SPARK_4 = (
    "a stream of map_batches needs Spark 4.0 or newer, which have Python data sources. On Spark 3.5 call land() in a "
    "loop, or map_batches() with startingOffsets and endingOffsets that your program keeps"
)


def range_stream(spark: SparkSession, source: TopicSource) -> DataFrame:
    """Return a streaming DataFrame with a row for each range of a micro-batch. Raise NotImplementedError on Spark 3.5.

    The data source stays registered with its own name until the session ends. It contains the options, so that they are
    in no plan.
    """
    try:
        from pyspark.sql.datasource import DataSource
    except ImportError:
        raise NotImplementedError(NEEDS_SPARK_4) from None
    source_name = f"kcodec_ranges_{uuid.uuid4().hex}"

    class RangeSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_name

        def schema(self) -> str:
            return f"{COLUMN} string"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return _range_reader(source)

    spark.dataSource.register(RangeSource)
    return spark.readStream.format(source_name).load()


def _range_reader(source: TopicSource) -> DataSourceStreamReader:
    """Return the stream reader of format("kcodec") for the version of Spark that runs, but for what tasks yield."""
    from kcodec.spark.stream_readers import TopicQuery, stream_reader
    from kcodec.spark.workers import prepare_worker

    prepare_worker()
    base: Any = type(stream_reader(TopicQuery(source)))

    class RangeReader(base):  # type: ignore[misc]
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            rows = [range_text(each) for each in partition.value or ()]
            yield pa.record_batch([pa.array(rows, pa.string())], names=[COLUMN])

    reader: DataSourceStreamReader = RangeReader(TopicQuery(source))
    return reader


def range_text(each: OffsetRange) -> str:
    """Return a range as the text of a row."""
    topic_id = None if each.topic_id is None else str(each.topic_id)
    return json.dumps([each.topic, each.partition, each.start, each.end, topic_id])


def range_of(text: str) -> OffsetRange:
    """Return the range of a row."""
    topic, partition, start, end, topic_id = json.loads(text)
    return OffsetRange(topic, partition, start, end, topic_id=None if topic_id is None else UUID(topic_id))
