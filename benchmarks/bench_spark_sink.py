# SPDX-License-Identifier: Apache-2.0
"""What exactly once costs in Spark: exactly_once compared with writeStream.format("kcodec"), and begin + commit alone.

    python benchmarks/bench_spark_sink.py [--rows 400000] [--batches 4] [--rounds 3] [--warm-up 20]
                                          [--part sink,idle] [--json FILE]

sink: rows a second and processor time a row of a streaming query over Spark's rate-micro-batch source, 100 B values and
      keys, from the end of its second batch on, to a topic of two partitions; the two sinks take turns. With
      `exactly_once` as it is (by the keys), and with a column `partition` that the query has computed. The
      processor time is that of the driver, its JVM and all workers; the broker's is shown by itself. Bars:
      at least 0.8 of the rows a second, at most 1.25 of the processor time, of the at-least-once sink.
      A query that runs for long is measured, and not the compiler of a JVM that has just started: before the first
      round each sink writes `--warm-up` batches of a quarter of the rows. --warm-up 0 measures new queries. The first
      two batches of each query are not measured either: they start its Python workers.
idle: milliseconds of begin and commit of a transaction without rows, on kept connections. Bar: 30 together.

Rounds, intervals and other load: `measure`. The exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
from measure import Bar, Row
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from kcodec import TopicPartition
from kcodec.client import Admin, SharedTransactions
from kcodec.spark import exactly_once
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "spark-sink.json"
#: figure -> unit, and the bar of the ratio to the at-least-once sink.
FIGURES = {
    "rate": ("rows a second", Bar(0.8, is_least=True)),
    "cpu": ("ns a row", Bar(1.25)),
    "broker": ("ns a row", None),
}
BAR_IDLE = Bar(30.0)
PARTITIONS, TRANSACTIONS, IDLE_ROUNDS, FIRST_BATCHES, SECONDS = 2, 20, 10, 2, 600
BASE = "at least once"
CONTESTANTS = (BASE, "exactly once", "exactly once, partition column")


def session(folder: str) -> SparkSession:
    """Start Spark on local[2]."""
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


class Contest:
    """Queries that run alternately, each with a separate topic."""

    def __init__(self, spark: SparkSession, kafka: ApacheKafka, folder: str, rows: int, batches: int) -> None:
        self._spark, self._kafka, self._folder = spark, kafka, folder
        self._rows, self._batches = rows, batches

    def frame(self, rows: int) -> DataFrame:
        """Return a streaming DataFrame with batches of `rows` rows."""
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
        """Return the writer of a contestant's query."""
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
        """Return rows per second, and nanoseconds of processor time per row, of some batches after the first two."""
        with self._query(name, self._rows) as query:
            first = self._wait_for(query, FIRST_BATCHES - 1)
            began, (spent, broker) = time.perf_counter(), self._processor_seconds()
            last = self._wait_for(query, first + self._batches)
            seconds, (spent_then, broker_then) = time.perf_counter() - began, self._processor_seconds()
        rows = (last - first) * self._rows
        return {
            "rate": rows / seconds,
            "cpu": (spent_then - spent) / rows * 1e9,
            "broker": (broker_then - broker) / rows * 1e9,
        }

    def _processor_seconds(self) -> tuple[float, float]:
        """Return the processor seconds of this process and its descendants without the brokers, and of the brokers."""
        brokers = [node.pid for node in self._kafka.nodes]
        return measure.tree_seconds(without=brokers), sum(map(measure.tree_seconds, brokers))

    @contextlib.contextmanager
    def _query(self, name: str, rows: int) -> Iterator[Any]:
        """Run the query of a contestant, which writes to a new topic."""
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


def measure_sink(kafka: ApacheKafka, arguments: argparse.Namespace) -> list[Row]:
    """Compare each exactly-once sink with the at-least-once sink."""
    with tempfile.TemporaryDirectory() as folder:
        spark = session(folder)
        contest = Contest(spark, kafka, folder, arguments.rows, arguments.batches)
        for name in CONTESTANTS if arguments.warm_up else ():
            contest.warm_up(name, arguments.warm_up)
        turns = {name: functools.partial(contest.run, name) for name in CONTESTANTS}
        rounds = measure.take_turns(turns, arguments.rounds)
        spark.stop()
    return [
        measure.compare(rounds, figure, name, BASE, case=f"{arguments.rows:,} rows a batch", unit=unit, bar=bar)
        for name in CONTESTANTS[1:]
        for figure, (unit, bar) in FIGURES.items()
    ]


def measure_idle(kafka: ApacheKafka) -> list[Row]:
    """Measure begin and commit of transactions, several in each round."""
    topic = kafka.create_topic(partitions=PARTITIONS)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    steps = itertools.count(1)
    with SharedTransactions(topic, topic, bootstrap_servers=kafka.bootstrap_servers) as transactions:

        def some() -> dict[str, float]:
            times = []
            for _ in range(TRANSACTIONS):
                began = time.perf_counter()
                handle, _ = transactions.begin(partitions)
                begun = time.perf_counter()
                transactions.commit(handle, [], next(steps))
                times.append((begun - began, time.perf_counter() - begun))
            begin, commit = (statistics.median(each) * 1000 for each in zip(*times, strict=True))
            return {"begin": begin, "commit": commit, "both": statistics.median(map(sum, times)) * 1000}

        rounds = measure.take_turns({"kcodec": some}, IDLE_ROUNDS, warm_up=1)
    named = {"case": "a transaction without rows", "unit": "ms"}
    bars = {"both": BAR_IDLE, "begin": None, "commit": None}
    return [measure.compare(rounds, figure, "kcodec", bar=bar, **named) for figure, bar in bars.items()]


def main() -> int:
    """Measure and print the results. Return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000, help="of a batch")
    parser.add_argument("--batches", type=int, default=4, help="measured in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=20, help="batches of each sink before the first round")
    parser.add_argument("--part", default="sink,idle")
    parser.add_argument("--json", type=Path, default=None, help=f"for example {RESULTS.relative_to(ROOT)}")
    arguments = parser.parse_args()
    parts = arguments.part.split(",")
    load, found = os.getloadavg()[0], {}
    with ApacheKafka(heap="512m") as kafka:
        if "idle" in parts:
            found["idle"] = measure_idle(kafka)
        if "sink" in parts:
            found["sink"] = measure_sink(kafka, arguments)
    for name, rows in found.items():
        measure.print_comparisons(name, rows)
    options = {name: getattr(arguments, name) for name in ("rows", "batches", "rounds", "warm_up")}
    measure.save(arguments.json, found, options, load)
    return int(any(row.get("verdict") == "missed" for rows in found.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
