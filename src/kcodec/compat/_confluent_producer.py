# SPDX-License-Identifier: Apache-2.0
"""The methods of confluent_kafka.Producer on a producer of kcodec.

Delivery callbacks are called inside `poll` and `flush`, on the thread that calls these methods.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, cimpl

from kcodec import errors
from kcodec._fast import poll_reports, produce_message
from kcodec.client import Delivery
from kcodec.client import Producer as KcodecProducer
from kcodec.compat._confluent_cluster import ClusterReader
from kcodec.compat._confluent_errors import (
    as_kafka_exceptions,
    check_timeout,
    kafka_error,
    local_error,
    not_supported,
    record_error,
    seconds,
    written_metadata,
)
from kcodec.compat._confluent_events import STEP_SECONDS, DeliveryEvents, Observer, serve_all
from kcodec.compat._confluent_options import settings_of
from kcodec.compat._confluent_places import checked_places
from kcodec.compat._patches import compiled_class, derived_from
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, check_topic

#: Minimum time that a commit gets after the records are acknowledged.
SHORTEST_COMMIT_SECONDS = 1.0


class _PurgedError(errors.TransportError):
    """The error of a record that `purge` has dropped from the queue."""


class _PurgedInFlightError(_PurgedError):
    """The error of a record that `purge` has dropped and that was sent."""


class ReportingProducer(KcodecProducer):
    """A producer whose records report their outcome to the facade. Their deliveries are not used otherwise.

    As librdkafka does, it retries every refused login, including the first one, until the records time out. A record
    that `produce` refuses does not prevent the commit of a transaction."""

    def _start(self) -> None:
        self._client.network.retry_all_logins()
        self._core.refusal_prevents_commit = False
        super()._start()

    def report_to(self, reports: DeliveryEvents, send: Callable[..., Any], partitioner: object) -> None:
        """Make `reports` receive the outcome of the records that it appends."""
        self._core.accumulator.failures = None
        reports.attach(self._core.accumulator, send, partitioner)

    def drop(self, in_flight: bool) -> None:
        """Fail the records that are not in flight. With `in_flight`, fail all records."""

        def error_of(batch: Any) -> _PurgedError:
            is_sent = in_flight and batch.attempts > 0
            kind = _PurgedInFlightError if is_sent else _PurgedError
            return kind("the record was purged", possibly_sent=is_sent)

        def drop() -> Any:
            sender = self._core.sender
            (sender.fail_all if in_flight else sender.fail_buffered)(error_of)
            yield from ()

        self._run(drop())

    @property
    def transaction_state(self) -> str:
        """The name of the state of the transactional producer."""
        return self._manager().state.name

    @property
    def abort_reason(self) -> BaseException | None:
        """The error after which the open transaction can only be aborted."""
        return self._manager().kept_error if self.transaction_state == "ABORTABLE_ERROR" else None

    @property
    def max_block(self) -> float:
        """The option max_block_ms, in seconds."""
        return self._core.settings.max_block

    @property
    def has_in_flight(self) -> bool:
        """Whether a batch is in flight."""
        queues = list(self._core.sender.responses.in_flight)
        return any(not batch.is_done for queue in queues for batch in queue.in_flight)


@derived_from(compiled_class(cimpl.Producer, "cimpl"))
class ProducerMethods:
    """The methods of a producer. librdkafka's own handle is never opened."""

    _kcodec: ReportingProducer | None = None
    _events: DeliveryEvents = None  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._kcodec = None
        self._settings = settings_of("producer", arguments, keywords)
        self._events = DeliveryEvents(self._settings, self._error_of)
        self._observer = Observer(self._settings, self._events, "producer")
        if self._observer.is_used:
            self._settings.options["metrics"] = self._observer
        self._is_initialized = False
        self._has_tried = False
        #: The fatal error that a transaction call has raised.
        self._fatal: KafkaError | None = None
        self._cluster = ClusterReader(self._settings.options, self._observer)
        self._begin()

    def _begin(self) -> None:
        with as_kafka_exceptions(), self._settings.naming():
            self._kcodec = producer = ReportingProducer(**self._settings.options)
        if self._settings.error_cb is not None:
            self._cluster.connect()
        producer.report_to(self._events, self._send, self._settings.options.get("partitioner"))

    def _open(self) -> ReportingProducer:
        if self._kcodec is None:
            raise RuntimeError("Producer has been closed")
        return self._kcodec

    # Records

    produce = produce_message

    def _send(self, *record: Any) -> Delivery:
        """Append a record that the compiled `produce` could not append immediately."""
        topic, value, key, headers, partition, timestamp = record
        producer = self._open()
        try:
            check_topic(topic, "topic")
        except ValueError as error:
            raise KafkaException(kafka_error(error)) from error
        partition = None if partition is None else _integer("partition", partition)
        timestamp = _integer("timestamp", timestamp)
        try:
            return producer.send(topic, value, key, headers, partition, timestamp)
        except errors.BufferFullError as error:
            raise BufferError("Local: Queue full") from error
        except errors.KcodecError as error:
            found = kafka_error(error)
            if self._settings.options.get("transactional_id") is not None:
                found = self._by_state(found)
            raise KafkaException(found) from error

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Callable[..., Any] | None = None,
        on_delivery: Callable[..., Any] | None = None,
    ) -> int:
        """Append records, and return the number of accepted records. A record is a dictionary with value, key, headers,
        partition and callback.

        A refused record has its KafkaError in the field _error.
        """
        if not isinstance(messages, list):
            raise TypeError("messages must be a list")
        _check_batch(topic, messages, partition)
        count = 0
        for one in messages:
            known = {name: one[name] for name in ("value", "key", "headers", "partition") if name in one}
            report = one.get("callback") or one.get("on_delivery") or callback or on_delivery
            try:
                self.produce(topic, callback=report, **{"partition": partition, **known})
            except BufferError as error:
                one["_error"] = KafkaError(KafkaError._QUEUE_FULL, str(error))
            except KafkaException as error:
                one["_error"] = error.args[0]
            else:
                count += 1
        return count

    def __len__(self) -> int:
        return len(self._events) if self._kcodec is not None else 0

    def __bool__(self) -> bool:
        return True

    poll = poll_reports

    def _poll(self, timeout: float) -> int:
        self._open()
        check_timeout(timeout)
        return self._serve(timeout)

    def _serve(self, timeout: float) -> int:
        return self._events.serve_within(timeout, lambda: self._observer.report_statistics(self._events.unreported))

    def flush(self, timeout: float = -1) -> int:
        """Send all records, call their callbacks, and return the number of records that are left after `timeout`
        seconds. A negative timeout means no limit."""
        return self._flush(timeout, lambda: self._serve(0))

    def _flush(self, timeout: float, serve: Callable[[], object]) -> int:
        producer = self._open()
        check_timeout(timeout)
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            serve()
            left = STEP_SECONDS if deadline is None else deadline - time.monotonic()
            if not len(self) or left <= 0:
                return len(self)
            # The records report their own errors.
            with contextlib.suppress(errors.DeliveryTimeoutError), as_kafka_exceptions_except_timeout():
                producer.flush(min(left, STEP_SECONDS))

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Discard records that are not acknowledged. Their callbacks get _PURGE_QUEUE or _PURGE_INFLIGHT.

        If records in flight are discarded, the client continues with a new producer of kcodec. Raise KafkaException
        (_NOT_IMPLEMENTED) for records in flight alone, and for records in flight of a transactional producer.
        """
        producer = self._open()
        drops_in_flight = in_flight and producer.has_in_flight
        if drops_in_flight and not in_queue:
            raise not_supported("purge() of records in flight alone", "call purge(in_queue=True, in_flight=True)")
        if drops_in_flight and self._settings.options.get("transactional_id") is not None:
            raise not_supported("purge() of a transactional producer", "call abort_transaction(), which drops records")
        if not in_queue:
            return
        with contextlib.suppress(errors.DeliveryErrors, errors.TransportError):
            producer.drop(drops_in_flight)
            if drops_in_flight:
                producer.close(0)
        if drops_in_flight:
            self._begin()

    # Transactions

    def init_transactions(self, timeout: float = -1) -> None:
        """Take over the transactional id. Raise KafkaException if this fails."""
        limit = seconds(timeout)
        with self._in_transaction():
            self._refuse_unknown_outcome()
            self._has_tried = True
            self._open().init_transactions(limit)
            self._is_initialized = True

    def begin_transaction(self) -> None:
        """Begin a transaction. Raise KafkaException if this fails."""
        with self._in_transaction():
            self._refuse_failed_start()
            if not self._is_initialized:
                raise local_error(KafkaError._STATE, "call init_transactions() before begin_transaction()")
            self._refuse_unknown_outcome()
            self._refuse_failed_transaction()
            self._open().begin_transaction()

    def send_offsets_to_transaction(self, positions: list[Any], group_metadata: Any, timeout: float = -1) -> None:
        """Commit offsets of a group with the transaction. Raise KafkaException if this fails.

        group_metadata: Result of consumer_group_metadata() of a consumer of kcodec.compat.confluent.
        """
        limit = seconds(timeout)
        offsets = {
            name: OffsetAndMetadata(one.offset, written_metadata(one.metadata))
            for name, one in checked_places(positions, "positions").items()
            if one.offset >= 0
        }
        if not isinstance(group_metadata, ConsumerGroupMetadata):
            raise TypeError(
                "group_metadata must be the result of consumer_group_metadata() of a consumer of "
                f"kcodec.compat.confluent, not {type(group_metadata).__name__}"
            )
        with self._in_transaction():
            self._refuse_failed_start()
            self._refuse_unknown_outcome()
            if offsets:
                self._open().send_offsets_to_transaction(offsets, group_metadata, limit)

    def _refuse_failed_start(self) -> None:
        if self._has_tried and not self._is_initialized:
            raise _conflict("init_transactions() has failed; repeat it before any other call of transactions")

    def _refuse_unknown_outcome(self) -> None:
        """Raise KafkaException if a commit got no response. If it did not reach the coordinator, another call would
        abort the transaction."""
        if self._open().transaction_state == "UNKNOWN_OUTCOME":
            raise _conflict("commit_transaction() got no response; repeat it before any other call of transactions")

    def _refuse_failed_transaction(self) -> None:
        """Raise the error after which the open transaction can only be aborted."""
        reason = self._open().abort_reason
        if reason is not None:
            raise reason.with_traceback(None)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Flush, commit, and call the callbacks. Raise KafkaException if this fails.

        If the records are not acknowledged in time, or if the commit gets no response, the error is retriable, and the
        next call continues. If the commit could not be sent, the transaction must be aborted. After the flush, the
        commit gets at least one second."""
        limit = seconds(timeout)
        with self._ending(), self._in_transaction():
            self._refuse_failed_start()
            limit = self._flush_before_commit(limit)
            try:
                self._open().commit_transaction(limit)
            except errors.UnknownOutcomeError as error:
                raise _retriable(KafkaError._TIMED_OUT, str(error)) from error

    def _flush_before_commit(self, limit: float | None) -> float | None:
        """Wait until the records are acknowledged or have failed. Return the seconds for the commit. Raise
        KafkaException after `limit` seconds, or after max_block_ms for None; the transaction is then still open."""
        producer = self._open()
        longest = producer.max_block if limit is None else limit
        deadline = time.monotonic() + longest
        try:
            producer.flush(longest)
        except errors.DeliveryTimeoutError as error:
            raise _retriable(KafkaError._TIMED_OUT, str(error)) from error
        return None if limit is None else max(deadline - time.monotonic(), SHORTEST_COMMIT_SECONDS)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Discard the records that were not sent, abort, and call the callbacks. Raise KafkaException if this fails.
        After a timeout, the error is retriable, and the next call continues the abort."""
        limit = seconds(timeout)
        with self._ending(), self._in_transaction(is_abort=True):
            self._refuse_failed_start()
            self._refuse_unknown_outcome()
            try:
                self._open().abort_transaction(limit)
            except errors.DeliveryTimeoutError as error:
                raise _retriable(KafkaError._TIMED_OUT, str(error)) from error

    @contextlib.contextmanager
    def _ending(self) -> Any:
        """Call the delivery callbacks at the end of this block. An exception of a callback is raised unchanged, even if
        the block has raised another one."""
        self._open()
        try:
            yield
        finally:
            self._serve(0)

    @contextlib.contextmanager
    def _in_transaction(self, *, is_abort: bool = False) -> Any:
        """Raise the errors of a transaction call as KafkaException. After a fatal error, every call raises that error.

        is_abort: Whether a retriable error stays retriable although the transaction can only be aborted.
        """
        self._open()
        if self._settings.options.get("transactional_id") is None:
            raise local_error(
                KafkaError._NOT_CONFIGURED, "The Transactional API requires transactional.id to be configured"
            )
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        try:
            with as_kafka_exceptions():
                yield
        except KafkaException as error:
            found = error.args[0]
            if not (is_abort and found.retriable()):
                found = self._by_state(found)
            if found.fatal():
                self._fatal = found  # after a timeout of the transaction, kcodec could abort and continue
            raise KafkaException(found) from error.__cause__

    def _by_state(self, error: KafkaError) -> KafkaError:
        """Return the error of a call with the flags that follow from the state of the producer. For example, a missing
        permission requires an abort in one state and is fatal in another."""
        producer = self._kcodec
        if producer is None or error.fatal() or error.code() in {KafkaError._STATE, KafkaError._CONFLICT}:
            return error
        if producer.transaction_state == "FATAL_ERROR":
            return KafkaError(error.code(), error.str(), True, False, False)
        if producer.transaction_state == "ABORTABLE_ERROR":
            return KafkaError(error.code(), error.str(), False, False, True)
        return error

    # The cluster

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return a ClusterMetadata of one topic or of all topics. Raise KafkaException if it cannot be read."""
        self._open()
        return self._cluster.list_topics(topic, timeout)

    def cluster_id(self, timeout: float = -1) -> Any:
        """Return the id of the cluster. Raise KafkaException if it cannot be read."""
        self._open()
        return self._cluster.cluster_id(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Authenticate later connections with this user name and password. Raise TypeError unless both are str."""
        self._cluster.set_credentials(username, password, self._open())

    # Ending

    def close(self) -> bool:
        """Abort an open transaction, send the records, call all callbacks, and close the connections.

        Callbacks may produce records. These are also sent, within message.timeout.ms. If callbacks fail, raise the
        exception of the first one after the producer is closed. The others are logged.
        """
        producer = self._kcodec
        if producer is not None:
            failed: list[Exception] = []
            self._events.closing_thread = threading.get_ident()
            try:
                with as_kafka_exceptions(), contextlib.suppress(errors.DeliveryErrors):
                    self._send_last_records(producer, failed)
                    producer.close()
            finally:
                self._events.detach()
                self._kcodec = None
                try:
                    serve_all(self._events, failed)
                finally:
                    self._cluster.close()
                if failed:
                    raise failed[0]
        return True

    def _send_last_records(self, producer: ReportingProducer, failed: list[Exception]) -> None:
        """Send the records while callbacks can still produce others. The records of a transaction are discarded."""
        if self._settings.options.get("transactional_id") is not None:
            return
        try:
            self._flush(self._settings.options["delivery_timeout_ms"] / 1000, lambda: serve_all(self._events, failed))
        except BaseException:
            producer.close(0)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        producer = getattr(self, "_kcodec", None)
        if producer is not None and not sys.is_finalizing():
            if not self._events.unreported:  # no record is lost; otherwise, the producer of kcodec logs the records
                with contextlib.suppress(RuntimeError, errors.KcodecError):  # it is deleted on the I/O thread
                    producer.close(0)
            self._cluster.close()

    def _error_of(self, error: BaseException) -> KafkaError:
        """Return the error of a record that has failed. This is called on the I/O thread."""
        if isinstance(error, _PurgedError):
            is_sent = isinstance(error, _PurgedInFlightError)
            return KafkaError(KafkaError._PURGE_INFLIGHT if is_sent else KafkaError._PURGE_QUEUE)
        if isinstance(error, errors.TransactionStateError):  # an abort has discarded the record
            return KafkaError(KafkaError._PURGE_QUEUE)
        return record_error(error)


def _check_batch(topic: Any, messages: list[Any], partition: Any) -> None:
    """Raise TypeError if an argument of produce_batch() has a wrong type, before a record is accepted."""
    if not isinstance(topic, str):
        raise TypeError(f"argument 1 must be str, not {type(topic).__name__}")
    if not isinstance(partition, int):
        raise TypeError(f"partition must be int, not {type(partition).__name__}")
    for index, one in enumerate(messages):
        if not isinstance(one, dict):
            raise TypeError(f"Message at index {index} must be a dict, not {type(one).__name__}")
        for name in ("value", "key"):
            if not isinstance(one.get(name), str | bytes | bytearray | memoryview | None):
                raise TypeError(f"Message {name} at index {index} must be bytes or str, not {type(one[name]).__name__}")
        if one.get("timestamp") is not None:
            raise NotImplementedError("Message timestamps are not currently supported in batch mode")
        if not isinstance(one.get("partition", -1), int):
            raise TypeError(f"Message partition at index {index} must be int, not {type(one['partition']).__name__}")


def _retriable(code: int, reason: str) -> KafkaException:
    """Return the exception for a call that the program may repeat."""
    return KafkaException(KafkaError(code, reason, False, True, False))


def _conflict(reason: str) -> KafkaException:
    """Return the exception for a call that is refused until an earlier call has been repeated."""
    return _retriable(KafkaError._CONFLICT, reason)


def _integer(name: str, value: Any) -> int:
    """Return an integer argument of produce(). Raise TypeError if the value is not an integer."""
    if hasattr(value, "__index__"):
        return operator.index(value)
    raise TypeError(f"{name} must be int, not {type(value).__name__}")


@contextlib.contextmanager
def as_kafka_exceptions_except_timeout() -> Any:
    """Raise errors of kcodec as KafkaException, as `as_kafka_exceptions` does. Ignore the errors of records, because
    these have a callback. Raise DeliveryTimeoutError unchanged, so that the caller can suppress it."""
    try:
        with contextlib.suppress(errors.DeliveryErrors):
            yield
    except errors.DeliveryTimeoutError:
        raise
    except errors.KcodecError as error:
        raise KafkaException(kafka_error(error)) from error


class ConfluentProducer(ProducerMethods):
    """confluent_kafka.Producer on kcodec's producer, with its methods, configuration names, errors and callbacks."""


class SerializingProducer(confluent_kafka.SerializingProducer, ProducerMethods):  # type: ignore[misc]
    """confluent_kafka.SerializingProducer on kcodec's producer."""
