# SPDX-License-Identifier: Apache-2.0
"""Which broker answers for an item of a call about many, and what to forget when it no longer does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from kcodec.cluster.metadata import Cluster
from kcodec.errors import BrokerError, DeliveryTimeoutError
from kcodec.flow import ANY_NODE, Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import broker_error

K_contra = TypeVar("K_contra", contravariant=True)
UNKNOWN_TOPIC_OR_PARTITION = 3
# After which errors somebody else is to be asked; None: no answer. Others are asked again where they came from.
NOT_THE_CONTROLLER = frozenset({None, 41})
NOT_THE_COORDINATOR = frozenset({None, 15, 16})
NOT_THE_LEADER = frozenset({None, UNKNOWN_TOPIC_OR_PARTITION, 5, 6, 9, 13, 56, 72, 74, 75, 100})
# How long one look for a topic waits before it counts as unknown for now.
TOPIC_PATIENCE_SECONDS = 1.0


class Route(Protocol[K_contra]):
    """Where an item is answered.

    may_lag: the broker asked learns of new topics later than the controller, so that "unknown" may pass.
    """

    may_lag: bool

    def prepare(self, items: Iterable[K_contra]) -> None:
        """Told once, before the nodes are asked for: what may be found out together."""

    def node(self, item: K_contra, timeout: float) -> Flow[int | None]:
        """The node; None: not known now, ask again. BrokerError or TransportError where that cannot be found out."""
        ...

    def lost(self, item: K_contra, code: int | None) -> None:
        """Asked again soon: after this error code, or after none came back."""


class _Unprepared:
    """A route that finds out nothing beforehand."""

    def prepare(self, items: Iterable[object]) -> None:
        """As in Route."""


class AnyBroker(_Unprepared):
    """Every broker knows."""

    may_lag = True

    def node(self, item: object, timeout: float) -> Flow[int | None]:
        """As in Route."""
        yield from ()
        return ANY_NODE

    def lost(self, item: object, code: int | None) -> None:
        """Nothing to forget: the network takes another broker by itself."""


class Controller(_Unprepared):
    """The active controller. A KRaft cluster names any broker, which forwards; one with ZooKeeper the controller."""

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
        """NOT_CONTROLLER, or a broker that is gone."""
        self._is_stale = self._is_stale or code in NOT_THE_CONTROLLER


class Coordinator(_Unprepared):
    """The coordinator of a group or a transactional id, which is the item."""

    may_lag = True

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind

    def node(self, item: str, timeout: float) -> Flow[int | None]:
        """As in Route."""
        found: int = yield from self._cluster.coordinator(self._kind, item, timeout)
        return found

    def lost(self, item: str, code: int | None) -> None:
        """NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, or a broker that is gone."""
        if code in NOT_THE_COORDINATOR:
            self._cluster.forget_coordinator(self._kind, item)


class CoordinatorOf(Coordinator):
    """The coordinator of one group, whatever the items are."""

    def __init__(self, cluster: Cluster, kind: str, key: str) -> None:
        super().__init__(cluster, kind)
        self._key = key

    def node(self, item: object, timeout: float) -> Flow[int | None]:
        """As in Route."""
        return (yield from super().node(self._key, timeout))

    def lost(self, item: object, code: int | None) -> None:
        """As in Coordinator."""
        super().lost(self._key, code)


class Leader:
    """The leader of a partition."""

    may_lag = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def prepare(self, items: Iterable[TopicPartition]) -> None:
        """All topics in one Metadata request."""
        self._cluster.topics_wanted({item.topic for item in items})

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
                told = f"{item}: the topic has {count} partitions, numbered from 0"
                raise BrokerError(told, code=UNKNOWN_TOPIC_OR_PARTITION, name="UNKNOWN_TOPIC_OR_PARTITION")
        return found

    def lost(self, item: TopicPartition, code: int | None) -> None:
        """It may have moved."""
        if code in NOT_THE_LEADER:
            self._cluster.forget_leader(item.topic, item.partition)


class Broker(_Unprepared):
    """The broker whose id is the item."""

    may_lag = True

    def node(self, item: int, timeout: float) -> Flow[int | None]:
        """As in Route."""
        yield from ()
        return item

    def lost(self, item: int, code: int | None) -> None:
        """Nothing to forget."""


class OneBroker(_Unprepared):
    """One broker for all items (ANY_NODE: whichever, but the same request)."""

    may_lag = True

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id

    def node(self, item: object, timeout: float) -> Flow[int | None]:
        """As in Route."""
        yield from ()
        return self._node_id

    def lost(self, item: object, code: int | None) -> None:
        """Nothing to forget."""
