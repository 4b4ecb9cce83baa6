# SPDX-License-Identifier: Apache-2.0
"""`land` in a loop on a real Spark, of which the driver, the JVM and Python workers are killed -9 at random times.

    python tests/prove/prove_landings.py [--kills 30] [--line-kills 200] [--seed SEED]

Transactions are written all the time, a quarter of them aborted. At the end the folder must have every committed record
once, and nothing in staging. Then `land` is killed before random lines of its own code, by
tests/support/landing_kills.py. Needs Java (JAVA_HOME) and the jars of a broker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE.parent / "src")]

import kcodec  # noqa: E402
from kcodec.client import Producer  # noqa: E402
from kcodec.testing.kafka import ApacheKafka  # noqa: E402

START_SECONDS, STOP_SECONDS = 300, 300
Position = tuple[int, int, bytes]


class Writer(threading.Thread):
    """Writes transactions of 300 records until it is told to end; every fourth is aborted."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic = servers, topic
        self._is_over = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        with Producer(bootstrap_servers=self._servers, transactional_id="landings") as producer:
            while not self._is_over.wait(0.2):
                with producer.transaction() as transaction:
                    sent = [
                        transaction.send(
                            self._topic, b"%d-%d" % (self.transactions, each) + b"x" * 80, partition=each % 3
                        )
                        for each in range(300)
                    ]
                    sent[-1].result()
                    if self.transactions % 4 == 3:
                        transaction.abort()
                self.transactions += 1

    def stop(self) -> None:
        self._is_over.set()
        self.join()


class Driver:
    """The process of tests/support/landing_driver.py and all below it."""

    def __init__(self, servers: str, topic: str, folder: Path, stop: Path) -> None:
        command = [sys.executable, str(HERE / "support" / "landing_driver.py"), servers, topic, str(folder), str(stop)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.landed = 0
        self._has_landed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("landed"):
                self.landed += 1
                self._has_landed.set()

    def wait_landed(self) -> bool:
        """Wait for a first landing; False if the process has ended."""
        end = time.monotonic() + START_SECONDS
        while not self._has_landed.wait(0.1):
            if self.process.poll() is not None or time.monotonic() > end:
                return False
        return True

    def below(self) -> dict[str, list[int]]:
        """The processes below it: the JVM, and Python workers with their daemon."""
        parents: dict[int, tuple[int, str]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, fields = path.read_text("utf-8", "replace").rpartition(")")[::2]
                parents[int(path.parent.name)] = (int(fields.split()[1]), name.partition("(")[2])
        found: dict[str, list[int]] = {"JVM": [], "worker": []}
        mine = {self.process.pid}
        while more := {number for number, (parent, _) in parents.items() if parent in mine} - mine:
            mine |= more
            for number in more:
                found["JVM" if parents[number][1] == "java" else "worker"].append(number)
        return found

    def kill(self, target: str) -> bool:
        """Kill the driver, the JVM or one Python worker; False if no such process exists."""
        below = self.below()
        numbers = [self.process.pid] if target == "driver" else below[target]
        if target == "worker":
            numbers = sorted(numbers)[-1:]
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if target == "worker" or not numbers:
            return bool(numbers)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise SystemExit("the driver did not end after its JVM was killed") from None
        self._end(below)
        return True

    def _end(self, below: dict[str, list[int]]) -> None:
        """What the driver leaves behind when it is killed: its JVM, and workers that wait for it."""
        for number in (number for numbers in below.values() for number in numbers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def finish(self) -> int:
        """Wait for its end after the stop file has been written."""
        return self.process.wait(STOP_SECONDS)


def expected(servers: str, topic: str, level: Any) -> list[Position]:
    with kcodec.read_topic(topic, bootstrap_servers=servers, isolation_level=level) as records:
        return sorted(
            (int(str(each.partition)), each.offset, each.value or b"") for batch in records for each in batch.records()
        )


def visible(folder: Path) -> list[Position]:
    table = pyarrow.dataset.dataset(folder, format="parquet").to_table(columns=["partition", "offset", "value"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--line-kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    chosen, kills = random.Random(given.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name, ApacheKafka() as kafka:
        folder, stop = Path(name) / "land", Path(name) / "stop"
        servers, topic = kafka.bootstrap_servers, kafka.create_topic(partitions=3)
        writer = Writer(servers, topic)
        writer.start()
        driver = Driver(servers, topic, folder, stop)
        while kills.total() < given.kills:
            if not driver.wait_landed():
                # A worker that was killed while it started counts as a failed job; the loop is started again.
                driver.kill("driver")
                driver = Driver(servers, topic, folder, stop)
                continue
            time.sleep(chosen.uniform(0, 2))
            target = chosen.choice(("worker", "worker", "JVM", "driver"))
            if driver.kill(target):
                kills[target] += 1
                print(f"killed a {target} after {driver.landed} landings", flush=True)
            if driver.process.poll() is not None:
                driver = Driver(servers, topic, folder, stop)
        writer.stop()
        stop.touch()
        while driver.finish() != 0:
            driver = Driver(servers, topic, folder, stop)
        rows, found = expected(servers, topic, "read_committed"), visible(folder)
        lost, doubled = len(set(rows) - set(found)), len(found) - len(set(found))
        staged = [path.name for path in (folder / "_landings").glob("*-*")]
        outcome = {
            "kills": dict(kills),
            "transactions": writer.transactions,
            "rows": len(rows),
            "lost": lost,
            "doubled": doubled,
            "not_committed": len(set(found) - set(rows)),
            "staged": staged,
        }
        print(json.dumps(outcome), flush=True)
        script = HERE / "support" / "landing_kills.py"
        command = [sys.executable, script, servers, topic, Path(name) / "lines", "--kills", str(given.line_kills)]
        (Path(name) / "lines").mkdir()
        ran = subprocess.run(
            [*map(str, command), "--seed", str(given.seed)], check=False, capture_output=True, text=True
        )
        print(ran.stdout[-200:], ran.stderr[-500:], flush=True)
        everything = expected(servers, topic, "read_uncommitted")  # as landing_kills.py reads
        by_lines = ran.returncode == 0 and everything == visible(Path(name) / "lines" / "land")
    is_right = rows == found and not staged and by_lines
    print("passed" if is_right else "FAILED")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
