# SPDX-License-Identifier: Apache-2.0
"""Transactions of several processes: writers share a handle, and any process can end the transaction. Other Kafka
clients do not have this.

    async with producer.transaction(partitions=[...]) as txn:      # the owner
        text = txn.handle.to_json()                                # send it to the other processes in any way
        ...                                                        # each uses a TransactionWriter, which has a receipt
    # or without an owner, from any process, after any restart:
    handle = await begin_transaction("orders-0", partitions=[...], bootstrap_servers=...)
    await commit_transaction(handle, bootstrap_servers=..., receipts=receipts)

`SharedTransactions` runs successive transactions with the same connections, and stores the progress of the job in each
transaction.

Use only one writer for each partition and handle. If a writer fails, abort the transaction. Do not write its partitions
again with that handle. The coordinator aborts the transaction after `transaction_timeout_ms`, which can be at most the
broker's transaction.max.timeout.ms.
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
#: Options of a producer that a writer does not have, because the handle determines their values.
NOT_FOR_WRITERS = frozenset({"transactional_id", "transaction_timeout_ms", "acks", "enable_idempotence", "partitioner"})


class _HandleProducer(Producer):
    """The producer of a writer. It has the identity of the handle and the partitions of the writer."""

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
        """Return the partition of a record: the requested one, or the only partition of the topic that the writer has.
        Raise ValueError if the writer does not have the partition, or has several and none is requested."""
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

    def __repr__(self) -> str:
        """Return the text for warnings, with the name of the class that the program uses."""
        return super().__repr__().replace(type(self).__name__, TransactionWriter.__name__, 1)

    def raise_error(self) -> None:
        """Raise the error of the first record that failed, if there is one."""
        if self.id_manager.error is not None:
            raise self.id_manager.error


class TransactionWriter:
    """A writer of a transaction that another process has begun. It writes to partitions that no other writer writes to.

        async with TransactionWriter(handle, partitions=[("orders", 0)], bootstrap_servers=...) as writer:
            await writer.send("orders", b"value")
        writer.receipt                              # send it to the process that commits

    handle: Handle of the transaction.
    partitions: Partitions that only this writer writes to.
    must_be_first: Whether the writer checks that it is the first one. Before its first batch of a partition, it
        requests from the leader whether this handle has already been used to write there. If so, it fails with
        AbortableTransactionError. Without this check, a second writer of a partition is not detected, and readers get
        the records of both. The check requires the permission READ on the topic, and brokers from Kafka 2.8 on. It does
        not detect two writers that begin at the same moment.
    options: Options of Producer, except acks, enable_idempotence, partitioner, transactional_id and
        transaction_timeout_ms.

    The end of the block waits for all records, and raises the error of the first record that failed. The writer then
    has no receipt, and the transaction must be aborted. ProducerFencedError, TransactionTimedOutError and
    AbortableTransactionError (the transaction was ended elsewhere) mean that the transaction is over.

    Raise TypeError or ValueError if an argument or an option is invalid.
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
        """Send a record as `Producer.send` does. `partition` may be omitted if the writer has only one partition of the
        topic. Raise ValueError if the writer does not have the partition."""
        chosen = self._producer.choose(topic, partition)
        return await self._producer.send(topic, value, key, headers, chosen, timestamp, on_delivery)

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """Send the rows of a table as `Producer.send_arrow` does. If the writer has only one partition of the topic,
        rows without a partition go there, whatever their keys. Raise ValueError if the writer does not have the
        partition of a row. Nothing is sent then."""
        return await self._producer.send_arrow(topic, table, framing=framing)

    async def send_encoded(
        self, topic: str, batch: bytes | bytearray | memoryview, partition: int | None = None
    ) -> TableDelivery:
        """Send one encoded record batch without decoding it, for example one that `kcodec.encode` returned in another
        process.

        partition: Partition of the batch. It may be omitted if the writer has only one partition of the topic.

        The writer replaces the producer id, epoch, sequence number and base offset. Compression, timestamps and
        records stay as they are. If the batch is larger than the topic's max.message.bytes, it is split like other
        batches.

        Wait for buffer space as `send_arrow` does. Raise EncodeError unless the data is exactly one batch that a
        producer may send (version 2, consecutive records, CreateTime, no control batch). Raise DecodeError or a
        subclass if the header or the CRC of the batch is invalid. A refused batch prevents the commit, as does any
        record that cannot be sent. Raise ValueError if the writer does not have the partition.
        """
        return await self._producer._send_encoded(topic, batch, self._producer.choose(topic, partition))

    async def flush(self, timeout: float | None = None) -> None:
        """Send the buffered records immediately and wait for them, as `Producer.flush` does.

        timeout: Maximum time in seconds.
            None: no limit, but each record is acknowledged or fails within `delivery_timeout_ms`.

        Raise the error of the first record that failed, as `close` does. Raise DeliveryTimeoutError after the timeout.
        """
        await self._producer.flush(timeout)
        self._producer.raise_error()

    async def close(self, timeout: float | None = None) -> None:
        """Send the buffered records, wait until each of them is acknowledged or has failed, and close the connections.
        Raise the error of the first record that failed, also in further calls. Otherwise, further calls have no effect.

        timeout: Maximum time in seconds. Records that are not acknowledged by then fail with DeliveryTimeoutError.
            None: no limit, but each record is acknowledged or fails within `delivery_timeout_ms`.
        """
        await self._producer.close(timeout)
        self._producer.raise_error()
        self._is_complete = True

    @property
    def receipt(self) -> WriterReceipt:
        """The receipt, with the number of records that were written to each partition. It can be pickled. Raise
        TransactionStateError before `close`, or if the writer failed."""
        if not self._is_complete:
            raise TransactionStateError(
                "this writer has no receipt: it is not closed, or not all of its records were acknowledged; close it, "
                "and abort the transaction if close() raises an error",
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
            # Buffered records are not sent. There is no receipt, so there will be no commit.
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
    """Begin a transaction that no producer owns, and leave it open. Writers (`TransactionWriter`) in any process use
    its handle, and then `commit_transaction` or `abort_transaction` ends it.

    The last producer of the transactional id is fenced, and its open transaction is aborted.

    transactional_id: Id of the transaction. It must not be empty.
    partitions: All partitions that any writer will write to. Required below transaction.version 2, and not used from
        version 2 on.
    transaction_timeout_ms: Time after which the coordinator aborts the transaction, at most the broker's
        transaction.max.timeout.ms.
    timeout: Maximum time in seconds. None: default_api_timeout_ms.
    options: Options of every client (bootstrap_servers ...).

    Raise AuthorizationError if the id is not permitted. Raise FatalTransactionError if the broker rejects
    transaction_timeout_ms. Raise TransactionStateError if partitions are required and missing. Raise
    DeliveryTimeoutError after the timeout. After any of these errors, the call can be repeated. It then aborts a
    transaction that may have been begun.
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
    """Commit the transaction of a handle, from any process and after any restart. A repeated call has no further
    effect.

    receipts: Receipts of all writers, including the one of the owner (`txn.receipt`). They are compared with the
        partitions of the open transaction before anything is committed. An empty list is compared, too. None: nothing
        is compared.
    offsets, group_metadata: Offsets to commit with the transaction, and the consumer group, as in
        `Transaction.send_offsets`.
    timeout: Maximum time in seconds. None: default_api_timeout_ms.
    options: Options of every client (bootstrap_servers ...).

    Nothing is committed if one of these errors is raised:
    - ValueError if two receipts have records of the same partition, or if `offsets` are given without `group_metadata`;
    - TransactionStateError if the open transaction contains a partition without a receipt, or if a receipt has records
      of another partition;
    - AbortableTransactionError or TransactionTimedOutError if the transaction cannot be committed, for example because
      it was aborted;
    - DeliveryTimeoutError if EndTxn was not sent.

    Raise ProducerFencedError if the id has a new owner, and AuthorizationError if a request is not permitted. Raise
    UnknownOutcomeError if EndTxn got no response. The transaction may then be committed.
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
    """Abort the transaction of a handle, from any process and after any restart. A repeated call has no further effect.

    timeout: Maximum time in seconds. None: default_api_timeout_ms.
    options: Options of every client (bootstrap_servers ...).

    Raise AbortableTransactionError if the transaction was committed. Raise ProducerFencedError if the id has a new
    owner, and AuthorizationError if the id is not permitted. Raise DeliveryTimeoutError if the abort was not confirmed.
    """
    check_handle(handle)
    taken = _client_options(options, "abort_transaction")
    client = Client(taken)
    flow = abort_shared(client.cluster, handle, timeout=_seconds(timeout, taken), wall_clock=time.time)
    await _run_once(client, _reported(client, flow, "abort", handle.transactional_id, _seconds(timeout, taken)))


class SharedTransactions(ClientBase):
    # SYNC: "Use it only in one event loop." -> "Only one thread at a time may use it."
    """Successive transactions of one transactional id that other processes write to, with the progress of their job.
    It is for schedulers (Spark's driver, Ray, Dask, a main process) that must write each step exactly once.

        async with SharedTransactions("copy-0", "copy-progress", bootstrap_servers=...) as transactions:
            handle, progress = await transactions.begin(partitions=[("out", 0), ("out", 1)])
            step = progress.offset if progress else 0
            ...                                  # step number `step`: writers with the handle return their receipts
            await transactions.commit(handle, receipts, step + 1)

    The progress is the committed offset of `group`, with metadata (a text of up to 4096 bytes). The commit writes it
    within the transaction. After a failure at any time, including UnknownOutcomeError, the next `begin` therefore
    returns the committed progress. Only the job may use the group, and no consumer may join it. Brokers delete the
    offset of a group that was idle for offsets.retention.minutes (default: seven days). The progress is then None, as
    at the beginning.

    transactional_id: Id of all transactions. It must not be empty.
    group: Id of the group whose committed offset is the progress. It must not be empty.
    progress_partition: Partition whose offset is the progress. None: partition 0 of the topic that `begin` names.
    transaction_timeout_ms: Time after which the coordinator aborts an open transaction, at most the broker's
        transaction.max.timeout.ms.
    options: Options of every client.

    It requires the permission WRITE on the transactional id, and READ on the group and on the topic of the progress
    partition. The connections stay open until `close`. Use it only in one event loop.
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
        """Begin a transaction. Return its handle and the committed progress. The progress is None if the group has no
        committed offset.

        partitions: All partitions that any writer will write to, as in `begin_transaction`.
        timeout: Maximum time in seconds. None: default_api_timeout_ms.

        If this object or a previous process with the transactional id has left a transaction open, it is aborted before
        the progress is read. The first call takes over the transactional id. If another process takes it over after
        that, the next call raises ProducerFencedError, as does every later call. A coordinator may then also abort the
        open transaction of the other process, which gets AbortableTransactionError and begins again.

        Raise ValueError if no progress_partition was given and `partitions` are not of exactly one topic. Raise
        AuthorizationError, FatalTransactionError, TransactionStateError and DeliveryTimeoutError as `begin_transaction`
        does.
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
        """Commit the transaction together with the progress, as `commit_transaction` does.

        progress: Number of the next step. An OffsetAndMetadata also has a text.
        timeout: Maximum time in seconds. None: default_api_timeout_ms.

        Raise the errors of `commit_transaction`. After any of them, `begin` returns the committed progress. Raise
        ValueError if the handle is for another transactional id.
        """
        await self._run(self._flows.commit(handle, tuple(receipts), progress, self._seconds(timeout)))

    async def abort(self, handle: TransactionHandle, timeout: float | None = None) -> None:
        """Abort the transaction if it is open, as `abort_transaction` does. The next call of `begin` also aborts it.
        Until then, a transaction with records blocks read_committed readers.

        timeout: Maximum time in seconds. None: default_api_timeout_ms.

        Raise the errors of `abort_transaction`. Raise ValueError if the handle is for another transactional id.
        """
        await self._run(self._flows.abort(handle, self._seconds(timeout)))

    def _seconds(self, timeout: float | None) -> float:
        return _seconds(timeout, self._client.options)

    async def close(self, timeout: float = 5.0) -> None:
        # SYNC: "timeout: Has no effect." -> "timeout: Maximum time to wait for the end of the I/O thread, in seconds."
        """Close the connections. An open transaction stays open. Further calls have no effect.

        timeout: Has no effect.
        """
        await self._io_loop.close(timeout)

    async def __aenter__(self) -> Self:
        return self  # the first call connects to the brokers

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<SharedTransactions of {self._flows.transactional_id!r}>"


#: Arguments of each function in addition to the options of a client, for suggestions in errors.
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
    """Return the timeout in ms. Both arguments are checked like the options of a producer. Raise ValueError or
    TypeError if one is invalid."""
    if transactional_id is None:
        raise ValueError("transactional_id must be a non-empty string, not None")
    own = ProducerConfig(transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms)
    return int(own.transaction_timeout_ms)


def _seconds(timeout: float | None, options: ClientConfig) -> float:
    return options.default_api_timeout_ms / 1000 if timeout is None else timeout


def _reported(client: Client, flow: Flow[T], what: str, transactional_id: str, seconds: float) -> Flow[T]:
    """Run a flow. Log a warning if no broker responds."""
    doing = f"{what} of the transaction of {transactional_id!r}"
    return reported(flow, client.cluster, doing, seconds, "kcodec.transactions")


async def _run_once(client: Client, flow: Flow[T]) -> T:
    io_loop = IoLoop(client)
    try:
        return await io_loop.run(flow)
    finally:
        await io_loop.close()
