# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: configurations of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kcodec.admin.checks import by_name, setting_text
from kcodec.admin.values import (
    CONFIG_SOURCES,
    AlterOperation,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
)
from kcodec.arguments import items_of, names_of
from kcodec.cluster.retry_driver import ApiHandler, CallContext, ItemResult, request_items, results, whole
from kcodec.cluster.retry_routes import AnyBroker, Controller, Route
from kcodec.errors import KcodecError
from kcodec.flow import ByVersion, Flow
from kcodec.integers import shown
from kcodec.protocol import messages

#: For each setting, a value to set, None to restore the default, or a pair of AlterOperation and value.
Alterations = Mapping[str, "str | tuple[AlterOperation, str | None] | None"]


def describe_configs(
    context: CallContext,
    resources: Iterable[ConfigResource],
    *,
    names: Iterable[str] | None = None,
    include_documentation: bool = False,
    timeout: float | None = None,
) -> Flow[dict[ConfigResource, dict[str, ConfigEntry]]]:
    """Return the settings of topics, brokers and groups by name. A secret setting has the value None.

    resources: Resources whose settings are returned.
    names: Names of the settings to return. None: all settings.
    include_documentation: Whether to return Kafka's description of each setting, too (from Kafka 2.6 on).

    Raise BrokerError, for example UNKNOWN_TOPIC_OR_PARTITION, or AuthorizationError without the permission. For several
    resources, an AdminError contains the errors.
    """
    requested = None if names is None else names_of(names, "names")
    handler: ApiHandler[ConfigResource, dict[str, ConfigEntry]] = ApiHandler(
        "describe configs of",
        _ConfigRoute(AnyBroker()),
        lambda some, until: messages.DescribeConfigsRequest(
            resources=[
                messages.DescribeConfigsResource(
                    resource_type=int(one.type), resource_name=one.name, configuration_keys=requested
                )
                for one in some
            ],
            include_documentation=include_documentation,
        ),
        lambda response, some: _read(response.results, _described),
        lowest=3 if include_documentation else 1,
    )
    items = items_of(resources, ConfigResource, "resources")
    outcome = yield from request_items(context, items, handler, context.deadline(timeout))
    outcome.doing = "describe configs"
    return outcome.value()


class _ConfigRoute(Route[ConfigResource]):
    """The route of requests for configurations. Requests for a broker's settings go to that broker, and other requests
    use the route `others`."""

    def __init__(self, others: Route[Any]) -> None:
        self._others = others
        self.may_lag = others.may_lag

    def known(self, item: ConfigResource) -> int | None:
        """See Route."""
        if item.type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) and item.name:
            return int(item.name)
        return self._others.known(item)

    def look_up(self, items: list[ConfigResource], timeout: float) -> Flow[dict[ConfigResource, KcodecError]]:
        """See Route."""
        return (yield from self._others.look_up(items, timeout))

    def unknown_error(self, item: ConfigResource) -> KcodecError:
        """See Route."""
        return self._others.unknown_error(item)

    def lost(self, item: ConfigResource, code: int | None) -> None:
        """See Route."""
        self._others.lost(item, code)


def _read(
    results: Iterable[Any], value: Callable[[Any], Any] = lambda result: None
) -> Iterator[tuple[ConfigResource, ItemResult]]:
    """Yield the result of each resource. Skip types that this version of kcodec does not know, because they were not
    requested."""
    for result in results:
        if result.resource_type in list(ConfigResourceType):
            resource = ConfigResource(ConfigResourceType(result.resource_type), result.resource_name)
            yield resource, ItemResult(result.error_code, value(result), result.error_message)


def _described(result: Any) -> dict[str, ConfigEntry]:
    return {
        config.name: ConfigEntry(
            config.name,
            config.value,
            CONFIG_SOURCES.get(config.config_source, "UNKNOWN"),
            config.read_only,
            config.is_sensitive,
            config.documentation,
        )
        for config in result.configs
    }


