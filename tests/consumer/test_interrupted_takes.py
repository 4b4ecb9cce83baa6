# SPDX-License-Identifier: Apache-2.0
"""A poll that Ctrl-C interrupts anywhere: its records come again, and the fetcher continues."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from fetch_script import FetchScript, numbered
from interrupted_calls import ctrl_c, interrupted

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Consumer


@pytest.mark.parametrize("is_arrow", [False, True])
def test_an_interrupted_take_loses_no_record_and_does_not_stop_the_fetcher(is_arrow: bool) -> None:
    for at in itertools.count():
        world = FetchScript(max_partition_fetch_bytes=200)
        expected = numbered(world.log(), 60)
        world.assign(("orders", 0))
        world.run(3.0)  # two responses wait, so that nothing is under way
        found: list[bytes | None] = []

        def take(world: FetchScript = world, found: list[bytes | None] = found) -> None:
            buffer = world.fetcher.buffer
            records = buffer.take_arrow().records() if is_arrow else buffer.take(500)
            found += [record.value for record in records]

        is_interrupted = interrupted(take, at)
        if is_interrupted and not found:
            world.assignment.take_back_request()  # as the consumer does
        assert found + world.drain(5.0) == expected, f"at {at}"
        if not is_interrupted:
            break
    assert at > 10


def test_an_interrupted_poll_one_loses_and_repeats_nothing(kcodec_broker: Broker) -> None:
    topic, count = kcodec_broker.create_topic(), 400
    kcodec_broker.seed(topic, [b"%d" % number for number in range(count)])
    found: list[int] = []
    interruptions = 0
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, max_poll_records=7) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)

        def poll() -> None:
            record = consumer.poll_one(1.0)
            if record is not None:
                found.append(record.offset)

        for at in itertools.cycle(range(240)):
            interruptions += interrupted(poll, at)
            if found and found[-1] == count - 1:
                break
    assert interruptions > 240
    assert found == list(range(count))


def test_a_record_between_two_interrupted_polls_comes_once(kcodec_broker: Broker) -> None:
    """Both are interrupted at their end, when they have records to deliver."""
    topic, count = kcodec_broker.create_topic(), 20
    kcodec_broker.seed(topic, [b"%d" % number for number in range(count)])
    found: list[int] = []
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, max_poll_records=7) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        while len(found) < count:
            with contextlib.suppress(KeyboardInterrupt), ctrl_c("c_return", "__exit__", "consumer.py", "_poll") as hits:
                assert consumer.poll_one(10.0) is None or not hits
            for _ in range(7):
                record = consumer.poll_one(1.0)
                if record is not None:
                    found.append(record.offset)
    assert found == list(range(count))
