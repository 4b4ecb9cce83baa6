# SPDX-License-Identifier: Apache-2.0
"""The readers of ``spark.read.format("kcodec")`` over topics: what Spark calls on the driver and in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kcodec.spark.filters import Pruning, pruning_of
from kcodec.spark.topics import TopicSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


class TopicReader(DataSourceReader):
    """Reads topics in a batch query: one range of offsets for each task."""

    def __init__(self, source: TopicSource) -> None:
        self._source = source
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        """Return one InputPartition for each task; never none, for which Spark makes up one with the value None."""
        return [InputPartition([each]) for each in self._source.plan(self._pruning)] or [InputPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._source.read(partition.value)


class TopicPushdownReader(TopicReader):
    """The same with filters; Spark refuses a reader with pushFilters unless its configuration allows it."""

    def pushFilters(self, filters: Iterable[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Leave out what the filters exclude, as far as offsets tell, and leave all of them to Spark, too."""
        filters = list(filters)
        self._pruning = pruning_of(filters)
        return filters
