# SPDX-License-Identifier: Apache-2.0
"""The group transact session of the asyncio API: consume, transform, produce, exactly once.

One client runs the cores of a consumer and of a producer; `kcodec.session.core` connects the two.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from kcodec._fast import decode_fetch
from kcodec.arguments import check_seconds, check_timeout
from kcodec.client.aio.producer import Delivery, Producer, TableDelivery
from kcodec.client.aio.waiting import ClientBase, IoLoop, core_lock
from kcodec.client.flows import run_in_background
from kcodec.client.interruption import (
    INTERRUPTED_ABORT_SECONDS,
    abort_of,
    announced,
    closing_seconds,
    is_interruption,
    limited_seconds,
)
from kcodec.client.poll_timeouts import check_poll
from kcodec.consumer.callbacks import RebalanceListener
from kcodec.consumer.core import ConsumerCore, leaving_seconds
from kcodec.errors import EncodeError, KcodecError, ProducerFencedError, TransactionStateError, TransportError
from kcodec.flow import Flow
from kcodec.network.client import Client
from kcodec.network.option_names import refuse_positional
from kcodec.offsets import TopicPartition, check_offsets
from kcodec.producer.batch import BatchOutcome, ProducerBatch
from kcodec.producer.identity import ProducerIdManager
from kcodec.producer.on_delivery import call_on_delivery
from kcodec.producer.options import ProducerConfig
from kcodec.session.block import SessionBlock
from kcodec.session.core import GroupSession
from kcodec.session.end import SessionEnd
from kcodec.session.options import SessionConfig, subscription_of, take_session_options
from kcodec.transactions.state import State

if TYPE_CHECKING:
    from kcodec._fast import DecodedRecords, Record
    from kcodec.client.options import SessionOptions
    from kcodec.consumer.health import ConsumerHealth
    from kcodec.producer.delivery import OnDelivery

log = logging.getLogger("kcodec.session")
Taken = TypeVar("Taken", bound="list[Record] | DecodedRecords")
CLOSE_SECONDS = 30.0
#: One wait of a poll without a timeout.
LONG_SECONDS = 3600.0


class _SessionProducer(Producer):
    """The producer of a session, with the session's client. The session starts it."""

    def __init__(self, options: SessionConfig, client: Client, io_loop: IoLoop) -> None:
        self._build(options.producer, client, io_loop)

    def _make_id_manager(self, own: ProducerConfig) -> ProducerIdManager:
        id_manager = super()._make_id_manager(own)
        self._manager().background.refusal = (
            "a session commits records together with the offsets that they were made from, and its next poll depends "
            "on the outcome; end the block, which commits"
        )
        return id_manager


