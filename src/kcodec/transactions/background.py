# SPDX-License-Identifier: Apache-2.0
"""A commit in the background (commit_transaction_async), and the transaction that begins before it has ended.

The records of that following transaction stay in the buffer, in batches of their own, until EndTxn has succeeded: only
then do its producer id and epoch exist, and an error of the commit concerns the following transaction, too, as the
application has built it on the success of the commit. Rules:

- One commit is under way at a time. `commit_async` raises TransactionStateError until the last one has ended.
- Calls of the following transaction that need the outcome (offsets, commit, abort, release) wait for it.
- If the commit succeeds, the following transaction is open as any other, and its records are sent.
- If the commit fails, records of the following transaction fail with the error of the commit, its calls raise that
  error, and its abort also ends what the commit has left open. Without an outcome (UnknownOutcomeError) the following
  transaction is DISCARDED: its `commit` must not repeat the EndTxn of the one before.
- An error that no caller has retrieved is raised by the next begin, or by the close of the producer. If the outcome is
  unknown, a `commit` raises it, too, and only the next `commit` repeats the EndTxn.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from kcodec.errors import DeliveryTimeoutError, KcodecError, TransactionStateError, TransportError, UnknownOutcomeError
from kcodec.flow import Flow, Task, spawn, wait
from kcodec.transactions.errors import Failed
from kcodec.transactions.state import TO_ABORT, Event, State
from kcodec.transactions.transaction import NEW_FLOW_LEVEL, ProducerTransaction

if TYPE_CHECKING:
    from kcodec.cluster.metadata import Cluster
    from kcodec.cluster.values import ProducerIdAndEpoch
    from kcodec.flow import Signal
    from kcodec.producer.identity import BufferedRecords
    from kcodec.transactions.commit_result import CommitResult

log = logging.getLogger("kcodec.transactions")


class Committer(Protocol):
    """What a commit in the background needs of its `kcodec.transactions.manager.TransactionManager`."""

    cluster: Cluster
    transactional_id: str
    max_block: float
    records: BufferedRecords | None
    changed: Signal
    state: State
    kept_error: BaseException | None
    producer: ProducerIdAndEpoch | None
    open: ProducerTransaction | None
    is_epoch_spent: bool
    is_epoch_used: bool

    @property
    def level(self) -> int:
        """The level of transaction.version that the next transaction uses."""
        ...

    @property
    def now_open(self) -> ProducerTransaction:
        """The transaction of a state that has one."""
        ...

    def call(self, event: Event) -> None:
        """Begin a call of the application."""
        ...

    def move(self, event: Event, error: BaseException | None = None) -> None:
        """Change to the state that the event leads to."""
        ...

    def renew_epoch(self, timeout: float | None = None) -> Flow[None]:
        """Send InitProducerId."""
        ...

    def complete_commit(self, transaction: ProducerTransaction, deadline: float, *, is_repeat: bool) -> Flow[None]:
        """Flush and send EndTxn."""
        ...


class BackgroundCommit:
    """The commit of one manager that is under way, if any. All methods run on the I/O thread.

    following: the transaction that has begun after it, until it is open, or was aborted.
    refusal:   why this producer has no commits in the background; None if it has.
    """

    def __init__(self, manager: Committer) -> None:
        self.following: ProducerTransaction | None = None
        self.refusal: str | None = None
        self._manager = manager
        self._task: Task[None] | None = None
        self._result: CommitResult | None = None
        self._failure: BaseException | None = None

    # The commit

    def begin(self, result: CommitResult, deadline: float) -> Flow[None]:
        """Begin the commit of the open transaction; `result` gets its outcome."""
        manager = self._manager
        if self._task is not None:
            raise self._illegal("the last commit is still under way: wait for its result first")
        if self.refusal is not None:
            raise self._illegal(self.refusal)
        if manager.state is State.IN_TRANSACTION and manager.now_open.is_shared:
            raise self._illegal("other processes may have the handle of the transaction: use commit_transaction")
        manager.call(Event.COMMIT_ASYNC)
        # InitProducerId may follow (old flow), with the same limit.
        result.deadline = deadline + manager.max_block
        self._result = result
        self._task = yield from spawn(self._run(manager.now_open, result, deadline), "commit in the background")

    def _illegal(self, why: str) -> TransactionStateError:
        manager = self._manager
        name = f"the producer with transactional_id {manager.transactional_id!r}"
        text = f"commit_transaction_async is not possible for {name}: {why}"
        return TransactionStateError(text, state=manager.state.name, event=Event.COMMIT_ASYNC.name)

    def _run(self, transaction: ProducerTransaction, result: CommitResult, deadline: float) -> Flow[None]:
        error: BaseException | None = TransportError("the producer was closed before the commit was sent")
        try:
            yield from self._manager.complete_commit(transaction, deadline, is_repeat=False)
            error = None
        except KcodecError as failed:
            error = failed
            log.warning("%s: the commit in the background failed: %s", result.name, failed)
        except GeneratorExit:
            if transaction.is_commit_unconfirmed:
                text = (
                    f"the producer was closed while the commit of {result.name!r} was under way: its outcome is unknown"
                )
                error = UnknownOutcomeError(text, possibly_sent=True)
            if not transaction.committed:  # at the exit of the interpreter nothing else reports it
                log.warning("%s: the commit in the background did not end: %s", result.name, error)
            raise
        finally:
            self._task = None
            result.finish(None if transaction.committed else error)
            self._manager.changed.set()

    def until_ended(self, deadline: float) -> Flow[None]:
        """Wait until the commit has ended, with success or not. Raise DeliveryTimeoutError at the deadline."""
        manager = self._manager
        while self._task is not None:
            left = deadline - manager.cluster.clock()
            if left <= 0:
                raise DeliveryTimeoutError(
                    f"the commit in the background of {manager.transactional_id!r} did not end before the timeout of "
                    "the call, which needs its outcome; call again",
                    remedy="retry",
                )
            yield from wait(manager.changed, left)

    def end_at_close(self, deadline: float | None) -> Flow[None]:
        """Wait for the commit when the producer closes; cancel it at the deadline."""
        manager = self._manager
        while self._task is not None:
            left = None if deadline is None else deadline - manager.cluster.clock()
            if left is not None and left <= 0:
                log.warning("%s: close does not wait any longer for the commit", manager.transactional_id)
                self._task.cancel()
                return
            yield from wait(manager.changed, left)

    @property
    def is_over(self) -> bool:
        """Whether no commit is under way, and a caller has got the error of the last one, if any. On any thread."""
        return self._task is None and (self._result is None or self._result.unretrieved is None)

    def note_raised(self) -> None:
        """Note that a call of the following transaction raised the error of the commit: a caller has got it."""
        if self._result is not None:
            self._result.is_retrieved = True

    def forget(self, error: BaseException) -> None:
        """In a forked child, under the lock: end the commit there with `error`."""
        if self._result is not None:
            self._result.forget_all(error)

    def take_unretrieved(self, remedy: str = "recreate") -> BaseException | None:
        """Return the error of the last commit if no caller has got it; it then counts as retrieved.

        remedy: replaces "abort" in the error if its transaction has been aborted since then, as nothing is open that
        the caller could abort. The default is for a producer that is closed.
        """
        if self._result is None or self._result.unretrieved is None:
            return None
        error = self._result.retrieved()
        if isinstance(error, KcodecError) and error.remedy == "abort" and self._manager.state not in TO_ABORT:
            error.remedy = remedy
        return error

    def raise_unretrieved(self) -> None:
        """Raise the error of the last commit if no caller has got it, in a call that can be repeated."""
        error = self.take_unretrieved("retry")
        if error is not None:
            raise error.with_traceback(None)

    # The transaction after it

    def begin_following(self, *, is_new_flow: bool) -> ProducerTransaction:
        """Begin the next transaction while the commit is under way."""
        manager = self._manager
        assert self._result is not None and manager.producer is not None and manager.records is not None
        self.following, self._failure = ProducerTransaction(manager.producer, is_new_flow), None
        manager.records.hold_back(self._result.deadline)
        manager.move(Event.BEGIN)
        return self.following

    def fail_following(self, error: BaseException) -> None:
        """Note that the following transaction can only be aborted, whatever comes of the commit."""
        manager = self._manager
        if self._failure is None and manager.records is not None:
            self._failure = error
            manager.records.refuse_sends(error)

    def open_following(self, *, is_epoch_spent: bool) -> Flow[None]:
        """After the commit: continue with the following transaction, which has the next epoch."""
        manager, following = self._manager, self.following
        assert following is not None
        is_new_flow = manager.level >= NEW_FLOW_LEVEL
        failure: BaseException | None = None
        if is_epoch_spent or following.is_new_flow is not is_new_flow:
            try:
                yield from manager.renew_epoch()
            except Failed as failed:
                manager.move(Event.FATAL, failed.error)
                return
            except KcodecError as error:
                manager.is_epoch_spent = True
                failure = error
                if isinstance(error, DeliveryTimeoutError):
                    error.remedy = "abort"  # the following transaction cannot get another epoch any more
        assert manager.producer is not None
        following.producer, following.is_new_flow = manager.producer, is_new_flow
        manager.open, self.following = following, None
        manager.is_epoch_used = True
        failure, self._failure = failure or self._failure, None
        manager.move(Event.COMMITTED)
        if failure is not None:
            manager.move(Event.ABORTABLE, failure)

    def discard(self) -> None:
        """Abort the following transaction, after a commit whose outcome is unknown."""
        manager = self._manager
        if manager.records is not None and manager.kept_error is not None:
            manager.records.abort_buffered(manager.kept_error)
        if self.following is not None:
            self.following.committed = False
        self.following = None
        manager.move(Event.ABORT)
