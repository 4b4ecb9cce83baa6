# SPDX-License-Identifier: Apache-2.0
"""A session that is stopped (SIGSTOP) at each wire step until its session and its transaction are over and another one
has done its work; then it goes on, and must neither write twice nor lose its way.

    python tests/prove/prove_stopped_sessions.py [--rounds 4.4.0/2/classic ...] [--results FOLDER]

At each step means: a proxy holds the request, so that it comes late, or its answer; the process is stopped, another
session of the group copies what there is, then what was held is let go and the process goes on. More records come, and
both must copy them. The log is read from disk: every record once, in order. The stopped one must have raised an
error that says that its transaction was aborted, or that it is fenced; afterwards it is usable, or its error says
"recreate" or "stop".
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from producer_apis import stored
from session_apis import APIS
from transaction_load import add_results

from kcodec.client import Producer
from kcodec.errors import BrokerError, KcodecError
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy
from kcodec.testing.proxy.rules import Rule

PARTITIONS, RECORDS = 2, 12
SESSION_SECONDS = TRANSACTION_SECONDS = 1.5
# The broker of these tests looks every 0.5 s for transactions that are over their time.
OVER_SECONDS = 3.0
STEP_SECONDS = 60.0
ROUNDS = ("4.4.0/2/classic", "4.4.0/2/consumer", "4.4.0/0/classic", "4.3.1/2/consumer", "3.9.1/0/classic")
BROKER: dict[str, dict[str, Any]] = {
    "classic": {},
    "consumer": {
        "group_consumer_session_timeout_ms": int(SESSION_SECONDS * 1000),
        "group_consumer_heartbeat_interval_ms": 300,
    },
}
STEPS = {
    "classic": (("JoinGroup", 2), ("SyncGroup", 1), ("Heartbeat", 1), ("Heartbeat", 2)),
    "consumer": (("ConsumerGroupHeartbeat", 1), ("ConsumerGroupHeartbeat", 2), ("ConsumerGroupHeartbeat", 4)),
    "both": (
        ("InitProducerId", 1),
        ("OffsetFetch", 1),
        ("ListOffsets", 1),
        ("Fetch", 1),
        ("Fetch", 3),
        ("Produce", 1),
        ("Produce", 2),
        ("TxnOffsetCommit", 1),
        ("TxnOffsetCommit", 2),
        ("EndTxn", 1),
        ("EndTxn", 2),
    ),
    "old flow": (("AddPartitionsToTxn", 1), ("AddPartitionsToTxn", 2), ("AddOffsetsToTxn", 1), ("AddOffsetsToTxn", 2)),
}


def options(servers: str, group: str, name: str, source: str, protocol: str) -> dict[str, Any]:
    """Of the sessions of a step."""
    classic = {"session_timeout_ms": SESSION_SECONDS * 1000, "heartbeat_interval_ms": 300}
    return {
        "bootstrap_servers": servers,
        "client_id": name,
        "group_id": group,
        "transactional_id": name,
        "topics": [source],
        "group_protocol": protocol,
        "transaction_timeout_ms": TRANSACTION_SECONDS * 1000,
        "request_timeout_ms": 4_000,
        "max_block_ms": 6_000,
        "max_poll_records": 3,
        "fetch_max_wait_ms": 100,
        "linger_ms": 0,
        **(classic if protocol == "classic" else {}),
    }


@dataclass
class Reported:
    """The outcomes that a session reported of its transactions that did anything. last: that of the last one."""

    outcomes: Counter[str] = field(default_factory=Counter)
    last: str = ""
    errors: list[str] = field(default_factory=list)
    ended_by: str = ""  # the remedy of an error after which it had to stop


def copy(api_name: str, given: dict[str, Any], target: str, is_over: threading.Event) -> Reported:
    """Copy until `is_over` is set, or nothing more can be done."""
    reported = Reported()
    with APIS[api_name](**given) as session:
        while not is_over.is_set() and not reported.ended_by:
            txn, count = session.transaction(), 0
            try:
                with txn:
                    records = txn.poll(0.2)
                    count = len(records)
                    for record in records:
                        txn.send(target, record.value, partition=record.partition)
            except KcodecError as error:
                reported.errors.append(f"{type(error).__name__}: {error}")
                if isinstance(error, BrokerError) and error.remedy in ("recreate", "stop"):
                    reported.ended_by = error.remedy
            if count or txn.committed is not True:
                reported.last = str(txn.committed)
                reported.outcomes[reported.last] += 1
    return reported


def work(api_name: str, servers: str, group: str, name: str, source: str, target: str, protocol: str) -> None:
    """Run as the process that is stopped. At SIGTERM, print the outcomes that the session reported."""
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    reported = copy(api_name, options(servers, group, name, source, protocol), target, is_over)
    print(
        json.dumps(
            {
                "outcomes": reported.outcomes,
                "last": reported.last,
                "errors": reported.errors,
                "ended_by": reported.ended_by,
            }
        )
    )


@dataclass
class Step:
    """One stop, and what came of it."""

    name: str
    reported: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Stopper:
    """Runs one worker a step."""

    def __init__(self, kafka: ApacheKafka, proxy: KafkaProxy, protocol: str, api_name: str) -> None:
        self.kafka, self.proxy, self.protocol, self.api_name = kafka, proxy, protocol, api_name

    def run(self, at: tuple[str, int, str]) -> Step:
        """Stop a worker at this step, have another one do its work, let it go on."""
        api, nth, side = at
        step = Step(f"{side} of {api} no. {nth}")
        source, target = (self.kafka.create_topic(partitions=PARTITIONS) for _ in range(2))
        self._seed(source, 0)
        name = f"{source}-stopped"
        choose = self.proxy.on_request if side == "request" else self.proxy.on_response
        rule = choose(api, nth=nth, client_id=name).hold()
        own = [self.api_name, self.proxy.bootstrap_servers, source, name, source, target, self.protocol]
        is_over = threading.Event()
        command = [sys.executable, __file__, "--worker", *own]
        with (
            ThreadPoolExecutor(1) as pool,
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as worker,
        ):
            try:
                self._wait(step, "the step came", lambda: bool(rule.hits) or worker.poll() is not None)
                self._stop(rule, worker)
                given = options(self.kafka.bootstrap_servers, source, f"{source}-other", source, self.protocol)
                other = pool.submit(copy, self.api_name, given, target, is_over)
                self._wait(step, "the other copied", lambda: self._count(target) >= RECORDS)
                rule.remove()
                worker.send_signal(signal.SIGCONT)
                self._seed(source, RECORDS)
                self._wait(step, "both copied", lambda: self._count(target) >= 2 * RECORDS)
                self._alone(step, worker, is_over, other, source, target)
            finally:
                rule.remove()
                is_over.set()
                worker.send_signal(signal.SIGCONT)
                worker.send_signal(signal.SIGTERM)
            said, _ = worker.communicate(timeout=STEP_SECONDS)
        step.reported = json.loads(said.splitlines()[-1]) if said.strip() else {}
        self._judge(step, target)
        return step

    def _stop(self, rule: Rule, worker: subprocess.Popen[str]) -> None:
        if rule.hits:
            worker.send_signal(signal.SIGSTOP)
            time.sleep(OVER_SECONDS)

    def _alone(
        self,
        step: Step,
        worker: subprocess.Popen[str],
        is_over: threading.Event,
        other: Any,
        source: str,
        target: str,
    ) -> None:
        """The other one leaves; the stopped one does all that comes, unless it has said that it cannot."""
        is_over.set()
        other.result(STEP_SECONDS)
        self._seed(source, 2 * RECORDS)
        self._wait(
            step,
            "the stopped one copied alone",
            lambda: self._count(target) >= 3 * RECORDS or worker.poll() is not None,
        )

    def _wait(self, step: Step, what: str, is_so: Any) -> None:
        deadline = time.monotonic() + STEP_SECONDS / 2
        while not is_so():
            if time.monotonic() > deadline:
                step.faults.append(f"not in time: {what}")
                return
            time.sleep(0.02)

    def _seed(self, source: str, first: int) -> None:
        with Producer(bootstrap_servers=self.kafka.admin_servers) as producer:
            for number in range(first, first + RECORDS):
                producer.send(source, b"%d" % number, partition=number % PARTITIONS)

    def _found(self, target: str) -> list[list[int]]:
        logs = [stored(self.kafka, target, partition) for partition in range(PARTITIONS)]
        return [[int(record.value or b"") for record in log.records("read_committed")] for log in logs]

    def _count(self, target: str) -> int:
        return sum(map(len, self._found(target)))

    def _judge(self, step: Step, target: str) -> None:
        ended_by, last = step.reported.get("ended_by"), step.reported.get("last")
        total = 2 * RECORDS if ended_by else 3 * RECORDS
        found = self._found(target)
        if found != [list(range(start, total, PARTITIONS)) for start in range(PARTITIONS)]:
            step.faults.append(f"the output is {found}")
        if not ended_by and last != "True":
            step.faults.append(f"afterwards its last transaction is {last}: {step.reported}")


def main() -> int:
    """0 if all held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", nargs="+", default=ROUNDS, help="Kafka / transaction.version / group protocol")
    parser.add_argument("--apis", nargs="+", default=list(APIS), choices=APIS)
    parser.add_argument("--only", default="", help="steps whose API holds this")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--worker", nargs=7, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help="folder of stopped-sessions-DATE.txt, which is added to")
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return 0
    lines, bad = [], 0
    for row in arguments.rounds:
        version, level, protocol = row.split("/")
        named = STEPS[protocol] + STEPS["both"] + (STEPS["old flow"] if int(level) < 2 else ())
        steps = [(*one, side) for one in named for side in ("request", "answer") if arguments.only in one[0]]
        broker: dict[str, Any] = {
            "group_consumer_session_timeout_ms": int(SESSION_SECONDS * 1000),
            "group_consumer_heartbeat_interval_ms": 300,
        }
        with ApacheKafka(
            version, transaction_version=int(level), **(broker if protocol == "consumer" else {})
        ) as kafka:
            for api_name in arguments.apis:
                begin = time.monotonic()
                with KafkaProxy(kafka.bootstrap_servers) as proxy, ThreadPoolExecutor(arguments.at_once) as pool:
                    done = list(pool.map(Stopper(kafka, proxy, protocol, api_name).run, steps))
                faults = [f"{one.name}: {fault}" for one in done for fault in one.faults]
                bad += len(faults)
                kinds = Counter(error.split(":")[0] for one in done for error in one.reported.get("errors", ()))
                ended = Counter(one.reported.get("ended_by") or "usable" for one in done)
                lines.append(
                    f"{row:17} {api_name:8} stopped at {len(done)} steps: every record once and in order but for "
                    f"{len(faults)} faults; afterwards {dict(ended)}; raised {dict(kinds)} "
                    f"[{time.monotonic() - begin:.0f} s]"
                )
                print(lines[-1], *faults, sep="\n    ", flush=True)
                add_results(arguments.results, "stopped-sessions", lines[-1:])
    print(f"{len(lines)} rounds: {'all held' if not bad else f'{bad} faults'}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
