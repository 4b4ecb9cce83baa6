# SPDX-License-Identifier: Apache-2.0
"""Groups whose members come and go at random: every record delivered, no partition owned by two at a time.

    python tests/prove/prove_rebalances.py [--seconds 40] [--seed N] [--only NAME ...] [--results FOLDER]

Members are ours and Java's, in both protocols and in a group that has members of each (a move between them); a producer
writes to eight partitions all the time. In a calm round members join and leave in good order, and no record may be
delivered twice; in a rough one ours also vanish without a word, and twice the
group's coordinator, one of three brokers, is killed. In all of them every
record is delivered. The table goes to FOLDER/rebalances.txt.

One exception: what Java's classic members had comes to the next owner once more now and then, also where nobody is ours
(`--members java`; 4.3.1). What ours had may not.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from broker_kills import OPTIONS
from java_members import JavaMember, MemberEvent

from kcodec.client import Admin, ConfigResource, Consumer, Producer
from kcodec.errors import KcodecError
from kcodec.offsets import TopicPartition
from kcodec.testing.kafka import ApacheKafka

PARTITIONS = 8
PACE_SECONDS, END_SECONDS = 0.005, 90.0
MOST_MEMBERS = 5
_numbers = count(1)
# In a calm round nobody may be taken for dead, however busy the machine is.
SESSION_MS = {True: 2500, False: 20_000}
QUICK = {"consumer.heartbeat.interval.ms": "200", "consumer.assignment.interval.ms": "0"}
JAVA = {"heartbeat.interval.ms": "200", "auto.commit.interval.ms": "100"}


GroupProtocol = Literal["classic", "consumer"]


class Round(NamedTuple):
    """protocols: of the members, by turns; is_rough: see the module."""

    name: str
    protocols: tuple[GroupProtocol, ...]
    is_rough: bool


ROUNDS = [
    Round("classic", ("classic",), False),
    Round("consumer", ("consumer",), False),
    Round("both protocols", ("classic", "consumer"), False),
    Round("classic, rough", ("classic",), True),
    Round("consumer, rough", ("consumer",), True),
    Round("both protocols, rough", ("classic", "consumer"), True),
]


class History(NamedTuple):
    """What one member was told and given; vanished: it did not leave, so its last partitions have no end."""

    name: str
    events: list[MemberEvent]
    records: dict[TopicPartition, list[range]]
    has_vanished: bool


class OurMember:
    """A Consumer and the thread that polls it."""

    def __init__(self, servers: str, group: str, topic: str, protocol: GroupProtocol, session_ms: int) -> None:
        options: dict[str, Any] = (
            {}
            if protocol == "consumer"
            else {
                "heartbeat_interval_ms": 200,
                "session_timeout_ms": session_ms,
                "partition_assignment_strategy": ["cooperative-sticky"],
            }
        )
        self.name = f"ours ({protocol}, {next(_numbers)})"
        self.events: list[MemberEvent] = []
        self.records: dict[TopicPartition, list[range]] = {}
        self.failures: list[str] = []
        self._is_over = False
        self._consumer = Consumer(
            bootstrap_servers=servers,
            group_id=group,
            group_protocol=protocol,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            **options,
        )
        self._consumer.subscribe(
            [topic], on_assigned=self._note("assigned"), on_revoked=self._note("revoked"), on_lost=self._note("lost")
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _note(self, kind: str) -> Callable[[frozenset[TopicPartition]], None]:
        return lambda what: self.events.append(MemberEvent(kind, time.monotonic(), what))

    def _run(self) -> None:
        while not self._is_over:
            try:
                found = self._consumer.poll(0.1)
            except KcodecError as error:
                self.failures.append(str(error))
                time.sleep(0.1)
                continue
            for record in found:
                assert record.topic is not None and record.partition is not None
                runs = self.records.setdefault(TopicPartition(record.topic, record.partition), [])
                if runs and runs[-1].stop == record.offset:
                    runs[-1] = range(runs[-1].start, record.offset + 1)
                else:
                    runs.append(range(record.offset, record.offset + 1))

    def end(self, *, leave: bool) -> History:
        if not leave:
            self._consumer._io_loop.close()  # as if the process were gone
        self._is_over = True
        self._thread.join(END_SECONDS)
        if leave:
            self._consumer.close()
        return History(self.name, self.events, self.records, not leave)


class TheirMember:
    """Java's consumer."""

    def __init__(self, servers: str, group: str, topic: str, protocol: GroupProtocol, session_ms: int) -> None:
        self.name = f"Java's ({protocol}, {next(_numbers)})"
        strategy = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
        classic = {**JAVA, "session.timeout.ms": str(session_ms), "partition.assignment.strategy": strategy}
        own = classic if protocol == "classic" else {"auto.commit.interval.ms": "100"}
        self._member = JavaMember(servers, group, [topic], **{"group.protocol": protocol, **own})

    def end(self, *, leave: bool) -> History:
        self._member.stop(leave=leave)
        state = self._member.state()
        assert state.failure is None, state.failure
        self._member.close()
        return History(self.name, state.events, state.records, not leave)


