# SPDX-License-Identifier: Apache-2.0
"""`Producer.send`, record by record, compared with confluent-kafka's `produce` on one broker, in interleaved pairs.

Usage: python benchmarks/bench_send.py [--part cells,latency,asyncio] [--cells NAME] [--before CHECKOUT]
                                       [--rounds N] [--records N] [--json FILE]

cells:   nanoseconds of processor time a record, user and system of the whole process, from the first record to the last
         acknowledgement. Values of 100 B and 1 KiB, uncompressed and lz4, at each client's defaults; the same with
         equal settings of both (idempotent, batches of 16,384 B, 5 ms); with headers, with a callback for each record,
         and with keys over 200 partitions. Bars: 1.0 times confluent-kafka; 1.2 with headers, callbacks, partitions.
latency: milliseconds from send to acknowledgement at 10,000 records a second with equal linger, median and p99.
         Bar: p99 at most confluent-kafka's.
asyncio: `aio.Producer.send` compared with aiokafka, all results awaited at the end. Bar: 0.3 times aiokafka.

A slice is a process, warmed by a tenth of its records. A round is one slice of each client, as `measure.take_turns` has
it. Elapsed time and processor time of the broker are compared as well. With `--before CHECKOUT`, a built checkout of an
earlier commit takes part in the cells. The ratios to it are reported.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import measure
from measure import Bar, Row

RESULTS = Path(__file__).resolve().parent / "results" / "send.json"
#: The name of the contestant that uses the checkout of `--before`.
BEFORE = "kcodec before"
RECORDS_PER_SECOND, LATENCY_SECONDS = 10_000, 5
HEADERS = [("trace", b"0123456789abcdef"), ("kind", b"order")]
WORDS = b"order paid shipped returned customer item price euro "
#: Options of both clients in the cells with equal settings.
EQUAL = {
    "kcodec": {"linger_ms": 5, "batch_size": 16_384},
    "confluent-kafka": {"linger.ms": 5, "batch.size": 16_384, "enable.idempotence": True},
}


@dataclass(frozen=True)
class Cell:
    """One workload. value: number of bytes of a value; partitions: if there are more than 3, keys have 8 bytes."""

    name: str
    value: int
    codec: str = "none"
    bar: float = 1.0
    is_equal: bool = False
    has_headers: bool = False
    has_callback: bool = False
    partitions: int = 3

    @property
    def has_key(self) -> bool:
        return self.partitions > 3


PLAIN = [
    Cell(f"{name} {codec}", size, codec)
    for name, size in (("100 B", 100), ("1 KiB", 1024))
    for codec in ("none", "lz4")
]
CELLS = [
    *PLAIN,
    *(Cell(f"{cell.name}, equal settings", cell.value, cell.codec, is_equal=True) for cell in PLAIN),
    Cell("100 B, 2 headers", 100, bar=1.2, has_headers=True),
    Cell("100 B, callbacks", 100, bar=1.2, has_callback=True),
    Cell("100 B, keys, 200 partitions", 100, bar=1.2, partitions=200),
    Cell("1 KiB, keys, 200 partitions", 1024, bar=1.2, partitions=200),
]


def records_of(cell: Cell, count: int) -> list[tuple[bytes, bytes | None]]:
    """Return values and keys; the values compress like text with numbers."""
    return [
        (
            (b"%d " % (number * 7919) + WORDS * (cell.value // 50 + 1))[: cell.value],
            b"%08d" % (number * 31 % 100_000) if cell.has_key else None,
        )
        for number in range(count)
    ]


# One slice, in a separate process.


def kcodec_sender(cell: Cell, servers: str, topic: str) -> Callable[[list[tuple[bytes, bytes | None]]], int]:
    """Return a function that sends records, waits for them, and returns the number of acknowledged records."""
    from kcodec.client import Producer

    producer = Producer(
        bootstrap_servers=servers, compression_type=cell.codec, **(EQUAL["kcodec"] if cell.is_equal else {})
    )

    def run(records: list[tuple[bytes, bytes | None]]) -> int:
        send, found = producer.send, 0

        def ended(delivery: Any) -> None:
            nonlocal found
            found += delivery.error is None

        if cell.has_callback:
            for value, key in records:
                send(topic, value, key).add_done_callback(ended)
        elif cell.has_headers:
            for value, key in records:
                send(topic, value, key, HEADERS)
        else:
            for value, key in records:
                send(topic, value, key)
        producer.flush()  # raises DeliveryErrors for a record that was not acknowledged
        return found if cell.has_callback else len(records)

    return run


def confluent_sender(cell: Cell, servers: str, topic: str) -> Callable[[list[tuple[bytes, bytes | None]]], int]:
    """As `kcodec_sender`. The queue of librdkafka is polled when it is full, and in the loop if there are callbacks."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": servers, "compression.type": cell.codec}
    producer = Producer(settings | (EQUAL["confluent-kafka"] if cell.is_equal else {}))

    def run(records: list[tuple[bytes, bytes | None]]) -> int:
        produce, poll, found = producer.produce, producer.poll, 0

        def ended(error: Any, message: Any) -> None:
            nonlocal found
            found += error is None

        options: dict[str, Any] = {"on_delivery": ended} if cell.has_callback else {}
        if cell.has_headers:
            options["headers"] = HEADERS
        for value, key in records:
            try:
                produce(topic, value, key, **options)
            except BufferError:
                while True:
                    poll(0.01)
                    try:
                        produce(topic, value, key, **options)
                        break
                    except BufferError:
                        continue
            if cell.has_callback:
                poll(0)
        left = producer.flush(120)
        return found if cell.has_callback else len(records) - left

    return run


