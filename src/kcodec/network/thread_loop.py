# SPDX-License-Identifier: Apache-2.0
"""Runs a client on an I/O thread with non-blocking sockets; calls from any thread wait for their flow.

The thread is a daemon and starts with the first call. It belongs to the process that created it. In a forked child, the
copies of its sockets are closed (the parent's connections stay open), and a call raises an error that says to create a
new client in the child.

When the interpreter exits, `end_at_exit` ends the threads of all clients that were not closed. Otherwise the
interpreter would stop a daemon thread at any point, possibly while it holds a lock (the import lock, the buffer of
stderr), and the main thread would wait for that lock forever. For the same reason nothing is imported for the first
time on these threads: see `kcodec.network.preload`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kcodec._fast import IoTurn, SendLock
from kcodec.arguments import check_seconds
from kcodec.errors import DeliveryTimeoutError, TransportError
from kcodec.flow import Address, Done, Flow, Task
from kcodec.network.client import GRACE_SECONDS, Client, IoLoop, Waiter, pass_on
from kcodec.network.connection import NO_ADDRESS, Connection
from kcodec.network.last_work import LastWait, log_failure
from kcodec.network.options import ClientConfig
from kcodec.network.weak_sets import members_of
from kcodec.quantities import seconds_text

T = TypeVar("T")
log = logging.getLogger("kcodec.client")
#: At exit, all threads of all clients together get this many seconds to end. A name lookup cannot be interrupted, nor
#: can a callback of the application.
EXIT_SECONDS = 2.0
#: The I/O thread wakes this many seconds before a timer is due. While other threads compute, it gets the GIL up to 5 ms
#: after it has woken (sys.getswitchinterval).
EARLY_SECONDS = 0.002
#: Buffers that one sendmsg sends at most (IOV_MAX is 1024 on Linux, and at least 16 anywhere).
MAX_PIECES = 64
_loops: weakref.WeakSet[ThreadLoop] = weakref.WeakSet()

SocketAddress = tuple[socket.AddressFamily, Any]


class ThreadLoop(IoLoop):
    """One thread, one selector, one client. io_turn: while it is urgent, threads that send pause for this thread."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._lock = threading.Lock()
        #: Of the cores: the I/O thread takes them, and a thread that holds one must not wait for the I/O thread.
        self.core_locks: list[SendLock] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._running: set[Waiter[Any]] = set()
        self._thread: threading.Thread | None = None
        self._is_exiting = False
        #: Whether the last work of an abandoned client has ended, and whether what it has not done was logged.
        self._is_finished = self._is_reported = False
        self._workers: list[threading.Thread] = []
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        # That of a selector can itself be waited for, on Linux and macOS.
        self._selector_number: int | None = self.selector.fileno() if hasattr(self.selector, "fileno") else None
        self.io_turn = IoTurn()
        self.io_turn.cannot_wait = self._selector_number is None  # on Windows
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._is_awake = False
        _loops.add(self)

    # For any thread

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop's thread, soon."""
        self._check()
        self._start()
        self._posted.append(action)
        self._wake()

    def run(
        self,
        flow: Flow[T],
        timeout: float | None = None,
        call: str = "the call",
        check: Callable[[], object] | None = None,
    ) -> T:
        """Run a flow to its end and return its result. An interruption of the wait, such as Ctrl-C, cancels the flow.
        The exception is raised when the flow is cancelled, or after GRACE_SECONDS if the I/O thread is blocked.

        timeout: Seconds until the deadline of the flow itself. A little later, the flow is cancelled and
                 DeliveryTimeoutError is raised.
        call:    Name of the call for this error.
        check:   Called every STEP_SECONDS on the caller's thread, for a thread that Ctrl-C does not interrupt. If it
                 raises KeyboardInterrupt, the flow is cancelled. Without it, only the main thread is interrupted.
        """
        self.check_wait()
        check_seconds(timeout, call)
        waiter: Waiter[T] = Waiter()
        tasks: list[Task[T]] = []

        def begin() -> None:
            task = self.client.scheduler.spawn(flow, "call")
            tasks.append(task)
            task.when_done(ended)

        def ended(task: Task[T]) -> None:
            self._running.discard(waiter)
            pass_on(task, waiter, self._error)

        def give_up() -> None:
            for task in tasks:
                task.cancel()
            self._running.discard(waiter)
            given_up.set_result(None)

        given_up: Waiter[None] = Waiter()
        try:
            self._running.add(waiter)
            self.post(begin)
            has_ended = waiter.wait(None if timeout is None else timeout + GRACE_SECONDS, check)
        except BaseException:  # of a signal handler, or the client cannot run the flow
            with contextlib.suppress(TransportError, RuntimeError):  # closed meanwhile, which cancels the flow
                self.post(give_up)
                given_up.wait(GRACE_SECONDS, None)  # a callback of the application may block the thread
            raise
        if not has_ended:
            self.post(give_up)
            raise DeliveryTimeoutError(f"{call} did not finish within {seconds_text(timeout or 0.0)}")
        return waiter.result()

    def is_current(self) -> bool:
        """Return whether the caller runs on the I/O thread, as callbacks do."""
        return threading.current_thread() is self._thread

    def check_wait(self) -> None:
        """Raise RuntimeError on the client's own I/O thread, where a blocking call would wait for itself, and in a
        signal handler that has interrupted a call which holds a lock of the client."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "this call would block the client's I/O thread, on which callbacks run, and would never return;"
                " make it on another thread"
            )
        for lock in self.core_locks:
            lock.refuse_owner()

    def close(self, timeout: float = 5.0) -> None:
        """End the thread and cancel its running flows. Further calls do nothing."""
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

    @property
    def can_finish(self) -> bool:
        """Whether `abandon` does the last work of the client."""
        is_over = self.is_closed or self._is_exiting or self._is_abandoned
        return self.last_work is not None and self._thread is not None and not is_over

    def abandon(self) -> None:
        """Do the last work of the client and then end its thread, because the program has dropped the client, or ends,
        without closing it. Further calls do nothing.

        This does not wait, as the garbage collector calls it in any thread, which may hold any lock.
        """
        if self._is_abandoned or self.is_closed:
            return
        if self.can_finish:
            self._is_abandoned = True
            with contextlib.suppress(TransportError):  # the interpreter is exiting, just now
                self.post(self._do_last_work)
                return
        self.close(0.0)

    def _do_last_work(self) -> None:
        assert self.last_work is not None
        flow = self.last_work.flow()
        if flow is None:
            self._finished()
        else:
            self.client.scheduler.spawn(flow, "last work").when_done(self._finished)

    def _finished(self, task: Task[None] | None = None) -> None:
        if task is not None and self.last_work is not None:
            log_failure(self.last_work, task)
        self._is_finished = True
        self._wake()  # otherwise, this turn would wait for an event

    def wait_until_finished(self, began: float) -> None:
        """At exit, which began at this time: wait for the last work of an abandoned client, up to its time limit, and
        log what was not done."""
        if not self._is_abandoned or self.last_work is None or self._process != os.getpid():
            return
        wait, thread = LastWait(self.last_work, self.client.cluster, began), self._thread
        try:
            while thread is not None and thread.is_alive() and (seconds := wait.step_seconds()):
                thread.join(seconds)
        finally:
            self._report()

    def _report(self) -> None:
        if self.last_work is not None and not self._is_reported:
            self._is_reported = True
            self.last_work.report()

    def begin_exit(self) -> None:
        """Ask the thread to end because the interpreter exits, without waiting for it.

        `is_closed` stays False, so that an object that was not closed still logs a warning, and a later call gets the
        reason.
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

    def _check(self) -> None:
        super()._check()
        if self._is_exiting:
            raise TransportError("the interpreter is exiting, which ended this client: close clients before that")

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
                log.debug("the loop was not woken: %s", error)

    # The loop's thread

    def _loop(self) -> None:
        try:
            self.client.start(self, self.run_blocking)
            while not (self._is_closing or self._is_exiting or self._is_finished):
                self._turn()
        except BaseException as error:  # noqa: BLE001  calls that wait must end with it
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
        for key, events in self._wait(None if when is None else max(when - self.client.clock(), 0.0)):
            if key.data is None:
                # This order matters: a post that finds this thread awake is handled in the next turn, which follows
                # without a wait.
                self._wake_in.recv(4096)
                self._is_awake = False
            else:
                key.data(events)

    def _wait(self, seconds: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events, and return them. The compiled wait takes the GIL again only once. It is precise, whereas
        `select` counts milliseconds, and rounds them up twice."""
        if self._selector_number is not None:
            if seconds is not None and seconds > EARLY_SECONDS:
                seconds -= EARLY_SECONDS  # the next turn waits for the rest
            found = self.io_turn.wait(self._selector_number, seconds)
            if found is not None:
                keys = self.selector.get_map()
                return [(key, kinds & key.events) for number, kinds in found if (key := keys.get(number)) is not None]
            self._selector_number = None
        return self.selector.select(seconds)

    def _end(self) -> None:
        self.io_turn.is_urgent = False
        try:
            if self._is_abandoned:
                self._report()
            self.client.stop()
            self.client.scheduler.run_ready()
        finally:
            why = "the interpreter is exiting" if self._is_exiting else "the client was closed"
            reason = self._error or TransportError(why)
            for waiter in list(self._running):
                waiter.set_exception(TransportError(f"the call was cancelled: {reason}"))
            self._running.clear()
            self._release()

    def _release(self) -> None:
        self.selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def run_blocking(self, function: Callable[[], Any], done: Done) -> None:
        """Run a function on a new thread. `done` is called with its result on the I/O thread."""

        def work() -> None:
            value: Any = None
            failure: BaseException | None = None
            try:
                value = function()
            except Exception as error:  # noqa: BLE001  raised in the flow that waits
                failure = error
            with contextlib.suppress(TransportError):  # closed, maybe just now: no call waits for it then
                self.post(lambda: ended(value, failure))

        def ended(value: Any, failure: BaseException | None) -> None:
            self.io_turn.helpers -= 1
            done(value, failure)

        thread = threading.Thread(target=work, name="kcodec-blocking", daemon=True)
        self.io_turn.helpers += 1
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: a limit of the system, or the interpreter exits
            self.io_turn.helpers -= 1
            if self._is_abandoned:  # nothing else runs on this thread
                self.client.scheduler.call_soon(lambda: _run_here(function, done))
                return
            refusal = TransportError(f"a thread for a blocking call could not be started: {error}")
            self.client.scheduler.call_soon(lambda: done(None, refusal))
            return
        self._workers = [*(worker for worker in self._workers if worker.is_alive()), thread]

    def open(self, address: Address, connection: Connection) -> None:
        """Resolve the host on another thread, then try its addresses in turn."""

        def resolved(found: Any, error: BaseException | None) -> None:
            connection.is_resolving = False
            if error is not None:
                connection.closed(error)
            elif not connection.is_closed:
                self._dial(found, connection)

        connection.is_resolving = True
        self.run_blocking(lambda: _resolve(address, connection.network.options), resolved)

    def _dial(self, addresses: list[SocketAddress], connection: Connection) -> None:
        """Try the addresses in turn. Pass the first open socket, or the last failure, to the connection."""
        (family, where), rest = addresses[0], addresses[1:]
        scheduler = self.client.scheduler
        undo = contextlib.ExitStack()

        def failed(error: Exception) -> None:
            undo.close()
            if rest and not connection.is_closed:
                self._dial(rest, connection)
            else:
                connection.closed(error)

        def writable(events: int) -> None:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                failed(_os_error(code))
                return
            timer.cancel()
            self.selector.unregister(sock)
            connection.connected(SocketTransport(self.selector, sock, connection))

        try:
            sock = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.selector.register(sock, selectors.EVENT_WRITE, writable)
            undo.callback(self.selector.unregister, sock)
            seconds = connection.seconds_for_address(len(addresses))
            timer = scheduler.call_at(scheduler.clock() + seconds, lambda: failed(_os_error(errno.ETIMEDOUT)))
            undo.callback(timer.cancel)
            code = sock.connect_ex(where)
        except (OSError, ValueError, OverflowError) as error:  # no IPv6, or too many open files
            failed(error)
            return
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            scheduler.call_soon(lambda: failed(_os_error(code)))

    def forget_in_child(self) -> None:
        """In a forked child, close the copies of the parent's sockets without sending anything. Release the locks of
        threads that the child does not have."""
        for lock in self.core_locks:
            lock.forget_threads()
        watched = self.selector.get_map()  # None: closed
        for key in list(watched.values()) if watched else []:
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self.selector.close()
        self._wake_in.close()
        self._wake_out.close()


def _run_here(function: Callable[[], Any], done: Done) -> None:
    try:
        value = function()
    except Exception as error:  # noqa: BLE001  raised in the flow that waits
        done(None, error)
    else:
        done(value, None)


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _resolve(address: Address, options: ClientConfig) -> list[SocketAddress]:
    """Return all addresses of a host in the system's order (client.dns.lookup=use_all_dns_ips). Raise OSError."""
    family = options.address_family
    try:
        found = socket.getaddrinfo(address.host, address.port, family=family, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise options.name_error(error) from None
    if not found:  # only by a replacement of the system's function
        raise OSError(errno.EADDRNOTAVAIL, NO_ADDRESS)
    return [(family, where) for family, _, _, _, where in found]


class SocketTransport:
    """A connected socket in a selector. Data that cannot be sent at once is kept until the socket is writable."""

    def __init__(self, selector: selectors.BaseSelector, sock: socket.socket, connection: Connection) -> None:
        self._selector = selector
        self._socket = sock
        self._connection = connection
        self._unsent: deque[memoryview] = deque()
        self._is_open = True
        self._watched = selectors.EVENT_READ
        selector.register(sock, selectors.EVENT_READ, self._happened)

    def has_unsent(self) -> bool:
        """Return whether it keeps bytes until the socket is writable."""
        return bool(self._unsent)

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send without blocking."""
        was_idle = not self._unsent
        self._unsent.extend(memoryview(part).cast("B") for part in parts if len(part))
        if was_idle:
            self._send()

    def close(self) -> None:
        """Close at once."""
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._socket)
            self._socket.close()

    def _send(self) -> None:
        while self._unsent and self._is_open:
            try:
                sent = self._socket.sendmsg([self._unsent[i] for i in range(min(len(self._unsent), MAX_PIECES))])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._fail(error)
                return
            while sent:
                first = self._unsent[0]
                if sent < len(first):
                    self._unsent[0] = first[sent:]
                    break
                sent -= len(first)
                self._unsent.popleft()
        if self._is_open:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            if events != self._watched:
                self._watched = events
                self._selector.modify(self._socket, events, self._happened)

    def _happened(self, events: int) -> None:
        if events & selectors.EVENT_WRITE and self._is_open:
            self._send()
            if not self._unsent and self._is_open:
                self._connection.all_sent()
        if events & selectors.EVENT_READ and self._is_open:
            try:
                count = self._socket.recv_into(self._connection.get_buffer())
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._fail(error)
                return
            if count:
                self._connection.received(count)
            else:
                self._fail(None)

    def _fail(self, error: OSError | None) -> None:
        self.close()
        self._connection.closed(error)


def _forget_all() -> None:
    for loop in list(_loops):
        loop.forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def finish_at_exit() -> None:
    """Let the clients that were not closed do their last work. Ctrl-C ends the wait. The same exit handler then calls
    `end_at_exit`."""
    loops, began = members_of(_loops), time.monotonic()
    for loop in loops:
        if loop.can_finish:
            loop.abandon()
    with contextlib.suppress(KeyboardInterrupt):
        for loop in loops:
            loop.wait_until_finished(began)


def end_at_exit() -> None:
    """End the threads of all clients that were not closed. This runs after `concurrent.futures` has joined its threads,
    after non-daemon threads have ended, and after the exit handlers that an application registered later than its
    import of a client: these may still use and close their clients. `kcodec.client.waiting` registers it, as the first
    client that is created imports this module."""
    loops = members_of(_loops)
    for loop in loops:
        loop.begin_exit()
    deadline = time.monotonic() + EXIT_SECONDS
    for loop in loops:
        if not loop.join_threads(deadline):
            log.warning(
                "the threads of a client did not end within %g s of the interpreter's exit, as a name lookup, a request"
                " for a Kerberos ticket or a callback blocks them; close clients before the program ends",
                EXIT_SECONDS,
            )
