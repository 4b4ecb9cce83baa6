# SPDX-License-Identifier: Apache-2.0
"""Conversion of errors and offsets of kcodec to values of confluent_kafka.

An error becomes a KafkaException. It contains a KafkaError with the code that librdkafka uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kcodec import errors
from kcodec.offsets import OffsetAndMetadata
from kcodec.protocol.error_codes import ErrorCode

# The first class that an error is an instance of determines its code.
CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.ProducerFencedError, KafkaError._FENCED),
    (errors.TransactionTimedOutError, KafkaError._FENCED),
    (errors.LogTruncationError, KafkaError._LOG_TRUNCATION),
    (errors.OffsetOutOfRangeError, KafkaError._AUTO_OFFSET_RESET),
    (errors.NoOffsetForPartitionError, KafkaError._AUTO_OFFSET_RESET),
    (errors.TransactionStateError, KafkaError._STATE),
    (errors.BufferFullError, KafkaError._QUEUE_FULL),
    (errors.UnsupportedError, KafkaError._NOT_IMPLEMENTED),
    (errors.DecodeError, KafkaError._BAD_MSG),
    (errors.AuthenticationError, KafkaError._AUTHENTICATION),
    (errors.DeliveryTimeoutError, KafkaError._TIMED_OUT),
    (errors.UnknownOutcomeError, KafkaError._TIMED_OUT),
    (errors.RequestTimedOutError, KafkaError._TIMED_OUT),
    (errors.TransportError, KafkaError._TRANSPORT),
    (TimeoutError, KafkaError._TIMED_OUT),
    (ValueError, KafkaError._INVALID_ARG),
    (TypeError, KafkaError._INVALID_ARG),
)
#: Codes of a record that was not acknowledged in time.
RECORD_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.DeliveryTimeoutError, KafkaError._MSG_TIMED_OUT),
    (errors.RequestTimedOutError, KafkaError._MSG_TIMED_OUT),
)
FATAL = (errors.ProducerFencedError, errors.TransactionTimedOutError, errors.FatalTransactionError)
#: Codes of a transactional request after which librdkafka's producer can only be closed. The producer of kcodec can
#: abort and continue if no other producer has taken over.
FENCED_CODES = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})

#: confluent_kafka commits this character after the metadata of an offset. If it is missing, it reads a wrong text.
END_OF_TEXT = "\0"


def kafka_error(error: BaseException, code: int | None = None) -> KafkaError:
    """Return the KafkaError of an error of kcodec.

    code: Code that the call determines, if any. Errors of brokers keep their number.
    """
    reason = _first(error)
    if code is None:
        code = code_of(reason)
    remedy = getattr(reason, "remedy", None)
    is_fatal = isinstance(reason, FATAL) or _is_fenced(reason)
    is_retriable = not is_fatal and (bool(getattr(reason, "retriable", False)) or remedy == "retry")
    requires_abort = not is_fatal and (isinstance(reason, errors.AbortableTransactionError) or remedy == "abort")
    return KafkaError(code, str(reason), is_fatal, is_retriable and not requires_abort, requires_abort)


def code_of(error: BaseException) -> int:
    """Return the code of an error of kcodec. This is the broker's number, or one of librdkafka's negative numbers."""
    if isinstance(error, errors.EncodeError) and error.field == "partition":
        return KafkaError._UNKNOWN_PARTITION
    if isinstance(error, errors.EncodeError) and error.field == "max_request_size":
        return KafkaError.MSG_SIZE_TOO_LARGE
    for kind, code in CODES:
        if isinstance(error, kind):
            return code
    if _is_fenced(error):
        return int(KafkaError._FENCED)
    return error.code if isinstance(error, errors.BrokerError) else KafkaError._FAIL


def _is_fenced(error: BaseException) -> bool:
    """Return whether a request of a transaction was rejected because its epoch is too old."""
    return isinstance(error, errors.AbortableTransactionError) and error.code in FENCED_CODES


def record_error(error: BaseException) -> KafkaError:
    """Return the KafkaError of a record that was not delivered."""
    for kind, code in RECORD_CODES:
        if isinstance(error, kind):
            found = kafka_error(error, code)
            reason = f"Local: Message timed out: {found.str()}"
            return KafkaError(code, reason, found.fatal(), found.retriable(), found.txn_requires_abort())
    return kafka_error(error)


def _first(error: BaseException) -> BaseException:
    """Return the error itself, or the cause of the first error in a group."""
    while isinstance(error, errors.DeliveryErrors | errors.AdminError):
        error = error.exceptions[0]
    if isinstance(error, errors.TopicDeliveryError) and error.__cause__ is not None:
        return error.__cause__
    return error


def local_error(code: int, reason: str) -> KafkaException:
    """Return the exception for an error that the client itself has detected."""
    return KafkaException(KafkaError(code, reason))


def not_supported(what: str, instead: str) -> KafkaException:
    """Return the exception for a call without a counterpart in kcodec."""
    return local_error(KafkaError._NOT_IMPLEMENTED, f"kcodec.compat.confluent does not support {what}; {instead}")


@contextmanager
def as_kafka_exceptions(is_unchanged: Callable[[BaseException], bool] | None = None) -> Iterator[None]:
    """Raise errors of kcodec as KafkaException, with the original error as its cause.

    is_unchanged: Function that returns whether an error is raised unchanged, because a callback of the program has
        raised it.
    """
    try:
        yield
    except (errors.KcodecError, TimeoutError, ValueError, TypeError) as error:
        if is_unchanged is not None and is_unchanged(error):
            raise
        raise KafkaException(kafka_error(error)) from error


@contextmanager
def as_unknown_partition() -> Iterator[None]:
    """Raise KafkaException (_UNKNOWN_PARTITION) if a topic or a partition does not exist, as librdkafka does when it
    looks up the leader of a partition."""
    try:
        yield
    except errors.KcodecError as error:
        if code_of(_first(error)) == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise local_error(KafkaError._UNKNOWN_PARTITION, str(error)) from error
        raise


def written_metadata(metadata: str | None) -> str:
    """Return the metadata to commit in the format of confluent_kafka, in which empty metadata differs from missing
    metadata."""
    return "" if metadata is None else metadata + END_OF_TEXT


def place_of(partition: tuple[str, int], offset: OffsetAndMetadata | None) -> TopicPartition:
    """Return a partition with a committed offset, or with OFFSET_INVALID for None."""
    if offset is None:
        return TopicPartition(*partition)
    known: dict[str, Any] = {}
    if offset.metadata:
        known["metadata"] = offset.metadata.partition(END_OF_TEXT)[0]
    if offset.leader_epoch >= 0:
        known["leader_epoch"] = offset.leader_epoch
    return TopicPartition(*partition, offset.offset, **known)


def seconds(timeout: float | None) -> float | None:
    """Return a timeout of librdkafka as a timeout of kcodec. A negative number means no limit in librdkafka. It becomes
    None, for the default timeout of the call in kcodec. Raise TypeError if the timeout is not a number."""
    if timeout is None:
        return None
    check_timeout(timeout)
    limit = float(timeout)
    return None if limit < 0 else limit


def check_timeout(timeout: Any) -> None:
    """Raise TypeError unless the timeout is a number of seconds."""
    if not isinstance(timeout, int | float) and not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
