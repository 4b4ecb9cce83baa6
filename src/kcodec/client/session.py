# SPDX-License-Identifier: Apache-2.0
"""The group transact session for threads: consume, transform, produce, exactly once.

One client (a loop, a thread) carries a consumer's core and a producer's; `kcodec.session.core` knows both.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from kcodec.client.producer import Delivery, Producer, TableDelivery
from kcodec.client.session_base import SessionTransactionViews, SessionViews, manager_for
from kcodec.consumer.callbacks import Notice
from kcodec.errors import KcodecError
from kcodec.network.client import Client
from kcodec.network.option_names import NotPickled, refuse_positional
from kcodec.network.thread_loop import Carrier
from kcodec.offsets import TopicPartition
from kcodec.producer.identity import ProducerIdSource
from kcodec.producer.options import ProducerConfig
from kcodec.session.block import SessionBlock
from kcodec.session.end import SessionEnd
from kcodec.session.options import SessionConfig, subscription_of, take_session_options

if TYPE_CHECKING:
    from kcodec._fast import DecodedRecords, Record
    from kcodec.client.options import SessionOptions

Taken = TypeVar("Taken", bound="list[Record] | DecodedRecords")
CLOSE_SECONDS = 30.0


class _SessionProducer(Producer):
    """The producer of a session, on the session's client."""

    def __init__(self, options: SessionConfig, client: Client, carrier: Carrier) -> None:
        self._session_options = options
        self._build(options.producer, client, carrier)

    def _make_source(self, own: ProducerConfig) -> ProducerIdSource:
        return manager_for(self._session_options, self._client)


class SessionTransaction(SessionTransactionViews):
    """A transaction of a session, as a block: what it polls is committed with what it sends, or neither is.

        with session.transaction() as txn:
            for record in txn.poll(1.0):
                txn.send("out", transform(record.value), key=record.key)
        if not txn.committed:
            ...  # the position is where it was before: the same records come again

    A rebalance never raises into the block: one that takes away partitions it has read discards what it sends (`send`
    takes it, it is never committed), `committed` is False at its end, and the positions are back where they were. Any
    other error is raised at the end of the block, after the abort, or by `send` and `poll` themselves; an exception of
    the block's own aborts, too, and is raised again.
    """

    def __init__(self, session: GroupTransactSession, timeout: float | None) -> None:
        super().__init__(session._flows, timeout)
        self._session = session

    def __enter__(self) -> SessionTransaction:
        self._check_new()
        producer = self._session._producer
        with producer._lock:
            block = None if producer._core.is_closed else self._flows.begin_at_once(self._is_gone)
        if block is None:
            try:
                block = self._session._run(self._flows.begin(self._timeout, self._is_gone))
            except BaseException:
                self._is_interrupted = True
                raise
        self._block = block
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._current
        if not block.is_ending:
            self._session._run(SessionEnd(self._flows, block, self._timeout).run(is_commit=error is None, error=error))

    def poll(self, timeout: float | None = 1.0) -> list[Record]:
        """As `Consumer.poll`; what it gives belongs to this transaction."""
        session = self._session
        return session._poll(self._current, timeout, lambda: session._core.take(session._max_poll_records), list)

    def poll_arrow(self, timeout: float | None = 1.0) -> DecodedRecords:
        """As `Consumer.poll_arrow`; what it gives belongs to this transaction."""
        session = self._session
        return session._poll(self._current, timeout, session._core.take_arrow, session._no_rows)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """As `Producer.send`, into this transaction; the commit waits for it, and fails if it does.

        After a rebalance that took what the transaction has read, it is accepted, and discarded with the transaction.
        """
        block = self._sending()
        try:
            return self._session._producer.send(topic, value, key, headers, partition, timestamp)
        except KcodecError as error:
            self._check_discarded(block, error)
            return self._discarded(Delivery, topic, error)

    def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """As `Producer.send_arrow`, into this transaction; else as `send`."""
        block = self._sending()
        try:
            return self._session._producer.send_arrow(topic, table, framing=framing)
        except KcodecError as error:
            self._check_discarded(block, error)
            return self._discarded_table(TableDelivery, topic, error)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at this offset, say behind a batch that cannot be read (`DecodeError.next_offset`): committed with the
        transaction, or taken back with it. Raises ValueError for a partition that is not this session's."""
        self._session._run(self._seek(self._session._core, partition, offset))

    def abort(self) -> None:
        """End it here: nothing of it is committed, its records will be polled again. The block's end then does
        nothing."""
        block = self._current
        block.check_open("abort")
        self._session._run(SessionEnd(self._flows, block, self._timeout).run(is_commit=False))


