# SPDX-License-Identifier: Apache-2.0
"""EndTxn: commit or abort, with one honest word on what came of it.

An unanswered EndTxn is repeated with the same (producer id, epoch, result) until the deadline: a broker that has
carried it out answers the repeat with success. What can then not be known is said to be unknown, never success. In the
old flow the epoch stays the same, in the new one (KIP-890, EndTxn version 5) the answer brings the next.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.errors import DecodeError, DeliveryTimeoutError, TransportError, UnknownOutcomeError
from kcodec.flow import Flow
from kcodec.transactions.errors import FENCED_CODES, Failed, Treatment, failure
from kcodec.transactions.fencing import Ending, settle
from kcodec.transactions.requests import CoordinatorCall

log = logging.getLogger("kcodec.transactions")
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
#: Answers that say for certain what became of EndTxn, or that it was not looked at (14, 16, 51). Not 15: a coordinator
#: that could not replicate its decision in time says so, and the next coordinator may find the decision in the log.
CERTAIN_CODES = frozenset({0, 14, 16, 31, 35, 47, 48, 49, 51, 53, 59, 90, 120})
#: The first version of EndTxn that bumps the epoch.
NEW_FLOW_VERSION = 5


class Ended(NamedTuple):
    """It ended as asked. producer: for the next transaction, None where that takes InitProducerId; was_repeated: a copy
    of EndTxn went unanswered before."""

    producer: ProducerIdAndEpoch | None
    was_repeated: bool


def end_transaction(cluster: Cluster, ending: Ending, is_commit: bool, deadline: float) -> Flow[Ended]:
    """Commit or abort. A commit that the coordinator refuses, and has carried out as DescribeTransactions says, is a
    commit. Raises Failed with the treatment; AuthenticationError when nothing was sent."""
    word = "commit" if is_commit else "abort"
    doing = f"EndTxn ({word}) of {ending.transactional_id!r}"
    asked = CoordinatorCall(
        cluster,
        "transaction",
        ending.transactional_id,
        doing,
        deadline,
        on_unanswered=ending.on_unanswered,
        is_uncertain=lambda code: code not in CERTAIN_CODES,
        # An open transaction stops readers until its timeout, so an abort is worth sending without a response, too.
        is_sent_late=not is_commit,
    )
    asked.unanswered = int(is_commit and ending.is_commit_unanswered)
    try:
        code, following = yield from _ask(asked, ending, is_commit, doing)
    except (TransportError, DecodeError, Failed) as error:
        raise _without_answer(asked, is_commit, doing, error) from error
    if code == 0:
        return Ended(following or ending.producer, asked.unanswered > 0)
    if not is_commit:
        return (yield from _judge_abort(cluster, ending, code, doing, asked))
    refused = yield from _judge_commit(cluster, ending, code, doing, asked)
    if refused.is_committed and not ending.is_shared:
        log.info("%s was refused with error %d, and is committed: %s", doing, code, refused.error)
        return Ended(None, asked.unanswered > 0)
    raise refused


def _ask(
    asked: CoordinatorCall, ending: Ending, is_commit: bool, doing: str
) -> Flow[tuple[int, ProducerIdAndEpoch | None]]:
    from kcodec.protocol.messages.transactions import EndTxnRequest

    request = EndTxnRequest(
        transactional_id=ending.transactional_id,
        producer_id=ending.producer.producer_id,
        producer_epoch=ending.producer.producer_epoch,
        committed=is_commit,
    )
    bounds = {"lowest": NEW_FLOW_VERSION} if ending.is_new_flow else {"highest": NEW_FLOW_VERSION - 1}
    reply = yield from asked.ask(request, lambda message: int(message.error_code), **bounds)
    code = reply.message.error_code
    following = None
    if reply.version >= NEW_FLOW_VERSION and reply.message.producer_id >= 0:
        following = ProducerIdAndEpoch(reply.message.producer_id, reply.message.producer_epoch)
    return code, following


def _without_answer(asked: CoordinatorCall, is_commit: bool, doing: str, error: BaseException) -> Failed:
    if not asked.unanswered:
        return Failed(Treatment.INTERRUPTED, error.error if isinstance(error, Failed) else error)
    if is_commit:
        return Failed(
            Treatment.UNANSWERED,
            UnknownOutcomeError(
                f"{doing}: asked {asked.unanswered} times and not answered for certain; the transaction may be "
                f"committed, or aborted, or still open. The last was: {error}",
                possibly_sent=True,
            ),
        )
    return Failed(
        Treatment.UNANSWERED,
        DeliveryTimeoutError(
            f"{doing}: not confirmed. Nothing of the transaction will be committed; what may still be open, the next "
            f"begin aborts, or the coordinator when its time is over. The last was: {error}",
            possibly_sent=True,
        ),
    )


def _judge_commit(cluster: Cluster, ending: Ending, code: int, doing: str, asked: CoordinatorCall) -> Flow[Failed]:
    """Return what a refused commit means. After a copy that got no response, an epoch that is too old says nothing
    about that copy: it may have been committed before another producer took over. INVALID_TXN_STATE in the new flow
    does: it was not committed."""
    settled = failure("EndTxn", code, doing, resource=ending.transactional_id)
    if code in FENCED_CODES or code == INVALID_TXN_STATE:
        described = yield from settle(cluster, ending, doing, code, asked.deadline)
        is_told = code in FENCED_CODES or ending.is_new_flow or ending.is_shared
        settled = described if is_told or described.is_committed else settled
    if settled.is_committed:
        return settled
    if asked.unanswered > 0 and (code in FENCED_CODES or code == INVALID_PRODUCER_ID_MAPPING):
        return _unknown(doing, settled)
    return settled


def _unknown(doing: str, settled: Failed) -> Failed:
    """settled: what the answer to the last copy comes to. Where that leaves the producer usable, so does this."""
    unknown = UnknownOutcomeError(
        f"{doing}: a copy of the commit went unanswered, what came later was refused: {settled.error}. The transaction "
        "may have been committed before that",
        possibly_sent=True,
    )
    unknown.__cause__ = settled.error
    return Failed(Treatment.FATAL if settled.treatment is Treatment.FATAL else Treatment.UNANSWERED, unknown)


def _judge_abort(cluster: Cluster, ending: Ending, code: int, doing: str, asked: CoordinatorCall) -> Flow[Ended]:
    """Return what a refused abort means: nothing is open any more (the coordinator timed the transaction out, or
    nothing was ever added to it). Raises Failed where another producer took over, or the transaction was committed."""
    was_unanswered = asked.unanswered > 0
    raised = failure("EndTxn", code, doing, resource=ending.transactional_id)
    if code == INVALID_TXN_STATE and ending.is_commit_unanswered:
        described = yield from settle(cluster, ending, doing, code, asked.deadline)
        raise described if described.is_committed else _unknown(doing, raised)
    if code == INVALID_TXN_STATE and not ending.is_new_flow and not ending.is_shared:
        return Ended(None, was_unanswered)
    if code in FENCED_CODES or (code == INVALID_TXN_STATE and ending.is_shared):
        raised = yield from settle(cluster, ending, doing, code, asked.deadline)
    if raised.is_committed:
        raise raised
    if raised.treatment in {Treatment.ABORTABLE, Treatment.EMPTY}:
        # InitProducerId, which comes next, aborts what may be open, too.
        return Ended(None, was_unanswered)
    raise raised
