# SPDX-License-Identifier: Apache-2.0
"""The progress of a bounded read, from which a program continues later: no record may be skipped or come twice."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import kcodec
from kcodec import OffsetRange, TopicPartition
from kcodec.broker import Broker
from kcodec.client.aio import read_topic as aio_read_topic
from kcodec.errors import TransportError
from kcodec.reading.decoding import RangeDecoder

RECORDS, PARTITIONS = 5, 3
SECONDS = 10.0


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    name: str = kcodec_broker.create_topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        kcodec_broker.seed(name, [(b"k", b"%d" % number) for number in range(RECORDS)], partition=partition)
    return name


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("options", [{}, {"columns": ("value",)}])
def test_offsets_inside_a_batch_do_not_stay(kcodec_broker: Broker, topic: str, options: dict[str, Any]) -> None:
    """A look at them while rows of one partition are left must not count when another partition is read."""
    with kcodec.read_topic(topic, bootstrap_servers=kcodec_broker.bootstrap_servers, **options) as read:
        seen = 0
        for _ in read.rows():
            seen += 1
            if seen % RECORDS == 2:
                assert sum(one.next_offset for one in read.offsets.values()) <= seen
        assert seen == PARTITIONS * RECORDS
        assert [one.next_offset for one in read.offsets.values()] == [RECORDS] * PARTITIONS
        assert f"{seen} of {seen} offsets" in repr(read)


def test_a_read_of_ranges_closed_early_is_not_complete(kcodec_broker: Broker, topic: str) -> None:
    """Also if all records have arrived at the client."""
    ranges = [OffsetRange(topic, partition, 0, RECORDS) for partition in range(PARTITIONS)]
    with kcodec.read_ranges(ranges, bootstrap_servers=kcodec_broker.bootstrap_servers) as records:
        assert len(next(records)) == RECORDS
        bounded: Any = records._reading._read
        wait_for(lambda: not bounded._reading)
    with pytest.raises(TransportError, match="was closed before it was complete"):
        next(records)
    assert sum(one.next_offset for one in records.ranges) == RECORDS


def test_a_cancelled_read_does_not_count_what_it_has_not_returned(
    kcodec_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread decodes: it goes on when the call is cancelled, for example by a timeout."""
    decode, is_decoding, may_end = RangeDecoder.decode, threading.Event(), threading.Event()

    def slow(self: RangeDecoder, response: Any) -> Any:
        found = decode(self, response)
        is_decoding.set()
        may_end.wait(SECONDS)
        return found

    monkeypatch.setattr(RangeDecoder, "decode", slow)
    place = TopicPartition(topic, 0)

    async def run() -> None:
        read = aio_read_topic(topic, partitions=[0], bootstrap_servers=kcodec_broker.bootstrap_servers)
        async with read:
            task = asyncio.ensure_future(read.__anext__())
            await asyncio.to_thread(is_decoding.wait, SECONDS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert read.offsets[place].next_offset == 0
            may_end.set()
            await asyncio.to_thread(wait_for, lambda: read._reading.ready)
            assert read.offsets[place].next_offset == 0

    asyncio.run(run())
