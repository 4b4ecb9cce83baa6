# SPDX-License-Identifier: Apache-2.0
"""Transactions on a broker, read into Python, Arrow and Spark; copies while processes are killed; bytes of a broker.

    python examples/demo.py [story] [copy] [captures] [spark] [--kafka]     # `make demo` installs what they need

story:    Committed, aborted and open transactions are written over TCP, interleaved, and a zombie is fenced
          (examples/interleaved_transactions.py). What readers get is compared with what was written.
copy:     Processes copy a topic and are killed (examples/exactly_once.py); the embedded broker is killed, too.
captures: Files that Apache Kafka 4.3.1 wrote for several clients (tests/golden) are compared with what Kafka's own
          consumer delivered.
spark:    Spark reads the story from the broker, and the captures.

The broker is the embedded one, or with --kafka an Apache Kafka, which needs the jars of `make jars`; Spark then copies,
too, and its workers are killed (examples/spark_under_kills.py). Ends with 1 if any reader gets a row that differs, or a
copy loses or duplicates a record that it must not.
"""

from __future__ import annotations

import argparse
import functools
import logging
import operator
import os
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support")]

import exactly_once  # noqa: E402
import golden_data  # noqa: E402
import pyarrow as pa  # noqa: E402
import spark_under_kills  # noqa: E402
from broker_process import BrokerProcess  # noqa: E402
from interleaved_transactions import Row, Written, read, write  # noqa: E402

import kcodec  # noqa: E402
from kcodec.broker import Broker  # noqa: E402
from kcodec.cli import main as kcodec_command  # noqa: E402

PARTS = ("story", "copy", "captures", "spark")
PARTITIONS = ("txn-mixed-0", "txn-mixed-1", "txn-open-0")
ISOLATION: Literal["read_committed"] = "read_committed"
# A part of the first partition that shows several producers and codecs.
SHOWN_ROWS = slice(6, 10)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WIDTH = 118
# From a partition to its rows; each reader returns one.
Rows = dict[str, list[Row]]
# What Kafka's own consumer delivered.
Truths = dict[str, list[dict[str, Any]]]


class Cluster(NamedTuple):
    """A broker of the demo, and its log directory."""

    name: str
    servers: str
    directory: Path


