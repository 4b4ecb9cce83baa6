# SPDX-License-Identifier: Apache-2.0
"""What encode() takes: Arrow of every type and layout, rows of every kind; and how it refuses the rest."""

from __future__ import annotations

import collections
import pickle
from typing import Any

import batch_writer
import numpy
import pandas
import pyarrow as pa
import pytest

import kcodec
from kcodec import EncodeError, Record, encode

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def fields(record: Record) -> tuple[Any, ...]:
    return record.key, record.value, record.headers, record.timestamp


def decoded(data: Any) -> list[Record]:
    return list(kcodec.decode(data).records())


# --------------------------------------------------------------------------------------------------------- Arrow types

VALUES = [b"", b"short", None, b"longer than twelve bytes", b"x" * 300, b"short"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.binary()),
        pa.dictionary(pa.uint16(), pa.string()),
        pa.dictionary(pa.int64(), pa.large_binary()),
    ],
    ids=str,
)
def test_every_binary_type_is_taken(kind: Any) -> None:
    is_text = "string" in str(kind)
    values = [value.decode() if is_text and value is not None else value for value in VALUES]
    column = (
        pa.array(values, kind.value_type).dictionary_encode().cast(kind)
        if pa.types.is_dictionary(kind)
        else pa.array(values, kind)
    )
    table = pa.table({"key": column, "value": column})
    for source in (table, table.to_batches()[0], table.slice(0, 6), pa.concat_tables([table])):
        assert [record.value for record in decoded(encode(source, timestamp=0))] == VALUES
    assert [record.key for record in decoded(encode(table.slice(2, 3), timestamp=0))] == VALUES[2:5]
    struct_array = table.to_struct_array().combine_chunks()
    assert [r.value for r in decoded(encode(struct_array.slice(1, 4), timestamp=0))] == VALUES[1:5]


def test_fixed_size_and_null_columns() -> None:
    table = pa.table({"key": pa.nulls(3), "value": pa.array([b"abc", None, b"xyz"], pa.binary(3))})
    assert [fields(r)[:2] for r in decoded(encode(table, timestamp=0))] == [
        (None, b"abc"),
        (None, None),
        (None, b"xyz"),
    ]


@pytest.mark.parametrize("large", [False, True])
def test_headers_of_every_arrow_layout(large: bool) -> None:
    rows = [[("a", b"1"), ("b", None)], [], None, [("", b"")]]
    shape = pa.struct([("key", pa.string()), ("value", pa.binary())])
    column = pa.array([None if r is None else [{"key": k, "value": v} for k, v in r] for r in rows],
                      pa.large_list(shape) if large else pa.list_(shape))  # fmt: skip
    table = pa.table({"value": [b""] * 4, "headers": column})
    expected = [tuple(row or ()) for row in rows]
    assert [record.headers for record in decoded(encode(table, timestamp=0))] == expected
    assert [record.headers for record in decoded(encode(table.slice(1), timestamp=0))] == expected[1:]
    mapping = pa.array([None if r is None else dict(r) for r in rows], pa.map_(pa.string(), pa.binary()))
    assert [r.headers for r in decoded(encode(table.set_column(1, "headers", mapping), timestamp=0))] == expected
    views = pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())]))
    assert [
        r.headers
        for r in decoded(
            encode(table.set_column(1, "headers", column.cast(views) if not large else column), timestamp=0)
        )
    ] == expected


def test_a_header_without_a_name_is_refused() -> None:
    table = pa.table({"value": [b""], "headers": pa.array([[{"key": None, "value": b""}]], HEADERS)})
    with pytest.raises(EncodeError, match=r"row 0: headers\.key is null"):
        encode(table, timestamp=0)
    with pytest.raises(EncodeError, match="header 0 has no name"):
        encode([(None, b"", [(None, b"")], 0)])


