# SPDX-License-Identifier: Apache-2.0
"""Brokers that are killed under load: one of three nodes at a time, so that the cluster continues to work.

Not the only node: after SIGKILL and restart of a single node Kafka 4.3.1 may complete a prepared transaction without
writing its markers (docs/transactions-limits.md), which no client can prevent.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.node import Node

NODES = 3
#: Options of brokers that have replicas of each other's partitions.
OPTIONS: dict[str, Any] = {"nodes": NODES, "heap": "160m", "broker_session_timeout_ms": 2000}


class BrokerKills:
    """Stops one node after the other, each when the previous one is running and in sync again."""

    def __init__(self, kafka: ApacheKafka, topics: dict[str, int]) -> None:
        if len(kafka.nodes) < NODES:
            raise ValueError(f"{len(kafka.nodes)} nodes: a broker is killed only in a cluster of at least {NODES}")
        self._kafka, self._topics = kafka, topics
        self._turns = count()

    def kill_one(self) -> Node:
        """SIGKILL a node, and start it again."""
        node = self._next()
        node.kill()
        node.start()
        return node

    def stop_one(self) -> Node:
        """Stop a node in an orderly way, and start it again."""
        node = self._next()
        node.stop()
        node.start()
        return node

    def _next(self) -> Node:
        for topic, partitions in self._topics.items():
            for partition in range(partitions):
                self._kafka.wait_in_sync(topic, partition)
        return self._kafka.nodes[next(self._turns) % len(self._kafka.nodes)]
