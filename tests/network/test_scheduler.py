# SPDX-License-Identifier: Apache-2.0
"""The scheduler of flows, in virtual time: what each effect does, and what is left when a task is cancelled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from interrupted_calls import interrupted

from kcodec.flow import (
    Call,
    CancelledFlow,
    Flow,
    InterruptedFlow,
    Signal,
    Sleep,
    StartCall,
    Task,
    Wait,
    call,
    join,
    keep_running,
    sleep,
    spawn,
    wait,
)
from kcodec.network.connection import _PendingCall
from kcodec.network.metrics import Gauge, checked_metrics, report_gauges
from kcodec.network.scheduler import Scheduler, _StartedCall


class Script:
    """A network whose calls are answered by hand; and a clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[Call, Callable[[Any, BaseException | None], None]]] = []
        self.given_up = 0
        self.scheduler = Scheduler(lambda: self.now, self)

    def start_call(self, call: Call, done: Callable[[Any, BaseException | None], None]) -> Callable[[], None]:
        self.calls.append((call, done))

        def give_up() -> None:
            self.given_up += 1

        return give_up

    def run(self, until: float) -> None:
        self.scheduler.run_ready()
        while (when := self.scheduler.next_wakeup()) is not None and when <= until:
            self.now = when
            self.scheduler.run_ready()
        self.now = until


def test_a_flow_sleeps_calls_and_returns() -> None:
    script = Script()

    def flow() -> Flow[str]:
        yield from sleep(2.0)
        reply = yield from call(3, "request", timeout=1.0)
        return f"{reply} at {script.now}"

    task = script.scheduler.spawn(flow(), "flow")
    script.run(5.0)
    assert not task.done and script.calls[0][0].node == 3
    script.calls[0][1]("reply", None)
    script.run(5.0)
    assert task.result == "reply at 5.0"


def test_an_error_of_a_call_is_raised_where_the_flow_waits() -> None:
    script = Script()

    def flow() -> Flow[str]:
        try:
            yield from call(3, "request", timeout=1.0)
        except ConnectionError as error:
            return f"seen: {error}"
        return "not seen"

    task = script.scheduler.spawn(flow(), "flow")
    script.run(0.0)
    script.calls[0][1](None, ConnectionError("cut"))
    script.run(0.0)
    assert task.result == "seen: cut"


@pytest.mark.parametrize(("set_at", "expected"), [(1.0, (True, 1.0)), (9.0, (False, 3.0))])
def test_wait_ends_by_the_signal_or_by_its_time(set_at: float, expected: tuple[bool, float]) -> None:
    script = Script()
    signal = Signal()

    def flow() -> Flow[tuple[bool, float]]:
        came = yield from wait(signal, 3.0)
        return came, script.now

    task = script.scheduler.spawn(flow(), "flow")
    script.scheduler.call_at(set_at, signal.set)
    script.run(10.0)
    assert task.result == expected


def test_join_gives_the_result_the_error_or_the_time_out() -> None:
    script = Script()

    def child(seconds: float, error: Exception | None) -> Flow[float]:
        yield from sleep(seconds)
        if error:
            raise error
        return seconds

    def flow() -> Flow[list[object]]:
        seen: list[object] = []
        quick: Task[float] = yield from spawn(child(1.0, None), "quick")
        seen.append((yield from join(quick)))
        bad: Task[float] = yield from spawn(child(1.0, ValueError("bad")), "bad")
        try:
            yield from join(bad)
        except ValueError as error:
            seen.append(str(error))
        slow: Task[float] = yield from spawn(child(9.0, None), "slow")
        try:
            yield from join(slow, timeout=2.0)
        except TimeoutError:
            seen.append(script.now)
        slow.cancel()
        try:
            yield from join(slow)
        except CancelledFlow:
            seen.append("cancelled")
        return seen

    task = script.scheduler.spawn(flow(), "flow")
    script.run(20.0)
    assert task.result == [1.0, "bad", 4.0, "cancelled"]
    assert script.scheduler.tasks == []


