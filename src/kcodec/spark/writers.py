# SPDX-License-Identifier: Apache-2.0
"""``write.format("kcodec")`` and ``writeStream.format("kcodec")``: rows to topics, at least once.

A task succeeds when brokers have acknowledged all of its rows. If Spark runs a task again, or runs a copy of it
(speculation), the rows of the task are written again. Spark's own Kafka sink does the same. The commit of a job has
nothing to do, and its abort cannot remove rows. `kcodec.spark.exactly_once` writes exactly once.

If Spark uses a Python worker again, the worker keeps its producer for the next task with the same options.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kcodec.client import Producer, WriterOptions
from kcodec.client.renewed_metadata import renew_metadata
from kcodec.errors import EncodeError, KcodecError
from kcodec.producer.options import take_options
from kcodec.spark.client_options import (
    INSTEAD_OF_JAVA,
    LEAVE_OUT,
    SECURITY,
    TOKEN_PROVIDER,
    client_option,
    spark_name,
    why_refused,
    with_credentials,
)
from kcodec.spark.columns import KAFKA_COLUMNS, suggestion
from kcodec.spark.file_options import BY_FOLDED_NAME as FILE_OPTIONS
from kcodec.spark.file_options import FOREIGN_BY_FOLDED_NAME, TABLES_ARE_READ
from kcodec.spark.offset_options import STRATEGIES
from kcodec.spark.sink_columns import SinkColumns, TopicRows
from kcodec.spark.topic_source import BY_FOLDED_NAME as PLANNING_OPTIONS
from kcodec.spark.topic_source import OBJECTS
from kcodec.spark.workers import SentToTasks, prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kcodec.client import TableDelivery

logger = logging.getLogger("kcodec.spark")
# The base class is there since Spark 4.1.
StreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", object)

OWN_OPTIONS = ("topic", "delivery", TOKEN_PROVIDER)
#: Options of Java's producer that have no counterpart, and what to use in their place.
INSTEAD = {
    **INSTEAD_OF_JAVA,
    "kafka.partitioner.class": "a column partition (int) has the partition of each row",
}
#: Set by Spark among the options of a stream.
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})
#: The columns of a sink are bytes and text, which Kafka stores as they are.
NOT_FOR_SINKS = frozenset({"key_serializer", "value_serializer", "metrics"})
PRODUCER_OPTIONS = (WriterOptions.__annotations__.keys() | {"acks", "enable_idempotence"}) - NOT_FOR_SINKS
#: The names that a user of Spark would write, without those whose values are objects of Python.
KAFKA_NAMES = tuple(map(spark_name, sorted(PRODUCER_OPTIONS - OBJECTS.keys())))
#: Options of a reader that name what is read.
OF_TOPICS = {*(name.lower() for name in STRATEGIES), "path", "paths"}
#: Producers without a task that a process keeps.
MOST_IDLE = 4

EXACTLY_ONCE = (
    "option 'delivery' is 'exactly_once': expected at_least_once, as Spark hides repeated stages from a Python sink; "
    "call kcodec.spark.exactly_once instead"
)
NO_OVERWRITE = 'mode("overwrite") is not possible: the records of a topic cannot be replaced; use mode("append")'
NO_STREAM_WRITE = (
    'writeStream.format("kcodec") needs Spark 4.1 or newer; on Spark 4.0 write each batch with foreachBatch and '
    'df.write.format("kcodec"), or call kcodec.spark.exactly_once'
)


@dataclass(frozen=True)
class WriteOptions:
    """The checked options of a write.

    topic:    Topic of all rows; None: the column `topic` has it.
    producer: Options of `kcodec.client.Producer`, and the name of the provider of credentials.
    """

    topic: str | None
    producer: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> WriteOptions:
        """Sort the options. Raise ValueError for an unknown or invalid option, without the value of a secret."""
        topic, delivery = None, "at_least_once"
        producer: dict[str, Any] = {}
        for name, value in options.items():
            folded = name.lower()
            if folded == "topic":
                topic = value
            elif folded == "delivery":
                delivery = value.lower()
            elif folded not in SPARK_OPTIONS:
                producer |= _producer_options(name, value)
        if delivery == "exactly_once":
            raise ValueError(EXACTLY_ONCE)
        if delivery != "at_least_once":
            raise ValueError(f"option 'delivery' is {delivery!r}: expected at_least_once")
        if topic is None and not producer:
            raise ValueError(f"the writer has no options: {TABLES_ARE_READ}")
        if "bootstrap_servers" not in producer:
            raise ValueError("option 'kafka.bootstrap.servers' is missing: it names the brokers, as host:port")
        if str(producer.get("acks", "all")) not in ("all", "-1"):
            raise ValueError(
                f"option 'kafka.acks' is {producer['acks']!r}: expected all, as rows that not all in-sync replicas "
                "have can be lost"
            )
        _check_values(producer)
        return cls(topic, producer)


def _producer_options(name: str, value: Any) -> dict[str, Any]:
    found = client_option(name, value)
    for ours in found:
        if ours == TOKEN_PROVIDER or ours in PRODUCER_OPTIONS:
            continue
        if ours in ("transactional_id", "transaction_timeout_ms"):
            raise ValueError(f"option {name!r} is for transactions: call kcodec.spark.exactly_once")
        if ours in ("key_serializer", "value_serializer"):
            raise ValueError(f"option {name!r} is not supported: key and value are written as they are")
        folded = name.lower()
        if folded in INSTEAD:
            raise ValueError(f"option {name!r} has no meaning here: {INSTEAD[folded]}")
        if folded in OF_TOPICS:
            raise ValueError(f"option {name!r} is for reading: set the option 'topic' to write to a topic")
        if folded in PLANNING_OPTIONS or folded in FILE_OPTIONS or folded in FOREIGN_BY_FOLDED_NAME:
            raise ValueError(f"option {name!r} is for reading: {LEAVE_OUT}")
        if ours == "metrics":
            raise ValueError(f"option {name!r} is a Python object in kcodec, which Spark cannot pass: {LEAVE_OUT}")
        reason = why_refused(ours, is_write=True)
        if reason is not None:
            raise ValueError(f"option {name!r} {reason}")
        known = [*OWN_OPTIONS, *(KAFKA_NAMES if "." in name else sorted(PRODUCER_OPTIONS))]
        raise ValueError(
            f"unknown option {name!r}{suggestion(name, known)}: the options are topic, delivery, kcodec.token.provider "
            "and those of kcodec.client.Producer, with or without 'kafka.'"
        )
    return found


def _check_values(producer: Mapping[str, Any]) -> None:
    """Raise ValueError on the driver instead of in each task. TLS and SASL are checked in tasks, because their files
    may exist only there."""
    take_options({name: value for name, value in producer.items() if not name.startswith(SECURITY)})


def batch_writer(options: Mapping[str, Any], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Return the writer for ``df.write``. Raise ValueError for options and schemas that are not those of a sink."""
    sink = WriteOptions.of(options)
    if overwrite:
        raise ValueError(NO_OVERWRITE)
    columns = SinkColumns.of(schema, sink.topic)
    foreign = sorted(set(columns.unused) - {column.name for column in KAFKA_COLUMNS})
    if foreign:
        logger.warning("columns that are not written: %s", ", ".join(foreign))
    return KcodecWriter(sink, columns)


