# SPDX-License-Identifier: Apache-2.0
"""Routes: the broker that gets the request for an item, and what to forget if it is the wrong one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from kcodec.cluster.metadata import Cluster
from kcodec.errors import BrokerError, DeliveryTimeoutError
from kcodec.flow import ANY_NODE, Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.quantities import count_text

K_contra = TypeVar("K_contra", contravariant=True)
# After which errors the request goes to another broker; None: no response. After others it goes to the same again.
NOT_THE_CONTROLLER = frozenset({None, ErrorCode.NOT_CONTROLLER})
NOT_THE_COORDINATOR = frozenset({None, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
NOT_THE_LEADER = frozenset(
    {
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
# How long one look for a topic waits before it counts as unknown for now.
TOPIC_PATIENCE_SECONDS = 1.0


class Route(ABC, Generic[K_contra]):
    """Selects the broker that gets the request for an item.

    may_lag: that broker learns of new topics later than the controller, so an unknown topic may be known soon.
    """

    may_lag = True

    @abstractmethod
    def node(self, item: K_contra, timeout: float) -> Flow[int | None]:
        """Return the node; None: unknown now, try again. Raise BrokerError or TransportError if it cannot be found."""

    def prepare(self, items: Iterable[K_contra]) -> None:
        """Prepare for all items together; called once before `node`."""

    def lost(self, item: K_contra, code: int | None) -> None:
        """Note that the item will be requested again, after this error code, or without a response if None."""


class OneBroker(Route[object]):
    """One broker for all items. ANY_NODE: any broker, with one request for all items."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id

    def node(self, item: object, timeout: float) -> Flow[int | None]:
        """As in Route."""
        yield from ()
        return self._node_id


class AnyBroker(OneBroker):
    """Any broker, as all of them have the information."""

    def __init__(self) -> None:
        super().__init__(ANY_NODE)


class EachBroker(Route[int]):
    """The broker whose id is the item."""

    def node(self, item: int, timeout: float) -> Flow[int | None]:
        """As in Route."""
        yield from ()
        return item


class Controller(Route[object]):
    """The active controller. A KRaft cluster names any broker, which forwards; one with ZooKeeper names the
    controller."""

    may_lag = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_stale = False

    def node(self, item: object, timeout: float) -> Flow[int | None]:
        """As in Route."""
        if self._is_stale or self._cluster.controller_id < 0:
            yield from self._cluster.refresh(timeout)
            self._is_stale = False
        return None if self._cluster.controller_id < 0 else self._cluster.controller_id

    def lost(self, item: object, code: int | None) -> None:
        """Look the controller up again after NOT_CONTROLLER, or if the broker is gone."""
        self._is_stale = self._is_stale or code in NOT_THE_CONTROLLER


class EachCoordinator(Route[str]):
    """The coordinator of the group or transactional id that is the item; kind: "group" or "transaction"."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind

    def node(self, item: str, timeout: float) -> Flow[int | None]:
        """As in Route."""
        return (yield from self._cluster.coordinator(self._kind, item, timeout))

    def lost(self, item: str, code: int | None) -> None:
        """Look the coordinator up again after NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, or if the broker is gone."""
        if code in NOT_THE_COORDINATOR:
            self._cluster.forget_coordinator(self._kind, item)


class CoordinatorOf(Route[object]):
    """The coordinator of one group or transactional id, whatever the items are."""

    def __init__(self, cluster: Cluster, kind: str, key: str) -> None:
        self._route = EachCoordinator(cluster, kind)
        self._key = key

    def node(self, item: object, timeout: float) -> Flow[int | None]:
        """As in Route."""
        return (yield from self._route.node(self._key, timeout))

    def lost(self, item: object, code: int | None) -> None:
        """As in EachCoordinator."""
        self._route.lost(self._key, code)


class Leader(Route[TopicPartition]):
    """The leader of a partition."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def prepare(self, items: Iterable[TopicPartition]) -> None:
        """Request all topics in one Metadata request."""
        self._cluster.add_topics({item.topic for item in items})

    def node(self, item: TopicPartition, timeout: float) -> Flow[int | None]:
        """As in Route."""
        found = self._cluster.leader(item.topic, item.partition)
        if found is None:
            try:
                yield from self._cluster.ensure_topic(item.topic, min(timeout, TOPIC_PATIENCE_SECONDS))
            except DeliveryTimeoutError:
                topic = self._cluster.topics.get(item.topic)
                if topic is None or not topic.error:
                    raise
                raise broker_error(topic.error, f"Metadata of topic {item.topic!r}") from None
            found = self._cluster.leader(item.topic, item.partition)
        if found is None:
            self._cluster.request_update(f"{item} has no leader")
            count = self._cluster.partitions(item.topic)
            if count is not None and item.partition >= count:
                text = (
                    f"{item}: the partition does not exist; the topic has {count_text(count, 'partition')}, numbered "
                    "from 0"
                )
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise BrokerError(text, code=code, name=code.name)
        return found

    def lost(self, item: TopicPartition, code: int | None) -> None:
        """Look the leader up again, as it may have moved."""
        if code in NOT_THE_LEADER:
            self._cluster.forget_leader(item.topic, item.partition)
