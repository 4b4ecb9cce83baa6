# SPDX-License-Identifier: Apache-2.0
"""Transactions on a real Apache Kafka on this machine: how many a second, and what they cost compared with idempotence.

Usage: python benchmarks/bench_transactions.py [--part rate,cost,beside] [--rounds N] [--seconds S] [--json FILE]

rate:   transactions a second, one after the other, each 100 records of 100 B over three partitions: kcodec by send and
        by send_arrow; confluent-kafka and aiokafka, each by its defaults and with the other's linger. Bars: send at
        least 2 times confluent-kafka by its defaults, and more than each of the others, in one run (a table of 100 rows
        is not what send_arrow is for; its rate is shown, too).
cost:   records a second (1 KiB, acks=all, no compression) with a commit every 100 ms, compared with the idempotent
        producer without transactions: the ordinary loop (commit_transaction, then begin_transaction), the loop with
        commit_transaction_async, and Java's producer (ProducerPerformance), which takes its turns in the same run.
        Bars: the ordinary loop at least 0.85 and above Java's ratio, with commit_transaction_async at least 0.92.
beside: records a second of an ordinary producer while another one writes to the same topic, once in transactions of
        100 ms, once without, at the same rate. Bar: at least 0.97.

Contestants are processes of their own, after a warm-up; they take turns, pairs change their order. The median of the
rounds is shown (of the ratios, in pairs), the JSON has all, and the cores that processes other than ours have used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import measure

BAR_ORDINARY, BAR_BACKGROUND, BAR_BESIDE, BAR_CONFLUENT = 0.85, 0.92, 0.97, 2.0
OURS = ("kcodec send", "kcodec send_arrow")
OTHERS = ("confluent-kafka", "confluent-kafka linger 0", "aiokafka", "aiokafka linger 5")
CONTESTANTS = OURS + OTHERS
PARTITIONS, RECORDS, COMMIT_SECONDS = 3, 100, 0.1
PACE = 2_000
SLICE, WARM_UP_TURNS = 50, 3
JAVA_CLASS = "org.apache.kafka.tools.ProducerPerformance"
RESULTS = Path(__file__).resolve().parent / "results" / "transactions.json"
SMALL = [(b"%d " % number) + b"order paid shipped " * 5 for number in range(RECORDS)]
SMALL = [value[:100] for value in SMALL]
LARGE = [((b"%d " % number) + b"order paid shipped returned " * 40)[:1024] for number in range(1000)]

# How many transactions a second: a function that does one


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
    """For each line on stdin, SLICE transactions; their rate goes to stdout."""
    one = ONE[who](servers, topic)
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(SLICE):
            one()
        print(SLICE / (time.perf_counter() - start), flush=True)


# What they cost: a producer at full speed, or at a pace


def load_child(kind: str, servers: str, topic: str, seconds: str, pace: str) -> None:
    """For each line on stdin, records a second of one producer, and its CPU microseconds a record. kind:
    "transactional", "background" (with commit_transaction_async) or "idempotent"; pace: records a second, 0 is all that
    it can."""
    from kcodec.client import Producer

    is_transactional = kind != "idempotent"
    options = {"transactional_id": f"load-{os.getpid()}"} if is_transactional else {}
    producer = Producer(bootstrap_servers=servers, batch_size=65_536, **options)
    for _ in sys.stdin:
        print(*_load(producer, topic, float(seconds), int(pace), kind), flush=True)


def _load(producer: Any, topic: str, seconds: float, pace: int, kind: str) -> tuple[float, float]:
    is_transactional, commit = kind != "idempotent", None
    sent, start, cpu = 0, time.perf_counter(), time.process_time()
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
    return sent / (time.perf_counter() - start), (time.process_time() - cpu) / sent * 1e6


def java_rate(servers: str, topic: str, seconds: float, *, is_transactional: bool) -> float:
    """Records a second of Java's producer, as its own tool tells it; the first fifth is not counted."""
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


