# SPDX-License-Identifier: Apache-2.0
"""The end markers of the last transaction: records of the next one are faster if they are written first.

The markers are written after the response to EndTxn. A leader that has to add a partition to the next transaction
before that waits 20 ms (add.partitions.to.txn.retry.backoff.ms) before it checks again; DescribeTransactions shows it
sooner.
"""

from __future__ import annotations

import logging

from kcodec.cluster.metadata import Cluster
from kcodec.errors import KcodecError
from kcodec.flow import Flow, join, sleep, spawn
from kcodec.transactions.fencing import describe_transaction
from kcodec.transactions.requests import OWN_CONCURRENT_BACKOFF

log = logging.getLogger("kcodec.transactions")
#: Later than this after EndTxn it does not pay to look whether its markers are written: a leader waits no longer.
MARKERS_SECONDS = 0.020
#: After this number of probes in a row that found the markers written, the given number is skipped. If the next probe
#: finds them written, too, twice as many are skipped, and so on, up to the last number.
NEEDLESS_PROBES, SKIPPED_PROBES, MOST_SKIPPED = 4, 32, 1024
#: A first batch that took longer may have waited at a leader for the markers of the transaction before.
WAITED_SECONDS = 0.018
#: Without a probe, the first batch is held back for some time after EndTxn: longer by the first number of seconds after
#: a batch that waited at a leader, and shorter by the second after any other. About one batch in 200 then waits. That
#: is near the optimum if the times at which markers are written are spread over some 100 us. The third is the most.
HOLD_STEP, HOLD_DECAY, MOST_HELD = 0.000_050, 0.000_000_25, 0.000_500
#: Nothing is held back if timers are this much late on average, as where a selector counts milliseconds.
MOST_LATE = 0.000_400
#: The weight of a transaction in averages.
WEIGHT = 1 / 16


class MarkerProbe:
    """The probes of one transactional id, for the new flow. is_requested: `run` must be called."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.is_requested = False
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._is_available = True
        self._ended = self._until = 0.0
        self._follows_at_once = False
        self._needless = self._skipped = self._unprobed = 0
        self._is_skipping = self._is_first = False
        self._hold = self._usual_gap = self._lateness = 0.0

    def expect(self, is_large: bool) -> None:
        """Note the end of a transaction: later records wait for its markers if that has proved useful."""
        if not self._is_available:
            return
        self._ended, self._is_first = self._cluster.clock(), True
        self._is_skipping = self._skipped > 0
        if is_large and self._is_skipping:
            # Next to the duration of a large transaction a probe costs little: four of them follow the skipped ones.
            self._needless = self._unprobed = 0
        if self._is_skipping:
            self._skipped -= 1
            self._unprobed += 1
            self._until = self._ended + (self._hold if self._lateness < MOST_LATE else 0.0)
            return
        self._until = self._ended + MARKERS_SECONDS
        # A thread that writes much holds the interpreter's lock while responses arrive: where one large transaction
        # follows another, the request is sent before the records are. (For small ones it costs more.)
        self.is_requested = self._follows_at_once and is_large

    def holds_back(self) -> bool:
        """Return whether the last transaction ended so recently that its markers may not be written yet."""
        if not self._until:
            return False
        now = self._cluster.clock()
        gap = now - self._ended
        self._follows_at_once = gap < MARKERS_SECONDS
        if self._is_first and self._follows_at_once:
            self._is_first = False
            self._usual_gap += WEIGHT * (gap - self._usual_gap)
        if now < self._until:
            self.is_requested = True
            return True
        self._until = 0.0
        return False

    def note_first_batch(self, seconds: float) -> None:
        """Note how long the first batch of a transaction took: whether it waited at a leader for the markers."""
        if not (self._is_skipping and self._follows_at_once):
            return
        if seconds <= WAITED_SECONDS:
            self._hold = max(self._hold - HOLD_DECAY, 0.0)
            return
        self._hold = min(max(self._hold, self._usual_gap) + HOLD_STEP, MOST_HELD)
        # Slow markers come in groups. If they are rare, one probe that finds them written shows the end of the group.
        self._needless = NEEDLESS_PROBES - 1 if self._unprobed > SKIPPED_PROBES else 0
        self._skipped = self._unprobed = 0

    def run(self) -> Flow[None]:
        """Wait until the markers are written, or waiting no longer helps."""
        if self._is_skipping:
            yield from sleep(max(self._until - self._cluster.clock(), 0.0))
            self._lateness += WEIGHT * (self._cluster.clock() - self._until - self._lateness)
        else:
            yield from self._until_written()
        self._until, self.is_requested = 0.0, False

    def _until_written(self) -> Flow[None]:
        probe = yield from spawn(self._probe(), "whether markers are written")
        try:
            yield from join(probe, max(self._until - self._cluster.clock(), 0.0))
        except (TimeoutError, KcodecError) as error:
            log.debug("%s: the end markers of the last transaction are not awaited: %s", self._transactional_id, error)

    def _probe(self) -> Flow[None]:
        cluster = self._cluster
        pause, is_needless = OWN_CONCURRENT_BACKOFF / 2, True
        if self._until - cluster.clock() > MARKERS_SECONDS - pause:  # the response to EndTxn came at this moment
            yield from sleep(pause)
        while cluster.clock() < self._until:
            # Not cut short: a request that is given up costs its connection.
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