def alter_configs(
    context: CallContext,
    changes: Mapping[ConfigResource, Alterations],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Flow[dict[ConfigResource, None]]:
    """Change individual settings and keep the others (IncrementalAlterConfigs, KIP-339).

    changes: For each resource, a mapping of names to values. None restores the default of a setting.
        (AlterOperation.APPEND, "x") adds a value to a list.
    validate_only: Whether to check the request without a change.

    Raise BrokerError, for example INVALID_CONFIG or POLICY_VIOLATION, or AuthorizationError without the permission. For
    several resources, an AdminError contains the errors.
    """
    altered = _all_altered(changes)
    handler: ApiHandler[ConfigResource, None] = ApiHandler(
        "alter configs of",
        _ConfigRoute(Controller(context.cluster)),
        lambda some, until: messages.IncrementalAlterConfigsRequest(
            resources=[altered[one] for one in some], validate_only=validate_only
        ),
        lambda response, some: _read(response.responses),
    )
    outcome = yield from request_items(context, altered, handler, context.deadline(timeout))
    outcome.doing = "alter configs"
    return outcome.value()


def _all_altered(changes: Any) -> dict[ConfigResource, Any]:
    """Return the changes in the form of the request. Raise TypeError if they are not a mapping of ConfigResource to
    mappings of settings."""
    if not isinstance(changes, Mapping):
        raise TypeError(f"changes: expected {{ConfigResource: {{setting: value}}}}, got {shown(changes)}")
    for resource in changes:
        if not isinstance(resource, ConfigResource):
            hint = f"; use ConfigResource.topic({resource!r}) for a topic" if isinstance(resource, str) else ""
            raise TypeError(f"changes: expected ConfigResource, got {shown(resource)}{hint}")
    return {
        resource: _altered(resource, by_name(given, f"changes of {resource}", "value"))
        for resource, given in changes.items()
    }


def _altered(resource: ConfigResource, changes: Alterations) -> Any:
    configs = []
    for name, change in changes.items():
        operation: Any = AlterOperation.DELETE if change is None else AlterOperation.SET
        value: object = change
        if isinstance(change, tuple):
            operation, value = change if len(change) == 2 else (None, None)
        if operation not in list(AlterOperation):
            raise TypeError(
                f"changes of {resource}: {name} must be a value or a tuple of an AlterOperation and a value, as in "
                f'(AlterOperation.APPEND, "compact"), got {shown(change)}'
            )
        value = setting_text(name, value)
        configs.append(
            messages.IncrementalAlterableConfig(name=name, config_operation=AlterOperation(operation), value=value)
        )
    return messages.IncrementalAlterConfigsResource(
        resource_type=int(resource.type), resource_name=resource.name, configs=configs
    )


def list_config_resources(
    context: CallContext,
    types: Iterable[ConfigResourceType] | None = None,
    *,
    timeout: float | None = None,
) -> Flow[list[ConfigResource]]:
    """Return the resources that have, or may have, a configuration: topics, brokers, groups, client metrics.

    types: Types of the resources to return. None: all types.

    Raise AuthorizationError without DESCRIBE_CONFIGS on the cluster. Raise UnsupportedError before Kafka 4.1
    (KIP-1142). From Kafka 3.7 on, brokers can at least list the type CLIENT_METRICS alone.
    """
    chosen = [] if types is None else items_of(types, ConfigResourceType, "types")
    only_metrics = chosen == [ConfigResourceType.CLIENT_METRICS]
    handler: ApiHandler[str, list[ConfigResource]] = ApiHandler(
        "list config resources of",
        AnyBroker(),
        # Version 0 has no types, and lists only client metrics.
        lambda items, until: ByVersion(
            messages.ListConfigResourcesRequest,
            lambda version: messages.ListConfigResourcesRequest(
                resource_types=[int(one) for one in chosen] if version else []
            ),
        ),
        lambda response, items: whole(response, items, _resources),
        named=str,
        lowest=0 if only_metrics else 1,
    )
    if types is not None and not chosen:
        return []
    return (yield from results(context, ["the cluster"], handler, timeout))["the cluster"]


def _resources(response: Any) -> list[ConfigResource]:
    """Return the resources of a response. Skip types that this version of kcodec does not know."""
    known = [
        ConfigResource(ConfigResourceType(one.resource_type), one.resource_name)
        for one in response.config_resources
        if one.resource_type in list(ConfigResourceType)
    ]
    return sorted(known, key=lambda one: (one.type, one.name))
