# SPDX-License-Identifier: Apache-2.0
"""Kafka's own classes, before they judge: they say what the captured truth says, and the program keeps its protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import golden_data
import pytest
from java_answers import JudgedRecord
from java_judge import KAFKA_VERSION, JavaJudge, JudgeFailed
from java_logs import ABORT, COMMIT, TransactionLog, java_consumer, random_log

LONG = os.environ.get("KCODEC_PROFILE") == "long"
LOG_SEEDS = range(600 if LONG else 60)


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def test_the_judge_runs_the_release_that_the_project_names(judge: JavaJudge) -> None:
    assert judge.version() == KAFKA_VERSION


def test_a_judge_that_was_killed_says_so_and_answers_again(java_home: object) -> None:
    with JavaJudge() as judge:
        assert judge.version() == KAFKA_VERSION
        assert judge._process is not None
        judge._process.kill()
        with pytest.raises(JudgeFailed, match="code -9"):
            judge.version()
        assert judge.version() == KAFKA_VERSION


def test_an_unknown_question_ends_the_judge_with_its_stack_trace(java_home: object) -> None:
    with JavaJudge() as judge, pytest.raises(JudgeFailed, match="unknown command"):
        judge._ask(b"?")


def committed_truth(judge: JavaJudge, log: TransactionLog) -> list[JudgedRecord]:
    """The records below the last stable offset that no aborted transaction wrote, from what the log's maker did."""
    found: list[JudgedRecord] = []
    for batch in judge.record_set(bytes(log.data)).batches:
        header = batch.header
        ended = any(
            transaction.producer_id == header["producerId"]
            and transaction.first_offset <= header["baseOffset"] <= transaction.last_offset
            for transaction in log.aborted
        )
        below = header["baseOffset"] < log.last_stable_offset
        if below and not header["isControlBatch"] and not (header["isTransactional"] and ended):
            found += batch.records
    return found


HEADER_NAMES = {
    "valid": "isValid",
    "isControl": "isControlBatch",
    "count": "recordsCount",
    "baseTimestampField": "baseTimestamp",
}
NOT_JUDGED = {"file", "records", "attributes", "lastOffsetDelta"}  # Kafka's classes do not give the last two out


def assert_same_as_truth(records: Sequence[JudgedRecord], reported: Sequence[dict[str, Any]]) -> None:
    assert [(record.offset, record.timestamp) for record in records] == [
        (e["offset"], e["timestamp"]) for e in reported
    ]
    for record, entry in zip(records, reported, strict=True):
        assert golden_data.same_bytes(record.key, entry["key"])
        assert golden_data.same_bytes(record.value, entry["value"])
        assert [name for name, _ in record.headers] == [name for name, _ in entry["headers"]]
        values = zip(record.headers, entry["headers"], strict=True)
        assert all(golden_data.same_bytes(value, reported_value) for (_, value), (_, reported_value) in values)


@pytest.mark.parametrize("partition", golden_data.partitions(), ids=str)
def test_the_judge_says_what_the_captured_truth_says(judge: JavaJudge, partition: golden_data.Partition) -> None:
    for segment in partition.segments:
        reported = [batch for batch in partition.batches if batch["file"] == segment.name]
        judged = judge.record_set(segment.read_bytes()).batches
        assert len(judged) == len(reported)
        for batch, truth in zip(judged, reported, strict=True):
            for name, value in truth.items():
                if name not in NOT_JUDGED:
                    assert batch.header.get(HEADER_NAMES.get(name, name)) == value, name
            assert_same_as_truth(batch.records, truth["records"])
            assert list(batch.sequences) == [entry["sequence"] for entry in truth["records"]]
            if truth["isControl"]:
                assert [control.type_id for control in batch.controls] == [
                    e["control"]["typeId"] for e in truth["records"]
                ]


def aborted_by_markers(partition: golden_data.Partition) -> list[tuple[int, int]]:
    """Producer id and first offset of each aborted transaction, from the markers in the truth."""
    begun: dict[int, int] = {}
    aborted = []
    for batch in partition.batches:
        producer_id = batch["producerId"]
        if not batch["isControl"]:
            if batch["isTransactional"] and batch["count"]:
                begun.setdefault(producer_id, batch["baseOffset"])
        elif batch["records"] and batch["records"][0]["control"]["typeId"] in (ABORT, COMMIT):
            first_offset = begun.pop(producer_id, None)
            if first_offset is not None and batch["records"][0]["control"]["typeId"] == ABORT:
                aborted.append((producer_id, first_offset))
    return aborted


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("partition", [p for p in golden_data.partitions() if p.consumed("read_committed")], ids=str)
def test_the_java_consumer_delivers_what_it_delivered_from_the_broker(
    judge: JavaJudge, partition: golden_data.Partition, isolation_level: str
) -> None:
    truth, offsets = partition.consumed(isolation_level), partition.offsets
    assert truth is not None
    assert offsets is not None
    end = offsets["lastStableOffset"] if isolation_level == "read_committed" else offsets["highWatermark"]
    whole = [batch for batch in partition.batches if batch["baseOffset"] < end]
    delivered = judge.consumer(
        partition.log[: sum(batch["size"] for batch in whole)],
        isolation_level=isolation_level,
        aborted_transactions=aborted_by_markers(partition),
        fetch_offset=partition.log_start_offset,
    )
    assert_same_as_truth(delivered.records, truth)


@pytest.mark.parametrize("seed", LOG_SEEDS)
def test_the_java_consumer_delivers_what_was_committed(judge: JavaJudge, seed: int) -> None:
    log = random_log(judge, seed)
    delivered = java_consumer(judge, log, log.batches[0].base_offset, log.last_stable_offset)
    assert list(delivered.records) == committed_truth(judge, log)
