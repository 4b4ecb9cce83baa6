# SPDX-License-Identifier: Apache-2.0
"""One transaction of a group transact session: the positions that it has read, and whether a rebalance prevents its
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kcodec.consumer.assignment import PartitionState
from kcodec.consumer.delivery import LogPosition
from kcodec.errors import TransactionStateError
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.transactions.state import Event
from kcodec.transactions.transaction import ProducerTransaction


class Start(NamedTuple):
    """The position at which a transaction began to read a partition. `state` is that of the assignment; after another
    assignment of the partition, there is another start.

    topic_id: Id of the topic to which the position belongs; None if it was unknown.
    reset_to: Offset that replaced the position, because the log does not contain the position. None: no reset.
    """

    state: PartitionState
    offset: int
    leader_epoch: int
    topic_id: UUID | None = None
    reset_to: int | None = None

    @property
    def first(self) -> LogPosition:
        """The position of the first record that the transaction could read, to which an abort returns. An offset that
        is not in the log would be reset again, and with "latest" to a later offset."""
        return LogPosition(self.offset, self.leader_epoch) if self.reset_to is None else LogPosition(self.reset_to, -1)


@dataclass(slots=True, eq=False)
class SessionBlock:
    """One transaction; see the module. Its attributes are changed on the loop's thread, or by the caller.

    failed:     Reason why it can only be aborted: a rebalance revoked partitions that it has read. No error is raised.
    has_read:   Whether poll has returned records.
    is_reading: Whether poll may be about to return records.
    has_sent:   Whether something was sent, which may depend on the assignment at that time.
    is_ending:  Whether its end has begun or is complete. It polls and sends no more.
    is_gone:    Returns whether the call that begins it was interrupted before it returned, so that no caller will end
                it.
    starts:     Positions at which it began to read each partition.
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
        """Whether it has read and sent nothing, so that a revoked partition does not affect it."""
        return not (self.has_read or self.is_reading or self.has_sent)

    @property
    def committed(self) -> bool | None:
        """True, False, or None if it is open, or if EndTxn got no response and the outcome is unknown."""
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
                self.starts[name] = Start(state, state.position, state.position_epoch, state.topic_id)

    def note_reset(self, state: PartitionState, before: int, after: int) -> None:
        """Under the assignment's lock: note that the offset `after` has replaced the position `before`, which is not in
        the log.

        If the position was reset to a later offset, the log begins after it, so it does not contain the start either.
        If it was reset to an earlier offset, the log ends before it. The log then contains the start, unless the new
        offset is before the start.
        """
        start = self.starts.get(state.topic_partition)
        if start is None or start.state is not state:
            return
        first = start.first.offset
        if before == first or after > before or after < first:
            self.starts[state.topic_partition] = start._replace(reset_to=after)

    def moved(self, partitions: Mapping[TopicPartition, PartitionState]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Under the assignment's lock: return the positions that this transaction has moved, for the commit. If a
        position is unknown, the transaction fails, because there is no offset for the records that it has read."""
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