def test_the_unnamed_index_of_pandas_is_ignored() -> None:
    """A DataFrame has one after a filter; its Arrow name is __index_level_0__."""
    frame = pandas.DataFrame({"value": [b"a", b"b", b"c"], "size": [1, 2, 3]})
    kept = frame[frame["size"] > 1].drop(columns="size")
    assert pa.table(kept).column_names == ["value", "__index_level_0__"]
    assert [record.value for record in decoded(encode(kept, timestamp=0))] == [b"b", b"c"]
    keyed = frame.drop(columns="size").set_index(pandas.Index([b"x", b"y", b"z"], name="key"))
    assert [record.key for record in decoded(encode(keyed, timestamp=0))] == [b"x", b"y", b"z"]
    with pytest.raises(ValueError, match="unknown column 'size'"):
        encode(frame, timestamp=0)


@pytest.mark.parametrize("seconds", [-(1 << 63), -9_223_372_036_854_776, 9_223_372_036_854_776, (1 << 63) - 1])
def test_an_error_of_a_timestamp_has_its_value_and_row(seconds: int) -> None:
    """The value is the one in the column, in seconds, and not what remains of it in 64 bits of milliseconds."""
    table = pa.table({"value": [b"", b""], "timestamp": pa.array([0, seconds], pa.timestamp("s"))})
    with pytest.raises(EncodeError) as caught:
        encode(table)
    assert str(caught.value) == (
        f"row 1: column 'timestamp': {seconds} seconds is outside 0 to 9223372036854775, the range of timestamps in "
        "milliseconds; check the unit of the column"
    )
    assert (caught.value.field, caught.value.value, caught.value.row) == ("timestamp", seconds, 1)
    highest = pa.table({"value": [b""], "timestamp": pa.array([9_223_372_036_854_775], pa.timestamp("s"))})
    assert decoded(encode(highest))[0].timestamp == 9_223_372_036_854_775_000


def test_an_error_of_a_schema_id_has_its_range() -> None:
    table = pa.table({"value": [b"", b""], "value_schema_id": [-(1 << 31), -(1 << 31) - 1]})
    with pytest.raises(
        EncodeError, match="row 1: column 'value_schema_id': -2147483649 is outside -2147483648 to 2147"
    ):
        encode(table, timestamp=0, framing="confluent")


