# SPDX-License-Identifier: Apache-2.0
"""The flows of a transactional producer: initialize, begin, offsets, commit, abort (Kafka: TransactionManager).

Which flow a transaction speaks is settled at its begin by the finalized feature transaction.version, never by the
versions a broker offers: below level 2 a broker offers the new ones all the same and answers them with errors for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kcodec.errors import (
    AbortableTransactionError,
    DeliveryTimeoutError,
    KcodecError,
    TransactionStateError,
    UnknownOutcomeError,
    UnsupportedError,
)
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.protocol.error_codes import error_code
from kcodec.protocol.flow import Flow, sleep, wait
from kcodec.txn.cluster import Cluster
from kcodec.txn.end_transaction import Ended, end_transaction
from kcodec.txn.fencing import settle
from kcodec.txn.handle import TransactionHandle
from kcodec.txn.initialize import init_producer_id
from kcodec.txn.state import Event, State
from kcodec.txn.transaction_errors import Failed, Treatment
from kcodec.txn.transaction_offsets import Offsets, add_offsets, commit_offsets
from kcodec.txn.transaction_partitions import add_partitions
from kcodec.txn.transaction_source import (
    NEW_FLOW_LEVEL,
    REQUEST_TIMED_OUT,
    WARNING_SHARE,
    OpenTransaction,
    TransactionSource,
)

log = logging.getLogger("kcodec.transactions")
_EVENTS = {
    Treatment.ABORTABLE: Event.ABORTABLE,
    Treatment.FATAL: Event.FATAL,
    Treatment.UNANSWERED: Event.UNANSWERED,
    Treatment.INTERRUPTED: Event.INTERRUPTED,
    # Records were acknowledged and the coordinator knows nothing of them.
    Treatment.EMPTY: Event.FATAL,
}


class TransactionManager(TransactionSource):
    """See the module. max_block: seconds that a call without a timeout of its own may take (Kafka: max.block.ms)."""

    def __init__(
        self, cluster: Cluster, transactional_id: str, transaction_timeout_ms: int = 60_000, max_block: float = 60.0
    ) -> None:
        super().__init__(cluster, transactional_id, transaction_timeout_ms)
        self.max_block = max_block
        self.is_epoch_used = False

    def _deadline(self, timeout: float | None) -> float:
        return self.cluster.clock() + (self.max_block if timeout is None else timeout)

    # Before a transaction

    def initialize(self, timeout: float | None = None) -> Flow[None]:
        """InitProducerId: take the transactional id over; or, the second time, a new epoch while it still is ours.

        Raises ProducerFencedError, AuthorizationError, FatalTransactionError; DeliveryTimeoutError and
        AuthenticationError, after which it can be called again.
        """
        self.call(Event.INITIALIZE)
        try:
            self.producer = yield from init_producer_id(
                self.cluster, self.who, self.transaction_timeout_ms, self.producer, self._deadline(timeout)
            )
        except Failed as failed:
            self.move(Event.FATAL, failed.error)
            raise failed.error from None
        except (KcodecError, GeneratorExit):
            self.move(Event.NOT_INITIALIZED)
            raise
        self.is_epoch_spent = self.is_epoch_used = False
        self.move(Event.INITIALIZED)

    def begin(self, timeout: float | None = None, partitions: Iterable[TopicPartition] = ()) -> Flow[OpenTransaction]:
        """Begin a transaction, after InitProducerId where that is due. partitions: added at once in the old flow."""
        deadline = self._deadline(timeout)
        is_new_flow = self.cluster.transaction_version >= NEW_FLOW_LEVEL
        wanted = {TopicPartition(*partition) for partition in partitions}
        before = self.open if self.state is State.READY and self.is_epoch_used else None
        if before is not None and (before.is_new_flow is not is_new_flow or (wanted and not is_new_flow)):
            # The feature is at another level now, and the epoch belongs to the other flow; or others will write under
            # an epoch whose sequence numbers this producer has begun to use.
            self.move(Event.NOT_INITIALIZED)
        if self.state in {State.UNINITIALIZED, State.UNKNOWN_OUTCOME}:
            yield from self.initialize(deadline - self.cluster.clock())
            is_new_flow = self.cluster.transaction_version >= NEW_FLOW_LEVEL
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

    def _until_added(self, transaction: OpenTransaction, wanted: set[TopicPartition], deadline: float) -> Flow[None]:
        try:
            while not wanted <= transaction.added:
                left = deadline - self.cluster.clock()
                if self.kept_error is not None:
                    raise self.kept_error.with_traceback(None)
                if left <= 0:
                    raise DeliveryTimeoutError(f"AddPartitionsToTxn of {self.who!r} was not answered in time")
                yield from wait(self.changed, left)
        except GeneratorExit:
            self._give_up("its partitions were not added, as begin was given up")
            raise
        except KcodecError:
            self._give_up("its partitions were not added")
            if self.state is State.ABORTABLE_ERROR:
                # Nobody has the transaction yet who could abort it.
                yield from self.abort(self.max_block)
            raise

    def handle(self, transaction: OpenTransaction) -> TransactionHandle:
        """What others need to write into the open transaction. From now on it takes an EndTxn, whoever wrote."""
        if transaction is not self.open or self.state is not State.IN_TRANSACTION:
            self.call(Event.SEND)
            raise TransactionStateError("this transaction has ended", state=self.state.name, event=Event.SEND.name)
        if not transaction.is_new_flow and not transaction.added:
            raise TransactionStateError(
                "the handle of a transaction is to be had, below transaction.version 2, once its partitions are added: "
                "name all that anybody will write to in producer.transaction(partitions=[...])",
                state=self.state.name,
                event=Event.SEND.name,
            )
        transaction.is_shared = True
        self.note_sent(transaction)
        return TransactionHandle(self.who, *transaction.producer, self.cluster.transaction_version)

    # Offsets

    def send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata, timeout: float | None = None) -> Flow[None]:
        """Commit offsets of a group with the transaction. No error but an illegal call leaves it fit to commit."""
        self.call(Event.SEND_OFFSETS)
        transaction, deadline = self.now_open, self._deadline(timeout)
        if not offsets:
            return
        self.note_sent(transaction)
        transaction.requests += 1
        try:
            yield from self._send_offsets(transaction, offsets, group, deadline)
        except Failed as failed:
            settled = yield from self._settled(failed, transaction)
            self.fail(settled)
            raise settled.error from None
        except (KcodecError, GeneratorExit) as error:
            why = str(error) or "the call was given up"
            self._give_up(f"offsets of group {group.group_id!r} were not taken: {why}")
            raise
        finally:
            transaction.requests -= 1
            self.changed.set()

    def _send_offsets(
        self, transaction: OpenTransaction, offsets: Offsets, group: ConsumerGroupMetadata, deadline: float
    ) -> Flow[None]:
        def on_unanswered() -> None:
            self.on_unanswered("an offset request")

        known = self.cluster, self.who, transaction.producer
        if not transaction.is_new_flow and group.group_id not in transaction.groups:
            yield from add_offsets(*known, group.group_id, deadline, on_unanswered)
            transaction.groups.add(group.group_id)
        yield from commit_offsets(
            *known, offsets, group, deadline, is_new_flow=transaction.is_new_flow, on_unanswered=on_unanswered
        )

    # The end

    def commit(self, timeout: float | None = None) -> Flow[None]:
        """Flush, then EndTxn. After UnknownOutcomeError it may be called again: the same EndTxn, once more.

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

    def _flush(self, transaction: OpenTransaction, deadline: float) -> Flow[None]:
        """Wait until nothing of the transaction is under way."""
        try:
            if self.records is not None:
                yield from self.records.flush(max(deadline - self.cluster.clock(), 0.0))
            while transaction.requests:
                left = deadline - self.cluster.clock()
                if left <= 0:
                    raise DeliveryTimeoutError(f"a request of the transaction of {self.who!r} is still unanswered")
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
        is_old_and_shared = transaction.is_shared and not transaction.is_new_flow
        if ended.producer is None or self.is_epoch_spent or is_old_and_shared:
            self.move(Event.ENDED_EPOCH_SPENT)
        else:
            self.move(Event.COMMITTED if is_commit else Event.ABORTED)

    def _ask_end(self, transaction: OpenTransaction, is_commit: bool, deadline: float) -> Flow[Ended]:
        ending = self.ending(transaction)
        try:
            return (yield from end_transaction(self.cluster, ending, is_commit, deadline))
        except Failed as failed:
            if failed.treatment is not Treatment.EMPTY or transaction.receipt or transaction.groups:
                raise
        # A shared transaction that nobody wrote to. The abort of nothing raises the epoch: a writer that comes late is
        # refused, and not taken for one of the next transaction.
        log.info("%s: nobody wrote to the shared transaction, there is nothing to commit", self.who)
        return (yield from end_transaction(self.cluster, ending, False, deadline))

    # Errors

    def fail(self, failed: Failed) -> None:
        """Move by what failed; SETTLE has been settled before."""
        error = failed.error
        if failed.treatment is Treatment.FATAL and isinstance(error, UnknownOutcomeError) and error.__cause__:
            # The call says that the outcome is unknown; all calls after it, why the producer is finished.
            error = error.__cause__
        self.move(_EVENTS[failed.treatment], error)

    def _settled(self, failed: Failed, transaction: OpenTransaction) -> Flow[Failed]:
        if failed.treatment is not Treatment.SETTLE:
            return failed
        code = getattr(failed.error, "code", 90)
        doing = str(getattr(failed.error, "reason", failed.error)).partition(": ")[0]
        return (yield from settle(self.cluster, self.ending(transaction), doing, code))

    def _blocked(self, why: str) -> AbortableTransactionError:
        return AbortableTransactionError(
            f"the transaction of {self.who!r} cannot be committed: {why}",
            code=REQUEST_TIMED_OUT,
            name=error_code(REQUEST_TIMED_OUT).name,
            remedy="abort",
            resource=self.who,
        )

    def _give_up(self, why: str) -> None:
        """A call ended without what it was for: the transaction can only be aborted."""
        if self.state is State.IN_TRANSACTION:
            self.move(Event.ABORTABLE, self._blocked(why))

    def _given_up_end(self, transaction: OpenTransaction, sent: Event) -> None:
        """A commit or an abort was cancelled."""
        if self.state in {State.COMMITTING, State.ABORTING}:
            event = sent if transaction.is_end_unanswered else Event.INTERRUPTED
            self.move(event, self._blocked("the call that was to end it was given up"))

    # Beside the calls

    def run(self) -> Flow[None]:
        """The background of a transactional producer: AddPartitionsToTxn, why an epoch is too old, the warning."""
        while True:
            transaction = self.open
            if transaction is not None and self.state in {State.IN_TRANSACTION, State.COMMITTING}:
                self._warn_if_late(transaction)
                if transaction.to_settle is not None:
                    yield from self._settle_produce(transaction)
                    continue
                if transaction.wanted:
                    yield from self._add_wanted(transaction)
                    continue
            yield from wait(self.wake, self._seconds_to_warning())

    def _settle_produce(self, transaction: OpenTransaction) -> Flow[None]:
        assert transaction.to_settle is not None
        doing, code = transaction.to_settle
        failed = yield from settle(self.cluster, self.ending(transaction), doing, code)
        if self.open is transaction and self.state in {State.IN_TRANSACTION, State.COMMITTING}:
            self.fail(failed)
        transaction.to_settle = None

    def _add_wanted(self, transaction: OpenTransaction) -> Flow[None]:
        wanted = frozenset(transaction.wanted)
        self.note_sent(transaction)
        transaction.requests += 1
        try:
            yield from self._add(transaction, wanted)
        finally:
            transaction.requests -= 1
            self.changed.set()

    def _add(self, transaction: OpenTransaction, wanted: frozenset[TopicPartition]) -> Flow[None]:
        def is_over() -> bool:
            return self.open is not transaction or self.state not in {State.IN_TRANSACTION, State.COMMITTING}

        try:
            yield from add_partitions(
                self.cluster,
                self.who,
                transaction.producer,
                wanted,
                self._deadline(None),
                on_unanswered=lambda: self.on_unanswered("AddPartitionsToTxn"),
                is_over=is_over,
            )
        except Failed as failed:
            settled = yield from self._settled(failed, transaction)
            if not is_over():
                self.fail(settled)
        except UnsupportedError as error:
            if not is_over():
                self.move(Event.FATAL, error)
        except KcodecError as error:
            # The records that wait for it have a deadline of their own, and end the transaction.
            log.warning("%s", error)
            yield from sleep(self.cluster.times.backoff(0, self.cluster.random.random()))
        else:
            transaction.added |= wanted
            transaction.wanted -= wanted

    def _seconds_to_warning(self) -> float | None:
        transaction = self.open
        is_open = self.state in {State.IN_TRANSACTION, State.COMMITTING}
        if transaction is None or not is_open or transaction.sent_at is None or transaction.is_warned:
            return None
        due = transaction.sent_at + WARNING_SHARE * self.transaction_timeout_ms / 1000
        return max(due - self.cluster.clock(), 0.0)

    def _warn_if_late(self, transaction: OpenTransaction) -> None:
        if self._seconds_to_warning() == 0.0:
            transaction.is_warned = True
            log.warning(
                "the transaction of %r has been open for %.0f %% of transaction_timeout_ms=%d: "
                "at 100 %% the coordinator aborts it",
                self.who,
                WARNING_SHARE * 100,
                self.transaction_timeout_ms,
            )

    def close_flow(self, timeout: float | None) -> Flow[None]:
        """The producer closes: what is open is aborted. Errors are logged, as nobody can act on them any more."""
        if self.state not in {State.IN_TRANSACTION, State.ABORTABLE_ERROR}:
            return
        log.info("%s: a transaction is open at close, it is aborted", self.who)
        try:
            yield from self.abort(timeout)
        except KcodecError as error:
            log.warning("the transaction that was open at close was not aborted: %s", error)