def table(rows: Sequence[Sequence[object]], aligns: str) -> None:
    """Print rows as columns; `aligns` has < or > for each."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(aligns))]
    for row in texts:
        cells = zip(row, aligns, widths, strict=True)
        print("  " + "  ".join(f"{cell:{align}{width}}" for cell, align, width in cells).rstrip())


def title(text: str, code: str) -> None:
    print(f"\n{text.upper()}  {code}")


# --------------------------------------------------------------------------------------------------------- the brokers


@contextmanager
def embedded_broker() -> Iterator[Cluster]:
    """Start the embedded broker on files of its own."""
    with tempfile.TemporaryDirectory(prefix="kcodec-demo-") as folder:
        began = time.perf_counter()
        with Broker(data_dir=folder) as broker:
            took = (time.perf_counter() - began) * 1e3
            yield Cluster(f"kcodec.broker.Broker(), started in {took:.0f} ms", broker.bootstrap_servers, Path(folder))


@contextmanager
def apache_kafka() -> Iterator[Cluster]:
    """Start an Apache Kafka."""
    from kcodec.testing.kafka import ApacheKafka

    began = time.perf_counter()
    with ApacheKafka() as kafka:
        took = time.perf_counter() - began
        yield Cluster(
            f"Apache Kafka {kafka.version}, started in {took:.1f} s", kafka.bootstrap_servers, kafka.log_directory
        )


# ----------------------------------------------------------------------------------------------------------- the story


def show_story(cluster: Cluster) -> bool:
    """Write the transactions, then show the file, the picture, and what each reader gets."""
    print(f"\nkcodec {kcodec.__version__} with {cluster.name}")
    written = write(cluster.servers)
    try:
        title(
            "write", "four producers over TCP into one partition: committed, aborted and open transactions, interleaved"
        )
        outcomes = Counter(outcome for _, outcome in written.rows)
        print("  records: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
        print("  fenced:  the first process of 'web' commits after a second one has started with its transactional_id:")
        error = written.fenced.partition(". ")[0]
        print(textwrap.fill(error, WIDTH, initial_indent=" " * 11, subsequent_indent=" " * 11))
        name = f"{written.topic}-0"
        log = kcodec.open(str(cluster.directory / name))
        show_headers(log, written)
        title("timeline", f"kcodec txn timeline {name}")
        print("  " + ", ".join(f"producer {number}: {who}" for number, who in sorted(written.names.items())))
        kcodec_command(["txn", "timeline", str(cluster.directory / name), "--width", str(WIDTH)])
        title(
            "rows",
            "the same partition over TCP with Consumer and read_topic(...), and from its file with kcodec.open()",
        )
        readers: dict[str, Rows] = {
            "Consumer": {name: read(cluster.servers, written.topic)},
            "Arrow": {name: arrow_rows(over_tcp(cluster.servers, written.topic))},
            "file": {name: rows_in_python(log)},
        }
        return show_counts(readers, {name: written.visible()}, "written and visible")
    finally:
        written.close()


def show_headers(log: Any, written: Written) -> None:
    """Print the header of each batch; nothing is decompressed for it."""
    title("batches", "kcodec.open(directory).batches: what the broker has in its file")
    rows: list[Sequence[object]] = [("offsets", "records", "bytes", "codec", "producer/epoch", "", "sequence", "kind")]
    for batch in log.batches:
        kind = "transactional" if batch.is_transactional else "plain"
        if batch.is_control_batch:
            (record,) = batch.records()
            kind = f"{record.control_type.name} marker"
        producer = f"{batch.producer_id}/{batch.producer_epoch}"
        offsets = f"{batch.base_offset}-{batch.last_offset}"
        sequence = batch.base_sequence if batch.base_sequence >= 0 else "-"
        who = written.names.get(batch.producer_id, "import")
        rows.append(
            (offsets, batch.records_count, batch.size_in_bytes, batch.compression, producer, who, sequence, kind)
        )
    table(rows, "<>><<<><")


def over_tcp(servers: str, topic: str) -> Any:
    """The rows of a topic as an Arrow table."""
    return pa.table(kcodec.read_topic(topic, bootstrap_servers=servers, isolation_level=ISOLATION))


def show_counts(readers: Mapping[str, Rows], truths: Rows, truth: str) -> bool:
    """Print the number of rows of each reader. Return whether all fields of all rows are equal."""
    counts: list[Sequence[object]] = [(ISOLATION, *readers, truth, "all fields")]
    equal = True
    for name, rows in truths.items():
        same = all(found[name] == rows for found in readers.values())
        counts.append(
            (name, *(len(found[name]) for found in readers.values()), len(rows), "equal" if same else "DIFFER")
        )
        equal = equal and same
    table(counts, "<" + ">" * len(readers) + "><")
    return equal


# -------------------------------------------------------------------------------------------------------- the captures


def rows_in_python(log: Any) -> list[Row]:
    """By the record iterator."""
    return [
        (each.offset, each.timestamp, each.key, each.value, list(each.headers))
        for each in log.records(isolation_level=ISOLATION)
    ]


def rows_in_arrow(log: Any) -> list[Row]:
    """By Arrow, through pyarrow."""
    return arrow_rows(pa.table(log.to_arrow(isolation_level=ISOLATION)))


def arrow_rows(columns: Any) -> list[Row]:
    """The rows of an Arrow table."""
    milliseconds = columns.column("timestamp").cast(pa.int64())
    headers = [[(header["key"], header["value"]) for header in each] for each in columns.column("headers").to_pylist()]
    plain = [columns.column(name).to_pylist() for name in ("offset", "key", "value")]
    return list(zip(plain[0], milliseconds.to_pylist(), plain[1], plain[2], headers, strict=True))


@contextmanager
def quiet_stderr(path: Path) -> Iterator[None]:
    """What Java says goes into a file, shown only if something fails."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException:  # Ctrl-C, too: what Java wrote says what it was doing; the error is raised again
        os.dup2(kept, 2)
        sys.stderr.write(path.read_text("utf-8", "replace")[-4000:])
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def local_spark() -> Iterator[Any]:
    """A Spark on this machine; what Java prints is shown only if something fails."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="kcodec-demo-") as folder, quiet_stderr(Path(folder) / "java.log"):
        options = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": folder,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.showConsoleProgress": "false",
        }
        builder = SparkSession.builder.master("local[2]").appName("kcodec demo")
        for name, value in options.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()


def rows_in_spark(frame: Any) -> Rows:
    """Collect a DataFrame; rows by name of the partition."""
    found: Rows = {}
    for row in frame.collect():
        timestamp = (row.timestamp.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1)
        headers = [(header.key, header.value) for header in row.headers or ()]
        cells = [None if cell is None else bytes(cell) for cell in (row.key, row.value)]
        found.setdefault(f"{row.topic}-{row.partition}", []).append((row.offset, timestamp, *cells, headers))
    return {name: sorted(rows, key=operator.itemgetter(0)) for name, rows in found.items()}


def equals(rows: list[Row], truth: list[dict[str, Any]]) -> bool:
    """Whether these are the rows Kafka's consumer delivered, every field."""
    return len(rows) == len(truth) and all(
        (row[0], row[1]) == (expected["offset"], expected["timestamp"])
        and golden_data.same_bytes(row[2], expected["key"])
        and golden_data.same_bytes(row[3], expected["value"])
        and golden_data.same_headers(row[4], expected["headers"])
        for row, expected in zip(rows, truth, strict=True)
    )


