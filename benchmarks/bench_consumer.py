# SPDX-License-Identifier: Apache-2.0
"""Consuming from a real Apache Kafka on this machine: processor time a record, records a second, read_committed.

Usage: python benchmarks/bench_consumer.py [--part arrow,poll,isolation,iteration,cores] [--rounds N] [--records N]
                                            [--json FILE]

arrow:     user and system time of the consuming process, from the broker to pyarrow batches. kcodec by poll_arrow
           (topic, partition, offset, timestamp, key, value and headers); confluent-kafka and aiokafka by their records,
           of which offset, timestamp, key and value are made columns. Bars: at most 1/3 of confluent-kafka, 1/4 of
           aiokafka.
poll:      records a second of poll(), consume() and getmany(), 500 at a time, offset and value of each looked at. Bars:
           twice aiokafka, level with confluent-kafka.
isolation: a topic whose transactions are all committed, read_committed against read_uncommitted, by poll_arrow in one
           process in turns; the median of the pairs' ratios. Bar: 1.03.
iteration: `for record in consumer` against `for record in consumer.poll()`, 500 at a time, with the same body, and the
           same for asyncio: records a second, in one process in turns; the median of the pairs' ratios. Bar: 0.8.
           Its result is in results/iteration.json.
cores:     poll_arrow and kcodec.scan_topic in a process that may use one core, and two, in turns: the median of the
           pairs' gains in records a second, next to the gain of the C floor on two threads with the same bytes in
           memory. The broker shares the cores. A pair in which other processes used more than a tenth of a core is
           counted as busy. Not a part of the default: run it on a machine that does nothing else.

A slice of `arrow` and `poll` is a process of its own that reads a tenth first, and then all from the beginning. The
contestants take turns, so that each ratio is of slices that ran one after the other; the least of the rounds is shown
(of `poll` the best), the JSON has all. All three check CRCs, and have three partitions at one broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BAR_CONFLUENT, BAR_AIOKAFKA = 1 / 3, 1 / 4
BAR_POLL_AIOKAFKA, BAR_POLL_CONFLUENT = 2.0, 0.95
BAR_COMMITTED = 1.03
BAR_ITERATION = 0.8
CODECS = ("none", "lz4", "zstd")
SHAPES = {"a": 100, "b": 1024}
CONTESTANTS = ("kcodec", "confluent-kafka", "aiokafka")
PARTITIONS = 3
MOST_AT_ONCE = 500
RESULTS = Path(__file__).resolve().parent / "results" / "consumer.json"

BUSY_CORES = 0.1

Reader = Callable[[int], None]


def make_table(shape: str, records: int) -> Any:
    """Values that compress as text with numbers in it does."""
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


# One slice, in a process of its own. A maker gives a function that reads `count` records from the beginning on.


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


def kcodec_poll(servers: str, topic: str) -> Reader:
    consumer = kcodec_consumer(servers, topic, max_poll_records=MOST_AT_ONCE)

    def read(count: int) -> None:
        consumer.seek_to_beginning()
        seen = 0
        while count > 0:
            records = consumer.poll(5.0)
            for record in records:
                seen += len(record.value) + record.offset
            count -= len(records)

    return read


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
    """Warm up, then one slice; processor and wall time go to stdout."""
    what, who, servers, topic, records = arguments
    count = int(records)
    read = MAKERS[what, who](servers, topic)
    read(count // 10)
    cpu, wall = time.process_time(), time.perf_counter()
    read(count)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu": cpu / count * 1e9, "wall": wall / count * 1e9}), flush=True)
    os._exit(0)  # what closing costs is not asked


def isolation_pair(arguments: list[str]) -> None:
    """Both isolation levels in turns; nanoseconds of processor time a record go to stdout."""
    servers, topic, records, rounds = arguments
    levels = ("read_committed", "read_uncommitted")
    readers = {level: kcodec_arrow(servers, topic, isolation_level=level) for level in levels}
    times: dict[str, list[float]] = {level: [] for level in levels}
    for turn in range(int(rounds) + 1):
        for level in sorted(levels, reverse=bool(turn % 2)):
            begin = time.process_time()
            readers[level](int(records))
            times[level].append((time.process_time() - begin) / int(records) * 1e9)
    print(json.dumps({level: spent[1:] for level, spent in times.items()}), flush=True)  # without the warm-up
    os._exit(0)


def iteration_pair(arguments: list[str]) -> None:
    """Loops over the consumer and over its polls in turns; records a second go to stdout."""
    kind, servers, topic, records, rounds = arguments
    readers: dict[str, Reader]
    if kind == "sync":
        readers = {"for": kcodec_iteration(servers, topic), "poll": kcodec_counted_poll(servers, topic)}
    else:
        readers = {"for": aio_reader(servers, topic, True), "poll": aio_reader(servers, topic, False)}
    rates: dict[str, list[float]] = {name: [] for name in readers}
    spent: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(int(rounds) + 1):
        for name in sorted(readers, reverse=bool(turn % 2)):
            cpu, wall = time.process_time(), time.perf_counter()
            readers[name](int(records))
            rates[name].append(int(records) / (time.perf_counter() - wall))
            spent[name].append((time.process_time() - cpu) / int(records) * 1e9)
    told = {**rates, **{f"cpu ns, {name}": each for name, each in spent.items()}}
    print(json.dumps({name: found[1:] for name, found in told.items()}), flush=True)  # without the warm-up
    os._exit(0)


def kcodec_scan(servers: str, topic: str) -> Reader:
    import kcodec

    def read(count: int) -> None:
        frame = kcodec.scan_topic(topic, bootstrap_servers=servers).head(count).collect()
        if len(frame) != count:
            raise SystemExit(f"scan_topic: {len(frame)} records, expected {count}")

    return read


def cores_child(arguments: list[str]) -> None:
    """Read on the first cores alone; seconds of processor time and of elapsed time go to stdout."""
    what, cores, servers, topic, records = arguments
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    read = kcodec_scan(servers, topic) if what == "scan_topic" else kcodec_arrow(servers, topic)
    read(int(records) // 10)
    cpu, wall = time.process_time(), time.perf_counter()
    read(int(records))
    print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}), flush=True)
    os._exit(0)


def told_by(*arguments: str) -> Any:
    """What a process of this file says."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{arguments} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


