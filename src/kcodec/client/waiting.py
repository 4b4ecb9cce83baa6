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
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import repeat
from operator import methodcaller
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from kcodec._fast import SendLock
from kcodec.arguments import check_seconds
from kcodec.end_limits import AT_ONCE_SECONDS
from kcodec.errors import DeliveryTimeoutError, TransportError
from kcodec.network.interruptible import step_seconds
from kcodec.network.not_pickled import NotPickled
from kcodec.network.weak_sets import members_of
from kcodec.producer import delivery as deliveries
from kcodec.producer.delivery import BatchMetadata, RecordMetadata
from kcodec.producer.reports import log_lost, log_still_sent
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
        """Return the I/O loop of a client on its own thread. The first call imports the network code."""
        from kcodec.network.thread_loop import ThreadLoop

        return ThreadLoop(client)


T = TypeVar("T")
#: A Delivery ends by its deadline. If the I/O thread does not end it, `result` raises an error this much later.
GRACE_SECONDS = 1.0
#: A thread that was woken to get buffer space, and has not run for this time, loses its position in the queue.
LOST_SECONDS = 1.0
_acquire, _release = methodcaller("acquire"), methodcaller("release")


def core_lock(io_loop: IoLoop) -> SendLock:
    """Return the lock of a core, whose calls come from any thread. The I/O loop refuses to wait in a thread that holds
    the lock."""
    _Child.watch_end()
    lock = SendLock()
    io_loop.core_locks.append(lock)
    return lock


def close_lock() -> threading.RLock:
    """Return a lock for the close of a client. A signal handler that interrupts the close can take it, too."""
    return threading.RLock()


def wait_for_close(lock: threading.RLock, seconds: float) -> bool:
    """Wait until no other thread closes the client, for at most `seconds`. Return whether that is so."""
    deadline = time.monotonic() + seconds
    while True:
        left = max(deadline - time.monotonic(), 0.0)
        if lock.acquire(timeout=step_seconds(left) or left):
            lock.release()
            return True
        if left <= 0:
            return False


class ClientBase(NotPickled):
    """An object with an I/O thread. The thread starts with the first flow or with `_start`."""

    _io_loop: IoLoop
    _is_started: ClassVar = True
    #: Text of the ResourceWarning for an object that was not closed.
    _unclosed: ClassVar[str] = "was not closed"

    def _begin(self) -> None:
        """Run the background flows of a client. This is called on the I/O thread."""

    def _start(self) -> None:
        self._io_loop.post(self._begin)

    def _run(self, flow: Flow[T], timeout: float | None = None, call: str = "the call") -> T:
        return self._io_loop.run(flow, timeout, call)

    def _wait_for_work(self, core: ConsumerCore, work: Work, seconds: float) -> Callback | None:
        """Wait as part of a poll, as `work.wait_for_work` does, but possibly for a shorter time.

        A poll that waits only for records waits here. In a flow, the wait would begin and end on the I/O thread, which
        costs more than everything else in such a poll.
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
        core.note_request()
        return None

    def _call_back(self, callbacks: CallbackQueue, callback: Callback) -> None:
        """Call a callback of the application on the caller's thread."""
        callbacks.begin(callback)
        try:
            callback.call()
        finally:
            with contextlib.suppress(TransportError):  # the callback has closed the client
                self._io_loop.post(callback.complete)

    def _run_at_once(self, flow: Flow[None]) -> None:
        """Run a short flow after an interruption of `close`: leave the group, so that other members get the partitions
        without waiting for the session timeout, or abort a transaction, which blocks readers."""
        # TransportError: the client was closed meanwhile. DeliveryTimeoutError, which is a TransportError: the I/O
        # thread is blocked. RuntimeError: this runs on the I/O thread, or in a signal handler.
        with contextlib.suppress(TransportError, RuntimeError):
            self._run(flow, AT_ONCE_SECONDS, "close()")

    def _log_dropped(self) -> None:
        """Log what is lost, or is still done, because the program has dropped the object without closing it."""

    def __enter__(self) -> Self:
        return self

    def __del__(self) -> None:
        io_loop = getattr(self, "_io_loop", None)
        if io_loop is not None and not io_loop.is_closed:
            try:
                self._log_dropped()
                warnings.warn(f"{self!r} {self._unclosed}", ResourceWarning, stacklevel=2, source=self)
            finally:  # the program may turn warnings into errors
                io_loop.abandon()


