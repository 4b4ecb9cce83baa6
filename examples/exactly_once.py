# SPDX-License-Identifier: Apache-2.0
"""Three guarantees, one workload, the same kills: what is lost, what comes twice. Then three sessions share a copy.

    python examples/exactly_once.py                  # on an embedded broker, which is killed too: needs no Java
    python examples/exactly_once.py --kafka          # on a new Apache Kafka: needs Java and Kafka's jars
    python examples/exactly_once.py -b HOST:PORT     # on your broker, in new topics

A process copies a topic to another, partition to partition, and is killed (SIGKILL) at the critical point: between its
two steps, commit and produce, or with a session in the middle of its transaction. Started again, it goes on where its
group's committed offsets say. `commit_then_produce`, `produce_then_commit` and `in_one_transaction` are all that
differs. Ends with 1 if a session lost or doubled a record, or the others did not.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from broker_process import BrokerProcess

from kcodec import DeliveryTimeoutError, TopicPartition
from kcodec.client import Admin, Consumer, GroupTransactSession, NewTopic, Producer

PARTITIONS = 3
CHUNK = 100
END_SECONDS = 60.0
STATUS_SECONDS = 3.0
Strike = Callable[[int], None]


# ------------------------------------------------------------------------------------------------ the three guarantees


def commit_then_produce(consumer: Consumer, producer: Producer, target: str, strike: Strike) -> None:
    """At most once: what was committed and not yet produced is lost."""
    records = consumer.poll(0.5)
    consumer.commit()
    strike(len(records))
    for record in records:
        producer.send(target, record.value, partition=record.partition)
    producer.flush()


def produce_then_commit(consumer: Consumer, producer: Producer, target: str, strike: Strike) -> None:
    """At least once: what was produced and not yet committed comes again."""
    records = consumer.poll(0.5)
    for record in records:
        producer.send(target, record.value, partition=record.partition)
    producer.flush()
    strike(len(records))
    consumer.commit()


def in_one_transaction(session: GroupTransactSession, target: str, strike: Strike, wants_abort: bool) -> None:
    """Exactly once: records and offsets are committed together, or not at all."""
    with session.transaction() as txn:
        sent = [txn.send(target, each.value, partition=each.partition) for each in txn.poll(0.5)]
        for delivery in sent:
            delivery.result()  # wait until it is in the log; only the kill that follows needs this
        strike(len(sent))
        if wants_abort:
            txn.abort()


# ------------------------------------------------------------------------------------------- a process that is killed


def work(given: argparse.Namespace) -> None:
    """Copy until the input ends; die at the critical point of the chunk with the number that --dies-at names."""
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    chance, chunks = random.Random(given.instance), Counter[str]()

    def strike(records: int) -> None:
        chunks["done"] += records > 0
        if records and chunks["done"] == given.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    # A static member: a process that is killed and started again gets its partitions back without a rebalance.
    options: dict[str, Any] = {"bootstrap_servers": given.bootstrap_server, "group_id": given.group}
    options |= {"group_instance_id": given.instance, "auto_offset_reset": "earliest", "max_poll_records": CHUNK}
    if given.work == "session":
        name = f"{given.group}-{given.instance}"
        with GroupTransactSession(topics=[given.source], transactional_id=name, **options) as session:
            while not is_over.is_set():
                in_one_transaction(session, given.target, strike, chance.random() < given.abort_share)
        return
    step = {"commit-first": commit_then_produce, "produce-first": produce_then_commit}[given.work]
    with (
        Consumer(enable_auto_commit=False, **options) as consumer,
        Producer(bootstrap_servers=given.bootstrap_server) as producer,
    ):
        consumer.subscribe([given.source])
        while not is_over.is_set():
            step(consumer, producer, given.target, strike)


# ------------------------------------------------------------------------------------------------------- what drives it


@dataclass
class Run:
    """A copy of a number of records by several processes of a group, of which some are killed.

    broker, broker_kills: A broker to kill as well, and how many times. It is started again at once.
    stop: Ends the copy with InterruptedError when it is set.
    """

    servers: str
    work: str
    count: int
    kills: int
    processes: int = 1
    abort_share: float = 0.0
    broker: BrokerProcess | None = None
    broker_kills: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    broker_killed: int = 0
    killed: int = 0
    lost: int = 0
    duplicated: int = 0
    disordered: int = 0
    invisible: int = 0
    seconds: float = 0.0
    source: str = field(init=False)
    target: str = field(init=False)
    group: str = field(init=False)

    def __post_init__(self) -> None:
        own = uuid.uuid4().hex[:8]
        self.source, self.target, self.group = f"numbers-{own}", f"copied-{own}", f"copy-{own}"

    def run(self) -> Run:
        """Copy, and count what a read_committed reader finds afterwards."""
        with Admin(bootstrap_servers=self.servers) as admin, Producer(bootstrap_servers=self.servers) as producer:
            admin.create_topics(NewTopic(name, PARTITIONS) for name in (self.source, self.target))
            for number in range(self.count):
                producer.send(self.source, b"%d" % number, partition=number % PARTITIONS)
            producer.flush()
            began = time.monotonic()
            self._copy(admin)
            self.seconds = time.monotonic() - began
        self._judge()
        return self

    def _copy(self, admin: Admin) -> None:
        """Start the processes, and again after their deaths, until the group has committed all of the input."""
        lives = [self._start(number) for number in range(self.processes)]
        deadline = time.monotonic() + END_SECONDS
        try:
            while (committed := self._committed(admin)) < self.count:
                if self.stop.is_set():
                    raise InterruptedError(f"{self.work}: interrupted")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.work}: {committed} of {self.count} after {END_SECONDS:g} s")
                if self.broker is not None and committed >= self._next_broker_kill():
                    self.broker_killed += 1
                    self.broker.kill()
                    self.broker.start()
                for number, life in enumerate(lives):
                    if life.poll() is not None:
                        if life.returncode != -signal.SIGKILL:
                            raise RuntimeError(f"{self.work}: a process ended with {life.returncode}")
                        lives[number] = self._start(number)
                time.sleep(0.02)
        except BaseException:
            for life in lives:
                life.kill()  # it would wait for a broker that may have ended
            raise
        finally:
            for life in lives:
                life.stdin.close()  # it ends behind the step it is at
            for life in lives:
                life.wait(END_SECONDS)

    def _start(self, number: int) -> Any:
        """A process; while there are kills left it is one that will die at its third chunk."""
        dies_at = 3 if self.killed < self.kills else 0
        self.killed += bool(dies_at)
        own = {"--work": self.work, "--bootstrap-server": self.servers, "--source": self.source}
        own |= {"--target": self.target, "--group": self.group, "--instance": f"copier-{number}"}
        own |= {"--dies-at": str(dies_at), "--abort-share": str(self.abort_share)}
        command = [sys.executable, __file__, *(text for pair in own.items() for text in pair)]
        # Its input ends with this process. Ctrl-C is for this process alone, which then ends the others.
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def _next_broker_kill(self) -> float:
        """The number of copied records at which the broker is killed next."""
        share = self.count / (self.broker_kills + 1)
        return share * (self.broker_killed + 1) if self.broker_killed < self.broker_kills else float("inf")

    def _committed(self, admin: Admin) -> int:
        partitions = [TopicPartition(self.source, number) for number in range(PARTITIONS)]
        try:
            offsets = admin.list_group_offsets(self.group, partitions, timeout=STATUS_SECONDS)
        except DeliveryTimeoutError:
            return 0
        return sum(found.offset for found in offsets.values() if found is not None)

    def _judge(self) -> None:
        found = read_topic(self.servers, self.target, "read_committed")
        times = Counter(number for numbers in found.values() for number in numbers)
        self.lost = self.count - len(times)
        self.duplicated = times.total() - len(times)
        self.disordered = sum(numbers != sorted(numbers) for numbers in found.values())
        everything = read_topic(self.servers, self.target, "read_uncommitted")
        self.invisible = sum(map(len, everything.values())) - times.total()


def read_topic(
    servers: str, topic: str, isolation_level: Literal["read_committed", "read_uncommitted"]
) -> dict[int, list[int]]:
    """The numbers in each partition, in order."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    with Consumer(bootstrap_servers=servers, isolation_level=isolation_level, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for record in consumer.poll(0.5):
                assert record.partition is not None and record.value is not None
                found[record.partition].append(int(record.value))
    return found


