# SPDX-License-Identifier: Apache-2.0
"""Random sequences of requests about transactions, groups and logs, made from a seed alone.

A sequence has two producers with a transactional id and one without, a group, a topic of two partitions and a compacted
one. Most of its steps are what a client does; the others are late, repeated, out of order or invalid, so that every
error code that one node can give occurs. broker_sequence_runner.py runs it on a broker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

# The versions of Produce that stand for the two flows of a transaction, and the first transaction version of the new.
OLD_FLOW, NEW_FLOW = 11, 12
NEW_VERSION = 2
LARGE = 30_000
LONG_METADATA = 5000
LAST_EPOCH = 32_767
#: In the flow of transaction version 2, the coordinator's own marker has the next epoch.
MARKER_AHEAD = 2
# Times of sequences with a clock, in ms: the most for the steps between two waits; a wait in which all transactions
# time out; the time after which what is idle expires, more than MOST_SHORT short waits and the steps between them take;
# and a wait in which all of it expires, also what a time-out ends first.
STEPS_MS, SHORT_WAIT_MS, EXPIRATION_MS, LONG_WAIT_MS = 500, 2000, 6000, 8000
# So different that the transactions of the two producers never time out together.
TIMEOUTS_MS = (700, 1400, 1400)
MOST_SHORT = 2


@dataclass(frozen=True)
class Profile:
    """A kind of sequence, and the broker that it needs.

    share:      How many of 2,000 sequences are of this kind.
    has_clock:  Transactions time out, and producers and transactional ids expire. Real time counts on Kafka.
    prepared:   The transactional ids exist already, with epochs that are nearly used up.
    """

    name: str
    transaction_version: int
    share: int
    steps: int = 60
    has_clock: bool = False
    prepared: bool = False

    @property
    def most_ms_between_waits(self) -> int:
        """The time in which the steps between two waits must be done; 0 for any."""
        return STEPS_MS if self.has_clock else 0


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("tv2", 2, 1100),
        Profile("tv1", 1, 150),
        Profile("tv0", 0, 250),
        Profile("epochs", 2, 250, prepared=True),
        Profile("epochs-tv0", 0, 100, prepared=True),
        Profile("clock", 2, 150, steps=30, has_clock=True),
    )
}


class Prepared(NamedTuple):
    """A transactional id that exists before the sequence: the name of its state, and its epoch."""

    state: str
    epoch: int
    client_version: int


class Step(NamedTuple):
    """One request: its kind, and the arguments that the runner needs."""

    kind: str
    arguments: dict[str, Any]


class Sequence:
    """The steps of one seed.

    salt: makes the names unique on a broker that has seen the seed before. lingers: the group coordinator of that Kafka
    may write several requests as one batch (group.coordinator.append.linger.ms), so that records are compared one by
    one.
    """

    def __init__(self, seed: int, profile: Profile, salt: int = 0, *, lingers: bool = False) -> None:
        self.seed = seed
        self.salt = salt
        self.lingers = lingers
        self.profile = profile
        self.random = random.Random(f"{profile.name} {seed}")
        self.name = f"sequence-{seed:06}-{salt:08x}"
        #: Transactional ids; the last producer has none.
        self.ids = [f"{self.name}-a", f"{self.name}-b", ""]
        self.next: dict[tuple[int, int], int] = {}
        flows = (OLD_FLOW, NEW_FLOW, NEW_FLOW) if profile.transaction_version >= NEW_VERSION else (OLD_FLOW,)
        self.flow = [self.random.choice(flows) for _ in self.ids]
        self.flows = sorted(set(flows))
        kinds = ("none", "dynamic", "static", "consumer")
        self.group = "none" if profile.has_clock else self.random.choices(kinds, (3, 2, 5, 4))[0]
        self._short_waits = 0
        #: What exists of the transactional ids at the beginning.
        self.prepared = [self._prepared() for _ in range(2)] if profile.prepared else []

    def steps(self) -> Iterator[Step]:
        """Yield the steps, the first of which give every producer its id."""
        for slot in range(len(self.ids)):
            yield self.init(slot, plain=not self.profile.prepared)
        for _ in range(self.profile.steps):
            yield from self._some()
        for slot in range(2):
            who = (slot, 0, 0)
            yield Step(
                "end", {"slot": slot, "name": slot, "who": who, "commit": False, "version": self._end_version(slot)}
            )
        for partition in (0, 1):
            for level in (0, 1):
                part = {"partition": partition, "offset": 0}
                yield Step("fetch", {"parts": [part], "level": level, "most": 1 << 20, "version": 12})
            yield Step("producers", {"partition": partition})

    def _some(self) -> list[Step]:
        """Return the next step, or a few that belong together."""
        chance = self.random.random()
        if self.group != "none" and chance < 0.12:
            return [self.member()]
        if self.profile.has_clock and chance > 0.94:
            return self.time_passes()
        if 0.12 <= chance < 0.20:
            return [self.odd()]
        if 0.20 <= chance < 0.22:
            return self.repeated_init()
        if 0.220 <= chance < 0.222 and not self.profile.has_clock:
            return self.stuck()
        if 0.222 <= chance < 0.225:
            return self.session()
        if 0.225 <= chance < 0.233 and self.group == "static":
            return self.replaced_member()
        if 0.225 <= chance < 0.231 and self.group == "consumer":
            return self.stale_member()
        usual = [self.produce] * 20 + [self.end] * 8 + [self.fetch] * 6 + [self.add] * 6 + [self.init] * 2
        usual += [self.list_offsets, self.producers, self.transactions, self.epoch_end, self.verify]
        usual += [self.offsets] * 2 + [self.commit_offset] * 5 + [self.offset_fetch] * 2 + [self.commit_plain] * 2
        usual += [self.delete_records, self.markers, self.list_transactions]
        return [self.random.choice(usual)(self._slot())]

    def _pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def _slot(self) -> int:
        return self.random.choices((0, 1, 2), (5, 3, 1))[0]

    def _who(self, slot: int) -> tuple[int, int, int]:
        kind = self.random.random()
        if kind < 0.02:
            return (1 - min(slot, 1), 0, 0)
        back = 0 if kind < 0.88 else self.random.randint(1, 2)
        # after a batch or a marker with a higher epoch, a transaction may not end, which takes longer than a time-out
        ahead = 1 if kind > 0.97 and not self.profile.has_clock else 0
        return (slot, back, ahead)

    def _prepared(self) -> Prepared:
        """Return a transactional id whose epochs are nearly used up."""
        state = self.random.choices(("EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT", "ONGOING"), (2, 3, 3, 2))[0]
        epoch = self.random.choice((*range(LAST_EPOCH - 7, LAST_EPOCH), LAST_EPOCH - 1, LAST_EPOCH - 1))
        return Prepared(state, epoch, client_version=0 if self.profile.transaction_version < NEW_VERSION else 2)

    def _restart(self, slot: int) -> None:
        self.next = {key: value for key, value in self.next.items() if key[0] != slot}

    # Transactions.

    def init(self, slot: int, *, plain: bool = False) -> Step:
        """InitProducerId, with the own identity or without."""
        self._restart(slot)
        back = None if plain or self.random.random() < 0.6 else self._pick(0, 0, 1)
        who = None if back is None else (slot, back, 0)
        version = self._pick(0, 3, 4, 5, 5, 5) if who is None else self._pick(3, 4, 5, 5, 5)
        timeout = TIMEOUTS_MS[slot] if self.profile.has_clock else 60_000
        return Step("init", {"slot": slot, "name": slot, "who": who, "version": version, "timeout": timeout})

    def repeated_init(self) -> list[Step]:
        """InitProducerId with the own identity, and once more as if the response had been lost."""
        slot = self.random.randrange(2)
        first = self.init(slot, plain=True)
        versions = [self._pick(3, 5), 5]
        who = [(slot, 0, 0), (slot, 1, 0)]
        return [
            Step("init", {**first.arguments, "who": one, "version": version})
            for one, version in zip(who, versions, strict=True)
        ]

    def stuck(self) -> list[Step]:
        """A transaction that the coordinator gives up, as a tool has written a marker with a higher epoch before it."""
        slot = self.random.randrange(2)
        who, ahead = (slot, 0, 0), (slot, 0, MARKER_AHEAD)
        marker = {"who": ahead, "partitions": [0], "commit": False, "epoch_change": 0, "version": 1, "txn": 0}
        version = self._end_version(slot)
        end = {"slot": slot, "name": slot, "who": who, "commit": True, "version": version, "sticks": True}
        return [
            Step("add", {"name": slot, "who": who, "partitions": [0], "version": 3}),
            Step("markers", marker),
            Step("end", end),
        ]

    def session(self) -> list[Step]:
        """A fetch session, and requests with its right epoch and with a wrong one."""
        fetch = {"parts": [{"partition": 0, "offset": 0}], "level": 1, "most": 1000, "version": self._pick(7, 12, 17)}
        return [Step("fetch", {**fetch, "session": kind}) for kind in ("new", "epoch")]

    def replaced_member(self) -> list[Step]:
        """A static member joins again, and its id of before, or one that never was, is used once more."""
        member = self._pick(1, "nobody")
        named = {"member": member, "instance": "i"}
        join = Step("join", {"version": self._pick(5, 7, 9), "member": "", "instance": "i"})
        kind = self.random.randrange(3)
        if kind == 0:
            return [join, Step("leave", {"version": self._pick(3, 4, 5), **named})]
        named["generation"] = ("own", 0)
        if kind == 1:
            offset = {"partition": 0, "offset": 1, "version": self._pick(7, 8, 9, 10)}
            return [join, Step("commit_plain", offset | named)]
        return [join, *self._committed_by(named, self._pick(*(flow - 7 for flow in self.flows)))]

    def stale_member(self) -> list[Step]:
        """A member of a consumer group joins, and commits in a transaction with an epoch that it does not have."""
        join = Step("report", {"member": "member-0", "epoch": 0, "owned": [], "joins": True})
        # before version 6 the error code is ILLEGAL_GENERATION
        versions = (5, 6, 6) if NEW_FLOW in self.flows else (4,)
        member = {"member": "member-0", "generation": ("own", self._pick(-1, 1))}
        return [join, *self._committed_by(member, self._pick(*versions))]

    def _committed_by(self, member: dict[str, Any], version: int) -> list[Step]:
        """Return the steps of a transaction with an offset of this member; the identity is right in most cases."""
        slot = self.random.randrange(2)
        who = (slot, 0, 0)
        commit = {"name": slot, "who": who, "partition": 0, "offset": 1, "version": version}
        return [Step("add_offsets", {"name": slot, "who": who, "version": 3}), Step("commit_offset", commit | member)]

    def _part(self, slot: int, who: Any = None) -> dict[str, Any]:
        partition = self.random.randrange(2)
        count = self.random.randint(1, 3)
        expected = self.next.get((slot, partition), 0)
        kind = self.random.random()
        if kind < 0.80:
            sequence = expected
            self.next[slot, partition] = expected + count
        elif kind < 0.90:
            sequence = max(expected - count, 0)
        else:
            sequence = self._pick(0, expected + 1, max(expected - 7, 0), 2**31 - 2)
        return {
            "who": who or self._who(slot),
            "partition": partition,
            "sequence": sequence,
            "count": count,
            "transactional": slot < 2 and self.random.random() < 0.96,
            "size": self._pick(5, 5, 200, 3000),
            "time": "now" if self.profile.has_clock else "fixed",
        }

    def produce(self, slot: int) -> Step:
        """Produce to one partition, at times to both."""
        part = self._part(slot)
        if self.random.random() < 0.15:
            part["codec"] = self._pick("gzip", "lz4", "snappy")
        parts = [part]
        if self.random.random() < 0.06:
            other = self._part(slot, part["who"])
            other["partition"] = 1 - part["partition"]
            parts.append(other)
        version = self.flow[slot]
        # in parallel, Kafka may verify an older client together with others, and give it their error codes
        if not self.profile.has_clock and self.random.random() < 0.1:
            version = self._pick(3, 7, 9, 10, *self.flows)
        if version == NEW_FLOW and self.random.random() < 0.3:
            version = 13
        return Step("produce", {"name": slot, "version": version, "parts": parts})

    def _end_version(self, slot: int) -> int:
        return 5 if self.flow[slot] >= NEW_FLOW else 3

    def end(self, slot: int) -> Step:
        """EndTxn."""
        slot = min(slot, 1)
        if self.flow[slot] >= NEW_FLOW:
            self._restart(slot)
        flow = self.flow[slot] if self.random.random() < 0.93 else self._pick(*self.flows)
        version = 5 if flow >= NEW_FLOW else self._pick(1, 3, 3, 4)
        commit = self.random.random() < 0.6
        return Step("end", {"slot": slot, "name": slot, "who": self._who(slot), "commit": commit, "version": version})

    def add(self, slot: int) -> Step:
        """AddPartitionsToTxn."""
        slot = min(slot, 1)
        partitions = self._pick([0], [1], [0, 1], [0, 9])
        return Step(
            "add", {"name": slot, "who": self._who(slot), "partitions": partitions, "version": self._pick(1, 3, 3)}
        )

    def verify(self, slot: int) -> Step:
        """AddPartitionsToTxn as one broker sends it to another."""
        slot = min(slot, 1)
        partitions = self._pick([0], [1], [0, 1], [0, 9])
        arguments = {"name": slot, "who": self._who(slot), "partitions": partitions, "version": self._pick(4, 5)}
        # partitions that are added this way begin a transaction of the new flow
        verify = self.profile.transaction_version < NEW_VERSION or self.random.random() < 0.7
        return Step("add", {**arguments, "verify": verify})

    def offsets(self, slot: int) -> Step:
        """AddOffsetsToTxn."""
        slot = min(slot, 1)
        return Step("add_offsets", {"name": slot, "who": self._who(slot), "version": self._pick(1, 3, 4)})

    def commit_offset(self, slot: int) -> Step:
        """TxnOffsetCommit."""
        slot = min(slot, 1)
        flow_version = self.flow[slot] - 7
        if self.flow[slot] == NEW_FLOW:
            flow_version += self.random.choice((0, 0, 1))
        others = (0, 2, 3, *(flow - 7 for flow in self.flows))
        is_usual = self.profile.has_clock or self.random.random() < 0.9
        version = flow_version if is_usual else self._pick(*others)
        arguments = {
            "name": slot,
            "who": self._who(slot),
            "partition": self._pick(0, 1),
            "offset": self.random.randrange(100),
            "version": version,
        }
        return Step("commit_offset", arguments | self._membership())

    def markers(self, slot: int) -> Step:
        """WriteTxnMarkers, as a tool that ends a hanging transaction."""
        arguments = {
            "who": self._who(min(slot, 1)),
            "partitions": self._pick([0], [1], [0, 1], [0, 9]),
            "commit": self._pick(False, False, True),
            "epoch_change": self._pick(0, 0, -1),
            "version": self._pick(1, 2),
            "txn": self._pick(0, 1, 2),
        }
        return Step("markers", arguments)

    # Groups.

    def _membership(self) -> dict[str, Any]:
        """Return how a commit names the member that it comes from."""
        kind = self.random.random()
        if self.group == "none":
            return {} if kind < 0.9 else {"member": self._pick("", "nobody"), "generation": self._pick(-1, 0, 3)}
        if kind < 0.1:
            return {}
        member: Any = f"member-{self._pick(0, 0, 1)}" if self.group == "consumer" else 0
        generation: Any = ("own", 0)
        instance = "i" if self.group == "static" and self.random.random() < 0.7 else None
        if kind > 0.8:
            member = self._pick("nobody", "", *[1 if self.group != "consumer" else "member-1"] * 2)
        if kind > 0.65:
            generation = self._pick(("own", 1), ("own", -1), -1, 0)
        if kind > 0.95:
            instance = self._pick("i", "j")
        return {"member": member, "generation": generation, "instance": instance}

    def member(self) -> Step:
        """A request of a member of the group. There is one at a time in a classic group, so that no join waits."""
        if self.group == "consumer":
            return self._report()
        instance = "i" if self.group == "static" else None
        kind = self.random.random()
        if kind < 0.35:
            member: Any = 0 if self.group == "dynamic" or self.random.random() < 0.6 else ""
            if self.group == "dynamic" and not self.has_joined:
                self.has_joined = True
                member = ""
            return Step("join", {"version": self._pick(5, 7, 9), "member": member, "instance": instance})
        generation: Any = ("own", 0) if self.random.random() < 0.75 else self._pick(("own", 1), ("own", -1))
        member = 0 if self.random.random() < 0.7 else self._pick(1, 1, 1, "nobody")
        named = {"member": member, "instance": instance if self.random.random() < 0.9 else self._pick(None, "i", "j")}
        if kind < 0.65:
            kinds = {"kind": self._pick(None, None, "consumer", "other")}
            return Step("sync", {"version": self._pick(3, 5), "generation": generation, **named, **kinds})
        if kind < 0.88:
            return Step("heartbeat", {"version": self._pick(3, 4), "generation": generation, **named})
        return Step("leave", {"version": self._pick(1, 4), **named})

    has_joined = False

    def _report(self) -> Step:
        member = f"member-{self._pick(0, 0, 0, 1)}"
        kind = self.random.random()
        if kind < 0.4:
            return Step("report", {"member": member, "epoch": 0, "owned": [], "joins": True})
        owned = self._pick(None, [], [0], [0, 1])
        if kind < 0.75:
            return Step("report", {"member": member, "epoch": ("own", 0), "owned": owned, "joins": False})
        epoch = self._pick(-1, -1, ("own", 1), ("own", -1), -3)
        member = self._pick(member, member, "nobody", "")
        return Step("report", {"member": member, "epoch": epoch, "owned": owned, "joins": False})

    def commit_plain(self, slot: int) -> Step:
        """OffsetCommit."""
        arguments = {
            "partition": self._pick(0, 1, 1, 9),
            "offset": self.random.randrange(100),
            "version": self._pick(9, 10, 10) if self.group == "consumer" else self._pick(2, 5, 7, 8, 9, 10),
        }
        return Step("commit_plain", arguments | self._membership())

    def offset_fetch(self, slot: int) -> Step:
        """OffsetFetch."""
        arguments: dict[str, Any] = {
            "stable": self.random.random() < 0.5,
            "version": self._pick(1, 5, 7, 7, 8, 9, 10),
            "everything": self.random.random() < 0.2,
        }
        if self.group == "consumer" and self.random.random() < 0.5:
            arguments |= {"version": 9, "member": self._pick("member-0", "member-1", "nobody")}
            arguments |= {"epoch": self._pick(("own", 0), ("own", 0), ("own", 1))}
        return Step("offset_fetch", arguments)

    # Reads.

    def fetch(self, slot: int) -> Step:
        """Fetch of one partition, at times of both."""
        parts = [{"partition": self.random.randrange(2), "offset": self._pick(0, 0, 1, 2, 3, 5, 8, 13, 50)}]
        if self.random.random() < 0.1:
            parts.append({"partition": 1 - parts[0]["partition"], "offset": self._pick(0, 3)})
        return Step(
            "fetch",
            {
                "parts": parts,
                "level": self.random.randrange(2),
                "most": self._pick(1, 100, 500, 4000, 1 << 20),
                "version": self._pick(4, 7, 11, 12, 13, 17),
            },
        )

    def list_offsets(self, slot: int) -> Step:
        """ListOffsets."""
        return Step(
            "list_offsets",
            {
                "partition": self.random.randrange(3),
                "timestamp": self._pick(-1, -1, -2, -1 if self.profile.has_clock else -3, 1000, 1500, 3000),
                "level": self.random.randrange(2),
                "version": self._pick(1, 2, 5, 7, 8, 10),
            },
        )

    def producers(self, slot: int) -> Step:
        """DescribeProducers."""
        return Step("producers", {"partition": self.random.randrange(2)})

    def transactions(self, slot: int) -> Step:
        """DescribeTransactions."""
        return Step("transactions", {"name": min(slot, 1)})

    def list_transactions(self, slot: int) -> Step:
        """ListTransactions of one producer id."""
        states = self._pick([], [], ["Ongoing"], ["CompleteAbort", "Empty"], ["Unknown"])
        return Step(
            "list_transactions",
            {
                "slot": min(slot, 1),
                "version": self._pick(0, 1, 2),
                "states": states,
                "pattern": self._pick(None, ".*-a"),
            },
        )

    def epoch_end(self, slot: int) -> Step:
        """OffsetForLeaderEpoch."""
        return Step("epoch_end", {"partition": self.random.randrange(2), "epoch": self._pick(0, 0, 3)})

    def delete_records(self, slot: int) -> Step:
        """DeleteRecords."""
        return Step("delete", {"partition": self.random.randrange(2), "offset": self._pick(1, 2, 4, 99, -1)})

    # Odd requests.

    def odd(self) -> Step:
        """Return a request that no correct client sends, or sends rarely."""
        slot = self.random.randrange(2)
        who = (slot, 0, 0)
        part = self._part(slot, who)
        # a request that is refused uses no sequence
        self.next.pop((slot, part["partition"]), None)
        produce = {"name": slot, "version": self.flow[slot]}
        init = {"slot": slot, "name": slot, "who": None, "version": 5}
        if self.profile.has_clock:
            init["timeout"] = TIMEOUTS_MS[slot]
        end = {"slot": slot, "name": slot, "who": who, "commit": True, "version": self._end_version(slot)}
        add = {"name": slot, "who": who, "partitions": [0], "version": self._pick(1, 3)}
        offsets = {"name": slot, "who": who, "version": 3}
        commit: dict[str, Any] = {"name": slot, "who": who, "partition": 0, "offset": 1, "version": self.flow[slot] - 7}
        plain = {"partition": 0, "offset": 1, "version": self._pick(2, 8)}
        fetch = {"level": 1, "most": 1000, "version": 12}
        listed = {"partition": 0, "timestamp": -1, "level": 0, "version": 7}
        free = {**part, "who": (2, 0, 0), "transactional": False}
        unknown = (5, 0, 0)
        special = self._pick(-4, -5, -6, -9) if self.profile.has_clock else self._pick(-3, -4, -5, -6, -9)
        refused = self._pick("crc", "count", "two", "cut", "magic")
        choices: list[tuple[str, dict[str, Any]]] = [
            ("init", {**init, "timeout": self._pick(0, -1, 10**9)}),
            ("init", {**init, "name": "empty"}),
            ("init", {**init, "who": self._pick(("raw", -1, 3), ("raw", 3, -1))}),
            ("init", {**init, "who": unknown}),
            ("init", {**init, "who": (1 - slot, 0, 0), "version": self._pick(3, 5)}),
            ("produce", {**produce, "parts": [{**part, "defect": refused}]}),
            ("produce", {**produce, "parts": [{**part, "defect": self._pick("crc", "count", "two", "cut", "magic")}]}),
            ("produce", {**produce, "parts": [{**part, "size": LARGE, "count": 1}]}),
            ("produce", {**produce, "parts": [{**part, "topic": self._pick("unknown", "internal")}]}),
            ("produce", {**produce, "version": min(produce["version"], 12), "parts": [{**part, "partition": 9}]}),
            ("produce", {**produce, "parts": [free | {"topic": "compacted", "partition": 0, "defect": "no key"}]}),
            ("produce", {**produce, "parts": [free | {"topic": "compacted", "partition": 0, "time": "far"}]}),
            ("produce", {**produce, "parts": [part], "acks": self._pick(2, 1)}),
            ("produce", {**produce, "name": None, "parts": [part]}),
            ("produce", {**produce, "name": 1 - slot, "parts": [part]}),
            ("produce", {**produce, "name": "unknown", "parts": [part]}),
            (
                "produce",
                {**produce, "parts": [part, {**part, "partition": 1 - part["partition"], "who": (1 - slot, 0, 0)}]},
            ),
            ("produce", {**produce, "version": 13, "parts": [{**free, "topic": "unknown"}]}),
            ("produce", {**produce, "version": self._pick(3, 6), "parts": [{**part, "codec": "zstd"}]}),
            ("end", {**end, "name": self._pick("unknown", "empty")}),
            ("end", {**end, "who": (1 - slot, 0, 0)}),
            ("end", {**end, "who": unknown}),
            ("end", {**end, "version": 1, "who": (slot, 1, 0)}),
            ("add", {**add, "name": self._pick("unknown", "empty")}),
            ("add", {**add, "who": (1 - slot, 0, 0)}),
            ("add", {**add, "version": 1, "who": (slot, 1, 0)}),
            ("add", {**add, "topic": self._pick("unknown", "internal")}),
            ("add", {**add, "version": self._pick(4, 5), "verify": True, "name": self._pick("unknown", "empty")}),
            ("add", {**add, "version": self._pick(4, 5), "verify": True, "who": self._pick((slot, 1, 0), unknown)}),
            ("add_offsets", {**offsets, "name": self._pick("unknown", "empty")}),
            ("add_offsets", {**offsets, "group": self._pick("empty", "unknown")}),
            ("add_offsets", {**offsets, "who": (1 - slot, 0, 0)}),
            ("add_offsets", {**offsets, "version": self._pick(1, 3), "who": (slot, 1, 0)}),
            ("commit_offset", {**commit, "partition": 9}),
            (
                "commit_offset",
                {**commit, "topic": "unknown", "version": commit["version"] + self.random.choice((0, 1))},
            ),
            ("commit_offset", {**commit, "topic": "unknown", "version": commit["version"] + 1}),
            ("commit_offset", {**commit, "metadata": LONG_METADATA}),
            ("commit_offset", {**commit, "group": self._pick("empty", "unknown")}),
            ("commit_offset", {**commit, "name": self._pick("unknown", "empty")}),
            ("commit_offset", {**commit, "who": unknown}),
            ("commit_offset", {**commit, "version": max(commit["version"], 3), "generation": 3, "member": "nobody"}),
            (
                "markers",
                {"who": unknown, "partitions": [0], "commit": False, "epoch_change": 0, "version": 2, "txn": 2},
            ),
            ("commit_plain", {**plain, "topic": "unknown", "version": self._pick(2, 8, 10)}),
            ("commit_plain", {**plain, "metadata": LONG_METADATA}),
            ("commit_plain", {**plain, "group": self._pick("empty", "unknown")}),
            (
                "commit_plain",
                {**plain, "group": "unknown", "generation": 2, "member": "nobody", "version": self._pick(5, 9)},
            ),
            ("offset_fetch", {"stable": True, "version": self._pick(7, 9), "group": self._pick("unknown", "empty")}),
            ("offset_fetch", {"stable": True, "version": self._pick(7, 9, 10), "topic": "unknown"}),
            (
                "offset_delete",
                {"partition": self._pick(0, 1, 9), "group": self._pick("own", "own", "unknown", "empty")},
            ),
            ("offset_delete", {"partition": self._pick(0, 1), "group": "own"}),
            ("offset_delete", {"partition": 9, "group": self._pick("own", "own", "own", "empty")}),
            ("delete_group", {"group": self._pick("own", "own", "unknown")}),
            ("delete_group", {"group": "own"}),
            ("join", {"version": 5, "member": "", "group": "empty"}),
            ("fetch", {**fetch, "parts": [{"partition": 0, "offset": 0, "leader_epoch": self._pick(0, 4)}]}),
            ("fetch", {**fetch, "parts": [{"partition": 0, "offset": 0, "last_epoch": self._pick(0, 4)}]}),
            ("fetch", {**fetch, "parts": [{"partition": 9, "offset": 0}]}),
            (
                "fetch",
                {
                    **fetch,
                    "version": self._pick(11, 13, 17),
                    "parts": [{"partition": 0, "offset": 0, "topic": "unknown"}],
                },
            ),
            (
                "fetch",
                {**fetch, "version": self._pick(7, 12, 17), "session": "new", "parts": [{"partition": 0, "offset": 0}]},
            ),
            ("fetch", {**fetch, "session": self._pick("epoch", "unknown"), "parts": [{"partition": 0, "offset": 0}]}),
            ("list_offsets", {**listed, "leader_epoch": self._pick(0, 4)}),
            (
                "list_offsets",
                {**listed, "timestamp": special, "version": self._pick(5, 7, 8, 9, 10)},
            ),
            ("list_offsets", {**listed, "partition": 9}),
            ("epoch_end", {"partition": self._pick(0, 9), "epoch": 0, "leader_epoch": self._pick(-1, 4)}),
            ("epoch_end", {"partition": 0, "epoch": 0, "leader_epoch": 4}),
            ("producers", {"partition": 9}),
            ("transactions", {"name": self._pick("unknown", "empty")}),
            ("list_transactions", {"slot": slot, "version": 2, "states": [], "pattern": "("}),
            ("delete", {"partition": 0, "offset": 0, "topic": self._pick("compacted", "internal", "unknown")}),
            ("delete", {"partition": 9, "offset": 0}),
            ("find", {"slot": slot, "key_type": self._pick(0, 1, 9), "version": self._pick(1, 3, 4, 5)}),
        ]
        kind, arguments = self.random.choice(choices)
        if kind in ("init", "end"):
            self._restart(slot)
        return Step(kind, arguments)

    # Time.

    def time_passes(self) -> list[Step]:
        """Return a wait until transactions have timed out, or until everything that is idle has expired.

        Before most of the latter a transaction is committed, as the others are aborted by their time-outs.
        """
        is_short = self._short_waits < MOST_SHORT and self.random.random() < 0.7
        self._short_waits = self._short_waits + 1 if is_short else 0
        if is_short:
            return [Step("wait", {"ms": SHORT_WAIT_MS})]
        committed = self._committed() if self.random.random() < 0.7 else []
        return [*committed, Step("wait", {"ms": LONG_WAIT_MS})]

    def _committed(self) -> list[Step]:
        """Return the steps of a new producer that commits a transaction without records."""
        slot = self.random.randrange(2)
        who = (slot, 0, 0)
        end = {"slot": slot, "name": slot, "who": who, "commit": True, "version": self._end_version(slot)}
        return [
            self.init(slot, plain=True),
            Step("add", {"name": slot, "who": who, "partitions": [0, 1], "version": 3}),
            Step("end", end),
        ]
