# SPDX-License-Identifier: Apache-2.0
"""The warning of a call that waits while no broker responds. Without it, a call with a wrong host or port would be
silent until its timeout. Consumers and producers have their own reports (`kcodec.consumer.waiting_report`,
`kcodec.producer.reports`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from kcodec.flow import Flow, sleep, spawn
from kcodec.quantities import seconds_text

if TYPE_CHECKING:
    from kcodec.cluster.metadata import Cluster

T = TypeVar("T")
#: No response of a broker is logged when it has lasted for this time ...
WARN_AFTER_SECONDS: Final = 3.5
#: ... which is checked at this interval.
LOOK_SECONDS: Final = 0.5
#: Topics that the warning of a read names.
MAX_NAMED_TOPICS: Final = 5


def reported(flow: Flow[T], cluster: Cluster, doing: str, limit: float, logger: str) -> Flow[T]:
    """Run a flow, and log one warning if no broker responds for some seconds.

    doing:  Text that names the call.
    limit:  Time limit of the call in seconds.
    logger: Name of the logger.
    """
    watch = yield from spawn(report_brokers(cluster, doing, limit, logger), "broker report")
    try:
        return (yield from flow)
    finally:
        watch.cancel()


def report_brokers(
    cluster: Cluster,
    doing: str,
    limit: float,
    logger: str,
    is_over: Callable[[], bool] = lambda: False,
) -> Flow[None]:
    """Log one warning each time that no broker responds for some seconds. Run until the flow is cancelled."""
    since: float | None = None
    was_logged = False
    while True:
        yield from sleep(LOOK_SECONDS)
        if is_over():
            return
        if cluster.last_error is None and cluster.updates:
            since, was_logged = None, False
            continue
        now = cluster.clock()
        since = now - LOOK_SECONDS if since is None else since
        if now - since >= WARN_AFTER_SECONDS and not was_logged:
            was_logged = True
            logging.getLogger(logger).warning(
                "%s: no broker has responded at bootstrap_servers=%r for %.0f s; last cause: %s. kcodec retries, and"
                " raises an error after %s without a response; check the host, the port and security_protocol",
                doing,
                cluster.bootstrap_servers,
                now - since,
                cluster.last_error or "no response to any request so far",
                seconds_text(limit),
            )
