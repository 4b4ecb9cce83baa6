# SPDX-License-Identifier: Apache-2.0
"""A consumer core with a scripted membership, run by a thread or by an asyncio loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from kcodec import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.client import Consumer
from kcodec.client.aio import Consumer as AioConsumer
from kcodec.cluster.flow_lock import FlowLock
from kcodec.flow import Flow, Signal, spawn, wait


class Offsets:
    """Committed offsets that are only recorded. failing: the error of the next commit."""

    unstable: frozenset[TopicPartition] = frozenset()

    def __init__(self, cluster: Any, group_id: str, settings: Any) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.failing: BaseException | None = None

    def commit(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], member: Any, timeout: float, limit: float, **more: Any
    ) -> Flow[None]:
        yield from ()
        if self.failing is not None:
            error, self.failing = self.failing, None
            raise error
        self.commits.append({partition: each.offset for partition, each in offsets.items()})


class Fetched:
    """A fetcher with the records that a test puts into `ready`. A position advances past the records that are taken."""

    def __init__(self, cluster: Any, assignment: Any, settings: Any, metrics: Any) -> None:
        self.buffer = self
        self.assignment = assignment
        self.arrived = Signal()
        self.ready: list[tuple[TopicPartition, int]] = []
        self.skipped_batches = 0

    @property
    def has_ready(self) -> bool:
        return bool(self._deliverable())

    def _deliverable(self) -> list[tuple[TopicPartition, int]]:
        states = self.assignment.partitions
        return [each for each in self.ready if each[0] in states and states[each[0]].is_fetchable]

    def run(self) -> Flow[None]:
        yield from wait(Signal())

    def take(self, max_records: int) -> list[Any]:
        found = self._deliverable()[:max_records]
        for each in found:
            self.ready.remove(each)
            self.assignment.partitions[each[0]].position = each[1] + 1
        return found

    take_arrow: Any = None

    def drop(self, partitions: Any) -> None:
        self.ready = [each for each in self.ready if each[0] not in set(partitions)]


class AtZero:
    """Positions: every partition begins at 0."""

    def __init__(self, cluster: Any, assignment: Any, *others: Any, **more: Any) -> None:
        self.assignment = assignment

    def run(self) -> Flow[None]:
        while True:
            for partition, state in self.assignment.partitions.items():
                if state.position is None:
                    self.assignment.seek(partition, 0)
            yield from wait(self.assignment.changed)


class Member:
    """A membership whose rebalances are made by a test."""

    made: ClassVar[list[Member]] = []

    def __init__(self, cluster: Any, settings: Any, handler: Any, member_id: str | None = None) -> None:
        self.changed = Signal()
        self.group_lock = FlowLock(cluster.clock)
        self.error: BaseException | None = None
        self.handler = handler
        self.group_metadata = ConsumerGroupMetadata("billing", 7, "m")
        self.is_stable = True
        self.left: list[str] = []
        self.wanted: Any = None
        self.rejoins: list[str] = []
        Member.made.append(self)

    def run(self) -> Flow[None]:
        yield from wait(Signal())

    def subscribe(self, topics: Any, pattern: str | None = None) -> None:
        self.wanted = (frozenset(topics), pattern)

    def request_rejoin(self, reason: str) -> None:
        self.rejoins.append(reason)

    def note_poll(self, now: float) -> None:
        self.polled = now

    def leave(self, timeout: float, reason: str) -> Flow[None]:
        yield from ()
        self.left.append(reason)


class Threads:
    """The sync API."""

    def __init__(self, **options: Any) -> None:
        self.consumer: Any = Consumer(bootstrap_servers="127.0.0.1:1", **options)

    def do(self, call: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.consumer, call)(*args, **kwargs)

    def flow(self, flow: Flow[Any]) -> Any:
        """Begin another flow; gives its task."""
        return self.consumer._io_loop.run(spawn(flow, "second flow"))

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def end(self) -> None:
        self.do("close", 1.0)


class Loop(Threads):
    """The asyncio API."""

    def __init__(self, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.consumer = AioConsumer(bootstrap_servers="127.0.0.1:1", **options)

    def do(self, call: str, *args: Any, **kwargs: Any) -> Any:
        async def called() -> Any:
            found = getattr(self.consumer, call)(*args, **kwargs)
            return await found if asyncio.iscoroutine(found) else found

        return self.loop.run_until_complete(called())

    def flow(self, flow: Flow[Any]) -> Any:
        return self.loop.run_until_complete(self.consumer._run(spawn(flow, "second flow")))

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def end(self) -> None:
        super().end()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
