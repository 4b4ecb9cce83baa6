# SPDX-License-Identifier: Apache-2.0
# SYNC: "decoded in the task" -> "decoded on the thread"
# SYNC: "run in the task" -> "run on the thread"
"""The consumer of the asyncio API. In the background, `kcodec.consumer.core` fetches records, commits offsets and keeps
the consumer in its group.

Records are decoded in the task that polls. The callbacks passed to `subscribe` run in the task that calls `poll`,
`unsubscribe` or `close`.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, Self, TypeVar, Unpack

from kcodec._fast import AsyncRecordIterator
from kcodec.arguments import check_callbacks, check_error_is_last, check_rebalance_callbacks, check_timeout
from kcodec.client.aio.waiting import ClientBase, IoLoop, close_lock, core_lock, wait_for_close
from kcodec.client.flows import Client, FlowMethod, LateFlows, run_in_background, work_of_consumer
from kcodec.client.interruption import announced, has_interrupted, limited_seconds
from kcodec.client.poll_timeouts import check_poll
from kcodec.flow import Flow, join, spawn
from kcodec.offsets import OffsetAndMetadata, TopicPartition, check_offsets

if TYPE_CHECKING:
    from kcodec._fast import DecodedRecords, Delivery, Record
    from kcodec.client.options import ConsumerOptions
    from kcodec.consumer.core import ConsumerCore
    from kcodec.consumer.offset_calls import OffsetCalls
    from kcodec.consumer.selection_calls import SelectionCalls
else:
    ConsumerCore = LateFlows("kcodec.consumer.core", "ConsumerCore")
    OffsetCalls = LateFlows("kcodec.consumer.offset_calls", "OffsetCalls")
    SelectionCalls = LateFlows("kcodec.consumer.selection_calls", "SelectionCalls")

P = ParamSpec("P")
Part = TypeVar("Part")
T = TypeVar("T")
Taken = TypeVar("Taken", bound="list[Record] | DecodedRecords | Delivery | None")
OnCommitted = Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], Any]
#: Maximum duration of one wait of a poll without a timeout. The poll then waits again.
LONG_SECONDS = 3600.0
CLOSE_SECONDS = 30.0
if True:  # ASYNC
    #: A poll that finds records immediately does not suspend its task. After this time, the next poll suspends it, so
    #: that other tasks of the event loop can run.
    SUSPEND_SECONDS = 0.05


def _method(
    part: Callable[[ConsumerCore], Part], flow: Callable[Concatenate[Part, P], Flow[T]]
) -> Callable[Concatenate[Consumer, P], Coroutine[Any, Any, T]]:
    """Return a method that runs a flow of the core, or of one of its parts."""

    def run_of(found: Callable[Concatenate[Part, P], Flow[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        async def method(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._run(found(part(self._core), *args, **kwargs))

        return method

    late: Any = flow
    return FlowMethod(late, run_of)


def _offsets(core: ConsumerCore) -> OffsetCalls:
    return core.offsets


def _selection(core: ConsumerCore) -> SelectionCalls:
    return core.selection


class Consumer(ClientBase):
    # SYNC: "Use it only in the event loop of its first call." -> "Only one thread polls. Other calls are thread-safe."
    # SYNC: "They may be coroutine functions." -> ""
    """A consumer, which reads records. Use it only in the event loop of its first call.

        async with Consumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            await consumer.subscribe(["orders"])
            while True:
                for record in await consumer.poll(1.0):
                    print(record.topic, record.partition, record.offset, record.key, record.value)

    `kcodec.client.ConsumerOptions` describes the options of a consumer, `kcodec.client.ClientOptions` those of every
    client, and docs/security.md those of TLS and SASL. The default isolation_level is "read_committed".

    `async for record in consumer` reads record by record. Automatic commits include only completed records, which are
    those that were delivered before the last request for records. A rebalance waits for the next `poll`, or until a
    loop requests its next record. The callbacks passed to `subscribe` are called within `poll`, within a loop, and
    within `unsubscribe` and `close`. They may call any method of the consumer that does not read records. They may be
    coroutine functions.

    If an exception leaves the `with` block, neither the current record of a loop nor the records of the last poll are
    committed.

    Raise TypeError, with a suggestion, if an option is unknown. Raise ValueError if the value of an option is invalid.
    """

    def __init__(self, *positional: Never, **options: Unpack[ConsumerOptions]) -> None:
        from kcodec.consumer.core import ConsumerCore
        from kcodec.consumer.options import take_options
        from kcodec.network.option_names import refuse_positional

        refuse_positional(positional, "Consumer")
        self._options, client_options = take_options(options)
        self._client = Client(client_options)
        self._client.network.login_patience = self._options.session_timeout_ms / 1000
        self._client.cluster.allow_auto_topic_creation = self._options.allow_auto_create_topics
        self._io_loop = IoLoop(self._client)
        self._polling = threading.Lock()
        self._close_lock = close_lock()
        self._is_closing = False
        self._core = ConsumerCore(
            self._options.settings(client_options),
            self._client.cluster,
            metrics=client_options.metrics,
            lock=core_lock(self._io_loop),
            post=self._io_loop.post,
            now=lambda: time.time_ns() // 1_000_000,
        )
        self._client.on_crash.append(self._core.crash)
        self._io_loop.last_work = work_of_consumer(self._core, self._options.group_id, repr(self))
        self._max_poll_records = self._options.max_poll_records
        if True:  # ASYNC
            self._suspended_at = 0.0
        else:
            self._start()

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, Any] | str | PathLike[str], **options: Unpack[ConsumerOptions]
    ) -> Self:
        """Create a consumer from properties with the names of Java's clients or of librdkafka.

        properties: A mapping, or the path of a file in the format of java.util.Properties. Text values are converted to
                    the types of the options.
        options: Options of kcodec. They override the properties.

        A file may also contain options that only other clients have. They have no effect and are logged as a WARNING.

        Raise TypeError if a consumer does not have some of the names. The error lists all of them, each with a
        suggestion where there is one. Raise ValueError if a value is invalid, and OSError if the file cannot be read.
        Errors never show the values of secrets.
        """
        from kcodec.client.properties import options_from_properties

        taken: Any = {**options_from_properties(properties, "consumer"), **options}
        return cls(**taken)

    def _begin(self) -> None:
        run_in_background(self._client, self._core, {"consumer": self._core.run()})

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
        """Subscribe to topics. The group assigns their partitions. This replaces the previous subscription.

        topics:      Names of topics.
        pattern:     Regular expression that must match the whole name of a topic. With group_protocol="consumer" the
                     broker matches the pattern, with the syntax of RE2. Pass either `topics` or `pattern`.
        on_revoked:  Callback for partitions that are about to be revoked. Commit offsets of processed records here.
        on_assigned: Callback for newly assigned partitions. To begin at other offsets, call `seek` here.
        on_lost:     Callback for partitions that the consumer has lost. Other members may already own them, so their
                     offsets cannot be committed. Without it, on_revoked is called.

        Each callback gets a frozenset of TopicPartition.

        Raise ValueError unless exactly one of `topics` and `pattern` is passed, after `assign`, or if the consumer has
        no group_id.
        """
        from kcodec.consumer.options import checked_subscription

        names, text = checked_subscription(topics, pattern)
        check_rebalance_callbacks(on_revoked=on_revoked, on_assigned=on_assigned, on_lost=on_lost)
        await self._run(self._core.selection.subscribe(names, text, on_revoked, on_assigned, on_lost))

    async def unsubscribe(self, timeout: float = 30.0) -> None:
        """Revoke all partitions and leave the group, within `timeout` seconds in total. If the timeout passes before
        the request to leave is sent, this call waits up to 0.2 seconds more for its response. Raise TypeError if the
        timeout is not a number."""
        check_timeout(timeout, "unsubscribe")
        flow = self._core.selection.unsubscribe(timeout, callers=self._core.callbacks.callers())
        await self._run_with_callbacks(flow, timeout, "unsubscribe()")

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are currently assigned."""
        with self._core.assignment.lock:
            return frozenset(self._core.assignment.partitions)

    def subscription(self) -> frozenset[str]:
        """Return the names of the subscribed topics."""
        return self._core.selection.subscription.topics

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are currently paused."""
        with self._core.assignment.lock:
            return frozenset(name for name, state in self._core.assignment.partitions.items() if state.is_paused)

    @property
    def skipped_batches(self) -> int:
        """The number of batches that could not be read and were skipped (on_error="skip")."""
        return self._core.fetcher.buffer.skipped_batches

    @property
    def skipped_records(self) -> int:
        """The number of records whose deserializer failed and that were skipped (on_error="skip")."""
        return self._core.fetcher.buffer.skipped_records

    # Reading

    async def poll(self, timeout: float | None = 1.0) -> list[Record]:
        """Return up to max_poll_records records as soon as any are available.

        timeout: Maximum time to wait, in seconds. If no records arrive in this time, the result is an empty list. None:
                 wait without a limit. If a callback unsubscribes meanwhile, the result is also an empty list.

        Raise DecodeError if a batch cannot be read, unless on_error="skip". The error has the attributes
        `topic_partition` and `next_offset`. Each poll raises it again until a `seek`. Raise BrokerError,
        AuthorizationError or TransportError for an error of a partition or of the group. Raise RuntimeError if the
        consumer has neither a subscription nor an assignment, or if another poll is running. If a callback passed to
        `subscribe` raises an exception, raise this exception.
        """
        return await self._poll(timeout, lambda: self._core.take(self._max_poll_records))

    async def poll_one(self, timeout: float | None = 1.0) -> Record | None:
        """Return one record as soon as one is available.

        timeout: Maximum time to wait, in seconds. If no record arrives in this time, the result is None. If the timeout
                 is None, the call waits without a limit.

        Records are delivered one by one, as in an iteration. The position moves record by record, and an automatic
        commit includes a record once the next one is requested. Raise the same errors as `poll`.
        """
        delivery = self._core.assignment.delivery
        record = None if delivery.is_over else self._core.next_record(delivery)
        if record is None:
            found = await self._poll(timeout, lambda: self._core.take_delivery(self._max_poll_records))
            record = None if found is None else self._core.next_record(found)
        return record

    async def poll_arrow(self, timeout: float | None = 1.0) -> DecodedRecords:
        # SYNC: "Decoding runs on the event loop's thread and blocks it." -> ""
        """Return all rows of one fetch response for one partition as Arrow columns, as soon as any are available.

        timeout: Maximum time to wait, in seconds. If no rows arrive in this time, the result has no rows. None: wait
                 without a limit.

        The option `columns` selects the columns. pyarrow, polars and duckdb accept the result. Raise the same errors as
        `poll`. Decoding runs on the event loop's thread and blocks it.
        """
        return await self._poll(timeout, self._core.take_arrow)

    async def _poll(self, timeout: float | None, take: Callable[[], Taken]) -> Taken:
        check_poll(timeout)
        if self._polling.locked():
            # SYNC: "one task polls" -> "one thread polls"
            raise RuntimeError("poll is already running: one task polls a consumer, and its callbacks must not poll")
        is_begun = False
        try:
            with self._polling:  # no signal, such as that of Ctrl-C, is handled between the lock and its block
                if True:  # ASYNC
                    if not self._is_started:
                        self._start()
                if self._io_loop.is_closed:
                    await self._run(self._core.wait_for_work(0.0))  # raises the reason
                if True:  # ASYNC
                    if time.monotonic() - self._suspended_at > SUSPEND_SECONDS:
                        await asyncio.sleep(0)
                        self._suspended_at = time.monotonic()
                self._core.begin_poll()
                is_begun = True
                deadline = None if timeout is None else time.monotonic() + timeout
                while True:
                    if not self._core.has_business and (taken := take()):
                        return taken
                    left = LONG_SECONDS if deadline is None else max(deadline - time.monotonic(), 0.0)
                    callback = await self._wait_for_work(self._core, self._core, left)
                    if callback is not None:
                        await self._call_back(self._core.callbacks, callback)
                        if deadline is None and self._core.is_unsubscribed:
                            return take()
                    elif deadline is not None and time.monotonic() >= deadline:
                        return take()
        except BaseException:
            if is_begun:
                self._core.take_back()  # the application does not get the records that this poll has taken
            raise

    def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over the records. The iteration never ends by itself. Raise the same errors as `poll`.

        The position moves record by record: `seek`, `pause`, `unsubscribe`, a rebalance and `close` take effect before
        the next record. `commit` includes the current record. An automatic commit includes it once the next record is
        requested, or when the consumer closes without an exception. If a loop ends early, the next loop, `poll` or
        `poll_arrow` delivers its remaining records first.
        """
        return AsyncRecordIterator(self._next_delivery)

    async def _next_delivery(self) -> Delivery:
        while True:
            found = await self._poll(None, lambda: self._core.take_delivery(self._max_poll_records))
            if found is not None:
                return found

    async def _run_with_callbacks(self, flow: Flow[T], timeout: float | None, call: str) -> T:
        # SYNC: "in this task" -> "on this thread"
        """Run a call in the background, and its callbacks in this task. Raise the error of a callback only after the
        call has ended, so that the consumer leaves the group even if `on_revoked` fails."""
        task = await self._run(spawn(flow, "the call"))
        failure: Exception | None = None
        while (callback := await self._run(self._core.next_callback(task))) is not None:
            try:
                await self._call_back(self._core.callbacks, callback)
            except Exception as error:  # noqa: BLE001  raised below
                failure = failure or error
        try:
            result = await self._run(join(task), timeout, call)
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
        # SYNC: "It may be a coroutine function." -> ""
        """Commit offsets as `commit` does, but in the background. Commits are sent in the order of the calls.

        offsets: Next offsets to read, as for `commit`. None: the offsets that `commit` without offsets would commit.
        callback: Function that is called within a later `poll`, `unsubscribe` or `close`. Its arguments are the offsets
            and None or the error. Without a callback, errors are logged. It may be a coroutine function.

        Successive queued commits are merged if they are for the same partitions, or if they have no callbacks. The
        newest offsets are then committed. `close`, `unsubscribe` and a rebalance wait for queued commits.

        Raise ValueError if the consumer has no group_id.
        """
        if True:  # ASYNC
            self._start()
        self._core.check_open()
        self._core.offsets.need_group("commit_async")
        check_callbacks(callback=callback)
        check_error_is_last(callback, "callback", "offsets")
        given = None if offsets is None else check_offsets(offsets)
        self._core.commits.put(given, callback, is_forced=True)

    def store_offsets(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record) -> None:
        """Store offsets for the next commit. No request is sent.

        With enable_auto_offset_store=False, automatic commits and `commit` without offsets commit only the stored
        offsets.

        offsets: Next offsets to read, as for `commit`. If this is a record, the offset after the record is stored.

        If commits are automatic, the stored offsets of a partition are committed before the partition is revoked. A
        revocation then discards them.

        Raise ValueError if a partition is not assigned, if the consumer has no group_id, or if
        enable_auto_offset_store=True.
        """
        self._core.offsets.store_offsets(offsets)

    assign = _method(_selection, SelectionCalls.assign)
    beginning_offsets = _method(_offsets, OffsetCalls.beginning_offsets)
    commit = _method(_offsets, OffsetCalls.commit)
    committed = _method(_offsets, OffsetCalls.committed)
    end_offsets = _method(_offsets, OffsetCalls.end_offsets)
    enforce_rebalance = _method(_selection, SelectionCalls.enforce_rebalance)
    group_metadata = _method(_selection, SelectionCalls.group_metadata)
    health = _method(lambda core: core, ConsumerCore.health)
    incremental_assign = _method(_selection, SelectionCalls.incremental_assign)
    incremental_unassign = _method(_selection, SelectionCalls.incremental_unassign)
    lag = _method(_offsets, OffsetCalls.lag)
    offsets_for_times = _method(_offsets, OffsetCalls.offsets_for_times)
    partitions_for = _method(_offsets, OffsetCalls.partitions_for)
    pause = _method(_selection, SelectionCalls.pause)
    position = _method(_offsets, OffsetCalls.position)
    positions = _method(_offsets, OffsetCalls.positions)
    resume = _method(_selection, SelectionCalls.resume)
    seek = _method(_offsets, OffsetCalls.seek)
    seek_to_beginning = _method(_offsets, OffsetCalls.seek_to_beginning)
    seek_to_end = _method(_offsets, OffsetCalls.seek_to_end)

    # Ending

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        # SYNC: "after cancellation" -> "after Ctrl-C, SystemExit or the like"
        """Commit the positions if commits are automatic, revoke all partitions, leave the group and close the
        connections. Further calls have no effect. A call during another one waits for its end.

        timeout: Maximum time for all these steps, in seconds. If it passes before the request to leave the group is
            sent, the request is sent nevertheless, unless the coordinator is unknown. The call then waits up to 0.2
            seconds longer for the response.

        The commit includes all delivered records. If an exception leaves the `with` block, the end of the block also
        closes the consumer, but commits neither the current record of a loop nor the records of the last poll. The end
        of the block waits at most 3 seconds after cancellation.

        Raise TypeError if the timeout is not a number. The consumer then stays open.
        """
        check_timeout(timeout, "close")
        await self._end(timeout, None)

    async def _end(self, timeout: float, error: BaseException | None) -> None:
        callers = self._core.callbacks.callers()
        if self._io_loop.is_closed or (self._is_closing and callers):
            return  # also if a callback of `close` calls it
        self._io_loop.check_wait()
        if not await wait_for_close(self._close_lock, timeout):
            return  # the other call closes it
        async with self._close_lock:
            # In a signal handler that interrupts `close`, the lock is free, and `close` then continues.
            if self._io_loop.is_closed or self._is_closing:
                return
            self._is_closing = True
            try:
                if self._is_started:
                    closing = self._core.close(timeout, callers)
                    flow = announced(closing, error, timeout, self._leaving_text, "kcodec.consumer", is_always=True)
                    await self._run_with_callbacks(flow, timeout, "close()")
            except BaseException as interruption:
                if has_interrupted(interruption):
                    await self._run_at_once(self._core.leave_at_once())
                raise
            finally:
                await self._io_loop.close()

    def _leaving_text(self) -> str:
        """Return a text that describes what `close` waits for."""
        cause = self._client.cluster.last_error
        return f"the consumer to leave group {self._options.group_id!r}" + (f" ({cause})" if cause else "")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._core.take_back_uncompleted()
        limit = limited_seconds(error)
        await self._end(CLOSE_SECONDS if limit is None else limit, error)

    def __repr__(self) -> str:
        state = "closed" if self._io_loop.is_closed else "open"
        return f"<Consumer {self._client.options.client_id!r} of group {self._options.group_id!r} {state}>"
