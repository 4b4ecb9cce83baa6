# SPDX-License-Identifier: Apache-2.0
"""Part `rebalance` of bench_session.py: from a member's joining or leaving to the first record of the new owner.

In each group of two, one member stays and the other repeatedly joins and leaves, while a producer writes to every
partition every 20 ms. Settings are the defaults of the clients and the broker (heartbeats: classic 3 s, consumer
protocol 5 s; the assignors of Kafka 4.3 run once per second). Consumers of Java and kcodec run at the same time in
separate groups. Several groups of each run at the same time, because most of the time is spent waiting for the next
heartbeat of a member.

joined: from before the consumer is created to the first record of the member that joined. left: from before close() to
the first record, at the member that stays, of a partition that the other member owned.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from session_members import OurMembers

PARTITIONS, GROUPS = 6, 3
PACE_SECONDS = 0.02
LIMIT_SECONDS = 60.0
PROTOCOLS = ("classic", "consumer")
#: Kafka's defaults of properties that test brokers change, except for the initial rebalance delay of a group.
KAFKA = {"group.consumer.min.heartbeat.interval.ms": 5000}


class JavaMembers:
    """As `OurMembers`, but with Java's consumers, in the Java process of tests/support/java_clients.py."""

    def __init__(self) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
        from java_members import JavaMember

        self._make = JavaMember
        self._members: dict[str, Any] = {}

    def start(self, name: str, servers: str, group: str, topic: str, protocol: str) -> None:
        self._members[name] = self._make(servers, group, [topic], **{"group.protocol": protocol})

    def state(self, name: str) -> dict[str, Any]:
        found = self._members[name].state()
        if found.failure is not None:
            raise RuntimeError(f"{name}: {found.failure}")
        owned = sorted(each.partition for each in found.owned)
        return {"owned": owned, "firsts": {each.partition: when for each, when in found.firsts.items()}}

    def stop(self, name: str) -> None:
        self._members.pop(name).close()

    def close(self) -> None:
        for member in self._members.values():
            member.close()


class Writer:
    """Writes to each partition continuously."""

    def __init__(self, servers: str, topic: str) -> None:
        from kcodec.client import Producer

        self._producer = Producer(bootstrap_servers=servers)
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(PACE_SECONDS):
            for partition in range(PARTITIONS):
                self._producer.send(self._topic, b"x" * 100, partition=partition)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(10.0)
        self._producer.close()


def until(look: Callable[[], Any], what: str) -> Any:
    """Call `look` until its result is true, and return that result. Exit after LIMIT_SECONDS."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (found := look()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {LIMIT_SECONDS:g} s: {what}")
        time.sleep(0.05)
    return found


class Turns(threading.Thread):
    """One group, whose rebalances are measured in seconds."""

    def __init__(self, members: Any, servers: str, group: str, topic: str, protocol: str, rounds: int) -> None:
        super().__init__(daemon=True)
        self.members = members
        self.where = (servers, group, topic, protocol)
        self.stays, self.comes = f"{group} stays", f"{group} comes"
        self.rounds = rounds
        self.times: dict[str, list[float]] = {"joined": [], "left": []}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.members.start(self.stays, *self.where)
            self._until_owned(self.stays, PARTITIONS)
            for turn in range(self.rounds + 1):
                joined, left = self._turn()
                if turn:  # the first one warms up
                    self.times["joined"].append(joined)
                    self.times["left"].append(left)
        except BaseException as error:
            self.failure = error
            raise

    def _turn(self) -> tuple[float, float]:
        time.sleep(random.uniform(0.5, 5.5))
        start = time.monotonic()
        self.members.start(self.comes, *self.where)
        firsts = until(lambda: self.members.state(self.comes)["firsts"], "a record of the one that joined")
        joined = min(firsts.values()) - start
        self._until_owned(self.comes, PARTITIONS // 2)
        self._until_owned(self.stays, PARTITIONS // 2)
        time.sleep(random.uniform(0.5, 5.5))
        theirs = set(self.members.state(self.comes)["owned"])
        start = time.monotonic()
        self.members.stop(self.comes)

        def taken_over() -> list[float]:
            firsts = self.members.state(self.stays)["firsts"]
            return [when for partition, when in firsts.items() if partition in theirs and when > start]

        left = min(until(taken_over, "a record of what was the other's")) - start
        self._until_owned(self.stays, PARTITIONS)
        return joined, left

    def _until_owned(self, name: str, count: int) -> None:
        until(lambda: len(self.members.state(name)["owned"]) == count, f"{name} has {count} partitions")


def measure(kafka: Any, rounds: int) -> dict[str, Any]:
    """Measure both protocols, one after the other."""
    topic = kafka.create_topic(partitions=PARTITIONS)
    writer = Writer(kafka.bootstrap_servers, topic)
    sides = {"kcodec": OurMembers(), "Java": JavaMembers()}
    results: dict[str, Any] = {}
    try:
        for protocol in PROTOCOLS:
            results[protocol] = _measure(kafka.bootstrap_servers, topic, protocol, sides, rounds)
    finally:
        for members in sides.values():
            members.close()
        writer.close()
    return results


def _measure(servers: str, topic: str, protocol: str, sides: dict[str, Any], rounds: int) -> dict[str, Any]:
    turns = {
        side: [Turns(members, servers, f"{protocol}-{side}-{n}", topic, protocol, rounds) for n in range(GROUPS)]
        for side, members in sides.items()
    }
    for groups in turns.values():
        for group in groups:
            group.start()
    found: dict[str, Any] = {}
    for side, groups in turns.items():
        for group in groups:
            group.join()
            if group.failure is not None:
                raise group.failure
        for event in ("joined", "left"):
            times = sorted(1000 * each for group in groups for each in group.times[event])
            found.setdefault(event, {})[side] = summary(times)
    for event, of_sides in found.items():
        for side, figures in of_sides.items():
            print(
                f"{protocol:9} {event:7} {side:7} p50 {figures['p50']:7.0f} ms  p99 {figures['p99']:7.0f} ms",
                flush=True,
            )
    return found


def summary(times: list[float]) -> dict[str, Any]:
    """Return p50, p99 (the maximum if there are few rounds) and all times, in milliseconds."""
    worst = times[min(round(0.99 * len(times)), len(times) - 1)]
    return {"p50": round(statistics.median(times), 1), "p99": round(worst, 1), "all": [round(one, 1) for one in times]}
