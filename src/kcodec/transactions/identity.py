# SPDX-License-Identifier: Apache-2.0
"""The calls that the sender of a transactional producer makes (Kafka: TransactionManager)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcodec.errors import BrokerError
from kcodec.producer.identity import HIGHEST_VERSION, BatchDisposition, BufferedRecords, ProducerIdManager
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.errors import (
    EPOCH_SPENDING_CODES,
    FENCED_CODES,
    TransactionDisposition,
    code_of,
    disposition_of,
    failure,
    not_written,
)
from kcodec.transactions.state import COMMITS, WRITING, Event, State
from kcodec.transactions.transaction import OLD_FLOW_PRODUCE_VERSION, ProducerTransaction

if TYPE_CHECKING:
    from kcodec.cluster.producer_id import ProducerIdAndEpoch
    from kcodec.flow import Flow
    from kcodec.offsets import TopicPartition
    from kcodec.transactions.background import BackgroundCommit
    from kcodec.transactions.completion import TransactionCompletion
    from kcodec.transactions.context import ProducerContext
    from kcodec.transactions.maintenance import TransactionMaintenance


class TransactionalProducerId(ProducerIdManager):
    """The producer id and epoch of InitProducerId and EndTxn, for the open transaction."""

    transactional_id: str
    owns_transactions = True

    def __init__(
        self,
        context: ProducerContext,
        background: BackgroundCommit,
        completion: TransactionCompletion,
        maintenance: TransactionMaintenance,
    ) -> None:
        super().__init__()
        self.changed = context.changed
        self.transactional_id = context.transactional_id
        self._context = context
        self._background = background
        self._completion = completion
        self._maintenance = maintenance

    def attach(self, records: BufferedRecords) -> None:
        """See ProducerIdManager."""
        context = self._context
        context.records = records
        context.announce()

    def run(self) -> Flow[None]:
        """See ProducerIdManager."""
        return self._maintenance.run()

    def close_flow(self, timeout: float | None) -> Flow[None]:
        """See ProducerIdManager."""
        return self._completion.close(timeout)

    def last_flow(self, name: str, commit_seconds: float, abort_seconds: float) -> Flow[None] | None:
        """See ProducerIdManager."""
        completion = self._completion
        return completion.end_unclosed(name, commit_seconds, abort_seconds) if completion.has_open else None

    def abort_at_once(self, timeout: float) -> Flow[None]:
        """See ProducerIdManager."""
        yield from self._completion.abort_at_once(timeout)

    @property
    def newest(self) -> ProducerTransaction | None:
        """See ProducerIdManager."""
        return self._context.newest

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """See ProducerIdManager."""
        context = self._context
        if context.state in {State.UNINITIALIZED, State.INITIALIZING, State.UNKNOWN_OUTCOME}:
            return None
        return context.producer

    @property
    def is_transaction_open(self) -> bool:
        """See ProducerIdManager."""
        context = self._context
        transaction = context.open
        if transaction is None or not transaction.is_sent or transaction.is_shared:
            return False
        return context.state in {State.IN_TRANSACTION, State.ABORTABLE_ERROR}

    def produce_highest_version(self) -> int:
        """See ProducerIdManager."""
        context = self._context
        return HIGHEST_VERSION if context.open is None or context.open.is_new_flow else OLD_FLOW_PRODUCE_VERSION

    def may_send(self, partition: TopicPartition) -> bool:
        """See ProducerIdManager."""
        context = self._context
        transaction = context.open
        if transaction is None or context.state not in WRITING or transaction.to_investigate is not None:
            return False
        if transaction.is_new_flow and context.markers.holds_back():
            context.wake.set()
            return False
        if transaction.is_new_flow or partition in transaction.added:
            context.note_sent(transaction)
            return True
        transaction.to_add.add(partition)
        context.wake.set()
        return False

    def refuses(self) -> BaseException | None:
        """See ProducerIdManager."""
        context = self._context
        return context.aborted_before() if context.state is State.ABORTING else context.kept_error

    def on_success(self, partition: TopicPartition, records_count: int = 0, last_sequence: int = -1) -> None:
        """See ProducerIdManager."""
        context = self._context
        transaction = context.open
        if transaction is None:
            return
        transaction.note_batch(partition, records_count, last_sequence)
        if transaction.batches == 1:
            context.markers.note_first_batch(transaction.seconds_open(context.cluster.clock()))

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """See ProducerIdManager. In the old flow the next transaction gets a new epoch if it is not certain what the
        partition has received with this one."""
        context = self._context
        transaction = context.open
        if transaction is None:
            return
        code = code_of(error)
        if not transaction.is_new_flow and (possibly_written or code in EPOCH_SPENDING_CODES):
            context.is_epoch_spent = True
        if context.state not in {*WRITING, State.ABORTABLE_ERROR}:
            return
        if isinstance(error, BrokerError) and disposition_of("Produce", code) is TransactionDisposition.FATAL:
            is_own = code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            resource = context.transactional_id if is_own else partition
            context.move(Event.FATAL, failure("Produce", code, f"Produce to {partition}", resource=resource).error)
        else:
            context.move(Event.ABORTABLE, not_written(context.transactional_id, partition, error))

    def on_rejected(self, transaction: object, partition: TopicPartition, error: BaseException) -> None:
        """See ProducerIdManager."""
        context = self._context
        if transaction is context.following:
            self.on_held_failure(partition, error)
        elif transaction is context.open and context.state not in COMMITS:  # EndTxn may be sent already
            self.on_failure(partition, error, possibly_written=False)

    def on_refused(self, error: BaseException) -> None:
        """See ProducerIdManager."""
        self._context.note_refused(error)

    def forget(self, error: BaseException) -> None:
        """See ProducerIdManager."""
        self._background.forget(error)

    def on_held_failure(self, partition: TopicPartition, error: BaseException) -> None:
        """See ProducerIdManager. The record belongs to the transaction that follows the one that is committed."""
        context = self._context
        if context.state is State.BUFFERING:
            self._background.fail_following(not_written(context.transactional_id, partition, error))

    def on_no_response(self, api: str) -> None:
        """See ProducerIdManager."""
        self._context.note_no_response(api)

    def on_error_code(self, partition: TopicPartition, code: int) -> BatchDisposition:
        """See ProducerIdManager. If the epoch is too old, the reason is investigated first, and the batch waits for the
        result."""
        context = self._context
        transaction = context.open
        if transaction is None or context.state not in WRITING or code not in FENCED_CODES:
            return BatchDisposition.FAIL
        if transaction.to_investigate is None:
            transaction.to_investigate = f"Produce to {partition} of {context.transactional_id!r}", code
            context.wake.set()
        return BatchDisposition.RETRY
