# SPDX-License-Identifier: Apache-2.0
"""Kafka's own system test of transactions, re-made: numbered records are copied from a topic to another by the members
of a group, while members and brokers are killed at points of the progress, and two read_committed readers, Kafka's and
kcodec's, read at the same time.

    story = CopyStory(kafka, count=100_000, sessions=3, protocol="consumer", seed=1)
    report = story.run([kill_session] * 6 + [kill_broker] * 4)
    assert report.faults() == [], story.reported()
    story.forget()

The judge is what Kafka's own consumer finds afterwards: partition by partition it must be the input, in its order.
"""

from __future__ import annotations

import itertools
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from copy_processes import (
    Reader,
    Worker,
    java_copier_command,
    java_reader,
    kcodec_reader,
    session_command,
    wait_until,
)
from embedded_process import EmbeddedKafka
from java_clients import consume, end_offsets

from kcodec import TopicPartition
from kcodec.client import Admin, Producer
from kcodec.testing.kafka import ApacheKafka, Node

# What may be open when the workers have ended is ended by the coordinator within the time-out of a transaction.
MARKER_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 1.0
# Harm comes a moment after a point of the progress, anywhere in the transactions that follow.
LONGEST_DELAY_SECONDS = 0.3
# Longer than the session of a member that is stopped: so others have its partitions when it goes on.
ZOMBIE_SECONDS = 2.0
KAFKA_OPTIONS: dict[str, Any] = {
    "group_consumer_session_timeout_ms": 6_000,
    "group_consumer_min_session_timeout_ms": 1_000,
    "group_consumer_heartbeat_interval_ms": 500,
    "group_consumer_min_heartbeat_interval_ms": 100,
}

Values = dict[int, list[str]]  # partition -> values in order


@dataclass
class CopyReport:
    """What was done and what was found.

    open:   partitions of the output that a transaction still holds back when all is over.
    lag:    records of the input behind the offsets that the group committed.
    unlike: readers that saw something else, or otherwise, than is there.
    late:   records that had not come through when time was up; then not all harm may have been done.
    """

    count: int
    harm: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    lives: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    lost: int = 0
    duplicates: int = 0
    disorder: int = 0
    strange: int = 0
    open: int = 0
    lag: int = 0
    late: int = 0
    harm_left: int = 0
    unlike: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def judge(self, expected: Values, found: Values) -> None:
        """Count what makes the one differ from the other."""
        for partition, wanted in expected.items():
            place = {value: number for number, value in enumerate(wanted)}
            times = Counter(found[partition])
            self.lost += sum(value not in times for value in wanted)
            self.duplicates += sum(count - 1 for value, count in times.items() if value in place)
            self.strange += sum(count for value, count in times.items() if value not in place)
            order = [place[value] for value in dict.fromkeys(found[partition]) if value in place]
            self.disorder += sum(later < earlier for earlier, later in itertools.pairwise(order))
        faultless = not (self.lost or self.duplicates or self.strange or self.disorder)
        assert faultless == (expected == found)

    def faults(self) -> list[str]:
        """What must not be."""
        names = ("lost", "duplicates", "disorder", "strange", "open", "lag", "late", "harm_left")
        found = [f"{getattr(self, name)} {name.replace('_', ' ')}" for name in names if getattr(self, name)]
        return found + [f"{name} saw otherwise" for name in self.unlike]


