# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: configurations of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kcodec.admin.values import (
    CONFIG_SOURCES,
    AlterOperation,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
)
from kcodec.arguments import items_of, names_of
from kcodec.cluster.retry_driver import Answer, Asking, Outcome, Question, settle
from kcodec.cluster.routing import AnyBroker, Controller, OneBroker, Route
from kcodec.flow import Flow
from kcodec.protocol import messages

#: name -> a value to set, None to go back to the default, or an (AlterOperation, value) pair.
Alterations = Mapping[str, "str | tuple[AlterOperation, str | None] | None"]


def describe_configs(
    asking: Asking,
    resources: Iterable[ConfigResource],
    *,
    names: Iterable[str] | None = None,
    include_documentation: bool = False,
    timeout: float | None = None,
) -> Flow[dict[ConfigResource, dict[str, ConfigEntry]]]:
    """The settings of topics, brokers and groups, by name; names: only these. What is secret has the value None.

    Raises BrokerError (UNKNOWN_TOPIC_OR_PARTITION, AuthorizationError ...); AdminError where several were asked for.
    """
    wanted = None if names is None else names_of(names, "names")
    deadline = asking.deadline(timeout)
    outcome: Outcome[ConfigResource, dict[str, ConfigEntry]] = Outcome("describe configs")
    for route, asked in _by_route(asking, items_of(resources, ConfigResource, "resources"), is_change=False):
        question: Question[ConfigResource, dict[str, ConfigEntry]] = Question(
            "describe configs of",
            route,
            lambda some, until: messages.DescribeConfigsRequest(
                resources=[
                    messages.DescribeConfigsResource(
                        resource_type=int(one.type), resource_name=one.name, configuration_keys=wanted
                    )
                    for one in some
                ],
                include_documentation=include_documentation,
            ),
            _described,
            lowest=3 if include_documentation else 1,
        )
        found = yield from settle(asking, asked, question, deadline)
        outcome.results |= found.results
        outcome.errors |= found.errors
    return outcome.value()


def _asked(result: Any, resources: list[ConfigResource]) -> Iterator[ConfigResource]:
    """The resource that a result is about; none where it was not asked for."""
    for resource in resources:
        if (resource.type, resource.name) == (result.resource_type, result.resource_name):
            yield resource


def _described(response: Any, resources: list[ConfigResource]) -> Iterator[tuple[ConfigResource, Answer]]:
    for result in response.results:
        entries = {
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
        for resource in _asked(result, resources):
            yield resource, Answer(result.error_code, entries, result.error_message)


def alter_configs(
    asking: Asking,
    changes: Mapping[ConfigResource, Alterations],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Flow[dict[ConfigResource, None]]:
    """Change single settings, leaving the others as they are (IncrementalAlterConfigs, KIP-339).

    changes: resource -> {name: value}; None goes back to the default, (AlterOperation.APPEND, "x") adds to a list.
    Raises BrokerError: INVALID_CONFIG, POLICY_VIOLATION, AuthorizationError ...; AdminError where several were asked.
    """
    deadline = asking.deadline(timeout)
    outcome: Outcome[ConfigResource, None] = Outcome("alter configs")
    for route, asked in _by_route(asking, changes, is_change=True):
        question: Question[ConfigResource, None] = Question(
            "alter configs of",
            route,
            lambda some, until: messages.IncrementalAlterConfigsRequest(
                resources=[_altered(one, changes[one]) for one in some], validate_only=validate_only
            ),
            lambda response, some: (
                (resource, Answer(one.error_code, None, one.error_message))
                for one in response.responses
                for resource in _asked(one, some)
            ),
        )
        found = yield from settle(asking, asked, question, deadline)
        outcome.results |= found.results
        outcome.errors |= found.errors
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


def _by_route(
    asking: Asking, resources: Iterable[ConfigResource], *, is_change: bool
) -> list[tuple[Route[ConfigResource], list[ConfigResource]]]:
    """A broker answers for its own settings, the controller changes the rest, any broker tells it."""
    brokers: dict[int, list[ConfigResource]] = {}
    others = []
    for resource in resources:
        is_broker = resource.type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)
        if is_broker and resource.name:
            brokers.setdefault(int(resource.name), []).append(resource)
        else:
            others.append(resource)
    found: list[tuple[Route[ConfigResource], list[ConfigResource]]] = []
    if others:
        found.append((Controller(asking.cluster) if is_change else AnyBroker(), others))
    return found + [(OneBroker(broker_id), some) for broker_id, some in brokers.items()]
