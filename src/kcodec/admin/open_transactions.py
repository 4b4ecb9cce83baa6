# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin that find transactions which will not end: hanging transactions, and transactions that their owner has
abandoned.

A transaction hangs in a partition if it is open at the partition's leader, and its coordinator will not write a marker
there. Either no transactional id has this producer id, or the coordinator's transaction does not include the partition
or has another epoch. The last stable offset then never advances (KAFKA-12895 and KIP-890 explain the causes). The rule
is that of `kafka-transactions.sh find-hanging` (TransactionsCommand), with four differences:
- One call can search all partitions of all brokers. This always includes internal topics.
- The default minimum age is the brokers' transaction.max.timeout.ms.
- A transaction whose records have timestamps in the future counts as old, because its age is unknown.
- Each result is confirmed by a second request.

An abandoned transaction is open at its coordinator, but there was no write for some time. This is what remains of a
TransactionHandle whose owner has failed. Brokers do not report the owner of a transaction, so the application must
identify it by the idle time and by its own list of handles.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kcodec.admin.configs import describe_configs
from kcodec.admin.topics import describe_topics
from kcodec.admin.values import ConfigResource, TopicDescription
from kcodec.arguments import names_of, partitions_of, warn_renamed
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

log = logging.getLogger("kcodec.client")
MAX_TIMEOUT_SETTING = "transaction.max.timeout.ms"
# Kafka's default of this setting, for brokers that do not report their value.
DEFAULT_MAX_TRANSACTION_TIMEOUT_MS = 900_000
DEFAULT_IDLE_MS = 60_000


@dataclass(frozen=True)
class HangingTransaction:
    """An open transaction in a partition that no coordinator will end.

    partition: Partition in which the transaction is open.
    producer_id, producer_epoch: Identity of the producer that wrote it.
    coordinator_epoch: Coordinator epoch of the producer's last marker in the partition; -1 before the first.
    start_offset: Offset of its first record.
    last_timestamp: Timestamp of the producer's last record in the partition, in ms since 1970.
    age_ms: Time since that timestamp; negative if the timestamp is in the future.
    transactional_id: Transactional id of the producer; None if no transactional id has the producer id.
    why: Reason why no coordinator will end it, from the coordinators' state of the producer id.
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
    """The result of `find_hanging_transactions`.

    transactions: The hanging transactions.
    partitions_searched: Number of partitions that were searched, without those in `errors`.
    max_transaction_timeout_ms: Age up to which transactions were ignored.
    errors: Error of each partition, transactional id, topic or broker that could not be checked.
    """

    transactions: tuple[HangingTransaction, ...]
    partitions_searched: int
    max_transaction_timeout_ms: int
    errors: dict[Any, KcodecError] = field(default_factory=dict)


@dataclass(frozen=True)
class AbandonedTransaction:
    """An open transaction without recent writes.

    transactional_id: Its transactional id.
    producer_id, producer_epoch: Identity of its producer.
    state: State of the transaction at its coordinator: "Ongoing".
    start_timestamp: Time at which it began, in ms since 1970.
    age_ms: Time since it began.
    idle_ms: Time since its last record, or since it began if it has no record.
    transaction_timeout_ms: Time after its begin at which the coordinator aborts it.
    partitions: Partitions of the transaction that the coordinator knows.
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
class AbandonedTransactions:
    """The result of `find_abandoned_transactions`.

    transactions: The open transactions without recent writes.
    errors: Error of each partition, transactional id or broker that could not be checked.
    """

    transactions: tuple[AbandonedTransaction, ...]
    errors: dict[Any, KcodecError] = field(default_factory=dict)


