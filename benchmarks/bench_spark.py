# SPDX-License-Identifier: Apache-2.0
"""How much of Spark's own pace is left when kcodec decodes: both APIs, compared with the same APIs without decoding.

    python benchmarks/bench_spark.py [--rows 8000000] [--files 16] [--rounds 5] [--shape a] [--codec none] [--json FILE]

Contestants, interleaved in one Spark on local[2], 8 columns (includeHeaders), sink noop, wall clock from the call of
load() or mapInArrow() to the end of the write:

    data source          spark.read.format("kcodec") over the files
    data source, ready   a data source of a task a file (or --ready-tasks) that yields one Arrow batch of 10,000 such
                         rows, read once a task, again and again, until it has given as many rows
    mapInArrow           kcodec.spark.decode_in_arrow over a column of the files' names, one a task
    mapInArrow, ready    the same batch yielded in mapInArrow over the same DataFrame

The bar is on the rows a second, kcodec / ready. The processor time of the whole tree of processes is compared as well.
Rounds, intervals and other load: `measure`.
"""

from __future__ import annotations

import argparse
import functools
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import pyarrow as pa
import shapes
from measure import Bar, Row
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import kcodec.spark

READY_ROWS = 10_000
SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
SCHEMA += ", headers array<struct<key:string,value:binary>>"
BAR = Bar(0.9, is_least=True)
RESULTS = Path(__file__).resolve().parent / "results" / "spark.json"


