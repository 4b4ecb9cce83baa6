# SPDX-License-Identifier: Apache-2.0
"""A transactional producer: its identity and state, and the calls of its application (Kafka: TransactionManager).

The sender uses it as a `ProducerIdManager`. The calls are flows: initialize, begin, offsets, commit, abort. Next to
them a background flow sends AddPartitionsToTxn for records that wait for it (old flow), investigates why an epoch is
too old, and logs the warning before a transaction times out.

The finalized feature transaction.version at the begin of a transaction selects its flow, not the versions that a broker
supports: below level 2 a broker lists the new versions all the same and responds to them with errors
forever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import nullcontext

from kcodec.arguments import partitions_of
from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.errors import (
    BrokerError,
    DeliveryTimeoutError,
    KcodecError,
    TransactionStateError,
    UnknownOutcomeError,
    UnsupportedError,
)
from kcodec.flow import Flow, Signal, sleep, wait
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.producer.identity import HIGHEST_VERSION, BatchDisposition, BufferedRecords, ProducerIdManager
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.background import BackgroundCommit
from kcodec.transactions.commit_result import CommitResult
from kcodec.transactions.end import end_transaction
from kcodec.transactions.errors import (
    EPOCH_SPENDING_CODES,
    FENCED_CODES,
    Failed,
    TransactionDisposition,
    abortable,
    code_of,
    disposition_of,
    failure,
    not_written,
)
from kcodec.transactions.fencing import Ending, investigate, investigate_failed
from kcodec.transactions.handle import TransactionHandle
from kcodec.transactions.initialize import init_producer_id
from kcodec.transactions.markers import MarkerProbe
from kcodec.transactions.offsets import Offsets, commit_offsets
from kcodec.transactions.partitions import add_partitions
from kcodec.transactions.state import COMMITS, RAISES_KEPT_ERROR, TO_ABORT, Event, State, illegal, next_state
from kcodec.transactions.transaction import (
    NEW_FLOW_LEVEL,
    OLD_FLOW_PRODUCE_VERSION,
    WARNING_SHARE,
    ProducerTransaction,
)

log = logging.getLogger("kcodec.transactions")
#: States in which records are written.
_WRITING = frozenset({State.IN_TRANSACTION, *COMMITS, State.RELEASING})
#: States in which a call waits for the records that are under way.
_FLUSHING = frozenset({*COMMITS, State.ABORTING, State.RELEASING})
_EVENTS = {
    TransactionDisposition.ABORT: Event.ABORTABLE,
    TransactionDisposition.FATAL: Event.FATAL,
    TransactionDisposition.UNCONFIRMED: Event.UNCONFIRMED,
    TransactionDisposition.INTERRUPTED: Event.INTERRUPTED,
    # Records were acknowledged and the coordinator knows nothing of them.
    TransactionDisposition.EMPTY: Event.FATAL,
}


class TransactionManager(ProducerIdManager):
    """See the module. Calls are flows; timeout: seconds, `max_block` by default (Kafka: max.block.ms).

    state, kept_error: see `kcodec.transactions.state`.
    producer:          the last (id, epoch), also when it may not be used any more.
    open:              the open transaction, or the last one; while a commit is under way in the background, its.
    background:        that commit, and the transaction that began before it has ended.
    wake:              set when the background flow has work.
    is_epoch_spent:    the epoch must not be used for another transaction; is_epoch_used: it was used for one.
    """

    transactional_id: str
    open: ProducerTransaction | None

    def __init__(
        self, cluster: Cluster, transactional_id: str, transaction_timeout_ms: int = 60_000, max_block: float = 60.0
    ) -> None:
        super().__init__()
        if not isinstance(transactional_id, str) or not transactional_id:
            raise ValueError(f"transactional_id must be a non-empty string, not {transactional_id!r}")
        self.cluster = cluster
        self.transactional_id = transactional_id
        self._name = f"the producer with transactional_id {transactional_id!r}"
        self.transaction_timeout_ms = transaction_timeout_ms
        self.max_block = max_block
        self.records: BufferedRecords | None = None
        self.wake = Signal()
        self.state = State.UNINITIALIZED
        self.kept_error: BaseException | None = None
        self.producer: ProducerIdAndEpoch | None = None
        self.open = None
        self.is_epoch_spent = self.is_epoch_used = self.is_init_unconfirmed = False
        self.markers = MarkerProbe(cluster, transactional_id)
        self.background = BackgroundCommit(self)

    # States

    @property
    def level(self) -> int:
        """The level of transaction.version that the next transaction uses."""
        return min(self.cluster.transaction_version, NEW_FLOW_LEVEL)

    @property
    def newest(self) -> ProducerTransaction | None:
        """The transaction that the application has begun last."""
        return self.background.following or self.open

    def attach(self, records: BufferedRecords) -> None:
        """Set the producer's core; called once."""
        self.records = records
        self._announce()

    def call(self, event: Event) -> None:
        """Begin a call of the application: change the state, or raise the kept error or TransactionStateError."""
        if event in RAISES_KEPT_ERROR.get(self.state, ()) and self.kept_error is not None:
            self.background.note_raised()
            raise self.kept_error.with_traceback(None)
        self.move(event)

    def move(self, event: Event, error: BaseException | None = None) -> None:
        """Change to the state that the event leads to; `error` is kept if that state keeps one."""
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
            log.debug("%s: %s -> %s (%s)", self.transactional_id, before.name, self.state.name, event.name)
            self._announce()

    def _note_lost(self) -> None:
        """Prevent the commit after an error, unless other processes have the handle, or an EndTxn is on its way."""
        transaction = self.open
        if transaction is None or transaction.is_shared or transaction.is_commit_unconfirmed:
            return
        for lost in (transaction, self.background.following):
            if lost is not None and lost.committed is None:
                lost.committed = False

    def _announce(self) -> None:
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
        return illegal(self.state, Event.SEND, self._name)

    @property
    def now_open(self) -> ProducerTransaction:
        """The transaction of a state that has one."""
        if self.open is None:
            raise TransactionStateError(
                "no transaction has begun: call begin_transaction() first", state=self.state.name, event="SEND"
            )
        return self.open

    def note_sent(self, transaction: ProducerTransaction) -> None:
        """Note that a request of the transaction is sent: EndTxn is needed, and the coordinator's clock is running."""
        transaction.is_sent = True
        if transaction.sent_at is None:
            transaction.sent_at = self.cluster.clock()
            self.wake.set()

    def ending(self, transaction: ProducerTransaction) -> Ending:
        """Return the transaction in the form that the flows which end or investigate it need."""

        def is_over_time(_: object) -> bool:
            return transaction.seconds_open(self.cluster.clock()) >= self.transaction_timeout_ms / 1000

        def on_no_response() -> None:
            transaction.is_end_unconfirmed = True
            transaction.is_commit_unconfirmed |= self.state in COMMITS
            self.on_no_response("EndTxn")

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

    # For the sender: ProducerIdManager

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """See ProducerIdManager."""
        if self.state in {State.UNINITIALIZED, State.INITIALIZING, State.UNKNOWN_OUTCOME}:
            return None
        return self.producer

    def produce_highest_version(self) -> int:
        """See ProducerIdManager."""
        return HIGHEST_VERSION if self.open is None or self.open.is_new_flow else OLD_FLOW_PRODUCE_VERSION

    def may_send(self, partition: TopicPartition) -> bool:
        """See ProducerIdManager."""
        transaction = self.open
        if transaction is None or self.state not in _WRITING or transaction.to_investigate is not None:
            return False
        if transaction.is_new_flow and self.markers.holds_back():
            self.wake.set()
            return False
        if transaction.is_new_flow or partition in transaction.added:
            self.note_sent(transaction)
            return True
        transaction.to_add.add(partition)
        self.wake.set()
        return False

    def refuses(self) -> BaseException | None:
        """See ProducerIdManager."""
        if self.state is State.ABORTING:
            return TransactionStateError(
                f"the transaction of {self.transactional_id!r} was aborted before this record was written",
                state=self.state.name,
                event=Event.SEND.name,
            )
        return self.kept_error

    def on_success(self, partition: TopicPartition, records_count: int = 0, last_sequence: int = -1) -> None:
        """See ProducerIdManager."""
        transaction = self.open
        if transaction is None:
            return
        transaction.note_batch(partition, records_count, last_sequence)
        if transaction.batches == 1:
            self.markers.note_first_batch(transaction.seconds_open(self.cluster.clock()))

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """See ProducerIdManager. In the old flow the next transaction gets a new epoch if it is not certain what the
        partition has received with this one."""
        transaction = self.open
        if transaction is None:
            return
        code = code_of(error)
        if not transaction.is_new_flow and (possibly_written or code in EPOCH_SPENDING_CODES):
            self.is_epoch_spent = True
        if self.state not in {*_WRITING, State.ABORTABLE_ERROR}:
            return
        if isinstance(error, BrokerError) and disposition_of("Produce", code) is TransactionDisposition.FATAL:
            is_own = code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            resource = self.transactional_id if is_own else partition
            self.move(Event.FATAL, failure("Produce", code, f"Produce to {partition}", resource=resource).error)
        else:
            self.move(Event.ABORTABLE, not_written(self.transactional_id, partition, error))

    def on_rejected(self, transaction: object, partition: TopicPartition, error: BaseException) -> None:
        """See ProducerIdManager."""
        if transaction is self.background.following:
            self.on_held_failure(partition, error)
        elif transaction is self.open and self.state not in COMMITS:  # EndTxn may be sent already
            self.on_failure(partition, error, possibly_written=False)

    def on_refused(self, error: BaseException) -> None:
        """See ProducerIdManager."""
        if error is self.kept_error:
            self.background.note_raised()

    def forget(self, error: BaseException) -> None:
        """See ProducerIdManager."""
        self.background.forget(error)

    def on_held_failure(self, partition: TopicPartition, error: BaseException) -> None:
        """See ProducerIdManager. The record belongs to the transaction that follows the one that is committed."""
        if self.state is State.BUFFERING:
            self.background.fail_following(not_written(self.transactional_id, partition, error))

    def on_no_response(self, api: str) -> None:
        """See ProducerIdManager. In the old flow a late copy could join the next transaction of the same epoch."""
        if self.open is not None and not self.open.is_new_flow and not self.is_epoch_spent:
            log.info(
                "%s: %s got no response, so the epoch is not used for another transaction", self.transactional_id, api
            )
            self.is_epoch_spent = True

    def on_error_code(self, partition: TopicPartition, code: int) -> BatchDisposition:
        """See ProducerIdManager. The reason why an epoch is too old is investigated first; the batch waits for that."""
        transaction = self.open
        if transaction is None or self.state not in _WRITING or code not in FENCED_CODES:
            return BatchDisposition.FAIL
        if transaction.to_investigate is None:
            transaction.to_investigate = f"Produce to {partition} of {self.transactional_id!r}", code
            self.wake.set()
        return BatchDisposition.RETRY

    # Before a transaction

    def initialize(self, timeout: float | None = None) -> Flow[None]:
        """Send InitProducerId: take over the transactional id; on later calls get a new epoch while it still is ours.

        Raise ProducerFencedError, AuthorizationError, FatalTransactionError; DeliveryTimeoutError and
        AuthenticationError, after which it can be called again.
        """
        self.call(Event.INITIALIZE)
        try:
            yield from self.renew_epoch(timeout)
        except Failed as failed:
            self.move(Event.FATAL, failed.error)
            raise failed.error from None
        except (KcodecError, GeneratorExit):
            self.move(Event.NOT_INITIALIZED)
            raise
        self.move(Event.INITIALIZED)

    def renew_epoch(self, timeout: float | None = None) -> Flow[None]:
        """Send InitProducerId. Raise Failed, or KcodecError if it got no response."""
        self.producer = yield from init_producer_id(
            self.cluster,
            self.transactional_id,
            self.transaction_timeout_ms,
            self.producer,
            self._deadline(timeout),
            self._note_init_unconfirmed,
            is_init_unconfirmed=self.is_init_unconfirmed,
        )
        self.is_epoch_spent = self.is_epoch_used = False

    def _note_init_unconfirmed(self) -> None:
        self.is_init_unconfirmed = True

    def _deadline(self, timeout: float | None) -> float:
        return self.cluster.clock() + (self.max_block if timeout is None else timeout)

    def _left(self, deadline: float) -> float:
        return max(deadline - self.cluster.clock(), 0.0)

    def abandon(self, transaction: ProducerTransaction) -> None:
        """Note that its block has ended, with or without a confirmed abort: the next begin ends the transaction."""
        transaction.is_abandoned = True

    def begin(
        self, timeout: float | None = None, partitions: Iterable[TopicPartition] = ()
    ) -> Flow[ProducerTransaction]:
        """Begin a transaction, after InitProducerId if necessary. partitions: added at once in the old flow."""
        deadline = self._deadline(timeout)
        if self.newest is not None and self.newest.is_abandoned and self.state in TO_ABORT:
            yield from self.abort(self._left(deadline))
        is_new_flow = self.level >= NEW_FLOW_LEVEL
        to_add = set(partitions_of(partitions))
        if self.state is State.COMMITTING_ASYNC:
            if is_new_flow or not to_add:
                return self.background.begin_following(is_new_flow=is_new_flow)
            yield from self.background.until_ended(deadline)
        elif self.state is State.ABORTABLE_ERROR:  # maybe of a commit whose other records are still under way
            yield from self.background.until_ended(deadline)
        self.background.raise_unretrieved()
        before = self.open if self.state is State.READY and self.is_epoch_used else None
        if before is not None and (before.is_new_flow is not is_new_flow or (to_add and not is_new_flow)):
            # The feature is at another level now, and the epoch belongs to the other flow; or others will write under
            # an epoch whose sequence numbers this producer has begun to use.
            self.move(Event.NOT_INITIALIZED)
        if self.state in {State.UNINITIALIZED, State.UNKNOWN_OUTCOME}:
            yield from self.initialize(self._left(deadline))
            is_new_flow = self.level >= NEW_FLOW_LEVEL
        with self.records.lock if self.records is not None else nullcontext():  # begin_at_once holds it, too
            self.call(Event.BEGIN)
            assert self.producer is not None
            transaction = self.open = ProducerTransaction(self.producer, is_new_flow)
            self.is_epoch_used = True
        self._announce()
        if to_add and not is_new_flow:
            transaction.to_add |= to_add
            self.wake.set()
            yield from self._until_added(transaction, to_add, deadline)
        return transaction

    def begin_at_once(self) -> ProducerTransaction | None:
        """Begin without a request, from any thread that holds the producer's lock: the usual case does not wait for the
        I/O thread. Return None if the flow `begin` is needed."""
        last = self.open
        is_new_flow = self.level >= NEW_FLOW_LEVEL
        if self.state is not State.READY or self.producer is None or not self.background.is_over:
            return None
        if last is not None and self.is_epoch_used and last.is_new_flow is not is_new_flow:
            return None
        transaction = self.open = ProducerTransaction(self.producer, is_new_flow)
        self.is_epoch_used = True
        self.state = next_state(self.state, Event.BEGIN)
        if self.records is not None:
            self.records.refuse_sends(None)
        return transaction

    def _until_added(
        self, transaction: ProducerTransaction, to_add: set[TopicPartition], deadline: float
    ) -> Flow[None]:
        try:
            while not to_add <= transaction.added:
                left = deadline - self.cluster.clock()
                if self.kept_error is not None:
                    raise self.kept_error.with_traceback(None)
                if left <= 0:
                    raise DeliveryTimeoutError(
                        f"AddPartitionsToTxn of {self.transactional_id!r}: no response before the timeout of the call"
                    )
                yield from wait(self.changed, left)
        except GeneratorExit:
            self._give_up("its partitions were not added because the begin was interrupted")
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
                    log.warning(
                        "%s: the abort after a failed begin was not confirmed: %s", self.transactional_id, failed
                    )
                    if failed is not error:
                        error.add_note(f"the abort after it failed, too: {failed}")
            raise

    def handle(self, transaction: ProducerTransaction) -> TransactionHandle:
        """Return what other writers need for the open transaction. From now on it needs an EndTxn in any case."""
        if transaction is self.background.following and self.state is State.BUFFERING:
            raise TransactionStateError(
                "this transaction has no handle yet, as the commit of the one before it is still under way: wait for "
                "its result first",
                state=self.state.name,
                event=Event.SEND.name,
            )
        if transaction is not self.open or self.state is not State.IN_TRANSACTION:
            self.call(Event.SEND)
            raise TransactionStateError(
                "this transaction has ended: begin the next one", state=self.state.name, event=Event.SEND.name
            )
        self._check_shareable(transaction)
        return self._share(transaction)

    def release(self, timeout: float | None = None) -> Flow[TransactionHandle]:
        """Flush, and leave the transaction open for the processes that have its handle. Close this producer afterwards.

        Raise the error that blocks the commit, or DeliveryTimeoutError while records are still under way: the
        transaction can then only be aborted. Raise TransactionStateError below transaction.version 2 if no partition
        was added.
        """
        deadline = self._deadline(timeout)
        yield from self._until_open(deadline)
        self.call(Event.RELEASE)
        transaction = self.now_open
        try:
            yield from self._flush(transaction, deadline)
            if self.state is not State.RELEASING:
                assert self.kept_error is not None
                raise self.kept_error.with_traceback(None)
            self._check_shareable(transaction)
        except TransactionStateError as error:
            self.move(Event.INTERRUPTED, error)
            raise
        except GeneratorExit:
            if self.state is State.RELEASING:
                self.move(Event.INTERRUPTED, self._blocked("the release was interrupted"))
            raise
        except DeliveryTimeoutError as late:
            self._advise(late)
            raise
        handle = self._share(transaction)
        self.move(Event.FLUSHED)
        return handle

    def _check_shareable(self, transaction: ProducerTransaction) -> None:
        if not transaction.is_new_flow and not transaction.added:
            raise TransactionStateError(
                "below transaction.version 2 a transaction has a handle only after its partitions were added: name all "
                "partitions that its writers will write to in producer.transaction(partitions=[...])",
                state=self.state.name,
                event=Event.SEND.name,
            )

    def _share(self, transaction: ProducerTransaction) -> TransactionHandle:
        transaction.is_shared = True
        self.note_sent(transaction)
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
        """Commit offsets of a group with the transaction. It can still be committed after an illegal call, not after
        others.

        highest_version: of TxnOffsetCommit, in the old flow; lower to act as with an older broker.
        """
        deadline = self._deadline(timeout)
        yield from self._until_open(deadline)
        self.call(Event.SEND_OFFSETS)
        transaction = self.now_open
        if not offsets:
            return
        self.note_sent(transaction)
        transaction.requests += 1
        try:
            yield from commit_offsets(
                self.cluster,
                self.transactional_id,
                transaction.producer,
                offsets,
                group,
                deadline,
                is_new_flow=transaction.is_new_flow,
                groups=transaction.groups,
                on_no_response=lambda: self.on_no_response("an offset request"),
                highest_version=highest_version,
            )
        except Failed as failed:
            found = yield from investigate_failed(self.cluster, self.ending(transaction), failed, deadline)
            self._fail(found)
            raise found.error from None
        except (KcodecError, GeneratorExit) as error:
            why = str(error) or "the call was interrupted"
            self._give_up(f"offsets of group {group.group_id!r} were not accepted: {why}")
            self._advise(error)
            raise
        finally:
            transaction.requests -= 1
            self.changed.set()

    # The end

    def commit(self, timeout: float | None = None) -> Flow[None]:
        """Flush, then send EndTxn. After UnknownOutcomeError it may be called again, and repeats the same EndTxn; that
        of a commit in the background is raised first, if no caller has got it.

        Raise the error that blocks the commit (a failed record names its partition), DeliveryTimeoutError if EndTxn was
        not sent, UnknownOutcomeError if it was sent and got no response.
        """
        deadline = self._deadline(timeout)
        yield from self._until_open(deadline)
        is_repeat = self.state is State.UNKNOWN_OUTCOME
        if is_repeat:
            self.background.raise_unretrieved()
        self.call(Event.COMMIT)
        yield from self.complete_commit(self.now_open, deadline, is_repeat=is_repeat)

    def commit_async(self, result: CommitResult, timeout: float | None = None) -> Flow[None]:
        """Begin the commit and return; it continues in the background, and `result` gets its outcome.

        Raise the error that blocks the commit, TransactionStateError while another commit is under way, for a
        transaction whose handle was read, and in a session.
        """
        yield from self.background.begin(result, self._deadline(timeout))

    def complete_commit(self, transaction: ProducerTransaction, deadline: float, *, is_repeat: bool) -> Flow[None]:
        """Flush and send EndTxn, in one of the states of COMMITS."""
        try:
            if not is_repeat:
                yield from self._flush(transaction, deadline)
                if self.state not in COMMITS:
                    assert self.kept_error is not None
                    raise self.kept_error.with_traceback(None)
            yield from self._end(transaction, is_commit=True, deadline=deadline)
        except GeneratorExit:
            self._interrupt_end(transaction)
            raise
        except DeliveryTimeoutError as late:
            self._advise(late)
            raise

    def abort(self, timeout: float | None = None) -> Flow[None]:
        """Drop what is not sent, wait for what is under way, then send EndTxn. A fatal error is raised again."""
        deadline = self._deadline(timeout)
        if self.state in {State.BUFFERING, State.ABORTABLE_ERROR}:
            # A commit that a record has failed still waits for the others, and must see the state that it has left.
            yield from self.background.until_ended(deadline)
        if self.state is State.DISCARDED:
            self.background.discard()
            return
        self.call(Event.ABORT)
        transaction = self.now_open
        try:
            if self.records is not None:
                refusal = self.refuses()
                assert refusal is not None
                self.records.abort_buffered(refusal)
            yield from self._flush(transaction, deadline)
            yield from self._end(transaction, is_commit=False, deadline=deadline)
        except GeneratorExit:
            self._interrupt_end(transaction)
            raise
        except DeliveryTimeoutError as late:
            self._advise(late)
            raise
        finally:
            if self.state not in TO_ABORT:
                self.background.following = None

    def _until_open(self, deadline: float) -> Flow[None]:
        """Wait for a commit in the background if a transaction has begun after it, as the next call needs the outcome.
        Raise DeliveryTimeoutError at the deadline; the call can then be repeated."""
        if self.state is State.BUFFERING:
            yield from self.background.until_ended(deadline)

    def _flush(self, transaction: ProducerTransaction, deadline: float) -> Flow[None]:
        """Wait until nothing of the transaction is under way."""
        try:
            if self.records is not None:
                yield from self.records.flush(self._left(deadline), without_held=True)
            while transaction.requests:
                left = deadline - self.cluster.clock()
                if left <= 0:
                    raise DeliveryTimeoutError(
                        f"a request of the transaction of {self.transactional_id!r} got no response before the "
                        "timeout of the call"
                    )
                yield from wait(self.changed, left)
        except DeliveryTimeoutError as error:
            if self.state in _FLUSHING:
                self.move(Event.INTERRUPTED, self._blocked(f"records were still under way: {error}"))
            raise

    def _end(self, transaction: ProducerTransaction, *, is_commit: bool, deadline: float) -> Flow[None]:
        """Send EndTxn if necessary; the state changes with its outcome."""
        following: ProducerIdAndEpoch | None = transaction.producer
        if transaction.is_sent:
            try:
                following = yield from self._send_end(transaction, is_commit, deadline)
            except Failed as failed:
                if failed.disposition is TransactionDisposition.UNCONFIRMED and not is_commit:
                    transaction.committed = False
                if failed.is_committed:
                    transaction.committed = True
                    self.move(Event.ENDED_EPOCH_SPENT)
                else:
                    self._fail(failed)
                raise failed.error from None
        transaction.committed = is_commit
        self.producer = following or self.producer
        if transaction.is_sent and transaction.is_new_flow:
            self.markers.expect()
        is_old_and_shared = transaction.is_shared and not transaction.is_new_flow
        is_spent = following is None or self.is_epoch_spent or is_old_and_shared
        if self.state is State.BUFFERING:
            yield from self.background.open_following(is_epoch_spent=is_spent)
        elif is_spent:
            self.move(Event.ENDED_EPOCH_SPENT)
        else:
            self.move(Event.COMMITTED if is_commit else Event.ABORTED)

    def _send_end(
        self, transaction: ProducerTransaction, is_commit: bool, deadline: float
    ) -> Flow[ProducerIdAndEpoch | None]:
        ending = self.ending(transaction)
        if transaction.is_new_flow and self.cluster.transaction_version < NEW_FLOW_LEVEL:
            # Below that level a coordinator responds to EndTxn of the new flow with UNSUPPORTED_VERSION, and to each
            # request after it with CONCURRENT_TRANSACTIONS.
            if is_commit:
                why = "transaction.version was lowered while it was open"
                raise Failed(TransactionDisposition.ABORT, self._blocked(why))
            return None
        try:
            return (yield from end_transaction(self.cluster, ending, is_commit, deadline))
        except Failed as failed:
            if failed.disposition is not TransactionDisposition.EMPTY or transaction.receipt or transaction.groups:
                raise
        # A shared transaction that no writer wrote to. The abort raises the epoch: a late writer is refused and cannot
        # write to the next transaction.
        log.info("%s: no writer wrote to the shared transaction; there is nothing to commit", self.transactional_id)
        return (yield from end_transaction(self.cluster, ending, False, deadline))

    def _blocked(self, why: str) -> BrokerError:
        text = f"the transaction of {self.transactional_id!r} cannot be committed: {why}"
        return abortable(text, ErrorCode.REQUEST_TIMED_OUT, self.transactional_id)

    def _advise(self, error: BaseException) -> None:
        """Set the remedy of a late call that left a transaction which can only be aborted."""
        if isinstance(error, DeliveryTimeoutError) and self.state is State.ABORTABLE_ERROR:
            error.remedy = "abort"

    def _give_up(self, why: str) -> None:
        """Note that a call ended without a result: the transaction can only be aborted."""
        if self.state is State.IN_TRANSACTION:
            self.move(Event.ABORTABLE, self._blocked(why))

    def _interrupt_end(self, transaction: ProducerTransaction) -> None:
        """Note that a commit or an abort was cancelled."""
        if self.state is State.COMMITTING and transaction.is_end_unconfirmed:
            # Ctrl-C and a cancelled task look the same in the block, which aborts the transaction, and here, where the
            # broker may commit it. A commit in the background logs this itself.
            log.warning(
                "%s: the commit was interrupted after it was sent, and its outcome is unknown: the transaction may be "
                "committed, aborted or still open. If it is still open, the next begin aborts it",
                self.transactional_id,
            )
        if self.state in COMMITS or self.state is State.ABORTING:
            event = Event.UNCONFIRMED if transaction.is_end_unconfirmed else Event.INTERRUPTED
            self.move(event, self._blocked("its end was interrupted"))

    def warn_of_uncommitted(self, *, has_buffered: bool) -> None:
        """Any thread: log that the producer is closed without an exception while a transaction with records is open: a
        call of commit_transaction was forgotten, and no caller gets an error.

        has_buffered: whether the producer has unfinished records.
        """
        is_sent = self.open is not None and self.open.is_sent and self.state is State.IN_TRANSACTION
        if is_sent or (has_buffered and self.state in {State.IN_TRANSACTION, State.BUFFERING}):
            log.warning(
                "%s: the producer is closed while a transaction is open, so the transaction is aborted, and "
                "read_committed consumers do not get its records. Call commit_transaction before the close",
                self.transactional_id,
            )

    def close_flow(self, timeout: float | None) -> Flow[None]:
        """Abort an open transaction when the producer closes. Errors are logged, as no caller can handle them any
        more."""
        deadline = None if timeout is None else self._deadline(timeout)
        yield from self.background.end_at_close(deadline)
        if self.state not in TO_ABORT:
            return
        timeout = None if deadline is None else self._left(deadline)
        log.info("%s: close aborts the open transaction", self.transactional_id)
        try:
            yield from self.abort(timeout)
        except KcodecError as error:
            log.warning("close could not abort the open transaction: %s", error)

    # Errors

    def _fail(self, failed: Failed) -> None:
        """Change the state after a failure; INVESTIGATE has been investigated before."""
        error = failed.error
        if (
            failed.disposition is TransactionDisposition.FATAL
            and isinstance(error, UnknownOutcomeError)
            and error.__cause__
        ):
            # The call says that the outcome is unknown; all calls after it, why the producer is finished.
            error = error.__cause__
        self.move(_EVENTS[failed.disposition], error)

    # The background

    def run(self) -> Flow[None]:
        """Send AddPartitionsToTxn, investigate why an epoch is too old, log the warning."""
        while True:
            if self.markers.is_requested:
                yield from self.markers.run()
                self.changed.set()
            transaction = self.open
            if transaction is not None and self.state in _WRITING:
                self._warn_if_late(transaction)
                if transaction.to_investigate is not None:
                    yield from self._investigate_produce(transaction)
                    continue
                if transaction.to_add:
                    yield from self._add_partitions(transaction)
                    continue
            if not self.markers.is_requested:
                yield from wait(self.wake, self._seconds_to_warning())

    def _investigate_produce(self, transaction: ProducerTransaction) -> Flow[None]:
        assert transaction.to_investigate is not None
        doing, code = transaction.to_investigate
        failed = yield from investigate(self.cluster, self.ending(transaction), doing, code)
        if self.open is transaction and self.state in _WRITING:
            self._fail(failed)
        transaction.to_investigate = None

    def _add_partitions(self, transaction: ProducerTransaction) -> Flow[None]:
        partitions = frozenset(transaction.to_add)
        self.note_sent(transaction)
        transaction.requests += 1
        try:
            yield from self._add(transaction, partitions)
        finally:
            transaction.requests -= 1
            self.changed.set()

    def _add(self, transaction: ProducerTransaction, partitions: frozenset[TopicPartition]) -> Flow[None]:
        def is_over() -> bool:
            return self.open is not transaction or self.state not in _WRITING

        try:
            yield from add_partitions(
                self.cluster,
                self.transactional_id,
                transaction.producer,
                partitions,
                self._deadline(None),
                on_no_response=lambda: self.on_no_response("AddPartitionsToTxn"),
                is_over=is_over,
            )
        except Failed as failed:
            found = yield from investigate_failed(self.cluster, self.ending(transaction), failed)
            if not is_over():
                self._fail(found)
        except UnsupportedError as error:
            if not is_over():
                self.move(Event.FATAL, error)
        except KcodecError as error:
            # The records that wait for it have their deadlines, and end the transaction.
            log.warning("%s", error)
            yield from sleep(self.cluster.times.backoff(0, self.cluster.random.random()))
        else:
            transaction.added |= partitions
            transaction.to_add -= partitions

    def _seconds_to_warning(self) -> float | None:
        if self.open is None or self.state not in _WRITING:
            return None
        return self.open.seconds_to_warning(self.cluster.clock(), self.transaction_timeout_ms)

    def _warn_if_late(self, transaction: ProducerTransaction) -> None:
        if self._seconds_to_warning() == 0.0:
            transaction.is_warned = True
            log.warning(
                "the transaction of %r has been open for %.0f %% of transaction_timeout_ms=%d: "
                "at 100 %% the coordinator aborts it",
                self.transactional_id,
                WARNING_SHARE * 100,
                self.transaction_timeout_ms,
            )
