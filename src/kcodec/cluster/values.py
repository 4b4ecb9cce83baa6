# SPDX-License-Identifier: Apache-2.0
"""What metadata says of brokers, topics and partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kcodec.flow import Address

NO_UUID = UUID(int=0)


@dataclass(frozen=True)
class Broker:
    """A broker as metadata names it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        """Where to dial."""
        return Address(self.host, self.port)


@dataclass
class Partition:
    """What metadata says of a partition. leader: -1 while there is none; leader_epoch: -1 if not known."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass
class Topic:
    """A topic as metadata shows it. error: of the topic, 0 if there is none."""

    name: str
    topic_id: UUID = NO_UUID
    is_internal: bool = False
    error: int = 0
    partitions: dict[int, Partition] = field(default_factory=dict)


class ProducerIdAndEpoch(NamedTuple):
    """The identity that a batch carries (Kafka: ProducerIdAndEpoch)."""

    producer_id: int
    producer_epoch: int
