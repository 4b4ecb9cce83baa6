# SPDX-License-Identifier: Apache-2.0
"""Records of ``__cluster_metadata`` and its snapshots: what the controllers agree on.

A record's value begins with a frame: varints of the frame's version (1), of the record's type, and of its version
(AbstractApiMessageSerde). Names, versions and defaults are those of Kafka's message definitions; a test compares them
with Kafka 4.3.1's jars.
"""

from __future__ import annotations

from kcodec.errors import DecodeError
from kcodec.log.message_schema import (
    Message,
    Reader,
    array,
    boolean,
    data,
    decode_message,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)
from kcodec.log.record_kinds import InternalRecord, RecordKind


class NodeEndpoint(Message):
    """Where a node listens."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class NodeFeature(Message):
    """The levels of a feature that a node supports."""

    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class RegisterBrokerRecord(Message, versions="0-4", flexible="0+"):
    """A broker registers."""

    broker_id: int = int32("0+")
    is_migrating_zk_broker: bool = boolean("2+", default=False)
    incarnation_id: str = uuid("0+")
    broker_epoch: int = int64("0+")
    end_points: tuple[NodeEndpoint, ...] = array(NodeEndpoint, "0+")
    features: tuple[NodeFeature, ...] = array(NodeFeature, "0+")
    rack: str | None = string("0+", nullable="0+")
    fenced: bool = boolean("0+", default=True)
    in_controlled_shutdown: bool = boolean("1+", default=False)
    log_dirs: tuple[str, ...] = array("uuid", "3+", tag=0)
    cordoned_log_dirs: tuple[str, ...] | None = array("uuid", "4+", default=None, nullable="4+", tag=1)


class UnregisterBrokerRecord(Message, versions="0", flexible="0+"):
    """A broker is gone for good."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")


class TopicRecord(Message, versions="0", flexible="0+"):
    """A topic is created."""

    name: str = string("0+")
    topic_id: str = uuid("0+")


class PartitionRecord(Message, versions="0-2", flexible="0+"):
    """A partition is created."""

    partition_id: int = int32("0+", default=-1)
    topic_id: str = uuid("0+")
    replicas: tuple[int, ...] = array("int32", "0+")
    isr: tuple[int, ...] = array("int32", "0+")
    removing_replicas: tuple[int, ...] = array("int32", "0+")
    adding_replicas: tuple[int, ...] = array("int32", "0+")
    leader: int = int32("0+", default=-1)
    leader_recovery_state: int = int8("0+", default=0, tag=0)
    leader_epoch: int = int32("0+", default=-1)
    partition_epoch: int = int32("0+", default=-1)
    directories: tuple[str, ...] = array("uuid", "1+")
    eligible_leader_replicas: tuple[int, ...] | None = array("int32", "2+", default=None, nullable="2+", tag=1)
    last_known_elr: tuple[int, ...] | None = array("int32", "2+", default=None, nullable="2+", tag=2)


