# SPDX-License-Identifier: Apache-2.0
"""The state of one transactional id, and its transitions (TransactionMetadata, TransactionState, KIP-98, KIP-890).

A transition is prepared (`pending` is the next state), written to the log, and completed. Until it is completed, every
other request for the transactional id gets CONCURRENT_TRANSACTIONS. At the end of a transaction, the transition from
PREPARE_COMMIT to COMPLETE_COMMIT, or from PREPARE_ABORT to COMPLETE_ABORT, is pending until the markers are written.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from kcodec.protocol import messages

NO_PRODUCER_ID = -1
NO_EPOCH = -1
HIGHEST_EPOCH = (1 << 15) - 1
#: The last epoch that a client gets; HIGHEST_EPOCH stays free to fence it.
LAST_CLIENT_EPOCH = HIGHEST_EPOCH - 1
#: The first transaction version in which the end of a transaction bumps the epoch, also that of its markers (KIP-890).
EPOCH_BUMP_VERSION = 2

TopicPartition = tuple[str, int]


class State(IntEnum):
    """The states, numbered as in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name in responses, as Kafka's tools print it: CompleteCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The state of a transactional id. Times are in ms; -1 stands for no time.

    client_version: Transaction version with which the client ends transactions.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    timeout_ms: int = 0
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)
    start_ms: int = -1
    update_ms: int = -1
    client_version: int = 0

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the epochs of the producer id are used up, so that the next client needs another producer id."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def _next_epoch(self) -> int:
        """The epoch that fences the present epoch. The highest epoch cannot be fenced and stays the same."""
        return min(self.producer_epoch + 1, HIGHEST_EPOCH)

    def incremented(self, timeout_ms: int, expected_epoch: int | None, now: int) -> TransactionMetadata | None:
        """Return the state after InitProducerId; None if the expected epoch is fenced (prepareIncrementProducerEpoch).

        A repeated request, whose expected epoch is the previous epoch, gets the same epoch again.
        """
        bumped = self.producer_epoch + 1
        if expected_epoch is None:
            epochs = (bumped, NO_EPOCH)
        elif self.producer_epoch in (NO_EPOCH, expected_epoch):
            epochs = (bumped, self.producer_epoch)
        elif expected_epoch == self.last_producer_epoch:
            epochs = (self.producer_epoch, self.last_producer_epoch)
        else:
            return None
        return self._empty(timeout_ms, now, producer_epoch=epochs[0], last_producer_epoch=epochs[1])

    def rotated(self, producer_id: int, timeout_ms: int, now: int, *, keeps_last: bool) -> TransactionMetadata:
        """Return the state with a new producer id, for a producer id whose epochs are used up."""
        last = self.producer_epoch if keeps_last else NO_EPOCH
        return self._empty(timeout_ms, now, producer_id=producer_id, producer_epoch=0, last_producer_epoch=last)

    def _empty(self, timeout_ms: int, now: int, **changes: Any) -> TransactionMetadata:
        return replace(
            self,
            state=State.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            update_ms=now,
            timeout_ms=timeout_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            **changes,
        )

    def with_partitions(self, added: frozenset[TopicPartition], now: int, client_version: int) -> TransactionMetadata:
        """Return the state with more partitions. The first partitions begin the transaction."""
        return replace(
            self,
            state=State.ONGOING,
            partitions=self.partitions | added,
            start_ms=self.start_ms if self.state is State.ONGOING else now,
            update_ms=now,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            client_version=client_version,
        )

    def ended(
        self, *, is_commit: bool, client_version: int, now: int, next_producer_id: int = NO_PRODUCER_ID
    ) -> TransactionMetadata:
        """Return the state in which the outcome is decided (prepareAbortOrCommit). The transaction may have no
        partitions."""
        bumps_epoch = client_version >= EPOCH_BUMP_VERSION
        return replace(
            self,
            state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
            producer_epoch=self._next_epoch if bumps_epoch else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if bumps_epoch else self.last_producer_epoch,
            next_producer_id=next_producer_id,
            previous_producer_id=self.producer_id,
            start_ms=self.start_ms if self.state is State.ONGOING else now,
            update_ms=now,
            client_version=client_version,
        )

    def fenced(self, cluster_version: int, next_producer_id: int, now: int) -> TransactionMetadata:
        """Return the state in which the transaction is aborted, with a higher epoch, which fences the producer.

        The rules are those of the transaction version of the cluster, not of the client. From version 2 on, the
        previous epoch is stored, so that a client that requests its own producer id again gets this epoch.
        """
        version = cluster_version if cluster_version >= EPOCH_BUMP_VERSION else 0
        aborted = self.ended(is_commit=False, client_version=version, next_producer_id=next_producer_id, now=now)
        if version:
            return aborted
        return replace(aborted, producer_epoch=self._next_epoch, last_producer_epoch=NO_EPOCH)

    def completed(self, now: int) -> TransactionMetadata:
        """Return the state after the markers were written (prepareComplete)."""
        is_rotated = self.client_version >= EPOCH_BUMP_VERSION and self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            state=State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            producer_id=self.next_producer_id if is_rotated else self.producer_id,
            producer_epoch=0 if is_rotated else self.producer_epoch,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            update_ms=now,
        )

    # The log

    def value(self, version: int) -> messages.TransactionLogValue:
        """Return the value of the record in ``__transaction_state``."""
        named: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            named.setdefault(topic, []).append(partition)
        topics = [messages.TransactionLogPartitions(topic=topic, partition_ids=ids) for topic, ids in named.items()]
        tagged: dict[str, int] = {}
        if version > 0:
            tagged = {
                "previous_producer_id": self.previous_producer_id,
                "next_producer_id": self.next_producer_id,
                "client_transaction_version": self.client_version,
            }
        return messages.TransactionLogValue(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=int(self.state),
            transaction_partitions=None if self.state is State.EMPTY else topics,
            transaction_last_update_timestamp_ms=self.update_ms,
            transaction_start_timestamp_ms=self.start_ms,
            **tagged,
        )

    @classmethod
    def of(cls, transactional_id: str, value: messages.TransactionLogValue) -> TransactionMetadata:
        """Return the state from a record. The log does not contain the last epoch."""
        partitions = frozenset(
            (topic.topic, number) for topic in value.transaction_partitions or () for number in topic.partition_ids
        )
        return cls(
            transactional_id,
            value.producer_id,
            value.producer_epoch,
            NO_EPOCH,
            value.previous_producer_id,
            value.next_producer_id,
            value.transaction_timeout_ms,
            State(value.transaction_status),
            partitions,
            value.transaction_start_timestamp_ms,
            value.transaction_last_update_timestamp_ms,
            value.client_transaction_version,
        )
