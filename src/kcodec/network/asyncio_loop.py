# SPDX-License-Identifier: Apache-2.0
"""The event loop of an asyncio client: its transports, timers and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from kcodec.arguments import check_seconds
from kcodec.errors import DeliveryTimeoutError, TransportError
from kcodec.flow import Address, Done, Flow, Task
from kcodec.network.client import GRACE_SECONDS, Client, IoLoop, pass_on
from kcodec.network.connection import NO_ADDRESS, Connection
from kcodec.network.last_work import LastWait, log_failure
from kcodec.quantities import seconds_text

T = TypeVar("T")
log = logging.getLogger("kcodec.client")
_NEVER = float("inf")


class AsyncioLoop(IoLoop):
    """Runs one client in the event loop of its first call. All calls must come from that loop."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Two timers for the same time, because asyncio drops a callback that Ctrl-C interrupts at its first line.
        self._timers: tuple[asyncio.TimerHandle, ...] = ()
        #: By the client's clock; the timers fire then or earlier than the next flow is due.
        self._timer_due = _NEVER
        self._is_turning = self._is_finishing = self._is_reported = False
        self._is_over = asyncio.Event()
        #: Waits for the end of the event loop.
        self._watch: AsyncGenerator[None, None] | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self._running: set[asyncio.Future[Any]] = set()

    # For the loop's own thread; `post` for any

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop, soon. If Ctrl-C interrupts it, it runs again, and must do only what it has not done
        yet."""
        self._check()
        loop = self._begin()
        # asyncio drops a callback that Ctrl-C interrupts at its first line. The scheduler keeps the action, and one of
        # two callbacks remains.
        self.client.scheduler.call_soon(action)
        if asyncio._get_running_loop() is loop:
            loop.call_soon(self.turn)  # a call from another thread wakes the loop through a socket
            loop.call_soon(self._turn_again)
        else:
            loop.call_soon_threadsafe(self.turn)
            loop.call_soon_threadsafe(self._turn_again)

    def _turn_again(self) -> None:
        """Run actions that no turn has run."""
        if self.client.scheduler.has_ready:
            self.turn()

    def act(self, action: Callable[[], None]) -> None:
        """Run `action` and then the flows that are ready: immediately if possible, otherwise as `post` does."""
        loop = self._loop
        is_over = self._is_closing or self._error is not None  # in a forked process, no event loop is running
        if self._is_turning or is_over or loop is None or asyncio._get_running_loop() is not loop:
            self.post(action)
        else:
            action()
            self.turn()

    async def run(self, flow: Flow[T], timeout: float | None = None, call: str = "the call") -> T:
        """Run a flow to its end. Cancelling the await cancels the flow.

        timeout: Seconds until the deadline of the flow itself. A little later, the flow is cancelled and
                 DeliveryTimeoutError is raised.
        call:    Name of the call for this error.
        """
        self._check()
        check_seconds(timeout, call)
        loop = self._begin()
        waiter: asyncio.Future[T] = loop.create_future()

        def ended(task: Task[T]) -> None:
            if not waiter.done():
                pass_on(task, waiter, self._error)
                waiter.exception()  # retrieved, also if the caller is cancelled or interrupted in this moment

        task = self.client.scheduler.spawn(flow, call)
        task.when_done(ended)
        self._running.add(waiter)
        try:
            self.turn()
            if timeout is None:
                return await waiter
            # Not wait_for, which loses a cancellation in the moment in which the flow ends, before Python 3.12.
            async with asyncio.timeout(timeout + GRACE_SECONDS):
                return await waiter
        except TimeoutError as error:
            if waiter.done() and not waiter.cancelled():
                return waiter.result()  # of this moment, or such an error
            raise DeliveryTimeoutError(f"{call} did not finish within {seconds_text(timeout or 0.0)}") from error
        finally:
            self._running.discard(waiter)
            if not task.done:
                task.cancel()

    async def close(self, timeout: float = 5.0) -> None:
        """End the client and cancel its running flows. Further calls do nothing."""
        if self._is_closing or self._process != os.getpid():
            return
        if self._loop is not None:
            self.check_wait()
        self._end(TransportError("the client was closed"))
        if self._loop is not None:
            await asyncio.sleep(0)

    def _end(self, reason: TransportError) -> None:
        self._is_closing = True
        for timer in self._timers:
            timer.cancel()
        if self._loop is not None and not self._loop.is_closed():  # a second Ctrl-C may have closed it
            self.client.stop()
            self.client.scheduler.run_ready()
            self._give_up(reason)
            for task in list(self._tasks):
                task.cancel()
        watch, self._watch = self._watch, None
        if watch is not None:
            _step(watch.aclose())

    @property
    def can_finish(self) -> bool:
        """Whether `abandon` does the last work of the client."""
        loop, is_over = self._loop, self.is_closed or self._is_abandoned
        return self.last_work is not None and loop is not None and loop.is_running() and not is_over

    def abandon(self) -> None:
        """Do the last work of the client and then close it, because the program has dropped the client without closing
        it. Any thread may call this. Further calls do nothing."""
        loop = self._loop
        if self._is_abandoned or self.is_closed or loop is None or loop.is_closed():
            return
        self._is_abandoned = True
        with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
            loop.call_soon_threadsafe(self._do_last_work)

    def _do_last_work(self) -> None:
        if self.is_closed or self._is_finishing:
            return
        self._is_finishing = True
        flow = None if self.last_work is None else self.last_work.flow()
        if flow is None:
            self._finished()
            return
        self.client.scheduler.spawn(flow, "last work").when_done(self._last_work_ended)
        self.turn()

    def _last_work_ended(self, task: Task[None]) -> None:
        assert self._loop is not None and self.last_work is not None
        log_failure(self.last_work, task)
        self._loop.call_soon(self._finished)  # not in a turn of the scheduler

    def _finished(self) -> None:
        if self.is_closed:
            return
        self.report()
        reason = TransportError("the client was garbage collected, or its event loop ended, without a call of close()")
        self._end(reason)
        if self._loop is None or self._loop.is_closed():  # after a second Ctrl-C; a callback would need the loop
            return
        self._is_over.set()
        for callback in self.client.on_crash:
            callback(reason)

    def report(self) -> None:
        """Log what the last work has not done. Further calls do nothing."""
        if self.last_work is not None and not self._is_reported:
            self._is_reported = True
            self.last_work.report()

    async def _until_loop_ends(self) -> AsyncGenerator[None, None]:
        """Do the last work when the event loop ends, which closes its asynchronous generators before."""
        try:
            yield
        finally:
            self._watch = None
            if not self.is_closed:
                await self._finish()

    def _warn(self, name: str) -> None:
        try:
            warnings.warn(f"{name} was not closed", ResourceWarning, stacklevel=2)
        except ResourceWarning as warning:  # the program turns warnings into errors
            log.warning("%s", warning)

    async def _finish(self) -> None:
        assert self.last_work is not None
        is_unknown, self._is_abandoned = not self._is_abandoned, True
        self._do_last_work()
        if is_unknown:
            self._warn(self.last_work.name)
        wait = LastWait(self.last_work, self.client.cluster, time.monotonic())
        try:
            while not self.is_closed and (seconds := wait.step_seconds()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._is_over.wait()
        finally:
            self._finished()

    def _begin(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.get_running_loop()
            self.client.start(self, self.run_blocking)  # first: if Ctrl-C interrupts it, the next call repeats it
            self._loop = loop
            if self.last_work is not None:
                self._watch = self._until_loop_ends()
                _step(self._watch.__anext__())
        else:
            self.check_wait()
        return self._loop

    def check_wait(self) -> None:
        """Raise RuntimeError outside the client's event loop, because the call would never be woken there."""
        running = asyncio._get_running_loop()
        loop = self._loop
        if loop is not None and running is not loop and (running is not None or loop.is_closed()):
            state = "is closed" if loop.is_closed() else "is not the current one"
            raise RuntimeError(
                f"this client belongs to the event loop of its first call, which {state}: create and close a client in"
                " the event loop that uses it"
            )

    def checked_thread(self) -> int:
        """Return the identifier of this thread. Raise RuntimeError outside the client's event loop."""
        self.check_wait()
        return threading.get_ident()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that the client belongs to; None before its first call."""
        return self._loop

    def turn(self) -> None:
        """Run the flows that are ready, and schedule the next wakeup. A call within this call does nothing."""
        if self._is_turning or self._is_closing or self._error is not None or self._loop is None:
            return
        try:
            self._is_turning = True
            self.client.scheduler.run_ready()
        except BaseException as error:  # calls that wait must end with it
            if isinstance(error, KeyboardInterrupt | SystemExit):
                self._loop.call_soon(self.turn)  # the other flows continue, so that a consumer can leave its group
                raise  # Ctrl-C ends the program, as in any other callback of the event loop
            self._error = error
            self.client.crash(error)
            self._give_up(error)
            return
        finally:
            self._is_turning = False
        try:
            self._set_timer(self._loop)
        except (KeyboardInterrupt, SystemExit):
            self._loop.call_soon(self.turn)
            raise

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        when = self.client.scheduler.next_wakeup()
        # Timers that are due have not fired yet, or asyncio has dropped them because of Ctrl-C.
        if when is not None and (when < self._timer_due or self._timer_due <= self.client.clock()):
            self._timer_due = _NEVER  # until the next timers exist, even if Ctrl-C interrupts this
            for timer in self._timers:
                timer.cancel()
            fires_at = loop.time() + max(when - self.client.clock(), 0.0)
            self._timers = loop.call_at(fires_at, self._timer_fired), loop.call_at(fires_at, self._timer_fired)
            self._timer_due = when

    def _timer_fired(self) -> None:
        """Run the flows. A timer is kept when its wakeup is no longer necessary, for example after the response to a
        request. A timer that fires without effect costs less than a new timer after each event.

        Two timers call this. The first call usually sets the next timers, and this cancels the second call."""
        self._timer_due = _NEVER  # first: a Ctrl-C in between must not prevent the next timers
        if not self.is_closed:  # nor is this a forked child, whose event loop has a copy of the timer
            self.turn()

    def _give_up(self, error: BaseException) -> None:
        for waiter in list(self._running):
            if not waiter.done():
                waiter.set_exception(TransportError(f"the call was cancelled: {str(error) or repr(error)}"))
                waiter.exception()  # retrieved, also if Ctrl-C ends the event loop before the caller gets it

    def run_blocking(self, function: Callable[[], Any], done: Done) -> None:
        """Run a function on the loop's executor. `done` is called with its result on the loop, possibly twice."""
        assert self._loop is not None
        try:
            future = self._loop.run_in_executor(None, function)
        except RuntimeError as error:  # the executor was shut down, because the event loop ends
            refusal = TransportError(f"a function could not be run in a thread of the event loop: {error}")
            self.client.scheduler.call_soon(lambda: done(None, refusal))
            return
        self._keep(future)

        def ended(future: asyncio.Future[Any]) -> None:
            if future.cancelled() or self.is_closed:
                return
            error = future.exception()
            done(None if error else future.result(), error)  # only the first call counts
            self.turn()

        for _ in range(2):  # asyncio drops a callback that Ctrl-C interrupts at its first line
            future.add_done_callback(ended)

    def _keep(self, future: asyncio.Future[Any]) -> None:
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    def open(self, address: Address, connection: Connection) -> None:
        """Let asyncio resolve the host, and try its addresses in turn."""
        assert self._loop is not None
        task = self._loop.create_task(self._open(address, connection))
        self._keep(task)

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # by a program that cancels all tasks, as asyncio.run does at its end
                connection.closed(OSError(errno.ECANCELED, os.strerror(errno.ECANCELED)))
                self.turn()
            elif isinstance(error := task.exception(), KeyboardInterrupt | SystemExit):
                connection.opening_failed(error)
                self.turn()
            elif error is not None:
                log.error("%s: the connection could not be opened", connection.name, exc_info=error)
                connection.closed(error)
                self.turn()

        task.add_done_callback(ended)

    async def _open(self, address: Address, connection: Connection) -> None:
        assert self._loop is not None
        options = connection.network.options
        failure: Exception = OSError(errno.EADDRNOTAVAIL, NO_ADDRESS)
        try:
            connection.is_resolving = True
            try:
                family = options.address_family
                found = await self._loop.getaddrinfo(address.host, address.port, family=family, type=socket.SOCK_STREAM)
            except socket.gaierror as error:
                raise options.name_error(error) from None
            finally:
                connection.is_resolving = False
            for number, (family, _, _, _, where) in enumerate(found):
                if connection.is_closed:
                    return
                opening = self._loop.create_connection(
                    lambda: _Protocol(self, connection),
                    str(where[0]),
                    address.port,
                    family=family,
                    flags=socket.AI_NUMERICHOST,
                )
                try:
                    transport, protocol = await asyncio.wait_for(
                        opening, connection.seconds_for_address(len(found) - number)
                    )
                except TimeoutError:
                    failure = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
                except OSError as error:
                    failure = error
                else:
                    # asyncio also calls this, but drops its call if Ctrl-C comes at the first line.
                    self._loop.call_soon(protocol.connection_made, transport)
                    return
        except (OSError, ValueError, OverflowError) as error:  # a broker has reported an invalid host or port
            failure = error
        except RuntimeError as error:  # the executor was shut down, because the event loop ends
            failure = error
        connection.closed(failure)
        self.turn()