# Producers


def _end_of_wait() -> tuple[Any, Callable[[object], None]]:
    """Return a lock that is held, and a callback that releases it.

    This is not an Event: if a signal handler raises an exception while `wait` begins, the inner lock of the Event stays
    held, and the I/O thread would wait for it in `set`.
    """
    running = threading.Lock()
    running.acquire()
    return running, lambda _: running.release()


def _wait(delivery: deliveries.Delivery | deliveries.TableDelivery, timeout: float | None) -> None:
    """Wait until the delivery is done, but for at most `timeout` seconds, and not longer than its own deadline, because
    nothing sets its outcome after that. Raise DeliveryTimeoutError if it is not done by then."""
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
    """The result of sending one record. `kcodec.producer.delivery.Delivery` describes the attributes. The outcome is
    known within `delivery_timeout_ms`.

    batch, index: Batch that contains the record, and position of the record in the batch. Only a producer creates a
        Delivery.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged, and return where it is stored.

        timeout: Maximum time to wait, in seconds. None: no limit, but the record is acknowledged or fails within
            `delivery_timeout_ms`.

        If the record has failed, raise its error, which names the partition. Raise DeliveryTimeoutError after the
        timeout. The record is then still in progress. Raise RuntimeError on the I/O thread (in a callback) if the
        outcome is not known yet, because a wait there would block all records.
        """
        _wait(self, timeout)
        return self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the outcome of the record is known. Return its error, or None if it was acknowledged.

        timeout: Maximum time to wait, in seconds, as for `result`. Raise DeliveryTimeoutError after the timeout.
        """
        _wait(self, timeout)
        return self.error


class TableDelivery(deliveries.TableDelivery):
    """The result of sending a table. `kcodec.producer.delivery.TableDelivery` describes the attributes.

    topic: Name of the topic.
    lock: Lock of the producer's buffer. Only a producer creates a TableDelivery.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Wait until all batches are acknowledged, and return where each of them is stored. If batches have failed,
        raise the first error.

        timeout: Maximum time to wait, in seconds, as for `Delivery.result`. Raise DeliveryTimeoutError after the
            timeout.
        """
        _wait(self, timeout)
        return self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the outcome of all batches is known. Return the error of the first batch that failed, or None if
        all were acknowledged.

        timeout: Maximum time to wait, in seconds, as for `Delivery.exception`. Raise DeliveryTimeoutError after the
            timeout. The table is then still in progress.
        """
        _wait(self, timeout)
        return self.error


class TransactionCommit(CommitResult):
    """A commit in the background, which `commit_transaction_async` returns.

    The commit succeeds or fails within its timeout. If the next transaction then needs a new epoch, this can take up to
    `max_block_ms` longer.

    transactional_id, lock, check_wait: Attributes of the producer. Only a producer creates a TransactionCommit.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> None:
        """Wait for the end of the commit. Raise what `commit_transaction` would raise.

        timeout: Maximum time to wait, in seconds. None: no limit, but the commit has its own deadline.

        Raise DeliveryTimeoutError after the timeout. The commit is then still in progress. Raise RuntimeError on the
        I/O thread (in a callback) while the commit is in progress.
        """
        self._wait(timeout)
        self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of the commit. Return its error, or None if it has succeeded.

        timeout: Maximum time to wait, in seconds, as for `result`. Raise DeliveryTimeoutError after the timeout.
        """
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


