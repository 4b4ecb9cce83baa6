# SPDX-License-Identifier: Apache-2.0
"""exactly_once of kcodec.spark while workers, drivers, executors and brokers are killed: each row is there once.

    python tests/prove/prove_spark_sink.py [--batches 60] [--rows 400] [--seed N] [--only PART ...] [--results FOLDER]

4.4.0-tv2, 4.4.0-tv0, 4.3.1, 3.9.1: a query of 60 micro-batches to a cluster of three nodes. It is started again
    until it has ended. Its driver, with the JVM and all workers, is killed -9 between every two steps, and at random
    times, half of them between begin and EndTxn; Python workers are killed -9; brokers are killed and stopped, one at a
    time; every few EndTxn requests are carried out without a response, or lost.
executors: the same on local-cluster[2,2,1024], with executors killed -9.
control:   drivers die behind EndTxn, and the number of the batch is not compared: there must be duplicates, or the
    faults prove nothing.
spark:     Spark's own sink, with workers and drivers killed: its duplicates are counted.

A read_committed consumer of librdkafka judges. Written to spark-sink.txt in tests/results (or FOLDER). The exit status
is 0 if nothing is lost or duplicated, and the control shows duplicates.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "support"), str(ROOT / "src")]

from broker_kills import OPTIONS, BrokerKills  # noqa: E402
from confluent_client import read_committed  # noqa: E402

from kcodec.testing.kafka import ApacheKafka  # noqa: E402
from kcodec.testing.proxy import KafkaProxy  # noqa: E402

PARTITIONS = 4
STEPS = ("started", "begun", "written", "committed")
KINDS: dict[str, dict[str, Any]] = {
    "4.4.0-tv2": {"version": "4.4.0"},
    "4.4.0-tv0": {"version": "4.4.0", "transaction_version": 0},
    "4.3.1": {"version": "4.3.1"},
    "3.9.1": {"version": "3.9.1"},
}
PARTS = (*KINDS, "executors", "control", "spark")
START_LIMIT = 100
#: Seconds without a new step after which a driver counts as hanging.
HANGS = 240


class Process:
    """A process of the system, from /proc."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self.parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            self.command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, IndexError, ValueError):
            self.parent, self.command = 0, ""

    @classmethod
    def below(cls, pid: int) -> list[Process]:
        """All descendants of a process."""
        every = [cls(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()]
        found, known = [], {pid}
        while more := [one for one in every if one.parent in known and one.pid not in known]:
            found += more
            known |= {one.pid for one in more}
        return found

    def kill(self) -> bool:
        """SIGKILL; whether it was still there."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


class Driver:
    """A run of sink_driver.py. steps: (step, batch) so far."""

    def __init__(self, arguments: dict[str, Any], jars: str) -> None:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SINK_JARS": jars}
        environment |= {"SPARK_WORKER_DIR": arguments["work"], "SPARK_LOCAL_DIRS": arguments["work"]}
        command = [sys.executable, str(HERE / "support" / "sink_driver.py"), json.dumps(arguments)]
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=arguments["work"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.steps: list[tuple[str, str]] = []
        self.changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            step, _, rest = line.strip().partition(" ")
            if step in {*STEPS, "skipped", "done", "failed"}:
                with self.changed:
                    self.steps.append((step, rest))
                    self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def wait_for(self, step: str, count: int, timeout: float) -> bool:
        """Wait until a step was done this number of times in this run; False: the driver has ended, or time is up."""
        deadline = time.monotonic() + timeout
        with self.changed:
            while sum(one == step for one, _ in self.steps) < count:
                if not self.is_alive or time.monotonic() > deadline:
                    return False
                self.changed.wait(0.2)
        return True

    def kill(self) -> None:
        """SIGKILL the driver, its JVM, executors and workers."""
        for one in [*Process.below(self.process.pid), Process(self.process.pid)]:
            one.kill()
        self.process.wait()

    def wait(self) -> None:
        """Wait for its end; RuntimeError if it makes no progress."""
        while self.is_alive:
            before = len(self.steps)
            deadline = time.monotonic() + HANGS
            while self.is_alive and len(self.steps) == before:
                if time.monotonic() > deadline:
                    self.kill()
                    raise RuntimeError(f"no step for {HANGS} s after {self.steps[-1:]}")
                time.sleep(0.1)
        # What it has started and left behind: daemons of Python workers have process groups of their own.
        for one in Process.below(self.process.pid):
            one.kill()
        self._reader.join(10)

    @property
    def end(self) -> tuple[str, str]:
        """("done", ""), ("failed", the text), or ("killed", "")."""
        last = self.steps[-1:]
        return last[0] if last and last[0][0] in ("done", "failed") else ("killed", "")


class Story:
    """One query, from its first start to its end, and the faults on the way. counts: of what was done to it."""

    def __init__(self, kafka: ApacheKafka, proxy: KafkaProxy, folder: Path, chance: random.Random, **options: Any):
        self.kafka, self.proxy, self.chance, self.options = kafka, proxy, chance, options
        self.topic = kafka.create_topic(partitions=PARTITIONS)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.rows: list[bytes] = []
        self.batches = options["batches"]
        self._folder = folder / self.topic
        self._driver: Driver | None = None
        self._is_over = threading.Event()
        self._begun_before = 0
        (self._folder / "files").mkdir(parents=True)
        (self._folder / "work").mkdir()
        for number in range(self.batches):
            lines = [f"{number}-{row}" for row in range(options["rows"])]
            path = self._folder / "files" / f"{number:04}.txt"
            path.write_text("".join(f"{line}\n" for line in lines))
            os.utime(path, (1_700_000_000 + number,) * 2)
            self.rows += [line.encode() for line in lines]

    def play(self) -> None:
        """Start the query until it is at its end."""
        threads = [threading.Thread(target=each, daemon=True) for each in self._faults()]
        for thread in threads:
            thread.start()
        plans = iter(self._plans())
        try:
            for _ in range(START_LIMIT):
                if self._run(next(plans, None)):
                    break
            else:
                self.problems.append(f"no end after {START_LIMIT} starts")
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join(60)

    def _plans(self) -> list[tuple[str, Any]]:
        """How the drivers die, one after the other: at each step, and at random times in each half of a batch."""
        if not self.options.get("driver_kills", True):
            return []
        if self.options["sink"] == "kafka":
            return [("after", ("", self.chance.uniform(2, 6))) for _ in range(2)]
        if self.options["sink"] == "control":
            return [("die", "committed")] * 2
        rounds = self.options.get("rounds", 2)
        plans: list[tuple[str, Any]] = [("die", step) for step in STEPS] * rounds
        for _ in range(rounds * 2):
            # Between begin and EndTxn, and between EndTxn and the next begin.
            plans.append(("after", ("begun", self.chance.uniform(0, self.options["pause"] * 2))))
            plans.append(("after", ("committed", self.chance.uniform(0, 1.0))))
        self.chance.shuffle(plans)
        return plans

    def _run(self, plan: tuple[str, Any] | None) -> bool:
        """One driver; whether the query is at its end."""
        arguments = {
            "folder": str(self._folder / "files"),
            "work": str(self._folder / "work"),
            "checkpoint": str(self._folder / "checkpoint"),
            "topic": self.topic,
            "application": f"application-{self.topic}",
            "servers": self.proxy.bootstrap_servers,
            "sink": self.options["sink"],
            "pause": self.options["pause"],
            "master": self.options.get("master", "local[2,4]"),
        }
        length = self.chance.randrange(1, 4)
        if plan is not None and plan[0] == "die":
            arguments["die"] = [plan[1], self._next_batch() + length]
        self.counts["driver starts"] += 1
        driver = self._driver = Driver(arguments, str(ROOT / ".cache" / "spark-kafka" / "*"))
        try:
            if plan is not None and plan[0] == "after":
                step, seconds = plan[1]
                reached = driver.wait_for(step, length, HANGS) if step else self._wait_for_rows(driver)
                if reached:
                    time.sleep(seconds)
                    driver.kill()
            driver.wait()
        finally:
            if driver.is_alive:
                driver.kill()
        what, text = driver.end
        self._driver = None
        steps = Counter(step for step, _ in driver.steps)
        self._begun_before += steps["begun"]
        self.counts["batches skipped"] += steps["skipped"]
        self.counts["attempts that failed or died"] += steps["begun"] - steps["committed"] - steps["skipped"]
        if what == "killed":
            at = driver.steps[-1][0] if driver.steps else "the beginning"
            self.counts[f"driver killed after {at}"] += 1
        elif what == "failed":
            self.counts["query failed"] += 1
            print(f"  the query ended: {text[-600:]}", file=sys.stderr, flush=True)
            if "CheckpointMismatch" in text or self.counts["query failed"] > 10:
                self.problems.append(text[-1500:])
                return True
        return what == "done"

    def _wait_for_rows(self, driver: Driver) -> bool:
        """Spark's own sink shows no steps: wait until the query has planned a batch."""
        deadline = time.monotonic() + HANGS
        before = self._next_batch()
        while driver.is_alive and time.monotonic() < deadline:
            if self._next_batch() > before:
                return True
            time.sleep(0.1)
        return False

    def _next_batch(self) -> int:
        """The number of batches that Spark has committed."""
        commits = self._folder / "checkpoint" / "commits"
        return sum(path.name.isdigit() for path in commits.iterdir()) if commits.is_dir() else 0

    # ------------------------------------------------------------------------------------------------------- faults

    def _faults(self) -> Iterator[Any]:
        for name in self.options["faults"]:
            yield getattr(self, f"_kill_{name}")

    def _after_batches(self, least: int, most: int) -> bool:
        """Wait until a random number of batches was begun, and then for a random part of one; False: it is over.

        Faults come with batches, not with time, so that a busy machine does not make them more.
        """
        until = self._begun() + self.chance.randint(least, most)
        while self._begun() < until:
            if self._is_over.wait(0.05):
                return False
        return not self._is_over.wait(self.chance.uniform(0, 2 * self.options["pause"]))

    def _begun(self) -> int:
        """The number of batches that were begun; Spark's own sink shows those that are done."""
        if self.options["sink"] == "kafka":
            return self._next_batch()
        driver = self._driver
        steps = () if driver is None else tuple(driver.steps)
        return self._begun_before + sum(step == "begun" for step, _ in steps)

    def _kill_one_of(self, mark: str, what: str) -> None:
        driver = self._driver
        if driver is None or not driver.is_alive:
            return
        found = [one for one in Process.below(driver.process.pid) if mark in one.command]
        # The first Python process of a daemon is the daemon; a worker has a daemon as its parent.
        if mark == "pyspark.daemon":
            daemons = {one.pid for one in found}
            found = [one for one in found if one.parent in daemons]
        if found and self.chance.choice(found).kill():
            self.counts[what] += 1

    def _kill_workers(self) -> None:
        while self._after_batches(2, 4):
            self._kill_one_of("pyspark.daemon", "workers killed")

    def _kill_executors(self) -> None:
        while self._after_batches(1, 3):
            self._kill_one_of("CoarseGrainedExecutorBackend", "executors killed")

    def _kill_brokers(self) -> None:
        kills = BrokerKills(self.kafka, {self.topic: PARTITIONS})
        while self._after_batches(2, 6):
            try:
                kills.kill_one() if self.chance.random() < 0.5 else kills.stop_one()
            except TimeoutError:
                continue  # the last one is not in sync yet
            self.counts["brokers restarted"] += 1

    def _kill_responses(self) -> None:
        """Of EndTxn: carried out without a response, or lost."""
        while self._after_batches(2, 5):
            rule = self.proxy.on_request("EndTxn", count=self.chance.choice((1, 1, 2)))
            rule.deliver_and_cut() if self.chance.random() < 0.7 else rule.cut()
            self.counts["EndTxn unanswered"] += 1

    # -------------------------------------------------------------------------------------------------------- judge

    def judge(self) -> tuple[int, int]:
        """(rows lost, rows duplicated) for a read_committed consumer."""
        self.proxy.clear_rules()
        found = read_committed(self.kafka.bootstrap_servers, self.topic, PARTITIONS, 180.0)
        seen = Counter(value.rstrip() for values in found.values() for value in values)
        lost = sum(row not in seen for row in self.rows)
        foreign = seen.keys() - set(self.rows)
        if foreign:
            self.problems.append(f"{len(foreign)} rows that nobody wrote")
        return lost, sum(count - 1 for count in seen.values())


@contextmanager
def cluster(nodes: int, **options: Any) -> Iterator[tuple[ApacheKafka, KafkaProxy]]:
    """A cluster, and a proxy before it."""
    several = OPTIONS if nodes > 1 else {}
    quick = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 500}
    with ApacheKafka(**{**several, **quick, **options}) as kafka, KafkaProxy(kafka.bootstrap_servers) as proxy:
        yield kafka, proxy


