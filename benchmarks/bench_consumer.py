# SPDX-License-Identifier: Apache-2.0
"""Consuming from a real Apache Kafka on this machine: processor time a record, records a second, read_committed.

Usage: python benchmarks/bench_consumer.py [--part arrow,poll,isolation,iteration,metrics] [--rounds N] [--records N]
                                            [--json FILE]

arrow:     user and system time of the consuming process, from the broker to pyarrow batches. kcodec by poll_arrow
           (topic, partition, offset, timestamp, key, value and headers); confluent-kafka and aiokafka by their records,
           of which offset, timestamp, key and value are made columns. Bars: at most 1/3 of confluent-kafka, 1/4 of
           aiokafka.
poll:      records a second of poll(), consume() and getmany(), 500 at a time, offset and value of each looked at. Bars:
           twice aiokafka, level with confluent-kafka.
isolation: a topic whose transactions are all committed, read_committed against read_uncommitted, by poll_arrow in one
           process in turns. Bar: 1.03.
iteration: `for record in consumer` against `for record in consumer.poll()`, 500 at a time, with the same body, and the
           same for asyncio: records a second and processor time, in one process in turns. Bar: 0.8 of the records.
metrics:   processor time of `poll` with PrometheusMetrics or OpenTelemetryMetrics against `poll` without metrics, in
           one process in turns; also where each Fetch response has one batch. Bar: 1.02. A slice reads a small topic
           several times, and each case has the rounds that fit in a minute.

A slice of `arrow` and `poll` is a process that reads a tenth first, and then all from the beginning. All clients check
CRCs, and have three partitions at one broker. Rounds, intervals and other load: `measure`.
"""

from __future__ import annotations

import argparse
import asyncio
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

#: part -> figure, unit, and the bar next to each other client.
BARS = {
    "arrow": ("cpu", "ns a record", {"confluent-kafka": Bar(1 / 3), "aiokafka": Bar(1 / 4)}),
    "poll": (
        *("rate", "records a second"),
        {"confluent-kafka": Bar(0.95, is_least=True), "aiokafka": Bar(2.0, is_least=True)},
    ),
}
BAR_COMMITTED, BAR_ITERATION, BAR_METRICS = Bar(1.03), Bar(0.8, is_least=True), Bar(1.02)
METRICS = ("prometheus", "opentelemetry")
#: Part `metrics`: the kinds of Fetch responses, the number of times that a slice reads its topic, and the maximum
#: seconds and rounds of a case. A cost of 1 % can be distinguished from no cost only after about a minute.
METRICS_FETCHES = ("whole fetches", "one batch a fetch")
METRICS_READS, METRICS_SECONDS, METRICS_ROUNDS = 3, 60.0, 2000
CODECS = ("none", "lz4", "zstd")
SHAPES = {"a": 100, "b": 1024}
CONTESTANTS = ("kcodec", "confluent-kafka", "aiokafka")
PARTITIONS = 3
MOST_AT_ONCE = 500
RESULTS = Path(__file__).resolve().parent / "results" / "consumer.json"

Reader = Callable[[int], None]


