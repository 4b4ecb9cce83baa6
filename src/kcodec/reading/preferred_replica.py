# SPDX-License-Identifier: Apache-2.0
"""The replica that a bounded read fetches a partition from (KIP-392).

A leader that prefers another replica for the rack of the client sends no records, but the id of that replica. The read
then fetches from the replica until `metadata_max_age` has passed. If the replica fails or sends no records, the read
fetches from the leader for the same time, and names no rack, so that the leader sends records itself.
"""

from __future__ import annotations

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.options import ConsumerSettings
from kcodec.offsets import TopicPartition

#: Shortest time for which a preferred replica is used or avoided.
SHORTEST_REPLICA_SECONDS = 0.5


class PreferredReplica:
    """The preferred replica of one partition, if it has one; see the module.

    node:          Broker to fetch from in place of the leader. None: the leader.
    is_redirected: Whether the leader named a replica although the request named no rack. Only a custom replica selector
                   of the broker does this.
    """

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, partition: TopicPartition) -> None:
        self.node: int | None = None
        self.is_redirected = False
        self._cluster = cluster
        self._partition = partition
        self._seconds = max(settings.metadata_max_age, SHORTEST_REPLICA_SECONDS)
        self._node_until = 0.0
        self._leader_until = 0.0

    @property
    def is_avoided(self) -> bool:
        """Whether the read uses only the leader at present, because its preferred replica did not send records."""
        return self._cluster.clock() < self._leader_until

    def look(self) -> int | None:
        """Return the replica for the next request; None for the leader."""
        if self.node is None:
            return None
        if self._cluster.clock() >= self._node_until:
            self.node = None  # the leader is requested again, and may name another replica
        elif not self._is_online(self.node):
            self.leave("is offline")
        return self.node

    def prefer(self, replica: int) -> bool:
        """Handle a response without records that names a replica: continue with this replica, or with the leader if the
        replica is offline. Return whether the next request should wait, because it may get the same response."""
        if self.is_avoided:
            was_redirected, self.is_redirected = self.is_redirected, True
            return was_redirected
        if self.node is not None:
            self.leave("named another replica")
        elif not self._is_online(replica):
            self.leave("is offline")
        else:
            self.node = replica
            self._node_until = self._cluster.clock() + self._seconds
        return False

    def leave(self, failure: str = "") -> None:
        """Fetch from the leader for a while, without its preferred replica. A failure of the replica may mean that the
        metadata is outdated."""
        self.node = None
        self._leader_until = self._cluster.clock() + self._seconds
        self.is_redirected = False
        if failure:
            self._cluster.request_update(f"{self._partition}: the preferred replica {failure}")

    def _is_online(self, node: int) -> bool:
        known = self._cluster.partition(self._partition)
        return node in self._cluster.brokers and (known is None or node not in known.offline_replicas)
