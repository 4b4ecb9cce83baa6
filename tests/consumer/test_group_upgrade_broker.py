# SPDX-License-Identifier: Apache-2.0
"""Consumers of a group change the group protocol one by one, while a producer writes (KIP-848)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Admin, ConfigResource, Consumer, NewTopic, Producer
from kcodec.offsets import TopicPartition
from kcodec.testing.kafka import ApacheKafka

PARTITIONS = 6
PATIENCE = 20.0
TOPIC, GROUP = "upgraded", "upgrade"
QUICK = {"consumer.heartbeat.interval.ms": "150", "consumer.assignment.interval.ms": "0"}


class Story:
    """What all members of the group do together.

    owners: The partitions with the members that own them. A partition with two owners is an error.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.lock = threading.Lock()
        self.owners: dict[TopicPartition, str] = {}
        self.errors: list[str] = []
        self.read: Counter[bytes] = Counter()
        self.written = 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write records meanwhile."""
        is_over = threading.Event()

        def write() -> None:
            with Producer(bootstrap_servers=self.address) as producer:
                while not is_over.wait(0.002):
                    producer.send(TOPIC, b"%d" % self.written, partition=self.written % PARTITIONS)
                    self.written += 1

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            yield
        finally:
            is_over.set()
            writer.join()


class Member(threading.Thread):
    """A consumer that polls until `leave`."""

    def __init__(self, story: Story, name: str, **options: Any) -> None:
        super().__init__(name=name, daemon=True)
        self.story = story
        self._options = options
        self._leaves = threading.Event()
        self.start()

    def run(self) -> None:
        options = {"group_id": GROUP, "auto_offset_reset": "earliest", **self._options}
        try:
            with Consumer(bootstrap_servers=self.story.address, **options) as consumer:
                consumer.subscribe([TOPIC], on_assigned=self._assigned, on_revoked=self._revoked)
                while not self._leaves.is_set():
                    self.story.read.update(record.value or b"" for record in consumer.poll(0.05))
                consumer.commit()
        except Exception as error:  # noqa: BLE001  the test reports it
            self.story.errors.append(f"{self.name}: {error!r}")

    def _assigned(self, partitions: frozenset[TopicPartition]) -> None:
        with self.story.lock:
            for partition in partitions:
                owner = self.story.owners.setdefault(partition, self.name)
                if owner != self.name:
                    self.story.errors.append(f"{partition} has the owners {owner} and {self.name}")

    def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        with self.story.lock:
            for partition in partitions:
                if self.story.owners.pop(partition, None) != self.name:
                    self.story.errors.append(f"{self.name} gives up {partition}, which it does not own")

    def leave(self) -> None:
        """Close the consumer."""
        self._leaves.set()
        self.join(PATIENCE)
        assert not self.is_alive()


def until(condition: Callable[[], bool], story: Story) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert not story.errors, story.errors
        assert time.monotonic() < deadline, (story.owners, story.written, len(story.read))
        time.sleep(0.02)


@pytest.fixture(params=["embedded", "kafka"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A broker with the topic, and a group with short intervals."""
    broker: Broker | ApacheKafka = request.getfixturevalue(
        "kcodec_broker" if request.param == "embedded" else "apache_kafka"
    )
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])
        admin.alter_configs({ConfigResource.group(GROUP): QUICK})
    yield broker.bootstrap_servers
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics([TOPIC])


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_consumers_change_their_protocol_one_by_one(address: str, strategy: str) -> None:
    """Each record is read once, because members commit before they give up a partition. No partition has two owners."""
    classic = {
        "group_protocol": "classic",
        "partition_assignment_strategy": strategy,
        "heartbeat_interval_ms": 150,
        "session_timeout_ms": 6_000,
    }
    kinds: dict[str, dict[str, Any]] = {"classic": classic, "consumer": {"group_protocol": "consumer"}}
    story = Story(address)
    members = [Member(story, f"classic {number}", **classic) for number in range(2)]

    def is_balanced() -> bool:
        with story.lock:
            counts = Counter(story.owners.values())
        return counts == dict.fromkeys((member.name for member in members), PARTITIONS // 2)

    expected = [("consumer", "consumer"), ("consumer", "consumer"), ("classic", "consumer"), ("classic", "classic")]
    with Admin(bootstrap_servers=address) as admin, story.writing():
        until(is_balanced, story)
        for number, (protocol, group_type) in enumerate(expected):
            members.pop(0).leave()
            members.append(Member(story, f"{protocol} {number + 2}", **kinds[protocol]))
            until(is_balanced, story)
            assert admin.list_groups()[GROUP].type == group_type
    until(lambda: len(story.read) == story.written, story)
    for member in members:
        member.leave()
    assert not story.errors
    assert story.read == Counter(b"%d" % number for number in range(story.written))
