# SPDX-License-Identifier: Apache-2.0
"""The interfaces between a group membership and its consumer.

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
    """The result of a forced heartbeat.

    OK:                    It is still a member of this generation.
    REBALANCE_IN_PROGRESS: The same, and a rebalance has begun.
    REASSIGNED:            The response has another assignment (KIP-848).
    LOST:                  The coordinator no longer knows the member, or its partitions were lost meanwhile.
    UNKNOWN:               There was no response in time, or this is not a member yet.
    """

    OK = "ok"
    REBALANCE_IN_PROGRESS = "rebalance in progress"
    REASSIGNED = "reassigned"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription: topics by name, and those that a regular expression matches (None: no pattern)."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no subscription, and so no membership."""
        return not self.topics and self.pattern is None


class RebalanceHandler(Protocol):
    """The consumer's side of a rebalance. All flows are awaited by the membership, one at a time."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned, and neither revoked nor lost."""
        ...

    def until_polled(self) -> Flow[None]:
        """Wait, before a rejoin, until the application polls, as it may be processing records."""
        ...

    def revoke(self, partitions: Iterable[TopicPartition], deadline: float | None = None) -> Flow[None]:
        """Revoke these partitions. End when their offsets are committed (if commits are automatic), the application was
        notified, and they are no longer read. Before this flow ends, the membership must not release them to the group.

        deadline: Deadline of the call that revokes them, by the client's clock; None for a rebalance.
        """
        ...

    def lose(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        """Stop reading these partitions immediately and without a commit, because other members already own them."""
        ...

    def assign(self, added: Iterable[TopicPartition], owned: Iterable[TopicPartition]) -> Flow[None]:
        """Complete a rebalance. `added` has the new partitions, if any; `owned` has all partitions, including
        `added`."""
        ...


class Membership(Protocol):
    """One member of one group."""

    changed: Signal
    group_lock: FlowLock

    @property
    def error(self) -> BaseException | None:
        """The error that poll raises; None if none exists."""

    @property
    def last_error(self) -> BaseException | None:
        """The last error, for messages that say why it is not a member yet; None if nothing failed."""

    @property
    def waits_for_others(self) -> bool:
        """Whether the coordinator has a request of this member and waits for other members before it responds."""
        ...

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """The identity for commits, from the last complete rebalance; generation -1 before the first."""
        ...

    @property
    def is_stable(self) -> bool:
        """Whether the last rebalance is complete and its partitions are assigned."""
        ...

    def run(self) -> Flow[None]:
        """Run the member until `leave`. Without a subscription, wait. Store errors that a retry does not resolve in
        `error`."""
        ...

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Set the subscription: names, or a regular expression (of Python in the classic protocol, of RE2 on the broker
        in the consumer protocol). Leave the group if it is empty."""

    def retry_login(self) -> None:
        """Begin again if `error` is a refused login, which poll has raised. Otherwise, this has no effect."""

    def request_rejoin(self, reason: str) -> None:
        """Start a rebalance."""

    def note_poll(self, now: float) -> None:
        """Note that the application polled; any thread. After max_poll_interval without a poll, the member leaves."""

    def force_heartbeat(self, timeout: float) -> Flow[Heartbeat]:
        """Check the membership with the coordinator now. End within `timeout`, or immediately if this is not a
        member."""
        ...

    def leave(self, timeout: float, reason: str) -> Flow[None]:
        """Leave the group (a static member stays), and end. The partitions were revoked before."""
        ...
