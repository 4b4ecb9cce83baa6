# SPDX-License-Identifier: Apache-2.0
"""A poll that another task still waits for when its transaction ends: it takes no records of the next transaction."""

from __future__ import annotations

import asyncio

import pytest

from kcodec.broker import Broker
from kcodec.client.aio import GroupTransactSession
from kcodec.errors import TransactionStateError


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_poll_ends_with_its_transaction(kcodec_broker: Broker, is_committed: bool) -> None:
    kcodec_broker.create_topic("in", 1)

    async def program() -> list[bytes | None]:
        async with GroupTransactSession(
            bootstrap_servers=kcodec_broker.bootstrap_servers, group_id="g", transactional_id="t", topics=["in"]
        ) as session:
            async with session.transaction() as txn:
                while not session.assignment():
                    await txn.poll(0.1)
                late = asyncio.create_task(txn.poll(20))
                await asyncio.sleep(0.1)
                if not is_committed:
                    await txn.abort()
            outcome = "was committed" if is_committed else "was aborted"
            with pytest.raises(TransactionStateError, match=f"{outcome}: poll is no longer possible"):
                await asyncio.wait_for(late, 5)
            async with session.transaction() as txn:
                kcodec_broker.seed("in", [b"next"])
                return [record.value for record in await txn.poll(10)]

    assert asyncio.run(program()) == [b"next"]


def test_a_poll_takes_nothing_in_the_next_transaction(kcodec_broker: Broker) -> None:
    """Even if the poll continues only after the next transaction has begun."""
    kcodec_broker.create_topic("in", 1)

    async def program() -> list[bytes | None]:
        async with GroupTransactSession(
            bootstrap_servers=kcodec_broker.bootstrap_servers, group_id="g", transactional_id="t", topics=["in"]
        ) as session:
            async with session.transaction() as first:
                while not session.assignment():
                    await first.poll(0.1)
            async with session.transaction() as txn:
                kcodec_broker.seed("in", [b"next"])
                while not session._core.fetcher.buffer.has_ready:
                    await asyncio.sleep(0.05)
                with pytest.raises(TransactionStateError, match="poll is no longer possible"):
                    session._take(first._current, lambda: session._core.take(10))
                assert not session._flows.may_take(first._current)
                assert txn._current.is_fresh
                return [record.value for record in await txn.poll(10)]

    assert asyncio.run(program()) == [b"next"]
