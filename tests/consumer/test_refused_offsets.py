# SPDX-License-Identifier: Apache-2.0
"""CORRUPT_MESSAGE in a Fetch response: the offset is requested again, and nothing is left out that was not refused for
long enough. By the public asyncio API in virtual time, and by the fetcher for logs of several batches."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fetch_script import FetchScript, error
from virtual_broker import RECORDS, TOPIC, VirtualBroker, virtual_time

from kcodec import DecodeError, TopicPartition
from kcodec.client.aio import Consumer
from kcodec.consumer.fetch_responses import CORRUPT_REFUSALS, CORRUPT_SECONDS

ORDERS = TopicPartition(TOPIC, 0)
CORRUPT_MESSAGE = 2
MOST_ERRORS = 200
MODES = pytest.mark.parametrize("on_error", ["raise", "skip"])


def read(broker: VirtualBroker, seconds: float, **options: Any) -> tuple[list[int], list[DecodeError], int]:
    """The offsets of all that is polled, the errors on the way, and the batches that were skipped."""

    async def program() -> tuple[list[int], list[DecodeError], int]:
        found: list[int] = []
        errors: list[DecodeError] = []
        async with Consumer(bootstrap_servers="broker:9092", auto_offset_reset="earliest", **options) as consumer:
            await consumer.assign([ORDERS])
            while broker.now < began + seconds:
                try:
                    found += [record.offset for record in await consumer.poll(1.0)]
                except DecodeError as failed:
                    errors.append(failed)
                    assert len(errors) < MOST_ERRORS, "poll raises again and again, and time does not pass"
            return found, errors, consumer.skipped_batches

    began = broker.now
    found: tuple[list[int], list[DecodeError], int] = broker.run(program())
    return found


@MODES
@pytest.mark.parametrize("times", [1, 3])
def test_a_passing_corrupt_message_loses_nothing(on_error: str, times: int) -> None:
    """One response, or a few: the broker is asked again, and no record is passed over."""
    with virtual_time() as broker:
        left = [CORRUPT_MESSAGE] * times
        broker.faults = lambda asked: left.pop() if left and asked == "Fetch" else 0
        found, errors, skipped = read(broker, 20.0, on_error=on_error)
    assert (found, errors, skipped, left) == (list(range(RECORDS)), [], 0, [])


def test_a_lasting_corrupt_message_is_raised_in_peace() -> None:
    """After some refusals and some time, with no offset to go on at, and not faster than the broker is asked."""
    with virtual_time() as broker:
        broker.faults = lambda asked: CORRUPT_MESSAGE if asked == "Fetch" else 0
        found, errors, _ = read(broker, 60.0)
        refused = [when for when, api in broker.requests if api == "Fetch"]
    assert found == []
    assert 10 < len(errors) <= 60
    assert len(refused) < 120
    assert refused[CORRUPT_REFUSALS] - refused[0] <= CORRUPT_SECONDS
    for failed in errors:
        assert failed.topic_partition == ORDERS and failed.next_offset is None
        assert (
            "CORRUPT_MESSAGE" in str(failed)
            and "offset 0" in str(failed)
            and "next intact record is unknown" in str(failed)
        )


def test_reading_continues_when_the_broker_recovers() -> None:
    """Without a seek: the error was raised, and the position was requested again all the same."""
    with virtual_time() as broker:
        began = broker.now
        broker.faults = lambda asked: CORRUPT_MESSAGE if asked == "Fetch" and broker.now < began + 30 else 0
        found, errors, _ = read(broker, 60.0)
    assert found == list(range(RECORDS))
    assert errors


def test_skip_leaves_out_what_was_refused_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A log that is corrupt in the middle: each refused offset is left out, not before CORRUPT_SECONDS, none else."""
    world = FetchScript(on_error="skip", max_partition_fetch_bytes=70)
    log = world.log()
    for number in range(8):
        log.append_values(b"%d" % number)
    corrupt = {3, 4, 5}
    world.data_of = lambda node, partition, asked: (
        error(partition, CORRUPT_MESSAGE) if asked.fetch_offset in corrupt else None
    )
    world.assign(ORDERS)
    assert world.drain(CORRUPT_SECONDS - 2) == [b"0", b"1", b"2"]
    assert world.state().position == 3
    assert world.drain(10.0) == [b"6", b"7"]
    assert world.fetcher.buffer.skipped_batches == 1
    texts = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(texts) == 2 and "skipped offset 3" in texts[0] and "offsets 3 to 5 were skipped" in texts[1]


def test_skip_requests_each_next_offset_twice() -> None:
    """Behind an offset that was left out, one more refusal may be a passing one."""
    world = FetchScript(on_error="skip", max_partition_fetch_bytes=70)
    log = world.log()
    for number in range(4):
        log.append_values(b"%d" % number)
    refused: list[int] = []

    def data_of(node: int, partition: TopicPartition, asked: Any) -> Any:
        if asked.fetch_offset == 1 or (asked.fetch_offset == 2 and 2 not in refused):
            refused.append(asked.fetch_offset)
            return error(partition, CORRUPT_MESSAGE)
        return None

    world.data_of = data_of
    world.assign(ORDERS)
    assert world.drain(2 * CORRUPT_SECONDS) == [b"0", b"2", b"3"]


def test_a_seek_ends_the_refusals() -> None:
    world = FetchScript(max_partition_fetch_bytes=70)
    log = world.log()
    for number in range(4):
        log.append_values(b"%d" % number)
    world.data_of = lambda node, partition, asked: (
        error(partition, CORRUPT_MESSAGE) if asked.fetch_offset == 1 else None
    )
    world.assign(ORDERS)
    assert world.drain(2.0) == [b"0"]
    world.run(2 * CORRUPT_SECONDS)
    with pytest.raises(DecodeError, match="offset 1"):
        world.poll()
    world.run(1.0)
    world.assignment.seek(ORDERS, 2)
    assert world.drain(2.0) == [b"2", b"3"]