def make_table(shape: str, records: int) -> Any:
    """Return a table with values that compress like text with numbers."""
    import pyarrow

    words = b"order paid shipped returned customer item price euro "
    size = SHAPES[shape]
    values = [(b"%d " % (number * 7919) + words * (size // 50 + 1))[:size] for number in range(records)]
    return pyarrow.table({"value": pyarrow.array(values, pyarrow.binary())})


def fill(servers: str, topic: str, shape: str, codec: str, records: int, transactions: int = 0) -> None:
    """Write the topic; with `transactions`, in that number, all committed."""
    from kcodec.client import Producer

    table = make_table(shape, records)
    options = {"transactional_id": f"fill-{topic}"} if transactions else {}
    with Producer(bootstrap_servers=servers, compression_type=codec, **options) as producer:
        if not transactions:
            producer.send_arrow(topic, table).result()
        for number in range(transactions):
            with producer.transaction() as txn:
                txn.send_arrow(topic, table.slice(number * records // transactions, records // transactions))


# One slice, in a separate process. A maker returns a function that reads `count` records from the beginning.


def columns_of(rows: list[tuple[int, int, bytes | None, bytes | None]]) -> Any:
    import pyarrow

    offsets, timestamps, keys, values = zip(*rows, strict=True)
    return pyarrow.record_batch(
        {
            "offset": pyarrow.array(offsets, pyarrow.int64()),
            "timestamp": pyarrow.array(timestamps, pyarrow.timestamp("ms")),
            "key": pyarrow.array(keys, pyarrow.binary()),
            "value": pyarrow.array(values, pyarrow.binary()),
        }
    )


def kcodec_consumer(servers: str, topic: str, **options: Any) -> Any:
    from kcodec import TopicPartition
    from kcodec.client import Consumer

    consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", **options)
    consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
    return consumer


def kcodec_arrow(servers: str, topic: str, **options: Any) -> Reader:
    import pyarrow

    consumer = kcodec_consumer(servers, topic, **options)

    def read(count: int) -> None:
        consumer.seek_to_beginning()
        while count > 0:
            count -= pyarrow.record_batch(consumer.poll_arrow(5.0)).num_rows

    return read


def kcodec_poll(servers: str, topic: str, **options: Any) -> Reader:
    consumer = kcodec_consumer(servers, topic, max_poll_records=MOST_AT_ONCE, **options)

    def read(count: int) -> None:
        consumer.seek_to_beginning()
        seen = 0
        while count > 0:
            records = consumer.poll(5.0)
            for record in records:
                seen += len(record.value) + record.offset
            count -= len(records)

    return read


def metrics_of(kind: str) -> Any:
    """An object for the option `metrics`, with a registry of its own."""
    if kind == "prometheus":
        from prometheus_client import CollectorRegistry

        from kcodec.observe.prometheus import PrometheusMetrics

        return PrometheusMetrics(CollectorRegistry())
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from kcodec.observe.opentelemetry import OpenTelemetryMetrics

    return OpenTelemetryMetrics(MeterProvider([InMemoryMetricReader()]))


def kcodec_iteration(servers: str, topic: str) -> Reader:
    consumer = kcodec_consumer(servers, topic, max_poll_records=MOST_AT_ONCE)

    def read(count: int) -> None:
        consumer.seek_to_beginning()
        seen = 0
        for record in consumer:
            seen += len(record.value) + record.offset
            count -= 1
            if not count:
                break

    return read


def kcodec_counted_poll(servers: str, topic: str) -> Reader:
    """As `kcodec_poll`, with the body of `kcodec_iteration`."""
    consumer = kcodec_consumer(servers, topic, max_poll_records=MOST_AT_ONCE)

    def read(count: int) -> None:
        consumer.seek_to_beginning()
        seen = 0
        while count:
            for record in consumer.poll(5.0):
                seen += len(record.value) + record.offset
                count -= 1
                if not count:
                    break

    return read


def aio_reader(servers: str, topic: str, is_iteration: bool) -> Reader:
    from kcodec import TopicPartition
    from kcodec.client.aio import Consumer

    loop = asyncio.new_event_loop()

    async def start() -> Consumer:
        consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", max_poll_records=MOST_AT_ONCE)
        await consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        return consumer

    consumer = loop.run_until_complete(start())

    async def iterate(count: int) -> None:
        await consumer.seek_to_beginning()
        seen = 0
        async for record in consumer:
            seen += len(record.value or b"") + (record.offset or 0)
            count -= 1
            if not count:
                break

    async def poll(count: int) -> None:
        await consumer.seek_to_beginning()
        seen = 0
        while count:
            for record in await consumer.poll(5.0):
                seen += len(record.value or b"") + (record.offset or 0)
                count -= 1
                if not count:
                    break

    read = iterate if is_iteration else poll
    return lambda count: loop.run_until_complete(read(count))


def confluent_consumer(servers: str, topic: str) -> tuple[Any, Callable[[], None]]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False, "check.crcs": True}
    )

    def restart() -> None:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    return consumer, restart


def confluent_arrow(servers: str, topic: str) -> Reader:
    consumer, restart = confluent_consumer(servers, topic)

    def read(count: int) -> None:
        restart()
        while count > 0:
            messages = consumer.consume(10_000, 0.2)
            if messages:
                rows = [(one.offset(), one.timestamp()[1], one.key(), one.value()) for one in messages]
                count -= columns_of(rows).num_rows

    return read


def confluent_poll(servers: str, topic: str) -> Reader:
    consumer, restart = confluent_consumer(servers, topic)

    def read(count: int) -> None:
        restart()
        seen = 0
        while count > 0:
            messages = consumer.consume(MOST_AT_ONCE, 0.2)
            for message in messages:
                seen += len(message.value()) + message.offset()
            count -= len(messages)

    return read


def aiokafka_reader(servers: str, topic: str, most: int, use: Callable[[list[Any]], None]) -> Reader:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    loop = asyncio.new_event_loop()
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    async def start() -> Any:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers, isolation_level="read_committed", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign(partitions)
        return consumer

    consumer = loop.run_until_complete(start())

    async def read(count: int) -> None:
        for partition in partitions:
            consumer.seek(partition, 0)
        while count > 0:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=most)).values():
                use(records)
                count -= len(records)

    return lambda count: loop.run_until_complete(read(count))


def aiokafka_arrow(servers: str, topic: str) -> Reader:
    def use(records: list[Any]) -> None:
        columns_of([(one.offset, one.timestamp, one.key, one.value) for one in records])

    return aiokafka_reader(servers, topic, 10_000, use)


def aiokafka_poll(servers: str, topic: str) -> Reader:
    def use(records: list[Any]) -> None:
        seen = 0
        for record in records:
            seen += len(record.value) + record.offset

    return aiokafka_reader(servers, topic, MOST_AT_ONCE, use)


MAKERS: dict[tuple[str, str], Callable[..., Reader]] = {
    ("arrow", "kcodec"): kcodec_arrow,
    ("arrow", "confluent-kafka"): confluent_arrow,
    ("arrow", "aiokafka"): aiokafka_arrow,
    ("poll", "kcodec"): kcodec_poll,
    ("poll", "confluent-kafka"): confluent_poll,
    ("poll", "aiokafka"): aiokafka_poll,
}


def child(arguments: list[str]) -> None:
    """Warm up, measure one slice, and print processor and elapsed time."""
    what, who, servers, topic, records = arguments
    count = int(records)
    read = MAKERS[what, who](servers, topic)
    read(count // 10)
    cpu, wall = time.process_time(), time.perf_counter()
    read(count)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu": cpu / count * 1e9, "rate": count / wall}), flush=True)
    os._exit(0)  # closing is not measured


def measured(read: Reader, count: int) -> dict[str, float]:
    """Return nanoseconds of processor time per record, and records per second."""
    cpu, wall = time.process_time(), time.perf_counter()
    read(count)
    return {"cpu": (time.process_time() - cpu) / count * 1e9, "rate": count / (time.perf_counter() - wall)}


def repeated(read: Reader, times: int) -> Reader:
    """Read the topic several times."""

    def read_all(count: int) -> None:
        for _ in range(times):
            read(count // times)

    return read_all


def pair(arguments: list[str]) -> None:
    """Run readers alternately in this process, and print the figures of each round."""
    kind, servers, topic, records, rounds = arguments
    readers: dict[str, Reader]
    if kind == "isolation":
        levels = ("read_committed", "read_uncommitted")
        readers = {level: kcodec_arrow(servers, topic, isolation_level=level) for level in levels}
    elif kind in METRICS_FETCHES:
        small: dict[str, Any] = {"fetch_max_bytes": 1, "max_partition_fetch_bytes": 1}
        sizes = small if kind == "one batch a fetch" else {}
        readers = {name: kcodec_poll(servers, topic, metrics=metrics_of(name), **sizes) for name in METRICS}
        readers["without"] = kcodec_poll(servers, topic, **sizes)
        readers = {name: repeated(read, METRICS_READS) for name, read in readers.items()}
    elif kind == "sync":
        readers = {"for": kcodec_iteration(servers, topic), "poll": kcodec_counted_poll(servers, topic)}
    else:
        readers = {"for": aio_reader(servers, topic, True), "poll": aio_reader(servers, topic, False)}
    count = int(records) * (METRICS_READS if kind in METRICS_FETCHES else 1)
    turns = {name: functools.partial(measured, read, count) for name, read in readers.items()}
    number = int(rounds)
    if kind in METRICS_FETCHES:
        measure.take_turns(turns, 2)
        begun = time.perf_counter()
        measure.take_turns(turns, 1)
        number = min(number, max(12, int(METRICS_SECONDS / (time.perf_counter() - begun))))
    print(json.dumps([one.figures for one in measure.take_turns(turns, number, warm_up=1)]), flush=True)
    os._exit(0)


def rounds_of_pair(kind: str, servers: str, topic: str, records: int, rounds: int) -> list[measure.Round]:
    """Run the rounds of `pair` in a new process. Other load is measured over all rounds, because the child cannot
    measure that of the broker."""
    load = measure.OtherLoad()
    made = measure.run_child(__file__, "--pair", kind, servers, topic, records, rounds)
    others = load.cores()
    return [measure.Round(one, others, others > measure.OTHERS_OF_ONE) for one in made]


# The parts


def filled(kafka: Any, shape: str, codec: str, records: int, transactions: int = 0) -> tuple[str, int]:
    """Create a topic with records, fewer if they are large. Return its name and their number."""
    amount = records if shape == "a" else records // 5
    topic: str = kafka.create_topic(partitions=PARTITIONS)
    fill(kafka.bootstrap_servers, topic, shape, codec, amount, transactions)
    return topic, amount


def compare(kafka: Any, what: str, rounds: int, records: int, codecs: tuple[str, ...]) -> list[Row]:
    """Measure the part `arrow` or `poll`."""
    rows, (figure, unit, bars) = [], BARS[what]
    for shape in SHAPES:
        for codec in codecs:
            topic, amount = filled(kafka, shape, codec, records)
            arguments = (kafka.bootstrap_servers, topic, amount)
            turns = {
                who: functools.partial(measure.run_child, __file__, "--child", what, who, *arguments)
                for who in CONTESTANTS
            }
            found = measure.take_turns(turns, rounds)
            for peer, bar in bars.items():
                row = measure.compare(found, figure, "kcodec", peer, case=f"{shape}, {codec}", unit=unit, bar=bar)
                rows.append({"shape": shape, "codec": codec} | row)
                print(f"{what}, {row['case']}, kcodec / {peer}: {measure.value_text(row)}", flush=True)
    return rows


def compare_isolation(kafka: Any, rounds: int, records: int) -> list[Row]:
    rows = []
    for shape in SHAPES:
        topic, amount = filled(kafka, shape, "lz4", records, transactions=20)
        found = rounds_of_pair("isolation", kafka.bootstrap_servers, topic, amount, rounds * 3)
        named = {"case": f"{shape}, lz4, all committed", "unit": "ns a record"}
        rows.append(measure.compare(found, "cpu", "read_committed", "read_uncommitted", bar=BAR_COMMITTED, **named))
    return rows


def compare_iteration(kafka: Any, rounds: int, records: int) -> list[Row]:
    rows = []
    for shape in SHAPES:
        topic, amount = filled(kafka, shape, "lz4", records)
        for kind in ("sync", "asyncio"):
            found = rounds_of_pair(kind, kafka.bootstrap_servers, topic, amount, rounds * 3)
            case = f"{shape}, lz4, {kind}"
            rate = {"case": case, "unit": "records a second", "bar": BAR_ITERATION}
            rows.append(measure.compare(found, "rate", "for", "poll", **rate))
            rows.append(measure.compare(found, "cpu", "for", "poll", case=case, unit="ns a record"))
    return rows


def compare_metrics(kafka: Any, records: int) -> list[Row]:
    rows = []
    for shape in SHAPES:
        topic, amount = filled(kafka, shape, "lz4", records // 20)
        for kind in METRICS_FETCHES:
            found = rounds_of_pair(kind, kafka.bootstrap_servers, topic, amount, METRICS_ROUNDS)
            for library in METRICS:
                named = {"case": f"{shape}, lz4, {kind}, {library}", "unit": "ns a record"}
                rows.append(measure.compare(found, "cpu", library, "without", bar=BAR_METRICS, **named))
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    if sys.argv[1:2] == ["--pair"]:
        pair(sys.argv[2:])
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="arrow,poll,isolation,iteration,metrics")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    load, found = os.getloadavg()[0], {}
    with ApacheKafka() as kafka:
        if "arrow" in given.part:
            found["arrow"] = compare(kafka, "arrow", given.rounds, given.records, tuple(given.codecs.split(",")))
        if "poll" in given.part:
            found["poll"] = compare(kafka, "poll", given.rounds, given.records, ("lz4",))
        if "isolation" in given.part:
            found["isolation"] = compare_isolation(kafka, given.rounds, given.records)
        if "iteration" in given.part:
            found["iteration"] = compare_iteration(kafka, given.rounds, given.records)
        if "metrics" in given.part:
            found["metrics"] = compare_metrics(kafka, given.records)
    for name, rows in found.items():
        measure.print_comparisons(name, rows)
    measure.save(given.json, found, {"rounds": given.rounds, "records": given.records}, load)


if __name__ == "__main__":
    main()
