# SPDX-License-Identifier: Apache-2.0
"""What the transaction coordinator has noted down: the state of each transactional id, from ``__transaction_state``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kcodec._fast import Record
from kcodec.constants import TRANSACTION_STATE_TOPIC
from kcodec.log.coordinator_records import (
    COORDINATOR_RECORDS,
    TRANSACTION_STATES,
    decode_coordinator_record,
)
from kcodec.log.partition import Log
from kcodec.offsets import TopicPartition
from kcodec.protocol.messages.records import TransactionLogKey, TransactionLogValue


@dataclass(frozen=True)
class TransactionState:
    """The last state of a transactional id.

    state: as Kafka's tools print it ("Ongoing"). topic_partitions: those the transaction writes to, in order; none once
    it is complete. Timestamps and timeout: ms, -1 for none. previous_producer_id, next_producer_id and
    next_producer_epoch: -1 where the coordinator noted none. client_transaction_version: 2 where the epoch rises with
    each transaction. version: of the record; offset: where it lies.
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
        """From the record at an offset."""
        partitions = sorted(
            TopicPartition(told.topic, partition)
            for told in value.transaction_partitions or ()
            for partition in told.partition_ids
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
    """By transactional id, the last state that partitions of ``__transaction_state`` hold. Tombstones remove.

    A record that cannot be read is passed over (``internal_record`` tells what is wrong with it); damage is a
    DecodeError, unless on_error is "stop" or "skip". ValueError for a partition of another topic.
    """
    states: dict[str, TransactionState] = {}
    kinds = COORDINATOR_RECORDS[TRANSACTION_STATE_TOPIC]
    for record in _records_of(logs, on_error):
        told = decode_coordinator_record(kinds, record.key, record.value)
        if not isinstance(told.key, TransactionLogKey) or told.error is not None:
            continue
        transactional_id = told.key.transactional_id
        if isinstance(told.value, TransactionLogValue):
            states[transactional_id] = TransactionState.of(
                transactional_id, told.value, told.version or 0, record.offset
            )
        else:
            states.pop(transactional_id, None)
    return states


def _records_of(logs: Log | Iterable[Log], on_error: str) -> Iterator[Record]:
    for log in logs_of(logs, TRANSACTION_STATE_TOPIC):
        yield from log.records(on_error=on_error)


def logs_of(logs: Log | Iterable[Log], topic: str) -> list[Log]:
    """One log or several as a list. ValueError unless they are partitions of this topic."""
    found = [logs] if isinstance(logs, Log) else list(logs)
    for log in found:
        if log.topic != topic:
            named = log.path if log.topic is None else f"{log.topic}-{log.partition}"
            raise ValueError(f"{named} is no partition of {topic}")
    return found
