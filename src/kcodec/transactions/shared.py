# SPDX-License-Identifier: Apache-2.0
"""A shared transaction: what a process does that has only its handle, to write into it and to end it.

A `TransactionWriter` writes under the identity of the handle, which it can neither renew nor end. It names the
partitions it writes to, and no other writes to them. Any of IDENTITY_ERRORS means: stop, and leave the decision to the
owner of the transaction.

A transaction is ended by EndTxn directly, never by InitProducerId, which would abort it. Any process may do it, also
after all that took part were restarted, and any number of times: the response to a repeat of the same end is success.
The only bound is the transaction's time-out, which the coordinator keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.errors import BrokerError, FatalTransactionError, TransactionStateError
from kcodec.flow import Flow, Signal, wait
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.producer.identity import HIGHEST_VERSION, BatchDisposition, ProducerIdSource
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.end import end_transaction
from kcodec.transactions.errors import FENCED_CODES, Failed, TransactionDisposition, abortable
from kcodec.transactions.fencing import ONGOING, Ending, TransactionStatus, describe_transaction, investigate
from kcodec.transactions.handle import TransactionHandle, WriterReceipt, check_receipts
from kcodec.transactions.offsets import Offsets, commit_offsets
from kcodec.transactions.transaction import NEW_FLOW_LEVEL, OLD_FLOW_PRODUCE_VERSION

#: How a broker refuses a writer whose transaction has ended.
ENDED_CODES = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})


def ending_of(handle: TransactionHandle, wall_clock: Callable[[], float]) -> Ending:
    """Return the transaction of a handle, as the flows that end or investigate it need it.

    wall_clock: seconds since 1970, the only clock that a process shares with the broker that knows when the transaction
    began.
    """

    def is_over_time(found: TransactionStatus | None) -> bool:
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
    """The identity of a TransactionWriter. error: the first that was met; nothing is written after it."""

    def __init__(
        self,
        cluster: Cluster,
        handle: TransactionHandle,
        partitions: Iterable[TopicPartition],
        wall_clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self.cluster = cluster
        self.transactional_id = handle.transactional_id
        self.error: BaseException | None = None
        self._ending = ending_of(handle, wall_clock)
        self._written: dict[TopicPartition, tuple[int, int]] = dict.fromkeys(partitions, (0, -1))
        self._to_investigate: tuple[str, int] | None = None
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
        return HIGHEST_VERSION if self._ending.is_new_flow else OLD_FLOW_PRODUCE_VERSION

    def may_send(self, partition: TopicPartition) -> bool:
        """See ProducerIdSource."""
        return partition in self._written and self._to_investigate is None

    def refuses(self) -> BaseException | None:
        """See ProducerIdSource."""
        return self.error

    def on_success(self, partition: TopicPartition, records_count: int, last_sequence: int) -> None:
        """See ProducerIdSource."""
        self._written[partition] = self._written[partition][0] + records_count, last_sequence

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """See ProducerIdSource: a writer that lost a record gives no receipt, so it may as well stop."""
        self._stop(error)

    def on_error_code(self, partition: TopicPartition, code: int) -> BatchDisposition:
        """See ProducerIdSource. Why the epoch is too old is investigated; the batch waits for that."""
        if self.error is not None or code not in FENCED_CODES | ENDED_CODES:
            return BatchDisposition.FAIL
        if self._to_investigate is None:
            self._to_investigate = f"Produce to {partition} under the handle of {self.transactional_id!r}", code
            self._wake.set()
        return BatchDisposition.RETRY

    def _stop(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            self.changed.set()

    def run(self) -> Flow[None]:
        """Find out why an epoch is too old, once."""
        while self._to_investigate is None:
            yield from wait(self._wake)
        doing, code = self._to_investigate
        failed = yield from investigate(self.cluster, self._ending, doing, code)
        self._stop(failed.error)


def commit_shared(
    cluster: Cluster,
    handle: TransactionHandle,
    *,
    receipts: Iterable[WriterReceipt],
    offsets: Offsets,
    group: ConsumerGroupMetadata | None,
    timeout: float,
    wall_clock: Callable[[], float],
) -> Flow[None]:
    """Commit the transaction of a handle, offsets with it.

    Raise ValueError (two receipts for one partition), TransactionStateError (a partition without a receipt, or a
    receipt for what is not in the transaction): nothing was sent then. After that what `end_transaction` says, as
    AbortableTransactionError where the transaction was not committed, UnknownOutcomeError where it is not known.
    """
    deadline = cluster.clock() + timeout
    written = check_receipts(receipts)
    ending = ending_of(handle, wall_clock)
    found = yield from describe_transaction(cluster, handle.transactional_id, deadline)
    if found is not None and found.state == ONGOING and found.producer == ending.producer and written:
        _check_partitions(handle, found, written)
    is_repeat = found is not None and found.is_committed and found.has_ended(ending.producer, ending.is_new_flow)
    try:
        if offsets and group is not None and not is_repeat:
            yield from commit_offsets(
                cluster,
                ending.transactional_id,
                ending.producer,
                offsets,
                group,
                deadline,
                is_new_flow=ending.is_new_flow,
                groups=set(),
                # The owner spends the epoch of every transaction that it shared.
                on_unanswered=lambda: None,
            )
        yield from end_transaction(cluster, ending, True, deadline)
    except Failed as failed:
        error = failed.error
        is_empty = written and not any(written.values()) and not offsets
        if is_empty and isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_TXN_STATE:
            return
        raise _not_committed(handle, failed) from failed


def abort_shared(
    cluster: Cluster, handle: TransactionHandle, *, timeout: float, wall_clock: Callable[[], float]
) -> Flow[None]:
    """Abort the transaction of a handle. Nothing happens if it is aborted already; AbortableTransactionError if it was
    committed."""
    ending = ending_of(handle, wall_clock)
    try:
        yield from end_transaction(cluster, ending, False, cluster.clock() + timeout)
    except Failed as failed:
        raise failed.error from failed


def _check_partitions(handle: TransactionHandle, found: TransactionStatus, written: dict[TopicPartition, int]) -> None:
    """Raise TransactionStateError unless the coordinator and the receipts name the same partitions."""
    known = {
        TopicPartition(topic, partition)
        for topic, partitions in found.partitions.items()
        if topic != "__consumer_offsets"
        for partition in partitions
    }
    what = ""
    if missing := sorted(known - written.keys()):
        what = f"no receipt covers {_names(missing)}: a writer of it may have failed and left a part of its records"
    elif strange := sorted(partition for partition, records in written.items() if records and partition not in known):
        what = (
            f"a receipt names {_names(strange)}, which is not in the transaction: the receipt is of another transaction"
        )
    if what:
        raise TransactionStateError(
            f"the transaction of {handle.transactional_id!r} is not committed: {what}. "
            "Abort it (abort_transaction), or pass the receipts of all writers",
            state="IN_TRANSACTION",
            event="COMMIT",
        )


def _names(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(str(partition) for partition in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"


def _not_committed(handle: TransactionHandle, failed: Failed) -> BaseException:
    error = failed.error
    is_plain = failed.disposition is TransactionDisposition.EMPTY or isinstance(error, FatalTransactionError)
    if not is_plain or not isinstance(error, BrokerError) or error.code != ErrorCode.INVALID_TXN_STATE:
        return error
    text = (
        f"the transaction of {handle.transactional_id!r} was not committed: it was aborted, or nothing was written "
        "to it (if so, pass the empty receipts of its writers)"
    )
    return abortable(text, error.code, handle.transactional_id)
