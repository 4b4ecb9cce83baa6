# SPDX-License-Identifier: Apache-2.0
"""The transactions of a partition beside what the transaction coordinator noted of their producers.

Which one is hanging is decided as ``kafka-transactions.sh find-hanging`` decides it: the coordinator will write markers
to the partitions in its record of the producer id, and to no other. (That tool also waits for the longest timeout that
a broker allows; here the age tells.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kcodec.arguments import names_of
from kcodec.log.coordinator_states import TransactionState
from kcodec.log.partition import Log
from kcodec.log.timeline import Transaction

STATES = ("open", "committed", "aborted")


@dataclass(frozen=True)
class PartitionTransaction:
    """A transaction in one partition.

    transactional_id, coordinator_state: what the coordinator last noted of its producer id; None where that is not
    known. holds_last_stable_offset: read_committed readers wait for this one. is_hanging: open, and the coordinator is
    not going to end it; None for an open one of which the coordinator's record is not known.
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
        """Kafka's own command that ends it in this partition; None for one that has ended. Put a broker's address in.

        For one that is hanging: the producer of another may still commit, and its other partitions.
        """
        if self.transaction.state != "open" or self.topic is None:
            return None
        return (
            f"kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {self.topic} "
            f"--partition {self.partition} --start-offset {self.transaction.first_offset}"
        )

    def age_ms(self, now: int) -> int:
        """As Transaction.age_ms."""
        return self.transaction.age_ms(now)


def partition_transactions(
    log: Log,
    noted: Iterable[TransactionState] = (),
    states: Collection[str] | None = ("open",),
    on_error: str = "raise",
) -> list[PartitionTransaction]:
    """The transactions of a log that are in one of these states, in order of offsets; states None: all.

    noted: what the coordinators noted (``transaction_states``). on_error: "stop" or "skip" to see what damage does not
    hide. ValueError for a state that there is not.
    """
    wanted = STATES if states is None else names_of(states, "states")
    unknown = sorted(set(wanted) - set(STATES))
    if unknown:
        raise ValueError(f"states must be of {', '.join(STATES)}, not {unknown}")
    by_producer = _by_producer(noted)
    transactions, holding = log.settled(on_error)
    return [
        _joined(log, transaction, by_producer.get(transaction.producer_id), is_holding=transaction == holding)
        for transaction in transactions
        if transaction.state in wanted
    ]


def _by_producer(noted: Iterable[TransactionState]) -> dict[int, TransactionState]:
    """By producer id; one that is in use now before one that was, or will be."""
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
