# SPDX-License-Identifier: Apache-2.0
"""The kinds of readers of tests/support/random_programs.py: how a program with each of them looks."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from random_programs import MOST_READERS, LastReader, ProgramError, World, ctrl_c_after

from kcodec import TopicPartition
from kcodec.client import Consumer, aio
from kcodec.errors import BrokerError

INTERRUPTS = (0.0005, 0.002, 0.01, 0.05, 0.1)
TIMEOUTS = (0.0, 0.02, 0.1, 0.3)
ENDS = ("close", "with", "drop", "error")


def consumer_options(world: World) -> dict[str, Any]:
    """Options of a consumer, among them one of three ways to commit offsets."""
    random = world.random
    options: dict[str, Any] = {
        "bootstrap_servers": world.servers,
        "group_id": world.group,
        "auto_offset_reset": "earliest",
        "group_protocol": world.protocol,
        "auto_commit_interval_ms": random.choice([0, 20, 200, 5000]),
        "max_poll_records": random.choice([1, 3, 10, 500]),
    }
    if world.protocol == "classic":
        options["partition_assignment_strategy"] = world.strategy
    return options | random.choice([{}, {}, {"enable_auto_commit": False}, {"enable_auto_offset_store": False}])


@contextlib.contextmanager
def expected_refusal() -> Iterator[None]:
    """The coordinator refuses a commit if the group has begun another generation, which reads the records again."""
    try:
        yield
    except BrokerError as error:
        if error.remedy != "abort":
            raise


class Reader(ABC):
    """A reader of the sync API; `step` is one iteration of its loop."""

    def __init__(self, world: World) -> None:
        self.world = world

    @abstractmethod
    def step(self, *, is_failing: bool) -> None: ...

    @abstractmethod
    def end(self, how: str) -> None: ...

    @abstractmethod
    def drop(self) -> None: ...


class ConsumerReader(Reader):
    """kcodec.client.Consumer with the calls that return records within a timeout."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.options = consumer_options(world)
        self.style = world.random.choice(["poll", "poll_one", "poll_arrow"])
        world.note(f"open, {self.style}, {self.options}")
        self.consumer = Consumer(**self.options)
        self.consumer.subscribe(world.topic)

    def step(self, *, is_failing: bool) -> None:
        self._other_call()
        random, consumer = self.world.random, self.consumer
        timeout = random.choice(TIMEOUTS)
        if self.style == "poll":
            self._process(consumer.poll(timeout), is_failing=is_failing)
        elif self.style == "poll_arrow":
            self._process(list(consumer.poll_arrow(timeout).records()), is_failing=is_failing)
        else:
            one = consumer.poll_one(timeout)
            self._process([] if one is None else [one], is_failing=is_failing)

    def _process(self, records: list[Any], *, is_failing: bool) -> None:
        world, stores = self.world, "enable_auto_offset_store" in self.options
        world.note(f"records {[(one.partition, one.offset) for one in records[:2]]} of {len(records)}")
        stop = world.errors_at(records, is_failing=is_failing)
        for number, record in enumerate(records):
            if number == stop:
                raise ProgramError
            world.process(record.partition, record.offset, record.value)
            if stores and world.random.random() < 0.8:
                self.consumer.store_offsets(record)
        if stop is not None:
            raise ProgramError
        if "enable_auto_commit" in self.options and records and world.random.random() < 0.7:
            after = {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}
            commits: list[Callable[[], object]] = [
                self.consumer.commit,
                self.consumer.commit_async,
                lambda: self.consumer.commit(after),
            ]
            with expected_refusal():
                world.random.choice(commits)()

    def _other_call(self) -> None:
        """Pause, resume, go back, or subscribe again."""
        random, consumer = self.world.random, self.consumer
        choice = random.random()
        assigned = sorted(consumer.assignment())
        if choice < 0.06 and assigned:
            consumer.pause(random.choice(assigned))
        elif choice < 0.15:
            consumer.resume(*consumer.paused())
        elif choice < 0.20 and assigned:
            place = random.choice(assigned)
            position = consumer.position(place)
            if position:
                self.world.note(f"seek from {position} in {place.partition}")
                consumer.seek(place, random.randrange(position + 1))
        elif choice < 0.30:
            self.world.note("subscribe again")
            consumer.unsubscribe()
            consumer.subscribe(self.world.topic)

    def end(self, how: str) -> None:
        self.world.note(f"end: {how}")
        if how == "close":
            self.consumer.close()
        elif how == "drop":
            self.drop()
        else:
            try:
                with self.consumer:
                    if how == "error":
                        raise ProgramError
            except ProgramError:
                self.world.note("ended")

    def drop(self) -> None:
        del self.consumer


def run_program(world: World, kind: Callable[[World], Reader]) -> None:
    """Run a program with readers of the sync API."""
    random = world.random
    world.produce(random.randrange(1, 200))
    readers = [kind(world)]
    for _ in range(random.randrange(5, 40)):
        if random.random() < 0.12:
            world.produce(random.choice([1, 5, 50, 300]))
        if not readers or (random.random() < 0.07 and len(readers) < MOST_READERS):
            readers.append(kind(world))
        reader, how = random.choice(readers), None
        try:
            with ctrl_c_after(random.choice(INTERRUPTS) if random.random() < 0.15 else None):
                reader.step(is_failing=random.random() < 0.06)
        except (ProgramError, KeyboardInterrupt) as error:
            world.interrupts += isinstance(error, KeyboardInterrupt)
            how = "error"
        if how is None and random.random() < 0.05:
            how = random.choice(ENDS[:3])
        if how is not None:
            readers.remove(reader)
            _end(reader, how)
    for reader in readers:
        _end(reader, random.choice(ENDS))


