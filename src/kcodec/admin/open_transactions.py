# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: transactions that nobody will end. What hangs, and what its owner has left behind.

A transaction hangs in a partition when the partition's leader holds it open and its coordinator will not write a
marker there: no transactional id has this producer id, or the coordinator's transaction of it does not name the
partition, or is of another epoch. Then the last stable offset is stuck for good (KAFKA-12895 and KIP-890 tell how it
comes about). This is `kafka-transactions.sh find-hanging` (TransactionsCommand), with four differences: all partitions
of all brokers can be asked for in one call, internal topics always belong to them; the longest transaction that may
still be young is what the brokers' transaction.max.timeout.ms allows; a transaction whose records carry times in the
future counts as old, as its age cannot be told; and each find is confirmed by a second look.

A stray is a transaction that its coordinator holds open, in which nobody has written for a while: of a
TransactionHandle whose owner died it is all that is left. Who owns a connection cannot be seen from outside, so it
is the silence that tells, and the application's own record of its handles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kcodec.admin.configs import describe_configs
from kcodec.admin.topics import describe_topics, list_topics
from kcodec.admin.values import ConfigResource, TopicDescription
from kcodec.arguments import names_of, partitions_of
from kcodec.cluster.producer_states import (
    ProducerState,
    TransactionDescription,
    by_transactional_id,
    coordinators_lists,
    producers_of,
    transactions_of,
)
from kcodec.cluster.retry_driver import CallContext, Deadline, Outcome
from kcodec.errors import AdminError, BrokerError, KcodecError
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode

MAX_TIMEOUT_SETTING = "transaction.max.timeout.ms"
# Kafka's default of that setting, for brokers that do not tell us theirs.
DEFAULT_MAX_TRANSACTION_TIMEOUT_MS = 900_000
DEFAULT_IDLE_MS = 60_000


@dataclass(frozen=True)
class HangingTransaction:
    """An open transaction in a partition that no coordinator will end.

    why: what the coordinator says of the producer id. transactional_id: None where no id has it.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int
    age_ms: int
    transactional_id: str | None
    why: str


@dataclass(frozen=True)
class HangingTransactions:
    """What `find_hanging_transactions` found. errors: partitions, ids or brokers that could not be asked, with why."""

    transactions: tuple[HangingTransaction, ...]
    partitions_searched: int
    max_transaction_timeout_ms: int
    errors: dict[Any, KcodecError] = field(default_factory=dict)


@dataclass(frozen=True)
class StrayTransaction:
    """An open transaction in which nobody writes. age_ms: since it began; idle_ms: since the last record or that.

    partitions: those that the coordinator knows of; times out by itself `transaction_timeout_ms` after it began.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    start_timestamp: int
    age_ms: int
    idle_ms: int
    transaction_timeout_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class StrayTransactions:
    """What `find_stray_transactions` found. errors: what could not be asked."""

    transactions: tuple[StrayTransaction, ...]
    errors: dict[Any, KcodecError] = field(default_factory=dict)


def find_hanging_transactions(
    context: CallContext,
    *,
    topics: Iterable[str] | None = None,
    partitions: Iterable[TopicPartition] | None = None,
    broker_id: int | None = None,
    max_transaction_timeout_ms: int | None = None,
    now: int | None = None,
    timeout: float | None = None,
) -> Flow[HangingTransactions]:
    """Transactions that hang: in these partitions or topics, on this broker, or anywhere; internal topics, too.

    max_transaction_timeout_ms: younger ones are passed over; None for the longest that a broker of the cluster allows.
    now: what ages are counted to, None for this machine's time.
    Raises BrokerError or TransportError where not even the topics can be listed; everything else that fails is in
    `errors` of what is returned.
    """
    errors: dict[Any, KcodecError] = {}
    deadline = context.deadline(timeout)
    longest = max_transaction_timeout_ms
    if longest is None:
        longest = yield from _longest_timeout(context, deadline.share(7))
    searched = yield from _partitions(context, topics, partitions, broker_id, errors, deadline)
    found = yield from producers_of(context, searched, broker_id, deadline.share(4))
    errors.update(found.errors)
    now = context.now() if now is None else now
    candidates = [
        (partition, state)
        for partition, states in found.results.items()
        for state in states
        if state.current_transaction_start_offset is not None and _is_old(state, now, longest)
    ]
    hanging: list[HangingTransaction] = []
    if candidates:
        view = yield from _coordinators_view(context, candidates, errors, deadline)
        for partition, state in candidates:
            why = _why_hanging(partition, state, view)
            if why is not None:
                hanging.append(_hanging(partition, state, view.ids.get(state.producer_id), why, now))
        hanging = yield from _confirmed(context, hanging, broker_id, deadline)
    return HangingTransactions(tuple(hanging), len(searched), longest, errors)


