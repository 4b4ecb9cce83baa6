# SPDX-License-Identifier: Apache-2.0
"""Both APIs of the producer with one set of calls, for tests that apply to both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import kcodec
from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.client.aio import Producer as AioProducer
from kcodec.testing.kafka import ApacheKafka

Record = dict[str, Any]


class Threaded:
    """The blocking producer."""

    def __init__(self, servers: str, **options: Any) -> None:
        self.producer: Any = Producer(bootstrap_servers=servers, **options)

    def send_all(self, topic: str, records: Iterable[Record]) -> list[Any]:
        return [self.producer.send(topic, **record) for record in records]

    def send_arrow(self, topic: str, table: Any, **options: Any) -> Any:
        return self.producer.send_arrow(topic, table, **options)

    def outcome(self, delivery: Any) -> Any:
        return delivery.result()

    def flush(self, timeout: float | None = None) -> None:
        self.producer.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        self.producer.close(timeout)

    end = close


class Looped:
    """The producer on an asyncio loop, which only runs while a call is made."""

    def __init__(self, servers: str, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.producer: Any = AioProducer(bootstrap_servers=servers, **options)

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    def send_all(self, topic: str, records: Iterable[Record]) -> list[Any]:
        async def send() -> list[Any]:
            return [await self.producer.send(topic, **record) for record in records]

        return self.run(send())  # type: ignore[no-any-return]

    def send_arrow(self, topic: str, table: Any, **options: Any) -> Any:
        return self.run(self.producer.send_arrow(topic, table, **options))

    def outcome(self, delivery: Any) -> Any:
        async def wait() -> Any:
            return await delivery

        return self.run(wait())

    def flush(self, timeout: float | None = None) -> None:
        self.run(self.producer.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        self.run(self.producer.close(timeout))

    def end(self, timeout: float | None = None) -> None:
        try:
            self.close(timeout)
        finally:
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()


ProducerClient = Threaded | Looped
MakeClient = Callable[..., ProducerClient]


@pytest.fixture(params=[Threaded, Looped], ids=["thread", "asyncio"])
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Return a function that creates producers, which are closed after the test without waiting for their records."""
    made: list[ProducerClient] = []

    def make(servers: str, **options: Any) -> ProducerClient:
        made.append(request.param(servers, **options))
        return made[-1]

    yield make
    for client in made:
        with suppress(kcodec.DeliveryErrors):
            client.end(5.0)


def stored(kafka: ApacheKafka | Broker, topic: str, partition: int = 0) -> kcodec.log.Log:
    log = kcodec.open(kafka.log_directory / f"{topic}-{partition}")
    assert isinstance(log, kcodec.log.Log)
    return log


def stored_values(kafka: ApacheKafka | Broker, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in stored(kafka, topic, partition).records()]
