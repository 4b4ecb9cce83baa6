# SPDX-License-Identifier: Apache-2.0
"""Administrative calls of a test to a running Kafka, without a client: topics, leaders, permissions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from kcodec.admin.security import AclBinding, AclOperation, PatternType, ResourceType
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages import MetadataResponsePartition
from kcodec.testing import bare_admin
from kcodec.testing.node import KafkaFailed, Node
from kcodec.testing.properties import Value, property_name, property_text

__all__ = ["ClusterAdmin"]

TOPIC_SECONDS = 20.0
POLL_SECONDS = 0.02
#: By the names that Kafka's command line tools show: Read, ClusterAction ...
OPERATIONS = {one.name.title().replace("_", ""): one for one in AclOperation if one > AclOperation.ANY}

Found = TypeVar("Found")


class ClusterAdmin:
    """Sends requests to the nodes of a cluster, over their listener ADMIN. ApacheKafka is a subclass."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def node(self, number: int) -> Node:
        """Return the node whose id is `number`. The first node has the id 1."""
        return self.nodes[number - 1]

    def create_topic(
        self,
        name: str | None = None,
        partitions: int = 3,
        *,
        replication_factor: int | None = None,
        **configs: Value,
    ) -> str:
        """Create a topic, wait until all running nodes know its leaders and those lead, and return its name.

        A node that was paused is fenced until the controller gets its next heartbeat. Until then, the request is
        repeated.

        name:               None creates a unique name.
        partitions:         Number of partitions.
        replication_factor: Number of replicas of each partition; None for the broker's default.
        configs:            Settings of the topic, with _ in place of dots: max_message_bytes=1000.

        Raise BrokerRefused (.code) or TimeoutError.
        """
        name = name if name is not None else f"topic-{uuid.uuid4().hex[:12]}"
        written = {property_name(key): property_text(value) for key, value in configs.items()}
        factor = replication_factor or -1

        def created() -> bool:
            try:
                self._request(lambda address: bare_admin.create_topic(address, name, partitions, factor, written))
            except bare_admin.BrokerRefused as error:
                # Fewer brokers are registered and not fenced than the topic has replicas.
                if error.code != ErrorCode.INVALID_REPLICATION_FACTOR or factor > sum(
                    node.is_running for node in self.nodes
                ):
                    raise
                return False
            return True

        self._wait_for(created, f"enough nodes for topic {name} were not fenced")
        self._wait_for(lambda: self._has_leaders(name, partitions), f"topic {name} had its leaders")
        return name

    def leader(self, topic: str, partition: int) -> Node:
        """Return the node that leads this partition of `topic`. Wait while no running node is the leader.

        Raise TimeoutError if that takes longer than 20 seconds.
        """

        def leading() -> Node | None:
            found = self._partition(topic, partition)
            return self._running_node(found.leader_id if found else None)

        return self._wait_for(leading, f"{topic}-{partition} had a leader that runs")

    def coordinator(self, kind: str, key: str) -> Node:
        """Return the node that coordinates a transaction or a group. Wait while none exists.

        kind: "transaction" or "group".
        key: Transactional id, or name of the group.

        Raise TimeoutError if that takes longer than 20 seconds.
        """

        def coordinating() -> Node | None:
            return self._running_node(self._request(lambda address: bare_admin.coordinator(address, kind, key)))

        return self._wait_for(coordinating, f"the {kind} {key} had a coordinator that runs")

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the high watermark of this partition of `topic`."""
        return bare_admin.end_offsets(self.leader(topic, partition).admin_server, topic, [partition])[partition]

    def wait_in_sync(self, topic: str, partition: int, timeout: float = TOPIC_SECONDS) -> None:
        """Wait until every running node reports that all replicas of this partition of `topic` are in sync. Raise
        TimeoutError after `timeout` seconds."""

        def in_sync() -> bool:
            for server in [node.admin_server for node in self.nodes if node.is_running]:
                found = bare_admin.partitions_of(server, topic).get(partition)
                if found is None or set(found.isr_nodes) != set(found.replica_nodes):
                    return False
            return True

        self._wait_for(in_sync, f"all replicas of {topic}-{partition} were in sync", timeout)

    def allow(
        self,
        user: str,
        operation: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        is_prefix: bool = False,
    ) -> None:
        """Permit a user (its name, or a whole principal User:CN=name) an operation: Read, Write, Describe, All, ...

        topic, group, transactional_id: Resource to which it applies, at most one of them. None for all three selects
                                        the cluster.
        is_prefix: True applies it to all resources whose names begin with that name.

        Return when all running nodes know it. Raise BrokerRefused, or ValueError for several resources or an unknown
        operation.
        """
        acl = _acl(user, operation, topic, group, transactional_id, is_prefix)
        self._request(lambda address: bare_admin.create_acl(address, acl))
        self._wait_for(lambda: all(self._request_all(acl)), f"all nodes knew {acl}")

    def revoke(
        self,
        user: str,
        operation: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        is_prefix: bool = False,
    ) -> None:
        """Revoke what `allow` permitted with the same arguments: user, operation, topic, group, transactional_id,
        is_prefix. Returns when no running node knows it."""
        acl = _acl(user, operation, topic, group, transactional_id, is_prefix)
        self._request(lambda address: bare_admin.delete_acl(address, acl))
        self._wait_for(lambda: not any(self._request_all(acl)), f"all nodes had forgotten {acl}")

    def _request_all(self, acl: AclBinding) -> list[bool]:
        return [bare_admin.has_acl(node.admin_server, acl) for node in self.nodes if node.is_running]

    def _running_node(self, number: int | None) -> Node | None:
        """Return the node with this id if it is running."""
        found = [node for node in self.nodes if node.id == number and node.is_running]
        return found[0] if found else None

    def _request(self, request: Callable[[str], Found]) -> Found:
        """Send a request to the first node that responds, because a node may be killed or paused."""
        running = [node for node in self.nodes if node.is_running]
        for node in running:
            try:
                return request(node.admin_server)
            except OSError:
                if node is running[-1]:
                    raise
        states = ", ".join(f"node {node.id} {node.end_text()}" for node in self.nodes) or "it was closed"
        raise KafkaFailed(f"no node of this Kafka is running: {states}")

    def _wait_for(self, probe: Callable[[], Found | None], what: str, timeout: float = TOPIC_SECONDS) -> Found:
        """Repeat `probe` until its result is true, and return the result. Ignore an OSError."""
        deadline = time.monotonic() + timeout
        while True:
            reason = ""
            try:
                found = probe()
            except OSError as error:
                reason = f": {error}"
            else:
                if found:
                    return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{timeout} s passed before {what}{reason}")
            time.sleep(POLL_SECONDS)

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        """Return whether all nodes know the leaders, and whether the leaders know this themselves, which takes a little
        longer."""
        known: dict[int, MetadataResponsePartition] = {}
        for node in self.nodes:
            if node.is_running:
                known = bare_admin.partitions_of(node.admin_server, topic)
                if len(known) < partitions or any(found.leader_id < 0 for found in known.values()):
                    return False
        led: dict[int, list[int]] = {}
        for partition, found in known.items():
            led.setdefault(found.leader_id, []).append(partition)
        try:
            for leader, numbers in led.items():
                bare_admin.end_offsets(self.node(leader).admin_server, topic, numbers)
        except bare_admin.BrokerRefused:
            return False
        return True

    def _partition(self, topic: str, partition: int) -> MetadataResponsePartition | None:
        return self._request(lambda address: bare_admin.partitions_of(address, topic)).get(partition)


def _acl(
    user: str, operation: str, topic: str | None, group: str | None, transactional_id: str | None, is_prefix: bool
) -> AclBinding:
    named = {
        ResourceType.TOPIC: topic,
        ResourceType.GROUP: group,
        ResourceType.TRANSACTIONAL_ID: transactional_id,
    }
    chosen = {kind: name for kind, name in named.items() if name is not None} or {ResourceType.CLUSTER: "kafka-cluster"}
    if len(chosen) > 1:
        raise ValueError(
            "topic=, group= and transactional_id= exclude each other; got "
            f"{', '.join(f'{kind.name.lower()}=' for kind in chosen)}"
        )
    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation {operation!r}; expected one of {', '.join(OPERATIONS)}")
    principal = user if user.startswith("User:") else f"User:{user}"
    pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    return AclBinding(*chosen.popitem(), principal, OPERATIONS[operation], pattern_type=pattern)
