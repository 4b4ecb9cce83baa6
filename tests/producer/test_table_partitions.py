# SPDX-License-Identifier: Apache-2.0
"""The partition of each row of a table: its column, else its stored key, unless keys are ignored."""

from __future__ import annotations

from typing import Any

import pandas
import pyarrow
import pytest

from kcodec import decode, partition_for, read_topic
from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic, Producer
from kcodec.errors import EncodeError
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


def test_the_unnamed_index_of_pandas_is_not_sent() -> None:
    """A DataFrame has one after a filter; its Arrow name is __index_level_0__."""
    frame = pandas.DataFrame({"value": [b"a", b"b", b"c"], "partition": [0, 1, 1]})
    batches = list(table_batches(frame[frame["partition"] == 1], 2, ProducerSettings(), 0, None))
    assert {batch.partition: batch.records_count for batch in batches} == {1: 2}


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


def framed_columns(layout: str) -> dict[str, Any]:
    """Return the columns of keys and schema ids in an Arrow layout; each has nulls."""
    texts = [None if row % 7 == 3 else "" if row % 11 == 5 else f"order-{row}" for row in range(60)]
    numbers = [None if row % 5 == 2 else (7, 0, -1, 1 << 20)[row % 4] for row in range(60)]
    keys: Any = pyarrow.array(texts).cast(pyarrow.binary())
    ids: Any = pyarrow.array(numbers, pyarrow.int32())
    if layout == "slices":
        keys = pyarrow.concat_arrays([keys.slice(0, 9), keys]).slice(9)
        ids = pyarrow.concat_arrays([ids.slice(0, 3), ids]).slice(3)
    elif layout == "chunks":
        keys = pyarrow.chunked_array([keys.slice(0, 13), keys.slice(13, 0), keys.slice(13)])
        ids = pyarrow.chunked_array([ids.slice(0, 30), ids.slice(30)])
    elif layout == "dictionary":
        keys = pyarrow.array(texts).dictionary_encode()
        ids = ids.cast(pyarrow.int64())
    elif layout == "dictionary of views":
        plain = pyarrow.array(texts).dictionary_encode()
        keys = pyarrow.DictionaryArray.from_arrays(plain.indices, plain.dictionary.cast(pyarrow.string_view()))
    elif layout != "binary":
        keys = pyarrow.array(texts).cast(layout)
    return {"key": keys, "key_schema_id": ids}


def stored_keys(columns: dict[str, Any]) -> list[bytes | None]:
    """Return each key as the serializers of Schema Registry write it."""
    rows = pyarrow.table(columns).to_pylist()
    keys = [row["key"].encode() if isinstance(row["key"], str) else row["key"] for row in rows]
    ids = [row["key_schema_id"] for row in rows]
    return [
        key if key is None or number is None else b"\0" + number.to_bytes(4, "big", signed=True) + key
        for key, number in zip(keys, ids, strict=True)
    ]


LAYOUTS = ["binary", "large_binary", "string", "large_string", "string_view", "slices", "chunks", "dictionary"]
LAYOUTS += ["dictionary of views"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("partitioner", ["murmur2_random", "murmur2", "consistent", "fnv1a", "function"])
def test_send_arrow_hashes_the_stored_key_as_send_does(layout: str, partitioner: str) -> None:
    """The prefix with the schema id is a part of the stored key, as in Java's serializers."""
    called: list[bytes | None] = []

    def choose(key: bytes | None, partitions: list[int], available: list[int]) -> int:
        called.append(key)
        return 0 if key is None else sum(key) % len(partitions)

    columns = framed_columns(layout)
    expected = stored_keys(columns)
    option: Any = choose if partitioner == "function" else partitioner
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("one", 12), NewTopic("table", 12)])
        with Producer(bootstrap_servers=broker.bootstrap_servers, partitioner=option) as producer:
            for key in expected:
                producer.send("one", b"", key)
            producer.flush()
            assert called == (expected if option is choose else [])
            called.clear()
            producer.send_arrow("table", pyarrow.table(columns), framing="confluent").result()
            assert called == (expected if option is choose else [])

        def found(topic: str) -> list[tuple[Any, Any]]:
            names = ("partition", "key")
            with read_topic(topic, bootstrap_servers=broker.bootstrap_servers, columns=names) as records:
                rows = [(record.key, record.partition) for record in records.rows()]
            assert len(rows) == len(expected)
            return sorted(row for row in rows if row[0] is not None)

        assert found("table") == found("one")


@pytest.mark.parametrize("kind", ["string", "uint32", "float64"])
def test_schema_ids_of_a_wrong_type_are_reported(kind: str) -> None:
    table = pyarrow.table({"key": [b"a"], "key_schema_id": pyarrow.array(["1"]).cast(kind)})
    with pytest.raises(ValueError, match="column 'key_schema_id' cannot have the Arrow type"):
        list(table_batches(table, 3, ProducerSettings(), 0, "confluent"))


def test_a_schema_id_above_32_bits_names_its_row() -> None:
    table = pyarrow.table({"key": [b"a", b"b", b"c"], "key_schema_id": pyarrow.array([1, 1 << 40, 2])})
    with pytest.raises(EncodeError, match="key_schema_id") as caught:
        list(table_batches(table, 3, ProducerSettings(), 0, "confluent"))
    assert caught.value.row == 1
