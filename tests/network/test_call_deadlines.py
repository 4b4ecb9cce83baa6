# SPDX-License-Identifier: Apache-2.0
"""A call with several steps has one deadline: the end of a transaction block, a begin with partitions, the search of an
Admin. Scripted brokers that do not respond, in virtual time, so that the end is exact. All calls of the public classes
are in test_call_timeouts.py."""

from __future__ import annotations

from typing import Any

import pytest
from session_script import Script
from transaction_script import HANG, ORDERS, World, begun, make_manager, write

from kcodec.client import Producer, Transaction
from kcodec.errors import DeliveryTimeoutError, KcodecError
from kcodec.flow import Signal, wait
from kcodec.protocol.error_codes import ErrorCode
from kcodec.session.end import SessionEnd
from kcodec.transactions.state import State

TIMEOUT = 3.0


class Block(Transaction):
    """The block of a producer without its I/O thread."""

    def __init__(self, manager: Any) -> None:
        producer = Producer.__new__(Producer)
        producer._manager = lambda: manager  # type: ignore[method-assign]
        super().__init__(producer, (), TIMEOUT)
        self._open = manager.open

    def end(self, error: BaseException | None = None) -> Any:
        return self._commit() if error is None else self._abort_after(error)


def timed(world: World, flow: Any) -> tuple[float, BaseException | None]:
    """How long a flow takes, and what it raises."""
    began = world.now
    try:
        world.run(flow)
    except KcodecError as error:
        return world.now - began, error
    return world.now - began, None


@pytest.mark.parametrize("version", [0, 2])
def test_a_block_whose_commit_fails_ends_by_its_timeout(version: int) -> None:
    """A record is still in flight at the deadline: the abort gets no second timeout, the next begin does it."""
    world = World(version)
    manager = begun(world)
    buffer: Any = manager.context.records
    buffer.pending = 1
    world.plan("EndTxn", *[HANG] * 9)
    seconds, error = timed(world, Block(manager).end())
    assert seconds == pytest.approx(TIMEOUT, abs=1e-6)
    assert isinstance(error, DeliveryTimeoutError)
    assert (manager.state, "EndTxn" in world.apis()) == (State.ABORTABLE_ERROR, False)
    buffer.end()
    world.plans.clear()
    world.run(manager.begin(TIMEOUT))
    assert "EndTxn" in world.apis() and manager.state is State.IN_TRANSACTION


def test_a_session_block_whose_commit_fails_ends_by_its_timeout() -> None:
    script = Script()
    block = script.worked()
    script.buffer.pending = 1
    seconds, error = timed(script.world, SessionEnd(script.session, block, TIMEOUT).run(is_commit=True))
    assert seconds == pytest.approx(TIMEOUT, abs=1e-6)
    assert isinstance(error, DeliveryTimeoutError) and block.committed is False
    script.buffer.end()
    script.begin(TIMEOUT)


def test_a_begin_with_partitions_ends_by_its_timeout_with_its_cause() -> None:
    """AddPartitionsToTxn and EndTxn get no response (below transaction version 2)."""
    world = World(1)
    world.plan("AddPartitionsToTxn", *[HANG] * 9)
    world.plan("EndTxn", *[HANG] * 9)
    manager = make_manager(world, max_block=15.0)
    seconds, error = timed(world, manager.begin(TIMEOUT, [ORDERS]))
    assert seconds == pytest.approx(TIMEOUT, abs=1e-6)
    assert isinstance(error, DeliveryTimeoutError) and "AddPartitionsToTxn" in str(error)
    world.plans.clear()
    world.pass_time(10.0)
    world.run(manager.begin(TIMEOUT, [ORDERS]))
    assert write(world, manager)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_asking_why_a_commit_was_refused_ends_by_the_timeout(version: int, code: int) -> None:
    """DescribeTransactions gets no response."""
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", code)
    world.plan("DescribeTransactions", *[HANG] * 9)
    seconds, error = timed(world, manager.commit(1.0))
    assert seconds <= 1.0 + 1e-6 and error is not None


def test_an_abort_without_time_left_is_sent_all_the_same() -> None:
    """An open transaction stops readers until its timeout: EndTxn is sent, nothing waits for its response."""
    world = World(2)
    manager = begun(world)
    world.plan("EndTxn", HANG)
    seconds, error = timed(world, manager.abort(0.0))
    assert seconds == 0.0 and isinstance(error, DeliveryTimeoutError)
    assert world.apis()[-1] == "EndTxn" and manager.state is State.UNINITIALIZED
    world.run(manager.begin())
    assert write(world, manager)


def test_a_commit_without_time_left_is_not_sent() -> None:
    """Its outcome would be unknown."""
    world = World(2)
    manager = begun(world)
    seconds, error = timed(world, manager.commit(0.0))
    assert seconds == 0.0 and "before this request was sent" in str(error)
    assert "EndTxn" not in world.apis() and manager.state is State.ABORTABLE_ERROR


@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_call_cut_off_behind_its_deadline_is_named(call: str) -> None:
    """The flow of a call ends at its deadline. One that does not is cut off a little later."""

    def stuck(timeout: float | None = None, *, without_held: bool = False) -> Any:
        yield from wait(Signal())

    producer = Producer(bootstrap_servers="127.0.0.1:1")
    producer._core.flush = producer._core.close = stuck  # type: ignore[method-assign]
    with pytest.raises(DeliveryTimeoutError, match=rf"^{call}\(\) did not finish within 0\.01 s$"):
        getattr(producer, call)(0.01)
    producer._io_loop.close()
