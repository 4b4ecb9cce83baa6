# SPDX-License-Identifier: Apache-2.0
"""Offsets on a real broker: every version of the requests, offsets that a transaction commits, lag and who holds it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from client_runners import Threaded

from kcodec import (
    ConsumerGroupMetadata,
    DeliveryTimeoutError,
    NoOffsetForPartitionError,
    OffsetAndMetadata,
    OffsetOutOfRangeError,
    TopicPartition,
)
from kcodec.client import Admin, Consumer, Producer
from kcodec.cluster.list_offsets import list_offsets, list_offsets_handler
from kcodec.cluster.retry_driver import CallContext, request_items
from kcodec.constants import IsolationLevel
from kcodec.consumer.assignment import Assignment
from kcodec.consumer.committed_offsets import CommittedOffsets, offset_commit_handler, offset_fetch_handler
from kcodec.consumer.lag import PartitionLag
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.positions import Positions
from kcodec.consumer.truncation import EpochEnd, Position, epoch_end_handler
from kcodec.flow import Flow, sleep, spawn
from kcodec.testing.kafka import ApacheKafka

TIME = 1_767_225_600_000


@pytest.fixture
def runner(apache_kafka: ApacheKafka) -> Iterator[Threaded]:
    found = Threaded(apache_kafka.bootstrap_servers, request_timeout_ms=10_000)
    yield found
    found.end()


@pytest.fixture(scope="module")
def admin(apache_kafka: ApacheKafka) -> Iterator[Admin]:
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as found:
        yield found


def unused() -> str:
    return f"offsets-{uuid.uuid4().hex[:8]}"


def topic_of(
    kafka: ApacheKafka, values: int = 10, transactional_id: str | None = None, apart_ms: int = 1000
) -> TopicPartition:
    """A partition with so many records, in one transaction if there is an id."""
    topic = kafka.create_topic(unused(), partitions=1)
    with Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=transactional_id) as producer:
        if transactional_id is not None:
            producer.init_transactions()
            producer.begin_transaction()
        for number in range(values):
            producer.send(topic, b"%d" % number, partition=0, timestamp=TIME + number * apart_ms)
        if transactional_id is not None:
            producer.commit_transaction()
        producer.flush()
    return TopicPartition(topic, 0)


def test_every_version_is_understood(apache_kafka: ApacheKafka, runner: Threaded) -> None:
    place, group, cluster = topic_of(apache_kafka), unused(), runner.client.cluster
    context = CallContext(cluster, 10.0, int)

    def ask(handler: Any, lowest: int, highest: int) -> dict[int, Any]:
        found = {}
        for version in range(lowest, highest + 1):
            fixed = replace(handler, lowest=max(version, handler.lowest), highest=version)
            outcome = runner.run(request_items(context, [place], fixed, context.deadline(10.0)), 20.0)
            found[version] = outcome.value()[place]
        return found

    runner.run(cluster.ensure_topic(place.topic, 10.0))
    assert cluster.topic_id(place.topic) is not None and cluster.leader_epoch(*place) == 0
    for timestamp, offset in ((-2, 0), (-1, 10), (TIME + 2500, 3), (TIME + 60_000, -1)):
        listed = ask(list_offsets_handler(cluster, {place: timestamp}, IsolationLevel.READ_UNCOMMITTED), 1, 11)
        assert {version: one.offset for version, one in listed.items()} == dict.fromkeys(range(1, 12), offset)
    given = OffsetAndMetadata(7, "note", 0)
    assert set(ask(offset_commit_handler(cluster, group, {place: given}), 2, 10).values()) == {None}
    fetched = ask(offset_fetch_handler(cluster, group, [place]), 1, 10)
    assert fetched == {n: given if n >= 5 else replace(given, leader_epoch=-1) for n in range(1, 11)}
    ends = ask(epoch_end_handler(cluster, {place: Position(7, 0, -1)}), 2, 4)
    assert ends == dict.fromkeys((2, 3, 4), EpochEnd(0, 10))


def test_c10_committed_offsets_wait_for_the_transaction_that_commits_them(
    apache_kafka: ApacheKafka, runner: Threaded
) -> None:
    place, group = topic_of(apache_kafka, 1), unused()
    committed = CommittedOffsets(runner.client.cluster, group, replace(ConsumerSettings(), group_id=group))
    who = ConsumerGroupMetadata(group)
    runner.run(committed.commit({place: OffsetAndMetadata(3)}, who, 10.0))
    servers = apache_kafka.bootstrap_servers
    with (
        Producer(bootstrap_servers=servers, transactional_id=group) as producer,
        Admin(bootstrap_servers=servers) as admin,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({place: 8}, who)
        with pytest.raises(DeliveryTimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
            runner.run(committed.fetch([place], 0.4))
        # Without RequireStable the offset before the transaction is all that is told: what would be read twice.
        assert admin.list_group_offsets(group, [place], require_stable=False) == {place: OffsetAndMetadata(3)}
        ended: list[float] = []

        def commit() -> None:
            time.sleep(0.3)
            producer.commit_transaction()
            ended.append(time.monotonic())

        thread = threading.Thread(target=commit)
        thread.start()
        assert runner.run(committed.fetch([place], 10.0)) == {place: OffsetAndMetadata(8)}
        thread.join()
        assert time.monotonic() - ended[0] < 5.0


def test_positions_of_a_group_begin_where_it_committed_and_are_validated(
    apache_kafka: ApacheKafka, runner: Threaded
) -> None:
    first, second, group = topic_of(apache_kafka), topic_of(apache_kafka), unused()
    client = runner.client
    settings = replace(ConsumerSettings(), group_id=group, auto_offset_reset="earliest")
    committed = CommittedOffsets(client.cluster, group, settings)
    runner.run(committed.commit({first: OffsetAndMetadata(4, leader_epoch=0)}, ConsumerGroupMetadata(group), 10.0))
    assignment = Assignment(threading.Lock(), client.scheduler.call_soon)
    positions = Positions(client.cluster, assignment, committed, settings, now=lambda: TIME + 5000)

    def story() -> Flow[list[Any]]:
        task = yield from spawn(positions.run(), "positions")
        assignment.add([first, second])
        while any(state.awaiting for state in assignment.partitions.values()):
            yield from sleep(0.01)
        found = [assignment.state(place).position for place in (first, second)]
        for to in ("latest", TIME + 4500):
            assignment.reset(second, to)
            while assignment.state(second).awaiting:
                yield from sleep(0.01)
            found.append(assignment.state(second).position)
        task.cancel()
        return found

    assert runner.run(story(), 20.0) == [4, 0, 10, 5]


def test_the_transaction_that_blocks_the_stable_offset_is_reported(apache_kafka: ApacheKafka, admin: Admin) -> None:
    place, group = topic_of(apache_kafka, 3, unused()), unused()
    admin.alter_group_offsets(group, {place: 4})
    found = admin.describe_group_lag(group)[place]
    assert (found.lag, found.stable_lag, found.log_end_offset, found.blocking_transaction) == (0, 0, 4, None)
    begin = time.time_ns() // 1_000_000
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, transactional_id=group) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"open", partition=0)
        producer.flush()
        found = admin.describe_group_lag(group)[place]
        assert (found.lag, found.stable_lag, found.last_stable_offset, found.log_end_offset) == (1, 0, 4, 5)
        assert found.blocking_transaction is not None and found.blocking_transaction_error is None
        assert (found.blocking_transaction.transactional_id, found.blocking_transaction.first_offset) == (group, 4)
        assert (
            found.blocking_transaction.since is not None
            and begin - 60_000 < found.blocking_transaction.since < begin + 60_000
        )
        producer.abort_transaction()
    assert admin.describe_group_lag(group)[place].blocking_transaction is None


def test_the_end_for_readers_of_committed_records_is_the_last_stable_offset(
    apache_kafka: ApacheKafka, runner: Threaded
) -> None:
    place, name = topic_of(apache_kafka, 2), unused()
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"open", partition=0)
        producer.flush()
        ends = [
            runner.run(list_offsets(runner.client.cluster, {place: "latest"}, level, 10.0))[place].offset
            for level in ("read_committed", "read_uncommitted")
        ]
        producer.abort_transaction()
    assert ends == [2, 3]


def test_a_transactional_topic_that_is_fully_read_has_no_lag(apache_kafka: ApacheKafka, admin: Admin) -> None:
    """The last record of the log is a marker: the position moves past it, and so does what is committed."""
    place, group, servers = topic_of(apache_kafka, 3, unused()), unused(), apache_kafka.bootstrap_servers
    with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        values: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while consumer.position(place) < 4 and time.monotonic() < deadline:
            values += [record.value for record in consumer.poll(0.2)]
        assert values == [b"0", b"1", b"2"] and consumer.position(place) == 4
        assert consumer.lag()[place] == PartitionLag(4, None, 4, 4)
        consumer.commit()
        assert consumer.lag()[place] == PartitionLag(4, 4, 4, 4)
    assert admin.list_group_offsets(group)[place] == OffsetAndMetadata(4, "", 0)
    assert admin.describe_group_lag(group)[place].lag == 0


def test_where_a_consumer_begins_without_a_committed_offset(apache_kafka: ApacheKafka) -> None:
    place, servers = topic_of(apache_kafka, apart_ms=60_000), apache_kafka.bootstrap_servers
    since = (time.time_ns() // 1_000_000 - TIME - 270_000) // 1000
    wanted = {"earliest": 0, "latest": 10, f"by_duration:PT{since}S": 5, "by_duration:PT1S": 10}
    for policy, offset in wanted.items():
        with Consumer(bootstrap_servers=servers, auto_offset_reset=policy) as consumer:
            consumer.assign([place])
            assert consumer.position(place) == offset, policy
    with Consumer(bootstrap_servers=servers, group_id=unused(), auto_offset_reset="none") as consumer:
        consumer.assign([place])
        with pytest.raises(NoOffsetForPartitionError, match="seek to the first offset to read"):
            consumer.poll(10.0)
        consumer.seek(place, 500)
        with pytest.raises(OffsetOutOfRangeError) as raised:
            while True:
                consumer.poll(10.0)
        assert (raised.value.position, raised.value.log_start_offset, raised.value.log_end_offset) == (500, 0, 10)
        consumer.seek(place, 8)
        assert [record.offset for record in consumer.poll(10.0)] == [8, 9]
