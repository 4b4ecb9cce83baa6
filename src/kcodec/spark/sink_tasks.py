# SPDX-License-Identifier: Apache-2.0
"""The Spark tasks that write one batch in a transaction: one task writes each Kafka partition, in a single attempt.

    sink_frame    the columns that are written, from which `sink_cells.RowPacker` makes cells
    routed        moves the cells of Kafka partition p to task p % tasks, by one shuffle
    TaskWriter    one TransactionWriter in each task of a barrier stage; returns a receipt or an error

All tasks of a barrier stage run at the same time and fail together. Spark neither repeats nor speculates one of them
alone. This matters because brokers cannot distinguish two writers of the same partition.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcodec.client import TransactionHandle, TransactionWriter, WriterReceipt
from kcodec.errors import KcodecError
from kcodec.offsets import TopicPartition
from kcodec.spark.client_options import with_credentials
from kcodec.spark.sink_cells import CellReader
from kcodec.spark.sink_columns import SinkColumns
from kcodec.spark.workers import prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

#: Column of a partitioner that is an expression, until columns are chosen by position.
CHOSEN = "__kcodec_partition"
#: Seconds to wait for executors that are starting, or that replace killed ones.
SLOTS_SECONDS = 30.0


def cluster_slots(df: DataFrame, requested: int) -> int:
    """Return the number of slots of the cluster, including those that other jobs use. Wait while there are fewer than
    requested."""
    java_context: Any = df.sparkSession.sparkContext._jsc
    context = java_context.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    deadline = time.monotonic() + SLOTS_SECONDS
    while True:
        found = int(context.maxNumConcurrentTasks(profile))
        if found >= requested or context.isLocal() or time.monotonic() >= deadline:
            return found
        time.sleep(0.2)


def tasks_for(df: DataFrame, partitions: int, partitions_per_task: int | None) -> int:
    """Return the number of tasks for a topic with this number of partitions. Raise ValueError if they cannot all run
    at once, which a barrier stage needs."""
    if partitions_per_task is None:
        return max(1, min(partitions, cluster_slots(df, 1)))
    tasks = -(-partitions // partitions_per_task)
    slots = cluster_slots(df, tasks)
    if tasks > slots:
        raise ValueError(
            f"{partitions} partitions with partitions_per_task={partitions_per_task} need {tasks} tasks at once, and "
            f"the cluster has {slots} slots: set partitions_per_task to {-(-partitions // max(slots, 1))} or more, or "
            "leave it out, or add executors"
        )
    return tasks


def sink_frame(df: DataFrame, columns: SinkColumns, partitioner: Any, partitions: int) -> DataFrame:
    """Return the existing columns among key, value, headers and partition, in any order."""
    from pyspark.sql import functions

    chosen = chosen_partition(partitioner, partitions)
    positions = dict(columns.positions)
    kept = [name for name in ("key", "value", "headers", "partition") if name in positions]
    # Each step is a plan that Spark analyzes, in every batch.
    if chosen is None and not columns.unused:
        return df
    if len({name.lower() for name in df.columns}) == len(df.columns):
        named = [functions.col(name) for name in kept if chosen is None or name != "partition"]
        return df.select(*named, *([] if chosen is None else [chosen.cast("int").alias("partition")]))
    # By position, as names are ambiguous.
    numbered = df if chosen is None else df.withColumn(CHOSEN, chosen.cast("int"))
    numbered = numbered.toDF(*(f"c{position}" for position in range(len(numbered.columns))))
    if chosen is not None:
        positions["partition"] = len(numbered.columns) - 1
        kept = [name for name in kept if name != "partition"] + ["partition"]
    return numbered.select(*(functions.col(f"c{positions[name]}").alias(name) for name in kept))


def chosen_partition(partitioner: Any, partitions: int) -> Column | None:
    """Return the column of a partitioner that is an expression, or a function of the number of partitions."""
    from pyspark.sql import Column, functions

    if partitioner in ("key", "column") if isinstance(partitioner, str) else False:
        return None
    found = partitioner
    if callable(partitioner) and not isinstance(partitioner, Column):
        found = partitioner(partitions)
    if isinstance(found, str):
        return functions.expr(found)
    if not isinstance(found, Column):
        raise TypeError(f"partitioner must return a Column or SQL text, got {type(found).__name__}")
    return found


def routed(frame: DataFrame, tasks: int) -> DataFrame:
    """Return the cells with those of Kafka partition p in Spark partition p % tasks."""
    from pyspark.sql import functions

    task = functions.pmod(functions.col("partition"), functions.lit(tasks))
    if hasattr(frame, "repartitionById"):  # Spark 4.1
        return frame.repartitionById(tasks, task.cast("int"))
    salts = functions.array(*(functions.lit(salt) for salt in salts_for(tasks)))
    return frame.repartition(tasks, functions.element_at(salts, (task + 1).cast("int")))


def salts_for(tasks: int) -> list[int]:
    """Return, for each task, an int that Spark's hash partitioning sends to it."""
    found: dict[int, int] = {}
    salt = 0
    while len(found) < tasks:
        found.setdefault(spark_hash(salt) % tasks, salt)
        salt += 1
    return [found[task] for task in range(tasks)]


