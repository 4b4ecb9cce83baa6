# SPDX-License-Identifier: Apache-2.0
"""Records of ``__cluster_metadata`` and its snapshots: the state that the controllers replicate (KIP-631)."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import (
    MetadataRecord,
    Struct,
    array,
    boolean,
    data,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class NodeEndpoint(Struct):
    """An endpoint of a node."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class NodeFeature(Struct):
    """The levels of a feature that a node supports."""

    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class RegisterBrokerRecord(MetadataRecord, key=0, versions="0-4", flexible="0+"):
    """A broker registers."""

    broker_id: int = int32("0+")
    is_migrating_zk_broker: bool = boolean("2+")
    incarnation_id: UUID = uuid("0+")
    broker_epoch: int = int64("0+")
    end_points: list[NodeEndpoint] = array(NodeEndpoint, "0+")
    features: list[NodeFeature] = array(NodeFeature, "0+")
    rack: str | None = string("0+", nullable="0+")
    fenced: bool = boolean("0+", default=True)
    in_controlled_shutdown: bool = boolean("1+")
    log_dirs: list[UUID] = array(uuid, "3+", tag=0)
    cordoned_log_dirs: list[UUID] | None = array(uuid, "4+", nullable="4+", default=None, tag=1)


class UnregisterBrokerRecord(MetadataRecord, key=1, versions="0", flexible="0+"):
    """A broker is removed from the cluster."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")


class TopicRecord(MetadataRecord, key=2, versions="0", flexible="0+"):
    """A topic is created."""

    name: str = string("0+")
    topic_id: UUID = uuid("0+")


class PartitionRecord(MetadataRecord, key=3, versions="0-2", flexible="0+"):
    """A partition is created."""

    partition_id: int = int32("0+", default=-1)
    topic_id: UUID = uuid("0+")
    replicas: list[int] = array(int32, "0+")
    isr: list[int] = array(int32, "0+")
    removing_replicas: list[int] = array(int32, "0+")
    adding_replicas: list[int] = array(int32, "0+")
    leader: int = int32("0+", default=-1)
    leader_recovery_state: int = int8("0+", tag=0)
    leader_epoch: int = int32("0+", default=-1)
    partition_epoch: int = int32("0+", default=-1)
    directories: list[UUID] = array(uuid, "1+")
    eligible_leader_replicas: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=1)
    last_known_elr: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=2)


class ConfigRecord(MetadataRecord, key=4, versions="0", flexible="0+"):
    """A configuration of a resource is set; value None removes it."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class PartitionChangeRecord(MetadataRecord, key=5, versions="0-2", flexible="0+"):
    """A partition changes. None, leader -2 and leader_recovery_state -1 mean no change."""

    partition_id: int = int32("0+", default=-1)
    topic_id: UUID = uuid("0+")
    isr: list[int] | None = array(int32, "0+", nullable="0+", default=None, tag=0)
    leader: int = int32("0+", default=-2, tag=1)
    replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None, tag=2)
    removing_replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None, tag=3)
    adding_replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None, tag=4)
    leader_recovery_state: int = int8("0+", default=-1, tag=5)
    directories: list[UUID] | None = array(uuid, "1+", nullable="1+", default=None, tag=8)
    eligible_leader_replicas: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=6)
    last_known_elr: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=7)


class FenceBrokerRecord(MetadataRecord, key=7, versions="0", flexible="0+"):
    """A broker is fenced. Newer releases write BrokerRegistrationChangeRecord instead."""

    id: int = int32("0+")
    epoch: int = int64("0+")


class UnfenceBrokerRecord(MetadataRecord, key=8, versions="0", flexible="0+"):
    """A broker is unfenced. Newer releases write BrokerRegistrationChangeRecord instead."""

    id: int = int32("0+")
    epoch: int = int64("0+")


class RemoveTopicRecord(MetadataRecord, key=9, versions="0", flexible="0+"):
    """A topic is deleted."""

    topic_id: UUID = uuid("0+")


class DelegationTokenRecord(MetadataRecord, key=10, versions="0", flexible="0+"):
    """A delegation token is created or renewed. Timestamps: ms."""

    owner: str = string("0+")
    requester: str = string("0+")
    renewers: list[str] = array(string, "0+")
    issue_timestamp: int = int64("0+")
    max_timestamp: int = int64("0+")
    expiration_timestamp: int = int64("0+")
    token_id: str = string("0+")


