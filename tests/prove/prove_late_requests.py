# SPDX-License-Identifier: Apache-2.0
"""Requests of transactions that arrive late, after their client had no answer and went on: nothing lost, torn, or read
though aborted.

    python tests/prove/prove_late_requests.py [--clusters 4.4.0/0 4.3.1/0 3.9.1/0] [--clients kcodec control confluent]
                                        [--transactions 130] [--long] [--results FOLDER]

Four producers write transactions over three partitions through a proxy that holds three of ten requests of one kind
for 0.1-4 s: half of them with their client cut off at once, half until its request times out (1 s). The control is
kcodec without the rule that an unanswered request of the old flow spends the epoch; it must show the fault. --long
holds 1-60 s instead. What is read comes from librdkafka's read_committed consumer.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from confluent_client import ConfluentClient, end_open_transactions, read_committed
from kcodec_client import KcodecClient, without_spent_epochs
from transaction_load import Client, Findings, InProcess, add_results, judge, run_producers

from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy
from kcodec.testing.proxy.frames import Exchange
from kcodec.testing.proxy.rules import Rule

PRODUCERS = 4
PARTITIONS = 3
HELD_SHARE = 0.3
APIS = ("EndTxn", "Produce", "AddPartitionsToTxn")
PAUSE_SECONDS = 0.1  # at most, between the partitions of a transaction: a late request then falls into one
SHORT, LONG = (0.1, 4.0), (1.0, 60.0)
OLD_FLOW_ONLY = ("AddPartitionsToTxn",)


@dataclass(frozen=True)
class Run:
    """One line of the results."""

    cluster: str
    client: str
    api: str
    held: int
    versions: dict[str, set[int]]
    findings: Findings
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether it came out as it must; of librdkafka nothing is demanded, of the control see `main`."""
        return self.client != "kcodec" or self.findings.faults == 0

    def line(self) -> str:
        """For the results file."""
        spoken = ", ".join(f"{api} v{'/'.join(map(str, sorted(them)))}" for api, them in self.versions.items() if them)
        return (
            f"{self.cluster:9} {self.client:10} {self.api:19} held {self.held:4}: {self.findings.line()} "
            f"[{spoken}; {self.seconds:.0f} s]"
        )


def hold(proxy: KafkaProxy, api: str, seconds: tuple[float, float], seed: int) -> list[Rule]:
    """Rules that hold a share of the requests of an API, with and without their client cut off."""
    chance = random.Random(seed)

    def sometimes(exchange: Exchange) -> bool:
        return chance.random() < HELD_SHARE / 2

    def duration() -> float:
        return chance.uniform(*seconds)

    choice = proxy.on_request(api, count=None, where=sometimes)
    return [choice.hold(duration, cut_client=True), choice.hold(duration)]


def run(kafka: ApacheKafka, cluster: str, name: str, api: str, arguments: argparse.Namespace) -> Run:
    """One client, one held API, on one cluster."""
    seconds = LONG if arguments.long else SHORT
    topic = kafka.create_topic(partitions=PARTITIONS)
    begin = time.monotonic()
    with KafkaProxy(kafka.admin_servers) as proxy, CLIENTS[name][0]():
        rules = hold(proxy, api, seconds, arguments.seed)
        written = run_producers(
            lambda producer: CLIENTS[name][1](proxy.bootstrap_servers, f"{topic}-{producer}", topic),
            producers=PRODUCERS,
            transactions=arguments.transactions,
            partitions=range(PARTITIONS),
            seed=arguments.seed,
            pause=PAUSE_SECONDS,
            deadline=time.monotonic() + arguments.seconds,
        )
        late = [hit for rule in rules for hit in rule.hits]
        time.sleep(0.2)
        proxy.clear_rules()
        versions = {one: proxy.versions(one) for one in ("EndTxn", "Produce")}
    end_open_transactions(kafka.admin_servers, [f"{topic}-p{number}" for number in range(PRODUCERS)])
    findings = judge(written, read_committed(kafka.admin_servers, topic, PARTITIONS))
    return Run(cluster, name, api, len(late), versions, findings, time.monotonic() - begin)


Open = Callable[[str, str, str], Client]
CLIENTS: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[None]], Open]] = {
    "kcodec": (contextlib.nullcontext, KcodecClient),
    "control": (without_spent_epochs, KcodecClient),
    "confluent": (contextlib.nullcontext, lambda *names: InProcess(partial(ConfluentClient, *names))),
}


def run_all(arguments: argparse.Namespace) -> Iterator[Run]:
    """All runs asked for, one after the other."""
    for cluster in arguments.clusters:
        version, level = cluster.split("/")
        with ApacheKafka(version, transaction_version=int(level)) as kafka:
            for api in arguments.apis:
                for name in arguments.clients:
                    if level == "2" and api in OLD_FLOW_ONLY and name != "confluent":
                        continue  # the flow of version 2 has no such request
                    yield run(kafka, cluster, name, api, arguments)


def main() -> int:
    """0 if ours lost, tore and showed nothing, and the control did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--clusters", nargs="+", default=["4.4.0/0", "4.3.1/0", "3.9.1/0"], help="version/transaction.version"
    )
    parser.add_argument("--clients", nargs="+", default=list(CLIENTS), choices=CLIENTS)
    parser.add_argument("--apis", nargs="+", default=APIS, choices=APIS)
    parser.add_argument("--transactions", type=int, default=130, help="of each producer")
    parser.add_argument("--seconds", type=float, default=240, help="at most, of a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true", help="hold 1-60 s")
    parser.add_argument("--results", type=Path, help="folder of late-requests-DATE.txt, which is added to")
    arguments = parser.parse_args()
    runs = []
    for one in run_all(arguments):
        runs.append(one)
        print(one.line(), *one.findings.examples[:3], sep="\n    ", flush=True)
    controls = [one for one in runs if one.client == "control" and one.api == "EndTxn"]
    shown = not controls or any(one.findings.faults for one in controls)
    right = shown and all(one.is_right for one in runs)
    kind = "1-60 s" if arguments.long else "0.1-4 s"
    head = f"held {kind}, seed {arguments.seed}, {PRODUCERS} producers"
    add_results(arguments.results, "late-requests", [head, *(one.line() for one in runs)])
    print(f"{len(runs)} runs: {'all as they must be' if right else 'NOT as they must be'}")
    return not right


if __name__ == "__main__":
    sys.exit(main())
