# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of Admin: frozen values with Kafka's names. Times are milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from kcodec.cluster.list_offsets import ListedOffset as ListedOffset
from kcodec.offsets import TopicPartition


@dataclass(frozen=True)
class NewTopic:
    """A topic to create. num_partitions, replication_factor: None for the broker's default.

    assignments: partition -> broker ids, the preferred leader first; the two numbers must then be None.
    """

    name: str
    num_partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class CreatedTopic:
    """A created topic. configs: as the broker responded, empty if it does not report them."""

    name: str
    topic_id: UUID | None
    num_partitions: int | None
    replication_factor: int | None
    configs: Mapping[str, str | None] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class TopicListing:
    """A topic by name. topic_id: None from brokers before 3.1."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    num_partitions: int


@dataclass(frozen=True)
class PartitionDescription:
    """A partition: leader None while none exists, leader_epoch None from old brokers; ids of brokers."""

    partition: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in sync."""
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True)
class TopicDescription:
    """A topic and its partitions, in order."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]

    def __repr__(self) -> str:
        poor = sum(partition.is_under_replicated for partition in self.partitions)
        headless = sum(partition.leader is None for partition in self.partitions)
        notes = [f"{len(self.partitions)} partitions"]
        notes += [f"{poor} under-replicated"] if poor else []
        notes += [f"{headless} without leader"] if headless else []
        return f"<TopicDescription {self.name!r}: {', '.join(notes)}>"


class ConfigResourceType(IntEnum):
    """The type of resource that a configuration belongs to (Kafka: ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True)
class ConfigResource:
    """A topic, a broker (its id as text; "" for the default of all) or a group with a configuration."""

    type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name!r}"

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        """Return the resource of a topic."""
        return cls(ConfigResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int | None) -> ConfigResource:
        """Return the resource of a broker; None: the default of all brokers."""
        return cls(ConfigResourceType.BROKER, "" if broker_id is None else str(broker_id))

    @classmethod
    def group(cls, group_id: str) -> ConfigResource:
        """Return the resource of a group (KIP-848)."""
        return cls(ConfigResourceType.GROUP, group_id)


#: Where a value comes from (Kafka: ConfigEntry.ConfigSource).
CONFIG_SOURCES = {
    0: "UNKNOWN",
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}


@dataclass(frozen=True)
class ConfigEntry:
    """One setting. value: None if the broker keeps it secret. source: one of CONFIG_SOURCES."""

    name: str
    value: str | None
    source: str
    is_read_only: bool = False
    is_sensitive: bool = False
    documentation: str | None = field(default=None, repr=False)

    @property
    def is_default(self) -> bool:
        """Whether it has its default value."""
        return self.source == "DEFAULT_CONFIG"


class AlterOperation(IntEnum):
    """The change of a setting (KIP-339); APPEND and SUBTRACT are for settings that are lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True)
class BrokerNode:
    """A broker. is_fenced: known to the controller, but not serving (only with include_fenced_brokers)."""

    id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


@dataclass(frozen=True)
class ClusterDescription:
    """A cluster: its brokers by id. controller_id: None while none exists."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[BrokerNode, ...]


@dataclass(frozen=True)
class FeatureDescription:
    """A feature (KIP-584): its finalized level (None: never finalized), and the levels that brokers support."""

    name: str
    finalized_level: int | None
    supported_min: int | None
    supported_max: int | None


@dataclass(frozen=True)
class ElectedLeader:
    """The result of an election in a partition: whether it was needed."""

    partition: TopicPartition
    was_needed: bool
