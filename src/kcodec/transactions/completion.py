# SPDX-License-Identifier: Apache-2.0
"""The end of a transaction: wait for its requests, send EndTxn, and change the state according to the outcome."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kcodec.errors import DeliveryTimeoutError, KcodecError, UnknownOutcomeError
from kcodec.flow import Flow, wait
from kcodec.transactions.end import end_transaction
from kcodec.transactions.errors import Failed, TransactionDisposition
from kcodec.transactions.state import COMMITS, TO_ABORT, Event, State
from kcodec.transactions.transaction import NEW_FLOW_LEVEL, ProducerTransaction

if TYPE_CHECKING:
    from kcodec.cluster.producer_id import ProducerIdAndEpoch
    from kcodec.transactions.background import BackgroundCommit
    from kcodec.transactions.context import ProducerContext

log = logging.getLogger("kcodec.transactions")
#: States in which a call waits for the records that are under way.
_FLUSHING = frozenset({*COMMITS, State.ABORTING, State.RELEASING})
#: States in which a call other than a commit in the background ends the transaction.
_ENDING = frozenset({State.COMMITTING, State.ABORTING, State.RELEASING})


class TransactionCompletion:
    """Commits and aborts the transactions of one producer; `background` opens the transaction after a commit."""

    def __init__(self, context: ProducerContext, background: BackgroundCommit) -> None:
        self._context = context
        self._background = background

    def commit(self, timeout: float | None = None) -> Flow[None]:
        """Flush, then send EndTxn. A call after UnknownOutcomeError repeats the same EndTxn. If a commit in the
        background ended with this error and no caller has retrieved it, raise it first.

        Raise the error that blocks the commit (a failed record names its partition), DeliveryTimeoutError if EndTxn was
        not sent, UnknownOutcomeError if it was sent and got no response.
        """
        context = self._context
        deadline = context.deadline(timeout)
        yield from self._background.until_open(deadline)
        is_repeat = context.state is State.UNKNOWN_OUTCOME
        if is_repeat:
            self._background.raise_unretrieved()
        context.call(Event.COMMIT)
        yield from self.complete_commit(context.now_open, deadline, is_repeat=is_repeat)

    def complete_commit(
        self, transaction: ProducerTransaction, deadline: float, *, is_repeat: bool = False
    ) -> Flow[None]:
        """Flush and send EndTxn, in one of the states of COMMITS."""
        context = self._context
        with self._interruptible(transaction):
            if not is_repeat:
                yield from self.flush(transaction, deadline)
                if context.state not in COMMITS:
                    assert context.kept_error is not None
                    raise context.kept_error.with_traceback(None)
            yield from self._end(transaction, is_commit=True, deadline=deadline)

    def abort(self, timeout: float | None = None) -> Flow[None]:
        """Drop records that are not sent, wait for requests in flight, then send EndTxn. Raise a fatal error again."""
        context = self._context
        deadline = context.deadline(timeout)
        if context.state in {State.BUFFERING, State.ABORTABLE_ERROR}:
            # A commit that has failed because of a record still waits for the other records, and must see its own
            # state.
            yield from self._background.until_ended(deadline)
        if context.state is State.DISCARDED:
            self._background.discard()
            return
        context.call(Event.ABORT)
        transaction = context.now_open
        try:
            with self._interruptible(transaction):
                if context.records is not None:
                    context.records.abort_buffered(context.aborted_before())
                yield from self.flush(transaction, deadline)
                yield from self._end(transaction, is_commit=False, deadline=deadline)
        finally:
            if context.state not in TO_ABORT:
                context.following = None

    def flush(self, transaction: ProducerTransaction, deadline: float) -> Flow[None]:
        """Wait until no request of the transaction is in flight."""
        context = self._context
        try:
            if context.records is not None:
                yield from context.records.flush(context.left(deadline), without_held=True)
            while transaction.requests:
                left = deadline - context.cluster.clock()
                if left <= 0:
                    raise DeliveryTimeoutError(
                        f"a request of the transaction of {context.transactional_id!r} got no response before the "
                        "timeout of the call"
                    )
                yield from wait(context.changed, left)
        except DeliveryTimeoutError as error:
            if context.state in _FLUSHING:
                context.move(Event.INTERRUPTED, context.blocked(f"records were not acknowledged yet: {error}"))
            raise

    def _end(self, transaction: ProducerTransaction, *, is_commit: bool, deadline: float) -> Flow[None]:
        """Send EndTxn if necessary, and change the state according to the outcome."""
        context = self._context
        following: ProducerIdAndEpoch | None = transaction.producer
        if transaction.is_sent:
            try:
                following = yield from self._send_end(transaction, is_commit, deadline)
            except Failed as failed:
                if failed.disposition is TransactionDisposition.UNCONFIRMED and not is_commit:
                    transaction.committed = False
                    transaction.note_abort_unconfirmed()
                if failed.is_committed:
                    transaction.committed = True
                    context.move(Event.ENDED_EPOCH_SPENT)
                else:
                    context.fail(failed)
                raise failed.error from None
        transaction.committed = is_commit
        context.producer = following or context.producer
        if transaction.is_sent and transaction.is_new_flow:
            context.markers.expect()
        is_old_and_shared = transaction.is_shared and not transaction.is_new_flow
        is_spent = following is None or context.is_epoch_spent or is_old_and_shared
        if context.state is State.BUFFERING:
            yield from self._background.open_following(is_epoch_spent=is_spent)
        elif is_spent:
            context.move(Event.ENDED_EPOCH_SPENT)
        else:
            context.move(Event.COMMITTED if is_commit else Event.ABORTED)

    def _send_end(
        self, transaction: ProducerTransaction, is_commit: bool, deadline: float
    ) -> Flow[ProducerIdAndEpoch | None]:
        context = self._context
        ending = context.ending(transaction)
        if transaction.is_new_flow and context.cluster.transaction_version < NEW_FLOW_LEVEL:
            # Below that level a coordinator responds to EndTxn of the new flow with UNSUPPORTED_VERSION, and to each
            # request after it with CONCURRENT_TRANSACTIONS.
            if is_commit:
                why = "transaction.version was lowered while it was open"
                raise Failed(TransactionDisposition.ABORT, context.blocked(why))
            return None
        try:
            return (yield from end_transaction(context.cluster, ending, is_commit, deadline))
        except Failed as failed:
            if failed.disposition is not TransactionDisposition.EMPTY or transaction.receipt or transaction.groups:
                raise
        # A shared transaction to which no writer has written. The abort bumps the epoch, so that a late writer is
        # refused and cannot write to the next transaction.
        log.info("%s: no writer wrote to the shared transaction; there is nothing to commit", context.transactional_id)
        return (yield from end_transaction(context.cluster, ending, False, deadline))

    @contextmanager
    def _interruptible(self, transaction: ProducerTransaction) -> Iterator[None]:
        """If the end in this block is cancelled, note this in the state, and raise UnknownOutcomeError if a commit was
        sent. If it is late, note this in its error."""
        context = self._context
        try:
            yield
        except GeneratorExit:
            is_commit = context.state is State.COMMITTING
            self._interrupt_end(transaction)
            if is_commit and transaction.is_commit_unconfirmed:
                # The client is closed while another caller waits for the commit.
                raise UnknownOutcomeError(
                    f"the commit of {context.transactional_id!r} was interrupted after it was sent: its outcome is "
                    "unknown, and the transaction may be committed, aborted or still open",
                    possibly_sent=True,
                ) from None
            raise
        except DeliveryTimeoutError as late:
            context.advise(late)
            raise

    def _interrupt_end(self, transaction: ProducerTransaction) -> None:
        """Note that a commit or an abort was cancelled."""
        context = self._context
        if context.state is State.COMMITTING and transaction.is_end_unconfirmed:
            # A cancellation within the block aborts the transaction. A cancellation here looks the same to the program,
            # but the broker may commit the transaction. A commit in the background logs this itself.
            log.warning(
                "%s: the commit was interrupted after it was sent, and its outcome is unknown: the transaction may be "
                "committed, aborted or still open. If it is still open, the producer aborts it before its next "
                "transaction begins",
                context.transactional_id,
            )
        if context.state in COMMITS or context.state is State.ABORTING:
            event = Event.UNCONFIRMED if transaction.is_end_unconfirmed else Event.INTERRUPTED
            if context.state is State.ABORTING and transaction.is_end_unconfirmed:
                transaction.note_abort_unconfirmed()
            context.move(event, context.blocked("its end was interrupted"))

    def _until_call_ends(self, deadline: float | None) -> Flow[None]:
        """When the producer closes, wait for a commit, an abort or a release of another caller."""
        context = self._context
        while context.state in _ENDING:
            left = None if deadline is None else context.left(deadline)
            if left == 0.0:
                log.warning(
                    "%s: close does not wait any longer for the end of the transaction (%s)",
                    context.transactional_id,
                    context.state.name,
                )
                return
            yield from wait(context.changed, left)

    def close(self, timeout: float | None) -> Flow[None]:
        """Wait for the end of a transaction in progress, and abort an open transaction, when the producer closes. Log
        errors of this abort, because no caller can handle them any more."""
        context = self._context
        deadline = None if timeout is None else context.deadline(timeout)
        yield from self._background.end_at_close(deadline)
        yield from self._until_call_ends(deadline)
        if context.state not in TO_ABORT:
            return
        timeout = None if deadline is None else context.left(deadline)
        log.info("%s: close aborts the open transaction", context.transactional_id)
        try:
            yield from self.abort(timeout)
        except KcodecError as error:
            log.warning("close could not abort the open transaction: %s", error)
