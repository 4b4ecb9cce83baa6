# SPDX-License-Identifier: Apache-2.0
"""The core refuses invalid Arrow data, calls from within its own calls and several threads on one object.

The long form, under sanitizers, is tests/prove/prove_hostile_core.py.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import prove_hostile_core as hostile
import pyarrow as pa
import pytest

import kcodec
from kcodec import EncodeError, Record, TimestampType, _fast
from kcodec.producer.options import ProducerSettings
from kcodec.producer.tables import table_batches

PROGRAM = Path(hostile.__file__)
COUNT = 40
# what is written over the offset of one row, of columns whose rows are 10 bytes long
FAULTS: dict[str, tuple[int, int]] = {
    "negative": (5, -100),
    "decreasing": (20, 3),
    "beyond the last": (20, 5000),
    "last beyond the buffer": (COUNT, 99_999),
    "first negative": (0, -4),
}
KINDS = {"binary": pa.binary(), "string": pa.string(), "large_binary": pa.large_binary()}


def with_offset(table: pa.Table, offsets: pa.Buffer, width: int, at: int, number: int) -> pa.Table:
    """The table as it is read from an IPC file in which one offset was overwritten."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = bytearray(sink.getvalue().to_pybytes())
    place = data.index(offsets.to_pybytes()[: (COUNT + 1) * width])
    data[place + at * width : place + (at + 1) * width] = number.to_bytes(width, "little", signed=True)
    return pa.ipc.open_file(pa.py_buffer(bytes(data))).read_all()


def invalid_column(kind: str, fault: str, name: str = "value") -> pa.Table:
    column = pa.array([b"%010d" % at for at in range(COUNT)]).cast(KINDS[kind])
    width = 8 if kind.startswith("large") else 4
    return with_offset(pa.table({name: column}), column.buffers()[1], width, *FAULTS[fault])


def invalid_headers(fault: str, which: str, is_large: bool = False) -> pa.Table:
    """Lists of one header, whose own offsets or whose names' are overwritten."""
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kind = pa.large_list(pair) if is_large else pa.list_(pair)
    rows = [[{"key": f"{at:010}", "value": b"www"}] for at in range(COUNT)]
    headers = pa.array(rows, kind)
    table = pa.table({"value": [b"vv"] * COUNT, "headers": headers})
    if which == "lists":
        return with_offset(table, headers.buffers()[1], 8 if is_large else 4, *FAULTS[fault])
    return with_offset(table, headers.values.field("key").buffers()[1], 4, *FAULTS[fault])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_invalid_offsets_of_a_column_are_refused(kind: str, fault: str) -> None:
    """The error names the column, and the row where pyarrow does not refuse the column as a whole."""
    table = invalid_column(kind, fault)
    with pytest.raises(EncodeError, match="column 'value'") as raised:
        kcodec.encode(table, timestamp=0)
    assert raised.value.field == "value"
    at = FAULTS[fault][0]
    assert raised.value.row == (None if at in (0, COUNT) else at - 1)
    with pytest.raises(EncodeError):
        kcodec.encode(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()), timestamp=0)
    with pytest.raises(EncodeError):
        kcodec.encode_batch(table.to_batches()[0], timestamp=0)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_invalid_offsets_of_keys_are_refused(kind: str, fault: str) -> None:
    with pytest.raises(EncodeError):
        kcodec.partition_for(invalid_column(kind, fault)["value"], 12)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("which", ["lists", "names"])
@pytest.mark.parametrize("is_large", [False, True])
def test_invalid_offsets_of_headers_are_refused(which: str, fault: str, is_large: bool) -> None:
    with pytest.raises(EncodeError, match="headers"):
        kcodec.encode(invalid_headers(fault, which, is_large), timestamp=0)


@pytest.mark.parametrize("fault", FAULTS)
def test_send_arrow_refuses_invalid_offsets(fault: str) -> None:
    """Before pyarrow gathers the rows of each partition, which believes the offsets."""
    value, keys = invalid_column("binary", fault), pa.array([b"key %d" % at for at in range(COUNT)])
    for table in (value.append_column("key", keys), invalid_headers(fault, "names").append_column("key", keys)):
        for source in (table, table.to_batches()[0], table.to_reader()):
            with pytest.raises(EncodeError):
                list(table_batches(source, 5, ProducerSettings(), 0, None))


