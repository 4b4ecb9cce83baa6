# SPDX-License-Identifier: Apache-2.0
"""One transaction of many processes: writers share a handle, and any process can end it. No other client has this.

    async with producer.transaction(partitions=[...]) as txn:      # the owner
        text = txn.handle.to_json()                                # sent to the other processes in any way
        ...                                                        # each: a TransactionWriter; it returns its receipt
    # or without an owner, from any process, after any restart:
    handle = await begin_transaction("orders-0", partitions=[...], bootstrap_servers=...)
    await commit_transaction(handle, bootstrap_servers=..., receipts=receipts)

`SharedTransactions` repeats that with the same connections, and keeps the progress of the job in the transaction.

Rules: one writer for each partition and handle. If a writer dies, abort: do not write its partitions again with that
handle. The transaction's timeout applies: `transaction_timeout_ms`, at most the broker's transaction.max.timeout.ms.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kcodec.arguments import partitions_of
from kcodec.client.aio.producer import Delivery, Producer, TableDelivery
from kcodec.client.aio.waiting import ClientBase, IoLoop
from kcodec.cluster.broker_report import reported
from kcodec.errors import TransactionStateError
from kcodec.flow import Flow
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig, refuse_unknown
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.producer.batch import ANY_PARTITION
from kcodec.producer.identity import ProducerIdManager
from kcodec.producer.options import ProducerConfig
from kcodec.producer.tables import TableBatch, table_batches
from kcodec.security import SECURITY_OPTIONS
from kcodec.session.shared_transactions import SharedTransactionFlows
from kcodec.transactions.handle import TransactionHandle, WriterReceipt, check_handle
from kcodec.transactions.offsets import check_group_metadata
from kcodec.transactions.shared import HandleProducerId, abort_shared, begin_shared, commit_shared

if TYPE_CHECKING:
    from kcodec.client.options import ClientOptions, WriterOptions
    from kcodec.producer.delivery import OnDelivery

T = TypeVar("T")
__all__ = [
    "SharedTransactions",
    "TransactionHandle",
    "TransactionWriter",
    "WriterReceipt",
    "abort_transaction",
    "begin_transaction",
    "commit_transaction",
]
#: What the handle decides, and not a writer.
NOT_FOR_WRITERS = frozenset({"transactional_id", "transaction_timeout_ms", "acks", "enable_idempotence", "partitioner"})


class _HandleProducer(Producer):
    """A producer whose identity and partitions are those of a writer."""

    def __init__(
        self,
        handle: TransactionHandle,
        partitions: tuple[TopicPartition, ...],
        must_be_first: bool,
        **options: Unpack[WriterOptions],
    ) -> None:
        self.handle = handle
        self.partitions = partitions
        self._must_be_first = must_be_first
        super().__init__(**options)

    def _make_id_manager(self, own: ProducerConfig) -> ProducerIdManager:
        seconds = own.settings(self._client.options).delivery_timeout if self._must_be_first else None
        self.id_manager = HandleProducerId(self._client.cluster, self.handle, self.partitions, time.time, seconds)
        return self.id_manager

    def choose(self, topic: str, partition: int | None) -> int:
        """Return the partition of a record: the requested one if it belongs to the writer, or its only one of the
        topic."""
        named = [one.partition for one in self.partitions if one.topic == topic]
        if partition is None and len(named) == 1:
            return named[0]
        if partition is None or partition not in named:
            what = f"{topic}-{partition}" if partition is not None else f"no partition of {topic!r}"
            names = ", ".join(str(one) for one in self.partitions)
            raise ValueError(f"partition= must be one of this writer's partitions ({names}), got {what}")
        return partition

    def _table_batches(self, topic: str, table: Any, count: int, framing: str | None) -> Iterable[TableBatch]:
        named = [one.partition for one in self.partitions if one.topic == topic]
        default = named[0] if len(named) == 1 else ANY_PARTITION
        now = time.time_ns() // 1_000_000
        return [
            batch._replace(partition=self.choose(topic, None if batch.partition == ANY_PARTITION else batch.partition))
            for batch in table_batches(table, count, self._core.settings, now, framing, default)
        ]

    def raise_error(self) -> None:
        """Raise the error of the first record that failed, if there is one."""
        if self.id_manager.error is not None:
            raise self.id_manager.error


class TransactionWriter:
    """Writes to a transaction that another process has begun, to partitions that no other writer writes to.

        async with TransactionWriter(handle, partitions=[("orders", 0)], bootstrap_servers=...) as writer:
            await writer.send("orders", b"value")
        writer.receipt                              # to the process that commits

    must_be_first: before its first batch of a partition, request from the leader whether this handle has already
    written there. If so, another writer was first, and this one fails with AbortableTransactionError. Without this
    check a second writer of a partition goes unnoticed, and readers get records of both. It requires the permission
    READ on the topic, and brokers from Kafka 2.8 on. It does not stop two writers that begin at the same moment.

    Options: those of Producer, except acks, enable_idempotence and the transactional ones.

    The end of the block waits for all records, and raises the first error; then there is no receipt, and the
    transaction must be aborted. ProducerFencedError, TransactionTimedOutError and AbortableTransactionError (ended
    elsewhere) mean that the transaction is over.
    """

    def __init__(
        self,
        handle: TransactionHandle,
        partitions: Iterable[TopicPartition],
        *,
        must_be_first: bool = False,
        **options: Unpack[WriterOptions],
    ) -> None:
        for name in sorted(NOT_FOR_WRITERS & options.keys()):
            raise TypeError(f"TransactionWriter has no option {name!r}: the handle determines it")
        check_handle(handle)
        named = tuple(dict.fromkeys(partitions_of(partitions)))
        if not named:
            raise ValueError("partitions is empty: name the partitions that only this writer writes to")
        self._is_complete = False
        self._producer = _HandleProducer(handle, named, must_be_first, **options)

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
        """As `Producer.send`. partition may be omitted if the writer has one partition of the topic."""
        chosen = self._producer.choose(topic, partition)
        return await self._producer.send(topic, value, key, headers, chosen, timestamp, on_delivery)

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """As `Producer.send_arrow`. A writer with one partition of the topic sends rows without a partition there,
        whatever their keys. A row for a partition of another writer raises ValueError, and nothing is sent."""
        return await self._producer.send_arrow(topic, table, framing=framing)

    async def send_encoded(
        self, topic: str, batch: bytes | bytearray | memoryview, partition: int | None = None
    ) -> TableDelivery:
        """Send one encoded record batch, for example one that `kcodec.encode` returned in another process, without
        decoding it. partition may be omitted if the writer has one partition of the topic.

        The writer replaces the producer id, epoch, sequence number and base offset. Compression, timestamps and
        records stay as they are. A batch that the topic's max.message.bytes does not allow is split, as others are.

        Waits for buffer space as `send_arrow` does. Raises EncodeError if it is not exactly one batch that a producer
        may send (version 2, consecutive records, CreateTime, no control batch), and DecodeError or a subclass if its
        header or its CRC is invalid. Like a record that cannot be sent, it then blocks the commit.
        """
        return await self._producer._send_encoded(topic, batch, self._producer.choose(topic, partition))

    async def flush(self, timeout: float | None = None) -> None:
        """As `Producer.flush`; raises the error of the first record that failed, as `close` does."""
        await self._producer.flush(timeout)
        self._producer.raise_error()

    async def close(self, timeout: float | None = None) -> None:
        """Wait for all records, and end. Raises the error of the first record that failed; otherwise idempotent.

        timeout: seconds after which records without an acknowledgment fail with DeliveryTimeoutError; None waits until
            each record has ended.
        """
        await self._producer.close(timeout)
        self._producer.raise_error()
        self._is_complete = True

    @property
    def receipt(self) -> WriterReceipt:
        """The receipt: what was written to each partition. It can be pickled. Raises TransactionStateError before
        `close`, or when the writer failed."""
        if not self._is_complete:
            raise TransactionStateError(
                "a writer has a receipt once it is closed and every record was acknowledged; without a receipt the "
                "transaction must be aborted",
                state="IN_TRANSACTION",
                event="COMMIT",
            )
        return self._producer.id_manager.receipt

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
        producer = self._producer
        return f"<TransactionWriter of {producer.handle.transactional_id!r} {list(producer.partitions)}>"


async def begin_transaction(
    transactional_id: str,
    *,
    partitions: Iterable[TopicPartition] = (),
    transaction_timeout_ms: float = 60_000,
    timeout: float | None = None,
    **options: Unpack[ClientOptions],
) -> TransactionHandle:
    """Begin a transaction that no producer owns, and leave it open: for writers (`TransactionWriter`) anywhere, and for
    `commit_transaction` or `abort_transaction`.

    The last producer of the transactional id is fenced, and its open transaction is aborted.

    transactional_id: id of the transaction, which must not be empty.
    partitions: all that any writer will write to; required below transaction.version 2, not used from there on.
    transaction_timeout_ms: time after which the coordinator aborts the transaction, at most the broker's
              transaction.max.timeout.ms.
    timeout:  seconds; default_api_timeout_ms by default. options: those of every client (bootstrap_servers ...).

    Raises AuthorizationError, FatalTransactionError (the broker rejects transaction_timeout_ms),
    TransactionStateError if partitions are required and missing, DeliveryTimeoutError. After any of them it can be
    called again, which aborts what may have been begun.
    """
    taken = _client_options(options, "begin_transaction")
    named = partitions_of(partitions)
    timeout_ms = _transaction_timeout(transactional_id, transaction_timeout_ms)
    client = Client(taken)
    deadline = client.cluster.clock() + _seconds(timeout, taken)
    begin = begin_shared(client.cluster, transactional_id, named, timeout_ms, deadline)
    seconds = _seconds(timeout, taken)
    return await _run_once(client, _reported(client, begin, "begin", transactional_id, seconds))


async def commit_transaction(
    handle: TransactionHandle,
    *,
    receipts: Iterable[WriterReceipt] | None = None,
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    group_metadata: ConsumerGroupMetadata | str | None = None,
    timeout: float | None = None,
    **options: Unpack[ClientOptions],
) -> None:
    """Commit the transaction of a handle, from any process and after any restart; a repeat is harmless.

    receipts: of all writers, including the owner's own (`txn.receipt`). Two receipts with the same partition raise
              ValueError. If the open transaction contains a partition without a receipt, TransactionStateError is
              raised; an empty list is checked, too. In both cases nothing is committed. None: no check.
    offsets, group_metadata: to be committed with it, as in `Transaction.send_offsets`.
    timeout:  seconds; default_api_timeout_ms by default. options: those of every client (bootstrap_servers ...).

    Raises AbortableTransactionError or TransactionTimedOutError when it was not committed, ProducerFencedError when the
    id has a new owner, AuthorizationError, DeliveryTimeoutError when EndTxn was not sent, UnknownOutcomeError when it
    got no response.
    """
    check_handle(handle)
    taken = _client_options(options, "commit_transaction")
    checked = check_offsets(offsets or {})
    if offsets and group_metadata is None:
        raise ValueError("offsets require group_metadata: pass the consumer's (ConsumerGroupMetadata)")
    client = Client(taken)
    flow = commit_shared(
        client.cluster,
        handle,
        receipts=None if receipts is None else tuple(receipts),
        offsets=checked,
        group=None if group_metadata is None else check_group_metadata(group_metadata, 2),
        timeout=_seconds(timeout, taken),
        wall_clock=time.time,
    )
    await _run_once(client, _reported(client, flow, "commit", handle.transactional_id, _seconds(timeout, taken)))


async def abort_transaction(
    handle: TransactionHandle, *, timeout: float | None = None, **options: Unpack[ClientOptions]
) -> None:
    """Abort the transaction of a handle, from any process and after any restart; a repeat is harmless.

    timeout:  seconds; default_api_timeout_ms by default. options: those of every client (bootstrap_servers ...).

    Raises AbortableTransactionError when it was committed, ProducerFencedError when the id has a new owner,
    AuthorizationError, DeliveryTimeoutError when the abort was not confirmed.
    """
    check_handle(handle)
    taken = _client_options(options, "abort_transaction")
    client = Client(taken)
    flow = abort_shared(client.cluster, handle, timeout=_seconds(timeout, taken), wall_clock=time.time)
    await _run_once(client, _reported(client, flow, "abort", handle.transactional_id, _seconds(timeout, taken)))


class SharedTransactions(ClientBase):
    # SYNC: "Use it in one event loop." -> "One thread uses it at a time."
    """Transactions of one transactional id that other processes write, one after the other, and the progress of their
    job. It is for schedulers (Spark's driver, Ray, Dask, a main process) that must write each step exactly once.

        async with SharedTransactions("copy-0", "copy-progress", bootstrap_servers=...) as transactions:
            handle, progress = await transactions.begin(partitions=[("out", 0), ("out", 1)])
            step = progress.offset if progress else 0
            ...                                  # step number `step`: writers with the handle return their receipts
            await transactions.commit(handle, receipts, step + 1)

    The progress is the committed offset (and metadata, a text of up to 4096 bytes) of `group`, which the commit writes
    within the transaction. So after a failure at any time, including UnknownOutcomeError, the next `begin` returns the
    committed progress. The group belongs to the job alone: no consumer joins it. Brokers delete the offset of a group
    that was idle for offsets.retention.minutes (default: seven days); the progress is then None, as at the beginning.

    transactional_id: the id of all its transactions, which must not be empty.
    transaction_timeout_ms: time after which the coordinator aborts an open transaction, at most the broker's
              transaction.max.timeout.ms.
    progress_partition: the partition whose offset is the progress; None: partition 0 of the topic that `begin` names.
    Permissions: WRITE on the transactional id; READ on the group and on the topic of that partition.
    Options: those of every client. The connections stay open until `close`. Use it in one event loop.
    """

    def __init__(
        self,
        transactional_id: str,
        group: str,
        *,
        progress_partition: TopicPartition | None = None,
        transaction_timeout_ms: float = 60_000,
        **options: Unpack[ClientOptions],
    ) -> None:
        taken = _client_options(options, "SharedTransactions")
        if not isinstance(group, str) or not group:
            raise ValueError(f"group must be a non-empty string, not {group!r}")
        timeout_ms = _transaction_timeout(transactional_id, transaction_timeout_ms)
        if progress_partition is not None:
            (progress_partition,) = partitions_of([progress_partition], "progress_partition")
        self._client = Client(taken)
        self._io_loop = IoLoop(self._client)
        self._flows = SharedTransactionFlows(
            self._client.cluster, transactional_id, group, timeout_ms, progress_partition, time.time
        )

    async def begin(
        self, partitions: Iterable[TopicPartition] = (), timeout: float | None = None
    ) -> tuple[TransactionHandle, OffsetAndMetadata | None]:
        """Begin a transaction; return its handle, and the committed progress: None if none exists.

        What this object, or a predecessor with the transactional id, left open is aborted before the progress is read.
        The first begin takes over the transactional id. A later one raises ProducerFencedError if another process has
        taken it over since then, and so does every one after it. (In that case a coordinator may abort the other
        process's open transaction; that process gets AbortableTransactionError and begins again.)

        partitions: as in `begin_transaction`. timeout: seconds; default_api_timeout_ms by default.
        Raises AuthorizationError, FatalTransactionError, TransactionStateError, DeliveryTimeoutError.
        """
        seconds = self._seconds(timeout)
        begin = self._flows.begin(partitions_of(partitions), seconds)
        return await self._run(_reported(self._client, begin, "begin", self._flows.transactional_id, seconds))

    async def commit(
        self,
        handle: TransactionHandle,
        receipts: Iterable[WriterReceipt],
        progress: int | OffsetAndMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit the transaction with the progress: the number of the next step, and a text if it is an
        OffsetAndMetadata. As `commit_transaction`, errors included; after any of them `begin` returns the committed
        progress."""
        await self._run(self._flows.commit(handle, tuple(receipts), progress, self._seconds(timeout)))

    async def abort(self, handle: TransactionHandle, timeout: float | None = None) -> None:
        """Abort the transaction, as `abort_transaction`, if there is one. The next begin does it, too, but until then a
        transaction with records blocks read_committed readers."""
        await self._run(self._flows.abort(handle, self._seconds(timeout)))

    def _seconds(self, timeout: float | None) -> float:
        return _seconds(timeout, self._client.options)

    async def close(self, timeout: float = 5.0) -> None:
        """Close the connections; an open transaction stays open. Idempotent."""
        await self._io_loop.close(timeout)

    async def __aenter__(self) -> Self:
        return self  # it connects with the first call

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<SharedTransactions of {self._flows.transactional_id!r}>"


#: What each function takes besides the options of a client, for suggestions.
ARGUMENTS = {
    "abort_transaction": {"timeout"},
    "begin_transaction": {"partitions", "timeout", "transaction_timeout_ms"},
    "commit_transaction": {"group_metadata", "offsets", "receipts", "timeout"},
    "SharedTransactions": {"progress_partition", "transaction_timeout_ms"},
}


def _client_options(options: Mapping[str, Any], what: str) -> ClientConfig:
    left = dict(options)
    taken = ClientConfig.take(left)
    refuse_unknown(left, ClientConfig.names() | SECURITY_OPTIONS | ARGUMENTS[what], what)
    return taken


def _transaction_timeout(transactional_id: str, transaction_timeout_ms: float) -> int:
    """Return the timeout, checked as a producer's options are. Raise ValueError or TypeError if one is invalid."""
    if transactional_id is None:
        raise ValueError("transactional_id must be a non-empty string, not None")
    own = ProducerConfig(transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms)
    return int(own.transaction_timeout_ms)


def _seconds(timeout: float | None, options: ClientConfig) -> float:
    return options.default_api_timeout_ms / 1000 if timeout is None else timeout


def _reported(client: Client, flow: Flow[T], what: str, transactional_id: str, seconds: float) -> Flow[T]:
    """Run a flow, and log a warning if no broker responds."""
    doing = f"{what} of the transaction of {transactional_id!r}"
    return reported(flow, client.cluster, doing, seconds, "kcodec.transactions")


async def _run_once(client: Client, flow: Flow[T]) -> T:
    io_loop = IoLoop(client)
    try:
        return await io_loop.run(flow)
    finally:
        await io_loop.close()
