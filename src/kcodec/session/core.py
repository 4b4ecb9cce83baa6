# SPDX-License-Identifier: Apache-2.0
"""Consume, transform and produce as one: the flows of a group transact session, which controls both the consumer and
the producer (franz-go: GroupTransactSession; Kafka: KIP-98, KIP-447).

The offsets that a transaction has read and the records that it has written are committed together, or neither is. A
rebalance never raises an error in a transaction. If it revokes partitions that the transaction has read, the commit is
prevented: the end aborts the transaction and returns to the positions at which it began (`kcodec.session.end`).

Outside a transaction nothing is read, so a rebalance has no effect there. During a transaction, the rebalance waits
until the transaction has ended or polls again (in Java, too, rejoins are part of poll). If the transaction has not read
or sent anything yet, the rebalance does not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kcodec.cluster.flow_lock import FlowLock
from kcodec.consumer.assignment import PartitionState
from kcodec.consumer.callbacks import Callback, RebalanceListener
from kcodec.consumer.core import ConsumerCore
from kcodec.consumer.group.rebalance import Heartbeat, Membership
from kcodec.consumer.rebalance_handler import lost_text
from kcodec.errors import TransactionStateError
from kcodec.flow import Flow, Signal, sleep, spawn, wait
from kcodec.offsets import TopicPartition
from kcodec.session.block import SessionBlock, Start
from kcodec.session.group_session_timeout import group_session_timeout
from kcodec.session.safety import SessionTimes, check_times, has_kip447
from kcodec.transactions.manager import TransactionManager
from kcodec.transactions.state import State
from kcodec.transactions.transaction import ProducerTransaction

Partitions = Iterable[TopicPartition]
#: Interval at which a waiting poll notes that the application polls.
LONGEST_WAIT_SECONDS = 1.0
#: From this number of transactions that were aborted in a row on, a warning says so.
MANY_ABORTS = 8
log = logging.getLogger("kcodec.session")


class GroupSession:
    """The flows of a group transact session; see the module. It is the RebalanceHandler of its consumer.

    block:     The current transaction, until its end is complete.
    end_lock:  Held from before EndTxn to its response, and while partitions are revoked, so that these do not
               interleave.
    is_rebalancing: Whether a rebalance has begun. Until it is complete, nothing is delivered.
    is_safe:   Whether the timeouts were checked with the brokers of this cluster.
    is_rewind_due: Whether the outcome of a transaction is unknown. The session then continues at the committed offsets,
                   as soon as a new epoch ensures that they are final.
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
        self._uncertain: dict[TopicPartition, Start] = {}

    def attach(self, consumer: ConsumerCore, listener: RebalanceListener | None = None) -> None:
        """Set the consumer, once."""
        self.consumer = consumer
        self.listener = listener or self.listener
        consumer.assignment.on_reset = self._note_reset

    def run(self) -> Flow[None]:
        """Run next to the calls until the session is closed: note where the transaction begins to read partitions that
        are assigned while it is open. Their first records arrive a round trip to the broker later."""
        while True:
            yield from wait(self.consumer.assignment.changed)
            self.note_starts()

    def note_starts(self) -> None:
        """Note where the transaction begins to read new partitions. Any thread."""
        block = self.block
        if block is not None and not block.is_ending:
            with self.consumer.assignment.lock:
                block.note_starts(self.consumer.assignment.partitions)

    def _note_reset(self, state: PartitionState, before: int, after: int) -> None:
        """Under the assignment's lock: note that `after` has replaced a position that is not in the log."""
        if self.block is not None:
            self.block.note_reset(state, before, after)

    @property
    def knows_generations(self) -> bool:
        """Return whether the group's coordinator checks the generation of a commit and reports pending offsets
        (KIP-447). This is known from its API versions, not from a response, which may never arrive."""
        return has_kip447(self.manager.cluster, self.group_id)

    # Begin

    def begin(self, timeout: float | None = None, is_gone: Callable[[], bool] = lambda: False) -> Flow[SessionBlock]:
        """Begin a transaction, after InitProducerId if necessary. `timeout` is in seconds, `max_block` by default.

        is_gone: Returns whether the caller was interrupted and does not know that the transaction has begun.

        Raise the errors of TransactionManager.begin, or ValueError if the timeouts are not safe with this broker.
        """
        self.check_idle()
        deadline = self.clock() + (self.manager.max_block if timeout is None else timeout)
        if (pause := min(self._not_before, deadline) - self.clock()) > 0:
            yield from sleep(pause)
        transaction = yield from self.manager.begin(max(deadline - self.clock(), 0.0))
        try:
            if not self.is_safe:
                if not self.knows_generations:
                    yield from self.check_times(deadline)
                self.is_safe = True
            if self.is_rewind_due:
                yield from self._rewind_to_committed(deadline)
            return self.begun(transaction, is_gone)
        except BaseException:  # such as that of Ctrl-C
            self._abandon(transaction)
            raise

    def begin_at_once(self, is_gone: Callable[[], bool] = lambda: False) -> SessionBlock | None:
        """Do what `begin` does without a request, from any thread that holds the producer's lock. Return None if the
        flow is needed."""
        if self.block is not None or self.is_rewind_due or not self.is_safe or self._not_before > self.clock():
            return None
        transaction = self.manager.begin_at_once()
        if transaction is None:
            return None
        try:
            return self.begun(transaction, is_gone)
        except BaseException:  # such as that of Ctrl-C
            self._abandon(transaction)
            raise

    def _abandon(self, transaction: ProducerTransaction) -> None:
        """Note that the begin of a block was interrupted. The next begin aborts its transaction."""
        self.manager.abandon(transaction)
        self.block = None

    def begun(self, transaction: ProducerTransaction, is_gone: Callable[[], bool]) -> SessionBlock:
        """Note that the transaction is open."""
        block = self.block = SessionBlock(transaction, is_gone)
        self.note_starts()
        return block

    def check_idle(self) -> None:
        """Raise TransactionStateError while a transaction is open."""
        if self.block is not None and self.block.is_gone():
            # Nothing was read or sent in it. This may be the caller's thread, but signals must be set on the loop's
            # thread.
            self.manager.abandon(self.block.transaction)
            self.block = None
            self.consumer.assignment.post(self.changed.set)
        if self.block is not None:
            error = TransactionStateError(
                "a transaction of this session is open: end it before the next one begins; if Ctrl-C interrupted its "
                "end, close the session and create it again",
                state=State.IN_TRANSACTION.name,
                event="BEGIN",
            )
            error.remedy = "recreate"
            raise error

    def check_times(self, deadline: float) -> Flow[None]:
        """With a broker without KIP-447, raise ValueError if the timeouts are not safe. Otherwise log one warning."""
        if self._are_times_checked:
            return
        if self.times.session is None:
            left = max(deadline - self.clock(), 0.0)
            found = yield from group_session_timeout(self.manager.cluster, self.group_id, left)
            self.times = replace(self.times, session=found.session_timeout)
        check_times(self.times, self.manager.transaction_timeout_ms / 1000)
        self._are_times_checked = True

    def _rewind_to_committed(self, deadline: float) -> Flow[None]:
        """Continue at the committed offsets after an unknown outcome, because they show the outcome."""
        assert self.consumer.committed_offsets is not None
        uncertain = self._uncertain
        assignment = self.consumer.assignment
        here = [name for name, start in uncertain.items() if assignment.partitions.get(name) is start.state]
        if here:
            found = yield from self.consumer.committed_offsets.fetch(here, max(deadline - self.clock(), 0.0))
            for name in here:
                start = uncertain[name]
                if assignment.partitions.get(name) is start.state:  # after another assignment, it has another position
                    place = found.get(name)
                    # A transaction commits no offset that is equal to its start.
                    to = start.first if place is None or place.offset == start.offset else place
                    assignment.seek(name, to.offset, to.leader_epoch, start.topic_id)
            self.consumer.fetcher.drop(here)
        self.is_rewind_due, self._uncertain = False, {}

    # Reading

    def may_take(self, block: SessionBlock) -> bool:
        """Return whether the caller of poll may take records for this transaction now. If so, `taken` must follow."""
        if block is not self.block:
            return False
        self._polled_at = self.clock()
        with self.consumer.assignment.lock:
            if self.is_rebalancing:
                return False
            block.is_reading = True
            return True

    def taken(self, block: SessionBlock, count: int) -> None:
        """Note that the poll has taken `count` records, and no longer reads."""
        block.has_read |= count > 0
        block.is_reading = False

    @property
    def waits_in_flow(self) -> bool:
        """Any thread: see `ConsumerCore.waits_in_flow`."""
        return self.is_rebalancing or self.consumer.waits_in_flow

    def wait_for_work(self, timeout: float) -> Flow[Callback | None]:
        """Wait as part of a poll, as `ConsumerCore.wait_for_work` does. If a rebalance waits for the poll, let it
        continue, and wait for its end. The wait ends when the transaction ends."""
        block = self.block
        deadline = self.clock() + timeout
        self._polls += 1
        self.changed.set()
        try:
            yield from sleep(0)  # a flow that waits for a poll continues first
            while self._still_rebalances() and not (block is not None and block.is_ending):
                self.consumer.raise_errors()
                if self.consumer.callbacks.waiting:
                    return self.consumer.callbacks.waiting[0]
                left = deadline - self.clock()
                if left <= 0:
                    return None
                yield from wait(self.consumer.wake, min(left, LONGEST_WAIT_SECONDS))
                self.consumer.note_poll()  # it is a poll all the time
            left = max(deadline - self.clock(), 0.0)
            return (yield from self.consumer.wait_for_work(left, lambda: block is not None and block.is_ending))
        finally:
            self._polls -= 1

    def _still_rebalances(self) -> bool:
        membership = self.consumer.selection.membership
        if self.is_rebalancing and (membership is None or membership.is_stable):
            self.is_rebalancing = False
        return self.is_rebalancing

    # Rebalances: what the membership calls

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned now."""
        return frozenset(self.consumer.assignment.partitions)

    def until_polled(self) -> Flow[None]:
        """Before a rejoin, wait until no transaction uses records that it has read, or until it polls. In Java, too, a
        rejoin is part of poll. From here on, nothing is delivered until the rebalance is complete."""
        with self.consumer.assignment.lock:
            self.is_rebalancing = True
        self.consumer.wake.set()
        while not self._may_rejoin():
            yield from wait(self.changed)

    def _may_rejoin(self) -> bool:
        """Return whether to rejoin. A member that left because the application did not poll stays away until it
        polls."""
        block = self.block
        if block is not None and block.is_ending:
            return False
        if self._polls or self.is_closing:
            return True
        if self.clock() - self._polled_at > self.times.max_poll_interval:
            return False
        return block is None or block.failed is not None or block.is_fresh

    def revoke(self, partitions: Partitions, deadline: float | None = None) -> Flow[None]:
        """Revoke these partitions, when `until_polled` allows it. Wait while EndTxn is in flight, and a little longer
        without KIP-447. A session commits nothing here, so it does not need the deadline; the caller cancels this
        flow."""
        going = frozenset(partitions) & self.owned
        if not going:
            return
        yield from self.until_polled()
        going &= self.owned
        log.info("revoked: %s", ", ".join(map(str, sorted(going))))
        yield from self._take_away(going, "revoked")
        self._call(self.listener.on_revoked, going)

    def lose(self, partitions: Partitions) -> Flow[None]:
        """Drop these partitions, which other members already own."""
        gone = frozenset(partitions) & self.owned
        if not gone:
            return
        text = lost_text(gone, self.consumer.settings, self.manager.cluster)
        log.warning("%s. A transaction that has read them is aborted, and its records are read again", text)
        yield from self._take_away(gone, "lost")
        self._call(self.listener.on_lost or self.listener.on_revoked, gone)

    def _take_away(self, gone: frozenset[TopicPartition], how: str) -> Flow[None]:
        self.consumer.assignment.set_revoking(gone)  # nothing more is delivered of them
        yield from self.end_lock.acquire()
        try:
            if (block := self.block) is not None:
                self._fail(block, gone, how)
            self.consumer.selection.remove(gone)
        finally:
            self.end_lock.release()

    def _fail(self, block: SessionBlock, gone: frozenset[TopicPartition], how: str) -> None:
        if not block.is_fresh or block.is_ending:
            block.fail(f"{', '.join(map(str, sorted(gone)))} {how} while it was open")
            self.changed.set()

    def assign(self, added: Partitions, owned: Partitions) -> Flow[None]:
        """Complete a rebalance with the assigned partitions."""
        new = frozenset(added)
        log.info("assigned: %s", ", ".join(map(str, sorted(owned))) or "nothing")
        on_assigned = self.listener.on_assigned
        self.consumer.selection.add(new, held_back=on_assigned is not None)
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

    def wait_for_end(self, block: SessionBlock, timeout: float) -> Flow[None]:
        """Wait until the transaction is complete, at most `timeout` seconds. The commit needs the lock of the group. If
        the session left the group first, it would hold this lock while it waits for the commit."""
        deadline = self.clock() + timeout
        while self.block is block and (left := deadline - self.clock()) > 0:
            yield from wait(self.changed, left)

    def rewind(self, block: SessionBlock) -> None:
        """Return to the positions at which the transaction began, and drop fetched records."""
        assignment = self.consumer.assignment
        moved = []
        for name, start in block.starts.items():
            state, first = start.state, start.first
            is_assigned = assignment.partitions.get(name) is state
            has_other_id = start.topic_id not in (None, state.topic_id)
            if is_assigned and (state.position != first.offset or state.awaiting is not None or has_other_id):
                assignment.seek(name, first.offset, first.leader_epoch, start.topic_id)
                moved.append(name)
        self.consumer.fetcher.drop(moved)

    def rewind_later(self, block: SessionBlock) -> None:
        """Note that the outcome is unknown. For a partition without a committed offset, the session continues where the
        transaction began."""
        self.is_rewind_due = True
        self._uncertain = dict(block.starts)

    def leave(self, block: SessionBlock) -> None:
        """Note that the transaction is complete, whatever its outcome. Flows that waited for its end continue."""
        if self.block is block:
            self.block = None
            self._note_end(block)
        self.manager.abandon(block.transaction)
        self.changed.set()
        self.consumer.wake.set()  # a poll of another task ends, too

    def _note_end(self, block: SessionBlock) -> None:
        """Note the end of a transaction. If a rebalance or the group's coordinator prevented the commit, the
        transaction is aborted without an error, and its records are read again immediately. After several such aborts
        in a row, the next transaction waits."""
        if block.failed is None:
            self._aborts = 0
            return
        self._aborts += 1
        if self._aborts > 1:
            cluster = self.manager.cluster
            self._not_before = self.clock() + cluster.times.backoff(self._aborts - 2, cluster.random.random())
        if self._aborts >= MANY_ABORTS and self._aborts.bit_count() == 1:  # at growing intervals
            log.warning(
                "group %s: %d transactions in a row were aborted, and their records are read again; last reason: %s",
                self.group_id,
                self._aborts,
                block.failed,
            )

    def check_membership(self) -> Flow[None]:
        """Let the membership check its state in the background, because the coordinator no longer knows this member."""
        membership = self.consumer.selection.membership
        if membership is not None:
            yield from spawn(_check_membership(membership, self.times.request), "membership check")


def _check_membership(membership: Membership, timeout: float) -> Flow[None]:
    found = yield from membership.force_heartbeat(timeout)
    if found is not Heartbeat.OK:
        log.info("membership check after rejected offsets: %s", found.value)
