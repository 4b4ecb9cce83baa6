# SPDX-License-Identifier: Apache-2.0
"""The calls of a connection share one timer, and each of them still ends exactly at its timeout: in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from client_runners import options
from interrupted_calls import interrupted

from kcodec.errors import KcodecError, RequestTimedOutError, TransportError
from kcodec.flow import Address, Call
from kcodec.network.connections import Connection, Network
from kcodec.network.scheduler import Scheduler
from kcodec.protocol.messages.transactions import InitProducerIdRequest

BROKER = -2  # the first bootstrap address


class NoOpener:
    """An I/O loop in which no connection is ever opened. opening: the connections that are to be opened."""

    def __init__(self) -> None:
        self.opening: list[Connection] = []

    @property
    def attempts(self) -> int:
        return len(self.opening)

    def open(self, address: Address, connection: Connection) -> None:
        self.opening.append(connection)


class NoBrokers:
    """The metadata before the first response."""

    cluster_id = None

    def __init__(self) -> None:
        self.brokers: dict[int, Any] = {}

    def why_missing(self, topic: str | None) -> str | None:
        return None


class World:
    """A client that never reaches its broker. ended: the time and the error of each call that has ended, by number."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ended: dict[int, tuple[float, BaseException | None]] = {}
        config = options("127.0.0.1:1", socket_connection_setup_timeout_ms=60_000)
        self.network = Network(config, lambda: self.now, Random(0))
        self.scheduler = Scheduler(lambda: self.now, self.network)
        directory: Any = NoBrokers()
        self.opener = NoOpener()
        self.network.wire(self.scheduler, directory, self.opener)

    def call(self, number: int, timeout: float) -> Callable[[], None]:
        """Begin a call; return the function that cancels it."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)

        def ended(_: Any, error: BaseException | None) -> None:
            self.ended[number] = self.now, error

        return self.network.start_call(Call(BROKER, request, timeout), ended)

    def run(self, until: float) -> None:
        self.scheduler.run_ready()
        while (when := self.scheduler.next_wakeup()) is not None and when <= until:
            self.now = when
            self.scheduler.run_ready()
        self.now = until

    @property
    def timers(self) -> int:
        """The number of timers that are set."""
        return sum(timer.action is not None for _, _, timer in self.scheduler._timers)


def test_each_call_ends_exactly_at_its_own_timeout() -> None:
    world = World()
    timeouts = [3.0, 1.0, 2.5, 1.0, 7.0, 0.25]
    for number, timeout in enumerate(timeouts):
        world.call(number, timeout)
    world.run(0.5)
    world.call(6, 1.0)
    world.run(50.0)
    assert {number: when for number, (when, _) in world.ended.items()} == {**dict(enumerate(timeouts)), 6: 1.5}
    for _, error in world.ended.values():
        assert isinstance(error, RequestTimedOutError) and not error.possibly_sent
    assert "was not sent within 0.25 s" in str(world.ended[5][1])


def test_calls_of_a_connection_share_a_timer() -> None:
    world = World()
    before = world.timers
    for number in range(1000):
        world.now += 0.001
        world.call(number, 30.0)
    assert world.timers <= before + 2  # that of the calls, and that of the connection's own deadline
    world.run(40.0)
    assert len(world.ended) == 1000
    assert max(abs(when - 30.001 - 0.001 * number) for number, (when, _) in world.ended.items()) < 1e-9


def test_a_cancelled_call_does_not_end_and_holds_up_no_other() -> None:
    world = World()
    give_up = world.call(0, 1.0)
    world.call(1, 2.0)
    give_up()
    world.run(10.0)
    assert {number: when for number, (when, _) in world.ended.items()} == {1: 2.0}


def test_timers_of_a_connection_that_are_repeated_do_nothing_twice() -> None:
    """After an interruption, the scheduler calls an action again."""
    world = World()
    world.call(0, 1.0)
    (connection,) = world.network._connections.values()
    world.network._open(connection)
    assert world.opener.attempts == 1
    tasks = len(world.scheduler.tasks)
    for _ in range(2):
        connection._renew_session()
    assert len(world.scheduler.tasks) == tasks + 1


def test_a_closed_connection_leaves_no_timer() -> None:
    world = World()
    for number in range(3):
        world.call(number, 30.0 + number)
    world.network.close()
    world.scheduler.run_ready()
    assert world.timers == 0
    assert len(world.ended) == 3 and all(isinstance(error, KcodecError) for _, error in world.ended.values())


@pytest.mark.parametrize("has_failed", [True, False])
def test_a_connection_whose_opening_was_interrupted_is_replaced(has_failed: bool) -> None:
    """has_failed: Whether an earlier connection has failed, so that the next one is opened after the backoff."""
    for at in itertools.count():
        world = World()
        network, opening = world.network, world.opener.opening
        if has_failed:
            world.call(0, 30.0)
            opening[0].close(TransportError("refused"))
        is_interrupted = interrupted(partial(world.call, 1, 30.0), at)
        world.call(2, 30.0)
        world.run(5.0)
        left = [connection for connection in opening if not connection.is_closed]
        assert left and left == list(network._connections.values()), f"at {at}"
        if not is_interrupted:
            break
    assert at > 10
