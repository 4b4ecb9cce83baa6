# SPDX-License-Identifier: Apache-2.0
"""Runs chaos_worker.py against a real Kafka, injects faults at points of its progress, and checks the log.

    story = Story(kafka, count=50_000, seed=1)
    report = story.run([*[kill_producer] * 20, *[kill_broker] * 5])       # faults at random points of the run
    assert report.faults() == []

Kafka's own consumer with read_committed must then deliver the numbers 0 ... count - 1, each once.
"""

from __future__ import annotations

import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from java_clients import ConsumedRecord, consume, move_leader
from opened_logs import open_log

from kcodec.testing.kafka import ApacheKafka, Node

WORKER = Path(__file__).with_name("chaos_worker.py")
QUIET_SECONDS = 150.0
# A fault is injected a moment after a commit was reported, anywhere in the following transactions.
LONGEST_DELAY_SECONDS = 0.15
# transaction.state.log.num.partitions of kcodec.testing.kafka.
COORDINATOR_PARTITIONS = 3


@dataclass
class Report:
    """The reported outcomes and the records in the log. Errors are those that the application caught, by class.

    torn: transactions that are partly visible. other_replicas: replicas whose files differ from the consumer's records.
    """

    count: int
    chunk: int
    harm: Counter[str] = field(default_factory=Counter)
    reported: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    error_texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    lost: int = 0
    duplicates: int = 0
    aborted_read: int = 0
    torn: int = 0
    out_of_order: int = 0
    other_replicas: int = 0
    aborted_in_log: int = 0

    def judge(self, committed: Sequence[ConsumedRecord], everything: int) -> None:
        """Set the records of a read_committed consumer; `everything`: the number of read_uncommitted records."""
        numbers: Counter[int] = Counter()
        attempts: dict[str, int] = defaultdict(int)
        last: dict[int, int] = {}
        for record in committed:
            assert record.value is not None
            text, attempt, kind, _ = record.value.decode().split(" ", 3)
            number = int(text)
            numbers[number] += 1
            attempts[attempt] += 1
            self.aborted_read += kind == "A"
            self.out_of_order += number < last.get(record.partition, -1)
            last[record.partition] = number
        self.lost = sum(1 for number in range(self.count) if number not in numbers)
        self.duplicates = len(committed) - len(numbers)
        short = self.count % self.chunk
        self.torn = sum(1 for records in attempts.values() if records not in (self.chunk, short))
        self.aborted_in_log = everything - len(committed)

    def faults(self) -> list[str]:
        """Return the violations of exactly-once."""
        names = ("lost", "duplicates", "aborted_read", "torn", "out_of_order", "other_replicas")
        return [f"{getattr(self, name)} {name}" for name in names if getattr(self, name)]


