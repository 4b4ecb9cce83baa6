# SPDX-License-Identifier: Apache-2.0
"""What a transactional producer is at any moment: its state, the open transaction, the error that is kept; and what the
sender asks and tells (`ProducerIdSource`). The flows that move it are in `kcodec.transactions.manager`.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    EncodeError,
    ProducerFencedError,
    TransactionStateError,
    TransactionTimedOutError,
)
from kcodec.flow import Flow, Signal
from kcodec.offsets import TopicPartition
from kcodec.producer.identity import BatchDisposition, ProducerIdSource
from kcodec.protocol.error_codes import error_code
from kcodec.transactions.errors import FENCED_CODES, Treatment, failure, treatment_of
from kcodec.transactions.fencing import Ending
from kcodec.transactions.state import RAISES_KEPT_ERROR, Event, State, illegal, next_state

log = logging.getLogger("kcodec.transactions")
#: The last version of Produce that does not add its partitions to the transaction (KIP-890).
OLD_FLOW_PRODUCE_VERSION = 11
#: The level of the feature transaction.version from which on the new flow is spoken.
NEW_FLOW_LEVEL = 2
REQUEST_TIMED_OUT, MESSAGE_TOO_LARGE, INVALID_RECORD = 7, 10, 87
#: A first batch that took longer may have been parked by a leader that met the markers of the transaction before.
PARKED_SECONDS = 0.018
#: What a broker says of the producer's sequence, id or epoch, and not of the records.
IDENTITY_CODES = frozenset({45, 47, 48, 49, 59, 90, 120})
_WITH_RECORDS = frozenset({State.IN_TRANSACTION, State.COMMITTING})


class Records(Protocol):
    """What the manager needs of the producer's core, to end a transaction. lock: the producer's."""

    lock: AbstractContextManager[Any]

    def flush(self, timeout: float | None = None) -> Flow[None]:
        """Until everything sent so far has ended, in a result or an error. Raises DeliveryTimeoutError only."""
        ...

    def abort_buffered(self, error: BaseException) -> None:
        """What is not in flight fails."""
        ...

    def refuse_sends(self, error: BaseException | None) -> None:
        """`send` raises this from now on; None: it accepts records."""
        ...


@dataclass(eq=False, slots=True)
class OpenTransaction:
    """One transaction, from its begin on; it stays with who began it when it is over.

    producer:    the (id, epoch) it is written under.
    is_new_flow: the flow of transaction version 2, settled at the begin.
    added:       partitions that the coordinator knows of (old flow); wanted: those the sender waits for.
    groups:      whose offsets the coordinator knows of.
    is_sent:     a request of it may have reached a broker: it takes an EndTxn.
    is_shared:   its handle was read: others may write into it, and end it.
    requests:    under way, AddPartitionsToTxn and those for offsets: EndTxn waits for them.
    batches:     acknowledged.
    sent_at:     when the first request went out: the coordinator's clock starts after that.
    receipt:     partition -> records acknowledged, last sequence.
    is_abandoned: whoever began it is gone: the next begin aborts what is left of it.
    to_settle:   the request and the code that say that the epoch is too old, until it is known why.
    committed:   True, False, or None: open, or unknown.
    """

    producer: ProducerIdAndEpoch
    is_new_flow: bool
    added: set[TopicPartition] = field(default_factory=set)
    wanted: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    is_sent: bool = False
    is_shared: bool = False
    is_commit_unanswered: bool = False
    is_end_unanswered: bool = False
    is_warned: bool = False
    is_abandoned: bool = False
    requests: int = 0
    batches: int = 0
    sent_at: float | None = None
    receipt: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    to_settle: tuple[str, int] | None = None
    committed: bool | None = None


class TransactionSource(ProducerIdSource):
    """Kafka's TransactionManager, as far as the sender sees it.

    state, kept_error: by `kcodec.transactions.state`.
    producer:          the last (id, epoch) we had, also when it may not be used any more.
    open:              the transaction that is open, or the last one.
    needless_probes:   questions in a row that found the markers written at once; after some, others are skipped.
    follows_at_once:   records of the last transaction came while markers of the one before may not have been written.
    changed:           set whenever an answer to the sender may have changed.
    highest_level:     of transaction.version; lower, to speak as with older brokers.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, transaction_timeout_ms: int) -> None:
        if not isinstance(transactional_id, str) or not transactional_id:
            raise ValueError("transactional_id must be a string that is not empty")
        self.cluster = cluster
        self.transactional_id: str | None = transactional_id
        self.who = transactional_id
        self.transaction_timeout_ms = transaction_timeout_ms
        self.changed = Signal()
        self.wake = Signal()
        self.state = State.UNINITIALIZED
        self.kept_error: BaseException | None = None
        self.producer: ProducerIdAndEpoch | None = None
        self.open: OpenTransaction | None = None
        self.is_epoch_spent = False
        self.is_init_unanswered = False
        self.is_epoch_used = False
        self.records: Records | None = None
        self.markers_awaited_until = 0.0
        self.is_probe_wanted = False
        self.follows_at_once = False
        self.needless_probes = self.skipped_probes = 0
        self.highest_level = NEW_FLOW_LEVEL

    # States

    @property
    def level(self) -> int:
        """Of transaction.version, by which the next transaction is spoken."""
        return min(self.cluster.transaction_version, self.highest_level)

    def attach(self, records: Records) -> None:
        """The producer's core, once."""
        self.records = records
        self.tell()

    def call(self, event: Event) -> None:
        """A call of the application: raises the kept error, TransactionStateError, or moves."""
        if event in RAISES_KEPT_ERROR.get(self.state, ()) and self.kept_error is not None:
            raise self.kept_error.with_traceback(None)
        self.move(event)

    def move(self, event: Event, error: BaseException | None = None) -> None:
        """Go where the event leads; `error` is kept if the state it leads to keeps one."""
        before = self.state
        self.state = next_state(before, event, f"the producer with transactional_id {self.who!r}")
        if self.state in RAISES_KEPT_ERROR:
            if error is not None and (self.state is not before or self.kept_error is None):
                self.kept_error = error
            self._note_lost()
        else:
            self.kept_error = None
        if self.state is not before:
            log.debug("%s: %s -> %s (%s)", self.who, before.name, self.state.name, event.name)
            self.tell()

    def _note_lost(self) -> None:
        """An error that rules the commit out, unless others have the handle, or a copy of EndTxn is on its way."""
        transaction = self.open
        if transaction is None or transaction.is_shared or transaction.is_commit_unanswered:
            return
        if transaction.committed is None:
            transaction.committed = False

    def tell(self) -> None:
        """Let the sender, and `send`, know where we are."""
        if self.records is not None:
            self.records.refuse_sends(self._refusal())
        self.changed.set()
        self.wake.set()

    def _refusal(self) -> BaseException | None:
        if self.state is State.IN_TRANSACTION:
            return None
        if Event.SEND in RAISES_KEPT_ERROR.get(self.state, ()):
            return self.kept_error
        return illegal(self.state, Event.SEND, f"the producer with transactional_id {self.who!r}")

    @property
    def now_open(self) -> OpenTransaction:
        """The transaction of a state that has one."""
        if self.open is None:
            raise TransactionStateError("no transaction was begun", state=self.state.name, event="SEND")
        return self.open

    def note_sent(self, transaction: OpenTransaction) -> None:
        """A request of the transaction goes out: EndTxn is due, the coordinator's clock runs."""
        transaction.is_sent = True
        if transaction.sent_at is None:
            transaction.sent_at = self.cluster.clock()
            self.wake.set()

    def ending(self, transaction: OpenTransaction) -> Ending:
        """The transaction, as the flows that end or judge it want it."""

        def is_over_time(_: object) -> bool:
            begun = transaction.sent_at
            return begun is not None and self.cluster.clock() - begun >= self.transaction_timeout_ms / 1000

        def on_unanswered() -> None:
            transaction.is_end_unanswered = True
            transaction.is_commit_unanswered |= self.state is State.COMMITTING
            self.on_unanswered("EndTxn")

        return Ending(
            transactional_id=self.who,
            producer=transaction.producer,
            is_new_flow=transaction.is_new_flow,
            is_shared=transaction.is_shared,
            timeout_ms=self.transaction_timeout_ms,
            is_over_time=is_over_time,
            on_unanswered=on_unanswered,
            is_commit_unanswered=transaction.is_commit_unanswered,
            is_init_unanswered=self.is_init_unanswered,
            is_added=bool(transaction.added or transaction.groups or transaction.receipt),
        )

    # What the sender asks

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """See ProducerIdSource."""
        if self.state in {State.UNINITIALIZED, State.INITIALIZING, State.UNKNOWN_OUTCOME}:
            return None
        return self.producer

    def produce_highest_version(self) -> int:
        """See ProducerIdSource."""
        return 32767 if self.open is None or self.open.is_new_flow else OLD_FLOW_PRODUCE_VERSION

    def may_send(self, partition: TopicPartition) -> bool:
        """See ProducerIdSource."""
        transaction = self.open
        if transaction is None or self.state not in _WITH_RECORDS or transaction.to_settle is not None:
            return False
        if transaction.is_new_flow and self._awaits_markers():
            return False
        if transaction.is_new_flow or partition in transaction.added:
            self.note_sent(transaction)
            return True
        transaction.wanted.add(partition)
        self.wake.set()
        return False

    def _awaits_markers(self) -> bool:
        """Whether the transaction before this one ended so short ago that its markers may not be written yet. A leader
        that is asked to add a partition then waits 20 ms (add.partitions.to.txn.retry.backoff.ms) before it looks
        again; we look sooner (`TransactionBackground`)."""
        if not self.markers_awaited_until:
            return False
        self.follows_at_once = self.cluster.clock() < self.markers_awaited_until
        if self.follows_at_once:
            self.is_probe_wanted = True
            self.wake.set()
        else:
            self.markers_awaited_until = 0.0
        return self.follows_at_once

    def refuses(self) -> BaseException | None:
        """See ProducerIdSource."""
        if self.state is State.ABORTING:
            return TransactionStateError(
                f"the transaction of {self.who!r} was aborted before this record was written",
                state=self.state.name,
                event=Event.SEND.name,
            )
        return self.kept_error

    # What the sender tells

    def on_success(self, partition: TopicPartition, records_count: int = 0, last_sequence: int = -1) -> None:
        """See ProducerIdSource."""
        transaction = self.open
        if transaction is None:
            return
        transaction.batches += 1
        waited = self.cluster.clock() - (transaction.sent_at or 0.0)
        if transaction.batches == 1 and self.skipped_probes and waited > PARKED_SECONDS:
            self.needless_probes = self.skipped_probes = 0
        records = transaction.receipt.get(partition, (0, -1))[0]
        transaction.receipt[partition] = records + records_count, last_sequence

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """See ProducerIdSource. In the old flow the next transaction gets an epoch of its own where it is not certain
        what the partition has seen of this one."""
        transaction = self.open
        if transaction is None:
            return
        code = _code_of(error)
        if not transaction.is_new_flow and (possibly_written or code in IDENTITY_CODES):
            self.is_epoch_spent = True
        if self.state not in {*_WITH_RECORDS, State.ABORTABLE_ERROR}:
            return
        if isinstance(error, BrokerError) and treatment_of("Produce", code) is Treatment.FATAL:
            resource = self.who if code == 53 else partition
            self.move(Event.FATAL, failure("Produce", code, f"Produce to {partition}", resource=resource).error)
        else:
            self.move(Event.ABORTABLE, self._produce_error(partition, error, code))

    def _produce_error(self, partition: TopicPartition, error: BaseException, code: int) -> BaseException:
        kept = (AbortableTransactionError, AuthorizationError, TransactionTimedOutError, ProducerFencedError)
        if isinstance(error, kept):
            return error
        where = str(partition) if partition.partition >= 0 else f"topic {partition.topic!r}"
        blocked = AbortableTransactionError(
            f"the transaction of {self.who!r} cannot be committed: a record for {where} was not written: {error}",
            code=code,
            name=error_code(code).name,
            remedy="abort",
            resource=partition,
        )
        blocked.__cause__ = error
        return blocked

    def on_unanswered(self, api: str) -> None:
        """See ProducerIdSource: in the old flow a late copy could join the next transaction of the same epoch."""
        if self.open is not None and not self.open.is_new_flow and not self.is_epoch_spent:
            log.info("%s: %s got no response, so the epoch is not used for another transaction", self.who, api)
            self.is_epoch_spent = True

    def on_error_code(self, partition: TopicPartition, code: int) -> BatchDisposition:
        """See ProducerIdSource. An epoch that is too old is asked about first; the batch waits for the answer."""
        transaction = self.open
        if transaction is None or self.state not in _WITH_RECORDS or code not in FENCED_CODES:
            return BatchDisposition.FAIL
        if transaction.to_settle is None:
            transaction.to_settle = f"Produce to {partition} of {self.who!r}", code
            self.wake.set()
        return BatchDisposition.RETRY


def _code_of(error: BaseException) -> int:
    """The code of Kafka that says best why a record was not written."""
    if isinstance(error, BrokerError):
        return error.code
    if isinstance(error, EncodeError):
        return MESSAGE_TOO_LARGE if error.field in {"max_request_size", "buffer_memory"} else INVALID_RECORD
    return REQUEST_TIMED_OUT
