# SPDX-License-Identifier: Apache-2.0
"""Flows: what a client does, written once as generators, run by a thread or by asyncio.

A flow yields effects and is sent what came of them; it never touches a socket, a clock or a lock:

    def end_transaction(...) -> Flow[Reply]:
        node = yield from cluster.coordinator(...)
        reply = yield from call(node, EndTxnRequest(...), timeout=30.0)
        yield from sleep(0.02)

All flows of a client run on one `kcodec.network.scheduler.Scheduler`, one step at a time: between two yields nothing
else runs, so flows share state without locks. Time comes as an argument (a `Clock`: monotonic seconds).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from kcodec.errors import one_line

T = TypeVar("T")

#: A clock gives monotonic seconds.
Clock = Callable[[], float]
#: Called once with what came of something: a value, or an error.
Done = Callable[[Any, BaseException | None], None]

#: Any known broker, the least busy first; before the first metadata, one of the bootstrap addresses.
ANY_NODE = -1
#: Of a host name, errors and logs show this many characters. RFC 1035 allows 253.
MAX_HOST_CHARACTERS = 255


class Address(NamedTuple):
    """A host and a port, as in bootstrap_servers."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the address for errors and logs. A broker chooses the names in metadata, so they may hold anything."""
        host = one_line(self.host, MAX_HOST_CHARACTERS)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class Reply(NamedTuple):
    """What came back: the response message, the version both spoke, the node asked (ANY_NODE: a bootstrap address)."""

    message: Any
    version: int
    node_id: int


@dataclass(frozen=True, slots=True)
class ByVersion:
    """A request whose fields depend on the version that is spoken: ``ByVersion(FindCoordinatorRequest, build)``.

    kind: the request's class; build: makes it, given the version.
    """

    kind: Any
    build: Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """Ask a broker; sent back is a `Reply`, or None for a request that has no answer (Produce with acks=0).

    node:            id of a broker, or ANY_NODE.
    request:         the message, or `ByVersion`; it is encoded when it is sent, with the highest version both sides and
                     these bounds allow.
    timeout:         seconds until RequestTimedOutError, counted from the call on (connecting included).
    lowest, highest: bounds on the version, beside those of the message class.
    channel:         calls of one channel to one node share a connection; a long poll has one of its own.
    max_response_bytes: a longer response is refused before it is received (LimitExceededError is then the cause of the
                     TransportError); None: the client's max_response_bytes.

    Raised into the flow: TransportError (`possibly_sent` says whether the broker may have got it), its
    RequestTimedOutError, AuthenticationError; UnsupportedError when no version suits both (nothing was sent).
    """

    node: int
    request: Any
    timeout: float
    lowest: int = 0
    highest: int = 32767
    expects_reply: bool = True
    channel: str = ""
    max_response_bytes: int | None = None

    @property
    def kind(self) -> Any:
        """The request's class."""
        return self.request.kind if type(self.request) is ByVersion else type(self.request)


@dataclass(frozen=True, slots=True)
class Sleep:
    """Go on after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when the signal is set, or after `timeout` seconds; sent back is whether it was set."""

    signal: Signal
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start another flow beside this one; sent back is its `Task`. An error that nobody joins goes to the log."""

    flow: Flow[Any]
    name: str


@dataclass(frozen=True, slots=True)
class Join:
    """Wait for a task; sent back is its result, or its error is raised. After `timeout` seconds: TimeoutError."""

    task: Task[Any]
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Blocking:
    """Run a function that may block (DNS, a token server) outside the loop; sent back is its result, or its error."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Perform:
    """For the network: `start(done)` begins something and returns how to give it up; ``done(value, error)`` ends it."""

    start: Callable[[Done], Callable[[], None]]


Effect = Call | Sleep | Wait | Spawn | Join | Blocking | Perform
Flow = Generator[Effect, Any, T]


class Signal:
    """Wakes the flows that wait for it. `set` is for the scheduler's own thread; a set while nobody waits is lost, so
    a flow looks at its condition first and waits then (nothing runs in between)."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[Callable[[], None]] = []

    def set(self) -> None:
        """Wake all that wait now."""
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def add_waiter(self, wake: Callable[[], None]) -> None:
        """For the scheduler."""
        self._waiters.append(wake)

    def drop_waiter(self, wake: Callable[[], None]) -> None:
        """For the scheduler: a wait that ended otherwise."""
        if wake in self._waiters:
            self._waiters.remove(wake)


class Task(Generic[T]):
    """A flow that runs: `done`, then `result` or `error`. `cancel()` closes the generator (its finally parts run)."""

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
        """Stop it where it waits; joining it then raises its error, `CancelledFlow`. Nothing happens if it is done."""
        if not self.done:
            self._on_cancel(self)

    def when_done(self, observer: Callable[[Task[T]], None]) -> None:
        """Call `observer` with the task, at once if it is done."""
        if self.done:
            observer(self)
        else:
            self._observers.append(observer)

    def drop_observer(self, observer: Callable[[Task[T]], None]) -> None:
        """A joiner that waits no more."""
        if observer in self._observers:
            self._observers.remove(observer)

    @property
    def is_observed(self) -> bool:
        """Whether somebody will hear of its end."""
        return bool(self._observers)

    def finish(self, result: T | None, error: BaseException | None) -> None:
        """For the scheduler."""
        self.done, self.result, self.error = True, result, error
        observers, self._observers = self._observers, []
        for observer in observers:
            observer(self)


class CancelledFlow(Exception):
    """Joined a task that was cancelled."""


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
    """`Call` as a flow: ``reply = yield from call(node, request, timeout=30.0)``."""
    return (yield Call(node, request, timeout, lowest, highest, expects_reply, channel, max_response_bytes))


def sleep(seconds: float) -> Flow[None]:
    """`Sleep` as a flow."""
    yield Sleep(seconds)


def wait(signal: Signal, timeout: float | None = None) -> Flow[bool]:
    """`Wait` as a flow: whether the signal came in time."""
    return bool((yield Wait(signal, timeout)))


def spawn(flow: Flow[T], name: str) -> Flow[Task[T]]:
    """`Spawn` as a flow: the task."""
    task: Task[T] = yield Spawn(flow, name)
    return task


def join(task: Task[T], timeout: float | None = None) -> Flow[T]:
    """`Join` as a flow: the task's result."""
    result: T = yield Join(task, timeout)
    return result


def blocking(function: Callable[[], T]) -> Flow[T]:
    """Run `function` where it may block (a worker thread) and go on with its result or its error."""
    result: T = yield Blocking(function)
    return result
