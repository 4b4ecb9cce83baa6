# SPDX-License-Identifier: Apache-2.0
"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

Configurations of topics and groups can be changed. Those of the broker are its settings, which are fixed when it
starts, so that all are read-only. Codes and messages are those of Kafka's ConfigHelper and ConfigurationControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kcodec.broker import topic_configs
from kcodec.broker.admin.host import AdminHost
from kcodec.broker.api import Api, ApiError, RequestContext
from kcodec.broker.topics import Topic, check_name
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
# ConfigSource: where a value comes from.
DYNAMIC_TOPIC, STATIC_BROKER, DEFAULT, DYNAMIC_GROUP = 1, 4, 5, 8
# ConfigDef.Type, as numbers of the protocol.
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7

_TYPES = {
    "cleanup.policy": LIST,
    "follower.replication.throttled.replicas": LIST,
    "leader.replication.throttled.replicas": LIST,
    "min.cleanable.dirty.ratio": DOUBLE,
}
#: Topic setting -> the setting of the broker that is its default, where the name is not "log." and that of the topic.
_BROKER_NAMES = {
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "segment.index.bytes": "log.index.size.max.bytes",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
#: Topic settings without one of the broker.
_WITHOUT_BROKER_NAME = {
    *("flush.ms", "follower.replication.throttled.replicas", "leader.replication.throttled.replicas"),
    *("remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable"),
    *("segment.jitter.ms", "segment.ms", "internal.segment.bytes"),
}
#: Setting of the broker in Kafka's words -> field of BrokerSettings.
_BROKER_FIELDS = {
    "auto.create.topics.enable": "auto_create_topics",
    "broker.id": "node_id",
    "fetch.max.bytes": "fetch_max_bytes",
    "group.consumer.assignment.interval.ms": "group_consumer_assignment_interval_ms",
    "group.consumer.heartbeat.interval.ms": "group_consumer_heartbeat_interval_ms",
    "group.consumer.max.size": "group_consumer_max_size",
    "group.consumer.session.timeout.ms": "group_consumer_session_timeout_ms",
    "group.initial.rebalance.delay.ms": "group_initial_rebalance_delay_ms",
    "group.max.session.timeout.ms": "group_max_session_timeout_ms",
    "group.max.size": "group_max_size",
    "group.min.session.timeout.ms": "group_min_session_timeout_ms",
    "max.connections": "max_connections",
    "node.id": "node_id",
    "num.partitions": "default_partitions",
    "offset.metadata.max.bytes": "offset_metadata_max_bytes",
    "offsets.retention.check.interval.ms": "offsets_retention_check_interval_ms",
    "offsets.topic.num.partitions": "offsets_topic_partitions",
    "producer.id.expiration.ms": "producer_id_expiration_ms",
    "socket.request.max.bytes": "max_request_bytes",
    "transaction.max.timeout.ms": "max_transaction_timeout_ms",
    "transaction.partition.verification.enable": "verifies_transactions",
    "transaction.state.log.num.partitions": "transaction_topic_partitions",
    "transactional.id.expiration.ms": "transactional_id_expiration_ms",
}

#: Limits of the rate of replication. One node has no replication; tools delete them after each reassignment.
_THROTTLES = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}

#: Configuration of a group -> field of BrokerSettings with its default, least and greatest value.
_GROUP_FIELDS = {
    "consumer.assignment.interval.ms": ("group_consumer_assignment_interval_ms", 0, 15_000),
    "consumer.heartbeat.interval.ms": ("group_consumer_heartbeat_interval_ms", 100, 15_000),
    "consumer.session.timeout.ms": ("group_consumer_session_timeout_ms", 1_000, 60_000),
}


class ConfigChange(NamedTuple):
    """A change of one configuration."""

    name: str
    operation: int
    value: str | None


class AlteredResource(NamedTuple):
    """The changes of one resource. is_whole: what is not named returns to its default."""

    type: int
    name: str
    changes: Sequence[ConfigChange]
    is_whole: bool


