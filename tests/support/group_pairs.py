# SPDX-License-Identifier: Apache-2.0
"""The same random requests about groups for Apache Kafka and for the embedded coordinator, and what differs.

The requests of a walk depend only on its seed. Member ids and topic ids differ on both sides, so they are replaced by
names before responses are compared. When the embedded coordinator has a delayed response, the test waits for that of
Kafka.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from memory_groups import MemoryGroups, Reply

from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import decode_response, encode_request
from kcodec.testing.proxy.frames import read_frame

RESPONSE_SECONDS = 10.0
#: Kafka processes a request that waits for other members within this time, before requests on other connections.
PROCESSING_SECONDS = 0.03
#: Kafka's timers are slightly late: requests that only read are repeated for this time.
PROPAGATION_SECONDS = 1.0
READS = (
    messages.DescribeGroupsRequest,
    messages.ConsumerGroupDescribeRequest,
    messages.ListGroupsRequest,
    messages.OffsetFetchRequest,
)
READY_SECONDS = 30.0
PROBES = 30
SLOTS = 4
ABSENT = "walk-absent"


class KafkaConnection:
    """One plaintext connection with one request at a time."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), RESPONSE_SECONDS)
        self._waiting: tuple[Any, int] | None = None
        self._early: Any = None

    def begin(self, request: Any, version: int) -> None:
        """Send a request."""
        self._waiting = type(request), version
        self._socket.sendall(encode_request(request, version, 1, "client"))

    @property
    def is_ready(self) -> bool:
        """Return whether bytes of a response have arrived."""
        return self._early is not None or bool(select.select([self._socket], [], [], 0)[0])

    def finish(self) -> Any:
        """Return the response. Raise TimeoutError if it does not come."""
        if self._early is not None:
            early, self._early = self._early, None
            return early
        assert self._waiting is not None
        kind, version = self._waiting
        frame = read_frame(self._socket)
        assert frame is not None, f"Kafka closed the connection after {kind.__name__} version {version}"
        return decode_response(memoryview(frame), kind, version)

    def peek(self) -> Any:
        """Return the response, which `finish` returns as well, or None if it has not arrived."""
        if self.is_ready:
            self._early = self.finish()
        return self._early

    def ask(self, request: Any, version: int) -> Any:
        """Send a request and return the response."""
        self.begin(request, version)
        return self.finish()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def wait_for_groups(address: str) -> None:
    """Wait until Kafka coordinates groups on every partition of ``__consumer_offsets``."""
    connection = KafkaConnection(address)
    deadline = time.monotonic() + READY_SECONDS
    probes = messages.DescribeGroupsRequest(groups=[f"probe-{number}" for number in range(PROBES)])
    codes: set[int] = {-1}
    while codes != {ErrorCode.GROUP_ID_NOT_FOUND}:
        assert time.monotonic() < deadline, f"no coordinator after {READY_SECONDS} s: {codes}"
        connection.ask(messages.FindCoordinatorRequest(key="probe"), 1)
        codes = {one.error_code for one in connection.ask(probes, 6).groups}
        time.sleep(PROCESSING_SECONDS)
    connection.close()


def bucket(name: str) -> int:
    """Return the bucket of a string in a java.util.HashMap with few elements."""
    value = 0
    for character in name.encode("ascii"):
        value = (value * 31 + character) % (1 << 32)
    return (value ^ value >> 16) % 16


@dataclass
class Side:
    """The state of a member on one side, from its responses."""

    member_id: str = ""
    epoch: int = -1
    owned: list[messages.ConsumerGroupTopicPartitions] = field(default_factory=list)
    leader: str = ""
    protocol: str = "a"
    members: list[str] = field(default_factory=list)


@dataclass
class Slot:
    """A member on both sides. reply: the response that has not come yet."""

    ours: Side
    theirs: Side
    connection: KafkaConnection
    instance: str | None = None
    version: int = 9
    label: str = ""
    was_waiting: bool = False
    reply: Reply | None = None


