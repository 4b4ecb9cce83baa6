# SPDX-License-Identifier: Apache-2.0
"""Consumers on a real broker, through their APIs: a life in a group with handovers, both protocols; rows and columns;
what is committed is where the next one goes on."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest

from kcodec import TopicPartition
from kcodec.client import Admin, Consumer, Producer
from kcodec.client.aio import Consumer as AioConsumer
from kcodec.testing.kafka import ApacheKafka

RECORDS = 400


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    """Four partitions with committed and aborted records and markers among and behind them; RECORDS are committed."""
    name = apache_kafka.create_topic(partitions=4)
    options: dict[str, Any] = {"bootstrap_servers": apache_kafka.bootstrap_servers, "transactional_id": f"fill-{name}"}
    with Producer(**options) as producer:
        for number in range(4):
            with producer.transaction() as txn:
                for at in range(RECORDS // 2):
                    txn.send(name, b"%d-%d" % (number, at), partition=at % 4)
                if number % 2:
                    txn.abort()
    return name


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Member(threading.Thread):
    """A consumer that polls on a thread of its own; what it got, was given and gave away."""

    def __init__(self, servers: str, group: str, topic: str, **options: Any) -> None:
        super().__init__(daemon=True)
        self.given: list[frozenset[TopicPartition]] = []
        self.taken: list[frozenset[TopicPartition]] = []
        self.values: list[bytes | None] = []
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.consumer = Consumer(
            bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", max_poll_records=7, **options
        )
        self.consumer.subscribe([topic], on_assigned=self.given.append, on_revoked=self.taken.append)
        self.start()

    def run(self) -> None:
        try:
            with self.consumer:
                while not self.stop.is_set():
                    self.values += [record.value for record in self.consumer.poll(0.05)]
                    time.sleep(0.005)
        except BaseException as error:  # noqa: BLE001  shown by `end`
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self.join(20.0)
        assert self.error is None and not self.is_alive(), self.error


@pytest.fixture
def members() -> Iterator[list[Member]]:
    made: list[Member] = []
    yield made
    for one in made:
        one.end()


@pytest.mark.parametrize("options", [{}, {"group_protocol": "consumer"}], ids=["classic", "consumer"])
def test_a_group_hands_over_without_loss_or_repetition(
    apache_kafka: ApacheKafka, topic: str, members: list[Member], options: dict[str, Any]
) -> None:
    """Automatic commits at each handover: a second member comes, the first goes, each record is read once."""
    group = f"handover-{uuid.uuid4().hex}"
    start = apache_kafka.bootstrap_servers, group, topic
    first = Member(*start, **options)
    members.append(first)
    wait_until(lambda: len(first.values) > 10)
    second = Member(*start, **options)
    members.append(second)
    wait_until(lambda: len(second.consumer.assignment()) == 2)
    first.end()
    wait_until(lambda: len(second.consumer.assignment()) == 4)
    wait_until(lambda: len(first.values) + len(second.values) >= RECORDS)
    second.end()
    assert Counter(first.values + second.values) == Counter(
        b"%d-%d" % (number, at) for number in (0, 2) for at in range(RECORDS // 2)
    )
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        lags = admin.describe_group_lag(group)
    assert {one.lag for one in lags.values()} == {0}


def test_an_asyncio_consumer_with_a_pattern_reads_all_and_goes_on_where_it_was(
    apache_kafka: ApacheKafka, topic: str
) -> None:
    options: dict[str, Any] = {
        "bootstrap_servers": apache_kafka.bootstrap_servers,
        "group_id": f"pattern-{uuid.uuid4().hex}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "max_poll_records": 1,
    }

    async def half() -> list[bytes | None]:
        reported: list[Any] = []
        async with AioConsumer(**options) as consumer:

            async def on_assigned(partitions: frozenset[TopicPartition]) -> None:
                reported.append({await consumer.position(partition) for partition in partitions})

            await consumer.subscribe(pattern=f"^{topic[:-2]}.{{2}}$", on_assigned=on_assigned)
            found: list[bytes | None] = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == RECORDS // 2:
                    break
            await consumer.commit()
            positions = {one: await consumer.position(one) for one in consumer.assignment()}
            assert reported == [{0}]
            committed = await consumer.committed(positions)
            assert {one: found.offset for one, found in committed.items() if found} == positions
        return found

    first = asyncio.run(half())
    with Consumer(**{**options, "max_poll_records": 500}) as consumer:
        consumer.subscribe([topic])
        rest: list[bytes | None] = []
        while len(rest) < RECORDS // 2:
            rest += [record.value for record in consumer.poll(10.0)]
    assert sorted(value or b"" for value in first + rest) == sorted(
        b"%d-%d" % (number, at) for number in (0, 2) for at in range(RECORDS // 2)
    )


def test_columns_are_the_rows(apache_kafka: ApacheKafka, topic: str) -> None:
    partitions = [TopicPartition(topic, number) for number in range(4)]
    options: dict[str, Any] = {"bootstrap_servers": apache_kafka.bootstrap_servers, "auto_offset_reset": "earliest"}
    columns = ("topic", "partition", "offset", "timestamp", "value")
    with Consumer(**options, columns=columns) as arrow, Consumer(**options) as rows:
        for consumer in (arrow, rows):
            consumer.assign(partitions)
        tables: list[Any] = []
        records: list[Any] = []
        while sum(map(len, tables)) < RECORDS:
            tables.append(pyarrow.table(arrow.poll_arrow(10.0)))
        while len(records) < RECORDS:
            records += rows.poll(10.0)
        assert {arrow.position(one) for one in partitions} == {rows.position(one) for one in partitions}
        assert arrow.end_offsets(partitions) == {one: arrow.position(one) for one in partitions}
    found = pyarrow.concat_tables(tables)
    assert sorted(zip(*(found.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True)) == [
        (record.partition, record.offset, record.value)
        for record in sorted(records, key=lambda record: (record.partition, record.offset))
    ]
    assert set(found.column("topic").to_pylist()) == {topic}


def test_one_that_stops_polling_loses_its_partitions_and_comes_back(apache_kafka: ApacheKafka, topic: str) -> None:
    reported: list[tuple[str, int]] = []
    with Consumer(
        bootstrap_servers=apache_kafka.bootstrap_servers,
        group_id=f"slow-{uuid.uuid4().hex}",
        auto_offset_reset="earliest",
        max_poll_interval_ms=400,
        max_poll_records=1,
    ) as consumer:
        consumer.subscribe(
            [topic],
            on_assigned=lambda partitions: reported.append(("assigned", len(partitions))),
            on_lost=lambda partitions: reported.append(("lost", len(partitions))),
        )
        wait_until(lambda: bool(consumer.poll(0.1)))
        time.sleep(0.9)
        wait_until(lambda: bool(consumer.poll(0.1)))
    assert reported == [("assigned", 4), ("lost", 4), ("assigned", 4)]
