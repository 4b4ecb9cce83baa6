# SPDX-License-Identifier: Apache-2.0
"""examples/offsets_in_delta.py: rows exactly once in a Delta table while the program is killed and stopped.

    python tests/prove/prove_delta.py [--rounds 12] [--results FOLDER]

The package deltalake (requirements/delta.txt) is installed into a folder. In each round the program is killed
(SIGKILL) at each of its steps: with rows that it has polled, before it writes the table, while the table is written,
and after the commit. "While" is as soon as another file of rows is in the folder of the table; a file that the table
does not name afterwards shows that the kill came before the commit. In the last rounds an owner is stopped (SIGSTOP)
with rows that it has not written, another one goes on, and the first is woken. Then exceptions of a program are caught
between a poll and the commit, and the program goes on. The control commits offsets to Kafka
after the table, and has rows twice. The embedded broker runs in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "support"), str(HERE / "prove"), str(HERE.parent / "src")]

from prove_spark_versions import install  # noqa: E402
from recipe_broker import numbers  # noqa: E402
from recipe_worker import STEPS, example  # noqa: E402
from recipes import SHORT, end, start_worker, wait_for, wait_stopped  # noqa: E402

import kcodec  # noqa: E402
from kcodec import TopicPartition  # noqa: E402
from kcodec.broker import Broker  # noqa: E402
from kcodec.client import Producer  # noqa: E402

TOPIC, NAME, PARTITIONS = "payments", "ledger", 2
#: Rows and seconds of a commit: several commits in each round.
SMALL = ("--rows", 40, "--seconds", 0.5)
GRACE_SECONDS = 8.0


def more(broker: Broker, count: int, rng: random.Random) -> None:
    """Send a transaction that is committed and one that is aborted."""
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="more") as producer:
        for is_committed in (True, False):
            with producer.transaction() as txn:
                for _ in range(count):
                    txn.send(TOPIC, b"%d" % rng.randrange(10**6), partition=rng.randrange(PARTITIONS))
                producer.flush()
                if not is_committed:
                    txn.abort()


def expected(broker: Broker) -> Counter[tuple[int, int, bytes]]:
    """Partition, offset and value of each committed record."""
    with kcodec.read_topic(TOPIC, bootstrap_servers=broker.bootstrap_servers) as records:
        return Counter(
            (one.partition or 0, one.offset, one.value or b"") for batch in records for one in batch.records()
        )


def rows(table: Path) -> Counter[tuple[int, int, bytes]]:
    """The same of the table."""
    from deltalake import DeltaTable

    found = DeltaTable(str(table)).to_pyarrow_table(columns=["partition", "offset", "value"])
    return Counter(zip(*(found[name].to_pylist() for name in found.column_names), strict=True))


def orphans(table: Path) -> int:
    """Return the number of files of rows that no commit of the table names."""
    from deltalake import DeltaTable

    named = {Path(uri).name for uri in DeltaTable(str(table)).file_uris()} if (table / "_delta_log").exists() else set()
    return len({path.name for path in table.glob("*.parquet")} - named)


def arguments(broker: Broker, table: Path) -> list[object]:
    names = ["-b", broker.bootstrap_servers, "--name", NAME, "--topic", TOPIC]
    return [table, *names, *SMALL, "--options", json.dumps(SHORT)]


def write_until_equal(broker: Broker, table: Path, **options: Any) -> None:
    """An instance of the program in this process, until the table has as many rows as the topic."""
    wanted = sum(expected(broker).values())
    given = {"bootstrap_servers": broker.bootstrap_servers, "rows": 1000, "seconds": 0.3, **SHORT, **options}
    with closing(example("offsets_in_delta").Writer(str(table), NAME, [TOPIC], **given)) as writer:
        wait_for(lambda: [writer.step(), sum(rows(table).values()) >= wanted][1])


def killed(broker: Broker, table: Path, step: str) -> str:
    """Run the program until it is killed at this step. Return what became of it."""
    before = orphans(table)
    worker = start_worker("offsets_in_delta", step, arguments(broker, table))
    try:
        worker.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:  # nothing had come in for it
        end(worker)
        return f"{step}: not reached"
    assert worker.returncode == -signal.SIGKILL, worker.returncode
    if step == "writing":
        return f"{step}: files without commit" if orphans(table) > before else f"{step}: committed before the kill"
    return step


def stopped(broker: Broker, table: Path, rng: random.Random) -> bool:
    """Stop an owner that has not written its rows, let another one write them, and wake the first. Return whether it
    found this out."""
    first = start_worker("offsets_in_delta", "ready", arguments(broker, table), "SIGSTOP")
    try:
        wait_stopped(first)
        more(broker, 100, rng)
        write_until_equal(broker, table)
        first.send_signal(signal.SIGCONT)
        time.sleep(3.0)
    finally:
        reported = end(first)
    return "not committed: " in reported


def resumed(broker: Broker, table: Path, rng: random.Random) -> int:
    """Catch exceptions of `step` and go on: between a poll and the collecting, before the commit and after it. Return
    their number."""
    module, caught, wanted = example("offsets_in_delta"), 0, 0
    write = module.write_deltalake

    def failing(function: Any, moment: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if moment == "before" and rng.random() < 0.4:
                raise LookupError("before the call")
            found = function(*given, **named)
            if moment == "after" and rng.random() < 0.4:
                raise LookupError("after the call")
            return found

        return call

    given = {"bootstrap_servers": broker.bootstrap_servers, "rows": 20, "seconds": 0.2, **SHORT}
    with closing(module.Writer(str(table), NAME, [TOPIC], **given)) as writer:
        writer.consumer.poll_arrow = failing(writer.consumer.poll_arrow, "after")
        try:
            for moment in ("before", "after", "before", "after"):
                module.write_deltalake = failing(write, moment)
                more(broker, 100, rng)
                wanted = sum(expected(broker).values())
                deadline = time.monotonic() + 60
                while sum(rows(table).values()) < wanted and time.monotonic() < deadline:
                    try:
                        writer.step()
                    except LookupError:
                        caught += 1
        finally:
            module.write_deltalake = write
    return caught


def control(broker: Broker, folder: Path) -> int:
    """Write the table, then commit offsets to Kafka, killed in between. Return the number of rows that are there
    twice."""
    import pyarrow
    from deltalake import write_deltalake

    from kcodec.client import Consumer

    table = folder / "control"
    for _ in range(2):
        with Consumer(bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False) as consumer:
            places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            found = pyarrow.table(consumer.poll_arrow(10.0)).select(["partition", "offset", "value"])
            write_deltalake(str(table), found, mode="append")
            # killed here: consumer.commit() is not reached
    return sum(count - 1 for count in rows(table).values())


def prove(rounds: int) -> list[str]:
    """Run all rounds and return the lines of the result."""
    from importlib.metadata import version

    rng, ended, fenced = random.Random(rounds), Counter[str](), 0
    with Broker(group_min_session_timeout_ms=500) as broker, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = folder / "table"
        numbers(broker, TOPIC, 50, partitions=PARTITIONS)
        for _ in range(rounds):
            for step in rng.sample(STEPS["offsets_in_delta"], len(STEPS["offsets_in_delta"])):
                more(broker, 100, rng)
                ended[killed(broker, table, step)] += 1
        for _ in range(3):
            more(broker, 100, rng)
            fenced += stopped(broker, table, rng)
        caught = resumed(broker, table, rng)
        write_until_equal(broker, table)
        ours, theirs = rows(table), expected(broker)
        twice = control(broker, folder)
    assert ours == theirs, f"{sum((ours - theirs).values())} rows too many, {sum((theirs - ours).values())} missing"
    assert ended["writing: files without commit"] > 0, "no kill came between the files and the commit"
    assert fenced == 3, f"{fenced} of 3 owners that were stopped and woken found out that another one had gone on"
    assert caught > 2, f"{caught} exceptions were caught"
    assert twice > 0, "the control has no row twice"
    return [
        f"examples/offsets_in_delta.py, deltalake {version('deltalake')}, {rounds} rounds",
        f"rows: {sum(ours.values())}, each committed record once",
        *(f"killed, {step}: {count}" for step, count in sorted(ended.items())),
        f"owners stopped with rows and woken: 3, whose commit was refused: {fenced}",
        f"exceptions of a step that were caught, and the program went on: {caught}",
        f"control, offsets committed to Kafka after the table: {twice} rows twice",
    ]


def main() -> int:
    """Run the proof in a process that finds deltalake."""
    parser = argparse.ArgumentParser(description="rows exactly once in a Delta table")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    packages = install("delta.txt")
    if str(packages) not in sys.path:
        paths = os.pathsep.join([*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(packages)])
        environment = {**os.environ, "PYTHONPATH": paths}
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode
    lines = prove(given.rounds)
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "delta.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
