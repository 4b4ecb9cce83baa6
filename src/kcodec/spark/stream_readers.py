# SPDX-License-Identifier: Apache-2.0
"""The readers of ``spark.readStream.format("kcodec")``: what Spark calls on the driver and in tasks.

Spark makes several readers for one query and pickles them for its tasks. The pickle therefore does not contain the
driver's state and connections. They are created when a method needs them. `kcodec.spark.limited_readers` is for Spark
4.2 and later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kcodec.offsets import TopicPartition
from kcodec.spark.workers import SentToTasks

if TYPE_CHECKING:
    import pyarrow as pa

    from kcodec.offsets import OffsetRange
    from kcodec.spark.file_ranges import Task
    from kcodec.spark.file_stream import FileStream, FileStreamOptions
    from kcodec.spark.topic_source import TopicSource
    from kcodec.spark.topic_stream import TopicStream
    from kcodec.spark.trigger_limits import TriggerLimits

logger = logging.getLogger("kcodec.spark")


class StreamDriver(Protocol):
    """The driver's state of a query."""

    def initial_offset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint starts."""
        ...

    def latest_offset(self, start: Mapping[str, Any] | None, *, is_limited: bool = True) -> dict[str, Any]:
        """Return the end of the next micro-batch."""
        ...

    def prepare_for_available_now(self) -> None:
        """Remember the ends of the logs."""
        ...

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[Any]:
        """Return what each task of a micro-batch reads."""
        ...

    def commit(self, end: Mapping[str, Any]) -> None:
        """Note that a micro-batch is complete."""
        ...

    def report(self) -> dict[str, Any] | None:
        """Return the ends of the logs."""
        ...

    def close(self) -> None:
        """Close connections and files."""
        ...


class StreamQuery(Protocol):
    """The input of a query. It can be pickled."""

    @property
    def limits(self) -> TriggerLimits:
        """The limits of a micro-batch."""
        ...

    def driver(self) -> StreamDriver:
        """Return the state of the query, which begins with this call."""
        ...

    def read(self, task: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        ...


@dataclass(frozen=True)
class TopicQuery:
    """A query over topics."""

    source: TopicSource

    @property
    def limits(self) -> TriggerLimits:
        """The limits of a micro-batch."""
        return self.source.limits

    def driver(self) -> TopicStream:
        """Return the state of the query."""
        from kcodec.spark.topic_stream import TopicStream

        return TopicStream(self.source)

    def read(self, task: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return self.source.read(task)


@dataclass(frozen=True)
class FileQuery:
    """A query over growing partition directories."""

    options: FileStreamOptions

    @property
    def limits(self) -> TriggerLimits:
        """The limits of a micro-batch."""
        return self.options.limits

    def driver(self) -> FileStream:
        """Return the state of the query."""
        from kcodec.spark.file_stream import FileStream

        return FileStream(self.options)

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. The offsets of a segment that was deleted since the task was planned are lost."""
        from kcodec import Counts
        from kcodec.spark.convert import log_task
        from kcodec.spark.file_ranges import DeletedSegmentError, read_ranges
        from kcodec.spark.planner import DataLoss, DataLossError

        for each in task:
            try:
                yield from read_ranges([each], self.options.reading)
            except DeletedSegmentError as error:
                assert each.topic is not None and each.partition is not None  # as in every stream
                partition, path = TopicPartition(each.topic, each.partition), each.byte_range.path
                reason = f"{path} was deleted after the micro-batch was planned"
                loss = DataLoss(partition, error.first_offset, error.next_offset, reason)
                if self.options.fails_on_data_loss:
                    raise DataLossError([loss]) from error
                logger.warning("%s", loss)
                log_task(path, Counts(), 0, lost=(error.next_offset or error.first_offset) - error.first_offset)


class _StreamReader(SentToTasks, DataSourceStreamReader):
    """The common part for all versions of Spark."""

    def __init__(self, query: StreamQuery) -> None:
        self._query = query
        self._state: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_query": self._query, "_state": None}

    def _driver(self) -> StreamDriver:
        if self._state is None:
            self._state = self._query.driver()
        return self._state

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint starts."""
        return self._driver().initial_offset()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return one InputPartition for each task of a micro-batch."""
        return [InputPartition(task) for task in self._driver().tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._query.read(partition.value)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Note that a micro-batch is complete."""
        self._driver().commit(end)

    def stop(self) -> None:
        """Close connections and files of the driver."""
        if self._state is not None:
            self._state.close()


class _OldStreamReader(_StreamReader):
    """The reader for Spark 4.0 and 4.1, which pass neither the start of a micro-batch nor a read limit."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return the end of the next micro-batch."""
        return self._driver().latest_offset(None)


def stream_reader(query: StreamQuery) -> DataSourceStreamReader:
    """Return the reader of a streaming query for the version of Spark that runs."""
    try:
        from kcodec.spark.limited_readers import LimitedStreamReader
    except ImportError:
        return _OldStreamReader(query)
    return LimitedStreamReader(query)


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
