# SPDX-License-Identifier: Apache-2.0
"""The last heartbeat of a member: its partitions go to others at once, or after the session for a static one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

from kcodec.cluster.flow_lock import Gate
from kcodec.cluster.metadata import Cluster
from kcodec.consumer.group.dispositions import CONSUMER_JOIN, GroupDisposition, disposition
from kcodec.consumer.group.modern.heartbeat import CHANNEL
from kcodec.errors import AuthenticationError, BrokerError, DecodeError, TransportError
from kcodec.flow import Flow, call, sleep

REPEATED = frozenset({GroupDisposition.RETRY, GroupDisposition.FIND_COORDINATOR})
log = logging.getLogger("kcodec.client")


def say_goodbye(
    cluster: Cluster,
    gate: Gate,
    request: Any,
    deadline: float,
    backoff: Callable[[int, float], float],
    random: Random,
) -> Flow[None]:
    """Send `request` (`HeartbeatFields.goodbye`) until somebody heard it, or the deadline is over. Never raises: a
    broker that does not hear it waits for the session to end."""
    group_id, attempt = request.group_id, 0
    while (left := deadline - cluster.clock()) > 0:
        is_held = yield from gate.acquire(left)
        try:
            node = yield from cluster.coordinator("group", group_id, max(deadline - cluster.clock(), 0.0))
            timeout = min(max(deadline - cluster.clock(), 0.0), cluster.times.request)
            reply = yield from call(node, request, timeout=timeout, channel=CHANNEL)
            code = reply.message.error_code
            if not code or disposition(CONSUMER_JOIN, code) not in REPEATED:
                return
            log.info("group %r: the leave heartbeat failed with error code %d", group_id, code)
        except (AuthenticationError, BrokerError, DecodeError) as error:
            log.info("group %r: the leave heartbeat failed: %s", group_id, error)
            return
        except TransportError as error:
            log.info("group %r: the leave heartbeat failed: %s", group_id, error)
        finally:
            if is_held:
                gate.release()
        cluster.forget_coordinator("group", group_id)
        yield from sleep(min(backoff(attempt, random.random()), max(deadline - cluster.clock(), 0.0)))
        attempt += 1
