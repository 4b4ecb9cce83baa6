# SPDX-License-Identifier: Apache-2.0
"""aiokafka's clients and those of the facade on one broker, for programs that run with both."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

import aiokafka.admin
from aiokafka import ConsumerRebalanceListener

import kcodec.compat.aiokafka as facade

SECONDS = 20.0
# Modules of aiokafka hold the originals under their own names; `aiokafka.admin` is a package.
THEIRS: Any = {
    "AIOKafkaProducer": aiokafka.AIOKafkaProducer,
    "AIOKafkaConsumer": aiokafka.AIOKafkaConsumer,
    "AIOKafkaAdminClient": aiokafka.admin.AIOKafkaAdminClient,
}


class Kit(NamedTuple):
    """The classes of aiokafka or of the facade, and the address of the broker."""

    name: str
    producer_class: Any
    consumer_class: Any
    admin_class: Any
    servers: str

    def producer(self, **options: Any) -> Any:
        return self.producer_class(bootstrap_servers=self.servers, **options)

    def consumer(self, *topics: str, **options: Any) -> Any:
        given = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 200, **options}
        return self.consumer_class(*topics, bootstrap_servers=self.servers, **given)

    async def fill(self, topic: str, count: int = 3) -> None:
        async with self.producer() as producer:
            for number in range(count):
                await producer.send_and_wait(topic, b"v%d" % number, key=b"k", partition=0, timestamp_ms=1000 + number)


def kit_of(name: str, servers: str) -> Kit:
    if name == "aiokafka":
        own: Any = THEIRS
        return Kit(name, own["AIOKafkaProducer"], own["AIOKafkaConsumer"], own["AIOKafkaAdminClient"], servers)
    return Kit(name, facade.AIOKafkaProducer, facade.AIOKafkaConsumer, facade.AIOKafkaAdminClient, servers)


def run(program: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(program, SECONDS)

    return asyncio.run(limited())


async def read(consumer: Any, count: int) -> list[bytes]:
    return [(await asyncio.wait_for(consumer.getone(), SECONDS)).value for _ in range(count)]


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Records the calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def on_partitions_revoked(self, revoked: Any) -> None:
        await asyncio.sleep(0)
        self.calls.append(("revoked", set(revoked)))

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.calls.append(("assigned", set(assigned)))
