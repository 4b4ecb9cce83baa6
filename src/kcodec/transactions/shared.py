# SPDX-License-Identifier: Apache-2.0
"""Ending a transaction with nothing but its handle: EndTxn directly, never InitProducerId, which would abort it.

Anybody may do it, also after every process that took part was restarted, and any number of times: a repeat of the same
end is answered with success. Bound is only the time: the transaction's own time-out, which the coordinator keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcodec.cluster.metadata import Cluster
from kcodec.errors import (
    AbortableTransactionError,
    BrokerError,
    FatalTransactionError,
    TransactionStateError,
)
from kcodec.flow import Flow
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.transactions.end import INVALID_TXN_STATE, end_transaction
from kcodec.transactions.errors import Failed, Treatment
from kcodec.transactions.fencing import ONGOING, Ending
from kcodec.transactions.handle import TransactionHandle, WriterReceipt, check_receipts
from kcodec.transactions.handle_identity import ending_of
from kcodec.transactions.initialize import TransactionDescription, describe_transaction
from kcodec.transactions.offsets import Offsets, add_offsets, commit_offsets


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

    Raises ValueError (two receipts for one partition), TransactionStateError (a partition without a receipt, or a
    receipt for what is not in the transaction): nothing was sent then. After that what `end_transaction` says, as
    AbortableTransactionError where the transaction was not committed, UnknownOutcomeError where nobody knows.
    """
    deadline = cluster.clock() + timeout
    written = check_receipts(receipts)
    ending = ending_of(cluster, handle, wall_clock)
    found = yield from describe_transaction(cluster, handle.transactional_id, deadline)
    if found is not None and found.state == ONGOING and found.producer == ending.producer and written:
        _check_partitions(handle, found, written)
    is_repeat = found is not None and found.is_committed and found.has_ended(ending.producer, ending.is_new_flow)
    try:
        if offsets and group is not None and not is_repeat:
            yield from _send_offsets(cluster, ending, offsets, group, deadline)
        yield from end_transaction(cluster, ending, True, deadline)
    except Failed as failed:
        error = failed.error
        is_empty = written and not any(written.values()) and not offsets
        if is_empty and isinstance(error, BrokerError) and error.code == INVALID_TXN_STATE:
            return
        raise _not_committed(handle, failed) from failed


def abort_shared(
    cluster: Cluster, handle: TransactionHandle, *, timeout: float, wall_clock: Callable[[], float]
) -> Flow[None]:
    """Abort the transaction of a handle. Nothing happens if it is aborted already; AbortableTransactionError if it was
    committed."""
    ending = ending_of(cluster, handle, wall_clock)
    try:
        yield from end_transaction(cluster, ending, False, cluster.clock() + timeout)
    except Failed as failed:
        raise failed.error from failed


def _check_partitions(
    handle: TransactionHandle, found: TransactionDescription, written: dict[TopicPartition, int]
) -> None:
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


def _send_offsets(
    cluster: Cluster, ending: Ending, offsets: Offsets, group: ConsumerGroupMetadata, deadline: float
) -> Flow[None]:
    def on_unanswered() -> None:
        """The owner spends the epoch of every transaction that it shared."""

    known = cluster, ending.transactional_id, ending.producer
    if not ending.is_new_flow:
        yield from add_offsets(*known, group.group_id, deadline, on_unanswered)
    yield from commit_offsets(
        *known, offsets, group, deadline, is_new_flow=ending.is_new_flow, on_unanswered=on_unanswered
    )


def _not_committed(handle: TransactionHandle, failed: Failed) -> BaseException:
    error = failed.error
    is_plain = failed.treatment is Treatment.EMPTY or isinstance(error, FatalTransactionError)
    if not is_plain or not isinstance(error, BrokerError) or error.code != INVALID_TXN_STATE:
        return error
    return AbortableTransactionError(
        f"the transaction of {handle.transactional_id!r} was not committed: it was aborted, or nothing was written "
        "to it (if so, pass the empty receipts of its writers)",
        code=error.code,
        name=error.name,
        remedy="abort",
        resource=handle.transactional_id,
    )
