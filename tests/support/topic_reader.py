# SPDX-License-Identifier: Apache-2.0
"""Reads topics of a `TopicWorld` as both APIs of read_topic do, and logs to be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scripted_topic import ServedLog, TopicWorld

from kcodec.cluster.retry_driver import CallContext
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import DecodeError
from kcodec.flow import Flow
from kcodec.offsets import OffsetRange
from kcodec.reading.bounded_read import BoundedRead
from kcodec.reading.decoding import RangeDecoder
from kcodec.reading.partition_read import ReadRange
from kcodec.reading.ranges import TopicRange

SETTINGS = ConsumerSettings(
    default_api_timeout=5.0, request_timeout=1.0, retry_backoff=lambda attempt, random: 0.05, fetch_ahead_max_bytes=4096
)


class Reader:
    """Reads in a world as both APIs do, and stores the records, and in `damage` the error that would be raised."""

    def __init__(self, world: TopicWorld, topic: str = "t", *, max_rows: int | None = None, **settings: Any) -> None:
        self.world = world
        self.topic = topic
        self.settings = replace(SETTINGS, **settings)
        self.decoder = RangeDecoder(self.settings, max_rows)
        self.rows: dict[int, list[tuple[int, bytes]]] = {}
        self.damage: DecodeError | None = None
        self.read: BoundedRead

    def open(self, **where: Any) -> Reader:
        where = {"partitions": None, "start": "earliest", "end": "latest"} | where
        narrow = where.pop("narrow", None)
        wanted = TopicRange(self.topic, **where)
        wanted.narrow = narrow or wanted.narrow

        def flow() -> Flow[None]:
            cluster = self.world.cluster
            context = CallContext(cluster, 5.0, lambda: 0)
            ranges = yield from wanted.resolve(context, self.settings.isolation_level)
            yield from cluster.ensure_topic(self.topic, 5.0)
            found = [OffsetRange(self.topic, number, start, end) for number, (start, end) in ranges.items()]
            self.read = BoundedRead(cluster, found, self.settings)
            yield from self.read.start()

        self.world.run_flow(flow())
        return self

    def take(self) -> bool:
        """Process one response. Return whether there was one."""
        answer = self.world.run_flow(self.read.next_response())
        if answer is None:
            return False
        chunks, self.damage = self.decoder.decode(answer)
        for record in (record for chunk in chunks for record in chunk.records()):
            assert record.topic == self.topic
            assert record.partition is not None
            self.rows.setdefault(record.partition, []).append((record.offset, record.value or b""))
        return True

    def all(self) -> Reader:
        while not self.decoder.is_full and self.take():
            if self.damage is not None:
                raise self.damage
        return self

    @property
    def ranges(self) -> list[ReadRange]:
        return [partition.read_range for partition in self.read.partitions]


def world_of(partitions: int = 1, **options: Any) -> tuple[TopicWorld, list[ServedLog]]:
    world = TopicWorld(**options)
    return world, world.create_logs("t", partitions)


def fill(log: ServedLog, batches: int = 10, records: int = 3) -> None:
    for number in range(batches):
        log.append(*[b"%d-%d" % (number, index) for index in range(records)])


def transactions(log: ServedLog) -> None:
    """Append interleaved committed, aborted and plain records."""
    log.append(b"a", b"b", producer_id=1)
    log.append(b"c", producer_id=2)
    log.append(b"plain")
    log.append(b"d", b"e", producer_id=1)
    log.finish(2, commit=False)
    log.append(b"f", producer_id=3)
    log.finish(1, commit=True)
    log.finish(3, commit=False)
