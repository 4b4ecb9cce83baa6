# SPDX-License-Identifier: Apache-2.0
"""The code that only the asyncio API has: how a client starts, waits and closes in the event loop of its first call.

`kcodec.client.waiting` has the same names for threads. The sync API is generated from all other modules here.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from kcodec.errors import TransportError
from kcodec.network.not_pickled import NotPickled
from kcodec.network.weak_sets import members_of
from kcodec.producer import delivery as deliveries
from kcodec.producer.delivery import BatchMetadata, RecordMetadata
from kcodec.producer.reports import log_lost, log_still_sent
from kcodec.transactions.commit_result import CommitResult

if TYPE_CHECKING:
    from kcodec.consumer.callbacks import Callback, CallbackQueue, Work
    from kcodec.consumer.core import ConsumerCore
    from kcodec.flow import Flow
    from kcodec.network.asyncio_loop import AsyncioLoop
    from kcodec.producer.core import ProducerCore

    IoLoop = AsyncioLoop
else:

    def IoLoop(client):  # noqa: N802  the name of a class, of which it creates an object
        """Return the I/O loop of a client in an event loop. The first call imports the network code."""
        from kcodec.network.asyncio_loop import AsyncioLoop

        return AsyncioLoop(client)


T = TypeVar("T")
#: Tasks that send without a pause let the event loop run after this time.
SUSPEND_SECONDS = 0.05
#: The part of this time in which the event loop is not watched. If a task waits for each record, watching it would cost
#: one more iteration of the event loop for each record.
UNWATCHED_SECONDS = 0.01
#: The largest number of waiting tasks that are woken together.
MOST_WOKEN = 256


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Register a callback, whose second call has no effect, twice. asyncio drops a callback that Ctrl-C interrupts at
    its first line."""
    loop.call_soon(callback)
    loop.call_soon(callback)


def core_lock(io_loop: IoLoop) -> threading.RLock:
    """Return the lock of a core. All calls come from one thread, so the lock is always free. A `nullcontext` would
    need two calls of Python functions, and this lock needs none."""
    return threading.RLock()


def close_lock() -> asyncio.Lock:
    """Return a lock for the close of a client."""
    return asyncio.Lock()


async def wait_for_close(lock: asyncio.Lock, seconds: float) -> bool:
    """Wait until no other task closes the client, for at most `seconds`. Return whether that is so."""
    if lock.locked():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), lock:
                return True
    return not lock.locked()


class ClientBase(NotPickled):
    """An object that belongs to the event loop of its first call."""

    _io_loop: IoLoop
    _event_loop: asyncio.AbstractEventLoop | None = None
    _is_started = False
    #: Whether the background flows were started.
    _has_begun = False
    #: Text of the ResourceWarning for an object that was not closed.
    _unclosed: ClassVar[str] = "was not closed"

    def _begin(self) -> None:
        """Run the background flows of a client. This is called in the event loop."""

    def _begin_once(self) -> None:
        if not self._has_begun:
            self._begin()
            self._has_begun = True

    def _start(self) -> None:
        """Start the background flows with the first call. Raise RuntimeError in another event loop than that of the
        first call."""
        if self._event_loop is None:
            event_loop = asyncio.get_running_loop()
            self._io_loop.post(self._begin_once)  # first: if Ctrl-C interrupts it, the next call posts it again
            self._event_loop, self._is_started = event_loop, True
        else:
            self._io_loop.check_wait()

    async def _run(self, flow: Flow[T], timeout: float | None = None, call: str = "the call") -> T:
        self._start()
        return await self._io_loop.run(flow, timeout, call)

    async def _wait_for_work(self, core: ConsumerCore, work: Work, seconds: float) -> Callback | None:
        """Wait as part of a poll, as `work.wait_for_work` does, but possibly for a shorter time.

        A poll that waits only for records waits here, because this costs less than a flow.
        """
        if seconds <= 0 or work.waits_in_flow or core.fetcher.buffer.has_ready:
            return await self._run(work.wait_for_work(seconds))
        self._start()
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        ends_at = loop.time() + min(seconds, core.longest_wait)
        timers = loop.call_at(ends_at, end), loop.call_at(ends_at, end)
        try:
            core.polls.begin_wait(end)
            await ended
        finally:
            for timer in timers:
                timer.cancel()
            core.polls.end_wait()
        core.note_request()
        return None

    async def _call_back(self, callbacks: CallbackQueue, callback: Callback) -> None:
        """Call a callback of the application in the caller's task. The callback may be a coroutine function."""
        callbacks.begin(callback)
        try:
            called = callback.call()
            if inspect.isawaitable(called):
                await called
        finally:
            with contextlib.suppress(TransportError):  # the callback has closed the client
                self._io_loop.post(callback.complete)

    async def _run_at_once(self, flow: Flow[None]) -> None:
        """Run a short flow after an interruption of `close`: leave the group, so that other members get the partitions
        without waiting for the session timeout, or abort a transaction, which blocks readers."""
        with contextlib.suppress(TransportError, RuntimeError):  # closed meanwhile, or the event loop was closed
            await self._run(flow)

    def _log_dropped(self) -> None:
        """Log what is lost, or is still done, because the program has dropped the object without closing it."""

    async def __aenter__(self) -> Self:
        self._start()
        return self

    def __del__(self) -> None:
        io_loop = getattr(self, "_io_loop", None)
        if io_loop is not None and self._is_started and not io_loop.is_closed:
            try:
                self._log_dropped()
                warnings.warn(f"{self!r} {self._unclosed}", ResourceWarning, stacklevel=2, source=self)
            finally:  # the program may turn warnings into errors
                io_loop.abandon()


