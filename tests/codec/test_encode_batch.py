# SPDX-License-Identifier: Apache-2.0
"""encode_batch(), end-transaction markers, RecordBatchBuilder and framing: one batch, every field of it."""

from __future__ import annotations

from typing import Any

import batch_writer
import polars
import pyarrow as pa
import pytest
from encode_samples import CODECS, ROWS, CodecName, decoded, fields

import kcodec
from kcodec import EncodeError, RecordBatchBuilder, encode, encode_batch

# ----------------------------------------------------------------------------------------------------------- one batch


def test_encode_batch_sets_every_field() -> None:
    data = encode_batch(
        [(None, b"v", (), 5)], base_offset=10, last_offset=20, max_timestamp=77, delete_horizon_ms=500, producer_id=3,
        producer_epoch=1, base_sequence=4, is_transactional=True, partition_leader_epoch=6, compression="zstd",
    )  # fmt: skip
    batch = kcodec.batches(data)[0]
    assert (batch.base_offset, batch.last_offset, batch.max_timestamp, batch.delete_horizon_ms) == (10, 20, 77, 500)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (3, 1, 4, 14)
    assert batch.is_transactional and batch.partition_leader_epoch == 6 and str(batch.compression) == "zstd"
    assert decoded(data)[0].timestamp == 5


def test_last_offset_counts_from_the_batch_s_own_base() -> None:
    row = {"value": b"", "timestamp": 0, "offset": 5_000_000_000}
    batch = kcodec.batches(encode_batch([row], last_offset=5_000_000_010))[0]
    assert (batch.base_offset, batch.last_offset) == (5_000_000_000, 5_000_000_010)
    with pytest.raises(EncodeError, match="last_offset 11 is outside 14"):
        encode_batch([(None, b"", (), 0)] * 5, base_offset=10, last_offset=11)


def test_an_empty_batch_stands_for_what_was_there() -> None:
    with pytest.raises(EncodeError, match="needs last_offset"):
        encode_batch([])
    data = encode_batch([], base_offset=5, last_offset=9, producer_id=1, producer_epoch=0, base_sequence=3)
    batch = kcodec.batches(data)[0]
    assert (len(data), batch.records_count, batch.last_offset, batch.last_sequence) == (61, 0, 9, 7)
    assert (batch.base_timestamp, batch.max_timestamp, str(batch.compression)) == (-1, -1, "none")
    like = kcodec.batches(encode(ROWS, compression="lz4", base_offset=2))[0]
    emptied = kcodec.batches(encode_batch([], like=like))[0]
    assert (emptied.base_offset, emptied.last_offset, emptied.max_timestamp) == (2, 5, like.max_timestamp)


def test_encode_batch_gives_one_batch_or_none() -> None:
    with pytest.raises(EncodeError, match="do not fit into one batch"):
        encode_batch([(None, b"v" * 50, (), 0)] * 10, max_batch_bytes=300)
    with pytest.raises(EncodeError, match="row 4: a batch of"):
        encode_batch(pa.table({"value": [b"v" * 50] * 10}), timestamp=0, max_batch_bytes=300)


@pytest.mark.parametrize("boundary", [1 << 6, 1 << 13, 1 << 20])
def test_lengths_of_all_widths_are_as_short_as_possible(boundary: int) -> None:
    """The varint length before a record is one byte longer from each of these sizes on. Small records between them, and
    headers, make the size of a record differ from what the encoder expects."""
    kept: tuple[tuple[bytes, bytes | None], ...] = ((b"name", b"h" * 40),)
    specs = []
    for size in range(boundary - 70, boundary + 4, 9 if boundary == 1 << 20 else 1):
        headers = kept if size % 3 == 0 else ()
        specs += [
            batch_writer.RecordSpec(value=b"v" * max(size, 0), headers=headers),
            batch_writer.RecordSpec(value=b"s"),
        ]
    for some in [specs[at : at + 2] for at in range(0, len(specs), 2)] if boundary == 1 << 20 else [specs]:
        data = batch_writer.build_batch(some, base_timestamp=5, partition_leader_epoch=-1)
        rows = [(None, spec.value, [(name.decode(), value) for name, value in spec.headers], 5) for spec in some]
        assert encode_batch(rows, max_batch_bytes=1 << 21) == data


