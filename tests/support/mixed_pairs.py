# SPDX-License-Identifier: Apache-2.0
"""Random requests to groups with members of both protocols, for Apache Kafka and for the embedded coordinator.

Kafka gets each request first. The embedded coordinator takes the ids of topics and members from it, because
assignments depend on them. Responses and, at the end of a walk, the records of the group are then compared as they are.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from embedded_subscriptions import assigned, assignment, subscription
from group_log_pairs import GroupLog, shown_records
from group_pairs import ABSENT, PROCESSING_SECONDS, RESPONSE_SECONDS, KafkaConnection, Side, Slot, Walk, bucket
from memory_groups import MemoryGroups

from kcodec.broker.groups.classic_group import ClassicGroup
from kcodec.broker.groups.consumer_group import ConsumerGroup
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_MEMBER_EPOCH)
GROUP_RESOURCE = 32
DYNAMIC, STATIC = 3, 2
#: The longest malformed assignment of a walk.
MALFORMED_BYTES = 3
#: In walks with timeouts: the short ones, and how long a walk lets time pass.
TIMEOUT_MS, PAUSE_MS = 2_000, 2_600


@dataclass
class MixedSlot(Slot):
    """A member.

    kind:     Its protocol: "classic", "consumer", or "" if it is not in the group.
    assigned: The partitions of a classic member.
    """

    kind: str = ""
    number: int = 0
    assigned: dict[str, list[int]] = field(default_factory=dict)
    is_cooperative: bool = False
    must_join: bool = False
    must_sync: bool = False

    @property
    def me(self) -> Side:
        """The member, which is the same on both sides."""
        return self.theirs


class _SameIds(dict[str, str]):
    """Member ids are the same on both sides and keep their names."""

    def get(self, key: str, default: Any = None) -> str:
        return key


class MixedWalk(Walk):
    """Members of both protocols in one group.

    has_timeouts: Whether members have short timeouts, and the walk lets time pass. Kafka and the embedded coordinator
                  must have a minimum session timeout of at most 2 s.
    """

    def __init__(
        self, address: str, seed: int, group: str, topics: tuple[str, str], *, has_timeouts: bool = False
    ) -> None:
        super().__init__(address, seed, group, topics)
        self.has_timeouts = has_timeouts
        for slot in self.slots:
            slot.connection.close()
        self.members: list[MixedSlot] = []
        for number in range(DYNAMIC + STATIC):
            slot = MixedSlot(Side(), Side(), KafkaConnection(address), number=number)
            slot.instance = None if number < DYNAMIC else f"instance-{number}"
            slot.is_cooperative = self.random.random() < 0.5
            self.members.append(slot)
        self.slots = list(self.members)
        self.ids: list[Any] = []
        self.groups = self._groups()
        self.protocol = ""
        #: The choice of the uniform assignor depends on the order of ids in a hash table, which is not compared if two
        #: ids have the same bucket, and if subscriptions differ. With "range", all ids and subscriptions are possible.
        self.assignor = self.random.choice(["range", "uniform"])
        self.log = GroupLog(self.tools, group)
        # Otherwise Kafka computes an assignment later, or on another thread. If the broker is busy, its response to the
        # heartbeat then has the epoch before the assignment.
        settings = {"consumer.assignment.interval.ms": "0", "consumer.assignor.offload.enable": "false"}
        configs = [messages.IncrementalAlterableConfig(name=name, value=value) for name, value in settings.items()]
        resource = messages.IncrementalAlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=group, configs=configs
        )
        (changed,) = self.tools.ask(messages.IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        assert changed.error_code == 0, changed

    def _groups(self) -> MemoryGroups:
        """The embedded coordinator, with topics that have the same ids as on Kafka."""
        names = [messages.MetadataRequestTopic(name=name) for name in (self.three, self.twelve)]
        found = {one.name: one for one in self.tools.ask(messages.MetadataRequest(topics=names), 10).topics}
        settings = {"group_min_session_timeout_ms": 1_000} if self.has_timeouts else {}
        groups = MemoryGroups(**settings)
        groups.topics.new_uuid = self.next_id  # type: ignore[method-assign]
        for name in (self.three, self.twelve):
            self.ids.append(found[name].topic_id)
            groups.topics.create(name, len(found[name].partitions))
        return groups

    def next_id(self) -> Any:
        """The next id that the embedded coordinator gives."""
        return self.ids.pop(0) if self.ids else UUID(int=self.random.getrandbits(128))

    def names(self, *, ours: bool) -> dict[str, str]:
        """Member ids as they are."""
        return _SameIds()

    def run(self, steps: int) -> None:
        """Take steps until something differs."""
        pauses = {steps // 4, steps // 2, steps * 3 // 4} if self.has_timeouts else set()
        for number in range(steps):
            free = [slot for slot in self.members if slot.reply is None]
            if number in pauses:
                self.pause()
            elif not free or self.random.random() < 0.12:
                self.any_tool()
            else:
                self.act(self.random.choice(free))
            self.count_conversions()
            if self.random.random() < 0.05:
                self.check_recovery()
            if self.differences or self.is_over:
                break
        if not self.differences:
            self.compare_records()
        self.leave_all()

    def count_conversions(self) -> None:
        """Count the conversions of groups with members."""
        (protocol,) = [one.group_type for one in self.groups.ask(messages.ListGroupsRequest()).groups] or [""]
        group = self.groups.coordinator._table.groups.get(self.group)
        if group is None or group.is_empty:
            protocol = ""
        if self.protocol and protocol not in ("", self.protocol):
            self.counts["Conversion", f"to {protocol}"] += 1
        self.protocol = protocol

    def fits(self, member_id: str) -> bool:
        """Return whether the assignor does not depend on the place of this id in its bucket."""
        group = self.groups.coordinator._table.groups.get(self.group)
        known = {*(() if group is None else group.members), *(slot.me.member_id for slot in self.members)}
        return self.assignor == "range" or bucket(member_id) not in map(bucket, known - {member_id, ""})

    def check_recovery(self) -> None:
        """Compare a group of the consumer protocol in memory with the group that a restart would read from the log."""
        group = self.groups.coordinator._table.groups.get(self.group)
        if isinstance(group, ConsumerGroup):
            found = self.groups.recovered()._table.groups.get(self.group)
            assert isinstance(found, ConsumerGroup)
            self.counts["Recovery", "compared"] += 1
            for one in fields(group):
                seen, expected = getattr(found, one.name), getattr(group, one.name)
                if one.name != "matched_names" and seen != expected:
                    self.differences.append(f"after a restart, {one.name} is {seen}, expected {expected}")

    def act(self, slot: MixedSlot) -> None:
        """One request of a member: mostly one that a client would send."""
        chances: dict[str, int]
        if self.random.random() < 0.1:
            chances = {"join": 1, "sync": 1, "heartbeat": 1, "report": 1, "leave": 1, "commit_own": 1, "fetch_own": 1}
        elif slot.kind == "classic":
            chances = {"heartbeat": 4, "join": 12 if slot.must_join else 1, "sync": 12 if slot.must_sync else 1}
            chances |= {"leave": 1, "report": 1, "commit_own": 1, "fetch_own": 1}
        elif slot.kind == "consumer":
            chances = {"report": 12, "leave": 2, "join": 1, "commit_own": 1, "fetch_own": 1}
        else:
            chances = {"join": 6, "report": 3}
        kind = self.random.choices(list(chances), list(chances.values()))[0]
        getattr(self, kind)(slot)

    # Both sides

    def send(self, label: str, slot: MixedSlot, request: Any, version: int) -> None:
        """Send a request to Kafka and then to the embedded coordinator."""
        label = f"m{slot.number} {label}"
        self.trace.append(label)
        slot.label, slot.version = label, version
        gets_id = isinstance(request, messages.JoinGroupRequest) and not request.member_id
        known = self.static_ids(slot) if gets_id else set()
        slot.connection.begin(request, version)
        if gets_id:
            self.take_id(slot, known)
        slot.reply = self.groups.begin(request, version)
        self.ids.clear()
        slot.was_waiting = not slot.reply.is_done
        if slot.was_waiting:
            time.sleep(PROCESSING_SECONDS)
        self.compare_responses()

    def static_ids(self, slot: MixedSlot) -> set[str]:
        """The member ids that the instance id of a slot has in a classic group on Kafka."""
        if slot.instance is None:
            return set()
        (group,) = self.tools.ask(messages.DescribeGroupsRequest(groups=[self.group]), 5).groups
        return {one.member_id for one in group.members if one.group_instance_id == slot.instance}

    def take_id(self, slot: MixedSlot, known: set[str]) -> None:
        """Let the embedded coordinator give the member the id that Kafka has given it."""
        prefix = f"{slot.instance or 'client'}-"
        deadline = time.monotonic() + RESPONSE_SECONDS
        while time.monotonic() < deadline:
            response = slot.connection.peek()
            member_id = None if response is None else response.member_id
            if response is None:  # a static member can wait for the others
                member_id = next(iter(self.static_ids(slot) - known), None)
            if member_id is not None:
                self.ids = [member_id.removeprefix(prefix)] if member_id else []
                return
            time.sleep(0.002)
        self.differences.append(f"{slot.label}: Kafka has no response")

    def keep(self, slot: Slot, ours: Any, theirs: Any) -> None:
        """Store the state from both responses."""
        super().keep(slot, ours, theirs)
        assert isinstance(slot, MixedSlot)
        code = getattr(theirs, "error_code", 0)
        match theirs:
            case messages.JoinGroupResponse():
                slot.must_sync, slot.must_join = code == 0, code not in (0, *GONE)
                slot.kind = "classic" if code == 0 else slot.kind
                slot.me.protocol = slot.me.protocol if code else theirs.protocol_name or ""
            case messages.SyncGroupResponse() if code == 0:
                slot.must_sync = False
                content = bytes(theirs.assignment)
                slot.assigned = assigned(content) if content[:1] == b"\0" and len(content) > MALFORMED_BYTES else {}
            case messages.HeartbeatResponse() | messages.SyncGroupResponse():
                if code == ErrorCode.REBALANCE_IN_PROGRESS:
                    slot.must_join, slot.must_sync = True, False
            case messages.ConsumerGroupHeartbeatResponse() if code == 0:
                slot.kind = "consumer" if theirs.member_epoch >= 0 else ""
            case messages.LeaveGroupResponse() if not any(one.error_code for one in theirs.members):
                slot.kind = ""
        if code in GONE:
            slot.kind, slot.assigned, slot.me.owned = "", {}, []
            slot.me.member_id = (
                "" if slot.instance is None and code == ErrorCode.UNKNOWN_MEMBER_ID else slot.me.member_id
            )
        if code == ErrorCode.MEMBER_ID_REQUIRED and not self.fits(slot.me.member_id):
            slot.me.member_id = ""

    def compare(self, slot: Slot, ours: Any, theirs: Any) -> None:
        """Compare two responses. Kafka chooses the leader by a hash table, and the embedded coordinator takes it."""
        if isinstance(ours, messages.JoinGroupResponse) and ours.error_code == theirs.error_code == 0:
            group = self.groups.coordinator._table.groups.get(self.group)
            if ours.leader != theirs.leader and isinstance(group, ClassicGroup) and theirs.leader in group.members:
                group.leader = ours.leader = theirs.leader
                ours.members = theirs.members
        super().compare(slot, ours, theirs)

    # Requests of classic members

    def join(self, slot: MixedSlot) -> None:
        """JoinGroup. The id of a static member cannot be chosen."""
        if self.assignor == "uniform" and slot.instance is not None:
            self.report(slot)
            return
        version = self.random.randint(4 if slot.instance is None else 5, 9)
        names = self.random.choice([["a", "b"]] * 16 + [["b"], ["b", "a"], ["c"]])
        protocol_type = self.random.choice(["consumer"] * 30 + ["connect"])
        known = "own" if slot.kind == "classic" else "none" if slot.instance else "pending"
        if slot.kind and slot.instance is None:
            known = "own"
        elif self.random.random() < 0.1:
            known = self.random.choice(["own", "none", "wrong" if self.assignor == "range" else "own"])
        member_id = {"own": slot.me.member_id, "pending": slot.me.member_id, "none": "", "wrong": "nobody"}[known]
        if slot.kind == "consumer" and slot.instance is None and self.random.random() < 0.7:
            self.report(slot, "leave")
            return
        content = self.subscription(slot)
        request = messages.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.random.choice([TIMEOUT_MS, 30_000]) if self.has_timeouts else 30_000,
            rebalance_timeout_ms=self.random.choice([TIMEOUT_MS, 60_000]) if self.has_timeouts else 60_000,
            member_id=member_id,
            group_instance_id=slot.instance,
            protocol_type=protocol_type,
            protocols=[messages.JoinGroupRequestProtocol(name=name, metadata=content) for name in names],
        )
        self.send(f"join {known} {names} {protocol_type} {content!r}", slot, request, version)

    def subscription(self, slot: MixedSlot) -> bytes:
        """The subscription of a classic member, which is sometimes malformed."""
        chance = self.random.random()
        if chance < 0.03:
            return self.random.choice([b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\1\0\0"])
        version = self.random.randint(0, 3)
        topics = self.some_topics()
        is_cooperative = slot.is_cooperative != (chance > 0.95)
        owned = slot.assigned if is_cooperative and version else {}
        if not is_cooperative:
            slot.assigned = {}
        rack = "r" if version == 3 and chance < 0.3 else None
        return subscription(topics, owned, version=version, rack=rack)

    def some_topics(self) -> list[str]:
        """The topics of a subscription."""
        others = [[self.twelve, ABSENT]] if self.assignor == "range" else []
        return self.random.choice([[self.twelve]] * 12 + others)

    def sync(self, slot: MixedSlot) -> None:
        """SyncGroup. The leader of a classic group assigns the partitions of one topic in turns."""
        version = self.random.randint(3, 5)
        change = self.random.choice([0] * 20 + [1, -1])
        protocol = self.random.choice([slot.me.protocol] * 20 + ["zzz", None])
        assignments = []
        if slot.me.leader == slot.me.member_id:
            members = sorted(slot.me.members)
            kind = self.random.choice(["valid"] * 16 + ["malformed", "user data", "duplicate", "empty"])
            for place, member_id in enumerate(members):
                numbers = list(range(place, 12, len(members)))
                content = assignment({self.twelve: numbers}, version=self.random.randint(0, 3))
                if place == 0 and kind != "valid":
                    content = {
                        "malformed": b"\0\1\0",
                        "user data": assignment({self.twelve: numbers}, user_data=b"x"),
                        "duplicate": assignment({self.twelve: range(12)}),
                        "empty": b"",
                    }[kind]
                assignments.append(messages.SyncGroupRequestAssignment(member_id=member_id, assignment=content))
        request = messages.SyncGroupRequest(
            group_id=self.group,
            generation_id=slot.me.epoch + change,
            member_id=slot.me.member_id,
            group_instance_id=slot.instance,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name=None if version < 5 else protocol,
            assignments=assignments,
        )
        self.send(f"sync {change} {protocol}", slot, request, version)

    def heartbeat(self, slot: MixedSlot) -> None:
        """Heartbeat."""
        request = messages.HeartbeatRequest(
            group_id=self.group,
            generation_id=slot.me.epoch + self.random.choice([0] * 12 + [1, -1]),
            member_id=slot.me.member_id,
            group_instance_id=slot.instance,
        )
        self.send(f"heartbeat {request.generation_id}", slot, request, self.random.randint(3, 4))

    def leave(self, slot: MixedSlot) -> None:
        """LeaveGroup, by which tools also remove members of the consumer protocol."""
        if slot.kind == "consumer" and self.random.random() < 0.5:
            self.report(slot, "leave")
            return
        is_anonymous = slot.instance is not None and self.random.random() < 0.3
        leaving = messages.LeavingMember(
            member_id="" if is_anonymous else slot.me.member_id, group_instance_id=slot.instance
        )
        request = messages.LeaveGroupRequest(group_id=self.group, members=[leaving])
        self.send(f"leave {is_anonymous}", slot, request, self.random.randint(3, 5))

    # Requests of members of the consumer protocol, and of both

    def report(self, slot: MixedSlot, kind: str = "") -> None:
        """ConsumerGroupHeartbeat."""
        if slot.kind != "consumer":
            kind = kind or self.random.choice(["join"] * 12 + ["own"])
        kinds = {"own": 12, "join": 2, "silent": 2, "lost": 1, "leave": 1, "away": 1, "ahead": 1, "behind": 1}
        kind = kind or self.random.choices(list(kinds), list(kinds.values()))[0]
        member_id = slot.me.member_id
        if kind == "join" and (slot.kind != "consumer" or self.random.random() < 0.1):
            is_same = slot.kind == "classic" and slot.instance is None
            if is_same and self.random.random() < 0.7:
                self.leave(slot)
                return
            member_id = member_id if is_same else self.new_id(slot)
            slot.me.owned = []
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=member_id or "nobody",
            member_epoch=max(slot.me.epoch, 0),
            instance_id=slot.instance,
            topic_partitions=slot.me.owned,
            server_assignor=self.assignor,
        )
        if kind == "join":
            request.member_epoch, request.topic_partitions, request.rebalance_timeout_ms = 0, [], 60_000
            if self.has_timeouts:
                request.rebalance_timeout_ms = self.random.choice([TIMEOUT_MS, 60_000])
            request.subscribed_topic_names = self.some_topics()
        if kind == "silent":
            request.topic_partitions = None
        if kind == "lost":
            request.topic_partitions = []
        request.member_epoch += {"ahead": 1, "behind": -1}.get(kind, 0) if request.member_epoch > 0 else 0
        request.member_epoch = {"leave": -1, "away": -2}.get(kind, request.member_epoch)
        self.send(f"report {kind} {request.member_epoch} {member_id}", slot, request, 1)

    def new_id(self, slot: MixedSlot) -> str:
        """A new id of a member of the consumer protocol. A member that was fenced mostly keeps its id."""
        if slot.me.member_id.startswith("consumer") and self.random.random() < 0.8:
            return slot.me.member_id
        ids = (f"consumer-{slot.number}-{self.random.randrange(1000)}" for _ in range(1000))
        return next(one for one in ids if self.fits(one))

    def commit_own(self, slot: MixedSlot) -> None:
        """OffsetCommit with the right or a wrong generation or member."""
        version = self.random.randint(2, 9)
        change = self.random.choice([0, 0, 0, 1, -1, -2])
        names_member = self.random.random() < 0.9
        one = messages.OffsetCommitRequestPartition(
            partition_index=self.random.randrange(13), committed_offset=self.random.randrange(100)
        )
        request = messages.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=slot.me.epoch + change if names_member else -1,
            member_id=slot.me.member_id if names_member else "",
            topics=[messages.OffsetCommitRequestTopic(name=self.twelve, partitions=[one])],
        )
        self.send(f"commit {change} {names_member} {one.partition_index}", slot, request, version)

    def fetch_own(self, slot: MixedSlot) -> None:
        """OffsetFetch of a member, with its generation or a wrong one."""
        epoch = slot.me.epoch + self.random.choice([0, 0, 1])
        topics = [messages.OffsetFetchRequestTopics(name=self.twelve, partition_indexes=[0, 1, 12])]
        group = messages.OffsetFetchRequestGroup(
            group_id=self.group, member_id=slot.me.member_id, member_epoch=epoch, topics=topics
        )
        self.send(f"fetch own {epoch}", slot, messages.OffsetFetchRequest(groups=[group]), 9)

    def pause(self) -> None:
        """Let timeouts pass."""
        self.trace.append("pause")
        time.sleep(PAUSE_MS / 1000)
        self.groups.clock.advance(PAUSE_MS)
        self.compare_responses()

    # The end

    def leave_all(self) -> None:
        """Remove all members, so that requests that wait come to an end."""
        known = [slot for slot in self.members if slot.me.member_id]
        leaving = [
            messages.LeavingMember(member_id=slot.me.member_id, group_instance_id=slot.instance) for slot in known
        ]
        request = messages.LeaveGroupRequest(group_id=self.group, members=leaving)
        if not self.differences:
            self.tool("leave all", request, 5)
        self.compare_responses()

    def compare_records(self) -> None:
        """Compare the records of the group."""
        ours = shown_records([(one.key, one.value) for one in self.groups.records(self.group)], self.group)
        theirs = shown_records(self.log.pairs(), self.group)
        self.counts["Records", "compared"] += len(theirs)
        for number, (seen, expected) in enumerate(zip(ours, theirs, strict=False)):
            if seen != expected:
                self.differences.append(f"record {number}:\n  Kafka {expected}\n  ours  {seen}")
                return
        if len(ours) != len(theirs):
            rest = [*ours[len(theirs) :], *theirs[len(ours) :]][0]
            self.differences.append(f"Kafka has {len(theirs)} records, ours {len(ours)}; the next one: {rest}")
