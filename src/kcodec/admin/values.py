# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of Admin. They are frozen and have Kafka's names. Times are in milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING
from uuid import UUID

from kcodec.admin.checks import by_name, check_members, check_numbers, check_text, setting_text
from kcodec.cluster.list_offsets import ListedOffset as ListedOffset
from kcodec.integers import shown
from kcodec.offsets import TopicPartition

if TYPE_CHECKING:
    from kcodec.admin.security import AclOperation

__all__ = [
    "CONFIG_SOURCES",
    "AlterOperation",
    "BrokerNode",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigResourceType",
    "CreatedTopic",
    "ElectedLeader",
    "FeatureDescription",
    "ListedOffset",
    "NewTopic",
    "PartitionDescription",
    "TopicDescription",
    "TopicListing",
]


@dataclass(frozen=True)
class NewTopic:
    """A topic to create.

    name: Name of the topic.
    num_partitions, replication_factor: Number of partitions, and number of replicas of each. None: the broker's
        default.
    configs: Settings of the topic, by name. All other settings have the broker's defaults.
    assignments: For each partition, the broker ids of its replicas with the preferred leader first. num_partitions and
        replication_factor must then be None.
    """

    name: str
    num_partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        check_text(self, "name")
        check_numbers(self, "num_partitions", "replication_factor", or_none=True)
        given = by_name(self.configs, "NewTopic: configs", "value")
        object.__setattr__(self, "configs", {name: setting_text(name, value) for name, value in given.items()})
        if self.assignments is not None and not isinstance(self.assignments, Mapping):
            raise TypeError(
                "NewTopic: assignments must be a mapping of partitions to lists of broker ids, got "
                f"{self.assignments!r:.100}"
            )


@dataclass(frozen=True)
class CreatedTopic:
    """A created topic, as the broker reported it.

    name: Name of the topic.
    topic_id: Id of the topic; None if the broker does not report it.
    num_partitions, replication_factor: Number of partitions, and number of replicas of each; None if the broker does
        not report them.
    configs: Settings of the topic, by name; empty if the broker does not report them.
    """

    name: str
    topic_id: UUID | None
    num_partitions: int | None
    replication_factor: int | None
    configs: Mapping[str, str | None] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class TopicListing:
    """A topic in the result of `list_topics`.

    name: Name of the topic.
    topic_id: Id of the topic; None from brokers before 3.1.
    is_internal: Whether the topic is an internal topic of the brokers, such as `__consumer_offsets`.
    num_partitions: Number of partitions.
    """

    name: str
    topic_id: UUID | None
    is_internal: bool
    num_partitions: int


@dataclass(frozen=True)
class PartitionDescription:
    """A partition and the ids of its brokers.

    partition: Number of the partition, from 0.
    leader: Id of the leader; None while no leader exists.
    leader_epoch: Epoch of the leader; None from brokers that do not report it.
    replicas: Ids of all brokers with a replica, the preferred leader first.
    isr: Ids of the brokers whose replica is in sync.
    offline_replicas: Ids of the brokers whose replica is not available.
    """

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
    """A topic and its partitions.

    name: Name of the topic.
    topic_id: Id of the topic; None from brokers before 3.1.
    is_internal: Whether the topic is an internal topic of the brokers, such as `__consumer_offsets`.
    partitions: The partitions in the order of their numbers.
    authorized_operations: The operations that the client may do; None unless they were requested.
    """

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]
    authorized_operations: frozenset[AclOperation] | None = None

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
    """A resource with a configuration, such as a topic, a broker or a group.

    type: Type of the resource.
    name: Name of the topic or group, or the id of the broker as text; "" is the default of all brokers.
    """

    type: ConfigResourceType
    name: str

    def __post_init__(self) -> None:
        check_members(self, type=ConfigResourceType)
        check_text(self, "name")
        is_broker = self.type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)
        if is_broker and self.name and not (self.name.isascii() and self.name.isdecimal()):
            raise ValueError(
                "ConfigResource: name must be the id of a broker, such as '1', or '' for the default of all brokers, "
                f"got {shown(self.name)}"
            )

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name!r}"

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        """Return the resource of the topic `name`."""
        return cls(ConfigResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int | None) -> ConfigResource:
        """Return the resource of the broker `broker_id`; None selects the default of all brokers."""
        return cls(ConfigResourceType.BROKER, "" if broker_id is None else str(broker_id))

    @classmethod
    def group(cls, group_id: str) -> ConfigResource:
        """Return the resource of the group `group_id` (KIP-848)."""
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
    """One setting.

    name: Name of the setting.
    value: Value as text; None if the broker keeps it secret.
    source: Where the value comes from: one of CONFIG_SOURCES.
    is_read_only: Whether the setting cannot be changed while the broker runs.
    is_sensitive: Whether the value is secret, such as a password.
    documentation: Kafka's description of the setting; None unless it was requested.
    """

    name: str
    value: str | None
    source: str
    is_read_only: bool = False
    is_sensitive: bool = False
    documentation: str | None = field(default=None, repr=False)

    @property
    def is_default(self) -> bool:
        """Whether the setting has its default value."""
        return self.source == "DEFAULT_CONFIG"


class AlterOperation(IntEnum):
    """The change of a setting (KIP-339). APPEND and SUBTRACT are for settings that are lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True)
class BrokerNode:
    """A broker.

    id: Id of the broker.
    host, port: Address that the broker advertises on the listener of this client.
    rack: Rack of the broker; None if it has none.
    is_fenced: Whether the broker is registered, but does not serve requests (only with include_fenced_brokers).
    """

    id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


@dataclass(frozen=True)
class ClusterDescription:
    """A cluster.

    cluster_id: Id of the cluster; None if the broker does not report it.
    controller_id: Id of the controller; None while none exists.
    brokers: The brokers, ordered by id.
    authorized_operations: The operations that the client may do; None unless they were requested.
    """

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[BrokerNode, ...]
    authorized_operations: frozenset[AclOperation] | None = None


@dataclass(frozen=True)
class FeatureDescription:
    """A feature of the cluster (KIP-584).

    name: Name of the feature, such as "transaction.version".
    finalized_level: Level that the cluster uses; None if the feature was never finalized.
    supported_min, supported_max: Levels that the responding broker supports; None if it does not have the feature.
    """

    name: str
    finalized_level: int | None
    supported_min: int | None
    supported_max: int | None


@dataclass(frozen=True)
class ElectedLeader:
    """The result of an election in a partition.

    partition: The partition.
    was_needed: Whether a leader was elected. False if the preferred replica was already the leader, or if the partition
        already had a leader in an "unclean" election.
    """

    partition: TopicPartition
    was_needed: bool