def cpu_seconds(processes: Iterable[int]) -> float:
    """CPU seconds of running processes, by their ids."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class OtherLoad:
    """The cores that processes other than the brokers and the children of this one use from now on."""

    def __init__(self, kafka: Any, children: Iterable[subprocess.Popen[str]]) -> None:
        self._own = [os.getpid(), *(node.pid for node in kafka.nodes), *(child.pid for child in children)]
        self._begin = time.perf_counter(), self._busy()

    def _busy(self) -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return measure.busy_seconds() - cpu_seconds(self._own) - ended.ru_utime - ended.ru_stime

    def cores(self) -> float:
        """Return them; call it while the children run."""
        start, busy = self._begin
        return round(max(self._busy() - busy, 0.0) / (time.perf_counter() - start), 2)


def measure_rate(kafka: Any, rounds: int, seconds: float) -> dict[str, Any]:
    """All contestants are there at once and take short turns, so that what else the machine does meets all alike."""
    children = {}
    for who in CONTESTANTS:
        topic = kafka.create_topic(partitions=PARTITIONS)
        children[who] = start_slice("rate", who, kafka.bootstrap_servers, topic, stdin=subprocess.PIPE)
    found: dict[str, list[float]] = {who: [] for who in CONTESTANTS}
    other_load = OtherLoad(kafka, children.values())
    for turn in range(WARM_UP_TURNS + rounds * 8):
        for who in CONTESTANTS[:: 1 if turn % 2 else -1]:
            ask(children[who])
            rate = told_by(children[who])
            if turn >= WARM_UP_TURNS:
                found[who].append(rate)
    others = other_load.cores()
    end_all(children.values())
    medians = {who: round(statistics.median(rates), 1) for who, rates in found.items()}
    best = {who: round(max(rates), 1) for who, rates in found.items()}
    times = max(medians[who] for who in OURS) / max(medians[who] for who in OTHERS)
    pairs_of = zip(found["kcodec send"], found["confluent-kafka"], strict=True)
    confluent = statistics.median(ours / theirs for ours, theirs in pairs_of)
    is_met = times > 1 and confluent >= BAR_CONFLUENT
    print("transactions a second, median of the turns:", medians, f"{times:.2f} of the best other", flush=True)
    print("the best turn:", best, "other load:", others, flush=True)
    print(f"send / confluent-kafka: {confluent:.2f} {'ok' if is_met else f'below {BAR_CONFLUENT}'}", flush=True)
    ratios = {"times_best_other": round(times, 2), "times_confluent": round(confluent, 2)}
    return {"median": medians, "best": best, **ratios, "bar_met": is_met, "others": others, "all": found}


def pairs(rounds: int, measure: Callable[[bool], float], what: str, bar: float | None) -> dict[str, Any]:
    """`measure(True)` over `measure(False)`, in an order that changes; the median of the ratios."""
    rates: list[tuple[float, float]] = []
    for turn in range(rounds):
        order = (True, False) if turn % 2 else (False, True)
        found = {is_transactional: measure(is_transactional) for is_transactional in order}
        rates.append((found[True], found[False]))
    ratio = statistics.median(left / right for left, right in rates)
    met = None if bar is None else ratio >= bar
    shown = "" if met is None else "ok" if met else f"below {bar}"
    print(f"{what}: {ratio:.3f} {shown} {[(round(left), round(right)) for left, right in rates]}", flush=True)
    return {"ratio": round(ratio, 3), "bar_met": met, "all": rates}


def ask(child: subprocess.Popen[str]) -> None:
    """Have a child begin its next slice."""
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def told_by(child: subprocess.Popen[str]) -> float:
    """The rate that it measured."""
    return figures_of(child)[0]


def figures_of(child: subprocess.Popen[str]) -> list[float]:
    """All that it measured: the rate first."""
    assert child.stdout is not None
    return [float(figure) for figure in child.stdout.readline().split()]


def load_children(kafka: Any, topics: dict[bool, str], seconds: float, pace: int) -> dict[bool, subprocess.Popen[str]]:
    """Both kinds of producers, in the same topic or each in its own."""
    kinds = {True: "transactional", False: "idempotent"}
    return {
        kind: start_slice("load", name, kafka.bootstrap_servers, topics[kind], seconds, pace, stdin=subprocess.PIPE)
        for kind, name in kinds.items()
    }


def measure_cost(kafka: Any, rounds: int, seconds: float) -> dict[str, Any]:
    """Four times `rounds` turns of ours, in an order that rotates; Java's pairs are spread over them."""
    kinds = ("transactional", "background", "idempotent")
    topic = kafka.create_topic(partitions=PARTITIONS, retention_bytes=1 << 28)
    servers = kafka.bootstrap_servers
    children = {kind: start_slice("load", kind, servers, topic, seconds, 0, stdin=subprocess.PIPE) for kind in kinds}

    def ours(kind: str) -> tuple[float, float]:
        ask(children[kind])
        rate, cpu = figures_of(children[kind])
        return rate, cpu

    def javas(is_transactional: bool) -> float:
        own_topic = kafka.create_topic(partitions=PARTITIONS, retention_bytes=1 << 28)
        return java_rate(servers, own_topic, seconds, is_transactional=is_transactional)

    for _ in range(2 * WARM_UP_TURNS):
        for kind in kinds:
            ours(kind)
    other_load = OtherLoad(kafka, children.values())
    turns: list[dict[str, tuple[float, float]]] = []
    java: list[tuple[float, float]] = []
    for turn in range(4 * rounds):
        order = kinds[turn % 3 :] + kinds[: turn % 3]
        turns.append({kind: ours(kind) for kind in order[:: 1 if turn % 2 else -1]})
        if turn % 4 == 3:
            rates = {is_transactional: javas(is_transactional) for is_transactional in (turn % 8 == 3, turn % 8 != 3)}
            java.append((rates[True], rates[False]))
    others = other_load.cores()
    end_all(children.values())
    javas_ratio = statistics.median(left / right for left, right in java)
    told: dict[str, Any] = {"Java": {"ratio": round(javas_ratio, 3), "bar_met": None, "all": java}, "others": others}
    bars = {"transactional": max(BAR_ORDINARY, javas_ratio), "background": BAR_BACKGROUND}
    for kind, bar in bars.items():
        rates_of = [(turn[kind][0], turn["idempotent"][0]) for turn in turns]
        ratio = statistics.median(left / right for left, right in rates_of)
        cpu = round(statistics.median(turn[kind][1] / turn["idempotent"][1] for turn in turns), 3)
        name = "kcodec" if kind == "transactional" else "kcodec, commit_transaction_async"
        told[name] = {
            "ratio": round(ratio, 3),
            "bar_met": ratio >= bar,
            "bar": round(bar, 3),
            "cpu": cpu,
            "all": rates_of,
        }
        shown = [(round(left), round(right)) for left, right in rates_of]
        verdict = "ok" if ratio >= bar else f"below {bar:.3f}"
        print(f"{name}: {ratio:.3f} of idempotent {verdict}, CPU a record {cpu:.2f} times {shown}", flush=True)
    shown = [(round(left), round(right)) for left, right in java]
    print(f"Java: {javas_ratio:.3f} of idempotent {shown}; other load: {others} cores", flush=True)
    return told


