# SPDX-License-Identifier: Apache-2.0
"""Transactions of the blocking producer: `with producer.transaction() as txn`, and the same under Java's names.

What is legal when is the table of `kcodec.transactions.state`; what is sent is `kcodec.transactions.manager`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kcodec.arguments import partitions_of
from kcodec.client.interruption import INTERRUPTED_ABORT_SECONDS, is_interruption
from kcodec.errors import KcodecError, TransactionStateError
from kcodec.flow import Flow
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.transactions.handle import TransactionHandle, WriterReceipt
from kcodec.transactions.manager import TO_ABORT, TransactionManager
from kcodec.transactions.offsets import check_group_metadata
from kcodec.transactions.state import Event, State
from kcodec.transactions.transaction import ProducerTransaction

if TYPE_CHECKING:
    from kcodec.client.producer import Delivery, Producer, TableDelivery

log = logging.getLogger("kcodec.transactions")


def manager_of(source: object) -> TransactionManager:
    """The manager of a transactional producer. Raises TransactionStateError for another one."""
    if not isinstance(source, TransactionManager):
        raise TransactionStateError(
            "this producer has no transactional_id: give it one to use transactions",
            state=State.UNINITIALIZED.name,
            event=Event.BEGIN.name,
        )
    return source


def begin_at_once(producer: Producer, manager: TransactionManager) -> ProducerTransaction | None:
    """A begin that sends nothing does not wait for the loop's thread either; of a closed producer, or in a forked
    process, it is left to the carrier to say so."""
    with producer._lock:
        return None if producer._core.is_closed else manager.begin_at_once()


class TransactionBlock:
    """What the blocks of the sync and async API share: the producer of the transaction, and its outcome."""

    def __init__(
        self, manager: TransactionManager, partitions: Iterable[TopicPartition], timeout: float | None
    ) -> None:
        self._manager = manager
        self._partitions = tuple(partitions_of(partitions))
        self._timeout = timeout
        self._open: ProducerTransaction | None = None

    @property
    def committed(self) -> bool | None:
        """True, False, or None: still open, or EndTxn got no response and the outcome is unknown."""
        return None if self._open is None else self._open.committed

    @property
    def receipt(self) -> WriterReceipt:
        """What this producer itself has written into a transaction whose handle was read, and was acknowledged: for
        `commit_transaction` in another process. Flush before."""
        if not self._current.is_shared:
            raise TransactionStateError(
                "the owner of a transaction needs a receipt only if others end it: read txn.handle first",
                state=self._manager.state.name,
                event=Event.COMMIT.name,
            )
        return WriterReceipt(self._current.receipt)

    @property
    def _current(self) -> ProducerTransaction:
        if self._open is None:
            raise TransactionStateError(
                "the transaction begins with its block: with producer.transaction() as txn",
                state=self._manager.state.name,
                event=Event.SEND.name,
            )
        return self._open

    @property
    def is_ended(self) -> bool:
        """Whether nothing is left to do at the end of the block."""
        return self._open is not self._manager.open or self._manager.state not in TO_ABORT

    @property
    def owes_an_error(self) -> bool:
        """Whether it ended otherwise than by the block's user: a fatal error while he did something else, say."""
        if self._open is not self._manager.open or self.committed:
            return False
        return self.committed is None or self._manager.state is State.FATAL_ERROR

    def _check_open(self, event: Event) -> None:
        if self._current is not self._manager.open or self._manager.state in {
            State.READY,
            State.UNINITIALIZED,
            State.INITIALIZING,
        }:
            outcome = {True: "was committed", False: "was aborted", None: "has ended"}[self.committed]
            raise TransactionStateError(
                f"this transaction {outcome}: {event.value} is not possible any more",
                state=self._manager.state.name,
                event=event.name,
            )

    def _handle(self) -> Flow[TransactionHandle]:
        # A flow, though it waits for nothing: it touches what belongs to the loop's thread.
        yield from ()
        self._check_open(Event.SEND)
        return self._manager.handle(self._current)

    def _begin(self) -> Flow[ProducerTransaction]:
        return self._manager.begin(self._timeout, self._partitions)

    def _end_deadline(self, error: BaseException | None = None) -> float:
        """Where the program is being ended (Ctrl-C), the abort gets little time: the next begin, or the coordinator,
        ends the transaction all the same."""
        seconds = self._manager.max_block if self._timeout is None else self._timeout
        if error is not None and is_interruption(error):
            seconds = min(seconds, INTERRUPTED_ABORT_SECONDS)
        return self._manager.cluster.clock() + seconds

    def _abort_after(self, error: BaseException | None, deadline: float | None = None) -> Flow[None]:
        """Abort the transaction that a block leaves open. An error of the abort becomes a note on `error`, the cause.

        deadline: of the end of the block, where a commit has used a part of its time.
        """
        deadline = self._end_deadline(error) if deadline is None else deadline
        try:
            yield from self._manager.abort(max(deadline - self._manager.cluster.clock(), 0.0))
        except KcodecError as failed:
            log.warning("the abort of a transaction failed: %s", failed)
            if error is not None and failed is not error:
                error.add_note(f"the abort after it failed, too: {failed}")
        finally:
            if self._open is not None:
                self._manager.abandon(self._open)

    def _commit(self) -> Flow[None]:
        """Commit; where that is not possible any more, abort in the time that is left, and raise why."""
        deadline = self._end_deadline()
        try:
            yield from self._manager.commit(self._timeout)
        except KcodecError as error:
            if self._open is self._manager.open and self._manager.state in TO_ABORT:
                yield from self._abort_after(error, deadline)
            raise