def _is_old(state: ProducerState, now: int, longest: int) -> bool:
    return not 0 <= now - state.last_timestamp <= longest


def _longest_timeout(context: CallContext, timeout: float) -> Flow[int]:
    """transaction.max.timeout.ms of the brokers, the longest of them."""
    deadline = context.deadline(timeout)
    yield from context.cluster.refresh(context.call_timeout(deadline))
    resources = [ConfigResource.broker(broker) for broker in context.cluster.brokers]
    try:
        names = [MAX_TIMEOUT_SETTING]
        configs = yield from describe_configs(context, resources, names=names, timeout=deadline.remaining)
    except AdminError as error:
        configs = error.results
    except BrokerError:  # no permission: Kafka's default then
        configs = {}
    values = [entries[MAX_TIMEOUT_SETTING].value for entries in configs.values() if MAX_TIMEOUT_SETTING in entries]
    return max([int(value) for value in values if value] or [DEFAULT_MAX_TRANSACTION_TIMEOUT_MS])


def _partitions(
    context: CallContext,
    topics: Iterable[str] | None,
    partitions: Iterable[TopicPartition] | None,
    broker_id: int | None,
    errors: dict[Any, KcodecError],
    deadline: Deadline,
) -> Flow[list[TopicPartition]]:
    """Where to look. A topic that cannot be described is noted, and passed over."""
    if partitions is not None:
        return partitions_of(partitions)
    names = (
        names_of(topics, "topics")
        if topics is not None
        else list((yield from list_topics(context, include_internal=True, timeout=deadline.share(6))))
    )
    try:
        described: dict[str, TopicDescription] = yield from describe_topics(context, names, timeout=deadline.share(5))
    except AdminError as error:
        described = error.results
        errors.update(error.errors)
    return [
        TopicPartition(topic.name, one.partition)
        for topic in described.values()
        for one in topic.partitions
        if broker_id is None or broker_id in one.replicas
    ]


@dataclass(frozen=True)
class _CoordinatorsView:
    """What the coordinators know of some producer ids. is_whole: all of them responded, so that an id which none named
    belongs to no transactional id."""

    ids: dict[int, str]
    described: Outcome[str, TransactionDescription]
    is_whole: bool


def _coordinators_view(
    context: CallContext,
    candidates: list[tuple[TopicPartition, ProducerState]],
    errors: dict[Any, KcodecError],
    deadline: Deadline,
) -> Flow[_CoordinatorsView]:
    producer_ids = sorted({state.producer_id for _, state in candidates})
    lists = yield from coordinators_lists(context, (), producer_ids, None, None, deadline.share(3))
    errors.update(lists.errors)
    listed = by_transactional_id(lists.results)
    described = yield from transactions_of(context, listed, deadline.share(2))
    errors.update(_but_expired(described))
    ids = {listing.producer_id: listing.transactional_id for listing in listed.values()}
    return _CoordinatorsView(ids, described, not lists.errors)


def _but_expired(described: Outcome[str, TransactionDescription]) -> dict[str, KcodecError]:
    """The errors, without those of ids that have expired since they were listed: that is an answer."""
    return {name: error for name, error in described.errors.items() if not _is_expired(error)}