def test_an_error_of_a_header_name_has_its_row() -> None:
    """A lone surrogate cannot be encoded, except for those that stand for bytes ("surrogateescape")."""
    pair = ("n\ud800", b"1")
    with pytest.raises(EncodeError) as caught:
        encode([(None, b"", [], 0), (None, b"", [("x\udcff", b""), pair], 0)])
    assert str(caught.value) == (
        "row 1: the name of header 1, 'n\\ud800', has the lone surrogate U+D800 at index 1, which UTF-8 cannot encode; "
        "expected text without surrogates, or bytes"
    )
    assert (caught.value.field, caught.value.value, caught.value.row) == ("headers", pair, 1)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            pa.table({"value": [1, 2]}),
            "column 'value' cannot have the Arrow type int64; expected binary or string",
        ),
        (
            pa.table({"value": [b""], "timestamp": pa.array([1 << 63], pa.uint64())}),
            "column 'timestamp' cannot have the Arrow type uint64; expected timestamp, or int64 with",
        ),
        (pa.table({"value": [b""], "timestamp": ["x"]}), "column 'timestamp' cannot have the Arrow type string;"),
        (
            pa.table({"value": [b""], "headers": [[1]]}),
            "column 'headers' cannot have the Arrow type list<int64>;",
        ),
        (pa.table({"value": [{"a": 1, "b": 0.5}]}), "cannot have the Arrow type struct<a: int64, b: double>;"),
        (pa.table({"value": pa.array([[("a", 1)]], pa.map_("string", "int8"))}), "the Arrow type map<struct<key: stri"),
        (pa.table({"value": pa.array([5], pa.timestamp("us", "UTC"))}), r"the Arrow type timestamp\[us\];"),
        (pa.table({"valeu": [b""]}), "did you mean 'value'"),
        (pa.table({"offset": [1]}), "neither a column 'key' nor a column 'value'"),
        (pa.array([b"x"]), "expected an Arrow table or struct array, got binary"),
    ],
)
def test_arrow_data_that_is_no_source(table: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encode(table, timestamp=0)


def test_columns_that_follow_from_the_batch_are_passed_over() -> None:
    data = encode([(b"k", b"v", (), 3)])
    every = kcodec.decode(data, columns=[c for c in kcodec.COLUMNS if c not in ("topic", "partition")
                                         and not c.endswith("schema_id")])  # fmt: skip
    assert bytes(encode(every)) == bytes(data)
    spark = pa.table({"value": [b"v"], "topic": ["t"], "partition": [0], "timestampType": [0], "offset": [4]})
    assert decoded(encode(spark, timestamp=3))[0].offset == 4


def test_a_stream_of_many_arrays_and_a_source_that_fails() -> None:
    batches = [pa.record_batch({"value": [b"%d" % i] * i}) for i in range(5)]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    assert len(decoded(encode(reader, timestamp=0))) == 10

    def broken() -> Any:
        yield batches[1]
        raise RuntimeError("the source broke")

    with pytest.raises(ValueError, match=r"the Arrow stream failed: .*the source broke"):
        encode(pa.RecordBatchReader.from_batches(batches[0].schema, broken()), timestamp=0)
    with pytest.raises(EncodeError, match="row 4"):
        encode(pa.chunked_array([pa.array([{"value": b"", "timestamp": t}]) for t in (1, 1, 1, 1, -9)]))


def test_names_that_are_not_utf8_survive() -> None:
    data = batch_writer.build_batch([batch_writer.RecordSpec(value=b"v", headers=((b"\xff\xfe", b"x"),))])
    assert decoded(encode(kcodec.decode(data)))[0].headers == decoded(data)[0].headers
    assert decoded(encode(decoded(data)))[0].headers == decoded(data)[0].headers


# ---------------------------------------------------------------------------------------------------------------- rows


def test_rows_of_every_kind_are_the_same_record() -> None:
    Named = collections.namedtuple("Named", "key value timestamp")
    expected = bytes(encode([(b"k", b"v", (), 7)]))
    rows: tuple[Any, ...] = (
        {"key": b"k", "value": b"v", "timestamp": 7},
        {"key": bytearray(b"k"), "value": memoryview(b"v"), "timestamp": 7, "headers": None},
        Named(b"k", b"v", 7),
        Record(0, 7, "CreateTime", b"k", b"v"),
        (b"k", b"v", {}, 7),
        (b"k", b"v", None, numpy.int64(7)),
    )
    for row in rows:
        assert bytes(encode([row])) == expected
    assert decoded(encode([(b"k",), (b"k", b"v")], timestamp=1))[0].value is None
    with_headers = encode(
        [(None, b"", {"a": b"1", "b": None}, 0), (None, b"", [{"key": "a", "value": b"1"}, (b"b", None)], 0)]
    )
    assert {record.headers for record in decoded(with_headers)} == {(("a", b"1"), ("b", None))}


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        (("k", b"v", (), 0), "key", "encode it"),
        ((b"k", 5, (), 0), "value", "bytes or None, not int"),
        ((b"k", b"v", (), "now"), "timestamp", "milliseconds"),
        ((b"k", b"v", (), 1 << 64), "timestamp", "64 bits"),
        ((b"k", b"v", "name", 0), "headers", "pairs"),
        ((b"k", b"v", 7, 0), "headers", "pairs"),
        ((b"k", b"v", [("a",)], 0), "headers", "not a pair"),
        ((b"k", b"v", [("a", "text")], 0), "headers", "encode it"),
        ((b"k", b"v", (), 0, 1), "record", "5 fields"),
        ((), "record", "0 fields"),
        ({"value": b"", "timestmap": 0}, "timestmap", "did you mean 'timestamp'"),
        (b"bytes", "record", "a Record, a dict or a tuple, not bytes"),
    ],
)
def test_a_row_that_is_no_record_is_named(row: Any, field: str, words: str) -> None:
    with pytest.raises(EncodeError, match=words) as caught:
        encode([(None, b"", (), 0), row])
    assert caught.value.row == 1 and caught.value.field == field
    again = pickle.loads(pickle.dumps(caught.value)) if field != "record" or row != b"bytes" else caught.value
    assert str(again) == str(caught.value) and again.field == field


@pytest.mark.parametrize("source", ["text", b"bytes", {"value": b""}, 5, None])
def test_what_is_no_source_is_a_type_error(source: Any) -> None:
    with pytest.raises(TypeError):
        encode(source, timestamp=0)
