# SPDX-License-Identifier: Apache-2.0
"""Bytes a broker wrote and sent: every header field, every record, both isolation levels against Kafka's answers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import golden_data as golden
import pytest
from compare import COLUMNS
from golden_data import Fetched, IsolationName, Partition, Truth, same_bytes, same_headers

import kcodec

TIMESTAMP_TYPES = ("NoTimestampType", "CreateTime", "LogAppendTime")
ISOLATION_LEVELS: tuple[IsolationName, ...] = ("read_uncommitted", "read_committed")
EVERY = golden.partitions() + golden.copies("live") + golden.copies("killed")
BY_NAME = {(partition.topic, partition.partition): partition for partition in golden.partitions()}
FETCHED = golden.fetched()
ANSWERED = [fetched for fetched in FETCHED if fetched.batches and fetched.fetch_offset is not None]


def header_fields(batch: kcodec.RecordBatch) -> Truth:
    return {
        "position": batch.position,
        "size": batch.size_in_bytes,
        "magic": batch.magic,
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "nextOffset": batch.next_offset,
        "crc": batch.crc,
        "compression": str(batch.compression),
        "timestampType": str(batch.timestamp_type),
        "attributes": batch.attributes,
        "lastOffsetDelta": batch.last_offset - batch.base_offset,
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
        "valid": batch.is_valid(),
    }


def assert_header(batch: kcodec.RecordBatch, reported: Truth) -> None:
    fields = header_fields(batch)
    reported = {"nextOffset": reported["lastOffset"] + 1, **reported}
    if batch.magic < 2:
        fields = {name: value for name, value in fields.items() if name not in golden.OF_MAGIC_2}
    assert fields == {name: reported[name] for name in fields}
    assert batch.batch_length == reported["size"] - 12
    assert len(batch.data) == reported["size"]


def assert_record(record: kcodec.Record, reported: Truth) -> None:
    assert record.offset == reported["offset"]
    assert record.timestamp == reported["timestamp"]
    assert same_bytes(record.key, reported["key"])
    assert same_bytes(record.value, reported["value"])
    assert same_headers(record.headers, reported["headers"])
    if "sequence" in reported:
        assert record.sequence == reported["sequence"]
    if "timestampType" in reported:
        assert str(record.timestamp_type) == reported["timestampType"]
    control = reported.get("control")
    assert record.control_type == (control["typeId"] if control else None)
    assert record.coordinator_epoch == (control.get("coordinatorEpoch") if control else None)


def assert_records(records: Iterable[kcodec.Record], reported: Sequence[Truth]) -> None:
    records = list(records)
    assert [record.offset for record in records] == [record["offset"] for record in reported]
    for record, reported_record in zip(records, reported, strict=True):
        assert_record(record, reported_record)


def assert_columns(decoded: kcodec.DecodedRecords, batches: Sequence[Truth]) -> None:
    """What the columns take from the batch's header, row by row; the rest is what records() shows."""
    reported = [(batch, record) for batch in batches for record in batch["records"]]
    expected = {
        "offset": [record["offset"] for _, record in reported],
        "timestamp": [record["timestamp"] for _, record in reported],
        "timestamp_type": [TIMESTAMP_TYPES.index(batch["timestampType"]) - 1 for batch, _ in reported],
        "base_offset": [batch["baseOffset"] for batch, _ in reported],
        "producer_id": [batch["producerId"] for batch, _ in reported],
        "producer_epoch": [batch["producerEpoch"] for batch, _ in reported],
        "sequence": [record["sequence"] for _, record in reported],
        "partition_leader_epoch": [batch["partitionLeaderEpoch"] for batch, _ in reported],
        "is_transactional": [batch["isTransactional"] for batch, _ in reported],
        "is_control": [batch["isControl"] for batch, _ in reported],
        "control_type": [record["control"]["typeId"] if record.get("control") else None for _, record in reported],
    }
    for name, values in expected.items():
        assert list(decoded.column(name)) == values, name
    for name in ("key", "value"):
        assert all(map(same_bytes, decoded.column(name), [record[name] for _, record in reported])), name
    assert all(map(same_headers, decoded.column("headers"), [record["headers"] for _, record in reported]))


