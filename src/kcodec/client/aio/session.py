# SPDX-License-Identifier: Apache-2.0
"""The group transact session of the asyncio API, which consumes, transforms and produces records exactly once.

One client runs the core of a consumer and the core of a producer. `kcodec.session.core` connects the two cores.
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

from kcodec.arguments import check_seconds, check_timeout
from kcodec.client.aio.producer import Delivery, Producer, TableDelivery
from kcodec.client.aio.waiting import ClientBase, IoLoop, close_lock, core_lock, wait_for_close
from kcodec.client.flows import run_in_background, work_of_session
from kcodec.client.interruption import (
    abort_of,
    announced,
    closing_seconds,
    has_interrupted,
    limited_seconds,
)
from kcodec.client.poll_timeouts import check_poll
from kcodec.consumer.callbacks import RebalanceListener
from kcodec.consumer.core import ConsumerCore
from kcodec.consumer.selection_calls import leaving_seconds
from kcodec.end_limits import ABORT_AT_ONCE_SECONDS, ABORT_SECONDS
from kcodec.errors import EncodeError, KcodecError, ProducerFencedError, TransactionStateError, TransportError
from kcodec.flow import Flow, join, spawn
from kcodec.network.client import Client
from kcodec.network.option_names import refuse_positional
from kcodec.offsets import OffsetAndMetadata, TopicPartition, check_offsets
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
#: Maximum duration of one wait of a poll without a timeout. The poll then waits again.
LONG_SECONDS = 3600.0


class _SessionProducer(Producer):
    """The producer of a session. It uses the client of the session. The session starts and ends it."""

    def __init__(self, options: SessionConfig, client: Client, io_loop: IoLoop) -> None:
        self._build(options.producer, client, io_loop)

    def _make_id_manager(self, own: ProducerConfig) -> ProducerIdManager:
        id_manager = super()._make_id_manager(own)
        self._manager().background.refusal = (
            "a session commits records together with the offsets that they were made from, and its next poll depends "
            "on the outcome; end the block, which commits"
        )
        return id_manager

    def __del__(self) -> None:
        """Do nothing, as the client is that of the session."""


class _SessionBeginning:
    """One attempt to begin a transaction with a block."""

    def __init__(self) -> None:
        self.is_interrupted = False

    def is_gone(self) -> bool:
        """Return whether the start of the block was interrupted, so that no block will end the transaction."""
        return self.is_interrupted


class SessionTransaction:
    # SYNC: "If the task is cancelled inside the block, the transaction is aborted before the task ends." -> ""
    """A transaction of a session, to use as a block. The offsets of the records that it polls and the records that it
    sends are committed together, or not at all.

        async with session.transaction() as txn:
            for record in await txn.poll(1.0):
                await txn.send("out", transform(record.value), key=record.key)
        if not txn.committed:
            ...  # the position is the same as before: the same records will be read again

    A rebalance never raises an error in the block. If it revokes partitions that the block has read, `send` still
    accepts records, but they are never committed. After the block, `committed` is then False, and the session returns
    to the positions at which the transaction began. Other errors are raised by `send` or `poll`, or at the end of the
    block, after the abort. An exception that leaves the block also aborts the transaction, and is raised again. If the
    task is cancelled inside the block, the transaction is aborted before the task ends.
    """

    def __init__(self, session: GroupTransactSession, timeout: float | None) -> None:
        self._session = session
        self._flows = session._flows
        self._timeout = timeout
        self._block: SessionBlock | None = None

    async def __aenter__(self) -> SessionTransaction:
        if self._block is not None:
            raise TransactionStateError(
                "this transaction has been used already: session.transaction() creates the next one",
                state=State.READY.name,
                event="BEGIN",
            )
        self._flows.check_idle()
        session = self._session
        beginning = _SessionBeginning()
        try:
            if True:  # ASYNC
                session._start()
                block = None if session._io_loop.is_closed else self._flows.begin_at_once(beginning.is_gone)
            else:
                with session._producer._lock:
                    is_closed = session._producer._core.is_closed
                    block = None if is_closed else self._flows.begin_at_once(beginning.is_gone)
            if block is None:
                block = await session._run(self._flows.begin(self._timeout, beginning.is_gone))
            self._block = block
            return self
        except BaseException:  # such as a cancellation: if the transaction begins nevertheless, it is abandoned
            beginning.is_interrupted = True
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
        """Commit the transaction, or abort it because an exception left the block."""
        limit = limited_seconds(error, ABORT_SECONDS)
        own = self._flows.manager.max_block if self._timeout is None else self._timeout
        seconds = own if limit is None else min(own, limit)
        end = SessionEnd(self._flows, block, seconds).run(is_commit=error is None, error=error)
        what = abort_of(self._flows.manager.transactional_id)
        await self._session._run(announced(end, error, seconds, what, "kcodec.session"))

    async def poll(self, timeout: float | None = 1.0) -> list[Record]:
        """Return records as `Consumer.poll` does. They belong to this transaction.

        timeout: Maximum time to wait, in seconds. None: wait without a limit.
        """
        session = self._session
        return await session._poll(self._current, timeout, lambda: session._core.take(session._max_poll_records), list)

    async def poll_arrow(self, timeout: float | None = 1.0) -> DecodedRecords:
        """Return records as Arrow columns, as `Consumer.poll_arrow` does. They belong to this transaction.

        timeout: Maximum time to wait, in seconds. None: wait without a limit.
        """
        session = self._session
        return await session._poll(self._current, timeout, session._core.take_arrow, session._core.no_rows)

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
        """Send a record in this transaction, as `Producer.send` does. The commit waits for the record, and fails if the
        record fails.

        If a rebalance has revoked partitions that the transaction has read, the record is accepted but never committed.
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
        """Send the rows of a table in this transaction, as `Producer.send_arrow` does. The commit waits for them, as
        for the records of `send`."""
        block = self._sending()
        try:
            return await self._session._producer.send_arrow(topic, table, framing=framing)
        except KcodecError as error:
            batch = self._discarded_batch(block, topic, error)
            delivery = TableDelivery(topic, batch.lock)
            with batch.lock:
                delivery.add(batch)
                delivery.ended([])
            delivery.seal()
            return delivery

    async def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue reading at this offset, for example after a batch that cannot be read (`DecodeError.next_offset`).
        The new position is committed with the transaction. If the transaction is aborted, the session returns to the
        position at which it began. Raise ValueError if the partition is not assigned to this session."""
        await self._session._run(self._seek(partition, offset))

    async def abort(self) -> None:
        """Abort the transaction. Neither its records nor its offsets are committed, and the records that it has read
        will be polled again. The end of the block then does nothing."""
        block = self._current
        block.check_open("abort")
        await self._session._run(SessionEnd(self._flows, block, self._timeout).run(is_commit=False))

    @property
    def committed(self) -> bool | None:
        """True if the transaction is committed. False if a rebalance, an error or `abort` has aborted it; its records
        are then read again. None if it is still open, or if EndTxn got no response, so that the outcome is unknown."""
        return None if self._block is None else self._block.committed

    @property
    def is_doomed(self) -> bool:
        """Whether the transaction cannot be committed any more, for example because a rebalance has revoked partitions
        that it has read. The end of the block then aborts it, so the program can leave the block early."""
        return self._block is not None and self._block.failed is not None

    @property
    def _current(self) -> SessionBlock:
        if self._block is None:
            raise TransactionStateError(
                # SYNC: "async with" -> "with"
                "the transaction begins with its block: use `async with session.transaction() as txn`",
                state=State.READY.name,
                event="SEND",
            )
        return self._block

    def _sending(self) -> SessionBlock:
        block = self._current
        block.check_open("send")
        block.has_sent = True
        return block

    def _seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> Flow[None]:
        self._current.check_open("seek")
        ((name, where),) = check_offsets({partition: offset}).items()
        self._flows.note_starts()
        yield from self._session._core.offsets.seek(name, where)

    def _discarded_batch(self, block: SessionBlock, topic: str, error: KcodecError) -> ProducerBatch:
        """Return a failed batch for a record whose send has raised `error`. Raise the error again unless a rebalance
        has prevented the commit. In that case, the record would not have been committed."""
        if block.failed is None or isinstance(error, ProducerFencedError | EncodeError):
            raise error
        batch = ProducerBatch(topic, -1, self._session._producer._lock)
        batch.finish(BatchOutcome(error=error), [])
        return batch

    def __repr__(self) -> str:
        state = "not begun" if self._block is None else "open" if not self._block.is_ending else f"{self.committed}"
        return f"<SessionTransaction of {self._flows.manager.transactional_id!r}, committed: {state}>"


class GroupTransactSession(ClientBase):
    # SYNC: "Only one task may use it." -> "Only one thread may use it."
    # SYNC: "They may be coroutine functions." -> ""
    """A group member that reads and writes exactly once: offsets and records are committed together (KIP-98, KIP-447).
    Only one task may use it. To share the work, use up to one session for each partition.

        async with GroupTransactSession(
            bootstrap_servers="localhost:9092", group_id="billing", transactional_id="billing-1", topics=["orders"]
        ) as session:
            while True:
                async with session.transaction() as txn:
                    for record in await txn.poll(1.0):
                        await txn.send("invoices", invoice(record.value), key=record.key)

    topics, pattern: Topics to read, as in `Consumer.subscribe`. Pass one of the two.
    transactional_id: Id of the producer. Choose one for each running session, and use the same id after a restart.
    on_revoked, on_assigned, on_lost: Callbacks that are called within `poll` and `close` after partitions were revoked,
        assigned or lost. The argument is a frozenset of TopicPartition. Without on_lost, on_revoked is called for lost
        partitions. They may be coroutine functions.
    transaction_scan_interval_ms: Value of transaction.abort.timed.out.transaction.cleanup.interval.ms in the
        configuration of the brokers. It is used only with brokers before Kafka 2.5.
    Others: The options of `Consumer` and `Producer`. The defaults of a session are auto_offset_reset="earliest" and
        transaction_timeout_ms=40000. isolation_level="read_uncommitted", enable_auto_commit=True and acks other than
        "all" are rejected.

    Raise TypeError, with a suggestion, if an option is unknown. Raise ValueError if the value of an option is invalid
    or unsafe.
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
        client.network.login_patience = taken.consumer.session_timeout_ms / 1000
        client.cluster.allow_auto_topic_creation = taken.consumer.allow_auto_create_topics
        self._io_loop = IoLoop(client)
        self._producer = _SessionProducer(taken, client, self._io_loop)
        self._polling = threading.Lock()
        self._close_lock = close_lock()
        self._is_closing = False
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
        self._io_loop.last_work = work_of_session(self._core, group_id, repr(self), self._producer._core)
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
        """Create a session from properties with the names of Java's clients or of librdkafka.

        properties: A mapping, or the path of a file in the format of java.util.Properties. Text values are converted to
                    the types of the options.
        topics, pattern: Topics to read, as in `GroupTransactSession`.
        options: Options of kcodec. They override the properties.

        A file may also contain options that only other clients have. They have no effect and are logged as a WARNING.

        Raise TypeError if a session does not have some of the names. The error lists all of them, each with a
        suggestion where there is one. Raise ValueError if a value is invalid, and OSError if the file cannot be read.
        Errors never show the values of secrets.
        """
        from kcodec.client.properties import options_from_properties

        taken: Any = {**options_from_properties(properties, "session"), **options}
        return cls(topics=topics, pattern=pattern, **taken)

    def _start(self) -> None:
        self._producer._start()
        super()._start()

    def _begin(self) -> None:
        subscribe = self._core.selection.subscribe(*self._subscription)
        flows = {"consumer": self._core.run(), "session": self._flows.run(), "subscribe": subscribe}
        run_in_background(self._client, self._core, flows)

    def transaction(self, timeout: float | None = None) -> SessionTransaction:
        """Return a transaction for a `with` block.

        timeout: Maximum time in seconds to begin the transaction, and again to end it. None: `max_block_ms`. The
            commit, and the abort after a failed commit, share one deadline.

        The end of the block raises these errors. Except for UnknownOutcomeError, it aborts the transaction before it
        raises the error:
        - AbortableTransactionError, which names the partition if a record failed;
        - AuthorizationError;
        - TransactionTimedOutError;
        - DeliveryTimeoutError if the commit could not be sent in time;
        - ProducerFencedError if another session uses this transactional_id. This session is no longer usable;
        - UnknownOutcomeError if the commit was sent and got no response. `committed` is None. The next transaction
          continues at the committed offsets, which show the outcome.
        """
        check_seconds(timeout, "transaction")
        return SessionTransaction(self, timeout)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are currently assigned to this session."""
        with self._core.assignment.lock:
            return frozenset(self._core.assignment.partitions)

    async def health(self) -> ConsumerHealth:
        """Return the current state of this session's consumer. See `Consumer.health`."""
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
                    await self._run(self._core.wait_for_work(0.0))  # raises the reason
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
                self._core.take_back()  # the block does not get the records that this poll has taken
            raise

    def _take(self, block: SessionBlock, take: Callable[[], Taken]) -> Taken | None:
        """Return available records, or None if the block must not take records now. Raise TransactionStateError if the
        transaction has ended, because the records then belong to the next transaction."""
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
            # The poll was interrupted, and positions may have moved past records that the block did not get.
            block.fail("a poll was interrupted")
            raise
        finally:
            self._flows.taken(block, count)
        return taken

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        # SYNC: "after cancellation" -> "after Ctrl-C, SystemExit or the like"
        """Abort an open transaction, revoke all partitions, leave the group and close the connections. Further calls
        have no effect. A call during another one waits for its end.

        timeout: Maximum time for all these steps, in seconds, without the time of the rebalance callbacks. If it passes
            before the request to leave the group is sent, the request is sent nevertheless, unless the coordinator is
            unknown. The call then waits up to 0.2 seconds longer for the response.

        The end of the `with` block also closes the session. It waits at most 3 seconds
        after cancellation, or after a connection error if no broker responds.

        Raise TypeError if the timeout is not a number.
        """
        check_timeout(timeout, "close")
        await self._end(timeout, None)

    async def _end(self, timeout: float, error: BaseException | None) -> None:
        if self._io_loop.is_closed or (self._is_closing and self._core.callbacks.callers()):
            return  # also if a callback of `close` calls it
        self._io_loop.check_wait()
        if not await wait_for_close(self._close_lock, timeout):
            return  # the other call closes it
        async with self._close_lock:
            # In a signal handler that interrupts `close`, the lock is free, and `close` then continues.
            if self._io_loop.is_closed or self._is_closing:
                return
            await self._close_once(timeout, error)

    async def _close_once(self, timeout: float, error: BaseException | None) -> None:
        deadline = time.monotonic() + timeout
        try:
            self._is_closing = True  # from here on, an interruption closes the producer
            if self._is_started:
                await self._run(
                    announced(self._close(timeout), error, timeout, self._ending_text, "kcodec.session", is_always=True)
                )
                while self._core.callbacks.waiting:
                    await self._call_back(self._core.callbacks, self._core.callbacks.waiting.popleft())
        except BaseException as interruption:
            if has_interrupted(interruption):
                deadline = time.monotonic()  # wait for nothing more
                if self._is_started:
                    await self._run_at_once(self._end_at_once())
            raise
        finally:
            await self._producer.close(max(deadline - time.monotonic(), 0.0))

    def _end_at_once(self) -> Flow[None]:
        """After an interruption of `close`: abort an open transaction and leave the group."""
        abort = yield from spawn(self._producer._core.abort_at_once(), "abort at once")
        yield from self._core.leave_at_once()
        try:
            yield from join(abort, ABORT_AT_ONCE_SECONDS)
        except TimeoutError:
            abort.cancel()

    def _ending_text(self) -> str:
        """Return a text that describes what `close` waits for."""
        cause = self._client.cluster.last_error
        what = f"the session to abort its open transaction and to leave group {self._options.consumer.group_id!r}"
        return what + (f" ({cause})" if cause else "")

    def _close(self, timeout: float) -> Flow[None]:
        """Abort an open transaction, or wait for the end of a commit in progress. Then leave the group. Both steps have
        one deadline."""
        deadline = self._client.clock() + timeout
        left = timeout - leaving_seconds(timeout)
        block = self._flows.block
        if block is not None and block.is_ending:  # in another thread, or in a call that a signal handler interrupted
            yield from self._flows.wait_for_end(block, left)
            block = self._flows.block
        if block is not None and not block.is_ending:
            if not block.is_fresh:
                log.warning("closing the session aborts its open transaction; its records will be read again")
            left = max(deadline - self._client.clock() - leaving_seconds(timeout), 0.0)
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
