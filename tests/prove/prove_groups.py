# SPDX-License-Identifier: Apache-2.0
"""Groups under stress on a real broker: nothing is owned twice, and once all is quiet everything is owned.

    python tests/prove/prove_groups.py [--seconds 60] [--only range] [--version 4.4.0] [--seed 0] [--results FOLDER]

A row of KINDS is a kind of group. For so many seconds members come, go in good order, die without a word, stop polling
past max_poll_interval, change their subscription and ask for rebalances at random, the topic grows, and twice the
group's coordinator, one of three brokers, is killed (SIGKILL) and started again. Whenever a member's partitions change,
they are compared with those of all others that live: two of one generation may never own a partition, and two of
different generations only where the older owner was silent for long enough to be taken for dead. Then nothing happens
any more, and all members must be stable and own each partition once. In the control members read on for a second after
they have given up: that must be noticed.
Written is groups-DATE.txt.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from broker_kills import OPTIONS
from group_member import GroupMember, Make, make_classic, make_consumer, partitions_of, wait_until_stable
from transaction_load import add_results

from kcodec.offsets import TopicPartition
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka

MOST_MEMBERS, MOST_PARTITIONS = 6, 16
SESSION_SECONDS, POLL_SECONDS = 8.0, 4.0
QUIET_SECONDS = 90.0
# A member that was well for so long is in the group, whatever happened to it before.
RECOVERED_SECONDS = SESSION_SECONDS + 2.0


@dataclass(frozen=True)
class Kind:
    """A kind of group. make: a membership; prepare: what the broker is told of the group first."""

    strategies: tuple[str, ...] = ()
    make: Make = make_classic
    prepare: Callable[[ApacheKafka, str], None] = lambda kafka, group: None
    settings: dict[str, Any] = field(default_factory=dict)
    is_control: bool = False

    def is_there(self, version: str) -> bool:
        """Whether this Kafka has it: the consumer protocol from 4 on."""
        return self.make is not make_consumer or int(version.partition(".")[0]) >= 4


def as_quick_as_classic(kafka: ApacheKafka, group: str) -> None:
    """What a classic member says itself the broker has to be told of a group of the consumer protocol."""
    from kcodec.client import Admin, ConfigResource

    quick = {
        "consumer.heartbeat.interval.ms": "200",
        "consumer.session.timeout.ms": str(int(1000 * SESSION_SECONDS)),
        "consumer.assignment.interval.ms": "0",
    }
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.alter_configs({ConfigResource.group(group): dict(quick)})


KINDS: dict[str, Kind] = {
    "classic, range": Kind(("range",)),
    "classic, roundrobin": Kind(("roundrobin",)),
    "classic, sticky": Kind(("sticky",)),
    "classic, cooperative-sticky": Kind(("cooperative-sticky",)),
    "classic, range and cooperative-sticky": Kind(("range", "cooperative-sticky")),
    "consumer, uniform": Kind((), make_consumer, as_quick_as_classic, {"group_remote_assignor": "uniform"}),
    "consumer, range": Kind((), make_consumer, as_quick_as_classic, {"group_remote_assignor": "range"}),
    "control, members read on for a second": Kind(("cooperative-sticky",), is_control=True),
    "control of the consumer protocol": Kind((), make_consumer, as_quick_as_classic, is_control=True),
}


class Stress:
    """One group on one broker."""

    def __init__(self, kafka: ApacheKafka, name: str, kind: Kind, seed: int) -> None:
        self.kafka = kafka
        self.kind = kind
        self.random = Random(f"{name} {seed}")
        self.group = f"stress-{name.replace(', ', '-').replace(' ', '-')}-{seed}"
        self.topics = {kafka.create_topic(partitions=4): 4, kafka.create_topic(partitions=2): 2}
        self.lock = threading.RLock()
        self.members: list[GroupMember] = []
        self.troubled: dict[GroupMember, float] = {}
        self.violations: list[str] = []
        self.done: Counter[str] = Counter()
        self.number = 0
        kind.prepare(kafka, self.group)

    def check(self, member: GroupMember) -> None:
        """Called under the lock: what `member` has now, compared with what all others have."""
        mine, now = member.membership.group_metadata, time.monotonic()
        self.done["changes"] += 1
        for other in self.members:
            both = member.has & other.has if other is not member else frozenset()
            if both:
                theirs = other.membership.group_metadata
                silent_for = now - self.troubled.get(other, -1e9), now - self.troubled.get(member, -1e9)
                if mine.generation_id == theirs.generation_id or min(silent_for) > RECOVERED_SECONDS:
                    self.violations.append(f"{sorted(both)} of {mine} and {theirs}, in trouble {silent_for} s ago")

    def come(self) -> None:
        """Another member, dynamic or static, for both topics or one."""
        self.number += 1
        wanted = self.random.choice([list(self.topics), list(self.topics), list(self.topics)[:1]])
        settings = {"session_timeout": SESSION_SECONDS, "max_poll_interval": POLL_SECONDS, **self.kind.settings}
        if self.kind.strategies:
            settings["partition_assignment_strategy"] = self.kind.strategies
        if self.random.random() < 0.2:
            settings["group_instance_id"] = f"static-{self.number}"
        with self.lock:
            member = GroupMember(
                self.kafka.bootstrap_servers,
                self.group,
                wanted,
                make=self.kind.make,
                client={"metadata_max_age_ms": 1000},
                lock=self.lock,
                on_change=self.check,
                **settings,
            )
            member.is_slow_to_stop = self.kind.is_control
            member.revoke_seconds = self.random.choice([0.0, 0.0, 0.2])
            self.members.append(member)

    def go(self, member: GroupMember, *, is_killed: bool) -> None:
        """It leaves, or dies without a word."""
        if is_killed:
            with self.lock:
                self.members.remove(member)
                member.has.clear()
            member.kill()
        else:
            member.close()
            with self.lock:
                self.members.remove(member)

    def stall(self, member: GroupMember) -> None:
        """It does not poll for a while, most often for too long."""
        member.is_polling = False
        self.troubled[member] = time.monotonic() + POLL_SECONDS

        def go_on() -> None:
            member.is_polling = True
            self.troubled[member] = time.monotonic()

        threading.Timer(self.random.choice([0.5, POLL_SECONDS + 1.0]), go_on).start()

    def grow(self) -> None:
        """One topic has one partition more."""
        from kcodec.client import Admin

        topic = self.random.choice([name for name, count in self.topics.items() if count < MOST_PARTITIONS])
        self.topics[topic] += 1
        with Admin(bootstrap_servers=self.kafka.bootstrap_servers) as admin:
            admin.create_partitions({topic: self.topics[topic]})

    def kill_broker(self) -> None:
        """SIGKILL the group's coordinator, and start it again: meanwhile all members may lose their partitions."""
        node = self.kafka.coordinator("group", self.group)
        node.kill()
        node.start()
        with self.lock:
            for member in self.members:
                self.troubled[member] = time.monotonic()

    def step(self) -> None:
        """Something happens to somebody."""
        # In a control partitions must change hands often; who dies or is silent holds that up.
        usual = ["come", "come", "leave", "kill", "stall", "topics", "rejoin", "grow"]
        what = self.random.choice(["come", "leave"] if self.kind.is_control else usual)
        if not self.members:
            what = "come"
        if what == "come" and len(self.members) >= MOST_MEMBERS:
            what = "leave"
        member = self.random.choice(self.members) if self.members else None
        self.done[what] += 1
        if what == "come" or member is None:
            self.come()
        elif what in ("leave", "kill"):
            self.go(member, is_killed=what == "kill")
        elif what == "stall":
            self.stall(member)
        elif what == "topics":
            wanted = self.random.choice([list(self.topics), list(self.topics)[:1]])
            member.post(lambda: member.membership.subscribe(wanted))
        elif what == "rejoin":
            member.post(lambda: member.membership.request_rejoin("a test"))
        else:
            self.grow()

    def run(self, seconds: float) -> float:
        """The stress, then quiet: how many seconds until all was owned."""
        begin, kills = time.monotonic(), [seconds / 3, 2 * seconds / 3]
        while (now := time.monotonic() - begin) < seconds:
            if kills and now > kills[0]:
                kills.pop(0)
                self.done["broker kills"] += 1
                self.kill_broker()
            self.step()
            time.sleep(self.random.choice([0.05, 0.3, 1.0, 2.0]))
        time.sleep(POLL_SECONDS + 1.0)  # those who do not poll go on
        self.come()
        everything = list(self.topics)
        for member in self.members:
            member.is_polling = True
            member.post(partial(member.membership.subscribe, everything))
        quiet = time.monotonic()
        wait_until_stable(self.members, self.everything(), QUIET_SECONDS)
        return time.monotonic() - quiet

    def everything(self) -> list[TopicPartition]:
        return partitions_of(**self.topics)

    def close(self) -> None:
        """Everybody leaves."""
        for member in list(self.members):
            self.go(member, is_killed=False)


