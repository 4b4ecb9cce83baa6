# SPDX-License-Identifier: Apache-2.0
"""The meaning of error codes of transactional requests for the producer: a table for each request, and error texts.

The tables follow Kafka's TransactionManager and KIP-1050. If Java's producer fails although an abort would be enough,
the abort is chosen here. `kcodec.transactions.requests` repeats requests that may succeed later.
"""

from __future__ import annotations

from enum import Enum

from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    EncodeError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionTimedOutError,
)
from kcodec.offsets import TopicPartition
from kcodec.producer.identity import IDENTITY_ERRORS
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code


class TransactionDisposition(Enum):
    """The effect of an error on the transaction and its producer."""

    #: Abort, then continue.
    ABORT = "abort"
    #: Close the producer.
    FATAL = "fatal"
    #: The epoch is too old: another instance took over, or the coordinator aborted the transaction after its timeout.
    #: See `kcodec.transactions.fencing`.
    INVESTIGATE = "investigate"
    #: EndTxn was sent, and its outcome is unknown.
    UNCONFIRMED = "unconfirmed"
    #: The deadline came before EndTxn was sent.
    INTERRUPTED = "interrupted"
    #: EndTxn found that nothing was written under this epoch.
    EMPTY = "empty"


class Failed(Exception):
    """The error and its disposition, within flows. The public API raises `error`. `is_committed` means that another
    process has committed the transaction."""

    def __init__(
        self, disposition: TransactionDisposition, error: BaseException, *, is_committed: bool = False
    ) -> None:
        super().__init__(str(error))
        self.disposition = disposition
        self.error = error
        self.is_committed = is_committed


_ABORT, _FATAL, _INVESTIGATE = (
    TransactionDisposition.ABORT,
    TransactionDisposition.FATAL,
    TransactionDisposition.INVESTIGATE,
)
#: Of every request. TRANSACTION_COORDINATOR_FENCED comes only from a coordinator to a leader.
FENCED_CODES = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
#: After these errors of Produce an epoch of the old flow is not used for another transaction, as it is not certain what
#: the partition has seen of this one. All but one of the errors about the producer: without the permission on the
#: transactional id nothing is appended, and the producer is finished (Kafka: TransactionManager.
#: maybeTransitionToErrorState, which bumps the epoch after no fatal error).
EPOCH_SPENDING_CODES = IDENTITY_ERRORS - {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
_OF_EVERY_REQUEST: dict[int | None, TransactionDisposition] = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _FATAL,
    ErrorCode.UNSUPPORTED_VERSION: _FATAL,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: _FATAL,
    ErrorCode.INVALID_TXN_STATE: _FATAL,
    **dict.fromkeys(FENCED_CODES, _INVESTIGATE),
}

#: Request -> code -> disposition; None: of every other code.
DISPOSITIONS: dict[str, dict[int | None, TransactionDisposition]] = {
    # Nothing is open; what is refused now would be refused again.
    "InitProducerId": {**_OF_EVERY_REQUEST, None: _FATAL},
    # TOPIC_AUTHORIZATION_FAILED, INVALID_PRODUCER_ID_MAPPING, TRANSACTION_ABORTABLE ...
    "AddPartitionsToTxn": {**_OF_EVERY_REQUEST, None: _ABORT},
    # GROUP_AUTHORIZATION_FAILED, TRANSACTION_ABORTABLE ...
    "AddOffsetsToTxn": {**_OF_EVERY_REQUEST, None: _ABORT},
    # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH and STALE_MEMBER_EPOCH of KIP-848:
    # the generation fences.
    "TxnOffsetCommit": {**_OF_EVERY_REQUEST, None: _ABORT},
    "EndTxn": {
        **_OF_EVERY_REQUEST,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: _ABORT,
        ErrorCode.UNKNOWN_PRODUCER_ID: _ABORT,
        ErrorCode.TRANSACTION_ABORTABLE: _ABORT,
        None: _FATAL,
    },
    # INVALID_TXN_STATE on Produce: the epoch was used up by another transaction. An abort gets a new epoch.
    "Produce": {**_OF_EVERY_REQUEST, ErrorCode.INVALID_TXN_STATE: _ABORT, None: _ABORT},
}
_KINDS: dict[TransactionDisposition, type[BrokerError]] = {
    _ABORT: AbortableTransactionError,
    _FATAL: FatalTransactionError,
    _INVESTIGATE: ProducerFencedError,
}
_REMEDIES = {_ABORT: "abort", _FATAL: "recreate", _INVESTIGATE: "stop"}
_AUTHORIZATION = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def disposition_of(request: str, code: int) -> TransactionDisposition:
    """Return the disposition of the code from the table."""
    rows = DISPOSITIONS[request]
    return rows.get(code, rows[None])


