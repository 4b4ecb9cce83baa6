# SPDX-License-Identifier: Apache-2.0
"""Make every public call of kcodec for Spark once, with a real broker, and print the result of each as JSON.

Usage: python spark_every_call.py MODE BOOTSTRAP_SERVERS FOLDER [CALL ...]

MODE is local, cluster (local-cluster: executors are separate processes) or connect (a Spark Connect server; the client
has no JVM). Every call compares its rows with those that were written. A call that raises is reported with the type and
the text of its error. tests/prove/prove_spark_versions.py has the errors that are expected for each version of Spark.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from spark_truth import consumed, golden

import kcodec.spark
from kcodec.client import Admin, NewTopic, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
RECORDS = 300
START_SECONDS = 120
QUERY_SECONDS = 120
CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass
class Setting:
    """What a call works on: the session, the broker, and a topic with its records."""

    spark: SparkSession
    servers: str
    folder: Path
    is_connect: bool
    topic: str = ""
    written: set[tuple[int, bytes, bytes]] = field(default_factory=set)

    def new_topic(self, partitions: int = PARTITIONS) -> str:
        """A topic without records."""
        name = f"calls-{uuid.uuid4().hex[:8]}"
        with Admin(bootstrap_servers=self.servers) as admin:
            admin.create_topics([NewTopic(name, partitions)])
        return name

    def write(self) -> None:
        """Fill the topic that calls read."""
        self.topic = self.new_topic()
        with Producer(bootstrap_servers=self.servers) as producer:
            for number in range(RECORDS):
                record = (number % PARTITIONS, b"key-%d" % number, b"value-%d" % number)
                producer.send(self.topic, record[2], key=record[1], partition=record[0])
                self.written.add(record)

    def consumed(self, topic: str) -> list[tuple[Any, ...]]:
        """(partition, key, value) of what a read_committed reader gets."""
        with kcodec.read_topic(topic, bootstrap_servers=self.servers, isolation_level="read_committed") as records:
            columns = pa.concat_tables(pa.table(batch) for batch in records).select(["partition", "key", "value"])
        return list(zip(*(column.to_pylist() for column in columns.columns), strict=True))

    def rows(self) -> DataFrame:
        """The records of the topic, as a DataFrame."""
        rows = [(partition, bytearray(key), bytearray(value)) for partition, key, value in sorted(self.written)]
        return self.spark.createDataFrame(rows, "partition int, key binary, value binary").repartition(2)

    def streamed_rows(self) -> DataFrame:
        """The same as a stream, out of files."""
        folder = self.path("rows")
        self.rows().write.parquet(folder)
        return self.spark.readStream.schema("partition int, key binary, value binary").parquet(folder)

    def path(self, name: str) -> str:
        """A path that nothing exists at."""
        return str(self.folder / f"{name}-{uuid.uuid4().hex[:8]}")


def same(found: Sequence[tuple[Any, ...]], expected: set[tuple[Any, ...]], what: str) -> None:
    """Raise AssertionError unless these are the rows, each once."""
    rows = [tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in found]
    missing, unexpected = expected - set(rows), set(rows) - expected
    assert len(rows) == len(expected) and not missing and not unexpected, (
        f"{what}: {len(rows)} rows of {len(expected)}, {len(missing)} are missing, {len(unexpected)} unexpected: "
        f"{sorted(unexpected)[:3]}"
    )


def records_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """(partition, key, value) of each row."""
    return [tuple(row) for row in frame.select("partition", "key", "value").collect()]


# Files of brokers.

FILES = ("txn-mixed-0", "txn-mixed-1")


def offsets_of_files() -> set[tuple[Any, ...]]:
    """What Kafka's consumer delivered from the captured partitions."""
    found = map(golden, FILES)
    return {(each.partition, reported["offset"]) for each in found for reported in consumed(each, "read_committed")}


def paths_of_files() -> list[str]:
    return [str(golden(name).path) for name in FILES]


def read_files(at: Setting) -> None:
    """format("kcodec") over partition directories."""
    reader = at.spark.read.format("kcodec").option("kafka.isolation.level", "read_committed")
    same(reader.load(paths_of_files()).select("partition", "offset").collect(), offsets_of_files(), "load")


def read_files_filtered(at: Setting) -> None:
    """The option pushdown, which has no effect."""
    at.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reader = at.spark.read.format("kcodec").option("kafka.isolation.level", "read_committed").option("pushdown", "true")
    found = reader.load(paths_of_files()).where("offset >= 50").select("partition", "offset").collect()
    same(found, {row for row in offsets_of_files() if row[1] >= 50}, "pushdown")


