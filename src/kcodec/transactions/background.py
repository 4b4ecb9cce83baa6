# SPDX-License-Identifier: Apache-2.0
"""What a transactional producer does beside the calls of its application: AddPartitionsToTxn for the records that wait
for it (old flow), finding out why an epoch is too old, the warning before a transaction's time is over.
"""

from __future__ import annotations

import logging

from kcodec.cluster.metadata import Cluster
from kcodec.errors import KcodecError, UnknownOutcomeError, UnsupportedError
from kcodec.flow import Flow, join, sleep, spawn, wait
from kcodec.offsets import TopicPartition
from kcodec.transactions.errors import Failed, Treatment
from kcodec.transactions.fencing import settle
from kcodec.transactions.identity import OpenTransaction, TransactionSource
from kcodec.transactions.initialize import describe_transaction
from kcodec.transactions.partitions import add_partitions
from kcodec.transactions.requests import OWN_CONCURRENT_BACKOFF
from kcodec.transactions.state import Event, State

log = logging.getLogger("kcodec.transactions")
#: Later than this after EndTxn it does not pay to ask whether its markers are written: a leader waits no longer.
MARKERS_SECONDS = 0.020
#: After so many questions in a row that found the markers written, so many are not asked, unless a leader is slow.
NEEDLESS_PROBES, SKIPPED_PROBES = 4, 32
#: The part of transaction_timeout_ms after which an open transaction is worth a warning.
WARNING_SHARE = 0.8
_EVENTS = {
    Treatment.ABORTABLE: Event.ABORTABLE,
    Treatment.FATAL: Event.FATAL,
    Treatment.UNANSWERED: Event.UNANSWERED,
    Treatment.INTERRUPTED: Event.INTERRUPTED,
    # Records were acknowledged and the coordinator knows nothing of them.
    Treatment.EMPTY: Event.FATAL,
}