def measure_beside(kafka: Any, rounds: int, seconds: float) -> dict[str, Any]:
    topics = {kind: kafka.create_topic(partitions=PARTITIONS) for kind in (True, False)}
    ordinary = {
        kind: start_slice("load", "idempotent", kafka.bootstrap_servers, topic, seconds, 0, stdin=subprocess.PIPE)
        for kind, topic in topics.items()
    }
    others = load_children(kafka, topics, seconds + 0.5, PACE)

    def ours(is_transactional: bool) -> float:
        ask(others[is_transactional])
        time.sleep(0.25)
        ask(ordinary[is_transactional])
        rate = told_by(ordinary[is_transactional])
        told_by(others[is_transactional])
        return rate

    for _ in range(WARM_UP_TURNS):
        ours(True), ours(False)
    what = "beside a transactional producer / beside an ordinary one"
    other_load = OtherLoad(kafka, [*ordinary.values(), *others.values()])
    found = pairs(4 * rounds, ours, what, BAR_BESIDE)
    found["others"] = other_load.cores()
    end_all([*ordinary.values(), *others.values()])
    return found


def end_all(children: Iterable[subprocess.Popen[str]]) -> None:
    """What closing costs is not asked."""
    for child in children:
        child.kill()
        child.communicate()


def main() -> None:
    """Measure, print, write."""
    if sys.argv[1:2] == ["--child"]:
        kind, *rest = sys.argv[2:]
        (rate_child if kind == "rate" else load_child)(*rest)
        return
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="rate,cost,beside")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    told: dict[str, Any] = {"load": os.getloadavg(), "cores": os.cpu_count(), "when": time.strftime("%Y-%m-%d %H:%M")}
    parts = {"rate": measure_rate, "cost": measure_cost, "beside": measure_beside}
    with ApacheKafka(heap="256m") as kafka:
        for name in given.part.split(","):
            told[name] = parts[name](kafka, given.rounds, given.seconds)
    told["load_after"] = os.getloadavg()
    if given.json is not None:
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