def _step(awaitable: Awaitable[None]) -> None:
    """Run an awaitable that waits for nothing."""
    with contextlib.suppress(StopIteration):
        next(awaitable.__await__())


class _Protocol(asyncio.BufferedProtocol):
    """Connects asyncio's transport with a connection."""

    def __init__(self, io_loop: AsyncioLoop, connection: Connection) -> None:
        self._io_loop = io_loop
        self._connection = connection
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._transport is None:
            self._transport = cast("asyncio.Transport", transport)  # those of uvloop are of another class
            try:
                self._connection.connected(self)
            except (KeyboardInterrupt, SystemExit) as error:
                self._connection.opening_failed(error)
                self.close()
                raise
        self._io_loop.turn()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._connection.received(nbytes)
        except (KeyboardInterrupt, SystemExit):
            self._connection.close(TransportError("the program was interrupted while a response was read"))
            raise
        self._io_loop.turn()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.closed(exc)
        self._io_loop.turn()

    def resume_writing(self) -> None:
        if not self.has_unsent():
            self._connection.all_sent()
            self._io_loop.turn()

    # What the connection calls

    def has_unsent(self) -> bool:
        """Return whether asyncio's transport keeps bytes, or has dropped some, in which case `connection_lost` follows
        soon."""
        if self._transport is None:
            return False
        if self._transport.is_closing():
            return True
        if not self._transport.get_write_buffer_size():
            return False
        # Without bytes, resume_writing is to be called. This also notes that bytes are kept, which writelines does not
        # do in Python 3.12.0 to 3.12.8 and 3.13.0 to 3.13.1.
        self._transport.set_write_buffer_limits(0)
        return True

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send as soon as possible."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def close(self) -> None:
        """Close immediately."""
        if self._transport is not None:
            self._transport.abort()