class TransactionBackground(TransactionSource):
    """The flow `run`, and what it shares with the calls.

    max_block: seconds that a call without a timeout of its own may take (Kafka: max.block.ms).
    """

    def __init__(
        self, cluster: Cluster, transactional_id: str, transaction_timeout_ms: int = 60_000, max_block: float = 60.0
    ) -> None:
        super().__init__(cluster, transactional_id, transaction_timeout_ms)
        self.max_block = max_block
        self.may_probe = True

    def _deadline(self, timeout: float | None) -> float:
        return self.cluster.clock() + (self.max_block if timeout is None else timeout)

    # Errors

    def fail(self, failed: Failed) -> None:
        """Move by what failed; SETTLE has been settled before."""
        error = failed.error
        if failed.treatment is Treatment.FATAL and isinstance(error, UnknownOutcomeError) and error.__cause__:
            # The call says that the outcome is unknown; all calls after it, why the producer is finished.
            error = error.__cause__
        self.move(_EVENTS[failed.treatment], error)

    def _settled(self, failed: Failed, transaction: OpenTransaction, deadline: float | None = None) -> Flow[Failed]:
        if failed.treatment is not Treatment.SETTLE:
            return failed
        code = getattr(failed.error, "code", 90)
        doing = str(getattr(failed.error, "reason", failed.error)).partition(": ")[0]
        return (yield from settle(self.cluster, self.ending(transaction), doing, code, deadline))

    # Beside the calls

    def run(self) -> Flow[None]:
        """The background of a transactional producer: AddPartitionsToTxn, why an epoch is too old, the warning."""
        while True:
            if self.is_probe_wanted:
                yield from self._await_markers()
            transaction = self.open
            if transaction is not None and self.state in {State.IN_TRANSACTION, State.COMMITTING}:
                self._warn_if_late(transaction)
                if transaction.to_settle is not None:
                    yield from self._settle_produce(transaction)
                    continue
                if transaction.wanted:
                    yield from self._add_wanted(transaction)
                    continue
            if not self.is_probe_wanted:
                yield from wait(self.wake, self._seconds_to_warning())

    def _settle_produce(self, transaction: OpenTransaction) -> Flow[None]:
        assert transaction.to_settle is not None
        doing, code = transaction.to_settle
        failed = yield from settle(self.cluster, self.ending(transaction), doing, code)
        if self.open is transaction and self.state in {State.IN_TRANSACTION, State.COMMITTING}:
            self.fail(failed)
        transaction.to_settle = None

    def _await_markers(self) -> Flow[None]:
        """Records wait for the markers of the transaction before: until they are written, or it is late anyway."""
        probe = yield from spawn(self._probe_markers(), "whether markers are written")
        try:
            yield from join(probe, max(self.markers_awaited_until - self.cluster.clock(), 0.0))
        except (TimeoutError, KcodecError) as error:
            log.debug("%s: the end of the last transaction is not awaited: %s", self.who, error)
        self.markers_awaited_until, self.is_probe_wanted = 0.0, False
        self.changed.set()

    def _probe_markers(self) -> Flow[None]:
        pause, is_needless = OWN_CONCURRENT_BACKOFF / 2, True
        if self.markers_awaited_until - self.cluster.clock() > MARKERS_SECONDS - pause:
            # EndTxn was answered this moment.
            yield from sleep(pause)
        while self.cluster.clock() < self.markers_awaited_until:
            # Not cut short: a request that is given up costs its connection.
            deadline = self.cluster.clock() + self.cluster.times.request
            found = yield from describe_transaction(self.cluster, self.who, deadline, is_quiet=True)
            if found is None:
                self.may_probe = False
            if found is None or not found.is_ending:
                break
            is_needless = False
            yield from sleep(pause)
            pause *= 2
        self.needless_probes = self.needless_probes + 1 if is_needless else 0
        if self.needless_probes >= NEEDLESS_PROBES:
            self.needless_probes, self.skipped_probes = 0, SKIPPED_PROBES

    def _add_wanted(self, transaction: OpenTransaction) -> Flow[None]:
        wanted = frozenset(transaction.wanted)
        self.note_sent(transaction)
        transaction.requests += 1
        try:
            yield from self._add(transaction, wanted)
        finally:
            transaction.requests -= 1
            self.changed.set()

    def _add(self, transaction: OpenTransaction, wanted: frozenset[TopicPartition]) -> Flow[None]:
        def is_over() -> bool:
            return self.open is not transaction or self.state not in {State.IN_TRANSACTION, State.COMMITTING}

        try:
            yield from add_partitions(
                self.cluster,
                self.who,
                transaction.producer,
                wanted,
                self._deadline(None),
                on_unanswered=lambda: self.on_unanswered("AddPartitionsToTxn"),
                is_over=is_over,
            )
        except Failed as failed:
            settled = yield from self._settled(failed, transaction)
            if not is_over():
                self.fail(settled)
        except UnsupportedError as error:
            if not is_over():
                self.move(Event.FATAL, error)
        except KcodecError as error:
            # The records that wait for it have a deadline of their own, and end the transaction.
            log.warning("%s", error)
            yield from sleep(self.cluster.times.backoff(0, self.cluster.random.random()))
        else:
            transaction.added |= wanted
            transaction.wanted -= wanted

    def _seconds_to_warning(self) -> float | None:
        transaction = self.open
        is_open = self.state in {State.IN_TRANSACTION, State.COMMITTING}
        if transaction is None or not is_open or transaction.sent_at is None or transaction.is_warned:
            return None
        due = transaction.sent_at + WARNING_SHARE * self.transaction_timeout_ms / 1000
        return max(due - self.cluster.clock(), 0.0)

    def _warn_if_late(self, transaction: OpenTransaction) -> None:
        if self._seconds_to_warning() == 0.0:
            transaction.is_warned = True
            log.warning(
                "the transaction of %r has been open for %.0f %% of transaction_timeout_ms=%d: "
                "at 100 %% the coordinator aborts it",
                self.who,
                WARNING_SHARE * 100,
                self.transaction_timeout_ms,
            )