# Producers


def _false() -> bool:
    return False


def _wait(delivery: Delivery | TableDelivery) -> Generator[Any, None, None]:
    delivery.begin_wait()
    ended = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    delivery.add_done_callback(end)
    try:
        yield from ended
    except BaseException:
        delivery.drop_done_callback(end)
        raise


def _remove(delivery: Delivery | TableDelivery, callback: Callable[[Any], object]) -> int:
    count = 0
    with contextlib.suppress(ValueError):  # it is not registered any more
        while not delivery.done() and delivery.drop_done_callback(callback):
            count += 1
    return count


class Delivery(deliveries.Delivery):
    """The result of sending one record. `kcodec.producer.delivery.Delivery` describes the attributes. Await a Delivery
    to get the RecordMetadata, which contains the position of the record. If the record has failed, this raises its
    error, which names the partition. The outcome is known within `delivery_timeout_ms`.

    batch, index: Batch that contains the record, and position of the record in the batch. Only a producer creates a
        Delivery.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        stored = self._stored(RecordMetadata)
        if stored is None:
            if not self.done():
                yield from _wait(self)
            stored = self.outcome()
        return stored

    def result(self) -> RecordMetadata:
        """Return where the record is stored, or raise its error. Raise InvalidStateError if its outcome is not known
        yet."""
        if not self.done():
            raise asyncio.InvalidStateError(f"the outcome of {self!r} is not known yet; await it first")
        return self.outcome()

    def exception(self) -> BaseException | None:
        """Return the error of the record, or None if it was acknowledged. Raise InvalidStateError if its outcome is not
        known yet."""
        if not self.done():
            raise asyncio.InvalidStateError(f"the outcome of {self!r} is not known yet; await it first")
        return self.error

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Remove a callback that was not called yet. Return the number of times that it was registered. `asyncio.wait`
        calls this method."""
        return _remove(self, callback)

    def cancelled(self) -> bool:
        """Return False, because a record in the buffer cannot be cancelled."""
        return False


class TableDelivery(deliveries.TableDelivery):
    """The result of sending a table. `kcodec.producer.delivery.TableDelivery` describes the attributes. Await a
    TableDelivery to get the BatchMetadata of each batch. If a batch has failed, this raises the first error.

    topic: Name of the topic.
    lock: Lock of the producer's buffer. Only a producer creates a TableDelivery.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        if not self.done():
            yield from _wait(self)
        return self.outcome()

    def result(self) -> list[BatchMetadata]:
        """Return where each batch is stored, or raise the first error. Raise InvalidStateError if the outcome of a
        batch is not known yet."""
        if not self.done():
            raise asyncio.InvalidStateError(f"the outcome of {self!r} is not known yet; await it first")
        return self.outcome()

    def exception(self) -> BaseException | None:
        """Return the error of the first batch that failed, or None if all were acknowledged. Raise InvalidStateError if
        the outcome of a batch is not known yet."""
        if not self.done():
            raise asyncio.InvalidStateError(f"the outcome of {self!r} is not known yet; await it first")
        return self.error

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Remove a callback that was not called yet. Return the number of times that it was registered. `asyncio.wait`
        calls this method."""
        return _remove(self, callback)

    def cancelled(self) -> bool:
        """Return False, because a table in the buffer cannot be cancelled."""
        return False


