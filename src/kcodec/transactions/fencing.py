# SPDX-License-Identifier: Apache-2.0
"""The reason why an epoch is too old or a transaction no longer exists, from DescribeTransactions (KIP-664).

A timeout in the coordinator bumps the epoch by one and leaves the transaction aborted. Another instance that takes over
the transactional id bumps it by two, or by one if no transaction was open. For some milliseconds, a takeover looks the
same as a timeout. A transaction therefore counts as timed out only if it was also open for at least its timeout. Below
transaction version 2, the end of a transaction keeps the epoch. From version 2 on, it bumps the epoch by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.errors import AbortableTransactionError, AuthenticationError, DecodeError, TransportError
from kcodec.flow import Flow
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code
from kcodec.transactions.errors import (
    Failed,
    TransactionDisposition,
    ended_elsewhere,
    fenced,
    timed_out,
    was_committed,
)
from kcodec.transactions.requests import CoordinatorCall

log = logging.getLogger("kcodec.transactions")
ONGOING = "Ongoing"
#: Longest wait for the response of DescribeTransactions, and never past the deadline of the call that met the error.
INVESTIGATION_SECONDS = 3.0


class TransactionStatus(NamedTuple):
    """The coordinator's state of a transactional id.

    state:      Kafka's name of the state, such as "Ongoing".
    timeout_ms: Transaction timeout of its last InitProducerId.
    start_ms:   Time of the broker when the transaction began; -1 if none is open.
    partitions: Partitions of each topic in the open transaction, including internal topics.
    """

    state: str
    producer: ProducerIdAndEpoch
    timeout_ms: int
    start_ms: int
    partitions: dict[str, list[int]]

    def is_one_past(self, producer: ProducerIdAndEpoch) -> bool:
        """Return whether the epoch is higher than this one by one: the transaction has ended, and no other producer has
        taken over the id."""
        return self.producer == (producer.producer_id, producer.producer_epoch + 1)

    @property
    def is_ending(self) -> bool:
        """Whether its end markers are being written."""
        return self.state in {"PrepareCommit", "PrepareAbort"}

    @property
    def is_aborted(self) -> bool:
        """Whether the last transaction was aborted, or is being aborted."""
        return self.state in {"PrepareAbort", "CompleteAbort", "PrepareEpochFence"}

    @property
    def is_committed(self) -> bool:
        """Whether the last transaction was committed, or is being committed."""
        return self.state in {"PrepareCommit", "CompleteCommit"}

    def has_ended(self, producer: ProducerIdAndEpoch, is_new_flow: bool) -> bool:
        """Return whether the last transaction of this (id, epoch) was committed or aborted, by EndTxn or by a timeout.

        In the old flow an end keeps the epoch and a timeout bumps it, so this is valid for an epoch with one
        transaction.
        """
        if self.is_one_past(producer):
            return self.is_aborted or (is_new_flow and self.is_committed)
        return not is_new_flow and self.producer == producer and (self.is_committed or self.is_aborted)


def describe_transaction(
    cluster: Cluster, transactional_id: str, deadline: float, *, is_quiet: bool = False
) -> Flow[TransactionStatus | None]:
    """Return the coordinator's state. None if it is not available (a broker before 3.0, no permission, no response),
    which is logged at INFO, or at DEBUG if `is_quiet`."""
    level = logging.DEBUG if is_quiet else logging.INFO
    from kcodec.protocol.messages.transactions import DescribeTransactionsRequest

    doing = f"DescribeTransactions of {transactional_id!r}"
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    coordinator = CoordinatorCall(cluster, "transaction", transactional_id, doing, deadline)
    try:
        reply = yield from coordinator.send(request, lambda message: int(_state_of(message).error_code))
        found = _state_of(reply.message)
    except AuthenticationError:
        raise
    except (TransportError, Failed, DecodeError) as error:
        log.log(level, "%s: %s", doing, error)
        return None
    if found.error_code:
        log.log(level, "%s: %s", doing, error_code(found.error_code).name)
        return None
    return TransactionStatus(
        found.transaction_state,
        ProducerIdAndEpoch(found.producer_id, found.producer_epoch),
        found.transaction_timeout_ms,
        found.transaction_start_time_ms,
        {topic.topic: list(topic.partitions) for topic in found.topics},
    )


def _state_of(message: Any) -> Any:
    if not message.transaction_states:
        raise DecodeError("the DescribeTransactions response does not include the requested transactional id")
    return message.transaction_states[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """A transaction that is to end, or that has ended according to an error.

    producer:      The (id, epoch) with which it was written.
    is_new_flow:   Whether it uses the flow of transaction version 2.
    is_shared:     Whether other processes may have its handle and end it.
    timeout_ms:    Its timeout, for error texts if the coordinator does not report it.
    is_over_time:  Returns whether it was open for longer than its timeout, by the available clock.
    on_no_response: Called for each copy of EndTxn that got no response.
    is_commit_unconfirmed: Whether a copy of EndTxn (commit) of an earlier call got no response.
    is_init_unconfirmed:   Whether a copy of InitProducerId of this producer got no response. It may arrive late and
                           fence it.
    is_added:      Whether partitions, records or offsets of it were acknowledged, so that the coordinator knows it.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_new_flow: bool
    is_shared: bool
    timeout_ms: int
    is_over_time: Callable[[TransactionStatus | None], bool]
    on_no_response: Callable[[], None] = lambda: None
    is_commit_unconfirmed: bool = False
    is_init_unconfirmed: bool = False
    is_added: bool = False


