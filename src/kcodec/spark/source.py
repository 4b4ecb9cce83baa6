# SPDX-License-Identifier: Apache-2.0
"""``spark.read.format("kcodec")``: a Python data source that yields Arrow batches. Spark 4.0 and newer.

On the driver ``partitions()`` walks headers only: it finds the partitions, settles their transactions, turns timestamps
into offsets and cuts files into ranges at batch boundaries. Each range carries its verdict to the task that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from kcodec.spark import ranges
from kcodec.spark.columns import SparkColumn, columns_of_schema, default_columns, struct_type
from kcodec.spark.filters import Pruning, pruning_of
from kcodec.spark.options import SourceOptions, is_table, options_of_table, parse_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import StructType

# Metadata of the first column of a table: the options that it was created with.
TABLE_OPTIONS = "kcodec.options"


class KcodecDataSource(DataSource):
    """Kafka's ``.log`` files as rows of Spark's own Kafka source.

    load(): a ``.log`` file, a partition directory (``orders-0``), a folder of partition directories, or a glob of
    these. A schema given by the user chooses columns, and only these are decoded. Options: docs/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "kcodec"

    def schema(self) -> StructType:
        """That of Spark's own Kafka source; includeHeaders and includeBatchMeta add columns."""
        options = parse_options(self.options)
        schema = struct_type(default_columns(options.include_headers, options.include_batch_meta))
        if is_table(self.options):
            schema.fields[0].metadata[TABLE_OPTIONS] = json.dumps(options_of_table(self.options))
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of these columns; with pushdown=true one that takes filters, which Spark must be told to offer."""
        options = parse_options(self._table_options(schema) | dict(self.options))
        columns = columns_of_schema(schema)
        if not options.pushdown:
            return KcodecReader(options, columns)
        if not hasattr(DataSourceReader, "pushFilters"):
            raise ValueError("option 'pushdown' needs Spark 4.1 or newer; startingOffsets and the like work everywhere")
        return KcodecPushdownReader(options, columns)

    @staticmethod
    def _table_options(schema: StructType) -> dict[str, str]:
        """Return the options of a table: Spark passes them to schema(), when the table is created, and then no more."""
        found = schema.fields[0].metadata.get(TABLE_OPTIONS) if schema.fields else None
        return {} if found is None else dict(json.loads(found))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader that raises when a query starts, as PySpark hides the error of a streamReader that raises."""
        return _NoStreamReader()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query: rows to topics, at least once (writers.py)."""
        from kcodec.spark import writers  # which imports the clients

        return writers.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a streaming query; all output modes append."""
        from kcodec.spark import writers

        return writers.stream_writer(self.options, schema)


NO_STREAM_READ = (
    'format("kcodec") has no streaming read: use spark.read.format("kcodec") for the files of a log, or '
    'spark.readStream.format("kafka"), kcodec.client.Consumer or kcodec.read_topic to read from brokers'
)


class _NoStreamReader(DataSourceStreamReader):
    """What streamReader returns: PySpark calls its stop() even after streamReader() itself raised, and reports that
    call's UnboundLocalError in place of the error."""

    def initialOffset(self) -> NoReturn:  # noqa: N802
        raise NotImplementedError(NO_STREAM_READ)

    def latestOffset(self) -> NoReturn:  # type: ignore[override]  # noqa: N802  # as before Spark 4.2
        raise NotImplementedError(NO_STREAM_READ)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        raise NotImplementedError(NO_STREAM_READ)

    def read(self, partition: InputPartition) -> NoReturn:
        raise NotImplementedError(NO_STREAM_READ)


class KcodecReader(DataSourceReader):
    """Plans on the driver, reads in tasks. What it holds is plain values: Spark pickles it."""

    def __init__(self, options: SourceOptions, columns: Sequence[SparkColumn]) -> None:
        self._options = options
        self._pruning = Pruning()
        self._reading = ranges.RangeOptions(
            tuple(columns),
            isolation_level=options.isolation_level,
            on_error=options.on_error,
            check_crcs=options.check_crcs,
            limits=options.limits,
        )

    def partitions(self) -> list[InputPartition]:
        """One InputPartition a task, each with the ranges it reads; never none, for which Spark 4.1 makes up a None."""
        tasks = ranges.plan_tasks(self._options, self._reading, self._pruning)
        return [InputPartition(task) for task in tasks or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return ranges.read_ranges(partition.value, self._reading)


class KcodecPushdownReader(KcodecReader):
    """The same with filters. Apart, as Spark refuses a reader with pushFilters unless its configuration allows it."""

    def pushFilters(self, filters: Iterable[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take what the filters exclude out of the plan, and leave all of them to Spark, too."""
        filters = list(filters)
        self._pruning = pruning_of(filters)
        return filters