MANY = 1500  # rows: offsets are checked some hundred rows at a time


def many_rows(nulls: tuple[int, ...] = ()) -> pa.Table:
    """Rows of the kind that encode() reads fastest: timestamps, keys, values of 10 bytes, a header."""
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    rows = range(MANY)
    return pa.table(
        {
            "timestamp": pa.array(rows, pa.timestamp("ms")),
            "key": pa.array([b"key %04d" % at for at in rows]),
            "value": pa.array([None if at in nulls else b"%010d" % at for at in rows]),
            "headers": pa.array([[{"key": f"h{at % 10}", "value": b"www"}] for at in rows], pa.list_(pair)),
        }
    )


def columns_with_offsets(table: pa.Table) -> dict[str, pa.Array]:
    headers = table["headers"].chunk(0)
    return {"key": table["key"].chunk(0), "value": table["value"].chunk(0), "headers": headers.values.field("key")}


@pytest.mark.parametrize("at", [1, 2, 511, 512, 513, 514, 1024, 1025, MANY - 1])
@pytest.mark.parametrize("column", ["key", "value", "headers"])
@pytest.mark.parametrize("has_headers", [False, True])
@pytest.mark.parametrize("nulls", [(), (7, 1300)])
def test_the_first_invalid_row_of_many_is_named(
    at: int, column: str, has_headers: bool, nulls: tuple[int, ...]
) -> None:
    """At the edges of what is checked at a time, in columns with and without nulls; the offset ends row `at` - 1."""
    table = many_rows(nulls)
    offsets = columns_with_offsets(table)[column].buffers()[1]
    for number in (-1, 100_000, -(1 << 31), (1 << 31) - 1):
        edited = with_offset(table, offsets, 4, at, number)
        if not has_headers:
            edited = edited.drop_columns(["headers"])
        if column == "headers" and not has_headers:
            assert kcodec.encode(edited).records_count == MANY
            continue
        with pytest.raises(EncodeError, match="invalid Arrow data") as raised:
            kcodec.encode(edited)
        assert (raised.value.field, raised.value.row) == (column, at - 1)


@pytest.mark.parametrize("has_headers", [False, True])
def test_offsets_between_null_rows_do_not_matter(has_headers: bool) -> None:
    """The rows around two null ones with an invalid offset between them are encoded as if it were valid."""
    table = many_rows(nulls=(600, 601))
    offsets = table["value"].chunk(0).buffers()[1]
    edited = with_offset(table, offsets, 4, 601, -5)
    if not has_headers:
        table, edited = table.drop_columns(["headers"]), edited.drop_columns(["headers"])
    assert bytes(kcodec.encode(edited)) == bytes(kcodec.encode(table))


def test_offsets_of_null_rows_are_not_read() -> None:
    """A null row of a valid column keeps its place, whatever its neighbors hold."""
    column = pa.array([b"a", None, b"ccc"])
    encoded = kcodec.encode(pa.table({"value": column}), timestamp=0)
    assert [record.value for record in kcodec.decode(encoded).records()] == [b"a", None, b"ccc"]


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.string_view()], ids=str)
@pytest.mark.parametrize("first", [0, 1])
def test_send_arrow_does_not_read_views_of_null_rows(kind: pa.DataType, first: int) -> None:
    """pyarrow's cast reads their lengths, and ended the process where one was negative."""
    column = pa.array(["first", "a" * 20, None, "b" * 20], kind)
    validity, views, *data = column.buffers()
    edited = bytearray(views.to_pybytes())
    edited[32:48] = struct.pack("<iiii", -269_529_189, -111_353_021, 7, 7)
    column = pa.Array.from_buffers(kind, 4, [validity, pa.py_buffer(bytes(edited)), *data])[first:]
    (batch,) = table_batches(pa.table({"value": column}), 5, ProducerSettings(), 0, None)
    values = [record.value for record in kcodec.decode(batch.data).records()]
    assert values == [b"first", b"a" * 20, None, b"b" * 20][first:]


