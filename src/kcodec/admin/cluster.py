# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: the cluster, its brokers and features."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from kcodec.admin.checks import by_name
from kcodec.admin.security import operations_of
from kcodec.admin.values import BrokerNode, ClusterDescription, FeatureDescription
from kcodec.cluster.retry_driver import (
    ApiHandler,
    CallContext,
    Deadline,
    ItemResult,
    entries,
    request_items,
    results,
    whole,
)
from kcodec.cluster.retry_routes import AnyBroker, Controller
from kcodec.errors import KcodecError
from kcodec.flow import Flow
from kcodec.integers import checked_integer
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

log = logging.getLogger("kcodec.client")
THE_CLUSTER = "the cluster"
#: The highest level of a feature that a request can hold.
HIGHEST_LEVEL = (1 << 15) - 1
#: Maximum time for which a broker may report the levels before a change.
FEATURES_LAG_SECONDS = 2.0
#: Changes of the level that are allowed for a feature (Kafka: FeatureUpdate.UpgradeType).
UPGRADE_TYPES = {"upgrade": 1, "safe_downgrade": 2, "unsafe_downgrade": 3}


def describe_cluster(
    context: CallContext,
    *,
    include_fenced_brokers: bool = False,
    include_authorized_operations: bool = False,
    timeout: float | None = None,
) -> Flow[ClusterDescription]:
    """Return the cluster's id, controller and brokers (KIP-700).

    include_fenced_brokers: Whether to return fenced brokers, too (KIP-1073, Kafka 4.0).
    include_authorized_operations: Whether to return the operations that the client may do on the cluster, too
        (KIP-430).
    """
    handler: ApiHandler[str, ClusterDescription]
    if include_fenced_brokers or include_authorized_operations:
        handler = ApiHandler(
            "describe",
            AnyBroker(),
            lambda items, until: messages.DescribeClusterRequest(
                include_fenced_brokers=include_fenced_brokers,
                include_cluster_authorized_operations=include_authorized_operations,
            ),
            lambda response, items: whole(response, items, _cluster),
            named=str,
            lowest=2 if include_fenced_brokers else 0,
        )
    else:
        handler = ApiHandler(
            "describe",
            AnyBroker(),
            lambda items, until: messages.MetadataRequest(topics=[], allow_auto_topic_creation=False),
            lambda response, items: [(items[0], ItemResult(ErrorCode.NONE, _metadata(response)))],
            named=str,
            lowest=4,  # known to brokers of any age
        )
    return (yield from results(context, [THE_CLUSTER], handler, timeout))[THE_CLUSTER]


def _cluster(response: Any) -> ClusterDescription:
    nodes = [BrokerNode(one.broker_id, one.host, one.port, one.rack, one.is_fenced) for one in response.brokers]
    return _description(response, nodes)


def _metadata(response: Any) -> ClusterDescription:
    return _description(response, [BrokerNode(one.node_id, one.host, one.port, one.rack) for one in response.brokers])


def _description(response: Any, nodes: list[BrokerNode]) -> ClusterDescription:
    controller = None if response.controller_id < 0 else response.controller_id
    brokers = tuple(sorted(nodes, key=lambda node: node.id))
    operations = operations_of(response.cluster_authorized_operations)
    return ClusterDescription(response.cluster_id, controller, brokers, operations)


def describe_features(context: CallContext, *, timeout: float | None = None) -> Flow[dict[str, FeatureDescription]]:
    """Return each feature by name, with its finalized level and the levels that the broker supports (KIP-584)."""
    handler: ApiHandler[str, dict[str, FeatureDescription]] = ApiHandler(
        "describe the features of",
        AnyBroker(),
        lambda items, until: messages.ApiVersionsRequest(client_software_name="kcodec", client_software_version="0"),
        lambda response, items: whole(response, items, _features),
        named=str,
        lowest=3,
    )
    return (yield from results(context, [THE_CLUSTER], handler, timeout))[THE_CLUSTER]


def _features(response: Any) -> dict[str, FeatureDescription]:
    supported = {feature.name: feature for feature in response.supported_features or ()}
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features or ()}
    return {
        name: FeatureDescription(
            name,
            finalized.get(name),
            supported[name].min_version if name in supported else None,
            supported[name].max_version if name in supported else None,
        )
        for name in sorted({*supported, *finalized})
    }


def update_features(
    context: CallContext,
    levels: Mapping[str, int],
    *,
    upgrade_type: str = "upgrade",
    validate_only: bool = False,
    timeout: float | None = None,
) -> Flow[dict[str, None]]:
    """Finalize features at these levels (KIP-584). Level 0 disables a feature. Either all features change or none.

    levels: Level of each feature, by name.
    upgrade_type: Changes that are allowed: "upgrade", "safe_downgrade" or "unsafe_downgrade".
    validate_only: Whether to check the request without a change.

    A request whose response is lost is repeated. If the broker then refuses it, because the features already have these
    levels, the call has succeeded. Brokers with KRaft do not refuse it; brokers with ZooKeeper do.

    Raise BrokerError (FEATURE_UPDATE_FAILED, INVALID_UPDATE_VERSION) if a level is not possible. Raise
    AuthorizationError without the permission. Raise ValueError if upgrade_type is invalid.
    """
    if upgrade_type not in UPGRADE_TYPES:
        raise ValueError(f"upgrade_type must be one of {', '.join(UPGRADE_TYPES)}, not {upgrade_type!r}")
    checked = {
        name: checked_integer(f"levels: the level of {name}", level, 0, HIGHEST_LEVEL)
        for name, level in by_name(levels, "levels", "level").items()
    }
    handler: ApiHandler[str, None] = ApiHandler(
        "update feature",
        Controller(context.cluster),
        lambda names, until: messages.UpdateFeaturesRequest(
            feature_updates=[
                messages.FeatureUpdateKey(
                    feature=name, max_version_level=checked[name], upgrade_type=UPGRADE_TYPES[upgrade_type]
                )
                for name in names
            ],
            timeout_ms=until.left_ms,
            validate_only=validate_only,
        ),
        _updated,
        lowest=1,
    )
    deadline = context.deadline(timeout)
    outcome = yield from request_items(context, checked, handler, deadline)
    refused = [name for name in checked if name in outcome.repeated and name in outcome.errors]
    if refused and not validate_only and (yield from _are_finalized(context, checked, deadline)):
        for name in refused:
            outcome.succeed(name, None)
    return outcome.value()


def _are_finalized(context: CallContext, levels: Mapping[str, int], deadline: Deadline) -> Flow[bool]:
    """Return whether all features have these levels, after a repeated request. A broker may learn of a change a little
    later than others, so the features are described repeatedly for FEATURES_LAG_SECONDS."""
    until = min(deadline.at, context.clock() + FEATURES_LAG_SECONDS)
    attempt = 0
    while context.clock() < until:
        try:
            found = yield from describe_features(context, timeout=deadline.remaining)
        except KcodecError as error:
            log.info("the levels of the features are not known after a repeated request: %s", error)
            return False
        current = {name: one.finalized_level or 0 for name, one in found.items()}
        if all(current.get(name, 0) == level for name, level in levels.items()):
            return True
        yield from context.pause(attempt, deadline)
        attempt += 1
    return False


def _updated(response: Any, names: list[str]) -> Iterator[tuple[str, ItemResult]]:
    """Yield the result of each feature. Version 1 has one result for each feature, and version 2 a single one."""
    if response.error_code or not response.results:
        yield from ((name, ItemResult(response.error_code, None, response.error_message)) for name in names)
    else:
        yield from entries(response.results, "feature")
