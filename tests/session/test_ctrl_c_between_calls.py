# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C between two calls inside poll, and at the begin and the end of a session's block; the program goes on.

A profile function stands for the signal: it raises where Python would run the signal's handler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from interrupted_calls import ctrl_c

from kcodec import Record
from kcodec.broker import Broker
from kcodec.client import Consumer, GroupTransactSession
from kcodec.errors import DecodeError


@pytest.fixture
def broker(kcodec_broker: Broker) -> Broker:
    kcodec_broker.create_topic("in", 1)
    kcodec_broker.create_topic("out", 1)
    kcodec_broker.seed("in", [b"%d" % number for number in range(9)])
    return kcodec_broker


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Consumer]:
    servers = broker.bootstrap_servers
    with Consumer(
        bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest", max_poll_records=3
    ) as consumer:
        consumer.subscribe("in")
        yield consumer


@pytest.fixture
def session(broker: Broker) -> Iterator[GroupTransactSession]:
    options: dict[str, Any] = {"group_id": "g", "transactional_id": "t", "topics": ["in"], "max_poll_records": 3}
    with GroupTransactSession(bootstrap_servers=broker.bootstrap_servers, **options) as session:
        with session.transaction() as txn:
            txn.poll(10)
            txn.abort()
        yield session


def values(poll: Callable[[], list[Record]], count: int = 9) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        records = poll()
        assert records
        found += [int(record.value or b"") for record in records]
    return found


def test_a_loop_goes_on_after_its_position_was_not_moved(consumer: Consumer) -> None:
    seen: list[int] = []
    with suppress(KeyboardInterrupt), ctrl_c("call", "position", "assignment.py", "_taken") as hits:
        for record in consumer:
            seen.append(record.offset)
    assert hits and seen
    for record in consumer:
        seen.append(record.offset)
        if record.offset == 8:
            break
    assert seen == list(range(9))


@pytest.mark.parametrize("name", ["__exit__", "locked"])
def test_a_consumer_polls_on_after_ctrl_c_at_its_lock(consumer: Consumer, name: str) -> None:
    assert [record.offset for record in consumer.poll(10)] == [0, 1, 2]
    with pytest.raises(KeyboardInterrupt), ctrl_c("c_return", name, "client/consumer.py") as hits:
        consumer.poll(10)
    assert hits
    assert values(lambda: consumer.poll(10), 6) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["__exit__", "locked"])
def test_a_session_skips_nothing_after_ctrl_c_at_the_lock_of_poll(
    broker: Broker, session: GroupTransactSession, name: str
) -> None:
    with session.transaction() as txn:
        with pytest.raises(KeyboardInterrupt), ctrl_c("c_return", name, "client/session.py") as hits:
            txn.poll(10)
        assert hits
        for record in txn.poll(10):
            txn.send("out", record.value)
    assert txn.committed
    assert [record.value for record in broker.committed("out")] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("name", "file"),
    [("note_starts", "session/core.py"), ("__init__", "session/end.py"), ("_end_block", "client/session.py")],
)
def test_a_session_goes_on_after_ctrl_c_at_an_end_of_its_block(
    broker: Broker, session: GroupTransactSession, name: str, file: str
) -> None:
    def transact(interrupted: bool) -> None:
        with session.transaction() as txn:
            for record in txn.poll(10):
                txn.send("out", record.value)
            if interrupted:
                sys.setprofile(profile)

    with ctrl_c("call", name, file) as hits:
        profile = sys.getprofile()
        if name != "note_starts":
            sys.setprofile(None)  # until the end of the block
        with pytest.raises(KeyboardInterrupt):
            transact(name != "note_starts")
    assert hits
    transact(interrupted=False)
    assert [record.value for record in broker.committed("out")] == [b"0", b"1", b"2"]


def test_closing_a_session_in_its_block_logs_that_the_transaction_is_aborted(
    session: GroupTransactSession, caplog: pytest.LogCaptureFixture
) -> None:
    with session.transaction() as txn:
        txn.send("out", b"lost")
        session.close()
    assert txn.committed is False
    assert "closing the session aborts its open transaction" in caplog.text


def test_the_remedy_of_records_that_cannot_be_read_is_stop() -> None:
    assert DecodeError("not a batch").remedy == "stop"
