# SPDX-License-Identifier: Apache-2.0
"""The marker check: before records of a transaction are sent, wait until the markers of the last one are written.

The markers are written after the response to EndTxn. If a leader gets a batch of the next transaction before that, it
checks again after 20 ms (add.partitions.to.txn.retry.backoff.ms). DescribeTransactions shows sooner that the markers
are written.
"""

from __future__ import annotations

import logging

from kcodec.cluster.metadata import Cluster
from kcodec.errors import KcodecError
from kcodec.flow import Flow, join, sleep, spawn
from kcodec.transactions.fencing import describe_transaction

log = logging.getLogger("kcodec.transactions")
#: Time after EndTxn in which markers are checked. Waiting longer is useless, because a leader does not wait longer.
MARKERS_SECONDS = 0.020
#: Shortest time between EndTxn and the first check, because markers are rarely written earlier. The pause before the
#: second check is the same. Each further pause is twice as long as the one before it.
PROBE_SECONDS = 0.000_200
#: A check takes about a hundredth of the time that a leader waits. It is useless if the markers are almost always
#: written already. After NEEDLESS_PROBES such checks in a row, the next SKIPPED_PROBES transactions have no check. Each
#: further such check doubles this number, up to MOST_SKIPPED.
NEEDLESS_PROBES, SKIPPED_PROBES, MOST_SKIPPED = 64, 64, 1024
#: A first batch that took longer may have waited at a leader for the markers of the previous transaction.
WAITED_SECONDS = 0.018


class MarkerProbe:
    """The marker checks of one transactional id, from transaction version 2 on. If `is_requested`, `run` must be
    called."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.is_requested = False
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._is_available = True
        self._ended = self._until = 0.0
        self._is_first = self._follows_at_once = False
        self._needless = self._skipped = 0

    def expect(self) -> None:
        """Note the end of a transaction. Later records wait for its markers, if such a wait has been useful before."""
        if not self._is_available:
            return
        if self._skipped:
            self._skipped -= 1
            return
        self._ended, self._is_first = self._cluster.clock(), True
        self._until = self._ended + MARKERS_SECONDS
        # If one transaction directly follows another, the request is sent while records are appended, because a thread
        # that appends them holds the GIL while responses arrive.
        self.is_requested = self._follows_at_once

    def holds_back(self) -> bool:
        """Return whether the last transaction ended so recently that its markers may not be written yet."""
        if self._is_first:
            self._is_first = False
            self._follows_at_once = self._cluster.clock() < self._ended + MARKERS_SECONDS
        if not self._until:
            return False
        if self._cluster.clock() < self._until:
            self.is_requested = True
            return True
        self._until = 0.0
        return False

    def note_first_batch(self, seconds: float) -> None:
        """Stop skipping probes if the first batch of a transaction waited at a leader."""
        if self._skipped and seconds > WAITED_SECONDS:
            self._needless = self._skipped = 0

    def run(self) -> Flow[None]:
        """Wait until the markers are written, or waiting no longer helps."""
        probe = yield from spawn(self._probe(), "whether markers are written")
        try:
            yield from join(probe, max(self._until - self._cluster.clock(), 0.0))
        except (TimeoutError, KcodecError) as error:
            log.debug("%s: the end markers of the last transaction are not awaited: %s", self._transactional_id, error)
        self._until, self.is_requested = 0.0, False

    def _probe(self) -> Flow[None]:
        cluster = self._cluster
        pause, is_needless = PROBE_SECONDS, True
        early = self._ended + PROBE_SECONDS - cluster.clock()
        if early > 0:
            yield from sleep(early)
        while cluster.clock() < self._until:
            # The timeout is not shortened, because the connection would then have a request without a response.
            deadline = cluster.clock() + cluster.times.request
            found = yield from describe_transaction(cluster, self._transactional_id, deadline, is_quiet=True)
            if found is None:
                self._is_available = False
            if found is None or not found.is_ending:
                break
            is_needless = False
            yield from sleep(pause)
            pause *= 2
        self._needless = self._needless + 1 if is_needless else 0
        if self._needless >= NEEDLESS_PROBES:
            self._skipped = min(SKIPPED_PROBES << min(self._needless - NEEDLESS_PROBES, 10), MOST_SKIPPED)
