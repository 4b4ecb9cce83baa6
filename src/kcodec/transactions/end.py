# SPDX-License-Identifier: Apache-2.0
"""EndTxn: commit or abort a transaction, and determine its outcome.

An EndTxn without a response is repeated with the same (producer id, epoch, result) until the deadline: a broker that
has processed it responds to the repeat with success. If the outcome is still unknown then, it is reported as unknown,
never as success. In the old flow the epoch stays the same; in the new flow (KIP-890, EndTxn version 5) the response has
the next epoch.
"""

from __future__ import annotations

import logging

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.errors import (
    AuthenticationError,
    DecodeError,
    DeliveryTimeoutError,
    TransportError,
    UnknownOutcomeError,
)
from kcodec.flow import Flow
from kcodec.protocol.error_codes import ErrorCode, error_code
from kcodec.transactions.errors import FENCED_CODES, Failed, TransactionDisposition, failure
from kcodec.transactions.fencing import Ending, investigate
from kcodec.transactions.requests import CoordinatorCall

log = logging.getLogger("kcodec.transactions")
#: Codes that say for certain what became of EndTxn, or that it was not processed (COORDINATOR_LOAD_IN_PROGRESS,
#: NOT_COORDINATOR, CONCURRENT_TRANSACTIONS). Not COORDINATOR_NOT_AVAILABLE: a coordinator that could not replicate its
#: decision in time says so, and the next coordinator may find the decision in the log.
CERTAIN_CODES = frozenset({
    ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTION_ABORTABLE,
})  # fmt: skip
#: The first version of EndTxn that bumps the epoch.
NEW_FLOW_VERSION = 5


def end_transaction(
    cluster: Cluster, ending: Ending, is_commit: bool, deadline: float
) -> Flow[ProducerIdAndEpoch | None]:
    """Commit or abort. Return the (producer id, epoch) of the next transaction, or None if InitProducerId is needed for
    it.

    If the coordinator rejects a commit but DescribeTransactions shows that it is committed, it counts as a commit.
    Raise Failed with the disposition. Its error is an AuthenticationError if a broker rejected the login. Either
    nothing was sent then, or the reason why the coordinator rejected an abort is unknown.
    """
    word = "commit" if is_commit else "abort"
    doing = f"EndTxn ({word}) of {ending.transactional_id!r}"
    coordinator = CoordinatorCall(
        cluster,
        "transaction",
        ending.transactional_id,
        doing,
        deadline,
        on_no_response=ending.on_no_response,
        is_uncertain=lambda code: code not in CERTAIN_CODES,
        # An open transaction blocks readers until its timeout, so an abort is sent even if there is no time to wait for
        # the response.
        is_sent_late=not is_commit,
        unconfirmed=int(is_commit and ending.is_commit_unconfirmed),
    )
    try:
        code, following = yield from _send(coordinator, ending, is_commit)
    except (TransportError, DecodeError, Failed) as error:
        raise _without_response(coordinator, is_commit, error) from error
    if code == ErrorCode.NONE:
        return following or ending.producer
    if not is_commit:
        yield from _check_refused_abort(coordinator, ending, code)
        return None
    refused = yield from _refused_commit(coordinator, ending, code)
    if refused.is_committed and not ending.is_shared:
        name = error_code(code).name
        log.info("%s was rejected with %s, but the transaction is committed: %s", doing, name, refused.error)
        return None
    raise refused


