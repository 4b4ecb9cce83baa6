# SPDX-License-Identifier: Apache-2.0
"""Requests of administration with valid and invalid fields, and the parts of their responses that must be equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kcodec.constants import CLUSTER_METADATA_TOPIC
from kcodec.protocol import messages

TOPIC, BROKER, UNKNOWN = 2, 4, 77
ABSENT = "admin-absent"
_Change = messages.IncrementalAlterableConfig


def changes(topic: str) -> Iterator[tuple[str, int, list[Any]]]:
    """Changes of configurations: resource name, type and changes."""
    yield ABSENT, TOPIC, [_Change(name="retention.ms", config_operation=0, value="1")]
    for name, operation, value in (
        ("nope", 0, "1"),
        ("retention.ms", 0, "x"),
        ("retention.ms", 2, "1"),
        ("retention.ms", 0, None),
        ("cleanup.policy", 2, "foo"),
        ("retention.ms", 0, "86400000"),
        ("cleanup.policy", 2, "compact"),
        ("cleanup.policy", 3, "delete"),
        ("retention.ms", 1, None),
    ):
        yield topic, TOPIC, [_Change(name=name, config_operation=operation, value=value)]
    yield topic, TOPIC, [_Change(name="retention.ms", value="1"), _Change(name="retention.ms", value="2")]
    yield "1", BROKER, [_Change(name="node.id", value="2")]
    yield "1", BROKER, [_Change(name="leader.replication.throttled.rate", config_operation=1, value=None)]
    yield "9", BROKER, [_Change(name="node.id", value="2")]
    yield "1", UNKNOWN, [_Change(name="node.id", value="2")]


def requests(topic: str) -> Iterator[tuple[Any, int]]:
    """Requests with their versions. They change the configurations of `topic` and add partitions to it."""
    change = messages.IncrementalAlterConfigsResource
    for name, kind, altered in changes(topic):
        yield (
            messages.IncrementalAlterConfigsRequest(
                resources=[change(resource_type=kind, resource_name=name, configs=altered)]
            ),
            1,
        )
        yield described(TOPIC, topic, ["retention.ms", "cleanup.policy"], with_synonyms=True)
    twice = change(resource_type=TOPIC, resource_name=topic, configs=[])
    yield messages.IncrementalAlterConfigsRequest(resources=[twice, twice]), 1
    whole, value = messages.AlterConfigsResource, messages.AlterableConfig
    for name, configs in (
        (topic, [value(name="retention.ms", value=None)]),
        (topic, [value(name="nope", value="1")]),
        (ABSENT, []),
        (topic, [value(name="segment.ms", value="5")]),
        (topic, []),
    ):
        yield (
            messages.AlterConfigsRequest(resources=[whole(resource_type=TOPIC, resource_name=name, configs=configs)]),
            2,
        )
        yield described(TOPIC, topic, ["segment.ms", "retention.ms"])
    for kind, name in ((TOPIC, ABSENT), (TOPIC, ""), (BROKER, "9"), (BROKER, "x")):
        yield described(kind, name, None)
    yield from of_partitions(topic)
    for endpoint in (2, 3):
        yield messages.DescribeClusterRequest(endpoint_type=endpoint), 2
    elected = messages.ElectLeadersTopicPartitions(topic=topic, partitions=[0, 999])
    yield messages.ElectLeadersRequest(topic_partitions=[elected]), 2
    yield messages.ListPartitionReassignmentsRequest(), 0
    yield from of_replicas(topic)
    yield messages.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1), 3


def described(kind: int, name: str, keys: list[str] | None, *, with_synonyms: bool = False) -> tuple[Any, int]:
    """DescribeConfigs of one resource."""
    resource = messages.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return messages.DescribeConfigsRequest(resources=[resource], include_synonyms=with_synonyms), 4


def of_partitions(topic: str) -> Iterator[tuple[Any, int]]:
    """CreatePartitions and DescribeTopicPartitions."""
    grown, assigned = messages.CreatePartitionsTopic, messages.CreatePartitionsAssignment
    for name, count, brokers in (
        (topic, 2, None),
        (topic, 3, None),
        (ABSENT, 3, None),
        (topic, 5, [1]),
        (topic, 4, [9]),
        (topic, 5, None),
    ):
        assignments = None if brokers is None else [assigned(broker_ids=[one]) for one in brokers]
        for only_validates in (True, False):
            yield (
                messages.CreatePartitionsRequest(
                    topics=[grown(name=name, count=count, assignments=assignments)],
                    timeout_ms=5000,
                    validate_only=only_validates,
                ),
                3,
            )
    both = [grown(name=topic, count=count, assignments=None) for count in (7, 8)]
    yield messages.CreatePartitionsRequest(topics=both, timeout_ms=5000), 3
    names = [messages.DescribeTopicPartitionsTopic(name=name) for name in (topic, ABSENT, topic)]
    for cursor in (None, messages.Cursor(topic_name=topic, partition_index=3)):
        yield messages.DescribeTopicPartitionsRequest(topics=names, response_partition_limit=3, cursor=cursor), 0


def of_replicas(topic: str) -> Iterator[tuple[Any, int]]:
    """Reassignments, moves to another log directory, and the quorum."""
    moved = [
        messages.ReassignablePartition(partition_index=number, replicas=replicas)
        for number, replicas in ((0, [1]), (1, None), (1, []), (1, [1, 1]), (1, [7]), (1, [-2]), (999, [1]))
    ]
    for name in (topic, ABSENT):
        for one in moved:
            changed = messages.ReassignableTopic(name=name, partitions=[one])
            yield messages.AlterPartitionReassignmentsRequest(topics=[changed]), 1
    replicas = messages.AlterReplicaLogDirTopic(name=topic, partitions=[0, 999])
    elsewhere = messages.AlterReplicaLogDir(path="/no/such/directory", topics=[replicas])
    yield messages.AlterReplicaLogDirsRequest(dirs=[elsewhere]), 2
    for name, number in ((CLUSTER_METADATA_TOPIC, 0), (CLUSTER_METADATA_TOPIC, 1), (ABSENT, 0)):
        asked = messages.DescribeQuorumRequestTopic(
            topic_name=name, partitions=[messages.DescribeQuorumRequestPartition(partition_index=number)]
        )
        yield messages.DescribeQuorumRequest(topics=[asked]), 1
    for kinds in ([BROKER], [16], [64], []):
        yield messages.ListConfigResourcesRequest(resource_types=kinds), 1


def shared(response: Any) -> Any:
    """Return the parts of a response that must be equal: all except ids, addresses and defaults of the cluster."""
    match response:
        case messages.DescribeConfigsResponse():
            return [
                (
                    one.error_code,
                    one.error_message,
                    sorted((c.name, c.value, c.config_type, c.config_source == 1) for c in one.configs),
                )
                for one in response.results
            ]
        case messages.DescribeTopicPartitionsResponse():
            found = [(one.error_code, one.name, one.partitions) for one in response.topics]
            return found, response.next_cursor
        case messages.DescribeQuorumResponse():
            return response.error_code, [
                (
                    one.topic_name,
                    [
                        (p.partition_index, p.error_code, p.leader_id, [v.replica_id for v in p.current_voters])
                        for p in one.partitions
                    ],
                )
                for one in response.topics
            ]
        case messages.AlterReplicaLogDirsResponse():  # Kafka returns them in the order of a hash table
            return [
                (one.topic_name, sorted((p.partition_index, p.error_code) for p in one.partitions))
                for one in response.results
            ]
        case messages.ListConfigResourcesResponse():
            listed = [(one.resource_type, one.resource_name) for one in response.config_resources]
            return response.error_code, sorted(one for one in listed if one[0] in (BROKER, 8))
    return response