# The parts


def measure(kafka: Any, what: str, rounds: int, records: int, codecs: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for shape in SHAPES:
        amount = records if shape == "a" else records // 5
        for codec in codecs:
            topic = kafka.create_topic(partitions=PARTITIONS)
            fill(kafka.bootstrap_servers, topic, shape, codec, amount)
            found: dict[str, list[dict[str, float]]] = {who: [] for who in CONTESTANTS}
            for _ in range(rounds):
                for who in CONTESTANTS:
                    found[who].append(told_by("--child", what, who, kafka.bootstrap_servers, topic, str(amount)))
            row: dict[str, Any] = {"shape": shape, "codec": codec}
            row |= arrow_row(found) if what == "arrow" else poll_row(found)
            rows.append(row | {"all": found})
            print(*(f"{value:>16}" for value in row.values()), flush=True)
    return rows


def arrow_row(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    least = {who: min(one["cpu"] for one in found[who]) for who in CONTESTANTS}
    ratios = [least["kcodec"] / least[who] for who in CONTESTANTS[1:]]
    met = ratios[0] <= BAR_CONFLUENT and ratios[1] <= BAR_AIOKAFKA
    return {
        **{who: round(value) for who, value in least.items()},
        "of confluent": round(ratios[0], 3),
        "of aiokafka": round(ratios[1], 3),
        "bars": "ok" if met else "missed",
    }


def poll_row(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    best = {who: 1e9 / min(one["wall"] for one in found[who]) for who in CONTESTANTS}
    ratios = [best["kcodec"] / best[who] for who in CONTESTANTS[1:]]
    met = ratios[0] >= BAR_POLL_CONFLUENT and ratios[1] >= BAR_POLL_AIOKAFKA
    return {
        **{who: round(value) for who, value in best.items()},
        "times confluent": round(ratios[0], 2),
        "times aiokafka": round(ratios[1], 2),
        "bars": "ok" if met else "missed",
    }


def measure_isolation(kafka: Any, rounds: int, records: int) -> list[dict[str, Any]]:
    rows = []
    for shape in SHAPES:
        amount = records if shape == "a" else records // 5
        topic = kafka.create_topic(partitions=PARTITIONS)
        fill(kafka.bootstrap_servers, topic, shape, "lz4", amount, transactions=20)
        times = told_by("--isolation", kafka.bootstrap_servers, topic, str(amount), str(rounds * 4))
        pairs = list(zip(times["read_committed"], times["read_uncommitted"], strict=True))
        ratio = statistics.median(committed / uncommitted for committed, uncommitted in pairs)
        least = min(times["read_committed"]) / min(times["read_uncommitted"])
        bar = "ok" if ratio <= BAR_COMMITTED else f"above {BAR_COMMITTED}"
        rows.append({"shape": shape, "committed / uncommitted": round(ratio, 3), "of the least": round(least, 3)})
        rows[-1] |= {"bar": bar, **times}
        print(f"{shape:>16} read_committed / read_uncommitted {ratio:.3f} (least {least:.3f}) {bar}", flush=True)
    return rows


def measure_iteration(kafka: Any, rounds: int, records: int) -> list[dict[str, Any]]:
    rows = []
    for shape in SHAPES:
        amount = records if shape == "a" else records // 5
        topic = kafka.create_topic(partitions=PARTITIONS)
        fill(kafka.bootstrap_servers, topic, shape, "lz4", amount)
        for kind in ("sync", "asyncio"):
            told = told_by("--iteration", kind, kafka.bootstrap_servers, topic, str(amount), str(rounds * 4))
            ratio = statistics.median(map(operator.truediv, told["for"], told["poll"]))
            by_cpu = statistics.median(map(operator.truediv, told["cpu ns, poll"], told["cpu ns, for"]))
            row = {"shape": shape, "kind": kind, "for / poll": round(ratio, 3), "by processor time": round(by_cpu, 3)}
            row |= {f"best {name}": round(max(told[name])) for name in ("for", "poll")}
            row["bar"] = "ok" if ratio >= BAR_ITERATION else f"below {BAR_ITERATION}"
            print(row, flush=True)
            rows.append(row | told)
    return rows


def floor_gain(shape: str, codec: str, records: int, rounds: int) -> float | None:
    """The median gain of the floor by a second thread, on batches as the topic has them; None without its library."""
    import floor

    import kcodec

    if codec not in floor.codecs():
        return None
    table = make_table(shape, min(records, 100_000))
    data = bytes(
        kcodec.encode(table, compression=kcodec.Compression(codec), timestamp=0, base_offset=0, max_batch_bytes=16_384)
    )
    own, pair = floor.Floor(), floor.FloorPair()

    def seconds(decode: Callable[[bytes], int]) -> float:
        begin = time.perf_counter()
        decode(data)
        return time.perf_counter() - begin

    gains = [seconds(own.decode) / seconds(pair.decode) for _ in range(10 * rounds + 1)]
    pair.close()
    return statistics.median(gains[1:])


def measure_cores(kafka: Any, rounds: int, records: int, codecs: tuple[str, ...]) -> list[dict[str, Any]]:
    import resource

    from bench_send import busy

    rows = []
    for shape in SHAPES:
        amount = records if shape == "a" else records // 5
        for codec in codecs:
            topic = kafka.create_topic(partitions=PARTITIONS)
            fill(kafka.bootstrap_servers, topic, shape, codec, amount)
            by_floor = floor_gain(shape, codec, amount, rounds)
            for what in ("poll_arrow", "scan_topic"):
                pairs, others = [], []
                for turn in range(rounds):
                    begin, before = time.perf_counter(), busy(kafka)
                    own = resource.getrusage(resource.RUSAGE_CHILDREN)
                    found = {}
                    for cores in sorted((1, 2), reverse=bool(turn % 2)):
                        asked = (what, str(cores), kafka.bootstrap_servers, topic, str(amount))
                        found[cores] = told_by("--cores", *asked)
                    after, used = busy(kafka), resource.getrusage(resource.RUSAGE_CHILDREN)
                    ours = used.ru_utime + used.ru_stime - own.ru_utime - own.ru_stime
                    strange = after[0] - before[0] - (after[1] - before[1]) - ours
                    others.append(max(0.0, strange) / (time.perf_counter() - begin))
                    pairs.append(found)
                row: dict[str, Any] = {"shape": shape, "codec": codec, "what": what}
                row["gain"] = round(statistics.median(one[1]["wall"] / one[2]["wall"] for one in pairs), 3)
                row["floor gain"] = None if by_floor is None else round(by_floor, 3)
                row["cpu of two / one"] = round(statistics.median(one[2]["cpu"] / one[1]["cpu"] for one in pairs), 3)
                row["others"] = round(max(others), 2)
                row["busy pairs"] = sum(one > BUSY_CORES for one in others)
                print(row, flush=True)
                rows.append(row | {"pairs": pairs, "others of pairs": others})
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    if sys.argv[1:2] == ["--cores"]:
        cores_child(sys.argv[2:])
    if sys.argv[1:2] == ["--isolation"]:
        isolation_pair(sys.argv[2:])
    if sys.argv[1:2] == ["--iteration"]:
        iteration_pair(sys.argv[2:])
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="arrow,poll,isolation,iteration")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    told: dict[str, Any] = {"load": os.getloadavg(), "cores": os.cpu_count(), "when": time.strftime("%Y-%m-%d %H:%M")}
    with ApacheKafka() as kafka:
        if "arrow" in given.part:
            print("ns of processor time a record, the least of", given.rounds)
            print(*(f"{name:>16}" for name in ("shape", "codec", *CONTESTANTS, "of confluent", "of aiokafka", "bars")))
            told["arrow"] = measure(kafka, "arrow", given.rounds, given.records, tuple(given.codecs.split(",")))
        if "poll" in given.part:
            print("records a second, the best of", given.rounds)
            names = ("shape", "codec", *CONTESTANTS, "times confluent", "times aiokafka", "bars")
            print(*(f"{name:>16}" for name in names))
            told["poll"] = measure(kafka, "poll", given.rounds, given.records, ("lz4",))
        if "isolation" in given.part:
            told["isolation"] = measure_isolation(kafka, given.rounds, given.records)
        if "iteration" in given.part:
            told["iteration"] = measure_iteration(kafka, given.rounds, given.records)
        if "cores" in given.part:
            told["cores of the client"] = measure_cores(
                kafka, given.rounds, given.records, tuple(given.codecs.split(","))
            )
    told["load_after"] = os.getloadavg()
    if given.json is not None:
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
