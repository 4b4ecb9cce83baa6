# SPDX-License-Identifier: Apache-2.0
"""The consumer for asyncio: `kcodec.consumer.core` carried by the running loop."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, Self, TypeVar, Unpack

from kcodec._fast import AsyncRecordIterator
from kcodec.client.consumer_base import ConsumerViews, OnCommitted, core_of, options_of, start
from kcodec.client.methods import dress
from kcodec.consumer import calls as flows
from kcodec.consumer.callbacks import Notice
from kcodec.consumer.core import ConsumerCore
from kcodec.consumer.options import checked_subscription
from kcodec.flow import Flow, join, spawn
from kcodec.network.asyncio_loop import Carrier
from kcodec.network.option_names import NotPickled, refuse_positional
from kcodec.offsets import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kcodec._fast import DecodedRecords, Delivery, Record
    from kcodec.client.options import ConsumerOptions

P = ParamSpec("P")
T = TypeVar("T")
Taken = TypeVar("Taken", bound="list[Record] | DecodedRecords | Delivery | None")
#: One wait of a poll without a time-out.
LONG_SECONDS = 3600.0
#: A poll that finds records at once does not suspend its task; after this time it does, so that the loop runs.
SUSPEND_SECONDS = 0.05


def _method(
    flow: Callable[Concatenate[ConsumerCore, P], Flow[T]],
) -> Callable[Concatenate[Consumer, P], Coroutine[Any, Any, T]]:
    async def method(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(flow(self._core, *args, **kwargs))

    dress(method, flow)
    return method


class Consumer(NotPickled, ConsumerViews):
    """Reads records; for one asyncio loop, and to be made and used in it.

        async with Consumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                print(record.topic, record.partition, record.offset, record.key, record.value)

    Options and rules: `kcodec.client.Consumer`. Functions given to `subscribe` may be coroutine functions.
    """

    def __init__(self, *positional: Never, **options: Unpack[ConsumerOptions]) -> None:
        refuse_positional(positional, "Consumer")
        self._options, self._client = options_of(options)
        self._carrier = Carrier(self._client)
        self._core = core_of(self._options, self._client, nullcontext(), self._carrier.post)
        self._is_polling = self._is_started = False
        self._suspended_at = 0.0

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._carrier.post(partial(start, self._core, self._client))

    async def _run(self, flow: Flow[T], timeout: float | None = None) -> T:
        self._start()
        return await self._carrier.run(flow, timeout)

    # What to read

    async def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_revoked: Callable[[frozenset[TopicPartition]], Any] | None = None,
        on_assigned: Callable[[frozenset[TopicPartition]], Any] | None = None,
        on_lost: Callable[[frozenset[TopicPartition]], Any] | None = None,
    ) -> None:
        """As `kcodec.client.Consumer.subscribe`."""
        names, text = checked_subscription(topics, pattern)
        await self._run(self._core.subscribe(names, text, on_revoked, on_assigned, on_lost))

    async def unsubscribe(self, timeout: float = 30.0) -> None:
        """Give all partitions away, and leave the group."""
        await self._run_telling(self._core.unsubscribe(timeout), timeout)

    # Reading

    async def poll(self, timeout: float | None = 1.0) -> list[Record]:
        """As `kcodec.client.Consumer.poll`."""
        return await self._poll(timeout, lambda: self._core.take(self._options.max_poll_records))

    async def poll_arrow(self, timeout: float | None = 1.0) -> DecodedRecords:
        """As `kcodec.client.Consumer.poll_arrow`. Decoding takes the loop's thread."""
        return await self._poll(timeout, self._core.take_arrow)

    async def _poll(self, timeout: float | None, take: Callable[[], Taken]) -> Taken:
        if self._is_polling:
            raise RuntimeError("poll is under way: one task polls a consumer, and none of the functions it calls")
        self._is_polling = True
        try:
            self._start()
            if self._carrier.is_closed:
                await self._run(self._core.wait_for_work(0.0))  # says why
            if time.monotonic() - self._suspended_at > SUSPEND_SECONDS:
                await asyncio.sleep(0)
                self._suspended_at = time.monotonic()
            self._core.begin_poll()
            try:
                deadline = None if timeout is None else time.monotonic() + timeout
                while True:
                    if not self._core.has_business and (taken := take()):
                        return taken
                    left = LONG_SECONDS if deadline is None else max(deadline - time.monotonic(), 0.0)
                    notice = await self._run(self._core.wait_for_work(left))
                    if notice is not None:
                        await self._tell(notice)
                    elif deadline is not None and time.monotonic() >= deadline:
                        return take()
            except BaseException:
                self._core.take_back()  # the application is not given what was taken for this poll
                raise
        finally:
            self._is_polling = False

    def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over the records without end; see `kcodec.client.Consumer.__iter__`."""
        return AsyncRecordIterator(self._next_delivery)

    async def _next_delivery(self) -> Delivery:
        while True:
            found = await self._poll(None, lambda: self._core.take_delivery(self._options.max_poll_records))
            if found is not None:
                return found

    async def _tell(self, notice: Notice) -> None:
        self._core.notices.begin(notice)
        try:
            called = notice.call()
            if inspect.isawaitable(called):
                await called
        finally:
            self._carrier.post(notice.settle)

    async def _run_telling(self, flow: Flow[T], timeout: float | None) -> T:
        """Run a call and the callbacks that it causes, these in this task. The error of a callback is raised when the
        call has ended: a group is left also if `on_revoked` fails."""
        task = await self._run(spawn(flow, "call"))
        failure: Exception | None = None
        while (notice := await self._run(self._core.polls.with_notices(task))) is not None:
            try:
                await self._tell(notice)
            except Exception as error:  # noqa: BLE001  raised below
                failure = failure or error
        try:
            result = await self._run(join(task), timeout)
        except Exception as error:
            if failure is None:
                raise
            raise failure from error
        if failure is not None:
            raise failure
        return result

    # Offsets

    async def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: OnCommitted | None = None,
    ) -> None:
        """As `kcodec.client.Consumer.commit_async`; the callback may be a coroutine function."""
        self._start()
        self._commit_async(offsets, callback)

    assign = _method(flows.assign)
    beginning_offsets = _method(flows.beginning_offsets)
    commit = _method(flows.commit)
    committed = _method(flows.committed)
    end_offsets = _method(flows.end_offsets)
    enforce_rebalance = _method(flows.enforce_rebalance)
    group_metadata = _method(flows.group_metadata)
    lag = _method(flows.lag)
    offsets_for_times = _method(flows.offsets_for_times)
    partitions_for = _method(flows.partitions_for)
    pause = _method(flows.pause)
    position = _method(flows.position)
    resume = _method(flows.resume)
    seek = _method(flows.seek)
    seek_to_beginning = _method(flows.seek_to_beginning)
    seek_to_end = _method(flows.seek_to_end)

    # Ending

    async def close(self, timeout: float = 30.0) -> None:
        """As `kcodec.client.Consumer.close`."""
        if self._carrier.is_closed:
            return
        try:
            if self._is_started:
                await self._run_telling(self._core.close(timeout), timeout)
        finally:
            await self._carrier.close()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._core.take_back_uncompleted()
        await self.close()

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and self._is_started and not carrier.is_closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        state = "closed" if self._carrier.is_closed else "open"
        return f"<Consumer {self._client.options.client_id!r} of group {self._options.group_id!r} {state}>"
