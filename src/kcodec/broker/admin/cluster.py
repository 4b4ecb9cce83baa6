# SPDX-License-Identifier: Apache-2.0
"""CreatePartitions, DescribeTopicPartitions and DescribeCluster."""

from __future__ import annotations

from collections import Counter

from kcodec.broker.admin.host import AdminHost
from kcodec.broker.admin.replicas import check_replicas
from kcodec.broker.api import Api, ApiError, RequestContext
from kcodec.broker.topics import MOST_PARTITIONS, Partition
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

#: All operations that the cluster and a topic have, as bits. The authorizer removes those that are not allowed.
CLUSTER_OPERATIONS = 8096
TOPIC_OPERATIONS = 3576
BROKERS, CONTROLLERS = 1, 2


class ClusterAdminApis:
    """The handlers of these APIs."""

    def __init__(self, host: AdminHost) -> None:
        self._host = host

    def apis(self) -> list[Api]:
        """Return the APIs with their handlers."""
        return [
            Api(messages.CreatePartitionsRequest, (0, 3), self.create_partitions),
            Api(messages.DescribeTopicPartitionsRequest, (0, 0), self.describe_partitions),
            Api(messages.DescribeClusterRequest, (0, 2), self.describe_cluster),
        ]

    # Partitions

    def create_partitions(
        self, context: RequestContext, request: messages.CreatePartitionsRequest
    ) -> messages.CreatePartitionsResponse:
        """Respond to CreatePartitions."""
        counts = Counter(one.name for one in request.topics)
        results = []
        for wanted in {one.name: one for one in request.topics}.values():
            result = messages.CreatePartitionsTopicResult(name=wanted.name)
            try:
                if counts[wanted.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                self._add_partitions(wanted, validate_only=request.validate_only)
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message or None
            results.append(result)
        return messages.CreatePartitionsResponse(results=results)

    def _add_partitions(self, wanted: messages.CreatePartitionsTopic, *, validate_only: bool) -> None:
        topic = self._host.topics.get(wanted.name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        present = len(topic.partitions)
        if wanted.count == present:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
        if wanted.count < present:
            text = (
                f"The topic {topic.name} currently has {present} partition(s); {wanted.count} would not be an increase."
            )
            raise ApiError(ErrorCode.INVALID_PARTITIONS, text)
        if wanted.count > MOST_PARTITIONS:
            text = f"The topic {topic.name} may have {MOST_PARTITIONS} partitions at most, not {wanted.count}."
            raise ApiError(ErrorCode.INVALID_PARTITIONS, text)
        if wanted.assignments is not None:
            self._check_assignments(wanted.assignments, wanted.count - present)
        if not validate_only:
            self._host.topics.add_partitions(topic, wanted.count)

    def _check_assignments(self, assignments: list[messages.CreatePartitionsAssignment], added: int) -> None:
        if len(assignments) != added:
            text = (
                f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) were "
                "specified."
            )
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        for one in assignments:
            check_replicas(one.broker_ids, self._host.settings.node_id)

    def describe_partitions(
        self, context: RequestContext, request: messages.DescribeTopicPartitionsRequest
    ) -> messages.DescribeTopicPartitionsResponse:
        """Respond to DescribeTopicPartitions. Topics are in the order of their names.

        A response has a limited number of partitions, and a cursor from which the next request continues.
        """
        wanted = {one.name for one in request.topics} or set(self._host.topics.names())
        first_name, first = "", 0
        if request.cursor is not None:
            first_name, first = request.cursor.topic_name, request.cursor.partition_index
        left = request.response_partition_limit
        response = messages.DescribeTopicPartitionsResponse()
        for name in sorted(one for one in wanted if one >= first_name):
            topic = self._host.topics.get(name)
            begin = first if name == first_name else 0
            if left <= 0:
                response.next_cursor = messages.Cursor(topic_name=name, partition_index=begin)
                break
            found = messages.DescribeTopicPartitionsResponseTopic(
                name=name, topic_authorized_operations=TOPIC_OPERATIONS
            )
            response.topics.append(found)
            if topic is None:
                found.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            found.topic_id, found.is_internal = topic.id, topic.is_internal
            found.partitions = [self._described(one) for one in topic.partitions[begin : begin + left]]
            left -= len(found.partitions)
            if begin + len(found.partitions) < len(topic.partitions):
                next_partition = begin + len(found.partitions)
                response.next_cursor = messages.Cursor(topic_name=name, partition_index=next_partition)
                break
        return response

    def _described(self, partition: Partition) -> messages.DescribeTopicPartitionsResponsePartition:
        node = self._host.settings.node_id
        return messages.DescribeTopicPartitionsResponsePartition(
            partition_index=partition.number,
            leader_id=node,
            leader_epoch=partition.leader_epoch,
            replica_nodes=[node],
            isr_nodes=[node],
            eligible_leader_replicas=[],
            last_known_elr=[],
        )

    # Cluster

    def describe_cluster(
        self, context: RequestContext, request: messages.DescribeClusterRequest
    ) -> messages.DescribeClusterResponse:
        """Respond to DescribeCluster."""
        if request.endpoint_type != BROKERS:
            code, text = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}"
            if request.endpoint_type == CONTROLLERS:
                code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
                text = (
                    "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
                )
            return messages.DescribeClusterResponse(error_code=code, error_message=text)
        settings, listener = self._host.settings, context.connection.listener
        broker = messages.DescribeClusterBroker(broker_id=settings.node_id, host=listener.host, port=listener.port)
        response = messages.DescribeClusterResponse(
            cluster_id=settings.cluster_id, controller_id=settings.node_id, brokers=[broker]
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response
