# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in asyncio, anywhere in the calls of a transactional producer: programs that catch KeyboardInterrupt can
continue. Against a scripted coordinator, in virtual time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any

import pytest
from transaction_script import BOTH, GROUP, OFFSETS, ORDERS, Buffer, World, begun, make_manager
from unnarrowed import unnarrowed

from kcodec import transactions
from kcodec.errors import (
    AbortableTransactionError,
    EncodeError,
    TransactionStateError,
    TransportError,
    UnknownOutcomeError,
)
from kcodec.flow import Call, Done, Flow, InterruptedFlow, Task, Wait
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions import requests
from kcodec.transactions.commit_result import CommitResult
from kcodec.transactions.context import ProducerContext
from kcodec.transactions.manager import TransactionManager
from kcodec.transactions.state import COMMITS, State

_FOLDER = transactions.__path__[0]
#: Time after which the first request of a call is in flight, and the second one.
_SOON, _SECOND = 0.0005, 0.0025
#: More points than a call has.
_MOST_POINTS = 3000


def buffer_of(manager: TransactionManager) -> Buffer:
    """The buffer in place of the producer's core."""
    assert isinstance(manager.context.records, Buffer)
    return manager.context.records


def interrupt(world: World, task: Task[Any]) -> None:
    """Raise KeyboardInterrupt in a flow, where it waits."""
    assert not task.done
    world.scheduler._suspensions[task].resume(None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        world.scheduler.run_ready()
    assert isinstance(task.error, InterruptedFlow)


def interrupted_call(world: World, flow: Flow[Any], seconds: float = _SOON) -> None:
    """Begin a call, and interrupt it while it waits."""
    task = world.spawn(flow)
    world.pass_time(seconds)
    interrupt(world, task)


def is_in_folder(frame: FrameType | None) -> bool:
    """Return whether this is a frame of `kcodec.transactions`."""
    return frame is not None and frame.f_code.co_filename.startswith(_FOLDER)


def is_maintenance(frame: FrameType | None) -> bool:
    """Return whether the flow of TransactionMaintenance runs."""
    while frame is not None and not frame.f_code.co_filename.endswith("maintenance.py"):
        frame = frame.f_back
    return frame is not None


def run_interrupted(world: World, flow: Flow[Any], at: int, seconds: float = 5.0) -> bool:
    """Run a call, and raise KeyboardInterrupt once, at one of the points where Python handles signals: where a function
    of `kcodec.transactions` begins, or one that it calls, and after each call of a compiled function from there. Return
    False if there are fewer points. An interruption of the maintenance, which is not a call, ends the producer."""
    left = at

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        is_point = is_in_folder(frame) and event in {"call", "c_return"}
        if is_point or (event == "call" and is_in_folder(frame.f_back)):  # such as `__init__` of a dataclass
            left -= not is_maintenance(frame)
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    gc.disable()  # it would close, and interrupt, flows of earlier worlds
    sys.setprofile(profile)
    try:
        world.spawn(flow)
        world.pass_time(seconds)
    except KeyboardInterrupt:
        world.pass_time(seconds)
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


def check_usable(world: World, manager: TransactionManager) -> None:
    """Check that the program can abort, commit another transaction, and close the producer."""
    if manager.state not in {State.READY, State.UNINITIALIZED, State.UNKNOWN_OUTCOME}:
        world.run(manager.abort())
    world.run(manager.begin())
    world.run(manager.commit())
    world.run(manager.identity.close_flow(None))
    assert world.coordinator.state != "Ongoing"


@BOTH
def test_an_interrupted_call_for_offsets_prevents_the_commit(version: int) -> None:
    """It would succeed without the offsets."""
    world = World(version)
    manager = begun(world)
    interrupted_call(world, manager.send_offsets(OFFSETS, GROUP))
    with pytest.raises(AbortableTransactionError, match="offsets of group 'readers' were not accepted: the call was"):
        world.run(manager.commit())
    assert manager.context.is_epoch_spent is (version == 1)  # a late copy could join the next transaction
    check_usable(world, manager)
    assert not world.coordinator.committed


@BOTH
def test_an_interrupted_release_can_be_aborted(version: int) -> None:
    world = World(version)
    manager = begun(world)
    buffer_of(manager).pending += 1
    interrupted_call(world, manager.release())
    buffer_of(manager).pending = 0
    assert manager.state is State.ABORTABLE_ERROR
    check_usable(world, manager)


@BOTH
def test_an_interrupted_initialization_can_be_repeated(version: int) -> None:
    world = World(version)
    manager = make_manager(world)
    interrupted_call(world, manager.initialize(), _SECOND)
    assert manager.state is State.UNINITIALIZED and manager.context.is_init_unconfirmed
    check_usable(world, manager)


def test_an_interrupted_begin_with_partitions_is_aborted_by_the_next() -> None:
    world = World(1)
    manager = make_manager(world)
    world.run(manager.initialize())
    interrupted_call(world, manager.begin(partitions=[ORDERS]))
    assert manager.state is State.ABORTABLE_ERROR and manager.context.now_open.is_abandoned
    world.run(manager.begin())
    assert unnarrowed(manager).state is State.IN_TRANSACTION


CALLS: dict[str, Callable[[TransactionManager], Flow[Any]]] = {
    "initialize": lambda manager: manager.initialize(),
    "begin": lambda manager: manager.begin(),
    "send_offsets": lambda manager: manager.send_offsets(OFFSETS, GROUP),
    "release": lambda manager: manager.release(),
    "commit": lambda manager: manager.commit(),
    "abort": lambda manager: manager.abort(),
}


@BOTH
def test_the_next_begin_aborts_one_that_was_interrupted_at_any_point(version: int) -> None:
    """A session has no call that aborts a transaction whose begin was interrupted."""
    for at in range(_MOST_POINTS):
        world = World(version)
        manager = make_manager(world)
        try:
            if not run_interrupted(world, manager.begin(), at):
                break
            world.run(manager.begin())
            assert manager.state is State.IN_TRANSACTION
        except Exception as error:
            error.add_note(f"interrupted at point {at}")
            raise
    assert 0 < at < _MOST_POINTS - 1


@BOTH
def test_a_begin_during_a_commit_can_be_interrupted_at_any_point(version: int) -> None:
    for at in range(_MOST_POINTS):
        world = World(version)
        manager = begun(world)
        result, _ = committing(world, manager)
        try:
            is_interrupted = run_interrupted(world, manager.begin(), at, 0.1)
            if not is_interrupted:
                break
            call = world.spawn(manager.begin())
            buffer_of(manager).end()
            world.pass_time(1.0)
            assert call.done and call.error is None
            assert result.retrieved() is None and manager.state is State.IN_TRANSACTION
            assert manager.newest is manager.open and not manager.context.now_open.is_abandoned
            check_usable(world, manager)
        except Exception as error:
            error.add_note(f"interrupted at point {at}")
            raise
    assert 0 < at < _MOST_POINTS - 1


def test_the_next_begin_aborts_one_that_was_interrupted_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives in `begin_at_once`, which sends no request."""
    world = World(2)
    manager = make_manager(world)
    world.run(manager.initialize())
    with monkeypatch.context() as patch:
        patch.setattr(Buffer, "refuse_sends", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            manager.begin_at_once()
    assert manager.state is State.IN_TRANSACTION
    world.run(manager.begin())
    assert unnarrowed(manager).state is State.IN_TRANSACTION


@BOTH
@pytest.mark.parametrize("call", CALLS)
def test_a_producer_is_usable_after_an_interruption_at_any_point(version: int, call: str) -> None:
    for at in range(_MOST_POINTS):
        world = World(version)
        manager = make_manager(world) if call in {"initialize", "begin"} else begun(world)
        try:
            if not run_interrupted(world, CALLS[call](manager), at):
                break
            if {"AddOffsetsToTxn", "TxnOffsetCommit"} & set(world.apis()):
                assert manager.state is State.ABORTABLE_ERROR
            check_usable(world, manager)
        except Exception as error:
            error.add_note(f"interrupted at point {at}")
            raise
    assert 0 < at < _MOST_POINTS - 1


def test_a_call_that_is_interrupted_at_its_begin_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = begun(World(2))
    announce, calls = ProducerContext.announce, []

    def interrupted(context: ProducerContext) -> None:
        calls.append(context.state)
        if len(calls) == 1:
            raise KeyboardInterrupt
        announce(context)

    monkeypatch.setattr(ProducerContext, "announce", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(manager.release())
    assert calls == [State.RELEASING, State.IN_TRANSACTION] and manager.state is State.IN_TRANSACTION


def committing(world: World, manager: TransactionManager) -> tuple[CommitResult, Task[Any]]:
    """Begin a commit in the background, which waits for a record. Return its result and its task."""
    result = CommitResult("orders", nullcontext(), lambda: None)
    buffer_of(manager).pending += 1
    world.run(manager.commit_async(result, None))
    return result, next(task for task in world.scheduler.tasks if task.name == "commit in the background")


@pytest.mark.parametrize("is_sent", [True, False])
def test_an_interrupted_commit_says_whether_it_was_sent(is_sent: bool) -> None:
    world = World(2)
    manager = begun(world)
    result, task = committing(world, manager)
    if is_sent:
        buffer_of(manager).end()
        world.pass_time(_SOON)
    interrupt(world, task)
    error = result.retrieved()
    assert isinstance(error, TransportError)
    assert isinstance(error, UnknownOutcomeError) == error.possibly_sent == is_sent
    assert manager.state is (State.UNKNOWN_OUTCOME if is_sent else State.ABORTABLE_ERROR)
    assert "the commit of 'orders' was interrupted" in str(error) and "KeyboardInterrupt" in str(error.__cause__)


def test_a_failed_commit_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Ctrl-C interrupts a callback of its result, so that the end is noted again."""
    world = World(2)
    manager = begun(world)
    result, _ = committing(world, manager)
    calls: list[object] = []

    def interrupted(of: object) -> None:
        calls.append(of)
        if len(calls) == 1:
            raise KeyboardInterrupt

    result.observe(interrupted)
    manager.identity.on_failure(ORDERS, EncodeError("a record that fails"), possibly_written=False)
    buffer_of(manager).end()
    with pytest.raises(KeyboardInterrupt):
        world.pass_time(1.0)
    world.pass_time(1.0)
    assert calls == [result, result]
    assert caplog.text.count("the commit in the background failed") == 1


def test_an_interrupted_callback_of_a_commit_does_not_prevent_the_others() -> None:
    """The end is noted again: with the first outcome, and from the interrupted callback on."""
    result = CommitResult("orders", nullcontext(), lambda: None)
    calls: list[str] = []

    def interrupted(_: object) -> None:
        calls.append("second")
        if calls.count("second") == 1:
            raise KeyboardInterrupt

    result.observe(lambda _: calls.append("first"))
    result.observe(interrupted)
    result.observe(lambda _: calls.append("third"))
    with pytest.raises(KeyboardInterrupt):
        result.finish(None)
    result.finish(TransportError("another outcome"))
    assert calls == ["first", "second", "second", "third"] and result.retrieved() is None


def test_an_interruption_in_the_scheduler_is_not_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler then closes the flow for which it begins an effect, as at the close of the producer."""
    world = World(2)
    manager = begun(world)
    begin_wait = world.scheduler._begin_wait

    def interrupted(effect: Wait, suspension: Any) -> Callable[[], None]:
        cancel = begin_wait(effect, suspension)
        if suspension.task.name == "commit in the background":
            raise KeyboardInterrupt
        return cancel

    monkeypatch.setattr(world.scheduler, "_begin_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        committing(world, manager)
    result = manager.context.commit_result
    assert result is not None and manager.state is State.ABORTABLE_ERROR
    assert str(result.retrieved()) == "the commit of 'orders' was interrupted before it was sent; abort the transaction"


@pytest.mark.parametrize("is_followed", [False, True])
def test_an_interruption_after_end_txn_was_sent_is_not_a_close(
    is_followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(2)
    manager = begun(world)
    transaction = manager.context.now_open
    result, _ = committing(world, manager)
    if is_followed:
        world.run(manager.begin())
    start_call = world.start_call

    def interrupted(call: Call, done: Done) -> Callable[[], None]:
        cancel = start_call(call, done)
        if call.kind.__name__ == "EndTxnRequest":
            raise KeyboardInterrupt
        return cancel

    monkeypatch.setattr(world, "start_call", interrupted)
    buffer_of(manager).end()
    with pytest.raises(KeyboardInterrupt):
        world.pass_time(1.0)
    monkeypatch.undo()
    advice = "; abort the next transaction, and then call commit_transaction to get it"
    if not is_followed:
        advice = "; call commit_transaction to get it"
    assert str(result.retrieved()) == f"the commit of 'orders' was interrupted: the outcome is unknown{advice}"
    if is_followed:
        world.run(manager.abort())
    assert manager.state is State.UNKNOWN_OUTCOME and transaction.committed is None
    world.run(manager.commit())
    assert unnarrowed(transaction).committed is True


class Interrupting(frozenset[int]):
    """Replaces the codes with which the code of a response is compared, so that Ctrl-C interrupts that."""

    def __contains__(self, _: object) -> bool:
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_refused_call_does_not_hide_that_end_txn_was_sent(
    is_interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption of the refused call itself does not end the commit either."""
    world = World(2)
    manager = begun(world)
    result, _ = committing(world, manager)
    buffer_of(manager).end()
    world.pass_time(_SOON)
    with monkeypatch.context() as patch:
        if is_interrupted:
            patch.setattr(ProducerContext, "call", raise_interrupt)
        with pytest.raises(KeyboardInterrupt if is_interrupted else TransactionStateError):
            world.run(manager.commit())
    assert world.apis()[-1] == "EndTxn" and manager.state is State.COMMITTING_ASYNC and not result.done()
    monkeypatch.setattr(requests, "PASSING", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        world.pass_time(1.0)
    assert unnarrowed(manager).state is State.UNKNOWN_OUTCOME
    assert isinstance(result.retrieved(), UnknownOutcomeError)


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_abort_after_a_failed_commit_is_not_sent_yet() -> None:
    """EndTxn of the commit was rejected, and that of the abort is not sent when Ctrl-C arrives."""
    world = World(2)
    manager = begun(world)
    world.plan("EndTxn", ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(AbortableTransactionError):
        world.run(manager.commit())
    buffer_of(manager).pending += 1
    interrupted_call(world, manager.abort())
    buffer_of(manager).pending = 0
    assert manager.state is State.ABORTABLE_ERROR and not manager.context.now_open.is_end_unconfirmed
    check_usable(world, manager)


def check_commit(world: World, result: CommitResult) -> None:
    """Check that the result of an interrupted commit agrees with the coordinator's requests."""
    assert result.done()
    error = result._error
    is_sent = any(each.request.committed for each in world.asked if each.api == "EndTxn")
    assert isinstance(error, UnknownOutcomeError) or (error is None) == is_sent


def retrieve_and_check(world: World, manager: TransactionManager, result: CommitResult) -> None:
    """As `check_usable`, after a commit in the background."""
    if manager.state is State.DISCARDED:
        world.run(manager.abort())
    assert result.done() and manager.state not in COMMITS
    result.retrieved()
    check_usable(world, manager)


@BOTH
def test_a_commit_in_the_background_can_be_interrupted_at_its_begin(version: int) -> None:
    def begin(manager: TransactionManager, result: CommitResult) -> Flow[None]:
        buffer_of(manager).pending += 1
        yield from manager.commit_async(result, None)

    for at in range(_MOST_POINTS):
        world = World(version)
        manager = begun(world)
        result = CommitResult("orders", nullcontext(), lambda: None)
        try:
            is_interrupted = run_interrupted(world, begin(manager, result), at)
            buffer_of(manager).end()
            world.pass_time(1.0)
            if manager.state is not State.IN_TRANSACTION:
                check_commit(world, result)
                retrieve_and_check(world, manager, result)
            else:  # the call had not begun
                assert manager.background.is_over
                check_usable(world, manager)
        except Exception as error:
            error.add_note(f"interrupted at point {at}")
            raise
        if not is_interrupted:
            break
    assert 0 < at < _MOST_POINTS - 1


@BOTH
@pytest.mark.parametrize("is_followed", [False, True])
def test_a_commit_in_the_background_can_be_interrupted_at_its_end(version: int, is_followed: bool) -> None:
    def acknowledge(manager: TransactionManager) -> Flow[None]:
        buffer_of(manager).end()
        yield from ()

    for at in range(_MOST_POINTS):
        world = World(version)
        manager = begun(world)
        result, _ = committing(world, manager)
        if is_followed:
            world.run(manager.begin())
        calls: list[object] = []
        result.observe(calls.append)
        try:
            is_interrupted = run_interrupted(world, acknowledge(manager), at)
            check_commit(world, result)
            assert calls  # more than once if it was interrupted itself
            retrieve_and_check(world, manager, result)
        except Exception as error:
            error.add_note(f"interrupted at point {at}")
            raise
        if not is_interrupted:
            break
    assert 0 < at < _MOST_POINTS - 1
