# SPDX-License-Identifier: Apache-2.0
"""Successive transactions that one process begins and ends and others write to, with the progress of the job.

The progress is a committed offset of the job's group, and its metadata. Each commit writes the next one within the
transaction, so that the records and the progress become visible together or not at all. After a begin, the progress is
final: InitProducerId has aborted an open transaction, and OffsetFetch waits (RequireStable) until no transaction has a
pending offset. If a process does not know the outcome of its last commit, it therefore begins again, and the progress
shows the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.cluster.retry_driver import CallContext, request_items
from kcodec.consumer.committed_offsets import STABLE_VERSION, offset_fetch_handler, value_of
from kcodec.errors import DeliveryTimeoutError, ProducerFencedError
from kcodec.flow import Flow
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.transactions.handle import TransactionHandle, WriterReceipt, check_handle
from kcodec.transactions.shared import abort_shared, begin_shared, commit_shared


class SharedTransactionFlows:
    """The flows of `kcodec.client.SharedTransactions`. `timeout` is the number of seconds for the whole call.

    progress_partition: Partition whose committed offset is the progress. None: partition 0 of the topic that `begin`
                        names.
    wall_clock:         Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        group_id: str,
        transaction_timeout_ms: int,
        progress_partition: TopicPartition | None,
        wall_clock: Callable[[], float],
    ) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._group = ConsumerGroupMetadata(group_id)
        self._transaction_timeout_ms = transaction_timeout_ms
        self._is_named = progress_partition is not None
        self._progress_partition = progress_partition
        self._wall_clock = wall_clock
        #: What the next InitProducerId expects; None before the first, which takes the transactional id over.
        self._expected: ProducerIdAndEpoch | None = None
        self._is_init_unconfirmed = False
        self._fenced: ProducerFencedError | None = None

    def begin(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Flow[tuple[TransactionHandle, OffsetAndMetadata | None]]:
        """Begin a transaction. Return its handle and the progress, or None if the group has no progress.

        If another process has taken over the id, no request is sent. For an InitProducerId with an old epoch, a
        coordinator first aborts the open transaction of the id, and compares the epoch only then.
        """
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)
        if not self._is_named:
            self._progress_partition = _progress_partition(partitions)
        deadline = self._cluster.clock() + timeout
        try:
            handle = yield from begin_shared(
                self._cluster,
                self.transactional_id,
                partitions,
                self._transaction_timeout_ms,
                deadline,
                expected=self._expected,
                on_no_response=self._note_no_response,
                is_init_unconfirmed=self._is_init_unconfirmed,
                on_initialized=self._note_producer,
            )
        except ProducerFencedError as error:
            self._fenced = error
            raise
        progress = yield from self._fetch_progress(deadline)
        return handle, progress

    def _note_no_response(self) -> None:
        self._is_init_unconfirmed = True

    def _note_producer(self, producer: ProducerIdAndEpoch) -> None:
        self._expected = producer

    def _fetch_progress(self, deadline: float) -> Flow[OffsetAndMetadata | None]:
        partition, group_id = self._known_partition(), self._group.group_id
        left = max(deadline - self._cluster.clock(), 0.0)
        context = CallContext(self._cluster, left, int, DeliveryTimeoutError)
        handler = offset_fetch_handler(self._cluster, group_id, [partition], lowest=STABLE_VERSION)
        outcome = yield from request_items(context, [partition], handler, context.deadline(None))
        found: OffsetAndMetadata | None = value_of(outcome, group_id)[partition]
        return found

    def commit(
        self,
        handle: TransactionHandle,
        receipts: Iterable[WriterReceipt],
        progress: int | OffsetAndMetadata,
        timeout: float,
    ) -> Flow[None]:
        """Commit the transaction of a handle, with the progress."""
        self._check(handle)
        following = yield from commit_shared(
            self._cluster,
            handle,
            receipts=receipts,
            offsets=check_offsets({self._known_partition(): progress}),
            group=self._group,
            timeout=timeout,
            wall_clock=self._wall_clock,
        )
        self._note_end(handle, following)

    def abort(self, handle: TransactionHandle, timeout: float) -> Flow[None]:
        """Abort the transaction of a handle."""
        self._check(handle)
        following = yield from abort_shared(self._cluster, handle, timeout=timeout, wall_clock=self._wall_clock)
        self._note_end(handle, following)

    def _note_end(self, handle: TransactionHandle, following: ProducerIdAndEpoch) -> None:
        if self._expected == (handle.producer_id, handle.producer_epoch):
            self._expected = following

    def _check(self, handle: TransactionHandle) -> None:
        check_handle(handle)
        if handle.transactional_id != self.transactional_id:
            raise ValueError(
                f"the handle is of transactional_id {handle.transactional_id!r}, not of {self.transactional_id!r}"
            )

    def _known_partition(self) -> TopicPartition:
        if self._progress_partition is None:
            raise ValueError(
                "the progress partition is unknown, because begin() was not called here: pass "
                "progress_partition=TopicPartition(topic, partition)"
            )
        return self._progress_partition


def _progress_partition(partitions: Collection[TopicPartition]) -> TopicPartition:
    """Return partition 0 of the only topic of these partitions. Raise ValueError if none exists, or several."""
    topics = sorted({partition.topic for partition in partitions})
    if len(topics) != 1:
        found = f"has {len(topics)} topics ({', '.join(topics)})" if topics else "is empty"
        raise ValueError(
            f"partitions {found}, so the progress partition is unknown: pass "
            "progress_partition=TopicPartition(topic, partition)"
        )
    return TopicPartition(topics[0], 0)
