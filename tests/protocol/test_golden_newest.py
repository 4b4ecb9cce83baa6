# SPDX-License-Identifier: Apache-2.0
"""What Kafka 4.4.0 and its clients wrote (tests/golden/kafka-4.4.0.json), read as Kafka's own classes read it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import reference_messages

import kcodec
from kcodec.protocol import messages

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "kafka-4.4.0.json"
FOUND: dict[str, Any] = json.loads(GOLDEN.read_text("utf-8"))
#: What 4.4.0 added (KIP-1242, KIP-1319) and what differs by client.
NEW = {"ApiVersionsRequest": 5, "TxnOffsetCommitRequest": 6, "TxnOffsetCommitResponse": 6, "DeleteGroupsResponse": 3}


def unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.mark.parametrize("row", FOUND["wire"], ids=lambda row: f"{row['kind']}-{row['version']}")
def test_a_frame_is_read_as_kafka_prints_it_and_written_again(row: dict[str, Any]) -> None:
    kind: Any = getattr(messages, row["kind"])
    data = base64.b64decode(row["data"])
    message = kind.decode(data, row["version"])
    assert list(reference_messages.differences(message, row["json"], row["version"])) == []
    assert message.encode(row["version"]) == data
    assert reference_messages.decode(kind, data, row["version"]) == message


def test_the_new_versions_are_among_them() -> None:
    found = {(row["kind"], row["version"]) for row in FOUND["wire"]}
    assert set(NEW.items()) <= found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The directory of the partition."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    for name, text in FOUND["log"]["files"].items():
        (folder / name).write_bytes(base64.b64decode(text))
    return folder


def test_batches_are_those_that_kafka_reads(folder: Path) -> None:
    batches = list(kcodec.batches((folder / f"{0:020}.log").read_bytes()))
    assert len(batches) == len(FOUND["log"]["batches"])
    for batch, reported in zip(batches, FOUND["log"]["batches"], strict=True):
        assert (batch.base_offset, batch.last_offset, batch.records_count) == (
            reported["baseOffset"],
            reported["lastOffset"],
            reported["recordsCount"],
        )
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (
            reported["producerId"],
            reported["producerEpoch"],
            reported["baseSequence"],
        )
        assert (batch.is_transactional, batch.is_control_batch) == (
            reported["isTransactional"],
            reported["isControlBatch"],
        )
        assert (batch.max_timestamp, batch.partition_leader_epoch) == (
            reported["maxTimestamp"],
            reported["partitionLeaderEpoch"],
        )
        batch.ensure_valid()


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_records_are_those_that_javas_consumer_delivers(folder: Path, level: str) -> None:
    reported = [
        (offset, timestamp, unpacked(key), unpacked(value))
        for offset, timestamp, key, value in FOUND["log"]["consumed"][level]
    ]
    log: Any = kcodec.open(folder)
    found = [(one.offset, one.timestamp, one.key, one.value) for one in log.records(level)]
    assert found == reported and reported
