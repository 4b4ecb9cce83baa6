# SPDX-License-Identifier: Apache-2.0
"""Public consumers, for threads and asyncio, that read logs in memory: without sockets, with a membership that a test
controls, and with committed offsets that outlive a consumer.

world = IterationWorld(monkeypatch)
world.fill(ONE, 1000)
client = world.open("thread", max_poll_records=500)     # subscribed, nothing assigned
world.give(client, ONE)
client.take(3)                                        # three records of `for record in consumer`, left by break
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from consumer_runs import Loop, Member, Threads
from scripted_topic import ServedLog

import kcodec.consumer.group.classic.membership
import kcodec.consumer.group.modern.membership
from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.consumer import core as consumer_core
from kcodec.consumer.fetch_buffer import FetchBuffer, FetchedPartition
from kcodec.flow import Flow, Signal, wait

ONE, TWO, THREE = (TopicPartition("orders", number) for number in range(3))
#: Batches of one fetch response.
BATCHES = 3
#: Responses of one partition that wait for the consumer.
AHEAD = 2


class LogFetcher:
    """A fetcher whose brokers respond at once. Fetched data is buffered and taken as by the real fetcher."""

    world: IterationWorld

    def __init__(self, cluster: Any, assignment: Any, settings: Any, metrics: Any) -> None:
        self.assignment = assignment
        self.settings = settings
        self.arrived = Signal()
        self.buffer = FetchBuffer(assignment, settings, assignment.poke)

    def run(self) -> Flow[None]:
        while True:
            with self.assignment.lock:
                for state in self.assignment.partitions.values():
                    self._fetch(state)
            if self.buffer.has_ready:
                self.arrived.set()
            yield from wait(self.assignment.changed)

    def _fetch(self, state: Any) -> None:
        while state.is_fetchable and len(ahead := self.buffer.ahead(state)) < AHEAD:
            offset = ahead[-1].next_offset if ahead else state.position
            answer = self.world.answer(state.topic_partition, offset)
            if offset is None or not answer.records:
                return
            assert self.buffer.add(FetchedPartition(state, state.version, offset, answer, self.settings))

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        with self.assignment.lock:
            self.buffer.drop(partitions)
        self.assignment.poke()


class StoredOffsets:
    """Committed offsets of a group. on_commit: called with the offsets before they are stored."""

    world: IterationWorld

    def __init__(self, cluster: Any, group_id: str, settings: Any) -> None:
        self.unstable: set[TopicPartition] = set()

    def commit(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], member: Any, timeout: float, limit: float, **more: Any
    ) -> Flow[None]:
        yield from ()
        found = {partition: each.offset for partition, each in offsets.items()}
        self.world.on_commit(found)
        self.world.commits.append(found)
        self.world.stored.update(found)


class FromStore:
    """Positions: every partition begins at its committed offset, or at 0."""

    world: IterationWorld

    def __init__(self, cluster: Any, assignment: Any, *others: Any, **more: Any) -> None:
        self.assignment = assignment

    def run(self) -> Flow[None]:
        while True:
            for partition, state in list(self.assignment.partitions.items()):
                if state.position is None:
                    self.assignment.seek(partition, self.world.stored.get(partition, 0))
            yield from wait(self.assignment.changed)


class IterationThreads(Threads):
    """The blocking consumer."""

    def iterate(self) -> Any:
        return iter(self.consumer)

    def next(self, iterator: Any) -> Any:
        return next(iterator)

    def take(self, count: int) -> list[Any]:
        """Return the records of a loop that ends with break."""
        return list(itertools.islice(self.consumer, count))

    def leave(self, error: BaseException | None = None) -> None:
        """End the block of the consumer."""
        self.consumer.__exit__(None if error is None else type(error), error, None)


class IterationLoop(Loop):
    """The consumer for asyncio."""

    def iterate(self) -> Any:
        return aiter(self.consumer)

    def next(self, iterator: Any) -> Any:
        async def one() -> Any:
            return await asyncio.wait_for(anext(iterator), 10.0)

        return self.loop.run_until_complete(one())

    def take(self, count: int) -> list[Any]:
        async def some() -> list[Any]:
            found: list[Any] = []
            if count:
                async for record in self.consumer:
                    found.append(record)
                    if len(found) == count:
                        break
            return found

        return self.loop.run_until_complete(asyncio.wait_for(some(), 10.0))

    def leave(self, error: BaseException | None = None) -> None:
        self.loop.run_until_complete(self.consumer.__aexit__(None if error is None else type(error), error, None))


ConsumerClient = IterationThreads | IterationLoop
APIS: dict[str, Callable[..., ConsumerClient]] = {"thread": IterationThreads, "asyncio": IterationLoop}


class IterationWorld:
    """See the module. commits: in order; stored: the last committed offset of each partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs: dict[TopicPartition, ServedLog] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.stored: dict[TopicPartition, int] = {}
        self.on_commit: Callable[[dict[TopicPartition, int]], None] = lambda offsets: None
        self.batches = BATCHES
        self._clients: list[ConsumerClient] = []
        here = {"world": self}
        for name, kind in (("Fetcher", LogFetcher), ("CommittedOffsets", StoredOffsets), ("Positions", FromStore)):
            monkeypatch.setattr(consumer_core, name, type(name, (kind,), here))
        monkeypatch.setattr(kcodec.consumer.group.classic.membership, "ClassicMembership", Member)
        monkeypatch.setattr(kcodec.consumer.group.modern.membership, "ConsumerMembership", Member)
        Member.made.clear()

    def fill(self, partition: TopicPartition, records: int, per_batch: int = 100) -> ServedLog:
        """Append records to the log of a partition; its offsets are their values."""
        log = self.logs.setdefault(partition, ServedLog())
        end = log.end + records
        while log.end < end:
            log.append(*(b"%d" % offset for offset in range(log.end, min(log.end + per_batch, end))))
        return log

    def answer(self, partition: TopicPartition, offset: int | None) -> Any:
        """Return the data of a broker from this offset on."""
        log = self.logs[partition]
        found = [batch for batch in log.batches if batch.last >= (offset or 0)][: self.batches]
        last = found[-1].last if found else 0
        aborted = [
            SimpleNamespace(producer_id=producer_id, first_offset=first)
            for producer_id, first, marker in log.aborted
            if marker >= (offset or 0) and first <= last
        ]
        data = b"".join(batch.data for batch in found)
        return SimpleNamespace(records=data, high_watermark=log.end, aborted_transactions=aborted)

    def open(self, client: str, *partitions: TopicPartition, **options: Any) -> ConsumerClient:
        """A consumer of the group, subscribed, with these partitions."""
        made = APIS[client](**{"group_id": "billing", **options})
        self._clients.append(made)
        made.do("subscribe", ["orders"])
        if partitions:
            self.give(made, *partitions)
        return made

    def assigned(self, client: str, *partitions: TopicPartition, **options: Any) -> ConsumerClient:
        """A consumer without a group, with these partitions."""
        made = APIS[client](**{"group_id": None, **options})
        self._clients.append(made)
        made.do("assign", list(partitions))
        return made

    @staticmethod
    def handler(client: ConsumerClient) -> Any:
        """Return the handler that the membership of a consumer calls for a rebalance."""
        return client.consumer._core.selection.handler

    def give(self, client: ConsumerClient, *partitions: TopicPartition) -> None:
        """A rebalance that assigns these, too."""
        given = client.flow(self.handler(client).assign(partitions, [*client.do("assignment"), *partitions]))
        states = client.consumer._core.assignment.partitions
        while not given.done or any(states[each].position is None for each in partitions):
            client.wait(0.001)

    def close(self) -> None:
        for client in self._clients:
            client.end()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = IterationWorld(monkeypatch)
    yield made
    made.close()
