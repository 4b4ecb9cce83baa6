# SPDX-License-Identifier: Apache-2.0
"""What Spark runs to write one batch into a transaction: each Kafka partition in one task, each task in one attempt.

    sink_frame    the columns that are written
    RowPacker     the partition of each row: the user's, or the one that Java's producer chooses; rows to cells
    routed        cells of Kafka partition p in task p % tasks, by one shuffle
    TaskWriter    one TransactionWriter in each task, in a barrier stage; returns a receipt, or an error

A barrier stage runs all its tasks at once and fails as a whole, and its tasks are neither repeated one by one nor
speculated. Brokers cannot tell two writers of one partition apart, so this is what keeps their number at one.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcodec import partition_for
from kcodec.client import TransactionHandle, TransactionWriter, WriterReceipt
from kcodec.errors import KcodecError
from kcodec.offsets import TopicPartition
from kcodec.spark.client_options import with_credentials
from kcodec.spark.sink_columns import SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

#: Column of a partitioner that is an expression, until columns are chosen by position.
CHOSEN = "__kcodec_partition"
#: Seconds to wait for executors that are starting, or that replace killed ones.
SLOTS_SECONDS = 30.0
#: Bytes of rows that a task sorts by partition at a time.
PACK_BYTES = 2 * 1024 * 1024
#: Bytes of rows in a cell, before compression. Spark sends up to 10,000 cells to a Python worker at a time.
CELL_BYTES = 32 * 1024
#: Bytes of cells that a task gives to its writer together, after decompression.
WRITE_BYTES = 4 * 1024 * 1024
#: Compression of cells. Spark copies and compresses each byte of a shuffle several times, so fewer are cheaper.
CODEC = "snappy"
#: In the place of a partition: the cell is an error.
ERROR = -1


def free_slots(df: DataFrame, wanted: int) -> int:
    """Return the number of tasks that the cluster runs at once; wait while there are fewer than wanted."""
    java_context: Any = df.sparkSession.sparkContext._jsc
    context = java_context.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    deadline = time.monotonic() + SLOTS_SECONDS
    while True:
        found = int(context.maxNumConcurrentTasks(profile))
        if found >= wanted or context.isLocal() or time.monotonic() >= deadline:
            return found
        time.sleep(0.2)


def tasks_for(df: DataFrame, partitions: int, partitions_per_task: int | None) -> int:
    """Return the number of tasks for a topic with this number of partitions. Raise ValueError if they cannot all run
    at once, which a barrier stage needs."""
    if partitions_per_task is None:
        return max(1, min(partitions, free_slots(df, 1)))
    tasks = -(-partitions // partitions_per_task)
    slots = free_slots(df, tasks)
    if tasks > slots:
        raise ValueError(
            f"{partitions} partitions with partitions_per_task={partitions_per_task} need {tasks} tasks at once, and "
            f"the cluster has {slots} slots: set partitions_per_task to {-(-partitions // max(slots, 1))} or more, or "
            "leave it out, or add executors"
        )
    return tasks


def sink_frame(df: DataFrame, columns: SinkColumns, partitioner: Any, partitions: int) -> DataFrame:
    """Return the columns key, value, headers and partition, those that there are."""
    from pyspark.sql import functions

    chosen = chosen_partition(partitioner, partitions)
    numbered = df if chosen is None else df.withColumn(CHOSEN, chosen.cast("int"))
    # By position: names of a DataFrame may be ambiguous.
    numbered = numbered.toDF(*(f"c{position}" for position in range(len(numbered.columns))))
    positions = dict(columns.positions)
    if chosen is not None:
        positions["partition"] = len(numbered.columns) - 1
    kept = [name for name in ("key", "value", "headers", "partition") if name in positions]
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


@dataclass(frozen=True)
class RowPacker:
    """Packs the rows for one partition into cells before the shuffle, for ``mapInArrow``: a shuffle of cells costs a
    fraction of a shuffle of rows.

    by_key: rows without a number in the column `partition` go where Java's producer sends their key, and without a key
            to each partition in turn. Otherwise each row must have a number.
    """

    topic: str
    partitions: int
    by_key: bool

    #: A cell is a record batch in Arrow's IPC format, without its schema and compressed; size: its bytes before that.
    #: The cell of partition ERROR is a pickled exception.
    SCHEMA = "partition int, schema binary, size int, cell binary"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the cells of a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        turn = 0 if context is None else context.partitionId()
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            waiting.append(batch)
            size += batch.nbytes
            if size >= PACK_BYTES:
                yield self.pack(waiting, turn)
                waiting, size = [], 0
        if waiting:
            yield self.pack(waiting, turn)

    def pack(self, batches: list[pa.RecordBatch], turn: int) -> pa.RecordBatch:
        """Return the cells of some batches; if a row has a wrong partition, one cell with the error."""
        import numpy
        import pyarrow as pa

        table = pa.Table.from_batches(batches).combine_chunks()
        codec = pa.Codec(CODEC)
        cells: list[tuple[int, int, bytes]] = []
        schema = b""
        try:
            numbers = self._numbers(table, turn)
        except ValueError as error:
            cells, numbers = [(ERROR, 0, pickle.dumps(error))], numpy.empty(0, "int32")
        if len(numbers):
            order = numpy.argsort(numbers, kind="stable")
            ordered = numbers[order]
            rows = table.select([name for name in table.column_names if name != "partition"]).take(order)
            schema = rows.schema.serialize().to_pybytes()
            most = max(1, CELL_BYTES * len(rows) // max(rows.nbytes, 1))
            edges = [0, *(numpy.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
            for first, end in itertools.pairwise(edges):
                for batch in rows.slice(first, end - first).to_batches(max_chunksize=most):
                    cell = batch.serialize()
                    cells.append((int(ordered[first]), cell.size, codec.compress(cell, asbytes=True)))
        columns = [
            pa.array([number for number, _, _ in cells], pa.int32()),
            pa.array([schema] * len(cells), pa.binary()),
            pa.array([size for _, size, _ in cells], pa.int32()),
            pa.array([cell for _, _, cell in cells], pa.binary()),
        ]
        return pa.record_batch(columns, names=["partition", "schema", "size", "cell"])

    def _numbers(self, table: pa.Table, turn: int) -> Any:
        """Return the partition of each row. Raise ValueError if one is NULL or out of range."""
        import numpy

        numbers = numpy.full(len(table), -1, "int32")
        if "partition" in table.column_names:
            column = table["partition"]
            if column.null_count and not self.by_key:
                raise ValueError(
                    f"topic {self.topic!r}: column 'partition' is NULL in {column.null_count} rows; give each row one, "
                    'or use partitioner="key", which chooses it where the column is NULL'
                )
            numbers = column.fill_null(-1).to_numpy()
            wrong = ((numbers < 0) | (numbers >= self.partitions)) & column.is_valid().to_numpy()
            if wrong.any():
                raise ValueError(
                    f"topic {self.topic!r}: partition must be between 0 and {self.partitions - 1}, got "
                    f"{numbers[wrong][0]} in column 'partition'"
                )
        if self.by_key:
            if "key" in table.column_names:
                of_keys = numpy.asarray(partition_for(table["key"], self.partitions))
                numbers = numpy.where(numbers < 0, of_keys, numbers)
            in_turn = (numpy.arange(len(table)) + turn) % self.partitions
            numbers = numpy.where(numbers < 0, in_turn, numbers)
        return numbers.astype("int32", copy=False)


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

    tasks: number of tasks; task t has the partitions p with p % tasks == t. options: of TransactionWriter.
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
        number = context.partitionId()
        report = pickle.dumps(self.write(number, batches))
        yield pa.record_batch(
            [pa.array([number], pa.int32()), pa.array([report], pa.binary())], names=["task", "report"]
        )

    def write(self, task: int, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Write the cells of a task; return its receipt, or the error of a row, a broker or the transaction."""
        mine = [TopicPartition(self.topic, number) for number in range(task, self.partitions, self.tasks)]
        rows = 0
        writer: TransactionWriter | None = None
        error: Exception | None = None
        try:
            for batch in batches:
                try:
                    for partition, table in self.tables(batch):
                        if partition not in mine:
                            raise RuntimeError(f"rows for {partition} were given to the task that writes {mine}")
                        if writer is None:
                            options = with_credentials(self.options)
                            writer = TransactionWriter(self.handle, mine, must_be_first=True, **options)
                        writer.send_arrow(self.topic, table)
                        rows += len(table)
                except (KcodecError, ValueError, TypeError) as failed:
                    error = failed
                    break
        finally:
            if writer is not None:
                error = _closed(writer, error)
        if error is not None:
            return TaskReport(rows, None, error)
        receipt = WriterReceipt(dict.fromkeys(mine, (0, -1))) if writer is None else writer.receipt
        return TaskReport(rows, receipt, None)

    def tables(self, batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.Table]]:
        """Yield the rows of cells, those of one partition together, up to WRITE_BYTES at a time. Raise the error that
        is in a cell."""
        import pyarrow as pa

        codec = pa.Codec(CODEC)
        found: dict[int, list[pa.RecordBatch]] = {}
        held = 0
        schemas: dict[bytes, pa.Schema] = {}
        columns = (batch[name].to_pylist() for name in ("partition", "schema", "size"))
        for number, text, size, cell in zip(*columns, batch["cell"], strict=True):
            if number == ERROR:
                error: Exception = pickle.loads(cell.as_py())
                raise error
            if text not in schemas:
                schemas[text] = pa.ipc.read_schema(pa.py_buffer(text))
            rows = codec.decompress(cell.as_buffer(), size)
            found.setdefault(number, []).append(pa.ipc.read_record_batch(rows, schemas[text]))
            held += size
            if held >= WRITE_BYTES:
                yield from self._together(found)
                found, held = {}, 0
        yield from self._together(found)

    def _together(self, found: Mapping[int, list[pa.RecordBatch]]) -> Iterator[tuple[TopicPartition, pa.Table]]:
        import pyarrow as pa

        for number, parts in found.items():
            table = pa.Table.from_batches(parts)
            numbers = pa.repeat(pa.scalar(number, pa.int32()), len(table))
            yield TopicPartition(self.topic, number), table.append_column("partition", numbers)


def _closed(writer: TransactionWriter, error: Exception | None) -> Exception | None:
    """Close a writer, at once if it has failed; return the first error."""
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
    # Spark runs no tasks at all where it knows that there are no rows.
    silent = [number for number in range(partitions) if number % tasks not in reports]
    if silent:
        found.append(WriterReceipt({TopicPartition(topic, number): (0, -1) for number in silent}))
    return found
