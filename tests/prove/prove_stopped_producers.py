# SPDX-License-Identifier: Apache-2.0
"""A producer that is stopped (SIGSTOP) before each wire step, until its transaction has timed out and another one with
its transactional id has taken over; then it goes on, and must raise ProducerFencedError.

    python tests/prove/prove_stopped_producers.py [--clusters 4.4.0/2 4.4.0/0 ...] [--results FOLDER]

Before each step means: behind each answer. A proxy holds the answer, the process is stopped, the answer let go; the
next request is what it sends when it goes on. Both do the same work, as a job that is started again does: take the id
over, look at the committed offset whether the work is done, write it and the offset in one transaction. Three rounds:
another producer takes over after the transaction's time-out; one takes over before it; none does, and the producer
must say that its transaction timed out. The log is read by librdkafka's read_committed consumer. The control does the
same work without a transactional id: it must show duplicates.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from confluent_client import commit_offset, committed_offset, end_open_transactions, read_committed
from transaction_apis import APIS, Work
from transaction_cluster import PROVED_CLUSTERS
from transaction_load import COMMITTED, GIVEN_UP, Findings, Written, add_results, judge, make_records

from kcodec.errors import DeliveryErrors, KcodecError
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy
from kcodec.testing.proxy.answers import structs_of
from kcodec.testing.proxy.frames import Exchange
from kcodec.testing.proxy.rules import Rule

PARTITIONS = 2
TRANSACTION_SECONDS = 2.0
# The broker of these tests looks every 0.5 s for transactions that are over their time.
TIMED_OUT_SECONDS = TRANSACTION_SECONDS + 1.5
WORKER_SECONDS = 60
CONTROL = "control"
NOT_TAKEN_OVER = "not taken over"
ROUNDS = ("after the time-out", "before the time-out", NOT_TAKEN_OVER, CONTROL)
SKIPPED = "skipped"  # the work was done already
OPENING = ("AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit")
CODES = ("error_code", "partition_error_code")
FENCED, TIMED_OUT = "ProducerFencedError", "TransactionTimedOutError"


@dataclass(frozen=True)
class Job:
    """The work of a step: who does it, where. transactional: or as the control does it."""

    bootstrap_servers: str
    topic: str
    name: str
    client_id: str
    transactional: bool

    def do(self) -> tuple[str, Exception | None]:
        """Do the work if it is not done. Return its outcome and the error that the producer raised."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "linger_ms": 0,
        }
        if self.transactional:
            options |= {"transactional_id": self.name, "transaction_timeout_ms": int(TRANSACTION_SECONDS * 1000)}
        client = APIS["blocking"](**options)
        try:
            return self._do(client)
        except KcodecError as error:
            return GIVEN_UP, error
        finally:
            with suppress(DeliveryErrors):  # of the control; it reports its own failures
                client.close()

    def _do(self, client: Any) -> tuple[str, Exception | None]:
        if self.transactional:
            client.producer.init_transactions()  # fences the producer that had the id before
        if committed_offset(self.bootstrap_servers, self.name, self.topic, 0) > 0:
            return SKIPPED, None
        records = make_records(self.name, 0, range(PARTITIONS), 2)
        if self.transactional:
            offsets = {TopicPartition(self.topic, 0): 1}
            reported = client.transact(Work(self.topic, records, offsets, ConsumerGroupMetadata(self.name)))
            return reported.outcome, reported.error
        sent = [client.producer.send(self.topic, value, partition=at) for at in records for value in records[at]]
        for delivery in sent:
            delivery.result(30)
        commit_offset(self.bootstrap_servers, self.name, self.topic, 0, 1)
        return COMMITTED, None


def work(arguments: argparse.Namespace) -> None:
    """Run as the process that is stopped. Print the outcome and the error that was raised as a line of JSON."""
    servers, topic, name, client_id, transactional = arguments.worker
    outcome, error = Job(servers, topic, name, client_id, transactional == "True").do()
    print(json.dumps({"outcome": outcome, "error": type(error).__name__ if error else "", "text": str(error or "")}))


@dataclass
class Step:
    """One stop: behind which answer of which API, and what came of it."""

    name: str
    number: int
    api: str = ""
    came_before: set[str] = field(default_factory=set)
    opened: str = "no"  # the transaction, at the broker: yes, no, or perhaps, where an answer was still to come
    reported: dict[str, str] = field(default_factory=dict)
    successor: str = ""
    faults: list[str] = field(default_factory=list)


def opened(exchanges: list[Exchange]) -> str:
    """Whether one of them opened the transaction: a Produce that was refused (19) has not."""
    answers = [exchange for exchange in exchanges if exchange.api in OPENING]
    for exchange in answers:
        if exchange.response is not None:
            found = structs_of(exchange.response_message())
            codes = [getattr(one, name) for one in found for name in CODES if hasattr(one, name)]
            if not any(codes):
                return "yes"
    return "perhaps" if any(exchange.response is None for exchange in answers) else "no"


