# SPDX-License-Identifier: Apache-2.0
"""InitProducerId for a transactional id.

The first InitProducerId of a producer names no epoch: it takes over the id, fences the previous producer and aborts its
open transaction. Every later one names the last (producer id, epoch) (KIP-360) and succeeds only while no other
producer has taken over, so two live instances with one id do not fence each other in turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.flow import Flow
from kcodec.producer.identity import NO_PRODUCER
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.errors import (
    FENCED_CODES,
    Failed,
    TransactionDisposition,
    failure,
    fenced,
    timeout_refused,
)
from kcodec.transactions.fencing import describe_transaction
from kcodec.transactions.requests import CONCURRENT_BACKOFF, CoordinatorCall

log = logging.getLogger("kcodec.transactions")


def init_producer_id(
    cluster: Cluster,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    deadline: float,
    on_no_response: Callable[[], None],
    *,
    is_init_unconfirmed: bool,
    concurrent_backoff: float = CONCURRENT_BACKOFF,
) -> Flow[ProducerIdAndEpoch]:
    """Return the (producer id, epoch) of the next transactions, and abort the open transaction of the id, if any.

    expected:      The last (producer id, epoch). None takes over the id.
    on_no_response: Called for each copy that got no response and may arrive late.
    is_init_unconfirmed: Whether a copy of an earlier call got no response.
    concurrent_backoff: First pause while the last transaction of the id is being completed.

    UNKNOWN_SERVER_ERROR is retried until the deadline: the coordinator may have bumped the epoch or not, and a retry
    that names the same epoch is safe in both cases.

    Raise Failed (its error: ProducerFencedError, AuthorizationError ...), DeliveryTimeoutError, AuthenticationError.
    """
    doing = f"InitProducerId of {transactional_id!r}"
    coordinator = CoordinatorCall(
        cluster,
        "transaction",
        transactional_id,
        doing,
        deadline,
        on_no_response=on_no_response,
        is_uncertain=lambda code: code == ErrorCode.UNKNOWN_SERVER_ERROR,
        concurrent_backoff=concurrent_backoff,
    )
    code, found = yield from _send(coordinator, timeout_ms, expected)
    if code in FENCED_CODES and expected is not None:
        # If the coordinator aborts the open transaction of this producer, for this request or after a timeout, it
        # forgets the epoch in the old flow, and remembers it in the new one. (On Kafka 4.3.1 with transaction version
        # 0, the response is CONCURRENT_TRANSACTIONS, then PRODUCER_FENCED.)
        status = yield from describe_transaction(cluster, transactional_id, deadline)
        if status is not None and status.is_aborted and status.is_one_past(expected):
            code, found = yield from _send(coordinator, timeout_ms, status.producer)
        if code in FENCED_CODES:
            is_init_unconfirmed = is_init_unconfirmed or coordinator.unconfirmed > 0
            error = fenced(doing, code, transactional_id, is_init_unconfirmed=is_init_unconfirmed)
            raise Failed(TransactionDisposition.FATAL, error)
    if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        raise Failed(TransactionDisposition.FATAL, timeout_refused(transactional_id, timeout_ms))
    if code:
        raise failure("InitProducerId", code, doing, resource=transactional_id)
    log.debug("%s: producer id %d, epoch %d", doing, *found)
    return found


def _send(
    coordinator: CoordinatorCall, timeout_ms: int, expected: ProducerIdAndEpoch | None
) -> Flow[tuple[int, ProducerIdAndEpoch]]:
    from kcodec.protocol.messages.transactions import InitProducerIdRequest

    known = expected or NO_PRODUCER
    request = InitProducerIdRequest(
        transactional_id=coordinator.key,
        transaction_timeout_ms=timeout_ms,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
    )
    reply = yield from coordinator.send(request, lambda message: int(message.error_code), lowest=3 if expected else 0)
    message = reply.message
    return message.error_code, ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
