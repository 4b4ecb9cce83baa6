# SPDX-License-Identifier: Apache-2.0
"""Flows: the protocols of a client as generators, which run on a thread or on asyncio.

A flow yields effects and receives their results. It never uses a socket, a clock or a lock:

    def end_transaction(...) -> Flow[Reply]:
        node = yield from cluster.coordinators.find(...)
        reply = yield from call(node, EndTxnRequest(...), timeout=30.0)
        yield from sleep(0.02)

All flows of a client run on one `kcodec.network.scheduler.Scheduler`, one step at a time. Nothing else runs between two
yields, so that flows share state without locks. Time is an argument (a `Clock`, in monotonic seconds). Effects are
plain classes. Dataclasses take longer to create and to import (docs/design/network.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

from kcodec.errors import TransportError, one_line

T = TypeVar("T")

#: A clock gives monotonic seconds.
Clock = Callable[[], float]
#: Called once with what came of something: a value, or an error.
Done = Callable[[Any, BaseException | None], None]

_NEVER = float("inf")
#: Any known broker, the least busy first; before the first metadata, one of the bootstrap addresses.
ANY_NODE = -1
#: Of a host name, errors and logs show this many characters. RFC 1035 allows 253.
MAX_HOST_CHARACTERS = 255


class Address(NamedTuple):
    """A host and a port, as in bootstrap_servers."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the address for errors and logs, escaped, as metadata of a broker can contain any host name."""
        host = one_line(self.host, MAX_HOST_CHARACTERS)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class Reply(NamedTuple):
    """A response: the message, the version of both, and the node (ANY_NODE: a bootstrap address)."""

    message: Any
    version: int
    node_id: int


class ByVersion:
    """A request whose fields depend on its version: ``ByVersion(FindCoordinatorRequest, build)``.

    kind: Class of the request. build: Creates it for a version.
    """

    __slots__ = ("build", "kind")

    def __init__(self, kind: Any, build: Callable[[int], Any]) -> None:
        self.kind = kind
        self.build = build


class Call:
    """Send a request to a broker; the result is a `Reply`, or None if there is no response (Produce with acks=0).

    node:            Id of a broker, or ANY_NODE.
    request:         The message, or `ByVersion`. It is encoded when it is sent, with the highest version that both
                     sides and these bounds allow.
    timeout:         Seconds until RequestTimedOutError, from the call on (connecting included).
    lowest, highest: Bounds on the version, in addition to those of the message class.
    channel:         Calls on one channel to one node share a connection; a long poll has its own channel.
    max_response_bytes: A longer response is refused before it is received (LimitExceededError is then the cause of the
                     TransportError); None: the client's max_response_bytes.

    Errors raised in the flow: TransportError (`possibly_sent` says whether the broker may have received the request)
    and its subclasses RequestTimedOutError and AuthenticationError; UnsupportedError if no version fits both sides
    (nothing was sent).
    """

    __slots__ = ("channel", "expects_reply", "highest", "lowest", "max_response_bytes", "node", "request", "timeout")

    def __init__(
        self,
        node: int,
        request: Any,
        timeout: float,
        lowest: int = 0,
        highest: int = 32767,
        expects_reply: bool = True,
        channel: str = "",
        max_response_bytes: int | None = None,
    ) -> None:
        self.node = node
        self.request = request
        self.timeout = timeout
        self.lowest = lowest
        self.highest = highest
        self.expects_reply = expects_reply
        self.channel = channel
        self.max_response_bytes = max_response_bytes

    @property
    def kind(self) -> Any:
        """Class of the request."""
        return self.request.kind if type(self.request) is ByVersion else type(self.request)


class StartCall:
    """Begin a call, and continue at once. It costs less than a flow for the call.

    done:   Called with the reply or the error, but not if the client ends before.
    failed: Called with the error if `done` raises one. If Ctrl-C in asyncio has interrupted `done`, the error is an
            InterruptedFlow, and `done` is not called again.
    """

    __slots__ = ("call", "done", "failed")

    def __init__(self, call: Call, done: Done, failed: Callable[[BaseException], None]) -> None:
        self.call = call
        self.done = done
        self.failed = failed


class Sleep:
    """Continue after a number of seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Wait:
    """Continue when the signal is set, or after `timeout` seconds; the result is whether it was set.

    is_vague: the flow may also be woken earlier, and the result is always True. The timer of such a wait stays for the
    next one, which costs less than a new one for each wait that ends long before its timeout.
    """

    __slots__ = ("is_vague", "signal", "timeout")

    def __init__(self, signal: Signal, timeout: float | None, is_vague: bool = False) -> None:
        self.signal = signal
        self.timeout = timeout
        self.is_vague = is_vague


class Spawn:
    """Start another flow; the result is its `Task`. An error is logged if the task is not joined."""

    __slots__ = ("flow", "name")

    def __init__(self, flow: Flow[Any], name: str) -> None:
        self.flow = flow
        self.name = name


class Join:
    """Wait for a task; the result is that of the task, or its error is raised. TimeoutError after `timeout` seconds."""

    __slots__ = ("task", "timeout")

    def __init__(self, task: Task[Any], timeout: float | None) -> None:
        self.task = task
        self.timeout = timeout


class Blocking:
    """Run a function that may block (DNS, a token server) on another thread; the result is its result, or its error."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function


class Perform:
    """Internal to the network: `start(done)` begins an operation and returns a function that cancels it.

    ``done(value, error)`` ends the operation.
    """

    __slots__ = ("start",)

    def __init__(self, start: Callable[[Done], Callable[[], None]]) -> None:
        self.start = start


Effect = Call | StartCall | Sleep | Wait | Spawn | Join | Blocking | Perform
Flow = Generator[Effect, Any, T]


