# SPDX-License-Identifier: Apache-2.0
"""`make bench`: run benchmarks one after the other, write benchmarks/results, and generate the Performance page again.

Usage: python benchmarks/bench.py                       the quick set: no broker, no Java, about five minutes
       python benchmarks/bench.py --all                 every benchmark; --list shows them and their durations
       python benchmarks/bench.py --part NAME ...       some benchmarks; options of one: --part send --rounds 9
       python benchmarks/bench.py ... --folder FOLDER   write the files of results there, and leave the page as it is

At the end it prints how many bars are met, missed and not judged. A bar is not judged if other processes used too much
of the machine. The exit code is 1 if a benchmark failed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


class Benchmark(NamedTuple):
    """A program with its options, its file of results, its approximate duration, and its options in the quick set."""

    program: str
    results: str
    minutes: float
    quick: str | None = None


BENCHMARKS = {
    "decode": Benchmark("run.py --part decode", "kcodec", 2.5, "--builders aiokafka --patience 1"),
    "encode": Benchmark("run.py --part encode", "kcodec", 1.5, "--rounds 6 --patience 1"),
    "views": Benchmark("run.py --part views", "kcodec", 0.1, "--patience 1"),
    "isolation": Benchmark("run.py --part isolation", "kcodec", 0.5, "--patience 1"),
    "threads": Benchmark("run.py --part threads", "kcodec", 2),
    "segment": Benchmark("run.py --part segment", "kcodec", 1),
    "core-import": Benchmark("run.py --part import", "kcodec", 0.1),
    "import": Benchmark("bench_import.py", "import", 0.5, "--rounds 9"),
    "messages": Benchmark("bench_messages.py", "messages", 2.5, "--rounds 9 --seconds 0.03"),
    "compat": Benchmark("bench_compat.py", "compat", 3, "--shapes abcd --rounds 6 --seconds 0.02"),
    "facade": Benchmark("bench_facade.py", "facade", 8),
    "facade-aiokafka": Benchmark("bench_facade_aiokafka.py", "facade-aiokafka", 3),
    "send": Benchmark("bench_send.py", "send", 5),
    "producer": Benchmark("bench_producer.py", "producer", 5),
    "consumer": Benchmark("bench_consumer.py", "consumer", 12),
    "transactions": Benchmark("bench_transactions.py", "transactions", 4),
    "broker": Benchmark("bench_broker.py", "broker", 3),
    "partitions": Benchmark("bench_many_partitions.py", "many-partitions", 4),
    "small-programs": Benchmark("bench_small_programs.py", "small-programs", 6),
    "session": Benchmark("bench_session.py", "session", 5),
    "ranges": Benchmark("bench_ranges.py", "ranges", 0.3),
    "topics": Benchmark("bench_topics.py", "topics", 30),
    "sink": Benchmark("bench_spark_sink.py", "spark-sink", 4),
    "spark": Benchmark("bench_spark.py", "spark", 2),
    "cli": Benchmark("bench_cli.py", "cli", 10),
    "seek": Benchmark("bench_seek.py", "seek", 2),
    "cores": Benchmark("bench_cores.py", "cores", 5),
    "peers": Benchmark("peers/run.py", "peers", 8),
}


def run(name: str, options: list[str], folder: Path) -> Path | None:
    """Run one benchmark; return its new file of results, or None if it failed.

    Bars that are missed are in the file. Some programs have an exit code for them, which is no failure here.
    """
    chosen, began = BENCHMARKS[name], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kcodec-bench-") as temporary:
        path, new = folder / f"{chosen.results}.json", Path(temporary, f"{chosen.results}.json")
        if path.exists():
            new.write_bytes(path.read_bytes())  # keeps the parts that are not measured now
        before = new.read_bytes() if new.exists() else b""
        program, *given = shlex.split(chosen.program)
        command = [sys.executable, str(HERE / program), *given, *options, "--json", str(new)]
        print(f"\n{name}: {shlex.join(command[1:-2])}, about {chosen.minutes:g} min", flush=True)
        subprocess.run(command, check=False)
        if not new.exists() or new.read_bytes() == before:
            print(f"{name}: failed, there are no results", flush=True)
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(new.read_bytes())
    print(f"{name}: {(time.monotonic() - began) / 60:.1f} min, written to {path}", flush=True)
    return path


def verdicts(found: Any, where: str = "") -> Counter[tuple[str, str]]:
    """Count the bars of results by verdict, with the missed ones by their case."""
    counted: Counter[tuple[str, str]] = Counter()
    if isinstance(found, list):
        for row in found:
            counted += verdicts(row, where)
    elif isinstance(found, dict):
        case = str(found.get("case") or " ".join(str(found[key]) for key in ("codec", "shape") if key in found))
        for key, value in found.items():
            if key == "verdict":
                counted[str(value), f"{where}: {case}, {found['first']}, {found['figure']}"] += 1
            elif key.endswith("_met"):
                text = {True: "met", False: "missed"}.get(value, str(value))
                counted[text, f"{where}: {case}, {key.removesuffix('_met')}"] += 1
            elif isinstance(value, (dict, list)):
                counted += verdicts(value, where or key)
    return counted


def summary(paths: list[Path]) -> str:
    """Return how many bars are met, missed and not judged, and the names of the missed ones."""
    counted: Counter[tuple[str, str]] = Counter()
    for path in dict.fromkeys(paths):
        counted += verdicts({path.stem: json.loads(path.read_text(encoding="utf-8"))["parts"]})
    total = Counter[str]()
    for (verdict, _), number in counted.items():
        total[verdict] += number
    lines = [f"bars: {', '.join(f'{total[verdict]} {verdict}' for verdict in ('met', 'missed', 'not judged'))}"]
    return "\n".join([*lines, *(f"  missed: {where}" for verdict, where in counted if verdict == "missed")])


def main() -> int:
    """Return 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--all", action="store_true", help="every benchmark")
    chosen.add_argument("--part", nargs="+", choices=tuple(BENCHMARKS), metavar="NAME", help="these benchmarks")
    chosen.add_argument("--list", action="store_true", help="show all benchmarks and end")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the results are written")
    given, options = parser.parse_known_args()
    if given.list:
        for name, one in BENCHMARKS.items():
            quick = "  quick set" if one.quick is not None else ""
            print(f"{name:14} {one.minutes:5g} min  {one.program:28} results/{one.results}.json{quick}")
        return 0
    if options and (not given.part or len(given.part) > 1):
        parser.error(f"unknown options {shlex.join(options)}: options of a benchmark need --part with one name")
    names = given.part or [name for name, one in BENCHMARKS.items() if given.all or one.quick is not None]
    is_quick = not (given.part or given.all)
    written = {}
    for name in names:
        more = shlex.split(BENCHMARKS[name].quick or "") if is_quick else options
        written[name] = run(name, more, given.folder)
    paths = [path for path in written.values() if path is not None]
    print(f"\n{summary(paths)}")
    if paths and given.folder == RESULTS:
        for tool in ("draw_docs.py", "draw_performance.py"):
            subprocess.run([sys.executable, str(HERE.parent / "tools" / tool)], check=True)
    failed = [name for name, path in written.items() if path is None]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