class Story:
    """One application, its topic and its faults. `seed` determines the faults and their order, but not their timing."""

    def __init__(
        self,
        kafka: ApacheKafka,
        *,
        count: int,
        chunk: int = 100,
        partitions: int = 3,
        transactional: bool = True,
        seed: int = 1,
    ) -> None:
        self.kafka = kafka
        self.topic = kafka.create_topic(partitions=partitions)
        self.id = f"id-{self.topic}"
        self.partitions = partitions
        self.random = random.Random(seed)
        self.report = Report(count, chunk)
        self._transactional = transactional
        self._worker: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._scratch = tempfile.TemporaryDirectory(prefix="kcodec-chaos-")
        self._repairs: list[threading.Thread] = []
        self._failed: list[BaseException] = []

    def run(self, harm: Sequence[Callable[[Story], None]]) -> Report:
        """Run the application, inject each fault once at a random point of its progress, and check the log."""
        began = time.monotonic()
        points = sorted(self.random.sample(range(self.report.count * 9 // 10), len(harm)))
        todo = list(zip(points, self.random.sample(list(harm), len(harm)), strict=True))
        self._start_worker()
        try:
            while (line := self._next_line()) != "done":
                word, _, rest = line.partition(" ")
                self._note(word, rest)
                while todo and word == "committed" and int(rest) > todo[0][0]:
                    _, action = todo.pop(0)
                    time.sleep(self.random.uniform(0, LONGEST_DELAY_SECONDS))
                    action(self)
                    self.report.harm[action.__name__.replace("_", " ")] += 1
            self.repair()
            assert not todo
        finally:
            self._end()
        self.report.seconds = time.monotonic() - began
        servers = self.kafka.admin_servers
        everything = len(consume(servers, self.topic, "read_uncommitted"))
        committed = consume(servers, self.topic)
        self.report.judge(committed, everything)
        self.report.other_replicas = self._replicas_unlike(committed)
        return self.report

    def _replicas_unlike(self, committed: Sequence[ConsumedRecord]) -> int:
        """Return the number of replicas in whose files kcodec reads other committed records than the Java consumer."""
        delivered: dict[int, list[tuple[int, bytes | None]]] = defaultdict(list)
        for record in committed:
            delivered[record.partition].append((record.offset, record.value))
        unlike = 0
        for node in self.kafka.nodes:
            for partition in range(self.partitions):
                log = open_log(node.log_directory / f"{self.topic}-{partition}")
                found = [(record.offset, record.value) for record in log.records("read_committed")]
                unlike += found != delivered[partition]
        return unlike

    def kill_worker(self) -> None:
        """SIGKILL the application and start it again. Its output until then still counts."""
        assert self._worker is not None
        self._worker.kill()
        self._worker.wait()
        self._start_worker()

    def down_for_a_while(self, node: Node) -> None:
        """SIGKILL this node and start it again within a second, while the application continues."""
        self.repair()
        node.kill()
        pause = self.random.uniform(0, 1)

        def bring_back() -> None:
            try:
                time.sleep(pause)
                node.start()
            except BaseException as error:
                self._failed.append(error)
                raise

        self._repairs.append(threading.Thread(target=bring_back))
        self._repairs[-1].start()

    def repair(self) -> None:
        """Wait until all nodes are running and all replicas in sync, before the next fault."""
        for thread in self._repairs:
            thread.join()
        self._repairs.clear()
        if self._failed:
            raise self._failed[0]
        for partition in range(self.partitions):
            self.kafka.wait_in_sync(self.topic, partition)

    def _start_worker(self) -> None:
        options = ["--servers", self.kafka.bootstrap_servers, "--topic", self.topic, "--id", self.id]
        options += ["--group", f"group-{self.topic}", "--partitions", str(self.partitions)]
        options += ["--count", str(self.report.count), "--chunk", str(self.report.chunk)]
        if not self._transactional:
            options += ["--without-transactions", "--progress", str(Path(self._scratch.name, "progress"))]
        log = Path(self._scratch.name, "worker.log").open("a")  # noqa: SIM115 (the child has it from here on)
        self._worker = subprocess.Popen(
            [sys.executable, str(WORKER), *options], stdout=subprocess.PIPE, stderr=log, text=True
        )
        log.close()
        threading.Thread(target=self._read, args=(self._worker,), daemon=True).start()

    def _read(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        with worker.stdout:
            for line in worker.stdout:
                if line.endswith("\n"):
                    self._lines.put(line.strip())
        if worker.wait() not in (0, -9):
            self._lines.put(f"died {worker.returncode}")

    def _next_line(self) -> str:
        try:
            line = self._lines.get(timeout=QUIET_SECONDS)
        except queue.Empty:
            raise AssertionError(f"the application said nothing for {QUIET_SECONDS} s\n{self._reported()}") from None
        assert not line.startswith("died"), f"the application {line}\n{self._reported()}"
        return line

    def _reported(self) -> str:
        reported = Path(self._scratch.name, "worker.log").read_text(errors="replace")[-4000:]
        return "\n".join([*self.report.error_texts[-10:], reported])

    def _note(self, word: str, rest: str) -> None:
        self.report.reported[word] += 1
        if word == "error":
            self.report.errors[rest.partition(" ")[0]] += 1
            self.report.error_texts.append(rest)

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
        for thread in self._repairs:
            thread.join()
        self._scratch.cleanup()


def kill_producer(story: Story) -> None:
    """kill -9 of the application."""
    story.kill_worker()


def kill_broker(story: Story) -> None:
    """kill -9 of the only broker."""
    story.down_for_a_while(story.kafka.node(1))


def kill_leader(story: Story) -> None:
    """kill -9 of the leader of a data partition."""
    story.down_for_a_while(story.kafka.leader(story.topic, story.random.randrange(story.partitions)))


def kill_coordinator(story: Story) -> None:
    """kill -9 of the coordinator of the transactional id."""
    story.down_for_a_while(story.kafka.coordinator("transaction", story.id))


def move_a_leader(story: Story) -> None:
    """An orderly move of a data partition's leader to another replica."""
    story.repair()
    partition = story.random.randrange(story.partitions)
    nodes = [node.id for node in story.kafka.nodes]
    leader = story.kafka.leader(story.topic, partition).id
    first = story.random.choice([number for number in nodes if number != leader])
    replicas = [first, *(number for number in nodes if number != first)]
    move_leader(story.kafka.admin_servers, story.topic, partition, replicas)


def move_coordinators(story: Story) -> None:
    """An orderly move of all partitions of __transaction_state to the next node: every coordinator moves."""
    story.repair()
    nodes = [node.id for node in story.kafka.nodes]
    at = nodes.index(story.kafka.coordinator("transaction", story.id).id)
    replicas = [*nodes[at + 1 :], *nodes[: at + 1]]
    for partition in range(COORDINATOR_PARTITIONS):
        story.kafka.wait_in_sync("__transaction_state", partition)
        move_leader(story.kafka.admin_servers, "__transaction_state", partition, replicas)
