# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: producers and transactions as brokers and coordinators know them (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kcodec.client.admin.groups import by_topic
from kcodec.client.admin.routes import Broker, Coordinator, Leader, OneBroker, Route
from kcodec.client.admin.settle import Answer, Asking, Outcome, Question, settle
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.flow import Flow
from kcodec.txn.producer_id import ProducerIdAndEpoch

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
# InitProducerId wants a timeout for transactions that this producer will never begin.
FENCING_TRANSACTION_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class ProducerState:
    """A producer that a partition remembers. current_transaction_start_offset: None without an open transaction.

    coordinator_epoch: of its last marker here, -1 before the first. last_timestamp: of its last record, as that said.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_start_offset: int | None


@dataclass(frozen=True)
class TransactionListing:
    """A transactional id that a coordinator knows. coordinator: the broker's id."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True)
class TransactionDescription:
    """What the coordinator knows of a transactional id. start_timestamp: None where no transaction is open.

    partitions: those that the coordinator will write an end marker to, in order.
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
    asking: Asking, partitions: Iterable[TopicPartition], broker_id: int | None, timeout: float | None
) -> Flow[Outcome[TopicPartition, tuple[ProducerState, ...]]]:
    """`describe_producers`, errors beside results."""
    route: Route[TopicPartition] = Leader(asking.cluster) if broker_id is None else OneBroker(broker_id)
    question: Question[TopicPartition, tuple[ProducerState, ...]] = Question(
        "describe producers of",
        route,
        lambda some, until: messages.DescribeProducersRequest(
            topics=[
                messages.DescribeProducersTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(some).items()
            ]
        ),
        _producers,
    )
    return (yield from settle(asking, partitions, question, asking.deadline(timeout)))


def describe_producers(
    asking: Asking,
    partitions: Iterable[TopicPartition],
    *,
    broker_id: int | None = None,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, tuple[ProducerState, ...]]]:
    """The producers with state in partitions, as their leaders know them, or one broker with a replica.

    Raises BrokerError (UNKNOWN_TOPIC_OR_PARTITION, AuthorizationError: READ on the topic); AdminError for several;
    UnsupportedError below Kafka 2.8.
    """
    return (yield from producers_of(asking, partitions, broker_id, timeout)).value()


def _producers(response: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, Answer]]:
    for topic in response.topics:
        for one in topic.partitions:
            states = tuple(_producer(state) for state in one.active_producers)
            yield TopicPartition(topic.name, one.partition_index), Answer(one.error_code, states, one.error_message)


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
    asking: Asking, transactional_ids: Iterable[str], timeout: float | None
) -> Flow[Outcome[str, TransactionDescription]]:
    """`describe_transactions`, errors beside results."""
    question: Question[str, TransactionDescription] = Question(
        "describe transaction",
        Coordinator(asking.cluster, "transaction"),
        lambda ids, until: messages.DescribeTransactionsRequest(transactional_ids=ids),
        lambda response, ids: (
            (state.transactional_id, Answer(state.error_code, _transaction(state)))
            for state in response.transaction_states
        ),
    )
    return (yield from settle(asking, transactional_ids, question, asking.deadline(timeout)))


def describe_transactions(
    asking: Asking, transactional_ids: Iterable[str], *, timeout: float | None = None
) -> Flow[dict[str, TransactionDescription]]:
    """State, producer and partitions of transactional ids.

    Raises BrokerError: TRANSACTIONAL_ID_NOT_FOUND, AuthorizationError (DESCRIBE on the id); AdminError for several;
    UnsupportedError below Kafka 3.0. Partitions of topics that we may not see are left out by the broker.
    """
    return (yield from transactions_of(asking, transactional_ids, timeout)).value()


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
    asking: Asking,
    states: Iterable[str],
    producer_ids: Iterable[int],
    min_duration_ms: int | None,
    transactional_id_pattern: str | None,
    timeout: float | None,
) -> Flow[Outcome[int, list[TransactionListing]]]:
    """`list_transactions` by broker, errors beside results."""
    wanted, ids = list(states), list(producer_ids)
    unknown = sorted(set(wanted) - set(TRANSACTION_STATES))
    if unknown:
        raise ValueError(f"unknown state {unknown[0]!r}; possible: {', '.join(TRANSACTION_STATES)}")
    deadline = asking.deadline(timeout)
    yield from asking.cluster.refresh(asking.call_timeout(deadline))
    question: Question[int, list[TransactionListing]] = Question(
        "list transactions of broker",
        Broker(),
        lambda brokers, until: messages.ListTransactionsRequest(
            state_filters=wanted,
            producer_id_filters=ids,
            duration_filter=-1 if min_duration_ms is None else min_duration_ms,
            transactional_id_pattern=transactional_id_pattern,
        ),
        lambda response, brokers: [(brokers[0], Answer(response.error_code, _listings(response, brokers[0])))],
        lowest=2 if transactional_id_pattern is not None else 1 if min_duration_ms is not None else 0,
    )
    return (yield from settle(asking, asking.cluster.brokers, question, deadline))


def list_transactions(
    asking: Asking,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    min_duration_ms: int | None = None,
    transactional_id_pattern: str | None = None,
    timeout: float | None = None,
) -> Flow[dict[str, TransactionListing]]:
    """The transactional ids of all coordinators, by id; with any of the conditions only those that meet all.

    states: of TRANSACTION_STATES. min_duration_ms: open for so long (KIP-994, Kafka 3.8). transactional_id_pattern: a
    regular expression of RE2J for the whole id (KIP-1152, Kafka 4.1). ValueError for a state that there is not.
    Raises AdminError where not all brokers answered; its `results` hold the lists of the others by broker id.
    """
    outcome = yield from coordinators_lists(
        asking, states, producer_ids, min_duration_ms, transactional_id_pattern, timeout
    )
    return by_transactional_id(outcome.value())


def by_transactional_id(lists: Mapping[int, list[TransactionListing]]) -> dict[str, TransactionListing]:
    """The lists of all brokers as one, by id."""
    found = [listing for listings in lists.values() for listing in listings]
    return {one.transactional_id: one for one in sorted(found, key=lambda listing: listing.transactional_id)}


def _listings(response: Any, broker_id: int) -> list[TransactionListing]:
    return [
        TransactionListing(state.transactional_id, state.producer_id, state.transaction_state, broker_id)
        for state in response.transaction_states
    ]


def abort_transaction(
    asking: Asking,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
    *,
    timeout: float | None = None,
) -> Flow[None]:
    """Write an ABORT marker into one partition, past the coordinator: only for a transaction that hangs there.

    The numbers are those of `describe_producers`; a coordinator_epoch of -1 there is 0 here, as in Kafka's own tool.
    A transaction that its coordinator still knows ends torn by this: use `fence_producers` for it. Raises BrokerError:
    INVALID_PRODUCER_EPOCH (there is a newer one), TRANSACTION_COORDINATOR_FENCED, AuthorizationError (CLUSTER_ACTION,
    or ALTER on the cluster). Source: AbortTransactionHandler, WriteTxnMarkersRequest.
    """
    marker = messages.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[messages.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
        coordinator_epoch=max(coordinator_epoch, 0),
    )
    question: Question[TopicPartition, None] = Question(
        f"abort transaction of producer {producer_id}/{producer_epoch} in",
        Leader(asking.cluster),
        lambda some, until: messages.WriteTxnMarkersRequest(markers=[marker]),
        _marked,
    )
    outcome = yield from settle(asking, [partition], question, asking.deadline(timeout))
    outcome.value()


def _marked(response: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, Answer]]:
    for marker in response.markers:
        for topic in marker.topics:
            for one in topic.partitions:
                yield TopicPartition(topic.name, one.partition_index), Answer(one.error_code)


def fence_producers(
    asking: Asking, transactional_ids: Iterable[str], *, timeout: float | None = None
) -> Flow[dict[str, ProducerIdAndEpoch]]:
    """End the open transactions of these ids by an abort, and shut out the producers that use them now.

    Gives the producer id and epoch that are current then. An id that no producer has used yet is made by this.
    Raises BrokerError: AuthorizationError (WRITE on the id); AdminError where several were asked for. (KIP-664)
    """
    question: Question[str, ProducerIdAndEpoch] = Question(
        "fence producers of",
        Coordinator(asking.cluster, "transaction"),
        lambda ids, until: messages.InitProducerIdRequest(
            transactional_id=ids[0], transaction_timeout_ms=FENCING_TRANSACTION_TIMEOUT_MS
        ),
        lambda response, ids: [
            (ids[0], Answer(response.error_code, ProducerIdAndEpoch(response.producer_id, response.producer_epoch)))
        ],
        at_most=1,
        highest=5,
    )
    outcome = yield from settle(asking, transactional_ids, question, asking.deadline(timeout))
    return outcome.value()
