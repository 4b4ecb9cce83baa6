# SPDX-License-Identifier: Apache-2.0
"""What an error code of a transactional request means for the producer: a table for each request, and error texts.

After Kafka's TransactionManager and KIP-1050; where Java's producer fails although an abort would be enough, the
abort is chosen. Requests that may succeed later are repeated by `kcodec.transactions.requests` and do not come here.
"""

from __future__ import annotations

from enum import Enum

from kcodec.errors import (
    AbortableTransactionError,
    BrokerError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionTimedOutError,
)
from kcodec.protocol.error_codes import broker_error, error_code


class Treatment(Enum):
    """What is to become of the transaction and its producer."""

    #: Abort, then go on.
    ABORTABLE = "abortable"
    #: Close the producer.
    FATAL = "fatal"
    #: The epoch is too old: another instance took over, or the coordinator's time-out; to be found out.
    SETTLE = "settle"
    #: EndTxn was sent, and its outcome is unknown.
    UNANSWERED = "unanswered"
    #: The deadline came before EndTxn was sent.
    INTERRUPTED = "interrupted"
    #: EndTxn found that nothing was written under this epoch.
    EMPTY = "empty"


class Failed(Exception):
    """Inside flows: what failed, and what it means. The public API raises `error`. is_committed: another process
    committed it."""

    def __init__(self, treatment: Treatment, error: BaseException, *, is_committed: bool = False) -> None:
        super().__init__(str(error))
        self.treatment = treatment
        self.error = error
        self.is_committed = is_committed


_ABORTABLE, _FATAL, _SETTLE = Treatment.ABORTABLE, Treatment.FATAL, Treatment.SETTLE

#: 47 INVALID_PRODUCER_EPOCH and 90 PRODUCER_FENCED everywhere; 52 comes only from a coordinator to a leader.
FENCED_CODES = frozenset({47, 90})
#: 53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 31 CLUSTER_AUTHORIZATION_FAILED, 35 UNSUPPORTED_VERSION,
#: 43 UNSUPPORTED_FOR_MESSAGE_FORMAT, 48 INVALID_TXN_STATE.
_EVERYWHERE: dict[int | None, Treatment] = {
    **dict.fromkeys((31, 35, 43, 48, 53), _FATAL),
    **dict.fromkeys(FENCED_CODES, _SETTLE),
}

#: Request -> code -> treatment; None: of every other code.
TREATMENTS: dict[str, dict[int | None, Treatment]] = {
    # Nothing is open; what is refused now would be refused again.
    "InitProducerId": {**_EVERYWHERE, None: _FATAL},
    # 29 TOPIC_AUTHORIZATION_FAILED, 49 INVALID_PRODUCER_ID_MAPPING, 120 TRANSACTION_ABORTABLE ...
    "AddPartitionsToTxn": {**_EVERYWHERE, None: _ABORTABLE},
    # 30 GROUP_AUTHORIZATION_FAILED, 120 ...
    "AddOffsetsToTxn": {**_EVERYWHERE, None: _ABORTABLE},
    # 22 ILLEGAL_GENERATION, 25 UNKNOWN_MEMBER_ID, 82 FENCED_INSTANCE_ID, 110 and 113 of KIP-848: the generation fences.
    "TxnOffsetCommit": {**_EVERYWHERE, None: _ABORTABLE},
    "EndTxn": {**_EVERYWHERE, 49: _ABORTABLE, 59: _ABORTABLE, 120: _ABORTABLE, None: _FATAL},
    # 48 on Produce: the epoch was spent on another transaction; an abort gives a new one.
    "Produce": {**_EVERYWHERE, 48: _ABORTABLE, None: _ABORTABLE},
}
_KINDS: dict[Treatment, type[BrokerError]] = {
    Treatment.ABORTABLE: AbortableTransactionError,
    Treatment.FATAL: FatalTransactionError,
    Treatment.SETTLE: ProducerFencedError,
}
_REMEDIES = {Treatment.ABORTABLE: "abort", Treatment.FATAL: "recreate", Treatment.SETTLE: "stop"}
_AUTHORIZATION = frozenset({29, 30, 31, 53})