def failure(request: str, code: int, doing: str, *, resource: object = None, message: str | None = None) -> Failed:
    """Return the failure for a response with this code, without raising it.

    A missing permission is an AuthorizationError whose remedy is "stop", even if an abort leaves the producer usable:
    the same call fails again until the permission is granted.
    """
    disposition = disposition_of(request, code)
    remedy, kind = ("stop", None) if code in _AUTHORIZATION else (_REMEDIES[disposition], _KINDS[disposition])
    error = broker_error(code, doing, resource=resource, message=message, remedy=remedy, kind=kind)
    return Failed(disposition, error)


def fenced(doing: str, code: int, transactional_id: str, *, is_init_unconfirmed: bool = False) -> ProducerFencedError:
    """Return the error for a transactional id that another producer uses.

    is_init_unconfirmed: Whether an InitProducerId of this producer got no response. A late copy of it bumps the epoch,
                         as another producer would, and a coordinator that has processed it and was restarted refuses
                         its repetition. The remedy is then "recreate", because one late packet must not stop
                         a service permanently.
    """
    advice = (
        "A transactional_id belongs to one live instance: stop this one, or give it another transactional_id (created "
        "again with the same id, it would in turn fence the other)"
    )
    if is_init_unconfirmed:
        advice = (
            "It may have been this producer itself: one of its InitProducerId requests got no response, and a late "
            "copy of it bumps the epoch, or a coordinator that was restarted meanwhile refuses its repetition. Close "
            "this producer and create it again; if it is fenced again, another live instance uses the same "
            "transactional_id"
        )
    return ProducerFencedError(
        f"{doing}: another producer with transactional_id {transactional_id!r} took over, so this one can no longer "
        f"write. {advice}",
        code=code,
        name=error_code(code).name,
        remedy="recreate" if is_init_unconfirmed else "stop",
        resource=transactional_id,
    )


def abortable(
    text: str, code: int, resource: object, kind: type[BrokerError] = AbortableTransactionError
) -> BrokerError:
    """Return an error with this text, after which the transaction must be aborted."""
    return kind(text, code=code, name=error_code(code).name, remedy="abort", resource=resource)


def was_committed(doing: str, code: int, transactional_id: str) -> BrokerError:
    """Return the error for a transaction that the coordinator committed, although the last response was an error."""
    text = (
        f"{doing}: DescribeTransactions reports that the transaction of transactional_id {transactional_id!r} was "
        "committed; begin the next one"
    )
    return abortable(text, code, transactional_id)


def ended_elsewhere(doing: str, code: int, transactional_id: str, how: str) -> BrokerError:
    """Return the error for a transaction that another process with its handle has ended."""
    text = (
        f"{doing}: the transaction of transactional_id {transactional_id!r} was {how} by another process that has "
        "its handle"
    )
    return abortable(text, code, transactional_id)


def timed_out(doing: str, code: int, transactional_id: str, timeout_ms: int) -> BrokerError:
    """Return the error for a transaction that the coordinator aborted because of its timeout."""
    text = (
        f"{doing}: the transaction of transactional_id {transactional_id!r} was open for longer than "
        f"transaction_timeout_ms={timeout_ms}, so the coordinator aborted it; no other producer took over. Abort, and "
        "begin again with fewer records in a transaction or a greater transaction_timeout_ms"
    )
    return abortable(text, code, transactional_id, TransactionTimedOutError)


def timeout_refused(transactional_id: str, timeout_ms: int) -> FatalTransactionError:
    """Return the error for INVALID_TRANSACTION_TIMEOUT of InitProducerId."""
    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return FatalTransactionError(
        f"InitProducerId of {transactional_id!r}: the broker rejects transaction_timeout_ms={timeout_ms}; it must be "
        "above 0 and at most the broker's transaction.max.timeout.ms (default 900000)",
        code=code,
        name=code.name,
        remedy="stop",
        resource=transactional_id,
    )


def not_written(transactional_id: str, partition: TopicPartition, error: BaseException) -> BaseException:
    """Return the error that blocks the commit of this id after a record was not written because of `error`."""
    kept = (AbortableTransactionError, AuthorizationError, TransactionTimedOutError, ProducerFencedError)
    if isinstance(error, kept):
        return error
    where = str(partition) if partition.partition >= 0 else f"topic {partition.topic!r}"
    # without the code and the remedy of the cause, which differ from those that the new error ends with
    why = error.reason if isinstance(error, BrokerError) else error
    text = f"the transaction of {transactional_id!r} cannot be committed: a record for {where} was not written: {why}"
    blocked = abortable(text, code_of(error), partition)
    blocked.__cause__ = error
    return blocked


def code_of(error: BaseException) -> int:
    """Return Kafka's code that best describes why a record was not written."""
    if isinstance(error, BrokerError):
        return error.code
    if isinstance(error, EncodeError):
        is_too_large = error.field in {"max_request_size", "buffer_memory"}
        return ErrorCode.MESSAGE_TOO_LARGE if is_too_large else ErrorCode.INVALID_RECORD
    return ErrorCode.REQUEST_TIMED_OUT
