# SPDX-License-Identifier: Apache-2.0
"""The lag of a reader to the end of the log and to the last stable offset, and the transaction that blocks the last
stable offset.

A read_committed reader cannot pass the last stable offset: if it is below the end of the log, a transaction is open,
and the reader is not slow. The leader reports the transaction's producer and first offset (DescribeProducers),
coordinators report its transactional id and start time (ListTransactions, DescribeTransactions; KIP-664).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kcodec.arguments import warn_renamed
from kcodec.cluster.list_offsets import list_offsets_handler, timestamp_of
from kcodec.cluster.metadata import Cluster
from kcodec.cluster.producer_states import (
    ProducerState,
    TransactionDescription,
    by_transactional_id,
    coordinators_lists,
    producers_of,
    transactions_of,
)
from kcodec.cluster.retry_driver import CallContext, Deadline, Outcome, request_items
from kcodec.constants import IsolationLevel
from kcodec.consumer.assignment import Assignment
from kcodec.consumer.committed_offsets import offset_fetch_handler, value_of
from kcodec.errors import DeliveryTimeoutError, KcodecError
from kcodec.flow import Flow
from kcodec.offsets import OffsetAndMetadata, TopicPartition


@dataclass(frozen=True)
class BlockingTransaction:
    """The transaction that blocks a last stable offset.

    transactional_id: None if no coordinator reported it. `kcodec txn find-hanging` then shows whether it is hanging.
    producer_id, producer_epoch: Identity of its producer.
    first_offset:     Offset of its first record in this partition, which is the last stable offset.
    since:            Start in ms since 1970, as its coordinator reports it; None if that is unknown.
    last_timestamp:   Timestamp of its last record in this partition, in ms.
    """

    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    first_offset: int
    since: int | None
    last_timestamp: int


@dataclass(frozen=True)
class PartitionLag:
    """The lag of a reader in one partition.

    position:           Next offset to read; None if it is unknown.
    committed:          Committed offset of its group; None if none exists.
    log_end_offset:     High watermark.
    last_stable_offset: End of the records that read_committed readers can read.
    lag, stable_lag:    Number of offsets, including markers, from the position (or the committed offset, if the
                        position is unknown) to these two; None if both are unknown. Both are 0 when everything is read,
                        because positions move past markers.
    blocking_transaction: Transaction that blocks the last stable offset; None if none exists, or it has just ended.
    blocking_transaction_error: Reason why the transaction, or its id, could not be found; None if it was found.
    """

    position: int | None
    committed: int | None
    log_end_offset: int
    last_stable_offset: int
    blocking_transaction: BlockingTransaction | None = None
    blocking_transaction_error: str | None = None

    @property
    def lag(self) -> int | None:
        """The number of offsets to the end of the log."""
        return self._to(self.log_end_offset)

    @property
    def stable_lag(self) -> int | None:
        """The number of offsets to the last stable offset."""
        return self._to(self.last_stable_offset)

    @property
    def holder(self) -> BlockingTransaction | None:
        """Deprecated name of `blocking_transaction`."""
        warn_renamed("PartitionLag.holder", "blocking_transaction")
        return self.blocking_transaction

    @property
    def holder_unknown(self) -> str | None:
        """Deprecated name of `blocking_transaction_error`."""
        warn_renamed("PartitionLag.holder_unknown", "blocking_transaction_error")
        return self.blocking_transaction_error

    def _to(self, end: int) -> int | None:
        begin = self.committed if self.position is None else self.position
        return None if begin is None else max(end - begin, 0)


def lag(
    cluster: Cluster,
    assignment: Assignment,
    group_id: str | None,
    timeout: float,
    partitions: Iterable[TopicPartition] | None = None,
) -> Flow[dict[TopicPartition, PartitionLag]]:
    """Return the lag of a consumer in its partitions, or in some of them. `group_id` is None without a group.

    Committed offsets are the current ones, not those that an open transaction may commit. Raise ValueError for a
    partition that is not assigned, BrokerError, AuthorizationError, DeliveryTimeoutError. If a blocking transaction
    cannot be identified (no permission, an old broker), no error is raised.
    """
    context = CallContext(cluster, timeout, int, DeliveryTimeoutError)
    deadline = context.deadline(timeout)
    requested = list(assignment.partitions if partitions is None else partitions)
    states = {item: assignment.state(item) for item in requested}
    committed: dict[TopicPartition, OffsetAndMetadata | None] = {}
    if group_id is not None and requested:
        handler = offset_fetch_handler(cluster, group_id, requested, require_stable=False)
        committed = value_of((yield from request_items(context, requested, handler, deadline)), group_id)
    outcome = yield from partition_lags(context, dict.fromkeys(requested), committed, deadline)
    found = outcome.first_value()
    # Positions are read last, so that records that arrived meanwhile are not reported as lag.
    return {item: replace(one, position=states[item].position) for item, one in found.items()}


def partition_lags(
    context: CallContext,
    positions: Mapping[TopicPartition, int | None],
    committed: Mapping[TopicPartition, OffsetAndMetadata | None],
    deadline: Deadline,
) -> Flow[Outcome[TopicPartition, PartitionLag]]:
    """Return the lag for these positions as an Outcome, with errors next to results."""
    outcome: Outcome[TopicPartition, PartitionLag] = Outcome("lag of")
    timestamps = dict.fromkeys(positions, timestamp_of("latest"))
    ends = {}
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        handler = list_offsets_handler(context.cluster, timestamps, level)
        listed = yield from request_items(context, timestamps, handler, deadline)
        outcome.errors |= listed.errors
        ends[level] = listed.results
    stable, whole = ends[IsolationLevel.READ_COMMITTED], ends[IsolationLevel.READ_UNCOMMITTED]
    for item, position in positions.items():
        if item in stable and item in whole:
            at = committed.get(item)
            offsets = whole[item].offset, stable[item].offset
            outcome.results[item] = PartitionLag(position, None if at is None else at.offset, *offsets)
    held = [item for item, one in outcome.results.items() if one.last_stable_offset < one.log_end_offset]
    if held:
        for item, (opened, unknown) in (yield from open_transactions_of(context, held, deadline)).items():
            first = opened[0] if opened else None
            outcome.results[item] = replace(
                outcome.results[item], blocking_transaction=first, blocking_transaction_error=unknown
            )
    return outcome


def open_transactions_of(
    context: CallContext, partitions: Iterable[TopicPartition], deadline: Deadline, *, most: int = 1
) -> Flow[dict[TopicPartition, tuple[tuple[BlockingTransaction, ...], str | None]]]:
    """Return the open transactions of each partition, by their first offsets, and the reason if a transactional id is
    unknown. If a leader did not report its producers, the partition has no transactions.

    most: Maximum number of transactions of each partition.
    """
    held = list(partitions)
    producers = yield from producers_of(context, held, None, deadline.share(3))
    found: dict[TopicPartition, tuple[tuple[BlockingTransaction, ...], str | None]] = {}
    blocking = {}
    for item in held:
        if item in producers.errors:
            found[item] = (), str(producers.errors[item])
        elif first := _first_open(producers.results[item])[:most]:
            blocking[item] = first
    if not blocking:
        return found
    producer_ids = sorted({state.producer_id for states in blocking.values() for state in states})
    try:
        lists = yield from coordinators_lists(context, (), producer_ids, None, None, deadline.share(2))
    except DeliveryTimeoutError as error:
        lists = Outcome("list transactions", {}, {-1: error})
    ids = {one.producer_id: one.transactional_id for one in by_transactional_id(lists.results).values()}
    listed = yield from transactions_of(context, ids.values(), deadline.remaining)
    for item, states in blocking.items():
        opened, unknown = [], None
        for state in states:
            name = ids.get(state.producer_id)
            if name is None:
                unknown = _first_text(lists.errors.values())
            elif name in listed.errors:
                unknown = _first_text([listed.errors[name]])
            opened.append(_opened(state, name, None if name is None else listed.results.get(name)))
        found[item] = tuple(opened), unknown
    return found


def _first_open(states: Iterable[ProducerState]) -> list[ProducerState]:
    """Return the producers with an open transaction, ordered by its first offset."""
    opened = [state for state in states if state.current_transaction_start_offset is not None]
    return sorted(opened, key=lambda state: state.current_transaction_start_offset or 0)


def _first_text(errors: Iterable[KcodecError]) -> str:
    """Return why no coordinator reported the transaction."""
    return next(map(str, errors), "no transactional id has this producer id")


def _opened(state: ProducerState, name: str | None, listed: TransactionDescription | None) -> BlockingTransaction:
    assert state.current_transaction_start_offset is not None
    is_same = listed is not None and listed.producer_id == state.producer_id
    return BlockingTransaction(
        name,
        state.producer_id,
        state.producer_epoch,
        state.current_transaction_start_offset,
        listed.start_timestamp if listed is not None and is_same else None,
        state.last_timestamp,
    )
