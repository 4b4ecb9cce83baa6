# SPDX-License-Identifier: Apache-2.0
"""A `send_arrow` that is cancelled or interrupted when a part of its table is in the buffer: no transaction commits the
part."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pyarrow
import pytest

from kcodec import encode
from kcodec.broker import Broker
from kcodec.client import Producer, aio
from kcodec.errors import AbortableTransactionError
from kcodec.producer import tables

#: The buffer holds a part of the table, and a delayed response keeps the rest waiting.
OPTIONS: dict[str, Any] = {"buffer_memory": 600_000, "max_block_ms": 20_000}
DELAY_MS, EARLY_SECONDS = 1500, 0.4
#: Message of the error of the commit.
PARTIAL = "interrupted send_arrow, and rows of a table for topic .* are missing; send the whole table again"


def big_table() -> pyarrow.Table:
    return pyarrow.table({"value": [os.urandom(1000) for _ in range(3000)]})


def committed(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.committed(topic)]


def test_a_cancelled_send_arrow_prevents_the_commit(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()

    async def run() -> None:
        async with aio.Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="cancelled-table", **OPTIONS
        ) as producer:
            rule = kcodec_broker.faults.add("Produce", delay_ms=DELAY_MS)
            with pytest.raises(AbortableTransactionError, match=f"CancelledError {PARTIAL}") as caught:
                async with producer.transaction() as txn:
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(txn.send_arrow(topic, big_table()), EARLY_SECONDS)
            assert (caught.value.remedy, txn.committed) == ("abort", False)
            kcodec_broker.faults.remove(rule)
            async with producer.transaction() as txn:
                await txn.send(topic, b"later")

    asyncio.run(run())
    assert committed(kcodec_broker, topic) == [b"later"]


def test_a_send_arrow_that_ctrl_c_interrupts_prevents_the_commit(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with Producer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="interrupted-table", **OPTIONS
        ) as producer:
            rule = kcodec_broker.faults.add("Produce", delay_ms=DELAY_MS)
            with (
                pytest.raises(AbortableTransactionError, match=f"KeyboardInterrupt {PARTIAL}"),
                producer.transaction() as txn,
            ):
                signal.setitimer(signal.ITIMER_REAL, EARLY_SECONDS)
                with pytest.raises(KeyboardInterrupt):
                    txn.send_arrow(topic, big_table())
            kcodec_broker.faults.remove(rule)
            with producer.transaction() as txn:
                txn.send(topic, b"later")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert committed(kcodec_broker, topic) == [b"later"]


class FailingTable:
    """Encodes the first window of a table, and then raises the error of pyarrow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, windows: int) -> None:
        self._encode, self._left = encode, windows
        monkeypatch.setattr(tables, "encode", self)
        monkeypatch.setattr(tables, "WINDOW_BYTES", 200_000)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise pyarrow.ArrowMemoryError("no memory")
        return self._encode(*arguments, **options)


@pytest.mark.parametrize("windows", [0, 1])
def test_an_error_of_pyarrow_after_the_first_batch_prevents_the_commit(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch, windows: int
) -> None:
    """An error before the first batch has sent nothing, and the transaction can be committed."""
    topic = kcodec_broker.create_topic()
    table = pyarrow.table({"value": [b"x" * 1000] * 1000})
    name = f"failing-table-{windows}"
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=name) as producer:
        txn = producer.transaction()

        def block() -> None:
            with txn:
                txn.send(topic, b"first")
                FailingTable(monkeypatch, windows)
                with pytest.raises(MemoryError):
                    txn.send_arrow(topic, table)

        if windows:
            with pytest.raises(AbortableTransactionError, match=f"ArrowMemoryError {PARTIAL}"):
                block()
        else:
            block()
        assert txn.committed is (not windows)
    assert committed(kcodec_broker, topic) == ([] if windows else [b"first"])


def test_a_session_block_does_not_commit_a_part_of_a_table(kcodec_broker: Broker) -> None:
    """The offsets of its input are not committed either."""
    source, target = kcodec_broker.create_topic(), kcodec_broker.create_topic()
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        producer.send(source, b"in").result()

    async def run() -> list[bool | None]:
        outcomes: list[bool | None] = []
        options: dict[str, Any] = {"group_id": "tables", "transactional_id": "session-table", **OPTIONS}
        async with aio.GroupTransactSession(
            bootstrap_servers=kcodec_broker.bootstrap_servers, topics=[source], **options
        ) as session:
            while len(outcomes) < 2:
                records: list[Any] = []
                try:
                    async with session.transaction() as txn:
                        records = await txn.poll(1.0)
                        if records and not outcomes:
                            rule = kcodec_broker.faults.add("Produce", delay_ms=DELAY_MS)
                            with pytest.raises(TimeoutError):
                                await asyncio.wait_for(txn.send_arrow(target, big_table()), EARLY_SECONDS)
                            kcodec_broker.faults.remove(rule)
                        elif records:
                            await txn.send(target, records[0].value)
                except AbortableTransactionError as error:
                    assert "CancelledError interrupted send_arrow" in str(error)
                if records:
                    outcomes.append(txn.committed)
        return outcomes

    assert asyncio.run(asyncio.wait_for(run(), 40)) == [False, True]
    assert committed(kcodec_broker, target) == [b"in"]
