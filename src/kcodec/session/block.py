# SPDX-License-Identifier: Apache-2.0
"""One transaction of a group transact session, from its begin to its end: what it has read, and whether a rebalance
prevents its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kcodec.consumer.assignment import PartitionState
from kcodec.errors import TransactionStateError
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.transactions.state import Event
from kcodec.transactions.transaction import ProducerTransaction


class Start(NamedTuple):
    """Where a transaction began to read a partition. state: that of its assignment; another assignment has its own
    start."""

    state: PartitionState
    offset: int
    leader_epoch: int


@dataclass(slots=True, eq=False)
class SessionBlock:
    """See the module. Its attributes change on the loop's thread, or by the block's caller.

    failed:     why it can only be aborted: a rebalance revoked what it had read. No error is raised for it.
    has_read:   poll returned records; is_reading: poll may be about to.
    has_sent:   something was sent, which may depend on the assignment of that time.
    is_ending:  its end has begun, or is complete: it polls and sends no more.
    is_gone:    returns whether the call that begins it was interrupted before it returned, so that nothing will end it.
    starts:     where it began to read each partition.
    """

    transaction: ProducerTransaction
    is_gone: Callable[[], bool]
    failed: str | None = None
    has_read: bool = False
    is_reading: bool = False
    has_sent: bool = False
    is_ending: bool = False
    starts: dict[TopicPartition, Start] = field(default_factory=dict)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was done in it, so that a revoked partition does not affect it."""
        return not (self.has_read or self.is_reading or self.has_sent)

    @property
    def committed(self) -> bool | None:
        """True, False, or None: still open, or there was no response to EndTxn and the outcome is unknown."""
        return self.transaction.committed

    def fail(self, why: str) -> None:
        """Prevent the commit. Only the first reason is kept."""
        if self.failed is None:
            self.failed = why

    def check_open(self, event: str) -> None:
        """Raise TransactionStateError once its end has begun."""
        if self.is_ending:
            outcome = {True: "was committed", False: "was aborted", None: "has ended"}[self.committed]
            raise TransactionStateError(
                f"this transaction {outcome}: {event} is no longer possible; begin the next one",
                state="READY",
                event=Event.SEND.name,
            )

    def note_starts(self, partitions: Mapping[TopicPartition, PartitionState]) -> None:
        """Under the assignment's lock: remember the position of each partition that is new to this transaction."""
        for name, state in partitions.items():
            known = self.starts.get(name)
            if (known is None or known.state is not state) and state.position is not None:
                self.starts[name] = Start(state, state.position, state.position_epoch)

    def moved(self, partitions: Mapping[TopicPartition, PartitionState]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Under the assignment's lock: return the positions that this transaction has moved, in the form to commit. A
        partition whose position is unknown fails the transaction, as there is no offset for what it read there."""
        found = {}
        for name, start in self.starts.items():
            state = start.state
            if partitions.get(name) is not state:
                continue
            if state.position is None:
                self.fail(f"the position in {name} was lost while it was open")
            elif state.position != start.offset:
                found[name] = OffsetAndMetadata(state.position, "", state.position_epoch)
        return found