SENDERS = {"kcodec": kcodec_sender, BEFORE: kcodec_sender, "confluent-kafka": confluent_sender}


def run_slice(name: str, cell: Cell, servers: str, topic: str, count: int) -> dict[str, float]:
    """Return processor time and elapsed time in nanoseconds per record."""
    run, records = SENDERS[name](cell, servers, topic), records_of(cell, count)
    run(records[: count // 10])
    processor, elapsed = time.process_time(), time.perf_counter()
    acknowledged = run(records)
    processor, elapsed = time.process_time() - processor, time.perf_counter() - elapsed
    if acknowledged != count:
        raise SystemExit(f"{name}: {acknowledged} of {count} records were acknowledged")
    return {"cpu": processor / count * 1e9, "elapsed": elapsed / count * 1e9}


def run_latency(name: str, servers: str, topic: str, seconds: int) -> dict[str, float]:
    """Return the milliseconds from send to the callback, as median and p99, without the first second."""
    found: list[float] = []
    clock = time.perf_counter

    if name == "kcodec":
        from kcodec.client import Producer

        producer = Producer(bootstrap_servers=servers, linger_ms=5)

        def send(value: bytes) -> None:
            began = clock()
            producer.send(topic, value).add_done_callback(lambda _: found.append(clock() - began))

        finish: Callable[[], Any] = producer.flush
    else:
        from confluent_kafka import Producer as Peer

        peer = Peer({"bootstrap.servers": servers, "linger.ms": 5, "enable.idempotence": True})
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                peer.poll(0.1)

        threading.Thread(target=serve, daemon=True).start()

        def send(value: bytes) -> None:
            began = clock()
            peer.produce(topic, value, on_delivery=lambda *_: found.append(clock() - began))

        def finish() -> None:
            peer.flush(60)
            is_over.set()

    value = (WORDS * 2)[:100]
    start, sent, total = clock(), 0, RECORDS_PER_SECOND * seconds
    while sent < total:
        due = min(int((clock() - start) * RECORDS_PER_SECOND), total)
        for _ in range(due - sent):
            send(value)
        sent = due
        time.sleep(0.001)
    finish()
    measured = sorted(found[RECORDS_PER_SECOND:])
    return {"median": statistics.median(measured) * 1e3, "p99": measured[len(measured) * 99 // 100] * 1e3}


def run_asyncio(name: str, servers: str, topic: str, count: int) -> dict[str, float]:
    """Return processor time and elapsed time in nanoseconds per record. All results are awaited at the end."""

    async def of_kcodec(records: list[bytes]) -> None:
        from kcodec.client.aio import Producer

        async with Producer(bootstrap_servers=servers) as producer:
            await send_all(producer.send, records)

    async def of_aiokafka(records: list[bytes]) -> None:
        from aiokafka import AIOKafkaProducer

        async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5) as producer:
            await send_all(producer.send, records)

    async def send_all(send: Any, records: list[bytes]) -> None:
        nonlocal processor, elapsed
        for part, is_measured in ((records[: count // 10], False), (records, True)):
            processor, elapsed = time.process_time(), time.perf_counter()
            sent = [await send(topic, value) for value in part]
            for delivery in sent:
                await delivery
            if is_measured:
                processor, elapsed = time.process_time() - processor, time.perf_counter() - elapsed

    processor = elapsed = 0.0
    records = [value for value, _ in records_of(Cell("asyncio", 100), count)]
    asyncio.run({"kcodec": of_kcodec, "aiokafka": of_aiokafka}[name](records))
    return {"cpu": processor / count * 1e9, "elapsed": elapsed / count * 1e9}


def child(part: str, name: str, servers: str, topic: str, count: int, cell: str) -> None:
    if part == "cells":
        found = run_slice(name, Cell(**json.loads(cell)), servers, topic, count)
    else:
        found = (run_latency if part == "latency" else run_asyncio)(name, servers, topic, count)
    print(json.dumps(found), flush=True)
    os._exit(0)  # closing is not measured


# The rounds


def one_slice(
    kafka: Any, part: str, name: str, count: int, cell: Cell, checkout: Path | None = None
) -> dict[str, float]:
    """Measure in a new process and a new topic, with kcodec from `checkout`; add the broker's processor time."""
    topic = kafka.create_topic(partitions=cell.partitions)
    before = broker_seconds(kafka)
    arguments = ("--child", part, name, kafka.bootstrap_servers, topic, count, json.dumps(asdict(cell)))
    found: dict[str, float] = measure.run_child(__file__, *arguments, source=checkout and checkout / "src")
    return found | {"broker": (broker_seconds(kafka) - before) / (count * 1.1) * 1e9}


def broker_seconds(kafka: Any) -> float:
    """Return the processor time of all brokers since their start."""
    return sum(measure.tree_seconds(node.pid) for node in kafka.nodes)


def compare(
    kafka: Any,
    part: str,
    peer: str,
    rounds: int,
    count: int,
    cell: Cell,
    units: dict[str, str],
    before: Path | None = None,
) -> list[Row]:
    """Return a row for each figure in `units`, and for each figure and the checkout `before`. The bar applies to the
    first row."""
    slices = {name: functools.partial(one_slice, kafka, part, name, count, cell) for name in ("kcodec", peer)}
    if before is not None:
        slices[BEFORE] = functools.partial(one_slice, kafka, part, BEFORE, count, cell, before)
    found = measure.take_turns(slices, rounds)
    rows = []
    for other in list(slices)[1:]:
        for number, (figure, unit) in enumerate(units.items()):
            bar = Bar(cell.bar) if other == peer and not number else None
            rows.append(measure.compare(found, figure, "kcodec", other, case=cell.name, unit=unit, bar=bar))
    print(*(f"{row['case']}, {row['figure']}: {measure.value_text(row)}" for row in rows), sep="\n", flush=True)
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        part, name, servers, topic, count, text = sys.argv[2:]
        child(part, name, servers, topic, int(count), text)
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="cells,latency,asyncio")
    parser.add_argument("--cells", default="", help="only cells whose name contains this")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="a built checkout to compare the cells with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=300_000, help="of 100 B; a third of them of 1 KiB")
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    load, parts = os.getloadavg()[0], {}
    times = dict.fromkeys(("cpu", "elapsed", "broker"), "ns a record")
    peer, rounds, records = "confluent-kafka", given.rounds, given.records
    with ApacheKafka(heap="1g") as kafka:  # Kafka's default heap, because the topics of all cells stay
        if "cells" in given.part:
            parts["cells"] = [
                row
                for cell in CELLS
                if given.cells in cell.name
                for row in compare(
                    kafka, "cells", peer, rounds, records // (1 if cell.value < 1000 else 3), cell, times, given.before
                )
            ]
        if "latency" in given.part:
            cell = Cell(f"100 B, {RECORDS_PER_SECOND:,} records a second, linger 5 ms", 100)
            parts["latency"] = compare(
                kafka, "latency", peer, rounds, LATENCY_SECONDS, cell, {"p99": "ms", "median": "ms"}
            )
        if "asyncio" in given.part:
            cell = Cell("100 B, awaited at the end", 100, bar=0.3)
            parts["asyncio"] = compare(kafka, "asyncio", "aiokafka", rounds, records // 5, cell, times)
    for name, rows in parts.items():
        measure.print_comparisons(name, rows)
    options = {"rounds": rounds, "records": records, "latency_seconds": LATENCY_SECONDS}
    measure.save(given.json, parts, options, load)


if __name__ == "__main__":
    main()