def investigate(cluster: Cluster, ending: Ending, doing: str, code: int, deadline: float | None = None) -> Flow[Failed]:
    """Return the meaning of INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, INVALID_TXN_STATE or TRANSACTION_ABORTABLE for
    this transaction: timed out, committed, ended elsewhere, empty, or fenced; AuthenticationError if the coordinator
    rejects the login.

    deadline: Deadline of the call that got the error, by the cluster's clock; None in the background.
    """
    transactional_id = ending.transactional_id
    until = cluster.clock() + INVESTIGATION_SECONDS
    try:
        found = yield from describe_transaction(
            cluster, transactional_id, until if deadline is None else min(until, deadline)
        )
    except AuthenticationError as rejected:
        log.info("%s: %s; the reason is not known: %s", doing, error_code(code).name, rejected)
        return Failed(TransactionDisposition.ABORT, rejected)  # the abort then finds the reason
    by_another = fenced(doing, code, transactional_id, is_init_unconfirmed=ending.is_init_unconfirmed)
    if found is None:
        if ending.is_over_time(None):
            return Failed(TransactionDisposition.ABORT, timed_out(doing, code, transactional_id, ending.timeout_ms))
        return Failed(TransactionDisposition.FATAL, by_another)
    if found.is_one_past(ending.producer) and found.is_aborted and ending.is_over_time(found):
        return Failed(TransactionDisposition.ABORT, timed_out(doing, code, transactional_id, found.timeout_ms))
    if ending.is_shared and found.has_ended(ending.producer, ending.is_new_flow):
        error = ended_elsewhere(doing, code, transactional_id, "committed" if found.is_committed else "aborted")
        return Failed(TransactionDisposition.ABORT, error, is_committed=found.is_committed)
    if _is_committed(found, ending):
        return Failed(TransactionDisposition.ABORT, was_committed(doing, code, transactional_id), is_committed=True)
    if found.producer != ending.producer:
        return Failed(TransactionDisposition.FATAL, by_another)
    # The coordinator has the same epoch as this producer: nothing was written, or only a leader refuses the epoch.
    is_empty = code == ErrorCode.INVALID_TXN_STATE and found.state != ONGOING
    plain = broker_error(code, doing, resource=transactional_id, remedy="abort", kind=AbortableTransactionError)
    return Failed(TransactionDisposition.EMPTY if is_empty else TransactionDisposition.ABORT, plain)


def investigate_failed(cluster: Cluster, ending: Ending, failed: Failed, deadline: float | None = None) -> Flow[Failed]:
    """Return the meaning of a failed request: `failed` itself, unless it only reports that the epoch is too old."""
    if failed.disposition is not TransactionDisposition.INVESTIGATE:
        return failed
    code = getattr(failed.error, "code", ErrorCode.PRODUCER_FENCED)
    doing = str(getattr(failed.error, "reason", failed.error)).partition(": ")[0]
    return (yield from investigate(cluster, ending, doing, code, deadline))


def _is_committed(found: TransactionStatus, ending: Ending) -> bool:
    """Return whether the coordinator has committed this transaction, and not another one.

    The epoch alone does not show this. Below transaction version 2, all transactions since InitProducerId have the same
    epoch. From version 2 on, a producer with an older protocol may have taken over the id and committed with the next
    epoch. If partitions, records or offsets of this transaction were acknowledged, the state of the coordinator is not
    that of the previous transaction, and a takeover of the id bumps the epoch by two.
    """
    return ending.is_added and found.is_committed and found.has_ended(ending.producer, ending.is_new_flow)
