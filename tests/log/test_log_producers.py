# SPDX-License-Identifier: Apache-2.0
"""log.producer_states: what a real broker knew of each producer, and from which snapshot the answer may begin."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from pathlib import Path
from typing import Any

import golden_data
import pytest
from golden_data import Partition
from log_files import ABORT, COMMIT, data, marker, partition, plain
from opened_logs import open_log

from kcodec.limits import DEFAULT_LIMITS
from kcodec.log import Log, ProducerState, read_snapshot, write_snapshot
from kcodec.log.producers import newest_usable, producer_states, snapshot_paths

PARTITIONS = golden_data.partitions(2)
COPIES = golden_data.copies("live") + golden_data.copies("killed")


def from_the_log_alone(log: Log) -> tuple[ProducerState, ...]:
    return producer_states(log.segments, log.log_end_offset, DEFAULT_LIMITS, use_snapshots=False)


def reported_by_the_broker(partition: Partition) -> list[dict[str, Any]]:
    reported = golden_data.offsets(partition.cluster)["producers"].get(partition.name, [])
    return sorted(reported, key=lambda one: int(one["producerId"]))


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_states_are_those_of_the_broker(partition: Partition) -> None:
    """DescribeProducers while it ran. Its coordinator epoch is -1 before any marker; it knows no expired producer."""
    states = {state.producer_id: state for state in open_log(partition.path).producer_states}
    for reported in reported_by_the_broker(partition):
        state = states[reported["producerId"]]
        assert (state.producer_epoch, state.last_sequence) == (reported["producerEpoch"], reported["lastSequence"])
        assert (state.timestamp, state.coordinator_epoch) == (reported["lastTimestamp"], reported["coordinatorEpoch"])
        first = state.current_transaction_first_offset
        assert (-1 if first is None else first) == reported["currentTransactionStartOffset"]


@pytest.mark.parametrize("partition", PARTITIONS + COPIES, ids=str)
def test_states_are_those_of_the_snapshot_at_the_end(partition: Partition) -> None:
    log = open_log(partition.path)
    offset, path = (snapshot_paths(log.segments) or [(-1, "")])[-1]
    if offset != log.log_end_offset:
        assert partition.name.startswith("__cluster") or partition.kind != "logs" or offset < log.log_end_offset
        return
    expected = tuple(sorted(read_snapshot(path).producers, key=lambda state: state.producer_id))
    assert log.producer_states == expected
    assert pickle.loads(pickle.dumps(log.producer_states)) == expected


@pytest.mark.parametrize("partition", PARTITIONS + COPIES, ids=str)
def test_a_replay_of_the_log_alone_gives_the_same(partition: Partition) -> None:
    """But for producers that the broker has let expire, and those of which the cleaner left nothing."""
    log = open_log(partition.path)
    alone = {state.producer_id: state for state in from_the_log_alone(log)}
    known = {state.producer_id: state for state in log.producer_states}
    common = alone.keys() & known.keys()
    assert {name: alone[name] for name in common} == {name: known[name] for name in common}
    assert all(alone[name].current_transaction_first_offset is None for name in alone.keys() - known.keys())
    assert not known.keys() - alone.keys() or "compact" in partition.name or log.log_start_offset > 0


@pytest.mark.parametrize("partition", [one for one in PARTITIONS if len(one.segments) > 3][:12], ids=str)
def test_each_snapshot_leads_to_the_same_end(partition: Partition, tmp_path: Path) -> None:
    directory = tmp_path / partition.name
    shutil.copytree(partition.path, directory)
    expected = {state.producer_id: state for state in open_log(directory).producer_states}
    for offset, path in reversed(snapshot_paths(open_log(directory).segments)):
        found = newest_usable(open_log(directory).segments, 1 << 62, DEFAULT_LIMITS)
        assert found is not None and found.offset == offset
        states = {state.producer_id: state for state in open_log(directory).producer_states}
        assert {name: states[name] for name in expected} == expected
        Path(path).unlink()


# -------------------------------------------------------------------------------------------------------- made batches


def log_of(folder: Path, *segments: list[bytes]) -> Log:
    return open_log(partition(folder, *segments))


def test_transactions_begin_and_end(tmp_path: Path) -> None:
    (state,) = log_of(tmp_path / "a", [data(7, 0), data(7, 2), plain(4)]).producer_states
    assert (state.last_sequence, state.last_offset, state.offset_delta) == (1, 3, 1)
    assert (state.coordinator_epoch, state.current_transaction_first_offset) == (-1, 0)
    (ended,) = log_of(tmp_path / "b", [data(7, 0), marker(COMMIT, 7, 2)]).producer_states
    assert (ended.last_offset, ended.coordinator_epoch, ended.current_transaction_first_offset) == (1, 0, None)
    (empty,) = log_of(tmp_path / "c", [marker(ABORT, 9, 0)]).producer_states
    assert (empty.producer_id, empty.last_offset, empty.last_sequence) == (9, -1, -1)
    assert log_of(tmp_path / "d", [plain(0)]).producer_states == ()


def test_another_epoch_forgets_the_batches_of_the_one_before(tmp_path: Path) -> None:
    from batch_writer import end_transaction_marker

    bumped = end_transaction_marker(COMMIT, producer_id=7, base_offset=2, producer_epoch=1)
    (state,) = log_of(tmp_path, [data(7, 0), bumped]).producer_states
    assert (state.producer_epoch, state.last_sequence, state.last_offset) == (1, -1, -1)


def test_a_snapshot_that_the_log_contradicts_is_passed_over(tmp_path: Path) -> None:
    log = log_of(tmp_path, [data(7, 0), plain(2)], [data(8, 5), plain(7)])
    right = from_the_log_alone(log)
    assert [state.producer_id for state in right] == [7, 8]
    first, second = right
    wrong = (
        [dataclasses.replace(first, last_sequence=9)],
        [dataclasses.replace(first, last_offset=2)],
        [dataclasses.replace(first, producer_epoch=3)],
        [dataclasses.replace(first, last_offset=6)],
        [dataclasses.replace(first, current_transaction_first_offset=3)],
        [dataclasses.replace(first, current_transaction_first_offset=8)],
        [dataclasses.replace(first, producer_id=70)],
    )
    path = Path(log.path) / f"{5:020d}.snapshot"
    for states in wrong:
        write_snapshot(path, states)
        assert newest_usable(log.segments, log.log_end_offset, DEFAULT_LIMITS) is None
        assert log.producer_states == right
    path.write_bytes(b"no snapshot")
    assert log.producer_states == right
    older = ProducerState(3, 0, -1, -1, 0, 5, -1, None)
    write_snapshot(path, [first, older])
    assert log.producer_states == (older, first, second)
    write_snapshot(Path(log.path) / f"{99:020d}.snapshot", [])
    assert log.producer_states == (older, first, second)


def test_only_the_batches_behind_the_snapshot_are_read(tmp_path: Path) -> None:
    log = log_of(tmp_path, [data(7, 0), plain(2), data(7, 5)], [plain(7)])
    (state,) = from_the_log_alone(log)
    write_snapshot(Path(log.path) / f"{5:020d}.snapshot", [dataclasses.replace(state, last_offset=1, timestamp=4)])
    assert log.producer_states == (state,)
