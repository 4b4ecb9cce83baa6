# SPDX-License-Identifier: Apache-2.0
"""aiokafka.AIOKafkaProducer on kcodec's asyncio producer."""

from __future__ import annotations

import asyncio
import copy
import itertools
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Self

from aiokafka import errors as theirs
from aiokafka.errors import IllegalOperation, IllegalStateError
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.producer.producer import _missing
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.structs import RecordMetadata, TopicPartition
from aiokafka.util import commit_structure_validate, get_running_loop

from kcodec import errors
from kcodec.arguments import check_conversions
from kcodec.client.aio import Delivery, Producer
from kcodec.compat._aiokafka_cluster import ClientView, connect
from kcodec.compat._aiokafka_errors import MissingAttributes, aiokafka_error, as_aiokafka_errors, record_error
from kcodec.compat._aiokafka_options import client_options, event_loop
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata
from kcodec.offsets import TopicPartition as Place

CODECS = {
    None: 0,
    "gzip": DefaultRecordBatch.CODEC_GZIP,
    "snappy": DefaultRecordBatch.CODEC_SNAPPY,
    "lz4": DefaultRecordBatch.CODEC_LZ4,
    "zstd": DefaultRecordBatch.CODEC_ZSTD,
}
_DEFAULT_PARTITIONER = DefaultPartitioner()
_numbers = itertools.count(1)
Future = asyncio.Future[Any]