class ConfigApis:
    """The handlers."""

    def __init__(self, host: AdminHost) -> None:
        self._host = host

    def apis(self) -> list[Api]:
        """Return the APIs with their handlers."""
        return [
            Api(messages.DescribeConfigsRequest, (1, 4), self.describe),
            Api(messages.AlterConfigsRequest, (0, 2), self.alter),
            Api(messages.IncrementalAlterConfigsRequest, (0, 1), self.alter_incrementally),
            Api(messages.ListConfigResourcesRequest, (0, 1), self.list_resources),
        ]

    # -------------------------------------------------------------------------------------------------------- describe

    def describe(
        self, context: RequestContext, request: messages.DescribeConfigsRequest
    ) -> messages.DescribeConfigsResponse:
        """Respond to DescribeConfigs."""
        results = []
        for resource in request.resources:
            result = messages.DescribeConfigsResult(
                error_message="", resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            try:
                found = self._configs_of(resource.resource_type, resource.resource_name)
                names = set(resource.configuration_keys or found)
                result.configs = [config for name, config in found.items() if name in names]
                if not request.include_synonyms:
                    for config in result.configs:
                        config.synonyms = []
            except ApiError as error:
                result.error_code, result.error_message = int(error.code), error.message
            results.append(result)
        return messages.DescribeConfigsResponse(results=results)

    def _configs_of(self, kind: int, name: str) -> dict[str, messages.DescribeConfigsResourceResult]:
        if kind == TOPIC:
            check_name(name)
            topic = self._host.topics.get(name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            shown = (key for key in topic_configs.DEFAULTS if key in topic.configs or not key.startswith("internal."))
            return {key: self._topic_config(topic, key) for key in sorted(shown)}
        if kind == BROKER:
            self._check_broker(name, "Unexpected broker id, expected {} or empty string, but received {}")
            return self._broker_configs() if name else {}
        if kind == GROUP:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return {key: self._group_config(name, key) for key in _GROUP_FIELDS}
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")

    def _group_config(self, group_id: str, name: str) -> messages.DescribeConfigsResourceResult:
        own = self._host.topics.group_configs.get(group_id, {})
        default = str(getattr(self._host.settings, _GROUP_FIELDS[name][0]))
        origins = [(name, own[name], DYNAMIC_GROUP)] if name in own else []
        origins.append((f"group.{name}", default, DEFAULT))
        return messages.DescribeConfigsResourceResult(
            name=name,
            value=origins[0][1],
            config_source=origins[0][2],
            synonyms=[messages.DescribeConfigsSynonym(name=a, value=b, source=c) for a, b, c in origins],
            config_type=INT,
        )

    def _topic_config(self, topic: Topic, name: str) -> messages.DescribeConfigsResourceResult:
        origins = []
        broker_name = _broker_name(name)
        if name in topic.configs:
            origins.append((name, topic.configs[name], DYNAMIC_TOPIC))
        if broker_name is not None and name in self._host.settings.topic_defaults:
            origins.append((broker_name, self._host.settings.topic_defaults[name], STATIC_BROKER))
        if broker_name is not None:
            origins.append((broker_name, topic_configs.DEFAULTS[name], DEFAULT))
        source = origins[0][2] if origins else DEFAULT
        return messages.DescribeConfigsResourceResult(
            name=name,
            value=topic.config(name),
            config_source=source,
            synonyms=[messages.DescribeConfigsSynonym(name=a, value=b, source=c) for a, b, c in origins],
            config_type=_type_of(name),
        )

    def _broker_configs(self) -> dict[str, messages.DescribeConfigsResourceResult]:
        found = {name: self._broker_config(name) for name in _BROKER_FIELDS}
        address = f"PLAINTEXT://{self._host.host}:{self._host.port}"
        for name in ("advertised.listeners", "listeners"):
            found[name] = messages.DescribeConfigsResourceResult(
                name=name,
                value=address,
                read_only=True,
                config_source=STATIC_BROKER,
                synonyms=[messages.DescribeConfigsSynonym(name=name, value=address, source=STATIC_BROKER)],
                config_type=LIST,
            )
        return {name: found[name] for name in sorted(found)}

    def _broker_config(self, name: str) -> messages.DescribeConfigsResourceResult:
        value: bool | int = getattr(self._host.settings, _BROKER_FIELDS[name])
        is_boolean = isinstance(value, bool)
        text = str(value).lower()
        is_long = name.endswith(".ms") and "transaction" not in name and "group" not in name
        return messages.DescribeConfigsResourceResult(
            name=name,
            value=text,
            read_only=True,
            config_source=STATIC_BROKER,
            synonyms=[messages.DescribeConfigsSynonym(name=name, value=text, source=STATIC_BROKER)],
            config_type=BOOLEAN if is_boolean else LONG if is_long else INT,
        )

    def _check_broker(self, name: str, text: str) -> None:
        if name and not name.lstrip("-").isdecimal():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
        if name and int(name) != self._host.settings.node_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, text.format(self._host.settings.node_id, name))

    def list_resources(
        self, context: RequestContext, request: messages.ListConfigResourcesRequest
    ) -> messages.ListConfigResourcesResponse:
        """Respond to ListConfigResources. Version 0 lists client metrics, of which there are none."""
        listed = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)
        wanted = request.resource_types or listed if context.api_version else [CLIENT_METRICS]
        if not set(wanted) <= set(listed):
            return messages.ListConfigResourcesResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        node = str(self._host.settings.node_id)
        names = {
            GROUP: list(self._host.topics.group_configs),
            BROKER_LOGGER: [node],
            BROKER: [node],
            TOPIC: self._host.topics.names(),
        }
        resources = [
            messages.ListedConfigResource(resource_name=name, resource_type=kind)
            for kind in listed
            if kind in wanted
            for name in names.get(kind, ())
        ]
        return messages.ListConfigResourcesResponse(config_resources=resources)

    # ----------------------------------------------------------------------------------------------------------- alter

    def alter(self, context: RequestContext, request: messages.AlterConfigsRequest) -> messages.AlterConfigsResponse:
        """Respond to AlterConfigs: replace all configurations of resources."""
        resources = [
            AlteredResource(
                one.resource_type,
                one.resource_name,
                [ConfigChange(config.name, SET, config.value) for config in one.configs],
                is_whole=True,
            )
            for one in request.resources
        ]
        return messages.AlterConfigsResponse(responses=self._alter_all(resources, validate_only=request.validate_only))

    def alter_incrementally(
        self, context: RequestContext, request: messages.IncrementalAlterConfigsRequest
    ) -> messages.IncrementalAlterConfigsResponse:
        """Respond to IncrementalAlterConfigs."""
        resources = [
            AlteredResource(
                one.resource_type,
                one.resource_name,
                [ConfigChange(config.name, config.config_operation, config.value) for config in one.configs],
                is_whole=False,
            )
            for one in request.resources
        ]
        responses = self._alter_all(resources, validate_only=request.validate_only)
        return messages.IncrementalAlterConfigsResponse(responses=responses)

    def _alter_all(
        self, resources: Sequence[AlteredResource], *, validate_only: bool
    ) -> list[messages.AlterConfigsResourceResponse]:
        counts = Counter((resource.type, resource.name) for resource in resources)
        responses = []
        for resource in resources:
            response = messages.AlterConfigsResourceResponse(
                error_message=None, resource_type=resource.type, resource_name=resource.name
            )
            try:
                if counts[resource.type, resource.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                self._alter_one(resource, validate_only=validate_only)
            except ApiError as error:
                response.error_code, response.error_message = int(error.code), error.message
            responses.append(response)
        return responses

    def _alter_one(self, resource: AlteredResource, *, validate_only: bool) -> None:
        names = [change.name for change in resource.changes]
        if len(set(names)) < len(names):
            raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        missing = [change.name for change in resource.changes if change.value is None and change.operation != DELETE]
        if missing:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")
        if resource.type == BROKER:
            self._check_broker(resource.name, "Unexpected broker id, expected {}, but received {}")
            fixed = [one.name for one in resource.changes if one.name not in _THROTTLES or one.operation != DELETE]
            if fixed:
                text = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
            return
        if resource.type == GROUP:
            before = {} if resource.is_whole else self._host.topics.group_configs.get(resource.name, {})
            configs = changed_group_configs(before, resource.changes)
            if not validate_only:
                self._host.topics.set_group_configs(resource.name, configs)
            return
        if resource.type != TOPIC:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.type}")
        topic = self._host.topics.get(resource.name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist.")
        configs = changed_configs({} if resource.is_whole else topic.configs, resource.changes, topic.config)
        for name, value in configs.items():
            topic_configs.check(name, value)
        if not validate_only:
            self._host.topics.set_configs(topic, configs)


def changed_configs(
    before: Mapping[str, str], changes: Sequence[ConfigChange], present: Callable[[str], str]
) -> dict[str, str]:
    """Return the configurations of a topic after changes. present: gives the value that a list is changed from."""
    configs = dict(before)
    for name, operation, value in changes:
        if name not in topic_configs.DEFAULTS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if operation == DELETE:
            configs.pop(name, None)
        elif operation == SET:
            configs[name] = value or ""
        elif operation in (APPEND, SUBTRACT):
            if _type_of(name) != LIST:
                verb = "APPEND" if operation == APPEND else "SUBTRACT"
                text = f"Can't {verb} to key {name} because its type is not LIST."
                raise ApiError(ErrorCode.INVALID_CONFIG, text)
            items = _items(configs.get(name, present(name)))
            named = _items(value or "")
            if operation == APPEND:
                items += [item for item in named if item not in items]
            else:
                items = [item for item in items if item not in named]
            configs[name] = ",".join(items)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} for {name}")
    return configs


