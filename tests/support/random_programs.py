# SPDX-License-Identifier: Apache-2.0
"""Random ordinary programs that read one topic as consumers of one group, and what must hold afterwards.

A program opens up to three readers, uses them, and ends them in good and in bad ways: by `close`, by an exception in
the middle of a list of records, by Ctrl-C at any moment of a call (sync API), by the cancellation of a poll (asyncio),
or by dropping the object. Ctrl-C or a cancellation also interrupts some of the calls that close a reader. Meanwhile
records arrive, some of them in aborted transactions. A record counts as processed when the program has looked at it.
Afterwards, a last reader of the same group reads what is left:

- Each committed record was processed by one of the readers. Otherwise, its offset was committed too early.
- The last reader gets its partitions soon. Otherwise, a reader has ended without leaving the group.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from random import Random
from types import FrameType
from typing import Any

from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic, Producer

MOST_READERS = 3
#: Maximum time until the last reader has its partitions: a fraction of the session timeout of 45 seconds.
JOIN_SECONDS = 10.0
#: Maximum time of the last reader.
LAST_SECONDS = 60.0
#: After this time without records, the last reader has read everything that is left.
IDLE_SECONDS = 3.0
STRATEGIES = ("range", "cooperative-sticky", "roundrobin")
#: With which probability requests fail, and with which error codes.
FAULT_PROBABILITY = 0.02
ERRORS = {
    "Fetch": "NOT_LEADER_OR_FOLLOWER",
    "FindCoordinator": "COORDINATOR_NOT_AVAILABLE",
    "Heartbeat": "NOT_COORDINATOR",
    "ListOffsets": "LEADER_NOT_AVAILABLE",
    "OffsetCommit": "COORDINATOR_LOAD_IN_PROGRESS",
    "OffsetFetch": "COORDINATOR_LOAD_IN_PROGRESS",
    "Produce": "NOT_LEADER_OR_FOLLOWER",
    "SyncGroup": "NOT_COORDINATOR",
}


class ProgramError(Exception):
    """The exception that a program raises between two records."""


class World:
    """The topic, the group and the records of one program.

    random:    All random decisions of the program. As some of them depend on how many records a call has returned, a
               second run with the same seed is similar, and not the same.
    processed: Partition and offset of each record that the program has looked at.
    waited:    Seconds until the last reader had all partitions.
    steps:     What the program has done, for the report of a fault.
    """

    def __init__(self, seed: int, servers: str) -> None:
        self.random = Random(seed)
        self.servers = servers
        self.topic, self.group = f"topic-{seed}", f"group-{seed}"
        self.partitions = self.random.choice([1, 2, 3, 6])
        self.protocol = self.random.choice(["classic", "consumer"])
        self.strategy = self.random.choice(STRATEGIES)
        self.processed: set[tuple[int, int]] = set()
        self.steps: list[str] = []
        self.interrupts = 0
        self.waited = 0.0
        self._values: dict[tuple[int, int], bytes] = {}
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic(self.topic, num_partitions=self.partitions)])

    def note(self, step: str) -> None:
        self.steps.append(step)

    def produce(self, count: int) -> None:
        """Write records, sometimes in a transaction, which may be aborted."""
        is_transaction = self.random.random() < 0.3
        options: Any = {"transactional_id": self.topic} if is_transaction else {}
        places = [self.random.randrange(self.partitions) for _ in range(count)]
        with Producer(bootstrap_servers=self.servers, **options) as producer:
            if not is_transaction:
                sent = [self._send(producer, place) for place in places]
                producer.flush()
            else:
                with contextlib.suppress(ProgramError), producer.transaction() as txn:
                    sent = [self._send(txn, place) for place in places]
                    if self.random.random() < 0.4:
                        raise ProgramError
                if not txn.committed:
                    return
        for delivery, value in sent:
            stored = delivery.result(timeout=30.0)
            self._values[stored.partition, stored.offset] = value

    def _send(self, sender: Any, partition: int) -> tuple[Any, bytes]:
        value = b"%d" % self.random.getrandbits(64)
        return sender.send(self.topic, value, partition=partition), value

    def process(self, partition: int | None, offset: int, value: bytes | None) -> None:
        """Look at a record: it must be one that was committed, with its value."""
        assert partition is not None
        assert self._values.get((partition, offset)) == value, f"{partition}-{offset} has another value"
        self.processed.add((partition, offset))

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The committed records that the program has not processed."""
        return sorted(self._values.keys() - self.processed)

    def faults(self) -> list[str]:
        """What did not hold."""
        found = [f"{len(self.missing)} records were not processed, from {self.missing[0]} on"] if self.missing else []
        if self.waited > JOIN_SECONDS:
            found.append(f"the last reader waited {self.waited:.0f} s for its partitions")
        return found

    def errors_at(self, records: Sequence[Any], *, is_failing: bool) -> int | None:
        """Return the number of records after which an exception ends the program; None if none does."""
        return self.random.randrange(len(records) + 1) if is_failing and records else None


def add_faults(broker: Broker, seed: int) -> None:
    """Let requests of each API fail with an error code, a lost connection or a delay."""
    random = Random(-seed)
    for api, error in ERRORS.items():
        effects: list[dict[str, Any]] = [{"error": error}, {"close": "before"}, {"close": "after"}, {"delay_ms": 100}]
        effect = random.choice(effects)
        broker.faults.add(api, probability=FAULT_PROBABILITY, **effect)


@contextlib.contextmanager
def ctrl_c_after(seconds: float | None) -> Iterator[None]:
    """Raise KeyboardInterrupt within the block after this time; never for None."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if seconds is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class LastReader:
    """Whether the last reader goes on. It stops when it has its partitions and nothing is missing, or after a time
    without records."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._began = self._found_at = time.monotonic()
        self._has_partitions = False

    def goes_on(self, *, is_found: bool, has_partitions: bool) -> bool:
        now = time.monotonic()
        if has_partitions and not self._has_partitions:
            self._world.waited = max(self._world.waited, now - self._began)
        if is_found or not (has_partitions and self._has_partitions):
            self._found_at = now
        self._has_partitions = has_partitions
        if has_partitions and (not self._world.missing or now - self._found_at > IDLE_SECONDS):
            return False
        if now - self._began > LAST_SECONDS:
            self._world.waited = max(self._world.waited, now - self._began if not has_partitions else 0.0)
            return False
        return True
