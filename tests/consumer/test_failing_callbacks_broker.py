# SPDX-License-Identifier: Apache-2.0
"""What the end of a consumer does if `on_revoked` raises: the error is raised, and the group is left all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from typing import Literal

import pytest

from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, aio
from kcodec.offsets import TopicPartition


class ApplicationError(Exception):
    """What the application's callback raises."""


def fail(partitions: Iterable[TopicPartition]) -> None:
    raise ApplicationError(f"on_revoked of {sorted(partitions)}")


@pytest.fixture
def thread_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException | None]]:
    """The exceptions that ended a thread."""
    errors: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: errors.append(failed.exc_value))
    yield errors


def members(kafka: Broker, group: str) -> int:
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        return len(admin.describe_groups(group)[group].members)


@pytest.mark.parametrize("ending", ["close", "unsubscribe"])
@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a_failing_on_revoked_does_not_keep_the_group(
    kcodec_broker: Broker,
    group_protocol: Literal["classic", "consumer"],
    ending: str,
    thread_errors: list[BaseException | None],
) -> None:
    """The member leaves the group, so that others get its partitions at once and not after the session timeout."""
    topic = kcodec_broker.create_topic(partitions=1)
    group = f"group-{group_protocol}-{ending}-{topic}"
    consumer = Consumer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=group, group_protocol=group_protocol
    )
    try:
        consumer.subscribe(topic, on_revoked=fail)
        while not consumer.assignment():
            consumer.poll(0.1)
        with pytest.raises(ApplicationError, match=topic):
            getattr(consumer, ending)()
        assert members(kcodec_broker, group) == 0
    finally:
        consumer.close()
    assert thread_errors == []


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a_failing_on_revoked_does_not_keep_the_group_async(
    kcodec_broker: Broker, group_protocol: Literal["classic", "consumer"]
) -> None:
    """As above, for asyncio."""
    topic = kcodec_broker.create_topic(partitions=1)
    group = f"group-{group_protocol}-async-{topic}"

    async def run() -> None:
        consumer = aio.Consumer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=group, group_protocol=group_protocol
        )
        await consumer.subscribe(topic, on_revoked=fail)
        while not consumer.assignment():
            await consumer.poll(0.1)
        with pytest.raises(ApplicationError, match=topic):
            await consumer.close()

    asyncio.run(run())
    assert members(kcodec_broker, group) == 0