def changed_group_configs(before: Mapping[str, str], changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Return the configurations of a group after changes. Raise ApiError (INVALID_CONFIG, INVALID_REQUEST)."""
    configs = dict(before)
    for name, operation, value in changes:
        if name not in _GROUP_FIELDS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        if operation == DELETE:
            configs.pop(name, None)
            continue
        if operation != SET:
            text = f"Can't append to or subtract from key {name} because its type is not LIST."
            raise ApiError(ErrorCode.INVALID_CONFIG, text)
        least, most = _GROUP_FIELDS[name][1:]
        if value is None or not value.isdecimal() or not least <= int(value) <= most:
            text = f"Invalid value {value} for configuration {name}: Value must be between {least} and {most}"
            raise ApiError(ErrorCode.INVALID_CONFIG, text)
        configs[name] = value
    return configs


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def _broker_name(name: str) -> str | None:
    if name in _WITHOUT_BROKER_NAME:
        return None
    return _BROKER_NAMES.get(name, f"log.{name}")


def _type_of(name: str) -> int:
    if name in _TYPES:
        return _TYPES[name]
    if topic_configs.DEFAULTS[name] in ("true", "false"):
        return BOOLEAN
    if name in topic_configs.RANGES:
        return LONG if topic_configs.RANGES[name][1] >> 31 else INT
    return STRING
