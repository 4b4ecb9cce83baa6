# SPDX-License-Identifier: Apache-2.0
"""A version of Kafka's system test of transactions: members of a group copy numbered records from one topic to another,
while members and brokers are killed at points of the progress, and two read_committed readers, Kafka's and kcodec's,
read at the same time.

    story = CopyStory(kafka, count=100_000, sessions=3, protocol="consumer", seed=1)
    report = story.run([kill_session] * 6 + [kill_broker] * 4)
    assert report.faults() == [], story.reported()
    story.forget()

Afterwards Kafka's own consumer must find the input in each partition, in order.
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

# The coordinator aborts transactions that are open when the workers have ended within the transaction timeout.
MARKER_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 1.0
# A fault is injected a moment after a point of the progress, anywhere in the following transactions.
LONGEST_DELAY_SECONDS = 0.3
# Longer than the session timeout of a stopped member, so that others own its partitions when it continues.
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
    """The injected faults and the results.

    open:   partitions of the output in which a transaction is still open at the end.
    lag:    records of the input after the offsets that the group committed.
    unlike: readers whose records differ from those in the log.
    late:   records that were not copied in time; some faults may then not have been injected.
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
        """Count the differences."""
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
        """Return the faults: counts that must be 0, and readers that differ."""
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

    # The run.

    def run(self, harm: Sequence[Callable[[CopyStory], None]]) -> CopyReport:
        """Copy the input, inject each fault once at a random point of the progress, and check the results.

        The input is produced in portions, each after the faults of the previous one, so that no fault is left at the
        end.
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
        """Remove the output of the processes."""
        self._scratch.cleanup()

    def _harm(self, action: Callable[[CopyStory], None]) -> None:
        time.sleep(self.random.uniform(0, LONGEST_DELAY_SECONDS))
        action(self)
        self.report.harm[action.__name__.replace("_", " ")] += 1

    def _watch(self, reader: Reader, count: int, deadline: float) -> bool:
        """Restart killed processes until the reader has seen this number of records. Return False if time is up
        before."""
        died_at: dict[str, float] = {}
        while len(reader.values) < count:
            if time.monotonic() > deadline:
                return False
            if self._failed:
                raise self._failed[0]
            for worker in self.workers:
                if worker.has_failed:
                    raise AssertionError(f"{worker.name} ended by itself\n{self.reported()}")
                if not worker.is_running:  # it was killed, or it is Kafka's tool, which ends if there is nothing to do
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
        """Return the number of partitions of the output with records beyond their last stable offset."""
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
        """Produce these records of the input without waiting: a broker that is down will be restarted."""
        for number in range(first, end):
            index, partition = divmod(number, self.partitions)
            producer.send(self.source, values[partition][index].encode(), partition=partition)

    # Processes and faults.

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
        """Return the stderr of the processes, for debugging."""
        logs = sorted(Path(self._scratch.name).glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def down_for_a_while(self, node: Node | EmbeddedKafka) -> None:
        """SIGKILL this node, and start it again within a second."""
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
        """Wait until all nodes are running, stopped processes continue, and the output's replicas are in sync."""
        for thread in self._repairs:
            thread.join()
        self._repairs.clear()
        for partition in range(self.partitions):
            self.kafka.wait_in_sync(self.target, partition)


def kill_session(story: CopyStory) -> None:
    """SIGKILL a running copier, which is restarted within a second."""
    running = [worker for worker in story.workers if worker.is_running]
    if running:
        story.random.choice(running).signal(signal.SIGKILL)


def leave_session(story: CopyStory) -> None:
    """Shut down a copier, which is restarted within a second, while the others are working."""
    running = [worker for worker in story.workers if worker.is_running]
    if running:
        story.random.choice(running).end()


def stop_session(story: CopyStory) -> None:
    """SIGSTOP a copier until the group has removed it and others own its partitions. It then continues as a zombie."""
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
    """Return the committed offsets of the group by partition of the input; 0 if there is none."""
    partitions = [TopicPartition(story.source, partition) for partition in range(story.partitions)]
    with Admin(bootstrap_servers=story.kafka.admin_servers) as admin:
        offsets = admin.list_group_offsets(story.group, partitions, require_stable=True)
    return {tp.partition: found.offset if (found := offsets.get(tp)) else 0 for tp in partitions}
