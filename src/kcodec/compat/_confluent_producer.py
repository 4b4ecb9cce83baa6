# SPDX-License-Identifier: Apache-2.0
"""The methods of confluent_kafka.Producer on a producer of kcodec.

Delivery callbacks run inside `poll` and `flush`, in the thread that calls them.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, Self

import confluent_kafka
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, Message, cimpl

from kcodec import errors
from kcodec.client import Producer as KcodecProducer
from kcodec.client import RecordMetadata
from kcodec.compat._confluent_cluster import ClusterReader
from kcodec.compat._confluent_errors import (
    as_kafka_exceptions,
    kafka_error,
    local_error,
    not_supported,
    record_error,
    seconds,
)
from kcodec.compat._confluent_events import STEP_SECONDS, Events, Observer
from kcodec.compat._confluent_options import settings_of
from kcodec.compat._patches import derived_from
from kcodec.offsets import OffsetAndMetadata, TopicPartition


def encoded(value: Any) -> bytes | None:
    """Return a key or value as bytes. Raise TypeError for what is neither text nor bytes."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    return bytes(memoryview(value))


def encoded_headers(headers: Any) -> list[tuple[str, bytes | None]]:
    """Return headers, a list of pairs or a dict, with values as bytes. Raise TypeError for other values."""
    found: list[tuple[str, bytes | None]] = []
    for one in headers.items() if isinstance(headers, dict) else headers:
        if not isinstance(one, tuple) or len(one) != 2:
            raise TypeError(f"expected headers as a dict or a list of (name, value) tuples, found {one!r}")
        name, value = one
        if not (value is None or isinstance(value, str | bytes)):
            raise TypeError(f"expected header value to be None, binary, or unicode string, not {type(value).__name__}")
        found.append((name, value.encode() if isinstance(value, str) else value))
    return found