def story_of(part: str, arguments: argparse.Namespace) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """(options of the cluster, its nodes, options of the story)."""
    few = max(arguments.batches // 4, 6)
    base: dict[str, Any] = {"rows": arguments.rows, "pause": 0.4, "rounds": arguments.rounds}
    if part in KINDS:
        faults: tuple[str, ...] = ("workers", "brokers", "responses")
        return KINDS[part], 3, {**base, "batches": arguments.batches, "faults": faults, "sink": "exactly_once"}
    if part == "executors":
        faults = ("executors", "workers")
        story = {**base, "batches": 2 * few, "faults": faults, "sink": "exactly_once", "rounds": 1, "pause": 1.0}
        return {}, 1, {**story, "master": "local-cluster[2,2,1024]", "driver_kills": False}
    if part == "control":
        return {}, 1, {**base, "batches": few, "faults": (), "sink": "control"}
    return {}, 1, {**base, "batches": few, "faults": ("workers",), "sink": "kafka"}


def main() -> int:
    """All parts, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rows", type=int, default=400, help="of a batch")
    parser.add_argument(
        "--rounds", type=int, default=2, help="kills of the driver at each step; twice as many at random"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    lines = [
        f"tests/prove/prove_spark_sink.py --batches {arguments.batches} --rows {arguments.rows} "
        f"--rounds {arguments.rounds} --seed {arguments.seed}",
        "",
    ]
    print(lines[0], flush=True)
    failed = False
    folder = Path(tempfile.mkdtemp(prefix="kcodec-sink-"))
    try:
        for part in arguments.only:
            options, nodes, story_options = story_of(part, arguments)
            began = time.monotonic()
            with cluster(nodes, **options) as (kafka, proxy):
                story = Story(kafka, proxy, folder, random.Random(f"{arguments.seed} {part}"), **story_options)
                story.play()
                lost, duplicated = story.judge()
            wrong = [*story.problems]
            if part == "control":
                wrong += [] if duplicated else ["no duplicate: the faults prove nothing"]
            elif part != "spark":
                wrong += [f"{lost} LOST"] * bool(lost) + [f"{duplicated} DUPLICATED"] * bool(duplicated)
            failed = failed or bool(wrong)
            done = ", ".join(f"{count} {what}" for what, count in sorted(story.counts.items()) if count)
            lines.append(
                f"{part:<10} {len(story.rows)} rows in {story.batches} batches: {lost} lost, {duplicated} duplicated; "
                f"{done}; {time.monotonic() - began:.0f} s: {'; '.join(wrong) or 'ok'}"
            )
            print(lines[-1], flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "spark-sink.txt").write_text("\n".join(lines) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
