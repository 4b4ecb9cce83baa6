# SPDX-License-Identifier: Apache-2.0
"""Transactions one after the other with commit_transaction_async: each is filled while the one before is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcodec.client import Producer, aio

PARTITIONS = 2


def values_of(number: int, records: int) -> Iterator[tuple[int, bytes]]:
    """The records of one transaction, each with its partition."""
    for at in range(number * records, (number + 1) * records):
        yield at % PARTITIONS, b"%d" % at


def expected(transactions: int, records: int) -> list[list[bytes]]:
    """The values of all transactions, by partition, in order."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number in range(transactions):
        for partition, value in values_of(number, records):
            found[partition].append(value)
    return found


def pipeline(
    producer: Producer, topic: str, transactions: int, records: int, meanwhile: Callable[[int], None] = lambda _: None
) -> None:
    """Commit them all; meanwhile: called with the number of the commit that has just begun."""
    commit = None
    for number in range(transactions):
        producer.begin_transaction()
        for partition, value in values_of(number, records):
            producer.send(topic, value, partition=partition)
        if commit is not None:
            commit.result()
        commit = producer.commit_transaction_async()
        meanwhile(number)
    if commit is not None:
        commit.result()


async def aio_pipeline(producer: aio.Producer, topic: str, transactions: int, records: int) -> None:
    """The same in asyncio."""
    commit = None
    for number in range(transactions):
        await producer.begin_transaction()
        for partition, value in values_of(number, records):
            await producer.send(topic, value, partition=partition)
        if commit is not None:
            await commit
        commit = await producer.commit_transaction_async()
    if commit is not None:
        await commit
