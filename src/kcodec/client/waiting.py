# SPDX-License-Identifier: Apache-2.0
"""The code that only the sync API has: how a client starts, waits and ends, with its I/O thread.

`kcodec.client.aio.waiting` has the same names for asyncio. The other modules are generated from the asyncio API.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from itertools import repeat
from operator import methodcaller
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from kcodec._fast import SendLock
from kcodec.arguments import check_seconds
from kcodec.errors import DeliveryTimeoutError, TransportError
from kcodec.network.interruptible import step_seconds
from kcodec.network.not_pickled import NotPickled
from kcodec.network.weak_sets import members_of
from kcodec.producer import delivery as deliveries
from kcodec.producer.delivery import BatchMetadata, RecordMetadata
from kcodec.producer.reports import log_lost
from kcodec.quantities import seconds_text
from kcodec.transactions.commit_result import CommitResult

if TYPE_CHECKING:
    from kcodec.consumer.callbacks import Callback, CallbackQueue, Work
    from kcodec.consumer.core import ConsumerCore
    from kcodec.flow import Flow
    from kcodec.network.thread_loop import ThreadLoop
    from kcodec.producer.core import ProducerCore

    IoLoop = ThreadLoop
else:

    def IoLoop(client):  # noqa: N802  the name of a class, of which it creates an object
        """Create the I/O thread of a client; the first one imports the network."""
        from kcodec.network.thread_loop import ThreadLoop

        return ThreadLoop(client)


T = TypeVar("T")
#: A Delivery ends by its deadline. If the I/O thread does not end it, `result` returns this much later.
GRACE_SECONDS = 1.0
_acquire, _release = methodcaller("acquire"), methodcaller("release")


def core_lock(io_loop: IoLoop) -> SendLock:
    """Create the lock of a core: calls come from any thread. The I/O loop refuses to wait in a thread that holds it."""
    lock = SendLock()
    io_loop.core_locks.append(lock)
    return lock


class ClientBase(NotPickled):
    """An object with an I/O thread, which starts with the first flow or with `_start`."""

    _io_loop: IoLoop
    _is_started: ClassVar = True
    #: What a ResourceWarning says.
    _unclosed: ClassVar[str] = "was not closed"

    def _begin(self) -> None:
        """On the I/O thread: run the background flows of a client."""

    def _start(self) -> None:
        self._io_loop.post(self._begin)

    def _run(self, flow: Flow[T], timeout: float | None = None, call: str = "the call") -> T:
        return self._io_loop.run(flow, timeout, call)

    def _wait_for_work(self, core: ConsumerCore, work: Work, seconds: float) -> Callback | None:
        """Wait as part of a poll, as `work.wait_for_work`; it may return earlier.

        A poll that waits for nothing but records waits here. As a flow, the wait would begin and end on the I/O thread,
        which costs more than all else that such a poll does.
        """
        if seconds <= 0:
            return self._run(work.wait_for_work(seconds))
        running = threading.Lock()
        running.acquire()

        def end() -> None:
            if running.locked():
                running.release()

        try:
            core.polls.begin_wait(end)
            waits_in_flow = work.waits_in_flow
            if not (waits_in_flow or core.fetcher.buffer.has_ready):
                longest = min(seconds, core.longest_wait)
                running.acquire(timeout=step_seconds(longest) or longest)
        finally:
            core.polls.end_wait()
        if waits_in_flow:
            return self._run(work.wait_for_work(seconds))
        core.note_poll()
        return None

    def _call_back(self, callbacks: CallbackQueue, callback: Callback) -> None:
        """Call a callback of the application on the caller's thread."""
        callbacks.begin(callback)
        try:
            callback.call()
        finally:
            self._io_loop.post(callback.complete)

    def _log_lost(self) -> None:
        """Log what is lost without `close`."""

    def __enter__(self) -> Self:
        return self

    def __del__(self) -> None:
        io_loop = getattr(self, "_io_loop", None)
        if io_loop is not None and not io_loop.is_closed:
            self._log_lost()
            warnings.warn(f"{self!r} {self._unclosed}", ResourceWarning, stacklevel=2, source=self)
            io_loop.close(0.0)


# Producers


def _end_of_wait() -> tuple[Any, Callable[[object], None]]:
    """Return a lock that is held, and a callback that releases it.

    Not an Event: a signal handler that raises while its `wait` begins leaves its inner lock held, and the I/O thread
    would wait for that lock in `set`.
    """
    running = threading.Lock()
    running.acquire()
    return running, lambda _: running.release()


