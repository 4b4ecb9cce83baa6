# SPDX-License-Identifier: Apache-2.0
"""The memory behind exported Arrow structures: shared, counted, and given back in whatever order consumers let go."""

from __future__ import annotations

import ctypes
import functools
import gc
import operator
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from batch_writer import RecordSpec, build_batch

import kcodec
from kcodec import _fast

COLUMNS = ("offset", "timestamp", "key", "value", "headers", "is_control", "control_type")
BINARY_TYPES = ("binary", "large_binary", "binary_view")
RECORDS = [RecordSpec(key=None if at % 3 else b"key", value=b"v" * at, headers=((b"\xff", b"h"),)) for at in range(20)]
DATA = build_batch(RECORDS, base_offset=5) + build_batch(RECORDS[:4], base_offset=40, compression="snappy")
Released = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class ArrowArray(ctypes.Structure):
    """struct ArrowArray of the Arrow C data interface."""


ArrowArray._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    """Every buffer that was handed out during the test is back when it ends; a decompressor keeps its own, from the
    first time on.
    """
    kcodec.decode(DATA)
    gc.collect()
    before = _fast.pool_state()[2]
    yield
    gc.collect()
    assert _fast.pool_state()[2] == before


def decoded(binary_type: Any = "binary") -> kcodec.DecodedRecords:
    return kcodec.decode(DATA, columns=COLUMNS, binary_type=binary_type)


def on_a_thread(function: Callable[[], None]) -> None:
    """Runs it elsewhere, with what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  handed on below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def at_once(function: Callable[[], None]) -> None:
    function()


def exported(result: kcodec.DecodedRecords) -> tuple[Any, Any, ArrowArray]:
    """(schema capsule, array capsule, the structure in it)."""
    schema, array = result.__arrow_c_array__()
    return schema, array, ArrowArray.from_address(pointer_of(array, b"arrow_array"))


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "on another thread"])
def test_children_that_were_moved_out_outlive_their_parent(binary_type: str, elsewhere: bool) -> None:
    expected = pa.record_batch(decoded(binary_type))
    schema = expected.schema
    _, capsule, root = exported(decoded(binary_type))
    moved: list[Any] = []
    for at, field in enumerate(schema):
        child = root.children[at]
        moved.append(pa.Array._import_from_c(ctypes.addressof(child.contents), field.type))
        assert child.contents.release is None
    release = Released(root.release)
    address = ctypes.addressof(root)
    (on_a_thread if elsewhere else at_once)(lambda: release(address))
    assert root.release is None
    del capsule
    gc.collect()
    order = list(range(len(moved)))
    random.Random(3).shuffle(order)
    for at in order:
        moved[at].validate(full=True)
        assert moved[at].equals(expected.column(at))
        (on_a_thread if elsewhere else at_once)(functools.partial(operator.setitem, moved, at, None))
    assert moved == [None] * len(moved)


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
def test_grandchildren_may_be_moved_too(binary_type: str) -> None:
    _, capsule, root = exported(decoded(binary_type))
    headers = root.children[COLUMNS.index("headers")].contents
    entries = headers.children[0].contents
    values = pa.Array._import_from_c(ctypes.addressof(entries.children[1].contents), pa.binary())
    del capsule
    gc.collect()
    values.validate(full=True)
    assert values.to_pylist() == [b"h"] * 24


def test_an_unused_capsule_gives_its_memory_back() -> None:
    result = decoded()
    for _ in range(50):
        result.__arrow_c_array__()
        result.__arrow_c_stream__()
        result.__arrow_c_schema__()
        result.schema.__arrow_c_schema__()
        result.column("key").__arrow_c_stream__()


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
def test_it_may_be_exported_as_often_as_asked(binary_type: str) -> None:
    result = decoded(binary_type)
    tables = [pa.table(result) for _ in range(20)]
    columns = [pa.chunked_array(result.column(name)) for name in COLUMNS for _ in range(3)]
    first = tables[0]
    addresses = {table["offset"].chunk(0).buffers()[1].address for table in tables}
    assert len(addresses) == 1
    del result
    gc.collect()
    for table in tables[1:]:
        assert table.equals(first)
        table.validate(full=True)
    for at, column in enumerate(columns):
        assert column.equals(first[COLUMNS[at // 3]])


def test_tables_outlive_the_result_and_die_on_any_thread() -> None:
    tables = [pa.table(decoded(kind)) for kind in BINARY_TYPES * 4]
    threads = [threading.Thread(target=tables.pop) for _ in range(len(tables) - 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tables[0].num_rows == 24
    tables[0].validate(full=True)


def test_a_stream_may_be_left_half_read() -> None:
    result = kcodec.decode(build_batch([RecordSpec(value=b"x" * (1 << 20))]) * 70)
    reader = pa.RecordBatchReader.from_stream(result)
    first = reader.read_next_batch()
    del result, reader
    gc.collect()
    first.validate(full=True)
    assert first.num_rows > 0


LET_GO_AT_EXIT = """
import ctypes, sys
import kcodec
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
decoded = kcodec.decode(sys.stdin.buffer.read(), binary_type=sys.argv[1])
if sys.argv[2] == "stream":  # where release stands in the structure, and how large that is, in pointers
    capsule, name, place, size = decoded.__arrow_c_stream__(), b"arrow_array_stream", 3, 5
