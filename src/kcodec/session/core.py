# SPDX-License-Identifier: Apache-2.0
"""Consume, transform, produce as one: the flows of a group transact session, which knows both the consumer and the
producer (franz-go: GroupTransactSession; Kafka: KIP-98, KIP-447).

What a transaction has read is committed with what it has written, or neither is. A rebalance never raises into a
transaction: one that takes away what it was at work on rules its commit out, its end aborts and goes back to where it
began. The end itself is in `kcodec.session.end`.

Outside a transaction nothing is read, so what a rebalance does there matters to none. Inside, it waits: until the
transaction has ended, or polls again (as Java's rejoins are part of poll), or has not done anything yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kcodec.cluster.flow_lock import FlowLock
from kcodec.consumer.callbacks import Callback, RebalanceListener
from kcodec.consumer.core import ConsumerCore
from kcodec.consumer.group.rebalance import Heartbeat, Membership
from kcodec.errors import KcodecError, TransactionStateError
from kcodec.flow import Flow, Signal, sleep, spawn, wait
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.session.block import SessionBlock
from kcodec.session.group_session_timeout import group_session_timeout
from kcodec.session.safety import SessionTimes, check_times, has_kip447
from kcodec.transactions.manager import TransactionManager
from kcodec.transactions.state import State
from kcodec.transactions.transaction import ProducerTransaction

Partitions = Iterable[TopicPartition]
#: A poll that waits for a rebalance says so often that it is one.
LONGEST_WAIT_SECONDS = 1.0
#: From this number of transactions that were aborted in a row on, a warning says so.
MANY_ABORTS = 8
log = logging.getLogger("kcodec.session")


class GroupSession:
    """See the module. It is the RebalanceHandler of its consumer.

    block:     the transaction that runs, its end included.
    end_lock:  held from before EndTxn to its response, and by what takes partitions away: neither comes between the
               other's steps.
    is_rebalancing: nothing is delivered until the rebalance that has begun is over.
    is_safe:   the time-outs were looked at with the brokers that are there.
    is_rewind_due:  the outcome of a transaction is unknown: go on at the committed offsets, once a new epoch makes sure
               that they are the truth.
    """

    def __init__(self, manager: TransactionManager, times: SessionTimes, group_id: str) -> None:
        self.manager = manager
        self.times = times
        self.group_id = group_id
        self.clock = clock = manager.cluster.clock
        self.consumer: ConsumerCore
        self.listener = RebalanceListener()
        self.block: SessionBlock | None = None
        self.end_lock = FlowLock(clock)
        self.changed = Signal()
        self.is_rebalancing = self.is_rewind_due = self.is_closing = False
        self.is_safe = self._are_times_checked = False
        self._polls = 0
        self._polled_at = clock()
        #: Transactions in a row that were aborted without an error, and when the next one may begin after them.
        self._aborts = 0
        self._not_before = 0.0
        self._uncertain: dict[TopicPartition, OffsetAndMetadata] = {}

    def attach(self, consumer: ConsumerCore, listener: RebalanceListener | None = None) -> None:
        """The consumer, once."""
        self.consumer = consumer
        self.listener = listener or self.listener

    def run(self) -> Flow[None]:
        """Beside the calls, for ever: notes where the transaction begins to read partitions that it gets while it is
        open. Their first records come a round trip to the broker later."""
        while True:
            yield from wait(self.consumer.assignment.changed)
            self.note_starts()

    def note_starts(self) -> None:
        """Any thread."""
        block = self.block
        if block is not None and not block.is_ending:
            with self.consumer.assignment.lock:
                block.note_starts(self.consumer.assignment.partitions)

    @property
    def knows_generations(self) -> bool:
        """Whether the group's coordinator takes generations with offsets, and tells of pending ones (KIP-447): by the
        versions it offers, not by a response that may never come."""
        return has_kip447(self.manager.cluster, self.group_id, self.times)

    # Begin

    def begin(self, timeout: float | None = None, is_gone: Callable[[], bool] = lambda: False) -> Flow[SessionBlock]:
        """Begin a transaction, after InitProducerId where that is due. timeout: seconds; max_block without one.

        is_gone: tells whether the caller was interrupted, and does not know that it has begun.
        Raises as TransactionManager.begin; ValueError where the time-outs are not safe with this broker.
        """
        self.check_idle()
        deadline = self.clock() + (self.manager.max_block if timeout is None else timeout)
        if (pause := min(self._not_before, deadline) - self.clock()) > 0:
            yield from sleep(pause)
        transaction = yield from self.manager.begin(timeout)
        try:
            if not self.is_safe:
                if not self.knows_generations:
                    yield from self.check_times(deadline)
                self.is_safe = True
            if self.is_rewind_due:
                yield from self._rewind_to_committed(deadline)
        except (KcodecError, ValueError, GeneratorExit):
            self.manager.abandon(transaction)
            raise
        return self.begun(transaction, is_gone)

    def begin_at_once(self, is_gone: Callable[[], bool] = lambda: False) -> SessionBlock | None:
        """`begin` where nothing is to be sent, from any thread that holds the producer's lock; None: it takes the
        flow."""
        if self.block is not None or self.is_rewind_due or not self.is_safe or self._not_before > self.clock():
            return None
        transaction = self.manager.begin_at_once()
        return None if transaction is None else self.begun(transaction, is_gone)

    def begun(self, transaction: ProducerTransaction, is_gone: Callable[[], bool]) -> SessionBlock:
        """The transaction is open."""
        block = self.block = SessionBlock(transaction, is_gone)
        self.note_starts()
        return block

    def check_idle(self) -> None:
        """Raises TransactionStateError while a transaction runs."""
        if self.block is not None and self.block.is_gone():
            # Nothing was done in it. The caller's thread may be here, and signals belong to the loop's.
            self.manager.abandon(self.block.transaction)
            self.block = None
            self.consumer.assignment.post(self.changed.set)
        if self.block is not None:
            raise TransactionStateError(
                "a transaction of this session is open: end it before the next one begins",
                state=State.IN_TRANSACTION.name,
                event="BEGIN",
            )

    def check_times(self, deadline: float) -> Flow[None]:
        """With a broker without KIP-447, once: raises ValueError where the time-outs are not safe, and warns where they
        are."""
        if self._are_times_checked:
            return
        if self.times.session is None:
            left = max(deadline - self.clock(), 0.0)
            found = yield from group_session_timeout(self.manager.cluster, self.group_id, left)
            self.times = replace(self.times, session=found.session_timeout)
        check_times(self.times, self.manager.transaction_timeout_ms / 1000)
        self._are_times_checked = True

    def _rewind_to_committed(self, deadline: float) -> Flow[None]:
        """After an unknown outcome: the committed offsets say what became of it."""
        assert self.consumer.committed_offsets is not None
        uncertain = self._uncertain
        assignment = self.consumer.assignment
        here = [name for name in uncertain if name in assignment.partitions]
        if here:
            found = yield from self.consumer.committed_offsets.fetch(here, max(deadline - self.clock(), 0.0))
            for name in here:
                if name in assignment.partitions:
                    place = found.get(name) or uncertain[name]
                    assignment.seek(name, place.offset, place.leader_epoch)
            self.consumer.fetcher.drop(here)
        self.is_rewind_due, self._uncertain = False, {}

    # Reading

    def may_take(self) -> bool:
        """The caller of poll, before it takes records: whether it may now. `taken` must follow if it may."""
        block = self.block
        if block is None:
            return False
        self._polled_at = self.clock()
        with self.consumer.assignment.lock:
            if self.is_rebalancing:
                return False
            block.is_reading = True
            return True

    def taken(self, count: int) -> None:
        """So many records came of it."""
        block = self.block
        if block is not None:
            block.has_read |= count > 0
            block.is_reading = False

    def wait_for_work(self, timeout: float) -> Flow[Callback | None]:
        """Part of a poll, as the consumer's; a rebalance that waits for it goes on, and is waited for."""
        deadline = self.clock() + timeout
        self._polls += 1
        self.changed.set()
        try:
            yield from sleep(0)  # who waited for a poll goes on first
            while self._still_rebalances():
                self.consumer.raise_errors()
                if self.consumer.callbacks.waiting:
                    return self.consumer.callbacks.waiting[0]
                left = deadline - self.clock()
                if left <= 0:
                    return None
                yield from wait(self.consumer.wake, min(left, LONGEST_WAIT_SECONDS))
                self.consumer.note_poll()  # it is a poll all the time
            return (yield from self.consumer.wait_for_work(max(deadline - self.clock(), 0.0)))
        finally:
            self._polls -= 1

    def _still_rebalances(self) -> bool:
        membership = self.consumer.membership
        if self.is_rebalancing and (membership is None or membership.is_stable):
            self.is_rebalancing = False
        return self.is_rebalancing

    # Rebalances: what the membership calls

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What is assigned now."""
        return frozenset(self.consumer.assignment.partitions)

    def until_polled(self) -> Flow[None]:
        """Before a rejoin: until no transaction is at work on what it has read; or it polls, as in Java, where a rejoin
        is part of poll. From here on nothing is delivered until the rebalance is over."""
        with self.consumer.assignment.lock:
            self.is_rebalancing = True
        self.consumer.wake.set()
        while not self._may_rejoin():
            yield from wait(self.changed)

    def _may_rejoin(self) -> bool:
        """One that left as nobody polled stays away until somebody does: it would keep partitions from others."""
        block = self.block
        if block is not None and block.is_ending:
            return False
        if self._polls or self.is_closing:
            return True
        if self.clock() - self._polled_at > self.times.max_poll_interval:
            return False
        return block is None or block.failed is not None or block.is_fresh

    def revoke(self, partitions: Partitions, deadline: float | None = None) -> Flow[None]:
        """Give these away, when `until_polled` says so; a session commits nothing here, so that the deadline is that of
        the caller, who cancels this. While EndTxn is under way it waits, and before KIP-447 a little
        longer."""
        going = frozenset(partitions) & self.owned
        if not going:
            return
        yield from self.until_polled()
        going &= self.owned
        log.info("revoked: %s", ", ".join(map(str, sorted(going))))
        yield from self._take_away(going, "revoked")
        self._call(self.listener.on_revoked, going)

    def lose(self, partitions: Partitions) -> Flow[None]:
        """Others have these already."""
        gone = frozenset(partitions) & self.owned
        if not gone:
            return
        log.warning("lost: %s", ", ".join(map(str, sorted(gone))))
        yield from self._take_away(gone, "lost")
        self._call(self.listener.on_lost or self.listener.on_revoked, gone)

    def _take_away(self, gone: frozenset[TopicPartition], how: str) -> Flow[None]:
        self.consumer.assignment.set_revoking(gone)  # nothing more is delivered of them
        yield from self.end_lock.acquire()
        try:
            if (block := self.block) is not None:
                self._fail(block, gone, how)
            self.consumer.remove(gone)
        finally:
            self.end_lock.release()

    def _fail(self, block: SessionBlock, gone: frozenset[TopicPartition], how: str) -> None:
        if not block.is_fresh or block.is_ending:
            block.fail(f"{', '.join(map(str, sorted(gone)))} {how} while it was open")
            self.changed.set()

    def assign(self, added: Partitions, owned: Partitions) -> Flow[None]:
        """A rebalance is over."""
        new = frozenset(added)
        log.info("assigned: %s", ", ".join(map(str, sorted(owned))) or "nothing")
        on_assigned = self.listener.on_assigned
        self.consumer.add(new, held_back=on_assigned is not None)
        self.is_rebalancing = False
        self.consumer.wake.set()
        if on_assigned is not None:
            try:
                yield from self.consumer.callbacks.call(on_assigned, new)
            finally:
                self.consumer.assignment.hold_back(new, False)

    def _call(self, function: Callable[..., Any] | None, partitions: frozenset[TopicPartition]) -> None:
        if function is not None:
            self.consumer.callbacks.put(function, partitions)

    # For the end

    def rewind(self, block: SessionBlock) -> None:
        """Go back to where the transaction began; what was fetched is dropped."""
        assignment = self.consumer.assignment
        moved = []
        for name, start in block.starts.items():
            state = start.state
            is_assigned = assignment.partitions.get(name) is state
            if is_assigned and (state.position != start.offset or state.awaiting is not None):
                assignment.seek(name, start.offset, start.leader_epoch)
                moved.append(name)
        self.consumer.fetcher.drop(moved)

    def rewind_later(self, block: SessionBlock) -> None:
        """Nobody knows what became of it. Where nothing is committed, it goes on where the transaction began."""
        self.is_rewind_due = True
        self._uncertain = {
            name: OffsetAndMetadata(start.offset, "", start.leader_epoch) for name, start in block.starts.items()
        }

    def leave(self, block: SessionBlock) -> None:
        """The transaction is over, whatever became of it: what waited for its end goes on."""
        if self.block is block:
            self.block = None
            self._note_end(block)
        self.manager.abandon(block.transaction)
        self.changed.set()

    def _note_end(self, block: SessionBlock) -> None:
        """A transaction that a rebalance or the group's coordinator ruled out is aborted without an error, and its
        records come again at once. Where that happens several times in a row, the next one waits a little."""
        if block.failed is None:
            self._aborts = 0
            return
        self._aborts += 1
        if self._aborts > 1:
            cluster = self.manager.cluster
            self._not_before = self.clock() + cluster.times.backoff(self._aborts - 2, cluster.random.random())
        if self._aborts >= MANY_ABORTS and self._aborts.bit_count() == 1:  # rarely, as it may go on for long
            log.warning(
                "group %s: %d transactions in a row were aborted, and their records are read again; the last one: %s",
                self.group_id,
                self._aborts,
                block.failed,
            )

    def check_membership(self) -> Flow[None]:
        """Have the membership ask who it is, beside: the coordinator knows us no more."""
        membership = self.consumer.membership
        if membership is not None:
            yield from spawn(_check_membership(membership, self.times.request), "membership check")


def _check_membership(membership: Membership, timeout: float) -> Flow[None]:
    found = yield from membership.force_heartbeat(timeout)
    if found is not Heartbeat.OK:
        log.info("after refused offsets: %s", found.value)
