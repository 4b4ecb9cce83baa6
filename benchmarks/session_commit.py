# SPDX-License-Identifier: Apache-2.0
"""Part `commit` of bench_session.py: how long a transaction takes to end, and until its record is seen.

One record a transaction, with offsets of a record that was polled, or without: a session, a plain transactional
producer of ours, and Java's clients (tests/java/CommitTimes.java) do the same, one after the other, in turns. Measured:
the whole end of the transaction (flush, offsets, heartbeat, EndTxn); and from EndTxn to the record at a read_committed
consumer of one's own kind. The session's end without offsets must take no longer than the producer's: the forced
heartbeat and the waits add nothing to it.
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

EACH, WARM_UP = 30, 20
PAUSE_SECONDS = 0.01
JAVA_SECONDS = 300.0
Times = list[tuple[float, float]]  # ms: the whole end, EndTxn to seen


class Reader:
    """A read_committed consumer that notes when each value came."""

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
        """When it came."""
        with self.came:
            if not self.came.wait_for(lambda: value in self.seen, 30.0):
                raise TimeoutError(f"{value!r} was not seen")
        return self.seen[value]

    def close(self) -> None:
        """End."""
        self._is_over = True
        self._thread.join(10.0)
        self._consumer.close()


def watch(client: Any) -> dict[str, float]:
    """When each API was last asked."""
    asked: dict[str, float] = {}

    def see(trace: Any) -> None:
        if trace.kind == "request":
            asked[type(trace.message).__name__] = trace.time

    client.network.watchers.append(see)
    return asked


def ours(servers: str, source: str, target: str, count: int, *, offsets: bool) -> Times:
    """Of a GroupTransactSession."""
    from kcodec.client import GroupTransactSession, Producer

    name, found = uuid.uuid4().hex[:8], []
    options = {"group_id": name, "transactional_id": name, "topics": [source], "linger_ms": 0}
    reader = Reader(servers, target)
    with (
        GroupTransactSession(bootstrap_servers=servers, **options) as session,
        Producer(bootstrap_servers=servers, linger_ms=0) as feeder,
    ):
        asked = watch(session._client)
        for number in range(count):
            value = b"%s-%d" % (name.encode(), number)
            if offsets:
                feeder.send(source, value, partition=0).result()
            block = session.transaction()
            with block as txn:
                while offsets and not txn.poll(0.05):
                    pass
                txn.send(target, value, partition=0)
                begin = time.monotonic()
            ended = time.monotonic()
            found.append(((ended - begin) * 1000, (reader.wait(value) - asked["EndTxnRequest"]) * 1000))
            time.sleep(PAUSE_SECONDS)
    reader.close()
    return found


def producers(servers: str, source: str, target: str, count: int, *, offsets: bool) -> Times:
    """Of a plain transactional producer, without offsets."""
    from kcodec.client import Producer

    name, found = uuid.uuid4().hex[:8], []
    reader = Reader(servers, target)
    with Producer(bootstrap_servers=servers, transactional_id=name, linger_ms=0) as producer:
        asked = watch(producer._client)
        for number in range(count):
            value = b"%s-%d" % (name.encode(), number)
            with producer.transaction() as txn:
                txn.send(target, value, partition=0)
                begin = time.monotonic()
            ended = time.monotonic()
            found.append(((ended - begin) * 1000, (reader.wait(value) - asked["EndTxnRequest"]) * 1000))
            time.sleep(PAUSE_SECONDS)
    reader.close()
    return found


def java(servers: str, source: str, target: str, count: int, *, offsets: bool) -> Times:
    """Of Java's producer and consumer."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from java_judge import class_path, compile_judge, java_and_jars

    program, jars = java_and_jars()
    mode = "offsets" if offsets else "produce"
    command = [str(program), "-Xmx256m", "-cp", f"{compile_judge()}:{class_path(jars)}", "kcodec.clients.CommitTimes"]
    command += [servers, source, target, str(count), mode, uuid.uuid4().hex[:8]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_SECONDS, check=True)
    rows = [tuple(int(number) / 1000 for number in line.split()) for line in run.stdout.splitlines()]
    return [(row[0], row[2]) for row in rows if len(row) == 3]


CONTESTANTS: dict[str, tuple[Callable[..., Times], bool]] = {
    "session, with offsets": (ours, True),
    "Java, with offsets": (java, True),
    "session, produce only": (ours, False),
    "kcodec Producer, produce only": (producers, False),
    "Java, produce only": (java, False),
}


def measure(kafka: Any, rounds: int) -> dict[str, Any]:
    """For bench_session.py."""
    times: dict[str, Times] = {name: [] for name in CONTESTANTS}
    topics = [kafka.create_topic(partitions=1) for _ in range(2)]
    for turn in range(rounds):
        names = list(CONTESTANTS)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            function, offsets = CONTESTANTS[name]
            times[name] += function(kafka.bootstrap_servers, *topics, WARM_UP + EACH, offsets=offsets)[WARM_UP:]
    told: dict[str, Any] = {}
    print(f"{'ms':32} {'end p50':>9} {'p99':>7} {'EndTxn to seen p50':>20} {'p99':>7}")
    for name, found in times.items():
        ends, seen = ([row[at] for row in found] for at in (0, 1))
        row = {"end": _quantiles(ends), "end_txn_to_seen": _quantiles(seen), "transactions": len(found)}
        told[name] = row
        numbers = [row[what][part] for what in ("end", "end_txn_to_seen") for part in ("p50", "p99")]  # type: ignore[index]
        print(f"{name:32} {numbers[0]:9.2f} {numbers[1]:7.2f} {numbers[2]:20.2f} {numbers[3]:7.2f}")
    own, plain = (told[name]["end"]["p50"] for name in ("session, produce only", "kcodec Producer, produce only"))
    told["heartbeat and waits add to a produce-only commit (p50, ms)"] = round(own - plain, 3)
    print(f"the session adds {own - plain:+.2f} ms to a produce-only commit")
    return told


def _quantiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(statistics.median(values), 3), "p99": round(cuts[98], 3)}
