# SPDX-License-Identifier: Apache-2.0
"""Brokers restarted twenty times under load: the producer goes on, nothing is lost, nothing is there twice.

    python tests/prove/prove_broker_restarts.py [--restarts 20] [--versions 4.4.0] [--results FOLDER]

An idempotent producer sends numbered records to three partitions, and a transactional one transactions, while the three
nodes of the cluster are taken down one after the other, stopped in an orderly way and killed (SIGKILL) in turn; a proxy
cuts off one of 200 responses to Produce.
Every Delivery must end in an offset; a read_committed consumer of librdkafka must find each record once and in order.
The control is the same producer without idempotence: its repeats show as duplicates.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import broker_kills
from broker_kills import BrokerKills
from confluent_client import end_open_transactions, read_committed
from kcodec_client import KcodecClient
from transaction_load import Findings, Written, add_results, judge, make_records

from kcodec.errors import KcodecError
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka
from kcodec.testing.proxy import KafkaProxy

PARTITIONS = 3
RECORDS_A_SECOND = 2000
CUT_SHARE = 1 / 200
PAUSE_SECONDS = 1.0  # that a broker runs between two restarts
OPTIONS = {
    "request_timeout_ms": 3_000,
    "delivery_timeout_ms": 60_000,
    "default_api_timeout_ms": 60_000,
    "max_block_ms": 60_000,
    "linger_ms": 5,
}


class Stream:
    """A producer that sends numbered records until it is stopped, and what became of each."""

    def __init__(self, bootstrap_servers: str, topic: str, **options: Any) -> None:
        from kcodec.client import Producer

        self.topic = topic
        self.failed: list[tuple[bytes, KcodecError]] = []
        self.sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        self._deliveries: list[tuple[bytes, Any]] = []
        self._stop = threading.Event()
        self._producer = Producer(bootstrap_servers=bootstrap_servers, **{**OPTIONS, **options})
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sent, begin = 0, time.monotonic()
        while not self._stop.is_set():
            due = int((time.monotonic() - begin) * RECORDS_A_SECOND)
            for number in range(sent, due):
                partition, value = number % PARTITIONS, b"%09d" % number
                self.sent[partition].append(value)
                self._deliveries.append((value, self._producer.send(self.topic, value, partition=partition)))
            sent = due
            time.sleep(0.005)

    def stop(self) -> None:
        """Send no more, and wait until every record has ended."""
        self._stop.set()
        self._thread.join(120)
        for value, delivery in self._deliveries:
            try:
                delivery.result(90)
            except KcodecError as error:
                self.failed.append((value, error))
        self._producer.close()

    def findings(self, found: dict[int, list[bytes]]) -> dict[str, int]:
        """What the log makes of it."""
        failed = {value for value, _ in self.failed}
        counts = {partition: Counter(values) for partition, values in found.items()}
        return {
            "records": sum(len(values) for values in self.sent.values()),
            "failed": len(failed),
            "lost": sum(
                value not in counts[partition] and value not in failed
                for partition, values in self.sent.items()
                for value in values
            ),
            "duplicated": sum(times - 1 for count in counts.values() for times in count.values()),
            "disordered": sum(before > after for values in found.values() for before, after in pairwise(values)),
        }


class Transactions:
    """A producer that writes transactions until it is stopped."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.written: list[Written] = []
        self._client = KcodecClient(bootstrap_servers, topic, topic, **OPTIONS)
        self._topic = topic
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="transactions", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                number = len(self.written)
                records = make_records(self._topic, number, range(PARTITIONS), 5)
                outcome = self._client.transact(records, commit=number % 3 != 2)
                self.written.append(Written(self._topic, number, records, outcome))
        except BaseException as error:  # noqa: BLE001 - raised by stop()
            self._error = error

    def stop(self) -> None:
        """Write no more."""
        self._stop.set()
        self._thread.join(180)
        self._client.close()
        if self._error is not None:
            raise self._error


def restart(kills: BrokerKills, restarts: int) -> None:
    """Stop or kill one node, and start it again, the given number of times."""
    for number in range(restarts):
        time.sleep(PAUSE_SECONDS)
        if number % 2:
            kills.kill_one()
        else:
            kills.stop_one()
    time.sleep(PAUSE_SECONDS)


def prove(version: str, restarts: int) -> tuple[dict[str, dict[str, int]], Findings]:
    """One Kafka, three producers at once: idempotent, the control, transactional."""
    chance = random.Random(restarts)
    with ApacheKafka(version, **broker_kills.OPTIONS) as kafka:
        topics = {
            name: kafka.create_topic(partitions=PARTITIONS) for name in ("idempotent", "control", "transactional")
        }
        with KafkaProxy(kafka.bootstrap_servers) as proxy:
            proxy.on_response("Produce", count=None, where=lambda exchange: chance.random() < CUT_SHARE).cut()
            address = proxy.bootstrap_servers
            streams = {
                "idempotent": Stream(address, topics["idempotent"]),
                "control": Stream(address, topics["control"], enable_idempotence=False),
            }
            transactions = Transactions(address, topics["transactional"])
            restart(BrokerKills(kafka, dict.fromkeys(topics.values(), PARTITIONS)), restarts)
            everyone: list[Stream | Transactions] = [*streams.values(), transactions]
            for one in everyone:
                one.stop()
        end_open_transactions(kafka.admin_servers, [topics["transactional"]])
        found = {name: read_committed(kafka.admin_servers, topic, PARTITIONS) for name, topic in topics.items()}
        for stream in streams.values():
            for value, error in stream.failed[:3]:
                print(value, repr(error))
        findings = {name: stream.findings(found[name]) for name, stream in streams.items()}
        return findings, judge(transactions.written, found["transactional"])


def main() -> int:
    """0 if ours lost nothing, doubled nothing, kept the order and told no error, and the control did double."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--versions", nargs="+", default=[KAFKA_VERSION])
    parser.add_argument("--results", type=Path, help="folder of broker-restarts-DATE.txt, which is added to")
    arguments = parser.parse_args()
    lines, right = [], True
    for version in arguments.versions:
        begin = time.monotonic()
        streams, transactional = prove(version, arguments.restarts)
        lines.append(f"{version}, {arguments.restarts} restarts, {time.monotonic() - begin:.0f} s")
        for name, counts in streams.items():
            lines.append(f"  {name}: {', '.join(f'{what} {count}' for what, count in counts.items())}")
        lines.append(f"  transactional: {transactional.line()}")
        ours = streams["idempotent"]
        bad = ours["failed"] + ours["lost"] + ours["duplicated"] + ours["disordered"] + transactional.faults
        right = right and not bad and streams["control"]["duplicated"] > 0
        print(*lines[-4:], *transactional.examples, sep="\n", flush=True)
    add_results(arguments.results, "broker-restarts", lines)
    print(f"{sum('restarts' in line for line in lines)} runs: {'as they must be' if right else 'NOT as they must be'}")
    return not right


if __name__ == "__main__":
    sys.exit(main())