def write_files(folder: Path, shape: str, codec: str, rows: int, files: int) -> list[str]:
    """Write partition directories with one segment each, with at least `rows` records in total. Return the segments."""
    blob = shapes.blob(shape, codec)
    positions = shapes.batch_positions(blob.data)
    per_batch = shapes.SHAPES[shape].per_batch
    batches = -(-rows // (files * per_batch))
    paths = []
    for number in range(files):
        path = folder / f"bench-{number}" / f"{0:020d}.log"
        path.parent.mkdir()
        with path.open("wb") as file:
            for i in range(batches):
                at = i % blob.batches
                batch = bytearray(blob.data[positions[at] : positions[at + 1]])
                struct.pack_into(">q", batch, 0, i * per_batch)
                file.write(batch)
        paths.append(str(path))
    return paths


def write_ready_batch(path: Path, shape: str) -> None:
    """Write one Arrow batch of READY_ROWS rows of the shape, in Spark's layout, to an Arrow file."""
    rows = list(shapes.rows(shape, READY_ROWS))
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = {
        "key": pa.array([row[1] for row in rows], pa.binary()),
        "value": pa.array([row[2] for row in rows], pa.binary()),
        "topic": pa.array(["bench"] * READY_ROWS, pa.string()),
        "partition": pa.array([0] * READY_ROWS, pa.int32()),
        "offset": pa.array(range(READY_ROWS), pa.int64()),
        "timestamp": pa.array([row[0] * 1000 for row in rows], pa.timestamp("us", "UTC")),
        "timestampType": pa.array([0] * READY_ROWS, pa.int32()),
        "headers": pa.array([[*row[3]] or None for row in rows], pa.list_(pa.field("element", header))),
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def ready_batches(path: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Read the batch of `path` once, and yield it repeatedly until there were `rows` rows."""
    with pa.ipc.open_file(pa.py_buffer(Path(path).read_bytes())) as reader:
        batch = reader.get_batch(0)
    for _ in range(rows // batch.num_rows):
        yield batch
    if rows % batch.num_rows:
        yield batch.slice(0, rows % batch.num_rows)


class ReadySource(DataSource):
    """format("kcodec_bench_ready"), with the options file, tasks, and rows (of each task)."""

    @classmethod
    def name(cls) -> str:
        return "kcodec_bench_ready"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyReader(self.options["file"], int(self.options["tasks"]), int(self.options["rows"]))


class ReadyReader(DataSourceReader):
    def __init__(self, path: str, tasks: int, rows: int) -> None:
        self.path, self.tasks, self.rows = path, tasks, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(i) for i in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return ready_batches(self.path, self.rows)


def start_spark(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("bench_spark")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def one_path_a_task(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Return a DataFrame with the column `path` and one row in each partition."""
    names = functions.array(*[functions.lit(path) for path in paths])
    ids = spark.range(0, len(paths), 1, len(paths))
    return ids.select(functions.element_at(names, (functions.col("id") + 1).cast("int")).alias("path"))


def contestants(
    spark: SparkSession, paths: list[str], ready: Path, rows: int, ready_tasks: int
) -> dict[str, Callable[[], DataFrame]]:
    """Return functions by name, each of which creates a new DataFrame."""
    per_task = rows // len(paths)
    folder = str(Path(paths[0]).parent.parent)

    def again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from ready_batches(str(ready), per_task)

    def decoded() -> DataFrame:
        return kcodec.spark.decode_in_arrow(one_path_a_task(spark, paths), paths="path", include_headers=True)

    def source() -> DataFrame:
        return spark.read.format("kcodec").option("includeHeaders", "true").load(folder)

    def ready_source() -> DataFrame:
        options = {"file": str(ready), "tasks": str(ready_tasks), "rows": str(rows // ready_tasks)}
        return spark.read.format(ReadySource.name()).options(**options).load()

    return {
        "data source": source,
        "data source, ready": ready_source,
        "mapInArrow": decoded,
        "mapInArrow, ready": lambda: one_path_a_task(spark, paths).mapInArrow(again, SCHEMA),
    }


def read(make: Callable[[], DataFrame], rows: int) -> dict[str, float]:
    """Return rows per second, and nanoseconds of processor time per row."""
    spent, started = measure.tree_seconds(), time.perf_counter()
    make().write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    return {"rate": rows / seconds, "cpu": (measure.tree_seconds() - spent) / rows * 1e9}


def compared(makers: dict[str, Callable[[], DataFrame]], rounds: int, rows: int) -> list[Row]:
    """Compare each API with the same API that yields ready batches."""
    turns = {name: functools.partial(read, make, rows) for name, make in makers.items()}
    found = measure.take_turns(turns, rounds, warm_up=1, others_may=measure.TOO_BUSY_FOR_TWO)
    figures = {"rate": ("rows a second", BAR), "cpu": ("ns a row", None)}
    return [
        measure.compare(found, figure, name, f"{name}, ready", case=name, unit=unit, bar=bar)
        for name in ("data source", "mapInArrow")
        for figure, (unit, bar) in figures.items()
    ]


def run(arguments: argparse.Namespace) -> list[Row]:
    """Write the files, start Spark, check that both APIs give every row, and measure."""
    with tempfile.TemporaryDirectory(prefix="kcodec-bench-") as temporary:
        folder = Path(temporary)
        paths = write_files(folder, arguments.shape, arguments.codec, arguments.rows, arguments.files)
        ready = folder / "ready.arrow"
        write_ready_batch(ready, arguments.shape)
        per_batch = shapes.SHAPES[arguments.shape].per_batch
        rows = -(-arguments.rows // (arguments.files * per_batch)) * per_batch * arguments.files
        with tempfile.TemporaryDirectory(prefix="kcodec-bench-spark-") as local:
            spark = start_spark(Path(local))
            try:
                spark.dataSource.register(ReadySource)
                makers = contestants(spark, paths, ready, rows, arguments.ready_tasks or arguments.files)
                for name, make in makers.items():
                    count = make().count()
                    if count != rows:
                        sys.exit(f"{name} gives {count} rows, expected {rows}")
                return compared(makers, arguments.rounds, rows)
            finally:
                spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument(
        "--ready-tasks", type=int, help="tasks of the data source that decodes nothing (default: a file)"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shape", choices=list(shapes.SHAPES), default="a")
    parser.add_argument("--codec", choices=list(shapes.CODECS), default="none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    arguments = parser.parse_args()
    load, rows = os.getloadavg()[0], run(arguments)
    title = (
        f"{arguments.rows:,} rows of shape {arguments.shape} ({arguments.codec}), {arguments.files} files, noop sink"
    )
    measure.print_comparisons(title, rows)
    options = {name: getattr(arguments, name) for name in ("rows", "files", "shape", "codec", "rounds")}
    measure.save(arguments.json, {"spark": rows}, options, load)


if __name__ == "__main__":
    main()