class _SpaceWaiter:
    """A thread that waits for buffer space.

    lock:      The thread holds it and waits until it is released.
    woken_at:  Time at which it was last released.
    was_first: Whether the thread was the first of the queue.
    """

    __slots__ = ("lock", "was_first", "woken_at")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.woken_at = time.monotonic()
        self.was_first = False


class _SpaceQueue:
    """The threads that wait for buffer space, in the order in which they began to wait. Only the first one gets space,
    so that other threads, which send without a wait in between, cannot take all of it. Released space wakes only the
    first thread, which wakes the next one when it leaves the queue. The caller of a method holds the producer's lock.

    This is not a Condition: if a signal handler raises an exception in the Python code of a Condition, the lock of the
    producer stays held, or is released too early. The I/O thread refers to this object and not to the producer, so that
    a producer without other references is collected.

    A signal handler can also interrupt a call before it has left the queue. `wake_first` removes a thread that was
    woken and has not run for LOST_SECONDS. A thread that was only slow then continues as the first one.
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[_SpaceWaiter, None] = OrderedDict()
        self.accumulator: Any = None
        #: Whether there was no space for the first one. Otherwise it is about to try, and batches may linger and grow.
        self._is_short = False

    def enter(self, waiter: _SpaceWaiter) -> bool:
        """Add a thread that is not in the queue. Return whether it is the first one."""
        if waiter not in self.waiting:
            self.waiting[waiter] = None
            if waiter.was_first:
                self.waiting.move_to_end(waiter, last=False)
            self._count()
        waiter.was_first = next(iter(self.waiting)) is waiter
        return waiter.was_first

    def leave(self, waiter: _SpaceWaiter) -> None:
        if waiter in self.waiting:
            del self.waiting[waiter]
            self._count()
        if waiter.was_first:
            self.wake_first()

    def wake_first(self) -> None:
        """Let the first thread try to get space."""
        while self.waiting:
            first = next(iter(self.waiting))
            if first.lock.locked():
                first.woken_at = time.monotonic()
                first.lock.release()
                return
            if time.monotonic() < first.woken_at + LOST_SECONDS:
                return
            del self.waiting[first]
            self._count()

    def put_first(self, put: Callable[[], Any]) -> Any:
        """Call `put` for the first thread."""
        self.accumulator.memory.must_queue = False
        try:
            done = put()
            self._is_short = done is None
            return done
        finally:
            self._count()

    def put_past(self, put: Callable[[], Any]) -> Any:
        """Call `put` for a callback on the I/O thread, which does not queue because it cannot wait."""
        self.accumulator.memory.must_queue = False
        try:
            return put()
        finally:
            self._count()

    def _count(self) -> None:
        self.accumulator.memory.must_queue = bool(self.waiting)
        self.accumulator.memory.waiters = len(self.waiting) if self._is_short else 0


class ProducerBase(ClientBase):
    """The parts of a producer for its threads, for a fork of the process and for the exit of the interpreter."""

    _open: ClassVar[weakref.WeakSet[ProducerBase]] = weakref.WeakSet()
    _core: ProducerCore
    _lock: SendLock
    _space: _SpaceQueue
    #: Whether the lost records were logged. At the interpreter's exit, both an exit handler and `__del__` log them.
    _is_loss_logged = False

    def _make_lock(self) -> Callable[[], None]:
        """Create the lock of the core. Return the function that the core calls, with the lock held, when buffer space
        becomes free."""
        self._lock = core_lock(self._io_loop)
        self._space = _SpaceQueue()
        return self._space.wake_first

    def _attach_space(self) -> None:
        """Connect the queue for buffer space with the buffer."""
        self._space.accumulator = self._core.accumulator

    def _put_when_space(self, put: Callable[[], Any]) -> Any:
        """Call `put` until it finds buffer space, and return its result. Return None after max_block_ms."""
        if self._io_loop.is_current():
            with self._lock:
                done = self._space.put_past(put)
            if done is not None:
                return done
        self._io_loop.check_wait()
        deadline = time.monotonic() + self._core.settings.max_block
        space, waiter = self._space, _SpaceWaiter()
        try:
            while True:
                with self._lock:
                    waiter.lock.acquire(blocking=False)  # `wake_first` releases it
                    if space.enter(waiter) and (done := space.put_first(put)) is not None:
                        return done
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                seconds = min(step_seconds(left) or left, LOST_SECONDS)
                if not waiter.lock.acquire(timeout=seconds) and not waiter.was_first:
                    with self._lock:
                        space.wake_first()  # the call of the first thread may have been interrupted
        finally:
            with self._lock:
                space.leave(waiter)

    def _log_dropped(self) -> None:
        if hasattr(self, "_core") and self._io_loop.can_finish:
            if self._core.id_manager.transactional_id is None:  # otherwise, the last work logs what it aborts
                log_still_sent(self._core.accumulator, repr(self))
        elif not self._io_loop.is_abandoned:  # the I/O loop logs it after the last work
            self._log_lost()

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
    """Handlers for a fork of the process. The fork waits until no producer is in a critical section, and the locks of
    all producers are held during the fork.

    An exception in a handler, such as KeyboardInterrupt, does not stop the fork, and a signal handler may raise it
    before or after any call. Each step that takes or releases locks is therefore one call of compiled code, which also
    changes the list of held locks. Each thread has its own list, and releases only the locks in that list. The handlers
    that run after a fork are registered twice: if the first call is interrupted immediately, the second one completes
    its work.

    lock: Held by the thread that forks. Otherwise two such threads could wait for each other's locks.
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
        """End all producers in the forked child. If `before` was interrupted, threads that do not exist in the child
        may hold locks, so all locks are released."""
        reason = f"this producer belongs to another process; the forked process {os.getpid()} must create its own"
        cls.lock = threading.Lock()
        cls.held.locks.clear()
        producers = members_of(ProducerBase._open)
        with contextlib.ExitStack() as calls:  # makes all calls, and then raises an error of one of them
            calls.callback(_release_all, [producer._lock for producer in producers])  # the last call
            for producer in producers:
                calls.callback(producer._core.forget, TransportError(reason))


