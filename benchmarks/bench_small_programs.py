# SPDX-License-Identifier: Apache-2.0
"""Small ordinary programs, compared with confluent-kafka: what single records, single requests and threads cost.

Usage: python benchmarks/bench_small_programs.py [--part NAME,...] [--rounds N] [--heap 1g] [--json FILE]

round-trip: send one record with linger_ms=0 and poll until it is there, 1,000 times, in one thread.
paced:      send records of 100 B with keys to six partitions, 2,000 a second, for 5 s.
trickle:    poll a topic that gets 500 records a second from another process, 2,500 records. Its latency is from
            `send` there to the return of `poll` here; both processes have the same clock.
threads:    each of eight threads sends 40,000 records of 100 B through the same producer.
topics:     send 200,000 records of 100 B to 100 topics in turn.
commit:     poll up to 100 records and commit their offsets, 300 times.
large:      send 300 records of 900,000 random bytes.
poll-one:   poll 300,000 records one by one.

Each client has its default options, except for those named above. Each measurement is a new process; all use the same
broker. `cpu` is user and system
time of the process, `elapsed` and `latency` (the median) in seconds. The import, and the creation of the client, are
not measured. There is no bar: the figures show where Python between two requests costs more than librdkafka's C.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import measure
from measure import Row

PEER = "confluent-kafka"
CLIENTS = ("kcodec", PEER)
RESULTS = Path(__file__).resolve().parent / "results" / "small-programs.json"
UNITS = {"elapsed": "s", "cpu": "s", "latency": "s"}
VALUE = b"x" * 100
TOPICS = 100
Figures = dict[str, float]
Send = Callable[..., object]
Poll = Callable[[], list[float]]


class Client:
    """The calls of one library that the programs need. `poll` returns the values of records; only `trickle` reads
    them, as times."""

    def __init__(self, name: str, servers: str) -> None:
        self.is_ours = name == "kcodec"
        self.servers = servers

    def producer(self, **options: object) -> tuple[Send, Callable[[], object]]:
        """Return `send` (topic, value, key), which waits while the buffer is full, and `flush`."""
        if self.is_ours:
            from kcodec.client import Producer

            ours = Producer(bootstrap_servers=self.servers, **options)  # type: ignore[arg-type]
            return ours.send, ours.flush
        from confluent_kafka import Producer as Theirs

        named = {name.replace("_", "."): value for name, value in options.items()}
        theirs = Theirs({"bootstrap.servers": self.servers, **named})
        produce, poll, numbers = theirs.produce, theirs.poll, itertools.count()

        def send(topic: str, value: bytes, key: bytes | None = None) -> None:
            while True:
                try:
                    produce(topic, value, key)
                    break
                except BufferError:
                    poll(0.01)
            if not next(numbers) % 1000:
                poll(0)

        return send, theirs.flush

    def consumer(self, topic: str, most: int = 500, **options: object) -> tuple[Callable[[], list[Any]], Any]:
        """Subscribe with a new group; return `poll`, which waits for up to a second, and `commit`."""
        group = f"small-{os.urandom(6).hex()}"
        if self.is_ours:
            from kcodec.client import Consumer

            ours = Consumer(
                bootstrap_servers=self.servers, group_id=group, auto_offset_reset="earliest",
                max_poll_records=most, **options,  # type: ignore[arg-type]
            )  # fmt: skip
            ours.subscribe([topic])
            return (lambda: [record.value for record in ours.poll(1.0)]), ours.commit
        from confluent_kafka import Consumer as Theirs

        named = {name.replace("_", "."): value for name, value in options.items()}
        config = {"bootstrap.servers": self.servers, "group.id": group, "auto.offset.reset": "earliest", **named}
        theirs = Theirs(config)
        theirs.subscribe([topic])

        def poll() -> list[Any]:
            if most > 1:
                return [record.value() for record in theirs.consume(most, 1.0)]
            record = theirs.poll(1.0)
            return [] if record is None else [record.value()]

        return poll, lambda: theirs.commit(asynchronous=False)

    def one_by_one(self, topic: str) -> Callable[[], object]:
        """Subscribe with a new group; return what polls one record, None if there is none for a second."""
        group = f"small-{os.urandom(6).hex()}"
        if self.is_ours:
            from kcodec.client import Consumer

            ours = Consumer(bootstrap_servers=self.servers, group_id=group, auto_offset_reset="earliest")
            ours.subscribe([topic])
            return lambda: (record := ours.poll_one(1.0)) and record.value
        from confluent_kafka import Consumer as Theirs

        theirs = Theirs({"bootstrap.servers": self.servers, "group.id": group, "auto.offset.reset": "earliest"})
        theirs.subscribe([topic])
        return lambda: (record := theirs.poll(1.0)) and record.value()


class Clock:
    """Elapsed and processor time since its creation."""

    def __init__(self) -> None:
        self._processor, self._began = time.process_time(), time.perf_counter()

    def figures(self, **more: float) -> Figures:
        elapsed, cpu = time.perf_counter() - self._began, time.process_time() - self._processor
        return {"elapsed": elapsed, "cpu": cpu, **more}


def polled(poll: Callable[[], list[Any]], count: int) -> Iterator[list[Any]]:
    """Poll until this many records have come; yield what each poll returned."""
    while count > 0:
        found = poll()
        count -= len(found)
        if found:
            yield found


def paces(count: int, rate: float) -> Iterator[int]:
    """Yield the numbers below `count`, at `rate` numbers a second."""
    began = time.perf_counter()
    for number in range(count):
        left = began + number / rate - time.perf_counter()
        if left > 0:
            time.sleep(left)
        yield number


# The programs. `topic` is new and empty. PARTITIONS has its number of partitions; the default is 1.


def round_trip(client: Client, topic: str) -> Figures:
    send, _ = client.producer(linger_ms=0)
    poll, _ = client.consumer(topic, 1)
    send(topic, b"first")
    next(polled(poll, 1))
    seconds, clock = [], Clock()
    for _ in range(1000):
        began = time.perf_counter()
        send(topic, VALUE)
        next(polled(poll, 1))
        seconds.append(time.perf_counter() - began)
    return clock.figures(latency=statistics.median(seconds))


def paced(client: Client, topic: str) -> Figures:
    send, flush = client.producer()
    send(topic, VALUE)
    flush()
    clock = Clock()
    for number in paces(10_000, 2000):
        send(topic, VALUE, b"%d" % number)
    flush()
    return clock.figures()


WRITER = """
import sys, time
from confluent_kafka import Producer
servers, topic = sys.argv[1:]
producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
producer.produce(topic, b"0")
producer.flush()
print("begun", flush=True)
input()
began = time.time()
for number in range(2500):
    time.sleep(max(began + number / 500 - time.time(), 0))
    producer.produce(topic, b"%f" % time.time())
    producer.poll(0)
