# SPDX-License-Identifier: Apache-2.0
"""kcodec.batches(): every header field against what Kafka reads, and how a lazy sequence of them behaves."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import golden_data as golden
import pytest
from batch_writer import RecordSpec, build_batch, control_batch, empty_batch, end_transaction_marker, fix_crc
from golden_data import Partition, Truth, same_bytes, same_headers

import kcodec
from kcodec import _fast
from kcodec.constants import Compression, ControlType, TimestampType

EVERY = golden.partitions() + golden.copies("live") + golden.copies("killed")
RECORDS = [RecordSpec(key=b"k", value=b"v"), RecordSpec(key=None, value=b"w" * 300, timestamp_delta=4)]
FIRST = build_batch(RECORDS, base_offset=5, compression="lz4")
SECOND = build_batch(
    RECORDS, base_offset=7, is_transactional=True, producer_id=9001, producer_epoch=3, base_sequence=(1 << 31) - 1
)
MARKER = end_transaction_marker(0, producer_id=9001, producer_epoch=3, base_offset=9, coordinator_epoch=12)
DATA = FIRST + SECOND + MARKER


def damaged(batch: bytes) -> bytes:
    """The same with a bit of the last value flipped: the CRC is wrong, the records can be read."""
    return batch[:-2] + bytes([batch[-2] ^ 1]) + batch[-1:]


def header_truth(batch: kcodec.RecordBatch) -> Truth:
    return {
        "position": batch.position,
        "size": batch.size_in_bytes,
        "magic": batch.magic,
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "crc": batch.crc,
        "valid": batch.is_valid(),
        "compression": str(batch.compression),
        "timestampType": str(batch.timestamp_type),
        "attributes": batch.attributes,
        "lastOffsetDelta": batch.last_offset_delta,
        "baseTimestampField": batch.base_timestamp,
        "maxTimestamp": batch.max_timestamp,
        "deleteHorizonMs": batch.delete_horizon_ms,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control_batch,
        "partitionLeaderEpoch": batch.partition_leader_epoch,
        "count": batch.records_count,
    }


def assert_record(record: kcodec.Record, reported: Truth) -> None:
    assert (record.offset, record.timestamp, record.sequence) == (
        reported["offset"],
        reported["timestamp"],
        reported["sequence"],
    )
    assert same_bytes(record.key, reported["key"])
    assert same_bytes(record.value, reported["value"])
    assert same_headers(record.headers, reported["headers"])
    control = reported.get("control")
    assert record.control_type == (control["typeId"] if control else None)
    assert record.coordinator_epoch == (control.get("coordinatorEpoch") if control else None)


@pytest.mark.parametrize("partition", EVERY, ids=str)
def test_every_field_and_record_is_what_kafka_reads(partition: Partition) -> None:
    for segment in partition.segments:
        data = segment.read_bytes()
        truth = [reported for reported in partition.batches if reported["file"] == segment.name]
        found = kcodec.batches(data)
        assert len(found) == len(truth)
        for batch, reported in zip(found, truth, strict=True):
            names = [name for name in header_truth(batch) if batch.magic == 2 or name not in golden.OF_MAGIC_2]
            assert {name: header_truth(batch)[name] for name in names} == {name: reported[name] for name in names}
            assert batch.batch_length == batch.size_in_bytes - 12
            assert batch.next_offset == batch.last_offset + 1
            assert batch.path is None
            assert batch.data == data[batch.position : batch.position + batch.size_in_bytes]
            for record, reported_record in zip(batch.records(), reported["records"], strict=True):
                assert_record(record, reported_record)
                assert record.timestamp_type is batch.timestamp_type
        assert found.remaining_bytes == len(data) - (found[-1].position + found[-1].size_in_bytes if truth else 0)


def test_enumerations_are_kafkas() -> None:
    first, second, _ = kcodec.batches(DATA)
    kafkas_name: Any = "lz4"
    assert first.compression is Compression.LZ4
    assert first.compression == kafkas_name
    assert second.timestamp_type is TimestampType.CREATE_TIME
    appended = kcodec.batches(build_batch(RECORDS, timestamp_type=1))[0]
    assert appended.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in appended.records()] == [appended.max_timestamp] * 2


def test_an_unknown_compression_is_a_number_until_its_records_are_asked_for() -> None:
    batch = kcodec.batches(build_batch(RECORDS, unused_attributes=7))[0]
    assert (batch.compression, type(batch.compression)) == (7, int)
    assert batch.is_valid()
    with pytest.raises(
        kcodec.UnsupportedError, match=r"^batch at byte 0 \(base_offset 0\): compression id 7 is unknown"
    ):
        batch.records()


def test_sequences_wrap_to_zero_and_are_none_without_a_producer() -> None:
    first, second, _ = kcodec.batches(DATA)
    assert (first.base_sequence, first.last_sequence) == (-1, -1)
    assert (second.base_sequence, second.last_sequence) == ((1 << 31) - 1, 0)
    assert [record.sequence for record in second.records()] == [(1 << 31) - 1, 0]


def test_base_timestamp_is_the_field_as_stored_and_the_horizon_by_bit_6() -> None:
    batch = kcodec.batches(build_batch(RECORDS, delete_horizon=True, base_timestamp=1234))[0]
    assert (batch.base_timestamp, batch.delete_horizon_ms, batch.attributes) == (1234, 1234, 0x40)
    assert kcodec.batches(FIRST)[0].delete_horizon_ms is None


# ---------------------------------------------------------------------------------------------------- a lazy sequence


def test_it_is_a_sequence() -> None:
    found = kcodec.batches(DATA)
    assert [batch.base_offset for batch in found] == [5, 7, 9]
    assert (found[0].position, found[1].position) == (0, len(FIRST))
    assert (found[-1], found[-3]) == (found[2], found[0])
    assert found[1:] == [found[1], found[2]]
    assert found[::-1] == [found[2], found[1], found[0]]
    assert found[5:] == []
    assert len(found) == 3
    assert list(found) == list(found)
    for index in (3, -4, 1 << 70):
        with pytest.raises(IndexError, match="there are 3 batches"):
            found[index]


def test_nothing_is_walked_before_it_is_asked_for() -> None:
    found = kcodec.batches(FIRST + SECOND + b"\0" * 61)
    assert repr(found).startswith("<RecordBatches 0 batches walked so far, ")
    assert found[0].base_offset == 5
    assert repr(found).startswith("<RecordBatches 1 batches walked so far, ")
    walk = iter(found)
    assert [next(walk).base_offset, next(walk).base_offset] == [5, 7]
    for reach in (lambda: next(walk), lambda: found[2], lambda: len(found), lambda: found[-1], lambda: found[:1]):
        with pytest.raises(
            kcodec.DecodeError, match=f"^batch at byte {len(FIRST + SECOND)} .*batch_length 0 is below 14"
        ):
            reach()
    assert found[1].base_offset == 7


def test_corruption_behind_the_headers_is_not_looked_at() -> None:
    found = kcodec.batches(damaged(FIRST) + SECOND)
    assert len(found) == 2
    assert [batch.is_valid() for batch in found] == [False, True]


@pytest.mark.parametrize("cut", range(1, len(SECOND)))
def test_a_cut_last_batch_ends_the_sequence(cut: int) -> None:
    found = kcodec.batches(FIRST + SECOND[:cut])
    assert [batch.base_offset for batch in found] == [5]
    assert found.remaining_bytes == cut
    assert found.bytes_needed == (len(SECOND) if cut >= 12 else 61)  # the length stands in bytes 8 to 11


def test_whole_batches_leave_nothing() -> None:
    for data in (b"", DATA):
        found = kcodec.batches(data)
        assert (found.remaining_bytes, found.bytes_needed) == (0, 0)


def test_nothing_is_copied() -> None:
    data = bytearray(DATA)
    batch = kcodec.batches(data)[1]
    data[len(FIRST) + 70] ^= 1
    assert batch.data == memoryview(data)[len(FIRST) : len(FIRST + SECOND)]
    assert not batch.is_valid()


@pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda data: memoryview(bytearray(data))], ids=["a", "b", "c"])
def test_any_bytes_like_object_will_do(wrap: Any) -> None:
    assert kcodec.batches(wrap(DATA)) == kcodec.batches(DATA)
    assert [list(batch.records()) for batch in kcodec.batches(wrap(DATA))] == [
        list(batch.records()) for batch in kcodec.batches(DATA)
    ]


def test_limits_are_kept_by_the_walk_and_by_the_records() -> None:
    with pytest.raises(kcodec.LimitExceededError) as caught:
        len(kcodec.batches(DATA, limits=kcodec.DecodeLimits(max_batch_bytes=100)))
    assert (caught.value.limit, caught.value.value, caught.value.position) == ("max_batch_bytes", 100, len(FIRST))
    limits = kcodec.DecodeLimits(max_decompressed_bytes=200)
    with pytest.raises(kcodec.LimitExceededError, match="max_decompressed_bytes"):
        kcodec.batches(FIRST, limits=limits)[0].records()


# ------------------------------------------------------------------------------------------------------------ checksum


def test_records_are_given_after_a_check_of_the_crc() -> None:
    data = FIRST + damaged(SECOND)
    batch = kcodec.batches(data)[1]
    stored, computed = batch.crc, struct.unpack_from(">I", fix_crc(bytes(batch.data)), 17)[0]
    for ask in (batch.records, batch.ensure_valid):
        with pytest.raises(kcodec.CorruptBatchError) as caught:
            ask()
        error = caught.value
        assert (error.stored_crc, error.computed_crc) == (stored, computed)
        assert (error.position, error.base_offset, error.record, error.path) == (len(FIRST), 7, None, None)
        assert str(error).startswith(f"batch at byte {len(FIRST)} (base_offset 7): the stored CRC {stored:#010x} ")
    assert batch.is_valid() is False
    assert batch.decode(check_crcs=False).counts.records == 2


def test_corruption_inside_names_the_record_and_the_place_in_the_input() -> None:
    bad = build_batch(RECORDS, base_offset=7, edit_payload=lambda payload: payload[:-1] + b"\x01")
    batch = kcodec.batches(FIRST + bad)[1]
    assert batch.is_valid()
    with pytest.raises(kcodec.DecodeError) as caught:
        batch.records()
    assert (caught.value.position, caught.value.base_offset, caught.value.record) == (len(FIRST), 7, 1)


def test_a_batch_that_is_not_all_there_says_how_much_is() -> None:
    batch = _fast.header_at(SECOND[:100], 4096, "orders-0/00000000000000000000.log")
    assert batch is not None
    assert (batch.position, batch.base_offset, batch.records_count) == (4096, 7, 2)
    for ask in (batch.records, batch.ensure_valid, batch.is_valid, lambda: batch.data):
        with pytest.raises(kcodec.TruncatedError) as caught:
            ask()
        assert (caught.value.needed, caught.value.available) == (len(SECOND), 100)
        assert str(caught.value) == (
            f"orders-0/00000000000000000000.log: batch at byte 4096 (base_offset 7): the batch has {len(SECOND)}"
            " bytes, but only 100 are available"
        )
    assert _fast.header_at(SECOND[:60]) is None


def test_a_loader_brings_the_bytes_when_they_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000007.log"
    file.write_bytes(SECOND)
    header = _fast.header_at(SECOND[:61], 0, str(file))
    assert header is not None
    batch = header._with_loader(file.read_bytes)
    assert [record.offset for record in batch.records()] == [7, 8]
    assert batch.data == SECOND
    assert pickle.loads(pickle.dumps(batch)).data == SECOND
    file.write_bytes(SECOND[:70])
    with pytest.raises(kcodec.TruncatedError, match="but only 70 are available"):
        batch.records()


# ------------------------------------------------------------------------------------------------------ control batches


def test_records_of_a_control_batch_are_its_control_records() -> None:
    batch = kcodec.batches(DATA)[2]
    assert batch.is_control_batch
    (marker,) = batch.records()
    assert (marker.control_type, marker.coordinator_epoch) == (ControlType.ABORT, 12)
    assert (marker.key, marker.value) == (struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 12))


def test_a_control_type_that_is_unknown_stays_a_number() -> None:
    (record,) = kcodec.batches(control_batch(77, b"whatever"))[0].records()
    assert (record.control_type, type(record.control_type), record.coordinator_epoch) == (77, int, None)


def test_an_emptied_batch_has_offsets_but_no_records() -> None:
    batch = kcodec.batches(empty_batch(base_offset=4, last_offset_delta=6))[0]
    assert (batch.base_offset, batch.last_offset, batch.records_count) == (4, 10, 0)
    assert list(batch.records()) == []


# ------------------------------------------------------------------------------------------------------ as values


def test_reprs_say_what_an_operator_wants() -> None:
    assert [repr(batch) for batch in kcodec.batches(DATA)] == [
        f"<RecordBatch 5..6 lz4 2 records {len(FIRST)} B>",
        f"<RecordBatch 7..8 none txn producer_id=9001/3 2 records {len(SECOND)} B>",
        "<RecordBatch 9..9 none control producer_id=9001/3 1 records 78 B>",
    ]
    cleaned = kcodec.batches(build_batch(RECORDS * 300, delete_horizon=True, base_timestamp=8))[0]
    assert (
        repr(cleaned)
        == f"<RecordBatch 0..599 none delete_horizon_ms=8 600 records {cleaned.size_in_bytes / 1024:.1f} KiB>"
    )
    found = kcodec.batches(DATA)
    assert len(found) == 3
    assert repr(found) == f"<RecordBatches 3 batches, {len(DATA)} B>"


def test_equality_is_of_place_and_header() -> None:
    one, other = kcodec.batches(DATA), kcodec.batches(DATA)
    assert one == other
    assert one[0] == other[0]
    assert hash(one[0]) == hash(other[0])
    assert len({*one, *other}) == 3
    assert one[0] != one[1]
    assert one != kcodec.batches(FIRST)
    assert kcodec.batches(FIRST + FIRST)[0] != kcodec.batches(FIRST + FIRST)[1]
    assert one[0] != "a batch"


def test_they_pickle_with_their_bytes_place_and_limits() -> None:
    limits = kcodec.DecodeLimits(max_decompressed_bytes=1000)
    found = kcodec.batches(DATA, limits=limits)
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found
    assert [list(batch.records()) for batch in copy] == [list(batch.records()) for batch in found]
    batch = pickle.loads(pickle.dumps(found[1]))
    assert batch == found[1]
    assert (batch.position, batch.data) == (len(FIRST), found[1].data)
    big = kcodec.batches(build_batch([RecordSpec(value=b"x" * 2000)], compression="gzip"), limits=limits)
    with pytest.raises(kcodec.LimitExceededError):
        pickle.loads(pickle.dumps(big))[0].records()


def test_a_batch_is_made_by_kcodec_alone() -> None:
    with pytest.raises(TypeError, match=r"RecordBatch cannot be created directly: call kcodec\.batches"):
        kcodec.RecordBatch()
