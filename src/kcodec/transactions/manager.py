# SPDX-License-Identifier: Apache-2.0
"""The flows of a transactional producer: initialize, begin, offsets, commit, abort (Kafka: TransactionManager).

Which flow a transaction speaks is settled at its begin by the finalized feature transaction.version, never by the
versions a broker offers: below level 2 a broker offers the new ones all the same and answers them with errors for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import nullcontext

from kcodec.arguments import partitions_of
from kcodec.errors import (
    AbortableTransactionError,
    DeliveryTimeoutError,
    KcodecError,
    TransactionStateError,
)
from kcodec.flow import Flow, wait
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.protocol.error_codes import error_code
from kcodec.transactions.background import MARKERS_SECONDS, TransactionBackground
from kcodec.transactions.end import Ended, end_transaction
from kcodec.transactions.errors import Failed, Treatment
from kcodec.transactions.handle import TransactionHandle
from kcodec.transactions.identity import (
    NEW_FLOW_LEVEL,
    REQUEST_TIMED_OUT,
    OpenTransaction,
)
from kcodec.transactions.initialize import init_producer_id
from kcodec.transactions.offsets import Offsets, add_offsets, commit_offsets
from kcodec.transactions.requests import HIGHEST_VERSION
from kcodec.transactions.state import Event, State, next_state

#: From so many batches on a transaction is a large one.
LARGE_BATCHES = 16
#: States in which something is open that only an abort ends.
TO_ABORT = frozenset({State.IN_TRANSACTION, State.ABORTABLE_ERROR})
log = logging.getLogger("kcodec.transactions")


class TransactionManager(TransactionBackground):
    """See the module. Calls are flows; timeout: seconds, `max_block` without one."""

    # Before a transaction

    def initialize(self, timeout: float | None = None) -> Flow[None]:
        """InitProducerId: take the transactional id over; or, the second time, a new epoch while it still is ours.

        Raises ProducerFencedError, AuthorizationError, FatalTransactionError; DeliveryTimeoutError and
        AuthenticationError, after which it can be called again.
        """
        self.call(Event.INITIALIZE)
        try:
            self.producer = yield from init_producer_id(
                self.cluster,
                self.who,
                self.transaction_timeout_ms,
                self.producer,
                self._deadline(timeout),
                self._init_unanswered,
                is_init_unanswered=self.is_init_unanswered,
            )
        except Failed as failed:
            self.move(Event.FATAL, failed.error)
            raise failed.error from None
        except (KcodecError, GeneratorExit):
            self.move(Event.NOT_INITIALIZED)
            raise
        self.is_epoch_spent = self.is_epoch_used = False
        self.move(Event.INITIALIZED)

    def _left(self, deadline: float) -> float:
        return max(deadline - self.cluster.clock(), 0.0)

    def _init_unanswered(self) -> None:
        self.is_init_unanswered = True

    def abandon(self, transaction: OpenTransaction) -> None:
        """Its block is over, with or without a confirmed abort: the next begin ends the transaction."""
        transaction.is_abandoned = True

    def begin(self, timeout: float | None = None, partitions: Iterable[TopicPartition] = ()) -> Flow[OpenTransaction]:
        """Begin a transaction, after InitProducerId where that is due. partitions: added at once in the old flow."""
        deadline = self._deadline(timeout)
        if self.open is not None and self.open.is_abandoned and self.state in TO_ABORT:
            yield from self.abort(self._left(deadline))
        is_new_flow = self.level >= NEW_FLOW_LEVEL
        wanted = set(partitions_of(partitions))
        before = self.open if self.state is State.READY and self.is_epoch_used else None
        if before is not None and (before.is_new_flow is not is_new_flow or (wanted and not is_new_flow)):
            # The feature is at another level now, and the epoch belongs to the other flow; or others will write under
            # an epoch whose sequence numbers this producer has begun to use.
            self.move(Event.NOT_INITIALIZED)
        if self.state in {State.UNINITIALIZED, State.UNKNOWN_OUTCOME}:
            yield from self.initialize(self._left(deadline))
            is_new_flow = self.level >= NEW_FLOW_LEVEL
        with self.records.lock if self.records is not None else nullcontext():  # beside begin_at_once
            self.call(Event.BEGIN)
            assert self.producer is not None
            transaction = self.open = OpenTransaction(self.producer, is_new_flow)
            self.is_epoch_used = True
        self.tell()
        if wanted and not is_new_flow:
            transaction.wanted |= wanted
            self.wake.set()
            yield from self._until_added(transaction, wanted, deadline)
        return transaction

    def begin_at_once(self) -> OpenTransaction | None:
        """`begin` where nothing is to be sent, from any thread that holds the lock of the producer: the usual case does
        not wait for the loop's thread. None: it takes the flow."""
        last = self.open
        is_new_flow = self.level >= NEW_FLOW_LEVEL
        if self.state is not State.READY or self.producer is None:
            return None
        if last is not None and self.is_epoch_used and last.is_new_flow is not is_new_flow:
            return None
        transaction = self.open = OpenTransaction(self.producer, is_new_flow)
        self.is_epoch_used = True
        self.state = next_state(self.state, Event.BEGIN)
        if self.records is not None:
            self.records.refuse_sends(None)
        return transaction

    def _until_added(self, transaction: OpenTransaction, wanted: set[TopicPartition], deadline: float) -> Flow[None]:
        try:
            while not wanted <= transaction.added:
                left = deadline - self.cluster.clock()
                if self.kept_error is not None:
                    raise self.kept_error.with_traceback(None)
                if left <= 0:
                    raise DeliveryTimeoutError(f"AddPartitionsToTxn of {self.who!r} got no response in time")
                yield from wait(self.changed, left)
        except GeneratorExit:
            self._give_up("its partitions were not added, as the begin was interrupted")
            raise
        except KcodecError as error:
            self._give_up("its partitions were not added")
            # The caller does not get the transaction, so it cannot abort it. What the abort leaves open when the time
            # of this call is over, the next begin aborts.
            self.abandon(transaction)
            if self.state is State.ABORTABLE_ERROR:
                try:
                    yield from self.abort(self._left(deadline))
                except KcodecError as failed:
                    log.warning("%s: the abort after a begin that failed was not confirmed: %s", self.who, failed)
                    if failed is not error:
                        error.add_note(f"the abort after it failed, too: {failed}")
            raise

    def handle(self, transaction: OpenTransaction) -> TransactionHandle:
        """Return what other writers need for the open transaction; from now on it needs an EndTxn in any case."""
        if transaction is not self.open or self.state is not State.IN_TRANSACTION:
            self.call(Event.SEND)
            raise TransactionStateError("this transaction has ended", state=self.state.name, event=Event.SEND.name)
        if not transaction.is_new_flow and not transaction.added:
            raise TransactionStateError(
                "below transaction.version 2 a transaction has a handle only after its partitions were added: name "
                "all partitions that its writers will write to in producer.transaction(partitions=[...])",
                state=self.state.name,
                event=Event.SEND.name,
            )
        transaction.is_shared = True
        self.note_sent(transaction)
        return TransactionHandle(self.who, *transaction.producer, self.cluster.transaction_version)

    # Offsets

    def send_offsets(
        self,
        offsets: Offsets,
        group: ConsumerGroupMetadata,
        timeout: float | None = None,
        *,
        highest_version: int = HIGHEST_VERSION,
    ) -> Flow[None]:
        """Commit offsets of a group with the transaction. No error but an illegal call leaves it fit to commit.

        highest_version: of TxnOffsetCommit, in the old flow; to speak as with an older broker.
        """
        self.call(Event.SEND_OFFSETS)
        transaction, deadline = self.now_open, self._deadline(timeout)
        if not offsets:
            return
        self.note_sent(transaction)
        transaction.requests += 1
        try:
            yield from self._send_offsets(transaction, offsets, group, deadline, highest_version)
        except Failed as failed:
            settled = yield from self._settled(failed, transaction, deadline)
            self.fail(settled)
            raise settled.error from None
        except (KcodecError, GeneratorExit) as error:
            why = str(error) or "the call was interrupted"
            self._give_up(f"offsets of group {group.group_id!r} were not accepted: {why}")
            self._advise(error)
            raise
        finally:
            transaction.requests -= 1
            self.changed.set()

    def _send_offsets(
        self,
        transaction: OpenTransaction,
        offsets: Offsets,
        group: ConsumerGroupMetadata,
        deadline: float,
        highest_version: int,
    ) -> Flow[None]:
        def on_unanswered() -> None:
            self.on_unanswered("an offset request")

        known = self.cluster, self.who, transaction.producer
        if not transaction.is_new_flow and group.group_id not in transaction.groups:
            yield from add_offsets(*known, group.group_id, deadline, on_unanswered)
            transaction.groups.add(group.group_id)
        yield from commit_offsets(
            *known,
            offsets,
            group,
            deadline,
            is_new_flow=transaction.is_new_flow,
            on_unanswered=on_unanswered,
            highest_version=highest_version,
        )
        transaction.groups.add(group.group_id)

    # The end

    def commit(self, timeout: float | None = None) -> Flow[None]:
        """Flush, then send EndTxn. After UnknownOutcomeError it may be called again, and sends the same EndTxn again.

        Raises the error that blocks the commit (a failed record names its partition), DeliveryTimeoutError when EndTxn
        was not sent, UnknownOutcomeError when it was and nobody answered.
        """
        is_repeat = self.state is State.UNKNOWN_OUTCOME
        self.call(Event.COMMIT)
        transaction, deadline = self.now_open, self._deadline(timeout)
        try:
            if not is_repeat:
                yield from self._flush(transaction, deadline)
                if self.state is not State.COMMITTING:
                    assert self.kept_error is not None
                    raise self.kept_error.with_traceback(None)
            yield from self._end(transaction, is_commit=True, deadline=deadline)
        except GeneratorExit:
            self._given_up_end(transaction, Event.UNANSWERED)
            raise
        except DeliveryTimeoutError as late:
            self._advise(late)
            raise

    def abort(self, timeout: float | None = None) -> Flow[None]:
        """Drop what is not sent, wait for what is under way, then EndTxn. A fatal error is raised again."""
        self.call(Event.ABORT)
        transaction, deadline = self.now_open, self._deadline(timeout)
        try:
            if self.records is not None:
                refusal = self.refuses()
                assert refusal is not None
                self.records.abort_buffered(refusal)
            yield from self._flush(transaction, deadline)
            yield from self._end(transaction, is_commit=False, deadline=deadline)
        except GeneratorExit:
            self._given_up_end(transaction, Event.UNANSWERED)
            raise
        except DeliveryTimeoutError as late:
            self._advise(late)
            raise

    def _flush(self, transaction: OpenTransaction, deadline: float) -> Flow[None]:
        """Wait until nothing of the transaction is under way."""
        try:
            if self.records is not None:
                yield from self.records.flush(self._left(deadline))
            while transaction.requests:
                left = deadline - self.cluster.clock()
                if left <= 0:
                    raise DeliveryTimeoutError(
                        f"a request of the transaction of {self.who!r} has not got its response yet"
                    )
                yield from wait(self.changed, left)
        except DeliveryTimeoutError as error:
            if self.state in {State.COMMITTING, State.ABORTING}:
                self.move(Event.INTERRUPTED, self._blocked(f"records were still under way: {error}"))
            raise

    def _end(self, transaction: OpenTransaction, *, is_commit: bool, deadline: float) -> Flow[None]:
        """EndTxn, where one is due; the state moves with what came of it."""
        ended = Ended(transaction.producer, False)
        if transaction.is_sent:
            try:
                ended = yield from self._ask_end(transaction, is_commit, deadline)
            except Failed as failed:
                if failed.treatment is Treatment.UNANSWERED and not is_commit:
                    transaction.committed = False
                if failed.is_committed:
                    transaction.committed = True
                    self.move(Event.ENDED_EPOCH_SPENT)
                else:
                    self.fail(failed)
                raise failed.error from None
        transaction.committed = is_commit
        self.producer = ended.producer or self.producer
        if transaction.is_sent and transaction.is_new_flow and self.may_probe:
            self._expect_markers(transaction)
        is_old_and_shared = transaction.is_shared and not transaction.is_new_flow
        if ended.producer is None or self.is_epoch_spent or is_old_and_shared:
            self.move(Event.ENDED_EPOCH_SPENT)
        else:
            self.move(Event.COMMITTED if is_commit else Event.ABORTED)

    def _expect_markers(self, transaction: OpenTransaction) -> None:
        """The markers follow the EndTxn response: records that follow wait for them if that proved useful."""
        if self.skipped_probes:
            self.skipped_probes -= 1
        else:
            self.markers_awaited_until = self.cluster.clock() + MARKERS_SECONDS
            # A thread that writes much holds the interpreter's lock while responses arrive: where one large transaction
            # follows another, the request is sent before the records are. (For small ones it costs more.)
            self.is_probe_wanted = self.follows_at_once and transaction.batches >= LARGE_BATCHES

    def _ask_end(self, transaction: OpenTransaction, is_commit: bool, deadline: float) -> Flow[Ended]:
        ending = self.ending(transaction)
        if transaction.is_new_flow and self.cluster.transaction_version < NEW_FLOW_LEVEL:
            # Below that level a coordinator responds to EndTxn of the new flow with UNSUPPORTED_VERSION, and to each
            # request after it with CONCURRENT_TRANSACTIONS.
            if is_commit:
                raise Failed(Treatment.ABORTABLE, self._blocked("transaction.version was lowered while it was open"))
            return Ended(None, False)
        try:
            return (yield from end_transaction(self.cluster, ending, is_commit, deadline))
        except Failed as failed:
            if failed.treatment is not Treatment.EMPTY or transaction.receipt or transaction.groups:
                raise
        # A shared transaction that no writer wrote to. The abort raises the epoch: a late writer is refused and cannot
        # write to the next transaction.
        log.info("%s: no writer wrote to the shared transaction, there is nothing to commit", self.who)
        return (yield from end_transaction(self.cluster, ending, False, deadline))

    # What stays

    def _blocked(self, why: str) -> AbortableTransactionError:
        return AbortableTransactionError(
            f"the transaction of {self.who!r} cannot be committed: {why}",
            code=REQUEST_TIMED_OUT,
            name=error_code(REQUEST_TIMED_OUT).name,
            remedy="abort",
            resource=self.who,
        )

    def _advise(self, error: BaseException) -> None:
        """A call that was late left a transaction that can only be aborted: say so."""
        if isinstance(error, DeliveryTimeoutError) and self.state is State.ABORTABLE_ERROR:
            error.remedy = "abort"

    def _give_up(self, why: str) -> None:
        """A call ended without what it was for: the transaction can only be aborted."""
        if self.state is State.IN_TRANSACTION:
            self.move(Event.ABORTABLE, self._blocked(why))

    def _given_up_end(self, transaction: OpenTransaction, sent: Event) -> None:
        """A commit or an abort was cancelled."""
        if self.state in {State.COMMITTING, State.ABORTING}:
            event = sent if transaction.is_end_unanswered else Event.INTERRUPTED
            self.move(event, self._blocked("the call that was to end it was interrupted"))

    def close_flow(self, timeout: float | None) -> Flow[None]:
        """The producer closes: what is open is aborted. Errors are logged, as no caller can act on them any more."""
        if self.state not in TO_ABORT:
            return
        log.info("%s: close aborts the transaction that is open", self.who)
        try:
            yield from self.abort(timeout)
        except KcodecError as error:
            log.warning("the transaction that was open at close was not aborted: %s", error)
