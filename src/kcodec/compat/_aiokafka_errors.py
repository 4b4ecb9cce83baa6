# SPDX-License-Identifier: Apache-2.0
"""Errors of kcodec as exceptions of aiokafka. The error of kcodec is the `__cause__` of the exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aiokafka import errors as theirs
from aiokafka.structs import TopicPartition

from kcodec import errors
from kcodec.protocol.error_codes import ErrorCode

#: Codes for a group that has continued without this consumer, so that its offsets cannot be committed.
COMMIT_REFUSED = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS})
# The first class that an error is an instance of determines its class in aiokafka.
CLASSES: tuple[tuple[type[BaseException], type[Exception]], ...] = (
    (errors.ProducerFencedError, theirs.ProducerFenced),
    (errors.TransactionStateError, theirs.IllegalOperation),
    (errors.NoOffsetForPartitionError, theirs.NoOffsetForPartitionError),
    (errors.BufferFullError, theirs.KafkaTimeoutError),
    (errors.AuthenticationError, theirs.AuthenticationFailedError),
    (errors.RequestTimedOutError, theirs.KafkaTimeoutError),
    (errors.DeliveryTimeoutError, theirs.KafkaTimeoutError),
    (errors.UnknownOutcomeError, theirs.KafkaTimeoutError),
    (errors.TransportError, theirs.KafkaConnectionError),
    (TimeoutError, theirs.KafkaTimeoutError),
)


def aiokafka_error(error: BaseException) -> BaseException:
    """Return the exception of aiokafka for an error of kcodec, which becomes its cause. Return other errors
    unchanged."""
    if isinstance(error, errors.DeserializationError):
        return error.__cause__ or error  # aiokafka raises the exception of the deserializer
    found: BaseException | None = _translated(_first(error))
    if found is None:
        return error
    found.__cause__ = error
    return found


def record_error(error: BaseException) -> BaseException:
    """Return the exception of a record. After the delivery timeout, this is the error of the last attempt, as in
    aiokafka."""
    if type(error) is errors.DeliveryTimeoutError:
        last = error.__cause__
        found: BaseException
        if isinstance(last, errors.BrokerError):
            found = theirs.for_code(last.code)(str(error))
        elif last is None or isinstance(last, errors.RequestTimedOutError):
            found = theirs.RequestTimedOutError(str(error))
        else:
            return aiokafka_error(error)
        found.__cause__ = error
        return found
    return aiokafka_error(error)


def _first(error: BaseException) -> BaseException:
    """Return the error itself, the cause of the first error in a group, or the cause of a failed transaction."""
    while isinstance(error, errors.DeliveryErrors | errors.AdminError):
        error = error.exceptions[0]
    if isinstance(error, errors.TopicDeliveryError) and error.__cause__ is not None:
        return error.__cause__
    if isinstance(error, errors.AbortableTransactionError) and isinstance(error.__cause__, errors.KcodecError):
        return _first(error.__cause__)
    return error


def _translated(error: BaseException) -> Any:
    if isinstance(error, errors.OffsetOutOfRangeError):
        return theirs.OffsetOutOfRangeError({TopicPartition(*error.partition): error.position})
    if isinstance(error, errors.UnsupportedError) and error.reason.startswith("compression id"):
        return theirs.UnsupportedCodecError(str(error))
    if isinstance(error, errors.DecodeError):
        return theirs.CorruptRecordException(str(error))
    if isinstance(error, errors.EncodeError):
        if "max_request_size" in str(error):
            return theirs.MessageSizeTooLargeError(str(error))
        return None if error.field == "timestamp" else TypeError(str(error))
    for kind, translated in CLASSES:
        if isinstance(error, kind):
            return translated(str(error))
    if isinstance(error, errors.AuthorizationError) and error.resource is not None:
        made = theirs.for_code(error.code)(error.resource)
        made.add_note(str(error))
        return made
    if isinstance(error, errors.BrokerError):
        return theirs.for_code(error.code)(str(error))
    return theirs.KafkaError(str(error)) if isinstance(error, errors.KcodecError) else None


@contextmanager
def as_aiokafka_errors() -> Iterator[None]:
    """Raise errors of kcodec as exceptions of aiokafka."""
    failure: BaseException | None = None
    try:
        yield
    except (errors.KcodecError, TimeoutError) as error:
        failure = error
    # Raise outside of the `except` block. The exception of a deserializer is the cause of that error, and must not have
    # it as its context.
    if failure is not None:
        found = aiokafka_error(failure)
        raise found if found is failure else found.with_traceback(None)


def commit_error(error: BaseException) -> BaseException:
    """Return the exception of a commit. It is CommitFailedError if the group has continued without this consumer."""
    if isinstance(error, errors.BrokerError) and error.code in COMMIT_REFUSED:
        refused: BaseException = theirs.CommitFailedError(str(error))
        refused.__cause__ = error
        return refused
    return aiokafka_error(error)


def not_supported(what: str, instead: str) -> NotImplementedError:
    """Return the exception for something that the facade does not support."""
    return NotImplementedError(f"kcodec.compat.aiokafka does not support {what}; {instead}")


class MissingAttributes:
    """A base class whose error for a missing private attribute names an alternative."""

    #: Whether public attributes of aiokafka's class are missing, too.
    _is_partial = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if (name.startswith("_") or type(self)._is_partial) and not name.startswith("__"):
                text = (
                    f"kcodec.compat.aiokafka: {type(self).__name__} has no attribute {name!r}; a program that needs it "
                    "can use the clients of aiokafka with the record classes of kcodec: call "
                    "kcodec.compat.aiokafka.install() without clients=True"
                )
            raise AttributeError(text, name=name, obj=self)
