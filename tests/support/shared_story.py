# SPDX-License-Identifier: Apache-2.0
"""Rounds of shared transactions in separate processes, some of which are killed: four writers with one handle, and the
end by a fifth process. The reported commits are compared with the log.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from java_clients import consume
from shared_worker import value

from kcodec.testing.kafka import ApacheKafka

WORKER = Path(__file__).with_name("shared_worker.py")
WRITERS = 4
SECONDS = 120


@dataclass
class SharedStory:
    """rounds: round -> whether it was committed; killed: numbers of killed processes by kind."""

    kafka: ApacheKafka
    topic: str
    servers: str
    random: random.Random
    count: int = 200
    rounds: dict[int, bool] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)

    def start(self, *arguments: Any) -> subprocess.Popen[str]:
        command = [sys.executable, str(WORKER), *(str(argument) for argument in arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def play(self, number: int) -> None:
        """One transaction: a third of the rounds loses a writer, half of them the owner."""
        owner = self.start("own", self.servers, "shared", self.topic, WRITERS)
        try:
            assert owner.stdout is not None
            handle = owner.stdout.readline().strip()
            assert handle, owner.communicate(timeout=SECONDS)[1]
            receipts = self._write(number, handle, self._choose_dead())
            if self.random.random() < 0.5:
                self.killed["owner"] += 1
                owner.kill()
            is_commit = len(receipts) == WRITERS
            ender = self.start("end", self.servers, handle, "commit" if is_commit else "abort", json.dumps(receipts))
            said = ender.communicate(timeout=SECONDS)[1]
            assert ender.returncode == 0, said
            self.rounds[number] = is_commit
        finally:
            owner.kill()
            owner.communicate(timeout=SECONDS)

    def _choose_dead(self) -> int:
        return self.random.randrange(WRITERS) if self.random.random() < 1 / 3 or not self.rounds else -1

    def _write(self, number: int, handle: str, dead: int) -> list[Any]:
        writers = [
            self.start(
                *("write", self.servers, handle, self.topic, partition, number, self.count),
                self.random.randrange(self.count) if partition == dead else -1,
            )
            for partition in range(WRITERS)
        ]
        receipts = []
        for partition, writer in enumerate(writers):
            printed, said = writer.communicate(timeout=SECONDS)
            if partition == dead:
                self.killed["writer"] += 1
                assert writer.returncode == -9, said
            else:
                assert writer.returncode == 0, said
                receipts.append(json.loads(printed))
        return receipts

    def judge(self) -> list[str]:
        """Return the faults in the records of Kafka's own read_committed consumer."""
        found = consume(self.kafka.bootstrap_servers, self.topic)
        wrong = []
        for partition in range(WRITERS):
            values = [record.value for record in found if record.partition == partition]
            expected: list[bytes | None] = [
                value(number, partition, row)
                for number, is_committed in self.rounds.items()
                if is_committed
                for row in range(self.count)
            ]
            lost, strange = Counter(expected) - Counter(values), Counter(values) - Counter(expected)
            if values != expected:
                wrong.append(f"partition {partition}: {lost.total()} lost, {strange.total()} too many, or out of order")
        return wrong