def test_a_marker_is_78_bytes() -> None:
    kinds: tuple[tuple[Any, int], ...] = (("COMMIT", 1), ("ABORT", 0), (kcodec.ControlType.ABORT, 0), (1, 1))
    for kind, number in kinds:
        data = kcodec.encode_end_transaction_marker(
            kind, producer_id=5, producer_epoch=3, coordinator_epoch=9, timestamp=1, base_offset=44
        )
        record = next(kcodec.batches(data)[0].records())
        assert len(data) == 78
        assert (record.control_type, record.coordinator_epoch, record.offset) == (number, 9, 44)
        assert data == batch_writer.end_transaction_marker(
            number, producer_id=5, producer_epoch=3, coordinator_epoch=9, base_timestamp=1, base_offset=44,
            partition_leader_epoch=-1,
        )  # fmt: skip
    with pytest.raises(EncodeError, match="control_type must be COMMIT or ABORT"):
        kcodec.encode_end_transaction_marker(2, producer_id=5, producer_epoch=3, coordinator_epoch=9, timestamp=1)


# ------------------------------------------------------------------------------------------------------------- builder


@pytest.mark.parametrize("codec", CODECS)
def test_the_builder_makes_what_encode_makes(codec: CodecName) -> None:
    builder = RecordBatchBuilder(compression=codec)
    for at, row in enumerate(ROWS):
        assert builder.append(*row) == at
    assert builder.close() == bytes(encode(ROWS, compression=codec)) == builder.close()
    assert builder.is_closed and builder.records_count == len(ROWS)
    with pytest.raises(ValueError, match="closed"):
        builder.append(b"", b"", (), 0)


def test_the_builder_says_when_it_is_full_and_stays_as_it_was() -> None:
    builder = RecordBatchBuilder(max_batch_bytes=200, timestamp=0)
    taken = 0
    while builder.has_room_for(b"key", b"value"):
        builder.append(b"key", b"value")
        taken += 1
    assert taken > 3
    size = builder.size_in_bytes
    with pytest.raises(EncodeError, match="do not fit"):
        builder.append(b"key", b"v" * 100)
    assert (builder.records_count, builder.size_in_bytes) == (taken, size)
    assert len(builder.close()) == size


def test_a_refused_first_record_leaves_no_trace() -> None:
    builder = RecordBatchBuilder(max_batch_bytes=200)
    with pytest.raises(EncodeError, match="exceeds max_batch_bytes"):
        builder.append(None, b"v" * 500, (), 99)
    with pytest.raises(EncodeError, match="timestamp -7"):
        builder.append(None, b"", (), -7)
    builder.append(None, b"v", (), 5)
    assert kcodec.batches(builder.close())[0].base_timestamp == 5


def test_producer_state_may_come_last() -> None:
    builder = RecordBatchBuilder(is_transactional=True, timestamp=0)
    builder.append(None, b"v")
    with pytest.raises(EncodeError, match="transactional batch needs a producer_id"):
        builder.close()
    builder.set_producer_state(8, 2, 11, True)
    batch = kcodec.batches(builder.close())[0]
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.is_transactional) == (8, 2, 11, True)


def test_an_empty_builder_gives_nothing() -> None:
    assert RecordBatchBuilder().close() == b""


# ------------------------------------------------------------------------------------------------------------ framing


def test_schema_ids_are_put_before_the_payload() -> None:
    row = {"key": b"k", "value": b"v", "timestamp": 0, "key_schema_id": 7, "value_schema_id": -1}
    framed = decoded(encode([row], framing="confluent"))[0]
    assert (framed.key, framed.value) == (b"\x00\x00\x00\x00\x07k", b"\x00\xff\xff\xff\xffv")
    table = pa.table({"key": [b"k", None], "value": [b"v", b"w"], "timestamp": pa.array([0, 0]),
                      "key_schema_id": pa.array([7, 7], pa.int32()),
                      "value_schema_id": pa.array([-1, None], pa.int32())})  # fmt: skip
    rows = decoded(encode(table, framing="confluent"))
    assert (rows[0].key, rows[0].value, rows[1].key, rows[1].value) == (framed.key, framed.value, None, b"w")
    builder = RecordBatchBuilder(framing="confluent", timestamp=0)
    builder.append(b"k", b"v", key_schema_id=7, value_schema_id=-1)
    assert fields(decoded(builder.close())[0])[:2] == (framed.key, framed.value)
    with pytest.raises(EncodeError, match="framing"):
        RecordBatchBuilder(timestamp=0).append(b"k", b"v", key_schema_id=7)
    with pytest.raises(ValueError, match="unknown"):
        encode(table.drop_columns(["value_schema_id"]).rename_columns(["key", "value", "timestamp", "key_schema_i"]))