class CopyStory:
    """One copy.

    sessions:     how many of ours work in the group; `java_copiers` of Kafka's own in the same group.
    strategy:     how a classic group shares out partitions.
    size:         records of a transaction, of which `abort_share` are aborted on purpose.
    flags:        of tests/support/copy_worker.py: --by-hand, --control outside.
    seconds:      how long it may take.
    """

    def __init__(
        self,
        kafka: ApacheKafka | EmbeddedKafka,
        *,
        count: int,
        sessions: int = 3,
        java_copiers: int = 0,
        protocol: str = "classic",
        strategy: str = "range",
        partitions: int = 6,
        size: int = 750,
        abort_share: float = 1 / 3,
        session_timeout_ms: int = 6_000,
        flags: Sequence[str] = (),
        seed: int = 1,
        seconds: float = 170.0,
    ) -> None:
        self.kafka = kafka
        self.partitions = partitions
        self.random = random.Random(seed)
        self.seconds = seconds
        self.report = CopyReport(count)
        self.source, self.target = (kafka.create_topic(partitions=partitions) for _ in range(2))
        self.group = f"group-{self.source}"
        self._options: dict[str, Any] = {"--protocol": protocol, "--size": size, "--abort-share": abort_share}
        self._options |= {"--session-timeout-ms": session_timeout_ms, "--strategy": strategy}
        self.session_timeout_ms = session_timeout_ms
        self._flags = flags
        self._scratch = tempfile.TemporaryDirectory(prefix="kcodec-copy-")
        self._repairs: list[threading.Thread] = []
        self._failed: list[BaseException] = []
        ids = [f"copier-{number}-of-{self.source}" for number in range(sessions + java_copiers)]
        self.ids = ids[:sessions] or ids
        self.workers = [self._session(name, seed) for name in ids[:sessions]]
        self.workers += [self._java_copier(name) for name in ids[sessions:]]

    # -------------------------------------------------------------------------------------------------------- the run

    def run(self, harm: Sequence[Callable[[CopyStory], None]]) -> CopyReport:
        """Let the input be copied, do each harm once at a random point of the progress, judge.

        The input comes in portions, each when the harm of the one before was done: so none is done behind the end.
        """
        expected = self._make_values()
        began = time.monotonic()
        share = self.report.count // (len(harm) + 1)
        points = [at * share + self.random.randrange(share) for at in range(len(harm))]
        todo = list(zip(points, self.random.sample(list(harm), len(harm)), strict=True))
        try:
            with Producer(bootstrap_servers=self.kafka.bootstrap_servers) as producer:
                readers = self._start_readers()
                self._write(producer, expected, 0, share if todo else self.report.count)
                for worker in self.workers:
                    worker.start()
                for point, action in list(todo):
                    if not self._watch(readers[0], point, began + self.seconds):
                        break
                    self._harm(action)
                    todo.pop(0)
                    done = len(harm) - len(todo)
                    self._write(producer, expected, done * share, (done + 1) * share if todo else self.report.count)
                self._watch(readers[0], self.report.count, began + self.seconds)
        finally:
            self._end_workers()
        self.report.seconds = time.monotonic() - began
        self.report.late = self.report.count - len(readers[0].values)
        self.report.harm_left = len(todo)
        self._judge(readers, expected)
        return self.report

    def forget(self) -> None:
        """Remove what the processes said."""
        self._scratch.cleanup()

    def _harm(self, action: Callable[[CopyStory], None]) -> None:
        time.sleep(self.random.uniform(0, LONGEST_DELAY_SECONDS))
        action(self)
        self.report.harm[action.__name__.replace("_", " ")] += 1

    def _watch(self, reader: Reader, count: int, deadline: float) -> bool:
        """Start again what was killed, until the reader has seen so many records. False: time was up before."""
        died_at: dict[str, float] = {}
        while len(reader.values) < count:
            if time.monotonic() > deadline:
                return False
            if self._failed:
                raise self._failed[0]
            for worker in self.workers:
                if worker.has_failed:
                    raise AssertionError(f"{worker.name} ended by itself\n{self.reported()}")
                if not worker.is_running:  # killed; or Kafka's tool, which ends where it finds nothing to do
                    since = died_at.setdefault(worker.name, time.monotonic() + self.random.uniform(0, 1))
                    if time.monotonic() > since:
                        del died_at[worker.name]
                        worker.start()
            time.sleep(0.01)
        return True

    def _judge(self, readers: Sequence[Reader], expected: Values) -> None:
        servers = self.kafka.admin_servers
        wait_until(lambda: not self._held_back(), MARKER_SECONDS)
        self.report.open = self._held_back()
        there: dict[int, list[tuple[int, str]]] = {partition: [] for partition in range(self.partitions)}
        for record in consume(servers, self.target):
            there[record.partition].append((record.offset, (record.value or b"").decode()))
        found = {partition: [value for _, value in records] for partition, records in there.items()}
        self.report.judge(expected, found)
        committed = committed_offsets(self)
        self.report.lag = sum(len(values) - committed[partition] for partition, values in expected.items())
        for reader in readers:
            reader.end()
            if not reader.is_done or reader.found != there:
                self.report.unlike.append(reader.name)
        for worker in self.workers:
            self.report.said.update(worker.said)
            self.report.lives[worker.name] = worker.lives
            self.report.errors += worker.errors

    def _held_back(self) -> int:
        """How many partitions of the output have records behind their last stable offset."""
        stable, ends = (
            end_offsets(self.kafka.admin_servers, self.target, level)
            for level in ("read_committed", "read_uncommitted")
        )
        return sum(stable[partition] < end for partition, end in ends.items())

    def _make_values(self) -> Values:
        values: Values = {partition: [] for partition in range(self.partitions)}
        for number in range(self.report.count):
            values[number % self.partitions].append(f"{number:07d} {self.random.getrandbits(160):040x}")
        return values

    def _write(self, producer: Producer, values: Values, first: int, end: int) -> None:
        """These records of the input. Nobody waits for them: a broker that is away comes back."""
        for number in range(first, end):
            index, partition = divmod(number, self.partitions)
            producer.send(self.source, values[partition][index].encode(), partition=partition)

    # ------------------------------------------------------------------------------------------------- processes, harm

    def _session(self, name: str, seed: int) -> Worker:
        fixed: dict[str, Any] = {
            "--servers": self.kafka.bootstrap_servers,
            "--source": self.source,
            "--target": self.target,
        }
        fixed |= {"--group": self.group, "--id": name, **self._options}
        command = [*session_command(fixed), *self._flags]
        return Worker(name, lambda life: [*command, "--seed", f"{seed} {name} {life}"], self._log(name))

    def _java_copier(self, name: str) -> Worker:
        own = (self.kafka.bootstrap_servers, self.source, self.target, self.group, name, int(self._options["--size"]))
        command = java_copier_command(*own, aborts=bool(self._options["--abort-share"]))
        return Worker(name, lambda _: command, self._log(name))

    def _start_readers(self) -> list[Reader]:
        own = (self.kafka.bootstrap_servers, self.target, self.partitions)
        return [java_reader(*own, self._log("java-reader")), kcodec_reader(*own, self._log("kcodec-reader"))]

    def _log(self, name: str) -> Path:
        return Path(self._scratch.name, f"{name}.log")

    def _end_workers(self) -> None:
        ending = [threading.Thread(target=worker.end) for worker in self.workers]
        try:
            self.repair()
        finally:
            for thread in ending:
                thread.start()
            for thread in ending:
                thread.join()

    def reported(self) -> str:
        """What the processes said on stderr, for whoever looks for a fault."""
        logs = sorted(Path(self._scratch.name).glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def down_for_a_while(self, node: Node | EmbeddedKafka) -> None:
        """SIGKILL this node, and have it back after a second or less."""
        self.repair()
        node.kill()
        self.later(self.random.uniform(0, LONGEST_PAUSE_SECONDS), node.start)

    def later(self, seconds: float, repair: Callable[[], None]) -> None:
        """Do this in another thread, this number of seconds from now."""

        def run() -> None:
            try:
                time.sleep(seconds)
                repair()
            except BaseException as error:
                self._failed.append(error)
                raise

        self._repairs.append(threading.Thread(target=run))
        self._repairs[-1].start()

    def repair(self) -> None:
        """Wait until all nodes are back, what was stopped goes on, and the output's replicas are in sync."""
        for thread in self._repairs:
            thread.join()
        self._repairs.clear()
        for partition in range(self.partitions):
            self.kafka.wait_in_sync(self.target, partition)


def kill_session(story: CopyStory) -> None:
    """SIGKILL a copier that runs; it comes back within a second."""
    running = [worker for worker in story.workers if worker.is_running]
    if running:
        story.random.choice(running).signal(signal.SIGKILL)


def leave_session(story: CopyStory) -> None:
    """A copier ends in an orderly way, and comes back within a second: others are in the middle of their work."""
    running = [worker for worker in story.workers if worker.is_running]
    if running:
        story.random.choice(running).end()


def stop_session(story: CopyStory) -> None:
    """SIGSTOP a copier until the group has given it up and others have its partitions; then it goes on: a zombie."""
    running = [worker for worker in story.workers if worker.is_running]
    if running:
        worker = story.random.choice(running)
        worker.signal(signal.SIGSTOP)
        story.later(story.session_timeout_ms / 1000 + ZOMBIE_SECONDS, lambda: worker.signal(signal.SIGCONT))


def kill_broker(story: CopyStory) -> None:
    """SIGKILL the only broker."""
    story.down_for_a_while(story.kafka.node(1))


def kill_group_coordinator(story: CopyStory) -> None:
    """SIGKILL the node that coordinates the group."""
    story.down_for_a_while(story.kafka.coordinator("group", story.group))


def kill_transaction_coordinator(story: CopyStory) -> None:
    """SIGKILL the node that coordinates the transactions of a copier."""
    story.down_for_a_while(story.kafka.coordinator("transaction", story.random.choice(story.ids)))


def kill_leader(story: CopyStory) -> None:
    """SIGKILL the leader of a partition of the input or the output."""
    topic = story.random.choice([story.source, story.target])
    story.down_for_a_while(story.kafka.leader(topic, story.random.randrange(story.partitions)))


def committed_offsets(story: CopyStory) -> dict[int, int]:
    """What the group has committed, by partition of the input; 0 for nothing."""
    partitions = [TopicPartition(story.source, partition) for partition in range(story.partitions)]
    with Admin(bootstrap_servers=story.kafka.admin_servers) as admin:
        offsets = admin.list_group_offsets(story.group, partitions, require_stable=True)
    return {tp.partition: found.offset if (found := offsets.get(tp)) else 0 for tp in partitions}
