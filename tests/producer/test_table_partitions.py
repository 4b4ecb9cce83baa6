# SPDX-License-Identifier: Apache-2.0
"""The partition of each row of a table: its column, else its key, unless keys are ignored."""

from __future__ import annotations

import pyarrow
import pytest

from kcodec import decode, partition_for
from kcodec.producer.batch import ANY_PARTITION
from kcodec.producer.options import ProducerSettings
from kcodec.producer.tables import _with_empty_nulls, table_batches

KEYS = [b"%d" % row for row in range(20)]


@pytest.mark.parametrize("has_column", [False, True])
def test_ignored_keys_do_not_decide_the_partition(has_column: bool) -> None:
    column = pyarrow.array([2, None] * 10, "int32")
    columns = {"key": KEYS, "value": KEYS, **({"partition": column} if has_column else {})}
    table = pyarrow.table(columns)

    def counts(ignore_keys: bool) -> dict[int, int]:
        batches = table_batches(table, 3, ProducerSettings(ignore_keys=ignore_keys), 0, None)
        return {batch.partition: batch.records_count for batch in batches}

    assert counts(True) == ({2: 10, ANY_PARTITION: 10} if has_column else {ANY_PARTITION: 20})
    by_key = list(partition_for(pyarrow.array(KEYS), 3))
    decided = [2 if has_column and row % 2 == 0 else partition for row, partition in enumerate(by_key)]
    assert counts(False) == {partition: decided.count(partition) for partition in set(decided)}


@pytest.mark.parametrize("data_type", ["binary_view", "string_view", "dictionary", "null"])
@pytest.mark.parametrize("name", ["key", "value"])
def test_keys_and_values_of_any_arrow_type_are_sent(name: str, data_type: str) -> None:
    """pyarrow computes no lengths of them, and gathers no rows of views."""
    texts = pyarrow.array(["a", "long enough to be outside of a view", None] * 4)
    arrays = {
        "binary_view": texts.cast("binary").cast(pyarrow.binary_view()),
        "string_view": texts.cast(pyarrow.string_view()),
        "dictionary": texts.dictionary_encode(),
        "null": pyarrow.nulls(12),
    }
    others = {"key", "value"} - {name}
    columns = {name: arrays[data_type], **dict.fromkeys(others, texts), "partition": [0, 1, 2] * 4}
    batches = list(table_batches(pyarrow.table(columns), 3, ProducerSettings(), 0, None))
    assert {batch.partition: batch.records_count for batch in batches} == {0: 4, 1: 4, 2: 4}
    found = pyarrow.record_batch(decode(bytes(batches[0].data)))[name].to_pylist()
    assert found == ([None] if data_type == "null" else [b"a"]) * 4


@pytest.mark.parametrize("kind", [pyarrow.binary_view(), pyarrow.string_view()], ids=str)
def test_slices_of_views_do_not_copy_the_rows_before_them(kind: pyarrow.DataType) -> None:
    """A table that is sent in slices would take time by the square of its rows."""
    values = [None if row % 3 == 0 else f"a value outside of its view {row}" for row in range(2000)]
    column = pyarrow.array(values, "string_view").cast(kind)
    for begin in (0, 1, 7, 8, 1003, 1990):
        part = _with_empty_nulls(column.slice(begin, 9))
        part.validate(full=True)
        assert part.buffers()[1].size <= 16 * 16
        assert part.cast("large_binary").to_pylist() == [text and text.encode() for text in values[begin : begin + 9]]
