# SPDX-License-Identifier: Apache-2.0
"""A shared transaction: the flows with which a process that has only the handle writes to it and ends it.

A `TransactionWriter` writes with the identity of the handle, which it can neither renew nor end. It names the
partitions that it writes to, and no other writer may write to them. After any of IDENTITY_ERRORS it stops and leaves
the decision to the owner of the transaction.

A transaction that no producer owns begins with InitProducerId, which fences the last producer of the id and aborts its
open transaction. Below transaction version 2, AddPartitionsToTxn for all its partitions follows.

A transaction is ended by EndTxn, because InitProducerId would abort it. Any process may send EndTxn, even after a
restart of all participants, and any number of times, because the response to a repeat of the same end is success. The
only limit is the transaction's timeout, which the coordinator enforces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.cluster.retry_driver import CallContext
from kcodec.errors import (
    AuthorizationError,
    BrokerError,
    DeliveryTimeoutError,
    FatalTransactionError,
    KcodecError,
    TransactionStateError,
)
from kcodec.flow import Flow, Signal, wait
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.producer.identity import HIGHEST_VERSION, BatchDisposition, ProducerIdManager
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.end import end_transaction
from kcodec.transactions.errors import FENCED_CODES, Failed, TransactionDisposition, abortable
from kcodec.transactions.fencing import (
    ONGOING,
    Ending,
    TransactionStatus,
    describe_transaction,
    investigate,
    investigate_failed,
)
from kcodec.transactions.handle import TransactionHandle, WriterReceipt, check_receipts
from kcodec.transactions.initialize import init_producer_id
from kcodec.transactions.offsets import Offsets, commit_offsets
from kcodec.transactions.partitions import add_partitions
from kcodec.transactions.requests import CONCURRENT_BACKOFF, OWN_CONCURRENT_BACKOFF
from kcodec.transactions.transaction import NEW_FLOW_LEVEL, OLD_FLOW_PRODUCE_VERSION

#: How a broker refuses a writer whose transaction has ended.
ENDED_CODES = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})


def ending_of(handle: TransactionHandle, wall_clock: Callable[[], float]) -> Ending:
    """Return the transaction of a handle in the form for the flows that end or investigate it.

    wall_clock: Returns the time in seconds since 1970. Only this clock can be compared with the start time that a
                broker reports.
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


