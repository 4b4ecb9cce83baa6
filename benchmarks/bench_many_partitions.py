# SPDX-License-Identifier: Apache-2.0
"""Topics of many partitions on a broker that was just started, compared with confluent-kafka.

Usage: python benchmarks/bench_many_partitions.py [--part send,poll,admin] [--clients A,B] [--rounds N]
                                                   [--partitions N] [--records N] [--heap 1g] [--json FILE]

send:  elapsed time of `send` for each record until the last acknowledgement, each client at its defaults. Values of
       100 B with a key of 8 bytes. The first pass meets a broker that has none of the partitions open, the second pass
       is the same again from the same producer. Bars: 1.2 times confluent-kafka for each pass.
poll:  a new consumer with all partitions assigned at their beginning: from its creation to the first record, and until
       all records were returned.
admin: a topic created with these partitions (the broker's own time is in both), and the metadata of the topic by a new
       client.

Each slice is a process and, in `send`, also a broker of its own, so that no client meets what another one has warmed.
A round is one slice of each client; which one begins changes with each round. Shown are the medians of the rounds, and
the ratio to the first confluent-kafka of `--clients` as the median (least to largest) of the rounds' ratios. `CPU` is
user and system time of the client's process, `broker` that of the broker during the slice. Requests and their mean and
longest time are reported by the clients: kcodec by `metrics=`, confluent-kafka by its statistics (`rtt`).
"confluent-kafka idempotent" has enable.idempotence, which is kcodec's default and Java's, and not confluent-kafka's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

KEYS = 100_000
WORDS = b"order paid shipped returned customer item price euro "
PEER = "confluent-kafka"
CLIENTS = ("kcodec", PEER, f"{PEER} idempotent")
BAR = 1.2
SECONDS = 300
Figures = dict[str, float]


def records_of(count: int) -> list[tuple[bytes, bytes]]:
    """Values of 100 B that compress as text with numbers in it does, and keys of 8 B."""
    return [((b"%d " % (n * 7919) + WORDS * 2)[:100], b"%08d" % (n * 31 % KEYS)) for n in range(count)]


# One slice, in a process of its own


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
    """Elapsed seconds and processor seconds of this process."""
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
    from kcodec.client import Consumer, TopicPartition

    first: Figures = {}

    def run() -> None:
        began, left = time.perf_counter(), count
        with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            partitions = len(consumer.partitions_for(topic))
            consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
            while left > 0:
                left -= len(consumer.poll(1.0))
                first.setdefault("first", time.perf_counter() - began)

    return [timed(run) | first]


def poll_confluent(servers: str, topic: str, count: int) -> list[Figures]:
    from confluent_kafka import Consumer, TopicPartition

    first: Figures = {}

    def run() -> None:
        began, left = time.perf_counter(), count
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "auto.offset.reset": "earliest"})
        partitions = len(consumer.list_topics(topic).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        while left > 0:
            left -= len(consumer.consume(500, 1.0))
            first.setdefault("first", time.perf_counter() - began)
        consumer.close()

    return [timed(run) | first]


def admin_kcodec(servers: str, topic: str, partitions: int) -> list[Figures]:
    from kcodec.client import Admin

    def create() -> None:
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([(topic, partitions)])

    def look() -> None:
        with Admin(bootstrap_servers=servers) as admin:
            found = admin.describe_topics([topic])[topic]
            if len(found.partitions) != partitions:
                raise SystemExit(f"{len(found.partitions)} partitions are known, expected {partitions}")

    return [timed(create), timed(look)]


def admin_confluent(servers: str, topic: str, partitions: int) -> list[Figures]:
    from confluent_kafka.admin import AdminClient, NewTopic

    def create() -> None:
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(topic, partitions)])[topic].result()

    def look() -> None:
        admin = AdminClient({"bootstrap.servers": servers})
        found = admin.list_topics(topic).topics[topic].partitions
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
    os._exit(0)  # what closing costs is not measured


# The rounds


def broker_seconds(kafka: Any) -> float:
    """Processor seconds of the brokers since they began."""
    stats = [Path(f"/proc/{node.pid}/stat").read_text().rsplit(")", 1)[1].split() for node in kafka.nodes]
    return sum(int(field) for fields in stats for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")


def one_slice(kafka: Any, part: str, client: str, topic: str, count: int) -> list[Figures]:
    """Measure in a new process; add the processor time of the broker and the cores that other processes used."""
    began, busy, broker, own = time.perf_counter(), measure.busy_seconds(), broker_seconds(kafka), os.times()
    arguments = [sys.executable, __file__, "--child", part, client, kafka.bootstrap_servers, topic, str(count)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    if done.returncode or not done.stdout:
        raise SystemExit(f"{part} of {client}: {done.stdout}{done.stderr}")
    broker, now = broker_seconds(kafka) - broker, os.times()
    others = measure.busy_seconds() - busy - broker - (sum(now[:4]) - sum(own[:4]))
    found: list[Figures] = json.loads(done.stdout)
    more = {"broker": broker, "others": max(0.0, others / (time.perf_counter() - began))}
    return [figures | more for figures in found]


def run_send(client: str, given: argparse.Namespace) -> list[Figures]:
    from kcodec.testing.kafka import ApacheKafka

    with ApacheKafka(heap=given.heap) as kafka:
        topic = kafka.create_topic(partitions=given.partitions)
        return one_slice(kafka, "send", client, topic, given.records)


def rows_of(part: str, names: tuple[str, ...], slices: dict[str, list[list[Figures]]]) -> list[dict[str, Any]]:
    """One row for each client and step: the medians, and the ratio of the elapsed time to that of the peer."""
    rows = []
    for step, name in enumerate(names):
        for client, rounds in slices.items():
            mine = [one[step] for one in rounds]
            row: dict[str, Any] = {"step": name, "client": client}
            row |= {figure: statistics.median(one[figure] for one in mine) for figure in mine[0]}
            if client != PEER:
                peers = [one[step]["elapsed"] for one in slices[PEER]]
                ratios = sorted(one["elapsed"] / peer for one, peer in zip(mine, peers, strict=True))
                row["ratio"], row["least"], row["largest"] = statistics.median(ratios), ratios[0], ratios[-1]
            if client == "kcodec":
                row["bar"] = row["ratio"] <= BAR
            rows.append({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    figures = ("elapsed", "first", "cpu", "broker", "requests", "mean_ms", "longest_ms", "others")
    shown = ("step", "client", *(name for name in figures if any(name in row for row in rows)))
    measure.print_table(f"{part}: seconds unless named", rows, (*shown, "ratio", "least", "largest", "bar"))
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="send,poll,admin")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=1500)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--heap", default="1g", help="of the broker (Kafka's own default)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    parts, clients, load = given.part.split(","), given.clients.split(","), os.getloadavg()[0]
    found: dict[str, Any] = {}
    if "send" in parts:
        slices: dict[str, list[list[Figures]]] = {client: [] for client in clients}
        for turn in range(given.rounds):
            for client in clients[turn % len(clients) :] + clients[: turn % len(clients)]:
                slices[client].append(run_send(client, given))
        found["send"] = {"rows": rows_of("send", ("first pass", "second pass"), slices), "slices": slices}
    pair = [client for client in clients if ("poll", client) in SLICES]
    with ApacheKafka(heap=given.heap) as kafka:
        for part, names in (("poll", ("all records",)), ("admin", ("create_topics", "metadata"))):
            if part not in parts:
                continue
            topic, count = "", given.partitions
            if part == "poll":
                topic, count = kafka.create_topic(partitions=given.partitions), 2 * given.records
                one_slice(kafka, "send", "kcodec", topic, given.records)
            slices = {client: [] for client in pair}
            for turn in range(given.rounds):
                for client in pair[turn % len(pair) :] + pair[: turn % len(pair)]:
                    name = topic or f"created-{turn}-{pair.index(client)}"
                    slices[client].append(one_slice(kafka, part, client, name, count))
            found[part] = {"rows": rows_of(part, names, slices), "slices": slices}
    if given.json is not None:
        options = {name: getattr(given, name) for name in ("clients", "rounds", "partitions", "records", "heap")}
        result = measure.report(found, options, (load, os.getloadavg()[0])) | {"unit": "seconds unless named"}
        measure.write_json(given.json, result)


if __name__ == "__main__":
    main()
