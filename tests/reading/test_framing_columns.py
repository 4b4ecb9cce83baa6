# SPDX-License-Identifier: Apache-2.0
"""framing="confluent" of read_topic, scan_topic and poll_arrow: the results have the schema ids, as the payloads do not
contain them any more."""

from __future__ import annotations

from typing import Any

import polars
import pyarrow
import pytest

import kcodec
from kcodec.broker import Broker
from kcodec.client import Consumer

SCHEMA_IDS = ["key_schema_id", "value_schema_id"]
FRAMED = b"\0\0\0\0\x07payload"


@pytest.fixture
def options(kcodec_broker: Broker) -> dict[str, Any]:
    """The options to read the topic orders, which contains a framed record and a tombstone."""
    kcodec_broker.create_topic("orders", 1)
    kcodec_broker.seed("orders", [FRAMED, (None, None)])
    return {"bootstrap_servers": kcodec_broker.bootstrap_servers, "framing": "confluent"}


def test_read_topic_returns_schema_ids_by_default(options: dict[str, Any]) -> None:
    with kcodec.read_topic("orders", **options) as records:
        assert pyarrow.schema(records.schema).names[-2:] == SCHEMA_IDS
        rows = [row for batch in records for row in pyarrow.table(batch).to_pylist()]
    assert [(row["value_schema_id"], row["value"]) for row in rows] == [(7, b"payload"), (None, None)]


def test_rows_of_read_topic_have_schema_ids(options: dict[str, Any]) -> None:
    with kcodec.read_topic("orders", **options) as records:
        first, tombstone = records.rows()
    assert (first.key_schema_id, first.value_schema_id, first.value) == (None, 7, b"payload")
    assert (tombstone.value_schema_id, tombstone.value) == (None, None)


def test_scan_topic_returns_schema_ids_by_default(options: dict[str, Any]) -> None:
    frame = kcodec.scan_topic("orders", **options)
    assert list(frame.collect_schema())[-2:] == SCHEMA_IDS
    assert frame.filter(polars.col("value_schema_id") == 7).select("value").collect()["value"].to_list() == [b"payload"]


def test_poll_arrow_returns_schema_ids_by_default(options: dict[str, Any]) -> None:
    with Consumer(**options, auto_offset_reset="earliest") as consumer:
        consumer.assign([kcodec.TopicPartition("orders", 0)])
        table = pyarrow.table(consumer.poll_arrow(10.0))
    assert table.column_names[-2:] == SCHEMA_IDS
    assert table.column("value_schema_id").to_pylist() == [7, None]


def test_a_program_can_choose_the_schema_ids_as_columns(options: dict[str, Any]) -> None:
    with kcodec.read_topic("orders", **options, columns=("offset", "value_schema_id")) as records:
        tables = [pyarrow.table(batch) for batch in records]
    assert pyarrow.concat_tables(tables).to_pydict() == {"offset": [0, 1], "value_schema_id": [7, None]}


def test_a_column_of_schema_ids_without_framing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"column 'value_schema_id' needs framing=\"confluent\""):
        Consumer(bootstrap_servers="127.0.0.1:1", columns=("value", "value_schema_id"))
    with pytest.raises(ValueError, match=r"unknown column 'schema_id'; expected .*, key_schema_id, value_sc"):
        Consumer(bootstrap_servers="127.0.0.1:1", framing="confluent", columns=("schema_id",))
