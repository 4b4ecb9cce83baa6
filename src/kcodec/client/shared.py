# SPDX-License-Identifier: Apache-2.0
"""One transaction, many processes: writers that share a handle, and its end from anywhere. No other client has this.

    with producer.transaction(partitions=[...]) as txn:            # the owner
        text = txn.handle.to_json()                                # to the others, by whatever way there is
        ...                                                        # each: a TransactionWriter; it returns its receipt
    # or, from any process, after any restart:
    commit_transaction(handle, bootstrap_servers=..., receipts=receipts)

Rules: one writer for each partition and handle. If a writer dies, abort: do not write its partitions again under that
handle. The transaction's time-out goes on: `transaction_timeout_ms`, at most the broker's transaction.max.timeout.ms.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from kcodec.arguments import partitions_of
from kcodec.client.producer import Delivery, Producer, TableDelivery
from kcodec.errors import TransactionStateError
from kcodec.flow import Flow
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig, refuse_unknown
from kcodec.network.thread_loop import Carrier
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.producer.identity import ProducerIdSource
from kcodec.producer.options import ProducerConfig
from kcodec.producer.tables import ANY_PARTITION, TableBatch
from kcodec.security import SECURITY_OPTIONS
from kcodec.transactions.handle import TransactionHandle, WriterReceipt
from kcodec.transactions.handle_identity import HandleSource
from kcodec.transactions.offsets import check_group_metadata
from kcodec.transactions.shared import abort_shared, commit_shared

if TYPE_CHECKING:
    from kcodec.client.options import ClientOptions, WriterOptions

__all__ = ["TransactionHandle", "TransactionWriter", "WriterReceipt", "abort_transaction", "commit_transaction"]
#: What the handle decides, and not a writer.
NOT_FOR_WRITERS = frozenset({"transactional_id", "transaction_timeout_ms", "acks", "enable_idempotence"})


class SharedWriting:
    """What the sync and async writers share: the handle, the partitions, the receipt."""

    def __init__(self, handle: TransactionHandle, partitions: Iterable[TopicPartition]) -> None:
        if not isinstance(handle, TransactionHandle):
            raise TypeError(f"handle must be a TransactionHandle, not {type(handle).__name__}")
        self.handle = handle
        self.partitions = tuple(dict.fromkeys(partitions_of(partitions)))
        if not self.partitions:
            raise ValueError("partitions is empty: name those that this writer, and no other, writes to")
        self.source: HandleSource | None = None
        self.is_complete = False

    def make_source(self, client: Client) -> HandleSource:
        """The identity, for the producer's core."""
        self.source = HandleSource(client.cluster, self.handle, self.partitions, time.time)
        return self.source

    def choose(self, topic: str, partition: int | None) -> int:
        """The partition of a record: what was asked for if it is named, or the only one of the topic that is."""
        named = [one.partition for one in self.partitions if one.topic == topic]
        if partition is None and len(named) == 1:
            return named[0]
        if partition is None or partition not in named:
            what = f"{topic}-{partition}" if partition is not None else f"a partition of {topic!r}, not chosen"
            names = ", ".join(str(one) for one in self.partitions)
            raise ValueError(f"this writer writes to {names}; {what} is not its own: partition= must be one of them")
        return partition

    def choose_all(self, topic: str, batches: Iterable[TableBatch]) -> list[TableBatch]:
        """The same for the batches of a table."""
        return [
            batch._replace(partition=self.choose(topic, None if batch.partition == ANY_PARTITION else batch.partition))
            for batch in batches
        ]

    def finish(self) -> None:
        """All records have ended. Raises the first error that one ended with."""
        self.raise_error()
        self.is_complete = True

    def raise_error(self) -> None:
        """Raise the first error that a record ended with, if there is one."""
        assert self.source is not None
        if self.source.error is not None:
            raise self.source.error

    def receipt(self) -> WriterReceipt:
        """What was written. Raises TransactionStateError before the writer was closed, or when it failed."""
        if not self.is_complete or self.source is None:
            raise TransactionStateError(
                "a writer has a receipt once it is closed and everything was acknowledged; without one the "
                "transaction must be aborted",
                state="IN_TRANSACTION",
                event="COMMIT",
            )
        return self.source.receipt


