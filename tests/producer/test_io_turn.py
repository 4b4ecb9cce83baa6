# SPDX-License-Identifier: Apache-2.0
"""IoTurn: threads that send pause while the I/O thread has urgent work, and not for longer."""

from __future__ import annotations

import contextlib
import pickle
import selectors
import socket
import threading
import time
from typing import Any

import pytest
from scripted_broker import Fault, Rig, ScriptedCluster, send_apart, started

from kcodec._fast import IoTurn, RecordAppender, RecordDelivery, SendLock
from kcodec.flow import Flow, sleep
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig
from kcodec.network.thread_loop import ThreadLoop

#: poll accepts no such descriptor (POLLNVAL), as poll of macOS accepts no kqueue.
NO_DESCRIPTOR = 1_000_000
NAPS_SECONDS = 25 * 20e-6  # of the longest pause, at least


class Appender(RecordAppender):
    def append_slowly(self, *_: Any) -> None:
        return None


def sending(turn: IoTurn) -> list[float]:
    """How long each of some calls of `send` takes."""
    appender = Appender(SendLock(), RecordDelivery, False)
    appender.turn, times = turn, []
    for _ in range(20):
        begin = time.perf_counter()
        appender.send("topic", None, b"value", (), None, None)
        times.append(time.perf_counter() - begin)
    return times


def test_a_sender_pauses_once_for_a_turn_that_does_not_end() -> None:
    turn = IoTurn()
    turn.is_urgent = True
    first, *others = sending(turn)
    assert first >= NAPS_SECONDS > min(others)


def test_a_sender_does_not_pause_without_urgent_work() -> None:
    turn = IoTurn()
    assert min(sending(turn)) < NAPS_SECONDS
    turn.is_urgent = True
    turn.is_urgent = False
    assert sending(turn)[0] < 0.1 and not turn.is_urgent


def test_a_sender_goes_on_when_the_io_thread_waits_again() -> None:
    turn = IoTurn()
    turn.is_urgent = True
    left, right = socket.socketpair()
    with left, right, selectors.DefaultSelector() as selector:
        selector.register(left, selectors.EVENT_READ)
        waiting = threading.Thread(target=lambda: turn.wait(selector.fileno(), 20.0))
        waiting.start()
        while min(times := sending(turn)[:1]) >= NAPS_SECONDS:
            pass
        assert waiting.is_alive() and times
        right.send(b"x")
        waiting.join(20.0)
        assert not waiting.is_alive()
        assert sending(turn)[0] >= NAPS_SECONDS  # its turn began with the event


def test_a_sender_pauses_for_a_thread_whose_result_the_io_thread_waits_for() -> None:
    """Such as the thread that resolves the address of a broker."""
    turn = IoTurn()
    turn.is_urgent, turn.helpers = True, 1
    with selectors.DefaultSelector() as selector:
        assert turn.wait(selector.fileno(), 0.0) == []
        turn.wait(selector.fileno(), 0.0)
        waiting = threading.Thread(target=lambda: turn.wait(selector.fileno(), 0.5))
        waiting.start()
        assert max(sending(turn)) >= NAPS_SECONDS
        waiting.join(20.0)


def test_an_io_thread_counts_the_threads_whose_results_it_waits_for() -> None:
    loop = ThreadLoop(Client(ClientConfig(bootstrap_servers="localhost:1")))
    try:
        results: list[object] = []

        def begin() -> Flow[None]:
            for _ in range(3):
                loop.run_blocking(lambda: time.sleep(0.02), lambda *_: results.append(None))
            assert loop.io_turn.helpers >= 3  # another one may resolve the address of the broker
            while len(results) < 3 or loop.io_turn.helpers:
                yield from sleep(0.001)

        loop.run(begin(), 20.0)
    finally:
        loop.close()


def test_threads_that_send_pause_until_the_metadata_of_a_topic_is_known() -> None:
    """Without the metadata, each record takes much longer to append, and the I/O thread needs the GIL to request it."""
    world, turn = ScriptedCluster(), IoTurn()
    world.create_topic("orders", 2)
    world.create_topic("late", 2)
    rig = Rig(world)
    rig.core.take_turns(turn)
    seen = [turn.is_urgent]
    for topic in ("orders", "orders", "late"):
        rig.send(topic, b"record")
        seen.append(turn.is_urgent)
        rig.flush()
        seen.append(turn.is_urgent)
    assert seen == [False, True, False, False, False, True, False]


def test_a_topic_that_does_not_exist_is_urgent_only_while_it_is_requested() -> None:
    world, turn = ScriptedCluster(), IoTurn()
    rig = Rig(world)
    rig.core.take_turns(turn)
    rig.send("missing", b"1")
    rig.flush()
    world.run(1.0)
    assert not turn.is_urgent


