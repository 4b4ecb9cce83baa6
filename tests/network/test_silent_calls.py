# SPDX-License-Identifier: Apache-2.0
"""A call that waits for a broker that does not respond logs a warning long before its timeout."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from kcodec import OffsetRange, TopicPartition, read_ranges, read_topic
from kcodec.client import Admin, Producer, SharedTransactions, aio
from kcodec.errors import DeliveryTimeoutError, TransportError

AWAY: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "default_api_timeout_ms": 4600}


def describe() -> None:
    with Admin(**AWAY) as admin:
        admin.describe_topics(["orders"])


def transact() -> None:
    options: dict[str, Any] = {**AWAY, "transactional_id": "shop-0", "max_block_ms": 4600}
    with Producer(**options) as producer, producer.transaction():
        pass


def send_table() -> None:
    options: dict[str, Any] = {**AWAY, "max_block_ms": 4600}
    with Producer(**options) as producer:
        producer.send_arrow("rows", pa.table({"value": [b"open"]}))


def share() -> None:
    with SharedTransactions("copy-0", "progress", **AWAY) as transactions:
        transactions.begin(partitions=[TopicPartition("out", 0)])


async def read_async() -> None:
    async with aio.read_topic("payments", **AWAY):
        pass


CALLS: dict[str, Callable[[], Any]] = {
    "read of 'orders'": lambda: read_topic("orders", **AWAY),
    "read of 'invoices'": lambda: read_ranges(OffsetRange("invoices", 0, 0, 5), **AWAY),
    "read of 'payments'": lambda: asyncio.run(read_async()),
    "Admin.describe_topics": describe,
    "begin of the transaction of 'shop-0'": transact,
    "begin of the transaction of 'copy-0'": share,
    "metadata of topic 'rows'": send_table,
}


def test_a_call_without_a_broker_warns_within_5_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the address, the cause and the time until the error; all calls wait at the same time."""
    began = time.time()

    def run(call: Callable[[], Any]) -> None:
        with pytest.raises(TransportError, match="Connection refused"):
            call()

    with caplog.at_level(logging.WARNING, "kcodec"), ThreadPoolExecutor(len(CALLS)) as pool:
        for done in [pool.submit(run, call) for call in CALLS.values()]:
            done.result()
    records = [record for record in caplog.records if "no broker has responded at" in record.message]
    assert sorted(record.message.split(": ")[0] for record in records) == sorted(CALLS)
    for record in records:
        assert record.created - began < 5.0 and record.levelno == logging.WARNING
        assert "bootstrap_servers='127.0.0.1:1' for 4 s; last cause: " in record.message
        assert "Connection refused. kcodec retries, and raises an error after 4.6 s" in record.message


def test_the_error_of_a_send_without_a_broker_has_a_remedy() -> None:
    """It names the address, the cause, and the options to check."""
    cause = r"bootstrap server 127\.0\.0\.1:1: .*Connection refused"
    with (
        Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=300) as producer,
        pytest.raises(
            DeliveryTimeoutError, match=rf"after 0\.3 s: {cause}; check that the brokers run, and check boot"
        ),
    ):
        producer.send_arrow("rows", pa.table({"value": [b"open"]}))