#: Classes by their deprecated names.
_RENAMED = {"StrayTransaction": AbandonedTransaction, "StrayTransactions": AbandonedTransactions}


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
    """Find hanging transactions in all partitions, in the given topics or partitions, or on one broker.

    topics: Names of the topics to search. None: all topics.
    partitions: Partitions to search. They are used instead of `topics`.
    broker_id: Id of the broker whose replicas are searched. None: the leaders of all partitions are searched.
    max_transaction_timeout_ms: Age up to which transactions are ignored. None: the longest timeout that a broker of the
        cluster allows.
    now: Time from which ages are computed, in ms since 1970. None: the time of this machine.

    Brokers return only the topics for which the user has the permission DESCRIBE. If they return no topic at all, a
    warning is logged.

    Raise BrokerError or TransportError if the topics cannot be listed, and ValueError if no live broker has the
    id `broker_id`. All other failures are in `errors` of the result.
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
    return HangingTransactions(tuple(hanging), len(found.results), longest, errors)


def _is_old(state: ProducerState, now: int, longest: int) -> bool:
    return not 0 <= now - state.last_timestamp <= longest


def _longest_timeout(context: CallContext, timeout: float) -> Flow[int]:
    """Return the longest transaction.max.timeout.ms of the brokers."""
    deadline = context.deadline(timeout)
    yield from context.cluster.refresh(context.call_timeout(deadline))
    resources = [ConfigResource.broker(broker) for broker in context.cluster.brokers]
    try:
        names = [MAX_TIMEOUT_SETTING]
        configs = yield from describe_configs(context, resources, names=names, timeout=deadline.remaining)
    except AdminError as error:
        configs = error.results
    except BrokerError:  # no permission, so Kafka's default is used
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
    """Return the partitions to search. A topic that cannot be described is recorded as an error."""
    if partitions is not None:
        given = partitions_of(partitions)
        yield from _check_broker(context, broker_id, deadline)
        return given
    names = None if topics is None else names_of(topics, "topics")
    try:
        described: dict[str, TopicDescription] = yield from describe_topics(context, names, timeout=deadline.share(5))
    except AdminError as error:
        described = error.results
        errors.update(error.errors)
    found = [
        TopicPartition(topic.name, one.partition)
        for topic in described.values()
        for one in topic.partitions
        if broker_id is None or broker_id in one.replicas
    ]
    yield from _check_broker(context, broker_id, deadline)
    if topics is None and not described and not errors:
        log.warning(
            "find_hanging_transactions has found no topics to search: either the cluster has none, or the user has no "
            "DESCRIBE permission on any topic"
        )
    return found


def _check_broker(context: CallContext, broker_id: int | None, deadline: Deadline) -> Flow[None]:
    """Raise ValueError if no live broker has this id. None is valid."""
    if broker_id is None or broker_id in context.cluster.brokers:
        return
    yield from context.cluster.refresh(context.call_timeout(deadline))
    brokers = ", ".join(map(str, sorted(context.cluster.brokers)))
    if broker_id not in context.cluster.brokers:
        hint = f"the brokers are {brokers}" if brokers else "the cluster reports no live broker"
        raise ValueError(f"broker_id: no live broker has the id {broker_id}; {hint}")


@dataclass(frozen=True)
class _CoordinatorsView:
    """The states of some producer ids at the coordinators. If `is_whole`, all coordinators have responded. A producer
    id that none of them has reported then belongs to no transactional id."""

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
    """Return the errors without those of ids that have expired since they were listed. An expired id is a valid
    result."""
    return {name: error for name, error in described.errors.items() if not _is_expired(error)}


def _is_expired(error: KcodecError) -> bool:
    return isinstance(error, BrokerError) and error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def _why_hanging(partition: TopicPartition, state: ProducerState, view: _CoordinatorsView) -> str | None:
    """Return the reason why a transaction hangs. Return None if its coordinator will end it, or if this is unknown."""
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
    """Return the transactions that still exist. A transaction that has ended between the two requests looks like a
    hanging transaction."""
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


def find_abandoned_transactions(
    context: CallContext,
    *,
    transactional_ids: Iterable[str] | None = None,
    idle_ms: int = DEFAULT_IDLE_MS,
    now: int | None = None,
    timeout: float | None = None,
) -> Flow[AbandonedTransactions]:
    """Find open transactions without a write for at least `idle_ms`.

    transactional_ids: Transactional ids to check. None: all ids.
    idle_ms: Minimum time without a write.
    now: Time from which ages are computed, in ms since 1970. None: the time of this machine.

    Brokers return only the ids for which the user has the permission DESCRIBE. If they return no id at all, in any
    state, a warning is logged.

    Failures are not raised. `errors` of the result has an error for each id, partition or broker that could not be
    checked. A transaction with such a partition is not returned.
    """
    errors: dict[Any, KcodecError] = {}
    deadline = context.deadline(timeout)
    if transactional_ids is None:
        lists = yield from coordinators_lists(context, ["Ongoing"], (), None, None, deadline.share(3))
        errors.update(lists.errors)
        ids = list(by_transactional_id(lists.results))
        if not ids and not errors:
            yield from _warn_without_ids(context, deadline)
    else:
        ids = names_of(transactional_ids, "transactional_ids")
    described = yield from transactions_of(context, ids, deadline.share(2))
    errors.update(_but_expired(described))
    now = context.now() if now is None else now
    opened = [one for one in described.results.values() if one.state == "Ongoing"]
    places = {partition for one in opened for partition in one.partitions}
    producers = yield from producers_of(context, places, None, deadline.remaining)
    errors.update(producers.errors)
    # If a partition of a transaction could not be described, the producer may be writing to it.
    found = [
        _abandoned(one, producers.results, now) for one in opened if producers.errors.keys().isdisjoint(one.partitions)
    ]
    return AbandonedTransactions(tuple(one for one in found if one.idle_ms >= idle_ms), errors)


def _warn_without_ids(context: CallContext, deadline: Deadline) -> Flow[None]:
    """Log a warning if the brokers list no transactional id in any state. A broker leaves out the ids for which the
    user has no permission, and reports no error."""
    lists = yield from coordinators_lists(context, (), (), None, None, deadline.share(3))
    if not lists.errors and not by_transactional_id(lists.results):
        log.warning(
            "find_abandoned_transactions has found no transactional ids: either the cluster has none, or the user has "
            "no DESCRIBE permission on any transactional id"
        )


def find_stray_transactions(
    context: CallContext,
    *,
    transactional_ids: Iterable[str] | None = None,
    idle_ms: int = DEFAULT_IDLE_MS,
    now: int | None = None,
    timeout: float | None = None,
) -> Flow[AbandonedTransactions]:
    """Deprecated name of `find_abandoned_transactions`, with the same arguments."""
    warn_renamed("find_stray_transactions", "find_abandoned_transactions")
    return find_abandoned_transactions(
        context, transactional_ids=transactional_ids, idle_ms=idle_ms, now=now, timeout=timeout
    )


def _abandoned(
    one: TransactionDescription, producers: dict[TopicPartition, tuple[ProducerState, ...]], now: int
) -> AbandonedTransaction:
    start = now if one.start_timestamp is None else one.start_timestamp
    written = [
        state.last_timestamp
        for partition in one.partitions
        for state in producers.get(partition, ())
        if state.producer_id == one.producer_id
        and state.current_transaction_start_offset is not None
        and state.last_timestamp <= now
    ]
    return AbandonedTransaction(
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


def __getattr__(name: str) -> object:
    """Return a class by its deprecated name."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(f"{__name__}.{name}", _RENAMED[name].__name__)
    return _RENAMED[name]
