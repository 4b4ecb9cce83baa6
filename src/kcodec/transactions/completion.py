# SPDX-License-Identifier: Apache-2.0
"""The end of a transaction: wait for its requests, send EndTxn, and change the state according to the outcome."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kcodec.end_limits import ABORT_SECONDS
from kcodec.errors import DeliveryTimeoutError, KcodecError, ProducerFencedError, UnknownOutcomeError
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
#: Share of the time of a producer's last abort in which requests in flight may get their responses.
FLUSH_SHARE = 0.5
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
        with self._interruptible():
            context.call(Event.COMMIT)
            if is_repeat:
                yield from self._end(context.now_open, is_commit=True, deadline=deadline)
            else:
                yield from self._flush_and_commit(context.now_open, deadline)

    def complete_commit(self, transaction: ProducerTransaction, deadline: float) -> Flow[None]:
        """Flush and send EndTxn for a commit in the background, in one of the states of COMMITS."""
        with self._interruptible(transaction):
            yield from self._flush_and_commit(transaction, deadline)

    def _flush_and_commit(self, transaction: ProducerTransaction, deadline: float) -> Flow[None]:
        context = self._context
        yield from self.flush(transaction, deadline)
        if context.state not in COMMITS:
            assert context.kept_error is not None
            raise context.kept_error.with_traceback(None)
        yield from self._end(transaction, is_commit=True, deadline=deadline)

    def abort(self, timeout: float | None = None, *, is_last: bool = False) -> Flow[None]:
        """Drop records that are not sent, wait for requests in flight, then send EndTxn. Raise a fatal error again.

        is_last: Whether the producer ends, see `_flush_at_end`.
        """
        context = self._context
        deadline = context.deadline(timeout)
        if context.state in {State.BUFFERING, State.ABORTABLE_ERROR}:
            # A commit that has failed because of a record still waits for the other records, and must see its own
            # state.
            yield from self._background.until_ended(deadline)
        if context.state is State.DISCARDED:
            self._background.discard()
            return
        try:
            with self._interruptible():
                context.call(Event.ABORT)
                transaction = context.now_open
                if context.records is not None:
                    context.records.abort_buffered(context.aborted_before())
                yield from (self._flush_at_end if is_last else self.flush)(transaction, deadline)
                yield from self._end(transaction, is_commit=False, deadline=deadline)
        finally:
            if context.state not in TO_ABORT:
                context.following = None

    def flush(self, transaction: ProducerTransaction, deadline: float) -> Flow[None]:
        """Wait until no request of the transaction is in flight."""
        context = self._context
        try:
            yield from self._until_landed(transaction, deadline)
        except DeliveryTimeoutError as error:
            if context.state in _FLUSHING:
                context.move(Event.INTERRUPTED, context.blocked(f"records were not acknowledged yet: {error}"))
            raise

    def _flush_at_end(self, transaction: ProducerTransaction, deadline: float) -> Flow[None]:
        """Wait as `flush` before the abort with which a producer ends. In the new flow (KIP-890), wait for a part of
        the time only, because an open transaction blocks read_committed consumers. EndTxn bumps the epoch, so that a
        broker refuses requests that arrive later, and no retry follows."""
        if not transaction.is_new_flow:
            yield from self.flush(transaction, deadline)
            return
        clock = self._context.cluster.clock
        try:
            yield from self._until_landed(transaction, clock() + FLUSH_SHARE * self._context.left(deadline))
        except DeliveryTimeoutError as error:
            log.info("the transaction is aborted while requests are in flight: %s", error)

    def _until_landed(self, transaction: ProducerTransaction, deadline: float) -> Flow[None]:
        """Wait until no request of the transaction is in flight. Raise DeliveryTimeoutError at the deadline."""
        context = self._context
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

    def _end(self, transaction: ProducerTransaction, *, is_commit: bool, deadline: float) -> Flow[None]:
        """Send EndTxn if necessary, and change the state according to the outcome."""
        context = self._context
        following: ProducerIdAndEpoch | None = transaction.producer
        if transaction.is_sent:
            transaction.is_end_begun = True
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
                transaction.is_end_begun = False
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
    def _interruptible(self, transaction: ProducerTransaction | None = None) -> Iterator[None]:
        """If the end in this block is cancelled, note this in the state, and raise UnknownOutcomeError if a commit was
        sent. If it is late, note this in its error.

        transaction: The transaction of a commit in the background. None: the open transaction, which a call in this
                     block ends.
        """
        context = self._context
        before = context.state
        try:
            yield
        except GeneratorExit:
            is_commit = context.state is State.COMMITTING
            transaction = transaction or context.now_open
            context.interrupt_end(transaction)
            if is_commit and transaction.is_commit_unconfirmed:
                # The client is closed while another caller waits for the commit.
                raise UnknownOutcomeError(
                    f"the commit of {context.transactional_id!r} was interrupted after it was sent: its outcome is "
                    "unknown, and the transaction may be committed, aborted or still open",
                    possibly_sent=True,
                ) from None
            raise
        except (KeyboardInterrupt, SystemExit):  # in asyncio, a Ctrl-C can interrupt this code anywhere
            if transaction is not None or context.state is not before:  # otherwise, the call has not begun
                context.note_interruption(transaction or context.now_open)
            raise
        except DeliveryTimeoutError as late:
            context.advise(late)
            raise

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
            yield from self._repeat_abort(ABORT_SECONDS if deadline is None else context.left(deadline))
            return
        timeout = None if deadline is None else context.left(deadline)
        log.info("%s: close aborts the open transaction", context.transactional_id)
        try:
            yield from self.abort(timeout, is_last=True)
        except KcodecError as error:
            log.warning("close could not abort the open transaction: %s", error)

    @property
    def has_open(self) -> bool:
        """Whether a commit or an abort is in progress or not confirmed, or a transaction is open whose handle was not
        read."""
        context = self._context
        if context.state in COMMITS or context.state is State.ABORTING or self._is_abort_unconfirmed:
            return True
        return context.state in TO_ABORT and context.open is not None and not context.open.is_shared

    def end_unclosed(self, name: str, commit_seconds: float, abort_seconds: float) -> Flow[None]:
        """End the transaction of a producer that the program has not closed, because an open transaction blocks
        read_committed consumers. If a commit or an abort is in progress, wait for its end. Otherwise, abort the
        transaction, and never commit it. Log errors, but not if another producer has taken over the transactional id.

        name:           The producer in log lines.
        commit_seconds: Maximum time for a commit or an abort in progress.
        abort_seconds:  Maximum time for the abort.
        """
        context = self._context
        deadline = context.deadline(commit_seconds)
        yield from self._background.end_at_close(deadline)
        yield from self._until_call_ends(deadline)
        has_records = context.state in TO_ABORT and self.has_open and self._has_records
        is_aborted = yield from self.abort_at_once(abort_seconds)
        if has_records and is_aborted:
            log.warning(
                "%s was not closed, and its open transaction was aborted: no read_committed reader will get its "
                "records",
                name,
            )

    @property
    def _has_records(self) -> bool:
        """Whether the transaction that can only be aborted contains records or offsets. In the state DISCARDED, the
        transaction before it was sent, and its commit has an unknown outcome."""
        context = self._context
        is_sent = context.state is not State.DISCARDED and context.now_open.is_sent
        return is_sent or (context.records is not None and context.records.has_unfinished)

    def abort_at_once(self, timeout: float) -> Flow[bool]:
        """Abort an open transaction if the producer is not closed, or if its close was interrupted. Return whether the
        abort succeeded. Log errors, but not if another producer has taken over the transactional id."""
        context = self._context
        if context.state not in TO_ABORT or not self.has_open:
            return (yield from self._repeat_abort(timeout))
        try:
            yield from self.abort(timeout, is_last=True)
        except ProducerFencedError as error:
            log.info("the open transaction was not aborted: %s", error)
        except KcodecError as error:
            self._warn_of_open(error)
        else:
            return True
        return False

    def _warn_of_open(self, error: BaseException) -> None:
        context = self._context
        log.warning(
            "%s: the open transaction could not be aborted. If it is still open, the coordinator aborts it after "
            "transaction_timeout_ms=%d: %s",
            context.transactional_id,
            context.transaction_timeout_ms,
            error,
        )

    @property
    def _is_abort_unconfirmed(self) -> bool:
        context = self._context
        return context.state is State.UNINITIALIZED and context.open is not None and context.open.is_abort_unconfirmed

    def _repeat_abort(self, timeout: float) -> Flow[bool]:
        """If the last abort got no response, for example because the call was interrupted, send EndTxn again when the
        producer ends. Return whether the abort is now confirmed. Do not send InitProducerId, because the coordinator
        would abort the transaction of another producer that has taken over the transactional id."""
        if not self._is_abort_unconfirmed:
            return False
        context = self._context
        deadline = context.deadline(min(timeout, ABORT_SECONDS))
        try:
            yield from self._send_end(context.now_open, False, deadline)
        except (Failed, KcodecError) as error:
            why = error.error if isinstance(error, Failed) else error
            if isinstance(why, ProducerFencedError):
                log.info("the open transaction was not aborted: %s", why)
            else:
                self._warn_of_open(why)
            return False
        context.now_open.is_abort_unconfirmed = False
        return True
