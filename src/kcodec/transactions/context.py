# SPDX-License-Identifier: Apache-2.0
"""The shared state of the parts of one transactional producer: identity, state, and open transaction.

`TransactionManager` has the calls, `TransactionCompletion` the end of a transaction, `TransactionMaintenance` the
requests that no call waits for, and `BackgroundCommit` a commit in the background. Each of them has the context, and
only the context changes the state.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kcodec.errors import BrokerError, DeliveryTimeoutError, TransactionStateError, UnknownOutcomeError
from kcodec.flow import Flow, Signal
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.errors import Failed, TransactionDisposition, abortable
from kcodec.transactions.fencing import Ending
from kcodec.transactions.initialize import init_producer_id
from kcodec.transactions.markers import MarkerProbe
from kcodec.transactions.state import COMMITS, RAISES_KEPT_ERROR, Event, State, illegal, next_state
from kcodec.transactions.transaction import NEW_FLOW_LEVEL, ProducerTransaction

if TYPE_CHECKING:
    from kcodec.cluster.metadata import Cluster
    from kcodec.cluster.producer_id import ProducerIdAndEpoch
    from kcodec.producer.identity import BufferedRecords
    from kcodec.transactions.commit_result import CommitResult

log = logging.getLogger("kcodec.transactions")
_EVENTS = {
    TransactionDisposition.ABORT: Event.ABORTABLE,
    TransactionDisposition.FATAL: Event.FATAL,
    TransactionDisposition.UNCONFIRMED: Event.UNCONFIRMED,
    TransactionDisposition.INTERRUPTED: Event.INTERRUPTED,
    # Records were acknowledged, but the coordinator does not know of them.
    TransactionDisposition.EMPTY: Event.FATAL,
}


class ProducerContext:
    """The shared state of one transactional producer. All methods run on the I/O thread, or under the producer's lock.

    state, kept_error: See `kcodec.transactions.state`.
    producer:          The last (id, epoch), even if it must not be used any more.
    open:              The open transaction, or the last one. During a commit in the background, its transaction.
    following:         The transaction that has begun after this commit, until it is open or was aborted.
    commit_result:     The result of the last commit in the background.
    records:           The producer's core.
    changed:           Set when the state, or a condition for which a call waits, has changed.
    wake:              Set when the maintenance has work.
    is_epoch_spent:    Whether the epoch must not be used for another transaction.
    is_epoch_used:     Whether the epoch was used for a transaction.
    is_init_unconfirmed: Whether an InitProducerId got no response.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, transaction_timeout_ms: int, max_block: float) -> None:
        if not isinstance(transactional_id, str) or not transactional_id:
            raise ValueError(f"transactional_id must be a non-empty string, not {transactional_id!r}")
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.transaction_timeout_ms = transaction_timeout_ms
        self.max_block = max_block
        self.changed = Signal()
        self.wake = Signal()
        self.records: BufferedRecords | None = None
        self.state = State.UNINITIALIZED
        self.kept_error: BaseException | None = None
        self.producer: ProducerIdAndEpoch | None = None
        self.open: ProducerTransaction | None = None
        self.following: ProducerTransaction | None = None
        self.commit_result: CommitResult | None = None
        self.is_epoch_spent = self.is_epoch_used = self.is_init_unconfirmed = False
        self.markers = MarkerProbe(cluster, transactional_id)
        #: The errors of `send` by state, each until a call has raised it: every transaction passes through such states.
        self._refusals: dict[State, TransactionStateError] = {}
        self._name = f"the producer with transactional_id {transactional_id!r}"

    # States

    @property
    def level(self) -> int:
        """The level of transaction.version that the next transaction uses."""
        return min(self.cluster.transaction_version, NEW_FLOW_LEVEL)

    @property
    def newest(self) -> ProducerTransaction | None:
        """The transaction that the application has begun last."""
        return self.following or self.open

    def call(self, event: Event) -> None:
        """Begin a call of the application: change the state, or raise the kept error or TransactionStateError.

        If Ctrl-C in asyncio interrupts this, the call has not begun.
        """
        if event in RAISES_KEPT_ERROR.get(self.state, ()) and self.kept_error is not None:
            self.note_raised()
            raise self.kept_error.with_traceback(None)
        before = self.state, self.kept_error
        try:
            self.move(event)
        except (KeyboardInterrupt, SystemExit):
            self.state, self.kept_error = before
            self.announce()
            raise

    def note_raised(self) -> None:
        """Note that a call of the following transaction raised the error of the commit, which is therefore
        retrieved."""
        if self.commit_result is not None:
            self.commit_result.is_retrieved = True

    def move(self, event: Event, error: BaseException | None = None) -> None:
        """Change to the state to which the event leads. Store `error` if this state keeps an error."""
        before = self.state
        self.state = next_state(before, event, self._name)
        if self.state in RAISES_KEPT_ERROR:
            if error is not None and (self.state is not before or self.kept_error is None):
                self.kept_error = error
            self._note_lost()
        else:
            self.kept_error = None
        if before is State.BUFFERING and self.state is not before and self.records is not None:
            self.records.release_held()
        if self.state is not before:
            if log.isEnabledFor(logging.DEBUG):  # the names take longer than the rest
                log.debug("%s: %s -> %s (%s)", self.transactional_id, before.name, self.state.name, event.name)
            self.announce()

    def begin_at_once(self) -> ProducerTransaction | None:
        """Begin a transaction, with the producer's lock held. Return None if its epoch must be requested first."""
        last = self.open
        is_new_flow = self.level >= NEW_FLOW_LEVEL
        if self.state is not State.READY or self.producer is None:
            return None
        if last is not None and self.is_epoch_used and last.is_new_flow is not is_new_flow:
            return None
        transaction = ProducerTransaction(self.producer, is_new_flow)
        state = next_state(self.state, Event.BEGIN)
        self.open = transaction
        self.is_epoch_used = True
        self.state = state
        try:
            if self.records is not None:
                self.records.refuse_sends(None)
        except BaseException:  # such as that of Ctrl-C; the next begin aborts it
            transaction.is_abandoned = True
            raise
        return transaction

    def _note_lost(self) -> None:
        """Prevent the commit after an error, unless other processes have the handle, or an EndTxn is in flight."""
        transaction = self.open
        if transaction is None or transaction.is_shared or transaction.is_commit_unconfirmed:
            return
        for lost in (transaction, self.following):
            if lost is not None and lost.committed is None:
                lost.committed = False

    def announce(self) -> None:
        """Notify the sender, and `send`, of a new state."""
        if self.records is not None:
            self.records.refuse_sends(self._refusal())
        self.changed.set()
        self.wake.set()

    def _refusal(self) -> BaseException | None:
        if self.state in {State.IN_TRANSACTION, State.BUFFERING}:
            return None
        if Event.SEND in RAISES_KEPT_ERROR.get(self.state, ()):
            return self.kept_error
        if self.state not in self._refusals:
            self._refusals[self.state] = illegal(self.state, Event.SEND, self._name)
        return self._refusals[self.state]

    def note_refused(self, error: BaseException) -> None:
        """Note that `send` raised the error of `refuse_sends`. This may be called on any thread."""
        if error is self.kept_error:
            self.note_raised()
        for state in State:
            if self._refusals.get(state) is error:
                self._refusals.pop(state, None)  # which another thread may have done

    def aborted_before(self) -> TransactionStateError:
        """Return the error of a record that an abort drops."""
        return TransactionStateError(
            f"the transaction of {self.transactional_id!r} was aborted before this record was written",
            state=self.state.name,
            event=Event.SEND.name,
        )

    @property
    def now_open(self) -> ProducerTransaction:
        """The open transaction, in a state in which one exists."""
        if self.open is None:
            raise TransactionStateError(
                "no transaction has begun: call begin_transaction() first", state=self.state.name, event="SEND"
            )
        return self.open

    def note_sent(self, transaction: ProducerTransaction) -> None:
        """Note that a request of the transaction is sent, so that EndTxn is needed and the coordinator's time limit
        runs."""
        transaction.is_sent = True
        if transaction.sent_at is None:
            transaction.sent_at = self.cluster.clock()
            self.wake.set()

    def ending(self, transaction: ProducerTransaction) -> Ending:
        """Return the transaction in the form for the flows that end or investigate it."""

        def is_over_time(_: object) -> bool:
            return transaction.seconds_open(self.cluster.clock()) >= self.transaction_timeout_ms / 1000

        def on_no_response() -> None:
            transaction.is_end_unconfirmed = True
            transaction.is_commit_unconfirmed |= self.state in COMMITS
            self.note_no_response("EndTxn")

        return Ending(
            transactional_id=self.transactional_id,
            producer=transaction.producer,
            is_new_flow=transaction.is_new_flow,
            is_shared=transaction.is_shared,
            timeout_ms=self.transaction_timeout_ms,
            is_over_time=is_over_time,
            on_no_response=on_no_response,
            is_commit_unconfirmed=transaction.is_commit_unconfirmed,
            is_init_unconfirmed=self.is_init_unconfirmed,
            is_added=transaction.is_known,
        )

    def note_no_response(self, api: str) -> None:
        """Note a request that may have been sent and got no response. In the old flow a late copy could join the next
        transaction of the same epoch."""
        if self.open is not None and not self.open.is_new_flow and not self.is_epoch_spent:
            log.info(
                "%s: %s got no response, so the epoch is not used for another transaction", self.transactional_id, api
            )
            self.is_epoch_spent = True

    # Interruptions

    def interrupt_end(self, transaction: ProducerTransaction) -> None:
        """Note that a commit or an abort was cancelled."""
        if self.state is State.COMMITTING and transaction.is_end_unconfirmed:
            # A cancellation within the block aborts the transaction. A cancellation here looks the same to the program,
            # but the broker may commit the transaction. A commit in the background logs this itself.
            log.warning(
                "%s: the commit was interrupted after it was sent, and its outcome is unknown: the transaction may be "
                "committed, aborted or still open. If it is still open, the producer aborts it before its next "
                "transaction begins",
                self.transactional_id,
            )
        if self.state in COMMITS or self.state is State.ABORTING:
            event = Event.UNCONFIRMED if transaction.is_end_unconfirmed else Event.INTERRUPTED
            if self.state is State.ABORTING and transaction.is_end_unconfirmed:
                transaction.note_abort_unconfirmed()
            self.move(event, self.blocked("its end was interrupted"))

    def note_interruption(self, transaction: ProducerTransaction) -> None:
        """Note that Ctrl-C in asyncio has interrupted a commit or an abort in progress. If it had begun to send EndTxn,
        the outcome is unknown."""
        if self.state in COMMITS or self.state is State.ABORTING:
            if transaction.is_end_begun:
                transaction.is_end_unconfirmed = True
                transaction.is_commit_unconfirmed |= self.state in COMMITS
            self.interrupt_end(transaction)

    # The identity

    def renew_epoch(self, timeout: float | None = None) -> Flow[None]:
        """Send InitProducerId. Raise Failed, or KcodecError if it got no response."""
        self.producer = yield from init_producer_id(
            self.cluster,
            self.transactional_id,
            self.transaction_timeout_ms,
            self.producer,
            self.deadline(timeout),
            self._note_init_unconfirmed,
            is_init_unconfirmed=self.is_init_unconfirmed,
        )
        self.is_epoch_spent = self.is_epoch_used = False

    def _note_init_unconfirmed(self) -> None:
        self.is_init_unconfirmed = True

    def deadline(self, timeout: float | None) -> float:
        """Return the deadline of a call with this timeout in seconds. None stands for `max_block`."""
        return self.cluster.clock() + (self.max_block if timeout is None else timeout)

    def left(self, deadline: float) -> float:
        """Return the seconds until the deadline."""
        return max(deadline - self.cluster.clock(), 0.0)

    # Errors

    def fail(self, failed: Failed) -> None:
        """Change the state after a failure. The caller has already resolved INVESTIGATE."""
        error = failed.error
        if (
            failed.disposition is TransactionDisposition.FATAL
            and isinstance(error, UnknownOutcomeError)
            and error.__cause__
        ):
            # This call reports that the outcome is unknown. All later calls report why the producer can no longer be
            # used.
            error = error.__cause__
        self.move(_EVENTS[failed.disposition], error)

    def blocked(self, why: str) -> BrokerError:
        """Return the error of a transaction that can only be aborted."""
        text = f"the transaction of {self.transactional_id!r} cannot be committed: {why}"
        return abortable(text, ErrorCode.REQUEST_TIMED_OUT, self.transactional_id)

    def advise(self, error: BaseException) -> None:
        """Set the remedy of the error of a late call, after which the transaction can only be aborted."""
        if isinstance(error, DeliveryTimeoutError) and self.state is State.ABORTABLE_ERROR:
            error.remedy = "abort"

    def give_up(self, why: str) -> None:
        """Note that a call ended without a result: the transaction can only be aborted."""
        if self.state is State.IN_TRANSACTION:
            self.move(Event.ABORTABLE, self.blocked(why))