def _end(reader: Reader, how: str) -> None:
    """End a reader, sometimes with a Ctrl-C meanwhile. A reader that the Ctrl-C has not closed is dropped."""
    random = reader.world.random
    try:
        with ctrl_c_after(random.choice(INTERRUPTS) if how != "drop" and random.random() < 0.3 else None):
            reader.end(how)
    except KeyboardInterrupt:
        reader.world.interrupts += 1
        reader.world.note("interrupted")
        reader.drop()


def read_rest(world: World) -> None:
    """Read what is left, with one more consumer of the group."""
    options = consumer_options(world) | {"max_poll_records": 500}
    options.pop("enable_auto_offset_store", None)
    last, is_found = LastReader(world), False
    with Consumer(**options) as consumer:
        consumer.subscribe(world.topic)
        while last.goes_on(is_found=is_found, has_partitions=len(consumer.assignment()) == world.partitions):
            records = consumer.poll(timeout=0.2)
            is_found = bool(records)
            for record in records:
                world.process(record.partition, record.offset, record.value)


class AsyncReader:
    """kcodec.client.aio.Consumer, whose calls are cancelled."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.options = consumer_options(world)
        self.style = world.random.choice(["poll", "poll_one", "poll_arrow"])
        world.note(f"open, {self.style}, {self.options}")
        self.consumer = aio.Consumer(**self.options)

    async def step(self, *, is_failing: bool) -> None:
        world, consumer = self.world, self.consumer
        if not consumer.subscription():
            await consumer.subscribe(world.topic)
        assigned = sorted(consumer.assignment())
        if assigned and world.random.random() < 0.05:
            position = await consumer.position(assigned[0])
            if position:
                await consumer.seek(assigned[0], world.random.randrange(position + 1))
        timeout = world.random.choice(TIMEOUTS)
        if self.style == "poll":
            found = await self._cancelled(lambda: consumer.poll(timeout))
        elif self.style == "poll_one":
            one = await self._cancelled(lambda: consumer.poll_one(timeout))
            found = None if one is None else [one]
        else:
            table = await self._cancelled(lambda: consumer.poll_arrow(timeout))
            found = None if table is None else list(table.records())
        await self._process(found or [], is_failing=is_failing)

    async def _cancelled(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a call, or None if it was cancelled after a random time."""
        limit = self.world.random.choice([None, None, *INTERRUPTS])
        try:
            return await asyncio.wait_for(call(), limit)
        except TimeoutError:
            self.world.interrupts += 1
            return None

    async def _process(self, records: list[Any], *, is_failing: bool) -> None:
        world = self.world
        stop = world.errors_at(records, is_failing=is_failing)
        for number, record in enumerate(records):
            if number == stop:
                raise ProgramError
            world.process(record.partition, record.offset, record.value)
            if "enable_auto_offset_store" in self.options:
                self.consumer.store_offsets(record)
        if stop is not None:
            raise ProgramError
        if "enable_auto_commit" in self.options and world.random.random() < 0.7:
            with expected_refusal():
                await self.consumer.commit()

    async def end(self, how: str) -> None:
        self.world.note(f"end: {how}")
        if how == "close":
            await self.consumer.close()
        elif how == "drop":
            self.drop()
        else:
            try:
                async with self.consumer:
                    if how == "error":
                        raise ProgramError
            except ProgramError:
                self.world.note("ended")

    def drop(self) -> None:
        del self.consumer


async def run_async_program(world: World) -> None:
    """Run a program with readers of the asyncio API, several of which read at the same time."""
    random = world.random
    await asyncio.to_thread(world.produce, random.randrange(1, 200))
    readers = [AsyncReader(world)]
    for _ in range(random.randrange(5, 40)):
        if random.random() < 0.12:
            await asyncio.to_thread(world.produce, random.choice([1, 5, 50, 300]))
        if not readers or (random.random() < 0.07 and len(readers) < MOST_READERS):
            readers.append(AsyncReader(world))
        some = [one for one in readers if random.random() < 0.6] or readers[:1]
        steps = [one.step(is_failing=random.random() < 0.06) for one in some]
        for reader, error in zip(some, await asyncio.gather(*steps, return_exceptions=True), strict=True):
            if error is not None and not isinstance(error, ProgramError):
                raise error
            if error is not None or random.random() < 0.05:
                readers.remove(reader)
                await _end_async(reader, "error" if error is not None else random.choice(ENDS[:3]))
    for reader in readers:
        await _end_async(reader, random.choice(ENDS))


async def _end_async(reader: AsyncReader, how: str) -> None:
    """End a reader, and sometimes cancel this. A reader that the cancelled call has not closed is dropped."""
    random = reader.world.random
    try:
        await asyncio.wait_for(reader.end(how), random.choice(INTERRUPTS) if random.random() < 0.3 else None)
    except TimeoutError:
        reader.world.interrupts += 1
        reader.world.note("interrupted")
        reader.drop()
