# SPDX-License-Identifier: Apache-2.0
"""The known brokers and topics of a client of kcodec, in the shape of aiokafka's ClusterMetadata and AIOKafkaClient."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from aiokafka.structs import BrokerMetadata, TopicPartition

from kcodec import errors
from kcodec.compat._aiokafka_errors import MissingAttributes

#: Time in which each bootstrap server must respond or refuse the connection.
CONNECT_STEP_SECONDS = 0.5


async def connect(client: Any, seconds: float) -> None:
    """Wait for metadata. Raise TransportError as soon as it is clear that no bootstrap server can be reached."""
    cluster, addresses = client._client.cluster, client._client.options.addresses
    deadline = time.monotonic() + seconds
    step = CONNECT_STEP_SECONDS * len(addresses)
    while True:
        try:
            await client._run(cluster.refresh(min(step, max(deadline - time.monotonic(), 0.01))))
        except errors.DeliveryTimeoutError as late:
            if cluster.last_error is not None or time.monotonic() >= deadline:
                cause = cluster.last_error or late
                if isinstance(cause, errors.AuthenticationError):
                    raise cause.with_traceback(None) from None
                where = ", ".join(map(str, addresses))
                raise errors.TransportError(f"Unable to bootstrap from {where}: {cause}") from cause
        else:
            return


class ClusterView:
    """The known brokers and topics, with the names of aiokafka's ClusterMetadata. `cluster` returns the metadata of
    kcodec."""

    def __init__(self, cluster: Callable[[], Any]) -> None:
        self._cluster = cluster

    def _known(self) -> dict[str, Any]:
        found: dict[str, Any] = self._cluster().topics
        return found

    def brokers(self) -> set[BrokerMetadata]:
        """Return the known brokers."""
        return {_broker(one) for one in self._cluster().brokers.values()}

    def broker_metadata(self, broker_id: int) -> BrokerMetadata | None:
        """Return the address and the rack of a broker, or None if it is not known."""
        found = self._cluster().brokers.get(broker_id)
        return None if found is None else _broker(found)

    @property
    def controller(self) -> BrokerMetadata | None:
        """The controller, or None if it is not known."""
        return self.broker_metadata(self._cluster().controller_id)

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """Return the id of the leader, -1 if the partition has no leader, or None if the partition is not known."""
        found = self._known().get(partition.topic)
        known = None if found is None else found.partitions.get(partition.partition)
        return None if known is None else int(known.leader)

    def partitions_for_broker(self, broker_id: int) -> set[TopicPartition] | None:
        """Return the known partitions whose leader is the broker, or None if there are none."""
        found = {
            TopicPartition(name, number)
            for name, topic in self._known().items()
            for number, one in topic.partitions.items()
            if one.leader == broker_id
        }
        return found or None

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        """Return the names of the known topics."""
        found = self._known().items()
        return {name for name, one in found if one.partitions and not (exclude_internal_topics and one.is_internal)}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic, or None if it is not known."""
        found = self._known().get(topic)
        return set(found.partitions) if found is not None and found.partitions else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic that have a leader, or None if the topic is not known."""
        found = self._known().get(topic)
        if found is None or not found.partitions:
            return None
        return {number for number, one in found.partitions.items() if one.leader >= 0}


class ClientView(MissingAttributes):
    """The attribute `client` of aiokafka's clients. It requests metadata on the connections of kcodec's client.

    bootstrap_servers, client_id: The values of the private attributes `_bootstrap_servers` and `_client_id`, which
    instrumentations put into spans.
    """

    _is_partial = True

    def __init__(self, client: Any, bootstrap_servers: str | Iterable[str], client_id: str) -> None:
        self._of = client
        self._bootstrap_servers = bootstrap_servers
        self._client_id = client_id
        self.cluster = ClusterView(lambda: client._client.cluster)
        self._updates: set[asyncio.Task[bool]] = set()

    @property
    def hosts(self) -> list[tuple[str, int, socket.AddressFamily]]:
        """The bootstrap servers."""
        return [(one.host, one.port, socket.AF_UNSPEC) for one in self._of._client.options.addresses]

    def get_random_node(self) -> int | None:
        """Return the id of a known broker, or None if no broker is known."""
        known = list(self._of._client.cluster.brokers)
        return random.choice(known) if known else None

    def add_topic(self, topic: str) -> asyncio.Future[bool]:
        """Include a topic in the metadata. Return a future whose result is whether the metadata has arrived."""
        return self.set_topics([topic])

    def set_topics(self, topics: Iterable[str]) -> asyncio.Future[bool]:
        """Include topics in the metadata. Return a future whose result is whether the metadata has arrived."""
        cluster, wanted = self._of._client.cluster, list(topics)
        cluster.add_topics(wanted)
        if all(cluster.partitions(topic) for topic in wanted):
            known = asyncio.get_running_loop().create_future()
            known.set_result(True)
            return known
        return self.force_metadata_update()

    async def fetch_all_metadata(self) -> ClusterView:
        """Request metadata of all topics. Return the cluster."""
        await self._begun_update(self._of._client.cluster.refresh_all)
        return self.cluster

    async def _wait_on_metadata(self, topic: str) -> set[int]:
        return set(range(await self._of.partitions_for(topic)))

    def force_metadata_update(self) -> asyncio.Future[bool]:
        """Request metadata immediately. Return a future whose result is whether it has arrived. The request is also
        sent if the future is not awaited."""
        return self._begun_update(self._of._client.cluster.refresh)

    def _begun_update(self, refresh: Callable[[float], Any]) -> asyncio.Future[bool]:
        update = asyncio.get_running_loop().create_task(self._update(refresh))
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)
        return asyncio.shield(update)

    async def _update(self, refresh: Callable[[float], Any]) -> bool:
        try:
            await self._of._run(refresh(self._of._client.options.request_timeout_ms / 1000))
        except errors.KcodecError:
            return False
        return True


def _broker(one: Any) -> BrokerMetadata:
    return BrokerMetadata(one.node_id, one.host, one.port, one.rack)