class AIOKafkaProducer(MissingAttributes):
    """aiokafka.AIOKafkaProducer on kcodec, with its parameters, methods and exceptions.

    docs/compat-aiokafka.md lists the differences.

    As in aiokafka, the default is acks=1 without idempotence. enable_idempotence=True is safer and not slower.
    """

    _closed: bool | None = None

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Iterable[str] = "localhost",
        client_id: str | None = None,
        metadata_max_age_ms: float = 300000,
        request_timeout_ms: float = 40000,
        api_version: Any = None,
        acks: Any = _missing,
        key_serializer: Any = None,
        value_serializer: Any = None,
        compression_type: str | None = None,
        max_batch_size: int = 16384,
        partitioner: Callable[..., int] = _DEFAULT_PARTITIONER,
        max_request_size: int = 1048576,
        linger_ms: float = 0,
        retry_backoff_ms: float = 100,
        security_protocol: str = "PLAINTEXT",
        ssl_context: Any = None,
        connections_max_idle_ms: float | None = 540000,
        enable_idempotence: bool = False,
        transactional_id: str | None = None,
        transaction_timeout_ms: float = 60000,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: Any = None,
    ) -> None:
        self._loop = event_loop(loop, api_version)
        if acks not in (0, 1, -1, "all", _missing):
            raise ValueError("Invalid ACKS parameter")
        if compression_type not in CODECS:
            raise ValueError("Invalid compression type!")
        is_idempotent = enable_idempotence or transactional_id is not None
        if is_idempotent and acks not in (_missing, "all", -1):
            raise ValueError(f"acks={acks} not supported if enable_idempotence=True")
        if acks is _missing:
            acks = -1 if is_idempotent else 1
        if client_id is None:
            client_id = f"aiokafka-producer-{next(_numbers)}"
        self._named = (bootstrap_servers, client_id)
        self._options: dict[str, Any] = {
            **client_options(
                bootstrap_servers=bootstrap_servers,
                client_id=client_id,
                metadata_max_age_ms=metadata_max_age_ms,
                request_timeout_ms=request_timeout_ms,
                retry_backoff_ms=retry_backoff_ms,
                connections_max_idle_ms=connections_max_idle_ms,
                security_protocol=security_protocol,
                ssl_context=ssl_context,
                sasl_mechanism=sasl_mechanism,
                sasl_plain_username=sasl_plain_username,
                sasl_plain_password=sasl_plain_password,
                sasl_kerberos_service_name=sasl_kerberos_service_name,
                sasl_kerberos_domain_name=sasl_kerberos_domain_name,
                sasl_oauth_token_provider=sasl_oauth_token_provider,
                loop=self._loop,
            ),
            "acks": acks,
            "enable_idempotence": is_idempotent,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": transaction_timeout_ms,
            "compression_type": compression_type or "none",
            "batch_size": max_batch_size,
            "max_request_size": max_request_size,
            "linger_ms": linger_ms,
            "max_block_ms": request_timeout_ms,
            "delivery_timeout_ms": request_timeout_ms + linger_ms,
        }
        if not is_idempotent:
            # aiokafka has only one request in flight, so that a retry does not change the order of records.
            self._options["max_in_flight_requests_per_connection"] = 1
        self._acks = acks
        self._transactional_id = transactional_id
        check_conversions("the argument of send", key_serializer=key_serializer, value_serializer=value_serializer)
        check_conversions("a key and two lists of partitions", partitioner=partitioner)
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = None if isinstance(partitioner, DefaultPartitioner) else partitioner
        self._batch_settings = (max_batch_size, CODECS[compression_type])
        self._counts: dict[str, int] = {}
        self._sent: dict[Any, list[tuple[Future, Delivery]]] = {}
        self._create_future = self._loop.create_future
        #: Transaction calls in progress. They continue if the caller is cancelled, as in aiokafka.
        self._steps: set[asyncio.Task[None]] = set()
        self._open_kcodec()
        self._is_started = False
        self._closed = False

    def _open_kcodec(self) -> None:
        self._kcodec = ServedProducer(**self._options)
        self.client = ClientView(self._kcodec, *self._named)

    def __del__(self) -> None:
        if self._closed is False and self._is_started:
            warnings.warn(f"Unclosed AIOKafkaProducer {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._loop.call_exception_handler({"producer": self, "message": "Unclosed AIOKafkaProducer"})

    # Beginning and end

    async def start(self) -> None:
        """Connect. With a transactional_id, also fence the previous producer that used the id.

        Raise KafkaConnectionError if no broker can be reached.
        """
        assert self._loop is get_running_loop(), "Please create objects with the same loop as running with"
        if self._is_started:
            return
        with as_aiokafka_errors():
            try:
                await connect(self._kcodec, self._options["request_timeout_ms"] / 1000)
                if self._transactional_id is not None:
                    await self._kcodec.init_transactions()
            except BaseException:
                await self._kcodec.close(0)
                self._open_kcodec()  # start() may be called again
                raise
        self._is_started = True

    async def flush(self) -> None:
        """Wait until each sent record has a result or an error. After `stop`, all records have one."""
        if self._closed:
            return
        with as_aiokafka_errors():
            await self._kcodec.flush_quietly()

    async def stop(self) -> None:
        """Send the buffered records, wait for them, abort an open transaction, and close the connections."""
        await self._stop(None)

    async def _stop(self, error: BaseException | None) -> None:
        if not self._closed:
            self._closed = True
            try:
                if self._steps:
                    await asyncio.wait(self._steps)
            except BaseException as interruption:
                error = interruption
                raise
            finally:
                with as_aiokafka_errors():
                    await self._kcodec.end(error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        await self._stop(error)

    # Sending

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic. Wait for its metadata if necessary."""
        return set(range(await self._count(topic)))

    async def _count(self, topic: str) -> int:
        if not isinstance(topic, str):
            raise TypeError(f"Topic names must be strings, not {topic!r:.100}")
        self._need_started()
        if self._closed and topic in self._counts:
            return self._counts[topic]
        with as_aiokafka_errors():
            count = self._counts[topic] = await self._kcodec.partitions_for(topic)
        return count

    def _need_started(self) -> None:
        """Raise IllegalStateError before `start`, which connects the producer."""
        if not self._is_started and not self._closed:
            raise IllegalStateError(
                "the producer is not started: call `await producer.start()` first, or use `async with producer`"
            )

    def _partitions(self, topic: str, count: int) -> tuple[list[int], list[int]]:
        """Return the arguments for a partitioner, from the latest metadata: all partitions of a topic, and the
        partitions that have a leader."""
        cluster = self.client.cluster
        known = cluster.partitions_for_topic(topic) or range(count)
        return sorted(known), sorted(cluster.available_partitions_for_topic(topic) or ())

    def _partition(
        self, topic: str, partition: int | None, key: Any, value: Any, key_bytes: bytes | None, value_bytes: Any
    ) -> int | None:
        """Return the partition of a record of a known topic, for instrumentations that put it into a span.

        Return None if the producer chooses the partition later: for a record without a key, with the default
        partitioner. aiokafka chooses one here, and then may choose another one for the record.
        """
        if partition is None and key_bytes is None and self._partitioner is None:
            return None
        everything, available = self._partitions(topic, 0)
        if partition is None:
            return (self._partitioner or _DEFAULT_PARTITIONER)(key_bytes, everything, available)
        assert partition in everything, "Unrecognized partition"
        return partition

    def _check_transaction(self) -> None:
        if self._transactional_id is not None and not self._kcodec.is_in_transaction:
            raise IllegalOperation("Can't send messages while not in transaction")

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> Future:
        """Append a record to the buffer. If necessary, wait for the metadata of the topic and for buffer space.

        Return a future for the RecordMetadata or the error of the record. With acks=0, its result is None.
        """
        assert not (value is None and key is None), "Need at least one: key or value"
        if self._closed:
            raise theirs.ProducerClosed
        count = self._counts.get(topic) or await self._count(topic)
        if self._transactional_id is not None:
            self._check_transaction()
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        if partition is not None:
            assert partition >= 0
            if partition >= count:
                count = await self._count(topic)
            assert partition < count, "Unrecognized partition"
        elif self._partitioner is not None:
            partition = self._partitioner(key, *self._partitions(topic, count))
        try:
            delivery = await self._kcodec.send(topic, value, key, headers or (), partition, timestamp_ms)
        except errors.KcodecError as error:
            raise aiokafka_error(error) from error
        future = self._create_future()
        batch = delivery._batch
        waiting = self._sent.get(batch)
        if waiting is not None:
            waiting.append((future, delivery))
        else:
            self._register(batch, [(future, delivery)])
        return future

    def _register(self, batch: Any, waiting: list[tuple[Future, Delivery]]) -> None:
        """Complete futures when the batch of their records ends, with one callback for all of them."""
        self._sent[batch] = waiting
        delivery = waiting[0][1]
        if not delivery._register(lambda _: self._ended(batch)):
            self._loop.call_soon(self._ended, batch)

    def _ended(self, batch: Any) -> None:
        waiting = self._sent.pop(batch, ())
        if batch.pieces:  # the batch was split, and its records end with the pieces
            moved: dict[Any, list[tuple[Future, Delivery]]] = {}
            for future, delivery in waiting:
                moved.setdefault(delivery._where()[0], []).append((future, delivery))
            for piece, rows in moved.items():
                if piece.outcome is None:
                    self._register(piece, rows)
                else:
                    self._complete(piece, rows)
            return
        self._complete(batch, waiting)

    def _complete(self, batch: Any, waiting: Iterable[tuple[Future, Delivery]]) -> None:
        base, append_time, error = batch.outcome
        topic, partition = batch.topic, batch.partition
        place = TopicPartition(topic, partition)
        translated = None if error is None else record_error(error)
        has_offset = self._acks != 0
        new = tuple.__new__
        for future, delivery in waiting:
            if future.done():
                continue  # the future was cancelled
            if translated is not None:
                assert delivery.error is not None  # which counts it as retrieved
                made = copy.copy(translated)  # each exception has its own traceback
                made.__cause__ = translated.__cause__
                future.set_exception(made)
                if isinstance(error, errors.TransactionStateError):
                    # The program has aborted the transaction. Mark the error as retrieved, so that asyncio does not log
                    # each record whose future the program has dropped.
                    future.exception()
                continue
            if not has_offset:
                future.set_result(None)
                continue
            index = delivery._index if delivery._batch is batch else delivery._where()[1]
            offset = base + index if base >= 0 else -1
            stamp, kind = (delivery._timestamp, 0) if append_time < 0 else (append_time, 1)
            future.set_result(new(RecordMetadata, (topic, partition, place, offset, stamp, kind, None)))

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> Any:
        """Send a record, wait until it is acknowledged, and return its RecordMetadata."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch of aiokafka. The program fills it and passes it to `send_batch`."""
        size, codec = self._batch_settings
        return BatchBuilder(size, codec, key_serializer=self._key_serializer, value_serializer=self._value_serializer)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int | None) -> Future:
        """Send a batch to a partition. With None, the partitioner chooses the partition as for a record without a key.

        Return a future for the RecordMetadata of the first record.
        """
        if self._closed:
            raise theirs.ProducerClosed
        count = await self._count(topic)
        if partition is None:
            choose = self._partitioner or _DEFAULT_PARTITIONER
            partition = choose(None, *self._partitions(topic, count))
        assert 0 <= partition < count, "Unrecognized partition"
        self._check_transaction()
        if not batch.record_count():
            raise ValueError("the batch is empty: append a record before send_batch()")
        future: Future = self._loop.create_future()
        place = TopicPartition(topic, partition)

        def ended(delivery: Any) -> None:
            if future.done():
                return
            if delivery.error is not None:
                future.set_exception(record_error(delivery.error))
            elif self._acks == 0:
                future.set_result(None)
            else:
                stored = delivery.outcome()[0]
                future.set_result(RecordMetadata(*place, place, stored.base_offset, -1, 0, None))

        with as_aiokafka_errors():
            delivery = await self._kcodec.send_encoded(topic, batch._build(), partition)
        delivery.add_done_callback(ended)
        return future

    # Transactions

    def _ensure_transactional(self) -> None:
        if self._transactional_id is None:
            raise IllegalOperation("You need to configure transaction_id to use transactions")
        self._need_started()

    def _refuse_unknown_outcome(self) -> None:
        """Raise IllegalOperation if a commit got no response. If it did not reach the coordinator, the next transaction
        would abort it. aiokafka repeats the request until it gets a response, and raises AssertionError until then."""
        if self._kcodec.is_outcome_unknown:
            raise IllegalOperation(
                "commit_transaction() got no response, so the transaction may be committed, aborted or still open: "
                "repeat commit_transaction() before any other call of transactions"
            )

    async def _step(self, call: Coroutine[Any, Any, None]) -> None:
        """Await a transaction call. A cancellation of the caller does not end the call."""
        step = self._loop.create_task(call)
        self._steps.add(step)
        step.add_done_callback(self._steps.discard)
        with as_aiokafka_errors():
            try:
                await asyncio.shield(step)
            except asyncio.CancelledError:
                # After an error, the state of the transaction makes the next call raise it.
                step.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                raise

    async def begin_transaction(self) -> None:
        """Begin a transaction. Raise IllegalOperation if a commit got no response and was not repeated."""
        self._ensure_transactional()
        self._refuse_unknown_outcome()
        with as_aiokafka_errors():
            await self._kcodec.begin_transaction()

    async def commit_transaction(self) -> None:
        """Flush and commit. Raise KafkaTimeoutError if the commit got no response; its cause is an UnknownOutcomeError
        of kcodec. Repeat this call then, to learn the outcome. After another error that is not fatal, call
        `abort_transaction`."""
        self._ensure_transactional()
        await self._step(self._kcodec.commit_transaction())

    async def abort_transaction(self) -> None:
        """Discard the records that are not sent, and abort. Raise IllegalOperation if a commit got no response and was
        not repeated."""
        self._ensure_transactional()
        self._refuse_unknown_outcome()
        await self._step(self._kcodec.abort_transaction())

    def transaction(self) -> TransactionContext:
        """Return a transaction for an `async with` block."""
        return TransactionContext(self)

    async def send_offsets_to_transaction(self, offsets: dict[TopicPartition, Any], group_id: str) -> None:
        """Commit offsets of a group with the transaction. As in aiokafka, the group does not check the generation of
        the consumer."""
        self._ensure_transactional()
        self._refuse_unknown_outcome()
        if not self._kcodec.is_in_transaction:
            raise IllegalOperation("Not in the middle of a transaction")
        if not group_id or not isinstance(group_id, str):
            raise ValueError(group_id)
        checked = {Place(*one): OffsetAndMetadata(*value) for one, value in commit_structure_validate(offsets).items()}
        await self._step(self._kcodec.send_offsets_to_transaction(checked, ConsumerGroupMetadata(group_id)))


class ServedProducer(Producer):
    """The producer of kcodec, with methods for the facade. As in aiokafka, a record that `send` refuses does not
    prevent the commit."""

    def _start(self) -> None:
        self._core.refusal_prevents_commit = False
        super()._start()

    @property
    def is_in_transaction(self) -> bool:
        """Whether records can be sent in a transaction."""
        return self._manager().state.name in {"IN_TRANSACTION", "ABORTABLE_ERROR"}

    @property
    def is_outcome_unknown(self) -> bool:
        """Whether a commit got no response and was not repeated."""
        return self._manager().state.name == "UNKNOWN_OUTCOME"

    @property
    def is_fatal(self) -> bool:
        """Whether the producer can no longer commit or abort."""
        return self._manager().state.name == "FATAL_ERROR"

    async def flush_quietly(self) -> None:
        """Flush. Errors of records are in their futures."""
        await self._run(self._core.flush(None))

    async def send_encoded(self, topic: str, batch: Any, partition: int) -> Any:
        """Send an encoded batch, and return its TableDelivery."""
        return await self._send_encoded(topic, batch, partition)

    async def end(self, error: BaseException | None) -> None:
        """Close the producer. `error` is the exception that ends its block."""
        try:
            if error is None:
                await self.close()
            else:
                await self.__aexit__(type(error), error, error.__traceback__)
        except errors.DeliveryErrors:
            pass  # the futures of the records have these errors


class TransactionContext:
    """A transaction of a producer, to use as a block. It is committed at the end of the block, and aborted after an
    exception."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        producer = self._producer
        if error is None:
            await producer.commit_transaction()
        elif not producer._kcodec.is_fatal:
            await producer.abort_transaction()
