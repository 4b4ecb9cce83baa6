# SPDX-License-Identifier: Apache-2.0
"""InitProducerId for a transactional id, and DescribeTransactions, which tells why an epoch is too old.

The first InitProducerId of a producer names no epoch: it takes the id over, fences whoever had it and aborts what he
left open. Every later one names the (producer id, epoch) that we had (KIP-360): it succeeds only while nobody else took
over, so two live instances with one id never fence each other in turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.errors import AuthenticationError, DecodeError, TransportError
from kcodec.flow import Flow
from kcodec.producer.identity import NO_PRODUCER
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.errors import FENCED_CODES, Failed, Treatment, failure, fenced, timeout_refused
from kcodec.transactions.requests import CoordinatorCall

log = logging.getLogger("kcodec.transactions")
INVALID_TRANSACTION_TIMEOUT = 50


class TransactionDescription(NamedTuple):
    """What DescribeTransactions (KIP-664) said of a transactional id.

    state:      Kafka's name, "Ongoing".
    timeout_ms: transaction_timeout_ms of its last InitProducerId.
    start_ms:   wall clock of the broker when the transaction began, -1 where none is open.
    partitions: topic -> its partitions in the open transaction, internal topics included.
    """

    state: str
    producer: ProducerIdAndEpoch
    timeout_ms: int
    start_ms: int
    partitions: dict[str, list[int]]

    def is_one_past(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether the epoch is one higher than this one: the transaction was ended and nobody took the id over."""
        return self.producer == (producer.producer_id, producer.producer_epoch + 1)

    @property
    def is_ending(self) -> bool:
        """Whether the markers of its end are being written."""
        return self.state in {"PrepareCommit", "PrepareAbort"}

    @property
    def is_aborted(self) -> bool:
        """Whether the last transaction was aborted, or is being."""
        return self.state in {"PrepareAbort", "CompleteAbort", "PrepareEpochFence"}

    @property
    def is_committed(self) -> bool:
        """Whether the last transaction was committed, or is being."""
        return self.state in {"PrepareCommit", "CompleteCommit"}

    def has_ended(self, producer: ProducerIdAndEpoch, is_new_flow: bool) -> bool:
        """Whether the last transaction of this (id, epoch) was committed or aborted, by EndTxn or by its time-out.

        Old flow: an end keeps the epoch, a time-out raises it; so this holds for an epoch that had one transaction.
        """
        if self.is_one_past(producer):
            return self.is_aborted or (is_new_flow and self.is_committed)
        return not is_new_flow and self.producer == producer and (self.is_committed or self.is_aborted)


def describe_transaction(
    cluster: Cluster, transactional_id: str, deadline: float, *, is_quiet: bool = False
) -> Flow[TransactionDescription | None]:
    """What the coordinator says; None where it cannot be had (a broker before 3.0, no permission, no answer).

    is_quiet: nobody needs to hear of that.
    """
    level = logging.DEBUG if is_quiet else logging.INFO
    from kcodec.protocol.messages.transactions import DescribeTransactionsRequest

    doing = f"DescribeTransactions of {transactional_id!r}"
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    asked = CoordinatorCall(cluster, "transaction", transactional_id, doing, deadline)
    try:
        reply = yield from asked.ask(request, lambda message: _state_of(message).error_code)
        told = _state_of(reply.message)
    except AuthenticationError:
        raise
    except (TransportError, Failed, DecodeError) as error:
        log.log(level, "%s: %s", doing, error)
        return None
    if told.error_code:
        log.log(level, "%s: error %d", doing, told.error_code)
        return None
    return TransactionDescription(
        told.transaction_state,
        ProducerIdAndEpoch(told.producer_id, told.producer_epoch),
        told.transaction_timeout_ms,
        told.transaction_start_time_ms,
        {topic.topic: list(topic.partitions) for topic in told.topics},
    )


def _state_of(message: Any) -> Any:
    if not message.transaction_states:
        raise DecodeError("the response to DescribeTransactions lacks the requested transactional id")
    return message.transaction_states[0]


def init_producer_id(
    cluster: Cluster,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    deadline: float,
    on_unanswered: Callable[[], None] = lambda: None,
    *,
    is_init_unanswered: bool = False,
) -> Flow[ProducerIdAndEpoch]:
    """The (producer id, epoch) of the transactions to come; whatever was open under the id is aborted.

    expected:      what we had before; None takes the id over from whoever has it.
    on_unanswered: called for each copy that got no answer: it may come late.
    is_init_unanswered: whether a copy of an earlier call got no response.

    UNKNOWN_SERVER_ERROR is retried until the deadline: the coordinator may have bumped the epoch or not, and a retry
    that names the same epoch is safe in both cases.

    Raises Failed (its error: ProducerFencedError, AuthorizationError ...), DeliveryTimeoutError, AuthenticationError.
    """
    doing = f"InitProducerId of {transactional_id!r}"
    asked = CoordinatorCall(
        cluster,
        "transaction",
        transactional_id,
        doing,
        deadline,
        on_unanswered=on_unanswered,
        is_uncertain=lambda code: code == ErrorCode.UNKNOWN_SERVER_ERROR,
    )
    code, found = yield from _ask(asked, transactional_id, timeout_ms, expected)
    if code in FENCED_CODES and expected is not None:
        # In the old flow the coordinator that aborts our open transaction, for us or by its time-out, forgets the epoch
        # it had; in the new one it remembers. (Seen on 4.3.1 at transaction version 0: 51, then 90.)
        description = yield from describe_transaction(cluster, transactional_id, deadline)
        if description is not None and description.is_aborted and description.is_one_past(expected):
            code, found = yield from _ask(asked, transactional_id, timeout_ms, description.producer)
        if code in FENCED_CODES:
            is_init_unanswered = is_init_unanswered or asked.unanswered > 0
            error = fenced(doing, code, transactional_id, is_init_unanswered=is_init_unanswered)
            raise Failed(Treatment.FATAL, error)
    if code == INVALID_TRANSACTION_TIMEOUT:
        raise Failed(Treatment.FATAL, timeout_refused(transactional_id, timeout_ms))
    if code:
        raise failure("InitProducerId", code, doing, resource=transactional_id)
    log.debug("%s: producer id %d, epoch %d", doing, *found)
    return found


def _ask(
    asked: CoordinatorCall, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
) -> Flow[tuple[int, ProducerIdAndEpoch]]:
    from kcodec.protocol.messages.transactions import InitProducerIdRequest

    known = expected or NO_PRODUCER
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
    )
    reply = yield from asked.ask(request, lambda message: int(message.error_code), lowest=3 if expected else 0)
    message = reply.message
    return message.error_code, ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
