# SPDX-License-Identifier: Apache-2.0
"""Part `commit` of bench_session.py: how long a transaction takes to end, and until its record is read.

Each transaction has one record, with or without offsets of a record that was polled. A session, a plain transactional
producer of kcodec and Java's clients (tests/java/CommitTimes.java) run them in turns. Measured are the whole end of the
transaction (flush, offsets, heartbeat, EndTxn), and the time from EndTxn until a read_committed consumer of the same
client library has the record. The end without offsets of a session must take no longer than that of a producer: the
forced heartbeat and the waits must not add to it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

SESSION, PLAIN = "session, produce only", "kcodec Producer, produce only"
JAVA = {"offsets": "Java, with offsets", "produce": "Java, produce only"}
EACH, WARM_UP = 30, 20
PAUSE_SECONDS = 0.01
JAVA_SECONDS = 300.0
Times = list[tuple[float, float]]  # milliseconds: the whole end, and from EndTxn until the record is read


class Reader:
    """A read_committed consumer that stores when each value was read."""

    def __init__(self, servers: str, topic: str) -> None:
        from kcodec import TopicPartition
        from kcodec.client import Consumer

        self.seen: dict[bytes, float] = {}
        self.came = threading.Condition()
        self._is_over = False
        self._consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest")
        self._consumer.assign([TopicPartition(topic, 0)])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_over:
            for record in self._consumer.poll(0.1):
                with self.came:
                    self.seen[record.value or b""] = time.monotonic()
                    self.came.notify_all()

    def wait(self, value: bytes) -> float:
        """Wait until the value was read, and return when."""
        with self.came:
            if not self.came.wait_for(lambda: value in self.seen, 30.0):
                raise TimeoutError(f"{value!r} was not seen")
        return self.seen[value]

    def close(self) -> None:
        """Stop the thread and close the consumer."""
        self._is_over = True
        self._thread.join(10.0)
        self._consumer.close()


def watch(client: Any) -> dict[str, float]:
    """Return a dict that is updated with the time of the last request of each API."""
    asked: dict[str, float] = {}

    def see(trace: Any) -> None:
        if trace.kind == "request":
            asked[type(trace.message).__name__] = trace.time

    client.network.watchers.append(see)
    return asked


class Work:
    """Runs transactions of one record, one after the other. `begin` begins one."""

    def __init__(self, client: Any, begin: Callable[[], Any], reader: Reader, target: str, name: str) -> None:
        self._asked = watch(client)
        self._begin, self._reader, self._target = begin, reader, target
        self._name, self._number = name.encode(), 0
        self.times: Times = []

    def one(self, prepare: Callable[[Any, bytes], None] = lambda txn, value: None) -> None:
        """Run one transaction. prepare: called in it before its end."""
        value = b"%s-%d" % (self._name, self._number)
        self._number += 1
        with self._begin() as txn:
            prepare(txn, value)
            txn.send(self._target, value, partition=0)
            begin = time.monotonic()
        ended = time.monotonic()
        self.times.append(((ended - begin) * 1000, (self._reader.wait(value) - self._asked["EndTxnRequest"]) * 1000))
        time.sleep(PAUSE_SECONDS)


def session_for(servers: str, source: str, name: str) -> Any:
    """Return a session with a new group."""
    from kcodec.client import GroupTransactSession

    options = {"group_id": name, "transactional_id": name, "topics": [source], "linger_ms": 0}
    return GroupTransactSession(bootstrap_servers=servers, **options)


def with_offsets(servers: str, source: str, target: str, count: int) -> dict[str, Times]:
    """Return the times of a session that polls a record in each transaction."""
    from kcodec.client import Producer

    name = uuid.uuid4().hex[:8]
    reader = Reader(servers, target)
    with session_for(servers, source, name) as session, Producer(bootstrap_servers=servers, linger_ms=0) as feeder:
        work = Work(session._client, session.transaction, reader, target, name)

        def poll(txn: Any, value: bytes) -> None:
            feeder.send(source, value, partition=0).result()
            while not txn.poll(0.05):
                pass

        for _ in range(count):
            work.one(poll)
    reader.close()
    return {"session, with offsets": work.times}


def produce_only(servers: str, source: str, target: str, count: int) -> dict[str, Times]:
    """Return the times of a session and of a plain transactional producer, which run in turns so that other load
    affects both."""
    from kcodec.client import Producer

    name = uuid.uuid4().hex[:8]
    reader = Reader(servers, target)
    options = {"transactional_id": f"{name}-plain", "linger_ms": 0}
    with session_for(servers, source, name) as session, Producer(bootstrap_servers=servers, **options) as producer:
        works = [
            Work(session._client, session.transaction, reader, target, f"{name}-session"),
            Work(producer._client, producer.transaction, reader, target, f"{name}-plain"),
        ]
        for number in range(count):
            for work in works if number % 2 else reversed(works):
                work.one()
    reader.close()
    return {SESSION: works[0].times, PLAIN: works[1].times}


def java(servers: str, source: str, target: str, count: int, mode: str) -> dict[str, Times]:
    """Return the times of Java's producer and consumer."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
    from java_judge import class_path, compile_judge, java_and_jars

    program, jars = java_and_jars()
    command = [str(program), "-Xmx256m", "-cp", f"{compile_judge()}:{class_path(jars)}", "kcodec.clients.CommitTimes"]
    command += [servers, source, target, str(count), mode, uuid.uuid4().hex[:8]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_SECONDS, check=True)
    rows = [tuple(int(number) / 1000 for number in line.split()) for line in run.stdout.splitlines()]
    return {JAVA[mode]: [(row[0], row[2]) for row in rows if len(row) == 3]}


CONTESTANTS: tuple[Callable[..., dict[str, Times]], ...] = (
    with_offsets,
    lambda *place: java(*place, "offsets"),
    produce_only,
    lambda *place: java(*place, "produce"),
)


def measure(kafka: Any, rounds: int) -> dict[str, Any]:
    """Measure the part `commit` for bench_session.py."""
    times: dict[str, Times] = {}
    topics = [kafka.create_topic(partitions=1) for _ in range(2)]
    for turn in range(rounds):
        first = turn % len(CONTESTANTS)
        for contestant in CONTESTANTS[first:] + CONTESTANTS[:first]:
            for name, found in contestant(kafka.bootstrap_servers, *topics, WARM_UP + EACH).items():
                times.setdefault(name, []).extend(found[WARM_UP:])
    results: dict[str, Any] = {}
    print(f"{'ms':32} {'end p50':>9} {'p99':>7} {'EndTxn to seen p50':>20} {'p99':>7}")
    for name, found in times.items():
        ends, seen = ([row[at] for row in found] for at in (0, 1))
        row = {"end": _quantiles(ends), "end_txn_to_seen": _quantiles(seen), "transactions": len(found)}
        results[name] = row
        numbers = [row[what][part] for what in ("end", "end_txn_to_seen") for part in ("p50", "p99")]  # type: ignore[index]
        print(f"{name:32} {numbers[0]:9.2f} {numbers[1]:7.2f} {numbers[2]:20.2f} {numbers[3]:7.2f}")
    added = statistics.median(own[0] - plain[0] for own, plain in zip(times[SESSION], times[PLAIN], strict=True))
    results["heartbeat and waits add to a produce-only commit (median of pairs, ms)"] = round(added, 3)
    print(f"the session adds {added:+.2f} ms to a produce-only commit (median of pairs)")
    return results


def _quantiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(statistics.median(values), 3), "p99": round(cuts[98], 3)}
