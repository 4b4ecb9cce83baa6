# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in asyncio, anywhere in the calls of a transactional producer: programs that catch KeyboardInterrupt can
continue. Against a scripted coordinator, in virtual time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from transaction_script import BOTH, GROUP, OFFSETS, ORDERS, World, begun, make_manager

from kcodec import transactions
from kcodec.errors import AbortableTransactionError
from kcodec.flow import Flow, InterruptedFlow, Task
from kcodec.transactions.context import ProducerContext
from kcodec.transactions.manager import TransactionManager
from kcodec.transactions.state import State

_FOLDER = transactions.__path__[0]
#: Time after which the first request of a call is in flight, and the second one.
_SOON, _SECOND = 0.0005, 0.0025
#: More points than a call has.
_MOST_POINTS = 3000


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


def is_maintenance(frame: FrameType | None) -> bool:
    """Return whether the flow of TransactionMaintenance runs."""
    while frame is not None and not frame.f_code.co_filename.endswith("maintenance.py"):
        frame = frame.f_back
    return frame is not None


def run_interrupted(world: World, flow: Flow[Any], at: int, seconds: float = 5.0) -> bool:
    """Run a call, and raise KeyboardInterrupt once, at one of the points where Python handles signals: where a function
    of `kcodec.transactions` begins, and after each call of a compiled function from there. Return False if there are
    fewer points. An interruption of the maintenance, which is not a call, ends the producer."""
    left = at

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in {"call", "c_return"} and frame.f_code.co_filename.startswith(_FOLDER):
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
    assert manager.context.records is not None
    manager.context.records.pending += 1  # type: ignore[attr-defined]
    interrupted_call(world, manager.release())
    manager.context.records.pending = 0  # type: ignore[attr-defined]
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
    assert manager.state is State.IN_TRANSACTION


CALLS: dict[str, Callable[[TransactionManager], Flow[Any]]] = {
    "initialize": lambda manager: manager.initialize(),
    "begin": lambda manager: manager.begin(),
    "send_offsets": lambda manager: manager.send_offsets(OFFSETS, GROUP),
    "release": lambda manager: manager.release(),
    "commit": lambda manager: manager.commit(),
    "abort": lambda manager: manager.abort(),
}


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
            if manager.state is not State.RELEASED:
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
