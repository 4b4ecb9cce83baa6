# SPDX-License-Identifier: Apache-2.0
"""Topics into Spark: `map_batches`, `land` and format("kcodec") against Spark's own connector, tuned.

    python benchmarks/bench_topics.py [--rows 4000000] [--pairs 5] [--parts map value land noop stream]
                                      [--codecs none lz4] [--tasks 4] [--json FILE]

Starts an Apache Kafka of one node, writes a topic of four partitions for each codec (values of 100 bytes, half of them
random, keys of 10 bytes, batches of 16 KiB), starts a Spark on local[2], and ends both. It needs the jars that
`make jars` fetches.
Nothing has to be watched: 4,000,000 rows and 5 pairs take about half an hour on two cores.

    map     map_batches, and the connector with mapInArrow: the same function reads all bytes of every value
    value   the same with only the column value: columns=["value"], and select("value") before mapInArrow
    land    land, and the connector with write.parquet: the same seven columns as zstd Parquet
    noop    a batch query of format("kcodec"), and of format("kafka"), into the noop sink
    stream  the same as streaming queries of one micro-batch, with Trigger.AvailableNow; what starting a query costs is
            measured as well, with queries that find nothing

The connector has kafka.max.poll.records=20000 and fetches of 8 MiB per partition; minPartitions is the same for both.
Each part runs once without being measured, then in pairs, the first of which alternates. CPU is that of this process
and all below it (driver, JVM, Python workers) without the threads that measure and without the broker, whose CPU is
shown separately. Ratios are kcodec / connector, as `measure` makes them of the pairs. The exit code is 1 if a result is
wrong, and 0 if bars are missed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy
import pyarrow as pa
from measure import Bar, Round, Row
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kcodec.client import Producer
from kcodec.spark import land, map_batches
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent
JARS = ROOT / ".cache" / "spark-kafka"
RESULTS = Path(__file__).resolve().parent / "results" / "topics.json"
PARTITIONS, VALUE_BYTES, KEY_BYTES, CHUNK_ROWS = 4, 100, 10, 50_000
TUNED = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
}
SIDES = ("kcodec", "connector")
SUMS = "rows bigint, bits bigint"


#: Units and bars of the figures of each part. Figures without a bar are shown as well.
UNITS = {"cpu": "ns a row", "rate": "rows a second", "broker": "ns a row"}
MAPPED = {"cpu": Bar(0.25), "rate": Bar(4.0, is_least=True), "broker": Bar(0.5)}
BARS = {
    "map": MAPPED,
    "value": MAPPED,
    "land": {"cpu": Bar(0.35)},
    "noop": {"cpu": Bar(1.2)},
    "stream": {"cpu": Bar(1.2)},
}


@dataclass(frozen=True)
class Topic:
    """A topic of the benchmark, and the expected result of a function that reads all of it."""

    name: str
    servers: str
    rows: int
    bits: int


def sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row with the number of values and the exclusive or of all their 32-bit words."""
    rows = bits = 0
    for batch in batches:
        values = batch["value"]
        offsets = numpy.frombuffer(values.buffers()[1], numpy.int32, len(values) + 1, 4 * values.offset)
        words = numpy.frombuffer(values.buffers()[2], numpy.uint8)[offsets[0] : offsets[-1]].view(numpy.uint32)
        rows += len(values)
        bits ^= int(numpy.bitwise_xor.reduce(words))
    yield pa.record_batch([pa.array([rows]), pa.array([bits])], names=["rows", "bits"])


