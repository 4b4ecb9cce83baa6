# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: the states of producers and transactions at brokers and coordinators (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from kcodec.arguments import names_of
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.cluster.producer_states import TRANSACTION_STATES as TRANSACTION_STATES
from kcodec.cluster.producer_states import ProducerState as ProducerState
from kcodec.cluster.producer_states import TransactionDescription as TransactionDescription
from kcodec.cluster.producer_states import TransactionListing, coordinators_lists, producers_of, transactions_of
from kcodec.cluster.producer_states import by_transactional_id as by_transactional_id
from kcodec.cluster.retry_driver import (
    ApiHandler,
    CallContext,
    Deadline,
    partition_codes,
    request_items,
    results,
    whole,
)
from kcodec.cluster.retry_routes import EachCoordinator, Leader
from kcodec.errors import UnknownOutcomeError
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

# The public classes and constants. The flows are public as methods of Admin.
__all__ = [
    "TRANSACTION_STATES",
    "ProducerIdAndEpoch",
    "ProducerState",
    "TransactionDescription",
    "TransactionListing",
]

# Errors of WriteTxnMarkers after which the marker may have been written. A leader that waits for replicas returns some
# of them (Kafka: DelayedProduce).
UNKNOWN_EFFECT_OF_MARKER = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
# InitProducerId requires a transaction timeout, although no transaction is begun here.
FENCING_TRANSACTION_TIMEOUT_MS = 10_000


def describe_producers(
    context: CallContext,
    partitions: Iterable[TopicPartition],
    *,
    broker_id: int | None = None,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, tuple[ProducerState, ...]]]:
    """Return the states of producers that the brokers store for these partitions.

    broker_id: Id of the broker to which the request is sent. It must have a replica of each partition. None: the leader
        of each partition.

    Raise BrokerError (UNKNOWN_TOPIC_OR_PARTITION) if a partition does not exist. Raise AuthorizationError without READ
    on the topic. Raise UnsupportedError before Kafka 2.8. For several partitions, an AdminError contains the errors.
    """
    return (yield from producers_of(context, partitions, broker_id, timeout)).value()


def describe_transactions(
    context: CallContext, transactional_ids: Iterable[str], *, timeout: float | None = None
) -> Flow[dict[str, TransactionDescription]]:
    """Return state, producer and partitions of the transactions with these `transactional_ids`.

    Partitions of topics that the client may not describe are missing from the result.

    Raise BrokerError (TRANSACTIONAL_ID_NOT_FOUND) if an id does not exist. Raise AuthorizationError without DESCRIBE on
    the id. Raise UnsupportedError before Kafka 3.0. For several ids, an AdminError contains the errors.
    """
    return (yield from transactions_of(context, transactional_ids, timeout)).value()


def list_transactions(
    context: CallContext,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    min_duration_ms: int | None = None,
    transactional_id_pattern: str | None = None,
    timeout: float | None = None,
) -> Flow[dict[str, TransactionListing]]:
    """Return the transactional ids of the cluster that meet all given conditions.

    states: States of the transaction, from TRANSACTION_STATES. Empty: all states.
    producer_ids: Ids of producers. Empty: all producers.
    min_duration_ms: Minimum time for which the transaction is open (KIP-994, Kafka 3.8). None: no minimum.
    transactional_id_pattern: Regular expression that must match the whole id, with the syntax of RE2J (KIP-1152, Kafka
        4.1). None: all ids.

    Raise ValueError if a state is unknown. Raise AdminError if a broker did not respond. Its `results` contain the
    lists of the other brokers by broker id. If the cluster has only one broker, raise the error itself.
    """
    outcome = yield from coordinators_lists(
        context, states, producer_ids, min_duration_ms, transactional_id_pattern, timeout
    )
    return by_transactional_id(outcome.value())


def abort_transaction(
    context: CallContext,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
    *,
    timeout: float | None = None,
) -> Flow[None]:
    """Write an abort marker to one partition, without the coordinator. Use it only for a transaction that hangs.

    partition: Partition in which the transaction hangs.
    producer_id, producer_epoch, coordinator_epoch: Values that `describe_producers` or `find_hanging_transactions`
        returns. A coordinator_epoch of -1 is sent as 0, as in Kafka's own tool.

    A request that may have reached the broker is not repeated: if it has taken effect, a second marker could abort the
    next transaction of the same producer. If its response is lost, the call succeeds if the producer has no open
    transaction in the partition, and raises UnknownOutcomeError otherwise.

    If the coordinator still knows the transaction, this call aborts only a part of it. Use `fence_producers` instead.

    Raise BrokerError (INVALID_PRODUCER_EPOCH) if the producer has a newer epoch, and BrokerError
    (TRANSACTION_COORDINATOR_FENCED) if there is a newer coordinator epoch. Raise AuthorizationError without
    CLUSTER_ACTION or ALTER on the cluster. (Kafka: AbortTransactionHandler, WriteTxnMarkersRequest)
    """
    marker = messages.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[messages.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
        coordinator_epoch=max(coordinator_epoch, 0),
    )
    handler: ApiHandler[TopicPartition, None] = ApiHandler(
        f"abort transaction of producer {producer_id}/{producer_epoch} in",
        Leader(context.cluster),
        lambda some, until: messages.WriteTxnMarkersRequest(markers=[marker]),
        lambda response, some: chain.from_iterable(partition_codes(marker, some) for marker in response.markers),
        is_repeatable=lambda item: False,
        unknown_effect=UNKNOWN_EFFECT_OF_MARKER,
    )
    deadline = context.deadline(timeout)
    outcome = yield from request_items(context, [partition], handler, deadline)
    error = outcome.errors.get(partition)
    if isinstance(error, UnknownOutcomeError):
        yield from _check_lost_marker(context, partition, producer_id, error, deadline)
        outcome.succeed(partition, None)
    outcome.value()


def _check_lost_marker(
    context: CallContext, partition: TopicPartition, producer_id: int, unknown: UnknownOutcomeError, deadline: Deadline
) -> Flow[None]:
    """Raise UnknownOutcomeError if the producer may have an open transaction in the partition, after a request to abort
    it got no response."""
    found = yield from producers_of(context, [partition], None, deadline.remaining)
    if partition not in found.results:
        raise unknown
    for one in found.results[partition]:
        if one.producer_id == producer_id and one.current_transaction_start_offset is not None:
            error = UnknownOutcomeError(
                f"{unknown}. The producer has an open transaction from offset {one.current_transaction_start_offset}: "
                "if this is the transaction to abort, repeat the call",
                possibly_sent=True,
            )
            error.__cause__ = unknown.__cause__
            raise error


def fence_producers(
    context: CallContext, transactional_ids: Iterable[str], *, timeout: float | None = None
) -> Flow[dict[str, ProducerIdAndEpoch]]:
    """Abort the open transactions of these `transactional_ids`, and fence the producers that currently use them
    (KIP-664).

    Return the current producer id and epoch of each id. An id that no producer has used yet is created.

    Raise AuthorizationError without WRITE on the id, or another BrokerError. For several ids, an AdminError contains
    the errors.
    """
    handler: ApiHandler[str, ProducerIdAndEpoch] = ApiHandler(
        "fence producers of",
        EachCoordinator(context.cluster, "transaction"),
        lambda ids, until: messages.InitProducerIdRequest(
            transactional_id=ids[0], transaction_timeout_ms=FENCING_TRANSACTION_TIMEOUT_MS
        ),
        lambda response, ids: whole(
            response, ids, lambda response: ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        ),
        at_most=1,
        highest=5,
    )
    return results(context, names_of(transactional_ids, "transactional_ids"), handler, timeout)