def create_table(at: Setting) -> None:
    """A table of partition directories, in SQL."""
    name = f"files_{uuid.uuid4().hex[:8]}"
    at.spark.sql(
        f"CREATE TABLE {name} USING kcodec OPTIONS ('kafka.isolation.level' 'read_committed') "
        f"LOCATION '{paths_of_files()[0]}'"
    )
    try:
        found = at.spark.sql(f"SELECT partition, offset FROM {name}").collect()
        same(found, {row for row in offsets_of_files() if row[0] == 0}, "table")
    finally:
        at.spark.sql(f"DROP TABLE {name}")


def decode_in_arrow(at: Setting) -> None:
    """Record sets in a column, and names of files in another."""
    paths = at.spark.createDataFrame([(path,) for path in paths_of_files()], "path string").repartition(2)
    mapped = kcodec.spark.decode_in_arrow(paths, paths="path", isolation_level="read_committed")
    same(mapped.select("partition", "offset").collect(), offsets_of_files(), "paths")
    batch = kcodec.encode_batch([(b"k", b"1"), (b"k", b"2")], timestamp=0)
    cells = at.spark.createDataFrame([(bytearray(batch),)], "value binary")
    same(kcodec.spark.decode_in_arrow(cells, topic="t").select("value").collect(), {(b"1",), (b"2",)}, "column")


def decode_partition(at: Setting) -> None:
    """rdd.mapPartitions."""
    rows = at.spark.sparkContext.parallelize(paths_of_files(), 2).mapPartitions(kcodec.spark.decode_partition)
    committed = offsets_of_files()
    found = {(row[3], row[4]) for row in rows.collect()}
    assert committed < found, f"{len(committed - found)} records are missing"


# Topics, reading.


