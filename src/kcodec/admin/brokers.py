# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: the quorum of the controllers, log directories of brokers, and brokers that are removed forever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kcodec.arguments import items_of, numbers_of, partitions_of
from kcodec.cluster.retry_driver import (
    ApiHandler,
    CallContext,
    ItemResult,
    by_topic,
    request_items,
    results,
    whole,
)
from kcodec.cluster.retry_routes import AnyBroker, Controller, EachBroker, Route
from kcodec.cluster.values import NO_UUID
from kcodec.errors import BrokerError
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode, broker_error

THE_QUORUM = "the metadata quorum"
METADATA_TOPIC = "__cluster_metadata"


@dataclass(frozen=True)
class QuorumReplica:
    """A controller or broker that reads the metadata log.

    id: Id of the node.
    directory_id: Id of its metadata log directory; None if it is not reported (KIP-853).
    log_end_offset: Offset after the last record that it has; None if it is unknown.
    last_fetch_timestamp: Time of its last request, in ms since 1970; None if it is unknown.
    last_caught_up_timestamp: Last time at which it had all records, in ms since 1970; None if it is unknown.
    """

    id: int
    directory_id: UUID | None
    log_end_offset: int | None
    last_fetch_timestamp: int | None = None
    last_caught_up_timestamp: int | None = None


@dataclass(frozen=True)
class QuorumDescription:
    """The controllers that store the metadata of a cluster (KIP-595).

    leader_id: Id of the active controller; None while none exists.
    leader_epoch: Epoch of the active controller.
    high_watermark: Offset after the last record of the metadata log that a majority of the voters has.
    voters: The controllers that elect the leader.
    observers: Brokers, and controllers without a vote, that read the metadata log.
    """

    leader_id: int | None
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]

    def lag(self, replica: QuorumReplica) -> int | None:
        """Return the number of records of the metadata log that `replica` does not have, or None if it is unknown."""
        ends = {one.id: one.log_end_offset for one in self.voters}
        end = None if self.leader_id is None else ends.get(self.leader_id)
        return None if end is None or replica.log_end_offset is None else max(end - replica.log_end_offset, 0)


@dataclass(frozen=True)
class LogDirReplica:
    """A replica in a log directory.

    size: Size of its segments in bytes.
    offset_lag: Number of offsets that the replica is behind. A current replica is compared with the high watermark, and
        a future replica with the current one.
    is_future: Whether the replica is being moved here from another log directory of the broker. It will replace the
        current replica there.
    """

    size: int
    offset_lag: int
    is_future: bool = False


@dataclass(frozen=True)
class LogDirDescription:
    """A log directory of a broker.

    path: Path of the directory on the broker.
    replicas: Replicas in the directory, by partition.
    total_bytes, usable_bytes: Size and free space of its volume; None if they are unknown (Kafka before 3.3).
    error: Error of a directory that cannot be used (KAFKA_STORAGE_ERROR); None if it can be used.
    """

    path: str
    replicas: Mapping[TopicPartition, LogDirReplica] = field(repr=False)
    total_bytes: int | None = None
    usable_bytes: int | None = None
    error: BrokerError | None = None


@dataclass(frozen=True, order=True)
class TopicPartitionReplica:
    """A replica of a partition on a broker.

    partition: The partition.
    broker_id: Id of the broker.
    """

    partition: TopicPartition
    broker_id: int

    def __str__(self) -> str:
        return f"{self.partition} on broker {self.broker_id}"


def describe_quorum(context: CallContext, *, timeout: float | None = None) -> Flow[QuorumDescription]:
    """Return the controllers, their leader, and how far controllers and brokers have read the metadata log (KIP-836).

    Raise UnsupportedError if the cluster uses ZooKeeper. Raise AuthorizationError without DESCRIBE on the cluster.
    """
    topic = messages.DescribeQuorumRequestTopic(
        topic_name=METADATA_TOPIC, partitions=[messages.DescribeQuorumRequestPartition(partition_index=0)]
    )
    handler: ApiHandler[str, QuorumDescription] = ApiHandler(
        "describe",
        AnyBroker(),
        lambda items, until: messages.DescribeQuorumRequest(topics=[topic]),
        _quorum,
        named=str,
    )
    return (yield from results(context, [THE_QUORUM], handler, timeout))[THE_QUORUM]


def _quorum(response: Any, items: list[str]) -> Iterator[tuple[str, ItemResult]]:
    if response.error_code:
        yield from whole(response, items, lambda response: None)
        return
    for topic in response.topics:
        for one in topic.partitions:
            leader = None if one.leader_id < 0 else one.leader_id
            voters, observers = (tuple(map(_replica, some)) for some in (one.current_voters, one.observers))
            described = QuorumDescription(leader, one.leader_epoch, one.high_watermark, voters, observers)
            yield items[0], ItemResult(one.error_code, described, one.error_message)


def _replica(one: Any) -> QuorumReplica:
    return QuorumReplica(
        one.replica_id,
        None if one.replica_directory_id == NO_UUID else one.replica_directory_id,
        _known(one.log_end_offset),
        _known(one.last_fetch_timestamp),
        _known(one.last_caught_up_timestamp),
    )


def _known(value: int) -> int | None:
    return None if value < 0 else value