@derived_from(cimpl.Producer)
class ProducerMethods:
    """The methods of a producer. librdkafka's own handle is never opened."""

    _kcodec: KcodecProducer | None = None

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._kcodec = None
        self._settings = settings_of("producer", arguments, keywords)
        self._events = Events()
        self._observer = Observer(self._settings, self._events, "producer")
        if self._observer.is_used:
            self._settings.options["metrics"] = self._observer
        self._messages = 0
        self._bytes = 0
        self._counting = threading.Lock()
        self._is_purging = False
        self._is_initialized = False
        self._has_tried = False
        self._cluster = ClusterReader(self._settings.options)
        with as_kafka_exceptions():
            self._kcodec = KcodecProducer(**self._settings.options)

    def _open(self) -> KcodecProducer:
        if self._kcodec is None:
            raise RuntimeError("Producer has been closed")
        return self._kcodec

    # Records

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: Callable[..., Any] | None = None,
        on_delivery: Callable[..., Any] | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Append a record to the buffer. `poll` and `flush` call callback(error, message), also named on_delivery.

        Raise BufferError if queue.buffering.max.messages or queue.buffering.max.kbytes is reached, KafkaException for a
        record that cannot be sent, TypeError for values that are neither text nor bytes.
        """
        producer = self._open()
        if not isinstance(topic, str):
            raise TypeError(f"argument 1 must be str, not {type(topic).__name__}")
        report = callback or on_delivery or self._settings.on_delivery
        if report is not None and not callable(report):
            raise TypeError(f"on_delivery must be a function, not {type(report).__name__}")
        raw_value, raw_key = encoded(value), encoded(key)
        size = len(raw_value or b"") + len(raw_key or b"")
        if self._messages >= self._settings.max_messages or self._bytes + size > self._settings.max_bytes:
            raise BufferError("Local: Queue full")
        pending = _Pending(self, report, topic, raw_key if report else None, raw_value if report else None, size)
        arguments: dict[str, Any] = {"on_delivery": pending}
        if headers:
            arguments["headers"] = encoded_headers(headers)
        if partition != -1:
            arguments["partition"] = partition
        if timestamp:
            arguments["timestamp"] = timestamp
        self._count(1, size)
        try:
            producer.send(topic, raw_value, raw_key, **arguments)
        except BaseException as error:
            self._count(-1, -size)
            if isinstance(error, errors.KcodecError):
                _refuse(error)
            raise

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Callable[..., Any] | None = None,
        on_delivery: Callable[..., Any] | None = None,
    ) -> int:
        """Append records, dictionaries with value, key, partition, timestamp and callback; return how many were taken.

        A record that was refused has its KafkaError in the field _error.
        """
        if not isinstance(messages, list):
            raise TypeError("messages must be a list")
        _check_batch(topic, messages, partition)
        count = 0
        for one in messages:
            known = {name: one[name] for name in ("value", "key", "partition", "timestamp") if name in one}
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
        return self._messages + len(self._events) if self._kcodec is not None else 0

    def __bool__(self) -> bool:
        return True

    def poll(self, timeout: float = -1) -> int:
        """Call the callbacks of what has happened, and return their number; wait up to `timeout` seconds for one.

        A negative timeout waits without a limit.
        """
        self._open()
        return self._serve(timeout)

    def _serve(self, timeout: float) -> int:
        return self._events.serve_within(timeout, lambda: self._observer.report_statistics(self._messages))

    def flush(self, timeout: float = -1) -> int:
        """Send all records, call their callbacks, and return the number of records that are left after `timeout`."""
        producer = self._open()
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            self._serve(0)
            left = STEP_SECONDS if deadline is None else deadline - time.monotonic()
            if not len(self) or left <= 0:
                return len(self)
            # The records themselves report their errors.
            with contextlib.suppress(errors.DeliveryTimeoutError), as_kafka_exceptions_except_timeout():
                producer.flush(min(left, STEP_SECONDS))

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drop all records that are not acknowledged; their callbacks get _PURGE_QUEUE or _PURGE_INFLIGHT.

        The client then continues with a new producer of kcodec. Raise KafkaException (_NOT_IMPLEMENTED) for one kind of
        records alone, and for a transactional producer.
        """
        producer = self._open()
        if not in_queue and not in_flight:
            return
        if not (in_queue and in_flight):
            raise not_supported("purge() of one kind of records alone", "call purge(in_queue=True, in_flight=True)")
        if self._settings.options.get("transactional_id") is not None:
            raise not_supported("purge() of a transactional producer", "call abort_transaction(), which drops records")
        self._is_purging = True
        try:
            with contextlib.suppress(errors.DeliveryErrors, errors.TransportError):
                producer.close(0)
        finally:
            self._is_purging = False
        with as_kafka_exceptions():
            self._kcodec = KcodecProducer(**self._settings.options)

    # Transactions

    def init_transactions(self, timeout: float = -1) -> None:
        """Take over the transactional id. Raise KafkaException."""
        with self._in_transaction():
            self._has_tried = True
            self._open().init_transactions(seconds(timeout))
            self._is_initialized = True

    def begin_transaction(self) -> None:
        """Begin a transaction. Raise KafkaException."""
        with self._in_transaction():
            self._refuse_failed_start()
            if not self._is_initialized:
                raise local_error(KafkaError._STATE, "call init_transactions() before begin_transaction()")
            self._open().begin_transaction()

    def send_offsets_to_transaction(self, positions: list[Any], group_metadata: Any, timeout: float = -1) -> None:
        """Commit offsets of a group with the transaction. Raise KafkaException.

        group_metadata: what consumer_group_metadata() of a consumer of kcodec.compat.confluent returns.
        """
        offsets = {
            TopicPartition(one.topic, one.partition): OffsetAndMetadata(one.offset, one.metadata or "")
            for one in positions
            if one.offset >= 0
        }
        with self._in_transaction():
            self._refuse_failed_start()
            if offsets:
                self._open().send_offsets_to_transaction(offsets, group_metadata, seconds(timeout))

    def _refuse_failed_start(self) -> None:
        if self._has_tried and not self._is_initialized:
            reason = "init_transactions() has failed; repeat it before any other call of transactions"
            raise KafkaException(KafkaError(KafkaError._CONFLICT, reason, False, True, False))

    def commit_transaction(self, timeout: float = -1) -> None:
        """Flush, call the callbacks, and commit. Raise KafkaException."""
        with self._in_transaction():
            self._refuse_failed_start()
            self._open().commit_transaction(seconds(timeout))

    def abort_transaction(self, timeout: float = -1) -> None:
        """Drop the records that are not sent, call the callbacks, and abort. Raise KafkaException."""
        self._is_purging = True
        try:
            with self._in_transaction():
                self._refuse_failed_start()
                self._open().abort_transaction(seconds(timeout))
        finally:
            self._is_purging = False

    @contextlib.contextmanager
    def _in_transaction(self) -> Any:
        """Raise the errors of a call of transactions, and call the callbacks of its records."""
        self._open()
        if self._settings.options.get("transactional_id") is None:
            raise local_error(
                KafkaError._NOT_CONFIGURED, "The Transactional API requires transactional.id to be configured"
            )
        with as_kafka_exceptions():
            try:
                yield
            finally:
                self._serve(0)

    # The cluster

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return a ClusterMetadata of one topic or all. Raise KafkaException."""
        self._open()
        return self._cluster.list_topics(topic, timeout)

    def cluster_id(self, timeout: float = -1) -> Any:
        """Return the id of the cluster. Raise KafkaException."""
        self._open()
        return self._cluster.cluster_id(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> NoReturn:
        """Raise KafkaException (_NOT_IMPLEMENTED): credentials of a client are those of its configuration."""
        raise not_supported("set_sasl_credentials()", "create another client with the new credentials")

    # Ending

    def close(self) -> bool:
        """Abort an open transaction, send the records, call the callbacks, and end."""
        producer = self._kcodec
        if producer is not None:
            try:
                with as_kafka_exceptions(), contextlib.suppress(errors.DeliveryErrors):
                    producer.close()
            finally:
                self._serve(0)
                self._kcodec = None
                self._cluster.close()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        producer = getattr(self, "_kcodec", None)
        if producer is not None and not sys.is_finalizing():
            if not self._messages:  # nothing is lost; otherwise the producer of kcodec logs what is
                with contextlib.suppress(RuntimeError, errors.KcodecError):  # deleted on the I/O thread
                    producer.close(0)
            self._cluster.close()

    def _ended(self, pending: _Pending, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        """On the I/O thread: a record was delivered or has failed."""
        if error is not None and self._is_purging:
            was_sent = getattr(error, "possibly_sent", False)
            found: KafkaError | None = KafkaError(KafkaError._PURGE_INFLIGHT if was_sent else KafkaError._PURGE_QUEUE)
        else:
            found = None if error is None else record_error(error)
        pending.metadata, pending.error = metadata, found
        self._events.add(pending.report)
        self._count(-1, -pending.size)

    def _count(self, messages: int, size: int) -> None:
        with self._counting:
            self._messages += messages
            self._bytes += size


class _Pending:
    """A record that is not reported yet; called by kcodec as its on_delivery."""

    __slots__ = ("begun", "callback", "error", "key", "metadata", "producer", "size", "topic", "value")

    def __init__(
        self,
        producer: ProducerMethods,
        callback: Callable[..., Any] | None,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        size: int,
    ) -> None:
        self.producer, self.callback, self.topic = producer, callback, topic
        self.key, self.value, self.size = key, value, size
        self.begun = time.monotonic()
        self.metadata: RecordMetadata | None = None
        self.error: KafkaError | None = None

    def __call__(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        self.producer._ended(self, metadata, error)

    def report(self) -> None:
        """Call the callback, in the program's thread."""
        if self.callback is None or (self.error is None and self.producer._settings.only_errors):
            return
        found = self.metadata
        message = Message(
            topic=self.topic,
            key=self.key,
            value=self.value,
            error=self.error,
            latency=time.monotonic() - self.begun,
            **_place(found),
        )
        self.callback(self.error, message)


