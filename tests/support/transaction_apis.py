# SPDX-License-Identifier: Apache-2.0
"""The sync and the asyncio producer under one set of calls, so that one test covers both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from transaction_load import ABORTED, COMMITTED, GIVEN_UP, UNKNOWN, Records

from kcodec.offsets import ConsumerGroupMetadata, TopicPartition

OUTCOMES = {True: COMMITTED, False: ABORTED, None: UNKNOWN}


@dataclass(frozen=True)
class Work:
    """One transaction: records by partition of a topic, and offsets of a group."""

    topic: str
    records: Records
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    group: ConsumerGroupMetadata | None = None
    commit: bool = True


@dataclass
class Reported:
    """The outcome that the producer reported, and the duration of each call."""

    outcome: str = GIVEN_UP
    error: Exception | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, call: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[call] = time.monotonic() - begin


class Blocking:
    """kcodec.client.Producer."""

    def __init__(self, **options: Any) -> None:
        from kcodec.client import Producer

        self.producer = Producer(**options)

    def transact(self, work: Work) -> Reported:
        reported = Reported()
        transaction = None
        try:
            with reported.timed("begin"):
                block = self.producer.transaction()
                transaction = block.__enter__()
            try:
                with reported.timed("send"):
                    for partition, values in work.records.items():
                        for value in values:
                            transaction.send(work.topic, value, partition=partition)
                if work.group is not None:
                    with reported.timed("send_offsets"):
                        transaction.send_offsets(work.offsets, work.group)
                if not work.commit:
                    with reported.timed("abort"):
                        transaction.abort()
            except Exception as error:
                with reported.timed("end after an error"):
                    block.__exit__(type(error), error, error.__traceback__)
                    raise
            else:
                with reported.timed("end"):
                    block.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the test checks it
            reported.error = error
        if transaction is not None:
            reported.outcome = OUTCOMES[transaction.committed]
        return reported

    def close(self) -> None:
        self.producer.close()


class Asyncio:
    """kcodec.client.aio.Producer, in a separate event loop."""

    def __init__(self, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self.producer = self._runner.run(self._open(options))

    async def _open(self, options: dict[str, Any]) -> Any:
        from kcodec.client.aio import Producer

        return Producer(**options)

    def transact(self, work: Work) -> Reported:
        return self._runner.run(self._transact(work))

    async def _transact(self, work: Work) -> Reported:
        reported = Reported()
        transaction = None
        try:
            with reported.timed("begin"):
                block = self.producer.transaction()
                transaction = await block.__aenter__()
            try:
                with reported.timed("send"):
                    for partition, values in work.records.items():
                        for value in values:
                            await transaction.send(work.topic, value, partition=partition)
                if work.group is not None:
                    with reported.timed("send_offsets"):
                        await transaction.send_offsets(work.offsets, work.group)
                if not work.commit:
                    with reported.timed("abort"):
                        await transaction.abort()
            except Exception as error:
                with reported.timed("end after an error"):
                    if not await block.__aexit__(type(error), error, error.__traceback__):
                        raise
            else:
                with reported.timed("end"):
                    await block.__aexit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the test checks it
            reported.error = error
        if transaction is not None:
            reported.outcome = OUTCOMES[transaction.committed]
        return reported

    def close(self) -> None:
        try:
            self._runner.run(self.producer.close())
        finally:
            self._runner.close()


APIS: dict[str, type[Blocking] | type[Asyncio]] = {"blocking": Blocking, "asyncio": Asyncio}
