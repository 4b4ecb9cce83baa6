# SPDX-License-Identifier: Apache-2.0
"""Metadata, FindCoordinator, CreateTopics and DeleteTopics."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from kcodec.broker.admin.cluster import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from kcodec.broker.admin.host import AdminHost
from kcodec.broker.api import Api, ApiError, RequestContext
from kcodec.broker.settings import BrokerSettings
from kcodec.broker.topics import INTERNAL_TOPICS, Topic, check_name
from kcodec.constants import CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

NO_ID = UUID(int=0)
_KEYS_VERSION = 4
_NULL_NAME_VERSION = 12
GROUP_KEY, TRANSACTION_KEY = 0, 1
_TOPIC_CONFIG = 1


class ClusterApis:
    """The handlers of these APIs."""

    def __init__(self, host: AdminHost) -> None:
        self._host = host
        self._topics = host.topics
        self._settings = host.settings

    def apis(self) -> list[Api]:
        """Return the APIs with their handlers."""
        return [
            Api(messages.MetadataRequest, (0, 13), self.metadata),
            Api(messages.FindCoordinatorRequest, (0, 5), self.find_coordinator),
            Api(messages.CreateTopicsRequest, (2, 7), self.create_topics),
            Api(messages.DeleteTopicsRequest, (1, 6), self.delete_topics),
        ]

    # Metadata

    def metadata(self, context: RequestContext, request: messages.MetadataRequest) -> messages.MetadataResponse:
        """Respond to Metadata. Create missing topics if the request and the settings allow it."""
        node, listener = self._settings.node_id, context.connection.listener
        wants_all = request.topics is None or (context.api_version == 0 and not request.topics)
        if wants_all:
            found = [self._described(request, topic) for topic in self._topics]
        else:
            found = [self._requested(context, request, one) for one in request.topics or ()]
        response = messages.MetadataResponse(
            brokers=[messages.MetadataResponseBroker(node_id=node, host=listener.host, port=listener.port)],
            cluster_id=self._settings.cluster_id,
            controller_id=node,
            topics=found,
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def _requested(
        self, context: RequestContext, request: messages.MetadataRequest, wanted: messages.MetadataRequestTopic
    ) -> messages.MetadataResponseTopic:
        if wanted.name is None:
            topic = self._topics.by_id(wanted.topic_id)
            if topic is None:
                name = None if context.api_version >= _NULL_NAME_VERSION else ""
                return messages.MetadataResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=wanted.topic_id
                )
            return self._described(request, topic)
        is_internal = wanted.name in INTERNAL_TOPICS
        try:
            topic = self._topics.get(wanted.name)
            if topic is None:
                check_name(wanted.name)
                may_create = request.allow_auto_topic_creation and self._settings.auto_create_topics
                if not may_create or wanted.name == CLUSTER_METADATA_TOPIC:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                if is_internal:
                    self._topics.create_internal(wanted.name)
                else:
                    self._topics.create(wanted.name, self._settings.default_partitions)
                # Kafka's DefaultAutoTopicCreationManager responds before the controller has created the topic.
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        except ApiError as error:
            found = messages.MetadataResponseTopic(error_code=error.code, name=wanted.name, is_internal=is_internal)
            if request.include_topic_authorized_operations:
                found.topic_authorized_operations = TOPIC_OPERATIONS
            return found
        return self._described(request, topic)

    def _described(self, request: messages.MetadataRequest, topic: Topic) -> messages.MetadataResponseTopic:
        node = self._settings.node_id
        described = messages.MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=[
                messages.MetadataResponsePartition(
                    partition_index=partition.number,
                    leader_id=node,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=[node],
                    isr_nodes=[node],
                )
                for partition in topic.partitions
            ],
        )
        if request.include_topic_authorized_operations:
            described.topic_authorized_operations = TOPIC_OPERATIONS
        return described

    # FindCoordinator

    def find_coordinator(
        self, context: RequestContext, request: messages.FindCoordinatorRequest
    ) -> messages.FindCoordinatorResponse:
        """Respond to FindCoordinator, and create the topic of the coordinator."""
        if context.api_version >= _KEYS_VERSION:
            return messages.FindCoordinatorResponse(
                coordinators=[self._coordinator(context, request.key_type, key) for key in request.coordinator_keys]
            )
        found = self._coordinator(context, request.key_type if context.api_version else GROUP_KEY, request.key)
        response = messages.FindCoordinatorResponse(
            error_code=found.error_code, node_id=found.node_id, host=found.host, port=found.port
        )
        if context.api_version:
            response.error_message = found.error_message
        return response

    def _coordinator(self, context: RequestContext, key_type: int, key: str) -> messages.Coordinator:
        topic = {GROUP_KEY: CONSUMER_OFFSETS_TOPIC, TRANSACTION_KEY: TRANSACTION_STATE_TOPIC}.get(key_type)
        if topic is None:
            return messages.Coordinator(key=key, node_id=-1, port=-1, error_code=ErrorCode.INVALID_REQUEST)
        self._topics.create_internal(topic)
        node, listener = self._settings.node_id, context.connection.listener
        return messages.Coordinator(key=key, node_id=node, host=listener.host, port=listener.port, error_message="")

    # Creation and deletion

    def create_topics(
        self, context: RequestContext, request: messages.CreateTopicsRequest
    ) -> messages.CreateTopicsResponse:
        """Respond to CreateTopics."""
        counts = Counter(topic.name for topic in request.topics)
        results = []
        for name, wanted in {topic.name: topic for topic in request.topics}.items():  # one result for equal names
            if counts[name] > 1:
                results.append(_not_created(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
            else:
                results.append(self._created(wanted, validate_only=request.validate_only))
        return messages.CreateTopicsResponse(topics=results)

    def _created(self, wanted: messages.CreatableTopic, *, validate_only: bool) -> messages.CreatableTopicResult:
        try:
            self._topics.check_new_name(wanted.name)
            partitions = self._partitions_of(wanted)
            configs = {}
            for one in wanted.configs:
                if one.value is None:
                    raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {one.name}")
                configs[one.name] = one.value
            self._topics.check_new(wanted.name, partitions, configs)
            topic_id = NO_ID if validate_only else self._topics.create(wanted.name, partitions, configs).id
        except ApiError as error:
            return _not_created(wanted.name, error.code, error.message)
        return messages.CreatableTopicResult(
            name=wanted.name,
            topic_id=topic_id,
            error_message=None,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                messages.CreatableTopicConfigs(name=name, value=value, config_source=_TOPIC_CONFIG)
                for name, value in configs.items()
            ],
        )

    def _partitions_of(self, wanted: messages.CreatableTopic) -> int:
        """Return the number of partitions of a new topic. Raise ApiError if a replica is not on this node."""
        if wanted.assignments:
            if wanted.num_partitions != -1 or wanted.replication_factor != -1:
                reason = "A manual partition assignment was specified, but numPartitions or replicationFactor as well."
                raise ApiError(ErrorCode.INVALID_REQUEST, reason)
            numbers = sorted(one.partition_index for one in wanted.assignments)
            is_here = all(one.broker_ids == [self._settings.node_id] for one in wanted.assignments)
            if numbers != list(range(len(numbers))) or not is_here:
                raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "this node is the only one")
            return len(numbers)
        if wanted.replication_factor not in (-1, 1):
            reason = (
                f"Unable to replicate the partition {wanted.replication_factor} time(s): "
                "The target replication factor of "
                f"{wanted.replication_factor} cannot be reached because only 1 broker(s) are registered."
            )
            raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
        return self._settings.default_partitions if wanted.num_partitions == -1 else wanted.num_partitions

    def delete_topics(
        self, context: RequestContext, request: messages.DeleteTopicsRequest
    ) -> messages.DeleteTopicsResponse:
        """Respond to DeleteTopics, by name or by id."""
        by_state = context.api_version >= 6
        wanted: list[tuple[str | None, UUID]] = [(name, NO_ID) for name in request.topic_names]
        if by_state:
            wanted = [(one.name, one.topic_id) for one in request.topics]
        return messages.DeleteTopicsResponse(responses=[self._deleted(*one) for one in wanted])

    def _deleted(self, name: str | None, topic_id: UUID) -> messages.DeletableTopicResult:
        topic = self._topics.by_id(topic_id) if name is None else self._topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            reason = f"This server does not host this {'topic ID' if name is None else 'topic-partition'}."
            return messages.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=reason)
        result = messages.DeletableTopicResult(name=topic.name, topic_id=topic.id)
        try:
            self._topics.delete(topic)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        return result


def _not_created(name: str, code: ErrorCode, message: str) -> messages.CreatableTopicResult:
    return messages.CreatableTopicResult(name=name, error_code=code, error_message=message, configs=[])


def features_of(settings: BrokerSettings) -> dict[str, Any]:
    """Return the fields of an ApiVersions response about features."""
    features = {"transaction.version": (2, settings.transaction_version)}  # the highest level, and the current one
    if settings.group_version:
        features["group.version"] = (1, 1)
    supported = [
        messages.SupportedFeatureKey(name=name, min_version=0, max_version=most) for name, (most, _) in features.items()
    ]
    finalized = [
        messages.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, (_, level) in features.items()
        if level
    ]
    return {"supported_features": supported, "finalized_features": finalized, "finalized_features_epoch": 1}
