# SPDX-License-Identifier: Apache-2.0
"""The command line compared with today's tools: `kcodec dump --records` and `kcodec convert` on a segment of 1 GB.

    python benchmarks/bench_cli.py [--gigabytes 1.0] [--rounds 3] [--part dump|convert] [--folder F] [--json FILE]

dump      shape a in lz4, against kafka-dump-log --print-data-log (org.apache.kafka.tools.DumpLogSegments), both to
          /dev/null; then both once more, side by side, every line taken apart and compared. Bar: 5 times as quick.
          `decode only` is what no dump can be quicker than here: the same records to columns by one thread, no text.
convert   shape a in zstd to Parquet, against kafka-python and pyarrow with the same row groups and compression; then
          both files are compared. Bars: 3 times as quick, VmHWM below 250 MB.

Wall clock and processor time (user and system, all threads) of whole processes, start included; contestants take turns.
On a machine that others use, too, the processor time is the steadier of the two (`times_processor`).
The segment is written to a temporary folder and removed.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

import measure
import pyarrow as pa
import pyarrow.parquet as pq
import shapes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import fetch_kafka_jars as jars  # noqa: E402  it has the paths of the jars and of Java

from kcodec.cli.render import time_text  # noqa: E402

BARS = {"dump": 5.0, "convert": 3.0, "peak_mb": 250.0}
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
PEAK = """
import sys
from pathlib import Path
from kcodec.cli import main
status = main(sys.argv[1:])
line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print("peak", int(line.split()[1]) * 1024 / 1e6, file=sys.stderr)
sys.exit(status)
"""
DECODE = """
import sys
import kcodec
print(sum(len(decoded) for decoded in kcodec.open(sys.argv[1]).to_arrow()))
"""


def write_segment(path: Path, shape: str, codec: str, size: int) -> int:
    """Write a segment of at least `size` bytes by repeating the blob's batches at rising offsets. Return the number of
    records."""
    blob, per_batch = shapes.blob(shape, codec), shapes.SHAPES[shape].per_batch
    positions = shapes.batch_positions(blob.data)
    path.parent.mkdir(parents=True)
    written = number = 0
    with path.open("wb", buffering=1 << 20) as file:
        while written < size:
            at = number % blob.batches
            batch = blob.data[positions[at] : positions[at + 1]]
            written += file.write((number * per_batch).to_bytes(8, "big") + batch[8:])
            number += 1
    return number * per_batch


def timed(command: list[str]) -> dict[str, float]:
    """Return the elapsed and processor seconds of a process, and the peak memory that it reports."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        stderr_text = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[:6]} ended with {process.returncode}:\n{stderr_text[-2000:]}")
    found = {"wall": time.perf_counter() - begin, "processor": usage.ru_utime + usage.ru_stime}
    peak = re.search(r"^peak ([\d.]+)$", stderr_text, re.MULTILINE)
    return {**found, "peak_mb": float(peak[1])} if peak else found


def turns(cases: dict[str, list[str]], rounds: dict[str, int]) -> dict[str, list[dict[str, float]]]:
    """Run each case the number of times in `rounds`, alternating between the cases."""
    made: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for turn in range(max(rounds.values())):
        for name, command in cases.items():
            if turn < rounds[name]:
                made[name].append(timed(command))
                print(f"  {name}: {made[name][-1]['wall']:.2f} s", flush=True)
    return made


def figures(made: dict[str, list[dict[str, float]]], records: int) -> list[dict[str, Any]]:
    """Return one row for each case, with the quickest and the median round."""
    rows = []
    for name, runs in made.items():
        walls = [run["wall"] for run in runs]
        row: dict[str, Any] = {"case": name, "rounds": len(runs), "wall_s": round(min(walls), 3)}
        row |= {"median_s": round(statistics.median(walls), 3)}
        row |= {"processor_s": round(statistics.median(run["processor"] for run in runs), 3)}
        row |= {"records_a_second": round(records / statistics.median(walls))}
        if "peak_mb" in runs[0]:
            row |= {"peak_mb": round(max(run["peak_mb"] for run in runs), 1)}
        rows.append(row)
    return rows