# --------------------------------------------------------------------------------------------- like a batch of a broker


def stamped_batch(framing: Any = None) -> tuple[bytes, kcodec.RecordBatch]:
    """A batch with LogAppendTime. Its records contain other timestamps, which readers do not see."""
    rows: list[dict[str, Any]] = [
        {"key": b"k", "value": b"v1", "headers": [("h", b"1")], "value_schema_id": 7, "timestamp": 5},
        {"key": None, "value": b"v2", "value_schema_id": 9, "timestamp": 6},
        {"key": b"k3", "value": None, "key_schema_id": 1, "timestamp": 7},
    ]
    if framing is None:
        rows = [{name: value for name, value in row.items() if "schema" not in name} for row in rows]
    data = bytearray(encode_batch(rows, base_offset=30, framing=framing))
    kcodec.set_log_append_time(data, 1000)
    return bytes(data), kcodec.batches(data)[0]


def test_schema_ids_of_a_batch_with_log_append_time_stay() -> None:
    data, batch = stamped_batch("confluent")
    decoded_batch = batch.decode(framing="confluent")
    assert encode_batch(decoded_batch.records(), like=batch, framing="confluent") == data
    assert encode_batch(decoded_batch, like=batch, framing="confluent") == data
    assert encode_batch(pa.table(decoded_batch), like=batch, framing="confluent") == data
    with pytest.raises(EncodeError, match='would be lost: pass framing="confluent"'):
        encode_batch(decoded_batch.records(), like=batch)


def test_arrow_data_with_log_append_time_is_encoded_alike() -> None:
    data, batch = stamped_batch()
    table = pa.table(batch.decode())
    assert encode_batch(table, like=batch) == data
    assert encode_batch(table.drop_columns(["timestamp"]), like=batch) == data
    kept = encode_batch(table.filter(pa.array([False, True, False])), like=batch)
    assert [(record.offset, record.timestamp) for record in decoded(kept)] == [(31, 1000)]
    bare = bytearray(kept)
    bare[22] &= ~0x08  # CreateTime: the timestamps that are stored
    assert [record.timestamp for record in kcodec.decode(bare, check_crcs=False).records()] == [6]


@pytest.mark.parametrize("columns", [("offset", "value"), ("offset", "key", "headers"), ("key", "value"), ("value",)])
def test_absent_columns_of_a_batch_with_log_append_time_are_null(columns: tuple[Any, ...]) -> None:
    """The result is the same as without LogAppendTime, except that no timestamp is missing."""
    _, batch = stamped_batch()
    expected = [
        (record.key if "key" in columns else None, record.value if "value" in columns else None)
        for record in batch.records()
    ]
    for source in (batch.decode(columns=columns), list(batch.decode(columns=columns).records())):
        made = decoded(encode_batch(source, like=batch))
        assert [(record.key, record.value) for record in made] == expected
        assert {record.timestamp for record in made} == {1000}


def test_another_timestamp_type_writes_the_given_timestamps() -> None:
    _, batch = stamped_batch()
    made = encode_batch(batch.records(), like=batch, timestamp_type="CreateTime")
    assert [record.timestamp for record in decoded(made)] == [1000] * 3


def test_timestamps_below_minus_one_are_written_as_in_like() -> None:
    """A log may contain them, although Kafka's builder refuses them."""
    specs = [batch_writer.RecordSpec(value=b"v%d" % at, timestamp_delta=delta) for at, delta in enumerate((0, -5, 9))]
    data = batch_writer.build_batch(specs, base_timestamp=-30)
    (batch,) = kcodec.batches(data)
    assert [record.timestamp for record in batch.records()] == [-30, -35, -21]
    for source in (batch.records(), batch.decode(), pa.table(batch.decode())):
        assert encode_batch(source, like=batch) == data
    with pytest.raises(EncodeError, match="row 0: timestamp -30 is below -1"):
        encode_batch(batch.records())