producer.flush()
"""


def trickle(client: Client, topic: str) -> Figures:
    poll, _ = client.consumer(topic, 1 if not client.is_ours else 500)
    with Popen([sys.executable, "-c", WRITER, client.servers, topic], stdin=PIPE, stdout=PIPE, text=True) as writer:
        assert writer.stdin is not None and writer.stdout is not None
        writer.stdout.readline()
        next(polled(poll, 1))
        clock, seconds = Clock(), []
        print(file=writer.stdin, flush=True)
        for found in polled(poll, 2500):
            now = time.time()
            seconds += [now - float(value) for value in found]
        return clock.figures(latency=statistics.median(seconds))


def threads(client: Client, topic: str) -> Figures:
    send, flush = client.producer()

    def work() -> None:
        for number in range(40_000):
            send(topic, VALUE, b"%d" % number)

    clock = Clock()
    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    flush()
    return clock.figures()


def topics(client: Client, topic: str) -> Figures:
    send, flush = client.producer()
    names = [f"many-{number}" for number in range(TOPICS)]
    clock = Clock()
    for number in range(200_000):
        send(names[number % TOPICS], VALUE)
    flush()
    return clock.figures()


def commit(client: Client, topic: str) -> Figures:
    poll, commit_now = client.consumer("filled", 100, enable_auto_commit=False)
    next(polled(poll, 1))
    clock = Clock()
    for _ in range(300):
        next(polled(poll, 1))
        commit_now()
    return clock.figures()


def large(client: Client, topic: str) -> Figures:
    send, flush = client.producer()
    value = os.urandom(900_000)
    clock = Clock()
    for _ in range(300):
        send(topic, value)
    flush()
    return clock.figures()


def poll_one(client: Client, topic: str) -> Figures:
    poll = client.one_by_one("filled")
    while poll() is None:
        pass
    clock, left = Clock(), 300_000 - 1
    while left:
        left -= poll() is not None
    return clock.figures()


PROGRAMS: dict[str, Callable[[Client, str], Figures]] = {
    "round-trip": round_trip,
    "paced": paced,
    "trickle": trickle,
    "threads": threads,
    "topics": topics,
    "commit": commit,
    "large": large,
    "poll-one": poll_one,
}
PARTITIONS = {"paced": 6, "threads": 6, "large": 3}


def child(part: str, client: str, servers: str, topic: str) -> None:
    print(json.dumps(PROGRAMS[part](Client(client, servers), topic)), flush=True)
    os._exit(0)  # closing is not measured


def one_slice(kafka: Any, part: str, client: str) -> Figures:
    """Measure a program in a new process, on a new topic."""
    topic = kafka.create_topic(partitions=PARTITIONS.get(part, 1))
    found: Figures = measure.run_child(__file__, "--child", part, client, kafka.bootstrap_servers, topic)
    return found


def prepare(kafka: Any) -> None:
    """Create the shared topics, and write 300,000 records to `filled`."""
    for number in range(TOPICS):
        kafka.create_topic(f"many-{number}")
    kafka.create_topic("filled", partitions=3)
    send, flush = Client("kcodec", kafka.bootstrap_servers).producer()
    for number in range(300_000):
        send("filled", VALUE, b"%d" % number)
    flush()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default=",".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default="1g", help="of the broker (Kafka's own default)")
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    load, found = os.getloadavg()[0], dict[str, list[Row]]()
    with ApacheKafka(heap=given.heap) as kafka:
        prepare(kafka)
        for part in given.part.split(","):
            turns = {client: functools.partial(one_slice, kafka, part, client) for client in CLIENTS}
            rounds = measure.take_turns(turns, given.rounds)
            found[part] = [
                measure.compare(rounds, figure, "kcodec", PEER, case=part, unit=unit)
                for figure, unit in UNITS.items()
                if all(figure in one.figures["kcodec"] for one in rounds)
            ]
            measure.print_comparisons(part, found[part])
    options = {name: getattr(given, name) for name in ("rounds", "heap")}
    measure.save(given.json, found, options, load, unit="seconds unless named")


if __name__ == "__main__":
    main()
