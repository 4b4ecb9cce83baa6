# SPDX-License-Identifier: Apache-2.0
"""The values of metadata (brokers, topics and partitions), and the times of its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from kcodec.flow import Address
from kcodec.protocol.error_codes import ErrorCode

NO_UUID = UUID(int=0)
#: Errors of a partition after which its leader is looked up again: another broker may lead it, or the topic is gone.
#: Each API adds what it handles in the same way.
STALE_LEADER_CODES = frozenset(
    {
        *(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.LEADER_NOT_AVAILABLE),
        *(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR),
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
#: The group has gone on without a member, whatever partition the error came with.
LOST_MEMBER_CODES = frozenset(
    {
        *(ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS),
        *(ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH),
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


@dataclass(frozen=True)
class Broker:
    """A broker in the metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        """The address of the broker."""
        return Address(self.host, self.port)


@dataclass
class Partition:
    """A partition in the metadata. `leader` is -1 while none exists; `leader_epoch` is -1 if unknown."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass
class Topic:
    """A topic in the metadata. `error` is the error code of the topic, or 0."""

    name: str
    topic_id: UUID = NO_UUID
    is_internal: bool = False
    error: int = 0
    partitions: dict[int, Partition] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterTimes:
    """Times in seconds.

    request:             Timeout of one request.
    metadata_max_age:    Maximum age of the metadata.
    rebootstrap_trigger: Time without metadata after which the client returns to the bootstrap servers; None: never.
    backoff:             Function that returns the time before a repeat, from its number and a random number.
    unknown_topic:       Maximum wait for a topic that brokers report as unknown.
    """

    request: float
    metadata_max_age: float
    rebootstrap_trigger: float | None
    backoff: Callable[[int, float], float]
    unknown_topic: float = 5.0
