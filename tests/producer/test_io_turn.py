# SPDX-License-Identifier: Apache-2.0
"""IoTurn: threads that send step aside while the I/O thread has urgent work, and not for longer."""

from __future__ import annotations

import pickle
import selectors
import socket
import threading
import time
from typing import Any

import pytest

from kcodec._fast import IoTurn, RecordAppender, RecordDelivery, SendLock

NAPS_SECONDS = 25 * 20e-6  # of the longest step aside, at least


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


def test_a_sender_steps_aside_once_for_a_turn_that_does_not_end() -> None:
    turn = IoTurn()
    turn.is_urgent = True
    first, *others = sending(turn)
    assert first >= NAPS_SECONDS > min(others)


def test_a_sender_does_not_step_aside_without_urgent_work() -> None:
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


def test_the_io_thread_does_not_step_aside_for_itself() -> None:
    turn = IoTurn()
    turn.is_urgent = True
    with selectors.DefaultSelector() as selector:
        for _ in range(5):
            assert turn.wait(selector.fileno(), 0.0)
            if (seconds := min(sending(turn)[:1])) < NAPS_SECONDS:
                break
    assert seconds < NAPS_SECONDS


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 0.0), (0.02, 0.02)])
def test_a_wait_ends_at_its_timeout(seconds: float, least: float) -> None:
    with selectors.DefaultSelector() as selector:
        begin = time.monotonic()
        assert IoTurn().wait(selector.fileno(), seconds)
        assert least <= time.monotonic() - begin < 5.0


def test_a_turn_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(IoTurn())
