# SPDX-License-Identifier: Apache-2.0
"""The state of each transactional id, from ``__transaction_state``, and the transactions of a partition.

A transaction is hanging by the rule of ``kafka-transactions.sh find-hanging``: the coordinator writes markers only to
the partitions in its record of the producer id. That tool also waits for the longest transaction timeout that brokers
allow; here `age_ms` gives the age.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kcodec._fast import Record
from kcodec.arguments import names_of
from kcodec.constants import TRANSACTION_STATE_TOPIC
from kcodec.log.internal.records import (
    COORDINATOR_RECORDS,
    TRANSACTION_STATES,
    decode_coordinator_record,
)
from kcodec.log.partition import Log
from kcodec.log.timeline import Transaction
from kcodec.offsets import TopicPartition
from kcodec.protocol.messages.records import TransactionLogKey, TransactionLogValue


@dataclass(frozen=True)
class TransactionState:
    """The last recorded state of a transactional id.

    transactional_id: The id.
    state:            As Kafka's tools print it ("Ongoing").
    producer_id, producer_epoch: Identity of the current producer.
    transaction_timeout_ms: Timeout of a transaction.
    start_timestamp, last_update_timestamp: Begin of the transaction, and last change of the state.
    topic_partitions: The partitions of the transaction, in order; empty once it is complete.
    previous_producer_id, next_producer_id, next_producer_epoch: -1 if the coordinator recorded none.
    client_transaction_version: 2 if the epoch increases with each transaction.
    version, offset:  Version and offset of the record.

    Timestamps and the timeout are in ms, -1 for none.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    topic_partitions: tuple[TopicPartition, ...]
    transaction_timeout_ms: int
    start_timestamp: int
    last_update_timestamp: int
    previous_producer_id: int
    next_producer_id: int
    next_producer_epoch: int
    client_transaction_version: int
    version: int
    offset: int

    @classmethod
    def of(cls, transactional_id: str, value: TransactionLogValue, version: int, offset: int) -> TransactionState:
        """Return the state in a record. transactional_id, value: from the record; offset: the offset of the record."""
        partitions = sorted(
            TopicPartition(entry.topic, partition)
            for entry in value.transaction_partitions or ()
            for partition in entry.partition_ids
        )
        return cls(
            transactional_id=transactional_id,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            state=TRANSACTION_STATES.get(value.transaction_status, f"unknown ({value.transaction_status})"),
            topic_partitions=tuple(partitions),
            transaction_timeout_ms=value.transaction_timeout_ms,
            start_timestamp=value.transaction_start_timestamp_ms,
            last_update_timestamp=value.transaction_last_update_timestamp_ms,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            next_producer_epoch=value.next_producer_epoch,
            client_transaction_version=value.client_transaction_version,
            version=version,
            offset=offset,
        )


def transaction_states(logs: Log | Iterable[Log], on_error: str = "raise") -> dict[str, TransactionState]:
    """Return the last state of each transactional id in partitions of ``__transaction_state``. Tombstones remove it.

    logs: One partition, or several.

    Records that cannot be read are skipped (``internal_record`` describes them). Raise DecodeError for corruption,
    unless on_error is "stop" or "skip". Raise ValueError for a partition of another topic.
    """
    states: dict[str, TransactionState] = {}
    kinds = COORDINATOR_RECORDS[TRANSACTION_STATE_TOPIC]
    for record in _records_of(logs, on_error):
        entry = decode_coordinator_record(kinds, record.key, record.value)
        if not isinstance(entry.key, TransactionLogKey) or entry.error is not None:
            continue
        transactional_id = entry.key.transactional_id
        if isinstance(entry.value, TransactionLogValue):
            states[transactional_id] = TransactionState.of(
                transactional_id, entry.value, entry.version or 0, record.offset
            )
        else:
            states.pop(transactional_id, None)
    return states


def _records_of(logs: Log | Iterable[Log], on_error: str) -> Iterator[Record]:
    for log in logs_of(logs, TRANSACTION_STATE_TOPIC):
        yield from log.records(on_error=on_error)