def test_cancelling_runs_the_finally_part_and_gives_the_call_up() -> None:
    script = Script()
    cleaned = []

    def flow() -> Flow[None]:
        try:
            yield from call(1, "request", timeout=1.0)
        finally:
            cleaned.append(True)

    task = script.scheduler.spawn(flow(), "flow")
    script.run(0.0)
    task.cancel()
    assert task.done and cleaned == [True] and script.given_up == 1
    script.calls[0][1]("too late", None)
    script.run(1.0)
    assert isinstance(task.error, CancelledFlow)


@pytest.mark.parametrize("is_caught", [True, False])
def test_an_effect_that_cannot_begin_fails_its_flow_only(is_caught: bool) -> None:
    """The error came out of run_ready, which ended the client with all its flows."""
    script = Script()

    def flow() -> Flow[str]:
        try:
            yield Sleep("1")  # type: ignore[arg-type]
        except TypeError:
            if not is_caught:
                raise
        yield from sleep(1.0)
        return "ended"

    task, other = script.scheduler.spawn(flow(), "flow"), script.scheduler.spawn(sleep(0.5), "other")
    task.when_done(lambda _: None)
    script.run(5.0)
    assert other.done and other.error is None
    assert task.result == "ended" if is_caught else isinstance(task.error, TypeError)


def test_an_interruption_ends_its_flow_and_no_other() -> None:
    script = Script()
    closed: list[str] = []

    def interrupted_flow() -> Flow[None]:
        try:
            yield from sleep(1.0)
            raise KeyboardInterrupt
        finally:
            closed.append("interrupted")

    def other() -> Flow[float]:
        yield from sleep(1.0)
        yield from sleep(1.0)
        return script.now

    def waiting(task: Task[None]) -> Flow[str]:
        try:
            yield from join(task)
        except InterruptedFlow as error:
            return str(error).partition(";")[0]
        return "no error"

    interrupted_task = script.scheduler.spawn(interrupted_flow(), "first")
    others: list[Task[Any]] = [script.scheduler.spawn(other(), "second")]
    others.append(script.scheduler.spawn(waiting(interrupted_task), "third"))
    with pytest.raises(KeyboardInterrupt):
        script.run(5.0)
    assert closed == ["interrupted"] and interrupted_task.done
    script.run(5.0)
    text = "a step of this client (first) was interrupted by KeyboardInterrupt()"
    assert [task.result for task in others] == [2.0, text]


def test_flows_that_are_interrupted_anywhere_all_end() -> None:
    """Each flow ends by itself, at the latest when the flow for which it waits has ended."""

    def child() -> Flow[int]:
        yield from sleep(0.0)
        return 1

    def failing() -> Flow[int]:
        yield from wait(Signal(), 0.0)
        raise ValueError("expected")

    def parent(flow: Flow[int]) -> Flow[int]:
        task = yield from spawn(flow, "child")
        try:
            return (yield from join(task))
        except ValueError:
            return 2

    for at in itertools.count():
        script = Script()
        flows = [parent(child()), parent(failing()), child()]
        tasks = [script.scheduler.spawn(flow, f"flow {number}") for number, flow in enumerate(flows)]
        is_interrupted = interrupted(script.scheduler.run_ready, at)
        script.run(1.0)
        assert all(task.done for task in tasks), f"at {at}: {[task.name for task in tasks if not task.done]}"
        if not is_interrupted:
            break
    assert at > 100
    assert [task.result for task in tasks] == [1, 2, 1]