class UserScramCredentialRecord(MetadataRecord, key=11, versions="0", flexible="0+"):
    """A user's SCRAM credential is set: salt, and keys derived from the password."""

    name: str = string("0+")
    mechanism: int = int8("0+")
    salt: bytes = data("0+", secret=True)
    stored_key: bytes = data("0+", secret=True)
    server_key: bytes = data("0+", secret=True)
    iterations: int = int32("0+")


class FeatureLevelRecord(MetadataRecord, key=12, versions="0", flexible="0+"):
    """The level of a feature is set; level 0 removes it."""

    name: str = string("0+")
    feature_level: int = int16("0+")


class EntityData(Struct):
    """An entity that a quota applies to; entity_name None is the default of its type."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class ClientQuotaRecord(MetadataRecord, key=14, versions="0", flexible="0+"):
    """A quota is set or removed."""

    entity: list[EntityData] = array(EntityData, "0+")
    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


class ProducerIdsRecord(MetadataRecord, key=15, versions="0", flexible="0+"):
    """A broker was assigned a block of producer ids that ends before next_producer_id."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    next_producer_id: int = int64("0+")


class BrokerRegistrationChangeRecord(MetadataRecord, key=17, versions="0-3", flexible="0+"):
    """A broker's registration changes; 0 means no change. fenced: 1 yes, -1 no. in_controlled_shutdown: 1 yes."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")
    fenced: int = int8("0+", tag=0)
    in_controlled_shutdown: int = int8("1+", tag=1)
    log_dirs: list[UUID] = array(uuid, "2+", tag=2)
    cordoned_log_dirs: list[UUID] | None = array(uuid, "3+", nullable="3+", default=None, tag=3)


class AccessControlEntryRecord(MetadataRecord, key=18, versions="0", flexible="0+"):
    """An access control entry is created."""

    id: UUID = uuid("0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("0+")
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class RemoveAccessControlEntryRecord(MetadataRecord, key=19, versions="0", flexible="0+"):
    """An access control entry is removed."""

    id: UUID = uuid("0+")


class NoOpRecord(MetadataRecord, key=20, versions="0", flexible="0+"):
    """No change: the active controller writes it so that the high watermark advances."""


class ZkMigrationStateRecord(MetadataRecord, key=21, versions="0", flexible="0+"):
    """The state of the migration from ZooKeeper."""

    zk_migration_state: int = int8("0+")


class RemoveUserScramCredentialRecord(MetadataRecord, key=22, versions="0", flexible="0+"):
    """A user's SCRAM credential is removed."""

    name: str = string("0+")
    mechanism: int = int8("0+")


class BeginTransactionRecord(MetadataRecord, key=23, versions="0", flexible="0+"):
    """A metadata transaction begins (KIP-868). Producers' transactions are unrelated."""

    name: str | None = string("0+", nullable="0+", default=None, tag=0)


class EndTransactionRecord(MetadataRecord, key=24, versions="0", flexible="0+"):
    """A metadata transaction ends, and its records take effect."""


class AbortTransactionRecord(MetadataRecord, key=25, versions="0", flexible="0+"):
    """A metadata transaction is aborted, and its records have no effect."""

    reason: str | None = string("0+", nullable="0+", default=None, tag=0)


class RemoveDelegationTokenRecord(MetadataRecord, key=26, versions="0", flexible="0+"):
    """A delegation token is removed."""

    token_id: str = string("0+")


class RegisterControllerRecord(MetadataRecord, key=27, versions="0", flexible="0+"):
    """A controller registers."""

    controller_id: int = int32("0+")
    incarnation_id: UUID = uuid("0+")
    zk_migration_ready: bool = boolean("0+")
    end_points: list[NodeEndpoint] = array(NodeEndpoint, "0+")
    features: list[NodeFeature] = array(NodeFeature, "0+")


class ClearElrRecord(MetadataRecord, key=28, versions="0", flexible="0+"):
    """The eligible leader replicas of a topic are removed; topic_name "" means all topics."""

    topic_name: str = string("0+")


class UnregisterControllerRecord(MetadataRecord, key=29, versions="0", flexible="0+"):
    """A controller is removed from the cluster (Kafka 4.4)."""

    controller_id: int = int32("0+")
