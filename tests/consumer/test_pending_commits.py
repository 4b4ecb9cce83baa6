# SPDX-License-Identifier: Apache-2.0
"""Commits that are queued or under way when a consumer closes, unsubscribes, or loses partitions to a rebalance.

The embedded broker delays each OffsetCommit, so that commits are queued when the call begins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest

from kcodec.broker import Broker
from kcodec.client import Consumer, aio
from kcodec.errors import DeliveryTimeoutError, TransportError
from kcodec.offsets import TopicPartition

GroupProtocol = Literal["classic", "consumer"]
PROTOCOLS = pytest.mark.parametrize("group_protocol", ["classic", "consumer"])


def commits(broker: Broker) -> int:
    return len(broker.wire_log.requests("OffsetCommit"))


def committed(broker: Broker, group: str, *partitions: TopicPartition) -> list[int | None]:
    """The committed offsets, as the next owner of the partitions reads them."""
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=group) as consumer:
        found = consumer.committed(partitions)
    return [None if (one := found[partition]) is None else one.offset for partition in partitions]


def start(broker: Broker, partitions: int = 1, records: int = 3, **options: Any) -> tuple[Consumer, str]:
    """A consumer that owns all partitions of a new topic, which has some records, and that commits on request."""
    topic = broker.create_topic(partitions=partitions)
    for partition in range(partitions):
        broker.seed(topic, [b"%d" % number for number in range(records)], partition=partition)
    options = {"group_id": f"group-{topic}", "auto_offset_reset": "earliest", "enable_auto_commit": False, **options}
    consumer = Consumer(bootstrap_servers=broker.bootstrap_servers, **options)
    consumer.subscribe(topic)
    deadline = time.monotonic() + 20
    while len(consumer.assignment()) < partitions:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    consumer.seek_to_beginning()
    return consumer, topic


@PROTOCOLS
@pytest.mark.parametrize("ending", ["close", "unsubscribe"])
def test_an_end_sends_the_queued_commits_before_it_leaves(
    kcodec_broker: Broker, group_protocol: GroupProtocol, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator refuses the commits of a member that has left, and the next owner would read the records again."""
    consumer, topic = start(kcodec_broker, partitions=3, max_poll_records=1, group_protocol=group_protocol)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    reported: list[tuple[TopicPartition, int, BaseException | None]] = []

    def note(offsets: Any, error: BaseException | None) -> None:
        reported.extend((partition, one.offset, error) for partition, one in offsets.items())

    kcodec_broker.faults.add("OffsetCommit", delay_ms=150)
    for partition in partitions:
        consumer.commit_async({partition: 2}, note)
    getattr(consumer, ending)()
    kcodec_broker.faults.clear()
    assert committed(kcodec_broker, f"group-{topic}", *partitions) == [2, 2, 2]
    consumer.close()
    assert sorted(reported) == [(partition, 2, None) for partition in partitions]
    assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == []


@PROTOCOLS
def test_a_commit_in_on_revoked_is_sent_before_the_consumer_leaves(
    kcodec_broker: Broker, group_protocol: GroupProtocol
) -> None:
    """The application commits what it has just completed in on_revoked, each partition by a call."""
    consumer, topic = start(kcodec_broker, partitions=3, group_protocol=group_protocol)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    reported: list[BaseException | None] = []

    def commit_all(revoked: frozenset[TopicPartition]) -> None:
        for partition in sorted(revoked):
            consumer.commit_async({partition: 1}, lambda offsets, error: reported.append(error))

    consumer.subscribe(topic, on_revoked=commit_all)
    kcodec_broker.faults.add("OffsetCommit", delay_ms=150)
    consumer.close()
    kcodec_broker.faults.clear()
    assert committed(kcodec_broker, f"group-{topic}", *partitions) == [1, 1, 1]
    assert reported == [None, None, None]


