# SPDX-License-Identifier: Apache-2.0
"""The same program on confluent_kafka and on kcodec.compat.confluent, with a real Apache Kafka on this machine.

Usage: python benchmarks/bench_facade.py [--part produce,poll] [--settings default,equal] [--rounds N] [--records N]
                                         [--servers HOST:PORT] [--json FILE]

produce: produce() and poll(0) for each record, and flush(). "reports" has a callback for each record, which looks at
         the error, "no reports" has none; keys: 8 B for each record.
poll:    poll() for one message at a time, and consume(500); of each message the error, the offset and the value.
         Messages are compressed with lz4.

The figure is user and system time of the process. A slice is a process that begins with a tenth of its records. The
bar: the facade takes at most 1.25 times the time of confluent_kafka, which is 0.8 of its speed. Settings "default" are
those of each client: librdkafka then produces without idempotence and does not check CRCs, and the facade does both.
Settings "equal": both are idempotent, or check CRCs. Rounds, intervals and other load: `measure`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
from measure import Bar, Row

BAR = Bar(1.25)
FACADE, ORIGINAL = "kcodec.compat.confluent", "confluent_kafka"
PRODUCING = ("no reports", "reports", "keys and reports")
POLLING = ("poll", "consume")
SETTINGS = ("default", "equal")
SIZE, PARTITIONS, AT_ONCE = 100, 3, 500
RESULTS = Path(__file__).resolve().parent / "results" / "facade.json"


def clients(who: str) -> Any:
    """Return the module that has Producer and Consumer."""
    if who == FACADE:
        import kcodec.compat.confluent as facade

        return facade
    import confluent_kafka

    return confluent_kafka


def values(records: int) -> list[bytes]:
    """Return values that compress like text with numbers."""
    words = b"order paid shipped returned customer item price euro "
    return [(b"%d " % (number * 7919) + words * (SIZE // 50 + 1))[:SIZE] for number in range(records)]


# One slice, in a separate process. A maker returns a function that writes or reads a number of records.


def producing(who: str, servers: str, topic: str, case: str, settings: str) -> Callable[[int], None]:
    equal = {"enable.idempotence": True, "acks": "all", "linger.ms": 5} if settings == "equal" else {}
    producer = clients(who).Producer({"bootstrap.servers": servers, **equal})
    failed: list[Any] = []

    def report(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    def run(count: int) -> None:
        produce, poll = producer.produce, producer.poll
        callback = None if case == "no reports" else report
        for number, value in enumerate(values(count)):
            key = b"%08d" % (number * 31 % 100_000) if case == "keys and reports" else None
            while True:
                try:
                    produce(topic, value, key, callback=callback)
                    break
                except BufferError:
                    poll(0.1)
            poll(0)
        if producer.flush(60) or failed:
            raise SystemExit(f"{who} left records behind: {failed[:1]}")

    return run


def polling(who: str, servers: str, topic: str, case: str, settings: str) -> Callable[[int], None]:
    from confluent_kafka import TopicPartition

    equal = {"check.crcs": True} if settings == "equal" else {}
    consumer = clients(who).Consumer(
        {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False, **equal}
    )

    def poll(count: int) -> int:
        seen, take = 0, consumer.poll
        while count > 0:
            message = take(1.0)
            if message is not None:
                if message.error() is not None:
                    raise SystemExit(f"{who}: {message.error()}")
                seen += len(message.value()) + message.offset()
                count -= 1
        return seen

    def consume(count: int) -> int:
        seen = 0
        while count > 0:
            messages = consumer.consume(min(AT_ONCE, count), 0.2)
            for message in messages:
                if message.error() is not None:
                    raise SystemExit(f"{who}: {message.error()}")
                seen += len(message.value()) + message.offset()
            count -= len(messages)
        return seen

    def run(count: int) -> None:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        (poll if case == "poll" else consume)(count)

    return run


def child(arguments: list[str]) -> None:
    """Warm up, measure one slice, and print processor and elapsed time."""
    who, servers, topic, case, settings, records = arguments
    count = int(records)
    run = (producing if case in PRODUCING else polling)(who, servers, topic, case, settings)
    run(count // 10)
    cpu, wall = time.process_time(), time.perf_counter()
    run(count)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu": cpu / count * 1e9, "rate": count / wall}), flush=True)
    os._exit(0)  # closing is not measured


# The parts


def fill(servers: str, topic: str, records: int) -> None:
    """Write the topic that the part `poll` reads."""
    import pyarrow

    from kcodec.client import Producer

    table = pyarrow.table({"value": pyarrow.array(values(records), pyarrow.binary())})
    with Producer(bootstrap_servers=servers, compression_type="lz4") as producer:
        producer.send_arrow(topic, table).result()


def compare(servers: str, new_topic: Callable[[], str], cases: tuple[str, ...], given: argparse.Namespace) -> list[Row]:
    rows = []
    read_topic = new_topic()
    if cases == POLLING:
        fill(servers, read_topic, given.records)
    for case in cases:
        for settings in given.settings.split(","):

            def one_slice(who: str, case: str = case, settings: str = settings) -> Any:
                topic = read_topic if case in POLLING else new_topic()
                return measure.run_child(__file__, "--child", who, servers, topic, case, settings, given.records)

            turns = {who: functools.partial(one_slice, who) for who in (FACADE, ORIGINAL)}
            found = measure.take_turns(turns, given.rounds)
            named = {"case": f"{case}, {settings} settings", "unit": "ns a record"}
            row = measure.compare(found, "cpu", FACADE, ORIGINAL, bar=BAR, **named)
            rows.append(row)
            print(f"{row['case']}, {FACADE} / {ORIGINAL}: {measure.value_text(row)}", flush=True)
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="produce,poll")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--servers", help="a broker that is running; without it, an Apache Kafka is started")
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    load, found = os.getloadavg()[0], {}
    with contextlib.ExitStack() as stack:
        servers, new_topic = given.servers, topics_of(given.servers)
        if servers is None:
            from kcodec.testing.kafka import ApacheKafka

            kafka = stack.enter_context(ApacheKafka())
            servers, new_topic = kafka.bootstrap_servers, functools.partial(kafka.create_topic, partitions=PARTITIONS)
        for part, cases in (("produce", PRODUCING), ("poll", POLLING)):
            if part in given.part.split(","):
                found[part] = compare(servers, new_topic, cases, given)
    for name, rows in found.items():
        measure.print_comparisons(name, rows)
    measure.save(given.json, found, {"rounds": given.rounds, "records": given.records}, load)


def topics_of(servers: str | None) -> Callable[[], str]:
    """Return a function that creates a topic at this broker."""

    def create() -> str:
        from kcodec.client import Admin, NewTopic

        name = f"facade-{time.time_ns()}"
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic(name, PARTITIONS, 1)])
        return name

    return create


if __name__ == "__main__":
    main()
