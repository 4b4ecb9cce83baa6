# SPDX-License-Identifier: Apache-2.0
"""Shared code of tests of examples/: a topic with amounts and their totals, programs that end at a step, and reads of
the broker's disk. For test_recipes.py and prove_recipes.py.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opened_logs import open_log
from recipe_worker import example

import kcodec
from kcodec.client import Producer
from kcodec.testing.kafka import ApacheKafka

SECONDS = 40.0
WORKER = Path(__file__).with_name("recipe_worker.py")
SHORT = {"session_timeout_ms": 1000, "heartbeat_interval_ms": 200}


class Amounts(NamedTuple):
    """A topic of (account, amount), and the total of each account after each of its records."""

    topic: str
    history: dict[bytes, list[int]]

    @property
    def totals(self) -> dict[bytes, int]:
        return {account: totals[-1] for account, totals in self.history.items()}


def producer(kafka: ApacheKafka, **options: Any) -> Producer:
    return Producer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=0, **options)


def write_amounts(kafka: ApacheKafka, partitions: int = 2, transactions: int = 12) -> Amounts:
    """Write transactions of a few records. Every third one is aborted, including the last: there are gaps in the
    offsets, and each partition ends with aborted records."""
    amounts = Amounts(kafka.create_topic(partitions=partitions), {})
    add_amounts(kafka, amounts, transactions)
    return amounts


def add_amounts(kafka: ApacheKafka, amounts: Amounts, transactions: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    with producer(kafka, transactional_id=f"amounts-{uuid.uuid4().hex}") as sender:
        for number in range(transactions):
            with sender.transaction() as txn:
                rows = [(b"account-%d" % rng.randrange(6), rng.randrange(1, 100)) for _ in range(8)]
                for account, amount in rows:
                    txn.send(amounts.topic, b"%d" % amount, key=account)
                if number % 3 == 2:
                    for partition in range(2):
                        txn.send(amounts.topic, b"1000000", key=b"never", partition=partition)
                    txn.abort()
                    continue
            for account, amount in rows:
                totals = amounts.history.setdefault(account, [])
                totals.append((totals[-1] if totals else 0) + amount)


def wait_for(what: Callable[[], Any], told: Callable[[], object] | str = "it did not come about") -> Any:
    """Call a function until its result is true, and return the result."""
    deadline = time.monotonic() + SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, told() if callable(told) else told
        time.sleep(0.02)
    return found


def committed(kafka: ApacheKafka, topic: str) -> dict[bytes, list[bytes | None]]:
    """Return key -> values of a read_committed reader, when no transaction is open."""

    def settled() -> list[Any]:
        logs: list[Any] = [
            kcodec.open(path)
            for path in sorted(kafka.log_directory.glob(f"{topic}-*"))
            if path.name[len(topic) + 1 :].isdigit()
        ]
        return logs if all(log.last_stable_offset == log.log_end_offset for log in logs) else []

    found: dict[bytes, list[bytes | None]] = {}
    for log in wait_for(settled, f"a transaction is open in {topic}"):
        for record in log.records("read_committed"):
            found.setdefault(record.key or b"", []).append(record.value)
    return found


def start_worker(name: str, step: str, arguments: Sequence[object], by: str = "SIGKILL") -> subprocess.Popen[bytes]:
    """A program of examples/ that ends, or stops, at a step."""
    command = [sys.executable, str(WORKER), name, step, by, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def assert_killed(worker: subprocess.Popen[bytes]) -> None:
    """Check that the program reached its step and was killed."""
    _, told = worker.communicate(timeout=SECONDS)
    assert worker.returncode == -9, told.decode()


def wait_stopped(worker: subprocess.Popen[bytes]) -> None:
    """Wait until the program has reached its step and is stopped."""

    def is_stopped() -> bool:
        assert worker.poll() is None, worker.communicate()[1].decode()
        return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    wait_for(is_stopped)


def end(worker: subprocess.Popen[bytes]) -> str:
    """Kill the program and return its output."""
    worker.kill()
    return worker.communicate()[1].decode()


# The program local_store.


class StoreCase:
    """Totals of a topic of amounts, with a store of its own."""

    def __init__(self, kafka: ApacheKafka, folder: Path, name: str, amounts: Amounts | None = None) -> None:
        self.kafka = kafka
        self.amounts = amounts or write_amounts(kafka)
        self.target = kafka.create_topic(partitions=2)
        self.changelog = kafka.create_topic(partitions=2, cleanup_policy="compact")
        self.path = folder / f"{name}.db"
        self.id = f"{name}-{uuid.uuid4().hex[:8]}"

    def arguments(self) -> list[object]:
        names = ["-b", self.kafka.bootstrap_servers, "--group", self.id, "--id", self.id]
        topics = ["--from", self.amounts.topic, "--to", self.target, "--changelog", self.changelog]
        return [*names, *topics, "--store", self.path]

    def store(self, path: Path | None = None) -> Any:
        return example("local_store").Store(
            str(path or self.path), self.changelog, bootstrap_servers=self.kafka.bootstrap_servers
        )

    def totals(self, path: Path | None = None, instance: str = "", **options: Any) -> Any:
        """An instance of the program in this process."""
        name = self.id + instance
        options = {"transactional_id": name, "group_instance_id": name, "transaction_timeout_ms": 10_000, **options}
        return example("local_store").Totals(
            self.store(path),
            self.amounts.topic,
            self.target,
            bootstrap_servers=self.kafka.bootstrap_servers,
            group_id=self.id,
            **options,
        )

    def drain(self) -> None:
        """Run until all amounts are counted."""
        totals = self.totals()
        try:
            deadline = time.monotonic() + SECONDS
            while self.state(totals.store) != self.amounts.totals:
                assert time.monotonic() < deadline, (self.state(totals.store), self.amounts.totals)
                totals.step(0.2)
        finally:
            totals.close()

    @staticmethod
    def state(store: Any) -> dict[bytes, int]:
        return {key: int(value) for key, value in store._connection.execute("SELECT key, value FROM state")}

    def assert_exact(self, folder: Path) -> None:
        """Check that each change is once in the output and in the changelog, and that a store built only from the
        changelog is the same."""
        expected = {key: [b"%d" % total for total in totals] for key, totals in self.amounts.history.items()}
        assert committed(self.kafka, self.target) == expected
        assert committed(self.kafka, self.changelog) == expected
        rebuilt = self.store(folder / f"{self.id}-rebuilt.db")
        rebuilt.restore([kcodec.TopicPartition(self.amounts.topic, number) for number in range(2)])
        assert self.state(rebuilt) == self.amounts.totals
        rebuilt.close()


# The program offsets_in_database.


def reader_arguments(kafka: ApacheKafka, place: Sequence[object], name: str, topic: str) -> list[object]:
    options = ["--options", json.dumps(SHORT)]
    return [*place, "-b", kafka.bootstrap_servers, "--name", name, "--topic", topic, *options]


def log_ends(kafka: ApacheKafka, topic: str) -> list[int]:
    return [open_log(kafka.log_directory / f"{topic}-{number}").log_end_offset for number in range(2)]