else:
    capsule, name, place, size = decoded.__arrow_c_array__()[1], b"arrow_array", 8, 10
address, moved = pointer_of(capsule, name), libc.malloc(size * 8)
ctypes.memmove(moved, address, size * 8)
release = ctypes.c_void_p.from_address(address + place * 8)
libc.__cxa_atexit(ctypes.c_void_p(release.value), ctypes.c_void_p(moved), None)
release.value = None
"""


@pytest.mark.parametrize("what", ["array", "stream"])
@pytest.mark.parametrize("binary_type", BINARY_TYPES)
def test_what_is_let_go_after_python_has_ended_is_no_crash(binary_type: str, what: str) -> None:
    """As a consumer's static variables do it: C's own handlers run after the interpreter's end."""
    command = [sys.executable, "-c", LET_GO_AT_EXIT, binary_type, what]
    assert subprocess.run(command, input=DATA, check=False, timeout=60).returncode == 0


def test_threads_may_export_the_same_result_at_once() -> None:
    result = decoded()
    expected = pa.table(result)
    found: list[bool] = []

    def export() -> None:
        for _ in range(50):
            found.append(pa.table(result).equals(expected) and pa.record_batch(result).num_rows == 24)

    threads = [threading.Thread(target=export) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 200


def test_views_hold_the_bytes_they_point_into() -> None:
    data = bytearray(build_batch([RecordSpec(value=b"longer than twelve bytes")]))
    read_only = memoryview(data).toreadonly()
    table = pa.table(kcodec.decode(read_only, columns=("value",), binary_type="binary_view"))
    del read_only
    with pytest.raises(BufferError):
        data.clear()
    assert table["value"].to_pylist() == [b"longer than twelve bytes"]
    del table
    gc.collect()
    data.clear()
    assert data == b""


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
def test_a_result_holds_nothing_of_a_writable_buffer(binary_type: Any) -> None:
    """A program may receive the next response into the same buffer."""
    data = bytearray(build_batch([RecordSpec(value=b"longer than twelve bytes")]))
    decoded = kcodec.decode(data, columns=("value",), binary_type=binary_type)
    table = pa.table(decoded)
    data[:] = bytes(len(data))
    data.clear()
    assert table["value"].to_pylist() == [b"longer than twelve bytes"]
    assert list(decoded.column("value")) == [b"longer than twelve bytes"]


def test_what_a_source_of_a_stream_raises_is_the_consumers_error_with_its_text() -> None:
    def parts() -> Iterator[kcodec.DecodedRecords]:
        yield kcodec.decode(DATA, columns=("offset",))
        kcodec.decode(DATA[:-1] + bytes([DATA[-1] ^ 1]), columns=("offset",))

    class Streamed:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return _fast.stream_capsule(("offset",), "binary", parts())

    reader = pa.RecordBatchReader.from_stream(Streamed())
    assert reader.read_next_batch().num_rows == 24
    with pytest.raises(pa.ArrowInvalid, match=r"batch at byte \d+ \(base_offset 40\): the stored CRC 0x[0-9a-f]{8}"):
        reader.read_next_batch()
