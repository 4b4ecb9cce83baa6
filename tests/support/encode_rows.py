# SPDX-License-Identifier: Apache-2.0
"""Rows and header fields for the tests of encode with Kafka's classes, and checks of the result by these classes.

Row(key, value, headers, timestamp)             ROWS, header_fields(): strategies of rows, of options of encode
table_of(rows) -> pyarrow.Table                 judged_of(rows, offsets), dicts_of(rows, offsets)
many_rows(size) -> rows of some `size` bytes    assert_taken(judge, data, records): read alike, and appended
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from java_answers import JudgedRecord, ProduceSettings
from java_judge import JavaJudge

LONG = os.environ.get("KCODEC_PROFILE") == "long"
FEWER = settings(max_examples=500 if LONG else 50)  # each asks the Java program several times
NOW = 1_767_225_600_000
HEADER = 61
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
ACCEPTING = ProduceSettings(now=NOW, after_max_ms=INT64_MAX, max_message_bytes=INT32_MAX)


class Row(NamedTuple):
    """A record before it has an offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


# Inputs.

BYTES = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=70).map(lambda piece: piece * 4)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TIMES = st.integers(NOW - 100, NOW + 100) | st.sampled_from([-1, 0, 1, INT64_MAX, NOW - (1 << 40)])
HEADERS = st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=80)), max_size=3).map(tuple)
ROWS = st.lists(st.builds(Row, BYTES, BYTES, HEADERS, TIMES), min_size=1, max_size=12)


@st.composite
def header_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Header fields of a batch that Kafka's writer accepts."""
    fields: dict[str, Any] = {"base_offset": draw(st.sampled_from([0, 1, 127, 1 << 40, INT64_MAX - (1 << 32)]))}
    fields["partition_leader_epoch"] = draw(st.sampled_from([-1, 0, 7, INT32_MAX]))
    if draw(st.booleans()):
        fields["producer_id"] = draw(st.sampled_from([0, 9001, INT64_MAX]))
        fields["producer_epoch"] = draw(st.sampled_from([0, 3, (1 << 15) - 1]))
        fields["base_sequence"] = draw(st.sampled_from([0, 40, INT32_MAX - 3, INT32_MAX]))
        fields["is_transactional"] = draw(st.booleans())
    return fields


def table_of(rows: Sequence[Row], offsets: Sequence[int] | None = None, kind: pa.DataType | None = None) -> pa.Table:
    """The rows as Arrow columns."""
    kind = kind or pa.binary()
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.array([row.key for row in rows], kind),
        "value": pa.array([row.value for row in rows], kind),
        "headers": pa.array([[{"key": n, "value": v} for n, v in row.headers] for row in rows], header),
        "timestamp": pa.array([row.timestamp for row in rows], pa.int64()).cast(pa.timestamp("ms", "UTC")),
    }
    if offsets is not None:
        columns["offset"] = pa.array(offsets, pa.int64())
    return pa.table(columns)


def judged_of(rows: Sequence[Row], offsets: Sequence[int]) -> list[JudgedRecord]:
    return [
        JudgedRecord(offset, row.timestamp, row.key, row.value, row.headers)
        for row, offset in zip(rows, offsets, strict=True)
    ]


def dicts_of(rows: Sequence[Row], offsets: Sequence[int]) -> list[dict[str, Any]]:
    return [{**row._asdict(), "offset": offset} for row, offset in zip(rows, offsets, strict=True)]


def many_rows(size: int, count: int = 300) -> list[Row]:
    """Return about `size` bytes of values, half of which can be compressed."""
    rng = random.Random(size)
    piece = size // count
    return [
        Row(b"key-%d" % at, rng.randbytes(piece) if at % 2 else b"%010d" % at * (piece // 10), (), NOW + at)
        for at in range(count)
    ]


def assert_taken(judge: JavaJudge, data: bytes, records: Sequence[JudgedRecord]) -> None:
    """Check that Kafka reads these records from the only batch, and that a leader appends it."""
    (batch,) = judge.record_set(data).batches
    assert batch.accepted
    assert list(batch.records) == list(records)
    for result in (judge.validated(data, ACCEPTING), judge.produced(data, ACCEPTING)):
        assert (result.code, result.error) == (0, None)