def show(servers: str, broker: BrokerProcess | None = None) -> bool:
    """Print the table; return whether each guarantee came out as it must. A `broker` is killed in the last copy."""
    names = {
        "commit-first": "commit, then produce",
        "produce-first": "produce, then commit",
        "session": "GroupTransactSession",
    }
    stop = threading.Event()
    with ThreadPoolExecutor(len(names)) as threads:  # they spend their time in starting processes
        copies = [threads.submit(Run(servers, work, 1500, 4, stop=stop).run) for work in names]
        try:
            runs = {work: each.result() for work, each in zip(names, copies, strict=True)}
        except BaseException:  # Ctrl-C, too: the pool waits for its threads, which end when `stop` is set
            stop.set()
            raise
    broker_kills = 0 if broker is None else 2
    own: dict[str, Any] = {"processes": 3, "abort_share": 1 / 3, "broker": broker, "broker_kills": broker_kills}
    copy = Run(servers, "session", 9000, 4, **own).run()
    rows: list[tuple[object, ...]] = [HEAD]
    for name, run in [*zip(names.values(), runs.values(), strict=True), ("three in a group", copy)]:
        killed = f"{run.killed} + broker {run.broker_killed}" if run.broker_killed else run.killed
        rows.append((name, run.count, killed, run.lost, run.duplicated, run.invisible))
    for row in rows:
        print("  " + f"{row[0]:<22}" + "".join(f"{cell:>{width}}" for cell, width in zip(row[1:], WIDTHS, strict=True)))
    first, second, session = runs.values()
    kept = not (session.lost or session.duplicated or copy.lost or copy.duplicated or copy.disordered)
    was_killed = copy.broker_killed == broker_kills
    return bool(first.lost and not first.duplicated and second.duplicated and not second.lost and kept and was_killed)


