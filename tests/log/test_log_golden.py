# SPDX-License-Identifier: Apache-2.0
"""kcodec.open on directories that a real broker wrote, compared with what Kafka's own classes and consumer say of
them."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import golden_data
import pyarrow as pa
import pytest
from golden_data import Partition, same_bytes, same_headers
from opened_logs import open_log

import kcodec
from kcodec.log import read_split

PARTITIONS = golden_data.partitions()
COPIES = golden_data.copies("live") + golden_data.copies("killed")
LEVELS = ("read_uncommitted", "read_committed")


def same_record(record: kcodec.Record, reported: dict[str, Any]) -> bool:
    return (
        (record.offset, record.timestamp) == (reported["offset"], reported["timestamp"])
        and same_bytes(record.key, reported["key"])
        and same_bytes(record.value, reported["value"])
        and same_headers(record.headers, reported["headers"])
    )


@pytest.mark.parametrize("partition", PARTITIONS + COPIES, ids=str)
def test_batches_are_those_kafka_reads(partition: Partition) -> None:
    found = list(open_log(partition.path).batches)
    assert len(found) == len(partition.batches)
    for batch, reported in zip(found, partition.batches, strict=True):
        assert batch.path is not None and Path(batch.path).name == reported["file"]
        assert (batch.position, batch.size_in_bytes) == (reported["position"], reported["size"])
        assert (batch.base_offset, batch.last_offset, batch.crc) == (
            reported["baseOffset"],
            reported["lastOffset"],
            reported["crc"],
        )
        assert batch.producer_id == reported["producerId"]
        assert bytes(batch.data) == Path(batch.path).read_bytes()[reported["position"] :][: reported["size"]]
        assert [record.offset for record in batch.records()] == [record["offset"] for record in reported["records"]]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_records_are_those_kafkas_consumer_delivered(partition: Partition, level: str) -> None:
    reported = partition.consumed(level)
    if reported is None:
        assert partition.name.startswith("__")
        return
    found = list(open_log(partition.path).records(level))
    assert [record.offset for record in found] == [record["offset"] for record in reported]
    assert all(same_record(record, line) for record, line in zip(found, reported, strict=True))


@pytest.mark.parametrize("partition", [one for one in PARTITIONS if one.offsets], ids=str)
def test_offsets_are_those_of_the_broker(partition: Partition) -> None:
    log, reported = open_log(partition.path), partition.offsets
    assert reported is not None
    assert (log.topic, log.partition) == (partition.topic, partition.partition)
    assert log.log_start_offset == reported["logStartOffset"]
    assert log.high_watermark == log.log_end_offset == reported["highWatermark"]
    assert log.last_stable_offset == reported["lastStableOffset"]
    assert log.tail is None


INDEXED = [one for one in PARTITIONS if any(name.endswith(".txnindex") for name in one.auxiliary)]


@pytest.mark.parametrize("partition", INDEXED, ids=str)
def test_aborted_transactions_are_those_of_the_transaction_index(partition: Partition) -> None:
    """Where data was deleted the index remembers an earlier first offset, or one of which nothing is left."""
    log = open_log(partition.path)
    aborted = {
        (found.producer_id, found.marker_offset): found.first_offset
        for found in log.transactions
        if found.state == "aborted"
    }
    entries = [entry for name, lines in partition.auxiliary.items() if name.endswith(".txnindex") for entry in lines]
    for entry in entries:
        first = aborted[entry["producerId"], entry["lastOffset"]]
        assert (
            first == entry["firstOffset"] or entry["firstOffset"] < log.log_start_offset or "compact" in partition.name
        )
    indexed = {(entry["producerId"], entry["lastOffset"]) for entry in entries}
    assert "compact" in partition.name or indexed == {key for key, first in aborted.items() if first is not None}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_splits_read_apart_give_the_same(partition: Partition, level: str) -> None:
    log = open_log(partition.path)
    verdict = pickle.loads(pickle.dumps(log.verdict(level)))
    whole = list(log.records(level))
    for max_bytes in (1, 1000, 1 << 30):
        found = []
        for split in pickle.loads(pickle.dumps(log.splits(max_bytes))):
            part = verdict.between(split.first_offset, split.next_offset)
            chunks = read_split(split, part, isolation_level=level, limits=kcodec.DEFAULT_LIMITS)
            found += [record for chunk in chunks for record in chunk.records()]
        assert found == whole


@pytest.mark.parametrize("partition", PARTITIONS[::7], ids=str)
def test_arrow_stream_holds_the_records(partition: Partition) -> None:
    log = open_log(partition.path)
    columns = ("topic", "partition", "offset", "value")
    for level in LEVELS:
        table = pa.table(log.to_arrow(columns, level, max_rows=7))
        whole = list(log.records(level))
        assert table.column("offset").to_pylist() == [record.offset for record in whole]
        assert table.column("value").to_pylist() == [record.value for record in whole]
        assert set(table.column("topic").to_pylist()) <= {partition.topic}
        assert set(table.column("partition").to_pylist()) <= {partition.partition}
        assert all(batch.num_rows <= 7 for batch in table.to_batches())


@pytest.mark.parametrize("partition", [one for one in PARTITIONS if len(one.segments) > 2], ids=str)
def test_one_segment_opened_by_name_is_resolved_by_itself(partition: Partition) -> None:
    whole = list(open_log(partition.path).records())
    apart = [record for path in partition.segments for record in open_log(path).records()]
    assert apart == whole


def test_a_log_of_transactions_open_at_the_end_lists_them() -> None:
    partition = next(one for one in PARTITIONS if one.name == "txn-open-0")
    log = open_log(partition.path)
    opened = [found for found in log.transactions if found.state == "open"]
    assert min(found.first_offset for found in opened if found.first_offset is not None) == log.last_stable_offset == 7
    assert {found.state for found in log.transactions} == {"open", "committed", "aborted"}
    assert "open" in repr(opened[0])
    assert pickle.loads(pickle.dumps(log.transactions)) == log.transactions


def test_a_directory_that_is_copied_without_its_checkpoint_begins_at_its_first_segment(tmp_path: Path) -> None:
    partition = next(one for one in PARTITIONS if one.name == "deleted-mid-0")
    shutil.copytree(partition.path, tmp_path / partition.name)
    log = open_log(tmp_path / partition.name)
    assert log.log_start_offset == int(partition.segments[0].stem) < partition.log_start_offset