def spark_hash(value: int) -> int:
    """Return the hash of an int column (Spark: Murmur3_x86_32.hashInt with seed 42), signed."""

    def rotated(number: int, bits: int) -> int:
        return (number << bits | number >> (32 - bits)) & 0xFFFFFFFF

    mixed = rotated((value & 0xFFFFFFFF) * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    state = (rotated(42 ^ mixed, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    state ^= 4  # bytes of an int
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    state ^= state >> 16
    return state - (1 << 32) if state >= 1 << 31 else state


@dataclass(frozen=True)
class TaskWriter:
    """Writes the rows of one task, for ``mapInArrow(..., barrier=True)``.

    tasks:   Number of tasks. Task t has the partitions p with p % tasks == t.
    options: Options of TransactionWriter.
    """

    handle: TransactionHandle
    topic: str
    partitions: int
    tasks: int
    options: Mapping[str, Any] = field(repr=False)

    SCHEMA = "task int, report binary"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the batches and yield one row: the number of the task, and its pickled TaskReport."""
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a TaskWriter runs in a task of Spark")
        if context.attemptNumber() > 0:
            raise RuntimeError(
                f"attempt {context.attemptNumber()} of a task that writes to {self.topic!r}: only the first attempt "
                "may write; the batch is written again in a new transaction"
            )
        prepare_worker()
        number = context.partitionId()
        report = pickle.dumps(self.write(number, batches))
        yield pa.record_batch(
            [pa.array([number], pa.int32()), pa.array([report], pa.binary())], names=["task", "report"]
        )

    def write(self, task: int, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Write the cells of a task. Return its receipt, or the error of a row, a broker or the transaction."""
        mine = [TopicPartition(self.topic, number) for number in range(task, self.partitions, self.tasks)]
        rows = 0
        cells = CellReader()
        writer: TransactionWriter | None = None
        error: Exception | None = None
        try:
            for batch in batches:
                try:
                    for partition, records, data in cells.read(batch):
                        if TopicPartition(self.topic, partition) not in mine:
                            raise RuntimeError(
                                f"rows for {self.topic}-{partition} were given to the task that writes {mine}"
                            )
                        if writer is None:
                            options = with_credentials(self.options)
                            writer = TransactionWriter(self.handle, mine, must_be_first=True, **options)
                        writer.send_encoded(self.topic, data, partition)
                        rows += records
                except (KcodecError, ValueError, TypeError) as failed:
                    error = failed
                    break
            else:
                cells.check_complete()
        finally:
            if writer is not None:
                error = _closed(writer, error)
        if error is not None:
            return TaskReport(rows, None, error)
        receipt = WriterReceipt(dict.fromkeys(mine, (0, -1))) if writer is None else writer.receipt
        return TaskReport(rows, receipt, None)


def _closed(writer: TransactionWriter, error: Exception | None) -> Exception | None:
    """Close a writer, without waiting if it has failed. Return the first error."""
    try:
        writer.close(timeout=None if error is None else 0)
    except (KcodecError, ValueError, TypeError) as failed:
        return error or failed
    return error


@dataclass(frozen=True)
class TaskReport:
    """The rows of a task, and the receipt of those that brokers acknowledged; or the error that prevented it."""

    rows: int
    receipt: WriterReceipt | None
    error: Exception | None


def receipts_of(reports: Mapping[int, TaskReport], topic: str, partitions: int, tasks: int) -> list[WriterReceipt]:
    """Return the receipts of all tasks. Raise the first error; ValueError if rows are missing in a receipt."""
    for report in reports.values():
        if report.error is not None:
            raise report.error
    found = [report.receipt for report in reports.values() if report.receipt is not None]
    given, acknowledged = sum(each.rows for each in reports.values()), sum(each.records_count for each in found)
    if given != acknowledged:
        raise ValueError(
            f"topic {topic!r}: tasks were given {given} rows and brokers acknowledged {acknowledged}: another process "
            "writes with the same transactional id; nothing is committed"
        )
    # Spark runs no tasks if it knows that there are no rows.
    silent = [number for number in range(partitions) if number % tasks not in reports]
    if silent:
        found.append(WriterReceipt({TopicPartition(topic, number): (0, -1) for number in silent}))
    return found