HEAD = ("", "records", "killed", "lost", "duplicated", "aborted, not visible")
WIDTHS = (9, 14, 7, 12, 22)


def missing_for_kafka() -> str:
    """What a Kafka of its own lacks on this machine; empty if nothing. Nothing is fetched for that."""
    from kcodec.testing import jars
    from kcodec.testing.java import MissingTool, find_java

    wanted = ((jars.broker_libs(), jars.broker_artifacts()), (jars.logging_libs(), jars.LOGGING))
    try:
        find_java()
    except MissingTool as missing:
        return str(missing)
    if not all(jars.is_complete(libs, artifacts) for libs, artifacts in wanted):
        return f"the jars of Apache Kafka {jars.KAFKA_VERSION} are not there: `make jars` fetches them"
    return ""


@contextmanager
def own_kafka() -> Iterator[str]:
    """Start an Apache Kafka until the end of the block. Raise MissingTool if there is no Java or no jars."""
    from kcodec.testing.kafka import ApacheKafka

    with ApacheKafka() as kafka:
        yield kafka.bootstrap_servers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-b", "--bootstrap-server", metavar="HOST:PORT")
    parser.add_argument("--kafka", action="store_true", help="start an Apache Kafka")
    for name in ("work", "source", "target", "group", "instance"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--dies-at", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--abort-share", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.getLogger("kcodec").setLevel(logging.ERROR)  # a client would warn whenever the broker has been killed
    if given.work:
        work(given)
    elif given.bootstrap_server:
        sys.exit(not show(given.bootstrap_server))
    elif given.kafka:
        with own_kafka() as servers:
            sys.exit(not show(servers))
    else:
        with tempfile.TemporaryDirectory(prefix="kcodec-copy-") as folder, BrokerProcess(Path(folder)) as broker:
            sys.exit(not show(broker.bootstrap_servers, broker))


if __name__ == "__main__":
    main()
