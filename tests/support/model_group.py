# SPDX-License-Identifier: Apache-2.0
"""The coordinator of one classic group in virtual time, by Kafka's rules (GroupMetadataManager)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kcodec.protocol.messages import groups

if TYPE_CHECKING:
    from scripted_group import GroupWorld

Answer = Callable[[Any], None]


@dataclass
class Member:
    """A member, as the coordinator knows it."""

    member_id: str
    instance: str | None
    session: float
    rebalance: float
    protocols: list[Any]
    seen: float
    joining: Answer | None = None
    syncing: Answer | None = None
    share: bytes = b""


@dataclass
class ModelGroup:
    """The coordinator of one group (Kafka: GroupMetadataManager's classic groups)."""

    world: GroupWorld
    members: dict[str, Member] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    state: str = "Empty"
    generation: int = 0
    leader: str = ""
    protocol: str = ""
    begun: float = 0.0
    number: int = 0
    has_skipped: bool = False

    def tick(self) -> None:
        """End sessions that have timed out, and rebalances that have waited long enough."""
        now = self.world.now
        for member in list(self.members.values()):
            if member.joining is None and member.syncing is None and now - member.seen > member.session:
                self.remove(member.member_id)
        if self.state == "Preparing" and self.members:
            waited = now - self.begun
            joined = [one for one in self.members.values() if one.joining is not None]
            if len(joined) == len(self.members) and waited >= self.world.initial_delay:
                self.complete()
            elif waited > max(one.rebalance for one in self.members.values()):
                for one in list(self.members.values()):
                    if one.joining is None and one.instance is None:
                        del self.members[one.member_id]
                self.complete()

    def prepare(self) -> None:
        if self.state != "Preparing":
            self.state, self.begun = "Preparing", self.world.now
            for one in self.members.values():
                one.seen = self.world.now
                if one.syncing is not None:
                    answer, one.syncing = one.syncing, None
                    answer(groups.SyncGroupResponse(error_code=27))

    def remove(self, member_id: str) -> None:
        gone = self.members.pop(member_id)
        if gone.joining is not None:
            gone.joining(groups.JoinGroupResponse(error_code=25, member_id=member_id))
        self.state = self.state if self.members else "Empty"
        if self.members:
            self.prepare()

    def complete(self) -> None:
        if not self.members:
            self.state = "Empty"
            return
        self.generation += 1
        self.state = "Completing"
        common = set.intersection(*({p.name for p in one.protocols} for one in self.members.values()))
        first = self.members[self.leader] if self.leader in self.members else next(iter(self.members.values()))
        self.leader = first.member_id
        self.protocol = next(p.name for p in first.protocols if p.name in common)
        for one in list(self.members.values()):
            one.share, one.seen = b"", self.world.now
            if one.joining is not None:
                answer, one.joining = one.joining, None
                answer(self.joined(one))

    def joined(self, one: Member) -> groups.JoinGroupResponse:
        rows = [
            groups.JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance,
                metadata=self.world.spoil_metadata
                or next(p.metadata for p in each.protocols if p.name == self.protocol),
            )
            for each in self.members.values()
        ]
        return groups.JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=self.protocol,
            leader=self.leader,
            member_id=one.member_id,
            members=rows if one.member_id == self.leader else [],
        )

    def join(self, request: groups.JoinGroupRequest, answer: Answer) -> None:
        member_id = request.member_id
        static = next((one for one in self.members.values() if one.instance == request.group_instance_id), None)
        if request.group_instance_id is not None and static is not None:
            if member_id and member_id != static.member_id:
                return answer(groups.JoinGroupResponse(error_code=82))
            if not member_id:  # a new instance takes over; the old one is fenced
                self.number += 1
                old = self.members.pop(static.member_id)
                taken = replace(old, member_id=f"{request.group_instance_id}-{self.number}")
                self.members[taken.member_id] = taken
                self.leader = taken.member_id if self.leader == static.member_id else self.leader
                if self.state == "Stable":
                    joined = self.joined(taken)
                    joined.skip_assignment = taken.member_id == self.leader
                    self.has_skipped |= joined.skip_assignment
                    return answer(joined)
                member_id = taken.member_id
        elif not member_id:
            self.number += 1
            member_id = f"member-{self.number}"
            if request.group_instance_id is None:
                self.pending.add(member_id)
                return answer(groups.JoinGroupResponse(error_code=79, member_id=member_id))
        elif member_id not in self.members and member_id not in self.pending:
            return answer(groups.JoinGroupResponse(error_code=25, member_id=member_id))
        self.pending.discard(member_id)
        known = self.members.get(member_id)
        is_same = known is not None and known.protocols == request.protocols
        if is_same and self.state == "Stable" and member_id != self.leader:
            assert known is not None
            return answer(self.joined(known))
        if known is not None and known.joining is not None:
            known.joining(groups.JoinGroupResponse(error_code=25))
        self.members[member_id] = Member(
            member_id,
            request.group_instance_id,
            request.session_timeout_ms / 1000,
            request.rebalance_timeout_ms / 1000,
            request.protocols,
            self.world.now,
            joining=answer,
        )
        self.prepare()
        return None

    def sync(self, request: groups.SyncGroupRequest, answer: Answer) -> None:
        one = self.members.get(request.member_id)
        if one is None:
            return answer(groups.SyncGroupResponse(error_code=25))
        if request.generation_id != self.generation:
            return answer(groups.SyncGroupResponse(error_code=22))
        if self.state == "Preparing":
            return answer(groups.SyncGroupResponse(error_code=27))
        one.seen, one.syncing = self.world.now, answer
        if self.state == "Completing" and one.member_id == self.leader:
            for row in request.assignments:
                if row.member_id in self.members:
                    self.members[row.member_id].share = row.assignment
            self.state = "Stable"
        if self.state == "Stable":
            for each in self.members.values():
                if each.syncing is not None:
                    done, each.syncing = each.syncing, None
                    done(
                        groups.SyncGroupResponse(
                            protocol_type="consumer", protocol_name=self.protocol, assignment=each.share
                        )
                    )
        return None

    def heartbeat(self, request: groups.HeartbeatRequest, answer: Answer) -> None:
        one = self.members.get(request.member_id)
        instances = {each.instance for each in self.members.values()} - {None}
        if one is None:
            return answer(groups.HeartbeatResponse(error_code=82 if request.group_instance_id in instances else 25))
        if request.generation_id != self.generation:
            return answer(groups.HeartbeatResponse(error_code=22))
        one.seen = self.world.now
        return answer(groups.HeartbeatResponse(error_code=27 if self.state == "Preparing" else 0))

    def leave(self, request: groups.LeaveGroupRequest, answer: Answer) -> None:
        for row in request.members or [groups.LeavingMember(member_id=request.member_id)]:
            if row.member_id in self.members:
                self.remove(row.member_id)
        answer(groups.LeaveGroupResponse())

    def answer(self, request: Any, answer: Answer) -> None:
        self.tick()
        handlers: dict[type, Callable[[Any, Answer], None]] = {
            groups.JoinGroupRequest: self.join,
            groups.SyncGroupRequest: self.sync,
            groups.HeartbeatRequest: self.heartbeat,
            groups.LeaveGroupRequest: self.leave,
        }
        handlers[type(request)](request, answer)
        self.tick()
