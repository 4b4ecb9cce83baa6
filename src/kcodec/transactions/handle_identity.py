# SPDX-License-Identifier: Apache-2.0
"""Under which identity a TransactionWriter writes: that of a handle, which it can neither renew nor end.

It names the partitions it writes to, and is alone in them. Whatever the broker says of the identity (45, 47, 48, 49,
59, 90, 120) means: stop, and let the owner of the transaction decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.flow import Flow, Signal, wait
from kcodec.offsets import TopicPartition
from kcodec.producer.identity import BatchDisposition, ProducerIdSource
from kcodec.transactions.errors import FENCED_CODES
from kcodec.transactions.fencing import Ending, settle
from kcodec.transactions.handle import TransactionHandle, WriterReceipt
from kcodec.transactions.identity import NEW_FLOW_LEVEL, OLD_FLOW_PRODUCE_VERSION
from kcodec.transactions.initialize import TransactionDescription

#: 48 INVALID_TXN_STATE and 120 TRANSACTION_ABORTABLE: what a broker says to a writer whose transaction has ended.
ENDED_CODES = frozenset({48, 120})


def ending_of(cluster: Cluster, handle: TransactionHandle, wall_clock: Callable[[], float]) -> Ending:
    """The transaction of a handle, as the flows that end or judge it want it. wall_clock: seconds since 1970, the only
    clock that a process shares with the broker that knows when the transaction began."""

    def is_over_time(found: TransactionDescription | None) -> bool:
        return found is not None and found.start_ms + found.timeout_ms <= wall_clock() * 1000

    return Ending(
        transactional_id=handle.transactional_id,
        producer=ProducerIdAndEpoch(handle.producer_id, handle.producer_epoch),
        is_new_flow=handle.transaction_version >= NEW_FLOW_LEVEL,
        is_shared=True,
        timeout_ms=0,
        is_over_time=is_over_time,
    )


class HandleSource(ProducerIdSource):
    """See the module, and ProducerIdSource. error: the first thing that went wrong; nothing is written after it."""

    def __init__(
        self,
        cluster: Cluster,
        handle: TransactionHandle,
        partitions: Iterable[TopicPartition],
        wall_clock: Callable[[], float],
    ) -> None:
        self.cluster = cluster
        self.handle = handle
        self.transactional_id: str | None = handle.transactional_id
        self.changed = Signal()
        self.error: BaseException | None = None
        self._ending = ending_of(cluster, handle, wall_clock)
        self._written: dict[TopicPartition, tuple[int, int]] = dict.fromkeys(partitions, (0, -1))
        self._to_settle: tuple[str, int] | None = None
        self._wake = Signal()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those it may write to."""
        return frozenset(self._written)

    @property
    def receipt(self) -> WriterReceipt:
        """What was acknowledged."""
        return WriterReceipt(self._written)

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """See ProducerIdSource."""
        return self._ending.producer

    def produce_highest_version(self) -> int:
        """See ProducerIdSource."""
        return 32767 if self._ending.is_new_flow else OLD_FLOW_PRODUCE_VERSION

    def may_send(self, partition: TopicPartition) -> bool:
        """See ProducerIdSource."""
        return partition in self._written and self._to_settle is None

    def refuses(self) -> BaseException | None:
        """See ProducerIdSource."""
        return self.error

    def on_success(self, partition: TopicPartition, records_count: int, last_sequence: int) -> None:
        """See ProducerIdSource."""
        self._written[partition] = self._written[partition][0] + records_count, last_sequence

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """See ProducerIdSource: a writer that lost a record gives no receipt, so it may as well stop."""
        self._stop(error)

    def on_unanswered(self, api: str) -> None:
        """See ProducerIdSource: the owner spends the epoch after every transaction that it shared."""

    def on_error_code(self, partition: TopicPartition, code: int) -> BatchDisposition:
        """See ProducerIdSource. Why the epoch is too old is asked; the batch waits for the answer."""
        if self.error is not None or code not in FENCED_CODES | ENDED_CODES:
            return BatchDisposition.FAIL
        if self._to_settle is None:
            self._to_settle = f"Produce to {partition} under the handle of {self.transactional_id!r}", code
            self._wake.set()
        return BatchDisposition.RETRY

    def _stop(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            self.changed.set()

    def run(self) -> Flow[None]:
        """Find out why an epoch is too old, once."""
        while self._to_settle is None:
            yield from wait(self._wake)
        doing, code = self._to_settle
        failed = yield from settle(self.cluster, self._ending, doing, code)
        self._stop(failed.error)
