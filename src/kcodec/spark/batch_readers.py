# SPDX-License-Identifier: Apache-2.0
"""The readers of ``spark.read.format("kcodec")`` over topics and files: what Spark calls on the driver and in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kcodec.spark.workers import SentToTasks

if TYPE_CHECKING:
    import pyarrow as pa

    from kcodec.spark.columns import SparkColumn
    from kcodec.spark.file_options import SourceOptions
    from kcodec.spark.topic_source import TopicSource


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


class FileReader(SentToTasks, DataSourceReader):
    """Reads log files in a batch query: planned on the driver, read in tasks. It has only plain values, because Spark
    pickles it."""

    def __init__(self, options: SourceOptions, columns: Sequence[SparkColumn]) -> None:
        from kcodec.spark import file_ranges  # which imports the reader of logs

        self._options = options
        self._reading = file_ranges.RangeOptions(
            tuple(columns),
            isolation_level=options.isolation_level,
            on_error=options.on_error,
            check_crcs=options.check_crcs,
            limits=options.limits,
        )

    def partitions(self) -> list[InputPartition]:
        """Return one InputPartition with its ranges for each task. Never return an empty list: Spark 4.1 then
        creates a partition with the value None."""
        from kcodec.spark import file_ranges

        tasks = file_ranges.plan_tasks(self._options, self._reading)
        return [InputPartition(task) for task in tasks or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""
        from kcodec.spark import file_ranges

        return file_ranges.read_ranges(partition.value, self._reading)