# ------------------------------------------------------------------------------------------------------ control records


def test_control_records_do_not_become_ordinary_records() -> None:
    marker = kcodec.encode_end_transaction_marker(
        "COMMIT", producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=1
    )
    found = kcodec.decode(bytes(encode([(b"k", b"v")], timestamp=0)) + marker, control_records="include")
    sources: tuple[Any, ...] = (found, list(found.records()))
    for source in sources:
        for write in (encode, encode_batch):
            with pytest.raises(EncodeError, match="row 1: a control record would become an ordinary record") as caught:
                write(source)
            assert (caught.value.field, caught.value.row) == ("record", 1)
    without = kcodec.decode(bytes(encode([(b"k", b"v")], timestamp=0)) + marker)
    assert encode(without).records_count == 1


@pytest.mark.parametrize("column", ["is_control", "control_type"])
@pytest.mark.parametrize("convert", [pa.table, polars.DataFrame], ids=["pyarrow", "polars"])
def test_control_records_of_a_table_are_refused(column: str, convert: Any) -> None:
    """A table of another library says which rows are control records if it has one of these columns."""
    marker = kcodec.encode_end_transaction_marker(
        "COMMIT", producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=9
    )
    data = bytes(encode([(b"k", b"v")] * 9, timestamp=0)) + marker
    columns = ("offset", "timestamp", "key", "value", column)
    table = convert(kcodec.decode(data, control_records="include", columns=columns))
    for first in (0, 3):
        for write in (encode, encode_batch):
            with pytest.raises(EncodeError, match="a control record would become an ordinary record") as caught:
                write(table[first:])
            assert (caught.value.field, caught.value.row) == ("record", 9 - first)
    assert encode(table[:9]).records_count == 9
    assert encode_batch(table[9:], like=kcodec.batches(marker)[0]) == marker


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint8(), pa.float32(), pa.float64(), "pandas"])
def test_control_records_are_refused_whatever_the_type_of_their_number(kind: Any) -> None:
    """pandas, for example, makes a float64 column with NaN of an int16 column with null."""
    marker = kcodec.encode_end_transaction_marker(
        "COMMIT", producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=2
    )
    data = bytes(encode([(b"k", b"v")] * 2, timestamp=0)) + marker
    table = pa.table(kcodec.decode(data, control_records="include", columns=("key", "value", "control_type")))
    source: Any = table.to_pandas() if kind == "pandas" else table
    if kind == "pandas":
        assert source.control_type.dtype == "float64"
    else:
        source = table.set_column(2, "control_type", table["control_type"].cast(kind))
    with pytest.raises(EncodeError, match="row 2: a control record would become an ordinary record"):
        encode(source, timestamp=0)
    assert encode(source[:2], timestamp=0).records_count == 2


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()], ids=str)
def test_a_flag_may_be_a_number(kind: Any) -> None:
    """SQLite, for example, stores False as 0."""
    flags = pa.array([0, None, 0, 1]).cast(kind)
    table = pa.table({"value": [b"a", b"b", b"c", b"marker"], "is_control": flags})
    assert encode(table[:3], timestamp=0).records_count == 3
    with pytest.raises(EncodeError, match="row 3: a control record would become an ordinary record"):
        encode(table, timestamp=0)


@pytest.mark.parametrize("values", [pa.array(["COMMIT"]), pa.array([1]).dictionary_encode(), pa.array([b"x"])])
def test_a_control_type_that_is_not_a_number_is_refused(values: Any) -> None:
    with pytest.raises(TypeError, match="column 'control_type': expected booleans or numbers"):
        encode(pa.table({"value": [b"v"], "control_type": values}), timestamp=0)
    nothing = pa.table({"value": [b"v"], "control_type": pa.nulls(1)})
    assert encode(nothing, timestamp=0).records_count == 1


def test_control_records_are_written_to_a_control_batch() -> None:
    marker = kcodec.encode_end_transaction_marker(
        "COMMIT", producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=1
    )
    (batch,) = kcodec.batches(marker)
    assert encode_batch(batch.records(), like=batch) == marker
    assert encode_batch(batch.decode(control_records="include"), like=batch) == marker
    options: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "is_transactional": True}
    assert encode_batch(batch.records(), is_control_batch=True, **options) == marker
