# SPDX-License-Identifier: Apache-2.0
"""A commit in the background (commit_transaction_async), and the transaction that begins before it has ended.

The records of the following transaction stay in the buffer, in separate batches, until EndTxn has succeeded. Only then
do its producer id and epoch exist. An error of the commit also ends the following transaction, because the application
began it on the assumption that the commit succeeds. Rules:

- Only one commit is in progress at a time. `commit_async` raises TransactionStateError until the last one has ended.
- Calls of the following transaction that need the outcome (offsets, commit, abort, release) wait for it.
- If the commit succeeds, the following transaction becomes an ordinary open transaction, and its records are sent.
- If the commit fails, records of the following transaction fail with the error of the commit, and its calls raise this
  error. Its abort also ends the transaction that the commit has left open. Without an outcome (UnknownOutcomeError) the
  following transaction is DISCARDED: its `commit` must not repeat the EndTxn of the one before.
- An error that no caller has retrieved is raised by the next begin, or by the close of the producer. If the outcome is
  unknown, a `commit` raises it, too, and only the next `commit` repeats the EndTxn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kcodec.errors import DeliveryTimeoutError, KcodecError, TransactionStateError, TransportError, UnknownOutcomeError
from kcodec.flow import CancelledFlow, Flow, InterruptedFlow, Task, spawn, wait
from kcodec.transactions.errors import Failed
from kcodec.transactions.state import TO_ABORT, Event, State
from kcodec.transactions.transaction import NEW_FLOW_LEVEL, ProducerTransaction

if TYPE_CHECKING:
    from kcodec.transactions.commit_result import CommitResult
    from kcodec.transactions.context import ProducerContext

log = logging.getLogger("kcodec.transactions")
#: Flushes and sends EndTxn for a transaction, until a deadline.
CompleteCommit = Callable[[ProducerTransaction, float], Flow[None]]
#: How a program gets the outcome of an interrupted commit.
_ADVICE = {
    State.UNKNOWN_OUTCOME: "; call commit_transaction to get it",
    State.DISCARDED: "; abort the next transaction, and then call commit_transaction to get it",
}


class BackgroundCommit:
    """The commit in the background of one producer, if one is in progress. All methods run on the I/O thread.

    refusal: Reason why this producer cannot commit in the background; None if it can.
    """

    def __init__(self, context: ProducerContext) -> None:
        self.refusal: str | None = None
        self._context = context
        self._task: Task[None] | None = None
        self._failure: BaseException | None = None

    # The commit

    def begin(self, result: CommitResult, deadline: float, complete: CompleteCommit) -> Flow[None]:
        """Begin the commit of the open transaction with `complete`. `result` gets its outcome."""
        context = self._context
        if self._task is not None:
            raise self._illegal("the previous commit is in progress: wait for its result first")
        if self.refusal is not None:
            raise self._illegal(self.refusal)
        if context.state is State.IN_TRANSACTION and context.now_open.is_shared:
            raise self._illegal("other processes may have the handle of the transaction: use commit_transaction")
        context.call(Event.COMMIT_ASYNC)
        transaction = context.open
        assert transaction is not None
        flow = complete(transaction, deadline)
        try:
            # InitProducerId may follow (old flow), with the same limit.
            result.deadline = deadline + context.max_block
            context.commit_result = result
            self._task = yield from spawn(flow, "commit in the background")
            self._task.when_done(partial(self._note_end, transaction, result))
        except (GeneratorExit, KeyboardInterrupt, SystemExit):  # in asyncio; the caller does not get the result
            flow.close()
            result.is_retrieved = True
            context.note_interruption(transaction)
            self._end(transaction, result, _without_end(transaction, result.name, context.state, is_closed=False))
            raise

    def _illegal(self, why: str) -> TransactionStateError:
        context = self._context
        name = f"the producer with transactional_id {context.transactional_id!r}"
        text = f"commit_transaction_async is not possible for {name}: {why}"
        return TransactionStateError(text, state=context.state.name, event=Event.COMMIT_ASYNC.name)

    def _note_end(self, transaction: ProducerTransaction, result: CommitResult, task: Task[None]) -> None:
        """Note that the commit has ended. If Ctrl-C in asyncio interrupts this, the task calls it again."""
        error = task.error
        if isinstance(error, CancelledFlow | InterruptedFlow):
            context = self._context
            context.note_interruption(transaction)  # its flow has not, if it was interrupted at its first line
            is_closed = isinstance(error, CancelledFlow)
            error = _without_end(transaction, result.name, context.state, is_closed=is_closed)
            error.__cause__ = task.error
        self._end(transaction, result, error)

    def _end(self, transaction: ProducerTransaction, result: CommitResult, error: BaseException | None) -> None:
        """Note the outcome, once or again."""
        if error is not None and not transaction.committed and not result.done():
            # At the exit of the interpreter, nothing else reports it.
            log.warning("%s: the commit in the background failed: %s", result.name, error)
        self._task = None
        result.finish(None if transaction.committed else error)
        self._context.changed.set()

    def until_ended(self, deadline: float, *, is_repeatable: bool = True) -> Flow[None]:
        """Wait until the commit has ended, with success or not. Raise DeliveryTimeoutError at the deadline.

        is_repeatable: Whether the call can be repeated then. Otherwise, its transaction can only be aborted.
        """
        context = self._context
        while self._task is not None:
            left = deadline - context.cluster.clock()
            if left <= 0:
                raise DeliveryTimeoutError(
                    f"the commit in the background of {context.transactional_id!r} did not end before the timeout of "
                    f"the call, which needs its outcome; {'call again' if is_repeatable else 'abort the transaction'}",
                    remedy="retry" if is_repeatable else "abort",
                )
            yield from wait(context.changed, left)

    def until_open(self, deadline: float, *, is_repeatable: bool = True) -> Flow[None]:
        """If another transaction has begun after the commit, wait for the commit, because the next call of that
        transaction needs the outcome. Otherwise the same as `until_ended`."""
        if self._context.state is State.BUFFERING:
            yield from self.until_ended(deadline, is_repeatable=is_repeatable)

    def end_at_close(self, deadline: float | None) -> Flow[None]:
        """When the producer closes, wait for the commit. Cancel it at the deadline."""
        context = self._context
        while self._task is not None:
            left = None if deadline is None else deadline - context.cluster.clock()
            if left is not None and left <= 0:
                log.warning("%s: close does not wait any longer for the commit", context.transactional_id)
                self._task.cancel()
                return
            yield from wait(context.changed, left)

    @property
    def is_over(self) -> bool:
        """Whether no commit is in progress, and a caller has retrieved the error of the last one, if any. Any thread
        may read this."""
        result = self._context.commit_result
        return self._task is None and (result is None or result.unretrieved is None)

    def forget(self, error: BaseException) -> None:
        """In a forked child: end the commit there with `error`."""
        if self._context.commit_result is not None:
            self._context.commit_result.forget_all(error)

    def take_unretrieved(self, remedy: str = "recreate") -> BaseException | None:
        """Return the error of the last commit if no caller has retrieved it. It then counts as retrieved.

        remedy: Replaces "abort" in the error if the transaction has been aborted meanwhile, because the caller then has
                nothing to abort. The default is for a producer that is closed.
        """
        result = self._context.commit_result
        if result is None or result.unretrieved is None:
            return None
        error = result.retrieved()
        if isinstance(error, KcodecError) and error.remedy == "abort" and self._context.state not in TO_ABORT:
            error.remedy = remedy
        return error

    def raise_unretrieved(self) -> None:
        """Raise the error of the last commit if no caller has retrieved it, in a call that can be repeated."""
        error = self.take_unretrieved("retry")
        if error is not None:
            raise error.with_traceback(None)

    # The transaction after it

    def begin_following(self, *, is_new_flow: bool) -> ProducerTransaction:
        """Begin the next transaction while the commit is in progress."""
        context = self._context
        assert context.commit_result is not None and context.producer is not None and context.records is not None
        following = context.following = ProducerTransaction(context.producer, is_new_flow)
        self._failure = None
        try:
            context.records.hold_back(context.commit_result.deadline)
            context.call(Event.BEGIN)
        except BaseException:  # such as that of Ctrl-C; the call has not begun
            context.following = None
            context.records.release_held()
            raise
        return following

    def fail_following(self, error: BaseException) -> None:
        """Note that the following transaction can only be aborted, whatever the outcome of the commit."""
        context = self._context
        if self._failure is None and context.records is not None:
            self._failure = error
            context.records.refuse_sends(error)

    def open_following(self, *, is_epoch_spent: bool) -> Flow[None]:
        """After the commit: continue with the following transaction, which has the next epoch."""
        context = self._context
        following = context.following
        assert following is not None
        is_new_flow = context.level >= NEW_FLOW_LEVEL
        failure: BaseException | None = None
        if is_epoch_spent or following.is_new_flow is not is_new_flow:
            try:
                yield from context.renew_epoch()
            except Failed as failed:
                context.move(Event.FATAL, failed.error)
                return
            except KcodecError as error:
                context.is_epoch_spent = True
                failure = error
                if isinstance(error, DeliveryTimeoutError):
                    error.remedy = "abort"  # the following transaction cannot get another epoch any more
        assert context.producer is not None
        following.producer, following.is_new_flow = context.producer, is_new_flow
        context.open, context.following = following, None
        context.is_epoch_used = True
        failure, self._failure = failure or self._failure, None
        context.move(Event.COMMITTED)
        if failure is not None:
            context.move(Event.ABORTABLE, failure)

    def discard(self) -> None:
        """Abort the following transaction, after a commit whose outcome is unknown."""
        context = self._context
        if context.records is not None and context.kept_error is not None:
            context.records.abort_buffered(context.kept_error)
        if context.following is not None:
            context.following.committed = False
        context.following = None
        context.move(Event.ABORT)


def _without_end(
    transaction: ProducerTransaction, transactional_id: str, state: State, *, is_closed: bool
) -> TransportError:
    """Return the error of a commit that did not end, because the producer was closed or because of Ctrl-C.

    state: State of the producer after it.
    """
    if not transaction.is_commit_unconfirmed:
        if is_closed:
            return TransportError(f"the producer was closed before the commit of {transactional_id!r} was sent")
        return TransportError(
            f"the commit of {transactional_id!r} was interrupted before it was sent; abort the transaction",
            remedy="abort",
        )
    if is_closed:
        text = f"the producer was closed during the commit of {transactional_id!r}: the outcome is unknown"
    else:
        advice = _ADVICE.get(state, "")
        text = f"the commit of {transactional_id!r} was interrupted: the outcome is unknown{advice}"
    return UnknownOutcomeError(text, possibly_sent=True)