class Writer:
    """Writes a record to each partition by turns until it is ended."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer(bootstrap_servers=servers, request_timeout_ms=5000)
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(PACE_SECONDS):
            self._producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS)
            number += 1

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(END_SECONDS)
        self._producer.flush()
        self._producer.close()


KINDS: dict[str, Sequence[Any]] = {
    "both": (OurMember, OurMember, TheirMember),
    "ours": (OurMember,),
    "java": (TheirMember,),
}


def play(
    kafka: ApacheKafka, wanted: Round, kinds: Sequence[Any], seconds: float, chance: random.Random
) -> list[History]:
    """One round: what its members went through."""
    servers, group = kafka.bootstrap_servers, f"group-{wanted.name.replace(' ', '-').replace(',', '')}"
    topic = kafka.create_topic(partitions=PARTITIONS)
    session_ms = SESSION_MS[wanted.is_rough]
    settings: Any = QUICK | {"consumer.session.timeout.ms": str(session_ms)}
    with Admin(bootstrap_servers=servers) as admin:
        admin.alter_configs({ConfigResource.group(group): settings})
    writer = Writer(servers, topic)
    members: list[OurMember | TheirMember] = []
    ended: list[History] = []
    end = time.monotonic() + seconds
    kills = [end - 2 * seconds / 3, end - seconds / 3] if wanted.is_rough else []
    protocols = 0
    while time.monotonic() < end:
        if kills and time.monotonic() > kills[0]:
            kills.pop(0)
            node = kafka.coordinator("group", group)
            node.kill()
            node.start()
        if not members or (len(members) < MOST_MEMBERS and chance.random() < 0.55):
            kind = chance.choice(kinds)
            members.append(kind(servers, group, topic, wanted.protocols[protocols % len(wanted.protocols)], session_ms))
            protocols += 1
        else:
            going = members.pop(chance.randrange(len(members)))
            vanishes = wanted.is_rough and isinstance(going, OurMember) and chance.random() < 0.5
            ended.append(going.end(leave=not vanishes))
        time.sleep(chance.uniform(0.1, 1.5))
    writer.end()
    if not members:
        members.append(kinds[0](servers, group, topic, wanted.protocols[0], session_ms))
    await_lag(servers, group, topic)
    return ended + [each.end(leave=True) for each in members]


def await_lag(servers: str, group: str, topic: str) -> None:
    """Until the group has committed everything."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + END_SECONDS
    with Admin(bootstrap_servers=servers) as admin:
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        while True:
            committed = admin.list_group_offsets(group, partitions)
            left = {
                each: ends[each].offset - (found.offset if (found := committed.get(each)) else 0) for each in partitions
            }
            if not any(left.values()):
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{group}: not read to its end after {END_SECONDS:g} s: {left}")
            time.sleep(0.2)


class Findings(NamedTuple):
    """What a round came to; wrong: what must not be."""

    members: int
    rebalances: int
    records: int
    twice: int
    lost_partitions: int
    wrong: list[str]


def judge(histories: list[History], wanted: Round) -> Findings:
    """Hold what members went through against what must be."""
    wrong: list[str] = []
    delivered: dict[TopicPartition, list[tuple[range, str]]] = {}
    for history in histories:
        for partition, runs in history.records.items():
            delivered.setdefault(partition, []).extend((run, history.name) for run in runs)
    records = twice = 0
    for partition, named_runs in sorted(delivered.items()):
        reached, last = 0, ""
        for run, name in sorted(named_runs, key=lambda found: (found[0].start, found[0].stop)):
            if run.start > reached:
                wrong.append(f"{partition}: {reached} to {run.start - 1} were never delivered")
            if run.start < reached and not wanted.is_rough and not last.startswith("Java's (classic"):
                wrong.append(f"{partition}: {run.start} to {min(reached, run.stop) - 1} by {last}, and by {name}")
            twice += max(min(reached, run.stop) - run.start, 0)
            if run.stop > reached:
                reached, last = run.stop, name
        records += reached
    if len(delivered) != PARTITIONS:
        wrong.append(f"records of {len(delivered)} partitions only")
    if not wanted.is_rough:
        wrong += shared_partitions(histories)
    events = [event for history in histories for event in history.events if event.partitions]
    lost = sum(len(event.partitions) for event in events if event.kind == "lost")
    return Findings(len(histories), len(events), records, twice, lost, wrong)


def shared_partitions(histories: list[History]) -> list[str]:
    """Partitions that two members had at a time, each by its own events on the machine's clock."""
    spans: dict[TopicPartition, list[tuple[float, float, str]]] = {}
    for history in histories:
        since: dict[TopicPartition, float] = {}
        for event in history.events:
            for partition in event.partitions:
                if event.kind == "assigned":
                    since[partition] = event.seconds
                else:
                    spans.setdefault(partition, []).append((since.pop(partition), event.seconds, history.name))
    wrong = []
    for partition, found in sorted(spans.items()):
        found.sort()
        for (_, end, first), (start, _, second) in pairwise(found):
            if start < end:
                wrong.append(f"{partition}: {first} and {second} had it for {1000 * (end - start):.1f} ms")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="groups whose members come and go at random")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each round (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: of the time")
    parser.add_argument("--only", nargs="*", help="rounds by name")
    parser.add_argument("--members", choices=KINDS, default="both", help="whose (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="folder for rebalances.txt")
    given = parser.parse_args()
    lines = [f"seed {given.seed}, {given.seconds:g} s a round, {PARTITIONS} partitions"]
    failed = 0
    for wanted in ROUNDS:
        if given.only and wanted.name not in given.only:
            continue
        with ApacheKafka(**OPTIONS) as kafka:
            found = judge(play(kafka, wanted, KINDS[given.members], given.seconds, random.Random(given.seed)), wanted)
        failed += bool(found.wrong)
        lines.append(
            f"{wanted.name:22} {found.members:3} members, {found.rebalances:3} changes, {found.records:6} records, "
            f"{found.twice} twice, {found.lost_partitions} partitions lost: {'; '.join(found.wrong) or 'ok'}"
        )
        print(lines[-1], flush=True)
    if given.results is not None:
        (given.results / "rebalances.txt").write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} rounds from seed {given.seed}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
