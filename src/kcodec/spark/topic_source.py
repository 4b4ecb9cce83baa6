# SPDX-License-Identifier: Apache-2.0
"""The readers of ``spark.read.format("kcodec")`` over topics: what Spark calls on the driver and in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kcodec.spark.topics import TopicSource
from kcodec.spark.workers import SentToTasks

if TYPE_CHECKING:
    import pyarrow as pa


class TopicReader(SentToTasks, DataSourceReader):
    """Reads topics in a batch query: one range of offsets for each task."""

    def __init__(self, source: TopicSource) -> None:
        self._source = source

    def partitions(self) -> list[InputPartition]:
        """Return one InputPartition for each task. Never return an empty list: Spark 4.1 then creates a partition with
        the value None."""
        return [InputPartition([each]) for each in self._source.plan()] or [InputPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._source.read(partition.value)
