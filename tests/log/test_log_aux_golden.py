# SPDX-License-Identifier: Apache-2.0
"""Indexes, snapshots and checkpoints that a real broker wrote, compared with what Kafka's own classes read in them."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_data
import pytest
from golden_data import Truth

from kcodec.log import (
    pack_snapshot,
    read_leader_epochs,
    read_meta_properties,
    read_offset_index,
    read_offsets,
    read_partition_metadata,
    read_snapshot,
    read_time_index,
    read_transaction_index,
    write_snapshot,
)
from kcodec.log.checkpoints import OFFSET_CHECKPOINTS

DIRECTORIES = golden_data.partitions() + golden_data.copies("live") + golden_data.copies("killed")


def reported(suffix: str) -> Iterator[tuple[Path, Any]]:
    """Every file of that kind with its truth."""
    for partition in DIRECTORIES:
        for name, truth in partition.auxiliary.items():
            if name.endswith(suffix):
                yield partition.path / name, truth


def split_zeros(truth: list[Truth]) -> tuple[list[Truth], int]:
    """The entries, and how many places of zeros stand behind them.

    The truth takes a first entry of zeros for one; no broker writes position 0, as an entry is due after 4 KiB.
    """
    if not truth or "zeroEntriesFrom" not in truth[-1]:
        return truth, 0
    entries = [entry for entry in truth[:-1] if entry.get("position") != 0]
    return entries, truth[-1]["entries"] - len(entries)


def test_offset_indexes() -> None:
    found = list(reported(".index"))
    assert len(found) > 200
    for path, truth in found:
        entries, zeros = split_zeros(truth)
        index = read_offset_index(path)
        assert [entry._asdict() for entry in index] == entries
        assert (index.preallocated_entries, index.remaining_bytes) == (zeros, 0)
        assert index.to_numpy().tolist() == list(map(tuple, index))
    assert any("zeroEntriesFrom" in truth[-1] for _, truth in found if truth)


def test_time_indexes() -> None:
    found = list(reported(".timeindex"))
    assert len(found) > 200
    for path, truth in found:
        entries, zeros = split_zeros(truth)
        index = read_time_index(path)
        assert [entry._asdict() for entry in index] == entries, path
        assert (index.preallocated_entries, index.remaining_bytes) == (zeros, 0)
        assert index.to_numpy().tolist() == list(map(tuple, index))


def test_transaction_indexes() -> None:
    found = list(reported(".txnindex"))
    assert len(found) > 60
    for path, truth in found:
        index = read_transaction_index(path)
        names = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
        assert list(index) == [tuple(entry[name] for name in names) for entry in truth]
        assert index.to_numpy().tolist() == list(map(tuple, index))
        assert pickle.loads(pickle.dumps(index)) == index
        assert repr(index).startswith(f"<TransactionIndex of {len(truth)} entries, TransactionIndexEntry(version=0")


def test_snapshots_and_their_bytes(tmp_path: Path) -> None:
    found = list(reported(".snapshot"))
    assert len(found) > 200
    for path, truth in found:
        snapshot = read_snapshot(path)
        assert snapshot.offset == int(path.stem)
        assert len(snapshot.producers) == len(truth)
        for state, entry in zip(snapshot.producers, truth, strict=True):
            assert (state.producer_id, state.producer_epoch) == (entry["producerId"], entry["producerEpoch"])
            assert (state.coordinator_epoch, state.timestamp) == (entry["coordinatorEpoch"], entry["lastTimestamp"])
            assert state.current_transaction_first_offset == entry["currentTxnFirstOffset"]
            last = entry["batches"][-1] if entry["batches"] else {}
            assert (state.first_sequence, state.last_sequence) == (last.get("firstSeq", -1), last.get("lastSeq", -1))
            assert (state.last_offset, state.offset_delta) == (last.get("lastOffset", -1), last.get("offsetDelta", 0))
        assert pack_snapshot(snapshot.producers) == path.read_bytes()
        assert pickle.loads(pickle.dumps(snapshot)) == snapshot
        write_snapshot(tmp_path / path.name, snapshot.producers)
        again = read_snapshot(tmp_path / path.name)
        assert dataclasses.replace(again, path=snapshot.path) == snapshot
    assert {each.suffix for each in tmp_path.iterdir()} == {".snapshot"}


def test_leader_epochs_and_topic_ids() -> None:
    assert len(list(reported("leader-epoch-checkpoint"))) > 100
    for path, truth in reported("leader-epoch-checkpoint"):
        assert list(read_leader_epochs(path)) == [(entry["epoch"], entry["startOffset"]) for entry in truth]
    for path, truth in reported("partition.metadata"):
        found = read_partition_metadata(path)
        assert (str(found.version), found.topic_id) == (truth["version"], truth["topic_id"])
        assert found.uuid.bytes
    ids = {partition.name: partition.offsets["topicId"] for partition in DIRECTORIES if partition.offsets}
    for partition in golden_data.partitions():
        if partition.offsets and partition.cluster == "tv2":
            assert read_partition_metadata(partition.path / "partition.metadata").topic_id == ids[partition.name]


def test_checkpoints_of_the_log_directories() -> None:
    folders = [path for path in golden_data.root().glob("tv*/*") if (path / OFFSET_CHECKPOINTS[0]).is_file()]
    assert {folder.name for folder in folders} == {"logs", "live", "killed"}
    for folder in folders:
        for name in OFFSET_CHECKPOINTS:
            lines = (folder / name).read_text("utf-8").split("\n")[2:-1]
            found = read_offsets(folder / name)
            assert [f"{topic} {partition} {offset}" for (topic, partition), offset in found.items()] == lines
    moved = read_offsets(golden_data.root() / "tv2/logs/log-start-offset-checkpoint")
    assert moved == {
        ("deleted-all", 0): 70,
        ("deleted-records", 0): 45,
        ("deleted-mid", 0): 24,
        ("deleted-txn", 0): 31,
    }
    assert (golden_data.root() / "tv0/logs/cleaner-offset-checkpoint").read_bytes() == b""


def test_high_watermarks_are_those_of_the_broker_after_its_clean_stop() -> None:
    for cluster in golden_data.CLUSTERS:
        found = read_offsets(golden_data.root() / cluster / "logs/replication-offset-checkpoint")
        partitions = golden_data.offsets(cluster)["partitions"].items()
        assert {f"{topic}-{number}": offset for (topic, number), offset in found.items()}.items() >= {
            (name, truth["highWatermark"]) for name, truth in partitions
        }


def test_meta_properties() -> None:
    for cluster in golden_data.CLUSTERS:
        found = read_meta_properties(golden_data.root() / cluster / "logs/meta.properties")
        assert (found.version, found.node_id, found.other) == (1, 1, ())
        assert found.directory_id is not None and len(found.directory_id) == 22
        assert found.cluster_id is None or len(found.cluster_id) == 22


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_preallocated_index_has_the_entries_of_the_trimmed_one(suffix: str) -> None:
    read = read_offset_index if suffix == ".index" else read_time_index
    live = [path for path, truth in reported(suffix) if truth and "zeroEntriesFrom" in truth[-1]]
    assert live
    for path in live:
        trimmed = golden_data.root() / "tv2/logs" / path.parent.name / path.name
        assert list(read(trimmed))[: len(read(path))] == list(read(path))