def test_valid_files_are_encoded_and_edited_ones_refused() -> None:
    """A few hundred edits of the long form; what is accepted holds the values that pyarrow shows. The seed is one at
    which an edit of a null row ended the process."""
    counts = hostile.files(400, 44)
    assert counts["refused by encode"] > 50
    assert counts["encoded"] > 50


# -------------------------------------------------------------------------------------------------- calls from within


def test_a_record_stays_as_it_was_made() -> None:
    made = Record(1, 2, TimestampType.CREATE_TIME, b"k", b"v")
    (decoded,) = kcodec.decode(kcodec.encode([made])).records()
    for record in (made, decoded):
        with pytest.raises(TypeError, match="immutable"):
            record.__init__(3, 4, TimestampType.CREATE_TIME, b"x", b"y")
        assert (record.key, record.value) == (b"k", b"v")


def test_a_record_is_not_changed_while_it_is_encoded() -> None:
    calls = hostile.Calls()
    hostile.remake_record_while_it_is_encoded(calls)
    assert set(calls.ended) == {"TypeError"}


def test_a_builder_refuses_a_call_from_its_own_append() -> None:
    """Also for a name that is read while the header's memory is held; the outer record is not changed."""
    calls = hostile.Calls()
    hostile.append_while_appending(calls)
    assert set(calls.ended) == {"RuntimeError", "TypeError"}


class CallingHeaders:
    """Headers that call a function when they are asked whether there are any: there are none."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __bool__(self) -> bool:
        self.call()
        return False


def test_a_builder_refuses_a_call_from_empty_headers() -> None:
    calls = hostile.Calls()
    builder = hostile.client_builder()
    headers = CallingHeaders(lambda: calls(lambda: builder.append(1, 1, bytes(bytearray(b"inner")), b"inner", [])))
    builder.append(0, 0, b"outer key", b"outer", headers)
    assert set(calls.ended) == {"RuntimeError"}
    (record,) = kcodec.decode(builder.build()).records()
    assert (record.key, record.value, record.headers) == (b"outer key", b"outer", ())


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs an interval timer")
def test_a_decoder_refuses_a_call_while_it_decodes() -> None:
    """The call comes from a signal handler, which runs between two members of a gzip stream."""
    calls = hostile.Calls()
    hostile.interrupt_decoding(calls)
    assert calls.ended == {"RuntimeError": 3}


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_ends_a_long_decompression(threads: int) -> None:
    """Ctrl-C is honored between the members of a gzip stream, on several threads, too."""

    class Interrupt(Exception):
        pass

    def raise_interrupt(*_: object) -> None:
        raise Interrupt

    data = hostile.gzip_batch(150_000)
    before = signal.signal(signal.SIGALRM, raise_interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(Interrupt):
            kcodec.decode(data * 4, threads=threads)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_was_interrupted_can_be_read_again() -> None:
    """An exception of a signal handler loses no record of what a consumer has fetched."""

    class Interrupt(Exception):
        pass

    def raise_interrupt(*_: object) -> None:
        raise Interrupt

    steps = _fast.RecordSteps(hostile.gzip_batch(150_000))
    before = signal.signal(signal.SIGALRM, raise_interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(Interrupt):
            next(steps)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(next(steps)) == 1


def test_a_decoder_that_was_not_made_decodes_nothing() -> None:
    half = _fast.Decoder.__new__(_fast.Decoder)
    with pytest.raises(TypeError):
        half.__init__(limits="none")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not initialized"):
        half.feed(hostile.gzip_batch(1))


def test_no_partitions_are_rebuilt() -> None:
    import pickle

    none = kcodec.partition_for([], 3)
    assert list(pickle.loads(pickle.dumps(none))) == []
    assert numpy.asarray(none).size == 0


def test_a_message_has_the_fields_of_its_own_class() -> None:
    from kcodec.protocol.messages import ApiVersionsRequest, FetchRequest

    class Other(ApiVersionsRequest):
        __slots__ = ()

    Other._shape = FetchRequest._shape
    with pytest.raises(TypeError, match="not its base"):
        Other()


def run(*arguments: str) -> Any:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_program_with_calls_and_threads_ends_well() -> None:
    """In a process of its own, which would not survive a write into freed memory."""
    done = run("--files", "10", "--seconds", "2")
    assert done.returncode == 0, done.stderr
    assert "0 reports" in done.stdout