def _send(coordinator: CoordinatorCall, ending: Ending, is_commit: bool) -> Flow[tuple[int, ProducerIdAndEpoch | None]]:
    from kcodec.protocol.messages.transactions import EndTxnRequest

    request = EndTxnRequest(
        transactional_id=ending.transactional_id,
        producer_id=ending.producer.producer_id,
        producer_epoch=ending.producer.producer_epoch,
        committed=is_commit,
    )
    bounds = {"lowest": NEW_FLOW_VERSION} if ending.is_new_flow else {"highest": NEW_FLOW_VERSION - 1}
    reply = yield from coordinator.send(request, lambda message: int(message.error_code), **bounds)
    code = reply.message.error_code
    following = None
    if reply.version >= NEW_FLOW_VERSION and reply.message.producer_id >= 0:
        following = ProducerIdAndEpoch(reply.message.producer_id, reply.message.producer_epoch)
    return code, following


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _without_response(coordinator: CoordinatorCall, is_commit: bool, error: BaseException) -> Failed:
    doing = coordinator.doing
    if not coordinator.unconfirmed:
        return Failed(TransactionDisposition.INTERRUPTED, error.error if isinstance(error, Failed) else error)
    if is_commit:
        return Failed(
            TransactionDisposition.UNCONFIRMED,
            UnknownOutcomeError(
                f"{doing}: the outcome is unknown after {_requests(coordinator.unconfirmed)} without a response; the "
                f"transaction may be committed, aborted or still open. The last error: {error}",
                possibly_sent=True,
            ),
        )
    return Failed(
        TransactionDisposition.UNCONFIRMED,
        DeliveryTimeoutError(
            f"{doing}: the abort is not confirmed. The transaction will not be committed. If it is still open, the "
            "producer aborts it before its next transaction begins, or the coordinator aborts it after "
            f"transaction_timeout_ms. The last error: {error}",
            possibly_sent=True,
        ),
    )


def _refused_commit(coordinator: CoordinatorCall, ending: Ending, code: int) -> Flow[Failed]:
    """Return the meaning of a rejected commit. If an earlier copy got no response, an error about an old epoch does not
    show the outcome: the copy may have committed the transaction before another producer took over. In the new flow,
    INVALID_TXN_STATE shows that the transaction was not committed."""
    doing, is_fenced = coordinator.doing, code in FENCED_CODES
    failed = failure("EndTxn", code, doing, resource=ending.transactional_id)
    if is_fenced or code == ErrorCode.INVALID_TXN_STATE:
        found = yield from investigate(coordinator.cluster, ending, doing, code, coordinator.deadline)
        if is_fenced or ending.is_new_flow or ending.is_shared or found.is_committed:
            failed = found
    is_lost = coordinator.unconfirmed > 0 and (is_fenced or code == ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    return _unknown(doing, failed) if is_lost and not failed.is_committed else failed


def _unknown(doing: str, last: Failed) -> Failed:
    """Return the failure of an unknown outcome. `last` is the meaning of the response to the last copy. If the producer
    is still usable after it, it is also usable after this failure."""
    unknown = UnknownOutcomeError(
        f"{doing}: the outcome is unknown: one request got no response, and a later one was rejected: {last.error}. "
        "The transaction may have been committed before that",
        possibly_sent=True,
    )
    unknown.__cause__ = last.error
    is_fatal = last.disposition is TransactionDisposition.FATAL
    return Failed(TransactionDisposition.FATAL if is_fatal else TransactionDisposition.UNCONFIRMED, unknown)


def _check_refused_abort(coordinator: CoordinatorCall, ending: Ending, code: int) -> Flow[None]:
    """Raise Failed if another producer took over, or if the transaction was or may have been committed. Otherwise the
    transaction is no longer open: the coordinator has aborted it after its timeout, or nothing was ever added to it."""
    doing, is_invalid = coordinator.doing, code == ErrorCode.INVALID_TXN_STATE
    failed = failure("EndTxn", code, doing, resource=ending.transactional_id)
    if is_invalid and not (ending.is_commit_unconfirmed or ending.is_new_flow or ending.is_shared):
        return
    found = failed
    if code in FENCED_CODES or (is_invalid and (ending.is_commit_unconfirmed or ending.is_shared)):
        found = yield from investigate(coordinator.cluster, ending, doing, code, coordinator.deadline)
    if found.is_committed:
        raise found
    if is_invalid and ending.is_commit_unconfirmed:
        raise _unknown(doing, failed)
    if isinstance(found.error, AuthenticationError) and (ending.is_shared or ending.is_commit_unconfirmed):
        # A process with its handle, or the earlier request, may have committed it. The abort can be repeated.
        raise Failed(TransactionDisposition.INTERRUPTED, found.error)
    # InitProducerId, which comes next, aborts what may be open, too.
    if found.disposition not in {TransactionDisposition.ABORT, TransactionDisposition.EMPTY}:
        raise found
