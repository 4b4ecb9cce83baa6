# SPDX-License-Identifier: Apache-2.0
"""Routes: the broker that gets the request for an item, and what to forget if it is the wrong one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import STALE_LEADER_CODES
from kcodec.errors import BrokerError, DeliveryTimeoutError, KcodecError
from kcodec.flow import ANY_NODE, Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.quantities import count_text

K = TypeVar("K")
# Errors after which the request goes to another broker; None stands for no response. After other errors, it goes to the
# same broker.
NOT_THE_CONTROLLER = frozenset({None, ErrorCode.NOT_CONTROLLER})
NOT_THE_COORDINATOR = frozenset({None, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
# These requests name their topics, so that no broker responds with INCONSISTENT_TOPIC_ID.
NOT_THE_LEADER = STALE_LEADER_CODES | {
    None,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.LISTENER_NOT_FOUND,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
}
# The time that one look-up of a topic waits before the topic counts as unknown for now.
TOPIC_PATIENCE_SECONDS = 1.0


class Route(ABC, Generic[K]):
    """Selects the broker that gets the request for an item.

    may_lag: Whether this broker learns of new topics later than the controller, so that an unknown topic may be known
             soon.
    """

    may_lag = True

    @abstractmethod
    def known(self, item: K) -> int | None:
        """Return the node of an item; None if it is unknown now."""

    def look_up(self, items: list[K], timeout: float) -> Flow[dict[K, KcodecError]]:
        """Look up the unknown nodes of all items together, once. Return the errors of items: a TransportError if a
        later attempt may succeed."""
        yield from ()
        return {}

    def check_missing(self, item: K) -> None:
        """After `look_up`, raise BrokerError if the node of this item will not be known later, either."""

    def unknown_error(self, item: K) -> KcodecError:
        """Return the error of an item whose node is unknown after `look_up`."""
        return KcodecError("no broker is the coordinator at the moment")

    def prepare(self, items: Iterable[K]) -> None:
        """Prepare for all items together; called once before `known`."""

    def lost(self, item: K, code: int | None) -> None:
        """Note that the item will be requested again, after this error code, or without a response if None."""


class OneBroker(Route[Any]):
    """One broker for all items. ANY_NODE selects any broker, with one request for all items."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id

    def known(self, item: object) -> int | None:
        """As in Route."""
        return self._node_id


class AnyBroker(OneBroker):
    """Any broker, as all of them have the information."""

    def __init__(self) -> None:
        super().__init__(ANY_NODE)


class EachBroker(Route[int]):
    """The broker whose id is the item."""

    def known(self, item: int) -> int | None:
        """As in Route."""
        return item


class Controller(Route[Any]):
    """The active controller. A KRaft cluster reports any broker, which forwards requests; a cluster with ZooKeeper
    reports the controller."""

    may_lag = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_stale = False

    def known(self, item: object) -> int | None:
        """As in Route."""
        return None if self._is_stale or self._cluster.controller_id < 0 else self._cluster.controller_id

    def look_up(self, items: list[Any], timeout: float) -> Flow[dict[Any, KcodecError]]:
        """As in Route."""
        try:
            yield from self._cluster.refresh(timeout)
        except KcodecError as error:
            return dict.fromkeys(items, error)
        self._is_stale = False
        return {}

    def unknown_error(self, item: object) -> KcodecError:
        """As in Route."""
        return KcodecError("no broker is the controller at the moment")

    def lost(self, item: object, code: int | None) -> None:
        """Look the controller up again after NOT_CONTROLLER, or if the broker is gone."""
        self._is_stale = self._is_stale or code in NOT_THE_CONTROLLER


class EachCoordinator(Route[str]):
    """The coordinator of the group or transactional id that is the item. `kind` is "group" or "transaction"."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind

    def known(self, item: str) -> int | None:
        """As in Route."""
        return self._cluster.coordinators.known(self._kind, item)

    def look_up(self, items: list[str], timeout: float) -> Flow[dict[str, KcodecError]]:
        """As in Route."""
        return (yield from self._cluster.coordinators.find_each(self._kind, items, timeout))

    def lost(self, item: str, code: int | None) -> None:
        """Look the coordinator up again after NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, or if the broker is gone."""
        if code in NOT_THE_COORDINATOR:
            self._cluster.coordinators.forget(self._kind, item)


class CoordinatorOf(Route[Any]):
    """The coordinator of one group or transactional id, whatever the items are."""

    def __init__(self, cluster: Cluster, kind: str, key: str) -> None:
        self._route = EachCoordinator(cluster, kind)
        self._key = key

    def known(self, item: object) -> int | None:
        """As in Route."""
        return self._route.known(self._key)

    def look_up(self, items: list[Any], timeout: float) -> Flow[dict[Any, KcodecError]]:
        """As in Route."""
        errors = yield from self._route.look_up([self._key], timeout)
        return {item: error for item in items for error in errors.values()}

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

    def known(self, item: TopicPartition) -> int | None:
        """As in Route."""
        return self._cluster.leader(item.topic, item.partition)

    def look_up(self, items: list[TopicPartition], timeout: float) -> Flow[dict[TopicPartition, KcodecError]]:
        """Wait for the metadata of all topics together."""
        errors: dict[str, KcodecError] = {}
        deadline = self._cluster.clock() + min(timeout, TOPIC_PATIENCE_SECONDS)
        for name in dict.fromkeys(item.topic for item in items):
            try:
                yield from self._cluster.ensure_topic(name, max(deadline - self._cluster.clock(), 0.0))
            except DeliveryTimeoutError as late:
                topic = self._cluster.topics.get(name)
                if topic is not None and topic.error:
                    errors[name] = broker_error(topic.error, f"Metadata of topic {name!r}")
                else:
                    errors[name] = late
            except KcodecError as error:
                errors[name] = error
        return {item: errors[item.topic] for item in items if item.topic in errors}

    def check_missing(self, item: TopicPartition) -> None:
        """Raise BrokerError for a partition that the topic does not have."""
        self._cluster.request_update(f"{item} has no leader")
        count = self._cluster.partitions(item.topic)
        if count is not None and item.partition >= count:
            text = (
                f"{item}: the partition does not exist; the topic has {count_text(count, 'partition')}, numbered from 0"
            )
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise BrokerError(text, code=code, name=code.name)

    def unknown_error(self, item: TopicPartition) -> KcodecError:
        """As in Route."""
        return self._cluster.no_leader_error(item.topic, item.partition)

    def lost(self, item: TopicPartition, code: int | None) -> None:
        """Look the leader up again, as it may have moved."""
        if code in NOT_THE_LEADER:
            self._cluster.forget_leader(item.topic, item.partition)
