# SPDX-License-Identifier: Apache-2.0
"""Topics of many partitions on a broker that was just started, compared with confluent-kafka.

Usage: python benchmarks/bench_many_partitions.py [--part send,new,poll,admin] [--clients A,B] [--rounds N]
                                                   [--partitions N] [--records N] [--heap 1g] [--json FILE]

send:  elapsed time of `send` for each record until the last acknowledgement, each client at its defaults. Values of
       100 B with a key of 8 bytes. The first pass meets a broker that has none of the partitions open, the second pass
       is the same again from the same producer. Bars: 1.2 times confluent-kafka for each pass.
new:   the same as soon as the controller has created the topic. The broker creates the partitions while records arrive,
       and refuses those that it does not lead yet.
poll:  a new consumer with all partitions assigned at their beginning: from its creation to the first record, and until
       all records were returned. Bar: 1.2 times confluent-kafka for all records. The libraries are imported before,
       here and in `admin`.
admin: a topic created with these partitions until the metadata shows a leader for each (the broker's own time is in
       both), and the metadata of another one by a new client.

Each slice is a process and, in `send` and `new`, also a broker of its own, so that no client meets what another one has
warmed. `cpu` is user and system time of the client's process, `broker` that of the broker during the slice, of both
passes together. Rounds, intervals and other load: `measure`. Requests are reported by the clients: kcodec by
`metrics=`, confluent-kafka by its statistics; only kcodec reports the mean and the longest time of a request.
"confluent-kafka idempotent" has enable.idempotence, which is kcodec's default and Java's, and not confluent-kafka's.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
from measure import Bar, Round, Row

from kcodec.testing import bare_admin

KEYS = 100_000
#: A topic whose partitions the broker leads.
KNOWN = "known"
WORDS = b"order paid shipped returned customer item price euro "
PEER = "confluent-kafka"
CLIENTS = ("kcodec", PEER, f"{PEER} idempotent")
RESULTS = Path(__file__).resolve().parent / "results" / "many-partitions.json"
#: part -> its steps, each with its bar on the elapsed time.
STEPS: dict[str, dict[str, Bar | None]] = {
    "send": {"first pass": Bar(1.2), "second pass": Bar(1.2)},
    "new": {"first pass": None, "second pass": None},
    "poll": {"all records": Bar(1.2)},
    "admin": {"create_topics": None, "metadata": None},
}
UNITS = {"elapsed": "s", "first": "s", "cpu": "s", "broker": "s", "requests": "Produce requests"}
SECONDS = 300
Figures = dict[str, float]


def records_of(count: int) -> list[tuple[bytes, bytes]]:
    """Return values of 100 B that compress like text with numbers, and keys of 8 B."""
    return [((b"%d " % (n * 7919) + WORDS * 2)[:100], b"%08d" % (n * 31 % KEYS)) for n in range(count)]


# One slice, in a separate process.


class Requests:
    """Counts the Produce requests of kcodec and their time (`kcodec.client.Metrics`)."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        pass

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        if name == "request" and labels.get("api") == "ProduceRequest":
            self.seconds.append(seconds)


def timed(work: Callable[[], object]) -> Figures:
    """Return elapsed seconds and processor seconds of this process."""
    processor, began = time.process_time(), time.perf_counter()
    work()
    return {"elapsed": time.perf_counter() - began, "cpu": time.process_time() - processor}


def send_kcodec(servers: str, topic: str, count: int) -> list[Figures]:
    from kcodec.client import Producer

    records, requests, found = records_of(count), Requests(), []
    with Producer(bootstrap_servers=servers, metrics=requests) as producer:

        def run() -> None:
            send = producer.send
            for value, key in records:
                send(topic, value, key)
            producer.flush()  # raises DeliveryErrors for a record that was not acknowledged

        for _ in range(2):
            requests.seconds.clear()
            figures, took = timed(run), requests.seconds
            more = {"requests": len(took), "mean_ms": statistics.mean(took) * 1e3, "longest_ms": max(took) * 1e3}
            found.append(figures | more)
    return found


