# SPDX-License-Identifier: Apache-2.0
"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

Configurations of topics and groups can be changed. The configurations of the broker are its settings. They are
read-only, because they are fixed when the broker starts. Codes and messages are those of Kafka's ConfigHelper and
ConfigurationControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kcodec.broker import topic_configs
from kcodec.broker.admin.host import AdminHost
from kcodec.broker.api import Api, ApiError, RequestContext
from kcodec.broker.topic_configs import BOOLEAN, INT, LIST, LONG, items_of
from kcodec.broker.topics import GROUP, TOPIC, Topic, check_name
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import Response

BROKER, BROKER_LOGGER, CLIENT_METRICS = 4, 8, 16
SET, DELETE, APPEND, SUBTRACT = range(4)
# ConfigSource: where a value comes from.
DYNAMIC_TOPIC, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT, DYNAMIC_GROUP = 1, 3, 4, 5, 8
#: The controller of Kafka stores this setting for all brokers when it starts (KIP-966), from Kafka 4.1 on.
_STORED = "min.insync.replicas"
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


class ConfigApis:
    """The handlers of these APIs."""

    def __init__(self, host: AdminHost) -> None:
        self._host = host

    def apis(self) -> list[Api]:
        """Return the APIs with their handlers."""
        return [
            Api(messages.DescribeConfigsRequest, (1, 4), self.describe),
            Api(messages.AlterConfigsRequest, (0, 2), self.alter),
            Api(messages.IncrementalAlterConfigsRequest, (0, 1), self.alter),
            Api(messages.ListConfigResourcesRequest, (0, 1), self.list_resources),
        ]

    # Describe

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
                result.error_code, result.error_message = error.code, error.message
            results.append(result)
        return messages.DescribeConfigsResponse(results=results)

    def _configs_of(self, kind: int, name: str) -> dict[str, messages.DescribeConfigsResourceResult]:
        if kind == TOPIC:
            check_name(name)
            topic = self._host.topics.get(name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            shown = (key for key in topic_configs.CONFIGS if key in topic.configs or not key.startswith("internal."))
            return {key: self._topic_config(topic, key) for key in sorted(shown)}
        if kind == BROKER:
            self._check_broker(name, "Unexpected broker id, expected {} or empty string, but received {}")
            return self._broker_configs() if name else {_STORED: self._stored_config()}
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
        return _described(name, own.get(name, default), INT, origins)

    def _topic_config(self, topic: Topic, name: str) -> messages.DescribeConfigsResourceResult:
        origins = []
        known, defaults = topic_configs.CONFIGS[name], self._host.settings.topic_defaults
        if name in topic.configs:
            origins.append((name, topic.configs[name], DYNAMIC_TOPIC))
        if name == _STORED:
            origins.append((name, defaults.get(name, known.default), DYNAMIC_DEFAULT_BROKER))
        if known.broker_name is not None and name in defaults:
            origins.append((known.broker_name, defaults[name], STATIC_BROKER))
        if known.broker_name is not None:
            origins.append((known.broker_name, known.default, DEFAULT))
        return _described(name, topic.config(name), known.type, origins)

    def _stored_config(self) -> messages.DescribeConfigsResourceResult:
        known = topic_configs.CONFIGS[_STORED]
        value = self._host.settings.topic_defaults.get(_STORED, known.default)
        return _described(_STORED, value, known.type, [(_STORED, value, DYNAMIC_DEFAULT_BROKER)])

    def _broker_configs(self) -> dict[str, messages.DescribeConfigsResourceResult]:
        listeners = ",".join(f"{one.protocol}://{one.address}" for one in self._host.listeners)
        found: dict[str, tuple[str, int]] = dict.fromkeys(("advertised.listeners", "listeners"), (listeners, LIST))
        for name, setting in _BROKER_FIELDS.items():
            value: bool | int = getattr(self._host.settings, setting)
            is_long = name.endswith(".ms") and "transaction" not in name and "group" not in name
            kind = BOOLEAN if isinstance(value, bool) else LONG if is_long else INT
            found[name] = (str(value).lower(), kind)
        described = {
            name: _described(name, value, kind, [(name, value, STATIC_BROKER)], read_only=True)
            for name, (value, kind) in found.items()
        }
        return dict(sorted({**described, _STORED: self._stored_config()}.items()))

    def _check_broker(self, name: str, text: str) -> None:
        if name and not name.lstrip("-").isdecimal():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
        if name and int(name) != self._host.settings.node_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, text.format(self._host.settings.node_id, name))

    def list_resources(
        self, context: RequestContext, request: messages.ListConfigResourcesRequest
    ) -> messages.ListConfigResourcesResponse:
        """Respond to ListConfigResources. Version 0 lists only client metrics, which this broker does not have."""
        listed = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)
        wanted = request.resource_types or listed if context.api_version else [CLIENT_METRICS]
        if not set(wanted) <= set(listed):
            return messages.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
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

    # Alter

    def alter(
        self, context: RequestContext, request: messages.AlterConfigsRequest | messages.IncrementalAlterConfigsRequest
    ) -> Response:
        """Respond to AlterConfigs and IncrementalAlterConfigs. AlterConfigs resets each setting that it does not
        name."""
        is_whole = isinstance(request, messages.AlterConfigsRequest)
        counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
        responses = []
        for resource in request.resources:
            kind, name = resource.resource_type, resource.resource_name
            response = messages.AlterConfigsResourceResponse(error_message=None, resource_type=kind, resource_name=name)
            changes = changes_of(resource)
            try:
                if counts[kind, name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                self._alter_one(kind, name, changes, is_whole=is_whole, validate_only=request.validate_only)
            except ApiError as error:
                response.error_code, response.error_message = error.code, error.message
            responses.append(response)
        if is_whole:
            return messages.AlterConfigsResponse(responses=responses)
        return messages.IncrementalAlterConfigsResponse(responses=responses)

    def _alter_one(
        self, kind: int, name: str, changes: Sequence[ConfigChange], *, is_whole: bool, validate_only: bool
    ) -> None:
        check_changes(changes)
        if kind == BROKER:
            self._check_broker(name, "Unexpected broker id, expected {}, but received {}")
            fixed = [one.name for one in changes if one.name not in _THROTTLES or one.operation != DELETE]
            if fixed:
                text = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
        elif kind == GROUP:
            before = {} if is_whole else self._host.topics.group_configs.get(name, {})
            configs = changed_group_configs(before, changes)
            if not validate_only:
                self._host.topics.set_group_configs(name, configs)
        elif kind == TOPIC:
            topic = self._host.topics.get(name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            configs = changed_configs({} if is_whole else topic.configs, changes, topic.config)
            for key, value in configs.items():
                topic_configs.check(key, value)
            if not validate_only:
                self._host.topics.set_configs(topic, configs)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def changes_of(
    resource: messages.AlterConfigsResource | messages.IncrementalAlterConfigsResource,
) -> list[ConfigChange]:
    """Return the changes of a resource. AlterConfigs has no operations."""
    return [ConfigChange(one.name, getattr(one, "config_operation", SET), one.value) for one in resource.configs]


def check_changes(changes: Sequence[ConfigChange]) -> None:
    """Raise ApiError (INVALID_REQUEST) if a configuration is named twice or has no value (ConfigAdminManager)."""
    if len({change.name for change in changes}) < len(changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    missing = [change.name for change in changes if change.value is None and change.operation != DELETE]
    if missing:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")


def changed_configs(
    before: Mapping[str, str], changes: Sequence[ConfigChange], present: Callable[[str], str]
) -> dict[str, str]:
    """Return the configurations of a topic after changes.

    present: Function that returns the present value of a list, to which APPEND and SUBTRACT apply.
    """
    configs = dict(before)
    for name, operation, value in changes:
        if name not in topic_configs.CONFIGS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if operation == DELETE:
            configs.pop(name, None)
        elif operation == SET:
            configs[name] = without_repeats(name, value or "")
        elif operation in (APPEND, SUBTRACT):
            if topic_configs.CONFIGS[name].type != LIST:
                verb = "APPEND" if operation == APPEND else "SUBTRACT"
                text = f"Can't {verb} to key {name} because its type is not LIST."
                raise ApiError(ErrorCode.INVALID_CONFIG, text)
            items = items_of(configs.get(name, present(name)))
            named = items_of(value or "")
            if operation == APPEND:
                items += [item for item in named if item not in items]
            else:
                items = [item for item in items if item not in named]
            configs[name] = ",".join(items)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} for {name}")
    return configs


def without_repeats(name: str, value: str) -> str:
    """Return the value of a setting. In a list, each item stays once, unless the list has empty items, which `check`
    refuses."""
    known = topic_configs.CONFIGS[name]
    if known.type != LIST or not known.choices or len(items_of(value)) < value.count(",") + 1:
        return value
    return ",".join(dict.fromkeys(items_of(value)))


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


def _described(
    name: str, value: str, kind: int, origins: Sequence[tuple[str, str, int]], *, read_only: bool = False
) -> messages.DescribeConfigsResourceResult:
    """Return a configuration in a response.

    origins: Name, value and source of each value, the one in effect first.
    """
    return messages.DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=read_only,
        config_source=origins[0][2] if origins else DEFAULT,
        synonyms=[messages.DescribeConfigsSynonym(name=a, value=b, source=c) for a, b, c in origins],
        config_type=kind,
    )
