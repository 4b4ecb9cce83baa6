# SPDX-License-Identifier: Apache-2.0
"""The state that the flows of a classic group member share: its generation, and whether and why it must join again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

from kcodec.flow import Signal
from kcodec.offsets import ConsumerGroupMetadata
from kcodec.protocol.error_codes import note_final

log = logging.getLogger("kcodec.consumer")


@dataclass(frozen=True, slots=True)
class Generation:
    """The identity of the member. `id` is -1 while it is not in a generation; `member_id` is "" until it has one."""

    id: int = -1
    member_id: str = ""
    protocol: str = ""

    @property
    def is_member(self) -> bool:
        """Whether it is in a generation."""
        return self.id >= 0


class ClassicMemberState(Enum):
    """The state of a member (Kafka: AbstractCoordinator.MemberState).

    UNJOINED:   It is not in the group.
    PREPARING:  JoinGroup is in flight.
    COMPLETING: SyncGroup is in flight.
    STABLE:     It is in a generation, until the next rebalance.
    """

    UNJOINED = "unjoined"
    PREPARING = "preparing"
    COMPLETING = "completing"
    STABLE = "stable"


class ClassicMember:
    """The shared state of a member. The flow that detects the end of the generation resets it.

    metadata:      Identity for commits, from the last successful SyncGroup until the next one.
    error:         Error that poll raises until the next subscribe, or once if it is a refused login.
    rejoin_reason: Reason why it must join again: the first one before a rebalance. None if it does not have to.
    joined_topics: Topics of the last JoinGroup.
    is_prepared:   Whether the partitions to be revoked before JoinGroup are revoked.
    is_reconciled: Whether the partitions of the generation are assigned.
    is_late:       Whether the member has left, until the next poll, because the application did not poll in time.
    wake, changed: Set after each change: for the flow of the membership, and for other flows.
    """

    def __init__(self, group_id: str, group_instance_id: str | None) -> None:
        self.group_id = group_id
        self.state = ClassicMemberState.UNJOINED
        self.generation = Generation()
        self.metadata = ConsumerGroupMetadata(group_id, group_instance_id=group_instance_id)
        self.error: BaseException | None = None
        self.rejoin_reason: str | None = ""
        self.joined_topics: frozenset[str] | None = None
        self.is_prepared = self.is_reconciled = self.is_late = False
        self.wake = Signal()
        self.changed = Signal()

    @property
    def is_joining(self) -> bool:
        """Whether JoinGroup or SyncGroup is under way."""
        return self.state in (ClassicMemberState.PREPARING, ClassicMemberState.COMPLETING)

    @property
    def is_stable(self) -> bool:
        """Whether it is in a generation, and no rebalance is under way."""
        return self.state is ClassicMemberState.STABLE

    @property
    def channel(self) -> str:
        """The connection of requests that must not wait behind JoinGroup or SyncGroup."""
        return "heartbeat" if self.is_joining else "group"

    def notify(self) -> None:
        """Wake the flows to check the state again."""
        self.wake.set()
        self.changed.set()

    def request_rejoin(self, reason: str) -> None:
        """Make the member join again, which starts a rebalance."""
        if self.rejoin_reason is None:
            log.info("group %s: rejoining: %s", self.group_id, reason)
            self.rejoin_reason = reason
            self.notify()

    def reset(self, reason: str, *, keeps_member_id: bool) -> None:
        """Leave the generation: the partitions are lost, and the member must join again."""
        log.info("group %s: out of generation %d: %s", self.group_id, self.generation.id, reason)
        self.generation = Generation(member_id=self.generation.member_id if keeps_member_id else "")
        self.state = ClassicMemberState.UNJOINED
        self.is_prepared = self.is_reconciled = False
        self.rejoin_reason = reason
        self.notify()

    def fail(self, error: BaseException) -> None:
        """Store an error that a repeated request does not resolve, for `error`."""
        log.error("group %s: %s", self.group_id, error)
        note_final(error)
        self.reset(str(error), keeps_member_id=True)
        self.error = error
        self.notify()

    def depart(self) -> None:
        """Note that the member leaves, or has left."""
        self.generation, self.state = Generation(), ClassicMemberState.UNJOINED
        self.is_prepared = self.is_reconciled = False
        self.joined_topics, self.rejoin_reason = None, ""
        self.notify()
