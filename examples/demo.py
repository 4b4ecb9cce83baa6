# SPDX-License-Identifier: Apache-2.0
"""What a real broker wrote, read into Python, Arrow and Spark, next to what Kafka's own consumer delivered.

    python examples/demo.py [records] [spark] [kafka]     # default: records spark; `make demo` installs what they take

The bytes are captures of Apache Kafka 4.3.1 (tests/golden): transactions of several clients and codecs, interleaved,
committed, aborted and still open. `kafka` adds a copy from topic to topic on a real broker by processes that are killed
(examples/exactly_once.py), then a copy by Spark whose workers are killed (examples/spark_under_kills.py); it takes the
jars of `make jars`, and says so where they are missing. Ends with 1 if any row of any reader differs from what the
consumer delivered, or a copy lost or duplicated a record.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support")]

import exactly_once  # noqa: E402
import golden_data  # noqa: E402
import pyarrow as pa  # noqa: E402
import spark_under_kills  # noqa: E402

import kcodec  # noqa: E402

PARTS = ("records", "spark", "kafka")
PARTS_HELP = "records (Python and Arrow), spark, kafka (copies under kills); default: records spark"
PARTITIONS = ("txn-mixed-0", "txn-mixed-1", "txn-open-0")
ISOLATION = "read_committed"
# Parts of the first partition that show several producers, codecs and both outcomes.
SHOWN_BATCHES, SHOWN_ROWS = slice(11, 22), slice(6, 10)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# offset, timestamp in milliseconds, key, value, headers
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def table(rows: Sequence[Sequence[object]], aligns: str) -> None:
    """Print rows as columns; `aligns` has < or > for each."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(aligns))]
    for row in texts:
        cells = zip(row, aligns, widths, strict=True)
        print("  " + "  ".join(f"{cell:{align}{width}}" for cell, align, width in cells).rstrip())


def title(text: str, code: str) -> None:
    print(f"\n{text.upper()}  {code}")


def show_headers(log: Any, name: str) -> None:
    """The header table: nothing is decompressed for it."""
    batches = list(log.batches)
    title("headers", f'log = kcodec.open("{name}"); log.batches')
    rows: list[Sequence[object]] = [("offsets", "records", "bytes", "codec", "producer/epoch", "sequence", "kind")]
    for batch in batches[SHOWN_BATCHES]:
        kind = "transactional" if batch.is_transactional else "plain"
        if batch.is_control_batch:
            (record,) = batch.records()
            kind = f"{record.control_type.name} marker"
        producer = f"{batch.producer_id}/{batch.producer_epoch}" if batch.producer_id >= 0 else "-"
        offsets = f"{batch.base_offset}-{batch.last_offset}"
        sequence = batch.base_sequence if batch.base_sequence >= 0 else "-"
        rows.append((offsets, batch.records_count, batch.size_in_bytes, batch.compression, producer, sequence, kind))
    table(rows, "<>><<><")
    print(f"  ... {len(batches) - len(rows) + 1} more batches")


def show_transactions(logs: dict[str, Any]) -> None:
    """Return the transactions: which producer wrote which offsets, with what outcome."""
    title("transactions", "log.transactions")
    mixed, opened = logs[PARTITIONS[0]].transactions, logs[PARTITIONS[-1]].transactions
    chosen = [(PARTITIONS[0], each) for each in mixed[:5]]
    chosen += [(PARTITIONS[-1], each) for each in opened if each.state == "open"][:2]
    rows: list[Sequence[object]] = [("partition", "producer/epoch", "first", "last", "marker", "outcome")]
    for name, each in chosen:
        marker = "-" if each.marker_offset is None else each.marker_offset
        producer = f"{each.producer_id}/{each.producer_epoch}"
        rows.append((name, producer, each.first_offset, each.last_offset, marker, each.state))
    table(rows, "<<>>><")
    for name, log in logs.items():
        outcomes = Counter(str(each.state) for each in log.transactions)
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        print(f"  {name}: {told}; last stable offset {log.last_stable_offset} of {log.log_end_offset}")


def rows_in_python(log: Any) -> list[Row]:
    """By the record iterator."""
    return [
        (each.offset, each.timestamp, each.key, each.value, list(each.headers))
        for each in log.records(isolation_level=ISOLATION)
    ]


def rows_in_arrow(log: Any) -> list[Row]:
    """By Arrow, through pyarrow."""
    columns = pa.table(log.to_arrow(isolation_level=ISOLATION))
    milliseconds = columns.column("timestamp").cast(pa.int64())
    headers = [[(header["key"], header["value"]) for header in each] for each in columns.column("headers").to_pylist()]
    plain = [columns.column(name).to_pylist() for name in ("offset", "key", "value")]
    return list(zip(plain[0], milliseconds.to_pylist(), plain[1], plain[2], headers, strict=True))