class Stopper:
    """Runs one worker a step, all at the same time."""

    def __init__(self, kafka: ApacheKafka, proxy: KafkaProxy, topic: str, takeover: str) -> None:
        self.kafka, self.proxy, self.topic, self.takeover = kafka, proxy, topic, takeover
        self.transactional = takeover != CONTROL

    def start(self, name: str) -> subprocess.Popen[str]:
        """The process that writes under this transactional id."""
        own = [self.proxy.bootstrap_servers, self.topic, name, name, str(self.transactional)]
        command = [sys.executable, __file__, "--worker", *own]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)

    def steps(self) -> int:
        """How many answers a transaction takes, from one that nothing disturbs."""
        name = f"{self.topic}-steps"
        with self.start(name) as worker:
            worker.communicate(timeout=WORKER_SECONDS)
        return len(self.proxy.exchanges(client_id=name))

    def run(self, number: int) -> Step:
        """Stop a worker behind its answer of this number, let another one take over, let it go on."""
        step = Step(f"{self.topic}-{number}", number)
        rule = self.proxy.on_response(nth=number, client_id=step.name).hold()
        with self.start(step.name) as worker:
            try:
                self._stop_behind(rule, worker, step)
            finally:
                worker.send_signal(signal.SIGCONT)
            said, _ = worker.communicate(timeout=WORKER_SECONDS)
            step.reported = json.loads(said.splitlines()[-1]) if said.strip() else {"outcome": "", "error": "no answer"}
        self._judge(step)
        return step

    def _stop_behind(self, rule: Rule, worker: subprocess.Popen[str], step: Step) -> None:
        """Not every transaction takes as many answers; one that takes fewer ends undisturbed."""
        deadline = time.monotonic() + WORKER_SECONDS
        while not rule.hits and worker.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{step.name}: neither an answer of number {step.number} nor an end")
            time.sleep(0.005)
        if rule.hits:
            step.api = rule.hits[0].api
            worker.send_signal(signal.SIGSTOP)
            time.sleep(0.1)  # what it had sent by then has come through
            before = self.proxy.exchanges(client_id=step.name)
            step.came_before = {exchange.api for exchange in before}
            step.opened = opened(before)
            rule.remove()
            self._take_over(step)

    def _take_over(self, step: Step) -> None:
        if self.takeover not in ("before the time-out", CONTROL):
            time.sleep(TIMED_OUT_SECONDS)
        if self.takeover != NOT_TAKEN_OVER:
            job = Job(self.kafka.admin_servers, self.topic, step.name, f"{step.name}-successor", self.transactional)
            step.successor, error = job.do()
            if step.successor not in (COMMITTED, SKIPPED):
                step.faults.append(f"the one that took over: {step.successor}, {error!r}")

    def _judge(self, step: Step) -> None:
        """Check which error was raised. Only the log disproves "committed" or "aborted", which comes later."""
        error, outcome = step.reported["error"], step.reported["outcome"]
        if not self.transactional:
            return
        owned = "InitProducerId" in step.came_before
        ended = "EndTxn" in step.came_before
        if not owned or ended:
            wanted = {""}  # it takes the id over itself when it goes on; or had committed
        elif self.takeover == NOT_TAKEN_OVER:
            wanted = {"yes": {TIMED_OUT}, "no": {""}, "perhaps": {TIMED_OUT, ""}}[step.opened]
        else:
            wanted = {FENCED}
        if error not in wanted and outcome != SKIPPED:  # a fenced one that finds the work done has nothing to write
            step.faults.append(
                f"reported {error or 'nothing'} ({outcome}), wanted {' or '.join(sorted(wanted)) or 'none'}"
            )
        if (outcome in (COMMITTED, SKIPPED)) != (not error):
            step.faults.append(f"reported {outcome} and {error or 'no error'}")


def run_round(kafka: ApacheKafka, takeover: str) -> tuple[list[Step], Findings]:
    """Run all steps of one round, and compare the log with the reported outcomes."""
    topic = kafka.create_topic(partitions=PARTITIONS)
    with KafkaProxy(kafka.bootstrap_servers, keep_bytes=True) as proxy:
        stopper = Stopper(kafka, proxy, topic, takeover)
        numbers = range(1, stopper.steps() + 1)
        with ThreadPoolExecutor(6) as pool:
            steps = list(pool.map(stopper.run, numbers))
    if takeover != CONTROL:
        end_open_transactions(kafka.admin_servers, [step.name for step in steps])
    # The worker that counted the steps reported that it committed, as every worker that nothing disturbs.
    outcomes = {step.name: outcome_of(step) for step in steps} | {f"{topic}-steps": COMMITTED}
    written = [
        Written(name, 0, make_records(name, 0, range(PARTITIONS), 2), outcome) for name, outcome in outcomes.items()
    ]
    return steps, judge(written, read_committed(kafka.admin_servers, topic, PARTITIONS))


def outcome_of(step: Step) -> str:
    """What both producers of a step said of the one piece of work."""
    reported = {step.reported["outcome"], step.successor}
    return COMMITTED if COMMITTED in reported else step.reported["outcome"]


def main() -> int:
    """Return 0 if every stopped producer raised the right error and the log has no duplicates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="+", default=PROVED_CLUSTERS)
    parser.add_argument("--rounds", nargs="+", default=ROUNDS, choices=ROUNDS)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help="folder of stopped-producers-DATE.txt, which is added to")
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return 0
    lines, bad = [], 0
    for cluster in arguments.clusters:
        version, level = cluster.split("/")
        with ApacheKafka(version, transaction_version=int(level)) as kafka:
            for takeover in arguments.rounds:
                steps, findings = run_round(kafka, takeover)
                faults = [f"behind {step.api}: {fault}" for step in steps for fault in step.faults]
                if takeover == CONTROL:
                    faults += [] if findings.duplicated else ["the control shows no duplicates"]
                    bad += len(faults)
                else:
                    bad += len(faults) + findings.faults
                counts = Counter(step.reported["error"] or "no error" for step in steps)
                reported = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
                label = takeover if takeover == NOT_TAKEN_OVER else f"taken over {takeover}"
                lines.append(f"{cluster:8} {label:31} stopped {len(steps)} times: {reported} | {findings.line()}")
                print(lines[-1], *faults, *findings.examples, sep="\n    ", flush=True)
    add_results(arguments.results, "stopped-producers", lines)
    print(f"{len(lines)} rounds: {'every error was the right one' if not bad else f'{bad} faults'}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
