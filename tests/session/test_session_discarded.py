# SPDX-License-Identifier: Apache-2.0
"""What `send` does in a transaction that a rebalance has doomed, and that then cannot be written to any more: it takes
the record, whose Delivery has failed; only what is the caller's mistake, or for good, is raised. No broker is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from session_apis import BOTH_APIS, Looped, Threaded

from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.errors import AbortableTransactionError, EncodeError, KcodecError, ProducerFencedError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.session.block import SessionBlock
from kcodec.transactions.transaction import ProducerTransaction

OVER = AbortableTransactionError("over", code=ErrorCode.TRANSACTION_ABORTABLE, name="TRANSACTION_ABORTABLE")
FENCED = ProducerFencedError("taken over", code=ErrorCode.PRODUCER_FENCED, name="PRODUCER_FENCED")
WRONG = EncodeError("no such value")


class Doomed:
    """A transaction whose producer raises `error`."""

    def __init__(self, client: Any, error: KcodecError) -> None:
        self.client = client
        self.error = error
        inner = client.session.transaction()
        inner._block = self.block = SessionBlock(ProducerTransaction(ProducerIdAndEpoch(1, 0), True), lambda: False)
        client.session._producer.send = client.session._producer.send_arrow = self._refuse
        self.inner = inner

    def _refuse(self, *arguments: Any, **options: Any) -> Any:
        if isinstance(self.client, Looped):

            async def refuse() -> None:
                raise self.error

            return refuse()
        raise self.error

    def call(self, name: str) -> Any:
        done = getattr(self.inner, name)("out", b"value")
        return self.client.run(done) if isinstance(self.client, Looped) else done


@pytest.fixture
def made() -> Iterator[list[Threaded]]:
    """Sessions that are closed at the end."""
    sessions: list[Threaded] = []
    yield sessions
    for session in sessions:
        session.close(0.1)


def doomed(session_class: type[Threaded], made: list[Threaded], error: KcodecError) -> Doomed:
    made.append(session_class(bootstrap_servers="127.0.0.1:1", group_id="a", transactional_id="b", topics=["in"]))
    return Doomed(made[-1], error)


@BOTH_APIS
@pytest.mark.parametrize("name", ["send", "send_arrow"])
def test_what_cannot_be_written_any_more_is_taken_and_has_failed(
    session_class: type[Threaded], made: list[Threaded], name: str
) -> None:
    txn = doomed(session_class, made, OVER)
    with pytest.raises(AbortableTransactionError):
        txn.call(name)
    txn.block.fail("in-0 revoked while it was open")
    delivery = txn.call(name)
    assert delivery.done()
    assert delivery.error is OVER
    assert delivery.topic == "out"
    reported: list[Any] = []
    delivery.add_done_callback(reported.append)
    assert reported == [delivery]
    with pytest.raises(AbortableTransactionError):
        delivery.result()
    if isinstance(txn.client, Looped):

        async def wait() -> Any:
            return await delivery

        with pytest.raises(AbortableTransactionError):
            asyncio.run(wait())


@BOTH_APIS
@pytest.mark.parametrize("error", [FENCED, WRONG], ids=["fenced", "wrong"])
def test_a_mistake_and_what_is_for_good_are_raised(
    session_class: type[Threaded], made: list[Threaded], error: KcodecError
) -> None:
    txn = doomed(session_class, made, error)
    txn.block.fail("in-0 revoked while it was open")
    for name in ("send", "send_arrow"):
        with pytest.raises(type(error)):
            txn.call(name)


@BOTH_APIS
def test_poll_gives_nothing_while_a_rebalance_is_under_way(session_class: type[Threaded], made: list[Threaded]) -> None:
    txn = doomed(session_class, made, OVER)
    session = txn.client.session
    session._flows.block, session._flows.is_rebalancing = txn.block, True
    assert session._take(txn.block, lambda: [b"a record"]) is None
    rows = session._core.no_rows()
    assert len(rows) == 0
    assert [field.name for field in pyarrow.schema(rows)] == list(session._core.settings.columns)
    session._flows.is_rebalancing = False
    assert session._take(txn.block, lambda: [b"a record"]) == [b"a record"]
    assert txn.block.has_read
    session._flows.block = None
