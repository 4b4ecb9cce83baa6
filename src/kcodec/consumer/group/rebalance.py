# SPDX-License-Identifier: Apache-2.0
"""What a membership of a group and the consumer that is a member expect of each other.

`ClassicMembership` (JoinGroup, SyncGroup) and `ConsumerMembership` (KIP-848) are the `Membership`s;
`kcodec.consumer.core` and the group transact session are `RebalanceHandler`s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kcodec.cluster.flow_lock import FlowLock
from kcodec.flow import Flow, Signal
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition


class Heartbeat(Enum):
    """What came of a heartbeat that was asked for.

    OK: still a member of this generation. REBALANCE_IN_PROGRESS: the same, and a rebalance has begun. REASSIGNED:
    it brought another assignment (KIP-848). LOST: the coordinator knows us no more, or we lost our partitions
    meanwhile. UNKNOWN: nobody answered in time, or we are no member yet.
    """

    OK = "ok"
    REBALANCE_IN_PROGRESS = "rebalance in progress"
    REASSIGNED = "reassigned"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer subscribes to: topics by name, and those that a regular expression matches (None: no pattern)."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is wanted: no member then."""
        return not self.topics and self.pattern is None


class RebalanceHandler(Protocol):
    """The consumer's side of a rebalance. All flows are awaited by the membership, one at a time."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What is assigned now, and neither revoked nor lost."""
        ...

    def until_polled(self) -> Flow[None]:
        """Before a rejoin: ends when the application polls, as it may be at work on what it polled."""
        ...

    def revoke(self, partitions: Iterable[TopicPartition], deadline: float | None = None) -> Flow[None]:
        """These are to be given away: ends when their offsets are committed, where that is automatic, the application
        was notified, and they are read no more. Nothing may be sent to the group that gives them away before.

        deadline: by the client's clock, of the call that gives them away; None for a rebalance.
        """
        ...

    def lose(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        """These belong to others already: they are read no more at once, and nothing is committed."""
        ...

    def assign(self, added: Iterable[TopicPartition], owned: Iterable[TopicPartition]) -> Flow[None]:
        """A rebalance is over. added: what is new, may be empty; owned: all that is ours now, `added` included."""
        ...


class Membership(Protocol):
    """One member of one group."""

    changed: Signal
    group_lock: FlowLock

    @property
    def error(self) -> BaseException | None:
        """What poll is to raise; None if there is no error."""

    @property
    def last_error(self) -> BaseException | None:
        """Why it is not a member yet, for messages: what the last attempt met; None if nothing failed."""

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who we are, for commits: of the last rebalance that was completed; generation -1 before the first."""
        ...

    @property
    def is_stable(self) -> bool:
        """Whether the last rebalance is over and we own what it gave."""
        ...

    def run(self) -> Flow[None]:
        """Be a member, for ever; with nothing subscribed, wait. Errors that a repeat does not cure go to `error`."""
        ...

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """What to read: names, or a regular expression (Python's in the classic protocol, RE2 on the broker in the
        new one). Neither: leave the group."""

    def request_rejoin(self, reason: str) -> None:
        """Have the partitions given out again."""

    def note_poll(self, now: float) -> None:
        """The application polled; any thread. If it does not for max_poll_interval, we leave the group."""

    def force_heartbeat(self, timeout: float) -> Flow[Heartbeat]:
        """Ask the coordinator now whether we still are who we think. Ends by `timeout`, and at once if we are not."""
        ...

    def leave(self, timeout: float, reason: str) -> Flow[None]:
        """Leave the group (a static member stays), and end. The partitions were revoked before."""
        ...
