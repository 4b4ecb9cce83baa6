# SPDX-License-Identifier: Apache-2.0
"""The cold start: CPU of a Python that imports Producer, Consumer and Admin, for kcodec and other clients.

    python benchmarks/bench_import.py [--runs 20] [--editable] [--json FILE]

Each run is a new interpreter, and its CPU is user and system time of the whole process. `python -c pass` is measured as
well, to be subtracted. The contestants take turns. kcodec is imported from a copy of the checkout with bytecode, as pip
installs it; --editable imports the checkout itself, without bytecode if PYTHONDONTWRITEBYTECODE is set. The other rows
of kcodec create a client, too, which imports the network and what that client needs, and connects to no broker.

The exit code is 0 if the bar is missed.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure

SOURCE = Path(__file__).resolve().parent.parent / "src" / "kcodec"
BAR_MS = 75.0
UNUSED = "bootstrap_servers='127.0.0.1:1'"
PROGRAMS = {
    "python": "pass",
    "kcodec": "from kcodec.client import Producer, Consumer, Admin",
    "confluent-kafka": (
        "from confluent_kafka import Producer, Consumer\nfrom confluent_kafka.admin import AdminClient as Admin"
    ),
    "aiokafka": (
        "from aiokafka import AIOKafkaProducer, AIOKafkaConsumer\nfrom aiokafka.admin import AIOKafkaAdminClient"
    ),
    "kcodec, a producer": f"from kcodec.client import Producer\nProducer({UNUSED}).close()",
    "kcodec, a consumer": f"from kcodec.client import Consumer\nConsumer({UNUSED}, group_id='g').close()",
    "kcodec, an admin": f"from kcodec.client import Admin\nAdmin({UNUSED}).close()",
}


def cpu_ms(program: str, environment: dict[str, str]) -> float:
    """Milliseconds of CPU of a new interpreter that runs the program."""
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", program], environment)
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"the program failed: {program}")
    return (used.ru_utime + used.ru_stime) * 1000


def installed(folder: Path) -> dict[str, str]:
    """The environment in which kcodec is imported from a copy with bytecode."""
    shutil.copytree(SOURCE, folder / "kcodec", ignore=shutil.ignore_patterns("*.pyx", "*.c", "__pycache__"))
    compileall.compile_dir(folder, quiet=1)
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths}


def run(runs: int, environment: dict[str, str]) -> dict[str, dict[str, float]]:
    """The median, minimum and maximum of each program, after one run of each that is not counted."""
    samples: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for number in range(-1, runs):
        for name, program in PROGRAMS.items():
            spent = cpu_ms(program, environment)
            if number >= 0:
                samples[name].append(spent)
    return {
        name: {"median": statistics.median(each), "minimum": min(each), "maximum": max(each)}
        for name, each in samples.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="measured runs of each program (default: %(default)s)")
    parser.add_argument("--editable", action="store_true", help="import the checkout itself")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    given = parser.parse_args()
    if given.runs < 1:
        parser.error("--runs must be above 0")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="kcodec-bench-") as name:
        found = run(given.runs, dict(os.environ) if given.editable else installed(Path(name)))
    bare = found["python"]["median"]
    print(f"CPU of a process in ms, medians of {given.runs} runs; the bar of kcodec is {BAR_MS:g}")
    print(f"{'':20}{'whole':>8}{'without python':>16}{'minimum':>9}{'maximum':>9}")
    for label, each in found.items():
        more = each["median"] - bare
        print(f"{label:20}{each['median']:8.1f}{more:16.1f}{each['minimum']:9.1f}{each['maximum']:9.1f}")
    print("met" if found["kcodec"]["median"] <= BAR_MS else "MISSED")
    if given.json:
        result: dict[str, Any] = {
            "machine": measure.machine(),
            "load_average_1_min": {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)},
            "runs": given.runs,
            "is_editable": given.editable,
            "bar_ms": BAR_MS,
            "cpu_ms": {label: {key: round(value, 1) for key, value in each.items()} for label, each in found.items()},
        }
        measure.write_json(given.json, result)


if __name__ == "__main__":
    main()
