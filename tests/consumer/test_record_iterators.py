# SPDX-License-Identifier: Apache-2.0
"""The iterators of the compiled core that `for` and `async for` over a consumer use, with hostile callers."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kcodec import Record
from kcodec._fast import AsyncRecordIterator, Delivery, RecordIterator

RECORDS = [Record(offset, 0, 0, None, b"%d" % offset) for offset in range(6)]


def delivery(*records: Any) -> Delivery:
    made = Delivery()
    made.records = iter(records)
    return made


def requests(*parts: Any) -> Callable[[], Any]:
    """A function that returns, or raises, these in turn."""
    left = list(parts)

    def request() -> Any:
        part = left.pop(0)
        if isinstance(part, BaseException):
            raise part
        return part

    return request


def awaited(request: Callable[[], Any]) -> Callable[[], Any]:
    async def coroutine() -> Any:
        await asyncio.sleep(0)
        return request()

    return coroutine


def test_records_come_in_order_over_deliveries() -> None:
    records = RecordIterator(requests(delivery(*RECORDS[:2]), delivery(), delivery(*RECORDS[2:])))
    assert [next(records).offset for _ in RECORDS] == list(range(6))


def test_a_delivery_that_is_over_is_not_used() -> None:
    first = delivery(*RECORDS[:3])
    records = RecordIterator(requests(first, delivery(RECORDS[5])))
    assert next(records).offset == 0
    first.is_over = True
    assert next(records).offset == 5


def test_an_error_of_a_request_does_not_end_the_iterator() -> None:
    records = RecordIterator(requests(LookupError("once"), delivery(RECORDS[1])))
    with pytest.raises(LookupError):
        next(records)
    assert next(records).offset == 1


def test_async_records_are_those_of_the_deliveries() -> None:
    async def story() -> list[int | None]:
        request = requests(delivery(*RECORDS[:2]), LookupError("once"), delivery(), delivery(*RECORDS[2:]))
        records = AsyncRecordIterator(awaited(request))
        found: list[int | None] = [(await anext(records)).offset, (await records.__anext__()).offset]
        with pytest.raises(LookupError):
            await anext(records)
        async for record in records:
            found.append(record.offset)
            if record.offset == 5:
                break
        return found

    assert asyncio.run(story()) == list(range(6))


def test_async_records_under_a_tracer_are_the_same() -> None:
    """A traced `await` takes another way through the interpreter."""

    async def story() -> list[int | None]:
        records = AsyncRecordIterator(awaited(requests(delivery(*RECORDS[:3]), delivery(*RECORDS[3:]))))
        return [(await anext(records)).offset for _ in RECORDS]

    before = sys.gettrace()
    sys.settrace(lambda *given: None)
    try:
        assert asyncio.run(story()) == list(range(6))
    finally:
        sys.settrace(before)


def test_a_cancelled_request_is_made_again() -> None:
    async def story() -> int | None:
        parts = [asyncio.sleep(60.0), asyncio.sleep(0.0, delivery(RECORDS[0]))]

        async def request() -> Any:
            return await parts.pop(0)

        records = AsyncRecordIterator(request)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(records), 0.02)
        return (await anext(records)).offset

    assert asyncio.run(story()) == 0


def test_two_tasks_cannot_await_the_same_iterator() -> None:
    async def story() -> list[Any]:
        records = AsyncRecordIterator(awaited(requests(delivery(*RECORDS))))

        async def one() -> Any:
            return (await anext(records)).offset

        return [*await asyncio.gather(one(), one(), return_exceptions=True)]

    first, second = asyncio.run(story())
    assert first == 0 and isinstance(second, RuntimeError)


@pytest.mark.parametrize("wrong", [5, None, object()])
def test_records_that_are_no_iterator_are_refused(wrong: Any) -> None:
    made = Delivery()
    made.records = wrong
    with pytest.raises(TypeError):
        next(RecordIterator(requests(made)))
    with pytest.raises((TypeError, AttributeError)):
        next(RecordIterator(requests(wrong)))


def test_iterators_that_are_closed_while_they_run_survive() -> None:
    """A request that closes its own iterator, and records that replace what is iterated."""

    class Replacing:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            made.records = iter(())
            return RECORDS[0]

    made = delivery()
    made.records = Replacing()
    assert next(RecordIterator(requests(made))).offset == 0

    async def story() -> None:
        async def request() -> Any:
            for call in (records.close, lambda: records.send(None), lambda: records.throw(KeyError())):
                with pytest.raises(RuntimeError, match="already executing"):
                    call()
            await asyncio.sleep(0)
            return delivery(RECORDS[1])

        records = AsyncRecordIterator(request)
        for _ in range(300):
            assert (await anext(records)).offset == 1

    asyncio.run(story())


@pytest.mark.parametrize("kind", [RecordIterator, AsyncRecordIterator])
def test_an_iterator_without_a_consumer_says_so(kind: Any) -> None:
    made = kind(requests())
    for duplicate in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="an iterator over a consumer cannot be pickled"):
            duplicate(made)
    with pytest.raises(AttributeError):
        next(kind.__new__(kind))


def test_records_are_released() -> None:
    record = Record(1, 0, 0, None, b"value")
    before = sys.getrefcount(record)

    async def story() -> None:
        count = 0
        records = AsyncRecordIterator(awaited(lambda: delivery(*[record] * 100)))
        async for _ in records:
            count += 1
            if count == 1050:
                break

    asyncio.run(story())
    for _, _ in zip(range(1050), RecordIterator(lambda: delivery(*[record] * 100)), strict=False):
        pass
    del _
    assert sys.getrefcount(record) == before
