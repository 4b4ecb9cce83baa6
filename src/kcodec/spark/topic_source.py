# SPDX-License-Identifier: Apache-2.0
"""The readers of ``format("kcodec")`` over topics of a cluster: what Spark calls on the driver and in tasks.

What they do is in `kcodec.spark.topics` (batch queries, tasks) and `kcodec.spark.topic_stream` (streaming queries).
Spark pickles a reader for its tasks and makes several of them for one query: a connection is only made when a method
needs it, and is no part of the pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from kcodec.spark.filters import Pruning, pruning_of
from kcodec.spark.topic_stream import TopicStream
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


class _TopicStreamReader(DataSourceStreamReader):
    """What is the same in all versions of Spark."""

    def __init__(self, source: TopicSource) -> None:
        self._source = source
        self._stream: TopicStream | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_stream": None}

    def _driver(self) -> TopicStream:
        if self._stream is None:
            self._stream = TopicStream(self._source)
        return self._stream

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint starts."""
        return self._driver().initial_offset()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return one InputPartition for each task of a micro-batch."""
        return [InputPartition([each]) for each in self._driver().ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._source.read(partition.value)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Commit the offsets for kafka.group.id, if it is given."""
        self._driver().commit(end)

    def stop(self) -> None:
        """Close the connections of the driver."""
        if self._stream is not None:
            self._stream.close()


class OldTopicStreamReader(_TopicStreamReader):
    """For Spark 4.0 and 4.1, which pass neither the start of a micro-batch nor a read limit."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return the end of the next micro-batch."""
        return self._driver().latest_offset(None)


def stream_reader(source: TopicSource) -> DataSourceStreamReader:
    """Return the reader of a streaming query for the version of Spark that runs."""
    try:
        from kcodec.spark.limited_readers import TopicStreamReader
    except ImportError:
        return OldTopicStreamReader(source)
    return TopicStreamReader(source)


def failed_reader(error: Exception) -> DataSourceStreamReader:
    """Return a reader that raises an error when a query starts.

    If streamReader raised it, PySpark would report an UnboundLocalError in its place, as it calls stop() of a reader
    that was not made.
    """
    return _FailedStreamReader(error)


class _FailedStreamReader(DataSourceStreamReader):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self._error

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        raise self._error

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
