# SPDX-License-Identifier: Apache-2.0
"""What exactly once costs in Spark: exactly_once beside writeStream.format("kcodec"), and begin + commit alone.

    python benchmarks/bench_spark_sink.py [--rows 400000] [--batches 4] [--rounds 3] [--warm-up 20]
                                          [--part sink,idle] [--json FILE]

sink: rows a second and processor time a row of a streaming query over Spark's rate-micro-batch source, 100 B values and
      keys, from the end of its second batch on, to a topic of two partitions; the two sinks take turns. With
      `exactly_once` as it is (by the keys), and with a column `partition` that the query has computed. The
      processor time is that of the driver, its JVM and all workers; the broker's is shown by itself. Bars, of medians:
      at least 0.8 of the rows a second, at most 1.25 of the processor time, of the at-least-once sink.
      A query that runs for long is measured, and not the compiler of a JVM that has just started: before the first
      round each sink writes `--warm-up` batches of a quarter of the rows. --warm-up 0 measures new queries. The first
      two batches of each query are not measured either: they start its Python workers.
idle: milliseconds of begin and commit of a transaction without rows, on kept connections; the median. Bar: 30 together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from kcodec import TopicPartition
from kcodec.client import Admin, SharedTransactions
from kcodec.spark import exactly_once
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "spark-sink.json"
BAR_PACE, BAR_PROCESSOR, BAR_IDLE = 0.8, 1.25, 30.0
PARTITIONS, TRANSACTIONS, FIRST_BATCHES, SECONDS = 2, 200, 2, 600
BASE = "at least once"
CONTESTANTS = (BASE, "exactly once", "exactly once, partition column")


def session(folder: str) -> SparkSession:
    """A Spark on local[2]."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": folder,
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("exactly once")
    for name, value in options.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