class TransactionCommit(CommitResult):
    """A commit in the background, which `commit_transaction_async` returns. Await it to wait for the end of the commit.
    This raises what `commit_transaction` would raise. The commit continues if its caller stops waiting.

    The commit succeeds or fails within its timeout. If the next transaction then needs a new epoch, this can take up to
    `max_block_ms` longer.

    transactional_id, lock, check_wait: Attributes of the producer. Only a producer creates a TransactionCommit.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done():
            self.check_wait()
            ended = asyncio.get_running_loop().create_future()

            def end(_: object) -> None:
                if not ended.done():
                    ended.set_result(None)

            if self.observe(end):
                try:
                    yield from ended
                finally:
                    self.forget(end)
        self.outcome()

    def result(self) -> None:
        """Return None if the commit has succeeded, or raise its error. Raise InvalidStateError while the commit is in
        progress."""
        if not self.done():
            raise asyncio.InvalidStateError(f"the outcome of {self!r} is not known yet; await it first")
        self.outcome()

    def exception(self) -> BaseException | None:
        """Return the error of the commit, or None if it has succeeded. Raise InvalidStateError while the commit is in
        progress."""
        if not self.done():
            raise asyncio.InvalidStateError(f"the outcome of {self!r} is not known yet; await it first")
        return self.retrieved()


class _SpaceQueue:
    """The tasks that wait for buffer space, in the order in which they began to wait. Only the first one gets space, so
    that other tasks, which send without a wait in between, cannot take all of it. Released space wakes only the first
    task. When it leaves the queue, it wakes the next task, which wakes the next two, and so on, up to MOST_WOKEN. After
    a task that got no space, this begins with one task again.

    Tasks also wait here when tasks have sent for SUSPEND_SECONDS without letting the event loop run. If thousands of
    tasks send at the same time, asyncio starts all of them before it runs anything else. They then send in groups of at
    most MOST_WOKEN.

    The core refers to this object and not to the producer, so that a producer without other references is collected.
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[object, asyncio.Future[None]] = OrderedDict()
        self.accumulator: Any = None
        #: Whether there was no space for the first one. Otherwise it is about to try, and batches may linger and grow.
        self._is_short = False
        #: Time from which tasks may have sent without letting the event loop run, and whether a callback of the event
        #: loop ends this time.
        self._busy_since: float | None = None
        self._is_watched = False
        #: Number of tasks that the next one to leave wakes.
        self._woken = 1

    def is_first(self, waiter: object) -> bool:
        return next(iter(self.waiting)) is waiter

    def enter(self, waiter: object) -> asyncio.Future[None]:
        """Add a task at the end, or prepare its next wait. Return the future that `wake_first` completes."""
        future = self.waiting[waiter] = asyncio.get_running_loop().create_future()
        self._count()
        return future

    def leave(self, waiter: object) -> None:
        if waiter in self.waiting:
            was_first = self.is_first(waiter)
            del self.waiting[waiter]
            self._count()
            if was_first:
                self._wake_next()

    def _wake_next(self) -> None:
        """Let the next tasks try to get space, unless the first of them was woken already."""
        if self.waiting and not next(iter(self.waiting.values())).done():
            for future in islice(self.waiting.values(), self._woken):
                if not future.done():
                    future.set_result(None)
            self._woken = min(2 * self._woken, MOST_WOKEN)

    def resume(self) -> None:
        """Let the first tasks continue after the event loop has run."""
        _call_soon(asyncio.get_running_loop(), self._wake_next)

    def wake_first(self) -> None:
        """Let the first task try to get space."""
        if self.waiting:
            future = next(iter(self.waiting.values()))
            if not future.done():
                future.set_result(None)

    def put_first(self, put: Callable[[], Any]) -> Any:
        """Call `put` for the first task."""
        self._is_short = True  # if `put` itself runs the sender, space that this releases wakes the task
        self._count()
        self.accumulator.memory.must_queue = False
        busy_since, self._busy_since = self._busy_since, None  # the caller has already called must_pause
        try:
            done = put()
            self._is_short = done is None
            if self._is_short:
                self._woken = 1
            return done
        finally:
            if busy_since is not None:
                self._busy_since = busy_since
            self._count()

    def _count(self) -> None:
        self.accumulator.memory.must_queue = bool(self.waiting)
        self.accumulator.memory.waiters = len(self.waiting) if self._is_short else 0

    def must_pause(self) -> bool:
        """Return whether tasks have sent records for SUSPEND_SECONDS without letting the event loop run, which does the
        I/O of the producer."""
        now = time.monotonic()
        if self._busy_since is None:
            self._busy_since = now
        elif self._is_watched:
            return now - self._busy_since > SUSPEND_SECONDS - UNWATCHED_SECONDS
        elif now - self._busy_since > UNWATCHED_SECONDS:
            loop = asyncio._get_running_loop()
            if loop is not None:  # the event loop may have run meanwhile, so it is watched from now on
                self._busy_since, self._is_watched = now, True
                _call_soon(loop, self._loop_runs)
        return False

    def _loop_runs(self) -> None:
        self._busy_since, self._is_watched = None, False