def test_a_close_without_a_group_member_sends_the_queued_commits(kcodec_broker: Broker) -> None:
    """Partitions that assign() chose are removed by close, and their queued commits come first."""
    topic = kcodec_broker.create_topic(partitions=3)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    kcodec_broker.faults.add("OffsetCommit", delay_ms=150)
    with Consumer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, group_id="by-hand", enable_auto_commit=False
    ) as consumer:
        consumer.assign(partitions)
        for partition in partitions:
            consumer.commit_async({partition: 2}, lambda offsets, error: None)
    kcodec_broker.faults.clear()
    assert committed(kcodec_broker, "by-hand", *partitions) == [2, 2, 2]


@PROTOCOLS
def test_a_close_reports_the_commits_that_it_cannot_confirm(
    kcodec_broker: Broker, group_protocol: GroupProtocol, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, topic = start(kcodec_broker, partitions=3, group_protocol=group_protocol)
    reported: dict[TopicPartition, BaseException | None] = {}
    revoked: list[frozenset[TopicPartition]] = []
    consumer.subscribe(topic, on_revoked=revoked.append)
    kcodec_broker.faults.add("OffsetCommit", drop="before")
    for number in range(2):
        consumer.commit_async(
            {TopicPartition(topic, number): 2}, lambda offsets, error: reported.update(dict.fromkeys(offsets, error))
        )
    consumer.commit_async({TopicPartition(topic, 2): 2})
    began = time.monotonic()
    consumer.close(timeout=1.0)
    assert time.monotonic() - began < 3.0
    assert sorted(reported) == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert all(isinstance(error, DeliveryTimeoutError) for error in reported.values()), reported
    (line,) = [one.message for one in caplog.records if "not confirmed" in one.message]
    for number in range(3):
        assert f"{topic}-{number} at 2" in line
    assert "may read records again" in line
    assert not any("without waiting" in one.message for one in caplog.records)
    assert revoked == [{TopicPartition(topic, number) for number in range(3)}]


def test_a_close_reports_the_commits_that_it_cannot_confirm_async(kcodec_broker: Broker) -> None:
    """As above, for asyncio, with a callback that is a coroutine function."""
    topic = kcodec_broker.create_topic(partitions=2)
    reported: list[BaseException | None] = []

    async def note(offsets: Any, error: BaseException | None) -> None:
        await asyncio.sleep(0)
        reported.append(error)

    async def run() -> None:
        consumer = aio.Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=f"group-{topic}")
        await consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        kcodec_broker.faults.add("OffsetCommit", drop="before")
        for number in range(2):
            await consumer.commit_async({TopicPartition(topic, number): 0}, note)
        await consumer.close(timeout=0.5)

    asyncio.run(run())
    assert [type(error) for error in reported] == [DeliveryTimeoutError] * 2


@PROTOCOLS
@pytest.mark.parametrize("has_pending", [False, True])
@pytest.mark.parametrize("ending", ["close", "unsubscribe"])
def test_on_revoked_is_called_although_the_automatic_commit_gets_no_response(
    kcodec_broker: Broker, group_protocol: GroupProtocol, has_pending: bool, ending: str
) -> None:
    """The automatic commit took all the time of the call, so that on_revoked was not called."""
    consumer, topic = start(kcodec_broker, group_protocol=group_protocol, enable_auto_commit=True)
    revoked: list[frozenset[TopicPartition]] = []
    consumer.subscribe(topic, on_revoked=revoked.append)
    while not consumer.poll(0.1):
        pass
    kcodec_broker.faults.add("OffsetCommit", drop="before")
    if has_pending:
        consumer.commit_async({TopicPartition(topic, 0): 1})
    began = time.monotonic()
    getattr(consumer, ending)(timeout=3.0)
    assert time.monotonic() - began < 5.0
    assert revoked == [{TopicPartition(topic, 0)}]
    kcodec_broker.faults.clear()
    consumer.close(timeout=1.0)


