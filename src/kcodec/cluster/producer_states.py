# SPDX-License-Identifier: Apache-2.0
"""Open transactions: what leaders know of producers, and coordinators of transactional ids (KIP-664).

Used by Admin, and by a consumer that looks for the transaction that blocks a last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kcodec.arguments import names_of, numbers_of, partitions_of
from kcodec.cluster.retry_driver import (
    ApiHandler,
    CallContext,
    Outcome,
    by_topic,
    entries,
    partition_codes,
    request_items,
    whole,
)
from kcodec.cluster.retry_routes import EachBroker, EachCoordinator, Leader, OneBroker, Route
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages

#: Kafka: TransactionState, by its names on the wire.
TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


@dataclass(frozen=True)
class ProducerState:
    """The state of a producer in a partition.

    producer_id, producer_epoch: Identity of the producer.
    last_sequence: Sequence number of its last record.
    last_timestamp: Timestamp of its last record, in ms since 1970.
    coordinator_epoch: Coordinator epoch of its last marker in the partition; -1 before the first.
    current_transaction_start_offset: First offset of its open transaction; None without an open transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_start_offset: int | None


@dataclass(frozen=True)
class TransactionListing:
    """A transactional id that a coordinator knows.

    transactional_id: The transactional id.
    producer_id: Id of its producer.
    state: State of its transaction, one of TRANSACTION_STATES.
    coordinator: Id of the broker that coordinates it.
    """

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True)
class TransactionDescription:
    """A coordinator's state of a transactional id.

    transactional_id: The transactional id.
    state: State of its transaction, one of TRANSACTION_STATES.
    producer_id, producer_epoch: Identity of its producer.
    transaction_timeout_ms: Time after its begin at which the coordinator aborts a transaction.
    start_timestamp: Begin of the transaction in ms since 1970; None if no transaction is open.
    partitions: Partitions that will get an end marker, in order.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    start_timestamp: int | None
    partitions: tuple[TopicPartition, ...]

    def __repr__(self) -> str:
        open_part = f", {len(self.partitions)} partitions" if self.partitions else ""
        return (
            f"<TransactionDescription {self.transactional_id!r}: {self.state}, "
            f"producer {self.producer_id}/{self.producer_epoch}{open_part}>"
        )


def producers_of(
    context: CallContext, partitions: Iterable[TopicPartition], broker_id: int | None, timeout: float | None
) -> Flow[Outcome[TopicPartition, tuple[ProducerState, ...]]]:
    """Return the result of `describe_producers` as an Outcome, with errors next to results."""
    route: Route[TopicPartition] = Leader(context.cluster) if broker_id is None else OneBroker(broker_id)
    handler: ApiHandler[TopicPartition, tuple[ProducerState, ...]] = ApiHandler(
        "describe producers of",
        route,
        lambda some, until: messages.DescribeProducersRequest(
            topics=[
                messages.DescribeProducersTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(some).items()
            ]
        ),
        lambda response, some: partition_codes(
            response, some, value=lambda result: tuple(map(_producer, result.active_producers))
        ),
    )
    return (yield from request_items(context, partitions_of(partitions), handler, context.deadline(timeout)))


def _producer(state: Any) -> ProducerState:
    start = state.current_txn_start_offset
    return ProducerState(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        None if start < 0 else start,
    )


def transactions_of(
    context: CallContext, transactional_ids: Iterable[str], timeout: float | None
) -> Flow[Outcome[str, TransactionDescription]]:
    """Return the result of `describe_transactions` as an Outcome, with errors next to results."""
    handler: ApiHandler[str, TransactionDescription] = ApiHandler(
        "describe transaction",
        EachCoordinator(context.cluster, "transaction"),
        lambda ids, until: messages.DescribeTransactionsRequest(transactional_ids=ids),
        lambda response, ids: entries(response.transaction_states, "transactional_id", _transaction),
    )
    return (
        yield from request_items(
            context, names_of(transactional_ids, "transactional_ids"), handler, context.deadline(timeout)
        )
    )


def _transaction(state: Any) -> TransactionDescription:
    found = [TopicPartition(topic.topic, number) for topic in state.topics for number in topic.partitions]
    return TransactionDescription(
        state.transactional_id,
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms,
        None if state.transaction_start_time_ms < 0 else state.transaction_start_time_ms,
        tuple(sorted(found)),
    )


def coordinators_lists(
    context: CallContext,
    states: Iterable[str],
    producer_ids: Iterable[int],
    min_duration_ms: int | None,
    transactional_id_pattern: str | None,
    timeout: float | None,
) -> Flow[Outcome[int, list[TransactionListing]]]:
    """Return the result of `list_transactions` by broker as an Outcome, with errors next to results."""
    requested_states, ids = names_of(states, "states"), numbers_of(producer_ids, "producer_ids")
    unknown = sorted(set(requested_states) - set(TRANSACTION_STATES))
    if unknown:
        raise ValueError(f"state must be one of {', '.join(TRANSACTION_STATES)}, not {unknown[0]!r}")
    deadline = context.deadline(timeout)
    yield from context.cluster.refresh(context.call_timeout(deadline))
    handler: ApiHandler[int, list[TransactionListing]] = ApiHandler(
        "list transactions of broker",
        EachBroker(),
        lambda brokers, until: messages.ListTransactionsRequest(
            state_filters=requested_states,
            producer_id_filters=ids,
            duration_filter=-1 if min_duration_ms is None else min_duration_ms,
            transactional_id_pattern=transactional_id_pattern,
        ),
        lambda response, brokers: whole(response, brokers, lambda response: _listings(response, brokers[0])),
        lowest=2 if transactional_id_pattern is not None else 1 if min_duration_ms is not None else 0,
    )
    return (yield from request_items(context, context.cluster.brokers, handler, deadline))


def by_transactional_id(lists: Mapping[int, list[TransactionListing]]) -> dict[str, TransactionListing]:
    """Merge the lists of all brokers by transactional id."""
    found = [listing for listings in lists.values() for listing in listings]
    return {one.transactional_id: one for one in sorted(found, key=lambda listing: listing.transactional_id)}


def _listings(response: Any, broker_id: int) -> list[TransactionListing]:
    return [
        TransactionListing(state.transactional_id, state.producer_id, state.transaction_state, broker_id)
        for state in response.transaction_states
    ]
