# SPDX-License-Identifier: Apache-2.0
"""``format("kcodec")``: a Python data source that yields Arrow batches, of topics or of files. Spark 4.0 and newer.

`kcodec.spark.batch_readers` has the readers of batch queries. For files, ``partitions()`` runs on the driver and reads
only the headers of batches. It finds the partitions, resolves their transactions, converts timestamps to offsets, and
divides files into ranges at batch boundaries. Each range contains the outcomes of its transactions.

Spark starts a Python process for each streaming query, and this process imports this module. The methods import other
modules only after a call of `prepare_worker`. A garbage collection of all modules that PySpark has loaded would take
longer than these imports.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from kcodec.spark.workers import prepare_worker

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from kcodec.spark.columns import SparkColumn

logger = logging.getLogger("kcodec.spark")
PUSHDOWN_HAS_NO_EFFECT = (
    "option 'pushdown' has no effect any more: with filters, Spark would lose rows of a DataFrame that is used twice; "
    "remove the option, and set startingOffsets, endingOffsets or their timestamps to read less"
)
# Metadata of the first column of a table: the options that it was created with.
TABLE_OPTIONS = "kcodec.options"


class KcodecDataSource(DataSource):
    """Topics of a cluster, or Kafka's ``.log`` files, as rows of Spark's own Kafka source.

    With kafka.bootstrap.servers and one of assign, subscribe and subscribePattern it reads topics, with a path files:
    a ``.log`` file, a partition directory (``orders-0``), a folder of partition directories, or a glob of
    these. A schema given by the user chooses columns, and only these are decoded. Options: docs/spark-reading.md.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "kcodec"

    def schema(self) -> StructType:
        """Return the schema of Spark's own Kafka source, with the columns of includeHeaders and includeBatchMeta."""
        prepare_worker()
        from kcodec.spark.columns import struct_type
        from kcodec.spark.file_options import is_table

        given = self._given()
        if is_table(self.options):
            _check_table(given)
        schema = struct_type(_columns_of_topics(given) if reads_topics(given) else _columns_of_files(given))
        if is_table(self.options):
            schema.fields[0].metadata[TABLE_OPTIONS] = json.dumps(given)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns."""
        prepare_worker()
        from kcodec.spark.columns import columns_of_schema

        given = self._table_options(schema) | self._given()
        columns = columns_of_schema(schema)
        if reads_topics(given):
            from kcodec.spark.batch_readers import TopicReader
            from kcodec.spark.topic_source import TopicSource

            return TopicReader(TopicSource.of(without_pushdown(given), columns=columns))
        from kcodec.spark.batch_readers import FileReader
        from kcodec.spark.file_options import parse_options

        return FileReader(parse_options(without_pushdown(given)), columns)

    def _given(self) -> dict[str, str]:
        from kcodec.spark.file_options import is_table, options_of_table

        return options_of_table(self.options) if is_table(self.options) else dict(self.options)

    @staticmethod
    def _table_options(schema: StructType) -> dict[str, str]:
        """Return the options of a table. Spark passes them only to schema(), when the table is created."""
        found = schema.fields[0].metadata.get(TABLE_OPTIONS) if schema.fields else None
        return {} if found is None else dict(json.loads(found))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query, which raises the errors of options when the query starts."""
        prepare_worker()
        from kcodec.spark.columns import columns_of_schema
        from kcodec.spark.stream_readers import FileQuery, TopicQuery, failed_reader, stream_reader

        try:
            given = self._table_options(schema) | self._given()
            if reads_topics(given):
                from kcodec.spark.topic_source import TopicSource

                source = TopicSource.of(without_pushdown(given), is_stream=True, columns=columns_of_schema(schema))
                return stream_reader(TopicQuery(source))
            from kcodec.spark.file_stream import FileStreamOptions  # which imports the reader of logs

            return stream_reader(FileQuery(FileStreamOptions.of(without_pushdown(given), columns_of_schema(schema))))
        except ValueError as error:
            return failed_reader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query: rows to topics, at least once (writers.py)."""
        prepare_worker()
        from kcodec.spark import writers  # which imports the clients

        return writers.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a streaming query; all output modes append."""
        prepare_worker()
        from kcodec.spark import writers

        return writers.stream_writer(self.options, schema)


