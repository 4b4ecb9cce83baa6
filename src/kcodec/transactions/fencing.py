# SPDX-License-Identifier: Apache-2.0
"""Why an epoch is too old, or a transaction gone: asked of the coordinator, as the error code does not tell.

A time-out of the coordinator raises the epoch by one and leaves the transaction aborted. Another instance that takes
the transactional id over raises it by two, or by one where nothing was open; on its way there it leaves, for some
10 ms, the same traces as a time-out, so a transaction has timed out only if it was open for long enough, too. Below
transaction version 2 the end of a transaction keeps the epoch, from version 2 on it raises it by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.errors import AbortableTransactionError
from kcodec.flow import Flow
from kcodec.protocol.error_codes import broker_error
from kcodec.transactions.errors import Failed, Treatment, ended_elsewhere, fenced, timed_out, was_committed
from kcodec.transactions.initialize import TransactionDescription, describe_transaction

INVALID_TXN_STATE = 48
ONGOING = "Ongoing"
#: Longest wait for the response of DescribeTransactions, and never past the deadline of the call that met the error.
SETTLE_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """A transaction that is to end, or that an error says has ended.

    producer:      the (id, epoch) that it was written under.
    is_new_flow:   whether it was written in the flow of transaction version 2.
    is_shared:     whether others may have its handle, and end it.
    timeout_ms:    its time-out, for the text of errors where the coordinator does not say.
    is_over_time:  whether it was open for longer, by whatever clock there is.
    on_unanswered: called for each copy of EndTxn that got no answer.
    is_commit_unanswered: a copy of EndTxn (commit) went unanswered in an earlier call.
    is_init_unanswered:   a copy of our own InitProducerId did, it may come late and fence us.
    is_added:      partitions, records or offsets of this very transaction were acknowledged, so that the coordinator
                   knows of it.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_new_flow: bool
    is_shared: bool
    timeout_ms: int
    is_over_time: Callable[[TransactionDescription | None], bool]
    on_unanswered: Callable[[], None] = lambda: None
    is_commit_unanswered: bool = False
    is_init_unanswered: bool = False
    is_added: bool = False


def settle(cluster: Cluster, ending: Ending, doing: str, code: int, deadline: float | None = None) -> Flow[Failed]:
    """Return what the code (47, 48, 90, 120) means for this transaction: timed out, committed, ended elsewhere, empty,
    or fenced.

    deadline: of the call that met the error, by the cluster's clock; None in the background.
    """
    who = ending.transactional_id
    until = cluster.clock() + SETTLE_SECONDS
    found = yield from describe_transaction(cluster, who, until if deadline is None else min(until, deadline))
    by_another = fenced(doing, code, who, is_init_unanswered=ending.is_init_unanswered)
    if found is None:
        if ending.is_over_time(None):
            return Failed(Treatment.ABORTABLE, timed_out(doing, code, who, ending.timeout_ms))
        return Failed(Treatment.FATAL, by_another)
    if found.is_one_past(ending.producer) and found.is_aborted and ending.is_over_time(found):
        return Failed(Treatment.ABORTABLE, timed_out(doing, code, who, found.timeout_ms))
    if ending.is_shared and found.has_ended(ending.producer, ending.is_new_flow):
        error = ended_elsewhere(doing, code, who, "committed" if found.is_committed else "aborted")
        return Failed(Treatment.ABORTABLE, error, is_committed=found.is_committed)
    if _is_committed(found, ending):
        return Failed(Treatment.ABORTABLE, was_committed(doing, code, who), is_committed=True)
    if found.producer != ending.producer:
        return Failed(Treatment.FATAL, by_another)
    # The coordinator has the epoch as we have it: nothing was written, or a leader has reasons of its own.
    is_empty = code == INVALID_TXN_STATE and found.state != ONGOING
    plain = broker_error(code, doing, resource=who, remedy="abort", kind=AbortableTransactionError)
    return Failed(Treatment.EMPTY if is_empty else Treatment.ABORTABLE, plain)


def _is_committed(found: TransactionDescription, ending: Ending) -> bool:
    """Return whether the coordinator committed this very transaction.

    The epoch alone does not say so. Below transaction version 2 it names all transactions since InitProducerId, and
    from there on a producer that speaks an older protocol may have taken the id over and committed under the next
    epoch. Once something was acknowledged as added to this transaction, its state left that of the one before, and
    taking the id over bumps the epoch by two.
    """
    return ending.is_added and found.is_committed and found.has_ended(ending.producer, ending.is_new_flow)
