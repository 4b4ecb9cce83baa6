# SPDX-License-Identifier: Apache-2.0
"""The function that a sink passes to `foreachBatch`, and the Spark job with which it writes a batch.

The transaction of the batch is in `kcodec.spark.sink_transactions`.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kcodec.client import ClientOptions, TransactionHandle, WriterOptions, WriterReceipt
from kcodec.integers import as_integer, shown
from kcodec.producer.options import take_options
from kcodec.spark.client_options import SECURITY, TOKEN_PROVIDER, client_option
from kcodec.spark.collect import collect_rows
from kcodec.spark.columns import suggestion
from kcodec.spark.sink_cells import ENCODING, RowPacker
from kcodec.spark.sink_columns import SinkColumns
from kcodec.spark.sink_protocol import VERSIONS, Batch, ExactlyOnceError, SinkResult
from kcodec.spark.sink_tasks import TaskReport, TaskWriter, receipts_of, routed, sink_frame, tasks_for
from kcodec.spark.sink_transactions import SinkSettings, SinkTransactions
from kcodec.spark.workers import for_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from kcodec.spark.sink import Partitioner

log = logging.getLogger("kcodec.spark")
#: Of TransactionWriter, but for what a table does not use and what cannot be sent to tasks.
SINK_OPTIONS = (WriterOptions.__annotations__.keys() | {TOKEN_PROVIDER}) - {
    *("key_serializer", "value_serializer", "metrics"),
}
CLIENT_OPTIONS = ClientOptions.__annotations__.keys() | {TOKEN_PROVIDER}
#: How Spark reports that a query was stopped, or the session. Another attempt would only delay the end.
CANCELLED = (
    "cancelled part of cancelled job group",
    "SPARK_JOB_CANCELLED",
    "SparkContext was shut down",
    "stopped SparkContext",
    "java.lang.InterruptedException",
)
#: What Spark looks for in the text of an error to know that a query was stopped and has not failed. It does so by a
#: regular expression that overflows the stack of its thread on the text of a Py4JJavaError, which has a Java trace.
STOPPED = "py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: java.lang.InterruptedException"
QUERY_ID = "sql.streaming.queryId"
#: Spark sets the id of the run as the job group of the query.
RUN_ID = "spark.jobGroup.id"
#: In the text of a plan, of each operator with state (StatefulOperatorStateInfo).
STATE = "state info ["
ADAPTIVE = "spark.sql.adaptive.enabled"
#: Seconds without a batch after which it is checked whether the query has ended.
END_CHECK_SECONDS = 60.0


def sink_of(
    options: Mapping[str, Any], partitioner: Partitioner, partitions_per_task: int | None, **settings: Any
) -> BatchSink:
    """Return the sink of some options of writers; settings: other arguments of SinkSettings. Raise TypeError or
    ValueError if any is invalid."""
    writing: dict[str, Any] = {}
    for name, value in options.items():
        found = client_option(name, value)
        if not found.keys() <= SINK_OPTIONS:
            known = [*sorted(SINK_OPTIONS), *settings, "partitioner", "partitions_per_task", "version"]
            raise TypeError(
                f"exactly_once() has no option {name!r}{suggestion(name, known)}: options are those of "
                "kcodec.client.TransactionWriter"
            )
        writing |= found
    if partitions_per_task is not None:
        count = as_integer(partitions_per_task)
        if count is None or count < 1:
            raise ValueError(
                f"partitions_per_task must be an int of at least 1, or None, got {shown(partitions_per_task)}"
            )
        partitions_per_task = count
    client = {name: value for name, value in writing.items() if name in CLIENT_OPTIONS}
    checked_settings = SinkSettings(client=client, **settings)
    checked = {name: value for name, value in writing.items() if not name.startswith(SECURITY)}
    timeout = checked_settings.transaction_timeout_ms
    identity = {"transactional_id": checked_settings.application, "transaction_timeout_ms": timeout}
    producer, _ = take_options({**checked, **identity})
    transactions = SinkTransactions(checked_settings, is_cancelled)
    encoding = {name: getattr(producer, name) for name in ENCODING}
    return BatchSink(transactions, partitioner, partitions_per_task, writing, encoding)


def query_writer(df: Any, sink: BatchSink) -> DataStreamWriter:
    """Return the DataStreamWriter of a streaming DataFrame, or the given one, with the sink."""
    frame = frame_of(df)
    if not frame.isStreaming:
        raise ValueError("the DataFrame is not streaming: pass version=, the number of this run, to write it now")
    sink.check(frame)
    writer: DataStreamWriter = frame.writeStream if frame is df else df
    return writer.foreachBatch(QueryCallback(sink, frame.sparkSession))


def write_version(df: Any, sink: BatchSink, version: int) -> SinkResult:
    """Write a DataFrame that is not streaming, unless the version was committed before."""
    frame = frame_of(df)
    if frame.isStreaming:
        raise ValueError("version= is for a DataFrame that is not streaming: a query counts its batches itself")
    number = as_integer(version)
    if number is None or not 0 <= number < (1 << 63) - 1:
        raise ValueError(f"version must be an int from 0 to {(1 << 63) - 2}, got {shown(version)}")
    sink.check(frame)
    query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)  # in a function of foreachBatch
    session = session_of_queries(frame)
    try:
        batch = Batch(VERSIONS, number)
        return sink.write(frame, batch, lambda: store_state(frame, session, query) if query else None)
    finally:
        sink.transactions.close()


class BatchSink:
    """Writes batches of rows to one topic. options: of each TransactionWriter; encoding: of RowPacker."""

    def __init__(
        self,
        transactions: SinkTransactions,
        partitioner: Partitioner,
        partitions_per_task: int | None,
        options: dict[str, Any],
        encoding: dict[str, Any],
    ) -> None:
        self.transactions = transactions
        self._topic = transactions.settings.topic
        self._partitioner = partitioner
        self._partitions_per_task = partitions_per_task
        self._options = options
        self._encoding = encoding
        self._columns: SinkColumns | None = None

    def check(self, df: DataFrame) -> None:
        """Raise ValueError or TypeError if a DataFrame cannot be written. Spark analyzes a plan for it, so a query does
        it once; all batches of the query have these columns."""
        columns = self._columns = SinkColumns.of(df.schema, self._topic)
        by_column = isinstance(self._partitioner, str) and self._partitioner == "column"
        if by_column and "partition" not in dict(columns.positions):
            raise ValueError('partitioner="column" needs a column partition (int); the data has none')
        sink_frame(df, columns, self._partitioner, 1)
        if str(df.sparkSession.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
            raise ValueError(
                "spark.dynamicAllocation.enabled is true: the tasks of a batch run in a barrier stage, which Spark "
                "does not support with dynamic allocation (SPARK-24942); turn it off for this application"
            )

    def write(self, df: DataFrame, batch: Batch, on_skipped: Callable[[], None] = lambda: None) -> SinkResult:
        """Write a batch; call on_skipped instead if it was committed before. `check` has accepted its columns."""
        columns = self._columns or SinkColumns.of(df.schema, self._topic)

        def run(handle: TransactionHandle, partitions: int) -> list[WriterReceipt]:
            tasks = tasks_for(df, partitions, self._partitions_per_task)
            by_key = isinstance(self._partitioner, str) and self._partitioner == "key"
            packer = RowPacker(self._topic, partitions, by_key, self._encoding)
            given = sink_frame(df, columns, self._partitioner, partitions)
            cells = given.mapInArrow(for_workers(packer), RowPacker.SCHEMA)
            writer = TaskWriter(handle, self._topic, partitions, tasks, self._options)
            reporting = routed(cells, tasks).mapInArrow(for_workers(writer), TaskWriter.SCHEMA, barrier=True)
            with plain_plans(df, batch):
                rows = collect_rows(reporting)
            reports: dict[int, TaskReport] = {row["task"]: pickle.loads(row["report"]) for row in rows}
            return receipts_of(reports, self._topic, partitions, tasks)

        return self.transactions.write(batch, run, on_skipped)


@contextmanager
def plain_plans(df: DataFrame, batch: Batch) -> Iterator[None]:
    """Turn adaptive execution off for the job of a micro-batch. The job has nothing to adapt, and planning it again
    between its two stages takes time. Spark has already planned the query itself, and its session is a clone that is
    used only here. The session of a batch job belongs to the user and is not changed."""
    if batch.is_version:
        yield
        return
    conf = df.sparkSession.conf
    before = conf.get(ADAPTIVE)
    conf.set(ADAPTIVE, "false")
    try:
        yield
    finally:
        conf.set(ADAPTIVE, str(before))


class QueryCallback:
    """The function of `foreachBatch`. `session` is that of the query, from which its offset log is found.

    Spark does not report the end of a query, and keeps this object until the driver ends. The connections are therefore
    closed when the query is no longer active.
    """

    def __init__(self, sink: BatchSink, session: SparkSession) -> None:
        self._sink = sink
        self._session = session
        self._end_check: threading.Timer | None = None

    def __call__(self, df: DataFrame, number: int) -> None:
        """Write a micro-batch."""
        context = df.sparkSession.sparkContext
        query = context.getLocalProperty(QUERY_ID)
        if not query:
            raise RuntimeError(
                f"the local property {QUERY_ID} is not set in the thread of the query: PySpark must run in pinned "
                "thread mode (PYSPARK_PIN_THREAD=true, the default)"
            )
        # If the query is started again in this driver, the new run has another callback and other connections. This is
        # read before the batch, because the context may be stopped during it.
        run = context.getLocalProperty(RUN_ID) or query
        if self._end_check is not None:
            self._end_check.cancel()
        try:
            batch = Batch(query, number, _digest(self._session, query, number))
            self._sink.write(df, batch, lambda: store_state(df, self._session, query))
        except Exception as error:
            if not is_cancelled(error):
                raise
            application = self._sink.transactions.settings.application
            reason = f"application {application!r}, batch {number} is aborted, as the query was stopped ({STOPPED})"
            raise ExactlyOnceError(reason, application=application, batch=number) from None
        finally:
            self._check_end_later(run)

    def _check_end_later(self, run: str) -> None:
        self._end_check = threading.Timer(END_CHECK_SECONDS, self._close_if_ended, [run])
        self._end_check.daemon = True
        self._end_check.start()

    def _close_if_ended(self, run: str) -> None:
        from py4j.protocol import Py4JError

        try:
            is_active = any(run in (one.id, one.runId) for one in self._session.streams.active)
        except (Py4JError, AttributeError, OSError):
            is_active = False  # the session has ended
        if is_active:
            self._check_end_later(run)
        else:
            self._sink.transactions.close()


def frame_of(df: Any) -> DataFrame:
    """Return the DataFrame, of a DataStreamWriter the one that it writes. Raise TypeError or ValueError for others."""
    if ".connect." in type(df).__module__:
        raise ValueError(
            "exactly_once needs a classic Spark session: through Spark Connect a query's id and the slots are not "
            "known; run the job on the driver (spark-submit)"
        )
    # A DataFrame has its columns as attributes, so its class is checked.
    frame: DataFrame = df._df if hasattr(type(df), "foreachBatch") else df
    if not hasattr(type(frame), "isStreaming"):
        raise TypeError(f"df must be a DataFrame or a DataStreamWriter, got {type(df).__name__}")
    return frame


def _digest(session: SparkSession, query: str, number: int) -> str:
    """Return a digest of the source offsets of a batch, from the offset log.

    The objects of the JVM are not public. If they are different, return "". A checkpoint that was rolled back by one
    batch is then not detected.
    """
    from py4j.protocol import Py4JError

    try:
        running: Any = session.streams.get(query)
        text = str(running._jsq.streamingQuery().offsetLog().get(number).get().toString())
    except (Py4JError, AttributeError) as error:
        log.debug("the offset log of query %s cannot be read: %s", query, error)
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def session_of_queries(df: DataFrame) -> SparkSession:
    """Return the session that has started the queries of this program, as far as it is known. A function of
    `foreachBatch` gets DataFrames of a clone, which does not know the query."""
    session: SparkSession = getattr(type(df.sparkSession), "_instantiatedSession", None) or df.sparkSession
    return session


def store_state(df: DataFrame, session: SparkSession, query: str) -> None:
    """Run the tasks of a batch that was committed before, without the sink, if the query has operators with state.
    Spark fails a batch whose operators have stored no state, and records at its end where the state is stored."""
    if keeps_state(session, query):
        df.write.format("noop").mode("overwrite").save()


def keeps_state(session: SparkSession, query: str) -> bool:
    """Return whether a query has an operator with state, as an aggregation is. The JVM's objects are not public, so
    True is returned where they are other ones."""
    from py4j.protocol import Py4JError

    try:
        running: Any = session.streams.get(query)
        plan = str(running._jsq.streamingQuery().lastExecution().executedPlan().toString())
    except (Py4JError, AttributeError) as error:
        log.debug("the plan of query %s cannot be read: %s", query, error)
        return True
    return STATE in plan


def is_cancelled(error: BaseException) -> bool:
    """Return whether a job failed because its query or session was stopped."""
    text = str(error)
    return any(part in text for part in CANCELLED)