def _check_batch(topic: Any, messages: list[Any], partition: Any) -> None:
    """Raise TypeError if an argument of produce_batch() has a wrong type, before any record is taken."""
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
        if not isinstance(one.get("partition", -1), int):
            raise TypeError(f"Message partition at index {index} must be int, not {type(one['partition']).__name__}")


def _place(found: RecordMetadata | None) -> dict[str, Any]:
    if found is None:
        return {"timestamp": (0, -1)}
    return {
        "partition": found.partition,
        "offset": found.offset,
        "timestamp": (TIMESTAMP_CREATE_TIME, found.timestamp),
    }


def _refuse(error: errors.KcodecError) -> NoReturn:
    """Raise what produce() raises for an error of send()."""
    if isinstance(error, errors.BufferFullError):
        raise BufferError("Local: Queue full") from error
    code = None
    if isinstance(error, errors.EncodeError):
        if "max_request_size" in str(error):
            code = KafkaError.MSG_SIZE_TOO_LARGE
        elif error.field == "partition":
            code = KafkaError._UNKNOWN_PARTITION
    raise KafkaException(kafka_error(error, code)) from error


@contextlib.contextmanager
def as_kafka_exceptions_except_timeout() -> Any:
    """As `as_kafka_exceptions`; errors of records, which have a callback, and timeouts of a wait are not errors."""
    try:
        with contextlib.suppress(errors.DeliveryErrors):
            yield
    except errors.DeliveryTimeoutError:
        raise
    except errors.KcodecError as error:
        raise KafkaException(kafka_error(error)) from error


class ConfluentProducer(ProducerMethods):
    """confluent_kafka.Producer on kcodec's producer: its methods, configuration names, errors and callbacks."""


class SerializingProducer(confluent_kafka.SerializingProducer, ProducerMethods):  # type: ignore[misc]
    """confluent_kafka.SerializingProducer on kcodec's producer."""
