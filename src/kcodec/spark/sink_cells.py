# SPDX-License-Identifier: Apache-2.0
"""Rows to complete record batches before the shuffle, and cells, the pieces of record batches that Spark shuffles.

    RowPacker     rows of a task to cells: chooses partitions, encodes and compresses (in tasks, for ``mapInArrow``)
    CellReader    cells to record batches, which need only a producer id and sequence numbers to be sent

The tasks that have the rows therefore encode each record once, with the options of the producer. The tasks that send
the record batches do not decode them.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kcodec import partition_for
from kcodec.errors import KcodecError
from kcodec.producer.options import ProducerSettings
from kcodec.producer.tables import ARROW_BATCH_BYTES, table_batches
from kcodec.spark.workers import prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of rows that a task sorts by partition at a time. The first is for few partitions. For more partitions it is as
#: many bytes as fill one record batch of each, up to the second.
PACK_BYTES = (4 * 1024 * 1024, 32 * 1024 * 1024)
#: Bytes of a cell at most. Spark sends up to 10,000 cells to a Python worker at a time.
CELL_BYTES = 32 * 1024
#: Compression of record batches that the producer does not compress. Spark copies and compresses each byte of a shuffle
#: several times, so fewer are cheaper.
CODEC = "lz4_raw"
#: A batch that this codec does not make smaller than this part of it is moved as it is.
WORTHWHILE = 0.9
#: In the place of a partition: the cell is an error.
ERROR = -1
#: The options of a producer that decide what a record batch is.
ENCODING = ("compression_type", "compression_level", "batch_size", "max_request_size")


class FinishedBatch(NamedTuple):
    """An encoded record batch, with the partition of the topic and the number of its records."""

    partition: int
    records: int
    data: Any


@dataclass(frozen=True)
class RowPacker:
    """Encodes the rows for each partition before the shuffle, for ``mapInArrow``.

    by_key:   Whether rows without a number in the column `partition` go to the partition that Java's producer chooses
              for their key, or to each partition in turn if they have no key. Otherwise each row must have a number.
    encoding: The options ENCODING of the producer.
    """

    topic: str
    partitions: int
    by_key: bool
    encoding: Mapping[str, Any] = field(default_factory=dict)

    #: A cell is a piece of a record batch. batch: number of the batch, the same for its pieces; piece: number of this
    #: one; pieces, records, size: of the whole batch; size: its bytes before CODEC, 0 without it. The cell of partition
    #: ERROR is a pickled exception.
    SCHEMA = "partition int, batch long, piece int, pieces int, records int, size int, cell binary"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the cells of a task."""
        from pyspark import TaskContext

        prepare_worker()
        context = TaskContext.get()
        turn = 0 if context is None else context.partitionId()
        numbers = itertools.count(turn << 32)
        least, most = PACK_BYTES
        enough = min(max(least, self.partitions * ARROW_BATCH_BYTES), most)
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            waiting.append(batch)
            size += batch.nbytes
            if size >= enough:
                yield self.pack(waiting, turn, numbers)
                waiting, size = [], 0
        if waiting:
            yield self.pack(waiting, turn, numbers)

    def pack(self, batches: list[pa.RecordBatch], turn: int, numbers: Iterator[int]) -> pa.RecordBatch:
        """Return the cells of some batches, or one cell with the error if a row cannot be encoded. `numbers` counts the
        record batches of this task."""
        import pyarrow as pa

        cells: list[tuple[int, int, int, int, int, int, Any]] = []
        codec = pa.Codec(CODEC) if self._settings.compression_type == "none" else None
        try:
            for batch in self.encode(pa.Table.from_batches(batches), turn):
                cells += _cells(batch, next(numbers), codec)
        except (KcodecError, ValueError, TypeError) as error:
            cells = [(ERROR, next(numbers), 0, 1, 0, 0, pickle.dumps(error))]
        kinds = (pa.int32(), pa.int64(), pa.int32(), pa.int32(), pa.int32(), pa.int32(), pa.binary())
        columns = [pa.array([cell[at] for cell in cells], kind) for at, kind in enumerate(kinds)]
        return pa.record_batch(columns, names=[part.split()[0] for part in self.SCHEMA.split(", ")])

    def encode(self, table: pa.Table, turn: int) -> Iterator[FinishedBatch]:
        """Yield the record batches of a table, as `TransactionWriter.send_arrow` encodes its rows.

        Raise ValueError if a partition is NULL or out of range, EncodeError if a row makes no record.
        """
        now = time.time_ns() // 1_000_000
        numbers = self._numbers(table, turn)
        rows = table.select([name for name in table.column_names if name != "partition"])
        for partition, part in _by_partition(rows, numbers):
            for batch in table_batches(part, self.partitions, self._settings, now, None, partition):
                yield FinishedBatch(partition, batch.records_count, batch.data)

    @property
    def _settings(self) -> ProducerSettings:
        return ProducerSettings(**self.encoding)

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
                advice = "; drop the column to let the key choose" if self.by_key else ""
                raise ValueError(
                    f"topic {self.topic!r}: partition must be between 0 and {self.partitions - 1}, got "
                    f"{numbers[wrong][0]} in column 'partition'{advice}"
                )
        if self.by_key:
            if "key" in table.column_names:
                of_keys = numpy.asarray(partition_for(table["key"], self.partitions))
                numbers = numpy.where(numbers < 0, of_keys, numbers)
            if (numbers < 0).any():
                in_turn = (numpy.arange(len(table)) + turn) % self.partitions
                numbers = numpy.where(numbers < 0, in_turn, numbers)
        return numbers.astype("int32", copy=False)


