# SPDX-License-Identifier: Apache-2.0
"""librdkafka's consumer (confluent-kafka) and aiokafka's as members of a group. Each polls in a separate thread.

with ConfluentMember(servers, "readers", ["orders"], "range") as member:
    member.owned()                                  # {TopicPartition("orders", 0), ...}
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from kcodec.offsets import TopicPartition

HEARTBEAT_MS, SESSION_MS = 200, 6000
END_SECONDS = 10.0


class _Member:
    """A member that polls in `_poll_all` until `_is_ending` is true."""

    def __init__(self, servers: str, group: str, topics: Sequence[str], strategy: str) -> None:
        self._servers, self._group, self._topics, self._strategy = servers, group, list(topics), strategy
        self._lock = threading.Lock()
        self._has: frozenset[TopicPartition] = frozenset()
        self._is_ending = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> _Member:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def owned(self) -> frozenset[TopicPartition]:
        """Return the current assignment. Raise the error with which its thread failed."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            return self._has

    def close(self) -> None:
        """Leave the group and end."""
        self._is_ending = True
        self._thread.join(END_SECONDS)
        assert not self._thread.is_alive(), f"{type(self).__name__} did not end within {END_SECONDS} s"

    def _hold(self, partitions: Any) -> None:
        with self._lock:
            self._has = frozenset(TopicPartition(one.topic, one.partition) for one in partitions)

    def _run(self) -> None:
        try:
            self._poll_all()
        except BaseException as error:  # noqa: BLE001  the test's thread raises it
            self._failure = error
        finally:
            self._hold([])

    def _poll_all(self) -> None:
        raise NotImplementedError


class ConfluentMember(_Member):
    """librdkafka supports range, roundrobin and cooperative-sticky."""

    def _poll_all(self) -> None:
        from confluent_kafka import Consumer

        options = {
            "bootstrap.servers": self._servers,
            "group.id": self._group,
            "partition.assignment.strategy": self._strategy,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(options, logger=None)
        consumer.subscribe(self._topics)
        while not self._is_ending:
            consumer.poll(0.05)
            self._hold(consumer.assignment())
        consumer.close()


class AiokafkaMember(_Member):
    """aiokafka supports range, roundrobin and sticky."""

    def _poll_all(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
        }
        consumer = AIOKafkaConsumer(
            *self._topics,
            bootstrap_servers=self._servers,
            group_id=self._group,
            partition_assignment_strategy=(assignors[self._strategy],),
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            while not self._is_ending:
                await consumer.getmany(timeout_ms=50)
                self._hold(consumer.assignment())
        finally:
            await consumer.stop()
