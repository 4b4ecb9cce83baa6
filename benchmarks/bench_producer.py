# SPDX-License-Identifier: Apache-2.0
"""Producing to a real Apache Kafka on this machine: processor time a record, and what idempotence costs.

Usage: python benchmarks/bench_producer.py [--part cpu,guarantees] [--rounds N] [--records N] [--json FILE]

cpu:        user and system time of the producing process, from an Arrow table in memory to the last acknowledgement,
            acks=all, idempotent. kcodec by send_arrow and by send; confluent-kafka and aiokafka by a call a record, as
            they have no other API; confluent-kafka without delivery reports, which cost it more. Bar: confluent-kafka
            takes at least twice as long as send_arrow (0.5).
guarantees: records a second of 1 KiB, idempotent against plain, both acks=all and each at its best; and the same of
            Java's producer (ProducerPerformance). Bar: at least 0.97.

A slice of `cpu` is a process, warmed by a tenth of its records; in `guarantees` the two producers are in one process.
Shapes: a = 100 B values, k = the same with 8 B keys, b = 1 KiB values. Rounds, intervals and other load: `measure`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
from measure import Bar, Row

BAR_OF_CONFLUENT, BAR_IDEMPOTENT = Bar(0.5), Bar(0.97, is_least=True)
CODECS = ("none", "lz4")
SHAPES = {"a": (100, False), "k": (100, True), "b": (1024, False)}
CONTESTANTS = ("kcodec send_arrow", "kcodec send", "confluent-kafka", "aiokafka")
PARTITIONS = 3
JAVA_CLASS = "org.apache.kafka.tools.ProducerPerformance"
RESULTS = Path(__file__).resolve().parent / "results" / "producer.json"


def make_table(shape: str, records: int) -> Any:
    """Return a table with values that compress like text with numbers."""
    import pyarrow

    size, with_keys = SHAPES[shape]
    words = b"order paid shipped returned customer item price euro "
    values = [(b"%d " % (number * 7919) + words * (size // 50 + 1))[:size] for number in range(records)]
    columns = {"value": pyarrow.array(values, pyarrow.binary())}
    if with_keys:
        columns["key"] = pyarrow.array([b"%08d" % (number * 31 % 100_000) for number in range(records)])
    return pyarrow.table(columns)


# One slice, in a separate process.


def columns_of(table: Any) -> tuple[list[bytes], list[bytes | None]]:
    values = table["value"].to_pylist()
    return values, table["key"].to_pylist() if "key" in table.column_names else [None] * len(values)


def kcodec_producer(servers: str, codec: str, **options: Any) -> Any:
    from kcodec.client import Producer

    return Producer(bootstrap_servers=servers, compression_type=codec, **options)


def by_send_arrow(servers: str, topic: str, codec: str, **options: Any) -> Callable[[Any], None]:
    producer = kcodec_producer(servers, codec, **options)
    return lambda table: producer.send_arrow(topic, table).result()


def by_send(servers: str, topic: str, codec: str, **options: Any) -> Callable[[Any], None]:
    producer = kcodec_producer(servers, codec, **options)

    def run(table: Any) -> None:
        send = producer.send
        for value, key in zip(*columns_of(table), strict=True):
            delivery = send(topic, value, key)
        producer.flush()
        delivery.result()

    return run


def by_confluent(servers: str, topic: str, codec: str, **options: Any) -> Callable[[Any], None]:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": servers, "compression.type": codec, "acks": "all", "enable.idempotence": True}
    producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000, "linger.ms": 5, **options})

    def run(table: Any) -> None:
        produce = producer.produce
        for value, key in zip(*columns_of(table), strict=True):
            produce(topic, value, key)
        if producer.flush(60):
            raise SystemExit("confluent-kafka left records behind")

    return run


def by_aiokafka(servers: str, topic: str, codec: str, **options: Any) -> Callable[[Any], None]:
    from aiokafka import AIOKafkaProducer

    loop = asyncio.new_event_loop()
    compression = None if codec == "none" else codec

    async def start() -> Any:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers, compression_type=compression, enable_idempotence=True, linger_ms=5, **options
        )
        await producer.start()
        return producer

    producer = loop.run_until_complete(start())

    async def run(table: Any) -> None:
        for value, key in zip(*columns_of(table), strict=True):
            await producer.send(topic, value, key)
        await producer.flush()

    return lambda table: loop.run_until_complete(run(table))


MAKERS = dict(zip(CONTESTANTS, (by_send_arrow, by_send, by_confluent, by_aiokafka), strict=True))


def child(arguments: list[str]) -> None:
    """Warm up, measure one slice, and print processor and elapsed time."""
    who, servers, topic, codec, shape, records, options = arguments
    table = make_table(shape, int(records))
    run = MAKERS[who](servers, topic, codec, **json.loads(options))
    run(table.slice(0, len(table) // 10))
    cpu, wall = time.process_time(), time.perf_counter()
    run(table)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu": cpu / len(table) * 1e9, "wall": wall / len(table) * 1e9}), flush=True)
    os._exit(0)  # closing is not measured


def slice_of(kafka: Any, who: str, codec: str, shape: str, records: int) -> dict[str, float]:
    """Measure one slice in a new process, with a new topic."""
    topic = kafka.create_topic(partitions=PARTITIONS)
    arguments = (who, kafka.bootstrap_servers, topic, codec, shape, records, "{}")
    found: dict[str, float] = measure.run_child(__file__, "--child", *arguments)
    return found


def pair(arguments: list[str]) -> None:
    """Run the idempotent and the plain producer alternately, and print the rounds."""
    who, servers, idempotent_topic, plain_topic, records, rounds = arguments
    table = make_table("b", int(records))
    runs = {
        "idempotent": MAKERS[who](servers, idempotent_topic, "none"),
        "plain": MAKERS[who](servers, plain_topic, "none", acks="all", enable_idempotence=False),
    }

    def rate(run: Callable[[Any], None]) -> dict[str, float]:
        begin = time.perf_counter()
        run(table)
        return {"rate": len(table) / (time.perf_counter() - begin)}

    turns = {name: functools.partial(rate, run) for name, run in runs.items()}
    print(json.dumps([one.figures for one in measure.take_turns(turns, int(rounds), warm_up=1)]), flush=True)
    os._exit(0)


# The parts


def measure_cpu(kafka: Any, rounds: int, records: int) -> list[Row]:
    rows = []
    for shape in SHAPES:
        for codec in CODECS:
            turns = {
                who: functools.partial(slice_of, kafka, who, codec, shape, records // (5 if who == "aiokafka" else 1))
                for who in CONTESTANTS
            }
            found = measure.take_turns(turns, rounds)
            for who, peer in itertools.product(CONTESTANTS[:2], CONTESTANTS[2:]):
                bar = BAR_OF_CONFLUENT if (who, peer) == (CONTESTANTS[0], CONTESTANTS[2]) else None
                row = measure.compare(found, "cpu", who, peer, case=f"{shape}, {codec}", unit="ns a record", bar=bar)
                rows.append({"shape": shape, "codec": codec} | row)
                print(f"{row['case']}, {who} / {peer}: {measure.value_text(row)}", flush=True)
    return rows


def java_rate(kafka: Any, topic: str, idempotent: bool, records: int) -> float:
    """Return the records per second of Java's producer, as its own tool reports them, without the first fifth."""
    from kcodec.testing.java import find_java

    jars = Path(__file__).resolve().parent.parent / ".cache" / "kafka-tools" / "*"
    properties = [
        f"bootstrap.servers={kafka.bootstrap_servers}",
        "acks=all",
        f"enable.idempotence={idempotent}".lower(),
    ]
    command = [str(find_java()), "-Xmx256m", "-cp", str(jars), JAVA_CLASS, "--topic", topic, "--throughput", "-1"]
    command += ["--num-records", str(records), "--record-size", "1024", "--warmup-records", str(records // 5)]
    done = subprocess.run([*command, "--producer-props", *properties], capture_output=True, text=True, timeout=300)
    rates = re.findall(r"records sent, ([0-9.]+) records/sec", done.stdout)
    if not rates:
        raise SystemExit(f"{JAVA_CLASS} said nothing: {done.stdout[-500:]} {done.stderr[-500:]}")
    return float(rates[-1])


def measure_guarantees(kafka: Any, rounds: int, records: int) -> list[Row]:
    """Measure the records per second of idempotent and plain producers."""
    rows = []
    for who in ("kcodec send_arrow", "kcodec send", "Java"):
        topics = [kafka.create_topic(partitions=PARTITIONS) for _ in range(2)]

        def java(topic: str, idempotent: bool) -> dict[str, float]:
            return {"rate": java_rate(kafka, topic, idempotent, records)}

        if who == "Java":
            turns = {
                "idempotent": functools.partial(java, topics[0], True),
                "plain": functools.partial(java, topics[1], False),
            }
            found = measure.take_turns(turns, rounds, others_may=measure.TOO_BUSY_FOR_TWO)
        else:
            arguments = ("--pair", who, kafka.bootstrap_servers, *topics, records, rounds)
            load = measure.OtherLoad()
            made = measure.run_child(__file__, *arguments)
            others = load.cores()  # measured over all rounds, because the child cannot measure the broker's load
            found = [measure.Round(one, others, others > measure.TOO_BUSY_FOR_TWO) for one in made]
        named = {"case": f"{who}, 1 KiB", "unit": "records a second"}
        bar = None if who == "Java" else BAR_IDEMPOTENT
        rows.append(measure.compare(found, "rate", "idempotent", "plain", bar=bar, **named))
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    if sys.argv[1:2] == ["--pair"]:
        pair(sys.argv[2:])
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="cpu,guarantees")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    load, found = os.getloadavg()[0], {}
    with ApacheKafka() as kafka:
        if "cpu" in given.part:
            found["cpu"] = measure_cpu(kafka, given.rounds, given.records)
        if "guarantees" in given.part:
            found["guarantees"] = measure_guarantees(kafka, given.rounds, given.records)
    for name, rows in found.items():
        measure.print_comparisons(name, rows)
    measure.save(given.json, found, {"rounds": given.rounds, "records": given.records}, load)


if __name__ == "__main__":
    main()
