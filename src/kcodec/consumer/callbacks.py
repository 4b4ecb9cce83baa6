# SPDX-License-Identifier: Apache-2.0
"""Functions of the application that a consumer calls while it polls: on_revoked, on_assigned, on_lost, and the
callbacks of commits.

They are called where the application polls, never on the loop, so that they may use the consumer (Kafka:
ConsumerRebalanceListenerInvoker). A flow that calls one waits until it has returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from kcodec.flow import Flow, Signal, wait


@dataclass(frozen=True, slots=True)
class RebalanceListener:
    """The application's functions for a rebalance, each called with a frozenset of TopicPartition. Without on_lost,
    on_revoked is called for lost partitions (as in Java)."""

    on_revoked: Callable[..., Any] | None = None
    on_assigned: Callable[..., Any] | None = None
    on_lost: Callable[..., Any] | None = None


class Work(Protocol):
    """The interface through which a poll waits. `ConsumerCore` and `GroupSession` implement it."""

    @property
    def waits_in_flow(self) -> bool:
        """See `ConsumerCore.waits_in_flow`."""
        ...

    def wait_for_work(self, timeout: float) -> Flow[Callback | None]:
        """See `ConsumerCore.wait_for_work`."""
        ...


@dataclass(slots=True, eq=False)
class Callback:
    """One call of a function of the application. `completed` is set when it has returned or was cancelled.

    queue: The queue that contained it, once its call has begun.
    outer: The callback that has made the call in which this callback is called, or None.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    is_completed: bool = False
    completed: Signal = field(default_factory=Signal)
    queue: CallbackQueue | None = None
    outer: Callback | None = None

    def call(self) -> Any:
        """Call the function on the thread or task that polls. The result may be awaitable."""
        return self.function(*self.arguments)

    def complete(self) -> None:
        """On the loop: note that the function has returned, or has raised an error, which poll then raises."""
        self.is_completed = True
        self.completed.set()


#: The last callback that was called in this thread or task. An asyncio task that a callback creates has it, too.
_last: ContextVar[Callback | None] = ContextVar("last callback", default=None)


def _running() -> Iterator[Callback]:
    """Yield the callbacks in which this code runs, from the innermost one on."""
    callback = _last.get()
    while callback is not None:
        if not callback.is_completed:
            yield callback
        callback = callback.outer


class CallbackQueue:
    """The callbacks to call, in order.

    posted:    Set on the loop when there are callbacks.
    interrupt: Also called then, because an iteration does not wait for `posted`.
    """

    def __init__(self, posted: Signal, interrupt: Callable[[], None]) -> None:
        self.waiting: deque[Callback] = deque()
        self._posted = posted
        self._interrupt = interrupt
        self._current: Callback | None = None

    @property
    def is_calling(self) -> bool:
        """Whether a function of the application is running."""
        return self._current is not None and not self._current.is_completed

    def put(self, function: Callable[..., Any], *arguments: Any) -> Callback:
        """Queue a callback without waiting for it."""
        callback = Callback(function, arguments)
        self.waiting.append(callback)
        self._interrupt()
        self._posted.set()
        return callback

    def begin(self, callback: Callback) -> None:
        """Any thread: remove a callback from the queue, immediately before its call, so that an interrupted poll loses
        none."""
        callback.queue, callback.outer = self, next(_running(), None)
        self._current = callback
        _last.set(callback)
        with suppress(ValueError):  # close takes them out itself
            self.waiting.remove(callback)

    def callers(self) -> tuple[Callback, ...]:
        """Any thread: return the callbacks in which this code runs. On another thread than the loop's, some may have
        just returned; on the loop, `is_completed` then says so."""
        return tuple(callback for callback in _running() if callback.queue is self)

    def call(self, function: Callable[..., Any] | None, *arguments: Any) -> Flow[None]:
        """Queue a callback, and wait until it has returned."""
        if function is not None:
            yield from self.wait_for(self.put(function, *arguments))

    def wait_for(self, callback: Callback) -> Flow[None]:
        """Wait until a callback has returned. If this flow is cancelled, do not call it any more."""
        try:
            while not callback.is_completed:
                yield from wait(callback.completed)
        finally:
            if not callback.is_completed and callback in self.waiting:
                self.waiting.remove(callback)
