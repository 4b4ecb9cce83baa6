# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a session, a consumer and a transactional producer within seconds while no broker responds, and a second
Ctrl-C ends them at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from kcodec.broker import Broker
from kcodec.testing.proxy import KafkaProxy

HEAD = """
import asyncio, logging, sys, time
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
from kcodec.client import Consumer, GroupTransactSession, Producer, aio
servers, topic, name = sys.argv[1:]
client = {"bootstrap_servers": servers}
member = {**client, "group_id": name}
def ready():
    print("ready", flush=True)
    sys.stdin.readline()      # the broker is away
    print("waiting", flush=True)
"""
SESSION = """
with GroupTransactSession(**member, transactional_id=name, topics=[topic]) as session:
    with session.transaction() as txn:
        while not session.assignment():
            txn.poll(0.1)
        txn.send(topic, b"x").result()
        ready()
        time.sleep(60)
"""
ASYNC_SESSION = """
async def main():
    async with aio.GroupTransactSession(**member, transactional_id=name, topics=[topic]) as session:
        async with session.transaction() as txn:
            while not session.assignment():
                await txn.poll(0.1)
            await (await txn.send(topic, b"x"))
            ready()
            await asyncio.sleep(60)
asyncio.run(main())
"""
CONSUMER = """
with Consumer(**member, auto_offset_reset="earliest") as consumer:
    consumer.subscribe(topic)
    while not consumer.assignment():
        consumer.poll(0.1)
    ready()
    consumer.poll(60)
"""
TRANSACTION = """
with Producer(**client, transactional_id=name) as producer:
    with producer.transaction() as txn:
        txn.send(topic, b"x").result()
        ready()
        time.sleep(60)
"""


class Case(NamedTuple):
    """A program, the number of times that Ctrl-C is pressed, one second apart, and the limit of the time from the last
    one to the end."""

    program: str
    presses: int
    limit: float


#: The limits leave time for a busy machine; without Ctrl-C the close of a session takes 30 s.
CASES = {
    "session": Case(SESSION, 1, 8.0),
    "session, twice": Case(SESSION, 2, 2.5),
    "asyncio session": Case(ASYNC_SESSION, 1, 8.0),
    "consumer": Case(CONSUMER, 1, 6.0),
    "transaction, twice": Case(TRANSACTION, 2, 2.5),
}


class Ended(NamedTuple):
    """What became of a program: its status, its standard error, the seconds after the last Ctrl-C."""

    status: int
    errors: str
    seconds: float


@contextmanager
def started(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program until it prints "ready"."""
    child = subprocess.Popen(
        [sys.executable, "-c", HEAD + program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def ended(case: Case, servers: str, topic: str, name: str) -> Ended:
    """Run a program, take the broker away, and press Ctrl-C."""
    with KafkaProxy(servers) as proxy, started(case.program, proxy.bootstrap_servers, topic, name) as child:
        proxy.on_request(count=None).hold()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "waiting\n"
        time.sleep(1.0)
        for press in range(case.presses):
            time.sleep(1.0 if press else 0.0)
            os.kill(child.pid, signal.SIGINT)
        begin = time.monotonic()
        _, errors = child.communicate(timeout=60.0)
        return Ended(child.returncode, errors, time.monotonic() - begin)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Ended]:
    """All programs, at the same time, as they only wait."""
    with Broker() as broker, ThreadPoolExecutor(len(CASES)) as pool:
        topic = broker.create_topic(partitions=1)
        runs = {
            name: pool.submit(ended, case, broker.bootstrap_servers, topic, f"{topic}-{number}")
            for number, (name, case) in enumerate(CASES.items())
        }
        return {name: run.result() for name, run in runs.items()}


@pytest.mark.parametrize("name", CASES)
def test_ctrl_c_ends_a_client_without_a_broker(outcomes: dict[str, Ended], name: str) -> None:
    found = outcomes[name]
    assert found.seconds < CASES[name].limit
    assert found.status == -signal.SIGINT and "KeyboardInterrupt" in found.errors


@pytest.mark.parametrize("name", CASES)
def test_a_close_after_ctrl_c_says_what_it_waits_for(outcomes: dict[str, Ended], name: str) -> None:
    errors = outcomes[name].errors
    kind = "CancelledError" if name.startswith("asyncio") else "KeyboardInterrupt"
    assert f"WARNING {kind}: waiting up to " in errors
    if kind == "KeyboardInterrupt":
        assert "press Ctrl-C again to end at once" in errors
