# SPDX-License-Identifier: Apache-2.0
"""Conversion of the arguments and results of confluent_kafka.admin.AdminClient to values of kcodec, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    Node,
    TopicPartition,
    TopicPartitionInfo,
    cimpl,
)
from confluent_kafka import admin as _admin

from kcodec.admin.values import AlterOperation, BrokerNode, ConfigResourceType
from kcodec.admin.values import ConfigResource as Resource
from kcodec.client import NewTopic
from kcodec.compat._confluent_checks import check_assignment, check_list
from kcodec.compat._confluent_errors import local_error

# The stubs of confluent_kafka do not export all of the names.
admin: Any = _admin
SOURCES = {
    "DYNAMIC_TOPIC_CONFIG": admin.ConfigSource.DYNAMIC_TOPIC_CONFIG,
    "DYNAMIC_BROKER_CONFIG": admin.ConfigSource.DYNAMIC_BROKER_CONFIG,
    "DYNAMIC_DEFAULT_BROKER_CONFIG": admin.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    "STATIC_BROKER_CONFIG": admin.ConfigSource.STATIC_BROKER_CONFIG,
    "DEFAULT_CONFIG": admin.ConfigSource.DEFAULT_CONFIG,
    "DYNAMIC_GROUP_CONFIG": admin.ConfigSource.GROUP_CONFIG,
}
DYNAMIC_SOURCES = {
    ConfigResourceType.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    ConfigResourceType.BROKER: "DYNAMIC_BROKER_CONFIG",
    ConfigResourceType.GROUP: "DYNAMIC_GROUP_CONFIG",
}
Operation = admin.AlterConfigOpType
OPERATIONS = {
    Operation.SET: AlterOperation.SET,
    Operation.DELETE: AlterOperation.DELETE,
    Operation.APPEND: AlterOperation.APPEND,
    Operation.SUBTRACT: AlterOperation.SUBTRACT,
}
RESOURCES = {
    admin.ResourceType.TOPIC: ConfigResourceType.TOPIC,
    admin.ResourceType.BROKER: ConfigResourceType.BROKER,
    admin.ResourceType.GROUP: ConfigResourceType.GROUP,
}
STATES = {
    "PreparingRebalance": ConsumerGroupState.PREPARING_REBALANCING,
    "CompletingRebalance": ConsumerGroupState.COMPLETING_REBALANCING,
    "Stable": ConsumerGroupState.STABLE,
    "Dead": ConsumerGroupState.DEAD,
    "Empty": ConsumerGroupState.EMPTY,
    "Unknown": ConsumerGroupState.UNKNOWN,  # a filter with only this state selects no group
}
TYPES = {"classic": ConsumerGroupType.CLASSIC, "consumer": ConsumerGroupType.CONSUMER}


def new_topic(topic: Any) -> NewTopic:
    """Return the topic to create."""
    if topic.replica_assignment:
        check_assignment(topic.replica_assignment, None, "num_partitions")
        assigned = {number: tuple(replicas) for number, replicas in enumerate(topic.replica_assignment)}
        return NewTopic(topic.topic, configs=texts_of(topic.config), assignments=assigned)
    count = None if topic.num_partitions < 0 else topic.num_partitions
    replicas = None if topic.replication_factor < 0 else topic.replication_factor
    return NewTopic(topic.topic, count, replicas, texts_of(topic.config))


def texts_of(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return settings with their numbers converted to text. confluent_kafka accepts both."""
    return {name: None if value is None else str(value) for name, value in (settings or {}).items()}


def new_partitions(one: Any) -> Any:
    """Return the new number of partitions, with the brokers of the new partitions if they are given."""
    if not one.replica_assignment:
        return one.new_total_count
    check_assignment(one.replica_assignment, None, "new_total_count")
    return one.new_total_count, one.replica_assignment


def replaced(resource: Resource, now: Any, settings: dict[str, str]) -> Any:
    """Return the changes after which a resource has these settings and no others, or the error of `now`."""
    if isinstance(now, KafkaError):
        return now
    gone = {name: None for name, one in now.items() if one.source == DYNAMIC_SOURCES[resource.type]}
    return {**gone, **texts_of(settings)}


def election_error(found: Any) -> KafkaError | None:
    """Return the error of an election, or None if a leader was elected."""
    if isinstance(found, KafkaError) or found is None:
        return found
    return None if found.was_needed else KafkaError(KafkaError.ELECTION_NOT_NEEDED)


def group_metadata(name: str, found: Any) -> Any:
    """Return the GroupMetadata of a described group or its error."""
    group: Any = admin.GroupMetadata()
    group.id = name
    if isinstance(found, KafkaError):
        group.error = found
        return group
    group.state, group.protocol_type, group.protocol = found.state, found.protocol_type, found.protocol
    for one in found.members:
        member: Any = admin.GroupMember()
        member.id, member.client_id, member.client_host = one.member_id, one.client_id, one.client_host
        member.metadata, member.assignment = one.metadata, one.assignment
        group.members.append(member)
    return group


