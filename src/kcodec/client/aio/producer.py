# SPDX-License-Identifier: Apache-2.0
"""The producer of the asyncio API. `kcodec.producer.core` buffers and sends the records.

The context manager `Transaction` is in `transaction.py`. `kcodec.transactions.manager` sends the requests of
transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from kcodec.arguments import check_seconds
from kcodec.client.aio.transaction import Transaction
from kcodec.client.aio.waiting import Delivery, IoLoop, ProducerBase, TableDelivery, TransactionCommit
from kcodec.client.flows import Client, run_in_background, work_of_producer
from kcodec.client.interruption import (
    abort_of,
    announced,
    closing_seconds,
    has_interrupted,
    is_interruption,
    limited_seconds,
    note_failures,
)
from kcodec.cluster.broker_report import reported
from kcodec.errors import (
    BufferFullError,
    DeliveryErrors,
    EncodeError,
    KcodecError,
    TopicDeliveryError,
    TransactionStateError,
    TransportError,
)
from kcodec.flow import Flow
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.producer.accumulator import NO_HEADERS, header_pairs
from kcodec.producer.delivery import BatchMetadata, RecordMetadata
from kcodec.producer.on_delivery import call_on_delivery, check_on_delivery
from kcodec.timestamps import END_OF_SECONDS, FIRST_SECONDS, warn_of_seconds
from kcodec.transactions.state import TO_ABORT, Event, State

if TYPE_CHECKING:
    from kcodec.client.options import ProducerOptions
    from kcodec.producer.delivery import OnDelivery
    from kcodec.producer.identity import ProducerIdManager
    from kcodec.producer.options import ProducerConfig
    from kcodec.producer.tables import TableBatch
    from kcodec.transactions.handle import TransactionHandle, WriterReceipt
    from kcodec.transactions.manager import TransactionManager
    from kcodec.transactions.transaction import ProducerTransaction

T = TypeVar("T")

__all__ = [
    "BatchMetadata",
    "Delivery",
    "DeliveryErrors",
    "Producer",
    "RecordMetadata",
    "TableDelivery",
    "TopicDeliveryError",
    "Transaction",
    "TransactionCommit",
]


class Producer(ProducerBase):
    # SYNC: "Use it only in the event loop of its first call." -> "Thread-safe: one producer can serve a whole process."
    # SYNC: "# in the buffer" -> ""
    # SYNC: "await delivery" -> "delivery.result()"
    """A producer, which writes records. Use it only in the event loop of its first call.

        async with Producer(bootstrap_servers="localhost:9092", compression_type="lz4") as producer:
            delivery = await producer.send("orders", b"value", key=b"key")   # in the buffer
            await delivery                         # RecordMetadata(topic, partition, offset, timestamp)

    `kcodec.client.ProducerOptions` describes the options of a producer, `kcodec.client.ClientOptions` those of every
    client, and docs/security.md those of TLS and SASL.

    `enable_idempotence` (the default) prevents duplicates caused by the producer's own retries, and keeps the order of
    the records in each partition. It does not prevent duplicates if the application itself sends a record again, for
    example after a restart, or because it does not know the outcome of the first attempt. That requires a
    `transactional_id`.

    Choose one `transactional_id` for each running instance, and use the same id after a restart. The first transaction
    of a producer aborts the transaction that the previous producer with the same id left open. If two running producers
    use the same id, the later one continues, and the other one gets a ProducerFencedError.

    Raise TypeError, with a suggestion, if an option is unknown. Raise ValueError if the value of an option is invalid.
    """

    def __init__(self, *positional: Never, **options: Unpack[ProducerOptions]) -> None:
        from kcodec.network.option_names import refuse_positional
        from kcodec.producer.options import take_options

        refuse_positional(positional, "Producer")
        own, client_options = take_options(options)
        client = Client(client_options)
        self._build(own, client, IoLoop(client))
        client.network.login_patience = self._core.settings.delivery_timeout
        if False:  # SYNC
            self._start()

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, Any] | str | PathLike[str], **options: Unpack[ProducerOptions]
    ) -> Self:
        """Create a producer from properties with the names of Java's clients or of librdkafka.

        properties: A mapping, or the path of a file in the format of java.util.Properties. Text values are converted to
                    the types of the options.
        options: Options of kcodec. They override the properties.

        A file may also contain options that only other clients have. They have no effect and are logged as a WARNING.

        Raise TypeError if a producer does not have some of the names. The error lists all of them, each with a
        suggestion where there is one. Raise ValueError if a value is invalid, and OSError if the file cannot be read.
        Errors never show the values of secrets.
        """
        from kcodec.client.properties import options_from_properties

        taken: Any = {**options_from_properties(properties, "producer"), **options}
        return cls(**taken)

    def _build(self, own: ProducerConfig, client: Client, io_loop: IoLoop) -> None:
        """Initialize the producer with checked options. The producer of a group transact session uses the client and
        the io_loop of the session."""
        from kcodec.producer.core import ProducerCore

        self._options: ProducerConfig = own
        self._partitioner = own.partitioner if callable(own.partitioner) else None
        self._is_unit_reported = False
        self._prepares = not (own.key_serializer is None is own.value_serializer and self._partitioner is None)
        self._client = client
        self._io_loop = io_loop
        self._transactions: TransactionManager | None = None
        on_space = self._make_lock()
        self._core = ProducerCore(
            own.settings(client.options),
            self._client.cluster,
            self._make_id_manager(own),
            clock=client.clock,
            random=client.random.random,
            metrics=client.options.metrics,
            lock=self._lock,
            new_delivery=Delivery,
            post=io_loop.post,
            on_space=on_space,
            check_wait=io_loop.check_wait,
        )
        self._attach_space()
        if True:  # ASYNC
            self._core.accumulator.check_caller = io_loop.checked_thread
            self._core.act = io_loop.act
            self._append = self._core.append
        else:
            self._append = self._core.accumulator.send
            self._core.take_turns(io_loop.io_turn)
        self._core.watch_processor(time.thread_time, time.process_time)
        client.on_crash.append(self._core.crash)
        self._open.add(self)
        io_loop.last_work = work_of_producer(self._core, repr(self))

    def _make_id_manager(self, own: ProducerConfig) -> ProducerIdManager:
        """Return the object that provides the producer's identity."""
        from kcodec.producer.identity import IdempotentProducerId, WithoutProducerId

        if own.transactional_id is not None:
            from kcodec.transactions.manager import TransactionManager

            self._transactions = TransactionManager(
                self._client.cluster,
                own.transactional_id,
                int(own.transaction_timeout_ms),
                own.max_block_ms / 1000,
            )
            return self._transactions.identity
        if own.enable_idempotence:
            options = self._client.options
            return IdempotentProducerId(
                request_timeout=options.request_timeout_ms / 1000,
                backoff=options.retry_backoff,
                random=self._client.random.random,
            )
        return WithoutProducerId()

    def _table_batches(self, topic: str, table: Any, count: int, framing: str | None) -> Iterable[TableBatch]:
        """Return the batches of a table. The producer of a TransactionWriter overrides this to choose their
        partitions."""
        from kcodec.producer.tables import table_batches

        choose = self._core.partitions_of_keys(topic, count)
        return table_batches(table, count, self._core.settings, time.time_ns() // 1_000_000, framing, choose=choose)

    def _begin(self) -> None:
        run_in_background(self._client, self._core, {"producer": self._core.run()})

    # Sending

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = NO_HEADERS,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        # SYNC: "in another event loop than that of the first call" -> "if it would have to wait in a callback"
        # SYNC: "in the event loop" -> "on the producer's I/O thread"
        # SYNC: "A task that sends in a loop lets the event loop run every 50 ms." -> ""
        # SYNC: "cancelled" -> "interrupted (Ctrl-C)"
        """Append a record to the buffer. The producer sends it in the background.

        value, key: bytes-like objects or None, or values that the serializers accept.
        headers: Pairs of name and value, or a mapping.
        partition: Number of the partition. None: the option `partitioner` selects it. By default, the key determines
            the partition (murmur2, as in Java), and a record without a key goes to the partition whose batch the
            producer is filling.
        timestamp: Timestamp in milliseconds since 1970. None: the current time. If a number looks like seconds, a
            WARNING is logged once.
        on_delivery: Plain function that is called once, in the event loop, when the outcome of the record
            is known. Its arguments are the RecordMetadata and None, or None and the error of the record, which then
            counts as retrieved. It must not block. If it raises an exception, the exception is logged, and the error of
            the record does not count as retrieved. It is not called if `send` raises an error.

        If the buffer (`buffer_memory`) is full, wait for free space. Callers get space in the order in which they began
        to wait. Raise BufferFullError after `max_block_ms`. Raise TransactionStateError if the transaction has ended
        meanwhile; the record is not part of the next transaction. Raise EncodeError if a value is invalid, if the
        record is larger than `max_request_size`, or if the topic does not have the partition. Raise TransportError if
        the producer is closed. Raise RuntimeError in another event loop than that of the first call.
        The Delivery contains errors that occur later.

        In a transaction, a record that is refused with EncodeError or BufferFullError prevents the commit, as does any
        record that was not written, and a call that is cancelled while it waits.

        A task that sends in a loop lets the event loop run every 50 ms.
        """
        if True:  # ASYNC
            if not self._is_running():
                self._start()
        if on_delivery is not None:
            check_on_delivery(on_delivery)
            sent = await self.send(topic, value, key, headers, partition, timestamp)
            call_on_delivery(sent, on_delivery, self._io_loop.post)
            return sent
        if self._prepares:
            begun = self._newest()
            key, value = self._options.serialize(key, value)
            if partition is None and self._partitioner is not None:
                partition = await self._called_partition(topic, key, begun)
            self._check_newest(begun)
        if headers is not NO_HEADERS and type(headers) is not tuple:
            headers = header_pairs(headers)
        if timestamp is not None and (type(timestamp) is not int or FIRST_SECONDS <= timestamp < END_OF_SECONDS):
            self._check_unit(topic, timestamp)
        try:
            delivery: Delivery | None = self._append(topic, key, value, headers, partition, timestamp)
            if delivery is None:
                delivery = await self._send_when_space(topic, key, value, headers, partition, timestamp)
        # SYNC: "KcodecError" -> "(KcodecError, RuntimeError)"
        except KcodecError as error:
            if isinstance(error, EncodeError):
                error.row = None  # the batch counts its rows, and the caller has given one record
            self._rejected(topic, partition, error, self._newest())
            raise
        return delivery

    def _check_unit(self, topic: str, timestamp: int) -> None:
        """Log a warning, once for each producer, about a timestamp that is probably in seconds."""
        if not self._is_unit_reported:
            self._is_unit_reported = warn_of_seconds(topic, timestamp)

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = NO_HEADERS,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        # SYNC: "A task that is cancelled stops" -> "After Ctrl-C the call stops"
        """Send a record as `send` does, wait until it is acknowledged, and return where it is stored.

        Raise the errors of `send`, and the error of the record if it failed. The record is acknowledged or
        fails within `delivery_timeout_ms`. Sending one record at a time is slow: each call waits for a request and its
        response. If another request is in flight, it first waits for up to `linger_ms`. A task that is cancelled stops
        waiting, but the record may still be written.
        """
        delivery = await self.send(topic, value, key, headers, partition, timestamp)
        if True:  # ASYNC
            return await delivery
        else:
            return delivery.result()

    async def _called_partition(self, topic: str, key: Any, begun: ProducerTransaction | None) -> int:
        """Return the partition that the function in the option `partitioner` chooses.

        begun: The newest transaction when the call of `send` began.
        """
        from kcodec.producer.partitioner_option import called_partition

        assert self._partitioner is not None
        try:
            count = self._core.known_partitions(topic) or await self.partitions_for(topic)
            return called_partition(self._partitioner, topic, key, count, self._core.available_partitions(topic))
        except KcodecError as error:
            self._rejected(topic, None, error, begun)
            raise
        except BaseException as error:
            if is_interruption(error):
                self._post_note(self._core.interruption(topic, error, begun, is_table=False))
            raise

    async def _send_when_space(
        self, topic: str, key: Any, value: Any, headers: Any, partition: int | None, timestamp: int | None
    ) -> Delivery:
        """Append a record when buffer space is free. This is a separate function because `send` is faster without a
        closure."""
        begun, acknowledged = self._newest(), self._core.accumulator.acknowledged
        now = time.time_ns() // 1_000_000 if timestamp is None else timestamp

        def put() -> Delivery | None:
            self._check_newest(begun)
            done: Delivery | None = self._core.append(topic, key, value, headers, partition, now)
            return done

        try:
            delivery: Delivery | None = await self._put_when_space(put)
        except (KcodecError, RuntimeError):
            raise
        except BaseException as error:
            self._post_note(self._core.interruption(topic, error, begun, is_table=False))
            raise
        if delivery is None:
            self._check_newest(begun)
            raise self._buffer_full(acknowledged)
        return delivery

    def _buffer_full(self, acknowledged: int) -> BufferFullError:
        """Return the error of a call that got no buffer space in time.

        acknowledged: Number of acknowledged batches when the call began.
        """
        from kcodec.producer.options import buffer_full

        return buffer_full(self._options, self._core.why_full(), self._core.accumulator.acknowledged - acknowledged)

    def _newest(self) -> ProducerTransaction | None:
        """Return the transaction to which records belong that are sent now."""
        return None if self._transactions is None else self._transactions.newest

    def _check_newest(self, begun: ProducerTransaction | None) -> None:
        """Raise TransactionStateError if the transaction in which a call of `send` began has ended while the call
        waited. The record must not be sent in the next transaction."""
        if self._transactions is not None:
            self._transactions.check_newest(begun, Event.SEND)

    def _rejected(self, topic: str, partition: int | None, error: Exception, begun: ProducerTransaction | None) -> None:
        self._post_note(self._core.rejection(topic, partition, error, begun))

    def _post_note(self, note: Callable[[], None] | None) -> None:
        """Call a function of the core on the I/O thread."""
        if note is None:
            return
        if True:  # ASYNC
            note()
        else:
            if not self._io_loop.is_closed:
                self._io_loop.post(note)

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """Send the rows of a table.

        table:   Any object with Arrow's C data interface, with the columns key and value (binary or string), headers,
                 timestamp (ms) and partition. Only key or value is required.
        framing: "confluent" writes the schema ids of the columns key_schema_id and value_schema_id before the payloads.

        Rows of a partition keep their order. The column `partition` selects the partition of a row. If it is null, the
        key determines the partition; a schema id is a part of the key, as for Java's serializers. Each batch of
        rows without a key goes to one partition, which can change from batch to batch.

        If a row is invalid, raise an EncodeError that names the row, and send nothing. Wait for buffer space as `send`
        does. If the buffer is still full after `max_block_ms`, the rest of the table fails with a BufferFullError,
        which the TableDelivery contains.

        If a cancellation or Ctrl-C ends the call, the transaction can only be aborted. The same applies to an error of
        pyarrow when a part of the table is already in the buffer. Without a transaction, the producer still sends this
        part, and it does not send the rest.
        """
        if True:  # ASYNC
            self._start()
        begun = self._newest()
        delivery = TableDelivery(topic, self._lock)
        try:
            count = self._core.known_partitions(topic) or await self.partitions_for(topic)
            self._check_newest(begun)
            full: BufferFullError | None = None
            for batch in self._table_batches(topic, table, count, framing):
                self._check_unit(topic, batch.first_timestamp)
                full = await self._send_batch(topic, batch, delivery, begun, full)
        except KcodecError as error:
            self._rejected(topic, None, error, begun)
            raise
        except BaseException as error:
            if delivery.has_batches or is_interruption(error):
                self._post_note(self._core.interruption(topic, error, begun, is_table=True))
            raise
        finally:
            delivery.seal()
        return delivery

    async def _send_encoded(self, topic: str, batch: bytes | bytearray | memoryview, partition: int) -> TableDelivery:
        """Send an encoded batch as `TransactionWriter.send_encoded` does."""
        from kcodec.producer.encoded import encoded_batch

        if True:  # ASYNC
            self._start()
        begun = self._newest()
        try:
            encoded = encoded_batch(batch, partition)
            if not self._core.known_partitions(topic):
                await self.partitions_for(topic)
                self._check_newest(begun)
            delivery = TableDelivery(topic, self._lock)
            try:
                await self._send_batch(topic, encoded, delivery, begun, None)
            finally:
                delivery.seal()
        except KcodecError as error:
            self._rejected(topic, partition, error, begun)
            raise
        except BaseException as error:
            if is_interruption(error):
                self._post_note(self._core.interruption(topic, error, begun, is_table=True))
            raise
        return delivery

    async def _send_batch(
        self,
        topic: str,
        batch: TableBatch,
        delivery: TableDelivery,
        begun: ProducerTransaction | None,
        full: BufferFullError | None,
    ) -> BufferFullError | None:
        """Append a batch of a table to the buffer. If there is no buffer space in time, the batch fails. Return its
        error, with which the following batches fail without a wait.

        begun: The newest transaction when the call began.
        full:  Error of the batches before, if there was no space for them.
        """
        acknowledged = self._core.accumulator.acknowledged

        def put() -> bool | None:
            self._check_newest(begun)
            return self._core.append_batch(topic, batch.partition, batch.data, batch.records_count, delivery) or None

        if full is None:
            with self._lock:
                done = put()
            if done or await self._put_when_space(put):
                return None
            self._check_newest(begun)
            full = self._buffer_full(acknowledged)
        self._core.fail_batch(topic, batch.partition, batch.records_count, delivery, full)
        return full

    async def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic. Wait for the topic's metadata if necessary.

        Raise DeliveryTimeoutError after `max_block_ms`. Raise BrokerError if brokers report for
        `unknown_topic_timeout_ms` that they do not know the topic.
        """
        timeout = self._core.settings.max_block
        return await self._run(self._core.learn_topic(topic, timeout), timeout, f"partitions_for({topic!r})")

    # Transactions. A timeout is in seconds; None means max_block_ms.

    def transaction(self, partitions: Iterable[TopicPartition] = (), timeout: float | None = None) -> Transaction:
        """Return a transaction for a `with` block: ``async with producer.transaction() as txn``. A call of
        init_transactions is not necessary.

        partitions: All partitions that any writer will write to. Below transaction.version 2, they are required if
                    `txn.handle` is read.
        timeout:    Maximum time in seconds to begin the transaction, and again to end it. None: max_block_ms. The
                    commit, and the abort after a failed commit, share one deadline. If that abort does not complete,
                    the next transaction repeats it when it begins.
        """
        check_seconds(timeout, "transaction")
        return Transaction(self, partitions, timeout)

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Take over the transactional id: fence the previous producer with this id, and abort the transaction that it
        left open. The first begin_transaction also does this.

        timeout: Maximum time in seconds. None: max_block_ms.

        Raise AuthorizationError if the id is not permitted. Raise FatalTransactionError, for example if
        transaction_timeout_ms is larger than the broker's maximum. Raise ProducerFencedError if another producer has
        taken over the id since the first call. Raise DeliveryTimeoutError after the timeout. The call can then be
        repeated.
        """
        check_seconds(timeout, "init_transactions")
        await self._run(self._begun(self._manager().initialize(timeout), timeout))

    async def begin_transaction(self, timeout: float | None = None) -> None:
        """Begin a transaction. Records that are sent later belong to it.

        timeout: Maximum time in seconds. None: max_block_ms.
        """
        check_seconds(timeout, "begin_transaction")
        manager = self._manager()
        if self._begin_at_once(manager) is None:
            await self._run(self._begun(manager.begin(timeout), timeout))

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets of a consumer group with the open transaction, as `Transaction.send_offsets` does.

        timeout: Maximum time in seconds. None: max_block_ms.
        """
        from kcodec.transactions.offsets import check_group_metadata

        check_seconds(timeout, "send_offsets_to_transaction")
        manager = self._manager()
        await self._run(manager.send_offsets(check_offsets(offsets), check_group_metadata(group_metadata, 2), timeout))

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush the buffered records, and commit the transaction.

        timeout: Maximum time in seconds for both. None: max_block_ms.

        Any error except UnknownOutcomeError, DeliveryTimeoutError and TransportError means that the transaction was not
        committed. Call abort_transaction then. After UnknownOutcomeError, this call may be repeated, unless the
        producer was closed meanwhile. After DeliveryTimeoutError, the attribute `remedy` of the error determines what
        to do: "abort" or "retry". Other TransportErrors mean one of two things. If the producer was closed, or the
        commit was interrupted, before it was sent, the transaction was not committed. If the I/O loop of the producer
        has failed, or Ctrl-C in asyncio has interrupted a step of the client, the outcome is unknown.
        """
        check_seconds(timeout, "commit_transaction")
        await self._run(self._manager().commit(timeout))

    async def commit_transaction_async(self, timeout: float | None = None) -> TransactionCommit:
        # SYNC: "await commit" -> "commit.result()"
        """Start to commit the open transaction, and return while the commit is in progress. The next transaction can
        begin immediately. Its records stay in the buffer until the commit has succeeded. If the commit fails, they fail
        with its error.

            commit = await producer.commit_transaction_async()
            await producer.begin_transaction()
            ...                                      # send records of the next transaction
            await commit                             # raises what commit_transaction would raise

        Only one commit can be in progress at a time, so wait for its result before the next one. In the next
        transaction, sending offsets, committing and aborting wait for it. If the commit fails, the calls of the next
        transaction also raise its error, until abort_transaction is called. If no caller has retrieved the error, the
        next begin_transaction or `close` raises it.

        timeout: Maximum time in seconds for the commit. None: max_block_ms.

        Raise TransactionStateError if another commit is in progress, if the handle of the transaction was read, or if
        no transaction is open.
        """
        check_seconds(timeout, "commit_transaction_async")
        manager = self._manager()
        commit = TransactionCommit(manager.transactional_id, self._lock, self._io_loop.check_wait)
        await self._run(manager.commit_async(commit, timeout))
        return commit

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Discard the records that were not sent, and abort the transaction. After a fatal error, raise that error
        again.

        timeout: Maximum time in seconds. None: max_block_ms.

        Raise DeliveryTimeoutError after the timeout. The call can then be repeated.
        """
        check_seconds(timeout, "abort_transaction")
        await self._run(self._manager().abort(timeout))

    async def release(self, timeout: float | None = None) -> TransactionHandle:
        """Flush the buffered records, leave the transaction open for other processes, and close this producer.

            handle = await producer.release()
            receipt = producer.receipt          # of the records that this producer has written, for commit_transaction

        With the handle, other processes write to the transaction (`TransactionWriter`), commit it
        (`commit_transaction`) or abort it (`abort_transaction`). The coordinator aborts it after
        transaction_timeout_ms. Below transaction.version 2, begin the transaction with `transaction(partitions=...)`,
        and name all partitions that any writer will write to.

        timeout: Maximum time in seconds for the flush. None: max_block_ms.

        Raise the error of a record that was not written. Raise DeliveryTimeoutError if records are still in flight
        after the timeout. Raise TransactionStateError if no transaction is open, or if it was begun without partitions
        below transaction.version 2. After an error, the producer is not closed, and its transaction can only be
        aborted.
        """
        check_seconds(timeout, "release")
        handle = await self._run(self._manager().release(timeout))
        await self.close()
        return handle

    @property
    def receipt(self) -> WriterReceipt:
        """The receipt for the records that this producer has written to the released transaction. All of them were
        acknowledged. Raise TransactionStateError before `release` has returned."""
        from kcodec.transactions.handle import WriterReceipt

        manager = self._manager()
        if manager.state is not State.RELEASED or manager.open is None:
            raise TransactionStateError(
                "this producer has no receipt yet, as it has not released its transaction: call release() first, "
                "or read txn.receipt in the block",
                state=manager.state.name,
                event=Event.RELEASE.name,
            )
        return WriterReceipt(manager.open.receipt)

    def _manager(self) -> TransactionManager:
        """Return the transaction manager. Raise TransactionStateError if the producer has no transactional_id."""
        if self._transactions is None:
            raise TransactionStateError(
                "this producer has no transactional_id: set it to use transactions",
                state=State.UNINITIALIZED.name,
                event=Event.BEGIN.name,
            )
        return self._transactions

    def _begun(self, flow: Flow[T], timeout: float | None) -> Flow[T]:
        """Run the flow that begins a transaction. Log a warning if no broker responds."""
        manager = self._manager()
        return reported(
            flow,
            self._client.cluster,
            f"begin of the transaction of {manager.transactional_id!r}",
            manager.max_block if timeout is None else timeout,
            "kcodec.transactions",
        )

    def _begin_at_once(self, manager: TransactionManager) -> ProducerTransaction | None:
        """Begin a transaction if that requires no request. Otherwise, return None. Also return None if the producer is
        closed, and in a forked process: the flow that begins the transaction then raises the error."""
        if True:  # ASYNC
            self._start()
            if self._io_loop.is_closed:
                return None
        with self._lock:
            return None if self._core.is_closed else manager.begin_at_once()

    # Ending

    async def flush(self, timeout: float | None = None) -> None:
        """Send the buffered records immediately, and wait until each of them is acknowledged or has failed.

        timeout: Maximum time in seconds.
            None: no limit, but each record is acknowledged or fails within `delivery_timeout_ms`.

        Raise DeliveryErrors if records have failed since the last `flush` and their errors were not retrieved
        (`result`, `exception`, `error` or a callback of the Delivery). In a transaction, the commit raises the error
        instead. Raise DeliveryTimeoutError after the timeout.
        """
        await self._run(self._core.flush(timeout), timeout, "flush()")
        self._raise_failures()

    async def close(self, timeout: float | None = None) -> None:
        # SYNC: "after cancellation" -> "after Ctrl-C, SystemExit or the like"
        # SYNC: "another task" -> "another thread"
        """Send the buffered records, wait until each of them is acknowledged or has failed, and close the connections.
        If a transaction is open, abort it and discard its buffered records instead. If another task commits or aborts
        it, first wait for that call. Afterwards, `send` raises TransportError. Further calls have no effect.

        timeout: Maximum time in seconds. Records that are not acknowledged by then fail with DeliveryTimeoutError. A
            commit that was sent and got no response by then raises UnknownOutcomeError.
            None: no limit, but each record is acknowledged or fails within `delivery_timeout_ms`.

        Raise DeliveryErrors as `flush` does. Raise the error of a commit in the background if no caller has retrieved
        it.

        The end of the `with` block also closes the producer. If an exception leaves the block, the errors of failed
        records are added to the exception as a note, and if the close has to wait, this is logged. The wait is limited
        to 3 seconds after cancellation.
        """
        if False:  # SYNC
            self._io_loop.check_wait()
        try:
            if not self._io_loop.is_closed:
                await self._end(timeout)
        except BaseException as error:
            note_failures(error, self._core.take_failures())
            raise
        self._raise_failures()
        failed = self._failed_commit()
        if failed is not None:
            raise failed.with_traceback(None)

    def _failed_commit(self) -> BaseException | None:
        """Return the error of a commit in the background if no caller has retrieved it."""
        return None if self._transactions is None else self._transactions.background.take_unretrieved()

    async def _end(self, timeout: float | None, error: BaseException | None = None) -> None:
        try:
            if self._is_started:
                core = self._core
                if self._aborts_at_close():
                    if error is None:
                        self._manager().warn_of_uncommitted(has_buffered=core.has_unfinished)
                    seconds = self._manager().max_block if timeout is None else timeout
                    what = abort_of(self._manager().transactional_id)
                    flow = announced(core.close(timeout), error, seconds, what, "kcodec.producer")
                else:
                    flow = announced(
                        *(core.close(timeout), error, core.closing_seconds(timeout), core.waiting_text),
                        logger="kcodec.producer",
                        outcome=core.report_of_close(),
                    )
                await self._run(flow, timeout, "close()")
        except BaseException as interruption:
            if has_interrupted(interruption) and self._core.id_manager.owns_transactions:
                await self._run_at_once(self._core.abort_at_once())
            raise
        finally:
            if True:  # ASYNC
                # In another event loop this raises RuntimeError, and the producer stays open.
                await self._io_loop.close()
            else:
                self._io_loop.close()
            self._core.crash(TransportError("the producer is closed"))

    def _aborts_at_close(self) -> bool:
        """Return whether `close` aborts an open transaction. A writer of a shared transaction leaves it open."""
        return self._transactions is not None and self._transactions.state in TO_ABORT

    def _raise_failures(self) -> None:
        failures = self._core.take_failures()
        if failures is not None:
            raise failures

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            try:
                if not self._io_loop.is_closed:
                    await self._end(self._closing_timeout(error), error)
            except Exception as failed:  # noqa: BLE001  `error` is raised, as it matters more
                error.add_note(f"closing the producer failed, too: {failed}")
            except BaseException as interruption:
                note_failures(interruption, self._core.take_failures())
                raise
            note_failures(error, self._core.take_failures())
            uncommitted = self._failed_commit()
            if uncommitted is not None and uncommitted is not error:
                error.add_note(f"a commit in the background failed, too: {uncommitted}")

    def _closing_timeout(self, error: BaseException) -> float | None:
        """Return the timeout of the close after `error`. With a transactional id, the close only has to abort, so it
        does not wait long for brokers that do not respond."""
        if self._core.id_manager.transactional_id is None:
            return limited_seconds(error)
        seconds = closing_seconds(error, self._client.cluster, float("inf"))
        return None if seconds == float("inf") else seconds

    def __repr__(self) -> str:
        state = "closed" if self._io_loop.is_closed else "open"
        return f"<{type(self).__name__} {self._client.options.client_id!r} {state}>"