def processor_seconds(brokers: bool) -> float:
    """User and system time of this process and those below it, brokers left out; or of the brokers alone."""
    parents, spent, is_broker = {}, {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
            process = int(path.parent.name)
            parents[process] = int(fields[1])
            spent[process] = sum(int(field) for field in fields[11:15])
            is_broker[process] = b"kafka.Kafka" in (path.parent / "cmdline").read_bytes()
    ours = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(spent[one] for one in ours if one in spent and is_broker[one] is brokers) / os.sysconf("SC_CLK_TCK")


class Contest:
    """Queries that take turns; each has a topic of its own."""

    def __init__(self, spark: SparkSession, kafka: ApacheKafka, folder: str, rows: int, batches: int) -> None:
        self._spark, self._kafka, self._folder = spark, kafka, folder
        self._rows, self._batches = rows, batches

    def frame(self, rows: int) -> DataFrame:
        """Batches of `rows` rows."""
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        return (
            source.option("numPartitions", PARTITIONS)
            .load()
            .selectExpr(
                "CAST(value AS STRING) AS key",
                "rpad(concat('order ', CAST(value AS STRING), ' '), 100, 'paid shipped ') AS value",
                f"CAST(value % {PARTITIONS} AS INT) AS number",
            )
        )

    def writer(self, name: str, topic: str, rows: int) -> Any:
        """The query of a contestant."""
        servers, frame = self._kafka.bootstrap_servers, self.frame(rows)
        if name == BASE:
            options = {"kafka.bootstrap.servers": servers, "topic": topic}
            return frame.select("key", "value").writeStream.format("kcodec").options(**options)
        is_given = name != "exactly once"
        return exactly_once(
            frame.withColumnRenamed("number", "partition") if is_given else frame.select("key", "value"),
            topic=topic,
            application=f"bench-{topic}",
            bootstrap_servers=servers,
            partitioner="column" if is_given else "key",
        )

    def warm_up(self, name: str, batches: int) -> None:
        """Write some smaller batches."""
        with self._query(name, self._rows // 4) as query:
            self._wait_for(query, batches - 1)

    def run(self, name: str) -> dict[str, float]:
        """Rows a second, and nanoseconds of processor time a row, of some batches behind the first two."""
        with self._query(name, self._rows) as query:
            first = self._wait_for(query, FIRST_BATCHES - 1)
            began, spent, brokers = time.perf_counter(), processor_seconds(False), processor_seconds(True)
            last = self._wait_for(query, first + self._batches)
            seconds = time.perf_counter() - began
            spent, brokers = processor_seconds(False) - spent, processor_seconds(True) - brokers
        rows = (last - first) * self._rows
        return {
            "rows_per_second": rows / seconds,
            "cpu_ns_per_row": spent / rows * 1e9,
            "broker_cpu_ns_per_row": brokers / rows * 1e9,
        }

    @contextlib.contextmanager
    def _query(self, name: str, rows: int) -> Iterator[Any]:
        """The query of a contestant, running, to a topic of its own."""
        topic = self._kafka.create_topic(partitions=PARTITIONS)
        query = self.writer(name, topic, rows).option("checkpointLocation", f"{self._folder}/{topic}").start()
        try:
            yield query
        finally:
            with contextlib.suppress(StreamingQueryException):
                query.stop()
            with Admin(bootstrap_servers=self._kafka.bootstrap_servers) as admin:
                admin.delete_topics([topic])

    @staticmethod
    def _wait_for(query: Any, batch: int) -> int:
        """Wait until a batch is done; return the number of the last one."""
        deadline = time.monotonic() + SECONDS
        while True:
            if query.exception() is not None:
                raise query.exception()
            found = query.lastProgress
            if found is not None and found["batchId"] >= batch and found["numInputRows"]:
                return int(found["batchId"])
            if time.monotonic() > deadline:
                raise TimeoutError(f"batch {batch} was not done in {SECONDS} s")
            time.sleep(0.01)


def measure_sink(kafka: ApacheKafka, arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of each contestant, and of its ratios to the at-least-once sink in the same round."""
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        spark = session(folder)
        contest = Contest(spark, kafka, folder, arguments.rows, arguments.batches)
        for name in CONTESTANTS if arguments.warm_up else ():
            contest.warm_up(name, arguments.warm_up)
        for number in range(arguments.rounds):
            turn = number % len(CONTESTANTS)
            rounds.append({name: contest.run(name) for name in (*CONTESTANTS[turn:], *CONTESTANTS[:turn])})
            print(f"round {number + 1}: {json.dumps(rounds[-1])}", file=sys.stderr, flush=True)
        spark.stop()

    def median(of: Callable[[dict[str, dict[str, float]]], float]) -> float:
        return round(statistics.median(of(one) for one in rounds), 3)

    found: dict[str, Any] = {}
    for name in CONTESTANTS:
        found[name] = {what: median(lambda one: one[name][what]) for what in rounds[0][name]}  # noqa: B023
        found[name] |= {
            "pace_ratio": median(lambda one: one[name]["rows_per_second"] / one[BASE]["rows_per_second"]),  # noqa: B023
            "cpu_ratio": median(lambda one: one[name]["cpu_ns_per_row"] / one[BASE]["cpu_ns_per_row"]),  # noqa: B023
        }
    return {"rows_per_batch": arguments.rows, "warm_up": arguments.warm_up, "contestants": found, "rounds": rounds}


def measure_idle(kafka: ApacheKafka) -> dict[str, float]:
    """Median milliseconds of begin and of commit."""
    topic = kafka.create_topic(partitions=PARTITIONS)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    times: list[tuple[float, float]] = []
    with SharedTransactions(topic, topic, bootstrap_servers=kafka.bootstrap_servers) as transactions:
        for step in range(TRANSACTIONS + 10):
            began = time.perf_counter()
            handle, _ = transactions.begin(partitions)
            begun = time.perf_counter()
            transactions.commit(handle, [], step + 1)
            times.append((begun - began, time.perf_counter() - begun))
    kept = times[10:]
    return {
        "begin_ms": round(statistics.median(one for one, _ in kept) * 1000, 2),
        "commit_ms": round(statistics.median(one for _, one in kept) * 1000, 2),
        "both_ms": round(statistics.median(sum(one) for one in kept) * 1000, 2),
    }


def main() -> int:
    """Measure, print, and say whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000, help="of a batch")
    parser.add_argument("--batches", type=int, default=4, help="measured in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=20, help="batches of each sink before the first round")
    parser.add_argument("--part", default="sink,idle")
    parser.add_argument("--json", type=Path, default=None, help=f"for example {RESULTS.relative_to(ROOT)}")
    arguments = parser.parse_args()
    parts = arguments.part.split(",")
    result: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "pyspark": pyspark.__version__,
            "load": os.getloadavg()[0],
        }
    }
    is_met = True
    with ApacheKafka(heap="512m") as kafka:
        if "idle" in parts:
            idle = result["idle"] = measure_idle(kafka)
            is_met = is_met and idle["both_ms"] <= BAR_IDLE
            print(f"begin {idle['begin_ms']} ms, commit {idle['commit_ms']}, both {idle['both_ms']}; bar {BAR_IDLE}")
        if "sink" in parts:
            result["sink"] = measure_sink(kafka, arguments)
            for name, one in result["sink"]["contestants"].items():
                print(
                    f"{name:<32} {one['rows_per_second']:>9.0f} rows/s ({one['pace_ratio']:.2f}) "
                    f"{one['cpu_ns_per_row']:>6.0f} ns/row ({one['cpu_ratio']:.2f}), "
                    f"broker {one['broker_cpu_ns_per_row']:.0f}"
                )
            for name in CONTESTANTS[1:]:
                ours = result["sink"]["contestants"][name]
                is_met = is_met and ours["pace_ratio"] >= BAR_PACE and ours["cpu_ratio"] <= BAR_PROCESSOR
            print(f"bars: pace {BAR_PACE}, processor time {BAR_PROCESSOR}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(not is_met)


if __name__ == "__main__":
    sys.exit(main())