def write_topic(kafka: ApacheKafka, rows: int, codec: str) -> Topic:
    """Create a topic with at least `rows` records."""
    name, bits = kafka.create_topic(partitions=PARTITIONS), 0
    random = numpy.random.default_rng(1)
    template = numpy.frombuffer(
        b'"status":"delivered","currency":"EUR","country":"DE"'[: VALUE_BYTES // 2], numpy.uint8
    )
    chunks = max(1, round(rows / CHUNK_ROWS))
    options: dict[str, Any] = {} if codec == "none" else {"compression_type": codec}
    with Producer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=50, **options) as producer:
        for number in range(chunks):
            data = numpy.empty((CHUNK_ROWS, VALUE_BYTES), numpy.uint8)
            data[:, : VALUE_BYTES // 2] = random.integers(0, 256, (CHUNK_ROWS, VALUE_BYTES // 2), numpy.uint8)
            data[:, VALUE_BYTES // 2 :] = template
            bits ^= int(numpy.bitwise_xor.reduce(data.reshape(-1).view(numpy.uint32)))
            keys = numpy.char.mod(f"%0{KEY_BYTES}d", random.integers(0, 1_000_000, CHUNK_ROWS)).astype(bytes)
            partition = pa.array(numpy.full(CHUNK_ROWS, number % PARTITIONS, numpy.int32))
            columns = {"key": pa.array(keys, pa.binary()), "value": binary(data), "partition": partition}
            producer.send_arrow(name, pa.table(columns))
        producer.flush()
    return Topic(name, kafka.bootstrap_servers, chunks * CHUNK_ROWS, bits)


def binary(data: numpy.ndarray[Any, Any]) -> pa.Array:
    """Return the rows of a two-dimensional array of bytes as a column."""
    offsets = numpy.arange(0, data.size + 1, data.shape[1], dtype=numpy.int32)
    return pa.Array.from_buffers(pa.binary(), len(data), [None, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))])


