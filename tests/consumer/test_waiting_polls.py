# SPDX-License-Identifier: Apache-2.0
"""A poll that waits for records: it costs the I/O thread nothing, and everything that concerns it ends the wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_runs import AtZero, Fetched, Loop, Member, Offsets, Threads
from fetch_script import FetchScript, numbered

import kcodec.consumer.group.classic.membership
from kcodec import TopicPartition
from kcodec.consumer import core as consumer_core
from kcodec.errors import TransportError
from kcodec.flow import Flow, sleep

ONE = TopicPartition("orders", 0)
#: A wait that nothing ends is this long.
LONG = 20.0

Make = Callable[..., Threads]


@pytest.fixture(params=[Threads, Loop], ids=["thread", "asyncio"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(consumer_core, "Fetcher", Fetched)
    monkeypatch.setattr(consumer_core, "CommittedOffsets", Offsets)
    monkeypatch.setattr(consumer_core, "Positions", AtZero)
    monkeypatch.setattr(kcodec.consumer.group.classic.membership, "ClassicMembership", Member)
    made: list[Threads] = []

    def make(**options: Any) -> Threads:
        made.append(request.param(**{"group_id": "billing", **options}))
        return made[-1]

    Member.made.clear()
    yield make
    for client in made:
        client.end()


def assigned(client: Threads, **callbacks: Any) -> Member:
    """Let the client own partition ONE, and wait in a poll once."""
    client.do("subscribe", ["orders"], **callbacks)
    member = Member.made[-1]
    client.flow(member.handler.assign([ONE], [ONE]))
    client.do("poll", 0.1)
    return member


def test_a_poll_that_waits_for_records_runs_no_flow(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make()
    assigned(client)
    fetched = client.consumer._core.fetcher

    def later() -> Flow[None]:
        yield from sleep(0.2)
        fetched.ready.append((ONE, 0))
        fetched.arrived.set()

    client.flow(later())
    flows: list[object] = []
    run = client.consumer._io_loop.run

    def noted(flow: Flow[Any], *rest: Any) -> Any:
        flows.append(flow)
        return run(flow, *rest)

    monkeypatch.setattr(client.consumer._io_loop, "run", noted)
    began = time.monotonic()
    assert client.do("poll", LONG) == [(ONE, 0)]
    assert time.monotonic() - began < LONG / 2
    assert not flows


def test_a_rebalance_ends_the_wait_of_a_poll(make: Make) -> None:
    client = make()
    revoked: list[frozenset[TopicPartition]] = []
    member = assigned(client, on_revoked=revoked.append)

    def later() -> Flow[None]:
        yield from sleep(0.2)
        yield from member.handler.revoke([ONE])
        yield from sleep(0.2)
        client.consumer._core.crash(TransportError("the end"))

    client.flow(later())
    began = time.monotonic()
    with pytest.raises(TransportError, match="the end"):  # an error ends it, too
        client.do("poll", LONG)
    assert time.monotonic() - began < LONG / 2
    assert revoked == [frozenset({ONE})]


def test_a_poll_that_waits_for_records_counts_as_a_poll_all_the_time(make: Make) -> None:
    client = make(max_poll_interval_ms=1000, session_timeout_ms=900, heartbeat_interval_ms=300)
    member = assigned(client)
    began = client.consumer._core.clock()
    seconds: list[float] = []

    def later() -> Flow[None]:
        yield from sleep(0.8)
        seconds.append(client.consumer._core.polls.seconds_since())
        seconds.append(member.polled - began)

    client.flow(later())
    client.do("poll", 1.2)
    assert seconds[0] == 0.0
    assert seconds[1] >= 0.4


def test_a_close_on_another_thread_ends_the_wait_of_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_core, "Fetcher", Fetched)
    monkeypatch.setattr(consumer_core, "Positions", AtZero)
    client = Threads()
    client.do("assign", [ONE])
    client.do("poll", 0.1)
    errors: list[BaseException] = []

    def poll() -> None:
        try:
            client.do("poll", LONG)
        except TransportError as error:
            errors.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    time.sleep(0.3)
    client.end()
    thread.join(LONG / 2)
    assert not thread.is_alive()
    assert len(errors) == 1 and "closed" in str(errors[0])


def test_records_that_hold_no_request_up_are_taken_without_the_loop() -> None:
    world = FetchScript()
    log = world.log()
    world.assign(ONE)
    numbered(log, 5)
    world.run(0.3)
    posted: list[object] = []
    world.assignment.post = posted.append
    assert len(world.fetcher.buffer.take(500)) == 5
    assert not posted


def test_records_taken_while_a_round_finds_no_memory_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller of poll takes them on its own thread, and cannot know yet that the loop is short of memory."""
    world = FetchScript(fetch_ahead_max_bytes=2000)
    log = world.log()
    world.assign(ONE)
    fetcher = world.fetcher
    has_space = fetcher._memory.has_space
    taken: list[Any] = []

    def take_meanwhile(size: int, waiting: int) -> bool:
        found = has_space(size, waiting)
        if not found and not taken:
            taken.extend(fetcher.buffer.take(500))
        return found

    monkeypatch.setattr(fetcher._memory, "has_space", take_meanwhile)
    numbered(log, 5)
    world.run(0.5)
    assert len(taken) == 5
    numbered(log, 5, start=5)
    world.run(0.5)
    assert len(fetcher.buffer.take(500)) == 5
