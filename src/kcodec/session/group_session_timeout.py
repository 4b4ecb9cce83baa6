# SPDX-License-Identifier: Apache-2.0
"""The session timeout of a member in a KIP-848 group: a setting of the group, otherwise of the broker.

In this protocol, requests contain no session timeout. The client needs it for a transaction that must end before
another member gets the partitions. It is therefore requested by DescribeConfigs of the group, whose response includes
the defaults of the broker. If this is not permitted or not supported, DescribeConfigs of the group's coordinator is
used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kcodec.cluster.metadata import Cluster
from kcodec.errors import AuthenticationError, BrokerError, DecodeError, TransportError
from kcodec.flow import ANY_NODE, Flow, call, sleep
from kcodec.protocol.error_codes import broker_error
from kcodec.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource

#: Numbers of Kafka's ConfigResource.Type.
BROKER_RESOURCE, GROUP_RESOURCE = 4, 32
SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_SOURCES = {BROKER_RESOURCE: "broker", GROUP_RESOURCE: "group"}
#: A broker's settings are the group's with this before them.
_BROKER_PREFIX = "group."


@dataclass(frozen=True, slots=True)
class GroupSessionTimeout:
    """The timeout in seconds, or None if it is unknown.

    source: "group", or "broker" for a group without the setting. If the timeout is unknown, the reason.
    """

    session_timeout: float | None
    heartbeat_interval: float | None
    source: str

    @property
    def is_known(self) -> bool:
        """Whether the timeout is known."""
        return self.session_timeout is not None


def group_session_timeout(cluster: Cluster, group_id: str, timeout: float) -> Flow[GroupSessionTimeout]:
    """Return the group's timeout, within `timeout` seconds. Raise AuthenticationError; other errors are in `source`."""
    deadline = cluster.clock() + timeout
    reasons = []
    for kind, prefix in ((GROUP_RESOURCE, ""), (BROKER_RESOURCE, _BROKER_PREFIX)):
        try:
            node = ANY_NODE
            if kind == BROKER_RESOURCE:
                node = yield from cluster.coordinators.find("group", group_id, max(deadline - cluster.clock(), 0.0))
            name = group_id if kind == GROUP_RESOURCE else str(node)
            settings = yield from _describe(cluster, node, kind, name, prefix, deadline)
        except AuthenticationError:
            raise
        except (BrokerError, TransportError, DecodeError) as error:
            reasons.append(str(error))
            continue
        if (found := _seconds(settings, SESSION_TIMEOUT)) is not None:
            return GroupSessionTimeout(found, _seconds(settings, HEARTBEAT_INTERVAL), _SOURCES[kind])
        settings_of = "the group's settings" if kind == GROUP_RESOURCE else "the broker's"
        reasons.append(f"{settings_of} do not include {prefix}{SESSION_TIMEOUT}")
    return GroupSessionTimeout(None, None, "; ".join(reasons))


def _describe(
    cluster: Cluster, node: int, kind: int, name: str, prefix: str, deadline: float
) -> Flow[dict[str, str | None]]:
    """Return the two settings without the prefix. Repeat a request without a response."""
    keys = [prefix + SESSION_TIMEOUT, prefix + HEARTBEAT_INTERVAL]
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    doing = f"DescribeConfigs of {_SOURCES[kind]} {name!r}"
    attempt = 0
    while True:
        left = deadline - cluster.clock()
        request = DescribeConfigsRequest(resources=[resource])
        try:
            reply = yield from call(node, request, timeout=max(min(left, cluster.times.request), 0.0), lowest=1)
            results = reply.message.results
            if not results:
                raise DecodeError(f"{doing}: the response has no result for {name!r}")
            if code := results[0].error_code:
                raise broker_error(code, doing, resource=name, message=results[0].error_message)
            return {one.name.removeprefix(prefix): one.value for one in results[0].configs}
        except AuthenticationError:
            raise
        except (TransportError, BrokerError) as error:
            pause = cluster.times.backoff(attempt, cluster.random.random())
            is_lasting = isinstance(error, BrokerError) and not error.retriable
            if is_lasting or cluster.clock() + pause >= deadline:
                raise
        yield from sleep(pause)
        attempt += 1


def _seconds(settings: Mapping[str, Any], name: str) -> float | None:
    """Return a setting in ms as seconds, if it is a valid number."""
    try:
        found = int(settings.get(name) or 0)
    except ValueError:
        return None
    return found / 1000 if found > 0 else None
