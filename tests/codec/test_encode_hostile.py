# SPDX-License-Identifier: Apache-2.0
"""Sources and callers that misbehave: rows that change while they are read, builders called from within, Arrow data
that breaks its rules. Nothing here may crash, write other records, or keep memory."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from encode_samples import CodecName, decoded

import kcodec
from kcodec import EncodeError, RecordBatchBuilder, batches, encode

# ---------------------------------------------------------------------------------------------------------------- rows


def test_a_row_may_change_while_its_headers_are_read() -> None:
    row: dict[str, Any] = {"key": bytes([7]) * 5000, "value": bytearray(b"v"), "timestamp": 1}

    def headers() -> Iterator[tuple[str, bytes]]:
        row["key"] = row["value"] = None
        yield "name", bytes(5000)

    row["headers"] = headers()
    (record,) = decoded(encode([row]))
    assert (record.key, record.value) == (bytes([7]) * 5000, b"v")


def test_a_tuple_may_give_what_nothing_else_holds() -> None:
    class Fresh(tuple[Any, ...]):
        _fields = ("key", "value", "timestamp")

        def __iter__(self) -> Iterator[Any]:
            return iter((b"k" * int("5000"), b"v" * int("5000"), 5))

    records = decoded(encode([Fresh((1, 2, 3)) for _ in range(20)]))
    assert {(record.key, record.value) for record in records} == {(b"k" * 5000, b"v" * 5000)}


def test_an_error_of_the_headers_is_theirs() -> None:
    def headers() -> Iterator[tuple[str, bytes]]:
        yield "name", b""
        raise TypeError("of the caller")

    with pytest.raises(TypeError, match="of the caller"):
        encode([(None, b"", headers(), 0)])


def test_headers_may_be_a_numpy_array() -> None:
    import numpy as np

    for size in (0, 1, 2):
        headers = np.array([{"key": "a", "value": b"b"}] * size, dtype=object)
        assert decoded(encode([(None, b"", headers, 0)]))[0].headers == (("a", b"b"),) * size


# ------------------------------------------------------------------------------------------------------------- builder


def test_a_builder_that_is_called_while_it_appends_refuses() -> None:
    builder = RecordBatchBuilder(timestamp=0)

    def headers() -> Iterator[tuple[str, bytes]]:
        for call in (builder.close, lambda: builder.append(b"inner", b""), lambda: builder.has_room_for(b"", b"")):
            with pytest.raises(RuntimeError, match="in use"):
                call()
        with pytest.raises(TypeError, match="a second time"):
            builder.__init__()
        yield "name", b"x"

    assert builder.append(b"outer", b"value", headers()) == 0
    (record,) = decoded(builder.close())
    assert (record.key, record.value, record.headers) == (b"outer", b"value", (("name", b"x"),))


def test_a_builder_is_not_appended_to_while_it_compresses() -> None:
    builder = RecordBatchBuilder(timestamp=0, compression="zstd", compression_level=19, max_batch_bytes=1 << 28)
    for at in range(300):
        builder.append(b"key", bytes(range(256)) * 50 + b"%d" % at)
    refused: list[Exception] = []

    def append_until_closed() -> None:
        try:
            while True:
                builder.append(None, b"v" * 1_000_000)
        except (RuntimeError, ValueError) as error:
            refused.append(error)

    other = threading.Thread(target=append_until_closed)
    other.start()
    data = None
    while data is None:
        try:
            data = builder.close()
        except RuntimeError:  # it was appending just then
            continue
    other.join()
    assert len(refused) == 1
    assert kcodec.decode(data).counts.records == builder.records_count >= 300


def test_a_refused_record_lends_nothing_on() -> None:
    builder = RecordBatchBuilder(timestamp=0)
    key = bytearray(b"k")
    with pytest.raises(EncodeError):
        builder.append(key, 5)  # type: ignore[arg-type]
    key.append(0)  # a bytearray that is still lent raises BufferError


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_builder_is_not_copied(duplicate: Any) -> None:
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        duplicate(RecordBatchBuilder())


def test_room_counts_the_schema_ids() -> None:
    for size in range(60, 140):
        builder = RecordBatchBuilder(timestamp=0, framing="confluent", max_batch_bytes=200)
        if builder.has_room_for(b"k", b"v" * size):
            builder.append(b"k", b"v" * size, key_schema_id=1, value_schema_id=2)
    assert not builder.has_room_for(b"k", b"v" * 139)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_large_record_does_not_stay_in_the_pool(codec: CodecName) -> None:
    """What is touched beyond the pool's rule goes back to the system, whether the record was taken or refused."""
    value = bytes(range(256)) * (70 << 12)
    gc.collect()
    before = resident()
    encode([(None, value, (), 0)], compression=codec, max_batch_bytes=1 << 28)
    with pytest.raises(EncodeError, match="exceeds max_batch_bytes"):
        encode([(None, value, (), 0)], compression=codec)
    gc.collect()
    assert resident() - before < 40 << 20


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("is_header", [False, True])
def test_a_large_record_is_not_copied_into_an_open_batch(codec: CodecName, is_header: bool) -> None:
    """The batch stays open after it, and would keep memory of the record's size until it ends."""
    large = bytes(range(256)) * (24 << 12)
    value, headers = (b"", (("h", large),)) if is_header else (large, ())
    builders = [RecordBatchBuilder(timestamp=0, compression=codec, max_batch_bytes=1000) for _ in range(4)]
    gc.collect()
    before = resident()
    for builder in builders:
        builder.append(None, b"x")
        assert builder.append_if_room(None, value, headers, 0) is None
        assert builder.append(None, b"y") == 1
    assert resident() - before < len(large) // 2
    for builder in builders:
        assert [record.value for batch in batches(builder.take()) for record in batch.records()] == [b"x", b"y"]


