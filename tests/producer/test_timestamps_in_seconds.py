# SPDX-License-Identifier: Apache-2.0
"""The warning about timestamps of records in seconds."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy
import pytest

from kcodec.broker import Broker
from kcodec.client import Producer, aio

NOW = 1_764_000_000


def send(api: str, broker: Broker, topic: str, *timestamps: Any) -> None:
    options: Any = {"bootstrap_servers": broker.bootstrap_servers}
    if api == "threads":
        with Producer(**options) as producer:
            for timestamp in timestamps:
                producer.send(topic, b"x", timestamp=timestamp)
        return

    async def main() -> None:
        async with aio.Producer(**options) as producer:
            for timestamp in timestamps:
                await producer.send(topic, b"x", timestamp=timestamp)

    asyncio.run(main())


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "probably in seconds" in one.getMessage()]


APIS = pytest.mark.parametrize("api", ["threads", "asyncio"])


@APIS
def test_a_timestamp_in_seconds_is_logged_once(
    api: str, kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kcodec_broker.create_topic()
    with caplog.at_level(logging.WARNING, "kcodec.producer"):
        send(api, kcodec_broker, topic, None, NOW * 1000, NOW, NOW + 1)
    (line,) = warnings_of(caplog)
    for text in (repr(topic), str(NOW), "2025-11-24 16:00:00 UTC", "1970-01-21 10:00:00 UTC", "time.time() * 1000"):
        assert text in line
    records = kcodec_broker.committed(topic)
    assert [one.timestamp for one in records][1:] == [NOW * 1000, NOW, NOW + 1]


@APIS
@pytest.mark.parametrize(("timestamp", "is_logged"), [(10**9 - 1, 0), (10**9, 1), (10**10 - 1, 1), (10**10, 0), (0, 0)])
def test_the_bounds_of_the_timestamps_that_are_logged(
    api: str, timestamp: int, is_logged: int, kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kcodec_broker.create_topic()
    send(api, kcodec_broker, topic, timestamp)
    assert len(warnings_of(caplog)) == is_logged


def test_an_integer_of_numpy_is_logged_too(kcodec_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    send("threads", kcodec_broker, kcodec_broker.create_topic(), numpy.int64(NOW))
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize(("timestamp", "is_logged"), [(NOW, 1), (NOW * 1000, 0), (None, 0)])
def test_a_table_with_timestamps_in_seconds_is_logged_once(
    timestamp: int | None, is_logged: int, kcodec_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    table = {"value": [b"a", b"b"]} | ({} if timestamp is None else {"timestamp": [timestamp, timestamp + 1]})
    topic = kcodec_broker.create_topic()
    with (
        caplog.at_level(logging.WARNING, "kcodec.producer"),
        Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer,
    ):
        for _ in range(2):
            producer.send_arrow(topic, table).result()
    assert len(warnings_of(caplog)) == is_logged