def _by_partition(table: pa.Table, numbers: Any) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each partition, in their order."""
    import numpy

    if not len(table):
        return
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), table
        return
    # numpy sorts numbers of 16 bits in linear time.
    order = numpy.argsort(numbers.astype("uint16") if numbers.max() < 1 << 16 else numbers, kind="stable")
    ordered = numbers[order]
    rows = table.take(order)
    edges = [0, *(numpy.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    for first, end in itertools.pairwise(edges):
        yield int(ordered[first]), rows.slice(first, end - first)


def _cells(
    batch: FinishedBatch, number: int, codec: pa.Codec | None
) -> Iterator[tuple[int, int, int, int, int, int, Any]]:
    """Yield the columns of the cells of a record batch."""
    data, size = batch.data, 0
    if codec is not None:
        compressed = codec.compress(data, asbytes=True)
        if len(compressed) < WORTHWHILE * len(data):
            data, size = compressed, len(data)
    view = memoryview(data)
    pieces = -(-len(view) // CELL_BYTES)
    for piece in range(pieces):
        content = view[piece * CELL_BYTES : (piece + 1) * CELL_BYTES]
        yield batch.partition, number, piece, pieces, batch.records, size, content


class CellReader:
    """Puts the cells of a task together again."""

    def __init__(self) -> None:
        self._pieces: dict[int, dict[int, Any]] = {}

    def read(self, cells: pa.RecordBatch) -> Iterator[FinishedBatch]:
        """Yield the record batches that are complete with these cells, one at a time. Raise the error that is in a
        cell."""
        import pyarrow as pa

        codec = pa.Codec(CODEC)
        names = ("partition", "batch", "piece", "pieces", "records", "size")
        columns = (cells[name].to_pylist() for name in names)
        for partition, number, piece, pieces, records, size, cell in zip(*columns, cells["cell"], strict=True):
            data = cell.as_buffer()
            if partition == ERROR:
                error: Exception = pickle.loads(data)
                raise error
            if pieces > 1:
                # A copy, so that not all cells of this table stay in memory until the last piece is here.
                found = self._pieces.setdefault(number, {})
                found[piece] = data.to_pybytes()
                if len(found) < pieces:
                    continue
                del self._pieces[number]
                data = b"".join(found[each] for each in range(pieces))
            yield FinishedBatch(partition, records, codec.decompress(data, size) if size else data)

    def check_complete(self) -> None:
        """Raise RuntimeError if a record batch lacks cells after the last cell."""
        if self._pieces:
            raise RuntimeError(
                f"{len(self._pieces)} record batches are incomplete: the shuffle lost data; the batch is written again"
            )
