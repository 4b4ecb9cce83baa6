# SPDX-License-Identifier: Apache-2.0
"""Carries a client on a thread of its own, with plain sockets; calls from any thread wait for their flow.

The thread is a daemon and starts with the first call. It belongs to the process that made it: in a forked child the
copies of its sockets are closed (the parent's connections live on), and a call says that the child needs a client of
its own.

When the interpreter exits, an `atexit` handler ends the threads of all clients that were not closed. Otherwise the
interpreter would stop a daemon thread wherever it is, possibly while it holds a lock (the import lock, the buffer of
stderr), and the main thread would wait for that lock forever. For the same reason nothing is imported for the first
time on these threads: see `kcodec.network.preload`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from kcodec.errors import DeliveryTimeoutError, TransportError
from kcodec.flow import Address, CancelledFlow, Done, Flow, Task
from kcodec.network.client import Client
from kcodec.network.connection import Connection
from kcodec.network.sockets import SocketTransport, dial, resolve

T = TypeVar("T")
log = logging.getLogger("kcodec.client")
#: A flow has a deadline and ends by it. The call returns this much later at the latest, if the I/O thread is too busy.
GRACE_SECONDS = 0.5
#: At exit, all threads of all clients together get this many seconds to end. A name lookup cannot be interrupted, nor
#: can a callback of the application.
EXIT_SECONDS = 2.0
_carriers: weakref.WeakSet[Carrier] = weakref.WeakSet()


class Carrier:
    """One thread, one selector, one client."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._posted: deque[Callable[[], None]] = deque()
        self._running: set[Future[Any]] = set()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_closing = False
        self._is_exiting = False
        self._workers: list[threading.Thread] = []
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._is_awake = False
        _carriers.add(self)

    # For any thread

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop's thread, soon."""
        self._check()
        self._start()
        self._posted.append(action)
        self._wake()

    def run(self, flow: Flow[T], timeout: float | None = None) -> T:
        """Run a flow to its end and give its result. timeout: seconds its own deadline allows; a little later it is
        cancelled and DeliveryTimeoutError raised. Interrupting the wait (Ctrl-C) cancels the flow."""
        self.check_wait()
        waiter: Future[T] = Future()
        tasks: list[Task[T]] = []

        def begin() -> None:
            task = self.client.scheduler.spawn(flow, "call")
            tasks.append(task)
            task.when_done(ended)

        def ended(task: Task[T]) -> None:
            self._running.discard(waiter)
            if waiter.set_running_or_notify_cancel():
                if isinstance(task.error, CancelledFlow):
                    waiter.set_exception(TransportError("the client was closed before the call ended"))
                elif task.error is not None:
                    waiter.set_exception(task.error)
                else:
                    waiter.set_result(task.result)  # type: ignore[arg-type]

        def give_up() -> None:
            for task in tasks:
                task.cancel()

        self._running.add(waiter)
        self.post(begin)
        try:
            return waiter.result(None if timeout is None else timeout + GRACE_SECONDS)
        except FutureTimeoutError as error:
            if waiter.done():
                raise
            self.post(give_up)
            raise DeliveryTimeoutError(f"the call did not end within {timeout:g} s") from error
        except (KeyboardInterrupt, SystemExit):
            self.post(give_up)
            raise

    def check_wait(self) -> None:
        """Raise RuntimeError on the client's own I/O thread, where a call that waits would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "this call would block the client's I/O thread, on which callbacks run, and would wait for itself;"
                " make it in another thread"
            )

    def close(self, timeout: float = 5.0) -> None:
        """End the thread; flows that still run are cancelled. Idempotent."""
        if self._process != os.getpid():
            return
        with self._lock:
            was_closing, self._is_closing = self._is_closing, True
        if self._thread is None:
            if not was_closing:
                self._release()
            return
        if not was_closing:
            self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def begin_exit(self) -> None:
        """Ask the thread to end because the interpreter exits; do not wait for it.

        `is_closed` stays False: an object that was not closed still warns, and a later call says why it cannot be made.
        """
        if self._process != os.getpid():
            return
        with self._lock:
            self._is_exiting = True
        if self._thread is not None and not self._is_closing:
            self._wake()

    def join_threads(self, deadline: float) -> bool:
        """Wait until the client's threads have ended, at most until `deadline` (time.monotonic). Return whether they
        have."""
        if self._process != os.getpid() or self._thread is None:
            return True
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        for worker in self._workers:  # which only the thread of the loop starts
            worker.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in [self._thread, *self._workers])

    @property
    def is_closed(self) -> bool:
        """Whether close was called, or the loop failed, or this is another process than the client's."""
        return self._is_closing or self._error is not None or self._process != os.getpid()

    def _check(self) -> None:
        if self._process != os.getpid():
            raise TransportError(
                f"this client belongs to process {self._process}: a forked process ({os.getpid()}) must make its own"
            )
        if self._error is not None:
            raise TransportError(f"the loop of this client failed: {self._error}") from self._error
        if self._is_closing:
            raise TransportError("the client is closed")
        if self._is_exiting:
            raise TransportError("the interpreter is exiting, which ended this client: close clients before")

    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._check()
                    thread = threading.Thread(target=self._loop, name="kcodec-client", daemon=True)
                    self.selector.register(self._wake_in, selectors.EVENT_READ, None)
                    self._thread = thread
                    try:
                        thread.start()
                    except RuntimeError:  # no more threads: a limit of the system, or the interpreter exits
                        self._thread = None
                        self.selector.unregister(self._wake_in)
                        raise

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            try:
                self._wake_out.send(b"\0")
            except OSError as error:
                log.debug("the loop needs no waking: %s", error)

    # The loop's thread

    def _loop(self) -> None:
        try:
            self.client.start(self, self.run_blocking)
            while not (self._is_closing or self._is_exiting):
                self._turn()
        except BaseException as error:  # noqa: BLE001  whoever waits must hear of it, and nobody above can
            self._error = error
            self.client.crash(error)
        finally:
            self._end()

    def _turn(self) -> None:
        scheduler = self.client.scheduler
        while self._posted:
            self._posted.popleft()()
        scheduler.run_ready()
        if self._posted:
            return
        when = scheduler.next_wakeup()
        for key, events in self.selector.select(None if when is None else max(when - self.client.clock(), 0.0)):
            if key.data is None:
                # In this order: a post that still finds us awake is seen in the next turn, which comes without sleep.
                self._wake_in.recv(4096)
                self._is_awake = False
            else:
                key.data(events)

    def _end(self) -> None:
        try:
            self.client.stop()
            self.client.scheduler.run_ready()
        finally:
            why = "the interpreter is exiting" if self._is_exiting else "the client was closed"
            reason = self._error or TransportError(why)
            for waiter in list(self._running):
                if waiter.set_running_or_notify_cancel():
                    waiter.set_exception(TransportError(f"the call was given up: {reason}"))
            self._running.clear()
            self._release()

    def _release(self) -> None:
        self.selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def run_blocking(self, function: Callable[[], Any], done: Done) -> None:
        """Run a function on a thread of its own; `done` hears of it on the loop's."""

        def work() -> None:
            value: Any = None
            failure: BaseException | None = None
            try:
                value = function()
            except Exception as error:  # noqa: BLE001  raised in the flow that asked
                failure = error
            with contextlib.suppress(TransportError):  # closed, maybe just now: nobody waits for it then
                self.post(lambda: done(value, failure))

        thread = threading.Thread(target=work, name="kcodec-blocking", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: a limit of the system, or the interpreter exits
            refusal = TransportError(f"no thread for a blocking call: {error}")
            self.client.scheduler.call_soon(lambda: done(None, refusal))
            return
        self._workers = [*(worker for worker in self._workers if worker.is_alive()), thread]

    def open(self, address: Address, connection: Connection) -> None:
        """Resolve the host on another thread, then dial its addresses in turn."""

        def resolved(found: Any, error: BaseException | None) -> None:
            if error is not None:
                connection.closed(error)
            elif not connection.is_closed:
                dial(self.selector, self.client.scheduler, found, connection, SocketTransport)

        self.run_blocking(lambda: resolve(address), resolved)

    def forget_in_child(self) -> None:
        """In a forked child: close the copies of the parent's sockets, without a word to the other side."""
        watched = self.selector.get_map()  # None: closed
        for key in list(watched.values()) if watched else []:
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self.selector.close()
        self._wake_in.close()
        self._wake_out.close()


def _forget_all() -> None:
    for carrier in list(_carriers):
        carrier.forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _end_at_exit() -> None:
    """End the threads of all clients that were not closed. It runs after `concurrent.futures` joined its threads and
    after non-daemon threads ended, and after the exit handlers that an application registered later than its import
    of this module: these may still use and close their clients."""
    carriers = list(_carriers)
    for carrier in carriers:
        carrier.begin_exit()
    deadline = time.monotonic() + EXIT_SECONDS
    for carrier in carriers:
        if not carrier.join_threads(deadline):
            log.warning(
                "a client was not closed, and its threads did not end within %g s of the interpreter's exit: a name"
                " lookup or a callback blocks them; close clients before the program ends",
                EXIT_SECONDS,
            )


atexit.register(_end_at_exit)
