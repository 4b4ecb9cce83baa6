# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in asyncio while a session begins a transaction: the next begin aborts that transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from transaction_script import World, make_manager

from kcodec.session.core import GroupSession
from kcodec.session.safety import SessionTimes
from kcodec.transactions.state import State


def interrupted(*_: object) -> Iterator[None]:
    yield from ()
    raise KeyboardInterrupt


def interrupted_at_once(_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("name", "function"), [("_rewind_to_committed", interrupted), ("note_starts", interrupted_at_once)]
)
def test_an_interrupted_begin_of_a_session_can_be_repeated(
    name: str, function: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(2)
    manager = make_manager(world)
    session = GroupSession(manager, SessionTimes(session=10.0, request=30.0), "readers")
    session.is_safe, session.is_rewind_due = True, name == "_rewind_to_committed"
    monkeypatch.setattr(GroupSession, name, function)
    with pytest.raises(KeyboardInterrupt):
        world.run(session.begin())
    assert session.block is None and manager.context.now_open.is_abandoned
    session.check_idle()
    world.run(manager.begin())
    assert manager.state is State.IN_TRANSACTION and not manager.context.now_open.is_abandoned
