# SPDX-License-Identifier: Apache-2.0
"""The end of a transaction of a group transact session. The order of a commit is that of franz-go's session:

    flush -> TxnOffsetCommit (generation, member, instance) -> forced heartbeat -> lock -> decide -> EndTxn -> positions
    -> unlock

While the lock is held, no partition is revoked, so no other member begins before the outcome of the transaction is
known. The membership's lock prevents that TxnOffsetCommit interleaves with a rebalance of this member: it could
otherwise combine the generation of one assignment with the offsets of another. A transaction that has read nothing
sends EndTxn immediately, because there are no offsets to protect.
"""

from __future__ import annotations

import logging

from kcodec.cluster.values import LOST_MEMBER_CODES
from kcodec.consumer.assignment import PartitionState
from kcodec.consumer.group.rebalance import Heartbeat
from kcodec.errors import BrokerError, KcodecError, UnknownOutcomeError
from kcodec.flow import Flow, sleep, spawn, wait
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import HIGHEST_VERSION
from kcodec.session.block import SessionBlock
from kcodec.session.core import GroupSession
from kcodec.session.safety import MARKER_WAIT_SECONDS
from kcodec.transactions.offsets import GENERATION_VERSION
from kcodec.transactions.state import TO_ABORT, State

#: After these the partitions are still ours; without generations only after the first.
STILL_MEMBER = frozenset({Heartbeat.OK, Heartbeat.REBALANCE_IN_PROGRESS, Heartbeat.REASSIGNED})
log = logging.getLogger("kcodec.session")
Offsets = dict[TopicPartition, OffsetAndMetadata]


