# SPDX-License-Identifier: Apache-2.0
"""A job for sessions on a real broker: numbered records to copy, their copies, a group, and the requests that were
sent."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from producer_apis import stored
from session_apis import Looped, Threaded

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, Producer
from kcodec.testing.kafka import ApacheKafka

Make = Callable[..., Any]
# Each API with one of the protocols: both APIs run the same flow for either protocol.
PAIRS = pytest.mark.parametrize(("session_class", "protocol"), [(Threaded, "classic"), (Looped, "consumer")])
SECONDS = 20.0
PARTITIONS = 2


class Job:
    """A topic with numbered records, another for their copies, a group."""

    def __init__(self, kafka: ApacheKafka | Broker, count: int = 20, servers: str = "") -> None:
        self.kafka = kafka
        self.servers = servers or kafka.bootstrap_servers
        self.source = kafka.create_topic(partitions=PARTITIONS)
        self.target = kafka.create_topic(partitions=PARTITIONS)
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.count = 0
        self.seed(count)

    def seed(self, count: int) -> None:
        """Add this number of records."""
        with Producer(bootstrap_servers=self.kafka.bootstrap_servers) as producer:
            for number in range(self.count, self.count + count):
                producer.send(self.source, b"%d" % number, partition=number % PARTITIONS)
        self.count += count

    def options(self, name: str = "", **options: Any) -> dict[str, Any]:
        """Return the options of a session."""
        if options.get("group_protocol", "classic") == "classic":
            options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200, **options}
        return {
            "bootstrap_servers": self.servers,
            "group_id": self.group,
            "transactional_id": f"{self.group}-{name}",
            "topics": [self.source],
            "linger_ms": 0,
            "max_block_ms": 15_000,
            "request_timeout_ms": 5_000,
            **options,
        }

    def copy(self, txn: Any, timeout: float = 1.0) -> int:
        """Poll once and copy the records. Return their number."""
        records = txn.poll(timeout)
        for record in records:
            txn.send(self.target, record.value, partition=record.partition)
        return len(records)

    def copy_all(self, *sessions: Any) -> None:
        """Copy until all records are copied."""
        deadline = time.monotonic() + SECONDS
        while (found := sum(map(len, self.copies()))) < self.count:
            assert time.monotonic() < deadline, f"{found} of {self.count}"
            for session in sessions:
                with session.transaction() as txn:
                    self.copy(txn, 0.3)

    def copies(self) -> list[list[int]]:
        """Return the records of a read_committed reader, by partition."""
        return [
            [
                int(record.value or b"")
                for record in stored(self.kafka, self.target, partition).records("read_committed")
            ]
            for partition in range(PARTITIONS)
        ]

    def check(self) -> None:
        """Check that every record was copied once, in order."""
        assert self.copies() == [list(range(start, self.count, PARTITIONS)) for start in range(PARTITIONS)]

    def committed(self) -> dict[TopicPartition, int]:
        """Return the committed offsets of the group. The partitions are named, because the answer for all partitions
        leaves out one whose first offset is in a transaction that has not ended."""
        partitions = [TopicPartition(self.source, partition) for partition in range(PARTITIONS)]
        with Admin(bootstrap_servers=self.kafka.bootstrap_servers) as admin:
            found = admin.list_group_offsets(self.group, partitions, require_stable=True)
        return {partition: value.offset for partition, value in found.items() if value is not None}


def first_poll(session: Any, job: Job) -> None:
    """Let the session join the group and copy all records."""
    deadline = time.monotonic() + SECONDS
    while not session.assignment():
        assert time.monotonic() < deadline
        with session.transaction() as txn:
            job.copy(txn, 0.2)


@contextmanager
def watched(client: Any) -> Iterator[list[str]]:
    """The requests of a session, in the order they were sent, heartbeats of the background left out."""
    found: list[str] = []

    def see(trace: Any) -> None:
        if trace.kind == "request":
            found.append(type(trace.message).__name__.removesuffix("Request"))

    watchers = client.session._client.network.watchers
    watchers.append(see)
    yield found
    watchers.remove(see)
