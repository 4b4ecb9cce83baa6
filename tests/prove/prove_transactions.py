# SPDX-License-Identifier: Apache-2.0
"""Exactly once on a real Kafka while everything around it is killed; the judge is Kafka's own read_committed consumer.

    python tests/prove/prove_transactions.py [--only NAME ...] [--count 50000] [--seed 1] [--results FOLDER]

Each row of the result is one run of chaos_worker.py: numbers in transactions of 100, every second one first
written and aborted, a third of all. One node: the producer is killed -9 twenty times, the broker five times. Three
nodes (replication 3, min.insync.replicas 2): leaders of data partitions and the coordinator killed -9 in turn, and
moved in an orderly way, the producer killed as well. The control has no transactional id and sends again after each
kill; it must show duplicates, or the proof proves nothing. The exit status is 0 if every row is as it should be.

Written to transactions-chaos.txt in tests/results (or FOLDER), after each row.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from chaos import (
    Report,
    Story,
    kill_broker,
    kill_coordinator,
    kill_leader,
    kill_producer,
    move_a_leader,
    move_coordinators,
)

from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
ONE_NODE = [kill_producer] * 20 + [kill_broker] * 5
THREE_NODES = [kill_producer] * 5 + [kill_leader, kill_coordinator] * 4 + [move_a_leader] * 6 + [move_coordinators] * 3
COLUMNS = ("lost", "duplicates", "aborted_read", "torn", "out_of_order", "other_replicas", "aborted_in_log")


class Row(NamedTuple):
    """One run: which Kafka, which harm; the control must show duplicates."""

    name: str
    kafka: dict[str, Any]
    harm: Sequence[Callable[[Story], None]]
    is_control: bool = False


ROWS = (
    Row("4.4.0 transaction version 2", {}, ONE_NODE),
    Row("4.4.0 transaction version 0", {"transaction_version": 0}, ONE_NODE),
    Row("4.3.1", {"version": "4.3.1"}, ONE_NODE),
    Row("3.9.1", {"version": "3.9.1"}, ONE_NODE),
    Row("control: no transactional id", {}, ONE_NODE, is_control=True),
    Row("three nodes, 4.4.0", {"nodes": 3}, THREE_NODES),
    Row("three nodes, 4.4.0 at 0", {"nodes": 3, "transaction_version": 0}, THREE_NODES),
    Row("three nodes, 4.3.1", {"nodes": 3, "version": "4.3.1"}, THREE_NODES),
    Row("three nodes, 3.9.1", {"nodes": 3, "version": "3.9.1"}, THREE_NODES),
)


def run(row: Row, count: int, seed: int) -> Report:
    """One row."""
    with ApacheKafka(broker_session_timeout_ms=2000, **row.kafka) as kafka:
        story = Story(kafka, count=count, transactional=not row.is_control, seed=seed)
        try:
            return story.run(row.harm)
        except BaseException:
            kept = Path(tempfile.mkdtemp(prefix="kcodec-chaos-failed-"))
            for node in kafka.nodes:
                (kept / f"server-{node.id}.log").write_text(node.log_tail(20_000))
            print(f"the brokers' logs are in {kept}", file=sys.stderr)
            raise


def outcome_text(row: Row, report: Report) -> str:
    """ok, or what is wrong."""
    if row.is_control:
        good = report.duplicates > 0 and not report.lost
        return (
            "ok (as it must)" if good else f"FAILED: a control with {report.duplicates} duplicates, {report.lost} lost"
        )
    faults = report.faults() + ([] if report.aborted_in_log else ["nothing aborted in the log"])
    return "FAILED: " + ", ".join(faults) if faults else "ok"


def lines_of(row: Row, report: Report) -> list[str]:
    """The row, and below it what was done and said."""
    figures = "".join(f"{getattr(report, column):>15,}" for column in COLUMNS)
    harm = ", ".join(f"{name} x{times}" for name, times in sorted(report.harm.items()))
    said = f"{report.reported['committed']:,} commits and {report.reported['aborted']:,} aborts reported"
    errors = ", ".join(f"{name} x{times}" for name, times in sorted(report.errors.items())) or "none"
    return [
        f"{row.name:<30}{report.count:>10,}{figures}{report.seconds:>9.0f}  {outcome_text(row, report)}",
        f"    {harm}; {said}; errors the application met: {errors}",
    ]


def heading(seed: int) -> list[str]:
    """What the figures were found on, and the names of the columns."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    machine = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    )
    columns = "".join(f"{column.replace('_', ' '):>15}" for column in COLUMNS)
    found = f"{datetime.date.today()}, commit {commit.stdout.strip() or 'unknown'}, seed {seed}"
    return [
        f"tests/prove/prove_transactions.py, {found}",
        machine,
        "",
        f"{'':<30}{'records':>10}{columns}{'seconds':>9}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [row.name for row in ROWS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of: {'; '.join(names)}")
    parser.add_argument("--count", type=int, default=50_000, help="records of each row (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the points at which harm is done")
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results")
    arguments = parser.parse_args()
    lines, failed = heading(arguments.seed), 0
    for row in ROWS:
        if arguments.only and row.name not in arguments.only:
            continue
        print(f"{row.name} ...", flush=True)
        report = run(row, arguments.count, arguments.seed)
        failed += outcome_text(row, report).startswith("FAILED")
        lines += lines_of(row, report)
        print("\n".join(lines[-2:]), flush=True)
        (arguments.results / "transactions-chaos.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{failed} rows failed" if failed else "all rows as they should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