def start_spark(folder: Path) -> SparkSession:
    """Start Spark on two cores, with the connector."""
    if not list(JARS.glob("spark-sql-kafka-*.jar")):
        sys.exit(f"the jars of Spark's Kafka connector are not in {JARS.relative_to(ROOT)}: run `make jars`")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("JAVA_HOME", str(ROOT / ".cache" / "java"))
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    # After the runs that are not counted, workers find the bytecode of kcodec, as in an installed package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": str(JARS / "*"),
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        # A busy machine may take longer to start a Python worker than the 15 seconds that Spark waits.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    builder = SparkSession.builder.master("local[2]").appName("bench_topics")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Contestants:
    """Both sides of each part: functions that do the work once, and return the number of rows that they have read."""

    def __init__(self, spark: SparkSession, topic: Topic, tasks: int, folder: Path) -> None:
        self.spark, self.topic, self.folder = spark, topic, folder
        self.used: Path | None = None
        self.files_bytes: dict[str, int] = {}
        self.common = {
            "kafka.bootstrap.servers": topic.servers,
            "subscribe": topic.name,
            "startingOffsets": "earliest",
            "minPartitions": str(tasks),
        }

    def pairs(self, part: str) -> tuple[Callable[[], int], Callable[[], int]]:
        """Return the functions of a part for (kcodec, the connector)."""
        return {
            "map": (lambda: self.summed(self.mapped()), lambda: self.summed(self.kafka().mapInArrow(sums, SUMS))),
            "value": (
                lambda: self.summed(self.mapped(columns=["value"])),
                lambda: self.summed(self.kafka().select("value").mapInArrow(sums, SUMS)),
            ),
            "land": (self.landed, self.written),
            "noop": (lambda: self.noop(self.kcodec()), lambda: self.noop(self.kafka())),
            "stream": (lambda: self.streamed("kcodec", self.common), lambda: self.streamed("kafka", self.tuned)),
            "start": (lambda: self.started("kcodec", self.common), lambda: self.started("kafka", self.tuned)),
        }[part]

    @property
    def tuned(self) -> dict[str, str]:
        return {**self.common, **TUNED}

    def kafka(self) -> DataFrame:
        return self.spark.read.format("kafka").options(**self.tuned).load()

    def kcodec(self) -> DataFrame:
        return self.spark.read.format("kcodec").options(**self.common).load()

    def mapped(self, **options: Any) -> DataFrame:
        return map_batches(self.spark, self.common, sums, SUMS, **options)

    def summed(self, frame: DataFrame) -> int:
        """Return the number of rows, after checking by the exclusive or that every byte of every value was read."""
        rows, bits = 0, 0
        for row in frame.collect():
            rows, bits = rows + row.rows, bits ^ row.bits
        if bits != self.topic.bits:
            raise SystemExit(f"the values read are others than those written: {bits} and {self.topic.bits}")
        return rows

    def landed(self) -> int:
        with self.scratch() as path:
            landing = land(self.spark, self.common, path)
            self.files_bytes["kcodec"] = landing.bytes
            return landing.rows

    def written(self) -> int:
        with self.scratch() as path:
            self.kafka().write.option("compression", "zstd").parquet(str(path / "files"))
            self.files_bytes["connector"] = sum(each.stat().st_size for each in path.rglob("*.parquet"))
            return self.topic.rows

    def noop(self, frame: DataFrame) -> int:
        frame.write.format("noop").mode("overwrite").save()
        return self.topic.rows

    def streamed(self, source: str, options: dict[str, str]) -> int:
        with self.scratch() as path:
            return self.query(source, options, path)

    def started(self, source: str, options: dict[str, str]) -> int:
        """Run a query that finds no records, to measure the cost of starting one."""
        with self.scratch() as path:
            latest = {**options, "startingOffsets": "latest"}
            return self.query(source, latest, path)

    def query(self, source: str, options: dict[str, str], checkpoint: Path) -> int:
        frame = self.spark.readStream.format(source).options(**options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(int(progress["numInputRows"]) for progress in query.recentProgress)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Create a folder for one run. It is removed before the next run, so that its removal is not measured."""
        if self.used is not None:
            shutil.rmtree(self.used, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.used = Path(tempfile.mkdtemp(dir=self.folder))
        yield self.used


class ProcessorTime:
    """User and system time of a process and its descendants, including those that have ended. Some processes are left
    out, and so is the time of this measurement itself.

    The parents of PySpark's workers do not wait for them, so the time of workers is not added to that of their parents.
    A thread therefore reads the times of all processes ten times per second. At most the last tenth of a second of a
    process that ends is missed.
    """

    PAUSE_SECONDS = 0.1

    def __init__(self, root: int, without: frozenset[int] = frozenset()) -> None:
        self._root, self._without = root, without
        self._spent: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()
        self._watching = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def watching_seconds(self) -> float:
        """The processor time of the thread that reads the times of the processes."""
        return self._watching

    def seconds(self) -> float:
        """The time until now."""
        with self._lock:
            self._look()
            return sum(self._spent.values()) / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while True:
            time.sleep(self.PAUSE_SECONDS)
            with self._lock:
                self._look()
            self._watching = time.thread_time()

    def _look(self) -> None:
        parents: dict[int, int] = {}
        found: dict[int, tuple[tuple[int, str], int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
                number = int(path.parent.name)
                parents[number] = int(fields[1])
                found[number] = ((number, fields[19]), int(fields[11]) + int(fields[12]))
        ours = {self._root} | {number for number, (key, _) in found.items() if key in self._spent}
        while more := {number for number, parent in parents.items() if parent in ours} - ours - self._without:
            ours |= more
        for number in ours & found.keys():
            key, ticks = found[number]
            self._spent[key] = ticks


@dataclass(frozen=True)
class Run:
    """One run of one contestant: elapsed seconds, seconds of CPU, and the cores that other programs used."""

    seconds: float
    cpu: float
    broker_cpu: float
    others: float

    def figures(self, rows: int) -> dict[str, float]:
        """Return nanoseconds per row, and rows per second."""
        return {"cpu": self.cpu / rows * 1e9, "rate": rows / self.seconds, "broker": self.broker_cpu / rows * 1e9}


class Meter:
    """Measures runs: CPU of this process and its descendants, and of the broker."""

    def __init__(self, broker: int) -> None:
        self._ours = ProcessorTime(os.getpid(), frozenset([broker]))
        self._broker = ProcessorTime(broker)

    def measure(self, work: Callable[[], int], rows: int) -> Run:
        """Do the work once; exit if it has not read every row."""
        before = self._clocks()
        found = work()
        seconds, cpu, broker_cpu, busy = (after - start for after, start in zip(self._clocks(), before, strict=True))
        if found != rows:
            raise SystemExit(f"{found} rows were read, expected {rows}")
        return Run(seconds, cpu, broker_cpu, max(0.0, busy - cpu - broker_cpu) / seconds)

    def compare(self, pair: tuple[Callable[[], int], Callable[[], int]], rows: int, pairs: int) -> list[Round]:
        """Return the rounds of kcodec and of the connector, after one that is not counted.

        Other load is measured during each run, without the work of this process between the runs.
        """
        rounds = []
        for number in range(-1, pairs):
            runs = {SIDES[side]: self.measure(pair[side], rows) for side in ((0, 1) if number % 2 else (1, 0))}
            others = max(run.others for run in runs.values())
            if number >= 0:
                figures = {name: run.figures(rows or 1) for name, run in runs.items()}
                rounds.append(Round(figures, others, others > measure.OTHERS_OF_ONE))
        return rounds

    def _clocks(self) -> tuple[float, float, float, float]:
        watching = self._ours.watching_seconds + self._broker.watching_seconds
        return time.perf_counter(), self._ours.seconds() - watching, self._broker.seconds(), measure.busy_seconds()


def rows_of(part: str, codec: str, rounds: list[Round]) -> list[Row]:
    """The rows of a part: processor time, rows a second and processor time of the broker."""
    return [
        {"part": part, "codec": codec}
        | measure.compare(rounds, name, *SIDES, case=f"{part}, {codec}", unit=unit, bar=BARS[part].get(name))
        for name, unit in UNITS.items()
    ]


def without_start(rounds: list[Round], starts: list[Round], rows: int) -> dict[str, Any]:
    """Return the seconds of CPU for starting a query on both sides, and the ratio of CPU without these."""
    whole, start = (
        [statistics.median(one.figures[side]["cpu"] for one in each) for side in SIDES] for each in (rounds, starts)
    )
    ratio = (whole[0] * rows - start[0]) / (whole[1] * rows - start[1])
    return {"start_cpu_seconds": [round(each / 1e9, 2) for each in start], "ratio_without_start": round(ratio, 3)}


def run(given: argparse.Namespace) -> None:
    """Start everything, measure each part with each codec, and end everything."""
    load = os.getloadavg()[0]
    table: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="kcodec-bench-") as name, ApacheKafka(heap="512m") as kafka:
        folder = Path(name)
        broker = kafka.nodes[0].pid
        assert broker is not None
        meter = Meter(broker)
        topics = {codec: write_topic(kafka, given.rows, codec) for codec in given.codecs}
        spark = start_spark(folder / "spark")
        try:
            rows = max(topic.rows for topic in topics.values())
            print(f"{rows} rows of {VALUE_BYTES} bytes, {given.pairs} pairs; kcodec / connector", flush=True)
            for codec, topic in topics.items():
                contestants = Contestants(spark, topic, given.tasks, folder / "work")
                for part in given.parts:
                    try:
                        rounds = meter.compare(contestants.pairs(part), topic.rows, given.pairs)
                        found = rows_of(part, codec, rounds)
                        if part == "stream":
                            starts = meter.compare(contestants.pairs("start"), 0, given.pairs)
                            found[0] |= without_start(rounds, starts, topic.rows)
                    except PySparkException as error:  # the other parts are still measured
                        print(f"{part} {codec}: not measured, as Spark failed: {str(error)[:500]}", flush=True)
                        continue
                    if part == "land":
                        found[0]["bytes"] = dict(contestants.files_bytes)
                    print(*(f"{row['case']}, {row['figure']}: {measure.value_text(row)}" for row in found), sep="\n")
                    table += found
        finally:
            spark.stop()
    measure.print_comparisons("topics into Spark", table)
    options = {"rows": rows, "pairs": given.pairs, "tasks": given.tasks, "connector": TUNED}
    options["jar"] = sorted(path.name for path in JARS.glob("spark-sql-kafka-*.jar"))
    measure.save(given.json, {"topics": table}, options, load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000, help="records of each topic (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="measured runs of each side (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=list(BARS), default=list(BARS))
    parser.add_argument(
        "--codecs", nargs="+", choices=["none", "lz4", "zstd", "snappy", "gzip"], default=["none", "lz4"]
    )
    parser.add_argument("--tasks", type=int, default=PARTITIONS, help="minPartitions of both (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write the results there, too: {RESULTS.name}")
    given = parser.parse_args()
    if given.rows < 1 or given.pairs < 1 or given.tasks < 1:
        parser.error("--rows, --pairs and --tasks must be above 0")
    run(given)


if __name__ == "__main__":
    main()
