# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: moving partitions to other brokers (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcodec.arguments import by_partition, numbers_of, partitions_of
from kcodec.cluster.retry_driver import ApiHandler, CallContext, ItemResult, by_topic, results, whole
from kcodec.cluster.retry_routes import Controller
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

THE_CLUSTER = "the cluster"


@dataclass(frozen=True)
class PartitionReassignment:
    """A partition that is moving to other brokers.

    replicas: Ids of all brokers with a replica, including replicas to add and replicas to remove.
    adding_replicas: Ids of the brokers that get a replica.
    removing_replicas: Ids of the brokers whose replica is removed once the added replicas are in sync.
    """

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """Ids of the brokers with a replica after the move."""
        return tuple(broker for broker in self.replicas if broker not in self.removing_replicas)


def list_partition_reassignments(
    context: CallContext, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
) -> Flow[dict[TopicPartition, PartitionReassignment]]:
    """Return the partitions that are moving to other brokers. A move that has ended is not listed.

    partitions: Partitions to return. None: all partitions.

    Raise AuthorizationError without DESCRIBE on the cluster.
    """
    topics = None
    if partitions is not None:
        topics = [
            messages.ListPartitionReassignmentsTopics(name=topic, partition_indexes=numbers)
            for topic, numbers in by_topic(partitions_of(partitions)).items()
        ]
    handler: ApiHandler[str, dict[TopicPartition, PartitionReassignment]] = ApiHandler(
        "list partition reassignments of",
        Controller(context.cluster),
        lambda items, until: messages.ListPartitionReassignmentsRequest(timeout_ms=until.left_ms, topics=topics),
        lambda response, items: whole(response, items, _listed),
        named=str,
    )
    return (yield from results(context, [THE_CLUSTER], handler, timeout))[THE_CLUSTER]


def _listed(response: Any) -> dict[TopicPartition, PartitionReassignment]:
    return {
        TopicPartition(topic.name, one.partition_index): PartitionReassignment(
            tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
        )
        for topic in response.topics
        for one in topic.partitions
    }


def alter_partition_reassignments(
    context: CallContext,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, None]]:
    """Move partitions to other brokers, or cancel their moves. Return when the moves have begun.

    targets: For each partition, the ids of its brokers with the preferred leader first. None cancels the move of the
        partition. `list_partition_reassignments` returns the partitions that are still moving.
    allow_replication_factor_change: Whether the number of brokers of a partition may change. False requires Kafka 4.1
        (KIP-860).

    A request whose response is lost is repeated. If a move to cancel is then not in progress, the call has succeeded.

    Raise ValueError if a list of brokers is empty or has repeated ids. Raise AuthorizationError without ALTER on the
    cluster. Raise BrokerError with the codes INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS,
    UNKNOWN_TOPIC_OR_PARTITION or INVALID_REPLICATION_FACTOR. For several partitions, an AdminError contains the errors.
    """
    chosen = {
        partition: _brokers(partition, brokers)
        for partition, brokers in by_partition(targets, "targets", "broker ids").items()
    }
    handler: ApiHandler[TopicPartition, None] = ApiHandler(
        "reassign",
        Controller(context.cluster),
        lambda some, until: messages.AlterPartitionReassignmentsRequest(
            timeout_ms=until.left_ms,
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[
                messages.ReassignableTopic(
                    name=topic,
                    partitions=[
                        messages.ReassignablePartition(
                            partition_index=number, replicas=chosen[TopicPartition(topic, number)]
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(some).items()
            ],
        ),
        _altered,
        is_reached=lambda partition, code: chosen[partition] is None and code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        lowest=0 if allow_replication_factor_change else 1,
    )
    return results(context, chosen, handler, timeout)


def _brokers(partition: TopicPartition, brokers: Sequence[int] | None) -> list[int] | None:
    if brokers is None:
        return None
    found = numbers_of(brokers, f"targets[{partition}]")
    if not found or len(set(found)) < len(found):
        raise ValueError(f"targets[{partition}] must be one or more broker ids, each only once, got {found}")
    return found


def _altered(response: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ItemResult]]:
    if response.error_code:
        yield from ((one, ItemResult(response.error_code, None, response.error_message)) for one in partitions)
        return
    for topic in response.responses:
        for one in topic.partitions:
            result = ItemResult(one.error_code, None, one.error_message)
            yield TopicPartition(topic.name, one.partition_index), result
