# SPDX-License-Identifier: Apache-2.0
"""Every public value: frozen, shown usefully, equal to its like, hashable where it has no bulk, and pickled whole."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from batch_writer import RecordSpec, build_batch, control_batch, end_transaction_marker

import kcodec
from kcodec import AbortedTransaction, Counts, DecodeLimits, Record, _fast
from kcodec.constants import ControlType, TimestampType

RECORDS = [
    RecordSpec(key=b"k", value=b"v", headers=((b"\xff", None), (b"h", b"1"))),
    RecordSpec(key=None, value=b"w" * 99),
]
PRODUCER: dict[str, Any] = {"is_transactional": True, "producer_id": 9, "producer_epoch": 1}
DATA = (
    build_batch(RECORDS, base_offset=3, compression="gzip")
    + build_batch(RECORDS, base_offset=5, base_sequence=0, **PRODUCER)
    + end_transaction_marker(0, producer_id=9, producer_epoch=1, base_offset=7, coordinator_epoch=2)
)
COLUMNS = tuple(name for name in kcodec.COLUMNS if name not in ("topic", "partition"))


def decoded(**options: Any) -> kcodec.DecodedRecords:
    return kcodec.decode(DATA, **{"columns": COLUMNS, "control_records": "include", **options})


def first_record(**options: Any) -> Record:
    return next(decoded(**options).records())


def slices() -> list[kcodec.DecodedRecords]:
    decoder = _fast.Decoder(columns=(*COLUMNS, "topic", "partition"), max_rows=1, topic="thème", partition=7)
    decoder.feed(DATA)
    return decoder.take(flush=True)


HASHABLE: dict[str, Callable[[], Any]] = {
    "record": first_record,
    "record of two columns": lambda: first_record(columns=("value", "headers")),
    "control record": lambda: list(decoded().records())[-1],
    "made record": lambda: Record(1, -1, "CreateTime", None, b"v", [("h", None)], 5),
    "batch": lambda: kcodec.batches(DATA)[1],
    "counts": lambda: decoded(isolation_level="read_committed").counts,
    "aborted transaction": lambda: AbortedTransaction(9, 5, 7),
    "aborted transaction of a broker": lambda: AbortedTransaction(9, 5),
    "aborted transactions": lambda: _fast.AbortedTransactions([(9, 5, 7), AbortedTransaction(9, 20)]),
    "limits": lambda: DecodeLimits(max_batch_bytes=1 << 20),
    "default limits": lambda: kcodec.DEFAULT_LIMITS,
    "schema": lambda: decoded().schema,
    "schema of views": lambda: decoded(binary_type="binary_view").schema,
}
BULKY: dict[str, Callable[[], Any]] = {
    "decoded": decoded,
    "decoded under read_committed": lambda: decoded(isolation_level="read_committed"),
    "decoded, large": lambda: decoded(binary_type="large_binary"),
    "decoded, views": lambda: decoded(binary_type="binary_view"),
    "decoded, no columns": lambda: decoded(columns=()),
    "decoded, nothing": lambda: kcodec.decode(b""),
    "decoded, cut": lambda: kcodec.decode(DATA[:-3]),
    "decoded with an error": lambda: kcodec.decode(DATA[:-1] + b"\1", on_error="stop"),
    "slice": lambda: slices()[1],
    "column": lambda: decoded().column("headers"),
    "batches": lambda: kcodec.batches(DATA),
}
VALUES = HASHABLE | BULKY


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_equal_when_made_alike_and_when_it_has_travelled(make: Callable[[], Any]) -> None:
    value = make()
    assert value == make()
    assert not (value != make())  # noqa: SIM202  it may have its own rule
    assert value != object()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copied = pickle.loads(pickle.dumps(value, protocol))
        assert type(copied) is type(value)
        assert copied == value
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value


@pytest.mark.parametrize("make", HASHABLE.values(), ids=HASHABLE)
def test_what_is_small_is_a_key(make: Callable[[], Any]) -> None:
    assert hash(make()) == hash(make()) == hash(pickle.loads(pickle.dumps(make())))
    assert {make(): 1}[make()] == 1


@pytest.mark.parametrize("make", BULKY.values(), ids=BULKY)
def test_what_is_bulky_is_not(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(make())


def test_values_that_differ_are_not_equal() -> None:
    made = [make() for name, make in VALUES.items() if name not in ("decoded, large", "decoded, views")]
    for at, one in enumerate(made):
        for other in made[at + 1 :]:
            assert one != other, (one, other)


def test_results_that_hold_the_same_in_another_binary_type_are_equal() -> None:
    assert decoded() == decoded(binary_type="large_binary") == decoded(binary_type="binary_view")


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_frozen(make: Callable[[], Any]) -> None:
    value = make()
    assert value == make()
    before = repr(value)
    names = [name for name in dir(type(value)) if not name.startswith("_")]
    for name in [*names, "a_name_that_nobody_has"]:
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, 3)
        with pytest.raises((AttributeError, TypeError)):
            delattr(value, name)
    assert value == make()
    assert repr(value) == before


@pytest.mark.parametrize("binary_type", ["binary", "large_binary", "binary_view"])
def test_results_travel_as_arrow_and_records_too(binary_type: str) -> None:
    result = decoded(binary_type=binary_type)
    copied = pickle.loads(pickle.dumps(result))
    table = pa.table(copied)
    table.validate(full=True)
    assert table.equals(pa.table(result))
    assert list(copied.records()) == list(result.records())
    assert pa.schema(copied.schema) == pa.schema(result.schema)
    assert [part.to_numpy("offset").tolist() for part in copied.chunks] == [list(result.column("offset"))]
    for name in ("counts", "next_offset", "remaining_bytes", "bytes_needed", "columns"):
        assert getattr(copied, name) == getattr(result, name)


def test_slices_travel_as_what_they_are() -> None:
    copies = pickle.loads(pickle.dumps(slices()))
    assert [len(copied) for copied in copies] == [1, 1, 1, 1]
    table = pa.concat_tables(pa.table(copied) for copied in copies)
    table.validate(full=True)
    assert table["offset"].to_pylist() == [3, 4, 5, 6]
    assert set(table["topic"].to_pylist()) == {"thème"}
    assert table.equals(pa.concat_tables(pa.table(part) for part in slices()))


def test_many_chunks_travel() -> None:
    result = kcodec.decode(build_batch([RecordSpec(value=b"x" * (1 << 20))]) * 40, columns=("offset", "value"))
    assert len(result.chunks) > 1
    copied = pickle.loads(pickle.dumps(result))
    assert len(copied.chunks) == len(result.chunks)
    assert pa.table(copied).equals(pa.table(result))


# -------------------------------------------------------------------------------------------------------------- reprs


def test_reprs_say_what_there_is() -> None:
    assert repr(decoded(columns=("offset", "key"))) == "<DecodedRecords 5 records; offset, key; next_offset 8>"
    committed = kcodec.decode(DATA + DATA[:40], isolation_level="read_committed", columns=("offset",))
    assert repr(committed) == "<DecodedRecords 2 records; offset; aborted 2; control 1; next_offset 8; 40 bytes remain>"
    damaged = kcodec.decode(DATA[:-1] + b"\1", on_error="stop", columns=())
    assert repr(damaged).startswith("<DecodedRecords 4 records; ")
    assert f"error: {damaged.error}>" in repr(damaged)
    assert repr(decoded().column("key")) == "<Column key of 5 rows>"
    assert repr(decoded(columns=("offset", "key")).schema) == "<ColumnsSchema offset, key; binary>"


def test_reprs_of_small_values_can_be_typed_in() -> None:
    names = {"AbortedTransaction": AbortedTransaction, "Counts": Counts, "DecodeLimits": DecodeLimits}
    for make in ("counts", "aborted transaction", "aborted transaction of a broker", "limits"):
        value = HASHABLE[make]()
        assert eval(repr(value), names) == value
    record = Record(1, -1, TimestampType.CREATE_TIME, None, b"v", (("h", None),), 5)
    assert eval(repr(record), {"Record": Record, "TimestampType": TimestampType}) == record


def test_a_long_value_is_cut_in_a_records_repr() -> None:
    assert len(repr(Record(1, 2, 0, b"k" * 10_000, b"v" * 10_000))) < 300


# ------------------------------------------------------------------------------------------------------- Record, Column


def test_what_was_not_asked_for_is_an_attribute_error_that_names_the_column() -> None:
    needs = {
        "offset": {"offset"},
        "timestamp": {"timestamp"},
        "timestamp_type": {"offset"},
        "key": {"key"},
        "value": {"value"},
        "headers": {"headers"},
        "sequence": {"offset"},
        "control_type": {"key", "value"},
        "coordinator_epoch": {"key", "value"},
    }
    for columns in [(), ("offset",), ("key",), ("value",), ("key", "value"), ("timestamp", "headers"), ("sequence",)]:
        record = first_record(columns=columns)
        for name, needed in needs.items():
            missing = needed - set(columns)
            if not missing:
                getattr(record, name)
                continue
            with pytest.raises(AttributeError) as caught:
                getattr(record, name)
            assert any(column in str(caught.value) for column in missing), (columns, name, str(caught.value))
            assert "columns=" in str(caught.value)


def test_fields_of_a_record() -> None:
    third = list(decoded().records())[2]
    assert (third.offset, third.sequence, third.timestamp_type) == (5, 0, TimestampType.CREATE_TIME)
    assert (third.key, third.value, third.headers) == (b"k", b"v", (("\udcff", None), ("h", b"1")))
    assert (third.control_type, third.coordinator_epoch) == (None, None)
    marker = list(decoded().records())[-1]
    assert (marker.control_type, marker.coordinator_epoch) == (ControlType.ABORT, 2)
    assert first_record().sequence == -1


def test_a_control_record_that_is_no_marker_has_no_coordinator() -> None:
    (record,) = kcodec.decode(control_batch(3, b"\0\0\0\0\0\0\0\0"), control_records="include").records()
    assert (record.control_type, record.coordinator_epoch) == (ControlType.SNAPSHOT_HEADER, None)


def test_a_column_is_a_sequence() -> None:
    column = decoded().column("offset")
    assert (len(column), list(column), column.name) == (5, [3, 4, 5, 6, 7], "offset")
    assert (column[0], column[-1], column[1:3], column[::-2]) == (3, 7, [4, 5], [7, 5, 3])
    assert column == decoded(columns=("offset",)).column("offset")
    for index in (5, -6, 1 << 70):
        with pytest.raises(IndexError, match="column 'offset' has 5 rows"):
            column[index]
    with pytest.raises(TypeError):
        column["3"]  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="unknown column 'valu'; did you mean 'value'"):
        decoded().column("valu")
    assert decoded().column("is_control")[4] is True
    assert list(decoded().column("control_type")) == [None, None, None, None, 0]


def test_columns_across_chunks_are_one_sequence() -> None:
    batches = [build_batch([RecordSpec(value=b"x" * (1 << 20))], base_offset=at) for at in range(40)]
    column = kcodec.decode(b"".join(batches), columns=("offset", "value")).column("offset")
    assert [column[at] for at in (0, 20, 39, -1, -40)] == [0, 20, 39, 39, 0]
    assert list(column) == column[:] == list(range(40))


def test_aborted_transactions_unpack() -> None:
    producer_id, first_offset, last_offset = AbortedTransaction(9, 5)
    assert (producer_id, first_offset, last_offset) == (9, 5, None)
    assert AbortedTransaction(9, 5) != AbortedTransaction(9, 5, 7)
    assert list(_fast.AbortedTransactions([(9, 5)])) == [AbortedTransaction(9, 5)]
