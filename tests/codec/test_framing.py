# SPDX-License-Identifier: Apache-2.0
"""framing="confluent": schema ids split off keys and values, and put back by encode."""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from batch_writer import RecordSpec, build_batch, control_batch, end_transaction_marker
from compare import BINARY_TYPES, arrow_columns
from legacy_writer import MessageSpec, build_message, build_wrapper
from opened_logs import open_log

import kcodec
from kcodec._fast import Decoder

Payload = bytes | None
IDS = ("key_schema_id", "value_schema_id")
PAYLOADS: tuple[Payload, ...] = (
    None,
    b"",
    b"\0",
    b"\0\0\0\1",
    b"\0\0\0\0\7",
    b"\0\0\0\0\7seven",
    b"\0\xff\xff\xff\xffminus one",
    b"\0\x7f\xff\xff\xff" + b"t" * 7,
    b"\0\x80\x00\x00\x00" + b"u" * 8,
    b"\0\0\0\1\0" + b"v" * 12,
    b"\0\0\0\1\1" + b"w" * 13,
    b"\0\0\0\1\2" + b"x" * 700,
    b"\0\0\0\1\2\0\0\0\0\3twice",
    b"\1\0\0\0\7not framed",
    b"{}",
    b"a payload of more than twelve bytes",
)


def reported(payload: Payload) -> tuple[int | None, Payload]:
    """The rule in plain words: five bytes, the first of them zero."""
    if payload is None or len(payload) < 5 or payload[0]:
        return None, payload
    return struct.unpack(">i", payload[1:5])[0], payload[5:]


def rows_of(random_: random.Random, count: int) -> list[tuple[Payload, Payload]]:
    return [(random_.choice(PAYLOADS), random_.choice(PAYLOADS)) for _ in range(count)]


def batch_of(rows: Sequence[tuple[Payload, Payload]], base_offset: int = 0, **header: Any) -> bytes:
    specs = [RecordSpec(key=key, value=value, headers=((b"h", b"\0\0\0\0\1"),)) for key, value in rows]
    return build_batch(specs, base_offset=base_offset, **header)


def split_rows(rows: list[tuple[Payload, Payload]]) -> list[tuple[int | None, Payload, int | None, Payload]]:
    return [(*reported(key), *reported(value)) for key, value in rows]


def found_rows(decoded: Any) -> list[tuple[int | None, Payload, int | None, Payload]]:
    names = ("key_schema_id", "key", "value_schema_id", "value")
    return list(zip(*(decoded.column(name) for name in names), strict=True))


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_ids_are_split_off_in_every_layout(binary_type: Any, compression: str) -> None:
    rows = [(key, value) for key in PAYLOADS for value in PAYLOADS]
    data = batch_of(rows, compression=compression) + batch_of(rows[::-1], 1000, compression=compression)
    decoded = kcodec.decode(data, framing="confluent", binary_type=binary_type)
    assert decoded.columns == ("offset", "timestamp", "key", "value", "headers", *IDS)
    expected = split_rows(rows + rows[::-1])
    assert found_rows(decoded) == expected
    table = pa.table(decoded)
    table.validate(full=True)
    assert [table.schema.field(name).type for name in IDS] == [pa.int32(), pa.int32()]
    seen = arrow_columns(decoded)
    assert list(zip(*(seen[n] for n in ("key_schema_id", "key", "value_schema_id", "value")), strict=True)) == expected
    assert seen["headers"][0] == (("h", b"\0\0\0\0\1"),)  # ids in headers are left alone
    again = pickle.loads(pickle.dumps(decoded))
    assert again == decoded
    assert found_rows(again) == expected


def test_records_have_the_ids() -> None:
    rows = [(b"\0\0\0\0\7k", b"\0\0\0\1\0v"), (None, b"plain")]
    one, two = kcodec.decode(batch_of(rows), framing="confluent").records()
    assert (one.key_schema_id, one.key, one.value_schema_id, one.value) == (7, b"k", 256, b"v")
    assert (two.key_schema_id, two.key, two.value_schema_id, two.value) == (None, None, None, b"plain")
    assert "key_schema_id=7" in repr(one)
    assert "schema_id" not in repr(two)
    assert pickle.loads(pickle.dumps(one)) == one != two
    (batch,) = kcodec.batches(batch_of(rows))
    assert [record.value for record in batch.decode(framing="confluent").records()] == [b"v", b"plain"]
    plain = next(kcodec.decode(batch_of(rows)).records())
    assert (plain.key, plain.key_schema_id) == (rows[0][0], None)


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
def test_any_columns_may_be_asked_for(binary_type: Any) -> None:
    rows = rows_of(random.Random(1), 50)
    data, expected = batch_of(rows), split_rows(rows)
    options: dict[str, Any] = {"framing": "confluent", "binary_type": binary_type}
    only = kcodec.decode(data, columns=("value_schema_id",), **options)
    assert only.columns == ("value_schema_id",)
    assert list(only.column("value_schema_id")) == [row[2] for row in expected]
    assert pa.table(only).column_names == ["value_schema_id"]
    payload = kcodec.decode(data, columns=("value", "key"), **options)
    assert list(payload.column("value")) == [row[3] for row in expected]
    assert list(payload.column("key")) == [row[1] for row in expected]
    with pytest.raises(AttributeError, match="value is not available"):
        _ = next(kcodec.decode(data, columns=("offset", "value_schema_id"), **options).records()).value