class ProducerBase(ClientBase):
    """The parts of a producer for its tasks and for the exit of the interpreter."""

    _open: ClassVar[weakref.WeakSet[ProducerBase]] = weakref.WeakSet()
    _core: ProducerCore
    _lock: AbstractContextManager[Any]
    _space: _SpaceQueue
    #: Whether the lost records were logged. At the interpreter's exit, both an exit handler and `__del__` log them.
    _is_loss_logged = False
    #: Returns whether the producer's event loop runs; False before the first call. `send` needs to know this for each
    #: record, and Python 3.11 takes longer to return the current event loop. Records from another event loop that runs
    #: meanwhile come from another thread (`RecordAppender.owner_thread`).
    _is_running: Callable[[], bool]

    def _start(self) -> None:
        super()._start()
        assert self._event_loop is not None
        self._is_running = self._event_loop.is_running
        self._core.accumulator.owner_thread = self._core.accumulator.owner_thread or threading.get_ident()

    def _make_lock(self) -> Callable[[], None]:
        """Create the lock of the core. Return the function that the core calls when buffer space becomes free."""
        self._is_running = _false
        self._lock = threading.RLock()
        self._space = _SpaceQueue()
        return self._space.wake_first

    def _attach_space(self) -> None:
        """Connect the queue for buffer space with the buffer."""
        self._space.accumulator = self._core.accumulator
        self._core.accumulator.memory.must_pause = self._space.must_pause

    async def _put_when_space(self, put: Callable[[], Any]) -> Any:
        """Call `put` until it finds buffer space, and return its result. Return None after max_block_ms."""
        deadline = time.monotonic() + self._core.settings.max_block
        space, waiter = self._space, object()
        is_late = False
        try:
            while True:
                freed = space.enter(waiter)  # before `put`, which may itself release space
                if not space.is_first(waiter):
                    await freed  # the first task stops waiting by its own deadline, which is earlier
                    continue
                if space.must_pause():
                    space.resume()
                    await freed
                    continue
                if (done := space.put_first(put)) is not None:
                    return done
                if is_late:
                    return None
                try:
                    # Not wait_for: before Python 3.12, it loses a cancellation that arrives when space becomes free.
                    async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                        await freed
                except TimeoutError:
                    is_late = True
        finally:
            space.leave(waiter)

    def _log_dropped(self) -> None:
        if hasattr(self, "_core") and self._io_loop.can_finish:
            if self._core.id_manager.transactional_id is None:  # otherwise, the last work logs what it aborts
                log_still_sent(self._core.accumulator, repr(self))
        elif not self._io_loop.is_abandoned:  # the I/O loop logs it after the last work
            self._log_lost()

    def _log_lost(self) -> None:
        if not self._is_loss_logged:
            self._is_loss_logged = True
            is_open = self._core.id_manager.is_transaction_open
            log_lost(self._core.accumulator, repr(self), is_transaction_open=is_open)


@atexit.register
def _at_exit() -> None:
    """Log the records of producers that were not closed."""
    with contextlib.ExitStack() as calls:  # makes all calls, and then raises an error of one of them
        for producer in members_of(ProducerBase._open):
            if not producer._io_loop.is_closed:
                calls.callback(producer._io_loop.report if producer._io_loop.is_abandoned else producer._log_lost)
