# SPDX-License-Identifier: Apache-2.0
"""partition_for: the partition Java's producer chooses, for every shape a column of keys can have."""

from __future__ import annotations

import ctypes
import gc
import pickle
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from java_judge import JavaJudge

import kcodec
from kcodec import _fast

COUNTS = (1, 2, 3, 7, 12, 64, 1000, 100_003, (1 << 30) + 1, (1 << 31) - 1)


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def some_keys() -> list[bytes]:
    """Every length from 0 to 40 several times, all single bytes, and some large ones."""
    rng = random.Random(11)
    found = [rng.randbytes(size) for size in range(41) for _ in range(20)]
    found += [bytes([byte]) for byte in range(256)] + [b"\xff" * size for size in range(20)]
    return found + [rng.randbytes(size) for size in (1000, 65_537, 1 << 20)]


KEYS = some_keys()


def slow_murmur2(key: bytes) -> int:
    """Utils.murmur2, in whole numbers: for what the judge is too slow to be asked."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(key)
    for at in range(0, len(key) - 3, 4):
        word = int.from_bytes(key[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ word
    rest = key[len(key) & ~3 :]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15


@pytest.mark.parametrize("count", COUNTS)
def test_partitions_are_those_of_java(judge: JavaJudge, count: int) -> None:
    reported = judge.partitions(KEYS, count)
    assert list(kcodec.partition_for(KEYS, count)) == reported
    assert list(kcodec.partition_for(pa.array(KEYS), count)) == reported
    assert [(slow_murmur2(key) & 0x7FFFFFFF) % count for key in KEYS] == reported


@given(keys=st.lists(st.none() | st.binary(max_size=50)), count=st.integers(1, (1 << 31) - 1))
def test_a_list_and_a_column_agree_with_the_slow_one(keys: list[bytes | None], count: int) -> None:
    reported = [None if key is None else (slow_murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    for given_as in (keys, pa.array(keys, pa.binary()), iter(keys)):
        found = kcodec.partition_for(given_as, count)
        assert list(found) == reported
        assert found.null_count == reported.count(None)
        assert pa.array(found).to_pylist() == reported


# --------------------------------------------------------------------------------------------------- shapes of columns

WORDS = [None, b"", b"a", b"order-1", b"longer than twelve bytes", None, b"z" * 100, b"order-1"]
REPORTED = list(kcodec.partition_for(WORDS, 12))
TYPES = [
    pa.binary(),
    pa.large_binary(),
    pa.string(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.binary()),
    pa.dictionary(pa.uint32(), pa.string()),
    pa.dictionary(pa.int64(), pa.large_binary()),
]


def column(kind: pa.DataType, words: list[bytes | None]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return column(kind.value_type, words).dictionary_encode().cast(kind)
    is_text = kind in (pa.string(), pa.large_string(), pa.string_view())
    return pa.array([word.decode() if word is not None and is_text else word for word in words], kind)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_type_of_keys_gives_the_same(kind: pa.DataType) -> None:
    whole = column(kind, WORDS)
    assert list(kcodec.partition_for(whole, 12)) == REPORTED
    assert list(kcodec.partition_for(whole[2:7], 12)) == REPORTED[2:7]
    assert list(kcodec.partition_for(whole[:0], 12)) == []
    chunked = pa.chunked_array([whole[:3], whole[3:3], whole[3:]], kind)
    assert list(kcodec.partition_for(chunked, 12)) == REPORTED


def test_fixed_size_and_null_columns() -> None:
    fixed = pa.array([b"abcd", None, b"efgh"], pa.binary(4))
    assert list(kcodec.partition_for(fixed, 12)) == list(kcodec.partition_for([b"abcd", None, b"efgh"], 12))
    assert list(kcodec.partition_for(pa.nulls(3), 12)) == [None] * 3


def test_a_decoded_column_goes_straight_in() -> None:
    from batch_writer import RecordSpec, build_batch

    decoded = kcodec.decode(build_batch([RecordSpec(key=word) for word in WORDS]))
    assert list(kcodec.partition_for(decoded.column("key"), 12)) == REPORTED


def test_bytes_like_keys_are_keys() -> None:
    words = [None if word is None else bytearray(word) for word in WORDS]
    assert list(kcodec.partition_for(words, 12)) == REPORTED
    assert list(kcodec.partition_for([memoryview(b"order-1")], 12)) == [REPORTED[3]]


# ---------------------------------------------------------------------------------------------------------- the result


def test_the_result_is_a_sequence() -> None:
    found = kcodec.partition_for(WORDS, 12)
    assert (len(found), found.null_count) == (8, 2)
    assert [found[at] for at in range(-8, 8)] == REPORTED * 2
    assert found[1:4] == REPORTED[1:4]
    assert found[::-1] == REPORTED[::-1]
    assert list(reversed(found)) == REPORTED[::-1]
    for wrong in (8, -9):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range"):
            found[wrong]
    assert found == kcodec.partition_for(WORDS, 12)
    assert found != kcodec.partition_for(WORDS, 13)
    assert found != REPORTED
    assert pickle.loads(pickle.dumps(found)) == found
    assert pa.array(pickle.loads(pickle.dumps(found))).to_pylist() == REPORTED
    assert repr(kcodec.partition_for([b"order-1", None], 12)) == "<Partitions [10, None] of 2 keys>"
    assert repr(kcodec.partition_for([b"order-1"] * 9, 1)) == "<Partitions [0, 0, 0, 0, 0, 0, 0, 0, ...] of 9 keys>"
    with pytest.raises(TypeError, match="unhashable"):
        hash(found)
    with pytest.raises(TypeError, match=r"call kcodec\.partition_for"):
        _fast.Partitions()


def test_numpy_and_arrow_see_the_same_memory() -> None:
    found = kcodec.partition_for(WORDS, 12)
    values = np.asarray(found)
    assert values.dtype == np.int32
    assert values.tolist() == [-1 if partition is None else partition for partition in REPORTED]
    assert not values.flags.writeable
    array = pa.array(found)
    assert array.type == pa.int32()
    assert array.to_pylist() == REPORTED
    array.validate(full=True)
    assert array.buffers()[1].address == values.__array_interface__["data"][0]
    with pytest.raises((BufferError, TypeError), match=r"read-only|not writable"):
        (ctypes.c_char * 4).from_buffer(found)  # asks for memory that may be written
    view = memoryview(found)
    assert (view.format, view.shape, view.strides, view.readonly) == ("i", (8,), (4,), True)
    assert np.asarray(kcodec.partition_for([], 12)).tolist() == []
    assert pa.array(kcodec.partition_for([], 12)).to_pylist() == []


def test_memory_lives_as_long_as_a_view_of_it() -> None:
    gc.collect()  # what tests before it left
    _fast.trim_pool()
    before = _fast.pool_state()[2]
    found = kcodec.partition_for(WORDS * 1000, 12)
    array, values = pa.array(found), np.asarray(found)
    assert sys.getrefcount(found) > 2
    del found
    gc.collect()
    assert array.to_pylist()[:8] == REPORTED
    assert values[1] == REPORTED[1]
    assert _fast.pool_state()[2] > before
    del array, values
    gc.collect()
    assert _fast.pool_state()[2] == before


def test_the_lent_arrays_are_given_back() -> None:
    before = pa.total_allocated_bytes()
    keys = pa.chunked_array([pa.array(WORDS * 5000), pa.array(WORDS)])
    kcodec.partition_for(keys, 12)
    kcodec.partition_for(keys.chunk(0), 12)
    with pytest.raises(TypeError, match="Arrow type"):
        kcodec.partition_for(pa.array([1, 2, 3] * 5000), 12)
    del keys
    gc.collect()
    assert pa.total_allocated_bytes() == before


# ----------------------------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize("count", [0, -1, 1 << 31, 1 << 70])
def test_a_number_of_partitions_that_no_topic_has(count: int) -> None:
    with pytest.raises(ValueError, match=f"partitions must be between 1 and 2147483647, not {count}"):
        kcodec.partition_for([b"a"], count)


@pytest.mark.parametrize("count", [None, "3", 3.0, True])
def test_partitions_must_be_a_number(count: Any) -> None:
    with pytest.raises(TypeError, match="partitions must be an int, not"):
        kcodec.partition_for([b"a"], count)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (b"order-1", "a column or an iterable of keys, not a single bytes"),
        ("order-1", "a column or an iterable of keys, not a single str"),
        ([b"a", "order-1"], "key 1 must be bytes-like or None, not str"),
        ([7], "key 0 must be bytes-like or None, not int"),
        ([1.5], "bytes-like"),
        (None, "not iterable"),
        (pa.array([1, 2]), "a binary or string column, not of the Arrow type int64"),
        (pa.array([[b"a"]]), "not of the Arrow type list<binary>"),
        (pa.record_batch({"key": [b"a"]}), "not of the Arrow type struct<key: binary>"),
        (pa.table({"key": [b"a"]}), "not of the Arrow type struct<key: binary>"),
    ],
    ids=str,
)
def test_what_is_no_column_of_keys(keys: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        kcodec.partition_for(keys, 12)


def test_what_an_iterable_raises_comes_through() -> None:
    def broken() -> Iterator[bytes]:
        yield b"a"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        kcodec.partition_for(broken(), 12)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from ()
        raise LookupError("no such file")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"key": pa.binary()}), batches())
    with pytest.raises((ValueError, TypeError), match=r"no such file|Arrow type"):
        kcodec.partition_for(reader, 12)


def test_a_key_that_is_not_contiguous_is_refused() -> None:
    strided: list[Any] = [memoryview(b"abcd")[::2], memoryview(b"ab")[::-1], np.zeros((2, 2), "u1", order="F")]
    for key in strided:
        with pytest.raises(kcodec.EncodeError, match="row 1: the bytes of key 1 are not contiguous") as caught:
            kcodec.partition_for([b"a", key], 3)
        assert (caught.value.field, caught.value.row) == ("key", 1)
        assert list(kcodec.partition_for([bytes(key)], 3)) == list(kcodec.partition_for([key.tobytes()], 3))


def test_a_lazy_frame_of_keys_is_refused() -> None:
    with pytest.raises(TypeError, match="keys must not be a LazyFrame"):
        kcodec.partition_for(polars.LazyFrame({"key": ["a"]}), 3)  # type: ignore[arg-type]
