# SPDX-License-Identifier: Apache-2.0
"""The calls that the application of a transactional producer makes (Kafka: TransactionManager).

The calls are flows: initialize, begin, offsets, commit, abort. The finalized feature transaction.version at the begin
of a transaction selects its flow. The versions that a broker supports do not: below level 2, a broker also lists the
new versions, but responds to them with errors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import nullcontext

from kcodec.arguments import partitions_of
from kcodec.cluster.metadata import Cluster
from kcodec.errors import DeliveryTimeoutError, KcodecError, TransactionStateError
from kcodec.flow import Flow, wait
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.producer.identity import HIGHEST_VERSION, NO_PRODUCER
from kcodec.transactions.background import BackgroundCommit
from kcodec.transactions.commit_result import CommitResult
from kcodec.transactions.completion import TransactionCompletion
from kcodec.transactions.context import ProducerContext
from kcodec.transactions.errors import Failed
from kcodec.transactions.fencing import investigate_failed
from kcodec.transactions.handle import TransactionHandle
from kcodec.transactions.identity import TransactionalProducerId
from kcodec.transactions.maintenance import TransactionMaintenance
from kcodec.transactions.offsets import Offsets, commit_offsets
from kcodec.transactions.state import TO_ABORT, WRITING, Event, State
from kcodec.transactions.transaction import NEW_FLOW_LEVEL, ProducerTransaction

log = logging.getLogger("kcodec.transactions")
#: States in which no transaction is open, and the last one has ended.
_BETWEEN = frozenset({State.READY, State.UNINITIALIZED, State.INITIALIZING})
_OUTCOMES = {True: "was committed", False: "was aborted", None: "has ended"}


class TransactionManager:
    """The calls of the application. Timeouts are in seconds, by default `max_block` (Kafka: max.block.ms).

    context:    The shared state.
    background: The commit in the background.
    identity:   The identity that the sender uses.
    """

    def __init__(
        self, cluster: Cluster, transactional_id: str, transaction_timeout_ms: int = 60_000, max_block: float = 60.0
    ) -> None:
        context = ProducerContext(cluster, transactional_id, transaction_timeout_ms, max_block)
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.transaction_timeout_ms = transaction_timeout_ms
        self.max_block = max_block
        self.context = context
        self.background = BackgroundCommit(context)
        self._completion = TransactionCompletion(context, self.background)
        maintenance = TransactionMaintenance(context)
        self.identity = TransactionalProducerId(context, self.background, self._completion, maintenance)

    @property
    def state(self) -> State:
        """See `ProducerContext`."""
        return self.context.state

    @property
    def kept_error(self) -> BaseException | None:
        """See `ProducerContext`."""
        return self.context.kept_error

    @property
    def open(self) -> ProducerTransaction | None:
        """See `ProducerContext`."""
        return self.context.open

    @property
    def newest(self) -> ProducerTransaction | None:
        """See `ProducerContext`."""
        return self.context.newest

    def check_newest(self, transaction: ProducerTransaction | None, event: Event) -> None:
        """Raise TransactionStateError if the call of an event belongs to a transaction that has ended, even if the next
        one has begun. Any thread may call this.

        transaction: The newest transaction when the call began.
        """
        context = self.context
        if transaction is context.newest and (transaction is None or context.state not in _BETWEEN):
            return
        if transaction is None:
            why = "no transaction was open when this call began"
        else:
            why = f"this transaction {_OUTCOMES[transaction.committed]}"
        raise TransactionStateError(
            f"{why}: {event.value} is no longer possible; begin the next one",
            state=context.state.name,
            event=event.name,
        )

    # Before a transaction

    def initialize(self, timeout: float | None = None) -> Flow[None]:
        """Send InitProducerId. The first call takes over the transactional id. Later calls get a new epoch, unless
        another producer has taken over the id.

        Raise ProducerFencedError, AuthorizationError, FatalTransactionError; DeliveryTimeoutError and
        AuthenticationError, after which it can be called again.
        """
        context = self.context
        deadline = context.deadline(timeout)
        context.call(Event.INITIALIZE)
        try:
            yield from context.renew_epoch(context.left(deadline))
            context.move(Event.INITIALIZED)
        except Failed as failed:
            context.move(Event.FATAL, failed.error)
            raise failed.error from None
        except (KcodecError, GeneratorExit, KeyboardInterrupt, SystemExit):
            context.move(Event.NOT_INITIALIZED)
            raise

    def abandon(self, transaction: ProducerTransaction) -> None:
        """Note that the block of a transaction has ended. If its abort was not confirmed, the next begin ends the
        transaction."""
        transaction.is_abandoned = True

    def begin(
        self, timeout: float | None = None, partitions: Iterable[TopicPartition] = ()
    ) -> Flow[ProducerTransaction]:
        """Begin a transaction, after InitProducerId if necessary. In the old flow, add `partitions` immediately."""
        context = self.context
        deadline = context.deadline(timeout)
        if context.newest is not None and context.newest.is_abandoned and context.state in TO_ABORT:
            yield from self.abort(context.left(deadline))
        is_new_flow = context.level >= NEW_FLOW_LEVEL
        to_add = set(partitions_of(partitions))
        if context.state is State.COMMITTING_ASYNC:
            if is_new_flow or not to_add:
                return self.background.begin_following(is_new_flow=is_new_flow)
            yield from self.background.until_ended(deadline)
        elif context.state is State.ABORTABLE_ERROR:  # possibly of a commit whose other records are still in flight
            yield from self.background.until_ended(deadline)
        self.background.raise_unretrieved()
        before = context.open if context.state is State.READY and context.is_epoch_used else None
        if before is not None and (before.is_new_flow is not is_new_flow or (to_add and not is_new_flow)):
            # The feature is at another level now, and the epoch belongs to the other flow; or others will write under
            # an epoch whose sequence numbers this producer has begun to use.
            context.move(Event.NOT_INITIALIZED)
        if context.state in {State.UNINITIALIZED, State.UNKNOWN_OUTCOME}:
            yield from self.initialize(context.left(deadline))
            is_new_flow = context.level >= NEW_FLOW_LEVEL
        # In some states in which the call is refused, no producer id exists.
        transaction = ProducerTransaction(context.producer or NO_PRODUCER, is_new_flow)
        try:
            with context.records.lock if context.records is not None else nullcontext():  # begin_at_once holds it, too
                context.call(Event.BEGIN)
                context.open = transaction
                context.is_epoch_used = True
            context.announce()
            if to_add and not is_new_flow:
                transaction.to_add |= to_add
                context.wake.set()
                yield from self._until_added(transaction, to_add, deadline)
        except BaseException:  # such as that of Ctrl-C
            # The caller does not get the transaction, so it cannot abort it. If it is open, the next begin aborts it.
            self.abandon(transaction)
            raise
        return transaction

    def begin_at_once(self) -> ProducerTransaction | None:
        """Begin a transaction without a request, on any thread that holds the producer's lock, so that the usual case
        does not wait for the I/O thread. Return None if the flow `begin` is needed."""
        return self.context.begin_at_once() if self.background.is_over else None

    def _until_added(
        self, transaction: ProducerTransaction, to_add: set[TopicPartition], deadline: float
    ) -> Flow[None]:
        context = self.context
        try:
            while not to_add <= transaction.added:
                left = deadline - self.cluster.clock()
                if context.kept_error is not None:
                    raise context.kept_error.with_traceback(None)
                if left <= 0:
                    raise DeliveryTimeoutError(
                        f"AddPartitionsToTxn of {self.transactional_id!r}: no response before the timeout of the call"
                    )
                yield from wait(context.changed, left)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            context.give_up("its partitions were not added because the begin was interrupted")
            raise
        except KcodecError as error:
            context.give_up("its partitions were not added")
            if context.state is State.ABORTABLE_ERROR:
                try:
                    yield from self.abort(context.left(deadline))
                except KcodecError as failed:
                    log.warning(
                        "%s: the abort after a failed begin was not confirmed: %s", self.transactional_id, failed
                    )
                    if failed is not error:
                        error.add_note(f"the abort after it failed, too: {failed}")
            raise

    def handle(self, transaction: ProducerTransaction) -> TransactionHandle:
        """Return the handle of the open transaction for other writers. From now on, the transaction needs an EndTxn in
        any case."""
        context = self.context
        if transaction is context.following and context.state is State.BUFFERING:
            raise TransactionStateError(
                "this transaction has no handle yet, because the commit of the previous transaction is in progress: "
                "wait for the result of that commit first",
                state=context.state.name,
                event=Event.SEND.name,
            )
        if transaction is not context.open or context.state is not State.IN_TRANSACTION:
            context.call(Event.SEND)
            raise TransactionStateError(
                "this transaction has ended: begin the next one", state=context.state.name, event=Event.SEND.name
            )
        self._check_shareable(transaction)
        transaction.is_shared = True
        context.note_sent(transaction)
        return self._handle_of(transaction)

    def release(self, timeout: float | None = None) -> Flow[TransactionHandle]:
        """Flush, and leave the transaction open for the processes that have its handle. Close this producer afterwards.

        Raise the error that prevents the commit, or DeliveryTimeoutError if records are still in flight. The
        transaction can then only be aborted. Raise TransactionStateError below transaction.version 2 if no partition
        was added.
        """
        context = self.context
        deadline = context.deadline(timeout)
        yield from self.background.until_open(deadline)
        context.call(Event.RELEASE)
        try:
            transaction = context.now_open
            yield from self._completion.flush(transaction, deadline)
            if context.state is not State.RELEASING:
                assert context.kept_error is not None
                raise context.kept_error.with_traceback(None)
            self._check_shareable(transaction)
            handle = self._handle_of(transaction)
            context.move(Event.FLUSHED)
            context.note_sent(transaction)
            transaction.is_shared = True  # at last: after an interruption, no process has the handle
        except TransactionStateError as error:
            context.move(Event.INTERRUPTED, error)
            raise
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            if context.state is State.RELEASED:  # the caller does not get the handle
                context.state = State.RELEASING
            if context.state is State.RELEASING:
                context.move(Event.INTERRUPTED, context.blocked("the release was interrupted"))
            raise
        except DeliveryTimeoutError as late:
            context.advise(late)
            raise
        return handle

    def _check_shareable(self, transaction: ProducerTransaction) -> None:
        if not transaction.is_new_flow and not transaction.added:
            raise TransactionStateError(
                "this transaction has no handle: the transaction.version of the cluster is below 2, and the partitions "
                "of its writers must be added first; pass them all to producer.transaction(partitions=[...])",
                state=self.context.state.name,
                event=Event.SEND.name,
            )

    def _handle_of(self, transaction: ProducerTransaction) -> TransactionHandle:
        return TransactionHandle(self.transactional_id, *transaction.producer, self.cluster.transaction_version)

    # Offsets

    def send_offsets(
        self,
        offsets: Offsets,
        group: ConsumerGroupMetadata,
        timeout: float | None = None,
        *,
        highest_version: int = HIGHEST_VERSION,
    ) -> Flow[None]:
        """Commit offsets of a group with the transaction. After an error other than an illegal call, the transaction
        can only be aborted.

        highest_version: Highest version of TxnOffsetCommit in the old flow. A lower one imitates an older broker.
        """
        context = self.context
        newest = context.newest
        transaction: ProducerTransaction | None = None
        try:
            deadline = context.deadline(timeout)
            yield from self.background.until_open(deadline, is_repeatable=False)
            context.call(Event.SEND_OFFSETS)
            transaction = context.now_open
            if offsets:
                yield from self._send_offsets(transaction, offsets, group, deadline, highest_version)
        except (KcodecError, GeneratorExit, KeyboardInterrupt, SystemExit) as error:
            why = str(error) if isinstance(error, KcodecError) else "the call was interrupted"
            why = f"offsets of group {group.group_id!r} were not accepted: {why}"
            if transaction is context.open and context.state in WRITING:  # even if a commit already waits for this call
                context.move(Event.ABORTABLE, context.blocked(why))
            elif newest is context.newest and context.state is State.BUFFERING:  # the call has waited for the commit
                self.background.fail_following(context.blocked(why))
            elif newest is context.newest:
                context.give_up(why)
            context.advise(error)
            raise

    def _send_offsets(
        self,
        transaction: ProducerTransaction,
        offsets: Offsets,
        group: ConsumerGroupMetadata,
        deadline: float,
        highest_version: int,
    ) -> Flow[None]:
        context = self.context
        transaction.requests += 1
        try:
            context.note_sent(transaction)
            yield from commit_offsets(
                self.cluster,
                self.transactional_id,
                transaction.producer,
                offsets,
                group,
                deadline,
                is_new_flow=transaction.is_new_flow,
                groups=transaction.groups,
                on_no_response=lambda: context.note_no_response("an offset request"),
                highest_version=highest_version,
            )
        except Failed as failed:
            found = yield from investigate_failed(self.cluster, context.ending(transaction), failed, deadline)
            context.fail(found)
            raise found.error from None
        finally:
            transaction.requests -= 1
            context.changed.set()

    # The end

    def commit(self, timeout: float | None = None) -> Flow[None]:
        """See `TransactionCompletion.commit`."""
        return self._completion.commit(timeout)

    def commit_async(self, result: CommitResult, timeout: float | None = None) -> Flow[None]:
        """Begin the commit and return. It continues in the background, and `result` gets its outcome.

        Raise the error that prevents the commit. Raise TransactionStateError while another commit is in progress, for a
        transaction whose handle was read, or in a session.
        """
        deadline = self.context.deadline(timeout)
        yield from self.background.begin(result, deadline, self._completion.complete_commit)

    def abort(self, timeout: float | None = None) -> Flow[None]:
        """See `TransactionCompletion.abort`. If an earlier abort got no response, send InitProducerId, which aborts the
        transaction if it is still open."""
        last = self.context.open
        if self.context.state is State.UNINITIALIZED and last is not None and last.is_abort_unconfirmed:
            yield from self.initialize(timeout)
        else:
            yield from self._completion.abort(timeout)

    def warn_of_uncommitted(self, *, has_buffered: bool) -> None:
        """Any thread: log that the producer is closed without an exception while a transaction with records is open.
        The program probably lacks a call of commit_transaction, and no caller gets an error.

        has_buffered: Whether the producer has unfinished records.
        """
        context = self.context
        is_sent = context.open is not None and context.open.is_sent and context.state is State.IN_TRANSACTION
        if is_sent or (has_buffered and context.state in {State.IN_TRANSACTION, State.BUFFERING}):
            log.warning(
                "%s: the producer is closed while a transaction is open, so the transaction is aborted, and "
                "read_committed consumers do not get its records. Call commit_transaction before the close",
                self.transactional_id,
            )
