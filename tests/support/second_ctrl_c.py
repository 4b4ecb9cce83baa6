# SPDX-License-Identifier: Apache-2.0
"""An asyncio program with a consumer that gets Ctrl-C twice: the first cancels its task, and the second raises
KeyboardInterrupt in the middle of the code of kcodec that leaves the group."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

import kcodec
from kcodec.client import aio

_PACKAGE = kcodec.__path__[0]
_FIRST_CTRL_C_SECONDS = 0.01


def run_consumer(servers: str, topic: str, group_id: str, at: int, **options: Any) -> bool:
    """Run the program. Return False if the code that leaves has fewer than `at` points at which Python handles signals;
    then there is no second Ctrl-C.

    The points are those at which a Python function of kcodec begins, and after calls of compiled functions from there.
    """
    left = at

    def second(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in {"call", "c_return"} and frame.f_code.co_filename.startswith(_PACKAGE):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    def first(task: asyncio.Task[None]) -> None:
        sys.setprofile(second)
        task.cancel()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        async with aio.Consumer(bootstrap_servers=servers, group_id=group_id, **options) as consumer:
            await consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.poll(0.1)
            asyncio.get_running_loop().call_later(_FIRST_CTRL_C_SECONDS, first, task)
            await consumer.poll(None)

    try:
        asyncio.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return left < 0
    finally:
        sys.setprofile(None)
    raise AssertionError("the program has ended without an interruption")