def _wait(delivery: deliveries.Delivery | deliveries.TableDelivery, timeout: float | None) -> None:
    """Wait until it has ended, at most `timeout` seconds, or until its own deadline has passed, as nothing can end it
    later."""
    check_seconds(timeout, "result")
    if delivery.done():
        return
    delivery.begin_wait()
    running, end = _end_of_wait()
    has_ended = False
    given_up = None if timeout is None else time.monotonic() + timeout
    delivery.add_done_callback(end)
    try:
        while not has_ended:
            limit = delivery.deadline + GRACE_SECONDS  # read again, as it moves when a record gets its partition
            left = (limit if given_up is None else min(limit, given_up)) - time.monotonic()
            if left <= 0:
                break
            has_ended = running.acquire(timeout=step_seconds(left) or left)
    except BaseException:
        delivery.drop_done_callback(end)
        raise
    if has_ended or not delivery.drop_done_callback(end):
        return
    if given_up is not None and given_up <= delivery.deadline + GRACE_SECONDS:
        raise DeliveryTimeoutError(
            f"{delivery!r}: no result within {seconds_text(timeout or 0.0)}{delivery.why_waiting()}"
        )
    raise DeliveryTimeoutError(
        f"{delivery!r}: no result {seconds_text(GRACE_SECONDS)} after delivery_timeout_ms, as the producer's "
        "I/O thread does "
        "not respond; close the producer and create another one"
    )


