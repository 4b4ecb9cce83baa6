# SPDX-License-Identifier: Apache-2.0
"""One transaction, many processes, for asyncio; see `kcodec.client.shared`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from kcodec.client.aio.producer import Delivery, Producer, TableDelivery
from kcodec.client.shared import SharedWriting, check_group, check_writer_options, seconds, take_client_options
from kcodec.flow import Flow
from kcodec.network.asyncio_loop import Carrier
from kcodec.network.client import Client
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.producer.identity import ProducerIdSource
from kcodec.producer.options import ProducerConfig
from kcodec.producer.tables import TableBatch
from kcodec.transactions.handle import TransactionHandle, WriterReceipt
from kcodec.transactions.shared import abort_shared, commit_shared

if TYPE_CHECKING:
    from kcodec.client.options import ClientOptions, WriterOptions

__all__ = ["TransactionHandle", "TransactionWriter", "WriterReceipt", "abort_transaction", "commit_transaction"]


class _HandleProducer(Producer):
    """A producer whose identity and partitions are those of a writer."""

    def __init__(self, writing: SharedWriting, **options: Unpack[WriterOptions]) -> None:
        self._writing = writing
        super().__init__(**options)

    def _make_source(self, own: ProducerConfig) -> ProducerIdSource:
        return self._writing.make_source(self._client)

    def _table_batches(self, topic: str, table: Any, count: int, framing: str | None) -> Iterable[TableBatch]:
        return self._writing.choose_all(topic, super()._table_batches(topic, table, count, framing))


class TransactionWriter:
    """As `kcodec.client.shared.TransactionWriter`, awaited."""

    def __init__(
        self, handle: TransactionHandle, partitions: Iterable[TopicPartition], **options: Unpack[WriterOptions]
    ) -> None:
        check_writer_options(options)
        self._writing = SharedWriting(handle, partitions)
        self._producer = _HandleProducer(self._writing, **options)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """As `Producer.send`. partition may be left out where the writer has one partition of the topic."""
        chosen = self._writing.choose(topic, partition)
        return await self._producer.send(topic, value, key, headers, chosen, timestamp)

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """As `Producer.send_arrow`; a row for a partition that is not the writer's is a ValueError, nothing is sent."""
        return await self._producer.send_arrow(topic, table, framing=framing)

    async def flush(self, timeout: float | None = None) -> None:
        """As `Producer.flush`; raises the first error that a record ended with, as `close` does."""
        await self._producer.flush(timeout)
        self._writing.raise_error()

    async def close(self, timeout: float | None = None) -> None:
        """Wait for all records, and end. Raises the first error that a record ended with; idempotent but for that."""
        await self._producer.close(timeout)
        self._writing.finish()

    @property
    def receipt(self) -> WriterReceipt:
        """What was written, partition by partition; after `close`. It pickles."""
        return self._writing.receipt()

    async def __aenter__(self) -> TransactionWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            # What is not sent stays unsent; there is no receipt, so there is no commit.
            await self._producer.close(timeout=0)

    def __repr__(self) -> str:
        return f"<TransactionWriter of {self._writing.handle.transactional_id!r} {list(self._writing.partitions)}>"


async def commit_transaction(
    handle: TransactionHandle,
    *,
    receipts: Iterable[WriterReceipt] = (),
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    group_metadata: ConsumerGroupMetadata | str | None = None,
    timeout: float | None = None,
    **options: Unpack[ClientOptions],
) -> None:
    """As `kcodec.client.shared.commit_transaction`, awaited."""
    taken = take_client_options(options, "commit_transaction")
    client = Client(taken)
    flow = commit_shared(
        client.cluster,
        handle,
        receipts=tuple(receipts),
        offsets=check_offsets(offsets or {}),
        group=check_group(offsets, group_metadata, 2),
        timeout=seconds(timeout, taken),
        wall_clock=time.time,
    )
    await _run_once(client, flow)


async def abort_transaction(
    handle: TransactionHandle, *, timeout: float | None = None, **options: Unpack[ClientOptions]
) -> None:
    """As `kcodec.client.shared.abort_transaction`, awaited."""
    taken = take_client_options(options, "abort_transaction")
    client = Client(taken)
    await _run_once(client, abort_shared(client.cluster, handle, timeout=seconds(timeout, taken), wall_clock=time.time))


async def _run_once(client: Client, flow: Flow[None]) -> None:
    carrier = Carrier(client)
    try:
        await carrier.run(flow)
    finally:
        await carrier.close()
