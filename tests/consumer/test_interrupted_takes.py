# SPDX-License-Identifier: Apache-2.0
"""A poll that Ctrl-C interrupts anywhere: its records come again, and the fetcher continues."""

from __future__ import annotations

import itertools

import pytest
from fetch_script import FetchScript, numbered
from interrupted_calls import interrupted


@pytest.mark.parametrize("is_arrow", [False, True])
def test_an_interrupted_take_loses_no_record_and_does_not_stop_the_fetcher(is_arrow: bool) -> None:
    for at in itertools.count():
        world = FetchScript(max_partition_fetch_bytes=200)
        expected = numbered(world.log(), 60)
        world.assign(("orders", 0))
        world.run(3.0)  # two responses wait, so that nothing is under way
        found: list[bytes | None] = []

        def take(world: FetchScript = world, found: list[bytes | None] = found) -> None:
            buffer = world.fetcher.buffer
            records = buffer.take_arrow().records() if is_arrow else buffer.take(500)
            found += [record.value for record in records]

        is_interrupted = interrupted(take, at)
        if is_interrupted and not found:
            world.assignment.take_back_request()  # as the consumer does
        assert found + world.drain(5.0) == expected, f"at {at}"
        if not is_interrupted:
            break
    assert at > 10
