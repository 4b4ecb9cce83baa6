# SPDX-License-Identifier: Apache-2.0
"""Transactions of the asyncio producer: `async with producer.transaction() as txn`; see `kcodec.client.transaction`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kcodec.client.transaction import TransactionBlock, manager_of
from kcodec.flow import Flow
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.transactions.handle import TransactionHandle
from kcodec.transactions.manager import TransactionManager
from kcodec.transactions.offsets import check_group_metadata
from kcodec.transactions.state import Event

if TYPE_CHECKING:
    from kcodec.client.aio.producer import Delivery, Producer, TableDelivery


class Transaction(TransactionBlock):
    """As `kcodec.client.transaction.Transaction`, awaited:

        async with producer.transaction() as txn:
            await txn.send("orders", b"value", key=b"key")
        assert txn.committed

    A task that is cancelled inside the block aborts the transaction, and is cancelled then.
    """

    def __init__(self, producer: Producer, partitions: Iterable[TopicPartition], timeout: float | None) -> None:
        super().__init__(manager_of(producer._core.source), partitions, timeout)
        self._producer = producer

    async def __aenter__(self) -> Transaction:
        self._producer._start()
        self._open = await self._producer._carrier.run(self._begin())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_ended:
            if error is None and self.owes_an_error:
                # Fatal, or ended by Java's names without an outcome: say why, not nothing.
                await self._producer._carrier.run(self._commit())
            return
        await self._producer._carrier.run(self._commit() if error is None else self._abort_after(error))

    async def send(
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
        return await self._producer.send(topic, value, key, headers, partition, timestamp)

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """As `Producer.send_arrow`, into this transaction."""
        self._check_open(Event.SEND)
        return await self._producer.send_arrow(topic, table, framing=framing)

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        """As `kcodec.client.transaction.Transaction.send_offsets`."""
        self._check_open(Event.SEND_OFFSETS)
        flow = self._manager.send_offsets(check_offsets(offsets), check_group_metadata(group_metadata, 2), timeout)
        await self._producer._carrier.run(flow)

    async def abort(self) -> None:
        """End it here: no read_committed consumer will see any of it. The end of the block then does nothing."""
        self._check_open(Event.ABORT)
        await self._producer._carrier.run(self._manager.abort(self._timeout))

    @property
    def handle(self) -> TransactionHandle:
        """As `kcodec.client.transaction.Transaction.handle`."""
        self._check_open(Event.SEND)
        return self._manager.handle(self._current)


class TransactionalCalls:
    """As `kcodec.client.transaction.TransactionalCalls`, awaited."""

    def transaction(self, partitions: Iterable[TopicPartition] = (), timeout: float | None = None) -> Transaction:
        """A transaction as a block: ``async with producer.transaction() as txn``."""
        return Transaction(self, partitions, timeout)  # type: ignore[arg-type]

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Take the transactional id over: fence who had it, abort what he left open."""
        await self._run_flow(self._manager().initialize(timeout))

    async def begin_transaction(self, timeout: float | None = None) -> None:
        """Begin a transaction; `send` takes records from now on."""
        await self._run_flow(self._manager().begin(timeout))

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        """As `Transaction.send_offsets`."""
        manager = self._manager()
        await self._run_flow(
            manager.send_offsets(check_offsets(offsets), check_group_metadata(group_metadata, 2), timeout)
        )

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush and commit; see `kcodec.client.transaction.TransactionalCalls.commit_transaction`."""
        await self._run_flow(self._manager().commit(timeout))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Drop what is not sent, and abort. After a fatal error that error is raised again."""
        await self._run_flow(self._manager().abort(timeout))

    def _manager(self) -> TransactionManager:
        return manager_of(self._core.source)  # type: ignore[attr-defined]

    async def _run_flow(self, flow: Flow[Any]) -> None:
        self._start()  # type: ignore[attr-defined]
        await self._carrier.run(flow)  # type: ignore[attr-defined]