def send_confluent(servers: str, topic: str, count: int, **settings: object) -> list[Figures]:
    from confluent_kafka import Producer

    latest: dict[str, Any] = {}

    def keep(text: str) -> None:
        latest.update(json.loads(text))

    producer = Producer({"bootstrap.servers": servers, "statistics.interval.ms": 100, "stats_cb": keep} | settings)
    records, found, earlier = records_of(count), [], 0

    def run() -> None:
        produce, poll = producer.produce, producer.poll
        for value, key in records:
            while True:
                try:
                    produce(topic, value, key)
                    break
                except BufferError:
                    poll(0.01)
        if left := producer.flush(SECONDS):
            raise SystemExit(f"{left} records were not acknowledged within {SECONDS} s")

    for _ in range(2):
        figures = timed(run)
        ended = time.monotonic()
        while time.monotonic() < ended + 0.3:  # for the statistics of the last requests
            producer.poll(0.05)
        brokers = [broker for broker in latest["brokers"].values() if broker["nodeid"] >= 0]
        total = sum(broker["req"]["Produce"] for broker in brokers)
        found.append(figures | {"requests": total - earlier})
        earlier = total
    return found


def poll_kcodec(servers: str, topic: str, count: int) -> list[Figures]:
    from kcodec import TopicPartition
    from kcodec.client import Consumer

    first: Figures = {}

    def run() -> None:
        began, left = time.perf_counter(), count
        with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            partitions = consumer.partitions_for(topic)
            consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
            while left > 0:
                left -= len(consumer.poll(1.0))
                first.setdefault("first", time.perf_counter() - began)

    Consumer(bootstrap_servers=servers).close()  # imports what consumers need
    return [timed(run) | first]


def poll_confluent(servers: str, topic: str, count: int) -> list[Figures]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    first: Figures = {}

    def run() -> None:
        began, left = time.perf_counter(), count
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "auto.offset.reset": "earliest"})
        partitions = len(consumer.list_topics(topic).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        while left > 0:
            left -= len(consumer.consume(500, 1.0))
            first.setdefault("first", time.perf_counter() - began)
        consumer.close()

    return [timed(run) | first]


def admin_kcodec(servers: str, topic: str, partitions: int) -> list[Figures]:
    from kcodec.client import Admin, NewTopic

    def create() -> None:
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic(topic, partitions)])

    def look() -> None:
        with Admin(bootstrap_servers=servers) as admin:
            found = admin.describe_topics([KNOWN])[KNOWN]
            if len(found.partitions) != partitions:
                raise SystemExit(f"{len(found.partitions)} partitions are known, expected {partitions}")

    Admin(bootstrap_servers=servers).close()  # imports what an Admin needs
    return [timed(create), timed(look)]


def admin_confluent(servers: str, topic: str, partitions: int) -> list[Figures]:
    from confluent_kafka.admin import AdminClient, NewTopic

    def create() -> None:
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(topic, partitions)])[topic].result()
        while True:  # as create_topics of kcodec does
            found = admin.list_topics(topic).topics[topic].partitions
            if len(found) == partitions and all(one.leader >= 0 for one in found.values()):
                return
            time.sleep(0.05)

    def look() -> None:
        admin = AdminClient({"bootstrap.servers": servers})
        found = admin.list_topics(KNOWN).topics[KNOWN].partitions
        if len(found) != partitions:
            raise SystemExit(f"{len(found)} partitions are known, expected {partitions}")

    return [timed(create), timed(look)]


SLICES: dict[tuple[str, str], Callable[[str, str, int], list[Figures]]] = {
    ("send", "kcodec"): send_kcodec,
    ("send", PEER): send_confluent,
    ("send", f"{PEER} idempotent"): lambda *given: send_confluent(*given, **{"enable.idempotence": True}),
    ("poll", "kcodec"): poll_kcodec,
    ("poll", PEER): poll_confluent,
    ("admin", "kcodec"): admin_kcodec,
    ("admin", PEER): admin_confluent,
}


def child(part: str, client: str, servers: str, topic: str, count: str) -> None:
    print(json.dumps(SLICES[part, client](servers, topic, int(count))), flush=True)
    os._exit(0)  # closing is not measured


# The rounds


def one_slice(kafka: Any, part: str, client: str, topic: str, count: int) -> list[Figures]:
    """Measure in a new process; add the processor time of the broker to each step."""
    before = broker_seconds(kafka)
    found: list[Figures] = measure.run_child(__file__, "--child", part, client, kafka.bootstrap_servers, topic, count)
    spent = broker_seconds(kafka) - before
    return [figures | {"broker": spent} for figures in found]


