# SPDX-License-Identifier: Apache-2.0
"""Partitions that were added after a producer received the metadata of their topic."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow
import pytest

from kcodec.broker import Broker
from kcodec.client import Admin, Producer
from kcodec.errors import EncodeError

PATIENCE_SECONDS = 20.0


def send_until_accepted(send: Callable[[], object]) -> int:
    """Repeat a call until it accepts its record. Return the number of refusals."""
    deadline, refusals = time.monotonic() + PATIENCE_SECONDS, 0
    while True:
        try:
            send()
        except EncodeError as error:
            assert error.field == "partition" and time.monotonic() < deadline
            refusals += 1
            time.sleep(0.02)
        else:
            return refusals


@pytest.mark.parametrize("transactional_id", [None, "adds-partitions"])
def test_a_refused_record_can_be_sent_again_at_once(kcodec_broker: Broker, transactional_id: str | None) -> None:
    address = kcodec_broker.bootstrap_servers
    with (
        Admin(bootstrap_servers=address) as admin,
        Producer(bootstrap_servers=address, transactional_id=transactional_id) as producer,
    ):
        admin.create_topics(["orders"])
        assert producer.partitions_for("orders") == 1
        admin.create_partitions({"orders": 3})

        def send() -> None:
            if transactional_id is None:
                producer.send("orders", b"record", partition=1)
            else:
                with producer.transaction() as transaction:
                    transaction.send("orders", b"record", partition=1)

        refusals = send_until_accepted(send)
        assert producer.partitions_for("orders") == 3
    assert refusals >= 1
    assert len(kcodec_broker.committed("orders")) == 1


def test_a_refused_table_can_be_sent_again_at_once(kcodec_broker: Broker) -> None:
    address = kcodec_broker.bootstrap_servers
    table = pyarrow.table({"value": [b"record"], "partition": pyarrow.array([2], "int32")})
    with Admin(bootstrap_servers=address) as admin, Producer(bootstrap_servers=address) as producer:
        admin.create_topics(["orders"])
        assert producer.partitions_for("orders") == 1
        admin.create_partitions({"orders": 3})
        assert send_until_accepted(lambda: producer.send_arrow("orders", table)) >= 1
    assert len(kcodec_broker.committed("orders")) == 1


def test_the_refusal_says_that_the_record_can_be_sent_again(kcodec_broker: Broker) -> None:
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        assert producer.partitions_for("orders") == 1
        with pytest.raises(EncodeError, match=r"not 7; omit it .*, or send it again if the partition was just added"):
            producer.send("orders", b"record", partition=7)