def test_an_action_that_is_repeated_after_an_interruption_resumes_no_other_effect() -> None:
    script = Script()

    class Interrupting:
        """An action during which the flow begins its next effect, before Ctrl-C arrives."""

        def __init__(self) -> None:
            self.is_first = True
            self.action = script.scheduler._ready.popleft()

        def __call__(self) -> None:
            self.action()
            if self.is_first:
                self.is_first = False
                raise KeyboardInterrupt

    def flow() -> Flow[float]:
        yield from sleep(1.0)
        return script.now

    task = script.scheduler.spawn(flow(), "flow")
    script.scheduler._ready.append(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        script.scheduler.run_ready()
    script.run(5.0)
    assert task.result == 1.0


def test_a_flow_that_is_kept_running_starts_again_after_an_interruption() -> None:
    script = Script()
    starts: list[float] = []

    def background() -> Flow[str]:
        starts.append(script.now)
        yield from sleep(1.0)
        if len(starts) < 3:
            raise KeyboardInterrupt
        return "ended"

    task = script.scheduler.spawn(keep_running(background, "background"), "keeper")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            script.run(5.0)
    script.run(5.0)
    assert task.result == "ended" and starts == [0.0, 1.0, 2.0]


def test_a_client_that_is_closed_immediately_reports_its_last_gauges() -> None:
    """The flow that reports them each second is closed before its first step."""
    reports: list[Gauge] = []
    script = Script()
    metrics = checked_metrics(cast(Any, SimpleNamespace(count=print, latency=print, gauge=print)))
    flow = report_gauges(metrics, reports.append)
    script.scheduler.spawn(flow, "metrics")
    script.scheduler._ready.popleft()()
    assert not reports
    script.scheduler.cancel_all()
    assert len(reports) == 1


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_flow_that_is_kept_running_ends_with_its_keeper(is_cancelled: bool) -> None:
    script = Script()
    closed: list[float] = []

    def background() -> Flow[None]:
        try:
            yield from sleep(1.0)
            raise ValueError("expected")
        finally:
            closed.append(script.now)

    task = script.scheduler.spawn(keep_running(background, "background"), "keeper")
    task.when_done(lambda _: None)
    script.run(0.5)
    if is_cancelled:
        task.cancel()
    script.run(5.0)
    assert closed == [0.5 if is_cancelled else 1.0] and not script.scheduler.tasks
    assert isinstance(task.error, CancelledFlow if is_cancelled else ValueError)


def test_an_interrupted_signal_wakes_all_flows() -> None:
    for at in itertools.count():
        script, signal = Script(), Signal()
        tasks = [script.scheduler.spawn(wait(signal), f"flow {number}") for number in range(3)]
        script.scheduler.run_ready()
        script.scheduler.call_soon(signal.set)
        is_interrupted = interrupted(script.scheduler.run_ready, at)
        script.run(1.0)
        assert all(task.done for task in tasks), f"at {at}: {[task.name for task in tasks if not task.done]}"
        if not is_interrupted:
            break
    assert at > 20


def test_an_interrupted_signal_registers_a_waiter_once() -> None:
    """Waiters of clients register themselves again when they are called. `drop_waiter` then removes them."""
    for at in itertools.count():
        signal, calls = Signal(), list[str]()

        def again(signal: Signal = signal, calls: list[str] = calls) -> None:
            signal.add_waiter(again)
            calls.append("again")

        signal.add_waiter(again)
        signal.add_waiter(partial(calls.append, "other"))
        is_interrupted = interrupted(signal.set, at)
        signal.drop_waiter(again)
        calls.clear()
        signal.set()
        assert "again" not in calls, f"at {at}"
        if not is_interrupted:
            break
    assert at > 3


def test_a_call_whose_end_is_interrupted_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    ends: list[object] = []
    request = Call(3, "request", timeout=1.0)
    started = _StartedCall(StartCall(request, lambda value, _: ends.append(value), ends.append), script.scheduler)
    pending = _PendingCall(request, started.end, started=0.0)

    def interrupted_partial(*_: object) -> Callable[[], None]:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("kcodec.network.scheduler.partial", interrupted_partial)
    reply: Any = "reply"
    with pytest.raises(KeyboardInterrupt):
        pending.finish(reply, None)
    script.run(1.0)
    assert ends == ["reply"]


def test_an_action_that_fails_is_not_repeated() -> None:
    script = Script()
    calls: list[str] = []

    def failing() -> None:
        calls.append("failing")
        raise ValueError("expected")

    script.scheduler.call_soon(failing)
    script.scheduler.call_soon(lambda: calls.append("next"))
    with pytest.raises(ValueError, match="expected"):
        script.scheduler.run_ready()
    script.scheduler.run_ready()
    assert calls == ["failing", "next"]


def test_an_error_that_is_not_joined_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()

    def flow() -> Flow[None]:
        yield from sleep(0.0)
        raise ValueError("lost")

    script.scheduler.spawn(flow(), "the flow")
    script.run(1.0)
    assert "the flow ended with an error that no caller was waiting for: lost" in caplog.text


def test_many_flows_take_turns_in_the_order_of_their_times() -> None:
    script = Script()
    order: list[int] = []

    def flow(number: int) -> Flow[None]:
        yield from sleep(1.0 + number % 3)
        order.append(number)

    for number in range(9):
        script.scheduler.spawn(flow(number), f"flow {number}")
    script.run(10.0)
    assert order == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def vague_waits(script: Script, signal: Signal, woken: list[float], *seconds: float) -> Flow[None]:
    for timeout in seconds:
        yield Wait(signal, timeout, is_vague=True)
        woken.append(script.now)


def test_a_vague_wait_keeps_its_timer_for_the_next_one() -> None:
    """Nine waits that the signal ends need one timer, and the tenth ends by it."""
    script, signal = Script(), Signal()
    woken: list[float] = []
    script.scheduler.spawn(vague_waits(script, signal, woken, *[5.0] * 10), "waits")
    for number in range(9):
        script.run(0.1 * number)
        signal.set()
        script.run(0.1 * number)
    assert len(woken) == 9 and len(script.scheduler._timers) == 1 and signal.alarm_at == 5.0
    script.run(9.0)
    assert woken[9:] == [5.0] and signal.alarm_at == float("inf")


def test_a_vague_wait_is_never_late() -> None:
    """A shorter wait replaces the timer. A longer one finds it early, and the flow can wait again."""
    script, signal = Script(), Signal()
    woken: list[float] = []
    script.scheduler.spawn(vague_waits(script, signal, woken, 5.0, 1.0, 30.0, 2.0), "waits")
    script.run(0.5)
    signal.set()
    script.run(0.6)
    assert woken == [0.5] and signal.alarm_at == 1.5
    script.run(10.0)
    assert woken == [0.5, 1.5]
    signal.set()
    script.run(60.0)
    assert woken == [0.5, 1.5, 10.0, 12.0] and script.scheduler.next_wakeup() is None


def test_an_early_timer_of_a_vague_wait_can_be_cancelled() -> None:
    """The next wait then sets another timer. A timer that is later stays."""
    script, signal = Script(), Signal()
    woken: list[float] = []
    signal.cancel_alarm_before(1.0)
    script.scheduler.spawn(vague_waits(script, signal, woken, 5.0, 30.0), "waits")
    script.run(0.5)
    signal.cancel_alarm_before(4.0)
    assert signal.alarm_at == 5.0
    signal.cancel_alarm_before(30.5)
    signal.set()
    script.run(60.0)
    assert woken == [0.5, 30.5]


def test_vague_waits_of_two_flows_share_a_timer() -> None:
    """The timer wakes both, and each of them is woken no later than at its own time."""
    script, signal = Script(), Signal()
    short: list[float] = []
    long: list[float] = []
    one = script.scheduler.spawn(vague_waits(script, signal, short, 1.0), "short")
    script.scheduler.spawn(vague_waits(script, signal, long, 3.0, 2.0), "long")
    script.run(0.5)
    one.cancel()
    script.run(60.0)
    assert short == [] and long == [1.0, 3.0]


def test_cancelled_timers_do_not_pile_up() -> None:
    script = Script()
    fired: list[int] = []
    for number in range(5000):
        timer = script.scheduler.call_at(30.0 + number, lambda: fired.append(-1))
        if number % 500:
            timer.cancel()
        else:
            timer.action = lambda number=number: fired.append(number)
    assert len(script.scheduler._timers) < 1000
    script.run(10_000.0)
    assert fired == list(range(0, 5000, 500))
    assert script.scheduler._cancelled_timers == 0 and script.scheduler._timers == []


def start_call(ends: list[Any], raises: BaseException | None = None) -> Flow[str]:
    def done(reply: Any, error: BaseException | None) -> None:
        ends.append((reply, error))
        if raises is not None:
            raise raises

    yield StartCall(Call(3, "request", 1.0), done, ends.append)
    return "went on"


def test_a_flow_goes_on_while_a_started_call_is_under_way() -> None:
    script, ends = Script(), list[Any]()
    task = script.scheduler.spawn(start_call(ends), "flow")
    script.run(0.0)
    assert task.result == "went on" and not ends
    script.calls[0][1]("reply", None)
    script.calls[0][1]("late", None)
    script.run(0.0)
    assert ends == [("reply", None)]
    script.scheduler.cancel_all()
    assert script.given_up == 0


@pytest.mark.parametrize("has_reply", [True, False])
def test_a_started_call_does_not_end_after_cancel_all(has_reply: bool) -> None:
    """Nor if its reply has come, and was not handled yet."""
    script, ends = Script(), list[Any]()
    script.scheduler.spawn(start_call(ends), "flow")
    script.run(0.0)
    if has_reply:
        script.calls[0][1]("reply", None)
    script.scheduler.cancel_all()
    script.calls[0][1]("reply", None)
    script.run(0.0)
    assert ends == [] and script.given_up == (not has_reply)


def test_an_error_at_the_end_of_a_started_call_is_reported() -> None:
    script, ends = Script(), list[Any]()
    error = ValueError("broken")
    script.scheduler.spawn(start_call(ends, error), "flow")
    script.run(0.0)
    script.calls[0][1]("reply", None)
    script.run(0.0)
    assert ends == [("reply", None), error]


def test_an_interruption_at_the_end_of_a_started_call_is_reported_once() -> None:
    script, ends = Script(), list[Any]()
    script.scheduler.spawn(start_call(ends, KeyboardInterrupt()), "flow")
    script.run(0.0)
    script.calls[0][1]("reply", None)
    with pytest.raises(KeyboardInterrupt):
        script.run(0.0)
    script.run(0.0)
    response, failure = ends
    assert response == ("reply", None) and isinstance(failure, InterruptedFlow)
    text = "a step of this client (the handling of a response) was interrupted by KeyboardInterrupt()"
    assert str(failure).startswith(text)


def test_a_started_call_that_has_failed_does_not_end_again() -> None:
    """Ctrl-C comes at each point while the response is passed on."""
    for at in itertools.count():
        script, ends = Script(), list[Any]()
        script.scheduler.spawn(start_call(ends), "flow")
        script.run(0.0)
        script.calls[0][1]("reply", None)
        is_interrupted = interrupted(script.scheduler.run_ready, at)
        script.run(0.0)
        response = ("reply", None)
        assert ends and response not in ends[1:], f"at {at}"
        assert len(ends) <= 1 + (ends[0] == response), f"at {at}"
        if not is_interrupted:
            break
    assert ends == [response] and at > 5


def test_a_flow_that_never_waits_leaves_time_for_sockets() -> None:
    """run_ready would never return, so no response would be read and no call of the client would end."""
    script, rounds = Script(), 0

    def flow() -> Flow[None]:
        nonlocal rounds
        while True:
            rounds += 1
            yield from sleep(0.0)

    task = script.scheduler.spawn(flow(), "flow")
    script.scheduler.run_ready()
    assert rounds > 1 and not task.done
    assert script.scheduler.next_wakeup() == script.now, "it continues after the sockets"
    before = rounds
    script.scheduler.run_ready()
    assert rounds > before
    task.cancel()
    script.scheduler.run_ready()
    assert script.scheduler.next_wakeup() is None
