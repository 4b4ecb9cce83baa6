# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: configurations of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

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
from kcodec.protocol import messages

#: name -> a value to set, None to go back to the default, or an (AlterOperation, value) pair.
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

    names: return only these settings; None for all.
    include_documentation: return Kafka's description of each setting as well (from Kafka 2.6 on).

    Raises BrokerError (UNKNOWN_TOPIC_OR_PARTITION, AuthorizationError ...); AdminError for several resources.
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
    """Sends requests for a broker's settings to that broker, and others by the route `others`."""

    def __init__(self, others: Route[Any]) -> None:
        self._others = others
        self.may_lag = others.may_lag

    def known(self, item: ConfigResource) -> int | None:
        """As in Route."""
        if item.type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) and item.name:
            return int(item.name)
        return self._others.known(item)

    def look_up(self, items: list[ConfigResource], timeout: float) -> Flow[dict[ConfigResource, KcodecError]]:
        """As in Route."""
        return (yield from self._others.look_up(items, timeout))

    def lost(self, item: ConfigResource, code: int | None) -> None:
        """As in Route."""
        self._others.lost(item, code)


def _read(
    results: Iterable[Any], value: Callable[[Any], Any] = lambda result: None
) -> Iterator[tuple[ConfigResource, ItemResult]]:
    """Return the result of each resource; a type that this version of kcodec does not know was not requested."""
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

    changes: resource -> {name: value}; None restores the default, (AlterOperation.APPEND, "x") adds to a list.
    validate_only: check the request without changing anything.

    Raises BrokerError: INVALID_CONFIG, POLICY_VIOLATION, AuthorizationError ...; AdminError for several resources.
    """
    handler: ApiHandler[ConfigResource, None] = ApiHandler(
        "alter configs of",
        _ConfigRoute(Controller(context.cluster)),
        lambda some, until: messages.IncrementalAlterConfigsRequest(
            resources=[_altered(one, changes[one]) for one in some], validate_only=validate_only
        ),
        lambda response, some: _read(response.responses),
    )
    outcome = yield from request_items(context, changes, handler, context.deadline(timeout))
    outcome.doing = "alter configs"
    return outcome.value()


def _altered(resource: ConfigResource, changes: Alterations) -> Any:
    configs = []
    for name, change in changes.items():
        if isinstance(change, tuple):
            operation, value = change
        else:
            operation, value = (AlterOperation.DELETE if change is None else AlterOperation.SET), change
        configs.append(messages.IncrementalAlterableConfig(name=name, config_operation=int(operation), value=value))
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

    types: return only resources of these types; None for all types.

    Raises AuthorizationError (DESCRIBE_CONFIGS on the cluster), UnsupportedError before Kafka 4.1, which can list only
    CLIENT_METRICS (from Kafka 3.7 on). (KIP-1142)
    """
    chosen = [] if types is None else items_of(types, ConfigResourceType, "types")
    only_metrics = chosen == [ConfigResourceType.CLIENT_METRICS]
    handler: ApiHandler[str, list[ConfigResource]] = ApiHandler(
        "list config resources of",
        AnyBroker(),
        # Version 0 lists client metrics, and has no types.
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
    """Read the resources, without types that this version of kcodec does not know."""
    known = [
        ConfigResource(ConfigResourceType(one.resource_type), one.resource_name)
        for one in response.config_resources
        if one.resource_type in list(ConfigResourceType)
    ]
    return sorted(known, key=lambda one: (one.type, one.name))
