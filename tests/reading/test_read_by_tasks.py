# SPDX-License-Identifier: Apache-2.0
"""Bounded reads with several tasks or threads, and with calls that are cancelled. The broker is kcodec's own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

import kcodec
from kcodec import OffsetRange
from kcodec.broker import Broker
from kcodec.client import aio
from kcodec.errors import TransportError

ROWS = 600
PARTITIONS = 2
ALONE = "another call waits for the next batch"
Made = Callable[..., Any]


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            for first in range(0, ROWS, 20):
                broker.seed("t", [b"%d" % number for number in range(first, first + 20)], partition=partition)
        yield broker


@pytest.fixture
def broker(served: Broker) -> Iterator[Broker]:
    yield served
    served.faults.clear()


def read(api: Any, kind: str, broker: Broker, **options: Any) -> Any:
    options = {"bootstrap_servers": broker.bootstrap_servers, "max_partition_fetch_bytes": 500, **options}
    if kind == "read_topic":
        return api.read_topic("t", **options)
    return api.read_ranges([OffsetRange("t", number, 0, ROWS) for number in range(PARTITIONS)], **options)


KINDS = pytest.mark.parametrize("kind", ["read_topic", "read_ranges"])
STYLES = pytest.mark.parametrize("style", ["batches", "rows"])


async def places_of(records: Any, style: str) -> list[tuple[int, int]]:
    found = []
    if style == "rows":
        async for record in records.rows():
            found.append((record.partition, record.offset))
    else:
        async for batch in records:
            found += [(record.partition, record.offset) for record in batch.records()]
    return found


@KINDS
@STYLES
def test_only_one_task_iterates_and_gets_all_records(broker: Broker, kind: str, style: str) -> None:
    async def main() -> None:
        async with read(aio, kind, broker) as records:
            first, *others = await asyncio.gather(
                *(places_of(records, style) for _ in range(3)), return_exceptions=True
            )
        assert isinstance(first, list)
        assert Counter(first) == dict.fromkeys(((p, o) for p in range(PARTITIONS) for o in range(ROWS)), 1)
        for other in others:
            assert isinstance(other, RuntimeError)
            assert ALONE in str(other)

    asyncio.run(main())


@KINDS
def test_a_thread_that_iterates_keeps_others_out(broker: Broker, kind: str) -> None:
    broker.faults.add("Fetch", delay_ms=1000, count=PARTITIONS)
    with read(kcodec, kind, broker) as records:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(len(batch) for batch in records))
        thread.start()
        deadline = time.monotonic() + 20
        while not records._iterating.locked():
            assert time.monotonic() < deadline
        with pytest.raises(RuntimeError, match=f"{ALONE}: only one thread can iterate"):
            next(records)
        with pytest.raises(RuntimeError, match=ALONE):
            next(records.rows())
        thread.join(30)
    assert sum(found) == ROWS * PARTITIONS


@KINDS
@STYLES
@pytest.mark.parametrize("seed", range(3))
def test_cancelled_calls_neither_lose_nor_repeat_a_record(broker: Broker, kind: str, style: str, seed: int) -> None:
    random = Random(seed)
    for api_key in ("Metadata", "ListOffsets"):
        broker.faults.add(api_key, delay_ms=15, count=3)
    for _ in range(40):
        broker.faults.add("Fetch", delay_ms=random.randint(1, 15), count=1)

    async def take(iterator: Any, found: list[tuple[int, int]]) -> None:
        while True:
            got = await anext(iterator)
            for record in [got] if style == "rows" else got.records():
                found.append((record.partition, record.offset))

    async def main() -> tuple[list[tuple[int, int]], int]:
        found: list[tuple[int, int]] = []
        cancelled = 0
        records = read(aio, kind, broker)
        iterator = records.rows() if style == "rows" else records
        while True:
            try:
                async with asyncio.timeout(random.random() * 0.004):
                    await take(iterator, found)
            except TimeoutError:
                cancelled += 1
                await asyncio.sleep(random.choice([0, 0, 0.001]))
            except StopAsyncIteration:
                await records.close()
                return found, cancelled

    found, cancelled = asyncio.run(main())
    assert Counter(found) == dict.fromkeys(((p, o) for p in range(PARTITIONS) for o in range(ROWS)), 1)
    for partition in range(PARTITIONS):
        assert [offset for number, offset in found if number == partition] == list(range(ROWS))
    assert cancelled > 10


def test_a_call_after_a_cancellation_waits_for_the_decoding(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        async with read(aio, "read_topic", broker) as records:
            decode = records._reading.decode
            ended = 0

            def slow(response: Any) -> Any:
                nonlocal ended
                time.sleep(0.1)
                ended += 1
                return decode(response)

            monkeypatch.setattr(records._reading, "decode", slow)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(records)
            before = ended
            batch = await anext(records)
            assert before == 0
            assert ended == 1
            return len(batch)

    assert asyncio.run(main()) > 0


def test_a_block_whose_start_is_cancelled_is_closed(broker: Broker) -> None:
    async def main() -> None:
        broker.faults.add("ListOffsets", delay_ms=500, count=2)
        records = read(aio, "read_topic", broker)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), records:
                pass
        assert records._io_loop.is_closed
        with pytest.raises(asyncio.CancelledError):  # the reason that the read ended
            raise records._reading.failure
        with pytest.raises(TransportError, match="closed before it was complete"):
            await anext(records)

    asyncio.run(main())
