# SPDX-License-Identifier: Apache-2.0
"""A timestamp that is not in milliseconds is used unchanged, and a warning names the unit that is probably meant."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kcodec
from kcodec import Timestamp, TopicPartition, timestamps
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer
from kcodec.reading.ranges import bound_of

ORDERS = TopicPartition("orders", 0)
SECONDS = 1_700_000_000
HINT = (
    "timestamps are in milliseconds, and this number looks like seconds; the same time in milliseconds is 1700000000000"
)


@pytest.fixture(autouse=True)
def no_hints_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamps, "_hinted", set())


def read(servers: str) -> Any:
    with kcodec.read_topic("orders", bootstrap_servers=servers, end=Timestamp(SECONDS)) as records:
        return len(list(records.rows()))


def offsets_for_times(servers: str) -> Any:
    with Consumer(bootstrap_servers=servers) as consumer:
        found = consumer.offsets_for_times({ORDERS: SECONDS})[ORDERS]
        return None if found is None else found.offset


def list_offsets(servers: str) -> Any:
    with Admin(bootstrap_servers=servers) as admin:
        return admin.list_offsets({ORDERS: SECONDS})[ORDERS].offset


@pytest.mark.parametrize(
    ("call", "name"),
    [(read, "end"), (offsets_for_times, "timestamps[orders-0]"), (list_offsets, "partitions[orders-0]")],
)
def test_every_call_names_the_unit(
    kcodec_broker: Broker, caplog: pytest.LogCaptureFixture, call: Callable[[str], Any], name: str
) -> None:
    kcodec_broker.seed("orders", [b"1", b"2"])
    for _ in range(2):
        assert call(kcodec_broker.bootstrap_servers) == 0
    found = [one.getMessage() for one in caplog.records if one.name == "kcodec.reading"]
    assert found == [f"{name}: the timestamp {SECONDS} is used unchanged; {HINT}"]


def test_a_search_in_a_log_names_the_unit(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(
        bytes(kcodec.encode([(None, b"1")], base_offset=0, timestamp=1_700_000_000_000))
    )
    log: Any = kcodec.open(directory)
    assert log.offset_for_timestamp(SECONDS) == 0
    assert HINT in caplog.text


def test_a_datetime_of_1970_gets_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    when = datetime.datetime(1970, 1, 20, tzinfo=datetime.UTC)
    assert bound_of(when, "start") == Timestamp(1_641_600_000)
    assert not caplog.records