def partition_key_value(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What users apply to batches."""
    for batch in batches:
        yield batch.select(["partition", "key", "value"])


def map_batches(at: Setting) -> None:
    """A topic through a Python function."""
    found = kcodec.spark.map_batches(
        at.spark,
        at.topic,
        partition_key_value,
        "partition int, key binary, value binary",
        bootstrap_servers=at.servers,
    )
    same(found.collect(), at.written, "map_batches")


def read_topic(at: Setting) -> None:
    """format("kcodec") over a topic, batch."""
    same(records_of(from_brokers(at.spark.read, at).load()), at.written, "batch")


def stream_topic(at: Setting) -> None:
    """readStream.format("kcodec") over a topic, to files."""
    frame = from_brokers(at.spark.readStream, at).option("startingOffsets", "earliest").load()
    target = at.path("streamed")
    query = frame.writeStream.format("parquet").option("path", target)
    run(query.option("checkpointLocation", at.path("checkpoint")))
    same(records_of(at.spark.read.parquet(target)), at.written, "stream")


def stream_map_batches(at: Setting) -> None:
    """A topic through a Python function, as a stream."""
    frame = kcodec.spark.map_batches(
        at.spark,
        at.topic,
        partition_key_value,
        "partition int, key binary, value binary",
        streaming=True,
        bootstrap_servers=at.servers,
        startingOffsets="earliest",
    )
    target = at.path("mapped")
    query = frame.writeStream.format("parquet").option("path", target)
    run(query.option("checkpointLocation", at.path("checkpoint")))
    same(records_of(at.spark.read.parquet(target)), at.written, "map_batches, a stream")


def land(at: Setting) -> None:
    """A topic to Parquet files."""
    target = at.path("landed")
    landing = kcodec.spark.land(at.spark, at.topic, target, bootstrap_servers=at.servers)
    assert landing.rows == RECORDS, landing
    assert [each.rows for each in kcodec.spark.landings(target)] == [RECORDS]
    same(records_of(at.spark.read.parquet(target)), at.written, "land")


def from_brokers(reader: Any, at: Setting) -> Any:
    """A reader of the topic."""
    return reader.format("kcodec").option("kafka.bootstrap.servers", at.servers).option("subscribe", at.topic)


# Topics, writing.


def write_topic(at: Setting) -> None:
    """write.format("kcodec"), at least once."""
    target = at.new_topic()
    writer = at.rows().write.format("kcodec").option("kafka.bootstrap.servers", at.servers)
    writer.option("topic", target).mode("append").save()
    same(at.consumed(target), at.written, "write")


def stream_to_topic(at: Setting) -> None:
    """writeStream.format("kcodec"), at least once."""
    target = at.new_topic()
    writer = at.streamed_rows().writeStream.format("kcodec").option("kafka.bootstrap.servers", at.servers)
    run(writer.option("topic", target).option("checkpointLocation", at.path("checkpoint")))
    same(at.consumed(target), at.written, "writeStream")


def exactly_once_version(at: Setting) -> None:
    """exactly_once for a batch job: a version is written once."""
    target = at.new_topic()
    given: dict[str, Any] = {"topic": target, "application": target, "bootstrap_servers": at.servers, "version": 1}
    first = kcodec.spark.exactly_once(at.rows(), **given)
    again = kcodec.spark.exactly_once(at.rows(), **given)
    assert (first.rows, first.is_skipped, again.is_skipped) == (RECORDS, False, True), (first, again)
    same(at.consumed(target), at.written, "exactly_once, a version")


def exactly_once_stream(at: Setting) -> None:
    """exactly_once for a query."""
    target = at.new_topic()
    writer = kcodec.spark.exactly_once(
        at.streamed_rows(), topic=target, application=target, bootstrap_servers=at.servers
    )
    run(writer.option("checkpointLocation", at.path("checkpoint")))
    same(at.consumed(target), at.written, "exactly_once, a query")


def run(writer: Any) -> None:
    """Run a query over what is there; raise what it ended with."""
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(QUERY_SECONDS), "the query does not end"
    finally:
        query.stop()


CALLS: dict[str, Callable[[Setting], None]] = {
    call.__name__: call
    for call in (
        read_files,
        read_files_filtered,
        create_table,
        decode_in_arrow,
        decode_partition,
        map_batches,
        stream_map_batches,
        land,
        read_topic,
        stream_topic,
        write_topic,
        stream_to_topic,
        exactly_once_version,
        exactly_once_stream,
    )
}


# Sessions.


@contextmanager
def own_session(master: str, folder: Path) -> Iterator[SparkSession]:
    """A session with its JVM in this process's charge."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("kcodec calls")
    for name, value in session_configuration(folder).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def connect_session(folder: Path) -> Iterator[SparkSession]:
    """A session of a Connect server, which is another process; it is stopped afterwards."""
    import pyspark
    from pyspark.sql import SparkSession

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = session_configuration(folder) | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = folder / "connect.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_for_port(server, port, log)
        # The client must manage without a Java.
        os.environ["JAVA_HOME"] = "/nowhere"
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        try:
            yield session
        finally:
            session.stop()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_for_port(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server accepts connections; raise RuntimeError with the end of its log if it does not."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the Connect server does not accept connections:\n{log.read_text('utf-8', 'replace')[-4000:]}")


def session_configuration(folder: Path) -> dict[str, str]:
    """With the files of Spark in this folder."""
    own = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    return CONFIGURATION | own


def outcome_of(call: Callable[[Setting], None], setting: Setting) -> dict[str, Any]:
    """How a call ended: {"ok": True}, or the error."""
    begin = time.perf_counter()
    result: dict[str, Any] = {"ok": True}
    try:
        call(setting)
    except Exception as error:  # noqa: BLE001  # reported
        text = re.sub(r"\s*\n\s*at [\w.$]+\(.*", "", str(error))  # without the stack of the JVM
        result = {"ok": False, "error": f"{type(error).__name__}: {text}"[:6000]}
        if isinstance(error, AssertionError) or os.environ.get("SPARK_CALLS_TRACE"):
            traceback.print_exc()
    return result | {"seconds": round(time.perf_counter() - begin, 1)}


def main() -> None:
    mode, servers, given = sys.argv[1:4]
    folder = Path(given)
    chosen = sys.argv[4:] or list(CALLS)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    sessions: dict[str, Callable[[], AbstractContextManager[SparkSession]]] = {
        "local": lambda: own_session("local[2]", folder),
        "cluster": lambda: own_session("local-cluster[2,1,1024]", folder),
        "connect": lambda: connect_session(folder),
    }
    with sessions[mode]() as spark:
        setting = Setting(spark, servers, folder, mode == "connect")
        setting.write()
        outcomes = {}
        for name in chosen:
            outcomes[name] = outcome_of(CALLS[name], setting)
            print(name, outcomes[name]["ok"], outcomes[name]["seconds"], file=sys.stderr, flush=True)
        print(json.dumps({"spark": spark.version, "calls": outcomes}))


if __name__ == "__main__":
    main()
