# SPDX-License-Identifier: Apache-2.0
"""A client without its thread: options, scheduler, network and cluster, wired together; a carrier makes it run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from kcodec.cluster.metadata import Cluster, ClusterTimes
from kcodec.flow import Clock, Done, Task
from kcodec.network.connections import Network
from kcodec.network.logs import escape_logs
from kcodec.network.options import ClientConfig
from kcodec.network.preload import load_for_flows
from kcodec.network.scheduler import Scheduler

if TYPE_CHECKING:
    from kcodec.network.connections import Opener

log = logging.getLogger("kcodec.client")


class Client:
    """The parts of a client. clock: monotonic seconds, never the wall's; random: for jitter and choice."""

    def __init__(self, options: ClientConfig, clock: Clock = time.monotonic, random: Random | None = None) -> None:
        load_for_flows()
        escape_logs()
        self.options = options
        self.clock = clock
        self.random = random or Random()
        trigger = options.metadata_recovery_rebootstrap_trigger_ms / 1000
        times = ClusterTimes(
            request=options.request_timeout_ms / 1000,
            metadata_max_age=options.metadata_max_age_ms / 1000,
            rebootstrap_trigger=trigger if options.metadata_recovery_strategy == "rebootstrap" else None,
            backoff=options.retry_backoff,
            unknown_topic=options.unknown_topic_timeout_ms / 1000,
        )
        self.cluster = Cluster(clock, self.random, times)
        self.network = Network(options, clock, self.random)
        self.scheduler = Scheduler(clock, self.network)
        #: Called with the reason when the carrier ends otherwise than by `close`: whoever still waits must be told.
        self.on_crash: list[Callable[[BaseException], None]] = []
        self._keeper: Task[None] | None = None

    def start(self, opener: Opener, run_blocking: Callable[[Callable[[], Any], Done], None]) -> None:
        """A carrier is there: begin to keep metadata fresh."""
        self.scheduler.run_blocking = run_blocking
        self.network.wire(self.scheduler, self.cluster, opener)
        self._keeper = self.scheduler.spawn(self.cluster.keep_fresh(), "metadata")
        self.cluster.request_update("start")

    def stop(self) -> None:
        """Close flows, then connections."""
        self.network.is_closed = True
        self.scheduler.cancel_all()
        self.network.close()

    def crash(self, error: BaseException) -> None:
        """The carrier cannot go on."""
        log.critical("the loop of this client failed: %s", error, exc_info=error)
        for tell in self.on_crash:
            tell(error)