def test_numpy_takes_ids_where_none_is_null() -> None:
    decoded = kcodec.decode(batch_of([(b"\0\0\0\0\7", None)] * 3), framing="confluent")
    assert decoded.to_numpy("key_schema_id").tolist() == [7, 7, 7]
    with pytest.raises(ValueError, match="contains nulls"):
        decoded.to_numpy("value_schema_id")


def test_columns_and_framings_that_do_not_fit_are_refused() -> None:
    for name in IDS:
        assert name not in kcodec.COLUMNS
        with pytest.raises(ValueError, match="needs framing"):
            kcodec.decode(b"", columns=("key", name))
    with pytest.raises(ValueError, match="confluent"):
        kcodec.decode(b"", framing="apicurio")  # type: ignore[arg-type]
    assert len(kcodec.decode(b"", framing="confluent")) == 0


def test_control_records_are_never_split() -> None:
    marker = end_transaction_marker(1, producer_id=1, base_offset=5)  # its key begins with a zero byte, too
    other = control_batch(2, b"\0\0\0\0\7value", base_offset=6)
    data = batch_of([(b"\0\0\0\0\7k", None)]) + marker + other + batch_of([(b"\0\0\0\0\7k", None)], 7)
    plain = list(kcodec.decode(data, control_records="include").records())
    found = list(kcodec.decode(data, control_records="include", framing="confluent").records())
    assert [record.key_schema_id for record in found] == [7, None, None, 7]
    assert [(record.key, record.value, record.control_type) for record in found[1:3]] == [
        (record.key, record.value, record.control_type) for record in plain[1:3]
    ]


def test_old_messages_are_split_too() -> None:
    specs = [MessageSpec(b"\0\0\0\0\7key", b"\0\0\0\0\x09value")] * 2
    data = build_message(specs[0]) + build_wrapper(specs, base_offset=1)
    for binary_type in BINARY_TYPES:
        decoded = kcodec.decode(data, framing="confluent", binary_type=binary_type)
        assert found_rows(decoded) == [(7, b"key", 9, b"value")] * 3


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
def test_threads_chunks_and_corruption_do_not_show(binary_type: Any) -> None:
    chooser = random.Random(2)
    rows = [
        [(chooser.choice(PAYLOADS), b"\0\0\0\0\7" + chooser.randbytes(40_000)) for _ in range(9)] for _ in range(60)
    ]
    data = b"".join(batch_of(some, 9 * at, compression="lz4") for at, some in enumerate(rows))
    expected = split_rows([row for some in rows for row in some])
    options: dict[str, Any] = {"framing": "confluent", "binary_type": binary_type}
    for threads in (1, 2):
        assert found_rows(kcodec.decode(data, threads=threads, **options)) == expected
    damaged = data[:-3] + b"bad"
    assert found_rows(kcodec.decode(damaged, on_error="stop", **options)) == expected[:-9]
    decoder = Decoder(framing="confluent", binary_type=binary_type, max_rows=7)
    at, found = 0, []
    while at < len(data):
        at += decoder.feed(data[at : at + (1 << 20)], at)
        for chunk in decoder.take():
            found += found_rows(chunk)
    for chunk in decoder.take(True):
        found += found_rows(chunk)
    assert found == expected


@pytest.mark.parametrize("seed", range(40))
def test_decoded_encoded_decoded_is_the_same(seed: int) -> None:
    chooser = random.Random(seed)
    data = batch_of(rows_of(chooser, chooser.randint(1, 30)), compression=chooser.choice(("none", "lz4", "gzip")))
    binary_type: Any = chooser.choice(BINARY_TYPES)
    split = kcodec.decode(data, framing="confluent", binary_type=binary_type)
    for source in (pa.table(split), split, list(split.records())):
        encoded = kcodec.encode(source, framing="confluent")
        assert found_rows(kcodec.decode(encoded, framing="confluent")) == found_rows(split)
        whole, before = kcodec.decode(encoded), kcodec.decode(data)
        for name in ("offset", "key", "value", "headers"):
            assert list(whole.column(name)) == list(before.column(name))


def test_a_record_with_an_id_is_not_written_without_it() -> None:
    records = list(kcodec.decode(batch_of([(None, b"\0\0\0\0\7v")]), framing="confluent").records())
    with pytest.raises(kcodec.EncodeError, match="value_schema_id of a Record would be lost"):
        kcodec.encode(records)


def test_logs_are_read_with_it(tmp_path: Path) -> None:
    rows = rows_of(random.Random(5), 40)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch_of(rows[:20]) + batch_of(rows[20:], 20))
    log = open_log(path)
    expected = split_rows(rows)
    assert [
        (record.key_schema_id, record.key, record.value_schema_id, record.value)
        for record in log.records(framing="confluent")
    ] == expected
    for threads in (1, 2):
        table = pa.table(log.to_arrow(framing="confluent", threads=threads))
        assert table.column("value_schema_id").to_pylist() == [row[2] for row in expected]
        assert table.column("value").to_pylist() == [row[3] for row in expected]
    with pytest.raises(ValueError, match="needs framing"):
        log.to_arrow(("offset", "key_schema_id"))