def logs_of(logs: Log | Iterable[Log], topic: str) -> list[Log]:
    """Return one log or several as a list. ValueError unless they are partitions of this topic."""
    found = [logs] if isinstance(logs, Log) else list(logs)
    for log in found:
        if log.topic != topic:
            named = log.path if log.topic is None else f"{log.topic}-{log.partition}"
            raise ValueError(f"expected partitions of {topic}, got {named}")
    return found


STATES = ("open", "committed", "aborted")


@dataclass(frozen=True)
class PartitionTransaction:
    """A transaction in one partition.

    topic, partition: The partition.
    transaction:      The transaction in the log.
    transactional_id, coordinator_state: What the coordinator last recorded for its producer id; None if it is unknown.
    holds_last_stable_offset: Whether read_committed readers wait for this transaction.
    is_hanging: Whether it is open and the coordinator will not end it; None for an open transaction whose coordinator
                record is unknown.
    """

    topic: str | None
    partition: int | None
    transaction: Transaction
    transactional_id: str | None = None
    coordinator_state: TransactionState | None = None
    holds_last_stable_offset: bool = False
    is_hanging: bool | None = False

    def __repr__(self) -> str:
        noted, state = self.transactional_id, self.coordinator_state
        parts = [f"{self.topic}-{self.partition} {repr(self.transaction)[len('<Transaction ') : -1]}"]
        parts += [f"transactional_id={noted!r} {'' if state is None else state.state}".rstrip()] if noted else []
        parts += ["holds last_stable_offset"] if self.holds_last_stable_offset else []
        parts += ["hanging"] if self.is_hanging else []
        return f"<PartitionTransaction {', '.join(parts)}>"

    @property
    def abort_command(self) -> str | None:
        """Kafka's command that aborts the transaction in this partition; None if it has ended. Replace HOST:PORT.

        Use it for hanging transactions only: the producer of another transaction may still commit, in other partitions
        too.
        """
        if self.transaction.state != "open" or self.topic is None:
            return None
        return (
            f"kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {self.topic} "
            f"--partition {self.partition} --start-offset {self.transaction.first_offset}"
        )

    def age_ms(self, now: int) -> int:
        """Return the age of the transaction at `now` (ms), as Transaction.age_ms does."""
        return self.transaction.age_ms(now)


def partition_transactions(
    log: Log,
    noted: Iterable[TransactionState] = (),
    states: Collection[str] | None = ("open",),
    on_error: str = "raise",
) -> list[PartitionTransaction]:
    """Return the transactions of a log in these states, in order of offsets; None: all states.

    noted:    The coordinators' records (``transaction_states``).
    on_error: "stop" or "skip" returns the transactions that corruption does not hide.

    Raise ValueError for an unknown state.
    """
    wanted = STATES if states is None else names_of(states, "states")
    unknown = sorted(set(wanted) - set(STATES))
    if unknown:
        raise ValueError(f"states must be among {', '.join(STATES)}, not {unknown}")
    by_producer = _by_producer(noted)
    transactions, holding = log.settled(on_error)
    return [
        _joined(log, transaction, by_producer.get(transaction.producer_id), is_holding=transaction == holding)
        for transaction in transactions
        if transaction.state in wanted
    ]


def _by_producer(noted: Iterable[TransactionState]) -> dict[int, TransactionState]:
    """Return the states by producer id. A producer id in present use takes precedence over a previous or next one."""
    found: dict[int, TransactionState] = {}
    for state in noted:
        found[state.producer_id] = state
        for producer_id in (state.previous_producer_id, state.next_producer_id):
            if producer_id >= 0:
                found.setdefault(producer_id, state)
    return found


def _joined(
    log: Log, transaction: Transaction, state: TransactionState | None, *, is_holding: bool
) -> PartitionTransaction:
    is_hanging: bool | None = False
    if transaction.state == "open":
        is_hanging = None if state is None else (log.topic, log.partition) not in state.topic_partitions
    return PartitionTransaction(
        topic=log.topic,
        partition=log.partition,
        transaction=transaction,
        transactional_id=None if state is None else state.transactional_id,
        coordinator_state=state,
        holds_last_stable_offset=is_holding,
        is_hanging=is_hanging,
    )
