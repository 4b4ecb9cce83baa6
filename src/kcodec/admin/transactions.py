# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: producers and transactions as brokers and coordinators know them (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from kcodec.arguments import names_of
from kcodec.cluster.producer_states import TRANSACTION_STATES as TRANSACTION_STATES
from kcodec.cluster.producer_states import ProducerState as ProducerState
from kcodec.cluster.producer_states import TransactionDescription as TransactionDescription
from kcodec.cluster.producer_states import TransactionListing, coordinators_lists, producers_of, transactions_of
from kcodec.cluster.producer_states import by_transactional_id as by_transactional_id
from kcodec.cluster.retry_driver import ApiHandler, CallContext, partition_codes, results, whole
from kcodec.cluster.retry_routes import EachCoordinator, Leader
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages

# The public values. The flows are public as methods of Admin.
__all__ = [
    "TRANSACTION_STATES",
    "ProducerIdAndEpoch",
    "ProducerState",
    "TransactionDescription",
    "TransactionListing",
]

# InitProducerId requires a timeout, for transactions that this producer will never begin.
FENCING_TRANSACTION_TIMEOUT_MS = 10_000


def describe_producers(
    context: CallContext,
    partitions: Iterable[TopicPartition],
    *,
    broker_id: int | None = None,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, tuple[ProducerState, ...]]]:
    """Return the producers whose state the brokers keep for these partitions.

    broker_id: request it from this broker, which must have a replica; None for the leader of each partition.

    Raises BrokerError (UNKNOWN_TOPIC_OR_PARTITION, AuthorizationError: READ on the topic); AdminError for several;
    UnsupportedError below Kafka 2.8.
    """
    return (yield from producers_of(context, partitions, broker_id, timeout)).value()


def describe_transactions(
    context: CallContext, transactional_ids: Iterable[str], *, timeout: float | None = None
) -> Flow[dict[str, TransactionDescription]]:
    """Return state, producer and partitions of the transactions with these `transactional_ids`.

    Raises BrokerError: TRANSACTIONAL_ID_NOT_FOUND, AuthorizationError (DESCRIBE on the id); AdminError for several;
    UnsupportedError below Kafka 3.0. The broker leaves out partitions of topics that the client may not describe.
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

    states: only transactions in these states, of TRANSACTION_STATES; empty for all.
    producer_ids: only transactions of these producers; empty for all.
    min_duration_ms: open for at least this time (KIP-994, Kafka 3.8).
    transactional_id_pattern: a regular expression of RE2J for the whole id (KIP-1152, Kafka 4.1).

    Raises ValueError for an unknown state, AdminError if not all brokers responded; its `results` contain the lists of
    the others by broker id.
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

    producer_id, producer_epoch, coordinator_epoch: as `describe_producers` returns them; a coordinator_epoch of -1
        there is 0 here, as in Kafka's own tool.

    If the coordinator still knows the transaction, this aborts only a part of it: use `fence_producers` instead. Raises
    BrokerError: INVALID_PRODUCER_EPOCH (there is a newer one), TRANSACTION_COORDINATOR_FENCED, AuthorizationError
    (CLUSTER_ACTION, or ALTER on the cluster). Source: AbortTransactionHandler, WriteTxnMarkersRequest.
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
    )
    yield from results(context, [partition], handler, timeout)


def fence_producers(
    context: CallContext, transactional_ids: Iterable[str], *, timeout: float | None = None
) -> Flow[dict[str, ProducerIdAndEpoch]]:
    """Abort the open transactions of these `transactional_ids`, and fence the producers that use them now.

    Return the current producer id and epoch of each. An id that no producer has used yet is created by this.
    Raises BrokerError: AuthorizationError (WRITE on the id); AdminError for several ids. (KIP-664)
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