def shown(cell: Any, width: int) -> str:
    """The beginning of a value as it can be printed, however it is spelt."""
    if isinstance(cell, dict):
        return f"({cell['size']} bytes)"
    data = golden_data.unpack_bytes(cell) if isinstance(cell, str) else cell
    if data is None:
        return "null"
    text = data.decode("utf-8", "replace")
    return text[:width] if text.isprintable() and "\ufffd" not in text else f"0x{data.hex()}"[:width]


def show_rows(readers: Mapping[str, Rows], truths: Truths) -> bool:
    """Print rows of the last reader next to the consumer's, then the count of each reader. Return whether all agree."""
    last = list(readers)[-1]
    name = PARTITIONS[0]
    rows: list[Sequence[object]] = [(last, "key", "value", "|", "Kafka's own consumer", "key", "value")]
    for row, other in list(zip(readers[last][name], truths[name], strict=False))[SHOWN_ROWS]:
        left = (f"{name} offset {row[0]}", shown(row[2], 14), shown(row[3], 18))
        rows.append((*left, "|", f"offset {other['offset']}", shown(other["key"], 14), shown(other["value"], 18)))
    table(rows, "<<<<<<<")
    counts: list[Sequence[object]] = [("rows, read_committed", *readers, "Kafka's consumer", "all fields")]
    equal = True
    for name, truth in truths.items():
        same = all(equals(found[name], truth) for found in readers.values())
        counts.append(
            (name, *(len(found[name]) for found in readers.values()), len(truth), "equal" if same else "DIFFER")
        )
        equal = equal and same
    table(counts, "<" + ">" * len(readers) + "><")
    return equal


def nanoseconds(decode: Callable[[], object], records: int, seconds: float) -> float:
    """Return the least time for one record over calls that take `seconds`."""
    decode()
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        begin = time.perf_counter()
        decode()
        best = min(best, time.perf_counter() - begin)
    return best / records * 1e9


def decode_to_arrow(data: bytes) -> Any:
    return pa.table(kcodec.decode(data))


def show_speed() -> None:
    """Decoding to Arrow, one thread, CRC checked. The comparison with other clients is `make bench`."""
    title("speed", "pa.table(kcodec.decode(data)): 8000 records of 100 B, one thread, every CRC checked")
    payload = b'{"order":%d,"customer":"%04d","state":"shipped","note":"' + b"-" * 40 + b'"}'
    rows: list[Sequence[object]] = [("codec", "time", "records a second")]
    for codec in ("none", "lz4", "zstd"):
        records = [(b"key-%06d" % number, payload % (number, number % 10_000)) for number in range(8000)]
        encode = functools.partial(kcodec.encode_batch, timestamp=1_750_000_000_000, compression=codec)
        data = b"".join(bytes(encode(records[at : at + 1000])) for at in range(0, 8000, 1000))
        each = nanoseconds(functools.partial(decode_to_arrow, data), 8000, 0.3)
        rows.append((codec, f"{each:.0f} ns a record", f"{1e3 / each:.1f} million"))
    table(rows, "<>>")