def prove(kafka: ApacheKafka, name: str, kind: Kind, seconds: float, seed: int) -> tuple[str, list[str]]:
    """One row: its line, and what was wrong."""
    stress = Stress(kafka, name, kind, seed)
    try:
        quiet = stress.run(seconds)
        outcome = f"everything owned {quiet:.1f} s after the last of it"
    except AssertionError as error:
        stress.violations.append(str(error))
        outcome = f"NOT settled: {error}"
        for member in stress.members:
            stress.violations.append(f"  {member.membership.group_metadata} {member.is_stable} {sorted(member.owned)}")
    generation = max((one.membership.group_metadata.generation_id for one in stress.members), default=-1)
    stress.close()
    done = ", ".join(f"{what} {count}" for what, count in sorted(stress.done.items()))
    line = f"{name}: generation {generation}; {done}; owned twice {len(stress.violations)}; {outcome}"
    return line, stress.violations


def main() -> int:
    """0 if no row had anything owned twice, and all was owned in the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of stress a row")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose name has this in it")
    parser.add_argument("--version", default=KAFKA_VERSION)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="folder of groups-DATE.txt, which is added to")
    arguments = parser.parse_args()
    lines, wrong = [f"{arguments.version}, {arguments.seconds:g} s a row, seed {arguments.seed}"], 0
    with ApacheKafka(arguments.version, **OPTIONS) as kafka:
        for name, kind in KINDS.items():
            if any(part in name for part in arguments.only) and kind.is_there(arguments.version):
                line, violations = prove(kafka, name, kind, arguments.seconds, arguments.seed)
                lines.append(f"  {line}")
                wrong += not violations if kind.is_control else len(violations)
                print(line, *([] if kind.is_control else violations[:10]), sep="\n", flush=True)
    add_results(arguments.results, "groups", lines)
    print(
        f"{len(lines) - 1} kinds of groups: {'as they must be' if not wrong else f'{wrong} times NOT as they must be'}"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
