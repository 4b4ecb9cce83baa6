# SPDX-License-Identifier: Apache-2.0
"""Kafka to Spark to Kafka, exactly once, while Python workers are killed.

    python examples/spark_under_kills.py                  # on a Kafka of its own: needs Java and Kafka's jars
    python examples/spark_under_kills.py -b HOST:PORT     # on yours, in topics of its own

A query reads a topic with `format("kcodec")` and writes it to another with `exactly_once`, in four batches. While the
rows of a batch arrive in the target, all Python workers of Spark are killed (SIGKILL), in three of the batches. Readers
then count. Ends with 1 if a read_committed reader misses a row or has one twice, or if no kill left aborted rows.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import exactly_once as kafka_alone
import pyarrow as pa
import pyarrow.compute as pc

import kcodec
from kcodec import TopicPartition
from kcodec.client import Admin, NewTopic, Producer
from kcodec.spark import exactly_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3
RECORDS = 80_000
BATCHES = 4
END_SECONDS = 240.0
# As `ps` shows the processes that run tasks; those that plan reads and commit writes have another module.
WORKER = "pyspark.daemon pyspark.worker"


def copy(spark: SparkSession, servers: str, source: str, target: str, checkpoint: str) -> Any:
    """Start the query; it ends when everything is copied."""
    rows = (
        spark.readStream.format("kcodec")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS // BATCHES)
        .load()
        .select("key", "value", "partition")
    )
    # The rows and the number of the batch are in one transaction, which is aborted if a task fails.
    writer = exactly_once(rows, topic=target, application=f"copy-{target}", bootstrap_servers=servers)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


# ------------------------------------------------------------------------------------------------------------ the kills


class Killer:
    """Kills the Python workers of this process's Spark while the rows of a batch arrive, from the second batch on.

    killed: number of times that it did.
    """

    def __init__(self, query: Any, servers: str, target: str) -> None:
        self.killed = 0
        self._query, self._servers = query, servers
        self._ends: dict[TopicPartition, Any] = {TopicPartition(target, each): "latest" for each in range(PARTITIONS)}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Kill no more."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        killed_after = -1
        with Admin(bootstrap_servers=self._servers) as admin:
            while not self._is_over.wait(0.02):
                progress = self._query.lastProgress
                if progress is None or progress["batchId"] <= killed_after:
                    continue  # one kill in each batch
                workers = python_workers()
                if self._open_rows(admin) < RECORDS // BATCHES // 20:
                    continue
                for pid in workers:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                killed_after = progress["batchId"]
                self.killed += bool(workers)

    def _open_rows(self, admin: Admin) -> int:
        """Rows of transactions that are open: between the last stable offset and the end."""
        ends, stable = (
            admin.list_offsets(self._ends, isolation_level=level) for level in ("read_uncommitted", "read_committed")
        )
        return sum(ends[each].offset - stable[each].offset for each in self._ends)


def python_workers() -> list[int]:
    """Return the processes that descend from this one and run tasks of Spark."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], stdout=subprocess.PIPE, text=True, check=True).stdout
    parents: dict[int, int] = {}
    daemons = set()
    for line in listed.splitlines():
        pid, parent, command = line.split(None, 2)
        parents[int(pid)] = int(parent)
        if WORKER in command:
            daemons.add(int(pid))
    # A worker is forked from a daemon, and has its command.
    return [pid for pid in daemons if parents[pid] in daemons and _descends(pid, parents)]


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        if pid == os.getpid():
            return True
        pid = parents[pid]
    return False


# ------------------------------------------------------------------------------------------------------------ the count


@dataclass
class Run:
    """What readers found after a copy. invisible: rows of aborted transactions."""

    killed: int
    lost: int
    duplicated: int
    invisible: int


def run(spark: SparkSession, servers: str, source: str) -> Run:
    """Copy under kills, and count."""
    target = f"copied-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(target, PARTITIONS)])
    with tempfile.TemporaryDirectory(prefix="kcodec-demo-") as folder:
        query = copy(spark, servers, source, target, folder)
        killer = Killer(query, servers, target)
        try:
            if not query.awaitTermination(END_SECONDS):
                raise TimeoutError(f"the query has not ended after {END_SECONDS:g} s: {query.lastProgress}")
        finally:
            killer.stop()
            query.stop()
    committed, everything = numbers(servers, target, "read_committed"), numbers(servers, target, "read_uncommitted")
    different = len(pc.unique(committed))
    return Run(killer.killed, RECORDS - different, len(committed) - different, len(everything) - len(committed))


def numbers(servers: str, topic: str, level: Literal["read_committed", "read_uncommitted"]) -> Any:
    """The values in a topic."""
    with kcodec.read_topic(topic, bootstrap_servers=servers, isolation_level=level, columns=["value"]) as records:
        found = [pa.record_batch(batch).column(0) for batch in records]
    return pa.chunked_array(found, pa.binary())


def fill(servers: str) -> str:
    """A new topic with the numbers from 0 on."""
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
        admin.create_topics([NewTopic(topic, PARTITIONS)])
        values = pa.array([b"%09d" % number for number in range(RECORDS)], pa.binary())
        partitions = pa.array([number % PARTITIONS for number in range(RECORDS)], pa.int32())
        producer.send_arrow(topic, pa.table({"key": values, "value": values, "partition": partitions})).result()
    return topic


def show(servers: str) -> bool:
    """Print the table; return whether each record was copied once, under kills."""
    source = fill(servers)
    with local_spark() as spark:
        copied = run(spark, servers, source)
    head = ("", "records", "killed", "lost", "duplicated", "aborted, not visible")
    row = ("exactly_once", RECORDS, copied.killed, copied.lost, copied.duplicated, copied.invisible)
    for first, *cells in (head, row):
        print("  " + f"{first:<22}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))
    return not copied.lost and not copied.duplicated and bool(copied.killed and copied.invisible)


WIDTHS = (9, 8, 7, 12, 22)


@contextmanager
def local_spark() -> Iterator[SparkSession]:
    """A Spark on this machine: three tasks at once, each tried four times."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # before the session starts
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="kcodec-demo-") as folder:
        builder = SparkSession.builder.master(f"local[{PARTITIONS},4]").appName("kcodec under kills")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(Path(folder) / "local"),
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
            "spark.ui.showConsoleProgress": "false",
        }.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")  # it would report each kill
        try:
            yield spark
        finally:
            spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-b", "--bootstrap-server", metavar="HOST:PORT")
    given = parser.parse_args()
    if given.bootstrap_server:
        sys.exit(not show(given.bootstrap_server))
    with kafka_alone.own_kafka() as servers:
        sys.exit(not show(servers))


if __name__ == "__main__":
    main()