def _is_expired(error: KcodecError) -> bool:
    return isinstance(error, BrokerError) and error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def _why_hanging(partition: TopicPartition, state: ProducerState, view: _CoordinatorsView) -> str | None:
    """The reason; None for one that its coordinator is going to end, or of which that cannot be told."""
    transactional_id = view.ids.get(state.producer_id)
    if transactional_id is None:
        return "no transactional id has this producer id" if view.is_whole else None
    known = view.described.results.get(transactional_id)
    if known is None:
        is_expired = _is_expired(view.described.errors[transactional_id])
        return f"transactional id {transactional_id!r} has expired" if is_expired else None
    if known.producer_id != state.producer_id:
        return f"{transactional_id!r} has producer id {known.producer_id} now"
    if partition not in known.partitions:
        return f"{transactional_id!r} is {known.state} without this partition"
    if state.producer_epoch > known.producer_epoch:
        return f"{transactional_id!r} is at epoch {known.producer_epoch}"
    return None


def _hanging(
    partition: TopicPartition, state: ProducerState, transactional_id: str | None, why: str, now: int
) -> HangingTransaction:
    assert state.current_transaction_start_offset is not None
    return HangingTransaction(
        partition,
        state.producer_id,
        state.producer_epoch,
        state.coordinator_epoch,
        state.current_transaction_start_offset,
        state.last_timestamp,
        now - state.last_timestamp,
        transactional_id,
        why,
    )


def _confirmed(
    context: CallContext, hanging: list[HangingTransaction], broker_id: int | None, deadline: Deadline
) -> Flow[list[HangingTransaction]]:
    """Those that are still there: one that ended between the two questions looks as if it hung."""
    if not hanging:
        return hanging
    again = yield from producers_of(context, {one.partition for one in hanging}, broker_id, deadline.remaining)
    still = {
        (partition, state.producer_id, state.current_transaction_start_offset)
        for partition, states in again.results.items()
        for state in states
    }
    return [
        one
        for one in hanging
        if one.partition in again.errors or (one.partition, one.producer_id, one.start_offset) in still
    ]


def find_stray_transactions(
    context: CallContext,
    *,
    transactional_ids: Iterable[str] | None = None,
    idle_ms: int = DEFAULT_IDLE_MS,
    now: int | None = None,
    timeout: float | None = None,
) -> Flow[StrayTransactions]:
    """Open transactions in which nobody has written for `idle_ms`.

    transactional_ids: only of these. now: what ages are counted to, None for this machine's time. What could not be
    asked is in `errors` of what is returned.
    """
    errors: dict[Any, KcodecError] = {}
    deadline = context.deadline(timeout)
    if transactional_ids is None:
        lists = yield from coordinators_lists(context, ["Ongoing"], (), None, None, deadline.share(3))
        errors.update(lists.errors)
        ids = list(by_transactional_id(lists.results))
    else:
        ids = names_of(transactional_ids, "transactional_ids")
    described = yield from transactions_of(context, ids, deadline.share(2))
    errors.update(_but_expired(described))
    now = context.now() if now is None else now
    opened = [one for one in described.results.values() if one.state == "Ongoing"]
    places = {partition for one in opened for partition in one.partitions}
    producers = yield from producers_of(context, places, None, deadline.remaining)
    errors.update(producers.errors)
    # One of whose partitions we know nothing may be written to there.
    found = [
        _stray(one, producers.results, now) for one in opened if producers.errors.keys().isdisjoint(one.partitions)
    ]
    return StrayTransactions(tuple(one for one in found if one.idle_ms >= idle_ms), errors)


def _stray(
    one: TransactionDescription, producers: dict[TopicPartition, tuple[ProducerState, ...]], now: int
) -> StrayTransaction:
    start = now if one.start_timestamp is None else one.start_timestamp
    written = [
        state.last_timestamp
        for partition in one.partitions
        for state in producers.get(partition, ())
        if state.producer_id == one.producer_id
        and state.current_transaction_start_offset is not None
        and state.last_timestamp <= now
    ]
    return StrayTransaction(
        one.transactional_id,
        one.producer_id,
        one.producer_epoch,
        one.state,
        start,
        now - start,
        now - max([start, *written]),
        one.transaction_timeout_ms,
        one.partitions,
    )
