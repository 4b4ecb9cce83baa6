# SPDX-License-Identifier: Apache-2.0
"""Records that were read are cut from the log by an unclean election: who reads on, and what is missed (KIP-320).

    python tests/prove/prove_truncation.py [--versions 4.4.0 4.3.1 3.9.1] [--results FOLDER]

Three nodes, a topic with two replicas. Ten records are on both; the follower is killed, ten more are written and read;
the leader is killed, the follower comes back and leads without those ten (unclean.leader.election.enable), and 25
others take their offsets. Readers stand at 20, and so does the committed offset of a group:

    auto_offset_reset=latest     goes on at 10, where the logs part: reads all 25
    none                         LogTruncationError: position 20, divergent offset 10; after seek(10) it reads all 25
    a group's new member         its committed offset has a leader epoch: goes on at 10, reads all 25
    control                      a reader that goes on at 20 without a leader epoch: misses ten, and is told nothing
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from transaction_load import add_results

from kcodec import LogTruncationError, TopicPartition
from kcodec.client import Admin, Consumer, NewTopic, Producer
from kcodec.testing.jars import TESTED_VERSIONS
from kcodec.testing.kafka import ApacheKafka

BOTH, LOST, NEW = 10, 10, 25
SECONDS = 60.0
QUICK: dict[str, Any] = {"request_timeout_ms": 3000, "metadata_max_age_ms": 1000, "default_api_timeout_ms": 60_000}
PROPERTIES: dict[str, Any] = {
    "broker_session_timeout_ms": 3000,
    "broker_heartbeat_interval_ms": 500,
    "replica_lag_time_max_ms": 3000,
}
TOPIC = "cut"
PLACE = TopicPartition(TOPIC, 0)


def write(servers: str, word: str, count: int) -> None:
    with Producer(bootstrap_servers=servers, **QUICK) as producer:
        for number in range(count):
            producer.send(TOPIC, f"{word}-{number}".encode(), partition=0).result(SECONDS)


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {SECONDS:g} s")
        time.sleep(0.2)


def read(consumer: Consumer, word: str, count: int, seconds: float) -> list[tuple[int, bytes]]:
    """(offset, value) of records with this word, until there are so many, or the time is over."""
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        for record in consumer.poll(0.5):
            assert record.value is not None
            if bytes(record.value).startswith(word.encode()):
                found.append((record.offset, bytes(record.value)))
    return found


def reader(servers: str, policy: str, group: str | None = None) -> Consumer:
    return Consumer(
        bootstrap_servers=servers, auto_offset_reset=policy, group_id=group, enable_auto_commit=False, **QUICK
    )


class Story:
    """One cluster, from the first record to the verdicts."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.kafka = kafka
        self.servers = kafka.bootstrap_servers
        self.lines: list[str] = []
        self.is_right = True

    def reported(self, line: str, is_right: bool) -> None:
        self.lines.append(f"  {line}: {'as it must be' if is_right else 'NOT as it must be'}")
        self.is_right = self.is_right and is_right
        print(self.lines[-1], flush=True)

    def in_sync(self, admin: Admin) -> tuple[int, ...]:
        return admin.describe_topics([TOPIC])[TOPIC].partitions[0].isr

    def run(self) -> None:
        with Admin(bootstrap_servers=self.servers, **QUICK) as admin:
            configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
            admin.create_topics([NewTopic(TOPIC, assignments={0: (1, 2)}, configs=configs)])
            write(self.servers, "both", BOTH)
            wait_until("two in sync", lambda: set(self.in_sync(admin)) == {1, 2})
            self.kafka.node(2).kill()
            wait_until("one in sync", lambda: self.in_sync(admin) == (1,))
            write(self.servers, "lost", LOST)
            readers = {policy: self.started(policy) for policy in ("latest", "none")}
            with reader(self.servers, "earliest", "group") as member:
                member.assign([PLACE])
                assert len(read(member, "lost", LOST, SECONDS)) == LOST
                member.commit()
            self.kafka.node(1).kill()
            self.kafka.node(2).start()
            wait_until("the other leads", lambda: self.leads(admin))
            write(self.servers, "new", NEW)
        self.judge(readers)
        for one in readers.values():
            one.close()

    def leads(self, admin: Admin) -> bool:
        return admin.describe_topics([TOPIC])[TOPIC].partitions[0].leader == 2

    def started(self, policy: str) -> Consumer:
        """A reader that has read all there is."""
        found = reader(self.servers, policy)
        found.assign([PLACE])
        found.seek(PLACE, 0)
        assert len(read(found, "lost", LOST, SECONDS)) == LOST
        assert found.position(PLACE) == BOTH + LOST
        return found

    def judge(self, readers: dict[str, Consumer]) -> None:
        all_new = [(BOTH + number, f"new-{number}".encode()) for number in range(NEW)]
        found = read(readers["latest"], "new", NEW, SECONDS)
        self.reported(f"latest: read {len(found)} of {NEW} new records, from offset {found[0][0]} on", found == all_new)
        try:
            found = read(readers["none"], "new", NEW, SECONDS)
            self.reported(f"none: no error, {len(found)} records", False)
        except LogTruncationError as error:
            what = f"position {error.position}, divergent offset {error.divergent_offset}"
            is_right = (error.position, error.divergent_offset) == (BOTH + LOST, BOTH)
            self.reported(f"none: LogTruncationError, {what}, leader epoch {error.position_epoch}", is_right)
            readers["none"].seek(PLACE, error.divergent_offset)
            found = read(readers["none"], "new", NEW, SECONDS)
            self.reported(f"none: after a seek there read {len(found)} of {NEW}", found == all_new)
        with reader(self.servers, "latest", "group") as member:
            member.assign([PLACE])
            found = read(member, "new", NEW, SECONDS)
            self.reported(f"a group's new member: read {len(found)} of {NEW}", found == all_new)
        with reader(self.servers, "latest") as control:
            control.assign([PLACE])
            control.seek(PLACE, BOTH + LOST)
            found = read(control, "new", NEW, 5.0)
            reported = f"control, without a leader epoch: read {len(found)} of {NEW}, no error"
            self.reported(reported, len(found) == NEW - LOST)


def main() -> int:
    """0 if all readers missed nothing, or said so, and the control did miss records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=list(TESTED_VERSIONS))
    parser.add_argument("--results", type=Path, help="folder of truncation-DATE.txt, which is added to")
    arguments = parser.parse_args()
    is_right = True
    for version in arguments.versions:
        begin = time.monotonic()
        with ApacheKafka(version, nodes=3, **PROPERTIES) as kafka:
            story = Story(kafka)
            story.run()
        is_right = is_right and story.is_right
        add_results(arguments.results, "truncation", [f"{version}, {time.monotonic() - begin:.0f} s", *story.lines])
    print(f"{len(arguments.versions)} runs: {'as they must be' if is_right else 'NOT as they must be'}")
    return not is_right


if __name__ == "__main__":
    sys.exit(main())
