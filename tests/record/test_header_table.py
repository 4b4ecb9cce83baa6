# SPDX-License-Identifier: Apache-2.0
"""RecordBatches.to_numpy() and to_arrow(): the header fields of every batch as a table."""

from __future__ import annotations

import sys

import golden_data as golden
import numpy
import pyarrow as pa
import pytest
from batch_writer import RecordSpec, build_batch

import kcodec

# golden's name -> the field's; the numbers of compression and timestamp type are compared apart
NAMES = {
    "position": "position",
    "size": "size_in_bytes",
    "baseOffset": "base_offset",
    "partitionLeaderEpoch": "partition_leader_epoch",
    "magic": "magic",
    "crc": "crc",
    "attributes": "attributes",
    "lastOffsetDelta": "last_offset_delta",
    "baseTimestampField": "base_timestamp",
    "maxTimestamp": "max_timestamp",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
    "count": "records_count",
    "lastOffset": "last_offset",
    "lastSequence": "last_sequence",
    "isTransactional": "is_transactional",
    "isControl": "is_control_batch",
    "deleteHorizonMs": "delete_horizon_ms",
}
DERIVED = ("batch_length", "next_offset", "compression", "timestamp_type")
TYPES = {
    "position": "int64",
    "size_in_bytes": "int64",
    "base_offset": "int64",
    "batch_length": "int32",
    "partition_leader_epoch": "int32",
    "magic": "int8",
    "crc": "uint32",
    "attributes": "int16",
    "last_offset_delta": "int32",
    "base_timestamp": "int64",
    "max_timestamp": "int64",
    "producer_id": "int64",
    "producer_epoch": "int16",
    "base_sequence": "int32",
    "records_count": "int32",
    "last_offset": "int64",
    "next_offset": "int64",
    "last_sequence": "int32",
    "compression": "int8",
    "timestamp_type": "int8",
    "is_transactional": "bool",
    "is_control_batch": "bool",
    "delete_horizon_ms": "int64",
}


def segments() -> list[tuple[golden.Partition, str, bytes]]:
    return [
        (partition, path.name, path.read_bytes()) for partition in golden.partitions(2) for path in partition.segments
    ]


def test_fields_have_kafkas_names_and_widths() -> None:
    assert set(TYPES) == {*NAMES.values(), *DERIVED}
    for data in (b"", build_batch([RecordSpec()])):
        array = kcodec.batches(data).to_numpy()
        assert {name: str(kind) for name, (kind, *_) in (array.dtype.fields or {}).items()} == TYPES
        table = kcodec.batches(data).to_arrow()
        assert {field.name: str(field.type) for field in table.schema} == TYPES
        assert [field.name for field in table.schema if field.nullable] == ["delete_horizon_ms"]
        assert (array.shape, table.num_rows) == ((len(data) and 1,), len(data) and 1)
        table.validate(full=True)


def test_every_golden_header_is_what_kafka_reads() -> None:
    compared = with_horizon = 0
    for partition, name, data in segments():
        truth = [reported for reported in partition.batches if reported["file"] == name]
        found = kcodec.batches(data)
        table, array = found.to_arrow(), found.to_numpy()
        table.validate(full=True)
        for reported_name, field in NAMES.items():
            reported = [entry[reported_name] for entry in truth]
            assert table[field].to_pylist() == reported, (partition, field)
            assert array[field].tolist() == [-1 if value is None else value for value in reported], (partition, field)
        for field in DERIVED:
            values = [int(getattr(batch, field)) for batch in found]
            assert table[field].to_pylist() == array[field].tolist() == values
        compared += len(truth)
        with_horizon += len(table) - table["delete_horizon_ms"].null_count
    assert compared > 2000
    assert with_horizon > 0


def test_a_stored_horizon_of_minus_one_is_marked_by_bit_6() -> None:
    data = build_batch([RecordSpec()], delete_horizon=True, base_timestamp=-1) + build_batch([RecordSpec()])
    found = kcodec.batches(data)
    assert found.to_arrow()["delete_horizon_ms"].to_pylist() == [-1, None]
    array = found.to_numpy()
    assert array["delete_horizon_ms"].tolist() == [-1, -1]
    assert (array["attributes"] & 0x40 != 0).tolist() == [True, False]


def test_the_table_is_for_asking() -> None:
    batches = [
        build_batch([RecordSpec(value=b"x" * size)], base_offset=at, compression=compression)
        for at, (size, compression) in enumerate([(10, "none"), (1000, "gzip"), (2000, "zstd"), (5, "none")])
    ]
    array = kcodec.batches(b"".join(batches)).to_numpy()
    assert array["base_offset"][array["compression"] == kcodec.Compression.NONE].tolist() == [0, 3]
    assert array["size_in_bytes"].sum() == sum(map(len, batches))
    assert array[2]["next_offset"] == 3


def test_extreme_values_fit() -> None:
    data = build_batch(
        [RecordSpec()],
        base_offset=(1 << 63) - 2,
        partition_leader_epoch=-(1 << 31),
        base_timestamp=-(1 << 63),
        max_timestamp=(1 << 63) - 1,
        producer_id=(1 << 63) - 1,
        producer_epoch=(1 << 15) - 1,
        base_sequence=(1 << 31) - 1,
        unused_attributes=0xFF80,
        crc=0xFFFFFFFF,
    )
    (row,) = kcodec.batches(data).to_arrow().to_pylist()
    array = kcodec.batches(data).to_numpy()
    assert (row["next_offset"], row["crc"], row["attributes"]) == ((1 << 63) - 1, 0xFFFFFFFF, -0x80)
    assert (row["base_timestamp"], row["max_timestamp"]) == (-(1 << 63), (1 << 63) - 1)
    assert array[0].tolist() == tuple(-1 if value is None else value for value in row.values())


def test_noise_beyond_int64_is_a_decode_error() -> None:
    data = build_batch([RecordSpec()]) + build_batch([RecordSpec()], base_offset=(1 << 63) - 1)
    found = kcodec.batches(data)
    for ask in (found.to_numpy, found.to_arrow):
        with pytest.raises(
            kcodec.DecodeError, match="next_offset 9223372036854775808 exceeds 9223372036854775807"
        ) as caught:
            ask()
        assert (caught.value.position, caught.value.base_offset) == (found[1].position, (1 << 63) - 1)


def test_corruption_is_raised_where_the_walk_meets_it() -> None:
    for ask in (kcodec.RecordBatches.to_numpy, kcodec.RecordBatches.to_arrow):
        with pytest.raises(kcodec.DecodeError, match="batch_length 0 is below 14"):
            ask(kcodec.batches(build_batch([RecordSpec()]) + bytes(61)))


def test_a_cut_batch_is_no_row() -> None:
    batch = build_batch([RecordSpec()])
    assert len(kcodec.batches(batch * 2 + batch[:-1]).to_numpy()) == 2


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"to_arrow\(\) needs pyarrow: install the package pyarrow"):
        kcodec.batches(b"").to_arrow()
    assert isinstance(kcodec.batches(b"").to_numpy(), numpy.ndarray)


def test_it_goes_on_to_parquet_and_back() -> None:
    import pyarrow.parquet as parquet

    table = kcodec.batches(build_batch([RecordSpec()]) * 3).to_arrow()
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    assert parquet.read_table(pa.BufferReader(sink.getvalue())).equals(table)