def stream_writer(options: Mapping[str, Any], schema: StructType) -> KcodecStreamWriter:
    """Return the writer for ``df.writeStream``. As in Spark's own sink, all output modes append. Raise the errors of
    `batch_writer`.

    Spark calls it for each micro-batch and again for its commit.
    """
    sink = WriteOptions.of(options)
    if StreamArrowWriter is object:
        raise NotImplementedError(NO_STREAM_WRITE)
    return KcodecStreamWriter(sink, SinkColumns.of(schema, sink.topic))


@dataclass
class WrittenRows(WriterCommitMessage):
    """The report of a task to the driver: the number of its rows, which are all acknowledged."""

    rows: int


class _TaskSide(SentToTasks):
    """What a task does, in a batch query and in a micro-batch. It can be pickled."""

    def __init__(self, sink: WriteOptions, columns: SinkColumns) -> None:
        self._sink = sink
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Write the rows of a task. They are all acknowledged when this returns."""
        return WrittenRows(write_rows(iterator, self._columns, self._sink.producer))


class KcodecWriter(_TaskSide, DataSourceArrowWriter):
    """The writer of a batch query."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the number of written rows, which are already in the topic."""
        _log_commit("the job", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the number of written rows, which stay in the topic."""
        _log_abort("the job", messages)


class KcodecStreamWriter(_TaskSide, StreamArrowWriter):  # type: ignore[misc]
    """The writer of the micro-batches of a streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See `KcodecWriter.commit`."""
        _log_commit(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See `KcodecWriter.abort`."""
        _log_abort(f"batch {batchId}", messages)


def _log_commit(what: str, messages: Iterable[WriterCommitMessage | None]) -> None:
    prepare_worker()  # Spark collects garbage after each commit, too
    rows = [message.rows for message in messages if isinstance(message, WrittenRows)]
    logger.info("%s: %d rows of %d tasks are written", what, sum(rows), len(rows))


def _log_abort(what: str, messages: Iterable[WriterCommitMessage | None]) -> None:
    rows = [message.rows for message in messages if isinstance(message, WrittenRows)]
    logger.warning(
        "%s failed: %d rows of %d tasks that succeeded, and what the others had sent, stay in the topic and will be "
        "there twice if it runs again",
        *(what, sum(rows), len(rows)),
    )


# In tasks


def write_rows(batches: Iterable[pa.RecordBatch], columns: SinkColumns, options: Mapping[str, Any]) -> int:
    """Send rows to their topics and wait until all are acknowledged. Return their number.

    Raise KcodecError for the first error, whose text has the numbers of the rows in this task. The producer is kept
    for later calls with the same options, and closed after an error.
    """
    prepare_worker()
    began = time.monotonic()
    task: _TaskRows | None = None
    try:
        for batch in batches:
            task = task or _TaskRows(*_producers.take(with_credentials(options)))
            task.send(batch, columns)
        if task is None:
            return 0
        task.wait()
    except BaseException:
        if task is not None:
            _producers.close(task.kept)
        raise
    _producers.give_back(task.kept)
    logger.info("%s: %d rows were written in %.3f s", _task_name(), task.count, time.monotonic() - began)
    return task.count


class _SentRows(NamedTuple):
    """Rows of a task that were passed to the producer together: the numbers of the first and the last row."""

    topic: str
    first: int
    last: int
    delivery: TableDelivery


class _TaskRows:
    """The rows of a task that are being sent. `count` is the number of rows that were passed to the producer.

    is_used: Whether earlier tasks have used the producer. Its metadata may then be old.
    """

    def __init__(self, kept: KeptProducer, is_used: bool) -> None:
        self.kept = kept
        self.count = 0
        self._under_way: deque[_SentRows] = deque()
        self._is_used = is_used
        self._topics_renewed: set[str] = set()
        self._topics_with_unknown_partition: set[str] = set()

    def send(self, batch: pa.RecordBatch, columns: SinkColumns) -> None:
        """Pass a batch to the producer. Raise the error of earlier batches, or of a row that cannot be encoded."""
        try:
            for rows in columns.by_topic(batch):
                self._under_way.append(self._send(rows))
        except EncodeError as error:  # a row without a topic
            raise KcodecError(f"{_task_name()}, row {self.count + (error.row or 0)}: {error.reason}") from error
        self.count += len(batch)
        while self._under_way and self._under_way[0].delivery.done():
            self._check(self._under_way.popleft())

    def wait(self) -> None:
        """Wait until all rows are acknowledged, at most until the deadline of the producer."""
        while self._under_way:
            self._check(self._under_way.popleft())

    def _send(self, rows: TopicRows) -> _SentRows:
        first, last = (self.count + rows.row_in_batch(row) for row in (0, len(rows.table) - 1))
        try:
            delivery = self._given(rows)
        except EncodeError as error:
            row = f"rows {first} to {last}"
            if error.row is not None:
                row = f"row {self.count + rows.row_in_batch(error.row)}"
            advice = "; drop the column 'partition' to let the key choose" if error.field == "partition" else ""
            raise KcodecError(f"{_task_name()}, {row}, topic {rows.topic!r}: {error.reason}{advice}") from error
        except KcodecError as error:
            raise KcodecError(f"{_task_name()}, rows {first} to {last}, topic {rows.topic!r}: {error}") from error
        return _SentRows(rows.topic, first, last, delivery)

    def _given(self, rows: TopicRows) -> TableDelivery:
        """Pass rows to the producer. If earlier tasks have used the producer, first request the metadata of the topic
        again. If the topic has no partition with the number in a row, request the metadata once more and send the rows
        again. Another program may have added partitions, or deleted the topic and created it again."""
        producer, topic = self.kept.producer, rows.topic
        if self._is_used and topic not in self._topics_renewed:
            self._topics_renewed.add(topic)
            renew_metadata(producer, topic)
        try:
            return producer.send_arrow(topic, rows.table)
        except EncodeError as error:
            if error.field != "partition" or topic in self._topics_with_unknown_partition:
                raise
        self._topics_with_unknown_partition.add(topic)
        renew_metadata(producer, topic)
        return producer.send_arrow(topic, rows.table)

    def _check(self, sent: _SentRows) -> None:
        error = sent.delivery.exception()
        if error is not None:
            place = f"{_task_name()}, rows {sent.first} to {sent.last}, topic {sent.topic!r}"
            raise KcodecError(f"{place}: {error}") from error


def _task_name() -> str:
    """Name the task, for errors and logs."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return "outside of a task"
    return f"task of Spark partition {context.partitionId()} (attempt {context.attemptNumber()})"


class KeptProducer(NamedTuple):
    """A producer and its options, including secrets."""

    options: dict[str, Any]
    producer: Producer

    def __repr__(self) -> str:
        return repr(self.producer)


class _Producers:
    """The producers of a process that no task uses."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forget all producers. This also runs in a forked child, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self._idle: list[KeptProducer] = []  # the most recently used one comes last

    def take(self, options: dict[str, Any]) -> tuple[KeptProducer, bool]:
        """Return an idle producer with these options and True, or a new one and False. Only this task uses it until
        `give_back`."""
        with self._lock:
            found = next((one for one in self._idle if one.options == options), None)
            if found is not None:
                self._idle.remove(found)
                return found, True
        return KeptProducer(options, Producer(**options)), False

    def give_back(self, kept: KeptProducer) -> None:
        """Keep a producer whose rows are all acknowledged."""
        with self._lock:
            self._idle.append(kept)
            surplus, self._idle = self._idle[:-MOST_IDLE], self._idle[-MOST_IDLE:]
        for one in surplus:
            one.producer.close()

    def close(self, kept: KeptProducer) -> None:
        """Close a producer whose task has failed. Do not raise the errors of its rows, because the task raises the
        first one."""
        with suppress(KcodecError):
            kept.producer.close(timeout=0)


_producers = _Producers()