class SessionTransaction:
    # SYNC: "A task that is cancelled inside the block aborts the transaction, and is cancelled then." -> ""
    """A transaction of a session, as a block: the records that it polls are committed with those that it sends, or
    neither.

        async with session.transaction() as txn:
            for record in await txn.poll(1.0):
                await txn.send("out", transform(record.value), key=record.key)
        if not txn.committed:
            ...  # the position is the same as before: the same records will be read again

    A rebalance never raises an error in the block. If it revokes partitions that the block has read, `send` still
    accepts records but they are never committed, `committed` is False at the end, and the positions are reset. Any
    other error is raised at the end of the block, after the abort, or by `send` and `poll` themselves. An exception
    that leaves the block also aborts the transaction, and is raised again. A task that is cancelled inside the block
    aborts the transaction, and is cancelled then.
    """

    def __init__(self, session: GroupTransactSession, timeout: float | None) -> None:
        self._session = session
        self._flows = session._flows
        self._timeout = timeout
        self._block: SessionBlock | None = None
        self._is_interrupted = False

    async def __aenter__(self) -> SessionTransaction:
        if self._block is not None:
            raise TransactionStateError(
                "this transaction has been used already: session.transaction() creates the next one",
                state=State.READY.name,
                event="BEGIN",
            )
        self._flows.check_idle()
        session = self._session
        try:
            if True:  # ASYNC
                session._start()
                block = None if session._io_loop.is_closed else self._flows.begin_at_once(self._is_gone)
            else:
                with session._producer._lock:
                    is_closed = session._producer._core.is_closed
                    block = None if is_closed else self._flows.begin_at_once(self._is_gone)
            if block is None:
                block = await session._run(self._flows.begin(self._timeout, self._is_gone))
            self._block = block
            return self
        except BaseException:  # cancelled, too: a transaction that begins all the same must be abandoned
            self._is_interrupted = True
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._current
        if block.is_ending:
            return
        try:
            await self._end_block(block, error)
        except BaseException as interruption:
            if not block.is_ending:  # Ctrl-C before the end began
                await self._end_block(block, interruption)
            raise

    async def _end_block(self, block: SessionBlock, error: BaseException | None) -> None:
        """Commit, or abort because of an error that left the block."""
        limit = limited_seconds(error, INTERRUPTED_ABORT_SECONDS)
        own = self._flows.manager.max_block if self._timeout is None else self._timeout
        seconds = own if limit is None else min(own, limit)
        end = SessionEnd(self._flows, block, seconds).run(is_commit=error is None, error=error)
        what = abort_of(self._flows.manager.transactional_id)
        await self._session._run(announced(end, error, seconds, what, "kcodec.session"))

    async def poll(self, timeout: float | None = 1.0) -> list[Record]:
        """As `Consumer.poll`; the returned records belong to this transaction."""
        session = self._session
        return await session._poll(self._current, timeout, lambda: session._core.take(session._max_poll_records), list)

    async def poll_arrow(self, timeout: float | None = 1.0) -> DecodedRecords:
        """As `Consumer.poll_arrow`; the returned records belong to this transaction."""
        session = self._session
        return await session._poll(self._current, timeout, session._core.take_arrow, session._no_rows)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = (),
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """As `Producer.send`, in this transaction; the commit waits for the record, and fails if it fails.

        After a rebalance that revoked what the transaction has read, the record is accepted, but never committed.
        """
        block = self._sending()
        try:
            return await self._session._producer.send(topic, value, key, headers, partition, timestamp, on_delivery)
        except KcodecError as error:
            delivery = Delivery(self._discarded_batch(block, topic, error), 0, -1)
            if on_delivery is not None:
                call_on_delivery(delivery, on_delivery, self._session._io_loop.post)
            return delivery

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """As `Producer.send_arrow`, in this transaction; otherwise as `send`."""
        block = self._sending()
        try:
            return await self._session._producer.send_arrow(topic, table, framing=framing)
        except KcodecError as error:
            batch = self._discarded_batch(block, topic, error)
            delivery = TableDelivery(topic, batch.lock)
            with batch.lock:
                delivery.add(batch)
                delivery.ended()
            delivery.seal()
            return delivery

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at this offset, for example after a batch that cannot be read (`DecodeError.next_offset`). It is
        committed or undone with the transaction. Raises ValueError for a partition that is not assigned to this
        session."""
        await self._session._run(self._seek(partition, offset))

    async def abort(self) -> None:
        """Abort it here: nothing of it is committed, and its records will be polled again. The end of the block then
        does nothing."""
        block = self._current
        block.check_open("abort")
        await self._session._run(SessionEnd(self._flows, block, self._timeout).run(is_commit=False))

    @property
    def committed(self) -> bool | None:
        """True; False: aborted, by a rebalance, an error or `abort`, and the records are read again; None: still open,
        or EndTxn got no response and the outcome is unknown."""
        return None if self._block is None else self._block.committed

    @property
    def is_doomed(self) -> bool:
        """Whether a rebalance has revoked what it read: its end aborts, so the block may end now."""
        return self._block is not None and self._block.failed is not None

    def _is_gone(self) -> bool:
        """Return whether the begin was interrupted, so that no block will end it."""
        return self._is_interrupted

    @property
    def _current(self) -> SessionBlock:
        if self._block is None:
            raise TransactionStateError(
                "the transaction begins with its block: use `with session.transaction() as txn`",
                state=State.READY.name,
                event="SEND",
            )
        return self._block

    def _sending(self) -> SessionBlock:
        block = self._current
        block.check_open("send")
        block.has_sent = True
        return block

    def _seek(self, partition: TopicPartition, offset: int) -> Flow[None]:
        self._current.check_open("seek")
        ((name, where),) = check_offsets({partition: offset}).items()
        self._flows.note_starts()
        yield from self._session._core.seek(name, where)

    def _discarded_batch(self, block: SessionBlock, topic: str, error: KcodecError) -> ProducerBatch:
        """Return a batch that failed. Raise the error of a send, unless a rebalance has prevented the commit: then
        nothing is lost."""
        if block.failed is None or isinstance(error, ProducerFencedError | EncodeError):
            raise error
        batch = ProducerBatch(topic, -1, self._session._producer._lock)
        batch.finish(BatchOutcome(error=error))
        return batch

    def __repr__(self) -> str:
        state = "not begun" if self._block is None else "open" if not self._block.is_ending else f"{self.committed}"
        return f"<SessionTransaction of {self._flows.manager.transactional_id!r}, committed: {state}>"


class GroupTransactSession(ClientBase):
    # SYNC: "One task uses it" -> "One thread uses it"
    # SYNC: "They may be coroutine functions." -> ""
    """A group member that reads and writes exactly once: offsets and records are committed together (KIP-98, KIP-447).
    One task uses it. Use as many sessions as there are partitions to share the work.

        async with GroupTransactSession(
            bootstrap_servers="localhost:9092", group_id="billing", transactional_id="billing-1", topics=["orders"]
        ) as session:
            while True:
                async with session.transaction() as txn:
                    for record in await txn.poll(1.0):
                        await txn.send("invoices", invoice(record.value), key=record.key)

    topics, pattern: what to read, one of the two, as in `Consumer.subscribe`.
    transactional_id: one for each live session, the same after a restart.
    on_revoked, on_assigned, on_lost: called within `poll` and `close` with a frozenset of TopicPartition, once they
        are revoked, assigned or lost (on_revoked, if there is no on_lost). They may be coroutine functions.
    transaction_scan_interval_ms: the brokers' transaction.abort.timed.out.transaction.cleanup.interval.ms, for brokers
        before 2.5 only.
    Others: those of `Consumer` and `Producer`, with safe defaults: auto_offset_reset="earliest",
        transaction_timeout_ms=40000. isolation_level="read_uncommitted", enable_auto_commit=True and acks other than
        "all" are rejected.

    An unknown option raises TypeError with a suggestion, an invalid or unsafe one ValueError.
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
        self._options = taken
        self._subscription = subscription_of(taken, topics, pattern)
        self._max_poll_records = taken.consumer.max_poll_records
        self._client = client = Client(taken.client)
        client.cluster.allow_auto_topic_creation = taken.consumer.allow_auto_create_topics
        self._io_loop = IoLoop(client)
        self._producer = _SessionProducer(taken, client, self._io_loop)
        self._polling = threading.Lock()
        group_id = taken.consumer.group_id
        assert group_id is not None
        self._flows = GroupSession(self._producer._manager(), taken.times, group_id)
        self._core = ConsumerCore(
            taken.consumer.settings(client.options),
            client.cluster,
            metrics=client.options.metrics,
            lock=core_lock(self._io_loop),
            post=self._io_loop.post,
            now=lambda: time.time_ns() // 1_000_000,
            handler=self._flows,
        )
        self._flows.attach(self._core, RebalanceListener(**taken.callbacks))
        client.on_crash.append(self._core.crash)
        if False:  # SYNC
            self._start()

    @classmethod
    def from_properties(
        cls,
        properties: Mapping[str, Any] | str | PathLike[str],
        *,
        topics: str | Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """Create a session from properties with the names of Java's clients or of librdkafka: a mapping, or the path
        of a file in the format of java.util.Properties. Values of text are converted.

        options: those of kcodec; they override the properties.

        A file may also have options that only another client has. They are logged as a WARNING, and have no effect.

        Raise TypeError for names that a session does not have, all of them together, with the name that is meant
        or what to use instead; ValueError for an invalid value. Errors never show the values of secrets.
        """
        from kcodec.client.properties import options_from_properties

        taken: Any = {**options_from_properties(properties, "session"), **options}
        return cls(topics=topics, pattern=pattern, **taken)

    def _start(self) -> None:
        self._producer._start()
        super()._start()

    def _begin(self) -> None:
        subscribe = self._core.subscribe(*self._subscription)
        flows = {"consumer": self._core.run(), "session": self._flows.run(), "subscribe": subscribe}
        run_in_background(self._client, self._core, flows)

    def transaction(self, timeout: float | None = None) -> SessionTransaction:
        """Return a transaction, to use as a block.

        timeout: seconds for its begin, and the same for its end: the commit, and the abort after a failed commit, share
        one deadline. The default of each is `max_block_ms`.

        Raised at the end of the block, after the abort: AbortableTransactionError (names the partition of a record that
        failed), AuthorizationError, TransactionTimedOutError, DeliveryTimeoutError when the commit could not be sent in
        time. ProducerFencedError: another session uses this transactional_id, and this one is no longer usable.
        UnknownOutcomeError: the commit was sent and got no response, `committed` is None; the next transaction
        continues at the committed offsets, which show the outcome.
        """
        check_seconds(timeout, "transaction")
        return SessionTransaction(self, timeout)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are assigned to this session now."""
        with self._core.assignment.lock:
            return frozenset(self._core.assignment.partitions)

    async def health(self) -> ConsumerHealth:
        """Return what the consumer of this session does at the moment: see `Consumer.health`."""
        return await self._run(self._core.health())

    async def _poll(
        self, block: SessionBlock, timeout: float | None, take: Callable[[], Taken], nothing: Callable[[], Taken]
    ) -> Taken:
        check_poll(timeout)
        if self._polling.locked():
            # SYNC: "one task polls" -> "one thread polls"
            raise RuntimeError("poll is already running: one task polls a session, and its callbacks must not poll")
        is_begun = False
        try:
            with self._polling:  # no signal, such as that of Ctrl-C, is handled between the lock and its block
                block.check_open("poll")
                if self._io_loop.is_closed:
                    await self._run(self._core.wait_for_work(0.0))  # says why
                self._core.begin_poll()
                is_begun = True
                deadline = None if timeout is None else time.monotonic() + timeout
                while True:
                    taken = self._take(block, take)
                    if taken is not None and len(taken):
                        return taken
                    left = LONG_SECONDS if deadline is None else max(deadline - time.monotonic(), 0.0)
                    callback = await self._wait_for_work(self._core, self._flows, left)
                    if callback is not None:
                        await self._call_back(self._core.callbacks, callback)
                    elif deadline is not None and time.monotonic() >= deadline:
                        taken = self._take(block, take)
                        return taken if taken is not None else nothing()
        except BaseException:
            if is_begun:
                self._core.take_back()  # the block is not given what was taken for this poll
            raise

    def _take(self, block: SessionBlock, take: Callable[[], Taken]) -> Taken | None:
        """Return what can be taken; None if nothing may be taken now. Raise TransactionStateError if the transaction
        has ended, in which case the records belong to the next one."""
        block.check_open("poll")
        if self._core.has_business or not self._flows.may_take(block):
            return None
        count = 0
        try:
            taken = take()
            count = len(taken)
        except KcodecError:
            raise
        except BaseException:
            # Interrupted: positions may have moved past records that the block did not get.
            block.fail("a poll was interrupted")
            raise
        finally:
            self._flows.taken(block, count)
        return taken

    def _no_rows(self) -> DecodedRecords:
        """Return a result of poll_arrow without rows."""
        own: Any = self._core.settings
        return decode_fetch(
            b"",
            topic="",
            partition=0,
            start_offset=0,
            columns=own.columns,
            binary_type=own.binary_type,
            framing=own.framing,
        )

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        # SYNC: "after cancellation" -> "after Ctrl-C, SystemExit or the like"
        """Abort an open transaction, revoke all partitions, leave the group and end, within `timeout` seconds in total,
        not counting the rebalance callbacks. Idempotent.

        The end of the `with` block waits 3 seconds at most after cancellation, and after an error
        while no broker responds.
        """
        check_timeout(timeout, "close")
        await self._end(timeout, None)

    async def _end(self, timeout: float, error: BaseException | None) -> None:
        if self._io_loop.is_closed:
            return
        self._io_loop.check_wait()
        deadline = time.monotonic() + timeout
        try:
            if self._is_started:
                await self._run(
                    announced(self._close(timeout), error, timeout, self._ending_text, "kcodec.session", is_always=True)
                )
                while self._core.callbacks.waiting:
                    await self._call_back(self._core.callbacks, self._core.callbacks.waiting.popleft())
        except BaseException as interruption:
            if is_interruption(interruption):
                deadline = time.monotonic()  # a second Ctrl-C: nothing is waited for
            raise
        finally:
            await self._producer.close(max(deadline - time.monotonic(), 0.0))

    def _ending_text(self) -> str:
        """Return what a close waits for."""
        cause = self._client.cluster.last_error
        what = f"the session to abort its open transaction and to leave group {self._options.consumer.group_id!r}"
        return what + (f" ({cause})" if cause else "")

    def _close(self, timeout: float) -> Flow[None]:
        """Abort an open transaction, or let a commit that has begun come to its end. Then leave the group, with one
        deadline for both."""
        deadline = self._client.clock() + timeout
        block, left = self._flows.block, timeout - leaving_seconds(timeout)
        if block is not None and block.is_ending:  # in a call of another thread, or in one that a signal handler interrupted
            yield from self._flows.wait_for_end(block, left)
        elif block is not None:
            if not block.is_fresh:
                log.warning("closing the session aborts its open transaction; its records will be read again")
            yield from SessionEnd(self._flows, block, left).run(
                is_commit=False, error=TransportError("the session is closed")
            )
        self._flows.is_closing = True
        yield from self._core.close(max(deadline - self._client.clock(), 0.0))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end(closing_seconds(error, self._client.cluster, CLOSE_SECONDS), error)

    def __repr__(self) -> str:
        own = self._options
        return f"<{type(self).__name__} {own.producer.transactional_id!r} of group {own.consumer.group_id!r}>"