class Transaction(TransactionBlock):
    """A transaction of a blocking producer, as a block: it begins with it, is committed at its end, and aborted when an
    exception leaves it, which is raised again.

        with producer.transaction() as txn:
            txn.send("orders", b"value", key=b"key")
            txn.send_offsets({TopicPartition("in", 0): 42}, group_metadata)
        assert txn.committed

    At the end of the block: BrokerErrors (AbortableTransactionError names the partition of a record that failed) after
    the abort; ProducerFencedError; TransactionTimedOutError; UnknownOutcomeError, and `committed` is None.
    """

    def __init__(self, producer: Producer, partitions: Iterable[TopicPartition], timeout: float | None) -> None:
        super().__init__(manager_of(producer._core.source), partitions, timeout)
        self._producer = producer

    def __enter__(self) -> Transaction:
        self._open = None if self._partitions else begin_at_once(self._producer, self._manager)
        if self._open is None:
            self._open = self._producer._carrier.run(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_ended:
            if error is None and self.owes_an_error:
                # Fatal, or ended by Java's names without an outcome: say why, not nothing.
                self._producer._carrier.run(self._commit())
            return
        self._producer._carrier.run(self._commit() if error is None else self._abort_after(error))

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """As `Producer.send`, into this transaction. The commit waits for it; if it fails, the commit does."""
        self._check_open(Event.SEND)
        return self._producer.send(topic, value, key, headers, partition, timestamp)

    def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """As `Producer.send_arrow`, into this transaction."""
        self._check_open(Event.SEND)
        return self._producer.send_arrow(topic, table, framing=framing)

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets of a consumer group with this transaction: those a consumer goes on at, not those it read
        last. group_metadata: of the consumer; its generation fences members that left the group. A group id alone is
        taken with a warning, for partitions assigned by hand.

        Raises AbortableTransactionError for an old generation, AuthorizationError with the group or topic.
        """
        self._check_open(Event.SEND_OFFSETS)
        flow = self._manager.send_offsets(check_offsets(offsets), check_group_metadata(group_metadata, 2), timeout)
        self._producer._carrier.run(flow)

    def abort(self) -> None:
        """End it here: no read_committed consumer will see any of it. The end of the block then does nothing."""
        self._check_open(Event.ABORT)
        self._producer._carrier.run(self._manager.abort(self._timeout))

    @property
    def handle(self) -> TransactionHandle:
        """What other processes need to write into this transaction (`TransactionWriter`), or to end it. Below
        transaction.version 2 it takes `producer.transaction(partitions=[...])`."""
        return self._producer._carrier.run(self._handle())


class TransactionalCalls:
    """Transactions of a Producer that has a transactional_id. timeout: seconds; max_block_ms without one.

    How to choose the id: one per live instance, the same after a restart, as the next begin of the same id ends what
    the last one left open. Two live producers with one id: the later one wins, the other gets a ProducerFencedError.
    """

    def transaction(self, partitions: Iterable[TopicPartition] = (), timeout: float | None = None) -> Transaction:
        """A transaction as a block: ``with producer.transaction() as txn``. It needs no init_transactions before.

        partitions: all partitions that any writer will write to; below transaction.version 2 needed before `txn.handle`
                    is read.
        timeout:    seconds for the begin, and the same for the end: the commit, and the abort after a commit that
                    failed, share one deadline. What the abort leaves open then, the next begin aborts.
        """
        return Transaction(self, partitions, timeout)  # type: ignore[arg-type]

    def init_transactions(self, timeout: float | None = None) -> None:
        """Take the transactional id over: fence who had it, abort what he left open. begin_transaction does it, too.

        Raises AuthorizationError, FatalTransactionError (say, a transaction_timeout_ms above the broker's maximum),
        DeliveryTimeoutError, after which it can be called again.
        """
        self._run_flow(self._manager().initialize(timeout))

    def begin_transaction(self, timeout: float | None = None) -> None:
        """Begin a transaction; `send` takes records from now on."""
        if begin_at_once(self, self._manager()) is None:  # type: ignore[arg-type]
            self._run_flow(self._manager().begin(timeout))

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        """As `Transaction.send_offsets`."""
        manager = self._manager()
        self._run_flow(manager.send_offsets(check_offsets(offsets), check_group_metadata(group_metadata, 2), timeout))

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush and commit. Any error but UnknownOutcomeError and DeliveryTimeoutError says that it was not committed:
        abort_transaction goes on from there. After UnknownOutcomeError it may be called again."""
        self._run_flow(self._manager().commit(timeout))

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Drop what is not sent, and abort. After a fatal error that error is raised again."""
        self._run_flow(self._manager().abort(timeout))

    def _manager(self) -> TransactionManager:
        return manager_of(self._core.source)  # type: ignore[attr-defined]

    def _run_flow(self, flow: Flow[Any]) -> None:
        self._carrier.run(flow)  # type: ignore[attr-defined]