class HandleProducerId(ProducerIdManager):
    """The identity of a TransactionWriter.

    error:         The first error. Nothing is written after it.
    check_seconds: With must_be_first, time within which a leader must report whether another writer has written. None:
                   no
                   check.
    """

    def __init__(
        self,
        cluster: Cluster,
        handle: TransactionHandle,
        partitions: Iterable[TopicPartition],
        wall_clock: Callable[[], float],
        check_seconds: float | None = None,
    ) -> None:
        super().__init__()
        self.cluster = cluster
        self.transactional_id = handle.transactional_id
        self.error: BaseException | None = None
        self._ending = ending_of(handle, wall_clock)
        self._written: dict[TopicPartition, tuple[int, int]] = dict.fromkeys(partitions, (0, -1))
        self._to_investigate: tuple[str, int] | None = None
        self._check_seconds = check_seconds
        self._unchecked = set(self._written) if check_seconds is not None else set()
        self._to_check: set[TopicPartition] = set()
        self._wake = Signal()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that the writer may write to."""
        return frozenset(self._written)

    @property
    def receipt(self) -> WriterReceipt:
        """The receipt for the acknowledged records."""
        return WriterReceipt(self._written)

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """See ProducerIdManager."""
        return self._ending.producer

    def produce_highest_version(self) -> int:
        """See ProducerIdManager."""
        return HIGHEST_VERSION if self._ending.is_new_flow else OLD_FLOW_PRODUCE_VERSION

    def may_send(self, partition: TopicPartition) -> bool:
        """See ProducerIdManager. With must_be_first, the first batch of a partition waits for the report of the
        leader."""
        if partition in self._unchecked:
            self._to_check.add(partition)
            self._wake.set()
            return False
        return partition in self._written and self._to_investigate is None

    def refuses(self) -> BaseException | None:
        """See ProducerIdManager."""
        return self.error

    def on_success(self, partition: TopicPartition, records_count: int, last_sequence: int) -> None:
        """See ProducerIdManager."""
        self._written[partition] = self._written[partition][0] + records_count, last_sequence

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """See ProducerIdManager. A writer that has lost a record returns no receipt, so it stops."""
        self._stop(error)

    def on_error_code(self, partition: TopicPartition, code: int) -> BatchDisposition:
        """See ProducerIdManager. If the epoch is too old, the reason is investigated, and the batch waits for the
        result."""
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
        """Check for another writer, and investigate, once, why an epoch is too old."""
        while self._to_investigate is None:
            if self._to_check and self.error is None:
                yield from self._check_first()
            else:
                yield from wait(self._wake)
        doing, code = self._to_investigate
        failed = yield from investigate(self.cluster, self._ending, doing, code)
        self._stop(failed.error)

    def _check_first(self) -> Flow[None]:
        """Stop if this producer id and epoch has already written to one of the partitions."""
        from kcodec.cluster.producer_states import producers_of

        partitions, seconds = sorted(self._to_check), self._check_seconds
        context = CallContext(self.cluster, seconds or 0.0, int, DeliveryTimeoutError)
        try:
            found = (yield from producers_of(context, partitions, None, seconds)).first_value()
        except KcodecError as error:
            if isinstance(error, AuthorizationError) and isinstance(error.resource, TopicPartition):
                error.resource = error.resource.topic
            error.add_note(
                "must_be_first=True requests the producers of a partition from its leader, which requires READ on its "
                "topic and brokers from Kafka 2.8 on"
            )
            self._stop(error)
            return
        for partition in partitions:
            for state in found[partition]:
                # The end marker of the previous transaction may have set the epoch, without a sequence number.
                is_same = (state.producer_id, state.producer_epoch) == self._ending.producer
                if is_same and (state.last_sequence >= 0 or state.current_transaction_start_offset is not None):
                    self._stop(_not_first(self._ending.transactional_id, partition, state.last_sequence))
                    return
        self._unchecked.difference_update(partitions)
        self._to_check.difference_update(partitions)
        self.changed.set()


def _not_first(transactional_id: str, partition: TopicPartition, last_sequence: int) -> BrokerError:
    text = (
        f"another writer has already written to {partition} with this handle of {transactional_id!r} (up to "
        f"sequence number {last_sequence}), and must_be_first is set; this writer has written "
        "nothing. A partition may have only one writer: abort the transaction (abort_transaction), and write it again"
    )
    return abortable(text, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, partition)


def begin_shared(
    cluster: Cluster,
    transactional_id: str,
    partitions: Iterable[TopicPartition],
    timeout_ms: int,
    deadline: float,
    *,
    expected: ProducerIdAndEpoch | None = None,
    on_no_response: Callable[[], None] = lambda: None,
    is_init_unconfirmed: bool = False,
    on_initialized: Callable[[ProducerIdAndEpoch], None] = lambda producer: None,
) -> Flow[TransactionHandle]:
    """Take over the transactional id, abort its open transaction, and begin a transaction without an owner.

    expected:      The (producer id, epoch) of the previous transaction, if this process began it. The call then
                   succeeds only if no other process has taken over the id. None takes over the id.
    on_no_response: Called for each copy of InitProducerId that got no response.
    is_init_unconfirmed: Whether a copy of an earlier call got no response.
    on_initialized: Called with the (producer id, epoch) of the transaction as soon as it is known.

    Raise the error of InitProducerId and AddPartitionsToTxn (ProducerFencedError, AuthorizationError ...),
    DeliveryTimeoutError, TransactionStateError without partitions below transaction version 2.
    """
    try:
        producer = yield from init_producer_id(
            cluster,
            transactional_id,
            timeout_ms,
            expected,
            deadline,
            on_no_response,
            is_init_unconfirmed=is_init_unconfirmed,
            concurrent_backoff=CONCURRENT_BACKOFF if expected is None else OWN_CONCURRENT_BACKOFF,
        )
    except Failed as failed:
        raise failed.error from failed
    on_initialized(producer)
    handle = TransactionHandle(transactional_id, *producer, cluster.transaction_version)
    if handle.transaction_version < NEW_FLOW_LEVEL:
        yield from _add_up_front(cluster, handle, set(partitions), deadline)
    return handle


def _add_up_front(
    cluster: Cluster, handle: TransactionHandle, partitions: set[TopicPartition], deadline: float
) -> Flow[None]:
    """Send AddPartitionsToTxn, so that the end of this transaction fences its late writers in each partition."""
    if not partitions:
        raise TransactionStateError(
            f"partitions is empty, but the transaction.version of this cluster is {handle.transaction_version}: below "
            f"{NEW_FLOW_LEVEL}, pass all partitions to which the writers will write when the transaction begins",
            state="READY",
            event="BEGIN",
        )
    producer = ProducerIdAndEpoch(handle.producer_id, handle.producer_epoch)
    try:
        yield from add_partitions(
            cluster,
            handle.transactional_id,
            producer,
            partitions,
            deadline,
            # Each transaction without an owner has its own epoch, so that a late copy cannot reach another one.
            on_no_response=lambda: None,
            is_over=lambda: False,
        )
    except Failed as failed:
        raise failed.error from failed


def commit_shared(
    cluster: Cluster,
    handle: TransactionHandle,
    *,
    receipts: Iterable[WriterReceipt] | None,
    offsets: Offsets,
    group: ConsumerGroupMetadata | None,
    timeout: float,
    wall_clock: Callable[[], float],
) -> Flow[ProducerIdAndEpoch]:
    """Commit the transaction of a handle, with offsets. Return the (producer id, epoch) to name in the next
    InitProducerId.

    receipts:      Receipts of all writers. If it is empty and the transaction has a partition, an error is raised.
                   None: no check.

    Before anything is sent, raise ValueError (two receipts for one partition) or TransactionStateError (a partition
    without a receipt, or a receipt for a partition outside the transaction). After that, raise the errors of
    `end_transaction`: AbortableTransactionError if the transaction was not committed, UnknownOutcomeError if its
    outcome is unknown.
    """
    deadline = cluster.clock() + timeout
    written = check_receipts(receipts or ())
    ending = ending_of(handle, wall_clock)
    found = yield from describe_transaction(cluster, handle.transactional_id, deadline)
    is_open = found is not None and found.state == ONGOING and found.producer == ending.producer
    if found is not None and is_open and receipts is not None:
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
                # The owner uses a new epoch after every transaction that it shared.
                on_no_response=lambda: None,
            )
        following = yield from end_transaction(cluster, ending, True, deadline)
        return following or ending.producer
    except Failed as first:
        failed = yield from investigate_failed(cluster, ending, first, deadline)
        error = failed.error
        is_empty = written and not any(written.values()) and not offsets
        if is_empty and isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_TXN_STATE:
            return ending.producer
        raise _not_committed(handle, failed) from first


def abort_shared(
    cluster: Cluster, handle: TransactionHandle, *, timeout: float, wall_clock: Callable[[], float]
) -> Flow[ProducerIdAndEpoch]:
    """Abort the transaction of a handle. Return the (producer id, epoch) to name in the next InitProducerId. This has
    no effect on an aborted transaction. Raise AbortableTransactionError if it was committed."""
    ending = ending_of(handle, wall_clock)
    try:
        following = yield from end_transaction(cluster, ending, False, cluster.clock() + timeout)
        return following or ending.producer
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
        what = f"no receipt covers {_names(missing)}: a writer may have failed there and left some of its records"
    elif strange := sorted(partition for partition, records in written.items() if records and partition not in known):
        what = f"a receipt names {_names(strange)}, which is not in the transaction: it belongs to another transaction"
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