def assert_batches(data: bytes, truth: Sequence[Truth], trailing_bytes: int = 0) -> None:
    """Headers one by one, records batch by batch, and the whole as columns."""
    batches = kcodec.batches(data)
    assert len(batches) == len(truth)
    assert batches.remaining_bytes == trailing_bytes
    for batch, reported in zip(batches, truth, strict=True):
        assert_header(batch, reported)
        assert_records(batch.records(), reported["records"])
    decoded = kcodec.decode(data, columns=COLUMNS, control_records="include")
    assert_columns(decoded, truth)
    assert_records(decoded.records(), [record for batch in truth for record in batch["records"]])
    assert decoded.counts == kcodec.Counts(batches=len(truth), records=sum(len(batch["records"]) for batch in truth))
    assert decoded.remaining_bytes == trailing_bytes
    assert decoded.next_offset == (truth[-1]["lastOffset"] + 1 if truth else None)


@pytest.mark.parametrize("partition", EVERY, ids=str)
def test_every_field_of_every_batch_and_record_is_what_kafka_reads(partition: Partition) -> None:
    for path in partition.segments:
        assert_batches(path.read_bytes(), [batch for batch in partition.batches if batch["file"] == path.name])
    for name, truth in partition.checkpoint_batches.items():
        assert_batches((partition.path / name).read_bytes(), truth)


def as_a_consumer(records: list[kcodec.Record], partition: Partition) -> list[kcodec.Record]:
    """Of raw-refused's two records with offset 0 a consumer sees the first: it keeps a position, decode does not."""
    if partition.topic != "raw-refused":
        return records
    assert [record.offset for record in records[:2]] == [0, 0]
    return records[:1] + records[2:]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("partition", golden.partitions(), ids=str)
def test_markers_alone_give_what_the_consumer_delivered(partition: Partition, isolation_level: IsolationName) -> None:
    reported = partition.consumed(isolation_level)
    if reported is None:
        assert partition.topic == "__cluster_metadata"  # no client may read it
        return
    offsets = partition.offsets
    assert offsets is not None
    for threads in (1, 2):
        decoded = kcodec.decode(
            partition.log, isolation_level=isolation_level, start_offset=partition.log_start_offset, threads=threads
        )
        assert_records(as_a_consumer(list(decoded.records()), partition), reported)
        assert decoded.next_offset == offsets[f"{isolation_level}Position"]
        assert decoded.error is None
        undecided = isolation_level == "read_committed" and offsets["lastStableOffset"] < offsets["highWatermark"]
        assert bool(decoded.counts.undecided) == undecided


@pytest.mark.parametrize("fetched", FETCHED, ids=str)
def test_record_sets_in_fetch_responses_are_what_kafka_reads(fetched: Fetched) -> None:
    assert_batches(fetched.data, list(fetched.batches), fetched.trailing_bytes)


def reported_stream(fetched: Fetched) -> list[Truth]:
    """What the consumer got of this partition between the fetch offset and the end of the answer's whole batches."""
    reported = BY_NAME[fetched.topic, fetched.partition].consumed(fetched.isolation_level)
    end = fetched.batches[-1]["lastOffset"] + 1
    if fetched.isolation_level == "read_committed":
        end = min(end, fetched.last_stable_offset)
    assert reported is not None
    assert fetched.fetch_offset is not None
    return [record for record in reported if fetched.fetch_offset <= record["offset"] < end]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("fetched", ANSWERED, ids=str)
def test_the_brokers_aborted_list_gives_what_the_consumer_delivered(fetched: Fetched, shuffled: bool) -> None:
    aborted = None
    if fetched.aborted_transactions is not None:
        aborted = [kcodec.AbortedTransaction(*entry) for entry in fetched.aborted_transactions]
        if shuffled:
            random.Random(len(fetched.data)).shuffle(aborted)
    decoded = kcodec.decode(
        fetched.data,
        isolation_level=fetched.isolation_level,
        aborted_transactions=aborted,
        last_stable_offset=fetched.last_stable_offset,
        start_offset=fetched.fetch_offset,
    )
    assert_records(decoded.records(), reported_stream(fetched))
    assert decoded.remaining_bytes == fetched.trailing_bytes
    # the position moves past batches that yield nothing, up to the last stable offset
    end = fetched.batches[-1]["lastOffset"] + 1
    if fetched.isolation_level == "read_committed":
        end = min(end, fetched.last_stable_offset)
    assert fetched.fetch_offset is not None
    assert decoded.next_offset == max(end, fetched.fetch_offset)


def test_the_golden_set_holds_what_these_tests_are_for() -> None:
    assert len(golden.partitions(2)) == 123
    assert sum(bool(fetched.aborted_transactions) for fetched in ANSWERED) > 10
    assert any(fetched.trailing_bytes for fetched in FETCHED)
    assert any(batch["records"] and batch["isControl"] for partition in EVERY for batch in partition.batches)
    assert {batch["compression"] for at in EVERY for batch in at.batches} == {"none", "gzip", "snappy", "lz4", "zstd"}
