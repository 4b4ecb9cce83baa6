# SPDX-License-Identifier: Apache-2.0
"""The context manager that `Producer.transaction` returns.

`kcodec.transactions.state` has the table of the calls that each state of a transaction allows.
`kcodec.transactions.manager` sends the requests of transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kcodec.arguments import check_seconds, partitions_of
from kcodec.client.interruption import abort_of, announced, limited_seconds
from kcodec.end_limits import ABORT_SECONDS
from kcodec.errors import KcodecError, TransactionStateError
from kcodec.flow import Flow
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.transactions.state import TO_ABORT, Event, State

if TYPE_CHECKING:
    from kcodec.client.aio.waiting import Delivery, TableDelivery
    from kcodec.producer.delivery import OnDelivery
    from kcodec.transactions.handle import TransactionHandle, WriterReceipt
    from kcodec.transactions.manager import TransactionManager
    from kcodec.transactions.transaction import ProducerTransaction

T = TypeVar("T")
log = logging.getLogger("kcodec.transactions")


class TransactionalProducer(Protocol):
    """The methods of `Producer` that a transaction calls."""

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = (),
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """See `Producer.send`."""
        ...

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """See `Producer.send_arrow`."""
        ...

    async def _run(self, flow: Flow[T]) -> T: ...

    def _manager(self) -> TransactionManager: ...

    def _begin_at_once(self, manager: TransactionManager) -> ProducerTransaction | None: ...

    def _begun(self, flow: Flow[T], timeout: float | None) -> Flow[T]: ...


class _Beginning:
    """One attempt to begin a transaction with a block."""

    def __init__(self) -> None:
        self.is_interrupted = False
        self.begun: ProducerTransaction | None = None


class Transaction:
    # SYNC: "If the task is cancelled inside the block, the transaction is aborted before the task ends." -> ""
    """A transaction of a producer, to use as a block. It begins with the block and is committed at its end. If an
    exception leaves the block, the transaction is aborted and the exception is raised again.

        async with producer.transaction() as txn:
            await txn.send("orders", b"value", key=b"key")
            await txn.send_offsets({TopicPartition("in", 0): 42}, group_metadata)
        assert txn.committed

    The end of the block raises these errors:
    - a BrokerError if the commit is not possible, after the abort. AbortableTransactionError names the partition if a
      record failed;
    - ProducerFencedError if another producer uses this transactional_id;
    - TransactionTimedOutError if the coordinator has aborted the transaction after transaction_timeout_ms;
    - DeliveryTimeoutError if the commit could not be sent in time, after the abort;
    - UnknownOutcomeError if EndTxn got no response. `committed` is then None.

    If the task is cancelled inside the block, the transaction is aborted before the task ends.
    """

    def __init__(
        self, producer: TransactionalProducer, partitions: Iterable[TopicPartition], timeout: float | None
    ) -> None:
        self._producer = producer
        self._manager = producer._manager()
        self._partitions = tuple(partitions_of(partitions))
        self._timeout = timeout
        self._open: ProducerTransaction | None = None

    async def __aenter__(self) -> Transaction:
        before = self._manager.newest
        beginning: _Beginning | None = None
        try:
            self._open = None if self._partitions else self._producer._begin_at_once(self._manager)
            if self._open is None:
                beginning = _Beginning()
                self._open = await self._producer._run(self._producer._begun(self._begin(beginning), self._timeout))
        except BaseException as error:
            # The transaction may have begun already, or may begin later, and no block would end it. A transaction that
            # another caller has begun meanwhile is not affected.
            begun = None
            if beginning is not None:
                beginning.is_interrupted = True
                begun = beginning.begun
            elif not isinstance(error, KcodecError) and self._manager.newest is not before:
                begun = self._manager.newest
            if begun is not None:
                self._manager.abandon(begun)
            raise
        return self

    def _begin(self, beginning: _Beginning) -> Flow[ProducerTransaction]:
        begun = beginning.begun = yield from self._manager.begin(self._timeout, self._partitions)
        if beginning.is_interrupted:
            self._manager.abandon(begun)
        return begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_ended:
            if error is None and self.owes_an_error:
                # After a fatal error, or an end by `commit_transaction` without an outcome, raise the reason.
                await self._producer._run(self._commit())
            return
        try:
            await self._producer._run(self._commit() if error is None else self._abort_after(error))
        except BaseException:
            # The commit or abort may have been interrupted at any point. If the transaction is still open, the next
            # begin aborts it.
            if self._open is not None:
                self._manager.abandon(self._open)
            raise

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = (),
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Send a record in this transaction, as `Producer.send` does. The commit waits for the record, and fails if the
        record fails."""
        self._check_open(Event.SEND)
        return await self._producer.send(topic, value, key, headers, partition, timestamp, on_delivery)

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """Send the rows of a table in this transaction, as `Producer.send_arrow` does."""
        self._check_open(Event.SEND)
        return await self._producer.send_arrow(topic, table, framing=framing)

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets of a consumer group with this transaction.

        offsets: Next offsets to read, not the offsets of the last records.
        group_metadata: Metadata of the consumer (`Consumer.group_metadata`). Its generation fences members that have
            left the group. A group id alone is accepted with a warning, for partitions that were assigned by `assign`.
        timeout: Maximum time in seconds. None: max_block_ms.

        Raise AbortableTransactionError if the generation is not the current one. Raise AuthorizationError, which names
        the group or the topic, if the commit is not permitted.
        """
        from kcodec.transactions.offsets import check_group_metadata

        self._check_open(Event.SEND_OFFSETS)
        check_seconds(timeout, "send_offsets")
        flow = self._manager.send_offsets(check_offsets(offsets), check_group_metadata(group_metadata, 2), timeout)
        await self._producer._run(flow)

    async def abort(self) -> None:
        """Abort the transaction. No read_committed consumer will return its records. The end of the block then does
        nothing."""
        self._check_open(Event.ABORT)
        await self._producer._run(self._manager.abort(self._timeout))

    @property
    def handle(self) -> TransactionHandle:
        """The handle with which other processes write to this transaction (`TransactionWriter`) or end it. Raise
        TransactionStateError below transaction.version 2 unless the transaction was begun with
        `producer.transaction(partitions=[...])`, and if the transaction has ended."""
        if True:  # ASYNC
            return self._handle()
        else:
            return self._producer._run(self._on_io_thread(self._handle))

    def _handle(self) -> TransactionHandle:
        self._check_open(Event.SEND)
        return self._manager.handle(self._current)

    if False:  # SYNC

        def _on_io_thread(self, function: Callable[[], TransactionHandle]) -> Flow[TransactionHandle]:
            """Run a function that uses objects of the I/O thread, as a flow that does not wait."""
            yield from ()
            return function()

    @property
    def committed(self) -> bool | None:
        """Whether the transaction is committed. None if it is still open, or if EndTxn got no response, so that the
        outcome is unknown."""
        return None if self._open is None else self._open.committed

    @property
    def receipt(self) -> WriterReceipt:
        """The receipt for the records that this producer itself has written, for `commit_transaction` in another
        process. Call `Producer.flush` before. Raise TransactionStateError if the handle of the transaction was not
        read."""
        from kcodec.transactions.handle import WriterReceipt

        if not self._current.is_shared:
            raise TransactionStateError(
                "this transaction has no receipt, because no other process has its handle: read txn.handle first",
                state=self._manager.state.name,
                event=Event.COMMIT.name,
            )
        return WriterReceipt(self._current.receipt)

    @property
    def is_ended(self) -> bool:
        """Whether the end of the block has nothing to do."""
        return self._open is not self._manager.newest or self._manager.state not in TO_ABORT

    @property
    def owes_an_error(self) -> bool:
        """Whether something other than the block has ended the transaction, such as a fatal error, so that the end of
        the block must raise the reason."""
        state = self._manager.state
        if (
            self._open is not self._manager.newest
            or self.committed
            or state in {State.RELEASED, State.COMMITTING_ASYNC}
        ):
            return False
        return self.committed is None or self._manager.state is State.FATAL_ERROR

    @property
    def _current(self) -> ProducerTransaction:
        if self._open is None:
            raise TransactionStateError(
                # SYNC: "async with" -> "with"
                "the transaction begins with its block: use `async with producer.transaction() as txn`",
                state=self._manager.state.name,
                event=Event.SEND.name,
            )
        return self._open

    def _check_open(self, event: Event) -> None:
        context = self._manager.context
        if context.state is State.IN_TRANSACTION and context.open is self._open:
            return  # the usual case, for each record
        self._manager.check_newest(self._current, event)

    def _end_deadline(self, error: BaseException | None = None) -> float:
        """Return the deadline of the end of the transaction. If the program is ending (Ctrl-C), the abort gets little
        time. If it does not complete, the transaction is aborted when the next one begins, or by the coordinator."""
        seconds = self._manager.max_block if self._timeout is None else self._timeout
        limit = limited_seconds(error, ABORT_SECONDS)
        return self._manager.cluster.clock() + (seconds if limit is None else min(seconds, limit))

    def _abort_after(self, error: BaseException | None, deadline: float | None = None) -> Flow[None]:
        """Abort the transaction that a block leaves open. An error of the abort is added to `error`, the cause of the
        abort, as a note.

        deadline: Deadline of the end of the block, if a commit has used a part of its time.
        """
        deadline = self._end_deadline(error) if deadline is None else deadline
        seconds = max(deadline - self._manager.cluster.clock(), 0.0)
        what = abort_of(self._manager.transactional_id)
        try:
            yield from announced(self._manager.abort(seconds), error, seconds, what, "kcodec.transactions")
        except KcodecError as failed:
            log.warning("the abort of a transaction failed; the next begin repeats it: %s", failed)
            if error is not None and failed is not error:
                error.add_note(f"the abort after it failed, too: {failed}")
        finally:
            if self._open is not None:
                self._manager.abandon(self._open)

    def _commit(self) -> Flow[None]:
        """Commit the transaction. If that is not possible, abort it in the remaining time and raise the reason."""
        deadline = self._end_deadline()
        try:
            yield from self._manager.commit(self._timeout)
        except KcodecError as error:
            if self._open is self._manager.newest and self._manager.state in TO_ABORT:
                yield from self._abort_after(error, deadline)
            raise