def test_commit_async_after_close_raises(kcodec_broker: Broker) -> None:
    """Nothing would send it, or call its callback."""
    consumer, topic = start(kcodec_broker)
    consumer.close()
    with pytest.raises(TransportError, match="the consumer is closed"):
        consumer.commit_async({TopicPartition(topic, 0): 1})


def test_many_commits_without_callbacks_are_merged(kcodec_broker: Broker) -> None:
    """A commit for each record at 5,000 records per second must not lengthen the queue without a limit."""
    consumer, topic = start(kcodec_broker, partitions=2)
    kcodec_broker.faults.add("OffsetCommit", delay_ms=100)
    for offset in range(1, 1001):
        consumer.commit_async({TopicPartition(topic, offset % 2): offset})
    assert len(consumer._core.commits.queue) <= 2
    consumer.close()
    kcodec_broker.faults.clear()
    assert committed(kcodec_broker, f"group-{topic}", TopicPartition(topic, 0), TopicPartition(topic, 1)) == [1000, 999]
    assert commits(kcodec_broker) <= 4


def test_commits_of_the_same_partitions_are_merged_with_their_callbacks(kcodec_broker: Broker) -> None:
    """The newest offsets replace those before them, and each callback gets the offsets of its call, in order."""
    consumer, topic = start(kcodec_broker)
    here = TopicPartition(topic, 0)
    reported: list[tuple[int, BaseException | None]] = []
    kcodec_broker.faults.add("OffsetCommit", delay_ms=100)
    for offset in range(1, 101):
        consumer.commit_async({here: offset}, lambda offsets, error: reported.append((offsets[here].offset, error)))
    consumer.close()
    kcodec_broker.faults.clear()
    assert reported == [(offset, None) for offset in range(1, 101)]
    assert committed(kcodec_broker, f"group-{topic}", here) == [100]
    assert commits(kcodec_broker) <= 4


def test_commits_of_other_partitions_keep_their_order_and_their_errors(kcodec_broker: Broker) -> None:
    """A partition that cannot be committed fails only the calls that named it."""
    consumer, topic = start(kcodec_broker, partitions=2)
    good, bad = TopicPartition(topic, 0), TopicPartition(topic, 1)
    reported: list[tuple[TopicPartition, int, bool]] = []

    def note(offsets: Any, error: BaseException | None) -> None:
        ((partition, one),) = offsets.items()
        reported.append((partition, one.offset, error is None))

    kcodec_broker.faults.add("OffsetCommit", partition=1, topic=topic, error="OFFSET_METADATA_TOO_LARGE")
    for offset in (1, 2):
        for partition in (good, bad):
            consumer.commit_async({partition: offset}, note)
    consumer.close()
    assert reported == [(good, 1, True), (bad, 1, False), (good, 2, True), (bad, 2, False)]


@pytest.mark.parametrize("has_callback", [True, False])
def test_a_queued_commit_of_a_lost_partition_is_reported(
    kcodec_broker: Broker, has_callback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the callback got no error for offsets that were never committed."""
    consumer, topic = start(kcodec_broker)
    here = TopicPartition(topic, 0)
    reported: list[BaseException | None] = []
    on_committed: Callable[[Any, BaseException | None], None] = lambda offsets, error: reported.append(error)  # noqa: E731
    kcodec_broker.faults.add("OffsetCommit", delay_ms=300, count=1)
    consumer.commit_async({TopicPartition(topic, 7): 1}, lambda offsets, error: None)
    consumer.commit_async({here: 1}, on_committed if has_callback else None)
    consumer._io_loop.run(_remove(consumer, here))
    deadline = time.monotonic() + 10
    while not (reported or any("was not sent" in one.message for one in caplog.records)):
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    consumer.close()
    if has_callback:
        assert f"{here}" in str(reported[0]) and "was not sent" in str(reported[0])


def _remove(consumer: Consumer, partition: TopicPartition) -> Any:
    yield from ()
    consumer._core.selection.remove([partition])
