# SPDX-License-Identifier: Apache-2.0
"""Transactions on a real Apache Kafka on this machine: how many a second, and what they cost compared with idempotence.

Usage: python benchmarks/bench_transactions.py [--part PART,...] [--rounds N] [--seconds S] [--json FILE]

rate:   transactions a second, one after the other, each 100 records of 100 B over three partitions: kcodec by send and
        by send_arrow; confluent-kafka and aiokafka, each by its defaults and with the other's linger. Bars: `send` has
        at least twice the rate of confluent-kafka, and more than aiokafka (a table of 100 rows is not what send_arrow
        is for; it has no bar).
phases: where the time of such a transaction of kcodec goes, in milliseconds: the responses to Produce and to EndTxn,
        and the time between the response to EndTxn and the next Produce, in which the broker writes the end markers
        and the program appends records. The client spends what is left.
cost:   the share of the throughput that is left (records a second, 1 KiB, acks=all, no compression) with a commit each
        100 ms, of that of an idempotent producer without transactions; the same with commit_transaction_async, and of
        Java's producer (ProducerPerformance) in the same round. Bars: at least 0.85, and at least Java's share; with
        commit_transaction_async at least 0.92.
ordinary: records a second of an ordinary producer while another one writes to the same topic, once in transactions of
        100 ms, once without, at the same rate. Bar: at least 0.97.

Contestants are processes, warmed up before the first round. Rounds, intervals and other load: `measure`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import measure
from measure import Bar, Row

#: Minimum ratio of the rate of `kcodec send` to that of each other client.
BARS_RATE = {
    "confluent-kafka": Bar(2.0, is_least=True),
    "confluent-kafka linger 0": Bar(2.0, is_least=True),
    "aiokafka": Bar(1.0, is_least=True),
    "aiokafka linger 5": Bar(1.0, is_least=True),
}
BAR_COST, BAR_COST_JAVA, BAR_BACKGROUND, BAR_ORDINARY = (Bar(value, is_least=True) for value in (0.85, 1.0, 0.92, 0.97))
#: Number of pairs of a transactional and an idempotent slice in a round of `cost`.
PAIRS_A_ROUND = 3
CONTESTANTS = ("kcodec send", "kcodec send_arrow", *BARS_RATE)
PARTITIONS, RECORDS, COMMIT_SECONDS = 3, 100, 0.1
PACE = 2_000
SLICE, WARM_UP_TURNS = 50, 3
#: For `rate`: a broker that was just started compiles the code of transactions during the first thousands of them.
RATE_WARM_UP_TURNS = 10
WHOLE, BETWEEN = "whole transaction", "from the response to EndTxn to the next Produce"
PHASES = (WHOLE, "response to Produce", "response to EndTxn", BETWEEN)
#: Cores that other processes may use in a round: rates need both cores.
OTHERS_MAY = measure.TOO_BUSY_FOR_TWO
# Limits of the data that the broker keeps of a topic. Without them a run takes more than 40 GB of disk space.
KEPT = {"retention_bytes": 1 << 27, "segment_bytes": 1 << 26, "file_delete_delay_ms": 0}
JAVA_CLASS = "org.apache.kafka.tools.ProducerPerformance"
RESULTS = Path(__file__).resolve().parent / "results" / "transactions.json"
SMALL = [(b"%d " % number) + b"order paid shipped " * 5 for number in range(RECORDS)]
SMALL = [value[:100] for value in SMALL]
LARGE = [((b"%d " % number) + b"order paid shipped returned " * 40)[:1024] for number in range(1000)]

# Transactions per second: functions that run one transaction.


def one_by_send(servers: str, topic: str) -> Callable[[], None]:
    from kcodec.client import Producer

    producer = Producer(bootstrap_servers=servers, transactional_id=f"kcodec-{os.getpid()}")

    def one() -> None:
        with producer.transaction() as txn:
            for number, value in enumerate(SMALL):
                txn.send(topic, value, partition=number % PARTITIONS)

    return one


def one_by_send_arrow(servers: str, topic: str) -> Callable[[], None]:
    import pyarrow

    from kcodec.client import Producer

    producer = Producer(bootstrap_servers=servers, transactional_id=f"kcodec-{os.getpid()}")
    partitions = pyarrow.array([number % PARTITIONS for number in range(RECORDS)], "int32")
    table = pyarrow.table({"value": pyarrow.array(SMALL, "binary"), "partition": partitions})

    def one() -> None:
        with producer.transaction() as txn:
            txn.send_arrow(topic, table)

    return one


def one_by_confluent(servers: str, topic: str, linger: int = 5) -> Callable[[], None]:
    from confluent_kafka import Producer

    name = f"confluent-{os.getpid()}"
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "linger.ms": linger})
    producer.init_transactions()

    def one() -> None:
        producer.begin_transaction()
        for number, value in enumerate(SMALL):
            producer.produce(topic, value, partition=number % PARTITIONS)
        producer.commit_transaction()

    return one


def one_by_aiokafka(servers: str, topic: str, linger: int = 0) -> Callable[[], None]:
    from aiokafka import AIOKafkaProducer

    loop = asyncio.new_event_loop()

    async def start() -> Any:
        name = f"aiokafka-{os.getpid()}"
        producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name, linger_ms=linger)
        await producer.start()
        return producer

    producer = loop.run_until_complete(start())

    async def one() -> None:
        async with producer.transaction():
            for number, value in enumerate(SMALL):
                await producer.send(topic, value, partition=number % PARTITIONS)

    return lambda: loop.run_until_complete(one())


ONE: dict[str, Callable[[str, str], Callable[[], None]]] = {
    "kcodec send": one_by_send,
    "kcodec send_arrow": one_by_send_arrow,
    "confluent-kafka": one_by_confluent,
    "confluent-kafka linger 0": lambda servers, topic: one_by_confluent(servers, topic, 0),
    "aiokafka": one_by_aiokafka,
    "aiokafka linger 5": lambda servers, topic: one_by_aiokafka(servers, topic, 5),
}


def rate_child(who: str, servers: str, topic: str) -> None:
    """For each line on stdin, run SLICE transactions and print their rate."""
    one = ONE[who](servers, topic)
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(SLICE):
            one()
        print(SLICE / (time.perf_counter() - start), flush=True)


def phases_child(servers: str, topic: str) -> None:
    """For each line on stdin, run SLICE transactions and print the milliseconds of one and of its phases."""
    from kcodec.client import Producer

    producer = Producer(bootstrap_servers=servers, transactional_id=f"kcodec-{os.getpid()}")
    seen: dict[tuple[str, str], float] = {}
    phases = dict.fromkeys(PHASES, 0.0)

    def watch(trace: Any) -> None:
        name = type(trace.message).__name__
        if name == "ProduceRequest" and ("response", "EndTxnResponse") in seen:
            phases[BETWEEN] += trace.time - seen["response", "EndTxnResponse"]
        for kind in ("Produce", "EndTxn"):
            if name == f"{kind}Response":
                phases[f"response to {kind}"] += trace.time - seen["request", f"{kind}Request"]
        seen[trace.kind, name] = trace.time

    producer._client.network.watchers.append(watch)
    for _ in sys.stdin:
        seen.clear()
        phases.update(dict.fromkeys(PHASES, 0.0))
        start = time.perf_counter()
        for _ in range(SLICE):
            with producer.transaction() as txn:
                for number, value in enumerate(SMALL):
                    txn.send(topic, value, partition=number % PARTITIONS)
        phases[WHOLE] = time.perf_counter() - start
        print(json.dumps({name: seconds / SLICE * 1e3 for name, seconds in phases.items()}), flush=True)


# The cost of transactions: a producer at full speed, or with a limited rate.


def load_child(kind: str, servers: str, topic: str, seconds: str, pace: str) -> None:
    """For each line on stdin, print the records per second of one producer. kind: "transactional", "background"
    (transactional, with commit_transaction_async) or "idempotent"; pace: records per second, 0 for no limit."""
    from kcodec.client import Producer

    is_transactional = kind != "idempotent"
    options = {"transactional_id": f"load-{os.getpid()}"} if is_transactional else {}
    producer = Producer(bootstrap_servers=servers, batch_size=65_536, **options)
    for _ in sys.stdin:
        print(_load(producer, topic, float(seconds), int(pace), kind), flush=True)


def _load(producer: Any, topic: str, seconds: float, pace: int, kind: str) -> float:
    is_transactional, commit = kind != "idempotent", None
    sent, start = 0, time.perf_counter()
    if is_transactional:
        producer.begin_transaction()
    commit_at = start + COMMIT_SECONDS
    while (now := time.perf_counter()) - start < seconds:
        if is_transactional and now >= commit_at:
            if kind == "transactional":
                producer.commit_transaction()
            else:
                if commit is not None:
                    commit.result()
                commit = producer.commit_transaction_async()
            producer.begin_transaction()
            commit_at = time.perf_counter() + COMMIT_SECONDS
        if pace and sent > pace * (now - start):
            time.sleep(0.002)
            continue
        for value in LARGE[: 10 if pace else 1000]:
            producer.send(topic, value)
        sent += 10 if pace else 1000
    if is_transactional:
        producer.commit_transaction()
    producer.flush()
    return sent / (time.perf_counter() - start)


def java_rate(servers: str, topic: str, seconds: float, *, is_transactional: bool) -> float:
    """Return the records per second of Java's producer, as its own tool reports them, without the first fifth."""
    from kcodec.testing.java import find_java

    jars = Path(__file__).resolve().parent.parent / ".cache" / "kafka-tools" / "*"
    records = int(max(seconds, 4.0) * 60_000)
    command = [str(find_java()), "-Xmx256m", "-cp", str(jars), JAVA_CLASS, "--topic", topic, "--throughput", "-1"]
    command += ["--num-records", str(records), "--record-size", "1024", "--warmup-records", str(records // 5)]
    if is_transactional:
        command += ["--transactional-id", f"java-{time.time_ns()}"]
        command += ["--transaction-duration-ms", str(int(COMMIT_SECONDS * 1000))]
    properties = [f"bootstrap.servers={servers}", "acks=all", "batch.size=65536"]
    done = subprocess.run([*command, "--producer-props", *properties], capture_output=True, text=True, timeout=300)
    rates = re.findall(r"records sent, ([0-9.]+) records/sec", done.stdout)
    if not rates:
        raise SystemExit(f"{JAVA_CLASS} said nothing: {done.stdout[-500:]} {done.stderr[-500:]}")
    return float(rates[-1])


# The parts


def start_slice(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def measure_rate(kafka: Any, rounds: int, seconds: float) -> list[Row]:
    """Measure the rates. All contestants run at the same time and take short turns, so that other load on the machine
    affects all of them equally."""
    children = {}
    for who in CONTESTANTS:
        topic = kafka.create_topic(partitions=PARTITIONS)
        children[who] = start_slice("rate", who, kafka.bootstrap_servers, topic, stdin=subprocess.PIPE)
    turns = {who: functools.partial(rate_of, child) for who, child in children.items()}
    found = measure.take_turns(turns, rounds * 4, warm_up=RATE_WARM_UP_TURNS, others_may=OTHERS_MAY)
    end_all(children.values())
    named = {"case": "100 records in each, one after the other", "unit": "transactions a second"}
    rows = [measure.compare(found, "rate", "kcodec send", peer, bar=bar, **named) for peer, bar in BARS_RATE.items()]
    return [*rows, measure.compare(found, "rate", "kcodec send_arrow", "confluent-kafka", **named)]


def measure_phases(kafka: Any, rounds: int, seconds: float) -> list[Row]:
    topic = kafka.create_topic(partitions=PARTITIONS)
    child = start_slice("phases", kafka.bootstrap_servers, topic, stdin=subprocess.PIPE)

    def one() -> dict[str, float]:
        ask(child)
        assert child.stdout is not None
        found: dict[str, float] = json.loads(child.stdout.readline())
        return found

    found = measure.take_turns({"kcodec send": one}, rounds * 4, warm_up=RATE_WARM_UP_TURNS, others_may=OTHERS_MAY)
    end_all([child])
    named = {"case": "100 records in each, one after the other", "unit": "ms a transaction"}
    return [measure.compare(found, phase, "kcodec send", **named) for phase in PHASES]


def share(measure_one: Callable[[bool], float], pairs: int) -> dict[str, float]:
    """Return the median of the ratios of `measure_one(True)` to `measure_one(False)`, measured in alternating order."""
    rates: list[tuple[float, float]] = []
    for turn in range(pairs):
        found = {is_transactional: measure_one(is_transactional) for is_transactional in (turn % 2 == 0, turn % 2 == 1)}
        rates.append((found[True], found[False]))
    return {"share": statistics.median(left / right for left, right in rates)}


def rate_of(child: subprocess.Popen[str]) -> dict[str, float]:
    """Run one slice of a child and return its rate."""
    ask(child)
    return {"rate": reported_rate(child)}


def ask(child: subprocess.Popen[str]) -> None:
    """Make a child begin its next slice."""
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def reported_rate(child: subprocess.Popen[str]) -> float:
    """Return the rate that the child has measured."""
    assert child.stdout is not None
    return float(child.stdout.readline())


def load_children(kafka: Any, topics: dict[bool, str], seconds: float, pace: int) -> dict[bool, subprocess.Popen[str]]:
    """Start producers of both kinds, which write to the same topic or to separate topics."""
    kinds = {True: "transactional", False: "idempotent"}
    return {
        kind: start_slice("load", name, kafka.bootstrap_servers, topics[kind], seconds, pace, stdin=subprocess.PIPE)
        for kind, name in kinds.items()
    }


def measure_cost(kafka: Any, rounds: int, seconds: float) -> list[Row]:
    topic = kafka.create_topic(partitions=PARTITIONS, **KEPT)
    kinds = ("transactional", "background", "idempotent")
    children = {
        kind: start_slice("load", kind, kafka.bootstrap_servers, topic, seconds, 0, stdin=subprocess.PIPE)
        for kind in kinds
    }

    def ours(is_transactional: bool, kind: str = "transactional") -> float:
        return rate_of(children[kind if is_transactional else "idempotent"])["rate"]

    def javas(is_transactional: bool) -> float:
        topic = kafka.create_topic(partitions=PARTITIONS, **KEPT)
        return java_rate(kafka.bootstrap_servers, topic, seconds, is_transactional=is_transactional)

    for _ in range(WARM_UP_TURNS):
        ours(True), ours(True, "background"), ours(False)
    turns = {
        "kcodec": lambda: share(ours, PAIRS_A_ROUND),
        "kcodec commit_transaction_async": lambda: share(functools.partial(ours, kind="background"), PAIRS_A_ROUND),
        "Java": lambda: share(javas, 1),
    }
    found = measure.take_turns(turns, rounds, others_may=OTHERS_MAY)
    end_all(children.values())
    named = {"case": "a commit every 100 ms", "unit": "of the throughput without transactions"}
    return [
        measure.compare(found, "share", "kcodec", bar=BAR_COST, **named),
        measure.compare(found, "share", "kcodec commit_transaction_async", bar=BAR_BACKGROUND, **named),
        measure.compare(found, "share", "Java", **named),
        measure.compare(found, "share", "kcodec", "Java", bar=BAR_COST_JAVA, **named),
    ]


def measure_ordinary(kafka: Any, rounds: int, seconds: float) -> list[Row]:
    topics = {kind: kafka.create_topic(partitions=PARTITIONS, **KEPT) for kind in (True, False)}
    ordinary = {
        kind: start_slice("load", "idempotent", kafka.bootstrap_servers, topic, seconds, 0, stdin=subprocess.PIPE)
        for kind, topic in topics.items()
    }
    others = load_children(kafka, topics, seconds + 0.5, PACE)

    def ours(is_transactional: bool) -> dict[str, float]:
        ask(others[is_transactional])
        time.sleep(0.25)
        found = rate_of(ordinary[is_transactional])
        reported_rate(others[is_transactional])
        return found

    names = {"next to a transactional producer": True, "next to an idempotent producer": False}
    turns = {name: functools.partial(ours, is_transactional) for name, is_transactional in names.items()}
    found = measure.take_turns(turns, 2 * rounds, warm_up=WARM_UP_TURNS, others_may=OTHERS_MAY)
    end_all([*ordinary.values(), *others.values()])
    named = {"case": "an ordinary producer", "unit": "records a second"}
    return [measure.compare(found, "rate", *names, bar=BAR_ORDINARY, **named)]


def end_all(children: Iterable[subprocess.Popen[str]]) -> None:
    """Kill all children, because closing is not measured."""
    for child in children:
        child.kill()
        child.communicate()


def main() -> None:
    """Measure, print, write."""
    if sys.argv[1:2] == ["--child"]:
        kind, *rest = sys.argv[2:]
        {"rate": rate_child, "phases": phases_child, "load": load_child}[kind](*rest)
        return
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="rate,phases,cost,ordinary")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    load, found = os.getloadavg()[0], {}
    parts = {"rate": measure_rate, "phases": measure_phases, "cost": measure_cost, "ordinary": measure_ordinary}
    with ApacheKafka(heap="256m", log_retention_check_interval_ms=2_000) as kafka:
        for name in given.part.split(","):
            found[name] = parts[name](kafka, given.rounds, given.seconds)
            measure.print_comparisons(name, found[name])
    measure.save(given.json, found, {"rounds": given.rounds, "seconds": given.seconds}, load)


if __name__ == "__main__":
    main()
