# SPDX-License-Identifier: Apache-2.0
"""Asyncio programs that get Ctrl-C twice: the first cancels the task, and the second raises KeyboardInterrupt in the
middle of the code of kcodec that leaves the group or aborts the transaction."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

import kcodec
from kcodec.client import aio
from kcodec.client.aio.topic_records import TopicRecords
from kcodec.flow import Task

_PACKAGE = kcodec.__path__[0]
_FIRST_CTRL_C_SECONDS = 0.01


def run_interrupted(main: Callable[[Callable[[], object]], Awaitable[None]], at: int) -> bool:
    """Run a program. Its argument is a function that lets the first Ctrl-C arrive soon. Return False if the code after
    it has fewer than `at` points at which Python handles signals; then there is no second Ctrl-C.

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

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        await main(lambda: asyncio.get_running_loop().call_later(_FIRST_CTRL_C_SECONDS, first, task))

    try:
        asyncio.run(body())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return left < 0
    finally:
        sys.setprofile(None)
    raise AssertionError("the program has ended without an interruption")


def run_consumer(servers: str, topic: str, group_id: str, at: int, **options: Any) -> bool:
    """Run a program with a consumer, as `run_interrupted` does."""

    async def main(interrupt: Callable[[], object]) -> None:
        async with aio.Consumer(bootstrap_servers=servers, group_id=group_id, **options) as consumer:
            await consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.poll(0.1)
            interrupt()
            await consumer.poll(None)

    return run_interrupted(main, at)


def run_producer(servers: str, topic: str, transactional_id: str, at: int) -> bool:
    """Run a program with an open transaction of a producer, as `run_interrupted` does. Another transaction was
    committed before, and one record of the open transaction is still in the buffer."""

    async def main(interrupt: Callable[[], object]) -> None:
        producer = aio.Producer(bootstrap_servers=servers, transactional_id=transactional_id, linger_ms=10_000)
        async with producer:
            async with producer.transaction() as txn:
                await txn.send(topic, b"committed")
            async with producer.transaction() as txn:
                await txn.send(topic, b"aborted")
                await producer.flush()
                await txn.send(topic, b"buffered")
                interrupt()
                await asyncio.Event().wait()

    return run_interrupted(main, at)


def run_session(servers: str, topic: str, transactional_id: str, at: int) -> bool:
    """Run a program with an open transaction of a session, as `run_interrupted` does."""

    async def main(interrupt: Callable[[], object]) -> None:
        async with (
            aio.GroupTransactSession(
                bootstrap_servers=servers, group_id=transactional_id, transactional_id=transactional_id, topics=topic
            ) as session,
            session.transaction() as txn,
        ):
            await (await txn.send(topic, b"aborted"))
            interrupt()
            await txn.poll(None)

    return run_interrupted(main, at)


Interruptible = aio.Consumer | aio.GroupTransactSession | aio.Producer | TopicRecords


def interrupt_flow(client: Interruptible, name: str) -> None:
    """Raise KeyboardInterrupt in a waiting flow of this client, in its event loop."""
    interrupt_task(client, next(task for task in client._io_loop.client.scheduler.tasks if task.name == name))


def interrupt_task(client: Interruptible, task: Task[Any]) -> None:
    """Do the same for the flow of this task."""
    client._io_loop.client.scheduler._suspensions[task].resume(None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        client._io_loop.turn()