class SessionEnd:
    """The end of one transaction."""

    def __init__(self, session: GroupSession, block: SessionBlock, timeout: float | None) -> None:
        self.session = session
        self.manager = session.manager
        self.block = block
        self.timeout = session.manager.max_block if timeout is None else timeout
        self.deadline = session.clock() + self.timeout
        self._is_locked = False

    def run(self, *, is_commit: bool, error: BaseException | None = None) -> Flow[None]:
        """End the transaction. `error` is the exception that ended its block; errors of the abort are added to it as a
        note.

        Raise AbortableTransactionError and its subclasses (not for a rebalance or a new topic), ProducerFencedError,
        UnknownOutcomeError, or DeliveryTimeoutError if the commit was not sent in time.
        """
        block = self.block
        if block.is_ending:
            return
        block.is_ending = True
        try:
            why = error
            if is_commit:
                why = yield from self._commit()
            if not block.committed:
                yield from self._abort(why)
            if why is not None and why is not error:
                raise why
        finally:
            self._leave()

    def _leave(self) -> None:
        """Clean up, whatever ended the flow, including a cancellation."""
        session, block = self.session, self.block
        try:
            if not block.committed:
                if block.transaction.is_commit_unconfirmed and block.committed is None:
                    session.rewind_later(block)
                else:
                    block.transaction.committed = False  # whatever the outcome of the abort
                    session.rewind(block)
        finally:
            try:
                session.leave(block)
            finally:
                self._unlock()

    # Commit

    def _commit(self) -> Flow[BaseException | None]:
        """Commit, if this is still possible. Return the error to raise after an abort; None after a commit, or after an
        abort because of a rebalance."""
        session, block, manager = self.session, self.block, self.manager
        offsets: Offsets = {}
        beat = Heartbeat.OK
        try:
            yield from self._flush()
            with session.consumer.assignment.lock:
                offsets = block.moved(session.consumer.assignment.partitions)
            if self._may_go_on() and offsets:
                yield from self._send_offsets(offsets)
                if self._may_go_on():
                    beat = yield from self._heartbeat()
            if self._may_go_on():
                yield from self._lock()
            if not self._decide(beat):
                return None if block.failed is not None else manager.kept_error
            yield from manager.commit(self._left())
        except UnknownOutcomeError:
            raise
        except (KcodecError, ValueError) as failed:
            if block.failed is not None:
                log.info("an error during a rebalance: %s", failed)
                return None
            return failed
        if offsets:
            yield from self._wait_for_markers()
        return None

    def _left(self) -> float:
        return max(self.deadline - self.session.clock(), 0.0)

    def _may_go_on(self) -> bool:
        return self.block.failed is None and self.manager.state is State.IN_TRANSACTION

    def _flush(self) -> Flow[None]:
        records = self.manager.context.records
        assert records is not None
        if self._may_go_on():
            yield from records.flush(self._left())

    def _send_offsets(self, offsets: Offsets) -> Flow[None]:
        """Send TxnOffsetCommit. From the choice of the generation to the response, this member sends no JoinGroup or
        SyncGroup."""
        membership = self.session.consumer.selection.membership
        if membership is None:
            self.block.fail("the group was left while it was open")
            return
        if not (yield from membership.group_lock.acquire(self._left())):
            self.block.fail("the group was still rebalancing at the deadline")
            return
        try:
            group = membership.group_metadata
            if group.generation_id < 0:
                self.block.fail("the group continued without this member")
            if self.block.failed is None:
                yield from self._request_offsets(offsets, group)
        finally:
            membership.group_lock.release()

    def _request_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> Flow[None]:
        highest = HIGHEST_VERSION
        if not self.session.knows_generations:
            # Lower versions have no member id, so the last commit is valid.
            yield from self.session.check_times(self.deadline)
            group, highest = ConsumerGroupMetadata(group.group_id), GENERATION_VERSION - 1
        offsets = self._without_old_topics(offsets)
        if not offsets:
            return
        self.session.consumer.known_partitions.note_commit(offsets, self._states())
        try:
            yield from self.manager.send_offsets(offsets, group, self._left(), highest_version=highest)
        except BrokerError as refused:
            if refused.code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                # A topic was deleted, and perhaps created again, during the block. The consumer reads the new one.
                self.block.fail(str(refused))
                return
            if refused.code not in LOST_MEMBER_CODES:
                raise
            self.block.fail(str(refused))
            yield from self.session.check_membership()

    def _without_old_topics(self, offsets: Offsets) -> Offsets:
        """Return these offsets without those of topics that were deleted and created again. The new topic must not get
        them. A topic that is only missing in the metadata is kept, because without its offsets, the records that the
        transaction has read could be processed again."""
        states, is_replaced = self._states(), self.session.consumer.known_partitions.is_replaced
        return {name: offset for name, offset in offsets.items() if not is_replaced(states[name])}

    def _states(self) -> dict[TopicPartition, PartitionState]:
        """Return the states of the partitions that the transaction has read."""
        return {name: start.state for name, start in self.block.starts.items()}

    def _heartbeat(self) -> Flow[Heartbeat]:
        """Check with the coordinator whether this is still a member. This ends with the response, with the loss of
        partitions that were read, or at the deadline. A close cancels it."""
        session = self.session
        membership = session.consumer.selection.membership
        if membership is None:
            return Heartbeat.LOST
        timeout = min(self._left(), session.times.request)
        task = yield from spawn(membership.force_heartbeat(timeout), "forced heartbeat")
        task.when_done(lambda _: session.changed.set())
        try:
            while not task.done and self.block.failed is None:
                left = self._left()
                if left <= 0:
                    return Heartbeat.UNKNOWN
                yield from wait(session.changed, left)
        finally:
            task.cancel()
        if self.block.failed is not None:
            return Heartbeat.LOST
        if task.error is not None:
            log.info("the forced heartbeat got no response: %s", task.error)
        return task.result or Heartbeat.UNKNOWN

    def _lock(self) -> Flow[None]:
        """Take the lock. From here on, no partition is revoked."""
        self._is_locked = yield from self.session.end_lock.acquire(self._left())
        if not self._is_locked:
            self.block.fail("a rebalance was in progress at the deadline")

    def _unlock(self) -> None:
        if self._is_locked:
            self._is_locked = False
            self.session.end_lock.release()

    def _decide(self, beat: Heartbeat) -> bool:
        """Return whether to commit. OK also means that no check was necessary. Without KIP-447, a rebalance that has
        begun may end before the markers are written, so only OK permits the commit."""
        if not self._may_go_on():
            return False
        if beat is Heartbeat.OK or (beat in STILL_MEMBER and self.session.knows_generations):
            return True
        self.block.fail(f"the heartbeat before the commit: {beat.value}")
        return False

    def _wait_for_markers(self) -> Flow[None]:
        """Wait for the markers after a commit. Without KIP-447, the next owner of a partition does not wait for them,
        so this member must not release the partition before they are written. Only the next end waits for this."""
        if self._is_locked and not self.session.knows_generations:
            self._is_locked = False
            yield from spawn(self._unlock_later(), "markers")

    def _unlock_later(self) -> Flow[None]:
        try:
            yield from sleep(MARKER_WAIT_SECONDS)
        finally:
            self.session.end_lock.release()

    # Abort

    def _abort(self, error: BaseException | None) -> Flow[None]:
        """Abort the open transaction within the time that the commit has left. If the abort is not confirmed, the next
        begin aborts it. Raise an error only if the producer is no longer usable."""
        manager, transaction = self.manager, self.block.transaction
        if manager.open is not transaction or manager.state not in TO_ABORT:
            if manager.state is State.FATAL_ERROR and error is None and manager.kept_error is not None:
                raise manager.kept_error.with_traceback(None)
            return
        try:
            yield from manager.abort(self._left())
        except KcodecError as failed:
            log.warning("the abort of a transaction failed; the next begin repeats it: %s", failed)
            if error is None and manager.state is State.FATAL_ERROR:
                raise
            if error is not None and failed is not error:
                error.add_note(f"the abort after it failed, too: {failed}")