def treatment_of(request: str, code: int) -> Treatment:
    """By the table."""
    rows = TREATMENTS[request]
    return rows.get(code, rows[None])


def failure(request: str, code: int, doing: str, *, resource: object = None, message: str | None = None) -> Failed:
    """Return the failure that a response with this code means; it is not raised.

    A missing permission is an AuthorizationError whose remedy is "stop", also where an abort leaves the producer
    usable: the same call fails again until the permission is granted.
    """
    treatment = treatment_of(request, code)
    if code in _AUTHORIZATION:
        return Failed(treatment, broker_error(code, doing, resource=resource, message=message, remedy="stop"))
    return Failed(
        treatment,
        broker_error(
            code,
            doing,
            resource=resource,
            message=message,
            remedy=_REMEDIES[treatment],
            kind=_KINDS[treatment],
        ),
    )


def fenced(doing: str, code: int, transactional_id: str, *, is_init_unanswered: bool = False) -> ProducerFencedError:
    """Return the error for a transactional id that another producer uses.

    is_init_unanswered: an InitProducerId of this producer got no response. A late copy of it bumps the epoch as another
    producer would, so that a service that stopped would stay down for one late packet: the remedy is "recreate".
    """
    advice = (
        "One id belongs to one live instance: stop this one, or give it a transactional_id that no other uses (created "
        "again with the same id, it would fence the other in turn)"
    )
    if is_init_unanswered:
        advice = (
            "It may have been this producer itself: one of its InitProducerId requests got no response, and a late "
            "copy of it bumps the epoch. Close this producer and create it again; if it is fenced again, another live "
            "instance uses the same transactional_id"
        )
    return ProducerFencedError(
        f"{doing}: another producer with transactional_id {transactional_id!r} took over, so this one can no longer "
        f"write. {advice}",
        code=code,
        name=error_code(code).name,
        remedy="recreate" if is_init_unanswered else "stop",
        resource=transactional_id,
    )


def was_committed(doing: str, code: int, transactional_id: str) -> AbortableTransactionError:
    """The coordinator has committed the transaction of this epoch, whatever the response to the last request said."""
    return AbortableTransactionError(
        f"{doing}: DescribeTransactions says that the transaction of transactional_id {transactional_id!r} was "
        "committed; begin the next one",
        code=code,
        name=error_code(code).name,
        remedy="abort",
        resource=transactional_id,
    )


def ended_elsewhere(doing: str, code: int, transactional_id: str, how: str) -> AbortableTransactionError:
    """Return the error for a transaction that another process with its handle has ended."""
    return AbortableTransactionError(
        f"{doing}: the transaction of transactional_id {transactional_id!r} was {how} by another process that has "
        "its handle",
        code=code,
        name=error_code(code).name,
        remedy="abort",
        resource=transactional_id,
    )


def timed_out(doing: str, code: int, transactional_id: str, timeout_ms: int) -> TransactionTimedOutError:
    """The coordinator ended the transaction."""
    return TransactionTimedOutError(
        f"{doing}: the transaction of transactional_id {transactional_id!r} was open for longer than "
        f"transaction_timeout_ms={timeout_ms}, so the coordinator aborted it; no other producer took over. Abort, and "
        "begin again with fewer records in a transaction or a greater transaction_timeout_ms",
        code=code,
        name=error_code(code).name,
        remedy="abort",
        resource=transactional_id,
    )


def timeout_refused(transactional_id: str, timeout_ms: int) -> FatalTransactionError:
    """Error 50 of InitProducerId, in words."""
    return FatalTransactionError(
        f"InitProducerId of {transactional_id!r}: the broker refuses transaction_timeout_ms={timeout_ms}: it must be "
        "above 0 and at most the broker's transaction.max.timeout.ms (900000 unless it was changed)",
        code=50,
        name="INVALID_TRANSACTION_TIMEOUT",
        remedy="stop",
        resource=transactional_id,
    )