# The part `dump`.


def java_dump(segment: Path) -> list[str]:
    """Return the Java command that kafka-dump-log runs."""
    if not jars.is_complete(jars.DEFAULT_TOOLS, jars.TOOLS):
        raise SystemExit("Kafka's command line tools are not there: run `make jars`")
    class_path = f"{jars.DEFAULT_TOOLS}/*"
    return [str(jars.find_java()), "-Xmx512m", "-cp", class_path, DUMP_LOG, "--print-data-log", "--files", str(segment)]


def kcodec(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kcodec", *arguments]


JAVA_RECORD = re.compile(
    rb"\| offset: (\d+) (?:CreateTime|LogAppendTime): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) sequence: (-?\d+) "
    rb"headerKeys: \[\](?: key: (.*?))? payload: (.*)\n"
)
JAVA_BATCH = re.compile(
    rb"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* position: (\d+) CreateTime: (-?\d+) size: (\d+) magic: 2 "
    rb"compresscodec: (\w+) crc: (\d+) isvalid: true\n"
)
OUR_RECORD = re.compile(rb" *(\d+)  (\S+) +(-?\d+) +(-?\d+) +(-?\d+)  (\S+)  (.*)\n")
OUR_BATCH = re.compile(
    rb"batch (\d+)\.\.(\d+): position (\d+), (\d+) bytes, records_count (\d+), magic 2, (\w+), CreateTime, "
    rb"max_timestamp (-?\d+), .*crc ([0-9a-f]{8}) valid\n"
)


@functools.lru_cache(1 << 16)
def date(timestamp: bytes) -> bytes:
    return time_text(int(timestamp)).encode()


def java_lines(stream: IO[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Yield the fields of each line in the order and format of `kcodec dump`."""
    for line in stream:
        if match := JAVA_RECORD.fullmatch(line):
            offset, timestamp, key_size, value_size, sequence, key, value = match.groups()
            yield offset, date(timestamp), sequence, key_size, value_size, key, value
        elif match := JAVA_BATCH.fullmatch(line):
            base, last, count, position, timestamp, size, codec, crc = match.groups()
            yield base, last, position, size, count, codec, timestamp, b"%08x" % int(crc)
        elif not line.startswith((b"Dumping ", b"Log starting offset: ")):
            yield (b"unknown", line)


def our_lines(stream: IO[bytes]) -> Iterator[tuple[bytes, ...]]:
    for line in stream:
        if (match := OUR_RECORD.fullmatch(line)) or (match := OUR_BATCH.fullmatch(line)):
            yield match.groups()
        elif not line.startswith(b"    offset  timestamp "):
            yield (b"unknown", line)


def compare(segment: Path) -> int:
    """Compare both dumps line by line; return the number of equal records. Raise ValueError at the first difference."""
    agreed = 0
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "bufsize": 1 << 20}
    with (
        subprocess.Popen(java_dump(segment), **options) as java,
        subprocess.Popen(kcodec("dump", "--records", str(segment)), **options) as ours,
    ):
        assert java.stdout is not None
        assert ours.stdout is not None
        for theirs, own in zip_longest(java_lines(java.stdout), our_lines(ours.stdout)):
            if theirs != own:
                raise ValueError(f"kafka-dump-log says {theirs}, kcodec dump {own}")
            agreed += len(own) == 7
    return agreed


def bench_dump(segment: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    records = write_segment(segment, "a", "lz4", int(arguments.gigabytes * 1e9))
    cases = {
        "kcodec dump --records": kcodec("dump", "--records", str(segment)),
        "kafka-dump-log --print-data-log": java_dump(segment),
        "kcodec dump --records --threads 1": kcodec("dump", "--records", "--threads", "1", str(segment)),
        "kcodec dump --records --json": kcodec("dump", "--records", "--json", str(segment)),
        "decode only": [sys.executable, "-c", DECODE, str(segment)],
    }
    rounds = {name: 1 if "threads" in name or "json" in name else arguments.rounds for name in cases}
    rounds["kafka-dump-log --print-data-log"] = min(2, arguments.rounds)
    rows = figures(turns(cases, rounds), records)
    times, times_processor = (round(rows[1][name] / rows[0][name], 2) for name in ("median_s", "processor_s"))
    print("  comparing every line", flush=True)
    agreed = compare(segment)
    if agreed != records:
        raise ValueError(f"both dumps agree on {agreed} records, but {records} were written")
    return {
        "shape": "a, lz4",
        "bytes": segment.stat().st_size,
        "records": records,
        "times": times,
        "times_processor": times_processor,
        "bar": BARS["dump"],
        "met": times >= BARS["dump"],
        "records_compared": agreed,
        "cases": rows,
    }


# The part `convert`.


def same_tables(one: Path, other: Path) -> int:
    """Compare two Parquet files column by column and return the number of rows. Raise ValueError if they differ."""
    rows = 0
    streams = [pq.ParquetFile(path).iter_batches(batch_size=65_536) for path in (one, other)]
    for first, second in zip_longest(*streams):
        if (
            first is None
            or second is None
            or not pa.Table.from_batches([first]).equals(pa.Table.from_batches([second]).cast(first.schema))
        ):
            raise ValueError(f"the files differ within 65,536 rows of row {rows}")
        rows += first.num_rows
    return rows


def bench_convert(segment: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    records = write_segment(segment, "a", "zstd", int(arguments.gigabytes * 1e9))
    ours, theirs = segment.parent / "kcodec.parquet", segment.parent / "peer.parquet"
    peer = str(ROOT / "benchmarks" / "convert_peer.py")
    cases = {
        "kcodec convert": [sys.executable, "-c", PEAK, "convert", str(segment), "-o", str(ours)],
        "kafka-python + pyarrow": [sys.executable, peer, str(segment), str(theirs)],
    }
    rows = figures(turns(cases, {"kcodec convert": arguments.rounds, "kafka-python + pyarrow": 1}), records)
    print("  comparing both files", flush=True)
    compared = same_tables(ours, theirs)
    if compared != records:
        raise ValueError(f"{compared} rows, but {records} records were written")
    times, times_processor = (round(rows[1][name] / rows[0][name], 2) for name in ("median_s", "processor_s"))
    return {
        "shape": "a, zstd",
        "bytes": segment.stat().st_size,
        "records": records,
        "times": times,
        "times_processor": times_processor,
        "bar": BARS["convert"],
        "peak_mb": rows[0]["peak_mb"],
        "peak_bar_mb": BARS["peak_mb"],
        "met": times >= BARS["convert"] and rows[0]["peak_mb"] < BARS["peak_mb"],
        "rows_compared": compared,
        "cases": rows,
    }


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {"dump": bench_dump, "convert": bench_convert}


def main() -> int:
    """Run the parts. Return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(
        description="the command line compared with kafka-dump-log, and kafka-python + pyarrow"
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=sorted(PARTS), action="append")
    parser.add_argument("--folder", type=Path, help="where the segment is written (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="all figures into this file")
    arguments = parser.parse_args()
    parts: dict[str, Any] = {}
    before = os.getloadavg()[0]
    for name in arguments.part or PARTS:
        print(f"{name}, {arguments.gigabytes} GB", flush=True)
        others = measure.OtherLoad()
        with tempfile.TemporaryDirectory(prefix="kcodec-bench-", dir=arguments.folder) as folder:
            found = PARTS[name](Path(folder, "bench-0", f"{0:020d}.log"), arguments)
        parts[name] = found | {"others": round(others.cores(), 2)}
        measure.print_table(name, found["cases"], tuple(dict.fromkeys(key for row in found["cases"] for key in row)))
        print(
            f"  {found['times']} times as quick, bar {found['bar']}: {'met' if found['met'] else 'MISSED'}", flush=True
        )
    options = {"gigabytes": arguments.gigabytes, "rounds": arguments.rounds}
    measure.save(arguments.json, parts, options, before, unit="seconds, whole processes")
    return 0 if all(part["met"] for part in parts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
