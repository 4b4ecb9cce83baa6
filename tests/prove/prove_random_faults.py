# SPDX-License-Identifier: Apache-2.0
"""Transactions under random faults, several at once, on real brokers; then the log compared with what was reported.

    python tests/prove/prove_random_faults.py [--seconds 60] [--seed N] [--results FOLDER]

Between producer and broker a proxy loses, cuts, delays, repeats and refuses requests and answers of eight APIs, one to
three rules a transaction; some stay in force into the next one, and what is held arrives late. Shown for each broker:
transactions reported committed are there whole and once, in order; those reported aborted are not; those of unknown
outcome are there whole or not at all; nothing stays open; every block ended within its time. A line for
each broker and API (threads, asyncio) goes into random-faults.txt.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from raw_broker import RawBroker, values

import kcodec
from kcodec import ConsumerGroupMetadata, TopicPartition, errors
from kcodec.client import Producer, aio
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy

BROKERS: tuple[tuple[str, int], ...] = (("4.4.0", 2), ("4.4.0", 0), ("4.3.1", 2), ("3.9.1", 0))
PARTITIONS, LEAST_COMMITTED = 3, 8
TIMEOUT, BLOCK_SECONDS = 4.0, 16.0
# PRODUCE_CODES refuse a request that the broker never sees, WRITTEN_CODES stand in for the answer to one that it wrote.
COORDINATOR_CODES, PRODUCE_CODES, WRITTEN_CODES = (7, 14, 15, 16, 51), (3, 5, 6, 7, 19), (3, 6, 7, 20, 56)
APIS = {
    "Produce": PRODUCE_CODES,
    **dict.fromkeys(("EndTxn", "TxnOffsetCommit", "InitProducerId"), COORDINATOR_CODES),
    **dict.fromkeys(("AddPartitionsToTxn", "AddOffsetsToTxn", "FindCoordinator"), COORDINATOR_CODES),
    "Metadata": (),
}
OPTIONS: dict[str, Any] = {
    "request_timeout_ms": 800,
    "delivery_timeout_ms": 2500,
    "max_block_ms": 4000,
    "retry_backoff_ms": 20,
    "reconnect_backoff_ms": 10,
    "transaction_timeout_ms": 30_000,
}


@dataclass
class Reported:
    """What became of a transaction, as the producer says. sent: partition -> records."""

    committed: bool | None
    sent: dict[int, int]


@dataclass
class Hunt:
    """One producer at a time, its transactions and its faults."""

    kafka: ApacheKafka
    proxy: KafkaProxy
    random: random.Random
    producer_class: Any = Producer
    topic: str = ""
    reported: dict[int, Reported] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)

    def run(self, seconds: float) -> None:
        """Transactions for so long, and until a few were committed; then whatever is still open is ended."""
        self.topic = self.kafka.create_topic(partitions=PARTITIONS)
        producer = self.producer(self.proxy.bootstrap_servers)
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.outcomes["committed=True"] < LEAST_COMMITTED:
            rules = self.rules() if self.random.random() < 0.7 else []
            is_usable = self.transaction(producer, len(self.reported) + 1)
            for rule in rules:
                rule.remove()
            if not is_usable or self.random.random() < 0.05:
                producer.close(TIMEOUT)
                producer = self.producer(self.proxy.bootstrap_servers)
        producer.close(TIMEOUT)
        with Producer(bootstrap_servers=self.kafka.bootstrap_servers, transactional_id="random-faults") as last:
            last.init_transactions()

    def producer(self, servers: str) -> Any:
        """Another one with the same transactional id, as after a restart."""
        linger = self.random.choice((0, 5))
        return self.producer_class(
            bootstrap_servers=servers, transactional_id="random-faults", linger_ms=linger, **OPTIONS
        )

    def rules(self) -> list[Any]:
        """One to three faults."""
        return [self.rule() for _ in range(self.random.choice((1, 1, 2, 3)))]

    def rule(self) -> Any:
        api, codes = self.random.choice(list(APIS.items()))
        is_request = self.random.random() < 0.5
        choose = self.proxy.on_request if is_request else self.proxy.on_response
        chosen = choose(api, nth=self.random.choice((1, 1, 1, 2)), count=self.random.choice((1, 1, 2, 3)))
        kinds = ["drop", "cut", "deliver_and_cut", "hold", "hold"] + (["duplicate"] if is_request else [])
        kind = self.random.choice(kinds + (["code"] * 2 if codes else []))
        if kind == "hold":
            return chosen.hold(self.random.uniform(0.1, 3.0), cut_client=is_request and self.random.random() < 0.5)
        if kind == "code":
            code = self.random.choice(WRITTEN_CODES if api == "Produce" and not is_request else codes)
            return chosen.answer(error=code) if is_request else chosen.replace(error=code)
        return getattr(chosen, kind)()

    def transaction(self, producer: Any, number: int) -> bool:
        """One block; whether the producer says that it can go on."""
        sent: collections.Counter[int] = collections.Counter()
        begun = time.monotonic()
        txn, is_usable = producer.transaction(timeout=TIMEOUT), True
        try:
            with txn:
                self.fill(producer, txn, number, sent)
        except _Raised:
            self.outcomes["raised"] += 1
        except errors.KcodecError as error:
            self.outcomes[type(error).__name__] += 1
            remedy = getattr(error, "remedy", "")
            is_usable = remedy not in ("recreate", "stop") and not isinstance(error, errors.TransactionStateError)
        if time.monotonic() - begun > BLOCK_SECONDS:
            self.faults.append(f"transaction {number} took {time.monotonic() - begun:.1f} s")
        self.reported[number] = Reported(txn.committed if sent else False, dict(sent))
        self.outcomes[f"committed={txn.committed}"] += 1
        return is_usable

    def fill(self, producer: Any, txn: Any, number: int, sent: collections.Counter[int]) -> None:
        """What a transaction holds: up to six records, perhaps offsets, perhaps an end of its own."""
        for _ in range(self.random.randint(0, 6)):
            partition = self.random.randrange(PARTITIONS)
            txn.send(self.topic, f"{number}:{sent[partition]}".encode(), partition=partition)
            sent[partition] += 1
            if self.random.random() < 0.2:
                producer.flush()
        if self.random.random() < 0.3:
            txn.send_offsets({TopicPartition(self.topic, 0): number}, ConsumerGroupMetadata("random-faults"))
        chance = self.random.random()
        if chance < 0.15:
            txn.abort()
        elif chance < 0.25:
            raise _Raised

    def judge(self) -> None:
        """The log compared with what was told; differences are `faults`."""
        seen: dict[int, dict[int, list[int]]] = collections.defaultdict(dict)
        for partition in range(PARTITIONS):
            last = 0
            for number, index in self.read(partition):
                if number < last or index != len(seen[number].get(partition, ())):
                    self.faults.append(f"partition {partition}: record {index} of transaction {number} behind {last}")
                seen[number].setdefault(partition, []).append(index)
                last = number
        for number, reported in self.reported.items():
            found = {partition: len(indexes) for partition, indexes in seen[number].items()}
            allowed = {True: (reported.sent,), False: ({},), None: (reported.sent, {})}[reported.committed]
            if found not in allowed:
                self.faults.append(
                    f"transaction {number}: committed={reported.committed}, {reported.sent} sent, {found} found"
                )

    def read(self, partition: int) -> Iterator[tuple[int, int]]:
        """What a read_committed consumer gets: (transaction, index of its record in the partition)."""
        offset, deadline = 0, time.monotonic() + 20
        with RawBroker(self.kafka.bootstrap_servers) as broker:
            while True:
                found = broker.fetch(self.topic, partition=partition, isolation_level=1, offset=offset)
                if not found.records:
                    if found.last_stable_offset == found.high_watermark:
                        return
                    if time.monotonic() > deadline:
                        self.faults.append(f"partition {partition}: open from {found.last_stable_offset} on")
                        return
                    time.sleep(0.1)
                    continue
                pairs = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
                for value in values(found, isolation_level="read_committed", aborted_transactions=pairs):
                    number, _, index = (value or b"").partition(b":")
                    yield int(number), int(index)
                offset = list(kcodec.batches(found.records))[-1].last_offset + 1


class Looped:
    """The asyncio producer, and its transactions, on a loop of its own thread, under the blocking one's names."""

    def __init__(self, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._producer = self._run(self._make(options))

    async def _make(self, options: dict[str, Any]) -> aio.Producer:
        return aio.Producer(**options)

    def _run(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result(60)

    def transaction(self, timeout: float) -> LoopedTransaction:
        return LoopedTransaction(self._producer.transaction(timeout=timeout), self._run)

    def flush(self) -> None:
        self._run(self._producer.flush())

    def close(self, timeout: float) -> None:
        self._run(self._producer.close(timeout))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class LoopedTransaction:
    """See Looped."""

    def __init__(self, transaction: Any, run: Callable[[Any], Any]) -> None:
        self._transaction, self._run = transaction, run

    def __enter__(self) -> LoopedTransaction:
        self._run(self._transaction.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._run(self._transaction.__aexit__(*error))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._transaction, name)
        return (lambda *given, **named: self._run(found(*given, **named))) if callable(found) else found


class _Raised(Exception):
    """An application's own error."""


def hunt(
    version: str, transaction_version: int, producer_class: Any, seed: int, seconds: float
) -> tuple[str, list[str]]:
    """One broker and API: a line, and what was wrong."""
    with (
        ApacheKafka(version, transaction_version=transaction_version) as kafka,
        KafkaProxy(kafka.bootstrap_servers) as proxy,
    ):
        found = Hunt(kafka, proxy, random.Random(seed), producer_class)
        found.run(seconds)
        found.judge()
    outcomes = ", ".join(f"{name} {count}" for name, count in sorted(found.outcomes.items()))
    summary = "as reported" if not found.faults else f"{len(found.faults)} WRONG"
    where = f"{version} at {transaction_version}, {'asyncio' if producer_class is Looped else 'threads'}, seed {seed}"
    return f"{where}: {len(found.reported)} transactions, {summary} ({outcomes})", found.faults


def main() -> int:
    """Every broker in turn; exit status 1 if anything was not as reported."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each broker and API")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--results", type=Path, default=None, help="folder for random-faults.txt")
    arguments = parser.parse_args()
    logging.getLogger("kcodec").setLevel(logging.CRITICAL)  # there is a fault to be warned of all the time
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    lines, wrong = [], 0
    for (version, transaction_version), producer_class in itertools.product(BROKERS, (Producer, Looped)):
        line, faults = hunt(version, transaction_version, producer_class, seed, arguments.seconds)
        wrong += len(faults)
        lines += [line, *(f"    {fault}" for fault in faults)]
        print("\n".join(lines[-1 - len(faults) :]), flush=True)
    if arguments.results is not None:
        (arguments.results / "random-faults.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