class ConfigRecord(Message, versions="0", flexible="0+"):
    """A setting of a resource; null: it is removed."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class PartitionChangeRecord(Message, versions="0-2", flexible="0+"):
    """A partition changes: null, -2 and -1 stand for what stays."""

    partition_id: int = int32("0+", default=-1)
    topic_id: str = uuid("0+")
    isr: tuple[int, ...] | None = array("int32", "0+", default=None, nullable="0+", tag=0)
    leader: int = int32("0+", default=-2, tag=1)
    replicas: tuple[int, ...] | None = array("int32", "0+", default=None, nullable="0+", tag=2)
    removing_replicas: tuple[int, ...] | None = array("int32", "0+", default=None, nullable="0+", tag=3)
    adding_replicas: tuple[int, ...] | None = array("int32", "0+", default=None, nullable="0+", tag=4)
    leader_recovery_state: int = int8("0+", default=-1, tag=5)
    directories: tuple[str, ...] | None = array("uuid", "1+", default=None, nullable="1+", tag=8)
    eligible_leader_replicas: tuple[int, ...] | None = array("int32", "2+", default=None, nullable="2+", tag=6)
    last_known_elr: tuple[int, ...] | None = array("int32", "2+", default=None, nullable="2+", tag=7)


class FenceBrokerRecord(Message, versions="0", flexible="0+"):
    """A broker is fenced; newer logs say it in a BrokerRegistrationChangeRecord."""

    id: int = int32("0+")
    epoch: int = int64("0+")


class UnfenceBrokerRecord(Message, versions="0", flexible="0+"):
    """A broker is unfenced; newer logs say it in a BrokerRegistrationChangeRecord."""

    id: int = int32("0+")
    epoch: int = int64("0+")


class RemoveTopicRecord(Message, versions="0", flexible="0+"):
    """A topic is deleted."""

    topic_id: str = uuid("0+")


class DelegationTokenRecord(Message, versions="0", flexible="0+"):
    """A delegation token. Timestamps: ms."""

    owner: str = string("0+")
    requester: str = string("0+")
    renewers: tuple[str, ...] = array("string", "0+")
    issue_timestamp: int = int64("0+")
    max_timestamp: int = int64("0+")
    expiration_timestamp: int = int64("0+")
    token_id: str = string("0+")


class UserScramCredentialRecord(Message, versions="0", flexible="0+"):
    """A user's SCRAM credential, salted and hashed."""

    name: str = string("0+")
    mechanism: int = int8("0+")
    salt: bytes = data("0+")
    stored_key: bytes = data("0+")
    server_key: bytes = data("0+")
    iterations: int = int32("0+")


class FeatureLevelRecord(Message, versions="0", flexible="0+"):
    """A feature's level."""

    name: str = string("0+")
    feature_level: int = int16("0+")


class EntityData(Message):
    """Whom a quota is for."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class ClientQuotaRecord(Message, versions="0", flexible="0+"):
    """A quota."""

    entity: tuple[EntityData, ...] = array(EntityData, "0+")
    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


class ProducerIdsRecord(Message, versions="0", flexible="0+"):
    """Producer ids below this one have been handed out."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    next_producer_id: int = int64("0+")


class BrokerRegistrationChangeRecord(Message, versions="0-3", flexible="0+"):
    """A broker's registration changes."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")
    fenced: int = int8("0+", tag=0)
    in_controlled_shutdown: int = int8("1+", tag=1)
    log_dirs: tuple[str, ...] = array("uuid", "2+", tag=2)
    cordoned_log_dirs: tuple[str, ...] | None = array("uuid", "3+", default=None, nullable="3+", tag=3)


class AccessControlEntryRecord(Message, versions="0", flexible="0+"):
    """An access control entry."""

    id: str = uuid("0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("0+")
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class RemoveAccessControlEntryRecord(Message, versions="0", flexible="0+"):
    """An access control entry is removed."""

    id: str = uuid("0+")


class NoOpRecord(Message, versions="0", flexible="0+"):
    """Nothing: it only moves the log on."""


class ZkMigrationStateRecord(Message, versions="0", flexible="0+"):
    """The state of a migration from ZooKeeper."""

    zk_migration_state: int = int8("0+")


class RemoveUserScramCredentialRecord(Message, versions="0", flexible="0+"):
    """A user's SCRAM credential is removed."""

    name: str = string("0+")
    mechanism: int = int8("0+")


class BeginTransactionRecord(Message, versions="0", flexible="0+"):
    """A metadata transaction begins (no producer's)."""

    name: str | None = string("0+", default=None, nullable="0+", tag=0)


class EndTransactionRecord(Message, versions="0", flexible="0+"):
    """A metadata transaction ends."""


class AbortTransactionRecord(Message, versions="0", flexible="0+"):
    """A metadata transaction is aborted."""

    reason: str | None = string("0+", default=None, nullable="0+", tag=0)


class RemoveDelegationTokenRecord(Message, versions="0", flexible="0+"):
    """A delegation token is removed."""

    token_id: str = string("0+")


