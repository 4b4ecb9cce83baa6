# SPDX-License-Identifier: Apache-2.0
"""Kill `kcodec broker --data-dir` at random moments: nothing acknowledged is lost, nothing aborted is visible.

    python tests/prove/prove_broker_kills.py --workloads 200 --seed 0 [--results tests/results]

In each workload a kcodec producer and a librdkafka producer write transactions to three partitions, and a consumer
group commits offsets, while the process gets SIGKILL one to three times and is started again on its port. The same
clients go on. After a last kill, a read_committed consumer of librdkafka must find what the producers reported, and the
group the newest offset that was acknowledged. Exits with 1 if it does not. Written to broker-kills.txt in the folder of
results.
"""

from __future__ import annotations

import argparse
import datetime
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from confluent_client import SILENT, ConfluentClient, end_open_transactions, read_committed
from kcodec_client import KcodecClient
from transaction_load import Client, Written, judge, make_records

from kcodec import TopicPartition
from kcodec.client import Admin, NewTopic
from kcodec.errors import KcodecError

TOPIC, PARTITIONS, GROUP = "loaded", 3, "kills"
START_SECONDS = 20.0


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Process:
    """The broker as a process, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts requests."""
        command = [sys.executable, "-m", "kcodec", "broker", "--port", str(self._port), "--data-dir"]
        self._process = subprocess.Popen([*command, str(self._directory)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "accepts requests" not in line:
            raise RuntimeError(f"the broker did not start: {line!r}")

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it by a signal, and wait until it has ended."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_SECONDS)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Load(threading.Thread):
    """A writer of transactions, until it is stopped."""

    def __init__(self, name: str, client: Client, seed: int, ended: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.written: list[Written] = []
        self.error: BaseException | None = None
        self._client = client
        self._random = random.Random(seed)
        self._ended = ended

    def run(self) -> None:
        """Write until the end."""
        try:
            while not self._ended.is_set():
                chosen = self._random.sample(range(PARTITIONS), self._random.randint(1, PARTITIONS))
                records = make_records(self.name, len(self.written), chosen, self._random.randint(1, 9))
                pause = self._random.choice((0, 0, 0.01))
                outcome = self._client.transact(records, commit=self._random.random() < 0.7, pause=pause)
                self.written.append(Written(self.name, len(self.written), records, outcome))
        except BaseException as error:  # noqa: BLE001  reported by the workload
            self.error = error
        finally:
            self._client.close()


class Commits(threading.Thread):
    """A group that commits rising offsets. `acknowledged` and `requested` are the newest ones."""

    def __init__(self, address: str, ended: threading.Event) -> None:
        super().__init__(name="commits", daemon=True)
        self.acknowledged = self.requested = -1
        self._address = address
        self._ended = ended

    def run(self) -> None:
        """Commit until the end."""
        with Admin(bootstrap_servers=self._address, default_api_timeout_ms=20_000) as admin:
            while not self._ended.is_set():
                self.requested += 1
                try:
                    admin.alter_group_offsets(GROUP, {TopicPartition(TOPIC, 0): self.requested})
                    self.acknowledged = self.requested
                except KcodecError:
                    continue
                time.sleep(0.005)


def workload(seed: int, totals: Counter[str]) -> list[str]:
    """Run one workload. Return what is wrong."""
    chosen = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="broker-kills-") as folder:
        broker = Process(Path(folder) / "logs")
        broker.start()
        try:
            with Admin(bootstrap_servers=broker.address) as admin:
                admin.create_topics([NewTopic(TOPIC, PARTITIONS)])
            ended = threading.Event()
            clients: dict[str, Any] = {"ours": (KcodecClient, {}), "librdkafka": (ConfluentClient, {"logger": SILENT})}
            loads = [
                Load(name, client(broker.address, name, TOPIC, **options), seed, ended)
                for name, (client, options) in clients.items()
            ]
            commits = Commits(broker.address, ended)
            for thread in (*loads, commits):
                thread.start()
            for _ in range(chosen.randint(1, 3)):
                time.sleep(chosen.uniform(0.05, 0.5))
                broker.stop(chosen.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
                totals["kills"] += 1
                broker.start()
            counts = [len(load.written) for load in loads]
            until = time.monotonic() + 30
            while time.monotonic() < until and any(
                len(load.written) < count + 2 for load, count in zip(loads, counts, strict=True)
            ):
                time.sleep(0.02)
            stuck = [load.name for load, count in zip(loads, counts, strict=True) if len(load.written) < count + 2]
            ended.set()
            for thread in (*loads, commits):
                thread.join(60)
            broker.stop()
            broker.start()
            end_open_transactions(broker.address, list(clients))
            found = read_committed(broker.address, TOPIC, PARTITIONS)
            with Admin(bootstrap_servers=broker.address) as admin:
                known = admin.list_group_offsets(GROUP).get(TopicPartition(TOPIC, 0))
        finally:
            broker.stop()
    findings = judge([one for load in loads for one in load.written], found)
    for name in ("transactions", "committed", "aborted", "given_up", "unknown"):
        totals[name] += getattr(findings, name)
    totals["records read"] += sum(map(len, found.values()))
    totals["offset commits"] += commits.acknowledged + 1
    wrong = [f"{name} did not go on after the kill" for name in stuck]
    wrong += [f"{load.name}: {load.error!r}" for load in loads if load.error is not None]
    if findings.faults:
        wrong += [findings.line(), *findings.examples]
    offset = -1 if known is None else known.offset
    if not commits.acknowledged <= offset <= commits.requested:
        wrong.append(f"offset {offset}, acknowledged {commits.acknowledged}, requested {commits.requested}")
    return wrong


def main() -> int:
    """Run the workloads; 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="folder of the result file")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    failed = 0
    lines: list[str] = []
    begun = time.monotonic()
    for seed in range(options.seed, options.seed + options.workloads):
        wrong = workload(seed, totals)
        failed += bool(wrong)
        for line in wrong:
            lines.append(f"seed {seed}: {line}")
            print(lines[-1], flush=True)
    figures = ", ".join(f"{count} {name}" for name, count in totals.items())
    lines.append(f"{options.workloads} workloads, {failed} wrong, {time.monotonic() - begun:.0f} s: {figures}")
    print(lines[-1])
    if options.results is not None:
        head = f"tests/prove/prove_broker_kills.py, {datetime.date.today()}, seed {options.seed}"
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / "broker-kills.txt").write_text("\n".join([head, "", *lines]) + "\n", "utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