def broker_seconds(kafka: Any) -> float:
    """Return the processor seconds of the brokers since their start."""
    return sum(measure.tree_seconds(node.pid) for node in kafka.nodes)


def run_send(part: str, client: str, given: argparse.Namespace) -> list[Figures]:
    from kcodec.testing.kafka import ApacheKafka

    with ApacheKafka(heap=given.heap) as kafka:
        create(kafka, KNOWN, given.partitions)
        if part == "send":
            await_leaders(kafka, KNOWN, given.partitions)
        return one_slice(kafka, "send", client, KNOWN, given.records)


def create(kafka: Any, topic: str, partitions: int) -> None:
    from kcodec.client import Admin, NewTopic

    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, partitions)])


def await_leaders(kafka: Any, topic: str, partitions: int) -> None:
    """Wait until the broker leads all partitions. It announces a topic before that."""
    deadline = time.monotonic() + SECONDS
    while not leads_all(kafka, topic, partitions):
        if time.monotonic() > deadline:
            raise SystemExit(f"the broker did not lead {partitions} partitions within {SECONDS} s")
        time.sleep(0.5)


def leads_all(kafka: Any, topic: str, partitions: int) -> bool:
    try:
        return len(bare_admin.end_offsets(kafka.admin_servers, topic, range(partitions))) == partitions
    except bare_admin.BrokerRefused:
        return False


def compared(part: str, clients: list[str], turns: dict[str, Callable[[], list[Figures]]], rounds: int) -> list[Row]:
    """The rows of a part: each step and figure, each client compared with the first confluent-kafka."""
    slices: dict[str, Any] = turns
    found = measure.take_turns(slices, rounds)
    rows = []
    for number, (step, bar) in enumerate(STEPS[part].items()):
        steps = [
            Round({client: figures[number] for client, figures in one.figures.items()}, one.others, one.is_busy)  # type: ignore[index]
            for one in found
        ]
        for client, (figure, unit) in itertools.product(clients, UNITS.items()):
            if client != PEER and all(figure in one.figures[name] for one in steps for name in (client, PEER)):
                own = bar if (client, figure) == ("kcodec", "elapsed") else None
                rows.append(measure.compare(steps, figure, client, PEER, case=step, unit=unit, bar=own))
    measure.print_comparisons(part, rows)
    return rows


def on_one_broker(kafka: Any, parts: list[str], pair: list[str], given: argparse.Namespace) -> dict[str, list[Row]]:
    """The rows of `poll` and `admin`."""
    found: dict[str, list[Row]] = {}
    create(kafka, KNOWN, given.partitions)
    await_leaders(kafka, KNOWN, given.partitions)
    if "poll" in parts:
        one_slice(kafka, "send", "kcodec", KNOWN, given.records)
        arguments = (KNOWN, 2 * given.records)
        turns = {client: functools.partial(one_slice, kafka, "poll", client, *arguments) for client in pair}
        found["poll"] = compared("poll", pair, turns, given.rounds)
    if "admin" in parts:
        names = (f"created-{number}" for number in itertools.count())

        def administer(client: str) -> list[Figures]:
            topic = next(names)
            figures = one_slice(kafka, "admin", client, topic, given.partitions)
            await_leaders(kafka, topic, given.partitions)  # the next slice must not wait for it
            return figures

        turns = {client: functools.partial(administer, client) for client in pair}
        found["admin"] = compared("admin", pair, turns, given.rounds)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="send,new,poll,admin")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=1500)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--heap", default="1g", help="of the broker (Kafka's own default)")
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    parts, clients, load = given.part.split(","), given.clients.split(","), os.getloadavg()[0]
    found: dict[str, list[Row]] = {}
    for part in ("send", "new"):
        if part in parts:
            turns = {client: functools.partial(run_send, part, client, given) for client in clients}
            found[part] = compared(part, clients, turns, given.rounds)
    pair = [client for client in clients if ("poll", client) in SLICES]
    if {"poll", "admin"} & set(parts):
        with ApacheKafka(heap=given.heap) as kafka:
            found |= on_one_broker(kafka, parts, pair, given)
    options = {name: getattr(given, name) for name in ("clients", "rounds", "partitions", "records", "heap")}
    measure.save(given.json, found, options, load, unit="seconds unless named")


if __name__ == "__main__":
    main()
