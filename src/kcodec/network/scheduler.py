# SPDX-License-Identifier: Apache-2.0
"""Runs flows, one step at a time, for an I/O loop that owns the thread, the sockets and the clock.

The I/O loop calls `run_ready` after every event, and at `next_wakeup` at the latest. The scheduler never blocks. All
calls come from one thread; other threads use the loop's `post`.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

from kcodec.errors import KcodecError
from kcodec.flow import (
    Blocking,
    Call,
    CancelledFlow,
    Clock,
    Done,
    Effect,
    Flow,
    InterruptedFlow,
    Join,
    Perform,
    Signal,
    Sleep,
    Spawn,
    StartCall,
    Task,
    Wait,
    interrupted,
)

T = TypeVar("T")
Cancel = Callable[[], None]
log = logging.getLogger("kcodec.client")
# Minimum number of cancelled timers that are removed from the heap at once.
LEAST_SWEEP = 256
#: Maximum number of rounds of `run_ready`. Usually, a few are enough.
MOST_ROUNDS = 10_000


class CallSender(Protocol):
    """Sends calls to brokers. `kcodec.network.connections.Network` implements it; tests use a script."""

    def start_call(self, call: Call, done: Done) -> Cancel:
        """Begin a call. `done` is called once with its result, unless the returned function was called before."""
        ...


class Timer:
    """An action at a time of the clock. `cancel()` revokes it."""

    __slots__ = ("_scheduler", "action", "when")

    def __init__(self, when: float, action: Callable[[], None], scheduler: Scheduler) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action
        self._scheduler = scheduler

    def cancel(self) -> None:
        """Cancel the action. Its entry in the heap is removed later."""
        if self.action is not None:
            self.action = None
            self._scheduler.timer_cancelled()

    def repeated(self, when: float) -> Timer:
        """Return another timer for the same action. This one must not be cancelled yet."""
        assert self.action is not None
        return self._scheduler.call_at(when, self.action)

    def fire(self) -> None:
        """Do the action, unless it was cancelled."""
        action = self.action
        if action is not None:
            action()
            self.action = None


class _Suspension:
    """A task that waits. Only the first call of `resume` or `abandon` has an effect."""

    __slots__ = ("cancel", "scheduler", "task")

    def __init__(self, scheduler: Scheduler, task: Task[Any]) -> None:
        self.scheduler: Scheduler | None = scheduler
        self.task = task
        self.cancel: Cancel | None = None

    def resume(self, value: Any, error: BaseException | None = None) -> None:
        scheduler = self.scheduler
        if scheduler is not None:
            scheduler._ready.append(partial(scheduler.advance, self, value, error))
            self.scheduler = self.cancel = None  # of a call, it refers to this object: no work for the collector

    def signalled(self) -> None:
        self.resume(True)

    def abandon(self) -> None:
        self.scheduler = None
        if self.cancel is not None:
            self.cancel()


class _StartedCall:
    """A call for which no flow waits. Only its first result counts, and none after `abandon`."""

    __slots__ = ("cancel", "done", "failed", "is_ended", "scheduler")

    def __init__(self, effect: StartCall, scheduler: Scheduler) -> None:
        self.done: Done | None = effect.done
        self.failed = effect.failed
        self.scheduler = scheduler
        self.is_ended = False
        self.cancel: Cancel | None = None

    def end(self, value: Any, error: BaseException | None) -> None:
        if not self.is_ended:
            # Append first: if Ctrl-C comes before the next line, the connection calls this again. A second call of
            # `_pass_on` has no effect.
            self.scheduler._ready.append(partial(self._pass_on, value, error))
            self.is_ended, self.cancel = True, None

    def _pass_on(self, value: Any, error: BaseException | None) -> None:
        if self.done is None:
            return
        self.scheduler.started_calls.discard(self)
        done, self.done = self.done, None  # after an interruption, it is not called again
        try:
            done(value, error)
        except Exception as failure:  # noqa: BLE001  the client raises it
            self.failed(failure)
        except BaseException as interruption:
            self.failed(interrupted("the handling of a response", interruption))
            raise

    def abandon(self) -> None:
        self.done = None
        self.scheduler.started_calls.discard(self)
        if self.cancel is not None:
            self.cancel()


class Scheduler:
    """The flows of one client.

    clock:        Returns monotonic seconds.
    network:      Sends calls.
    run_blocking: Runs a function on another thread.
    """

    def __init__(
        self, clock: Clock, network: CallSender, run_blocking: Callable[[Callable[[], Any], Done], None] | None = None
    ) -> None:
        self.clock = clock
        self.network = network
        self.run_blocking = run_blocking
        #: The actions of timers that are due, and the other actions.
        self._due: deque[Callable[[], None]] = deque()
        self._ready: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled_timers = 0
        self._numbers = count()
        self._suspensions: dict[Task[Any], _Suspension] = {}
        self.started_calls: set[_StartedCall] = set()

    # What I/O loops and the network use

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call `action` in this round of run_ready, or in the next."""
        self._ready.append(action)

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Call `action` at a time of the clock."""
        timer = Timer(when, action, self)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def timer_cancelled(self) -> None:
        """Count a cancelled timer, and remove cancelled timers from the heap. Most requests get a response long before
        their timeout."""
        self._cancelled_timers += 1
        if self._cancelled_timers > max(LEAST_SWEEP, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if entry[2].action is not None]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def run_ready(self) -> None:
        """Run timers that are due and actions that are ready, until there are none, or for MOST_ROUNDS rounds. A flow
        that repeatedly waits for 0 seconds then uses one core, but the client still reads its sockets and can end."""
        due, ready = self._due, self._ready
        for _ in range(MOST_ROUNDS):
            now = self.clock()
            while self._timers and (self._timers[0][0] <= now or self._timers[0][2].action is None):
                timer = self._timers[0][2]
                if timer.action is not None:
                    due.append(timer.fire)
                else:
                    self._cancelled_timers -= 1
                heapq.heappop(self._timers)
            if not (due or ready):
                return
            for actions in (due, ready):
                # An action is removed after it has returned. If Ctrl-C interrupts it, the next round calls it again,
                # and it must do only what it has not done yet.
                try:
                    for _ in range(len(actions)):
                        actions[0]()
                        actions.popleft()
                except Exception:
                    actions.popleft()
                    raise

    @property
    def has_ready(self) -> bool:
        """Whether actions are ready."""
        return bool(self._due or self._ready)

    def next_wakeup(self) -> float | None:
        """Return the time at which run_ready must be called again; None if only an event requires a call."""
        if self.has_ready:
            return self.clock()
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
            self._cancelled_timers -= 1
        return self._timers[0][0] if self._timers else None

    @property
    def tasks(self) -> list[Task[Any]]:
        """The tasks that are waiting."""
        return list(self._suspensions)

    def cancel_all(self) -> None:
        """Close every flow, when the I/O loop ends."""
        for task in self.tasks:
            task.cancel()
        for started in list(self.started_calls):
            started.abandon()

    # Flows

    def spawn(self, flow: Flow[T], name: str) -> Task[T]:
        """Start a flow, which `run_ready` runs."""
        task: Task[T] = Task(flow, name, self._cancel)
        suspension = _Suspension(self, task)
        suspension.resume(None)  # first, so that each registered task runs, even if Ctrl-C interrupts this
        self._suspensions[task] = suspension
        return task

    def _cancel(self, task: Task[Any]) -> None:
        suspension = self._suspensions.pop(task, None)
        if suspension is not None:
            suspension.abandon()
        elif getattr(task.flow, "gi_running", False):
            raise RuntimeError(f"the flow {task.name!r} cannot cancel itself while it runs")
        self._end(task, CancelledFlow(f"{task.name} was cancelled"))

    def _end(self, task: Task[Any], error: BaseException) -> None:
        try:
            task.flow.close()
        except KcodecError as outcome:  # what its caller must know, such as that the outcome is unknown
            error = outcome
        task.finish(None, error)

    def advance(self, suspension: _Suspension, value: Any, error: BaseException | None) -> None:
        """Resume a flow with the result that it waited for, and begin its next effect."""
        task = suspension.task
        if self._suspensions.get(task) is not suspension:
            return  # the flow was cancelled, or this is called again after an interruption
        try:
            try:
                del self._suspensions[task]
                while True:
                    effect = task.flow.send(value) if error is None else task.flow.throw(error)
                    value = error = None
                    if type(effect) is Spawn:
                        value = self.spawn(effect.flow, effect.name)
                        continue
                    if type(effect) is StartCall:
                        self._start_call(effect)
                        continue
                    break
                following = self._suspensions[task] = _Suspension(self, task)
                try:
                    following.cancel = self._begin(effect, following)
                except Exception as failure:  # noqa: BLE001  it is raised in the flow, and the others continue
                    following.resume(None, failure)
            except StopIteration as stop:
                task.finish(stop.value, None)
            except Exception as failure:
                if not (task.is_observed or isinstance(failure, CancelledFlow | InterruptedFlow)):
                    log.error(
                        "%s ended with an error that no caller was waiting for: %s",
                        task.name,
                        failure,
                        exc_info=failure,
                    )
                task.finish(None, failure)
        except BaseException as interruption:
            if not isinstance(interruption, Exception):  # such as KeyboardInterrupt; other flows may wait for this one
                begun = self._suspensions.pop(task, None)
                if begun is not None:
                    begun.abandon()
                self._end(task, interrupted(task.name, interruption))
            raise

    def _start_call(self, effect: StartCall) -> None:
        started = _StartedCall(effect, self)
        self.started_calls.add(started)
        cancel = self.network.start_call(effect.call, started.end)
        if not started.is_ended:
            started.cancel = cancel

    def _begin(self, effect: Effect, suspension: _Suspension) -> Cancel | None:
        """Start an effect, whose result resumes the suspension. Return a function that cancels it."""
        if isinstance(effect, Wait):
            return self._begin_wait(effect, suspension)
        if isinstance(effect, Call):
            return self.network.start_call(effect, suspension.resume)
        if isinstance(effect, Sleep):
            return self.call_at(self.clock() + effect.seconds, lambda: suspension.resume(None)).cancel
        if isinstance(effect, Join):
            return self._begin_join(effect, suspension)
        if isinstance(effect, Perform):
            return effect.start(suspension.resume)
        if isinstance(effect, Blocking):
            if self.run_blocking is None:
                raise RuntimeError("this scheduler has no worker for blocking functions")
            self.run_blocking(effect.function, suspension.resume)
            return None
        raise TypeError(f"{suspension.task.name} yielded {effect!r}, which is not an effect")

    def _begin_wait(self, effect: Wait, suspension: _Suspension) -> Cancel:
        if effect.timeout is None or effect.is_vague:
            if effect.timeout is not None:
                when, alarm = self.clock() + effect.timeout, effect.signal.alarm
                if alarm is None or alarm.action is None or alarm.when > when:
                    self._set_alarm(effect.signal, when)
            effect.signal.add_waiter(suspension.signalled)
            return partial(effect.signal.drop_waiter, suspension.signalled)

        def wake() -> None:
            timer.cancel()
            suspension.resume(True)

        def late() -> None:
            effect.signal.drop_waiter(wake)
            suspension.resume(False)

        def cancel() -> None:
            effect.signal.drop_waiter(wake)
            timer.cancel()

        timer = self.call_at(self.clock() + effect.timeout, late)
        effect.signal.add_waiter(wake)
        return cancel

    def _set_alarm(self, signal: Signal, when: float) -> None:
        """Set the signal at this time of the clock."""
        if signal.alarm is not None:
            signal.alarm.cancel()
        signal.alarm = self.call_at(when, signal.set)

    def _begin_join(self, effect: Join, suspension: _Suspension) -> Cancel:
        def ended(task: Task[Any]) -> None:
            if timer is not None:
                timer.cancel()
            suspension.resume(task.result, task.error)

        def late() -> None:
            effect.task.drop_observer(ended)
            suspension.resume(None, TimeoutError(f"{effect.task.name} did not finish within {effect.timeout} s"))

        def cancel() -> None:
            effect.task.drop_observer(ended)
            if timer is not None:
                timer.cancel()

        timer = None if effect.timeout is None else self.call_at(self.clock() + effect.timeout, late)
        effect.task.when_done(ended)
        return cancel