class GroupTransactSession(NotPickled, SessionViews):
    """A member of a group that reads and writes exactly once: offsets and records are committed together (KIP-98,
    KIP-447). One thread uses it; as many sessions as there are partitions share the work.

        with GroupTransactSession(
            bootstrap_servers="localhost:9092", group_id="billing", transactional_id="billing-1", topics=["orders"]
        ) as session:
            while True:
                with session.transaction() as txn:
                    for record in txn.poll(1.0):
                        txn.send("invoices", invoice(record.value), key=record.key)

    topics, pattern: what to read, one of the two, as in `Consumer.subscribe`.
    transactional_id: one per live session, the same after a restart.
    on_revoked, on_assigned, on_lost: called within `poll` and `close` with a frozenset of TopicPartition, once they
        are revoked, assigned, lost (on_revoked, if there is no on_lost).
    transaction_scan_interval_ms: the brokers' transaction.abort.timed.out.transaction.cleanup.interval.ms, for brokers
        before 2.5 only.
    Others: those of `Consumer` and `Producer`, with defaults that are safe: auto_offset_reset="earliest",
        transaction_timeout_ms=40000. isolation_level="read_uncommitted", enable_auto_commit=True and other acks than
        "all" are refused.

    Unknown options are a TypeError with a suggestion, impossible or unsafe ones a ValueError.
    """

    def __init__(
        self,
        *positional: Never,
        topics: str | Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        refuse_positional(positional, "GroupTransactSession")
        taken = take_session_options(options)
        names, text = subscription_of(taken, topics, pattern)
        self._client = Client(taken.client)
        self._carrier = Carrier(self._client)
        self._producer = _SessionProducer(taken, self._client, self._carrier)
        self._polling = threading.Lock()
        self._make(taken, self._producer._core.source, threading.Lock(), self._carrier.post)
        self._carrier.post(lambda: self._begin(names, text))

    def transaction(self, timeout: float | None = None) -> SessionTransaction:
        """A transaction, as a block.

        timeout: seconds for its begin, and the same for its end: the commit, and the abort after a commit that failed,
        share one deadline. Without it `max_block_ms` is the limit of each.

        Raised at the end of the block, after the abort: AbortableTransactionError (names the partition of a record that
        failed), AuthorizationError, TransactionTimedOutError, DeliveryTimeoutError when the commit could not be sent in
        time. ProducerFencedError: another session has this transactional_id, this one can do nothing more.
        UnknownOutcomeError: the commit was sent and got no response, `committed` is None; the next transaction
        continues at the committed offsets, which show the outcome.
        """
        return SessionTransaction(self, timeout)

    def _run(self, flow: Any) -> Any:
        return self._carrier.run(flow)

    def _poll(
        self, block: SessionBlock, timeout: float | None, take: Callable[[], Taken], nothing: Callable[[], Taken]
    ) -> Taken:
        if not self._polling.acquire(blocking=False):
            raise RuntimeError("poll is under way: one thread polls a session, and none of the functions it calls")
        try:
            block.check_open("poll")
            if self._carrier.is_closed:
                self._run(self._core.wait_for_work(0.0))  # says why
            self._core.begin_poll()
            try:
                deadline = None if timeout is None else time.monotonic() + timeout
                while True:
                    taken = self._take(block, take)
                    if taken is not None and len(taken):
                        return taken  # type: ignore[no-any-return]
                    left = 3600.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
                    notice = self._run(self._flows.wait_for_work(left))
                    if notice is not None:
                        self._tell(notice)
                    elif deadline is not None and time.monotonic() >= deadline:
                        taken = self._take(block, take)
                        return taken if taken is not None else nothing()
            except BaseException:
                self._core.take_back()  # the block is not given what was taken for this poll
                raise
        finally:
            self._polling.release()

    def _tell(self, notice: Notice) -> None:
        self._core.notices.begin(notice)
        try:
            notice.call()
        finally:
            self._carrier.post(notice.settle)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Abort what is open, give all partitions away, leave the group, end: within `timeout` seconds in all, the time
        that the rebalance callbacks take not counted. Idempotent."""
        if self._carrier.is_closed:
            return
        deadline = time.monotonic() + timeout
        try:
            self._run(self._close(timeout))
            for notice in self._last_notices():
                self._tell(notice)
        finally:
            self._producer.close(max(deadline - time.monotonic(), 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and not carrier.is_closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            carrier.close(0.0)