# --------------------------------------------------------------------------------------------------------------- Arrow


class Capsules:
    """An Arrow array by capsules made before."""

    def __init__(self, array: pa.StructArray) -> None:
        self.schema, self.array = array.__arrow_c_array__()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.schema, self.array


class SchemaStruct(ctypes.Structure):
    """struct ArrowSchema."""


SchemaStruct._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(SchemaStruct))),
]


class ArrayStruct(ctypes.Structure):
    """struct ArrowArray, as far as is used."""

    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    )


def address(capsule: object, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, name))


def table_of(**columns: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def test_an_array_that_was_taken_is_not_read_again() -> None:
    source = Capsules(table_of(value=pa.array([b"x" * 1000] * 10)))
    pa.Array._import_from_c_capsule(source.schema, source.array)
    with pytest.raises(ValueError, match="read before"):
        encode(source, timestamp=0)


def test_a_column_without_a_name_is_none() -> None:
    source = Capsules(table_of(value=pa.array([b"x"])))
    SchemaStruct.from_address(address(source.schema, b"arrow_schema")).children[0].contents.name = None
    with pytest.raises(ValueError, match="unknown column ''"):
        encode(source, timestamp=0)


def test_columns_shorter_than_the_table_are_refused() -> None:
    source = Capsules(table_of(value=pa.array([b"x"])))
    ArrayStruct.from_address(address(source.array, b"arrow_array")).length = 1_000_000
    with pytest.raises(ValueError, match="column 'value' has 1 rows, but the Arrow table has 1000000"):
        encode(source, timestamp=0)


def test_nulls_that_were_not_counted() -> None:
    masked = pa.StructArray.from_arrays([pa.array([b"a", b"b", b"c"])], ["value"], mask=pa.array([True, False, False]))
    source = Capsules(masked)
    struct = ArrayStruct.from_address(address(source.array, b"arrow_array"))
    struct.null_count = -1
    with pytest.raises(ValueError, match="row 0 of the Arrow table is null"):
        encode(source, timestamp=0)
    struct.offset, struct.length = 1, 2
    assert [record.value for record in decoded(encode(source, timestamp=0))] == [b"b", b"c"]


def test_headers_whose_fields_come_the_other_way_round() -> None:
    kind = pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))
    table = pa.table({"value": [b""], "headers": pa.array([[{"key": "name", "value": b"content"}]], kind)})
    assert decoded(encode(table, timestamp=0))[0].headers == (("name", b"content"),)


@pytest.mark.parametrize("fields", [("value", "name"), ("content", "key"), ("value", "key")])
def test_one_field_name_suffices_to_find_the_value_of_a_header(fields: tuple[str, str]) -> None:
    content, name = fields
    kind = pa.list_(pa.struct([(content, pa.string()), (name, pa.string())]))
    table = pa.table({"value": [b""], "headers": pa.array([[{name: "name", content: "content"}]], kind)})
    assert decoded(encode(table, timestamp=0))[0].headers == (("name", b"content"),)


@pytest.mark.parametrize("field", ["key", "value"])
def test_two_fields_of_a_header_with_the_same_name_are_refused(field: str) -> None:
    entries = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], [field, field])
    table = pa.table({"value": [b""], "headers": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), entries)})
    with pytest.raises(ValueError, match="column 'headers' cannot have the Arrow type"):
        encode(table, timestamp=0)


def test_one_entry_many_times_over_does_not_fill_the_memory() -> None:
    """A record is refused as soon as it exceeds max_batch_bytes, however much more of it there would be."""
    same = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array([b"x" * 1_000_000]))
    entries = pa.StructArray.from_arrays([pa.array(["a"] * 5000), same], ["key", "value"])
    table = pa.table({"value": [b""], "headers": pa.ListArray.from_arrays(pa.array([0, 5000], pa.int32()), entries)})
    with pytest.raises(EncodeError, match=r"row 0: a record of \d{10} bytes exceeds max_batch_bytes 1048576"):
        encode(table, timestamp=0)


def test_columns_whose_every_level_begins_elsewhere() -> None:
    """Offsets of the table, its columns, their lists, entries and dictionaries, none of them zero."""
    count = 12
    names = pa.array([f"n{at}" for at in range(40)]).slice(3)
    values = pa.array([None if at % 3 == 0 else b"%d" % at for at in range(50)]).slice(5)
    entries = pa.StructArray.from_arrays([names.slice(0, 30), values.slice(0, 30)], ["key", "value"]).slice(4)
    lists = pa.ListArray.from_arrays(pa.array([0, *(2 * at for at in range(1, count + 2))], pa.int32()), entries)
    book = pa.array([b"skipped", b"zero", None, b"two"]).slice(1)
    keys = pa.DictionaryArray.from_arrays(
        pa.array([at % 3 if at % 5 else None for at in range(count + 4)], pa.int8()), book
    )
    table = table_of(key=keys.slice(1, count), value=pa.array([b"v%d" % at for at in range(count + 3)]).slice(2, count),
                     headers=lists.slice(1, count)).slice(1)  # fmt: skip
    expected = [
        (row["key"], row["value"], tuple((h["key"], h["value"]) for h in row["headers"])) for row in table.to_pylist()
    ]
    made = decoded(encode(table, timestamp=0))
    assert [(record.key, record.value, record.headers) for record in made] == expected
    assert None in {key for key, _value, _headers in expected}
