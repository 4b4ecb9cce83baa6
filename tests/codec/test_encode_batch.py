# SPDX-License-Identifier: Apache-2.0
"""encode_batch(), end-transaction markers, RecordBatchBuilder and framing: one batch, every field of it."""

from __future__ import annotations

from typing import Any

import batch_writer
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