def nodes_of(brokers: Iterable[BrokerNode]) -> dict[int, Any]:
    """Return the nodes by id."""
    return {one.id: Node(one.id, one.host, one.port, one.rack) for one in brokers}


def described_topic(found: Any, nodes: Mapping[int, Any]) -> Any:
    """Return the TopicDescription, or the error."""
    if isinstance(found, KafkaError):
        return found
    partitions = [
        TopicPartitionInfo(
            one.partition,
            nodes.get(-1 if one.leader is None else one.leader),  # type: ignore[arg-type]
            [nodes[replica] for replica in one.replicas if replica in nodes],
            [nodes[replica] for replica in one.isr if replica in nodes],
        )
        for one in found.partitions
    ]
    bits = 0 if found.topic_id is None else found.topic_id.int
    uuid = cimpl.Uuid(_signed(bits >> 64), _signed(bits & (1 << 64) - 1))
    return admin.TopicDescription(found.name, uuid, found.is_internal, partitions, operations(found))


def operations(found: Any) -> list[Any] | None:
    """Return the AclOperations of a description, or None if it has none."""
    if found.authorized_operations is None:
        return None
    known = {one.value: one for one in admin.AclOperation}
    return [known[int(one)] for one in sorted(found.authorized_operations) if int(one) in known]


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def resource_of(resource: Any) -> Resource:
    """Return the resource of a ConfigResource. Raise KafkaException if resources of this type have no settings."""
    kind = RESOURCES.get(resource.restype)
    if kind is None:
        raise local_error(KafkaError._INVALID_ARG, f"{resource}: expected a topic, a broker or a group")
    return Resource(kind, resource.name)


def noted(resource: Any, found: Any) -> Any:
    """Return the resource with its error, as AdminClient expects it."""
    resource.error = found if isinstance(found, KafkaError) else None
    return resource


def entries_of(found: Any) -> Any:
    """Return the ConfigEntry objects by name, or None for an error."""
    if isinstance(found, KafkaError):
        return None
    entries = {}
    for name, one in found.items():
        source = SOURCES.get(one.source, admin.ConfigSource.UNKNOWN_CONFIG).value
        entries[name] = admin.ConfigEntry(
            name, one.value, source, one.is_read_only, one.is_default, one.is_sensitive, False, {}
        )
    return entries


def change_of(entry: Any) -> Any:
    """Return the change of a setting. Raise TypeError if the operation or the name is invalid."""
    operation = entry.incremental_operation
    if not isinstance(entry.name, str):
        raise TypeError(f"the name of a setting must be str, not {type(entry.name).__name__}")
    if operation not in OPERATIONS:
        raise TypeError(f"{entry.name}: incremental_operation must be an AlterConfigOpType, not {operation!r}")
    return None if operation is Operation.DELETE else (OPERATIONS[operation], entry.value)


def described_group(found: Any) -> Any:
    """Return the ConsumerGroupDescription, or the error."""
    if isinstance(found, KafkaError):
        return found
    members = [
        admin.MemberDescription(
            one.member_id,
            one.client_id,
            one.client_host,
            admin.MemberAssignment([TopicPartition(*partition) for partition in one.partitions]),
            one.group_instance_id,
        )
        for one in found.members
    ]
    is_simple = found.protocol_type == ""
    state = STATES.get(found.state, ConsumerGroupState.UNKNOWN)
    kind = TYPES.get(found.type, ConsumerGroupType.UNKNOWN)
    return admin.ConsumerGroupDescription(
        found.group_id, is_simple, members, found.protocol, state, None, operations(found), kind
    )


def missing_group(group_id: str) -> Any:
    """Return the ConsumerGroupDescription of a group that does not exist. Old versions of the request report such a
    group as dead, and librdkafka uses these versions."""
    return admin.ConsumerGroupDescription(
        group_id, True, [], "", ConsumerGroupState.DEAD, None, None, ConsumerGroupType.CLASSIC
    )


def listed_offset(found: Any) -> Any:
    """Return the ListOffsetsResultInfo, or the error."""
    if isinstance(found, KafkaError):
        return found
    epoch = -1 if found.leader_epoch is None else found.leader_epoch
    return admin.ListOffsetsResultInfo(found.offset, found.timestamp, epoch)


def deleted_records(found: Any) -> Any:
    """Return the DeletedRecords, or the error."""
    return found if isinstance(found, KafkaError) else admin.DeletedRecords(found)


def incremental_changes(resource: Any) -> dict[str, Any]:
    """Return the changes of a resource by name.

    Raise TypeError or ValueError if a change is invalid. Raise KafkaException if a setting has two changes.
    """
    check_list("incremental_configs", resource.incremental_configs)
    found: dict[str, Any] = {}
    for entry in resource.incremental_configs:
        if not isinstance(entry, admin.ConfigEntry):
            raise TypeError(f"incremental_configs must be a list of ConfigEntry, not of {type(entry).__name__}")
        change = change_of(entry)
        if entry.name in found:
            raise local_error(KafkaError._INVALID_ARG, f"{resource}: {entry.name} is in two entries; remove one")
        found[entry.name] = change
    return found