@contextlib.contextmanager
def quiet_stderr(path: Path) -> Iterator[None]:
    """What Java says goes into a file, shown only if something fails."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException:
        os.dup2(kept, 2)
        sys.stderr.write(path.read_text("utf-8", "replace")[-4000:])
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def rows_in_spark(folder: Path, paths: list[str]) -> dict[str, list[Row]]:
    """By format("kcodec"), all partitions in one DataFrame; rows by name of the partition."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("kcodec demo")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        reader = spark.read.format("kcodec").option("includeHeaders", "true").option("kafka.isolation.level", ISOLATION)
        found: dict[str, list[Row]] = {}
        for row in reader.load(paths).collect():
            timestamp = (row.timestamp.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1)
            headers = [(header.key, header.value) for header in row.headers or ()]
            cells = [None if cell is None else bytes(cell) for cell in (row.key, row.value)]
            found.setdefault(f"{row.topic}-{row.partition}", []).append((row.offset, timestamp, *cells, headers))
        return found
    finally:
        spark.stop()


def equals(rows: list[Row], truth: list[dict[str, Any]]) -> bool:
    """Whether these are the rows Kafka's consumer delivered, every field."""
    return len(rows) == len(truth) and all(
        (row[0], row[1]) == (told["offset"], told["timestamp"])
        and golden_data.same_bytes(row[2], told["key"])
        and golden_data.same_bytes(row[3], told["value"])
        and golden_data.same_headers(row[4], told["headers"])
        for row, told in zip(rows, truth, strict=True)
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


def show_rows(readers: dict[str, dict[str, list[Row]]], truths: dict[str, list[dict[str, Any]]]) -> bool:
    """Print rows of the last reader next to the consumer's, then the count of each reader. Return whether all agree."""
    last = list(readers)[-1]
    name = PARTITIONS[0]
    rows: list[Sequence[object]] = [(last, "key", "value", "|", "Kafka's own consumer", "key", "value")]
    for row, told in list(zip(readers[last][name], truths[name], strict=False))[SHOWN_ROWS]:
        left = (f"{name} offset {row[0]}", shown(row[2], 14), shown(row[3], 18))
        rows.append((*left, "|", f"offset {told['offset']}", shown(told["key"], 14), shown(told["value"], 18)))
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


def show_exactly_once() -> bool:
    """Three guarantees under the same kills; whether each came out as it must. True where it cannot be shown."""
    title(
        "exactly once",
        "with session.transaction() as txn: ...   a copy on a real Kafka, its processes killed (SIGKILL)",
    )
    missing = exactly_once.missing_for_kafka()
    if missing:
        print(f"  not shown: {missing}")
        return True
    with exactly_once.own_kafka() as servers:
        return exactly_once.show(servers) and show_spark_exactly_once(servers)


def show_spark_exactly_once(servers: str) -> bool:
    """Kafka to Spark to Kafka, its workers killed; whether each record was copied once."""
    title(
        "exactly once, by spark",
        'exactly_once(spark.readStream.format("kcodec")..., topic=...)   its Python workers killed (SIGKILL)',
    )
    with tempfile.TemporaryDirectory(prefix="kcodec-demo-") as scratch, quiet_stderr(Path(scratch) / "java.log"):
        return spark_under_kills.show(servers)


def show_records(logs: dict[str, Any], truths: dict[str, list[dict[str, Any]]]) -> bool:
    """Bytes to records and Arrow: takes neither Java nor Spark."""
    print(f"kcodec {kcodec.__version__}: bytes as Apache Kafka 4.3.1 wrote them for several clients (tests/golden)")
    show_headers(logs[PARTITIONS[0]], PARTITIONS[0])
    show_transactions(logs)
    title("rows", f'log.records(isolation_level="{ISOLATION}") and pa.table(log.to_arrow(...))')
    readers = {
        "Python": {name: rows_in_python(log) for name, log in logs.items()},
        "Arrow": {name: rows_in_arrow(log) for name, log in logs.items()},
    }
    equal = show_rows(readers, truths)
    show_speed()
    return equal


def show_spark(paths: list[str], truths: dict[str, list[dict[str, Any]]]) -> bool:
    """The same partitions as one DataFrame."""
    title("spark", f'spark.read.format("kcodec").option("kafka.isolation.level", "{ISOLATION}").load(paths)')
    with tempfile.TemporaryDirectory(prefix="kcodec-demo-") as scratch, quiet_stderr(Path(scratch) / "java.log"):
        return show_rows({"Spark": rows_in_spark(Path(scratch), paths)}, truths)


def main() -> None:
    parser = argparse.ArgumentParser(description="What Kafka wrote, read into Python, Arrow and Spark.")
    parser.add_argument(
        "parts", nargs="*", choices=PARTS, default=["records", "spark"], metavar="PART", help=PARTS_HELP
    )
    parts = parser.parse_args().parts
    folder = {each.name: each for each in golden_data.partitions() if each.cluster == "tv2"}
    chosen = {name: folder[name] for name in PARTITIONS}
    truths = {name: each.consumed(ISOLATION) or [] for name, each in chosen.items()}
    equal = True
    if "records" in parts:
        equal = show_records({name: kcodec.open(str(each.path)) for name, each in chosen.items()}, truths)
    if "spark" in parts:
        equal = show_spark([str(each.path) for each in chosen.values()], truths) and equal
    if not equal:
        sys.exit("what was read differs from what Kafka's consumer delivered")
    if "kafka" in parts and not show_exactly_once():
        sys.exit("a copy lost or doubled records that it must not, or a kill had no effect")


if __name__ == "__main__":
    main()
