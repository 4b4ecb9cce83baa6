# SPDX-License-Identifier: Apache-2.0
"""Three guarantees, one workload, the same kills (examples/exactly_once.py), on every kind of broker: what is lost and
what comes twice, side by side.

    python tests/prove/prove_guarantees.py [--clusters 4.4.0/2 4.4.0/0 ...] [--count 10000] [--kills 20]
    python tests/prove/prove_guarantees.py --broker embedded

A process copies topic to topic in chunks of 100 and is killed at its critical point, so many times: behind its commit
and before it produces; behind what it produced and before it commits; in its transaction, all of whose records are in
the log. Each kill must cost the first one records and have the second one double some, and must do nothing to the
session's copy. The last line is a group of three sessions that abort a third of their transactions too. The exit status
is 0 if all is so.

With --broker embedded it runs on the embedded broker, which the group's copy kills as well, five times.

Written to guarantees.txt, or guarantees-embedded.txt, in tests/results (or FOLDER).
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "support")]

from broker_process import BrokerProcess  # noqa: E402
from embedded_process import EmbeddedKafka  # noqa: E402
from exactly_once import CHUNK, Run  # noqa: E402
from transaction_cluster import PROVED_CLUSTERS  # noqa: E402

from kcodec.testing.kafka import ApacheKafka  # noqa: E402

EMBEDDED = ("embedded/2", "embedded/0")
BROKER_KILLS = 5
NAMES = {
    "commit-first": "commit, then produce",
    "produce-first": "produce, then commit",
    "session": "session",
    "group": "three sessions, a third aborted",
}


def run_cluster(servers: str, count: int, kills: int, broker: BrokerProcess | None = None) -> dict[str, Run]:
    """All four on one broker. A `broker` is killed in the last one."""
    runs = {work: Run(servers, work, count, kills).run() for work in list(NAMES)[:3]}
    own: dict[str, Any] = {"broker": broker, "broker_kills": 0 if broker is None else BROKER_KILLS}
    group = Run(servers, "session", 5 * count, kills, processes=3, abort_share=1 / 3, **own)
    return {**runs, "group": group.run()}


def run_on(cluster: str, count: int, kills: int) -> dict[str, Run]:
    """Start a broker, "4.4.0/2" or "embedded/2", and run all four on it."""
    version, level = cluster.split("/")
    if version == "embedded":
        with TemporaryDirectory() as folder, EmbeddedKafka(Path(folder), transaction_version=int(level)) as broker:
            return run_cluster(broker.bootstrap_servers, count, kills, broker)
    with ApacheKafka(version, transaction_version=int(level)) as kafka:
        return run_cluster(kafka.bootstrap_servers, count, kills)


def fault(work: str, run: Run) -> str:
    """What is not as it must be; empty if nothing."""
    damage = range(run.killed, run.killed * CHUNK + 1)
    wanted = {"commit-first": (damage, [0]), "produce-first": ([0], damage)}.get(work, ([0], [0]))
    if run.lost not in wanted[0] or run.duplicated not in wanted[1]:
        return f"wanted {wanted[0]} lost, {wanted[1]} duplicated"
    if run.broker_killed != run.broker_kills:
        return f"the broker was killed {run.broker_killed} of {run.broker_kills} times"
    return f"{run.disordered} partitions out of order" if work == "group" and run.disordered else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--broker", choices=("kafka", "embedded"), default="kafka", help="default %(default)s")
    parser.add_argument("--clusters", nargs="+", metavar="VERSION/LEVEL", help="default: those of --broker")
    parser.add_argument("--count", type=int, default=10_000, help="records (default %(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="of each copy (default %(default)s)")
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results")
    arguments = parser.parse_args()
    lines, failed = [f"tests/prove/prove_guarantees.py, {datetime.date.today()}"], 0
    columns = "".join(f"{name:>12}" for name in ("records", "killed", "lost", "duplicated", "aborted", "seconds"))
    is_embedded = arguments.broker == "embedded"
    file = arguments.results / ("guarantees-embedded.txt" if is_embedded else "guarantees.txt")
    for cluster in arguments.clusters or (EMBEDDED if is_embedded else PROVED_CLUSTERS):
        version, level = cluster.split("/")
        lines += ["", f"{f'Kafka {version}, transaction version {level}':<34}{columns}"]
        runs = run_on(cluster, arguments.count, arguments.kills)
        for work, run in runs.items():
            figures = (run.count, run.killed, run.lost, run.duplicated, run.invisible, round(run.seconds))
            wrong = fault(work, run)
            failed += bool(wrong)
            cells = "".join(f"{figure:>12,}" for figure in figures)
            lines.append(f"{NAMES[work]:<34}{cells}  {f'FAILED: {wrong}' if wrong else 'ok'}")
        print("\n".join(lines[-5:]), flush=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{failed} copies not as they must be" if failed else "all copies as they must be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