class RegisterControllerRecord(Message, versions="0", flexible="0+"):
    """A controller registers."""

    controller_id: int = int32("0+")
    incarnation_id: str = uuid("0+")
    zk_migration_ready: bool = boolean("0+")
    end_points: tuple[NodeEndpoint, ...] = array(NodeEndpoint, "0+")
    features: tuple[NodeFeature, ...] = array(NodeFeature, "0+")


class ClearElrRecord(Message, versions="0", flexible="0+"):
    """Eligible leader replicas of a topic, or of all, are forgotten."""

    topic_name: str = string("0+")


FRAME_VERSION = 1

METADATA_RECORDS = {
    number: RecordKind(name, None, kind)
    for number, name, kind in (
        (0, "REGISTER_BROKER_RECORD", RegisterBrokerRecord),
        (1, "UNREGISTER_BROKER_RECORD", UnregisterBrokerRecord),
        (2, "TOPIC_RECORD", TopicRecord),
        (3, "PARTITION_RECORD", PartitionRecord),
        (4, "CONFIG_RECORD", ConfigRecord),
        (5, "PARTITION_CHANGE_RECORD", PartitionChangeRecord),
        (7, "FENCE_BROKER_RECORD", FenceBrokerRecord),
        (8, "UNFENCE_BROKER_RECORD", UnfenceBrokerRecord),
        (9, "REMOVE_TOPIC_RECORD", RemoveTopicRecord),
        (10, "DELEGATION_TOKEN_RECORD", DelegationTokenRecord),
        (11, "USER_SCRAM_CREDENTIAL_RECORD", UserScramCredentialRecord),
        (12, "FEATURE_LEVEL_RECORD", FeatureLevelRecord),
        (14, "CLIENT_QUOTA_RECORD", ClientQuotaRecord),
        (15, "PRODUCER_IDS_RECORD", ProducerIdsRecord),
        (17, "BROKER_REGISTRATION_CHANGE_RECORD", BrokerRegistrationChangeRecord),
        (18, "ACCESS_CONTROL_ENTRY_RECORD", AccessControlEntryRecord),
        (19, "REMOVE_ACCESS_CONTROL_ENTRY_RECORD", RemoveAccessControlEntryRecord),
        (20, "NO_OP_RECORD", NoOpRecord),
        (21, "ZK_MIGRATION_STATE_RECORD", ZkMigrationStateRecord),
        (22, "REMOVE_USER_SCRAM_CREDENTIAL_RECORD", RemoveUserScramCredentialRecord),
        (23, "BEGIN_TRANSACTION_RECORD", BeginTransactionRecord),
        (24, "END_TRANSACTION_RECORD", EndTransactionRecord),
        (25, "ABORT_TRANSACTION_RECORD", AbortTransactionRecord),
        (26, "REMOVE_DELEGATION_TOKEN_RECORD", RemoveDelegationTokenRecord),
        (27, "REGISTER_CONTROLLER_RECORD", RegisterControllerRecord),
        (28, "CLEAR_ELR_RECORD", ClearElrRecord),
    )
}


def decode_metadata_record(value: bytes | None) -> InternalRecord:
    """What a record of the metadata log says; never an error: what cannot be read is told in it."""
    if value is None:
        return InternalRecord("unknown", error="a metadata record without a value")
    reader = Reader(value)
    try:
        frame_version, number, version = reader.varint(), reader.varint(), reader.varint()
        if frame_version != FRAME_VERSION:
            raise DecodeError(f"frame version {frame_version}, expected {FRAME_VERSION}")
    except DecodeError as error:
        return InternalRecord("unknown", error=f"frame of a metadata record: {error.reason}")
    found = METADATA_RECORDS.get(number)
    if found is None:
        return InternalRecord(f"unknown ({number})", version, error=f"record type {number} is not known")
    position = len(value) - reader.remaining
    try:
        message = decode_message(found.value, version, value, position, is_whole=True)
    except DecodeError as error:
        return InternalRecord(found.name, version, error=error.reason)
    return InternalRecord(found.name, version, value=message)