def _check_table(given: Mapping[str, str]) -> None:
    """Raise ValueError if the options of a table are those of a writer, or contain a secret.

    The options of a table are in the metadata of its first column. Spark copies this metadata into the catalog entries
    and the Parquet files of everything that is made from this column.
    """
    from kcodec.spark.client_options import secret_option
    from kcodec.spark.file_options import TABLES_ARE_READ

    names = {name.lower() for name in given}
    if "topic" in names and not names & {"path", "paths"}:
        raise ValueError(TABLES_ARE_READ)
    secret = secret_option(given)
    if secret is not None:
        raise ValueError(
            f"a table must not have the option {secret!r}, because Spark copies the options of a table into its "
            "catalog, into plans and into Parquet files; set kcodec.token.provider for passwords and tokens, and use a "
            "private key without a password"
        )


def reads_topics(given: Mapping[str, str]) -> bool:
    """Return whether options name topics, and not files. Raise ValueError if they name both, or neither."""
    from kcodec.spark.offset_options import STRATEGIES
    from kcodec.spark.topic_source import SERVERS

    folded = {name.lower() for name in given}
    of_topics = [name for name in (SERVERS, *STRATEGIES) if name.lower() in folded]
    of_files = [name for name in ("path", "paths") if name in folded]
    if of_topics and of_files:
        raise ValueError(
            f"option {of_topics[0]!r} is for reading topics from brokers, and a path is given as well: leave out "
            "the path to "
            "read topics, or the option to read files"
        )
    if not of_topics and not of_files:
        raise ValueError(
            f"no path is given, and no topics: give {SERVERS!r} and one of {', '.join(STRATEGIES)} to read topics from "
            'brokers, or a path to read files, as in spark.read.format("kcodec").load("/path/to/topic-0"); a table '
            "needs LOCATION or these options, and no list of columns, as Spark passes no option to a table with one"
        )
    return bool(of_topics)


def without_pushdown(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without pushdown, which no longer has an effect. Log a warning if it is true.

    With filters, Spark 4.1 to 4.3 plans one read for all uses of a DataFrame or a table: each use gets the rows for the
    filters of the last one. A reader that leaves out rows because of filters therefore loses rows.
    """
    text = next((value for name, value in given.items() if name.lower() == "pushdown"), "false").lower()
    if text not in ("true", "false"):
        raise ValueError(f"option 'pushdown' is {text!r}: expected true or false")
    if text == "true":
        logger.warning("%s", PUSHDOWN_HAS_NO_EFFECT)
    return {name: value for name, value in given.items() if name.lower() != "pushdown"}


def _columns_of_topics(given: Mapping[str, str]) -> Sequence[SparkColumn]:
    """Return the columns of a query over topics. It is not known yet whether it is a stream."""
    from kcodec.spark.topic_source import TopicSource

    given = without_pushdown(given)
    try:
        return TopicSource.of(given, is_stream=True).columns
    except ValueError:
        return TopicSource.of(given).columns


def _columns_of_files(given: Mapping[str, str]) -> Sequence[SparkColumn]:
    """Return the columns of a query over files. It is not known yet whether it is a stream."""
    from kcodec.spark.columns import default_columns
    from kcodec.spark.file_options import parse_options
    from kcodec.spark.trigger_limits import LIMIT_OPTIONS

    limits = {name.lower() for name in LIMIT_OPTIONS}  # a batch query, which ignores them, logs a warning
    given = {name: value for name, value in given.items() if name.lower() not in limits}
    try:
        options = parse_options(given)
    except ValueError as error:
        from kcodec.spark.file_stream import FileStreamOptions

        try:
            options = FileStreamOptions.of(given, ()).files
        except ValueError:
            raise error from None
    return default_columns(options.include_headers, options.include_batch_meta)