class Signal:
    """A signal that wakes the flows that wait for it. Only the scheduler's thread may call `set`.

    alarm: for the scheduler, a timer that sets it.

    Setting it has no effect if no flow waits: a flow checks its condition first and then waits (nothing runs in
    between).
    """

    __slots__ = ("_waiters", "alarm")

    def __init__(self) -> None:
        #: In the order of their registration, which a dictionary keeps.
        self._waiters: dict[Callable[[], None], None] = {}
        self.alarm: Any = None

    @property
    def alarm_at(self) -> float:
        """The time of the clock at which the timer of a wait with `is_vague` sets the signal; infinity without one."""
        alarm = self.alarm
        return alarm.when if alarm is not None and alarm.action is not None else _NEVER

    def cancel_alarm_before(self, when: float) -> None:
        """Cancel the timer of an earlier wait with `is_vague` if it is due before this time."""
        if self.alarm_at < when:
            self.alarm.cancel()

    def delay_alarm(self, when: float) -> None:
        """Let the timer of a wait with `is_vague` set the signal at this later time. There must be such a timer."""
        timer, self.alarm = self.alarm, self.alarm.repeated(when)
        timer.cancel()

    def set(self) -> None:
        """Wake all flows that wait now."""
        waiters = self._waiters
        if waiters:
            self._waiters = {}
            try:
                for wake in waiters:
                    wake()
            except (KeyboardInterrupt, SystemExit):  # in asyncio; a second call of a waiter does no harm
                for wake in waiters:
                    wake()
                raise

    def add_waiter(self, wake: Callable[[], None]) -> None:
        """For the scheduler. A waiter that is present is not added again."""
        self._waiters[wake] = None

    def drop_waiter(self, wake: Callable[[], None]) -> None:
        """Remove a waiter. Called by the scheduler when a wait ended otherwise."""
        self._waiters.pop(wake, None)


class Task(Generic[T]):
    """A running flow: `done`, then `result` or `error`. `cancel()` closes the generator, whose finally blocks run."""

    __slots__ = ("_observers", "_on_cancel", "done", "error", "flow", "name", "result")

    def __init__(self, flow: Flow[T], name: str, on_cancel: Callable[[Task[T]], None]) -> None:
        self.flow = flow
        self.name = name
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self._observers: list[Callable[[Task[T]], None]] = []
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        """Stop the flow where it waits; joining it then raises CancelledFlow. No effect if it is done."""
        if not self.done:
            self._on_cancel(self)

    def when_done(self, observer: Callable[[Task[T]], None]) -> None:
        """Call `observer` with the task, at once if it is done."""
        if self.done:
            observer(self)
        else:
            self._observers.append(observer)

    def drop_observer(self, observer: Callable[[Task[T]], None]) -> None:
        """Remove an observer that no longer waits."""
        if observer in self._observers:
            self._observers.remove(observer)

    @property
    def is_observed(self) -> bool:
        """Whether its end is observed."""
        return bool(self._observers)

    def finish(self, result: T | None, error: BaseException | None) -> None:
        """For the scheduler. If Ctrl-C interrupts this method, a second call keeps the result and calls the remaining
        observers. The observer that was interrupted is called again."""
        if not self.done:
            self.result, self.error, self.done = result, error, True
        observers = self._observers
        while observers:
            observers[0](self)
            del observers[0]


class CancelledFlow(Exception):
    """The joined task was cancelled."""


class InterruptedFlow(TransportError):
    """A call or background work of a client was interrupted, for example by Ctrl-C in asyncio. The rest of the work is
    not done."""


#: The end of the text of an InterruptedFlow.
OTHER_CLIENT = "; if calls keep failing, create another client"


def interrupted(what: str, interruption: BaseException) -> InterruptedFlow:
    """Return the error of a flow, or of the handling of a response, that was interrupted."""
    text = f"a step of this client ({what}) was interrupted by {interruption!r}{OTHER_CLIENT}"
    return InterruptedFlow(text, possibly_sent=True)


def call(
    node: int,
    request: Any,
    *,
    timeout: float,
    lowest: int = 0,
    highest: int = 32767,
    expects_reply: bool = True,
    channel: str = "",
    max_response_bytes: int | None = None,
) -> Flow[Any]:
    """Send a request, as `Call`: ``reply = yield from call(node, request, timeout=30.0)``."""
    return (yield Call(node, request, timeout, lowest, highest, expects_reply, channel, max_response_bytes))


def sleep(seconds: float) -> Flow[None]:
    """Wait for a number of seconds, as `Sleep`."""
    yield Sleep(seconds)


def wait(signal: Signal, timeout: float | None = None) -> Flow[bool]:
    """Wait for a signal, as `Wait`; return whether it came in time."""
    return bool((yield Wait(signal, timeout)))


def spawn(flow: Flow[T], name: str) -> Flow[Task[T]]:
    """Start a flow, as `Spawn`; return its task."""
    task: Task[T] = yield Spawn(flow, name)
    return task


def join(task: Task[T], timeout: float | None = None) -> Flow[T]:
    """Wait for a task, as `Join`; return its result."""
    result: T = yield Join(task, timeout)
    return result


def blocking(function: Callable[[], T]) -> Flow[T]:
    """Run a function on a worker thread and return its result, or raise its error."""
    result: T = yield Blocking(function)
    return result


def keep_running(start: Callable[[], Flow[T]], name: str) -> Flow[T]:
    """Run a background flow to its end, and start it again whenever Ctrl-C in asyncio has interrupted it."""
    while True:
        task = yield from spawn(start(), name)
        try:
            return (yield from join(task))
        except InterruptedFlow:
            continue
        finally:
            task.cancel()
