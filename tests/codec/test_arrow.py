# SPDX-License-Identifier: Apache-2.0
"""DecodedRecords as Arrow: what every consumer sees, the exact schema, and that memory is given back in any order."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import duckdb
import nanoarrow
import numpy
import pandas
import polars
import pyarrow as pa
import pytest
from batch_writer import RecordSpec, build_batch, empty_batch, end_transaction_marker

import kcodec
from kcodec import _fast

HEADERS = pa.list_(
    pa.field("item", pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary())]), False)
)
# The column table of the public API: name -> (type, nullable).
CORE: dict[str, tuple[pa.DataType, bool]] = {
    "offset": (pa.int64(), False),
    "timestamp": (pa.timestamp("ms", "UTC"), False),
    "timestamp_type": (pa.int32(), False),
    "key": (pa.binary(), True),
    "value": (pa.binary(), True),
    "headers": (HEADERS, False),
    "base_offset": (pa.int64(), False),
    "producer_id": (pa.int64(), False),
    "producer_epoch": (pa.int16(), False),
    "sequence": (pa.int32(), False),
    "partition_leader_epoch": (pa.int32(), False),
    "is_transactional": (pa.bool_(), False),
    "is_control": (pa.bool_(), False),
    "control_type": (pa.int16(), True),
}
SOURCE = {"topic": (pa.string(), True), "partition": (pa.int32(), True)}
ALL = tuple(CORE)
BINARY_TYPES = {"binary": pa.binary(), "large_binary": pa.large_binary(), "binary_view": pa.binary_view()}
LONG = bytes(range(256)) * 3


def mixed() -> bytes:
    """Nulls, empty and long values, headers, a transaction, its marker, an empty batch."""
    records = [
        RecordSpec(key=b"k1", value=b"v1", headers=((b"a", b"1"), (b"a", None))),
        RecordSpec(key=None, value=LONG, timestamp_delta=5),
        RecordSpec(key=b"", value=None, headers=((b"", b""),)),
        RecordSpec(key=LONG, value=b"", timestamp_delta=-7),
        RecordSpec(key=b"exactly12byt", value=b"thirteen byte"),
    ]
    transaction: dict[str, Any] = {"is_transactional": True, "producer_id": 9, "producer_epoch": 2, "base_sequence": 3}
    return b"".join(
        (
            build_batch(records, base_offset=10, compression="zstd"),
            build_batch(records[:2], base_offset=20, partition_leader_epoch=4, timestamp_type=1, **transaction),
            end_transaction_marker(1, producer_id=9, producer_epoch=2, base_offset=22),
            empty_batch(base_offset=23, last_offset_delta=4),
        )
    )


def decoded(**options: Any) -> kcodec.DecodedRecords:
    return kcodec.decode(mixed(), **{"columns": ALL, "control_records": "include", **options})


@pytest.fixture(scope="module")
def many_chunks() -> kcodec.DecodedRecords:
    """Three chunks or more: 70 batches of one record of 1 MiB."""
    batch = build_batch([RecordSpec(key=b"k", value=b"x" * (1 << 20), headers=((b"n", b"v"),))])
    return kcodec.decode(batch * 70)


@pytest.fixture
def no_leak() -> Iterator[None]:
    """Every buffer that was handed out during the test is back when it ends; a decompressor keeps its own, from the
    first time on.
    """
    decoded()
    gc.collect()
    before = _fast.pool_state()[2]
    yield
    gc.collect()
    assert _fast.pool_state()[2] == before


def plain(values: Any) -> Any:
    """Headers as consumers show them to tuples as kcodec shows them."""
    return [tuple((entry["key"], entry["value"]) for entry in row) for row in values]


# -------------------------------------------------------------------------------------------------------------- schema


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
@pytest.mark.parametrize(
    "columns", [ALL, ALL[::-1], *((name,) for name in ALL)], ids=lambda names: "+".join(names)[:24]
)
def test_types_and_nullability_are_those_of_the_column_table(columns: tuple[str, ...], binary_type: Any) -> None:
    fields = []
    for name in columns:
        kind, nullable = CORE[name]
        fields.append(pa.field(name, BINARY_TYPES[binary_type] if name in ("key", "value") else kind, nullable))
    result = decoded(columns=columns, binary_type=binary_type)
    assert pa.schema(result.schema) == pa.schema(fields)
    assert pa.schema(result) == pa.schema(fields)
    assert pa.table(result).schema == pa.schema(fields)
    assert result.columns == columns
    for field in fields:
        assert pa.field(result.column(field.name)) == field


def test_columns_of_the_source_are_known_where_it_says_them() -> None:
    decoder = _fast.Decoder(columns=("topic", "partition", "offset"), topic="zeitschlüssel", partition=3)
    decoder.feed(mixed())
    table = pa.concat_tables(pa.table(part) for part in decoder.take(flush=True))
    table.validate(full=True)
    assert table.schema == pa.schema([pa.field(n, *(SOURCE | CORE)[n]) for n in ("topic", "partition", "offset")])
    assert set(table["topic"].to_pylist()) == {"zeitschlüssel"}
    assert set(table["partition"].to_pylist()) == {3}


def test_columns_of_the_source_are_null_where_it_does_not() -> None:
    decoder = _fast.Decoder(columns=("topic", "partition"))
    decoder.feed(mixed())
    table = pa.table(decoder.take(flush=True)[0])
    table.validate(full=True)
    assert table.num_rows == 7
    assert [table[name].null_count for name in ("topic", "partition")] == [7, 7]


def test_the_layout_for_spark_has_microseconds_null_headers_and_everything_nullable() -> None:
    names = ("offset", "timestamp", "value", "headers", "is_control", "topic")
    decoder = _fast.Decoder(columns=names, spark_layout=True, topic="t")
    decoder.feed(mixed())
    table = pa.table(decoder.take(flush=True)[0])
    table.validate(full=True)
    item = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    kinds = [pa.int64(), pa.timestamp("us", "UTC"), pa.binary(), pa.list_(pa.field("element", item)), pa.bool_()]
    expected = pa.schema([pa.field(name, kind) for name, kind in zip(names, [*kinds, pa.string()], strict=True)])
    assert table.schema == expected
    assert pa.schema(_fast.schema_of(names, spark_layout=True)) == expected
    in_core = kcodec.decode(mixed(), columns=("timestamp", "headers"))
    microseconds = [value * 1000 for value in in_core.column("timestamp")]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == microseconds
    expected_headers = [list(row) or None for row in in_core.column("headers")]
    assert [row and [(e["key"], e["value"]) for e in row] for row in table["headers"].to_pylist()] == expected_headers


# ----------------------------------------------------------------------------------------------------------- consumers


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
def test_pyarrow_sees_what_python_sees(binary_type: Any, no_leak: None) -> None:
    result = decoded(binary_type=binary_type)
    for table in (pa.table(result), pa.Table.from_batches([pa.record_batch(result)])):
        table.validate(full=True)
        assert table.num_rows == len(result) == 8
        for name in ALL:
            column = table[name].cast(pa.int64()) if name == "timestamp" else table[name]
            values = plain(column.to_pylist()) if name == "headers" else column.to_pylist()
            assert values == list(result.column(name)), name
            assert pa.chunked_array(result.column(name)).equals(table[name])
        assert table["value"].null_count == 1
        assert table["control_type"].to_pylist() == [None] * 7 + [1]


def test_all_binary_types_hold_equal_values() -> None:
    one, large, view = (pa.table(decoded(binary_type=kind)) for kind in BINARY_TYPES)
    for name in ("key", "value"):
        assert one[name].to_pylist() == large[name].to_pylist() == view[name].to_pylist()


def test_polars_takes_it() -> None:
    for binary_type in BINARY_TYPES:
        frame = polars.DataFrame(decoded(binary_type=binary_type))
        assert frame["value"].to_list() == list(decoded().column("value"))
        assert frame["offset"].to_list() == [10, 11, 12, 13, 14, 20, 21, 22]
        assert frame.schema["timestamp"] == polars.Datetime("ms", "UTC")
        assert plain(frame["headers"].to_list()) == list(decoded().column("headers"))
    assert polars.Series(decoded().column("key")).to_list() == list(decoded().column("key"))


def test_duckdb_takes_it() -> None:
    for binary_type in BINARY_TYPES:
        result = decoded(binary_type=binary_type)
        query = 'select "offset", value, headers from result where "offset" >= 12 order by "offset" desc'
        rows = duckdb.connect().sql(query).fetchall()
        assert [row[0] for row in rows] == [22, 21, 20, 14, 13, 12]
        assert [row[1] for row in rows][::-1] == list(result.column("value"))[2:]
        assert plain(row[2] for row in rows)[::-1] == list(result.column("headers"))[2:]


@pytest.mark.parametrize("binary_type", ["binary", "large_binary"])
def test_nanoarrow_takes_it(binary_type: Any) -> None:
    result = decoded(binary_type=binary_type)
    rows = nanoarrow.ArrayStream(result).read_all().to_pylist()
    assert [row["value"] for row in rows] == list(result.column("value"))
    assert plain(row["headers"] for row in rows) == list(result.column("headers"))
    assert nanoarrow.Array(result).to_pylist() == rows
    assert nanoarrow.Array(result.column("offset")).to_pylist() == list(result.column("offset"))


def test_pandas_takes_it_through_pyarrow() -> None:
    frame = pa.table(decoded()).to_pandas()
    assert list(frame["offset"]) == list(decoded().column("offset"))
    assert list(frame["value"]) == list(decoded().column("value"))
    assert frame["timestamp"].dt.tz is not None
    assert isinstance(frame["timestamp"].dtype, pandas.DatetimeTZDtype)


def test_exports_need_no_pyarrow() -> None:
    program = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "import kcodec, nanoarrow\n"
        "decoded = kcodec.decode(sys.stdin.buffer.read())\n"
        "print(len(nanoarrow.ArrayStream(decoded).read_all()), nanoarrow.Array(decoded).n_children)\n"
        "print(nanoarrow.Array(decoded.column('offset')).to_pylist(), nanoarrow.Schema(decoded.schema).n_fields)\n"
        "try: kcodec.batches(b'').to_arrow()\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=mixed(), capture_output=True, check=True, timeout=60)
    assert done.stdout.decode().splitlines() == [
        "7 5",
        "[10, 11, 12, 13, 14, 20, 21] 5",
        "to_arrow() needs pyarrow: install the package pyarrow",
    ]


# ------------------------------------------------------------------------------------------------ empty, slices, chunks


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
@pytest.mark.parametrize(
    "data", [b"", mixed()[:40], empty_batch(last_offset_delta=3)], ids=["nothing", "cut", "emptied"]
)
def test_empty_results_are_tables_without_rows(data: bytes, binary_type: Any) -> None:
    for columns in (ALL, *((name,) for name in ALL), ()):
        result = kcodec.decode(data, columns=columns, binary_type=binary_type)
        table = pa.table(result)
        table.validate(full=True)
        assert (table.num_rows, table.column_names, len(result)) == (0, list(columns), 0)
        pa.record_batch(result).validate(full=True)
        assert polars.DataFrame(result).height == 0
        assert list(result.records()) == []
        for name in columns:
            assert len(pa.chunked_array(result.column(name))) == len(result.column(name)) == 0


def test_without_columns_there_are_still_rows() -> None:
    result = decoded(columns=())
    assert len(result) == 8
    assert pa.record_batch(result).num_rows == 8


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 7])
def test_slices_of_a_batch_are_valid_each_and_together_the_whole(
    binary_type: Any, max_rows: int, no_leak: None
) -> None:
    decoder = _fast.Decoder(columns=ALL, control_records="include", binary_type=binary_type, max_rows=max_rows)
    parts, rest = [], memoryview(mixed())
    while consumed := decoder.feed(rest):  # stops at each chunk that is finished
        rest = rest[consumed:]
        parts += decoder.take()
    parts += decoder.take(flush=True)
    assert not rest
    assert all(1 <= len(part) <= max_rows for part in parts)
    for part in parts:
        table = pa.table(part)
        table.validate(full=True)
        assert plain(table["headers"].to_pylist()) == list(part.column("headers"))
        assert table["value"].null_count == list(part.column("value")).count(None)
        assert [record.value for record in part.records()] == table["value"].to_pylist()
        assert part.to_numpy("offset").tolist() == table["offset"].to_pylist()
        assert part.to_numpy("is_control").tolist() == table["is_control"].to_pylist()
        nanoarrow.Array(part.column("offset")).inspect()
    whole = pa.table(decoded(binary_type=binary_type))
    assert pa.concat_tables(pa.table(part) for part in parts).equals(whole)
    assert polars.concat([polars.DataFrame(part) for part in parts]).equals(polars.DataFrame(decoded()))


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
@pytest.mark.parametrize("max_rows", [9, 13, 64])
def test_slices_begin_inside_the_bytes_of_bitmaps(binary_type: Any, max_rows: int) -> None:
    pick = random.Random(max_rows)
    values = [None if pick.random() < 0.3 else LONG[: pick.choice((0, 3, 12, 13, 200))] for _ in range(300)]
    rows = [
        RecordSpec(key=values[-at], value=value, headers=((b"h", value),) * (at % 4)) for at, value in enumerate(values)
    ]
    data = build_batch(rows[:150]) + build_batch(rows[150:], base_offset=150, is_transactional=True, producer_id=1)
    decoder = _fast.Decoder(columns=ALL, binary_type=binary_type, max_rows=max_rows)
    decoder.feed(data)
    parts = [pa.table(part) for part in decoder.take(flush=True)]
    for part in parts:
        part.validate(full=True)
    whole = pa.concat_tables(parts)
    assert whole["value"].to_pylist() == values
    assert whole["is_transactional"].to_pylist() == [at >= 150 for at in range(300)]
    assert whole.equals(pa.table(kcodec.decode(data, columns=ALL, binary_type=binary_type)))
    assert whole["control_type"].null_count == 300


def test_chunks_stream_one_after_the_other(many_chunks: kcodec.DecodedRecords) -> None:
    chunks = many_chunks.chunks
    assert len(chunks) >= 2
    assert sum(len(chunk) for chunk in chunks) == len(many_chunks) == 70
    table = pa.table(many_chunks)
    table.validate(full=True)
    assert [len(batch) for batch in table.to_batches()] == [len(chunk) for chunk in chunks]
    assert pa.chunked_array(many_chunks.column("value")).num_chunks == len(chunks)
    assert sum(pa.record_batch(chunk).num_rows for chunk in chunks) == 70
    assert all(chunk.to_numpy("offset").tolist() == [0] * len(chunk) for chunk in chunks)
    assert len(list(many_chunks.records())) == 70
    last = chunks[-1].column("value")
    assert many_chunks.column("value")[-1] == last[-1]


def test_polars_and_nanoarrow_take_many_chunks(many_chunks: kcodec.DecodedRecords) -> None:
    """They ask for __arrow_c_array__ first, and for the stream only where that is not there."""
    assert polars.DataFrame(many_chunks).height == 70
    assert len(nanoarrow.Array(many_chunks)) == 70


def test_what_needs_one_chunk_says_what_to_do_with_many(many_chunks: kcodec.DecodedRecords) -> None:
    for call in (lambda: many_chunks.__arrow_c_array__(), lambda: many_chunks.to_numpy("offset")):
        with pytest.raises(
            ValueError, match=r"needs one chunk but there are \d+: go through \.chunks, or use the stream"
        ):
            call()


# --------------------------------------------------------------------------------------------------------------- numpy


def test_fixed_width_columns_are_numpy_arrays_over_the_same_memory() -> None:
    result = decoded()
    expected = {"int64": "<i8", "int32": "<i4", "int16": "<i2", "bool": "bool", "timestamp[ms, tz=UTC]": "<M8[ms]"}
    for name, (kind, nullable) in CORE.items():
        if nullable or name == "headers":
            continue
        array = result.to_numpy(name)
        assert array.dtype == numpy.dtype(expected[str(kind)]), name
        assert array.astype("i8").tolist() == list(result.column(name)), name
        if name != "is_transactional" and name != "is_control":
            assert not array.flags.owndata
            assert not array.flags.writeable
            buffer = pa.table(result)[name].chunk(0).buffers()[1]
            assert array.ctypes.data == buffer.address


def test_numpy_refuses_what_it_cannot_hold() -> None:
    for name in ("key", "value", "headers"):
        with pytest.raises(ValueError, match=f"column '{name}' has no fixed width, which numpy cannot hold: use Arrow"):
            decoded().to_numpy(name)
    with pytest.raises(ValueError, match="column 'control_type' contains nulls, which numpy cannot hold: use Arrow"):
        decoded().to_numpy("control_type")
    with pytest.raises(ValueError, match="unknown column 'ofset'; did you mean 'offset'"):
        decoded().to_numpy("ofset")


def test_control_types_alone_hold_no_nulls() -> None:
    marker = end_transaction_marker(0, producer_id=1, base_offset=4)
    result = kcodec.decode(marker, columns=("control_type",), control_records="include")
    assert result.to_numpy("control_type").tolist() == [0]
    assert result.to_numpy("control_type").dtype == numpy.dtype("<i2")


def test_arrays_outlive_their_result_and_its_bytes(no_leak: None) -> None:
    data = bytearray(mixed())
    array = kcodec.decode(data).to_numpy("offset")
    gc.collect()
    data.clear()
    assert array.tolist() == [10, 11, 12, 13, 14, 20, 21]
