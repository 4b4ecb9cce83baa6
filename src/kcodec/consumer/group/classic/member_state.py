# SPDX-License-Identifier: Apache-2.0
"""What the flows of a member of a classic group share: its generation, and whether and why it has to join again."""

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
    """Who the member is to the coordinator. id: -1 while it is not in a generation; member_id: "" until it has one."""

    id: int = -1
    member_id: str = ""
    protocol: str = ""

    @property
    def is_member(self) -> bool:
        """Whether it is in a generation."""
        return self.id >= 0


class ClassicMemberState(Enum):
    """Kafka: AbstractCoordinator.MemberState. UNJOINED: not in the group; PREPARING: JoinGroup is under way;
    COMPLETING: SyncGroup is; STABLE: in a generation, until the next rebalance."""

    UNJOINED = "unjoined"
    PREPARING = "preparing"
    COMPLETING = "completing"
    STABLE = "stable"


class ClassicMember:
    """See the module. Any of the flows may find out that the generation is over, and resets it.

    metadata:      for commits; of the last SyncGroup that succeeded, until the next one does.
    error:         what poll raises, until the next subscribe.
    rejoin_reason: why it must join again; of several reasons before a rebalance the first counts. None: it need not.
    joined_topics: the topics of the last JoinGroup.
    is_prepared:   what had to be given up before JoinGroup is given up.
    is_reconciled:    the partitions of the generation are taken over.
    is_late:       the application did not poll in time, so the member left until it does.
    wake, changed: set after each change, for the membership's flow and for others.
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
        """Have the flows look at the state again."""
        self.wake.set()
        self.changed.set()

    def request_rejoin(self, reason: str) -> None:
        """Have the partitions given out again."""
        if self.rejoin_reason is None:
            log.info("group %s: rejoining: %s", self.group_id, reason)
            self.rejoin_reason = reason
            self.notify()

    def reset(self, reason: str, *, keeps_member_id: bool) -> None:
        """The member is in no generation any more: its partitions are lost, and it must join again."""
        log.info("group %s: out of generation %d: %s", self.group_id, self.generation.id, reason)
        self.generation = Generation(member_id=self.generation.member_id if keeps_member_id else "")
        self.state = ClassicMemberState.UNJOINED
        self.is_prepared = self.is_reconciled = False
        self.rejoin_reason = reason
        self.notify()

    def fail(self, error: BaseException) -> None:
        """An error that a repeated request does not cure: poll is to raise it, until the next subscribe."""
        log.error("group %s: %s", self.group_id, error)
        note_final(error)
        self.reset(str(error), keeps_member_id=True)
        self.error = error
        self.notify()

    def depart(self) -> None:
        """The member leaves, or is gone."""
        self.generation, self.state = Generation(), ClassicMemberState.UNJOINED
        self.is_prepared = self.is_reconciled = False
        self.joined_topics, self.rejoin_reason = None, ""
        self.notify()