def check_writer_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError for options that only the owner of a transaction has."""
    for name in sorted(NOT_FOR_WRITERS & options.keys()):
        raise TypeError(f"TransactionWriter has no option {name!r}: the handle decides it")


def take_client_options(options: Mapping[str, Any], what: str) -> ClientConfig:
    """Of commit_transaction and abort_transaction."""
    left = dict(options)
    taken = ClientConfig.take(left)
    refuse_unknown(left, ClientConfig.names() | SECURITY_OPTIONS | {"timeout"}, what)
    return taken


def seconds(timeout: float | None, options: ClientConfig) -> float:
    """Of a call without a timeout: default_api_timeout_ms."""
    return options.default_api_timeout_ms / 1000 if timeout is None else timeout


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
    """Writes into a transaction that another process has begun, to partitions that it names and no other writer does.

        with TransactionWriter(handle, partitions=[("orders", 0)], bootstrap_servers=...) as writer:
            writer.send("orders", b"value")
        writer.receipt                              # to the process that commits

    Options: those of Producer, but for acks, enable_idempotence and the transactional ones.

    The end of the block waits for all records, and raises the first error; there is no receipt then and the transaction
    must be aborted. ProducerFencedError, TransactionTimedOutError and AbortableTransactionError (ended elsewhere) say
    that the transaction is over.
    """

    def __init__(
        self, handle: TransactionHandle, partitions: Iterable[TopicPartition], **options: Unpack[WriterOptions]
    ) -> None:
        check_writer_options(options)
        self._writing = SharedWriting(handle, partitions)
        self._producer = _HandleProducer(self._writing, **options)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """As `Producer.send`. partition may be left out where the writer has one partition of the topic."""
        return self._producer.send(topic, value, key, headers, self._writing.choose(topic, partition), timestamp)

    def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """As `Producer.send_arrow`; a row for a partition that is not the writer's is a ValueError, nothing is sent."""
        return self._producer.send_arrow(topic, table, framing=framing)

    def flush(self, timeout: float | None = None) -> None:
        """As `Producer.flush`; raises the first error that a record ended with, as `close` does."""
        self._producer.flush(timeout)
        self._writing.raise_error()

    def close(self, timeout: float | None = None) -> None:
        """Wait for all records, and end. Raises the first error that a record ended with; idempotent but for that."""
        self._producer.close(timeout)
        self._writing.finish()

    @property
    def receipt(self) -> WriterReceipt:
        """What was written, partition by partition; after `close`. It pickles."""
        return self._writing.receipt()

    def __enter__(self) -> TransactionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # What is not sent stays unsent; there is no receipt, so there is no commit.
            self._producer.close(timeout=0)

    def __repr__(self) -> str:
        return f"<TransactionWriter of {self._writing.handle.transactional_id!r} {list(self._writing.partitions)}>"


def commit_transaction(
    handle: TransactionHandle,
    *,
    receipts: Iterable[WriterReceipt] = (),
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    group_metadata: ConsumerGroupMetadata | str | None = None,
    timeout: float | None = None,
    **options: Unpack[ClientOptions],
) -> None:
    """Commit the transaction of a handle, from any process and after any restart; again, if one is not sure.

    receipts: of all its writers, the owner's own (`txn.receipt`) included; where some are given, a partition without
              one is a TransactionStateError, two that wrote to one partition a ValueError, and nothing is sent.
    offsets, group_metadata: to be committed with it, as in `Transaction.send_offsets`.
    timeout:  seconds; default_api_timeout_ms without it. options: those of every client (bootstrap_servers ...).

    Raises AbortableTransactionError or TransactionTimedOutError when it was not committed, ProducerFencedError when the
    id has a new owner, AuthorizationError, DeliveryTimeoutError when EndTxn was not sent, UnknownOutcomeError when it
    was not answered.
    """
    taken = take_client_options(options, "commit_transaction")
    flow = commit_shared(
        (client := Client(taken)).cluster,
        handle,
        receipts=tuple(receipts),
        offsets=check_offsets(offsets or {}),
        group=check_group(offsets, group_metadata, 2),
        timeout=seconds(timeout, taken),
        wall_clock=time.time,
    )
    _run_once(client, flow)


def abort_transaction(
    handle: TransactionHandle, *, timeout: float | None = None, **options: Unpack[ClientOptions]
) -> None:
    """Abort the transaction of a handle, from any process and after any restart; again, if one is not sure.

    Raises AbortableTransactionError when it was committed, ProducerFencedError when the id has a new owner,
    AuthorizationError, DeliveryTimeoutError when the abort was not confirmed.
    """
    taken = take_client_options(options, "abort_transaction")
    client = Client(taken)
    _run_once(client, abort_shared(client.cluster, handle, timeout=seconds(timeout, taken), wall_clock=time.time))


def check_group(
    offsets: Mapping[Any, Any] | None, group: ConsumerGroupMetadata | str | None, stacklevel: int
) -> ConsumerGroupMetadata | None:
    """The group that offsets belong to. Raises ValueError for offsets without one."""
    if offsets and group is None:
        raise ValueError("offsets need group_metadata: the consumer's (ConsumerGroupMetadata)")
    return None if group is None else check_group_metadata(group, stacklevel + 1)


def _run_once(client: Client, flow: Flow[None]) -> None:
    carrier = Carrier(client)
    try:
        carrier.run(flow)
    finally:
        carrier.close()