def test_threads_that_send_pause_while_only_a_response_permits_the_next_request() -> None:
    world, turn = ScriptedCluster(), IoTurn()
    world.create_topic("orders", 1)
    rig = started(world, max_in_flight=2)
    rig.core.take_turns(turn)
    world.faults = lambda node, request: Fault(answer_delay=10.0)
    seen = []
    for value in (b"1", b"2", b"3"):
        send_apart(rig, "orders", [value])
        world.run(0.1)
        seen.append(turn.is_urgent)
    rig.flush()
    assert [*seen, turn.is_urgent] == [False, True, True, False]


def test_the_io_thread_does_not_pause_for_itself() -> None:
    turn = IoTurn()
    turn.is_urgent = True
    with selectors.DefaultSelector() as selector:
        for _ in range(5):
            assert turn.wait(selector.fileno(), 0.0) == []
            if (seconds := min(sending(turn)[:1])) < NAPS_SECONDS:
                break
    assert seconds < NAPS_SECONDS


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 0.0), (0.02, 0.02)])
def test_a_wait_ends_at_its_timeout(seconds: float, least: float) -> None:
    with selectors.DefaultSelector() as selector:
        begin = time.monotonic()
        assert IoTurn().wait(selector.fileno(), seconds) == []
        assert least <= time.monotonic() - begin < 5.0


def test_a_wait_ends_with_an_event() -> None:
    left, right = socket.socketpair()
    with left, right, selectors.DefaultSelector() as selector:
        selector.register(left, selectors.EVENT_READ)
        right.send(b"x")
        assert IoTurn().wait(selector.fileno(), None) == [(left.fileno(), selectors.EVENT_READ)]
        assert [key.fileobj for key, _ in selector.select(0)] == [left], "the wait took the event"


@pytest.mark.parametrize("kinds", [selectors.EVENT_READ, selectors.EVENT_WRITE, 3])
@pytest.mark.parametrize("state", ["idle", "readable", "closed by the other side"])
def test_a_wait_returns_the_events_that_a_selector_returns(kinds: int, state: str) -> None:
    left, right = socket.socketpair()
    with left, right, selectors.DefaultSelector() as selector:
        selector.register(left, kinds)
        if state == "readable":
            right.send(b"x")
        elif state != "idle":
            right.close()
        expected = [(key.fd, events) for key, events in selector.select(0)]
        assert bool(expected) is (state != "idle" or kinds != selectors.EVENT_READ)
        found = IoTurn().wait(selector.fileno(), 0.0) or []
        assert [(number, events & kinds) for number, events in found] == expected


def test_waits_return_the_events_of_very_many_sockets_in_turn() -> None:
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(150):
            left, right = socket.socketpair()
            stack.enter_context(left)
            stack.enter_context(right)
            selector.register(left, selectors.EVENT_WRITE)
        turn, found = IoTurn(), set[int]()
        for _ in range(10):
            found |= {number for number, _ in turn.wait(selector.fileno(), 0.0) or ()}
        assert found == selector.get_map().keys()


def test_a_wait_that_the_platform_refuses_ends_at_once() -> None:
    turn = IoTurn()
    begin = time.monotonic()
    assert turn.wait(NO_DESCRIPTOR, 20.0) is None
    assert turn.wait(NO_DESCRIPTOR, None) is None
    assert time.monotonic() - begin < 10.0
    turn.is_urgent = True  # no thread pauses for a turn whose end it would not see
    assert min(sending(turn)) < NAPS_SECONDS and sending(turn)[0] < 0.1


def test_no_thread_pauses_if_the_selector_has_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setattr(selectors, "DefaultSelector", selectors.SelectSelector)
    first_calls = []
    for _ in range(5):  # only the first call of `send` would pause, and the machine may be busy
        loop = ThreadLoop(Client(ClientConfig(bootstrap_servers="localhost:1")))
        try:
            loop.io_turn.is_urgent = True
            assert loop.io_turn.cannot_wait
            first_calls.append(sending(loop.io_turn)[0])
        finally:
            loop.close()
    assert min(first_calls) < NAPS_SECONDS


def test_an_io_thread_without_this_wait_uses_its_selector() -> None:
    """It waits there, and does not take up a core, with urgent work and without."""
    client = Client(ClientConfig(bootstrap_servers="localhost:1"))
    loop = ThreadLoop(client)
    loop._selector_number = NO_DESCRIPTOR
    loop.io_turn.is_urgent = True
    try:
        assert loop.run(_after(0.0005)) == "done"
        assert vars(loop)["_selector_number"] is None
        before = time.process_time()
        assert loop.run(_after(0.5)) == "done"
        spent = time.process_time() - before
        assert spent < 0.25, f"{spent:.3f} s of processor time for a wait of 0.5 s"
    finally:
        loop.close()


def _after(seconds: float) -> Flow[str]:
    yield from sleep(seconds)
    return "done"


def test_a_turn_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(IoTurn())
