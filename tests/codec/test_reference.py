# SPDX-License-Identifier: Apache-2.0
"""Proves the oracle on golden bytes: headers, records, and both isolation levels, field by field."""

from __future__ import annotations

import random

import crc32c as crc32c_package
import golden_data as golden
import pytest
import reference
from golden_data import Fetched, Partition, Truth, same_bytes, same_headers
from reference import Header, Record

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
EVERY = golden.partitions() + golden.copies("live") + golden.copies("killed")
FETCHED = golden.fetched()
# What the oracle's header of a message does not hold, or only its records tell.
OPENED = (*golden.OF_MAGIC_2, "baseOffset", "count")


def header_truth(header: Header) -> Truth:
    return {
        "position": header.position,
        "size": header.end - header.position,
        "magic": header.magic,
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "crc": header.crc,
        "compression": COMPRESSIONS[header.compression],
        "timestampType": TIMESTAMP_TYPES[header.timestamp_type],
        "attributes": header.attributes,
        "lastOffsetDelta": header.last_offset_delta,
        "baseTimestampField": header.base_timestamp,
        "maxTimestamp": header.max_timestamp,
        "deleteHorizonMs": header.delete_horizon_ms,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "count": header.records_count,
    }


def assert_record(record: Record, reported: Truth) -> None:
    assert record.offset == reported["offset"]
    assert record.timestamp == reported["timestamp"]
    assert same_bytes(record.key, reported["key"])
    assert same_bytes(record.value, reported["value"])
    assert same_headers(record.headers, reported["headers"])
    if "sequence" in reported:
        assert record.sequence == reported["sequence"]
    if "leaderEpoch" in reported:
        assert record.partition_leader_epoch == reported["leaderEpoch"]
        assert TIMESTAMP_TYPES[record.timestamp_type] == reported["timestampType"]
    control = reported.get("control")
    assert record.control_type == (control["typeId"] if control else None)
    assert record.coordinator_epoch == (control.get("coordinatorEpoch") if control else None)


def assert_batches(data: bytes, truth: list[Truth], trailing_bytes: int = 0) -> None:
    headers, left, _ = reference.walk(data)
    assert left == trailing_bytes
    assert len(headers) == len(truth)
    for header, reported in zip(headers, truth, strict=True):
        names = [name for name in header_truth(header) if header.magic == 2 or name not in OPENED]
        assert {name: header_truth(header)[name] for name in names} == {name: reported[name] for name in names}
        assert reference.crc_is_right(data, header) == reported["valid"]
        records = reference.read_records(data, header)
        assert len(records) == len(reported["records"])
        assert {record.base_offset for record in records} <= {reported["baseOffset"]}
        for record, reported_record in zip(records, reported["records"], strict=True):
            assert_record(record, reported_record)


def consumed(records: list[Record], partition: Partition) -> list[Record]:
    """As a consumer keeps its position: of raw-refused's two records with offset 0 it sees the first."""
    if partition.topic != "raw-refused":
        return records
    assert [record.offset for record in records[:2]] == [0, 0]
    return records[:1] + records[2:]


@pytest.mark.parametrize("partition", EVERY, ids=str)
def test_every_field_of_every_batch_and_record_is_what_kafka_reads(partition: Partition) -> None:
    assert partition.batches or partition.topic == "made-7"
    for path in partition.segments:
        assert_batches(path.read_bytes(), [batch for batch in partition.batches if batch["file"] == path.name])
    for name, truth in partition.checkpoint_batches.items():
        assert_batches((partition.path / name).read_bytes(), truth)


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("partition", golden.partitions(), ids=str)
def test_markers_alone_give_what_the_consumer_delivered(partition: Partition, isolation_level: str) -> None:
    reported = partition.consumed(isolation_level)
    if reported is None:
        assert partition.topic == "__cluster_metadata"  # no client may read it
        return
    offsets = partition.offsets
    assert offsets is not None
    result = reference.decode(
        partition.log, isolation_level=isolation_level, start_offset=partition.log_start_offset, on_error="stop"
    )
    assert result.error is None
    records = consumed(result.records, partition)
    assert len(records) == len(reported)
    for record, reported_record in zip(records, reported, strict=True):
        assert_record(record, reported_record)
    assert result.next_offset == offsets[f"{isolation_level}Position"]
    if isolation_level == "read_committed":
        open_transactions = offsets["lastStableOffset"] < offsets["highWatermark"]
        assert result.limit == (offsets["lastStableOffset"] if open_transactions else None)


@pytest.mark.parametrize("fetched", FETCHED, ids=str)
def test_record_sets_in_fetch_responses_are_what_kafka_reads(fetched: Fetched) -> None:
    assert_batches(fetched.data, list(fetched.batches), fetched.trailing_bytes)


def reported_stream(fetched: Fetched, partition: Partition) -> list[Truth]:
    """What the consumer got of this partition between the fetch offset and the end of the answer's whole batches."""
    start = fetched.fetch_offset
    end = fetched.batches[-1]["lastOffset"] + 1
    reported = partition.consumed(fetched.isolation_level)
    assert start is not None
    assert reported is not None
    return [record for record in reported if start <= record["offset"] < end]


ANSWERED = [fetched for fetched in FETCHED if fetched.batches and fetched.fetch_offset is not None]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("fetched", ANSWERED, ids=str)
def test_the_brokers_aborted_list_gives_what_the_consumer_delivered(fetched: Fetched, shuffled: bool) -> None:
    partition = next(at for at in golden.partitions() if (at.topic, at.partition) == (fetched.topic, fetched.partition))
    aborted = None if fetched.aborted_transactions is None else list(fetched.aborted_transactions)
    if shuffled and aborted is not None:
        random.Random(len(fetched.data)).shuffle(aborted)
    result = reference.decode(
        fetched.data,
        isolation_level=fetched.isolation_level,
        aborted_transactions=aborted,
        last_stable_offset=fetched.last_stable_offset,
        start_offset=fetched.fetch_offset,
    )
    reported = reported_stream(fetched, partition)
    limit = fetched.last_stable_offset
    if fetched.isolation_level == "read_committed":
        reported = [record for record in reported if record["offset"] < limit]
    assert [record.offset for record in result.records] == [record["offset"] for record in reported]
    for record, reported_record in zip(result.records, reported, strict=True):
        assert_record(record, reported_record)
    assert result.remaining_bytes == fetched.trailing_bytes


def test_the_golden_set_holds_what_these_tests_are_for() -> None:
    assert len(golden.partitions()) == 128
    assert len(golden.partitions(2)) == 123
    assert sum(bool(fetched.aborted_transactions) for fetched in ANSWERED) > 10
    assert {fetched.version for fetched in FETCHED} >= {4, 10, 11, 12, 13, 16, 17, 18}
    assert any(fetched.trailing_bytes for fetched in FETCHED)
    assert len(golden.legacy()) == 47
    assert {str(partition) for partition in golden.copies("killed")} >= {"tv2-killed-txn-open-0"}


def test_crc32c_agrees_with_the_package() -> None:
    noise = random.Random(4)
    for size in (0, 1, 7, 8, 63, 64, 1000):
        data = noise.randbytes(size)
        assert reference.crc32c(data) == crc32c_package.crc32c(data)
