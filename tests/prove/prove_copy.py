# SPDX-License-Identifier: Apache-2.0
"""Kafka's own system test of transactions on GroupTransactSession: 100,000 numbered records copied from topic to topic
by three sessions of a group, 750 records a transaction, a third of them aborted, while sessions and brokers are killed.

    python tests/prove/prove_copy.py [--broker kafka|embedded] [--only NAME ...] [--count 100000] [--seed 1]
                                     [--results FOLDER]

Each row is a run of copy_story.py; the output must be the input, partition by partition, in order, and both
read_committed readers during it, Kafka's and kcodec's, must have seen the same. One node: ten times SIGKILL, at random,
of a session or the broker. "with Kafka's copier": one of three members is Kafka's own TransactionalMessageCopier, which
ends where it finds nothing to do and is started again. "Zombies": sessions come and go all the time, and are stopped
(SIGSTOP) until others have their partitions, then go on. "By hand": with a Consumer and a Producer, as one does it with
Kafka's clients. "Kafka's copiers alone": harm done to three of those. Three nodes: SIGKILL in turn of the group's
coordinator, a transaction coordinator, a leader of data. The control commits offsets outside its transactions: it must
show duplicates, or the proof proves nothing. The exit status is 0 if every row is as it should be.

With --broker embedded, the rows of one node and the newest version run on the embedded broker, a process that gets the
same SIGKILL. Kafka's consumer and copier are then clients of it.

Written to copy.txt, or copy-embedded.txt, in tests/results (or FOLDER), after each row.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from copy_story import (
    KAFKA_OPTIONS,
    CopyReport,
    CopyStory,
    kill_broker,
    kill_group_coordinator,
    kill_leader,
    kill_session,
    kill_transaction_coordinator,
    leave_session,
    stop_session,
)
from embedded_process import EmbeddedKafka

from kcodec.broker import BrokerSettings
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
ONE_NODE = [kill_session] * 6 + [kill_broker] * 4
THREE_NODES = [kill_group_coordinator, kill_transaction_coordinator, kill_leader] * 3 + [kill_session]
UNREST = [leave_session] * 6 + [stop_session] * 4
COLUMNS = ("lost", "duplicates", "disorder", "strange", "open", "lag")
TRANSACTIONS = ("copied", "aborted", "undone")


class Row(NamedTuple):
    """One run: which Kafka, who copies, which harm; the control must show duplicates."""

    name: str
    kafka: dict[str, Any]
    copy: dict[str, Any]
    harm: Sequence[Callable[[CopyStory], None]] = ONE_NODE
    is_control: bool = False


OLD_FLOW: dict[str, Any] = {"transaction_version": 0}
KIP_848: dict[str, Any] = {"protocol": "consumer"}
MIXED: dict[str, Any] = {"sessions": 2, "java_copiers": 1}
ASYNCIO: dict[str, Any] = {"flags": ("--asyncio",)}
BY_HAND: dict[str, Any] = {"flags": ("--by-hand",)}
ROWS = (
    Row("4.4.0 version 2, classic", {}, {}),
    Row("4.4.0 version 2, KIP-848", {}, KIP_848),
    Row("4.4.0 version 0, classic", OLD_FLOW, {}),
    Row("4.4.0 version 0, KIP-848", OLD_FLOW, KIP_848),
    Row("4.3.1, classic", {"version": "4.3.1"}, {}),
    Row("4.3.1, KIP-848", {"version": "4.3.1"}, KIP_848),
    Row("3.9.1, classic", {"version": "3.9.1"}, {}),
    Row("with Kafka's copier, version 2", {}, MIXED),
    Row("with Kafka's copier, version 0", OLD_FLOW, MIXED),
    Row("with Kafka's copier, KIP-848", {}, MIXED | KIP_848),
    Row("zombies, classic, range", {}, {}, UNREST),
    Row("zombies, classic, cooperative", {}, {"strategy": "cooperative-sticky"}, UNREST),
    Row("zombies, version 0, cooperative", OLD_FLOW, {"strategy": "cooperative-sticky"}, UNREST),
    Row("zombies, KIP-848", {}, KIP_848, UNREST),
    Row("asyncio, classic", {}, ASYNCIO),
    Row("asyncio, version 0, KIP-848", OLD_FLOW, ASYNCIO | KIP_848),
    Row("by hand, classic", {}, BY_HAND, UNREST + [kill_session] * 2),
    Row("by hand, KIP-848", {}, BY_HAND | KIP_848, UNREST + [kill_session] * 2),
    Row("Kafka's copiers alone", {}, {"sessions": 0, "java_copiers": 3}),
    Row("three nodes, classic", {"nodes": 3}, {}, THREE_NODES),
    Row("three nodes, KIP-848", {"nodes": 3}, KIP_848, THREE_NODES),
    Row("three nodes, version 0", {"nodes": 3, **OLD_FLOW}, {}, THREE_NODES),
    Row("three nodes, 3.9.1", {"nodes": 3, "version": "3.9.1"}, {}, THREE_NODES),
    Row("control: offsets committed outside", {}, {"flags": ("--control", "outside")}, is_control=True),
)


@contextmanager
def broker_of(row: Row, kind: str) -> Iterator[ApacheKafka | EmbeddedKafka]:
    """Start the broker of a row."""
    if kind == "kafka":
        with ApacheKafka(broker_session_timeout_ms=2000, heap="160m", **KAFKA_OPTIONS, **row.kafka) as kafka:
            yield kafka
    else:
        # It has no lower bounds of times, which KAFKA_OPTIONS reduces.
        settings = {name: value for name, value in KAFKA_OPTIONS.items() if name in BrokerSettings.__dataclass_fields__}
        with (
            tempfile.TemporaryDirectory(prefix="kcodec-copy-") as folder,
            EmbeddedKafka(Path(folder), **settings, **row.kafka) as embedded,
        ):
            yield embedded


def runs_on(row: Row, kind: str) -> bool:
    """Whether a row can run: the embedded broker is one node of the newest version."""
    return kind == "kafka" or not {"nodes", "version"} & row.kafka.keys()


def run(row: Row, kind: str, count: int, seed: int, seconds: float) -> CopyReport:
    """One row."""
    with broker_of(row, kind) as kafka:
        story = CopyStory(kafka, count=count, seed=seed, seconds=seconds, **row.copy)
        try:
            report = story.run(row.harm)
            if report.faults() and not row.is_control:
                keep_logs(story, kafka)
        except BaseException:
            keep_logs(story, kafka)
            raise
        story.forget()
        return report


def keep_logs(story: CopyStory, kafka: ApacheKafka | EmbeddedKafka) -> None:
    """What brokers and processes said, for whoever looks for the fault."""
    kept = Path(tempfile.mkdtemp(prefix="kcodec-copy-failed-"))
    (kept / "processes.log").write_text(story.reported())
    for node in kafka.nodes:
        (kept / f"server-{node.id}.log").write_text(node.log_tail(20_000))
    print(f"the logs of brokers and processes are in {kept}", file=sys.stderr)


def outcome_text(row: Row, report: CopyReport) -> str:
    """ok, or what is wrong."""
    if row.is_control:
        good = report.duplicates > 0
        return f"{'ok (as it must)' if good else 'FAILED: a control without duplicates'}"
    return "FAILED: " + ", ".join(report.faults()) if report.faults() else "ok"


def lines_of(row: Row, report: CopyReport) -> list[str]:
    """The row, and below it what was done and said."""
    figures = "".join(f"{getattr(report, column):>12,}" for column in COLUMNS)
    harm = ", ".join(f"{name} x{times}" for name, times in sorted(report.harm.items()))
    said = ", ".join(f"{report.said[word]:,} {word}" for word in TRANSACTIONS)
    errors = {word.removeprefix("error "): times for word, times in report.said.items() if word.startswith("error")}
    met = ", ".join(f"{name} x{times}" for name, times in sorted(errors.items())) or "none"
    readers = "differ" if report.unlike else "the same"
    lives = "+".join(str(times) for _, times in sorted(report.lives.items()))
    return [
        f"{row.name:<34}{report.count:>10,}{figures}{report.seconds:>9.0f}  {outcome_text(row, report)}",
        f"    {harm}; sessions: {said}; lives {lives}; errors raised: {met}; readers: {readers}",
    ]


def heading(seed: int, kind: str) -> list[str]:
    """What the figures were found on, and the names of the columns."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    broker = "the embedded broker" if kind == "embedded" else "Apache Kafka"
    found = f"{broker}, {datetime.date.today()}, commit {commit.stdout.strip() or 'unknown'}, seed {seed}"
    return [
        f"tests/prove/prove_copy.py, {found}",
        f"{system}, Python {platform.python_version()}",
        "",
        f"{'':<34}{'records':>10}{''.join(f'{column:>12}' for column in COLUMNS)}{'seconds':>9}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [row.name for row in ROWS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of: {'; '.join(names)}")
    parser.add_argument("--broker", choices=("kafka", "embedded"), default="kafka", help="default %(default)s")
    parser.add_argument("--count", type=int, default=100_000, help="records of each row (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the points at which harm is done")
    parser.add_argument("--seconds", type=float, default=170.0, help="how long a row may take (default %(default)s)")
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results")
    arguments = parser.parse_args()
    lines, failed = heading(arguments.seed, arguments.broker), 0
    chosen = [row for row in ROWS if row.name in (arguments.only or names) and runs_on(row, arguments.broker)]
    if not chosen:
        parser.error(f"no row runs on the broker {arguments.broker}: {', '.join(arguments.only)}")
    file = arguments.results / ("copy.txt" if arguments.broker == "kafka" else "copy-embedded.txt")
    for row in chosen:
        print(f"{row.name} ...", flush=True)
        report = run(row, arguments.broker, arguments.count, arguments.seed, arguments.seconds)
        failed += outcome_text(row, report).startswith("FAILED")
        lines += lines_of(row, report)
        print("\n".join(lines[-2:]), *report.errors[:10], sep="\n", flush=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{failed} rows failed" if failed else f"{len(chosen)} rows ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
