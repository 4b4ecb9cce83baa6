# SPDX-License-Identifier: Apache-2.0
"""A record that crosses max_batch_bytes begins the next batch, complete, wherever in the record the limit is.

The expected batches are computed with an independent writer (batch_writer).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from batch_writer import RecordSpec, build_batch, build_record
from hypothesis import example, given
from hypothesis import strategies as st

import kcodec
from kcodec import EncodeError, RecordBatchBuilder, _fast

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[bytes | None, bytes | None, Headers, int]

HEADER = 61
NOW = 1_767_225_600_000
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.int64()),
    ]
)
# The length of the first record takes two bytes, that of the second one byte.
LONG_THEN_SHORT: tuple[Row, ...] = (
    (None, b"x" * 80, (), NOW),
    (None, b"y" * 20, (("a", b"1"), ("b", b"2"), ("c", b"3")), NOW),
)


def table_of(rows: Sequence[Row]) -> pa.Table:
    entries = [[{"key": name, "value": value} for name, value in row[2]] for row in rows]
    return pa.table(
        [[row[0] for row in rows], [row[1] for row in rows], entries, [row[3] for row in rows]], schema=SCHEMA
    )


def spec_of(row: Row, base_timestamp: int) -> RecordSpec:
    headers = tuple((name.encode(), value) for name, value in row[2])
    return RecordSpec(row[0], row[1], headers, timestamp_delta=row[3] - base_timestamp)


def size_of(row: Row, base_timestamp: int, delta: int) -> int:
    return len(build_record(spec_of(row, base_timestamp), delta))


def groups_of(rows: Sequence[Row], limit: int) -> list[list[Row]]:
    """The rows of each batch, as many as fit. The last group is not complete if its first row does not fit alone."""
    groups: list[list[Row]] = []
    used = 0
    for row in rows:
        if groups and groups[-1]:
            used += size_of(row, groups[-1][0][3], len(groups[-1]))
        if not groups or used > limit:
            groups.append([])
            used = HEADER + size_of(row, row[3], 0)
        if used > limit:
            return groups
        groups[-1].append(row)
    return groups


def batches_of(groups: Sequence[Sequence[Row]]) -> bytes:
    made, offset = b"", 0
    for rows in groups:
        base = rows[0][3]
        specs = [spec_of(row, base) for row in rows]
        made += build_batch(specs, base_offset=offset, base_timestamp=base, partition_leader_epoch=-1)
        offset += len(rows)
    return made


def by_rows(rows: Sequence[Row], limit: int) -> bytes:
    return bytes(kcodec.encode(rows, max_batch_bytes=limit))


def by_arrow(rows: Sequence[Row], limit: int) -> bytes:
    return bytes(kcodec.encode(table_of(rows), max_batch_bytes=limit))


def by_arrow_with_offsets(rows: Sequence[Row], limit: int) -> bytes:
    table = table_of(rows).append_column("offset", pa.array(range(len(rows)), pa.int64()))
    return bytes(kcodec.encode(table, max_batch_bytes=limit))


def by_builder(rows: Sequence[Row], limit: int) -> bytes:
    """Records that an open batch refuses are appended to the next one."""
    made = []
    builder = RecordBatchBuilder(max_batch_bytes=limit)
    for offset, row in enumerate(rows):
        try:
            builder.append(*row)
        except EncodeError:
            if not builder.records_count:
                raise
            made.append(builder.close())
            builder = RecordBatchBuilder(base_offset=offset, max_batch_bytes=limit)
            builder.append(*row)
    return b"".join([*made, builder.close()])


def by_append_if_room(rows: Sequence[Row], limit: int) -> bytes:
    """As Producer does."""
    made = []
    builder = RecordBatchBuilder(max_batch_bytes=limit)
    for offset, row in enumerate(rows):
        if builder.append_if_room(*row) is None:
            made.append(builder.close())
            builder = RecordBatchBuilder(base_offset=offset, max_batch_bytes=limit)
            assert builder.append_if_room(*row) == 0
    return b"".join([*made, builder.close()])


def by_client_builder(rows: Sequence[Row], limit: int) -> bytes:
    """As the adapters for aiokafka and kafka-python do. The first record of a batch may exceed the limit."""
    made = b""
    builder, base = _fast.ClientBatchBuilder(2, 0, False, -1, -1, -1, limit), 0
    for offset, (key, value, headers, timestamp) in enumerate(rows):
        if builder.append(offset - base, timestamp, key, value, list(headers)) is None:
            made += with_base_offset(builder.build(), base)
            builder, base = _fast.ClientBatchBuilder(2, 0, False, -1, -1, -1, limit), offset
            assert builder.append(0, timestamp, key, value, list(headers)) is not None
    return made + with_base_offset(builder.build(), base)


def with_base_offset(batch: bytearray, base_offset: int) -> bytes:
    kcodec.set_base_offset(batch, base_offset)
    return bytes(batch)


WAYS = [by_rows, by_arrow, by_arrow_with_offsets, by_builder, by_append_if_room, by_client_builder]

NAMES = st.text(st.characters(max_codepoint=0x7FF), max_size=70)
PAYLOADS = st.none() | st.binary(max_size=20) | st.integers(60, 200).map(bytes)
HEADERS = st.lists(st.tuples(NAMES, PAYLOADS), max_size=5).map(tuple)
ROWS = st.lists(st.tuples(PAYLOADS, PAYLOADS, HEADERS, st.integers(NOW, NOW + 99)), min_size=1, max_size=6).map(tuple)


@pytest.mark.parametrize("way", WAYS)
@given(rows=ROWS, crossed=st.integers(0, 5), missing=st.integers(0, 300))
@example(rows=LONG_THEN_SHORT, crossed=1, missing=1)
@example(rows=LONG_THEN_SHORT, crossed=1, missing=5)
def test_a_record_that_crosses_the_limit_is_complete(
    way: Callable[[Sequence[Row], int], bytes], rows: tuple[Row, ...], crossed: int, missing: int
) -> None:
    """The limit is up to 300 bytes before the end of one of the records."""
    crossed = min(crossed, len(rows) - 1)
    end = HEADER + sum(size_of(row, rows[0][3], delta) for delta, row in enumerate(rows[: crossed + 1]))
    limit = max(end - missing, HEADER)
    groups = groups_of(rows, limit)
    if all(groups):
        assert way(rows, limit) == batches_of(groups)
    elif way is not by_client_builder:
        row = rows[sum(map(len, groups))]
        size = HEADER + size_of(row, row[3], 0)
        with pytest.raises(EncodeError, match=rf"a record of {size} bytes exceeds max_batch_bytes {limit}"):
            way(rows, limit)


@pytest.mark.parametrize("way", WAYS)
def test_a_record_is_complete_at_every_limit(way: Callable[[Sequence[Row], int], bytes]) -> None:
    end = HEADER + sum(size_of(row, NOW, delta) for delta, row in enumerate(LONG_THEN_SHORT))
    for limit in range(HEADER + size_of(LONG_THEN_SHORT[0], NOW, 0), end + 2):
        assert way(LONG_THEN_SHORT, limit) == batches_of(groups_of(LONG_THEN_SHORT, limit))


@pytest.mark.parametrize("way", WAYS[:5])
def test_a_header_that_is_larger_than_a_batch_is_refused(way: Callable[[Sequence[Row], int], bytes]) -> None:
    """The error has the size of the whole record, although the writer does not write it to the end."""
    headers = (("a" * 57, b""), ("b", b"z" * 100_000))
    rows: list[Row] = [(None, b"x" * 58, (), NOW), (None, b"y", headers, NOW)]
    size = HEADER + size_of(rows[1], NOW, 0)
    for limit in range(127, 140):
        with pytest.raises(EncodeError, match=rf"a record of {size} bytes exceeds max_batch_bytes {limit}"):
            way(rows, limit)


def test_a_record_with_a_shorter_length_field_fits_exactly() -> None:
    """The writer reserves two bytes for the length of the second record, as for the first one, and needs one."""
    rows = LONG_THEN_SHORT
    limit = HEADER + sum(size_of(row, NOW, delta) for delta, row in enumerate(rows))
    encoded: Any = kcodec.encode(rows, max_batch_bytes=limit)
    assert len(encoded) == limit
    assert len(encoded.batches) == 1