class Delivery(deliveries.Delivery):
    """A record on its way; see `kcodec.producer.delivery.Delivery` for its attributes.

    batch, index: the batch that contains the record, and its position there. Only a producer creates a Delivery.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until it has ended, and return where the record is stored. Raise the error that it failed with, which
        names the partition.

        timeout: seconds, after which DeliveryTimeoutError is raised and the record is still under way. Without a
        timeout, it ends within `delivery_timeout_ms`. Raises RuntimeError on the I/O thread (in a callback) if the
        record has not ended, as all records would wait there.
        """
        _wait(self, timeout)
        return self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it has ended, as `result` does, and return the error that it failed with; None if it did not
        fail."""
        _wait(self, timeout)
        return self.error


class TableDelivery(deliveries.TableDelivery):
    """A table on its way; see `kcodec.producer.delivery.TableDelivery` for its attributes.

    topic: name of the topic.
    lock: lock of the producer's buffer. Only a producer creates a TableDelivery.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Wait as `Delivery.result` does, and return where each batch is stored; raise the first error."""
        _wait(self, timeout)
        return self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `Delivery.exception` does, and return the error of the first batch that failed.

        timeout: seconds, after which DeliveryTimeoutError is raised and the table is still under way.
        """
        _wait(self, timeout)
        return self.error


class TransactionCommit(CommitResult):
    """A commit under way, as `commit_transaction_async` returns it. It ends by the timeout of the commit.

    transactional_id, lock, check_wait: of the producer. Only a producer creates a TransactionCommit.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> None:
        """Wait until the commit has ended; raise what `commit_transaction` would raise.

        timeout: seconds, after which DeliveryTimeoutError is raised and the commit is still under way. Raises
        RuntimeError on the I/O thread (in a callback) if the commit has not ended.
        """
        self._wait(timeout)
        self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the commit has ended, as `result` does, and return its error; None if it has succeeded."""
        self._wait(timeout)
        return self.retrieved()

    def _wait(self, timeout: float | None) -> None:
        if self.done():
            return
        self.check_wait()
        running, end = _end_of_wait()
        has_ended = False
        if not self.observe(end):
            return
        latest = self.deadline + GRACE_SECONDS - time.monotonic()
        given_up = time.monotonic() + (latest if timeout is None else min(timeout, latest))
        try:
            while not has_ended and (left := given_up - time.monotonic()) > 0:
                has_ended = running.acquire(timeout=step_seconds(left) or left)
        finally:
            self.forget(end)
        if not has_ended and not self.done():
            raise DeliveryTimeoutError(
                f"{self!r}: no result within {seconds_text(latest if timeout is None else timeout)}", remedy="retry"
            )


class _SpaceLocks:
    """For each thread that waits for buffer space, a lock that it holds.

    Not a Condition: a signal handler that raises in its Python code leaves the lock of the producer held, or released
    too early. The I/O thread refers to this object, and not to the producer, which is collected if it is forgotten.
    """

    def __init__(self) -> None:
        self.locks: set[Any] = set()
        self.accumulator: Any = None

    def wake_all(self) -> None:
        """Wake the threads. The lock of the producer is held."""
        while self.locks:
            self.locks.pop().release()
        self.accumulator.space_waiters = 0


class ProducerBase(ClientBase):
    """The parts of a producer that its threads, a fork of the process and the end of the interpreter use."""

    _open: ClassVar[weakref.WeakSet[ProducerBase]] = weakref.WeakSet()
    _core: ProducerCore
    _lock: SendLock
    _space: _SpaceLocks
    #: At the interpreter's exit, an exit handler and then `__del__` log what is lost.
    _is_loss_logged = False

    def _make_lock(self) -> Callable[[], None]:
        """Create the lock of the core; return the function that the core calls, with the lock held, when it has space
        again."""
        self._lock = core_lock(self._io_loop)
        self._space = _SpaceLocks()
        return self._space.wake_all

    def _put_when_space(self, put: Callable[[], Any]) -> Any:
        """Return the result of `put` once it finds buffer space; None if it does not within max_block_ms."""
        self._io_loop.check_wait()
        deadline = time.monotonic() + self._core.settings.max_block
        accumulator = self._core.accumulator
        waiting, space = self._space, threading.Lock()
        waiting.accumulator = accumulator
        try:
            while True:
                with self._lock:
                    space.acquire(blocking=False)  # the one that wakes this thread releases it
                    waiting.locks.add(space)
                    accumulator.space_waiters = len(waiting.locks)
                    if (done := put()) is not None:
                        return done
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                space.acquire(timeout=step_seconds(left) or left)
        finally:
            with self._lock:
                waiting.locks.discard(space)
                accumulator.space_waiters = len(waiting.locks)

    def _log_lost(self) -> None:
        if hasattr(self, "_core") and not self._is_loss_logged:
            self._is_loss_logged = True
            is_open = self._core.id_manager.is_transaction_open
            log_lost(self._core.accumulator, repr(self), is_transaction_open=is_open)


class _HeldLocks(threading.local):
    """The locks that a thread holds while it forks, in the order in which it took them."""

    def __init__(self) -> None:
        self.locks: list[Any] = []


class _Fork:
    """Handlers of a fork, which waits until no producer is in a critical section: their locks are held meanwhile.

    An exception in a handler, such as KeyboardInterrupt, does not stop the fork, and a handler of a signal may raise it
    before or after any call. So each step that takes or releases locks is one call of compiled code, which changes the
    list of the held locks, too. Each thread has a list of its own, and releases only these. What follows a fork is
    registered twice, as the first call may be interrupted at once; the second one then does the rest.

    lock: held by the thread that forks, as otherwise two of them could wait for each other's locks.
    """

    lock = threading.Lock()
    held = _HeldLocks()

    @classmethod
    def before(cls) -> None:
        locks = cls.held.locks
        locks.extend(filter(_acquire, [cls.lock]))
        locks.extend(filter(_acquire, [producer._lock for producer in members_of(ProducerBase._open)]))

    @classmethod
    def in_parent(cls) -> None:
        locks = cls.held.locks
        deque(map(_release, map(list.pop, repeat(locks, len(locks)))), maxlen=0)  # calls them, and keeps no result

    @classmethod
    def in_child(cls) -> None:
        """End all producers. If `before` was interrupted, threads that the child does not have may hold locks."""
        reason = f"this producer belongs to another process; the forked process {os.getpid()} must create its own"
        cls.lock = threading.Lock()
        cls.held.locks.clear()
        producers = members_of(ProducerBase._open)
        with contextlib.ExitStack() as calls:  # all are made, and an error of one is raised after that
            calls.callback(_release_all, [producer._lock for producer in producers])  # the last call
            for producer in producers:
                calls.callback(producer._core.forget, TransportError(reason))


def _release_all(locks: list[SendLock]) -> None:
    """Release those that are held, by any thread."""
    deque(map(_release, filter(methodcaller("locked"), locks)), maxlen=0)


@atexit.register
def _at_exit() -> None:
    """Log what is lost, before the threads end: after that, nothing is unfinished."""
    with contextlib.ExitStack() as calls:  # all are made, and an error of one is raised after that
        calls.callback(_end_threads)  # the last call
        for producer in members_of(ProducerBase._open):
            if not producer._io_loop.is_closed:
                calls.callback(producer._log_lost)


def _end_threads() -> None:
    thread_loop = sys.modules.get("kcodec.network.thread_loop")
    if thread_loop is not None:
        thread_loop.end_at_exit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_Fork.before, after_in_parent=_Fork.in_parent, after_in_child=_Fork.in_child)
    os.register_at_fork(after_in_parent=_Fork.in_parent, after_in_child=_Fork.in_child)