def show_captures(paths: dict[str, Path], truths: Truths) -> bool:
    """Files of Apache Kafka in Python and Arrow."""
    title("captures", f"kcodec.open(path).records({ISOLATION!r}): files that Apache Kafka 4.3.1 wrote (tests/golden)")
    logs: dict[str, Any] = {name: kcodec.open(str(path)) for name, path in paths.items()}
    for name, log in logs.items():
        outcomes = Counter(str(each.state) for each in log.transactions)
        counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        print(f"  {name}: {counted}; last stable offset {log.last_stable_offset} of {log.log_end_offset}")
    readers = {
        "Python": {name: rows_in_python(log) for name, log in logs.items()},
        "Arrow": {name: rows_in_arrow(log) for name, log in logs.items()},
    }
    return show_rows(readers, truths)


# ---------------------------------------------------------------------------------------------------- copies and Spark


def show_copy(cluster: Cluster, *, is_kafka: bool) -> bool:
    """Copy by processes that are killed. The embedded broker is then a process as well, which is killed too."""
    title("copy under kills", "with session.transaction() as txn: ...   the processes are killed (SIGKILL)")
    if is_kafka:
        return exactly_once.show(cluster.servers)
    with tempfile.TemporaryDirectory(prefix="kcodec-demo-") as folder, BrokerProcess(Path(folder)) as broker:
        return exactly_once.show(broker.bootstrap_servers, broker)


def show_spark(cluster: Cluster, paths: dict[str, Path], truths: Truths, *, is_kafka: bool) -> bool:
    """Read the broker and the captures as DataFrames; on an Apache Kafka, copy while the workers are killed."""
    written = write(cluster.servers)
    try:
        with local_spark() as spark:
            reader = spark.read.format("kcodec").option("includeHeaders", "true")
            reader = reader.option("kafka.isolation.level", ISOLATION)
            title("spark", 'spark.read.format("kcodec").option("kafka.bootstrap.servers", ...), and .load(paths)')
            topic = reader.option("kafka.bootstrap.servers", cluster.servers).option("subscribe", written.topic)
            truth = {f"{written.topic}-0": written.visible()}
            equal = show_counts({"Spark": rows_in_spark(topic.load())}, truth, "written and visible")
            files = spark.read.format("kcodec").option("includeHeaders", "true")
            files = files.option("kafka.isolation.level", ISOLATION).load([str(path) for path in paths.values()])
            equal = show_rows({"Spark": rows_in_spark(files)}, truths) and equal
    finally:
        written.close()
    if is_kafka:
        title(
            "spark under kills",
            'exactly_once(spark.readStream.format("kcodec")..., topic=...)   its workers are killed',
        )
        with tempfile.TemporaryDirectory(prefix="kcodec-demo-") as scratch, quiet_stderr(Path(scratch) / "java.log"):
            equal = spark_under_kills.show(cluster.servers) and equal
    return equal


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--kafka", action="store_true", help="with an Apache Kafka")
    given = parser.parse_args()
    folder = {each.name: each for each in golden_data.partitions() if each.cluster == "tv2"}
    paths = {name: folder[name].path for name in PARTITIONS}
    truths = {name: folder[name].consumed(ISOLATION) or [] for name in PARTITIONS}
    logging.getLogger("kcodec").setLevel(logging.ERROR)  # a client would warn whenever the broker has been killed
    good = True
    with apache_kafka() if given.kafka else embedded_broker() as cluster:
        if "story" in given.parts:
            good = show_story(cluster)
        if "copy" in given.parts:
            good = show_copy(cluster, is_kafka=given.kafka) and good
        if "captures" in given.parts:
            good = show_captures(paths, truths) and good
            show_speed()
        if "spark" in given.parts:
            good = show_spark(cluster, paths, truths, is_kafka=given.kafka) and good
    if not good:
        sys.exit("a reader got other rows than it must, a copy lost or duplicated records, or a kill had no effect")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # the status of a program that Ctrl-C has ended