def _release_all(locks: list[SendLock]) -> None:
    """In a forked child: release the locks, whichever threads held them."""
    deque(map(SendLock.forget_threads, locks), maxlen=0)


class _Child:
    """A child process of multiprocessing. In Python 3.12 and older, a forked child runs no exit handlers. In newer
    versions, it does not run those that the parent has registered.

    process: The process that is watched.
    """

    process = 0

    @classmethod
    def watch_end(cls) -> None:
        """Let clients do their last work at the end of the process if it is such a child."""
        processes: Any = sys.modules.get("multiprocessing.process")
        if processes is not None and cls.process != os.getpid() and processes.parent_process() is not None:
            cls.process = os.getpid()
            # A thread inherits `daemon` from the thread that creates it. In a child process that a daemon thread has
            # forked, the main thread is a daemon.
            threading.Thread(target=cls._at_end, name="kcodec-exit", daemon=False).start()

    @staticmethod
    def _at_end() -> None:
        """Wait until all threads of the program have ended, as they may use clients. The end of the process waits for
        this thread, because it is not a daemon."""
        threading.main_thread().join()
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
        _at_exit()


@atexit.register
def _at_exit() -> None:
    """Let clients that were not closed do their last work, log what is lost, and end the threads."""
    thread_loop = sys.modules.get("kcodec.network.thread_loop")
    if thread_loop is None:
        return
    with contextlib.ExitStack() as calls:  # makes all calls, the last one first, also if one of them fails
        calls.callback(thread_loop.end_at_exit)
        for producer in members_of(ProducerBase._open):
            if not producer._io_loop.is_closed:
                calls.callback(producer._log_dropped)
        calls.callback(thread_loop.finish_at_exit)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_Fork.before, after_in_parent=_Fork.in_parent, after_in_child=_Fork.in_child)
    os.register_at_fork(after_in_parent=_Fork.in_parent, after_in_child=_Fork.in_child)
