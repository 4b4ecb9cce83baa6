# SPDX-License-Identifier: Apache-2.0
"""The group transact session for asyncio; see `kcodec.client.session`."""

from __future__ import annotations

import inspect
import re
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from kcodec.client.aio.producer import Delivery, Producer, TableDelivery
from kcodec.client.session_base import SessionTransactionViews, SessionViews, manager_for
from kcodec.consumer.callbacks import Notice
from kcodec.errors import KcodecError
from kcodec.network.asyncio_loop import Carrier
from kcodec.network.client import Client
from kcodec.network.option_names import NotPickled, refuse_positional
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
    """As `kcodec.client.session.SessionTransaction`, awaited:

        async with session.transaction() as txn:
            for record in await txn.poll(1.0):
                await txn.send("out", transform(record.value), key=record.key)

    A task that is cancelled inside the block aborts the transaction, and is cancelled then.
    """

    def __init__(self, session: GroupTransactSession, timeout: float | None) -> None:
        super().__init__(session._flows, timeout)
        self._session = session

    async def __aenter__(self) -> SessionTransaction:
        self._check_new()
        self._session._start()
        block = None if self._session._carrier.is_closed else self._flows.begin_at_once(self._is_gone)
        if block is None:
            try:
                block = await self._session._run(self._flows.begin(self._timeout, self._is_gone))
            except BaseException:
                self._is_interrupted = True
                raise
        self._block = block
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._current
        if not block.is_ending:
            end = SessionEnd(self._flows, block, self._timeout)
            await self._session._run(end.run(is_commit=error is None, error=error))

    async def poll(self, timeout: float | None = 1.0) -> list[Record]:
        """As `kcodec.client.session.SessionTransaction.poll`."""
        session = self._session
        return await session._poll(self._current, timeout, lambda: session._core.take(session._max_poll_records), list)

    async def poll_arrow(self, timeout: float | None = 1.0) -> DecodedRecords:
        """As `kcodec.client.session.SessionTransaction.poll_arrow`."""
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
    ) -> Delivery:
        """As `kcodec.client.session.SessionTransaction.send`."""
        block = self._sending()
        try:
            return await self._session._producer.send(topic, value, key, headers, partition, timestamp)
        except KcodecError as error:
            self._check_discarded(block, error)
            return self._discarded(Delivery, topic, error)

    async def send_arrow(self, topic: str, table: Any, *, framing: str | None = None) -> TableDelivery:
        """As `kcodec.client.session.SessionTransaction.send_arrow`."""
        block = self._sending()
        try:
            return await self._session._producer.send_arrow(topic, table, framing=framing)
        except KcodecError as error:
            self._check_discarded(block, error)
            return self._discarded_table(TableDelivery, topic, error)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """As `kcodec.client.session.SessionTransaction.seek`."""
        await self._session._run(self._seek(self._session._core, partition, offset))

    async def abort(self) -> None:
        """End it here: nothing of it is committed, its records will be polled again. The block's end then does
        nothing."""
        block = self._current
        block.check_open("abort")
        await self._session._run(SessionEnd(self._flows, block, self._timeout).run(is_commit=False))


class GroupTransactSession(NotPickled, SessionViews):
    """A member of a group that reads and writes exactly once, for one asyncio loop; options and errors:
    `kcodec.client.GroupTransactSession`. on_revoked, on_assigned and on_lost may be coroutine functions.

        async with GroupTransactSession(
            bootstrap_servers="localhost:9092", group_id="billing", transactional_id="billing-1", topics=["orders"]
        ) as session:
            while True:
                async with session.transaction() as txn:
                    for record in await txn.poll(1.0):
                        await txn.send("invoices", invoice(record.value), key=record.key)
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
        self._subscription = subscription_of(taken, topics, pattern)
        self._client = Client(taken.client)
        self._carrier = Carrier(self._client)
        self._producer = _SessionProducer(taken, self._client, self._carrier)
        self._is_polling = self._is_started = False
        self._make(taken, self._producer._core.source, nullcontext(), self._carrier.post)

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._producer._start()
            self._carrier.post(lambda: self._begin(*self._subscription))

    def transaction(self, timeout: float | None = None) -> SessionTransaction:
        """A transaction, as a block; see `kcodec.client.GroupTransactSession.transaction`."""
        return SessionTransaction(self, timeout)

    async def _run(self, flow: Any) -> Any:
        return await self._carrier.run(flow)

    async def _poll(
        self, block: SessionBlock, timeout: float | None, take: Callable[[], Taken], nothing: Callable[[], Taken]
    ) -> Taken:
        if self._is_polling:
            raise RuntimeError("poll is under way: one task polls a session, and none of the functions it calls")
        self._is_polling = True
        try:
            block.check_open("poll")
            if self._carrier.is_closed:
                await self._run(self._core.wait_for_work(0.0))  # says why
            self._core.begin_poll()
            try:
                deadline = None if timeout is None else time.monotonic() + timeout
                while True:
                    taken = self._take(block, take)
                    if taken is not None and len(taken):
                        return taken  # type: ignore[no-any-return]
                    left = 3600.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
                    notice = await self._run(self._flows.wait_for_work(left))
                    if notice is not None:
                        await self._tell(notice)
                    elif deadline is not None and time.monotonic() >= deadline:
                        taken = self._take(block, take)
                        return taken if taken is not None else nothing()
            except BaseException:
                self._core.take_back()  # the block is not given what was taken for this poll
                raise
        finally:
            self._is_polling = False

    async def _tell(self, notice: Notice) -> None:
        self._core.notices.begin(notice)
        try:
            found = notice.call()
            if inspect.isawaitable(found):
                await found
        finally:
            self._carrier.post(notice.settle)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """As `kcodec.client.GroupTransactSession.close`."""
        if self._carrier.is_closed:
            return
        deadline = time.monotonic() + timeout
        try:
            if self._is_started:
                await self._run(self._close(timeout))
                for notice in self._last_notices():
                    await self._tell(notice)
        finally:
            await self._producer.close(max(deadline - time.monotonic(), 0.0))

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and self._is_started and not carrier.is_closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
