# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends the reads of a topic at once while no broker responds, also with the signal handler of polars. In
asyncio, it can interrupt a background flow of a read, which then does not end as if it were complete."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

import pytest
from interrupted_calls import interrupted
from second_ctrl_c import interrupt_flow
from topic_reader import SETTINGS, Reader, fill, world_of

from kcodec.broker import Broker
from kcodec.client import Producer, aio
from kcodec.flow import InterruptedFlow
from kcodec.offsets import OffsetRange
from kcodec.reading.bounded_read import BoundedRead

HEAD = """
import polars, logging, sys
import kcodec
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
"""
#: Logged by the I/O thread while the call waits.
WAITING = "no connection: Connection refused"
#: Nothing listens on this port.
OPTIONS = 'bootstrap_servers="127.0.0.1:1"'
PROGRAMS = {
    "read_topic": f'kcodec.read_topic("orders", {OPTIONS})',
    "read_ranges": f'kcodec.read_ranges(kcodec.OffsetRange("orders", 0, 0, 5), {OPTIONS})',
    "scan_topic": f'kcodec.scan_topic("orders", {OPTIONS}).collect()',
}


def test_ctrl_c_ends_a_read_in_a_program_with_polars() -> None:
    """polars installs its handler with SA_RESTART, and runs a scan on a thread that Python does not interrupt."""
    with ExitStack() as stack:
        children: dict[str, subprocess.Popen[str]] = {}
        for name, call in PROGRAMS.items():
            command = [sys.executable, "-c", HEAD + call]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            children[name] = stack.enter_context(child)
            stack.callback(child.kill)
        for name, child in children.items():
            assert child.stdout is not None
            assert any(WAITING in line for line in child.stdout), name
        for child in children.values():
            os.kill(child.pid, signal.SIGINT)
        for name, child in children.items():
            assert child.wait(timeout=20) == -signal.SIGINT, name


# Some of the points are where Python closes a generator expression of the scripted broker, and ignores exceptions.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. .generator object TopicWorld:pytest.PytestUnraisableExceptionWarning"
)
def test_a_read_that_is_interrupted_anywhere_is_complete_or_fails() -> None:
    """Ctrl-C comes at each point while two partitions are fetched."""
    failures = 0
    for at in itertools.count():
        world, logs = world_of(partitions=2)
        for log in logs:
            fill(log)
        world.run_flow(world.cluster.ensure_topic("t", 5.0))
        reader = Reader(world)
        reader.read = BoundedRead(world.cluster, [OffsetRange("t", number, 0, 30) for number in range(2)], SETTINGS)
        start = world.scheduler.spawn(reader.read.start(), "start")
        is_interrupted = interrupted(partial(world.run, 1.0), at)
        world.run(1.0)
        if start.error is None:
            try:
                reader.all()
            except InterruptedFlow:
                failures += 1
            else:
                assert reader.rows == {number: log.expected(0, 30) for number, log in enumerate(logs)}, f"at {at}"
        if not is_interrupted:
            break
    assert at > 100 and failures > 20


def test_an_interrupted_read_of_a_topic_raises_after_the_records_before(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for number in range(100):
            producer.send(topic, b"x" * 100)
            if number % 10 == 9:
                producer.flush()  # so that the topic has ten batches, which one response does not contain

    async def main() -> None:
        read = aio.read_topic(
            topic,
            bootstrap_servers=kcodec_broker.bootstrap_servers,
            max_partition_fetch_bytes=2000,
            fetch_ahead_max_bytes=4000,
        )
        offsets: list[int] = []
        async with read as records:
            with pytest.raises(InterruptedFlow, match=rf"\(read of {topic}-0\) was interrupted"):
                async for record in records.rows():
                    if not offsets:
                        interrupt_flow(records, f"read of {topic}-0")
                    offsets.append(record.offset)
            (partition,) = records.offsets.values()
        assert offsets == list(range(partition.next_offset)) and 0 < len(offsets) < 100

    asyncio.run(main())