class Walk:
    """One seeded walk on two topics of 3 and 12 partitions.

    differences: what differed; counts: the number of responses by API and error code.
    """

    def __init__(self, address: str, seed: int, group: str, topics: tuple[str, str]) -> None:
        self.random = random.Random(seed)
        self.group, self.address = group, address
        self.three, self.twelve = topics
        self.groups = MemoryGroups()
        for topic, partitions in zip(topics, (3, 12), strict=True):
            self.groups.topics.create(topic, partitions)
        self.tools = KafkaConnection(address)
        self.slots = [Slot(Side(), Side(), KafkaConnection(address)) for _ in range(SLOTS)]
        self.slots[3].instance = "i"
        self.counts: Counter[tuple[str, str]] = Counter()
        self.trace: list[str] = []
        self.differences: list[str] = []
        self.is_over = False

    def run(self, steps: int) -> None:
        """Take steps until something differs."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""
        for connection in (self.tools, *(slot.connection for slot in self.slots)):
            connection.close()

    def names(self, *, ours: bool) -> dict[str, str]:
        """Member ids and the names of their slots."""
        sides = ((number, slot.ours if ours else slot.theirs) for number, slot in enumerate(self.slots))
        return {side.member_id: f"m{number}" for number, side in sides if side.member_id}

    def step(self, label: str, slot: Slot, request: Any, theirs: Any, version: int) -> None:
        """Send a request to both sides."""
        self.trace.append(label)
        slot.label, slot.version = label, version
        slot.connection.begin(theirs, version)
        slot.reply = self.groups.begin(request, version)
        slot.was_waiting = not slot.reply.is_done
        if slot.was_waiting:
            time.sleep(PROCESSING_SECONDS)
        self.compare_responses()

    def compare_responses(self) -> None:
        """Compare all responses that the embedded coordinator has."""
        found = []
        for slot in self.slots:
            if slot.reply is None:
                continue
            if not slot.reply.is_done:
                if slot.connection.is_ready:
                    self.differences.append(f"{slot.label}: Kafka responds {slot.connection.finish()}, ours waits")
                continue
            ours, slot.reply = slot.reply.now, None
            if self.is_forgotten(slot, ours):
                continue
            try:
                theirs = slot.connection.finish()
            except TimeoutError:
                self.differences.append(f"{slot.label}: Kafka has no response, ours is {ours}")
                return
            self.keep(slot, ours, theirs)
            found.append((slot, ours, theirs))
        for slot, ours, theirs in found:
            self.compare(slot, ours, theirs)

    def is_forgotten(self, slot: Slot, ours: Any) -> bool:
        """Whether this is the SyncGroup of a member that was removed meanwhile: Kafka never responds to it."""
        is_removed = isinstance(ours, messages.SyncGroupResponse) and ours.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        if not is_removed or not slot.was_waiting:
            return False
        slot.connection.close()
        slot.connection = KafkaConnection(self.address)
        return True

    def keep(self, slot: Slot, ours: Any, theirs: Any) -> None:
        """Store the state from both responses."""
        for side, response in ((slot.ours, ours), (slot.theirs, theirs)):
            member_id = getattr(response, "member_id", None)
            if member_id and (response.error_code in (0, ErrorCode.MEMBER_ID_REQUIRED)):
                side.member_id = member_id
            if isinstance(response, messages.JoinGroupResponse) and response.error_code == 0:
                side.epoch, side.leader = response.generation_id, response.leader
                side.protocol = response.protocol_name or ""
                side.members = [one.member_id for one in response.members]
            if isinstance(response, messages.ConsumerGroupHeartbeatResponse) and response.error_code == 0:
                side.epoch = response.member_epoch
                if response.assignment is not None:
                    side.owned = response.assignment.topic_partitions

    def compare(self, slot: Slot, ours: Any, theirs: Any) -> None:
        """Compare two responses. The walk ends if the sides have randomly chosen different leaders."""
        if isinstance(ours, messages.JoinGroupResponse):
            leaders = [self.names(ours=side is slot.ours).get(side.leader) for side in (slot.ours, slot.theirs)]
            if ours.error_code == theirs.error_code == 0 and leaders[0] != leaders[1]:
                self.is_over = True
        if self.is_over:
            return
        seen, expected = self.shown(ours, ours=True), self.shown(theirs, ours=False)
        code = getattr(theirs, "error_code", 0)
        self.counts[type(theirs).__name__.removesuffix("Response"), ErrorCode(code).name] += 1
        self.trace[-1] += f" -> {expected}"
        if seen != expected:
            self.differences.append(f"{slot.label} version {slot.version}:\n  Kafka {expected}\n  ours  {seen}")

    def shown(self, response: Any, *, ours: bool) -> Any:
        """What is compared of a response."""
        names = self.names(ours=ours)

        def name(member_id: str | None) -> str:
            return names.get(member_id or "", "other" if member_id else "")

        match response:
            case messages.JoinGroupResponse():
                protocol = (response.protocol_type, response.protocol_name or "") if not response.error_code else ()
                members = sorted((name(one.member_id), bytes(one.metadata)) for one in response.members)
                ids = name(response.member_id), name(response.leader), response.skip_assignment
                return "join", response.error_code, response.generation_id, protocol, ids, members
            case messages.SyncGroupResponse():
                return "sync", response.error_code, response.protocol_name, bytes(response.assignment)
            case messages.LeaveGroupResponse():
                return "leave", response.error_code, [(name(one.member_id), one.error_code) for one in response.members]
            case messages.ConsumerGroupHeartbeatResponse():
                owned = None if response.assignment is None else _numbers(response.assignment.topic_partitions)
                return "report", response.error_code, response.member_epoch, owned
            case messages.DescribeGroupsResponse():
                return [
                    (
                        one.error_code,
                        one.group_state,
                        one.protocol_type,
                        one.protocol_data,
                        sorted(
                            (name(member.member_id), bytes(member.member_metadata), bytes(member.member_assignment))
                            for member in one.members
                        ),
                    )
                    for one in response.groups
                ]
            case messages.ConsumerGroupDescribeResponse():
                return [
                    (
                        one.error_code,
                        one.group_state,
                        one.group_epoch,
                        one.assignment_epoch,
                        one.assignor_name,
                        sorted(
                            (
                                name(member.member_id),
                                member.member_epoch,
                                member.instance_id,
                                sorted(member.subscribed_topic_names),
                                member.subscribed_topic_regex,
                                _numbers(member.assignment.topic_partitions),
                                _numbers(member.target_assignment.topic_partitions),
                                member.member_type,
                            )
                            for member in one.members
                        ),
                    )
                    for one in response.groups
                ]
            case messages.ListGroupsResponse():
                listed = [one for one in response.groups if one.group_id == self.group]
                return [(one.protocol_type, one.group_state, one.group_type) for one in listed]
            case messages.OffsetCommitResponse() | messages.OffsetDeleteResponse():
                partitions = (one for topic in response.topics for one in topic.partitions)
                codes = sorted((one.partition_index, one.error_code) for one in partitions)
                return "offsets", getattr(response, "error_code", 0), codes
            case messages.OffsetFetchResponse():
                whole = [one.error_code for one in response.groups] or [response.error_code]
                topics = [topic for one in response.groups for topic in one.topics] or response.topics
                found = [(one.committed_offset, one.error_code) for topic in topics for one in topic.partitions]
                return "fetch", whole, found
            case messages.DeleteGroupsResponse():
                return "delete", [one.error_code for one in response.results]
        return ("other", response.error_code)

    # Common requests.

    def tool(self, label: str, request: Any, version: int) -> None:
        """Send both sides a request whose response is not delayed."""
        self.trace.append(label)
        slot = Slot(Side(), Side(), self.tools, label=label, version=version)
        ours, theirs = self.groups.ask(request, version), self.tools.ask(request, version)
        deadline = time.monotonic() + PROPAGATION_SECONDS
        while isinstance(request, READS) and time.monotonic() < deadline:
            if self.shown(ours, ours=True) == self.shown(theirs, ours=False):
                break
            theirs = self.tools.ask(request, version)
        self.compare(slot, ours, theirs)

    def any_tool(self) -> None:
        """One request of a tool."""
        group, version = self.group, self.random.randint
        kind = self.random.randrange(6)
        if kind == 0:
            self.tool("describe", messages.DescribeGroupsRequest(groups=[group]), version(0, 6))
        elif kind == 1:
            self.tool("describe modern", messages.ConsumerGroupDescribeRequest(group_ids=[group]), version(0, 1))
        elif kind == 2:
            number = version(3, 5)
            request = messages.ListGroupsRequest()
            if number == 5 and self.random.random() < 0.5:
                request.types_filter = [self.random.choice(["classic", "Consumer"])]
            self.tool(f"list {request.types_filter}", request, number)
        elif kind == 3:
            partitions = [messages.OffsetDeleteRequestPartition(partition_index=one) for one in (0, 9)]
            topics = [
                messages.OffsetDeleteRequestTopic(
                    name=self.random.choice([self.three, self.twelve, ABSENT]), partitions=partitions
                )
            ]
            self.tool("delete offsets", messages.OffsetDeleteRequest(group_id=group, topics=topics), 0)
        elif kind == 4 and self.random.random() < 0.4:
            self.tool("delete group", messages.DeleteGroupsRequest(groups_names=[group]), version(0, 2))
        else:
            self.fetch()

    def fetch(self) -> None:
        """OffsetFetch in any version."""
        version = self.random.randint(1, 9)
        if version < 8:
            topics = [messages.OffsetFetchRequestTopic(name=self.three, partition_indexes=[0, 1, 7])]
            request = messages.OffsetFetchRequest(group_id=self.group, topics=topics)
        else:
            found = [messages.OffsetFetchRequestTopics(name=self.three, partition_indexes=[0, 1, 7])]
            request = messages.OffsetFetchRequest(
                groups=[messages.OffsetFetchRequestGroup(group_id=self.group, topics=found)]
            )
        self.tool("fetch", request, version)

    def commit(self, slot: Slot, number: int) -> None:
        """OffsetCommit, with the right or a wrong generation or member."""
        version = self.random.randint(2, 9)
        change = self.random.choice([0, 0, 0, 1, -1])
        names_member = self.random.random() < 0.8
        topic = self.random.choice([self.three] * 3 + [ABSENT])
        partition = self.random.choice([0, 0, 1, 7])
        offset = self.random.randrange(100)

        def request(side: Side) -> Any:
            one = messages.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata="m"
            )
            return messages.OffsetCommitRequest(
                group_id=self.group,
                generation_id_or_member_epoch=side.epoch + change if names_member else -1,
                member_id=side.member_id if names_member else "",
                topics=[messages.OffsetCommitRequestTopic(name=topic, partitions=[one])],
            )

        self.step(
            f"m{number} commit {change} {names_member} {topic}-{partition}", slot, *self.both(slot, request), version
        )

    @staticmethod
    def both(slot: Slot, request: Any) -> tuple[Any, Any]:
        """The request for each side."""
        return request(slot.ours), request(slot.theirs)


def _numbers(topics: Any) -> list[int]:
    return sorted(number for one in topics for number in one.partitions)


class ClassicWalk(Walk):
    """Members of the classic protocol."""

    def run(self, steps: int) -> None:
        """Take steps until something differs."""
        for _ in range(steps):
            free = [number for number, slot in enumerate(self.slots) if slot.reply is None]
            if not free or self.random.random() < 0.15:
                self.any_tool()
            else:
                self.act(self.random.choice(free))
            if self.differences or self.is_over:
                break
        self.leave_all()

    def act(self, number: int) -> None:
        """One request of a member."""
        slot = self.slots[number]
        kind = self.random.choices(["join", "sync", "heartbeat", "leave", "commit"], [6, 6, 3, 1, 2])[0]
        {"join": self.join, "sync": self.sync, "heartbeat": self.heartbeat, "leave": self.leave, "commit": self.commit}[
            kind
        ](slot, number)

    def join(self, slot: Slot, number: int) -> None:
        """JoinGroup."""
        version = self.random.randint(5 if slot.instance else 2, 9)
        names = self.random.choice([["a", "b"], ["a", "b"], ["a", "b"], ["b"], ["b", "a"], ["c"]])
        kind = self.random.choice(["consumer"] * 12 + ["connect", ""])
        timeout = self.random.choice([30_000] * 12 + [100])
        known = self.random.choices(["own", "none", "wrong"], [10, 2, 1])[0]
        topic = self.random.choice([self.three, self.three, self.twelve])

        def request(side: Side) -> Any:
            content = b"\0\0" + messages.ConsumerProtocolSubscription(topics=[topic]).encode(0)
            return messages.JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=timeout,
                rebalance_timeout_ms=60_000,
                member_id={"own": side.member_id, "none": "", "wrong": "nobody"}[known],
                group_instance_id=slot.instance,
                protocol_type=kind,
                protocols=[messages.JoinGroupRequestProtocol(name=name, metadata=content) for name in names],
            )

        self.step(f"m{number} join {known} {names} {kind}", slot, *self.both(slot, request), version)

    def sync(self, slot: Slot, number: int) -> None:
        """SyncGroup; the leader names the members that it was given."""
        version = self.random.randint(3 if slot.instance else 0, 5)
        change = self.random.choice([0] * 10 + [1, -1])
        protocol = self.random.choice(["own"] * 12 + ["zzz", None])

        def request(side: Side) -> Any:
            given = sorted(side.members, key=lambda one: self.names(ours=side is slot.ours).get(one, ""))
            assignments = [
                messages.SyncGroupRequestAssignment(member_id=one, assignment=b"%d" % place)
                for place, one in enumerate(given)
            ]
            return messages.SyncGroupRequest(
                group_id=self.group,
                generation_id=side.epoch + change,
                member_id=side.member_id,
                group_instance_id=slot.instance,
                protocol_type="consumer" if version >= 5 else None,
                protocol_name=None if version < 5 else side.protocol if protocol == "own" else protocol,
                assignments=assignments if side.leader == side.member_id else [],
            )

        self.step(f"m{number} sync {change} {protocol}", slot, *self.both(slot, request), version)

    def heartbeat(self, slot: Slot, number: int) -> None:
        """Heartbeat."""
        version = self.random.randint(3 if slot.instance else 0, 4)
        change = self.random.choice([0, 0, 0, 1])

        def request(side: Side) -> Any:
            return messages.HeartbeatRequest(
                group_id=self.group,
                generation_id=side.epoch + change,
                member_id=side.member_id,
                group_instance_id=slot.instance,
            )

        self.step(f"m{number} heartbeat {change}", slot, *self.both(slot, request), version)

    def leave(self, slot: Slot, number: int) -> None:
        """LeaveGroup, of a static member also by its instance id alone."""
        version = self.random.randint(3 if slot.instance else 0, 5)
        is_anonymous = slot.instance is not None and self.random.random() < 0.5

        def request(side: Side) -> Any:
            if version < 3:
                return messages.LeaveGroupRequest(group_id=self.group, member_id=side.member_id)
            leaving = messages.LeavingMember(
                member_id="" if is_anonymous else side.member_id, group_instance_id=slot.instance
            )
            return messages.LeaveGroupRequest(group_id=self.group, members=[leaving])

        self.step(f"m{number} leave {is_anonymous}", slot, *self.both(slot, request), version)

    def leave_all(self) -> None:
        """Remove all members, so that requests that wait come to an end."""
        for side in ("ours", "theirs"):
            leaving = [
                messages.LeavingMember(member_id=getattr(slot, side).member_id, group_instance_id=slot.instance)
                for slot in self.slots
                if getattr(slot, side).member_id
            ]
            request = messages.LeaveGroupRequest(group_id=self.group, members=leaving)
            if side == "ours":
                self.groups.ask(request, 5)
            else:
                self.tools.ask(request, 5)
        self.trace.append("leave all")
        self.compare_responses()


class ConsumerWalk(Walk):
    """Members of the consumer protocol, on a topic of 12 partitions, so that all shares are equal. Their ids have
    different places in a hash table, because the uniform assignor depends on them."""

    def __init__(self, address: str, seed: int, group: str, topics: tuple[str, str]) -> None:
        super().__init__(address, seed, group, topics)
        #: One for all members, because the choice between two assignors with equal votes differs.
        self.assignor = self.random.choice(["uniform", "range"])
        for number, slot in enumerate(self.slots):
            used = {bucket(one.ours.member_id) for one in self.slots[:number]}
            ids = (f"member-{number}-{seed}-{place}" for place in count())
            slot.ours.member_id = slot.theirs.member_id = next(one for one in ids if bucket(one) not in used)

    def run(self, steps: int) -> None:
        """Take steps until something differs."""
        for _ in range(steps):
            number = self.random.randrange(SLOTS)
            if self.random.random() < 0.2:
                self.any_tool()
            elif self.random.random() < 0.12:
                self.commit(self.slots[number], number)
            else:
                self.report(self.slots[number], number)
            if self.differences or self.is_over:
                break
        for number, slot in enumerate(self.slots):
            self.report(slot, number, kind="leave")

    def report(self, slot: Slot, number: int, kind: str = "") -> None:
        """ConsumerGroupHeartbeat."""
        kinds = ["join", "own", "silent", "lost", "leave", "away", "ahead", "behind", "bad"]
        kind = kind or self.random.choices(kinds, [4, 10, 3, 1, 1, 1, 1, 1, 1])[0]
        is_range = self.assignor == "range"
        assignor = self.random.choice(
            [self.assignor if is_range else None] * 9 + [self.assignor, self.assignor, "none"]
        )
        # The uniform assignor chooses other partitions than in Kafka if subscriptions differ.
        topics = self.random.choice([[self.twelve]] * 5 + [[self.twelve, ABSENT] if is_range else [self.twelve]])
        static = slot.instance if self.random.random() < 0.9 else None
        bad = self.random.choice(["epoch", "member", "timeout", "topics", "partitions"])

        def request(side: Side) -> Any:
            asked = messages.ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=side.member_id,
                member_epoch=max(side.epoch, 0),
                instance_id=static,
                topic_partitions=side.owned,
            )
            if kind in ("join", "bad"):
                asked.member_epoch, asked.topic_partitions, asked.rebalance_timeout_ms = 0, [], 60_000
                asked.subscribed_topic_names, asked.server_assignor = topics, assignor
            if kind == "bad":
                for name, value in {
                    "epoch": ("member_epoch", -3),
                    "member": ("member_id", ""),
                    "timeout": ("rebalance_timeout_ms", -1),
                    "topics": ("subscribed_topic_names", None),
                    "partitions": ("topic_partitions", None),
                }.items():
                    if name == bad:
                        setattr(asked, *value)
            if kind == "silent":
                asked.topic_partitions = None
            if kind == "lost":
                asked.topic_partitions = []
            asked.member_epoch += {"ahead": 1, "behind": -1}.get(kind, 0) if asked.member_epoch > 0 else 0
            asked.member_epoch = {"leave": -1, "away": -2}.get(kind, asked.member_epoch)
            return asked

        before = slot.ours.epoch
        label = f"m{number} report {kind} {before} {assignor} {static} {bad}"
        self.step(label, slot, *self.both(slot, request), 1)