def unregister_broker(context: CallContext, broker_id: int, *, timeout: float | None = None) -> Flow[None]:
    """Remove the registration of a broker that will not come back (KIP-631). Its replicas stay assigned to it.

    broker_id: Id of the broker. Stop the broker before. A broker that is still running registers again when it is
        restarted.

    A request whose response is lost is repeated. If the broker is then not registered, the call has succeeded.

    Raise BrokerError (BROKER_ID_NOT_REGISTERED) if no broker with this id is registered. Raise AuthorizationError
    without ALTER on the cluster. Raise UnsupportedError if the cluster uses ZooKeeper.
    """
    (number,) = numbers_of([broker_id], "broker_id")
    handler: ApiHandler[int, None] = ApiHandler(
        "unregister broker",
        Controller(context.cluster),
        lambda items, until: messages.UnregisterBrokerRequest(broker_id=number),
        lambda response, items: whole(response, items, lambda response: None),
        is_reached=lambda broker, code: code == ErrorCode.BROKER_ID_NOT_REGISTERED,
    )
    yield from results(context, [number], handler, timeout)


def describe_log_dirs(
    context: CallContext,
    brokers: Iterable[int] | None = None,
    *,
    partitions: Iterable[TopicPartition] | None = None,
    timeout: float | None = None,
) -> Flow[dict[int, dict[str, LogDirDescription]]]:
    """Return the log directories of brokers by broker id and path, with the size of each replica (KIP-113).

    brokers: Ids of the brokers. None: all brokers.
    partitions: Partitions whose replicas are returned. None: all partitions.

    Raise AuthorizationError without DESCRIBE on the cluster. Raise TransportError if a broker does not respond. For
    several brokers, an AdminError contains the errors.
    """
    deadline = context.deadline(timeout)
    if brokers is None:
        yield from context.cluster.refresh(context.call_timeout(deadline))
    chosen = list(context.cluster.brokers) if brokers is None else numbers_of(brokers, "brokers")
    topics = None
    if partitions is not None:
        topics = [
            messages.DescribableLogDirTopic(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(partitions_of(partitions)).items()
        ]
    handler: ApiHandler[int, dict[str, LogDirDescription]] = ApiHandler(
        "describe log directories of broker",
        EachBroker(),
        lambda items, until: messages.DescribeLogDirsRequest(topics=topics),
        _log_dirs,
        lowest=1,
    )
    outcome = yield from request_items(context, chosen, handler, deadline)
    return outcome.value()


def _log_dirs(response: Any, brokers: list[int]) -> Iterator[tuple[int, ItemResult]]:
    # Versions below 3 have no error code for the whole response. Without permission, the list is empty.
    yield brokers[0], ItemResult(response.error_code, {one.log_dir: _log_dir(one) for one in response.results})


def _log_dir(result: Any) -> LogDirDescription:
    replicas = {
        TopicPartition(topic.name, one.partition_index): LogDirReplica(
            one.partition_size, one.offset_lag, one.is_future_key
        )
        for topic in result.topics
        for one in topic.partitions
    }
    doing = f"describe log directory {result.log_dir}"
    error = broker_error(result.error_code, doing) if result.error_code else None
    return LogDirDescription(result.log_dir, replicas, _known(result.total_bytes), _known(result.usable_bytes), error)


class _BrokerOfReplica(Route[TopicPartitionReplica]):
    """The route to the broker of a replica."""

    may_lag = False

    def known(self, item: TopicPartitionReplica) -> int | None:
        """See Route."""
        return item.broker_id


def alter_replica_log_dirs(
    context: CallContext, moves: Mapping[TopicPartitionReplica, str], *, timeout: float | None = None
) -> Flow[dict[TopicPartitionReplica, None]]:
    """Move replicas to other log directories of their brokers (KIP-113). Return when the moves have begun.

    moves: Path of the directory on its broker, for each replica. `describe_log_dirs` shows the progress (is_future).

    Raise BrokerError (LOG_DIR_NOT_FOUND) if a broker does not have the directory. Raise BrokerError
    (REPLICA_NOT_AVAILABLE) if the replica does not exist yet. The broker then creates it in the directory. Raise
    AuthorizationError without ALTER on the cluster. For several replicas, an AdminError contains the errors.
    """
    if not isinstance(moves, Mapping):
        raise TypeError(f"moves: expected {{TopicPartitionReplica(...): path}}, got {moves!r}")
    for replica in items_of(moves, TopicPartitionReplica, "moves"):
        partitions_of([replica.partition], "moves")
        numbers_of([replica.broker_id], "moves: broker_id")
    handler: ApiHandler[TopicPartitionReplica, None] = ApiHandler(
        "move replica",
        _BrokerOfReplica(),
        lambda some, until: _moves({one: moves[one] for one in some}),
        _moved,
        final=frozenset({ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.KAFKA_STORAGE_ERROR}),
    )
    outcome = yield from request_items(context, moves, handler, context.deadline(timeout))
    outcome.doing = "alter replica log directories"
    return outcome.value()


def _moves(moves: Mapping[TopicPartitionReplica, str]) -> Any:
    paths: dict[str, list[TopicPartition]] = {}
    for replica, path in moves.items():
        paths.setdefault(path, []).append(replica.partition)
    return messages.AlterReplicaLogDirsRequest(
        dirs=[
            messages.AlterReplicaLogDir(
                path=path,
                topics=[
                    messages.AlterReplicaLogDirTopic(name=topic, partitions=numbers)
                    for topic, numbers in by_topic(partitions).items()
                ],
            )
            for path, partitions in paths.items()
        ]
    )


def _moved(response: Any, replicas: list[TopicPartitionReplica]) -> Iterator[tuple[TopicPartitionReplica, ItemResult]]:
    by_partition = {replica.partition: replica for replica in replicas}
    for topic in response.results:
        for one in topic.partitions:
            replica = by_partition.get(TopicPartition(topic.topic_name, one.partition_index))
            if replica is not None:
                yield replica, ItemResult(one.error_code)
